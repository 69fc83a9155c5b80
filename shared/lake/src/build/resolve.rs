//! A request against a table, before any row of it is read.

use std::panic::AssertUnwindSafe;

use arrow_schema::DataType;
use chrono::{DateTime, Utc};
use futures::FutureExt;
use lance::index::DatasetIndexExt;
use lance_core::datatypes::{Field, format_field_path};
use lance_index::vector::ivf::builder::recommended_num_partitions;
use serde_json::{Map, Value};

use super::{Definition, IndexKind as K, Reason, Refusal, Spec};
use crate::clients;
use crate::index::{self, IndexInfo, State};
use crate::look::Look;

/// The longest name of an index.
const LONGEST_NAME: usize = 200;

/// Decides everything about an index that was asked for. Reads nothing.
///
/// # Errors
/// What is refused and what would be accepted.
pub fn resolve(look: &Look, spec: &Spec) -> Result<Definition, Refusal> {
    spec.kind.check_params(&spec.params)?;
    let [asked] = spec.columns.as_slice() else {
        let what = format!("{} columns were named", spec.columns.len());
        return Err(Refusal::new(Reason::BadColumns, what, "one column, by its path"));
    };
    let schema = &look.head.manifest.schema;
    let Some(path) = schema.resolve_case_insensitive(asked) else {
        let columns: Vec<String> = paths(schema).into_iter().take(40).collect();
        let shown: String = asked.chars().take(80).collect();
        return Err(Refusal::new(Reason::NoSuchColumn, format!("there is no column {shown:?}"), columns.join(", ")));
    };
    let alike: Vec<String> = paths(schema).into_iter().filter(|p| p.to_lowercase() == asked.to_lowercase()).collect();
    if alike.len() > 1 && schema.resolve(asked).is_none() {
        let what = format!("{asked} may be any of {} columns, which differ by case alone", alike.len());
        return Err(Refusal::new(Reason::BadColumns, what, alike.join(", ")));
    }
    let Some(field) = path.last() else {
        return Err(Refusal::new(Reason::NoSuchColumn, "the column's path is empty", "one column, by its path"));
    };
    let names = spoken(spec.kind, &path)?;
    fits(spec.kind, field)?;
    let name = name_of(spec, &names)?;
    let rows = look.head.rows();
    let mut definition = Definition {
        kind: spec.kind,
        column: format_field_path(&names),
        field: field.id,
        name,
        params: spec.params.clone(),
        derived: Vec::new(),
        dimension: 0,
    };
    if spec.kind.is_vector() {
        derive(&mut definition, field, rows)?;
    }
    // The library refuses to build one over a B-tree, and takes the addresses that zones and filters answer with for row ids: it
    // loses rows then (lance-index 14.0.2, `scalar/json.rs`).
    let target = json_target(&spec.params);
    if spec.kind == K::Json && look.head.manifest.uses_stable_row_ids() && target != "bitmap" {
        return Err(Refusal::new(
            Reason::Unsupported,
            format!("a JSON index over a {target} answers wrongly, or cannot be built, on a table with stable row ids"),
            "target_index_type: bitmap",
        ));
    }
    if look.mixed_names || look.dataset.is_none() {
        return Err(Refusal::new(
            Reason::Unsupported,
            "the table cannot be opened by this build",
            "a table that opens; `squire-maintenance why` says what is wrong",
        ));
    }
    Ok(definition)
}

/// A path as the library takes it: full text names what lists consist of without the list's own level, and no other type looks
/// into lists.
fn spoken<'a>(kind: K, path: &[&'a Field]) -> Result<Vec<&'a str>, Refusal> {
    let within = |i: usize| i > 0 && matches!(path[i - 1].data_type(), DataType::List(_) | DataType::LargeList(_));
    let names = |keep: &dyn Fn(usize) -> bool| -> Vec<&'a str> {
        path.iter().enumerate().filter(|(i, _)| keep(*i)).map(|(_, f)| f.name.as_str()).collect()
    };
    let Some(list) = (0..path.len()).find(|i| within(*i)) else { return Ok(names(&|_| true)) };
    if kind == K::Inverted && !within(path.len() - 1) {
        return Ok(names(&|i| !within(i)));
    }
    let what = format!("column {} lies within a list", format_field_path(&names(&|_| true)));
    let accepted = format!(
        "a column outside of lists, or for LABEL_LIST and INVERTED the list itself: {}",
        format_field_path(&names(&|i| i < list))
    );
    Err(Refusal::new(Reason::WrongType, what, accepted))
}

