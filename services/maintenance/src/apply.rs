//! Applies the plan of one dataset: the only code here that writes or deletes.
//!
//! Rounds of compact → optimise, each commit re-checked against the registry before and verified after; then version clean-up
//! of a healthy, verified dataset; then the record. A step's failure does not stop the others, except that nothing is
//! cleaned up that is not healthy and verified (design, "The pass").

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use squire_lake::clean::{self, Cleaned};
use squire_lake::look::Look;
use squire_lake::refs::CloneGraph;
use squire_lake::verify::Checks;
use squire_lake::{Kind, contain};
use squire_registry::{Block, BlockKind, Claim, ClaimOutcome, Commit, DatasetResult, Governance, Registry, Subject};
use squire_service::report::{FailureKind, SkipReason, StepKind};
use squire_service::shutdown::Shutdown;
use squire_service::telemetry::Metrics;
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::admit::{self, Skip};
use crate::estate::Estate;
use crate::memory::Admission;
use crate::plan::{self, DatasetPlan, Settings};
use crate::rates::Rates;
use crate::state::{Unverified, WaitingFor};

mod again;
mod cleanup;
mod pass;
pub mod slices;
mod yielding;

pub use again::verify_again;

use pass::Pass;

/// How often a lost race is re-planned.
const MAX_CONFLICTS: u32 = 3;

/// What apply needs beside a plan.
#[derive(Clone)]
pub struct Tools {
    /// The run.
    pub estate: Estate,
    /// The registry that is written to.
    pub registry: Registry,
    /// What the run allows.
    pub settings: Settings,
    /// Delete rates per bucket.
    pub rates: Rates,
    /// Stop between commits and chunks.
    pub shutdown: Shutdown,
    /// What other datasets read.
    pub graph: Arc<CloneGraph>,
    /// Tells of progress: bytes rewritten or versions removed.
    pub progress: Arc<dyn Fn(&str) + Send + Sync>,
    /// What may be in memory at once.
    pub admission: Admission,
    /// Buckets and roots already marked and probed in this run.
    pub prepared: Arc<Mutex<BTreeSet<String>>>,
}

/// What was done to one dataset.
#[derive(Debug, Default)]
pub struct Applied {
    /// It was left alone after all.
    pub skipped: Option<Skip>,
    /// A file of somebody else's long work, for which this pass stopped.
    pub waits_for: Option<String>,
    /// Rewrites whose commit somebody else preempted.
    pub lost_races: u64,
    /// Folds whose commit somebody else preempted.
    pub lost_folds: u64,
    /// The claim ran out, or was taken over, while the pass worked.
    pub claim_lost: bool,
    /// Commits that landed and could not be verified.
    pub unverified: Vec<Unverified>,
    /// Versions of earlier such commits about which nothing is open any more.
    pub settled: Vec<u64>,
    /// Blocks that were filed.
    pub filed: Vec<Filed>,
    /// The attempt whose audit entry was opened.
    pub opened: Option<Uuid>,
    /// Compaction: fragments removed and added, bytes, tasks, seconds.
    pub compact: StepDone,
    /// Index work.
    pub indices: Vec<plan::IndexWork>,
    /// Seconds of index work.
    pub indices_seconds: f64,
    /// What verification compared.
    pub checks: Option<Checks>,
    /// Seconds of verification.
    pub verify_seconds: f64,
    /// Clean-up.
    pub cleaned: Option<Cleaned>,
    /// Seconds in which versions were removed.
    pub cleanup_seconds: f64,
    /// The failure of each step.
    pub failures: BTreeMap<&'static str, (FailureKind, String)>,
    /// Clean-up was refused after all, by FACES' reason.
    pub cleanup_verdict: Option<plan::Verdict>,
    /// Versions that stay, as the last look saw them.
    pub retained: Option<Vec<plan::retention::Retained>>,
    /// Bytes left behind by lost commits.
    pub stranded: u64,
    /// Commits made.
    pub commits: Vec<Commit>,
    /// HEAD, fragments and indices at the end.
    pub after: Option<After>,
}

/// A block that a pass filed.
#[derive(Debug, Clone, PartialEq)]
pub struct Filed {
    /// The record's id.
    pub id: String,
    /// What it is and until when.
    pub block: Block,
    /// Why.
    pub reason: String,
    /// Ids of the earlier ones that were lifted for it.
    pub lifted: Vec<String>,
}

