//! Applies a reclaim plan: the only code here that moves objects away. It does what is in the plan and nothing else, and of that only
//! what a fresh walk and the registry still let go.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use squire_lake::classes::Ages;
use squire_lake::contain;
use squire_lake::quarantine::{self, Item, Quarantine, Returned, Rule, Taken, Work, restore_named, take_away};
use squire_lake::refs::KeepSet;
use squire_registry::{DatasetResult, Governance, ensure_marker};
use squire_service::bus::data::PlanData;
use squire_service::bus::{Bus, EventType, Settings};
use squire_service::cli::Failure;
use squire_service::config::BusKind;
use squire_service::report::{Invariant, SkipReason, StepReason};
use squire_service::telemetry::Metrics;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::plan::{Asked, Forbidden, carried, forbidden, made_anew, object_path, sole_owner};
use super::run::{APPLY, Run};
use super::store::{Begun, is_undoing, keep_part, keep_plan};
use super::survey::{Row, Survey, bucket_of, lost, nearer, root_of, survey};
use super::{MAX_AGE, ReclaimPlan, ReconcileConfig};

/// A walk serves at least this long before the estate is walked again.
const WALK_SERVES: Duration = Duration::from_secs(60);

/// What was done.
pub(crate) struct Applied {
    /// The run.
    pub(crate) run: Uuid,
    /// When it began.
    pub(crate) started: DateTime<Utc>,
    /// The last walk.
    pub(crate) survey: Survey,
    /// By dataset.
    pub(crate) rows: BTreeMap<String, Done>,
    /// Objects of the plan in no dataset.
    pub(crate) nowhere: Vec<String>,
    /// Stopped by a signal.
    pub(crate) stopped: Option<squire_service::cli::Exit>,
}

/// What was done to one dataset.
#[derive(Default)]
pub(crate) struct Done {
    /// Objects and bytes that the plan names.
    pub(crate) planned: (u64, u64),
    /// What became of them.
    pub(crate) taken: Taken,
    /// Why nothing went at all.
    pub(crate) forbidden: Option<Forbidden>,
    /// It could not be looked at.
    pub(crate) error: Option<squire_lake::Error>,
    /// The bucket keeps what is deleted as non-current versions.
    pub(crate) versioned: bool,
}

/// What makes a plan as a whole unfit to be applied. Pure.
///
/// # Errors
/// Exit 3, with what to do.
pub(crate) fn acceptable(
    plan: &ReclaimPlan,
    survey: &Survey,
    bucket: impl Fn(&str) -> String,
    now: DateTime<Utc>,
) -> Result<(), Failure> {
    let again =
        |what: String| Err(Failure::refused(what).remedy("make a new plan: squire-reconcile reclaim plan --out PLAN"));
    if plan.items().is_empty() {
        return Err(Failure::refused("the plan is empty: there is nothing to apply"));
    }
    let age = plan.made_at().map(|at| now.signed_duration_since(at));
    let limit = TimeDelta::from_std(MAX_AGE).unwrap_or(TimeDelta::MAX);
    if age.is_none_or(|age| age > limit || age < -TimeDelta::hours(1)) {
        return again("plan_stale: the plan is older than a day, or from the future".into());
    }
    if plan.live.unwrap_or_default() == 0 {
        return again("the plan saw nothing live: it would take everything there is for left over".into());
    }
    if survey.live() == 0 {
        return again("empty_scan: nothing live is seen now under the plan's ROOTs".into());
    }
    let buckets = plan.items().iter().map(|item| bucket(&item.path));
    let wanted = plan.bucket.clone().unwrap_or_default();
    if let Some(other) = buckets.into_iter().find(|b| *b != wanted) {
        return again(format!("the plan was made for the bucket {wanted}, and this is {other}"));
    }
    Ok(())
}

/// A walk over the estate that is taken again when it has served long enough: at most a tenth of the time goes into walking.
struct Fresh {
    survey: Survey,
    taken: Instant,
    cost: Duration,
}

impl Fresh {
    async fn renew(&mut self, config: &ReconcileConfig, roots: &[String]) -> anyhow::Result<()> {
        if self.taken.elapsed() <= WALK_SERVES.max(self.cost * 10) {
            return Ok(());
        }
        let began = Instant::now();
        self.survey = survey(config, roots).await?;
        (self.taken, self.cost) = (Instant::now(), began.elapsed());
        Ok(())
    }
}

