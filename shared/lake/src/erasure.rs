//! What still holds values that were deleted, or whose column was dropped. Pure.
//!
//! A delete only marks rows: the values stay in the fragment's files until it is rewritten, and then in every version that
//! names the old files (design, "Admit": a deadline of `erase_within`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use roaring::RoaringBitmap;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::build;
use crate::index::{IndexInfo, State};
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
    /// Its index segments, with the version whose rows each was built from.
    pub indices: Vec<(Uuid, u64)>,
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

    /// Whether it may have deleted rows, which indices over them keep: a dropped column's own indices go with it.
    fn deletes(&self) -> bool {
        self.operation.as_deref() != Some("project")
    }

    /// The oldest deletion whose values may stand in an index that HEAD does not name any more.
    fn in_index(&self, head: &Held, deletions: &[Deletion]) -> Option<DateTime<Utc>> {
        let gone = self.indices.iter().filter(|(uuid, _)| head.indices.iter().all(|(live, _)| live != uuid));
        let built_from = gone.map(|(_, from)| *from).min()?;
        deletions.iter().filter(|d| d.version > built_from).map(|d| d.at).min()
    }

    /// Whether its transaction tells what was deleted.
    fn tells(&self) -> bool {
        !self.ours && matches!(self.operation.as_deref(), Some("delete" | "update"))
    }
}

/// A version that deleted rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// The version.
    pub version: u64,
    /// When.
    pub at: DateTime<Utc>,
}

/// What is remembered of a dataset's history beyond its versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// Every version from this one on was seen while it was there,
    pub from: u64,
    /// up to this one.
    pub through: u64,
    /// The last that deleted rows.
    pub deleted: Option<Deletion>,
}

/// An index that may hold values of deleted rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stale {
    /// Since the oldest deletion that it may hold; `None` where that is not known.
    pub since: Option<DateTime<Utc>>,
    /// Why this build cannot build it anew.
    pub cannot: Option<String>,
}

/// What still holds erased values, and since when they are erased.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Erasure {
    /// Versions other than HEAD that name files or indices which HEAD does not, and hold values that were erased after them or
    /// in them.
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
    /// Versions that deleted rows, or may have, oldest first.
    pub deletions: Vec<Deletion>,
    /// HEAD's indices that hold, or may hold, values of deleted rows whatever is rewritten.
    pub indices: BTreeMap<String, Stale>,
    /// What is to be remembered once versions go.
    pub watched: Option<Watched>,
    /// The listing shows files that no version names: their values are not looked at.
    pub unnamed: bool,
}

