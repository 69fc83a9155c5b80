//! Reclaim: what nobody references goes to a quarantine by a plan, and from there for good after its grace (design, "Reclaim").
//!
//! `survey` reads, `plan` is pure, `apply`, `undo` and `purge` have the deleting handle and take a plan, `store` knows where a
//! plan's quarantine is, `render` tells of it.

pub(crate) mod apply;
pub(crate) mod plan;
pub(crate) mod purge;
pub(crate) mod render;
mod run;
pub(crate) mod store;
pub(crate) mod survey;
pub(crate) mod undo;

use squire_registry::{Floors, Policy};
use squire_service::config::Loaded;
use squire_service::planfile::PlanFile;

/// The config of this daemon.
pub(crate) type ReconcileConfig = Loaded<Policy, Floors>;

/// A plan by object; there are no datasets in it.
pub(crate) type ReclaimPlan = PlanFile<serde_json::Value>;

/// A plan older than this is refused: make a new one.
pub(crate) const MAX_AGE: std::time::Duration = std::time::Duration::from_secs(86_400);