/// Every column by its path, as a request may name it.
pub fn paths(schema: &lance_core::datatypes::Schema) -> Vec<String> {
    schema.fields_pre_order().filter_map(|f| schema.field_path(f.id).ok()).collect()
}

fn json_target(params: &Map<String, Value>) -> String {
    params.get("target_index_type").and_then(Value::as_str).unwrap_or("btree").to_ascii_lowercase()
}

/// Whether the column's type fits, as the library's own trainers ask.
fn fits(kind: K, field: &Field) -> Result<(), Refusal> {
    let data = field.data_type();
    let json = field.metadata.get("ARROW:extension:name").is_some_and(|n| n == "lance.json");
    let text = matches!(data, DataType::Utf8 | DataType::LargeUtf8);
    let (fits, accepted) = match kind {
        K::BTree | K::Bitmap | K::ZoneMap => {
            (!data.is_nested() && !field.is_blob(), "a column that is neither list, struct nor blob")
        }
        K::BloomFilter => (bloom(&data), "integers, floats, text, binary, dates, times or timestamps"),
        K::LabelList => {
            let list = match &data {
                DataType::List(item) | DataType::LargeList(item) => !item.data_type().is_nested(),
                _ => false,
            };
            (list, "a list of values that are no lists themselves")
        }
        K::NGram => (text, "text"),
        K::Inverted => (text || json || text_list(&data), "text, a list of text, or JSON"),
        K::Json => {
            (json || matches!(data, DataType::Binary | DataType::LargeBinary), "Binary or LargeBinary that holds JSONB")
        }
        K::RTree => {
            let geometry = field.metadata.get("ARROW:extension:name").is_some_and(|n| n.starts_with("geoarrow."));
            (geometry, "a geometry column (an extension type geoarrow.*)")
        }
        vector => (element(&data).is_some_and(|e| vector_element(vector, &e)), vector_accepted(vector)),
    };
    if fits {
        return Ok(());
    }
    let shown: String = format!("{data:?}").chars().take(120).collect();
    let what = format!("column {} has the type {shown}, which {} cannot index", field.name, kind.as_str());
    Err(Refusal::new(Reason::WrongType, what, accepted))
}

fn text_list(data: &DataType) -> bool {
    match data {
        DataType::List(item) | DataType::LargeList(item) => {
            matches!(item.data_type(), DataType::Utf8 | DataType::LargeUtf8)
        }
        _ => false,
    }
}

fn bloom(data: &DataType) -> bool {
    data.is_integer()
        || matches!(
            data,
            DataType::Float32
                | DataType::Float64
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::Date32
                | DataType::Date64
                | DataType::Time32(_)
                | DataType::Time64(_)
                | DataType::Timestamp(_, _)
        )
}

fn element(data: &DataType) -> Option<DataType> {
    match data {
        DataType::FixedSizeList(item, _) => Some(item.data_type().clone()),
        _ => None,
    }
}

fn vector_element(kind: K, element: &DataType) -> bool {
    match element {
        DataType::Float16 | DataType::Float32 | DataType::Float64 => true,
        // Bits can be compared, and not quantised.
        DataType::UInt8 => matches!(kind, K::IvfFlat | K::IvfHnswFlat),
        _ => false,
    }
}

fn vector_accepted(kind: K) -> &'static str {
    match kind {
        K::IvfFlat | K::IvfHnswFlat => "a fixed-size list of float16, float32, float64 or uint8",
        _ => "a fixed-size list of float16, float32 or float64 (uint8: IVF_FLAT or IVF_HNSW_FLAT)",
    }
}

fn name_of(spec: &Spec, names: &[&str]) -> Result<String, Refusal> {
    let accepted = "1 to 200 bytes, without control characters, not starting with __lance_";
    let name = match &spec.name {
        Some(name) => name.clone(),
        // As the library names one.
        None if names.iter().any(|n| n.contains('.')) => format!("{}_idx", format_field_path(names)),
        None => format!("{}_idx", names.join(".")),
    };
    let wrong = name.trim().is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control);
    if wrong || index::is_system(&name) {
        let shown: String = name.chars().take(60).collect();
        return Err(Refusal::new(Reason::BadName, format!("{shown:?} cannot be the name of an index"), accepted));
    }
    Ok(name)
}

