//! What every verb writes for scripts: JSON lines, and the metrics of a run that nobody scrapes.

use serde_json::Value;

use super::common::*;

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_writes_json_lines_and_a_metrics_file() {
    let here = Here::new();
    here.table("lake/t", 6, 10).await;
    let (lake, table, plan) = (here.text("lake"), here.text("lake/t"), here.text("plan.json"));
    let verbs: [(&[&str], usize); 7] = [
        (&["plan", &lake, "--out", &plan], 2),
        (&["show", &plan], 1),
        (&["apply", &plan], 2),
        (&["sweep", &lake, "--yes"], 2),
        (&["why", &table], 1),
        (&["history", &table], 1),
        (&["runs", "list", &lake], 1),
    ];
    for (verb, lines) in verbs {
        let file = here.text("metrics.prom");
        let output = squire(&[verb, &["-o", "jsonl", "--metrics-file", &file]].concat());
        assert_ok(&output, &format!("{verb:?}"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text.lines().count(), lines, "{verb:?}: {text}");
        for line in text.lines() {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{verb:?}: {e}: {line}"));
            assert!(value.is_object(), "{verb:?}: {line}");
        }
        let metrics = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{verb:?}: {e}"));
        assert!(metrics.contains("squire_mode{mode=\"maintain\"} 1"), "{verb:?}: {metrics}");
        std::fs::remove_file(&file).expect("removed");
    }
    let output = squire(&["config", "show", "-o", "jsonl"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let keys: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    assert!(keys.len() > 50 && keys[0]["key"] == "estate.name", "{text}");
    // A run that failed has its metrics, too.
    let file = here.text("metrics.prom");
    let output = squire(&["sweep", &here.text("nowhere"), "--metrics-file", &file]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(std::fs::read_to_string(&file).is_ok_and(|m| m.contains("squire_build_info")));
}

#[test]
fn every_verb_is_completed_in_every_shell() {
    let verbs = "plan show apply sweep why history runs serve tick config demo completion";
    for shell in ["bash", "zsh", "fish"] {
        let output = squire(&["completion", shell]);
        assert_ok(&output, shell);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for verb in verbs.split(' ') {
            assert!(text.contains(verb), "{shell}: {verb}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sweep_did_is_in_its_metrics() {
    let here = Here::new();
    let mut sample = here.table("lake/t", 3, 20).await;
    sample.index(squire_lake::sample::SampleIndex::BTree).await.expect("indexed");
    sample.write(20, 100).await.expect("written");
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let file = here.text("metrics.prom");
    short_retention("sweep", &here, &["--yes", "--metrics-file", &file]);
    let text = std::fs::read_to_string(&file).expect("the metrics");
    let value = |series: &str| -> f64 {
        let found = text.lines().find_map(|l| l.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("{series}: {text}"))
    };
    assert_eq!(value("squire_index_folds_total{outcome=\"done\",type=\"btree\"}"), 1.0);
    for step in ["compact", "optimize_indices", "verify", "cleanup"] {
        let series = format!("squire_step_duration_seconds_count{{step=\"{step}\"}}");
        assert_eq!(value(&series), 1.0, "{step}");
    }
    assert_eq!(value("squire_sweep_duration_seconds_count"), 1.0);
    assert!(value("squire_memory_limit_bytes") > 1e9);
}

#[test]
fn the_registrys_requests_are_counted_by_bucket_operation_and_answer() {
    use super::s3_estate::{OnS3, Pristine};
    let test = "the_registrys_requests_are_counted_by_bucket_operation_and_answer";
    let Some(server) = squire_test_support::Server::shared(test) else { return };
    let estate = OnS3::copy(server, &Pristine::one(server));
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("metrics.prom");
    let ended = estate.start(&["--metrics-file", file.to_str().expect("UTF-8")]).end();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let text = std::fs::read_to_string(&file).expect("the metrics");
    for (operation, code) in [("list", 200), ("put", 200), ("get", 200)] {
        let series = format!(
            "squire_object_store_http_requests_total{{bucket=\"s3://lake\",code=\"{code}\",operation=\"{operation}\"}} "
        );
        let n: f64 =
            text.lines().find_map(|l| l.strip_prefix(&series)?.parse().ok()).unwrap_or_else(|| panic!("{text}"));
        assert!(n > 0.0, "{series}");
    }
}
