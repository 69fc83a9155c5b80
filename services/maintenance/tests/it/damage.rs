//! What cannot be read, cut, missing or mixed: it is named, nothing is made worse, and the others go on.

use std::path::PathBuf;

use squire_lake::sample::{Sample, SampleIndex};

use super::common::*;

/// A lake with a `bad` and a `good` table of six appends, both with history that could go.
async fn lake_of_two() -> Here {
    let here = Here::new();
    here.table("lake/bad", 6, 10).await;
    here.table("lake/good", 6, 10).await;
    here
}

/// Sweeps with a retention of one second; `(exit code, bad, good)`.
fn sweep(here: &Here) -> (i32, serde_json::Value, serde_json::Value) {
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let mut args = vec!["sweep".to_string(), here.text("lake"), "--yes".into(), "-o".into(), "json".into()];
    args.extend(one_second());
    let output = squire(&args);
    let swept: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    (code(&output), row(&swept, "/bad").clone(), row(&swept, "/good").clone())
}

fn has_finding(row: &serde_json::Value, kind: &str, severity: &str) -> bool {
    row["findings"].as_array().expect("findings").iter().any(|f| f["kind"] == kind && f["severity"] == severity)
}

async fn rows(here: &Here, rel: &str, version: Option<u64>) -> usize {
    Sample::ids(&lake(), &here.uri(rel), version).await.expect("it reads").len()
}

