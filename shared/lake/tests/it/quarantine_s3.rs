//! The quarantine on a real S3 server: server-side copies, their tags, odd names, a bucket that keeps versions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use serde_json::{Value, json};
use squire_lake::Lake;
use squire_lake::classes::{Ages, Class, classes};
use squire_lake::look::{Look, Looked, look};
use squire_lake::quarantine::{self, Erased, Item, Quarantine, Returned, Rule, Taken, Work, take_away};
use squire_lake::rate::Rate;
use squire_lake::refs::KeepSet;
use squire_test_support::Server;
use uuid::Uuid;

const PLAN: Uuid = Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_0002);

/// A month from now: what a test uploads is old enough.
fn ages() -> Ages {
    Ages { now: Utc::now() + chrono::TimeDelta::days(30), longest_write: Duration::ZERO }
}

fn lake(server: &Server) -> Lake {
    let options: HashMap<String, String> = server.options().clone().into_iter().collect();
    Lake::new(Arc::new(move |_: &str| options.clone()), 256 << 20)
}

async fn seen(lake: &Lake, uri: &str) -> Look {
    match look(lake, uri, Utc::now()).await.expect("a look") {
        Looked::Dataset(look) => *look,
        other => panic!("{other:?}"),
    }
}

/// Whether the bytes of an overwritten big file (a multipart upload), strays of odd names and all come back as they were.
async fn there_and_back(server: &Server, root: &str, versioned: bool) {
    let (bucket, lake) = (server.bucket(), lake(server));
    let typed = format!("s3://lake/{root}/orders");
    let canonical = |text: &str| squire_lake::uri::canonical(text).expect("a URI");
    let (at, uri) = (canonical(&format!("s3://lake/{root}")), canonical(&typed));
    server.pylance("write", &typed, json!({"rows_each": 500_000}));
    server.pylance("write", &typed, json!({"rows_each": 10, "overwrite": true}));
    let strays = ["data/one.lance", "data/one/a b%41+ü.blob", "_deletions/0-1-9.arrow"];
    let objects: BTreeMap<String, bytes::Bytes> =
        strays.iter().map(|path| (format!("orders/{path}"), bytes::Bytes::from(format!("bytes of {path}")))).collect();
    let look = seen(&lake, &uri).await;
    let first = look.versions()[0].1.path.clone();
    tokio::task::block_in_place(|| {
        bucket.write(root, &objects);
        bucket.delete(&format!("{root}/orders/{first}"));
    });
    let look = seen(&lake, &uri).await;
    let found = classes(&look, &KeepSet::Complete(BTreeSet::new()), &ages());
    let items: Vec<Item> =
        found.of(Class::Orphan).map(|o| Item { path: o.path.clone(), bytes: o.bytes, modified: o.modified }).collect();
    assert!(items.iter().any(|i| i.bytes > 5 << 20), "one was uploaded in parts: {items:?}");
    assert!(items.len() >= 4, "{items:?}");
    assert_eq!(quarantine::is_versioned(&lake, &uri, &look.versions()[0].1.path).await.expect("asked"), versioned);
    let before = tokio::task::block_in_place(|| bucket.read(&format!("{root}/orders")));

    let store = Quarantine::open(&lake, &at, PLAN).await.expect("opened");
    let rate = Rate::new(10_000);
    let work =
        Work { lake: &lake, uri: &uri, items: &items, rule: Rule::Orphans(ages()), quarantine: &store, rate: &rate };
    let mut taken = Taken::default();
    take_away(&mut taken, &work, || async { Ok(KeepSet::Complete(BTreeSet::new())) }).await.expect("taken");
    assert_eq!((taken.moved.0 as usize, taken.failed.len(), taken.left.len()), (items.len(), 0, 0), "{taken:?}");
    let now = tokio::task::block_in_place(|| bucket.list(&format!("{root}/orders")));
    assert_eq!(now.len(), before.len() - items.len());
    let held = quarantine::held(&lake, &at, PLAN).await.expect("listed");
    assert_eq!(held.copies.len(), items.len());
    for (path, _) in &held.copies {
        assert_eq!(store.bring_back(path, None, &rate).await, Returned::Back, "{path}");
    }
    assert_eq!(tokio::task::block_in_place(|| bucket.read(&format!("{root}/orders"))), before);
    assert!(quarantine::held(&lake, &at, PLAN).await.expect("listed").copies.is_empty());
    // Their times are new now, so that an old plan does nothing, and a new one takes them for good.
    let look = seen(&lake, &uri).await;
    let found = classes(&look, &KeepSet::Complete(BTreeSet::new()), &ages());
    let items: Vec<Item> =
        found.of(Class::Orphan).map(|o| Item { path: o.path.clone(), bytes: o.bytes, modified: o.modified }).collect();
    let mut taken = Taken::default();
    let work = Work { items: &items, ..work };
    take_away(&mut taken, &work, || async { Ok(KeepSet::Complete(BTreeSet::new())) }).await.expect("taken");
    for (path, _) in quarantine::held(&lake, &at, PLAN).await.expect("listed").copies {
        assert_eq!(store.erase(&path, &rate).await, Erased::Gone);
    }
    let read = tokio::task::block_in_place(|| server.pylance("read", &typed, Value::Null));
    assert_eq!(read["rows"], 10, "{read}");
    let rest = tokio::task::block_in_place(|| bucket.list(&format!("{root}/_squire_quarantine")));
    assert!(rest.is_empty(), "{rest:?}");
    // It has a runtime of its own, which may not end in this one.
    tokio::task::block_in_place(|| drop(bucket));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_s3_it_goes_and_comes_back_byte_for_byte() {
    let test = "on_s3_it_goes_and_comes_back_byte_for_byte";
    let Some(server) = tokio::task::block_in_place(|| Server::start(test, &["--empty"])) else { return };
    there_and_back(&server, "odd root/x+y", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_bucket_that_keeps_versions_it_does_so_too_and_says_so() {
    let test = "in_a_bucket_that_keeps_versions_it_does_so_too_and_says_so";
    let Some(server) = tokio::task::block_in_place(|| Server::start(test, &["--empty"])) else { return };
    let said = tokio::task::block_in_place(|| server.pylance("versioning", "s3://lake", Value::Null));
    assert_eq!(said["status"], 200, "{said}");
    there_and_back(&server, "kept", true).await;
}
