//! Writes sample datasets the way busy writers leave them: for the demo lake and for tests.
//!
//! Deterministic: the same calls make the same rows.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, FixedSizeListArray, Float32Array, Int64Array, LargeBinaryArray, RecordBatch, RecordBatchIterator,
    StringArray,
};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use lance::Dataset;
use lance::dataset::{WriteMode, WriteParams};
use lance::index::DatasetIndexExt;
use lance::index::vector::VectorIndexParams;
use lance_index::IndexType;
use lance_index::scalar::{InvertedIndexParams, ScalarIndexParams};
use lance_linalg::distance::MetricType;
use lance_table::format::pb;
use prost::Message;

use crate::{Error, Kind, Lake, Result};

mod contracted;
mod crafted;

pub use contracted::write_contracted;
pub use crafted::set_index_type;

const WORDS: [&str; 12] = [
    "harbour", "ledger", "copper", "vessel", "signal", "archive", "meadow", "lantern", "orbit", "granite", "paper",
    "winter",
];

/// Optional columns beside `id`, `body` and `kind`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Columns {
    /// A vector of this many floats; 0: none.
    pub vector: usize,
    /// A page of this many bytes; 0: none.
    pub page: usize,
}

/// An index to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleIndex {
    /// On `id`.
    BTree,
    /// On `kind`.
    Bitmap,
    /// On `body`.
    FullText,
    /// On `vector`, IVF_PQ.
    Vector,
}

/// One sample dataset.
pub struct Sample {
    uri: String,
    columns: Columns,
    blobs: bool,
    stable_row_ids: bool,
    dataset: Option<Dataset>,
}

/// An append that is written and not committed.
#[derive(Debug, Clone)]
pub struct Staged(lance::dataset::transaction::Transaction);

fn failed(uri: &str) -> impl Fn(lance::Error) -> Error + '_ {
    move |e| Error::lance("writing a sample dataset", uri, e)
}

/// A small generator of well-spread numbers (splitmix64): no randomness, so that a demo looks the same everywhere.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn batch(n: usize, start: i64, columns: Columns, blobs: bool) -> std::result::Result<RecordBatch, ArrowError> {
    let ids: Vec<i64> = (start..).take(n).collect();
    let seed = |id: i64, salt: u64| mix(id.unsigned_abs() ^ (salt << 40));
    let body = ids.iter().map(|id| {
        let words: Vec<&str> = (0..6).map(|w| WORDS[(seed(*id, w) % 12) as usize]).collect();
        words.join(" ")
    });
    let kind = ids.iter().map(|id| WORDS[(id.unsigned_abs() % 4) as usize]);
    let mut fields = vec![
        Field::new("id", DataType::Int64, false),
        Field::new("body", DataType::Utf8, true),
        Field::new("kind", DataType::Utf8, true),
    ];
    let mut arrays: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(ids.clone())),
        Arc::new(StringArray::from_iter_values(body)),
        Arc::new(StringArray::from_iter_values(kind)),
    ];
    if columns.vector > 0 {
        let item = Arc::new(Field::new("item", DataType::Float32, true));
        let width = i32::try_from(columns.vector).map_err(|e| ArrowError::InvalidArgumentError(e.to_string()))?;
        let floats = ids.iter().flat_map(|id| (0..columns.vector as u64).map(|d| float(*id, d)));
        let values = Arc::new(Float32Array::from_iter_values(floats));
        fields.push(Field::new("vector", DataType::FixedSizeList(item.clone(), width), true));
        arrays.push(Arc::new(FixedSizeListArray::try_new(item, width, values, None)?));
    }
    if columns.page > 0 {
        let pages = ids.iter().map(|id| -> Vec<u8> {
            (0..columns.page as u64).map(|i| (seed(*id, 1_000 + i / 8) >> (8 * (i % 8))) as u8).collect()
        });
        let page = Field::new("page", DataType::LargeBinary, true);
        let blob = || std::collections::HashMap::from([("lance-encoding:blob".to_string(), "true".to_string())]);
        fields.push(if blobs { page.with_metadata(blob()) } else { page });
        arrays.push(Arc::new(LargeBinaryArray::from_iter_values(pages)));
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
}

