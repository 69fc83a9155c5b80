//! Version clean-up by our own plan, in chunks (design, "Clean up").
//!
//! Lance's `execute()` is never called: it evaluates again, deletes "unverified" files that no version names, and reads tags
//! once at its start, so that a tag or restore made during a slow clean-up dangles (facts, "Cleanup"). Here a plan names every
//! manifest and file; apply re-reads the refs before and after the manifests of each chunk and puts back what somebody named
//! meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::future::Future;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use object_store::{ObjectStoreExt as _, PutMode, PutOptions};
use roaring::RoaringBitmap;
use serde::{Deserialize, Serialize};

use crate::handle::Place;
use crate::look::{Look, TagInfo, owner, reread_refs};
pub use crate::rate::Rate;
use crate::refs::KeepSet;
use crate::{Error, Kind, Result, manifest};

mod deletes;

use deletes::delete_all;
pub(crate) use deletes::{Deleted, delete};

/// Versions per chunk at a usual rate: refs are re-read twice a chunk.
const CHUNK: usize = 100;
/// Versions per chunk at most.
const MOST_PER_CHUNK: usize = 1_000;
/// Bytes of manifests that are kept while their chunk goes.
const KEPT_BYTES: u64 = 64 << 20;
/// Manifests read at once.
const READS: usize = 8;
/// A chunk takes about this long at the given rate, so that a freeze or a block is obeyed within ten seconds.
const CHUNK_SECONDS: f64 = 5.0;

/// What a clean-up removes, and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// The HEAD that the plan saw.
    pub head: u64,
    /// Detached manifests that the plan saw.
    pub detached: usize,
    /// Versions that go, oldest first.
    pub versions: Vec<VersionToGo>,
    /// Files that only those versions name.
    pub files: Vec<FileToGo>,
}

/// One version that goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionToGo {
    /// Its number.
    pub version: u64,
    /// Its manifest, relative to the dataset's root.
    pub manifest: String,
    /// Bytes of the manifest.
    pub bytes: u64,
}

/// One file that goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileToGo {
    /// Relative to the dataset's root.
    pub path: String,
    /// Its bytes.
    pub bytes: u64,
    /// The oldest going version that names it.
    pub first: u64,
    /// The newest going version that names it: it goes after that one's manifest.
    pub after: u64,
}

impl Removal {
    /// Bytes of manifests and files.
    pub fn bytes(&self) -> u64 {
        self.versions.iter().map(|v| v.bytes).sum::<u64>() + self.files.iter().map(|f| f.bytes).sum::<u64>()
    }
}

/// Which files go with these versions: named by going manifests only, listed, and in no clone's hands. Pure.
///
/// # Errors
/// The reasons for `references_incomplete`, when the keep-set is incomplete: only a complete one deletes.
pub fn removal(look: &Look, going: &BTreeSet<u64>, keep: &KeepSet) -> std::result::Result<Removal, Vec<String>> {
    let KeepSet::Complete(keep) = keep else {
        let KeepSet::Incomplete(why) = keep else { return Err(Vec::new()) };
        return Err(why.clone());
    };
    let versions = look.versions();
    let mut out = Removal {
        head: look.version(),
        detached: look.manifests.iter().filter(|m| m.detached).count(),
        ..Removal::default()
    };
    let mut ordinals = RoaringBitmap::new();
    let mut number: BTreeMap<u32, u64> = BTreeMap::new();
    for (ordinal, info) in versions.iter().filter(|(_, m)| going.contains(&m.version) && m.version != look.version()) {
        ordinals.insert(*ordinal);
        number.insert(*ordinal, info.version);
        out.versions.push(VersionToGo { version: info.version, manifest: info.path.clone(), bytes: info.size });
    }
    for entry in &look.listing.entries {
        let Some(key) = owner(&entry.path) else { continue };
        if !look.uses.only_by(&key, &ordinals) || kept(keep, &key, &entry.path) {
            continue;
        }
        let by: Vec<u64> = look.uses.of(&key).into_iter().flatten().filter_map(|o| number.get(&o).copied()).collect();
        let (Some(first), Some(after)) = (by.iter().min().copied(), by.iter().max().copied()) else { continue };
        out.files.push(FileToGo { path: entry.path.clone(), bytes: entry.size, first, after });
    }
    Ok(out)
}

/// Whether a clone reads this file: by its own path, its index directory, or its owning data file.
fn kept(keep: &BTreeSet<String>, key: &str, path: &str) -> bool {
    keep.contains(path) || keep.contains(key)
}

