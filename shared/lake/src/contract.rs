//! Contracts on Lance: what a contract asks of a dataset, and whether the live dataset agrees.
//!
//! A contract projects to an Arrow schema whose fields carry `pinax.id` in their metadata, and to three properties of the
//! table: contract, revision, digest of the registry content. They are read from the table's config or its metadata,
//! wherever its writer has put them. Lance's own field ids play no part: they belong to Lance.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::{Date32Type, TimestampMicrosecondType};
use arrow_array::{Array, PrimitiveArray, RecordBatch};
use arrow_schema::{DataType as ArrowType, Field, Schema, TimeUnit};
use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use lance_core::datatypes::Field as LiveField;
use squire_registry::contract::{
    Column, Contracts, DataType, FIELD_ID, Nullability, PIN_CONTRACT, PIN_DIGEST, PIN_REVISION, Pins, Table,
};

use crate::look::Look;
use crate::{Error, Kind, Result};

/// How a dataset stands to its contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Readiness {
    /// It agrees in everything.
    Ready,
    /// It can be brought to agree without breaking anything: optional columns, field ids or pins are to be added.
    Pending,
    /// It disagrees in what a contract never changes; people decide.
    Blocked,
}

/// A dataset held against its contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// The state.
    pub readiness: Readiness,
    /// Whether the dataset carries no pin at all.
    pub unbound: bool,
    /// What differs, one line each: first what blocks.
    pub reasons: Vec<String>,
}

/// The Arrow type of a contract's type.
pub fn arrow_type(data_type: DataType) -> ArrowType {
    match data_type {
        DataType::Boolean => ArrowType::Boolean,
        DataType::Int32 => ArrowType::Int32,
        DataType::Int64 => ArrowType::Int64,
        DataType::Float32 => ArrowType::Float32,
        DataType::Float64 => ArrowType::Float64,
        // The registry admits a precision of at most 38 and a scale of at most the precision.
        DataType::Decimal { precision, scale } => {
            ArrowType::Decimal128(precision, i8::try_from(scale).unwrap_or(i8::MAX))
        }
        DataType::Date => ArrowType::Date32,
        DataType::Timestamp => ArrowType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        DataType::String => ArrowType::Utf8,
        DataType::Binary => ArrowType::Binary,
    }
}

/// The schema that a contract asks for: columns in order, nullability, `pinax.id` in each field's metadata.
pub fn arrow_schema(table: &Table) -> Schema {
    let field = |column: &Column| {
        let nullable = column.nullability == Nullability::Optional;
        Field::new(&column.name, arrow_type(column.data_type), nullable)
            .with_metadata(HashMap::from([(FIELD_ID.to_owned(), column.id.to_string())]))
    };
    Schema::new(table.columns.iter().map(field).collect::<Vec<_>>())
}

/// Holds HEAD of a dataset against the contract of `table`: ids, names, types, nullability, order, pins. `None` where the
/// contracts have no such table. Pure.
pub fn matches(contracts: &Contracts, table: &str, look: &Look) -> Option<Match> {
    let expected = contracts.table(table)?;
    let pins = Pins::of(contracts, table)?;
    let live = &look.head.manifest.schema.fields;
    let manifest = &look.head.manifest;
    let property =
        |key: &str| manifest.config.get(key).or_else(|| manifest.table_metadata.get(key)).map(String::as_str);
    Some(hold(expected, &pins, live, property))
}

fn hold<'a>(expected: &Table, pins: &Pins, live: &[LiveField], property: impl Fn(&str) -> Option<&'a str>) -> Match {
    let (mut blocking, mut pending) = (Vec::new(), Vec::new());
    let mut without_id = Vec::new();
    for (i, field) in live.iter().enumerate() {
        match expected.columns.get(i) {
            Some(column) => {
                blocking.extend(differences(column, field));
                if !field.metadata.contains_key(FIELD_ID) {
                    without_id.push(column.name.as_str());
                }
            }
            None => blocking.push(format!("column `{}` is in no contract", field.name)),
        }
    }
    for column in expected.columns.iter().skip(live.len()) {
        match column.nullability {
            Nullability::Optional => pending.push(format!("the optional column `{}` is to be appended", column.name)),
            Nullability::Required => blocking.push(format!("the required column `{}` is missing", column.name)),
        }
    }
    if !without_id.is_empty() {
        pending.push(format!("`{FIELD_ID}` is to be put into the metadata of {}", without_id.join(", ")));
    }
    let unbound = [PIN_CONTRACT, PIN_REVISION, PIN_DIGEST].iter().all(|key| property(key).is_none());
    if unbound {
        pending.push(format!("it carries no pins of {}@{}", pins.contract, pins.revision));
    } else {
        held_pins(pins, property, &mut blocking, &mut pending);
    }
    let readiness = match (blocking.is_empty(), pending.is_empty()) {
        (false, _) => Readiness::Blocked,
        (true, false) => Readiness::Pending,
        (true, true) => Readiness::Ready,
    };
    Match { readiness, unbound, reasons: blocking.into_iter().chain(pending).collect() }
}

