//! Applies the plan of one dataset: the only code here that writes or deletes.
//!
//! Rounds of compact → optimise, each commit re-checked against the registry before and verified after; then version clean-up
//! of a healthy, verified dataset; then the record. A step's failure does not stop the others, except that nothing is
//! cleaned up that is not healthy and verified (design, "The pass").

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use squire_lake::clean::{self, Cleaned};
use squire_lake::commit::Handle as Dataset;
use squire_lake::compact::{self, Rewritten};
use squire_lake::handle::Place;
use squire_lake::look::{Look, Looked, look};
use squire_lake::refs::CloneGraph;
use squire_lake::stamp::Stamper;
use squire_lake::verify::{self, Checks};
use squire_lake::{Kind, fold};
use squire_registry::{
    Block, BlockKind, Claim, ClaimOutcome, Commit, CommitStep, DatasetEntry, DatasetIntent, DatasetResult, Governance,
    Registry, Subject, VersionEntry,
};
use squire_service::report::{FailureKind, SkipReason, StepReason};
use squire_service::shutdown::Shutdown;
use tokio::sync::Mutex;

use crate::admit::{self, Skip};
use crate::estate::{Estate, Rates};
use crate::plan::{self, DatasetPlan, Layout, Limits, MAX_ROUNDS, Round, Rules, Settings};

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
    /// Buckets and roots already marked and probed in this run.
    pub prepared: Arc<Mutex<BTreeSet<String>>>,
}

