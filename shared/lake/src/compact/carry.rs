//! Rows that somebody deleted while their fragments were rewritten: the deletion is carried over to the new fragments.
//!
//! Lance gives a rewrite up for one row that was deleted in any of its fragments. But a rewrite keeps the order of the rows that
//! it reads, so that the place of every old row in the new fragments is known, and a deletion file beside them says the same as if
//! the delete had come after the rewrite: row ids, remapped indices and later deletes meet what they meet then.
//!
//! States are compared: the old fragments are what they were but for more deleted rows, the schema has not changed, and the indices
//! are those that were remapped. Of a fragment that is gone no row is there any more, be they deleted or elsewhere. Whatever else
//! happened is a lost race as before.

use std::collections::{BTreeMap, HashMap};

use lance::Dataset;
use lance::dataset::optimize::RewriteResult;
use lance::dataset::transaction::RewriteGroup;
use lance::index::DatasetIndexExt;
use lance_core::utils::deletion::DeletionVector;
use lance_io::utils::CachedFileSize;
use lance_table::format::Fragment;
use lance_table::io::deletion::{relative_deletion_file_path, write_deletion_file};
use roaring::RoaringBitmap;
use uuid::Uuid;

use crate::commit::Outputs;
use crate::handle::Place;
use crate::listing::Listing;
use crate::{Error, Lake, Result};

/// Whether HEAD has the rows of a rewrite's old fragments as they were read, but for rows deleted since: at least half of them, or
/// the new files would hold more dead rows than live ones.
pub(super) fn holds(head: &Dataset, result: &RewriteResult) -> bool {
    let now: HashMap<u64, &Fragment> = head.fragments().iter().map(|f| (f.id, f)).collect();
    let (mut read, mut live, mut there) = (0, 0, false);
    for old in &result.original_fragments {
        read += old.num_rows().unwrap_or(0);
        if let Some(now) = now.get(&old.id) {
            if !is_same_but_for_deletions(old, now) {
                return false;
            }
            live += now.num_rows().unwrap_or(0);
            there = true;
        }
    }
    there && 2 * live >= read
}

fn is_same_but_for_deletions(old: &Fragment, now: &Fragment) -> bool {
    let bare = |fragment: &Fragment| {
        let mut bare = fragment.clone();
        bare.deletion_file = None;
        // Filled in by whoever asks the store; the path tells files apart.
        bare.files.iter_mut().for_each(|f| f.file_size_bytes = CachedFileSize::unknown());
        bare
    };
    let deleted = |f: &Fragment| f.deletion_file.as_ref().map_or(Some(0), |d| d.num_deleted_rows);
    bare(old) == bare(now)
        && match (deleted(old), deleted(now)) {
            // A restore brings rows back.
            (Some(before), Some(after)) => before < after || old.deletion_file == now.deletion_file,
            _ => false,
        }
}

/// The groups of a rewrite as they are committed on `head`, with the rows deleted since its read version deleted in the new
/// fragments, whose ids are set; its indices were remapped as `remapped` had them. `None` where no row was deleted and the rewrite
/// need not be on `head`, or more has happened than that.
///
/// What is written is recorded in `written`.
pub(super) async fn onto(
    lake: &Lake,
    place: &Place,
    (remapped, head): (&Dataset, &Dataset),
    (results, read_version, must_follow): (&[RewriteResult], u64, bool),
    written: &mut Outputs,
) -> Result<Option<Vec<RewriteGroup>>> {
    let now: HashMap<u64, &Fragment> = head.fragments().iter().map(|f| (f.id, f)).collect();
    let old = || results.iter().flat_map(|r| &r.original_fragments);
    let moved = |f: &Fragment| now.get(&f.id).is_none_or(|now| now.deletion_file != f.deletion_file);
    if !(must_follow || old().any(moved)) || !results.iter().all(|r| holds(head, r)) {
        return Ok(None);
    }
    let read = lake.open_version(&place.uri, read_version).await?;
    if read.schema() != head.schema() || !indices_follow(&read, remapped, head, results).await? {
        return Ok(None);
    }
    let mut groups = Vec::new();
    for result in results {
        let mut sources = Vec::new();
        for old in &result.original_fragments {
            let Some(source) = source(&read, head, old, now.get(&old.id).copied()).await? else { return Ok(None) };
            sources.push(source);
        }
        let made: Option<Vec<(u64, u64)>> =
            result.new_fragments.iter().map(|f| Some((f.id, f.physical_rows? as u64))).collect();
        let Some(deleted) = made.and_then(|made| map(&sources, &made)) else { return Ok(None) };
        let old_fragments: Vec<Fragment> =
            result.original_fragments.iter().filter_map(|f| now.get(&f.id).map(|f| (*f).clone())).collect();
        groups.push((result, old_fragments, deleted));
    }
    let mut out = Vec::new();
    for (result, old_fragments, mut deleted) in groups {
        let mut new_fragments = result.new_fragments.clone();
        for fragment in &mut new_fragments {
            if let Some(rows) = deleted.remove(&fragment.id) {
                delete(place, head.version_id(), fragment, rows, written).await?;
            }
        }
        out.push(RewriteGroup { old_fragments, new_fragments });
    }
    Ok(Some(out))
}