/// Applies a plan. `limit`: what is larger is marked and not moved ([`quarantine::COPY_LIMIT`]; tests lower it).
///
/// # Errors
/// Every refusal of the plan as a whole, and what keeps the run from beginning.
pub(crate) async fn apply(
    config: &ReconcileConfig,
    metrics: &Metrics,
    plan: &ReclaimPlan,
    limit: u64,
) -> anyhow::Result<Applied> {
    let began = Instant::now();
    let first = survey(config, &plan.roots).await?;
    let cost = began.elapsed();
    acceptable(plan, &first, |uri| bucket_of(config, uri), Utc::now())?;
    let (by_dataset, nowhere) = by_dataset(plan, &first);
    let run = Run::open(config, metrics, &first, plan, APPLY).await?;
    let fresh = Mutex::new(Fresh { survey: first, taken: Instant::now(), cost });
    let mut rows = BTreeMap::new();
    for (dataset, items) in by_dataset {
        let mut done = Done { planned: (items.len() as u64, items.iter().map(|i| i.bytes).sum()), ..Done::default() };
        if run.shutdown.is_requested() {
            done.taken.stopped = Some("stopped by a signal".into());
        } else if let Err(why) =
            (Part { run: &run, plan, fresh: &fresh, dataset: &dataset, items: &items, limit }).take(&mut done).await
        {
            done.forbidden = Some(why);
        }
        rows.insert(dataset, (done, items));
    }
    // Once more over everything: what a clone anywhere, or a manifest that came after the last look, names by now comes back.
    let last = survey(config, &plan.roots).await?;
    let mut out = BTreeMap::new();
    for (dataset, (mut done, items)) in rows {
        if done.taken.moved.0 + done.taken.already > 0 {
            look_once_more(&run, plan, &last, &dataset, &items, &mut done).await;
        }
        alarm(metrics, &dataset, &done);
        out.insert(dataset, done);
    }
    tidy(&run, plan, &last, out.keys()).await;
    close(&run, plan, &out).await;
    let stopped = run.shutdown.exit();
    Ok(Applied { run: run.id, started: run.started, survey: last, rows: out, nowhere, stopped })
}

fn by_dataset(plan: &ReclaimPlan, survey: &Survey) -> (BTreeMap<String, Vec<Item>>, Vec<String>) {
    let (mut out, mut nowhere): (BTreeMap<String, Vec<Item>>, _) = (BTreeMap::new(), Vec::new());
    for item in plan.items() {
        let dataset = survey.dataset_of(&item.path);
        match dataset.as_ref().and_then(|d| Some((d.clone(), object_path(d, &item.path)?))) {
            Some((dataset, path)) => {
                let item = Item { path, bytes: item.bytes, modified: item.last_modified };
                out.entry(dataset).or_default().push(item);
            }
            None => nowhere.push(item.path.clone()),
        }
    }
    (out, nowhere)
}

/// What the stores say of a dataset: markers, nearer registries, credentials.
pub(crate) async fn ask(config: &ReconcileConfig, survey: &Survey, dataset: &str) -> Asked {
    let settings = &config.config;
    Asked {
        lost: lost(config, survey.registry.as_ref(), dataset).await,
        other_registry: nearer(config, &survey.registry_uri, dataset).await,
        no_delete: settings.storage.delete_missing(dataset),
    }
}

/// One dataset's part of a run.
struct Part<'a> {
    run: &'a Run<'a>,
    plan: &'a ReclaimPlan,
    fresh: &'a Mutex<Fresh>,
    dataset: &'a str,
    items: &'a [Item],
    limit: u64,
}

