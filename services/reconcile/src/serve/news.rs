//! What is new since the last report, and what is gone. Pure.

use std::collections::{BTreeMap, BTreeSet};

use squire_service::bus::dataset_subject;
use squire_service::report::{Finding, FindingKind, FindingSubject, Report};

/// Findings of one subject that an event names at most; a report names more.
const NAMED: usize = 500;

/// Findings about one SUBJECT.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct About {
    /// The table's, the dataset's own, or `estate`.
    pub(super) subject: String,
    /// The dataset's URI, where they are about one.
    pub(super) uri: Option<String>,
    /// They.
    pub(super) findings: Vec<Finding>,
}

type Key<'a> = (FindingKind, &'a FindingSubject);

/// New findings and gone ones, by SUBJECT. What is only older, larger or put in other words is neither.
pub(super) fn between(last: Option<&Report>, now: &Report) -> (Vec<About>, Vec<About>) {
    let before: BTreeSet<Key<'_>> = last.into_iter().flat_map(Report::all_findings).map(key).collect();
    let after: BTreeSet<Key<'_>> = now.all_findings().map(key).collect();
    let new = now.all_findings().filter(|f| !before.contains(&key(f)));
    let gone = last.into_iter().flat_map(Report::all_findings).filter(|f| !after.contains(&key(f)));
    let tables: BTreeMap<&str, &str> = last
        .into_iter()
        .chain([now])
        .flat_map(|r| &r.datasets)
        .filter_map(|d| Some((d.uri.as_str(), d.table.as_deref()?)))
        .collect();
    (by_subject(new, &tables), by_subject(gone, &tables))
}

fn key(f: &Finding) -> Key<'_> {
    (f.kind, &f.subject)
}

fn by_subject<'a>(findings: impl Iterator<Item = &'a Finding>, tables: &BTreeMap<&str, &str>) -> Vec<About> {
    let mut by: BTreeMap<String, About> = BTreeMap::new();
    for finding in findings {
        let s = &finding.subject;
        let dataset = s.dataset.as_deref();
        let subject = match (dataset, &s.table) {
            (Some(uri), _) => tables.get(uri).map_or_else(|| dataset_subject(uri), |t| (*t).to_string()),
            (None, Some(table)) => table.clone(),
            (None, None) => "estate".to_string(),
        };
        let about = by.entry(subject.clone()).or_insert_with(|| About {
            subject,
            uri: dataset.map(String::from),
            findings: Vec::new(),
        });
        if about.findings.len() < NAMED {
            about.findings.push(finding.clone());
        }
    }
    by.into_values().collect()
}
