//! The registry: an estate's records in object storage under one control root.
//!
//! There is no database. Every record is a chain of immutable objects
//! `<root>/v1/<collection>/<key>/<generation>.json`, and the one primitive underneath is
//! put-if-absent. The highest generation wins, a write creates the next one, and a delete is a
//! generation that says so; compare-and-swap and history come for free, on a laptop as on S3.
//!
//! Layers, from below:
//!
//! - [`storage`]: an object store from a URI and options; canonical URIs; durable local puts.
//! - [`probe`]: proves that a store keeps the promise of put-if-absent before anything rests on it.
//! - [`capabilities`]: what a bucket lets these credentials do.
//! - `key`, [`record`], `store`: key names, the envelope, and the generation protocol.
//! - [`identity`]: the estate's id, the nearest `_squire`, the root marker.
//! - [`snapshot`] and [`govern`]: everything that decides about a dataset, as one pure value.
//! - `hierarchy`, `warehouses`, `trash`, `cascade`, `rename`, `policies`, `protection`, `blocks`: what administrators write.
//! - [`claims`], `state`, `schedule`, `budget`, `work`, `jobs`, `reports`, [`runs`]: what a running fleet writes.
//! - [`contract`]: what an enterprise promises of its tables.
//!
//! Only this crate knows record bytes.

pub mod actor;
mod adopt;
mod attempts;
pub mod blocks;
mod bucket;
mod budget;
pub mod capabilities;
mod cascade;
pub mod check;
pub mod claims;
pub mod contract;
pub mod document;
pub mod error;
mod generation;
pub mod govern;
mod hierarchy;
mod http;
pub mod human;
pub mod identity;
mod import;
mod jobs;
mod key;
mod local;
mod mend;
mod outbox;
mod own_config;
mod policies;
pub mod policy;
pub mod probe;
pub mod protection;
mod prune;
pub mod record;
mod registry;
mod rename;
mod reports;
pub mod runs;
mod schedule;
mod scope;
mod shares;
pub mod snapshot;
mod state;
pub mod storage;
mod store;
pub mod subject;
mod trash;
mod undrop;
mod warehouses;
pub mod window;
mod work;

pub use actor::Actor;
pub use adopt::{AdoptPlan, Named, NamedTable};
pub use blocks::{Block, BlockInfo, BlockKind};
pub use budget::{PerDay, Spending};
pub use capabilities::{Answer, Capabilities, capabilities};
pub use cascade::{DropPlan, DropRequest, DropTable, Undropped};
pub use check::{Problem, ProblemKind, check};
pub use claims::{Claim, ClaimOutcome, DeadHolder, Holder};
pub use document::Document;
pub use error::{Error, Kind, Result};
pub use govern::{
    EffectivePolicy, Forbidden, Governance, Pending, PolicySource, PolicySourceKind, ProtectionInfo, TrashInfo,
};
pub use hierarchy::{NewTable, TableChanges};
pub use http::observe_requests;
pub use identity::{
    Located, MARKER, RESERVED, RegistryLost, ensure_marker, locate, markers_above, read_marker, registry_lost,
};
pub use import::ImportPlan;
pub use jobs::{Job, JobState};
pub use mend::Mended;
pub use outbox::Waiting;
pub use own_config::parse_time;
pub use policies::{PolicyChange, PolicyDiff};
pub use policy::{Floors, Policy, RequiredIndex};
pub use protection::Level;
#[doc(hidden)]
pub use record::stand_in_for_level;
pub use record::{
    Collection, Estate, Location, Meta, Namespace, PolicyRecord, Project, Protection, Record, Table, Trash, Unreadable,
    Warehouse,
};
pub use registry::{LogLine, Registry};
pub use reports::StoredReport;
pub use runs::{
    CollectionCount, Commit, CommitStep, DIED, DatasetEntry, DatasetIntent, DatasetResult, LiveCounts, RunOutcome,
    RunRecord, Vanished, VersionEntry, protections_vanished,
};
pub use snapshot::Snapshot;
pub use storage::{Root, StorageOptions, canonical_uri, join_uri, local_path, within};
pub use subject::Subject;
pub use warehouses::{NewWarehouse, check_namespace_url};
pub use work::{WorkObject, WorkPart};
