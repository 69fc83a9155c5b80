//! One class for every object under a dataset (design, "Reconcile"; the names are those of FACES).
//!
//! Pure: a [`Look`], what clones read of the dataset, and the store's time go in; one [`Class`] per listed object and the list of
//! what is named and not there come out. What is not known never becomes an orphan: not a file that some manifest names, not one
//! that a clone reads, not one whose kind this crate does not know, and none at all while the keep-set is incomplete.
//!
//! A single look may err (a listing is not one moment): [`crate::examine`] takes the second one.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use roaring::RoaringBitmap;

use crate::listing::{Entry, Kind, Placed, classify};
use crate::look::{Look, ManifestInfo, owner};
use crate::refs::{KeepSet, Uses};

/// Nothing younger than this by the store's clock is called an orphan. Lance's own wall for files that nobody names
/// (`cleanup.rs`, `UNVERIFIED_THRESHOLD_DAYS`); a policy can raise it and nothing lowers it.
pub const MIN_AGE: Duration = Duration::from_secs(7 * 86_400);

/// What an object under a dataset is to the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Named by HEAD, or a control file of what is there now (refs, hint, markers).
    Live,
    /// Named only by older versions, branches, tags, detached versions or clones.
    History,
    /// Of a kind we know, named by nobody, and old enough.
    Orphan,
    /// As an orphan, and not old enough: somebody may be about to name it.
    Young,
    /// Not a file of this dataset.
    Foreign,
    /// It may be somebody's, and who names it cannot be said.
    Unknown,
    /// Moved away by a reclaim.
    Quarantine,
}

impl Class {
    /// Every class.
    pub const ALL: [Class; 7] =
        [Class::Live, Class::History, Class::Orphan, Class::Young, Class::Foreign, Class::Unknown, Class::Quarantine];

    /// The stable name of FACES.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Live => "live",
            Class::History => "history",
            Class::Orphan => "orphan",
            Class::Young => "young",
            Class::Foreign => "foreign",
            Class::Unknown => "unknown",
            Class::Quarantine => "quarantine",
        }
    }
}

/// One listed object with its class.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Classed {
    /// Relative to the dataset's root, in the store's spelling.
    pub path: String,
    /// What it is.
    pub class: Class,
    /// Its size in bytes.
    pub bytes: u64,
    /// By the store's clock.
    pub modified: DateTime<Utc>,
    /// Why, in words.
    pub reason: Cow<'static, str>,
}

/// A file that some manifest names and that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Absent {
    /// Relative to the dataset's root; an index's whole directory ends without a slash.
    pub path: String,
    /// Recorded bytes, if recorded.
    pub recorded: Option<u64>,
    /// Bytes found; `None` when it is not there.
    pub found: Option<u64>,
    /// Whether HEAD needs it.
    pub by_head: bool,
    /// Who names it, in words.
    pub reason: String,
}

/// The store's time, and what "old enough" means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ages {
    /// Now, by the store's clock: last-modified times are compared with it.
    pub now: DateTime<Utc>,
    /// The longest time between a file's upload and the commit that names it, as the policy says.
    pub longest_write: Duration,
}

impl Ages {
    /// Whether an object is old enough to be called an orphan: at least [`MIN_AGE`] and at least `longest_write`.
    pub fn old_enough(&self, modified: DateTime<Utc>) -> bool {
        let least = TimeDelta::from_std(self.longest_write.max(MIN_AGE)).unwrap_or(TimeDelta::MAX);
        self.now.signed_duration_since(modified) >= least
    }
}

/// Every object under a dataset by class, and what is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Classes {
    /// Sorted by path; exactly the objects of the listing.
    pub objects: Vec<Classed>,
    /// Sorted by path.
    pub missing: Vec<Absent>,
    /// Why nothing here can be called an orphan, if so.
    pub incomplete: Vec<String>,
}

impl Classes {
    /// The objects of one class.
    pub fn of(&self, class: Class) -> impl Iterator<Item = &Classed> {
        self.objects.iter().filter(move |o| o.class == class)
    }

    /// Objects and bytes per class; every class is there, and together they are the listing.
    pub fn totals(&self) -> BTreeMap<Class, (u64, u64)> {
        let mut out: BTreeMap<Class, (u64, u64)> = Class::ALL.map(|c| (c, (0, 0))).into();
        for object in &self.objects {
            let (count, bytes) = out.entry(object.class).or_default();
            *count += 1;
            *bytes += object.bytes;
        }
        out
    }

