//! What is folded and merged.
//!
//! Only where rows are unindexed or segments exceed the bound: `merge(n)` replaces a vector segment on every call, so the gate
//! must be ours (facts, "Compaction").

use squire_lake::index::{IndexInfo, SMALL_BYTES, State};
use squire_service::report::{IndexAction, StepReason};

use super::{IndexWork, Layout, Limits, Verdict};

/// Why index work does not run at all, if so.
pub fn gate(layout: &Layout, limits: &Limits) -> Option<Verdict> {
    if !limits.steps.optimize_indices {
        return Some(Verdict::skipped(StepReason::Flag));
    }
    if !limits.policy_indices {
        return Some(Verdict::skipped(StepReason::Policy));
    }
    if layout.indices.is_empty() {
        return Some(Verdict::nothing(StepReason::NoGain));
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
            format!("{why}; folding would take the index from that client"),
        ));
    }
    None
}

/// Index work on this layout.
pub fn work(layout: &Layout) -> Vec<IndexWork> {
    let of = |index: &IndexInfo| match layout.rebuild.contains(&index.name) {
        true => Some(anew(index)),
        false => index_work(index),
    };
    layout.indices.iter().filter(|i| i.can_fold()).filter_map(of).collect()
}

/// From the rows, in place of every segment.
fn anew(index: &IndexInfo) -> IndexWork {
    let segments = index.segments.len();
    IndexWork {
        name: index.name.clone(),
        action: IndexAction::Rebuild,
        merge: segments,
        rows: index.indexed_rows + index.unindexed_rows,
        segments_before: segments,
        segments_after: 1,
        bytes: index.bytes(),
    }
}

fn index_work(index: &IndexInfo) -> Option<IndexWork> {
    let segments = index.segments.len();
    let lagging = index.unindexed_rows > 0;
    if index.dead_rows > 0 {
        return Some(without_dead_rows(index));
    }
    if !lagging && segments <= index.segment_bound() {
        return None;
    }
    let new = new_bytes(index);
    let merge = merged_segments(index, new);
    // Segments whose coverage a rewrite took are replaced and not read.
    let read = if index.indexed_rows == 0 { &[] } else { &index.segments[segments - merge..] };
    Some(IndexWork {
        name: index.name.clone(),
        action: if lagging { IndexAction::Fold } else { IndexAction::Merge },
        merge,
        rows: index.unindexed_rows,
        segments_before: segments,
        segments_after: segments - merge + 1,
        bytes: read.iter().map(|s| s.bytes).sum::<u64>() + new.unwrap_or(0),
    })
}

/// All segments in one, which leaves out the rows that are gone. Of a full-text index Lance's merge leaves out what is in no
/// fragment, but not what an update moved to a fragment of another segment (lance, `index/append.rs`): that is built anew.
fn without_dead_rows(index: &IndexInfo) -> IndexWork {
    let action = if index.is_full_text() { IndexAction::Rebuild } else { IndexAction::Merge };
    IndexWork { action, rows: 0, ..anew(index) }
}

/// About the bytes that the unindexed rows add, by those of the indexed ones; `None` where no row is unindexed.
fn new_bytes(index: &IndexInfo) -> Option<u64> {
    let of = |rows: u64| u128::from(index.bytes()) * u128::from(rows) / u128::from(index.indexed_rows);
    match (index.unindexed_rows, index.indexed_rows) {
        (0, _) => None,
        (_, 0) => Some(index.bytes()),
        (rows, _) => Some(u64::try_from(of(rows)).unwrap_or(u64::MAX)),
    }
}

/// How many of the latest segments join the new one. Small indices are merged whole. Large ones like with like: the longest run
/// of latest segments, the new rows being one, in which the largest holds at most half of the bytes; so a byte is rewritten a
/// logarithmic number of times. At most the bound stays.
fn merged_segments(index: &IndexInfo, new: Option<u64>) -> usize {
    let mut list: Vec<u64> = index.segments.iter().map(|s| s.bytes).collect();
    let segments = list.len();
    if index.bytes() < SMALL_BYTES {
        return segments;
    }
    list.extend(new);
    let alike = |start: &usize| {
        let run = &list[*start..];
        run.iter().sum::<u64>() >= run.iter().max().copied().unwrap_or(0).saturating_mul(2)
    };
    // Without new rows at least two join; with them, none has to.
    let last = segments.saturating_sub(if new.is_some() { 0 } else { 2 });
    let start = (0..last).find(alike).unwrap_or(last).min(index.segment_bound() - 1);
    segments - start
}

/// How index work stands when no gate closed it.
pub fn verdict(layout: &Layout, planned: bool) -> Verdict {
    if planned {
        return Verdict::planned();
    }
    if let Some(index) = layout.indices.iter().find(|i| i.state == State::Unreadable) {
        return Verdict::refused(
            StepReason::UnreadableIndex,
            format!("index {}: {}", index.name, index.detail.as_deref().unwrap_or("it cannot be read")),
        );
    }
    if let Some(index) = layout.indices.iter().find(|i| i.state == State::Untrained && i.unindexed_rows > 0) {
        return Verdict::refused(StepReason::Untrained, format!("index {} waits for enough rows to train", index.name));
    }
    Verdict::nothing(StepReason::NoGain)
}