/// The bytes of a row's vector, as files have them.
pub fn vector_of(id: i64, width: usize) -> Vec<u8> {
    (0..width as u64).flat_map(|d| float(id, d).to_le_bytes()).collect()
}

fn float(id: i64, d: u64) -> f32 {
    (mix(id.unsigned_abs() ^ ((100 + d) << 40)) % 10_000) as f32 / 10_000.0
}

impl Sample {
    /// A dataset to be written at a canonical URI.
    pub fn new(uri: impl Into<String>, columns: Columns) -> Self {
        Self { uri: uri.into(), columns, blobs: false, stable_row_ids: false, dataset: None }
    }

    /// The same, with the pages stored as blobs.
    pub fn with_blobs(mut self) -> Self {
        self.blobs = true;
        self
    }

    /// The same, with row ids that stay when rows move.
    pub fn with_stable_row_ids(mut self) -> Self {
        self.stable_row_ids = true;
        self
    }

    /// Opens one that is there.
    ///
    /// # Errors
    /// As [`Lake::open`].
    pub async fn open(lake: &Lake, uri: &str, columns: Columns) -> Result<Self> {
        let dataset = Some(lake.open(uri).await?);
        Ok(Self { dataset, ..Self::new(uri, columns) })
    }

    /// Writes rows with these ids: creates the dataset, or appends one fragment and one version.
    ///
    /// # Errors
    /// Lance's.
    pub async fn write(&mut self, rows: usize, start: i64) -> Result<&mut Self> {
        let mode = if self.dataset.is_some() { WriteMode::Append } else { WriteMode::Create };
        self.put(rows, start, mode).await
    }

    /// Appends rows of which one has this word as its text and kind.
    ///
    /// # Errors
    /// Lance's.
    pub async fn write_with_word(&mut self, rows: usize, start: i64, word: &str) -> Result<&mut Self> {
        let batch = self.rows(rows, start)?;
        let mut columns = batch.columns().to_vec();
        for (column, array) in columns.iter_mut().enumerate() {
            let texts = array.as_any().downcast_ref::<StringArray>().filter(|_| column > 0);
            if let Some(texts) = texts {
                let all: Vec<Option<&str>> = std::iter::once(Some(word)).chain(texts.iter().skip(1)).collect();
                *array = Arc::new(StringArray::from(all));
            }
        }
        let batch = RecordBatch::try_new(batch.schema(), columns)
            .map_err(|e| Error::new(Kind::Bug, "making sample rows", &self.uri).because(e))?;
        self.put_batch(batch, if self.dataset.is_some() { WriteMode::Append } else { WriteMode::Create }).await
    }

    /// Replaces all rows.
    ///
    /// # Errors
    /// Lance's.
    pub async fn overwrite(&mut self, rows: usize, start: i64) -> Result<&mut Self> {
        self.put(rows, start, WriteMode::Overwrite).await
    }

    async fn put(&mut self, rows: usize, start: i64, mode: WriteMode) -> Result<&mut Self> {
        let batch = self.rows(rows, start)?;
        self.put_batch(batch, mode).await
    }

    fn rows(&self, rows: usize, start: i64) -> Result<RecordBatch> {
        batch(rows, start, self.columns, self.blobs)
            .map_err(|e| Error::new(Kind::Bug, "making sample rows", &self.uri).because(e))
    }

    async fn put_batch(&mut self, batch: RecordBatch, mode: WriteMode) -> Result<&mut Self> {
        let schema = batch.schema();
        let reader = RecordBatchIterator::new([Ok(batch)], schema);
        let params = WriteParams { mode, enable_stable_row_ids: self.stable_row_ids, ..Default::default() };
        let dataset = Dataset::write(reader, self.uri.as_str(), Some(params)).await.map_err(failed(&self.uri))?;
        self.dataset = Some(dataset);
        Ok(self)
    }

