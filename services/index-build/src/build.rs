//! One job from its request to its end: plan, apply, and plan again where somebody was first; and what its record says of it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::Utc;
use futures::FutureExt as _;
use squire_lake::build::{self as lake_build, Definition, OnProgress, Progress};
use squire_lake::index::IndexInfo;
use squire_lake::look::{Look, Looked, look};
use squire_lake::{Kind, contain};
use squire_registry::{Error, Job, JobState, Subject};
use squire_service::admission::Admission;
use squire_service::shutdown::Shutdown;
use tokio::sync::watch;
use uuid::Uuid;

use crate::apply::{self, Applied, Releases, Sharing, Stop, Tools, Writes};
use crate::ask::Ask;
use crate::estate::Estate;
use crate::plan::{self, Decision, Refused};
use crate::report::{End, Outcome};

/// How often a lost race is planned again.
const RACES: u32 = 3;
/// How often a job's record is written while it is built, at most, and asked whether somebody took the job back.
const RECORD: Duration = Duration::from_secs(3);

/// What a process that builds has for all of its jobs.
#[derive(Clone)]
pub struct Bench {
    /// Config, lake and registry.
    pub estate: Estate,
    /// What may be in memory at once.
    pub admission: Admission,
    /// How large tables are shared, without the job.
    pub sharing: Option<squire_service::bus::Bus>,
    /// A stop of the process.
    pub shutdown: Shutdown,
    /// Shown progress, beside the record.
    pub show: OnProgress,
    /// Claims and runs that are being let go.
    pub releases: Releases,
}

/// Takes a job to its end, and writes its record on the way. The record is left open where the job still waits. [`close`] is to be
/// called afterwards.
pub async fn job(bench: &Bench, ask: &Ask, job: &Job) -> Outcome {
    let registry = &bench.estate.registry;
    let me = format!("{}/{}", registry.actor().host, std::process::id());
    let earlier = job.writes.clone();
    let begin = registry.job_change(&job.job, |j| {
        j.state = JobState::Running;
        j.started_at.get_or_insert_with(Utc::now);
        j.worker = Some(me.clone());
        j.attempts += 1;
        (j.stage, j.percent) = (None, None);
    });
    let (stop, stopped) = watch::channel(Stop::No);
    let latest: Arc<Mutex<Option<Progress>>> = Arc::default();
    let tools = tools(bench, job, latest.clone(), stopped);
    // What is to be done is decided meanwhile; nothing comes of that yet.
    let (begun, first) = tokio::join!(begin, contained(&tools, ask, decide(&tools, ask)));
    match begun {
        Ok(begun) if begun.cancel => {
            let outcome = Outcome::of(End::Stopped(true));
            close(bench, &job.job, &outcome, false).await;
            return outcome;
        }
        Ok(_) => {}
        Err(e) => return Outcome::failed(Kind::Transient, e.to_string()),
    }
    let watching = tokio::spawn(follow(bench.clone(), job.job.clone(), latest, stop));
    let mut outcome = run(&tools, ask, first).await;
    watching.abort();
    if outcome.state().is_some() {
        outcome.left.extend(left_behind(bench, &outcome, &earlier).await);
    }
    outcome
}

fn tools(bench: &Bench, job: &Job, latest: Arc<Mutex<Option<Progress>>>, stop: watch::Receiver<Stop>) -> Tools {
    let show = bench.show.clone();
    let on_progress: OnProgress = Arc::new(move |progress: &Progress| {
        show(progress);
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress.clone());
    });
    let (registry, id) = (bench.estate.registry.clone(), job.job.clone());
    let writes: Writes = Arc::new(move |directory: String| {
        let (registry, id) = (registry.clone(), id.clone());
        async move {
            if let Err(e) = registry.job_change(&id, |j| j.writes.push(directory.clone())).await {
                tracing::warn!(error = %e, job = id, "which directory is written could not be recorded");
            }
        }
        .boxed()
    });
    let above = bench.estate.config().limits.distribute_above.as_u64();
    let sharing = bench.sharing.clone().map(|bus| Sharing { bus, above, job: job.job.clone() });
    let asked = job.request.get("request_id").and_then(|r| r.as_str()).map(str::to_owned);
    Tools {
        estate: bench.estate.clone(),
        job: job.job.clone(),
        run: job.run,
        request: asked.unwrap_or_else(|| job.job.clone()),
        admission: bench.admission.clone(),
        releases: bench.releases.clone(),
        on_progress,
        writes,
        stop,
        sharing,
    }
}

