//! A new index, asked before anybody is told of success: it covers rows, and what it answers is right.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use lance::Dataset;
use lance_linalg::distance::DistanceType;
use serde_json::{Map, Value};

use super::indices::{candidates, exact, found_rows, recall, sample_rows, scope};
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
            return full_text(&uri, dataset, info, params).await;
        }
        exact(&uri, dataset, dataset, info).await
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
    let Some((_, values)) = sample_rows(dataset, column, LOOKUPS).await? else { return Ok(None) };
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

/// Every sampled row is found by a word of its own text.
async fn full_text(
    uri: &str,
    dataset: &Arc<Dataset>,
    info: &IndexInfo,
    params: &Map<String, Value>,
) -> Result<Option<IndexCheck>> {
    let Some(column) = info.columns.first() else { return Ok(None) };
    let Some((rows, values)) = sample_rows(dataset, column, LOOKUPS).await? else { return Ok(None) };
    if !matches!(values.data_type(), arrow_schema::DataType::Utf8 | arrow_schema::DataType::LargeUtf8) {
        return Ok(None);
    }
    let (mut asked, mut seconds) = (0, 0.0);
    for (i, row) in rows.iter().enumerate().take(LOOKUPS) {
        if values.is_null(i) {
            continue;
        }
        let Ok(text) = arrow_cast::display::array_value_to_string(values.as_ref(), i) else { continue };
        let Some(word) = word(&text, params) else { continue };
        let (found, took) = found_rows(dataset, column, &word).await?;
        // Nothing at all: a stop word, or one that is too long for the index.
        if found.is_empty() && params.get("remove_stop_words").and_then(Value::as_bool) != Some(false) {
            continue;
        }
        if !found.contains(row) {
            let what =
                format!("full-text index {} finds {} rows for a word and not the row with it", info.name, found.len());
            return Err(mismatch(uri, what));
        }
        asked += 1;
        seconds += took;
    }
    if asked == 0 {
        return Ok(None);
    }
    let seconds = (0.0, seconds / f64::from(asked));
    Ok(Some(IndexCheck { name: info.name.clone(), exact: Some(true), recall: None, seconds }))
}

/// A word that the index's tokenizer leaves in one piece; `None` where that cannot be told.
fn word(text: &str, params: &Map<String, Value>) -> Option<String> {
    let tokenizer = params.get("base_tokenizer").and_then(Value::as_str).unwrap_or("simple");
    let longest = params.get("max_token_length").and_then(Value::as_u64).unwrap_or(40);
    let fits = |w: &&str| w.chars().count() >= 4 && w.len() as u64 <= longest && w.chars().all(char::is_alphanumeric);
    match tokenizer {
        "simple" | "icu" | "icu/split" => {
            text.split(|c: char| !c.is_alphanumeric()).filter(fits).max_by_key(|w| w.len())
        }
        "whitespace" => text.split_whitespace().filter(fits).max_by_key(|w| w.len()),
        _ => None,
    }
    .map(String::from)
}
