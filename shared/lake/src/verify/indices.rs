//! Every touched index against a scan of the same version.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use futures::TryStreamExt;
use lance::Dataset;
use lance::dataset::ROW_ID;
use lance_index::scalar::FullTextSearchQuery;
use lance_linalg::distance::DistanceType;
use lance_table::format::Fragment;

use super::sampled::{column_of, quoted};
use super::{
    IndexCheck, LOOKUPS, RECALL_TOLERANCE, SCAN_BYTES, addresses, lance_error, mismatch, offsets, row_bytes, runs,
};
use crate::index::IndexInfo;
use crate::{Error, Kind, Result};

/// The fragments that a scan of a column may read, within the cap: all, or the newest few.
pub(super) fn scope(dataset: &Dataset, info: &IndexInfo) -> Option<Vec<Fragment>> {
    let bytes = |f: &Fragment| f.files.iter().filter_map(|x| x.file_size_bytes.get().map(u64::from)).sum::<u64>();
    let total: u64 = dataset.fragments().iter().map(bytes).sum();
    let columns = dataset.schema().fields.len().max(1) as u64;
    if total / columns * (info.columns.len() as u64) <= SCAN_BYTES {
        return None;
    }
    let mut left = SCAN_BYTES * columns;
    let mut out: Vec<Fragment> = Vec::new();
    for fragment in dataset.fragments().iter().rev() {
        let size = bytes(fragment);
        if size > left && !out.is_empty() {
            break;
        }
        left = left.saturating_sub(size);
        out.push(fragment.clone());
    }
    out.reverse();
    Some(out)
}

/// Sampled values of a column.
pub(super) async fn sample(dataset: &Arc<Dataset>, column: &str, n: usize) -> Result<Option<ArrayRef>> {
    let ids: Vec<u64> = dataset.fragments().iter().map(|f| f.id).collect();
    let rows: u64 = runs(dataset, &ids).iter().map(|(f, _)| f.num_rows().unwrap_or(0) as u64).sum();
    if rows == 0 {
        return Ok(None);
    }
    let addrs = addresses(dataset, &ids, &offsets(rows, n * 2)).await?;
    column_of(dataset, column, &addrs).await
}

/// A literal of the filter language for an array's element, for the types whose look-up is an equality.
fn literal(values: &dyn Array, i: usize) -> Option<String> {
    use arrow_schema::DataType as T;
    if values.is_null(i) {
        return None;
    }
    let text = arrow_cast::display::array_value_to_string(values, i).ok()?;
    match values.data_type() {
        T::Int8 | T::Int16 | T::Int32 | T::Int64 | T::UInt8 | T::UInt16 | T::UInt32 | T::UInt64 => Some(text),
        T::Utf8 | T::LargeUtf8 => Some(format!("'{}'", text.replace('\'', "''"))),
        T::Boolean => Some(text),
        T::Date32 => Some(format!("date '{text}'")),
        _ => None,
    }
}

async fn lookup(
    dataset: &Arc<Dataset>,
    filter: &str,
    scope: Option<&Vec<Fragment>>,
    indexed: bool,
) -> Result<(Vec<u64>, f64)> {
    let uri = dataset.uri();
    let start = Instant::now();
    let mut scan = dataset.scan();
    scan.filter(filter).map_err(lance_error(uri))?;
    scan.use_scalar_index(indexed);
    scan.use_stats(false);
    if let Some(fragments) = scope {
        scan.with_fragments(fragments.clone());
    }
    scan.empty_project().map_err(lance_error(uri))?;
    scan.with_row_id();
    Ok((row_ids(dataset, scan).await?, start.elapsed().as_secs_f64()))
}

async fn row_ids(dataset: &Dataset, mut scan: lance::dataset::scanner::Scanner) -> Result<Vec<u64>> {
    let uri = dataset.uri();
    in_little_memory(&mut scan);
    let stream = scan.try_into_stream().await.map_err(lance_error(uri))?;
    let batches: Vec<RecordBatch> = stream.try_collect().await.map_err(lance_error(uri))?;
    let mut ids: Vec<u64> = batches
        .iter()
        .filter_map(|b| b.column_by_name(ROW_ID))
        .flat_map(|c| c.as_primitive::<arrow_array::types::UInt64Type>().values().to_vec())
        .collect();
    ids.sort_unstable();
    Ok(ids)
}

/// The reader's own default reads two GiB ahead. A batch of wide vectors (16 KiB) still fits into the buffer many times.
fn in_little_memory(scan: &mut lance::dataset::scanner::Scanner) {
    scan.io_buffer_size(64 << 20).batch_size(512);
}

