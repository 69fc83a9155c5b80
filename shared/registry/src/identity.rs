//! Which registry governs a root, and whether it is the right one.

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use uuid::Uuid;

use crate::error::{Error, Kind, Result};
use crate::registry::Registry;
use crate::storage::{PutOutcome, Root, StorageOptions, canonical_uri, local_path};

/// The object in a root that says which estate the root belongs to: the estate's id as text.
pub const MARKER: &str = ".squire-estate";
/// Levels above a place that are asked at once.
const LEVELS: usize = 16;
/// Names in a root that discovery skips everywhere.
pub const RESERVED: [&str; 2] = ["_squire", "_squire_quarantine"];

/// Where the registry of some roots is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Located {
    /// It is here.
    Found(String),
    /// There is none yet; the first verb that writes makes it here. A verb that only reads does not.
    Absent {
        /// The canonical URI.
        would_be: String,
    },
}

/// The nearest `_squire` at or above any of `roots`, as git finds `.git`; for a root that is itself a dataset beside it,
/// never in it. Where there is none, it would be in the first root. Local roots are taken as their symlinks resolve.
///
/// # Errors
/// [`Error::TwoRegistries`] naming both, [`Error::Invalid`] without any root, or what a store answers.
pub async fn locate(roots: &[String], opts_for: impl Fn(&str) -> StorageOptions) -> Result<Located> {
    let mut found: Option<String> = None;
    let mut would_be = None;
    for text in roots {
        let uri = canonical_uri(text)?;
        let mut at = Root::open(&uri, &opts_for(&uri))?;
        if is_dataset(&at).await?
            && let Some(parent) = at.parent()
        {
            at = parent;
        }
        would_be.get_or_insert_with(|| at.child("_squire").uri().to_owned());
        let Some(here) = nearest(at).await? else { continue };
        match &found {
            Some(other) if *other != here => {
                return Err(Error::TwoRegistries { first: other.clone(), second: here });
            }
            _ => found = Some(here),
        }
    }
    match (found, would_be) {
        (Some(uri), _) => Ok(Located::Found(uri)),
        (None, Some(would_be)) => Ok(Located::Absent { would_be }),
        (None, None) => Err(Error::Invalid("no root and no registry given; name a directory or --registry URI".into())),
    }
}

async fn nearest(from: Root) -> Result<Option<String>> {
    let mut at = Some(from);
    let mut above = false;
    while let Some(root) = at {
        let candidate = root.child("_squire");
        match holds_records(&candidate).await {
            Ok(true) => return Ok(Some(candidate.uri().to_owned())),
            Ok(false) => {}
            Err(e) if above && e.kind() == Kind::Permanent => return Ok(out_of_reach(&root, &e)),
            Err(e) => return Err(e),
        }
        above = true;
        at = root.parent();
    }
    Ok(None)
}

/// Credentials often reach a prefix and nothing above it; what is above cannot govern with them.
fn out_of_reach<T>(root: &Root, e: &Error) -> Option<T> {
    tracing::debug!(root = root.uri(), error = %e, "not allowed to look further up");
    None
}

/// Whether any record, readable or not, is below this place.
async fn holds_records(candidate: &Root) -> Result<bool> {
    if let Some(dir) = local_path(candidate.uri()) {
        if !dir.join("v1").is_dir() {
            return Ok(false);
        }
        // A directory is walked to its end however little of it is wanted, and the identity is one object.
        if candidate.any_below(&candidate.path(&["v1", "estate"])?).await? {
            return Ok(true);
        }
    }
    candidate.any_below(&candidate.path(&["v1"])?).await
}

async fn is_dataset(root: &Root) -> Result<bool> {
    if let Some(dir) = local_path(root.uri()) {
        return Ok(dir.join("_versions").is_dir());
    }
    root.any_below(&root.path(&["_versions"])?).await
}

/// The root that a registry at `ROOT/_squire` lies in.
pub(crate) fn lake_of(registry: &Root) -> Option<Root> {
    registry.uri().ends_with("/_squire").then(|| registry.parent()).flatten()
}

