//! The same answers before and after (design, "Verify").
//!
//! Compared are the version just before ours (W-1) and ours (W), never the start of the pass. Row counts are equal; sampled
//! live rows of each rewrite group are equal in order; every touched index answers as a scan of the same version does, and
//! vector recall does not fall.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_row::{RowConverter, SortField};
use futures::{StreamExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::ProjectionRequest;
use lance::dataset::transaction::Operation;
use lance::index::DatasetIndexExt;
use lance_table::format::Fragment;
use serde::{Deserialize, Serialize};

use crate::index::IndexInfo;
use crate::{Error, Kind, Lake, Result, contain};

mod asked;
mod built;
mod indices;
mod sampled;
mod words;

pub use built::{RECALL_FLOOR, built};

use indices::{exact, full_text, vector};

/// Rows sampled per rewrite group.
const SAMPLE_ROWS: usize = 64;
/// Bytes of sampled rows held at once, of each side.
const SAMPLE_BYTES: u64 = 8 << 20;
/// Values looked up per exact index, terms per full-text index, queries per vector index.
const LOOKUPS: usize = 8;
/// Questions, and fragments whose deletions are read, at once.
const AT_ONCE: usize = 8;
/// A column whose scan would read more than this is checked on a few fragments only.
const SCAN_BYTES: u64 = 256 << 20;
/// Recall@10 may not fall more than this.
pub const RECALL_TOLERANCE: f64 = 0.05;

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Checks {
    /// Live rows, equal on both sides.
    pub rows: u64,
    /// Rows compared one by one.
    pub sampled_rows: u64,
    /// Per touched index.
    pub indices: Vec<IndexCheck>,
}

impl Checks {
    /// Adds what a later commit's comparison found.
    pub fn merge(&mut self, later: Self) {
        self.rows = later.rows;
        self.sampled_rows += later.sampled_rows;
        self.indices.extend(later.indices);
    }
}

/// One index's answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexCheck {
    /// Its name.
    pub name: String,
    /// Exact and full-text indices: whether every look-up answered as a scan does.
    pub exact: Option<bool>,
    /// Vector indices: recall@10 at W-1 and W.
    pub recall: Option<(f64, f64)>,
    /// Seconds per look-up at W-1 and W.
    pub seconds: (f64, f64),
}

/// One rewrite to be verified: versions and groups of fragment ids.
#[derive(Debug, Clone, Default)]
pub struct Rewrite {
    /// W-1.
    pub before: u64,
    /// W.
    pub after: u64,
    /// Old and new fragment ids of each group.
    pub groups: Vec<(Vec<u64>, Vec<u64>)>,
}

/// Verifies one commit of ours.
///
/// # Errors
/// [`Kind::Verify`] with what differs; other kinds when it could not be compared at all, which is not a pass either.
pub async fn verify(lake: &Lake, uri: &str, rewrite: &Rewrite, touched: &[IndexInfo]) -> Result<Checks> {
    let work = async {
        let before = Arc::new(lake.open_version(uri, rewrite.before).await?);
        let after = Arc::new(lake.open_version(uri, rewrite.after).await?);
        let mut checks = Checks { rows: count(&after).await?, ..Checks::default() };
        let rows_before = count(&before).await?;
        if rows_before != checks.rows {
            return Err(mismatch(uri, format!("{rows_before} rows became {}", checks.rows)));
        }
        for (old, new) in &rewrite.groups {
            checks.sampled_rows += same_rows(uri, &before, &after, old, new).await?;
        }
        for info in touched.iter().filter(|i| i.can_fold() && !i.columns.is_empty()) {
            let check = if info.is_vector() {
                vector(uri, &before, &after, info).await?
            } else if info.is_full_text() {
                full_text(uri, &before, &after, info).await?
            } else {
                // What no filter says, boxes, fractions and JSON, is asked of the index itself.
                match exact(uri, &before, &after, info).await? {
                    Some(check) => Some(check),
                    None => asked::asked(uri, &after, info).await?,
                }
            };
            checks.indices.extend(check);
        }
        Ok(checks)
    };
    contain::contained(lake, "verifying", uri, work).await
}

