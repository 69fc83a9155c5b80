//! Half states: what an operation that was cut off left, and how it ends.
//!
//! None of them is dangerous while it stands: bytes that are in the trash are frozen, and a location has one name. What is
//! mended is what has one way to end that takes nothing away; the rest is for a person to decide.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;

use crate::check::{Problem, ProblemKind, problem};
use crate::error::{Error, Kind, Result};
use crate::govern::name_of;
use crate::record::{Location, Meta, Record, Table, Trash};
use crate::registry::Registry;
use crate::snapshot::Snapshot;
use crate::subject::Subject;
use crate::trash::Going;

/// A half state younger than this may be somebody's operation at work.
const AT_WORK: TimeDelta = TimeDelta::minutes(10);

/// What was cut off.
pub(crate) enum HalfState<'a> {
    /// A table has no location record.
    NoLocation(&'a Record<Table>),
    /// A location has no table.
    NoTable(&'a Record<Location>, bool),
    /// A drop: the table's record is still the one that the trash record is named after.
    Drop(&'a Record<Table>, &'a Record<Trash>),
    /// An undrop: the table's record was made anew.
    Undrop(&'a Record<Table>, &'a Record<Trash>),
    /// A rename.
    Rename(&'a Record<Trash>, &'a Subject),
    /// The drop of a container, before anything in it went.
    Container(Subject, &'a Meta),
    /// A cascade, or the undrop of one: which of the two is meant, a person says.
    Cascade(&'a Record<Trash>),
    /// A trashed namespace with nothing to bring back.
    Ended(&'a Record<Trash>),
}

/// A half state that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mended {
    /// What it was about.
    pub subject: String,
    /// What was done, or why not.
    pub what: String,
    /// Whether it is whole now.
    pub done: bool,
}

pub(crate) fn half_states(snapshot: &Snapshot) -> Vec<HalfState<'_>> {
    let mut out = Vec::new();
    for table in snapshot.tables() {
        if !snapshot.locations.contains_key(&table.fields.uri) {
            out.push(HalfState::NoLocation(table));
        }
        let own = table.fields.subject();
        for trash in snapshot.trash_at(&table.fields.uri).filter(|t| t.fields.subject == own) {
            let dropping = trash.meta.id == table.meta.nonce.to_string();
            out.push(if dropping { HalfState::Drop(table, trash) } else { HalfState::Undrop(table, trash) });
        }
    }
    for location in snapshot.locations.values() {
        let Subject::Table(path) = &location.fields.table else { continue };
        if snapshot.table(path).is_none_or(|t| t.fields.uri != location.fields.uri) {
            out.push(HalfState::NoTable(location, snapshot.trash_at(&location.fields.uri).next().is_some()));
        }
    }
    for trash in snapshot.trash() {
        let live = trash.fields.table.as_ref().and_then(|t| snapshot.table(&t.path));
        let live = live.is_some_and(|t| t.fields.uri == trash.fields.uri);
        if let Some(to) = trash.fields.renamed_to.as_ref().filter(|_| !live) {
            out.push(HalfState::Rename(trash, to));
        }
    }
    for namespace in snapshot.namespaces() {
        let subject = Subject::Namespace(namespace.fields.path.clone());
        let mut trashed = snapshot.trashed_namespaces().filter(|t| t.fields.subject == subject);
        let dropping = namespace.fields.deleting;
        match trashed.find(|t| dropping || t.fields.returning) {
            // The one at the top stands for all.
            Some(record) if record.fields.cascade.is_none() => out.push(HalfState::Cascade(record)),
            Some(_) => {}
            None if dropping => out.push(HalfState::Container(subject, &namespace.meta)),
            None => {}
        }
    }
    for project in snapshot.projects().filter(|p| p.fields.deleting) {
        if let Ok(subject) = format!("project/{}", project.meta.id).parse() {
            out.push(HalfState::Container(subject, &project.meta));
        }
    }
    for warehouse in snapshot.warehouses().filter(|w| w.fields.deleting) {
        out.push(HalfState::Container(Subject::Warehouse(name_of(warehouse)), &warehouse.meta));
    }
    out.extend(snapshot.ended_namespaces(Utc::now()).into_iter().map(HalfState::Ended));
    out
}

impl HalfState<'_> {
    pub(crate) fn problem(&self) -> Problem {
        use ProblemKind as K;
        let (mendable, problem) = match self {
            Self::NoLocation(table) => {
                let detail = format!("no location record for {}", table.fields.uri);
                (true, problem(K::HalfRegistered, table.fields.subject(), detail, "`check --mend` claims it"))
            }
            Self::NoTable(location, trashed) => {
                let detail = match trashed {
                    true => {
                        format!("its table {} is in the trash, and the drop was not finished", location.fields.table)
                    }
                    false => format!("its table {} is not there", location.fields.table),
                };
                (
                    true,
                    problem(K::HalfRegistered, &location.fields.uri, detail, "`check --mend` gives the location back"),
                )
            }
            Self::Drop(table, _) => {
                let subject = table.fields.subject();
                let fix = format!(
                    "`table drop {subject}` or `check --mend` finish it, `trash undrop {subject}` takes it back"
                );
                (true, problem(K::HalfDropped, &subject, "both live and in the trash; it is frozen", fix))
            }
            Self::Undrop(table, _) => {
                let subject = table.fields.subject();
                let fix = format!("`trash undrop {subject}` or `check --mend` finish it");
                (true, problem(K::HalfDropped, &subject, "its undrop was cut off; it is frozen", fix))
            }
            Self::Rename(trash, to) => {
                let from = &trash.fields.subject;
                let fix = format!(
                    "`table rename {from} {to}` or `check --mend` finish it, `trash undrop {from}` takes it back"
                );
                let detail = format!("its rename to {to} was cut off; it is in the trash");
                (true, problem(K::HalfRenamed, from, detail, fix))
            }
            Self::Container(subject, _) => {
                let fix = format!(
                    "finish with `squire-registry {} drop {subject}`; `check --mend` takes it back",
                    subject.kind()
                );
                (true, problem(K::HalfDropped, subject, "a drop was begun and not finished", fix))
            }
            Self::Cascade(top) => {
                let subject = &top.fields.subject;
                let fix = format!(
                    "go on with `namespace drop {subject} --cascade --apply`, or take it back with `trash undrop {subject}`"
                );
                (false, problem(K::HalfDropped, subject, "a cascade or its undrop was cut off", fix))
            }
            Self::Ended(trash) => {
                let detail = "its deadline has passed, and no table of it is in the trash any more";
                (true, problem(K::TrashEnded, &trash.fields.subject, detail, "`check --mend` removes the record"))
            }
        };
        Problem { mendable, ..problem }
    }

    /// When the record was written that tells how old the half state is.
    fn since(&self) -> DateTime<Utc> {
        match self {
            Self::NoLocation(table) => table.meta.updated_at,
            Self::NoTable(location, _) => location.meta.updated_at,
            Self::Drop(table, trash) | Self::Undrop(table, trash) => table.meta.updated_at.max(trash.meta.updated_at),
            Self::Rename(trash, _) | Self::Cascade(trash) | Self::Ended(trash) => trash.meta.updated_at,
            Self::Container(_, meta) => meta.updated_at,
        }
    }
}

impl Registry {
    /// Ends the half states that have one way to end which takes nothing away. `now` decides which are old enough not to be
    /// somebody's operation at work: ten minutes.
    ///
    /// # Errors
    /// What the store answers. What a rule refuses is an answer.
    pub async fn mend(&self, snapshot: &Snapshot, now: DateTime<Utc>) -> Result<Vec<Mended>> {
        let mut out = Vec::new();
        for half in half_states(snapshot) {
            let problem = half.problem();
            if !problem.mendable {
                continue;
            }
            let (what, done) = if now - half.since() < AT_WORK {
                ("it is younger than ten minutes and may be at work; try again later".to_owned(), false)
            } else {
                match self.end(&half, snapshot).await {
                    Ok(what) => (what, true),
                    Err(e) if matches!(e.kind(), Kind::Transient | Kind::Permanent) => return Err(e),
                    Err(e) => (e.to_string(), false),
                }
            };
            out.push(Mended { subject: problem.subject, what, done });
        }
        Ok(out)
    }

    async fn end(&self, half: &HalfState<'_>, snapshot: &Snapshot) -> Result<String> {
        let reason = Some("check --mend");
        match half {
            HalfState::NoLocation(table) => {
                self.claim_location(&table.fields.uri, &table.fields.subject(), reason).await?;
                Ok("its location is claimed".into())
            }
            HalfState::NoTable(location, _) => {
                self.release_location(&location.fields.uri, &location.fields.table).await?;
                Ok("the location is given back".into())
            }
            HalfState::Drop(table, trash) => {
                let (at, deadline) = (trash.fields.dropped_at, trash.fields.deadline);
                let going = Going { at, deadline, ..Going::like(&trash.fields) };
                self.drop_tables(snapshot, std::slice::from_ref(&table.fields.path), &going, reason).await?;
                Ok(format!("the drop is finished; it can come back until {deadline}"))
            }
            HalfState::Undrop(_, trash) => {
                self.undrop_one(trash, snapshot, reason).await?;
                Ok("the undrop is finished".into())
            }
            HalfState::Rename(trash, to) => {
                self.finish_rename(&trash.fields, to, reason).await?;
                Ok(format!("it is {to}"))
            }
            HalfState::Container(subject, _) => {
                self.unmark_deleting(subject).await?;
                Ok("the drop is taken back".into())
            }
            HalfState::Ended(trash) => {
                self.remove_own::<Trash>(&trash.meta.id, trash.meta.nonce, reason).await?;
                Ok("the record is removed".into())
            }
            HalfState::Cascade(trash) => Err(Error::Refused(format!("{} is for a person", trash.fields.subject))),
        }
    }
}