/// An old fragment: its live rows when it was read, which rows were deleted then, and which since.
#[derive(Debug, Default)]
struct Source {
    id: u64,
    rows: u64,
    before: RoaringBitmap,
    since: RoaringBitmap,
}

/// `None` where a count is not recorded, it was not read at this version, or a row is back.
async fn source(read: &Dataset, head: &Dataset, old: &Fragment, now: Option<&Fragment>) -> Result<Option<Source>> {
    let (Some(physical), Some(rows)) = (old.physical_rows, old.num_rows()) else { return Ok(None) };
    let mut out = Source { id: old.id, rows: rows as u64, ..Source::default() };
    if now.is_some_and(|now| now.deletion_file == old.deletion_file) {
        return Ok(Some(out));
    }
    // Results can have been read at several versions, and `read` is the first of them.
    if !read.fragments().iter().any(|f| f.id == old.id && f.deletion_file == old.deletion_file) {
        return Ok(None);
    }
    out.before = deletions(read, old.id).await?;
    let Ok(physical) = u32::try_from(physical) else { return Ok(None) };
    let after = match now {
        Some(_) => deletions(head, old.id).await?,
        None => (0..physical).collect(),
    };
    let grows = out.before.is_subset(&after);
    out.since = after - &out.before;
    Ok(grows.then_some(out))
}

/// Where the rows deleted since lie in the new fragments (id and rows each). Pure.
fn map(sources: &[Source], made: &[(u64, u64)]) -> Option<BTreeMap<u64, RoaringBitmap>> {
    if sources.iter().all(|s| s.since.is_empty()) {
        return Some(BTreeMap::new());
    }
    // Lance pairs sorted addresses with new rows, so it reads in this order.
    let sorted = sources.windows(2).all(|pair| pair[0].id < pair[1].id);
    let rows = |n: u64, (_, rows): &(u64, u64)| n + rows;
    if !sorted || sources.iter().map(|s| s.rows).sum::<u64>() != made.iter().fold(0, rows) {
        return None;
    }
    let mut out: BTreeMap<u64, RoaringBitmap> = BTreeMap::new();
    let (mut start, mut at, mut end) = (0, 0, made.first().map_or(0, |m| m.1));
    for source in sources {
        for offset in &source.since {
            // Its rank among the rows that were read.
            let row = start + u64::from(offset) - source.before.rank(offset);
            while row >= end {
                at += 1;
                end += made.get(at)?.1;
            }
            let (id, rows) = made[at];
            out.entry(id).or_default().insert(u32::try_from(row + rows - end).ok()?);
        }
        start += source.rows;
    }
    let all_gone = made.iter().any(|(id, rows)| out.get(id).is_some_and(|gone| gone.len() == *rows));
    (!all_gone).then_some(out)
}

async fn deletions(dataset: &Dataset, id: u64) -> Result<RoaringBitmap> {
    let fragment = usize::try_from(id).ok().and_then(|id| dataset.get_fragment(id));
    let Some(fragment) = fragment else { return Ok(RoaringBitmap::new()) };
    let vector = fragment
        .get_deletion_vector()
        .await
        .map_err(|e| Error::lance(format!("reading the deletions of fragment {id}"), dataset.uri(), e))?;
    Ok(vector.map(|v| RoaringBitmap::from(v.as_ref())).unwrap_or_default())
}

/// Whether the indices that were remapped are those of `head`, and can be committed with the rewrite.
async fn indices_follow(read: &Dataset, remapped: &Dataset, head: &Dataset, results: &[RewriteResult]) -> Result<bool> {
    let there: RoaringBitmap = head.fragments().iter().filter_map(|f| u32::try_from(f.id).ok()).collect();
    let groups: Vec<RoaringBitmap> = results
        .iter()
        .map(|r| {
            r.original_fragments.iter().filter_map(|f| u32::try_from(f.id).ok()).collect::<RoaringBitmap>() & &there
        })
        .collect();
    let all = groups.iter().fold(RoaringBitmap::new(), |all, group| all | group);
    let now = coverage(head, &all).await?;
    if coverage(remapped, &all).await? != now {
        return Ok(false);
    }
    // Addresses were only kept where there was an index when the rows were read.
    if results.iter().any(|r| r.row_addrs.is_none()) {
        return Ok(coverage(read, &all).await? == now);
    }
    Ok(now.values().flatten().all(|covered| groups.iter().all(|group| wholly(covered, group))))
}

