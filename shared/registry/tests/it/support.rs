//! Registries to test with, and a store whose puts can be tampered with.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path as FsPath, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use squire_registry::{Actor, Floors, Governance, NewTable, Policy, Registry, Root, Snapshot, StorageOptions};
use tempfile::TempDir;
use tokio::sync::Notify;

/// What happens to a conditional put whose path contains a text.
#[derive(Clone)]
pub(crate) enum Fault {
    /// The object is stored and the answer lost.
    LostAnswer,
    /// The store refuses (409) although nothing is there.
    ConcurrentConflict,
    /// Waits after arriving until told to go on.
    Hold { arrived: Arc<Notify>, go: Arc<Notify> },
}

/// A store in memory or another one, with faults for the next matching puts, counting its requests.
pub(crate) struct Tampered {
    inner: Arc<dyn ObjectStore>,
    faults: Mutex<Vec<(String, Fault)>>,
    /// LISTs and GETs so far.
    pub(crate) lists: AtomicUsize,
    pub(crate) gets: AtomicUsize,
    pub(crate) puts: AtomicUsize,
    /// Ignores put-if-absent altogether.
    pub(crate) overwrites: bool,
    /// Answers "created" to the losers of a race, and to nobody else.
    pub(crate) two_winners: bool,
    racing: AtomicUsize,
}

impl Tampered {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self {
            inner,
            faults: Mutex::default(),
            lists: AtomicUsize::default(),
            gets: AtomicUsize::default(),
            puts: AtomicUsize::default(),
            overwrites: false,
            two_winners: false,
            racing: AtomicUsize::default(),
        }
    }

    pub(crate) fn next(&self, path_contains: &str, fault: Fault) {
        self.faults.lock().unwrap().push((path_contains.to_owned(), fault));
    }

    fn fault(&self, location: &Path) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap();
        let at = faults.iter().position(|(text, _)| location.as_ref().contains(text))?;
        Some(faults.remove(at).1)
    }
}

impl fmt::Debug for Tampered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tampered")
    }
}

impl fmt::Display for Tampered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tampered")
    }
}

#[async_trait]
impl ObjectStore for Tampered {
    async fn put_opts(&self, location: &Path, payload: PutPayload, mut options: PutOptions) -> Result<PutResult> {
        self.puts.fetch_add(1, Ordering::SeqCst);
        if self.overwrites {
            options.mode = PutMode::Overwrite;
        }
        match self.fault(location) {
            Some(Fault::LostAnswer) => {
                self.inner.put_opts(location, payload, options).await?;
                return Err(object_store::Error::Generic { store: "tampered", source: "the answer was lost".into() });
            }
            Some(Fault::ConcurrentConflict) => {
                let path = location.to_string();
                return Err(object_store::Error::AlreadyExists { path, source: "409 Conflict".into() });
            }
            Some(Fault::Hold { arrived, go }) => {
                arrived.notify_one();
                go.notified().await;
            }
            None => {}
        }
        if !self.two_winners {
            return self.inner.put_opts(location, payload, options).await;
        }
        self.racing.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        let raced = self.racing.load(Ordering::SeqCst) > 1;
        let result = self.inner.put_opts(location, payload, options).await;
        tokio::task::yield_now().await;
        self.racing.fetch_sub(1, Ordering::SeqCst);
        match result {
            Err(object_store::Error::AlreadyExists { .. }) if raced => {
                Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
            }
            other => other,
        }
    }

    async fn put_multipart_opts(&self, at: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.gets.fetch_add(1, Ordering::SeqCst);
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

pub(crate) fn actor() -> Actor {
    Actor::named("tester")
}

/// An in-memory bucket behind a tampered store.
pub(crate) fn memory() -> (Arc<Tampered>, Root) {
    let store = Arc::new(Tampered::new(Arc::new(InMemory::new())));
    let root = Root::with_store(store.clone(), Path::from("control"), "s3://bucket/control");
    (store, root)
}

/// A lake in a temporary directory with its registry in `_squire`, one project `p`, one warehouse `w` over the lake, one
/// namespace `sales`.
pub(crate) struct Lake {
    pub(crate) dir: TempDir,
    pub(crate) registry: Registry,
}

impl Lake {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let uri = dir.path().join("_squire").to_str().unwrap().to_owned();
        let registry = Registry::init(&uri, &none(), "test", actor()).await.unwrap();
        registry.project_create("p", None).await.unwrap();
        let root = dir.path().to_str().unwrap();
        registry.warehouse_create("w", "p", root, true, &none(), None).await.unwrap();
        registry.namespace_create(&path("sales"), Some("w"), None).await.unwrap();
        Self { dir, registry }
    }

    /// Makes what looks like a dataset to the registry.
    pub(crate) fn bytes(&self, location: &str) -> String {
        let dir = self.dir.path().join(location).join("_versions");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("1.manifest"), b"x").unwrap();
        self.uri(location)
    }

    pub(crate) fn uri(&self, location: &str) -> String {
        squire_registry::canonical_uri(self.dir.path().join(location).to_str().unwrap()).unwrap()
    }

    /// Registers `table/<name>` at `<last segment>.lance`, with bytes, and returns its URI.
    pub(crate) async fn table(&self, name: &str) -> String {
        let path = path(name);
        let location = format!("{}.lance", path.last().unwrap());
        let uri = self.bytes(&location);
        let new = NewTable { path, location, tier: None, labels: vec![], declare: false };
        self.registry.table_create(new, &none(), None).await.unwrap();
        uri
    }

    pub(crate) async fn govern(&self, uri: &str) -> Governance {
        govern(&self.registry.snapshot().await.unwrap(), uri, Utc::now())
    }

    /// The generations of a record on disk, newest last.
    pub(crate) fn generations(&self, collection: &str, key: &str) -> Vec<PathBuf> {
        files(&self.dir.path().join("_squire/v1").join(collection).join(key))
    }

    /// Every generation of a collection on disk.
    pub(crate) fn records(&self, collection: &str) -> Vec<PathBuf> {
        files(&self.dir.path().join("_squire/v1").join(collection))
    }
}

pub(crate) fn govern(snapshot: &Snapshot, uri: &str, now: DateTime<Utc>) -> Governance {
    snapshot.govern(uri, &Policy::default(), &Floors::default(), &BTreeMap::new(), now)
}

/// All files below a directory, sorted.
pub(crate) fn files(dir: &FsPath) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() { todo.push(path) } else { out.push(path) }
        }
    }
    out.sort();
    out
}

pub(crate) fn none() -> StorageOptions {
    HashMap::new()
}

pub(crate) fn path(text: &str) -> Vec<String> {
    text.split('/').map(str::to_owned).collect()
}