/// What was done to one dataset.
#[derive(Debug, Default)]
pub struct Applied {
    /// It was left alone after all.
    pub skipped: Option<Skip>,
    /// Compaction: fragments removed and added, bytes, tasks, seconds.
    pub compact: StepDone,
    /// Index work.
    pub indices: Vec<plan::IndexWork>,
    /// Seconds of index work.
    pub indices_seconds: f64,
    /// What verification compared.
    pub checks: Option<Checks>,
    /// Clean-up.
    pub cleaned: Option<Cleaned>,
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

/// Compaction's counts.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct StepDone {
    /// Fragments that went.
    pub removed: u64,
    /// Fragments that came.
    pub added: u64,
    /// Bytes written.
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

/// Applies one dataset's plan.
pub async fn apply(tools: &Tools, plan: &DatasetPlan, look: &Look, governance: &Governance) -> Applied {
    if plan.is_empty() {
        return Applied::default();
    }
    if let Err(skip) = recheck(tools, look).await {
        return Applied { skipped: Some(skip), ..Applied::default() };
    }
    let claim = match tools.registry.claim(&plan.uri, tools.estate.run, tools.estate.config().grace.claim_ttl).await {
        Ok(ClaimOutcome::Held(claim)) => claim,
        Ok(ClaimOutcome::Taken { by, .. }) => {
            return Applied::skip(
                SkipReason::Claimed,
                format!("{} on {} works on it (process {})", by.actor.who, by.actor.host, by.actor.pid),
            );
        }
        Err(e) => return Applied::skip(SkipReason::RegistryUnreadable, e.to_string()),
    };
    let (claim, renewing) = keep_renewed(claim, tools.estate.config().grace.claim_ttl);
    let mut applied = match prepare(tools, &plan.uri).await {
        Ok(()) => Box::pin(Pass::run(tools, plan, look, governance, &claim)).await,
        Err(skip) => Applied { skipped: Some(skip), ..Applied::default() },
    };
    renewing.abort();
    if let Some(claim) = claim.lock().await.take()
        && let Err(e) = claim.release().await
    {
        tracing::warn!(dataset = plan.uri, error = %e, "the claim could not be released; it expires by itself");
    }
    if let Err(e) = close_entry(tools, plan, &applied).await {
        let error = squire_lake::Error::new(Kind::Transient, "closing the audit record", &plan.uri).because(e);
        applied.fail("record", &error);
    }
    applied
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
async fn prepare(tools: &Tools, uri: &str) -> Result<(), Skip> {
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
    tools.registry.probe(&root, &options).await.map_err(unfit)?;
    match squire_registry::ensure_marker(&root, &options, tools.registry.id()).await {
        // Another estate's root: clean-up refuses (`registry_lost`), the rest may go on.
        Ok(()) | Err(squire_registry::Error::OtherEstate { .. }) => {}
        Err(e) => return Err(unfit(e)),
    }
    prepared.insert(root);
    Ok(())
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
    if !applied.is_material() {
        return Ok(());
    }
    let cleaned = applied.cleaned.clone().unwrap_or_default();
    let result = DatasetResult {
        closed_at: tools.estate.now(),
        outcome: if applied.failures.is_empty() { "maintained".into() } else { "failed".into() },
        versions_removed: cleaned.versions,
        files_removed: cleaned.files,
        bytes_removed: cleaned.bytes,
        failed_deletes: if cleaned.failed > 0 {
            vec![format!("{} deletes failed", cleaned.failed)]
        } else {
            Vec::new()
        },
        commits: applied.commits.clone(),
        error: applied.failures.values().next().map(|(_, text)| text.clone()),
    };
    tools.registry.run_dataset_closed(tools.estate.run, &plan.uri, result).await
}

/// One pass at work.
struct Pass<'a> {
    tools: &'a Tools,
    plan: &'a DatasetPlan,
    look: &'a Look,
    place: Place,
    claim: &'a SharedClaim,
    stamper: Stamper,
    slice: u32,
    out: Applied,
}

/// Why a pass stops before its end.
enum Stop {
    Forbidden(Skip),
    Failed,
}

impl<'a> Pass<'a> {
    async fn run(
        tools: &'a Tools,
        plan: &'a DatasetPlan,
        look: &'a Look,
        governance: &'a Governance,
        claim: &'a SharedClaim,
    ) -> Applied {
        let mut pass = match tools.estate.lake.place(&plan.uri).await {
            Ok(place) => Pass {
                tools,
                plan,
                look,
                place,
                claim,
                stamper: Stamper { estate: tools.registry.id(), run: tools.estate.run },
                slice: 0,
                out: Applied::default(),
            },
            Err(e) => {
                let mut out = Applied::default();
                out.fail("open", &e);
                return out;
            }
        };
        if let Err(e) = pass.open_entry(governance).await {
            return Applied::skip(SkipReason::RegistryUnreadable, e.to_string());
        }
        let verified = match Box::pin(pass.rounds(governance)).await {
            Ok(()) => true,
            Err(Stop::Failed) => false,
            Err(Stop::Forbidden(skip)) => {
                if pass.out.is_material() {
                    tracing::info!(dataset = plan.uri, reason = %skip.reason, "stopped: {}", skip.detail);
                }
                pass.out.skipped = Some(skip);
                return pass.out;
            }
        };
        if plan.cleanup.is_planned() {
            Box::pin(pass.cleanup(verified)).await;
        }
        pass.out
    }

    /// The audit record, before anything is done.
    async fn open_entry(&self, governance: &Governance) -> squire_registry::Result<()> {
        let infos: BTreeMap<u64, &squire_lake::look::ManifestInfo> =
            self.look.versions().into_iter().map(|(_, m)| (m.version, m)).collect();
        let replaced = |v: u64| infos.range(v + 1..).next().map_or(self.look.at, |(_, m)| m.time());
        let versions = self
            .plan
            .removal
            .versions
            .iter()
            .map(|v| VersionEntry {
                version: v.version,
                made_at: infos.get(&v.version).map_or(self.look.at, |m| m.time()),
                replaced_at: replaced(v.version),
                rows: infos.get(&v.version).map_or(0, |m| m.rows),
                bytes: v.bytes,
            })
            .collect();
        let steps = [
            ("compact", &self.plan.compact),
            ("optimize_indices", &self.plan.optimize_indices),
            ("cleanup", &self.plan.cleanup),
        ]
        .into_iter()
        .filter(|(_, v)| v.is_planned())
        .map(|(name, _)| name.to_string())
        .collect();
        let entry = DatasetEntry {
            run: self.tools.estate.run,
            uri: self.plan.uri.clone(),
            table: governance.table.as_ref().map(Subject::to_string),
            opened_at: self.tools.estate.now(),
            intent: DatasetIntent {
                read_version: self.plan.read_version,
                steps,
                versions,
                files: self.plan.removal.files.len() as u64,
                bytes: self.plan.removal.bytes(),
                policy: governance.policy.policy.clone(),
                policy_source: governance.policy.source.id.clone(),
                plan_digest: None,
            },
            result: None,
        };
        self.tools.registry.run_dataset_opened(self.tools.estate.run, entry).await
    }