/// Lance commits no group of which an index covers a part.
fn wholly(covered: &RoaringBitmap, group: &RoaringBitmap) -> bool {
    covered.is_disjoint(group) || group.is_subset(covered)
}

/// What every index covers of these fragments.
async fn coverage(dataset: &Dataset, ids: &RoaringBitmap) -> Result<BTreeMap<Uuid, Option<RoaringBitmap>>> {
    let indices = dataset.load_indices().await;
    let indices = indices.map_err(|e| Error::lance("reading its indices", dataset.uri(), e))?;
    Ok(indices.iter().map(|i| (i.uuid, i.fragment_bitmap.as_ref().map(|b| b & ids))).collect())
}

/// Writes the deletion file of a new fragment.
async fn delete(
    place: &Place,
    version: u64,
    fragment: &mut Fragment,
    rows: RoaringBitmap,
    written: &mut Outputs,
) -> Result<()> {
    let n = rows.len();
    let vector: DeletionVector = rows.into_iter().collect();
    // About what it takes; nobody says exactly.
    let bytes = 4 * n;
    match write_deletion_file(&place.path, fragment.id, version, &vector, &place.store).await {
        Ok(file) => {
            if let Some(file) = &file {
                written.files.insert(relative_deletion_file_path(fragment.id, file));
                written.bytes += bytes;
            }
            fragment.deletion_file = file;
            Ok(())
        }
        Err(e) => {
            let lost = of_fragment(place, fragment.id).await;
            written.bytes += bytes * lost.len() as u64;
            written.files.extend(lost);
            Err(Error::lance(format!("deleting {n} rows of new fragment {}", fragment.id), &place.uri, e))
        }
    }
}

/// Deletion files of a fragment whose id was reserved for this rewrite: nobody else writes any. Where they cannot be listed there is
/// nothing to name, and reconcile finds them.
async fn of_fragment(place: &Place, id: u64) -> Vec<String> {
    let Ok(listing) = Listing::read_dirs(place, &["_deletions"]).await else { return Vec::new() };
    let own = format!("_deletions/{id}-");
    listing.entries.into_iter().map(|e| e.path).filter(|path| path.starts_with(&own)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(id: u64, rows: u64, before: &[u32], since: &[u32]) -> Source {
        Source { id, rows, before: before.iter().copied().collect(), since: since.iter().copied().collect() }
    }

    fn mapped(sources: &[Source], made: &[(u64, u64)]) -> Option<Vec<(u64, Vec<u32>)>> {
        map(sources, made).map(|m| m.into_iter().map(|(id, rows)| (id, rows.into_iter().collect())).collect())
    }

    #[test]
    fn a_row_is_found_where_the_rewrite_has_put_it() {
        // Ten rows, of which 2 and 5 were gone when it was read; then eight more.
        let sources = [source(1, 8, &[2, 5], &[0, 3, 9]), source(4, 8, &[], &[7])];
        assert_eq!(mapped(&sources, &[(20, 16)]), Some(vec![(20, vec![0, 2, 7, 15])]));
        assert_eq!(mapped(&sources, &[(20, 7), (21, 9)]), Some(vec![(20, vec![0, 2]), (21, vec![0, 8])]));
        assert_eq!(mapped(&sources, &[(20, 1), (21, 1), (22, 14)]), None, "all of fragment 20 is gone");
        assert_eq!(mapped(&sources, &[(20, 15)]), None, "a row less than was read");
        assert_eq!(mapped(&[source(4, 1, &[], &[0]), source(1, 1, &[], &[])], &[(20, 2)]), None, "another order");
        assert_eq!(mapped(&[source(4, 2, &[], &[]), source(1, 2, &[], &[])], &[(20, 4)]), Some(vec![]), "none is gone");
    }

    #[test]
    fn an_index_covers_all_of_a_group_or_nothing_of_it() {
        let of = |ids: &[u32]| ids.iter().copied().collect::<RoaringBitmap>();
        assert!(
            wholly(&of(&[1, 2, 3]), &of(&[1, 2])) && wholly(&of(&[3]), &of(&[1, 2])) && wholly(&of(&[1]), &of(&[]))
        );
        assert!(!wholly(&of(&[2, 3]), &of(&[1, 2])));
    }
}
