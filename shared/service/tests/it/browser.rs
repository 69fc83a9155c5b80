//! The page in a real headless Chromium: readable at three widths, its filter works, nothing is said on the console and
//! nothing is asked of anybody else.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use squire_service::cli::OutputFormat;
use squire_service::config::Prices;
use squire_service::report::{
    Dataset, FailureKind, Finding, FindingKind, FindingSubject, Incomplete, Outcome, Report, ReportKind, Requests,
    StepOutcome, StoredBytes, StoredClass,
};

use crate::fixture::{report, time, worked};

/// Chromium and the Python that speaks to it, or a loud skip.
fn browser(test: &str) -> Option<(PathBuf, PathBuf)> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).flat_map(|dir| names.map(|n| dir.join(n))).find(|p| p.is_file());
    let python = std::env::var_os("TEST_PYTHON").map(PathBuf::from);
    match (found, python) {
        (Some(chromium), Some(python)) => Some((chromium, python)),
        (chromium, _) => {
            let lacks = if chromium.is_none() { "there is no chromium on the PATH" } else { "TEST_PYTHON is not set" };
            eprintln!("SKIPPED {test}: {lacks} (run `make test`)");
            None
        }
    }
}

fn look_at(report: &Report, word: &str, test: &str) -> Option<Value> {
    let (chromium, python) = browser(test)?;
    let dir = tempfile::tempdir().unwrap();
    // Pictures stay where somebody wants to look at them.
    let out = std::env::var_os("TEST_PICTURES").map_or(dir.path().to_owned(), |p| PathBuf::from(p).join(test));
    std::fs::create_dir_all(&out).unwrap();
    let page = dir.path().join("page.html");
    std::fs::write(&page, report.render(OutputFormat::Html).unwrap()).unwrap();
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/py/browser.py");
    let done = Command::new(python).arg(driver).arg(chromium).arg(&page).arg(&out).arg(word).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    for name in ["desktop.png", "phone.png", "print.png", "print.pdf"] {
        assert!(std::fs::metadata(out.join(name)).unwrap().len() > 5_000, "{name}");
    }
    Some(serde_json::from_slice(&done.stdout).unwrap())
}

fn stored(parts: &[(&str, u64)], fragments: &[u64]) -> StoredBytes {
    let held = [("retention", 3, 40 << 20, Some(time("2026-03-08T00:00:00Z"))), ("tag", 1, 20 << 20, None)];
    let ends = [64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30].map(Some).into_iter().chain([None]);
    let sizes = ends.zip(fragments.iter().copied());
    let prices = Prices { stored_gib_month: Some(0.02), ..Prices::default() };
    StoredBytes::of_parts(parts.iter().copied(), held, sizes, &prices)
}

fn drift() -> Report {
    let hostile = "/lake/<script>window.injected=1</script>\"'><img src=x onerror=window.injected=2>.lance";
    let mut datasets: Vec<Dataset> = (0..6)
        .map(|n| {
            let mut d = Dataset::new(format!("/lake/gold/orders_{n}.lance"), Outcome::idle());
            let mib = |m: u64| m << 20;
            let parts = [
                ("live", mib(300 - 40 * n)),
                ("history", mib(60 + 10 * n)),
                ("reclaimable", mib(30 * n)),
                ("orphan", mib(7 * n)),
                ("young", mib(n)),
            ];
            d.stored = Some(stored(&parts, &[4 + n, 10, 20 * n, 3, 1, 0, 0]));
            d
        })
        .collect();
    datasets.push(Dataset::new(hostile, Outcome::failed(FailureKind::Damaged).with_detail("</td><script>1</script>")));
    let orphan = |n: u64| {
        let path = format!("data/{n:032}.lance");
        let subject = FindingSubject::path("/lake/gold/orders_3.lance", path);
        Finding::new(FindingKind::OrphanFile, subject, "no manifest names this data file")
            .with_bytes(n << 20)
            .with_fix("squire-reconcile reclaim plan")
    };
    datasets[3].findings.extend((1..12).map(orphan));
    let missing = FindingSubject::path(hostile, "data/<b>1</b>.lance");
    datasets[6].findings.push(Finding::new(FindingKind::MissingFile, missing, "HEAD names it; it is not there"));
    let mut r = report(ReportKind::Reconcile, datasets);
    r.findings.push(Finding::new(FindingKind::TrashExpired, FindingSubject::table("table/a/old"), "its grace is over"));
    r.findings.push(Finding::new(FindingKind::TableDeclaredOnly, FindingSubject::table("table/a/new"), "no data yet"));
    r.incomplete.push(Incomplete {
        what: "s3://far".into(),
        why: "access denied".into(),
        remedy: "allow s3:ListBucket".into(),
    });
    r.finish(Requests::default(), None, None);
    r.add_outside([(StoredClass::Foreign, 3 << 20)].into(), &Prices::default());
    r
}

#[test]
fn the_page_of_a_drift_report_is_readable_everywhere_and_its_filter_works() {
    let Some(said) = look_at(&drift(), "orders_3", "the_page_of_a_drift_report") else { return };
    assert_eq!(said["console"], Value::Array(vec![]), "{said:#}");
    assert_eq!(said["requests"], Value::Array(vec![]), "{said:#}");
    assert_eq!(said["injected"], "undefined", "a name is text, whatever stands in it");
    // 6 bars, 14 findings, 7 rows of datasets, 2 holders, 1 unread place, 7 lines of all datasets.
    assert_eq!((&said["lines"], &said["filtered"]), (&37.into(), &14.into()), "{said:#}");
    assert_eq!(said["status"], "14 of 37 lines");
    assert_eq!(said["phone_overflow"], 0, "a phone shows the page without scrolling sideways");
    assert_eq!(said["print_filter"], "none");
}

#[test]
fn the_page_of_a_plan_has_bars_too() {
    let mut datasets: Vec<Dataset> =
        (0..3).map(|n| worked(&format!("/lake/silver/t{n}.lance"), StepOutcome::Planned)).collect();
    datasets[0].stored = Some(stored(&[("live", 10 << 20), ("reclaimable", 90 << 20)], &[40, 0, 0, 0, 0, 0, 0]));
    let Some(said) = look_at(&report(ReportKind::Plan, datasets), "t1", "the_page_of_a_plan") else { return };
    assert_eq!((&said["console"], &said["requests"]), (&Value::Array(vec![]), &Value::Array(vec![])), "{said:#}");
    // 1 bar, 3 rows, 1 line of what is needed, 3 lines of all datasets.
    assert_eq!(said["filtered"], 2, "{said:#}");
}