/// Compaction's counts.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct StepDone {
    /// Fragments that went.
    pub removed: u64,
    /// Fragments that came.
    pub added: u64,
    /// Bytes of the data files that were replaced: what history holds from then on.
    pub replaced: u64,
    /// Bytes written, remapped indices included.
    pub bytes: u64,
    /// Tasks committed.
    pub tasks: u64,
    /// Seconds.
    pub seconds: f64,
}

/// The dataset's shape at the end.
#[derive(Debug, Clone)]
pub struct After {
    /// HEAD.
    pub version: u64,
    /// Its fragments.
    pub fragments: Vec<squire_lake::look::FragmentInfo>,
    /// Its indices.
    pub indices: Vec<squire_lake::index::IndexInfo>,
}

impl Applied {
    /// Whether anything was committed or deleted.
    pub fn is_material(&self) -> bool {
        !self.commits.is_empty() || self.cleaned.as_ref().is_some_and(|c| !c.versions.is_empty())
    }

    /// Counts what no report holds: lost races, lost claims, wasted bytes.
    pub fn count(&self, metrics: &Metrics) {
        metrics.commit_conflicts.with_label_values(&[StepKind::Compact.as_str()]).inc_by(self.lost_races);
        metrics.commit_conflicts.with_label_values(&[StepKind::OptimizeIndices.as_str()]).inc_by(self.lost_folds);
        metrics.claims_lost.inc_by(u64::from(self.claim_lost));
        metrics.wasted_bytes.inc_by(self.stranded);
        // The report's bytes are compaction's.
        metrics.rewritten_bytes.inc_by(self.indices.iter().map(|i| i.bytes).sum());
        for (step, seconds) in [(StepKind::Verify, self.verify_seconds), (StepKind::Cleanup, self.cleanup_seconds)] {
            if seconds > 0.0 {
                metrics.step_duration.with_label_values(&[step.as_str()]).observe(seconds);
            }
        }
    }

    fn fail(&mut self, step: &'static str, error: &squire_lake::Error) {
        self.failures.entry(step).or_insert((failure_kind(error.kind()), error.to_string()));
    }

    fn skip(reason: SkipReason, detail: impl Into<String>) -> Self {
        Self { skipped: Some(Skip { reason, detail: detail.into() }), ..Self::default() }
    }
}

/// The lake's kind as FACES' failure kind.
pub fn failure_kind(kind: Kind) -> FailureKind {
    match kind {
        Kind::Open => FailureKind::Open,
        Kind::Damaged => FailureKind::Damaged,
        Kind::Transient => FailureKind::Transient,
        Kind::Conflict => FailureKind::Conflict,
        Kind::Permanent | Kind::Refused => FailureKind::Permanent,
        Kind::Verify => FailureKind::Verify,
        Kind::Bug => FailureKind::Bug,
    }
}

/// Applies one dataset's plan. `waiting_for`: somebody else's long
/// work that earlier passes have waited for.
pub async fn apply(
    tools: &Tools,
    plan: &DatasetPlan,
    look: &Look,
    governance: &Governance,
    waiting_for: Option<&WaitingFor>,
) -> Applied {
    if plan.is_empty() {
        return Applied::default();
    }
    run(tools, plan, look, governance, waiting_for, None).await
}

/// Under a claim: the rounds of a plan, or the landing of what slices have stored.
async fn run(
    tools: &Tools,
    plan: &DatasetPlan,
    look: &Look,
    governance: &Governance,
    waiting_for: Option<&WaitingFor>,
    stored: Option<slices::Landing>,
) -> Applied {
    let (claim, renewing) = match hold(tools, plan, look).await {
        Ok(held) => held,
        Err(skip) => return Applied { skipped: Some(skip), ..Applied::default() },
    };
    let mut applied = match prepare(tools, plan).await {
        Ok(()) => {
            // A panic must not keep the claim and the task that renews it.
            let pass =
                async { Ok(Box::pin(Pass::run(tools, plan, look, governance, &claim, waiting_for, stored)).await) };
            contain::contained(&tools.estate.lake, "the pass", &plan.uri, pass).await.unwrap_or_else(|e| {
                let mut applied = Applied::default();
                applied.fail("pass", &e);
                applied
            })
        }
        Err(skip) => Applied { skipped: Some(skip), ..Applied::default() },
    };
    let_go(claim, renewing, &plan.uri).await;
    if let Err(e) = close_entry(tools, plan, &applied).await {
        let error = squire_lake::Error::new(Kind::Transient, "closing the audit record", &plan.uri).because(e);
        applied.fail("record", &error);
    }
    applied
}