/// Parameters of a vector index that were not given.
fn derive(definition: &mut Definition, field: &Field, rows: u64) -> Result<(), Refusal> {
    let data = field.data_type();
    let DataType::FixedSizeList(item, dimension) = &data else { return Ok(()) };
    let dimension = u32::try_from(*dimension).unwrap_or(0);
    definition.dimension = dimension;
    let kind = definition.kind;
    let bits = item.data_type() == &DataType::UInt8;
    let put = |definition: &mut Definition, key: &str, value: Value| {
        if !definition.params.contains_key(key) {
            definition.params.insert(key.into(), value);
            definition.derived.push(key.into());
        }
    };
    put(definition, "metric", Value::from(if bits { "hamming" } else { "l2" }));
    let metric = definition.params.get("metric").and_then(Value::as_str).unwrap_or_default().to_ascii_lowercase();
    if bits != (metric == "hamming") {
        let (what, accepted) = match bits {
            true => ("vectors of uint8 are compared by their bits alone", "metric: hamming"),
            false => ("the Hamming distance is between vectors of uint8", "metric: l2, cosine or dot"),
        };
        return Err(Refusal::new(Reason::BadParams, what, accepted));
    }
    let target = kind.lance().target_partition_size();
    let partitions = recommended_num_partitions(usize::try_from(rows).unwrap_or(usize::MAX), target);
    put(definition, "num_partitions", Value::from(partitions));
    if kind.has_pq() {
        put(definition, "num_sub_vectors", Value::from(sub_vectors(dimension)));
        put(definition, "num_bits", Value::from(8));
        let sub = definition.params.get("num_sub_vectors").and_then(Value::as_u64).unwrap_or(0);
        if sub == 0 || !u64::from(dimension).is_multiple_of(sub) {
            let divisors: Vec<String> =
                (1..=dimension).filter(|n| dimension.is_multiple_of(*n)).map(|n| n.to_string()).collect();
            let what = format!("{sub} sub-vectors do not divide the dimension {dimension}");
            return Err(Refusal::new(Reason::BadParams, what, format!("num_sub_vectors: {}", divisors.join(", "))));
        }
    }
    if kind == K::IvfRq && !dimension.is_multiple_of(8) {
        let what = format!("RaBit quantisation packs eight dimensions into a byte, and there are {dimension}");
        return Err(Refusal::new(Reason::BadParams, what, "a dimension that 8 divides"));
    }
    Ok(())
}

/// Sub-vectors for a dimension: of sixteen values each, else of eight, four or two, the widest of which there are at least eight
/// (one or two codes do not tell the vectors of a large table apart); else the most that divide it and have at least four.
fn sub_vectors(dimension: u32) -> u32 {
    for width in [16, 8, 4, 2] {
        if dimension.is_multiple_of(width) && dimension / width >= 8 {
            return dimension / width;
        }
    }
    (1..=(dimension / 4).max(1)).rev().find(|n| dimension.is_multiple_of(*n)).unwrap_or(1)
}

/// What stands under a definition's name.
#[derive(Debug, Clone, PartialEq)]
pub enum Standing {
    /// Nothing.
    Free,
    /// The same definition, over every row.
    Covers(IndexInfo),
    /// The same definition, not trained, and the rows are still too few.
    Untrained(IndexInfo),
    /// The same definition, but rows or the training are missing, or it is to be replaced.
    Outdated(IndexInfo),
}

