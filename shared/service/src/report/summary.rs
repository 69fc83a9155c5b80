//! What a reader needs of a report, in words: shared by the text, Markdown and HTML renderers.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::display::{DisplayNames, clean};
use super::enums::{HoldReason, IndexAction, OutcomeKind, ReportKind, Severity, StepOutcome};
use super::model::{Dataset, Report};
use super::reasons::StepReason;
use crate::human::{show_bytes, show_count, show_seconds};

/// Datasets shown one by one.
const ROWS: usize = 10;

/// A report in words.
pub(super) struct Summary {
    pub(super) title: String,
    /// What became of the datasets, in one sentence each.
    pub(super) counts: Vec<String>,
    pub(super) rows: Vec<Row>,
    /// The datasets that have no row, in one line.
    pub(super) rest: Option<String>,
    pub(super) held: Vec<String>,
    pub(super) refused: Vec<String>,
    pub(super) needed: Vec<String>,
    pub(super) findings: Vec<FindingLine>,
    pub(super) more_findings: Option<String>,
    pub(super) incomplete: Vec<String>,
}

/// One dataset in the table.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) tier: String,
    pub(super) fragments: String,
    pub(super) unindexed: String,
    pub(super) versions: String,
    pub(super) size: String,
    pub(super) freed: String,
    pub(super) what: String,
}

/// One finding.
pub(super) struct FindingLine {
    pub(super) severity: Severity,
    pub(super) kind: &'static str,
    pub(super) subject: String,
    pub(super) detail: String,
    pub(super) fix: Option<String>,
}

impl Summary {
    pub(super) fn of(report: &Report) -> Self {
        let uris = report.datasets.iter().map(|d| d.uri.as_str());
        let names = DisplayNames::new(uris, &report.estate.roots);
        let mut order: Vec<&Dataset> = report.datasets.iter().collect();
        order.sort_by_cached_key(|d| (rank(d), d.uri.clone()));
        let (top, others) = order.split_at(order.len().min(ROWS));
        let (findings, more_findings) = findings(report, &names);
        Self {
            title: title(report),
            counts: counts(report),
            rows: top.iter().map(|d| row(d, &names)).collect(),
            rest: rest(others, report.kind),
            held: held(report).into_iter().chain(super::erasure::lines(report, &names)).collect(),
            refused: refused(report, &names),
            needed: needed(report),
            findings,
            more_findings,
            incomplete: report
                .incomplete
                .iter()
                .map(|i| clean(&format!("{}: {}; {}", i.what, i.why, i.remedy)))
                .collect(),
        }
    }
}

/// Lower comes first: failures, then work by what it gains, then what was refused, then the rest.
fn rank(d: &Dataset) -> (u8, std::cmp::Reverse<u64>, std::cmp::Reverse<u64>) {
    let refused = d.steps.iter().any(|(outcome, _)| outcome == StepOutcome::Refused);
    let group = match d.outcome.kind() {
        OutcomeKind::Failed => 0,
        OutcomeKind::Maintained | OutcomeKind::Planned => 1,
        OutcomeKind::Idle if refused => 2,
        OutcomeKind::Skipped => 3,
        OutcomeKind::Idle => 4,
    };
    let freed = freed(d);
    let merged = d.before.as_ref().map_or(0, |b| {
        let after = d.after.as_ref().unwrap_or(b);
        b.fragments.saturating_sub(after.fragments) + b.unindexed_rows().saturating_sub(after.unindexed_rows())
    });
    (group, std::cmp::Reverse(freed), std::cmp::Reverse(merged))
}

fn title(report: &Report) -> String {
    let what = match report.kind {
        ReportKind::Plan => "Plan (nothing was written)",
        ReportKind::Sweep => "Sweep",
        ReportKind::Apply => "Apply",
        ReportKind::Reconcile => "Reconcile (nothing was written)",
        ReportKind::Reclaim => "Reclaim",
    };
    let seconds = (report.finished_at - report.started_at).num_milliseconds() as f64 / 1000.0;
    let mode = report.estate.mode;
    clean(&format!(
        "{what} · estate {} ({mode}) · {} in {}",
        report.estate.name,
        plural(report.totals.seen, "dataset"),
        show_seconds(seconds)
    ))
}

