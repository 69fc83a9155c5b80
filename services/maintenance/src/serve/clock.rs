//! The clock: every replica computes the same instants, and one of them publishes each.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use squire_service::bus::Task;
use squire_service::cli::Failure;
use squire_service::schedule::Job;
use squire_service::ticker::{Instants, Ticker};

use super::Daemon;

const TASK: Task = Task::Maintenance;

/// The schedule, checked at start.
pub(super) fn job(daemon: &Daemon) -> anyhow::Result<Job> {
    Job::maintenance(&daemon.config.config.schedule)
        .map_err(|e| Failure::usage(e.to_string()).remedy("correct [schedule] in the config").into())
}

/// Publishes instants until a stop.
pub(super) async fn run(daemon: Arc<Daemon>, job: Job) {
    let (bus, metrics) = (daemon.bus.clone(), daemon.metrics.clone());
    Ticker { task: TASK, job, started: daemon.started, bus, metrics }.run(&*daemon, &daemon.shutdown).await;
}

impl Instants for Daemon {
    fn last(&self, now: DateTime<Utc>) -> BoxFuture<'_, anyhow::Result<Option<DateTime<Utc>>>> {
        async move { Ok(self.registry.last_instant(TASK.as_str(), now).await?) }.boxed()
    }

    fn check(&self) -> BoxFuture<'_, anyhow::Result<()>> {
        async move { self.is_ours(&self.registry.snapshot().await?) }.boxed()
    }

    fn record(&self, instant: DateTime<Utc>) -> BoxFuture<'_, anyhow::Result<()>> {
        async move {
            self.registry.record_instant(TASK.as_str(), instant).await?;
            Ok(())
        }
        .boxed()
    }
}
