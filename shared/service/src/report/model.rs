//! The report's shape. Optional values are `null` where they are unknown, so that every object
//! always has the same fields.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use uuid::Uuid;

use super::enums::{
    Authority, FailureKind, IndexState, Layout, OutcomeKind, PolicySourceKind, ReportKind, Severity, SkipReason,
    StepOutcome, StoredClass, TargetSource, TierSource,
};
use super::erasure::Erasure;
use super::finding::Finding;
use super::steps::Steps;
use super::stored::{StoredBytes, cost_per_month};
use super::totals::{Requests, Totals};
use crate::cli::Exit;
use crate::config::{Mode, Prices};

/// Value of a report's `schema`.
pub const SCHEMA: &str = "squire.report.v1";

/// A report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// What it tells of.
    pub kind: ReportKind,
    /// The run's id, UUIDv7.
    pub run: Uuid,
    /// When the run started.
    pub started_at: DateTime<Utc>,
    /// When it finished.
    pub finished_at: DateTime<Utc>,
    /// What made it.
    pub tool: Tool,
    /// For which estate.
    pub estate: EstateInfo,
    /// Digest of the effective configuration.
    pub config_digest: String,
    /// The command line, without secrets.
    pub command: String,
    /// The sums.
    pub totals: Totals,
    /// Every dataset seen.
    pub datasets: Vec<Dataset>,
    /// Findings about the estate, not about one dataset.
    pub findings: Vec<Finding>,
    /// What could not be read.
    pub incomplete: Vec<Incomplete>,
}

impl Report {
    /// Computes the totals from the datasets and findings, and adds the run's own numbers.
    pub fn finish(&mut self, requests: Requests, cost: Option<f64>, peak_rss_bytes: Option<u64>) {
        self.totals =
            Totals { requests, cost, peak_rss_bytes, ..Totals::of(self.kind, &self.datasets, &self.findings) };
    }

    /// Adds what lies under the roots and in no dataset to the totals, and what storing all of it costs. After
    /// [`Report::finish`].
    pub fn add_outside(&mut self, outside: BTreeMap<StoredClass, u64>, prices: &Prices) {
        for (class, bytes) in &outside {
            *self.totals.stored.entry(*class).or_default() += bytes;
        }
        self.totals.stored_outside = outside;
        self.totals.stored_cost_per_month = cost_per_month(self.totals.stored.values().sum(), prices);
    }

    /// All findings: those of the datasets, then the estate's.
    pub fn all_findings(&self) -> impl Iterator<Item = &Finding> {
        self.datasets.iter().flat_map(|d| &d.findings).chain(&self.findings)
    }

    /// The exit code that this report means: 3 when a dataset failed, something could not be read
    /// or a finding of severity `error` stands; else 4 when `detailed` and something is planned.
    pub fn exit(&self, detailed: bool) -> Exit {
        let unread = SkipReason::RegistryUnreadable.as_str();
        let failed =
            self.datasets.iter().any(|d| d.outcome.kind() == OutcomeKind::Failed || d.outcome.reason() == Some(unread));
        let error = self.all_findings().any(|f| f.severity == Severity::Error);
        if failed || error || !self.incomplete.is_empty() {
            return Exit::Failed;
        }
        let planned = self.datasets.iter().any(|d| d.outcome.kind() == OutcomeKind::Planned);
        if detailed && planned { Exit::Pending } else { Exit::Ok }
    }
}

/// What made a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// Version of Squire.
    pub version: String,
    /// Version of Lance.
    pub lance: String,
    /// Source revision.
    pub revision: String,
}

impl Tool {
    /// This build.
    pub fn this() -> Self {
        Self {
            version: crate::VERSION.to_owned(),
            lance: crate::LANCE_VERSION.to_owned(),
            revision: crate::REVISION.to_owned(),
        }
    }
}

/// The estate of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EstateInfo {
    /// Its id; null while no registry exists.
    pub id: Option<Uuid>,
    /// Its name.
    pub name: String,
    /// URI of the control root.
    pub registry: String,
    /// The roots that were scanned.
    pub roots: Vec<String>,
    /// How far Squire may go.
    pub mode: Mode,
    /// Whether the roots are assumed to be read by nobody outside the estate; then readers elsewhere are not seen.
    pub exclusive: bool,
}

