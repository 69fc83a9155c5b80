//! Text, Markdown, HTML, JSON lines.

use chrono::TimeDelta;
use proptest::prelude::*;
use squire_service::cli::OutputFormat;
use squire_service::report::{
    Dataset, DisplayNames, FailureKind, Finding, FindingKind, FindingSubject, HoldReason, Incomplete, Outcome, Report,
    ReportKind, Retained, SkipReason, StepOutcome, StepReason, WIDTH,
};
use unicode_width::UnicodeWidthStr;

use crate::fixture::{report, time, worked};

fn text(r: &Report) -> String {
    r.render(OutputFormat::Text).unwrap()
}

fn messy() -> Report {
    let mut held = worked("/lake/gold/held.lance", StepOutcome::Planned);
    let cleanup = held.steps.cleanup.as_mut().unwrap();
    cleanup.outcome = StepOutcome::Refused;
    cleanup.reason = Some(StepReason::Held);
    let replaced = time("2026-02-20T00:00:00Z");
    for (version, by) in [(3, HoldReason::Tag), (4, HoldReason::Retention), (5, HoldReason::Retention)] {
        cleanup.retained.push(Retained {
            version,
            replaced_at: Some(replaced),
            by,
            until: (by == HoldReason::Retention).then(|| replaced + TimeDelta::days(7)),
            bytes: 1 << 20,
        });
    }
    let mut datasets = vec![
        worked("/lake/bronze/events.lance", StepOutcome::Planned),
        held,
        Dataset::new("/lake/broken.lance", Outcome::failed(FailureKind::Damaged)),
        Dataset::new("/lake/old.lance", Outcome::skipped(SkipReason::Trashed)),
    ];
    for n in 0..12 {
        datasets.push(Dataset::new(format!("/lake/idle/{n}.lance"), Outcome::idle()));
    }
    datasets[2].findings.push(
        Finding::new(
            FindingKind::MissingFile,
            FindingSubject::path("/lake/broken.lance", "data/1.lance"),
            "named by HEAD and not there",
        )
        .with_fix("restore it from a copy"),
    );
    let mut r = report(ReportKind::Plan, datasets);
    r.incomplete.push(Incomplete {
        what: "s3://far".into(),
        why: "access denied".into(),
        remedy: "allow s3:ListBucket".into(),
    });
    r
}

#[test]
fn the_text_report_shows_ten_datasets_and_one_line_for_the_rest() {
    insta::assert_snapshot!(text(&messy()));
}

#[test]
fn the_markdown_report_says_the_same() {
    insta::assert_snapshot!(messy().render(OutputFormat::Markdown).unwrap());
}

#[test]
fn failures_come_first_then_the_largest_gains() {
    let mut small = worked("/lake/small.lance", StepOutcome::Done);
    small.steps.cleanup.as_mut().unwrap().reclaimed_bytes = 1;
    let datasets = vec![
        Dataset::new("/lake/a-idle.lance", Outcome::idle()),
        small,
        worked("/lake/large.lance", StepOutcome::Done),
        Dataset::new("/lake/failed.lance", Outcome::failed(FailureKind::Open)),
    ];
    let out = text(&report(ReportKind::Sweep, datasets));
    let at = |name: &str| out.find(&format!("\n{name} ")).unwrap_or_else(|| panic!("{name} in {out}"));
    assert!(at("failed") < at("large") && at("large") < at("small") && at("small") < at("a-idle"), "{out}");
}

#[test]
fn a_long_name_is_cut_in_the_middle_and_hides_no_column() {
    let name = format!("/lake/start-{}-end.lance", "x".repeat(200));
    let out = text(&report(ReportKind::Plan, vec![worked(&name, StepOutcome::Planned)]));
    let row = out.lines().find(|l| l.starts_with("start-")).unwrap_or_else(|| panic!("{out}"));
    for part in ["…", "-end ", "40 → 1", "500 → 0", "100 → 3", "3.0 MiB", "4.0 KiB", "compact, fold 1"] {
        assert!(row.contains(part), "{part} in {row}");
    }
}

#[test]
fn an_empty_report_is_a_report() {
    let out = text(&report(ReportKind::Sweep, vec![]));
    assert!(out.contains("0 datasets") && out.contains("no datasets"), "{out}");
}