    /// Compact → optimise until a round plans nothing. The first round is the plan's; later ones may only work on what is
    /// named in the plan or was made by earlier rounds.
    async fn rounds(&mut self, governance: &Governance) -> Result<(), Stop> {
        let Some(dataset) = self.look.dataset.clone() else { return Ok(()) };
        let mut handle: Arc<Dataset> = dataset;
        let mut layout = Layout::of(self.look, &governance.policy.policy, self.tools.estate.now());
        let mut round = self.plan.rounds.first().cloned().unwrap_or_default();
        let mut conflicts = 0;
        let mut ours: BTreeSet<u64> =
            self.plan.rounds.iter().flat_map(|r| &r.tasks).flat_map(|t| t.fragments.clone()).collect();
        for _ in 0..MAX_ROUNDS {
            if round.is_empty() || self.stopping() {
                break;
            }
            if !round.tasks.is_empty() {
                match self.compact(&handle, &layout, &round).await? {
                    Some((after, made)) => {
                        handle = after;
                        ours.extend(made);
                        layout = self.relayout(&handle, &layout).await?;
                        round.indices = if self.plan.optimize_indices.is_planned() {
                            plan::indices::work(&layout)
                        } else {
                            Vec::new()
                        };
                    }
                    None => conflicts += 1,
                }
            }
            if !round.indices.is_empty() && !self.stopping() {
                match self.fold(&handle, &layout, &round).await? {
                    Some(after) => handle = after,
                    None => conflicts += 1,
                }
            }
            if conflicts > MAX_CONFLICTS {
                break;
            }
            if conflicts > 0 {
                handle = self.reopen().await?;
                tokio::time::sleep(Duration::from_millis(50 * (1 << conflicts))).await;
            }
            layout = self.relayout(&handle, &layout).await?;
            round = self.next(&layout, governance, &ours);
        }
        Ok(())
    }

    fn next(&self, layout: &Layout, governance: &Governance, ours: &BTreeSet<u64>) -> Round {
        let rules = Rules {
            governance,
            settings: &self.tools.settings,
            registry_lost: None,
            rewritten: &[],
            free_bytes: None,
            now: self.tools.estate.now(),
        };
        let limits = Limits::of(layout, &rules);
        let mut round = plan::next_round(
            layout,
            &self.plan.target,
            &limits,
            self.plan.compact.is_planned(),
            self.plan.optimize_indices.is_planned() && self.out.failures.get("optimize_indices").is_none(),
        );
        if self.out.failures.contains_key("compact") {
            round.tasks.clear();
        }
        round.tasks.retain(|t| t.fragments.iter().all(|f| ours.contains(f)));
        round
    }

    async fn reopen(&mut self) -> Result<Arc<Dataset>, Stop> {
        match self.tools.estate.lake.open(&self.plan.uri).await {
            Ok(dataset) => Ok(Arc::new(dataset)),
            Err(e) => {
                self.out.fail("open", &e);
                Err(Stop::Failed)
            }
        }
    }

