//! Effects: the only code here that writes to a dataset. It takes a plan.
//!
//! Under a claim: build, ask the registry once more, commit, ask the index. What was built and is not committed is removed
//! again where nobody can name it, and reported where somebody might.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::Utc;
use futures::future::BoxFuture;
use squire_lake::build::{self, Definition, OnProgress, Work};
use squire_lake::commit::Handle;
use squire_lake::handle::Place;
use squire_lake::index::State;
use squire_lake::look::Look;
use squire_lake::stamp::Stamper;
use squire_lake::{Kind, verify};
use squire_registry::{
    Block, BlockKind, Claim, ClaimOutcome, Commit, CommitStep, DatasetEntry, DatasetIntent, DatasetResult, RunOutcome,
    RunRecord, Subject,
};
use squire_service::admission::Admission;
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinHandle, JoinSet};
use uuid::Uuid;

use crate::estate::Estate;
use crate::plan::{self, Landed, Plan};
use crate::report::{End, Outcome};

mod segments;

pub use segments::{Sharing, segment};

/// How long uploads of a build that was dropped are waited for, to be removed.
const SETTLES: Duration = Duration::from_secs(10);

/// Why a build is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It is not.
    No,
    /// Somebody took it back.
    TakenBack,
    /// This process ends.
    Ending,
}

/// What apply needs beside a plan.
#[derive(Clone)]
pub struct Tools {
    /// Config, lake and registry.
    pub estate: Estate,
    /// The job.
    pub job: String,
    /// The job's run.
    pub run: Uuid,
    /// The asker's id of the request, which goes into the commit.
    pub request: String,
    /// What may be in memory at once.
    pub admission: Admission,
    /// Told of progress.
    pub on_progress: OnProgress,
    /// Told which directory is about to be written, before it is.
    pub writes: Writes,
    /// Set when the build is to stop.
    pub stop: watch::Receiver<Stop>,
    /// How a large table is shared; `None` builds it whole.
    pub sharing: Option<Sharing>,
    /// Where claim and run are let go while the job's end is written down.
    pub releases: Releases,
}

/// Claims that are being let go, and runs that are being closed. Nobody waits for that but the end of the job.
#[derive(Clone, Default)]
pub struct Releases(Arc<Mutex<JoinSet<()>>>);

impl Releases {
    /// Waits until all of them are.
    pub async fn done(&self) {
        let mut releases = std::mem::take(&mut *self.0.lock().await);
        while releases.join_next().await.is_some() {}
    }
}

/// Called with a directory relative to the dataset, and awaited, before anything is written into it.
pub type Writes = Arc<dyn Fn(String) -> BoxFuture<'static, ()> + Send + Sync>;

impl Tools {
    pub(crate) async fn stopped(&self) -> Stop {
        let mut stop = self.stop.clone();
        // The sender lives as long as the job.
        let seen = stop.wait_for(|s| *s != Stop::No).await.map(|s| *s);
        match seen {
            Ok(stop) => stop,
            Err(_) => std::future::pending().await,
        }
    }
}

/// A claim that is renewed while it lives.
struct Held {
    claim: Arc<Mutex<Option<Claim>>>,
    renewing: JoinHandle<()>,
}

impl Held {
    fn new(claim: Claim, ttl: Duration) -> Self {
        let claim = Arc::new(Mutex::new(Some(claim)));
        let mine = claim.clone();
        let renewing = tokio::spawn(async move {
            loop {
                tokio::time::sleep(ttl / 3).await;
                if let Some(claim) = mine.lock().await.as_mut()
                    && let Err(e) = claim.renew().await
                {
                    tracing::warn!(error = %e, "a claim could not be renewed");
                }
            }
        });
        Self { claim, renewing }
    }

    async fn still_ours(&self) -> bool {
        self.claim.lock().await.as_ref().is_some_and(Claim::still_ours)
    }

