//! Half states, and records that point at nothing.

use std::collections::BTreeMap;

use chrono::Utc;
use serde::Serialize;

use crate::error::Result;
use crate::mend::half_states;
use crate::policy::Policy;
use crate::record::{Collection, Fields, Unreadable};
use crate::registry::Registry;
use crate::snapshot::Snapshot;
use crate::storage::{canonical_uri, join_uri, parent_uri};
use crate::subject::Subject;

/// What `check` can find; the words of FACES where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, strum::Display, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ProblemKind {
    /// A record exists and cannot be understood.
    RecordUnreadable,
    /// A record's id is not the one that its fields give it: looked up by name it is not found.
    RecordMisplaced,
    /// Two names have one location.
    LocationShared,
    /// A table lies in another one's directory.
    LocationNested,
    /// One root is named by two servers.
    ServersDiffer,
    /// A table's URI is not where its warehouse and its location lead.
    LocationDiffers,
    /// A table has no location record, or a location record no table.
    HalfRegistered,
    /// A parent that is named does not exist.
    BindingToNothing,
    /// A namespace is bound to another warehouse than the one that it lies in.
    BindingDiffers,
    /// A drop or an undrop was cut off.
    HalfDropped,
    /// A rename was cut off.
    HalfRenamed,
    /// Nothing is left to bring back under a trashed namespace.
    TrashEnded,
    /// Protection on a subject that does not exist.
    ProtectionOnNothing,
    /// A policy on a subject that does not exist.
    PolicyOnNothing,
    /// A policy with a value that makes no sense.
    PolicyInvalid,
    /// A block on a subject that does not exist.
    BlockOnNothing,
    /// Warehouses of different projects overlap.
    BucketSharedByProjects,
}

impl ProblemKind {
    /// Whether it is of severity `error`: something may be maintained wrongly, or not at all.
    pub fn is_error(self) -> bool {
        matches!(
            self,
            Self::RecordUnreadable
                | Self::RecordMisplaced
                | Self::LocationShared
                | Self::LocationNested
                | Self::LocationDiffers
                | Self::BindingDiffers
                | Self::ServersDiffer
        )
    }
}

/// One line of `check`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What it is.
    pub kind: ProblemKind,
    /// The record or subject.
    pub subject: String,
    /// What is wrong.
    pub detail: String,
    /// What to do.
    pub fix: String,
    /// Whether `check --mend` does it.
    pub mendable: bool,
}

pub(crate) fn problem(
    kind: ProblemKind,
    subject: impl ToString,
    detail: impl Into<String>,
    fix: impl Into<String>,
) -> Problem {
    Problem { kind, subject: subject.to_string(), detail: detail.into(), fix: fix.into(), mendable: false }
}

/// Everything in a snapshot that does not fit together. Pure.
pub fn check(snapshot: &Snapshot) -> Vec<Problem> {
    let mut out: Vec<Problem> = snapshot.unreadable.iter().map(unreadable).collect();
    out.extend(half_states(snapshot).iter().map(|half| half.problem()));
    misplaced(snapshot, &mut out);
    tables(snapshot, &mut out);
    nested(snapshot, &mut out);
    bound(snapshot, &mut out);
    servers(snapshot, &mut out);
    parents(snapshot, &mut out);
    on_nothing(snapshot, &mut out);
    for clash in snapshot.clashes() {
        let detail = format!("projects {} claim one place", clash.projects.join(", "));
        let fix = "give each project a root of its own; until then the policy of neither project holds there";
        out.push(problem(ProblemKind::BucketSharedByProjects, clash.warehouses.join(", "), detail, fix));
    }
    out
}

fn unreadable(u: &Unreadable) -> Problem {
    let record = format!("{}/{}", u.collection, u.key);
    let fix = "restore the object, or use a build that understands it; until then nothing in its scope is reclaimed";
    problem(ProblemKind::RecordUnreadable, record, format!("generation {}: {}", u.generation, u.why), fix)
}