/// Exact types: equality look-ups through the index equal the scan of the same version.
pub(super) async fn exact(
    uri: &str,
    before: &Arc<Dataset>,
    after: &Arc<Dataset>,
    info: &IndexInfo,
) -> Result<Option<IndexCheck>> {
    let Some(column) = info.columns.first() else { return Ok(None) };
    let Some(values) = sample(after, column, LOOKUPS).await? else { return Ok(None) };
    let quoted = quoted(after, column);
    let filters = filters(info, &quoted, values.as_ref());
    if filters.is_empty() {
        return Ok(None);
    }
    let fragments = scope(after, info);
    let at_once = scanned(after, info, &quoted, &filters, fragments.as_ref()).await?;
    let mut seconds = (0.0, 0.0);
    for filter in &filters {
        let by_scan = match &at_once {
            Some(found) => found.get(filter).cloned().unwrap_or_default(),
            None => lookup(after, filter, fragments.as_ref(), false).await?.0,
        };
        let (by_index, took) = lookup(after, filter, fragments.as_ref(), true).await?;
        if by_scan != by_index {
            return Err(mismatch(
                uri,
                format!(
                    "index {} finds {} rows where {filter}, a scan finds {}",
                    info.name,
                    by_index.len(),
                    by_scan.len()
                ),
            ));
        }
        seconds.1 += took;
        // A new index has no time before.
        if !Arc::ptr_eq(before, after) {
            seconds.0 += lookup(before, filter, None, true).await?.1;
        }
    }
    let n = filters.len() as f64;
    Ok(Some(IndexCheck {
        name: info.name.clone(),
        exact: Some(true),
        recall: None,
        seconds: (seconds.0 / n, seconds.1 / n),
    }))
}

/// What a scan finds for each of these equalities, sorted, by one scan for all of them instead of one for each. `None` where they
/// are no equalities on a column of its own, or where many rows may fit each.
async fn scanned(
    dataset: &Arc<Dataset>,
    info: &IndexInfo,
    quoted: &str,
    filters: &[String],
    scope: Option<&Vec<Fragment>>,
) -> Result<Option<HashMap<String, Vec<u64>>>> {
    let uri = dataset.uri();
    let Some(column) = info.columns.first() else { return Ok(None) };
    let own = dataset.schema().fields.iter().any(|f| f.name == *column) && !column.contains(['.', '`']);
    if !own || info.kind != "BTREE" {
        return Ok(None);
    }
    let mut scan = dataset.scan();
    scan.filter(&filters.join(" OR ")).map_err(lance_error(uri))?;
    scan.use_scalar_index(false);
    scan.use_stats(false);
    if let Some(fragments) = scope {
        scan.with_fragments(fragments.clone());
    }
    scan.project(&[column]).map_err(lance_error(uri))?;
    scan.with_row_id();
    let stream = scan.try_into_stream().await.map_err(lance_error(uri))?;
    let batches: Vec<RecordBatch> = stream.try_collect().await.map_err(lance_error(uri))?;
    let mut out: HashMap<String, Vec<u64>> = HashMap::new();
    for batch in &batches {
        let (Some(values), Some(ids)) = (batch.column_by_name(column), batch.column_by_name(ROW_ID)) else {
            return Ok(None);
        };
        let ids = ids.as_primitive::<arrow_array::types::UInt64Type>();
        for i in 0..batch.num_rows() {
            if let Some(value) = literal(values.as_ref(), i) {
                out.entry(format!("{quoted} = {value}")).or_default().push(ids.value(i));
            }
        }
    }
    out.values_mut().for_each(|ids| ids.sort_unstable());
    Ok(Some(out))
}

fn filters(info: &IndexInfo, quoted: &str, values: &dyn Array) -> Vec<String> {
    let mut out: Vec<String> = match info.kind.as_str() {
        "LABEL_LIST" => (0..values.len())
            .filter(|i| !values.is_null(*i))
            .filter_map(|i| match values.data_type() {
                arrow_schema::DataType::List(_) => Some(values.as_list::<i32>().value(i)),
                arrow_schema::DataType::LargeList(_) => Some(values.as_list::<i64>().value(i)),
                _ => None,
            })
            .filter_map(|list| (!list.is_empty()).then(|| literal(list.as_ref(), 0)).flatten())
            .map(|v| format!("array_has_any({quoted}, [{v}])"))
            .collect(),
        "NGRAM" => (0..values.len())
            .filter(|i| !values.is_null(*i))
            .filter_map(|i| arrow_cast::display::array_value_to_string(values, i).ok())
            .filter(|text| text.chars().count() >= 3 && text.chars().all(char::is_alphanumeric))
            .map(|text| format!("contains({quoted}, '{text}')"))
            .collect(),
        "BTREE" | "BITMAP" | "ZONEMAP" | "BLOOMFILTER" => {
            (0..values.len()).filter_map(|i| literal(values, i)).map(|v| format!("{quoted} = {v}")).collect()
        }
        _ => Vec::new(),
    };
    out.sort();
    out.dedup();
    out.truncate(LOOKUPS);
    out
}

