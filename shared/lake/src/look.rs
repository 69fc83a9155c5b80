//! All that is known of one dataset before a plan: one recursive LIST, one GET per manifest, the refs.
//!
//! Everything in a [`Look`] is plain data; plans are pure functions of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lance::Dataset;
use object_store::ObjectStoreExt as _;
use roaring::RoaringBitmap;
use uuid::Uuid;

use crate::authority::{self, Authority, Catalogued, Marks};
use crate::handle::Place;
use crate::health::{self, Missing};
use crate::index::{self, IndexInfo};
use crate::listing::{Kind, Listing, classify};
use crate::manifest::{self, Facts};
use crate::namespace::{self, Standing};
use crate::refs::{Reads, Uses};
use crate::stamp::Stamp;
use crate::{Error, Kind as ErrorKind, Lake, Result, contain, links};

mod manifests;

use manifests::Candidate;

/// One manifest of any tree, attached or detached.
#[derive(Debug, Clone, PartialEq)]
pub struct ManifestInfo {
    /// Relative path.
    pub path: String,
    /// Empty for the main tree.
    pub tree: String,
    /// Whether it is a detached one.
    pub detached: bool,
    /// Its version (with the top bit set when detached).
    pub version: u64,
    /// The writer's own timestamp.
    pub timestamp: DateTime<Utc>,
    /// When the store saw it last.
    pub modified: DateTime<Utc>,
    /// The library that wrote it.
    pub writer: Option<(String, String)>,
    /// Our stamp, when the commit was Squire's.
    pub stamp: Option<Stamp>,
    /// The operation, when recorded inline.
    pub operation: Option<String>,
    /// Whether a graph made it: a property of its transaction, when recorded inline, is OmniGraph's.
    pub by_graph: bool,
    /// Live rows.
    pub rows: u64,
    /// Bytes of the manifest itself.
    pub size: u64,
    /// What the listing had to tell it from another object of its name, if anything.
    pub e_tag: Option<String>,
    /// Its fragments' ids.
    pub fragments: RoaringBitmap,
    /// Those with deleted rows, or with columns that its schema no longer has.
    pub erased: RoaringBitmap,
    /// Its index segments, with the version whose rows each was built from.
    pub indices: Vec<(Uuid, u64)>,
}

impl ManifestInfo {
    /// A version's time: the later of its own timestamp and its manifest's last-modified (design, "Clean up").
    pub fn time(&self) -> DateTime<Utc> {
        self.timestamp.max(self.modified)
    }
}

/// One fragment of HEAD.
#[derive(Debug, Clone, PartialEq)]
pub struct FragmentInfo {
    /// Its id.
    pub id: u64,
    /// Physical rows.
    pub physical_rows: u64,
    /// Deleted rows.
    pub deleted_rows: u64,
    /// Bytes of its data files.
    pub bytes: u64,
    /// Data files.
    pub files: usize,
    /// Data files with fields that the schema no longer has.
    pub files_with_dead_columns: usize,
    /// Whether any of its files lies under another base.
    pub external: bool,
    /// Whether every count above is recorded.
    pub complete: bool,
    /// Overlay files.
    pub overlays: usize,
}

impl FragmentInfo {
    /// Live rows.
    pub fn rows(&self) -> u64 {
        self.physical_rows.saturating_sub(self.deleted_rows)
    }
}

/// A tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagInfo {
    /// The branch it is on; `None` is main.
    pub branch: Option<String>,
    /// The version it names.
    pub version: u64,
}

