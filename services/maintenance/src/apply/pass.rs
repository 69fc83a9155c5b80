//! The rounds of one pass: execute, commit, verify.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use squire_lake::commit::{Handle as Dataset, Outputs};
use squire_lake::compact::{self, Rewritten};
use squire_lake::handle::Place;
use squire_lake::look::Look;
use squire_lake::stamp::Stamper;
use squire_lake::verify;
use squire_lake::{Kind, build, contain, fold};
use squire_registry::{Commit, CommitStep, DatasetEntry, DatasetIntent, Governance, Subject, VersionEntry};
use squire_service::report::{IndexAction, SkipReason};
use uuid::Uuid;

use super::slices::Landing;
use super::yielding::{Stopped, Yielding};
use super::{After, Applied, MAX_CONFLICTS, SharedClaim, Tools, file_verify_block, recheck};
use crate::admit::Skip;
use crate::memory;
use crate::plan::{self, DatasetPlan, Layout, Limits, MAX_ROUNDS, Round, Rules};
use crate::state::{Unverified, WaitingFor};

/// The registry and the claim: whether a commit may be made now.
async fn allowed(tools: &Tools, look: &Look, claim: &SharedClaim) -> Result<(), Skip> {
    recheck(tools, look).await?;
    match claim.lock().await.as_ref() {
        Some(claim) if claim.still_ours() => Ok(()),
        _ => Err(Skip { reason: SkipReason::Claimed, detail: "the claim is no longer ours".into() }),
    }
}

/// One pass at work.
pub(super) struct Pass<'a> {
    pub(super) tools: &'a Tools,
    pub(super) plan: &'a DatasetPlan,
    pub(super) look: &'a Look,
    pub(super) place: Place,
    pub(super) claim: &'a SharedClaim,
    yielding: Yielding,
    pub(super) stamper: Stamper,
    pub(super) slice: u32,
    /// The last lost race of each step that nothing has won since.
    pub(super) lost: BTreeMap<&'static str, squire_lake::Error>,
    pub(super) out: Applied,
}

/// Why a pass stops before its end.
pub(super) enum Stop {
    Forbidden(Skip),
    Failed,
}

impl<'a> Pass<'a> {
    pub(super) async fn run(
        tools: &'a Tools,
        plan: &'a DatasetPlan,
        look: &'a Look,
        governance: &'a Governance,
        claim: &'a SharedClaim,
        waiting_for: Option<&WaitingFor>,
        stored: Option<Landing>,
    ) -> Applied {
        let place = match tools.estate.lake.place(&plan.uri).await {
            Ok(place) => place,
            Err(e) => {
                let mut out = Applied::default();
                out.fail("open", &e);
                return out;
            }
        };
        let ours = stored.as_ref().map(Landing::outputs).unwrap_or_default();
        let yielding = match Yielding::begin(tools, &place, look, governance, waiting_for, &ours).await {
            Ok(yielding) => yielding,
            Err(Stopped { skip, file }) => {
                return Applied { skipped: Some(skip), waits_for: file, ..Applied::default() };
            }
        };
        let mut pass = Pass {
            tools,
            plan,
            look,
            place,
            claim,
            yielding,
            stamper: Stamper { estate: tools.registry.id(), run: tools.estate.run },
            slice: last_slice(look, tools.estate.run),
            lost: BTreeMap::new(),
            out: Applied::default(),
        };
        let attempt = Uuid::now_v7();
        if let Err(e) = pass.open_entry(governance, attempt).await {
            return Applied::skip(SkipReason::RegistryUnreadable, e.to_string());
        }
        pass.out.opened = Some(attempt);
        // Contained here and not only above: what was committed before a panic is still recorded.
        let lake = &tools.estate.lake;
        let rounds = async {
            Ok(match stored {
                Some(landing) => Box::pin(pass.land_stored(landing, governance)).await,
                None => Box::pin(pass.rounds(governance)).await,
            })
        };
        let rounds = contain::contained(lake, "the pass", &plan.uri, rounds).await;
        // Every race was lost to the end and there is still work: that is no "nothing to gain".
        for (step, e) in std::mem::take(&mut pass.lost).into_iter().filter(|_| matches!(rounds, Ok(Ok(())))) {
            pass.out.fail(step, &e);
        }
        let verified = match rounds {
            Ok(Ok(())) => true,
            Ok(Err(Stop::Failed)) => false,
            Err(e) => {
                pass.out.fail("pass", &e);
                false
            }
            Ok(Err(Stop::Forbidden(skip))) => {
                if pass.out.is_material() {
                    tracing::info!(dataset = plan.uri, reason = %skip.reason, "stopped: {}", skip.detail);
                }
                pass.out.skipped = Some(skip);
                return pass.out;
            }
        };
        if plan.erase && verified {
            match contain::contained(lake, "the empty commit", &plan.uri, async { Ok(pass.commit_nothing().await) })
                .await
            {
                Ok(Ok(())) | Ok(Err(Stop::Failed)) => {}
                Ok(Err(Stop::Forbidden(skip))) => {
                    pass.out.skipped = Some(skip);
                    return pass.out;
                }
                Err(e) => pass.out.fail("cleanup", &e),
            }
        }
        if plan.cleanup.is_planned() {
            let cleanup = async {
                Box::pin(pass.cleanup(verified)).await;
                Ok(())
            };
            if let Err(e) = contain::contained(lake, "version clean-up", &plan.uri, cleanup).await {
                pass.out.fail("cleanup", &e);
            }
        }
        pass.out
    }

