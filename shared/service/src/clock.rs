//! Time as a value: code that asks for the time is handed a [`Clock`], so tests advance it and
//! `plan --at TIME` plans as if it were then.

use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};

/// A source of wall-clock time. Cheap to clone; clones of a manual clock share their time.
#[derive(Debug, Clone, Default)]
pub struct Clock(Source);

#[derive(Debug, Clone, Default)]
enum Source {
    #[default]
    System,
    Manual(Arc<Mutex<DateTime<Utc>>>),
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands at `time` until it is moved.
    pub fn at(time: DateTime<Utc>) -> Self {
        Self(Source::Manual(Arc::new(Mutex::new(time))))
    }

    /// The time now, in UTC.
    pub fn now(&self) -> DateTime<Utc> {
        match &self.0 {
            Source::System => Utc::now(),
            Source::Manual(time) => *time.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Whether this clock follows the machine's.
    pub fn is_system(&self) -> bool {
        matches!(self.0, Source::System)
    }

    /// Moves a manual clock by `by` (backwards when negative); a system clock is not touched.
    pub fn advance(&self, by: TimeDelta) {
        if let Source::Manual(time) = &self.0 {
            let mut time = time.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(moved) = time.checked_add_signed(by) {
                *time = moved;
            }
        }
    }

    /// Sets a manual clock to `to`; a system clock is not touched.
    pub fn set(&self, to: DateTime<Utc>) {
        if let Source::Manual(time) = &self.0 {
            *time.lock().unwrap_or_else(PoisonError::into_inner) = to;
        }
    }
}