/// What a clean-up did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cleaned {
    /// Versions whose manifests went.
    pub versions: Vec<u64>,
    /// Files deleted, manifests not counted.
    pub files: u64,
    /// Bytes deleted, manifests included.
    pub bytes: u64,
    /// Deletes that failed; they are found again next time.
    pub failed: u64,
    /// Why it stopped before its end, if it did.
    pub stopped: Option<String>,
    /// What the store said when it denied a delete: nothing more was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied: Option<String>,
}

/// Deletes between two questions whether to go on.
fn chunk_of(rate: &Rate) -> usize {
    CHUNK.max((CHUNK_SECONDS * rate.share()) as usize)
}

/// Versions per chunk at so many deletes a second: as many as a fifth of a second takes, so that at a high rate the questions
/// between chunks do not outnumber the deletes.
pub fn versions_per_chunk(per_second: f64) -> usize {
    ((per_second / 5.0) as usize).clamp(CHUNK, MOST_PER_CHUNK)
}

/// The two ends of a clean-up: where is read, and through which credentials is deleted. Equal where a bucket has one set.
#[derive(Clone, Copy)]
pub struct Ends<'a> {
    /// Refs and manifests are read here.
    pub reads: &'a Place,
    /// Deletes, and manifests that are put back, go through this.
    pub deletes: &'a Place,
}

/// Applies a removal in chunks. `allowed` is asked before each chunk, and within a chunk of very many files, and says why not
/// (blocks, protection, trash, claim, shutdown); `progress` is told the number of versions done.
///
/// # Errors
/// When the refs could not be re-read: nothing more is deleted then.
pub async fn apply<A, F>(
    place: &Place,
    plan: &Removal,
    rate: &Rate,
    allowed: A,
    progress: impl FnMut(usize),
) -> Result<Cleaned>
where
    A: FnMut() -> F,
    F: Future<Output = std::result::Result<(), String>>,
{
    let mut cleaned = Cleaned::default();
    apply_into(&mut cleaned, Ends { reads: place, deletes: place }, plan, rate, allowed, progress).await?;
    Ok(cleaned)
}

/// As [`apply`], with the counts in `cleaned` also when it fails or panics half-way: the audit names what is gone already.
///
/// A store that denies a delete ends the clean-up: the first manifest and the first file of all go alone, so that a credential
/// without the right leaves every version whole.
///
/// # Errors
/// As [`apply`].
pub async fn apply_into<A, F>(
    cleaned: &mut Cleaned,
    ends: Ends<'_>,
    plan: &Removal,
    rate: &Rate,
    mut allowed: A,
    mut progress: impl FnMut(usize),
) -> Result<()>
where
    A: FnMut() -> F,
    F: Future<Output = std::result::Result<(), String>>,
{
    let mut removed: BTreeSet<u64> = BTreeSet::new();
    let paths: HashSet<&str> = plan.files.iter().map(|f| f.path.as_str()).collect();
    let mut watch = Watch { place: ends.reads, plan, paths, head: plan.head };
    for (n, chunk) in chunks(plan, versions_per_chunk(rate.share()), chunk_of(rate)).into_iter().enumerate() {
        if let Err(why) = allowed().await {
            cleaned.stopped = Some(why);
            return Ok(());
        }
        if let Some(why) = watch.objection(chunk.iter().map(|v| v.version)).await? {
            cleaned.stopped = Some(why);
            return Ok(());
        }
        let kept = keep_bytes(ends.reads, chunk).await?;
        let alone = usize::from(n == 0);
        let gone = delete_manifests(ends.deletes, &kept, alone, rate, cleaned).await;
        let objection = match &cleaned.denied {
            Some(why) => Some(why.clone()),
            None => watch.objection(gone.iter().copied()).await?,
        };
        if let Some(why) = objection {
            put_back(ends, &kept, &gone, cleaned).await?;
            cleaned.stopped = Some(why);
            return Ok(());
        }
        removed.extend(&gone);
        let files = files_of(plan, &removed, &gone);
        let began = delete_files(ends.deletes, &files, alone, rate, &mut allowed, cleaned).await;
        remove_empty_directories(ends.deletes, plan, &gone);
        if let Some(why) = cleaned.denied.clone() {
            if !began {
                put_back(ends, &kept, &gone, cleaned).await?;
            }
            cleaned.stopped = Some(why);
        }
        progress(removed.len());
        if cleaned.stopped.is_some() {
            return Ok(());
        }
    }
    Ok(())
}