impl Registry {
    /// The records outside of the snapshot that cannot be read: claims, state, schedule, budgets, jobs, probes and runs.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn check_elsewhere(&self) -> Result<Vec<Problem>> {
        let mut out = Vec::new();
        self.unreadable_of::<crate::claims::ClaimRecord>(&mut out).await?;
        self.unreadable_of::<crate::state::Shard>(&mut out).await?;
        self.unreadable_of::<crate::schedule::Published>(&mut out).await?;
        self.unreadable_of::<crate::budget::Spending>(&mut out).await?;
        self.unreadable_of::<crate::jobs::Job>(&mut out).await?;
        self.unreadable_of::<crate::probe::Probe>(&mut out).await?;
        self.unreadable_of::<crate::runs::RunRecord>(&mut out).await?;
        Ok(out.iter().map(unreadable).collect())
    }

    async fn unreadable_of<T: Fields>(&self, out: &mut Vec<Unreadable>) -> Result<()> {
        out.extend(crate::registry::all::<T>(&self.inner.records).await?.unreadable);
        Ok(())
    }
}

/// The same rule for every collection whose id follows from its fields.
fn misplaced(snapshot: &Snapshot, out: &mut Vec<Problem>) {
    let mut same = |collection: Collection, id: &str, told: String| {
        if id != told {
            let fix = "restore the record that was meant; until then look-ups by name miss it";
            let detail = format!("its id is `{id}` and its fields say `{told}`");
            out.push(problem(ProblemKind::RecordMisplaced, format!("{collection}/{id}"), detail, fix));
        }
    };
    for n in snapshot.namespaces() {
        same(Collection::Namespaces, &n.meta.id, Subject::Namespace(n.fields.path.clone()).id());
    }
    for t in snapshot.tables() {
        same(Collection::Tables, &t.meta.id, t.fields.subject().id());
    }
    for l in snapshot.locations.values() {
        same(Collection::Locations, &l.meta.id, l.fields.uri.clone());
    }
    for p in snapshot.policies() {
        same(Collection::Policies, &p.meta.id, p.fields.subject.to_string());
    }
    for p in snapshot.protections() {
        same(Collection::Protection, &p.meta.id, p.fields.subject.to_string());
    }
}

fn tables(snapshot: &Snapshot, out: &mut Vec<Problem>) {
    let mut names: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for table in snapshot.tables() {
        let subject = table.fields.subject();
        names.entry(&table.fields.uri).or_default().push(subject.to_string());
        for other in snapshot.trash_at(&table.fields.uri).filter(|t| t.fields.subject != subject) {
            // A rename that was cut off stands among the half states.
            if other.fields.renamed_to.as_ref() != Some(&subject) {
                let detail = format!("its location is also {} in the trash; it is frozen", other.fields.subject);
                out.push(problem(ProblemKind::LocationShared, &subject, detail, "drop it, and undrop the other one"));
            }
        }
        let root = snapshot.warehouse_of(&subject).and_then(|w| snapshot.warehouse(&w).map(|w| w.fields.root.clone()));
        let leads = root.and_then(|root| canonical_uri(&join_uri(&root, &table.fields.location)).ok());
        if let Some(leads) = leads.filter(|leads| *leads != table.fields.uri) {
            let detail = format!("it is {}, and its warehouse and location lead to {leads}", table.fields.uri);
            let fix = "a link or a root has moved; put it back, or drop the table and register it where it lies";
            out.push(problem(ProblemKind::LocationDiffers, &subject, detail, fix));
        }
    }
    for (uri, names) in names.into_iter().filter(|(_, names)| names.len() > 1) {
        let fix = "drop all names but one";
        out.push(problem(ProblemKind::LocationShared, uri, format!("is {}", names.join(" and ")), fix));
    }
}

/// A dataset inside another one's directory: a listing takes it for a part of that one.
fn nested(snapshot: &Snapshot, out: &mut Vec<Problem>) {
    for table in snapshot.tables() {
        let (subject, uri) = (table.fields.subject(), &table.fields.uri);
        let above = std::iter::successors(parent_uri(uri), |at| parent_uri(at));
        if let Some(around) = above.into_iter().find_map(|at| snapshot.table_at(&at)) {
            let detail = format!("it lies at {uri}, inside of {}", around.fields.subject());
            let fix = "move its bytes to a directory of their own, and register it there";
            out.push(problem(ProblemKind::LocationNested, &subject, detail, fix));
        }
    }
}

