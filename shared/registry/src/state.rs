//! Per-dataset state, in shards.

use std::collections::{BTreeMap, HashMap};

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
struct Shard {
    datasets: BTreeMap<String, Value>,
}

fields! { Shard => State, "state"; }

fn shard_of(uri: &str) -> String {
    format!("{:03}", Sha256::digest(uri.as_bytes())[0] % SHARDS)
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
            let record = match read {
                Read::Live(record) => record,
                Read::Unreadable(u) => {
                    tracing::warn!(record = %u, "a shard of state cannot be read; its datasets are looked at afresh");
                    continue;
                }
                _ => continue,
            };
            for uri in wanted.remove(&key).unwrap_or_default() {
                let Some(value) = record.fields.datasets.get(&uri) else { continue };
                if let Ok(state) = serde_json::from_value(value.clone()) {
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
        self.merge(shards).await
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
        self.merge(shards).await
    }

    async fn merge(&self, shards: BTreeMap<String, Vec<(String, Option<Value>)>>) -> Result<()> {
        let writes = shards.into_iter().map(|(shard, entries)| async move {
            self.change::<Shard>(&shard, None, |current| {
                let mut next = current.map(|c| c.fields.clone()).unwrap_or_default();
                for (uri, value) in &entries {
                    match value {
                        Some(value) => next.datasets.insert(uri.clone(), value.clone()),
                        None => next.datasets.remove(uri),
                    };
                }
                let before = current.map(|c| &c.fields.datasets);
                let same = before == Some(&next.datasets) || (before.is_none() && next.datasets.is_empty());
                Ok(if same { Change::Keep } else { Change::Put(next) })
            })
            .await
        });
        let results = futures::future::join_all(writes).await;
        results.into_iter().find_map(|r| r.err()).map_or(Ok(()), Err)
    }
}
