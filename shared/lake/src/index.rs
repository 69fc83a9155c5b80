//! The state of every index, in one place (design, "Health"; FACES, index `state`).
//!
//! Coverage comes from the manifest; whether an index can be read at all is asked of the library, with panics contained:
//! what cannot be read is UNKNOWN, which is not healthy.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use lance::Dataset;
use lance::index::DatasetIndexExt;
use lance_table::format::IndexMetadata;
use roaring::RoaringBitmap;
use squire_registry::RequiredIndex;
use uuid::Uuid;

use crate::build::IndexKind;
use crate::manifest::Facts;

/// More segments than this are merged where the index is small.
pub(crate) const SEGMENTS_OF_SMALL: usize = 2;
/// And where it is large: with four, the bytes of appends are rewritten a few times (with two, 10 times in 100 appends of 1 %).
const SEGMENTS_OF_LARGE: usize = 4;
/// An index of fewer bytes is small: merging it whole costs less than the segment boundaries that keep fragments apart.
pub const SMALL_BYTES: u64 = 4 << 20;

/// Rows from which an untrained vector index is worth a try: a product quantiser of 8 bits needs 256 vectors (lance,
/// `vector_quantizer_minimum_rows`), and below that a scan is as quick.
pub const TRAINABLE_ROWS: u64 = 256;

/// FACES' index states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Every row is indexed, in few segments.
    Covered,
    /// Rows are unindexed, or rows that are gone are still among the answers.
    Lagging,
    /// More segments than the bound.
    Segmented,
    /// Only a definition: there were not enough rows to train.
    Untrained,
    /// The library failed or panicked when asked: its health is unknown.
    Unreadable,
    /// Wanted by the policy and not there.
    Missing,
    /// A type or version that this build cannot open.
    Unsupported,
}

impl State {
    /// The stable name of FACES.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Covered => "covered",
            State::Lagging => "lagging",
            State::Segmented => "segmented",
            State::Untrained => "untrained",
            State::Unreadable => "unreadable",
            State::Missing => "missing",
            State::Unsupported => "unsupported",
        }
    }
}

/// One physical segment.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Its directory under `_indices/`.
    pub uuid: Uuid,
    /// The fragments it covers; `None` when its writer did not say.
    pub fragments: Option<RoaringBitmap>,
    /// Recorded bytes, 0 when unknown.
    pub bytes: u64,
    /// The oldest version whose rows it was built from. A remap and a merge keep the oldest of what went in (lance,
    /// `index/append.rs`, `transaction/index_maintenance.rs`); only a build from the rows themselves advances it.
    pub built_from: u64,
}

/// One logical index.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexInfo {
    /// Its name.
    pub name: String,
    /// `BTREE`, `INVERTED`, `IVF_PQ`…
    pub kind: String,
    /// Keyed column paths.
    pub columns: Vec<String>,
    /// Its segments, oldest first.
    pub segments: Vec<Segment>,
    /// Live rows in covered fragments.
    pub indexed_rows: u64,
    /// Live rows in fragments that no segment covers.
    pub unindexed_rows: u64,
    /// Rows that it holds beyond those that there are, where Lance does not mask them: they take places among its best k
    /// (`compact/dead.rs`). 0 also where that cannot be told.
    pub dead_rows: u64,
    /// Its state.
    pub state: State,
    /// Why, where the state needs words.
    pub detail: Option<String>,
}

impl IndexInfo {
    /// Whether a rewrite of fragments drops its coverage whatever we do (facts, "Indices").
    pub fn loses_coverage_on_rewrite(&self) -> bool {
        matches!(self.kind.as_str(), "ZONEMAP" | "BLOOMFILTER" | "FM")
    }

    /// Whether it is a vector index.
    pub fn is_vector(&self) -> bool {
        self.kind.starts_with("IVF") || self.kind == "VECTOR"
    }

    /// Whether it is a full-text index.
    pub fn is_full_text(&self) -> bool {
        self.kind == "INVERTED"
    }

    /// Whether this build can fold into it. An untrained vector index can once there are rows to train it.
    pub fn can_fold(&self) -> bool {
        match self.state {
            State::Unsupported | State::Unreadable | State::Missing => false,
            State::Untrained => self.is_vector() && self.unindexed_rows >= TRAINABLE_ROWS,
            State::Covered | State::Lagging | State::Segmented => true,
        }
    }

    /// The oldest version whose rows any segment was built from.
    pub fn built_from(&self) -> u64 {
        self.segments.iter().map(|s| s.built_from).min().unwrap_or_default()
    }

    /// Recorded bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|s| s.bytes).sum()
    }

    /// More segments than this are merged.
    pub fn segment_bound(&self) -> usize {
        if self.bytes() < SMALL_BYTES { SEGMENTS_OF_SMALL } else { SEGMENTS_OF_LARGE }
    }

    /// The fragments that any segment covers.
    pub fn covered(&self) -> RoaringBitmap {
        self.segments.iter().filter_map(|s| s.fragments.as_ref()).fold(RoaringBitmap::new(), |acc, b| acc | b)
    }
}

