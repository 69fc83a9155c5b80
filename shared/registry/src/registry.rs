//! The handle on one registry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::TryFutureExt;
use uuid::Uuid;

use crate::actor::Actor;
use crate::blocks::Block;
use crate::claims::Observed;
use crate::error::{Error, Result};
use crate::generation::{Change, Place, Read};
use crate::identity;
use crate::policy::{Floors, Policy};
use crate::probe;
use crate::record::{Collection, Estate, Fields, Meta, Record, Unreadable};
use crate::snapshot::{ById, Snapshot, sort};
use crate::storage::{Root, StorageOptions};
use crate::store::Records;
use crate::subject::Subject;

/// The feature level of registries that this build makes and understands.
const FEATURE_LEVEL: u32 = 1;
/// How long superseded generations of governing records are kept unless set otherwise (`[grace] record_history`).
pub(crate) const RECORD_HISTORY: Duration = Duration::from_secs(400 * 86_400);

/// A registry: the records of one estate. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) records: Records,
    pub(crate) actor: Actor,
    id: Uuid,
    name: String,
    /// The config's `[policy]` and its `floors.shorten_delay`.
    pub(crate) defaults: (Policy, Duration),
    pub(crate) observed: Mutex<HashMap<String, Observed>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registry({} at {})", self.inner.id, self.uri())
    }
}

impl Registry {
    /// Makes a registry at `uri`. Proves put-if-absent first. A registry inside `ROOT/_squire` also marks ROOT.
    ///
    /// # Errors
    /// [`Error::Exists`] when there is one, [`Error::LyingStore`], [`Error::OtherEstate`] when ROOT belongs to another
    /// estate, or what the store answers.
    pub async fn init(uri: &str, options: &StorageOptions, name: &str, actor: Actor) -> Result<Self> {
        Self::init_at(Root::open(uri, options)?, name, actor).await
    }

    /// [`Registry::init`] at an opened place.
    ///
    /// # Errors
    /// As [`Registry::init`].
    pub async fn init_at(root: Root, name: &str, actor: Actor) -> Result<Self> {
        Self::make(root, name, actor, false).await
    }

    async fn make(root: Root, name: &str, actor: Actor, beside_a_lost_one: bool) -> Result<Self> {
        crate::subject::check_name(name).map_err(|why| Error::Invalid(format!("the estate's name: {why}")))?;
        let records = Records::new(root.clone(), RECORD_HISTORY);
        if let Read::Live(found) = records.read::<Estate>(Place::of::<Estate>("self")).await? {
            return Err(Error::Exists {
                what: format!("the registry of estate `{}` at {}", found.fields.name, root.uri()),
                hint: "; it is used as it is".into(),
            });
        }
        let id = Uuid::now_v7();
        let lake = identity::lake_of(&root);
        let marked = match &lake {
            // Looked at before anything is written: a marked root without its registry is a lost registry.
            Some(lake) => match identity::refuse_foreign(lake, id).await {
                Err(Error::OtherEstate { .. }) if beside_a_lost_one => true,
                other => other?,
            },
            None => true,
        };
        probe::run(&root).await?;
        let place = Place::of::<Estate>("self");
        let fields = Estate { estate: id, name: name.to_owned(), feature_level: FEATURE_LEVEL };
        let written = records
            .update::<Estate>(place, &actor, None, |current| {
                Ok(if current.is_some() { Change::Keep } else { Change::Put(fields.clone()) })
            })
            .await?;
        if written.is_none_or(|record| record.fields.estate != id) {
            return Err(Error::Exists {
                what: format!("the registry at {}", root.uri()),
                hint: "; somebody else made it just now, use it as it is".into(),
            });
        }
        let registry = Self::with(records, actor, id, name);
        registry.record_probe(&root).await?;
        if let Some(lake) = lake.filter(|_| !marked) {
            registry.mark(&lake).await?;
        }
        Ok(registry)
    }

    /// Opens a registry that must exist.
    ///
    /// # Errors
    /// [`Error::NoRegistry`] (kind `NotFound`) when there is none, [`Error::TooNew`], [`Error::Unreadable`].
    pub async fn open(uri: &str, options: &StorageOptions) -> Result<Self> {
        Self::open_at(Root::open(uri, options)?, Actor::current()).await
    }

