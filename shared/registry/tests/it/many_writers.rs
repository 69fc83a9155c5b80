//! Sixteen writers at once, each with a client of its own, on a real S3 server and on disk; and a put that comes too late.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};
use squire_registry::{Claim, ClaimOutcome, Kind, NewTable, Registry, StorageOptions};
use squire_test_support::{Proxy, Server, gated, kind};
use uuid::Uuid;

use crate::support::{actor, none, path};

const WRITERS: usize = 16;

/// A registry with one warehouse and one namespace, and what a client needs to reach it.
pub(crate) struct Estate {
    pub(crate) root: String,
    pub(crate) options: StorageOptions,
    _dir: Option<tempfile::TempDir>,
}

impl Estate {
    pub(crate) async fn on_disk() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::made(dir.path().to_str().unwrap().to_owned(), none(), Some(dir)).await
    }

    pub(crate) async fn on_s3(test: &str) -> Option<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let server = Server::shared(test)?;
        let options = server.options().clone().into_iter().collect();
        let root = format!("s3://lake/registry-{}", NEXT.fetch_add(1, Ordering::SeqCst));
        Some(Self::made(root, options, None).await)
    }

    /// On disk, and on S3 where there is a server.
    pub(crate) async fn both(test: &str) -> Vec<Self> {
        let mut out = vec![Self::on_disk().await];
        out.extend(Self::on_s3(test).await);
        out
    }

    async fn made(root: String, options: StorageOptions, dir: Option<tempfile::TempDir>) -> Self {
        let registry = Registry::init(&format!("{root}/_squire"), &options, "test", actor()).await.unwrap();
        registry.project_create("p", None).await.unwrap();
        registry.warehouse_create("w", "p", &root, true, &options, None).await.unwrap();
        registry.namespace_create(&path("sales"), Some("w"), None).await.unwrap();
        Self { root, options, _dir: dir }
    }

    pub(crate) async fn client(&self) -> Registry {
        Registry::open(&format!("{}/_squire", self.root), &self.options).await.unwrap()
    }

    /// Lets sixteen clients do the same thing at once.
    async fn race<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        act: impl Fn(usize, Registry, StorageOptions) -> F,
    ) -> Vec<T> {
        let mut tasks = Vec::new();
        for n in 0..WRITERS {
            tasks.push(tokio::spawn(act(n, self.client().await, self.options.clone())));
        }
        futures::future::join_all(tasks).await.into_iter().map(Result::unwrap).collect()
    }
}

