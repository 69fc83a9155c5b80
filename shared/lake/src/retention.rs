//! Which versions may go, and what keeps the others.
//!
//! **Age counts from the moment a version was replaced**: version k may go only when k+1 is older than `retention`. A version
//! quiet for a week and then overwritten has been history for a second, not for a week (design, "Clean up"). The pass removes by
//! this rule and the report counts bytes by it.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use squire_registry::{Governance, Policy};

use crate::erasure::Erasure;
use crate::look::Look;

/// What keeps a version or bytes; the names of FACES (`retained.by`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// Not yet replaced for long enough.
    Retention,
    /// One of the newest that are kept by number.
    RetainVersions,
    /// A reader's block.
    ReaderBlock,
    /// A detached version.
    Detached,
    /// A clone reads its files.
    Clone,
    /// A branch.
    Branch,
    /// A tag.
    Tag,
    /// A legal hold.
    Hold,
}

impl Holder {
    /// The stable name of FACES.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retention => "retention",
            Self::RetainVersions => "retain_versions",
            Self::ReaderBlock => "reader_block",
            Self::Detached => "detached",
            Self::Clone => "clone",
            Self::Branch => "branch",
            Self::Tag => "tag",
            Self::Hold => "hold",
        }
    }
}

/// One attached version of the main tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    /// Its number.
    pub version: u64,
    /// The later of its timestamp and its manifest's last-modified.
    pub time: DateTime<Utc>,
    /// Whether Squire made it.
    pub ours: bool,
}

/// A version that is history and stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Its number.
    pub version: u64,
    /// When the next one came.
    pub replaced_at: DateTime<Utc>,
    /// What keeps it.
    pub by: Holder,
    /// Until when, where that is known.
    pub until: Option<DateTime<Utc>>,
}

/// The attached versions of a look's main tree, oldest first.
pub fn versions(look: &Look) -> Vec<Version> {
    let version =
        |m: &crate::look::ManifestInfo| Version { version: m.version, time: m.time(), ours: m.stamp.is_some() };
    look.versions().into_iter().map(|(_, m)| version(m)).collect()
}

/// Versions of the main tree that somebody names: reader's blocks, branches that start from them, tags. The strongest counts.
pub fn named(look: &Look, governance: &Governance) -> BTreeMap<u64, Holder> {
    let on_main = |branch: &Option<String>| branch.as_deref().is_none_or(|b| b == "main");
    let mut out = BTreeMap::new();
    out.extend(governance.reader_versions().into_iter().map(|v| (v, Holder::ReaderBlock)));
    let branches = look.branches.values().filter(|(parent, _)| on_main(parent));
    out.extend(branches.map(|(_, version)| (*version, Holder::Branch)));
    out.extend(look.tags.values().filter(|t| on_main(&t.branch)).map(|t| (t.version, Holder::Tag)));
    out
}

/// The versions past everything that keeps them, and what keeps the others. HEAD (the last of `versions`) is neither. With
/// `erase_within` a version that holds deleted values goes by their deadline, also below `retain_versions`. Pure.
pub fn choose(
    versions: &[Version],
    named: &BTreeMap<u64, Holder>,
    erasure: &Erasure,
    policy: &Policy,
    now: DateTime<Utc>,
) -> (BTreeSet<u64>, Vec<Kept>) {
    let keep_for = policy.erase_within.map_or(policy.retention, |e| e.min(policy.retention));
    let keep_for = chrono::Duration::from_std(keep_for).unwrap_or(chrono::Duration::MAX);
    let not_ours = versions.iter().rev().filter(|v| !v.ours);
    let newest: BTreeSet<u64> = not_ours.take(policy.retain_versions as usize).map(|v| v.version).collect();
    let (mut going, mut kept) = (BTreeSet::new(), Vec::new());
    for pair in versions.windows(2) {
        let (version, next) = (&pair[0], &pair[1]);
        // A successor's clock that went backwards must not make a version old.
        let replaced_at = next.time.max(version.time);
        let gone_at = policy.erase_within.and_then(|within| erasure.goes_at(version.version, replaced_at, within));
        let until = replaced_at.checked_add_signed(keep_for).into_iter().chain(gone_at).min();
        let by = if let Some(by) = named.get(&version.version) {
            Some((*by, None))
        } else if gone_at.is_some_and(|at| at <= now) {
            None
        } else if until.is_none_or(|until| until > now) {
            Some((Holder::Retention, until))
        } else if newest.contains(&version.version) {
            Some((Holder::RetainVersions, gone_at))
        } else {
            None
        };
        match by {
            None => {
                going.insert(version.version);
            }
            Some((by, until)) => kept.push(Kept { version: version.version, replaced_at, by, until }),
        }
    }
    (going, kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(days: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + chrono::Duration::days(days)
    }

    /// Versions that go on day 100, with a retention of a week, of versions made on these days.
    fn going(days: &[i64]) -> Vec<u64> {
        let version = |(version, day): (u64, &i64)| Version { version, time: at(*day), ours: true };
        let versions: Vec<Version> = (1..).zip(days).map(version).collect();
        let policy = Policy { retention: std::time::Duration::from_secs(7 * 86_400), ..Policy::default() };
        let (going, kept) = choose(&versions, &BTreeMap::new(), &Erasure::default(), &policy, at(100));
        assert_eq!(going.len() + kept.len(), versions.len() - 1, "HEAD is neither");
        going.into_iter().collect()
    }

    #[test]
    fn a_clock_that_went_backwards_makes_no_version_old() {
        assert_eq!(going(&[50, 60, 99]), [1], "the second was replaced yesterday");
        assert_eq!(going(&[50, 99, 60]), [0; 0], "the second was made yesterday, whatever its successor's clock said");
    }
}
