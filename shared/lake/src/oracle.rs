//! What a dataset's directory may hold after a test (design, "Tests": reconcile as an oracle).
//!
//! The classes are those of [`crate::classes`], so that a test's oracle and the operator's report cannot differ. Beside them:
//! every manifest reads, every row of HEAD can be read, every tag and branch opens, and on a local disk no half-written upload
//! hides from the listing.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use chrono::Utc;
use futures::TryStreamExt;
use lance::Dataset;

use crate::classes::{Absent, Ages, Class, Classed};
use crate::discover::{QUARANTINE, discover};
use crate::examine::{Examination, Examined, confirm};
use crate::listing::Listing;
use crate::look::{Look, Looked, look};
use crate::refs::CloneGraph;
use crate::{Error, Lake, Result, uri};

/// What may be left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// Nothing: every object is live, history or foreign.
    None,
    /// What a killed or lost run leaves: objects of kinds we know that nobody names (data and deletion files, sidecars, index
    /// directories, transactions, staged manifests, temporary files), and a full quarantine.
    Explained,
}

/// One thing that should not be so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unexplained {
    /// The dataset (or the root, for what belongs to none).
    pub uri: String,
    /// The object, if it is about one, relative to the dataset.
    pub path: Option<String>,
    /// What is wrong, in words.
    pub what: String,
}

impl std::fmt::Display for Unexplained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{} {path}: {}", self.uri, self.what),
            None => write!(f, "{}: {}", self.uri, self.what),
        }
    }
}

/// Checks every dataset at or under `root` (canonical URI), hidden ones included, and the root's quarantine. The registry is not
/// looked into. Empty: all is as it should be.
pub async fn check(lake: &Lake, root: &str, leftovers: Leftovers) -> Vec<Unexplained> {
    let mut out = Report { leftovers, uri: root.to_string(), found: Vec::new() };
    let found = discover(lake, root).await;
    for (place, why) in &found.unreadable {
        out.say(None, format!("{place} could not be read: {why}"));
    }
    let all: BTreeSet<String> = found.datasets.union(&found.hidden).cloned().collect();
    if all.is_empty() {
        out.say(None, "no dataset is here".into());
    }
    let (mut graph, mut looks) = (CloneGraph::default(), Vec::new());
    for dataset in &all {
        out.uri.clone_from(dataset);
        match look(lake, dataset, Utc::now()).await {
            Ok(Looked::Dataset(look)) => {
                graph.add(dataset, look.reads.clone());
                nested(lake, &look, &mut graph).await;
                looks.push(*look);
            }
            Ok(Looked::DeclaredOnly) => {}
            Ok(Looked::Nothing) => out.say(None, "it has no manifest".into()),
            Err(e) => {
                graph.add_unread(dataset.clone());
                out.say(None, e.to_string());
            }
        }
    }
    for look in looks {
        out.uri.clone_from(&look.uri);
        dataset(lake, look, &graph, &mut out).await;
    }
    if !all.contains(root) {
        out.uri = root.to_string();
        quarantine(lake, root, &mut out).await;
    }
    out.found
}

/// What datasets nested in this one read: no walk finds them, and each may be a clone.
async fn nested(lake: &Lake, outer: &Look, graph: &mut CloneGraph) {
    for inner in outer.nested_uris() {
        match look(lake, &inner, Utc::now()).await {
            Ok(Looked::Dataset(look)) => graph.add(&inner, look.reads),
            Ok(_) => {}
            Err(_) => graph.add_unread(inner),
        }
    }
}

struct Report {
    leftovers: Leftovers,
    uri: String,
    found: Vec<Unexplained>,
}

impl Report {
    fn say(&mut self, path: Option<&str>, what: String) {
        self.found.push(Unexplained { uri: self.uri.clone(), path: path.map(String::from), what });
    }

    fn object(&mut self, object: &Classed) {
        let allowed = match object.class {
            Class::Live | Class::History | Class::Foreign => true,
            // Only kinds we know become these two.
            Class::Orphan | Class::Young | Class::Quarantine => self.leftovers == Leftovers::Explained,
            Class::Unknown => false,
        };
        if !allowed {
            self.say(Some(&object.path), format!("{}: {}", object.class.as_str(), object.reason));
        }
    }

