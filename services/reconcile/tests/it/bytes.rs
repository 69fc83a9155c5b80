//! Every byte under a ROOT has one class, and the classes sum to what is stored there.

use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde_json::Value;
use squire_lake::sample::{Columns, Sample, SampleIndex};
use squire_test_support::{Objects, Server};

use super::output;

const DAY: u64 = 86_400;

fn age(path: &Path, days: u64) {
    let long_ago = SystemTime::now() - Duration::from_secs(days * DAY);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
}

fn first_data(table: &Path) -> std::path::PathBuf {
    let mut files: Vec<_> = std::fs::read_dir(table.join("data")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files.remove(0)
}

/// All files below a folder, with their bytes.
fn objects(dir: &Path) -> Objects {
    let mut out = Objects::new();
    let mut queue = vec![dir.to_path_buf()];
    while let Some(at) = queue.pop() {
        for entry in std::fs::read_dir(at).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                queue.push(path);
            } else {
                let rel = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
                out.insert(rel, Bytes::from(std::fs::read(&path).unwrap()));
            }
        }
    }
    out
}

fn total(objects: &Objects) -> u64 {
    objects.values().map(|o| o.len() as u64).sum()
}

/// A lake with something of every class: old versions, a tag, a branch, a clone, an index, an orphan, a young and a foreign
/// file, a nested dataset, one that cannot be opened, loose files, a registry and a quarantine.
async fn messy(lake: &Path) {
    let uri = |name: &str| squire_lake::uri::canonical(lake.join(name).to_str().unwrap()).unwrap();
    for name in ["orders", "notes", "broken", "orders/media/inner"] {
        std::fs::create_dir_all(lake.join(name)).unwrap();
        let mut sample = Sample::new(uri(name), Columns::default());
        for i in 0..3 {
            sample.write(50, i * 50).await.unwrap();
        }
        if name == "orders" {
            sample.tag("kept", 1).await.unwrap();
            sample.index(SampleIndex::BTree).await.unwrap();
            sample.branch("dev", 2).await.unwrap();
            sample.clone_to(&uri("clone")).await.unwrap();
            sample.overwrite(20, 0).await.unwrap();
        }
    }
    let orders = lake.join("orders");
    for (name, days) in [("1", 8), ("2", 0)] {
        let path = orders.join(format!("data/{name:0>32}.lance"));
        std::fs::copy(first_data(&orders), &path).unwrap();
        age(&path, days);
    }
    std::fs::write(orders.join("media/cat.png"), "a cat").unwrap();
    for entry in std::fs::read_dir(lake.join("broken/_versions")).unwrap().flatten() {
        std::fs::write(entry.path(), "no manifest").unwrap();
    }
    std::fs::write(lake.join("README.txt"), "hello").unwrap();
    std::fs::create_dir_all(lake.join("folder/deep")).unwrap();
    std::fs::write(lake.join("folder/deep/notes.csv"), "a,b\n1,2\n").unwrap();
    std::fs::create_dir_all(lake.join("_squire_quarantine/p/orders/data")).unwrap();
    std::fs::write(lake.join("_squire_quarantine/p/orders/data/x.lance"), vec![0; 1234]).unwrap();
}

fn report(dir: &tempfile::TempDir, args: &[&str]) -> Value {
    let all: Vec<&str> = ["report"].into_iter().chain(args.iter().copied()).chain(["-o", "json"]).collect();
    let (_, out, err) = output(dir, &all);
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {err}"))
}

fn sum(classes: &Value) -> u64 {
    classes.as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum()
}

fn row<'a>(report: &'a Value, end: &str) -> &'a Value {
    report["datasets"].as_array().unwrap().iter().find(|d| d["uri"].as_str().unwrap().ends_with(end)).unwrap()
}

/// What must hold of every report, and the classes of the whole.
fn check(report: &Value) -> Value {
    for dataset in report["datasets"].as_array().unwrap().iter().filter(|d| !d["stored"].is_null()) {
        let stored = &dataset["stored"];
        assert_eq!(sum(&stored["classes"]), stored["total"].as_u64().unwrap(), "{dataset:#}");
        let held: u64 = stored["held"].as_array().unwrap().iter().map(|h| h["bytes"].as_u64().unwrap()).sum();
        assert!(held <= stored["classes"]["history"].as_u64().unwrap(), "{stored:#}");
    }
    report["totals"]["stored"].clone()
}

