//! The mark that every commit of ours carries, as transaction properties.
//!
//! It recognises our own events, proves that a commit landed, and is part of the audit (design, "Stamps").

use std::collections::HashMap;

use uuid::Uuid;

/// Property keys, as they stand in the transaction.
pub mod keys {
    /// The estate's id.
    pub const ESTATE: &str = "squire.estate";
    /// The run's id (UUIDv7).
    pub const RUN: &str = "squire.run";
    /// `reserve`, `compact`, `optimize_indices`, `remove_versions`…
    pub const STEP: &str = "squire.step";
    /// Which slice of the step, from 0.
    pub const SLICE: &str = "squire.slice";
    /// The asker's id of a request (`build`).
    pub const REQUEST: &str = "squire.request";
    /// The version of Squire.
    pub const VERSION: &str = "squire.version";
}

/// Who commits, for which run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamper {
    /// The estate's id.
    pub estate: Uuid,
    /// The run's id.
    pub run: Uuid,
}

impl Stamper {
    /// The properties of one commit.
    pub fn properties(&self, step: &str, slice: u32) -> HashMap<String, String> {
        HashMap::from([
            (keys::ESTATE.into(), self.estate.to_string()),
            (keys::RUN.into(), self.run.to_string()),
            (keys::STEP.into(), step.into()),
            (keys::SLICE.into(), slice.to_string()),
            (keys::VERSION.into(), env!("CARGO_PKG_VERSION").into()),
        ])
    }
}

/// A stamp read back from a transaction.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stamp {
    /// The estate's id, as written.
    pub estate: String,
    /// The run's id, as written.
    pub run: String,
    /// The step that committed.
    pub step: String,
    /// Which commit of the run on this dataset it is.
    #[serde(default)]
    pub slice: u32,
}

impl Stamp {
    /// Reads a stamp; `None` when the commit is not Squire's.
    pub fn read(properties: &HashMap<String, String>) -> Option<Self> {
        Some(Self {
            estate: properties.get(keys::ESTATE)?.clone(),
            run: properties.get(keys::RUN)?.clone(),
            step: properties.get(keys::STEP).cloned().unwrap_or_default(),
            slice: properties.get(keys::SLICE).and_then(|n| n.parse().ok()).unwrap_or_default(),
        })
    }
}