/// Something that could not be read, so that the report is not the whole truth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incomplete {
    /// What: a URI or a record.
    pub what: String,
    /// Why.
    pub why: String,
    /// What to do.
    pub remedy: String,
}

/// One dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dataset {
    /// Canonical URI.
    pub uri: String,
    /// Its table, as a SUBJECT, when it is registered.
    pub table: Option<String>,
    /// Its tier.
    pub tier: Option<String>,
    /// Where the tier was found.
    pub tier_source: TierSource,
    /// From which URI layout.
    pub layout: Layout,
    /// Rows per fragment that compaction aims at.
    pub target_rows: Option<u64>,
    /// What decided them.
    pub target_source: Option<TargetSource>,
    /// The effective policy; null when it could not be resolved.
    pub policy: Option<PolicyView>,
    /// Who owns HEAD.
    pub authority: Authority,
    /// Libraries that wrote recent versions.
    pub writers: Vec<WriterInfo>,
    /// How long it took, in seconds.
    pub duration_seconds: f64,
    /// What became of it.
    pub outcome: Outcome,
    /// Its state before.
    pub before: Option<DatasetState>,
    /// Its state after; in a plan, as predicted.
    pub after: Option<DatasetState>,
    /// The steps.
    pub steps: Steps,
    /// What its stored bytes are; null where it was not looked at.
    pub stored: Option<StoredBytes>,
    /// How far the erasure of deleted values has come, as the run found it; only where the policy sets `erase_within`.
    #[serde(default)]
    pub erasure: Option<Erasure>,
    /// Findings about it.
    pub findings: Vec<Finding>,
}

impl Dataset {
    /// A dataset of which nothing is known but its outcome.
    pub fn new(uri: impl Into<String>, outcome: Outcome) -> Self {
        Self {
            uri: uri.into(),
            table: None,
            tier: None,
            tier_source: TierSource::None,
            layout: Layout::None,
            target_rows: None,
            target_source: None,
            policy: None,
            authority: Authority::Unknown,
            writers: Vec::new(),
            duration_seconds: 0.0,
            outcome,
            before: None,
            after: None,
            steps: Steps::default(),
            stored: None,
            erasure: None,
            findings: Vec::new(),
        }
    }
}

/// The effective policy and where it came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyView {
    /// The record that won.
    pub source: PolicySource,
    /// Keys that a floor raised.
    pub clamped: Vec<String>,
    /// A change that has not taken effect yet.
    pub pending: Option<Value>,
    /// The effective values, by key.
    #[serde(flatten)]
    pub values: BTreeMap<String, Value>,
}

/// The record whose policy won.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicySource {
    /// Which rung.
    pub kind: PolicySourceKind,
    /// Its id; null for the estate's defaults and for flags.
    pub id: Option<String>,
}

/// A library that wrote a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriterInfo {
    /// The newest version it wrote.
    pub version: u64,
    /// The library and its version, as the manifest names it.
    pub lance: String,
}

/// What became of a dataset. The constructors keep kind and reason together: only `skipped`
/// carries a [`SkipReason`], only `failed` a [`FailureKind`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    case: Case,
    /// One sentence, where there is more to say.
    pub detail: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Maintained,
    Planned,
    Idle,
    Skipped(SkipReason),
    Failed(FailureKind),
}

impl Outcome {
    /// A step was done.
    pub fn maintained() -> Self {
        Self { case: Case::Maintained, detail: None }
    }

    /// A step is planned.
    pub fn planned() -> Self {
        Self { case: Case::Planned, detail: None }
    }

    /// Nothing to do.
    pub fn idle() -> Self {
        Self { case: Case::Idle, detail: None }
    }

    /// Not admitted.
    pub fn skipped(reason: SkipReason) -> Self {
        Self { case: Case::Skipped(reason), detail: None }
    }

    /// A step failed.
    pub fn failed(kind: FailureKind) -> Self {
        Self { case: Case::Failed(kind), detail: None }
    }

