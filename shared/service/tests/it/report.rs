//! Totals, outcomes, severities, exit codes.

use rstest::rstest;
use squire_service::cli::Exit;
use squire_service::config::Prices;
use squire_service::report::{
    CleanupStep, CompactStep, Dataset, FailureKind, Finding, FindingKind, FindingSubject, Incomplete, Outcome,
    OutcomeKind, ReportKind, Requests, Severity, SkipReason, StepKind, StepOutcome, StepReason, Steps, Totals,
    display_name,
};

use crate::fixture::{report, worked};

fn mixed() -> Vec<Dataset> {
    let mut refused = Dataset::new("/lake/r", Outcome::idle());
    refused.steps.cleanup = Some(CleanupStep::new(StepOutcome::Refused, Some(StepReason::Held)));
    vec![
        worked("/lake/a", StepOutcome::Done),
        worked("/lake/b", StepOutcome::Done),
        Dataset::new("/lake/c", Outcome::idle()),
        refused,
        Dataset::new("/lake/d", Outcome::skipped(SkipReason::Trashed)),
        Dataset::new("/lake/e", Outcome::skipped(SkipReason::Trashed)),
        Dataset::new("/lake/f", Outcome::skipped(SkipReason::Frozen)),
        Dataset::new("/lake/g", Outcome::failed(FailureKind::Conflict)),
    ]
}

#[test]
fn seen_is_the_sum_of_the_outcomes() {
    let r = report(ReportKind::Sweep, mixed());
    let t = &r.totals;
    assert_eq!((t.seen, t.maintained, t.planned, t.idle), (8, 2, 0, 2));
    assert_eq!(t.skipped[&SkipReason::Trashed], 2);
    assert_eq!(t.skipped[&SkipReason::Frozen], 1);
    assert_eq!(t.skipped.len(), 2);
    assert_eq!(t.failed[&FailureKind::Conflict], 1);
    assert!(t.add_up());
    let mut wrong = t.clone();
    wrong.idle += 1;
    assert!(!wrong.add_up());
}

#[test]
fn a_sweep_counts_what_was_done_and_a_plan_what_would_be() {
    let sweep = report(ReportKind::Sweep, mixed()).totals;
    assert_eq!((sweep.fragments_before, sweep.fragments_after), (80, 2));
    assert_eq!(sweep.rewritten_bytes, 16_384);
    assert_eq!((sweep.reclaimed_bytes, sweep.reclaimable_bytes), (8_192, 0));
    assert_eq!((sweep.versions_removed, sweep.index_folds), (198, 2));

    let planned = vec![worked("/lake/a", StepOutcome::Planned)];
    let plan = report(ReportKind::Plan, planned.clone()).totals;
    assert_eq!(plan.rewritten_bytes, 8_192);
    assert_eq!((plan.reclaimed_bytes, plan.reclaimable_bytes), (0, 4_096));
    assert_eq!((plan.versions_removed, plan.index_folds), (99, 1));

    // In observe mode a sweep plans and does nothing.
    let observed = report(ReportKind::Sweep, planned).totals;
    assert_eq!((observed.rewritten_bytes, observed.versions_removed, observed.index_folds), (0, 0, 0));
    assert_eq!((observed.reclaimed_bytes, observed.reclaimable_bytes), (0, 4_096));
}

#[test]
fn stranded_bytes_come_from_the_findings() {
    let mut d = Dataset::new("/lake/a", Outcome::idle());
    let stranded = |n| Finding::new(FindingKind::StrandedBytes, FindingSubject::dataset("/lake/a"), "x").with_bytes(n);
    d.findings.push(stranded(100));
    d.findings.push(Finding::new(FindingKind::OrphanFile, FindingSubject::dataset("/lake/a"), "x").with_bytes(7));
    let t = Totals::of(ReportKind::Sweep, &[d], &[stranded(20)]);
    assert_eq!(t.stranded_bytes, 120);
}

