//! What a plan names goes to the quarantine and comes back, wherever it was stopped; what somebody names comes back at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::Utc;
use squire_lake::Lake;
use squire_lake::classes::{Ages, Class, classes};
use squire_lake::faults::{Fault, Faults, Operation};
use squire_lake::look::Look;
use squire_lake::quarantine::{self, Erased, Item, Quarantine, Returned, Rule, Taken, Work, erase_marked, take_away};
use squire_lake::rate::Rate;
use squire_lake::refs::KeepSet;
use squire_lake::sample::SampleIndex;
use tempfile::TempDir;
use uuid::Uuid;

use super::classes::plant;
use super::support::*;

pub(super) const DAY: u64 = 86_400;
pub(super) const PLAN: Uuid = Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_0001);
const INDEX: &str = "_indices/0a0b0c0d-0000-4000-8000-000000000001/page_data.lance";

pub(super) fn ages() -> Ages {
    Ages { now: Utc::now(), longest_write: Duration::ZERO }
}

pub(super) fn nobody() -> KeepSet {
    KeepSet::Complete(BTreeSet::new())
}

pub(super) fn root_of(dir: &TempDir) -> String {
    squire_lake::uri::canonical(dir.path().to_str().expect("UTF-8")).expect("a URI")
}

/// Every file below a folder with its bytes, empty folders with none.
pub(super) fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut out, mut queue) = (BTreeMap::new(), vec![dir.to_path_buf()]);
    while let Some(at) = queue.pop() {
        for entry in std::fs::read_dir(&at).expect("readable").flatten() {
            let path = entry.path();
            if path.is_dir() {
                queue.push(path);
            } else {
                let name = path.strip_prefix(dir).expect("below").to_path_buf();
                out.insert(name, std::fs::read(&path).expect("readable"));
            }
        }
    }
    out
}

/// The orphans of a look, as a plan has them.
pub(super) fn orphans(look: &Look) -> Vec<Item> {
    let found = classes(look, &nobody(), &ages());
    found.of(Class::Orphan).map(|o| Item { path: o.path.clone(), bytes: o.bytes, modified: o.modified }).collect()
}

/// Takes the items of the dataset `t` below the root away.
pub(super) async fn take(
    lake: &Lake,
    dir: &TempDir,
    items: &[Item],
    rule: Rule,
    limit: u64,
) -> (Taken, squire_lake::Result<()>) {
    let root = root_of(dir);
    let uri = format!("{root}/t");
    let mut out = Taken::default();
    let done = async {
        let quarantine = Quarantine::open(lake, &root, PLAN).await?.copying_up_to(limit);
        let rate = Rate::new(10_000);
        let work = Work { lake, uri: &uri, items, rule, quarantine: &quarantine, rate: &rate };
        take_away(&mut out, &work, || async { Ok(nobody()) }).await
    };
    let done = done.await;
    (out, done)
}

pub(super) async fn back(dir: &TempDir) -> Vec<Returned> {
    let root = root_of(dir);
    let held = quarantine::held(&lake(), &root, PLAN).await.expect("listed");
    let quarantine = Quarantine::open(&lake(), &root, PLAN).await.expect("opened");
    let mut out = Vec::new();
    for path in held.copies.iter().map(|(path, _)| path).chain(&held.marks) {
        out.push(quarantine.bring_back(path, None, &Rate::new(10_000)).await);
    }
    out
}

