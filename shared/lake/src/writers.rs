//! Is somebody else at long work on the table? (design, "Health" and "Yield")
//!
//! A compaction that lands makes a running `add_columns` or index build lose everything it wrote. Nothing announces such
//! work; what shows it is a young data or index file that no version names and that stays unnamed. A writer whose files
//! are named within seconds is not at long work, so nothing is concluded from one look: a file counts when it is still
//! there and still unnamed [`LONG_WORK`] after it was first seen, with the manifests read again in between.
//!
//! A data file that holds whole rows is an append's, an update's or a merge's: those survive a compaction, and an attempt of
//! theirs that lost a race leaves its file behind. Only files of some columns, and index files, speak of work that a commit
//! of ours would make fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use lance_file::reader::FileReader;
use lance_io::scheduler::{ScanScheduler, SchedulerConfig};
use lance_io::utils::CachedFileSize;
use object_store::ObjectStoreExt as _;

use crate::commit::Outputs;
use crate::handle::Place;
use crate::listing::{Entry, Kind, Listing, classify};
use crate::look::{Look, owner};
use crate::refs::{Reads, Uses};
use crate::{Error, Result, manifest};

/// How long a file must stay unnamed before it means that somebody is at work.
pub const LONG_WORK: Duration = Duration::from_secs(30);
/// A file later than the version that names it by more than this was copied: a writer's files come before its manifest.
const COPIED: i64 = 600;
/// A copy goes on for a while after the last named file that it wrote.
const COPY_SLACK: i64 = 5;
/// The longest pause between two looks at the manifests.
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// Data files whose columns are read per look.
const JUDGED_AT_ONCE: usize = 64;

/// A stretch of time whose files are explained: written by a run of ours that died or lost a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Its begin.
    pub from: DateTime<Utc>,
    /// Its end.
    pub until: DateTime<Utc>,
}

impl Span {
    /// Whether a file of this time is explained.
    pub fn covers(&self, at: DateTime<Utc>) -> bool {
        self.from <= at && at <= self.until
    }
}

/// Somebody is at long work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtWork {
    /// A file of theirs.
    pub path: String,
    /// When it was written.
    pub modified: DateTime<Utc>,
    /// How many such files there are.
    pub files: usize,
}

/// Young data and index files of the main tree that no version of the look names: path and time, oldest first. Pure.
///
/// A table that was copied has files that are younger than the versions that name them; what is as old as those says
/// nothing about a writer and is left out.
pub fn unnamed(look: &Look, window: Duration, now: DateTime<Utc>) -> Vec<Entry> {
    let copied = copied_until(look);
    let mut out: Vec<Entry> = look
        .listing
        .entries
        .iter()
        .filter(|e| young(e, window, now) && copied.is_none_or(|until| e.modified > until))
        .filter(|e| work_of(&e.path).is_some_and(|key| look.uses.of(&key).is_none()))
        .cloned()
        .collect();
    out.sort_by_key(|e| e.modified);
    out
}

fn young(entry: &Entry, window: Duration, now: DateTime<Utc>) -> bool {
    // A store whose clock runs ahead writes files of a near future: those are young too.
    now.signed_duration_since(entry.modified).abs().to_std().is_ok_and(|age| age < window)
}

/// The key under which a data or index file of the main tree would be named.
fn work_of(path: &str) -> Option<String> {
    let placed = classify(path);
    let is_work = matches!(placed.kind, Kind::Data | Kind::Sidecar { .. } | Kind::Index { .. });
    if is_work && placed.tree.is_empty() { owner(path) } else { None }
}

/// Until when the table was being copied, if it was: the last file that is later than the first version that names it.
fn copied_until(look: &Look) -> Option<DateTime<Utc>> {
    let lies = |modified: DateTime<Utc>, made: DateTime<Utc>| (modified - made).num_seconds() > COPIED;
    let first_named = |entry: &Entry| {
        let by = look.uses.of(&work_of(&entry.path)?)?;
        by.iter().filter_map(|i| look.manifests.get(i as usize)).map(|m| m.timestamp).min()
    };
    let files = look
        .listing
        .entries
        .iter()
        .filter(|e| first_named(e).is_some_and(|made| lies(e.modified, made)))
        .map(|e| e.modified);
    let manifests = look.manifests.iter().filter(|m| lies(m.modified, m.timestamp)).map(|m| m.modified);
    files.chain(manifests).max().map(|last| last + chrono::Duration::seconds(COPY_SLACK))
}

