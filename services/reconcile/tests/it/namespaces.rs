//! `report` holds namespaces that pylance wrote against the registry.

use serde_json::{Value, json};
use squire_lake::sample::{Columns, Sample};
use squire_registry::{Actor, NewTable, NewWarehouse, Registry, StorageOptions};
use squire_test_support::Catalog;
use tempfile::TempDir;

use super::output;

fn at(dir: &TempDir, rel: &str) -> String {
    dir.path().join(rel).to_str().unwrap().to_owned()
}

/// `orders`, `odd-name`, `a/b/deep`, `a/gone` and `a/later` without data, by a nested directory namespace in `lake`.
fn nested(python: &Catalog, dir: &TempDir) -> Value {
    let root = json!({ "root": at(dir, "lake") });
    for id in [json!(["a"]), json!(["a", "b"])] {
        python.ask("namespace", &root, json!({ "id": id }));
    }
    for id in [json!(["orders"]), json!(["odd-name"]), json!(["a", "b", "deep"]), json!(["a", "gone"])] {
        python.ask("table", &root, json!({ "id": id }));
    }
    python.ask("declare", &root, json!({ "id": ["a", "later"] }));
    root
}

async fn dataset(dir: &TempDir, rel: &str) {
    let uri = squire_lake::uri::canonical(&at(dir, rel)).unwrap();
    Sample::new(uri, Columns::default()).write(3, 0).await.unwrap();
}

async fn registry(dir: &TempDir, namespace: Option<&str>) -> Registry {
    let options = StorageOptions::new();
    let registry = Registry::init(&at(dir, "control"), &options, "test", Actor::named("tester")).await.unwrap();
    registry.project_create("p", None).await.unwrap();
    let new = NewWarehouse { id: "w", project: "p", root: &at(dir, "lake"), exclusive: true, namespace };
    registry.warehouse_make(new, &options, None).await.unwrap();
    for path in [&["w"][..], &["w", "a"], &["w", "a", "b"]] {
        let path: Vec<String> = path.iter().map(|s| (*s).to_owned()).collect();
        registry.namespace_create(&path, Some("w"), None).await.unwrap();
    }
    registry
}

async fn table(registry: &Registry, path: &[&str], location: &str) {
    let path = path.iter().map(|s| (*s).to_owned()).collect();
    let new = NewTable { path, location: location.into(), tier: None, labels: Vec::new(), declare: false };
    registry.table_create(new, &StorageOptions::new(), None).await.unwrap();
}

/// Exit code, `(kind, subject without its hash)` of what concerns namespaces, and what is incomplete.
fn report(dir: &TempDir, root: Option<&str>) -> (i32, Vec<(String, String)>, Vec<String>) {
    let registry = at(dir, "control");
    let mut args = vec!["report", "--registry", registry.as_str(), "-o", "json"];
    args.extend(root);
    let (code, out, err) = output(dir, &args);
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {err}"));
    let words = [
        "namespace_missing_table",
        "namespace_extra_table",
        "namespace_location_differs",
        "table_declared_only",
        "table_deregistered",
    ];
    let subject = |f: &Value| {
        let of = &f["subject"];
        let whole = [&of["table"], &of["dataset"], &of["path"]].into_iter().find_map(Value::as_str).unwrap_or_default();
        let last = whole.strip_prefix("table/").unwrap_or_else(|| whole.rsplit('/').next().unwrap());
        last.split_once('_').filter(|(hash, _)| hash.len() == 8).map_or(last, |(_, id)| id).to_owned()
    };
    let mut found: Vec<(String, String)> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|f| words.contains(&f["kind"].as_str().unwrap()))
        .map(|f| (f["kind"].as_str().unwrap().to_owned(), subject(f)))
        .collect();
    found.sort();
    let incomplete = report["incomplete"].as_array().unwrap();
    (code, found, incomplete.iter().map(|i| i["what"].as_str().unwrap().to_owned()).collect())
}

fn pairs(wanted: &[(&str, &str)]) -> Vec<(String, String)> {
    wanted.iter().map(|(k, s)| ((*k).to_owned(), (*s).to_owned())).collect()
}

