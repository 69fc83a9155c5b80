//! Which tasks are executed by a copy of pages, and that a copy is as good as a rewrite.

use squire_lake::compact::{self, Settings};
use squire_lake::sample::{Columns, Sample, SampleIndex};
use squire_lake::stamp::Stamper;
use squire_lake::verify::{self, Rewrite};

use squire_test_support::Server;

use super::support::*;

fn settings(target_rows: u64) -> Settings {
    Settings { target_rows, widest_row_bytes: 5_000, concurrency: 2, table_config: Default::default() }
}

/// Fragments of 1,500 rows with vectors of 4 KiB: pages of six MB beside small ones.
async fn wide(uri: &str, fragments: i64) -> Sample {
    let mut sample = Sample::new(uri, Columns { vector: 1_024, page: 0 });
    for i in 0..fragments {
        sample.write(1_500, i * 1_500).await.expect("written");
    }
    sample
}

/// Whether merging all fragments copies pages; what comes out is landed and verified.
async fn is_copied(uri: &str, settings: &Settings) -> bool {
    let (lake, first) = (lake(), seen(uri).await);
    let place = lake.place(uri).await.expect("a place");
    let (head, ids) = (first.dataset.clone().expect("opened"), first.fragments.iter().map(|f| f.id).collect());
    let wanted = Sample::ids(&lake, uri, None).await.expect("read");
    let done: Vec<_> =
        compact::execute(&lake, &head, &[ids], settings).await.into_iter().map(|r| r.expect("rewritten")).collect();
    let copied = done.iter().all(compact::Rewritten::is_copied);
    let bytes: u64 = done.iter().map(compact::Rewritten::bytes).sum();
    let stamper = Stamper { estate: uuid::Uuid::new_v4(), run: uuid::Uuid::now_v7() };
    let landed = compact::land(&lake, &place, &head, done, (&stamper, 1), &squire_lake::commit::nobody_to_ask)
        .await
        .map_err(|e| e.0)
        .expect("landed");
    let last = seen(uri).await;
    let rewrite = Rewrite { before: landed.before, after: landed.after, groups: landed.groups };
    let checks = verify::verify(&lake, uri, &rewrite, &last.indices).await.expect("the same answers");
    assert_eq!(checks.sampled_rows, 64);
    assert_eq!(Sample::ids(&lake, uri, None).await.expect("read"), wanted);
    assert!(last.missing.is_empty(), "{:?}", last.missing);
    let mut live = 0;
    for file in last.head.manifest.fragments.iter().flat_map(|f| &f.files) {
        let stored = last.listing.get(&format!("data/{}", file.path)).expect("listed").size;
        assert_eq!(file.file_size_bytes.get().map(u64::from), Some(stored), "its size is recorded");
        live += stored;
    }
    assert_eq!(bytes, live, "what was written is counted, also where pages were copied");
    copied
}

#[tokio::test(flavor = "multi_thread")]
async fn large_pages_are_copied_with_their_indices_and_answer_the_same() {
    let (_dir, uri) = place();
    let mut sample = wide(&uri, 3).await;
    sample.index(SampleIndex::BTree).await.expect("indexed");
    sample.index(SampleIndex::FullText).await.expect("indexed");
    assert!(is_copied(&uri, &settings(1_000_000)).await);
    let last = seen(&uri).await;
    assert_eq!((last.fragments.len(), last.indices.len()), (1, 2));
    assert!(last.indices.iter().all(|i| i.unindexed_rows == 0), "{:?}", last.indices);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_copy_would_leave_worse_is_written_anew() {
    // Small pages.
    let (_dir, uri) = place();
    table(&uri, 3, 1_500).await;
    assert!(!is_copied(&uri, &settings(1_000_000)).await, "small pages");
    // Deleted rows.
    let (_dir, uri) = place();
    wide(&uri, 3).await.delete("id % 100 = 0").await.expect("deleted");
    assert!(!is_copied(&uri, &settings(1_000_000)).await, "deleted rows");
    // A dropped column, whose bytes a copy would keep.
    let (_dir, uri) = place();
    wide(&uri, 3).await.drop_column("kind").await.expect("dropped");
    assert!(!is_copied(&uri, &settings(1_000_000)).await, "a dropped column");
    // More outputs than one: a copy cuts between source files only.
    let (_dir, uri) = place();
    wide(&uri, 3).await;
    assert!(!is_copied(&uri, &settings(2_250)).await, "two outputs");
    assert_eq!(seen(&uri).await.fragments.iter().map(|f| f.physical_rows).collect::<Vec<_>>(), [2_250, 2_250]);
    // The owner's own wish.
    let (_dir, uri) = place();
    wide(&uri, 3).await;
    let wish = [("lance.compaction.compaction_mode".to_string(), "reencode".to_string())];
    assert!(!is_copied(&uri, &Settings { table_config: wish.into(), ..settings(1_000_000) }).await, "its own wish");
}

/// There a copy waits for the footer of one file after the other, where a rewrite reads ahead.
#[tokio::test(flavor = "multi_thread")]
async fn on_an_object_store_rows_are_rewritten() {
    let Some(server) = Server::shared("on_an_object_store_rows_are_rewritten") else { return };
    let (dir, uri) = place();
    wide(&uri, 3).await;
    let files = super::quarantine::tree(&dir.path().join("t")).into_iter();
    let name = |path: std::path::PathBuf| path.to_str().expect("UTF-8").to_string();
    let objects = files.map(|(path, bytes)| (name(path), bytes.into())).collect();
    tokio::task::block_in_place(|| server.bucket().write("copies/t", &objects));
    let options: std::collections::HashMap<String, String> = server.options().clone().into_iter().collect();
    let lake = squire_lake::Lake::new(std::sync::Arc::new(move |_: &str| options.clone()), 256 << 20);
    let head = std::sync::Arc::new(lake.open("s3://lake/copies/t").await.expect("opened"));
    let ids = head.fragments().iter().map(|f| f.id).collect();
    let done = compact::execute(&lake, &head, &[ids], &settings(1_000_000)).await;
    assert!(done.iter().all(|r| r.as_ref().is_ok_and(|r| !r.is_copied())), "{done:?}");
}
