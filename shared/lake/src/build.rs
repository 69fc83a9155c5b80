//! Building an index on request (design, "Index builds").
//!
//! A request is looked at twice without reading a row: its type and parameters alone ([`IndexKind::parse`],
//! [`IndexKind::check_params`]), then against a table ([`resolve`]). What comes out is a [`Definition`] with every parameter
//! decided. [`execute`] builds it without a commit, [`land`] commits it, stamped and without the table's hook, and
//! [`crate::verify::built`] asks it before anybody is told of success. Large tables are built in [`segments`].

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

mod anew;
mod estimate;
mod execute;
mod kinds;
mod land;
mod params;
mod resolve;
pub mod segments;

pub use anew::{anew, cannot};
pub use estimate::{Estimate, estimate};
pub use execute::{Built, execute, leftovers};
pub use kinds::IndexKind;
pub use land::{Landed, discard, land, landed_before, outputs_of, surplus};
pub use resolve::{Standing, legacy_clients, paths, resolve, rows_to_train, standing};

/// What is asked for. Nothing in it has been looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Columns; one, by its path.
    pub columns: Vec<String>,
    /// The type.
    pub kind: IndexKind,
    /// The index's name; made from the column when absent.
    pub name: Option<String>,
    /// The type's parameters.
    pub params: Map<String, Value>,
    /// Whether an index of the name may be replaced by another definition on the same column.
    pub replace: bool,
}

/// An index with everything decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// The type.
    pub kind: IndexKind,
    /// The column's path, spelt as the schema does.
    pub column: String,
    /// The column's field id.
    pub field: i32,
    /// The index's name.
    pub name: String,
    /// Every parameter, those that were derived included.
    pub params: Map<String, Value>,
    /// The names of the parameters that were derived.
    pub derived: Vec<String>,
    /// The vectors' dimension; 0 where it is over none.
    pub dimension: u32,
}

impl Definition {
    /// One line for a person: `BTREE id_idx on id`.
    pub fn says(&self) -> String {
        format!("{} {} on {}", self.kind.as_str(), self.name, self.column)
    }
}

/// Why a request is refused. The names are stable: records, events and metrics have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// There is no such index type.
    UnknownType,
    /// A parameter that the type does not have, or a value that it cannot have.
    BadParams,
    /// None, or more columns than the type takes.
    BadColumns,
    /// The table has no such column.
    NoSuchColumn,
    /// The column's type does not fit the index.
    WrongType,
    /// The name is reserved, or cannot be one.
    BadName,
    /// An index of this name and another definition stands there.
    NameTaken,
    /// A client that still writes could not use the table's index.
    OldClients,
    /// The table lacks something that the index rests on, or has something that excludes it.
    Unsupported,
}

impl Reason {
    /// The stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownType => "unknown_type",
            Self::BadParams => "bad_params",
            Self::BadColumns => "bad_columns",
            Self::NoSuchColumn => "no_such_column",
            Self::WrongType => "wrong_type",
            Self::BadName => "bad_name",
            Self::NameTaken => "name_taken",
            Self::OldClients => "old_clients",
            Self::Unsupported => "unsupported",
        }
    }
}

/// A refusal that explains itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// What is wrong, for a person.
    pub detail: String,
    /// What would be accepted.
    pub accepted: String,
}

impl Refusal {
    pub(crate) fn new(reason: Reason, detail: impl Into<String>, accepted: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), accepted: accepted.into() }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; accepted: {}", self.detail, self.accepted)
    }
}

impl std::error::Error for Refusal {}

/// A sign of a build's progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The stage, as the library names it.
    pub stage: String,
    /// Units done in this stage.
    pub done: u64,
    /// Units there are, where that is known.
    pub total: Option<u64>,
    /// What is counted.
    pub unit: String,
}

/// Told of every sign of progress; called often, from any thread.
pub type OnProgress = Arc<dyn Fn(&Progress) + Send + Sync>;

/// One build at work.
#[derive(Clone)]
pub struct Work {
    /// The directory that a build of the whole table writes, so that whoever cleans up after a build that was cut short knows it.
    pub uuid: Uuid,
    /// Bytes that a full-text build may hold.
    pub memory: u64,
    /// Told of progress.
    pub on_progress: OnProgress,
}