/// A dataset with leftovers of several kinds, one of them in a folder of an odd name, and their items.
pub(super) async fn with_leftovers() -> (TempDir, Vec<Item>) {
    let (dir, uri) = place();
    let mut sample = table(&uri, 2, 10).await;
    sample.branch("a/b", 1).await.expect("branched");
    let root = dir.path().join("t");
    for path in ["data/one.lance", "data/one/1 x%41.blob", "_deletions/0-1-9.arrow", INDEX, "tree/a/b/data/two.lance"] {
        plant(&root.join(path), 30 * DAY);
    }
    plant(&root.join("data/young.lance"), DAY);
    plant(&root.join("media/cat.png"), 30 * DAY);
    plant(&root.join("_mem_wal/1/x"), 30 * DAY);
    let items = orphans(&seen(&uri).await);
    assert_eq!(items.len(), 5, "{items:?}");
    (dir, items)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_plan_names_goes_and_comes_back_byte_for_byte() {
    let (dir, items) = with_leftovers().await;
    let before = tree(dir.path());
    let (taken, done) = take(&lake(), &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
    done.expect("taken");
    let bytes: u64 = items.iter().map(|i| i.bytes).sum();
    assert_eq!((taken.moved, taken.left.len(), taken.failed.len()), ((5, bytes), 0, 0), "{taken:?}");
    let after = tree(dir.path());
    let moved = |path: &PathBuf| Path::new("_squire_quarantine").join(PLAN.to_string()).join(path);
    for (path, content) in &before {
        let item = items.iter().any(|i| Path::new("t").join(&i.path) == *path);
        let at = if item { moved(path) } else { path.clone() };
        assert_eq!(after.get(&at), Some(content), "{}", path.display());
    }
    assert_eq!(after.len(), before.len(), "nothing else came or went");
    assert!(!dir.path().join("t").join(INDEX).parent().expect("a folder").exists(), "no empty folder is left");
    assert!(dir.path().join("t/_deletions").exists(), "Lance's own folders stay");
    assert!(quarantine::plans(&lake(), &root_of(&dir)).await.expect("listed") == [PLAN]);
    // Run again it finds its work done.
    let (again, done) = take(&lake(), &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
    done.expect("taken");
    assert_eq!((again.moved.0, again.already, again.left.len()), (0, 5, 0), "{again:?}");

    assert_eq!(back(&dir).await, vec![Returned::Back; 5]);
    assert_eq!(tree(dir.path()), before);
    let still: Vec<Item> = orphans(&seen(&format!("{}/t", root_of(&dir))).await);
    assert_eq!(still, items, "on a local disk also their times are what they were");
}

/// Items of a forged plan: a live file, history, a young one, a foreign one, an unknown one, one that changed and one that is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_cannot_make_anything_go_that_is_no_orphan_now() {
    let (dir, mut items) = with_leftovers().await;
    let look = seen(&format!("{}/t", root_of(&dir))).await;
    let named =
        |path: &str| look.listing.get(path).map(|e| Item { path: path.into(), bytes: e.size, modified: e.modified });
    let live = look.listing.entries.iter().find(|e| e.path.starts_with("data/") && look.uses.of(&e.path).is_some());
    let forged = [
        live.expect("a live file").path.as_str(),
        "data/young.lance",
        "media/cat.png",
        "_mem_wal/1/x",
        look.manifests[0].path.as_str(),
    ];
    items.extend(forged.iter().filter_map(|path| named(path)));
    items.push(Item { path: "data/nothing.lance".into(), bytes: 1, modified: Utc::now() });
    std::fs::write(dir.path().join("t/data/one.lance"), b"others' bytes").expect("written");
    let file = std::fs::File::options().write(true).open(dir.path().join("t/data/one.lance")).expect("there");
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(29 * DAY)).expect("touched");
    let before = tree(&dir.path().join("t"));
    let (taken, done) = take(&lake(), &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
    done.expect("taken");
    assert_eq!(taken.moved.0, 4, "{taken:?}");
    let left: BTreeSet<&str> = taken.left.iter().map(|(path, _)| path.as_str()).collect();
    let wanted: BTreeSet<&str> = forged.into_iter().chain(["data/nothing.lance", "data/one.lance"]).collect();
    assert_eq!(left, wanted, "{taken:?}");
    let after = tree(&dir.path().join("t"));
    assert_eq!(before.len() - after.len(), 4);
}

/// Whatever the plan and the keep-set: incomplete references let nothing go.
#[tokio::test(flavor = "multi_thread")]
async fn incomplete_references_let_nothing_go() {
    let (dir, items) = with_leftovers().await;
    let before = tree(dir.path());
    let root = root_of(&dir);
    let uri = format!("{root}/t");
    let quarantine = Quarantine::open(&lake(), &root, PLAN).await.expect("opened");
    let (lake, rate) = (lake(), Rate::new(10_000));
    let work = Work {
        lake: &lake,
        uri: &uri,
        items: &items,
        rule: Rule::Orphans(ages()),
        quarantine: &quarantine,
        rate: &rate,
    };
    let answers =
        [Ok(KeepSet::Incomplete(vec!["s3://other could not be read".into()])), Err("held by a hold".to_string())];
    for answer in answers {
        let mut out = Taken::default();
        take_away(&mut out, &work, || async { answer.clone() }).await.expect("no failure");
        assert!(out.stopped.is_some() && out.moved.0 == 0, "{out:?}");
    }
    let tag = dir.path().join("t/_refs/tags");
    std::fs::create_dir_all(&tag).expect("made");
    std::fs::write(tag.join("x.json"), b"{").expect("written");
    let mut out = Taken::default();
    take_away(&mut out, &work, || async { Ok(nobody()) }).await.expect("no failure");
    assert!(out.stopped.as_ref().is_some_and(|why| why.contains("x.json")), "{out:?}");
    std::fs::remove_file(tag.join("x.json")).expect("removed");
    std::fs::remove_dir(tag).expect("removed");
    // What a clone reads by now stays.
    let keep = KeepSet::Complete(BTreeSet::from(["data/one.lance".to_string()]));
    let mut out = Taken::default();
    let first = std::sync::atomic::AtomicBool::new(true);
    let one_then_kept = || {
        let answer = if first.swap(false, Ordering::SeqCst) { nobody() } else { keep.clone() };
        async move { Ok(answer) }
    };
    take_away(&mut out, &work, one_then_kept).await.expect("no failure");
    // The first batch is one object, and not this one.
    assert_eq!(out.moved.0, 3, "the file and its sidecar stay: {out:?}");
    let left: BTreeSet<&str> = out.left.iter().map(|(path, _)| path.as_str()).collect();
    assert!(left.contains("data/one.lance"), "{out:?}");
    assert_eq!(tree(dir.path()).len(), before.len());
}

pub(super) fn faulty(rule: impl Fn(Operation, &str) -> Fault + Send + Sync + 'static) -> Lake {
    Lake::with_faults(Arc::new(|_: &str| HashMap::new()), 256 << 20, Faults::new(rule))
}

pub(super) fn plant_large(path: &Path) {
    plant(path, 30 * DAY);
    std::fs::write(path, vec![7_u8; 1_000]).expect("written");
    let file = std::fs::File::options().write(true).open(path).expect("there");
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(30 * DAY)).expect("touched");
}

/// A manifest that lands between the check and the delete, or after all deletes of a batch, names a file that goes: it is back at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_lands_while_a_file_goes_brings_it_back() {
    for at in [Operation::Copy, Operation::Delete] {
        for attached in [true, false] {
            let (dir, uri) = place();
            let mut sample = table(&uri, 2, 10).await;
            let root = dir.path().join("t");
            if attached {
                sample.overwrite(5, 500).await.expect("overwritten");
            } else {
                sample.commit_detached().await.expect("committed");
            }
            let look = seen(&uri).await;
            let last = look.manifests.iter().find(|m| if attached { m.version == 3 } else { m.detached }).expect("it");
            // The manifest lands later; what it names is old. The detached one names the files of version 2, which goes.
            let mut landing = vec![(root.join(&last.path), std::fs::read(root.join(&last.path)).expect("read"))];
            std::fs::remove_file(root.join(&last.path)).expect("removed");
            if !attached {
                let head = look.versions().last().map(|(_, m)| root.join(&m.path)).expect("HEAD");
                std::fs::remove_file(head).expect("removed");
            }
            let month = std::time::SystemTime::now() - Duration::from_secs(30 * DAY);
            for file in tree(&root).keys().filter(|p| p.starts_with("data")) {
                let file = std::fs::File::options().write(true).open(root.join(file)).expect("there");
                file.set_modified(month).expect("touched");
            }
            plant(&root.join("data/stray.lance"), 30 * DAY);
            let items = orphans(&seen(&uri).await);
            let late: Vec<&Item> =
                items.iter().filter(|i| i.path.starts_with("data/") && i.path != "data/stray.lance").collect();
            assert_eq!(late.len(), 1, "{items:?}");
            let late = late[0].path.clone();
            let before = std::fs::read(root.join(&late)).expect("read");
            let (path, bytes) = landing.remove(0);
            let target = late.clone();
            let lake = faulty(move |operation, object| {
                if operation == at
                    && object.ends_with(&target)
                    && !object.contains("_squire_quarantine") | (at == Operation::Copy)
                {
                    std::fs::write(&path, &bytes).expect("landed");
                }
                Fault::Pass
            });
            let (taken, done) = take(&lake, &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
            done.expect("taken");
            assert_eq!(taken.restored, [late.clone()], "{at:?} {attached}: {taken:?}");
            assert!(taken.lost.is_empty(), "{taken:?}");
            assert_eq!(std::fs::read(root.join(&late)).expect("it is back"), before);
            assert!(!root.join("data/stray.lance").exists(), "what nobody names went");
            assert!(seen(&uri).await.missing.is_empty());
        }
    }
}

/// What a killed run had moved, and a manifest names by the time it is run again, comes back before anything else goes.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_named_while_nobody_looked_comes_back_in_the_next_run() {
    let (dir, uri) = place();
    let mut sample = table(&uri, 2, 10).await;
    sample.overwrite(5, 500).await.expect("overwritten");
    let look = seen(&uri).await;
    let root = dir.path().join("t");
    let head = root.join(&look.versions().last().expect("HEAD").1.path);
    let bytes = std::fs::read(&head).expect("read");
    std::fs::remove_file(&head).expect("removed");
    let month = std::time::SystemTime::now() - Duration::from_secs(30 * DAY);
    for file in tree(&root).keys().filter(|p| p.starts_with("data")) {
        let file = std::fs::File::options().write(true).open(root.join(file)).expect("there");
        file.set_modified(month).expect("touched");
    }
    let items = orphans(&seen(&uri).await);
    let (taken, done) = take(&lake(), &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
    done.expect("taken");
    assert!(taken.moved.0 >= 1);
    std::fs::write(&head, bytes).expect("landed");
    assert!(!seen(&uri).await.missing.is_empty());
    let (again, done) = take(&lake(), &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
    done.expect("no failure");
    assert_eq!(again.restored.len(), 1, "{again:?}");
    assert!(seen(&uri).await.missing.is_empty());
}

/// Larger than the store copies: marked in place, and deleted only after two more looks.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_object_stays_until_it_is_purged_and_only_goes_as_an_orphan() {
    let (dir, uri) = place();
    let mut sample = table(&uri, 2, 10).await;
    let staged = sample.stage(10, 900).await.expect("staged");
    let root = dir.path().join("t");
    let late =
        tree(&root).into_keys().find(|p| p.starts_with("data") && seen_by_none(&root, p)).expect("the staged file");
    let file = std::fs::File::options().write(true).open(root.join(&late)).expect("there");
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(30 * DAY)).expect("touched");
    plant_large(&root.join("data/large.lance"));
    let items: Vec<Item> = orphans(&seen(&uri).await).into_iter().filter(|i| i.path.starts_with("data/")).collect();
    assert_eq!(items.len(), 2);
    let (taken, done) = take(&lake(), &dir, &items, Rule::Orphans(ages()), 100).await;
    done.expect("taken");
    assert_eq!((taken.moved.0, taken.marked.0), (0, 2), "{taken:?}");
    assert!(root.join("data/large.lance").exists());
    // One of the two is committed after all.
    sample.land(staged).await.expect("landed");
    let (lake, rate, at) = (lake(), Rate::new(10_000), root_of(&dir));
    let quarantine = Quarantine::open(&lake, &at, PLAN).await.expect("opened");
    let work = Work {
        lake: &lake,
        uri: &uri,
        items: &items,
        rule: Rule::Orphans(ages()),
        quarantine: &quarantine,
        rate: &rate,
    };
    let ended = erase_marked(&work, &nobody(), &ages()).await.expect("looked");
    for (item, how) in ended {
        match item.path.as_str() {
            "data/large.lance" => assert_eq!(how, Ok(Erased::Gone)),
            _ => assert!(how.as_ref().is_err_and(|why| why.contains("live")), "{how:?}"),
        }
    }
    assert!(!root.join("data/large.lance").exists() && root.join(&late).exists());
    let marks = quarantine::held(&lake, &at, PLAN).await.expect("listed").marks;
    assert_eq!(marks.len(), 1, "the mark went with its object: {marks:?}");
}

