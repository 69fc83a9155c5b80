//! Generations: list, decide, put-if-absent, confirm.
//!
//! The races, as `design/registry.md` (Records) states them:
//! - a put starts only within [`DECISION`] of the LIST it was decided on, so that, its own time included, it has
//!   landed or failed before a superseded generation can be pruned;
//! - after a won put the record is listed again: a higher generation that does not chain to ours means that we lost;
//! - a refused put re-reads: our nonce there means that only the answer was lost, nothing there means in doubt.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use rand::Rng;
use tokio::time::Instant;
use uuid::Uuid;

use crate::actor::Actor;
use crate::error::{Error, Kind, Result};
use crate::generation::{Change, Generation, Past, Place, Read, generation};
use crate::key;
use crate::record::{Collection, Fields, Meta, Record, SCHEMA, Unreadable, level, parse, render, typed};
use crate::storage::{PutOutcome, Root};

/// A put may run this long after the LIST that it was decided on.
const DECISION: Duration = Duration::from_secs(60);
/// How long one put may take with its client's retries; it starts only where this fits into [`DECISION`].
const PUT: Duration = Duration::from_secs(35);
/// A generation may be pruned when its successor is older than this.
const PRUNE_AFTER: chrono::TimeDelta = chrono::TimeDelta::hours(24);
/// Attempts before a writer gives up against faster ones.
const ATTEMPTS: u32 = 200;
/// Attempts before a writer gives up on a store that leaves it in doubt.
const DOUBTS: u32 = 6;
/// Records read at the same time.
const READS: usize = 32;
/// Records of its own that a process keeps besides those of a snapshot: its claims and jobs are many writes to few records.
const KEPT: usize = 256;
/// The largest of these, in bytes.
const KEPT_SIZE: u64 = 16 << 10;

/// What a cached parse was made from.
type Stamp = (u64, DateTime<Utc>, Option<String>, u64);

/// A collection with its partition, and a key.
type Slot = (String, String);

#[derive(Clone)]
struct Cached {
    stamp: Stamp,
    value: Arc<dyn Any + Send + Sync>,
}

/// All records below one control root.
pub(crate) struct Records {
    root: Root,
    history: chrono::TimeDelta,
    cache: Mutex<HashMap<Slot, Cached>>,
    /// Records of other collections that this process wrote last.
    written: Mutex<HashMap<Slot, Cached>>,
}

impl Records {
    pub(crate) fn new(root: Root, history: Duration) -> Self {
        let history = chrono::TimeDelta::from_std(history).unwrap_or(chrono::TimeDelta::MAX);
        Self { root, history, cache: Mutex::default(), written: Mutex::default() }
    }

    /// The same records, with nothing read yet.
    pub(crate) fn again(&self) -> Self {
        Self { root: self.root.clone(), history: self.history, cache: Mutex::default(), written: Mutex::default() }
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    /// The key of an id in a collection.
    pub(crate) fn key(&self, collection: Collection, id: &str) -> String {
        match collection {
            Collection::Locations | Collection::Claims => key::hash(id),
            _ => key::encode(id, self.root.is_local()),
        }
    }

    fn dir(&self, collection: Collection, partition: Option<&str>) -> Result<Path> {
        let mut segments = vec!["v1", collection.as_str()];
        segments.extend(partition);
        self.root.path(&segments)
    }

    fn record_dir(&self, place: Place<'_>) -> Result<Path> {
        let key = self.key(place.collection, place.id);
        let mut segments = vec!["v1", place.collection.as_str()];
        segments.extend(place.partition);
        segments.push(&key);
        self.root.path(&segments)
    }

    fn lock<'a>(&self, map: &'a Mutex<HashMap<Slot, Cached>>) -> MutexGuard<'a, HashMap<Slot, Cached>> {
        // The map is only ever replaced entry by entry, so a panic elsewhere leaves it usable.
        map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One LIST of a collection: every key with its generations, oldest first.
    pub(crate) async fn list(
        &self,
        collection: Collection,
        partition: Option<&str>,
    ) -> Result<BTreeMap<String, Vec<Generation>>> {
        let dir = self.dir(collection, partition)?;
        let mut keys: BTreeMap<String, Vec<Generation>> = BTreeMap::new();
        for meta in self.root.list(&dir).await? {
            let Some(parts) = meta.location.prefix_match(&dir) else { continue };
            let parts: Vec<String> = parts.map(|p| p.as_ref().to_owned()).collect();
            // Deeper objects belong to another partition of the same collection.
            let [key, name] = parts.as_slice() else { continue };
            if let Some(found) = generation(name, meta) {
                keys.entry(key.clone()).or_default().push(found);
            }
        }
        keys.values_mut().for_each(|g| g.sort_by_key(|g| g.number));
        Ok(keys)
    }

