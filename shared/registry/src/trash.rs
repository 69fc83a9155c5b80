//! Drops into the trash.
//!
//! The order is the rule. A drop files the trash record first and gives the location back last, so at no moment are the
//! bytes nobody's; between them it looks again, so that protection that arrives meanwhile is either seen or told that the
//! table is gone ([`Registry::outlives`]).

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt, TryStreamExt};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::generation::Change;
use crate::hierarchy::{missing, refuse_drop};
use crate::protection::Level;
use crate::record::{Carried, Namespace, Project, Record, Table, Trash, Warehouse};
use crate::registry::{Registry, all};
use crate::snapshot::Snapshot;
use crate::storage::within;
use crate::subject::Subject;

/// Records of a cascade that are written at the same time.
pub(crate) const WRITES: usize = 16;
/// How often a writer looks whether a drop that is under way on what it writes about has ended, and after which pause: a
/// minute, the time in which a writer acts on what it has listed.
const SETTLES: (u32, Duration) = (300, Duration::from_millis(200));

/// How something goes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Going {
    pub(crate) at: DateTime<Utc>,
    pub(crate) deadline: DateTime<Utc>,
    /// Nothing is to be restored: protection ends, and the bytes must be this table's alone.
    pub(crate) purge: bool,
    pub(crate) force: bool,
    pub(crate) cascade: Option<String>,
    pub(crate) renamed_to: Option<Subject>,
}

impl Going {
    /// Into the trash for `grace`; no grace is a purge.
    pub(crate) fn after(grace: Duration, force: bool) -> Result<Self> {
        let at: DateTime<Utc> = Utc::now();
        let deadline = TimeDelta::from_std(grace)
            .ok()
            .and_then(|grace| at.checked_add_signed(grace))
            .ok_or_else(|| Error::Invalid("grace.trash: too long to be a date; write it like \"7d\"".into()))?;
        Ok(Self { at, deadline, purge: grace.is_zero(), force, cascade: None, renamed_to: None })
    }

    /// As the drop that filed this record was going.
    pub(crate) fn like(trash: &Trash) -> Self {
        Self {
            at: trash.dropped_at,
            deadline: trash.deadline,
            purge: trash.deadline <= trash.dropped_at,
            force: false,
            cascade: trash.cascade.clone(),
            renamed_to: trash.renamed_to.clone(),
        }
    }
}

/// A trash record that was filed, and whether this drop was the first to file it.
struct Filed {
    id: String,
    record: Trash,
    /// The nonce of the record where this drop was the first to file it: only then is it withdrawn when the drop is refused,
    /// since another drop at work rests on a record that it found.
    first: Option<Uuid>,
}

impl Registry {
    /// Drops a table into the trash: its name goes, its bytes stay and are frozen. After `grace` they may be planned for
    /// reclaim. Without a grace it is a purge: the deadline is now, its protection ends, and the bytes must be nobody
    /// else's. Cut off at any point, the same call goes on where it was.
    ///
    /// The trash record carries the table's protection, policy and blocks: `undrop` restores them, and a reused id
    /// inherits nothing.
    ///
    /// # Errors
    /// [`Error::Refused`] under protection (`force` gets past `no-drop` only) and for a purge of shared bytes,
    /// [`Error::Unreadable`] while something in its scope cannot be read, [`Error::Missing`].
    pub async fn table_drop(
        &self,
        path: &[String],
        grace: Duration,
        force: bool,
        reason: Option<&str>,
    ) -> Result<Trash> {
        let before = self.snapshot().await?;
        let dropped = self.drop_tables(&before, &[path.to_vec()], &Going::after(grace, force)?, reason).await?;
        dropped.into_iter().next().ok_or_else(|| missing(&Subject::Table(path.to_vec()), "; see `table list`"))
    }

    /// Drops tables together: either all of them are refused, or all of them go.
    pub(crate) async fn drop_tables(
        &self,
        before: &Snapshot,
        paths: &[Vec<String>],
        going: &Going,
        reason: Option<&str>,
    ) -> Result<Vec<Trash>> {
        let filing = paths.iter().map(|path| filing(before, path, going)).collect::<Result<Vec<_>>>()?;
        let filed = self.file_all(filing, reason).await?;
        // Whoever protected one of them until now is seen here; whoever does from here on sees the trash record.
        let after = self.snapshot().await?;
        let mut again = Vec::new();
        let refused = filed.iter().try_for_each(|f| {
            refuse_drop(&after, &f.record.subject, going.force)?;
            if let Some(now) = after.table_at(&f.record.uri).filter(|t| t.fields.subject() == f.record.subject) {
                let now = carrying(trash_of(&after, now, going)?, &f.record)?;
                if now != f.record {
                    again.push(Filed { id: f.id.clone(), record: now, first: None });
                }
            }
            Ok(())
        });
        if let Err(e) = refused {
            self.withdraw(&filed).await?;
            return Err(e);
        }
        self.file_all(again, reason).await?;
        let after = &after;
        futures::stream::iter(filed)
            .map(|f| async move { self.leave(f, after, reason).await })
            .buffered(WRITES)
            .try_collect()
            .await
    }