/// Whether no manifest of the folder holds the file's name.
fn seen_by_none(root: &Path, file: &Path) -> bool {
    let name = file.file_name().expect("a name").to_string_lossy().into_owned();
    let manifests = tree(root).into_iter().filter(|(p, _)| p.starts_with("_versions"));
    !manifests.into_iter().any(|(_, bytes)| bytes.windows(name.len()).any(|w| w == name.as_bytes()))
}

/// A dropped dataset goes whole, its manifests last, and comes back; a commit of somebody's brings everything back.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_dataset_goes_whole_or_not_at_all() {
    let (dir, uri) = place();
    let mut sample = table(&uri, 3, 10).await;
    sample.index(SampleIndex::BTree).await.expect("indexed");
    sample.tag("x", 1).await.expect("tagged");
    sample.branch("b", 2).await.expect("branched");
    let look = seen(&uri).await;
    let all: Vec<Item> = look
        .listing
        .entries
        .iter()
        .map(|e| Item { path: e.path.clone(), bytes: e.size, modified: e.modified })
        .collect();
    let before = tree(dir.path());
    // Somebody commits while it goes: at the delete of the first file.
    let committing = Arc::new(Mutex::new(Some(sample)));
    let handle = tokio::runtime::Handle::current();
    let held = committing.clone();
    let racing = faulty(move |operation, object| {
        let sample =
            (operation == Operation::Delete && object.contains("/t/_")).then(|| held.lock().expect("sound").take());
        if let Some(mut sample) = sample.flatten() {
            let handle = handle.clone();
            let work =
                std::thread::spawn(move || handle.block_on(async move { sample.write(1, 7_000).await.map(|_| ()) }));
            work.join().expect("it ended").expect("it committed");
        }
        Fault::Pass
    });
    let (taken, done) = take(&racing, &dir, &all, Rule::Whole, u64::MAX).await;
    done.expect("no failure");
    assert!(taken.stopped.as_ref().is_some_and(|why| why.contains("somebody wrote")), "{taken:?}");
    assert!(taken.lost.is_empty() && !taken.restored.is_empty(), "{taken:?}");
    let after = tree(dir.path());
    assert!(
        before.iter().all(|(path, bytes)| after.get(path) == Some(bytes) || path.ends_with("latest_version_hint.json"))
    );
    let (none, done) = take(&lake(), &dir, &all, Rule::Whole, u64::MAX).await;
    done.expect("no failure");
    assert!(none.moved.0 == 0 && none.stopped.is_some(), "a plan from before the commit does nothing: {none:?}");

    let look = seen(&uri).await;
    let all: Vec<Item> = look
        .listing
        .entries
        .iter()
        .map(|e| Item { path: e.path.clone(), bytes: e.size, modified: e.modified })
        .collect();
    let before = tree(dir.path());
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen_order = order.clone();
    let watching = faulty(move |operation, object| {
        if operation == Operation::Delete {
            seen_order.lock().expect("sound").push(object.contains("_versions/"));
        }
        Fault::Pass
    });
    let (taken, done) = take(&watching, &dir, &all, Rule::Whole, u64::MAX).await;
    done.expect("taken");
    assert_eq!((taken.moved.0 as usize, taken.left.len()), (all.len(), 0), "{taken:?}");
    assert!(!dir.path().join("t").exists());
    assert!(!order.lock().expect("sound")[0], "a manifest does not go first");
    let (again, done) = take(&lake(), &dir, &all, Rule::Whole, u64::MAX).await;
    done.expect("taken");
    assert_eq!(again.already as usize, all.len(), "{again:?}");
    assert!(back(&dir).await.iter().all(|r| *r == Returned::Back));
    assert_eq!(tree(dir.path()), before);
}
