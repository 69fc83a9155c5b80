//! A build in segments: each covers some fragments, any replica may build one, and all are committed as one index.
//!
//! What all segments of a vector index share, partitions and codebook, is trained once, before they are handed out. Segments of
//! vectors and of full text are merged into one before the commit, for the library writes those in a form that only a merge
//! finishes; other types are committed as they are while they are few.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, Float32Array};
use arrow_schema::{DataType, Field};
use lance::Dataset;
use lance::index::DatasetIndexExt;
use lance::index::vector::StageParams;
use lance::index::vector::ivf::build_ivf_model;
use lance::index::vector::pq::build_pq_model;
use lance_table::format::{IndexMetadata, pb};
use prost::Message;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::execute::{self, Built, Reporter};
use super::{Definition, IndexKind as K, Work, params};
use crate::look::Look;
use crate::{Error, Kind, LANCE_VERSION, Lake, Result, contain, index};

/// The most segments of one build.
const MOST: u64 = 16;

/// What is handed to everybody who builds a segment. Names and numbers, and the trained model.
#[derive(Debug, Clone, PartialEq)]
pub struct Shared {
    /// What is said of it.
    pub head: Head,
    /// The trained model, for vectors.
    pub model: Option<Model>,
}

/// A shared build without its model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The Lance that planned it; another one's segments are not mixed with these.
    pub lance: String,
    /// The job, so that whoever builds a segment can see that it was taken back.
    pub job: String,
    /// The version that all segments read.
    pub read_version: u64,
    /// The index.
    pub definition: Definition,
    /// The fragments of each segment.
    pub segments: Vec<Vec<u32>>,
    /// What one segment may hold in memory.
    pub memory: u64,
    /// The part of it that the library is told to keep to.
    pub bounded: u64,
}

/// What segments of vectors share.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Partitions' centres, one after the other.
    pub centroids: Vec<f32>,
    /// The codebook of a product quantiser.
    pub codebook: Vec<f32>,
}

impl Shared {
    /// As bytes: the length of the head, the head as JSON, the lengths of centroids and codebook, and their floats.
    ///
    /// # Errors
    /// `Bug` when the head is no JSON.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let head = serde_json::to_vec(&self.head)
            .map_err(|e| Error::new(Kind::Bug, "writing a shared build", "").because(e))?;
        let mut out = Vec::new();
        let length = |n: usize| (n as u64).to_le_bytes();
        out.extend(length(head.len()));
        out.extend(head);
        if let Some(model) = &self.model {
            for floats in [&model.centroids, &model.codebook] {
                out.extend(length(floats.len()));
                out.extend(floats.iter().flat_map(|f| f.to_le_bytes()));
            }
        }
        Ok(out)
    }

    /// Reads what [`Shared::to_bytes`] wrote.
    ///
    /// # Errors
    /// `Damaged` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = || Error::new(Kind::Damaged, "reading a shared build", "");
        let mut at = bytes;
        let head = take(&mut at, 1).ok_or_else(wrong)?;
        let head: Head = serde_json::from_slice(head).map_err(|e| wrong().because(e))?;
        if at.is_empty() {
            return Ok(Self { head, model: None });
        }
        let mut floats = || -> Option<Vec<f32>> {
            let raw = take(&mut at, 4)?;
            Some(raw.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect())
        };
        let (centroids, codebook) = (floats().ok_or_else(wrong)?, floats().ok_or_else(wrong)?);
        Ok(Self { head, model: Some(Model { centroids, codebook }) })
    }
}

fn take<'a>(at: &mut &'a [u8], width: usize) -> Option<&'a [u8]> {
    let n = u64::from_le_bytes(at.get(..8)?.try_into().ok()?);
    let n = usize::try_from(n).ok()?.checked_mul(width)?;
    let (found, rest) = at.get(8..)?.split_at_checked(n)?;
    *at = rest;
    Some(found)
}

