//! Per-dataset state, in shards.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::generation::{Change, Read};
use crate::record::{Collection, fields};
use crate::registry::Registry;

/// Shards: a fixed number, so that a dataset's shard never changes. At 128,000 datasets a shard holds 1,000.
const SHARDS: u8 = 128;

/// One shard: state by canonical URI.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shard {
    datasets: BTreeMap<String, Value>,
    /// What the last looks found. Apart from `datasets`, so that a tick that looks never undoes what a pass wrote meanwhile.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    looks: BTreeMap<String, Value>,
}

/// One of a shard's maps.
type Part = fn(&mut Shard) -> &mut BTreeMap<String, Value>;

const DATASETS: Part = |shard| &mut shard.datasets;
const LOOKS: Part = |shard| &mut shard.looks;

fields! { Shard => State, "state"; }

fn shard_of(uri: &str) -> String {
    format!("{:03}", Sha256::digest(uri.as_bytes())[0] % SHARDS)
}

fn shard(read: Read<Shard>) -> Option<Shard> {
    match read {
        Read::Live(record) => Some(Arc::unwrap_or_clone(record).fields),
        Read::Unreadable(u) => {
            tracing::warn!(record = %u, "a shard of state cannot be read; its datasets are looked at afresh");
            None
        }
        _ => None,
    }
}

impl Registry {
    /// The state of datasets, by canonical URI; datasets without any are left out. One LIST, and a GET per shard that is
    /// needed.
    ///
    /// State that does not fit `T` (an older or newer build's) is left out, too: it is a cache of what was seen, and is
    /// made again. A shard that cannot be read is likewise taken as empty; it is not written over.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn load_state<T: DeserializeOwned>(
        &self,
        uris: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<HashMap<String, T>> {
        let mut wanted: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for uri in uris {
            wanted.entry(shard_of(uri.as_ref())).or_default().push(uri.as_ref().to_owned());
        }
        let mut listed = self.inner.records.list(Collection::State, None).await?;
        listed.retain(|key, _| wanted.contains_key(key));
        let mut out = HashMap::new();
        for (key, read) in self.inner.records.read_tops::<Shard>(None, listed).await? {
            let Some(record) = shard(read) else { continue };
            for uri in wanted.remove(&key).unwrap_or_default() {
                if let Some(state) = record.datasets.get(&uri).and_then(|v| T::deserialize(v).ok()) {
                    out.insert(uri, state);
                }
            }
        }
        Ok(out)
    }

    /// Saves the state of datasets that changed. A shard is written only if something in it differs, and merged with what
    /// another writer put there meanwhile.
    ///
    /// # Errors
    /// What the store answers; other shards are written all the same, the first error is returned.
    pub async fn save_state<T: Serialize>(&self, changed: HashMap<String, T>) -> Result<()> {
        let mut shards: BTreeMap<String, Vec<(String, Option<Value>)>> = BTreeMap::new();
        for (uri, state) in changed {
            let value = serde_json::to_value(state)
                .map_err(|e| Error::Invalid(format!("the state of {uri} cannot be written as JSON: {e}")))?;
            shards.entry(shard_of(&uri)).or_default().push((uri, Some(value)));
        }
        self.merge(DATASETS, shards).await
    }

    /// All that is remembered, by canonical URI: the state of datasets, and what looks at them found. One LIST, and a GET per
    /// shard. What does not fit and what cannot be read is left out, as in [`Registry::load_state`].
    ///
    /// # Errors
    /// What the store answers.
    pub async fn load_remembered<S: DeserializeOwned, L: DeserializeOwned>(
        &self,
    ) -> Result<(HashMap<String, S>, HashMap<String, L>)> {
        let listed = self.inner.records.list(Collection::State, None).await?;
        let (mut states, mut looks) = (HashMap::new(), HashMap::new());
        for read in self.inner.records.read_tops::<Shard>(None, listed).await?.into_values() {
            let Some(record) = shard(read) else { continue };
            states.extend(record.datasets.iter().filter_map(|(uri, v)| Some((uri.clone(), S::deserialize(v).ok()?))));
            looks.extend(record.looks.iter().filter_map(|(uri, v)| Some((uri.clone(), L::deserialize(v).ok()?))));
        }
        Ok((states, looks))
    }

    /// Saves what looks found where it changed; `None` forgets it. Each shard that changes is written once.
    ///
    /// # Errors
    /// As [`Registry::save_state`].
    pub async fn save_looks<T: Serialize>(&self, changed: HashMap<String, Option<T>>) -> Result<()> {
        let mut shards: BTreeMap<String, Vec<(String, Option<Value>)>> = BTreeMap::new();
        for (uri, look) in changed {
            let value = look
                .map(serde_json::to_value)
                .transpose()
                .map_err(|e| Error::Invalid(format!("the look at {uri} cannot be written as JSON: {e}")))?;
            shards.entry(shard_of(&uri)).or_default().push((uri, value));
        }
        self.merge(LOOKS, shards).await
    }

    /// Forgets the state of datasets that are gone.
    ///
    /// # Errors
    /// As [`Registry::save_state`].
    pub async fn forget_state(&self, uris: impl IntoIterator<Item = impl AsRef<str>>) -> Result<()> {
        let mut shards: BTreeMap<String, Vec<(String, Option<Value>)>> = BTreeMap::new();
        for uri in uris {
            shards.entry(shard_of(uri.as_ref())).or_default().push((uri.as_ref().to_owned(), None));
        }
        self.merge(DATASETS, shards).await
    }

    async fn merge(&self, part: Part, shards: BTreeMap<String, Vec<(String, Option<Value>)>>) -> Result<()> {
        let writes = shards.into_iter().map(|(shard, entries)| async move {
            self.change::<Shard>(&shard, None, |current| {
                let before = current.map(|c| c.fields.clone()).unwrap_or_default();
                let mut next = before.clone();
                for (uri, value) in &entries {
                    match value {
                        Some(value) => part(&mut next).insert(uri.clone(), value.clone()),
                        None => part(&mut next).remove(uri),
                    };
                }
                Ok(if next == before { Change::Keep } else { Change::Put(next) })
            })
            .await
        });
        let results = futures::future::join_all(writes).await;
        results.into_iter().find_map(|r| r.err()).map_or(Ok(()), Err)
    }
}
