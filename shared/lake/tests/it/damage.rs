//! What is broken is said with what still reads and what to restore.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::Utc;
use squire_lake::classes::{Ages, classes};
use squire_lake::damage::{Damage, damage, ranges};
use squire_lake::refs::KeepSet;

use super::support::*;

async fn said(uri: &str) -> Option<Damage> {
    let look = seen(uri).await;
    let ages = Ages { now: Utc::now(), longest_write: Duration::ZERO };
    damage(&look, &classes(&look, &KeepSet::Complete(BTreeSet::new()), &ages))
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_said_which_versions_still_read_and_what_to_restore() {
    let (dir, uri) = place();
    let mut sample = table(&uri, 2, 10).await;
    assert_eq!(said(&uri).await, None);
    let second = seen(&uri).await.head.named().into_iter().rfind(|n| n.path.starts_with("data/")).expect("a file").path;
    let first = seen(&uri).await.head.named().into_iter().find(|n| n.path.starts_with("data/")).expect("a file").path;
    sample.write(10, 50).await.expect("written");
    sample.overwrite(5, 500).await.expect("overwritten");
    let root = dir.path().join("t");
    let kept = std::fs::read(root.join(&second)).expect("read");
    std::fs::remove_file(root.join(&second)).expect("removed");
    let found = said(&uri).await.expect("damage");
    assert_eq!((found.whole.as_slice(), found.broken.as_slice()), (&[1, 4][..], &[2, 3][..]), "{found:?}");
    assert_eq!((found.newest_whole(), found.restore.len()), (Some(4), 0), "HEAD is whole: {found:?}");
    // Another size is damage too; and what HEAD needs is what to restore.
    std::fs::write(root.join(&second), kept).expect("back");
    std::fs::write(root.join(&first), b"short").expect("cut");
    let head = seen(&uri).await.head.named().into_iter().find(|n| n.path.starts_with("data/")).expect("a file").path;
    std::fs::remove_file(root.join(&head)).expect("removed");
    let found = said(&uri).await.expect("damage");
    assert_eq!((found.whole.as_slice(), found.restore.as_slice()), (&[][..], &[head][..]), "{found:?}");
    assert_eq!(found.broken, [1, 2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_and_mixed_manifests_are_named() {
    let (dir, uri) = place();
    table(&uri, 3, 10).await;
    let versions = dir.path().join("t/_versions");
    let name = |v: u64| format!("{:020}.manifest", u64::MAX - v);
    std::fs::write(versions.join(name(1)), b"cut").expect("cut");
    std::fs::copy(versions.join(name(2)), versions.join("2.manifest")).expect("copied");
    let found = said(&uri).await.expect("damage");
    assert_eq!(found.unreadable, [format!("_versions/{}", name(1))]);
    assert_eq!(found.old_names, ["_versions/2.manifest"]);
}

#[test]
fn numbers_are_told_as_ranges() {
    assert_eq!(ranges(&[]), "");
    assert_eq!(ranges(&[1, 2, 3, 5, 7, 8]), "1–3, 5, 7–8");
}