/// Whether an index of this definition can be built in segments here.
pub fn can_share(look: &Look, definition: &Definition) -> bool {
    let float = || {
        let field = look.head.manifest.schema.field_by_id(definition.field);
        matches!(field.map(Field::from).map(|f| f.data_type().clone()),
            Some(DataType::FixedSizeList(item, _)) if item.data_type() == &DataType::Float32)
    };
    match definition.kind {
        K::BTree | K::Bitmap | K::LabelList | K::ZoneMap | K::BloomFilter | K::NGram | K::Inverted => true,
        // Each segment of the others trains something of its own.
        K::IvfFlat | K::IvfPq => float() && look.head.rows() >= super::rows_to_train(definition).max(256),
        _ => false,
    }
}

/// Cuts the fragments into segments of about as many rows each. Pure.
pub fn cut(look: &Look, above: u64) -> Vec<Vec<u32>> {
    let bytes: u64 = look.fragments.iter().map(|f| f.bytes).sum();
    let wanted = (bytes / above.max(1) + 1).clamp(2, MOST).min(look.fragments.len() as u64).max(1);
    let rows: u64 = look.fragments.iter().map(|f| f.rows()).sum();
    let per = rows.div_ceil(wanted).max(1);
    let (mut out, mut open, mut held) = (Vec::new(), Vec::new(), 0);
    for fragment in &look.fragments {
        let Ok(id) = u32::try_from(fragment.id) else { continue };
        open.push(id);
        held += fragment.rows();
        if held >= per && (out.len() as u64) < wanted - 1 {
            out.push(std::mem::take(&mut open));
            held = 0;
        }
    }
    if !open.is_empty() {
        out.push(open);
    }
    out
}

/// Trains what the segments share; `None` where there is nothing to train.
///
/// # Errors
/// The library's; a panic is contained.
pub async fn train(lake: &Lake, dataset: &Arc<Dataset>, definition: &Definition, work: &Work) -> Result<Option<Model>> {
    if !definition.kind.is_vector() {
        return Ok(None);
    }
    let uri = dataset.uri().to_string();
    let doing = format!("training index {}", definition.says());
    let training = async {
        let wrong = |e: lance::Error| Error::lance(&doing, &uri, e);
        let progress = Arc::new(Reporter::new(work.on_progress.clone()));
        let (ivf, metric) = (params::ivf(&definition.params), params::metric(&definition.params));
        let (column, dim) = (definition.column.as_str(), definition.dimension as usize);
        let model = build_ivf_model(dataset, column, dim, metric, &ivf, None, progress).await.map_err(wrong)?;
        let codebook = match definition.kind {
            K::IvfPq => {
                let pq = params::pq(&definition.params);
                let trained = build_pq_model(dataset, column, dim, metric, &pq, Some(&model)).await.map_err(wrong)?;
                floats(trained.codebook.values())
            }
            _ => Some(Vec::new()),
        };
        let centroids = model.centroids_array().and_then(|c| floats(c.values()));
        match (centroids, codebook) {
            (Some(centroids), Some(codebook)) => Ok(Some(Model { centroids, codebook })),
            _ => Err(Error::new(Kind::Bug, &doing, &uri).remedy("build it whole: raise limits.distribute_above")),
        }
    };
    contain::contained(lake, &doing, &uri, training).await
}

fn floats(values: &ArrayRef) -> Option<Vec<f32>> {
    Some(values.as_primitive_opt::<Float32Type>()?.values().to_vec())
}

/// A built segment, as it travels.
#[derive(Debug, Clone)]
pub struct Segment(IndexMetadata);

impl Segment {
    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        pb::IndexMetadata::from(&self.0).encode_to_vec()
    }

    /// Reads a segment.
    ///
    /// # Errors
    /// `Damaged` when it is none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = || Error::new(Kind::Damaged, "reading a built segment", "");
        let proto = pb::IndexMetadata::decode(bytes).map_err(|e| wrong().because(e))?;
        Ok(Self(IndexMetadata::try_from(proto).map_err(|e| wrong().because(std::io::Error::other(e.to_string())))?))
    }

    /// Its directory under `_indices/`.
    pub fn uuid(&self) -> Uuid {
        self.0.uuid
    }
}

