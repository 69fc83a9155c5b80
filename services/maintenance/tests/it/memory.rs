//! Invariant `memory_admitted`: what a pass takes is at most half as much again as what it was admitted with, for tables of several
//! shapes, measured in the real process.

use squire_lake::sample::{Columns, Sample, SampleIndex};

use super::common::*;

/// Sweeps and returns the value of `squire_invariant_violations_total{invariant="memory_admitted"}`, and what was logged.
fn violations(here: &Here) -> (f64, String) {
    let file = here.text("metrics.prom");
    let output = squire(&["sweep", &here.text("lake"), "--yes", "-vv", "--metrics-file", &file]);
    assert_ok(&output, "sweep");
    let text = std::fs::read_to_string(&file).expect("the metrics");
    let series = "squire_invariant_violations_total{invariant=\"memory_admitted\"} ";
    let line = text.lines().find_map(|l| l.strip_prefix(series)).expect("the series");
    let log = stderr(&output);
    let said = log.lines().find(|l| l.contains("memory of the admitted work")).unwrap_or_else(|| panic!("{log}"));
    (line.parse().expect("a number"), said.to_string())
}

#[track_caller]
fn is_admitted(here: &Here, shape: &str) {
    let (violations, said) = violations(here);
    assert_eq!(violations, 0.0, "{shape}: {said}");
    assert!(!said.contains("measured=0 "), "{shape}: nothing was measured: {said}");
    eprintln!("{shape}: {said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_fragments_take_what_they_were_admitted_with() {
    let here = Here::new();
    here.table("lake/t", 60, 50).await;
    is_admitted(&here, "60 fragments of 50 rows");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_rows_and_their_indices_take_what_they_were_admitted_with() {
    let here = Here::new();
    std::fs::create_dir_all(here.path("lake")).expect("made");
    let mut sample = Sample::new(here.uri("lake/t"), Columns::default());
    for i in 0..4 {
        sample.write(40_000, i * 40_000).await.expect("written");
    }
    sample.index(SampleIndex::BTree).await.expect("indexed");
    sample.write(40_000, 160_000).await.expect("written");
    is_admitted(&here, "five fragments of 40,000 rows, a BTREE over four");
}
