//! The clock: every replica computes the same instants, and one of them publishes each.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use squire_service::bus::Task;
use squire_service::bus::data::TickDue;
use squire_service::cli::Failure;
use squire_service::schedule::Job;

use super::{BACK_OFF, Daemon};

const TASK: Task = Task::Maintenance;
/// The longest sleep: a machine that was suspended finds its instant soon after.
const LONGEST: Duration = Duration::from_secs(5);

/// The schedule, checked at start.
pub(super) fn job(daemon: &Daemon) -> anyhow::Result<Job> {
    Job::maintenance(&daemon.config.config.schedule)
        .map_err(|e| Failure::usage(e.to_string()).remedy("correct [schedule] in the config").into())
}

/// Publishes instants until a stop. However many were missed, the latest runs once.
pub(super) async fn run(daemon: Arc<Daemon>, job: Job) {
    if let Some(interval) = job.interval(Utc::now()) {
        let seconds = interval.num_milliseconds() as f64 / 1000.0;
        daemon.metrics.fleet().task_interval.with_label_values(&[TASK.as_str()]).set(seconds);
    }
    let mut since = None;
    while !daemon.shutdown.is_requested() {
        match step(&daemon, &job, &mut since).await {
            Ok(()) => {
                let now = Utc::now();
                let next = job.next(now).and_then(|at| (at - now).to_std().ok()).unwrap_or(LONGEST);
                daemon.pause(next.clamp(Duration::from_millis(20), LONGEST)).await;
            }
            Err(e) => {
                tracing::warn!(error = %format!("{e:#}"), "an instant could not be published; it is tried again");
                daemon.pause(BACK_OFF).await;
            }
        }
    }
}

async fn step(daemon: &Daemon, job: &Job, since: &mut Option<DateTime<Utc>>) -> anyhow::Result<()> {
    let now = Utc::now();
    let known = match *since {
        Some(known) => known,
        None => daemon.registry.last_instant(TASK.as_str(), now).await?.unwrap_or(daemon.started),
    };
    *since = Some(known);
    let Some(instant) = job.due(known, now) else { return Ok(()) };
    // Another replica may have been quicker.
    let recorded = daemon.registry.last_instant(TASK.as_str(), now).await?;
    if recorded.is_none_or(|at| at < instant) {
        daemon.is_ours(&daemon.registry.snapshot().await?)?;
        // Published first and recorded after: a crash in between publishes it again under the same id.
        daemon.bus.tick(&TickDue { job: TASK, instant, datasets: Vec::new() }, None).await?;
        daemon.registry.record_instant(TASK.as_str(), instant).await?;
        tracing::debug!(%instant, "published an instant");
    }
    *since = Some(instant);
    Ok(())
}
