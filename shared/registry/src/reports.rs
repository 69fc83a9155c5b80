//! `reports`: what reconcile runs found, as opaque objects beside the records.
//!
//! A report is put once under its run's id, and never replaced; ids are in the order of time. Only the newest are kept.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::registry::Registry;
use crate::storage::PutOutcome;

/// A report that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredReport {
    /// The run that made it.
    pub run: Uuid,
    /// When it was put, by the store's clock.
    pub modified: DateTime<Utc>,
    /// Its size.
    pub bytes: u64,
}

impl Registry {
    /// Puts a run's report. `false` when one of this run is there already; it stays.
    ///
    /// # Errors
    /// [`Error::InDoubt`] when it cannot be told whether it was put, or what the store answers.
    pub async fn report_put(&self, run: Uuid, report: Bytes) -> Result<bool> {
        let path = self.report_path(run)?;
        match self.root().create(&path, report.clone()).await {
            PutOutcome::Created => Ok(true),
            // The answer may be lost and the report be ours: then it is put.
            PutOutcome::Refused | PutOutcome::Unknown(_) => match self.root().get(&path).await? {
                Some(found) => Ok(found == report),
                None => Err(Error::InDoubt { doing: format!("putting {path}") }),
            },
        }
    }

    /// The bytes of a run's report; `None` when it is not there.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn report_get(&self, run: Uuid) -> Result<Option<Bytes>> {
        self.root().get(&self.report_path(run)?).await
    }

    /// The reports that are there, newest first. One LIST.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn reports(&self) -> Result<Vec<StoredReport>> {
        let found = self.root().list(&self.root().path(&["v1", "reports"])?).await?;
        let report = |meta: object_store::ObjectMeta| {
            let run = Uuid::parse_str(meta.location.filename()?.strip_suffix(".json")?).ok()?;
            Some(StoredReport { run, modified: meta.last_modified, bytes: meta.size })
        };
        let mut out: Vec<StoredReport> = found.into_iter().filter_map(report).collect();
        out.sort_by_key(|r| std::cmp::Reverse(r.run));
        Ok(out)
    }

    /// Deletes all reports but the `keep` newest; how many went.
    ///
    /// # Errors
    /// What the store answers; some may have gone.
    pub async fn reports_prune(&self, keep: usize) -> Result<usize> {
        let surplus: Vec<StoredReport> = self.reports().await?.into_iter().skip(keep).collect();
        for report in &surplus {
            self.root().delete(&self.report_path(report.run)?).await?;
        }
        Ok(surplus.len())
    }

    fn report_path(&self, run: Uuid) -> Result<object_store::path::Path> {
        self.root().path(&["v1", "reports", &format!("{run}.json")])
    }
}
