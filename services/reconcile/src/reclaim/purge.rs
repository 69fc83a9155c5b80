//! Empties a plan's quarantine for good, dataset by dataset, once its grace is over and nobody names what lies there.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use squire_lake::classes::Ages;
use squire_lake::listing::Listing;
use squire_lake::quarantine::{Erased, Item, Quarantine, Rule, Work, erase_marked, is_kept, restore_named};
use squire_lake::refs::KeepSet;
use squire_registry::{DatasetResult, Governance};
use squire_service::cli::Failure;
use squire_service::report::{Invariant, SkipReason, StepReason};
use squire_service::telemetry::Metrics;
use uuid::Uuid;

use super::ReconcileConfig;
use super::apply::ask;
use super::plan::{
    DROPPED, Forbidden, LEAST_AGE, asked, carried, day, forbidden, object_path, owned_by_lance, sole_owner,
};
use super::run::{PURGE, Run};
use super::store::{Begun, Stored, forget_part};
use super::survey::{Row, Survey, bare, survey};
use super::undo::{held_of, of_plan};

/// Written to ask the store for its time.
const CLOCK: &str = "purging";

/// What was purged of one dataset.
#[derive(Default, serde::Serialize)]
pub(crate) struct Purged {
    /// The dataset.
    pub(crate) dataset: String,
    /// Objects that are gone for good, and their bytes.
    pub(crate) gone: (u64, u64),
    /// What could not be deleted, and why; the next purge tries again.
    pub(crate) failed: Vec<(String, String)>,
    /// Marked objects that are no orphans any more, and why; they stay.
    pub(crate) left: Vec<(String, String)>,
    /// Objects that somebody named meanwhile: they are back.
    pub(crate) restored: Vec<String>,
    /// Why nothing was done.
    pub(crate) forbidden: Option<Forbidden>,
}

/// Purges what is past its grace of a plan.
///
/// # Errors
/// Exit 3 for every refusal.
pub(crate) async fn purge(config: &ReconcileConfig, metrics: &Metrics, id: Uuid) -> anyhow::Result<Vec<Purged>> {
    let found = of_plan(config, &bare(config).await?, id).await?;
    let Some(first) = found.first() else { return Ok(Vec::new()) };
    let fresh = survey(config, &first.plan.roots).await?;
    if fresh.live() == 0 {
        return Err(Failure::refused("empty_scan: nothing live is seen under the plan's ROOTs")
            .remedy("check that the bucket is the one it was")
            .into());
    }
    let run = Run::open(config, metrics, &fresh, &first.plan, PURGE).await?;
    for stored in &found {
        if let Err(why) = whole_parts(&run, stored).await {
            run.close(serde_json::json!({ "plan": id, "reclaimed_bytes": 0 }), vec![stored.root.clone()]).await;
            return Err(why);
        }
    }
    let mut out = Vec::new();
    for stored in &found {
        let mut left = stored.parts.len();
        for (part, begun) in &stored.parts {
            let mut purged = Purged { dataset: part.dataset.clone(), ..Purged::default() };
            let work = Part { run: &run, survey: &fresh, stored, part, begun: *begun };
            match work.purge(left == 1, &mut purged).await {
                Ok(true) => left -= 1,
                Ok(false) => {}
                Err(why) => purged.forbidden = Some(why),
            }
            out.push(purged);
        }
    }
    let failures = out.iter().filter(|p| p.is_failed()).map(|p| p.dataset.clone()).collect();
    let bytes: u64 = out.iter().map(|p| p.gone.1).sum();
    metrics.reclaimed_bytes.with_label_values(&["reclaim"]).inc_by(bytes);
    metrics.delete_failures.inc_by(out.iter().map(|p| p.failed.len() as u64).sum());
    run.close(serde_json::json!({ "plan": id, "reclaimed_bytes": bytes }), failures).await;
    Ok(out)
}

