//! Blocks: named, persisted, possibly expiring reasons not to maintain something.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::subject::Subject;

/// Why something is blocked; the label of `squire_blocks{reason}`.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::EnumIter,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum BlockKind {
    /// An operator's pause.
    Operator,
    /// A reader needs a version: that version stays, the rest is maintained.
    Reader,
    /// A verification failed.
    Verify,
    /// The same failure over and over.
    RepeatedFailure,
}

/// A block's own fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// What is blocked; everything below it is too.
    pub subject: Subject,
    /// Why. (`kind` is the envelope's word.)
    #[serde(rename = "cause")]
    pub kind: BlockKind,
    /// When it ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<DateTime<Utc>>,
    /// The version that a reader needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

impl Block {
    /// Whether it holds at `now`.
    pub fn active_at(&self, now: DateTime<Utc>) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// A block as it concerns one dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockInfo {
    /// Its id, for `block remove`.
    pub id: String,
    /// What it was put on.
    pub subject: Subject,
    /// Its kind.
    pub kind: BlockKind,
    /// The reason in words.
    pub reason: String,
    /// When it ends by itself.
    pub until: Option<DateTime<Utc>>,
    /// The version that must stay. A block with a version pauses nothing.
    pub version: Option<u64>,
}

impl BlockInfo {
    /// Whether it stops maintenance, rather than only keeping a version.
    pub fn pauses(&self) -> bool {
        self.version.is_none()
    }
}
