//! What may go, and what forbids it. Pure.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use squire_lake::authority::Authority;
use squire_lake::classes::{Ages, Class, Classed};
use squire_lake::refs::KeepSet;
use squire_lake::uri;
use squire_registry::{Governance, Level, Record, Snapshot, Subject, Trash};
use squire_service::planfile::PlanItem;
use squire_service::report::{FailureKind, SkipReason, StepReason};

use super::ReconcileConfig;
use super::survey::{Facts, Row, Survey};

/// Why an object of a dropped table goes, as the plan says it.
pub(crate) const DROPPED: &str = "its table was dropped and its grace is over";

/// What an object must be older than, for people.
pub(crate) const LEAST_AGE: &str = "seven days, or than the policy's longest_write";

/// Why nothing of a dataset goes.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Forbidden {
    /// It is left alone altogether.
    Skip(SkipReason, String),
    /// A rule of clean-up forbids it.
    Refused(StepReason, String),
}

impl Forbidden {
    /// The reason's stable name, and a sentence.
    pub(crate) fn text(&self) -> String {
        match self {
            Forbidden::Skip(reason, why) => format!("{reason}: {why}"),
            Forbidden::Refused(reason, why) => format!("{reason}: {why}"),
        }
    }

    /// Nothing goes because something could not be read: no refusal by a rule, but a run that is incomplete (FACES, exit code 3).
    pub(crate) fn is_unread(&self) -> bool {
        matches!(
            self,
            Forbidden::Skip(SkipReason::BucketUnreadable | SkipReason::RegistryUnreadable, _)
                | Forbidden::Refused(StepReason::ReferencesIncomplete | StepReason::UnreadableManifest, _)
        )
    }
}

fn skip<T>(reason: SkipReason, why: impl Into<String>) -> Result<T, Forbidden> {
    Err(Forbidden::Skip(reason, why.into()))
}

fn refuse<T>(reason: StepReason, why: impl Into<String>) -> Result<T, Forbidden> {
    Err(Forbidden::Refused(reason, why.into()))
}

/// What becomes of one dataset.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// These go.
    Goes(Going),
    /// Nothing is there to go.
    Nothing,
    /// Something would go, and may not.
    Forbidden(Forbidden, u64),
    /// It could not be looked at.
    Failed(FailureKind, String),
}

/// What goes of one dataset.
#[derive(Debug, Clone)]
pub(crate) struct Going {
    /// The objects, relative to the dataset.
    pub(crate) objects: Vec<Classed>,
    /// The dataset goes whole: the trash record that allows it.
    pub(crate) trash: Option<String>,
    /// Objects of a dropped dataset that are not known to be its own, and stay.
    pub(crate) strangers: u64,
}

impl Going {
    /// Objects and bytes.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.objects.len() as u64, self.objects.iter().map(|o| o.bytes).sum())
    }
}

/// What was found out about a dataset by asking its store: a marker of another estate, another registry above it, credentials.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    /// Why the registry is not the one that the root belongs to.
    pub(crate) lost: Option<String>,
    /// Another registry is nearer.
    pub(crate) other_registry: Option<String>,
    /// Why nothing may be deleted there.
    pub(crate) no_delete: Option<String>,
}

