//! Moving what a reclaim plan names to the quarantine, and back (design, "Reclaim").
//!
//! An object goes in three requests: a copy within the store, a comparison, a delete. Killed after any of them, the same call
//! goes on where it was: an object lies at its place, or in the quarantine, or in both, and never in neither. What is larger than a store
//! copies in one request is *marked* and stays where it is until it is purged.
//!
//! Layout below a warehouse's root, by paths relative to it:
//!
//! | object | what |
//! |---|---|
//! | `_squire_quarantine/<plan id>/<path>` | the copy of `<path>` |
//! | `_squire_quarantine/<plan id>/_squire/marks/<path>` | the mark of `<path>` |
//! | `_squire_quarantine/<plan id>/_squire/…` | what the service keeps beside: the plan, what was begun and when |
//!
//! No dataset lies in a folder named `_squire`, so the last two meet no copy.

mod readers;
mod taking;
mod watch;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore as _, ObjectStoreExt as _, PutMode, PutOptions};
use uuid::Uuid;

use crate::clean::{Deleted, delete};
use crate::discover::{QUARANTINE, RESERVED};
use crate::handle::Place;
use crate::listing::Listing;
use crate::manifest::names_version;
use crate::rate::Rate;
use crate::{Error, Lake, Result, uri};

pub use readers::{Readers, readers};
pub use taking::{BATCH, Item, Rule, Taken, Work, erase_marked, is_kept, restore_named, take_away};

/// What S3 copies in one request (CopyObject); larger objects are marked in place.
pub const COPY_LIMIT: u64 = 5 << 30;

/// One plan's quarantine below one root. Holding one means being allowed to delete: only apply, undo and purge open it.
#[derive(Debug, Clone)]
pub struct Quarantine {
    reads: Place,
    deletes: Place,
    plan: Uuid,
    limit: u64,
}

/// What became of an object that was to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Took {
    /// It lies in the quarantine now.
    Moved,
    /// It is larger than the store copies: it stays, marked, until it is purged.
    Marked,
    /// It lay in the quarantine already.
    Already,
    /// It is not what the plan named, or not there; untouched.
    Left(String),
    /// It lies where it was; trying again may help.
    Failed(String),
    /// The credentials may not delete.
    Denied(String),
}

/// What became of an object that was to come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Returned {
    /// It lies at its place again, byte for byte.
    Back,
    /// It had never left: the mark or the second copy is gone.
    Stayed,
    /// It could not be brought back, and why; its copy stays.
    Failed(String),
}

/// What became of an object that was to be purged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Erased {
    /// It is gone for good.
    Gone,
    /// There was nothing.
    Nothing,
    /// Tried again next time.
    Failed(String),
    /// The credentials may not delete.
    Denied(String),
}

/// What lies in one plan's quarantine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// Copies: the path relative to the root, bytes.
    pub copies: Vec<(String, u64)>,
    /// Marks: the path relative to the root.
    pub marks: Vec<String>,
    /// What the service keeps beside: the name below `_squire/`, and when it was written, by the store's clock.
    pub control: Vec<(String, DateTime<Utc>)>,
}

/// The ids of the plans that have a quarantine below a root. Reads only.
///
/// # Errors
/// `Transient` when the listing failed.
pub async fn plans(lake: &Lake, root: &str) -> Result<Vec<Uuid>> {
    let place = lake.place(root).await?;
    let dir = place.below(QUARANTINE)?;
    let listed = match place.objects().list_with_delimiter(Some(&dir)).await {
        Ok(listed) => listed,
        Err(object_store::Error::NotFound { .. }) => return Ok(Vec::new()),
        Err(e) => return Err(Error::store("listing the quarantine", root, e)),
    };
    let names = listed.common_prefixes.iter().filter_map(|p| p.filename()?.parse().ok());
    let mut plans: Vec<Uuid> = names.collect();
    plans.sort_unstable();
    Ok(plans)
}

/// What lies in a plan's quarantine below a root. Reads only.
///
/// # Errors
/// `Transient` when the listing failed.
pub async fn held(lake: &Lake, root: &str, plan: Uuid) -> Result<Held> {
    let place = lake.place(root).await?;
    let listing = Listing::read(&Place { path: place.below(&dir(plan))?, ..place }).await?;
    let mut out = Held::default();
    for entry in listing.entries {
        let own = entry.path.strip_prefix(RESERVED).and_then(|p| p.strip_prefix('/'));
        match own.map(|p| p.strip_prefix("marks/").ok_or(p)) {
            None => out.copies.push((entry.path, entry.size)),
            Some(Ok(path)) => out.marks.push(path.to_string()),
            Some(Err(name)) => out.control.push((name.to_string(), entry.modified)),
        }
    }
    Ok(out)
}

