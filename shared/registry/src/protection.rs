//! Levels of protection.

use serde::{Deserialize, Serialize};

/// How strongly a subject is protected. Levels are cumulative: each also forbids what those before it forbid.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Level {
    /// No drop and no purge; `--force` gets past this one only.
    NoDrop,
    /// A legal hold: also no version cleanup and no reclaim.
    KeepHistory,
    /// Nothing at all is written.
    Freeze,
}

impl Level {
    /// Whether versions and files may be removed under this level.
    pub fn allows_reclaim(self) -> bool {
        self < Self::KeepHistory
    }

    /// Whether anything may be written under this level.
    pub fn allows_writes(self) -> bool {
        self < Self::Freeze
    }
}
