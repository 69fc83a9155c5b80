//! Where plans' quarantines are, and what is kept beside the copies: the plan itself, and when each dataset's part was begun.

use std::collections::BTreeSet;
use std::path::Path;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use squire_lake::quarantine::{self, Held, Quarantine};
use squire_lake::{Lake, uri};
use squire_service::cli::Failure;
use squire_service::planfile::PlanKind;
use uuid::Uuid;

use super::survey::{Survey, root_of};
use super::{ReclaimPlan, ReconcileConfig};

/// The plan as it was applied.
const PLAN: &str = "plan.json";

/// One dataset's part: written before its first object moves and again with every batch, so that its last-modified is the time, by the
/// store's clock, from which the grace counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Begun {
    /// The dataset's canonical URI.
    pub(crate) dataset: String,
    /// The run that moves.
    pub(crate) run: Uuid,
    /// The dataset goes whole: the trash record that allows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trash: Option<String>,
    /// An undo has begun: manifests at its place may be those that came back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) undoing: bool,
}

/// A plan's quarantine below one root.
pub(crate) struct Stored {
    /// The root.
    pub(crate) root: String,
    /// The plan.
    pub(crate) plan: ReclaimPlan,
    /// What lies there.
    pub(crate) held: Held,
    /// The parts that were begun, with when.
    pub(crate) parts: Vec<(Begun, DateTime<Utc>)>,
}

fn part_name(dataset: &str) -> String {
    let mut name = squire_service::planfile::digest(&serde_json::Value::from(dataset));
    name.truncate(32);
    format!("parts/{name}.json")
}

/// Keeps the plan, once; one of the same id and another content is refused.
///
/// # Errors
/// What the store says.
pub(crate) async fn keep_plan(lake: &Lake, at: &Quarantine, plan: &ReclaimPlan) -> squire_lake::Result<()> {
    let text = serde_json::to_vec_pretty(plan).unwrap_or_default();
    match quarantine::read_control(lake, at.root(), plan.id, PLAN).await? {
        Some(found) if parse(&found).is_ok_and(|p| p.digest == plan.digest) => Ok(()),
        Some(_) => {
            let doing = format!("keeping the plan {} (another one of this id is there)", plan.id);
            Err(squire_lake::Error::new(squire_lake::Kind::Refused, doing, at.root()))
        }
        None => at.put_control(PLAN, text).await.map(|_| ()),
    }
}

/// Writes a dataset's part; when that was, by the store's clock.
///
/// # Errors
/// What the store says.
pub(crate) async fn keep_part(at: &Quarantine, part: &Begun) -> squire_lake::Result<DateTime<Utc>> {
    let text = serde_json::to_vec(part).unwrap_or_default();
    at.put_control(&part_name(&part.dataset), text).await
}

/// Whether an undo of the dataset's part has begun; a part that is not there or cannot be read tells of none.
///
/// # Errors
/// What the store says.
pub(crate) async fn is_undoing(lake: &Lake, at: &Quarantine, plan: Uuid, dataset: &str) -> squire_lake::Result<bool> {
    let found = quarantine::read_control(lake, at.root(), plan, &part_name(dataset)).await?;
    Ok(found.and_then(|bytes| serde_json::from_slice::<Begun>(&bytes).ok()).is_some_and(|part| part.undoing))
}

/// Takes a dataset's part away, and with the last one the plan.
///
/// # Errors
/// What the store says.
pub(crate) async fn forget_part(
    at: &Quarantine,
    dataset: &str,
    is_last: bool,
    rate: &squire_lake::rate::Rate,
) -> squire_lake::Result<()> {
    at.drop_control(&part_name(dataset), rate).await?;
    if is_last {
        at.drop_control(PLAN, rate).await?;
        at.remove_empty_folders();
    }
    Ok(())
}

/// Takes away the parts of datasets of which nothing lies there, and with the last one the plan.
///
/// # Errors
/// What the store says.
pub(crate) async fn tidy(lake: &Lake, stored: &Stored, rate: &squire_lake::rate::Rate) -> squire_lake::Result<()> {
    let at = Quarantine::open(lake, &stored.root, stored.plan.id).await?;
    let mut left = stored.parts.len();
    for (part, _) in &stored.parts {
        let prefix = at.prefix(&lake.place(&part.dataset).await?)?;
        let (copies, marks) = super::undo::held_of(stored, part, &prefix);
        if copies.is_empty() && marks.is_empty() {
            forget_part(&at, &part.dataset, left == 1, rate).await?;
            left -= 1;
        }
    }
    Ok(())
}

