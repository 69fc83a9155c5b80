//! The generation protocol under races, lost answers and prunes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use sha2::{Digest, Sha256};
use squire_registry::{Kind, Level, Registry, Root, Subject};
use tokio::sync::Notify;

use crate::support::{Fault, Lake, Tampered, actor, files, memory, none, path};

/// URIs whose state shares one shard.
fn one_shard(count: usize) -> Vec<String> {
    let shard = |uri: &str| Sha256::digest(uri.as_bytes())[0] % 128;
    (0..).map(|n| format!("s3://lake/t{n}")).filter(|uri| shard(uri) == 7).take(count).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_sixteen_creators_on_disk_exactly_one_wins() {
    let lake = Lake::new().await;
    let uri = lake.registry.uri().to_owned();
    let mut tasks = Vec::new();
    for _ in 0..16 {
        let uri = uri.clone();
        tasks.push(tokio::spawn(async move {
            Registry::open(&uri, &none()).await.unwrap().project_create("q", None).await
        }));
    }
    let mut won = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(()) => won += 1,
            Err(e) => assert_eq!(e.kind(), Kind::Conflict, "{e}"),
        }
    }
    assert_eq!(won, 1);
    assert_eq!(lake.generations("projects", "q").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixteen_writers_of_one_record_on_disk_lose_nothing() {
    let lake = Lake::new().await;
    let uris = one_shard(16);
    let mut tasks = Vec::new();
    for (n, uri) in uris.iter().cloned().enumerate() {
        let registry = Registry::open(lake.registry.uri(), &none()).await.unwrap();
        tasks.push(tokio::spawn(async move { registry.save_state(HashMap::from([(uri, n)])).await }));
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let found: HashMap<String, usize> = lake.registry.load_state(&uris).await.unwrap();
    assert_eq!(found.len(), 16);
    for (n, uri) in uris.iter().enumerate() {
        assert_eq!(found[uri], n);
    }
    // One generation each, and nothing unfinished stays behind.
    assert_eq!(lake.generations("state", "007").len(), 16);
}

#[tokio::test]
async fn a_lost_answer_is_recognised_by_its_nonce() {
    let (store, root) = memory();
    let registry = Registry::init_at(root, "test", actor()).await.unwrap();
    store.next("v1/projects/p/", Fault::LostAnswer);
    registry.project_create("p", None).await.unwrap();
    let log = registry.log(&Subject::Project("p".into())).await.unwrap();
    assert_eq!(log.len(), 1);
    assert_eq!(log[0].generation, 1);
}

#[tokio::test]
async fn a_refused_put_with_nothing_there_is_decided_again() {
    let (store, root) = memory();
    let registry = Registry::init_at(root, "test", actor()).await.unwrap();
    store.next("v1/projects/p/", Fault::ConcurrentConflict);
    store.next("v1/projects/p/", Fault::ConcurrentConflict);
    registry.project_create("p", None).await.unwrap();
    assert_eq!(registry.log(&Subject::Project("p".into())).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_store_that_stays_in_doubt_is_an_error_and_not_a_loop() {
    let (store, root) = memory();
    let registry = Registry::init_at(root, "test", actor()).await.unwrap();
    for _ in 0..50 {
        store.next("v1/projects/p/", Fault::ConcurrentConflict);
    }
    let error = registry.project_create("p", None).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Transient, "{error}");
}

#[tokio::test]
async fn a_writer_that_decided_before_a_prune_finds_out_that_it_lost() {
    let inner = Arc::new(InMemory::new());
    let fast = Root::with_store(inner.clone(), Path::from("control"), "s3://bucket/control");
    let tampered = Arc::new(Tampered::new(inner.clone()));
    let slow = Root::with_store(tampered.clone(), Path::from("control"), "s3://bucket/control");
    let fast = Registry::init_at(fast, "test", actor()).await.unwrap();
    let slow = Registry::open_at(slow, actor()).await.unwrap();
    let uris = one_shard(3);
    fast.save_state(HashMap::from([(uris[0].clone(), "first")])).await.unwrap();

    let (arrived, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    tampered.next("v1/state/007/", Fault::Hold { arrived: arrived.clone(), go: go.clone() });
    let late = uris[2].clone();
    let writer = tokio::spawn(async move { slow.save_state(HashMap::from([(late, "late")])).await });
    arrived.notified().await;
    // While generation 2 is on its way, 2 and 3 are written and 2 is pruned again.
    fast.save_state(HashMap::from([(uris[1].clone(), "second")])).await.unwrap();
    fast.save_state(HashMap::from([(uris[1].clone(), "third")])).await.unwrap();
    inner.delete(&Path::from("control/v1/state/007/00000000000000000002.json")).await.unwrap();
    go.notify_one();
    writer.await.unwrap().unwrap();

    let found: HashMap<String, String> = fast.load_state(&uris).await.unwrap();
    assert_eq!(found[&uris[0]], "first");
    assert_eq!(found[&uris[1]], "third");
    assert_eq!(found[&uris[2]], "late");
    assert!(inner.head(&Path::from("control/v1/state/007/00000000000000000004.json")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_put_does_not_outlive_its_decision_by_more_than_a_minute() {
    let (store, root) = memory();
    let registry = Registry::init_at(root, "test", actor()).await.unwrap();
    let (arrived, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    store.next("v1/projects/p/", Fault::Hold { arrived: arrived.clone(), go });
    let started = tokio::time::Instant::now();
    // The first put never gets an answer; the clock runs by itself while everything waits.
    registry.project_create("p", None).await.unwrap();
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(60) && took < Duration::from_secs(62), "{took:?}");
}

#[tokio::test]
async fn superseded_generations_go_a_day_after_they_were_replaced_and_history_stays() {
    let lake = Lake::new().await;
    let uri = one_shard(1).remove(0);
    let warehouse = Subject::Warehouse("w".into());
    for n in 1..=3 {
        lake.registry.save_state(HashMap::from([(uri.clone(), n)])).await.unwrap();
    }
    lake.registry.protect(&warehouse, Level::NoDrop, Some("one")).await.unwrap();
    lake.registry.protect(&warehouse, Level::KeepHistory, Some("two")).await.unwrap();
    lake.registry.protect(&warehouse, Level::Freeze, Some("three")).await.unwrap();
    age(&lake, 3);
    lake.registry.save_state(HashMap::from([(uri.clone(), 4)])).await.unwrap();
    lake.registry.protect(&warehouse, Level::NoDrop, Some("four")).await.unwrap();

    assert_eq!(numbers(&lake, "state"), [3, 4]);
    assert_eq!(numbers(&lake, "protection"), [1, 2, 3, 4]);

    // History has its end, too: 400 days unless set otherwise.
    age(&lake, 401);
    lake.registry.protect(&warehouse, Level::Freeze, Some("five")).await.unwrap();
    assert_eq!(numbers(&lake, "protection"), [4, 5]);
}

#[tokio::test]
async fn a_tombstone_is_never_pruned_to_nothing() {
    let lake = Lake::new().await;
    let subject = Subject::Namespace(path("sales"));
    lake.registry.container_drop(&subject, false, None).await.unwrap();
    age(&lake, 500);
    // Everything else about the record may be touched: the name is used again and dropped again.
    lake.registry.namespace_create(&path("sales"), Some("w"), None).await.unwrap();
    lake.registry.container_drop(&subject, false, None).await.unwrap();
    age(&lake, 500);
    let left = files(&lake.dir.path().join("_squire/v1/namespaces"));
    let newest = std::fs::read_to_string(left.last().unwrap()).unwrap();
    assert!(newest.contains("\"deleted\": true"), "{newest}");
    assert!(lake.registry.snapshot().await.unwrap().namespace(&path("sales")).is_none());
}

#[tokio::test]
async fn nothing_to_change_writes_nothing() {
    let (store, root) = memory();
    let registry = Registry::init_at(root, "test", actor()).await.unwrap();
    let uri = one_shard(1).remove(0);
    registry.save_state(HashMap::from([(uri.clone(), 1)])).await.unwrap();
    let before = store.puts.load(std::sync::atomic::Ordering::SeqCst);
    registry.save_state(HashMap::from([(uri, 1)])).await.unwrap();
    assert_eq!(store.puts.load(std::sync::atomic::Ordering::SeqCst), before);
}

#[tokio::test]
async fn a_snapshot_gets_only_generations_it_has_never_seen() {
    let (store, root) = memory();
    let registry = Registry::init_at(root, "test", actor()).await.unwrap();
    for n in 0..5 {
        registry.project_create(&format!("p{n}"), None).await.unwrap();
    }
    let count = |of: &std::sync::atomic::AtomicUsize| of.load(std::sync::atomic::Ordering::SeqCst);
    registry.snapshot().await.unwrap();
    let (lists, gets) = (count(&store.lists), count(&store.gets));
    registry.snapshot().await.unwrap();
    assert_eq!(count(&store.lists) - lists, 11);
    assert_eq!(count(&store.gets) - gets, 0);
    registry.project_create("p5", None).await.unwrap();
    let gets = count(&store.gets);
    assert_eq!(registry.snapshot().await.unwrap().projects().count(), 6);
    assert_eq!(count(&store.gets) - gets, 1);
}

/// Makes every generation of the lake's registry older by so many days.
fn age(lake: &Lake, days: u64) {
    for file in files(&lake.dir.path().join("_squire/v1")) {
        let then = SystemTime::now() - Duration::from_secs(days * 86_400);
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(then).unwrap();
    }
}

fn numbers(lake: &Lake, collection: &str) -> Vec<u64> {
    let name = |p: &std::path::PathBuf| p.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    lake.records(collection).iter().map(name).collect()
}
