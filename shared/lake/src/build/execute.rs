//! The build itself: no commit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use lance::Dataset;
use lance::index::DatasetIndexExt;
use lance_index::IndexType;
use lance_index::progress::IndexBuildProgress;
use lance_table::format::IndexMetadata;
use uuid::Uuid;

use super::{Definition, OnProgress, Progress, Work, params};
use crate::handle::Place;
use crate::{Error, Lake, Result, contain, fold, index};

/// What was built and not committed.
#[derive(Debug, Clone)]
pub struct Built {
    pub(super) segments: Vec<IndexMetadata>,
    /// Directories beside the segments' own, which no version will name.
    pub(super) staged: Vec<Uuid>,
    pub(super) read_version: u64,
}

impl Built {
    /// Bytes of the new segments.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().flat_map(|s| s.files.iter().flatten()).map(|f| f.size_bytes).sum()
    }

    /// Whether it is only a definition: the rows were too few to train.
    pub fn is_untrained(&self) -> bool {
        self.segments.iter().all(index::definition_only)
    }

    /// The version that was read.
    pub fn read_version(&self) -> u64 {
        self.read_version
    }
}

/// Builds an index over the whole table, at the version that `dataset` is opened at.
///
/// # Errors
/// The library's; a panic is contained.
pub async fn execute(lake: &Lake, dataset: &Arc<Dataset>, definition: &Definition, work: &Work) -> Result<Built> {
    let segment = one(lake, dataset, definition, None, work).await?;
    Ok(Built { segments: vec![segment], staged: vec![work.uuid], read_version: dataset.version_id() })
}

/// One segment: over some fragments, or the whole table.
pub(super) async fn one(
    lake: &Lake,
    dataset: &Arc<Dataset>,
    definition: &Definition,
    fragments: Option<Vec<u32>>,
    work: &Work,
) -> Result<IndexMetadata> {
    let params = params::lance(definition, (work.memory >> 20).max(64));
    segment(lake, dataset, definition, params.as_ref(), fragments, work).await
}

pub(super) async fn segment(
    lake: &Lake,
    dataset: &Arc<Dataset>,
    definition: &Definition,
    params: &dyn lance_index::IndexParams,
    fragments: Option<Vec<u32>>,
    work: &Work,
) -> Result<IndexMetadata> {
    let asked = Asked { column: &definition.column, name: &definition.name, kind: definition.kind.lance() };
    train(lake, dataset, &definition.says(), &asked, params, fragments, work).await
}

/// What the library is asked for.
pub(super) struct Asked<'a> {
    pub(super) column: &'a str,
    pub(super) name: &'a str,
    pub(super) kind: IndexType,
}

pub(super) async fn train(
    lake: &Lake,
    dataset: &Arc<Dataset>,
    says: &str,
    asked: &Asked<'_>,
    params: &dyn lance_index::IndexParams,
    fragments: Option<Vec<u32>>,
    work: &Work,
) -> Result<IndexMetadata> {
    let uri = dataset.uri().to_string();
    let doing = format!("building index {says}");
    // The builder takes the handle for itself, and only a commit would change it.
    let mut handle = Dataset::clone(dataset);
    let building = async {
        let columns = [asked.column];
        let mut builder = handle
            .create_index_builder(&columns, asked.kind, params)
            .name(asked.name.to_string())
            .replace(true)
            .progress(Arc::new(Reporter::new(work.on_progress.clone())));
        builder = match fragments {
            // The library names the directory of a part itself.
            Some(fragments) => builder.fragments(fragments),
            None => builder.index_uuid(work.uuid),
        };
        builder.execute_uncommitted().await.map_err(|e| Error::lance(&doing, &uri, e))
    };
    let built = contain::contained(lake, &doing, &uri, building).await?;
    Ok(fold::committed_files(built))
}

/// What lies in a build's directory: bytes and files. Whoever cut a build short asks this after discarding it.
///
/// # Errors
/// `Transient` when it cannot be listed.
pub async fn leftovers(place: &Place, uuid: Uuid) -> Result<(u64, usize)> {
    let sub = Place { path: place.below(&format!("_indices/{uuid}"))?, ..place.clone() };
    let listing = crate::listing::Listing::read(&sub).await?;
    Ok((listing.entries.iter().map(|e| e.size).sum(), listing.entries.len()))
}

/// The library's callbacks, handed on.
pub(super) struct Reporter {
    on_progress: OnProgress,
    stages: Mutex<HashMap<String, (Option<u64>, String)>>,
}

impl Reporter {
    pub(super) fn new(on_progress: OnProgress) -> Self {
        Self { on_progress, stages: Mutex::default() }
    }

    fn tell(&self, stage: &str, done: Option<u64>) {
        let known = self.stages.lock().unwrap_or_else(PoisonError::into_inner).get(stage).cloned();
        let (total, unit) = known.unwrap_or_default();
        let done = done.or(total).unwrap_or(0);
        (self.on_progress)(&Progress { stage: stage.to_string(), done, total, unit });
    }
}

impl std::fmt::Debug for Reporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reporter")
    }
}

#[async_trait]
impl IndexBuildProgress for Reporter {
    async fn stage_start(&self, stage: &str, total: Option<u64>, unit: &str) -> lance::Result<()> {
        let known = (total, unit.to_string());
        self.stages.lock().unwrap_or_else(PoisonError::into_inner).insert(stage.to_string(), known);
        self.tell(stage, Some(0));
        Ok(())
    }

    async fn stage_progress(&self, stage: &str, completed: u64) -> lance::Result<()> {
        self.tell(stage, Some(completed));
        Ok(())
    }

    async fn stage_complete(&self, stage: &str) -> lance::Result<()> {
        self.tell(stage, None);
        Ok(())
    }
}