    /// Writes the files of an append and does not commit them: what a slow writer has done so far.
    ///
    /// # Errors
    /// Lance's.
    pub async fn stage(&mut self, rows: usize, start: i64) -> Result<Staged> {
        let (uri, batch) = (self.uri.clone(), self.rows(rows, start)?);
        let dataset = Arc::new(self.opened()?.clone());
        let params = WriteParams { mode: WriteMode::Append, ..Default::default() };
        let builder = lance::dataset::InsertBuilder::new(dataset).with_params(&params);
        builder.execute_uncommitted(vec![batch]).await.map(Staged).map_err(failed(&uri))
    }

    /// Commits what was staged, on whatever HEAD is by now.
    ///
    /// # Errors
    /// Lance's.
    pub async fn land(&mut self, staged: Staged) -> Result<&mut Self> {
        let uri = self.uri.clone();
        let dataset = Arc::new(self.opened()?.clone());
        let landed = lance::dataset::CommitBuilder::new(dataset).execute(staged.0).await.map_err(failed(&uri))?;
        self.dataset = Some(landed);
        Ok(self)
    }

    fn opened(&mut self) -> Result<&mut Dataset> {
        let uri = self.uri.clone();
        self.dataset.as_mut().ok_or_else(|| Error::new(Kind::Bug, "changing a sample before it is written", uri))
    }

    /// Deletes rows.
    ///
    /// # Errors
    /// Lance's.
    pub async fn delete(&mut self, predicate: &str) -> Result<&mut Self> {
        let uri = self.uri.clone();
        self.opened()?.delete(predicate).await.map_err(failed(&uri))?;
        Ok(self)
    }

    /// Makes an index.
    ///
    /// # Errors
    /// Lance's.
    pub async fn index(&mut self, index: SampleIndex) -> Result<&mut Self> {
        let uri = self.uri.clone();
        let dataset = self.opened()?;
        let made = match index {
            SampleIndex::BTree => {
                dataset.create_index(&["id"], IndexType::BTree, None, &ScalarIndexParams::default(), true).await
            }
            SampleIndex::Bitmap => {
                dataset.create_index(&["kind"], IndexType::Bitmap, None, &ScalarIndexParams::default(), true).await
            }
            SampleIndex::FullText => {
                dataset.create_index(&["body"], IndexType::Inverted, None, &InvertedIndexParams::default(), true).await
            }
            SampleIndex::Vector => {
                let params = VectorIndexParams::ivf_pq(2, 8, 4, MetricType::L2, 10);
                dataset.create_index(&["vector"], IndexType::Vector, None, &params, true).await
            }
        };
        made.map(|_| ()).map_err(failed(&uri))?;
        Ok(self)
    }

    /// Tags a version.
    ///
    /// # Errors
    /// Lance's.
    pub async fn tag(&mut self, name: &str, version: u64) -> Result<&mut Self> {
        let uri = self.uri.clone();
        self.opened()?.tags().create(name, version).await.map_err(failed(&uri))?;
        Ok(self)
    }

    /// Starts a branch from a version.
    ///
    /// # Errors
    /// Lance's.
    pub async fn branch(&mut self, name: &str, version: u64) -> Result<&mut Self> {
        let uri = self.uri.clone();
        self.opened()?.create_branch(name, version, None).await.map_err(failed(&uri))?;
        Ok(self)
    }

    /// Restores an old version as a new one.
    ///
    /// # Errors
    /// Lance's.
    pub async fn restore(&mut self, version: u64) -> Result<&mut Self> {
        let uri = self.uri.clone();
        let mut old = self.opened()?.checkout_version(version).await.map_err(failed(&uri))?;
        old.restore().await.map_err(failed(&uri))?;
        self.dataset = Some(old);
        Ok(self)
    }

    /// Commits a version that is not in the linear history.
    ///
    /// # Errors
    /// Lance's.
    pub async fn commit_detached(&mut self) -> Result<&mut Self> {
        let uri = self.uri.clone();
        let dataset = Arc::new(self.opened()?.clone());
        let operation = lance::dataset::transaction::Operation::Append { fragments: Vec::new() };
        let transaction = lance::dataset::transaction::TransactionBuilder::new(dataset.version_id(), operation).build();
        let builder = lance::dataset::CommitBuilder::new(dataset).with_detached(true);
        builder.execute(transaction).await.map_err(failed(&uri))?;
        Ok(self)
    }