fn counts(report: &Report) -> Vec<String> {
    let t = &report.totals;
    let mut parts = Vec::new();
    for (n, word) in [(t.maintained, "maintained"), (t.planned, "planned"), (t.idle, "idle")] {
        if n > 0 {
            parts.push(format!("{n} {word}"));
        }
    }
    let named = |map: Vec<(&str, u64)>, word: &str| {
        let n: u64 = map.iter().map(|(_, n)| n).sum();
        let reasons: Vec<String> = map.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
        (n > 0).then(|| format!("{n} {word} ({})", reasons.join(", ")))
    };
    parts.extend(named(t.skipped.iter().map(|(r, n)| (r.as_str(), *n)).collect(), "skipped"));
    parts.extend(named(t.failed.iter().map(|(k, n)| (k.as_str(), *n)).collect(), "failed"));
    if parts.is_empty() {
        parts.push("no datasets".to_owned());
    }
    let mut lines = vec![parts.join(" · ")];
    let plan = report.kind == ReportKind::Plan;
    let mut did = Vec::new();
    if t.fragments_before != t.fragments_after {
        did.push(format!("fragments {} → {}", show_count(t.fragments_before), show_count(t.fragments_after)));
    }
    if t.index_folds > 0 {
        let word = if plan { "to fold" } else { "folded" };
        did.push(format!("{} {word}", indices(t.index_folds)));
    }
    if t.versions_removed > 0 {
        let word = if plan { "to remove" } else { "removed" };
        did.push(format!("{} {word}", plural(t.versions_removed, "version")));
    }
    if t.reclaimable_bytes > 0 {
        did.push(format!("{} to free", show_bytes(t.reclaimable_bytes)));
    }
    if t.reclaimed_bytes > 0 {
        did.push(format!("{} freed", show_bytes(t.reclaimed_bytes)));
    }
    if t.rewritten_bytes > 0 && !plan {
        did.push(format!("{} rewritten", show_bytes(t.rewritten_bytes)));
    }
    if !did.is_empty() {
        lines.push(did.join(" · "));
    }
    lines.extend(stored(report));
    lines
}

/// What the stored bytes are, in one sentence; only where all of them were classified.
fn stored(report: &Report) -> Option<String> {
    let t = &report.totals;
    if report.kind != ReportKind::Reconcile || t.stored.is_empty() {
        return None;
    }
    let classes = t.stored.iter().filter(|(_, bytes)| **bytes > 0);
    let parts: Vec<String> = classes.map(|(class, bytes)| format!("{} {class}", show_bytes(*bytes))).collect();
    let cost = t.stored_cost_per_month.map_or(String::new(), |cost| format!(" · {cost:.2} a month"));
    Some(format!("{} stored: {}{cost}", show_bytes(t.stored.values().sum()), parts.join(", ")))
}

fn row(d: &Dataset, names: &DisplayNames) -> Row {
    let change = |value: &dyn Fn(&super::DatasetState) -> u64| {
        let Some(before) = &d.before else { return String::new() };
        let from = value(before);
        let to = d.after.as_ref().map_or(from, value);
        if from == to { show_count(from) } else { format!("{} → {}", show_count(from), show_count(to)) }
    };
    let has_indices = d.before.as_ref().is_some_and(|s| !s.indices.is_empty());
    let freed = freed(d);
    Row {
        name: clean(&names.get(&d.uri)),
        tier: clean(d.tier.as_deref().unwrap_or_default()),
        fragments: change(&|s| s.fragments),
        unindexed: if has_indices { change(&|s| s.unindexed_rows()) } else { String::new() },
        versions: change(&|s| s.versions),
        size: d.before.as_ref().map_or(String::new(), |s| show_bytes(s.bytes)),
        freed: if freed > 0 { show_bytes(freed) } else { String::new() },
        what: what(d),
    }
}

/// Bytes that cleanup freed or would free.
fn freed(d: &Dataset) -> u64 {
    let counts = |outcome: StepOutcome| outcome.did_something() || outcome == StepOutcome::Planned;
    d.steps.cleanup.as_ref().filter(|s| counts(s.outcome)).map_or(0, |s| s.reclaimed_bytes)
}

