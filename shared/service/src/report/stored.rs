//! What the stored bytes of a dataset are.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::enums::{HoldReason, StoredClass};
use crate::config::Prices;

/// The stored bytes of one dataset. The classes sum to `total`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredBytes {
    /// All bytes under its root, without datasets inside it that have a row of their own.
    pub total: u64,
    /// The bytes of every class.
    pub classes: BTreeMap<StoredClass, u64>,
    /// What keeps the history, the strongest holder of each file.
    pub held: Vec<HeldBytes>,
    /// Of the live bytes: columns that the schema no longer has, each by its share of its file's fields.
    pub dead_columns: u64,
    /// Bytes written since the oldest version that is still there for each byte that was not written by maintenance; null
    /// where nothing was.
    pub write_amplification: Option<f64>,
    /// What storing it costs in a month, in the currency of `[prices]`; null without a price.
    pub cost_per_month: Option<f64>,
    /// The current fragments by size.
    pub fragment_sizes: Vec<FragmentSizes>,
}

/// Bytes of history that one holder keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBytes {
    /// What keeps them.
    pub by: HoldReason,
    /// Versions that it keeps.
    pub versions: u64,
    /// Bytes of files that it keeps.
    pub bytes: u64,
    /// When it lets the last of them go; null where that is not known.
    pub until: Option<DateTime<Utc>>,
}

/// Fragments of about one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentSizes {
    /// The largest size in bytes that is counted here; null for all larger ones.
    pub up_to: Option<u64>,
    /// How many.
    pub fragments: u64,
}

impl StoredBytes {
    /// From names as the contract spells them: bytes by class, holders (`by`, versions, bytes, until), fragment sizes (`up_to`,
    /// number). A name that is not of the contract counts as unknown, so that the classes still sum to the total.
    pub fn of_parts<'a>(
        classes: impl IntoIterator<Item = (&'a str, u64)>,
        held: impl IntoIterator<Item = (&'a str, u64, u64, Option<DateTime<Utc>>)>,
        fragment_sizes: impl IntoIterator<Item = (Option<u64>, u64)>,
        prices: &Prices,
    ) -> Self {
        let mut out = Self { classes: StoredClass::ALL.iter().map(|c| (*c, 0)).collect(), ..Self::default() };
        for (class, bytes) in classes {
            *out.classes.entry(class.parse().unwrap_or(StoredClass::Unknown)).or_default() += bytes;
            out.total += bytes;
        }
        let holder = |(by, versions, bytes, until): (&str, u64, u64, Option<DateTime<Utc>>)| {
            Some(HeldBytes { by: by.parse().ok()?, versions, bytes, until })
        };
        out.held = held.into_iter().filter_map(holder).collect();
        out.held.sort_by_key(|h| std::cmp::Reverse(h.bytes));
        out.fragment_sizes =
            fragment_sizes.into_iter().map(|(up_to, fragments)| FragmentSizes { up_to, fragments }).collect();
        out.cost_per_month = cost_per_month(out.total, prices);
        out
    }

    /// The bytes of one class.
    pub fn of(&self, class: StoredClass) -> u64 {
        self.classes.get(&class).copied().unwrap_or(0)
    }

    /// The bytes that some holder keeps.
    pub fn held_bytes(&self) -> u64 {
        self.held.iter().map(|h| h.bytes).sum()
    }
}

/// What storing so many bytes costs in a month; `None` without a price.
pub fn cost_per_month(bytes: u64, prices: &Prices) -> Option<f64> {
    prices.stored_gib_month.map(|price| bytes as f64 / (1_u64 << 30) as f64 * price)
}
