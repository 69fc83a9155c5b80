//! Somebody who writes at random: every kind of write that Lance has, each on HEAD and with a session of their own.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader,
    StringArray,
};
use arrow_schema::{DataType, Field, Schema};
use lance::Dataset;
use lance::dataset::optimize::{CompactionOptions, compact_files};
use lance::dataset::{
    MergeInsertBuilder, NewColumnTransform, UpdateBuilder, WhenMatched, WhenNotMatched, WriteMode, WriteParams,
};
use lance::index::DatasetIndexExt;
use lance::index::vector::VectorIndexParams;
use lance_index::IndexType;
use lance_index::optimize::OptimizeOptions;
use lance_index::scalar::{InvertedIndexParams, ScalarIndexParams};
use lance_linalg::distance::MetricType;

use super::schedules::Dice;

pub(super) const WORDS: [&str; 6] = ["harbour", "ledger", "copper", "vessel", "signal", "archive"];
pub(super) const WIDTH: usize = 4;

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
pub(super) struct Others {
    pub(super) uri: String,
    pub(super) dice: Dice,
    pub(super) params: WriteParams,
    pub(super) next_id: i64,
    pub(super) turn: i64,
    /// Restored by the next act.
    pub(super) restores: Option<u64>,
    pub(super) done: Vec<String>,
}

impl Others {
    pub(super) async fn act(&mut self) {
        self.turn += 1;
        let what = self.one().await;
        self.done.push(what.unwrap_or_else(|e| panic!("{:?}: {e}", self.done)));
    }

    fn append_ids(&mut self, n: i64) -> Vec<i64> {
        self.next_id += n;
        (self.next_id - n..self.next_id).collect()
    }

    pub(super) async fn write(&mut self, n: i64, mode: WriteMode) -> Fallible<()> {
        let params = WriteParams { mode, ..self.params.clone() };
        let ids = self.append_ids(n);
        Dataset::write(reader(rows(&ids, self.turn)), self.uri.as_str(), Some(params)).await.map(|_| ())
    }

    async fn one(&mut self) -> Fallible<String> {
        let mut ds = Dataset::open(&self.uri).await?;
        if let Some(version) = self.restores.take() {
            ds.checkout_version(version).await?.restore().await?;
            return Ok(format!("restore {version}, which goes"));
        }
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
                // It may have been cleaned up.
                let Ok(mut old) = ds.checkout_version(version).await else { return Ok("nothing".into()) };
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
    pub(super) fn act_now(&mut self) {
        let mut them = self.clone();
        let acted = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            runtime.expect("a runtime").block_on(them.act());
            them
        });
        *self = tokio::task::block_in_place(|| acted.join().expect("they acted"));
    }
}

pub(super) async fn index(ds: &mut Dataset, which: u64) -> Fallible<()> {
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