/// What a commit of ours rewrote, and the names of the indices that it made anew, read from its transaction: for a commit whose
/// process died before it could be verified. Of a commit without a recorded transaction only the row counts can be compared.
///
/// # Errors
/// What opening the version or reading its transaction answers.
pub async fn rewrite_of(lake: &Lake, uri: &str, version: u64) -> Result<(Rewrite, Vec<String>)> {
    let work = async {
        let dataset = lake.open_version(uri, version).await?;
        let failed = |e| Error::lance("reading the transaction of a version", uri, e);
        let transaction = dataset.read_transaction().await.map_err(failed)?;
        let mut rewrite = Rewrite { before: version.saturating_sub(1), after: version, groups: Vec::new() };
        let mut names = Vec::new();
        match transaction.map(|t| t.operation) {
            Some(Operation::Rewrite { groups, rewritten_indices, .. }) => {
                let ids = |fragments: &[Fragment]| fragments.iter().map(|f| f.id).collect::<Vec<u64>>();
                rewrite.groups = groups.iter().map(|g| (ids(&g.old_fragments), ids(&g.new_fragments))).collect();
                let indices = dataset.load_indices().await.map_err(failed)?;
                let made = indices.iter().filter(|i| rewritten_indices.iter().any(|r| r.new_id == i.uuid));
                names.extend(made.map(|i| i.name.clone()));
            }
            Some(Operation::CreateIndex { new_indices, .. }) => {
                names.extend(new_indices.iter().map(|i| i.name.clone()));
            }
            _ => {}
        }
        names.sort();
        names.dedup();
        Ok((rewrite, names))
    };
    contain::contained(lake, "reading what a commit rewrote", uri, work).await
}

fn mismatch(uri: &str, what: String) -> Error {
    Error::new(Kind::Verify, "comparing answers before and after", uri)
        .because(std::io::Error::other(what))
        .remedy("the dataset is blocked and nothing is cleaned; the version before ours still reads")
}

fn lance_error(uri: &str) -> impl Fn(lance::Error) -> Error + '_ {
    move |e| Error::lance("verifying", uri, e)
}

async fn count(dataset: &Dataset) -> Result<u64> {
    let rows = dataset.count_rows(None).await.map_err(lance_error(dataset.uri()))?;
    Ok(rows as u64)
}

/// Live rows of the fragments, with the number of live rows before each.
fn runs(dataset: &Dataset, ids: &[u64]) -> Vec<(Fragment, u64)> {
    let mut at = 0;
    ids.iter()
        .filter_map(|id| dataset.fragments().iter().find(|f| f.id == *id))
        .map(|f| {
            let start = at;
            at += f.num_rows().unwrap_or(0) as u64;
            (f.clone(), start)
        })
        .collect()
}

/// Sampled live rows of the old fragments equal those of the new ones, in order; blobs by payload.
async fn same_rows(uri: &str, before: &Arc<Dataset>, after: &Arc<Dataset>, old: &[u64], new: &[u64]) -> Result<u64> {
    let total =
        |ds: &Dataset, ids: &[u64]| runs(ds, ids).iter().map(|(f, _)| f.num_rows().unwrap_or(0) as u64).sum::<u64>();
    let (n, m) = (total(before, old), total(after, new));
    if n != m {
        return Err(mismatch(uri, format!("a rewrite of fragments {old:?} has {m} rows instead of {n}")));
    }
    if n == 0 {
        return Ok(0);
    }
    let wanted = offsets(n, SAMPLE_ROWS);
    let (a, b) = (addresses(before, old, &wanted).await?, addresses(after, new, &wanted).await?);
    let differs = |row: u64| mismatch(uri, format!("row {row} of the rewrite of fragments {old:?} differs"));
    if a.len() != wanted.len() || b.len() != wanted.len() {
        return Err(differs(wanted.get(a.len().min(b.len())).copied().unwrap_or_default()));
    }
    let at_once = rows_at_once(before, old);
    for ((rows, a), b) in wanted.chunks(at_once).zip(a.chunks(at_once)).zip(b.chunks(at_once)) {
        let (a, b) = (rows_at(before, a).await?, rows_at(after, b).await?);
        if let Some(at) = (0..rows.len()).find(|i| a.get(*i) != b.get(*i)) {
            return Err(differs(rows[at]));
        }
    }
    Ok(wanted.len() as u64)
}

/// Sampled rows that are held at once: wide ones are few, and the payloads of blobs are of unknown size.
fn rows_at_once(dataset: &Dataset, ids: &[u64]) -> usize {
    if dataset.schema().fields.iter().any(|f| f.is_blob()) {
        return 1;
    }
    let fragments = runs(dataset, ids);
    let rows: u64 = fragments.iter().map(|(f, _)| f.physical_rows.unwrap_or(0) as u64).sum();
    let sizes = fragments.iter().flat_map(|(f, _)| &f.files).filter_map(|f| f.file_size_bytes.get());
    let width = (sizes.map(u64::from).sum::<u64>() / rows.max(1)).max(1);
    usize::try_from(SAMPLE_BYTES / width).unwrap_or(SAMPLE_ROWS).clamp(1, SAMPLE_ROWS)
}

/// Evenly spread positions, first and last included.
fn offsets(rows: u64, n: usize) -> Vec<u64> {
    let n = (n as u64).min(rows);
    let mut out: Vec<u64> = (0..n).map(|i| if n == 1 { 0 } else { i * (rows - 1) / (n - 1) }).collect();
    out.dedup();
    out
}

