//! What comes between the steps of a reclaim: between the check and the copy, between two batches, and while it lies in quarantine.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use squire_lake::faults::{Fault, Operation};
use squire_lake::quarantine::{Item, Quarantine, Returned, Rule, Taken, Work, erase_marked, take_away};
use squire_lake::rate::Rate;
use squire_lake::refs::KeepSet;

use super::quarantine::*;
use super::support::*;

fn paths(list: &[(String, String)]) -> Vec<&str> {
    list.iter().map(|(path, _)| path.as_str()).collect()
}

/// An object that is written again after the check is another one.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_again_between_the_check_and_the_copy_stays() {
    let (dir, items) = with_leftovers().await;
    let file = dir.path().join("t/data/one.lance");
    let target = file.clone();
    let lake = faulty(move |operation, object| {
        if operation == Operation::Get && object.ends_with("t/data/one.lance") && !object.contains("_squire_quarantine")
        {
            std::fs::write(&target, "somebody's new bytes").expect("written");
        }
        Fault::Pass
    });
    let (taken, done) = take(&lake, &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
    done.expect("taken");
    assert_eq!((taken.moved.0, paths(&taken.left)), (4, vec!["data/one.lance"]), "{taken:?}");
    assert_eq!(std::fs::read(&file).expect("it is there"), b"somebody's new bytes");
}

/// Cut, or other bytes of the same length: nothing is deleted for such a copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_not_the_same_lets_its_object_stay() {
    for wrong in [&b"x"[..], b""] {
        let (dir, items) = with_leftovers().await;
        let before = tree(&dir.path().join("t"));
        let copy = dir.path().join(format!("_squire_quarantine/{PLAN}/t/data/one.lance"));
        let wrong_copy = copy.clone();
        let lake = faulty(move |operation, object| {
            // Asked for once it is there, to be compared.
            if operation == Operation::Get && object.ends_with("t/data/one.lance") && copy.exists() {
                let mut bytes = std::fs::read(&copy).expect("read");
                match wrong.first() {
                    Some(byte) => bytes[0] = *byte,
                    None => bytes.truncate(1),
                }
                // On a local disk it is a link to the object itself.
                std::fs::remove_file(&copy).expect("removed");
                std::fs::write(&copy, bytes).expect("written");
            }
            Fault::Pass
        });
        let (taken, done) = take(&lake, &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
        done.expect("no failure of the whole");
        assert_eq!((taken.moved.0, paths(&taken.failed)), (4, vec!["data/one.lance"]), "{taken:?}");
        let path = Path::new("data/one.lance");
        assert_eq!(tree(&dir.path().join("t")).get(path), before.get(path));
        assert!(!wrong_copy.exists(), "what is no copy is not left where one is looked for");
    }
}

