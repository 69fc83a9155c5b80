//! Whether a task's pages are copied as they are, without being decoded.
//!
//! A copy costs a fifth of the CPU time of a rewrite and no memory to speak of, but the pages stay as small as the writers made
//! them, so it is taken only where a rewrite would not make a much better file. What Lance itself asks of a copy (one file
//! version, no deletions, overlays, blobs or evolved schemas, physical columns in the schema's order) it checks again on its own.
//!
//! On local disks alone: Lance 14 waits for each file's footer and for each column's pages in turn (`optimize/binary_copy.rs`),
//! which costs a round trip of the object store each, where a rewrite reads ahead.

use futures::stream::{self, StreamExt, TryStreamExt};
use lance::Dataset;
use lance_file::reader::FileReader;
use lance_io::scheduler::{ScanScheduler, SchedulerConfig};
use lance_table::format::Fragment;
use object_store::path::Path;

use super::Settings;
use crate::{Error, Result};

/// Pages of the output hold this many bytes or more on average: a scan of it needs at most one request for each.
const MEAN_PAGE_BYTES: u64 = 1 << 20;
/// The most pages of one column in the output, and so of source files: a scan of a narrow column alone asks for each of them.
const MOST_PAGES: usize = 256;
/// Footers read at once.
const READS: usize = 8;

/// Whether a copy makes a file about as good as a rewrite would. What cannot be read says no: the rewrite will show why.
pub(super) async fn worth_copying(dataset: &Dataset, fragments: &[Fragment], settings: &Settings) -> bool {
    if crate::uri::local_path(dataset.uri()).is_none() || !may_copy(fragments, settings) {
        return false;
    }
    match pages(dataset, fragments).await {
        Ok(columns) => are_large(&columns),
        Err(e) => {
            tracing::debug!(dataset = dataset.uri(), error = %e, "its pages are not copied");
            false
        }
    }
}

/// What the manifest tells. Pure. One output exactly: a copy cuts only between source files, so that more outputs would not have
/// the rows that were planned.
fn may_copy(fragments: &[Fragment], settings: &Settings) -> bool {
    let rows: u64 = fragments.iter().map(|f| f.num_rows().unwrap_or(0) as u64).sum();
    let whole = |f: &Fragment| {
        f.files.len() == 1
            && f.deletion_file.is_none()
            && f.overlays.is_empty()
            && f.files.iter().all(|d| d.base_id.is_none() && d.file_size_bytes.get().is_some())
    };
    let bytes: u64 =
        fragments.iter().flat_map(|f| &f.files).filter_map(|d| d.file_size_bytes.get()).map(u64::from).sum();
    // Every column of every file has a page at least.
    let least_pages: usize = fragments.iter().flat_map(|f| &f.files).map(|d| d.column_indices.len()).sum();
    let own_wish = ["compaction_mode", "max_bytes_per_file", "max_rows_per_group", "data_storage_version"]
        .iter()
        .any(|key| settings.table_config.contains_key(&format!("lance.compaction.{key}")));
    !own_wish
        && (2..=MOST_PAGES).contains(&fragments.len())
        && fragments.iter().all(whole)
        && rows > 0
        && rows / settings.target_rows.max(1) <= 1
        && bytes >= MEAN_PAGE_BYTES * least_pages as u64
}

/// Pages and bytes of each column, over all source files, from their footers.
async fn pages(dataset: &Dataset, fragments: &[Fragment]) -> Result<Vec<(usize, u64)>> {
    let (store, uri) = (dataset.object_store(None).await, dataset.uri());
    let store = store.map_err(|e| Error::lance("opening the object store", uri, e))?;
    let scheduler = ScanScheduler::new(store.clone(), SchedulerConfig::max_bandwidth(&store));
    let read = |fragment: &Fragment| {
        let (scheduler, files) = (scheduler.clone(), fragment.files.clone());
        async move {
            let mut out: Vec<(usize, u64)> = Vec::new();
            for file in &files {
                let path: Path = dataset.data_dir().join(file.path.as_str());
                let wrong = |e| Error::lance(format!("reading the pages of data/{}", file.path), uri, e);
                let open = scheduler.open_file(&path, &file.file_size_bytes).await.map_err(wrong)?;
                let metadata = FileReader::read_all_metadata(&open).await.map_err(wrong)?;
                out.extend(metadata.column_infos.iter().map(|c| {
                    let buffers = c.page_infos.iter().flat_map(|p| p.buffer_offsets_and_sizes.iter());
                    (c.page_infos.len(), buffers.map(|(_, size)| size).sum::<u64>())
                }));
            }
            Ok(out)
        }
    };
    stream::iter(fragments.iter().map(read))
        .buffered(READS)
        .try_fold(Vec::new(), |mut sum: Vec<(usize, u64)>, file: Vec<(usize, u64)>| async move {
            sum.resize(sum.len().max(file.len()), (0, 0));
            sum.iter_mut().zip(file).for_each(|(s, f)| *s = (s.0 + f.0, s.1 + f.1));
            Ok(sum)
        })
        .await
}

