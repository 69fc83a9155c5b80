//! Namespaces that go with all that is in them, and come back; purges.

use std::time::Duration;

use chrono::Utc;
use squire_registry::{
    Block, BlockKind, DropPlan, DropRequest, Error, Floors, Kind, Level, NewTable, Policy, PolicyChange, Registry,
    Subject, check,
};

use crate::support::{Lake, govern, none, path};

const WEEK: Duration = Duration::from_secs(7 * 86_400);

fn sales() -> Subject {
    Subject::Namespace(path("sales"))
}

fn table(name: &str) -> Subject {
    Subject::Table(path(name))
}

fn asked(cascade: bool) -> DropRequest {
    DropRequest { grace: WEEK, force: false, cascade }
}

async fn cascade(r: &Registry, request: DropRequest) -> Result<DropPlan, Error> {
    let plan = r.drop_plan(&sales(), request).await?;
    r.drop_apply(&plan, Some("no longer used")).await?;
    Ok(plan)
}

/// `namespace/sales` with `eu`, `eu/de`, and the tables `orders`, `eu/de/items`.
async fn tree() -> Lake {
    let lake = Lake::new().await;
    lake.registry.namespace_create(&path("sales/eu"), None, None).await.unwrap();
    lake.registry.namespace_create(&path("sales/eu/de"), None, None).await.unwrap();
    lake.table("sales/orders").await;
    lake.table("sales/eu/de/items").await;
    lake
}

#[tokio::test]
async fn a_cascade_takes_all_of_it_with_one_deadline_and_the_undrop_brings_all_of_it_back() {
    let lake = tree().await;
    let r = &lake.registry;
    r.protect(&Subject::Namespace(path("sales/eu")), Level::NoDrop, Some("precious")).await.unwrap();
    let eu = Subject::Namespace(path("sales/eu"));
    let keys = [("retention".to_owned(), "30d".to_owned())];
    let change = PolicyChange { subject: &eu, keys: &keys, reason: None, immediately: false, at: Utc::now() };
    r.policy_set(&change, &Policy::default(), &Floors::default()).await.unwrap();
    let block = Block { subject: table("sales/orders"), kind: BlockKind::Operator, until: None, version: None };
    r.block_add(block, "moving").await.unwrap();
    let uris = [lake.uri("orders.lance"), lake.uri("items.lance")];
    let before = [lake.govern(&uris[0]).await, lake.govern(&uris[1]).await];

    let plan = cascade(r, DropRequest { force: true, ..asked(true) }).await.unwrap();
    assert_eq!((plan.namespaces.len(), plan.tables.len()), (3, 2));
    let gone = r.snapshot().await.unwrap();
    assert_eq!((gone.namespaces().count(), gone.tables().count()), (0, 0));
    assert_eq!((gone.protections().count(), gone.policies().count(), gone.blocks().count()), (0, 0, 0));
    assert_eq!((gone.trash().count(), gone.trashed_namespaces().count()), (2, 3));
    let deadline = gone.trash().next().unwrap().fields.deadline;
    assert!(gone.trash().chain(gone.trashed_namespaces()).all(|t| t.fields.deadline == deadline));
    assert_eq!((deadline - Utc::now()).num_days(), 6);
    assert!(uris.iter().all(|uri| govern(&gone, uri, Utc::now()).is_frozen()));
    assert_eq!(check(&gone), []);

    let back = r.undrop_namespace(&sales(), None).await.unwrap();
    let names: Vec<String> = back.namespaces.iter().map(Subject::to_string).collect();
    assert_eq!(names, ["namespace/sales", "namespace/sales/eu", "namespace/sales/eu/de"]);
    assert_eq!((back.tables.len(), back.failed.len()), (2, 0));
    assert_eq!([lake.govern(&uris[0]).await, lake.govern(&uris[1]).await], before);
    let now = r.snapshot().await.unwrap();
    assert_eq!((now.trash().count(), now.trashed_namespaces().count()), (0, 0));
    assert_eq!(check(&now), []);
}

