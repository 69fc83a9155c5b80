//! Our own commits: stamped, without the table's hook, in a task that shutdown awaits.
//!
//! Lance's one-call commits run the table's `lance.auto_cleanup` hook, which can delete versions against the policy; their
//! first commit is unstamped; and `CommitBuilder::with_transaction_properties` is stored and never applied in 14.0.2, so
//! the properties go on the transaction (facts, "Compaction").

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use lance::Dataset;
use lance::dataset::CommitBuilder;
use lance::dataset::transaction::{Operation, TransactionBuilder};
use object_store::ObjectStoreExt as _;
use uuid::Uuid;

use crate::handle::Place;
use crate::stamp::Stamper;
use crate::{Error, Kind, Lake, Result, look, manifest};

/// Asked right before a commit that may be made long after it was allowed; the error says why it may not be made any more.
pub type MayCommit<'a> = dyn Fn() -> BoxFuture<'a, std::result::Result<(), String>> + Sync + 'a;

/// The [`MayCommit`] of whoever has nobody to ask, in so many words.
pub fn nobody_to_ask<'a>() -> BoxFuture<'a, std::result::Result<(), String>> {
    async { Ok(()) }.boxed()
}

/// Commits one operation that was planned at `read_version`.
///
/// The commit runs in a task of its own: a dropped commit future would leave its PUT in flight.
///
/// # Errors
/// `Conflict` when somebody else's commit was first; the error says whether the loss is proven.
#[tracing::instrument(level = "debug", skip_all, fields(operation = %operation, read_version))]
pub async fn commit(
    lake: &Lake,
    dataset: &Arc<Dataset>,
    read_version: u64,
    operation: Operation,
    properties: HashMap<String, String>,
) -> Result<Dataset> {
    let uri = dataset.uri().to_string();
    let doing = format!("committing {operation}");
    let transaction =
        TransactionBuilder::new(read_version, operation).transaction_properties(Some(Arc::new(properties))).build();
    let builder = CommitBuilder::new(dataset.clone()).with_skip_auto_cleanup(true);
    let task = lake.track(async move { builder.execute(transaction).await });
    match task.await {
        Ok(Ok(dataset)) => Ok(dataset),
        // A server may hold a version that the bucket does not list: no loss is proven there.
        Ok(Err(e)) if lake.backings().covers(&uri) => Err(Error::lance(doing, uri, e).unproven()),
        Ok(Err(e)) => Err(Error::lance(doing, uri, e)),
        Err(e) if e.is_panic() => {
            lake.replace_session();
            Err(crate::contain::panicked(&doing, &uri, e.into_panic().as_ref()))
        }
        Err(e) => Err(Error::new(Kind::Transient, doing, uri).because(e)),
    }
}

/// Reserves `n` fragment ids: the last `n` up to the new maximum of the returned handle.
///
/// Self-chosen ids do not survive a concurrent append (facts: "two fragments with id 6").
///
/// # Errors
/// As [`commit`].
pub async fn reserve(
    lake: &Lake,
    dataset: &Arc<Dataset>,
    n: u32,
    stamper: &Stamper,
    slice: u32,
) -> Result<(Arc<Dataset>, Range<u64>)> {
    let after = commit(
        lake,
        dataset,
        dataset.version_id(),
        Operation::ReserveFragments { num_fragments: n },
        stamper.properties("reserve", slice),
    )
    .await?;
    let end = after.manifest().max_fragment_id().map_or(0, |max| max + 1);
    let start =
        end.checked_sub(u64::from(n)).ok_or_else(|| Error::new(Kind::Bug, "reserving fragment ids", dataset.uri()))?;
    Ok((Arc::new(after), start..end))
}

/// One commit that changes nothing: it reserves no fragment id. What was HEAD becomes a version that can go.
///
/// # Errors
/// As [`commit`].
pub async fn empty(lake: &Lake, dataset: &Arc<Dataset>, stamper: &Stamper, slice: u32) -> Result<Dataset> {
    let nothing = Operation::ReserveFragments { num_fragments: 0 };
    commit(lake, dataset, dataset.version_id(), nothing, stamper.properties("erase", slice)).await
}