/// As many of the best as a full-text index is asked for.
const BEST: i64 = 10;

/// Full text: each sampled term finds the same rows before and after, by content, and no fewer of the best. Which are the best is
/// not compared: their order depends on how many documents the index holds and how long they are, which a fold changes.
pub(super) async fn full_text(
    uri: &str,
    before: &Arc<Dataset>,
    after: &Arc<Dataset>,
    info: &IndexInfo,
) -> Result<Option<IndexCheck>> {
    let Some(column) = info.columns.first() else { return Ok(None) };
    let Some(values) = sample(after, column, LOOKUPS).await? else { return Ok(None) };
    let terms = terms(values.as_ref());
    if terms.is_empty() {
        return Ok(None);
    }
    let mut seconds = (0.0, 0.0);
    for term in &terms {
        let (a, before_took) = search(before, column, term, None).await?;
        let (b, after_took) = search(after, column, term, None).await?;
        let n = |m: &BTreeMap<Vec<u8>, u64>| m.values().sum::<u64>();
        if a != b {
            return Err(mismatch(
                uri,
                format!("full-text index {} found {} rows for one term before and {} after", info.name, n(&a), n(&b)),
            ));
        }
        let (a, _) = search(before, column, term, Some(BEST)).await?;
        let (b, _) = search(after, column, term, Some(BEST)).await?;
        let (a, b) = (n(&a), n(&b));
        if b < a {
            let what = format!("full-text index {} found {a} of the best {BEST} rows for one term before", info.name);
            return Err(mismatch(uri, format!("{what} and {b} after: rows that are gone take their places")));
        }
        seconds.0 += before_took;
        seconds.1 += after_took;
    }
    let n = terms.len() as f64;
    Ok(Some(IndexCheck {
        name: info.name.clone(),
        exact: Some(true),
        recall: None,
        seconds: (seconds.0 / n, seconds.1 / n),
    }))
}

fn terms(values: &dyn Array) -> Vec<String> {
    let mut out: Vec<String> = (0..values.len())
        .filter(|i| !values.is_null(*i))
        .filter_map(|i| arrow_cast::display::array_value_to_string(values, i).ok())
        .filter_map(|text| {
            text.split(|c: char| !c.is_alphanumeric())
                .filter(|w| w.chars().count() >= 3)
                .max_by_key(|w| w.len())
                .map(String::from)
        })
        .collect();
    out.sort();
    out.dedup();
    out.truncate(LOOKUPS);
    out
}

/// The matching rows' indexed text, counted: scan order and row addresses may change, the set of rows may not.
///
/// Rows, and not their ids alone: an id of a row that is gone would be found.
async fn search(
    dataset: &Arc<Dataset>,
    column: &str,
    term: &str,
    best: Option<i64>,
) -> Result<(BTreeMap<Vec<u8>, u64>, f64)> {
    let uri = dataset.uri();
    let start = Instant::now();
    let query = FullTextSearchQuery::new(term.to_string()).with_column(column.to_string()).map_err(lance_error(uri))?;
    let mut scan = dataset.scan();
    scan.full_text_search(query.limit(best)).map_err(lance_error(uri))?;
    scan.project(&[column]).map_err(lance_error(uri))?;
    in_little_memory(&mut scan);
    scan.disable_scoring_autoprojection();
    let stream = scan.try_into_stream().await.map_err(lance_error(uri))?;
    let batches: Vec<RecordBatch> = stream.try_collect().await.map_err(lance_error(uri))?;
    let took = start.elapsed().as_secs_f64();
    let mut found = BTreeMap::new();
    for batch in &batches {
        let only = batch.project(&[0]).map_err(|e| Error::new(Kind::Bug, "comparing rows", uri).because(e))?;
        for row in row_bytes(&only).map_err(|e| Error::new(Kind::Bug, "comparing rows", uri).because(e))? {
            *found.entry(row).or_default() += 1;
        }
    }
    Ok((found, took))
}

