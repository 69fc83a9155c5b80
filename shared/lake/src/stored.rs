//! What the bytes of a dataset are, and who holds those that may go later (design, "Reconcile", Bytes).
//!
//! Pure: a look, its classes, what the registry says of it. Every listed byte is in exactly one part of [`Stored`], so that the
//! parts of all datasets, with what lies outside of them, are the bucket.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use roaring::RoaringBitmap;
use squire_registry::Governance;

use crate::classes::{Class, Classed, Classes, kept, named};
use crate::erasure::Erasure;
use crate::look::Look;
use crate::refs::KeepSet;
use crate::retention::{self, Holder, Kept};

/// The upper ends, in bytes, of the fragment sizes that are counted together; larger ones are counted last.
pub const FRAGMENT_SIZES: [u64; 6] = [64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];

/// The bytes of one dataset.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stored {
    /// Named by HEAD, or a control file of what is there now.
    pub live: u64,
    /// Named by what stays beside HEAD; also what no version keeps and clean-up would refuse to remove now.
    pub history: u64,
    /// Named only by versions that may go now.
    pub reclaimable: u64,
    /// Named by nobody and old enough.
    pub orphan: u64,
    /// Named by nobody and young.
    pub young: u64,
    /// Not a file of this dataset.
    pub foreign: u64,
    /// It cannot be said what they are.
    pub unknown: u64,
    /// Moved away by a reclaim.
    pub quarantine: u64,
    /// Of a dropped table: then all of the above are zero.
    pub trash: u64,
    /// What keeps `history`, the strongest holder of each file; their bytes are at most `history`.
    pub held: BTreeMap<Holder, Held>,
    /// Of `live`: columns that the schema no longer has, each by its share of its file's fields (the columns' own sizes
    /// stand in the files' footers, which are not read).
    pub dead_columns: u64,
    /// Bytes written by all commits since the oldest version that is still there, for each byte written by others than
    /// maintenance; `None` where those wrote nothing.
    pub write_amplification: Option<f64>,
    /// Fragments of HEAD by size: one count per entry of [`FRAGMENT_SIZES`], and one of the larger ones.
    pub fragments: [u64; FRAGMENT_SIZES.len() + 1],
}

/// What one holder keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Versions that it keeps.
    pub versions: u64,
    /// Bytes of files that it keeps.
    pub bytes: u64,
    /// When it lets the last of them go; `None` where that is not known.
    pub until: Option<DateTime<Utc>>,
}

/// What a dataset is to the registry, beside its policy.
#[derive(Debug, Clone, Copy)]
pub struct Standing<'a> {
    /// What governs it.
    pub governance: &'a Governance,
    /// What the rest of the estate reads of it.
    pub keep: &'a KeepSet,
    /// Whether it lies in the trash: dropped, and no table has it again.
    pub trashed: bool,
    /// Whether clean-up would remove what may go: nothing in the dataset or the registry makes it refuse.
    pub may_clean: bool,
    /// Datasets nested in this one that are counted by themselves, relative to its root.
    pub counted_elsewhere: &'a [String],
    /// Now, by the store's clock.
    pub now: DateTime<Utc>,
}

