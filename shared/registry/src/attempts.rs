//! What a run does to one dataset, attempt by attempt.
//!
//! A message that is delivered again brings its run to another worker, and the first may only sleep. Each of them writes and
//! closes what is its own, so that neither hides what the other did.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::generation::{Change, Place, Read};
use crate::record::{Collection, fields};
use crate::registry::Registry;
use crate::runs::{Commit, DIED, DatasetEntry, DatasetResult};

/// All attempts of a run at one dataset: the newest as the record's own fields, earlier ones beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Attempts {
    #[serde(flatten)]
    newest: DatasetEntry,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<DatasetEntry>,
}

fields! { Attempts => RunEntries, "run_entry"; }

impl Attempts {
    /// One entry each, oldest first.
    pub(crate) fn each(&self) -> impl Iterator<Item = DatasetEntry> + '_ {
        self.earlier.iter().chain([&self.newest]).cloned()
    }

    fn each_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut DatasetEntry> {
        self.earlier.iter_mut().chain([&mut self.newest])
    }
}

impl Registry {
    /// Writes what an attempt of a run is about to do to a dataset; before it does. Earlier attempts stay as they are.
    ///
    /// # Errors
    /// What the store answers: the dataset must not be touched.
    pub async fn run_dataset_opened(&self, run: Uuid, entry: DatasetEntry) -> Result<()> {
        let uri = entry.uri.clone();
        self.attempts(run, &uri, |current| {
            let Some(mut found) = current else {
                return Ok(Change::Put(Attempts { newest: entry.clone(), earlier: Vec::new() }));
            };
            if found.newest == entry {
                return Ok(Change::Keep);
            }
            let before = std::mem::replace(&mut found.newest, entry.clone());
            if before.attempt != entry.attempt {
                found.earlier.push(before);
            }
            Ok(Change::Put(found))
        })
        .await
    }

    /// Closes an attempt's entry with what happened.
    ///
    /// # Errors
    /// [`Error::Missing`] for an attempt that was never opened, or what the store answers.
    pub async fn run_dataset_closed(&self, run: Uuid, uri: &str, attempt: Uuid, result: DatasetResult) -> Result<()> {
        self.attempts(run, uri, |current| {
            let mut found = current.ok_or_else(|| missing(run, uri))?;
            let entry = found.each_mut().find(|e| e.attempt == attempt).ok_or_else(|| missing(run, uri))?;
            entry.result = Some(result.clone());
            Ok(Change::Put(found))
        })
        .await
    }

    /// Closes what a dead run left open: whoever takes its claim over writes down until when it may have been alive. What was
    /// never opened, or is closed already, is left alone; one that only slept still closes its own.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn run_dataset_died(&self, run: Uuid, uri: &str, last_sign: DateTime<Utc>) -> Result<()> {
        self.attempts(run, uri, |current| {
            let Some(mut found) = current else { return Ok(Change::Keep) };
            let mut changed = false;
            for entry in found.each_mut().filter(|e| e.result.is_none()) {
                entry.result = Some(died(last_sign));
                changed = true;
            }
            Ok(if changed { Change::Put(found) } else { Change::Keep })
        })
        .await
    }

    /// Adds a commit that was found by its stamp to the attempt that had begun last before it: its run died before it could
    /// say so, or never heard that it had landed. Without such an attempt nothing is written.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn run_dataset_found(&self, run: Uuid, uri: &str, commit: Commit) -> Result<()> {
        self.attempts(run, uri, |current| {
            let Some(mut found) = current else { return Ok(Change::Keep) };
            let at = |e: &DatasetEntry| e.result.iter().any(|r| r.commits.iter().any(|c| c.version == commit.version));
            let known = found.each().any(|e| at(&e));
            let entry = found.each_mut().rev().find(|e| if known { at(e) } else { e.opened_at <= commit.at });
            let Some(entry) = entry else { return Ok(Change::Keep) };
            let result = entry.result.get_or_insert_with(|| died(commit.at));
            match result.commits.iter_mut().find(|c| c.version == commit.version) {
                Some(same) if same.verified == commit.verified => return Ok(Change::Keep),
                Some(same) => same.verified = commit.verified,
                None => result.commits.push(commit.clone()),
            }
            Ok(Change::Put(found))
        })
        .await
    }

    /// The attempts of a run at one dataset, oldest first. One LIST and one GET.
    ///
    /// # Errors
    /// What the store answers, and [`Error::Unreadable`].
    pub async fn run_dataset(&self, run: Uuid, uri: &str) -> Result<Vec<DatasetEntry>> {
        let partition = run.to_string();
        let place = Place { collection: Collection::RunEntries, partition: Some(&partition), id: uri };
        let read: Read<Attempts> = self.inner.records.read(place).await?;
        let found = read.strict(&place.what())?;
        Ok(found.map(|r| r.fields.each().collect()).unwrap_or_default())
    }

    async fn attempts(
        &self,
        run: Uuid,
        uri: &str,
        change: impl Fn(Option<Attempts>) -> Result<Change<Attempts>>,
    ) -> Result<()> {
        let partition = run.to_string();
        let place = Place { collection: Collection::RunEntries, partition: Some(&partition), id: uri };
        let records = &self.inner.records;
        records.update::<Attempts>(place, self.actor(), None, |c| change(c.map(|c| c.fields.clone()))).await?;
        Ok(())
    }
}

fn died(last_sign: DateTime<Utc>) -> DatasetResult {
    DatasetResult { closed_at: last_sign, outcome: DIED.into(), ..DatasetResult::default() }
}

fn missing(run: Uuid, uri: &str) -> Error {
    Error::Missing {
        what: format!("the entry of {uri} in run {run}"),
        hint: "; it is opened before anything is done".into(),
    }
}
