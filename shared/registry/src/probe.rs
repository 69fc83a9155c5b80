//! Does a store keep the promise of put-if-absent?
//!
//! Some stores accept `If-None-Match: *` and ignore it, and some let two writers win now and then. A registry or a lake
//! on such a store loses commits unnoticed, so nothing is written to a bucket before it has passed.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::generation::Change;
use crate::record::fields;
use crate::registry::Registry;
use crate::storage::{PutOutcome, Root, StorageOptions};

/// Writers in the raced create.
const RACERS: usize = 8;
/// Times that a raced create in which nobody won is tried again (a store may refuse all of several at once).
const RETRIES: usize = 3;
/// Names of probe objects start with this.
pub(crate) const PREFIX: &str = ".squire-probe-";

/// A bucket that passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// The bucket or local directory.
    pub bucket: String,
    /// When.
    pub passed_at: DateTime<Utc>,
}

fields! { Probe => Probes, "probe"; }

impl Registry {
    /// Proves put-if-absent on the bucket of a lake's root, once per bucket: a pass is recorded in the control root. To be
    /// called before the first write to any bucket.
    ///
    /// # Errors
    /// [`Error::LyingStore`], or what the store answers.
    pub async fn probe(&self, root_uri: &str, options: &StorageOptions) -> Result<()> {
        let root = Root::open(root_uri, options)?;
        self.probe_root(&root).await
    }

    /// [`Registry::probe`] on an opened place.
    ///
    /// # Errors
    /// As [`Registry::probe`].
    pub async fn probe_root(&self, root: &Root) -> Result<()> {
        if self.load::<Probe>(&root.bucket()).await?.is_some() {
            return Ok(());
        }
        run(root).await?;
        self.record_probe(root).await
    }

    pub(crate) async fn record_probe(&self, root: &Root) -> Result<()> {
        let bucket = root.bucket();
        let fields = Probe { bucket: bucket.clone(), passed_at: Utc::now() };
        self.change::<Probe>(&bucket, None, |current| {
            Ok(if current.is_some() { Change::Keep } else { Change::Put(fields.clone()) })
        })
        .await?;
        Ok(())
    }
}

/// One sequential and one raced create on fresh names in `root`; what was written is deleted again.
pub(crate) async fn run(root: &Root) -> Result<()> {
    let mut written = Vec::new();
    let result = async {
        sequential(root, &mut written).await?;
        for _ in 0..RETRIES {
            if raced(root, &mut written).await? {
                return Ok(());
            }
        }
        Err(lying(root, "no writer of a raced create could win".into()))
    }
    .await;
    for name in written {
        let removed = match root.path(&[&name]) {
            Ok(path) => root.delete(&path).await,
            Err(e) => Err(e),
        };
        if let Err(e) = removed {
            // A credential without the right to delete is no reason to refuse; the leftover is a few bytes.
            tracing::warn!(object = name, root = root.uri(), error = %e, "a probe object stays");
        }
    }
    result
}

fn lying(root: &Root, what: String) -> Error {
    Error::LyingStore { store: root.bucket(), what }
}

fn fresh(written: &mut Vec<String>) -> String {
    let name = format!("{PREFIX}{}", Uuid::new_v4());
    written.push(name.clone());
    name
}

async fn sequential(root: &Root, written: &mut Vec<String>) -> Result<()> {
    let path = root.path(&[&fresh(written)])?;
    let doing = || format!("probing {} for put-if-absent", root.uri());
    let first = Bytes::from_static(b"first");
    match root.create(&path, first.clone()).await {
        PutOutcome::Created => {}
        PutOutcome::Refused => {
            // A client that retried after a lost answer meets its own object.
            if root.get(&path).await?.as_ref() != Some(&first) {
                return Err(lying(root, "it refused to create an object that was not there".into()));
            }
        }
        PutOutcome::Unknown(
            e @ (object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. }),
        ) => {
            return Err(lying(root, format!("it does not support it ({e})")));
        }
        PutOutcome::Unknown(e) => return Err(Error::store(doing(), e)),
    }
    match root.create(&path, Bytes::from_static(b"second")).await {
        PutOutcome::Refused => {}
        PutOutcome::Created => return Err(lying(root, "it overwrote an object that was there".into())),
        PutOutcome::Unknown(e) => return Err(Error::store(doing(), e)),
    }
    match root.get(&path).await? {
        Some(found) if found == first => Ok(()),
        Some(_) => Err(lying(root, "it refused a second create and stored it".into())),
        None => Err(lying(root, "it acknowledged an object and does not have it".into())),
    }
}

/// Whether somebody won; that two win is an error.
async fn raced(root: &Root, written: &mut Vec<String>) -> Result<bool> {
    let path = root.path(&[&fresh(written)])?;
    let bodies: Vec<Bytes> = (0..RACERS).map(|n| Bytes::from(format!("racer {n}"))).collect();
    let outcomes = join_all(bodies.iter().map(|body| root.create(&path, body.clone()))).await;
    let winners: Vec<usize> =
        outcomes.iter().enumerate().filter(|(_, o)| matches!(o, PutOutcome::Created)).map(|(n, _)| n).collect();
    if winners.len() > 1 {
        return Err(lying(root, format!("{} of {RACERS} concurrent creates of one name succeeded", winners.len())));
    }
    let found = root.get(&path).await?;
    match (winners.first(), found) {
        (Some(n), Some(found)) if found == bodies[*n] => Ok(true),
        (Some(_), _) => Err(lying(root, "a concurrent create succeeded and something else is stored".into())),
        // The winner's answer was lost; one of ours stands there, and all others were refused.
        (None, Some(found)) if bodies.contains(&found) => Ok(true),
        (None, _) => {
            let failed = outcomes.into_iter().find_map(|o| match o {
                PutOutcome::Unknown(e) => Some(e),
                _ => None,
            });
            match failed {
                Some(e) => Err(Error::store(format!("probing {} for put-if-absent", root.uri()), e)),
                None => Ok(false),
            }
        }
    }
}
