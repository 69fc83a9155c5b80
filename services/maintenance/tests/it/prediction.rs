//! A plan says beforehand what the sweep after it rewrites and frees.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::common::*;

const FLAGS: [&str; 6] = ["--set", "floors.retention=1s", "--retention", "1s", "--retain-versions", "2"];

/// Plans and sweeps everything below a folder, and compares what each dataset was said to cost with what it did.
#[track_caller]
fn foretold(root: &Path, at_least: usize) {
    wait_until_older(root, Duration::from_millis(1_300));
    let root = root.to_str().expect("UTF-8");
    let with = |verb: &[&str]| report(&[verb, &[root], &FLAGS].concat());
    let (planned, swept) = (with(&["plan"]), with(&["sweep", "--yes"]));
    let mut material = 0;
    for before in planned["datasets"].as_array().expect("datasets") {
        let after = row(&swept, before["uri"].as_str().expect("a URI"));
        let number = |row: &Value, step: &str, key: &str| row["steps"][step][key].as_u64().unwrap_or(0);
        let (said, did) = (number(before, "compact", "rewritten_bytes"), number(after, "compact", "rewritten_bytes"));
        assert!(said.abs_diff(did) * 20 <= said, "{}: {said} bytes to rewrite, {did} were", before["uri"]);
        for key in ["reclaimed_bytes", "versions_removed", "files_removed"] {
            let (said, did) = (number(before, "cleanup", key), number(after, "cleanup", key));
            assert_eq!(said, did, "{}: {key}", before["uri"]);
            material += usize::from(did > 0);
        }
        material += usize::from(did > 0);
    }
    assert!(material >= at_least, "only {material} figures were compared");
    assert_eq!(planned["totals"]["reclaimable_bytes"], swept["totals"]["reclaimed_bytes"]);
}

#[test]
fn what_a_sweep_rewrites_and_frees_was_in_the_plan() {
    let name = "what_a_sweep_rewrites_and_frees_was_in_the_plan";
    let (Some(python), Some(shared)) = (python(name), shared(name)) else { return };
    let here = Here::new();
    for (tool, folder) in [("make_estate.py", "estate"), ("make_lancedb.py", "lancedb")] {
        let script = shared.join("tools").join(tool);
        let output = run_python(&python, &[script.to_str().expect("UTF-8"), &here.text(folder)]);
        assert_ok(&output, tool);
    }
    foretold(&here.path("estate"), 20);
    foretold(&here.path("lancedb"), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sweep_of_the_demo_rewrites_and_frees_was_in_the_plan() {
    let here = Here::new();
    assert_ok(&squire(&["demo", &here.text("demo")]), "demo");
    foretold(&here.path("demo"), 15);
}

/// Appends after an index, deletions, and a first round whose output the second one works on.
#[tokio::test(flavor = "multi_thread")]
async fn rounds_after_the_first_are_foretold_too() {
    let here = Here::new();
    let mut sample = here.table("lake/t", 6, 400).await;
    sample.index(squire_lake::sample::SampleIndex::BTree).await.expect("indexed");
    for i in 0..6 {
        sample.write(400, 10_000 + i * 400).await.expect("written");
    }
    sample.delete("id < 100").await.expect("deleted");
    foretold(&here.path("lake"), 1);
}