/// Keeps the record fresh, and says when to stop.
async fn follow(bench: Bench, id: String, latest: Arc<Mutex<Option<Progress>>>, stop: watch::Sender<Stop>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(RECORD) => {}
            () = bench.shutdown.requested() => {
                // Seen by whoever waits; the sender must live as long as they do.
                stop.send_replace(Stop::Ending);
                return std::future::pending().await;
            }
        }
        let progress = latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let changed = bench.estate.registry.job_change(&id, |job| {
            let Some(progress) = &progress else { return };
            job.stage = Some(progress.stage.clone());
            job.percent = percent(progress);
        });
        match changed.await {
            Ok(job) if job.cancel => {
                stop.send_replace(Stop::TakenBack);
                return std::future::pending().await;
            }
            Ok(_) => {}
            Err(e) => tracing::debug!(error = %e, job = id, "the job's record could not be kept fresh"),
        }
    }
}

/// How much of a stage is done, where its length is known.
pub fn percent(progress: &Progress) -> Option<u8> {
    let total = progress.total.filter(|t| *t > 0)?;
    u8::try_from((progress.done.min(total) * 100) / total).ok()
}

/// What there is to do, or how the job ends without anything being done.
type Decided = Result<(Arc<Look>, Decision), Box<Outcome>>;

/// A panic of the library is this job's outcome.
async fn contained<T>(tools: &Tools, ask: &Ask, work: impl Future<Output = T>) -> squire_lake::Result<T> {
    let doing = format!("the build of {}", ask.message.table);
    contain::contained(&tools.estate.lake, &doing, &ask.message.table, async { Ok(work.await) }).await
}

/// Applies what was decided, and plans again where somebody was first.
async fn run(tools: &Tools, ask: &Ask, first: squire_lake::Result<Decided>) -> Outcome {
    let (mut decided, mut last, mut stranded) = (first, String::new(), 0);
    for race in 0..=RACES {
        let applied = match decided {
            Ok(decided) => contained(tools, ask, Box::pin(once(tools, decided))).await,
            Err(e) => Err(e),
        };
        match applied {
            Ok(Applied::Ended(mut outcome)) => {
                outcome.stranded += stranded;
                return *outcome;
            }
            Ok(Applied::Moved(why, bytes)) => {
                tracing::info!(table = ask.message.table, why, "somebody else was first; planning again");
                last = why;
                stranded += bytes;
            }
            Err(e) => return Outcome { stranded, ..Outcome::failed(e.kind(), e.to_string()) },
        }
        tokio::time::sleep(Duration::from_millis(100 << race)).await;
        decided = contained(tools, ask, decide(tools, ask)).await;
    }
    let why = format!("{RACES} races were lost, the last one: {last}");
    Outcome { stranded, ..Outcome::failed(Kind::Conflict, why) }
}

async fn once(tools: &Tools, decided: Decided) -> Applied {
    let (look, decision) = match decided {
        Ok(decided) => decided,
        Err(outcome) => return Applied::Ended(outcome),
    };
    let ended = |end: End, definition: Option<Definition>, index: Option<IndexInfo>| {
        let bytes = index.as_ref().map_or(0, IndexInfo::bytes);
        let outcome = Outcome { uri: Some(look.uri.clone()), definition, index, bytes, ..Outcome::of(end) };
        Applied::Ended(Box::new(outcome))
    };
    let mut applied = match decision {
        Decision::Build(plan) => Box::pin(apply::apply(tools, &plan)).await,
        Decision::Landed(landed) => Applied::Ended(Box::new(Box::pin(apply::finished(tools, *landed)).await)),
        Decision::Refused(refused) => ended(End::Refused(refused), None, None),
        Decision::Present(definition, info) => ended(End::Present, Some(definition), Some(*info)),
        Decision::Untrained(definition, info) => ended(End::Untrained, Some(definition), Some(*info)),
    };
    if let Applied::Ended(outcome) = &mut applied {
        outcome.lineage = look.lineage();
    }
    applied
}

