//! A name moves, and nothing else does.

use chrono::Utc;
use squire_registry::{Block, BlockKind, Floors, Kind, Level, Policy, PolicyChange, Subject, check};

use crate::support::{Lake, none, path};

fn table(name: &str) -> Subject {
    Subject::Table(path(name))
}

async fn rename(
    lake: &Lake,
    from: &str,
    to: &str,
    force: bool,
) -> Result<squire_registry::record::Table, squire_registry::Error> {
    lake.registry.table_rename(&path(from), &path(to), force, &Policy::default(), Some("tidy")).await
}

#[tokio::test]
async fn a_rename_takes_protection_policy_and_blocks_along_and_leaves_the_bytes() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let r = &lake.registry;
    let old = table("sales/orders");
    r.protect(&old, Level::NoDrop, Some("precious")).await.unwrap();
    let keys = [("retention".to_owned(), "30d".to_owned())];
    let change = PolicyChange { subject: &old, keys: &keys, reason: None, immediately: false, at: Utc::now() };
    r.policy_set(&change, &Policy::default(), &Floors::default()).await.unwrap();
    r.block_add(Block { subject: old, kind: BlockKind::Reader, until: None, version: Some(4) }, "training")
        .await
        .unwrap();
    r.namespace_create(&path("sales/eu"), None, None).await.unwrap();

    let error = rename(&lake, "sales/orders", "sales/eu/orders", false).await.unwrap_err();
    assert!(error.kind() == Kind::Refused && error.to_string().contains("precious"), "{error}");
    let renamed = rename(&lake, "sales/orders", "sales/eu/orders", true).await.unwrap();
    assert_eq!((renamed.uri.as_str(), renamed.location.as_str()), (uri.as_str(), "orders.lance"));
    let now = lake.govern(&uri).await;
    assert_eq!(now.table, Some(table("sales/eu/orders")));
    assert_eq!(now.protection.as_ref().unwrap().subject, table("sales/eu/orders"));
    assert_eq!(now.policy.source.id, "table/sales/eu/orders");
    assert_eq!(now.policy.policy.retention.as_secs(), 30 * 86_400);
    assert_eq!(now.reader_versions().into_iter().collect::<Vec<_>>(), [4]);
    assert!(now.trash.is_none());
    let snapshot = r.snapshot().await.unwrap();
    assert!(snapshot.table(&path("sales/orders")).is_none());
    assert_eq!(check(&snapshot), []);
    assert!(lake.dir.path().join("orders.lance/_versions/1.manifest").exists());
    // The old name is free, and inherits nothing.
    lake.bytes("new.lance");
    let new = squire_registry::NewTable {
        path: path("sales/orders"),
        location: "new.lance".into(),
        tier: None,
        labels: vec![],
        declare: false,
    };
    r.table_create(new, &none(), None).await.unwrap();
    assert_eq!(lake.govern(&lake.uri("new.lance")).await.protection, None);
}

#[tokio::test]
async fn what_a_rename_refuses() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    lake.table("sales/items").await;
    let r = &lake.registry;
    let other = lake.dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    r.warehouse_create("w2", "p", other.to_str().unwrap(), true, &none(), None).await.unwrap();
    r.namespace_create(&path("there"), Some("w2"), None).await.unwrap();
    r.namespace_create(&path("short"), Some("w"), None).await.unwrap();
    let short = Subject::Namespace(path("short"));
    let keys = [("retention".to_owned(), "1d".to_owned())];
    let change = PolicyChange { subject: &short, keys: &keys, reason: None, immediately: true, at: Utc::now() };
    r.policy_set(&change, &Policy::default(), &Floors::default()).await.unwrap();
    let before = lake.records("");
    for (from, to, kind, says) in [
        ("sales/orders", "sales/orders", Kind::Invalid, "has this name already"),
        ("sales/orders", "orders", Kind::Invalid, "a table lies in a namespace"),
        ("sales/orders", "sales/items", Kind::Conflict, "table/sales/items exists already"),
        ("sales/orders", "nowhere/orders", Kind::NotFound, "namespace/nowhere"),
        ("sales/nothing", "sales/new", Kind::NotFound, "table/sales/nothing"),
        ("sales/orders", "there/orders", Kind::Refused, "moves a name and no bytes"),
        ("sales/orders", "short/orders", Kind::Refused, "retention: 7d -> 1d"),
    ] {
        let error = rename(&lake, from, to, true).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    r.protect(&Subject::Project("p".into()), Level::KeepHistory, None).await.unwrap();
    assert_eq!(rename(&lake, "sales/orders", "sales/new", true).await.unwrap_err().kind(), Kind::Refused);
    r.unprotect(&Subject::Project("p".into()), None).await.unwrap();
    let changed: Vec<_> = lake.records("").into_iter().filter(|f| !before.contains(f)).collect();
    assert!(changed.iter().all(|f| f.to_str().unwrap().contains("/protection/")), "{changed:?}");
}

