//! Dropping a namespace with all that is in it, and bringing it back.
//!
//! Everything is checked before anything changes: a [`DropPlan`] is pure, and [`Registry::drop_apply`] makes it again after
//! the namespaces refuse new children. One trash record per table and namespace, one deadline. Cut off anywhere, the same
//! drop goes on, and so does the undrop.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::StreamExt;
use serde::Serialize;
use uuid::Uuid;

use crate::error::{Error, Kind, Result};
use crate::generation::Change;
use crate::hierarchy::{Container, missing, refuse_contents, refuse_drop};
use crate::protection::Level;
use crate::record::{Namespace, Record, Table, Trash};
use crate::registry::Registry;
use crate::snapshot::Snapshot;
use crate::subject::Subject;
use crate::trash::{Going, WRITES, carried_of, carrying, not_in_trash, refuse_purge, refuse_shared};

/// What a drop is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropRequest {
    /// How long it can come back (`[grace] trash`); zero is a purge.
    pub grace: Duration,
    /// Gets past `no-drop`, and nothing else.
    pub force: bool,
    /// Also what is in it.
    pub cascade: bool,
}

/// Everything that a drop would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DropPlan {
    /// What is dropped.
    pub subject: Subject,
    /// Nothing is to come back: the deadline is the moment of the drop.
    pub purge: bool,
    /// From when the bytes may be planned for reclaim.
    pub deadline: DateTime<Utc>,
    /// The namespaces that go, shallowest first.
    pub namespaces: Vec<Subject>,
    /// The tables that go.
    pub tables: Vec<DropTable>,
    #[serde(skip)]
    request: DropRequest,
    /// The trash record and the deadline of the cascade that was cut off, and that this one goes on with.
    #[serde(skip)]
    resumes: Option<(String, DateTime<Utc>)>,
}

/// A table that goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DropTable {
    /// The table.
    pub subject: Subject,
    /// Its dataset's canonical URI; the bytes stay there.
    pub uri: String,
    /// It is in the trash already: only its deadline changes.
    pub in_trash: bool,
    /// The `no-drop` that `--force` gets past.
    pub forced: Option<String>,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Undropped {
    /// Namespaces, shallowest first.
    pub namespaces: Vec<Subject>,
    /// Tables.
    pub tables: Vec<Subject>,
    /// What could not, and why; the same call goes on with these.
    pub failed: Vec<(Subject, String)>,
}

impl Registry {
    /// What dropping a table or namespace would do. Writes nothing.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Refused`] for contents without `cascade`, for protection on it, above it or on ANYTHING
    /// below it (named), and for a purge of shared bytes; [`Error::Unreadable`].
    pub async fn drop_plan(&self, subject: &Subject, request: DropRequest) -> Result<DropPlan> {
        plan(&self.snapshot().await?, subject, request)
    }

    /// Does what a plan says, and nothing else: what came into the namespace meanwhile refuses it.
    ///
    /// # Errors
    /// As [`Registry::drop_plan`]; then nothing has changed.
    pub async fn drop_apply(&self, plan: &DropPlan, reason: Option<&str>) -> Result<Vec<Trash>> {
        if let Subject::Table(path) = &plan.subject {
            if plan.tables.iter().any(|t| t.in_trash) {
                return self.trash_purge(&plan.subject, plan.request.force, reason).await;
            }
            return self.table_drop(path, plan.request.grace, plan.request.force, reason).await.map(|t| vec![t]);
        }
        if !plan.request.cascade {
            self.container_drop(&plan.subject, plan.request.force, reason).await?;
            return Ok(Vec::new());
        }
        let mut marked = Vec::new();
        for subject in &plan.namespaces {
            if self.mark_deleting::<Namespace>(subject, reason).await? {
                marked.push(subject);
            }
        }
        // Whoever created something below until now is seen here; whoever does from here on sees `deleting`.
        let done = self.carry_out(plan, reason).await;
        if let Err(e) = &done
            && matches!(e.kind(), Kind::Refused | Kind::Damaged | Kind::NotFound | Kind::Conflict)
        {
            // A rule refused it before anything went. Where the store failed, the same drop goes on.
            for subject in marked {
                self.unmark_deleting(subject).await?;
            }
        }
        done
    }

