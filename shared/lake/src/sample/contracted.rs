//! A dataset that a contract describes.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, BooleanBuilder, StringBuilder};
use arrow_array::{
    ArrayRef, Date32Array, Decimal128Array, Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch,
    RecordBatchIterator, TimestampMicrosecondArray,
};
use arrow_schema::{ArrowError, DataType, Schema};
use chrono::{DateTime, Utc};
use lance::Dataset;
use lance::dataset::{WriteMode, WriteParams};

use super::failed;
use crate::{Error, Kind, Result};

/// Writes one row per moment at a canonical URI, replacing what is there: dates and timestamps are that moment, every other
/// column counts the rows. `properties` go into the table's config.
///
/// # Errors
/// Lance's, or a type that no contract has.
pub async fn write_contracted(
    uri: &str,
    schema: &Schema,
    moments: &[DateTime<Utc>],
    properties: &[(String, String)],
) -> Result<()> {
    let made =
        schema.fields().iter().map(|f| values(f.data_type(), moments)).collect::<std::result::Result<Vec<_>, _>>();
    let batch = made
        .and_then(|columns| RecordBatch::try_new(Arc::new(schema.clone()), columns))
        .map_err(|e| Error::new(Kind::Bug, "making rows of a contract", uri).because(e))?;
    let reader = RecordBatchIterator::new([Ok(batch)], Arc::new(schema.clone()));
    let params = WriteParams { mode: WriteMode::Overwrite, ..Default::default() };
    let mut dataset = Dataset::write(reader, uri, Some(params)).await.map_err(failed(uri))?;
    if !properties.is_empty() {
        dataset.update_config(properties.to_vec()).await.map_err(failed(uri))?;
    }
    Ok(())
}

fn values(data_type: &DataType, moments: &[DateTime<Utc>]) -> std::result::Result<ArrayRef, ArrowError> {
    let n = i32::try_from(moments.len()).unwrap_or(i32::MAX);
    let micros = || moments.iter().map(DateTime::timestamp_micros).collect::<Vec<_>>();
    Ok(match data_type {
        DataType::Boolean => {
            let mut out = BooleanBuilder::new();
            (0..n).for_each(|i| out.append_value(i % 2 == 0));
            Arc::new(out.finish())
        }
        DataType::Int32 => Arc::new(Int32Array::from_iter_values(0..n)),
        DataType::Int64 => Arc::new(Int64Array::from_iter_values(0..i64::from(n))),
        DataType::Float32 => Arc::new(Float32Array::from_iter_values((0..n).map(|i| i as f32))),
        DataType::Float64 => Arc::new(Float64Array::from_iter_values((0..n).map(f64::from))),
        DataType::Decimal128(precision, scale) => Arc::new(
            Decimal128Array::from_iter_values((0..n).map(i128::from)).with_precision_and_scale(*precision, *scale)?,
        ),
        DataType::Date32 => Arc::new(Date32Array::from_iter_values(
            moments.iter().map(|m| i32::try_from(m.timestamp().div_euclid(86_400)).unwrap_or(i32::MAX)),
        )),
        DataType::Timestamp(_, zone) => {
            Arc::new(TimestampMicrosecondArray::from(micros()).with_timezone_opt(zone.clone()))
        }
        DataType::Utf8 => {
            let mut out = StringBuilder::new();
            (0..n).for_each(|i| out.append_value(format!("row {i}")));
            Arc::new(out.finish())
        }
        DataType::Binary => {
            let mut out = BinaryBuilder::new();
            (0..n).for_each(|i| out.append_value(i.to_le_bytes()));
            Arc::new(out.finish())
        }
        other => return Err(ArrowError::NotYetImplemented(format!("{other} in a sample"))),
    })
}
