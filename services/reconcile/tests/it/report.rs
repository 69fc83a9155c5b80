//! `report` on real Lance files: what disagrees is said, and nothing is written.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use squire_lake::sample::{Columns, Sample};
use squire_registry::{DatasetEntry, DatasetIntent, DatasetResult, Registry, RunRecord};
use squire_test_support::{Proxy, Server};
use uuid::Uuid;

use super::output;

async fn table(dir: &tempfile::TempDir, rel: &str, fragments: i64) -> PathBuf {
    let path = dir.path().join(rel);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let uri = squire_lake::uri::canonical(path.to_str().unwrap()).unwrap();
    let mut sample = Sample::new(uri, Columns::default());
    for i in 0..fragments {
        sample.write(10, i * 10).await.unwrap();
    }
    path
}

fn first_data(table: &Path) -> PathBuf {
    let mut files: Vec<PathBuf> = std::fs::read_dir(table.join("data")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files.remove(0)
}

fn tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        if entry.path().is_dir() {
            out.extend(tree(&entry.path()));
        } else {
            out.push((entry.path(), std::fs::read(entry.path()).unwrap()));
        }
    }
    out.sort();
    out
}

pub(super) fn report(dir: &tempfile::TempDir, args: &[&str]) -> (i32, Value) {
    let all: Vec<&str> = ["report"].into_iter().chain(args.iter().copied()).chain(["-o", "json"]).collect();
    let (code, out, err) = output(dir, &all);
    (code, serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {err}")))
}

/// `(kind, path)` of everything found about the dataset whose URI ends so.
pub(super) fn found(report: &Value, end: &str) -> Vec<(String, String)> {
    let rows = report["datasets"].as_array().unwrap();
    let row = rows.iter().find(|d| d["uri"].as_str().unwrap().ends_with(end)).unwrap();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    row["findings"].as_array().unwrap().iter().map(|f| (text(&f["kind"]), text(&f["subject"]["path"]))).collect()
}

#[tokio::test]
async fn exactly_what_was_planted_is_found_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let messy = table(&dir, "lake/messy", 3).await;
    table(&dir, "lake/clean", 3).await;
    let old = messy.join("data/00000000000000000000000000000001.lance");
    std::fs::copy(first_data(&messy), &old).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(8 * 86_400);
    std::fs::File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    std::fs::copy(first_data(&messy), messy.join("data/00000000000000000000000000000002.lance")).unwrap();
    std::fs::create_dir(messy.join("media")).unwrap();
    std::fs::write(messy.join("media/cat.png"), "a cat").unwrap();
    let before = tree(dir.path());
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!(code, 0, "{whole:#}");
    assert_eq!((&whole["kind"], &whole["totals"]["seen"]), (&"reconcile".into(), &2.into()));
    let mut messy_found = found(&whole, "/messy");
    messy_found.sort();
    let wanted = [
        ("foreign_file", "media/cat.png"),
        ("orphan_file", "data/00000000000000000000000000000001.lance"),
        ("young_file", "data/00000000000000000000000000000002.lance"),
    ];
    assert_eq!(messy_found, wanted.map(|(k, p)| (k.to_string(), p.to_string())));
    assert_eq!(found(&whole, "/clean"), []);
    let requests = &whole["totals"]["requests"];
    assert_eq!((&requests["put"], &requests["delete"]), (&0.into(), &0.into()));
    assert_eq!(tree(dir.path()), before, "a report writes nothing");
    let (_, one) = report(&dir, &["lake", "--dataset", "clean"]);
    assert_eq!(one["totals"]["seen"], 1);
}

#[tokio::test]
async fn a_missing_file_is_an_error_and_stops_no_other_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let broken = table(&dir, "lake/broken", 3).await;
    table(&dir, "lake/clean", 1).await;
    let gone = first_data(&broken);
    std::fs::remove_file(&gone).unwrap();
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!(code, 3, "a finding of severity error stands");
    let path = format!("data/{}", gone.file_name().unwrap().to_str().unwrap());
    assert_eq!(found(&whole, "/broken"), [("missing_file".to_string(), path)]);
    assert_eq!(found(&whole, "/clean"), []);
}

