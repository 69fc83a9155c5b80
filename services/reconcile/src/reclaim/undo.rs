//! Brings back what a plan moved away, byte for byte.

use chrono::Utc;
use squire_lake::quarantine::{Item, Quarantine, Returned, Rule, Work};
use squire_lake::{Lake, uri};
use squire_registry::{DatasetResult, Level, Subject};
use squire_service::cli::Failure;
use squire_service::planfile::PlanItem;
use squire_service::report::{SkipReason, StepReason};
use squire_service::telemetry::Metrics;
use uuid::Uuid;

use super::ReconcileConfig;
use super::plan::{Forbidden, object_path, object_uri};
use super::run::{Run, UNDO};
use super::store::{Begun, Stored, forget_part, keep_part, roots, stored};
use super::survey::{Survey, bare};

/// What came back of one dataset.
#[derive(Default, serde::Serialize)]
pub(crate) struct Undone {
    /// The dataset.
    pub(crate) dataset: String,
    /// Objects that lie at their places again.
    pub(crate) back: u64,
    /// Objects that had never left: marks and second copies that are gone now.
    pub(crate) stayed: u64,
    /// What could not be brought back, and why.
    pub(crate) failed: Vec<(String, String)>,
    /// Why nothing was done.
    pub(crate) forbidden: Option<Forbidden>,
}

/// A lake that only reads.
pub(crate) fn reading(config: &ReconcileConfig) -> Lake {
    let storage = config.config.storage.clone();
    let options = std::sync::Arc::new(move |uri: &str| storage.options_for(uri));
    Lake::new(options, config.config.limits.memory.as_u64())
}

/// The quarantines of one plan.
///
/// # Errors
/// Exit 3 when there is none, or one that cannot be read.
pub(crate) async fn of_plan(config: &ReconcileConfig, survey: &Survey, id: Uuid) -> anyhow::Result<Vec<Stored>> {
    let roots = roots(config, survey).await;
    let (found, unreadable) = stored(&reading(config), &roots, Some(id)).await;
    if let Some((place, why)) = unreadable.first() {
        return Err(Failure::refused(format!("the quarantine {place} could not be read: {why}")).into());
    }
    if found.is_empty() {
        return Err(Failure::refused(format!("nothing of the plan {id} is in any quarantine of this estate"))
            .remedy("see `squire-reconcile reclaim list`")
            .into());
    }
    Ok(found)
}

/// Undoes a plan, or its part of one dataset.
///
/// # Errors
/// Exit 2 for a dataset that the plan does not name, 3 for every refusal.
pub(crate) async fn undo(
    config: &ReconcileConfig,
    metrics: &Metrics,
    id: Uuid,
    dataset: Option<&str>,
) -> anyhow::Result<Vec<Undone>> {
    let survey = bare(config).await?;
    let found = of_plan(config, &survey, id).await?;
    let is_wanted = |root: &str, part: &Begun| dataset.is_none_or(|wanted| names(&survey, root, wanted, &part.dataset));
    if let Some(wanted) = dataset.filter(|_| !found.iter().any(|s| s.parts.iter().any(|(p, _)| is_wanted(&s.root, p))))
    {
        return Err(Failure::usage(format!("--dataset {wanted}: the plan moved nothing of it"))
            .remedy("see `squire-reconcile reclaim list`")
            .into());
    }
    let Some(first) = found.first() else { return Ok(Vec::new()) };
    let run = Run::open(config, metrics, &survey, &first.plan, UNDO).await?;
    let mut out = Vec::new();
    for stored in &found {
        let mut left = stored.parts.len();
        for (part, _) in stored.parts.iter().filter(|(part, _)| is_wanted(&stored.root, part)) {
            let mut undone = Undone { dataset: part.dataset.clone(), ..Undone::default() };
            match bring_back(&run, &survey, stored, part, left == 1, &mut undone).await {
                Ok(true) => left -= 1,
                Ok(false) => {}
                Err(why) => undone.forbidden = Some(why),
            }
            out.push(undone);
        }
    }
    let failures = out.iter().filter(|u| !u.failed.is_empty()).map(|u| u.dataset.clone()).collect();
    let back: u64 = out.iter().map(|u| u.back).sum();
    run.close(serde_json::json!({ "plan": id, "brought_back": back }), failures).await;
    Ok(out)
}

/// Whether `--dataset` names it: by URI, SUBJECT or displayed name.
fn names(survey: &Survey, root: &str, wanted: &str, dataset: &str) -> bool {
    let subject = wanted.parse::<Subject>();
    let is_subject = |of: &Subject| {
        let table = survey.snapshot.table_at(dataset).map(|t| t.fields.subject());
        let dropped = survey.snapshot.trash_at(dataset).any(|t| t.fields.subject == *of);
        table.as_ref() == Some(of) || dropped || *of == Subject::Dataset(dataset.to_string())
    };
    wanted == dataset
        || wanted == uri::display(dataset, &[root.to_string()])
        || wanted == uri::name(dataset)
        || subject.is_ok_and(|s| is_subject(&s))
        || uri::canonical(wanted).is_ok_and(|w| w == dataset)
}

