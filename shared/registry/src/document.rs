//! The whole registry as one JSON document, and back.
//!
//! Every object of every record collection is in it as it is, history and tombstones included, so that a round trip is
//! exact; what cannot be understood goes along as text. The objects that slices of a compaction hand to one another are no
//! records and stay out.

use std::collections::BTreeMap;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::IntoEnumIterator;
use uuid::Uuid;

use crate::actor::Actor;
use crate::error::{Error, Result};
use crate::record::{Collection, Estate, Meta, parse, typed};
use crate::registry::Registry;

/// Reads the bytes of one generation as a record of a collection, as every reader does.
///
/// # Errors
/// Why it is unreadable, in one sentence.
pub fn read_record(collection: Collection, bytes: &[u8]) -> std::result::Result<Meta, String> {
    use crate::record as r;
    let (meta, body) = parse(bytes)?;
    if meta.deleted {
        return Ok(meta);
    }
    match collection {
        Collection::Estate => typed::<Estate>(meta, body).map(|r| r.meta),
        Collection::Projects => typed::<r::Project>(meta, body).map(|r| r.meta),
        Collection::Warehouses => typed::<r::Warehouse>(meta, body).map(|r| r.meta),
        Collection::Namespaces => typed::<r::Namespace>(meta, body).map(|r| r.meta),
        Collection::Tables => typed::<r::Table>(meta, body).map(|r| r.meta),
        Collection::Locations => typed::<r::Location>(meta, body).map(|r| r.meta),
        Collection::Policies => typed::<r::PolicyRecord>(meta, body).map(|r| r.meta),
        Collection::Protection => typed::<r::Protection>(meta, body).map(|r| r.meta),
        Collection::Trash => typed::<r::Trash>(meta, body).map(|r| r.meta),
        Collection::Blocks => typed::<crate::blocks::Block>(meta, body).map(|r| r.meta),
        Collection::Contracts => typed::<crate::contract::ContractRecord>(meta, body).map(|r| r.meta),
        Collection::Claims => typed::<crate::claims::ClaimRecord>(meta, body).map(|r| r.meta),
        Collection::State => typed::<crate::state::Shard>(meta, body).map(|r| r.meta),
        Collection::Runs => typed::<crate::runs::RunRecord>(meta, body).map(|r| r.meta),
        Collection::RunEntries => typed::<crate::attempts::Attempts>(meta, body).map(|r| r.meta),
        Collection::Probes => typed::<crate::probe::Probe>(meta, body).map(|r| r.meta),
        Collection::Schedule => typed::<crate::schedule::Published>(meta, body).map(|r| r.meta),
        Collection::Budget => typed::<crate::budget::Spending>(meta, body).map(|r| r.meta),
        Collection::Jobs => typed::<crate::jobs::Job>(meta, body).map(|r| r.meta),
    }
}

/// The schema word of a document.
pub const DOCUMENT: &str = "squire.registry.v1";
/// Objects that are read at the same time.
const READS: usize = 32;

/// A registry as one value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Always [`DOCUMENT`].
    pub schema: String,
    /// The estate's id.
    pub estate: Uuid,
    /// The estate's name.
    pub name: String,
    /// When it was read; collections are read one after another.
    pub exported_at: DateTime<Utc>,
    /// Who read it.
    pub exported_by: Actor,
    /// Every object, by collection, key and generation.
    pub objects: Vec<Object>,
}

/// One generation of one record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Object {
    /// Its collection.
    pub collection: Collection,
    /// The run that it belongs to, for an entry of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The name of its directory; it differs between a local root and a bucket.
    pub key: String,
    /// Its number.
    pub generation: u64,
    /// What is in it.
    #[serde(flatten)]
    pub body: Body,
}

/// The bytes of an object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// A record: its bytes are this value as every build writes it.
    Record(Value),
    /// Text that is no record, or not as every build writes it.
    Text(String),
    /// Bytes that are no text, in hex.
    Hex(String),
}

impl Body {
    fn of(bytes: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Self::Hex(bytes.iter().map(|b| format!("{b:02x}")).collect());
        };
        match serde_json::from_str::<Value>(text) {
            Ok(value) if pretty(&value) == text => Self::Record(value),
            _ => Self::Text(text.to_owned()),
        }
    }

    /// The bytes that stood there.
    ///
    /// # Errors
    /// Why they are none.
    pub(crate) fn bytes(&self) -> std::result::Result<Bytes, String> {
        match self {
            Self::Record(value) => Ok(Bytes::from(pretty(value))),
            Self::Text(text) => Ok(Bytes::from(text.clone())),
            Self::Hex(hex) => {
                let byte = |at: usize| hex.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
                let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
                bytes.map(Bytes::from).ok_or_else(|| "it is not in hex".into())
            }
        }
    }
}