impl Part<'_> {
    async fn take(&self, done: &mut Done) -> Result<(), Forbidden> {
        let whole = self.is_whole().await;
        let (governance, trash) = self.may(whole).await?;
        let claim = self.run.claim(self.dataset).await?;
        let outcome = self.under_claim(done, &claim, &governance, (whole, trash)).await;
        claim.release().await;
        outcome
    }

    /// The plan names manifests: it is about a dropped dataset as a whole.
    async fn is_whole(&self) -> bool {
        let trashed = self.fresh.lock().await.survey.snapshot.trash_at(self.dataset).next().is_some();
        trashed && self.items.iter().any(|i| i.path.starts_with("_versions/"))
    }

    /// Everything that may forbid it, asked anew.
    async fn may(&self, whole: bool) -> Result<(Governance, Option<String>), Forbidden> {
        let mut fresh = self.fresh.lock().await;
        let renewed = fresh.renew(self.run.config, &self.plan.roots).await;
        let unreadable = |why: String| Forbidden::Skip(SkipReason::BucketUnreadable, why);
        renewed.map_err(|e| unreadable(format!("{e:#}")))?;
        let survey = &fresh.survey;
        let governance = self.run.govern(survey, self.dataset).await?;
        forbidden(&governance, whole, Utc::now())?;
        let asked = ask(self.run.config, survey, self.dataset).await;
        super::plan::asked(&asked)?;
        if !whole {
            if let Some(Row::Dataset(facts)) = survey.rows.get(self.dataset) {
                // Nothing around it is found here: `dataset_of` has given its objects to the outermost. Asked as the plan asks it.
                super::plan::owned_by_lance(facts, survey.around(self.dataset))?;
            }
            // `take_away` asks for it again and takes nothing either: here the refusal has its name, and no claim is taken.
            if let KeepSet::Incomplete(why) = survey.graph.keep_set(self.dataset) {
                return Err(Forbidden::Refused(StepReason::ReferencesIncomplete, why.join("; ")));
            }
            return Ok((governance, None));
        }
        let stale = || Forbidden::Skip(SkipReason::PlanStale, "it is no longer in the trash".into());
        let trash = survey.snapshot.trash_at(self.dataset).next().ok_or_else(stale)?;
        carried(&survey.snapshot, trash, Utc::now())?;
        sole_owner(survey, &survey.snapshot, trash)?;
        if let Some(Row::Dataset(facts)) = survey.rows.get(self.dataset) {
            made_anew(facts.newest.as_ref().map(|(path, at)| (path.as_str(), *at)), trash)?;
        }
        // The look above sees the same, unless its manifests have gone already: then the plan alone tells when it was written.
        made_anew(self.items.iter().map(|i| (i.path.as_str(), i.modified)).max_by_key(|(_, at)| *at), trash)?;
        let ages = self.ages(&governance, Utc::now());
        if let Some(young) = self.items.iter().find(|i| !ages.old_enough(i.modified)) {
            return Err(Forbidden::Skip(
                SkipReason::Trashed,
                format!("{} is younger than {}", young.path, super::plan::LEAST_AGE),
            ));
        }
        Ok((governance, Some(trash.meta.id.clone())))
    }

    fn ages(&self, governance: &Governance, now: DateTime<Utc>) -> Ages {
        Ages { now, longest_write: governance.policy.policy.longest_write.unwrap_or_default() }
    }

    async fn under_claim(
        &self,
        done: &mut Done,
        claim: &super::run::Claimed,
        governance: &Governance,
        (whole, trash): (bool, Option<String>),
    ) -> Result<(), Forbidden> {
        let run = self.run;
        let failed = |e: squire_lake::Error| Forbidden::Skip(SkipReason::BucketUnreadable, e.to_string());
        let (root, version) = {
            let fresh = self.fresh.lock().await;
            let survey = &fresh.survey;
            let version = match survey.rows.get(self.dataset) {
                Some(Row::Dataset(facts)) => facts.version,
                _ => 0,
            };
            (root_of(run.config, &survey.snapshot, &survey.registry_uri, self.dataset), version)
        };
        self.prepare(&root).await?;
        run.entry(governance, ("reclaim", version), done.planned).await?;
        let at = Quarantine::open(&run.lake, &root, self.plan.id).await.map_err(failed)?.copying_up_to(self.limit);
        let undoing = is_undoing(&run.lake, &at, self.plan.id, self.dataset).await.map_err(failed)?;
        let begun = Begun { dataset: self.dataset.to_string(), run: run.id, trash, undoing };
        let kept = async {
            keep_plan(&run.lake, &at, self.plan).await?;
            keep_part(&at, &begun).await
        };
        // The store's clock and ours: the earlier one makes everything younger.
        let now = kept.await.map_err(failed)?.min(Utc::now());
        let rule = if whole { Rule::Whole } else { Rule::Orphans(self.ages(governance, now)) };
        let work =
            Work { lake: &run.lake, uri: self.dataset, items: self.items, rule, quarantine: &at, rate: &run.rate };
        let allowed = || async {
            if run.shutdown.is_requested() {
                return Err("stopped by a signal".to_string());
            }
            claim.still_ours().await?;
            self.may(whole).await.map_err(|why| why.text())?;
            keep_part(&at, &begun).await.map_err(|e| e.to_string())?;
            Ok(self.fresh.lock().await.survey.graph.keep_set(self.dataset))
        };
        let taking = take_away(&mut done.taken, &work, allowed);
        let ended = contain::contained(&run.lake, "moving to the quarantine", self.dataset, taking).await;
        done.error = ended.err();
        if let Some(item) = self.items.first()
            && let Ok(versioned) = is_versioned(run, &at, self.dataset, item).await
        {
            done.versioned = versioned;
        }
        let result = result_of(done);
        if let Some(why) = run.entry_done(self.dataset, result).await {
            tracing::warn!(dataset = self.dataset, why, "the audit entry could not be closed");
        }
        Ok(())
    }

    /// Before the first write under the root: the store keeps put-if-absent, and the root carries the estate's marker.
    async fn prepare(&self, root: &str) -> Result<(), Forbidden> {
        let options = self.run.config.config.storage.options_for(root);
        let registry = &self.run.registry;
        let ready = async {
            registry.probe(root, &options).await?;
            ensure_marker(root, &options, registry.id()).await
        };
        let unfit = |e: squire_registry::Error| match e {
            squire_registry::Error::OtherEstate { .. } => Forbidden::Refused(StepReason::RegistryLost, e.to_string()),
            e => Forbidden::Skip(SkipReason::BucketUnreadable, e.to_string()),
        };
        ready.await.map_err(unfit)
    }
}

