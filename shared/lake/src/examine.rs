//! Listing, look, classes, and the second look before anything is called orphan or missing (design, "Reconcile").
//!
//! A listing of a busy dataset is not one moment: a file may be listed before the commit that names it, and a manifest read after
//! the clean-up that took its files. Whoever is an orphan or missing must be so in two independent looks, the second with HEAD and
//! every manifest read again.

use std::borrow::Cow;
use std::collections::BTreeSet;

use chrono::Utc;

use crate::classes::{Ages, Class, Classes, classes};
use crate::look::{Look, Looked, look};
use crate::refs::KeepSet;
use crate::{Lake, Result};

/// A dataset with the class of every object under it.
#[derive(Debug)]
pub struct Examined {
    /// The last look.
    pub look: Look,
    /// Its classes, orphans and missing confirmed by both looks.
    pub classes: Classes,
    /// How many looks were taken: 2 where the first found an orphan or something missing.
    pub looks: u8,
}

/// What a place turned out to be.
#[derive(Debug)]
pub enum Examination {
    /// A dataset.
    Dataset(Box<Examined>),
    /// Declared, no data yet.
    DeclaredOnly,
    /// No dataset.
    Nothing,
}

/// Looks at a dataset and gives every object under it its class. `keep` is what the rest of the estate reads of it. Where the
/// first look finds an orphan or something missing, a second one is taken; the result is the second's.
///
/// # Errors
/// As [`look`]: a listing that failed, a HEAD that cannot be read.
pub async fn examine(lake: &Lake, uri: &str, keep: &KeepSet, ages: &Ages) -> Result<Examination> {
    match look(lake, uri, Utc::now()).await? {
        Looked::Dataset(first) => confirm(lake, *first, keep, ages).await,
        Looked::DeclaredOnly => Ok(Examination::DeclaredOnly),
        Looked::Nothing => Ok(Examination::Nothing),
    }
}

/// The same, where the first look was already taken (a run takes it for the clone graph).
///
/// # Errors
/// As [`examine`].
pub async fn confirm(lake: &Lake, first: Look, keep: &KeepSet, ages: &Ages) -> Result<Examination> {
    let found = classes(&first, keep, ages);
    if found.missing.is_empty() && found.of(Class::Orphan).next().is_none() {
        return Ok(Examination::Dataset(Box::new(Examined { look: first, classes: found, looks: 1 })));
    }
    let uri = first.uri.clone();
    drop(first);
    match look(lake, &uri, Utc::now()).await? {
        Looked::Dataset(second) => {
            let classes = agreed(&found, classes(&second, keep, ages));
            Ok(Examination::Dataset(Box::new(Examined { look: *second, classes, looks: 2 })))
        }
        Looked::DeclaredOnly => Ok(Examination::DeclaredOnly),
        Looked::Nothing => Ok(Examination::Nothing),
    }
}

/// The second look's classes, without the orphans and the missing that the first did not have. Pure.
pub fn agreed(first: &Classes, mut second: Classes) -> Classes {
    for object in second.objects.iter_mut().filter(|o| o.class == Class::Orphan) {
        if first.at(&object.path).is_none_or(|before| before.class != Class::Orphan) {
            object.class = Class::Young;
            object.reason = Cow::Borrowed("nobody names it, and the first look did not find it so");
        }
    }
    let before: BTreeSet<&str> = first.missing.iter().map(|m| m.path.as_str()).collect();
    second.missing.retain(|m| before.contains(m.path.as_str()));
    second
}
