//! A document becomes a registry again.
//!
//! Nothing that is there is replaced. What protects is written first, and the identity last: until then there is no
//! registry, and nothing acts on half of one. Cut off, the same import goes on (with `merge`, where there was a registry).

use std::collections::BTreeMap;

use chrono::Utc;
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;
use uuid::Uuid;

use crate::actor::Actor;
use crate::document::{Document, Object};
use crate::error::{Error, Result};
use crate::generation::{Generation, Place, Read};
use crate::identity;
use crate::probe;
use crate::record::{Collection, Estate, Meta, parse};
use crate::registry::{RECORD_HISTORY, Registry};
use crate::storage::{PutOutcome, Root, StorageOptions};
use crate::store::Records;

/// Records that are written at the same time.
const WRITES: usize = 32;

/// What an import would do.
#[derive(Debug, Clone, Serialize)]
pub struct ImportPlan {
    /// Where.
    pub registry: String,
    /// The document's estate.
    pub estate: Uuid,
    /// There is no registry there yet: it becomes this estate's.
    pub makes_registry: bool,
    /// Records that would be written, by collection.
    pub creates: BTreeMap<Collection, usize>,
    /// Records that are there already, the same or newer.
    pub same: usize,
    /// Records that are there and differ: they stay as they are.
    pub kept: Vec<String>,
    /// Claims that would be written; each gets a generation of its own, so that nobody who held it still does.
    pub claims_raised: usize,
    /// What to know before.
    pub notes: Vec<String>,
    #[serde(skip)]
    writes: Vec<Write>,
    #[serde(skip)]
    root: Root,
}

/// One record's missing generations, oldest first.
#[derive(Debug, Clone)]
struct Write {
    collection: Collection,
    objects: Vec<Object>,
    raise: bool,
}

impl ImportPlan {
    /// Compares a document with what is at `uri`. Writes nothing.
    ///
    /// # Errors
    /// [`Error::Refused`] for a registry that holds records, without `merge`; [`Error::OtherEstate`] where the root around
    /// the new registry is marked as another estate's; what the store answers.
    pub async fn make(uri: &str, options: &StorageOptions, document: &Document, merge: bool) -> Result<Self> {
        let root = Root::open(uri, options)?;
        let records = Records::new(root.clone(), RECORD_HISTORY);
        let there = records.read::<Estate>(Place::of::<Estate>("self")).await?;
        let mut notes = Vec::new();
        let makes_registry = match &there {
            Read::Live(estate) => {
                if estate.fields.estate != document.estate {
                    notes.push(format!(
                        "the registry there is estate {}, the document's is {}: roots marked as the latter stay \
                         `registry_lost`. Import into an empty place to take its identity",
                        estate.fields.estate, document.estate
                    ));
                }
                false
            }
            Read::Unreadable(u) => {
                return Err(Error::Unreadable { what: format!("the identity at {uri}"), why: u.why.clone() });
            }
            Read::Absent | Read::Tombstone(_) => {
                if let Some(lake) = identity::lake_of(&root) {
                    identity::refuse_foreign(&lake, document.estate).await?;
                }
                true
            }
        };
        let unreadable = document.unreadable();
        if let Some(first) = unreadable.first() {
            let count = unreadable.len();
            notes
                .push(format!("{count} objects are unreadable and come along as they are, {first} first; see `check`"));
        }
        let mut plan = Self {
            registry: root.uri().to_owned(),
            estate: document.estate,
            makes_registry,
            creates: BTreeMap::new(),
            same: 0,
            kept: Vec::new(),
            claims_raised: 0,
            notes,
            writes: Vec::new(),
            root,
        };
        plan.compare(&records, document, merge).await?;
        Ok(plan)
    }

    async fn compare(&mut self, records: &Records, document: &Document, merge: bool) -> Result<()> {
        let mut groups: BTreeMap<(Collection, Option<String>, String), Vec<Object>> = BTreeMap::new();
        for object in &document.objects {
            let mut object = object.clone();
            // A bucket's keys and a local root's differ; the id is what counts.
            if let Some(meta) = object.meta() {
                object.key = records.key(object.collection, &meta.id);
            }
            let place = (object.collection, object.partition.clone(), object.key.clone());
            groups.entry(place).or_default().push(object);
        }
        let mut held = 0;
        let mut there: BTreeMap<(Collection, Option<String>, String), Vec<Generation>> = BTreeMap::new();
        for collection in <Collection as strum::IntoEnumIterator>::iter() {
            for (partition, key, generation) in records.list_all(collection).await? {
                let own = matches!(collection, Collection::Estate | Collection::Probes);
                held += usize::from(!own);
                there.entry((collection, partition, key)).or_default().push(generation);
            }
        }
        // An import that was cut off before it made the registry goes on.
        if held > 0 && !merge && !self.makes_registry {
            return Err(Error::Refused(format!(
                "the registry at {} holds records; --merge adds what is missing and leaves what is there as it is",
                self.registry
            )));
        }
        for (place, mut objects) in groups {
            objects.sort_by_key(|o| o.generation);
            let found = there.remove(&place).unwrap_or_default();
            self.compare_one(place.0, objects, found).await?;
        }
        self.writes.sort_by_key(|w| order(w.collection));
        Ok(())
    }

