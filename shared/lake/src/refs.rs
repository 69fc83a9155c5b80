//! Who names which file: the keep-set and the clone graph.
//!
//! The keep-set is every path that any manifest names, attached or detached, on any branch (design, "References"). The
//! clone graph's edge is a base id USED by any manifest of any version; a base that is merely still listed is no edge.
//! The type [`KeepSet`] is either complete or says why not, and only a complete one reaches code that deletes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lance_table::feature_flags::can_read_dataset;
use roaring::RoaringBitmap;

use crate::manifest::{Facts, Named};
use crate::uri;

/// Which manifests (by ordinal in [`crate::look::Look::manifests`]) name each file of this dataset's own root.
#[derive(Debug, Clone, Default)]
pub struct Uses {
    files: HashMap<String, RoaringBitmap>,
    sizes: HashMap<String, (u64, u32)>,
    unseen: Unseen,
}

/// What some manifest may name in ways that this crate does not read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unseen {
    /// Some manifest has managed blobs: `.blob` files are named inside data too.
    pub managed_blobs: bool,
    /// Some manifest has feature flags this build does not know: it may name files by fields we do not see.
    pub feature_flags: bool,
}

/// Files of other datasets that this one's manifests read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum Target {
    /// The base resolved to this canonical URI.
    At(String),
    /// The base was written relative to a folder we do not know; these are its last segments.
    EndsIn(String),
    /// The base cannot be resolved at all: every dataset may be its target.
    Anywhere(String),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::At(at) => f.write_str(at),
            Target::EndsIn(tail) => write!(f, "…/{tail}"),
            Target::Anywhere(text) => write!(f, "a base that cannot be resolved ({text})"),
        }
    }
}

impl Target {
    /// Whether the dataset at `uri` may be what this base names.
    pub fn may_be(&self, uri: &str) -> bool {
        match self {
            Target::At(at) => uri::within(at, uri) || uri::within(uri, at),
            Target::EndsIn(tail) => within_tail(tail, uri).is_some(),
            Target::Anywhere(_) => true,
        }
    }
}

/// The folder below the dataset at `uri` that a base ending in `tail` may be: empty for the root, `tree/<branch>` for a branch.
fn within_tail<'t>(tail: &'t str, uri: &str) -> Option<&'t str> {
    let ends = |root: &str| uri == root || uri.strip_suffix(root).is_some_and(|above| above.ends_with('/'));
    if ends(tail) {
        return Some("");
    }
    let branch = tail.match_indices("/tree/").find(|(at, _)| ends(&tail[..*at])).map(|(at, _)| &tail[at + 1..]);
    // A writer that stood in the dataset's own folder: any dataset's branch may be meant.
    branch.or_else(|| tail.starts_with("tree/").then_some(tail))
}

/// What one dataset reads of others: target and the files below it.
pub type Reads = BTreeMap<Target, BTreeSet<String>>;

impl Uses {
    /// Records everything one manifest names. `tree` is empty for the main tree; `own` is the dataset's canonical URI.
    pub fn add(&mut self, ordinal: u32, tree: &str, own: &str, facts: &Facts, reads: &mut Reads) {
        let bases = facts.bases();
        for named in facts.named() {
            let Some(base) = named.base else {
                self.mark(join(tree, &named.path), named.size, ordinal);
                continue;
            };
            let (target, path) = resolve(base, &bases, &named, own);
            match own_path(&target, own, &path) {
                Some(path) => self.mark(path, named.size, ordinal),
                None => {
                    reads.entry(target).or_default().insert(path);
                }
            }
        }
        for named in facts.index_files() {
            let path = match named.base {
                None => Some(join(tree, &named.path)),
                Some(base) => {
                    let (target, path) = resolve(base, &bases, &named, own);
                    own_path(&target, own, &path)
                }
            };
            if let (Some(path), Some(size)) = (path, named.size) {
                self.sizes.insert(path, (size, ordinal));
            }
        }
        self.unseen.managed_blobs |= facts.manifest.has_managed_blobs();
        self.unseen.feature_flags |= !can_read_dataset(facts.manifest.reader_feature_flags);
    }

    fn mark(&mut self, path: String, size: Option<u64>, ordinal: u32) {
        if let Some(size) = size {
            self.sizes.insert(path.clone(), (size, ordinal));
        }
        self.files.entry(path).or_default().insert(ordinal);
    }