/// Asked of the copy, which is there when anything went.
async fn is_versioned(run: &Run<'_>, at: &Quarantine, dataset: &str, item: &Item) -> squire_lake::Result<bool> {
    let place = run.lake.place(dataset).await?;
    let copy = at.copy_path(&format!("{}{}", at.prefix(&place)?, item.path));
    quarantine::is_versioned(&run.lake, at.root(), &copy).await
}

fn result_of(done: &Done) -> DatasetResult {
    let taken = &done.taken;
    let failed = taken.failed.iter().chain(&taken.lost).map(|(path, why)| format!("{path}: {why}"));
    let outcome = match (&done.error, taken.failed.is_empty() && taken.lost.is_empty()) {
        (Some(_), _) | (None, false) => "failed",
        (None, true) => "maintained",
    };
    DatasetResult {
        closed_at: Utc::now(),
        outcome: outcome.into(),
        files_removed: taken.moved.0,
        bytes_removed: taken.moved.1,
        failed_deletes: failed.collect(),
        error: done.error.as_ref().map(ToString::to_string).or_else(|| taken.stopped.clone()),
        ..DatasetResult::default()
    }
}

/// What the last walk finds named of what went.
async fn look_once_more(
    run: &Run<'_>,
    plan: &ReclaimPlan,
    last: &Survey,
    dataset: &str,
    items: &[Item],
    done: &mut Done,
) {
    let keep = match last.graph.keep_set(dataset) {
        KeepSet::Complete(keep) => keep,
        // What cannot be seen may name anything, and has named nothing so far: it is told, and `undo` is at hand.
        KeepSet::Incomplete(why) => {
            done.taken.stopped.get_or_insert(format!("references_incomplete: {}", why.join("; ")));
            return;
        }
    };
    let root = root_of(run.config, &last.snapshot, &last.registry_uri, dataset);
    let result = async {
        let at = Quarantine::open(&run.lake, &root, plan.id).await?;
        let whole = last.snapshot.trash_at(dataset).next().is_some();
        let rule = Rule::Orphans(Ages { now: Utc::now(), longest_write: Duration::ZERO });
        let work = Work { lake: &run.lake, uri: dataset, items, rule, quarantine: &at, rate: &run.rate };
        let look = match last.rows.get(dataset) {
            Some(Row::Dataset(facts)) => facts.look.as_ref().filter(|_| !whole),
            _ => None,
        };
        let (mut back, mut lost) = restore_named(&work, look, &keep).await?;
        // Somebody cloned it meanwhile: it was not ours alone. Where another table was made at its place nothing more comes back.
        if whole && !keep.is_empty() && work.newcomer(false).await?.is_none() {
            let place = run.lake.place(dataset).await?;
            let prefix = at.prefix(&place)?;
            for item in items {
                match at.bring_back(&format!("{prefix}{}", item.path), Some(item), &run.rate).await {
                    Returned::Back => back.push(item.path.clone()),
                    Returned::Stayed => {}
                    Returned::Failed(why) => lost.push((item.path.clone(), why)),
                }
            }
        }
        Ok((back, lost))
    };
    match result.await {
        Ok((back, lost)) => {
            done.taken.restored.extend(back);
            done.taken.lost.extend(lost);
        }
        Err(e) => done.error = Some(e),
    }
}