    async fn carry_out(&self, asked: &DropPlan, reason: Option<&str>) -> Result<Vec<Trash>> {
        let after = self.snapshot().await?;
        let now = plan(&after, &asked.subject, asked.request)?;
        refuse_unplanned(asked, &now)?;
        let mut going = Going::after(asked.request.grace, asked.request.force)?;
        if let Some((_, deadline)) = asked.resumes.as_ref().filter(|_| !going.purge) {
            going.deadline = *deadline;
        }
        let Some(top) = after.namespaces.get(&asked.subject.id()) else { return Err(missing(&asked.subject, "")) };
        let earlier = asked.resumes.as_ref().map(|(id, _)| id.clone());
        going.cascade = Some(earlier.unwrap_or_else(|| top.meta.nonce.to_string()));
        let mut first = Vec::new();
        for subject in &now.namespaces {
            if let Some(filed) = self.file_namespace(&after, subject, &asked.subject, &going, reason).await? {
                first.push(filed);
            }
        }
        let paths: Vec<Vec<String>> = now.tables.iter().map(|t| path_of(&t.subject).to_vec()).collect();
        let mut dropped = match self.drop_tables(&after, &paths, &going, reason).await {
            Ok(dropped) => dropped,
            Err(e) => {
                if matches!(e.kind(), Kind::Refused | Kind::Damaged | Kind::NotFound | Kind::Conflict) {
                    for (id, nonce) in first {
                        self.remove_own::<Trash>(&id, nonce, Some("the drop was refused")).await?;
                    }
                }
                return Err(e);
            }
        };
        let filed = self.snapshot().await?;
        for subject in now.namespaces.iter().rev() {
            self.forget_in(&filed, subject, reason).await?;
            self.remove::<Namespace>(&subject.id(), reason).await?;
            dropped
                .extend(filed.trashed_namespaces().filter(|t| t.fields.subject == *subject).map(|t| t.fields.clone()));
        }
        Ok(dropped)
    }

    /// The id and nonce of the trash record where this drop is the first to file it.
    async fn file_namespace(
        &self,
        after: &Snapshot,
        subject: &Subject,
        top: &Subject,
        going: &Going,
        reason: Option<&str>,
    ) -> Result<Option<(String, Uuid)>> {
        let Some(live) = after.namespaces.get(&subject.id()) else { return Ok(None) };
        let earlier = after.trashed_namespaces().find(|t| {
            t.fields.subject == *subject
                && (t.fields.cascade == going.cascade || Some(&t.meta.id) == going.cascade.as_ref())
        });
        let own = if subject == top { going.cascade.clone() } else { None };
        let id = earlier.map(|t| t.meta.id.clone()).or(own).unwrap_or_else(|| live.meta.nonce.to_string());
        let namespace = Namespace { deleting: false, ..live.fields.clone() };
        let record = Trash {
            namespace: Some(namespace),
            cascade: going.cascade.clone().filter(|_| subject != top),
            ..carried_of(after, subject.clone(), live.fields.warehouse.clone(), going)
        };
        let mut first = false;
        let filed = self
            .change::<Trash>(&id, reason, |current| {
                first = current.is_none();
                let next = match current {
                    Some(c) => carrying(record.clone(), &c.fields)?,
                    None => record.clone(),
                };
                Ok(if current.is_some_and(|c| c.fields == next) { Change::Keep } else { Change::Put(next) })
            })
            .await?;
        Ok(filed.filter(|_| first).map(|f| (id, f.meta.nonce)))
    }

