//! What still holds values that were deleted, or whose column was dropped. Pure.
//!
//! A delete only marks rows: the values stay in the fragment's files until it is rewritten, and then in every version that
//! names the old files (design, "Admit": a deadline of `erase_within`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use roaring::RoaringBitmap;

use crate::look::{Look, ManifestInfo};

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
        Self::over(&look.versions().into_iter().map(|(_, m)| held(m)).collect::<Vec<_>>())
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
        for (version, erases) in past.iter().zip(&erasing).rev() {
            let old = &version.fragments - &head.fragments;
            if !old.is_empty() {
                out.old.insert(version.version);
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

fn delta(duration: Duration) -> Option<TimeDelta> {
    TimeDelta::from_std(duration).ok()
}
