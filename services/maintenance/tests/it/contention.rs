//! A table from which rows are deleted all the time is compacted all the same, and what was rewritten is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use serde_json::{Value, json};
use squire_lake::sample::{Columns, Sample, SampleIndex};
use squire_test_support::Server;

use super::common::*;
use super::s3_estate::OnS3;

const COLUMNS: Columns = Columns { vector: 0, page: 2_000 };
const FRAGMENTS: i64 = 24;
const ROWS: i64 = 250;

/// Somebody who deletes one row after another, and to whom no delete may fail.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<i64>>,
}

impl Writer {
    /// Returns when the first row is gone.
    fn start(uri: String, ids: impl Iterator<Item = i64> + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, (began, first)) = (stop.clone(), mpsc::channel());
        let work = async move {
            let mut gone = Vec::new();
            for id in ids {
                let mut sample = Sample::open(&lake(), &uri, COLUMNS).await.expect("opened");
                sample.delete(&format!("id = {id}")).await.expect("the writer sees no error");
                gone.push(id);
                let _ = began.send(());
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
            }
            gone
        };
        let thread = std::thread::spawn(|| {
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
        });
        first.recv().expect("it deletes");
        Self { stop, thread }
    }

    fn stop(self) -> Vec<i64> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().expect("it ended well")
    }
}

/// Sweeps while rows are deleted in this order.
async fn swept_while_rows_are_deleted(indexed: bool, ids: impl Iterator<Item = i64> + Send + 'static) {
    let here = Here::new();
    std::fs::create_dir_all(here.path("lake")).expect("made");
    let mut sample = Sample::new(here.uri("lake/t"), COLUMNS);
    for i in 0..FRAGMENTS {
        sample.write(ROWS as usize, i * ROWS).await.expect("written");
    }
    if indexed {
        sample.index(SampleIndex::BTree).await.expect("indexed");
    }
    let metrics = here.text("metrics.prom");
    let writer = Writer::start(here.uri("lake/t"), ids);
    let swept = report(&["sweep", &here.text("lake"), "--yes", "--metrics-file", &metrics]);
    let gone = writer.stop();

    let row = row(&swept, "lake/t");
    let compact = &row["steps"]["compact"];
    assert_eq!((&compact["outcome"], &compact["tasks"]), (&"done".into(), &1.into()), "{row:#}");
    assert_eq!(row["after"]["fragments"], 1, "{row:#}");
    // Every rewrite that was made was kept: no commit of one was lost, and nothing was left behind.
    let metrics = std::fs::read_to_string(metrics).expect("metrics");
    assert!(metrics.contains("squire_commit_conflicts_total{step=\"compact\"} 0"), "{metrics}");
    assert_eq!(swept["totals"]["stranded_bytes"], 0, "{:#}", swept["findings"]);
    let data = std::fs::read_dir(here.path("lake/t/data")).expect("listed").count();
    assert_eq!(data as i64, FRAGMENTS + 1, "one file was written beside the writer's");
    assert!(gone.len() > 2, "{} deletes are no crowd", gone.len());
    let wanted: Vec<i64> = (0..FRAGMENTS * ROWS).filter(|id| !gone.contains(id)).collect();
    assert_eq!(Sample::ids(&lake(), &here.uri("lake/t"), None).await.expect("it reads"), wanted);
    // A delete that had to be tried again leaves its first deletion file.
    here.oracle_with("lake", Leftovers::Explained, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_who_deletes_in_one_fragment_costs_no_rewrite() {
    swept_while_rows_are_deleted(false, 0..ROWS - 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_who_deletes_in_every_fragment_costs_no_rewrite() {
    swept_while_rows_are_deleted(true, (0..ROWS - 1).flat_map(|row| (0..FRAGMENTS).map(move |f| f * ROWS + row))).await;
}

/// Where a commit takes many round trips, it is tried until it comes between two deletes.
#[test]
fn a_writer_who_deletes_on_s3_costs_no_rewrite() {
    let Some(server) = Server::shared("a_writer_who_deletes_on_s3_costs_no_rewrite") else { return };
    let estate = OnS3::empty(server, "busy");
    let orders = estate.uri("orders");
    server.pylance("write", &orders, json!({"appends": 9}));
    server.pylance("index", &orders, json!({"column": "id", "type": "BTREE"}));
    let before = estate.read("orders");
    let metrics = tempfile::NamedTempFile::new().expect("a file");
    let stop = AtomicBool::new(false);
    let (swept, deleted) = std::thread::scope(|scope| {
        let running = estate.start_plainly(&["--metrics-file", metrics.path().to_str().expect("UTF-8")]);
        let deleting = scope.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::SeqCst) {
                server.pylance("delete", &orders, json!({"where": format!("id = {}", 31 * n % 270)}));
                n += 1;
            }
            n
        });
        let swept = running.end();
        stop.store(true, Ordering::SeqCst);
        (swept, deleting.join().expect("no delete failed"))
    });
    assert_eq!(swept.code(), Some(0), "{}", swept.stderr);
    let row = swept.row("orders");
    assert_eq!(row["steps"]["compact"]["outcome"], "done", "{row:#}");
    let metrics = std::fs::read_to_string(metrics.path()).expect("metrics");
    assert!(metrics.contains("squire_commit_conflicts_total{step=\"compact\"} 0"), "{metrics}");
    let after = estate.read("orders");
    let rows = |read: &Value| read["rows"].as_u64().expect("rows");
    assert_eq!((rows(&before), rows(&after)), (270, 270 - deleted), "{after:#}");
    assert!(deleted > 2, "{deleted} deletes are no crowd");
}