    /// The audit record, before anything is done.
    async fn open_entry(&self, governance: &Governance, attempt: Uuid) -> squire_registry::Result<()> {
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
            attempt,
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
        let mut layout = Layout::of(self.look, &governance.policy.policy, None, self.tools.estate.now());
        layout.rebuild = self.plan.rebuilds();
        let mut round = self.plan.rounds.first().cloned().unwrap_or_default();
        let mut conflicts = 0;
        let mut ours: BTreeSet<u64> =
            self.plan.rounds.iter().flat_map(|r| &r.tasks).flat_map(|t| t.fragments.clone()).collect();
        for _ in 0..MAX_ROUNDS {
            if round.is_empty() || self.stopping() {
                break;
            }
            if !round.tasks.is_empty() {
                match Box::pin(self.compact(&handle, &layout, &round)).await? {
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
                match Box::pin(self.fold(&handle, &layout, &round)).await? {
                    Some(after) => {
                        handle = after;
                        layout.rebuild.retain(|name| !self.out.indices.iter().any(|done| done.name == *name));
                    }
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
            if round.is_empty() {
                self.lost.clear();
            }
        }
        Ok(())
    }

    /// One empty stamped commit, where HEAD is still what was planned on: anything newer has replaced it already.
    async fn commit_nothing(&mut self) -> Result<(), Stop> {
        let head = self.reopen().await?;
        if head.version_id() != self.plan.read_version {
            return Ok(());
        }
        self.may_commit(&Outputs::default()).await?;
        self.slice += 1;
        match squire_lake::commit::empty(&self.tools.estate.lake, &head, &self.stamper, self.slice).await {
            Ok(after) => {
                self.committed(CommitStep::Erase, after.version_id());
                let layout = Layout::of(self.look, &Default::default(), None, self.tools.estate.now());
                self.relayout(&after, &layout).await.map(drop)
            }
            // Whoever was first has replaced HEAD.
            Err(e) if e.kind() == Kind::Conflict => Ok(()),
            Err(e) => {
                self.out.fail("cleanup", &e);
                Err(Stop::Failed)
            }
        }
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
            self.plan.optimize_indices.is_planned() && !self.out.failures.contains_key("optimize_indices"),
        );
        if self.out.failures.contains_key("compact") {
            round.tasks.clear();
        }
        round.tasks.retain(|t| t.fragments.iter().all(|f| ours.contains(f)));
        round
    }

    pub(super) async fn reopen(&mut self) -> Result<Arc<Dataset>, Stop> {
        match self.tools.estate.lake.open(&self.plan.uri).await {
            Ok(dataset) => Ok(Arc::new(dataset)),
            Err(e) => {
                self.out.fail("open", &e);
                Err(Stop::Failed)
            }
        }
    }

    pub(super) async fn relayout(&mut self, handle: &Dataset, layout: &Layout) -> Result<Layout, Stop> {
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

    pub(super) fn stopping(&self) -> bool {
        self.tools.shutdown.is_requested()
    }

    /// The registry, other people's work and the claim, before each commit. `ours` is what this commit will name.
    async fn may_commit(&mut self, ours: &Outputs) -> Result<(), Stop> {
        if let Err(Stopped { skip, file }) = self.yielding.before_commit(self.tools, ours).await {
            self.out.waits_for = file;
            return Err(Stop::Forbidden(skip));
        }
        allowed(self.tools, self.look, self.claim).await.map_err(|skip| self.forbidden(skip))
    }

    fn forbidden(&mut self, skip: Skip) -> Stop {
        self.out.claim_lost |= skip.reason == SkipReason::Claimed;
        Stop::Forbidden(skip)
    }

    /// Executes and lands the round's tasks. `None` after a conflict.
    #[tracing::instrument(level = "debug", skip_all)]
    async fn compact(
        &mut self,
        handle: &Arc<Dataset>,
        layout: &Layout,
        round: &Round,
    ) -> Result<Option<(Arc<Dataset>, Vec<u64>)>, Stop> {
        let started = Instant::now();
        let settings = compact::Settings {
            target_rows: self.plan.target.rows,
            widest_row_bytes: layout.held_row_bytes(),
            concurrency: 2,
            table_config: layout.config.clone().into_iter().collect(),
        };
        let tasks: Vec<Vec<u64>> = round.tasks.iter().map(|t| t.fragments.clone()).collect();
        let mut done: Vec<Rewritten> = Vec::new();
        for result in compact::execute(&self.tools.estate.lake, handle, &tasks, &settings).await {
            match result {
                Ok(rewritten) => done.push(rewritten),
                Err(e) => self.failed("compact", e),
            }
        }
        if done.is_empty() {
            return Ok(None);
        }
        self.land(handle, layout, done, started).await
    }

    /// Lands executed tasks and verifies them. `None` after a conflict.
    pub(super) async fn land(
        &mut self,
        handle: &Arc<Dataset>,
        layout: &Layout,
        done: Vec<Rewritten>,
        started: Instant,
    ) -> Result<Option<(Arc<Dataset>, Vec<u64>)>, Stop> {
        if let Err(stop) = self.may_commit(&compact::outputs_of(&done)).await {
            self.out.stranded += compact::discard(&self.place, done).await;
            return Err(stop);
        }
        let bytes: u64 = done.iter().map(Rewritten::bytes).sum();
        let old: BTreeSet<u64> = done.iter().flat_map(Rewritten::replaces).collect();
        let replaced: u64 = layout.fragments.iter().filter(|f| old.contains(&f.id)).map(|f| f.bytes).sum();
        let (removed, added): (usize, usize) =
            done.iter().fold((0, 0), |(r, a), d| (r + d.replaces().len(), a + d.fragments_added()));
        let tasks = done.len() as u64;
        self.slice += 1;
        let (tools, look, claim) = (self.tools, self.look, self.claim);
        let forbidden = Mutex::new(None);
        // Indices are remapped before the commit, for as long as that takes.
        let may_commit = || -> BoxFuture<'_, Result<(), String>> {
            Box::pin(async {
                let allowed = allowed(tools, look, claim).await;
                allowed.map_err(|skip| {
                    forbidden.lock().unwrap_or_else(PoisonError::into_inner).insert(skip).detail.clone()
                })
            })
        };
        let by = (&self.stamper, self.slice);
        let landed = compact::land(&tools.estate.lake, &self.place, handle, done, by, &may_commit).await;
        let forbidden = forbidden.into_inner().unwrap_or_else(PoisonError::into_inner);
        match landed {
            Ok(landed) => {
                (self.tools.progress)(&format!(
                    "{}: {removed} fragments became {added}",
                    squire_lake::uri::name(&self.plan.uri)
                ));
                self.out.compact.removed += removed as u64;
                self.out.compact.added += added as u64;
                self.out.compact.replaced += replaced;
                self.out.compact.bytes += landed.bytes.max(bytes);
                self.out.compact.tasks += tasks;
                self.out.compact.seconds += started.elapsed().as_secs_f64();
                self.out.stranded += landed.stranded;
                self.committed(CommitStep::Compact, landed.after);
                let rewrite =
                    verify::Rewrite { before: landed.before, after: landed.after, groups: landed.groups.clone() };
                Box::pin(self.verify(&rewrite, |i| landed.remapped > 0 && !i.loses_coverage_on_rewrite(), layout))
                    .await?;
                let made = landed.groups.iter().flat_map(|(_, new)| new.clone()).collect();
                Ok(Some((landed.dataset, made)))
            }
            Err((e, stranded)) => {
                self.out.stranded += stranded;
                if let Some(skip) = forbidden {
                    return Err(self.forbidden(skip));
                }
                if e.kind() == Kind::Conflict {
                    tracing::info!(dataset = self.plan.uri, error = %e, "somebody else's commit was first; planning again");
                    self.out.lost_races += 1;
                    self.lost.insert("compact", e);
                } else {
                    self.out.fail("compact", &e);
                }
                Ok(None)
            }
        }
    }

    /// Folds and lands the round's index work. `None` after a conflict.
    #[tracing::instrument(level = "debug", name = "optimize_indices", skip_all)]
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
            match self.build(handle, layout, work).await {
                Ok(Some(f)) => {
                    works.push(plan::IndexWork { bytes: f.bytes(), ..work.clone() });
                    folded.push(f);
                }
                Ok(None) => {}
                Err(e) => self.failed("optimize_indices", e),
            }
        }
        if folded.is_empty() {
            return Ok(Some(handle.clone()));
        }
        if let Err(stop) = self.may_commit(&fold::outputs_of(&folded)).await {
            self.out.stranded += fold::discard(&self.place, &folded).await;
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
                Box::pin(self.verify(&rewrite, |i| names.contains(&i.name), layout)).await?;
                Ok(Some(dataset))
            }
            Err((e, stranded)) => {
                self.out.stranded += stranded;
                if e.kind() == Kind::Conflict {
                    self.out.lost_folds += 1;
                    self.lost.insert("optimize_indices", e);
                } else {
                    self.out.fail("optimize_indices", &e);
                }
                Ok(None)
            }
        }
    }

    /// What one index work adds, before its commit.
    async fn build(
        &self,
        handle: &Arc<Dataset>,
        layout: &Layout,
        work: &plan::IndexWork,
    ) -> squire_lake::Result<Option<fold::Folded>> {
        let lake = &self.tools.estate.lake;
        match layout.indices.iter().find(|i| i.name == work.name) {
            Some(index) if work.action == IndexAction::Rebuild => {
                Box::pin(build::anew(lake, &self.place, handle, index, memory::REBUILD)).await.map(Some)
            }
            _ => Box::pin(fold::build(lake, handle, &work.name, work.merge)).await,
        }
    }

    /// A read that failed where HEAD's files are not as recorded has found the damage: a second try finds the same.
    fn failed(&mut self, step: &'static str, e: squire_lake::Error) {
        let damaged = e.kind() == Kind::Transient && !self.look.missing.is_empty();
        self.out.fail(step, &if damaged { e.with_kind(Kind::Damaged) } else { e });
    }

    fn committed(&mut self, step: CommitStep, version: u64) {
        self.lost.remove(<&'static str>::from(step));
        self.out.commits.push(Commit { step, version, at: self.tools.estate.now(), verified: false });
    }

    #[tracing::instrument(level = "debug", skip_all)]
    async fn verify(
        &mut self,
        rewrite: &verify::Rewrite,
        touched: impl Fn(&squire_lake::index::IndexInfo) -> bool,
        layout: &Layout,
    ) -> Result<(), Stop> {
        let touched: Vec<_> = layout.indices.iter().filter(|i| touched(i)).cloned().collect();
        // Open until it is known: a panic must not leave the commit for verified.
        self.out.unverified.push(Unverified {
            before: rewrite.before,
            after: rewrite.after,
            groups: rewrite.groups.clone(),
            indices: touched.iter().map(|i| i.name.clone()).collect(),
        });
        let started = Instant::now();
        let compared = verify::verify(&self.tools.estate.lake, &self.plan.uri, rewrite, &touched).await;
        self.out.verify_seconds += started.elapsed().as_secs_f64();
        match compared {
            Ok(checks) => {
                self.out.unverified.pop();
                self.out.commits.iter_mut().filter(|c| c.version == rewrite.after).for_each(|c| c.verified = true);
                self.out.checks.get_or_insert_default().merge(checks);
                Ok(())
            }
            Err(e) => {
                self.out.fail("verify", &e);
                if e.kind() == Kind::Verify {
                    self.out.unverified.pop();
                    self.out.filed.extend(file_verify_block(self.tools, &self.plan.uri, &e.to_string()).await);
                }
                Err(Stop::Failed)
            }
        }
    }
}

/// The last commit of a run on this dataset: a message that is delivered again goes on counting, so that no stamp comes twice.
fn last_slice(look: &Look, run: Uuid) -> u32 {
    let run = run.to_string();
    look.manifests.iter().filter_map(|m| m.stamp.as_ref()).filter(|s| s.run == run).map(|s| s.slice).max().unwrap_or(0)
}