#[tokio::test]
async fn what_an_unread_neighbour_may_read_is_no_orphan() {
    let dir = tempfile::tempdir().unwrap();
    let source = table(&dir, "lake/source", 2).await;
    let old = source.join("data/00000000000000000000000000000001.lance");
    std::fs::copy(first_data(&source), &old).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(30 * 86_400);
    std::fs::File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    let unread = dir.path().join("lake/unread/_versions");
    std::fs::create_dir_all(&unread).unwrap();
    std::fs::write(unread.join("18446744073709551614.manifest"), "no manifest").unwrap();
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!(code, 3, "{whole:#}");
    assert!(found(&whole, "/source").iter().all(|(kind, _)| kind != "orphan_file"), "{whole:#}");
    assert!(!whole["incomplete"].as_array().unwrap().is_empty());
}

/// What a manifest that cannot be read names is not known: the report says that it is incomplete, and calls nothing an orphan.
#[tokio::test]
async fn a_manifest_that_cannot_be_read_makes_the_report_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let orders = table(&dir, "lake/orders", 3).await;
    let old = orders.join("data/00000000000000000000000000000001.lance");
    std::fs::copy(first_data(&orders), &old).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(30 * 86_400);
    std::fs::File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    let name = format!("_versions/{:020}.manifest", u64::MAX - 1);
    std::fs::write(orders.join(&name), "no manifest").unwrap();
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!(code, 3, "{whole:#}");
    let incomplete = whole["incomplete"].as_array().unwrap();
    assert!(incomplete.iter().any(|i| i["what"].as_str().unwrap().ends_with(&name)), "{whole:#}");
    let kinds: Vec<String> = found(&whole, "/orders").into_iter().map(|(kind, _)| kind).collect();
    assert!(kinds.contains(&"unreadable_manifest".to_string()), "{kinds:?}");
    assert!(!kinds.contains(&"orphan_file".to_string()), "{kinds:?}");
}