    /// The class of the object at exactly this path.
    pub fn at(&self, path: &str) -> Option<&Classed> {
        self.objects.binary_search_by(|o| o.path.as_str().cmp(path)).ok().map(|i| &self.objects[i])
    }
}

/// Gives every object of a look's listing its class. `keep` is what the rest of the estate reads of this dataset
/// ([`crate::refs::CloneGraph::keep_set`]). Pure.
pub fn classes(look: &Look, keep: &KeepSet, ages: &Ages) -> Classes {
    let judge = Judge::new(look, keep, ages);
    let objects = look.listing.entries.iter().map(|entry| judge.object(entry)).collect();
    Classes { objects, missing: missing(look), incomplete: judge.incomplete }
}

struct Judge<'a> {
    look: &'a Look,
    ages: &'a Ages,
    head: u32,
    kept: BTreeSet<&'a str>,
    unreadable: BTreeSet<&'a str>,
    by_path: BTreeMap<&'a str, &'a ManifestInfo>,
    incomplete: Vec<String>,
}

type Verdict = (Class, Cow<'static, str>);

fn known(class: Class, reason: &'static str) -> Verdict {
    (class, Cow::Borrowed(reason))
}

impl<'a> Judge<'a> {
    fn new(look: &'a Look, keep: &'a KeepSet, ages: &'a Ages) -> Self {
        let kept = match keep {
            KeepSet::Complete(kept) => kept.iter().map(String::as_str).collect(),
            KeepSet::Incomplete(_) => BTreeSet::new(),
        };
        Self {
            look,
            ages,
            head: look.head_ordinal(),
            kept,
            unreadable: look.unreadable.iter().map(|(path, _)| path.as_str()).collect(),
            by_path: look.manifests.iter().map(|m| (m.path.as_str(), m)).collect(),
            incomplete: incomplete(look, keep),
        }
    }

    fn object(&self, entry: &Entry) -> Classed {
        let (class, reason) = self.verdict(entry);
        Classed { path: entry.path.clone(), class, bytes: entry.size, modified: entry.modified, reason }
    }

    fn verdict(&self, entry: &Entry) -> Verdict {
        // Who is named stays, whatever its place and name look like.
        if let Some(by) = self.named(&entry.path) {
            return self.named_by(by);
        }
        if self.cloned(&entry.path) {
            return known(Class::History, "a clone reads it");
        }
        if self.look.nested.iter().any(|root| below(&entry.path, root)) {
            return known(Class::Foreign, "it belongs to a dataset nested in this one");
        }
        let placed = classify(&entry.path);
        match &placed.kind {
            Kind::Manifest { .. } | Kind::Detached(_) => self.manifest(&entry.path, &placed),
            Kind::Staging => self.staging(entry),
            Kind::Hint if placed.tree.is_empty() => known(Class::Live, "the hint of the latest version"),
            Kind::Hint => known(Class::History, "a branch's hint of its latest version"),
            Kind::Tag(_) => known(Class::Live, "a tag"),
            Kind::Branch(_) => known(Class::Live, "a branch"),
            Kind::Reserved | Kind::Deregistered => known(Class::Live, "a namespace's marker"),
            Kind::Quarantine => known(Class::Quarantine, "moved away by a reclaim"),
            Kind::Registry => known(Class::Foreign, "a file of Squire's registry"),
            Kind::Nested(_) => known(Class::Foreign, "it belongs to a dataset nested in this one"),
            Kind::Sidecar { .. } if self.look.uses.unseen().managed_blobs => {
                known(Class::Unknown, "with managed blobs a sidecar may be named inside other data files")
            }
            Kind::Data => self.unnamed(entry, "no manifest names this data file"),
            Kind::Sidecar { .. } => self.unnamed(entry, "no manifest names the data file of this sidecar"),
            Kind::Deletion => self.unnamed(entry, "no manifest names this deletion file"),
            Kind::Index { .. } => self.unnamed(entry, "no manifest names this index"),
            Kind::Transaction => self.unnamed(entry, "no manifest names this transaction"),
            Kind::Temporary => self.unnamed(entry, "a local writer did not finish it"),
            Kind::ManagedBlob => known(Class::Unknown, "managed blobs are named only inside data"),
            Kind::FragmentReuse => known(Class::Unknown, "row maps are named only inside the fragment-reuse index"),
            Kind::Unknown => unrecognised(&entry.path, &placed.tree),
        }
    }

    fn named(&self, path: &str) -> Option<&RoaringBitmap> {
        named(&self.look.uses, path)
    }

    fn named_by(&self, by: &RoaringBitmap) -> Verdict {
        if by.contains(self.head) {
            return known(Class::Live, "HEAD names it");
        }
        (Class::History, Cow::Owned(format!("named by {}", names(self.look, by))))
    }

    fn cloned(&self, path: &str) -> bool {
        kept(|file| self.kept.contains(file), path)
    }

    fn manifest(&self, path: &str, placed: &Placed) -> Verdict {
        if self.unreadable.contains(path) {
            return known(Class::Unknown, "this manifest cannot be read: what it names is not known");
        }
        let Some(info) = self.by_path.get(path) else {
            return known(Class::Unknown, "a manifest that the look did not read");
        };
        if info.detached {
            return known(Class::History, "a detached version");
        }
        match placed.tree.strip_prefix("tree/") {
            None if info.version == self.look.version() => known(Class::Live, "HEAD"),
            None => (Class::History, Cow::Owned(format!("version {}", info.version))),
            Some(branch) if self.look.branches.contains_key(branch) => {
                (Class::History, Cow::Owned(format!("version {} of branch {branch}", info.version)))
            }
            Some(_) => {
                known(Class::Unknown, "a branch's manifest, and no branch of this name is listed in _refs/branches")
            }
        }
    }

    /// `.tmp…` is a local writer's. `<manifest>-<uuid>` is an external store's: until the manifest itself is there it may be the
    /// version that the store means.
    fn staging(&self, entry: &Entry) -> Verdict {
        match staged_for(&entry.path) {
            Some(manifest) if self.look.listing.get(manifest).is_none() => {
                known(Class::Unknown, "a staged manifest, which an external store may take for its version")
            }
            _ => self.unnamed(entry, "a commit that did not end left this manifest"),
        }
    }

    fn unnamed(&self, entry: &Entry, reason: &'static str) -> Verdict {
        match self.incomplete.first() {
            Some(why) => (Class::Unknown, Cow::Owned(format!("{reason}, and the references are incomplete: {why}"))),
            None if self.ages.old_enough(entry.modified) => known(Class::Orphan, reason),
            None => known(Class::Young, reason),
        }
    }
}

/// `<manifest>` of `<manifest>-<uuid>`, if the path is that.
fn staged_for(path: &str) -> Option<&str> {
    let at = path.find(".manifest-")?;
    Some(&path[..at + ".manifest".len()])
}

/// Everything that keeps us from saying "nobody names this".
fn incomplete(look: &Look, keep: &KeepSet) -> Vec<String> {
    let mut why = match keep {
        KeepSet::Complete(_) => Vec::new(),
        KeepSet::Incomplete(why) => why.clone(),
    };
    let unread = look.unreadable.iter().chain(&look.unreadable_refs);
    why.extend(unread.map(|(path, why)| format!("{path} cannot be read ({why})")));
    if look.uses.unseen().feature_flags {
        why.push("a version has feature flags that this build does not know".into());
    }
    for entry in &look.listing.entries {
        if let Some(manifest) = staged_for(&entry.path).filter(|_| classify(&entry.path).kind == Kind::Staging)
            && look.listing.get(manifest).is_none()
        {
            why.push(format!("{} may be the version of an external store", entry.path));
        }
    }
    why
}

/// What a path is whose kind is not known: foreign where Lance puts nothing of the sort, unknown where it might.
fn unrecognised(path: &str, tree: &str) -> Verdict {
    let rest = path.strip_prefix(tree).unwrap_or(path).trim_start_matches('/');
    let (dir, name) = rest.split_once('/').unwrap_or(("", rest));
    match dir {
        "_mem_wal" => known(Class::Unknown, "files of a MemWAL are named by its own manifests"),
        "_alter_transactions" => known(Class::Unknown, "a namespace's transactions are named by the namespace"),
        "data" if name.starts_with("_parts/") => known(Class::Unknown, "parts of a data file that is being assembled"),
        "data" if name.ends_with(".lance") || name.ends_with(".blob") => {
            known(Class::Unknown, "a file of Lance's where Lance puts none")
        }
        "" | "data" => known(Class::Foreign, "not a file of Lance's"),
        "tree" => known(Class::Unknown, "not a file of Lance's, where branches lie"),
        // Other maintainers and newer releases keep their files in directories of such names.
        _ if dir.starts_with('_') => known(Class::Unknown, "in a directory of a name that Lance may use"),
        _ => known(Class::Foreign, "not a file of Lance's"),
    }
}

/// The manifests that name a path: as itself, as its index's directory, or as the data file that owns it.
pub(crate) fn named<'u>(uses: &'u Uses, path: &str) -> Option<&'u RoaringBitmap> {
    if classify(path).kind == Kind::Temporary {
        return None;
    }
    if let Some(by) = owner(path).and_then(|key| uses.of(&key)).or_else(|| uses.of(path)) {
        return Some(by);
    }
    // Under a base inside our own root a file may lie anywhere: what names a directory names all below it, and a data file
    // owns the blobs in the directory of its name.
    let mut at = path;
    while let Some((above, _)) = at.rsplit_once('/') {
        let owns = || path.ends_with(".blob").then(|| uses.of(&format!("{above}.lance"))).flatten();
        if let Some(by) = uses.of(above).or_else(owns) {
            return Some(by);
        }
        at = above;
    }
    None
}