/// What is known of one dataset.
#[derive(Clone)]
pub struct Look {
    /// Canonical URI.
    pub uri: String,
    /// HEAD's facts.
    pub head: Arc<Facts>,
    /// Every manifest of every tree; the position is the ordinal in [`Look::uses`].
    pub manifests: Vec<ManifestInfo>,
    /// `(path, why)` of manifests that could not be read.
    pub unreadable: Vec<(String, String)>,
    /// Tags by name.
    pub tags: BTreeMap<String, TagInfo>,
    /// Branches by name: the version of its parent that it started from, and the parent.
    pub branches: BTreeMap<String, (Option<String>, u64)>,
    /// Refs that could not be read.
    pub unreadable_refs: Vec<(String, String)>,
    /// Everything under the root.
    pub listing: Arc<Listing>,
    /// Who names which file.
    pub uses: Arc<Uses>,
    /// What this dataset reads of others.
    pub reads: Reads,
    /// Who owns HEAD.
    pub authority: Authority,
    /// HEAD's fragments in manifest order.
    pub fragments: Vec<FragmentInfo>,
    /// The state of every index.
    pub indices: Vec<IndexInfo>,
    /// Files that HEAD needs and that are not as recorded.
    pub missing: Vec<Missing>,
    /// Roots of datasets nested in this one.
    pub nested: BTreeSet<String>,
    /// V1 and V2 names in one `_versions/`.
    pub mixed_names: bool,
    /// `.lance-deregistered` is there.
    pub deregistered: bool,
    /// `.lance-reserved` is there.
    pub reserved: bool,
    /// The opened HEAD, for what follows in this pass. `None` when it could not be opened by the library.
    pub dataset: Option<Arc<Dataset>>,
    /// Nobody asked for the opened HEAD ([`glance`]).
    pub unopened: bool,
    /// When the look was taken.
    pub at: DateTime<Utc>,
}

impl std::fmt::Debug for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Look").field("uri", &self.uri).field("version", &self.head.version).finish_non_exhaustive()
    }
}

/// What a place turned out to be.
#[derive(Debug)]
pub enum Looked {
    /// A dataset.
    Dataset(Box<Look>),
    /// Declared, no data yet: no manifest, and a reservation.
    DeclaredOnly,
    /// No manifest and no reservation.
    Nothing,
}

/// Takes a full look at a dataset.
///
/// # Errors
/// `Transient` when the listing failed, `Damaged` when HEAD itself cannot be read. An unreadable *old* manifest is a
/// value in the look, not an error.
pub async fn look(lake: &Lake, uri: &str, now: DateTime<Utc>) -> Result<Looked> {
    taken(lake, uri, now, true, None).await
}

/// A full look after an `earlier` one: a manifest that is listed as the same object as then is not read a second time, HEAD's
/// excepted. Everything else is asked for anew.
///
/// # Errors
/// As [`look`].
pub async fn look_again(lake: &Lake, uri: &str, now: DateTime<Utc>, earlier: &Look) -> Result<Looked> {
    taken(lake, uri, now, true, Some(earlier)).await
}

/// The same for who only reads: HEAD is opened, for three more requests, only where it has indices whose state the library tells.
///
/// # Errors
/// As [`look`].
pub async fn glance(lake: &Lake, uri: &str, now: DateTime<Utc>) -> Result<Looked> {
    taken(lake, uri, now, false, None).await
}

async fn taken(lake: &Lake, uri: &str, now: DateTime<Utc>, opens: bool, earlier: Option<&Look>) -> Result<Looked> {
    // First, because a namespace may lend what the bucket is read with.
    let standing = namespace::standing(lake, uri).await;
    let place = lake.place(uri).await?;
    let listing = Listing::read(&place).await?;
    let mut sorted = Sorted::of(&listing);
    if sorted.manifests.iter().all(|m| !m.tree.is_empty() || m.detached) {
        let has = sorted.reserved || sorted.manifests.iter().any(|m| m.detached);
        return Ok(if has { Looked::DeclaredOnly } else { Looked::Nothing });
    }
    let head_at = sorted
        .manifests
        .iter()
        .enumerate()
        .filter(|(_, m)| m.tree.is_empty() && !m.detached)
        .max_by_key(|(_, m)| m.version)
        .map(|(i, _)| i)
        .unwrap_or_default();
    let (mut collected, head) = manifests::collect(&place, &sorted.manifests, head_at, earlier).await?;
    let mut refs = read_refs(&place, &sorted).await;
    refs.unreadable.extend(links::behind(uri, &collected.uses, &mut collected.reads).await);
    let marks = Marks {
        detached: collected.manifests.iter().filter(|m| m.detached).count(),
        staging: sorted.staging,
        graph_neighbour: graph_neighbour(lake, uri).await,
        catalogued: catalogued(lake, uri, &standing, &sorted, head_at).await,
    };
    sorted.deregistered |= matches!(standing, Standing::Deregistered);
    let authority = authority::judge(&head, &marks);
    let hands_off = matches!(authority, Authority::Graph { .. } | Authority::Unknown { .. });
    let unopened = !opens && head.indices.iter().all(|i| index::is_system(&i.name));
    let dataset = if hands_off || sorted.mixed_names || unopened {
        None
    } else {
        contain::contained(lake, "opening the dataset", uri, lake.open(uri)).await.ok().map(Arc::new)
    };
    let indices = index::states(&head, dataset.as_deref()).await;
    Ok(Looked::Dataset(Box::new(Look {
        uri: uri.to_string(),
        missing: health::missing(&head, &listing),
        fragments: fragments(&head, &listing),
        head,
        manifests: collected.manifests,
        unreadable: collected.unreadable,
        tags: refs.tags,
        branches: refs.branches,
        unreadable_refs: refs.unreadable,
        uses: Arc::new(collected.uses),
        reads: collected.reads,
        authority,
        indices,
        nested: sorted.nested,
        mixed_names: sorted.mixed_names,
        deregistered: sorted.deregistered,
        reserved: sorted.reserved,
        listing: Arc::new(listing),
        dataset,
        unopened,
        at: now,
    })))
}