    async fn withdraw(&self, filed: &[Filed]) -> Result<()> {
        for f in filed {
            if let Some(nonce) = f.first {
                self.remove_own::<Trash>(&f.id, nonce, Some("the drop was refused")).await?;
            }
        }
        Ok(())
    }

    /// All of them, or none where a rule refuses one.
    async fn file_all(&self, filing: Vec<Filed>, reason: Option<&str>) -> Result<Vec<Filed>> {
        let tried: Vec<Result<Filed>> = futures::stream::iter(filing)
            .map(|f| async move {
                let mut first = false;
                let kept = self
                    .change::<Trash>(&f.id, reason, |current| {
                        first = current.is_none();
                        let next = match current {
                            Some(found) => carrying(f.record.clone(), &found.fields)?,
                            None => f.record.clone(),
                        };
                        let same = current.is_some_and(|c| c.fields == next);
                        Ok(if same { Change::Keep } else { Change::Put(next) })
                    })
                    .await?;
                let nonce = kept.as_ref().map(|k| k.meta.nonce).filter(|_| first);
                Ok(Filed { record: kept.map_or(f.record, |k| k.fields.clone()), first: nonce, id: f.id })
            })
            .buffered(WRITES)
            .collect()
            .await;
        let (mut filed, mut failed) = (Vec::new(), None);
        for one in tried {
            match one {
                Ok(one) => filed.push(one),
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        match failed {
            None => Ok(filed),
            Some(e) => {
                self.withdraw(&filed).await?;
                Err(e)
            }
        }
    }

    /// The second half of a drop, once the trash record stands.
    async fn leave(&self, filed: Filed, after: &Snapshot, reason: Option<&str>) -> Result<Trash> {
        let (subject, uri) = (&filed.record.subject, &filed.record.uri);
        self.forget_in(after, subject, reason).await?;
        let mut moved = false;
        self.change::<Table>(&subject.id(), reason, |current| {
            moved = current.is_some_and(|now| now.fields.uri != *uri);
            Ok(if current.is_some() && !moved { Change::Delete } else { Change::Keep })
        })
        .await?;
        if moved {
            // Another drop has ended what this one began, and the name is another table's by now. That drop rests on the trash record.
            return Err(Error::LostRace { what: subject.to_string(), attempts: 1 });
        }
        self.release_location(uri, subject).await?;
        Ok(filed.record)
    }

    /// Purges what is in the trash under a table's name: its deadline is now, and its protection ends.
    ///
    /// # Errors
    /// [`Error::Missing`] when the trash holds no such table, [`Error::Refused`] for the protection it carries (`force`
    /// gets past `no-drop` only) or shared bytes, [`Error::Unreadable`].
    pub async fn trash_purge(&self, subject: &Subject, force: bool, reason: Option<&str>) -> Result<Vec<Trash>> {
        let snapshot = self.snapshot().await?;
        let held: Vec<_> = snapshot.trash().filter(|t| t.fields.subject == *subject).collect();
        if held.is_empty() {
            return Err(not_in_trash(subject));
        }
        held.iter().try_for_each(|t| refuse_purge(&snapshot, &t.fields, force))?;
        let now = Utc::now();
        let mut out = Vec::new();
        for record in held {
            let purged = self
                .change::<Trash>(&record.meta.id, reason, |current| match current {
                    Some(c) => {
                        // Read again: a drop that was under way may have carried more into it.
                        refuse_purge(&snapshot, &c.fields, force)?;
                        let deadline = c.fields.deadline.min(now);
                        let next = Trash { deadline, protection: None, ..c.fields.clone() };
                        Ok(if next == c.fields { Change::Keep } else { Change::Put(next) })
                    }
                    None => Ok(Change::Keep),
                })
                .await?;
            out.extend(purged.map(|record| record.fields.clone()));
        }
        Ok(out)
    }

    /// Ends a trash record whose bytes are gone: the protection it carried ends with it, and so do the records of namespaces
    /// that have nothing left to bring back. Whether there was one. Only a reclaim that has purged every object of the
    /// dataset may call it.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn trash_purged(&self, id: &str, reason: &str) -> Result<bool> {
        let was = self.remove::<Trash>(id, Some(reason)).await?;
        let snapshot = self.snapshot().await?;
        for ended in snapshot.ended_namespaces(Utc::now()) {
            self.remove_own::<Trash>(&ended.meta.id, ended.meta.nonce, Some(reason)).await?;
        }
        Ok(was)
    }

    /// Refuses a location that the trash holds: it would be a live table and a frozen one at once.
    pub(crate) async fn refuse_trashed(&self, uri: &str) -> Result<()> {
        let trash = all::<Trash>(&self.inner.records).await?;
        match trash.live.values().find(|t| t.fields.uri == uri) {
            Some(t) => Err(Error::Refused(format!(
                "{uri} is in the trash as {}; bring it back with `squire-registry trash undrop {}`",
                t.fields.subject, t.fields.subject
            ))),
            None => Ok(()),
        }
    }

    /// Whether a subject still exists after something was put on it. A drop that is under way is waited for: it either saw
    /// what was put, and gives up, or takes the subject away.
    ///
    /// # Errors
    /// [`Error::Missing`] when it is gone: what was put is to be taken away again. [`Error::Refused`] when a drop was cut
    /// off and stays so: what was put may stay.
    pub(crate) async fn outlives(&self, subject: &Subject) -> Result<()> {
        for _ in 0..SETTLES.0 {
            let (there, going) = match subject {
                Subject::Estate | Subject::Dataset(_) => (true, false),
                Subject::Project(_) => found(self.load::<Project>(&subject.id()).await?, |p| p.deleting),
                Subject::Warehouse(_) => found(self.load::<Warehouse>(&subject.id()).await?, |w| w.deleting),
                Subject::Namespace(_) => found(self.load::<Namespace>(&subject.id()).await?, |n| n.deleting),
                Subject::Table(_) => {
                    // The trash first: a drop tombstones the table after it has filed its record.
                    let trash = all::<Trash>(&self.inner.records).await?.live;
                    let table = self.load::<Table>(&subject.id()).await?;
                    found(table, |t| trash.values().any(|x| x.fields.subject == *subject && x.fields.uri == t.uri))
                }
            };
            match (there, going) {
                (true, false) => return Ok(()),
                (false, _) => return Err(missing(subject, "; it was dropped meanwhile")),
                (true, true) => tokio::time::sleep(SETTLES.1).await,
            }
        }
        Err(Error::Refused(format!(
            "{subject} is being dropped, and the drop does not end; finish or undo it first, see `squire-registry check`"
        )))
    }
}

fn found<T>(record: Option<std::sync::Arc<Record<T>>>, going: impl Fn(&T) -> bool) -> (bool, bool) {
    record.map_or((false, false), |record| (true, going(&record.fields)))
}

pub(crate) fn not_in_trash(subject: &Subject) -> Error {
    Error::Missing { what: format!("{subject} in the trash"), hint: "; see `trash list`".into() }
}

impl Snapshot {
    /// Who else holds, or could hold, bytes at a place: other tables and trash that overlap it, warehouses inside it, and
    /// projects that clash over it. Empty proves, as far as the registry can, that they are `subject`'s alone; clones
    /// and other estates' markers only a look at the storage shows.
    pub fn other_owners(&self, uri: &str, subject: &Subject) -> Vec<String> {
        let overlaps = |other: &str| within(other, uri) || within(uri, other);
        let mut out: Vec<String> = self
            .tables()
            .filter(|t| overlaps(&t.fields.uri) && t.fields.subject() != *subject)
            .map(|t| t.fields.subject().to_string())
            .collect();
        out.extend(
            self.locations
                .values()
                .filter(|l| overlaps(&l.fields.uri) && l.fields.table != *subject)
                .map(|l| l.fields.table.to_string()),
        );
        out.extend(
            self.trash()
                .filter(|t| overlaps(&t.fields.uri) && t.fields.subject != *subject)
                .map(|t| format!("{} in the trash", t.fields.subject)),
        );
        out.extend(
            self.warehouses()
                .filter(|w| within(&w.fields.root, uri))
                .map(|w| format!("warehouse/{} over {}", w.meta.id, w.fields.root)),
        );
        let place = self.place(uri);
        if place.projects.len() > 1 {
            out.extend(place.projects.iter().map(|p| Subject::Project(p.clone()).to_string()));
        }
        out.sort();
        out.dedup();
        out
    }

