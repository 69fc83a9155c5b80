//! One manifest, read in one request, reduced to facts.
//!
//! Lance's own reader takes several requests for manifest, indices and transaction. The three stand in one small file,
//! so one GET of the listed size gives all of them. The layout is in lance-table's `protos/table.proto` ("Format").

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use chrono::{DateTime, TimeZone, Utc};
use lance_index::scalar::inverted::builder::is_staged_path;
use lance_table::format::{Fragment, IndexMetadata, Manifest, pb};
use lance_table::io::deletion::relative_deletion_file_path;
use object_store::ObjectStoreExt as _;
use object_store::path::Path;
use prost::Message;

use crate::stamp::Stamp;
use crate::{Error, Kind, Result};

/// Manifests larger than this are refused: nothing legitimate comes near.
const MAX_BYTES: u64 = 1 << 30;

/// What one manifest says.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The version number.
    pub version: u64,
    /// When the writer says it was committed.
    pub timestamp: DateTime<Utc>,
    /// The library that wrote it, `("lance", "14.0.2")`.
    pub writer: Option<(String, String)>,
    /// The manifest itself, with schema and fragments.
    pub manifest: Manifest,
    /// The index section, raw: also what this build cannot open.
    pub indices: Vec<IndexMetadata>,
    /// The transaction's operation name, when it is inline.
    pub operation: Option<String>,
    /// The transaction's properties, when it is inline.
    pub properties: HashMap<String, String>,
    /// The stamp of a commit of ours.
    pub stamp: Option<Stamp>,
    /// The object's e_tag, where it was read from a store that has such.
    pub e_tag: Option<String>,
    /// Whether the store keeps versions of its objects: it named one when this was read.
    pub store_keeps_versions: bool,
}

/// A file that a manifest names: where, and of which kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Named {
    /// The base it lies under; `None` is the dataset's own root.
    pub base: Option<u32>,
    /// Relative to that base: `data/x.lance`, `_deletions/…`, `_transactions/…`, or `_indices/<uuid>` for a whole
    /// index directory.
    pub path: String,
    /// Its recorded size in bytes, where the manifest has one.
    pub size: Option<u64>,
}

/// Reads and decodes the manifest at `path`.
///
/// # Errors
/// `Damaged` when it is missing or cannot be decoded; `Transient` when the store failed.
pub async fn read(store: &dyn object_store::ObjectStore, uri: &str, path: &Path) -> Result<Facts> {
    let result = store.get(path).await.map_err(|e| Error::store(format!("reading the manifest {path}"), uri, e))?;
    if result.meta.size > MAX_BYTES {
        return Err(damaged(uri, path, "the manifest is larger than 1 GiB"));
    }
    let e_tag = result.meta.e_tag.clone();
    let store_keeps_versions = names_version(&result.meta);
    let bytes = result.bytes().await.map_err(|e| Error::store(format!("reading the manifest {path}"), uri, e))?;
    decode(&bytes).map(|facts| Facts { e_tag, store_keeps_versions, ..facts }).map_err(|why| damaged(uri, path, &why))
}

fn damaged(uri: &str, path: &Path, why: &str) -> Error {
    Error::new(Kind::Damaged, format!("decoding the manifest {path}"), uri)
        .because(std::io::Error::new(std::io::ErrorKind::InvalidData, why.to_string()))
        .remedy("restore the file, or remove the version by hand once nobody needs it")
}

/// Decodes a whole manifest file.
///
/// # Errors
/// What is wrong with the bytes.
pub fn decode(bytes: &Bytes) -> std::result::Result<Facts, String> {
    let n = bytes.len();
    if n < 16 || &bytes[n - 4..] != b"LANC" {
        return Err("the file does not end in Lance's magic".into());
    }
    let position = i64::from_le_bytes(bytes[n - 16..n - 8].try_into().map_err(|_| "the trailer is cut".to_string())?);
    let position = usize::try_from(position).map_err(|_| "the trailer's position is negative".to_string())?;
    let proto: pb::Manifest = message(bytes, position)?;
    let inline = proto.transaction_section.or(proto.transaction_section_deprecated);
    let timestamp = proto
        .timestamp
        .as_ref()
        .and_then(|t| Utc.timestamp_opt(t.seconds, u32::try_from(t.nanos).unwrap_or(0)).single())
        .unwrap_or(DateTime::UNIX_EPOCH);
    let indices = match proto.index_section {
        None => Vec::new(),
        Some(at) => {
            let section: pb::IndexSection = message(bytes, to_usize(at)?)?;
            section
                .indices
                .into_iter()
                .map(IndexMetadata::try_from)
                .collect::<lance::Result<Vec<_>>>()
                .map_err(|e| format!("the index section: {e}"))?
        }
    };
    // The offset is inert by the format's own words: a transaction that does not decode must not fail the manifest.
    let transaction: Option<pb::Transaction> =
        inline.and_then(|at| to_usize(at).ok()).and_then(|at| message(bytes, at).ok());
    let writer = proto.writer_version.as_ref().map(|w| (w.library.clone(), w.version.clone()));
    let manifest = Manifest::try_from(proto).map_err(|e| format!("the manifest: {e}"))?;
    let (operation, properties) = transaction_facts(transaction);
    Ok(Facts {
        version: manifest.version,
        timestamp,
        writer,
        stamp: Stamp::read(&properties),
        operation,
        properties,
        indices,
        manifest,
        e_tag: None,
        store_keeps_versions: false,
    })
}