/// A run that was stopped left something else where the copy belongs: nothing is deleted for it.
#[tokio::test(flavor = "multi_thread")]
async fn what_lies_where_a_copy_belongs_is_compared_before_it_counts_as_one() {
    let (dir, items) = with_leftovers().await;
    let (before, file) = (tree(&dir.path().join("t")), dir.path().join("t/data/one.lance"));
    let copy = dir.path().join(format!("_squire_quarantine/{PLAN}/t/data/one.lance"));
    std::fs::create_dir_all(copy.parent().expect("a folder")).expect("made");
    let bytes = std::fs::read(&file).expect("read");
    std::fs::write(&copy, vec![b'?'; bytes.len()]).expect("written");
    let (taken, done) = take(&lake(), &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
    done.expect("taken");
    assert_eq!((taken.moved.0, std::fs::read(&copy).expect("read")), (5, bytes), "{taken:?}");
    back(&dir).await;
    assert_eq!(tree(&dir.path().join("t")), before);
}

/// What has another size is no copy, and that is known without reading either: of an object of five gigabytes it would take a while.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_another_size_is_known_to_be_no_copy_without_being_read() {
    let asked = async |stale: &[u8]| {
        let (dir, items) = with_leftovers().await;
        let copy = dir.path().join(format!("_squire_quarantine/{PLAN}/t/data/one.lance"));
        std::fs::create_dir_all(copy.parent().expect("a folder")).expect("made");
        std::fs::write(&copy, stale).expect("written");
        let count = Arc::new(AtomicUsize::new(0));
        let seen = count.clone();
        let counting = faulty(move |operation, path| {
            let ours =
                operation == Operation::Get && path.contains("_squire_quarantine") && path.ends_with("/one.lance");
            seen.fetch_add(usize::from(ours), Ordering::SeqCst);
            Fault::Pass
        });
        let (taken, done) = take(&counting, &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
        done.expect("taken");
        assert_eq!(taken.moved.0, 5, "{taken:?}");
        count.load(Ordering::SeqCst)
    };
    let (dir, _) = with_leftovers().await;
    let bytes = std::fs::read(dir.path().join("t/data/one.lance")).expect("read").len();
    let (other, same_size) = (asked(b"?").await, asked(&vec![b'?'; bytes]).await);
    assert_eq!(other + 1, same_size, "one question less than of what has its size");
}

/// The manifest lands once the first batch has been looked at again: its file is in the next batch, and stays.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_named_between_two_batches_stays() {
    let (dir, uri) = place();
    let mut sample = table(&uri, 2, 10).await;
    sample.overwrite(5, 500).await.expect("overwritten");
    let root = dir.path().join("t");
    let head = root.join(&seen(&uri).await.versions().last().expect("HEAD").1.path);
    let bytes = std::fs::read(&head).expect("read");
    std::fs::remove_file(&head).expect("removed");
    let month = std::time::SystemTime::now() - Duration::from_secs(30 * DAY);
    for name in tree(&root).keys().filter(|p| p.starts_with("data")) {
        let file = std::fs::File::options().write(true).open(root.join(name)).expect("there");
        file.set_modified(month).expect("touched");
    }
    // The first batch is one object.
    super::classes::plant(&root.join("data/0.lance"), 30 * DAY);
    let items: Vec<_> = orphans(&seen(&uri).await).into_iter().filter(|i| i.path.starts_with("data/")).collect();
    assert!(items.len() == 2 && items[0].path == "data/0.lance", "{items:?}");
    let (lake, rate, at) = (lake(), Rate::new(10_000), root_of(&dir));
    let quarantine = Quarantine::open(&lake, &at, PLAN).await.expect("opened");
    let rule = Rule::Orphans(ages());
    let work = Work { lake: &lake, uri: &uri, items: &items, rule, quarantine: &quarantine, rate: &rate };
    let asked = AtomicUsize::new(0);
    let allowed = || {
        if asked.fetch_add(1, Ordering::SeqCst) == 1 {
            std::fs::write(&head, &bytes).expect("landed");
        }
        async { Ok(nobody()) }
    };
    let mut taken = Taken::default();
    take_away(&mut taken, &work, allowed).await.expect("taken");
    assert_eq!((taken.moved.0, paths(&taken.left)), (1, vec![items[1].path.as_str()]), "{taken:?}");
    assert!(seen(&uri).await.missing.is_empty());
}

/// The manifest lands once the first batch has been looked at again, and names what went with it: that comes back, before the next
/// batch is taken. Of a dropped table nothing more goes then.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_manifest_between_two_batches_names_of_the_first_comes_back() {
    for whole in [false, true] {
        let (dir, uri) = place();
        let mut sample = table(&uri, 1, 10).await;
        let root = dir.path().join("t");
        let mut late = root.join(&seen(&uri).await.versions().last().expect("HEAD").1.path);
        if whole {
            // A commit on top, which somebody makes while the dropped table goes.
            sample.delete("id = 3").await.expect("deleted");
            late = root.join(&seen(&uri).await.versions().last().expect("HEAD").1.path);
        } else {
            sample.overwrite(5, 500).await.expect("overwritten");
        }
        let bytes = std::fs::read(&late).expect("read");
        std::fs::remove_file(&late).expect("removed");
        let month = std::time::SystemTime::now() - Duration::from_secs(30 * DAY);
        for name in tree(&root).keys() {
            let file = std::fs::File::options().write(true).open(root.join(name)).expect("there");
            file.set_modified(month).expect("touched");
        }
        super::classes::plant(&root.join("data/~.lance"), 30 * DAY);
        let look = seen(&uri).await;
        let item = |e: &squire_lake::listing::Entry| Item { path: e.path.clone(), bytes: e.size, modified: e.modified };
        let mut items: Vec<Item> = match whole {
            true => look.listing.entries.iter().map(item).collect(),
            false => orphans(&look),
        };
        // By its path the data file of the late manifest is the first batch.
        items.sort_by_key(|i| (!i.path.starts_with("data/"), i.path.clone()));
        if whole {
            items.retain(|i| i.path.starts_with("data/") || i.path.starts_with("_versions/"));
        }
        let before = tree(&root);
        let (lake, rate, at) = (lake(), Rate::new(10_000), root_of(&dir));
        let quarantine = Quarantine::open(&lake, &at, PLAN).await.expect("opened");
        let rule = if whole { Rule::Whole } else { Rule::Orphans(ages()) };
        let work = Work { lake: &lake, uri: &uri, items: &items, rule, quarantine: &quarantine, rate: &rate };
        let asked = AtomicUsize::new(0);
        let allowed = || {
            if asked.fetch_add(1, Ordering::SeqCst) == 1 {
                std::fs::write(&late, &bytes).expect("landed");
            }
            async { Ok(nobody()) }
        };
        let mut taken = Taken::default();
        take_away(&mut taken, &work, allowed).await.expect("taken");
        assert_eq!(taken.restored, [items[0].path.clone()], "{whole}: {taken:?}");
        let stopped = taken.stopped.as_ref().is_some_and(|why| why.contains("somebody wrote to it meanwhile"));
        assert_eq!((stopped, taken.moved.0 == 1), (whole, whole), "{taken:?}");
        assert!(before.iter().filter(|_| whole).all(|(path, _)| root.join(path).exists()), "{taken:?}");
        assert!(seen(&uri).await.missing.is_empty());
    }
}

