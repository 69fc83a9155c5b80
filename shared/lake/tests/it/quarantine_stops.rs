//! A reclaim that is stopped, wherever that is: nothing is lost, and run again it ends the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use squire_lake::faults::{Fault, Operation};
use squire_lake::quarantine::{Item, Returned, Rule};
use tempfile::TempDir;

use super::quarantine::*;
use super::support::*;

/// From its n-th write on nothing gets through (a killed process), or the n-th answer is lost: for every n, run again it ends the same.
#[tokio::test(flavor = "multi_thread")]
async fn stopped_at_every_write_and_run_again_it_ends_the_same() {
    let (dir, items) = with_leftovers().await;
    let count = Arc::new(AtomicUsize::new(0));
    let counting = {
        let count = count.clone();
        faulty(move |operation, _| {
            if !matches!(operation, Operation::Get | Operation::List) {
                count.fetch_add(1, Ordering::SeqCst);
            }
            Fault::Pass
        })
    };
    let original = tree(dir.path());
    // One of them is too large to copy.
    plant_large(&dir.path().join("t/data/large.lance"));
    let uri = format!("{}/t", root_of(&dir));
    let items_of = async || orphans(&seen(&uri).await);
    let (with_large, before) = (items_of().await, tree(dir.path()));
    assert_eq!((with_large.len(), before.len()), (items.len() + 1, original.len() + 1));
    take(&counting, &dir, &with_large, Rule::Orphans(ages()), 100).await.1.expect("taken");
    let writes = count.load(Ordering::SeqCst);
    assert!(writes >= 11, "five copies, five deletes, one mark: {writes}");
    let wanted = names(dir.path());
    assert!(wanted.iter().any(|p| p.ends_with("marks/t/data/large.lance")), "{wanted:?}");
    for lost in [false, true] {
        for n in 0..writes {
            reset(dir.path(), &before);
            let seen = AtomicUsize::new(0);
            let stopping = faulty(move |operation, _| match operation {
                Operation::List | Operation::Get if lost || seen.load(Ordering::SeqCst) <= n => Fault::Pass,
                Operation::List | Operation::Get => Fault::Fail(std::io::ErrorKind::ConnectionReset),
                _ => match (seen.fetch_add(1, Ordering::SeqCst), lost) {
                    (at, true) if at == n => Fault::LoseAnswer(std::io::ErrorKind::ConnectionReset),
                    (at, false) if at >= n => Fault::Fail(std::io::ErrorKind::ConnectionReset),
                    _ => Fault::Pass,
                },
            });
            let _ = take(&stopping, &dir, &with_large, Rule::Orphans(ages()), 100).await;
            whole_somewhere(dir.path(), &before, &format!("{lost} {n}"));
            run_again(&dir, &with_large, 100, &wanted, &format!("{lost} {n}")).await;
            // And from there everything comes back.
            let returned = back(&dir).await;
            assert!(!returned.iter().any(|r| matches!(r, Returned::Failed(_))), "{lost} {n}: {returned:?}");
            assert_eq!(tree(dir.path()), before, "{lost} {n}");
        }
    }
}

/// The same of every request, questions and listings too: after the n-th nothing gets through any more.
#[tokio::test(flavor = "multi_thread")]
async fn stopped_at_every_request_and_run_again_it_ends_the_same() {
    let (dir, items) = with_leftovers().await;
    let before = tree(dir.path());
    let until = |n: usize| {
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = seen.clone();
        let lake = faulty(move |_, _| match counted.fetch_add(1, Ordering::SeqCst) < n {
            true => Fault::Pass,
            false => Fault::Fail(std::io::ErrorKind::ConnectionReset),
        });
        (lake, seen)
    };
    let (whole, seen) = until(usize::MAX);
    take(&whole, &dir, &items, Rule::Orphans(ages()), u64::MAX).await.1.expect("taken");
    let (requests, wanted) = (seen.load(Ordering::SeqCst), names(dir.path()));
    assert!(
        requests >= 30,
        "five objects with two questions, a copy, a question and a delete each, and three looks: {requests}"
    );
    for n in 0..requests {
        reset(dir.path(), &before);
        let when = format!("after {n} of {requests}");
        let _ = take(&until(n).0, &dir, &items, Rule::Orphans(ages()), u64::MAX).await;
        whole_somewhere(dir.path(), &before, &when);
        run_again(&dir, &items, u64::MAX, &wanted, &when).await;
    }
}

/// At no moment is an object neither here nor there.
#[track_caller]
fn whole_somewhere(dir: &Path, before: &BTreeMap<PathBuf, Vec<u8>>, when: &str) {
    let now = tree(dir);
    for (path, content) in before {
        let copy = Path::new("_squire_quarantine").join(PLAN.to_string()).join(path);
        assert!([now.get(path), now.get(&copy)].contains(&Some(content)), "{when}: {} is lost", path.display());
    }
}

/// Run again with nothing in its way it does all that is left, and ends with these files.
async fn run_again(dir: &TempDir, items: &[Item], limit: u64, wanted: &[PathBuf], when: &str) {
    let (taken, done) = take(&lake(), dir, items, Rule::Orphans(ages()), limit).await;
    done.unwrap_or_else(|e| panic!("{when}: {e}"));
    assert!(taken.failed.is_empty() && taken.left.is_empty(), "{when}: {taken:?}");
    assert_eq!(names(dir.path()), wanted, "{when}");
}

fn names(dir: &Path) -> Vec<PathBuf> {
    tree(dir).into_keys().collect()
}

/// Undoes what a run left: everything is where it was, with its times.
fn reset(dir: &Path, before: &BTreeMap<PathBuf, Vec<u8>>) {
    let quarantine = dir.join("_squire_quarantine").join(PLAN.to_string());
    for path in before.keys() {
        let (at, copy) = (dir.join(path), quarantine.join(path));
        if !at.exists() {
            std::fs::create_dir_all(at.parent().expect("a folder")).expect("made");
            std::fs::rename(copy, at).expect("moved back");
        }
    }
    let _ = std::fs::remove_dir_all(dir.join("_squire_quarantine"));
    assert_eq!(tree(dir).len(), before.len());
}