/// Removes the outputs of a lost commit, by name, only when the loss is proven: Lance reported a conflict, the result never
/// left this process, and every version since the read version was read and none names a file of it. A conflict alone
/// proves nothing: the other side may be our own commit delivered twice, and deleting then destroys HEAD (facts,
/// "Commits"). Returns the bytes that stay behind as stranded; 0 when all went.
pub async fn abandon(place: &Place, read_version: u64, error: &Error, outputs: &Outputs) -> u64 {
    if !error.proves_loss() {
        return outputs.bytes;
    }
    remove_unnamed(place, read_version, outputs).await
}

/// Removes what no version since the read version names, or nothing of it. Returns the bytes that stay.
pub(crate) async fn remove_unnamed(place: &Place, read_version: u64, outputs: &Outputs) -> u64 {
    match unnamed_since(place, read_version, outputs).await {
        Ok(true) => remove(place, outputs).await,
        _ => outputs.bytes,
    }
}

/// Files that a step wrote before its commit: exact paths, and whole index directories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outputs {
    /// Paths relative to the dataset's root.
    pub files: BTreeSet<String>,
    /// `_indices/<uuid>` directories.
    pub directories: BTreeSet<String>,
    /// Bytes of all of it, as far as known.
    pub bytes: u64,
}

impl Outputs {
    /// Adds what another step wrote.
    pub fn add(&mut self, more: &Outputs) {
        self.files.extend(more.files.iter().cloned());
        self.directories.extend(more.directories.iter().cloned());
        self.bytes += more.bytes;
    }
}

async fn unnamed_since(place: &Place, read_version: u64, outputs: &Outputs) -> Result<bool> {
    let (_, versions, _) = look::reread_refs(place, read_version).await?;
    // The read version itself must still be there, or what came between is not known.
    if !versions.contains_key(&read_version) {
        return Ok(false);
    }
    for path in versions.range(read_version..).map(|(_, path)| path) {
        let facts = manifest::read(place.objects().as_ref(), &place.uri, &place.below(path)?).await?;
        if facts.named().iter().any(|n| outputs.files.contains(&n.path) || outputs.directories.contains(&n.path)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The versions after `read_version` that a run's step committed, by their stamps. A version that is gone is not asked.
///
/// # Errors
/// `Transient` or `Damaged` when a manifest could not be read: then it is not known.
pub async fn stamped(place: &Place, read_version: u64, run: Uuid, step: &str) -> Result<Vec<u64>> {
    let (_, versions, _) = look::reread_refs(place, read_version).await?;
    let mut out = Vec::new();
    for (version, path) in versions.range(read_version + 1..) {
        let facts = manifest::read(place.objects().as_ref(), &place.uri, &place.below(path)?).await?;
        if facts.stamp.is_some_and(|s| s.run == run.to_string() && s.step == step) {
            out.push(*version);
        }
    }
    Ok(out)
}

pub(crate) async fn remove(place: &Place, outputs: &Outputs) -> u64 {
    let mut left = 0;
    let mut paths: Vec<(String, u64)> = outputs.files.iter().map(|f| (f.clone(), 0)).collect();
    for dir in &outputs.directories {
        let Ok(path) = place.below(dir) else { continue };
        let sub = Place { path, ..place.clone() };
        if let Ok(listing) = crate::listing::Listing::read(&sub).await {
            paths.extend(listing.entries.into_iter().map(|e| (format!("{dir}/{}", e.path), e.size)));
        }
    }
    for (path, size) in paths {
        let Ok(full) = place.below(&path) else { continue };
        match place.objects().delete(&full).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(_) => left += size,
        }
    }
    left
}

/// An opened dataset at a version, for those who must not know Lance.
pub type Handle = Dataset;