/// Whatever came while it went cannot be seen, and may name it.
#[tokio::test(flavor = "multi_thread")]
async fn what_went_comes_back_where_the_look_after_it_fails() {
    let (dir, items) = with_leftovers().await;
    let before = tree(&dir.path().join("t"));
    let gone = std::sync::atomic::AtomicBool::new(false);
    let lake = faulty(move |operation, object| {
        let own = !object.contains("_squire_quarantine");
        if operation == Operation::Delete && own {
            gone.store(true, Ordering::SeqCst);
        }
        let fails = operation == Operation::List && own && gone.load(Ordering::SeqCst);
        if fails { Fault::Fail(std::io::ErrorKind::TimedOut) } else { Fault::Pass }
    });
    let (taken, done) = take(&lake, &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
    assert!(done.is_err(), "{taken:?}");
    assert_eq!((taken.moved.0, taken.restored.len(), taken.lost.len()), (1, 1, 0), "{taken:?}");
    assert_eq!(tree(&dir.path().join("t")), before);
}

/// An earlier run of the plan moved it, and a clone reads it by now: it is no leftover that has already gone.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_run_moved_and_a_clone_names_by_now_comes_back_in_the_next_run() {
    let (dir, items) = with_leftovers().await;
    take(&lake(), &dir, &items, Rule::Orphans(ages()), u64::MAX).await.1.expect("taken");
    let (lake, rate, at) = (lake(), Rate::new(10_000), root_of(&dir));
    let (uri, rule) = (format!("{at}/t"), Rule::Orphans(ages()));
    let quarantine = Quarantine::open(&lake, &at, PLAN).await.expect("opened");
    let work = Work { lake: &lake, uri: &uri, items: &items, rule, quarantine: &quarantine, rate: &rate };
    let named = || async { Ok(KeepSet::Complete(BTreeSet::from(["data/one.lance".to_string()]))) };
    let mut taken = Taken::default();
    take_away(&mut taken, &work, named).await.expect("taken");
    // With what belongs to it.
    assert_eq!(
        (taken.already, taken.restored),
        (3, ["data/one.lance", "data/one/1 x%41.blob"].map(String::from).into())
    );
    assert!(dir.path().join("t/data/one.lance").exists());
}

/// It may name anything: what went comes back, and nothing more goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_lands_and_cannot_be_read_ends_it() {
    let (dir, items) = with_leftovers().await;
    let before = tree(&dir.path().join("t"));
    let late = dir.path().join(format!("t/_versions/{:020}.manifest", u64::MAX - 9));
    let target = late.clone();
    let lake = faulty(move |operation, object| {
        if operation == Operation::Delete && !object.contains("_squire_quarantine") {
            std::fs::write(&target, "no manifest").expect("landed");
        }
        Fault::Pass
    });
    let (taken, done) = take(&lake, &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
    done.expect("no failure of the whole");
    assert!(taken.stopped.as_ref().is_some_and(|why| why.contains("cannot be read")), "{taken:?}");
    assert_eq!((taken.moved.0, taken.restored.len(), taken.lost.len()), (1, 1, 0), "{taken:?}");
    std::fs::remove_file(late).expect("removed");
    assert_eq!(tree(&dir.path().join("t")), before);
}