    /// Commits an attached version that changes nothing, as a graph signs its own.
    ///
    /// # Errors
    /// Lance's.
    pub async fn commit_by_graph(&mut self) -> Result<&mut Self> {
        let uri = self.uri.clone();
        let dataset = Arc::new(self.opened()?.clone());
        let operation = lance::dataset::transaction::Operation::Append { fragments: Vec::new() };
        let properties = [("omnigraph.staged_against_graph_head".to_string(), String::new())];
        let transaction = lance::dataset::transaction::TransactionBuilder::new(dataset.version_id(), operation)
            .transaction_properties(Some(Arc::new(properties.into())))
            .build();
        let builder = lance::dataset::CommitBuilder::new(dataset);
        self.dataset = Some(builder.execute(transaction).await.map_err(failed(&uri))?);
        Ok(self)
    }

    /// Makes a shallow clone of HEAD at another URI.
    ///
    /// # Errors
    /// Lance's.
    pub async fn clone_to(&mut self, uri: &str) -> Result<&mut Self> {
        let from = self.uri.clone();
        let dataset = self.opened()?;
        let version = dataset.version_id();
        dataset.shallow_clone(uri, version, None).await.map_err(failed(&from))?;
        Ok(self)
    }

    /// Drops a column: its bytes stay in every live file until a rewrite.
    ///
    /// # Errors
    /// Lance's.
    pub async fn drop_column(&mut self, name: &str) -> Result<&mut Self> {
        let uri = self.uri.clone();
        self.opened()?.drop_columns(&[name]).await.map_err(failed(&uri))?;
        Ok(self)
    }

    /// Sets keys of the table's own config.
    ///
    /// # Errors
    /// Lance's.
    pub async fn config(&mut self, values: &[(&str, &str)]) -> Result<&mut Self> {
        let uri = self.uri.clone();
        let values: Vec<(String, String)> = values.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect();
        self.opened()?.update_config(values).await.map_err(failed(&uri))?;
        Ok(self)
    }

    /// Replaces all rows by the same ones, except for the last columns of one row in the middle: what a faulty rewrite
    /// would leave, for tests of verification.
    ///
    /// # Errors
    /// Lance's.
    pub async fn overwrite_with_one_wrong_row(&mut self, rows: usize, start: i64) -> Result<&mut Self> {
        self.overwrite_wrongly(rows, start, |i, _| i > 0).await
    }

    /// The same with only the last column, the page, wrong.
    ///
    /// # Errors
    /// Lance's.
    pub async fn overwrite_with_one_wrong_blob(&mut self, rows: usize, start: i64) -> Result<&mut Self> {
        self.overwrite_wrongly(rows, start, |i, n| i + 1 == n).await
    }

    async fn overwrite_wrongly(
        &mut self,
        rows: usize,
        start: i64,
        wrong: impl Fn(usize, usize) -> bool,
    ) -> Result<&mut Self> {
        let right = self.rows(rows, start)?;
        let other = self.rows(rows, start + 1_000_000)?;
        let middle = rows / 2;
        let columns = right
            .columns()
            .iter()
            .zip(other.columns())
            .enumerate()
            .map(|(i, (a, b))| match wrong(i, right.num_columns()) {
                false => Ok(a.clone()),
                true => arrow_select::concat::concat(&[
                    &a.slice(0, middle),
                    &b.slice(middle, 1),
                    &a.slice(middle + 1, rows - middle - 1),
                ]),
            })
            .collect::<std::result::Result<Vec<ArrayRef>, ArrowError>>();
        let wrong = columns
            .and_then(|columns| RecordBatch::try_new(right.schema(), columns))
            .map_err(|e| Error::new(Kind::Bug, "making sample rows", &self.uri).because(e))?;
        self.put_batch(wrong, WriteMode::Overwrite).await
    }

    /// Appends rows and lets every index claim to cover them without having indexed them: what a faulty fold would leave, for
    /// tests of verification.
    ///
    /// # Errors
    /// Lance's.
    pub async fn claim_coverage_of_unindexed_rows(&mut self, rows: usize, start: i64) -> Result<&mut Self> {
        self.write(rows, start).await?;
        self.claim_coverage().await
    }

