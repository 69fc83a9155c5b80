//! Random histories beside a rewrite: what others write between its execution and its commit, and between two tries of the commit.
//!
//! The version just before the rewrite is the same history without it: both must have the same rows, row ids and row versions, and
//! every index answers as a scan does.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{
    ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader,
    StringArray,
};
use arrow_cast::display::array_value_to_string;
use arrow_schema::{DataType, Field, Schema};
use lance::Dataset;
use lance::dataset::optimize::{CompactionOptions, compact_files};
use lance::dataset::{
    MergeInsertBuilder, NewColumnTransform, UpdateBuilder, WhenMatched, WhenNotMatched, WriteMode, WriteParams,
};
use lance::index::DatasetIndexExt;
use lance::index::vector::VectorIndexParams;
use lance_file::version::LanceFileVersion;
use lance_index::IndexType;
use lance_index::optimize::OptimizeOptions;
use lance_index::scalar::{FullTextSearchQuery, InvertedIndexParams, ScalarIndexParams};
use lance_linalg::distance::MetricType;
use squire_lake::compact::stored::{Slice, Stored, is_current};
use squire_lake::compact::{self, Rewritten, Settings};
use squire_lake::faults::{Fault, Faults, Operation};
use squire_lake::handle::Place;
use squire_lake::oracle::{self, Leftovers};
use squire_lake::stamp::Stamper;
use squire_lake::verify::{self, Rewrite};
use squire_lake::{Kind, Lake};

use super::schedules::Dice;
use super::support::*;

const WORDS: [&str; 6] = ["harbour", "ledger", "copper", "vessel", "signal", "archive"];
const WIDTH: usize = 4;

type Fallible<T> = lance::Result<T>;

/// Rows with these ids. `turn` makes their other columns.
fn rows(ids: &[i64], turn: i64) -> RecordBatch {
    let salted = |id: i64| (id * 31 + turn * 17).unsigned_abs();
    let word = |n: u64| WORDS[(n % 6) as usize];
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let floats = ids.iter().flat_map(|id| (0..WIDTH as u64).map(|d| Dice(salted(*id) * 8 + d).roll(1_000_000) as f32));
    let floats =
        FixedSizeListArray::new(item.clone(), WIDTH as i32, Arc::new(Float32Array::from_iter_values(floats)), None);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from(ids.to_vec()))),
        ("value", Arc::new(Int64Array::from_iter(ids.iter().map(|id| (id % 7 != 0).then_some(id * 10 + turn))))),
        ("kind", Arc::new(StringArray::from_iter_values(ids.iter().map(|id| word(salted(*id)))))),
        (
            "body",
            Arc::new(StringArray::from_iter_values(
                ids.iter().map(|id| format!("{} {}", word(salted(*id) / 6), word(salted(*id) / 36))),
            )),
        ),
        ("vector", Arc::new(floats)),
    ];
    let fields = columns.iter().map(|(name, c)| Field::new(*name, c.data_type().clone(), true)).collect::<Vec<_>>();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|c| c.1).collect()).expect("rows")
}

fn reader(batch: RecordBatch) -> Box<dyn RecordBatchReader + Send> {
    let schema = batch.schema();
    Box::new(RecordBatchIterator::new([Ok(batch)], schema))
}

/// Who writes: every act opens HEAD anew and with another session.
#[derive(Clone)]
struct Others {
    uri: String,
    dice: Dice,
    params: WriteParams,
    next_id: i64,
    turn: i64,
    done: Vec<String>,
}

impl Others {
    async fn act(&mut self) {
        self.turn += 1;
        let what = self.one().await;
        self.done.push(what.unwrap_or_else(|e| panic!("{:?}: {e}", self.done)));
    }

    fn append_ids(&mut self, n: i64) -> Vec<i64> {
        self.next_id += n;
        (self.next_id - n..self.next_id).collect()
    }

