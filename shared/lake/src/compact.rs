//! Executing compaction tasks and committing them (design, "Compact and fold").
//!
//! The route is the proven one: execute Lance's tasks, reserve the ids, mark what would answer with dead rows, remap the indices
//! from outside, commit the rewrite at the tasks' read version. Every commit is stamped and runs without the table's hook.

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use lance::Dataset;
use lance::dataset::index::DatasetIndexRemapperOptions;
use lance::dataset::optimize::remapping::transpose_row_addrs;
use lance::dataset::optimize::{
    CompactionMode, CompactionOptions, CompactionTask, IndexRemapperOptions, RewriteResult, TaskData,
};
use lance::dataset::transaction::{Operation, RewriteGroup, RewrittenIndex};
use lance::index::DatasetIndexExt;
use lance_core::utils::row_addr_remap::{GroupInput, RowAddrRemap};
use lance_io::utils::CachedFileSize;
use lance_table::format::Fragment;
use object_store::ObjectStoreExt as _;
use roaring::RoaringTreemap;

use crate::commit::{self, MayCommit, Outputs};
use crate::handle::Place;
use crate::stamp::Stamper;
use crate::{Error, Kind, Lake, Result, contain};

mod carry;
mod dead;
mod pages;
pub mod stored;

/// Above this many rows the remap is kept compact: the direct map took 28 GB for 500 M rows (facts/pains, C6).
const DIRECT_REMAP_ROWS: u64 = 10_000_000;
/// The bytes that one batch of the reader aims at.
const BATCH_BYTES: u64 = 32 << 20;
/// How long one rewrite is committed again and again, each time with the rows deleted since carried over: nothing of it is made
/// anew, and whoever may forbid the commit was asked before the first one.
const COMMITTED_FOR: Duration = Duration::from_secs(10);

/// How tasks are executed.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Settings {
    /// Rows per output fragment; a task of R rows makes `max(1, R / target_rows)` fragments.
    pub target_rows: u64,
    /// The widest fragment's bytes per row, for the batch size.
    pub widest_row_bytes: u64,
    /// Tasks executed at once.
    pub concurrency: usize,
    /// The table's own `lance.compaction.*` wishes.
    pub table_config: HashMap<String, String>,
}

/// The result of one executed task, not yet committed.
#[derive(Debug, Clone)]
pub struct Rewritten {
    result: RewriteResult,
    /// It was read back from where every process of the fleet can read it.
    stored: bool,
    /// Its pages were copied.
    copied: bool,
}

impl Rewritten {
    /// Ids of the fragments it replaces.
    pub fn replaces(&self) -> Vec<u64> {
        self.result.original_fragments.iter().map(|f| f.id).collect()
    }

    /// Bytes of the new data files, as recorded.
    pub fn bytes(&self) -> u64 {
        self.result
            .new_fragments
            .iter()
            .flat_map(|f| &f.files)
            .filter_map(|f| f.file_size_bytes.get().map(u64::from))
            .sum()
    }

    /// Bytes of the data files that it replaces, as far as they are recorded.
    pub fn replaced_bytes(&self) -> u64 {
        let files = self.result.original_fragments.iter().flat_map(|f| &f.files);
        files.filter_map(|f| f.file_size_bytes.get().map(u64::from)).sum()
    }

    /// Whether pages were copied instead of rows rewritten; not known of stored results.
    pub fn is_copied(&self) -> bool {
        self.copied
    }

    /// New fragments.
    pub fn fragments_added(&self) -> usize {
        self.result.new_fragments.len()
    }
}

/// A landed rewrite.
#[derive(Debug)]
pub struct Landed {
    /// The handle at the new HEAD.
    pub dataset: Arc<Dataset>,
    /// The version just before the rewrite (W-1), for verification.
    pub before: u64,
    /// The version of the rewrite (W).
    pub after: u64,
    /// Old fragment ids and new ones, per group.
    pub groups: Vec<(Vec<u64>, Vec<u64>)>,
    /// Bytes written: data and remapped indices.
    pub bytes: u64,
    /// Names of the indices that were remapped.
    pub remapped: usize,
    /// Bytes that were written for this rewrite, are not part of it and stay behind: deletion files of earlier attempts of the
    /// commit, and remapped indices that somebody dropped.
    pub stranded: u64,
}

