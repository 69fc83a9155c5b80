//! An index asked for sampled rows by their own values: it must find each of them, and where it calls an answer exact, nothing
//! else.
//!
//! The index itself is asked, by its name, and no other one of the column; what it answers is not checked against the rows before
//! it is judged, as a scan would.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use futures::{StreamExt, TryStreamExt};
use lance::Dataset;
use lance::dataset::ProjectionRequest;
use lance::dataset::scanner::RowAddrMask;
use lance::deps::datafusion::scalar::ScalarValue;
use lance::index::{DatasetIndexExt, DatasetIndexInternalExt};
use lance_index::metrics::NoOpMetricsCollector;
use lance_index::scalar::expression::{ScalarIndexExpr, ScalarIndexSearch};
use lance_index::scalar::json::JsonQuery;
use lance_index::scalar::{
    AnyQuery, BloomFilterQuery, GeoQuery, LabelListQuery, RelationQuery, SargableQuery, TextQuery,
};
use serde_json::Value;

use super::sampled::{Rows, column_of, quoted, take};
use super::{AT_ONCE, IndexCheck, lance_error, mismatch};
use crate::index::IndexInfo;
use crate::{Error, Kind, Result};

/// Answers of which other rows than the sampled ones are looked at, and rows of each.
const OTHERS: usize = 8;
/// Rows of one answer among which those are chosen.
const AMONG: usize = 1 << 16;
/// Characters of a text that an n-gram index is asked for, and labels of a list.
const PART: (usize, usize) = (100, 16);

/// What a type of index understands.
enum Form {
    /// Values of one order.
    Ordered,
    /// Values, by their hashes.
    Hashed,
    /// Values within lists.
    Labels,
    /// Parts of a text.
    Text,
    /// Boxes around geometries.
    Boxes(arrow_schema::Field),
    /// One path of JSON documents.
    Json { path: String, target: Box<Form>, values: DataType },
}

impl Form {
    /// `None`: an index of this type is not asked in this way.
    async fn of(dataset: &Arc<Dataset>, info: &IndexInfo, column: &str, rows: &Rows) -> Result<Option<Self>> {
        let Some(path) = dataset.schema().resolve(column) else { return Ok(None) };
        let Some(field) = path.last().map(|field| arrow_schema::Field::from(*field)) else { return Ok(None) };
        // Documents are read as text, and an index of whole ones has them as they are stored.
        let document = field.metadata().get("ARROW:extension:name").is_some_and(|name| name.ends_with("json"));
        Ok(match info.kind.as_str() {
            "BTREE" | "BITMAP" | "ZONEMAP" if !document => Some(Self::Ordered),
            "BLOOMFILTER" if !document => Some(Self::Hashed),
            "LABEL_LIST" => Some(Self::Labels),
            "NGRAM" => Some(Self::Text),
            "RTREE" => Some(Self::Boxes(field)),
            "JSON" => json(dataset, info, column, rows).await?,
            _ => None,
        })
    }

    /// What is asked for a row's value; `None` where the index has nothing to say about it.
    fn query(&self, value: &ScalarValue) -> Option<Arc<dyn AnyQuery>> {
        Some(match self {
            Self::Ordered if value.is_null() => Arc::new(SargableQuery::IsNull()),
            Self::Ordered => Arc::new(SargableQuery::Equals(value.clone())),
            Self::Hashed if value.is_null() => Arc::new(BloomFilterQuery::IsNull()),
            Self::Hashed => Arc::new(BloomFilterQuery::Equals(value.clone())),
            Self::Labels => Arc::new(LabelListQuery::HasAllLabels(labels(value)?)),
            Self::Text => Arc::new(TextQuery::StringContains(part(value)?)),
            Self::Boxes(_) if value.is_null() => Arc::new(GeoQuery::IsNull),
            Self::Boxes(field) => {
                if is_empty(value, field) {
                    return None;
                }
                Arc::new(GeoQuery::IntersectQuery(RelationQuery { value: value.clone(), field: field.clone() }))
            }
            Self::Json { path, target, .. } => Arc::new(JsonQuery::new(target.query(value)?, path.clone())),
        })
    }

    /// All of these values in one question, where the index reads its pages more quickly together than one by one.
    fn together(&self, values: Vec<ScalarValue>) -> Option<Arc<dyn AnyQuery>> {
        match self {
            Self::Ordered if values.len() > 1 => Some(Arc::new(SargableQuery::IsIn(values))),
            Self::Json { path, target, .. } => Some(Arc::new(JsonQuery::new(target.together(values)?, path.clone()))),
            _ => None,
        }
    }

    /// Whether a row with this value belongs into the answer to a question for that one.
    fn fits(&self, value: &ScalarValue, asked: &ScalarValue) -> bool {
        match self {
            Self::Labels => {
                let (has, wanted) = (labels(value).unwrap_or_default(), labels(asked).unwrap_or_default());
                wanted.iter().all(|w| has.contains(w))
            }
            _ => same(value, asked),
        }
    }

