//! Tables by old releases of LanceDB: which are left in their form, and what the old client can still do.
//!
//! `make test` works on recorded tables (`tests/data/old/`), `make test-long` on the releases themselves. What is expected
//! stands in one place, [`expected`], and is the matrix of `docs/compatibility.md`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use rstest::rstest;
use serde_json::{Value, json};
use squire_lake::look::{Look, Looked, look};

use super::common::*;

/// The recorded tables were written between these two.
const RECORDED_AFTER: &str = "2026-11-30T00:00:00Z";
const RECORDED_BEFORE: &str = "2026-12-01T00:00:00Z";

/// Recorded times grow old; this window never ends.
const FOR_EVER: &str = "policy.reader_window=36500d";

/// What a sweep does to each table: maintains it, or refuses to compact and to fold, for this reason.
fn expected(release: &str) -> BTreeMap<&'static str, &'static str> {
    let (done, old, legacy) = ("maintained", "old_clients", "legacy_index");
    let [plain, scalar, stable, tags, fts, vector, graph] = match release {
        "0.14.0" => [done, old, old, old, legacy, old, old],
        "0.22.1" => [done, done, done, old, legacy, old, old],
        "0.23.0" => [done, done, done, old, old, old, old],
        "0.24.0" => [done, done, done, old, old, old, old],
        "0.24.3" => [done, done, done, old, old, done, done],
        "0.29.2" => [done, done, old, old, done, done, done],
        "0.30.2" | "0.39.0" => [done, done, old, done, done, done, done],
        other => panic!("nothing is expected of {other}"),
    };
    [
        ("plain", plain),
        ("scalar", scalar),
        ("stable", stable),
        ("tags", tags),
        ("fts", fts),
        ("vector", vector),
        ("graph", graph),
    ]
    .into()
}

/// The recorded tables of a release, under `lake/`, with the times at which they were written.
fn recorded(release: &str) -> Here {
    let here = Here::new();
    let lake = here.path("lake");
    std::fs::create_dir(&lake).expect("made");
    let archive = format!("{}/tests/data/old/{release}.tar.gz", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&lake).output().expect("tar ran");
    assert_ok(&output, &archive);
    here
}

fn old_clients_py() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/py/old_clients.py").to_string()
}

