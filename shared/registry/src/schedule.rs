//! Which instants of a job's schedule were published, so that each is published once.
//!
//! One record per job holds the newest of them in the order in which they were recorded, so that neither the records nor
//! what reading them costs grows with time. An instant that a wrong clock recorded stands in nobody's way: only the very
//! instant counts as recorded.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::Result;
use crate::generation::Change;
use crate::record::fields;
use crate::registry::Registry;

/// Instants that are remembered: beyond what replicas whose clocks differ by minutes can publish late.
const KEPT: usize = 64;

/// One job's published instants, oldest record first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Published {
    instants: Vec<DateTime<Utc>>,
    /// The run of the sweep that was closed last; its replica exports the gauges of the fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    closed: Option<Uuid>,
    /// What was said last to wait for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    awaiting: Option<Awaiting>,
}

/// A plan that waits for a person, as it was announced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Awaiting {
    digest: String,
    at: DateTime<Utc>,
}

fields! { Published => Schedule, "schedule"; }

impl Registry {
    /// Records that a sweep of a job was closed; whoever closed an earlier one stops to speak for the fleet.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn record_closed(&self, job: &str, run: Uuid) -> Result<()> {
        self.change::<Published>(job, None, |current| {
            let next = current.map(|c| c.fields.clone()).unwrap_or_default();
            Ok(if next.closed == Some(run) {
                Change::Keep
            } else {
                Change::Put(Published { closed: Some(run), ..next })
            })
        })
        .await?;
        Ok(())
    }

    /// Whether a plan that waits for a person is to be announced: it is another one than the last, which was announced longer
    /// than `again` ago. `None`: nothing waits any more, and the next one is news.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn record_awaiting(
        &self,
        job: &str,
        digest: Option<&str>,
        now: DateTime<Utc>,
        again: std::time::Duration,
    ) -> Result<bool> {
        let mut news = false;
        self.change::<Published>(job, None, |current| {
            let next = current.map(|c| c.fields.clone()).unwrap_or_default();
            let said = next.awaiting.as_ref();
            news = digest.is_some_and(|digest| {
                said.is_none_or(|s| s.digest != digest && (now - s.at).to_std().is_ok_and(|past| past >= again))
            });
            Ok(match digest {
                Some(digest) if news => {
                    Change::Put(Published { awaiting: Some(Awaiting { digest: digest.to_owned(), at: now }), ..next })
                }
                None if said.is_some() => Change::Put(Published { awaiting: None, ..next }),
                _ => Change::Keep,
            })
        })
        .await?;
        Ok(news)
    }

    /// The run of the sweep that was closed last.
    ///
    /// # Errors
    /// What the store answers, and [`crate::Error::Unreadable`].
    pub async fn last_closed(&self, job: &str) -> Result<Option<Uuid>> {
        Ok(self.load::<Published>(job).await?.and_then(|r| r.fields.closed))
    }

    /// Records that an instant of a job was published. `true` for whoever is first; of several at once one is.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn record_instant(&self, job: &str, instant: DateTime<Utc>) -> Result<bool> {
        let mut first = false;
        self.change::<Published>(job, None, |current| {
            let mut next = current.map(|c| c.fields.clone()).unwrap_or_default();
            first = !next.instants.contains(&instant);
            if !first {
                return Ok(Change::Keep);
            }
            next.instants.push(instant);
            let surplus = next.instants.len().saturating_sub(KEPT);
            next.instants.drain(..surplus);
            Ok(Change::Put(next))
        })
        .await?;
        Ok(first)
    }

    /// The latest instant of a job, not after `now`, that was recorded; `None` when none ever was.
    ///
    /// # Errors
    /// What the store answers, and [`crate::Error::Unreadable`].
    pub async fn last_instant(&self, job: &str, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>> {
        let record = self.load::<Published>(job).await?;
        Ok(record.and_then(|r| r.fields.instants.iter().copied().filter(|i| *i <= now).max()))
    }
}
