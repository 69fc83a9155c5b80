//! The envelope of every record, and the records by collection.

use std::fmt;
use std::sync::OnceLock;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::actor::Actor;
use crate::blocks::Block;
use crate::policy::Policy;
use crate::protection::Level;
use crate::subject::Subject;

/// The schema word in every record.
pub(crate) const SCHEMA: &str = "squire.record.v1";
/// Records with a higher `min_reader` are unreadable to this build.
const READER: u32 = 1;

static LEVEL: OnceLock<u32> = OnceLock::new();

/// The level that this process reads, and gives to the records that it makes.
pub(crate) fn level() -> u32 {
    *LEVEL.get_or_init(|| READER)
}

/// Lets this process stand in for a build that reads and writes this level, before it opens a registry. For the programs of
/// tests that a rolling upgrade needs (`examples/`); no option of a shipped program leads here.
#[doc(hidden)]
pub fn stand_in_for_level(level: u32) {
    let _ = LEVEL.set(level);
}

/// A collection of records: a directory below `v1/`.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::EnumIter,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Collection {
    /// The registry's identity, `estate/self`.
    Estate,
    /// Projects, by id.
    Projects,
    /// Warehouses, by id.
    Warehouses,
    /// Namespaces, each with the warehouse it is bound to.
    Namespaces,
    /// Tables, by id.
    Tables,
    /// Which table a dataset's location belongs to, by the hash of the canonical URI.
    Locations,
    /// Policies, by subject.
    Policies,
    /// Protection, by subject.
    Protection,
    /// What was dropped and can come back.
    Trash,
    /// Reasons not to maintain something.
    Blocks,
    /// Published contracts, by enterprise.
    Contracts,
    /// Leases on datasets; not in the snapshot.
    Claims,
    /// Per-dataset state in shards; not in the snapshot.
    State,
    /// One record per run; not in the snapshot.
    Runs,
    /// One record per run and dataset, below the run's id; not in the snapshot.
    RunEntries,
    /// Which buckets keep put-if-absent; not in the snapshot.
    Probes,
    /// Published instants, by job; not in the snapshot.
    Schedule,
    /// What the fleet spent of its budgets, by day; not in the snapshot.
    Budget,
    /// Index builds that were asked for; not in the snapshot.
    Jobs,
}

impl Collection {
    /// The collections of a [`crate::Snapshot`], each one LIST.
    pub const SNAPSHOT: [Self; 11] = [
        Self::Estate,
        Self::Projects,
        Self::Warehouses,
        Self::Namespaces,
        Self::Tables,
        Self::Locations,
        Self::Policies,
        Self::Protection,
        Self::Trash,
        Self::Blocks,
        Self::Contracts,
    ];

    /// The directory's name.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether superseded generations are kept for `record_history`, so that who changed what stays known.
    pub fn keeps_history(self) -> bool {
        matches!(self, Self::Policies | Self::Protection | Self::Trash | Self::Blocks | Self::Locations | Self::Tables)
    }
}

/// What every record carries beside its own fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Always `squire.record.v1`.
    pub schema: String,
    /// The record's kind, one word per collection.
    pub kind: String,
    /// The record's id; this counts, not the key it is stored under.
    pub id: String,
    /// This generation's number, from 1.
    pub generation: u64,
    /// Made anew by every write; tells the writer its own record after a lost answer.
    pub nonce: Uuid,
    /// The nonce of the generation that this one replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev_nonce: Option<Uuid>,
    /// The lowest reader level that understands the record.
    pub min_reader: u32,
    /// When, by the writer's clock.
    pub updated_at: DateTime<Utc>,
    /// Who, and from where.
    pub updated_by: Actor,
    /// Why, in the writer's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// A tombstone: the record does not exist any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
}

const META_KEYS: [&str; 11] = [
    "schema",
    "kind",
    "id",
    "generation",
    "nonce",
    "prev_nonce",
    "min_reader",
    "updated_at",
    "updated_by",
    "reason",
    "deleted",
];

/// One record: its envelope, its typed fields, and what a newer build may have added.
#[derive(Debug, Clone, PartialEq)]
pub struct Record<T> {
    /// The envelope.
    pub meta: Meta,
    /// The record's own fields.
    pub fields: T,
    /// Fields that this build does not know; kept by every write.
    pub extra: Map<String, Value>,
}

