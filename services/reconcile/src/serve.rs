//! `serve`: reports by a clock and by ticks, shared by any number of replicas (design, "The fleet" and "Reconcile").
//!
//! Every replica publishes the clock's instants and one of all takes each ([`tick`]): it looks at the datasets that are due
//! ([`cadence`]), stores the report, and says what is new and what is gone ([`news`]). Nothing that can delete is built; what is
//! written is the registry's: reports, and what was found of each dataset.

mod cadence;
mod news;
mod pages;
mod status;
mod tick;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use squire_lake::{Lake, uri};
use squire_registry::{Floors, Policy, Registry};
use squire_service::bus::{Bus, Settings, Task};
use squire_service::cli::{Exit, Failure};
use squire_service::config::{BusKind, Loaded, Program};
use squire_service::schedule::Job;
use squire_service::shutdown::Shutdown;
use squire_service::telemetry::Metrics;
use squire_service::ticker::{Instants, Ticker};
use uuid::Uuid;

use crate::walk;

const TASK: Task = Task::Reconcile;
/// After a bus or registry that does not answer.
const BACK_OFF: Duration = Duration::from_secs(2);
/// The gauges of the fleet that this daemon feeds; the others are the sweeps'.
const GAUGES: &[&str] = &[
    "squire_findings",
    "squire_stored_bytes",
    "squire_held_bytes",
    "squire_trash_overdue",
    "squire_last_success_timestamp_seconds",
    "squire_task_interval_seconds",
];

/// One replica.
pub(crate) struct Daemon {
    config: Loaded<Policy, Floors>,
    lake: Lake,
    registry: Registry,
    bus: Bus,
    metrics: Metrics,
    shutdown: Shutdown,
    command: String,
    started: DateTime<Utc>,
    /// The run in work here, and since when.
    working: Mutex<Option<(Uuid, DateTime<Utc>)>>,
    /// The run that this replica closed last, while its gauges are shown.
    closed: Mutex<Option<Uuid>>,
}

/// Runs until a signal, and drains.
///
/// # Errors
/// Exit 1 when registry, bus or address cannot be used, 2 for a schedule that cannot be read.
pub(crate) async fn run(config: Loaded<Policy, Floors>, metrics: Metrics, command: String) -> anyhow::Result<Exit> {
    let shutdown = Shutdown::install()?;
    let job = Job::reconcile(&config.config.schedule)
        .map_err(|e| Failure::usage(e.to_string()).remedy("correct [schedule] in the config"))?;
    let daemon = Arc::new(Daemon::open(config, metrics, command, shutdown).await?);
    let face = status::face(&daemon).bind(daemon.config.config.http.listen).await.context("the HTTP face")?;
    tracing::info!(
        estate = daemon.registry.name(),
        registry = daemon.registry.uri(),
        bus = daemon.bus.describe(),
        http = %face.address(),
        config = daemon.config.digest(),
        "serving"
    );
    daemon.config.warn_of_what_has_no_effect(Program::Reconcile);
    status::resume(&daemon).await;
    let mut loops = tokio::task::JoinSet::new();
    let clock = daemon.clone();
    loops.spawn(async move { clock.clock(job).await });
    loops.spawn(status::gauges(daemon.clone()));
    // On a thread of its own: a walk holds borrows over awaits that no spawned task may hold.
    let (ticks, runtime) = (daemon.clone(), tokio::runtime::Handle::current());
    loops.spawn_blocking(move || runtime.block_on(tick::run(ticks)));
    daemon.shutdown.requested().await;
    tracing::info!("draining: what is in work is handed back");
    let drain = daemon.config.config.grace.drain;
    let drained = tokio::time::timeout(drain, async { while loops.join_next().await.is_some() {} }).await;
    face.stop().await;
    let exit = daemon.shutdown.exit().unwrap_or(Exit::Ok);
    if drained.is_err() {
        tracing::warn!("the drain time is over; what is left is delivered again");
        std::process::exit(i32::from(exit.code()));
    }
    Ok(exit)
}

impl Daemon {
    async fn open(
        config: Loaded<Policy, Floors>,
        metrics: Metrics,
        command: String,
        shutdown: Shutdown,
    ) -> anyhow::Result<Self> {
        let roots: Vec<String> =
            config.config.estate.roots.iter().filter_map(|root| uri::canonical(root).ok()).collect();
        let Some(registry) = walk::registry(&config, &roots).await?.0 else {
            return Err(Failure::usage("reports are kept in a registry, and none is named or found")
                .remedy("make one with `squire-registry init URI` and set registry.root")
                .into());
        };
        let settings = Settings::of(&config.config.bus, config.config.grace.claim_ttl);
        let bus = Bus::open(&config.config.bus, registry.name(), registry.id(), settings, metrics.clone())
            .await
            .map_err(|e| Failure::could_not_run("the bus cannot be used").caused_by(e))?;
        metrics.set_mode(config.config.estate.mode);
        metrics.memory_limit.set(i64::try_from(config.config.limits.memory.as_u64()).unwrap_or(i64::MAX));
        metrics.only_fleet(GAUGES);
        Ok(Self {
            lake: walk::lake(&config.config),
            registry,
            bus,
            metrics,
            shutdown,
            command,
            started: Utc::now(),
            working: Mutex::default(),
            closed: Mutex::default(),
            config,
        })
    }

    async fn clock(&self, job: Job) {
        let (bus, metrics) = (self.bus.clone(), self.metrics.clone());
        Ticker { task: TASK, job, started: self.started, bus, metrics }.run(self, &self.shutdown).await;
    }

    /// A registry whose own record is gone, or another's, is none: nothing may be written into it.
    async fn is_ours(&self) -> anyhow::Result<()> {
        let found = self.registry.snapshot().await?.estate().map(|e| e.fields.estate);
        anyhow::ensure!(
            found == Some(self.registry.id()),
            "the registry {} does not hold this estate any more; bring it back, the fleet waits",
            self.registry.uri()
        );
        Ok(())
    }

    /// Whether other replicas may stand beside this one.
    fn is_shared(&self) -> bool {
        self.config.config.bus.kind == BusKind::Nats
    }

    /// Waits, or not, when a stop is asked for.
    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.shutdown.requested() => {}
        }
    }
}

impl Instants for Daemon {
    fn last(&self, now: DateTime<Utc>) -> BoxFuture<'_, anyhow::Result<Option<DateTime<Utc>>>> {
        async move { Ok(self.registry.last_instant(TASK.as_str(), now).await?) }.boxed()
    }

    fn check(&self) -> BoxFuture<'_, anyhow::Result<()>> {
        self.is_ours().boxed()
    }

    fn record(&self, instant: DateTime<Utc>) -> BoxFuture<'_, anyhow::Result<()>> {
        async move {
            self.registry.record_instant(TASK.as_str(), instant).await?;
            Ok(())
        }
        .boxed()
    }
}
