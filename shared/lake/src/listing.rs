//! The objects under a dataset, by kind.
//!
//! One recursive LIST serves discovery of versions, health, references and clean-up alike. The kinds follow the layout in
//! `facts/lance-14` and lance-table's sources; what is not recognised is *unknown*, never an orphan.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use object_store::ObjectStore as _;

use crate::discover::{QUARANTINE, RESERVED};
use crate::handle::Place;
use crate::{Error, Kind as ErrorKind, Result};

/// One object, by its path relative to the dataset's root (in the store's spelling).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Entry {
    /// Relative path with `/`.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// By the store's clock.
    pub modified: DateTime<Utc>,
    /// Of manifests alone, where the store's listing has it: what tells one object of a name from another.
    #[serde(skip)]
    pub e_tag: Option<String>,
}

impl Entry {
    fn of(meta: object_store::ObjectMeta, prefix_len: usize) -> Self {
        let path = meta.location.as_ref()[prefix_len..].trim_start_matches('/').to_string();
        let e_tag = meta.e_tag.filter(|_| path.ends_with(".manifest"));
        Self { path, size: meta.size, modified: meta.last_modified, e_tag }
    }
}

/// What an object is, by its place and name alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// An attached manifest of a tree: version, and whether it has a V2 name.
    Manifest {
        /// The version number.
        version: u64,
        /// V2 names sort newest first; V1 names are the bare number.
        v2: bool,
    },
    /// `d<id>.manifest`.
    Detached(u64),
    /// `N.manifest-<uuid>` or `.tmp*` in `_versions/`: a commit that did not end.
    Staging,
    /// `.tmp*` or `….tmp.<uuid>` in another directory of Lance's: what a local writer had not yet renamed. Never named by
    /// anybody, also inside a live index's directory.
    Temporary,
    /// `latest_version_hint.json`.
    Hint,
    /// A data file.
    Data,
    /// `data/<stem>/*.blob`: named through `data/<stem>.lance`.
    Sidecar {
        /// `data/<stem>.lance`, relative to the tree.
        owner: String,
    },
    /// `_blobs/…`: named only inside data.
    ManagedBlob,
    /// A deletion file.
    Deletion,
    /// A file of an index directory.
    Index {
        /// The directory's name.
        uuid: String,
    },
    /// `_transactions/*.txn`.
    Transaction,
    /// `_fri/…`: row maps of the fragment-reuse index.
    FragmentReuse,
    /// A tag's file.
    Tag(String),
    /// A branch's file.
    Branch(String),
    /// `.lance-reserved`.
    Reserved,
    /// `.lance-deregistered`.
    Deregistered,
    /// Inside a dataset that is nested in this one; its root relative to ours.
    Nested(String),
    /// `_squire_quarantine/…`: what a reclaim moved away, where the warehouse's root is the dataset itself.
    Quarantine,
    /// `_squire/…`: the registry, where its root is the dataset itself.
    Registry,
    /// Not recognised: MemWAL, `data/_parts/`, namespace side files, and what is no Lance file at all.
    Unknown,
}

/// The tree a path belongs to: empty for the main tree, `tree/<branch>` for a branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Empty, or `tree/<branch>`.
    pub tree: String,
    /// What the object is.
    pub kind: Kind,
}

/// Those of some files, by path relative to `place`, that are not there: one listing of each folder that one of them lies in.
///
/// # Errors
/// As [`Listing::read`].
pub async fn absent<'f>(place: &Place, files: &BTreeSet<&'f str>) -> Result<Vec<&'f str>> {
    let mut by_folder: BTreeMap<&str, Vec<&'f str>> = BTreeMap::new();
    for file in files {
        by_folder.entry(file.rsplit_once('/').map_or("", |(dir, _)| dir)).or_default().push(file);
    }
    let mut out = Vec::new();
    for (dir, files) in by_folder {
        let at = if dir.is_empty() { place.path.clone() } else { place.below(dir)? };
        let prefix = (!at.as_ref().is_empty()).then_some(&at);
        let listed = place.objects().list_with_delimiter(prefix).await;
        let listed = listed.map_err(|e| Error::store("listing", &place.uri, e).with_kind(ErrorKind::Transient))?;
        let there: BTreeSet<&str> = listed.objects.iter().filter_map(|meta| meta.location.filename()).collect();
        out.extend(files.into_iter().filter(|f| !there.contains(f.rsplit('/').next().unwrap_or(f))));
    }
    Ok(out)
}