/// Reads what the service keeps beside the copies; `None` when it is not there.
///
/// # Errors
/// What the store says.
pub async fn read_control(lake: &Lake, root: &str, plan: Uuid, name: &str) -> Result<Option<Bytes>> {
    let place = lake.place(root).await?;
    let path = place.below(&control(plan, name))?;
    let failed = |e| Error::store(format!("reading {path}"), root, e);
    match place.objects().get(&path).await {
        Ok(found) => found.bytes().await.map(Some).map_err(failed),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(e) => Err(failed(e)),
    }
}

/// Whether the bucket keeps what is overwritten or deleted: a read of an object names its version. `None` where no object of the
/// dataset could be asked. Reads only.
///
/// # Errors
/// What the store says.
pub async fn is_versioned(lake: &Lake, dataset: &str, object: &str) -> Result<bool> {
    let place = lake.place(dataset).await?;
    let found = head(&place, object).await?;
    Ok(found.is_some_and(|m| names_version(&m)))
}

fn dir(plan: Uuid) -> String {
    format!("{QUARANTINE}/{plan}")
}

fn control(plan: Uuid, name: &str) -> String {
    format!("{}/{RESERVED}/{name}", dir(plan))
}

impl Quarantine {
    /// Opens a plan's quarantine below a root (canonical URI). Nothing is written.
    ///
    /// # Errors
    /// `Open` when the root's store is not understood.
    pub async fn open(lake: &Lake, root: &str, plan: Uuid) -> Result<Self> {
        let (reads, deletes) = (lake.place(root).await?, lake.deleting_place(root).await?);
        Ok(Self { reads, deletes, plan, limit: COPY_LIMIT })
    }

    /// The same with a lower limit for copies, for tests: [`COPY_LIMIT`] is more than a test can write.
    pub fn copying_up_to(self, limit: u64) -> Self {
        Self { limit, ..self }
    }

    /// The root's canonical URI.
    pub fn root(&self) -> &str {
        &self.reads.uri
    }

    /// The path of a dataset relative to the root, in the store's spelling, with a slash behind it; empty for the root itself.
    ///
    /// # Errors
    /// `Bug` when the dataset does not lie below the root.
    pub fn prefix(&self, dataset: &Place) -> Result<String> {
        let root = self.reads.path.as_ref();
        let rest = dataset.path.as_ref().strip_prefix(root).map(|r| r.trim_start_matches('/'));
        match rest.filter(|_| uri::within(&dataset.uri, &self.reads.uri)) {
            Some("") => Ok(String::new()),
            Some(rest) => Ok(format!("{rest}/")),
            None => Err(Error::new(crate::Kind::Bug, format!("finding {} below its root", dataset.uri), self.root())),
        }
    }

    /// Where the copy of an object lies; both paths relative to the root.
    pub fn copy_path(&self, path: &str) -> String {
        format!("{}/{path}", dir(self.plan))
    }

    fn mark(&self, path: &str) -> String {
        control(self.plan, &format!("marks/{path}"))
    }

    /// Keeps something beside the copies, over what was there. Returns when, by the store's clock.
    ///
    /// # Errors
    /// What the store says.
    pub async fn put_control(&self, name: &str, bytes: Vec<u8>) -> Result<DateTime<Utc>> {
        let name = control(self.plan, name);
        let path = self.reads.below(&name)?;
        let failed = |e| Error::store(format!("writing {name}"), self.root(), e);
        self.reads.objects().put(&path, bytes.into()).await.map_err(failed)?;
        Ok(head(&self.reads, &name).await?.map_or_else(Utc::now, |m| m.last_modified))
    }

    /// Takes away what was kept beside.
    ///
    /// # Errors
    /// What the store says.
    pub async fn drop_control(&self, name: &str, rate: &Rate) -> Result<()> {
        match delete(&self.deletes, &control(self.plan, name), rate).await {
            Deleted::Gone => Ok(()),
            Deleted::Failed => Err(Error::new(crate::Kind::Transient, format!("deleting {name}"), self.root())),
            Deleted::Denied(why) => Err(Error::new(crate::Kind::Permanent, why, self.root())),
        }
    }

