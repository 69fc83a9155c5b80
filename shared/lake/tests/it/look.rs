//! What a look says of real datasets.

use squire_lake::authority::Authority;
use squire_lake::index::State;
use squire_lake::look::{Look, Looked, look_again};
use squire_lake::sample::{Sample, SampleIndex};

use super::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn it_agrees_with_what_was_written() {
    let (_dir, uri) = place();
    let mut sample = table(&uri, 4, 25).await;
    sample.index(SampleIndex::BTree).await.expect("indexed");
    sample.write(25, 500).await.expect("written");
    sample.delete("id < 5").await.expect("deleted");
    sample.tag("v2", 2).await.expect("tagged");
    sample.branch("dev", 3).await.expect("branched");
    let look = seen(&uri).await;
    assert_eq!(look.authority, Authority::Linear);
    assert_eq!((look.version(), look.fragments.len(), look.head.rows()), (7, 5, 120));
    assert_eq!(look.fragments.iter().map(|f| f.deleted_rows).sum::<u64>(), 5);
    assert_eq!(look.tags["v2"].version, 2);
    assert_eq!(look.branches["dev"].1, 3);
    let index = &look.indices[0];
    assert_eq!((index.kind.as_str(), index.unindexed_rows, index.state), ("BTREE", 25, State::Lagging));
    assert!(look.missing.is_empty() && look.unreadable.is_empty() && look.nested.is_empty());
    assert!(look.manifests.iter().all(|m| m.operation.is_some()), "every transaction is inline");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_data_file_is_seen() {
    let (dir, uri) = place();
    table(&uri, 3, 10).await;
    let data = dir.path().join("t/data");
    let victim = std::fs::read_dir(&data).expect("data").flatten().next().expect("a file").path();
    std::fs::remove_file(&victim).expect("removed");
    let look = seen(&uri).await;
    assert_eq!(look.missing.len(), 1);
    assert!(victim.ends_with(look.missing[0].path.trim_start_matches("data/")));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_old_manifest_is_a_value_and_not_an_error() {
    let (dir, uri) = place();
    table(&uri, 3, 10).await;
    let versions = dir.path().join("t/_versions");
    // Version 1 has the largest V2 name.
    let oldest = std::fs::read_dir(&versions)
        .expect("versions")
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "manifest"))
        .max()
        .expect("a manifest");
    std::fs::write(&oldest, b"cut").expect("written");
    let look = seen(&uri).await;
    assert_eq!((look.version(), look.unreadable.len()), (3, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_reads_its_sources_files() {
    let (_dir, uri) = place();
    let clone = format!("{uri}-clone");
    let mut sample: Sample = table(&uri, 3, 10).await;
    sample.config(&[("lineage.dataset_id", "acme/orders")]).await.expect("named");
    sample.clone_to(&clone).await.expect("cloned");
    let look = seen(&clone).await;
    assert!(look.fragments.iter().all(|f| f.external));
    assert_eq!((look.config()["lineage.dataset_id"].as_str(), look.lineage()), ("acme/orders", None), "its source's");
    assert_eq!(look.reads.len(), 1);
    assert!(look.reads.keys().all(|t| t.may_be(&uri)));
    let source = seen(&uri).await;
    assert!(source.reads.is_empty());
    assert_eq!(source.lineage().as_deref(), Some("acme/orders"));
}

async fn again(uri: &str, earlier: &Look) -> Look {
    match look_again(&lake(), uri, chrono::Utc::now(), earlier).await.expect("a look") {
        Looked::Dataset(look) => *look,
        other => panic!("{other:?}"),
    }
}

/// Everything that is made of the manifests.
fn said(look: &Look) -> String {
    let mut paths: Vec<&str> = look.uses.paths().collect();
    paths.sort_unstable();
    let uses: Vec<_> = paths.into_iter().map(|p| (p.to_string(), look.uses.of(p).cloned())).collect();
    let mut sizes: Vec<_> = look.uses.sizes().map(|(p, size, by)| (p.to_string(), size, by)).collect();
    sizes.sort();
    let unseen = look.uses.unseen();
    format!("{:#?}", (&look.manifests, uses, sizes, &look.reads, &look.unreadable, look.version(), unseen))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_after_an_earlier_one_says_what_a_look_alone_says() {
    let (dir, uri) = place();
    let mut sample = table(&uri, 3, 20).await;
    sample.index(SampleIndex::BTree).await.expect("indexed");
    // A branch's manifests come after the main tree's: their places change when a version is added.
    sample.branch("side", 2).await.expect("branched");
    let first = seen(&uri).await;
    assert_eq!(said(&again(&uri, &first).await), said(&first), "nothing has happened");
    sample.write(20, 1_000).await.expect("written");
    sample.delete("id < 5").await.expect("deleted");
    let (second, alone) = (again(&uri, &first).await, seen(&uri).await);
    assert_eq!(said(&second), said(&alone));
    assert_eq!(second.manifests.len(), first.manifests.len() + 2);
    // A version went.
    std::fs::remove_file(dir.path().join(format!("t/_versions/{:020}.manifest", u64::MAX - 2))).expect("removed");
    assert_eq!(said(&again(&uri, &second).await), said(&seen(&uri).await));
    // The table was made anew: other manifests under the same names.
    std::fs::remove_dir_all(dir.path().join("t")).expect("removed");
    let (_other, before) = (table(&uri, 4, 20).await, seen(&uri).await);
    std::fs::remove_dir_all(dir.path().join("t")).expect("removed");
    table(&uri, 5, 20).await;
    assert_eq!(said(&again(&uri, &before).await), said(&seen(&uri).await));
}