/// What was done, or will be, in a few words.
fn what(d: &Dataset) -> String {
    if let Some(reason) = d.outcome.reason() {
        return format!("{}: {reason}", d.outcome.kind());
    }
    let mut words = Vec::new();
    let mut say = |outcome: StepOutcome, reason: Option<StepReason>, plan: String, done: String, name: &str| match (
        outcome, reason,
    ) {
        (StepOutcome::Planned, _) => words.push(plan),
        (StepOutcome::Done, _) => words.push(done),
        (StepOutcome::Refused, Some(reason)) => words.push(format!("no {name}: {reason}")),
        _ => {}
    };
    if let Some(s) = &d.steps.compact {
        say(s.outcome, s.reason, "compact".into(), "compacted".into(), "compaction");
    }
    if let Some(s) = &d.steps.optimize_indices {
        let n = s.indices.iter().filter(|i| i.action != IndexAction::None).count();
        say(s.outcome, s.reason, format!("fold {n}"), format!("folded {n}"), "fold");
    }
    if let Some(s) = &d.steps.cleanup {
        let (n, files) = (s.versions_removed, s.files_removed);
        // A reclaim moves objects and no versions.
        let (plan, done) = match n {
            0 if files > 0 => (format!("move {files} objects"), format!("moved {files} objects")),
            n => (format!("clean {n}"), format!("cleaned {n}")),
        };
        say(s.outcome, s.reason, plan, done, "cleanup");
    }
    match (words.is_empty(), d.findings.len() as u64) {
        (false, _) => words.join(", "),
        (true, 0) => "in shape".to_owned(),
        (true, n) => plural(n, "finding"),
    }
}

fn rest(others: &[&Dataset], kind: ReportKind) -> Option<String> {
    if others.is_empty() {
        return None;
    }
    let owned: Vec<Dataset> = others.iter().map(|d| (*d).clone()).collect();
    let t = super::Totals::of(kind, &owned, &[]);
    let mut parts = Vec::new();
    let skipped: u64 = t.skipped.values().sum();
    let failed: u64 = t.failed.values().sum();
    let all = [
        (t.maintained, "maintained"),
        (t.planned, "planned"),
        (t.idle, "idle"),
        (skipped, "skipped"),
        (failed, "failed"),
    ];
    for (n, word) in all {
        if n > 0 {
            parts.push(format!("{n} {word}"));
        }
    }
    if t.fragments_before != t.fragments_after {
        parts.push(format!("fragments {} → {}", show_count(t.fragments_before), show_count(t.fragments_after)));
    }
    let freed = t.reclaimable_bytes + t.reclaimed_bytes;
    if freed > 0 {
        parts.push(format!("{} to free or freed", show_bytes(freed)));
    }
    Some(format!("and {} more: {}", others.len(), parts.join(", ")))
}

/// What keeps versions, by reason.
fn held(report: &Report) -> Vec<String> {
    #[derive(Default)]
    struct Held {
        versions: u64,
        bytes: u64,
        datasets: u64,
        until: Option<DateTime<Utc>>,
        open: bool,
    }
    let mut by: BTreeMap<HoldReason, Held> = BTreeMap::new();
    // Where there was no clean-up to plan, the bytes were counted file by file.
    let counted = report.datasets.iter().filter(|d| d.steps.cleanup.is_none()).filter_map(|d| d.stored.as_ref());
    for h in counted.flat_map(|s| &s.held) {
        let held = by.entry(h.by).or_default();
        held.versions += h.versions;
        held.bytes += h.bytes;
        held.datasets += 1;
        match h.until {
            Some(until) => held.until = Some(held.until.map_or(until, |u| u.max(until))),
            None => held.open = true,
        }
    }
    for d in &report.datasets {
        let mut seen = Vec::new();
        // The current version is no history; nothing holds it back.
        for r in d.steps.cleanup.iter().flat_map(|s| &s.retained).filter(|r| r.replaced_at.is_some()) {
            let held = by.entry(r.by).or_default();
            held.versions += 1;
            held.bytes += r.bytes;
            match r.until {
                Some(until) => held.until = Some(held.until.map_or(until, |u| u.max(until))),
                None => held.open = true,
            }
            if !seen.contains(&r.by) {
                seen.push(r.by);
                held.datasets += 1;
            }
        }
    }
    by.into_iter()
        .map(|(reason, h)| {
            let until = match h.until {
                Some(until) if !h.open => format!(", until {}", until.format("%Y-%m-%d %H:%M UTC")),
                _ => String::new(),
            };
            format!(
                "by {reason}: {} ({}) of {}{until}",
                plural(h.versions, "version"),
                show_bytes(h.bytes),
                plural(h.datasets, "dataset")
            )
        })
        .collect()
}

/// Where one step was refused for one reason.
#[derive(Default)]
struct Refused {
    datasets: Vec<String>,
    /// Of the first that had one.
    detail: Option<String>,
}

