//! Stores that do not keep put-if-absent are refused before anything rests on them.

use std::sync::Arc;

use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::path::Path;
use squire_registry::{Kind, Registry, Root};

use crate::support::{Lake, Tampered, actor, files, memory, none};

async fn init_on(tampered: Tampered) -> (Arc<Tampered>, squire_registry::Result<Registry>) {
    let store = Arc::new(tampered);
    let root = Root::with_store(store.clone(), Path::from("control"), "s3://bucket/control");
    let made = Registry::init_at(root, "test", actor()).await;
    (store, made)
}

async fn objects(store: &Tampered) -> Vec<String> {
    store.list(None).map_ok(|o| o.location.to_string()).try_collect().await.unwrap()
}

#[tokio::test]
async fn a_store_that_overwrites_is_refused_and_left_clean() {
    let mut tampered = Tampered::new(Arc::new(InMemory::new()));
    tampered.overwrites = true;
    let (store, made) = init_on(tampered).await;
    let error = made.unwrap_err();
    assert_eq!(error.kind(), Kind::LyingStore, "{error}");
    let text = error.to_string();
    assert!(text.contains("s3://bucket") && text.contains("overwrote an object that was there"), "{text}");
    assert_eq!(objects(&store).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_store_that_lets_two_win_a_race_is_refused() {
    let mut tampered = Tampered::new(Arc::new(InMemory::new()));
    tampered.two_winners = true;
    let (store, made) = init_on(tampered).await;
    let error = made.unwrap_err();
    assert_eq!(error.kind(), Kind::LyingStore, "{error}");
    assert!(error.to_string().contains("of 8 concurrent"), "{error}");
    assert_eq!(objects(&store).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_lying_lake_is_refused_by_a_good_registry() {
    let (_, root) = memory();
    let registry = Registry::init_at(root, "test", actor()).await.unwrap();
    let mut liar = Tampered::new(Arc::new(InMemory::new()));
    liar.overwrites = true;
    let lake = Root::with_store(Arc::new(liar), Path::from("data"), "s3://lake/data");
    assert_eq!(registry.probe_root(&lake).await.unwrap_err().kind(), Kind::LyingStore);
    // And again: a failure is not taken for a pass.
    assert_eq!(registry.probe_root(&lake).await.unwrap_err().kind(), Kind::LyingStore);
}

#[tokio::test]
async fn a_bucket_is_probed_once() {
    let (_, root) = memory();
    let registry = Registry::init_at(root, "test", actor()).await.unwrap();
    let store = Arc::new(Tampered::new(Arc::new(InMemory::new())));
    let puts = || store.puts.load(std::sync::atomic::Ordering::SeqCst);
    let lake = Root::with_store(store.clone(), Path::from("a"), "s3://lake/a");
    registry.probe_root(&lake).await.unwrap();
    assert_eq!(puts(), 10);
    registry.probe_root(&lake).await.unwrap();
    // Another prefix of the same bucket is the same bucket.
    let other = Root::with_store(store.clone(), Path::from("b"), "s3://lake/b");
    registry.probe_root(&other).await.unwrap();
    assert_eq!(puts(), 10);
}

#[tokio::test]
async fn a_directory_passes_and_keeps_nothing_of_the_probe() {
    let lake = Lake::new().await;
    lake.registry.probe(lake.dir.path().to_str().unwrap(), &none()).await.unwrap();
    let left: Vec<_> = files(lake.dir.path())
        .into_iter()
        .filter(|p| !p.starts_with(lake.dir.path().join("_squire/v1")) && !p.ends_with(".squire-estate"))
        .collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
}