impl Object {
    /// The envelope, where the object is a record of this build's level.
    pub(crate) fn meta(&self) -> Option<Meta> {
        parse(&self.body.bytes().ok()?).ok().map(|(meta, _)| meta)
    }

    pub(crate) fn name(&self) -> String {
        let partition = self.partition.as_ref().map(|p| format!("{p}/")).unwrap_or_default();
        format!("{}/{partition}{}/{}", self.collection, self.key, self.generation)
    }
}

fn pretty(value: &Value) -> String {
    // A value that was read from JSON can be written as JSON.
    format!("{value:#}\n")
}

impl Document {
    /// Reads a document.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no document, or one whose parts contradict each other.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::Invalid(format!("this is no document of `squire-registry export`: {why}"));
        let value: Value = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
        match value.get("schema").and_then(Value::as_str) {
            Some(DOCUMENT) => {}
            Some(other) => return Err(wrong(format!("its schema is `{other}`, this build reads `{DOCUMENT}`"))),
            None => return Err(wrong("it names no schema".into())),
        }
        let document: Self = serde_json::from_value(value).map_err(|e| wrong(e.to_string()))?;
        document.validate().map_err(wrong)?;
        Ok(document)
    }

    fn validate(&self) -> std::result::Result<(), String> {
        let mut seen = BTreeMap::new();
        for object in &self.objects {
            let name = object.name();
            let plain = |text: &str| !text.is_empty() && !text.contains('/') && text != "." && text != "..";
            if !plain(&object.key) || !object.partition.as_deref().is_none_or(plain) || object.generation == 0 {
                return Err(format!("`{name}` is no place of a record"));
            }
            if object.partition.is_some() != (object.collection == Collection::RunEntries) {
                return Err(format!("`{name}`: entries of runs, and only these, lie below a run"));
            }
            object.body.bytes().map_err(|why| format!("{name}: {why}"))?;
            if let Some(meta) = object.meta()
                && meta.generation != object.generation
            {
                return Err(format!("{name} says that it is generation {}", meta.generation));
            }
            if seen.insert(name.clone(), ()).is_some() {
                return Err(format!("{name} is in it twice"));
            }
        }
        match self.identity() {
            Some(estate) if estate.estate == self.estate => Ok(()),
            Some(estate) => Err(format!("it is of estate {} and its identity says {}", self.estate, estate.estate)),
            None => Err("it holds no identity (estate/self)".into()),
        }
    }

    /// The names of what every reader would call unreadable.
    pub(crate) fn unreadable(&self) -> Vec<String> {
        let bad = |o: &&Object| o.body.bytes().map_or(true, |bytes| read_record(o.collection, &bytes).is_err());
        self.objects.iter().filter(bad).map(Object::name).collect()
    }

    /// The registry's identity in it.
    pub(crate) fn identity(&self) -> Option<Estate> {
        let newest = self.objects.iter().filter(|o| o.collection == Collection::Estate && o.key == "self");
        let newest = newest.max_by_key(|o| o.generation)?;
        let (_, fields) = parse(&newest.body.bytes().ok()?).ok()?;
        serde_json::from_value(Value::Object(fields)).ok()
    }

    /// The document as text.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it has no JSON form.
    pub fn to_text(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map(|text| text + "\n")
            .map_err(|e| Error::Invalid(format!("the registry of {} has no JSON form: {e}", self.name)))
    }
}

impl Registry {
    /// Reads every record with its history. Unreadable ones go along.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn export(&self) -> Result<Document> {
        let mut objects = Vec::new();
        for collection in Collection::iter() {
            let listed = self.inner.records.list_all(collection).await?;
            let mut read: Vec<Object> = futures::stream::iter(listed)
                .map(|(partition, key, generation)| async move {
                    // Pruned since the LIST: a newer one is in the list, too.
                    let Some(bytes) = self.root().get(&generation.path).await? else { return Ok(None) };
                    let body = Body::of(&bytes);
                    Ok::<_, Error>(Some(Object { collection, partition, key, generation: generation.number, body }))
                })
                .buffer_unordered(READS)
                .try_filter_map(|found| std::future::ready(Ok(found)))
                .try_collect()
                .await?;
            read.sort_by(|a, b| (&a.partition, &a.key, a.generation).cmp(&(&b.partition, &b.key, b.generation)));
            objects.extend(read);
        }
        Ok(Document {
            schema: DOCUMENT.to_owned(),
            estate: self.id(),
            name: self.name().to_owned(),
            exported_at: Utc::now(),
            exported_by: self.actor().clone(),
            objects,
        })
    }
}
