//! Rows that were deleted before a rewrite and are in the indices still.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray,
};
use arrow_schema::{DataType, Field};
use lance::Dataset;
use lance::dataset::optimize::{CompactionOptions, compact_files};
use lance::dataset::{WriteMode, WriteParams};
use lance::index::DatasetIndexExt;
use lance::index::vector::VectorIndexParams;
use lance_index::IndexType;
use lance_index::scalar::{FullTextSearchQuery, InvertedIndexParams};
use lance_linalg::distance::MetricType;
use squire_lake::compact::{self, Settings};
use squire_lake::index::State;
use squire_lake::oracle::{self, Leftovers};
use squire_lake::stamp::Stamper;
use squire_lake::{build, fold, verify};

use super::support::*;

/// Every third row is nearer to every query than all others, and about nothing but a harbour.
async fn write(uri: &str, from: i64, rows: i64) {
    let ids = from..from + rows;
    let words = |id: i64| if id % 3 == 0 { "harbour" } else { "harbour ledger copper signal tide" };
    let floats = ids.clone().flat_map(|id| [if id % 3 == 0 { 0.0 } else { 1.0 + id as f32 }; 4]);
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let vectors = FixedSizeListArray::new(item, 4, Arc::new(Float32Array::from_iter_values(floats)), None);
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new(Int64Array::from_iter_values(ids.clone()))),
        ("body", Arc::new(StringArray::from_iter_values(ids.map(words)))),
        ("vector", Arc::new(vectors)),
    ];
    let batch = RecordBatch::try_from_iter(columns).expect("rows");
    let mode = if from == 0 { WriteMode::Create } else { WriteMode::Append };
    let params = WriteParams { mode, enable_stable_row_ids: true, ..Default::default() };
    let schema = batch.schema();
    let reader = RecordBatchIterator::new([Ok(batch)], schema);
    Dataset::write(reader, uri, Some(params)).await.expect("written");
}

/// The best twenty of both indices.
async fn best(uri: &str) -> (Vec<i64>, usize) {
    let ds = Dataset::open(uri).await.expect("opened");
    let ids = |batch: &RecordBatch| {
        let mut ids = batch["id"].as_primitive::<Int64Type>().values().to_vec();
        ids.sort_unstable();
        ids
    };
    let (mut near, mut text) = (ds.scan(), ds.scan());
    let query = Float32Array::from(vec![0.0; 4]);
    near.nearest("vector", &query, 20).expect("a query").nprobes(8).project(&["id"]).expect("a column");
    let query = FullTextSearchQuery::new("harbour".into()).limit(Some(20));
    text.full_text_search(query).expect("a query").project(&["id"]).expect("a column");
    let (near, text) = (near.try_into_batch().await.expect("found"), text.try_into_batch().await.expect("found"));
    (ids(&near), text.num_rows())
}

/// Rewrites all fragments into one; how many versions that took.
async fn rewrite(uri: &str) -> u64 {
    let lake = lake();
    let head = Arc::new(lake.open(uri).await.expect("opened"));
    let task: Vec<u64> = head.fragments().iter().map(|f| f.id).collect();
    let settings =
        Settings { target_rows: 10_000, widest_row_bytes: 100, concurrency: 1, table_config: Default::default() };
    let done = compact::execute(&lake, &head, &[task], &settings).await;
    let done = done.into_iter().map(|d| d.expect("rewritten")).collect();
    let place = lake.place(uri).await.expect("a place");
    let landed = compact::land(&lake, &place, &head, done, (&stamper(), 1), &squire_lake::commit::nobody_to_ask)
        .await
        .expect("landed");
    assert_eq!(landed.dataset.fragments().len(), 1);
    compared(uri, landed.after).await.expect("the same answers");
    landed.after - head.version_id()
}

fn stamper() -> Stamper {
    Stamper { estate: uuid::Uuid::new_v4(), run: uuid::Uuid::now_v7() }
}

async fn delete(uri: &str, predicate: &str) {
    Dataset::open(uri).await.expect("opened").delete(predicate).await.expect("deleted");
}

/// What the pass asks of a commit: the indices answer as they did one version before.
async fn compared(uri: &str, after: u64) -> squire_lake::Result<verify::Checks> {
    let rewrite = verify::Rewrite { before: after - 1, after, groups: Vec::new() };
    verify::verify(&lake(), uri, &rewrite, &seen(uri).await.indices).await
}

/// Both indices over 400 rows; then every third row is gone.
async fn indexed(uri: &str) {
    write(uri, 0, 200).await;
    write(uri, 200, 200).await;
    let mut ds = Dataset::open(uri).await.expect("opened");
    let text = InvertedIndexParams::default();
    ds.create_index(&["body"], IndexType::Inverted, None, &text, true).await.expect("indexed");
    let vectors = VectorIndexParams::ivf_flat(2, MetricType::L2);
    ds.create_index(&["vector"], IndexType::Vector, None, &vectors, true).await.expect("indexed");
}

