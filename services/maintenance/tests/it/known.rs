//! What is known and has not moved costs one request; what has moved is found.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use squire_test_support::{Request, Server};

use super::common::*;
use super::replaced_at::age;
use super::s3_estate::*;

/// One dataset of one version, at a prefix of its own.
fn seed(server: &'static Server) -> Pristine {
    Pristine::made(server, |root| drop(server.pylance("write", &format!("{root}/seed"), Value::Null)), &["seed"])
}

/// `n` copies of a dataset in three folders, and a registry.
fn many(server: &'static Server, n: usize) -> OnS3 {
    let pristine = seed(server);
    let estate = OnS3::empty(server, "known");
    let files = |i: usize| {
        let name = move |name: &str| format!("ns-{}/t{i:04}/{}", i % 3, name.trim_start_matches("seed/"));
        pristine.objects.iter().map(move |(path, bytes)| (name(path), bytes.clone()))
    };
    estate.bucket.write(&estate.prefix, &(0..n).flat_map(files).collect());
    estate.registry(&["init", &format!("{}/_squire", estate.root()), "--name", "n"]);
    estate
}

/// Requests for the lake's own objects, beside the registry's.
fn of_the_lake(log: &[Request]) -> Vec<&Request> {
    log.iter().filter(|r| !r.path.contains("_squire") && !r.query.contains("_squire")).collect()
}

fn is_for_a_dataset(r: &Request) -> bool {
    r.path.contains("/t0") || r.query.contains("%2Ft0") || r.query.contains("/t0")
}

#[track_caller]
fn due(estate: &OnS3) -> Value {
    let ended = estate.start_plainly(&["--due"]).end();
    assert_eq!(ended.code(), Some(0), "{}\n{:#}", ended.stderr, ended.report);
    ended.report
}

#[test]
fn a_known_dataset_that_has_not_moved_costs_one_request() {
    let Some(server) = Server::shared("a_known_dataset_that_has_not_moved_costs_one_request") else { return };
    let estate = many(server, 120);
    assert_eq!(due(&estate)["totals"]["idle"], 120);

    estate.proxy.pass();
    let report = due(&estate);
    assert_eq!((&report["totals"]["seen"], &report["totals"]["idle"]), (&json!(120), &json!(120)));
    let before = &row(&report, "t0007")["before"];
    assert_eq!((&before["version"], &before["rows"]), (&json!(1), &json!(30)), "what the full look found is shown");
    let log = estate.proxy.log();
    let lake = of_the_lake(&log);
    let datasets = lake.iter().filter(|r| is_for_a_dataset(r)).count();
    // One HEAD each, and one more for every thirtieth: 120 + 4.
    assert_eq!(datasets, 124, "{:#?}", lake.iter().take(20).collect::<Vec<_>>());
    assert!(lake.iter().filter(|r| is_for_a_dataset(r)).all(|r| r.method == "HEAD"));
    // The root, three folders, and what lies above the root.
    assert!(
        lake.len() - datasets <= 12,
        "discovery: {:#?}",
        lake.iter().filter(|r| !is_for_a_dataset(r)).collect::<Vec<_>>()
    );
    assert!(estate.proxy.writes().is_empty(), "nothing changed, so nothing is written: {:#?}", estate.proxy.writes());
    // What is remembered lies in shards, and each is read once.
    let shards: Vec<&Request> = log.iter().filter(|r| r.path.contains("/_squire/v1/state/")).collect();
    assert!(shards.len() > 50 && shards.iter().all(|r| r.attempt == 1), "{} reads of shards", shards.len());
    let lists = log.iter().filter(|r| r.query.contains("_squire%2Fv1%2Fstate") || r.query.contains("_squire/v1/state"));
    assert_eq!(lists.count(), 1);

    // One has moved, one is new.
    server.pylance("write", &estate.uri("ns-1/t0007"), json!({"start": 30}));
    server.pylance("write", &estate.uri("ns-0/t0900"), Value::Null);
    estate.proxy.pass();
    let report = due(&estate);
    assert_eq!(report["totals"]["seen"], 121);
    assert_eq!(row(&report, "t0007")["before"]["version"], 2);
    assert_eq!(row(&report, "t0900")["before"]["version"], 1);
    let of = |name: &str| estate.proxy.log().iter().filter(|r| r.path.contains(name) || r.query.contains(name)).count();
    assert!(of("t0007") > 2, "what has moved is looked at in full");
    assert!(of("t0010") <= 2);
}

