//! The process-wide handle: one bounded session, the storage options, opening.
//!
//! Lance's default session caches several GiB and its keys never repeat across versions, so the memory of a process
//! that walks many datasets only grows (facts, "Opening and looking"). There is one bounded session per process; a
//! contained panic replaces it.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use futures::StreamExt as _;
use lance::Dataset;
use lance::dataset::builder::DatasetBuilder;
use lance::session::Session;
use lance_io::object_store::{
    ObjectStore, ObjectStoreParams, ObjectStoreRegistry, StorageOptionsAccessor, WrappingObjectStore,
};
use object_store::ObjectStore as _;
use object_store::path::Path;

use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::faults::Faults;
use crate::namespace::{self, Backings};
use crate::rate::Requests;
use crate::{Error, Kind, Result};

/// Resolves the storage options of a URI (longest prefix, as the config says).
pub type OptionsFor = Arc<dyn Fn(&str) -> HashMap<String, String> + Send + Sync>;

/// Resolves the options that clean-up deletes with; `None` where they are those of everything else.
pub type DeletesFor = Arc<dyn Fn(&str) -> Option<HashMap<String, String>> + Send + Sync>;

/// Opens datasets and stores with one bounded session. Cheap to clone.
#[derive(Clone)]
pub struct Lake {
    inner: Arc<Inner>,
}

struct Inner {
    session: RwLock<Arc<Session>>,
    stores: Arc<ObjectStoreRegistry>,
    options: OptionsFor,
    deletes: Option<DeletesFor>,
    index_cache_bytes: usize,
    metadata_cache_bytes: usize,
    commits: TaskTracker,
    faults: Option<Arc<Faults>>,
    requests: Option<Requests>,
    backings: Backings,
}

impl std::fmt::Debug for Lake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lake").finish_non_exhaustive()
    }
}

/// An object store and the path of one dataset (or root) in it.
#[derive(Debug, Clone)]
pub struct Place {
    /// Lance's store: retries, throttling and request metrics included.
    pub store: Arc<ObjectStore>,
    /// The path of the place inside the store.
    pub path: Path,
    /// The canonical URI.
    pub uri: String,
    /// Objects that one request deletes: 1 where the store deletes them one by one.
    pub deletes_at_once: usize,
}

impl Place {
    /// The store that lists, reads and (in apply) writes.
    pub fn objects(&self) -> &Arc<dyn object_store::ObjectStore> {
        &self.store.inner
    }

    /// The path of an object below this place. `relative` uses `/` and is already in the store's spelling.
    pub fn below(&self, relative: &str) -> Result<Path> {
        let text =
            if self.path.as_ref().is_empty() { relative.to_string() } else { format!("{}/{relative}", self.path) };
        // `Path::from` would encode a second time.
        Path::parse(&text)
            .map_err(|e| Error::new(Kind::Permanent, format!("building the path {relative}"), &self.uri).because(e))
    }
}

impl Lake {
    /// A handle whose caches together stay below a quarter of `memory_bytes`.
    pub fn new(options: OptionsFor, memory_bytes: u64) -> Self {
        Self::build(options, None, memory_bytes, None, None)
    }

    /// The same, with credentials of their own for [`Lake::deleting_place`], and at most so many requests per second and bucket.
    pub fn with_deletes(options: OptionsFor, deletes: DeletesFor, memory_bytes: u64, requests: Option<u32>) -> Self {
        Self::build(options, Some(deletes), memory_bytes, None, requests.map(Requests::new))
    }

    /// So many processes keep the limit of requests together; each takes its share.
    pub fn requests_shared_by(&self, members: u32) {
        if let Some(requests) = &self.inner.requests {
            requests.shared_by(members);
        }
    }

    /// Bytes that the session's caches hold.
    pub fn cache_bytes(&self) -> u64 {
        self.session().size_bytes()
    }

    /// The same, with a rule that may fail every request. For tests; no program calls it.
    pub fn with_faults(options: OptionsFor, memory_bytes: u64, faults: Faults) -> Self {
        Self::build(options, None, memory_bytes, Some(Arc::new(faults)), None)
    }