    /// What the steps make of it: failed if a step failed, else maintained if one was done, else
    /// planned, else idle.
    pub fn of_steps(steps: &Steps) -> Self {
        let failed = steps.iter().find_map(|(outcome, reason)| match (outcome, reason) {
            (StepOutcome::Failed, reason) => {
                Some(reason.and_then(|r| r.as_str().parse().ok()).unwrap_or(FailureKind::Bug))
            }
            _ => None,
        });
        let any = |wanted| steps.iter().any(|(outcome, _)| outcome == wanted);
        match failed {
            Some(kind) => Self::failed(kind),
            None if any(StepOutcome::Done) => Self::maintained(),
            None if any(StepOutcome::Planned) => Self::planned(),
            None => Self::idle(),
        }
    }

    /// Adds a sentence.
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The kind.
    pub fn kind(&self) -> OutcomeKind {
        match self.case {
            Case::Maintained => OutcomeKind::Maintained,
            Case::Planned => OutcomeKind::Planned,
            Case::Idle => OutcomeKind::Idle,
            Case::Skipped(_) => OutcomeKind::Skipped,
            Case::Failed(_) => OutcomeKind::Failed,
        }
    }

    /// The reason's name: of a skip or a failure.
    pub fn reason(&self) -> Option<&'static str> {
        match self.case {
            Case::Skipped(reason) => Some(reason.as_str()),
            Case::Failed(kind) => Some(kind.as_str()),
            _ => None,
        }
    }

    /// Why it was skipped.
    pub fn skip_reason(&self) -> Option<SkipReason> {
        match self.case {
            Case::Skipped(reason) => Some(reason),
            _ => None,
        }
    }

    /// How it failed.
    pub fn failure(&self) -> Option<FailureKind> {
        match self.case {
            Case::Failed(kind) => Some(kind),
            _ => None,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct RawOutcome {
    kind: OutcomeKind,
    reason: Option<String>,
    detail: Option<String>,
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let reason = self.reason().map(str::to_owned);
        RawOutcome { kind: self.kind(), reason, detail: self.detail.clone() }.serialize(s)
    }
}

impl<'de> Deserialize<'de> for Outcome {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let raw = RawOutcome::deserialize(d)?;
        let reason = raw.reason.as_deref().unwrap_or_default();
        let bad = || serde::de::Error::custom(format!("{reason:?} is no reason for {}", raw.kind));
        let case = match raw.kind {
            OutcomeKind::Maintained => Case::Maintained,
            OutcomeKind::Planned => Case::Planned,
            OutcomeKind::Idle => Case::Idle,
            OutcomeKind::Skipped => Case::Skipped(reason.parse().map_err(|_| bad())?),
            OutcomeKind::Failed => Case::Failed(reason.parse().map_err(|_| bad())?),
        };
        Ok(Self { case, detail: raw.detail })
    }
}

/// A dataset's state at one version.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DatasetState {
    /// The version.
    pub version: u64,
    /// Fragments.
    pub fragments: u64,
    /// Rows, deleted ones not counted.
    pub rows: u64,
    /// Deleted rows still stored.
    pub deleted_rows: u64,
    /// Bytes of the files that this version names.
    pub bytes: u64,
    /// Versions that exist.
    pub versions: u64,
    /// User indices.
    pub indices: Vec<IndexStatus>,
}

impl DatasetState {
    /// Rows that are missing in an index, summed over the indices.
    pub fn unindexed_rows(&self) -> u64 {
        self.indices.iter().map(|i| i.unindexed_rows.unwrap_or(0)).sum()
    }
}

/// The state of one index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexStatus {
    /// Its name.
    pub name: String,
    /// Its type, as Lance names it.
    #[serde(rename = "type")]
    pub index_type: String,
    /// Segments.
    pub segments: u64,
    /// Rows in it; null when it cannot be read.
    pub indexed_rows: Option<u64>,
    /// Rows not in it; null when it cannot be read.
    pub unindexed_rows: Option<u64>,
    /// Its state.
    pub state: IndexState,
}
