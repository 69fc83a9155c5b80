//! Admitted, or skipped with a reason. Pure.
//!
//! Every dataset seen ends in exactly one outcome (invariant `every_dataset_counted`). A sweep by hand is always due; the clock
//! and `sweep --due` need `interval` since the last material pass and a reason (design, "Admit").

use chrono::{DateTime, Utc};
use squire_lake::authority::Authority;
use squire_lake::look::{FragmentInfo, Look};
use squire_registry::{Forbidden, Governance};
use squire_service::config::Schedule;
use squire_service::report::SkipReason;
use squire_service::schedule::Job;

use crate::plan::{DatasetPlan, Layout};
use crate::state::DatasetState;

/// Why a dataset is left alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// FACES' reason.
    pub reason: SkipReason,
    /// A sentence for a person.
    pub detail: String,
}

fn skip(reason: SkipReason, detail: impl Into<String>) -> Option<Skip> {
    Some(Skip { reason, detail: detail.into() })
}

/// What the registry forbids, on its own: asked before a pass and again before each commit and each chunk of deletes.
pub fn forbidden(governance: &Governance, now: DateTime<Utc>) -> Option<Skip> {
    if let Some((why, detail)) = governance.forbidden() {
        let reason = match why {
            Forbidden::Unreadable => SkipReason::RegistryUnreadable,
            Forbidden::Trashed => SkipReason::Trashed,
            Forbidden::Deregistered => SkipReason::Deregistered,
            Forbidden::Frozen => SkipReason::Frozen,
            Forbidden::WarehouseInactive => SkipReason::WarehouseInactive,
            Forbidden::Blocked => SkipReason::Blocked,
        };
        return skip(reason, detail);
    }
    if let Some(why) = &governance.opted_out {
        return skip(SkipReason::OptedOut, why.clone());
    }
    if let Some(until) = governance.paused_until.filter(|t| *t > now) {
        return skip(SkipReason::OptedOut, format!("its own config pauses maintenance until {}", day(until)));
    }
    None
}

/// What the dataset itself forbids: its owner is not Lance.
pub fn not_ours(look: &Look) -> Option<Skip> {
    match &look.authority {
        Authority::Linear | Authority::Detached { .. } | Authority::Managed { .. } => None,
        Authority::Graph { mark } => {
            skip(SkipReason::GraphOwned, format!("a graph owns it ({mark}); let the graph's own tool maintain it"))
        }
        Authority::Unknown { why, feature_flags: true } => skip(SkipReason::UnknownFeatureFlags, why.clone()),
        Authority::Unknown { why, .. } => skip(SkipReason::UnknownAuthority, why.clone()),
    }
}

/// What the clock asks beyond a sweep by hand.
pub fn not_due(
    layout: &Layout,
    plan: &DatasetPlan,
    governance: &Governance,
    state: &DatasetState,
    now: DateTime<Utc>,
) -> Option<Skip> {
    let policy = &governance.policy.policy;
    if let Some(last) = state.last_pass_at
        && let Ok(since) = now.signed_duration_since(last).to_std()
        && since < policy.interval
    {
        return skip(
            SkipReason::NotDue,
            format!("the last pass was {} ago, interval is {}", short(since), short(policy.interval)),
        );
    }
    let small = layout.fragments.iter().filter(|f| f.physical_rows < plan.target.rows).count();
    let deleted: u64 = layout.fragments.iter().map(|f| f.deleted_rows).sum();
    let rows: u64 = layout.fragments.iter().map(FragmentInfo::rows).sum();
    let merges = plan.compact.is_planned();
    // The plan rewrites for a deadline of `erase_within`.
    let erases = policy.erase_within.is_some()
        && plan
            .rounds
            .iter()
            .flat_map(|r| &r.tasks)
            .flat_map(|t| &t.fragments)
            .any(|f| layout.erasure.fragments.contains_key(f));
    let worth_merging = erases
        || small >= policy.min_fragments as usize
        || deleted * 10 >= rows.max(1)
        || layout.quiet_for(now) >= policy.settle_after;
    let due = merges && worth_merging || plan.optimize_indices.is_planned() || plan.cleanup.is_planned();
    (!due).then(|| Skip { reason: SkipReason::NotDue, detail: "nothing to gain yet".into() })
}

/// `schedule.blackout`: the clock and `--due` start nothing, whatever brought the request (a change event, or a message that
/// was queued before).
pub fn in_blackout(schedule: &Schedule, now: DateTime<Utc>, by_clock: bool) -> Option<Skip> {
    let until = Job::maintenance(schedule).ok().filter(|_| by_clock)?.dark_until(now)?;
    skip(SkipReason::OutsideWindow, format!("schedule.blackout lasts until {}", day(until)))
}

/// The table's window and quiet time.
pub fn outside_window(layout: &Layout, governance: &Governance, now: DateTime<Utc>, by_clock: bool) -> Option<Skip> {
    let policy = &governance.policy.policy;
    if by_clock && !policy.window.trim().is_empty() {
        match squire_registry::window::Window::parse(&policy.window) {
            Ok(window) if window.contains(now) => {}
            Ok(_) => return skip(SkipReason::OutsideWindow, format!("its window is {}", policy.window)),
            Err(e) => return skip(SkipReason::OutsideWindow, format!("its window cannot be read: {e}")),
        }
    }
    let quiet = layout.quiet_for(now);
    if by_clock && quiet < policy.quiet_for {
        return skip(
            SkipReason::NotDue,
            format!("written {} ago, quiet_for is {}", short(quiet), short(policy.quiet_for)),
        );
    }
    None
}

fn day(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M UTC").to_string()
}

fn short(d: std::time::Duration) -> String {
    squire_service::human::format_duration(std::time::Duration::from_secs(d.as_secs()))
}
