//! `budget.rewrite_per_day`: what the clock starts fits into the fleet's day; a sweep by hand is free, and counted.

use serde_json::{Value, json};

use super::common::*;

/// Two tables that are due, the first with the greater gain.
async fn two() -> Here {
    let here = Here::new();
    here.table("lake/a", 12, 10).await;
    here.table("lake/b", 10, 10).await;
    here
}

fn run(here: &Here, verb: &[&str], per_day: &str) -> Value {
    let root = here.text("lake");
    let budget = format!("budget.rewrite_per_day={per_day}");
    let mut args = vec![verb[0], &root, "--set", "policy.max_stranded=100", "--set", "policy.interval=0s"];
    args.extend(&verb[1..]);
    if !per_day.is_empty() {
        args.extend(["--set", &budget]);
    }
    report(&args)
}

fn planned_bytes(report: &Value, name: &str) -> u64 {
    let row = row(report, name);
    assert_eq!(row["outcome"]["kind"], "planned", "{row:#}");
    row["steps"]["compact"]["rewritten_bytes"].as_u64().expect("bytes")
}

#[track_caller]
fn assert_exhausted(report: &Value, name: &str, says: &str) {
    let outcome = &row(report, name)["outcome"];
    assert_eq!((&outcome["kind"], &outcome["reason"]), (&json!("skipped"), &json!("budget_exhausted")), "{outcome}");
    assert!(outcome["detail"].as_str().expect("a detail").contains(says), "{outcome}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_starts_what_fits_into_the_day_and_a_sweep_by_hand_all_of_it() {
    let here = two().await;
    let free = run(&here, &["plan", "--due"], "");
    let (a, b) = (planned_bytes(&free, "lake/a"), planned_bytes(&free, "lake/b"));
    // One of the two fits, and not both.
    let per_day = format!("{}B", a + b / 2);
    let plan = run(&here, &["plan", "--due"], &per_day);
    assert_eq!(row(&plan, "lake/a")["outcome"]["kind"], "planned", "{plan:#}");
    assert_exhausted(&plan, "lake/b", "it fits at ");
    let swept = run(&here, &["sweep", "--due", "--yes"], &per_day);
    assert_eq!(row(&swept, "lake/a")["outcome"]["kind"], "maintained", "{swept:#}");
    assert_exhausted(&swept, "lake/b", "it fits at ");
    assert_eq!(swept["totals"]["seen"], 2);
    // Another run of the same day finds no more; the next day it fits.
    assert_exhausted(&run(&here, &["sweep", "--due", "--yes"], &per_day), "lake/b", "it fits at ");
    let tomorrow = (chrono::Utc::now() + chrono::Duration::days(1)).format("%Y-%m-%dT12:00:00Z").to_string();
    let plan = run(&here, &["plan", "--due", "--at", &tomorrow], &per_day);
    assert_eq!(row(&plan, "lake/b")["outcome"]["kind"], "planned", "{plan:#}");
    let by_hand = run(&here, &["sweep", "--yes"], &per_day);
    assert_eq!(row(&by_hand, "lake/b")["outcome"]["kind"], "maintained", "{by_hand:#}");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_by_hand_is_counted_and_what_exceeds_a_whole_day_is_said_to_never_fit() {
    let here = two().await;
    let free = run(&here, &["plan", "--due"], "");
    let (a, b) = (planned_bytes(&free, "lake/a"), planned_bytes(&free, "lake/b"));
    let per_day = format!("{}B", a.max(b));
    let args = ["sweep", "--yes", "--dataset", &here.uri("lake/a")];
    assert_eq!(row(&run(&here, &args, &per_day), "lake/a")["outcome"]["kind"], "maintained");
    assert_exhausted(&run(&here, &["sweep", "--due", "--yes"], &per_day), "lake/b", "it fits at ");
    assert_exhausted(&run(&here, &["plan", "--due"], "1B"), "lake/b", "never");
    here.oracle("lake");
}