#[tokio::test]
async fn every_descendants_protection_is_checked_before_anything_changes() {
    let lake = tree().await;
    let r = &lake.registry;
    r.protect(&table("sales/eu/de/items"), Level::KeepHistory, Some("case 7")).await.unwrap();
    r.protect(&table("sales/orders"), Level::NoDrop, None).await.unwrap();
    let before = lake.records("");
    for force in [false, true] {
        let error = cascade(r, DropRequest { force, ..asked(true) }).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
        assert!(
            error.to_string().contains("table/sales/eu/de/items") && error.to_string().contains("case 7"),
            "{error}"
        );
        // Both are named; what --force gets past is not.
        assert_eq!(error.to_string().contains("table/sales/orders"), !force, "{error}");
    }
    assert_eq!(lake.records(""), before);
}

#[tokio::test]
async fn protection_that_comes_between_plan_and_apply_refuses_it() {
    let lake = tree().await;
    let r = &lake.registry;
    let plan = r.drop_plan(&sales(), asked(true)).await.unwrap();
    r.protect(&table("sales/eu/de/items"), Level::NoDrop, None).await.unwrap();
    let error = r.drop_apply(&plan, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    let now = r.snapshot().await.unwrap();
    assert_eq!((now.tables().count(), now.namespaces().count(), now.trash().count()), (2, 3, 0));
    assert_eq!(check(&now), []);
    r.namespace_create(&path("sales/us"), None, None).await.unwrap();
}

#[tokio::test]
async fn what_the_plan_does_not_name_refuses_it() {
    let lake = tree().await;
    let r = &lake.registry;
    let plan = r.drop_plan(&sales(), asked(true)).await.unwrap();
    lake.table("sales/new").await;
    let error = r.drop_apply(&plan, None).await.unwrap_err();
    assert!(error.to_string().contains("table/sales/new"), "{error}");
    let now = r.snapshot().await.unwrap();
    assert_eq!((now.tables().count(), now.trash().count()), (3, 0));
    assert_eq!(check(&now), []);
}

#[tokio::test]
async fn without_cascade_contents_refuse() {
    let lake = tree().await;
    let error = cascade(&lake.registry, asked(false)).await.unwrap_err();
    assert!(error.to_string().contains("table/sales/orders"), "{error}");
    let error = lake.registry.drop_plan(&Subject::Warehouse("w".into()), asked(true)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
}

#[tokio::test]
async fn a_cascade_that_was_cut_off_goes_on_with_its_own_deadline() {
    let lake = tree().await;
    let r = &lake.registry;
    cascade(r, asked(true)).await.unwrap();
    let deadline = r.snapshot().await.unwrap().trash().next().unwrap().fields.deadline;
    // As if it had stopped after the first table: the rest is live again, and the namespaces are marked.
    for (collection, key) in [
        ("tables", "sales%2Forders"),
        ("namespaces", "sales"),
        ("namespaces", "sales%2Feu"),
        ("namespaces", "sales%2Feu%2Fde"),
    ] {
        std::fs::remove_file(lake.generations(collection, key).pop().unwrap()).unwrap();
    }
    let half = r.snapshot().await.unwrap();
    assert_eq!((half.tables().count(), half.namespaces().count()), (1, 3));
    assert!(check(&half).iter().any(|p| p.detail.contains("cascade") && !p.mendable), "{:?}", check(&half));

    let month = DropRequest { grace: WEEK * 4, ..asked(true) };
    cascade(r, month).await.unwrap();
    let now = r.snapshot().await.unwrap();
    assert_eq!((now.trash().count(), now.trashed_namespaces().count()), (2, 3));
    assert!(now.trash().chain(now.trashed_namespaces()).all(|t| t.fields.deadline == deadline));
    assert_eq!(r.undrop_namespace(&sales(), None).await.unwrap().tables.len(), 2);
    assert_eq!(check(&r.snapshot().await.unwrap()), []);
}

#[tokio::test]
async fn an_undrop_that_fails_in_part_brings_the_rest_back_and_goes_on() {
    let lake = tree().await;
    let r = &lake.registry;
    r.protect(&table("sales/orders"), Level::NoDrop, None).await.unwrap();
    cascade(r, DropRequest { force: true, ..asked(true) }).await.unwrap();
    r.namespace_create(&path("sales"), Some("w"), None).await.unwrap();
    lake.bytes("other.lance");
    let taken = NewTable {
        path: path("sales/orders"),
        location: "other.lance".into(),
        tier: None,
        labels: vec![],
        declare: false,
    };
    r.table_create(taken, &none(), None).await.unwrap();

    let back = r.undrop_namespace(&sales(), None).await.unwrap();
    assert_eq!((back.tables.as_slice(), back.failed.len()), (&[table("sales/eu/de/items")][..], 1));
    assert!(back.failed[0].1.contains("exists already"), "{:?}", back.failed);
    let half = r.snapshot().await.unwrap();
    // The one that has the name by now inherits nothing of the one that had it.
    assert_eq!(half.protection_over(&table("sales/orders")), None);
    assert!(check(&half).iter().any(|p| p.subject == "namespace/sales"), "{:?}", check(&half));

    r.table_rename(&path("sales/orders"), &path("sales/orders2"), false, &Policy::default(), None).await.unwrap();
    let back = r.undrop_namespace(&sales(), None).await.unwrap();
    assert_eq!((back.tables.as_slice(), back.failed.len()), (&[table("sales/orders")][..], 0));
    let now = r.snapshot().await.unwrap();
    assert_eq!(now.protection_over(&table("sales/orders")).unwrap().level, Level::NoDrop);
    assert_eq!((now.tables().count(), now.trashed_namespaces().count()), (3, 0));
    assert_eq!(check(&now), []);
}

#[tokio::test]
async fn what_was_dropped_on_its_own_stays_in_the_trash_when_its_namespace_comes_back() {
    let lake = tree().await;
    let r = &lake.registry;
    r.table_drop(&path("sales/orders"), WEEK, false, None).await.unwrap();
    cascade(r, asked(true)).await.unwrap();
    let back = r.undrop_namespace(&sales(), None).await.unwrap();
    assert_eq!(back.tables, [table("sales/eu/de/items")]);
    assert_eq!(r.snapshot().await.unwrap().trash().count(), 1);
    r.undrop(&table("sales/orders"), None).await.unwrap();
}

#[tokio::test]
async fn a_namespace_made_anew_inherits_neither_policy_nor_tables() {
    let lake = tree().await;
    let r = &lake.registry;
    let keys = [("retention".to_owned(), "1h".to_owned())];
    let change = PolicyChange { subject: &sales(), keys: &keys, reason: None, immediately: true, at: Utc::now() };
    r.policy_set(&change, &Policy::default(), &Floors::default()).await.unwrap();
    cascade(r, asked(true)).await.unwrap();
    r.namespace_create(&path("sales"), Some("w"), None).await.unwrap();
    assert!(r.snapshot().await.unwrap().policies().next().is_none());
    // Its old policy would let versions of the new tables go at once; the new namespace keeps what it has.
    r.undrop_namespace(&sales(), None).await.unwrap();
    assert!(r.snapshot().await.unwrap().policies().next().is_none());
}

#[tokio::test]
async fn a_purge_ends_protection_and_has_its_deadline_now() {
    let lake = tree().await;
    let r = &lake.registry;
    r.protect(&table("sales/orders"), Level::NoDrop, None).await.unwrap();
    let purge = DropRequest { grace: Duration::ZERO, force: true, cascade: false };
    let plan = r.drop_plan(&table("sales/orders"), purge).await.unwrap();
    assert!(plan.purge && plan.tables[0].forced.as_deref() == Some("table/sales/orders"));
    r.drop_apply(&plan, None).await.unwrap();
    let now = r.snapshot().await.unwrap();
    let trash = &now.trash().next().unwrap().fields;
    assert!(trash.deadline <= Utc::now() && trash.protection.is_none());
    assert!(govern(&now, &lake.uri("orders.lance"), Utc::now()).is_frozen());
    assert!(lake.dir.path().join("orders.lance/_versions/1.manifest").exists());
}

#[tokio::test]
async fn a_purge_of_what_is_in_the_trash_honours_what_it_carries() {
    let lake = tree().await;
    let r = &lake.registry;
    r.protect(&table("sales/orders"), Level::NoDrop, Some("precious")).await.unwrap();
    r.table_drop(&path("sales/orders"), WEEK, true, None).await.unwrap();
    let purge = |force| DropRequest { grace: Duration::ZERO, force, cascade: false };
    let error = r.drop_plan(&table("sales/orders"), purge(false)).await.unwrap_err();
    assert!(error.kind() == Kind::Refused && error.to_string().contains("precious"), "{error}");
    let plan = r.drop_plan(&table("sales/orders"), purge(true)).await.unwrap();
    assert!(plan.tables[0].in_trash);
    r.drop_apply(&plan, None).await.unwrap();
    let trash = r.snapshot().await.unwrap().trash().next().unwrap().fields.clone();
    assert!(trash.deadline <= Utc::now() && trash.protection.is_none());
    let error = r.drop_plan(&table("sales/nothing"), purge(true)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
}

#[tokio::test]
async fn a_purge_needs_sole_ownership_and_a_drop_does_not() {
    let lake = tree().await;
    let r = &lake.registry;
    // Another warehouse of the same project lies inside the table's directory.
    let inside = lake.dir.path().join("orders.lance/inner");
    std::fs::create_dir_all(&inside).unwrap();
    r.warehouse_create("w2", "p", inside.to_str().unwrap(), true, &none(), None).await.unwrap();
    let purge = DropRequest { grace: Duration::ZERO, force: false, cascade: false };
    let error = r.drop_plan(&table("sales/orders"), purge).await.unwrap_err();
    assert!(error.kind() == Kind::Refused && error.to_string().contains("warehouse/w2"), "{error}");
    let error = cascade(r, DropRequest { cascade: true, ..purge }).await.unwrap_err();
    assert!(error.to_string().contains("warehouse/w2"), "{error}");
    assert_eq!(r.snapshot().await.unwrap().tables().count(), 2);
    // Another project over the same bucket.
    r.container_drop(&Subject::Warehouse("w2".into()), false, None).await.unwrap();
    r.project_create("q", None).await.unwrap();
    r.warehouse_create("w3", "q", lake.dir.path().to_str().unwrap(), true, &none(), None).await.unwrap();
    let error = r.drop_plan(&table("sales/orders"), purge).await.unwrap_err();
    assert!(error.to_string().contains("project/q"), "{error}");
    r.table_drop(&path("sales/orders"), WEEK, false, None).await.unwrap();
}

#[tokio::test]
async fn a_purge_is_refused_where_the_trash_holds_the_bytes_under_another_name_too() {
    let lake = tree().await;
    let r = &lake.registry;
    r.table_drop(&path("sales/orders"), WEEK, false, None).await.unwrap();
    let id = r.snapshot().await.unwrap().trash().next().unwrap().meta.id.clone();
    // No verb makes such a record: a restored backup may.
    let (record, other) = (lake.generations("trash", &id).remove(0), "11111111-1111-4111-8111-111111111111");
    let text = std::fs::read_to_string(&record).unwrap().replace(&id, other).replace("sales/orders", "sales/other");
    let beside = record.parent().unwrap().with_file_name(other);
    std::fs::create_dir(&beside).unwrap();
    std::fs::write(beside.join(record.file_name().unwrap()), text).unwrap();
    let error = r.trash_purge(&table("sales/orders"), true, None).await.unwrap_err();
    assert!(error.kind() == Kind::Refused && error.to_string().contains("table/sales/other in the trash"), "{error}");
}

#[tokio::test]
async fn the_last_table_that_is_reclaimed_takes_its_namespaces_out_of_the_trash() {
    let lake = tree().await;
    let r = &lake.registry;
    cascade(r, DropRequest { grace: Duration::ZERO, ..asked(true) }).await.unwrap();
    let ids: Vec<String> = r.snapshot().await.unwrap().trash().map(|t| t.meta.id.clone()).collect();
    assert!(r.trash_purged(&ids[0], "reclaimed").await.unwrap());
    assert_eq!(r.snapshot().await.unwrap().trashed_namespaces().count(), 3);
    let error = r.container_drop(&Subject::Warehouse("w".into()), false, None).await.unwrap_err();
    assert!(error.to_string().contains("in the trash"), "{error}");
    assert!(r.trash_purged(&ids[1], "reclaimed").await.unwrap());
    assert!(!r.trash_purged(&ids[1], "reclaimed").await.unwrap());
    assert_eq!(r.snapshot().await.unwrap().trashed_namespaces().count(), 0);
    r.container_drop(&Subject::Warehouse("w".into()), false, None).await.unwrap();
}

#[tokio::test]
async fn a_table_that_comes_back_into_a_namespace_made_anew_keeps_its_policy_for_shorten_delay() {
    let lake = tree().await;
    let r = &lake.registry.under(&Policy::default(), Duration::from_secs(48 * 3_600));
    let keys = [("retention".to_owned(), "90d".to_owned())];
    let change = PolicyChange { subject: &sales(), keys: &keys, reason: None, immediately: false, at: Utc::now() };
    r.policy_set(&change, &Policy::default(), &Floors::default()).await.unwrap();
    cascade(r, asked(true)).await.unwrap();
    r.namespace_create(&path("sales"), Some("w"), None).await.unwrap();
    r.undrop(&table("sales/orders"), None).await.unwrap();
    let days = |hours: i64| {
        let at = Utc::now() + chrono::TimeDelta::hours(hours);
        let (r, uri) = (r.clone(), lake.uri("orders.lance"));
        async move { govern(&r.snapshot().await.unwrap(), &uri, at).policy.policy.retention.as_secs() / 86_400 }
    };
    assert_eq!((days(0).await, days(47).await, days(49).await), (90, 90, 7));
    let shown = govern(&r.snapshot().await.unwrap(), &lake.uri("orders.lance"), Utc::now()).policy;
    assert_eq!(shown.pending.unwrap().changes, ["retention: 90d -> 7d"], "and a plan shows it");

    // Where what lies above it by now keeps versions as long, it governs.
    r.table_drop(&path("sales/orders"), WEEK, false, None).await.unwrap();
    let trashed = r.snapshot().await.unwrap();
    assert!(trashed.trash().any(|t| t.fields.policy.is_some()), "its own by now");
    r.namespace_create(&path("sales/eu"), None, None).await.unwrap();
    r.namespace_create(&path("sales/eu/de"), None, None).await.unwrap();
    let keys = [("retention".to_owned(), "120d".to_owned())];
    let change = PolicyChange { subject: &sales(), keys: &keys, reason: None, immediately: false, at: Utc::now() };
    r.policy_set(&change, &Policy::default(), &Floors::default()).await.unwrap();
    r.undrop(&table("sales/eu/de/items"), None).await.unwrap();
    let items = govern(&r.snapshot().await.unwrap(), &lake.uri("items.lance"), Utc::now()).policy;
    assert_eq!((items.source.id.as_str(), items.pending), ("namespace/sales", None));
}

#[tokio::test]
async fn what_a_dropped_table_lay_in_still_protects_it() {
    let lake = tree().await;
    let r = &lake.registry;
    let uri = lake.uri("items.lance");
    r.table_drop(&path("sales/eu/de/items"), WEEK, false, None).await.unwrap();
    assert_eq!(govern(&r.snapshot().await.unwrap(), &uri, Utc::now()).protection, None);
    r.protect(&Subject::Namespace(path("sales/eu")), Level::KeepHistory, Some("case 7")).await.unwrap();
    let block = Block { subject: sales(), kind: BlockKind::Operator, until: None, version: None };
    r.block_add(block, "moving").await.unwrap();
    let governed = govern(&r.snapshot().await.unwrap(), &uri, Utc::now());
    assert_eq!(governed.held_by().map(|p| p.subject.to_string()).as_deref(), Some("namespace/sales/eu"));
    assert_eq!(governed.blocks.len(), 1);
    // A new table of its name is another table: nothing of it holds for the bytes in the trash.
    lake.table("sales/eu/de/other").await;
    assert_eq!(governed.table, None);
}
