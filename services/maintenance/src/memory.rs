//! Memory admission: the sum of admitted estimates stays within `limits.memory` (invariant `memory_admitted`).
//!
//! Nothing in Lance obeys a budget by itself (design, "Containment"), so a pass is let in by an estimate of what its biggest
//! step holds at once.

use squire_lake::Lake;
use squire_lake::compact::stored::Slice;
pub use squire_service::admission::{Admission, Gauges, Peaks, Room};

use crate::plan::{DatasetPlan, Layout};

/// What any pass holds: caches, manifests, the buffers of readers and writers.
const BASE: u64 = 128 << 20;
/// One row of a direct remap: two addresses and the map's overhead.
const REMAPPED_ROW: u64 = 56;
/// Above this many rows the remap is kept compact, as the lake does it.
const DIRECT_REMAP_ROWS: u64 = 10_000_000;
/// Batches in flight of one task: read ahead, decoded, and being written.
const BATCHES: u64 = 4 * (32 << 20);
/// Tasks that run at once.
const TASKS: u64 = 2;

/// Bytes that a plan's biggest step may hold at once.
pub fn estimate(layout: &Layout, plan: &DatasetPlan) -> u64 {
    let mut most = 0;
    for round in &plan.rounds {
        let written: u64 = round.tasks.iter().map(|t| t.bytes).sum();
        let ids: Vec<u64> = round.tasks.iter().flat_map(|t| t.fragments.iter().copied()).collect();
        let rows: u64 = layout.fragments.iter().filter(|f| ids.contains(&f.id)).map(|f| f.physical_rows).sum();
        let remap = if layout.indices.is_empty() || rows > DIRECT_REMAP_ROWS { 0 } else { rows * REMAPPED_ROW };
        let compact = written.min(BATCHES * TASKS) + remap;
        // A fold sorts what it adds and reads what it merges.
        let fold = round.indices.iter().map(|i| i.bytes).max().unwrap_or(0);
        most = most.max(compact).max(fold);
    }
    BASE + most
}

/// Bytes that a slice of a compaction may hold at once: its batches. The indices are remapped by the commit.
pub fn of_slice(slice: &Slice) -> u64 {
    BASE + BATCHES * TASKS.min(slice.tasks.len() as u64)
}

/// Bytes in Lance's caches, which have a bound of their own.
pub fn caches(lake: &Lake) -> impl Fn() -> u64 + Send + Sync + 'static {
    let lake = lake.clone();
    move || lake.cache_bytes()
}
