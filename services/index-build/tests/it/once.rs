//! Once in effect, whatever is asked twice.

use std::process::Stdio;

use crate::common::{Here, stderr, stdout};

#[tokio::test(flavor = "multi_thread")]
async fn the_same_index_again_writes_nothing() {
    let here = Here::with_table(2, 300).await;
    let first = here.built(&["--columns", "vector", "--type", "IVF_PQ", "--params", r#"{"num_sub_vectors": 4}"#]);
    let (version, dirs) = (here.look().await.version(), here.index_dirs());
    assert_eq!(first["version"].as_u64(), Some(version));
    let again = here.built(&["--columns", "vector", "--type", "IVF_PQ", "--params", r#"{"num_sub_vectors": 4}"#]);
    assert_eq!(again["outcome"], "present", "{again:#}");
    // What was derived may be left out, and is not another definition.
    let derived = here.built(&["--columns", "vector", "--type", "IVF_PQ"]);
    assert_eq!(derived["outcome"], "present", "{derived:#}");
    let (code, other) =
        here.build(&["--columns", "vector", "--type", "IVF_PQ", "--params", r#"{"num_sub_vectors": 8}"#]);
    assert_eq!((code, other["reason"].as_str()), (3, Some("name_taken")), "{other:#}");
    assert_eq!((here.look().await.version(), here.index_dirs()), (version, dirs));
    here.oracle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_lags_is_built_anew_and_replaced() {
    let here = Here::with_table(1, 100).await;
    here.built(&["--columns", "id", "--type", "BTREE"]);
    let lake = crate::common::lake();
    let columns = squire_lake::sample::Columns { vector: 16, page: 0 };
    let mut sample = squire_lake::sample::Sample::open(&lake, &here.uri(), columns).await.unwrap();
    sample.write(50, 100).await.unwrap();
    let again = here.built(&["--columns", "id", "--type", "BTREE"]);
    assert_eq!((again["outcome"].as_str(), again["indexed_rows"].as_u64()), (Some("built"), Some(150)), "{again:#}");
    let look = here.look().await;
    assert_eq!(look.indices.len(), 1);
    assert_eq!(look.indices[0].segments.len(), 1);
    here.oracle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_rows_make_a_definition_once_and_no_loop() {
    let here = Here::with_table(1, 20).await;
    let first = here.built(&["--columns", "vector", "--type", "IVF_PQ"]);
    assert_eq!(first["outcome"], "untrained", "{first:#}");
    let version = here.look().await.version();
    for _ in 0..2 {
        let again = here.built(&["--columns", "vector", "--type", "IVF_PQ"]);
        assert_eq!(again["outcome"], "untrained", "{again:#}");
    }
    assert_eq!(here.look().await.version(), version, "a definition is made once");
    let lake = crate::common::lake();
    let columns = squire_lake::sample::Columns { vector: 16, page: 0 };
    let mut sample = squire_lake::sample::Sample::open(&lake, &here.uri(), columns).await.unwrap();
    sample.write(400, 20).await.unwrap();
    let trained = here.built(&["--columns", "vector", "--type", "IVF_PQ"]);
    assert_eq!(
        (trained["outcome"].as_str(), trained["indexed_rows"].as_u64()),
        (Some("built"), Some(420)),
        "{trained:#}"
    );
    here.oracle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_identical_builds_at_once_one_builds() {
    let here = Here::with_table(4, 300).await;
    let start = || {
        let mut command = here.command();
        command.args(["build", "table/sales/t", "--columns", "vector", "--type", "IVF_PQ", "-o", "json"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let (one, two) = (start(), start());
    let mut outcomes = Vec::new();
    for child in [one, two] {
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{}{}", stdout(&out), stderr(&out));
        let value: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        outcomes.push(value["outcome"].as_str().unwrap().to_owned());
    }
    outcomes.sort();
    assert_eq!(outcomes, ["built", "present"]);
    let look = here.look().await;
    let stamps = look.manifests.iter().filter(|m| m.stamp.as_ref().is_some_and(|s| s.step == "build")).count();
    assert_eq!((look.indices.len(), stamps), (1, 1));
    assert_eq!(here.index_dirs().len(), 1, "the other one left nothing");
    here.oracle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commit_is_stamped_with_the_request_and_the_tables_hook_does_not_run() {
    let here = Here::with_table(3, 50).await;
    let lake = crate::common::lake();
    let columns = squire_lake::sample::Columns { vector: 16, page: 0 };
    let mut sample = squire_lake::sample::Sample::open(&lake, &here.uri(), columns).await.unwrap();
    sample.config(&[("lance.auto_cleanup.interval", "1"), ("lance.auto_cleanup.older_than", "0s")]).await.unwrap();
    let versions = here.look().await.versions().len();
    let built = here.built(&["--columns", "id", "--type", "BTREE"]);
    let look = here.look().await;
    assert_eq!(look.versions().len(), versions + 1, "the hook removed a version");
    assert_eq!(look.head.properties.get("squire.step").map(String::as_str), Some("build"));
    assert_eq!(look.head.properties.get("squire.request").map(String::as_str), built["job"].as_str());
    let job = here.registry.job(built["job"].as_str().unwrap()).await.unwrap();
    assert_eq!(look.head.properties.get("squire.run"), Some(&job.run.to_string()));
    let (history, _) = here.registry.dataset_history(&here.uri()).await.unwrap();
    assert_eq!(history.len(), 1);
    assert_eq!(history[0].intent.steps, ["build"]);
    assert_eq!(history[0].result.as_ref().map(|r| r.commits[0].version), built["version"].as_u64());
}
