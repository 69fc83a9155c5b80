//! A whole estate of other people's making, shared by two replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use squire_test_support::{Action, Gate, Objects, on_nth_of_kind};

use crate::fleet::{Fleet, PASSWORD, wait};

/// Writes the estate to S3; its facts, by path.
fn write(fleet: &Fleet, python: &str, script: &Path) -> BTreeMap<String, Value> {
    let local = fleet.path("estate");
    let made = Command::new(python).arg(script).arg(&local).output().expect("python ran");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let text = String::from_utf8(made.stdout).expect("UTF-8");
    let facts = text.lines().map(|l| serde_json::from_str::<Value>(l).expect("JSON"));
    let mut facts: BTreeMap<String, Value> =
        facts.map(|f| (f["path"].as_str().expect("a path").to_owned(), f)).collect();
    // A clone names its source's place: these two are made anew where they are to lie.
    let mut objects = files(&local);
    objects.retain(|path, _| !path.starts_with("lake/acme-gold/catalogue"));
    fleet.bucket.write(&fleet.prefix, &objects);
    let (source, clone) = ("acme-gold/catalogue", "acme-gold/catalogue_clone");
    fleet.pylance("write", source, json!({ "rows_each": 100, "appends": 4 }));
    fleet.pylance("clone", source, json!({ "to": fleet.uri(clone), "version": 4 }));
    fleet.pylance("write", source, json!({ "rows_each": 100, "start": 10_000, "overwrite": true }));
    for (name, rows, sum) in [(source, 100, 1_004_950), (clone, 400, 79_800)] {
        let fact = facts.get_mut(&format!("lake/{name}")).expect("a fact");
        (fact["rows"], fact["id_sum"]) = (rows.into(), sum.into());
    }
    facts
}

/// Every file below a folder by its path.
fn files(dir: &Path) -> Objects {
    let mut out = Objects::new();
    let mut queue = vec![PathBuf::from(dir)];
    while let Some(at) = queue.pop() {
        for entry in std::fs::read_dir(&at).expect("readable") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                queue.push(path);
            } else {
                let name = path.strip_prefix(dir).expect("below").to_str().expect("UTF-8").to_owned();
                out.insert(name, std::fs::read(&path).expect("readable").into());
            }
        }
    }
    out
}

/// Asks the reader that is not ours whether the facts hold, fragments and index coverage included.
#[track_caller]
fn facts_hold(fleet: &Fleet, python: &str, facts: &BTreeMap<String, Value>) {
    let file = fleet.path("facts.jsonl");
    let lines: String = facts.values().map(|f| format!("{f}\n")).collect();
    std::fs::write(&file, lines).expect("written");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../py/check.py");
    let mut command = Command::new(python);
    command.arg(script).arg(format!("s3://lake/{}", fleet.prefix)).arg(file).arg("--shape");
    for (key, value) in fleet.server.options() {
        let key = key.to_uppercase();
        command.env(if key.starts_with("AWS_") { key } else { format!("AWS_{key}") }, value);
    }
    let output = command.output().expect("python ran");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", said(&output.stdout), said(&output.stderr));
}

