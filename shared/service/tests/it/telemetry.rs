//! Metrics.

use std::collections::BTreeSet;

use metrics::{counter, gauge, histogram};
use squire_service::config::Mode;
use squire_service::report::{FindingKind, Invariant, Outcome, ReportKind, Requests, SkipReason, StepOutcome};
use squire_service::telemetry::{Metrics, StoreMetrics, peak_rss_bytes};

use crate::fixture::{report, worked};

fn value(exposition: &str, series: &str) -> Option<f64> {
    let line = exposition.lines().find(|l| l.rsplit_once(' ').is_some_and(|(name, _)| name == series))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn series_with_known_labels_exist_at_zero_from_the_start() {
    let text = Metrics::new().exposition();
    for series in [
        "squire_passes_total{outcome=\"maintained\",reason=\"\"}",
        "squire_passes_total{outcome=\"skipped\",reason=\"plan_stale\"}",
        "squire_passes_total{outcome=\"failed\",reason=\"bug\"}",
        "squire_steps_total{outcome=\"refused\",step=\"cleanup\"}",
        "squire_invariant_violations_total{invariant=\"registry_lost_deletes_nothing\"}",
        "squire_commit_conflicts_total{step=\"compact\"}",
        "squire_index_folds_total{outcome=\"done\",type=\"btree\"}",
        "squire_rewritten_bytes_total",
        "squire_wasted_bytes_total",
        "squire_reclaimed_bytes_total{by=\"cleanup\"}",
        "squire_claims_held",
        "squire_step_duration_seconds_count{step=\"compact\"}",
        "squire_sweep_duration_seconds_count",
    ] {
        assert_eq!(value(&text, series), Some(0.0), "{series}");
    }
    assert_eq!(value(&text, "squire_build_info{lance=\"14.0.2\",revision=\"unknown\",version=\"0.1.0\"}"), Some(1.0));
    let invariants = text.lines().filter(|l| l.starts_with("squire_invariant_violations_total{")).count();
    assert_eq!(invariants, 16);
}

#[test]
fn every_metric_of_the_contract_is_declared() {
    let m = Metrics::new();
    m.show_fleet();
    m.http_requests.with_label_values(&["b", "get", "200"]).inc();
    m.dead_letters.with_label_values(&["work", "attempts"]).inc();
    let text = m.exposition();
    let names = "passes_total steps_total fragments_removed_total fragments_added_total rewritten_bytes_total \
        wasted_bytes_total reclaimed_bytes_total versions_removed_total delete_failures_total index_folds_total \
        index_builds_total messages_total dead_letters_total commit_conflicts_total verify_failures_total \
        claims_lost_total invariant_violations_total object_store_http_requests_total step_duration_seconds \
        sweep_duration_seconds index_build_duration_seconds registry_snapshot_duration_seconds build_info mode \
        memory_limit_bytes claims_held datasets due_datasets oldest_due_timestamp_seconds \
        last_success_timestamp_seconds unindexed_rows findings stored_bytes held_bytes blocks trash_overdue \
        queue_messages dead_letters registry_unreadable_records budget_remaining_bytes task_interval_seconds";
    for name in names.split_whitespace() {
        assert!(text.contains(&format!("# TYPE squire_{name} ")), "{name}");
    }
    assert_eq!(text.matches("# TYPE squire_").count(), names.split_whitespace().count());
}

/// Name, type and help as the exposition has them; the labels' names where a series stands there.
fn declared(text: &str) -> Vec<(&str, &str, &str, BTreeSet<&str>)> {
    let described = text.lines().filter_map(|l| l.strip_prefix("# HELP squire_")?.split_once(' '));
    let families = described.map(|(name, help)| {
        let kind = text.lines().find_map(|l| l.strip_prefix("# TYPE squire_")?.strip_prefix(name)?.strip_prefix(' '));
        let series = |l: &&str| {
            l.strip_prefix("squire_")
                .and_then(|l| l.strip_prefix(name))
                .is_some_and(|l| ["{", " ", "_count"].iter().any(|next| l.starts_with(next)))
        };
        let line = text.lines().find(series).unwrap_or_else(|| panic!("no series of {name}"));
        let labels = line.split(['{', ',']).skip(1).filter_map(|l| Some(l.split_once('=')?.0));
        (name, kind.expect("a type"), help, labels.collect())
    });
    families.collect()
}

#[test]
fn every_metric_and_every_alert_is_in_the_page_of_metrics() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let page = std::fs::read_to_string(format!("{root}/docs/metrics.md")).unwrap();
    let m = Metrics::new();
    m.show_fleet();
    m.record(&report(ReportKind::Sweep, vec![worked("/lake/a", StepOutcome::Done)]));
    m.http_requests.with_label_values(&["b", "get", "200"]).inc();
    let text = m.exposition();
    let found = declared(&text);
    for (name, kind, help, labels) in &found {
        let row = page.lines().find(|l| l.starts_with(&format!("| `squire_{name}` | ")));
        let cells: Vec<&str> = row.unwrap_or_else(|| panic!("{name} has no row")).split(" | ").collect();
        let told: BTreeSet<&str> = cells[1].split(['`', ',', ' ']).filter(|l| !l.is_empty()).collect();
        assert_eq!((cells[2], cells[3], &told), (*kind, *help, labels), "{name}");
    }
    assert_eq!(page.matches("\n| `squire_").count(), found.len(), "rows of what is no metric");
    for file in std::fs::read_dir(format!("{root}/chart/alerts")).unwrap() {
        let Ok(rules) = std::fs::read_to_string(file.unwrap().path()) else { continue };
        for alert in rules.lines().filter_map(|l| l.trim().strip_prefix("- alert: ")) {
            assert!(page.contains(&format!("[{alert}](runbook.md#{})", alert.to_lowercase())), "{alert}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_is_measured() {
    let text = Metrics::new().exposition();
    assert!(value(&text, "process_resident_memory_bytes").unwrap() > 1_000_000.0, "{text}");
    assert!(peak_rss_bytes().unwrap() > 1_000_000);
}

#[test]
fn fleet_gauges_are_exported_only_while_shown() {
    let m = Metrics::new();
    assert!(!m.exposition().contains("squire_datasets"));
    m.show_fleet();
    assert!(m.exposition().contains("squire_datasets"));
    m.drop_fleet();
    assert!(!m.exposition().contains("squire_datasets"));
}

#[test]
fn a_report_is_counted_and_the_fleet_gauges_sum_to_seen() {
    let m = Metrics::new();
    m.show_fleet();
    let trashed = squire_service::report::Dataset::new("/lake/t", Outcome::skipped(SkipReason::Trashed));
    let r = report(ReportKind::Sweep, vec![worked("/lake/a", StepOutcome::Done), trashed]);
    m.record(&r);
    m.record(&r);
    let text = m.exposition();
    assert_eq!(value(&text, "squire_passes_total{outcome=\"maintained\",reason=\"\"}"), Some(2.0));
    assert_eq!(value(&text, "squire_rewritten_bytes_total"), Some(16_384.0));
    assert_eq!(value(&text, "squire_reclaimed_bytes_total{by=\"cleanup\"}"), Some(8_192.0));
    assert_eq!(value(&text, "squire_steps_total{outcome=\"done\",step=\"compact\"}"), Some(2.0));
    assert_eq!(value(&text, "squire_datasets{outcome=\"skipped\",reason=\"trashed\"}"), Some(1.0));
    let sum: f64 = text
        .lines()
        .filter(|l| l.starts_with("squire_datasets{"))
        .map(|l| l.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
        .sum();
    assert_eq!(sum, 2.0);
    assert_eq!(value(&text, "squire_invariant_violations_total{invariant=\"every_dataset_counted\"}"), Some(0.0));
}

#[test]
fn a_plan_counts_no_work() {
    let m = Metrics::new();
    m.record(&report(ReportKind::Plan, vec![worked("/lake/a", StepOutcome::Planned)]));
    let text = m.exposition();
    assert_eq!(value(&text, "squire_rewritten_bytes_total"), Some(0.0));
    assert_eq!(value(&text, "squire_versions_removed_total"), Some(0.0));
    assert_eq!(value(&text, "squire_steps_total{outcome=\"planned\",step=\"compact\"}"), Some(1.0));
}

#[test]
fn totals_that_do_not_add_up_are_a_counted_violation() {
    let m = Metrics::new();
    let mut r = report(ReportKind::Sweep, vec![worked("/lake/a", StepOutcome::Done)]);
    r.totals.seen = 2;
    m.record(&r);
    let name = Invariant::EveryDatasetCounted.as_str();
    assert_eq!(
        value(&m.exposition(), &format!("squire_invariant_violations_total{{invariant=\"{name}\"}}")),
        Some(1.0)
    );
}

#[test]
fn a_finding_that_is_gone_is_back_at_zero() {
    use squire_service::report::{Finding, FindingSubject};
    let m = Metrics::new();
    m.show_fleet();
    let mut r = report(ReportKind::Reconcile, vec![]);
    r.findings.push(Finding::new(FindingKind::OrphanFile, FindingSubject::default(), "x"));
    m.record(&r);
    let series = "squire_findings{kind=\"orphan_file\",severity=\"warning\"}";
    assert_eq!(value(&m.exposition(), series), Some(1.0));
    r.findings.clear();
    m.record(&r);
    assert_eq!(value(&m.exposition(), series), Some(0.0));
}

#[test]
fn one_mode_is_in_force() {
    let m = Metrics::new();
    m.set_mode(Mode::Compact);
    m.set_mode(Mode::Observe);
    let text = m.exposition();
    assert_eq!(value(&text, "squire_mode{mode=\"observe\"}"), Some(1.0));
    assert_eq!(value(&text, "squire_mode{mode=\"compact\"}"), Some(0.0));
}

#[test]
fn requests_of_lance_are_summed_by_kind_and_exported() {
    let store = StoreMetrics::new();
    metrics::with_local_recorder(&store, || {
        let name = "lance_object_store_requests_total";
        for (operation, n) in [
            ("list", 1),
            ("list_paginated", 2),
            ("get", 4),
            ("head", 8),
            ("put", 16),
            ("put_part", 32),
            ("create_multipart", 64),
            ("complete_multipart", 128),
            ("delete", 256),
            ("abort_multipart", 512),
            ("copy", 1024),
            ("rename", 2048),
            ("new_one", 4096),
        ] {
            counter!(name, "operation" => operation, "base" => "s3$b").increment(n);
        }
        counter!(name, "operation" => "get", "base" => "file").increment(1);
        counter!("lance_object_store_errors_total", "operation" => "get").increment(9);
        gauge!("lance_object_store_in_flight_requests", "operation" => "get").increment(2.0);
        gauge!("lance_object_store_in_flight_requests", "operation" => "get").decrement(1.0);
        let duration = histogram!("lance_object_store_request_duration_seconds", "operation" => "get");
        duration.record(0.02);
        duration.record(400.0);
    });
    let expected = Requests { list: 3, get: 5, head: 8, put: 240, delete: 2816, copy: 3072 };
    assert_eq!(store.requests(), expected);

    let m = Metrics::new();
    metrics::with_local_recorder(m.store(), || {
        counter!("lance_object_store_requests_total", "operation" => "get", "base" => "s3$b").increment(3);
        histogram!("lance_object_store_request_duration_seconds", "operation" => "get").record(0.02);
        gauge!("lance_object_store_in_flight_requests", "operation" => "get").set(1.0);
    });
    let text = m.exposition();
    assert_eq!(value(&text, "lance_object_store_requests_total{base=\"s3$b\",operation=\"get\"}"), Some(3.0));
    assert_eq!(
        value(&text, "lance_object_store_request_duration_seconds_bucket{operation=\"get\",le=\"0.025\"}"),
        Some(1.0)
    );
    assert_eq!(
        value(&text, "lance_object_store_request_duration_seconds_bucket{operation=\"get\",le=\"0.01\"}"),
        Some(0.0)
    );
    assert_eq!(
        value(&text, "lance_object_store_request_duration_seconds_bucket{operation=\"get\",le=\"+Inf\"}"),
        Some(1.0)
    );
    assert_eq!(value(&text, "lance_object_store_in_flight_requests{operation=\"get\"}"), Some(1.0));
}

#[test]
fn a_metrics_file_is_written_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("squire.prom");
    std::fs::write(&path, "old").unwrap();
    Metrics::new().write_file(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("squire_build_info{"), "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn folds_are_counted_by_the_type_of_their_index() {
    use squire_service::telemetry::index_type;
    let names = [
        "BTREE",
        "IVF_PQ",
        "IVF_HNSW_SQ",
        "VECTOR",
        "INVERTED",
        "LABELLIST",
        "ZONEMAP",
        "BLOOMFILTER",
        "__lance_frag_reuse",
    ];
    let types: Vec<&str> = names.into_iter().map(|n| index_type(n).unwrap_or("none")).collect();
    let wanted = ["btree", "vector", "vector", "vector", "inverted", "label_list", "zone_map", "bloom_filter", "none"];
    assert_eq!(types, wanted);
    let m = Metrics::new();
    let done = worked("/lake/a", StepOutcome::Done);
    let folded = done.steps.optimize_indices.as_ref().map_or(0, |s| s.indices.len());
    assert!(folded > 0, "the fixture folds");
    m.record(&report(ReportKind::Sweep, vec![done]));
    let sum = |outcome: &str| -> f64 {
        let text = m.exposition();
        let lines = text.lines().filter(|l| l.starts_with("squire_index_folds_total{") && l.contains(outcome));
        lines.map(|l| l.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    };
    assert_eq!((sum("\"done\""), sum("\"failed\"")), (folded as f64, 0.0));
}