#[tokio::test]
async fn a_rename_that_was_cut_off_is_frozen_and_goes_on_or_back() {
    for back in [false, true] {
        let lake = Lake::new().await;
        let uri = lake.table("sales/orders").await;
        let r = &lake.registry;
        r.protect(&table("sales/orders"), Level::NoDrop, Some("precious")).await.unwrap();
        rename(&lake, "sales/orders", "sales/new", true).await.unwrap();
        // As if it had stopped when the source was retired: no new name, and the trash record is there.
        for (collection, key) in [("tables", "sales%2Fnew"), ("protection", "table%2Fsales%2Fnew")] {
            std::fs::remove_dir_all(lake.dir.path().join("_squire/v1").join(collection).join(key)).unwrap();
        }
        let locations = lake.records("locations");
        std::fs::remove_file(locations.last().unwrap()).unwrap();
        let trash = lake.records("trash");
        std::fs::remove_file(trash.last().unwrap()).unwrap();
        let half = r.snapshot().await.unwrap();
        assert!(lake.govern(&uri).await.is_frozen());
        let told = check(&half);
        assert!(told.iter().any(|p| p.detail.contains("its rename to table/sales/new was cut off")), "{told:?}");

        let name = if back { "sales/orders" } else { "sales/new" };
        if back {
            r.undrop(&table("sales/orders"), None).await.unwrap();
        } else {
            rename(&lake, "sales/orders", "sales/new", true).await.unwrap();
        }
        let now = lake.govern(&uri).await;
        assert_eq!(now.table, Some(table(name)));
        assert_eq!(now.protection.unwrap().reason.as_deref(), Some("precious"));
        assert!(now.trash.is_none());
        assert_eq!(check(&r.snapshot().await.unwrap()), []);
    }
}

#[tokio::test]
async fn a_rename_does_not_leave_a_block_of_the_namespace_behind() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let r = &lake.registry;
    for name in ["other", "sales/eu"] {
        let warehouse = (!name.contains('/')).then_some("w");
        r.namespace_create(&path(name), warehouse, None).await.unwrap();
    }
    let block =
        |until| Block { subject: Subject::Namespace(path("sales")), kind: BlockKind::Reader, until, version: Some(2) };
    r.block_add(block(Some(Utc::now() - chrono::TimeDelta::days(1))), "over").await.unwrap();
    rename(&lake, "sales/orders", "other/orders", false).await.unwrap();
    rename(&lake, "other/orders", "sales/orders", false).await.unwrap();
    let id = r.block_add(block(None), "training reads it").await.unwrap();
    let before = lake.records("");
    let error = rename(&lake, "sales/orders", "other/orders", true).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    assert!(error.to_string().contains(&id) && error.to_string().contains("training reads it"), "{error}");
    assert_eq!(lake.records(""), before, "nothing was written");
    // Below the same namespace it holds on.
    rename(&lake, "sales/orders", "sales/eu/orders", false).await.unwrap();
    assert_eq!(lake.govern(&uri).await.reader_versions().into_iter().collect::<Vec<_>>(), [2]);
    assert_eq!(rename(&lake, "sales/eu/orders", "other/orders", true).await.unwrap_err().kind(), Kind::Refused);
    r.block_remove(&id, None).await.unwrap();
    rename(&lake, "sales/eu/orders", "other/orders", false).await.unwrap();
}

#[tokio::test]
async fn a_rename_that_was_cut_off_does_not_go_on_past_a_block() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let r = &lake.registry;
    r.namespace_create(&path("other"), Some("w"), None).await.unwrap();
    rename(&lake, "sales/orders", "other/orders", false).await.unwrap();
    std::fs::remove_dir_all(lake.dir.path().join("_squire/v1/tables/other%2Forders")).unwrap();
    std::fs::remove_file(lake.records("locations").last().unwrap()).unwrap();
    std::fs::remove_file(lake.records("trash").last().unwrap()).unwrap();
    let block =
        Block { subject: Subject::Namespace(path("sales")), kind: BlockKind::Operator, until: None, version: None };
    r.block_add(block, "pause").await.unwrap();
    let error = rename(&lake, "sales/orders", "other/orders", false).await.unwrap_err();
    assert!(error.kind() == Kind::Refused && error.to_string().contains("pause"), "{error}");
    let snapshot = r.snapshot().await.unwrap();
    assert_eq!(snapshot.table(&path("sales/orders")).map(|t| t.fields.uri.clone()), Some(uri), "the old name is back");
}
