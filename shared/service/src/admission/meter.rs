//! What admitted work really takes (invariant `memory_admitted`: measured over estimated is at most 1.5).
//!
//! The process cannot tell whose bytes are whose, so all that is admitted at once is measured together: from the moment at which
//! something is admitted until nothing is any more, the resident set is read twenty times a second. Measured is its peak above
//! what it was in the beginning, less what Lance's caches grew by, which have a bound of their own (a quarter of
//! `limits.memory`). Estimated is the most that was admitted together. The allocator may keep what was freed: then later work
//! measures less than it takes, and never more. The peak of one moment and the admissions of another are not compared: both are
//! peaks of the same span.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often the resident set is read.
const EVERY: Duration = Duration::from_millis(50);

/// Where a process reads what it takes, and who is told when that is too much. Each is called from a task of its own.
pub struct Gauges {
    /// Its resident set in bytes; `None` where the system does not tell.
    pub resident: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    /// Bytes in caches that have a bound of their own.
    pub caches: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Told of the first peak in a span that is more than half as much again as what was admitted.
    pub exceeded: Box<dyn Fn(Peaks) + Send + Sync>,
}

/// One span, from the first admission until nothing is admitted any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Peaks {
    /// The most that was measured, in bytes.
    pub measured: u64,
    /// The most that was admitted together, in bytes.
    pub admitted: u64,
}

impl Peaks {
    fn exceeds(self) -> bool {
        self.measured > self.admitted + self.admitted / 2
    }
}

pub(super) struct Meter {
    gauges: Gauges,
    span: Mutex<Span>,
}

#[derive(Default)]
struct Span {
    /// Resident set and caches when it began; `None` while nothing is admitted.
    began: Option<(u64, u64)>,
    peaks: Peaks,
    told: bool,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("peaks", &self.peaks()).finish_non_exhaustive()
    }
}

impl Meter {
    pub(super) fn new(gauges: Gauges) -> Self {
        Self { gauges, span: Mutex::default() }
    }

    pub(super) fn peaks(&self) -> Peaks {
        self.lock().peaks
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Span> {
        self.span.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was admitted, and with it so many bytes.
    pub(super) fn entered(meter: &Arc<Self>, admitted: u64) {
        let begins = {
            let mut span = meter.lock();
            let begins = span.began.is_none();
            if begins {
                let resident = (meter.gauges.resident)().unwrap_or(u64::MAX);
                *span = Span { began: Some((resident, (meter.gauges.caches)())), ..Span::default() };
            }
            span.peaks.admitted = span.peaks.admitted.max(admitted);
            begins
        };
        if begins {
            let meter = meter.clone();
            tokio::spawn(async move {
                while meter.sample() {
                    tokio::time::sleep(EVERY).await;
                }
            });
        }
    }

    /// Something has left, and with what is left so many bytes are admitted.
    pub(super) fn left(&self, admitted: u64) {
        self.sample();
        if admitted == 0 {
            self.lock().began = None;
        }
    }

    /// Reads once. False when nothing is admitted any more.
    pub(super) fn sample(&self) -> bool {
        let mut span = self.lock();
        let Some((resident, caches)) = span.began else { return false };
        let grown = (self.gauges.resident)().unwrap_or(0).saturating_sub(resident);
        if grown <= span.peaks.measured {
            return true;
        }
        let mut peaks = Peaks { measured: grown, ..span.peaks };
        // Sizes of caches are summed up anew each time: only asked for where it matters.
        if peaks.exceeds() {
            let cached = (self.gauges.caches)().saturating_sub(caches);
            peaks.measured = span.peaks.measured.max(grown.saturating_sub(cached));
        }
        span.peaks = peaks;
        if peaks.exceeds() && !std::mem::replace(&mut span.told, true) {
            drop(span);
            (self.gauges.exceeded)(peaks);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::Admission;
    use super::*;

    struct World {
        resident: Arc<AtomicU64>,
        caches: Arc<AtomicU64>,
        told: Arc<Mutex<Vec<Peaks>>>,
        admission: Admission,
    }

    fn world() -> World {
        let (resident, caches) = (Arc::new(AtomicU64::new(1_000)), Arc::new(AtomicU64::new(0)));
        let told: Arc<Mutex<Vec<Peaks>>> = Arc::default();
        let (r, c, t) = (resident.clone(), caches.clone(), told.clone());
        let admission = Admission::measured(
            1_000,
            Gauges {
                resident: Box::new(move || Some(r.load(Ordering::SeqCst))),
                caches: Box::new(move || c.load(Ordering::SeqCst)),
                exceeded: Box::new(move |peaks| t.lock().expect("not poisoned").push(peaks)),
            },
        );
        World { resident, caches, told, admission }
    }

    impl World {
        fn takes(&self, bytes: u64) {
            self.resident.store(1_000 + bytes, Ordering::SeqCst);
            self.admission.0.meter.as_ref().expect("measured").sample();
        }
        fn told(&self) -> Vec<Peaks> {
            self.told.lock().expect("not poisoned").clone()
        }
    }

    #[tokio::test]
    async fn what_takes_more_than_half_as_much_again_is_told_once() {
        let world = world();
        let room = world.admission.admit(100).await;
        world.takes(150);
        assert_eq!(world.told(), []);
        world.takes(151);
        world.takes(400);
        assert_eq!(world.told(), [Peaks { measured: 151, admitted: 100 }]);
        assert_eq!(world.admission.peaks(), Some(Peaks { measured: 400, admitted: 100 }));
        drop(room);
        world.takes(900);
        assert_eq!(world.told().len(), 1, "nothing is admitted, so nothing is measured");
    }

    #[tokio::test]
    async fn passes_at_once_are_measured_together_and_freed_memory_that_stays_resident_is_nobodys() {
        let world = world();
        let (one, two) = (world.admission.admit(100).await, world.admission.admit(100).await);
        world.takes(290);
        drop(one);
        world.takes(295);
        assert_eq!(world.told(), [], "both had a part in the peak");
        drop(two);
        // The allocator kept it: the next span begins there.
        let _three = world.admission.admit(10).await;
        world.takes(310);
        assert_eq!(world.told(), []);
        world.takes(311);
        assert_eq!(world.told(), [Peaks { measured: 16, admitted: 10 }]);
    }

    #[tokio::test]
    async fn caches_have_a_bound_of_their_own() {
        let world = world();
        let _room = world.admission.admit(100).await;
        world.caches.store(200, Ordering::SeqCst);
        world.takes(340);
        assert_eq!(world.told(), []);
        world.takes(351);
        assert_eq!(world.told(), [Peaks { measured: 151, admitted: 100 }]);
    }
}
