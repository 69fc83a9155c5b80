//! Rows that somebody deletes while their fragments are rewritten.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lance::index::DatasetIndexExt;
use squire_lake::commit::Handle;
use squire_lake::compact::{self, Landed, Rewritten, Settings};
use squire_lake::faults::{Fault, Faults, Operation};
use squire_lake::oracle::{self, Leftovers};
use squire_lake::sample::{Columns, Sample, SampleIndex};
use squire_lake::stamp::Stamper;
use squire_lake::verify::{self, Rewrite};
use squire_lake::{Error, Kind, Lake};

use super::support::*;

/// All fragments of HEAD but the ten rows that were appended last, rewritten and not yet landed.
async fn rewritten(lake: &Lake, uri: &str) -> (Arc<Handle>, Vec<Rewritten>) {
    let ids: Vec<u64> = seen(uri).await.fragments.iter().filter(|f| f.physical_rows != 10).map(|f| f.id).collect();
    rewritten_of(lake, uri, &ids).await
}

async fn rewritten_of(lake: &Lake, uri: &str, ids: &[u64]) -> (Arc<Handle>, Vec<Rewritten>) {
    let head = Arc::new(lake.open(uri).await.expect("opened"));
    let settings =
        Settings { target_rows: 40, widest_row_bytes: 100, concurrency: 2, table_config: Default::default() };
    let done = compact::execute(lake, &head, &[ids.to_vec()], &settings).await;
    (head, done.into_iter().map(|d| d.expect("rewritten")).collect())
}

async fn land(lake: &Lake, uri: &str, head: &Arc<Handle>, done: Vec<Rewritten>) -> Result<Landed, (Error, u64)> {
    let place = lake.place(uri).await.expect("a place");
    let stamper = Stamper { estate: uuid::Uuid::new_v4(), run: uuid::Uuid::now_v7() };
    compact::land(lake, &place, head, done, (&stamper, 1), &squire_lake::commit::nobody_to_ask).await
}

/// Four fragments of 25 rows, of which one is gone already.
async fn sample(uri: &str, stable_row_ids: bool) -> Sample {
    let mut sample = Sample::new(uri, Columns::default());
    if stable_row_ids {
        sample = sample.with_stable_row_ids();
    }
    for i in 0..4 {
        sample.write(25, i * 25).await.expect("written");
    }
    sample.delete("id = 7").await.expect("deleted");
    sample
}

async fn is_whole(uri: &str, wanted: impl Iterator<Item = i64>) {
    let wanted: Vec<i64> = wanted.collect();
    assert_eq!(Sample::ids(&lake(), uri, None).await.expect("it reads"), wanted);
    assert_eq!(oracle::check(&lake(), uri, Leftovers::None).await, [], "every file is named, and no other is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_while_it_is_rewritten_stays_deleted() {
    for stable_row_ids in [false, true] {
        let (_dir, uri) = place();
        let mut writer = sample(&uri, stable_row_ids).await;
        for index in [SampleIndex::BTree, SampleIndex::FullText] {
            writer.index(index).await.expect("indexed");
        }
        let lake = lake();
        let (head, done) = rewritten(&lake, &uri).await;
        assert_eq!(done.iter().map(Rewritten::fragments_added).sum::<usize>(), 2);
        for gone in ["id in (0, 8, 49, 50, 99)", "id = 51"] {
            writer.delete(gone).await.expect("deleted");
        }
        writer.index(SampleIndex::Bitmap).await.expect("one more index, which is remapped, too");
        writer.write(10, 1_000).await.expect("appended");
        let landed = land(&lake, &uri, &head, done).await.expect("a delete is no lost race");
        assert_eq!((landed.stranded, landed.after - landed.before), (0, 1));

        let gone = [0, 7, 8, 49, 50, 51, 99];
        let wanted = || (0..100).filter(|id| !gone.contains(id)).chain(1_000..1_010);
        is_whole(&uri, wanted()).await;
        let look = seen(&uri).await;
        let deleted: u64 = look.fragments.iter().map(|f| f.deleted_rows).sum();
        assert_eq!((look.fragments.len(), deleted), (3, 6), "two new fragments, and the append");
        assert!(look.indices.iter().all(|i| i.unindexed_rows == 10), "{:?}", look.indices);
        let rewrite = Rewrite { before: landed.before, after: landed.after, groups: landed.groups };
        let checks = verify::verify(&lake, &uri, &rewrite, &look.indices).await.expect("the same answers");
        assert_eq!((checks.rows, checks.sampled_rows), (103, 64));
        assert!(checks.indices.iter().all(|i| i.exact == Some(true)) && checks.indices.len() == 3, "{checks:?}");

        // As any other deletion: more can follow, and the next rewrite leaves the rows out.
        let mut writer = Sample::open(&lake, &uri, Columns::default()).await.expect("opened");
        writer.delete("id = 1").await.expect("deleted");
        let (head, done) = rewritten(&lake, &uri).await;
        land(&lake, &uri, &head, done).await.expect("landed");
        assert_eq!(seen(&uri).await.fragments.iter().map(|f| f.deleted_rows).sum::<u64>(), 0);
        is_whole(&uri, wanted().filter(|id| *id != 1)).await;
    }
}

/// Somebody acts from another thread and with a session of their own.
fn elsewhere(uri: &str, act: impl AsyncFnOnce(Sample) + Send + 'static) {
    let uri = uri.to_string();
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async { act(Sample::open(&lake(), &uri, Columns::default()).await.expect("opened")).await });
    };
    std::thread::spawn(work).join().expect("they acted");
}

