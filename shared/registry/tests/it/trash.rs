//! Recoverable drops.

use std::time::Duration;

use chrono::Utc;
use squire_registry::{Block, BlockKind, Floors, Kind, Level, NewTable, Policy, PolicyChange, Subject};

use crate::support::{Lake, govern, none, path};

const WEEK: Duration = Duration::from_secs(7 * 86_400);

fn table() -> Subject {
    Subject::Table(path("sales/orders"))
}

#[tokio::test]
async fn a_drop_takes_the_name_and_freezes_the_bytes_beyond_the_deadline() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let trash = lake.registry.table_drop(&path("sales/orders"), WEEK, false, Some("old")).await.unwrap();
    assert_eq!((trash.deadline - trash.dropped_at).num_days(), 7);
    let snapshot = lake.registry.snapshot().await.unwrap();
    assert!(snapshot.table(&path("sales/orders")).is_none());
    let now = govern(&snapshot, &uri, Utc::now());
    assert!(now.is_frozen() && !now.trash.as_ref().unwrap().expired);
    let later = govern(&snapshot, &uri, Utc::now() + chrono::TimeDelta::days(8));
    assert!(later.is_frozen() && later.trash.unwrap().expired);
    assert!(lake.dir.path().join("orders.lance/_versions/1.manifest").exists());
    assert_eq!(squire_registry::check(&snapshot), []);
}

#[tokio::test]
async fn undrop_restores_protection_policy_and_blocks() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let (r, subject) = (&lake.registry, table());
    r.protect(&subject, Level::NoDrop, Some("precious")).await.unwrap();
    let keys = [("retention".to_owned(), "30d".to_owned())];
    let change = PolicyChange { subject: &subject, keys: &keys, reason: None, immediately: false, at: Utc::now() };
    r.policy_set(&change, &Policy::default(), &Floors::default()).await.unwrap();
    let block = Block { subject: subject.clone(), kind: BlockKind::Operator, until: None, version: None };
    r.block_add(block, "moving").await.unwrap();
    let before = lake.govern(&uri).await;

    assert_eq!(r.table_drop(&path("sales/orders"), WEEK, false, None).await.unwrap_err().kind(), Kind::Refused);
    r.table_drop(&path("sales/orders"), WEEK, true, None).await.unwrap();
    let snapshot = r.snapshot().await.unwrap();
    assert_eq!((snapshot.protections().count(), snapshot.policies().count(), snapshot.blocks().count()), (0, 0, 0));

    r.undrop(&subject, None).await.unwrap();
    let after = lake.govern(&uri).await;
    assert_eq!(after, before);
    assert_eq!(after.protection.unwrap().reason.as_deref(), Some("precious"));
    assert_eq!(after.policy.policy.retention, Duration::from_secs(30 * 86_400));
    assert_eq!(squire_registry::check(&r.snapshot().await.unwrap()), []);
}

#[tokio::test]
async fn a_reused_name_inherits_nothing_and_a_trashed_location_is_not_reused() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    let r = &lake.registry;
    r.protect(&table(), Level::NoDrop, None).await.unwrap();
    r.table_drop(&path("sales/orders"), WEEK, true, None).await.unwrap();
    let again = |location: &str| NewTable {
        path: path("sales/orders"),
        location: location.into(),
        tier: None,
        labels: vec![],
        declare: true,
    };
    let error = r.table_create(again("orders.lance"), &none(), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused, "{error}");
    assert!(error.to_string().contains("undrop"), "{error}");
    r.table_create(again("new.lance"), &none(), None).await.unwrap();
    assert_eq!(lake.govern(&lake.uri("new.lance")).await.protection, None);
    // And the old one cannot come back over the new one.
    assert_eq!(r.undrop(&table(), None).await.unwrap_err().kind(), Kind::Conflict);
}

#[tokio::test]
async fn a_hold_refuses_a_drop_also_with_force() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    for level in [Level::KeepHistory, Level::Freeze] {
        lake.registry.protect(&Subject::Estate, level, None).await.unwrap();
        let error = lake.registry.table_drop(&path("sales/orders"), WEEK, true, None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Refused, "{error}");
    }
    assert_eq!(lake.registry.snapshot().await.unwrap().trash().count(), 0);
}

#[tokio::test]
async fn a_drop_that_was_cut_off_goes_on_and_loses_no_protection() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let r = &lake.registry;
    r.protect(&table(), Level::NoDrop, Some("precious")).await.unwrap();
    let first = r.table_drop(&path("sales/orders"), WEEK, true, None).await.unwrap();
    // As if it had stopped before the table's tombstone: the record is back, its protection already in the trash.
    let generations = lake.generations("tables", "sales%2Forders");
    std::fs::remove_file(&generations[1]).unwrap();
    let half = lake.govern(&uri).await;
    assert!(half.is_frozen() && half.table.is_some());

    let again = r.table_drop(&path("sales/orders"), WEEK / 7, false, None).await.unwrap();
    assert_eq!(again.deadline, first.deadline, "whoever was told a week has a week");
    assert_eq!(r.snapshot().await.unwrap().trash().count(), 1);
    r.undrop(&table(), None).await.unwrap();
    assert_eq!(lake.govern(&uri).await.protection.unwrap().reason.as_deref(), Some("precious"));
}

