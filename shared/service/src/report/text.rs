//! The report on a terminal: at most [`WIDTH`] columns.

use super::display::clean_lines;
use super::model::Report;
use super::summary::{Row, Summary};
use super::table::{Column, Cut, lines, wrap};

/// Columns that no line of the text report exceeds.
pub const WIDTH: usize = 100;

const COLUMNS: [Column; 8] = [
    Column { header: "DATASET", right: false, least: Some(16), cut: Cut::Middle },
    Column { header: "TIER", right: false, least: Some(6), cut: Cut::End },
    Column { header: "FRAGMENTS", right: true, least: None, cut: Cut::End },
    Column { header: "UNINDEXED", right: true, least: None, cut: Cut::End },
    Column { header: "VERSIONS", right: true, least: None, cut: Cut::End },
    Column { header: "SIZE", right: true, least: None, cut: Cut::End },
    Column { header: "FREES", right: true, least: None, cut: Cut::End },
    Column { header: "WHAT", right: false, least: Some(14), cut: Cut::End },
];

pub(super) fn render(report: &Report) -> String {
    let summary = Summary::of(report);
    let mut out: Vec<String> = wrap(&summary.title, WIDTH, 0);
    for line in &summary.counts {
        out.extend(wrap(line, WIDTH, 0));
    }
    if !summary.rows.is_empty() {
        out.push(String::new());
        let rows: Vec<Vec<String>> = summary.rows.iter().map(cells).collect();
        out.extend(lines(&COLUMNS, &rows, WIDTH));
    }
    if let Some(rest) = &summary.rest {
        out.extend(wrap(rest, WIDTH, 0));
    }
    section(&mut out, "Held", &summary.held);
    section(&mut out, "Refused", &summary.refused);
    section(&mut out, "Needed", &summary.needed);
    let mut findings: Vec<String> = Vec::new();
    for f in &summary.findings {
        let fix = f.fix.as_ref().map_or(String::new(), |fix| format!("; {fix}"));
        findings.push(format!("{} {}: {}: {}{fix}", f.severity, f.kind, f.subject, f.detail));
    }
    findings.extend(summary.more_findings.clone());
    section(&mut out, "Findings", &findings);
    section(&mut out, "Could not be read", &summary.incomplete);
    out.push(String::new());
    clean_lines(&out.join("\n"))
}

fn cells(row: &Row) -> Vec<String> {
    let Row { name, tier, fragments, unindexed, versions, size, freed, what } = row;
    [name, tier, fragments, unindexed, versions, size, freed, what].map(Clone::clone).to_vec()
}

fn section(out: &mut Vec<String>, title: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    out.push(String::new());
    out.push(title.to_owned());
    for item in items {
        out.extend(wrap(item, WIDTH, 2));
    }
}
