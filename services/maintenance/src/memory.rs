//! Memory admission: the sum of admitted estimates stays within `limits.memory` (invariant `memory_admitted`).
//!
//! Nothing in Lance obeys a budget by itself (design, "Containment"), so a pass is let in by an estimate of what its biggest
//! step holds at once. A big pass waits and small ones pass it, but not for ever: who has waited for [`PATIENCE`] is next.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use squire_lake::Lake;
use squire_lake::compact::stored::Slice;
use squire_service::report::Invariant;
use squire_service::telemetry::{Metrics, resident_bytes};
use tokio::sync::Notify;

use crate::plan::{DatasetPlan, Layout};

mod meter;

pub use meter::{Gauges, Peaks};

use meter::Meter;

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
/// A pass that has waited so long lets nobody pass it any more.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// Who may be in memory at once. Cheap to clone; clones share the budget.
#[derive(Debug, Clone)]
pub struct Admission(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    budget: u64,
    state: Mutex<State>,
    freed: Notify,
    meter: Option<Arc<Meter>>,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    admitted: usize,
    /// Who waits, in order, since when.
    waiting: Vec<(u64, Instant)>,
    next: u64,
}

/// Room for one pass; given back when dropped.
#[derive(Debug)]
pub struct Room {
    admission: Arc<Inner>,
    bytes: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        let used = {
            let mut state = self.admission.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.used = state.used.saturating_sub(self.bytes);
            state.admitted -= 1;
            state.used
        };
        if let Some(meter) = &self.admission.meter {
            meter.left(used);
        }
        self.admission.freed.notify_waiters();
    }
}

impl Admission {
    /// A budget in bytes.
    pub fn new(budget: u64) -> Self {
        Self(Arc::new(Inner { budget, state: Mutex::default(), freed: Notify::new(), meter: None }))
    }

    /// The same, measured: see [`Gauges`].
    pub fn measured(budget: u64, gauges: Gauges) -> Self {
        let meter = Some(Arc::new(Meter::new(gauges)));
        Self(Arc::new(Inner { budget, state: Mutex::default(), freed: Notify::new(), meter }))
    }

    /// Of a whole process: its resident set, Lance's caches, and a violation counted where the estimates were too small.
    pub fn of_process(budget: u64, lake: &Lake, metrics: &Metrics) -> Self {
        let (lake, metrics) = (lake.clone(), metrics.clone());
        let exceeded = move |peaks: Peaks| {
            let Peaks { measured, admitted } = peaks;
            let detail =
                format!("work that was admitted with {admitted} bytes took {measured}; lower limits.concurrency");
            metrics.violated(Invariant::MemoryAdmitted, &detail);
        };
        Self::measured(
            budget,
            Gauges {
                resident: Box::new(resident_bytes),
                caches: Box::new(move || lake.cache_bytes()),
                exceeded: Box::new(exceeded),
            },
        )
    }

    /// What was measured since nothing was admitted last; `None` where nothing is measured.
    pub fn peaks(&self) -> Option<Peaks> {
        self.0.meter.as_ref().map(|m| m.peaks())
    }

    /// Waits until `bytes` fit. A pass that exceeds the whole budget runs alone: refusing it for ever helps nobody.
    pub async fn admit(&self, bytes: u64) -> Room {
        let inner = &self.0;
        let me = {
            let mut state = inner.state.lock().unwrap_or_else(PoisonError::into_inner);
            let me = state.next;
            state.next += 1;
            state.waiting.push((me, Instant::now()));
            me
        };
        // Given up while it waited, it must not be waited for.
        let place = Place { admission: inner.clone(), me };
        loop {
            let freed = inner.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if inner.try_admit(me, bytes) {
                drop(place);
                if let Some(meter) = &inner.meter {
                    Meter::entered(meter, self.used());
                }
                return Room { admission: inner.clone(), bytes };
            }
            tokio::select! {
                () = freed => {}
                () = tokio::time::sleep(PATIENCE / 4) => {}
            }
        }
    }

    /// Bytes admitted now.
    pub fn used(&self) -> u64 {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner).used
    }
}

impl Inner {
    fn try_admit(&self, me: u64, bytes: u64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let starving = state.waiting.iter().find(|(_, since)| since.elapsed() >= PATIENCE).map(|(id, _)| *id);
        let fits = state.used + bytes <= self.budget || state.admitted == 0;
        if !fits || starving.is_some_and(|id| id != me) {
            return false;
        }
        state.used += bytes;
        state.admitted += 1;
        true
    }
}

struct Place {
    admission: Arc<Inner>,
    me: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.admission.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting.retain(|(id, _)| *id != self.me);
        drop(state);
        self.admission.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_big_pass_waits_and_a_small_one_passes_it() {
        let admission = Admission::new(100);
        let first = admission.admit(60).await;
        let waiting = admission.clone();
        let big = tokio::spawn(async move { waiting.admit(80).await.bytes });
        tokio::task::yield_now().await;
        let small = admission.admit(40).await;
        assert_eq!(admission.used(), 100);
        assert!(!big.is_finished());
        drop(small);
        drop(first);
        assert_eq!(big.await.expect("admitted"), 80);
        assert_eq!(admission.used(), 0);
    }

    #[tokio::test]
    async fn what_exceeds_the_budget_runs_alone() {
        let admission = Admission::new(100);
        let huge = admission.admit(500).await;
        let waiting = admission.clone();
        let next = tokio::spawn(async move { waiting.admit(1).await.bytes });
        tokio::task::yield_now().await;
        assert!(!next.is_finished());
        drop(huge);
        assert_eq!(next.await.expect("admitted"), 1);
    }
}
