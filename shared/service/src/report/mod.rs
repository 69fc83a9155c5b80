//! The report `squire.report.v1`: its model, its totals and its renderers.
//!
//! Field and enum names are a contract (FACES, "Report"; the JSON Schema is
//! `docs/schemas/squire.report.v1.json`). The same strings stand in logs and metric labels.

mod display;
mod enums;
mod erasure;
mod finding;
mod html;
mod markdown;
mod model;
mod reasons;
mod render;
mod steps;
mod stored;
mod summary;
mod table;
mod text;
mod totals;

pub use display::{DisplayNames, clean, clean_lines, display_name};
pub(crate) use enums::names;
pub use enums::{
    Authority, BlockReason, FailureKind, HoldReason, IndexAction, IndexState, Invariant, Layout, OutcomeKind,
    PolicySourceKind, ReportKind, Severity, SkipReason, StepKind, StepOutcome, StoredClass, TargetSource, TierSource,
};
pub use erasure::{Erasure, Unreached};
pub use finding::{Finding, FindingKind, FindingSubject};
pub use model::{
    Dataset, DatasetState, EstateInfo, Incomplete, IndexStatus, Outcome, PolicySource, PolicyView, Report, SCHEMA,
    Tool, WriterInfo,
};
pub use reasons::StepReason;
pub use render::write_file;
pub use steps::{
    CheckKind, CleanupStep, CompactStep, IndexCheck, IndexStep, IndexWork, Retained, Steps, VerifyChecks, VerifyStep,
};
pub use stored::{FragmentSizes, HeldBytes, StoredBytes, cost_per_month};
pub use text::WIDTH;
pub use totals::{Requests, Totals};