    fn build(
        options: OptionsFor,
        deletes: Option<DeletesFor>,
        memory_bytes: u64,
        faults: Option<Arc<Faults>>,
        requests: Option<Requests>,
    ) -> Self {
        crate::contain::watch();
        let quarter = usize::try_from(memory_bytes / 4).unwrap_or(usize::MAX / 4);
        let stores = Arc::new(ObjectStoreRegistry::default());
        let (index, metadata) = (quarter / 2, quarter / 2);
        let session = Arc::new(Session::new(index, metadata, stores.clone()));
        Self {
            inner: Arc::new(Inner {
                session: RwLock::new(session),
                stores,
                options,
                deletes,
                index_cache_bytes: index,
                metadata_cache_bytes: metadata,
                commits: TaskTracker::new(),
                faults,
                requests,
                backings: Backings::default(),
            }),
        }
    }

    /// What namespaces speak for.
    pub(crate) fn backings(&self) -> &Backings {
        &self.inner.backings
    }

    /// The current session.
    pub fn session(&self) -> Arc<Session> {
        match self.inner.session.read() {
            Ok(guard) => guard.clone(),
            Err(poisoned) => poisoned.into_inner().clone(),
        }
    }

    /// Replaces the session by an empty one.
    pub fn replace_session(&self) {
        let fresh = Arc::new(Session::new(
            self.inner.index_cache_bytes,
            self.inner.metadata_cache_bytes,
            self.inner.stores.clone(),
        ));
        match self.inner.session.write() {
            Ok(mut guard) => *guard = fresh,
            Err(poisoned) => *poisoned.into_inner() = fresh,
        }
    }

