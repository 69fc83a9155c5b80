//! What a dataset's URI says about its tier.
//!
//! The last segments carry it in five layouts that do not agree about the end to read from, and in two more shapes
//! that follow from nesting (design, "Tier"). The order of the questions is part of the rule: `medallion` is asked
//! before the delimiter, or a project's `acme$bronze` reads as the flat layout; and only `medallion` promotes its
//! child, or a table merely *named* gold would size itself as gold.

use std::collections::BTreeMap;

/// Where in the URI the tier was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// `<project>-<tier>/<table>`: trailing, in the parent.
    Nested,
    /// `medallion/<tier>[-<lane>]`: leading, in the leaf.
    Cascade,
    /// `medallion/<project>$<tier>`.
    CascadeProject,
    /// `medallion/<tier>[-<lane>]/<table>`.
    CascadeTable,
    /// `<uuid8>_<project>-<tier>$<table>` or `<uuid8>_<tier>$<table>`.
    Flat,
    /// `<uuid8>_<tier>-<lane>$<table>`.
    FlatLane,
    /// `<uuid8>_<parent>$<tier>$<table>`.
    FlatNested,
    /// No tier in the URI.
    None,
}

/// Rows per fragment by tier name, as in the config's `tiers`.
pub type Tiers = BTreeMap<String, u64>;

/// The tier that `uri` names and the layout it was found in. Pure; never panics; any string is accepted.
pub fn tier_of(uri: &str, tiers: &Tiers) -> (Option<String>, Layout) {
    let decoded = percent_encoding::percent_decode_str(path_of(uri)).decode_utf8_lossy();
    let segments: Vec<&str> = decoded.split('/').filter(|s| !s.is_empty()).collect();
    let Some((leaf, above)) = segments.split_last() else {
        return (None, Layout::None);
    };
    let leaf = leaf.strip_suffix(".lance").unwrap_or(leaf);
    let parent = above.last().copied();
    let found = cascade(leaf, above, tiers)
        .or_else(|| flat(leaf, tiers))
        .or_else(|| parent.and_then(|p| trailing(p, tiers)).map(|t| (t, Layout::Nested)));
    match found {
        Some((tier, layout)) => (Some(tier), layout),
        None => (None, Layout::None),
    }
}

/// The part of a URI below its bucket or host: a bucket's name is no segment.
fn path_of(uri: &str) -> &str {
    match uri.split_once("://") {
        Some((_, rest)) => rest.split_once('/').map_or("", |(_, path)| path),
        None => uri,
    }
}

fn cascade(leaf: &str, above: &[&str], tiers: &Tiers) -> Option<(String, Layout)> {
    let parent = above.last().copied()?;
    if parent == "medallion" {
        return match leaf.rsplit_once('$') {
            Some((_, last)) if tiers.contains_key(last) => Some((last.to_string(), Layout::CascadeProject)),
            _ => leading(leaf, tiers).map(|t| (t, Layout::Cascade)),
        };
    }
    if above.len() >= 2 && above[above.len() - 2] == "medallion" {
        return leading(parent, tiers).map(|t| (t, Layout::CascadeTable));
    }
    None
}

fn flat(leaf: &str, tiers: &Tiers) -> Option<(String, Layout)> {
    let (hash, id) = leaf.split_once('_')?;
    if hash.len() != 8 || !hash.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut parts: Vec<&str> = id.split('$').collect();
    parts.pop()?;
    let namespace = parts.last().copied()?;
    if let Some(tier) = trailing(namespace, tiers).or_else(|| exact(namespace, tiers)) {
        let layout = if parts.len() > 1 { Layout::FlatNested } else { Layout::Flat };
        return Some((tier, layout));
    }
    leading(namespace, tiers).map(|t| (t, Layout::FlatLane))
}

fn exact(name: &str, tiers: &Tiers) -> Option<String> {
    tiers.contains_key(name).then(|| name.to_string())
}

/// `<anything>-<tier>`.
fn trailing(name: &str, tiers: &Tiers) -> Option<String> {
    let (_, last) = name.rsplit_once('-')?;
    exact(last, tiers)
}

/// `<tier>` or `<tier>-<lane>`.
fn leading(name: &str, tiers: &Tiers) -> Option<String> {
    exact(name.split_once('-').map_or(name, |(first, _)| first), tiers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiers() -> Tiers {
        [("bronze", 512), ("silver", 262_144), ("gold", 524_288)].map(|(k, v)| (k.to_string(), v)).into()
    }

    fn check(uri: &str, tier: Option<&str>, layout: Layout) {
        assert_eq!(tier_of(uri, &tiers()), (tier.map(String::from), layout), "{uri}");
    }

    #[test]
    fn every_layout_is_read_from_its_own_end() {
        check("s3://lake/acme-silver/orders", Some("silver"), Layout::Nested);
        check("s3://lake/medallion/bronze", Some("bronze"), Layout::Cascade);
        check("s3://lake/medallion/bronze-media", Some("bronze"), Layout::Cascade);
        check("s3://lake/medallion/acme$gold", Some("gold"), Layout::CascadeProject);
        check("s3://lake/medallion/gold-search/pages.lance", Some("gold"), Layout::CascadeTable);
        check("s3://lake/aa3bed10_acme-silver$events", Some("silver"), Layout::Flat);
        check("s3://lake/aa3bed10_gold$events", Some("gold"), Layout::Flat);
        check("s3://lake/aa3bed10_bronze-media$pages", Some("bronze"), Layout::FlatLane);
        check("s3://lake/bb40c2d1_acme$bronze$events", Some("bronze"), Layout::FlatNested);
        check("file:///tmp/lake/aa3bed10_acme-silver%24events", Some("silver"), Layout::Flat);
    }

    #[test]
    fn a_table_named_gold_is_not_gold() {
        check("s3://lake/acme-archive/gold", None, Layout::None);
        check("s3://lake/gold", None, Layout::None);
        check("s3://lake/acme-archive/gold.lance", None, Layout::None);
        check("s3://acme-gold/events", None, Layout::None);
        check("s3://lake/aa3bed10_acme$gold", None, Layout::None);
        check("s3://lake/nothexxx_acme-silver$events", None, Layout::None);
    }

    proptest::proptest! {
        #[test]
        fn reading_a_tier_never_panics(uri in "\\PC*") {
            let _ = tier_of(&uri, &tiers());
        }

        #[test]
        fn a_tier_found_is_a_declared_one(uri in "(s3://)?[a-z$_/-]{0,40}(gold|silver|bronze)[a-z$_/-]{0,12}") {
            let (tier, layout) = tier_of(&uri, &tiers());
            proptest::prop_assert_eq!(tier.is_some(), layout != Layout::None);
            if let Some(tier) = tier {
                proptest::prop_assert!(tiers().contains_key(&tier));
            }
        }
    }
}
