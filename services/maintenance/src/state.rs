//! What is remembered of a dataset between passes, in the registry's `state` shards. Written only on change.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// So many lasting failures of one kind in a row file a `repeated_failure` block.
const REPEATED: u32 = 3;
/// A dataset so blocked is tried again after this time, and the block lasts as long.
pub const RETRY: chrono::Duration = chrono::Duration::days(1);

/// One dataset's state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatasetState {
    /// When material work was last done.
    pub last_pass_at: Option<DateTime<Utc>>,
    /// HEAD after it.
    pub version: Option<u64>,
    /// Bytes rewritten, with their times, within the last retention.
    pub rewritten: Vec<(DateTime<Utc>, u64)>,
    /// Commits of ours that could not be verified: nothing is cleaned up before they are.
    pub unverified: Vec<Unverified>,
    /// The newest version of ours of which it is known whether it was verified: in the audit, or as open above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accounted: Option<u64>,
    /// Somebody else's long work that keeps the pass waiting.
    pub waiting_for: Option<WaitingFor>,
    /// A compaction that is in work in slices: until it is committed or given up the dataset is left to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distributed: Option<Distributed>,
    /// What is known of deletions whose versions have gone (`erase_within`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watched: Option<squire_lake::erasure::Watched>,
    /// The last failure that must not be repeated before HEAD moves.
    pub failure: Option<Failure>,
}

/// A commit of ours whose verification came to no end: an I/O error or a panic, and no mismatch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unverified {
    /// The version before it, which may be the only one that answers right.
    pub before: u64,
    /// Its version.
    pub after: u64,
    /// Old and new fragment ids of each rewritten group.
    pub groups: Vec<(Vec<u64>, Vec<u64>)>,
    /// The indices that it touched.
    pub indices: Vec<String>,
}

/// Somebody else's long work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitingFor {
    /// A file that stayed unnamed.
    pub path: String,
    /// Since when this has kept passes waiting.
    pub since: DateTime<Utc>,
    /// When a pass last waited.
    pub seen: DateTime<Utc>,
}

impl WaitingFor {
    /// Whether this is still the same wait at `now`: files age out of `window`, so a wait that nobody renewed for twice as long
    /// (and an hour) is over, and another writer's work begins a wait of its own.
    pub fn goes_on(&self, window: std::time::Duration, now: DateTime<Utc>) -> bool {
        let window = chrono::Duration::from_std(window).unwrap_or(chrono::Duration::MAX);
        let over = window.checked_mul(2).unwrap_or(chrono::Duration::MAX).max(chrono::Duration::hours(1));
        now.signed_duration_since(self.seen) <= over
    }
}

/// A compaction in slices, whose plan lies under its run in the registry's `work`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distributed {
    /// The run of the compaction, which is its own: its stamp and its objects are nobody else's.
    pub run: uuid::Uuid,
    /// The run whose pass handed it out.
    pub asked_by: uuid::Uuid,
    /// When.
    pub at: DateTime<Utc>,
    /// The version that it reads.
    pub read_version: u64,
    /// How many slices there are, numbered from 0.
    pub slices: u32,
}

/// A failure at a HEAD.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// HEAD when it failed.
    pub version: u64,
    /// FACES' failure kind.
    pub kind: String,
    /// How often in a row, over all HEADs.
    pub count: u32,
    /// When last.
    pub at: DateTime<Utc>,
}

impl Failure {
    fn is_lasting(&self) -> bool {
        self.kind == "bug" || self.kind == "permanent"
    }
}

impl DatasetState {
    /// Whether a failure at this HEAD forbids another try: `bug` and `permanent` are not tried again before HEAD changes, but
    /// for once a day after [`REPEATED`] of them (design, "Containment").
    pub fn gives_up_on(&self, version: u64, now: DateTime<Utc>) -> Option<&Failure> {
        let retry = |f: &Failure| f.count >= REPEATED && now.signed_duration_since(f.at) >= RETRY;
        self.failure.as_ref().filter(|f| f.version == version && f.is_lasting() && !retry(f))
    }

    /// Whether no pass has left anything open: no failure, wait, unverified commit or slices.
    pub fn is_calm(&self) -> bool {
        let waits = self.waiting_for.is_some() || self.distributed.is_some();
        self.failure.is_none() && self.unverified.is_empty() && !waits
    }

    /// Whether the same lasting failure came so often that a block is due.
    pub fn fails_repeatedly(&self) -> Option<&Failure> {
        self.failure.as_ref().filter(|f| f.is_lasting() && f.count >= REPEATED)
    }

    /// Records a failure.
    pub fn failed(&mut self, version: u64, kind: &str, now: DateTime<Utc>) {
        let count = match &self.failure {
            Some(f) if f.kind == kind => f.count + 1,
            _ => 1,
        };
        self.failure = Some(Failure { version, kind: kind.into(), count, at: now });
    }

    /// Records work done: rewritten bytes older than `retention` are forgotten.
    pub fn worked(&mut self, version: u64, rewritten: u64, retention: std::time::Duration, now: DateTime<Utc>) {
        self.failure = None;
        self.last_pass_at = Some(now);
        self.version = Some(version);
        let keep = chrono::Duration::from_std(retention).unwrap_or(chrono::Duration::MAX);
        self.rewritten.retain(|(at, _)| now.signed_duration_since(*at) < keep);
        if rewritten > 0 {
            self.rewritten.push((now, rewritten));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + chrono::Duration::hours(hours)
    }

    #[test]
    fn a_wait_that_nobody_renewed_is_over() {
        let wait = WaitingFor { path: "data/a.lance".into(), since: at(0), seen: at(10) };
        let hour = std::time::Duration::from_secs(3600);
        assert!(wait.goes_on(hour, at(11)));
        assert!(wait.goes_on(hour, at(12)));
        assert!(wait.goes_on(std::time::Duration::MAX, at(13)), "a window without end is no overflow");
        assert!(!wait.goes_on(hour, at(13)), "another writer's work must not inherit the patience of an old one");
    }

    #[test]
    fn lasting_failures_are_given_up_until_head_moves_or_a_day_has_passed() {
        let mut state = DatasetState::default();
        state.failed(7, "bug", at(0));
        assert!(state.gives_up_on(7, at(1)).is_some() && state.gives_up_on(8, at(1)).is_none());
        assert!(state.gives_up_on(7, at(100)).is_some(), "twice the same is not repeated yet");
        state.failed(8, "bug", at(1));
        state.failed(9, "bug", at(2));
        assert_eq!(state.fails_repeatedly().map(|f| f.count), Some(3));
        assert!(state.gives_up_on(9, at(3)).is_some() && state.gives_up_on(9, at(26)).is_none());
        state.failed(9, "transient", at(30));
        assert!(state.gives_up_on(9, at(30)).is_none() && state.fails_repeatedly().is_none());
    }
}