/// What the registry forbids. `whole`: the dataset is in the trash, and that is what allows it.
pub(crate) fn forbidden(governance: &Governance, whole: bool, now: DateTime<Utc>) -> Result<(), Forbidden> {
    // Reclaim destroys: whatever cannot be read in its scope may forbid it.
    if let Some(u) = governance.unreadable.first() {
        let why = format!("the record {}/{} cannot be read: {}", u.collection, u.key, u.why);
        return skip(SkipReason::RegistryUnreadable, why);
    }
    match (&governance.trash, whole) {
        (Some(trash), true) if trash.deadline > now => {
            return skip(SkipReason::Trashed, format!("it can be undropped until {}", day(trash.deadline)));
        }
        (Some(_), true) => {}
        (None, true) => return skip(SkipReason::PlanStale, "it is no longer in the trash"),
        (Some(trash), false) => {
            return skip(SkipReason::Trashed, format!("dropped on {} as {}", day(trash.dropped_at), trash.subject));
        }
        (None, false) if governance.deregistered => {
            return skip(SkipReason::Deregistered, "a .lance-deregistered marker lies in it");
        }
        (None, false) => {}
    }
    if let Some(p) = governance.protections.iter().max_by_key(|p| p.level) {
        let why = format!("{} of {} ({})", p.level, p.subject, p.reason.as_deref().unwrap_or("no reason given"));
        match p.level {
            Level::Freeze => return skip(SkipReason::Frozen, why),
            Level::KeepHistory => return refuse(StepReason::Held, why),
            // The bytes of a dropped table are what `no-drop` protects.
            Level::NoDrop if whole => return refuse(StepReason::Held, why),
            Level::NoDrop => {}
        }
    }
    if !governance.warehouse_active {
        return skip(SkipReason::WarehouseInactive, "its warehouse is deactivated");
    }
    // A version that a reader needs goes with the whole dataset: there every block counts.
    if let Some(block) = governance.blocks.iter().find(|b| whole || b.pauses()) {
        return skip(SkipReason::Blocked, format!("blocked by {}: {}", block.subject, block.reason));
    }
    if let Some(why) = governance.opted_out.as_ref().filter(|_| !whole) {
        return skip(SkipReason::OptedOut, why.clone());
    }
    if let Some(until) = governance.paused_until.filter(|t| *t > now && !whole) {
        return skip(SkipReason::OptedOut, format!("its own config pauses maintenance until {}", day(until)));
    }
    if !governance.exclusive {
        return refuse(StepReason::NotExclusive, "others than this estate may read these files");
    }
    Ok(())
}

/// What asking the stores forbids.
pub(crate) fn asked(asked: &Asked) -> Result<(), Forbidden> {
    if let Some(why) = &asked.lost {
        return refuse(StepReason::RegistryLost, why.clone());
    }
    if let Some(registry) = &asked.other_registry {
        return refuse(StepReason::RegistryLost, format!("another registry, {registry}, is nearer to it"));
    }
    match &asked.no_delete {
        Some(why) => refuse(StepReason::NoDeletePermission, why.clone()),
        None => Ok(()),
    }
}

/// Whose dataset it is, and whether it stands alone.
pub(crate) fn owned_by_lance(facts: &Facts, around: Option<&str>) -> Result<(), Forbidden> {
    match &facts.authority {
        Authority::Linear | Authority::Detached { .. } => {}
        Authority::Managed { .. } => return refuse(StepReason::ManagedCatalog, "a namespace commits for it"),
        Authority::Graph { mark } => return skip(SkipReason::GraphOwned, format!("a graph owns it ({mark})")),
        Authority::Unknown { why, feature_flags: true } => {
            return skip(SkipReason::UnknownFeatureFlags, why.clone());
        }
        Authority::Unknown { why, .. } => return skip(SkipReason::UnknownAuthority, why.clone()),
    }
    if let Some(outer) = around {
        return refuse(StepReason::NestedDataset, format!("it lies inside {outer}, whose refs hold its files"));
    }
    if facts.nested {
        return refuse(StepReason::NestedDataset, "another dataset lies inside it");
    }
    Ok(())
}

/// What the dataset itself forbids.
fn unfit(facts: &Facts, around: Option<&str>) -> Result<(), Forbidden> {
    owned_by_lance(facts, around)?;
    // The keep-set is incomplete then, too: this names the manifest.
    if let Some(path) = &facts.unreadable {
        return refuse(StepReason::UnreadableManifest, path.clone());
    }
    if let Some(path) = &facts.unhealthy {
        return refuse(StepReason::Unhealthy, format!("HEAD needs {path}"));
    }
    match facts.incomplete.first() {
        Some(why) => refuse(StepReason::ReferencesIncomplete, why.clone()),
        None => Ok(()),
    }
}

