//! Index builds that were asked for: one record per job, from the request to its end, pruned.
//!
//! A job's record tells people what became of a request. What is done is decided on the bus and by the table itself, never by
//! this record; only the wish to cancel is read from it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::generation::{Change, Place, Read};
use crate::record::{Collection, Unreadable, fields};
use crate::registry::Registry;

/// Where a job stands.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::EnumIter,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum JobState {
    /// It waits for a worker, or for the table's holder.
    Queued,
    /// A worker builds.
    Running,
    /// The index was built.
    Built,
    /// The index stood there already, or an earlier attempt of this job had built it.
    Present,
    /// The index is defined, and there are too few rows to train it.
    Untrained,
    /// A rule forbids it; the reason says what would be accepted.
    Refused,
    /// It could not be built.
    Failed,
    /// Somebody took it back.
    Cancelled,
    /// It was given up: see the dead letters.
    Dead,
}

impl JobState {
    /// Whether nothing more happens to it.
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

/// One job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its id, as `jobs show` takes it.
    pub job: String,
    /// The run that its commits, events and audit entries carry.
    pub run: Uuid,
    /// The table's SUBJECT.
    pub table: String,
    /// What was asked for, as the message has it.
    pub request: Value,
    /// The key of the index (table, columns, type, name): at most one message of it is queued.
    pub key: String,
    /// Where it stands.
    pub state: JobState,
    /// When it was asked for.
    pub queued_at: DateTime<Utc>,
    /// When a worker first began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<DateTime<Utc>>,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<DateTime<Utc>>,
    /// Who builds, `host/process`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// How many workers took it.
    #[serde(default)]
    pub attempts: u64,
    /// The stage, as the library names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// How much of the stage is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// Directories that an attempt of it writes, relative to the dataset: what a worker that was killed leaves behind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<String>,
    /// What came of it: name, type, version, rows, parameters.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub result: Value,
    /// Why it was refused or failed, by its stable name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The same for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Somebody wants it taken back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel: bool,
}

fields! { Job => Jobs, "job"; }

impl Registry {
    /// Writes a job down unless it is there already; the record as it then is.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn job_open(&self, job: Job) -> Result<Job> {
        let id = job.job.clone();
        let record = self
            .change::<Job>(&id, None, |current| {
                Ok(if current.is_some() { Change::Keep } else { Change::Put(job.clone()) })
            })
            .await?;
        record.map(|r| r.fields.clone()).ok_or_else(|| Error::InDoubt { doing: format!("opening job {id}") })
    }

    /// Changes a job; the record as it then is. A job that is over is not opened again by this: the change is not asked.
    ///
    /// # Errors
    /// [`Error::Missing`], or what the store answers.
    pub async fn job_change(&self, id: &str, change: impl Fn(&mut Job) + Send) -> Result<Job> {
        let record = self
            .change::<Job>(id, None, |current| {
                let current = current.ok_or_else(|| missing(id))?;
                if current.fields.state.is_over() {
                    return Ok(Change::Keep);
                }
                let mut next = current.fields.clone();
                change(&mut next);
                Ok(if next == current.fields { Change::Keep } else { Change::Put(next) })
            })
            .await?;
        record.map(|r| r.fields.clone()).ok_or_else(|| missing(id))
    }

    /// Opens a job again whose message was put back into the queue.
    ///
    /// # Errors
    /// [`Error::Missing`], or what the store answers.
    pub async fn job_requeue(&self, id: &str) -> Result<()> {
        self.change::<Job>(id, None, |current| {
            let current = current.ok_or_else(|| missing(id))?;
            let next = Job {
                state: JobState::Queued,
                finished_at: None,
                why: None,
                error: None,
                cancel: false,
                ..current.fields.clone()
            };
            Ok(Change::Put(next))
        })
        .await?;
        Ok(())
    }

    /// One job.
    ///
    /// # Errors
    /// [`Error::Missing`], or what the store answers.
    pub async fn job(&self, id: &str) -> Result<Job> {
        self.load::<Job>(id).await?.map(|r| r.fields.clone()).ok_or_else(|| missing(id))
    }

    /// All jobs, newest first, and those that cannot be read.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn jobs(&self) -> Result<(Vec<Job>, Vec<Unreadable>)> {
        let listed = self.inner.records.list(Collection::Jobs, None).await?;
        let (mut jobs, mut unreadable) = (Vec::new(), Vec::new());
        for read in self.inner.records.read_tops::<Job>(None, listed).await?.into_values() {
            match read {
                Read::Live(record) => jobs.push(record.fields.clone()),
                Read::Unreadable(u) => unreadable.push(u),
                Read::Absent | Read::Tombstone(_) => {}
            }
        }
        jobs.sort_by(|a: &Job, b| (b.queued_at, &b.job).cmp(&(a.queued_at, &a.job)));
        Ok((jobs, unreadable))
    }

    /// Asks for a job to be taken back. Whoever works on it, or takes it next, ends it. The record as it then is.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Refused`] for a job that is over, or what the store answers.
    pub async fn job_cancel(&self, id: &str) -> Result<Job> {
        let job = self.job_change(id, |job| job.cancel = true).await?;
        if job.state.is_over() {
            return Err(Error::Refused(format!("job {id} is over ({}); there is nothing to take back", job.state)));
        }
        Ok(job)
    }

    /// Forgets jobs that were over before `before`, and of the others that are over all but the newest `keep`. Returns how many.
    /// Nobody writes to such a record any more, so all of its generations go, the newest last.
    ///
    /// # Errors
    /// What the store answers; what was forgotten before stays so.
    pub async fn jobs_prune(&self, before: DateTime<Utc>, keep: usize) -> Result<usize> {
        let (jobs, _) = self.jobs().await?;
        let over = jobs.iter().filter(|j| j.state.is_over());
        let old = |job: &Job| job.finished_at.unwrap_or(job.queued_at) < before;
        let going: Vec<String> =
            over.enumerate().filter(|(i, job)| *i >= keep || old(job)).map(|(_, job)| job.job.clone()).collect();
        for id in &going {
            for generation in self.inner.records.generations(Place::of::<Job>(id)).await? {
                self.root().delete(&generation.path).await?;
            }
        }
        Ok(going.len())
    }
}

fn missing(id: &str) -> Error {
    Error::Missing { what: format!("job {id}"), hint: "; see `squire-index-build jobs list`".into() }
}
