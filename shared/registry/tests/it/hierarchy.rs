//! Parents before children, and containers that refuse to go.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use object_store::memory::InMemory;
use squire_registry::{
    Error, Floors, Kind, Level, NewTable, NewWarehouse, Policy, PolicyChange, Registry, Root, Subject, TableChanges,
};
use tokio::sync::Notify;

use crate::support::{Fault, Lake, Tampered, actor, none, path};

fn new(name: &str, location: &str) -> NewTable {
    NewTable { path: path(name), location: location.into(), tier: None, labels: vec![], declare: false }
}

#[tokio::test]
async fn a_parent_must_exist() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    let root = lake.dir.path().to_str().unwrap();
    let missing = |e: Error, what: &str| {
        assert_eq!(e.kind(), Kind::NotFound, "{e}");
        assert!(e.to_string().contains(what), "{e}");
    };
    missing(r.warehouse_create("x", "nobody", root, true, &none(), None).await.unwrap_err(), "project/nobody");
    missing(r.namespace_create(&path("x"), Some("nowhere"), None).await.unwrap_err(), "warehouse/nowhere");
    missing(r.namespace_create(&path("x/y"), None, None).await.unwrap_err(), "namespace/x");
    missing(r.table_create(new("x/t", "t.lance"), &none(), None).await.unwrap_err(), "namespace/x");
}

#[tokio::test]
async fn a_namespace_is_bound_as_its_parent_is() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    assert_eq!(r.namespace_create(&path("top"), None, None).await.unwrap_err().kind(), Kind::Invalid);
    r.namespace_create(&path("sales/eu"), None, None).await.unwrap();
    let snapshot = r.snapshot().await.unwrap();
    assert_eq!(snapshot.namespace(&path("sales/eu")).unwrap().fields.warehouse, "w");
    let other = lake.dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    r.warehouse_create("w2", "p", other.to_str().unwrap(), true, &none(), None).await.unwrap();
    let error = r.namespace_create(&path("sales/us"), Some("w2"), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
}

#[tokio::test]
async fn a_location_has_one_name() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    let error = lake.registry.table_create(new("sales/copy", "orders.lance"), &none(), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict, "{error}");
    assert!(error.to_string().contains("table/sales/orders"), "{error}");
    // Neither does a link to it get a second one.
    let link = lake.dir.path().join("link.lance");
    std::os::unix::fs::symlink(lake.dir.path().join("orders.lance"), &link).unwrap();
    let error = lake.registry.table_create(new("sales/copy", "link.lance"), &none(), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict, "{error}");
    assert!(lake.registry.snapshot().await.unwrap().table(&path("sales/copy")).is_none());
}

#[tokio::test]
async fn a_location_that_leads_out_of_the_warehouse_or_into_another_table_is_refused() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    let r = &lake.registry;
    let outside = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(outside.path(), lake.dir.path().join("out")).unwrap();
    let refused = async |location: &str| {
        let declared = NewTable { declare: true, ..new("sales/t", location) };
        r.table_create(declared, &none(), None).await.unwrap_err()
    };
    let error = refused("out/t").await;
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("outside of warehouse"), "{error}");
    let error = refused("orders.lance/tree/dev").await;
    assert!(error.kind() == Kind::Refused && error.to_string().contains("table/sales/orders"), "{error}");
    lake.bytes("a/b.lance");
    r.table_create(new("sales/b", "a/b.lance"), &none(), None).await.unwrap();
    assert!(refused("a").await.to_string().contains("table/sales/b"));
    assert_eq!(r.snapshot().await.unwrap().tables().count(), 2);
}

#[tokio::test]
async fn a_name_is_used_once_and_the_loser_gives_its_location_back() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    lake.bytes("b.lance");
    let error = lake.registry.table_create(new("sales/orders", "b.lance"), &none(), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict, "{error}");
    lake.registry.table_create(new("sales/b", "b.lance"), &none(), None).await.unwrap();
}