#[tokio::test]
async fn a_registered_table_without_bytes_and_an_unregistered_dataset_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("lake").to_str().unwrap().to_owned();
    table(&dir, "lake/known", 1).await;
    table(&dir, "lake/stranger", 1).await;
    let registry = assert_cmd::cargo::cargo_bin("squire-reconcile").with_file_name("squire-registry");
    let at = format!("{root}/_squire");
    let admin = |args: &[&str]| {
        let out = std::process::Command::new(&registry).args(args).args(["--registry", &at]).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    let made = std::process::Command::new(&registry).args(["init", &at]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    admin(&["project", "create", "p"]);
    admin(&["warehouse", "create", "w", "--project", "p", "--root", &root]);
    admin(&["namespace", "create", "namespace/n", "--warehouse", "w"]);
    admin(&["table", "create", "table/n/known", "--location", "known"]);
    table(&dir, "lake/lost", 1).await;
    admin(&["table", "create", "table/n/lost", "--location", "lost"]);
    std::fs::remove_dir_all(dir.path().join("lake/lost")).unwrap();
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!(code, 3);
    assert_eq!(found(&whole, "/stranger"), [("unregistered_dataset".to_string(), String::new())]);
    assert_eq!(found(&whole, "/known"), []);
    let estate: Vec<&str> = whole["findings"].as_array().unwrap().iter().map(|f| f["kind"].as_str().unwrap()).collect();
    assert_eq!(estate, ["table_without_bytes"], "{whole:#}");
    admin(&["table", "drop", "table/n/lost"]);
    admin(&["table", "create", "table/n/later", "--location", "later", "--declare"]);
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!((code, &whole["totals"]["skipped"]["declared_only"]), (0, &1.into()), "{whole:#}");
}

#[tokio::test]
async fn while_a_registered_warehouse_is_away_nothing_is_an_orphan() {
    let dir = tempfile::tempdir().unwrap();
    let source = table(&dir, "lake/source", 2).await;
    table(&dir, "other/clone", 1).await;
    let old = source.join("data/00000000000000000000000000000001.lance");
    std::fs::copy(first_data(&source), &old).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(30 * 86_400);
    std::fs::File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    let registry = assert_cmd::cargo::cargo_bin("squire-reconcile").with_file_name("squire-registry");
    let at = dir.path().join("ctl").to_str().unwrap().to_owned();
    let admin = |args: &[&str]| {
        let out = std::process::Command::new(&registry).args(args).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    admin(&["init", &at]);
    admin(&["project", "create", "p", "--registry", &at]);
    for name in ["lake", "other"] {
        let root = dir.path().join(name).to_str().unwrap().to_owned();
        admin(&["warehouse", "create", name, "--project", "p", "--root", &root, "--registry", &at]);
    }
    let orphans = |report: &Value| found(report, "/source").iter().filter(|(kind, _)| kind == "orphan_file").count();
    assert_eq!(orphans(&report(&dir, &["lake", "--registry", &at]).1), 1);
    std::fs::rename(dir.path().join("other"), dir.path().join("away")).unwrap();
    let (code, whole) = report(&dir, &["lake", "--registry", &at]);
    assert_eq!((code, orphans(&whole)), (3, 0), "{whole:#}");
    let kinds: Vec<&str> = whole["findings"].as_array().unwrap().iter().map(|f| f["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["warehouse_without_bucket"]);
}

#[test]
fn a_root_without_a_dataset_is_no_clean_bill() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    let (code, out, err) = output(&dir, &["report", "empty"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("empty_scan"), "{err}");
}

/// What the published schema says against a document, through an independent validator; `None`, said loudly, without one.
fn against_schema(document: &Value, test: &str) -> Option<String> {
    let Some(python) = std::env::var_os("TEST_PYTHON") else {
        eprintln!("SKIPPED {test}: TEST_PYTHON is not set (run `make test`)");
        return None;
    };
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas/squire.report.v1.json");
    let code = "import json, sys, jsonschema\n\
                schema = json.load(open(sys.argv[1]))\n\
                checker = jsonschema.Draft202012Validator(schema)\n\
                print([f'{list(e.path)}: {e.message}'[:300] for e in checker.iter_errors(json.load(sys.stdin))])";
    let mut child = std::process::Command::new(python)
        .args(["-c", code])
        .arg(schema)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), document.to_string().as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    Some(String::from_utf8(out.stdout).unwrap().trim().to_owned())
}

#[tokio::test]
async fn a_report_is_what_its_published_schema_says() {
    let dir = tempfile::tempdir().unwrap();
    let messy = table(&dir, "lake/messy", 3).await;
    std::fs::create_dir(messy.join("media")).unwrap();
    std::fs::write(messy.join("media/cat.png"), "a cat").unwrap();
    let broken = table(&dir, "lake/broken", 2).await;
    std::fs::remove_file(first_data(&broken)).unwrap();
    let (_, whole) = report(&dir, &["lake", "--set", "prices.stored_gib_month=1"]);
    let Some(errors) = against_schema(&whole, "a_report_is_what_its_published_schema_says") else { return };
    assert_eq!(errors, "[]", "{whole:#}");
    let mut wrong = whole.clone();
    wrong["totals"]["stored"]["gold"] = 1.into();
    assert_ne!(against_schema(&wrong, "").unwrap(), "[]");
}

#[tokio::test]
async fn what_the_policy_and_the_manifests_say_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lake/orders");
    std::fs::create_dir_all(&path).unwrap();
    let uri = squire_lake::uri::canonical(path.to_str().unwrap()).unwrap();
    let mut sample = Sample::new(uri, Columns::default());
    sample.write(300, 0).await.unwrap();
    sample.index(squire_lake::sample::SampleIndex::BTree).await.unwrap();
    sample.write(10, 300).await.unwrap();
    sample.drop_column("body").await.unwrap();
    sample.config(&[("lance.auto_cleanup.interval", "1"), ("lance.auto_cleanup.older_than", "1h")]).await.unwrap();
    let required =
        "policy.required_indices=[{columns=[\"kind\"], type=\"BITMAP\"}, {columns=[\"id\"], type=\"BTREE\"}]";
    let (code, whole) = report(&dir, &["lake", "--set", required]);
    assert_eq!(code, 0, "{whole:#}");
    let mut kinds: Vec<String> = found(&whole, "/orders").into_iter().map(|(kind, _)| kind).collect();
    kinds.sort();
    assert_eq!(kinds, ["auto_cleanup_conflict", "dead_column_bytes", "index_lagging", "index_missing"], "{whole:#}");
    let row = &whole["datasets"][0];
    let index = &row["before"]["indices"][0];
    assert_eq!((&index["state"], &index["unindexed_rows"]), (&"lagging".into(), &10.into()));
    let lacks = &row["before"]["indices"][1];
    let expected = serde_json::json!({ "name": "kind_idx", "type": "BITMAP", "segments": 0, "indexed_rows": 0,
        "unindexed_rows": 310, "state": "missing" });
    assert_eq!(lacks, &expected, "what the policy requires and the table lacks has a row of its own");
    assert_eq!(row["before"]["indices"].as_array().unwrap().len(), 2);
    let dead = row["findings"].as_array().unwrap().iter().find(|f| f["kind"] == "dead_column_bytes").unwrap();
    assert_eq!(dead["bytes"], row["stored"]["dead_columns"]);
}

#[tokio::test]
async fn somebody_elses_compactions_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let orders = table(&dir, "lake/orders", 4).await;
    let Some(python) = std::env::var_os("TEST_PYTHON") else {
        eprintln!("SKIPPED somebody_elses_compactions_are_told: TEST_PYTHON is not set");
        return;
    };
    let code = "import sys, lance; lance.dataset(sys.argv[1]).optimize.compact_files()";
    let done = std::process::Command::new(python).args(["-c", code]).arg(&orders).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let (_, whole) = report(&dir, &["lake"]);
    assert_eq!(found(&whole, "/orders"), [("other_maintainer".to_string(), String::new())]);
    // A rewrite is no writer's: every byte that pylance's compaction wrote was written a second time.
    let amplification = whole["datasets"][0]["stored"]["write_amplification"].as_f64().unwrap();
    assert!(amplification > 1.2, "{amplification}");
}

#[tokio::test]
async fn a_dropped_table_is_trash_and_one_whose_bytes_are_gone_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("lake").to_str().unwrap().to_owned();
    for name in ["kept", "gone", "live"] {
        table(&dir, &format!("lake/{name}"), 1).await;
    }
    let registry = assert_cmd::cargo::cargo_bin("squire-reconcile").with_file_name("squire-registry");
    let at = format!("{root}/_squire");
    let admin = |args: &[&str]| {
        let out = std::process::Command::new(&registry).args(args).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    admin(&["init", &at]);
    admin(&["project", "create", "p", "--registry", &at]);
    admin(&["warehouse", "create", "w", "--project", "p", "--root", &root, "--registry", &at]);
    admin(&["namespace", "create", "namespace/n", "--warehouse", "w", "--registry", &at]);
    for name in ["kept", "gone", "live"] {
        admin(&["table", "create", &format!("table/n/{name}"), "--location", name, "--registry", &at]);
    }
    for name in ["kept", "gone"] {
        admin(&["table", "drop", &format!("table/n/{name}"), "--registry", &at]);
    }
    std::fs::remove_dir_all(dir.path().join("lake/gone")).unwrap();
    let (_, whole) = report(&dir, &["lake"]);
    let row = |name: &str| {
        let rows = whole["datasets"].as_array().unwrap();
        rows.iter().find(|d| d["uri"].as_str().unwrap().ends_with(name)).unwrap().clone()
    };
    let kept = row("/kept");
    assert_eq!(
        (&kept["stored"]["classes"]["trash"], &kept["stored"]["classes"]["live"]),
        (&kept["stored"]["total"], &0.into())
    );
    assert_eq!(row("/live")["stored"]["classes"]["trash"], 0);
    assert_eq!(row("/gone")["outcome"]["reason"], "trashed");
    let kinds: Vec<&str> = whole["findings"].as_array().unwrap().iter().map(|f| f["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["trash_without_bytes"], "{whole:#}");
}

/// A graph pins detached versions of its tables. Somebody commits beside it: no pin leads there.
#[tokio::test]
async fn a_commit_on_a_graphs_table_that_the_graph_did_not_make_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    // The graph's own table of versions goes on in attached ones, also after a detached proposal.
    let at = dir.path().join("lake/g/__manifest");
    std::fs::create_dir_all(at.parent().unwrap()).unwrap();
    let mut catalog = Sample::new(squire_lake::uri::canonical(at.to_str().unwrap()).unwrap(), Columns::default());
    catalog.write(10, 0).await.unwrap().commit_detached().await.unwrap().write(10, 10).await.unwrap();
    squire_lake::sample::set_schema_metadata(&at, "omnigraph:internal_schema_version", "14").unwrap();
    let path = dir.path().join("lake/g/nodes/0001-0001");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut sample = Sample::new(squire_lake::uri::canonical(path.to_str().unwrap()).unwrap(), Columns::default());
    sample.write(10, 0).await.unwrap().write(10, 10).await.unwrap().commit_detached().await.unwrap();
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!(code, 0, "{whole:#}");
    assert!(found(&whole, "/0001-0001").iter().all(|(kind, _)| kind != "foreign_commit"), "{whole:#}");
    sample.write(10, 20).await.unwrap().write(10, 30).await.unwrap();
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!(code, 3, "{whole:#}");
    let rows = whole["datasets"].as_array().unwrap().iter().flat_map(|d| d["findings"].as_array().unwrap());
    let foreign: Vec<&Value> = rows.filter(|f| f["kind"] == "foreign_commit").collect();
    assert_eq!(foreign.len(), 1, "not the graph's own table of versions: {whole:#}");
    assert_eq!(foreign[0]["severity"], "error");
    let detail = foreign[0]["detail"].as_str().unwrap();
    assert!(detail.contains("2 of its versions") && detail.contains('3') && detail.contains('4'), "{detail}");
    // What the graph signed is its own, also after its first pin; what Squire stamped never is, also before that.
    let signed = dir.path().join("lake/g/nodes/0002-0001");
    let uri = squire_lake::uri::canonical(signed.to_str().unwrap()).unwrap();
    Sample::new(uri.as_str(), Columns::default()).write(10, 0).await.unwrap();
    let stamped = stamp(&uri).await;
    let mut sample = Sample::open(&lake(), &uri, Columns::default()).await.unwrap();
    sample.commit_detached().await.unwrap().commit_by_graph().await.unwrap();
    let (_, whole) = report(&dir, &["lake"]);
    let rows = whole["datasets"].as_array().unwrap();
    let row = rows.iter().find(|d| d["uri"].as_str().unwrap().ends_with("/0002-0001")).unwrap();
    let foreign: Vec<&Value> =
        row["findings"].as_array().unwrap().iter().filter(|f| f["kind"] == "foreign_commit").collect();
    assert_eq!(foreign.len(), 1, "{row:#}");
    let detail = foreign[0]["detail"].as_str().unwrap();
    assert!(detail.contains("1 of its versions") && detail.ends_with(&format!(": {stamped}")), "{detail}");
}

fn lake() -> squire_lake::Lake {
    squire_lake::Lake::new(std::sync::Arc::new(|_: &str| std::collections::HashMap::new()), 256 << 20)
}

/// One commit of Squire's own; its version.
async fn stamp(uri: &str) -> u64 {
    let lake = lake();
    let dataset = std::sync::Arc::new(lake.open(uri).await.unwrap());
    let stamper = squire_lake::stamp::Stamper { estate: Uuid::now_v7(), run: Uuid::now_v7() };
    squire_lake::commit::empty(&lake, &dataset, &stamper, 1).await.unwrap().version_id()
}

/// A run of ours wrote a file and does not know whether its commit landed: no version names the file. Of others' young files
/// nothing is said but that they are young.
#[tokio::test]
async fn what_a_run_of_ours_left_behind_is_stranded_and_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    let orders = table(&dir, "lake/orders", 2).await;
    let at = dir.path().join("lake/_squire").to_str().unwrap().to_owned();
    let binary = assert_cmd::cargo::cargo_bin("squire-reconcile").with_file_name("squire-registry");
    assert!(std::process::Command::new(&binary).args(["init", &at]).status().unwrap().success());
    let registry = Registry::open(&at, &Default::default()).await.unwrap();
    let (run, uri) = (Uuid::now_v7(), squire_lake::uri::canonical(orders.to_str().unwrap()).unwrap());
    let now = chrono::Utc::now();
    let record = RunRecord {
        run,
        kind: "sweep".into(),
        estate: registry.id(),
        started_at: now,
        command: "squire-maintenance sweep".into(),
        actor: registry.actor().clone(),
        tool_version: "0.1.0".into(),
        mode: "maintain".into(),
        config_digest: None,
        plan_digest: None,
        live: registry.snapshot().await.unwrap().live_counts(),
        outcome: None,
    };
    registry.run_open(record).await.unwrap();
    let intent = DatasetIntent {
        read_version: 2,
        steps: vec!["compact".into()],
        versions: Vec::new(),
        files: 0,
        bytes: 0,
        policy: Default::default(),
        policy_source: "estate".into(),
        plan_digest: None,
    };
    let entry = DatasetEntry { run, attempt: run, uri: uri.clone(), table: None, opened_at: now, intent, result: None };
    registry.run_dataset_opened(run, entry).await.unwrap();
    let ours = orders.join("data/00000000000000000000000000000001.lance");
    std::fs::copy(first_data(&orders), &ours).unwrap();
    let bytes = std::fs::metadata(&ours).unwrap().len();
    let others = orders.join("data/00000000000000000000000000000002.lance");
    std::fs::copy(first_data(&orders), &others).unwrap();
    let days_ago = SystemTime::now() - Duration::from_secs(3 * 86_400);
    std::fs::File::options().write(true).open(&others).unwrap().set_modified(days_ago).unwrap();
    let stranded = |report: &Value| -> Vec<u64> {
        let findings = report["datasets"][0]["findings"].as_array().unwrap().iter();
        findings.filter(|f| f["kind"] == "stranded_bytes").map(|f| f["bytes"].as_u64().unwrap()).collect()
    };
    let (_, whole) = report(&dir, &["lake"]);
    assert!(stranded(&whole).is_empty(), "it may be at work: {whole:#}");
    let result = DatasetResult {
        closed_at: chrono::Utc::now(),
        outcome: "failed".into(),
        stranded_bytes: bytes,
        ..DatasetResult::default()
    };
    registry.run_dataset_closed(run, &uri, run, result).await.unwrap();
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!((code, stranded(&whole)), (0, vec![bytes]), "{whole:#}");
    assert_eq!(whole["totals"]["stranded_bytes"], bytes);
    let young = found(&whole, "/orders").into_iter().filter(|(kind, _)| kind == "young_file");
    assert_eq!(young.count(), 2, "{whole:#}");
}

/// What a report asks of an S3 server: per dataset one LIST that tells what it is, one of its objects, one GET per manifest. A second
/// look costs its listing and its manifests once more, and only where something was found.
#[test]
fn a_report_costs_its_listings_and_its_manifests_and_nothing_more() {
    let Some(server) = Server::shared("a_report_costs_its_listings_and_its_manifests_and_nothing_more") else { return };
    let (dir, bucket) = (tempfile::tempdir().unwrap(), server.bucket());
    server.pylance("write", "s3://lake/requests/t0", serde_json::json!({"rows_each": 5, "appends": 5}));
    let mut objects = bucket.read("requests/t0");
    for name in ["t1", "t2", "t3"] {
        if name == "t3" {
            objects.insert("data/one.lance".into(), bytes::Bytes::from_static(b"nobody names it"));
        }
        bucket.write(&format!("requests/{name}"), &objects);
    }
    let proxy = Proxy::ageing(server.endpoint());
    std::fs::write(dir.path().join("squire.toml"), server.storage(Some(&proxy.endpoint()))).unwrap();
    proxy.pass();
    let (code, whole) = report(&dir, &["s3://lake/requests"]);
    assert_eq!(code, 0, "{whole:#}");
    assert_eq!(found(&whole, "/t3"), [("orphan_file".to_string(), "data/one.lance".to_string())]);
    let log = proxy.log();
    let of = |name: &str| -> [usize; 3] {
        let (path, prefix) = (format!("/lake/requests/{name}/"), format!("prefix=requests%2F{name}"));
        let of = |r: &&squire_test_support::Request| r.path.starts_with(&path) || r.query.contains(&prefix);
        let mine: Vec<_> = log.iter().filter(of).collect();
        let lists = mine.iter().filter(|r| r.query.contains("list-type=")).count();
        let manifests = mine.iter().filter(|r| r.method == "GET" && r.path.ends_with(".manifest")).count();
        [lists, manifests, mine.len() - lists - manifests]
    };
    for name in ["t0", "t1", "t2"] {
        assert_eq!(of(name), [2, 5, 0], "{name}: {log:#?}");
    }
    assert_eq!(of("t3"), [3, 10, 0], "{log:#?}");
}
