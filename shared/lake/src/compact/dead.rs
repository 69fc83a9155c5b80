//! Rows that an index holds and the table no longer has.
//!
//! With stable row ids neither vector nor full-text indices are remapped: after a rewrite they still hold the rows that were deleted
//! in the old fragments. Lance 14 masks those rows only where a fragment that the index covers has a deletion file or is gone, and a
//! rewrite takes both away. The dead rows then take the places of live ones among the best k: of 20 full-text hits none was left, of
//! 20 neighbours 16 (`index/prefilter.rs`; `compact_files` does the same).
//!
//! So such an index is made to say that it covers a fragment that is gone, before the rewrite: an id that was reserved and that
//! nobody can ever use. Lance then masks by the rows that are there, as it did for the deletion files. The next fold leaves the dead
//! rows out, and of a full-text index the id, too; of a vector index Lance keeps it. What somebody else's compaction left is found by
//! counting (`index.rs`) and left out by the next pass.

use std::collections::HashSet;
use std::sync::Arc;

use lance::Dataset;
use lance::dataset::optimize::RewriteResult;
use lance::dataset::transaction::Operation;
use lance_table::format::IndexMetadata;

use crate::commit;
use crate::handle::Place;
use crate::stamp::Stamper;
use crate::{Error, Kind, Lake, Result, index, manifest};

/// Whether a rewrite leaves rows behind that only indices hold.
pub(super) fn leaves_any(dataset: &Dataset, results: &[RewriteResult]) -> bool {
    dataset.manifest().uses_stable_row_ids()
        && results.iter().flat_map(|r| &r.original_fragments).any(|f| f.deletion_file.is_some())
}

/// Marks the indices of `dataset` that would answer with such rows, in one stamped commit; `gone` is a reserved id that no fragment
/// has. `None` where no index needs it.
///
/// # Errors
/// As [`commit::commit`].
pub(super) async fn mark(
    lake: &Lake,
    place: &Place,
    dataset: &Arc<Dataset>,
    results: &[RewriteResult],
    gone: u64,
    properties: (&Stamper, u32),
) -> Result<Option<Dataset>> {
    let uri = dataset.uri();
    let gone =
        u32::try_from(gone).map_err(|e| Error::new(Kind::Permanent, "narrowing a fragment id", uri).because(e))?;
    // Also those that this build would filter out.
    let facts = manifest::read(place.objects().as_ref(), uri, &dataset.manifest_location().path).await?;
    let there: HashSet<u64> = dataset.fragments().iter().map(|f| f.id).collect();
    let dead: HashSet<u64> = results
        .iter()
        .flat_map(|r| &r.original_fragments)
        .filter(|f| f.deletion_file.is_some())
        .map(|f| f.id)
        .collect();
    let removed_indices: Vec<IndexMetadata> =
        facts.indices.into_iter().filter(|i| needs_mark(i, &there, &dead)).collect();
    if removed_indices.is_empty() {
        return Ok(None);
    }
    let mut new_indices = removed_indices.clone();
    for index in &mut new_indices {
        index.fragment_bitmap.get_or_insert_default().insert(gone);
    }
    let operation = Operation::CreateIndex { new_indices, removed_indices };
    let (stamper, slice) = properties;
    let properties = stamper.properties("mark_indices", slice);
    commit::commit(lake, dataset, dataset.version_id(), operation, properties).await.map(Some)
}

/// Whether a segment answers with the best k, covers one of the fragments with dead rows, and covers none that is gone. Pure.
fn needs_mark(index: &IndexMetadata, there: &HashSet<u64>, dead: &HashSet<u64>) -> bool {
    let ranks = matches!(index::kind_of(index).as_str(), "VECTOR" | "INVERTED" | "LEGACY");
    // Without a bitmap everything up to the highest id is taken as covered.
    let Some(covered) = index.fragment_bitmap.as_ref().filter(|_| ranks) else { return false };
    let mut covered = covered.iter().map(u64::from);
    covered.clone().any(|id| dead.contains(&id)) && covered.all(|id| there.contains(&id))
}