    /// One LIST of everything in a collection, partitions included: partition, key and generation.
    pub(crate) async fn list_all(&self, collection: Collection) -> Result<Vec<(Option<String>, String, Generation)>> {
        let dir = self.dir(collection, None)?;
        let mut out = Vec::new();
        for meta in self.root.list(&dir).await? {
            let Some(parts) = meta.location.prefix_match(&dir) else { continue };
            let mut parts: Vec<String> = parts.map(|p| p.as_ref().to_owned()).collect();
            let (Some(name), Some(key)) = (parts.pop(), parts.pop()) else { continue };
            if parts.len() > 1 {
                continue;
            }
            out.extend(generation(&name, meta).map(|found| (parts.pop(), key, found)));
        }
        Ok(out)
    }

    /// How long superseded generations of governing records, and runs, are kept.
    pub(crate) fn kept_for(&self) -> chrono::TimeDelta {
        self.history.max(PRUNE_AFTER)
    }

    /// The runs at the beginning of the collection, as far as all that was listed of them is `old`: a page or two of it,
    /// where the store lists in order.
    pub(crate) async fn list_oldest_runs(
        &self,
        old: impl Fn(DateTime<Utc>) -> bool,
    ) -> Result<BTreeMap<String, Vec<Generation>>> {
        let dir = self.dir(Collection::Runs, None)?;
        let mut out: BTreeMap<String, Vec<Generation>> = BTreeMap::new();
        for meta in self.root.list_while(&dir, |meta| old(meta.last_modified)).await? {
            let parts: Vec<String> = match meta.location.prefix_match(&dir) {
                Some(parts) => parts.map(|p| p.as_ref().to_owned()).collect(),
                None => continue,
            };
            let [run, name] = parts.as_slice() else { continue };
            if let Some(found) = generation(name, meta) {
                out.entry(run.clone()).or_default().push(found);
            }
        }
        Ok(out)
    }

    /// One LIST of a record: its generations, oldest first.
    pub(crate) async fn generations(&self, place: Place<'_>) -> Result<Vec<Generation>> {
        let dir = self.record_dir(place)?;
        let mut found: Vec<Generation> = self
            .root
            .list(&dir)
            .await?
            .into_iter()
            .filter_map(|meta| generation(meta.location.filename().unwrap_or_default().to_owned().as_str(), meta))
            .collect();
        found.sort_by_key(|g| g.number);
        Ok(found)
    }

    /// The newest generations of many records, from their listed tops; what was seen before is not read again.
    pub(crate) async fn read_tops<T: Fields>(
        &self,
        partition: Option<&str>,
        keys: BTreeMap<String, Vec<Generation>>,
    ) -> Result<BTreeMap<String, Read<T>>> {
        futures::stream::iter(keys)
            .map(|(key, generations)| async move {
                let read = match generations.last() {
                    Some(top) => self.read_listed::<T>(partition, &key, top).await?,
                    None => Read::Absent,
                };
                Ok((key, read))
            })
            .buffer_unordered(READS)
            .try_collect()
            .await
    }

    /// The newest generation of one record, listed now.
    pub(crate) async fn read<T: Fields>(&self, place: Place<'_>) -> Result<Read<T>> {
        let key = self.key(place.collection, place.id);
        for _ in 0..3 {
            let generations = self.generations(place).await?;
            let Some(top) = generations.last() else { return Ok(Read::Absent) };
            let read = self.read_listed::<T>(place.partition, &key, top).await?;
            match &read {
                // Pruned between the LIST and the GET: a newer one exists by now.
                Read::Absent => continue,
                Read::Live(record) if record.meta.id != place.id => {
                    return Ok(Read::Unreadable(unreadable::<T>(&key, top.number, "it holds another id".into())));
                }
                _ => return Ok(read),
            }
        }
        Err(Error::InDoubt { doing: format!("reading {}", place.what()) })
    }