/// Who else owns bytes of a dropped dataset: another id, a clone, a warehouse, a registry, a namespace.
pub(crate) fn sole_owner(survey: &Survey, snapshot: &Snapshot, trash: &Record<Trash>) -> Result<(), Forbidden> {
    let at = trash.fields.uri.as_str();
    let overlaps = |other: &str| uri::within(other, at) || uri::within(at, other);
    if let Some(table) = snapshot.tables().find(|t| overlaps(&t.fields.uri)) {
        return refuse(StepReason::NotExclusive, format!("{} lies there", table.fields.subject()));
    }
    if let Some(other) = snapshot.trash().find(|t| t.meta.id != trash.meta.id && overlaps(&t.fields.uri)) {
        return refuse(StepReason::NotExclusive, format!("the trash holds {} there, too", other.fields.subject));
    }
    let other = snapshot.warehouses().find(|w| w.meta.id != trash.fields.warehouse && overlaps(&w.fields.root));
    if let Some(warehouse) = other {
        return refuse(StepReason::NotExclusive, format!("warehouse {} covers it, too", warehouse.meta.id));
    }
    if let Some(why) = survey.catalogues.iter().find_map(|catalogue| catalogue.claims(at)) {
        return refuse(StepReason::ManagedCatalog, why);
    }
    match survey.graph.keep_set(at) {
        // A plan is refused by `unfit` before it gets here, and `take_away` takes nothing either: for an apply this comes first.
        KeepSet::Incomplete(why) => refuse(StepReason::ReferencesIncomplete, why.join("; ")),
        KeepSet::Complete(keep) if !keep.is_empty() => {
            let readers = survey.graph.readers(at).join(", ");
            refuse(StepReason::NotExclusive, format!("{readers} reads {} of its files", keep.len()))
        }
        KeepSet::Complete(_) => Ok(()),
    }
}

/// What becomes of every dataset of a survey.
pub(crate) fn plan(
    survey: &Survey,
    config: &ReconcileConfig,
    asked: &BTreeMap<String, Asked>,
) -> BTreeMap<String, Verdict> {
    survey.rows.iter().map(|(uri, row)| (uri.clone(), verdict(survey, config, asked, uri, row))).collect()
}

fn verdict(
    survey: &Survey,
    config: &ReconcileConfig,
    asked: &BTreeMap<String, Asked>,
    uri: &str,
    row: &Row,
) -> Verdict {
    let facts = match row {
        Row::Dataset(facts) => facts,
        Row::DeclaredOnly | Row::Nothing => return Verdict::Nothing,
        Row::Failed(e) => return Verdict::Failed(crate::report::failure(e.kind()), e.to_string()),
    };
    let trash = survey.snapshot.trash_at(uri).next();
    if facts.objects.is_empty() && facts.incomplete.is_empty() {
        return Verdict::Nothing;
    }
    let bytes = facts.objects.iter().map(|o| o.bytes).sum();
    let asked = asked.get(uri).cloned().unwrap_or_default();
    match judge(survey, config, &asked, uri, facts, trash) {
        Ok(()) if facts.objects.is_empty() => Verdict::Nothing,
        Ok(()) => Verdict::Goes(Going {
            objects: facts.objects.clone(),
            trash: trash.map(|t| t.meta.id.clone()),
            strangers: facts.strangers,
        }),
        Err(why) => Verdict::Forbidden(why, bytes),
    }
}

fn judge(
    survey: &Survey,
    config: &ReconcileConfig,
    asked: &Asked,
    uri: &str,
    facts: &Facts,
    trash: Option<&Record<Trash>>,
) -> Result<(), Forbidden> {
    let now = survey.at;
    let governance = survey.govern(config, &survey.snapshot, uri);
    forbidden(&governance, trash.is_some(), now)?;
    unfit(facts, survey.around(uri))?;
    self::asked(asked)?;
    let Some(trash) = trash else { return Ok(()) };
    carried(&survey.snapshot, trash, now)?;
    sole_owner(survey, &survey.snapshot, trash)?;
    made_anew(facts.newest.as_ref().map(|(path, at)| (path.as_str(), *at)), trash)?;
    let ages = Ages { now, longest_write: governance.policy.policy.longest_write.unwrap_or_default() };
    let young = facts.objects.iter().find(|o| o.class == Class::Young || !ages.old_enough(o.modified));
    match young {
        Some(o) => skip(
            SkipReason::Trashed,
            format!("{} was written on {}; nothing younger than {LEAST_AGE} goes", o.path, day(o.modified)),
        ),
        None => Ok(()),
    }
}