/// The estate that a root's marker names; `None` without a marker.
///
/// # Errors
/// [`Error::Unreadable`] when the marker holds no id: nothing may be reclaimed there until it is restored.
pub async fn read_marker(root_uri: &str, options: &StorageOptions) -> Result<Option<Uuid>> {
    marker_of(&Root::open(root_uri, options)?).await
}

async fn marker_of(root: &Root) -> Result<Option<Uuid>> {
    let Some(bytes) = root.get(&root.path(&[MARKER])?).await? else { return Ok(None) };
    let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
    text.parse().map(Some).map_err(|_| Error::Unreadable {
        what: format!("the marker {}/{MARKER}", root.uri()),
        why: "it does not hold an estate's id".into(),
    })
}

/// Every marker at or above a place, nearest first, each with the root it lies in.
///
/// # Errors
/// As [`read_marker`].
pub async fn markers_above(uri: &str, options: &StorageOptions) -> Result<Vec<(String, Uuid)>> {
    let roots = std::iter::successors(Some(Root::open(uri, options)?), Root::parent);
    // All at once: each pass asks, and they lie a few levels apart.
    let mut asked = stream::iter(roots)
        .map(|root| async move {
            let marker = marker_of(&root).await;
            (root, marker)
        })
        .buffered(LEVELS)
        .enumerate();
    let mut out = Vec::new();
    while let Some((level, (root, marker))) = asked.next().await {
        match marker {
            Ok(Some(estate)) => out.push((root.uri().to_owned(), estate)),
            Ok(None) => {}
            Err(e) if level > 0 && e.kind() == Kind::Permanent => {
                out_of_reach::<()>(&root, &e);
                break;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(out)
}

/// Puts the marker if the root has none. To be called before the first write under a root.
///
/// # Errors
/// [`Error::OtherEstate`] when the root belongs to another estate.
pub async fn ensure_marker(root_uri: &str, options: &StorageOptions, estate: Uuid) -> Result<()> {
    put_marker(&Root::open(root_uri, options)?, estate).await
}

async fn put_marker(root: &Root, estate: Uuid) -> Result<()> {
    let path = root.path(&[MARKER])?;
    if refuse_foreign(root, estate).await? {
        return Ok(());
    }
    let outcome = root.create(&path, Bytes::from(format!("{estate}\n"))).await;
    // Whatever the answer was: what stands there decides.
    match (refuse_foreign(root, estate).await?, outcome) {
        (true, _) => Ok(()),
        (false, PutOutcome::Unknown(e)) => Err(Error::store(format!("marking {}", root.uri()), e)),
        (false, _) => Err(Error::InDoubt { doing: format!("marking {}", root.uri()) }),
    }
}

/// Whether the root is marked as this estate's; another estate's mark is an error.
pub(crate) async fn refuse_foreign(root: &Root, estate: Uuid) -> Result<bool> {
    match marker_of(root).await? {
        None => Ok(false),
        Some(marked) if marked == estate => Ok(true),
        Some(marked) => Err(Error::OtherEstate { root: root.uri().to_owned(), marked, ours: estate }),
    }
}

/// A root whose marker names an estate that the current registry is not: nothing at all is reclaimed under it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct RegistryLost {
    /// The marked root.
    pub root: String,
    /// The estate its marker names.
    pub marked: Uuid,
    /// The current registry's estate; `None` where there is no registry at all.
    pub ours: Option<Uuid>,
}

/// Decides `registry_lost` from the markers at or above a root and the estate of the registry in use (if any).
pub fn registry_lost(markers: &[(String, Uuid)], ours: Option<Uuid>) -> Option<RegistryLost> {
    markers.iter().find(|(_, marked)| Some(*marked) != ours).map(|(root, marked)| RegistryLost {
        root: root.clone(),
        marked: *marked,
        ours,
    })
}

impl Registry {
    pub(crate) async fn mark(&self, root: &Root) -> Result<()> {
        put_marker(root, self.id()).await
    }
}
