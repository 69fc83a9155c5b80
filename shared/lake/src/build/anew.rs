//! Building an index anew as it stands: same name, column, type and parameters, from the live rows alone.
//!
//! Remaps and merges carry over what an index was trained on and what its dictionaries and zones hold; only a build from the
//! rows leaves out what was deleted (docs/erasure.md).

use std::sync::Arc;

use lance::Dataset;
use lance::index::{DatasetIndexExt, DatasetIndexInternalExt};
use lance_index::metrics::NoOpMetricsCollector;
use lance_index::scalar::{BuiltinIndexType, ScalarIndexParams};
use lance_index::{IndexParams, IndexType};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::execute::{Asked, train};
use super::{Definition, IndexKind, Work, discard, params};
use crate::fold::Folded;
use crate::handle::Place;
use crate::index::{IndexInfo, State};
use crate::{Error, Kind, Lake, Result, contain};

/// Why this build cannot build an index anew, if so. Pure.
pub fn cannot(index: &IndexInfo) -> Option<String> {
    match index.state {
        State::Unsupported => return Some(format!("this build cannot open index type {}", index.kind)),
        State::Unreadable => return Some("it cannot be read; build it anew or drop it".into()),
        State::Covered | State::Lagging | State::Segmented | State::Untrained | State::Missing => {}
    }
    if index.columns.len() != 1 {
        return Some(format!("it is over {} columns", index.columns.len()));
    }
    let told = !index.is_vector() || IndexKind::parse(&index.kind).is_ok();
    (!told || index.kind == "LEGACY").then(|| format!("its type ({}) does not say how it was built", index.kind))
}

/// Builds it from every live row of the version that `dataset` is opened at, with the parameters that it has; a vector index is
/// trained anew, with as many partitions. A full-text build holds `memory` bytes at most. No commit.
///
/// # Errors
/// `Refused` where [`cannot`] says why; else the library's. A panic is contained.
pub async fn anew(
    lake: &Lake,
    place: &Place,
    dataset: &Arc<Dataset>,
    index: &IndexInfo,
    memory: u64,
) -> Result<Folded> {
    let uri = dataset.uri().to_string();
    let doing = format!("building index {} anew", index.name);
    if let Some(why) = cannot(index) {
        return Err(Error::new(Kind::Refused, &doing, &uri).remedy(why));
    }
    let says = format!("{} {} anew", index.kind, index.name);
    let column = index.columns.first().map(String::as_str).unwrap_or_default();
    let reading = async {
        Ok(match index.is_vector() {
            true => (IndexType::Vector, vector(dataset, index, column, &doing, &uri).await?),
            // The type stands in the parameters, also one that cannot be asked for by name.
            false => (IndexType::Scalar, scalar(dataset, index, column, memory, &doing, &uri).await?),
        })
    };
    let (kind, params) = contain::contained(lake, &doing, &uri, reading).await?;
    let work = Work { uuid: Uuid::new_v4(), memory, on_progress: Arc::new(|_| {}) };
    let asked = Asked { column, name: &index.name, kind };
    let segment = match train(lake, dataset, &says, &asked, params.as_ref(), None, &work).await {
        Ok(segment) => segment,
        Err(e) => {
            // Nobody was told of this directory.
            discard(place, &[work.uuid]).await;
            return Err(e);
        }
    };
    let replaces = index.segments.iter().map(|s| s.uuid).collect();
    Ok(Folded::whole(&index.name, segment, replaces, dataset.version_id()))
}

async fn scalar(
    dataset: &Dataset,
    index: &IndexInfo,
    column: &str,
    memory: u64,
    doing: &str,
    uri: &str,
) -> Result<Box<dyn IndexParams>> {
    let Some(newest) = index.segments.last() else {
        return Err(Error::new(Kind::Refused, doing, uri).remedy("it has no segment"));
    };
    let opened = dataset
        .open_scalar_index_for_maintenance(column, &newest.uuid, &NoOpMetricsCollector)
        .await
        .map_err(|e| Error::lance(doing, uri, e))?;
    let derived = opened.derive_index_params().map_err(|e| Error::lance(doing, uri, e))?;
    if !index.is_full_text() {
        return Ok(Box::new(derived));
    }
    let read = derived.params.as_deref().map_or(Ok(Map::new()), serde_json::from_str);
    let mut given: Map<String, Value> = read.map_err(|e| Error::new(Kind::Bug, doing, uri).because(e))?;
    given.insert("memory_limit".into(), (memory >> 20).max(64).into());
    Ok(Box::new(ScalarIndexParams::for_builtin(BuiltinIndexType::Inverted).with_params(&Value::Object(given))))
}