/// Restores and deletes.
fn meanwhile(uri: &str, restore: Option<u64>, predicate: String) {
    elsewhere(uri, async move |mut sample| {
        if let Some(version) = restore {
            sample.restore(version).await.expect("restored");
        }
        sample.delete(&predicate).await.expect("deleted");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_between_two_tries_of_one_commit_costs_another_try_and_no_rewrite() {
    let (_dir, uri) = place();
    sample(&uri, false).await.index(SampleIndex::BTree).await.expect("indexed");
    let (commits, of) = (Arc::new(AtomicUsize::new(0)), uri.clone());
    let counted = commits.clone();
    // The reservation's is the first; then somebody is faster three times.
    let faults = Faults::new(move |op, path| {
        if op == Operation::Put && path.contains("/_transactions/") {
            let n = counted.fetch_add(1, Ordering::SeqCst);
            if (1..=3).contains(&n) {
                meanwhile(&of, None, format!("id = {}", 10 * n));
            }
        }
        Fault::Pass
    });
    let lake = Lake::with_faults(Arc::new(|_: &str| HashMap::new()), 256 << 20, faults);
    let (head, done) = rewritten(&lake, &uri).await;
    let landed = land(&lake, &uri, &head, done).await.expect("the fourth try is alone");
    assert_eq!((landed.stranded, commits.load(Ordering::SeqCst)), (0, 5));
    is_whole(&uri, (0..100).filter(|id| ![7, 10, 20, 30].contains(id))).await;
    let look = seen(&uri).await;
    assert_eq!(look.fragments.iter().map(|f| f.deleted_rows).sum::<u64>(), 3);
    assert!(look.indices.iter().all(|i| i.unindexed_rows == 0), "{:?}", look.indices);
}

/// The store has the deletion file and its answer was lost: nobody knows its random name, and it goes with the rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_file_whose_answer_is_lost_is_found_and_removed() {
    let (_dir, uri) = place();
    let mut writer = sample(&uri, false).await;
    let faults = Faults::new(|op, path| {
        let lost = op == Operation::Put && path.contains("/_deletions/");
        if lost { Fault::LoseAnswer(std::io::ErrorKind::ConnectionReset) } else { Fault::Pass }
    });
    let lake = Lake::with_faults(Arc::new(|_: &str| HashMap::new()), 256 << 20, faults);
    let (head, done) = rewritten(&lake, &uri).await;
    writer.delete("id = 10").await.expect("deleted");
    let (error, stranded) = land(&lake, &uri, &head, done).await.expect_err("the delete was first");
    assert_eq!((error.kind(), stranded), (Kind::Conflict, 0), "{error}");
    is_whole(&uri, (0..100).filter(|id| ![7, 10].contains(id))).await;
}

/// Asked before each try, not once: the first is allowed and lost, the second is forbidden.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_forbidden_meanwhile_is_not_committed_and_leaves_nothing() {
    for allowed in [0, 1] {
        let (_dir, uri) = place();
        sample(&uri, false).await.index(SampleIndex::BTree).await.expect("indexed");
        let (commits, of) = (AtomicUsize::new(0), uri.clone());
        let faults = Faults::new(move |op, path| {
            if op == Operation::Put && path.contains("/_transactions/") && commits.fetch_add(1, Ordering::SeqCst) == 1 {
                meanwhile(&of, None, "id = 10".into());
            }
            Fault::Pass
        });
        let lake = Lake::with_faults(Arc::new(|_: &str| HashMap::new()), 256 << 20, faults);
        let (head, done) = rewritten(&lake, &uri).await;
        let (at, asked) = (lake.place(&uri).await.expect("a place"), AtomicUsize::new(0));
        let stamper = Stamper { estate: uuid::Uuid::new_v4(), run: uuid::Uuid::now_v7() };
        let may_commit = || -> futures::future::BoxFuture<'_, Result<(), String>> {
            let n = asked.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move { if n < allowed { Ok(()) } else { Err("frozen".into()) } })
        };
        let landed = compact::land(&lake, &at, &head, done, (&stamper, 1), &may_commit).await;
        let (error, stranded) = landed.expect_err("it is forbidden");
        let kind = if allowed == 0 { Kind::Refused } else { Kind::Conflict };
        assert_eq!((error.kind(), stranded, asked.load(Ordering::SeqCst)), (kind, 0, allowed + 1), "{error}");
        let gone: &[i64] = if allowed == 0 { &[7] } else { &[7, 10] };
        is_whole(&uri, (0..100).filter(|id| !gone.contains(id))).await;
    }
}