/// Whether an object's answer names its version: the bucket keeps what is overwritten or deleted. What was written before it did so
/// has the version `null`.
pub(crate) fn names_version(meta: &object_store::ObjectMeta) -> bool {
    meta.version.as_deref().is_some_and(|version| version != "null")
}

fn to_usize(at: u64) -> std::result::Result<usize, String> {
    usize::try_from(at).map_err(|_| "a position beyond the address space".to_string())
}

/// A length-prefixed protobuf message at `at`.
fn message<M: Message + Default>(bytes: &Bytes, at: usize) -> std::result::Result<M, String> {
    let head = bytes.get(at..at.saturating_add(4)).ok_or_else(|| "a section starts beyond the file".to_string())?;
    let len = u32::from_le_bytes(head.try_into().map_err(|_| "a section is cut".to_string())?) as usize;
    let body = bytes.get(at + 4..(at + 4).saturating_add(len)).ok_or_else(|| "a section is cut".to_string())?;
    M::decode(body).map_err(|e| e.to_string())
}

/// Operation name and properties of an inline or stored transaction.
pub fn transaction_facts(transaction: Option<pb::Transaction>) -> (Option<String>, HashMap<String, String>) {
    let Some(transaction) = transaction else {
        return (None, HashMap::new());
    };
    use pb::transaction::Operation as O;
    let name = transaction.operation.as_ref().map(|operation| match operation {
        O::Append(_) => "append",
        O::Delete(_) => "delete",
        O::Overwrite(_) => "overwrite",
        O::CreateIndex(_) => "create_index",
        O::Rewrite(_) => "rewrite",
        O::Merge(_) => "merge",
        O::Restore(_) => "restore",
        O::ReserveFragments(_) => "reserve_fragments",
        O::Update(_) => "update",
        O::Project(_) => "project",
        O::UpdateConfig(_) => "update_config",
        _ => "other",
    });
    (name.map(String::from), transaction.transaction_properties)
}

/// Decodes a stored transaction file (`_transactions/*.txn`).
pub fn decode_transaction(bytes: &[u8]) -> Option<pb::Transaction> {
    pb::Transaction::decode(bytes).ok()
}

impl Facts {
    /// Every file that this manifest names, the transaction file and whole index directories included.
    pub fn named(&self) -> Vec<Named> {
        let mut out = Vec::new();
        for fragment in self.manifest.fragments.iter() {
            named_by_fragment(fragment, &mut out);
        }
        for index in &self.indices {
            out.push(Named { base: index.base_id, path: format!("_indices/{}", index.uuid), size: None });
        }
        if let Some(file) = self.manifest.transaction_file.as_ref().filter(|f| !f.is_empty()) {
            out.push(Named { base: None, path: format!("_transactions/{file}"), size: None });
        }
        out
    }

    /// Files inside index directories, with their sizes, where the index records them. What a build staged and dropped again is
    /// recorded too and left out here.
    pub fn index_files(&self) -> Vec<Named> {
        let files = |index: &IndexMetadata| {
            let (base, dir) = (index.base_id, format!("_indices/{}", index.uuid));
            let kept = index.files.iter().flatten().filter(|f| !is_staged_path(&f.path));
            kept.map(|f| Named { base, path: format!("{dir}/{}", f.path), size: Some(f.size_bytes) })
                .collect::<Vec<_>>()
        };
        self.indices.iter().flat_map(files).collect()
    }

    /// Base paths by id, as their writer typed them, with whether each is a dataset's root.
    pub fn bases(&self) -> BTreeMap<u32, (String, bool)> {
        self.manifest.base_paths.iter().map(|(id, base)| (*id, (base.path.clone(), base.is_dataset_root))).collect()
    }

    /// Live rows: physical minus deleted, as recorded.
    pub fn rows(&self) -> u64 {
        self.manifest.fragments.iter().map(|f| f.num_rows().unwrap_or(0) as u64).sum()
    }
}

/// The files of one fragment.
pub fn named_by_fragment(fragment: &Fragment, out: &mut Vec<Named>) {
    let files = fragment.files.iter().chain(fragment.overlays.iter().map(|o| &o.data_file));
    for file in files {
        out.push(Named {
            base: file.base_id,
            path: format!("data/{}", file.path),
            size: file.file_size_bytes.get().map(u64::from),
        });
    }
    if let Some(deletion) = &fragment.deletion_file {
        out.push(Named {
            base: deletion.base_id,
            path: relative_deletion_file_path(fragment.id, deletion),
            size: None,
        });
    }
}
