//! The report as one self-contained page: nothing is loaded from elsewhere, and its one script only hides lines.

use std::io;

use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;

use super::Finding;
use super::display::{DisplayNames, clean};
use super::enums::{Severity, StoredClass};
use super::model::{Dataset, Report};
use super::stored::StoredBytes;
use super::summary::Summary;
use crate::human::{show_bytes, show_count};

const TEMPLATE: &str = include_str!("report.html");
/// The page's filter. The page allows this script and no other: after a change of it, its hash is that of the new text (the
/// browser's test says so).
const SCRIPT: &str = include_str!("report.js");
const SCRIPT_HASH: &str = "sha256-g1tn02ggBfhbJHMfO13x1yb36XyGogFXfYJbHCsIBpM=";

/// Lines of one kind on a page; the rest is counted, and stands in the JSON report.
const LINES: usize = 2000;

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    tier: &'a str,
    fragments: &'a str,
    unindexed: &'a str,
    versions: &'a str,
    size: &'a str,
    freed: &'a str,
    what: &'a str,
}

#[derive(Serialize)]
struct Card {
    name: &'static str,
    class: &'static str,
    value: String,
}

#[derive(Serialize)]
struct Bar {
    name: String,
    size: String,
    words: String,
    parts: Vec<Part>,
}

#[derive(Serialize)]
struct Part {
    class: &'static str,
    width: String,
}

#[derive(Serialize)]
struct Size {
    name: String,
    fragments: u64,
    height: u64,
}

#[derive(Serialize)]
struct Group {
    severity: &'static str,
    title: String,
    findings: Vec<Found>,
    more: Option<String>,
}

#[derive(Serialize)]
struct Found {
    kind: &'static str,
    subject: String,
    detail: String,
    fix: Option<String>,
}

#[derive(Serialize)]
struct Every {
    name: String,
    uri: String,
    outcome: &'static str,
    reason: &'static str,
    detail: String,
}

/// What the parts of a bar are, with the class that colours them.
const LEGEND: [(&str, &str); 6] = [
    ("live", "live"),
    ("held", "held history"),
    ("history", "other history"),
    ("reclaimable", "reclaimable now"),
    ("orphan", "orphaned"),
    ("other", "young, foreign, unknown, quarantine, trash"),
];

pub(super) fn render(report: &Report) -> io::Result<String> {
    let s = Summary::of(report);
    let names = DisplayNames::new(report.datasets.iter().map(|d| d.uri.as_str()), &report.estate.roots);
    let rows: Vec<Line<'_>> = s
        .rows
        .iter()
        .map(|r| Line {
            name: &r.name,
            tier: &r.tier,
            fragments: &r.fragments,
            unindexed: &r.unindexed,
            versions: &r.versions,
            size: &r.size,
            freed: &r.freed,
            what: &r.what,
        })
        .collect();
    let every: Vec<Every> = report.datasets.iter().take(LINES).map(|d| every(d, &names)).collect();
    let sections =
        [("Held", &s.held), ("Refused", &s.refused), ("Needed", &s.needed), ("Could not be read", &s.incomplete)];
    let (bars, more_bars) = bars(report, &names);
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    let values = context! {
        title => s.title,
        counts => s.counts,
        cards => cards(report),
        legend => LEGEND,
        bars => bars,
        more_bars => more_bars,
        sizes => sizes(report),
        findings => groups(report, &names),
        rows => rows,
        rest => s.rest,
        sections => sections,
        every => every,
        more_every => more(report.datasets.len()),
        run => report.run.to_string(),
        started_at => report.started_at.to_rfc3339(),
        finished_at => report.finished_at.to_rfc3339(),
        registry => clean(&report.estate.registry),
        command => clean(&report.command),
        tool => report.tool,
        config_digest => report.config_digest,
        script => SCRIPT,
        script_hash => SCRIPT_HASH,
    };
    environment.render_str(TEMPLATE, values).map_err(io::Error::other)
}

fn more(all: usize) -> Option<String> {
    (all > LINES).then(|| format!("and {} more; all are in the JSON report", all - LINES))
}

fn every(d: &Dataset, names: &DisplayNames) -> Every {
    Every {
        name: clean(&names.get(&d.uri)),
        uri: clean(&d.uri),
        outcome: d.outcome.kind().as_str(),
        reason: d.outcome.reason().unwrap_or_default(),
        detail: clean(d.outcome.detail.as_deref().unwrap_or_default()),
    }
}

