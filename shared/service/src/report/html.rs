//! The report as one self-contained page: no script, nothing loaded from elsewhere.

use std::io;

use minijinja::{AutoEscape, Environment, context};
use serde::Serialize;

use super::display::{DisplayNames, clean};
use super::model::Report;
use super::summary::Summary;

const TEMPLATE: &str = include_str!("report.html");

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
struct Found<'a> {
    severity: &'static str,
    kind: &'a str,
    subject: &'a str,
    detail: &'a str,
    fix: Option<&'a str>,
}

#[derive(Serialize)]
struct Every {
    name: String,
    uri: String,
    outcome: &'static str,
    reason: &'static str,
    detail: String,
}

pub(super) fn render(report: &Report) -> io::Result<String> {
    let s = Summary::of(report);
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
    let findings: Vec<Found<'_>> = s
        .findings
        .iter()
        .map(|f| Found {
            severity: f.severity.as_str(),
            kind: f.kind,
            subject: &f.subject,
            detail: &f.detail,
            fix: f.fix.as_deref(),
        })
        .collect();
    let names = DisplayNames::new(report.datasets.iter().map(|d| d.uri.as_str()), &report.estate.roots);
    let every: Vec<Every> = report
        .datasets
        .iter()
        .map(|d| Every {
            name: clean(&names.get(&d.uri)),
            uri: clean(&d.uri),
            outcome: d.outcome.kind().as_str(),
            reason: d.outcome.reason().unwrap_or_default(),
            detail: clean(d.outcome.detail.as_deref().unwrap_or_default()),
        })
        .collect();
    let sections =
        [("Held", &s.held), ("Refused", &s.refused), ("Needed", &s.needed), ("Could not be read", &s.incomplete)];
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    let values = context! {
        title => s.title,
        counts => s.counts,
        rows => rows,
        rest => s.rest,
        sections => sections,
        findings => findings,
        more_findings => s.more_findings,
        every => every,
        run => report.run.to_string(),
        started_at => report.started_at.to_rfc3339(),
        finished_at => report.finished_at.to_rfc3339(),
        registry => clean(&report.estate.registry),
        command => clean(&report.command),
        tool => report.tool,
        config_digest => report.config_digest,
    };
    environment.render_str(TEMPLATE, values).map_err(io::Error::other)
}