    async fn release(self) {
        self.renewing.abort();
        if let Some(claim) = self.claim.lock().await.take()
            && let Err(e) = claim.release().await
        {
            tracing::warn!(error = %e, "the claim could not be released; it expires by itself");
        }
    }
}

/// What a build came to; `Moved` asks for a new plan.
pub enum Applied {
    /// It ended.
    Ended(Box<Outcome>),
    /// Somebody else's commit was first, or HEAD moved in a way that the plan does not cover. The bytes are stranded.
    Moved(String, u64),
}

/// Builds, commits and asks one index.
pub async fn apply(tools: &Tools, plan: &Plan) -> Applied {
    let uri = plan.look.uri.clone();
    let ttl = tools.estate.config().grace.claim_ttl;
    let claiming = tools.estate.registry.claim(&uri, tools.run, ttl);
    let (claim, prepared) = tokio::join!(claiming, prepared(tools, plan));
    let claim = match claim {
        Ok(ClaimOutcome::Held(claim)) => claim,
        Ok(ClaimOutcome::Taken { by, .. }) => {
            let by = format!("{} on {} works on the table (process {})", by.actor.who, by.actor.host, by.actor.pid);
            return ended(plan, Outcome::of(End::Claimed(by)));
        }
        Err(e) => return ended(plan, Outcome::failed(Kind::Transient, e.to_string())),
    };
    if let Some(dead) = claim.taken_from()
        && let Err(e) = tools.estate.registry.run_dataset_died(dead.run, &uri, dead.last_sign).await
    {
        tracing::warn!(error = %e, "the end of the run that died here could not be recorded");
    }
    let held = Held::new(claim, ttl);
    let applied = match prepared {
        Ok(place) => Box::pin(under_claim(tools, plan, &place, &held)).await,
        Err(outcome) => ended(plan, outcome),
    };
    match &applied {
        Applied::Ended(_) => drop(tools.releases.0.lock().await.spawn(held.release())),
        // It is claimed again at once.
        Applied::Moved(..) => held.release().await,
    }
    applied
}

fn ended(plan: &Plan, outcome: Outcome) -> Applied {
    let outcome = Outcome {
        uri: Some(plan.look.uri.clone()),
        definition: Some(plan.definition.clone()),
        estimate: plan.estimate.bytes,
        ..outcome
    };
    Applied::Ended(Box::new(outcome))
}

/// Before the first write to a root: the store keeps put-if-absent, and the root carries the estate's marker.
async fn prepared(tools: &Tools, plan: &Plan) -> Result<Place, Outcome> {
    let uri = plan.look.uri.as_str();
    let estate = &tools.estate;
    let warehouse = plan.governance.warehouse.as_deref().and_then(|w| plan.snapshot.warehouse(w));
    let root = match warehouse {
        Some(warehouse) => warehouse.fields.root.clone(),
        None => uri.rsplit_once('/').map_or(uri, |(above, _)| above).to_string(),
    };
    let options = estate.config().storage.options_for(&root);
    let unfit = |e: squire_registry::Error| Outcome::failed(Kind::Permanent, e.to_string());
    estate.registry.probe(&root, &options).await.map_err(unfit)?;
    squire_registry::ensure_marker(&root, &options, estate.registry.id()).await.map_err(unfit)?;
    estate.lake.place(uri).await.map_err(|e| Outcome::failed(e.kind(), e.to_string()))
}

