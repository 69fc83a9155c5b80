//! Whether versions go, and which: the rule of [`squire_lake::retention`], and every refusal.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use squire_lake::clean::{Removal, removal};
use squire_lake::look::Look;
use squire_lake::refs::KeepSet;
use squire_lake::retention::{self, Holder, Version};
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
    let versions: Vec<Version> =
        layout.versions.iter().map(|v| Version { version: v.version, time: v.time, ours: v.ours }).collect();
    let named = named_versions(layout, rules);
    let (going, kept) =
        retention::choose(&versions, &named, &layout.erasure, &rules.governance.policy.policy, rules.now);
    let bytes = |version| layout.versions.iter().find(|v| v.version == version).map_or(0, |v| v.exclusive_bytes);
    let retained = kept.into_iter().map(|k| Retained {
        version: k.version,
        replaced_at: k.replaced_at,
        by: k.by.as_str().parse().unwrap_or(HoldReason::Retention),
        until: k.until,
        bytes: bytes(k.version),
    });
    (going, retained.collect())
}

/// Versions that somebody names.
fn named_versions(layout: &Layout, rules: &Rules<'_>) -> BTreeMap<u64, Holder> {
    let mut out = BTreeMap::new();
    out.extend(rules.governance.reader_versions().into_iter().map(|v| (v, Holder::ReaderBlock)));
    out.extend(layout.branch_points.values().map(|v| (*v, Holder::Branch)));
    out.extend(layout.tags.values().map(|v| (*v, Holder::Tag)));
    out
}
