//! Blocks: pauses, and versions that readers need.

use chrono::{TimeDelta, Utc};
use squire_registry::{Block, BlockKind, Kind, Subject};

use crate::support::{Lake, govern, path};

fn pause(subject: Subject) -> Block {
    Block { subject, kind: BlockKind::Operator, until: None, version: None }
}

#[tokio::test]
async fn a_block_above_pauses_what_is_below_until_it_is_lifted_or_ends() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let r = &lake.registry;
    let id = r.block_add(pause(Subject::Namespace(path("sales"))), "migration").await.unwrap();
    let found = lake.govern(&uri).await;
    assert_eq!(found.paused_by().unwrap().reason, "migration");
    assert!(lake.govern("s3://elsewhere/x").await.paused_by().is_none());
    r.block_remove(&id, None).await.unwrap();
    assert!(lake.govern(&uri).await.blocks.is_empty());
    assert_eq!(r.block_remove(&id, None).await.unwrap_err().kind(), Kind::NotFound);

    let until = Utc::now() + TimeDelta::hours(1);
    r.block_add(Block { until: Some(until), ..pause(Subject::Estate) }, "tonight").await.unwrap();
    let snapshot = r.snapshot().await.unwrap();
    assert_eq!(govern(&snapshot, &uri, until - TimeDelta::seconds(1)).blocks.len(), 1);
    assert_eq!(govern(&snapshot, &uri, until).blocks.len(), 0);
}

#[tokio::test]
async fn a_reader_block_keeps_its_version_and_pauses_nothing() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let reader = Block { kind: BlockKind::Reader, version: Some(7), ..pause(Subject::Table(path("sales/orders"))) };
    lake.registry.block_add(reader.clone(), "training run").await.unwrap();
    let found = lake.govern(&uri).await;
    assert!(found.paused_by().is_none());
    assert_eq!(found.reader_versions().into_iter().collect::<Vec<_>>(), [7]);
    let nameless = Block { version: None, ..reader };
    assert_eq!(lake.registry.block_add(nameless, "x").await.unwrap_err().kind(), Kind::Invalid);
}

#[tokio::test]
async fn a_dataset_without_a_name_is_blocked_by_its_location_however_it_is_written() {
    let lake = Lake::new().await;
    let uri = lake.bytes("x.lance");
    let typed = format!("{}/./x.lance/", lake.dir.path().to_str().unwrap());
    lake.registry.block_add(pause(Subject::Dataset(typed)), "x").await.unwrap();
    assert_eq!(lake.govern(&uri).await.paused_by().unwrap().subject, Subject::Dataset(uri.clone()));
}

#[tokio::test]
async fn what_does_not_exist_cannot_be_blocked() {
    let lake = Lake::new().await;
    let error = lake.registry.block_add(pause(Subject::Table(path("sales/nobody"))), "x").await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}
