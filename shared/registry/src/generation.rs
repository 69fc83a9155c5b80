//! One generation of a record: where it stands, and what reading it gave.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use object_store::ObjectMeta;
use object_store::path::Path;

use crate::error::{Error, Result};
use crate::record::{Collection, Fields, Meta, Record, Unreadable};

/// A record's place: its collection, a partition below it (of `run_entries`), and its id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) collection: Collection,
    pub(crate) partition: Option<&'a str>,
    pub(crate) id: &'a str,
}

impl<'a> Place<'a> {
    pub(crate) fn of<T: Fields>(id: &'a str) -> Self {
        Self { collection: T::COLLECTION, partition: None, id }
    }

    pub(crate) fn what(&self) -> String {
        match self.partition {
            Some(partition) => format!("record {}/{partition}/{}", self.collection, self.id),
            None => format!("record {}/{}", self.collection, self.id),
        }
    }
}

/// One listed generation.
#[derive(Debug, Clone)]
pub(crate) struct Generation {
    pub(crate) number: u64,
    pub(crate) path: Path,
    pub(crate) modified: DateTime<Utc>,
    pub(crate) e_tag: Option<String>,
    pub(crate) size: u64,
}

/// The newest generation of a record, as read.
#[derive(Debug, Clone)]
pub(crate) enum Read<T> {
    /// No generation at all.
    Absent,
    /// It exists.
    Live(Arc<Record<T>>),
    /// It was deleted.
    Tombstone(Meta),
    /// It exists and cannot be understood.
    Unreadable(Unreadable),
}

impl<T> Read<T> {
    /// The live record; an unreadable one is an error, for whoever decides on it.
    pub(crate) fn strict(self, what: &str) -> Result<Option<Arc<Record<T>>>> {
        match self {
            Self::Absent | Self::Tombstone(_) => Ok(None),
            Self::Live(record) => Ok(Some(record)),
            Self::Unreadable(u) => Err(Error::Unreadable { what: what.to_owned(), why: u.why }),
        }
    }
}

/// What an update wants.
pub(crate) enum Change<T> {
    /// Leave it: nothing is written.
    Keep,
    /// The next generation, with these fields.
    Put(T),
    /// A tombstone.
    Delete,
}

/// One generation of the past.
pub(crate) struct Past<T> {
    pub(crate) meta: Meta,
    pub(crate) fields: Option<T>,
}

/// A listed object, if its name is that of a generation; unfinished puts and foreign files are not.
pub(crate) fn generation(name: &str, meta: ObjectMeta) -> Option<Generation> {
    let digits = name.strip_suffix(".json")?;
    if digits.len() != 20 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(Generation {
        number: digits.parse().ok()?,
        path: meta.location,
        modified: meta.last_modified,
        e_tag: meta.e_tag,
        size: meta.size,
    })
}
