//! Slices of a compaction that other processes execute, and results that were stored before their commit (design, "Slices").
//!
//! Lance's serialised tasks are not a wire format. A slice therefore carries names only (the fragments and the files that they
//! had at the read version, which are compared before anything is read), and a result carries Lance's own value beside the
//! Lance version that wrote it: another version does not interpret it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lance::Dataset;
use lance::dataset::optimize::RewriteResult;
use lance_table::format::Fragment;
use object_store::ObjectStoreExt as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Rewritten, Settings, carry};
use crate::handle::Place;
use crate::{Error, Kind, LANCE_VERSION, Lake, Result};

/// One slice of a compaction: tasks, bound to one version by the names of all their files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// The Lance version of the process that made it; a process of another one hands it back.
    pub lance: String,
    /// The version that it was planned on.
    pub read_version: u64,
    /// How its tasks are executed.
    pub settings: Settings,
    /// Runs of neighbouring fragments.
    pub tasks: Vec<Vec<Source>>,
}

/// A fragment as a slice names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its id.
    pub id: u64,
    /// Its data files, and its deletion file if it has one.
    pub files: BTreeSet<String>,
}

/// A slice found as it was planned.
pub struct Opened {
    /// The dataset at the read version.
    pub handle: Arc<Dataset>,
    /// The tasks by fragment ids, as [`super::execute`] takes them.
    pub tasks: Vec<Vec<u64>>,
}

/// The results of one slice, as they are stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    /// The Lance version that wrote them.
    pub lance: String,
    /// Lance's own values.
    results: Vec<Value>,
}

impl Slice {
    /// Names tasks (each a run of fragment ids of `dataset`'s version).
    ///
    /// # Errors
    /// `Conflict` for a fragment that this version does not have, `Refused` for one with files under another base.
    pub fn of(dataset: &Dataset, tasks: &[Vec<u64>], settings: &Settings) -> Result<Self> {
        let by_id: BTreeMap<u64, &Fragment> = dataset.fragments().iter().map(|f| (f.id, f)).collect();
        let source = |id: &u64| {
            let fragment = by_id
                .get(id)
                .ok_or_else(|| Error::new(Kind::Conflict, "naming the planned fragments", dataset.uri()))?;
            source(fragment, dataset.uri())
        };
        Ok(Self {
            lance: LANCE_VERSION.into(),
            read_version: dataset.version_id(),
            settings: settings.clone(),
            tasks: tasks.iter().map(|ids| ids.iter().map(source).collect()).collect::<Result<_>>()?,
        })
    }

    /// Opens the dataset at the read version and compares every name of the slice with its manifest.
    ///
    /// # Errors
    /// As [`Lake::open_version`]; `Conflict` when the manifest does not name just these files: the version is not the one that
    /// the slice was planned on.
    pub async fn open(&self, lake: &Lake, uri: &str) -> Result<Opened> {
        let handle = Arc::new(lake.open_version(uri, self.read_version).await?);
        let by_id: BTreeMap<u64, &Fragment> = handle.fragments().iter().map(|f| (f.id, f)).collect();
        for named in self.tasks.iter().flatten() {
            let same = match by_id.get(&named.id) {
                Some(fragment) => source(fragment, uri)? == *named,
                None => false,
            };
            if !same {
                let doing = format!("comparing fragment {} of a slice with version {}", named.id, self.read_version);
                return Err(Error::new(Kind::Conflict, doing, uri).remedy("the next pass plans it again"));
            }
        }
        let tasks = self.tasks.iter().map(|t| t.iter().map(|s| s.id).collect()).collect();
        Ok(Opened { handle, tasks })
    }
}

impl Stored {
    /// Results as they are stored. From then on they belong to whoever reads them: see [`Stored::read`].
    ///
    /// # Errors
    /// `Bug` when Lance's value cannot be written as JSON.
    pub fn of(done: &[Rewritten], uri: &str) -> Result<Self> {
        let results = done
            .iter()
            .map(|d| serde_json::to_value(&d.result))
            .collect::<std::result::Result<_, _>>()
            .map_err(|e| Error::new(Kind::Bug, "writing a rewrite's result", uri).because(e))?;
        Ok(Self { lance: LANCE_VERSION.into(), results })
    }

