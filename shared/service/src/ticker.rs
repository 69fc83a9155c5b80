//! The clock of a daemon: every replica computes the same instants, and one of them publishes each (design, "Clock").

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;

use crate::bus::data::TickDue;
use crate::bus::{Bus, Task};
use crate::schedule::Job;
use crate::shutdown::Shutdown;
use crate::telemetry::Metrics;

/// The longest sleep: a machine that was suspended finds its instant soon after.
const LONGEST: Duration = Duration::from_secs(5);
/// After a bus or registry that does not answer.
const BACK_OFF: Duration = Duration::from_secs(2);

/// Which instants were published: what the registry remembers of them.
pub trait Instants: Send + Sync {
    /// The latest that was recorded, not after `now`.
    fn last(&self, now: DateTime<Utc>) -> BoxFuture<'_, anyhow::Result<Option<DateTime<Utc>>>>;

    /// Asked before an instant is published: a registry that is not this estate's records nothing.
    fn check(&self) -> BoxFuture<'_, anyhow::Result<()>>;

    /// Records one.
    fn record(&self, instant: DateTime<Utc>) -> BoxFuture<'_, anyhow::Result<()>>;
}

/// A job's clock.
#[derive(Debug)]
pub struct Ticker {
    /// What it starts.
    pub task: Task,
    /// When.
    pub job: Job,
    /// When the process started: nothing before it was missed where nothing was ever recorded.
    pub started: DateTime<Utc>,
    /// Where instants are published.
    pub bus: Bus,
    /// Says the task's interval.
    pub metrics: Metrics,
}

impl Ticker {
    /// Publishes instants until a stop. However many were missed, the latest runs once.
    pub async fn run(&self, instants: &dyn Instants, shutdown: &Shutdown) {
        if let Some(interval) = self.job.interval(Utc::now()) {
            let seconds = interval.num_milliseconds() as f64 / 1000.0;
            self.metrics.fleet().task_interval.with_label_values(&[self.task.as_str()]).set(seconds);
        }
        let mut since = None;
        while !shutdown.is_requested() {
            let wait = match self.step(instants, &mut since).await {
                Ok(()) => {
                    let now = Utc::now();
                    let next = self.job.next(now).and_then(|at| (at - now).to_std().ok()).unwrap_or(LONGEST);
                    next.clamp(Duration::from_millis(20), LONGEST)
                }
                Err(e) => {
                    tracing::warn!(error = %format!("{e:#}"), "an instant could not be published; it is tried again");
                    BACK_OFF
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = shutdown.requested() => {}
            }
        }
    }

    async fn step(&self, instants: &dyn Instants, since: &mut Option<DateTime<Utc>>) -> anyhow::Result<()> {
        let now = Utc::now();
        let known = match *since {
            Some(known) => known,
            None => instants.last(now).await?.unwrap_or(self.started),
        };
        *since = Some(known);
        let Some(instant) = self.job.due(known, now) else { return Ok(()) };
        // Another replica may have been quicker.
        let recorded = instants.last(now).await?;
        if recorded.is_none_or(|at| at < instant) {
            instants.check().await?;
            // Published first and recorded after: a crash in between publishes it again under the same id.
            self.bus.tick(&TickDue { job: self.task, instant, datasets: Vec::new() }, None).await?;
            instants.record(instant).await?;
            tracing::debug!(%instant, "published an instant");
        }
        *since = Some(instant);
        Ok(())
    }
}