#[tokio::test]
async fn a_directory_namespace_and_the_registry_are_held_against_each_other() {
    let Some(python) = Catalog::start("a_directory_namespace_and_the_registry…") else { return };
    let dir = tempfile::tempdir().unwrap();
    let namespace = nested(&python, &dir);
    dataset(&dir, "lake/sub/lonely").await;
    dataset(&dir, "lake/sub/elsewhere").await;
    let registry = registry(&dir, None).await;
    table(&registry, &["w", "orders"], "orders.lance").await;
    table(&registry, &["w", "lonely"], "sub/lonely").await;
    table(&registry, &["w", "a", "b", "deep"], "sub/elsewhere").await;
    python.ask("deregister", &namespace, json!({ "id": ["a", "gone"] }));
    let (code, found, incomplete) = report(&dir, None);
    let wanted = [
        ("namespace_extra_table", "a$later"),
        ("namespace_extra_table", "odd-name.lance"),
        ("namespace_location_differs", "w/a/b/deep"),
        ("namespace_missing_table", "w/lonely"),
        ("table_declared_only", "a$later"),
        ("table_deregistered", "a$gone"),
    ];
    assert_eq!((code, found, incomplete), (0, pairs(&wanted), Vec::new()));

    // What cannot be read is not clean: nothing is said to be missing, and the report is not whole.
    let versions = dir.path().join("lake/__manifest/_versions");
    let newest = std::fs::read_dir(&versions).unwrap().map(|e| e.unwrap().path());
    let newest = newest.filter(|p| p.extension().is_some_and(|e| e == "manifest")).min().unwrap();
    std::fs::write(&newest, &std::fs::read(&newest).unwrap()[..20]).unwrap();
    let (code, found, incomplete) = report(&dir, None);
    assert_eq!((code, found), (3, Vec::new()));
    assert!(incomplete.iter().any(|what| what.starts_with("namespace ")), "{incomplete:?}");
}

#[tokio::test]
async fn a_server_of_a_warehouse_is_asked_and_a_silent_one_is_no_empty_one() {
    let Some(python) = Catalog::start("a_server_of_a_warehouse…") else { return };
    let dir = tempfile::tempdir().unwrap();
    nested(&python, &dir);
    dataset(&dir, "lake/lonely").await;
    let url = python.serve(&at(&dir, "lake"), json!({ "dir_listing_to_manifest_migration_enabled": "true" }));
    let registry = registry(&dir, Some(&url)).await;
    table(&registry, &["w", "orders"], "orders.lance").await;
    table(&registry, &["w", "lonely"], "lonely").await;
    let (code, found, incomplete) = report(&dir, None);
    let wanted = [
        ("namespace_extra_table", "a$b$deep"),
        ("namespace_extra_table", "a$gone"),
        ("namespace_extra_table", "a$later"),
        ("namespace_extra_table", "odd-name.lance"),
        ("namespace_missing_table", "w/lonely"),
        ("table_declared_only", "a$later"),
    ];
    assert_eq!((code, found, incomplete), (0, pairs(&wanted), Vec::new()));
    drop(python);
    let (code, found, incomplete) = report(&dir, None);
    assert_eq!((code, found), (3, Vec::new()));
    let silent = format!("namespace {url}: the root");
    assert_eq!(incomplete, [silent.clone(), silent]);
}

#[tokio::test]
async fn a_plain_directory_shows_what_is_only_declared_or_deregistered() {
    let Some(python) = Catalog::start("a_plain_directory…") else { return };
    let dir = tempfile::tempdir().unwrap();
    let plain = json!({ "root": at(&dir, "lake"), "properties": { "manifest_enabled": "false" } });
    for id in ["orders", "gone"] {
        python.ask("table", &plain, json!({ "id": [id] }));
    }
    python.ask("declare", &plain, json!({ "id": ["later"] }));
    python.ask("deregister", &plain, json!({ "id": ["gone"] }));
    let wanted = [("table_declared_only", "later.lance"), ("table_deregistered", "gone.lance")];
    registry(&dir, None).await;
    let (code, found, incomplete) = report(&dir, None);
    assert_eq!((code, found, incomplete), (0, pairs(&wanted), Vec::new()));
    let (code, found, _) = report(&dir, Some("lake"));
    assert_eq!((code, found), (0, pairs(&wanted)));
}