/// A data file of HEAD that older versions name too, or not.
async fn data_file(here: &Here, rel: &str) -> PathBuf {
    let look = squire_lake::look::look(&lake(), &here.uri(rel), chrono::Utc::now()).await.expect("a look");
    let squire_lake::look::Looked::Dataset(look) = look else { panic!("no dataset") };
    let named = look.head.named().into_iter().rfind(|n| n.path.starts_with("data/")).expect("a data file");
    here.path(rel).join(named.path)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_old_manifest_is_named_and_only_clean_up_refuses() {
    let here = lake_of_two().await;
    std::fs::write(here.manifest("lake/bad", 2), b"cut").expect("cut");
    let (exit, bad, good) = sweep(&here);
    assert_eq!(exit, 3, "a finding of severity error stands");
    assert_eq!(bad["steps"]["compact"]["outcome"], "done", "{bad:#}");
    assert_eq!(bad["steps"]["cleanup"]["reason"], "unreadable_manifest", "{bad:#}");
    let name = format!("{:020}.manifest", u64::MAX - 2);
    assert!(bad["steps"]["cleanup"]["detail"].as_str().is_some_and(|d| d.contains(&name)), "{bad:#}");
    assert!(has_finding(&bad, "unreadable_manifest", "error"), "{bad:#}");
    assert_eq!(good["steps"]["compact"]["outcome"], "done", "{good:#}");
    assert_eq!(rows(&here, "lake/bad", None).await, 60);
    for version in [1, 3, 4, 5, 6] {
        assert_eq!(rows(&here, "lake/bad", Some(version)).await as u64, 10 * version, "what can be read stays");
    }
    // The test cut it.
    here.oracle_with("lake", Leftovers::None, &[(&name, "cannot be read")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_head_fails_alone_and_loses_nothing() {
    let here = lake_of_two().await;
    let head = here.manifest("lake/bad", 6);
    let bytes = std::fs::read(&head).expect("read");
    std::fs::write(&head, &bytes[..bytes.len() / 2]).expect("cut");
    let before = dataset_tree(&here.path("lake/bad"));
    let (exit, bad, good) = sweep(&here);
    assert_eq!((exit, bad["outcome"]["kind"].as_str()), (3, Some("failed")));
    assert_eq!(bad["outcome"]["reason"], "damaged", "{bad:#}");
    assert!(bad["outcome"]["detail"].as_str().is_some_and(|d| d.contains(".manifest")), "{bad:#}");
    assert_eq!(good["steps"]["compact"]["outcome"], "done");
    assert_eq!(dataset_tree(&here.path("lake/bad")), before);
    assert_eq!(rows(&here, "lake/bad", Some(5)).await, 50);
    // The test cut it; the good one is whole.
    here.oracle_with("lake", Leftovers::None, &[("lake/bad", "decoding the manifest")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_cut_data_file_fails_alone_and_keeps_every_version() {
    for cut in [false, true] {
        let here = lake_of_two().await;
        let file = data_file(&here, "lake/bad").await;
        if cut {
            let bytes = std::fs::read(&file).expect("read");
            std::fs::write(&file, &bytes[..bytes.len() - 7]).expect("cut");
        } else {
            std::fs::remove_file(&file).expect("removed");
        }
        let before = dataset_tree(&here.path("lake/bad"));
        let (exit, bad, good) = sweep(&here);
        assert_eq!(exit, 3);
        assert_eq!(bad["outcome"]["reason"], "damaged", "cut {cut}: {bad:#}");
        assert_eq!(bad["steps"]["cleanup"]["reason"], "unhealthy", "cut {cut}: {bad:#}");
        assert!(has_finding(&bad, "missing_file", "error"), "{bad:#}");
        assert_eq!(good["outcome"]["kind"], "maintained", "{good:#}");
        // No version went and no half of a rewrite was left.
        assert_eq!(dataset_tree(&here.path("lake/bad")), before, "cut {cut}");
        assert_eq!(rows(&here, "lake/bad", Some(5)).await, 50);
        let (_, bad, _) = sweep(&here);
        assert_eq!(bad["steps"]["cleanup"]["reason"], "unhealthy", "and so it stays: {bad:#}");
        assert_eq!(rows(&here, "lake/bad", Some(5)).await, 50);
        // The test removed or cut it; nothing else is amiss.
        let said = if cut { "bytes, recorded" } else { "missing: HEAD names it" };
        here.oracle_with("lake", Leftovers::None, &[("data/", said), ("lake/bad", "reading every row")]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mixed_manifest_names_are_left_alone() {
    let here = lake_of_two().await;
    std::fs::copy(here.manifest("lake/bad", 1), here.path("lake/bad/_versions/1.manifest")).expect("copied");
    let before = dataset_tree(&here.path("lake/bad"));
    let (exit, bad, good) = sweep(&here);
    assert_eq!(exit, 3);
    assert!(has_finding(&bad, "mixed_manifest_names", "error"), "{bad:#}");
    assert_eq!(dataset_tree(&here.path("lake/bad")), before, "{bad:#}");
    assert_eq!(good["outcome"]["kind"], "maintained");
    // The test made them; the library opens no such table.
    here.oracle_with("lake", Leftovers::None, &[("lake/bad", "opening the dataset")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_cannot_be_read_is_unknown_and_not_healthy() {
    let here = Here::new();
    let mut sample = here.table("lake/bad", 4, 50).await;
    sample.index(SampleIndex::BTree).await.expect("indexed");
    sample.write(50, 900).await.expect("written");
    here.table("lake/good", 3, 10).await;
    // Noise of the recorded size: health has nothing to say, the library fails when asked.
    for (path, bytes) in tree(&here.path("lake/bad/_indices")) {
        std::fs::write(path, vec![0xa5; bytes.len()]).expect("written");
    }
    let before = dataset_tree(&here.path("lake/bad"));
    let (_, bad, good) = sweep(&here);
    for step in ["compact", "optimize_indices"] {
        assert_eq!(bad["steps"][step]["reason"], "unreadable_index", "{bad:#}");
    }
    assert_eq!(bad["steps"]["cleanup"]["reason"], "unhealthy", "{bad:#}");
    assert_eq!(bad["before"]["indices"][0]["state"], "unreadable");
    assert!(bad["before"]["indices"][0]["unindexed_rows"].is_null(), "unknown is not 0: {bad:#}");
    assert!(has_finding(&bad, "index_unreadable", "warning"), "{bad:#}");
    assert_eq!(dataset_tree(&here.path("lake/bad")), before);
    assert_eq!(good["outcome"]["kind"], "maintained");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_type_of_a_later_release_holds_its_fragments_out() {
    let here = Here::new();
    let mut sample = here.table("lake/bad", 3, 20).await;
    sample.index(SampleIndex::BTree).await.expect("indexed");
    for i in 0..3 {
        sample.write(20, 900 + i * 20).await.expect("written");
    }
    let head = here.manifest("lake/bad", sample.version());
    squire_lake::sample::set_index_type(&head, "id_idx", "/lance.table.CuckooIndexDetails").expect("set");
    here.table("lake/good", 3, 10).await;
    let indices = tree(&here.path("lake/bad/_indices"));
    let (exit, bad, _) = sweep(&here);
    assert_eq!(exit, 0, "{bad:#}");
    // Three covered fragments stay, the other three become one.
    assert_eq!(
        (bad["before"]["fragments"].as_u64(), bad["after"]["fragments"].as_u64()),
        (Some(6), Some(4)),
        "{bad:#}"
    );
    assert_eq!(bad["after"]["indices"][0]["state"], "unsupported");
    assert!(has_finding(&bad, "held_out_fragments", "warning"), "{bad:#}");
    let (_, again, _) = sweep(&here);
    assert_eq!(again["after"]["fragments"], 4, "{again:#}");
    assert_eq!(rows(&here, "lake/bad", None).await, 120);
    let left = tree(&here.path("lake/bad/_indices"));
    assert_eq!(left, indices, "the index that only others can read is still there");
    assert_eq!(again["after"]["indices"][0]["state"], "unsupported", "{again:#}");
    here.oracle("lake");
}