    /// The sampled rows' values as the index has them.
    async fn values(&self, dataset: &Arc<Dataset>, column: &str, rows: &Rows) -> Result<Option<Vec<ScalarValue>>> {
        let values = match self {
            Self::Json { path, values, .. } => {
                let text = extracted(dataset, column, path, rows).await?;
                return Ok(Some(decoded(&text, values)));
            }
            _ => column_of(dataset, column, &rows.addresses).await?,
        };
        let Some(values) = values else { return Ok(None) };
        let wrong = |e: lance::deps::datafusion::error::DataFusionError| {
            Error::new(Kind::Bug, "reading a sampled value", dataset.uri())
                .because(std::io::Error::other(e.to_string()))
        };
        let value = |i| ScalarValue::try_from_array(values.as_ref(), i).map_err(wrong);
        (0..values.len()).map(value).collect::<Result<Vec<_>>>().map(Some)
    }
}

/// Equal as numbers are; any NaN is any other one.
fn same(a: &ScalarValue, b: &ScalarValue) -> bool {
    use ScalarValue as S;
    match (a, b) {
        (S::Float16(Some(a)), S::Float16(Some(b))) => a == b || (a.is_nan() && b.is_nan()),
        (S::Float32(Some(a)), S::Float32(Some(b))) => a == b || (a.is_nan() && b.is_nan()),
        (S::Float64(Some(a)), S::Float64(Some(b))) => a == b || (a.is_nan() && b.is_nan()),
        _ => a == b,
    }
}

/// The labels of a list; `None` where it has none.
fn labels(value: &ScalarValue) -> Option<Vec<ScalarValue>> {
    let list: ArrayRef = match value {
        ScalarValue::List(list) if !list.is_null(0) => list.value(0),
        ScalarValue::LargeList(list) if !list.is_null(0) => list.value(0),
        _ => return None,
    };
    let mut out: Vec<ScalarValue> = Vec::new();
    for i in (0..list.len()).filter(|i| !list.is_null(*i)) {
        let label = ScalarValue::try_from_array(list.as_ref(), i).ok()?;
        if !out.contains(&label) {
            out.push(label);
        }
    }
    out.truncate(PART.1);
    (!out.is_empty()).then_some(out)
}

/// A part of a text that is long enough for an n-gram.
fn part(value: &ScalarValue) -> Option<String> {
    let text = value.try_as_str().flatten()?;
    let part: String = text.chars().take(PART.0).collect();
    (part.chars().count() >= 3).then_some(part)
}

/// Whether a geometry has no extent, so that no box meets it.
fn is_empty(value: &ScalarValue, field: &arrow_schema::Field) -> bool {
    let bounds = value.to_array().ok().and_then(|array| {
        let boxes = lance_index::scalar::rtree::extract_bounding_boxes(array.as_ref(), field).ok()?;
        lance_geo::bbox::total_bounds(&boxes).ok()
    });
    bounds.is_none_or(|b| lance_geo::bbox::is_empty_rect(&b))
}

/// A JSON index says itself what it is made of.
async fn json(dataset: &Arc<Dataset>, info: &IndexInfo, column: &str, rows: &Rows) -> Result<Option<Form>> {
    let uri = dataset.uri();
    // By its name: the commit that is verified may have given the index other segments.
    let segments = dataset.load_indices_by_name(&info.name).await.map_err(lance_error(uri))?;
    let Some(segment) = segments.first() else { return Ok(None) };
    let opened = dataset.open_scalar_index(column, &segment.uuid, &NoOpMetricsCollector).await;
    let opened = opened.map_err(lance_error(uri))?;
    let params = opened.derive_index_params().map_err(lance_error(uri))?.params.unwrap_or_default();
    let params: Value = serde_json::from_str(&params)
        .map_err(|e| Error::new(Kind::Bug, "reading the parameters of a JSON index", uri).because(e))?;
    let (Some(path), Some(target)) = (params["path"].as_str(), params["target_index_type"].as_str()) else {
        return Ok(None);
    };
    let target = match target.to_ascii_lowercase().as_str() {
        "btree" | "bitmap" | "zonemap" => Form::Ordered,
        "bloomfilter" => Form::Hashed,
        _ => return Ok(None),
    };
    let values = match opened.training_data_type() {
        Some(values) => values,
        None => match type_of(&extracted(dataset, column, path, rows).await?) {
            // Whole numbers may stand among fractions: the first value of all made the type.
            DataType::Int64 => type_of(&[first(dataset, column, path).await?]),
            other => other,
        },
    };
    Ok(Some(Form::Json { path: path.into(), target: Box::new(target), values }))
}

