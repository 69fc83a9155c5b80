//! Invariant `memory_admitted`: what a pass takes is at most half as much again as what it was admitted with, for tables of several
//! shapes, measured in the real process.

use squire_lake::sample::{Columns, Sample, SampleIndex};
use squire_maintenance::{memory, plan};
use squire_registry::Policy;

use super::common::*;
use super::layouts::{fragment, governance, index, layout, rules, settings};

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

async fn wide(here: &Here, blobs: bool) {
    std::fs::create_dir_all(here.path("lake")).expect("made");
    let mut sample = Sample::new(here.uri("lake/t"), Columns { vector: 0, page: 2 << 20 });
    if blobs {
        sample = sample.with_blobs();
    }
    for i in 0..4 {
        sample.write(16, i * 16).await.expect("written");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_two_megabytes_take_what_they_were_admitted_with() {
    for blobs in [false, true] {
        let here = Here::new();
        wide(&here, blobs).await;
        is_admitted(&here, if blobs { "64 blobs of 2 MB" } else { "64 rows of 2 MB" });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_and_their_index_take_what_they_were_admitted_with() {
    let here = Here::new();
    std::fs::create_dir_all(here.path("lake")).expect("made");
    let mut sample = Sample::new(here.uri("lake/t"), Columns { vector: 256, page: 0 });
    sample.write(20_000, 0).await.expect("written");
    sample.index(SampleIndex::Vector).await.expect("indexed");
    for i in 0..4 {
        sample.write(100, 20_000 + i * 100).await.expect("written");
    }
    is_admitted(&here, "20,000 vectors of 1 KiB and four appends");
}

fn estimate(layout: &plan::Layout) -> u64 {
    let (governance, settings) = (governance(&Policy::default()), settings());
    let target = plan::target::decide(layout, &governance, &settings);
    let rounds = plan::work(layout, &rules(&governance, &settings), &target).rounds;
    assert!(!rounds.is_empty(), "something is planned");
    memory::of_rounds(layout, &rounds)
}

/// A map of a hundred million addresses would take 5.6 GB; the compact remap is estimated as it is: sets of addresses.
#[test]
fn a_remap_of_a_hundred_million_rows_is_admitted_into_the_default_budget() {
    let fragments: Vec<_> = (0..400).map(|i| fragment(i, 250_000, 0, 20_000_000)).collect();
    let ids: Vec<u32> = (0..400).collect();
    let indexed = layout(fragments.clone(), vec![index("id_idx", "BTREE", &[&ids], &fragments)]);
    let mib = estimate(&indexed) >> 20;
    assert!((400..1_024).contains(&mib), "{mib} MiB");
    // Just below the bound of the direct map its 56 bytes a row are counted.
    let fragments: Vec<_> = (0..40).map(|i| fragment(i, 245_000, 0, 20_000_000)).collect();
    let ids: Vec<u32> = (0..40).collect();
    let direct = layout(fragments.clone(), vec![index("id_idx", "BTREE", &[&ids], &fragments)]);
    let plain = layout(fragments, Vec::new());
    assert_eq!(estimate(&direct) - estimate(&plain), 9_800_000 * 56);
}

/// Payloads beside the data files are loaded with their rows.
#[test]
fn payloads_of_blobs_count_as_their_rows_do() {
    let narrow = layout((0..8).map(|i| fragment(i, 100, 0, 200_000_000)).collect(), Vec::new());
    let beside = plan::Layout { payload: 100 << 20, ..narrow.clone() };
    assert!(estimate(&beside) > estimate(&narrow) + (256 << 20));
}
