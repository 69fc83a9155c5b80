//! What is remembered of a dataset between passes, in the registry's `state` shards. Written only on change.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

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
    /// The last failure that must not be repeated before HEAD moves.
    pub failure: Option<Failure>,
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

impl DatasetState {
    /// Whether a failure of this kind at this HEAD forbids another try: `bug` and `permanent` are not tried again before HEAD
    /// changes (design, "Containment").
    pub fn gives_up_on(&self, version: u64) -> Option<&Failure> {
        self.failure.as_ref().filter(|f| f.version == version && (f.kind == "bug" || f.kind == "permanent"))
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