    /// Reads results back and holds them against the slice: they replace fragments of it as it named them, and what they wrote
    /// lies under the dataset. What comes of it is marked as stored: no commit of it that is lost deletes its data files, for
    /// another process may commit them.
    ///
    /// # Errors
    /// `Refused` for another Lance version's results and for what does not fit the slice.
    pub fn read(&self, slice: &Slice, uri: &str) -> Result<Vec<Rewritten>> {
        if self.lance != LANCE_VERSION {
            return Err(refused(uri, &format!("it was written by Lance {} and this is {LANCE_VERSION}", self.lance)));
        }
        let named: BTreeMap<u64, &Source> = slice.tasks.iter().flatten().map(|s| (s.id, s)).collect();
        let mut seen = BTreeSet::new();
        self.results
            .iter()
            .map(|value| {
                let result = RewriteResult::deserialize(value)
                    .map_err(|e| Error::new(Kind::Refused, "reading a stored rewrite", uri).because(e))?;
                if result.read_version != slice.read_version {
                    return Err(refused(uri, "it was made on another version than its slice"));
                }
                for old in &result.original_fragments {
                    let fits = named.get(&old.id).is_some_and(|s| source(old, uri).is_ok_and(|o| o == **s));
                    if !fits || !seen.insert(old.id) {
                        return Err(refused(uri, "it replaces fragments that are not its slice's"));
                    }
                }
                for new in &result.new_fragments {
                    let under = |p: &str, base: Option<u32>| base.is_none() && is_plain(p);
                    let fits = new.files.iter().all(|f| under(&f.path, f.base_id));
                    if !fits || new.deletion_file.is_some() || !new.overlays.is_empty() || new.files.is_empty() {
                        return Err(refused(uri, "it names files that do not lie under the dataset's own data/"));
                    }
                }
                Ok(Rewritten { result, stored: true, copied: false })
            })
            .collect()
    }
}

/// Whether a result can still be committed: HEAD has its old fragments as they were, but for rows deleted since, and its new files are
/// there in full.
///
/// # Errors
/// `Transient` when the store does not say.
pub async fn is_current(place: &Place, head: &Dataset, done: &Rewritten) -> Result<bool> {
    if !carry::holds(head, &done.result) {
        return Ok(false);
    }
    for file in done.result.new_fragments.iter().flat_map(|f| &f.files) {
        let path = place.below(&format!("data/{}", file.path))?;
        match place.objects().head(&path).await {
            Ok(meta) if file.file_size_bytes.get().is_none_or(|n| u64::from(n) == meta.size) => {}
            Ok(_) | Err(object_store::Error::NotFound { .. }) => return Ok(false),
            Err(e) => return Err(Error::store(format!("looking for {path}"), &place.uri, e)),
        }
    }
    Ok(true)
}

fn source(fragment: &Fragment, uri: &str) -> Result<Source> {
    let other = fragment.files.iter().any(|f| f.base_id.is_some())
        || fragment.deletion_file.as_ref().is_some_and(|d| d.base_id.is_some());
    if other {
        return Err(refused(uri, "a fragment's files lie under another base"));
    }
    let mut files: BTreeSet<String> = fragment.files.iter().map(|f| f.path.clone()).collect();
    files.extend(fragment.overlays.iter().map(|o| format!("{o:?}")));
    files.extend(fragment.deletion_file.iter().map(|d| format!("_deletions/{}-{}", d.read_version, d.id)));
    Ok(Source { id: fragment.id, files })
}

/// A relative path of plain names, which cannot lead out of the folder that it is below.
fn is_plain(path: &str) -> bool {
    !path.contains('\\') && !path.contains(':') && path.split('/').all(|n| !matches!(n, "" | "." | ".."))
}

fn refused(uri: &str, why: &str) -> Error {
    Error::new(Kind::Refused, "taking up a stored rewrite", uri).because(std::io::Error::other(why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_out_of_the_dataset_is_no_plain_path() {
        assert!(is_plain("a.lance") && is_plain("sub/a.lance"));
        for bad in ["", "/a.lance", "../a.lance", "a/../../b", "s3://other/a", "a//b", "./a", "a\\..\\b", "a/"] {
            assert!(!is_plain(bad), "{bad}");
        }
    }
}