/// Something was named while it was moved: it is back, and people are told.
fn alarm(metrics: &Metrics, dataset: &str, done: &Done) {
    for path in &done.taken.restored {
        metrics
            .violated(Invariant::ReferencesLive, &format!("{dataset}/{path} was named while it was moved; it is back"));
    }
    for (path, why) in &done.taken.lost {
        metrics.violated(
            Invariant::ReferencesLive,
            &format!("{dataset}/{path} is named and could not be brought back: {why}"),
        );
    }
    metrics.delete_failures.inc_by(done.taken.failed.len() as u64);
}

/// Where nothing went, nothing is left behind.
async fn tidy(run: &Run<'_>, plan: &ReclaimPlan, last: &Survey, datasets: impl Iterator<Item = &String>) {
    let roots: std::collections::BTreeSet<String> =
        datasets.map(|d| root_of(run.config, &last.snapshot, &last.registry_uri, d)).collect();
    for stored in super::store::stored(&run.lake, &roots, Some(plan.id)).await.0 {
        if let Err(e) = super::store::tidy(&run.lake, &stored, &run.rate).await {
            tracing::warn!(error = %e, "an empty part of the quarantine could not be taken away; a purge does");
        }
    }
}

async fn close(run: &Run<'_>, plan: &ReclaimPlan, rows: &BTreeMap<String, Done>) {
    let moved = rows.values().fold((0, 0), |(n, b), d| (n + d.taken.moved.0, b + d.taken.moved.1));
    let marked = rows.values().fold((0, 0), |(n, b), d| (n + d.taken.marked.0, b + d.taken.marked.1));
    let failed: u64 = rows.values().map(|d| (d.taken.failed.len() + d.taken.lost.len()) as u64).sum();
    let failures = rows.iter().filter(|(_, d)| d.is_failed()).map(|(uri, _)| uri.clone()).collect();
    let totals = serde_json::json!({ "plan": plan.id, "moved": moved.0, "moved_bytes": moved.1, "marked": marked.0, "marked_bytes": marked.1 });
    run.close(totals, failures).await;
    let data = PlanData {
        run: run.id,
        plan: plan.id,
        digest: plan.digest.clone(),
        items: moved.0 + marked.0,
        bytes: moved.1 + marked.1,
        failed,
    };
    announce(run, &data).await;
}

/// `reclaim.applied`; on the in-process bus nobody would hear it.
async fn announce(run: &Run<'_>, data: &PlanData) {
    let config = &run.config.config;
    if config.bus.kind == BusKind::Embedded {
        return;
    }
    let settings = Settings::of(&config.bus, config.grace.claim_ttl);
    let said = async {
        let bus = Bus::open(&config.bus, run.registry.name(), run.registry.id(), settings, run.metrics.clone()).await?;
        bus.announce(run.id, EventType::ReclaimApplied, "estate", data).await
    };
    if let Err(e) = said.await {
        tracing::warn!(error = %e, "the event reclaim.applied could not be sent");
    }
}

impl Done {
    /// Something is not as it should be.
    pub(crate) fn is_failed(&self) -> bool {
        self.error.is_some() || !self.taken.failed.is_empty() || self.is_alarm()
    }

    /// Somebody named what went.
    pub(crate) fn is_alarm(&self) -> bool {
        !self.taken.restored.is_empty() || !self.taken.lost.is_empty()
    }
}
