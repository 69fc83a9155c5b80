//! What a build may hold in memory at once. Pure; the formula is in `docs/index-builds.md`, with measured peaks.

use super::{Definition, IndexKind as K, params};
use crate::look::Look;

/// What any build holds: caches, manifests, readers' and writers' buffers.
const BASE: u64 = 160 << 20;
/// What the library's sort keeps before it spills to disk.
const SORT: u64 = 256 << 20;
/// A row's address or id, with what a hash map adds.
const ROW: u64 = 24;
/// Batches of vectors in flight while they are assigned to partitions, or compared one by one.
const SHUFFLE: u64 = 128 << 20;
/// What is kept of a vector index that is asked.
const ASKED: u64 = 512 << 20;
/// A full-text build gets at least and at most this.
const TEXT: (u64, u64) = (256 << 20, 2 << 30);

/// What a build may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// In all, in bytes.
    pub bytes: u64,
    /// The part of it that the library is told to keep to (full text), in bytes.
    pub bounded: u64,
}

/// Bytes of one column: its share of the table by count of columns, since manifests do not part a file's bytes by column; a
/// vector's are known.
fn column_bytes(look: &Look, definition: &Definition) -> u64 {
    let rows = look.head.rows();
    if definition.dimension > 0 {
        return rows * u64::from(definition.dimension) * 4;
    }
    let data: u64 = look.fragments.iter().map(|f| f.bytes).sum();
    let fields = look.head.manifest.schema.fields.len().max(1) as u64;
    (data / fields).max(rows * 8)
}

/// The estimate for a definition on a table.
pub fn estimate(look: &Look, definition: &Definition) -> Estimate {
    of(definition, look.head.rows(), column_bytes(look, definition))
}

fn of(definition: &Definition, rows: u64, column: u64) -> Estimate {
    let work = match definition.kind {
        // Sorted first: the sort spills, the pages are written as they come.
        K::BTree | K::Json | K::RTree => SORT.min(column * 2 + rows * ROW),
        // One bitmap per value, held until the end.
        K::Bitmap | K::LabelList => column + rows * ROW,
        K::ZoneMap | K::BloomFilter => 64 << 20,
        K::NGram => SORT + column.min(SORT),
        K::Inverted => return text(column),
        kind => vector(kind, definition, rows, column),
    };
    Estimate { bytes: BASE + work, bounded: 0 }
}

fn text(column: u64) -> Estimate {
    let bounded = (column * 3).clamp(TEXT.0, TEXT.1);
    Estimate { bytes: BASE + bounded, bounded }
}

fn vector(kind: K, definition: &Definition, rows: u64, column: u64) -> u64 {
    let ivf = params::ivf(&definition.params);
    let partitions = ivf.num_partitions.unwrap_or(1) as u64;
    let width = u64::from(definition.dimension) * 4;
    // The sample and k-means' own copy of it.
    let training = (partitions * ivf.sample_rate as u64).min(rows) * width * 2;
    // The largest partitions are held while they are written; twice the average, four at once.
    let partition = (rows / partitions.max(1)).saturating_mul(2).min(rows);
    let per_row = match kind {
        K::IvfFlat | K::IvfHnswFlat => width,
        K::IvfPq | K::IvfHnswPq => params::pq(&definition.params).num_sub_vectors as u64,
        K::IvfSq | K::IvfHnswSq => u64::from(definition.dimension),
        _ => u64::from(definition.dimension),
    } + ROW;
    let graph = if kind.has_graph() { 20 * 2 * 8 } else { 0 };
    let writing = (partition * (per_row + graph) * 4).min(column * 2 + rows * (ROW + graph));
    // It is asked before success is said: all of its partitions are read, and the vectors themselves.
    let asking = (rows * per_row).min(ASKED) + SHUFFLE.min(column);
    training.max(SHUFFLE.min(column) + writing) + asking
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(kind: K, dimension: u32, params: serde_json::Value) -> Definition {
        let params = params.as_object().cloned().unwrap_or_default();
        Definition { kind, column: "c".into(), field: 1, name: "c_idx".into(), params, derived: vec![], dimension }
    }

    #[test]
    fn a_sort_spills_and_a_bitmap_does_not() {
        let rows = 100_000_000;
        let sorted = of(&definition(K::BTree, 0, json!({})), rows, rows * 8).bytes;
        assert_eq!(sorted, (160 << 20) + (256 << 20));
        assert_eq!(of(&definition(K::Bitmap, 0, json!({})), rows, rows * 8).bytes, (160 << 20) + rows * 32);
    }

    #[test]
    fn full_text_is_told_its_bound() {
        let small = of(&definition(K::Inverted, 0, json!({})), 1_000, 10_000);
        assert_eq!((small.bounded, small.bytes), (256 << 20, (160 << 20) + (256 << 20)));
        assert_eq!(of(&definition(K::Inverted, 0, json!({})), 1, 1 << 40).bounded, 2 << 30);
    }

    #[test]
    fn vectors_count_their_sample_and_their_partitions() {
        let params = json!({ "num_partitions": 122, "num_sub_vectors": 8 });
        let rows = 1_000_000;
        let got = of(&definition(K::IvfPq, 128, params), rows, rows * 512).bytes;
        // 122 x 256 vectors of 512 bytes, twice, or 128 MiB of batches and four partitions: the latter.
        let writing = (rows / 122 * 2) * 32 * 4;
        // A million codes of 32 bytes are asked, and 128 MiB of batches compared.
        assert_eq!(got, (160 << 20) + (128 << 20) + writing + 32_000_000 + (128 << 20));
    }
}