    /// Trashed namespaces whose deadline has passed and whose cascade has no table in the trash any more.
    pub(crate) fn ended_namespaces(&self, now: DateTime<Utc>) -> Vec<&Record<Trash>> {
        let top = |t: &Record<Trash>| t.fields.cascade.clone().unwrap_or_else(|| t.meta.id.clone());
        let waiting: std::collections::BTreeSet<String> = self.trash().map(top).collect();
        self.trashed_namespaces()
            .filter(|t| t.fields.deadline <= now && !waiting.contains(&top(t)))
            .filter(|t| !self.exists(&t.fields.subject))
            .collect()
    }
}

pub(crate) fn refuse_purge(snapshot: &Snapshot, trash: &Trash, force: bool) -> Result<()> {
    refuse_drop(snapshot, &trash.subject, force)?;
    if let Some(p) = &trash.protection
        && !(force && p.fields.level == Level::NoDrop)
    {
        return Err(Error::Refused(format!(
            "{} carries {}{} in the trash; bring it back with `trash undrop`, end the protection, and drop it again",
            trash.subject,
            p.fields.level,
            p.reason.as_ref().map(|r| format!(" ({r})")).unwrap_or_default()
        )));
    }
    refuse_shared(snapshot, &trash.uri, &trash.subject)
}

pub(crate) fn refuse_shared(snapshot: &Snapshot, uri: &str, subject: &Subject) -> Result<()> {
    let owners = snapshot.other_owners(uri, subject);
    if owners.is_empty() {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "{subject}: the bytes at {uri} are not its alone, {} holds them too; a purge needs sole ownership, a drop does not",
        owners.join(", ")
    )))
}

