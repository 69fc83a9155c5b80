//! The objects of the server, beside all proxies.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::server::Options;

/// Requests in flight.
const PARALLEL: usize = 16;

/// Objects by their path relative to a prefix.
pub type Objects = BTreeMap<String, Bytes>;

/// A client of one bucket with a runtime of its own, for tests that are not async.
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    runtime: tokio::runtime::Runtime,
}

impl Bucket {
    /// A client with these options.
    ///
    /// # Panics
    /// When the options are none.
    pub fn new(name: &str, options: &Options) -> Self {
        let mut builder = AmazonS3Builder::new().with_bucket_name(name);
        for (key, value) in options {
            builder = builder.with_config(key.parse().expect("an option of the S3 client"), value);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Self { store: Arc::new(builder.build().expect("a client")), runtime: runtime.expect("a runtime") }
    }

    fn run<T>(&self, work: impl Future<Output = object_store::Result<T>>) -> T {
        self.runtime.block_on(work).expect("the server answered")
    }

    /// Paths below a prefix, relative to it, sorted.
    pub fn list(&self, prefix: &str) -> Vec<String> {
        let at = Path::parse(prefix).expect("a path");
        let found = self.run(self.store.list(Some(&at)).map_ok(|m| m.location).try_collect::<Vec<Path>>());
        let mut out: Vec<String> = found
            .iter()
            .filter_map(|p| p.as_ref().strip_prefix(prefix))
            .map(|p| p.trim_start_matches('/').into())
            .collect();
        out.sort();
        out
    }

    /// Everything below a prefix.
    pub fn read(&self, prefix: &str) -> Objects {
        let names = self.list(prefix);
        self.run(
            stream::iter(names)
                .map(|name| async move {
                    let path = Path::parse(format!("{prefix}/{name}"))?;
                    Ok((name, self.store.get(&path).await?.bytes().await?))
                })
                .buffer_unordered(PARALLEL)
                .try_collect(),
        )
    }

    /// Writes objects below a prefix.
    pub fn write(&self, prefix: &str, objects: &Objects) {
        self.run(
            stream::iter(objects)
                .map(|(name, bytes)| async move {
                    let path = Path::parse(format!("{prefix}/{name}"))?;
                    self.store.put(&path, bytes.clone().into()).await
                })
                .buffer_unordered(PARALLEL)
                .try_for_each(|_| async { Ok(()) }),
        );
    }

    /// Deletes one object.
    pub fn delete(&self, path: &str) {
        let path = Path::parse(path).expect("a path");
        self.run(self.store.delete(&path));
    }
}