/// What the index's own metadata says; what it does not say (sample rate, iterations) is the library's default.
async fn vector(
    dataset: &Dataset,
    index: &IndexInfo,
    column: &str,
    doing: &str,
    uri: &str,
) -> Result<Box<dyn IndexParams>> {
    let text = dataset.index_statistics(&index.name).await.map_err(|e| Error::lance(doing, uri, e))?;
    let statistics: Value = serde_json::from_str(&text).map_err(|e| Error::new(Kind::Bug, doing, uri).because(e))?;
    let described = dataset.describe_indices(None).await.map_err(|e| Error::lance(doing, uri, e))?;
    let details: Value = described
        .iter()
        .find(|d| d.name() == index.name)
        .and_then(|d| d.details().ok())
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let kind =
        IndexKind::parse(&index.kind).map_err(|e| Error::new(Kind::Refused, doing, uri).remedy(e.to_string()))?;
    let definition = Definition {
        kind,
        column: column.to_string(),
        field: 0,
        name: index.name.clone(),
        params: vector_params(&details, &statistics, index.indexed_rows + index.unindexed_rows),
        derived: Vec::new(),
        dimension: 0,
    };
    let enough = ["metric", "num_partitions"].iter().all(|key| definition.params.contains_key(*key))
        && (!kind.has_pq() || definition.params.contains_key("num_sub_vectors"));
    if !enough {
        return Err(Error::new(Kind::Refused, doing, uri).remedy("its metadata does not say how it was built"));
    }
    Ok(Box::new(params::vector(&definition)))
}

fn vector_params(details: &Value, statistics: &Value, rows: u64) -> Map<String, Value> {
    let first = &statistics["indices"][0];
    let pick = |choices: [&Value; 2]| choices.into_iter().find(|v| !v.is_null()).cloned();
    // No more partitions than rows are left.
    let partitions = first["num_partitions"].as_u64().map(|n| Value::from(n.min(rows.max(1))));
    let lower = |v: Value| v.as_str().map(|s| Value::from(s.to_ascii_lowercase()));
    [
        ("metric", pick([&details["metric_type"], &first["metric_type"]]).and_then(lower)),
        ("num_partitions", partitions),
        ("num_bits", pick([&details["compression"]["num_bits"], &first["sub_index"]["nbits"]])),
        ("num_sub_vectors", pick([&details["compression"]["num_sub_vectors"], &first["sub_index"]["num_sub_vectors"]])),
        ("m", pick([&details["hnsw"]["max_connections"], &Value::Null])),
        ("ef_construction", pick([&details["hnsw"]["construction_ef"], &Value::Null])),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key.to_string(), value?)))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_vector_index_is_built_anew_with_what_its_metadata_says() {
        let details = json!({ "metric_type": "COSINE", "hnsw": { "max_connections": 12, "construction_ef": 90 },
                              "compression": { "type": "pq", "num_bits": 4, "num_sub_vectors": 3 } });
        let statistics = json!({ "indices": [{ "metric_type": "l2", "num_partitions": 7 }] });
        let read = Value::Object(vector_params(&details, &statistics, 1_000));
        let wanted = json!({ "metric": "cosine", "num_partitions": 7, "num_bits": 4, "num_sub_vectors": 3, "m": 12,
                             "ef_construction": 90 });
        assert_eq!(read, wanted);
        let legacy = Value::Object(vector_params(&json!({}), &statistics, 5));
        assert_eq!(legacy, json!({ "metric": "l2", "num_partitions": 5 }));
    }
}
