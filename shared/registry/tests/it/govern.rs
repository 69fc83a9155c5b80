//! What governs a dataset: chain, protection, warehouses, and the winner of a policy as a law.

use std::time::Duration;

use chrono::Utc;
use proptest::prelude::*;
use squire_registry::{Floors, Forbidden, Level, NewTable, Policy, PolicyChange, Subject};

use crate::support::{Lake, govern, none, path};

#[tokio::test]
async fn the_chain_goes_from_the_dataset_to_the_estate() {
    let lake = Lake::new().await;
    lake.registry.namespace_create(&path("sales/eu"), None, None).await.unwrap();
    let uri = lake.table("sales/eu/orders").await;
    let chain: Vec<String> = lake.govern(&uri).await.chain.iter().skip(1).map(Subject::to_string).collect();
    assert_eq!(
        chain,
        ["table/sales/eu/orders", "namespace/sales/eu", "namespace/sales", "warehouse/w", "project/p", "estate"]
    );
}

#[tokio::test]
async fn an_unregistered_dataset_belongs_to_the_warehouse_around_it() {
    let lake = Lake::new().await;
    let inner = lake.dir.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    lake.registry.warehouse_create("w2", "p", inner.to_str().unwrap(), false, &none(), None).await.unwrap();
    let governance = lake.govern(&lake.uri("inner/x.lance")).await;
    assert_eq!(governance.table, None);
    assert_eq!(governance.warehouse.as_deref(), Some("w2"));
    assert!(!governance.exclusive && governance.warehouse_active);
    // A name that only begins alike is not inside.
    let governance = lake.govern(&lake.uri("inner2/x.lance")).await;
    assert_eq!(governance.warehouse.as_deref(), Some("w"));
    assert!(governance.exclusive);
    lake.registry.warehouse_set_active("w2", false, None).await.unwrap();
    assert!(!lake.govern(&lake.uri("inner/x.lance")).await.warehouse_active);
    assert!(lake.govern(&lake.uri("inner2/x.lance")).await.warehouse_active);
}

#[tokio::test]
async fn of_several_warehouses_around_a_dataset_the_careful_one_counts() {
    let lake = Lake::new().await;
    let (r, dir) = (&lake.registry, lake.dir.path());
    let (uri, inner) = (lake.table("sales/orders").await, dir.join("inner"));
    std::fs::create_dir(&inner).unwrap();
    r.warehouse_create("twin", "p", dir.to_str().unwrap(), true, &none(), None).await.unwrap();
    r.warehouse_create("inner", "p", inner.to_str().unwrap(), true, &none(), None).await.unwrap();
    assert!(lake.govern(&uri).await.warehouse_active && lake.govern(&uri).await.exclusive);
    // The table is bound to the other one; the place is the same.
    r.warehouse_set_active("twin", false, None).await.unwrap();
    assert!(!lake.govern(&uri).await.warehouse_active);
    assert!(lake.govern(&lake.uri("inner/x.lance")).await.warehouse_active, "a root of its own");
    // Whoever reads from the whole reads from its parts.
    r.warehouse_create("shared", "p", dir.to_str().unwrap(), false, &none(), None).await.unwrap();
    assert!(!lake.govern(&uri).await.exclusive);
    assert!(!lake.govern(&lake.uri("inner/x.lance")).await.exclusive);
}

#[tokio::test]
async fn what_may_forbid_every_write_forbids_it_while_it_cannot_be_read() {
    for (collection, forbids) in [("protection", true), ("trash", true), ("blocks", true), ("policies", false)] {
        let lake = Lake::new().await;
        let uri = lake.table("sales/orders").await;
        let bad = lake.dir.path().join("_squire/v1").join(collection).join("x");
        std::fs::create_dir_all(&bad).unwrap();
        std::fs::write(bad.join("00000000000000000001.json"), b"nonsense").unwrap();
        let governance = lake.govern(&uri).await;
        let why = governance.forbidden().map(|(forbidden, _)| forbidden);
        assert_eq!(why, forbids.then_some(Forbidden::Unreadable), "{collection}");
        assert_eq!(governance.unreadable.len(), 1, "{collection}: what destroys refuses");
    }
}

#[tokio::test]
async fn outside_of_any_warehouse_the_estate_governs() {
    let lake = Lake::new().await;
    let governance = lake.govern("s3://elsewhere/t.lance").await;
    assert_eq!(governance.chain, [Subject::Dataset("s3://elsewhere/t.lance".into()), Subject::Estate]);
    assert!(governance.exclusive && governance.warehouse_active);
    assert_eq!(governance.policy.policy, Policy::default());
}

#[tokio::test]
async fn protection_on_any_rung_counts_and_the_strongest_is_named() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let r = &lake.registry;
    let rungs = [
        (Subject::Estate, Level::NoDrop),
        (Subject::Project("p".into()), Level::KeepHistory),
        (Subject::Warehouse("w".into()), Level::NoDrop),
        (Subject::Namespace(path("sales")), Level::Freeze),
        (Subject::Table(path("sales/orders")), Level::NoDrop),
        (Subject::Dataset(uri.clone()), Level::KeepHistory),
    ];
    for (subject, level) in &rungs {
        r.protect(subject, *level, None).await.unwrap();
        let alone = lake.govern(&uri).await.protection.unwrap();
        assert_eq!((&alone.subject, alone.level), (subject, *level));
        r.unprotect(subject, None).await.unwrap();
    }
    for (subject, level) in &rungs {
        r.protect(subject, *level, None).await.unwrap();
    }
    let all = lake.govern(&uri).await;
    assert_eq!(all.protections.len(), 6);
    let strongest = all.protection.clone().unwrap();
    assert_eq!((strongest.level, strongest.subject), (Level::Freeze, Subject::Namespace(path("sales"))));
    assert!(all.is_frozen() && all.held_by().is_some());
}