#[test]
fn two_replicas_handle_every_dataset_of_an_estate_once() {
    let test = "two_replicas_handle_every_dataset_of_an_estate_once";
    let script = std::env::var_os("TEST_SHARED").map(|d| PathBuf::from(d).join("tools/make_estate.py"));
    let Some(script) = script.filter(|s| s.exists()) else {
        eprintln!("SKIPPED {test}: TEST_SHARED names no folder with tools/make_estate.py");
        return;
    };
    let Some(fleet) = Fleet::new(test) else { return };
    let python = std::env::var("TEST_PYTHON").expect("the servers needed it");
    let facts = write(&fleet, &python, &script);
    assert_eq!(facts.len(), 13);
    let (a, b) = (fleet.replica(&[]), fleet.replica(&[]));
    let sweep = fleet.sweep(&[&a, &b]);
    assert_eq!((&sweep["seen"], &sweep["due"]), (&json!(13), &sweep["handed"]), "{sweep}");
    facts_hold(&fleet, &python, &facts);

    // Events, audit and stamps tell the same story, and each of them once.
    let run = sweep["run"].as_str().expect("a run");
    assert!(fleet.events_of("pass.failed").is_empty());
    assert_eq!((fleet.events_of("run.started").len(), fleet.events_of("run.finished").len(), fleet.runs()), (1, 1, 1));
    let completed = fleet.events_of("pass.completed");
    let told: BTreeSet<String> = completed.iter().filter_map(|e| Some(e.data["uri"].as_str()?.to_owned())).collect();
    assert_eq!((completed.len() as u64, told.len()), (sweep["due"].as_u64().expect("a number"), completed.len()));
    assert!(told.len() >= 9, "{told:?}");
    let audit = fleet.audit(run);
    assert_eq!(audit.keys().cloned().collect::<BTreeSet<_>>(), told);
    for (uri, entry) in &audit {
        let result = entry.result.as_ref().unwrap_or_else(|| panic!("{uri} is not closed"));
        assert_eq!(result.outcome, "maintained", "{uri}: {result:?}");
        let name = uri.strip_prefix(&format!("{}/", fleet.root())).expect("below the root");
        let stamps = fleet.stamps(name);
        let made: BTreeSet<u64> = stamps.keys().copied().collect();
        let recorded: BTreeSet<u64> = result.commits.iter().map(|c| c.version).collect();
        assert!(recorded.is_subset(&made) && !recorded.is_empty(), "{uri}: {recorded:?} recorded, {made:?} made");
        assert!(stamps.values().all(|s| s.starts_with(run)), "{uri}: one run made them all: {stamps:?}");
        let once: BTreeSet<&String> = stamps.values().collect();
        assert_eq!(once.len(), stamps.len(), "{uri}: each slice of each step is one version: {stamps:?}");
    }

    // The next tick finds nothing to do and changes nothing.
    let settled = fleet.objects();
    let idle = fleet.sweep(&[&a, &b]);
    assert_eq!((&idle["seen"], &idle["due"]), (&json!(13), &json!(0)), "{idle}");
    let after = fleet.objects();
    assert_eq!(settled.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    assert!(settled == after, "an object changed");
    assert_eq!(fleet.runs(), 1);

    fleet.oracle();

    // Whoever swept shows every dataset once, and nobody shows a secret.
    let last = [&a, &b].into_iter().find(|r| r.lines("swept the estate").iter().any(|l| l["run"] == idle["run"]));
    let sum: f64 = last.expect("somebody swept").metric("squire_datasets").iter().map(|(_, n)| n).sum();
    assert_eq!(sum, 13.0);
    for replica in [&a, &b] {
        assert_eq!(replica.json("/readyz").0, 200);
        for page in ["/status", "/metrics", "/readyz"] {
            let (status, body) = replica.get(page);
            assert_eq!(status, 200, "{page}");
            for secret in ["fake-test-secret", PASSWORD] {
                assert!(!body.contains(secret), "{page} shows a secret: {body}");
            }
        }
        assert!(!replica.text().contains("fake-test-secret") && !replica.text().contains(PASSWORD));
    }
}

/// The tick has looked at every dataset. A replica that is then given passes needs no look of its own at the others, only whether they
/// still are where the tick saw them.
#[test]
fn a_replica_that_is_given_passes_asks_one_question_of_what_it_does_not_work_on() {
    let test = "a_replica_that_is_given_passes_asks_one_question_of_what_it_does_not_work_on";
    let Some(fleet) = Fleet::new(test) else { return };
    fleet.copies_of_one(0..8, 4);
    let (busy, fresh, gate) = (fleet.proxy(), fleet.proxy(), Gate::new());
    busy.set(on_nth_of_kind("PUT data", 1, Action::Hold(gate.clone())));
    let first = fleet.replica_behind(Some(&busy), &["limits.concurrency=1"]);
    fleet.tick();
    let held = gate.arrived().path;
    let name = held.split('/').find(|s| s.starts_with("t0")).expect("a dataset").to_owned();
    let second = fleet.replica_behind(Some(&fresh), &[]);
    wait("the other one does the rest", || (second.lines("maintained").len() == 7).then_some(()));
    let asked: Vec<_> = fresh.log().into_iter().filter(|r| r.path.contains(&format!("/lake/{name}/"))).collect();
    gate.open();
    fleet.settles();
    assert!(!asked.is_empty() && asked.iter().all(|r| r.method == "HEAD"), "{asked:#?}");
    assert!(asked.len() <= 2, "one question, and for every thirtieth dataset another: {asked:#?}");
    assert_eq!(first.lines("maintained").len(), 1);
    fleet.oracle();
}