/// Rows of either index that are said to be dead.
async fn dead(uri: &str) -> Vec<(String, u64, State)> {
    seen(uri).await.indices.into_iter().map(|i| (i.name, i.dead_rows, i.state)).collect()
}

/// Indices that say to cover a fragment that is not there.
async fn covered_and_gone(uri: &str) -> Vec<String> {
    let ds = Dataset::open(uri).await.expect("opened");
    let indices = ds.load_indices().await.expect("indices");
    let is_gone = |id: u32| ds.fragments().iter().all(|f| f.id != u64::from(id));
    let marked = indices.iter().filter(|i| i.fragment_bitmap.iter().flatten().any(is_gone));
    marked.map(|i| i.name.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_dead_in_an_index_takes_no_place_among_the_best() {
    let (_dir, uri) = place();
    indexed(&uri).await;
    assert_eq!(rewrite(&uri).await, 2, "nothing is dead: reserved and rewritten");

    write(&uri, 400, 3).await;
    delete(&uri, "id % 3 = 0").await;
    let live = |from: i64| (from..).filter(|id| id % 3 != 0).take(20).collect::<Vec<i64>>();
    assert_eq!(best(&uri).await, (live(0), 20));
    let lake = lake();
    let fold = async || {
        let head = Arc::new(lake.open(&uri).await.expect("opened"));
        let mut folded = Vec::new();
        for name in ["body_idx", "vector_idx"] {
            folded.push(fold::build(&lake, &head, name, 10).await.expect("built").expect("something to fold"));
        }
        let place = lake.place(&uri).await.expect("a place");
        fold::land(&lake, &place, &head, folded, &stamper(), 1).await.expect("landed");
    };
    fold().await;
    assert_eq!(rewrite(&uri).await, 3, "reserved, marked and rewritten");
    assert_eq!(best(&uri).await, (live(0), 20));
    assert_eq!(covered_and_gone(&uri).await, ["body_idx", "vector_idx"]);

    delete(&uri, "id < 30").await;
    assert_eq!(rewrite(&uri).await, 2, "both are marked");
    assert_eq!(best(&uri).await, (live(30), 20));

    // A fold leaves out what is dead. Lance keeps a vector index's mark, which is right and costs a mask.
    write(&uri, 403, 2).await;
    fold().await;
    assert_eq!((best(&uri).await, covered_and_gone(&uri).await), ((live(30), 20), vec!["vector_idx".to_string()]));
    delete(&uri, "id < 60").await;
    assert_eq!(rewrite(&uri).await, 3, "the other one is marked again");
    assert_eq!(best(&uri).await, (live(60), 20));
    assert_eq!(oracle::check(&lake, &uri, Leftovers::None).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_else_compacted_is_told_and_one_segment_without_the_dead_rows_mends_it() {
    let (_dir, uri) = place();
    indexed(&uri).await;
    delete(&uri, "id % 3 = 0").await;
    let said = |text: u64, vector: u64| {
        let state = |dead: u64| if dead > 0 { State::Lagging } else { State::Covered };
        vec![("body_idx".to_string(), text, state(text)), ("vector_idx".to_string(), vector, state(vector))]
    };
    assert_eq!(dead(&uri).await, said(0, 0), "Lance masks by the deletion files");

    let mut ds = Dataset::open(&uri).await.expect("opened");
    compact_files(&mut ds, CompactionOptions::default(), None).await.expect("compacted");
    let live: Vec<i64> = (0..).filter(|id| id % 3 != 0).take(20).collect();
    let found = best(&uri).await;
    assert!(found.0.len() < 20 && found.1 < 20, "Lance mends it itself by now: {found:?}");
    assert_eq!(dead(&uri).await, said(134, 134));
    let error = compared(&uri, ds.version_id()).await.expect_err("fewer of the best").to_string();
    assert!(error.contains("comparing answers"), "{error}");

    let (lake, head) = (lake(), Arc::new(ds));
    let place = lake.place(&uri).await.expect("a place");
    let text = seen(&uri).await.indices.into_iter().find(|i| i.is_full_text()).expect("an index");
    let folded = vec![
        build::anew(&lake, &place, &head, &text, 64 << 20).await.expect("built"),
        fold::build(&lake, &head, "vector_idx", 1).await.expect("merged").expect("something to merge"),
    ];
    let after = fold::land(&lake, &place, &head, folded, &stamper(), 1).await.expect("landed");
    compared(&uri, after.version_id()).await.expect("the same answers");
    assert_eq!((dead(&uri).await, best(&uri).await), (said(0, 0), (live, 20)));
}