#[test]
fn files_that_a_table_made_anew_reads_stay_although_its_next_version_is_not_there() {
    let name = "files_that_a_table_made_anew_reads_stay_although_its_next_version_is_not_there";
    let Some(server) = Server::shared(name) else { return };
    let estate = OnS3::empty(server, "anew");
    let (source, other) = (estate.uri("source"), estate.uri("other"));
    server.pylance("write", &source, Value::Null);
    server.pylance("write", &other, json!({"appends": 3, "start": 900}));
    estate.registry(&["init", &format!("{}/_squire", estate.root()), "--name", "n"]);
    let sweep = || {
        std::thread::sleep(AGE);
        let flags = ["--due", "--set", "floors.retention=1s", "--retention", "1s", "--retain-versions", "3"];
        let ended = estate.start_plainly(&flags).end();
        assert_eq!(ended.code(), Some(0), "{}\n{:#}", ended.stderr, ended.report);
        ended.report
    };
    assert_eq!(sweep()["totals"]["versions_removed"], 0);

    // The source gets history; the other becomes a clone of the source's first version, and counts from 1 again.
    server.pylance("write", &source, json!({"overwrite": true, "start": 100}));
    server.pylance("write", &source, json!({"appends": 3, "start": 200}));
    for file in estate.files("other") {
        estate.bucket.delete(&format!("{}/other/{file}", estate.prefix));
    }
    server.pylance("clone", &source, json!({"to": other, "version": 1}));
    let cloned = server.pylance("read", &other, Value::Null);
    assert!(cloned["version"].as_u64().expect("a version") <= 3, "{cloned}");

    let swept = sweep();
    assert!(swept["totals"]["versions_removed"].as_u64().expect("a number") >= 1, "{swept:#}");
    assert_eq!(server.pylance("read", &other, Value::Null)["digest"], cloned["digest"], "the clone reads as before");
}

/// A settled table with twelve versions within their retention, looked at by the clock, so that it is known.
async fn known_table() -> Here {
    let here = Here::new();
    here.table("lake/t", 12, 20).await;
    report(&["sweep", &here.text("lake"), "--yes"]);
    // Remembered by the first, unmoved for the second.
    for _ in 0..2 {
        let swept = report(&["sweep", &here.text("lake"), "--yes", "--due"]);
        assert_eq!(swept["totals"]["idle"], 1, "{swept:#}");
    }
    here
}

