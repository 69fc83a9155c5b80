//! Random histories beside a rewrite: what others write between its execution and its commit, and between two tries of the commit.
//!
//! The version just before the rewrite is the same history without it: both must have the same rows, row ids and row versions, and
//! every index answers as a scan does. Then old versions go while somebody writes on, or restores one of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{ArrayRef, Float32Array, RecordBatch};
use arrow_cast::display::array_value_to_string;
use lance::Dataset;
use lance::dataset::{WriteMode, WriteParams};
use lance::index::DatasetIndexExt;
use lance_file::version::LanceFileVersion;
use lance_index::scalar::FullTextSearchQuery;
use squire_lake::clean::{self, Rate};
use squire_lake::compact::stored::{Slice, Stored, is_current};
use squire_lake::compact::{self, Rewritten, Settings};
use squire_lake::faults::{Fault, Faults, Operation};
use squire_lake::handle::Place;
use squire_lake::oracle::{self, Leftovers};
use squire_lake::refs::KeepSet;
use squire_lake::stamp::Stamper;
use squire_lake::verify::{self, Rewrite};
use squire_lake::{Kind, Lake};

use super::others::{Others, WIDTH, WORDS, index};
use super::schedules::Dice;
use super::support::*;

/// Runs of neighbours of which every index covers all or nothing.
async fn groups(ds: &Dataset, dice: &mut Dice) -> Vec<Vec<u64>> {
    let indices = ds.load_indices().await.expect("indices");
    let mut out: Vec<(Vec<bool>, Vec<u64>)> = Vec::new();
    for fragment in ds.fragments().iter() {
        let covered: Vec<bool> = indices
            .iter()
            .map(|i| i.fragment_bitmap.as_ref().is_some_and(|b| b.contains(fragment.id as u32)))
            .collect();
        match out.last_mut() {
            Some((same, run)) if *same == covered && dice.roll(6) > 0 => run.push(fragment.id),
            _ => out.push((covered, vec![fragment.id])),
        }
    }
    out.into_iter().map(|(_, run)| run).filter(|run| run.len() > 1 || dice.roll(4) == 0).collect()
}

/// All rows of a version as text, with what is said about each row where it has an id that stays.
async fn content(ds: &Dataset) -> Vec<String> {
    let mut columns: Vec<String> = ds.schema().fields.iter().map(|f| f.name.clone()).collect();
    let mut scan = ds.scan();
    if ds.manifest().uses_stable_row_ids() {
        columns.extend(["_rowid", "_row_created_at_version", "_row_last_updated_at_version"].map(String::from));
    }
    let batch = scan.project(&columns).expect("columns").try_into_batch().await.expect("it reads");
    let cell = |c: &ArrayRef, row| array_value_to_string(c, row).expect("text");
    let mut out: Vec<String> = (0..batch.num_rows())
        .map(|row| batch.columns().iter().map(|c| cell(c, row)).collect::<Vec<_>>().join("|"))
        .collect();
    out.sort();
    out
}

fn ids(batch: &RecordBatch) -> Vec<i64> {
    let mut ids = batch["id"].as_primitive::<Int64Type>().values().to_vec();
    ids.sort_unstable();
    ids
}

