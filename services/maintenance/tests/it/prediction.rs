//! A plan says beforehand what the sweep after it rewrites and frees. Every sweep of `common::report` is compared with its plan; here
//! are the estates on which much is rewritten and removed, and the requests.

use std::path::Path;
use std::time::Duration;

use squire_test_support::Server;

use super::common::*;
use super::s3_estate::{AGE, Ended, OnS3, Pristine};

const FLAGS: [&str; 6] = ["--set", "floors.retention=1s", "--retention", "1s", "--retain-versions", "2"];

/// Plans and sweeps everything below a folder, and compares what each dataset was said to cost with what it did.
#[track_caller]
fn foretold(root: &Path, at_least: usize) {
    wait_until_older(root, Duration::from_millis(1_300));
    let root = root.to_str().expect("UTF-8");
    let with = |verb: &[&str]| report(&[verb, &[root], &FLAGS].concat());
    let (planned, swept) = (with(&["plan"]), with(&["sweep", "--yes"]));
    let material = assert_foretold(&planned, &swept);
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

/// Every layout that pylance can write: blobs, stable row ids, bases, branches, V1 names.
#[test]
fn what_a_sweep_of_every_layout_rewrites_and_frees_was_in_the_plan() {
    let Some(python) = python("what_a_sweep_of_every_layout_rewrites_and_frees_was_in_the_plan") else { return };
    let here = Here::new();
    assert_ok(&run_python(&python, &[&check_py().replace("check.py", "layouts.py"), &here.text("lake")]), "layouts.py");
    foretold(&here.path("lake"), 5);
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

/// The kinds of requests that a report counts.
const REQUESTS: [&str; 6] = ["list", "get", "head", "put", "delete", "copy"];

/// How far the requests of an apply may lie from the plan's.
const FACTOR: u64 = 2;

/// On S3, where they are paid for: each step of three datasets by itself, and all of them at once.
#[test]
fn the_requests_of_an_apply_are_foretold_within_a_factor_of_two() {
    let Some(server) = Server::shared("the_requests_of_an_apply_are_foretold_within_a_factor_of_two") else { return };
    let pristine = Pristine::three(server);
    let one = |name, steps| vec!["--dataset", name, "--steps", steps];
    let cases = [
        (one("plain", "compact"), 20..40),
        (one("orders", "compact"), 40..80),
        (one("notes", "optimize_indices"), 35..70),
        (one("plain", "cleanup"), 10..40),
        (Vec::new(), 150..400),
    ];
    for (more, usual) in cases {
        let estate = OnS3::copy(server, &pristine);
        estate.govern("orders");
        std::thread::sleep(AGE);
        estate.proxy.pass();
        let (planned, swept) = (estate.plan(&more), estate.start(&more).end());
        assert_eq!((planned.code(), swept.code()), (Some(0), Some(0)), "{more:?}: {}", swept.stderr);
        assert!(assert_foretold(&planned.report, &swept.report) > 0 || more.contains(&"optimize_indices"), "{more:?}");
        let count = |of: &Ended, key: &str, kind: &str| of.report["totals"][key][kind].as_u64().unwrap_or(0);
        let mut lines = Vec::new();
        let (mut all_said, mut all_did) = (0, 0);
        for kind in REQUESTS {
            let said = count(&planned, "planned_requests", kind);
            // A sweep plans first, by the same requests.
            let did = count(&swept, "requests", kind) - count(&planned, "requests", kind);
            lines.push(format!("{kind}: {said} foretold, {did} made"));
            (all_said, all_did) = (all_said + said, all_did + did);
        }
        assert!(usual.contains(&all_did), "{more:?}: {lines:?}");
        assert!(all_said <= FACTOR * all_did && all_did <= FACTOR * all_said, "{more:?}: {lines:?}");
    }
}