/// How the filter language names the value at a path.
fn expression(dataset: &Dataset, column: &str, path: &str) -> String {
    format!("json_extract({}, '{}')", quoted(dataset, column), path.replace('\'', "''"))
}

/// The first value at a path that is something.
async fn first(dataset: &Arc<Dataset>, column: &str, path: &str) -> Result<Option<String>> {
    let (uri, value) = (dataset.uri(), expression(dataset, column, path));
    let mut scan = dataset.scan();
    scan.project_with_transform(&[("value", &value)]).map_err(lance_error(uri))?;
    scan.filter(&format!("{value} != 'null'")).map_err(lance_error(uri))?;
    scan.use_scalar_index(false).scan_in_order(true);
    scan.limit(Some(1), None).map_err(lance_error(uri))?;
    let batch = scan.try_into_batch().await.map_err(lance_error(uri))?;
    let values = batch.columns().first().and_then(|c| c.as_string_opt::<i32>());
    Ok(values.filter(|v| !v.is_empty()).map(|v| v.value(0).to_string()))
}

/// The values at a JSON path, as JSON.
async fn extracted(dataset: &Arc<Dataset>, column: &str, path: &str, rows: &Rows) -> Result<Vec<Option<String>>> {
    let uri = dataset.uri();
    let request = ProjectionRequest::from_sql([("value", expression(dataset, column, path))]);
    let batch = take(dataset, &rows.addresses, request).await?;
    let Some(values) = batch.columns().first().and_then(|c| c.as_string_opt::<i32>()) else {
        return Err(Error::new(Kind::Bug, "extracting values of JSON documents", uri));
    };
    Ok(values.iter().map(|text| text.map(String::from)).collect())
}

fn read(text: &Option<String>) -> Value {
    text.as_deref().and_then(|t| serde_json::from_str(t).ok()).unwrap_or_default()
}

/// The type of an index over these pieces of JSON.
fn type_of(pieces: &[Option<String>]) -> DataType {
    let told = |wanted: fn(&Value) -> bool| pieces.iter().map(read).any(|v| wanted(&v));
    match () {
        () if told(Value::is_f64) => DataType::Float64,
        () if told(Value::is_number) => DataType::Int64,
        () if told(Value::is_boolean) => DataType::Boolean,
        () => DataType::Utf8,
    }
}

/// What these pieces of JSON are as values of an index of this type.
fn decoded(pieces: &[Option<String>], to: &DataType) -> Vec<ScalarValue> {
    let value = |text: &Option<String>| {
        let json = read(text);
        match to {
            DataType::Int64 => ScalarValue::Int64(json.as_i64()),
            // The text itself: the JSON reader may round it to a neighbour.
            DataType::Float64 => {
                let text = text.as_deref().filter(|_| json.is_number());
                ScalarValue::Float64(text.and_then(|t| t.trim().parse().ok()))
            }
            DataType::Boolean => ScalarValue::Boolean(json.as_bool()),
            _ => ScalarValue::Utf8(json.as_str().map(String::from)),
        }
    };
    pieces.iter().map(value).collect()
}

/// A value, and the sampled rows that have it.
struct Question {
    value: ScalarValue,
    query: Arc<dyn AnyQuery>,
    rows: Vec<u64>,
}

/// Asks an exact index, a text index or one of boxes. `None` where there is nothing to ask it for.
///
/// # Errors
/// [`Kind::Verify`] with what differs; other kinds when it could not be asked.
pub(super) async fn asked(uri: &str, dataset: &Arc<Dataset>, info: &IndexInfo) -> Result<Option<IndexCheck>> {
    let Some(column) = info.columns.first() else { return Ok(None) };
    let rows = Rows::sampled(dataset, info).await?;
    let Some(form) = Form::of(dataset, info, column, &rows).await? else { return Ok(None) };
    let Some(values) = form.values(dataset, column, &rows).await? else { return Ok(None) };
    let questions = questions(&form, &rows, values);
    if questions.is_empty() {
        return Ok(None);
    }
    let start = Instant::now();
    let asker = Asker { uri, dataset, info, column, form };
    asker.all_at_once(&questions).await?;
    let asking = questions.iter().enumerate().map(|(n, question)| asker.one(question, n < OTHERS));
    futures::stream::iter(asking).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    let seconds = start.elapsed().as_secs_f64() / questions.len() as f64;
    Ok(Some(IndexCheck { name: info.name.clone(), exact: Some(true), recall: None, seconds: (0.0, seconds) }))
}

fn questions(form: &Form, rows: &Rows, values: Vec<ScalarValue>) -> Vec<Question> {
    let mut out: Vec<Question> = Vec::new();
    let mut at: HashMap<ScalarValue, usize> = HashMap::new();
    for (row, value) in rows.ids.iter().zip(values) {
        if let Some(at) = at.get(&value) {
            out[*at].rows.push(*row);
        } else if let Some(query) = form.query(&value) {
            at.insert(value.clone(), out.len());
            out.push(Question { value, query, rows: vec![*row] });
        }
    }
    out
}

