//! One dataset's part of a reclaim: checked afresh, taken in batches, looked at again after each.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use chrono::{DateTime, Utc};
use futures::stream::{self, StreamExt};

use super::watch::{News, Watch, is_named};
use super::{Erased, Quarantine, Returned, Took, erased};
use crate::classes::{Ages, Class, Classes, kept};
use crate::clean::delete;
use crate::examine::{Examination, examine};
use crate::handle::Place;
use crate::listing::{Kind, Listing, classify};
use crate::look::Look;
use crate::rate::Rate;
use crate::refs::KeepSet;
use crate::{Lake, Result};

/// Objects per batch: HEAD and refs are read again after each.
pub const BATCH: usize = 100;
/// Objects in flight.
pub(super) const AT_ONCE: usize = 8;

/// One object that a plan names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Relative to the dataset's root, in the store's spelling.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its last-modified when the plan was made, by the store's clock.
    pub modified: DateTime<Utc>,
}

impl Item {
    /// Why the object is not the one that the plan named. Seconds are compared: a HEAD tells no more.
    pub(super) fn differs(&self, bytes: u64, modified: DateTime<Utc>) -> Option<String> {
        if bytes != self.bytes {
            return Some(format!("it has {bytes} bytes, {} in the plan", self.bytes));
        }
        let same = modified.timestamp() == self.modified.timestamp();
        (!same).then(|| format!("it was written again, at {}", modified.to_rfc3339()))
    }
}

/// What allows an object to go.
#[derive(Debug, Clone, Copy)]
pub enum Rule {
    /// It is an orphan, in two fresh looks.
    Orphans(Ages),
    /// The dataset was dropped, its grace is over and nobody else owns bytes in it: everything that the plan names goes, as long as
    /// there is no manifest that the plan does not name.
    Whole,
}

/// One dataset's part of a plan.
pub struct Work<'a> {
    /// Reads.
    pub lake: &'a Lake,
    /// The dataset's canonical URI.
    pub uri: &'a str,
    /// What goes, and nothing else.
    pub items: &'a [Item],
    /// What allows it.
    pub rule: Rule,
    /// Where it goes.
    pub quarantine: &'a Quarantine,
    /// Deletes per second.
    pub rate: &'a Rate,
}

/// What was done to one dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// Objects that lie in the quarantine now, and their bytes; marked ones not counted.
    pub moved: (u64, u64),
    /// Objects too large to copy, marked in place, and their bytes.
    pub marked: (u64, u64),
    /// Objects that a run before this one had moved.
    pub already: u64,
    /// Objects that are not, or no longer, what the plan says, and why; untouched.
    pub left: Vec<(String, String)>,
    /// Objects that could not be moved, and why; they lie where they were.
    pub failed: Vec<(String, String)>,
    /// Objects that somebody named meanwhile, and that were brought back at once.
    pub restored: Vec<String>,
    /// Objects that somebody named meanwhile and that could NOT be brought back, and why; their copies are in the quarantine.
    pub lost: Vec<(String, String)>,
    /// Why it stopped before its end.
    pub stopped: Option<String>,
    /// What the store said when it denied a delete.
    pub denied: Option<String>,
}

