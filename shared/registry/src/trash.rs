//! Recoverable drops.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::blocks::Block;
use crate::error::{Error, Result};
use crate::generation::Change;
use crate::hierarchy::{missing, refuse_drop};
use crate::record::{Carried, Namespace, PolicyRecord, Protection, Record, Table, Trash, Warehouse};
use crate::registry::Registry;
use crate::snapshot::Snapshot;
use crate::storage::{canonical_uri, join_uri};
use crate::subject::Subject;

impl Registry {
    /// Drops a table into the trash: its name goes, its bytes stay and are frozen. After `grace` they may be planned for
    /// reclaim. Cut off at any point, the same call goes on where it was.
    ///
    /// The trash record is put first and the location's tombstone last, so at no moment are the bytes nobody's. It carries
    /// the table's protection, policy and blocks: `undrop` restores them, and a reused id inherits nothing.
    ///
    /// # Errors
    /// [`Error::Refused`] under protection (`force` gets past `no-drop` only), [`Error::Unreadable`] while something in
    /// its scope cannot be read, [`Error::Missing`].
    pub async fn table_drop(
        &self,
        path: &[String],
        grace: Duration,
        force: bool,
        reason: Option<&str>,
    ) -> Result<Trash> {
        let subject = Subject::Table(path.to_vec());
        let snapshot = self.snapshot().await?;
        let Some(table) = snapshot.table(path) else { return Err(missing(&subject, "; see `table list`")) };
        refuse_drop(&snapshot, &subject, force)?;
        let uri = table.fields.uri.clone();
        let record = trash_of(&snapshot, table, grace)?;
        // An earlier drop (or undrop) that was cut off; else the nonce, which names this very table record, so that two
        // droppers write one trash record.
        let earlier = snapshot.trash_at(&uri).find(|t| t.fields.subject == subject);
        let id = earlier.map_or_else(|| table.meta.nonce.to_string(), |t| t.meta.id.clone());
        let kept = self
            .change::<Trash>(&id, reason, |current| {
                Ok(Change::Put(match current {
                    Some(found) => carrying(record.clone(), &found.fields),
                    None => record.clone(),
                }))
            })
            .await?;
        self.forget(&subject, reason).await?;
        let mut moved = false;
        self.change::<Table>(&subject.id(), reason, |current| match current {
            Some(now) if now.fields.uri == uri => Ok(Change::Delete),
            Some(_) => {
                moved = true;
                Ok(Change::Keep)
            }
            None => Ok(Change::Keep),
        })
        .await?;
        if moved {
            self.remove::<Trash>(&id, Some("the name moved to another location during the drop")).await?;
            return Err(Error::LostRace { what: subject.to_string(), attempts: 1 });
        }
        self.release_location(&uri, &subject).await?;
        Ok(kept.map_or(record, |r| r.fields.clone()))
    }

    /// Brings a dropped table back under its name, with the protection, policy and blocks it had. Where the trash holds
    /// several of that name, the one dropped last.
    ///
    /// # Errors
    /// [`Error::Missing`] when the trash holds no such table or its namespace is gone, [`Error::Exists`] when the name or
    /// the location is taken.
    pub async fn undrop(&self, subject: &Subject, reason: Option<&str>) -> Result<Table> {
        let snapshot = self.snapshot().await?;
        let Some(record) =
            snapshot.trash().filter(|t| t.fields.subject == *subject).max_by_key(|t| t.fields.dropped_at)
        else {
            return Err(Error::Missing { what: format!("{subject} in the trash"), hint: "; see `trash list`".into() });
        };
        let trash = record.fields.clone();
        if let Some(parent) = subject.parent_namespace()
            && self.load::<Namespace>(&parent.id()).await?.is_none()
        {
            return Err(missing(&parent, "; make it again first"));
        }
        let warehouse = Subject::Warehouse(trash.warehouse.clone());
        let root = self.load::<Warehouse>(&warehouse.id()).await?.ok_or_else(|| missing(&warehouse, ""))?;
        let uri = canonical_uri(&join_uri(&root.fields.root, &trash.table.location))?;
        let table = Table { uri, ..trash.table.clone() };
        let live = self.load::<Table>(&subject.id()).await?;
        if live.as_ref().is_some_and(|t| t.fields.uri != table.uri) {
            return Err(Error::Exists {
                what: subject.to_string(),
                hint: format!(
                    " at {}; drop or rename that one first",
                    live.map(|t| t.fields.uri.clone()).unwrap_or_default()
                ),
            });
        }
        // Everything that shields the table is back before the trash record, which freezes it, goes.
        self.restore(subject, &trash).await?;
        if live.is_none() {
            self.register(&table, reason).await?;
        }
        for other in snapshot.trash().filter(|t| t.fields.subject == *subject && t.fields.uri == trash.uri) {
            self.remove::<Trash>(&other.meta.id, reason.or(Some("undrop"))).await?;
        }
        Ok(table)
    }

