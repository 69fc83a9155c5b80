//! Which directories are datasets.
//!
//! A directory is a dataset iff it has `_versions/`; others are recursed into, to a bounded depth. Reserved (`_squire`,
//! the quarantine) and `__…` names are skipped, the inside of a dataset is not entered (design, "Discovery").

use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirEntry;
use std::path::{Path as FsPath, PathBuf};

use futures::TryStreamExt as _;
use futures::stream::{self, StreamExt};
use object_store::ObjectStore as _;

use crate::{Error, Kind, Lake, Result, uri};

/// How deep below a root a dataset is looked for.
pub const MAX_DEPTH: usize = 16;
/// What is said of a folder that the walk did not enter.
const TOO_DEEP: &str = "it lies deeper than 16 levels below the ROOT; name a ROOT nearer to it";
/// Directories listed at once.
const LISTS: usize = 64;
/// The registry's reserved name.
pub const RESERVED: &str = "_squire";
/// The quarantine's reserved name.
pub const QUARANTINE: &str = "_squire_quarantine";

/// What a walk found. A place that could not be read is counted and does not end the walk.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Found {
    /// Canonical URIs, sorted, each once.
    pub datasets: BTreeSet<String>,
    /// Datasets in or named `__…`: never maintained, but they may read the others' files.
    pub hidden: BTreeSet<String>,
    /// `(place, why)` of what could not be read.
    pub unreadable: Vec<(String, String)>,
    /// Whether the root exists at all.
    pub exists: bool,
    /// By folder: the objects that lie directly in a folder that is no dataset.
    pub loose: BTreeMap<String, Weight>,
    /// Folders of reserved names, which are not looked into: the registry's and the quarantine's.
    pub reserved: BTreeSet<String>,
}

impl Found {
    /// The quarantines: what lies in one may come back, and is read for the clones' sake ([`crate::quarantine::readers`]).
    pub fn quarantines(&self) -> impl Iterator<Item = &String> {
        self.reserved.iter().filter(|dir| dir.rsplit('/').next() == Some(QUARANTINE))
    }
}

/// A number of objects and their bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Weight {
    /// How many.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Weight {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}

/// Counts everything below a place, object by object as they are listed.
///
/// # Errors
/// `Transient` when the store could not be listed to the end.
pub async fn weigh(lake: &Lake, uri: &str) -> Result<Weight> {
    let place = lake.place(uri).await?;
    let prefix = (!place.path.as_ref().is_empty()).then(|| place.path.clone());
    let mut out = Weight::default();
    let mut listed = place.objects().list(prefix.as_ref());
    loop {
        match listed.try_next().await {
            Ok(Some(meta)) => out.add(meta.size),
            Ok(None) | Err(object_store::Error::NotFound { .. }) => return Ok(out),
            Err(e) => return Err(Error::store("listing", uri, e).with_kind(Kind::Transient)),
        }
    }
}

/// Whether a directory of this name is Squire's own and never looked into.
fn reserved(name: &str) -> bool {
    name == RESERVED || name == QUARANTINE
}

/// Whether nothing in a directory of this name is maintained.
fn hidden(name: &str) -> bool {
    name.starts_with("__")
}

/// The dataset that a place lies in, if any: a branch's tree or a folder of a dataset is no ROOT of its own, because the refs
/// that hold its versions lie above it.
///
/// # Errors
/// When a folder above could not be listed.
pub async fn enclosing(lake: &Lake, place: &str) -> Result<Option<String>> {
    // All at once, and believed in their order: the nearest one answers.
    let folders: Vec<String> = std::iter::successors(above(place), |at| above(at)).map(String::from).collect();
    let mut folders = stream::iter(folders)
        .map(|folder| async move {
            let found = match uri::local_path(&folder) {
                Some(path) => path.join("_versions").is_dir(),
                None => has_versions(lake, &folder).await?,
            };
            Ok(found.then_some(folder))
        })
        .buffered(LISTS);
    while let Some(folder) = folders.try_next().await? {
        if folder.is_some() {
            return Ok(folder);
        }
    }
    Ok(None)
}

/// The folder that a place lies in; none above a root of the store.
fn above(place: &str) -> Option<&str> {
    let (above, last) = place.rsplit_once('/')?;
    (!last.is_empty() && !above.ends_with('/') && above.contains("://")).then_some(above)
}

async fn has_versions(lake: &Lake, dir: &str) -> Result<bool> {
    let place = lake.place(dir).await?;
    let prefix = place.below("_versions")?;
    let listed = place
        .objects()
        .list_with_delimiter(Some(&prefix))
        .await
        .map_err(|e| Error::store("listing", dir, e).with_kind(Kind::Transient))?;
    Ok(!listed.objects.is_empty())
}

/// Walks one root (canonical URI; a ROOT may itself be a dataset).
pub async fn discover(lake: &Lake, root: &str) -> Found {
    discover_knowing(lake, root, &BTreeSet::new()).await
}

/// The same, without a LIST of what is `known` to be a dataset: a LIST per folder, and none per dataset. What is known and not
/// there is not found; what is known and no dataset any more is found, and a look at it says so.
pub async fn discover_knowing(lake: &Lake, root: &str, known: &BTreeSet<String>) -> Found {
    match uri::local_path(root) {
        Some(path) => match tokio::task::spawn_blocking(move || walk_local(&path)).await {
            Ok(found) => found,
            Err(e) => Found { unreadable: vec![(root.to_string(), e.to_string())], ..Found::default() },
        },
        None => walk_remote(lake, root, known).await,
    }
}

/// A folder that is still to be entered.
struct Folder {
    path: PathBuf,
    /// Its canonical URI, where no link led to it: then it needs no resolving.
    uri: Option<String>,
    depth: usize,
    below_hidden: bool,
}

