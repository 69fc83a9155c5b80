//! Two sweeps at once on one estate: no lost work beyond a slice, nothing unexplained left.

use std::sync::Arc;

use serde_json::{Value, json};
use squire_lake::oracle::{self, Leftovers};
use squire_lake::sample::{Sample, SampleIndex};
use squire_test_support::{Server, kind};

use super::common::*;
use super::s3_estate::*;

/// What a sweep that met another one may say of a dataset.
#[track_caller]
fn is_peaceful(report: &Value) {
    for row in report["datasets"].as_array().expect("datasets") {
        let outcome = &row["outcome"];
        let reason = outcome["reason"].as_str().unwrap_or_default();
        let fine = match outcome["kind"].as_str() {
            Some("maintained" | "idle") => true,
            Some("skipped") => reason == "claimed" || reason == "plan_stale",
            _ => false,
        };
        assert!(fine, "{row:#}");
    }
}

#[test]
fn two_sweeps_at_once_on_s3_share_the_work() {
    let Some(server) = Server::shared("two_sweeps_at_once_on_s3_share_the_work") else { return };
    let pristine = Arc::new(Pristine::three(server));
    let copies = Copies::of(server, pristine.clone(), "two");
    for round in 0..3 {
        let estate = OnS3::at(server, copies.take());
        let running = [estate.start(&[]), estate.start(&[])];
        for ended in running.map(Running::end) {
            assert_eq!(ended.code(), Some(0), "round {round}: {}\n{:#}", ended.stderr, ended.report);
            is_peaceful(&ended.report);
        }
        // One data file per dataset is the work; whoever loses a race loses one more.
        let rewrites = estate.proxy.writes().iter().filter(|w| kind(w) == "PUT data").count();
        assert!((3..=6).contains(&rewrites), "round {round}: {rewrites} data files were written");
        let when = format!("round {round}");
        estate.has_its_rows(&pristine, &when);
        estate.is_explained(Leftovers::None, &when);
        estate.converges(&pristine, &when);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sweeps_at_once_on_disk_share_the_work() {
    for round in 0..3 {
        let here = Here::new();
        for name in ["a", "b", "c"] {
            let mut sample = here.table(&format!("lake/{name}"), 4, 30).await;
            sample.index(SampleIndex::BTree).await.expect("indexed");
            sample.write(30, 1_000).await.expect("written");
        }
        wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
        let (one, two) =
            tokio::join!(async { tokio::task::block_in_place(|| short_retention("sweep", &here, &["--yes"])) }, {
                let root = here.text("lake");
                tokio::task::spawn_blocking(move || {
                    let mut args: Vec<String> =
                        ["sweep", &root, "--yes", "--retain-versions", "2"].map(String::from).to_vec();
                    args.extend(one_second());
                    report(&args)
                })
            });
        for report in [&one, &two.expect("it ran")] {
            is_peaceful(report);
        }
        for name in ["a", "b", "c"] {
            let ids = Sample::ids(&lake(), &here.uri(&format!("lake/{name}")), None).await.expect("it reads");
            assert_eq!(ids.len(), 150, "round {round}");
        }
        let found = oracle::check(&lake(), &here.uri("lake"), Leftovers::None).await;
        assert!(found.is_empty(), "round {round}: {found:#?}");
        report(&["sweep", &here.text("lake"), "--yes"]);
        let last = report(&["sweep", &here.text("lake"), "--yes"]);
        assert_eq!(last["totals"]["idle"], json!(3), "{last:#}");
    }
}