/// Versions that go together, oldest first: at most so many, and with their files at most `deletes` where one version alone
/// has no more.
fn chunks(plan: &Removal, versions: usize, deletes: usize) -> Vec<&[VersionToGo]> {
    let mut files: BTreeMap<u64, usize> = BTreeMap::new();
    for file in &plan.files {
        *files.entry(file.after).or_default() += 1;
    }
    let mut out = Vec::new();
    let (mut start, mut sum, mut bytes) = (0, 0, 0);
    for (i, version) in plan.versions.iter().enumerate() {
        let own = 1 + files.get(&version.version).copied().unwrap_or(0);
        if i > start && (i - start >= versions || sum + own > deletes || bytes + version.bytes > KEPT_BYTES) {
            out.push(&plan.versions[start..i]);
            (start, sum, bytes) = (i, 0, 0);
        }
        sum += own;
        bytes += version.bytes;
    }
    if start < plan.versions.len() {
        out.push(&plan.versions[start..]);
    }
    out
}

/// Looks for what somebody named since the plan.
struct Watch<'a> {
    place: &'a Place,
    plan: &'a Removal,
    paths: HashSet<&'a str>,
    head: u64,
}

impl Watch<'_> {
    /// Why these versions must stay after all, if so.
    async fn objection(&mut self, versions: impl Iterator<Item = u64>) -> Result<Option<String>> {
        let going: BTreeSet<u64> = versions.collect();
        let (refs, present, detached) = reread_refs(self.place, self.plan.head).await?;
        if let Some((path, why)) = refs.unreadable.first() {
            return Ok(Some(format!("{path} can no longer be read ({why})")));
        }
        let on_main = |tag: &&TagInfo| tag.branch.as_deref().is_none_or(|b| b == "main");
        if let Some((name, tag)) = refs.tags.iter().find(|(_, t)| on_main(t) && going.contains(&t.version)) {
            return Ok(Some(format!("tag {name} names version {} since the plan", tag.version)));
        }
        if let Some((name, (_, version))) = refs
            .branches
            .iter()
            .find(|(_, (parent, v))| parent.as_deref().is_none_or(|b| b == "main") && going.contains(v))
        {
            return Ok(Some(format!("branch {name} starts from version {version} since the plan")));
        }
        if detached > self.plan.detached {
            return Ok(Some("a detached version appeared since the plan".into()));
        }
        if !present.contains_key(&self.plan.head) && present.keys().all(|v| *v < self.plan.head) {
            return Ok(Some("HEAD went backwards since the plan".into()));
        }
        // A restore makes a new version of old files: whoever is newer than the plan is read.
        for (version, path) in present.range(self.head + 1..) {
            let facts =
                manifest::read(self.place.objects().as_ref(), &self.place.uri, &self.place.below(path)?).await?;
            if facts.named().iter().any(|n| n.base.is_none() && self.names(&n.path)) {
                return Ok(Some(format!("version {version} names a file of the plan")));
            }
            self.head = *version;
        }
        Ok(None)
    }

    fn names(&self, path: &str) -> bool {
        self.paths.contains(path)
            || (path.starts_with("_indices/")
                && self.paths.iter().any(|p| p.strip_prefix(path).is_some_and(|r| r.starts_with('/'))))
    }
}

type Kept = Vec<(VersionToGo, Bytes)>;

async fn keep_bytes(place: &Place, chunk: &[VersionToGo]) -> Result<Kept> {
    let mut kept = Vec::with_capacity(chunk.len());
    let mut reads = stream::iter(chunk)
        .map(|v| async move {
            let path = place.below(&v.manifest)?;
            match place.objects().get(&path).await {
                Ok(found) => match found.bytes().await {
                    Ok(bytes) => Ok(Some((v.clone(), bytes))),
                    Err(e) => Err(Error::store("keeping a manifest's bytes", &place.uri, e)),
                },
                // Another maintainer was first.
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                Err(e) => Err(Error::store("keeping a manifest's bytes", &place.uri, e)),
            }
        })
        .buffered(READS);
    while let Some(found) = reads.next().await {
        kept.extend(found?);
    }
    Ok(kept)
}

/// The first `alone` go alone.
async fn delete_manifests(place: &Place, kept: &Kept, alone: usize, rate: &Rate, cleaned: &mut Cleaned) -> Vec<u64> {
    let mut gone = Vec::new();
    let (first, rest) = kept.split_at(kept.len().min(alone));
    for part in [first, rest] {
        let paths: Vec<&str> = part.iter().map(|(v, _)| v.manifest.as_str()).collect();
        for ((v, _), deleted) in part.iter().zip(delete_all(place, &paths, rate).await) {
            if cleaned.counts(deleted) {
                cleaned.versions.push(v.version);
                cleaned.bytes += v.bytes;
                gone.push(v.version);
            }
        }
        if cleaned.denied.is_some() {
            break;
        }
    }
    gone
}