    /// [`Registry::open`] at an opened place, writing as `actor`.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub async fn open_at(root: Root, actor: Actor) -> Result<Self> {
        let records = Records::new(root.clone(), RECORD_HISTORY);
        let uri = root.uri().to_owned();
        let found = records.read::<Estate>(Place::of::<Estate>("self")).await?;
        let Some(estate) = found.strict(&format!("the identity of the registry at {uri}"))? else {
            return Err(Error::NoRegistry { uri });
        };
        let Estate { estate: id, name, feature_level: level } = estate.fields.clone();
        if level > FEATURE_LEVEL {
            return Err(Error::TooNew { uri, level, ours: FEATURE_LEVEL });
        }
        Ok(Self::with(records, actor, id, &name))
    }

    /// Opens the registry at `uri`, or makes it; what the first verb that writes does with [`crate::Located::Absent`].
    /// The flag says whether it was made now.
    ///
    /// Unlike [`Registry::init`] it also makes one in a root that another estate has marked, and leaves that marker: work
    /// that keeps everything can go on, and everything under the root is `registry_lost` until somebody decides.
    ///
    /// # Errors
    /// As [`Registry::open`] and [`Registry::init`].
    pub async fn open_or_init(uri: &str, options: &StorageOptions, name: &str, actor: Actor) -> Result<(Self, bool)> {
        let root = Root::open(uri, options)?;
        match Self::open_at(root.clone(), actor.clone()).await {
            Err(Error::NoRegistry { .. }) => {}
            other => return other.map(|r| (r, false)),
        }
        match Self::make(root.clone(), name, actor.clone(), true).await {
            Err(Error::Exists { .. }) => Self::open_at(root, actor).await.map(|r| (r, false)),
            other => other.map(|r| (r, true)),
        }
    }

    /// Raises the registry to this build's feature level; older builds then refuse it. The levels before and after.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn upgrade(&self, reason: Option<&str>) -> Result<(u32, u32)> {
        let mut before = FEATURE_LEVEL;
        self.change::<Estate>("self", reason, |current| {
            let found = current.ok_or_else(|| Error::NoRegistry { uri: self.uri().to_owned() })?;
            before = found.fields.feature_level;
            if before >= FEATURE_LEVEL {
                return Ok(Change::Keep);
            }
            Ok(Change::Put(Estate { feature_level: FEATURE_LEVEL, ..found.fields.clone() }))
        })
        .await?;
        Ok((before, before.max(FEATURE_LEVEL)))
    }

    /// The same registry, writing as another actor.
    pub fn acting_as(&self, actor: Actor) -> Self {
        let other = Self::with(Records::new(self.root().clone(), RECORD_HISTORY), actor, self.inner.id, self.name());
        let (policy, delay) = &self.inner.defaults;
        other.under(policy, *delay)
    }

    /// The same registry with another `[grace] record_history` (default 400 days).
    pub fn keeping_history(&self, history: Duration) -> Self {
        let records = Records::new(self.root().clone(), history);
        let other = Self::with(records, self.inner.actor.clone(), self.inner.id, self.name());
        let (policy, delay) = &self.inner.defaults;
        other.under(policy, *delay)
    }

    /// The same registry with the config's `[policy]` and `floors.shorten_delay` (else their defaults): where versions of a
    /// table that comes back from the trash would go sooner than when it was dropped, that waits for so long.
    pub fn under(&self, policy: &Policy, shorten_delay: Duration) -> Self {
        let inner = Inner {
            records: self.inner.records.again(),
            actor: self.inner.actor.clone(),
            id: self.inner.id,
            name: self.inner.name.clone(),
            defaults: (policy.clone(), shorten_delay),
            observed: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    fn with(records: Records, actor: Actor, id: Uuid, name: &str) -> Self {
        let (name, defaults) = (name.to_owned(), (Policy::default(), Floors::default().shorten_delay));
        let inner = Inner { records, actor, id, name, defaults, observed: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// The estate's id.
    pub fn id(&self) -> Uuid {
        self.inner.id
    }

    /// The estate's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The registry's canonical URI.
    pub fn uri(&self) -> &str {
        self.root().uri()
    }

    /// Who this handle writes as.
    pub fn actor(&self) -> &Actor {
        &self.inner.actor
    }

    pub(crate) fn root(&self) -> &Root {
        self.inner.records.root()
    }

    pub(crate) async fn load<T: Fields>(&self, id: &str) -> Result<Option<Arc<Record<T>>>> {
        let place = Place::of::<T>(id);
        self.inner.records.read::<T>(place).await?.strict(&format!("record {}/{id}", T::COLLECTION))
    }

    pub(crate) async fn change<T: Fields>(
        &self,
        id: &str,
        reason: Option<&str>,
        decide: impl FnMut(Option<&Record<T>>) -> Result<Change<T>>,
    ) -> Result<Option<Arc<Record<T>>>> {
        self.inner.records.update(Place::of::<T>(id), &self.inner.actor, reason, decide).await
    }

    /// Deletes a record if it still is the generation with this nonce.
    pub(crate) async fn remove_own<T: Fields>(&self, id: &str, nonce: Uuid, reason: Option<&str>) -> Result<()> {
        self.change::<T>(id, reason, |current| {
            Ok(if current.is_some_and(|c| c.meta.nonce == nonce) { Change::Delete } else { Change::Keep })
        })
        .await?;
        Ok(())
    }

    /// Deletes a record if it is there; the flag says whether it was.
    pub(crate) async fn remove<T: Fields>(&self, id: &str, reason: Option<&str>) -> Result<bool> {
        let mut was = false;
        self.change::<T>(id, reason, |current| {
            was = current.is_some();
            Ok(Change::Delete)
        })
        .await?;
        Ok(was)
    }

    /// Reads everything that decides about datasets: one LIST per collection, all at once, and a GET only for
    /// generations that this handle has never seen.
    ///
    /// # Errors
    /// What the store answers. [`Error::NoRegistry`] when the identity is gone and [`Error::OtherEstate`] when it is
    /// another one by now: a registry that was removed under a running process must not look like an empty one.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        let r = &self.inner.records;
        let mut unreadable = Vec::new();
        let mut tombstones = std::collections::BTreeMap::new();
        let (
            estate,
            projects,
            warehouses,
            namespaces,
            tables,
            locations,
            policies,
            protection,
            trash,
            blocks,
            contracts,
        ) = futures::try_join!(
            all::<Estate>(r),
            all(r),
            all(r),
            all(r),
            all(r),
            all(r),
            all(r),
            all(r),
            all(r),
            all(r),
            all(r)
        )?;
        macro_rules! take {
            ($part:expr, $collection:ident) => {{
                let part = $part;
                unreadable.extend(part.unreadable);
                tombstones.insert(Collection::$collection, part.tombstones);
                part.live
            }};
        }
        let estate = self.check_identity(take!(estate, Estate), &unreadable)?;
        let snapshot = Snapshot {
            estate,
            projects: Arc::new(take!(projects, Projects)),
            warehouses: Arc::new(take!(warehouses, Warehouses)),
            namespaces: Arc::new(take!(namespaces, Namespaces)),
            tables: Arc::new(take!(tables, Tables)),
            locations: Arc::new(take!(locations, Locations)),
            policies: Arc::new(take!(policies, Policies)),
            protection: Arc::new(take!(protection, Protection)),
            trash: Arc::new(take!(trash, Trash)),
            blocks: Arc::new(take!(blocks, Blocks)),
            contracts: Arc::new(take!(contracts, Contracts)),
            tombstones: Arc::default(),
            table_of: Arc::default(),
            trash_of: Arc::default(),
            unreadable,
        };
        Ok(Snapshot { tombstones: Arc::new(tombstones), ..snapshot }.index())
    }

    fn check_identity(
        &self,
        mut estates: ById<Estate>,
        unreadable: &[Unreadable],
    ) -> Result<Option<Arc<Record<Estate>>>> {
        match estates.remove("self") {
            Some(found) if found.fields.estate == self.inner.id => Ok(Some(found)),
            Some(found) => Err(Error::OtherEstate {
                root: self.uri().to_owned(),
                marked: found.fields.estate,
                ours: self.inner.id,
            }),
            // The record is there and damaged: enumeration goes on, and the finding is in everybody's scope.
            None if unreadable.iter().any(|u| u.collection == Collection::Estate) => Ok(None),
            None => Err(Error::NoRegistry { uri: self.uri().to_owned() }),
        }
    }

    /// Re-reads all that can newly forbid work on one dataset, for use before each commit and each chunk of deletes: its
    /// location, table and trash records, the warehouses, protection and policies along its chain, and all blocks.
    ///
    /// The result governs this dataset and no other. Costs a dozen small LISTs and GETs only of what is new.
    ///
    /// # Errors
    /// What the store answers; the caller then does not go on.
    pub async fn recheck(&self, previous: &Snapshot, uri: &str) -> Result<Snapshot> {
        let r = &self.inner.records;
        let (estate, warehouses, trash, blocks, location) = futures::try_join!(
            all::<Estate>(r),
            all::<crate::record::Warehouse>(r),
            all::<crate::record::Trash>(r),
            all::<Block>(r),
            one::<crate::record::Location>(r, uri),
        )?;
        let mut unreadable: Vec<Unreadable> = previous.unreadable.clone();
        unreadable.retain(|u| {
            !matches!(
                u.collection,
                Collection::Estate | Collection::Warehouses | Collection::Trash | Collection::Blocks
            )
        });
        unreadable.extend(estate.unreadable.iter().cloned());
        let identity = self.check_identity(estate.live, &unreadable)?;
        unreadable.extend(warehouses.unreadable);
        unreadable.extend(trash.unreadable);
        unreadable.extend(blocks.unreadable);

        let mut ids: Vec<String> = previous.table_at(uri).map(|t| t.meta.id.clone()).into_iter().collect();
        ids.extend(location.live.values().map(|l| l.fields.table.id()));
        ids.sort();
        ids.dedup();
        let tables = many::<crate::record::Table>(r, ids).await?;
        unreadable.extend(location.unreadable);
        unreadable.extend(tables.unreadable);

        let mut view = Snapshot {
            estate: identity,
            warehouses: Arc::new(warehouses.live),
            tables: Arc::new(tables.live),
            locations: Arc::new(location.live),
            trash: Arc::new(trash.live),
            blocks: Arc::new(blocks.live),
            unreadable: Vec::new(),
            ..previous.clone()
        }
        .index();
        let namespaces = many(r, view.namespaces_of(uri)).await?;
        unreadable.extend(namespaces.unreadable);
        view.namespaces = Arc::new(namespaces.live);
        let chain: Vec<String> = view.chain(uri).iter().map(Subject::to_string).collect();
        let (protection, policies) = futures::try_join!(many(r, chain.clone()), many(r, chain))?;
        unreadable.extend(protection.unreadable);
        unreadable.extend(policies.unreadable);
        view.protection = Arc::new(protection.live);
        view.policies = Arc::new(policies.live);
        unreadable.sort_by(|a, b| (a.collection, &a.key).cmp(&(b.collection, &b.key)));
        unreadable.dedup_by(|a, b| a.collection == b.collection && a.key == b.key);
        view.unreadable = unreadable;
        Ok(view)
    }

    /// Who changed what about a subject: every kept generation of its records, oldest first.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn log(&self, subject: &Subject) -> Result<Vec<LogLine>> {
        let r = &self.inner.records;
        let id = subject.id();
        let full = subject.to_string();
        let mut out = Vec::new();
        match subject {
            Subject::Estate => collect::<Estate>(r, "self", &mut out).await?,
            Subject::Project(_) => collect::<crate::record::Project>(r, &id, &mut out).await?,
            Subject::Warehouse(_) => collect::<crate::record::Warehouse>(r, &id, &mut out).await?,
            Subject::Namespace(_) => collect::<crate::record::Namespace>(r, &id, &mut out).await?,
            Subject::Table(_) => collect::<crate::record::Table>(r, &id, &mut out).await?,
            Subject::Dataset(uri) => collect::<crate::record::Location>(r, uri, &mut out).await?,
        }
        collect::<crate::record::PolicyRecord>(r, &full, &mut out).await?;
        collect::<crate::record::Protection>(r, &full, &mut out).await?;
        collect_about::<Block>(r, |b| &b.subject == subject, &mut out).await?;
        collect_about::<crate::record::Trash>(
            r,
            |t| &t.subject == subject || matches!(subject, Subject::Dataset(uri) if uri == &t.uri),
            &mut out,
        )
        .await?;
        out.sort_by_key(|line| (line.meta.as_ref().map(|m| m.updated_at), line.generation));
        Ok(out)
    }
}

/// One line of a subject's log.
#[derive(Debug, Clone, serde::Serialize)]
pub struct LogLine {
    /// The collection it stands in.
    pub collection: Collection,
    /// The generation's number.
    pub generation: u64,
    /// The envelope; `None` where the generation cannot be read.
    pub meta: Option<Meta>,
    /// The record's own fields; null for a tombstone.
    pub fields: serde_json::Value,
    /// Whether the generation is part of the record: a writer that lost a race leaves one that is not.
    pub effective: bool,
    /// Why it cannot be read.
    pub unreadable: Option<String>,
}

async fn collect<T: Fields>(records: &Records, id: &str, out: &mut Vec<LogLine>) -> Result<()> {
    let past = records.history::<T>(id).await?;
    let start = out.len();
    let mut next: Option<Option<Uuid>> = None;
    for generation in past.into_iter().rev() {
        let line = match generation {
            Ok(past) => {
                let effective = next.is_none_or(|nonce| nonce == Some(past.meta.nonce));
                if effective {
                    next = Some(past.meta.prev_nonce);
                }
                let fields = past.fields.and_then(|f| serde_json::to_value(f).ok()).unwrap_or_default();
                LogLine {
                    collection: T::COLLECTION,
                    generation: past.meta.generation,
                    meta: Some(past.meta),
                    fields,
                    effective,
                    unreadable: None,
                }
            }
            Err(u) => {
                next = None;
                LogLine {
                    collection: T::COLLECTION,
                    generation: u.generation,
                    meta: None,
                    fields: serde_json::Value::Null,
                    effective: true,
                    unreadable: Some(u.why),
                }
            }
        };
        out.push(line);
    }
    out[start..].reverse();
    Ok(())
}

/// The histories of all records of a collection that ever were about a subject.
async fn collect_about<T: Fields>(records: &Records, about: impl Fn(&T) -> bool, out: &mut Vec<LogLine>) -> Result<()> {
    for read in records.read_tops::<T>(None, records.list(T::COLLECTION, None).await?).await?.into_values() {
        let id = match &read {
            Read::Live(record) if about(&record.fields) => record.meta.id.clone(),
            Read::Tombstone(meta) => meta.id.clone(),
            _ => continue,
        };
        let mut lines = Vec::new();
        collect::<T>(records, &id, &mut lines).await?;
        let ours = lines.iter().any(|l| serde_json::from_value::<T>(l.fields.clone()).is_ok_and(|f| about(&f)));
        if ours {
            out.extend(lines);
        }
    }
    Ok(())
}

pub(crate) async fn all<T: Fields>(records: &Records) -> Result<crate::snapshot::Sorted<T>> {
    let listed = records.list(T::COLLECTION, None).await?;
    let mut reads = records.read_tops::<T>(None, listed).await?;
    // Pruned between LIST and GET: the record has a newer generation, which only another LIST of it shows.
    let again: Vec<String> =
        reads.iter().filter(|(_, read)| matches!(read, Read::Absent)).map(|(key, _)| key.clone()).collect();
    if !again.is_empty() {
        let mut fresh = records.list(T::COLLECTION, None).await?;
        fresh.retain(|key, _| again.contains(key));
        let second = records.read_tops::<T>(None, fresh).await?;
        if second.values().any(|read| matches!(read, Read::Absent)) {
            return Err(Error::InDoubt { doing: format!("reading the collection {}", T::COLLECTION) });
        }
        reads.extend(second);
    }
    Ok(sort(reads))
}

async fn one<T: Fields>(records: &Records, id: &str) -> Result<crate::snapshot::Sorted<T>> {
    many(records, vec![id.to_owned()]).await
}

async fn many<T: Fields>(records: &Records, ids: Vec<String>) -> Result<crate::snapshot::Sorted<T>> {
    let reads = futures::future::try_join_all(
        ids.into_iter()
            .map(|id| async move { records.read::<T>(Place::of::<T>(&id)).map_ok(|read| (id.clone(), read)).await }),
    )
    .await?;
    Ok(sort(reads.into_iter().collect()))
}