/// What a dataset reads of others, from its manifests alone: a LIST of `_versions/` and of the branches, one GET per manifest, and
/// nothing of its data.
///
/// # Errors
/// `Transient` when a listing failed, `Damaged` when any manifest cannot be read: what that one names is not known.
pub async fn edges(lake: &Lake, uri: &str) -> Result<Reads> {
    edges_of(lake, uri, uri).await
}

/// The same of a dataset that lies at `uri` and calls `own` its place: a copy in the quarantine.
pub(crate) async fn edges_of(lake: &Lake, uri: &str, own: &str) -> Result<Reads> {
    let place = lake.place(uri).await?;
    let listing = Listing::read_dirs(&place, &["_versions", "tree"]).await?;
    let sorted = Sorted::of(&listing);
    if sorted.manifests.is_empty() {
        return Err(Error::new(ErrorKind::Open, "finding its manifests", uri));
    }
    let mut collected = manifests::all(&place, own, &sorted.manifests).await?;
    links::behind(uri, &collected.uses, &mut collected.reads).await;
    Ok(collected.reads)
}

/// What a namespace says of the dataset, held against the bucket: where they do not agree about the newest version, one of them does
/// not know all, and opening the dataset may even write (Lance puts a manifest in its place that the namespace holds elsewhere).
async fn catalogued(lake: &Lake, uri: &str, standing: &Standing, sorted: &Sorted, head_at: usize) -> Catalogued {
    let managed = match standing {
        Standing::Unclear { why } => return Catalogued::Unclear { why: why.clone() },
        Standing::Managed(managed) => managed.clone(),
        Standing::Free if sorted.staging > 0 => match namespace::staged_in_directory(lake, uri).await {
            Some(managed) => managed,
            None => return Catalogued::Not,
        },
        Standing::Free | Standing::Deregistered => return Catalogued::Not,
    };
    let Some(head) = sorted.manifests.get(head_at) else { return Catalogued::Not };
    let why = match managed.latest().await {
        Ok((version, path)) if version == head.version && path.ends_with(&head.path) => {
            return Catalogued::Managed { directory: managed.is_directory() };
        }
        Ok((version, path)) => {
            format!(
                "its namespace's newest version is {version} at {path}, the bucket's {} at {}",
                head.version, head.path
            )
        }
        Err(e) => e.to_string(),
    };
    Catalogued::Unclear { why }
}

/// Whether the dataset lies in `nodes/` or `edges/` beside a `__manifest` (facts/omnigraph 1.6).
async fn graph_neighbour(lake: &Lake, uri: &str) -> bool {
    let mut parts = uri.rsplitn(3, '/');
    let _leaf = parts.next();
    let (Some(dir), Some(root)) = (parts.next(), parts.next()) else { return false };
    if dir != "nodes" && dir != "edges" {
        return false;
    }
    let Ok(place) = lake.place(&crate::uri::join(root, "__manifest")).await else { return true };
    let Ok(path) = place.below("_versions") else { return true };
    match place.objects().list_with_delimiter(Some(&path)).await {
        Ok(listed) => !listed.objects.is_empty(),
        // What cannot be read is not ours to write.
        Err(_) => true,
    }
}