#[tokio::test]
async fn an_undrop_of_a_drop_that_was_cut_off_brings_back_what_the_drop_had_taken() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let r = &lake.registry;
    r.protect(&table(), Level::NoDrop, Some("precious")).await.unwrap();
    r.table_drop(&path("sales/orders"), WEEK, true, None).await.unwrap();
    // As if it had stopped before the table's tombstone.
    std::fs::remove_file(&lake.generations("tables", "sales%2Forders")[1]).unwrap();
    r.undrop(&table(), None).await.unwrap();
    assert_eq!(lake.govern(&uri).await.protection.unwrap().reason.as_deref(), Some("precious"));
    let now = r.snapshot().await.unwrap();
    assert_eq!((now.trash().count(), now.tables().count()), (0, 1));
}

#[tokio::test]
async fn of_two_droppers_one_trash_record_is_left() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    let drop = || {
        let registry = lake.registry.clone();
        async move { registry.table_drop(&path("sales/orders"), WEEK, false, None).await }
    };
    let (one, two) = futures::future::join(drop(), drop()).await;
    assert!(one.is_ok() || two.is_ok());
    assert_eq!(lake.registry.snapshot().await.unwrap().trash().count(), 1);
}

#[tokio::test]
async fn undrop_needs_its_namespace_and_something_in_the_trash() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    let r = &lake.registry;
    let error = r.undrop(&table(), None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    r.table_drop(&path("sales/orders"), WEEK, false, None).await.unwrap();
    let request = squire_registry::DropRequest { grace: WEEK, force: false, cascade: true };
    let plan = r.drop_plan(&Subject::Namespace(path("sales")), request).await.unwrap();
    r.drop_apply(&plan, None).await.unwrap();
    let error = r.undrop(&table(), None).await.unwrap_err();
    assert!(error.kind() == Kind::NotFound && error.to_string().contains("namespace/sales"), "{error}");
    // The warehouse stays as long as the trash could bring something back into it.
    let error = r.container_drop(&Subject::Warehouse("w".into()), false, None).await.unwrap_err();
    assert!(error.to_string().contains("table/sales/orders in the trash"), "{error}");
    r.namespace_create(&path("sales"), Some("w"), None).await.unwrap();
    r.undrop(&table(), None).await.unwrap();
}

#[tokio::test]
async fn an_unreadable_record_in_scope_refuses_a_drop() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    let bad = lake.dir.path().join("_squire/v1/protection/warehouse%2Fw");
    std::fs::create_dir_all(&bad).unwrap();
    std::fs::write(bad.join("00000000000000000001.json"), b"{").unwrap();
    let error = lake.registry.table_drop(&path("sales/orders"), WEEK, true, None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
}

#[tokio::test]
async fn an_undrop_that_cannot_have_its_location_or_its_namespace_puts_nothing_on_the_name() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let r = &lake.registry;
    r.protect(&table(), Level::NoDrop, Some("precious")).await.unwrap();
    r.table_drop(&path("sales/orders"), WEEK, true, None).await.unwrap();
    let written = || -> usize { ["protection", "tables", "locations"].map(|c| lake.records(c).len()).iter().sum() };

    // Its place is another table's by now: what protected the one must not lie on the name, however shortly.
    let (trash, aside) = (lake.dir.path().join("_squire/v1/trash"), lake.dir.path().join("aside"));
    std::fs::rename(&trash, &aside).unwrap();
    let other = NewTable {
        path: path("sales/other"),
        location: "orders.lance".into(),
        tier: None,
        labels: vec![],
        declare: false,
    };
    r.table_create(other, &none(), None).await.unwrap();
    std::fs::rename(&aside, &trash).unwrap();
    let before = written();
    let error = r.undrop(&table(), None).await.unwrap_err();
    assert!(error.kind() == Kind::Conflict && error.to_string().contains("table/sales/other"), "{error}");
    assert_eq!(written(), before, "nothing is put and taken away again");

    // Its namespace is gone.
    r.table_drop(&path("sales/other"), WEEK, false, None).await.unwrap();
    let namespace = lake.dir.path().join("_squire/v1/namespaces");
    std::fs::rename(&namespace, &aside).unwrap();
    let before = written();
    let error = r.undrop(&table(), None).await.unwrap_err();
    assert!(error.kind() == Kind::NotFound && error.to_string().contains("make it again first"), "{error}");
    assert_eq!(written(), before, "nothing is put and taken away again");
    std::fs::rename(&aside, &namespace).unwrap();
    r.undrop(&table(), None).await.unwrap();
    assert_eq!(lake.govern(&uri).await.protection.unwrap().level, Level::NoDrop);
}