    /// On a local disk the folders of what went stay behind empty; one with anything in it stays.
    pub fn remove_empty_folders(&self) {
        let Some(root) = uri::local_path(&self.reads.uri) else { return };
        let (mut dirs, mut at) = (vec![root.join(dir(self.plan))], 0);
        while let Some(dir) = dirs.get(at).cloned() {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            dirs.extend(entries.map(|e| e.path()).filter(|path| path.is_dir() && !path.is_symlink()));
            at += 1;
        }
        for dir in dirs.iter().rev() {
            let _ = std::fs::remove_dir(dir);
        }
        let _ = std::fs::remove_dir(root.join(QUARANTINE));
    }

    /// Moves one object (path relative to the root) into the quarantine, or marks it.
    async fn take(&self, path: &str, item: &Item, rate: &Rate) -> Took {
        match self.try_take(path, item, rate).await {
            Ok(took) => took,
            Err(e) => Took::Failed(e.to_string()),
        }
    }

    async fn try_take(&self, path: &str, item: &Item, rate: &Rate) -> Result<Took> {
        let copy = self.copy_path(path);
        let Some(from) = head(&self.reads, path).await? else {
            let there = head(&self.reads, &copy).await?.is_some_and(|c| c.size == item.bytes);
            return Ok(if there { Took::Already } else { Took::Left("it is gone".into()) });
        };
        if let Some(why) = item.differs(from.size, from.last_modified) {
            return Ok(Took::Left(why));
        }
        if item.bytes > self.limit {
            self.put_mark(path, &from).await?;
            return Ok(Took::Marked);
        }
        let ready = match head(&self.reads, &copy).await? {
            // A run that was stopped after its copy.
            Some(to) => self.same(&from, &to).await?,
            None => false,
        };
        if !ready && let Some(why) = self.copy_over(&from, path, &copy).await? {
            delete(&self.deletes, &copy, rate).await;
            return Ok(Took::Failed(why));
        }
        Ok(match delete(&self.deletes, path, rate).await {
            Deleted::Gone => Took::Moved,
            Deleted::Failed => Took::Failed("its delete failed; its copy lies in the quarantine".into()),
            Deleted::Denied(why) => Took::Denied(why),
        })
    }

    async fn put_mark(&self, path: &str, from: &ObjectMeta) -> Result<()> {
        let mark = self.reads.below(&self.mark(path))?;
        let text = serde_json::json!({ "bytes": from.size, "last_modified": from.last_modified, "e_tag": from.e_tag });
        let options = PutOptions { mode: PutMode::Create, ..Default::default() };
        match self.reads.objects().put_opts(&mark, text.to_string().into(), options).await {
            Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => Ok(()),
            Err(e) => Err(Error::store(format!("marking {path}"), self.root(), e)),
        }
    }

    /// Copies within the store and compares; why the copy is not good, if it is not.
    async fn copy_over(&self, from: &ObjectMeta, source: &str, target: &str) -> Result<Option<String>> {
        let (source, path) = (self.reads.below(source)?, self.reads.below(target)?);
        let failed = |e| Error::store(format!("copying {source}"), self.root(), e);
        self.reads.objects().copy(&source, &path).await.map_err(failed)?;
        Ok(match head(&self.reads, target).await? {
            Some(to) if self.same(from, &to).await? => None,
            Some(to) => Some(format!("its copy is not the same ({} bytes of {})", to.size, from.size)),
            None => Some("its copy is not there".into()),
        })
    }

    /// Size and e_tag; where the tags differ (a copy of a multipart upload has another one) the bytes decide.
    async fn same(&self, a: &ObjectMeta, b: &ObjectMeta) -> Result<bool> {
        // The bytes would tell as well; this reads none.
        if a.size != b.size {
            return Ok(false);
        }
        if a.e_tag.is_some() && a.e_tag == b.e_tag {
            return Ok(true);
        }
        self.equal_bytes(a, b).await
    }

    async fn equal_bytes(&self, a: &ObjectMeta, b: &ObjectMeta) -> Result<bool> {
        let failed = |e| Error::store("comparing a copy", self.root(), e);
        let open = async |at: &ObjectMeta| Ok::<_, object_store::Error>(self.reads.objects().get(&at.location).await?);
        let mut left = open(a).await.map_err(failed)?.into_stream();
        let mut right = open(b).await.map_err(failed)?.into_stream();
        let (mut x, mut y) = (Bytes::new(), Bytes::new());
        loop {
            if x.is_empty() {
                x = left.try_next().await.map_err(failed)?.unwrap_or_default();
            }
            if y.is_empty() {
                y = right.try_next().await.map_err(failed)?.unwrap_or_default();
            }
            let n = x.len().min(y.len());
            if n == 0 {
                return Ok(x.is_empty() && y.is_empty());
            }
            if x.split_to(n) != y.split_to(n) {
                return Ok(false);
            }
        }
    }

