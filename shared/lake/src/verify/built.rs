//! A new index, asked before anybody is told of success: it covers rows, and what it answers is right.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use lance::Dataset;
use lance_linalg::distance::DistanceType;
use serde_json::{Map, Value};

use super::asked::asked;
use super::indices::{candidates, recall, sample, scope};
use super::words::words;
use super::{IndexCheck, LOOKUPS, mismatch};
use crate::index::IndexInfo;
use crate::{Lake, Result, contain};

/// Recall@10 with every partition searched that a new vector index must reach, with enough candidates compared.
pub const RECALL_FLOOR: f64 = 0.8;

/// Asks a new index. `params` are those it was built with. `None` where its kind of question cannot be asked here; its coverage
/// was looked at all the same.
///
/// # Errors
/// [`crate::Kind::Verify`] with what differs; other kinds when it could not be asked at all, which is not a pass either.
pub async fn built(
    lake: &Lake,
    dataset: &Arc<Dataset>,
    info: &IndexInfo,
    params: &Map<String, Value>,
) -> Result<Option<IndexCheck>> {
    let uri = dataset.uri().to_string();
    let work = async {
        if info.indexed_rows == 0 && info.unindexed_rows > 0 {
            return Err(mismatch(&uri, format!("index {} was built and covers no row", info.name)));
        }
        if info.indexed_rows == 0 {
            return Ok(None);
        }
        if info.is_vector() {
            return vector(&uri, dataset, info, params).await;
        }
        if info.is_full_text() {
            return words(&uri, dataset, info).await;
        }
        asked(&uri, dataset, info).await
    };
    contain::contained(lake, "asking the new index", &uri, work).await
}

async fn vector(
    uri: &str,
    dataset: &Arc<Dataset>,
    info: &IndexInfo,
    params: &Map<String, Value>,
) -> Result<Option<IndexCheck>> {
    let Some(column) = info.columns.first() else { return Ok(None) };
    if scope(dataset, info).is_some() {
        // Brute force over more than the cap would cost more than the build.
        return Ok(None);
    }
    let Some(values) = sample(dataset, column, LOOKUPS).await? else { return Ok(None) };
    let Some(list) = values.as_fixed_size_list_opt() else { return Ok(None) };
    let queries: Vec<ArrayRef> =
        (0..list.len()).filter(|i| !list.is_null(*i)).map(|i| list.value(i)).take(LOOKUPS).collect();
    if queries.is_empty() {
        return Ok(None);
    }
    let metric = params.get("metric").and_then(Value::as_str).and_then(|m| DistanceType::try_from(m).ok());
    // Coarse codes are no wrong answer, and the result tells the first answer; rows that are not in the index stay unfound however
    // many candidates are compared.
    let (mut first, mut most) = (None, 0.0);
    for refine in candidates(info.indexed_rows + info.unindexed_rows) {
        let (found, seconds) = recall(dataset, column, &queries, metric, refine).await?;
        first.get_or_insert((found, seconds));
        most = found;
        if found >= RECALL_FLOOR {
            break;
        }
    }
    let (found, seconds) = first.unwrap_or_default();
    if most < RECALL_FLOOR {
        return Err(mismatch(
            uri,
            format!(
                "recall@10 of the new index {} is {found:.3} with every partition searched, and {most:.3} with as many candidates \
                 as tell anything, below {RECALL_FLOOR}; build it with more sub-vectors, more bits or another type",
                info.name
            ),
        ));
    }
    let name = info.name.clone();
    Ok(Some(IndexCheck { name, exact: None, recall: Some((1.0, found)), seconds: (0.0, seconds) }))
}