/// It was not remapped, so after the rewrite it would cover fragments that are gone and none of the new ones.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_is_made_between_two_tries_of_one_commit_keeps_what_it_covers() {
    let (_dir, uri) = place();
    sample(&uri, false).await.index(SampleIndex::BTree).await.expect("indexed");
    let (commits, of) = (AtomicUsize::new(0), uri.clone());
    let faults = Faults::new(move |op, path| {
        if op == Operation::Put && path.contains("/_transactions/") && commits.fetch_add(1, Ordering::SeqCst) == 1 {
            elsewhere(&of, async |mut sample| {
                sample.index(SampleIndex::Bitmap).await.expect("indexed");
                sample.delete("id = 10").await.expect("deleted");
            });
        }
        Fault::Pass
    });
    let lake = Lake::with_faults(Arc::new(|_: &str| HashMap::new()), 256 << 20, faults);
    let (head, done) = rewritten(&lake, &uri).await;
    let (error, stranded) = land(&lake, &uri, &head, done).await.expect_err("the index was first");
    assert_eq!((error.kind(), stranded), (Kind::Conflict, 0), "{error}");
    is_whole(&uri, (0..100).filter(|id| ![7, 10].contains(id))).await;
    let look = seen(&uri).await;
    assert_eq!(look.indices.iter().map(|i| i.unindexed_rows).collect::<Vec<_>>(), [0, 0], "{:?}", look.indices);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_back_between_two_tries_of_one_commit_are_not_lost() {
    let (_dir, uri) = place();
    sample(&uri, false).await;
    let (commits, of) = (AtomicUsize::new(0), uri.clone());
    let faults = Faults::new(move |op, path| {
        // More rows than were deleted when it was read, and not the same: row 7 is back.
        if op == Operation::Put && path.contains("/_transactions/") && commits.fetch_add(1, Ordering::SeqCst) == 1 {
            meanwhile(&of, Some(4), "id in (3, 4)".into());
        }
        Fault::Pass
    });
    let lake = Lake::with_faults(Arc::new(|_: &str| HashMap::new()), 256 << 20, faults);
    let (head, done) = rewritten(&lake, &uri).await;
    let (error, stranded) = land(&lake, &uri, &head, done).await.expect_err("a restore was first");
    assert_eq!((error.kind(), stranded), (Kind::Conflict, 0), "{error}");
    is_whole(&uri, (0..100).filter(|id| ![3, 4].contains(id))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fragment_that_is_gone_meanwhile_is_one_whose_rows_are_all_deleted() {
    let (_dir, uri) = place();
    let mut writer = sample(&uri, false).await;
    writer.index(SampleIndex::BTree).await.expect("indexed");
    let lake = lake();
    let (head, done) = rewritten(&lake, &uri).await;
    writer.delete("id < 24").await.expect("deleted");
    writer.write(10, 1_000).await.expect("appended");
    writer.delete("id = 24").await.expect("and fragment 0 is gone");
    // Fragment 1 is rewritten by somebody else: its rows are elsewhere.
    let theirs = rewritten_of(&lake, &uri, &[1]).await;
    land(&lake, &uri, &theirs.0, theirs.1).await.expect("landed");
    assert_eq!(seen(&uri).await.fragments.iter().map(|f| f.id).collect::<Vec<_>>(), [2, 3, 4, 5]);
    let landed = land(&lake, &uri, &head, done).await.expect("half of it is there");
    is_whole(&uri, (25..100).chain(1_000..1_010)).await;
    let look = seen(&uri).await;
    let rewrite = Rewrite { before: landed.before, after: landed.after, groups: landed.groups };
    let checks = verify::verify(&lake, &uri, &rewrite, &look.indices).await.expect("the same answers");
    assert_eq!(checks.indices[0].exact, Some(true));
    assert!(look.indices.iter().all(|i| i.unindexed_rows == 10), "{:?}", look.indices);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_deleted_rows_is_a_lost_race_and_leaves_nothing_behind() {
    for case in ["an index", "a column", "a rewrite"] {
        let (_dir, uri) = place();
        let mut writer = sample(&uri, false).await;
        let lake = lake();
        let (head, done) = rewritten(&lake, &uri).await;
        let wanted = (0..100).filter(|id| ![3, 7].contains(id));
        match case {
            "an index" => drop(writer.index(SampleIndex::BTree).await.expect("indexed")),
            "a column" => drop(writer.drop_column("kind").await.expect("dropped")),
            _ => {
                let (head, done) = rewritten(&lake, &uri).await;
                land(&lake, &uri, &head, done).await.expect("somebody else's");
            }
        }
        let mut writer = Sample::open(&lake, &uri, Columns::default()).await.expect("opened");
        writer.delete("id = 3").await.expect("deleted");
        let (error, stranded) = land(&lake, &uri, &head, done).await.expect_err(case);
        assert_eq!((error.kind(), stranded), (Kind::Conflict, 0), "{case}: {error}");
        is_whole(&uri, wanted).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn results_that_were_read_at_several_versions_are_not_taken_for_one() {
    let (_dir, uri) = place();
    let mut writer = sample(&uri, false).await;
    let lake = lake();
    let (head, mut done) = rewritten_of(&lake, &uri, &[0, 1]).await;
    writer.delete("id = 50").await.expect("deleted");
    done.extend(rewritten_of(&lake, &uri, &[2, 3]).await.1);
    writer.delete("id = 60").await.expect("deleted");
    let (error, stranded) =
        land(&lake, &uri, &head, done).await.expect_err("of one of them it is not known what was deleted");
    assert_eq!((error.kind(), stranded), (Kind::Conflict, 0), "{error}");
    is_whole(&uri, (0..100).filter(|id| ![7, 50, 60].contains(id))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_index_was_remapped_to_goes_when_the_index_was_dropped_meanwhile() {
    let (_dir, uri) = place();
    sample(&uri, false).await.index(SampleIndex::BTree).await.expect("indexed");
    let (commits, of) = (AtomicUsize::new(0), uri.clone());
    let faults = Faults::new(move |op, path| {
        if op == Operation::Put && path.contains("/_transactions/") && commits.fetch_add(1, Ordering::SeqCst) == 1 {
            let uri = of.clone();
            let work = move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(async {
                    let mut head = self::lake().open(&uri).await.expect("opened");
                    head.drop_index("id_idx").await.expect("dropped");
                });
            };
            std::thread::spawn(work).join().expect("it dropped");
        }
        Fault::Pass
    });
    let lake = Lake::with_faults(Arc::new(|_: &str| HashMap::new()), 256 << 20, faults);
    let (head, done) = rewritten(&lake, &uri).await;
    let landed = land(&lake, &uri, &head, done).await.expect("an index less is no lost race");
    assert_eq!((landed.stranded, seen(&uri).await.indices.len()), (0, 0));
    is_whole(&uri, (0..100).filter(|id| *id != 7)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_is_not_made_twice() {
    // Whether the store tells afterwards what became of it.
    for told in [true, false] {
        let (_dir, uri) = place();
        let mut writer = sample(&uri, true).await;
        writer.index(SampleIndex::BTree).await.expect("indexed");
        let (manifests, silent) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
        let now_silent = silent.clone();
        let faults = Faults::new(move |op, path| {
            let reset = std::io::ErrorKind::ConnectionReset;
            let versions = path.contains("/_versions");
            // The reservation's is the first.
            if op == Operation::Put
                && versions
                && path.ends_with(".manifest")
                && manifests.fetch_add(1, Ordering::SeqCst) == 1
            {
                now_silent.store(!told, Ordering::SeqCst);
                return Fault::LoseAnswer(reset);
            }
            if versions && now_silent.load(Ordering::SeqCst) { Fault::Fail(reset) } else { Fault::Pass }
        });
        let lake = Lake::with_faults(Arc::new(|_: &str| HashMap::new()), 256 << 20, faults);
        let (head, done) = rewritten(&lake, &uri).await;
        writer.delete("id in (1, 60)").await.expect("deleted");
        let wanted = || (0..100).filter(|id| ![1, 7, 60].contains(id));
        let first = land(&lake, &uri, &head, done.clone()).await;
        silent.store(false, Ordering::SeqCst);
        match first {
            Ok(landed) => assert!(told && landed.stranded == 0),
            Err((error, stranded)) => {
                assert!(!told && !error.proves_loss() && stranded > 0, "{error}: {stranded}");
            }
        }
        let version = seen(&uri).await.version();
        is_whole(&uri, wanted()).await;
        let mut writer = Sample::open(&self::lake(), &uri, Columns::default()).await.expect("opened");
        writer.delete("id = 2").await.expect("deleted");
        let (error, stranded) = land(&lake, &uri, &head, done).await.expect_err("it has landed");
        assert!(error.kind() == Kind::Conflict && stranded > 0, "what HEAD names stays: {error}");
        is_whole(&uri, wanted().filter(|id| *id != 2)).await;
        assert_eq!(seen(&uri).await.version(), version + 2, "the delete and a reservation");
    }
}
