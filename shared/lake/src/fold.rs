//! Folding new rows into indices and merging segments (design, "Indices").
//!
//! `plan_optimize_indices` → execute → our own stamped `CreateIndex`. `merge(n)` replaces a vector segment on every call, even
//! with nothing to fold, so the gate "rows unindexed or segments over the bound" is the planner's, not Lance's.

use std::sync::Arc;

use lance::Dataset;
use lance::dataset::transaction::Operation;
use lance::index::optimize::{IndexSegmentResult, plan_optimize_indices};
use lance_index::optimize::OptimizeOptions;
use lance_index::scalar::inverted::builder::is_staged_path;
use lance_table::format::IndexMetadata;

use crate::commit::{self, Outputs};
use crate::handle::Place;
use crate::stamp::Stamper;
use crate::{Error, Lake, Result, contain, index, manifest};

/// New segments of one index, not yet committed.
#[derive(Debug)]
pub struct Folded {
    /// The index.
    pub name: String,
    segments: Vec<IndexMetadata>,
    replaces: Vec<uuid::Uuid>,
    /// Directories that the tasks wrote for the merge; no version will name those that are no segment.
    staged: Vec<uuid::Uuid>,
    read_version: u64,
}

impl Folded {
    /// An index that was built anew over every row, in place of all its segments.
    pub(crate) fn whole(name: &str, segment: IndexMetadata, replaces: Vec<uuid::Uuid>, read_version: u64) -> Self {
        let staged = vec![segment.uuid];
        Self { name: name.to_string(), segments: vec![segment], replaces, staged, read_version }
    }

    /// Bytes of the new segments.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().flat_map(|s| s.files.iter().flatten()).map(|f| f.size_bytes).sum()
    }
}

/// Builds what folds all unindexed rows of one index and its latest `merge` segments into one. `None` when the library found
/// nothing to do.
///
/// # Errors
/// The library's; a panic is contained.
pub async fn build(lake: &Lake, dataset: &Arc<Dataset>, name: &str, merge: usize) -> Result<Option<Folded>> {
    let uri = dataset.uri().to_string();
    let doing = format!("folding new rows into index {name}");
    let work = async {
        let options = OptimizeOptions::merge(merge).index_names(vec![name.to_string()]);
        let plan = plan_optimize_indices(dataset, &options).await.map_err(|e| Error::lance(&doing, &uri, e))?;
        let mut results: Vec<IndexSegmentResult> = Vec::new();
        for task in &plan.tasks {
            results.extend(task.execute(dataset).await.map_err(|e| Error::lance(&doing, &uri, e))?);
        }
        let mut folded = Folded {
            name: name.to_string(),
            segments: Vec::new(),
            replaces: Vec::new(),
            staged: results.iter().map(|r| r.segment.uuid).collect(),
            read_version: plan.read_version,
        };
        for merge in &plan.merges {
            let merged = merge.execute(dataset, &results).await.map_err(|e| Error::lance(&doing, &uri, e))?;
            if let Some(result) = merged {
                // Still too few vectors to train: the same definition again, and a commit for nothing.
                if index::definition_only(&result.segment) {
                    continue;
                }
                folded.replaces.extend(result.replaces);
                folded.segments.push(committed_files(result.segment));
            }
        }
        Ok((!folded.segments.is_empty()).then_some(folded))
    };
    contain::contained(lake, &doing, &uri, work).await
}

/// The staged files of a full-text build are not part of the segment.
pub(crate) fn committed_files(mut segment: IndexMetadata) -> IndexMetadata {
    if index::kind_of(&segment) == "INVERTED"
        && let Some(files) = segment.files.as_mut()
    {
        files.retain(|f| !is_staged_path(&f.path));
    }
    segment
}

/// Commits folded indices in one stamped `CreateIndex`.
///
/// # Errors
/// As [`commit::commit`]; second value: bytes left on disk because the loss is not proven.
pub async fn land(
    lake: &Lake,
    place: &Place,
    dataset: &Arc<Dataset>,
    folded: Vec<Folded>,
    stamper: &Stamper,
    slice: u32,
) -> std::result::Result<Arc<Dataset>, (Error, u64)> {
    let read_version = folded.iter().map(|f| f.read_version).min().unwrap_or(dataset.version_id());
    let outputs = outputs_of(&folded);
    let work = async {
        let removed = removed(place, dataset, read_version, &folded).await?;
        let operation = Operation::CreateIndex {
            new_indices: folded.into_iter().flat_map(|f| f.segments).collect(),
            removed_indices: removed,
        };
        commit::commit(lake, dataset, read_version, operation, stamper.properties("optimize_indices", slice)).await
    };
    match work.await {
        Ok(landed) => Ok(Arc::new(landed)),
        Err(error) => {
            let stranded = commit::abandon(place, read_version, &error, &outputs).await;
            Err((error, stranded))
        }
    }
}

/// What was built, before its commit.
pub fn outputs_of(folded: &[Folded]) -> Outputs {
    let segments = folded.iter().flat_map(|f| f.segments.iter().map(|s| s.uuid).chain(f.staged.iter().copied()));
    Outputs {
        files: Default::default(),
        directories: segments.map(|uuid| format!("_indices/{uuid}")).collect(),
        bytes: folded.iter().map(Folded::bytes).sum(),
    }
}

/// Removes what was never offered to a commit: nobody can name it. Returns the bytes left behind.
pub async fn discard(place: &Place, folded: &[Folded]) -> u64 {
    commit::remove(place, &outputs_of(folded)).await
}

/// The replaced segments' metadata as the read version has them, also those that this build would filter out.
async fn removed(place: &Place, dataset: &Dataset, read_version: u64, folded: &[Folded]) -> Result<Vec<IndexMetadata>> {
    let location = dataset.manifest_location();
    let path = if dataset.version_id() == read_version {
        location.path.clone()
    } else {
        let (_, versions, _) = crate::look::reread_refs(place, read_version).await?;
        let relative = versions
            .get(&read_version)
            .ok_or_else(|| Error::new(crate::Kind::Conflict, format!("finding version {read_version}"), &place.uri))?;
        place.below(relative)?
    };
    let facts = manifest::read(place.objects().as_ref(), &place.uri, &path).await?;
    let going: Vec<uuid::Uuid> = folded.iter().flat_map(|f| f.replaces.iter().copied()).collect();
    Ok(facts.indices.into_iter().filter(|i| going.contains(&i.uuid)).collect())
}