/// All objects under a dataset.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Sorted by path.
    pub entries: Vec<Entry>,
}

impl Listing {
    /// Lists everything under `place`, recursively.
    ///
    /// # Errors
    /// `Transient` when the store could not be listed to the end: half a listing is none.
    pub async fn read(place: &Place) -> Result<Self> {
        let prefix_len = place.path.as_ref().len();
        let prefix = (prefix_len > 0).then(|| place.path.clone());
        let mut entries: Vec<Entry> = place
            .objects()
            .list(prefix.as_ref())
            .map_ok(|meta| Entry::of(meta, prefix_len))
            .try_collect()
            .await
            .map_err(|e| Error::store("listing", &place.uri, e).with_kind(ErrorKind::Transient))?;
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { entries })
    }

    /// Lists some folders under `place`, recursively; paths stay relative to `place`.
    ///
    /// # Errors
    /// As [`Listing::read`].
    pub async fn read_dirs(place: &Place, dirs: &[&str]) -> Result<Self> {
        let mut entries = Vec::new();
        for dir in dirs {
            let part = Self::read(&Place { path: place.below(dir)?, ..place.clone() }).await?;
            entries.extend(part.entries.into_iter().map(|e| Entry { path: format!("{dir}/{}", e.path), ..e }));
        }
        entries.sort_by(|a: &Entry, b| a.path.cmp(&b.path));
        Ok(Self { entries })
    }

    /// Lists the versions from this one on, and all detached ones; older ones only where the store or the names have no order that
    /// has the newest first. Paths are relative to `place`.
    ///
    /// # Errors
    /// As [`Listing::read`].
    pub async fn read_versions(place: &Place, since: u64) -> Result<Self> {
        if !place.store.list_is_lexically_ordered {
            return Self::read_dirs(place, &["_versions"]).await;
        }
        let (dir, prefix_len) = (place.below("_versions")?, place.path.as_ref().len());
        let entry = |meta: object_store::ObjectMeta| Entry::of(meta, prefix_len);
        let wrong = |e| Error::store("listing", &place.uri, e).with_kind(ErrorKind::Transient);
        let mut entries = Vec::new();
        let mut pages = place.objects().list(Some(&dir));
        while let Some(meta) = pages.try_next().await.map_err(wrong)? {
            let found = entry(meta);
            let kind = classify(&found.path).kind;
            entries.push(found);
            if matches!(kind, Kind::Manifest { version, v2: true } if version <= since) {
                // Detached ones sort behind all digits.
                let rest = place.objects().list_with_offset(Some(&dir), &place.below("_versions/:")?);
                entries.extend(rest.map_ok(entry).try_collect::<Vec<_>>().await.map_err(wrong)?);
                break;
            }
        }
        entries.sort_by(|a: &Entry, b| a.path.cmp(&b.path));
        entries.dedup_by(|a, b| a.path == b.path);
        Ok(Self { entries })
    }

    /// The entry at exactly this path.
    pub fn get(&self, path: &str) -> Option<&Entry> {
        self.entries.binary_search_by(|e| e.path.as_str().cmp(path)).ok().map(|i| &self.entries[i])
    }

    /// All entries below a directory (no trailing slash).
    pub fn below(&self, dir: &str) -> &[Entry] {
        let start = self.entries.partition_point(|e| e.path.as_str() < dir);
        let first =
            self.entries[start..].iter().position(|e| below(&e.path, dir)).map_or(self.entries.len(), |i| start + i);
        let len = self.entries[first..].iter().take_while(|e| below(&e.path, dir)).count();
        &self.entries[first..first + len]
    }

    /// Bytes of everything listed.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|e| e.size).sum()
    }
}

fn below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