    /// Brings a namespace back that was dropped with its contents: the namespaces shallowest first, then the tables, each
    /// with its protection, policy and blocks. What was dropped on its own stays in the trash. Cut off or refused in part,
    /// the same call goes on; the namespace's trash record goes last.
    ///
    /// # Errors
    /// [`Error::Missing`] when the trash holds no such namespace or what it lay in is gone; what the store answers.
    pub async fn undrop_namespace(&self, subject: &Subject, reason: Option<&str>) -> Result<Undropped> {
        let snapshot = self.snapshot().await?;
        let top = snapshot
            .trashed_namespaces()
            .filter(|t| t.fields.subject == *subject)
            .max_by_key(|t| t.fields.dropped_at)
            .ok_or_else(|| not_in_trash(subject))?;
        let went = |t: &&Record<Trash>| t.meta.id == top.meta.id || t.fields.cascade.as_ref() == Some(&top.meta.id);
        let mut namespaces: Vec<&Record<Trash>> = snapshot.trashed_namespaces().filter(went).collect();
        namespaces.sort_by_key(|t| path_of(&t.fields.subject).len());
        let returning = self
            .change::<Trash>(&top.meta.id, reason, |current| match current {
                Some(c) if !c.fields.returning => Ok(Change::Put(Trash { returning: true, ..c.fields.clone() })),
                Some(_) => Ok(Change::Keep),
                None => Err(not_in_trash(subject)),
            })
            .await?;
        let mut out = Undropped::default();
        for record in &namespaces {
            self.undrop_container(record, reason).await?;
            out.namespaces.push(record.fields.subject.clone());
        }
        let tables: Vec<Record<Trash>> = snapshot.trash().filter(went).cloned().collect();
        let undropped: Vec<(Subject, Result<Table>)> = futures::stream::iter(tables)
            .map(|record| {
                let snapshot = &snapshot;
                async move { (record.fields.subject.clone(), self.undrop_one(&record, snapshot, reason).await) }
            })
            .buffered(WRITES)
            .collect()
            .await;
        for (subject, result) in undropped {
            match result {
                Ok(_) => out.tables.push(subject),
                // It concerns this table alone; the others come back.
                Err(e) if !matches!(e.kind(), Kind::Transient | Kind::Permanent) => {
                    out.failed.push((subject, e.to_string()));
                }
                Err(e) => return Err(e),
            }
        }
        if out.failed.is_empty() {
            for record in namespaces.iter().rev() {
                // One that a new drop has filed into meanwhile is that drop's.
                let own = returning.as_ref().filter(|r| r.meta.id == record.meta.id);
                let nonce = own.map_or(record.meta.nonce, |r| r.meta.nonce);
                self.remove_own::<Trash>(&record.meta.id, nonce, reason.or(Some("undrop"))).await?;
            }
        }
        Ok(out)
    }

