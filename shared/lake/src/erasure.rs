//! What still holds values that were deleted, or whose column was dropped. Pure.
//!
//! A delete only marks rows: the values stay in the fragment's files until it is rewritten, and then in every version that
//! names the old files (design, "Admit": a deadline of `erase_within`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use roaring::RoaringBitmap;

use crate::index::IndexInfo;
use crate::listing::{Kind, classify};
use crate::look::{Look, ManifestInfo, owner};

/// One version, for erasure.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Held {
    /// Its number.
    pub version: u64,
    /// When it was made.
    pub time: DateTime<Utc>,
    /// Its fragments.
    pub fragments: RoaringBitmap,
    /// Those with deleted rows or dropped columns.
    pub erased: RoaringBitmap,
    /// The operation that made it, where it is known.
    pub operation: Option<String>,
    /// Squire made it.
    pub ours: bool,
}

impl Held {
    /// Whether values may have been erased by it. A rewrite, an append and index work erase nothing; where the operation is not
    /// known, what it lost of its predecessor tells.
    fn erases(&self, new: &RoaringBitmap, gone: &RoaringBitmap) -> bool {
        match self.operation.as_deref() {
            Some("delete" | "update" | "overwrite" | "restore" | "project") => true,
            Some(_) => false,
            None => !new.is_empty() || !gone.is_empty(),
        }
    }

    /// Whether its transaction tells what was deleted.
    fn tells(&self) -> bool {
        !self.ours && matches!(self.operation.as_deref(), Some("delete" | "update"))
    }
}

/// What still holds erased values, and since when they are erased.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Erasure {
    /// Versions other than HEAD that name files which HEAD does not, and hold values that were erased after them or in them.
    pub versions: BTreeMap<u64, DateTime<Utc>>,
    /// HEAD's fragments that hold erased values.
    pub fragments: BTreeMap<u64, DateTime<Utc>>,
    /// HEAD's own transaction tells what was deleted.
    pub head_tells: Option<DateTime<Utc>>,
    /// Versions that name files which HEAD does not. When the version that deleted is gone, nobody can tell any more whether
    /// such a version, kept by a name, holds what it deleted.
    pub old: BTreeSet<u64>,
    /// Those of `old` after which a version is missing that may have deleted something: whether they hold it, nobody can tell.
    pub untold: BTreeSet<u64>,
    /// HEAD's indices that hold, or may hold, values of deleted rows whatever is rewritten.
    pub indices: Vec<String>,
    /// The listing shows files that no version names: their values are not looked at.
    pub unnamed: bool,
}

impl Erasure {
    /// What a look shows.
    pub fn of(look: &Look) -> Self {
        let held = |m: &ManifestInfo| Held {
            version: m.version,
            time: m.time(),
            fragments: m.fragments.clone(),
            erased: m.erased.clone(),
            operation: m.operation.clone(),
            ours: m.stamp.is_some(),
        };
        let over = Self::over(&look.versions().into_iter().map(|(_, m)| held(m)).collect::<Vec<_>>());
        let live: RoaringBitmap = look.fragments.iter().filter_map(|f| u32::try_from(f.id).ok()).collect();
        Self {
            indices: look.indices.iter().filter(|i| may_hold(i, &live)).map(|i| i.name.clone()).collect(),
            unnamed: look.listing.entries.iter().any(|e| unnamed(look, &e.path)),
            ..over
        }
    }

    /// The same over described versions, oldest first.
    ///
    /// A value that is deleted from a fragment also stands in every fragment that this one was made of. So every version
    /// before a deletion that names old files holds it, whichever fragment it was deleted from.
    pub fn over(versions: &[Held]) -> Self {
        let Some((head, past)) = versions.split_last() else { return Self::default() };
        let mut since: HashMap<u32, DateTime<Utc>> = HashMap::new();
        let mut known = RoaringBitmap::new();
        let mut before = RoaringBitmap::new();
        let mut erasing: Vec<bool> = Vec::with_capacity(versions.len());
        for version in versions {
            let new = &version.erased - &known;
            erasing.push(version.erases(&new, &(&before - &version.fragments)));
            since.extend(new.iter().map(|id| (id, version.time)));
            known |= new;
            before = version.fragments.clone();
        }
        let mut out = Self {
            fragments: head.erased.iter().filter_map(|id| Some((u64::from(id), *since.get(&id)?))).collect(),
            head_tells: head.tells().then_some(head.time),
            ..Self::default()
        };
        // The next deletion after a version, found from the newest backwards.
        let mut deleted = erasing.last().copied().unwrap_or_default().then_some(head.time);
        let (mut next, mut gap) = (head, false);
        for (version, erases) in past.iter().zip(&erasing).rev() {
            let old = &version.fragments - &head.fragments;
            gap |= next.version > version.version + 1 && !untouched(version, next);
            next = version;
            if !old.is_empty() {
                out.old.insert(version.version);
                if gap {
                    out.untold.insert(version.version);
                }
            }
            let within = (&old & &version.erased).iter().filter_map(|id| since.get(&id)).min().copied();
            let after = deleted.filter(|_| !old.is_empty());
            let told = version.tells().then_some(version.time);
            if let Some(oldest) = within.into_iter().chain(after).chain(told).min() {
                out.versions.insert(version.version, oldest);
            }
            if *erases {
                deleted = Some(version.time);
            }
        }
        out
    }

    /// The oldest deletion that HEAD's files still hold.
    pub fn oldest_fragment(&self) -> Option<DateTime<Utc>> {
        self.fragments.values().min().copied()
    }

    /// The oldest deletion of all.
    pub fn oldest(&self) -> Option<DateTime<Utc>> {
        self.versions.values().copied().chain(self.oldest_fragment()).chain(self.head_tells).min()
    }

    /// From when a version that was replaced at `replaced_at` goes, whatever else would keep it but a name.
    pub fn goes_at(&self, version: u64, replaced_at: DateTime<Utc>, within: Duration) -> Option<DateTime<Utc>> {
        let due = self.versions.get(&version)?.checked_add_signed(delta(within)?)?;
        Some(due.max(replaced_at.checked_add_signed(delta(within / 2)?)?))
    }
}

/// Whether nothing was deleted from a version's fragments until another one.
fn untouched(version: &Held, later: &Held) -> bool {
    version.fragments.is_subset(&later.fragments) && version.fragments.is_disjoint(&later.erased)
}

/// Whether an index may hold values of rows that are gone. A segment keeps the entries of a fragment that was deleted whole: no
/// rewrite remaps them, and the fragment stays in what the segment covers. Zone maps and their like are not remapped at all, and
/// a fold copies what they had, so that coverage proves nothing.
fn may_hold(index: &IndexInfo, live: &RoaringBitmap) -> bool {
    index.loses_coverage_on_rewrite()
        || index.segments.iter().any(|s| s.fragments.as_ref().is_none_or(|covered| !covered.is_subset(live)))
}

/// Whether a listed file can hold values and no version names it: what a clean-up or a writer that was cut off left.
fn unnamed(look: &Look, path: &str) -> bool {
    match owner(path) {
        Some(key) => look.uses.of(&key).is_none(),
        None => matches!(classify(path).kind, Kind::Staging | Kind::Temporary | Kind::Unknown),
    }
}

fn delta(duration: Duration) -> Option<TimeDelta> {
    TimeDelta::from_std(duration).ok()
}
