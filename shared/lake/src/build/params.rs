//! From checked parameters to the library's own types.

use lance::index::vector::VectorIndexParams;
use lance_index::IndexParams;
use lance_index::scalar::{BuiltinIndexType, InvertedIndexParams, ScalarIndexParams};
use lance_index::vector::bq::{RQBuildParams, RQRotationType};
use lance_index::vector::hnsw::builder::HnswBuildParams;
use lance_index::vector::ivf::IvfBuildParams;
use lance_index::vector::pq::PQBuildParams;
use lance_index::vector::sq::builder::SQBuildParams;
use lance_linalg::distance::DistanceType;
use serde_json::{Map, Value, json};

use super::{Definition, IndexKind as K, Reason, Refusal};

/// Reads full-text parameters; the library's own rules among them are part of the check.
pub(super) fn inverted(params: &Map<String, Value>) -> Result<InvertedIndexParams, Refusal> {
    let size = params.get("block_size").and_then(Value::as_u64);
    if size.is_some_and(|n| n != 128 && n != 256) {
        return Err(Refusal::new(
            Reason::BadParams,
            "a posting block has 128 or 256 documents",
            "block_size: 128 or 256",
        ));
    }
    let read: InvertedIndexParams = serde_json::from_value(Value::Object(params.clone())).map_err(|e| {
        let text: String = e.to_string().chars().take(300).collect();
        Refusal::new(
            Reason::BadParams,
            format!("the full-text parameters do not fit together: {text}"),
            "see docs/index-builds.md",
        )
    })?;
    // Language, stemmer and n-gram bounds are looked at only when the tokenizer is made.
    read.build().map_err(|e| {
        let text = e.to_string();
        let first: String = text.lines().next().unwrap_or_default().chars().take(300).collect();
        Refusal::new(
            Reason::BadParams,
            format!("no tokenizer can be made of the parameters: {first}"),
            "see docs/index-builds.md",
        )
    })?;
    Ok(read)
}

/// The library's parameters of a definition. `memory_mb` bounds a full-text build.
pub(super) fn lance(definition: &Definition, memory_mb: u64) -> Box<dyn IndexParams> {
    let params = &definition.params;
    let builtin = |kind, keys: &[&str]| {
        let given: Map<String, Value> =
            params.iter().filter(|(k, _)| keys.contains(&k.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect();
        ScalarIndexParams::for_builtin(kind).with_params(&Value::Object(given))
    };
    let scalar = match definition.kind {
        K::BTree => builtin(BuiltinIndexType::BTree, &["zone_size"]),
        K::Bitmap => builtin(BuiltinIndexType::Bitmap, &[]),
        K::LabelList => builtin(BuiltinIndexType::LabelList, &[]),
        K::ZoneMap => builtin(BuiltinIndexType::ZoneMap, &["rows_per_zone"]),
        K::BloomFilter => builtin(BuiltinIndexType::BloomFilter, &["number_of_items", "probability"]),
        K::NGram => builtin(BuiltinIndexType::NGram, &[]),
        K::RTree => builtin(BuiltinIndexType::RTree, &["page_size"]),
        K::Inverted => {
            let mut all = params.clone();
            all.insert("memory_limit".into(), memory_mb.into());
            ScalarIndexParams::for_builtin(BuiltinIndexType::Inverted).with_params(&Value::Object(all))
        }
        K::Json => {
            let target = params.get("target_index_type").and_then(Value::as_str).unwrap_or("btree");
            let given =
                json!({ "path": params.get("path"), "target_index_type": target, "target_index_parameters": null });
            ScalarIndexParams::new("json".into()).with_params(&given)
        }
        _ => return Box::new(vector(definition)),
    };
    Box::new(scalar)
}

fn number(params: &Map<String, Value>, key: &str) -> Option<usize> {
    params.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok())
}

/// The metric of a vector definition.
pub(super) fn metric(params: &Map<String, Value>) -> DistanceType {
    params
        .get("metric")
        .and_then(Value::as_str)
        .and_then(|m| DistanceType::try_from(m).ok())
        .unwrap_or(DistanceType::L2)
}

pub(super) fn ivf(params: &Map<String, Value>) -> IvfBuildParams {
    let mut ivf = IvfBuildParams::new(number(params, "num_partitions").unwrap_or(1));
    if let Some(rate) = number(params, "sample_rate") {
        ivf.sample_rate = rate;
    }
    if let Some(n) = number(params, "max_iters") {
        ivf.max_iters = n;
    }
    ivf
}

pub(super) fn pq(params: &Map<String, Value>) -> PQBuildParams {
    let mut pq = PQBuildParams {
        num_sub_vectors: number(params, "num_sub_vectors").unwrap_or(1),
        num_bits: number(params, "num_bits").unwrap_or(8),
        ..PQBuildParams::default()
    };
    if let Some(rate) = number(params, "sample_rate") {
        pq.sample_rate = rate;
    }
    if let Some(n) = number(params, "max_iters") {
        pq.max_iters = n;
    }
    pq
}

/// The library's parameters of a vector definition.
pub(super) fn vector(definition: &Definition) -> VectorIndexParams {
    let params = &definition.params;
    let (metric, ivf) = (metric(params), ivf(params));
    let mut hnsw = HnswBuildParams::default();
    if let Some(m) = number(params, "m") {
        hnsw.m = m;
    }
    if let Some(ef) = number(params, "ef_construction") {
        hnsw.ef_construction = ef;
    }
    let mut sq = SQBuildParams::default();
    if let Some(rate) = number(params, "sample_rate") {
        sq.sample_rate = rate;
    }
    match definition.kind {
        K::IvfPq => VectorIndexParams::with_ivf_pq_params(metric, ivf, pq(params)),
        K::IvfSq => VectorIndexParams::with_ivf_sq_params(metric, ivf, sq),
        K::IvfRq => {
            let bits = number(params, "num_bits").and_then(|n| u8::try_from(n).ok());
            let rq = match bits {
                Some(bits) => RQBuildParams::with_rotation_type(bits, RQRotationType::default()),
                None => RQBuildParams::default(),
            };
            VectorIndexParams::with_ivf_rq_params(metric, ivf, rq)
        }
        K::IvfHnswFlat => VectorIndexParams::ivf_hnsw(metric, ivf, hnsw),
        K::IvfHnswPq => VectorIndexParams::with_ivf_hnsw_pq_params(metric, ivf, hnsw, pq(params)),
        K::IvfHnswSq => VectorIndexParams::with_ivf_hnsw_sq_params(metric, ivf, hnsw, sq),
        _ => VectorIndexParams::with_ivf_flat_params(metric, ivf),
    }
}
