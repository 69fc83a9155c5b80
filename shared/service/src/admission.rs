//! Memory admission: the sum of admitted estimates stays within `limits.memory` (invariant `memory_admitted`).
//!
//! Work is let in by an estimate of what it holds at once. What is big waits and what is small passes it, but not for ever: who
//! has waited for a minute is next.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::report::Invariant;
use crate::telemetry::{Metrics, resident_bytes};

mod meter;

pub use meter::{Gauges, Peaks};

use meter::Meter;

/// Who has waited so long lets nobody pass any more.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// Room for one piece of work; given back when dropped.
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

    /// Of a whole process: its resident set, the caches (which have a bound of their own), and a violation counted where the
    /// estimates were too small.
    pub fn of_process(budget: u64, caches: impl Fn() -> u64 + Send + Sync + 'static, metrics: &Metrics) -> Self {
        let metrics = metrics.clone();
        let exceeded = move |peaks: Peaks| {
            let Peaks { measured, admitted } = peaks;
            let detail =
                format!("work that was admitted with {admitted} bytes took {measured}; lower limits.concurrency");
            metrics.violated(Invariant::MemoryAdmitted, &detail);
        };
        Self::measured(
            budget,
            Gauges { resident: Box::new(resident_bytes), caches: Box::new(caches), exceeded: Box::new(exceeded) },
        )
    }

    /// What was measured since nothing was admitted last; `None` where nothing is measured.
    pub fn peaks(&self) -> Option<Peaks> {
        self.0.meter.as_ref().map(|m| m.peaks())
    }

    /// Waits until `bytes` fit. What exceeds the whole budget runs alone: refusing it for ever helps nobody.
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

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

        /// Whatever comes in whatever order and stays however long: what is admitted together fits, or is one alone.
        #[test]
        fn the_sum_of_what_is_admitted_never_passes_the_budget(
            work in proptest::collection::vec((1_u64..160, 0_usize..6), 1..40),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let (admission, inside) = (Admission::new(100), Arc::new(Mutex::new(0_usize)));
                let tasks: Vec<_> = work
                    .into_iter()
                    .map(|(bytes, turns)| {
                        let (admission, inside) = (admission.clone(), inside.clone());
                        tokio::spawn(async move {
                            let room = admission.admit(bytes).await;
                            *inside.lock().expect("not poisoned") += 1;
                            for _ in 0..=turns {
                                let (used, n) = (admission.used(), *inside.lock().expect("not poisoned"));
                                assert!(used <= 100 || n == 1, "{n} were admitted with {used}");
                                tokio::task::yield_now().await;
                            }
                            *inside.lock().expect("not poisoned") -= 1;
                            drop(room);
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.expect("admitted, and within the budget");
                }
                assert_eq!(admission.used(), 0);
            });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_waited_for_a_minute_is_next() {
        let admission = Admission::new(100);
        let first = admission.admit(60).await;
        let (waiting, later) = (admission.clone(), admission.clone());
        let big = tokio::spawn(async move { waiting.admit(80).await });
        tokio::time::sleep(PATIENCE).await;
        // It would fit beside the first, as it would have a minute ago.
        let small = tokio::spawn(async move { later.admit(40).await });
        tokio::time::sleep(PATIENCE).await;
        assert!(!small.is_finished() && !big.is_finished());
        drop(first);
        let big = big.await.expect("admitted");
        tokio::time::sleep(PATIENCE).await;
        assert!(!small.is_finished(), "they do not fit together");
        drop(big);
        assert_eq!(small.await.expect("admitted").bytes, 40);
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