    /// Lets every index claim to cover every row that is there.
    ///
    /// # Errors
    /// Lance's.
    pub async fn claim_coverage(&mut self) -> Result<&mut Self> {
        let everything: roaring::RoaringBitmap = self.opened()?.fragment_bitmap().as_ref().clone();
        self.lie(|i| i.fragment_bitmap = Some(everything.clone())).await
    }

    /// Lets every index say that it is over this column, whose values it does not have.
    ///
    /// # Errors
    /// Lance's.
    pub async fn claim_column(&mut self, column: &str) -> Result<&mut Self> {
        let uri = self.uri.clone();
        let field = self.opened()?.schema().field(column).map(|f| f.id);
        let field = field.ok_or_else(|| Error::new(Kind::Bug, format!("naming column {column}"), uri))?;
        self.lie(|i| i.fields = vec![field]).await
    }

    /// Commits other metadata of every index, over the files that are there.
    async fn lie(&mut self, change: impl Fn(&mut lance_table::format::IndexMetadata)) -> Result<&mut Self> {
        let uri = self.uri.clone();
        let dataset = Arc::new(self.opened()?.clone());
        let removed = dataset.load_indices().await.map_err(failed(&uri))?.to_vec();
        let mut lying = removed.clone();
        lying.iter_mut().for_each(change);
        let operation =
            lance::dataset::transaction::Operation::CreateIndex { new_indices: lying, removed_indices: removed };
        let transaction = lance::dataset::transaction::TransactionBuilder::new(dataset.version_id(), operation).build();
        let landed = lance::dataset::CommitBuilder::new(dataset).execute(transaction).await.map_err(failed(&uri))?;
        self.dataset = Some(landed);
        Ok(self)
    }

    /// Rows that this handle reads now, at the version it was opened at.
    ///
    /// # Errors
    /// Lance's.
    pub async fn rows_now(&self) -> Result<usize> {
        match &self.dataset {
            None => Ok(0),
            Some(dataset) => {
                let batch = dataset.scan().try_into_batch().await.map_err(failed(&self.uri))?;
                Ok(batch.num_rows())
            }
        }
    }

    /// HEAD's version, as this handle knows it.
    pub fn version(&self) -> u64 {
        self.dataset.as_ref().map_or(0, Dataset::version_id)
    }

    /// All ids and their number at a version (HEAD: `None`), for tests.
    ///
    /// # Errors
    /// Lance's.
    pub async fn ids(lake: &Lake, uri: &str, version: Option<u64>) -> Result<Vec<i64>> {
        let dataset = match version {
            None => lake.open(uri).await?,
            Some(v) => lake.open_version(uri, v).await?,
        };
        let batch =
            dataset.scan().project(&["id"]).map_err(failed(uri))?.try_into_batch().await.map_err(failed(uri))?;
        let mut ids: Vec<i64> = batch
            .column_by_name("id")
            .and_then(|c| c.as_any().downcast_ref::<Int64Array>())
            .map(|a| a.values().to_vec())
            .unwrap_or_default();
        ids.sort_unstable();
        Ok(ids)
    }
}

/// Moves a local manifest file's own timestamp back by `seconds`, in place: a demo needs history that is past its retention
/// without waiting a week.
///
/// # Errors
/// When the file cannot be read, decoded or written.
pub fn backdate(path: &std::path::Path, seconds: u64) -> std::io::Result<()> {
    rewrite_manifest(path, |manifest| {
        if let Some(timestamp) = manifest.timestamp.as_mut() {
            timestamp.seconds -= i64::try_from(seconds).unwrap_or(0);
        }
    })
}

/// Sets a feature flag that no release knows, on every manifest of a local dataset: what a newer library would leave.
///
/// # Errors
/// As [`backdate`].
pub fn set_unknown_flag(dataset: &std::path::Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dataset.join("_versions"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "manifest") {
            rewrite_manifest(&path, |manifest| {
                manifest.reader_feature_flags |= 1 << 60;
                manifest.writer_feature_flags |= 1 << 60;
            })?;
        }
    }
    Ok(())
}