    async fn relayout(&mut self, handle: &Dataset, layout: &Layout) -> Result<Layout, Stop> {
        match squire_lake::look::head_of(&self.place, handle, &self.look.listing).await {
            Ok((facts, fragments, indices)) => {
                self.out.after =
                    Some(After { version: facts.version, fragments: fragments.clone(), indices: indices.clone() });
                Ok(Layout { version: facts.version, fragments, indices, ..layout.clone() })
            }
            Err(e) => {
                self.out.fail("open", &e);
                Err(Stop::Failed)
            }
        }
    }

    fn stopping(&self) -> bool {
        self.tools.shutdown.is_requested()
    }

    /// The registry and the claim, before each commit.
    async fn may_commit(&self) -> Result<(), Stop> {
        recheck(self.tools, self.look).await.map_err(Stop::Forbidden)?;
        match self.claim.lock().await.as_ref() {
            Some(claim) if claim.still_ours() => Ok(()),
            _ => {
                Err(Stop::Forbidden(Skip { reason: SkipReason::Claimed, detail: "the claim is no longer ours".into() }))
            }
        }
    }

    /// Executes and lands the round's tasks. `None` after a conflict.
    async fn compact(
        &mut self,
        handle: &Arc<Dataset>,
        layout: &Layout,
        round: &Round,
    ) -> Result<Option<(Arc<Dataset>, Vec<u64>)>, Stop> {
        let started = Instant::now();
        let settings = compact::Settings {
            target_rows: self.plan.target.rows,
            widest_row_bytes: layout.widest_row_bytes(),
            concurrency: 2,
            table_config: layout.config.clone().into_iter().collect(),
        };
        let tasks: Vec<Vec<u64>> = round.tasks.iter().map(|t| t.fragments.clone()).collect();
        let mut done: Vec<Rewritten> = Vec::new();
        for result in compact::execute(&self.tools.estate.lake, handle, &tasks, &settings).await {
            match result {
                Ok(rewritten) => done.push(rewritten),
                Err(e) => self.out.fail("compact", &e),
            }
        }
        if done.is_empty() {
            return Ok(None);
        }
        if let Err(stop) = self.may_commit().await {
            self.out.stranded += compact::discard(&self.place, done).await;
            return Err(stop);
        }
        let bytes: u64 = done.iter().map(Rewritten::bytes).sum();
        let (removed, added): (usize, usize) =
            done.iter().fold((0, 0), |(r, a), d| (r + d.replaces().len(), a + d.fragments_added()));
        let tasks = done.len() as u64;
        self.slice += 1;
        match compact::land(&self.tools.estate.lake, &self.place, handle, done, &self.stamper, self.slice).await {
            Ok(landed) => {
                (self.tools.progress)(&format!(
                    "{}: {removed} fragments became {added}",
                    squire_lake::uri::name(&self.plan.uri)
                ));
                self.out.compact.removed += removed as u64;
                self.out.compact.added += added as u64;
                self.out.compact.bytes += landed.bytes.max(bytes);
                self.out.compact.tasks += tasks;
                self.out.compact.seconds += started.elapsed().as_secs_f64();
                self.committed(CommitStep::Compact, landed.after);
                let rewrite =
                    verify::Rewrite { before: landed.before, after: landed.after, groups: landed.groups.clone() };
                self.verify(&rewrite, |i| landed.remapped > 0 && !i.loses_coverage_on_rewrite(), layout).await?;
                let made = landed.groups.iter().flat_map(|(_, new)| new.clone()).collect();
                Ok(Some((landed.dataset, made)))
            }
            Err((e, stranded)) => {
                self.out.stranded += stranded;
                if e.kind() == Kind::Conflict {
                    tracing::info!(dataset = self.plan.uri, error = %e, "somebody else's commit was first; planning again");
                } else {
                    self.out.fail("compact", &e);
                }
                Ok(None)
            }
        }
    }

