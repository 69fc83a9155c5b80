//! Run records go after `record_history`.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::error::Result;
use crate::generation::Place;
use crate::record::Collection;
use crate::registry::Registry;
use crate::runs::RunRecord;

/// Runs removed at most by one call: a backlog goes over several runs, and nobody waits for it.
const AT_ONCE: usize = 50;

impl Registry {
    /// Removes the records of runs older than `record_history`, with the entries of their datasets; at most fifty, the
    /// oldest first. Returns how many went. `newest` is a run that was just written: its time by the store's clock is what
    /// age is counted from, so that a wrong clock here ends no audit trail.
    ///
    /// # Errors
    /// What the store answers; the rest goes another time.
    pub async fn prune_runs(&self, newest: Uuid) -> Result<usize> {
        let records = &self.inner.records;
        let id = newest.to_string();
        let Some(now) = records.generations(Place::of::<RunRecord>(&id)).await?.last().map(|g| g.modified) else {
            return Ok(0);
        };
        let expired = |at: DateTime<Utc>| now - at > records.kept_for();
        // Run ids are in the order of time: by name the oldest come first, and the first young one ends the look.
        let listed = records.list_oldest_runs(expired).await?;
        let mut gone = 0;
        for run in listed.into_keys().take(AT_ONCE) {
            // All of it: a run that was closed late counts from then.
            let generations = records.generations(Place::of::<RunRecord>(&run)).await?;
            if run == id || generations.iter().any(|g| !expired(g.modified)) {
                continue;
            }
            // The run's own record last: cut off before it, the run is found again.
            for generation in records.list(Collection::RunEntries, Some(&run)).await?.into_values().flatten() {
                self.root().delete(&generation.path).await?;
            }
            for generation in generations {
                self.root().delete(&generation.path).await?;
            }
            gone += 1;
        }
        Ok(gone)
    }
}
