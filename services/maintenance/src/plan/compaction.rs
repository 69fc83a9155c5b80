//! Which fragments are merged.
//!
//! What cannot gain is not planned: output count = input count and nothing to erase. A table below `small_bytes` is merged
//! whole; a larger one grows in steps, merging suffixes of neighbours of like size, so that a byte is rewritten a logarithmic
//! number of times (design, "Gain", "Small and large").

use std::collections::BTreeSet;

use squire_lake::index::State;
use squire_lake::look::FragmentInfo;
use squire_service::report::StepReason;
use uuid::Uuid;

use super::target::Target;
use super::{Layout, Limits, Task, Verdict};

/// A fragment with at least this share of deleted rows is rewritten even alone.
const DELETED_SHARE: f64 = 0.1;

/// Why compaction does not run at all, if so.
pub fn gate(layout: &Layout, limits: &Limits) -> Option<Verdict> {
    if !limits.steps.compact {
        return Some(Verdict::skipped(StepReason::Flag));
    }
    if !limits.policy_compact {
        return Some(Verdict::skipped(StepReason::Policy));
    }
    if layout.detached && !limits.steps_asked {
        let mut verdict = Verdict::skipped(StepReason::Policy);
        verdict.detail = Some("it has detached versions whose owner is not known; ask for it with --steps".into());
        return Some(verdict);
    }
    if let Some(name) = &layout.legacy_index {
        return Some(Verdict::refused(
            StepReason::LegacyIndex,
            format!("full-text index {name} has the layout before partitions; rebuild it first"),
        ));
    }
    if let Some(why) = layout.old_client.as_ref().filter(|_| !limits.upgrade_index_format) {
        return Some(Verdict::refused(
            StepReason::OldClients,
            format!(
                "{why}; a rewrite would take the index from that client; set upgrade_index_format = true once all clients are newer"
            ),
        ));
    }
    if let Some(index) = layout.indices.iter().find(|i| i.state == State::Unreadable) {
        return Some(Verdict::refused(
            StepReason::UnreadableIndex,
            format!("index {} cannot be read, so it cannot be remapped", index.name),
        ));
    }
    if layout.deferred_remaps {
        return Some(Verdict::refused(
            StepReason::UnreadableIndex,
            "remaps deferred by another writer are pending; optimise its indices with that writer first",
        ));
    }
    let external = layout.fragments.iter().filter(|f| f.external).count();
    if external > 0 && external == layout.fragments.len() {
        return Some(Verdict::refused(
            StepReason::ExternalBases,
            "its files lie under another base; a rewrite would copy them and leave the others to nobody",
        ));
    }
    None
}

/// Fragments that stay out: files under another base, counts not recorded, or covered by an index this build cannot open.
pub fn held_out(layout: &Layout) -> BTreeSet<u64> {
    let blind: Vec<_> = layout.indices.iter().filter(|i| i.state == State::Unsupported).map(|i| i.covered()).collect();
    layout
        .fragments
        .iter()
        .filter(|f| {
            let covered = u32::try_from(f.id).map_or(true, |id| blind.iter().any(|b| b.contains(id)));
            f.external || !f.complete || covered
        })
        .map(|f| f.id)
        .collect()
}

/// The tasks on this layout.
pub fn tasks(layout: &Layout, target: &Target, limits: &Limits) -> Vec<Task> {
    tasks_by(layout, target, limits, |id| signature(layout, id, false))
}

/// Whether more fragments would go if the indices were folded first: then coverage is the only boundary, and compacting now
/// would rewrite twice.
pub fn better_after_fold(layout: &Layout, target: &Target, limits: &Limits, now: &[Task]) -> bool {
    if super::indices::work(layout).is_empty() {
        return false;
    }
    let folded = tasks_by(layout, target, limits, |id| signature(layout, id, true));
    let removed =
        |tasks: &[Task]| -> u64 { tasks.iter().map(|t| (t.fragments.len() as u64).saturating_sub(t.outputs)).sum() };
    removed(&folded) > removed(now)
}

/// The segments that cover a fragment; only neighbours with the same set are merged. With `folded`, as if every index that
/// can be folded covered everything.
fn signature(layout: &Layout, id: u64, folded: bool) -> Vec<Uuid> {
    let id = u32::try_from(id).unwrap_or(u32::MAX);
    let mut out: Vec<Uuid> = layout
        .indices
        .iter()
        .filter(|i| !(folded && i.can_fold()))
        .flat_map(|i| &i.segments)
        .filter(|s| s.fragments.as_ref().is_none_or(|b| b.contains(id)))
        .map(|s| s.uuid)
        .collect();
    out.sort_unstable();
    out
}

