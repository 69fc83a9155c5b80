//! Per-dataset state in shards.

use std::collections::HashMap;

use squire_registry::Registry;

use crate::support::{Lake, none};

#[tokio::test]
async fn a_thousand_datasets_come_back_and_only_those_asked_for() {
    let lake = Lake::new().await;
    let all: HashMap<String, u32> = (0..1_000).map(|n| (format!("s3://lake/t{n}"), n)).collect();
    lake.registry.save_state(all.clone()).await.unwrap();
    let found: HashMap<String, u32> = lake.registry.load_state(all.keys()).await.unwrap();
    assert_eq!(found, all);
    let some: HashMap<String, u32> = lake.registry.load_state(["s3://lake/t7", "s3://lake/none"]).await.unwrap();
    assert_eq!(some, HashMap::from([("s3://lake/t7".to_owned(), 7)]));
    // 128 shards at most, one generation each.
    assert!(lake.records("state").len() <= 128);
}

#[tokio::test]
async fn two_writers_of_one_shard_merge() {
    let lake = Lake::new().await;
    let other = Registry::open(lake.registry.uri(), &none()).await.unwrap();
    let half = |from: u32| (from..500).step_by(2).map(|n| (format!("s3://lake/t{n}"), n)).collect::<HashMap<_, _>>();
    let (one, two) = futures::future::join(lake.registry.save_state(half(0)), other.save_state(half(1))).await;
    one.unwrap();
    two.unwrap();
    let uris: Vec<String> = (0..500).map(|n| format!("s3://lake/t{n}")).collect();
    let found: HashMap<String, u32> = lake.registry.load_state(&uris).await.unwrap();
    assert_eq!(found.len(), 500);
}

#[tokio::test]
async fn what_another_build_wrote_is_left_out_and_kept() {
    let lake = Lake::new().await;
    lake.registry.save_state(HashMap::from([("s3://lake/a", "text")].map(|(k, v)| (k.to_owned(), v)))).await.unwrap();
    let found: HashMap<String, u32> = lake.registry.load_state(["s3://lake/a"]).await.unwrap();
    assert!(found.is_empty());
    let found: HashMap<String, String> = lake.registry.load_state(["s3://lake/a"]).await.unwrap();
    assert_eq!(found["s3://lake/a"], "text");
}

#[tokio::test]
async fn forgotten_state_is_gone() {
    let lake = Lake::new().await;
    lake.registry.save_state(HashMap::from([("s3://lake/a".to_owned(), 1)])).await.unwrap();
    lake.registry.forget_state(["s3://lake/a", "s3://lake/b"]).await.unwrap();
    let found: HashMap<String, u32> = lake.registry.load_state(["s3://lake/a"]).await.unwrap();
    assert!(found.is_empty());
}

#[tokio::test]
async fn an_unreadable_shard_is_empty_to_readers_and_never_written_over() {
    let lake = Lake::new().await;
    lake.registry.save_state(HashMap::from([("s3://lake/a".to_owned(), 1)])).await.unwrap();
    let file = lake.records("state").pop().unwrap();
    std::fs::write(&file, b"?").unwrap();
    let found: HashMap<String, u32> = lake.registry.load_state(["s3://lake/a"]).await.unwrap();
    assert!(found.is_empty());
    assert!(lake.registry.save_state(HashMap::from([("s3://lake/a".to_owned(), 2)])).await.is_err());
    assert_eq!(lake.records("state").len(), 1);
}

#[tokio::test]
async fn what_a_look_found_and_what_a_pass_did_do_not_undo_each_other() {
    let lake = Lake::new().await;
    let of = |n: u32| HashMap::from([("s3://lake/a".to_owned(), n)]);
    let seen = |n: u32| HashMap::from([("s3://lake/a".to_owned(), Some(n))]);
    lake.registry.save_state(of(1)).await.unwrap();
    lake.registry.save_looks(seen(10)).await.unwrap();
    lake.registry.save_state(of(2)).await.unwrap();
    let state: HashMap<String, u32> = lake.registry.load_state(["s3://lake/a"]).await.unwrap();
    let (all, looks) = lake.registry.load_remembered::<u32, u32>().await.unwrap();
    assert_eq!((&all, state["s3://lake/a"], looks["s3://lake/a"]), (&state, 2, 10));
    let written = lake.records("state").len();
    lake.registry.save_looks(seen(10)).await.unwrap();
    assert_eq!(lake.records("state").len(), written, "what has not changed is not written");
    lake.registry.save_looks(HashMap::from([("s3://lake/a".to_owned(), None::<u32>)])).await.unwrap();
    assert!(lake.registry.load_remembered::<u32, u32>().await.unwrap().1.is_empty());
    assert_eq!(lake.registry.load_state::<u32>(["s3://lake/a"]).await.unwrap()["s3://lake/a"], 2);
}