/// The row addresses of live positions of a run of fragments.
async fn addresses(dataset: &Arc<Dataset>, ids: &[u64], wanted: &[u64]) -> Result<Vec<u64>> {
    let mut reading = Vec::new();
    for (fragment, start) in runs(dataset, ids) {
        let rows = fragment.num_rows().unwrap_or(0) as u64;
        let here: Vec<u64> = wanted.iter().filter(|w| **w >= start && **w < start + rows).map(|w| w - start).collect();
        if !here.is_empty() {
            reading.push(async move { live_addresses(dataset, &fragment, &here).await });
        }
    }
    futures::stream::iter(reading).buffered(AT_ONCE).try_concat().await
}

/// Rows by address, as comparable bytes.
async fn rows_at(dataset: &Arc<Dataset>, addrs: &[u64]) -> Result<Vec<Vec<u8>>> {
    let batch = take(dataset, addrs).await?;
    let wrong = |e| Error::new(Kind::Bug, "comparing rows", dataset.uri()).because(e);
    let mut rows = row_bytes(&batch).map_err(wrong)?;
    append_blobs(dataset, addrs, &mut rows).await?;
    Ok(rows)
}

/// The row addresses of live positions in one fragment.
async fn live_addresses(dataset: &Arc<Dataset>, fragment: &Fragment, positions: &[u64]) -> Result<Vec<u64>> {
    let base = fragment.id << 32;
    if fragment.deletion_file.is_none() {
        return Ok(positions.iter().map(|p| base + p).collect());
    }
    let uri = dataset.uri();
    let mut scan = dataset.scan();
    scan.with_fragments(vec![fragment.clone()]);
    scan.empty_project().map_err(lance_error(uri))?;
    scan.with_row_address();
    let stream = scan.try_into_stream().await.map_err(lance_error(uri))?;
    let batches: Vec<RecordBatch> = stream.try_collect().await.map_err(lance_error(uri))?;
    let mut addrs: Vec<u64> = Vec::new();
    for batch in &batches {
        if let Some(column) = batch.column_by_name("_rowaddr") {
            addrs.extend(column.as_primitive::<arrow_array::types::UInt64Type>().values());
        }
    }
    Ok(positions.iter().filter_map(|p| addrs.get(usize::try_from(*p).ok()?).copied()).collect())
}

/// Non-blob columns of rows by address, in the given order.
async fn take(dataset: &Arc<Dataset>, addrs: &[u64]) -> Result<RecordBatch> {
    let uri = dataset.uri();
    let plain: Vec<String> = dataset.schema().fields.iter().filter(|f| !f.is_blob()).map(|f| f.name.clone()).collect();
    let request = ProjectionRequest::from_columns(&plain, dataset.schema());
    let builder = lance::dataset::TakeBuilder::try_new_from_addresses(
        dataset.clone(),
        addrs.to_vec(),
        Arc::new(request.into_projection_plan(dataset.clone()).map_err(lance_error(uri))?),
    )
    .map_err(lance_error(uri))?;
    builder.execute().await.map_err(lance_error(uri))
}

/// Blob columns are descriptors in the batch: their payloads are what must be equal.
async fn append_blobs(dataset: &Arc<Dataset>, addrs: &[u64], rows: &mut [Vec<u8>]) -> Result<()> {
    let uri = dataset.uri();
    let blobs: Vec<String> = dataset.schema().fields.iter().filter(|f| f.is_blob()).map(|f| f.name.clone()).collect();
    for name in blobs {
        let files = dataset.take_blobs_by_addresses(addrs, &name).await.map_err(lance_error(uri))?;
        for (row, file) in rows.iter_mut().zip(files) {
            match file {
                None => row.push(0),
                Some(file) => {
                    row.push(1);
                    row.extend(file.read().await.map_err(lance_error(uri))?.iter());
                }
            }
        }
    }
    Ok(())
}

/// Rows as comparable bytes; nested types without an order are compared as text.
fn row_bytes(batch: &RecordBatch) -> std::result::Result<Vec<Vec<u8>>, arrow_schema::ArrowError> {
    let mut out = vec![Vec::new(); batch.num_rows()];
    for column in batch.columns() {
        let field = SortField::new(column.data_type().clone());
        if RowConverter::supports_fields(std::slice::from_ref(&field)) {
            let converter = RowConverter::new(vec![field])?;
            let rows = converter.convert_columns(std::slice::from_ref(column))?;
            for (i, row) in rows.iter().enumerate() {
                out[i].extend(row.as_ref());
            }
        } else {
            for (i, bytes) in out.iter_mut().enumerate() {
                let text = arrow_cast::display::array_value_to_string(column, i)?;
                bytes.extend(text.as_bytes());
            }
        }
    }
    Ok(out)
}
