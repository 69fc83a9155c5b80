//! Rows that an index is asked for: spread over what it covers, every fragment of few among them.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use lance::Dataset;
use lance::dataset::{ProjectionRequest, ROW_ID, TakeBuilder};
use lance_core::ROW_ADDR;

use super::{SAMPLE_BYTES, addresses, lance_error, offsets, runs};
use crate::index::IndexInfo;
use crate::{Error, Kind, Result};

/// Rows, and beside them the first ones of as many fragments.
const ROWS: usize = 64;
/// Where rows are wide, there are fewer of them, and at least so many.
const FEW: usize = 8;

/// Some live rows.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Their addresses, ascending.
    pub(super) addresses: Vec<u64>,
    /// Their ids: the addresses, but for tables with stable ones.
    pub(super) ids: Vec<u64>,
}

impl Rows {
    /// Rows of the fragments that the index covers.
    pub(super) async fn sampled(dataset: &Arc<Dataset>, info: &IndexInfo) -> Result<Self> {
        let covered = info.covered();
        let ids = dataset.fragments().iter().map(|f| f.id);
        let ids: Vec<u64> = ids.filter(|id| u32::try_from(*id).is_ok_and(|id| covered.contains(id))).collect();
        let runs = runs(dataset, &ids);
        let rows: u64 = runs.iter().map(|(f, _)| f.num_rows().unwrap_or(0) as u64).sum();
        let n = count(dataset, rows);
        let starts: Vec<u64> =
            runs.iter().filter(|(f, _)| f.num_rows().unwrap_or(0) > 0).map(|(_, start)| *start).collect();
        let mut wanted: BTreeSet<u64> = offsets(rows, n).into_iter().collect();
        wanted.extend(offsets(starts.len() as u64, n).into_iter().filter_map(|i| starts.get(usize::try_from(i).ok()?)));
        let wanted: Vec<u64> = wanted.into_iter().collect();
        let addresses = addresses(dataset, &ids, &wanted).await?;
        let ids = match dataset.manifest().uses_stable_row_ids() && !addresses.is_empty() {
            false => addresses.clone(),
            true => {
                let request = ProjectionRequest::from_columns([ROW_ID], dataset.schema());
                numbers(&take(dataset, &addresses, request).await?, ROW_ID, dataset.uri())?
            }
        };
        Ok(Self { addresses, ids })
    }

    /// Those of these ids that live, in fragments that the index covers.
    pub(super) async fn of_ids(dataset: &Arc<Dataset>, ids: &[u64], info: &IndexInfo) -> Result<Self> {
        if ids.is_empty() {
            return Ok(Self::default());
        }
        let uri = dataset.uri();
        let request = ProjectionRequest::from_columns([ROW_ID, ROW_ADDR], dataset.schema());
        let take = TakeBuilder::try_new_from_ids(dataset.clone(), ids.to_vec(), request).map_err(lance_error(uri))?;
        let batch = take.execute().await.map_err(lance_error(uri))?;
        let covered = info.covered();
        let (ids, addresses) = (numbers(&batch, ROW_ID, uri)?, numbers(&batch, ROW_ADDR, uri)?);
        let pairs = ids.into_iter().zip(addresses);
        let (ids, addresses) = pairs.filter(|(_, address)| covered.contains((address >> 32) as u32)).unzip();
        Ok(Self { addresses, ids })
    }
}

/// How many rows are sampled, of so many: wide ones are few.
fn count(dataset: &Dataset, rows: u64) -> usize {
    let sizes = dataset.fragments().iter().flat_map(|f| &f.files).filter_map(|f| f.file_size_bytes.get());
    let columns = dataset.schema().fields.len().max(1) as u64;
    let width = (sizes.map(u64::from).sum::<u64>() / columns / rows.max(1)).max(1);
    usize::try_from(SAMPLE_BYTES / width).unwrap_or(ROWS).clamp(FEW, ROWS)
}

/// Takes something of live rows, in their order.
pub(super) async fn take(dataset: &Arc<Dataset>, addresses: &[u64], request: ProjectionRequest) -> Result<RecordBatch> {
    let uri = dataset.uri();
    let plan = request.into_projection_plan(dataset.clone()).map_err(lance_error(uri))?;
    let take = TakeBuilder::try_new_from_addresses(dataset.clone(), addresses.to_vec(), Arc::new(plan));
    take.map_err(lance_error(uri))?.execute().await.map_err(lance_error(uri))
}

/// A column of row ids or addresses.
fn numbers(batch: &RecordBatch, name: &str, uri: &str) -> Result<Vec<u64>> {
    let column = batch.column_by_name(name).and_then(|c| c.as_primitive_opt::<arrow_array::types::UInt64Type>());
    let column = column.ok_or_else(|| Error::new(Kind::Bug, format!("taking {name} of sampled rows"), uri))?;
    Ok(column.values().to_vec())
}

/// A column of rows, a nested one's own values. `None` below a list: there is no single value per row.
pub(super) async fn column_of(dataset: &Arc<Dataset>, column: &str, addresses: &[u64]) -> Result<Option<ArrayRef>> {
    let request = ProjectionRequest::from_columns([column], dataset.schema());
    let batch = take(dataset, addresses, request).await?;
    let Some(mut values) = batch.columns().first().cloned() else { return Ok(None) };
    for field in dataset.schema().resolve(column).unwrap_or_default().iter().skip(1) {
        let Some(outer) = values.as_struct_opt() else { return Ok(None) };
        let Some(inner) = outer.column_by_name(&field.name) else { return Ok(None) };
        // What lies within nothing is nothing.
        let nothing: BooleanArray = (0..outer.len()).map(|i| Some(outer.is_null(i))).collect();
        let wrong = |e| Error::new(Kind::Bug, "reading a nested column", dataset.uri()).because(e);
        values = arrow_select::nullif::nullif(inner.as_ref(), &nothing).map_err(wrong)?;
    }
    Ok(Some(values))
}

/// A column's path as the filter language takes it, every name in quotes.
pub(super) fn quoted(dataset: &Dataset, column: &str) -> String {
    let names = |fields: Vec<&lance_core::datatypes::Field>| {
        fields.iter().map(|f| format!("`{}`", f.name.replace('`', "``"))).collect::<Vec<_>>().join(".")
    };
    dataset.schema().resolve(column).map_or_else(|| format!("`{column}`"), names)
}