/// Something was written to a dropped table's place since the drop: it is another table's by now, or somebody goes on with this one.
pub(crate) fn made_anew(newest: Option<(&str, DateTime<Utc>)>, trash: &Record<Trash>) -> Result<(), Forbidden> {
    match newest.filter(|(_, at)| *at > trash.fields.dropped_at) {
        Some((path, at)) => {
            let dropped = day(trash.fields.dropped_at);
            let why =
                format!("{path} was written on {}, after {} was dropped on {dropped}", day(at), trash.fields.subject);
            refuse(StepReason::NotExclusive, why)
        }
        None => Ok(()),
    }
}

/// The protection and the blocks that a dropped table had, and those on its name and on what was above it: its place alone no longer
/// tells its name. They keep it from a reclaim.
pub(crate) fn carried(snapshot: &Snapshot, trash: &Record<Trash>, now: DateTime<Utc>) -> Result<(), Forbidden> {
    let mut names: Vec<Subject> =
        std::iter::successors(Some(trash.fields.subject.clone()), Subject::parent_namespace).collect();
    let warehouse = snapshot.warehouse(&trash.fields.warehouse);
    names.push(Subject::Warehouse(trash.fields.warehouse.clone()));
    names.extend(warehouse.map(|w| Subject::Project(w.fields.project.clone())));
    let own = trash.fields.blocks.iter().map(|(_, block)| (&block.fields, block.reason.as_deref()));
    let since = snapshot.blocks().filter(|b| names.contains(&b.fields.subject));
    let since = since.map(|b| (&b.fields, b.meta.reason.as_deref()));
    if let Some((block, why)) = own.chain(since).find(|(block, _)| block.active_at(now)) {
        let why = why.unwrap_or("no reason given");
        return skip(SkipReason::Blocked, format!("blocked by {}: {why}", block.subject));
    }
    if let Some(p) = names.iter().find_map(|name| snapshot.protection_of(name)) {
        return refuse(StepReason::Held, format!("{} of {}", p.fields.level, p.fields.subject));
    }
    match &trash.fields.protection {
        Some(p) if !p.fields.level.allows_reclaim() => {
            refuse(StepReason::Held, format!("{} was on it when it was dropped", p.fields.level))
        }
        _ => Ok(()),
    }
}

/// The objects of all that goes, as a plan file has them, by dataset.
pub(crate) fn items(verdicts: &BTreeMap<String, Verdict>) -> Vec<PlanItem> {
    let mut out = Vec::new();
    for (dataset, verdict) in verdicts {
        let Verdict::Goes(going) = verdict else { continue };
        out.extend(going.objects.iter().map(|object| PlanItem {
            path: object_uri(dataset, &object.path),
            reason: match &going.trash {
                Some(_) => DROPPED.to_string(),
                None => object.reason.to_string(),
            },
            bytes: object.bytes,
            last_modified: object.modified,
        }));
    }
    out
}

/// The full URI of an object of a dataset.
pub(crate) fn object_uri(dataset: &str, path: &str) -> String {
    path.split('/').fold(dataset.to_string(), |at, segment| uri::join(&at, segment))
}

/// The path of an object relative to a dataset, in the store's spelling.
pub(crate) fn object_path(dataset: &str, object: &str) -> Option<String> {
    let rest = object.strip_prefix(dataset)?.strip_prefix('/')?;
    let decoded = rest.split('/').map(|s| uri::segment(s));
    Some(decoded.collect::<Option<Vec<String>>>()?.join("/"))
}

/// A day and time, for people.
pub(crate) fn day(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objects_uri_leads_back_to_its_path() {
        for path in ["data/a.lance", "_refs/branches/a%2Fb.json", "tree/x y/data/ü#1.lance", "data/100%25/1.blob"] {
            let object = object_uri("s3://b/odd%20name", path);
            assert_eq!(object_path("s3://b/odd%20name", &object).as_deref(), Some(path), "{object}");
        }
        assert_eq!(object_path("s3://b/a", "s3://b/ab/x"), None);
    }
}