/// Every index answers as a scan does, and every row is found by its row id.
async fn answers_rightly(ds: &Dataset, next_id: i64, told: &str) {
    ds.validate().await.unwrap_or_else(|e| panic!("{told}: {e}"));
    let mut scan = ds.scan();
    let all = scan.project(&["id", "body"]).expect("columns").with_row_id().try_into_batch().await.expect(told);
    assert_eq!(ds.count_rows(None).await.expect(told), all.num_rows(), "{told}");
    let row_ids: Vec<u64> = all["_rowid"].as_primitive::<UInt64Type>().values().to_vec();
    let taken = ds.take_rows(&row_ids, ds.schema().project(&["id"]).expect("a column")).await.expect(told);
    assert_eq!(
        taken["id"].as_primitive::<Int64Type>().values(),
        all["id"].as_primitive::<Int64Type>().values(),
        "{told}: by row id"
    );
    let mut filters: Vec<String> = (0..next_id).step_by(7).map(|id| format!("id = {id}")).collect();
    filters.extend((0..next_id).step_by(13).map(|id| format!("value = {}", id * 10)));
    filters.extend(WORDS.map(|w| format!("kind = '{w}'")));
    filters.extend(["id >= 10 and id < 70", "value is null", "value > 500", "kind != 'copper'"].map(String::from));
    for filter in filters {
        let mut answers = Vec::new();
        for indexed in [true, false] {
            let mut scan = ds.scan();
            scan.project(&["id"]).expect("a column").filter(&filter).expect("a filter").use_scalar_index(indexed);
            answers.push(ids(&scan.try_into_batch().await.unwrap_or_else(|e| panic!("{told}: {filter}: {e}"))));
        }
        assert_eq!(answers[0], answers[1], "{told}: {filter}");
    }
    let names: BTreeSet<String> = ds.load_indices().await.expect(told).iter().map(|i| i.name.clone()).collect();
    if names.contains("body_idx") {
        for word in WORDS {
            let mut scan = ds.scan();
            let query = FullTextSearchQuery::new(word.to_string());
            scan.project(&["id"]).expect("a column").full_text_search(query).expect("a query");
            let found = ids(&scan.try_into_batch().await.unwrap_or_else(|e| panic!("{told}: {word}: {e}")));
            let bodies = all["body"].as_string::<i32>();
            let numbers = all["id"].as_primitive::<Int64Type>();
            let mut wanted: Vec<i64> = (0..all.num_rows())
                .filter(|row| bodies.value(*row).contains(word))
                .map(|row| numbers.value(row))
                .collect();
            wanted.sort_unstable();
            assert_eq!(found, wanted, "{told}: {word}");
            let mut scan = ds.scan();
            let query = FullTextSearchQuery::new(word.to_string()).limit(Some(3));
            scan.project(&["id"]).expect("a column").full_text_search(query).expect("a query");
            let best = scan.try_into_batch().await.unwrap_or_else(|e| panic!("{told}: {word}: {e}"));
            assert_eq!(best.num_rows(), wanted.len().min(3), "{told}: the best of {word}");
        }
    }
    if names.contains("vector_idx") {
        for id in (0..next_id).step_by(19) {
            let query = Float32Array::from_iter_values(
                (0..WIDTH as i64).map(|d| ((id * 7_919 + d * 104_729) % 1_000_000) as f32),
            );
            let mut answers = Vec::new();
            for indexed in [true, false] {
                let mut scan = ds.scan();
                scan.nearest("vector", &query, 5).expect("a query").nprobes(64).use_index(indexed);
                scan.project(&["id"]).expect("a column");
                answers.push(ids(&scan.try_into_batch().await.unwrap_or_else(|e| panic!("{told}: near {id}: {e}"))));
            }
            assert_eq!(answers[0], answers[1], "{told}: near {id}");
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    landed: usize,
    carried: usize,
    again: usize,
    lost: usize,
    /// Clean-ups that were done to their end, and that stopped because of a restore.
    cleaned: usize,
    stopped: usize,
}

/// Executes a rewrite of what can be rewritten. `stored`: its results go through JSON, as another process reads them.
async fn rewritten(lake: &Lake, uri: &str, dice: &mut Dice, stored: bool) -> Option<(Arc<Dataset>, Vec<Rewritten>)> {
    let head = Arc::new(lake.open(uri).await.expect("opened"));
    let tasks = groups(&head, dice).await;
    let settings = Settings {
        target_rows: 15 + dice.roll(60),
        widest_row_bytes: 100,
        concurrency: 2,
        table_config: Default::default(),
    };
    let done = compact::execute(lake, &head, &tasks, &settings).await;
    let mut done: Vec<Rewritten> = done.into_iter().map(|d| d.expect("rewritten")).collect();
    if stored {
        let slice = Slice::of(&head, &tasks, &settings).expect("a slice");
        done = Stored::of(&done, uri).expect("written").read(&slice, uri).expect("read back");
    }
    (!done.is_empty()).then_some((head, done))
}

/// Those of stored results that can still be committed, and HEAD.
async fn current(lake: &Lake, at: &Place, done: Vec<Rewritten>) -> (Arc<Dataset>, Vec<Rewritten>) {
    let head = Arc::new(lake.open(&at.uri).await.expect("opened"));
    let mut out = Vec::new();
    for rewritten in done {
        if is_current(at, &head, &rewritten).await.expect("the store says") {
            out.push(rewritten);
        }
    }
    (head, out)
}

/// Removes most old versions, as a pass does. Before the first manifest goes somebody writes, or restores the newest that goes.
async fn clean_up(uri: &str, them: Others, dice: &mut Dice, tally: &mut Tally) -> Others {
    let look = seen(uri).await;
    let old = look.versions().iter().map(|(_, m)| m.version).filter(|v| *v != look.version()).collect::<Vec<_>>();
    let going: BTreeSet<u64> = old.into_iter().filter(|_| dice.roll(4) > 0).collect();
    let restores = going.last().copied().filter(|_| dice.roll(2) == 0);
    let plan = clean::removal(&look, &going, &KeepSet::Complete(BTreeSet::new())).expect("complete");
    let told = format!("{:?}, then {going:?} go", them.done);
    let others = Arc::new(Mutex::new(Others { restores, ..them }));
    let (acting, acted) = (others.clone(), AtomicBool::new(false));
    let faults = Faults::new(move |op, path| {
        if op == Operation::Delete && path.contains("/_versions/") && !acted.swap(true, Ordering::SeqCst) {
            acting.lock().expect("sound").act_now();
        }
        Fault::Pass
    });
    let lake = Lake::with_faults(Arc::new(|_: &str| HashMap::new()), 256 << 20, faults);
    let place = lake.place(uri).await.expect("a place");
    let cleaned = clean::apply(&place, &plan, &Rate::new(100_000), || async { Ok(()) }, |_| {}).await;
    let cleaned = cleaned.unwrap_or_else(|e| panic!("{told}: {e}"));
    match &cleaned.stopped {
        // Only what names a file of the plan stops it.
        Some(why) => assert!(why.contains("names a file of the plan"), "{told}: {why}"),
        None => assert_eq!(cleaned.versions.into_iter().collect::<BTreeSet<_>>(), going, "{told}"),
    }
    tally.cleaned += usize::from(cleaned.stopped.is_none() && !going.is_empty());
    tally.stopped += usize::from(cleaned.stopped.is_some());
    let them = others.lock().expect("sound").clone();
    Others { restores: None, ..them }
}

async fn history(seed: u64, tally: &mut Tally) {
    let mut dice = Dice(seed);
    let (_dir, uri) = place();
    let version = [LanceFileVersion::V2_0, LanceFileVersion::V2_1, LanceFileVersion::V2_2][dice.roll(3) as usize];
    let params = WriteParams {
        enable_stable_row_ids: dice.roll(2) == 0,
        data_storage_version: Some(version),
        ..Default::default()
    };
    let mut them = Others {
        uri: uri.clone(),
        dice: Dice(seed ^ 0xabcd),
        params,
        next_id: 0,
        turn: 0,
        restores: None,
        done: Vec::new(),
    };
    for i in 0..3 + dice.roll(4) {
        let mode = if i == 0 { WriteMode::Create } else { WriteMode::Append };
        them.write(10 + dice.roll(20) as i64, mode).await.expect("written");
        let mut ds = Dataset::open(&uri).await.expect("opened");
        if i == 0 && dice.roll(3) == 0 {
            // Row ids and row versions go to files.
            let spill = [("lance.row_lineage.spill", "true"), ("lance.row_lineage.inline_max_bytes", "1")];
            ds.update_config(spill).await.expect("set");
        }
        if i > 0 && dice.roll(2) == 0 {
            index(&mut ds, dice.roll(5)).await.expect("indexed");
        }
        if dice.roll(3) == 0 {
            let gone = format!("id % {} = 1", 3 + dice.roll(9));
            ds.delete(&gone).await.expect("deleted");
        }
    }
    let others = Arc::new(Mutex::new(them));
    let (commits, late) = (Arc::new(AtomicUsize::new(0)), dice.roll(4) as usize);
    let (counted, at) = (commits.clone(), others.clone());
    let faults = Faults::new(move |op, path| {
        // The reservation's is the first.
        if op == Operation::Put
            && path.contains("/_transactions/")
            && (1..=late).contains(&counted.fetch_add(1, Ordering::SeqCst))
        {
            at.lock().expect("sound").act_now();
        }
        Fault::Pass
    });
    let lake = Lake::with_faults(Arc::new(|_: &str| HashMap::new()), 256 << 20, faults);
    let stored = dice.roll(3) == 0;
    let Some((mut head, mut done)) = rewritten(&lake, &uri, &mut dice, stored).await else { return };
    for _ in 0..dice.roll(4) {
        let mut them = others.lock().expect("sound").clone();
        them.act().await;
        *others.lock().expect("sound") = them;
    }
    let at = lake.place(&uri).await.expect("a place");
    if stored {
        (head, done) = current(&lake, &at, done).await;
        if done.is_empty() {
            return;
        }
    }
    let bytes: u64 = done.iter().map(Rewritten::bytes).sum();
    let stamper = Stamper { estate: uuid::Uuid::new_v4(), run: uuid::Uuid::now_v7() };
    let landed = compact::land(&lake, &at, &head, done, (&stamper, 1), &squire_lake::commit::nobody_to_ask).await;
    let (acted, next_id) = {
        let them = others.lock().expect("sound");
        (format!("seed {seed}: {:?}", them.done), them.next_id)
    };
    match landed {
        Ok(landed) => {
            assert_eq!(landed.stranded, 0, "{acted}");
            let before = lake.open_version(&uri, landed.before).await.expect("W-1");
            let after = lake.open_version(&uri, landed.after).await.expect("W");
            assert_eq!(content(&after).await, content(&before).await, "{acted}");
            let made: BTreeSet<u64> = landed.groups.iter().flat_map(|g| g.1.clone()).collect();
            tally.landed += 1;
            tally.carried +=
                usize::from(after.fragments().iter().any(|f| made.contains(&f.id) && f.deletion_file.is_some()));
            tally.again += usize::from(commits.load(Ordering::SeqCst) > 2);
            let looked = seen(&uri).await;
            let rewrite = Rewrite { before: landed.before, after: landed.after, groups: landed.groups };
            verify::verify(&lake, &uri, &rewrite, &looked.indices).await.unwrap_or_else(|e| panic!("{acted}: {e:?}"));
        }
        Err((e, stranded)) => {
            let stay = if stored { bytes } else { 0 };
            assert_eq!((e.kind(), stranded), (Kind::Conflict, stay), "{acted}: {e}");
            tally.lost += 1;
        }
    }
    let plain = self::lake();
    answers_rightly(&plain.open(&uri).await.expect("HEAD"), next_id, &acted).await;
    // Data files of stored results that are not committed stay: another process may commit them.
    let leftovers = if stored { Leftovers::Explained } else { Leftovers::None };
    assert_eq!(oracle::check(&plain, &uri, leftovers).await, [], "{acted}");

    // What was carried over is as any other deletion: writes and rewrites go on.
    let mut them = others.lock().expect("sound").clone();
    them.act().await;
    if let Some((head, done)) = rewritten(&plain, &uri, &mut dice, false).await {
        let landed = compact::land(&plain, &at, &head, done, (&stamper, 2), &squire_lake::commit::nobody_to_ask)
            .await
            .unwrap_or_else(|e| panic!("{acted}: {e:?}"));
        let before = plain.open_version(&uri, landed.before).await.expect("W-1");
        assert_eq!(content(&landed.dataset).await, content(&before).await, "{acted}: again");
    }
    them.act().await;
    let mut them = clean_up(&uri, them, &mut dice, tally).await;
    them.act().await;
    let acted = format!("seed {seed}: {:?}", them.done);
    answers_rightly(&plain.open(&uri).await.expect("HEAD"), them.next_id, &acted).await;
    assert_eq!(oracle::check(&plain, &uri, leftovers).await, [], "{acted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_others_write_meanwhile_the_rewrite_changes_no_answer() {
    let mut tally = Tally::default();
    for seed in 1..25 {
        history(seed, &mut tally).await;
    }
    assert!(tally.carried > 2 && tally.again > 2 && tally.lost > 2, "{tally:?}");
    assert!(tally.cleaned > 5 && tally.stopped > 1, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "500 histories: minutes; part of `make test-long`"]
async fn five_hundred_histories_beside_a_rewrite() {
    let mut tally = Tally::default();
    let (from, n) = match std::env::var("TEST_SEEDS") {
        Ok(seeds) => {
            let mut n = seeds.split("..").map(|n| n.parse::<u64>().expect("a number"));
            let from = n.next().expect("a first seed");
            (from, n.next().expect("an end") - from)
        }
        Err(_) => (1_000, 500),
    };
    for seed in from..from + n {
        history(seed, &mut tally).await;
    }
    println!("{tally:?}");
}