struct Asker<'a> {
    uri: &'a str,
    dataset: &'a Arc<Dataset>,
    info: &'a IndexInfo,
    column: &'a str,
    form: Form,
}

impl Asker<'_> {
    /// The rows that may be the answer, and whether they are it.
    async fn answer(&self, query: Arc<dyn AnyQuery>) -> Result<(RowAddrMask, bool)> {
        let search = ScalarIndexSearch {
            column: self.column.to_string(),
            index_name: self.info.name.clone(),
            index_type: self.info.kind.clone(),
            query,
            needs_recheck: false,
            fragment_bitmap: None,
        };
        let answer = ScalarIndexExpr::Query(search).evaluate(self.dataset.as_ref(), &NoOpMetricsCollector).await;
        let answer = answer.map_err(lance_error(self.uri))?;
        let exact = answer.is_exact();
        Ok((answer.upper, exact))
    }

    async fn all_at_once(&self, questions: &[Question]) -> Result<()> {
        let some = || questions.iter().filter(|q| !q.value.is_null());
        let Some(query) = self.form.together(some().map(|q| q.value.clone()).collect()) else { return Ok(()) };
        let (answer, _) = self.answer(query).await?;
        some().try_for_each(|question| self.found(question, &answer))
    }

    fn found(&self, question: &Question, answer: &RowAddrMask) -> Result<()> {
        let missing = question.rows.iter().filter(|row| !answer.selected(**row)).count();
        if missing == 0 {
            return Ok(());
        }
        let value = shown(&question.value);
        let what = format!("index {} does not find {missing} of the rows with {} {value}", self.info.name, self.column);
        Err(mismatch(self.uri, what))
    }

    /// One value: its sampled rows are found. `others`: and what else is found has it, too, where the index says that it knows.
    async fn one(&self, question: &Question, others: bool) -> Result<()> {
        let (answer, exact) = self.answer(question.query.clone()).await?;
        self.found(question, &answer)?;
        if !others || !exact {
            return Ok(());
        }
        let Some(found) = answer.iter_addrs() else { return Ok(()) };
        let other: Vec<u64> = found.map(u64::from).filter(|row| !question.rows.contains(row)).take(AMONG).collect();
        let step = (other.len() / OTHERS).max(1);
        let ids: Vec<u64> = other.into_iter().step_by(step).take(OTHERS).collect();
        // Of fragments that it gave up it may still hold entries, which no query sees.
        let rows = Rows::of_ids(self.dataset, &ids, self.info).await?;
        if rows.ids.is_empty() {
            return Ok(());
        }
        let values = self.form.values(self.dataset, self.column, &rows).await?.unwrap_or_default();
        match values.iter().find(|value| !self.form.fits(value, &question.value)) {
            None => Ok(()),
            Some(wrong) => {
                let (asked, wrong) = (shown(&question.value), shown(wrong));
                let name = &self.info.name;
                Err(mismatch(
                    self.uri,
                    format!("index {name} finds a row with {} {wrong} where {asked} was asked", self.column),
                ))
            }
        }
    }
}

/// A value in a message.
fn shown(value: &ScalarValue) -> String {
    value.to_string().chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_as_what_the_index_holds() {
        use ScalarValue as S;
        let some = |texts: &[&str]| texts.iter().map(|t| Some((*t).to_string())).collect::<Vec<_>>();
        let types = |texts: &[&str]| type_of(&some(texts));
        assert_eq!(types(&["1", "0.5", "null"]), DataType::Float64);
        assert_eq!(types(&["null", "7"]), DataType::Int64);
        assert_eq!(
            (types(&["true"]), types(&["\"1\""]), types(&[])),
            (DataType::Boolean, DataType::Utf8, DataType::Utf8)
        );
        let floats = decoded(&some(&["1", "0.1", "null"]), &DataType::Float64);
        assert_eq!(floats, [S::Float64(Some(1.0)), S::Float64(Some(0.1)), S::Float64(None)]);
        assert_eq!(decoded(&[None, Some("\"a\"".into())], &DataType::Utf8), [S::Utf8(None), S::Utf8(Some("a".into()))]);
        assert_eq!(decoded(&some(&["true"]), &DataType::Boolean), [S::Boolean(Some(true))]);
    }

    #[test]
    fn numbers_are_equal_as_numbers() {
        let float = |f| ScalarValue::Float64(Some(f));
        assert!(same(&float(0.0), &float(-0.0)) && same(&float(f64::NAN), &float(-f64::NAN)));
        assert!(!same(&float(0.0), &float(f64::NAN)) && !same(&float(1.0), &ScalarValue::Float64(None)));
    }
}