/// Whether a keep-set holds a path: itself, the data file or index directory that owns it, or a folder above it.
pub(crate) fn kept(holds: impl Fn(&str) -> bool, path: &str) -> bool {
    holds(path) || owner(path).is_some_and(|key| holds(&key)) || ancestors(path).any(holds)
}

fn below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(path.rsplit_once('/').map(|(above, _)| above), |at| {
        at.rsplit_once('/').map(|(above, _)| above)
    })
}

/// Who these manifests are, in words.
fn names(look: &Look, by: &RoaringBitmap) -> String {
    let first = by.iter().next().and_then(|i| look.manifests.get(i as usize));
    let Some(first) = first else { return "a version".into() };
    let version = first.version;
    let text = match (first.detached, first.tree.strip_prefix("tree/")) {
        (true, _) => "a detached version".to_string(),
        (false, Some(branch)) => format!("version {version} of branch {branch}"),
        (false, None) => format!("version {version}"),
    };
    match by.len() {
        0 | 1 => text,
        n => format!("{text} and {} more", n - 1),
    }
}

/// What manifests name and the listing lacks or has in another size. Files under bases outside of the dataset are not judged.
fn missing(look: &Look) -> Vec<Absent> {
    let head = look.head_ordinal();
    let mut out: BTreeMap<String, Absent> = BTreeMap::new();
    let mut add = |path: &str, recorded: Option<u64>, found: Option<u64>, by: &RoaringBitmap| {
        let absent = Absent {
            path: path.to_string(),
            recorded,
            found,
            by_head: by.contains(head),
            reason: if by.contains(head) { "HEAD names it".into() } else { format!("named by {}", names(look, by)) },
        };
        out.insert(path.to_string(), absent);
    };
    for path in look.uses.paths() {
        let Some(by) = look.uses.of(path) else { continue };
        let is_dir = path.rsplit('/').nth(1) == Some("_indices");
        // A transaction file is history and no data: Lance takes it away where it believes that a commit failed, and the
        // manifest of a commit that landed after all has it inline.
        let is_history = matches!(classify(path).kind, Kind::Transaction);
        if !is_dir && !is_history && look.listing.get(path).is_none() {
            add(path, look.uses.size_of(path), None, by);
        }
    }
    for (path, recorded, ordinal) in look.uses.sizes() {
        let found = look.listing.get(path).map(|e| e.size);
        if found != Some(recorded) {
            let dir = path.rsplit_once('/').map(|(dir, _)| dir);
            let by = look.uses.of(path).or_else(|| dir.and_then(|dir| look.uses.of(dir))).cloned();
            add(path, Some(recorded), found, &by.unwrap_or_else(|| RoaringBitmap::from([ordinal])));
        }
    }
    // What only health judges: an index of HEAD whose whole directory is gone.
    for gone in &look.missing {
        add(&gone.path, gone.recorded, gone.found, &RoaringBitmap::from([head]));
    }
    out.into_values().collect()
}