/// What a policy requires and none of these indices is: same column, same type, however it is spelt. A vector index that is not
/// trained yet does not tell its type, and counts as any of them.
pub fn missing<'a>(present: &[IndexInfo], required: &'a [RequiredIndex]) -> Vec<&'a RequiredIndex> {
    let kind =
        |text: &str| IndexKind::parse(text).map_or_else(|_| text.to_ascii_uppercase(), |k| k.as_str().to_string());
    let is = |index: &IndexInfo, required: &RequiredIndex| {
        let wanted = kind(&required.kind);
        let untold = index.kind == "VECTOR" && wanted.starts_with("IVF");
        index.columns == required.columns && (kind(&index.kind) == wanted || untold)
    };
    required.iter().filter(|r| !present.iter().any(|index| is(index, r))).collect()
}

/// What a policy requires and the table lacks, as reports show it beside what is there: state `missing`, the name that it would
/// be built with, no segment, and all of the table's `rows` outside of it.
pub fn missing_states(present: &[IndexInfo], required: &[RequiredIndex], rows: u64) -> Vec<IndexInfo> {
    let state = |r: &RequiredIndex| IndexInfo {
        name: format!("{}_idx", r.columns.join(".")),
        kind: IndexKind::parse(&r.kind).map_or_else(|_| r.kind.clone(), |k| k.as_str().to_string()),
        columns: r.columns.clone(),
        segments: Vec::new(),
        indexed_rows: 0,
        unindexed_rows: rows,
        dead_rows: 0,
        state: State::Missing,
        detail: Some("the policy requires it, and the table does not have it".into()),
    };
    missing(present, required).into_iter().map(state).collect()
}

/// Whether the name is one of Lance's own bookkeeping indices.
pub fn is_system(name: &str) -> bool {
    name.starts_with("__lance_")
}

/// Whether it is the fragment-reuse index: deferred remaps, a generation of them per compaction that defers.
pub fn is_frag_reuse(index: &IndexMetadata) -> bool {
    index.name == "__lance_frag_reuse"
}

/// The type's name from the details' type URL.
pub fn kind_of(index: &IndexMetadata) -> String {
    let Some(details) = &index.index_details else {
        return "LEGACY".into();
    };
    let last = details.type_url.rsplit(['.', '/']).next().unwrap_or_default();
    match last.trim_end_matches("IndexDetails") {
        "BTree" => "BTREE".into(),
        "Bitmap" => "BITMAP".into(),
        "LabelList" => "LABEL_LIST".into(),
        "NGram" => "NGRAM".into(),
        "Inverted" => "INVERTED".into(),
        "ZoneMap" => "ZONEMAP".into(),
        "BloomFilter" => "BLOOMFILTER".into(),
        "Json" => "JSON".into(),
        "RTree" => "RTREE".into(),
        "Vector" => "VECTOR".into(),
        other => other.to_uppercase(),
    }
}

/// Whether a segment is only a definition: no files, nothing covered.
pub(crate) fn definition_only(index: &IndexMetadata) -> bool {
    index.files.as_ref().is_none_or(Vec::is_empty)
        && index.fragment_bitmap.as_ref().is_some_and(RoaringBitmap::is_empty)
}

/// Reads the state of every index of HEAD. `dataset` is the opened HEAD; without it nothing is asked of the library.
pub async fn states(head: &Facts, dataset: Option<&Dataset>) -> Vec<IndexInfo> {
    let mut names: Vec<&str> = Vec::new();
    for index in head.indices.iter().filter(|i| !is_system(&i.name)) {
        if !names.contains(&index.name.as_str()) {
            names.push(&index.name);
        }
    }
    let usable: Option<HashSet<Uuid>> = match dataset {
        None => None,
        Some(ds) => match AssertUnwindSafe(ds.load_indices()).catch_unwind().await {
            Ok(Ok(loaded)) => Some(loaded.iter().map(|i| i.uuid).collect()),
            _ => None,
        },
    };
    let mut out = Vec::with_capacity(names.len());
    for name in names {
        let parts: Vec<&IndexMetadata> = head.indices.iter().filter(|i| i.name == name).collect();
        out.push(state_of(head, dataset, usable.as_ref(), name, &parts).await);
    }
    out
}