/// A record that exists and cannot be understood. A value, not an error: enumeration goes on, and what destroys
/// refuses while one is in its scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    /// Where it stands.
    pub collection: Collection,
    /// Its key.
    pub key: String,
    /// The id, where the key alone tells it.
    pub id: Option<String>,
    /// The generation that cannot be read.
    pub generation: u64,
    /// Why, in one sentence.
    pub why: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{:020}: {}", self.collection, self.key, self.generation, self.why)
    }
}

/// The typed fields of a record of one collection.
pub(crate) trait Fields: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    const COLLECTION: Collection;
    const KIND: &'static str;

    /// What the types alone do not see; a record that fails is unreadable.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Reads one generation's bytes: the envelope, and the rest of the object.
pub(crate) fn parse(bytes: &[u8]) -> Result<(Meta, Map<String, Value>), String> {
    let text = std::str::from_utf8(bytes).map_err(|e| format!("not UTF-8: {e}"))?;
    let value: Value = serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
    let Value::Object(mut map) = value else { return Err("not a JSON object".into()) };
    // The level comes first: a newer envelope may differ in anything else.
    let needed = map.get("min_reader").and_then(Value::as_u64).ok_or("no min_reader")?;
    if needed > u64::from(level()) {
        return Err(format!("it needs reader level {needed}, this build has {}", level()));
    }
    let head: Map<String, Value> =
        META_KEYS.iter().filter_map(|key| map.shift_remove(*key).map(|value| ((*key).to_owned(), value))).collect();
    let meta: Meta = serde_json::from_value(Value::Object(head)).map_err(|e| format!("its envelope: {e}"))?;
    Ok((meta, map))
}

/// Splits the fields that `T` knows from those it does not.
pub(crate) fn typed<T: Fields>(meta: Meta, body: Map<String, Value>) -> Result<Record<T>, String> {
    if meta.kind != T::KIND {
        return Err(format!("it is of kind `{}`, not `{}`", meta.kind, T::KIND));
    }
    let fields: T = serde_json::from_value(Value::Object(body.clone())).map_err(|e| format!("its fields: {e}"))?;
    fields.check()?;
    let known = object(&fields);
    let extra = body.into_iter().filter(|(key, _)| !known.contains_key(key)).collect();
    Ok(Record { meta, fields, extra })
}

/// The bytes of a record.
pub(crate) fn render<T: Serialize>(meta: &Meta, fields: Option<&T>, extra: &Map<String, Value>) -> Vec<u8> {
    let mut map = object(meta);
    for (key, value) in fields.map(object).into_iter().flatten() {
        debug_assert!(!META_KEYS.contains(&key.as_str()), "`{key}` is a word of the envelope");
        if !value.is_null() {
            map.insert(key, value);
        }
    }
    for (key, value) in extra {
        map.entry(key.clone()).or_insert_with(|| value.clone());
    }
    let mut bytes = serde_json::to_vec_pretty(&Value::Object(map)).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

fn object<T: Serialize>(value: &T) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map,
        // Every record type is a struct with string keys.
        _ => Map::new(),
    }
}

macro_rules! fields {
    ($($ty:ty => $collection:ident, $kind:literal;)*) => {
        $(impl $crate::record::Fields for $ty {
            const COLLECTION: $crate::record::Collection = $crate::record::Collection::$collection;
            const KIND: &'static str = $kind;
        })*
    };
}
pub(crate) use fields;

/// `estate/self`: the registry's identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estate {
    /// The estate's id, in every marker and stamp.
    pub estate: Uuid,
    /// The estate's name.
    pub name: String,
    /// The feature level a build needs to use the registry.
    pub feature_level: u32,
}

/// A project (tenant).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Project {
    /// It is being dropped; nothing new goes into it.
    #[serde(default)]
    pub deleting: bool,
}

/// A warehouse: one bucket or root prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warehouse {
    /// The project that owns it.
    pub project: String,
    /// The canonical URI of its root.
    pub root: String,
    /// Whether its tables are maintained; a deactivated one is skipped (`warehouse_inactive`).
    pub active: bool,
    /// Whether nobody outside the estate reads or clones from it. `false` refuses cleanup and reclaim.
    pub exclusive: bool,
    /// The URL of the Lance REST namespace that names its tables; without credentials. A directory namespace lies in the root itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// It is being dropped; nothing new goes into it.
    #[serde(default)]
    pub deleting: bool,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Its segments from the top.
    pub path: Vec<String>,
    /// The warehouse it is bound to; the same for everything below it.
    pub warehouse: String,
    /// It is being dropped; nothing new goes into it.
    #[serde(default)]
    pub deleting: bool,
}

