//! Slices of a compaction, and results that other processes have stored.

use std::sync::Arc;

use squire_lake::commit::{self, Handle};
use squire_lake::compact::stored::{self, Slice, Stored};
use squire_lake::compact::{self, Rewritten, Settings};
use squire_lake::oracle::{self, Leftovers};
use squire_lake::sample::{Sample, SampleIndex};
use squire_lake::stamp::Stamper;
use squire_lake::{Kind, Lake};

use super::support::*;

fn settings() -> Settings {
    Settings { target_rows: 50, widest_row_bytes: 100, concurrency: 2, table_config: Default::default() }
}

/// HEAD, and a slice of its fragments 0 and 1 as it goes through storage.
async fn slice(lake: &Lake, uri: &str) -> (Arc<Handle>, Slice) {
    let head = Arc::new(lake.open(uri).await.expect("opened"));
    let slice = Slice::of(&head, &[vec![0, 1]], &settings()).expect("named");
    let text = serde_json::to_string(&slice).expect("written");
    (head, serde_json::from_str(&text).expect("read back"))
}

/// The result of a slice's execution as another process reads it.
async fn executed(lake: &Lake, uri: &str, slice: &Slice) -> Stored {
    let opened = slice.open(lake, uri).await.expect("as planned");
    let done = compact::execute(lake, &opened.handle, &opened.tasks, &slice.settings).await;
    let done: Vec<Rewritten> = done.into_iter().map(|d| d.expect("executed")).collect();
    let text = serde_json::to_string(&Stored::of(&done, uri).expect("stored")).expect("written");
    serde_json::from_str(&text).expect("read back")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_stored_slice_landed_twice_leaves_head_whole() {
    let (_dir, uri) = place();
    table(&uri, 4, 25).await.index(SampleIndex::BTree).await.expect("indexed");
    let lake = lake();
    let place = lake.place(&uri).await.expect("a place");
    let (head, slice) = slice(&lake, &uri).await;
    let stored = executed(&lake, &uri, &slice).await;
    let stamper = Stamper { estate: uuid::Uuid::new_v4(), run: uuid::Uuid::now_v7() };
    let stamped = || commit::stamped(&place, slice.read_version, stamper.run, "compact");
    assert!(stamped().await.expect("read").is_empty());
    let done = stored.read(&slice, &uri).expect("it fits");
    assert!(stored::is_current(&place, &head, &done[0]).await.expect("known"));
    let landed = compact::land(&lake, &place, &head, done, (&stamper, 1), &squire_lake::commit::nobody_to_ask)
        .await
        .expect("it lands once");
    let after = landed.after;
    assert_eq!(stamped().await.expect("read"), [after]);

    // By a process that knows nothing of the first, from the handle that it had.
    let again = stored.read(&slice, &uri).expect("it fits");
    let bytes = again[0].bytes();
    let (error, stranded) =
        compact::land(&lake, &place, &head, again, (&stamper, 1), &squire_lake::commit::nobody_to_ask)
            .await
            .expect_err("it does not land twice");
    assert_eq!(error.kind(), Kind::Conflict, "{error}");
    assert!(stranded >= bytes, "all of the data stays, and is said to: {stranded} of {bytes}");
    assert_eq!(Sample::ids(&lake, &uri, None).await.expect("HEAD reads").len(), 100);
    let seen = seen(&uri).await;
    assert!(seen.missing.is_empty() && seen.fragments.len() == 3, "{:?}", seen.missing);
    let head = Arc::new(lake.open(&uri).await.expect("opened"));
    let third = stored.read(&slice, &uri).expect("it fits");
    assert!(!stored::is_current(&place, &head, &third[0]).await.expect("known"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_race_deletes_nothing_that_was_stored() {
    let (_dir, uri) = place();
    table(&uri, 4, 25).await;
    let lake = lake();
    let place = lake.place(&uri).await.expect("a place");
    let (head, slice) = slice(&lake, &uri).await;
    let stored = executed(&lake, &uri, &slice).await;
    let mut other = Sample::open(&lake, &uri, Default::default()).await.expect("opened");
    other.index(SampleIndex::BTree).await.expect("an index, which the slice knows nothing of");
    let done = stored.read(&slice, &uri).expect("it fits");
    let files = compact::outputs_of(&done).files;
    let stamper = Stamper { estate: uuid::Uuid::new_v4(), run: uuid::Uuid::now_v7() };
    let (error, _) = compact::land(&lake, &place, &head, done, (&stamper, 1), &squire_lake::commit::nobody_to_ask)
        .await
        .expect_err("the index was first");
    assert_eq!(error.kind(), Kind::Conflict, "{error}");
    let left = compact::discard(&place, stored.read(&slice, &uri).expect("it fits")).await;
    assert!(left > 0, "nor does giving it up");
    let listed = seen(&uri).await;
    assert!(!files.is_empty() && files.iter().all(|f| listed.listing.get(f).is_some()), "{files:?}");
    assert_eq!(Sample::ids(&lake, &uri, None).await.expect("HEAD reads").len(), 100);
    assert_ne!(oracle::check(&lake, &uri, Leftovers::None).await, [], "what stays can be named");
    assert_eq!(oracle::check(&lake, &uri, Leftovers::Explained).await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slice_of_another_dataset_of_the_same_name_is_not_executed() {
    let (dir, uri) = place();
    table(&uri, 4, 25).await;
    let lake = lake();
    let (_, slice) = slice(&lake, &uri).await;
    std::fs::remove_dir_all(dir.path().join("t")).expect("removed");
    table(&uri, 4, 25).await;
    lake.replace_session();
    let error = slice.open(&lake, &uri).await.err().expect("it is another dataset");
    assert_eq!(error.kind(), Kind::Conflict, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_does_not_fit_is_refused() {
    let (dir, uri) = place();
    table(&uri, 4, 25).await;
    let lake = lake();
    let (head, slice) = slice(&lake, &uri).await;
    let good = executed(&lake, &uri, &slice).await;
    assert_eq!(good.read(&slice, &uri).expect("it fits").len(), 1);
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut value = serde_json::to_value(&good).expect("JSON");
        change(&mut value);
        let stored: Stored = serde_json::from_value(value).expect("read");
        let error = stored.read(&slice, &uri).expect_err("it does not fit");
        assert_eq!(error.kind(), Kind::Refused, "{error}");
    };
    refused(&|v| v["lance"] = "13.0.0".into());
    refused(&|v| v["results"][0]["read_version"] = 1.into());
    refused(&|v| v["results"][0]["original_fragments"][0]["id"] = 3.into());
    refused(&|v| v["results"][0]["new_fragments"][0]["files"][0]["path"] = "../../other/data/x.lance".into());
    refused(&|v| v["results"][0]["new_fragments"][0]["files"][0]["path"] = "/etc/x".into());
    refused(&|v| v["results"][0]["new_fragments"][0]["files"][0]["base_id"] = 1.into());
    refused(&|v| v["results"] = serde_json::json!([v["results"][0], v["results"][0]]));
    refused(&|v| v["results"][0] = serde_json::json!({"lance": "another layout"}));
    // A result whose file is gone is not offered to a commit.
    let place = lake.place(&uri).await.expect("a place");
    let done = good.read(&slice, &uri).expect("it fits");
    let name = compact::outputs_of(&done).files.into_iter().next().expect("a file");
    std::fs::remove_file(dir.path().join("t").join(name)).expect("removed");
    assert!(!stored::is_current(&place, &head, &done[0]).await.expect("known"));
}