/// What the object at a relative path is. Pure; any string is accepted.
pub fn classify(path: &str) -> Placed {
    let ours = |kind| Placed { tree: String::new(), kind };
    match path.split_once('/') {
        Some((QUARANTINE, _)) => return ours(Kind::Quarantine),
        Some((RESERVED, _)) => return ours(Kind::Registry),
        // A memtable that was flushed is a dataset of its own there, and still the table's.
        Some(("_mem_wal", _)) => return ours(Kind::Unknown),
        _ => {}
    }
    let (tree, rest) = split_tree(path);
    let kind = match nested_root(rest) {
        Some(root) => Kind::Nested(if tree.is_empty() { root } else { format!("{tree}/{root}") }),
        None => kind_of(rest),
    };
    Placed { tree, kind }
}

/// Cuts `tree/<branch>/` off: a branch's name may hold slashes, so the cut is before the first directory that Lance makes.
fn split_tree(path: &str) -> (String, &str) {
    if !path.starts_with("tree/") {
        return (String::new(), path);
    }
    let own = ["/_versions/", "/data/", "/_deletions/", "/_indices/", "/_transactions/", "/_blobs/", "/_fri/"];
    match own.iter().filter_map(|dir| path.find(dir)).min() {
        Some(at) => (path[..at].to_string(), &path[at + 1..]),
        None => (String::new(), path),
    }
}

/// The root of a dataset nested in this one, if the path lies in its `_versions/`.
fn nested_root(rest: &str) -> Option<String> {
    let at = rest.find("/_versions/")?;
    Some(rest[..at].to_string())
}

fn kind_of(rest: &str) -> Kind {
    let (dir, name) = rest.split_once('/').unwrap_or(("", rest));
    if ["data", "_deletions", "_transactions", "_indices", "_blobs", "_fri", "_refs"].contains(&dir) && temporary(name)
    {
        return Kind::Temporary;
    }
    match dir {
        "" => match name {
            ".lance-reserved" => Kind::Reserved,
            ".lance-deregistered" => Kind::Deregistered,
            _ => Kind::Unknown,
        },
        "_versions" => version_kind(name),
        "data" => data_kind(name),
        "_deletions" if !name.contains('/') && (name.ends_with(".arrow") || name.ends_with(".bin")) => Kind::Deletion,
        "_transactions" if name.ends_with(".txn") && !name.contains('/') => Kind::Transaction,
        "_indices" => match name.split_once('/') {
            Some((uuid, _)) if uuid::Uuid::parse_str(uuid).is_ok() => Kind::Index { uuid: uuid.to_string() },
            _ => Kind::Unknown,
        },
        "_blobs" => Kind::ManagedBlob,
        "_fri" => Kind::FragmentReuse,
        "_refs" => ref_kind(name),
        _ => Kind::Unknown,
    }
}

/// What lance-io's local writer makes before it renames (`object_store.rs`, `create` and `put_if_absent`).
fn temporary(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    let renamed = |(_, id): (&str, &str)| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
    last.starts_with(".tmp") || last.rsplit_once(".tmp.").is_some_and(renamed)
}

fn version_kind(name: &str) -> Kind {
    if name == "latest_version_hint.json" {
        return Kind::Hint;
    }
    if temporary(name) || name.contains(".manifest-") {
        return Kind::Staging;
    }
    let Some(stem) = name.strip_suffix(".manifest") else {
        return Kind::Unknown;
    };
    if let Some(id) = stem.strip_prefix('d').and_then(|id| id.parse().ok()) {
        return Kind::Detached(id);
    }
    match stem.parse::<u64>() {
        // V2 names are 20 digits counting down from u64::MAX; V1 names are the bare number.
        Ok(n) if stem.len() == 20 => Kind::Manifest { version: u64::MAX - n, v2: true },
        Ok(n) => Kind::Manifest { version: n, v2: false },
        Err(_) => Kind::Unknown,
    }
}

fn data_kind(name: &str) -> Kind {
    match name.split_once('/') {
        None if name.ends_with(".lance") => Kind::Data,
        Some((stem, file)) if stem != "_parts" && file.ends_with(".blob") && !file.contains('/') => {
            Kind::Sidecar { owner: format!("data/{stem}.lance") }
        }
        _ => Kind::Unknown,
    }
}

