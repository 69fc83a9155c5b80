//! What a bucket lets these credentials do, tried out with objects named `.squire-probe-*` that come and go.
//!
//! An S3 bucket is also asked for its own settings: versions, object lock, lifecycle rules. Of other stores these are said to be
//! not known.

use bytes::Bytes;
use serde::Serialize;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::probe;
use crate::storage::Root;

/// An answer about a bucket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "answer", content = "why", rename_all = "snake_case")]
pub enum Answer {
    /// It does, with what there is to know of it.
    Yes(String),
    /// It does not, with what it said.
    No(String),
    /// This cannot be told, and why.
    NotKnown(String),
}

impl Answer {
    fn of<T>(result: &Result<T>) -> Self {
        match result {
            Ok(_) => Self::yes(),
            Err(e) => Self::No(e.to_string()),
        }
    }

    /// It does.
    pub(crate) fn yes() -> Self {
        Self::Yes(String::new())
    }

    /// It does not.
    pub(crate) fn no() -> Self {
        Self::No(String::new())
    }

    /// Whether it does.
    pub fn is_yes(&self) -> bool {
        matches!(self, Self::Yes(_))
    }

    fn not_known(why: &str) -> Self {
        Self::NotKnown(why.to_owned())
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Yes(what) if what.is_empty() => f.write_str("yes"),
            Self::Yes(what) => write!(f, "yes ({what})"),
            Self::No(why) if why.is_empty() => f.write_str("no"),
            Self::No(why) => write!(f, "no ({why})"),
            Self::NotKnown(why) => write!(f, "not known ({why})"),
        }
    }
}

/// What one bucket lets us do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// The bucket or local directory.
    pub bucket: String,
    /// Listing.
    pub list: Answer,
    /// Reading.
    pub get: Answer,
    /// Writing.
    pub put: Answer,
    /// Writing only what is not there: commits rest on it.
    pub put_if_absent: Answer,
    /// Deleting, with the credentials that clean-up uses.
    pub delete: Answer,
    /// Copying within the store.
    pub copy: Answer,
    /// The store keeps overwritten and deleted objects: clean-up frees nothing until a lifecycle rule does.
    pub versioning: Answer,
    /// Objects that nobody may delete for a time.
    pub object_lock: Answer,
    /// Rules by which the store itself deletes.
    pub lifecycle: Answer,
}

impl Capabilities {
    /// Every answer with its name, in FACES' order.
    pub fn answers(&self) -> [(&'static str, &Answer); 9] {
        [
            ("list", &self.list),
            ("get", &self.get),
            ("put", &self.put),
            ("put-if-absent", &self.put_if_absent),
            ("delete", &self.delete),
            ("copy", &self.copy),
            ("versioning", &self.versioning),
            ("object lock", &self.object_lock),
            ("lifecycle", &self.lifecycle),
        ]
    }

    /// Whether the bucket is fit for maintenance: it can be listed, read and written, and keeps put-if-absent.
    pub fn is_fit(&self) -> bool {
        [&self.list, &self.get, &self.put, &self.put_if_absent].into_iter().all(Answer::is_yes)
    }
}

/// Tries a place out. `deletes` is the same place through the credentials that clean-up deletes with. What they may not
/// delete stays: a few bytes.
///
/// # Errors
/// Only [`Error::Invalid`] for a place that has no paths; what the store refuses is an answer.
pub async fn capabilities(root: &Root, deletes: &Root) -> Result<Capabilities> {
    let name = format!("{}{}", probe::PREFIX, Uuid::new_v4());
    let (one, two) = (root.path(&[&name])?, root.path(&[&format!("{name}-copy")])?);
    let bytes = Bytes::from_static(b"squire");
    let list = Answer::of(&root.any_below(&root.path(&[])?).await);
    let written = root.put(&one, bytes.clone()).await;
    let put = Answer::of(&written);
    let (mut get, mut copy, mut delete) = {
        let why = || Answer::not_known("nothing could be written to try it on");
        (why(), why(), why())
    };
    if written.is_ok() {
        get = match root.get(&one).await {
            Ok(Some(found)) if found == bytes => Answer::yes(),
            Ok(_) => Answer::No("it does not give back what was written".into()),
            Err(e) => Answer::No(e.to_string()),
        };
        let copied = root.copy(&one, &two).await;
        copy = Answer::of(&copied);
        delete = Answer::of(&deletes.delete(&one).await);
        if delete.is_yes() && matches!(root.get(&one).await, Ok(Some(_))) {
            delete = Answer::No("it says so, and the object is still there".into());
        }
        if copied.is_ok() && delete.is_yes() {
            // A leftover of a few bytes is no answer.
            let _ = deletes.delete(&two).await;
        }
    }
    let put_if_absent = match probe::run(root).await {
        Ok(()) => Answer::yes(),
        Err(Error::LyingStore { what, .. }) => Answer::No(what),
        Err(e) => Answer::No(e.to_string()),
    };
    let [versioning, object_lock, lifecycle] = settings(root, written.ok().flatten().as_deref()).await;
    Ok(Capabilities {
        bucket: root.bucket(),
        list,
        get,
        put,
        put_if_absent,
        delete,
        copy,
        versioning,
        object_lock,
        lifecycle,
    })
}

/// Versions, object lock, lifecycle rules. `version` is what the store called the object that was put.
async fn settings(root: &Root, version: Option<&str>) -> [Answer; 3] {
    if root.is_local() {
        return [Answer::no(), Answer::no(), Answer::no()];
    }
    let elsewhere = |what: &str| Answer::not_known(&format!("ask the store's own tool for its {what}"));
    let Some(bucket) = root.settings() else {
        return [elsewhere("versions"), elsewhere("object lock"), elsewhere("lifecycle rules")];
    };
    let asked = bucket.versioning().await;
    // S3 names a version in its answer to a put where versioning is on, and `null` where it is suspended.
    let versioning = match version {
        Some("null") => Answer::No("suspended".into()),
        Some(_) => Answer::yes(),
        None => asked,
    };
    [versioning, bucket.object_lock().await, bucket.lifecycle(root.prefix()).await]
}