    async fn read_listed<T: Fields>(&self, partition: Option<&str>, key: &str, top: &Generation) -> Result<Read<T>> {
        let (stamp, slot) = (stamp(top), slot::<T>(partition, key));
        let map = if Collection::SNAPSHOT.contains(&T::COLLECTION) { &self.cache } else { &self.written };
        let cached = self.lock(map).get(&slot).filter(|c| c.stamp == stamp).cloned();
        if let Some(read) = cached.and_then(|c| c.value.downcast::<Read<T>>().ok()) {
            return Ok(Read::clone(&read));
        }
        let bytes = match self.root.get(&top.path).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(Read::Absent),
            // One record that may not be read is that record's trouble, not everybody's; it is not remembered.
            Err(e) if e.kind() == Kind::Permanent => {
                return Ok(Read::Unreadable(unreadable::<T>(key, top.number, e.to_string())));
            }
            Err(e) => return Err(e),
        };
        let read = self.interpret::<T>(key, top.number, &bytes);
        // Whole generations are immutable; state and runs are large and read once.
        if Collection::SNAPSHOT.contains(&T::COLLECTION) {
            self.lock(&self.cache).insert(slot, Cached { stamp, value: Arc::new(read.clone()) });
        }
        Ok(read)
    }

    fn interpret<T: Fields>(&self, key: &str, number: u64, bytes: &[u8]) -> Read<T> {
        let wrong = |why: String| Read::Unreadable(unreadable::<T>(key, number, why));
        let (meta, body) = match parse(bytes) {
            Ok(parsed) => parsed,
            Err(why) => return wrong(why),
        };
        if self.key(T::COLLECTION, &meta.id) != key {
            return wrong(format!("its id `{}` does not belong under this key", meta.id));
        }
        if meta.generation != number {
            return wrong(format!("it says that it is generation {}", meta.generation));
        }
        if meta.deleted {
            return Read::Tombstone(meta);
        }
        match typed::<T>(meta, body) {
            Ok(record) => Read::Live(Arc::new(record)),
            Err(why) => wrong(why),
        }
    }

    /// Every kept generation of a record, oldest first, as its envelope and its other fields.
    pub(crate) async fn history<T: Fields>(&self, id: &str) -> Result<Vec<std::result::Result<Past<T>, Unreadable>>> {
        let place = Place::of::<T>(id);
        let key = self.key(T::COLLECTION, id);
        let mut out = Vec::new();
        for generation in self.generations(place).await? {
            let Some(bytes) = self.root.get(&generation.path).await? else { continue };
            out.push(match self.interpret::<T>(&key, generation.number, &bytes) {
                Read::Live(record) => Ok(Past { meta: record.meta.clone(), fields: Some(record.fields.clone()) }),
                Read::Tombstone(meta) => Ok(Past { meta, fields: None }),
                Read::Unreadable(u) => Err(u),
                Read::Absent => continue,
            });
        }
        Ok(out)
    }

    /// Reads a record, lets `decide` say what becomes of it, and writes the next generation; again from the start
    /// whenever another writer was faster. Returns the record as it then is, `None` where it is deleted or absent.
    ///
    /// # Errors
    /// What `decide` refuses; an unreadable record is never written over.
    pub(crate) async fn update<T: Fields>(
        &self,
        place: Place<'_>,
        actor: &Actor,
        reason: Option<&str>,
        mut decide: impl FnMut(Option<&Record<T>>) -> Result<Change<T>>,
    ) -> Result<Option<Arc<Record<T>>>> {
        let mut tried = Vec::new();
        let mut doubts = 0;
        for attempt in 1..=ATTEMPTS {
            let listed_at = Instant::now();
            let generations = self.generations(place).await?;
            let (current, previous) = self.current::<T>(place, &generations).await?;
            let Some((meta, bytes)) =
                compose(place, actor, reason, &generations, current.as_deref(), previous, &mut decide)?
            else {
                return Ok(current);
            };
            if listed_at.elapsed() + PUT > DECISION {
                // Too slow to be sure that the put would end in time; what was decided is stale.
                doubts += 1;
                if doubts >= DOUBTS {
                    return Err(Error::InDoubt { doing: format!("writing {}", place.what()) });
                }
                continue;
            }
            tried.push(meta.nonce);
            match self.put(place, meta.generation, bytes, &tried, listed_at + DECISION).await? {
                Put::Ours(written) => {
                    let listed = match written.listed {
                        Some(listed) => listed?,
                        None => self.generations(place).await?,
                    };
                    if self.confirm(place, &written.meta, &listed).await? {
                        self.keep(place, &listed, written.record.as_ref());
                        return Ok(written.record);
                    }
                }
                Put::Theirs => {}
                Put::Doubt(cause) => {
                    doubts += 1;
                    if doubts >= DOUBTS {
                        return Err(
                            cause.unwrap_or_else(|| Error::InDoubt { doing: format!("writing {}", place.what()) })
                        );
                    }
                }
            }
            pause(attempt).await;
        }
        Err(Error::LostRace { what: place.what(), attempts: ATTEMPTS })
    }

    /// The top of a listing: the live record, and the envelope that the next generation chains to.
    async fn current<T: Fields>(
        &self,
        place: Place<'_>,
        generations: &[Generation],
    ) -> Result<(Option<Arc<Record<T>>>, Option<Meta>)> {
        let Some(top) = generations.last() else { return Ok((None, None)) };
        let key = self.key(place.collection, place.id);
        match self.read_listed::<T>(place.partition, &key, top).await? {
            Read::Absent => Err(Error::InDoubt { doing: format!("reading {}", place.what()) }),
            Read::Tombstone(meta) => Ok((None, Some(meta))),
            Read::Unreadable(u) => Err(Error::Unreadable { what: place.what(), why: u.why }),
            Read::Live(record) if record.meta.id != place.id => Err(Error::Unreadable {
                what: place.what(),
                why: format!("its place holds the id `{}`", record.meta.id),
            }),
            Read::Live(record) => {
                let meta = record.meta.clone();
                Ok((Some(record), Some(meta)))
            }
        }
    }

    async fn put<T: Fields>(
        &self,
        place: Place<'_>,
        number: u64,
        bytes: Bytes,
        tried: &[Uuid],
        deadline: Instant,
    ) -> Result<Put<T>> {
        let path = self.generation_path(place, number)?;
        let outcome = tokio::time::timeout_at(deadline, self.root.create(&path, bytes)).await;
        // Created, too, is read back: what counts is what stands there.
        let mut doubt = None;
        let created = match outcome {
            Ok(PutOutcome::Created) => true,
            Ok(PutOutcome::Unknown(e)) => {
                // An answer was given, and it was no; or none was, and then only looking tells.
                let e = Error::store(format!("writing {} of {}", path, self.root.uri()), e);
                if matches!(e.kind(), Kind::Permanent | Kind::NotFound) {
                    return Err(e);
                }
                doubt = Some(e);
                false
            }
            Ok(PutOutcome::Refused) | Err(_) => false,
        };
        // What stands there, and what stands above it: neither needs the other's answer, both are asked after the put.
        let (found, listed) = match created {
            true => {
                let (found, listed) = tokio::join!(self.root.get(&path), self.generations(place));
                (found?, Some(listed))
            }
            false => (self.root.get(&path).await?, None),
        };
        let Some(found) = found else {
            if created {
                return Err(Error::LyingStore {
                    store: self.root.uri().to_owned(),
                    what: format!("it acknowledged {path} and does not have it"),
                });
            }
            return Ok(Put::Doubt(doubt));
        };
        let key = self.key(place.collection, place.id);
        let (meta, read) = match self.interpret::<T>(&key, number, &found) {
            Read::Live(record) => (record.meta.clone(), Some(record)),
            Read::Tombstone(meta) => (meta, None),
            Read::Unreadable(_) | Read::Absent => return Ok(Put::Theirs),
        };
        if !tried.contains(&meta.nonce) {
            return Ok(Put::Theirs);
        }
        Ok(Put::Ours(Written { meta, record: read, listed }))
    }

    /// Keeps what this process wrote itself, so that its next write of the same record lists it and need not read it.
    fn keep<T: Fields>(&self, place: Place<'_>, listed: &[Generation], record: Option<&Arc<Record<T>>>) {
        if Collection::SNAPSHOT.contains(&place.collection) {
            return;
        }
        let slot = slot::<T>(place.partition, &self.key(place.collection, place.id));
        let top = listed.last().filter(|top| top.size <= KEPT_SIZE);
        let mut written = self.lock(&self.written);
        let (Some(top), Some(record)) = (top, record) else {
            written.remove(&slot);
            return;
        };
        if record.meta.generation != top.number {
            return;
        }
        if written.len() >= KEPT {
            written.clear();
        }
        written.insert(slot, Cached { stamp: stamp(top), value: Arc::new(Read::Live(record.clone())) });
    }

    fn generation_path(&self, place: Place<'_>, number: u64) -> Result<Path> {
        self.object_path(place.collection, place.partition, &self.key(place.collection, place.id), number)
    }

    /// Where a generation of a key lies.
    pub(crate) fn object_path(
        &self,
        collection: Collection,
        partition: Option<&str>,
        key: &str,
        number: u64,
    ) -> Result<Path> {
        let name = format!("{number:020}.json");
        let mut segments = vec!["v1", collection.as_str()];
        segments.extend(partition);
        segments.extend([key, name.as_str()]);
        self.root.path(&segments)
    }

    /// Whether a put that landed is part of the record: nothing above it, or what is above chains to it. A writer that
    /// decided on a listing older than a prune lands below the top and is found out here.
    async fn confirm(&self, place: Place<'_>, ours: &Meta, generations: &[Generation]) -> Result<bool> {
        let Some(top) = generations.last() else { return Ok(false) };
        if top.number == ours.generation {
            self.prune(place, generations).await;
            return Ok(true);
        }
        let Some(next) = generations.iter().find(|g| g.number == ours.generation + 1) else { return Ok(false) };
        let Some(bytes) = self.root.get(&next.path).await? else { return Ok(false) };
        match parse(&bytes) {
            Ok((meta, _)) => Ok(meta.prev_nonce == Some(ours.nonce)),
            // What stands above cannot be read, so nobody can say that we are part of it.
            Err(_) => Ok(false),
        }
    }

    /// Drops superseded generations whose successor is old enough by the store's own clock (that of our newest object).
    /// The top stays, so a tombstone never becomes nothing. Failing to prune is no failure of the write.
    async fn prune(&self, place: Place<'_>, generations: &[Generation]) {
        let Some(now) = generations.last().map(|g| g.modified) else { return };
        let keep = if place.collection.keeps_history() { self.kept_for() } else { PRUNE_AFTER };
        for pair in generations.windows(2) {
            if now - pair[1].modified <= keep {
                break;
            }
            if let Err(e) = self.root.delete(&pair[0].path).await {
                tracing::debug!(record = place.what(), error = %e, "a superseded generation was not pruned");
                return;
            }
        }
    }
}

