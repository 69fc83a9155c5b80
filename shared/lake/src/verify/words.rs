//! A full-text index asked for sampled rows by tokens of their own text: it must find each of them.

use std::sync::Arc;
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use futures::{StreamExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::ProjectionRequest;
use lance::index::DatasetIndexInternalExt;
use lance_index::metrics::NoOpMetricsCollector;
use lance_index::prefilter::NoFilter;
use lance_index::scalar::inverted::InvertedIndex;
use lance_index::scalar::inverted::document_tokenizer::LanceTokenizer;
use lance_index::scalar::inverted::query::{FtsSearchParams, Operator, Tokens};

use super::sampled::{Rows, take};
use super::{AT_ONCE, IndexCheck, lance_error, mismatch};
use crate::index::IndexInfo;
use crate::{Error, Kind, Result};

/// Tokens of a row that are asked for together: the longest ones, which few other rows have.
const TOKENS: usize = 2;

/// Asks a full-text index. What its own tokenizer makes of a row's text is asked for, so that stop words, stems and long words are
/// as they are in the index; a row without any token is not asked for. `None` where there is none.
///
/// # Errors
/// [`Kind::Verify`] with what differs; other kinds when it could not be asked.
pub(super) async fn words(uri: &str, dataset: &Arc<Dataset>, info: &IndexInfo) -> Result<Option<IndexCheck>> {
    let Some(column) = info.columns.first() else { return Ok(None) };
    let segments = opened(uri, dataset, info, column).await?;
    let Some(mut tokenizer) = segments.first().map(|index| index.tokenizer()) else { return Ok(None) };
    let rows = Rows::sampled(dataset, info).await?;
    if rows.addresses.is_empty() {
        return Ok(None);
    }
    let request = ProjectionRequest::from_columns([column], dataset.schema());
    let batch = take(dataset, &rows.addresses, request).await?;
    let Some(values) = batch.columns().first() else { return Ok(None) };
    let mut questions = Vec::new();
    for (row, i) in rows.ids.iter().zip(0..values.len()) {
        let mut tokens = Vec::new();
        for text in texts(values, i) {
            tokens = tokens_of(&mut tokenizer, &text).map_err(|e| {
                Error::new(Kind::Bug, "taking the tokens of a sampled row", uri).because(std::io::Error::other(e))
            })?;
            // One text alone: what is in another element of a list may be another document.
            if !tokens.is_empty() {
                break;
            }
        }
        if !tokens.is_empty() {
            questions.push((*row, tokens));
        }
    }
    if questions.is_empty() {
        return Ok(None);
    }
    let (start, asked) = (Instant::now(), questions.len());
    let asking = questions.into_iter().map(|(row, tokens)| {
        let tokens = Arc::new(Tokens::new(tokens, tokenizer.doc_type()));
        found(uri, &segments, row, tokens)
    });
    let found: Vec<bool> = futures::stream::iter(asking).buffer_unordered(AT_ONCE).try_collect().await?;
    let missing = found.iter().filter(|found| !**found).count();
    if missing > 0 {
        let what = format!("full-text index {} does not find {missing} of {asked} rows by their own words", info.name);
        return Err(mismatch(uri, what));
    }
    let seconds = start.elapsed().as_secs_f64() / asked as f64;
    Ok(Some(IndexCheck { name: info.name.clone(), exact: Some(true), recall: None, seconds: (0.0, seconds) }))
}

async fn opened(uri: &str, dataset: &Dataset, info: &IndexInfo, column: &str) -> Result<Vec<InvertedIndex>> {
    let mut out = Vec::with_capacity(info.segments.len());
    for segment in &info.segments {
        let index = dataset.open_scalar_index(column, &segment.uuid, &NoOpMetricsCollector).await;
        let index = index.map_err(lance_error(uri))?;
        let index = index.as_any().downcast_ref::<InvertedIndex>().cloned();
        out.push(index.ok_or_else(|| Error::new(Kind::Bug, format!("opening full-text index {}", info.name), uri))?);
    }
    Ok(out)
}

/// The texts of a row: its own, or those of its lists and of what they consist of.
fn texts(values: &ArrayRef, i: usize) -> Vec<String> {
    if values.is_null(i) {
        return Vec::new();
    }
    let of = |list: ArrayRef| (0..list.len()).flat_map(|i| texts(&list, i)).collect();
    match values.data_type() {
        DataType::Utf8 => vec![values.as_string::<i32>().value(i).to_string()],
        DataType::LargeUtf8 => vec![values.as_string::<i64>().value(i).to_string()],
        DataType::List(_) => of(values.as_list::<i32>().value(i)),
        DataType::LargeList(_) => of(values.as_list::<i64>().value(i)),
        DataType::Struct(_) => values.as_struct().columns().iter().flat_map(|column| texts(column, i)).collect(),
        _ => Vec::new(),
    }
}

/// The longest tokens of a text.
fn tokens_of(tokenizer: &mut Box<dyn LanceTokenizer>, text: &str) -> std::result::Result<Vec<String>, String> {
    let mut stream = tokenizer.token_stream_for_doc(text);
    let mut out: Vec<String> = Vec::new();
    while let Some(token) = stream.try_next()? {
        let longer = out.len() < TOKENS || out.iter().any(|t| t.len() < token.text.len());
        if longer && !out.contains(&token.text) {
            out.push(token.text.clone());
            out.sort_by_key(|t| std::cmp::Reverse(t.len()));
            out.truncate(TOKENS);
        }
    }
    Ok(out)
}

async fn found(uri: &str, segments: &[InvertedIndex], row: u64, tokens: Arc<Tokens>) -> Result<bool> {
    for segment in segments {
        let (params, metrics) = (Arc::new(FtsSearchParams::new()), Arc::new(NoOpMetricsCollector));
        let search = segment.bm25_search(tokens.clone(), params, Operator::And, Arc::new(NoFilter), metrics, None);
        if search.await.map_err(lance_error(uri))?.0.contains(&row) {
            return Ok(true);
        }
    }
    Ok(false)
}
