//! The audit trail: what every run was about to do, under which policy, and what it did.
//!
//! A run's record and the entry of each dataset are written BEFORE the first delete and closed after it, so "who deleted
//! version 7 of this table?" has an answer a year later, and a run that died shows what it had begun.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::actor::Actor;
use crate::attempts::Attempts;
use crate::error::{Error, Result};
use crate::generation::{Change, Place, Read};
use crate::key;
use crate::policy::Policy;
use crate::record::{Collection, Unreadable, fields};
use crate::registry::Registry;
use crate::snapshot::Snapshot;

/// One run that changes something.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The run's id (UUIDv7), in every log line, commit and event it makes.
    pub run: Uuid,
    /// `sweep`, `apply`, `build`, `reclaim`, ... (`kind` is the envelope's word.)
    #[serde(rename = "run_kind")]
    pub kind: String,
    /// The estate.
    pub estate: Uuid,
    /// When it began.
    pub started_at: DateTime<Utc>,
    /// The command line or trigger.
    pub command: String,
    /// Who started it, and from where.
    pub actor: Actor,
    /// Squire's version.
    pub tool_version: String,
    /// The estate's mode at the time.
    pub mode: String,
    /// The digest of the effective config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_digest: Option<String>,
    /// The digest of the plan it carries out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_digest: Option<String>,
    /// How many protections, blocks and trash records there were.
    pub live: LiveCounts,
    /// How it ended; none while it runs, or where it died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<RunOutcome>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunOutcome {
    /// When.
    pub finished_at: DateTime<Utc>,
    /// Whether it came to its end, rather than being stopped.
    pub complete: bool,
    /// The report's totals.
    pub totals: Value,
    /// What failed, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

/// What a run does to one dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatasetEntry {
    /// The run.
    pub run: Uuid,
    /// Which attempt of the run this is: a message that is delivered again brings the run to another worker, and what each
    /// of them did is told apart.
    #[serde(default)]
    pub attempt: Uuid,
    /// The dataset's canonical URI.
    pub uri: String,
    /// The table's SUBJECT, if it has a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// When this was written, before anything was done.
    pub opened_at: DateTime<Utc>,
    /// What will go, and what allows it.
    pub intent: DatasetIntent,
    /// What went, and what failed; none while it runs, or where the run died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<DatasetResult>,
}

/// What is about to happen to a dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatasetIntent {
    /// The version that the plan was made at.
    pub read_version: u64,
    /// The steps that will run.
    pub steps: Vec<String>,
    /// The versions that will go.
    pub versions: Vec<VersionEntry>,
    /// The number of files that will go with them.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The policy that allows it, complete.
    pub policy: Policy,
    /// The record that won, as a SUBJECT, or `estate`.
    pub policy_source: String,
    /// The digest of the plan that names all this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_digest: Option<String>,
}

/// A version that goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VersionEntry {
    /// Its number.
    pub version: u64,
    /// When it was made.
    pub made_at: DateTime<Utc>,
    /// When it was replaced, from which its age counts.
    pub replaced_at: DateTime<Utc>,
    /// Its rows.
    pub rows: u64,
    /// The bytes that only it and other going versions name.
    pub bytes: u64,
}

/// What happened to a dataset.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DatasetResult {
    /// When it was done.
    pub closed_at: DateTime<Utc>,
    /// The report's outcome kind.
    pub outcome: String,
    /// The versions that went.
    pub versions_removed: Vec<u64>,
    /// Files deleted.
    pub files_removed: u64,
    /// Their bytes.
    pub bytes_removed: u64,
    /// Deletes that failed, path and reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_deletes: Vec<String>,
    /// Commits made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commits: Vec<Commit>,
    /// Bytes written that no version names: a commit whose loss is not proven, or work cut short.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stranded_bytes: u64,
    /// Why it failed, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// When a run of this id began: UUIDv7 ids carry it.
fn began_at(run: &str) -> Option<DateTime<Utc>> {
    let (seconds, nanos) = Uuid::parse_str(run).ok()?.get_timestamp()?.to_unix();
    DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos)
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The outcome of an entry whose run died; [`DatasetResult::closed_at`] is then its last sign of life.
pub const DIED: &str = "died";

/// A commit that the run made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The step.
    pub step: CommitStep,
    /// The version it made.
    pub version: u64,
    /// When.
    pub at: DateTime<Utc>,
    /// It was compared with the version before it, and answers the same.
    #[serde(default)]
    pub verified: bool,
}

