//! Which directories are datasets.
//!
//! A directory is a dataset iff it has `_versions/`; others are recursed into, to a bounded depth. Reserved (`_squire`,
//! the quarantine) and `__…` names are skipped, the inside of a dataset is not entered (design, "Discovery").

use std::collections::BTreeSet;
use std::path::{Path as FsPath, PathBuf};

use futures::stream::{self, StreamExt};
use object_store::ObjectStore as _;

use crate::{Error, Kind, Lake, Result, uri};

/// How deep below a root a dataset is looked for.
pub const MAX_DEPTH: usize = 16;
/// Directories listed at once.
const LISTS: usize = 16;
/// The registry's reserved name.
pub const RESERVED: &str = "_squire";
/// The quarantine's reserved name.
pub const QUARANTINE: &str = "_squire_quarantine";

/// What a walk found. A place that could not be read is counted and does not end the walk.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Found {
    /// Canonical URIs, sorted, each once.
    pub datasets: BTreeSet<String>,
    /// `(place, why)` of what could not be read.
    pub unreadable: Vec<(String, String)>,
    /// Whether the root exists at all.
    pub exists: bool,
}

/// Whether a directory of this name is never looked into.
pub fn skipped(name: &str) -> bool {
    name == RESERVED || name == QUARANTINE || name.starts_with("__")
}

/// Walks one root (canonical URI; a ROOT may itself be a dataset).
pub async fn discover(lake: &Lake, root: &str) -> Found {
    match uri::local_path(root) {
        Some(path) => match tokio::task::spawn_blocking(move || walk_local(&path)).await {
            Ok(found) => found,
            Err(e) => Found { unreadable: vec![(root.to_string(), e.to_string())], ..Found::default() },
        },
        None => walk_remote(lake, root).await,
    }
}

fn walk_local(root: &FsPath) -> Found {
    let mut found = Found { exists: root.is_dir(), ..Found::default() };
    if !found.exists {
        return found;
    }
    let mut entered = BTreeSet::new();
    let mut queue: Vec<(PathBuf, usize)> = vec![(root.to_path_buf(), 0)];
    while let Some((dir, depth)) = queue.pop() {
        // A symlink and its target are one place; a loop of links ends here too.
        let Ok(real) = std::fs::canonicalize(&dir) else { continue };
        if !entered.insert(real.clone()) {
            continue;
        }
        if real.join("_versions").is_dir() {
            match real.to_str().map(uri::canonical) {
                Some(Ok(uri)) => {
                    found.datasets.insert(uri);
                }
                Some(Err(e)) => found.unreadable.push((real.display().to_string(), e.to_string())),
                None => found.unreadable.push((real.display().to_string(), "the name is not UTF-8".into())),
            }
            continue;
        }
        if depth >= MAX_DEPTH {
            continue;
        }
        match std::fs::read_dir(&real) {
            Ok(entries) => {
                for entry in entries.flatten() {
                    let path = entry.path();
                    let name = entry.file_name();
                    if !skipped(&name.to_string_lossy()) && path.is_dir() {
                        queue.push((path, depth + 1));
                    }
                }
            }
            Err(e) => found.unreadable.push((real.display().to_string(), e.to_string())),
        }
    }
    found
}

async fn walk_remote(lake: &Lake, root: &str) -> Found {
    let mut found = Found::default();
    let mut level = vec![root.to_string()];
    for depth in 0..=MAX_DEPTH {
        if level.is_empty() {
            break;
        }
        let listed: Vec<(String, Result<Vec<String>>)> = stream::iter(level)
            .map(|dir| async move {
                let children = children(lake, &dir).await;
                (dir, children)
            })
            .buffer_unordered(LISTS)
            .collect()
            .await;
        level = Vec::new();
        for (dir, children) in listed {
            match children {
                Err(e) => found.unreadable.push((dir, e.to_string())),
                Ok(names) => {
                    found.exists |= depth > 0 || !names.is_empty();
                    if names.iter().any(|n| n == "_versions") {
                        found.datasets.insert(dir);
                        continue;
                    }
                    level.extend(names.iter().filter(|n| !skipped(n) && !n.is_empty()).map(|n| uri::join(&dir, n)));
                }
            }
        }
    }
    found
}

/// The names of the "directories" right below a URI; a file directly in it counts as an empty name.
async fn children(lake: &Lake, dir: &str) -> Result<Vec<String>> {
    let place = lake.place(dir).await?;
    let prefix = (!place.path.as_ref().is_empty()).then(|| place.path.clone());
    let listed = place
        .objects()
        .list_with_delimiter(prefix.as_ref())
        .await
        .map_err(|e| Error::store("listing", dir, e).with_kind(Kind::Transient))?;
    let mut names: Vec<String> = listed.common_prefixes.iter().filter_map(|p| p.filename().map(String::from)).collect();
    if !listed.objects.is_empty() {
        names.push(String::new());
    }
    Ok(names)
}
