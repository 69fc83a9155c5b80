//! A table's own clean-up hook never fires in a commit of ours, and every commit of ours is stamped.

use squire_lake::compact::{self, Settings};
use squire_lake::fold;
use squire_lake::sample::{Sample, SampleIndex};
use squire_lake::stamp::Stamper;

use super::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn every_commit_is_stamped_and_removes_no_version() {
    let (_dir, uri) = place();
    let mut sample = table(&uri, 4, 25).await;
    sample.index(SampleIndex::BTree).await.expect("indexed");
    sample.write(25, 500).await.expect("written");
    // Any client's commit from here on would remove every older version.
    sample.config(&[("lance.auto_cleanup.interval", "1"), ("lance.auto_cleanup.older_than", "0s")]).await.expect("set");
    let first = seen(&uri).await;
    let there: Vec<u64> = first.versions().iter().map(|(_, m)| m.version).collect();
    let lake = lake();
    let place = lake.place(&uri).await.expect("a place");
    let stamper = Stamper { estate: uuid::Uuid::new_v4(), run: uuid::Uuid::now_v7() };
    let head = first.dataset.clone().expect("opened");

    let folded = fold::build(&lake, &head, "id_idx", 1).await.expect("built").expect("something to fold");
    let head = fold::land(&lake, &place, &head, vec![folded], &stamper, 1).await.map_err(|e| e.0).expect("landed");
    let settings =
        Settings { target_rows: 1_000, widest_row_bytes: 100, concurrency: 2, table_config: Default::default() };
    let ids = first.fragments.iter().map(|f| f.id).collect::<Vec<u64>>();
    let done: Vec<_> =
        compact::execute(&lake, &head, &[ids], &settings).await.into_iter().map(|r| r.expect("rewritten")).collect();
    let landed = compact::land(&lake, &place, &head, done, (&stamper, 2), &squire_lake::commit::nobody_to_ask)
        .await
        .map_err(|e| e.0)
        .expect("landed");

    let last = seen(&uri).await;
    assert_eq!(last.version(), landed.after);
    let left: Vec<u64> = last.versions().iter().map(|(_, m)| m.version).collect();
    assert!(there.iter().all(|v| left.contains(v)), "the hook ran: {there:?} became {left:?}");
    let ours: Vec<&str> = last
        .versions()
        .iter()
        .filter(|(_, m)| m.version > first.version())
        .map(|(_, m)| m.stamp.as_ref().expect("stamped").step.as_str())
        .collect();
    assert_eq!(ours, ["optimize_indices", "reserve", "compact"]);
    assert_eq!((last.fragments.len(), last.indices[0].unindexed_rows, last.indices[0].segments.len()), (1, 0, 1));
    assert_eq!(Sample::ids(&lake, &uri, None).await.expect("HEAD reads").len(), 125);
}