    async fn undrop_container(&self, record: &Record<Trash>, reason: Option<&str>) -> Result<()> {
        let (trash, subject) = (&record.fields, &record.fields.subject);
        let Some(namespace) = &trash.namespace else { return Err(not_in_trash(subject)) };
        match self.load::<Namespace>(&subject.id()).await? {
            // Its policy came back before it did, or it was made anew and has one of its own choice.
            Some(live) if !live.fields.deleting => {
                let safer = Trash { policy: None, ..trash.clone() };
                self.restore(subject, &safer).await?;
            }
            Some(_) => {
                self.restore(subject, trash).await?;
                self.unmark_deleting(subject).await?;
            }
            None => {
                let restored = self.restore(subject, trash).await?;
                let made = self.namespace_create(path_of(subject), Some(&namespace.warehouse), reason).await;
                match made {
                    Ok(()) => {}
                    // Somebody brought it back at the same time: what was put back is its own.
                    Err(e) if e.kind() == Kind::Conflict && self.load::<Namespace>(&subject.id()).await?.is_some() => {}
                    Err(e) => {
                        self.take_back(subject, restored).await?;
                        return Err(e);
                    }
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn unmark_deleting(&self, subject: &Subject) -> Result<()> {
        match subject {
            Subject::Project(_) => self.unmark::<crate::record::Project>(subject).await,
            Subject::Warehouse(_) => self.unmark::<crate::record::Warehouse>(subject).await,
            _ => self.unmark::<Namespace>(subject).await,
        }
    }

    async fn unmark<T: Container>(&self, subject: &Subject) -> Result<()> {
        self.change::<T>(&subject.id(), Some("it is not dropped after all"), |current| {
            let mut next = match current {
                Some(c) => c.fields.clone(),
                None => return Ok(Change::Keep),
            };
            let was = std::mem::replace(next.deleting(), false);
            Ok(if was { Change::Put(next) } else { Change::Keep })
        })
        .await?;
        Ok(())
    }
}

/// Everything that a drop would do, or why not. Pure.
fn plan(snapshot: &Snapshot, subject: &Subject, request: DropRequest) -> Result<DropPlan> {
    let going = Going::after(request.grace, request.force)?;
    let (namespaces, tables) = match subject {
        Subject::Table(path) => match snapshot.table(path) {
            Some(table) => (Vec::new(), vec![planned(snapshot, &table.fields)]),
            None if going.purge => (Vec::new(), trashed(snapshot, subject, request.force)?),
            None => return Err(missing(subject, "; see `table list`")),
        },
        Subject::Namespace(_) => {
            if !snapshot.exists(subject) {
                return Err(missing(subject, ""));
            }
            if !request.cascade {
                refuse_contents(snapshot, subject)?;
            }
            below(snapshot, subject)
        }
        other => {
            return Err(Error::Invalid(format!("{other}: a cascade begins at a namespace; drop what is in it first")));
        }
    };
    let mut refusals: Vec<Error> = Vec::new();
    for one in namespaces.iter().chain(tables.iter().filter(|t| !t.in_trash).map(|t| &t.subject)) {
        refusals.extend(refuse_drop(snapshot, one, request.force).err());
    }
    if going.purge {
        refusals.extend(tables.iter().filter_map(|t| refuse_shared(snapshot, &t.uri, &t.subject).err()));
    }
    refuse_all(subject, refusals)?;
    let resumes = snapshot.namespaces.get(&subject.id()).filter(|n| n.fields.deleting).and_then(|_| {
        let own =
            |t: &&Record<Trash>| t.fields.subject == *subject && t.fields.cascade.is_none() && !t.fields.returning;
        snapshot.trashed_namespaces().find(own).map(|t| (t.meta.id.clone(), t.fields.deadline))
    });
    let (subject, purge) = (subject.clone(), going.purge);
    let deadline = resumes.as_ref().filter(|_| !purge).map_or(going.deadline, |(_, deadline)| *deadline);
    Ok(DropPlan { subject, purge, deadline, namespaces, tables, request, resumes })
}

/// All that forbids it in one error: whoever has to end ten protections wants to know of ten.
fn refuse_all(subject: &Subject, mut refusals: Vec<Error>) -> Result<()> {
    match refusals.len() {
        0 => Ok(()),
        1 => Err(refusals.remove(0)),
        n => {
            let mut shown: Vec<String> = refusals.iter().take(10).map(Error::to_string).collect();
            shown.dedup();
            let rest = n.saturating_sub(10);
            let more = if rest > 0 { format!("; and {rest} more") } else { String::new() };
            Err(Error::Refused(format!("{subject} is not dropped: {}{more}", shown.join("; "))))
        }
    }
}

fn refuse_unplanned(asked: &DropPlan, now: &DropPlan) -> Result<()> {
    let named: BTreeSet<&Subject> = asked.namespaces.iter().chain(asked.tables.iter().map(|t| &t.subject)).collect();
    let new = now.namespaces.iter().chain(now.tables.iter().map(|t| &t.subject)).find(|s| !named.contains(s));
    match new {
        None => Ok(()),
        Some(new) => Err(Error::Refused(format!(
            "{new} came into {} after the drop was planned; look at a new plan",
            asked.subject
        ))),
    }
}

fn planned(snapshot: &Snapshot, table: &Table) -> DropTable {
    let subject = table.subject();
    let forced = snapshot.protection_over(&subject).filter(|p| p.level == Level::NoDrop);
    let forced = forced.map(|p| p.subject.to_string());
    DropTable { uri: table.uri.clone(), in_trash: false, forced, subject }
}

fn trashed(snapshot: &Snapshot, subject: &Subject, force: bool) -> Result<Vec<DropTable>> {
    let held: Vec<_> = snapshot.trash().filter(|t| t.fields.subject == *subject).collect();
    if held.is_empty() {
        return Err(missing(subject, ", and the trash holds none; see `table list`"));
    }
    held.iter().try_for_each(|t| refuse_purge(snapshot, &t.fields, force))?;
    let line = |t: &Record<Trash>| DropTable {
        subject: subject.clone(),
        uri: t.fields.uri.clone(),
        in_trash: true,
        forced: t.fields.protection.as_ref().map(|_| subject.to_string()),
    };
    Ok(held.into_iter().map(line).collect())
}

/// A namespace and all namespaces below it, shallowest first, and all tables in them.
fn below(snapshot: &Snapshot, top: &Subject) -> (Vec<Subject>, Vec<DropTable>) {
    let prefix = path_of(top);
    let mut namespaces: Vec<Subject> = snapshot
        .namespaces()
        .filter(|n| n.fields.path.starts_with(prefix))
        .map(|n| Subject::Namespace(n.fields.path.clone()))
        .collect();
    namespaces.sort_by_key(|n| path_of(n).len());
    let tables = snapshot.tables().filter(|t| t.fields.path.starts_with(prefix) && t.fields.path.len() > prefix.len());
    (namespaces, tables.map(|t| planned(snapshot, &t.fields)).collect())
}

pub(crate) fn path_of(subject: &Subject) -> &[String] {
    match subject {
        Subject::Namespace(path) | Subject::Table(path) => path,
        _ => &[],
    }
}