    /// Ends a trash record whose bytes are gone: the protection it carried ends with it. Whether there was one. Only a reclaim
    /// that has purged every object of the dataset may call it.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn trash_purged(&self, id: &str, reason: &str) -> Result<bool> {
        self.remove::<Trash>(id, Some(reason)).await
    }

    async fn restore(&self, subject: &Subject, trash: &Trash) -> Result<()> {
        let id = subject.to_string();
        if let Some(carried) = &trash.protection {
            self.change::<Protection>(&id, carried.reason.as_deref(), |current| {
                Ok(if current.is_some() { Change::Keep } else { Change::Put(carried.fields.clone()) })
            })
            .await?;
        }
        if let Some(carried) = &trash.policy {
            self.change::<PolicyRecord>(&id, carried.reason.as_deref(), |current| {
                Ok(if current.is_some() { Change::Keep } else { Change::Put(carried.fields.clone()) })
            })
            .await?;
        }
        for (id, carried) in &trash.blocks {
            self.change::<Block>(id, carried.reason.as_deref(), |current| {
                Ok(if current.is_some() { Change::Keep } else { Change::Put(carried.fields.clone()) })
            })
            .await?;
        }
        Ok(())
    }

    /// Refuses a location that the trash holds: it would be a live table and a frozen one at once.
    pub(crate) async fn refuse_trashed(&self, uri: &str) -> Result<()> {
        let snapshot = self.snapshot().await?;
        match snapshot.trash_at(uri).next() {
            Some(t) => Err(Error::Refused(format!(
                "{uri} is in the trash as {}; bring it back with `squire-registry trash undrop {}`",
                t.fields.subject, t.fields.subject
            ))),
            None => Ok(()),
        }
    }
}

fn trash_of(snapshot: &Snapshot, table: &Record<Table>, grace: Duration) -> Result<Trash> {
    let subject = table.fields.subject();
    let now: DateTime<Utc> = Utc::now();
    let deadline = TimeDelta::from_std(grace)
        .ok()
        .and_then(|grace| now.checked_add_signed(grace))
        .ok_or_else(|| Error::Invalid("grace.trash: too long to be a date; write it like \"7d\"".into()))?;
    let warehouse = snapshot.warehouse_of(&subject).ok_or_else(|| {
        Error::Refused(format!("{subject} has no namespace bound to a warehouse; run `squire-registry check`"))
    })?;
    Ok(Trash {
        warehouse,
        uri: table.fields.uri.clone(),
        table: table.fields.clone(),
        dropped_at: now,
        deadline,
        protection: snapshot.protection_of(&subject).map(carried),
        policy: snapshot.policy_of(&subject).map(carried),
        blocks: snapshot
            .blocks()
            .filter(|b| b.fields.subject == subject)
            .map(|b| (b.meta.id.clone(), carried(b)))
            .collect(),
        subject,
    })
}

/// What a drop that was cut off had already moved into the trash stays there.
fn carrying(mut record: Trash, earlier: &Trash) -> Trash {
    record.protection = record.protection.or_else(|| earlier.protection.clone());
    record.policy = record.policy.or_else(|| earlier.policy.clone());
    for (id, block) in &earlier.blocks {
        if !record.blocks.iter().any(|(own, _)| own == id) {
            record.blocks.push((id.clone(), block.clone()));
        }
    }
    record
}

fn carried<T: Clone>(record: &Record<T>) -> Carried<T> {
    Carried { fields: record.fields.clone(), reason: record.meta.reason.clone() }
}