#[tokio::test]
async fn of_concurrent_registrations_of_one_location_one_wins() {
    let lake = Lake::new().await;
    lake.bytes("x.lance");
    let tries = (0..8).map(|n| {
        let registry = lake.registry.clone();
        async move { registry.table_create(new(&format!("sales/t{n}"), "x.lance"), &none(), None).await }
    });
    let done = futures::future::join_all(tries).await;
    assert_eq!(done.iter().filter(|r| r.is_ok()).count(), 1);
    let snapshot = lake.registry.snapshot().await.unwrap();
    assert_eq!(snapshot.tables().count(), 1);
    assert_eq!(squire_registry::check(&snapshot), []);
}

#[tokio::test]
async fn of_concurrent_registrations_of_one_name_the_losers_give_their_locations_back() {
    let lake = Lake::new().await;
    let tries = (0..8).map(|n| {
        let location = format!("x{n}.lance");
        lake.bytes(&location);
        let registry = lake.registry.clone();
        async move { registry.table_create(new("sales/t", &location), &none(), None).await }
    });
    let done = futures::future::join_all(tries.collect::<Vec<_>>()).await;
    assert_eq!(done.iter().filter(|r| r.is_ok()).count(), 1);
    let snapshot = lake.registry.snapshot().await.unwrap();
    assert_eq!(snapshot.counts()[&squire_registry::Collection::Locations], (1, 0));
    assert_eq!(squire_registry::check(&snapshot), []);
}