fn options(settings: &Settings, uri: &str) -> Result<CompactionOptions> {
    let mut options = CompactionOptions::default();
    options.apply_dataset_config(&settings.table_config).map_err(|e| {
        Error::lance("reading the table's lance.compaction keys", uri, e)
            .with_kind(Kind::Permanent)
            .remedy("correct or remove the key in the table's config")
    })?;
    let rows = usize::try_from(settings.target_rows).unwrap_or(usize::MAX).max(1);
    options.target_rows_per_fragment = rows;
    options.materialize_deletions = true;
    options.defer_index_remap = false;
    options.compaction_mode.get_or_insert(CompactionMode::Reencode);
    let batch = (BATCH_BYTES / settings.widest_row_bytes.max(1)).clamp(1, 8192);
    options.batch_size.get_or_insert(usize::try_from(batch).unwrap_or(8192));
    // A batch larger than the I/O buffer can deadlock the reader (Lance, CompactionOptions::io_buffer_size).
    let buffer = (batch * settings.widest_row_bytes.max(1)).max(BATCH_BYTES) * 4;
    options.io_buffer_size.get_or_insert(buffer);
    Ok(options)
}

/// Executes tasks (each a run of fragment ids of HEAD) and returns the results in order. A task that fails does not stop
/// the others.
pub async fn execute(
    lake: &Lake,
    dataset: &Arc<Dataset>,
    tasks: &[Vec<u64>],
    settings: &Settings,
) -> Vec<Result<Rewritten>> {
    let uri = dataset.uri().to_string();
    let options = match options(settings, &uri) {
        Ok(options) => options,
        Err(e) => return vec![Err(e)],
    };
    let by_id: HashMap<u64, &Fragment> = dataset.fragments().iter().map(|f| (f.id, f)).collect();
    stream::iter(tasks)
        .map(|ids| {
            let fragments: Option<Vec<Fragment>> = ids.iter().map(|id| by_id.get(id).map(|f| (*f).clone())).collect();
            let (options, uri) = (options.clone(), uri.clone());
            async move {
                let Some(fragments) = fragments else {
                    return Err(Error::new(Kind::Conflict, "finding the planned fragments", uri));
                };
                let work = rewrite(dataset, fragments, options, settings);
                let mut result = contain::contained(lake, "rewriting fragments", &uri, work).await?;
                let copied = record_sizes(lake, &uri, &mut result).await;
                tracing::debug!(dataset = uri, fragments = result.original_fragments.len(), copied, "a task is done");
                Ok(Rewritten { result, stored: false, copied })
            }
        })
        .buffered(settings.concurrency.max(1))
        .collect()
        .await
}

/// Executes one task: by a copy of its pages where that is as good, else by reading and writing its rows.
async fn rewrite(
    dataset: &Arc<Dataset>,
    fragments: Vec<Fragment>,
    options: CompactionOptions,
    settings: &Settings,
) -> Result<RewriteResult> {
    let copy = pages::worth_copying(dataset, &fragments, settings).await;
    let mut task = CompactionTask { task: TaskData { fragments }, read_version: dataset.version_id(), options };
    if copy {
        let own = task.options.compaction_mode.replace(CompactionMode::TryBinaryCopy);
        match task.execute(dataset).await.map_err(|e| Error::lance("copying pages", dataset.uri(), e)) {
            // Column buffers of unlike encodings (`optimize/binary_copy.rs`), which no writer of Lance 14 makes: no test gets here.
            Err(e) if e.kind() == Kind::Permanent => {
                tracing::warn!(dataset = dataset.uri(), error = %e, "its pages cannot be copied; its rows are rewritten");
                task.options.compaction_mode = own;
            }
            done => return done,
        }
    }
    task.execute(dataset).await.map_err(|e| Error::lance("rewriting fragments", dataset.uri(), e))
}