fn are_large(columns: &[(usize, u64)]) -> bool {
    let (pages, bytes) = columns.iter().fold((0, 0), |(p, b), c| (p + c.0 as u64, b + c.1));
    pages > 0 && bytes >= MEAN_PAGE_BYTES * pages && columns.iter().all(|c| c.0 <= MOST_PAGES)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lance_io::utils::CachedFileSize;
    use lance_table::format::overlay::{DataOverlayFile, OverlayCoverage};
    use lance_table::format::{DataFile, DeletionFile, DeletionFileType};

    use super::*;

    fn file(bytes: u64) -> DataFile {
        DataFile {
            path: "a.lance".into(),
            fields: Arc::from([0]),
            column_indices: Arc::from([0]),
            file_major_version: 2,
            file_minor_version: 1,
            file_size_bytes: CachedFileSize::new(bytes),
            base_id: None,
        }
    }

    /// Two fragments of 1,000 rows and 8 MiB, which may be copied, with a change to the second.
    fn may(change: impl FnOnce(&mut Fragment), key: Option<&str>, target_rows: u64) -> bool {
        let whole = |id| Fragment { files: vec![file(8 << 20)], physical_rows: Some(1_000), ..Fragment::new(id) };
        let mut fragments = [whole(0), whole(1)];
        change(&mut fragments[1]);
        let table_config = key.map(|k| (format!("lance.compaction.{k}"), "1".to_string())).into_iter().collect();
        may_copy(&fragments, &Settings { target_rows, widest_row_bytes: 8_000, concurrency: 1, table_config })
    }

    #[test]
    fn only_whole_files_of_the_dataset_itself_are_copied() {
        let as_is = |_: &mut Fragment| {};
        assert!(may(as_is, None, 10_000));
        assert!(may(as_is, Some("target_rows_per_fragment"), 10_000), "what a copy keeps as well");
        for key in ["compaction_mode", "max_bytes_per_file", "max_rows_per_group", "data_storage_version"] {
            assert!(!may(as_is, Some(key), 10_000), "{key}");
        }
        assert!(!may(as_is, None, 1_000), "two outputs");
        assert!(!may(|f| f.files.push(file(8 << 20)), None, 10_000), "columns in files of their own");
        assert!(!may(|f| f.files[0].base_id = Some(1), None, 10_000), "a file under another base");
        assert!(!may(|f| f.files[0].file_size_bytes = CachedFileSize::unknown(), None, 10_000), "no recorded size");
        assert!(
            !may(|f| f.files[0].column_indices = Arc::from([0; 20]), None, 10_000),
            "less than a MiB for each page"
        );
        let deleted = |f: &mut Fragment| {
            f.deletion_file = Some(DeletionFile {
                read_version: 1,
                id: 1,
                file_type: DeletionFileType::Array,
                num_deleted_rows: Some(1),
                base_id: None,
            });
        };
        assert!(!may(deleted, None, 10_000), "deleted rows");
        let overlaid = |f: &mut Fragment| {
            let coverage = OverlayCoverage::Shared(Arc::default());
            f.overlays.push(DataOverlayFile { data_file: file(1), coverage, committed_version: 2 });
        };
        assert!(!may(overlaid, None, 10_000), "values in an overlay");
        let settings =
            Settings { target_rows: 1 << 20, widest_row_bytes: 1, concurrency: 1, table_config: Default::default() };
        let many: Vec<Fragment> = (0..257)
            .map(|id| Fragment { files: vec![file(8 << 20)], physical_rows: Some(10), ..Fragment::new(id) })
            .collect();
        assert!(may_copy(&many[..256], &settings) && !may_copy(&many, &settings), "a page of each of too many files");
        assert!(!may_copy(&many[..1], &settings), "one file alone");
    }

    #[test]
    fn small_pages_and_many_pages_are_written_anew() {
        assert!(are_large(&[(200, 4 << 20), (200, 512 << 20)]));
        assert!(!are_large(&[(200, 4 << 20), (200, 300 << 20)]), "less than a MiB each");
        assert!(!are_large(&[(257, 4 << 20), (1, 512 << 20)]), "one column in too many pages");
        assert!(!are_large(&[(1, 1 << 19)]));
        assert!(!are_large(&[]), "no page at all");
    }
}
