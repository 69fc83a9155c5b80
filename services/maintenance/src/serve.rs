//! `serve`: the pass driven by a clock and by events, shared by any number of replicas (design, "The fleet").
//!
//! Every replica runs the same loops: the [`clock`] publishes instants, one of all replicas takes a tick and looks at the
//! estate ([`tick`]), and the workers of all of them take the passes that it hands out ([`worker`]). Safety is never the
//! bus's: Lance's conflict check guards commits, looking again guards deletes, and a message handled twice finds the work
//! done.

mod clock;
mod events;
mod inbox;
mod required;
mod slices;
mod status;
mod tables;
mod tick;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use squire_lake::Lake;
use squire_registry::{Floors, Policy, Registry};
use squire_service::bus::{Bus, Queue, Settings as BusSettings};
use squire_service::cli::{Exit, Failure};
use squire_service::clock::Clock;
use squire_service::config::{BusKind, Loaded, Mode};
use squire_service::report::{EstateInfo, Report, ReportKind, Requests, SCHEMA, Tool, Totals};
use squire_service::shutdown::Shutdown;
use squire_service::telemetry::{self, Metrics};
use uuid::Uuid;

use crate::apply::Tools;
use crate::driver::{PlannedEstate, Selection};
use crate::estate::{Estate, PolicyFlags};
use crate::memory::{Admission, caches};
use crate::plan::{Settings, Steps};
use crate::rates::{self, Rates, Share};

/// What a walk of the estate found serves passes that delete nothing for this long.
const NEIGHBOURS: Duration = Duration::from_secs(600);
/// And those that clean up for this long: a clone may be made of a version that only a tag held, which then goes.
const FRESH: Duration = Duration::from_secs(30);
/// How long a worker waits for a message before it looks whether it should stop.
const PULL: Duration = Duration::from_secs(2);
/// After a bus or registry that does not answer.
const BACK_OFF: Duration = Duration::from_secs(2);

/// One replica.
pub(crate) struct Daemon {
    pub(crate) config: Loaded<Policy, Floors>,
    pub(crate) lake: Lake,
    /// The process's own surroundings; each run has its own after it.
    base: Estate,
    pub(crate) registry: Registry,
    pub(crate) bus: Bus,
    pub(crate) metrics: Metrics,
    pub(crate) shutdown: Shutdown,
    pub(crate) command: String,
    pub(crate) started: DateTime<Utc>,
    admission: Admission,
    rates: Rates,
    /// Its part in `budget.requests_per_second`.
    _share: Option<Share>,
    prepared: Arc<tokio::sync::Mutex<std::collections::BTreeSet<String>>>,
    neighbours: tokio::sync::Mutex<Option<(DateTime<Utc>, Arc<PlannedEstate>)>>,
    /// Datasets in work here, and since when.
    working: Mutex<BTreeMap<String, DateTime<Utc>>>,
    /// The sweep that this replica closed last, while its gauges are shown.
    closed: Mutex<Option<Uuid>>,
    /// Events that the bus did not take are kept in the registry.
    unsent: AtomicBool,
    /// When objects of past compactions were last looked for.
    pruned: Mutex<Option<std::time::Instant>>,
}

