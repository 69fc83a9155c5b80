//! Version clean-up: nothing goes that anybody names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use squire_lake::Lake;
use squire_lake::clean::{self, Rate, removal};
use squire_lake::faults::{Fault, Faults, Operation};
use squire_lake::look::{Look, owner};
use squire_lake::refs::{CloneGraph, KeepSet};
use squire_lake::sample::{Sample, SampleIndex};

use super::support::*;

fn rate() -> Rate {
    Rate::new(100_000)
}

async fn apply(look: &Look, going: &BTreeSet<u64>) -> clean::Cleaned {
    let plan = removal(look, going, &KeepSet::Complete(BTreeSet::new())).expect("complete");
    let place = lake().place(&look.uri).await.expect("a place");
    clean::apply(&place, &plan, &rate(), || async { Ok(()) }, |_| {}).await.expect("applied")
}

/// Every file that any manifest still there names is there.
async fn assert_whole(uri: &str) {
    let now = seen(uri).await;
    let listed: BTreeSet<String> = now.listing.entries.iter().filter_map(|e| owner(&e.path)).collect();
    for path in now.uses.paths() {
        // A deletion of all rows or an untrained index may name an empty directory.
        assert!(listed.contains(path), "{path} is named and gone");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// For any history and any choice of versions, every path that a surviving manifest names exists.
    #[test]
    fn every_path_that_a_surviving_manifest_names_exists(
        steps in proptest::collection::vec(0_u8..7, 3..14),
        choice in proptest::collection::vec(any::<bool>(), 32),
    ) {
        runtime().block_on(async {
            let (_dir, uri) = place();
            let mut sample = table(&uri, 2, 20).await;
            for (i, step) in steps.iter().enumerate() {
                let start = 1_000 * (i as i64 + 1);
                match step {
                    0 | 1 => { sample.write(10, start).await.expect("append"); }
                    2 => { sample.delete(&format!("id % 7 = {}", i % 7)).await.expect("delete"); }
                    3 => { sample.overwrite(15, start).await.expect("overwrite"); }
                    4 => { sample.index(SampleIndex::BTree).await.expect("index"); }
                    5 => { sample.tag(&format!("t{i}"), sample.version()).await.expect("tag"); }
                    _ => { sample.branch(&format!("b{i}"), sample.version()).await.expect("branch"); }
                }
            }
            let look = seen(&uri).await;
            let named: BTreeSet<u64> = look.tags.values().map(|t| t.version).chain(look.branches.values().map(|b| b.1)).collect();
            let going: BTreeSet<u64> = look
                .versions()
                .iter()
                .map(|(_, m)| m.version)
                .zip(&choice)
                .filter(|(v, go)| **go && *v != look.version() && !named.contains(v))
                .map(|(v, _)| v)
                .collect();
            let cleaned = apply(&look, &going).await;
            assert_eq!(cleaned.versions.iter().copied().collect::<BTreeSet<_>>(), going);
            assert_whole(&uri).await;
            let lake = lake();
            Sample::ids(&lake, &uri, None).await.expect("HEAD reads");
            for v in named {
                Sample::ids(&lake, &uri, Some(v)).await.expect("a named version reads");
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_we_remove_is_what_lance_would_verify() {
    let (_dir, uri) = place();
    let mut sample = table(&uri, 3, 20).await;
    sample.index(SampleIndex::BTree).await.expect("indexed");
    sample.overwrite(20, 500).await.expect("overwritten");
    sample.delete("id = 501").await.expect("deleted");
    let look = seen(&uri).await;
    let going: BTreeSet<u64> = (1..look.version()).collect();
    let plan = removal(&look, &going, &KeepSet::Complete(BTreeSet::new())).expect("complete");
    let mut ours: Vec<String> =
        plan.files.iter().map(|f| f.path.clone()).chain(plan.versions.iter().map(|v| v.manifest.clone())).collect();
    ours.sort();
    let theirs = squire_lake::sample::lance_would_remove(&lake(), &uri).await.expect("explained");
    assert_eq!(ours, theirs);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clones_files_stay_and_the_versions_go() {
    let (_dir, uri) = place();
    let clone = format!("{uri}-clone");
    let mut sample = table(&uri, 3, 20).await;
    sample.clone_to(&clone).await.expect("cloned");
    sample.overwrite(5, 900).await.expect("overwritten");
    let mut graph = CloneGraph::default();
    graph.add(&clone, seen(&clone).await.reads);
    let look = seen(&uri).await;
    let plan = removal(&look, &(1..look.version()).collect(), &graph.keep_set(&uri)).expect("complete");
    assert_eq!(plan.versions.len(), 3);
    assert!(plan.files.iter().all(|f| !f.path.starts_with("data/")), "{:?}", plan.files);
    let place = lake().place(&uri).await.expect("a place");
    clean::apply(&place, &plan, &rate(), || async { Ok(()) }, |_| {}).await.expect("applied");
    assert_eq!(Sample::ids(&lake(), &clone, None).await.expect("the clone reads").len(), 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_keep_set_removes_nothing() {
    let (_dir, uri) = place();
    table(&uri, 3, 20).await;
    let look = seen(&uri).await;
    let mut graph = CloneGraph::default();
    graph.add_unread("s3://other/bucket");
    let why = removal(&look, &(1..look.version()).collect(), &graph.keep_set(&uri)).expect_err("refused");
    assert!(why[0].contains("s3://other/bucket"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_made_between_plan_and_apply_keeps_its_version() {
    let (_dir, uri) = place();
    let mut sample = table(&uri, 5, 20).await;
    let look = seen(&uri).await;
    sample.tag("late", 2).await.expect("tagged");
    let cleaned = apply(&look, &(1..5).collect()).await;
    assert!(cleaned.stopped.as_deref().is_some_and(|w| w.contains("late")), "{cleaned:?}");
    assert!(cleaned.versions.is_empty());
    assert_eq!(Sample::ids(&lake(), &uri, Some(2)).await.expect("the tagged version reads").len(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_made_between_plan_and_apply_keeps_its_files() {
    let (_dir, uri) = place();
    let mut sample = table(&uri, 2, 20).await;
    sample.overwrite(5, 900).await.expect("overwritten");
    let look = seen(&uri).await;
    sample.restore(2).await.expect("restored");
    let cleaned = apply(&look, &(1..3).collect()).await;
    assert!(cleaned.stopped.is_some(), "{cleaned:?}");
    assert_eq!(Sample::ids(&lake(), &uri, None).await.expect("HEAD reads").len(), 40);
    assert_whole(&uri).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_plan_names_is_deleted() {
    let (dir, uri) = place();
    table(&uri, 5, 20).await;
    let stray = dir.path().join("t/data/stray.lance");
    std::fs::write(&stray, b"nobody names me").expect("written");
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(30 * 86_400);
    std::fs::File::options().write(true).open(&stray).and_then(|f| f.set_modified(old)).expect("touched");
    let look = seen(&uri).await;
    let plan = removal(&look, &(1..5).collect(), &KeepSet::Complete(BTreeSet::new())).expect("complete");
    let before: BTreeSet<String> = look.listing.entries.iter().map(|e| e.path.clone()).collect();
    apply(&look, &(1..5).collect()).await;
    let after: BTreeSet<String> = seen(&uri).await.listing.entries.iter().map(|e| e.path.clone()).collect();
    let gone: BTreeSet<String> = before.difference(&after).cloned().collect();
    let named: BTreeSet<String> =
        plan.files.iter().map(|f| f.path.clone()).chain(plan.versions.iter().map(|v| v.manifest.clone())).collect();
    assert_eq!(gone, named);
    assert!(stray.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_made_between_plan_and_apply_keeps_its_version() {
    let (_dir, uri) = place();
    let mut sample = table(&uri, 5, 20).await;
    let look = seen(&uri).await;
    sample.branch("late", 2).await.expect("branched");
    let cleaned = apply(&look, &(1..5).collect()).await;
    assert!(cleaned.stopped.as_deref().is_some_and(|w| w.contains("late")), "{cleaned:?}");
    assert!(cleaned.versions.is_empty());
    assert_eq!(Sample::ids(&lake(), &uri, Some(2)).await.expect("the branch's version reads").len(), 40);
}

fn manifest(table: &Path, version: u64) -> PathBuf {
    table.join(format!("_versions/{:020}.manifest", u64::MAX - version))
}

/// A detached version, a tag that cannot be read, a HEAD that went away: each may hold what the plan lets go.
#[tokio::test(flavor = "multi_thread")]
async fn what_apply_cannot_vouch_for_stops_it_before_the_first_delete() {
    type Act = fn(&Path) -> std::io::Result<()>;
    let acts: [(&str, Act); 3] = [
        ("detached", |t| std::fs::copy(manifest(t, 1), t.join("_versions/d9223372036854775809.manifest")).map(|_| ())),
        ("no longer be read", |t| {
            std::fs::create_dir_all(t.join("_refs/tags"))?;
            std::fs::write(t.join("_refs/tags/late.json"), b"{")
        }),
        ("backwards", |t| std::fs::remove_file(manifest(t, 5))),
    ];
    for (why, act) in acts {
        let (dir, uri) = place();
        table(&uri, 5, 20).await;
        let look = seen(&uri).await;
        act(&dir.path().join("t")).expect(why);
        let cleaned = apply(&look, &(1..5).collect()).await;
        assert!(cleaned.stopped.as_deref().is_some_and(|w| w.contains(why)), "{why}: {cleaned:?}");
        assert!(cleaned.versions.is_empty() && cleaned.files == 0, "{why}: {cleaned:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_made_while_manifests_go_brings_them_back() {
    let (dir, uri) = place();
    let mut sample = table(&uri, 5, 20).await;
    let look = seen(&uri).await;
    let plan = removal(&look, &(1..5).collect(), &KeepSet::Complete(BTreeSet::new())).expect("complete");
    let at = lake().place(&uri).await.expect("a place");
    // One delete a second: the tag comes after the first manifest went and before the last.
    let slow = Rate::new(1);
    let first = manifest(&dir.path().join("t"), 1);
    let tagger = async {
        let deadline = Instant::now() + Duration::from_secs(20);
        while first.exists() {
            assert!(Instant::now() < deadline, "no manifest went");
            tokio::task::yield_now().await;
        }
        sample.tag("late", 4).await.expect("tagged");
    };
    let (cleaned, ()) = tokio::join!(clean::apply(&at, &plan, &slow, || async { Ok(()) }, |_| {}), tagger);
    let cleaned = cleaned.expect("applied");
    assert!(cleaned.stopped.as_deref().is_some_and(|w| w.contains("late")), "{cleaned:?}");
    assert_eq!((cleaned.versions.len(), cleaned.files, cleaned.bytes), (0, 0, 0));
    for version in 1..=5 {
        let ids = Sample::ids(&lake(), &uri, Some(version)).await.expect("every version is back");
        assert_eq!(ids.len() as u64, 20 * version);
    }
}

/// One by one, as on a local disk: what could not be deleted is counted as failed and not as gone, a manifest that stays keeps its
/// files, and the next clean-up finds both again.
#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_deleted_is_told_and_found_again() {
    for fails in ["_transactions/", &format!("{:020}.manifest", u64::MAX - 3)] {
        let (_dir, uri) = place();
        let mut sample = table(&uri, 3, 20).await;
        sample.overwrite(5, 500).await.expect("overwritten");
        let look = seen(&uri).await;
        let plan = removal(&look, &(1..4).collect(), &KeepSet::Complete(BTreeSet::new())).expect("complete");
        let part = fails.to_string();
        let faults = Faults::new(move |operation, path| match operation == Operation::Delete && path.contains(&part) {
            true => Fault::Fail(std::io::ErrorKind::ConnectionReset),
            false => Fault::Pass,
        });
        let lake = Lake::with_faults(std::sync::Arc::new(|_: &str| Default::default()), 256 << 20, faults);
        let place = lake.place(&uri).await.expect("a place");
        let cleaned = clean::apply(&place, &plan, &rate(), || async { Ok(()) }, |_| {}).await.expect("applied");
        let left = |look: &Look| {
            let there = |path: &str| look.listing.get(path).is_some();
            let versions = plan.versions.iter().filter(|v| there(&v.manifest)).count();
            (versions, plan.files.iter().filter(|f| there(&f.path)).count())
        };
        let (versions, files) = left(&seen(&uri).await);
        assert_eq!(cleaned.versions.len(), plan.versions.len() - versions, "{fails}: {cleaned:?}");
        assert_eq!(cleaned.files as usize, plan.files.len() - files, "{fails}: {cleaned:?}");
        assert!(cleaned.failed > 0 && cleaned.bytes < plan.bytes(), "{fails}: {cleaned:?}");
        if versions == 1 {
            assert_eq!(cleaned.failed, 1, "its files are not tried: {cleaned:?}");
            assert_eq!(Sample::ids(&super::support::lake(), &uri, Some(3)).await.expect("it reads").len(), 60);
            let again = apply(&seen(&uri).await, &[3].into()).await;
            assert_eq!((again.versions, again.failed, left(&seen(&uri).await)), (vec![3], 0, (0, 0)));
        }
    }
}

/// As on a store without bulk deletes: one request for each object and no more, one read for each manifest, and how far it is.
#[tokio::test(flavor = "multi_thread")]
async fn each_object_is_one_delete_and_each_chunk_tells_how_far_it_is() {
    let (_dir, uri) = place();
    table(&uri, 205, 1).await.overwrite(5, 500).await.expect("overwritten");
    let look = seen(&uri).await;
    let plan = removal(&look, &(1..206).collect(), &KeepSet::Complete(BTreeSet::new())).expect("complete");
    let counts = std::sync::Arc::new(std::sync::Mutex::new([0_usize; 5]));
    let counted = counts.clone();
    let faults = Faults::new(move |operation, _| {
        counted.lock().expect("not poisoned")[operation as usize] += 1;
        Fault::Pass
    });
    let lake = Lake::with_faults(std::sync::Arc::new(|_: &str| Default::default()), 256 << 20, faults);
    let mut told = Vec::new();
    // At this rate a chunk has 100 versions.
    let place = lake.place(&uri).await.expect("a place");
    clean::apply(&place, &plan, &Rate::new(500), || async { Ok(()) }, |n| told.push(n)).await.expect("applied");
    assert_eq!(told, [100, 200, 205]);
    // Of each version a manifest and a transaction, of each append a data file.
    assert_eq!((plan.versions.len(), plan.files.len()), (205, 410));
    let counts = *counts.lock().expect("not poisoned");
    let of = |operation: Operation| counts[operation as usize];
    assert_eq!((of(Operation::Delete), of(Operation::Put), of(Operation::Copy)), (615, 0, 0), "{counts:?}");
    assert_eq!(of(Operation::Get), 205, "{counts:?}");
    // Tags, branches and versions, before and after the manifests of each chunk.
    assert!(of(Operation::List) <= 3 * 2 * 3, "{counts:?}");
    assert_whole(&uri).await;
}
