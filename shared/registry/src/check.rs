//! Half states, and records that point at nothing.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::snapshot::Snapshot;
use crate::subject::Subject;

/// What `check` can find; the words of FACES where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, strum::Display, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ProblemKind {
    /// A record exists and cannot be understood.
    RecordUnreadable,
    /// Two names have one location.
    LocationShared,
    /// A table has no location record, or a location record no table.
    HalfRegistered,
    /// A parent that is named does not exist.
    BindingToNothing,
    /// A drop was cut off.
    HalfDropped,
    /// Protection on a subject that does not exist.
    ProtectionOnNothing,
    /// A policy on a subject that does not exist.
    PolicyOnNothing,
    /// Warehouses of different projects overlap.
    BucketSharedByProjects,
}

impl ProblemKind {
    /// Whether it is of severity `error`: something may be maintained wrongly, or not at all.
    pub fn is_error(self) -> bool {
        matches!(self, Self::RecordUnreadable | Self::LocationShared)
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
}

fn problem(kind: ProblemKind, subject: impl ToString, detail: impl Into<String>, fix: impl Into<String>) -> Problem {
    Problem { kind, subject: subject.to_string(), detail: detail.into(), fix: fix.into() }
}

/// Everything in a snapshot that does not fit together. Pure.
pub fn check(snapshot: &Snapshot) -> Vec<Problem> {
    let mut out: Vec<Problem> = snapshot
        .unreadable
        .iter()
        .map(|u| {
            let record = format!("{}/{}", u.collection, u.key);
            let fix =
                "restore the object, or use a build that understands it; until then nothing in its scope is reclaimed";
            problem(ProblemKind::RecordUnreadable, record, format!("generation {}: {}", u.generation, u.why), fix)
        })
        .collect();
    tables(snapshot, &mut out);
    locations(snapshot, &mut out);
    parents(snapshot, &mut out);
    on_nothing(snapshot, &mut out);
    for clash in snapshot.clashes() {
        let detail = format!("projects {} claim one place", clash.projects.join(", "));
        let fix = "give each project a root of its own; until then the policy of neither project holds there";
        out.push(problem(ProblemKind::BucketSharedByProjects, clash.warehouses.join(", "), detail, fix));
    }
    out
}

fn tables(snapshot: &Snapshot, out: &mut Vec<Problem>) {
    let mut names: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for table in snapshot.tables() {
        let subject = table.fields.subject();
        names.entry(&table.fields.uri).or_default().push(subject.to_string());
        let claimed = snapshot.locations.get(&table.fields.uri).map(|l| &l.fields.table);
        if claimed.is_none() {
            let detail = format!("no location record for {}", table.fields.uri);
            out.push(problem(ProblemKind::HalfRegistered, &subject, detail, format!("drop and undrop {subject}")));
        }
        if let Some(trash) = snapshot.trash_at(&table.fields.uri).next() {
            let fix = format!("finish with `table drop {subject}` or `trash undrop {}`", trash.fields.subject);
            out.push(problem(ProblemKind::HalfDropped, &subject, "both live and in the trash; it is frozen", fix));
        }
    }
    for (uri, names) in names.into_iter().filter(|(_, names)| names.len() > 1) {
        let fix = "drop all names but one";
        out.push(problem(ProblemKind::LocationShared, uri, format!("is {}", names.join(" and ")), fix));
    }
}

fn locations(snapshot: &Snapshot, out: &mut Vec<Problem>) {
    for location in snapshot.locations.values() {
        let fields = &location.fields;
        let Subject::Table(path) = &fields.table else { continue };
        let live = snapshot.table(path).is_some_and(|t| t.fields.uri == fields.uri);
        let trashed = snapshot.trash_at(&fields.uri).next().is_some();
        if !live {
            let detail = if trashed {
                format!("its table {} is in the trash, and the drop was not finished", fields.table)
            } else {
                format!("its table {} is not there", fields.table)
            };
            let fix = format!("register {} there again and drop it", fields.table);
            out.push(problem(ProblemKind::HalfRegistered, &fields.uri, detail, fix));
        }
    }
}

fn parents(snapshot: &Snapshot, out: &mut Vec<Problem>) {
    let mut need = |subject: Subject, parent: Subject, deleting: bool| {
        if !snapshot.exists(&parent) {
            let fix = format!("make {parent} again, or drop {subject}");
            out.push(problem(ProblemKind::BindingToNothing, &subject, format!("{parent} does not exist"), fix));
        }
        if deleting {
            let fix = format!("finish with `squire-registry {} drop {subject}`", subject.kind());
            out.push(problem(ProblemKind::HalfDropped, &subject, "a drop was begun and not finished", fix));
        }
    };
    for project in snapshot.projects().filter(|p| p.fields.deleting) {
        if let Ok(subject) = format!("project/{}", project.meta.id).parse() {
            need(subject, Subject::Estate, true);
        }
    }
    for warehouse in snapshot.warehouses() {
        let subject = Subject::Warehouse(crate::govern::name_of(warehouse));
        need(subject, Subject::Project(warehouse.fields.project.clone()), warehouse.fields.deleting);
    }
    for namespace in snapshot.namespaces() {
        let subject = Subject::Namespace(namespace.fields.path.clone());
        let bound = Subject::Warehouse(namespace.fields.warehouse.clone());
        let above = subject.parent_namespace().unwrap_or_else(|| bound.clone());
        need(subject.clone(), above.clone(), namespace.fields.deleting);
        if above != bound {
            need(subject, bound, false);
        }
    }
    for table in snapshot.tables() {
        let subject = table.fields.subject();
        if let Some(parent) = subject.parent_namespace() {
            need(subject, parent, false);
        }
    }
}

fn on_nothing(snapshot: &Snapshot, out: &mut Vec<Problem>) {
    for record in snapshot.protections().filter(|p| !snapshot.exists(&p.fields.subject)) {
        let fix = format!("`protection unset {}`", record.fields.subject);
        let detail = format!("{} on what does not exist", record.fields.level);
        out.push(problem(ProblemKind::ProtectionOnNothing, &record.fields.subject, detail, fix));
    }
    for record in snapshot.policies().filter(|p| !snapshot.exists(&p.fields.subject)) {
        let fix = format!("`policy unset {}`", record.fields.subject);
        out.push(problem(ProblemKind::PolicyOnNothing, &record.fields.subject, "a policy of what does not exist", fix));
    }
}