/// Runs until a signal, and drains.
///
/// # Errors
/// Exit 1 when registry, bus or address cannot be used, 2 for a schedule that cannot be read.
pub(crate) async fn run(config: Loaded<Policy, Floors>, metrics: Metrics, command: String) -> anyhow::Result<Exit> {
    let shutdown = Shutdown::install()?;
    let daemon = Arc::new(Daemon::open(config, metrics, command, shutdown).await?);
    let job = clock::job(&daemon)?;
    let face = status::face(&daemon).bind(daemon.config.config.http.listen).await.context("the HTTP face")?;
    tracing::info!(
        estate = daemon.registry.name(),
        registry = daemon.registry.uri(),
        bus = daemon.bus.describe(),
        http = %face.address(),
        mode = %daemon.config.config.estate.mode,
        config = daemon.config.digest(),
        "serving"
    );
    daemon.config.warn_of_what_has_no_effect(squire_service::config::Program::Maintenance);
    let mut loops = tokio::task::JoinSet::new();
    loops.spawn(clock::run(daemon.clone(), job));
    loops.spawn(tick::run(daemon.clone()));
    loops.spawn(tables::run(daemon.clone()));
    loops.spawn(status::gauges(daemon.clone()));
    let mut queues = vec![Queue::Pass; daemon.config.config.limits.concurrency.max(1)];
    if daemon.config.config.bus.kind == BusKind::Nats {
        // Slots of their own, so that passes cannot keep slices waiting, nor slices commits.
        queues.extend([Queue::Slice, Queue::Commit]);
    }
    for queue in queues {
        // On a thread of its own: a pass holds borrows over awaits that no spawned task may hold.
        let (daemon, runtime) = (daemon.clone(), tokio::runtime::Handle::current());
        loops.spawn_blocking(move || runtime.block_on(worker::run(daemon, queue)));
    }
    daemon.shutdown.requested().await;
    tracing::info!("draining: what is in work is finished or handed back");
    let drain = daemon.config.config.grace.drain;
    let drained = tokio::time::timeout(drain, async { while loops.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        tracing::warn!("the drain time of {} is over; what is left is delivered again", humantime(drain));
    }
    daemon.lake.commits_done().await;
    face.stop().await;
    let exit = daemon.shutdown.exit().unwrap_or(Exit::Ok);
    if drained.is_err() {
        // Its threads cannot be cancelled, and no commit is in flight any more.
        std::process::exit(i32::from(exit.code()));
    }
    Ok(exit)
}

fn humantime(d: Duration) -> String {
    squire_service::human::format_duration(d)
}

impl Daemon {
    async fn open(
        config: Loaded<Policy, Floors>,
        metrics: Metrics,
        command: String,
        shutdown: Shutdown,
    ) -> anyhow::Result<Self> {
        let mut estate = Estate::open(config.clone(), &[], Clock::system(), PolicyFlags::default()).await?;
        let registry = match (&estate.registry, config.config.bus.kind) {
            (Some(registry), _) => registry.clone(),
            (None, BusKind::Embedded) => estate.writable().await?,
            // Replicas must agree on one; a registry that each of them makes for itself is none.
            (None, BusKind::Nats) => {
                return Err(Failure::usage("a fleet shares one registry, and none is named or found")
                    .remedy("make one with `squire-registry init URI` and set registry.root")
                    .into());
            }
        };
        let settings = BusSettings::of(&config.config.bus, config.config.grace.claim_ttl);
        let bus = Bus::open(&config.config.bus, registry.name(), registry.id(), settings, metrics.clone())
            .await
            .map_err(|e| Failure::could_not_run("the bus cannot be used").caused_by(e))?;
        let share = rates::requests(&registry, &estate.lake, config.config.budget.requests_per_second)
            .await
            .map_err(|e| Failure::could_not_run("who else makes requests is not known").caused_by(e))?;
        metrics.set_mode(config.config.estate.mode);
        metrics.memory_limit.set(i64::try_from(config.config.limits.memory.as_u64()).unwrap_or(i64::MAX));
        Ok(Self {
            rates: Rates::of(&config.config.prices, &metrics),
            admission: Admission::of_process(config.config.limits.memory.as_u64(), caches(&estate.lake), &metrics),
            lake: estate.lake.clone(),
            base: estate,
            registry,
            bus,
            metrics,
            shutdown,
            command,
            started: Utc::now(),
            _share: share,
            prepared: Arc::default(),
            neighbours: tokio::sync::Mutex::default(),
            working: Mutex::default(),
            closed: Mutex::default(),
            unsent: AtomicBool::default(),
            pruned: Mutex::default(),
            config,
        })
    }

    /// The surroundings of one run: the registry read anew, one session for the whole process.
    pub(crate) async fn estate(&self, run: Uuid) -> anyhow::Result<Estate> {
        let timer = self.metrics.snapshot_duration.start_timer();
        let estate = self.base.again(run).await?;
        timer.observe_duration();
        self.is_ours(&estate.snapshot)?;
        Ok(estate)
    }

    /// A registry whose own record is gone, or another's, is none: nothing may be written into it.
    pub(crate) fn is_ours(&self, snapshot: &squire_registry::Snapshot) -> anyhow::Result<()> {
        let found = snapshot.estate().map(|e| e.fields.estate);
        anyhow::ensure!(
            found == Some(self.registry.id()),
            "the registry {} does not hold this estate any more; bring it back, the fleet waits",
            self.registry.uri()
        );
        Ok(())
    }

    pub(crate) fn settings(&self, estate: &Estate, due: bool) -> Settings {
        estate.settings(due, Steps::ALL, false, None)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.config.config.estate.mode
    }

    /// What apply needs for one pass.
    fn tools(&self, estate: &Estate, planned: &PlannedEstate, settings: Settings) -> Tools {
        Tools {
            estate: estate.clone(),
            registry: self.registry.clone(),
            settings,
            rates: self.rates.clone(),
            shutdown: self.shutdown.clone(),
            graph: planned.graph.clone(),
            progress: Arc::new(|text: &str| tracing::debug!("{text}")),
            admission: self.admission.clone(),
            prepared: self.prepared.clone(),
        }
    }

    /// The last walk of the estate, or a new one where it is too old or does not know the dataset. For a pass that cleans up every mark
    /// in it was confirmed, or is confirmed when the pass is planned.
    ///
    /// A new one looks in full at this dataset alone: of its neighbours only what they read matters, which the tick has remembered.
    async fn neighbours(&self, estate: &Estate, uri: &str, age: Duration) -> Arc<PlannedEstate> {
        let mut kept = self.neighbours.lock().await;
        if let Some((at, planned)) = kept.as_ref()
            && (Utc::now() - *at).to_std().unwrap_or_default() < age
            && planned.scope.datasets.contains(uri)
            && (age > FRESH || planned.confirmed)
        {
            return planned.clone();
        }
        let settings = self.settings(estate, true);
        let selection = Selection { datasets: vec![uri.to_string()], due: true, limit: None };
        // As old as its first request, not its last.
        let began = Utc::now();
        let planned = Arc::new(crate::driver::plan_estate(estate, &selection, &settings, None).await);
        *kept = Some((began, planned.clone()));
        planned
    }

    async fn keep_neighbours(&self, began: DateTime<Utc>, planned: Arc<PlannedEstate>) {
        *self.neighbours.lock().await = Some((began, planned));
    }

    fn at_work(&self, uri: &str) -> Working<'_> {
        self.lock_working().insert(uri.to_string(), Utc::now());
        self.metrics.claims_held.inc();
        Working { daemon: self, uri: uri.to_string() }
    }

    fn lock_working(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, DateTime<Utc>>> {
        self.working.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A report of what one run did here.
    fn report(&self, estate: &Estate, kind: ReportKind, started: DateTime<Utc>) -> Report {
        Report {
            schema: SCHEMA.into(),
            kind,
            run: estate.run,
            started_at: started,
            finished_at: Utc::now(),
            tool: Tool::this(),
            estate: EstateInfo {
                id: Some(self.registry.id()),
                name: self.registry.name().to_string(),
                registry: estate.registry_uri.clone(),
                roots: estate.roots.clone(),
                mode: self.mode(),
                exclusive: self.config.config.estate.exclusive,
            },
            config_digest: self.config.digest(),
            command: self.command.clone(),
            totals: Totals::default(),
            datasets: Vec::new(),
            findings: Vec::new(),
            incomplete: Vec::new(),
        }
    }

    /// Sums a report up; requests are the process's own, so they are counted in its metrics and not per run.
    fn finish(report: &mut Report) {
        report.finish(Requests::default(), None, telemetry::peak_rss_bytes());
    }

    /// Waits, or not, when a stop is asked for.
    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.shutdown.requested() => {}
        }
    }
}

/// Shows in `/status` that a dataset is in work, while it lives.
struct Working<'a> {
    daemon: &'a Daemon,
    uri: String,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.daemon.lock_working().remove(&self.uri);
        self.daemon.metrics.claims_held.dec();
    }
}

/// The SUBJECT of a dataset: its table's, or the dataset's own.
fn subject(table: Option<&str>, uri: &str) -> String {
    table.map_or_else(|| squire_service::bus::dataset_subject(uri), str::to_string)
}
