//! The steps of a pass, as the report tells them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use super::enums::{HoldReason, IndexAction, StepOutcome, names};
use super::reasons::StepReason;

/// The steps of a pass; null where a step was not considered (a skipped dataset).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Steps {
    /// Merging fragments.
    pub compact: Option<CompactStep>,
    /// Folding and merging indices.
    pub optimize_indices: Option<IndexStep>,
    /// Comparing answers.
    pub verify: Option<VerifyStep>,
    /// Removing versions.
    pub cleanup: Option<CleanupStep>,
}

impl Steps {
    /// Outcome and reason of each step that was considered, in order.
    pub fn iter(&self) -> impl Iterator<Item = (StepOutcome, Option<StepReason>)> + '_ {
        let compact = self.compact.as_ref().map(|s| (s.outcome, s.reason));
        let indices = self.optimize_indices.as_ref().map(|s| (s.outcome, s.reason));
        let verify = self.verify.as_ref().map(|s| (s.outcome, s.reason));
        let cleanup = self.cleanup.as_ref().map(|s| (s.outcome, s.reason));
        [compact, indices, verify, cleanup].into_iter().flatten()
    }
}

/// Compaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompactStep {
    /// How it ended.
    pub outcome: StepOutcome,
    /// Why.
    pub reason: Option<StepReason>,
    /// How long it took, in seconds.
    pub duration_seconds: f64,
    /// Fragments that were replaced.
    pub fragments_removed: u64,
    /// Fragments that replaced them.
    pub fragments_added: u64,
    /// Bytes of the data files that were replaced, which is what history holds from then on; in a plan, that would be.
    pub rewritten_bytes: u64,
    /// Tasks.
    pub tasks: u64,
    /// One sentence, such as when a refused step fits again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Index work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexStep {
    /// How it ended.
    pub outcome: StepOutcome,
    /// Why.
    pub reason: Option<StepReason>,
    /// How long it took, in seconds.
    pub duration_seconds: f64,
    /// Each index.
    pub indices: Vec<IndexWork>,
    /// One sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What was done to one index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexWork {
    /// Its name.
    pub name: String,
    /// What was done.
    pub action: IndexAction,
    /// Rows that came in.
    pub rows_folded: u64,
    /// Segments before.
    pub segments_before: u64,
    /// Segments after.
    pub segments_after: u64,
}

/// Verification.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerifyStep {
    /// How it ended.
    pub outcome: StepOutcome,
    /// Why.
    pub reason: Option<StepReason>,
    /// What was compared.
    pub checks: VerifyChecks,
    /// One sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What was compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VerifyChecks {
    /// Rows counted.
    pub rows: u64,
    /// Rows compared value by value.
    pub sampled_rows: u64,
    /// Indices compared.
    pub indices: Vec<IndexCheck>,
}

names! {
    /// How an index is compared.
    CheckKind {
        /// The same rows as a scan finds.
        Exact,
        /// Recall against a scan.
        Recall,
    }
}

/// The comparison of one index. In JSON the kind is itself the key:
/// `{"name", "exact": true, "before", …}` for exact indices and `"recall": true` for vectors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexCheck {
    /// Its name.
    pub name: String,
    /// `true` for an exact index.
    #[serde(default, skip_serializing_if = "is_false")]
    pub exact: bool,
    /// `true` for an index judged by recall.
    #[serde(default, skip_serializing_if = "is_false")]
    pub recall: bool,
    /// Share of right answers before, 0 to 1.
    pub before: f64,
    /// Share of right answers after, 0 to 1.
    pub after: f64,
    /// Time per lookup before, in seconds.
    pub seconds_before: f64,
    /// Time per lookup after, in seconds.
    pub seconds_after: f64,
}

fn is_false(b: &bool) -> bool {
    !*b
}

impl IndexCheck {
    /// A comparison of `kind` without timings.
    pub fn new(name: impl Into<String>, kind: CheckKind, before: f64, after: f64) -> Self {
        Self {
            name: name.into(),
            exact: kind == CheckKind::Exact,
            recall: kind == CheckKind::Recall,
            before,
            after,
            seconds_before: 0.0,
            seconds_after: 0.0,
        }
    }
}

/// Cleanup of versions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CleanupStep {
    /// How it ended.
    pub outcome: StepOutcome,
    /// Why.
    pub reason: Option<StepReason>,
    /// Versions removed; planned: that would be.
    pub versions_removed: u64,
    /// Bytes freed; planned: that would be.
    pub reclaimed_bytes: u64,
    /// Files removed; planned: that would be.
    pub files_removed: u64,
    /// Deletes that failed and are tried again next time.
    pub failed_deletes: u64,
    /// Versions that stay, and what keeps them.
    pub retained: Vec<Retained>,
    /// One sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A version that stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retained {
    /// The version.
    pub version: u64,
    /// When it was replaced; null for the current one.
    pub replaced_at: Option<DateTime<Utc>>,
    /// What keeps it.
    pub by: HoldReason,
    /// Until when, where there is an end.
    pub until: Option<DateTime<Utc>>,
    /// Bytes that only it keeps.
    pub bytes: u64,
}

impl CompactStep {
    /// A step with all numbers at zero.
    pub fn new(outcome: StepOutcome, reason: Option<StepReason>) -> Self {
        Self {
            outcome,
            reason,
            duration_seconds: 0.0,
            fragments_removed: 0,
            fragments_added: 0,
            rewritten_bytes: 0,
            tasks: 0,
            detail: None,
        }
    }
}

impl IndexStep {
    /// A step without indices.
    pub fn new(outcome: StepOutcome, reason: Option<StepReason>) -> Self {
        Self { outcome, reason, duration_seconds: 0.0, indices: Vec::new(), detail: None }
    }
}

impl VerifyStep {
    /// A step without checks.
    pub fn new(outcome: StepOutcome, reason: Option<StepReason>) -> Self {
        Self { outcome, reason, checks: VerifyChecks::default(), detail: None }
    }
}

impl CleanupStep {
    /// A step with all numbers at zero.
    pub fn new(outcome: StepOutcome, reason: Option<StepReason>) -> Self {
        Self {
            outcome,
            reason,
            versions_removed: 0,
            reclaimed_bytes: 0,
            files_removed: 0,
            failed_deletes: 0,
            retained: Vec::new(),
            detail: None,
        }
    }
}