/// A copy of pages leaves the sizes of its files unrecorded (Lance 14, `optimize/binary_copy.rs`): health compares them with the
/// store's, and a reader without them asks the store. One that cannot be asked stays unrecorded. Whether there were any.
async fn record_sizes(lake: &Lake, uri: &str, result: &mut RewriteResult) -> bool {
    let mut any = false;
    for file in result.new_fragments.iter_mut().flat_map(|f| &mut f.files).filter(|f| f.file_size_bytes.get().is_none())
    {
        any = true;
        let size = async {
            let place = lake.place(uri).await?;
            let path = place.below(&format!("data/{}", file.path))?;
            place.objects().head(&path).await.map_err(|e| Error::store(format!("asking for {path}"), uri, e))
        };
        match size.await {
            Ok(meta) => file.file_size_bytes = CachedFileSize::new(meta.size),
            Err(e) => tracing::warn!(dataset = uri, error = %e, "the size of a new file is not recorded"),
        }
    }
    any
}

/// Commits executed tasks as stamped transactions: reserve, where rows stay dead in an index mark it, then rewrite at the tasks'
/// read version. Rows that somebody deleted in between are deleted in the new fragments, too.
///
/// `may_commit` is asked before each try of the rewrite's commit: the remap before it, and other people's commits, take their time.
///
/// # Errors
/// `Conflict` when somebody was first with more than that, `Refused` with what `may_commit` says. Second value: bytes that stay behind on disk because the loss is not proven. The data
/// files of stored results always stay: another process may have committed them, or may do so later.
pub async fn land(
    lake: &Lake,
    place: &Place,
    dataset: &Arc<Dataset>,
    done: Vec<Rewritten>,
    (stamper, slice): (&Stamper, u32),
    may_commit: &MayCommit<'_>,
) -> std::result::Result<Landed, (Error, u64)> {
    let mut outputs = outputs_of(&done);
    let stored = done.iter().any(|d| d.stored).then_some(outputs.bytes);
    let read_version = done.iter().map(|d| d.result.read_version).min().unwrap_or(dataset.version_id());
    let by = (stamper, slice, may_commit);
    match try_land(lake, place, dataset, done, by, read_version, &mut outputs).await {
        Ok(landed) => Ok(landed),
        Err(error) => {
            if let Some(data) = stored {
                outputs.files.retain(|path| !path.starts_with("data/"));
                outputs.bytes -= data;
            }
            let stranded = commit::abandon(place, read_version, &error, &outputs).await;
            Err((error, stranded + stored.unwrap_or(0)))
        }
    }
}

/// Removes results that were never offered to a commit: they cannot be named by anybody. Returns the bytes left behind.
/// Stored results stay.
pub async fn discard(place: &Place, done: Vec<Rewritten>) -> u64 {
    let (stored, own): (Vec<_>, Vec<_>) = done.into_iter().partition(|d| d.stored);
    outputs_of(&stored).bytes + commit::remove(place, &outputs_of(&own)).await
}

/// What executed tasks wrote, before their commit.
pub fn outputs_of(done: &[Rewritten]) -> Outputs {
    let files = done
        .iter()
        .flat_map(|d| &d.result.new_fragments)
        .flat_map(|f| &f.files)
        .map(|f| format!("data/{}", f.path))
        .collect();
    Outputs { files, directories: Default::default(), bytes: done.iter().map(Rewritten::bytes).sum() }
}