#[test]
fn levels_are_cumulative() {
    assert!(Level::NoDrop < Level::KeepHistory && Level::KeepHistory < Level::Freeze);
    assert_eq!([Level::NoDrop, Level::KeepHistory, Level::Freeze].map(Level::allows_reclaim), [true, false, false]);
    assert_eq!([Level::NoDrop, Level::KeepHistory, Level::Freeze].map(Level::allows_writes), [true, true, false]);
    assert_eq!("keep-history".parse(), Ok(Level::KeepHistory));
}

#[tokio::test]
async fn a_freeze_of_the_estate_is_the_kill_switch() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let before = lake.registry.snapshot().await.unwrap();
    lake.registry.protect(&Subject::Estate, Level::Freeze, Some("incident")).await.unwrap();
    for uri in [uri.as_str(), "s3://elsewhere/t.lance"] {
        assert!(!govern(&before, uri, Utc::now()).is_frozen());
        let now = lake.registry.recheck(&before, uri).await.unwrap();
        assert!(govern(&now, uri, Utc::now()).is_frozen());
    }
}

#[tokio::test]
async fn a_recheck_sees_everything_that_newly_forbids() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    let uri = lake.bytes("orders.lance");
    let stale = r.snapshot().await.unwrap();
    // The dataset got a name, its table a policy, its namespace a hold, and its warehouse was deactivated.
    let new = NewTable {
        path: path("sales/orders"),
        location: "orders.lance".into(),
        tier: Some("gold".into()),
        labels: vec![],
        declare: false,
    };
    r.table_create(new, &none(), None).await.unwrap();
    r.protect(&Subject::Namespace(path("sales")), Level::KeepHistory, None).await.unwrap();
    let subject = Subject::Table(path("sales/orders"));
    let keys = [("retention".to_owned(), "30d".to_owned())];
    let change = PolicyChange { subject: &subject, keys: &keys, reason: None, immediately: false, at: Utc::now() };
    r.policy_set(&change, &Policy::default(), &Floors::default()).await.unwrap();
    r.warehouse_set_active("w", false, None).await.unwrap();
    let now = govern(&r.recheck(&stale, &uri).await.unwrap(), &uri, Utc::now());
    assert_eq!(now, lake.govern(&uri).await);
    assert_eq!(now.held_by().unwrap().level, Level::KeepHistory);
    assert!(!now.warehouse_active);
    assert_eq!(now.policy.policy.retention, Duration::from_secs(30 * 86_400));

    // And then it was dropped.
    r.unprotect(&Subject::Namespace(path("sales")), None).await.unwrap();
    let stale = r.snapshot().await.unwrap();
    r.table_drop(&path("sales/orders"), Duration::from_secs(60), false, None).await.unwrap();
    let now = govern(&r.recheck(&stale, &uri).await.unwrap(), &uri, Utc::now());
    assert!(now.trash.is_some() && now.table.is_none() && now.is_frozen());
}

#[tokio::test]
async fn a_recheck_sees_a_record_that_became_unreadable() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let stale = lake.registry.snapshot().await.unwrap();
    let bad = lake.dir.path().join("_squire/v1/blocks/x");
    std::fs::create_dir_all(&bad).unwrap();
    std::fs::write(bad.join("00000000000000000001.json"), b"nonsense").unwrap();
    let now = govern(&lake.registry.recheck(&stale, &uri).await.unwrap(), &uri, Utc::now());
    assert_eq!(now.unreadable.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever records there are: the policy is exactly that of the most specific one.
    #[test]
    fn the_winner_supplies_every_field(
        present in prop::array::uniform4(any::<bool>()),
        values in prop::array::uniform4((2u64..1_000, 2u32..100, any::<bool>(), 1u64..1_000)),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let lake = Lake::new().await;
            lake.registry.namespace_create(&path("sales/eu"), None, None).await.unwrap();
            let uri = lake.table("sales/eu/t").await;
            let subjects = [
                Subject::Table(path("sales/eu/t")),
                Subject::Namespace(path("sales/eu")),
                Subject::Namespace(path("sales")),
                Subject::Project("p".into()),
            ];
            let mut expected = (Policy::default(), "estate".to_owned());
            // From the top down, so that each starts from what is above it.
            for n in (0..4).rev().filter(|n| present[*n]) {
                let (hours, versions, compact, rows) = values[n];
                let keys = [
                    ("retention".to_owned(), format!("{hours}h")),
                    ("retain_versions".to_owned(), versions.to_string()),
                    ("compact".to_owned(), compact.to_string()),
                    ("target_rows".to_owned(), rows.to_string()),
                ];
                let change = PolicyChange {
                    subject: &subjects[n], keys: &keys, reason: None, immediately: true, at: Utc::now(),
                };
                lake.registry.policy_set(&change, &Policy::default(), &Floors::default()).await.unwrap();
                expected.0 = Policy {
                    retention: Duration::from_secs(hours * 3_600),
                    retain_versions: versions,
                    compact,
                    target_rows: Some(rows),
                    ..expected.0
                };
                expected.1 = subjects[n].to_string();
            }
            let found = lake.govern(&uri).await.policy;
            assert_eq!((found.policy, found.source.id), expected);
        });
    }
}
