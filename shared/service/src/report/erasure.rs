//! How far the erasure of deleted values has come.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::display::{DisplayNames, clean};
use super::model::{Dataset, Report};

/// What of a dataset still holds values that were deleted or whose column was dropped; where the policy sets `erase_within`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erasure {
    /// Whether no version and no fragment of the dataset's main tree holds such a value any more.
    pub done: bool,
    /// The oldest deletion whose values are still held.
    pub since: Option<DateTime<Utc>>,
    /// By when they are to be gone.
    pub deadline: Option<DateTime<Utc>>,
    /// Fragments of HEAD that hold them; a rewrite comes first.
    pub fragments: u64,
    /// Versions that hold them although HEAD does not.
    pub versions: Vec<u64>,
    /// What keeps them, and until when.
    pub unreached: Vec<Unreached>,
    /// Where a pass does not look at all.
    pub not_looked_at: Vec<String>,
}

/// Something that erasure does not reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreached {
    /// What stays.
    pub what: String,
    /// Who or what keeps it.
    pub by: String,
    /// Until when, where there is an end.
    pub until: Option<DateTime<Utc>>,
}

/// Datasets that are named in the text report; the rest is counted.
const NAMED: usize = 20;

/// One line per dataset that still holds what was deleted: until when, and what is not reached.
pub(super) fn lines(report: &Report, names: &DisplayNames) -> Vec<String> {
    let open = |d: &&Dataset| d.erasure.as_ref().is_some_and(|e| !e.done);
    let all: Vec<&Dataset> = report.datasets.iter().filter(open).collect();
    let mut out: Vec<String> = all.iter().take(NAMED).filter_map(|d| line(d, names)).collect();
    if all.len() > NAMED {
        out.push(format!("deleted values in {} more datasets", all.len() - NAMED));
    }
    out
}

fn line(d: &Dataset, names: &DisplayNames) -> Option<String> {
    let erasure = d.erasure.as_ref()?;
    let time = |at: DateTime<Utc>| at.format("%Y-%m-%d %H:%M UTC").to_string();
    let deadline = erasure.deadline.map_or(String::new(), |at| format!(", to be gone by {}", time(at)));
    let unreached: Vec<String> = erasure
        .unreached
        .iter()
        .map(|u| {
            let until = u.until.map_or(String::new(), |at| format!(" until {}", time(at)));
            format!("{} by {}{until}", u.what, u.by)
        })
        .collect();
    let kept = if unreached.is_empty() { String::new() } else { format!("; kept: {}", unreached.join(", ")) };
    let (fragments, versions) = (erasure.fragments, erasure.versions.len());
    let head =
        format!("deleted values of {}: in {fragments} live fragments and {versions} old versions", names.get(&d.uri));
    Some(clean(&format!("{head}{deadline}{kept}")))
}