/// The listing's names, sorted into what they are.
#[derive(Default)]
struct Sorted {
    manifests: Vec<Candidate>,
    tags: Vec<(String, String)>,
    branches: Vec<(String, String)>,
    nested: BTreeSet<String>,
    staging: usize,
    mixed_names: bool,
    reserved: bool,
    deregistered: bool,
}

impl Sorted {
    fn of(listing: &Listing) -> Self {
        let mut out = Self::default();
        let (mut v1, mut v2) = (false, false);
        for entry in &listing.entries {
            let placed = classify(&entry.path);
            let main = placed.tree.is_empty();
            let candidate = |version, detached| Candidate {
                path: entry.path.clone(),
                tree: placed.tree.clone(),
                version,
                detached,
                modified: entry.modified,
                size: entry.size,
                e_tag: entry.e_tag.clone(),
            };
            match placed.kind {
                Kind::Manifest { version, v2: is_v2 } => {
                    out.manifests.push(candidate(version, false));
                    if main && is_v2 {
                        v2 = true;
                    } else if main {
                        v1 = true;
                    }
                }
                Kind::Detached(id) => out.manifests.push(candidate(id, true)),
                // `.tmp` files are a local writer's; only `N.manifest-<uuid>` speaks of an external store.
                Kind::Staging if entry.path.contains(".manifest-") => out.staging += 1,
                Kind::Tag(name) => out.tags.push((name, entry.path.clone())),
                Kind::Branch(name) => out.branches.push((name, entry.path.clone())),
                Kind::Nested(root) => {
                    out.nested.insert(root);
                }
                Kind::Reserved => out.reserved = true,
                Kind::Deregistered => out.deregistered = true,
                _ => {}
            }
        }
        out.mixed_names = v1 && v2;
        out.manifests.sort_by(|a, b| (&a.tree, a.detached, a.version).cmp(&(&b.tree, b.detached, b.version)));
        out
    }
}

/// Tags and branches of a dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefsRead {
    /// Tags by name.
    pub tags: BTreeMap<String, TagInfo>,
    /// Branches by name: parent branch and parent version.
    pub branches: BTreeMap<String, (Option<String>, u64)>,
    /// `(path, why)`.
    pub unreadable: Vec<(String, String)>,
}

async fn read_refs(place: &Place, sorted: &Sorted) -> RefsRead {
    let mut out = RefsRead::default();
    for (name, path) in &sorted.tags {
        match read_json(place, path).await {
            Ok(v) => match v.get("version").and_then(serde_json::Value::as_u64) {
                Some(version) => {
                    let branch = v.get("branch").and_then(|b| b.as_str()).map(String::from);
                    out.tags.insert(name.clone(), TagInfo { branch, version });
                }
                None => out.unreadable.push((path.clone(), "the tag names no version".into())),
            },
            Err(why) => out.unreadable.push((path.clone(), why)),
        }
    }
    for (name, path) in &sorted.branches {
        match read_json(place, path).await {
            Ok(v) => {
                let parent = v.get("parentBranch").or_else(|| v.get("parent_branch")).and_then(|b| b.as_str());
                let version =
                    v.get("parentVersion").or_else(|| v.get("parent_version")).and_then(serde_json::Value::as_u64);
                match version {
                    Some(version) => {
                        out.branches.insert(name.clone(), (parent.map(String::from), version));
                    }
                    None => out.unreadable.push((path.clone(), "the branch names no parent version".into())),
                }
            }
            Err(why) => out.unreadable.push((path.clone(), why)),
        }
    }
    out
}

async fn read_json(place: &Place, path: &str) -> std::result::Result<serde_json::Value, String> {
    let path = place.below(path).map_err(|e| e.to_string())?;
    let bytes = match place.objects().get(&path).await {
        Ok(result) => result.bytes().await.map_err(|e| e.to_string())?,
        Err(e) => return Err(e.to_string()),
    };
    serde_json::from_slice(&bytes).map_err(|e| e.to_string())
}