    /// The same of manifests that were read before, by the places that they have now.
    pub(crate) fn add_known(&mut self, earlier: &Uses, now: &HashMap<u32, u32>) {
        for (path, by) in &earlier.files {
            self.files.entry(path.clone()).or_default().extend(by.iter().filter_map(|o| now.get(&o)));
        }
        for (path, (size, ordinal)) in &earlier.sizes {
            let Some(ordinal) = now.get(ordinal) else { continue };
            let last = self.sizes.entry(path.clone()).or_insert((*size, *ordinal));
            if last.1 < *ordinal {
                *last = (*size, *ordinal);
            }
        }
        self.unseen.managed_blobs |= earlier.unseen.managed_blobs;
        self.unseen.feature_flags |= earlier.unseen.feature_flags;
    }

    /// Recorded sizes in bytes of data files and of files in index directories, each with the last manifest that records it.
    pub fn sizes(&self) -> impl Iterator<Item = (&str, u64, u32)> {
        self.sizes.iter().map(|(path, (size, ordinal))| (path.as_str(), *size, *ordinal))
    }

    /// The recorded size of a file in bytes, if any manifest records it.
    pub fn size_of(&self, path: &str) -> Option<u64> {
        self.sizes.get(path).map(|(size, _)| *size)
    }

    /// What the manifests may name unseen.
    pub fn unseen(&self) -> Unseen {
        self.unseen
    }

    /// The manifests that name a file (or whole index directory), if any.
    pub fn of(&self, path: &str) -> Option<&RoaringBitmap> {
        self.files.get(path)
    }

    /// Whether only manifests in `going` name the file; false for a file that nobody names.
    pub fn only_by(&self, path: &str, going: &RoaringBitmap) -> bool {
        self.files.get(path).is_some_and(|by| by.is_subset(going))
    }

    /// All named paths.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }
}

fn join(tree: &str, path: &str) -> String {
    if tree.is_empty() { path.to_string() } else { format!("{tree}/{path}") }
}

/// The base as a target, and the path below it. A base that is no dataset root holds data files directly.
fn resolve(base: u32, bases: &BTreeMap<u32, (String, bool)>, named: &Named, own: &str) -> (Target, String) {
    let Some((typed, is_root)) = bases.get(&base) else {
        return (Target::Anywhere(format!("base {base} is not listed")), named.path.clone());
    };
    let path =
        if *is_root { named.path.clone() } else { named.path.strip_prefix("data/").unwrap_or(&named.path).to_string() };
    (target(typed, own), path)
}

/// A base URI as its writer typed it: absolute, relative, or symlinked.
pub fn target(typed: &str, own: &str) -> Target {
    let plain = plain_scheme(typed.trim());
    let typed = plain.as_str();
    if typed.is_empty() {
        return Target::Anywhere("an empty base path".into());
    }
    if typed.contains("://") || typed.starts_with('/') || typed.starts_with("file:") {
        return match uri::canonical(typed) {
            Ok(at) => Target::At(at),
            Err(_) => Target::Anywhere(typed.to_string()),
        };
    }
    // Relative to a folder that only the writer knew, or to its home: what can be said is how it ends.
    let typed = typed.strip_prefix("~/").unwrap_or(typed);
    let mut tail: Vec<String> = Vec::new();
    for segment in typed.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                tail.pop();
            }
            s => tail.push(s.to_string()),
        }
    }
    if tail.is_empty() {
        return Target::Anywhere(typed.to_string());
    }
    // In the spelling of canonical URIs, without the slash that `join` puts first.
    let encoded = tail.iter().fold(String::new(), |acc, s| uri::join(&acc, s));
    let ends = &encoded[1..];
    match within_tail(ends, own) {
        Some("") => Target::At(own.to_string()),
        Some(dir) if dir != ends => Target::At(format!("{own}/{dir}")),
        // `tree/…` alone may be ours and may be another's: the keep-set of each holds it.
        _ => Target::EndsIn(ends.to_string()),
    }
}

/// The same place under the scheme that a walk gives it: Lance has others for stores that it wraps.
fn plain_scheme(typed: &str) -> String {
    if let Some(rest) = typed.strip_prefix("file-object-store://") {
        return format!("file://{rest}");
    }
    match typed.strip_prefix("s3+ddb://") {
        Some(rest) => format!("s3://{}", rest.split('?').next().unwrap_or_default()),
        None => typed.to_string(),
    }
}