    async fn write(&mut self, n: i64, mode: WriteMode) -> Fallible<()> {
        let params = WriteParams { mode, ..self.params.clone() };
        let ids = self.append_ids(n);
        Dataset::write(reader(rows(&ids, self.turn)), self.uri.as_str(), Some(params)).await.map(|_| ())
    }

    async fn one(&mut self) -> Fallible<String> {
        let mut ds = Dataset::open(&self.uri).await?;
        let (k, turn) = (self.dice.roll(9) as i64 + 2, self.turn);
        let few = format!("id % {k} = {}", self.dice.roll(k as u64));
        let from = self.dice.roll(self.next_id as u64) as i64;
        let run = format!("id >= {from} and id < {}", from + self.dice.roll(12) as i64);
        let some = if self.dice.roll(3) == 0 { few } else { run };
        Ok(match self.dice.roll(34) {
            0..=9 => {
                ds.delete(&some).await?;
                format!("delete {some}")
            }
            // The fragment is gone, or most of it.
            10 => {
                let at = self.dice.roll(ds.fragments().len().max(1) as u64) as usize;
                let Some(fragment) = ds.get_fragments().into_iter().nth(at) else { return Ok("nothing".into()) };
                let batch = fragment.scan().project(&["id"])?.try_into_batch().await?;
                let ids: Vec<String> =
                    batch["id"].as_primitive::<Int64Type>().values().iter().map(ToString::to_string).collect();
                ds.delete(&format!("id in ({})", ids.join(","))).await?;
                format!("delete fragment {}", fragment.id())
            }
            11..=15 => {
                let (column, to) = [("value", "id * 10 + 3"), ("kind", "'copper'"), ("body", "'ledger signal'")]
                    [self.dice.roll(3) as usize];
                let job = UpdateBuilder::new(Arc::new(ds)).update_where(&some)?.set(column, to)?.build()?;
                job.execute().await?;
                format!("update {column} where {some}")
            }
            16..=19 => {
                let mut ids: Vec<i64> = (from..from + 6).filter(|id| *id < self.next_id).collect();
                ids.extend(self.append_ids(2));
                if ds.schema().field("extra").is_some() {
                    return Ok("nothing".into());
                }
                let mut job = MergeInsertBuilder::try_new(Arc::new(ds), vec!["id".into()])?;
                job.when_matched(WhenMatched::UpdateAll).when_not_matched(WhenNotMatched::InsertAll);
                job.try_build()?.execute_reader(reader(rows(&ids, turn))).await?;
                format!("upsert {ids:?}")
            }
            20..=22 => {
                self.write(5 + k, WriteMode::Append).await?;
                format!("append {}", 5 + k)
            }
            // In place: the fragments get another file for the column.
            23 => {
                let ids: Vec<i64> = (from..from + 3).collect();
                let batch = rows(&ids, turn).project(&[0, 1]).expect("two columns");
                let mut job = MergeInsertBuilder::try_new(Arc::new(ds), vec!["id".into()])?;
                job.when_matched(WhenMatched::UpdateAll).when_not_matched(WhenNotMatched::DoNothing);
                job.try_build()?.execute_reader(reader(batch)).await?;
                format!("values of {ids:?}")
            }
            24 if ds.schema().field("extra").is_none() => {
                let new = NewColumnTransform::SqlExpressions(vec![("extra".into(), "id + 1".into())]);
                ds.add_columns(new, None, None).await?;
                "add a column".into()
            }
            24 => {
                ds.drop_columns(&["extra"]).await?;
                "drop a column".into()
            }
            25 => {
                let which = self.dice.roll(5);
                index(&mut ds, which).await?;
                format!("index {which}")
            }
            26 => match ds.load_indices().await?.first().map(|i| i.name.clone()) {
                Some(name) => {
                    ds.drop_index(&name).await?;
                    format!("drop index {name}")
                }
                None => "nothing".into(),
            },
            27 => {
                ds.optimize_indices(&OptimizeOptions::merge(10)).await?;
                "optimise".into()
            }
            28 => {
                ds.update_config([("some.key", turn.to_string().as_str())]).await?;
                "config".into()
            }
            29 => {
                let version = 1 + self.dice.roll(ds.version_id());
                let mut old = ds.checkout_version(version).await?;
                old.restore().await?;
                format!("restore {version}")
            }
            30 => {
                let target = 10 + 10 * k as usize;
                let options = CompactionOptions { target_rows_per_fragment: target, ..Default::default() };
                compact_files(&mut ds, options, None).await?;
                format!("compact to {target}")
            }
            31 | 32 => {
                let at = self.dice.roll(ds.fragments().len().max(1) as u64) as usize;
                let Some(fragment) = ds.get_fragments().into_iter().nth(at) else { return Ok("nothing".into()) };
                let live = fragment.scan().project(&["id"])?.with_row_address().try_into_batch().await?;
                let n = live.num_rows().min(3);
                let column = ["value", "kind"][self.dice.roll(2) as usize];
                let nothing: ArrayRef = match column {
                    "value" => Arc::new(Int64Array::new_null(n)),
                    _ => Arc::new(StringArray::from_iter_values((0..n).map(|_| "vessel"))),
                };
                let fields = [("_rowaddr", live["_rowaddr"].slice(0, n), false), (column, nothing, true)];
                let batch = RecordBatch::try_from_iter_with_nullable(fields).expect("an overlay");
                let schema = ds.schema().project(&[column])?;
                let mut overlay = fragment.write_overlay(&schema).await.expect("an overlay");
                overlay.write_batch(&batch).await?;
                if let Some(group) = overlay.finish().await? {
                    let operation = lance::dataset::transaction::Operation::DataOverlay { groups: vec![group] };
                    let transaction =
                        lance::dataset::transaction::TransactionBuilder::new(ds.version_id(), operation).build();
                    lance::dataset::CommitBuilder::new(Arc::new(ds)).execute(transaction).await?;
                }
                format!("overlay of {column} on {}", fragment.id())
            }
            _ if self.dice.roll(4) == 0 => {
                self.write(20, WriteMode::Overwrite).await?;
                "overwrite".into()
            }
            _ => "nothing".into(),
        })
    }