    /// Runs a commit in a task of its own, which [`Lake::commits_done`] awaits.
    pub fn track<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.inner.commits.spawn(work)
    }

    /// Waits for every commit in flight: a shutdown ends only after it.
    pub async fn commits_done(&self) {
        self.inner.commits.close();
        self.inner.commits.wait().await;
        self.inner.commits.reopen();
    }

    /// The storage options for a URI.
    pub fn options(&self, uri: &str) -> HashMap<String, String> {
        (self.inner.options)(uri)
    }

    fn params(&self, uri: &str) -> ObjectStoreParams {
        let mut params = self.params_with(uri, self.options(uri));
        if let Some(lent) = self.inner.backings.lent(uri) {
            params.storage_options_accessor = Some(lent);
        }
        params
    }

    fn params_with(&self, uri: &str, options: HashMap<String, String>) -> ObjectStoreParams {
        ObjectStoreParams {
            storage_options_accessor: (!options.is_empty())
                .then(|| Arc::new(StorageOptionsAccessor::with_static_options(options))),
            object_store_wrapper: self.wrapper(uri),
            ..Default::default()
        }
    }

    fn wrapper(&self, uri: &str) -> Option<Arc<dyn WrappingObjectStore>> {
        let faults = self.inner.faults.clone().map(|f| f as Arc<dyn WrappingObjectStore>);
        faults.or_else(|| Some(self.inner.requests.as_ref()?.of(uri)? as Arc<dyn WrappingObjectStore>))
    }

    /// The URI as it is given to Lance: with faults, in the scheme that does not write beside the object store.
    fn routed(&self, uri: &str) -> String {
        match uri.strip_prefix("file://").filter(|_| self.inner.faults.is_some()) {
            Some(path) => format!("file-object-store://{path}"),
            None => uri.to_string(),
        }
    }

    /// The store and path behind a canonical URI.
    ///
    /// # Errors
    /// `Open` when the URI's scheme or options are not understood.
    pub async fn place(&self, uri: &str) -> Result<Place> {
        self.place_with(uri, &self.params(uri)).await
    }

    /// The same place through the credentials that clean-up deletes with (`[storage.delete]`); without such it is
    /// [`Lake::place`]. For clean-up and reclaim alone.
    ///
    /// # Errors
    /// As [`Lake::place`].
    pub async fn deleting_place(&self, uri: &str) -> Result<Place> {
        match self.inner.deletes.as_ref().and_then(|deletes| deletes(uri)) {
            Some(options) => self.place_with(uri, &self.params_with(uri, options)).await,
            None => self.place(uri).await,
        }
    }

    async fn place_with(&self, uri: &str, params: &ObjectStoreParams) -> Result<Place> {
        let (store, path) = ObjectStore::from_uri_and_params(self.inner.stores.clone(), &self.routed(uri), params)
            .await
            .map_err(|e| {
                Error::lance("opening the object store", uri, e)
                    .with_kind(Kind::Open)
                    .remedy("check the URI and the [storage] options for it")
            })?;
        let deletes_at_once = deletes_at_once(uri, &params.storage_options().cloned().unwrap_or_default());
        Ok(Place { store, path, uri: uri.to_string(), deletes_at_once })
    }

    /// Opens a dataset at HEAD.
    ///
    /// # Errors
    /// `Open` for what is not there or cannot be reached, `Damaged` for what cannot be decoded.
    pub async fn open(&self, uri: &str) -> Result<Dataset> {
        self.load(uri, None).await
    }

    /// Opens a dataset at a version.
    ///
    /// # Errors
    /// As [`Lake::open`].
    pub async fn open_version(&self, uri: &str, version: u64) -> Result<Dataset> {
        self.load(uri, Some(version)).await
    }

    /// HEAD's version number.
    ///
    /// # Errors
    /// As [`Lake::open`].
    pub async fn latest_version(&self, uri: &str) -> Result<u64> {
        Ok(self.open(uri).await?.version_id())
    }

    /// HEAD's number and its own time: of two tables made one after the other at one place both may have the same number.
    ///
    /// # Errors
    /// As [`Lake::open`].
    pub async fn head(&self, uri: &str) -> Result<(u64, chrono::DateTime<chrono::Utc>)> {
        let dataset = self.open(uri).await?;
        let nanos = i64::try_from(dataset.manifest().timestamp_nanos).unwrap_or(i64::MAX);
        Ok((dataset.version_id(), chrono::DateTime::from_timestamp_nanos(nanos)))
    }

    /// Whether the store behind a root answers: the first page of one LIST.
    ///
    /// # Errors
    /// `Open` for a store that is not understood, else what the store said.
    pub async fn answers(&self, root: &str) -> Result<()> {
        let place = self.place(root).await?;
        let prefix = (!place.path.as_ref().is_empty()).then(|| place.path.clone());
        match place.objects().list(prefix.as_ref()).next().await {
            None | Some(Ok(_)) => Ok(()),
            Some(Err(e)) => Err(Error::store("listing", root, e)),
        }
    }

    async fn load(&self, uri: &str, version: Option<u64>) -> Result<Dataset> {
        let loaded = match namespace::committer(self, uri).await? {
            Some(managed) => {
                let place = self.place(uri).await?;
                managed.open(self, &place, self.routed(uri), self.params(uri), version).await
            }
            None => {
                let mut builder = DatasetBuilder::from_uri(self.routed(uri))
                    .with_session(self.session())
                    .with_store_params(self.params(uri));
                if let Some(version) = version {
                    builder = builder.with_version(version);
                }
                builder.load().await
            }
        };
        loaded.map_err(|e| {
            let error = Error::lance("opening the dataset", uri, e);
            let kind = match error.kind() {
                Kind::Permanent => Kind::Open,
                kind => kind,
            };
            error.with_kind(kind)
        })
    }
}

/// How many objects the client deletes with one request (`object_store`: S3's `DeleteObjects` takes 1,000 keys, Azure's batch 256);
/// 1 where the store has no such request, or the options of this URI switch it off.
pub fn deletes_at_once(uri: &str, options: &HashMap<String, String>) -> usize {
    let off = |key: &str| options.get(key).is_some_and(|v| v.eq_ignore_ascii_case("true"));
    match uri.split("://").next() {
        Some("s3" | "s3+ddb") if off("aws_disable_bulk_delete") || off("disable_bulk_delete") => 1,
        Some("s3" | "s3+ddb") => 1_000,
        Some("az" | "abfss") => 256,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stores_with_a_bulk_delete_are_given_many_objects_at_once() {
        let plain = HashMap::new();
        let off = HashMap::from([("aws_disable_bulk_delete".to_string(), "True".to_string())]);
        assert_eq!(deletes_at_once("s3://bucket/t", &plain), 1_000);
        assert_eq!(deletes_at_once("s3://bucket/t", &off), 1);
        assert_eq!(deletes_at_once("az://container/t", &plain), 256);
        assert_eq!(deletes_at_once("gs://bucket/t", &plain), 1);
        assert_eq!(deletes_at_once("file:///lake/t", &plain), 1);
    }
}