/// Re-reads tags, branches and the manifests' names: what can newly hold a version. Used between chunks of deletes. Of the versions
/// those from `since` on are told for certain, older ones perhaps.
///
/// # Errors
/// `Transient` when a listing failed.
pub async fn reread_refs(place: &Place, since: u64) -> Result<(RefsRead, BTreeMap<u64, String>, usize)> {
    let mut listing = Listing::read_dirs(place, &["_refs"]).await?;
    listing.entries.extend(Listing::read_versions(place, since).await?.entries);
    let sorted = Sorted::of(&listing);
    let refs = read_refs(place, &sorted).await;
    let detached = sorted.manifests.iter().filter(|m| m.detached).count();
    let versions = sorted
        .manifests
        .into_iter()
        .filter(|m| m.tree.is_empty() && !m.detached)
        .map(|m| (m.version, m.path))
        .collect();
    Ok((refs, versions, detached))
}

fn fragments(head: &Facts, listing: &Listing) -> Vec<FragmentInfo> {
    let live: BTreeSet<i32> = head.manifest.schema.fields_pre_order().map(|f| f.id).collect();
    head.manifest
        .fragments
        .iter()
        .map(|f| {
            let mut complete = f.physical_rows.is_some();
            let mut bytes = 0;
            let mut dead = 0;
            for file in &f.files {
                let recorded = file.file_size_bytes.get().map(u64::from);
                let listed = || listing.get(&format!("data/{}", file.path)).map(|e| e.size);
                match recorded.or_else(listed) {
                    Some(n) => bytes += n,
                    None => complete = false,
                }
                // Negative ids are Lance's own hidden columns and tombstones of rewritten ones.
                if file.fields.iter().any(|id| *id >= 0 && !live.contains(id)) {
                    dead += 1;
                }
            }
            let deleted = match &f.deletion_file {
                None => 0,
                Some(d) => d.num_deleted_rows.unwrap_or_else(|| {
                    complete = false;
                    0
                }),
            };
            FragmentInfo {
                id: f.id,
                physical_rows: f.physical_rows.unwrap_or(0) as u64,
                deleted_rows: deleted as u64,
                bytes,
                files: f.files.len(),
                files_with_dead_columns: dead,
                external: f.files.iter().any(|file| file.base_id.is_some())
                    || f.deletion_file.as_ref().is_some_and(|d| d.base_id.is_some()),
                complete,
                overlays: f.overlays.len(),
            }
        })
        .collect()
}

impl Look {
    /// Tags whose version is gone from the tree that they are on, by name.
    pub fn dangling_tags(&self) -> impl Iterator<Item = (&String, &TagInfo)> {
        let there = |tag: &TagInfo| {
            let tree = match tag.branch.as_deref() {
                None | Some("main") => String::new(),
                Some(branch) => format!("tree/{branch}"),
            };
            self.manifests.iter().any(|m| !m.detached && m.tree == tree && m.version == tag.version)
        };
        self.tags.iter().filter(move |(_, tag)| !there(tag))
    }

    /// Attached manifests of the main tree, oldest first, with their ordinals.
    pub fn versions(&self) -> Vec<(u32, &ManifestInfo)> {
        let mut out: Vec<(u32, &ManifestInfo)> = self
            .manifests
            .iter()
            .enumerate()
            .filter(|(_, m)| m.tree.is_empty() && !m.detached)
            .map(|(i, m)| (u32::try_from(i).unwrap_or(u32::MAX), m))
            .collect();
        out.sort_by_key(|(_, m)| m.version);
        out
    }

    /// HEAD's version number.
    pub fn version(&self) -> u64 {
        self.head.version
    }

    /// The table's own config.
    pub fn config(&self) -> BTreeMap<String, String> {
        self.head.manifest.config.clone().into_iter().collect()
    }

    /// The name that the dataset declares for itself (`lineage.dataset_id` in its config). None where it reads files of others: a
    /// clone carries the config, and with it the name, of what it was made of.
    pub fn lineage(&self) -> Option<String> {
        self.reads.is_empty().then(|| self.head.manifest.config.get("lineage.dataset_id").cloned()).flatten()
    }