async fn under_claim(tools: &Tools, plan: &Plan, place: &Place, held: &Held) -> Applied {
    let Some(dataset) = plan.look.dataset.clone() else {
        return ended(plan, Outcome::failed(Kind::Open, "the table could not be opened"));
    };
    let work = Work { uuid: Uuid::new_v4(), memory: plan.estimate.bounded, on_progress: tools.on_progress.clone() };
    // Before anything is written: the audit, and which directory it will be.
    let (recorded, head, ()) = tokio::join!(
        opened(tools, plan, work.uuid),
        tools.estate.lake.latest_version(&plan.look.uri),
        (tools.writes)(format!("_indices/{}", work.uuid))
    );
    if let Err(e) = recorded {
        return ended(plan, Outcome::failed(Kind::Transient, e.to_string()));
    }
    let started = Instant::now();
    let (applied, commits, stranded) = match head {
        Err(e) => (ended(plan, Outcome::failed(e.kind(), e.to_string())), Vec::new(), 0),
        // What was decided before the claim may have moved before it was ours.
        Ok(head) if head != plan.look.version() => {
            (Applied::Moved("the table moved before it was claimed".into(), 0), Vec::new(), 0)
        }
        Ok(_) => Box::pin(built(tools, plan, place, held, &dataset, &work, started)).await,
    };
    closed(tools, plan, work.uuid, &applied, commits, stranded).await;
    applied
}

/// Builds, and goes on to the commit. Beside the outcome: commits made, and bytes that stay behind.
async fn built(
    tools: &Tools,
    plan: &Plan,
    place: &Place,
    held: &Held,
    dataset: &Arc<Handle>,
    work: &Work,
    started: Instant,
) -> (Applied, Vec<Commit>, u64) {
    let building = async {
        match tools.sharing.as_ref().filter(|s| s.applies(plan)) {
            Some(sharing) => segments::shared(tools, plan, dataset, work, sharing).await,
            None => {
                let room = tools.admission.admit(plan.estimate.bytes).await;
                let built = build::execute(&tools.estate.lake, dataset, &plan.definition, work).await;
                drop(room);
                built.map(|built| (built, 1))
            }
        }
    };
    let result = tokio::select! {
        result = building => result,
        stop = tools.stopped() => {
            if stop == Stop::TakenBack && tools.sharing.is_some() {
                // Nobody joins them any more.
                build::discard(place, &segments::stored(tools, &plan.look.uri).await).await;
            }
            let outcome = Outcome::of(End::Stopped(stop == Stop::TakenBack));
            return cut_short(plan, place, work, outcome).await;
        }
    };
    let (built, segments) = match result {
        Ok(built) => built,
        Err(e) => return cut_short(plan, place, work, Outcome::failed(e.kind(), e.to_string())).await,
    };
    if let Err(outcome) = may_commit(tools, plan, held).await {
        return cut_short(plan, place, work, outcome).await;
    }
    let bytes = built.bytes();
    let surplus = build::surplus(&built);
    let untrained = built.is_untrained();
    let stamper = Stamper { estate: tools.estate.registry.id(), run: tools.run };
    let lake = &tools.estate.lake;
    match build::land(lake, place, &plan.look, built, &plan.definition, &stamper, &tools.request).await {
        Ok(landed) => {
            // Parts that were merged into what was committed.
            build::discard(place, &surplus).await;
            let outcome = Outcome {
                end: if untrained { End::Untrained } else { End::Built },
                version: Some(landed.version),
                bytes,
                seconds: started.elapsed().as_secs_f64(),
                segments,
                ..Outcome::of(End::Built)
            };
            let outcome = asked(tools, &plan.definition, &plan.look, place, &landed.dataset, outcome).await;
            let verified = outcome.check.is_some();
            let commit = Commit { step: CommitStep::Build, version: landed.version, at: Utc::now(), verified };
            (ended(plan, outcome), vec![commit], 0)
        }
        Err((e, stranded)) if e.kind() == Kind::Conflict => {
            (Applied::Moved(e.to_string(), stranded), Vec::new(), stranded)
        }
        Err((e, stranded)) => {
            let outcome = Outcome { stranded, ..Outcome::failed(e.kind(), e.to_string()) };
            (ended(plan, outcome), Vec::new(), stranded)
        }
    }
}