    /// From inside a request of somebody else.
    fn act_now(&mut self) {
        let mut them = self.clone();
        let acted = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            runtime.expect("a runtime").block_on(them.act());
            them
        });
        *self = tokio::task::block_in_place(|| acted.join().expect("they acted"));
    }
}

async fn index(ds: &mut Dataset, which: u64) -> Fallible<()> {
    let scalar = ScalarIndexParams::default();
    match which {
        0 => ds.create_index(&["id"], IndexType::BTree, None, &scalar, true).await,
        1 => ds.create_index(&["value"], IndexType::BTree, None, &scalar, true).await,
        2 => ds.create_index(&["kind"], IndexType::Bitmap, None, &scalar, true).await,
        3 => ds.create_index(&["body"], IndexType::Inverted, None, &InvertedIndexParams::default(), true).await,
        _ => {
            if ds.count_rows(None).await? < 4 {
                return Ok(());
            }
            let params = VectorIndexParams::ivf_flat(2, MetricType::L2);
            ds.create_index(&["vector"], IndexType::Vector, None, &params, true).await
        }
    }
    .map(|_| ())
}

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

async fn history(seed: u64, tally: &mut Tally) {
    let mut dice = Dice(seed);
    let (_dir, uri) = place();
    let version = [LanceFileVersion::V2_0, LanceFileVersion::V2_1, LanceFileVersion::V2_2][dice.roll(3) as usize];
    let params = WriteParams {
        enable_stable_row_ids: dice.roll(2) == 0,
        data_storage_version: Some(version),
        ..Default::default()
    };
    let mut them =
        Others { uri: uri.clone(), dice: Dice(seed ^ 0xabcd), params, next_id: 0, turn: 0, done: Vec::new() };
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
    let others = Arc::new(std::sync::Mutex::new(them));
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