/// Schemes of stores; what has another one may be any of our datasets under a name that is not known here.
const SCHEMES: [&str; 8] = ["file", "s3", "gs", "az", "abfs", "abfss", "oss", "memory"];

/// Whether a base that is no dataset of the estate may still be one under another name, as its writer typed it (design,
/// "References": what cannot be resolved makes every possible target incomplete): relative to a folder, a local path that leads
/// nowhere (a link that was renamed or removed), or a scheme that is not known.
fn may_be_anybody(target: &Target) -> bool {
    match target {
        Target::At(at) => {
            let scheme = at.split("://").next().unwrap_or_default();
            !SCHEMES.contains(&scheme) || uri::local_path(at).is_some_and(|path| !path.exists())
        }
        Target::EndsIn(_) => true,
        Target::Anywhere(_) => false,
    }
}

/// The path relative to our own root, if the target is our root, lies in it, or lies above it and the path leads into it.
fn own_path(target: &Target, own: &str, path: &str) -> Option<String> {
    let Target::At(at) = target else { return None };
    if !uri::within(at, own) && !uri::within(own, at) {
        return None;
    }
    relative(at, own, &BTreeSet::from([path.to_string()])).into_iter().next()
}

/// Every path that must stay because something outside the going versions names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeepSet {
    /// All that other datasets read of this one; together with [`Uses`] nothing is missing.
    Complete(BTreeSet<String>),
    /// What is missing, for the refusal `references_incomplete`.
    Incomplete(Vec<String>),
}

/// The clone graph of an estate: what every dataset reads of others.
#[derive(Debug, Clone, Default)]
pub struct CloneGraph {
    /// Of those that read anything of others: a keep-set is found among them.
    reads: BTreeMap<String, Reads>,
    /// Every dataset, also one that reads nothing of others.
    known: BTreeSet<String>,
    /// Bases that lead to no known dataset and may be any of them under another name.
    lost: BTreeSet<Target>,
    unread: Vec<String>,
}

impl CloneGraph {
    /// Adds one dataset's reads; also of one that reads nothing of others: it may be what somebody's base names.
    pub fn add(&mut self, uri: &str, reads: Reads) {
        self.lost.retain(|target| !target.may_be(uri));
        self.known.insert(uri.to_string());
        let lost = |t: &&Target| may_be_anybody(t) && !self.known.iter().any(|known| t.may_be(known));
        self.lost.extend(reads.keys().filter(lost).cloned().collect::<Vec<_>>());
        if !reads.is_empty() {
            self.reads.insert(uri.to_string(), reads);
        }
    }

    /// Records a dataset or bucket that could not be read: it may read anything.
    pub fn add_unread(&mut self, what: impl Into<String>) {
        self.unread.push(what.into());
    }

    /// What others read of `uri`, or why that cannot be said.
    pub fn keep_set(&self, uri: &str) -> KeepSet {
        let mut keep = BTreeSet::new();
        let mut why: Vec<String> = self.unread.iter().map(|what| format!("{what} could not be read")).collect();
        // Under a base of its own that cannot be resolved it may name files of its own root.
        for target in self.reads.get(uri).into_iter().flat_map(Reads::keys) {
            if let Target::Anywhere(text) = target {
                why.push(format!("it reads files under a base that cannot be resolved ({text})"));
            }
        }
        for (from, reads) in &self.reads {
            for target in reads.keys().filter(|t| self.lost.contains(t) && !t.may_be(uri)) {
                why.push(format!("{from} reads files of {target}, which is no dataset that is known"));
            }
            for (target, files) in reads.iter().filter(|(target, _)| target.may_be(uri)) {
                match target {
                    Target::Anywhere(_) if from == uri => {}
                    Target::Anywhere(text) => {
                        why.push(format!("{from} reads files under a base that cannot be resolved ({text})"));
                    }
                    Target::At(at) => keep.extend(relative(at, uri, files)),
                    Target::EndsIn(tail) => {
                        let dir = decode(within_tail(tail, uri).unwrap_or_default());
                        keep.extend(files.iter().map(|f| join(&dir, f)));
                    }
                }
            }
        }
        if why.is_empty() { KeepSet::Complete(keep) } else { KeepSet::Incomplete(why) }
    }