/// Watches one dataset for other people's long work, through a whole pass.
pub struct Watch {
    place: Place,
    window: Duration,
    /// What the look's versions name.
    named: Arc<Uses>,
    /// What later versions name.
    since: Uses,
    read: BTreeSet<String>,
    /// Unnamed files and when this process first saw them.
    seen: BTreeMap<String, (Instant, DateTime<Utc>)>,
    ours: BTreeSet<String>,
    /// The table's columns: a data file with all of them holds rows.
    columns: BTreeSet<String>,
    /// Data files whose columns are known.
    judged: BTreeSet<String>,
    /// Those that hold whole rows.
    rows: BTreeSet<String>,
    explained: Vec<Span>,
    copied_until: Option<DateTime<Utc>>,
}

impl Watch {
    /// Begins with what the look saw. `explained` are the times of our own dead or unlucky runs.
    pub fn new(place: Place, look: &Look, window: Duration, explained: Vec<Span>, now: DateTime<Utc>) -> Self {
        let mut watch = Self {
            place,
            window,
            named: look.uses.clone(),
            since: Uses::default(),
            read: look.versions().into_iter().map(|(_, m)| m.path.clone()).collect(),
            seen: BTreeMap::new(),
            ours: BTreeSet::new(),
            columns: look.head.manifest.schema.fields.iter().map(|f| f.name.clone()).collect(),
            judged: BTreeSet::new(),
            rows: BTreeSet::new(),
            explained,
            copied_until: copied_until(look),
        };
        let ago = now.signed_duration_since(look.at).to_std().unwrap_or_default();
        let at = Instant::now().checked_sub(ago).unwrap_or_else(Instant::now);
        watch.sight(&unnamed(look, window, now), at, now);
        watch
    }

    /// Whether nothing suspicious was seen so far.
    pub fn is_calm(&self) -> bool {
        self.seen.is_empty()
    }

    /// Files and index directories that this pass, or a slice of it, wrote itself.
    pub fn ours(&mut self, outputs: &Outputs) {
        self.ours.extend(outputs.files.iter().chain(&outputs.directories).cloned());
        let ours = &self.ours;
        self.seen.retain(|path, _| work_of(path).is_none_or(|key| !ours.contains(&key)));
    }

    fn sight(&mut self, entries: &[Entry], at: Instant, now: DateTime<Utc>) {
        for entry in entries.iter().filter(|e| young(e, self.window, now)) {
            let Some(key) = work_of(&entry.path) else { continue };
            let known = self.ours.contains(&key)
                || self.rows.contains(&entry.path)
                || self.named.of(&key).is_some()
                || self.since.of(&key).is_some()
                || self.copied_until.is_some_and(|until| entry.modified <= until)
                || self.explained.iter().any(|s| s.covers(entry.modified));
            if !known {
                self.seen.entry(entry.path.clone()).or_insert((at, entry.modified));
            }
        }
    }

    /// Lists data and index files again; before a commit.
    ///
    /// # Errors
    /// `Transient` when the listing failed.
    pub async fn look_again(&mut self, now: DateTime<Utc>) -> Result<()> {
        let listing = Listing::read_dirs(&self.place, &["data", "_indices"]).await?;
        self.seen.retain(|path, _| listing.get(path).is_some());
        self.sight(&listing.entries, Instant::now(), now);
        Ok(())
    }

