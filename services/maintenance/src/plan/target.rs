//! How large a fragment should become (design, "Tier").

use serde::{Deserialize, Serialize};
use squire_lake::tier::{Layout as UriLayout, tier_of};
use squire_registry::Governance;

use super::{Layout, Settings};

/// A tier read from the URI bounds the rows only if fragments still reach this.
const MIN_TIER_BYTES: u64 = 64 << 20;
/// Lance's own default.
const LANCE_ROWS: u64 = 1 << 20;

/// Rows per fragment, and what decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Rows per fragment, at least 1.
    pub rows: u64,
    /// `policy`, `dataset_config`, `tier`, `bytes` or `lance`.
    pub source: String,
    /// The tier, if any.
    pub tier: Option<String>,
    /// `registry`, `uri` or `none`.
    pub tier_source: String,
    /// Where in the URI it stood.
    pub layout: UriLayout,
}

/// Decides: policy, the dataset's own `lance.compaction.*`, tier and bytes, Lance's default.
pub fn decide(layout: &Layout, governance: &Governance, settings: &Settings) -> Target {
    let (from_uri, uri_layout) = tier_of(&layout.uri, &settings.tiers);
    let declared = governance.tier.clone();
    let (tier, tier_source) = match (&declared, &from_uri) {
        (Some(t), _) => (Some(t.clone()), "registry"),
        (None, Some(t)) => (Some(t.clone()), "uri"),
        (None, None) => (None, "none"),
    };
    let own = layout
        .config
        .get("lance.compaction.target_rows_per_fragment")
        .and_then(|v| v.parse::<u64>().ok())
        .filter(|rows| *rows > 0);
    let (rows, source) = if let Some(rows) = governance.policy.policy.target_rows {
        (rows, "policy")
    } else if let Some(rows) = own {
        (rows, "dataset_config")
    } else {
        by_bytes(layout, settings, tier.as_deref(), declared.is_some())
    };
    Target { rows: rows.max(1), source: source.into(), tier, tier_source: tier_source.into(), layout: uri_layout }
}

fn by_bytes(layout: &Layout, settings: &Settings, tier: Option<&str>, declared: bool) -> (u64, &'static str) {
    let known = layout.fragments.iter().any(|f| f.physical_rows > 0 && f.bytes > 0);
    let width = layout.widest_row_bytes();
    let rows = if known { (settings.target_bytes / width).max(1) } else { LANCE_ROWS };
    if let Some(bound) = tier.and_then(|t| settings.tiers.get(t)).copied() {
        let reaches = bound.saturating_mul(width) >= MIN_TIER_BYTES;
        if bound < rows && (declared || reaches) {
            return (bound, "tier");
        }
    }
    (rows, if known { "bytes" } else { "lance" })
}
