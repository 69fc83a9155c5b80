//! Faults between Squire and the store, for tests: a rule sees every request and lets it pass, fails it or panics.
//!
//! No program installs one. A lake with faults reaches local datasets through Lance's `file-object-store://` scheme, because
//! plain local paths are written beside the object store and pass by every wrapper (facts, "Commits").

use std::fmt;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use lance_io::object_store::WrappingObjectStore;
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

/// What is asked of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A read of an object or a part of it, or of its size.
    Get,
    /// A write of an object, in one part or the beginning of many.
    Put,
    /// A listing.
    List,
    /// A delete.
    Delete,
    /// A copy or rename, by its target.
    Copy,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It goes on to the store.
    Pass,
    /// It fails with this kind of I/O error, and the store never sees it.
    Fail(ErrorKind),
    /// It panics.
    Panic,
    /// The store does it, and the answer is an I/O error of this kind: what a lost answer looks like. Writes only.
    LoseAnswer(ErrorKind),
}

type Rule = dyn Fn(Operation, &str) -> Fault + Send + Sync;

/// A rule for every request of one lake. Cheap to clone.
#[derive(Clone)]
pub struct Faults(Arc<Rule>);

impl Faults {
    /// A rule: it is given the operation and the object's path in the store (of a listing: its prefix).
    pub fn new(rule: impl Fn(Operation, &str) -> Fault + Send + Sync + 'static) -> Self {
        Self(Arc::new(rule))
    }

    /// Asks the rule. `true`: do it, and lose the answer.
    fn check(&self, operation: Operation, path: &str) -> Result<Option<ErrorKind>> {
        match (self.0)(operation, path) {
            Fault::Pass => Ok(None),
            Fault::Fail(kind) => Err(error(kind, path)),
            Fault::LoseAnswer(kind) => Ok(Some(kind)),
            Fault::Panic => panic!("a fault was asked for: {operation:?} {path}"),
        }
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faults")
    }
}

fn error(kind: ErrorKind, path: &str) -> Error {
    let source = Box::new(std::io::Error::from(kind));
    match kind {
        ErrorKind::NotFound => Error::NotFound { path: path.into(), source },
        ErrorKind::PermissionDenied => Error::PermissionDenied { path: path.into(), source },
        _ => Error::Generic { store: "faults", source },
    }
}

fn answer<T>(result: T, lost: Option<ErrorKind>, path: &Path) -> Result<T> {
    lost.map_or(Ok(result), |kind| Err(error(kind, path.as_ref())))
}

impl WrappingObjectStore for Faults {
    fn wrap(&self, _store_prefix: &str, original: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        Arc::new(Faulty { store: original, faults: self.clone() })
    }

    /// Listings go through the store, where the rule sees them.
    fn wrap_paginated(
        &self,
        _store_prefix: &str,
        _original: Arc<dyn PaginatedListStore>,
    ) -> Option<Arc<dyn PaginatedListStore>> {
        None
    }
}

/// A store behind a rule.
#[derive(Debug)]
struct Faulty {
    store: Arc<dyn ObjectStore>,
    faults: Faults,
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.store)
    }
}

impl Faulty {
    fn check(&self, operation: Operation, path: &Path) -> Result<Option<ErrorKind>> {
        self.faults.check(operation, path.as_ref())
    }

    fn check_list(&self, prefix: Option<&Path>) -> Result<()> {
        self.faults.check(Operation::List, prefix.map_or("", |p| p.as_ref())).map(|_| ())
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let lost = self.check(Operation::Put, location)?;
        answer(self.store.put_opts(location, payload, options).await?, lost, location)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.check(Operation::Put, location)?;
        self.store.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.check(Operation::Get, location)?;
        self.store.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.check(Operation::Get, location)?;
        self.store.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let faults = self.faults.clone();
        let checked = locations.map(move |location| {
            let location = location?;
            faults.check(Operation::Delete, location.as_ref())?;
            Ok(location)
        });
        self.store.delete_stream(checked.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.check_list(prefix) {
            Ok(()) => self.store.list(prefix),
            Err(e) => futures::stream::once(async { Err(e) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.check_list(prefix)?;
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let lost = self.check(Operation::Copy, to)?;
        answer(self.store.copy_opts(from, to, options).await?, lost, to)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let lost = self.check(Operation::Copy, to)?;
        answer(self.store.rename_opts(from, to, options).await?, lost, to)
    }
}
