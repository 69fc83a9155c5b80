//! Who did what, when, under which policy: right also when the versions and their stamps are gone.

use serde_json::Value;

use super::common::*;

fn json(args: &[&str]) -> Value {
    let mut all = args.to_vec();
    all.extend(["-o", "json"]);
    let output = squire(&all);
    assert_ok(&output, &format!("{args:?}"));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn sweep(here: &Here) -> Value {
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    short_retention("sweep", here, &["--yes"])
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_right_when_versions_and_stamps_are_gone() {
    let here = Here::new();
    here.table("lake/t", 6, 10).await;
    // Our two commits, 7 and 8, and later two of somebody else's that make them history.
    let first = sweep(&here);
    let removed = row(&first, "lake/t")["steps"]["cleanup"]["versions_removed"].clone();
    assert_eq!(row(&first, "lake/t")["after"]["version"], 8, "{first:#}");
    for i in 0..3 {
        let mut sample =
            squire_lake::sample::Sample::open(&lake(), &here.uri("lake/t"), Default::default()).await.expect("opened");
        sample.overwrite(10, 500 + i).await.expect("overwritten");
    }
    let second = sweep(&here);
    assert!(!here.manifest("lake/t", 7).exists() && !here.manifest("lake/t", 8).exists(), "{second:#}");

    let table = here.text("lake/t");
    let all = json(&["history", &table]);
    let entries = all["entries"].as_array().expect("entries");
    assert_eq!(entries.len(), 2, "{all:#}");
    let by_run = |run: &Value| entries.iter().find(|e| e["run"] == run["run"]).expect("an entry");
    // Compaction's commit is still told, although no manifest carries its stamp any more.
    let one = by_run(&first);
    let commits: Vec<&Value> = one["result"]["commits"].as_array().expect("commits").iter().collect();
    assert!(commits.iter().any(|c| c["step"] == "compact" && c["version"] == 8), "{one:#}");
    assert_eq!(one["result"]["versions_removed"].as_array().map(Vec::len).map(Value::from), Some(removed));
    assert_eq!(one["intent"]["policy"]["retention"], "1s", "under which policy: {one:#}");
    assert_eq!(one["intent"]["policy_source"], "flag");

    // One version: who made it, who removed it, when it was made and replaced, how many rows it had.
    let eight = json(&["history", &table, "--version", "8"]);
    assert_eq!(eight["entries"].as_array().map(Vec::len), Some(2), "made by one run and removed by another: {eight:#}");
    let two = by_run(&second);
    let gone =
        two["intent"]["versions"].as_array().expect("versions").iter().find(|v| v["version"] == 8).expect("eight");
    assert_eq!(gone["rows"], 60, "{gone:#}");
    assert!(gone["replaced_at"].as_str() > gone["made_at"].as_str(), "{gone:#}");
    assert_eq!(json(&["history", &table, "--version", "99"])["entries"], serde_json::json!([]));
    let text = squire(&["history", &table, "--version", "8"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("compact made version 8") && text.contains("removed version 8"), "{text}");

    let root = here.text("lake");
    let runs = json(&["runs", "list", &root]);
    let listed: Vec<&Value> = runs["runs"].as_array().expect("runs").iter().map(|r| &r["run"]).collect();
    assert!(listed.contains(&&first["run"]) && listed.contains(&&second["run"]), "{runs:#}");
    let run = first["run"].as_str().expect("an id");
    let shown = json(&["runs", "show", run, &root]);
    assert_eq!(shown["run"]["run_kind"], "sweep", "{shown:#}");
    assert!(shown["run"]["command"].as_str().is_some_and(|c| c.contains("--retention")), "{shown:#}");
    assert_eq!(shown["datasets"][0]["uri"], here.uri("lake/t"));
    // Zero writes.
    let before = tree(&here.path("lake"));
    json(&["history", &table]);
    json(&["runs", "list", &root]);
    assert_eq!(tree(&here.path("lake")), before);
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_record_is_there_before_the_first_delete() {
    let here = Here::new();
    here.table("lake/t", 8, 10).await;
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    // One delete a second; killed as soon as the first manifest is gone.
    let mut args = vec!["sweep".to_string(), here.text("lake"), "--yes".into(), "--retain-versions".into(), "2".into()];
    args.extend(one_second());
    args.extend(["--steps".into(), "cleanup".into(), "--set".into(), "limits.delete_rate=1".into()]);
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_squire-maintenance"))
        .current_dir(here.path(""))
        .args(&args)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it ran");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while (1..=6).all(|v| here.manifest("lake/t", v).exists()) {
        assert!(std::time::Instant::now() < deadline, "nothing was deleted");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    child.kill().expect("killed");
    child.wait().expect("it ended");

    let said = json(&["history", &here.text("lake/t")]);
    let entry = &said["entries"][0];
    assert!(entry["result"].is_null(), "begun and not closed: {said:#}");
    let named: Vec<u64> = entry["intent"]["versions"]
        .as_array()
        .expect("versions")
        .iter()
        .filter_map(|v| v["version"].as_u64())
        .collect();
    let gone: Vec<u64> = (1..=8).filter(|v| !here.manifest("lake/t", *v).exists()).collect();
    assert!(!gone.is_empty() && gone.iter().all(|v| named.contains(v)), "{gone:?} of {named:?}");
    let text = squire(&["history", &here.text("lake/t")]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("begun and not closed"));
    // The next sweep ends what was begun.
    let swept = sweep(&here);
    assert_eq!(row(&swept, "lake/t")["outcome"]["kind"], "maintained", "{swept:#}");
    let ids = squire_lake::sample::Sample::ids(&lake(), &here.uri("lake/t"), None).await.expect("it reads");
    assert_eq!(ids.len(), 80);
    // Killed between a manifest and the files that only it named: those are nobody's now, and no pass deletes what nobody names.
    here.oracle_with("lake", Leftovers::Explained, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_tells_who_changed_a_protection_and_why() {
    let here = Here::new();
    here.table("lake/t", 2, 10).await;
    let at = format!("--registry={}/_squire", here.text("lake"));
    assert_ok(&registry(&["init", &here.text("lake/_squire"), "--name", "n"]), "init");
    let subject = format!("dataset/{}", here.uri("lake/t"));
    for level in ["keep-history", "no-drop"] {
        let args = ["protection", "set", subject.as_str(), level, "--reason", "an audit", &at];
        assert_ok(&registry(&args), level);
    }
    assert_ok(&registry(&["protection", "unset", &subject, "--reason", "it is over", &at]), "unset");
    let output = registry(&["log", &subject, &at]);
    assert_ok(&output, "log");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.matches("(an audit)").count(), 2, "{text}");
    assert!(text.contains("removed (it is over)"), "{text}");
}