/// The step that a commit belongs to; the same words as the stamp's `squire.step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum CommitStep {
    /// Fragment ids reserved for a rewrite.
    Reserve,
    /// A rewrite.
    Compact,
    /// Index work.
    OptimizeIndices,
    /// An index built on request.
    Build,
    /// The empty commit that an `erase_within` deadline may need.
    Erase,
}

fields! { RunRecord => Runs, "run"; }

/// The live records of a collection, as a run keeps them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CollectionCount {
    /// How many, unreadable ones included.
    pub live: usize,
    /// The first eight hex digits of each readable one's hashed id, sorted. Counts alone would let a new record stand in
    /// for one that vanished.
    pub ids: Vec<String>,
}

/// The protections, blocks and trash records that a run saw.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LiveCounts {
    /// Protection records.
    pub protection: CollectionCount,
    /// Blocks.
    pub blocks: CollectionCount,
    /// Trash records.
    pub trash: CollectionCount,
}

/// What [`CollectionCount::ids`] holds of an id.
pub(crate) fn short(id: &str) -> String {
    let mut hash = key::hash(id);
    hash.truncate(8);
    hash
}

/// Records that are gone without a trace (`protections_vanished`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vanished {
    /// Where.
    pub collection: Collection,
    /// How many were live at the last run.
    pub before: usize,
    /// How many are live now.
    pub now: usize,
    /// How many of those before have neither a record nor a tombstone that says who removed them.
    pub vanished: usize,
}

/// Compares a snapshot with the last run's record: a protection, block or trash record that was live then and now has
/// neither a generation nor a tombstone is an error finding. A tombstone is never pruned to nothing, so this is certain.
pub fn protections_vanished(last: &RunRecord, snapshot: &Snapshot) -> Vec<Vanished> {
    let now = snapshot.live_counts();
    let parts = [
        (Collection::Protection, &last.live.protection, now.protection),
        (Collection::Blocks, &last.live.blocks, now.blocks),
        (Collection::Trash, &last.live.trash, now.trash),
    ];
    parts
        .into_iter()
        .filter_map(|(collection, before, now)| {
            let mut present: BTreeSet<String> = now.ids.into_iter().collect();
            present.extend(snapshot.removed(collection).iter().map(|meta| short(&meta.id)));
            let unread: Vec<&Unreadable> = snapshot.unreadable.iter().filter(|u| u.collection == collection).collect();
            present.extend(unread.iter().filter_map(|u| u.id.as_deref()).map(short));
            let missing = before.ids.iter().filter(|id| !present.contains(*id)).count();
            // One whose id cannot be told may be any of those that are missing.
            let nameless = unread.iter().filter(|u| u.id.is_none()).count();
            let vanished = missing.saturating_sub(nameless);
            (vanished > 0).then_some(Vanished { collection, before: before.live, now: now.live, vanished })
        })
        .collect()
}

impl Registry {
    /// Writes a run's record; before its first commit or delete.
    ///
    /// # Errors
    /// What the store answers: the run must not go on.
    pub async fn run_open(&self, record: RunRecord) -> Result<()> {
        let id = record.run.to_string();
        self.change::<RunRecord>(&id, None, |current| match current {
            None => Ok(Change::Put(record.clone())),
            Some(found) if found.fields == record => Ok(Change::Keep),
            Some(_) => Err(Error::Exists { what: format!("run {id}"), hint: "; a run's id is used once".into() }),
        })
        .await?;
        Ok(())
    }

    /// Closes a run, and removes the records of runs that are older than `record_history`.
    ///
    /// # Errors
    /// [`Error::Missing`] for a run that was never opened, or what the store answers. That old runs could not be removed is
    /// logged: the next run does it.
    pub async fn run_close(&self, run: Uuid, outcome: RunOutcome) -> Result<()> {
        let id = run.to_string();
        self.change::<RunRecord>(&id, None, |current| {
            let found = current
                .ok_or_else(|| Error::Missing { what: format!("run {id}"), hint: "; see `runs list`".into() })?;
            Ok(Change::Put(RunRecord { outcome: Some(outcome.clone()), ..found.fields.clone() }))
        })
        .await?;
        if let Err(e) = self.prune_runs(run).await {
            tracing::warn!(error = %e, "records of old runs were not removed");
        }
        Ok(())
    }