/// A table: a name for a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Its segments: namespace and name.
    pub path: Vec<String>,
    /// Where it lies, relative to its warehouse's root.
    pub location: String,
    /// The dataset's canonical URI.
    pub uri: String,
    /// The declared tier, which goes before what the URI says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Labels, for `maintain = "labelled"`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Declared before any bytes were written.
    #[serde(default)]
    pub declared: bool,
}

impl Table {
    /// The table's subject.
    pub fn subject(&self) -> Subject {
        Subject::Table(self.path.clone())
    }
}

/// Which table a location belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// The canonical URI.
    pub uri: String,
    /// The one table that has it.
    pub table: Subject,
}

/// A policy record: complete, apart from `target_rows`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicyRecord {
    /// The project, namespace or table it governs.
    pub subject: Subject,
    /// What holds now: keys of [`Policy`], and keys of newer builds.
    pub policy: Map<String, Value>,
    /// A change that lets versions go sooner and is not in effect yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<PendingRecord>,
}

/// A change of a policy that waits for `shorten_delay`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PendingRecord {
    /// When it takes effect.
    pub effective_at: DateTime<Utc>,
    /// The complete policy from then on; none: the record is gone from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Map<String, Value>>,
    /// What lets versions go sooner, one line per key.
    #[serde(default)]
    pub changes: Vec<String>,
}

impl PolicyRecord {
    /// The policy that holds at `now`; `None` where the record has been unset by then.
    ///
    /// # Errors
    /// Why a known key cannot be read.
    pub fn at(&self, now: DateTime<Utc>) -> Result<Option<Policy>, String> {
        match &self.pending {
            Some(pending) if pending.effective_at <= now => pending.policy.as_ref().map(Policy::from_map).transpose(),
            _ => Policy::from_map(&self.policy).map(Some),
        }
    }

    /// The change that is still to come at `now`.
    pub fn pending_at(&self, now: DateTime<Utc>) -> Option<&PendingRecord> {
        self.pending.as_ref().filter(|p| p.effective_at > now)
    }
}

/// Protection of one subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protection {
    /// What is protected; everything below it is too.
    pub subject: Subject,
    /// How strongly.
    pub level: Level,
}

/// A dropped table or namespace that can come back, with all that a reused id must not inherit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trash {
    /// The table or namespace that was dropped.
    pub subject: Subject,
    /// Its warehouse.
    pub warehouse: String,
    /// The dataset's canonical URI; frozen as long as this record lives. Empty for a namespace, which has no bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uri: String,
    /// The table's record as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<Table>,
    /// The namespace's record as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Namespace>,
    /// When it was dropped.
    pub dropped_at: DateTime<Utc>,
    /// From when `squire-reconcile reclaim` may plan its bytes.
    pub deadline: DateTime<Utc>,
    /// The trash record of the namespace whose cascade took it along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cascade: Option<String>,
    /// The name that a rename is giving it; the rename was cut off as long as this stands here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renamed_to: Option<Subject>,
    /// The undrop of this namespace and of what went with it has begun.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub returning: bool,
    /// The protection it carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection: Option<Carried<Protection>>,
    /// The policy it carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Carried<PolicyRecord>>,
    /// The policy of what lay above it, where that governed it and it had none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governed_by: Option<Carried<PolicyRecord>>,
    /// The blocks on it, by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<(String, Carried<Block>)>,
}

/// A record that waits in the trash for its table to come back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried<T> {
    /// Its fields.
    pub fields: T,
    /// The reason given with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

fields! {
    Estate => Estate, "estate";
    Project => Projects, "project";
    Warehouse => Warehouses, "warehouse";
    Namespace => Namespaces, "namespace";
    Table => Tables, "table";
    Location => Locations, "location";
    Protection => Protection, "protection";
    Block => Blocks, "block";
}

impl Fields for Trash {
    const COLLECTION: Collection = Collection::Trash;
    const KIND: &'static str = "trash";

    fn check(&self) -> Result<(), String> {
        match (&self.subject, &self.table, &self.namespace) {
            (Subject::Table(_), Some(_), None) if !self.uri.is_empty() => Ok(()),
            (Subject::Namespace(_), None, Some(_)) if self.uri.is_empty() => Ok(()),
            _ => Err("it holds neither a table with its location nor a namespace".into()),
        }
    }
}

impl Fields for PolicyRecord {
    const COLLECTION: Collection = Collection::Policies;
    const KIND: &'static str = "policy";

    fn check(&self) -> Result<(), String> {
        Policy::from_map(&self.policy)?;
        self.pending.iter().filter_map(|p| p.policy.as_ref()).try_for_each(|map| Policy::from_map(map).map(drop))
    }
}