fn parse(bytes: &[u8]) -> Result<ReclaimPlan, String> {
    let plan = ReclaimPlan::parse(Path::new(PLAN), bytes).map_err(|e| e.to_string())?;
    if plan.kind == PlanKind::Reclaim { Ok(plan) } else { Err("it is no reclaim plan".into()) }
}

/// Every root below which this estate may have a quarantine.
pub(crate) async fn roots(config: &ReconcileConfig, survey: &Survey) -> BTreeSet<String> {
    let mut out: BTreeSet<String> = survey.snapshot.warehouses().map(|w| w.fields.root.clone()).collect();
    out.extend(config.config.estate.roots.iter().filter_map(|root| uri::canonical(root).ok()));
    let known = survey.rows.keys().chain(survey.snapshot.trash().map(|t| &t.fields.uri));
    let mut datasets: BTreeSet<String> = known.cloned().collect();
    // What earlier reclaims worked on, wherever it was.
    if let Some(registry) = &survey.registry
        && let Ok((runs, _)) = registry.runs().await
    {
        for run in runs.iter().filter(|r| r.kind.starts_with("reclaim")) {
            if let Ok((_, entries, _)) = registry.run(run.run).await {
                datasets.extend(entries.into_iter().map(|e| e.uri));
            }
        }
    }
    out.extend(datasets.iter().map(|d| root_of(config, &survey.snapshot, &survey.registry_uri, d)));
    out
}

/// All quarantines of the estate, or those of one plan, and what could not be read.
pub(crate) async fn stored(
    lake: &Lake,
    roots: &BTreeSet<String>,
    wanted: Option<Uuid>,
) -> (Vec<Stored>, Vec<(String, String)>) {
    let (mut out, mut unreadable) = (Vec::new(), Vec::new());
    for root in roots {
        let plans = match quarantine::plans(lake, root).await {
            Ok(plans) => plans,
            Err(e) => {
                unreadable.push((root.clone(), e.to_string()));
                continue;
            }
        };
        for plan in plans.into_iter().filter(|p| wanted.is_none_or(|w| w == *p)) {
            match one(lake, root, plan).await {
                Ok(stored) => out.extend(stored),
                Err(why) => unreadable.push((format!("{root}/{}/{plan}", squire_lake::discover::QUARANTINE), why)),
            }
        }
    }
    (out, unreadable)
}

async fn one(lake: &Lake, root: &str, id: Uuid) -> Result<Option<Stored>, String> {
    let held = quarantine::held(lake, root, id).await.map_err(|e| e.to_string())?;
    if held == Held::default() {
        // A folder of a local disk that nobody took away.
        return Ok(None);
    }
    let bytes = quarantine::read_control(lake, root, id, PLAN).await.map_err(|e| e.to_string())?;
    let plan = parse(&bytes.ok_or("its plan is not there")?)?;
    if plan.id != id {
        return Err(format!("its plan is {}", plan.id));
    }
    let mut parts = Vec::new();
    for (name, at) in held.control.iter().filter(|(name, _)| name.starts_with("parts/")) {
        let bytes = quarantine::read_control(lake, root, id, name).await.map_err(|e| e.to_string())?;
        let part: Begun = serde_json::from_slice(&bytes.unwrap_or_default()).map_err(|e| format!("{name}: {e}"))?;
        if *name != part_name(&part.dataset) {
            return Err(format!("{name} is damaged: it is not the part of {}", part.dataset));
        }
        parts.push((part, *at));
    }
    parts.sort_by(|a: &(Begun, DateTime<Utc>), b| a.0.dataset.cmp(&b.0.dataset));
    Ok(Some(Stored { root: root.to_string(), plan, held, parts }))
}

/// The id that a command names.
///
/// # Errors
/// Exit 2 for what is no id.
pub(crate) fn plan_id(text: &str) -> anyhow::Result<Uuid> {
    let id: Result<Uuid, _> = text.parse();
    id.map_err(|_| {
        Failure::usage(format!("{text} is no plan's id")).remedy("see `squire-reconcile reclaim list`").into()
    })
}