    /// Waits until every suspicious file is named or gone (`None`), or one has stayed unnamed for [`LONG_WORK`]. Returns at
    /// once when nothing is suspicious.
    ///
    /// # Errors
    /// When the manifests that came since cannot be read: then it is not known who is at work.
    pub async fn at_work(&mut self) -> Result<Option<AtWork>> {
        let mut pause = Duration::from_millis(250);
        while !self.seen.is_empty() {
            self.read_new_versions().await?;
            self.dismiss_rows().await;
            let oldest = self.seen.iter().min_by_key(|(_, (at, modified))| (*at, *modified));
            let Some((path, (at, modified))) = oldest.map(|(p, s)| (p.clone(), *s)) else { break };
            if !self.exists(&path).await? {
                self.seen.remove(&path);
                continue;
            }
            let left = LONG_WORK.saturating_sub(at.elapsed());
            if left.is_zero() {
                return Ok(Some(AtWork { path, modified, files: self.seen.len() }));
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(None)
    }

    /// Leaves out data files that hold whole rows. One that cannot be read, because it is still being written, stays.
    async fn dismiss_rows(&mut self) {
        let unjudged: Vec<String> = self
            .seen
            .keys()
            .filter(|p| matches!(classify(p).kind, Kind::Data) && !self.judged.contains(*p))
            .take(JUDGED_AT_ONCE)
            .cloned()
            .collect();
        for path in unjudged {
            let Ok(names) = columns_of(&self.place, &path).await else { continue };
            if self.columns.is_subset(&names) {
                self.seen.remove(&path);
                self.rows.insert(path.clone());
            }
            self.judged.insert(path);
        }
    }

    async fn read_new_versions(&mut self) -> Result<()> {
        let listing = Listing::read_dirs(&self.place, &["_versions"]).await?;
        let attached = |e: &Entry| matches!(classify(&e.path).kind, Kind::Manifest { .. });
        let new: Vec<String> =
            listing.entries.into_iter().filter(attached).map(|e| e.path).filter(|p| !self.read.contains(p)).collect();
        for path in new {
            match manifest::read(self.place.objects().as_ref(), &self.place.uri, &self.place.below(&path)?).await {
                Ok(facts) => {
                    self.since.add(0, "", &self.place.uri, &facts, &mut Reads::new());
                    self.read.insert(path);
                }
                // Removed meanwhile, or unreadable: what it names stays suspicious.
                Err(e) if e.kind() == crate::Kind::Damaged => {
                    self.read.insert(path);
                }
                Err(e) => return Err(e),
            }
        }
        let since = &self.since;
        self.seen.retain(|path, _| work_of(path).is_some_and(|key| since.of(&key).is_none()));
        Ok(())
    }

    async fn exists(&self, path: &str) -> Result<bool> {
        match self.place.objects().head(&self.place.below(path)?).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(e) => Err(Error::store("looking for an unnamed file", &self.place.uri, e)),
        }
    }
}

/// The top-level columns of a data file: one or two small reads at its end.
async fn columns_of(place: &Place, path: &str) -> Result<BTreeSet<String>> {
    let doing = || format!("reading the columns of {path}");
    let wrong = |e: lance::Error| Error::lance(doing(), &place.uri, e);
    let scheduler = ScanScheduler::new(place.store.clone(), SchedulerConfig::max_bandwidth(&place.store));
    let file = scheduler.open_file(&place.below(path)?, &CachedFileSize::unknown()).await.map_err(wrong)?;
    let metadata = FileReader::read_all_metadata(&file).await.map_err(wrong)?;
    Ok(metadata.file_schema.fields.iter().map(|f| f.name.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_data_and_index_files_of_the_main_tree_speak_of_work() {
        let uuid = "0a0b0c0d-0000-4000-8000-000000000001";
        assert_eq!(work_of("data/a.lance").as_deref(), Some("data/a.lance"));
        assert_eq!(work_of("data/a/1.blob").as_deref(), Some("data/a.lance"));
        assert_eq!(work_of(&format!("_indices/{uuid}/part_0.lance")), Some(format!("_indices/{uuid}")));
        assert_eq!(work_of("tree/b/data/a.lance"), None);
        assert_eq!(work_of("_transactions/1-a.txn"), None);
        assert_eq!(work_of("media/cat.png"), None);
    }
}