fn age_all(dir: &std::path::Path) {
    for entry in std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()) {
        if entry.is_dir() {
            age_all(&entry);
        } else {
            let then = std::time::SystemTime::now() - std::time::Duration::from_secs(30 * 86_400);
            std::fs::File::options().write(true).open(&entry).unwrap().set_modified(then).unwrap();
        }
    }
}

#[tokio::test]
async fn a_dropped_table_that_a_namespace_still_names_is_not_reclaimed() {
    let Some(python) = Catalog::start("a_dropped_table_that_a_namespace…") else { return };
    let dir = tempfile::tempdir().unwrap();
    let namespace = nested(&python, &dir);
    let registry = registry(&dir, None).await;
    let deep = std::fs::read_dir(at(&dir, "lake")).unwrap().map(|e| e.unwrap().path());
    let deep = deep.into_iter().find(|p| p.to_str().unwrap().ends_with("a$b$deep")).unwrap();
    table(&registry, &["w", "a", "b", "deep"], deep.file_name().unwrap().to_str().unwrap()).await;
    age_all(&deep);
    let path = ["w", "a", "b", "deep"].map(String::from);
    registry.table_drop(&path, std::time::Duration::ZERO, false, None).await.unwrap();
    let plan = || {
        let control = at(&dir, "control");
        let args = ["reclaim", "plan", "--registry", &control, "--out", "plan.json", "-o", "json"];
        let (_, out, err) = output(&dir, &args);
        let report: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {err}"));
        let rows = report["datasets"].as_array().unwrap().clone();
        let row = rows.iter().find(|d| d["uri"].as_str().unwrap().ends_with("a$b$deep")).unwrap().to_string();
        let plan = std::fs::read_to_string(dir.path().join("plan.json")).unwrap_or_default();
        (row, plan.contains("a$b$deep/data/") || plan.contains("a$b$deep\\/data"))
    };
    let (row, goes) = plan();
    assert!(row.contains("managed_catalog") && row.contains("names it a/b/deep") && !goes, "{row}");
    python.ask("deregister", &namespace, json!({ "id": ["a", "b", "deep"] }));
    let (row, goes) = plan();
    assert!(!row.contains("managed_catalog") && goes, "{row}");
    // It lies in quarantine. What of the namespace cannot be read may name it.
    let control = at(&dir, "control");
    let reclaim = |args: &[&str]| {
        let (code, out, err) = output(&dir, &[&["reclaim"], args, &["--registry", &control, "-o", "json"]].concat());
        (code, serde_json::from_str::<Value>(&out).unwrap_or_else(|e| panic!("{e}: {err}")))
    };
    let (code, applied) = reclaim(&["apply", "plan.json"]);
    assert!(code == 0 && !deep.exists(), "{applied:#}");
    let text = std::fs::read_to_string(dir.path().join("plan.json")).unwrap();
    let id = serde_json::from_str::<Value>(&text).unwrap()["id"].as_str().unwrap().to_owned();
    let files = std::fs::read_dir(at(&dir, "lake/__manifest/data")).unwrap().map(|e| e.unwrap().path());
    let whole: Vec<_> = files.map(|file| (std::fs::read(&file).unwrap(), file)).collect();
    whole.iter().for_each(|(bytes, file)| std::fs::write(file, vec![0; bytes.len()]).unwrap());
    let purge = ["purge", &id, "--set", "grace.quarantine=0s"];
    let (_, rows) = reclaim(&purge);
    let why = rows[0]["forbidden"].to_string();
    assert!(why.contains("managed_catalog") && why.contains("could not be read"), "{rows}");
    whole.iter().for_each(|(bytes, file)| std::fs::write(file, bytes).unwrap());
    let (code, rows) = reclaim(&purge);
    assert!(code == 0 && rows[0]["gone"][0].as_u64() > Some(0), "{rows}");
}