    /// Folds and lands the round's index work. `None` after a conflict.
    async fn fold(
        &mut self,
        handle: &Arc<Dataset>,
        layout: &Layout,
        round: &Round,
    ) -> Result<Option<Arc<Dataset>>, Stop> {
        let started = Instant::now();
        let mut folded = Vec::new();
        let mut works = Vec::new();
        for work in &round.indices {
            match fold::build(&self.tools.estate.lake, handle, &work.name, work.merge).await {
                Ok(Some(f)) => {
                    folded.push(f);
                    works.push(work.clone());
                }
                Ok(None) => {}
                Err(e) => self.out.fail("optimize_indices", &e),
            }
        }
        if folded.is_empty() {
            return Ok(Some(handle.clone()));
        }
        if let Err(stop) = self.may_commit().await {
            self.out.stranded += folded.iter().map(fold::Folded::bytes).sum::<u64>();
            return Err(stop);
        }
        self.slice += 1;
        let before = handle.version_id();
        match fold::land(&self.tools.estate.lake, &self.place, handle, folded, &self.stamper, self.slice).await {
            Ok(dataset) => {
                let after = dataset.version_id();
                self.committed(CommitStep::OptimizeIndices, after);
                let names: BTreeSet<String> = works.iter().map(|w| w.name.clone()).collect();
                (self.tools.progress)(&format!(
                    "{}: folded {}",
                    squire_lake::uri::name(&self.plan.uri),
                    names.iter().cloned().collect::<Vec<_>>().join(", ")
                ));
                self.out.indices.extend(works);
                self.out.indices_seconds += started.elapsed().as_secs_f64();
                let rewrite = verify::Rewrite { before: before.max(after - 1), after, groups: Vec::new() };
                self.verify(&rewrite, |i| names.contains(&i.name), layout).await?;
                Ok(Some(dataset))
            }
            Err((e, stranded)) => {
                self.out.stranded += stranded;
                if e.kind() != Kind::Conflict {
                    self.out.fail("optimize_indices", &e);
                }
                Ok(None)
            }
        }
    }

    fn committed(&mut self, step: CommitStep, version: u64) {
        self.out.commits.push(Commit { step, version, at: self.tools.estate.now() });
    }

    async fn verify(
        &mut self,
        rewrite: &verify::Rewrite,
        touched: impl Fn(&squire_lake::index::IndexInfo) -> bool,
        layout: &Layout,
    ) -> Result<(), Stop> {
        let touched: Vec<_> = layout.indices.iter().filter(|i| touched(i)).cloned().collect();
        match verify::verify(&self.tools.estate.lake, &self.plan.uri, rewrite, &touched).await {
            Ok(checks) => {
                let all = self.out.checks.get_or_insert_with(Checks::default);
                all.rows = checks.rows;
                all.sampled_rows += checks.sampled_rows;
                all.indices.extend(checks.indices);
                Ok(())
            }
            Err(e) => {
                self.out.fail("verify", &e);
                if e.kind() == Kind::Verify {
                    self.block(&e.to_string()).await;
                }
                Err(Stop::Failed)
            }
        }
    }

    /// A mismatch files a block: nobody works on the dataset until a person has looked.
    async fn block(&self, why: &str) {
        let block = Block {
            kind: BlockKind::Verify,
            subject: Subject::Dataset(self.plan.uri.clone()),
            until: None,
            version: None,
        };
        if let Err(e) = self.tools.registry.block_add(block, why).await {
            tracing::error!(dataset = self.plan.uri, error = %e, "the block for a failed verification could not be filed");
        }
    }