#[test]
fn control_and_direction_characters_of_a_name_do_nothing() {
    let name = "/lake/a\u{1b}[31mred\n\u{202e}evil.lance";
    let r = report(ReportKind::Plan, vec![worked(name, StepOutcome::Planned)]);
    for format in [OutputFormat::Text, OutputFormat::Markdown, OutputFormat::Html] {
        let out = r.render(format).unwrap();
        assert!(!out.contains('\u{1b}') && !out.contains('\u{202e}'), "{out:?}");
        assert!(!out.contains("red\n"), "{out:?}");
    }
}

#[test]
fn html_in_a_name_stays_a_name() {
    let name = "/lake/<script>alert('x')</script>&\".lance";
    let mut r = report(ReportKind::Plan, vec![worked(name, StepOutcome::Planned)]);
    r.command = "<b>".into();
    r.findings.push(
        Finding::new(FindingKind::OrphanFile, FindingSubject::dataset(name), "<img src=x onerror=y>")
            .with_fix("<i>fix</i>"),
    );
    let html = r.render(OutputFormat::Html).unwrap();
    for raw in ["<script>alert", "<img", "<i>fix", "<b>"] {
        assert!(!html.contains(raw), "{raw}");
    }
    assert!(html.contains("&lt;script&gt;"), "{html}");
    assert!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"));
    // Self-contained: nothing is loaded from anywhere.
    for loads in ["src=\"", "href=\"", "@import", "url("] {
        assert!(!html.contains(loads), "{loads}");
    }
    let markdown = r.render(OutputFormat::Markdown).unwrap();
    assert!(!markdown.contains("<script>") && !markdown.contains("<img"), "{markdown}");
}

#[test]
fn json_lines_hold_one_record_each_and_the_report_last() {
    let out = messy().render(OutputFormat::Jsonl).unwrap();
    let lines: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 18);
    assert_eq!(lines.iter().filter(|l| l["record"] == "dataset").count(), 16);
    assert_eq!(lines[16]["record"], "incomplete");
    let last = &lines[17];
    assert_eq!(last["record"], "report");
    assert_eq!(last["totals"]["seen"], 16);
    assert!(last.get("datasets").is_none());
}

#[test]
fn datasets_that_would_share_a_name_are_shown_by_uri() {
    let roots = ["/a".to_owned(), "/b".to_owned()];
    let names = DisplayNames::new(["/a/t.lance", "/b/t.lance", "/a/u.lance"], &roots);
    assert_eq!(names.get("/a/t.lance"), "/a/t.lance");
    assert_eq!(names.get("/b/t.lance"), "/b/t.lance");
    assert_eq!(names.get("/a/u.lance"), "u");
}

proptest! {
    #[test]
    fn no_line_is_wider_than_a_hundred_columns(
        names in prop::collection::vec("(\\PC|[日本語🦀👨‍👩‍👧e\u{301}\u{FE0F}]){0,220}", 1..14),
        detail in "\\PC{0,400}",
        fragments in any::<u32>(),
        bytes in any::<u64>(),
    ) {
        let mut datasets = Vec::new();
        for (n, name) in names.iter().enumerate() {
            let mut d = worked(&format!("/lake/{n}/{name}"), StepOutcome::Planned);
            d.tier = Some(name.clone());
            d.before.as_mut().unwrap().fragments = u64::from(fragments);
            d.before.as_mut().unwrap().versions = u64::from(fragments);
            d.before.as_mut().unwrap().bytes = bytes;
            let cleanup = d.steps.cleanup.as_mut().unwrap();
            cleanup.outcome = StepOutcome::Refused;
            cleanup.reason = Some(StepReason::ReferencesIncomplete);
            cleanup.reclaimed_bytes = bytes / 16;
            cleanup.detail = Some(detail.clone());
            d.findings.push(Finding::new(FindingKind::MissingFile, FindingSubject::path(d.uri.clone(), name.clone()), detail.clone()));
            datasets.push(d);
        }
        let mut r = report(ReportKind::Plan, datasets);
        r.incomplete.push(Incomplete { what: names[0].clone(), why: detail.clone(), remedy: detail.clone() });
        r.estate.name = names[0].clone();
        for line in text(&r).lines() {
            prop_assert!(line.width() <= WIDTH, "{} columns: {line:?}", line.width());
        }
    }
}