    /// All runs, newest first, and the run records that cannot be read.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn runs(&self) -> Result<(Vec<RunRecord>, Vec<Unreadable>)> {
        let listed = self.inner.records.list(Collection::Runs, None).await?;
        let (mut runs, mut unreadable) = (Vec::new(), Vec::new());
        for read in self.inner.records.read_tops::<RunRecord>(None, listed).await?.into_values() {
            match read {
                Read::Live(record) => runs.push(record.fields.clone()),
                Read::Unreadable(u) => unreadable.push(u),
                Read::Absent | Read::Tombstone(_) => {}
            }
        }
        runs.sort_by_key(|run: &RunRecord| std::cmp::Reverse((run.started_at, run.run)));
        Ok((runs, unreadable))
    }

    /// The run that was opened last; what [`protections_vanished`] compares with. Run ids are in the order of time, so
    /// this is one LIST and one GET.
    ///
    /// # Errors
    /// What the store answers, and [`Error::Unreadable`] when that record cannot be read.
    pub async fn last_run(&self) -> Result<Option<RunRecord>> {
        let listed = self.inner.records.list(Collection::Runs, None).await?;
        let Some((key, _)) = listed.last_key_value() else { return Ok(None) };
        let id = key::decode(key).unwrap_or_else(|| key.clone());
        Ok(self.load::<RunRecord>(&id).await?.map(|record| record.fields.clone()))
    }

    /// One run with the entries of its datasets, by URI and each attempt of its own, oldest first.
    ///
    /// # Errors
    /// [`Error::Missing`], or what the store answers.
    pub async fn run(&self, run: Uuid) -> Result<(RunRecord, Vec<DatasetEntry>, Vec<Unreadable>)> {
        let id = run.to_string();
        let record = self
            .load::<RunRecord>(&id)
            .await?
            .ok_or_else(|| Error::Missing { what: format!("run {id}"), hint: "; see `runs list`".into() })?;
        let listed = self.inner.records.list(Collection::RunEntries, Some(&id)).await?;
        let (mut entries, mut unreadable) = (Vec::new(), Vec::new());
        for read in self.inner.records.read_tops::<Attempts>(Some(&id), listed).await?.into_values() {
            match read {
                Read::Live(record) => entries.extend(record.fields.each()),
                Read::Unreadable(u) => unreadable.push(u),
                Read::Absent | Read::Tombstone(_) => {}
            }
        }
        entries.sort_by(|a: &DatasetEntry, b| (&a.uri, a.opened_at).cmp(&(&b.uri, b.opened_at)));
        Ok((record.fields.clone(), entries, unreadable))
    }

    /// What all runs did to one dataset, oldest first: the answer to "who deleted version 7?".
    ///
    /// # Errors
    /// What the store answers.
    pub async fn dataset_history(&self, uri: &str) -> Result<(Vec<DatasetEntry>, Vec<Unreadable>)> {
        self.dataset_history_since(uri, DateTime::UNIX_EPOCH).await
    }

    /// As [`Registry::dataset_history`], of runs that began at `since` or later.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn dataset_history_since(
        &self,
        uri: &str,
        since: DateTime<Utc>,
    ) -> Result<(Vec<DatasetEntry>, Vec<Unreadable>)> {
        self.dataset_history_between(uri, since, DateTime::<Utc>::MAX_UTC).await
    }

    /// As [`Registry::dataset_history`], of runs that began at `since` or later, and not after `until`.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn dataset_history_between(
        &self,
        uri: &str,
        since: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> Result<(Vec<DatasetEntry>, Vec<Unreadable>)> {
        let runs = self.inner.records.list(Collection::Runs, None).await?;
        let reads: Vec<Result<Read<Attempts>>> = futures::stream::iter(runs.into_keys())
            .filter(|run| std::future::ready(began_at(run).is_none_or(|at| at >= since && at <= until)))
            .map(|run| async move {
                let place = Place { collection: Collection::RunEntries, partition: Some(&run), id: uri };
                self.inner.records.read::<Attempts>(place).await
            })
            .buffer_unordered(32)
            .collect()
            .await;
        let (mut entries, mut unreadable) = (Vec::new(), Vec::new());
        for read in reads {
            match read? {
                Read::Live(record) => entries.extend(record.fields.each()),
                Read::Unreadable(u) => unreadable.push(u),
                Read::Absent | Read::Tombstone(_) => {}
            }
        }
        entries.sort_by_key(|entry: &DatasetEntry| (entry.opened_at, entry.run));
        Ok((entries, unreadable))
    }
}