/// A namespace is bound as its parent is.
fn bound(snapshot: &Snapshot, out: &mut Vec<Problem>) {
    for namespace in snapshot.namespaces() {
        let subject = Subject::Namespace(namespace.fields.path.clone());
        let above = subject.parent_namespace().and_then(|p| snapshot.namespace(crate::cascade::path_of(&p)));
        let bound = &namespace.fields.warehouse;
        if let Some(above) = above.filter(|above| above.fields.warehouse != *bound) {
            let detail = format!(
                "it is bound to warehouse/{bound}, and what it lies in to warehouse/{}",
                above.fields.warehouse
            );
            let fix = "restore the record that was meant; a namespace is bound as its parent is";
            out.push(problem(ProblemKind::BindingDiffers, &subject, detail, fix));
        }
    }
}

/// A root has one namespace.
fn servers(snapshot: &Snapshot, out: &mut Vec<Problem>) {
    let mut roots: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for w in snapshot.warehouses() {
        if let Some(url) = &w.fields.namespace {
            roots.entry(&w.fields.root).or_default().insert(url, format!("warehouse/{} by {url}", w.meta.id));
        }
    }
    for (root, named) in roots.into_iter().filter(|(_, named)| named.len() > 1) {
        let detail = format!(
            "it is named as {}; nothing is maintained there",
            named.into_values().collect::<Vec<_>>().join(" and as ")
        );
        out.push(problem(ProblemKind::ServersDiffer, root, detail, "`warehouse set W --namespace URL`"));
    }
}

fn parents(snapshot: &Snapshot, out: &mut Vec<Problem>) {
    let mut need = |subject: Subject, parent: Subject| {
        if !snapshot.exists(&parent) {
            let fix = format!("make {parent} again, or drop {subject}");
            out.push(problem(ProblemKind::BindingToNothing, &subject, format!("{parent} does not exist"), fix));
        }
    };
    for warehouse in snapshot.warehouses() {
        let subject = Subject::Warehouse(crate::govern::name_of(warehouse));
        need(subject, Subject::Project(warehouse.fields.project.clone()));
    }
    for namespace in snapshot.namespaces() {
        let subject = Subject::Namespace(namespace.fields.path.clone());
        let bound = Subject::Warehouse(namespace.fields.warehouse.clone());
        let above = subject.parent_namespace().unwrap_or_else(|| bound.clone());
        need(subject.clone(), above.clone());
        if above != bound {
            need(subject, bound);
        }
    }
    for table in snapshot.tables() {
        let subject = table.fields.subject();
        if let Some(parent) = subject.parent_namespace() {
            need(subject, parent);
        }
    }
    for trash in snapshot.in_trash() {
        need(trash.fields.subject.clone(), Subject::Warehouse(trash.fields.warehouse.clone()));
    }
}

fn on_nothing(snapshot: &Snapshot, out: &mut Vec<Problem>) {
    for record in snapshot.protections().filter(|p| !snapshot.exists(&p.fields.subject)) {
        let fix = format!("`protection unset {}`", record.fields.subject);
        let detail = format!("{} on what does not exist", record.fields.level);
        out.push(problem(ProblemKind::ProtectionOnNothing, &record.fields.subject, detail, fix));
    }
    let now = Utc::now();
    for record in snapshot.policies() {
        let subject = &record.fields.subject;
        if !snapshot.exists(subject) {
            let fix = format!("`policy unset {subject}`");
            out.push(problem(ProblemKind::PolicyOnNothing, subject, "a policy of what does not exist", fix));
        }
        let holds = record.fields.at(now).and_then(|policy| policy.as_ref().map_or(Ok(()), Policy::validate));
        if let Err(why) = holds {
            out.push(problem(ProblemKind::PolicyInvalid, subject, why, format!("`policy set {subject} KEY=VALUE`")));
        }
    }
    for block in snapshot.blocks().filter(|b| !snapshot.exists(&b.fields.subject)) {
        let fix = format!("`block remove {}`", block.meta.id);
        out.push(problem(ProblemKind::BlockOnNothing, &block.fields.subject, "a block on what does not exist", fix));
    }
}
