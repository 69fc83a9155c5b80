//! The outputs of a commit that was refused are removed only when nobody names them.

use std::collections::BTreeSet;
use std::sync::Arc;

use lance::dataset::optimize::{CompactionOptions, RewriteResult, plan_compaction};
use lance::dataset::transaction::{Operation, RewriteGroup};
use squire_lake::commit::{self, Outputs};
use squire_lake::oracle::{self, Leftovers};
use squire_lake::sample::Sample;
use squire_lake::stamp::Stamper;

use super::support::*;

/// A rewrite as another process would have stored it, with its ids reserved, and the names of its files.
struct Stored {
    operation: Operation,
    read_version: u64,
    outputs: Outputs,
    handle: Arc<commit::Handle>,
    stamper: Stamper,
}

async fn stored(uri: &str) -> Stored {
    table(uri, 4, 25).await;
    let lake = lake();
    let head = Arc::new(lake.open(uri).await.expect("opened"));
    let plan = plan_compaction(&head, &CompactionOptions::default()).await.expect("planned");
    let task = plan.compaction_tasks().next().expect("a task");
    let text = serde_json::to_string(&task.execute(&head).await.expect("executed")).expect("stored");
    let mut result: RewriteResult = serde_json::from_str(&text).expect("read back");
    let stamper = Stamper { estate: uuid::Uuid::new_v4(), run: uuid::Uuid::now_v7() };
    let (handle, mut ids) = commit::reserve(&lake, &head, 1, &stamper, 1).await.expect("reserved");
    result.new_fragments[0].id = ids.next().expect("an id");
    let files: BTreeSet<String> =
        result.new_fragments.iter().flat_map(|f| &f.files).map(|f| format!("data/{}", f.path)).collect();
    let group = RewriteGroup { old_fragments: result.original_fragments, new_fragments: result.new_fragments };
    let operation = Operation::Rewrite { groups: vec![group], rewritten_indices: vec![], frag_reuse_index: None };
    let outputs = Outputs { files, bytes: 1_000, ..Outputs::default() };
    Stored { operation, read_version: result.read_version, outputs, handle, stamper }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_stored_rewrite_committed_twice_leaves_head_whole() {
    let (_dir, uri) = place();
    let s = stored(&uri).await;
    let lake = lake();
    let place = lake.place(&uri).await.expect("a place");
    let land =
        || commit::commit(&lake, &s.handle, s.read_version, s.operation.clone(), s.stamper.properties("compact", 1));
    let landed = land().await.expect("it lands once").version_id();
    let error = land().await.expect_err("it does not land twice");
    assert_eq!(error.kind(), squire_lake::Kind::Conflict, "{error}");
    // The conflict is about our own commit: what it wrote is HEAD.
    assert_eq!(commit::abandon(&place, s.read_version, &error, &s.outputs).await, 1_000, "all stays, and is said to");
    assert_eq!(seen(&uri).await.version(), landed);
    assert_eq!(Sample::ids(&lake, &uri, None).await.expect("HEAD reads").len(), 100);
    assert_eq!(oracle::check(&lake, &uri, Leftovers::None).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outputs_of_a_proven_loss_are_removed() {
    let (_dir, uri) = place();
    let s = stored(&uri).await;
    let lake = lake();
    let place = lake.place(&uri).await.expect("a place");
    let mut other = Sample::open(&lake, &uri, Default::default()).await.expect("opened");
    other.delete("id < 10").await.expect("deleted");
    let work =
        commit::commit(&lake, &s.handle, s.read_version, s.operation.clone(), s.stamper.properties("compact", 1));
    let error = work.await.expect_err("the delete was first");
    assert_eq!(commit::abandon(&place, s.read_version, &error, &s.outputs).await, 0, "{error}");
    assert_eq!(Sample::ids(&lake, &uri, None).await.expect("HEAD reads").len(), 90);
    assert_eq!(oracle::check(&lake, &uri, Leftovers::None).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_proof_the_outputs_stay() {
    let (_dir, uri) = place();
    let s = stored(&uri).await;
    let lake = lake();
    let place = lake.place(&uri).await.expect("a place");
    let unknown = squire_lake::Error::new(squire_lake::Kind::Transient, "committing", &uri);
    assert_eq!(commit::abandon(&place, s.read_version, &unknown, &s.outputs).await, 1_000);
    let landed =
        commit::commit(&lake, &s.handle, s.read_version, s.operation, s.stamper.properties("compact", 1)).await;
    landed.expect("it was only late");
    assert_eq!(Sample::ids(&lake, &uri, None).await.expect("HEAD reads").len(), 100);
}