#[rstest]
#[case(&[StepOutcome::Done, StepOutcome::Failed], OutcomeKind::Failed)]
#[case(&[StepOutcome::Done, StepOutcome::Planned], OutcomeKind::Maintained)]
#[case(&[StepOutcome::Refused, StepOutcome::Planned], OutcomeKind::Planned)]
#[case(&[StepOutcome::Refused, StepOutcome::NothingToDo], OutcomeKind::Idle)]
#[case(&[StepOutcome::Skipped, StepOutcome::Refused], OutcomeKind::Idle)]
fn the_steps_decide_the_outcome(#[case] outcomes: &[StepOutcome], #[case] expected: OutcomeKind) {
    let reason = |o| (o == StepOutcome::Failed).then_some(StepReason::Transient);
    let steps = Steps {
        compact: Some(CompactStep::new(outcomes[0], reason(outcomes[0]))),
        cleanup: Some(CleanupStep::new(outcomes[1], reason(outcomes[1]))),
        ..Steps::default()
    };
    let outcome = Outcome::of_steps(&steps);
    assert_eq!(outcome.kind(), expected);
    if expected == OutcomeKind::Failed {
        assert_eq!(outcome.failure(), Some(FailureKind::Transient));
    }
}

#[test]
fn severities_are_those_of_the_contract() {
    let errors: Vec<&str> = of(Severity::Error);
    let mut expected = [
        "missing_file",
        "unreadable_manifest",
        "mixed_manifest_names",
        "hold_not_enforceable",
        "protections_vanished",
        "record_unreadable",
        "table_without_bytes",
        "location_shared",
        "policy_clash",
        "foreign_commit",
        "empty_scan",
    ];
    expected.sort_unstable();
    assert_eq!(errors, expected);
    let warnings = of(Severity::Warning);
    for kind in [
        "orphan_file",
        "index_lagging",
        "index_missing",
        "index_untrained",
        "index_unreadable",
        "index_segments_block_compaction",
        "stranded_bytes",
        "dead_column_bytes",
        "auto_cleanup_conflict",
        "trash_expired",
        "namespace_location_differs",
        "unregistered_dataset",
    ] {
        assert!(warnings.contains(&kind), "{kind}");
    }
    let info = of(Severity::Info);
    for kind in ["young_file", "clone_of", "untiered", "detached_versions", "table_declared_only"] {
        assert!(info.contains(&kind), "{kind}");
    }
    assert_eq!(errors.len() + warnings.len() + info.len(), 51);
}

fn of(severity: Severity) -> Vec<&'static str> {
    let all = FindingKind::ALL.iter().filter(|k| k.severity() == severity);
    let mut names: Vec<&str> = all.map(|k| k.as_str()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_finding_takes_the_severity_of_its_kind() {
    let f = Finding::new(FindingKind::MissingFile, FindingSubject::path("/lake/a", "data/x.lance"), "gone");
    let json = serde_json::to_value(&f).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "kind": "missing_file", "severity": "error",
            "subject": { "dataset": "/lake/a", "path": "data/x.lance" }, "detail": "gone",
        })
    );
}

#[test]
fn exit_codes_follow_the_report() {
    let idle = report(ReportKind::Plan, vec![Dataset::new("/lake/a", Outcome::idle())]);
    assert_eq!((idle.exit(false), idle.exit(true)), (Exit::Ok, Exit::Ok));

    let planned = report(ReportKind::Plan, vec![worked("/lake/a", StepOutcome::Planned)]);
    assert_eq!((planned.exit(false), planned.exit(true)), (Exit::Ok, Exit::Pending));

    let claimed = report(ReportKind::Sweep, vec![Dataset::new("/lake/a", Outcome::skipped(SkipReason::Claimed))]);
    assert_eq!(claimed.exit(true), Exit::Ok);

    let failed = report(ReportKind::Sweep, mixed());
    assert_eq!(failed.exit(false), Exit::Failed);

    let mut gap = planned.clone();
    gap.incomplete.push(Incomplete { what: "s3://b".into(), why: "403".into(), remedy: "allow it".into() });
    assert_eq!(gap.exit(true), Exit::Failed);

    let mut warned = planned.clone();
    warned.datasets[0].findings.push(Finding::new(FindingKind::IndexLagging, FindingSubject::default(), "x"));
    assert_eq!(warned.exit(true), Exit::Pending);
    warned.datasets[0].findings.push(Finding::new(FindingKind::MissingFile, FindingSubject::default(), "x"));
    assert_eq!(warned.exit(true), Exit::Failed);
}