impl Erasure {
    /// What a look shows, with what is remembered of its history.
    pub fn of(look: &Look, watched: Option<&Watched>) -> Self {
        let held = |m: &ManifestInfo| Held {
            version: m.version,
            time: m.time(),
            fragments: m.fragments.clone(),
            erased: m.erased.clone(),
            operation: m.operation.clone(),
            ours: m.stamp.is_some(),
            indices: m.indices.clone(),
        };
        let versions: Vec<Held> = look.versions().into_iter().map(|(_, m)| held(m)).collect();
        let over = Self::over(&versions);
        let live: RoaringBitmap = look.fragments.iter().filter_map(|f| u32::try_from(f.id).ok()).collect();
        // A dataset made anew counts from 1 again.
        let watched = watched.filter(|w| w.through <= look.version());
        let known_from = known_from(&versions, watched);
        let told = over.deletions.iter().chain(watched.and_then(|w| w.deleted.as_ref()));
        let told: Vec<&Deletion> = told.collect();
        let stale = |i: &IndexInfo| Some((i.name.clone(), stale(i, &live, &told, known_from)?));
        Self {
            indices: look.indices.iter().filter_map(stale).collect(),
            watched: Some(Watched {
                from: known_from,
                through: look.version(),
                deleted: told.iter().max_by_key(|d| d.version).map(|d| (*d).clone()),
            }),
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
        let deletions = versions.iter().zip(&erasing).filter(|(v, erases)| **erases && v.deletes());
        let mut out = Self {
            deletions: deletions.map(|(v, _)| Deletion { version: v.version, at: v.time }).collect(),
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
            let in_index = version.in_index(head, &out.deletions);
            if let Some(oldest) = within.into_iter().chain(after).chain(told).chain(in_index).min() {
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
        let stale = self.indices.values().filter_map(|i| i.since);
        self.versions.values().copied().chain(self.oldest_fragment()).chain(self.head_tells).chain(stale).min()
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

/// The oldest version since which every deletion is known: versions follow each other up to HEAD, or were seen before they went.
fn known_from(versions: &[Held], watched: Option<&Watched>) -> u64 {
    let mut numbers = versions.iter().rev().map(|v| v.version);
    let Some(mut first) = numbers.next() else { return 0 };
    for number in numbers {
        if number + 1 != first {
            break;
        }
        first = number;
    }
    match watched {
        Some(watched) if watched.through + 1 >= first => first.min(watched.from),
        _ => first,
    }
}

/// Whether an index may hold values of rows that are gone. What a segment was built from is told by a version, which neither a
/// remap nor a merge advances: they carry over dictionaries, zones and what was trained. And a segment keeps the entries of a
/// fragment that was deleted whole: no rewrite remaps them, and the fragment stays in what the segment covers.
fn stale(index: &IndexInfo, live: &RoaringBitmap, deletions: &[&Deletion], known_from: u64) -> Option<Stale> {
    if index.state == State::Untrained {
        return None;
    }
    let built_from = index.built_from();
    let since = deletions.iter().filter(|d| d.version > built_from).map(|d| d.at).min();
    let untold = known_from > built_from + 1;
    let gone = index.segments.iter().any(|s| s.fragments.as_ref().is_none_or(|covered| !covered.is_subset(live)));
    (since.is_some() || untold || gone).then(|| Stale { since, cannot: build::cannot(index) })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Segment;

    fn at(hours: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::hours(hours)
    }

    fn deletion(version: u64) -> Deletion {
        Deletion { version, at: at(i64::try_from(version).unwrap_or(0)) }
    }

    fn held(version: u64) -> Held {
        Held { version, time: at(i64::try_from(version).unwrap_or(0)), ..Held::default() }
    }

    fn index(built_from: &[u64], state: State) -> IndexInfo {
        let segment = |from: &u64| Segment {
            uuid: Uuid::nil(),
            fragments: Some([1].into_iter().collect()),
            bytes: 0,
            built_from: *from,
        };
        IndexInfo {
            name: "i".into(),
            kind: "BTREE".into(),
            columns: vec!["id".into()],
            segments: built_from.iter().map(segment).collect(),
            indexed_rows: 1,
            unindexed_rows: 0,
            dead_rows: 0,
            state,
            detail: None,
        }
    }

    #[test]
    fn an_index_is_stale_where_a_deletion_came_after_the_rows_that_any_of_its_segments_was_built_from() {
        let live: RoaringBitmap = [1].into_iter().collect();
        let since = |from: &[u64], deletions: &[u64], known_from| {
            let deletions: Vec<Deletion> = deletions.iter().map(|v| deletion(*v)).collect();
            let deletions: Vec<&Deletion> = deletions.iter().collect();
            stale(&index(from, State::Covered), &live, &deletions, known_from).map(|s| s.since)
        };
        assert_eq!(since(&[4], &[5, 9], 1), Some(Some(at(5))));
        assert_eq!(since(&[9, 4], &[5], 1), Some(Some(at(5))), "the oldest segment counts");
        assert_eq!(since(&[5], &[5], 1), None, "built from what the deletion left");
        assert_eq!(since(&[4], &[], 6), Some(None), "version 5 went unseen");
        assert_eq!(since(&[5], &[], 6), None);
        let gone: RoaringBitmap = [2].into_iter().collect();
        assert!(stale(&index(&[4], State::Covered), &gone, &[], 1).is_some(), "its fragment was deleted whole");
        assert!(stale(&index(&[4], State::Untrained), &gone, &[&deletion(5)], 1).is_none(), "it holds nothing");
        let unsupported = stale(&index(&[4], State::Unsupported), &live, &[&deletion(5)], 1);
        assert!(unsupported.is_some_and(|s| s.cannot.is_some()));
    }

    #[test]
    fn deletions_are_known_from_where_versions_follow_each_other_or_were_seen_before_they_went() {
        let versions = [held(3), held(6), held(7), held(8)];
        let watched = |from, through| Watched { from, through, deleted: None };
        assert_eq!(known_from(&versions, None), 6, "3 is kept by a tag, say");
        assert_eq!(known_from(&versions, Some(&watched(2, 5))), 2);
        assert_eq!(known_from(&versions, Some(&watched(2, 4))), 6, "5 was never seen");
        assert_eq!(known_from(&[], None), 0);
    }

    #[test]
    fn a_version_between_the_rewrite_and_the_build_goes_too_since_its_index_holds_the_values() {
        let (old, new) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let with = |version, fragments: &[u32], operation: &str, index, from| Held {
            fragments: fragments.iter().copied().collect(),
            operation: Some(operation.into()),
            indices: vec![(index, from)],
            ..held(version)
        };
        let found = Erasure::over(&[
            with(1, &[0], "append", old, 1),
            with(2, &[0], "delete", old, 1),
            with(3, &[1], "rewrite", old, 1),
            with(4, &[1], "create_index", new, 3),
        ]);
        assert_eq!(found.versions.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    }
}
