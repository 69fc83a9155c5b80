//! Which versions go.
//!
//! **Age counts from the moment a version was replaced**: version k may go only when k+1 is older than `retention`. A version
//! quiet for a week and then overwritten has been history for a second, not for a week (design, "Clean up").

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use squire_lake::clean::{Removal, removal};
use squire_lake::look::Look;
use squire_lake::refs::KeepSet;
use squire_service::report::{HoldReason, StepReason};

use super::{Layout, Rules, Verdict};
use squire_service::config::Mode;

/// A version that stays although it is history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Retained {
    /// Its number.
    pub version: u64,
    /// When the next one came.
    pub replaced_at: DateTime<Utc>,
    /// What keeps it.
    pub by: HoldReason,
    /// Until when, where that is known.
    pub until: Option<DateTime<Utc>>,
    /// Bytes that only this version names.
    pub bytes: u64,
}

/// Verdict, what goes, and what stays by what.
pub fn plan(look: &Look, layout: &Layout, keep: &KeepSet, rules: &Rules<'_>) -> (Verdict, Removal, Vec<Retained>) {
    let (going, mut retained) = choose(layout, rules);
    let held = |retained: &mut Vec<Retained>, by| {
        for version in layout.versions.iter().filter(|v| going.contains(&v.version)) {
            retained.push(Retained {
                version: version.version,
                replaced_at: replaced_at(layout, version.version).unwrap_or(version.time),
                by,
                until: None,
                bytes: version.exclusive_bytes,
            });
        }
        retained.sort_by_key(|r| r.version);
    };
    if let Some(verdict) = gate(rules) {
        return (verdict, Removal::default(), retained);
    }
    if let Some((reason, detail)) = refusal(layout, rules) {
        if reason == StepReason::Held {
            held(&mut retained, HoldReason::Hold);
        }
        // Nothing to remove is nothing to refuse.
        return match going.is_empty() && reason != StepReason::Held {
            true => (nothing(&retained), Removal::default(), retained),
            false => (Verdict::refused(reason, detail), Removal::default(), retained),
        };
    }
    if going.is_empty() {
        return (nothing(&retained), Removal::default(), retained);
    }
    match removal(look, &going, keep) {
        Ok(removal) if removal.versions.is_empty() => (nothing(&retained), removal, retained),
        Ok(removal) => (Verdict::planned(), removal, retained),
        Err(why) => (Verdict::refused(StepReason::ReferencesIncomplete, why.join("; ")), Removal::default(), retained),
    }
}

fn nothing(retained: &[Retained]) -> Verdict {
    Verdict::nothing(if retained.is_empty() { StepReason::Settled } else { StepReason::Retention })
}

fn gate(rules: &Rules<'_>) -> Option<Verdict> {
    if !rules.settings.steps.cleanup {
        return Some(Verdict::skipped(StepReason::Flag));
    }
    if !rules.governance.policy.policy.cleanup {
        return Some(Verdict::skipped(StepReason::Policy));
    }
    (rules.settings.mode == Mode::Compact).then(|| Verdict::skipped(StepReason::Mode))
}

/// Why nothing may be removed, by FACES' names: what the registry says, then what the dataset itself says.
fn refusal(layout: &Layout, rules: &Rules<'_>) -> Option<(StepReason, String)> {
    let pair = |reason: StepReason, detail: String| Some((reason, detail));
    if let Some(hold) = rules.governance.held_by() {
        let why = hold.reason.as_deref().unwrap_or("no reason given");
        return pair(StepReason::Held, format!("{} on {} ({why})", hold.level, hold.subject));
    }
    if let Some(lost) = rules.registry_lost {
        return pair(StepReason::RegistryLost, lost.to_string());
    }
    if let Some(unreadable) = rules.governance.unreadable.first() {
        return pair(
            StepReason::ReferencesIncomplete,
            format!("a registry record in its scope cannot be read: {unreadable:?}"),
        );
    }
    if !rules.settings.exclusive || !rules.governance.exclusive {
        return pair(StepReason::NotExclusive, "readers outside the estate may depend on its files".into());
    }
    layout.unclean.first().cloned()
}

/// When a version was replaced: the time of the next one.
fn replaced_at(layout: &Layout, version: u64) -> Option<DateTime<Utc>> {
    layout.versions.iter().find(|v| v.version > version).map(|v| v.time)
}

/// The versions past everything that keeps them, and what keeps the others. HEAD is neither.
pub fn choose(layout: &Layout, rules: &Rules<'_>) -> (BTreeSet<u64>, Vec<Retained>) {
    let policy = &rules.governance.policy.policy;
    let keep_for = policy.erase_within.map_or(policy.retention, |e| e.min(policy.retention));
    let keep_for = chrono::Duration::from_std(keep_for).unwrap_or(chrono::Duration::MAX);
    let newest: BTreeSet<u64> = layout
        .versions
        .iter()
        .rev()
        .filter(|v| !v.ours)
        .take(policy.retain_versions as usize)
        .map(|v| v.version)
        .collect();
    let named = named_versions(layout, rules);
    let (mut going, mut retained) = (BTreeSet::new(), Vec::new());
    for (i, version) in layout.versions.iter().enumerate() {
        let Some(next) = layout.versions.get(i + 1) else { break };
        // A successor's clock that went backwards must not make a version old.
        let replaced_at = next.time.max(version.time);
        let until = replaced_at.checked_add_signed(keep_for);
        let by = if let Some(by) = named.get(&version.version) {
            Some((*by, None))
        } else if until.is_none_or(|until| until > rules.now) {
            Some((HoldReason::Retention, until))
        } else if newest.contains(&version.version) {
            Some((HoldReason::RetainVersions, None))
        } else {
            None
        };
        match by {
            None => {
                going.insert(version.version);
            }
            Some((by, until)) => retained.push(Retained {
                version: version.version,
                replaced_at,
                by,
                until,
                bytes: version.exclusive_bytes,
            }),
        }
    }
    (going, retained)
}

/// Versions that somebody names.
fn named_versions(layout: &Layout, rules: &Rules<'_>) -> BTreeMap<u64, HoldReason> {
    let mut out = BTreeMap::new();
    out.extend(rules.governance.reader_versions().into_iter().map(|v| (v, HoldReason::ReaderBlock)));
    out.extend(layout.branch_points.values().map(|v| (*v, HoldReason::Branch)));
    out.extend(layout.tags.values().map(|v| (*v, HoldReason::Tag)));
    out
}