    /// Why a copy is not what was moved, as far as that is known: its size; on a local disk, where a copy keeps it, its time.
    fn altered(&self, copied: &ObjectMeta, item: &Item) -> Option<String> {
        if copied.size != item.bytes {
            return Some(format!("its copy has {} bytes, {} in the plan; it stays", copied.size, item.bytes));
        }
        let keeps_time = uri::local_path(&self.reads.uri).is_some();
        (keeps_time && item.differs(copied.size, copied.last_modified).is_some())
            .then(|| format!("its copy was written again, at {}; it stays", copied.last_modified.to_rfc3339()))
    }

    /// Whether the object at its place has the bytes of its copy; `None` without a copy.
    async fn is_copied(&self, path: &str) -> Result<Option<bool>> {
        let Some(copy) = head(&self.reads, &self.copy_path(path)).await? else { return Ok(None) };
        match head(&self.reads, path).await? {
            Some(original) => self.same(&original, &copy).await.map(Some),
            None => Ok(Some(false)),
        }
    }

    /// Brings one object back to its place. What lies there by now is never overwritten, and a copy that is not the `item` that the
    /// plan names never comes back.
    pub async fn bring_back(&self, path: &str, item: Option<&Item>, rate: &Rate) -> Returned {
        match self.try_bring_back(path, item, rate).await {
            Ok(returned) => returned,
            Err(e) => Returned::Failed(e.to_string()),
        }
    }

    async fn try_bring_back(&self, path: &str, item: Option<&Item>, rate: &Rate) -> Result<Returned> {
        let copy = self.copy_path(path);
        let (original, copied) = (head(&self.reads, path).await?, head(&self.reads, &copy).await?);
        let Some(copied) = copied else {
            // Asked first: in a bucket that keeps versions, deleting what is not there leaves something.
            if head(&self.reads, &self.mark(path)).await?.is_some() {
                delete(&self.deletes, &self.mark(path), rate).await;
            }
            return Ok(match original {
                Some(_) => Returned::Stayed,
                None => Returned::Failed("neither it nor its copy is there".into()),
            });
        };
        if let Some(why) = item.and_then(|item| self.altered(&copied, item)) {
            return Ok(Returned::Failed(why));
        }
        let returned = match original {
            Some(original) if self.same(&original, &copied).await? => Returned::Stayed,
            Some(_) => return Ok(Returned::Failed("another object lies at its place; its copy stays".into())),
            None => match self.copy_over(&copied, &copy, path).await? {
                Some(why) => return Ok(Returned::Failed(why)),
                None => Returned::Back,
            },
        };
        if !matches!(delete(&self.deletes, &copy, rate).await, Deleted::Gone) {
            tracing::warn!(path, "it is back, and its copy could not be deleted; `reclaim undo` tries again");
        }
        Ok(returned)
    }

    /// Deletes one object's copy for good.
    pub async fn erase(&self, path: &str, rate: &Rate) -> Erased {
        let copy = self.copy_path(path);
        match head(&self.reads, &copy).await {
            Ok(None) => return Erased::Nothing,
            Ok(Some(_)) => {}
            Err(e) => return Erased::Failed(e.to_string()),
        }
        erased(delete(&self.deletes, &copy, rate).await)
    }

    /// Copies and marks of several paths that are there, for a run that goes on where another was stopped.
    async fn present(&self, paths: &[String]) -> Result<Vec<bool>> {
        let check = |path: String| async move { Ok(head(&self.reads, &self.copy_path(&path)).await?.is_some()) };
        futures::stream::iter(paths.to_vec()).map(check).buffered(taking::AT_ONCE).try_collect().await
    }
}

fn erased(deleted: Deleted) -> Erased {
    match deleted {
        Deleted::Gone => Erased::Gone,
        Deleted::Failed => Erased::Failed("its delete failed; it is tried again next time".into()),
        Deleted::Denied(why) => Erased::Denied(why),
    }
}

/// The object at a path, or `None`.
async fn head(place: &Place, path: &str) -> Result<Option<ObjectMeta>> {
    let full = place.below(path)?;
    match place.objects().head(&full).await {
        Ok(meta) => Ok(Some(meta)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(e) => Err(Error::store(format!("looking at {path}"), &place.uri, e)),
    }
}
