//! Policy and floors as a binary would name them, and datasets to report.

use std::time::Duration;

use bytesize::ByteSize;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use squire_service::config::{Config, Loader, Mode};
use squire_service::human;
use squire_service::report::{
    CleanupStep, CompactStep, Dataset, DatasetState, EstateInfo, IndexAction, IndexState, IndexStatus, IndexStep,
    IndexWork, Outcome, Report, ReportKind, SCHEMA, StepOutcome, Tool, Totals,
};
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Policy {
    #[serde(with = "human::duration")]
    pub(crate) retention: Duration,
    pub(crate) retain_versions: u32,
    pub(crate) compact: bool,
    pub(crate) window: String,
    #[serde(with = "human::size::option")]
    pub(crate) max_rewrite_bytes: Option<ByteSize>,
    #[serde(with = "human::duration::option")]
    pub(crate) erase_within: Option<Duration>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(7 * 86_400),
            retain_versions: 3,
            compact: true,
            window: String::new(),
            max_rewrite_bytes: None,
            erase_within: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Floors {
    #[serde(with = "human::duration")]
    pub(crate) retention: Duration,
    /// Named like a secret, and no text.
    pub(crate) token: u32,
}

impl Default for Floors {
    fn default() -> Self {
        Self { retention: Duration::from_secs(3600), token: 0 }
    }
}

pub(crate) type TestConfig = Config<Policy, Floors>;

/// A loader that sees neither this process's environment nor its working directory.
pub(crate) fn loader(dir: &std::path::Path) -> Loader<Policy, Floors> {
    Loader::new(9464).directory(dir).env(Vec::<(String, String)>::new())
}

pub(crate) fn time(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

pub(crate) fn report(kind: ReportKind, datasets: Vec<Dataset>) -> Report {
    let mut report = Report {
        schema: SCHEMA.to_owned(),
        kind,
        run: Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001),
        started_at: time("2026-03-01T10:00:00Z"),
        finished_at: time("2026-03-01T10:00:12Z"),
        tool: Tool { version: "0.1.0".into(), lance: "14.0.2".into(), revision: "unknown".into() },
        estate: EstateInfo {
            id: Some(Uuid::nil()),
            name: "default".into(),
            registry: "/lake/_squire".into(),
            roots: vec!["/lake".into()],
            mode: Mode::Maintain,
            exclusive: true,
        },
        config_digest: "00".into(),
        command: "squire-maintenance plan /lake".into(),
        totals: Totals::default(),
        datasets,
        findings: Vec::new(),
        incomplete: Vec::new(),
    };
    report.finish(squire_service::report::Requests::default(), None, None);
    report
}

pub(crate) fn state(fragments: u64, versions: u64, unindexed: u64) -> DatasetState {
    DatasetState {
        version: versions,
        fragments,
        rows: 1000,
        deleted_rows: 0,
        bytes: 3 << 20,
        versions,
        indices: vec![IndexStatus {
            name: "id_idx".into(),
            index_type: "BTree".into(),
            segments: 1,
            indexed_rows: Some(1000 - unindexed),
            unindexed_rows: Some(unindexed),
            state: if unindexed == 0 { IndexState::Covered } else { IndexState::Lagging },
        }],
    }
}

/// A dataset with all steps at `outcome`: 40 fragments to 1, 500 rows folded, 99 versions and
/// 4096 bytes to go, 8192 bytes rewritten.
pub(crate) fn worked(uri: &str, step: StepOutcome) -> Dataset {
    let outcome = if step == StepOutcome::Planned { Outcome::planned() } else { Outcome::maintained() };
    let mut d = Dataset::new(uri, outcome);
    d.before = Some(state(40, 100, 500));
    d.after = Some(state(1, 3, 0));
    d.steps.compact = Some(CompactStep {
        fragments_removed: 40,
        fragments_added: 1,
        rewritten_bytes: 8192,
        tasks: 1,
        ..CompactStep::new(step, None)
    });
    d.steps.optimize_indices = Some(IndexStep {
        indices: vec![IndexWork {
            name: "id_idx".into(),
            action: IndexAction::Fold,
            rows_folded: 500,
            segments_before: 2,
            segments_after: 1,
        }],
        ..IndexStep::new(step, None)
    });
    d.steps.cleanup = Some(CleanupStep {
        versions_removed: 99,
        reclaimed_bytes: 4096,
        files_removed: 120,
        ..CleanupStep::new(step, None)
    });
    d
}