/// An older version may be the only good one, and its files look like leftovers to a plan that was made before.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_goes_of_a_dataset_whose_head_needs_what_is_not_there() {
    let (dir, items) = with_leftovers().await;
    let look = seen(&format!("{}/t", root_of(&dir))).await;
    let live = look.listing.entries.iter().find(|e| e.path.starts_with("data/") && look.uses.of(&e.path).is_some());
    std::fs::remove_file(dir.path().join("t").join(&live.expect("a live file").path)).expect("removed");
    let before = tree(dir.path());
    let (taken, done) = take(&lake(), &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
    done.expect("no failure");
    assert!(taken.stopped.as_ref().is_some_and(|why| why.contains("unhealthy")), "{taken:?}");
    assert_eq!(tree(dir.path()), before);
}

/// What lies at its place by now is somebody's, and is never overwritten; the copy stays.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_comes_back_over_what_lies_there_by_now() {
    let (dir, items) = with_leftovers().await;
    take(&lake(), &dir, &items, Rule::Orphans(ages()), u64::MAX).await.1.expect("taken");
    std::fs::create_dir_all(dir.path().join("t/data/one")).expect("made");
    std::fs::write(dir.path().join("t/data/one.lance"), "somebody's").expect("written");
    let copy = dir.path().join(format!("_squire_quarantine/{PLAN}/t/data/one.lance"));
    let copied = std::fs::read(&copy).expect("read");
    let returned = back(&dir).await;
    let failed: BTreeSet<&str> =
        returned.iter().filter_map(|r| if let Returned::Failed(why) = r { Some(why.as_str()) } else { None }).collect();
    assert!(failed.len() == 1 && failed.iter().all(|why| why.contains("another object")), "{returned:?}");
    assert_eq!(std::fs::read(dir.path().join("t/data/one.lance")).expect("it stays"), b"somebody's");
    assert_eq!(std::fs::read(copy).expect("it stays"), copied);
}

/// A marked object is the plan's as long as it was not written again, and goes only if no manifest has come since the two looks.
#[tokio::test(flavor = "multi_thread")]
async fn a_marked_object_that_is_written_again_or_named_since_the_looks_stays() {
    let (dir, uri) = place();
    let mut sample = table(&uri, 2, 10).await;
    sample.overwrite(5, 500).await.expect("overwritten");
    let root = dir.path().join("t");
    let head = root.join(&seen(&uri).await.versions().last().expect("HEAD").1.path);
    let bytes = std::fs::read(&head).expect("read");
    std::fs::remove_file(&head).expect("removed");
    let aged = |path: &Path, days: u64| {
        let file = std::fs::File::options().write(true).open(path).expect("there");
        let then = std::time::SystemTime::now() - Duration::from_secs(days * DAY);
        file.set_modified(then).expect("touched");
    };
    tree(&root).keys().filter(|p| p.starts_with("data")).for_each(|name| aged(&root.join(name), 30));
    super::classes::plant(&root.join("data/0.lance"), 30 * DAY);
    let items: Vec<_> = orphans(&seen(&uri).await).into_iter().filter(|i| i.path.starts_with("data/")).collect();
    let (taken, done) = take(&lake(), &dir, &items, Rule::Orphans(ages()), 1).await;
    done.expect("taken");
    assert_eq!((taken.moved.0, taken.marked.0), (0, 2), "{taken:?}");
    std::fs::write(root.join("data/0.lance"), "somebody's new bytes").expect("written");
    aged(&root.join("data/0.lance"), 20);
    // The manifest lands after both looks, when the manifests are listed once more.
    let (target, lists) = (head.clone(), AtomicUsize::new(0));
    let lake = faulty(move |operation, object| {
        let listed = operation == Operation::List && object.ends_with("t/_versions");
        if listed && lists.fetch_add(1, Ordering::SeqCst) == 2 {
            std::fs::write(&target, &bytes).expect("landed");
        }
        Fault::Pass
    });
    let (rate, at) = (Rate::new(10_000), root_of(&dir));
    let quarantine = Quarantine::open(&lake, &at, PLAN).await.expect("opened");
    let rule = Rule::Orphans(ages());
    let work = Work { lake: &lake, uri: &uri, items: &items, rule, quarantine: &quarantine, rate: &rate };
    let ended = erase_marked(&work, &nobody(), &ages()).await.expect("looked");
    let why: Vec<String> = ended.into_iter().map(|(_, how)| how.expect_err("it stays")).collect();
    assert!(why[0].contains("bytes") && why[1].contains("named by now"), "{why:?}");
    assert!(items.iter().all(|i| root.join(&i.path).exists()));
    assert!(seen(&uri).await.missing.is_empty());
}