/// Manifests whose files are all there go back to their places.
async fn put_back(ends: Ends<'_>, kept: &Kept, gone: &[u64], cleaned: &mut Cleaned) -> Result<()> {
    for (v, bytes) in kept.iter().filter(|(v, _)| gone.contains(&v.version)) {
        let path = ends.deletes.below(&v.manifest)?;
        let put = async |place: &Place| {
            let options = PutOptions { mode: PutMode::Create, ..Default::default() };
            place.objects().put_opts(&path, bytes.clone().into(), options).await
        };
        // Credentials that may only delete put nothing back: then those that commit do.
        let done = match put(ends.deletes).await {
            Err(e) if !matches!(e, object_store::Error::AlreadyExists { .. }) => put(ends.reads).await,
            done => done,
        };
        match done {
            Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => {}
            Err(e) => {
                return Err(Error::store(
                    format!("putting back the manifest of version {}", v.version),
                    &ends.reads.uri,
                    e,
                )
                .with_kind(Kind::Bug)
                .remedy("its files are still there; put the manifest back from a copy or restore another version"));
            }
        }
    }
    cleaned.versions.retain(|v| !gone.contains(v));
    let returned: u64 = kept.iter().filter(|(v, _)| gone.contains(&v.version)).map(|(v, _)| v.bytes).sum();
    cleaned.bytes = cleaned.bytes.saturating_sub(returned);
    Ok(())
}

/// A file goes with the newest version that names it, and only when all that name it are gone: a manifest whose delete failed
/// keeps its files until next time.
fn files_of<'a>(plan: &'a Removal, removed: &BTreeSet<u64>, gone: &[u64]) -> Vec<&'a FileToGo> {
    let failed: BTreeSet<u64> =
        plan.versions.iter().map(|v| v.version).filter(|v| Some(v) <= removed.last() && !removed.contains(v)).collect();
    plan.files.iter().filter(|f| gone.contains(&f.after) && failed.range(f.first..=f.after).next().is_none()).collect()
}

/// Deletes files, and says whether any went. Between as many as a chunk has, `allowed` is asked again: what is left then is
/// named by no version, and reconcile finds it.
async fn delete_files<A, F>(
    place: &Place,
    files: &[&FileToGo],
    alone: usize,
    rate: &Rate,
    allowed: &mut A,
    cleaned: &mut Cleaned,
) -> bool
where
    A: FnMut() -> F,
    F: Future<Output = std::result::Result<(), String>>,
{
    let mut began = false;
    let (first, rest) = files.split_at(files.len().min(alone));
    for (n, part) in std::iter::once(first).chain(rest.chunks(chunk_of(rate))).enumerate() {
        if n > 1
            && let Err(why) = allowed().await
        {
            tracing::warn!(dataset = place.uri, "files of removed versions stay, which reconcile will name: {why}");
            cleaned.stopped = Some(why);
            break;
        }
        let paths: Vec<&str> = part.iter().map(|f| f.path.as_str()).collect();
        for (file, deleted) in part.iter().zip(delete_all(place, &paths, rate).await) {
            if cleaned.counts(deleted) {
                began = true;
                cleaned.files += 1;
                cleaned.bytes += file.bytes;
            }
        }
        if cleaned.denied.is_some() {
            break;
        }
    }
    began
}

impl Cleaned {
    /// Notes a delete that did not succeed; whether it did.
    fn counts(&mut self, deleted: Deleted) -> bool {
        match deleted {
            Deleted::Gone => return true,
            Deleted::Failed => {}
            Deleted::Denied(why) => self.denied = Some(why),
        }
        self.failed += 1;
        false
    }
}

/// On a local disk an index's directory stays behind empty (13,000 of them were reported: facts/pains K8).
fn remove_empty_directories(place: &Place, plan: &Removal, gone: &[u64]) {
    let Some(root) = crate::uri::local_path(&place.uri) else { return };
    let dirs: BTreeSet<&str> = plan
        .files
        .iter()
        .filter(|f| gone.contains(&f.after))
        .filter_map(|f| f.path.rsplit_once('/').map(|(dir, _)| dir))
        .filter(|dir| dir.starts_with("_indices/") || dir.matches('/').count() > 0)
        .collect();
    for dir in dirs {
        let name = percent_encoding::percent_decode_str(dir).decode_utf8_lossy().into_owned();
        // Fails, as it should, when the directory is not empty.
        let _ = std::fs::remove_dir(root.join(name));
    }
}