#[tokio::test]
async fn the_classes_sum_to_the_tree_on_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    messy(&lake).await;
    let files = objects(&lake);
    let whole = report(&dir, &["lake", "--set", "prices.stored_gib_month=0.023"]);
    let classes = check(&whole);
    assert_eq!(sum(&classes), total(&files), "{classes:#}");
    assert_eq!(classes["quarantine"], 1234);
    // The loose files, the cat, and nothing of the nested dataset, which has a row of its own.
    assert_eq!(classes["foreign"], 5 + 8 + 5);
    let broken: u64 = files.iter().filter(|(p, _)| p.starts_with("broken/")).map(|(_, b)| b.len() as u64).sum();
    assert!(classes["unknown"].as_u64().unwrap() >= broken, "{classes:#}");
    assert!(row(&whole, "/inner")["stored"]["total"].as_u64().unwrap() > 0);
    // One dataset cannot be read and may read any file: nothing is an orphan, and nothing may go.
    assert_eq!((&classes["orphan"], &classes["reclaimable"]), (&0.into(), &0.into()));
    let cost = whole["totals"]["stored_cost_per_month"].as_f64().unwrap();
    assert!((cost - total(&files) as f64 / 1_073_741_824.0 * 0.023).abs() < 1e-12, "{cost}");
}

#[tokio::test]
async fn what_may_go_now_and_what_holds_the_rest_until_when_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    messy(&lake).await;
    std::fs::remove_dir_all(lake.join("broken")).unwrap();
    std::fs::remove_dir_all(lake.join("orders/media/inner")).unwrap();
    let young = report(&dir, &["lake"]);
    assert_eq!(sum(&check(&young)), total(&objects(&lake)));
    let stored = &row(&young, "/orders")["stored"];
    let size = std::fs::metadata(lake.join(format!("orders/data/{:0>32}.lance", 1))).unwrap().len();
    assert_eq!((&stored["classes"]["orphan"], &stored["classes"]["young"]), (&size.into(), &size.into()), "{stored:#}");
    assert_eq!(stored["classes"]["reclaimable"], 0, "the retention is a week");
    let holders = |stored: &Value| -> Vec<String> {
        let mut all: Vec<String> =
            stored["held"].as_array().unwrap().iter().map(|h| h["by"].as_str().unwrap().to_owned()).collect();
        all.sort();
        all
    };
    assert_eq!(holders(stored), ["branch", "clone", "retention", "tag"], "{stored:#}");
    let until = |by: &str| stored["held"].as_array().unwrap().iter().find(|h| h["by"] == by).unwrap()["until"].clone();
    assert!(until("retention").as_str().unwrap() > "2026", "{stored:#}");
    assert_eq!(until("tag"), Value::Null);
    // Without a retention to speak of only tag, branch, clone and the newest two hold anything.
    let args =
        ["lake", "--set", "policy.retention=1s", "--set", "floors.retention=1s", "--set", "policy.retain_versions=1"];
    let args: Vec<&str> = args.into_iter().chain(["--set", "floors.retain_versions=1"]).collect();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let old = report(&dir, &args);
    assert_eq!(sum(&check(&old)), total(&objects(&lake)));
    let stored = &row(&old, "/orders")["stored"];
    assert!(stored["classes"]["reclaimable"].as_u64().unwrap() > 0, "{stored:#}");
    assert_eq!(holders(stored), ["branch", "clone", "tag"], "{stored:#}");
    let sizes = stored["fragment_sizes"].as_array().unwrap();
    assert_eq!((sizes.len(), &sizes[0]["fragments"], &sizes[6]["up_to"]), (7, &1.into(), &Value::Null));
    let text = output(&dir, &["report", "lake"]).1;
    assert!(text.contains(" stored: ") && text.contains("by clone: "), "{text}");
}

#[test]
fn the_classes_sum_to_the_bucket() {
    let Some(server) = Server::shared("the_classes_sum_to_the_bucket") else { return };
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    tokio::runtime::Runtime::new().unwrap().block_on(messy(&lake));
    server.bucket().write("sums", &objects(&lake));
    let stored = total(&server.bucket().read("sums"));
    std::fs::write(dir.path().join("squire.toml"), server.storage(None)).unwrap();
    let metrics = dir.path().join("metrics.prom");
    let whole = report(&dir, &["s3://lake/sums", "--metrics-file", metrics.to_str().unwrap()]);
    let classes = check(&whole);
    assert_eq!(sum(&classes), stored, "{classes:#}");
    assert_eq!(whole["totals"]["requests"]["put"], 0);
    let text = std::fs::read_to_string(metrics).unwrap();
    let gauges = text.lines().filter(|l| l.starts_with("squire_stored_bytes{"));
    let exported: f64 = gauges.map(|l| l.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum();
    assert_eq!(exported as u64, stored, "the gauges sum to the bucket, too");
    let held = text.lines().any(|l| l.starts_with("squire_held_bytes{reason=\"tag\"}") && !l.ends_with(" 0"));
    assert!(held, "{text}");
    let requests = |l: &&str| l.starts_with("squire_object_store_http_requests_total{bucket=\"s3://lake\"");
    assert!(text.lines().any(|l| requests(&l)), "the registry's requests are counted: {text}");
}