    async fn compare_one(
        &mut self,
        collection: Collection,
        objects: Vec<Object>,
        mut found: Vec<Generation>,
    ) -> Result<()> {
        let raise =
            collection == Collection::Claims && objects.last().and_then(Object::meta).is_some_and(|m| !m.deleted);
        found.sort_by_key(|g| g.number);
        let Some(top) = found.last() else {
            *self.creates.entry(collection).or_default() += 1;
            self.claims_raised += usize::from(raise);
            self.writes.push(Write { collection, objects, raise });
            return Ok(());
        };
        let bytes = self.root.get(&top.path).await?.unwrap_or_default();
        let same = |o: &Object| o.body.bytes().is_ok_and(|own| own == bytes);
        let newest = objects.last().map_or(0, |o| o.generation);
        if let Some(at) = objects.iter().position(|o| o.generation == top.number && same(o)) {
            let rest = objects[at + 1..].to_vec();
            if rest.is_empty() {
                self.same += 1;
            } else {
                *self.creates.entry(collection).or_default() += 1;
                self.writes.push(Write { collection, objects: rest, raise });
            }
        } else if top.number > newest && self.follows(&objects, &found).await? {
            self.same += 1;
        } else if collection != Collection::Estate && collection != Collection::Probes {
            self.kept.push(objects.last().map(Object::name).unwrap_or_default());
        }
        Ok(())
    }

    /// Whether what is there is a later state of the document's record.
    async fn follows(&self, objects: &[Object], found: &[Generation]) -> Result<bool> {
        let Some(newest) = objects.last() else { return Ok(true) };
        let Some(there) = found.iter().find(|g| g.number >= newest.generation) else { return Ok(false) };
        let Some(bytes) = self.root.get(&there.path).await? else { return Ok(false) };
        let own = newest.meta();
        Ok(match parse(&bytes) {
            Ok((meta, _)) if there.number == newest.generation => own.is_some_and(|o| o.nonce == meta.nonce),
            // The document's newest generation was pruned there since.
            Ok((meta, _)) => own.is_some_and(|o| meta.prev_nonce == Some(o.nonce)),
            Err(_) => false,
        })
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Does it, and opens the registry.
    ///
    /// # Errors
    /// [`Error::LyingStore`], [`Error::LostRace`] when somebody else wrote one of the records meanwhile, what the store
    /// answers: the same import goes on.
    pub async fn apply(&self, actor: Actor) -> Result<Registry> {
        if self.makes_registry {
            probe::run(&self.root).await?;
        }
        let records = Records::new(self.root.clone(), RECORD_HISTORY);
        let (identity, rest): (Vec<&Write>, Vec<&Write>) =
            self.writes.iter().partition(|w| w.collection == Collection::Estate);
        // One kind after the other: what refers to something comes after it.
        for same in rest.chunk_by(|a, b| order(a.collection) == order(b.collection)) {
            futures::stream::iter(same)
                .map(|write| self.write(&records, write, &actor))
                .buffer_unordered(WRITES)
                .try_collect::<Vec<()>>()
                .await?;
        }
        for write in identity {
            self.write(&records, write, &actor).await?;
        }
        let registry = Registry::open_at(self.root.clone(), actor).await?;
        if let Some(lake) = identity::lake_of(&self.root).filter(|_| self.makes_registry) {
            registry.record_probe(&self.root).await?;
            registry.mark(&lake).await?;
        }
        Ok(registry)
    }

    async fn write(&self, records: &Records, write: &Write, actor: &Actor) -> Result<()> {
        for object in &write.objects {
            let bytes = object.body.bytes().map_err(Error::Invalid)?;
            self.put(records, object, bytes).await?;
        }
        let last = write.objects.last().filter(|_| write.raise);
        if let Some((object, meta)) = last.and_then(|o| o.meta().map(|meta| (o, meta))) {
            let raised = raised(object, &meta, actor)?;
            let bytes = raised.body.bytes().map_err(Error::Invalid)?;
            self.put(records, &raised, bytes).await?;
        }
        Ok(())
    }

    async fn put(&self, records: &Records, object: &Object, bytes: bytes::Bytes) -> Result<()> {
        let path =
            records.object_path(object.collection, object.partition.as_deref(), &object.key, object.generation)?;
        let outcome = self.root.create(&path, bytes.clone()).await;
        if matches!(outcome, PutOutcome::Created) {
            return Ok(());
        }
        match (self.root.get(&path).await?, outcome) {
            (Some(found), _) if found == bytes => Ok(()),
            (Some(_), _) => Err(Error::LostRace { what: object.name(), attempts: 1 }),
            (None, PutOutcome::Unknown(e)) => Err(Error::store(format!("writing {path} of {}", self.registry), e)),
            (None, _) => Err(Error::InDoubt { doing: format!("writing {path} of {}", self.registry) }),
        }
    }
}

/// The next generation of a claim, which its holder does not know.
fn raised(object: &Object, meta: &Meta, actor: &Actor) -> Result<Object> {
    let next = Meta {
        generation: meta.generation + 1,
        nonce: Uuid::new_v4(),
        prev_nonce: Some(meta.nonce),
        updated_at: Utc::now(),
        updated_by: actor.clone(),
        reason: Some("import".into()),
        ..meta.clone()
    };
    let bytes = object.body.bytes().map_err(Error::Invalid)?;
    let (_, fields) = parse(&bytes).map_err(Error::Invalid)?;
    let bytes = crate::record::render::<serde_json::Map<String, serde_json::Value>>(&next, Some(&fields), &fields);
    let value = serde_json::from_slice(&bytes).map_err(|e| Error::Invalid(e.to_string()))?;
    Ok(Object { generation: next.generation, body: crate::document::Body::Record(value), ..object.clone() })
}

/// What protects comes first, parents before children, locations before tables, and the fleet's own last.
fn order(collection: Collection) -> usize {
    use Collection as C;
    const ORDER: [Collection; 11] = [
        C::Protection,
        C::Blocks,
        C::Trash,
        C::Contracts,
        C::Policies,
        C::Projects,
        C::Warehouses,
        C::Namespaces,
        C::Locations,
        C::Tables,
        C::Estate,
    ];
    ORDER.iter().position(|c| *c == collection).unwrap_or(ORDER.len())
}
