//! The way back from the trash.
//!
//! It claims the location first and takes the trash record away last; what was put back on a name that could not be had is
//! taken away again, so that nobody else's table inherits it.

use chrono::Utc;
use uuid::Uuid;

use crate::blocks::Block;
use crate::error::{Error, Result};
use crate::generation::Change;
use crate::hierarchy::missing;
use crate::policies::{complete, delayed};
use crate::record::{
    Carried, Fields, Namespace, PendingRecord, PolicyRecord, Protection, Record, Table, Trash, Warehouse,
};
use crate::registry::Registry;
use crate::snapshot::Snapshot;
use crate::storage::{canonical_uri, join_uri};
use crate::subject::Subject;
use crate::trash::not_in_trash;

/// What came back from the trash, by its nonce: it is taken away again where the rest does not succeed.
#[derive(Default)]
pub(crate) struct Restored {
    protection: Option<Uuid>,
    policy: Option<Uuid>,
    blocks: Vec<(String, Uuid)>,
}

impl Registry {
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
            return Err(not_in_trash(subject));
        };
        self.undrop_one(record, &snapshot, reason).await
    }

    pub(crate) async fn undrop_one(
        &self,
        record: &Record<Trash>,
        snapshot: &Snapshot,
        reason: Option<&str>,
    ) -> Result<Table> {
        let (trash, subject) = (&record.fields, &record.fields.subject);
        if let Some(parent) = subject.parent_namespace()
            && self.load::<Namespace>(&parent.id()).await?.is_none()
        {
            return Err(missing(&parent, "; make it again first"));
        }
        let warehouse = Subject::Warehouse(trash.warehouse.clone());
        let root = self.load::<Warehouse>(&warehouse.id()).await?.ok_or_else(|| missing(&warehouse, ""))?;
        let was = trash.table.as_ref().ok_or_else(|| not_in_trash(subject))?;
        let uri = canonical_uri(&join_uri(&root.fields.root, &was.location))?;
        let table = Table { uri, ..was.clone() };
        match self.load::<Table>(&subject.id()).await? {
            Some(live) if live.fields.uri != table.uri => {
                return Err(Error::Exists {
                    what: subject.to_string(),
                    hint: format!(" at {}; drop or rename that one first", live.fields.uri),
                });
            }
            // A drop or undrop that was cut off. Everything that shields the table is back before the trash record,
            // which freezes it, goes.
            Some(_) => drop(self.restore(subject, trash).await?),
            None => self.land(&table, trash, reason).await?,
        }
        self.keep_governed(subject, trash, &root.fields.project).await?;
        for other in snapshot.trash().filter(|t| t.fields.subject == *subject && t.fields.uri == trash.uri) {
            // One that a new drop has filed into meanwhile is that drop's.
            self.remove_own::<Trash>(&other.meta.id, other.meta.nonce, reason.or(Some("undrop"))).await?;
        }
        Ok(table)
    }

    /// Registers a table that comes out of the trash, under the name that its record has by now.
    pub(crate) async fn land(&self, table: &Table, trash: &Trash, reason: Option<&str>) -> Result<()> {
        let subject = table.subject();
        // Before anything is put on the name: who holds the location decides who has the name.
        self.claim_location(&table.uri, &subject, reason).await?;
        let restored = self.restore(&subject, trash).await?;
        let Err(e) = self.register(table, reason).await else { return Ok(()) };
        let live = self.load::<Table>(&subject.id()).await?;
        if live.is_none_or(|live| live.fields.uri != table.uri) {
            self.take_back(&subject, restored).await?;
        }
        // Else somebody brought back the same table at the same time, and what was put back shields it.
        Err(e)
    }

    /// Puts back what a trash record carries, for the name it lands under; what stands there already stays.
    pub(crate) async fn restore(&self, subject: &Subject, trash: &Trash) -> Result<Restored> {
        let id = subject.to_string();
        let mut out = Restored::default();
        if let Some(Carried { fields, reason }) = &trash.protection {
            let fields = Protection { subject: subject.clone(), ..fields.clone() };
            out.protection = self.put_back(&id, fields, reason.as_deref()).await?;
        }
        if let Some(Carried { fields, reason }) = &trash.policy {
            let fields = PolicyRecord { subject: subject.clone(), ..fields.clone() };
            out.policy = self.put_back(&id, fields, reason.as_deref()).await?;
        }
        for (block, Carried { fields, reason }) in &trash.blocks {
            let fields = Block { subject: subject.clone(), ..fields.clone() };
            let put = self.put_back(block, fields, reason.as_deref()).await?;
            out.blocks.extend(put.map(|nonce| (block.clone(), nonce)));
        }
        Ok(out)
    }

    /// Where what lies above it by now lets versions go sooner than what governed it, that waits for `shorten_delay`: a
    /// namespace that was made anew is a change like any other.
    async fn keep_governed(&self, subject: &Subject, trash: &Trash, project: &str) -> Result<()> {
        let Some(Carried { fields: above, reason }) = trash.governed_by.as_ref().filter(|_| trash.policy.is_none())
        else {
            return Ok(());
        };
        let now = Utc::now();
        let Some(was) = above.at(now).map_err(Error::Invalid)? else { return Ok(()) };
        let mut next = subject.parent_namespace();
        let mut governing: Vec<Subject> = Vec::new();
        while let Some(parent) = next {
            next = parent.parent_namespace();
            governing.push(parent);
        }
        governing.push(Subject::Project(project.to_owned()));
        let (mut now_governs, delay) = self.inner.defaults.clone();
        for one in governing {
            let Some(record) = self.load::<PolicyRecord>(&one.to_string()).await? else { continue };
            if let Some(policy) = record.fields.at(now).map_err(Error::Invalid)? {
                now_governs = policy;
                break;
            }
        }
        let changes = was.sooner(&now_governs);
        if changes.is_empty() {
            return Ok(());
        }
        let pending = PendingRecord { effective_at: delayed(now, delay)?, policy: None, changes };
        let policy = complete(&was.hold_back(&now_governs), None);
        let fields = PolicyRecord { subject: subject.clone(), policy, pending: Some(pending) };
        self.put_back(&subject.to_string(), fields, reason.as_deref()).await.map(drop)
    }

    /// The nonce of what was put; `None` where something stood there.
    async fn put_back<T: Fields>(&self, id: &str, fields: T, reason: Option<&str>) -> Result<Option<Uuid>> {
        let mut ours = false;
        let put = self
            .change::<T>(id, reason, |current| {
                ours = current.is_none();
                Ok(if ours { Change::Put(fields.clone()) } else { Change::Keep })
            })
            .await?;
        Ok(put.filter(|_| ours).map(|record| record.meta.nonce))
    }

    pub(crate) async fn take_back(&self, subject: &Subject, restored: Restored) -> Result<()> {
        let (id, why) = (subject.to_string(), Some("it could not come back"));
        if let Some(nonce) = restored.protection {
            self.remove_own::<Protection>(&id, nonce, why).await?;
        }
        if let Some(nonce) = restored.policy {
            self.remove_own::<PolicyRecord>(&id, nonce, why).await?;
        }
        for (block, nonce) in restored.blocks {
            self.remove_own::<Block>(&block, nonce, why).await?;
        }
        Ok(())
    }
}