/// Asks the registry once more and takes the dataset's claim, which is renewed until it is let go.
async fn hold(
    tools: &Tools,
    plan: &DatasetPlan,
    look: &Look,
) -> Result<(SharedClaim, tokio::task::JoinHandle<()>), Skip> {
    recheck(tools, look).await?;
    let claim = match tools.registry.claim(&plan.uri, tools.estate.run, tools.estate.config().grace.claim_ttl).await {
        Ok(ClaimOutcome::Held(claim)) => claim,
        Ok(ClaimOutcome::Taken { by, .. }) => {
            let detail = format!("{} on {} works on it (process {})", by.actor.who, by.actor.host, by.actor.pid);
            return Err(Skip { reason: SkipReason::Claimed, detail });
        }
        Err(e) => return Err(Skip { reason: SkipReason::RegistryUnreadable, detail: e.to_string() }),
    };
    if let Err(e) = yielding::bury(tools, &claim).await {
        tracing::warn!(dataset = plan.uri, error = %e, "the end of the run that died here could not be recorded");
    }
    if claim.taken_from().is_some()
        && let Some(skip) = moved(tools, plan).await
    {
        // Not kept for its TTL: this very process comes again.
        claim.release().await.unwrap_or_else(|e| tracing::debug!(error = %e, "the claim expires by itself"));
        return Err(skip);
    }
    Ok(keep_renewed(claim, tools.estate.config().grace.claim_ttl))
}

/// Whoever held the claim may have committed after the plan was made: what it did is not planned over.
async fn moved(tools: &Tools, plan: &DatasetPlan) -> Option<Skip> {
    let detail = match tools.estate.lake.latest_version(&plan.uri).await {
        Ok(head) if head == plan.read_version => return None,
        Ok(head) => format!("HEAD moved from version {} to {head} under the run that died here", plan.read_version),
        Err(e) => format!("whether the run that died here had moved HEAD cannot be told: {e}"),
    };
    Some(Skip { reason: SkipReason::PlanStale, detail })
}

async fn let_go(claim: SharedClaim, renewing: tokio::task::JoinHandle<()>, uri: &str) {
    renewing.abort();
    if let Some(claim) = claim.lock().await.take()
        && let Err(e) = claim.release().await
    {
        tracing::warn!(dataset = uri, error = %e, "the claim could not be released; it expires by itself");
    }
}

/// A mismatch files a block: nobody works on the dataset until a person has looked.
async fn file_verify_block(tools: &Tools, uri: &str, why: &str) -> Option<Filed> {
    let subject = Subject::Dataset(uri.to_string());
    let block = Block { kind: BlockKind::Verify, subject, until: None, version: None };
    match tools.registry.block_add(block.clone(), why).await {
        Ok(id) => Some(Filed { id, block, reason: why.to_string(), lifted: Vec::new() }),
        Err(e) => {
            tracing::error!(dataset = uri, error = %e, "the block for a failed verification could not be filed");
            None
        }
    }
}

type SharedClaim = Arc<Mutex<Option<Claim>>>;

/// Renews at a third of the TTL while the pass works: a holder whose last renewal is older than TTL/2 starts no commit.
fn keep_renewed(claim: Claim, ttl: Duration) -> (SharedClaim, tokio::task::JoinHandle<()>) {
    let shared: SharedClaim = Arc::new(Mutex::new(Some(claim)));
    let mine = shared.clone();
    let task = tokio::spawn(async move {
        loop {
            tokio::time::sleep(ttl / 3).await;
            if let Some(claim) = mine.lock().await.as_mut()
                && let Err(e) = claim.renew().await
            {
                tracing::warn!(error = %e, "a claim could not be renewed");
            }
        }
    });
    (shared, task)
}

