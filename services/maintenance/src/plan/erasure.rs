//! What is done about values that were deleted, or whose column was dropped ([`squire_lake::erasure`]). Pure. With
//! `erase_within` they are gone by the deadline:
//!
//! - from a quarter of it on, the clock rewrites every fragment with deleted rows or dropped columns, however few;
//! - a version whose files hold what HEAD's no longer do goes at the deadline, also below `retain_versions` and within
//!   `retention`. One that was still current late, because the rewrite came late, stays readable for half of
//!   `erase_within` after it was replaced;
//! - an index that was built from rows which are deleted by now is built anew from those that are left, from a quarter on;
//! - where HEAD itself is the delete, its manifest and transaction tell what was deleted: a quiet table gets one empty
//!   stamped commit, so that this version can go like any other.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use squire_lake::erasure::Stale;
use squire_registry::Governance;
use squire_service::report as model;

use super::{DatasetPlan, Layout, Rules};

fn delta(duration: Duration) -> Option<TimeDelta> {
    TimeDelta::from_std(duration).ok()
}

/// Whether the first half of erasure, the rewrite or the empty commit, is to be done: by hand always, by the clock from a
/// quarter of `within` on, which leaves time for the second.
fn is_time(since: DateTime<Utc>, within: Duration, rules: &Rules<'_>) -> bool {
    let from = delta(within / 4).and_then(|quarter| since.checked_add_signed(quarter));
    !rules.settings.by_clock || from.is_some_and(|from| from <= rules.now)
}

/// Whether fragments with erased values are rewritten now, however little they would gain.
pub fn rewrites(layout: &Layout, rules: &Rules<'_>) -> bool {
    let within = rules.governance.policy.policy.erase_within;
    matches!((within, layout.erasure.oldest_fragment()), (Some(within), Some(since)) if is_time(since, within, rules))
}

/// The indices that are built anew now: nothing but the rows goes into such a build. Not under a hold, which keeps every version
/// that has the values anyway.
pub fn rebuilds(layout: &Layout, rules: &Rules<'_>) -> BTreeSet<String> {
    let within = rules.governance.policy.policy.erase_within;
    let Some(within) = within.filter(|_| rules.governance.held_by().is_none()) else { return BTreeSet::new() };
    let now = |s: &Stale| s.cannot.is_none() && s.since.is_none_or(|since| is_time(since, within, rules));
    layout.erasure.indices.iter().filter(|(_, s)| now(s)).map(|(name, _)| name.clone()).collect()
}

/// Whether one empty commit is to be made, so that HEAD becomes a version that can go.
pub fn needs_empty_commit(layout: &Layout, rules: &Rules<'_>) -> bool {
    let policy = &rules.governance.policy.policy;
    let (Some(within), Some(since)) = (policy.erase_within, layout.erasure.head_tells) else { return false };
    // Where HEAD's files hold something, the rewrite is that commit.
    policy.cleanup
        && rules.settings.steps.cleanup
        && layout.erasure.fragments.is_empty()
        && is_time(since, within, rules)
}

/// What the report says of it. `clones` are the datasets that read this one's files.
pub fn view(layout: &Layout, plan: &DatasetPlan, governance: &Governance, clones: &[String]) -> Option<model::Erasure> {
    let within = governance.policy.policy.erase_within?;
    let erasure = &layout.erasure;
    let since = erasure.oldest();
    let mut unreached = Vec::new();
    let mut keep = |what: String, by: String, until| unreached.push(model::Unreached { what, by, until });
    let held = |version: &u64| erasure.versions.contains_key(version) || erasure.old.contains(version);
    let named = |version: &u64| {
        let blocked = governance.blocks.iter().any(|b| b.version == Some(*version));
        blocked || layout.tags.values().chain(layout.branch_points.values()).any(|v| v == version)
    };
    for (tag, version) in layout.tags.iter().filter(|(_, v)| held(v)) {
        keep(format!("version {version}"), format!("tag {tag}"), None);
    }
    for (branch, version) in &layout.branch_points {
        keep(format!("version {version} and the versions of the branch"), format!("branch {branch}"), None);
    }
    for block in governance.blocks.iter().filter(|b| b.version.as_ref().is_some_and(held)) {
        keep(format!("version {}", block.version.unwrap_or_default()), format!("block {}", block.id), block.until);
    }
    // Its own versions name them, whatever is left here.
    for clone in clones {
        keep("the files that it reads".into(), format!("clone {clone}"), None);
    }
    for (name, stale) in &erasure.indices {
        let closed = matches!(plan.optimize_indices.outcome, model::StepOutcome::Refused | model::StepOutcome::Skipped);
        let (by, until) = match (&stale.cannot, governance.held_by(), plan.optimize_indices.reason.filter(|_| closed)) {
            (Some(why), _, _) => (format!("entries that it may have of deleted rows; {why}"), None),
            (None, Some(hold), _) => (format!("{} on {}", hold.level, hold.subject), None),
            (None, None, Some(reason)) => (reason.as_str().to_owned(), None),
            (None, None, None) => {
                let by = stale.since.and_then(|since| since.checked_add_signed(delta(within)?));
                ("entries that it may have of deleted rows, until it is built anew".to_owned(), by)
            }
        };
        keep(format!("index {name}"), by, until);
    }
    for version in erasure.untold.iter().filter(|v| !erasure.versions.contains_key(v) && !named(v)) {
        let kept = plan.retained.iter().find(|r| r.version == *version);
        let by = kept.map_or("clean-up".to_owned(), |r| r.by.to_string());
        keep(format!("version {version}"), by, kept.and_then(|r| r.until));
    }
    if since.is_some() {
        if let Some(hold) = governance.held_by() {
            keep("every version".into(), format!("{} on {}", hold.level, hold.subject), None);
        }
        for (verdict, what) in [(&plan.compact, "fragments of HEAD"), (&plan.cleanup, "old versions")] {
            if let (model::StepOutcome::Refused | model::StepOutcome::Skipped, Some(reason)) =
                (verdict.outcome, verdict.reason)
            {
                keep(what.into(), reason.as_str().to_owned(), None);
            }
        }
    }
    Some(model::Erasure {
        done: since.is_none() && unreached.is_empty(),
        since,
        deadline: since.and_then(|since| since.checked_add_signed(delta(within)?)),
        fragments: erasure.fragments.len() as u64,
        versions: erasure.versions.keys().copied().collect(),
        unreached,
        not_looked_at: [Some("quarantine"), erasure.unnamed.then_some("files that no version names")]
            .into_iter()
            .flatten()
            .chain(["non-current object versions", "copies outside of the estate"])
            .map(String::from)
            .collect(),
    })
}