/// Moves what the plan names of one dataset. `allowed` is asked before each batch: what the rest of the estate reads of the dataset
/// now, or why nothing may go. After each batch the manifests are read again, and what one that came meanwhile names is brought back.
///
/// # Errors
/// When the dataset could not be looked at; nothing more goes then.
pub async fn take_away<A, F>(out: &mut Taken, work: &Work<'_>, mut allowed: A) -> Result<()>
where
    A: FnMut() -> F,
    F: Future<Output = std::result::Result<KeepSet, String>>,
{
    let Some(keep) = may_go(out, &mut allowed).await else { return Ok(()) };
    let place = work.lake.place(work.uri).await?;
    let prefix = work.quarantine.prefix(&place)?;
    let Some((items, mut watch)) = work.checked(out, &place, &prefix, &keep).await? else { return Ok(()) };
    if items.is_empty() {
        return Ok(());
    }
    let (first, rest) = items.split_at(1);
    // A manifest that lands late may name what went with any batch.
    let mut went = Vec::new();
    // The first goes alone: credentials without the right to delete then leave one copy behind and no more.
    for (n, batch) in [first].into_iter().chain(rest.chunks(BATCH)).enumerate() {
        let mut batch: Vec<&Item> = batch.iter().collect();
        if n > 0 {
            let Some(keep) = may_go(out, &mut allowed).await else { return Ok(()) };
            // What came since the last batch may also name what went with that one.
            let news = work.look_again(out, &place, &prefix, &mut watch, (&[], &mut went)).await?;
            if out.stopped.is_some() {
                return Ok(());
            }
            batch.retain(|item| {
                let named = news.names(&item.path) || kept(|f| keep.contains(f), &item.path);
                if named {
                    out.left.push((item.path.clone(), "it is named by now".into()));
                }
                !named
            });
        }
        let gone = work.batch(out, &prefix, &batch).await;
        went.extend(gone.iter().cloned());
        work.look_again(out, &place, &prefix, &mut watch, (&gone, &mut went)).await?;
        remove_empty_directories(&place, &gone, matches!(work.rule, Rule::Whole));
        if out.stopped.is_some() || out.denied.is_some() {
            return Ok(());
        }
    }
    Ok(())
}

async fn may_go<A, F>(out: &mut Taken, allowed: &mut A) -> Option<BTreeSet<String>>
where
    A: FnMut() -> F,
    F: Future<Output = std::result::Result<KeepSet, String>>,
{
    match allowed().await {
        Ok(KeepSet::Complete(keep)) => return Some(keep),
        Ok(KeepSet::Incomplete(why)) => out.stopped = Some(format!("references_incomplete: {}", why.join("; "))),
        Err(why) => out.stopped = Some(why),
    }
    None
}

impl Work<'_> {
    /// The items that a fresh look still lets go; `None` when none may. Those that a run before this one moved and that
    /// somebody names by now come back here.
    async fn checked(
        &self,
        out: &mut Taken,
        place: &Place,
        prefix: &str,
        keep: &BTreeSet<String>,
    ) -> Result<Option<(Vec<Item>, Watch)>> {
        match self.rule {
            Rule::Orphans(ages) => {
                let keep_set = KeepSet::Complete(keep.clone());
                let (look, classes) = match examine(self.lake, self.uri, &keep_set, &ages).await? {
                    Examination::Dataset(examined) => (examined.look, examined.classes),
                    _ => {
                        out.stopped = Some("no dataset lies there any more".into());
                        return Ok(None);
                    }
                };
                if let Some(why) = classes.incomplete.first() {
                    out.stopped = Some(format!("references_incomplete: {why}"));
                    return Ok(None);
                }
                if !classes.missing.is_empty() && classes.missing.iter().any(|m| m.by_head) {
                    // What an earlier run of this plan moved is not damage: it comes back first.
                    self.mend(out, prefix, Some(&look), keep).await?;
                    out.stopped = Some("unhealthy: HEAD needs files that are not there".into());
                    return Ok(None);
                }
                let watch = Watch::of(&look.listing);
                let items = self.orphans(out, prefix, (&look, &classes), keep).await?;
                Ok(Some((items, watch)))
            }
            Rule::Whole => {
                let listing = Listing::read(place).await?;
                if let Some(stranger) = self.strangers(&listing).next().map(|e| e.path.clone()) {
                    // Nothing comes back: manifests of the old table may be newer by their number than those of one made anew.
                    out.stopped = Some(format!("somebody wrote to it since the plan: {stranger}"));
                    return Ok(None);
                }
                let watch = Watch::of(&listing);
                let mut items = self.items.to_vec();
                // The manifests last: until then it is a dataset that can be told what is missing.
                items.sort_by_key(|i| (i.path.contains("_versions/"), i.path.clone()));
                Ok(Some((items, watch)))
            }
        }
    }

    async fn orphans(
        &self,
        out: &mut Taken,
        prefix: &str,
        (look, classes): (&Look, &Classes),
        keep: &BTreeSet<String>,
    ) -> Result<Vec<Item>> {
        let (mut items, mut absent) = (Vec::new(), Vec::new());
        for item in self.items {
            match classes.at(&item.path) {
                None => absent.push(item),
                Some(object) if object.class != Class::Orphan => {
                    let why = format!("it is {} now: {}", object.class.as_str(), object.reason);
                    out.left.push((item.path.clone(), why));
                }
                // Asked again before its copy, too: there it would be left in the end, here it costs no request.
                Some(object) => match item.differs(object.bytes, object.modified) {
                    Some(why) => out.left.push((item.path.clone(), why)),
                    None => items.push(item.clone()),
                },
            }
        }
        let paths: Vec<String> = absent.iter().map(|i| format!("{prefix}{}", i.path)).collect();
        for (item, present) in absent.iter().zip(self.quarantine.present(&paths).await?) {
            match present {
                false => out.left.push((item.path.clone(), "it is gone".into())),
                true if is_named(look, keep, &item.path) => self.restore(out, prefix, item).await,
                true => out.already += 1,
            }
        }
        Ok(items)
    }

    /// Brings back what an earlier run of this plan moved and somebody names: the rest of the estate, or a manifest that was looked at.
    async fn mend(&self, out: &mut Taken, prefix: &str, look: Option<&Look>, keep: &BTreeSet<String>) -> Result<()> {
        let gone = self.items.iter().filter(|i| look.is_none_or(|l| l.listing.get(&i.path).is_none()));
        let is_named = |i: &&Item| is_kept(keep, &i.path) || look.is_some_and(|l| is_named(l, keep, &i.path));
        let named: Vec<&Item> = gone.filter(is_named).collect();
        let paths: Vec<String> = named.iter().map(|i| format!("{prefix}{}", i.path)).collect();
        for (item, present) in named.iter().zip(self.quarantine.present(&paths).await?) {
            if present {
                self.restore(out, prefix, item).await;
            }
        }
        Ok(())
    }

    /// The manifests that the plan does not name as they are.
    fn strangers<'l>(&self, listing: &'l Listing) -> impl Iterator<Item = &'l crate::listing::Entry> {
        let items = self.by_path();
        manifests(listing)
            .filter(move |e| items.get(e.path.as_str()).is_none_or(|i| i.differs(e.size, e.modified).is_some()))
    }

    fn by_path(&self) -> BTreeMap<&str, &Item> {
        self.items.iter().map(|i| (i.path.as_str(), i)).collect()
    }

    /// A manifest that is not the plan's lies at the dataset's place: it was written to, or made anew, since. Where an undo has
    /// begun, a manifest of the plan is one that came back if it has the planned size, and the bytes of its copy where that is left.
    ///
    /// # Errors
    /// What the store says.
    pub async fn newcomer(&self, undoing: bool) -> Result<Option<String>> {
        let place = self.lake.place(self.uri).await?;
        let prefix = self.quarantine.prefix(&place)?;
        let listing = Listing::read(&place).await?;
        let items = self.by_path();
        for entry in manifests(&listing) {
            let item = items.get(entry.path.as_str()).filter(|i| i.bytes == entry.size);
            let planned = item.is_some_and(|i| undoing || i.differs(entry.size, entry.modified).is_none());
            // Its copy is left where it did not go, or did not come back to its end; then the bytes decide.
            let path = format!("{prefix}{}", entry.path);
            if !planned || self.quarantine.is_copied(&path).await? == Some(false) {
                return Ok(Some(entry.path.clone()));
            }
        }
        Ok(None)
    }

    fn came(&self, watch: &Watch) -> Option<String> {
        let planned: BTreeSet<&str> = self.items.iter().map(|i| i.path.as_str()).collect();
        watch.paths().find(|path| !planned.contains(path)).map(String::from)
    }

    /// Takes one batch; the paths that went.
    async fn batch(&self, out: &mut Taken, prefix: &str, batch: &[&Item]) -> Vec<String> {
        let work: Vec<(String, Item)> =
            batch.iter().map(|item| (format!("{prefix}{}", item.path), (*item).clone())).collect();
        let took: Vec<(Item, Took)> = stream::iter(work)
            .map(|(path, item)| async move {
                let took = self.quarantine.take(&path, &item, self.rate).await;
                (item, took)
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut gone = Vec::new();
        for (item, took) in took {
            match took {
                Took::Moved => {
                    out.moved = (out.moved.0 + 1, out.moved.1 + item.bytes);
                    gone.push(item.path);
                }
                Took::Marked => out.marked = (out.marked.0 + 1, out.marked.1 + item.bytes),
                Took::Already => {
                    out.already += 1;
                    gone.push(item.path);
                }
                Took::Left(why) => out.left.push((item.path, why)),
                Took::Failed(why) => out.failed.push((item.path, why)),
                Took::Denied(why) => {
                    out.failed.push((item.path, why.clone()));
                    out.denied = Some(why);
                }
            }
        }
        gone
    }

    /// HEAD and the refs once more: what a manifest that came meanwhile names of all that went is brought back at once. What came.
    async fn look_again(
        &self,
        out: &mut Taken,
        place: &Place,
        prefix: &str,
        watch: &mut Watch,
        (gone, went): (&[String], &mut Vec<String>),
    ) -> Result<News> {
        let news = match watch.news(place).await {
            Ok(news) => news,
            Err(e) => {
                // What cannot be seen may name anything.
                self.bring_back(out, prefix, gone).await;
                return Err(e);
            }
        };
        if let Rule::Whole = self.rule {
            if let Some(path) = self.came(watch) {
                // A commit on top of the old table needs what went; a table made anew must not find the old one's manifests.
                if self.items.iter().any(|i| news.names(&i.path)) {
                    self.undo(out, prefix).await?;
                }
                out.stopped = Some(format!("somebody wrote to it meanwhile: {path}"));
            }
            return Ok(news);
        }
        let (named, still): (Vec<String>, Vec<String>) = went.drain(..).partition(|path| news.names(path));
        *went = still;
        self.bring_back(out, prefix, &named).await;
        if let Some(why) = &news.blind {
            out.stopped = Some(format!("a manifest that came meanwhile cannot be read: {why}"));
        }
        Ok(news)
    }

    /// Everything of the plan that lies in the quarantine comes back.
    async fn undo(&self, out: &mut Taken, prefix: &str) -> Result<()> {
        let paths: Vec<String> = self.items.iter().map(|i| format!("{prefix}{}", i.path)).collect();
        let present = self.quarantine.present(&paths).await?;
        let there = self.items.iter().zip(present).filter(|(_, p)| *p).map(|(i, _)| i.path.clone());
        let paths: Vec<String> = there.collect();
        self.bring_back(out, prefix, &paths).await;
        Ok(())
    }

    async fn bring_back(&self, out: &mut Taken, prefix: &str, paths: &[String]) {
        let items = self.by_path();
        for item in paths.iter().filter_map(|path| items.get(path.as_str())) {
            self.restore(out, prefix, item).await;
        }
    }

    async fn restore(&self, out: &mut Taken, prefix: &str, item: &Item) {
        match self.quarantine.bring_back(&format!("{prefix}{}", item.path), Some(item), self.rate).await {
            Returned::Back | Returned::Stayed => out.restored.push(item.path.clone()),
            Returned::Failed(why) => out.lost.push((item.path.clone(), why)),
        }
    }
}

fn manifests(listing: &Listing) -> impl Iterator<Item = &crate::listing::Entry> {
    let is = |path: &str| matches!(classify(path).kind, Kind::Manifest { .. } | Kind::Detached(_) | Kind::Nested(_));
    listing.entries.iter().filter(move |e| is(&e.path))
}

/// Whether the rest of the estate names a path, relative to the dataset's root.
pub fn is_kept(keep: &BTreeSet<String>, path: &str) -> bool {
    kept(|file| keep.contains(file), path)
}

/// Brings back what lies in the quarantine and is named by now: `(restored, could not be restored and why)`. The paths are relative
/// to the dataset's root. For the look after everything, and before a purge. Without a look the rest of the estate alone is asked:
/// the dataset's own manifests miss nothing, or are not there.
///
/// # Errors
/// As [`crate::look::look`].
pub async fn restore_named(
    work: &Work<'_>,
    look: Option<&Look>,
    keep: &BTreeSet<String>,
) -> Result<(Vec<String>, Vec<(String, String)>)> {
    let place = work.lake.place(work.uri).await?;
    let prefix = work.quarantine.prefix(&place)?;
    let mut out = Taken::default();
    work.mend(&mut out, &prefix, look, keep).await?;
    Ok((out.restored, out.lost))
}

/// Deletes a marked object for good, if two fresh looks still find it an orphan as the plan names it; its mark goes after it.
///
/// # Errors
/// When the dataset could not be looked at.
pub async fn erase_marked(
    work: &Work<'_>,
    keep: &KeepSet,
    ages: &Ages,
) -> Result<Vec<(Item, std::result::Result<Erased, String>)>> {
    let place = work.lake.place(work.uri).await?;
    let prefix = work.quarantine.prefix(&place)?;
    let Examination::Dataset(found) = examine(work.lake, work.uri, keep, ages).await? else {
        return Ok(work.items.iter().map(|i| (i.clone(), Err("no dataset lies there any more".into()))).collect());
    };
    let mut watch = Watch::of(&found.look.listing);
    let news = watch.news(&place).await?;
    let mut out = Vec::new();
    for item in work.items {
        let path = format!("{prefix}{}", item.path);
        let listed = found.classes.at(&item.path);
        let why = match listed {
            None => None,
            Some(object) if object.class != Class::Orphan => {
                Some(format!("it is {} now: {}", object.class.as_str(), object.reason))
            }
            Some(_) if news.names(&item.path) => Some("it is named by now".into()),
            Some(object) => item.differs(object.bytes, object.modified),
        };
        let ended = match why {
            Some(why) => Err(why),
            None => {
                let gone = match listed {
                    Some(_) => erased(delete(&work.quarantine.deletes, &path, work.rate).await),
                    None => Erased::Nothing,
                };
                if matches!(gone, Erased::Gone | Erased::Nothing) {
                    delete(&work.quarantine.deletes, &work.quarantine.mark(&path), work.rate).await;
                }
                Ok(gone)
            }
        };
        out.push((item.clone(), ended));
    }
    Ok(out)
}

/// On a local disk the folders of what went stay behind empty; Lance's own (`data`, `_versions`…) stay, unless the whole dataset goes.
fn remove_empty_directories(place: &Place, gone: &[String], whole: bool) {
    let Some(root) = crate::uri::local_path(&place.uri) else { return };
    let least = usize::from(!whole);
    let mut dirs: BTreeSet<&str> = BTreeSet::new();
    for path in gone {
        let above = std::iter::successors(path.rsplit_once('/').map(|(dir, _)| dir), |at| {
            at.rsplit_once('/').map(|(dir, _)| dir)
        });
        dirs.extend(above.filter(|dir| dir.matches('/').count() >= least));
    }
    // Fails, as it should, where something is left in one.
    for dir in dirs.iter().rev() {
        let name = percent_encoding::percent_decode_str(dir).decode_utf8_lossy().into_owned();
        let _ = std::fs::remove_dir(root.join(name));
    }
    if whole {
        let _ = std::fs::remove_dir(root);
    }
}
