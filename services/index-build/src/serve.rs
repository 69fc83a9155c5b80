//! `serve`: takes jobs from the bus, any number of replicas at a time (design, "The fleet").
//!
//! Slots of their own take whole builds, and others take segments, so that a build that waits for its segments keeps nobody from
//! building them.

mod face;
mod worker;

pub(crate) use worker::{fresh, job_of_letter, tell};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use squire_registry::{Floors, JobState, Policy};
use squire_service::admission::Admission;
use squire_service::bus::{Bus, Queue, Settings};
use squire_service::cli::{Exit, Failure};
use squire_service::config::{BusKind, Loaded, Program};
use squire_service::shutdown::Shutdown;
use squire_service::telemetry::Metrics;

use crate::apply::Releases;
use crate::build::Bench;
use crate::estate::Estate;

/// How long a worker waits for a message before it looks whether it should stop.
const PULL: Duration = Duration::from_secs(2);
/// After a bus or registry that does not answer.
const BACK_OFF: Duration = Duration::from_secs(2);
/// How often jobs are tidied: those that were given up are marked, old ones forgotten.
const TIDY: Duration = Duration::from_secs(60);
/// Dead letters that are looked at.
const LETTERS: usize = 1_000;
/// The most jobs that are over and kept.
const KEPT: usize = 10_000;

/// One replica.
pub(crate) struct Daemon {
    pub(crate) bench: Bench,
    pub(crate) bus: Bus,
    pub(crate) metrics: Metrics,
    pub(crate) started: DateTime<Utc>,
    /// Jobs in work here, and since when.
    working: Mutex<BTreeMap<String, DateTime<Utc>>>,
}

/// Runs until a signal, and drains.
///
/// # Errors
/// Exit 1 when registry, bus or address cannot be used.
pub(crate) async fn run(loaded: Loaded<Policy, Floors>, metrics: Metrics) -> anyhow::Result<Exit> {
    let shutdown = Shutdown::install()?;
    let daemon = Arc::new(Daemon::open(loaded, metrics, shutdown).await?);
    let config = daemon.bench.estate.config();
    let face = face::face(&daemon).bind(config.http.listen).await.context("the HTTP face")?;
    tracing::info!(
        estate = daemon.bench.estate.registry.name(),
        registry = daemon.bench.estate.registry.uri(),
        bus = daemon.bus.describe(),
        http = %face.address(),
        mode = %config.estate.mode,
        "serving"
    );
    daemon.bench.estate.loaded.warn_of_what_has_no_effect(Program::IndexBuild);
    let mut loops = tokio::task::JoinSet::new();
    loops.spawn(tidy(daemon.clone()));
    let slots = config.limits.concurrency.max(1);
    let builds = std::iter::repeat_n(Queue::Build, slots);
    let segments = std::iter::repeat_n(Queue::Segment, if config.bus.kind == BusKind::Nats { slots } else { 0 });
    for queue in builds.chain(segments) {
        // On a thread of its own: a build holds borrows over awaits that no spawned task may hold.
        let (daemon, runtime) = (daemon.clone(), tokio::runtime::Handle::current());
        loops.spawn_blocking(move || runtime.block_on(worker::run(daemon, queue)));
    }
    let shutdown = &daemon.bench.shutdown;
    shutdown.requested().await;
    tracing::info!("draining: what is in work is handed back");
    let drained = tokio::time::timeout(config.grace.drain, async { while loops.join_next().await.is_some() {} }).await;
    daemon.bench.estate.lake.commits_done().await;
    face.stop().await;
    let exit = shutdown.exit().unwrap_or(Exit::Ok);
    if drained.is_err() {
        tracing::warn!("the drain time is over; what is left is delivered again");
        // Its threads cannot be cancelled, and no commit is in flight any more.
        std::process::exit(i32::from(exit.code()));
    }
    Ok(exit)
}

impl Daemon {
    async fn open(loaded: Loaded<Policy, Floors>, metrics: Metrics, shutdown: Shutdown) -> anyhow::Result<Self> {
        let estate = Estate::open(loaded).await?;
        let bus = bus(&estate, &metrics).await?;
        let config = estate.config();
        metrics.set_mode(config.estate.mode);
        let memory = config.limits.memory.as_u64();
        metrics.memory_limit.set(i64::try_from(memory).unwrap_or(i64::MAX));
        let sharing = (config.bus.kind == BusKind::Nats).then(|| bus.clone());
        let caches = estate.lake.clone();
        let admission = Admission::of_process(memory, move || caches.cache_bytes(), &metrics);
        let releases = Releases::default();
        let bench = Bench { admission, sharing, shutdown, show: Arc::new(|_| {}), releases, estate };
        Ok(Self { bench, bus, metrics, started: Utc::now(), working: Mutex::default() })
    }

    /// Shows in `/status` that a job is in work, while the guard lives.
    fn at_work(&self, job: &str) -> Working<'_> {
        self.lock_working().insert(job.to_string(), Utc::now());
        self.metrics.claims_held.inc();
        Working { daemon: self, job: job.to_string() }
    }

    fn lock_working(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, DateTime<Utc>>> {
        self.working.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, or not, when a stop is asked for.
    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.bench.shutdown.requested() => {}
        }
    }
}

struct Working<'a> {
    daemon: &'a Daemon,
    job: String,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.daemon.lock_working().remove(&self.job);
        self.daemon.metrics.claims_held.dec();
    }
}

/// The bus of the estate.
pub(crate) async fn bus(estate: &Estate, metrics: &Metrics) -> anyhow::Result<Bus> {
    let config = estate.config();
    let settings = Settings::of(&config.bus, config.grace.claim_ttl);
    let (name, id) = (estate.registry.name(), estate.registry.id());
    let bus = Bus::open(&config.bus, name, id, settings, metrics.clone()).await;
    bus.map_err(|e| Failure::could_not_run("the bus cannot be used").caused_by(e).into())
}

/// Marks the jobs whose message was given up before a worker could say so, and forgets old ones.
async fn tidy(daemon: Arc<Daemon>) {
    while !daemon.bench.shutdown.is_requested() {
        let registry = &daemon.bench.estate.registry;
        if let Ok(letters) = daemon.bus.dead_list(LETTERS).await {
            for letter in letters.iter().filter(|l| l.stream == "index") {
                let Some(id) = worker::job_of_letter(letter) else { continue };
                let requeued = |at: DateTime<Utc>| at > letter.first_seen;
                let Ok(job) = registry.job(&id).await else { continue };
                if job.state.is_over() || requeued(job.queued_at) {
                    continue;
                }
                let marked = registry.job_change(&id, |job| {
                    job.state = JobState::Dead;
                    job.finished_at = Some(Utc::now());
                    job.why = Some(letter.reason.as_str().into());
                    job.error = Some(letter.last_error.clone());
                });
                if let Err(e) = marked.await {
                    tracing::debug!(error = %e, job = id, "that a job was given up could not be recorded");
                }
            }
        }
        let history = chrono::Duration::from_std(daemon.bench.estate.config().grace.record_history);
        let before = history.ok().and_then(|h| Utc::now().checked_sub_signed(h)).unwrap_or(DateTime::UNIX_EPOCH);
        match registry.jobs_prune(before, KEPT).await {
            Ok(0) => {}
            Ok(n) => tracing::info!(jobs = n, "old jobs were forgotten"),
            Err(e) => tracing::debug!(error = %e, "old jobs could not be forgotten"),
        }
        daemon.pause(TIDY).await;
    }
}