/// Lets every manifest of a local dataset say that another release of Lance wrote it: what an old client leaves.
///
/// # Errors
/// As [`backdate`].
pub fn set_writer(dataset: &std::path::Path, version: &str) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dataset.join("_versions"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "manifest") {
            rewrite_manifest(&path, |manifest| {
                if let Some(writer) = manifest.writer_version.as_mut() {
                    version.clone_into(&mut writer.version);
                }
            })?;
        }
    }
    Ok(())
}

/// Sets a key of the schema's metadata on every manifest of a local dataset: the sign of a graph, say.
///
/// # Errors
/// As [`backdate`].
pub fn set_schema_metadata(dataset: &std::path::Path, key: &str, value: &str) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dataset.join("_versions"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "manifest") {
            rewrite_manifest(&path, |manifest| {
                manifest.schema_metadata.insert(key.into(), value.as_bytes().to_vec());
            })?;
        }
    }
    Ok(())
}

/// Leaves only the first fragment in one local manifest: the version then answers with fewer rows than were written.
///
/// # Errors
/// As [`backdate`].
pub fn lose_fragments(path: &std::path::Path) -> std::io::Result<()> {
    rewrite_manifest(path, |manifest| manifest.fragments.truncate(1))
}

fn rewrite_manifest(path: &std::path::Path, change: impl FnOnce(&mut pb::Manifest)) -> std::io::Result<()> {
    let bad = |why: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, why.to_string());
    let bytes = std::fs::read(path)?;
    let n = bytes.len();
    if n < 16 {
        return Err(bad("the manifest is cut"));
    }
    let at = i64::from_le_bytes(bytes[n - 16..n - 8].try_into().map_err(|_| bad("the trailer is cut"))?);
    let at = usize::try_from(at).map_err(|_| bad("the trailer's position is negative"))?;
    let head = bytes.get(at..at + 4).ok_or_else(|| bad("the manifest starts beyond the file"))?;
    let len = u32::from_le_bytes(head.try_into().map_err(|_| bad("the manifest is cut"))?) as usize;
    let body = bytes.get(at + 4..at + 4 + len).ok_or_else(|| bad("the manifest is cut"))?;
    let mut manifest = pb::Manifest::decode(body).map_err(|e| bad(&e.to_string()))?;
    change(&mut manifest);
    let encoded = manifest.encode_to_vec();
    let mut out = bytes[..at].to_vec();
    out.extend(u32::try_from(encoded.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(&encoded);
    // What follows the manifest is the trailer: position, format version, magic.
    out.extend(&bytes[at + 4 + len..]);
    std::fs::write(path, out)
}

/// What Lance's own clean-up says it would remove if only HEAD were kept: an independent opinion for tests. Only explained, never
/// executed; candidates that it could not verify are left out.
///
/// # Errors
/// Lance's.
pub async fn lance_would_remove(lake: &Lake, uri: &str) -> Result<Vec<String>> {
    explained(lake, uri, chrono::Utc::now() + chrono::Duration::hours(1), false).await
}

/// What Lance's own clean-up says nobody names and is past its wall of seven days, every version kept: an independent opinion on
/// orphans for tests. Only explained, never executed.
///
/// # Errors
/// Lance's.
pub async fn lance_would_call_unnamed(lake: &Lake, uri: &str) -> Result<Vec<String>> {
    explained(lake, uri, chrono::DateTime::UNIX_EPOCH, true).await
}

async fn explained(
    lake: &Lake,
    uri: &str,
    before: chrono::DateTime<chrono::Utc>,
    unverified: bool,
) -> Result<Vec<String>> {
    use lance::dataset::cleanup::CleanupPolicyBuilder;
    let dataset = lake.open(uri).await?;
    let place = lake.place(uri).await?;
    let policy = CleanupPolicyBuilder::default().before_timestamp(before).error_if_tagged_old_versions(false).build();
    let explained =
        dataset.cleanup(policy).with_max_candidate_files(usize::MAX).explain().await.map_err(failed(uri))?;
    let root = format!("{}/", place.path);
    let mut out: Vec<String> = explained
        .candidate_files
        .into_iter()
        .filter(|f| f.unverified == unverified)
        .map(|f| f.path.strip_prefix(&root).map(String::from).unwrap_or(f.path))
        .collect();
    out.sort();
    Ok(out)
}