async fn state_of(
    head: &Facts,
    dataset: Option<&Dataset>,
    usable: Option<&HashSet<Uuid>>,
    name: &str,
    parts: &[&IndexMetadata],
) -> IndexInfo {
    let segments: Vec<Segment> = parts
        .iter()
        .map(|i| Segment {
            uuid: i.uuid,
            fragments: i.fragment_bitmap.clone(),
            bytes: i.files.iter().flatten().map(|f| f.size_bytes).sum(),
            built_from: i.dataset_version,
        })
        .collect();
    let mut info = IndexInfo {
        name: name.to_string(),
        kind: parts.first().map(|i| kind_of(i)).unwrap_or_default(),
        columns: columns(head, parts),
        segments,
        indexed_rows: 0,
        unindexed_rows: 0,
        dead_rows: 0,
        state: State::Covered,
        detail: None,
    };
    let covered = info.covered();
    for fragment in head.manifest.fragments.iter() {
        let rows = fragment.num_rows().unwrap_or(0) as u64;
        match u32::try_from(fragment.id) {
            Ok(id) if covered.contains(id) => info.indexed_rows += rows,
            _ => info.unindexed_rows += rows,
        }
    }
    if usable.is_some_and(|ids| parts.iter().any(|i| !ids.contains(&i.uuid))) {
        info.state = State::Unsupported;
        info.detail = Some(format!("this build cannot open index type {}", info.kind));
        return info;
    }
    if parts.iter().all(|i| definition_only(i)) {
        info.state = State::Untrained;
        return info;
    }
    if let Some(ds) = dataset {
        match statistics(ds, name).await {
            Ok(asked) => {
                info.kind = asked.kind.unwrap_or(info.kind);
                let held = asked.held.filter(|_| answers_unmasked(head, &info));
                info.dead_rows = held.unwrap_or(0).saturating_sub(info.indexed_rows);
            }
            Err(why) => {
                info.state = State::Unreadable;
                info.detail = Some(why);
                return info;
            }
        }
    }
    info.state = if info.unindexed_rows > 0 {
        State::Lagging
    } else if info.dead_rows > 0 {
        info.detail = Some(format!("{} rows that it holds are gone and take places among its best", info.dead_rows));
        State::Lagging
    } else if info.segments.len() > info.segment_bound() {
        State::Segmented
    } else {
        State::Covered
    };
    info
}

fn columns(head: &Facts, parts: &[&IndexMetadata]) -> Vec<String> {
    let Some(first) = parts.first() else { return Vec::new() };
    first
        .keyed_fields()
        .iter()
        .map(|id| head.manifest.schema.field_path(*id).unwrap_or_else(|_| format!("#{id}")))
        .collect()
}

/// Whether Lance answers with whatever the index holds (`index/prefilter.rs`): with stable row ids, where it covers all fragments and
/// none that is gone or has a deletion file. And whether rows can be counted: one entry for each, as of texts and vectors that are
/// no lists.
fn answers_unmasked(head: &Facts, info: &IndexInfo) -> bool {
    use arrow_schema::DataType as T;
    let field = info.columns.first().and_then(|c| head.manifest.schema.field(c));
    let single = match field.map(|f| f.data_type()) {
        Some(T::Utf8 | T::LargeUtf8) => info.is_full_text(),
        Some(T::FixedSizeList(..)) => info.is_vector(),
        _ => false,
    };
    let there: RoaringBitmap = head.manifest.fragments.iter().filter_map(|f| u32::try_from(f.id).ok()).collect();
    single
        && head.manifest.uses_stable_row_ids()
        && info.segments.iter().all(|s| s.fragments.is_some())
        && info.covered() == there
        && head.manifest.fragments.iter().all(|f| f.deletion_file.is_none())
}

/// What the library says of an index.
struct Asked {
    /// The vector type's full name, where it is one.
    kind: Option<String>,
    /// Entries over all segments, where it counts them: of partitions, or of documents. A null has none.
    held: Option<u64>,
}

/// Asks the library for the statistics.
async fn statistics(dataset: &Dataset, name: &str) -> std::result::Result<Asked, String> {
    match AssertUnwindSafe(dataset.index_statistics(name)).catch_unwind().await {
        Err(_) => Err("the library panicked when asked for its statistics".into()),
        Ok(Err(e)) => Err(e.to_string().lines().next().unwrap_or_default().to_string()),
        Ok(Ok(text)) => {
            let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
            let kind = value["index_type"].as_str().unwrap_or_default();
            let held = value["segments"].as_array().and_then(|segments| segments.iter().map(entries).sum());
            Ok(Asked { kind: kind.starts_with("IVF").then(|| kind.to_string()), held })
        }
    }
}

/// The entries of one segment's statistics.
fn entries(segment: &serde_json::Value) -> Option<u64> {
    let partitions = || segment["partitions"].as_array()?.iter().map(|p| p["size"].as_u64()).sum();
    segment["num_docs"].as_u64().or_else(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_required_is_there_however_it_is_spelt() {
        let index = |kind: &str, column: &str| IndexInfo {
            name: format!("{column}_idx"),
            kind: kind.into(),
            columns: vec![column.into()],
            segments: Vec::new(),
            indexed_rows: 0,
            unindexed_rows: 0,
            dead_rows: 0,
            state: State::Covered,
            detail: None,
        };
        let present = [index("INVERTED", "body"), index("VECTOR", "v"), index("BTREE", "id")];
        let required =
            |kind: &str, column: &str| RequiredIndex { columns: vec![column.into()], kind: kind.into(), build: false };
        let wanted = [
            required("fts", "body"),
            required("IVF_PQ", "v"),
            required("btree", "id"),
            required("BITMAP", "id"),
            required("BTREE", "kind"),
        ];
        let lacking: Vec<(&str, &str)> =
            missing(&present, &wanted).iter().map(|r| (r.kind.as_str(), r.columns[0].as_str())).collect();
        assert_eq!(lacking, [("BITMAP", "id"), ("BTREE", "kind")]);
    }
}