/// What stands under the definition's name at HEAD. Reads index metadata only.
///
/// # Errors
/// [`Reason::NameTaken`] when it is another column's, or another definition and `replace` was not asked for.
pub async fn standing(look: &Look, definition: &Definition, replace: bool) -> Result<Standing, Refusal> {
    let raw: Vec<_> = look.head.indices.iter().filter(|i| i.name == definition.name).collect();
    let Some(first) = raw.first() else { return Ok(Standing::Free) };
    let taken = |what: String, accepted: &str| Err(Refusal::new(Reason::NameTaken, what, accepted));
    let Some(info) = look.indices.iter().find(|i| i.name == definition.name) else {
        return taken(format!("the name {} is the library's own", definition.name), "another name");
    };
    if first.keyed_field() != Some(definition.field) {
        let what = format!("index {} is on {}", definition.name, info.columns.join(", "));
        return taken(what, "another name");
    }
    if replace {
        return Ok(Standing::Outdated(info.clone()));
    }
    let unnamed = info.kind == "VECTOR" && definition.kind.is_vector();
    if info.kind != definition.kind.as_str() && !unnamed {
        let what = format!("index {} on the same column is of type {}", definition.name, info.kind);
        return taken(what, "another name, or mode replace (--replace)");
    }
    let differs = different_params(look, definition).await;
    if let Some(differs) = differs {
        return taken(
            format!("index {} has other parameters: {differs}", definition.name),
            "the parameters that it has, another name, or mode replace (--replace)",
        );
    }
    let rows = info.indexed_rows + info.unindexed_rows;
    Ok(match info.state {
        State::Untrained if definition.kind.is_vector() && rows < rows_to_train(definition) => {
            Standing::Untrained(info.clone())
        }
        State::Untrained if rows == 0 => Standing::Untrained(info.clone()),
        State::Covered | State::Segmented => Standing::Covers(info.clone()),
        _ => Standing::Outdated(info.clone()),
    })
}

/// The rows that training needs at least; the library counts those that are not null.
pub fn rows_to_train(definition: &Definition) -> u64 {
    if !definition.kind.has_pq() {
        return 1;
    }
    let bits = definition.params.get("num_bits").and_then(Value::as_u64).unwrap_or(8);
    1 << bits.min(16)
}

/// What a given parameter is there instead; derived ones may differ, since the table may have grown.
async fn different_params(look: &Look, definition: &Definition) -> Option<String> {
    let dataset = look.dataset.as_ref()?;
    // The library reads metadata only, and panics for some odd indices: what cannot be told does not differ.
    let described = AssertUnwindSafe(dataset.describe_indices(None)).catch_unwind().await.ok()?.ok()?;
    let found = described.into_iter().find(|d| d.name() == definition.name)?;
    let details: Value = serde_json::from_str(&found.details().ok()?).ok()?;
    let there = |key: &str| match key {
        "metric" => details.get("metric_type"),
        "num_bits" | "num_sub_vectors" => details.get("compression").and_then(|c| c.get(key)),
        "m" => details.get("hnsw").and_then(|h| h.get("max_connections")),
        "ef_construction" => details.get("hnsw").and_then(|h| h.get("construction_ef")),
        "target_index_type" => None,
        other => details.get(other),
    };
    definition
        .params
        .iter()
        .filter(|(key, _)| !definition.derived.contains(key))
        .filter_map(|(key, asked)| Some((key, asked, there(key)?)))
        .find(|(_, asked, found)| !same(asked, found))
        .map(|(key, asked, found)| format!("{key} is {found}, {asked} was asked for"))
}

fn same(a: &Value, b: &Value) -> bool {
    match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) => a.eq_ignore_ascii_case(b),
        _ => a == b || (a.as_f64().is_some() && a.as_f64() == b.as_f64()),
    }
}

/// Why a client that wrote within `window` could not use an index of this kind, if so (design, "Writers").
///
/// # Errors
/// [`Reason::OldClients`].
pub fn legacy_clients(look: &Look, kind: K, window: std::time::Duration, now: DateTime<Utc>) -> Result<(), Refusal> {
    let Some(since) = clients::readable_since(kind.as_str(), look.head.manifest.uses_stable_row_ids()) else {
        return Ok(());
    };
    let window = chrono::Duration::from_std(window).unwrap_or(chrono::Duration::MAX);
    let recent = look.manifests.iter().filter(|m| m.stamp.is_none() && now.signed_duration_since(m.time()) < window);
    for manifest in recent {
        let Some((library, version)) = &manifest.writer else { continue };
        if library == "lance" && clients::older_than(version, since) {
            return Err(Refusal::new(
                Reason::OldClients,
                format!(
                    "version {} was written by lance {version}, and an index of type {} needs Lance {}.{}",
                    manifest.version,
                    kind.as_str(),
                    since.0,
                    since.1
                ),
                "newer clients, or upgrade_index_format = true in the table's policy",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_vectors_divide_the_dimension() {
        for (dimension, sub) in
            [(1536, 96), (128, 8), (64, 8), (24, 12), (16, 8), (12, 3), (8, 2), (7, 1), (100, 25), (1, 1)]
        {
            assert_eq!(sub_vectors(dimension), sub, "{dimension}");
        }
    }
}