struct Written<T> {
    meta: Meta,
    record: Option<Arc<Record<T>>>,
    /// The record's generations, listed after the put.
    listed: Option<Result<Vec<Generation>>>,
}

enum Put<T> {
    Ours(Written<T>),
    Theirs,
    Doubt(Option<Error>),
}

fn compose<T: Fields>(
    place: Place<'_>,
    actor: &Actor,
    reason: Option<&str>,
    generations: &[Generation],
    current: Option<&Record<T>>,
    previous: Option<Meta>,
    decide: &mut impl FnMut(Option<&Record<T>>) -> Result<Change<T>>,
) -> Result<Option<(Meta, Bytes)>> {
    let (fields, deleted) = match decide(current)? {
        Change::Keep => return Ok(None),
        Change::Delete if current.is_none() => return Ok(None),
        Change::Delete => (None, true),
        Change::Put(fields) => (Some(fields), false),
    };
    let meta = Meta {
        schema: SCHEMA.to_owned(),
        kind: T::KIND.to_owned(),
        id: place.id.to_owned(),
        generation: generations.last().map_or(1, |g| g.number + 1),
        nonce: Uuid::new_v4(),
        prev_nonce: previous.map(|p| p.nonce),
        min_reader: current.map_or_else(level, |r| r.meta.min_reader),
        updated_at: Utc::now(),
        updated_by: actor.clone(),
        reason: reason.map(str::to_owned),
        deleted,
    };
    let nothing = serde_json::Map::new();
    let extra = current.filter(|_| !deleted).map_or(&nothing, |r| &r.extra);
    let bytes = Bytes::from(render(&meta, fields.as_ref(), extra));
    Ok(Some((meta, bytes)))
}

fn stamp(generation: &Generation) -> Stamp {
    (generation.number, generation.modified, generation.e_tag.clone(), generation.size)
}

fn slot<T: Fields>(partition: Option<&str>, key: &str) -> Slot {
    (format!("{}/{}", T::COLLECTION, partition.unwrap_or_default()), key.to_owned())
}

fn unreadable<T: Fields>(key: &str, generation: u64, why: String) -> Unreadable {
    let id = match T::COLLECTION {
        Collection::Locations | Collection::Claims => None,
        _ => key::decode(key),
    };
    Unreadable { collection: T::COLLECTION, key: key.to_owned(), id, generation, why }
}

/// A short random wait that grows with the attempts, so that racing writers spread out.
async fn pause(attempt: u32) {
    let ceiling = (1u64 << attempt.min(7)).min(100);
    let wait = rand::rng().random_range(0..=ceiling);
    tokio::time::sleep(Duration::from_millis(wait)).await;
}