/// The totals at a glance.
fn cards(report: &Report) -> Vec<Card> {
    let t = &report.totals;
    let mut out = vec![Card { name: "datasets", class: "muted", value: show_count(t.seen) }];
    if !t.stored.is_empty() {
        let of = |class: StoredClass| t.stored.get(&class).copied().unwrap_or(0);
        let bytes = [
            ("stored", t.stored.values().sum()),
            ("live", of(StoredClass::Live)),
            ("held", t.held.values().sum()),
            ("reclaimable now", of(StoredClass::Reclaimable)),
            ("orphaned", of(StoredClass::Orphan)),
        ];
        let shown = bytes.into_iter().filter(|(name, n)| *n > 0 || matches!(*name, "stored" | "live"));
        out.extend(shown.map(|(name, n): (_, u64)| Card { name, class: "muted", value: show_bytes(n) }));
    }
    if let Some(cost) = t.stored_cost_per_month {
        out.push(Card { name: "cost of storage per month", class: "muted", value: format!("{cost:.2}") });
    }
    for severity in [Severity::Error, Severity::Warning, Severity::Info] {
        let n = report.all_findings().filter(|f| f.severity == severity).count() as u64;
        if n > 0 {
            out.push(Card { name: severity.as_str(), class: severity.as_str(), value: show_count(n) });
        }
    }
    out
}

/// One bar per dataset whose bytes were counted, the largest first.
fn bars(report: &Report, names: &DisplayNames) -> (Vec<Bar>, Option<String>) {
    let mut stored: Vec<(&Dataset, &StoredBytes)> =
        report.datasets.iter().filter_map(|d| Some((d, d.stored.as_ref()?))).collect();
    stored.sort_by(|a, b| b.1.total.cmp(&a.1.total).then_with(|| a.0.uri.cmp(&b.0.uri)));
    let all = stored.len();
    let bars = stored.into_iter().take(LINES).map(|(d, s)| bar(clean(&names.get(&d.uri)), s)).collect();
    (bars, more(all))
}

fn bar(name: String, stored: &StoredBytes) -> Bar {
    let of = |class| stored.of(class);
    let held = stored.held_bytes().min(of(StoredClass::History));
    let parts = [
        of(StoredClass::Live),
        held,
        of(StoredClass::History) - held,
        of(StoredClass::Reclaimable),
        of(StoredClass::Orphan),
        [StoredClass::Young, StoredClass::Foreign, StoredClass::Unknown, StoredClass::Quarantine, StoredClass::Trash]
            .map(of)
            .iter()
            .sum(),
    ];
    let shown = || LEGEND.iter().zip(parts).filter(|(_, bytes)| *bytes > 0);
    let words: Vec<String> = shown().map(|((_, name), bytes)| format!("{} {name}", show_bytes(bytes))).collect();
    let width = |bytes: u64| format!("{:.3}", bytes as f64 * 100.0 / stored.total.max(1) as f64);
    Bar {
        name,
        size: show_bytes(stored.total),
        words: if words.is_empty() { "empty".to_owned() } else { words.join(", ") },
        parts: shown().map(|((class, _), bytes)| Part { class, width: width(bytes) }).collect(),
    }
}

/// The fragments of all datasets by size; none where no dataset was counted.
fn sizes(report: &Report) -> Vec<Size> {
    let mut sums: Vec<(Option<u64>, u64)> = Vec::new();
    for size in report.datasets.iter().filter_map(|d| d.stored.as_ref()).flat_map(|s| &s.fragment_sizes) {
        match sums.iter_mut().find(|(up_to, _)| *up_to == size.up_to) {
            Some((_, n)) => *n += size.fragments,
            None => sums.push((size.up_to, size.fragments)),
        }
    }
    let most = sums.iter().map(|(_, n)| *n).max().unwrap_or(0);
    if most == 0 {
        return Vec::new();
    }
    let largest = sums.iter().filter_map(|(up_to, _)| *up_to).max().map_or("all".to_owned(), show_bytes);
    let name = |up_to: Option<u64>| up_to.map_or(format!("> {largest}"), |n| format!("≤ {}", show_bytes(n)));
    // Of the column's height: the numbers take the rest.
    let height = |n: u64| (n * 70).div_ceil(most);
    sums.into_iter().map(|(up_to, n)| Size { name: name(up_to), fragments: n, height: height(n) }).collect()
}

/// All findings by severity, the worst and largest first.
fn groups(report: &Report, names: &DisplayNames) -> Vec<Group> {
    let titles = [
        (Severity::Error, "Data or rules are at risk"),
        (Severity::Warning, "Costs money or speed"),
        (Severity::Info, "Good to know"),
    ];
    let group = |(severity, title): (Severity, &str)| {
        let mut all: Vec<&Finding> = report.all_findings().filter(|f| f.severity == severity).collect();
        all.sort_by_key(|f| std::cmp::Reverse(f.bytes.unwrap_or(0)));
        (!all.is_empty()).then(|| Group {
            severity: severity.as_str(),
            title: format!("{title} ({})", show_count(all.len() as u64)),
            findings: all.iter().take(LINES).map(|f| found(f, names)).collect(),
            more: more(all.len()),
        })
    };
    titles.into_iter().filter_map(group).collect()
}

fn found(f: &Finding, names: &DisplayNames) -> Found {
    let line = super::summary::line(f, names);
    let fix = line.fix.or_else(|| f.kind.remedy().map(str::to_owned));
    Found { kind: line.kind, subject: line.subject, detail: line.detail, fix }
}
