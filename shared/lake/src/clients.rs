//! Which release of Lance can still use an index after this build has written it (design, "Writers").
//!
//! This build writes an index in its own form when it folds rows into it or moves its row addresses. An older client then
//! fails in one of these ways, all tried with that client's own release: its search fails (vector, before 0.30); it finds
//! too little (full text, 0.32 and 0.33); it leaves the index aside and scans (vector in 0.30 and 0.31, label lists, B-trees
//! over stable row ids), and then, up to Lance 11, **its next commit of any kind takes the index out of the manifest for
//! everybody**. `docs/compatibility.md` has the matrix.

use chrono::{DateTime, Utc};
use squire_registry::Policy;

use crate::index::IndexInfo;
use crate::look::Look;

/// A version that Squire did not make, in the last `reader_window`, by a Lance that could not use one of the dataset's indices
/// after a rewrite (design, "Writers"): which, in words. Pure.
pub fn old_client(look: &Look, policy: &Policy, now: DateTime<Utc>) -> Option<String> {
    let stable = look.head.manifest.uses_stable_row_ids();
    let bound: Vec<(&IndexInfo, Release)> =
        look.indices.iter().filter_map(|i| Some((i, readable_since(&i.kind, stable)?))).collect();
    let window = chrono::Duration::from_std(policy.reader_window).unwrap_or(chrono::Duration::MAX);
    look.manifests.iter().filter(|m| m.stamp.is_none() && now.signed_duration_since(m.time()) < window).find_map(|m| {
        let (library, version) = m.writer.as_ref()?;
        let (index, (major, minor)) =
            bound.iter().find(|(_, since)| library == "lance" && older_than(version, *since))?;
        Some(format!(
            "version {} was written by {library} {version}, and index {} ({}) in its new form needs Lance {major}.{minor}",
            m.version, index.name, index.kind
        ))
    })
}

/// A release of Lance, `(major, minor)`.
pub type Release = (u64, u64);

/// The first release that can use an index of this kind as this build writes it; `None` when every release can that has the
/// kind.
///
/// `LEGACY` is an index whose writer did not record its kind: it is taken for the worst.
pub fn readable_since(kind: &str, stable_row_ids: bool) -> Option<Release> {
    match kind {
        // A fold leaves one partition per merged part; 0.32 and 0.33 then answer the first search of a table wrongly.
        "INVERTED" => Some((0, 35)),
        // Version 1 of the format, which releases with a stricter check of versions leave aside.
        "LABEL_LIST" => Some((4, 0)),
        // Row addresses instead of row ids, version 1; without stable row ids the two are the same and version 0 is kept.
        "BTREE" if stable_row_ids => Some((BTREE_ADDRESSES, 0)),
        "VECTOR" | "LEGACY" => Some((0, 32)),
        ivf if ivf.starts_with("IVF") => Some((0, 32)),
        _ => None,
    }
}

/// The first major release that reads B-trees over row addresses.
const BTREE_ADDRESSES: u64 = 14;

/// Whether a Lance version is before a release. What cannot be parsed is taken for old: refusing costs bytes, not data.
pub fn older_than(version: &str, release: Release) -> bool {
    let mut parts = version.split(['.', '-', '+']);
    let number = |part: Option<&str>| part.and_then(|p| p.parse::<u64>().ok());
    match (number(parts.next()), number(parts.next())) {
        (Some(major), Some(minor)) => (major, minor) < release,
        (Some(major), None) => (major, 0) < release,
        (None, _) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_older_by_number_and_not_by_text() {
        for (version, release, older) in [
            ("0.27.2", (0, 30), true),
            ("0.30.0", (0, 30), false),
            ("0.31.1", (0, 32), true),
            ("0.32.0", (0, 32), false),
            ("0.4.21", (0, 32), true),
            ("2.0.0", (4, 0), true),
            ("4.0.0", (4, 0), false),
            ("14.0.2", (4, 0), false),
            ("14.0.2", (14, 0), false),
            ("14", (14, 0), false),
            ("9.0.0-beta.1", (14, 0), true),
            ("", (0, 30), true),
            ("main", (0, 30), true),
        ] {
            assert_eq!(older_than(version, release), older, "{version} before {release:?}");
        }
    }
}