/// Looks at the table, unless the registry alone forbids it: then no storage is touched.
async fn decide(tools: &Tools, ask: &Ask) -> Decided {
    let estate = &tools.estate;
    let refused = |r: Refused| Box::new(Outcome::of(End::Refused(r)));
    let snapshot = match estate.registry.snapshot().await {
        Ok(snapshot) => snapshot,
        Err(e) => return Err(Box::new(Outcome::failed(transient(&e), e.to_string()))),
    };
    estate.lake.backed_by(&snapshot);
    let Subject::Table(path) = &ask.table else {
        return Err(refused(Refused::new("not_registered", "no table was named", "table/a/b/t")));
    };
    let Some(table) = snapshot.table(path) else {
        let what = format!("{} is not registered", ask.table);
        return Err(refused(Refused::new("not_registered", what, "a table of `squire-registry table list`")));
    };
    let uri = table.fields.uri.clone();
    let config = estate.config();
    let early = snapshot.govern(&uri, &config.policy, &config.floors, &Default::default(), Utc::now());
    plan::forbidden(&early).map_err(refused)?;
    let looked = look(&estate.lake, &uri, Utc::now()).await;
    let looked = match looked {
        Ok(Looked::Dataset(look)) => Arc::new(*look),
        Ok(Looked::DeclaredOnly | Looked::Nothing) => {
            let what = format!("{} has no data yet", ask.table);
            return Err(refused(Refused::new("declared_only", what, "a table with data")));
        }
        Err(e) => return Err(Box::new(Outcome { uri: Some(uri), ..Outcome::failed(e.kind(), e.to_string()) })),
    };
    let governance = estate.govern(&snapshot, &looked);
    let (mode, run, now) = (config.estate.mode, tools.run, Utc::now());
    Ok((looked.clone(), plan::decide(ask, looked, governance, snapshot, mode, run, now).await))
}

fn transient(e: &Error) -> Kind {
    if e.kind() == squire_registry::Kind::Transient { Kind::Transient } else { Kind::Permanent }
}

/// Writes a job's end down, or that it waits again. `gives_up`: its message goes to the dead letters.
pub async fn close(bench: &Bench, id: &str, outcome: &Outcome, gives_up: bool) {
    let state = match (outcome.state(), gives_up) {
        (Some(JobState::Failed), true) => Some(JobState::Dead),
        // What may pass is tried again: its message comes back.
        (Some(JobState::Failed), false) if may_pass(outcome) => None,
        (state, _) => state,
    };
    let changed = bench.estate.registry.job_change(id, |job| {
        job.error = match &outcome.end {
            End::Built | End::Present | End::Untrained => None,
            _ => Some(outcome.says()),
        };
        job.why = outcome.reason();
        (job.stage, job.percent) = (None, None);
        match state {
            Some(state) => {
                job.state = state;
                job.finished_at = Some(Utc::now());
                job.result = outcome.result();
            }
            None => job.state = JobState::Queued,
        }
    });
    let (changed, ()) = tokio::join!(changed, bench.releases.done());
    if let Err(e) = changed {
        tracing::warn!(error = %e, job = id, "the end of a job could not be recorded");
    }
}

/// Whether a failure may pass by itself.
pub fn may_pass(outcome: &Outcome) -> bool {
    match &outcome.end {
        End::Failed(kind, _) => matches!(kind, Kind::Transient | Kind::Conflict | Kind::Open),
        End::Refused(refused) => refused.reason == "registry_unreadable",
        _ => false,
    }
}

/// Directories of earlier attempts that are still there and that HEAD does not name: their workers died. Whether one of them
/// committed after all cannot be proven while its process may live, so they are told and left to reconcile.
async fn left_behind(bench: &Bench, outcome: &Outcome, earlier: &[String]) -> Vec<String> {
    let Some(uri) = outcome.uri.as_deref().filter(|_| !earlier.is_empty()) else { return Vec::new() };
    let Ok(place) = bench.estate.lake.place(uri).await else { return earlier.to_vec() };
    let mut out = Vec::new();
    for directory in earlier {
        let uuid = directory.rsplit('/').next().and_then(|u| Uuid::parse_str(u).ok());
        let Some(uuid) = uuid else { continue };
        if outcome.index.as_ref().is_some_and(|i| i.segments.iter().any(|s| s.uuid == uuid)) {
            continue;
        }
        match lake_build::leftovers(&place, uuid).await {
            Ok((_, 0)) => {}
            _ => out.push(directory.clone()),
        }
    }
    out
}