fn lists(report: &Value) -> &Value {
    &report["totals"]["requests"]["list"]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_an_unmoved_dataset_lists_nothing_and_writes_nothing() {
    let here = known_table().await;
    let before = tree(&here.path(""));
    let swept = report(&["sweep", &here.text("lake"), "--yes", "--due"]);
    assert_eq!((lists(&swept), &swept["totals"]["requests"]["get"]), (&json!(0), &json!(0)), "{swept:#}");
    assert_eq!(tree(&here.path("")), before, "the registry gains no generation");
    let by_hand = report(&["sweep", &here.text("lake"), "--yes"]);
    assert!(lists(&by_hand).as_u64().is_some_and(|n| n > 0), "by hand everything is looked at: {by_hand:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn time_alone_makes_a_known_dataset_due() {
    let here = known_table().await;
    let plan = |hours: i64| {
        let at = (chrono::Utc::now() + chrono::Duration::hours(hours)).to_rfc3339();
        report(&["plan", &here.text("lake"), "--due", "--at", &at])
    };
    let soon = plan(12);
    assert_eq!((&soon["totals"]["idle"], lists(&soon)), (&json!(1), &json!(0)), "nothing is due: {soon:#}");
    let later = plan(8 * 24);
    assert_eq!(later["totals"]["planned"], 1, "{later:#}");
    assert!(row(&later, "lake/t")["steps"]["cleanup"]["versions_removed"].as_u64().is_some_and(|n| n > 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_policy_makes_a_known_dataset_due() {
    let here = Here::new();
    here.table("lake/t", 12, 20).await;
    age(&here, "lake/t", 3 * 86_400);
    report(&["sweep", &here.text("lake"), "--yes"]);
    let due = |verb: &str, more: &[&str]| {
        let root = here.text("lake");
        let mut args = vec![verb, root.as_str(), "--due", "--set", "policy.interval=0s"];
        args.extend(more);
        report(&args)
    };
    for _ in 0..2 {
        due("sweep", &["--yes"]);
    }
    assert_eq!(lists(&due("plan", &[])), &json!(0));
    let planned = due("plan", &["--set", "policy.retention=2d"]);
    assert_eq!(planned["totals"]["planned"], 1, "{planned:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_made_anew_is_found_although_it_counts_from_one_again() {
    let here = known_table().await;
    std::fs::remove_dir_all(here.path("lake/t")).expect("removed");
    let gone = squire(&["plan", &here.text("lake"), "--due"]);
    assert_eq!(code(&gone), 1, "what is not there is not idle: {}", stderr(&gone));
    here.table("lake/t", 9, 20).await;
    let planned = report(&["plan", &here.text("lake"), "--due"]);
    let before = &row(&planned, "lake/t")["before"];
    assert_eq!((&before["version"], &before["fragments"]), (&json!(9), &json!(9)), "{planned:#}");
}

/// The registry's records of what was seen.
fn shards(here: &Here) -> Vec<PathBuf> {
    let dir = here.path("lake/_squire/v1/state");
    tree(&dir).into_iter().map(|(path, _)| path).collect()
}

/// Changes what is remembered of every dataset, in place.
fn damage(path: &Path, change: impl Fn(&mut Value)) {
    let mut record: Value = serde_json::from_slice(&std::fs::read(path).expect("read")).expect("JSON");
    for look in record["looks"].as_object_mut().into_iter().flat_map(serde_json::Map::values_mut) {
        change(look);
    }
    std::fs::write(path, record.to_string()).expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_memory_leads_to_a_full_look_and_to_nothing_else() {
    let cases: [fn(&mut Value); 5] = [
        |look| *look = json!(5),
        |look| look["version"] = json!(99),
        |look| look["version"] = json!(u64::MAX),
        |look| look["e_tag"] = json!("another"),
        |look| look["due_at"] = json!("no time"),
    ];
    let here = known_table().await;
    let kept: Vec<(PathBuf, Vec<u8>)> = tree(&here.path("lake/_squire"));
    for case in cases {
        shards(&here).iter().for_each(|path| damage(path, case));
        let planned = report(&["plan", &here.text("lake"), "--due"]);
        assert_eq!(planned["totals"]["idle"], 1, "{planned:#}");
        assert!(lists(&planned).as_u64().is_some_and(|n| n > 0), "a full look was taken: {planned:#}");
        assert_eq!(row(&planned, "lake/t")["steps"]["cleanup"]["reason"], "retention");
        for (path, bytes) in &kept {
            std::fs::write(path, bytes).expect("written");
        }
    }
    for path in shards(&here) {
        std::fs::write(path, b"?").expect("written");
    }
    let planned = report(&["plan", &here.text("lake"), "--due"]);
    assert_eq!(planned["totals"]["idle"], 1, "{planned:#}");
}