impl Stored {
    /// The bytes of every class, by the stable names of FACES.
    pub fn classes(&self) -> [(&'static str, u64); 9] {
        [
            ("live", self.live),
            ("history", self.history),
            ("reclaimable", self.reclaimable),
            ("orphan", self.orphan),
            ("young", self.young),
            ("foreign", self.foreign),
            ("unknown", self.unknown),
            ("quarantine", self.quarantine),
            ("trash", self.trash),
        ]
    }

    /// All bytes.
    pub fn total(&self) -> u64 {
        self.classes().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Holder by its stable name, versions, bytes, until when.
    pub fn holders(&self) -> impl Iterator<Item = (&'static str, u64, u64, Option<DateTime<Utc>>)> + '_ {
        self.held.iter().map(|(by, h)| (by.as_str(), h.versions, h.bytes, h.until))
    }

    /// HEAD's fragments by size: the largest size that is counted together (`None`: all larger ones), and how many.
    pub fn fragment_sizes(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        FRAGMENT_SIZES.iter().map(|end| Some(*end)).chain([None]).zip(self.fragments)
    }
}

/// Counts the bytes of a dataset.
pub fn stored(look: &Look, classes: &Classes, standing: &Standing<'_>) -> Stored {
    let mut out = Stored { fragments: fragment_sizes(look), ..Stored::default() };
    let holders = Holders::of(look, standing);
    for object in &classes.objects {
        let elsewhere = |root: &String| object.path.strip_prefix(root.as_str()).is_some_and(|r| r.starts_with('/'));
        if standing.counted_elsewhere.iter().any(elsewhere) {
            continue;
        }
        if standing.trashed {
            out.trash += object.bytes;
            continue;
        }
        match object.class {
            Class::Live => out.live += object.bytes,
            Class::Orphan => out.orphan += object.bytes,
            Class::Young => out.young += object.bytes,
            Class::Foreign => out.foreign += object.bytes,
            Class::Unknown => out.unknown += object.bytes,
            Class::Quarantine => out.quarantine += object.bytes,
            Class::History => match holders.of_object(object) {
                Some((by, until)) => {
                    out.history += object.bytes;
                    let held = out.held.entry(by).or_default();
                    held.bytes += object.bytes;
                    held.until = held.until.max(until);
                }
                None if standing.may_clean && classes.incomplete.is_empty() => out.reclaimable += object.bytes,
                None => out.history += object.bytes,
            },
        }
    }
    for kept in holders.kept.values() {
        if let Some(held) = out.held.get_mut(&kept.by) {
            held.versions += 1;
        }
    }
    if !standing.trashed {
        out.dead_columns = dead_columns(look).min(out.live);
        out.write_amplification = write_amplification(look);
    }
    out
}

/// What keeps each version and each file.
struct Holders<'a> {
    look: &'a Look,
    keep: &'a KeepSet,
    /// By ordinal: what keeps an attached version of the main tree.
    kept: BTreeMap<u32, Kept>,
    going: RoaringBitmap,
    hold: bool,
}

impl<'a> Holders<'a> {
    fn of(look: &'a Look, standing: &'a Standing<'_>) -> Self {
        let governance = standing.governance;
        let policy = &governance.policy.policy;
        let named = retention::named(look, governance);
        let (gone, kept) =
            retention::choose(&retention::versions(look), &named, &Erasure::of(look, None), policy, standing.now);
        let ordinals: BTreeMap<u64, u32> = look.versions().into_iter().map(|(i, m)| (m.version, i)).collect();
        let hold = governance.held_by().is_some();
        let mut out = Self { look, keep: standing.keep, kept: BTreeMap::new(), going: RoaringBitmap::new(), hold };
        for mut version in kept {
            // A hold has no known end: it outlasts a date.
            if hold && version.until.is_some() {
                (version.by, version.until) = (Holder::Hold, None);
            }
            out.kept.extend(ordinals.get(&version.version).map(|i| (*i, version)));
        }
        for (version, ordinal) in gone.iter().filter_map(|v| Some((v, ordinals.get(v)?))) {
            if hold {
                let held = Kept { version: *version, replaced_at: standing.now, by: Holder::Hold, until: None };
                out.kept.insert(*ordinal, held);
            } else {
                out.going.insert(*ordinal);
            }
        }
        out
    }

    /// The strongest holder of a file of class history, and until when; `None` where only versions that may go name it.
    fn of_object(&self, object: &Classed) -> Option<(Holder, Option<DateTime<Utc>>)> {
        let read = |set: &BTreeSet<String>| kept(|file| set.contains(file), &object.path);
        let of_clone = matches!(self.keep, KeepSet::Complete(set) if read(set)).then_some((Holder::Clone, None));
        let by = self.manifests(object);
        let holders = by.iter().filter_map(|i| self.of_manifest(i)).chain(of_clone);
        // Whoever lets go last counts: no known end before any end, then the stronger name.
        holders.max_by_key(|(by, until)| (until.is_none(), *until, *by))
    }

    fn manifests(&self, object: &Classed) -> RoaringBitmap {
        if let Some(by) = named(&self.look.uses, &object.path) {
            return by.clone();
        }
        let itself = self.look.manifests.iter().position(|m| m.path == object.path);
        match itself.and_then(|i| u32::try_from(i).ok()) {
            Some(ordinal) => RoaringBitmap::from([ordinal]),
            // A branch's hint, and what else is history by its place: as long as any manifest of its tree.
            None => self.of_tree(&object.path),
        }
    }

    fn of_tree(&self, path: &str) -> RoaringBitmap {
        let tree = crate::listing::classify(path).tree;
        let of_tree = |(_, m): &(usize, &crate::look::ManifestInfo)| !tree.is_empty() && m.tree == tree;
        self.look.manifests.iter().enumerate().filter(of_tree).filter_map(|(i, _)| u32::try_from(i).ok()).collect()
    }

    fn of_manifest(&self, ordinal: u32) -> Option<(Holder, Option<DateTime<Utc>>)> {
        if self.going.contains(ordinal) {
            return None;
        }
        if let Some(kept) = self.kept.get(&ordinal) {
            return Some((kept.by, kept.until));
        }
        let manifest = self.look.manifests.get(ordinal as usize)?;
        match (manifest.detached, manifest.tree.is_empty()) {
            (true, _) => Some((Holder::Detached, None)),
            (false, false) => Some((Holder::Branch, None)),
            // HEAD: what it names is live, and no history.
            (false, true) if self.hold => Some((Holder::Hold, None)),
            (false, true) => None,
        }
    }
}

fn fragment_sizes(look: &Look) -> [u64; FRAGMENT_SIZES.len() + 1] {
    let mut out = [0; FRAGMENT_SIZES.len() + 1];
    for fragment in &look.fragments {
        let at = FRAGMENT_SIZES.iter().position(|end| fragment.bytes <= *end).unwrap_or(FRAGMENT_SIZES.len());
        out[at] += 1;
    }
    out
}

fn dead_columns(look: &Look) -> u64 {
    let live: BTreeSet<i32> = look.head.manifest.schema.fields_pre_order().map(|f| f.id).collect();
    let files = look.head.manifest.fragments.iter().flat_map(|f| &f.files).filter(|f| f.base_id.is_none());
    files
        .map(|file| {
            let dead = file.fields.iter().filter(|id| **id >= 0 && !live.contains(id)).count() as u64;
            let bytes = look.listing.get(&format!("data/{}", file.path)).map_or(0, |e| e.size);
            bytes * dead / (file.fields.len() as u64).max(1)
        })
        .sum()
}

/// The oldest version's files were written by who knows whom and are left out.
fn write_amplification(look: &Look) -> Option<f64> {
    let versions = look.versions();
    let (oldest, _) = *versions.first()?;
    let by_maintenance: RoaringBitmap = versions
        .iter()
        .filter(|(_, m)| m.stamp.is_some() || m.operation.as_deref() == Some("rewrite"))
        .map(|(i, _)| *i)
        .collect();
    let (mut all, mut by_writers) = (0_u64, 0_u64);
    for entry in &look.listing.entries {
        let Some(first) = named(&look.uses, &entry.path).and_then(RoaringBitmap::min) else { continue };
        let on_main = look.manifests.get(first as usize).is_some_and(|m| m.tree.is_empty() && !m.detached);
        if first == oldest || !on_main {
            continue;
        }
        all += entry.size;
        by_writers += if by_maintenance.contains(first) { 0 } else { entry.size };
    }
    (by_writers > 0).then(|| all as f64 / by_writers as f64)
}