    /// Bytes of the files that HEAD names, data, deletions and indices.
    pub fn live_bytes(&self) -> u64 {
        let head = self.head_ordinal();
        self.bytes_where(|by| by.contains(head))
    }

    /// HEAD's position in [`Look::manifests`], as the bitmaps of [`Look::uses`] hold it.
    pub fn head_ordinal(&self) -> u32 {
        self.versions().last().map_or(0, |(i, _)| *i)
    }

    /// Bytes of listed files whose naming manifests satisfy `test`.
    pub fn bytes_where(&self, test: impl Fn(&RoaringBitmap) -> bool) -> u64 {
        self.listing
            .entries
            .iter()
            .filter(|e| owner(&e.path).is_some_and(|key| self.uses.of(&key).is_some_and(&test)))
            .map(|e| e.size)
            .sum()
    }

    /// The canonical URIs of the datasets nested in this one: no walk finds them, and each may be a clone.
    pub fn nested_uris(&self) -> Vec<String> {
        let uri = |rel: &String| rel.split('/').fold(self.uri.clone(), |at, s| crate::uri::join(&at, s));
        self.nested.iter().map(uri).collect()
    }

    /// Whether any version has managed blobs, whose files are named only inside data.
    pub fn managed_blobs(&self) -> bool {
        self.uses.unseen().managed_blobs
    }

    /// The names of the fragments' covering segments, by fragment id, for the planner.
    pub fn segments_by_fragment(&self) -> BTreeMap<u64, Vec<uuid::Uuid>> {
        let mut out: BTreeMap<u64, Vec<uuid::Uuid>> = BTreeMap::new();
        for fragment in &self.fragments {
            let id = u32::try_from(fragment.id).unwrap_or(u32::MAX);
            let mut by: Vec<uuid::Uuid> = self
                .indices
                .iter()
                .flat_map(|i| &i.segments)
                .filter(|s| s.fragments.as_ref().is_none_or(|b| b.contains(id)))
                .map(|s| s.uuid)
                .collect();
            by.sort_unstable();
            out.insert(fragment.id, by);
        }
        out
    }
}

/// The key under which [`Uses`] knows a listed file: itself, its index directory, or the data file that owns a sidecar.
pub fn owner(path: &str) -> Option<String> {
    let placed = classify(path);
    let within = |rest: String| {
        if placed.tree.is_empty() { rest } else { format!("{}/{rest}", placed.tree) }
    };
    match &placed.kind {
        Kind::Data | Kind::Deletion | Kind::Transaction => Some(path.to_string()),
        Kind::Index { uuid } => Some(within(format!("_indices/{uuid}"))),
        Kind::Sidecar { owner } => Some(within(owner.clone())),
        _ => None,
    }
}

/// HEAD of an opened dataset, read anew: what the next round is planned on. The listing of the first look serves for sizes.
///
/// # Errors
/// As [`manifest::read`].
pub async fn head_of(
    place: &Place,
    dataset: &Dataset,
    listing: &Listing,
) -> Result<(Arc<Facts>, Vec<FragmentInfo>, Vec<IndexInfo>)> {
    let path = dataset.manifest_location().path.clone();
    let facts = manifest::read(place.objects().as_ref(), &place.uri, &path).await?;
    let fragments = fragments(&facts, listing);
    let indices = index::states(&facts, Some(dataset)).await;
    Ok((Arc::new(facts), fragments, indices))
}

/// One index of the version that `dataset` is opened at, as its manifest has it: nothing is asked of the library, and a vector index
/// has no type but `VECTOR`.
///
/// # Errors
/// `Transient` or `Damaged` when the manifest cannot be read.
pub async fn index_of(place: &Place, dataset: &Dataset, name: &str) -> Result<Option<IndexInfo>> {
    let path = dataset.manifest_location().path.clone();
    let facts = manifest::read(place.objects().as_ref(), &place.uri, &path).await?;
    Ok(index::states(&facts, None).await.into_iter().find(|i| i.name == name))
}