/// The objects of a dataset that the plan names and that lie in its quarantine, as copies or marks: paths relative to the root.
pub(crate) fn held_of(stored: &Stored, part: &Begun, prefix: &str) -> (Vec<(String, u64)>, Vec<String>) {
    let named: std::collections::BTreeSet<&str> = stored.plan.items().iter().map(|i| i.path.as_str()).collect();
    let ours = |path: &str| {
        path.strip_prefix(prefix).is_some_and(|rest| named.contains(object_uri(&part.dataset, rest).as_str()))
    };
    let copies = stored.held.copies.iter().filter(|(path, _)| ours(path)).cloned().collect();
    (copies, stored.held.marks.iter().filter(|path| ours(path)).cloned().collect())
}

/// A dropped table comes back whole or not at all: nothing of it to where another one was made since.
async fn alone(work: &Work<'_>, undoing: bool) -> Result<(), Forbidden> {
    match work.newcomer(undoing).await {
        Ok(None) => Ok(()),
        Ok(Some(path)) => {
            let why = format!("somebody wrote {path} since it was moved away; move that table elsewhere first");
            Err(Forbidden::Refused(StepReason::NotExclusive, why))
        }
        Err(e) => Err(Forbidden::Skip(SkipReason::BucketUnreadable, e.to_string())),
    }
}

/// What the plan names of a dataset.
pub(crate) fn items(stored: &Stored, dataset: &str) -> Vec<Item> {
    let of = |item: &PlanItem| {
        let path = object_path(dataset, &item.path)?;
        Some(Item { path, bytes: item.bytes, modified: item.last_modified })
    };
    stored.plan.items().iter().filter_map(of).collect()
}

/// Whether the dataset's part is empty now.
async fn bring_back(
    run: &Run<'_>,
    survey: &Survey,
    stored: &Stored,
    part: &Begun,
    is_last: bool,
    undone: &mut Undone,
) -> Result<bool, Forbidden> {
    let governance = run.govern(survey, &part.dataset).await?;
    // A dropped dataset is frozen, and bringing it back is what `undrop` needs; nothing else gets past a freeze.
    if let Some(p) = governance.protections.iter().find(|p| p.level == Level::Freeze) {
        return Err(Forbidden::Skip(SkipReason::Frozen, format!("frozen by {}", p.subject)));
    }
    let failed = |e: squire_lake::Error| Forbidden::Skip(SkipReason::BucketUnreadable, e.to_string());
    let claim = run.claim(&part.dataset).await?;
    let work = async {
        let at = Quarantine::open(&run.lake, &stored.root, stored.plan.id).await.map_err(failed)?;
        let place = run.lake.place(&part.dataset).await.map_err(failed)?;
        let prefix = at.prefix(&place).map_err(failed)?;
        let (copies, marks) = held_of(stored, part, &prefix);
        let size = ((copies.len() + marks.len()) as u64, copies.iter().map(|(_, b)| b).sum());
        run.entry(&governance, ("undo", 0), size).await?;
        let items = items(stored, &part.dataset);
        let by_path: std::collections::BTreeMap<String, &Item> =
            items.iter().map(|i| (format!("{prefix}{}", i.path), i)).collect();
        let rule = Rule::Whole;
        let whole = Work { lake: &run.lake, uri: &part.dataset, items: &items, rule, quarantine: &at, rate: &run.rate };
        if part.trash.is_some() {
            alone(&whole, part.undoing).await?;
            keep_part(&at, &Begun { undoing: true, ..part.clone() }).await.map_err(failed)?;
        }
        // The manifests last: until then nobody reads what is there only in part.
        let mut paths: Vec<&String> = copies.iter().map(|(path, _)| path).chain(&marks).collect();
        paths.sort_by_key(|path| (path.contains("_versions/"), path.as_str()));
        let mut asked = part.trash.is_none();
        for path in paths {
            if !asked && path.contains("_versions/") {
                alone(&whole, true).await?;
                asked = true;
            }
            if run.shutdown.is_requested() {
                undone.failed.push((path.clone(), "stopped by a signal".into()));
                continue;
            }
            match at.bring_back(path, by_path.get(path).copied(), &run.rate).await {
                Returned::Back => undone.back += 1,
                Returned::Stayed => undone.stayed += 1,
                Returned::Failed(why) => undone.failed.push((path.clone(), why)),
            }
        }
        let result = DatasetResult {
            closed_at: Utc::now(),
            outcome: if undone.failed.is_empty() { "maintained".into() } else { "failed".into() },
            failed_deletes: undone.failed.iter().map(|(path, why)| format!("{path}: {why}")).collect(),
            ..DatasetResult::default()
        };
        if let Some(why) = run.entry_done(&part.dataset, result).await {
            tracing::warn!(dataset = part.dataset, why, "the audit entry could not be closed");
        }
        if !undone.failed.is_empty() {
            return Ok(false);
        }
        forget_part(&at, &part.dataset, is_last, &run.rate).await.map_err(failed)?;
        Ok(true)
    };
    let outcome = work.await;
    claim.release().await;
    outcome
}