    /// Plans the clean-up on a fresh look and applies what both plans name.
    async fn cleanup(&mut self, verified: bool) {
        // Another step's failure does not stop clean-up; an unverified rewrite does, and so does a file that could not be
        // read although its size is right: an older version may be the only good one.
        let damaged = self.out.failures.values().find(|(kind, _)| *kind == FailureKind::Damaged);
        let refused = match (verified, damaged) {
            (false, _) => {
                let why = self.out.failures.values().map(|(_, text)| text.clone()).next();
                Some((StepReason::VerifyFailed, why.unwrap_or_default()))
            }
            (true, Some((_, why))) => Some((StepReason::Unhealthy, why.clone())),
            (true, None) => None,
        };
        if let Some((reason, why)) = refused {
            self.out.cleanup_verdict = Some(plan::Verdict::refused(reason, why));
            return;
        }
        let now: DateTime<Utc> = self.tools.estate.now();
        let (fresh, governance) = match self.fresh_look(now).await {
            Some(found) => found,
            None => return,
        };
        let keep = self.tools.graph.keep_set(&self.plan.uri);
        let lost = self.tools.estate.lost(&self.plan.uri).await;
        let rules = Rules {
            governance: &governance,
            settings: &self.tools.settings,
            registry_lost: lost.as_deref(),
            rewritten: &[],
            free_bytes: None,
            now,
        };
        let layout = Layout::of(&fresh, &governance.policy.policy, now);
        let (verdict, removal, retained) = plan::retention::plan(&fresh, &layout, &keep, &rules);
        self.out.retained = Some(retained);
        if !verdict.is_planned() {
            let detail = "the plan named versions that today's policy, refs or clones keep".to_string();
            self.out.cleanup_verdict =
                Some(plan::Verdict { detail: verdict.detail.clone().or(Some(detail)), ..verdict });
            return;
        }
        let removal = only_planned(removal, &self.plan.removal);
        self.remove(&removal).await;
    }

    async fn fresh_look(&mut self, now: DateTime<Utc>) -> Option<(Look, Governance)> {
        let fresh = match look(&self.tools.estate.lake, &self.plan.uri, now).await {
            Ok(Looked::Dataset(fresh)) => *fresh,
            Ok(_) => {
                let e = squire_lake::Error::new(Kind::Damaged, "looking again before clean-up", &self.plan.uri);
                self.out.fail("cleanup", &e);
                return None;
            }
            Err(e) => {
                self.out.fail("cleanup", &e);
                return None;
            }
        };
        match recheck(self.tools, &fresh).await {
            Ok(governance) => Some((fresh, governance)),
            Err(skip) => {
                self.out.skipped = Some(skip);
                None
            }
        }
    }

    async fn remove(&mut self, removal: &clean::Removal) {
        let rate = self.tools.rates.of(&self.plan.uri, self.tools.estate.config().limits.delete_rate);
        let name = squire_lake::uri::name(&self.plan.uri);
        let total = removal.versions.len();
        let allowed = || async {
            if self.tools.shutdown.is_requested() {
                return Err("stopped by a signal".to_string());
            }
            match recheck(self.tools, self.look).await {
                Ok(governance) => match governance.held_by() {
                    Some(hold) => Err(format!("held by {} since the plan", hold.subject)),
                    None => self.named_versions(&governance, removal),
                },
                Err(skip) => Err(skip.detail),
            }?;
            match self.claim.lock().await.as_ref() {
                Some(claim) if claim.still_ours() => Ok(()),
                _ => Err("the claim is no longer ours".to_string()),
            }
        };
        let progress = |n: usize| (self.tools.progress)(&format!("{name}: {n} of {total} versions removed"));
        match clean::apply(&self.place, removal, &rate, allowed, progress).await {
            Ok(cleaned) => {
                if let Some(why) = &cleaned.stopped {
                    tracing::warn!(dataset = self.plan.uri, "clean-up stopped: {why}");
                }
                self.out.cleaned = Some(cleaned);
            }
            Err(e) => self.out.fail("cleanup", &e),
        }
    }

    /// A reader's block that arrived since the plan.
    fn named_versions(&self, governance: &Governance, removal: &clean::Removal) -> Result<(), String> {
        let wanted = governance.reader_versions();
        match removal.versions.iter().find(|v| wanted.contains(&v.version)) {
            Some(v) => Err(format!("a reader needs version {} since the plan", v.version)),
            None => Ok(()),
        }
    }
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
