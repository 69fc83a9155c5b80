//! Skips and failures that need a registry: claimed, declared only, permanent.

use std::time::Duration;

use squire_registry::{Actor, ClaimOutcome, Registry};

use super::common::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_claimed_dataset_is_left_to_its_holder() {
    let here = Here::new();
    here.table("lake/t", 4, 10).await;
    here.table("lake/other", 4, 10).await;
    let at = here.uri("lake/_squire");
    let registry = Registry::init(&at, &Default::default(), "n", Actor::current()).await.expect("a registry");
    let uri = here.uri("lake/t");
    let claimed = registry.claim(&uri, uuid(), Duration::from_secs(600)).await.expect("claimed");
    let ClaimOutcome::Held(claim) = claimed else { panic!("{claimed:?}") };
    let before = dataset_tree(&here.path("lake/t"));
    let output = squire(&["sweep", &here.text("lake"), "--yes", "-o", "json"]);
    assert_eq!(code(&output), 0, "claimed alone is no failure: {}", stderr(&output));
    let swept: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let t = row(&swept, "lake/t");
    assert_eq!((t["outcome"]["kind"].as_str(), t["outcome"]["reason"].as_str()), (Some("skipped"), Some("claimed")));
    let who = format!("process {}", std::process::id());
    assert!(t["outcome"]["detail"].as_str().is_some_and(|d| d.contains(&who)), "{t:#}");
    assert_eq!(dataset_tree(&here.path("lake/t")), before);
    assert_eq!(row(&swept, "lake/other")["outcome"]["kind"], "maintained");
    claim.release().await.expect("released");
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(row(&swept, "lake/t")["outcome"]["kind"], "maintained");
    here.oracle("lake");
}

fn uuid() -> uuid::Uuid {
    uuid::Uuid::now_v7()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_table_without_data_is_skipped_and_a_vanished_one_fails() {
    let here = Here::new();
    here.table("lake/ns/t", 4, 10).await;
    here.table("lake/ns/other", 1, 10).await;
    let root = here.text("lake");
    let at = format!("--registry={root}/_squire");
    assert_ok(&registry(&["init", &format!("{root}/_squire"), "--name", "n"]), "init");
    let admin: [&[&str]; 5] = [
        &["project", "create", "p"],
        &["warehouse", "create", "w", "--project", "p", "--root", &root],
        &["namespace", "create", "namespace/ns", "--warehouse", "w"],
        &["table", "create", "table/ns/soon", "--location", "ns/soon", "--declare"],
        &["table", "create", "table/ns/t", "--location", "ns/t"],
    ];
    for args in admin {
        let mut all = args.to_vec();
        all.push(&at);
        assert_ok(&registry(&all), &format!("{args:?}"));
    }
    let output = squire(&["sweep", &root, "--yes", "-o", "json"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let swept: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(row(&swept, "ns/soon")["outcome"]["reason"], "declared_only", "{swept:#}");
    assert_eq!(row(&swept, "ns/t")["outcome"]["kind"], "maintained");
    // A table that was registered with data and has none any more is another thing.
    std::fs::remove_dir_all(here.path("lake/ns/t")).expect("removed");
    let output = squire(&["sweep", &root, "--yes", "-o", "json"]);
    let swept: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((code(&output), row(&swept, "ns/t")["outcome"]["reason"].as_str()), (3, Some("open")), "{swept:#}");
    here.oracle("lake");
}

/// A wish in the table's own config that cannot be read fails the same way each time: it is said once, and tried again when
/// the table has changed.
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_the_same_way_each_time_is_permanent() {
    let here = Here::new();
    let mut sample = here.table("lake/bad", 4, 10).await;
    sample.config(&[("lance.compaction.max_bytes_per_file", "plenty")]).await.expect("set");
    here.table("lake/good", 4, 10).await;
    let before = dataset_tree(&here.path("lake/bad"));
    for _ in 0..2 {
        let output = squire(&["sweep", &here.text("lake"), "--yes", "-o", "json"]);
        let swept: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let bad = row(&swept, "/bad");
        assert_eq!((code(&output), bad["outcome"]["reason"].as_str()), (3, Some("permanent")), "{bad:#}");
        assert_eq!(dataset_tree(&here.path("lake/bad")), before);
        assert_ne!(row(&swept, "/good")["outcome"]["kind"], "failed");
    }
    sample.config(&[("lance.compaction.max_bytes_per_file", "1000000")]).await.expect("set");
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(row(&swept, "/bad")["outcome"]["kind"], "maintained", "{swept:#}");
    here.oracle("lake");
}

/// Three times the same at three HEADs: a block for a day, and the table is left alone; the other tables are not.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_comes_three_times_files_a_block_for_a_day() {
    let here = Here::new();
    let mut sample = here.table("lake/bad", 4, 10).await;
    sample.config(&[("lance.compaction.max_bytes_per_file", "plenty")]).await.expect("set");
    for round in 0..3 {
        let output = squire(&["sweep", &here.text("lake"), "--yes", "-o", "json"]);
        assert_eq!(code(&output), 3, "round {round}: {}", stderr(&output));
        sample.write(10, 1000 + round * 10).await.expect("written");
    }
    let here_registry = here.text("lake/_squire");
    let listed = registry(&["block", "list", "--registry", &here_registry, "-o", "json"]);
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(text.contains("repeated_failure") && text.contains("failed 3 times in a row with permanent"), "{text}");
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    let outcome = &row(&swept, "/bad")["outcome"];
    assert_eq!((outcome["kind"].as_str(), outcome["reason"].as_str()), (Some("skipped"), Some("blocked")), "{outcome}");
    // A day later it is tried once more.
    let tomorrow = (chrono::Utc::now() + chrono::Duration::hours(25)).to_rfc3339();
    let planned = report(&["plan", &here.text("lake"), "--at", &tomorrow]);
    assert_eq!(row(&planned, "/bad")["outcome"]["kind"], "planned", "{planned:#}");
    here.oracle("lake");
}