fn tasks_by(layout: &Layout, target: &Target, limits: &Limits, signature: impl Fn(u64) -> Vec<Uuid>) -> Vec<Task> {
    let held = held_out(layout);
    let whole = layout.data_bytes() < limits.small_bytes || limits.quiet;
    let mut out = Vec::new();
    let mut run: Vec<&FragmentInfo> = Vec::new();
    let mut last = None;
    for fragment in &layout.fragments {
        let candidate = !held.contains(&fragment.id) && is_candidate(fragment, target, limits);
        let sign = signature(fragment.id);
        if !candidate || last.as_ref().is_some_and(|s| *s != sign) {
            close(&mut run, target, limits, whole, &mut out);
        }
        if candidate {
            run.push(fragment);
            last = Some(sign);
        } else {
            last = None;
        }
    }
    close(&mut run, target, limits, whole, &mut out);
    out
}

fn is_candidate(fragment: &FragmentInfo, target: &Target, limits: &Limits) -> bool {
    fragment.physical_rows < target.rows || erases(fragment, limits)
}

fn erases(fragment: &FragmentInfo, limits: &Limits) -> bool {
    let must = limits.erase && (fragment.deleted_rows > 0 || fragment.files_with_dead_columns > 0);
    must || fragment.deleted_rows > 0 && fragment.deleted_rows as f64 >= DELETED_SHARE * fragment.physical_rows as f64
        || fragment.overlays > 10
}

/// Turns a run of neighbours into tasks.
fn close(run: &mut Vec<&FragmentInfo>, target: &Target, limits: &Limits, whole: bool, out: &mut Vec<Task>) {
    let fragments = std::mem::take(run);
    let start = if whole { 0 } else { suffix(&fragments) };
    let (alone, merged) = fragments.split_at(start);
    for fragment in alone.iter().filter(|f| erases(f, limits)) {
        out.extend(task(&[fragment], target, limits));
    }
    for bin in bins(merged, target) {
        let enough = bin.len() as u64 >= limits.min_fragments || limits.quiet || bin.iter().any(|f| erases(f, limits));
        if enough {
            out.extend(task(bin, target, limits));
        }
    }
}

/// Where the longest suffix starts in which the largest fragment holds at most a third of the bytes: like is merged with like, and
/// a large fragment is not rewritten for the sake of a few rows. (With a half, 100 appends of 1 % rewrite five times what was
/// appended; with a third less than three times.)
fn suffix(run: &[&FragmentInfo]) -> usize {
    (0..run.len())
        .find(|i| {
            let total: u64 = run[*i..].iter().map(|f| f.bytes).sum();
            let largest = run[*i..].iter().map(|f| f.bytes).max().unwrap_or(0);
            total >= largest.saturating_mul(3)
        })
        .unwrap_or(run.len())
}

/// Cuts a run once a bin has enough rows and what is left is enough for another; the last bin takes the rest, so that no
/// remainder is walled in between full fragments (facts/pains, C7).
fn bins<'a, 'b>(run: &'a [&'b FragmentInfo], target: &Target) -> Vec<&'a [&'b FragmentInfo]> {
    let mut out = Vec::new();
    let mut left: u64 = run.iter().map(|f| f.rows()).sum();
    let (mut start, mut rows) = (0, 0);
    for (i, fragment) in run.iter().enumerate() {
        rows += fragment.rows();
        left -= fragment.rows();
        if rows >= target.rows && left >= target.rows {
            out.push(&run[start..=i]);
            start = i + 1;
            rows = 0;
        }
    }
    if start < run.len() {
        out.push(&run[start..]);
    }
    out
}

/// A task, if it gains: fewer fragments come out, or something is erased.
fn task(bin: &[&FragmentInfo], target: &Target, limits: &Limits) -> Option<Task> {
    let rows: u64 = bin.iter().map(|f| f.rows()).sum();
    // Lance makes max(1, rows / target) fragments of a task (optimize.rs, rewrite_files).
    let outputs = if rows == 0 { 0 } else { (rows / target.rows).max(1) };
    let gains = outputs < bin.len() as u64 || bin.iter().any(|f| erases(f, limits));
    gains.then(|| Task {
        fragments: bin.iter().map(|f| f.id).collect(),
        rows,
        bytes: bin.iter().map(|f| f.bytes).sum(),
        outputs,
    })
}
