//! Memory admission: the sum of admitted estimates stays within `limits.memory` (invariant `memory_admitted`).
//!
//! Nothing in Lance obeys a budget by itself (design, "Containment"), so a pass is let in by an estimate of what its biggest
//! step holds at once.

use std::collections::BTreeSet;

use squire_lake::Lake;
use squire_lake::compact::stored::Slice;
pub use squire_service::admission::{Admission, Gauges, Peaks, Room};

use squire_service::report::IndexAction;

use crate::plan::{DatasetPlan, IndexWork, Layout, Round};

/// What any pass holds: caches, manifests, the buffers of readers and writers.
const BASE: u64 = 128 << 20;
/// One row of a direct remap: two addresses and the map's overhead.
const REMAPPED_ROW: u64 = 56;
/// Above this many rows the remap is kept compact, as the lake does it: sets of addresses and no map.
const DIRECT_REMAP_ROWS: u64 = 10_000_000;
/// What one batch of the reader aims at; a row may be wider.
const BATCH: u64 = 32 << 20;
/// Batches in flight of one task: read ahead, decoded, and being written.
const IN_FLIGHT: u64 = 4;
/// What the writer keeps of each column before it makes a page of it.
const COLUMN: u64 = 8 << 20;
/// What building an index anew may hold beside the index itself: sorts spill, and a full-text build is told to keep to it.
pub const REBUILD: u64 = 1 << 30;
/// Tasks that run at once.
const TASKS: u64 = 2;
/// Sampled rows of one side of a verification, which are held as they are and as comparable bytes.
const SAMPLE: u64 = 8 << 20;
/// What a look-up by brute force reads ahead while an index is verified.
const SCANNED: u64 = 128 << 20;
/// What 16 brute-force searches for vectors leave behind in the allocator, which was measured to be more than each of them holds.
const COMPARED: u64 = 384 << 20;
/// Vectors that are on their way to their partitions.
const SHUFFLED: u64 = 256 << 20;

/// Bytes that a plan's biggest step may hold at once.
pub fn estimate(layout: &Layout, plan: &DatasetPlan) -> u64 {
    of_rounds(layout, &plan.rounds)
}

/// The same of its rounds alone.
pub fn of_rounds(layout: &Layout, rounds: &[Round]) -> u64 {
    let most = |round: &Round| {
        let fold = round.indices.iter().map(|i| fold(layout, i)).max().unwrap_or(0);
        rewrite(layout, round).max(fold).max(verify(layout, round))
    };
    BASE + rounds.iter().map(most).max().unwrap_or(0)
}

/// Bytes that a round's tasks read and write, payloads beside the data files included.
fn written(layout: &Layout, round: &Round) -> u64 {
    round.tasks.iter().map(|t| t.bytes + t.rows * layout.payload).sum()
}

/// Executing and landing a round's tasks.
fn rewrite(layout: &Layout, round: &Round) -> u64 {
    let written = written(layout, round);
    let ids: BTreeSet<u64> = round.tasks.iter().flat_map(|t| t.fragments.iter().copied()).collect();
    let rows: u64 = layout.fragments.iter().filter(|f| ids.contains(&f.id)).map(|f| f.physical_rows).sum();
    let tasks = TASKS.min(round.tasks.len() as u64);
    let batches = written.min(tasks * IN_FLIGHT * BATCH.max(layout.held_row_bytes()));
    let pages = written.min(tasks * layout.columns * COLUMN);
    // One bit and what leads to it, of old addresses and of new ones.
    let compact = rows / 4;
    let remap = match layout.indices.is_empty() {
        true => 0,
        false if rows > DIRECT_REMAP_ROWS => compact,
        false => rows * REMAPPED_ROW,
    };
    batches + pages + remap
}

/// A fold reads what it merges and sorts what it adds; vectors pass through whole.
fn fold(layout: &Layout, work: &IndexWork) -> u64 {
    let is_vector = layout.indices.iter().any(|i| i.name == work.name && i.is_vector());
    let raw = if is_vector { work.rows * layout.held_row_bytes() } else { 0 };
    2 * work.bytes + raw.min(SHUFFLED) + anew(layout, work)
}

/// Comparing what was rewritten and what was folded with the version before.
fn verify(layout: &Layout, round: &Round) -> u64 {
    let written = written(layout, round);
    let rows = 4 * SAMPLE.max(layout.held_row_bytes()).min(written);
    let indexed = !layout.indices.is_empty() && !round.is_empty();
    let live: u64 = layout.fragments.iter().map(|f| f.bytes).sum();
    let scanned = match layout.indices.iter().any(|i| i.is_vector()) {
        true => COMPARED.min(4 * live),
        false => SCANNED.min(live),
    };
    rows.max(if indexed { scanned } else { 0 })
}

/// A build from the rows holds a few times what it sorts, up to [`REBUILD`]; vectors are sampled, twice, without a bound.
fn anew(layout: &Layout, work: &IndexWork) -> u64 {
    if work.action != IndexAction::Rebuild {
        return 0;
    }
    let data = layout.data_bytes();
    let vector = layout.indices.iter().any(|i| i.name == work.name && i.is_vector());
    if vector { 2 * data } else { (3 * data).min(REBUILD) }
}

/// Bytes that a slice of a compaction may hold at once: its batches. The indices are remapped by the commit.
pub fn of_slice(slice: &Slice) -> u64 {
    BASE + TASKS.min(slice.tasks.len() as u64) * IN_FLIGHT * BATCH.max(slice.settings.widest_row_bytes)
}

/// Bytes in Lance's caches, which have a bound of their own.
pub fn caches(lake: &Lake) -> impl Fn() -> u64 + Send + Sync + 'static {
    let lake = lake.clone();
    move || lake.cache_bytes()
}
