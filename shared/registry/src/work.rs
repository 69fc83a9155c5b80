//! `work`: what the slices of a large compaction hand to one another, as opaque objects beside the records.
//!
//! Unlike records these have no generations: an object under `work/<run>/<part>/<attempt>` is put once, never replaced and
//! never deleted by those who work with it; [`Registry::work_prune`] removes it long after. A part is the plan or one slice of one dataset's compaction; its name begins with
//! the hash of the dataset's canonical URI, since a run may be about several datasets.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::key;
use crate::registry::Registry;
use crate::runs::RunRecord;
use crate::storage::PutOutcome;

/// A part of one dataset's compaction in slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkPart {
    /// The plan that was cut into slices.
    Plan,
    /// One slice, by its number.
    Slice(u32),
}

/// One object that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkObject {
    /// Its part.
    pub part: WorkPart,
    /// Its attempt's name.
    pub attempt: String,
    /// When it was put, by the store's clock.
    pub modified: DateTime<Utc>,
}

impl WorkPart {
    fn name(self, uri: &str) -> String {
        match self {
            Self::Plan => format!("{}-plan", key::hash(uri)),
            Self::Slice(n) => format!("{}-{n}", key::hash(uri)),
        }
    }

    fn parse(name: &str, uri: &str) -> Option<Self> {
        match name.strip_prefix(&key::hash(uri))?.strip_prefix('-')? {
            "plan" => Some(Self::Plan),
            n => n.parse().ok().map(Self::Slice),
        }
    }
}

impl Registry {
    /// Puts an object if nothing is there. `true` when these very bytes are there afterwards, whoever put them (an answer that
    /// was lost is looked after); `false` when others are, which stay.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an attempt outside `[a-z0-9-]`, [`Error::InDoubt`] when it cannot be told whether the object was
    /// put, or what the store answers.
    pub async fn work_put(&self, run: Uuid, uri: &str, part: WorkPart, attempt: &str, bytes: Bytes) -> Result<bool> {
        let path = self.work_path(run, uri, part, attempt)?;
        match self.root().create(&path, bytes.clone()).await {
            PutOutcome::Created => Ok(true),
            PutOutcome::Refused | PutOutcome::Unknown(_) => match self.root().get(&path).await? {
                Some(found) => Ok(found == bytes),
                None => Err(Error::InDoubt { doing: format!("putting {path}") }),
            },
        }
    }

    /// The bytes of an object; `None` when it is not there.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an attempt outside `[a-z0-9-]`, or what the store answers.
    pub async fn work_get(&self, run: Uuid, uri: &str, part: WorkPart, attempt: &str) -> Result<Option<Bytes>> {
        self.root().get(&self.work_path(run, uri, part, attempt)?).await
    }

    /// The objects of one dataset's compaction in a run, by part and attempt. One LIST.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn work_list(&self, run: Uuid, uri: &str) -> Result<Vec<WorkObject>> {
        let below = self.root().path(&["v1", "work", &run.to_string()])?;
        let mut out: Vec<WorkObject> = self
            .root()
            .list(&below)
            .await?
            .into_iter()
            .filter_map(|meta| {
                let mut names = meta.location.as_ref().rsplit('/');
                let (attempt, part) = (names.next()?, names.next()?);
                let part = WorkPart::parse(part, uri)?;
                Some(WorkObject { part, attempt: attempt.to_owned(), modified: meta.last_modified })
            })
            .collect();
        out.sort_by(|a, b| (a.part, &a.attempt).cmp(&(b.part, &b.attempt)));
        Ok(out)
    }

    /// Deletes the objects of runs that nobody can need any more: the newest of them is older than `age`, which is to be far
    /// beyond the time after which a compaction in slices is given up, and the run's record is closed, or was never made. What
    /// cannot be told stays. Returns how many went.
    ///
    /// # Errors
    /// What the store answers; what is gone by then is gone.
    pub async fn work_prune(&self, age: Duration, now: DateTime<Utc>) -> Result<usize> {
        let below = self.root().path(&["v1", "work"])?;
        let mut runs: BTreeMap<Uuid, (DateTime<Utc>, Vec<object_store::path::Path>)> = BTreeMap::new();
        for meta in self.root().list(&below).await? {
            let mut names = meta.location.as_ref().rsplit('/').skip(2);
            let Some(run) = names.next().and_then(|n| Uuid::parse_str(n).ok()) else { continue };
            let (newest, paths) = runs.entry(run).or_insert((meta.last_modified, Vec::new()));
            *newest = (*newest).max(meta.last_modified);
            paths.push(meta.location);
        }
        let old = |at: DateTime<Utc>| (now - at).to_std().is_ok_and(|passed| passed > age);
        let mut gone = 0;
        for (run, (newest, paths)) in runs {
            if !old(newest)
                || self.load::<RunRecord>(&run.to_string()).await?.is_some_and(|r| r.fields.outcome.is_none())
            {
                continue;
            }
            // The results last: what is left of a prune that ended half-way is no plan that somebody could take up.
            let (results, rest): (Vec<_>, Vec<_>) = paths.into_iter().partition(|p| p.as_ref().ends_with("/result"));
            for path in rest.into_iter().chain(results) {
                self.root().delete(&path).await?;
                gone += 1;
            }
        }
        Ok(gone)
    }

    fn work_path(&self, run: Uuid, uri: &str, part: WorkPart, attempt: &str) -> Result<object_store::path::Path> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if attempt.is_empty() || !attempt.bytes().all(plain) {
            return Err(Error::Invalid(format!("`{attempt}` is no name of an attempt; use a-z, 0-9 and `-`")));
        }
        self.root().path(&["v1", "work", &run.to_string(), &part.name(uri), attempt])
    }
}