/// Every copy and mark belongs to a part, and every part is of the kind that the plan has it: a damaged one must not let copies go, nor
/// take the plan away from them.
async fn whole_parts(run: &Run<'_>, stored: &Stored) -> anyhow::Result<()> {
    let damaged = |why: String| {
        let what = format!("the quarantine of the plan {} is damaged: {why}", stored.plan.id);
        anyhow::Error::from(Failure::refused(what).remedy("restore what lies below its _squire/parts"))
    };
    let at = Quarantine::open(&run.lake, &stored.root, stored.plan.id).await?;
    let mut known = Vec::new();
    for (part, _) in &stored.parts {
        let mut planned = stored.plan.items().iter().filter(|i| object_path(&part.dataset, &i.path).is_some());
        if planned.any(|i| (i.reason == DROPPED) != part.trash.is_some()) {
            return Err(damaged(format!("the part of {} is not what the plan has of it", part.dataset)));
        }
        known.push(at.prefix(&run.lake.place(&part.dataset).await?)?);
    }
    let mut held = stored.held.copies.iter().map(|(path, _)| path).chain(&stored.held.marks);
    match held.find(|path| !known.iter().any(|prefix| path.starts_with(prefix))) {
        Some(path) => Err(damaged(format!("the part that {path} belongs to is not there"))),
        None => Ok(()),
    }
}

struct Part<'a> {
    run: &'a Run<'a>,
    survey: &'a Survey,
    stored: &'a Stored,
    part: &'a Begun,
    begun: DateTime<Utc>,
}

fn unreadable(e: squire_lake::Error) -> Forbidden {
    Forbidden::Skip(SkipReason::BucketUnreadable, e.to_string())
}

