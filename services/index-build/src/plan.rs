//! What a request comes to on a table, as it was looked at. Pure, apart from [`standing`](squire_lake::build::standing), which
//! reads index metadata of the version that the look has opened.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use squire_lake::authority::Authority;
use squire_lake::build::{self, Definition, Estimate, Refusal, Standing};
use squire_lake::index::IndexInfo;
use squire_lake::look::Look;
use squire_registry::{Forbidden, Governance, Snapshot};
use squire_service::bus::data::BuildMode;
use squire_service::config::Mode;
use uuid::Uuid;

use crate::ask::Ask;

/// A build that nothing forbids.
#[derive(Clone)]
pub struct Plan {
    /// The index, everything decided.
    pub definition: Definition,
    /// The table as it was looked at.
    pub look: Arc<Look>,
    /// What governs it.
    pub governance: Governance,
    /// The registry's state that this rests on.
    pub snapshot: Snapshot,
    /// What it may hold in memory.
    pub estimate: Estimate,
    /// An index of the name stands there and is replaced.
    pub replaces: bool,
}

/// A request refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The stable name of the reason.
    pub reason: String,
    /// What is wrong, for a person.
    pub detail: String,
    /// What would be accepted.
    pub accepted: String,
}

impl Refused {
    /// A refusal of this program's own.
    pub fn new(reason: &str, detail: impl Into<String>, accepted: impl Into<String>) -> Self {
        Self { reason: reason.into(), detail: detail.into(), accepted: accepted.into() }
    }
}

impl From<Refusal> for Refused {
    fn from(r: Refusal) -> Self {
        Self { reason: r.reason.as_str().into(), detail: r.detail, accepted: r.accepted }
    }
}

/// A build that an earlier attempt of the same run committed.
pub struct Landed {
    /// The index.
    pub definition: Definition,
    /// The table as it was looked at.
    pub look: Arc<Look>,
    /// The index as it stands.
    pub index: IndexInfo,
    /// The version that the commit made.
    pub version: u64,
}

/// What is to be done.
pub enum Decision {
    /// Build.
    Build(Box<Plan>),
    /// An index of this definition covers every row: nothing to do.
    Present(Definition, Box<IndexInfo>),
    /// This run committed it in an earlier attempt that ended before anybody was told: it is asked, and told.
    Landed(Box<Landed>),
    /// An index of this definition waits for enough rows, and still has to.
    Untrained(Definition, Box<IndexInfo>),
    /// A rule forbids it.
    Refused(Refused),
}

/// What the registry and the table's owner forbid.
///
/// # Errors
/// The refusal.
pub fn allowed(governance: &Governance, look: &Look, mode: Mode) -> Result<(), Refused> {
    if mode == Mode::Observe {
        return Err(Refused::new(
            "mode",
            "the estate's mode is observe: nothing is written",
            "mode compact or maintain",
        ));
    }
    forbidden(governance)?;
    match &look.authority {
        Authority::Linear | Authority::Detached { .. } | Authority::Managed { .. } => Ok(()),
        Authority::Graph { mark } => {
            let what = format!("a graph owns the table ({mark})");
            Err(Refused::new("graph_owned", what, "build it with the graph's own tool"))
        }
        Authority::Unknown { why, feature_flags: true } => {
            Err(Refused::new("unknown_feature_flags", why.clone(), "a newer build of Squire"))
        }
        Authority::Unknown { why, .. } => {
            Err(Refused::new("unknown_authority", why.clone(), "a table whose owner is known"))
        }
    }
}

/// What the registry forbids: asked again before the commit.
///
/// # Errors
/// The refusal.
pub fn forbidden(governance: &Governance) -> Result<(), Refused> {
    let Some((why, detail)) = governance.forbidden() else { return Ok(()) };
    let (reason, accepted) = match why {
        Forbidden::Unreadable => ("registry_unreadable", "a registry whose records can be read"),
        Forbidden::Trashed => ("trashed", "a table that is not in the trash"),
        Forbidden::Deregistered => ("deregistered", "a table that is registered"),
        Forbidden::Frozen => ("frozen", "a table that is not frozen"),
        Forbidden::WarehouseInactive => ("warehouse_inactive", "a table of an active warehouse"),
        Forbidden::Blocked => ("blocked", "a table without a block on it"),
    };
    Err(Refused::new(reason, detail, accepted))
}

/// Decides. `run` is the job's: a build of its own that landed before is success.
pub async fn decide(
    ask: &Ask,
    look: Arc<Look>,
    governance: Governance,
    snapshot: Snapshot,
    mode: Mode,
    run: Uuid,
    now: DateTime<Utc>,
) -> Decision {
    let definition = match checked(ask, &look, &governance, mode, now) {
        Ok(definition) => definition,
        Err(refused) => return Decision::Refused(refused),
    };
    let mine = build::landed_before(&look, run);
    let there = look.indices.iter().find(|i| i.name == definition.name).cloned();
    if let (Some(version), Some(index)) = (mine, there) {
        return Decision::Landed(Box::new(Landed { definition, look, index, version }));
    }
    let replaces = match build::standing(&look, &definition, ask.spec.replace).await {
        Ok(Standing::Free) => false,
        Ok(Standing::Covers(info)) => return Decision::Present(definition, Box::new(info)),
        Ok(Standing::Untrained(info)) => return Decision::Untrained(definition, Box::new(info)),
        Ok(Standing::Outdated(_)) => true,
        Err(refusal) => return Decision::Refused(refusal.into()),
    };
    let needed = build::rows_to_train(&definition);
    if ask.mode == BuildMode::TrainIfPossible && look.head.rows() < needed {
        let what = format!("the table has {} rows, and {} needs {needed}", look.head.rows(), definition.kind.as_str());
        return Decision::Refused(Refused::new(
            "too_few_rows",
            what,
            "more rows, or mode create (a definition without training)",
        ));
    }
    let estimate = build::estimate(&look, &definition);
    Decision::Build(Box::new(Plan { definition, look, governance, snapshot, estimate, replaces }))
}

fn checked(
    ask: &Ask,
    look: &Look,
    governance: &Governance,
    mode: Mode,
    now: DateTime<Utc>,
) -> Result<Definition, Refused> {
    allowed(governance, look, mode)?;
    let definition = build::resolve(look, &ask.spec)?;
    let policy = &governance.policy.policy;
    if !policy.upgrade_index_format {
        build::legacy_clients(look, definition.kind, policy.reader_window, now)?;
    }
    Ok(definition)
}