/// What a rule forbade, by step and reason, with the datasets and what lifts it.
fn refused(report: &Report, names: &DisplayNames) -> Vec<String> {
    let mut by = BTreeMap::<(&str, StepReason), Refused>::new();
    for d in &report.datasets {
        let steps = &d.steps;
        let all = [
            ("compaction", steps.compact.as_ref().map(|s| (s.outcome, s.reason, &s.detail))),
            ("index work", steps.optimize_indices.as_ref().map(|s| (s.outcome, s.reason, &s.detail))),
            ("cleanup", steps.cleanup.as_ref().map(|s| (s.outcome, s.reason, &s.detail))),
        ];
        for (step, found) in all {
            let Some((StepOutcome::Refused, Some(reason), detail)) = found else { continue };
            let entry = by.entry((step, reason)).or_default();
            entry.datasets.push(names.get(&d.uri));
            entry.detail = entry.detail.take().or_else(|| detail.clone());
        }
    }
    by.into_iter()
        .map(|((step, reason), Refused { datasets, detail })| {
            let more = match datasets.len() {
                0..=3 => String::new(),
                n => format!(" and {} more", n - 3),
            };
            let shown: Vec<&str> = datasets.iter().take(3).map(String::as_str).collect();
            let detail = detail.map_or(String::new(), |d| format!(" ({d})"));
            let remedy = reason.remedy().map_or(String::new(), |r| format!("; {r}"));
            clean(&format!("{step}, {reason}: {}{more}{detail}{remedy}", shown.join(", ")))
        })
        .collect()
}

fn needed(report: &Report) -> Vec<String> {
    let t = &report.totals;
    let mut lines = Vec::new();
    if report.kind == ReportKind::Plan && t.rewritten_bytes > 0 {
        lines.push(format!(
            "{} of free space for what is rewritten; it returns when retention lets the old files go",
            show_bytes(t.rewritten_bytes)
        ));
    }
    if report.estate.exclusive && t.versions_removed > 0 {
        lines.push(
            "certainty that nobody outside these roots reads from them: set estate.exclusive = false if somebody does"
                .to_owned(),
        );
    }
    let awaits = report.datasets.iter().filter_map(|d| d.policy.as_ref()?.pending.as_ref()).count() as u64;
    if awaits > 0 {
        lines.push(format!("time: a change of policy is pending for {}", plural(awaits, "dataset")));
    }
    if let Some(cost) = t.cost {
        lines.push(format!("{} requests, cost {cost:.4}", show_count(t.requests.total())));
    }
    if let Some(cost) = t.planned_cost.filter(|_| t.planned_requests.total() > 0) {
        lines.push(format!("about {} requests to apply it, cost {cost:.4}", show_count(t.planned_requests.total())));
    }
    lines
}

fn findings(report: &Report, names: &DisplayNames) -> (Vec<FindingLine>, Option<String>) {
    let mut all: Vec<&super::Finding> = report.all_findings().collect();
    all.sort_by_key(|f| (std::cmp::Reverse(f.severity), std::cmp::Reverse(f.bytes.unwrap_or(0))));
    let worth: Vec<&&super::Finding> = all.iter().filter(|f| f.severity > Severity::Info).collect();
    let shown = worth.iter().take(ROWS).map(|f| line(f, names));
    let shown: Vec<FindingLine> = shown.collect();
    let left = all.len() - shown.len();
    let more = match (left, shown.is_empty()) {
        (0, _) => None,
        (_, true) => Some(format!("{left} of severity info; they are in the JSON report")),
        (_, false) => Some(format!("and {left} more, of severity info or lesser size; all are in the JSON report")),
    };
    (shown, more)
}

/// One finding in words.
pub(super) fn line(f: &super::Finding, names: &DisplayNames) -> FindingLine {
    let s = &f.subject;
    let dataset = s.dataset.as_ref().map(|uri| names.get(uri));
    let parts: Vec<String> =
        [dataset, s.table.clone(), s.path.clone(), s.record.clone()].into_iter().flatten().collect();
    let bytes = f.bytes.map_or(String::new(), |b| format!(" ({})", show_bytes(b)));
    FindingLine {
        severity: f.severity,
        kind: f.kind.as_str(),
        subject: clean(&parts.join(" ")),
        detail: clean(&format!("{}{bytes}", f.detail)),
        fix: f.fix.as_deref().map(clean),
    }
}

fn plural(n: u64, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{} {word}s", show_count(n)) }
}

fn indices(n: u64) -> String {
    if n == 1 { "1 index".to_owned() } else { format!("{} indices", show_count(n)) }
}