/// Searched partitions and refined candidates per result: with both this large, what is left of a fall in recall is lost rows,
/// not the quantiser's noise, which differs between rows that were scanned before a fold and are encoded after it.
///
/// Where neighbours are so many and so alike that a fall is seen all the same, it is asked again with more candidates: rows that are
/// lost are found by no number of them. But never with so many that most of a small table is compared, where entries that stand for
/// other rows would be found as well.
const PROBES: usize = 1_024;
const REFINE: u32 = 20;
/// So many times the candidates, one after the other.
const WIDER: [u32; 3] = [1, 10, 100];

/// The candidates per result to ask with, fewest first: the usual ones, and more where they stay below a quarter of the rows.
pub(super) fn candidates(rows: u64) -> impl Iterator<Item = u32> {
    WIDER.into_iter().filter(move |w| *w == 1 || rows / 4 >= u64::from(10 * REFINE * w)).map(|w| w * REFINE)
}

/// Vectors: recall@10 against the brute-force answer of the same version, before and after.
pub(super) async fn vector(
    uri: &str,
    before: &Arc<Dataset>,
    after: &Arc<Dataset>,
    info: &IndexInfo,
) -> Result<Option<IndexCheck>> {
    let Some(column) = info.columns.first() else { return Ok(None) };
    let Some(values) = sample(after, column, LOOKUPS).await? else { return Ok(None) };
    let Some(list) = values.as_fixed_size_list_opt() else { return Ok(None) };
    let queries: Vec<ArrayRef> =
        (0..list.len()).filter(|i| !list.is_null(*i)).map(|i| list.value(i)).take(LOOKUPS).collect();
    if queries.is_empty() || scope(after, info).is_some() {
        // Brute force over more than the cap would cost more than the pass itself.
        return Ok(None);
    }
    let mut fell = None;
    for refine in candidates(info.indexed_rows + info.unindexed_rows) {
        let (a, before_took) = recall(before, column, &queries, None, refine).await?;
        let (b, after_took) = recall(after, column, &queries, None, refine).await?;
        if b + RECALL_TOLERANCE >= a {
            return Ok(Some(IndexCheck {
                name: info.name.clone(),
                exact: None,
                recall: Some((a, b)),
                seconds: (before_took, after_took),
            }));
        }
        fell = Some((a, b));
    }
    let (a, b) = fell.unwrap_or_default();
    Err(mismatch(uri, format!("recall@10 of index {} fell from {a:.3} to {b:.3}", info.name)))
}

/// Without a metric the library takes the index's own where it uses one, and its default where it does not.
pub(super) async fn recall(
    dataset: &Arc<Dataset>,
    column: &str,
    queries: &[ArrayRef],
    metric: Option<DistanceType>,
    refine: u32,
) -> Result<(f64, f64)> {
    let (mut hits, mut wanted, mut seconds) = (0usize, 0usize, 0.0);
    for query in queries {
        let exact = nearest(dataset, column, query, (None, metric)).await?;
        let start = Instant::now();
        let found = nearest(dataset, column, query, (Some(refine), metric)).await?;
        seconds += start.elapsed().as_secs_f64();
        hits += exact.iter().filter(|id| found.contains(id)).count();
        wanted += exact.len();
    }
    Ok((if wanted == 0 { 1.0 } else { hits as f64 / wanted as f64 }, seconds / queries.len().max(1) as f64))
}

async fn nearest(
    dataset: &Arc<Dataset>,
    column: &str,
    query: &ArrayRef,
    (refine, metric): (Option<u32>, Option<DistanceType>),
) -> Result<Vec<u64>> {
    let uri = dataset.uri();
    let mut scan = dataset.scan();
    scan.nearest(column, query.as_ref(), 10).map_err(lance_error(uri))?;
    scan.use_index(refine.is_some());
    if let Some(metric) = metric {
        scan.distance_metric(metric);
    }
    if let Some(refine) = refine {
        scan.nprobes(PROBES);
        scan.refine(refine);
    }
    scan.empty_project().map_err(lance_error(uri))?;
    scan.disable_scoring_autoprojection();
    scan.with_row_id();
    row_ids(dataset, scan).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_candidates_are_compared_only_where_most_rows_are_not() {
        let of = |rows| candidates(rows).collect::<Vec<u32>>();
        assert_eq!(of(7_999), [20]);
        assert_eq!(of(8_000), [20, 200]);
        assert_eq!(of(79_999), [20, 200]);
        assert_eq!(of(80_000), [20, 200, 2_000]);
    }
}
