//! What is folded and merged.
//!
//! Only where rows are unindexed or segments exceed the bound: `merge(n)` replaces a vector segment on every call, so the gate
//! must be ours (facts, "Compaction").

use squire_lake::index::{IndexInfo, SEGMENT_BOUND, State};
use squire_service::report::{IndexAction, StepReason};

use super::{IndexWork, Layout, Limits, Verdict};

/// Below this an index is merged whole: more would only keep compaction waiting at segment boundaries.
const WHOLE_BYTES: u64 = 64 << 20;

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
    layout.indices.iter().filter(|i| i.can_fold()).filter_map(index_work).collect()
}

fn index_work(index: &IndexInfo) -> Option<IndexWork> {
    let segments = index.segments.len();
    let lagging = index.unindexed_rows > 0;
    if !lagging && segments <= SEGMENT_BOUND {
        return None;
    }
    let merge = merged_segments(index, lagging);
    let bytes = index.segments[segments - merge..].iter().map(|s| s.bytes).sum();
    Some(IndexWork {
        name: index.name.clone(),
        action: if lagging { IndexAction::Fold } else { IndexAction::Merge },
        merge,
        rows: index.unindexed_rows,
        segments_before: segments,
        segments_after: segments - merge + 1,
        bytes,
    })
}

/// How many of the latest segments join. Small indices are merged whole; large ones size-tiered: the older segment joins when
/// the newer ones have grown to half of it, and at most the bound stays.
fn merged_segments(index: &IndexInfo, lagging: bool) -> usize {
    let segments = &index.segments;
    let total: u64 = segments.iter().map(|s| s.bytes).sum();
    if total < WHOLE_BYTES {
        return segments.len();
    }
    let least = (segments.len() + usize::from(lagging)).saturating_sub(SEGMENT_BOUND);
    let mut merge = least.max(usize::from(!lagging) * 2).min(segments.len());
    let mut newer: u64 = segments[segments.len() - merge..].iter().map(|s| s.bytes).sum();
    while merge < segments.len() {
        let next = segments[segments.len() - merge - 1].bytes;
        if newer * 2 < next {
            break;
        }
        newer += next;
        merge += 1;
    }
    merge
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