#[tokio::test]
async fn a_table_without_bytes_must_be_declared() {
    let lake = Lake::new().await;
    let error = lake.registry.table_create(new("sales/later", "later.lance"), &none(), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    let declared = NewTable { declare: true, ..new("sales/later", "later.lance") };
    lake.registry.table_create(declared, &none(), None).await.unwrap();
    assert!(lake.govern(&lake.uri("later.lance")).await.declared_only);
    let uri = lake.table("sales/now").await;
    assert!(!lake.govern(&uri).await.declared_only);
}

#[tokio::test]
async fn bad_shapes_are_refused_before_anything_is_looked_up() {
    let lake = Lake::new().await;
    for location in
        ["", "/abs", "s3://b/x", "s3:x", "file:x", "C:x", "../x", "a/../b", "a//b", "./x", "_squire/x", "a\u{7}"]
    {
        let error = lake.registry.table_create(new("nowhere/t", location), &none(), None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{location}: {error}");
    }
    let error = lake.registry.table_create(new("t", "t.lance"), &none(), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    for name in ["", ".", "..", "a\u{0}"] {
        assert_eq!(lake.registry.project_create(name, None).await.unwrap_err().kind(), Kind::Invalid, "{name:?}");
    }
    let missing = lake.dir.path().join("missing");
    let error =
        lake.registry.warehouse_create("x", "p", missing.to_str().unwrap(), true, &none(), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    let inside = lake.registry.uri().to_owned();
    let error = lake.registry.warehouse_create("x", "p", &inside, true, &none(), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
}

#[tokio::test]
async fn a_warehouse_marks_its_root_and_refuses_another_estates() {
    let (ours, theirs) = (Lake::new().await, Lake::new().await);
    let root = theirs.dir.path().to_str().unwrap();
    let error = ours.registry.warehouse_create("stolen", "p", root, true, &none(), None).await.unwrap_err();
    assert!(matches!(error, Error::OtherEstate { .. }), "{error}");
    let fresh = tempfile::tempdir().unwrap();
    let root = fresh.path().to_str().unwrap();
    ours.registry.warehouse_create("fresh", "p", root, true, &none(), None).await.unwrap();
    let marked = squire_registry::read_marker(root, &none()).await.unwrap();
    assert_eq!(marked, Some(ours.registry.id()));
    // A place below theirs is theirs, also where nothing marks it; below ours it is ours.
    for (lake, foreign) in [(&theirs, true), (&ours, false)] {
        let below = lake.dir.path().join("deep/below");
        std::fs::create_dir_all(&below).unwrap();
        let below = below.to_str().unwrap();
        let made = ours.registry.warehouse_create("below", "p", below, true, &none(), None).await;
        if foreign {
            let error = made.unwrap_err();
            assert!(matches!(&error, Error::OtherEstate { marked, .. } if *marked == theirs.registry.id()), "{error}");
            assert_eq!(squire_registry::read_marker(below, &none()).await.unwrap(), None);
        } else {
            made.unwrap();
        }
    }
}

#[tokio::test]
async fn a_container_with_contents_refuses_and_names_them() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    let r = &lake.registry;
    for (subject, names) in [
        (Subject::Project("p".into()), "warehouse/w"),
        (Subject::Warehouse("w".into()), "namespace/sales"),
        (Subject::Namespace(path("sales")), "table/sales/orders"),
    ] {
        let error = r.container_drop(&subject, false, None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
        assert!(error.to_string().contains(names), "{error}");
    }
    // A refused drop leaves nothing behind that would keep new things out.
    r.namespace_create(&path("sales/eu"), None, None).await.unwrap();
}

#[tokio::test]
async fn a_namespace_does_not_go_from_under_its_tables_in_the_trash() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    r.namespace_create(&path("sales/eu"), None, None).await.unwrap();
    let uri = lake.table("sales/eu/orders").await;
    let sales = Subject::Namespace(path("sales"));
    let keys = [("retention".to_owned(), "90d".to_owned())];
    let change = PolicyChange { subject: &sales, keys: &keys, reason: None, immediately: false, at: Utc::now() };
    r.policy_set(&change, &Policy::default(), &Floors::default()).await.unwrap();
    r.table_drop(&path("sales/eu/orders"), Duration::from_secs(604_800), false, None).await.unwrap();
    for subject in [Subject::Namespace(path("sales/eu")), sales] {
        let error = r.container_drop(&subject, false, None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
        assert!(error.to_string().contains("table/sales/eu/orders in the trash"), "{error}");
    }
    r.undrop(&Subject::Table(path("sales/eu/orders")), None).await.unwrap();
    assert_eq!(lake.govern(&uri).await.policy.policy.retention.as_secs(), 90 * 86_400);
}

#[tokio::test]
async fn an_emptied_hierarchy_goes_bottom_up() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    r.container_drop(&Subject::Namespace(path("sales")), false, None).await.unwrap();
    r.container_drop(&Subject::Warehouse("w".into()), false, None).await.unwrap();
    r.container_drop(&Subject::Project("p".into()), false, None).await.unwrap();
    let snapshot = r.snapshot().await.unwrap();
    assert_eq!((snapshot.projects().count(), snapshot.warehouses().count(), snapshot.namespaces().count()), (0, 0, 0));
    let error = r.container_drop(&Subject::Project("p".into()), false, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

#[tokio::test]
async fn a_protected_container_refuses_and_force_gets_past_no_drop_only() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    let namespace = Subject::Namespace(path("sales"));
    r.protect(&Subject::Project("p".into()), Level::NoDrop, Some("audit")).await.unwrap();
    let error = r.container_drop(&namespace, false, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused);
    assert!(error.to_string().contains("project/p") && error.to_string().contains("audit"), "{error}");
    r.protect(&Subject::Warehouse("w".into()), Level::KeepHistory, None).await.unwrap();
    assert_eq!(r.container_drop(&namespace, true, None).await.unwrap_err().kind(), Kind::Refused);
    r.unprotect(&Subject::Warehouse("w".into()), None).await.unwrap();
    r.container_drop(&namespace, true, None).await.unwrap();
}

#[tokio::test]
async fn a_reused_id_inherits_nothing() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    let namespace = Subject::Namespace(path("sales"));
    r.protect(&namespace, Level::NoDrop, None).await.unwrap();
    r.container_drop(&namespace, true, None).await.unwrap();
    r.namespace_create(&path("sales"), Some("w"), None).await.unwrap();
    let snapshot = r.snapshot().await.unwrap();
    assert_eq!(snapshot.protection_over(&namespace), None);
    assert_eq!(squire_registry::check(&snapshot), []);
}

/// A registry with `namespace/a`, through a plain store and through one that can be held up.
async fn two_handles() -> (Registry, Registry, Arc<Tampered>, tempfile::TempDir) {
    let inner = Arc::new(InMemory::new());
    let tampered = Arc::new(Tampered::new(inner.clone()));
    let at = |store| Root::with_store(store, object_store::path::Path::from("c"), "s3://bucket/c");
    let fast = Registry::init_at(at(inner.clone()), "test", actor()).await.unwrap();
    let slow = Registry::open_at(at(tampered.clone()), actor()).await.unwrap();
    fast.project_create("p", None).await.unwrap();
    let root = tempfile::tempdir().unwrap();
    fast.warehouse_create("w", "p", root.path().to_str().unwrap(), true, &none(), None).await.unwrap();
    fast.namespace_create(&path("a"), Some("w"), None).await.unwrap();
    (fast, slow, tampered, root)
}

#[tokio::test]
async fn a_creator_whose_parent_went_rolls_back() {
    let (fast, slow, tampered, _root) = two_handles().await;
    let (arrived, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    tampered.next("v1/namespaces/a%2Fb/", Fault::Hold { arrived: arrived.clone(), go: go.clone() });
    let creator = tokio::spawn(async move { slow.namespace_create(&path("a/b"), None, None).await });
    arrived.notified().await;
    fast.container_drop(&Subject::Namespace(path("a")), false, None).await.unwrap();
    go.notify_one();
    let error = creator.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    assert_eq!(fast.snapshot().await.unwrap().namespaces().count(), 0);
}

#[tokio::test]
async fn of_two_tables_one_in_the_other_the_one_that_sees_the_other_gives_its_location_back() {
    let (fast, slow, tampered, _root) = two_handles().await;
    let table = |name: &str, location: &str| NewTable {
        path: path(&format!("a/{name}")),
        location: location.into(),
        tier: None,
        labels: vec![],
        declare: true,
    };
    let (arrived, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    tampered.next("v1/locations/", Fault::Hold { arrived: arrived.clone(), go: go.clone() });
    let (outer, inner) = (table("outer", "t"), table("inner", "t/data/u"));
    let creator = tokio::spawn(async move { slow.table_create(outer, &none(), None).await });
    // It has looked, nothing was there, and its claim is on the way.
    arrived.notified().await;
    fast.table_create(inner, &none(), None).await.unwrap();
    go.notify_one();
    let error = creator.await.unwrap().unwrap_err();
    assert!(error.kind() == Kind::Refused && error.to_string().contains("table/a/inner"), "{error}");
    let now = fast.snapshot().await.unwrap();
    assert_eq!(now.tables().map(|t| t.fields.subject().to_string()).collect::<Vec<_>>(), ["table/a/inner"]);
    assert_eq!(squire_registry::check(&now), []);
}

#[tokio::test]
async fn a_location_whose_table_was_dropped_meanwhile_is_not_registered() {
    let (fast, slow, tampered, _root) = two_handles().await;
    let declared = |name: &str| NewTable { declare: true, ..new(&format!("a/{name}"), "t") };
    let (arrived, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    tampered.next("v1/locations/", Fault::Hold { arrived: arrived.clone(), go: go.clone() });
    let late = declared("late");
    let creator = tokio::spawn(async move { slow.table_create(late, &none(), None).await });
    // It has looked, the trash held nothing, and its claim is on the way.
    arrived.notified().await;
    fast.table_create(declared("t"), &none(), None).await.unwrap();
    fast.table_drop(&path("a/t"), Duration::from_secs(60), false, None).await.unwrap();
    go.notify_one();
    let error = creator.await.unwrap().unwrap_err();
    assert!(error.kind() == Kind::Refused && error.to_string().contains("trash undrop table/a/t"), "{error}");
    let now = fast.snapshot().await.unwrap();
    assert_eq!((now.tables().count(), now.trash().count()), (0, 1));
    assert_eq!(squire_registry::check(&now), []);
}

#[tokio::test]
async fn a_drop_that_another_drop_has_ended_leaves_its_trash_and_whoever_has_the_name_by_then() {
    let (fast, slow, tampered, _root) = two_handles().await;
    let declared = |location: &str| NewTable { declare: true, ..new("a/t", location) };
    let first = fast.table_create(declared("t"), &none(), None).await.unwrap();
    fast.protect(&Subject::Table(path("a/t")), Level::NoDrop, Some("precious")).await.unwrap();
    let (arrived, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    tampered.next("v1/tables/", Fault::Hold { arrived: arrived.clone(), go: go.clone() });
    let week = Duration::from_secs(7 * 86_400);
    let dropper = tokio::spawn(async move { slow.table_drop(&path("a/t"), week, true, None).await });
    // Its trash record stands, and the end of the name is on the way.
    arrived.notified().await;
    fast.table_drop(&path("a/t"), week, true, None).await.unwrap();
    fast.table_create(declared("other"), &none(), None).await.unwrap();
    go.notify_one();
    assert_eq!(dropper.await.unwrap().unwrap_err().kind(), Kind::Conflict);
    let now = fast.snapshot().await.unwrap();
    assert_eq!(now.table(&path("a/t")).unwrap().fields.location, "other");
    let held = now.trash_at(&first.uri).next().expect("the first drop's bytes are frozen");
    assert_eq!(held.fields.protection.as_ref().unwrap().reason.as_deref(), Some("precious"));
    assert_eq!(squire_registry::check(&now), []);
}

#[tokio::test]
async fn of_two_servers_for_one_root_the_one_that_sees_the_other_is_taken_back() {
    let (fast, slow, tampered, root) = two_handles().await;
    let at = root.path().to_str().unwrap().to_owned();
    let (one, two) = ("https://one.example", "https://two.example");
    fast.warehouse_create("v", "p", &at, true, &none(), None).await.unwrap();
    let held = |key: &str| {
        let (arrived, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        tampered.next(key, Fault::Hold { arrived: arrived.clone(), go: go.clone() });
        (arrived, go)
    };
    // It has looked, no server names the root, and its own is on the way.
    let (arrived, go) = held("v1/warehouses/w/");
    let late = slow.clone();
    let setter = tokio::spawn(async move { late.warehouse_set_namespace("w", None, Some(one), None).await });
    arrived.notified().await;
    fast.warehouse_set_namespace("v", None, Some(two), None).await.unwrap();
    go.notify_one();
    let error = setter.await.unwrap().unwrap_err();
    assert!(error.kind() == Kind::Refused && error.to_string().contains("warehouse/v"), "{error}");
    fast.warehouse_set_namespace("v", Some(two), None, None).await.unwrap();

    let (arrived, go) = held("v1/warehouses/made/");
    let maker = tokio::spawn(async move {
        let new = NewWarehouse { id: "made", project: "p", root: &at, exclusive: true, namespace: Some(one) };
        slow.warehouse_make(new, &none(), None).await
    });
    arrived.notified().await;
    fast.warehouse_set_namespace("v", None, Some(two), None).await.unwrap();
    go.notify_one();
    let error = maker.await.unwrap().unwrap_err();
    assert!(error.kind() == Kind::Refused && error.to_string().contains("warehouse/v"), "{error}");
    let now = fast.snapshot().await.unwrap();
    let named: Vec<_> = now.warehouses().filter_map(|w| w.fields.namespace.as_deref()).collect();
    assert_eq!((named, now.warehouses().count()), (vec![two], 2));
    assert_eq!(squire_registry::check(&now), []);
}

#[tokio::test]
async fn a_drop_that_meets_a_new_child_is_taken_back() {
    let (fast, slow, tampered, _root) = two_handles().await;
    let (arrived, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    tampered.next("v1/namespaces/a/", Fault::Hold { arrived: arrived.clone(), go: go.clone() });
    let dropper = tokio::spawn(async move { slow.container_drop(&Subject::Namespace(path("a")), false, None).await });
    arrived.notified().await;
    fast.namespace_create(&path("a/b"), None, None).await.unwrap();
    go.notify_one();
    let error = dropper.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("namespace/a/b"), "{error}");
    fast.namespace_create(&path("a/c"), None, None).await.unwrap();
    assert_eq!(squire_registry::check(&fast.snapshot().await.unwrap()), []);
}

#[tokio::test]
async fn a_drop_that_meets_new_protection_is_taken_back() {
    let (fast, slow, tampered, _root) = two_handles().await;
    let declared = NewTable { path: path("a/t"), location: "t".into(), tier: None, labels: vec![], declare: true };
    fast.table_create(declared, &none(), None).await.unwrap();
    let (arrived, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    tampered.next("v1/trash/", Fault::Hold { arrived: arrived.clone(), go: go.clone() });
    let week = Duration::from_secs(7 * 86_400);
    let dropper = tokio::spawn(async move { slow.table_drop(&path("a/t"), week, false, None).await });
    // It has looked, nothing was protected, and its record is on the way.
    arrived.notified().await;
    let table = Subject::Table(path("a/t"));
    fast.protect(&table, Level::KeepHistory, Some("case 7")).await.unwrap();
    go.notify_one();
    let error = dropper.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    let snapshot = fast.snapshot().await.unwrap();
    assert_eq!((snapshot.trash().count(), snapshot.exists(&table)), (0, true));
    assert_eq!(snapshot.protection_of(&table).map(|p| p.fields.level), Some(Level::KeepHistory));
    assert_eq!(squire_registry::check(&snapshot), []);
}

#[tokio::test]
async fn protection_that_comes_too_late_does_not_stay_for_whoever_has_the_name_next() {
    let (fast, slow, tampered, _root) = two_handles().await;
    let declared = NewTable { path: path("a/t"), location: "t".into(), tier: None, labels: vec![], declare: true };
    fast.table_create(declared, &none(), None).await.unwrap();
    let (arrived, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    tampered.next("v1/protection/", Fault::Hold { arrived: arrived.clone(), go: go.clone() });
    let table = Subject::Table(path("a/t"));
    let on = table.clone();
    let protector = tokio::spawn(async move { slow.protect(&on, Level::Freeze, None).await });
    arrived.notified().await;
    fast.table_drop(&path("a/t"), Duration::from_secs(60), false, None).await.unwrap();
    go.notify_one();
    let error = protector.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    assert_eq!(fast.snapshot().await.unwrap().protection_of(&table).map(|p| p.fields.level), None);
}

#[tokio::test]
async fn table_set_changes_what_it_names_and_nothing_else() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let tier = TableChanges { tier: Some(Some("gold".into())), ..TableChanges::default() };
    lake.registry.table_set(&path("sales/orders"), &tier, None).await.unwrap();
    let labels = TableChanges { labels: Some(vec!["hot".into()]), ..TableChanges::default() };
    lake.registry.table_set(&path("sales/orders"), &labels, None).await.unwrap();
    let governance = lake.govern(&uri).await;
    assert_eq!(governance.tier.as_deref(), Some("gold"));
    assert_eq!(governance.labels, ["hot"]);
    // The same again writes no generation.
    lake.registry.table_set(&path("sales/orders"), &labels, None).await.unwrap();
    assert_eq!(lake.generations("tables", "sales%2Forders").len(), 3);
}

#[tokio::test]
async fn the_log_says_who_changed_what() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    let table = Subject::Table(path("sales/orders"));
    lake.registry.protect(&table, Level::KeepHistory, Some("case 7")).await.unwrap();
    lake.registry.unprotect(&table, Some("case closed")).await.unwrap();
    let log = lake.registry.log(&table).await.unwrap();
    let lines: Vec<_> = log
        .iter()
        .map(|l| {
            let meta = l.meta.as_ref().unwrap();
            (l.collection.as_str(), l.generation, meta.deleted, meta.reason.as_deref(), meta.updated_by.who.as_str())
        })
        .collect();
    assert_eq!(
        lines,
        [
            ("tables", 1, false, None, "tester"),
            ("protection", 1, false, Some("case 7"), "tester"),
            ("protection", 2, true, Some("case closed"), "tester"),
        ]
    );
}