/// What of a live field contradicts its column. Order is position: a field that changed places differs in name and id.
fn differences(column: &Column, field: &LiveField) -> Vec<String> {
    let mut out = Vec::new();
    let at = &column.name;
    if field.name != column.name {
        out.push(format!("column `{at}` is expected where `{}` is", field.name));
    }
    if let Some(id) = field.metadata.get(FIELD_ID).filter(|id| **id != column.id.to_string()) {
        out.push(format!("column `{at}` has the id {id}, its contract says {}", column.id));
    }
    let (is, wanted) = (field.data_type(), arrow_type(column.data_type));
    if is != wanted {
        out.push(format!("column `{at}` is of type {is}, its contract says {} ({wanted})", column.data_type));
    }
    if field.nullable != (column.nullability == Nullability::Optional) {
        let is = if field.nullable { "optional" } else { "required" };
        out.push(format!("column `{at}` is {is}, its contract says {}", column.nullability));
    }
    out
}

fn held_pins<'a>(
    pins: &Pins,
    property: impl Fn(&str) -> Option<&'a str>,
    blocking: &mut Vec<String>,
    pending: &mut Vec<String>,
) {
    match property(PIN_CONTRACT) {
        Some(found) if found == pins.contract => {}
        Some(found) => blocking.push(format!("it is pinned to contract {found}, its name says {}", pins.contract)),
        None => pending.push(format!("the pin {PIN_CONTRACT} is missing")),
    }
    match property(PIN_REVISION).map(|text| (text, text.parse::<u64>())) {
        Some((_, Ok(found))) if found == pins.revision => {}
        Some((_, Ok(found))) if found > pins.revision => blocking.push(format!(
            "it is pinned to revision {found} and {} is published: is this the right registry?",
            pins.revision
        )),
        Some((_, Ok(found))) => {
            pending.push(format!("it is pinned to revision {found}, {} is published", pins.revision))
        }
        Some((text, Err(_))) => blocking.push(format!("the pin {PIN_REVISION} is `{text}`, which is no revision")),
        None => pending.push(format!("the pin {PIN_REVISION} is missing")),
    }
    match property(PIN_DIGEST) {
        Some(found) if found == pins.digest => {}
        Some(_) => pending.push(format!("it is pinned to another registry content than {}", pins.digest)),
        None => pending.push(format!("the pin {PIN_DIGEST} is missing")),
    }
}

/// How many rows of HEAD are older than `cutoff` by a date or timestamp column of the contract. Reads that one column.
/// Rows without a value are not counted.
///
/// # Errors
/// `Refused` where HEAD is not open or the column is no time; else Lance's.
pub async fn rows_older_than(look: &Look, column: &str, cutoff: DateTime<Utc>) -> Result<u64> {
    let doing = || format!("counting the rows that are older than {} by {column}", cutoff.format("%Y-%m-%d"));
    let Some(dataset) = look.dataset.as_ref() else {
        return Err(Error::new(Kind::Refused, doing(), &look.uri));
    };
    let failed = |e: lance::Error| Error::lance(doing(), &look.uri, e);
    let mut scan = dataset.scan();
    scan.project(&[column]).map_err(failed)?;
    let mut batches = scan.try_into_stream().await.map_err(failed)?;
    let mut older = 0;
    while let Some(batch) = batches.try_next().await.map_err(failed)? {
        older += count_older(&batch, cutoff).ok_or_else(|| Error::new(Kind::Refused, doing(), &look.uri))?;
    }
    Ok(older)
}

fn count_older(batch: &RecordBatch, cutoff: DateTime<Utc>) -> Option<u64> {
    let values: &Arc<dyn Array> = batch.columns().first()?;
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    if let Some(times) = values.as_any().downcast_ref::<PrimitiveArray<TimestampMicrosecondType>>() {
        let cutoff = cutoff.timestamp_micros();
        return Some(count(times.iter().flatten().filter(|t| *t < cutoff).count()));
    }
    let days = values.as_any().downcast_ref::<PrimitiveArray<Date32Type>>()?;
    // A day is older only when all of it is.
    let cutoff = cutoff.timestamp().div_euclid(86_400);
    Some(count(days.iter().flatten().filter(|d| i64::from(*d) < cutoff).count()))
}