impl Part<'_> {
    /// Whether nothing of it is left.
    async fn purge(&self, is_last: bool, purged: &mut Purged) -> Result<bool, Forbidden> {
        let (run, dataset) = (self.run, self.part.dataset.as_str());
        let at = Quarantine::open(&run.lake, &self.stored.root, self.stored.plan.id).await.map_err(unreadable)?;
        let place = run.lake.place(dataset).await.map_err(unreadable)?;
        let prefix = at.prefix(&place).map_err(unreadable)?;
        let (copies, marks) = held_of(self.stored, self.part, &prefix);
        if copies.is_empty() && marks.is_empty() {
            return self.forget(&at, is_last).await;
        }
        let (governance, keep, now, alone) = self.may(&at).await?;
        let claim = run.claim(dataset).await?;
        let size = ((copies.len() + marks.len()) as u64, copies.iter().map(|(_, b)| b).sum());
        let work = async {
            run.entry(&governance, ("purge", 0), size).await?;
            let ages = Ages { now, longest_write: governance.policy.policy.longest_write.unwrap_or_default() };
            let items = self.items();
            let rule = Rule::Orphans(ages);
            let all = Work { lake: &run.lake, uri: dataset, items: &items, rule, quarantine: &at, rate: &run.rate };
            self.restore(&all, &keep, purged).await?;
            alone?;
            self.erase(&at, (&prefix, &copies), &keep, &governance, purged).await;
            let marked: Vec<Item> =
                items.iter().filter(|i| marks.contains(&format!("{prefix}{}", i.path))).cloned().collect();
            if !marked.is_empty() {
                self.erase_marked(&Work { items: &marked, ..all }, &keep, &ages, purged).await?;
            }
            Ok(())
        };
        let outcome: Result<(), Forbidden> = work.await;
        self.close(purged, outcome.as_ref().err()).await;
        claim.release().await;
        outcome?;
        let rest = !purged.failed.is_empty() || !purged.left.is_empty();
        if rest {
            return Ok(false);
        }
        self.forget(&at, is_last).await
    }

    /// Everything that may forbid it: the registry, the grace by the store's clock, a fresh keep-set; and, of a dropped table, whether
    /// nobody else owns bytes in it, which still lets what somebody names come back.
    async fn may(
        &self,
        at: &Quarantine,
    ) -> Result<(Governance, BTreeSet<String>, DateTime<Utc>, Result<(), Forbidden>), Forbidden> {
        let (run, dataset) = (self.run, self.part.dataset.as_str());
        let governance = run.govern(self.survey, dataset).await?;
        let whole = self.part.trash.is_some();
        forbidden(&governance, whole, Utc::now())?;
        let answers = ask(run.config, self.survey, dataset).await;
        asked(&answers)?;
        let now = at.put_control(CLOCK, b"{}".to_vec()).await.map_err(unreadable)?.min(Utc::now());
        at.drop_control(CLOCK, &run.rate).await.map_err(unreadable)?;
        let grace = TimeDelta::from_std(run.config.config.grace.quarantine).unwrap_or(TimeDelta::MAX);
        let until = self.begun.checked_add_signed(grace).unwrap_or(DateTime::<Utc>::MAX_UTC);
        if now < until {
            return Err(Forbidden::Skip(SkipReason::NotDue, format!("it stays in quarantine until {}", day(until))));
        }
        // Its age is that of the object itself, as the plan has it: a copy is younger.
        let ages = Ages { now, longest_write: governance.policy.policy.longest_write.unwrap_or_default() };
        if let Some(young) = self.items().iter().find(|i| !ages.old_enough(i.modified)) {
            return Err(Forbidden::Skip(SkipReason::NotDue, format!("{} is younger than {LEAST_AGE}", young.path)));
        }
        let refs = |why: String| Forbidden::Refused(StepReason::ReferencesIncomplete, why);
        match self.survey.rows.get(dataset) {
            Some(Row::Dataset(facts)) => {
                owned_by_lance(facts, self.survey.around(dataset))?;
                if let Some(why) = facts.incomplete.first() {
                    return Err(refs(why.clone()));
                }
            }
            // The keep-set is incomplete then, and refuses below as well; this says of which dataset.
            Some(Row::Failed(e)) => return Err(refs(e.to_string())),
            Some(Row::Nothing | Row::DeclaredOnly) | None => {}
        }
        let mut alone = Ok(());
        if whole {
            let stale = || Forbidden::Skip(SkipReason::PlanStale, "it is no longer in the trash; undo it".into());
            let trash = self.survey.snapshot.trash_at(dataset).next().ok_or_else(stale)?;
            carried(&self.survey.snapshot, trash, Utc::now())?;
            alone = sole_owner(self.survey, &self.survey.snapshot, trash);
        }
        match self.survey.graph.keep_set(dataset) {
            KeepSet::Complete(keep) => Ok((governance, keep, now, alone)),
            KeepSet::Incomplete(why) => Err(refs(why.join("; "))),
        }
    }

    fn items(&self) -> Vec<Item> {
        super::undo::items(self.stored, &self.part.dataset)
    }

    /// What somebody names by now comes back first.
    async fn restore(&self, work: &Work<'_>, keep: &BTreeSet<String>, purged: &mut Purged) -> Result<(), Forbidden> {
        let look = match self.survey.rows.get(&self.part.dataset) {
            Some(Row::Dataset(facts)) => facts.look.as_ref().filter(|_| self.part.trash.is_none()),
            _ => None,
        };
        let (back, lost) = restore_named(work, look, keep).await.map_err(unreadable)?;
        for path in &back {
            let detail = format!("{}/{path} was named while it lay in quarantine; it is back", self.part.dataset);
            self.run.metrics.violated(Invariant::ReferencesLive, &detail);
        }
        purged.restored.extend(back);
        purged.failed.extend(lost);
        Ok(())
    }

    /// Deletes the copies that nobody names, asking the registry again for every batch of them.
    async fn erase(
        &self,
        at: &Quarantine,
        (prefix, copies): (&str, &[(String, u64)]),
        keep: &BTreeSet<String>,
        governance: &Governance,
        purged: &mut Purged,
    ) {
        let whole = self.part.trash.is_some();
        for (n, (path, bytes)) in copies.iter().enumerate() {
            if purged.failed.iter().any(|(failed, _)| path.strip_prefix(prefix) == Some(failed)) {
                // It could not be brought back, and somebody names it.
                continue;
            }
            let rest = path.strip_prefix(prefix).unwrap_or(path);
            // `restore` brought it back or said why not; this is the last question before a delete for good.
            if is_kept(keep, rest) && !purged.restored.iter().any(|back| back == rest) {
                purged.failed.push((path.clone(), "somebody reads it, and it did not come back".into()));
                continue;
            }
            if n > 0 && n % squire_lake::quarantine::BATCH == 0 {
                let again = self.run.govern(self.survey, &governance.uri).await;
                if let Err(why) = again.and_then(|g| forbidden(&g, whole, Utc::now())) {
                    purged.failed.push((path.clone(), why.text()));
                    return;
                }
            }
            if self.run.shutdown.is_requested() {
                purged.failed.push((path.clone(), "stopped by a signal".into()));
                return;
            }
            match at.erase(path, &self.run.rate).await {
                Erased::Gone => purged.gone = (purged.gone.0 + 1, purged.gone.1 + bytes),
                Erased::Nothing => {}
                Erased::Failed(why) => purged.failed.push((path.clone(), why)),
                Erased::Denied(why) => {
                    purged.failed.push((path.clone(), why));
                    return;
                }
            }
        }
    }

    async fn erase_marked(
        &self,
        work: &Work<'_>,
        keep: &BTreeSet<String>,
        ages: &Ages,
        purged: &mut Purged,
    ) -> Result<(), Forbidden> {
        for (item, ended) in erase_marked(work, &KeepSet::Complete(keep.clone()), ages).await.map_err(unreadable)? {
            match ended {
                Ok(Erased::Gone) => purged.gone = (purged.gone.0 + 1, purged.gone.1 + item.bytes),
                Ok(Erased::Nothing) => {}
                Ok(Erased::Failed(why) | Erased::Denied(why)) => purged.failed.push((item.path, why)),
                Err(why) => purged.left.push((item.path, why)),
            }
        }
        Ok(())
    }

    async fn close(&self, purged: &Purged, forbidden: Option<&Forbidden>) {
        let result = DatasetResult {
            closed_at: Utc::now(),
            outcome: if purged.is_failed() || forbidden.is_some() { "failed".into() } else { "maintained".into() },
            files_removed: purged.gone.0,
            bytes_removed: purged.gone.1,
            failed_deletes: purged.failed.iter().map(|(path, why)| format!("{path}: {why}")).collect(),
            error: forbidden.map(Forbidden::text),
            ..DatasetResult::default()
        };
        if let Some(why) = self.run.entry_done(&self.part.dataset, result).await {
            tracing::warn!(dataset = self.part.dataset, why, "the audit entry could not be closed");
        }
    }

    /// Nothing of it is left: a dropped table's record ends, if none of its objects is at its place any more, and then the part.
    async fn forget(&self, at: &Quarantine, is_last: bool) -> Result<bool, Forbidden> {
        if let Some(id) = &self.part.trash
            && self.is_gone().await?
        {
            let reason = format!("its bytes were purged by run {}", self.run.id);
            let ended = self.run.registry.trash_purged(id, &reason).await;
            ended.map_err(|e| Forbidden::Skip(SkipReason::RegistryUnreadable, e.to_string()))?;
        }
        forget_part(at, &self.part.dataset, is_last, &self.run.rate).await.map_err(unreadable)?;
        Ok(true)
    }
}

impl Part<'_> {
    /// None of the objects that the plan names lies at its place: an apply that was stopped leaves some.
    async fn is_gone(&self) -> Result<bool, Forbidden> {
        let place = self.run.lake.place(&self.part.dataset).await.map_err(unreadable)?;
        let listing = Listing::read(&place).await.map_err(unreadable)?;
        Ok(!self.items().iter().any(|item| listing.get(&item.path).is_some()))
    }
}

impl Purged {
    /// Something is not as it should be, or could not be read.
    pub(crate) fn is_failed(&self) -> bool {
        let unread = self.forbidden.as_ref().is_some_and(Forbidden::is_unread);
        unread || !self.failed.is_empty() || !self.restored.is_empty()
    }
}