async fn try_land(
    lake: &Lake,
    place: &Place,
    dataset: &Arc<Dataset>,
    done: Vec<Rewritten>,
    (stamper, slice, may_commit): (&Stamper, u32, &MayCommit<'_>),
    read_version: u64,
    outputs: &mut Outputs,
) -> Result<Landed> {
    let mut results: Vec<RewriteResult> = done.into_iter().map(|d| d.result).collect();
    let leaves_dead = dead::leaves_any(dataset, &results);
    let n = results.iter().map(|r| r.new_fragments.len()).sum::<usize>() + usize::from(leaves_dead);
    let n = u32::try_from(n).map_err(|e| Error::new(Kind::Bug, "counting new fragments", dataset.uri()).because(e))?;
    let (handle, mut ids) =
        if n > 0 { commit::reserve(lake, dataset, n, stamper, slice).await? } else { (dataset.clone(), 0..0) };
    for fragment in results.iter_mut().flat_map(|r| &mut r.new_fragments) {
        fragment.id = ids.next().ok_or_else(|| Error::new(Kind::Bug, "numbering new fragments", dataset.uri()))?;
    }
    let marked = match ids.next().filter(|_| leaves_dead) {
        Some(gone) => dead::mark(lake, place, &handle, &results, gone, (stamper, slice)).await?.map(Arc::new),
        None => None,
    };
    let uri = dataset.uri().to_string();
    let rewritten_indices =
        contain::contained(lake, "remapping the indices", &uri, remap(&handle, &results, outputs)).await?;
    let made = Made { results, rewritten_indices, read_version };
    let properties = stamper.properties("compact", slice);
    let (landed, stranded) =
        commit_made(lake, place, (handle, marked), &made, properties, (may_commit, outputs)).await?;
    let stranded = stranded + remove_dropped(place, &landed, &made).await;
    let after = landed.version_id();
    let ids_of = |fragments: &[Fragment]| fragments.iter().map(|f| f.id).collect::<Vec<u64>>();
    Ok(Landed {
        dataset: Arc::new(landed),
        // Somebody's append may have landed between: W-1 is the version right below ours, whoever made it.
        before: after - 1,
        after,
        groups: made.results.iter().map(|r| (ids_of(&r.original_fragments), ids_of(&r.new_fragments))).collect(),
        bytes: outputs.bytes,
        remapped: made.rewritten_indices.len(),
        stranded,
    })
}

/// All that a rewrite wrote, numbered and remapped.
struct Made {
    results: Vec<RewriteResult>,
    rewritten_indices: Vec<RewrittenIndex>,
    read_version: u64,
}

/// Removes what an index was remapped to that somebody dropped before the commit: the rewrite lands without it. Returns the bytes
/// that stay.
async fn remove_dropped(place: &Place, landed: &Dataset, made: &Made) -> u64 {
    let Ok(indices) = landed.load_indices().await else { return 0 };
    let mut dropped = Outputs::default();
    for index in made.rewritten_indices.iter().filter(|r| indices.iter().all(|i| i.uuid != r.new_id)) {
        dropped.directories.insert(format!("_indices/{}", index.new_id));
        dropped.bytes += index.new_index_files.iter().flatten().map(|f| f.size_bytes).sum::<u64>();
    }
    if dropped.directories.is_empty() {
        return 0;
    }
    commit::remove_unnamed(place, made.read_version, &dropped).await
}

/// Commits, and again for as long as nothing but deletes was first. The second value: bytes of lost attempts' deletion files
/// that stay.
async fn commit_made(
    lake: &Lake,
    place: &Place,
    (handle, marked): (Arc<Dataset>, Option<Arc<Dataset>>),
    made: &Made,
    properties: HashMap<String, String>,
    (may_commit, outputs): (&MayCommit<'_>, &mut Outputs),
) -> Result<(Dataset, u64)> {
    let untouched = || {
        let group = |r: &RewriteResult| RewriteGroup {
            old_fragments: r.original_fragments.clone(),
            new_fragments: r.new_fragments.clone(),
        };
        made.results.iter().map(group).collect::<Vec<_>>()
    };
    let begun = Instant::now();
    // To Lance our own mark is somebody's index: the rewrite is committed above it, on the state there.
    let is_marked = marked.is_some();
    let (mut head, mut left) = (marked.unwrap_or_else(|| handle.clone()), Outputs::default());
    let mut lost: Option<Error> = None;
    loop {
        if let Some(error) = lost.take_if(|_| begun.elapsed() > COMMITTED_FOR) {
            return Err(error);
        }
        let mut written = Outputs::default();
        let carried =
            carry::onto(lake, place, (&handle, &head), (&made.results, made.read_version, is_marked), &mut written)
                .await;
        outputs.add(&written);
        let carried = carried.unwrap_or_else(|e| {
            tracing::warn!(error = %e, "rows deleted meanwhile cannot be carried over to the rewritten fragments");
            None
        });
        let (groups, at) = match carried {
            Some(groups) => (groups, head.version_id()),
            None => match lost.take() {
                None => (untouched(), made.read_version),
                Some(error) => return Err(error),
            },
        };
        if let Err(why) = may_commit().await {
            let refused = Error::new(Kind::Refused, "committing a rewrite", &place.uri).remedy(why).never_tried();
            // What an earlier try leaves open stays open.
            return Err(lost.unwrap_or(refused));
        }
        let rewritten_indices = made.rewritten_indices.clone();
        let operation = Operation::Rewrite { groups, rewritten_indices, frag_reuse_index: None };
        let error = match commit::commit(lake, &head, at, operation, properties.clone()).await {
            Ok(landed) => {
                let stranded = match &lost {
                    Some(error) => commit::abandon(place, made.read_version, error, &left).await,
                    None => 0,
                };
                return Ok((landed, stranded));
            }
            Err(error) => error,
        };
        if error.kind() != Kind::Conflict {
            return Err(error);
        }
        // What one attempt leaves open the next one does not prove.
        let error = if lost.is_none_or(|earlier| earlier.proves_loss()) { error } else { error.unproven() };
        match lake.open(&place.uri).await {
            Ok(now) => head = Arc::new(now),
            Err(_) => return Err(error),
        }
        left.add(&written);
        lost = Some(error);
    }
}

/// Remaps what addresses rows by position, from outside (facts: tried with BTREE, INVERTED and IVF_PQ, with and without
/// stable row ids). What was written is recorded in `outputs` before anything can fail later.
async fn remap(handle: &Dataset, results: &[RewriteResult], outputs: &mut Outputs) -> Result<Vec<RewrittenIndex>> {
    let uri = handle.uri();
    if results.iter().all(|r| r.row_addrs.is_none()) {
        return Ok(Vec::new());
    }
    let remapper = DatasetIndexRemapperOptions::default()
        .create_remapper(handle)
        .await
        .map_err(|e| Error::lance("preparing the index remap", uri, e))?;
    let Some(remapper) = remapper else { return Ok(Vec::new()) };
    let rows: u64 = results.iter().flat_map(|r| &r.new_fragments).map(|f| f.physical_rows.unwrap_or(0) as u64).sum();
    let map = row_map(results, rows <= DIRECT_REMAP_ROWS, uri)?;
    let affected: Vec<u64> = results.iter().flat_map(|r| &r.original_fragments).map(|f| f.id).collect();
    let remapped =
        remapper.remap_indices(map, &affected).await.map_err(|e| Error::lance("remapping the indices", uri, e))?;
    for index in &remapped {
        outputs.directories.insert(format!("_indices/{}", index.new_id));
        outputs.bytes += index.files.iter().flatten().map(|f| f.size_bytes).sum::<u64>();
    }
    Ok(remapped
        .into_iter()
        .map(|r| RewrittenIndex {
            old_id: r.old_id,
            new_id: r.new_id,
            new_index_details: r.index_details,
            new_index_version: r.index_version,
            new_index_files: r.files,
        })
        .collect())
}

fn row_map(results: &[RewriteResult], direct: bool, uri: &str) -> Result<RowAddrRemap> {
    let mut pairs = HashMap::new();
    let mut groups = Vec::new();
    for result in results {
        let Some(bytes) = &result.row_addrs else { continue };
        let addrs = RoaringTreemap::deserialize_from(&mut Cursor::new(bytes))
            .map_err(|e| Error::new(Kind::Bug, "reading the row addresses of a task", uri).because(e))?;
        if direct {
            pairs.extend(transpose_row_addrs(addrs, &result.original_fragments, &result.new_fragments));
            continue;
        }
        let narrow = |n: u64| {
            u32::try_from(n).map_err(|e| Error::new(Kind::Permanent, "narrowing a fragment id", uri).because(e))
        };
        groups.push(GroupInput {
            rewritten_old_row_addrs: addrs,
            old_frag_ids: result.original_fragments.iter().map(|f| narrow(f.id)).collect::<Result<_>>()?,
            new_frags: result
                .new_fragments
                .iter()
                .map(|f| Ok((narrow(f.id)?, narrow(f.physical_rows.unwrap_or(0) as u64)?)))
                .collect::<Result<_>>()?,
        });
    }
    if direct {
        Ok(RowAddrRemap::direct(pairs))
    } else {
        RowAddrRemap::compact(groups).map_err(|e| Error::lance("building the compact remap", uri, e))
    }
}