/// Before the first write to a root: the store keeps put-if-absent, and the root carries the estate's marker.
///
/// A disk without room for either must not keep from the one step that makes room: a pass that only cleans up goes on.
async fn prepare(tools: &Tools, plan: &DatasetPlan) -> Result<(), Skip> {
    let uri = plan.uri.as_str();
    let root = tools
        .estate
        .roots
        .iter()
        .filter(|r| squire_lake::uri::within(uri, r))
        .max_by_key(|r| r.len())
        .cloned()
        .unwrap_or_else(|| uri.to_string());
    // A ROOT that is itself a dataset gets the marker beside it, never in it.
    let root =
        if root == uri { root.rsplit_once('/').map_or(root.clone(), |(above, _)| above.to_string()) } else { root };
    let mut prepared = tools.prepared.lock().await;
    if prepared.contains(&root) {
        return Ok(());
    }
    let options = tools.estate.config().storage.options_for(&root);
    let unfit = |e: squire_registry::Error| Skip { reason: SkipReason::BucketUnreadable, detail: e.to_string() };
    let commits = plan.compact.is_planned() || plan.optimize_indices.is_planned() || plan.erase;
    match tools.registry.probe(&root, &options).await {
        Ok(_) => {}
        Err(e) if !commits && out_of_space(&e) => return Ok(()),
        Err(e) => return Err(unfit(e)),
    }
    match squire_registry::ensure_marker(&root, &options, tools.registry.id()).await {
        // Another estate's root: clean-up refuses (`registry_lost`), the rest may go on.
        Ok(()) | Err(squire_registry::Error::OtherEstate { .. }) => {}
        Err(e) if !commits && out_of_space(&e) => return Ok(()),
        Err(e) => return Err(unfit(e)),
    }
    prepared.insert(root);
    Ok(())
}

/// Whether a full disk or quota is behind an error.
fn out_of_space(e: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(e), |e| e.source())
        .filter_map(|e| e.downcast_ref::<std::io::Error>())
        .any(|e| matches!(e.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded))
}

/// What may newly forbid this dataset: re-read before each commit and each chunk of deletes.
async fn recheck(tools: &Tools, look: &Look) -> Result<Governance, Skip> {
    let unreadable = |e: squire_registry::Error| Skip { reason: SkipReason::RegistryUnreadable, detail: e.to_string() };
    let fresh = tools.registry.recheck(&tools.estate.snapshot, &look.uri).await.map_err(unreadable)?;
    let governance = tools.estate.govern(&fresh, &look.uri, &look.config(), look.deregistered);
    match admit::forbidden(&governance, tools.estate.now()) {
        Some(skip) => Err(skip),
        None => Ok(governance),
    }
}

async fn close_entry(tools: &Tools, plan: &DatasetPlan, applied: &Applied) -> squire_registry::Result<()> {
    let Some(attempt) = applied.opened else { return Ok(()) };
    let cleaned = applied.cleaned.clone().unwrap_or_default();
    let result = DatasetResult {
        closed_at: tools.estate.now(),
        outcome: match (&applied.skipped, applied.failures.is_empty()) {
            (_, false) => "failed".into(),
            (Some(skip), true) if !applied.is_material() => format!("skipped: {}", skip.reason),
            _ => "maintained".into(),
        },
        versions_removed: cleaned.versions,
        files_removed: cleaned.files,
        bytes_removed: cleaned.bytes,
        failed_deletes: if cleaned.failed > 0 {
            vec![format!("{} deletes failed", cleaned.failed)]
        } else {
            Vec::new()
        },
        commits: applied.commits.clone(),
        stranded_bytes: applied.stranded,
        error: applied.failures.values().next().map(|(_, text)| text.clone()),
    };
    tools.registry.run_dataset_closed(tools.estate.run, &plan.uri, attempt, result).await
}
/// Versions and files that the plan handed to apply named, and the fresh look still lets go (invariant `only_planned_deletes`).
pub fn only_planned(fresh: clean::Removal, planned: &clean::Removal) -> clean::Removal {
    let versions: BTreeSet<u64> = planned.versions.iter().map(|v| v.version).collect();
    let files: BTreeSet<&str> = planned.files.iter().map(|f| f.path.as_str()).collect();
    clean::Removal {
        versions: fresh.versions.into_iter().filter(|v| versions.contains(&v.version)).collect(),
        files: fresh
            .files
            .into_iter()
            .filter(|f| files.contains(f.path.as_str()) && versions.contains(&f.after))
            .collect(),
        ..fresh
    }
}
