//! Who owns HEAD: what is not Lance's alone is left alone, with its reason.

use super::common::*;

/// Sweeps with history that could go, and returns the dataset's row.
fn sweep(here: &Here) -> serde_json::Value {
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let mut args = vec!["sweep".to_string(), here.text("lake"), "--yes".into()];
    args.extend(one_second());
    row(&report(&args), "lake/t").clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graphs_table_gets_no_write() {
    let here = Here::new();
    here.table("lake/t", 6, 10).await;
    let dir = here.path("lake/t");
    squire_lake::sample::set_schema_metadata(&dir, "omnigraph:internal_schema_version", "14").expect("set");
    let before = dataset_tree(&dir);
    assert_eq!(sweep(&here)["outcome"]["reason"], "graph_owned");
    assert_eq!(dataset_tree(&dir), before);
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn staging_manifests_without_a_known_store_are_hands_off() {
    let here = Here::new();
    here.table("lake/t", 6, 10).await;
    std::fs::write(here.path("lake/t/_versions/7.manifest-0b9c"), b"staged").expect("written");
    let before = dataset_tree(&here.path("lake/t"));
    assert_eq!(sweep(&here)["outcome"]["reason"], "unknown_authority");
    assert_eq!(dataset_tree(&here.path("lake/t")), before);
    // It is there before the sweep, and an external store may mean it: hands off is not cleaned up.
    here.oracle_with("lake", Leftovers::None, &[("7.manifest-0b9c", "unknown: a staged manifest")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn detached_versions_keep_everything_and_stop_compaction_until_asked() {
    let here = Here::new();
    here.table("lake/t", 6, 10).await.commit_detached().await.expect("committed");
    let before = dataset_tree(&here.path("lake/t"));
    let swept = sweep(&here);
    assert_eq!(swept["authority"], "detached");
    assert_eq!(swept["steps"]["cleanup"]["reason"], "detached_present", "{swept:#}");
    assert_eq!(swept["steps"]["compact"]["outcome"], "skipped");
    assert_eq!(dataset_tree(&here.path("lake/t")), before);
    let asked = report(&["sweep", &here.text("lake"), "--yes", "--steps", "compact"]);
    assert_eq!(row(&asked, "lake/t")["after"]["fragments"], 1, "{asked:#}");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_old_manifest_refuses_clean_up_and_nothing_else() {
    let here = Here::new();
    here.table("lake/t", 6, 10).await;
    let oldest = std::fs::read_dir(here.path("lake/t/_versions"))
        .expect("versions")
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "manifest"))
        .max()
        .expect("a manifest");
    std::fs::write(oldest, b"cut").expect("written");
    let swept = sweep(&here);
    assert_eq!(swept["steps"]["compact"]["outcome"], "done", "{swept:#}");
    assert_eq!(swept["steps"]["cleanup"]["reason"], "unreadable_manifest", "{swept:#}");
    // The test cut it; whatever else nobody names could be its own.
    here.oracle_with("lake", Leftovers::None, &[("18446744073709551614.manifest", "cannot be read")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_file_of_head_refuses_clean_up() {
    let here = Here::new();
    let mut sample = here.table("lake/t", 3, 10).await;
    sample.overwrite(10, 500).await.expect("overwritten");
    let look = squire_lake::look::look(&lake(), &here.uri("lake/t"), chrono::Utc::now()).await.expect("a look");
    let squire_lake::look::Looked::Dataset(look) = look else { panic!("no dataset") };
    let data = look.head.named().into_iter().find(|n| n.path.starts_with("data/")).expect("a data file");
    std::fs::remove_file(here.path("lake/t").join(data.path)).expect("removed");
    let swept = sweep(&here);
    assert_eq!(swept["steps"]["cleanup"]["reason"], "unhealthy", "{swept:#}");
    assert_eq!(swept["findings"][0]["kind"], "missing_file");
    // The test removed it; HEAD's rows cannot be read without it, nor is anything merged over it.
    here.oracle_with("lake", Leftovers::None, &[("data/", "missing: HEAD names it"), ("lake/t", "reading every row")]);
}
