//! Ctrl-C finishes the commit in flight.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use squire_lake::sample::Sample;

use super::common::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_leaves_every_dataset_whole_and_the_next_sweep_converges() {
    let here = Here::new();
    for i in 0..12 {
        here.table(&format!("lake/t{i:02}"), 12, 50).await;
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_squire-maintenance"))
        .current_dir(here.path(""))
        .args(["sweep", &here.text("lake"), "--yes", "--set", "limits.concurrency=1", "-o", "json"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it ran");
    // As soon as the first commit has landed.
    let deadline = Instant::now() + Duration::from_secs(60);
    let landed =
        || (0..12).any(|i| here.path(&format!("lake/t{i:02}/_versions")).read_dir().is_ok_and(|d| d.count() > 14));
    while !landed() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    let status = child.wait().expect("it ended");
    assert!(matches!(status.code(), Some(130 | 0)), "{status:?}");
    for i in 0..12 {
        let ids = Sample::ids(&lake(), &here.uri(&format!("lake/t{i:02}")), None).await.expect("it reads");
        assert_eq!(ids.len(), 600);
    }
    report(&["sweep", &here.text("lake"), "--yes"]);
    let last = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(last["totals"]["idle"], 12, "{last:#}");
    for row in last["datasets"].as_array().expect("datasets") {
        assert_eq!(row["before"]["fragments"], 1);
    }
    here.oracle("lake");
}