/// What a drop of this table files, if nothing forbids it.
fn filing(snapshot: &Snapshot, path: &[String], going: &Going) -> Result<Filed> {
    let subject = Subject::Table(path.to_vec());
    let Some(table) = snapshot.table(path) else { return Err(missing(&subject, "; see `table list`")) };
    refuse_drop(snapshot, &subject, going.force)?;
    if going.purge {
        refuse_shared(snapshot, &table.fields.uri, &subject)?;
    }
    let record = trash_of(snapshot, table, going)?;
    // An earlier drop (or undrop) that was cut off; else the nonce, which names this very table record, so that two
    // droppers write one trash record.
    let earlier = snapshot.trash_at(&table.fields.uri).find(|t| t.fields.subject == subject);
    let id = earlier.map_or_else(|| table.meta.nonce.to_string(), |t| t.meta.id.clone());
    Ok(Filed { id, record, first: None })
}

fn trash_of(snapshot: &Snapshot, table: &Record<Table>, going: &Going) -> Result<Trash> {
    let subject = table.fields.subject();
    let warehouse = snapshot.warehouse_of(&subject).ok_or_else(|| {
        Error::Refused(format!("{subject} has no namespace bound to a warehouse; run `squire-registry check`"))
    })?;
    let (uri, table) = (table.fields.uri.clone(), Some(table.fields.clone()));
    Ok(Trash { uri, table, ..carried_of(snapshot, subject, warehouse, going) })
}

/// A trash record with all that a subject carries, and nothing of what it is.
pub(crate) fn carried_of(snapshot: &Snapshot, subject: Subject, warehouse: String, going: &Going) -> Trash {
    Trash {
        warehouse,
        uri: String::new(),
        table: None,
        namespace: None,
        dropped_at: going.at,
        deadline: going.deadline,
        cascade: going.cascade.clone(),
        renamed_to: going.renamed_to.clone(),
        returning: false,
        protection: snapshot.protection_of(&subject).filter(|_| !going.purge).map(carried),
        policy: snapshot.policy_of(&subject).map(carried),
        governed_by: snapshot.governing_record(&subject).filter(|above| above.fields.subject != subject).map(carried),
        blocks: snapshot
            .blocks()
            .filter(|b| b.fields.subject == subject)
            .map(|b| (b.meta.id.clone(), carried(b)))
            .collect(),
        subject,
    }
}

/// What a drop that was cut off had already moved into the trash stays there.
///
/// # Errors
/// [`Error::Refused`] when the earlier one goes elsewhere: whoever filed first decides between a drop and renames.
pub(crate) fn carrying(mut record: Trash, earlier: &Trash) -> Result<Trash> {
    if record.renamed_to != earlier.renamed_to {
        let going = earlier.renamed_to.as_ref().map_or("dropped".to_owned(), |to| format!("renamed to {to}"));
        return Err(Error::Refused(format!(
            "{} is being {going}; finish that, or take it back with `squire-registry trash undrop {}`",
            record.subject, record.subject
        )));
    }
    let purged = record.deadline <= record.dropped_at;
    record.protection = record.protection.or_else(|| earlier.protection.clone()).filter(|_| !purged);
    record.policy = record.policy.or_else(|| earlier.policy.clone());
    record.governed_by = record.governed_by.or_else(|| earlier.governed_by.clone());
    record.cascade = record.cascade.or_else(|| earlier.cascade.clone());
    if !purged {
        record.deadline = record.deadline.max(earlier.deadline);
    }
    for (id, block) in &earlier.blocks {
        if !record.blocks.iter().any(|(own, _)| own == id) {
            record.blocks.push((id.clone(), block.clone()));
        }
    }
    Ok(record)
}

fn carried<T: Clone>(record: &Record<T>) -> Carried<T> {
    Carried { fields: record.fields.clone(), reason: record.meta.reason.clone() }
}