/// Builds one segment. `dataset` is opened at the version that the shared build names.
///
/// # Errors
/// `Refused` for fragments that the version does not have; else the library's.
pub async fn build(
    lake: &Lake,
    dataset: &Arc<Dataset>,
    shared: &Shared,
    segment: usize,
    work: &Work,
) -> Result<Segment> {
    let definition = &shared.head.definition;
    let wrong = |why: &str| {
        Error::new(Kind::Refused, format!("building segment {segment} of {}", definition.says()), dataset.uri())
            .because(std::io::Error::other(why.to_string()))
    };
    if shared.head.lance != LANCE_VERSION {
        return Err(wrong("it was planned by another Lance"));
    }
    let fragments = shared.head.segments.get(segment).ok_or_else(|| wrong("there is no such segment"))?;
    let known: Vec<u64> = dataset.fragments().iter().map(|f| f.id).collect();
    if fragments.iter().any(|f| !known.contains(&u64::from(*f))) {
        return Err(wrong("the version that it reads does not have its fragments"));
    }
    let fragments = Some(fragments.clone());
    let Some(model) = &shared.model else {
        return Ok(Segment(execute::one(lake, dataset, definition, fragments, work).await?));
    };
    let list = |values: &[f32], width: u32| -> Result<FixedSizeListArray> {
        let item = Arc::new(Field::new("item", DataType::Float32, true));
        let values: ArrayRef = Arc::new(Float32Array::from(values.to_vec()));
        let width = i32::try_from(width).unwrap_or(i32::MAX);
        FixedSizeListArray::try_new(item, width, values, None).map_err(|e| wrong("its model is damaged").because(e))
    };
    let mut vector = params::vector(definition);
    for stage in &mut vector.stages {
        match stage {
            StageParams::Ivf(ivf) => {
                let centroids = list(&model.centroids, definition.dimension)?;
                ivf.num_partitions = Some(centroids.len());
                ivf.centroids = Some(Arc::new(centroids));
            }
            StageParams::PQ(pq) => {
                let codebook: ArrayRef = Arc::new(Float32Array::from(model.codebook.clone()));
                pq.codebook = Some(codebook);
            }
            _ => {}
        }
    }
    Ok(Segment(execute::segment(lake, dataset, definition, &vector, fragments, work).await?))
}

/// Joins built segments into what one commit takes.
///
/// # Errors
/// The library's; a panic is contained.
pub async fn join(
    lake: &Lake,
    dataset: &Arc<Dataset>,
    definition: &Definition,
    segments: Vec<Segment>,
) -> Result<Built> {
    let uri = dataset.uri().to_string();
    let doing = format!("joining the segments of {}", definition.says());
    let staged: Vec<Uuid> = segments.iter().map(Segment::uuid).collect();
    let segments: Vec<IndexMetadata> = segments.into_iter().map(|s| s.0).collect();
    let read_version = dataset.version_id();
    let unfinished = definition.kind.is_vector() || definition.kind == K::Inverted;
    if segments.len() <= index::SEGMENT_BOUND && !unfinished {
        return Ok(Built { segments, staged, read_version });
    }
    let merging =
        async { dataset.merge_existing_index_segments(segments).await.map_err(|e| Error::lance(&doing, &uri, e)) };
    let mut merged = crate::fold::committed_files(contain::contained(lake, &doing, &uri, merging).await?);
    merged.name.clone_from(&definition.name);
    Ok(Built { segments: vec![merged], staged, read_version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_comes_back_as_it_was_and_anything_else_is_refused() {
        let definition = Definition {
            kind: K::IvfPq,
            column: "v".into(),
            field: 3,
            name: "v_idx".into(),
            params: serde_json::Map::new(),
            derived: vec!["metric".into()],
            dimension: 2,
        };
        let head = Head {
            lance: LANCE_VERSION.into(),
            job: "j".into(),
            read_version: 7,
            definition,
            segments: vec![vec![0, 1], vec![2]],
            memory: 1,
            bounded: 0,
        };
        let model = Some(Model { centroids: vec![1.0, -2.5], codebook: vec![0.25] });
        for shared in [Shared { head: head.clone(), model: None }, Shared { head, model }] {
            let bytes = shared.to_bytes().expect("bytes");
            assert_eq!(Shared::from_bytes(&bytes).expect("read"), shared);
            for cut in [0, 7, 8, bytes.len() - 1] {
                assert!(Shared::from_bytes(&bytes[..cut]).is_err(), "{cut} bytes");
            }
        }
        assert!(Shared::from_bytes(&[255; 64]).is_err());
        assert!(Segment::from_bytes(&[255; 64]).is_err());
    }
}