fn ref_kind(name: &str) -> Kind {
    let decode = |s: &str| percent_encoding::percent_decode_str(s).decode_utf8_lossy().into_owned();
    if let Some(tag) = name.strip_prefix("tags/").and_then(|n| n.strip_suffix(".json")) {
        return Kind::Tag(decode(tag));
    }
    if let Some(branch) = name.strip_prefix("branches/").and_then(|n| n.strip_suffix(".json")) {
        return Kind::Branch(decode(branch));
    }
    Kind::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_lance_writes_has_its_kind() {
        let case = |path: &str, tree: &str, kind: Kind| {
            assert_eq!(classify(path), Placed { tree: tree.into(), kind }, "{path}");
        };
        case("_versions/18446744073709551608.manifest", "", Kind::Manifest { version: 7, v2: true });
        case("_versions/7.manifest", "", Kind::Manifest { version: 7, v2: false });
        case("_versions/d9223372036854775809.manifest", "", Kind::Detached(9_223_372_036_854_775_809));
        case("_versions/7.manifest-8c7a", "", Kind::Staging);
        case("_versions/.tmp_7.manifest_x", "", Kind::Staging);
        case("_versions/latest_version_hint.json", "", Kind::Hint);
        case("data/0101.lance", "", Kind::Data);
        case("data/0101/3.blob", "", Kind::Sidecar { owner: "data/0101.lance".into() });
        case("data/_parts/3.blob", "", Kind::Unknown);
        case("_deletions/0-1-2.arrow", "", Kind::Deletion);
        case("_transactions/1-aa.txn", "", Kind::Transaction);
        case(
            "_indices/0a0b0c0d-0000-4000-8000-000000000001/page.idx",
            "",
            Kind::Index { uuid: "0a0b0c0d-0000-4000-8000-000000000001".into() },
        );
        case("_refs/tags/v1.json", "", Kind::Tag("v1".into()));
        case("_refs/branches/a%2Fb.json", "", Kind::Branch("a/b".into()));
        case("tree/a/b/_versions/7.manifest", "tree/a/b", Kind::Manifest { version: 7, v2: false });
        case("tree/a/data/1.lance", "tree/a", Kind::Data);
        case("data/inner.lance/_versions/1.manifest", "", Kind::Nested("data/inner.lance".into()));
        case("media/cat.png", "", Kind::Unknown);
        case("_mem_wal/x/1.manifest", "", Kind::Unknown);
        case("_mem_wal/x/gen_1/_versions/1.manifest", "", Kind::Unknown);
        case("_indices/0a0b0c0d-0000-4000-8000-000000000001/.tmpQx1", "", Kind::Temporary);
        case("data/0101/.tmpQx1", "", Kind::Temporary);
        case("tree/a/data/.tmpQx1", "tree/a", Kind::Temporary);
        case("_fri/m/map.bin.tmp.00112233445566778899aabbccddeeff", "", Kind::Temporary);
        case("data/holiday.tmp.png", "", Kind::Unknown);
        case("_squire_quarantine/p/t/_versions/1.manifest", "", Kind::Quarantine);
        case("_squire/estate/1.json", "", Kind::Registry);
        case(".lance-deregistered", "", Kind::Deregistered);
    }

    #[test]
    fn below_finds_exactly_the_directory() {
        let entry = |path: &str| Entry { path: path.into(), size: 1, modified: DateTime::UNIX_EPOCH, e_tag: None };
        let listing = Listing { entries: ["a-b", "a/1", "a/2", "a0", "b/1"].map(entry).into() };
        let mut sorted = listing.entries.clone();
        sorted.sort_by(|x, y| x.path.cmp(&y.path));
        assert_eq!(sorted, listing.entries);
        let found: Vec<_> = listing.below("a").iter().map(|e| e.path.as_str()).collect();
        assert_eq!(found, ["a/1", "a/2"]);
        assert!(listing.below("c").is_empty());
    }

    proptest::proptest! {
        #[test]
        fn classifying_never_panics(path in "\\PC*") {
            let _ = classify(&path);
        }
    }
}