    fn absent(&mut self, absent: &Absent) {
        let what = match absent.found {
            None => format!("missing: {}", absent.reason),
            Some(found) => {
                format!("it has {found} bytes, recorded {}: {}", absent.recorded.unwrap_or_default(), absent.reason)
            }
        };
        self.say(Some(&absent.path), what);
    }
}

async fn dataset(lake: &Lake, first: Look, graph: &CloneGraph, out: &mut Report) {
    let keep = graph.keep_set(&first.uri);
    // The test's clock is the store's: both are this machine's.
    let ages = Ages { now: Utc::now(), longest_write: Duration::ZERO };
    let Examined { look, classes, .. } = match confirm(lake, first, &keep, &ages).await {
        Ok(Examination::Dataset(examined)) => *examined,
        Ok(_) => return out.say(None, "it went away between two looks".into()),
        Err(e) => return out.say(None, e.to_string()),
    };
    for (path, why) in look.unreadable.iter().chain(&look.unreadable_refs) {
        out.say(Some(path), format!("it cannot be read: {why}"));
    }
    classes.objects.iter().for_each(|object| out.object(object));
    classes.missing.iter().for_each(|absent| out.absent(absent));
    opens(lake, &look, out).await;
    if let Some(root) = uri::local_path(&look.uri) {
        for path in half_written(&root) {
            if out.leftovers == Leftovers::None {
                out.say(Some(&path), "an upload that did not end, which a listing hides".into());
            }
        }
    }
}

/// HEAD's rows, tags and branches.
async fn opens(lake: &Lake, look: &Look, out: &mut Report) {
    let head = match lake.open(&look.uri).await {
        Ok(head) => head,
        Err(e) => return out.say(None, e.to_string()),
    };
    match rows(&head, &look.uri).await {
        Ok(rows) if rows == look.head.rows() => {}
        Ok(rows) => out.say(None, format!("HEAD reads {rows} rows and records {}", look.head.rows())),
        Err(e) => out.say(None, e.to_string()),
    }
    for name in look.tags.keys() {
        if let Err(e) = opened(&head, &look.uri, name.as_str(), "opening the tag").await {
            out.say(Some(name), e.to_string());
        }
    }
    for name in look.branches.keys() {
        if let Err(e) = opened(&head, &look.uri, (name.as_str(), None), "opening the branch").await {
            out.say(Some(name), e.to_string());
        }
    }
}

async fn opened(
    head: &Dataset,
    uri: &str,
    reference: impl Into<lance::dataset::refs::Ref>,
    doing: &str,
) -> Result<u64> {
    let at = head.checkout_version(reference).await.map_err(|e| Error::lance(doing, uri, e))?;
    rows(&at, uri).await
}

/// Reads every column of every row and counts.
async fn rows(dataset: &Dataset, uri: &str) -> Result<u64> {
    let failed = |e| Error::lance("reading every row", uri, e);
    let mut stream = dataset.scan().try_into_stream().await.map_err(failed)?;
    let mut rows = 0;
    while let Some(batch) = stream.try_next().await.map_err(failed)? {
        rows += batch.num_rows() as u64;
    }
    Ok(rows)
}

async fn quarantine(lake: &Lake, root: &str, out: &mut Report) {
    if out.leftovers == Leftovers::Explained {
        return;
    }
    let listed = async {
        let place = lake.place(&uri::join(root, QUARANTINE)).await?;
        Listing::read(&place).await
    };
    match listed.await {
        Ok(listing) => {
            for entry in listing.entries {
                out.say(Some(&format!("{QUARANTINE}/{}", entry.path)), "in quarantine".into());
            }
        }
        Err(e) => out.say(None, e.to_string()),
    }
}

/// Files that the local object store writes before it renames (`<name>#<number>`) and leaves out of its listings.
fn half_written(root: &Path) -> Vec<String> {
    let (mut out, mut queue) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(dir) = queue.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let number = name.to_str().and_then(|n| n.rsplit_once('#')).map(|(_, n)| n);
            if path.is_dir() && !path.is_symlink() {
                queue.push(path);
            } else if number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) {
                out.push(path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned());
            }
        }
    }
    out.sort();
    out
}