/// What `old_clients.py` prints, run by this Python.
fn says(python: &str, args: &[&str]) -> Value {
    let script = old_clients_py();
    let output = run_python(python, &[&[script.as_str()], args].concat());
    assert_ok(&output, &format!("{python} old_clients.py {args:?}"));
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

async fn looked(here: &Here, table: &str) -> Look {
    match look(&lake(), &here.uri(&format!("lake/{table}.lance")), chrono::Utc::now()).await.expect("a look") {
        Looked::Dataset(look) => *look,
        other => panic!("{table} is no dataset: {other:?}"),
    }
}

/// `(name, segments, unindexed rows)` of every index.
async fn indices(here: &Here, table: &str) -> Vec<(String, usize, u64)> {
    let look = looked(here, table).await;
    look.indices.iter().map(|i| (i.name.clone(), i.segments.len(), i.unindexed_rows)).collect()
}

type Trees = BTreeMap<&'static str, Vec<(PathBuf, Vec<u8>)>>;

fn trees(here: &Here, release: &str) -> Trees {
    expected(release).into_keys().map(|t| (t, dataset_tree(&here.path(&format!("lake/{t}.lance"))))).collect()
}

fn sweep(here: &Here, more: &[&str]) -> Value {
    let root = here.text("lake");
    report(&[&["sweep", &root, "--yes"], more].concat())
}

/// The report and the files say what is expected: refused tables are the same byte for byte, the others are whole.
async fn assert_as_expected(here: &Here, release: &str, swept: &Value, before: &Trees) {
    for (table, what) in expected(release) {
        let row = row(swept, &format!("{table}.lance"));
        if what == "maintained" {
            assert_eq!(row["outcome"]["kind"], "maintained", "{release} {table}: {row:#}");
            assert_eq!(row["after"]["fragments"], 1, "{release} {table}: {row:#}");
            for (index, segments, unindexed) in indices(here, table).await {
                assert_eq!((segments, unindexed), (1, 0), "{release} {table} {index}");
            }
            continue;
        }
        assert_eq!(row["outcome"]["kind"], "idle", "{release} {table}: {row:#}");
        for step in ["compact", "optimize_indices"] {
            assert_eq!(row["steps"][step]["outcome"], "refused", "{release} {table} {step}: {row:#}");
            assert_eq!(row["steps"][step]["reason"], what, "{release} {table} {step}: {row:#}");
        }
        let now = dataset_tree(&here.path(&format!("lake/{table}.lance")));
        assert!(before[table] == now, "{release}: {table} was refused and has changed");
    }
}

/// pylance reads every table and every index of it that is not of the layout before partitions.
fn assert_reads(python: &str, here: &Here, release: &str) {
    let check = check_py();
    let readable = expected(release).into_iter().filter(|(_, what)| *what != "legacy_index");
    let paths: Vec<String> = readable.map(|(table, _)| here.text(&format!("lake/{table}.lance"))).collect();
    let mut args = vec![check.as_str(), "--indices"];
    args.extend(paths.iter().map(String::as_str));
    assert_ok(&run_python(python, &args), release);
}

#[rstest]
#[case("0.22.1", "0.27.2")]
#[case("0.23.0", "0.29.0")]
#[case("0.24.0", "0.30.0")]
#[case("0.24.3", "0.33.0")]
#[case("0.30.2", "4.0.0")]
#[tokio::test(flavor = "multi_thread")]
async fn a_table_keeps_its_form_where_its_client_would_lose_an_index(#[case] release: &str, #[case] lance: &str) {
    let here = recorded(release);
    for table in expected(release).keys() {
        let head = looked(&here, table).await.head.writer.clone();
        assert_eq!(head, Some(("lance".into(), lance.into())), "{release} {table}");
    }
    let python = python("a_table_keeps_its_form_where_its_client_would_lose_an_index (answers)");
    let answers = || python.as_ref().map(|p| says(p, &["search", &here.text("lake")]));
    let (answered, before) = (answers(), trees(&here, release));
    let swept = sweep(&here, &["--set", FOR_EVER]);
    assert_eq!(swept["totals"]["failed"], json!({}), "{swept:#}");
    assert_as_expected(&here, release, &swept, &before).await;
    assert_eq!(answered, answers());
    if let Some(python) = &python {
        assert_reads(python, &here, release);
    }
    let settled = trees(&here, release);
    sweep(&here, &["--set", FOR_EVER]);
    assert!(settled == trees(&here, release), "a second sweep changes nothing");
}

#[test]
fn a_writer_counts_as_a_client_for_the_reader_window_and_no_longer() {
    let here = recorded("0.23.0");
    let root = here.text("lake");
    let at = |time: &str, more: &[&str]| -> Value {
        let planned = report(&[&["plan", &root, "--at", time], more].concat());
        row(&planned, "vector.lance")["steps"]["compact"].clone()
    };
    let days = |from: &str, days: i64| {
        (chrono::DateTime::parse_from_rfc3339(from).expect("a time") + chrono::Duration::days(days)).to_rfc3339()
    };
    assert_eq!(at(&days(RECORDED_AFTER, 30), &[])["reason"], "old_clients");
    assert_eq!(at(&days(RECORDED_BEFORE, 30), &[])["outcome"], "planned");
    let week = ["--set", "policy.reader_window=7d"];
    assert_eq!(at(&days(RECORDED_AFTER, 7), &week)["reason"], "old_clients");
    assert_eq!(at(&days(RECORDED_BEFORE, 7), &week)["outcome"], "planned");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_no_client_has_written_for_long_is_maintained() {
    let name = "a_table_that_no_client_has_written_for_long_is_maintained";
    let here = recorded("0.23.0");
    wait_until_older(&here.path("lake"), Duration::from_secs(1));
    let swept = sweep(&here, &["--set", "policy.reader_window=1s"]);
    for table in expected("0.23.0").keys() {
        assert_eq!(row(&swept, &format!("{table}.lance"))["outcome"]["kind"], "maintained", "{table}: {swept:#}");
    }
    if let Some(python) = python(name) {
        assert_reads(&python, &here, "0.23.0");
    }
}

#[rstest]
#[case("0.22.1", "vector")]
#[case("0.23.0", "fts")]
#[case("0.24.0", "tags")]
#[case("0.30.2", "stable")]
#[tokio::test(flavor = "multi_thread")]
async fn the_policy_can_ask_for_the_new_form(#[case] release: &str, #[case] table: &str) {
    let here = recorded(release);
    let swept = sweep(&here, &["--set", FOR_EVER, "--set", "policy.upgrade_index_format=true"]);
    let upgraded = row(&swept, &format!("{table}.lance"));
    assert_eq!(upgraded["outcome"]["kind"], "maintained", "{upgraded:#}");
    assert_eq!(upgraded["after"]["fragments"], 1);
    let found = upgraded["findings"].as_array().expect("findings").iter().any(|f| f["kind"] == "old_clients");
    assert!(found, "the client that pays for it is named: {upgraded:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_text_index_before_partitions_waits_for_its_rebuild() {
    let here = recorded("0.22.1");
    let before = trees(&here, "0.22.1");
    wait_until_older(&here.path("lake"), Duration::from_secs(1));
    // Neither a client that is gone nor the policy's wish makes it readable.
    for more in ["policy.reader_window=1s", "policy.upgrade_index_format=true"] {
        let swept = sweep(&here, &["--dataset", &here.uri("lake/fts.lance"), "--set", more]);
        for step in ["compact", "optimize_indices"] {
            let said = &row(&swept, "fts.lance")["steps"][step];
            assert_eq!((&said["outcome"], &said["reason"]), (&json!("refused"), &json!("legacy_index")), "{swept:#}");
        }
    }
    assert!(before["fts"] == dataset_tree(&here.path("lake/fts.lance")));
    let Some(python) = python("a_full_text_index_before_partitions_waits_for_its_rebuild") else { return };
    says(&python, &["rebuild", &here.text("lake")]);
    let swept = sweep(&here, &["--dataset", &here.uri("lake/fts.lance"), "--set", "policy.reader_window=1s"]);
    assert_eq!(row(&swept, "fts.lance")["outcome"]["kind"], "maintained", "{swept:#}");
    assert_eq!(indices(&here, "fts").await, [("text_idx".to_string(), 1, 0)]);
    let output = run_python(&python, &[&check_py(), "--indices", &here.text("lake/fts.lance")]);
    assert_ok(&output, "check.py");
}

/// Why `legacy_index` is refused: the library's own compaction panics. When this fails, the refusal can go.
#[test]
fn the_library_panics_on_a_full_text_index_before_partitions() {
    let Some(python) = python("the_library_panics_on_a_full_text_index_before_partitions") else { return };
    let here = recorded("0.22.1");
    let script = "import lance, sys\nlance.dataset(sys.argv[1]).optimize.compact_files()";
    let output = run_python(&python, &["-c", script, &here.text("lake/fts.lance")]);
    assert!(
        !output.status.success() && stderr(&output).contains("panicked"),
        "exit {}: {}",
        code(&output),
        stderr(&output)
    );
}

/// Every manifest of a table is made older by so many days, in itself and for the store.
fn age(dir: &Path, days: u64) {
    let then = SystemTime::now() - Duration::from_secs(days * 86_400);
    for entry in std::fs::read_dir(dir.join("_versions")).expect("versions").flatten() {
        if entry.path().extension().is_some_and(|e| e == "manifest") {
            squire_lake::sample::backdate(&entry.path(), days * 86_400).expect("backdated");
            let file = std::fs::File::options().write(true).open(entry.path()).expect("opened");
            file.set_modified(then).expect("touched");
        }
    }
}

/// LanceDB 0.22.1 to 0.32 put `lance.auto_cleanup` (every 20 commits, 14 days) into every table. The sweep makes version 20.
#[rstest]
#[case("0.22.1")]
#[case("0.24.3")]
#[case("0.30.2")]
#[tokio::test(flavor = "multi_thread")]
async fn the_clean_up_that_lancedb_put_into_a_table_never_runs_in_a_sweep(#[case] release: &str) {
    let name = "the_clean_up_that_lancedb_put_into_a_table_never_runs_in_a_sweep";
    let Some(python) = python(name) else { return };
    let here = recorded(release);
    let config = looked(&here, "plain").await.config();
    assert_eq!(config.get("lance.auto_cleanup.interval").map(String::as_str), Some("20"));
    assert_eq!(config.get("lance.auto_cleanup.older_than").map(String::as_str), Some("14days"));
    // Six versions are recorded; eighteen are there, and compaction makes two more.
    says(&python, &["commits", &here.text("lake"), "plain", "12"]);
    age(&here.path("lake/plain.lance"), 40);
    let plain = here.uri("lake/plain.lance");
    let swept = sweep(&here, &["--dataset", &plain, "--set", "policy.retention=60d"]);
    let row = row(&swept, "plain.lance");
    assert_eq!(row["outcome"]["kind"], "maintained", "{row:#}");
    assert_eq!((&row["before"]["version"], &row["after"]["version"]), (&json!(18), &json!(20)), "{row:#}");
    let left: Vec<u64> = looked(&here, "plain").await.versions().iter().map(|(_, m)| m.version).collect();
    assert_eq!(left, (1..=20).collect::<Vec<u64>>(), "versions of 40 days went against a retention of 60");
    let conflict = row["findings"].as_array().expect("findings").iter().any(|f| f["kind"] == "auto_cleanup_conflict");
    assert!(conflict, "its writers would remove what the policy keeps, and the report says so: {row:#}");
}

/// The table's own 14 days are longer than the estate's week, and are honoured.
#[tokio::test(flavor = "multi_thread")]
async fn the_fourteen_days_that_lancedb_put_into_a_table_are_kept() {
    let here = recorded("0.30.2");
    let plain = here.uri("lake/plain.lance");
    let removed = |retention: &str| {
        let args = ["plan", &plain, "--at", "2026-12-14T00:00:00Z", "--set", retention];
        row(&report(&args), "plain.lance")["steps"]["cleanup"]["versions_removed"].clone()
    };
    assert_eq!(removed("policy.retention=7d"), 0);
    let later = ["plan", &plain, "--at", "2026-12-16T00:00:00Z", "--set", "policy.retention=7d"];
    assert_eq!(row(&report(&later), "plain.lance")["steps"]["cleanup"]["versions_removed"], 3);
}

/// With the releases themselves: `make test-long`.
mod wheels {
    use super::*;

    /// The Python with this release of LanceDB, or a loud skip.
    fn wheel(test: &str, release: &str) -> Option<String> {
        let python = std::env::var_os("TEST_OLD_CLIENTS")
            .map(|dir| PathBuf::from(dir).join(format!("venv-lancedb-{release}")))
            .filter(|venv| venv.join(".ready").exists())
            .and_then(|venv| venv.join("bin/python").to_str().map(String::from));
        if python.is_none() {
            eprintln!(
                "SKIPPED {test} {release}: TEST_OLD_CLIENTS has no venv-lancedb-{release} (run `make test-long`)"
            );
        }
        python
    }

    /// A lake that this release has written just now.
    fn written(python: &str) -> Here {
        let here = Here::new();
        says(python, &["write", &here.text("lake")]);
        here
    }

    /// The index names of every table, as HEAD has them for everybody.
    async fn names(here: &Here, release: &str) -> BTreeMap<&'static str, Vec<String>> {
        let mut out = BTreeMap::new();
        for table in expected(release).into_keys() {
            out.insert(table, indices(here, table).await.into_iter().map(|(name, ..)| name).collect());
        }
        out
    }

    #[rstest]
    #[case("0.14.0")]
    #[case("0.22.1")]
    #[case("0.23.0")]
    #[case("0.24.0")]
    #[case("0.24.3")]
    #[case("0.29.2")]
    #[case("0.30.2")]
    #[case("0.39.0")]
    #[ignore = "needs old releases of LanceDB: make test-long"]
    #[tokio::test(flavor = "multi_thread")]
    async fn the_old_client_searches_and_writes_as_before(#[case] release: &str) {
        let Some(python) = wheel("the_old_client_searches_and_writes_as_before", release) else { return };
        let here = written(&python);
        let lake = here.text("lake");
        let (answered, before) = (says(&python, &["search", &lake]), trees(&here, release));
        let indexed = names(&here, release).await;
        let swept = sweep(&here, &[]);
        assert_eq!(swept["totals"]["failed"], json!({}), "{swept:#}");
        assert_as_expected(&here, release, &swept, &before).await;
        assert_eq!(says(&python, &["search", &lake]), answered, "{release}");
        for (table, rows) in says(&python, &["add", &lake]).as_object().expect("rows per table") {
            assert_eq!(rows, 350, "{release} {table}");
        }
        assert_eq!(names(&here, release).await, indexed, "{release}: its commit took an index out of a manifest");
    }

    /// What the old client loses by `upgrade_index_format = true`, per table; what is not named stays as it was.
    fn price(release: &str) -> BTreeMap<&'static str, &'static str> {
        match release {
            "0.22.1" | "0.23.0" => [("vector", "search fails")].into(),
            "0.24.0" => {
                [("graph", "scans, index erased"), ("tags", "index erased"), ("vector", "scans, index erased")].into()
            }
            "0.24.3" => [("fts", "finds too little")].into(),
            "0.29.2" => [("stable", "scans, index erased"), ("tags", "index erased")].into(),
            "0.30.2" => [("stable", "scans, index erased")].into(),
            "0.39.0" => [("stable", "scans")].into(),
            other => panic!("no price is known for {other}"),
        }
    }

    #[rstest]
    #[case("0.22.1")]
    #[case("0.23.0")]
    #[case("0.24.0")]
    #[case("0.24.3")]
    #[case("0.29.2")]
    #[case("0.30.2")]
    #[case("0.39.0")]
    #[ignore = "needs old releases of LanceDB: make test-long"]
    #[tokio::test(flavor = "multi_thread")]
    async fn the_price_of_the_new_form_is_as_documented(#[case] release: &str) {
        let Some(python) = wheel("the_price_of_the_new_form_is_as_documented", release) else { return };
        let here = written(&python);
        let lake = here.text("lake");
        let (answered, indexed) = (says(&python, &["search", &lake]), names(&here, release).await);
        let swept = sweep(&here, &["--set", "policy.upgrade_index_format=true"]);
        assert_eq!(swept["totals"]["failed"], json!({}), "{swept:#}");
        let mut now = says(&python, &["search", &lake]);
        for (table, rows) in says(&python, &["add", &lake]).as_object().expect("rows per table") {
            assert_eq!(rows, 350, "{release} {table}");
        }
        let left = names(&here, release).await;
        let mut paid = BTreeMap::new();
        for table in expected(release).into_keys() {
            let mut lost = Vec::new();
            if now[table]["vector"].get("error").is_some() {
                lost.push("search fails");
            } else if now[table]["full_text"] != answered[table]["full_text"] {
                // Fewer rows than there are, or an error, from one search to the next.
                lost.push("finds too little");
            } else {
                if now[table]["uses_index"] != answered[table]["uses_index"] {
                    lost.push("scans");
                    now[table]["uses_index"] = answered[table]["uses_index"].clone();
                }
                assert_eq!(now[table], answered[table], "{release} {table}");
            }
            if left[table] != indexed[table] {
                lost.push("index erased");
            }
            if !lost.is_empty() {
                paid.insert(table, lost.join(", "));
            }
        }
        let paid: BTreeMap<&str, &str> = paid.iter().map(|(t, p)| (*t, p.as_str())).collect();
        assert_eq!(paid, price(release), "{release}");
    }

    /// Lance 14 cannot fold into a vector index of Lance 0.18: the failure is contained, and the old client goes on.
    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs old releases of LanceDB: make test-long"]
    async fn an_index_that_cannot_be_upgraded_is_left_alone() {
        let Some(python) = wheel("an_index_that_cannot_be_upgraded_is_left_alone", "0.14.0") else { return };
        let here = written(&python);
        let lake = here.text("lake");
        let answered = says(&python, &["search", &lake]);
        let swept = sweep(&here, &["--set", "policy.upgrade_index_format=true"]);
        assert_eq!(row(&swept, "vector.lance")["outcome"]["reason"], "bug", "{swept:#}");
        assert_eq!(row(&swept, "graph.lance")["outcome"]["reason"], "permanent", "{swept:#}");
        let now = says(&python, &["search", &lake]);
        for table in ["vector", "graph", "fts", "plain"] {
            assert_eq!(now[table], answered[table], "{table}");
        }
    }
}