fn walk_local(root: &FsPath) -> Found {
    let mut found = Found { exists: root.is_dir(), ..Found::default() };
    if !found.exists {
        return found;
    }
    let mut entered = BTreeSet::new();
    let mut queue = vec![Folder { path: root.to_path_buf(), uri: None, depth: 0, below_hidden: false }];
    while let Some(Folder { path, uri, depth, below_hidden }) = queue.pop() {
        // A symlink and its target are one place; a loop of links ends here too.
        let Some((real, here)) = resolved(path, uri) else { continue };
        if !entered.insert(real.clone()) {
            continue;
        }
        if real.join("_versions").is_dir() {
            match here {
                Ok(uri) if below_hidden => _ = found.hidden.insert(uri),
                Ok(uri) => _ = found.datasets.insert(uri),
                Err(why) => found.unreadable.push((real.display().to_string(), why)),
            }
            continue;
        }
        if depth >= MAX_DEPTH {
            found.unreadable.push((real.display().to_string(), TOO_DEEP.into()));
            continue;
        }
        match std::fs::read_dir(&real) {
            Ok(entries) => {
                let (here, above) = (here.ok(), (depth, below_hidden));
                queue.extend(entries.flatten().filter_map(|e| folder_of(&e, here.as_deref(), above, &mut found)));
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => found.unreadable.push((real.display().to_string(), e.to_string())),
        }
    }
    found
}

/// An entry that is a folder to be entered; a reserved one and a loose object are only noted.
fn folder_of(
    entry: &DirEntry,
    here: Option<&str>,
    (depth, below_hidden): (usize, bool),
    found: &mut Found,
) -> Option<Folder> {
    let (path, name, kind) = (entry.path(), entry.file_name(), entry.file_type().ok());
    let is_link = kind.is_none_or(|k| k.is_symlink());
    let is_dir = if is_link { path.is_dir() } else { kind.is_some_and(|k| k.is_dir()) };
    let text = name.to_string_lossy();
    if !is_dir {
        if let Some((here, meta)) = here.zip(entry.metadata().ok()) {
            found.loose.entry(here.to_string()).or_default().add(meta.len());
        }
        return None;
    }
    if reserved(&text) {
        found.reserved.extend(here.map(|here| uri::join(here, &text)));
        return None;
    }
    let uri = here.zip(name.to_str()).filter(|_| !is_link).map(|(here, name)| uri::join(here, name));
    Some(Folder { path, uri, depth: depth + 1, below_hidden: below_hidden || hidden(&text) })
}

/// The real path of a folder, and its canonical URI or why it has none; `None` for what is gone.
fn resolved(path: PathBuf, uri: Option<String>) -> Option<(PathBuf, std::result::Result<String, String>)> {
    if let Some(uri) = uri {
        return Some((path, Ok(uri)));
    }
    let real = std::fs::canonicalize(path).ok()?;
    let uri = match real.to_str() {
        Some(text) => uri::canonical(text).map_err(|e| e.to_string()),
        None => Err("the name is not UTF-8".into()),
    };
    Some((real, uri))
}

async fn walk_remote(lake: &Lake, root: &str, known: &BTreeSet<String>) -> Found {
    let mut found = Found::default();
    let mut level = vec![(root.to_string(), false)];
    for depth in 0..=MAX_DEPTH {
        let listed: Vec<(String, bool, Result<(Vec<String>, Weight)>)> = stream::iter(std::mem::take(&mut level))
            .map(|(dir, below_hidden)| async move {
                let children = children(lake, &dir).await;
                (dir, below_hidden, children)
            })
            .buffer_unordered(LISTS)
            .collect()
            .await;
        for (dir, below_hidden, children) in listed {
            let (names, weight) = match children {
                Ok(children) => children,
                Err(e) => {
                    found.unreadable.push((dir, e.to_string()));
                    continue;
                }
            };
            found.exists |= depth > 0 || !names.is_empty() || weight.objects > 0;
            if names.iter().any(|n| n == "_versions") {
                if below_hidden {
                    found.hidden.insert(dir)
                } else {
                    found.datasets.insert(dir)
                };
                continue;
            }
            if weight.objects > 0 {
                found.loose.insert(dir.clone(), weight);
            }
            found.reserved.extend(names.iter().filter(|n| reserved(n)).map(|n| uri::join(&dir, n)));
            for name in names.iter().filter(|n| !reserved(n) && !n.is_empty()) {
                let (below, is_hidden) = (uri::join(&dir, name), below_hidden || hidden(name));
                match (known.contains(&below), is_hidden) {
                    (true, true) => _ = found.hidden.insert(below),
                    (true, false) => _ = found.datasets.insert(below),
                    (false, _) if depth == MAX_DEPTH => found.unreadable.push((below, TOO_DEEP.into())),
                    (false, _) => level.push((below, is_hidden)),
                }
            }
        }
        if level.is_empty() {
            break;
        }
    }
    found
}

/// The names of the "directories" right below a URI, and what lies directly in it.
async fn children(lake: &Lake, dir: &str) -> Result<(Vec<String>, Weight)> {
    let place = lake.place(dir).await?;
    let prefix = (!place.path.as_ref().is_empty()).then(|| place.path.clone());
    let listed = place
        .objects()
        .list_with_delimiter(prefix.as_ref())
        .await
        .map_err(|e| Error::store("listing", dir, e).with_kind(Kind::Transient))?;
    let mut weight = Weight::default();
    listed.objects.iter().for_each(|meta| weight.add(meta.size));
    let names = listed.common_prefixes.iter().filter_map(|p| p.filename().map(String::from)).collect();
    Ok((names, weight))
}