/// A build that ends before its commit: what it wrote goes, and what does not go is reported.
async fn cut_short(plan: &Plan, place: &Place, work: &Work, outcome: Outcome) -> (Applied, Vec<Commit>, u64) {
    let stopped = matches!(outcome.end, End::Stopped(_));
    let deadline = Instant::now() + if stopped { SETTLES } else { Duration::ZERO };
    let (mut empty, mut left) = (0, 0);
    let named = loop {
        left = build::discard(place, &[work.uuid]).await.max(left);
        match build::leftovers(place, work.uuid).await {
            Ok((_, 0)) => empty += 1,
            Ok((bytes, _)) => (empty, left) = (0, left.max(bytes)),
            Err(_) => empty = 0,
        }
        // What was being uploaded when the build was dropped may still arrive.
        if empty > usize::from(stopped) {
            break Vec::new();
        }
        if Instant::now() >= deadline {
            break vec![format!("_indices/{}", work.uuid)];
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    let left = if named.is_empty() { 0 } else { left };
    (ended(plan, Outcome { stranded: left, left: named, ..outcome }), Vec::new(), left)
}

/// The registry and the claim, before the commit.
async fn may_commit(tools: &Tools, plan: &Plan, held: &Held) -> Result<(), Outcome> {
    let registry = &tools.estate.registry;
    let (fresh, job) = tokio::join!(registry.recheck(&plan.snapshot, &plan.look.uri), registry.job(&tools.job));
    let fresh = fresh.map_err(|e| Outcome::failed(Kind::Transient, e.to_string()))?;
    plan::forbidden(&tools.estate.govern(&fresh, &plan.look)).map_err(|r| Outcome::of(End::Refused(r)))?;
    // Asked anew: the watch over it looks every few seconds only.
    if job.is_ok_and(|job| job.cancel) {
        return Err(Outcome::of(End::Stopped(true)));
    }
    if held.still_ours().await {
        return Ok(());
    }
    Err(Outcome::failed(Kind::Transient, "the claim on the table ran out before the commit; nothing was committed"))
}

/// Asks an index that an earlier attempt of this job committed: its worker ended before anybody was told, and perhaps before
/// it had asked. Writes nothing to the dataset.
pub async fn finished(tools: &Tools, landed: Landed) -> Outcome {
    let Landed { definition, look, index, version } = landed;
    let uri = look.uri.clone();
    let outcome = match (tools.estate.lake.place(&uri).await, look.dataset.clone()) {
        (Err(e), _) => Outcome::failed(e.kind(), e.to_string()),
        (_, None) => Outcome::failed(Kind::Open, "the table could not be opened"),
        (Ok(place), Some(dataset)) => {
            let end = if index.state == State::Untrained { End::Untrained } else { End::Built };
            let outcome = Outcome { version: Some(version), bytes: index.bytes(), ..Outcome::of(end) };
            asked(tools, &definition, &look, &place, &dataset, outcome).await
        }
    };
    Outcome { uri: Some(uri), definition: Some(definition), ..outcome }
}

/// Asks an index that is committed.
async fn asked(
    tools: &Tools,
    definition: &Definition,
    look: &Look,
    place: &Place,
    dataset: &Arc<Handle>,
    outcome: Outcome,
) -> Outcome {
    let mut outcome = outcome;
    let info = match squire_lake::look::index_of(place, dataset, &definition.name).await {
        Ok(info) => info,
        Err(e) => return Outcome { end: End::Failed(e.kind(), e.to_string()), ..outcome },
    };
    let Some(mut info) = info else {
        let why = format!("{} was committed, and the version does not have it", definition.says());
        return Outcome { end: End::Failed(Kind::Bug, why), ..outcome };
    };
    definition.kind.as_str().clone_into(&mut info.kind);
    outcome.index = Some(info.clone());
    if outcome.end == End::Untrained {
        return outcome;
    }
    match verify::built(&tools.estate.lake, dataset, &info, &definition.params).await {
        Ok(check) => Outcome { check, ..outcome },
        Err(e) => {
            if e.kind() == Kind::Verify {
                block(tools, &look.uri, &e.to_string()).await;
            }
            Outcome { end: End::Failed(e.kind(), e.to_string()), ..outcome }
        }
    }
}

/// A wrong answer files a block, as after a pass: nobody works on the dataset until a person has looked.
async fn block(tools: &Tools, uri: &str, why: &str) {
    let subject = Subject::Dataset(uri.to_string());
    let block = Block { kind: BlockKind::Verify, subject, until: None, version: None };
    if let Err(e) = tools.estate.registry.block_add(block, why).await {
        tracing::error!(dataset = uri, error = %e, "the block for an index that answers wrongly could not be filed");
    }
}

/// The audit records of the run and the dataset, before anything is done.
async fn opened(tools: &Tools, plan: &Plan, attempt: Uuid) -> squire_registry::Result<()> {
    let estate = &tools.estate;
    let record = RunRecord {
        run: tools.run,
        kind: "index_build".into(),
        estate: estate.registry.id(),
        started_at: Utc::now(),
        command: squire_service::config::redact_command(std::env::args()),
        actor: estate.registry.actor().clone(),
        tool_version: squire_service::VERSION.into(),
        mode: estate.config().estate.mode.to_string(),
        config_digest: Some(estate.loaded.digest()),
        plan_digest: None,
        live: plan.snapshot.live_counts(),
        outcome: None,
    };
    let entry = DatasetEntry {
        run: tools.run,
        attempt,
        uri: plan.look.uri.clone(),
        table: plan.governance.table.as_ref().map(Subject::to_string),
        opened_at: Utc::now(),
        intent: DatasetIntent {
            read_version: plan.look.version(),
            steps: vec![CommitStep::Build.to_string()],
            versions: Vec::new(),
            files: 0,
            bytes: 0,
            policy: plan.governance.policy.policy.clone(),
            policy_source: plan.governance.policy.source.id.clone(),
            plan_digest: None,
        },
        result: None,
    };
    let (run, dataset) =
        tokio::join!(estate.registry.run_open(record), estate.registry.run_dataset_opened(tools.run, entry));
    match run {
        // An earlier attempt of the same job opened it.
        Err(squire_registry::Error::Exists { .. }) => {}
        other => other?,
    }
    dataset
}

async fn closed(tools: &Tools, plan: &Plan, attempt: Uuid, applied: &Applied, commits: Vec<Commit>, stranded: u64) {
    let (outcome, error) = match applied {
        Applied::Ended(o) => match &o.end {
            End::Failed(_, why) => ("failed".to_string(), Some(why.clone())),
            _ => (o.state().map_or_else(|| "stopped".to_string(), |s| s.to_string()), None),
        },
        Applied::Moved(why, _) => ("failed".to_string(), Some(why.clone())),
    };
    let registry = &tools.estate.registry;
    let uri = plan.look.uri.clone();
    let complete = matches!(applied, Applied::Ended(o) if o.state().is_some());
    let failures = if error.is_some() { vec![uri.clone()] } else { Vec::new() };
    let totals = serde_json::json!({ "outcome": outcome, "commits": commits.len() });
    let run = RunOutcome { finished_at: Utc::now(), complete, totals, failures };
    let result = DatasetResult {
        closed_at: Utc::now(),
        outcome,
        commits,
        stranded_bytes: stranded,
        error,
        ..DatasetResult::default()
    };
    let told = |done: squire_registry::Result<()>| {
        if let Err(e) = done {
            tracing::warn!(error = %e, "the audit record of a build could not be closed");
        }
    };
    // The dataset's entry is closed before the claim is let go, and the run while that is done, unless another attempt follows.
    told(registry.run_dataset_closed(tools.run, &uri, attempt, result).await);
    let (closing, id) = (registry.clone(), tools.run);
    let closing = async move { told(closing.run_close(id, run).await) };
    match applied {
        Applied::Ended(_) => drop(tools.releases.0.lock().await.spawn(closing)),
        Applied::Moved(..) => closing.await,
    }
}
