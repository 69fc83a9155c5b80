//! A snapshot of many tables and policies on a real S3 server, cold and warm, and every policy resolved. Figures, never
//! assertions.
//!
//! `make bench` runs it with `TEST_PYTHON`; `SNAPSHOT_TABLES` (100,000) is the number of tables, a tenth of which have a
//! policy. Records are written straight into the bucket: that is not what is measured. Requests pass a proxy that counts them, on
//! loopback like the server, whose share is in the seconds; `warm` is the same process again.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chrono::Utc;
use sha2::{Digest, Sha256};
use squire_registry::document::{Body, Object};
use squire_registry::{
    Actor, Floors, NewTable, Policy, PolicyChange, PolicySourceKind, Registry, StorageOptions, Subject,
};
use squire_test_support::{Proxy, Server};

/// Tables of one namespace.
const PER_NAMESPACE: usize = 1_000;

fn main() {
    let tables = std::env::var("SNAPSHOT_TABLES").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let Some(server) = Server::shared("the snapshot's benchmark") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let options: StorageOptions = server.options().clone().into_iter().collect();
    let uri = "s3://lake/bench/_squire";
    let patterns = runtime.block_on(small(uri, &options));
    fill(server, &patterns, tables);

    let proxy = Proxy::start(server.endpoint());
    let mut counted = options.clone();
    counted.insert("aws_endpoint".into(), proxy.endpoint());
    println!("| {tables} tables, {} policies | seconds | LIST pages | GETs |\n|---|---|---|---|", tables.div_ceil(10));
    let registry = runtime.block_on(Registry::open(uri, &counted)).unwrap();
    let mut snapshot = None;
    for name in ["cold", "warm"] {
        proxy.pass();
        let (took, found) = timed(|| runtime.block_on(registry.snapshot()).unwrap());
        let count = |list: bool| {
            proxy.log().iter().filter(|r| r.method == "GET" && r.query.contains("list-type") == list).count()
        };
        println!("| {name} | {:.2} | {} | {} |", took.as_secs_f64(), count(true), count(false));
        snapshot = Some(found);
    }
    let snapshot = snapshot.unwrap();
    assert_eq!(snapshot.unreadable, [], "the records that were written are what a registry writes");
    assert_eq!(snapshot.tables().filter(|t| snapshot.table_at(&t.fields.uri).is_some()).count(), tables);
    let (defaults, floors, own, now) = (Policy::default(), Floors::default(), BTreeMap::new(), Utc::now());
    let (took, (resolved, own)) = timed(|| {
        let policies = snapshot.tables().map(|t| snapshot.govern(&t.fields.uri, &defaults, &floors, &own, now).policy);
        policies.fold((0, 0), |(all, own), policy| {
            (all + 1, own + usize::from(std::hint::black_box(policy).source.kind == PolicySourceKind::Table))
        })
    });
    println!("| the policy of each table resolved | {:.2} | 0 | 0 |", took.as_secs_f64());
    assert_eq!((resolved, own), (tables, tables.div_ceil(10)));
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let done = work();
    (start.elapsed(), done)
}

/// A registry with one of each, whose objects are the patterns for all others.
async fn small(uri: &str, options: &StorageOptions) -> Vec<Object> {
    let registry = Registry::init(uri, options, "bench", Actor::named("bench")).await.unwrap();
    registry.project_create("p", None).await.unwrap();
    registry.warehouse_create("w", "p", "s3://lake/bench", true, options, None).await.unwrap();
    registry.namespace_create(&["n0".to_owned()], Some("w"), None).await.unwrap();
    let path = vec!["n0".to_owned(), "t0".to_owned()];
    let new = NewTable { path: path.clone(), location: "n0/t0".into(), tier: None, labels: vec![], declare: true };
    registry.table_create(new, options, None).await.unwrap();
    let subject = Subject::Table(path);
    let keys = [("interval".to_owned(), "2h".to_owned())];
    let change = PolicyChange { subject: &subject, keys: &keys, reason: None, immediately: false, at: Utc::now() };
    registry.policy_set(&change, &Policy::default(), &Floors::default()).await.unwrap();
    registry.export().await.unwrap().objects
}

/// Copies of the patterns under other names.
fn fill(server: &'static Server, patterns: &[Object], tables: usize) {
    let pattern = |collection: &str| {
        let found = patterns.iter().find(|o| o.collection.as_str() == collection).unwrap();
        let Body::Record(value) = &found.body else { panic!("a record") };
        format!("{value:#}\n")
    };
    let [table, location, policy, namespace] = ["tables", "locations", "policies", "namespaces"].map(pattern);
    let hash = |uri: &str| Sha256::digest(uri.as_bytes())[..10].iter().map(|b| format!("{b:02x}")).collect::<String>();
    let bucket = server.bucket();
    for first in (0..tables).step_by(PER_NAMESPACE) {
        let n = format!("n{}", first / PER_NAMESPACE);
        let mut objects = BTreeMap::new();
        let mut put = |collection: &str, key: String, text: String| {
            objects.insert(format!("{collection}/{key}/00000000000000000001.json"), Bytes::from(text));
        };
        put("namespaces", n.clone(), namespace.replace("n0", &n));
        for i in first..(first + PER_NAMESPACE).min(tables) {
            let rename = |text: &str| text.replace("n0", &n).replace("t0", &format!("t{i}"));
            put("tables", format!("{n}%2Ft{i}"), rename(&table));
            put("locations", hash(&format!("s3://lake/bench/{n}/t{i}")), rename(&location));
            if i % 10 == 0 {
                put("policies", format!("table%2F{n}%2Ft{i}"), rename(&policy));
            }
        }
        bucket.write("bench/_squire/v1", &objects);
    }
}