#[test]
fn an_outcome_is_read_back_and_a_reason_of_another_kind_is_refused() {
    let outcome = Outcome::skipped(SkipReason::WriterActive).with_detail("since 10:00");
    let json = serde_json::to_value(&outcome).unwrap();
    assert_eq!(json, serde_json::json!({ "kind": "skipped", "reason": "writer_active", "detail": "since 10:00" }));
    assert_eq!(serde_json::from_value::<Outcome>(json).unwrap(), outcome);
    let wrong = serde_json::json!({ "kind": "failed", "reason": "writer_active", "detail": null });
    assert!(serde_json::from_value::<Outcome>(wrong).is_err());
}

#[test]
fn a_report_is_read_back() {
    let r = report(ReportKind::Sweep, mixed());
    let text = serde_json::to_string(&r).unwrap();
    assert_eq!(serde_json::from_str::<squire_service::report::Report>(&text).unwrap(), r);
}

#[test]
fn every_refusal_says_what_to_do_and_nothing_else_does() {
    for step in StepKind::ALL {
        for reason in StepReason::allowed(*step, StepOutcome::Refused) {
            assert!(reason.remedy().is_some(), "{reason}");
        }
        for outcome in [StepOutcome::NothingToDo, StepOutcome::Skipped, StepOutcome::Failed] {
            for reason in StepReason::allowed(*step, outcome) {
                assert!(reason.remedy().is_none(), "{reason}");
            }
        }
    }
    assert_eq!(StepReason::allowed(StepKind::Compact, StepOutcome::Refused).len(), 10);
    assert_eq!(StepReason::allowed(StepKind::OptimizeIndices, StepOutcome::Refused).len(), 5);
    assert_eq!(StepReason::allowed(StepKind::Cleanup, StepOutcome::Refused).len(), 12);
}

#[test]
fn requests_cost_what_the_prices_say_and_nothing_is_known_without_prices() {
    let r = Requests { list: 2_000, get: 10_000, head: 0, put: 500, delete: 3_000, copy: 0 };
    assert_eq!(r.cost(&Prices::default()), None);
    let prices = Prices { list_per_1000: Some(0.005), get_per_1000: Some(0.0004), ..Prices::default() };
    let cost = r.cost(&prices).unwrap();
    assert!((cost - 0.014).abs() < 1e-9, "{cost}");
    assert_eq!(r - Requests { list: 1_500, get: 20_000, ..Requests::default() }, Requests { list: 500, get: 0, ..r });
}

#[rstest]
#[case("/lake/bronze/events.lance", "bronze/events")]
#[case("file:///lake/bronze/events.lance/", "bronze/events")]
#[case("/lake", "lake")]
#[case("/lakes/x.lance", "/lakes/x")]
#[case("/lake/a b$c%20#d.lance", "a b$c #d")]
#[case("/lake/.lance", ".lance")]
#[case("/lake/deep/root/x.lance", "x")]
#[case("s3://b/t.lance", "s3://b/t")]
fn a_name_is_the_path_under_the_longest_root(#[case] uri: &str, #[case] name: &str) {
    assert_eq!(display_name(uri, &["/lake/".to_owned(), "/lake/deep/root".to_owned()]), name);
}

#[test]
fn whatever_costs_or_endangers_something_says_what_to_do() {
    for kind in FindingKind::ALL.iter().filter(|k| k.severity() > Severity::Info) {
        assert!(kind.remedy().is_some(), "{kind}");
    }
}