    /// Datasets with a base of theirs whose files may lie in any dataset: it cannot be resolved, or leads to none that is known. While
    /// there is one, the keep-set of no other dataset is complete.
    pub fn unresolved(&self) -> impl Iterator<Item = (&str, &Target)> {
        let bases = self.reads.iter().flat_map(|(from, reads)| reads.keys().map(move |target| (from.as_str(), target)));
        bases.filter(|(_, target)| matches!(target, Target::Anywhere(_)) || self.lost.contains(*target))
    }

    /// What a dataset reads of others: as its manifests say it, where that is, and the files there. Without what is
    /// [`CloneGraph::unresolved`] or may be one of several datasets.
    pub fn read_by(&self, uri: &str) -> impl Iterator<Item = (&Target, String, &BTreeSet<String>)> {
        let reads = self.reads.get(uri).into_iter().flatten();
        reads.filter_map(|(target, files)| Some((target, self.folder(target)?, files)))
    }

    fn folder(&self, target: &Target) -> Option<String> {
        let tail = match target {
            Target::At(at) => return (!self.lost.contains(target)).then(|| at.clone()),
            Target::EndsIn(tail) => tail,
            Target::Anywhere(_) => return None,
        };
        let mut found = self.known.iter().filter_map(|uri| Some((uri, within_tail(tail, uri)?)));
        let (uri, dir) = found.next().filter(|_| found.next().is_none())?;
        Some(if dir.is_empty() { uri.clone() } else { format!("{uri}/{dir}") })
    }

    /// The datasets that read files of `uri`.
    pub fn readers(&self, uri: &str) -> Vec<&str> {
        self.reads
            .iter()
            .filter(|(from, reads)| from.as_str() != uri && reads.keys().any(|t| t.may_be(uri)))
            .map(|(from, _)| from.as_str())
            .collect()
    }
}

fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Files below `at`, as paths relative to `uri` (one lies within the other).
fn relative(at: &str, uri: &str, files: &BTreeSet<String>) -> Vec<String> {
    match at.strip_prefix(uri) {
        Some("") => files.iter().cloned().collect(),
        Some(rest) => {
            let dir = decode(rest.trim_start_matches('/'));
            files.iter().map(|f| format!("{dir}/{f}")).collect()
        }
        // The base lies above the dataset: only what points into it counts.
        None => {
            let rest = decode(uri[at.len()..].trim_start_matches('/'));
            files.iter().filter_map(|f| f.strip_prefix(&format!("{rest}/")).map(String::from)).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(files: &[&str]) -> BTreeSet<String> {
        files.iter().map(|s| s.to_string()).collect()
    }

    #[test]
    fn a_clones_files_are_kept_however_its_base_was_typed() {
        for typed in
            ["file:///lake/gold/source", "/lake/gold/source/", "gold/source", "./gold/source", "../gold/source"]
        {
            let mut graph = CloneGraph::default();
            graph.add("file:///lake/gold/source", Reads::new());
            graph.add(
                "file:///lake/gold/clone",
                Reads::from([(target(typed, "file:///lake/gold/clone"), set(&["data/a.lance"]))]),
            );
            assert_eq!(
                graph.keep_set("file:///lake/gold/source"),
                KeepSet::Complete(set(&["data/a.lance"])),
                "{typed}"
            );
            assert_eq!(graph.keep_set("file:///lake/gold/other"), KeepSet::Complete(set(&[])), "{typed}");
        }
    }

    #[test]
    fn a_base_that_leads_to_no_known_dataset_may_be_any_of_them() {
        let lost = |typed: &str| {
            let mut graph = CloneGraph::default();
            graph.add("file:///lake/source", Reads::new());
            graph.add("file:///lake/c", Reads::from([(target(typed, "file:///lake/c"), set(&["data/a.lance"]))]));
            graph.keep_set("file:///lake/source")
        };
        for typed in ["renamed/link", "~/other/name", "/no/such/link/source-by-link", "odd-store://x/source-by-link"] {
            let found = lost(typed);
            assert!(
                matches!(&found, KeepSet::Incomplete(why) if why[0].contains("no dataset that is known")),
                "{typed}: {found:?}"
            );
        }
        for typed in ["file-object-store:///lake/source", "~/lake/source", "lake/source"] {
            assert_eq!(lost(typed), KeepSet::Complete(set(&["data/a.lance"])), "{typed}");
        }
        // A bucket outside of the estate is nobody's other name.
        assert_eq!(lost("s3://elsewhere/base"), KeepSet::Complete(set(&[])));
        let at = target("s3+ddb://b/t?ddbTableName=x", "s3://b/c");
        assert_eq!(at, Target::At("s3://b/t".into()));
    }

    #[test]
    fn a_base_is_lost_until_the_dataset_that_it_leads_to_is_known_in_whatever_order() {
        let (source, clone, other) = ("file:///lake/source", "file:///lake/clone", "file:///lake/other");
        let reads = Reads::from([(target("lake/source", clone), set(&["data/a.lance"]))]);
        let mut graph = CloneGraph::default();
        graph.add(other, Reads::new());
        graph.add(clone, reads);
        assert_eq!(graph.unresolved().map(|(from, _)| from).collect::<Vec<_>>(), [clone]);
        assert_eq!(graph.read_by(clone).count(), 0);
        assert!(matches!(graph.keep_set(other), KeepSet::Incomplete(_)));
        graph.add(source, Reads::new());
        assert_eq!(graph.unresolved().count(), 0);
        assert_eq!(graph.read_by(clone).map(|(_, folder, _)| folder).collect::<Vec<_>>(), [source]);
        assert_eq!(graph.keep_set(other), KeepSet::Complete(set(&[])));
        assert_eq!(graph.keep_set(clone), KeepSet::Complete(set(&[])));
        // One of two: neither is judged by it, and both keep the file.
        graph.add("file:///other/lake/source", Reads::new());
        assert_eq!((graph.unresolved().count(), graph.read_by(clone).count()), (0, 0));
    }

    #[test]
    fn what_cannot_be_read_or_resolved_makes_the_set_incomplete() {
        let mut graph = CloneGraph::default();
        graph.add_unread("s3://b/x");
        assert!(matches!(graph.keep_set("s3://b/y"), KeepSet::Incomplete(why) if why[0].contains("s3://b/x")));
        let mut graph = CloneGraph::default();
        graph.add("s3://b/c", Reads::from([(target("", "s3://b/c"), set(&["data/a.lance"]))]));
        assert!(matches!(graph.keep_set("s3://b/y"), KeepSet::Incomplete(_)));
    }

    #[test]
    fn a_branch_of_a_branch_names_the_branchs_files_however_its_base_was_typed() {
        let own = "file:///tree/lake/t";
        for typed in ["/tree/lake/t/tree/dev", "t/tree/dev", "../lake/t/tree/dev", "tree/lake/t/tree/dev"] {
            let at = target(typed, own);
            assert_eq!(own_path(&at, own, "data/a.lance").as_deref(), Some("tree/dev/data/a.lance"), "{typed}");
        }
        // Typed in the dataset's own folder: it may be ours and may be a clone of another's branch.
        let mut graph = CloneGraph::default();
        graph.add(own, Reads::from([(target("tree/dev", own), set(&["data/a.lance"]))]));
        for uri in [own, "file:///lake/other"] {
            assert_eq!(graph.keep_set(uri), KeepSet::Complete(set(&["tree/dev/data/a.lance"])), "{uri}");
        }
    }

    #[test]
    fn a_base_of_its_own_that_cannot_be_resolved_makes_the_set_incomplete() {
        let mut graph = CloneGraph::default();
        graph.add("s3://b/y", Reads::from([(target("", "s3://b/y"), set(&["data/a.lance"]))]));
        assert!(matches!(graph.keep_set("s3://b/y"), KeepSet::Incomplete(why) if why[0].contains("empty base path")));
    }

    #[test]
    fn a_base_above_the_dataset_that_leads_into_it_names_its_own_files() {
        let at = Target::At("file:///lake".into());
        assert_eq!(own_path(&at, "file:///lake/a%20b", "a b/data/1.lance").as_deref(), Some("data/1.lance"));
        assert_eq!(own_path(&at, "file:///lake/t", "other/data/1.lance"), None);
        let inside = Target::At("file:///lake/t/extra".into());
        assert_eq!(own_path(&inside, "file:///lake/t", "1.lance").as_deref(), Some("extra/1.lance"));
    }

    #[test]
    fn a_clone_of_a_branch_keeps_the_branchs_files() {
        let mut graph = CloneGraph::default();
        let at = target("file:///lake/t/tree/b", "file:///lake/c");
        graph.add("file:///lake/c", Reads::from([(at, set(&["data/a.lance"]))]));
        assert_eq!(graph.keep_set("file:///lake/t"), KeepSet::Complete(set(&["tree/b/data/a.lance"])));
    }
}
