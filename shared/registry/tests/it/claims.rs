//! Leases: taken, renewed, lost, and taken over from the dead.

use std::sync::Arc;
use std::time::Duration;

use object_store::memory::InMemory;
use object_store::path::Path;
use squire_registry::{Claim, ClaimOutcome, Kind, Registry, Root};
use uuid::Uuid;

use crate::support::{Lake, actor};

const URI: &str = "s3://lake/t.lance";
const TTL: Duration = Duration::from_secs(90);

async fn two() -> (Registry, Registry) {
    let store = Arc::new(InMemory::new());
    let root = || Root::with_store(store.clone(), Path::from("c"), "s3://bucket/c");
    (Registry::init_at(root(), "test", actor()).await.unwrap(), Registry::open_at(root(), actor()).await.unwrap())
}

async fn held(registry: &Registry) -> Option<Claim> {
    match registry.claim(URI, Uuid::now_v7(), TTL).await.unwrap() {
        ClaimOutcome::Held(claim) => Some(claim),
        ClaimOutcome::Taken { .. } => None,
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_many_holds_it_and_release_gives_it_back() {
    let (one, two) = two().await;
    let tries = (0..8).map(|n| held(if n % 2 == 0 { &one } else { &two }));
    let mut won: Vec<Claim> = futures::future::join_all(tries).await.into_iter().flatten().collect();
    assert_eq!(won.len(), 1);
    won.remove(0).release().await.unwrap();
    assert!(held(&two).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn it_expires_when_its_generation_stands_still_for_the_observer() {
    let (one, two) = two().await;
    let mut claim = held(&one).await.unwrap();
    assert!(held(&two).await.is_none());
    tokio::time::advance(Duration::from_secs(80)).await;
    claim.renew().await.unwrap();
    // Eighty seconds more than the first look, but the generation moved meanwhile: the clock starts anew.
    assert!(held(&two).await.is_none());
    tokio::time::advance(Duration::from_secs(89)).await;
    assert!(held(&two).await.is_none());
    tokio::time::advance(Duration::from_secs(1)).await;
    let stolen = held(&two).await.unwrap();
    // The old holder finds out and leaves it alone.
    assert_eq!(claim.renew().await.unwrap_err().kind(), Kind::Refused);
    claim.release().await.unwrap();
    assert!(held(&one).await.is_none());
    stolen.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_has_just_come_waits_a_whole_ttl() {
    let (one, two) = two().await;
    let _claim = held(&one).await.unwrap();
    tokio::time::advance(TTL * 100).await;
    assert!(held(&two).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_started_on_half_a_ttl() {
    let (one, _) = two().await;
    let mut claim = held(&one).await.unwrap();
    tokio::time::advance(Duration::from_secs(44)).await;
    assert!(claim.still_ours());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!claim.still_ours());
    claim.renew().await.unwrap();
    assert!(claim.still_ours());
}

#[tokio::test]
async fn a_dead_process_on_this_machine_loses_its_claim_at_once() {
    let lake = Lake::new().await;
    let claim = held(&lake.registry).await.unwrap();
    assert!(held(&lake.registry).await.is_none());
    // As if this process had been another one under the same number.
    let file = lake.records("claims").pop().unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let started = record["holder"]["started"].as_u64().unwrap();
    record["holder"]["started"] = (started - 1).into();
    std::fs::write(&file, record.to_string()).unwrap();
    assert!(lake.registry.claimed_by(URI).await.unwrap().is_none());
    assert!(held(&lake.registry).await.is_some());
    drop(claim);
}

#[tokio::test]
async fn another_machine_or_boot_is_left_to_the_ttl() {
    for (field, value) in [("boot", "another"), ("pid_namespace", "pid:[1]")] {
        let lake = Lake::new().await;
        let _claim = held(&lake.registry).await.unwrap();
        let file = lake.records("claims").pop().unwrap();
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        record["holder"]["started"] = 1.into();
        record["holder"][field] = value.into();
        std::fs::write(&file, record.to_string()).unwrap();
        assert!(held(&lake.registry).await.is_none(), "{field}");
    }
}