/// URIs whose state shares one shard, so one record.
fn one_shard(count: usize) -> Vec<String> {
    let shard = |uri: &str| Sha256::digest(uri.as_bytes())[0] % 128;
    (0..).map(|n| format!("s3://elsewhere/t{n}")).filter(|uri| shard(uri) == 7).take(count).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixteen_writers_of_one_record_lose_nothing() {
    for estate in Estate::both("sixteen_writers_of_one_record_lose_nothing").await {
        let uris = one_shard(WRITERS);
        let mine = uris.clone();
        let saved = estate
            .race(move |n, registry, _| {
                let uri = mine[n].clone();
                async move { registry.save_state(HashMap::from([(uri, n)])).await }
            })
            .await;
        saved.into_iter().for_each(|s| s.unwrap());
        let found: HashMap<String, usize> = estate.client().await.load_state(&uris).await.unwrap();
        for (n, uri) in uris.iter().enumerate() {
            assert_eq!(found.get(uri), Some(&n), "{}", estate.root);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_sixteen_names_for_one_location_exactly_one_is_registered() {
    for estate in Estate::both("of_sixteen_names_for_one_location_exactly_one_is_registered").await {
        let made = estate
            .race(|n, registry, options| async move {
                let new = NewTable {
                    path: path(&format!("sales/t{n}")),
                    location: "orders".into(),
                    tier: None,
                    labels: vec![],
                    declare: true,
                };
                registry.table_create(new, &options, None).await.map(|_| ())
            })
            .await;
        let won = made.iter().filter(|m| m.is_ok()).count();
        assert_eq!(won, 1, "{}: {made:?}", estate.root);
        for lost in made.iter().filter_map(|m| m.as_ref().err()) {
            assert_eq!(lost.kind(), Kind::Conflict, "{lost}");
        }
        assert_eq!(estate.client().await.snapshot().await.unwrap().tables().count(), 1, "{}", estate.root);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_sixteen_claims_on_one_dataset_exactly_one_is_held() {
    for estate in Estate::both("of_sixteen_claims_on_one_dataset_exactly_one_is_held").await {
        let tried = estate
            .race(|_, registry, _| async move {
                registry.claim("s3://elsewhere/t", Uuid::now_v7(), Duration::from_secs(90)).await.unwrap()
            })
            .await;
        let mut held: Vec<Claim> = tried
            .into_iter()
            .filter_map(|outcome| match outcome {
                ClaimOutcome::Held(claim) => Some(claim),
                ClaimOutcome::Taken { .. } => None,
            })
            .collect();
        assert_eq!(held.len(), 1, "{}", estate.root);
        held.remove(0).release().await.unwrap();
        let again = estate.client().await.claim("s3://elsewhere/t", Uuid::now_v7(), Duration::from_secs(90)).await;
        assert!(matches!(again.unwrap(), ClaimOutcome::Held(_)), "{}", estate.root);
    }
}

/// A writer that decided on generation 1 reaches the server when 2 was written, superseded and pruned: its put succeeds, and it is
/// not taken for the record.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_put_that_comes_after_the_prune_is_found_out_on_s3() {
    let name = "a_put_that_comes_after_the_prune_is_found_out_on_s3";
    let (Some(server), Some(estate)) = (Server::shared(name), Estate::on_s3(name).await) else { return };
    let proxy = Proxy::start(server.endpoint());
    let mut slow = estate.options.clone();
    slow.insert("aws_endpoint".into(), proxy.endpoint());
    let slow = Registry::open(&format!("{}/_squire", estate.root), &slow).await.unwrap();
    let fast = estate.client().await;
    let uris = one_shard(3);
    fast.save_state(HashMap::from([(uris[0].clone(), "first")])).await.unwrap();

    let (gate, rule) = gated(|r| kind(r) == "PUT state");
    proxy.set(rule);
    let late = uris[2].clone();
    let writer = tokio::spawn(async move { slow.save_state(HashMap::from([(late, "late")])).await });
    let waiting = gate.clone();
    let held = tokio::task::spawn_blocking(move || waiting.arrived()).await.unwrap();
    assert!(held.path.ends_with("/state/007/00000000000000000002.json"), "{held:?}");
    fast.save_state(HashMap::from([(uris[1].clone(), "second")])).await.unwrap();
    fast.save_state(HashMap::from([(uris[1].clone(), "third")])).await.unwrap();
    let prune = held.path.trim_start_matches("/lake/").to_owned();
    tokio::task::spawn_blocking(move || server.bucket().delete(&prune)).await.unwrap();
    gate.open();
    writer.await.unwrap().unwrap();

    let found: HashMap<String, String> = fast.load_state(&uris).await.unwrap();
    let found = |n: usize| found.get(&uris[n]).map(String::as_str);
    assert_eq!([found(0), found(1), found(2)], [Some("first"), Some("third"), Some("late")]);
}

/// A list, the put, and what stands there with what stands above it, both asked at once: what this process wrote last is not read
/// before it is written again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_claim_is_renewed_in_four_requests_and_three_waits_on_s3() {
    let name = "a_claim_is_renewed_in_four_requests_and_three_waits_on_s3";
    let (Some(server), Some(estate)) = (Server::shared(name), Estate::on_s3(name).await) else { return };
    let proxy = Proxy::start(server.endpoint());
    let mut counted = estate.options.clone();
    counted.insert("aws_endpoint".into(), proxy.endpoint());
    let registry = Registry::open(&format!("{}/_squire", estate.root), &counted).await.unwrap();
    let claimed = registry.claim("s3://elsewhere/t", Uuid::now_v7(), Duration::from_secs(90)).await.unwrap();
    let ClaimOutcome::Held(mut claim) = claimed else { panic!("{claimed:?}") };
    // The reading of what was put waits; the list that follows a put does not wait for it.
    let (gate, rule) = gated(|r| kind(r) == "GET claims");
    proxy.set(rule);
    let renewed = tokio::spawn(async move { claim.renew().await });
    let waiting = gate.clone();
    let held = tokio::task::spawn_blocking(move || waiting.arrived()).await.unwrap();
    assert!(held.path.ends_with("/00000000000000000002.json"), "{held:?}");
    let lists = || proxy.log().iter().filter(|r| r.query.contains("list-type")).count();
    let end = tokio::time::Instant::now() + Duration::from_secs(30);
    while lists() < 2 {
        assert!(tokio::time::Instant::now() < end, "{:?}", proxy.log());
        tokio::task::yield_now().await;
    }
    gate.open();
    renewed.await.unwrap().unwrap();
    let log = proxy.log();
    let count = |what: &dyn Fn(&squire_test_support::Request) -> bool| log.iter().filter(|r| what(r)).count();
    let puts = count(&|r| r.method == "PUT");
    let gets = count(&|r| kind(r) == "GET claims");
    assert_eq!((lists(), puts, gets, log.len()), (2, 1, 1, 4), "{log:?}");
}
