//! Namespaces that pylance wrote become records through the command.

use std::path::Path;

use serde_json::{Value, json};
use squire_test_support::Catalog;
use tempfile::TempDir;

use crate::{fails, json as told, ok, run, tree};

/// `orders`, `a/b/deep` and `a/later` without data in `lake`, and a registry beside it.
fn lake(python: &Catalog) -> (TempDir, Value) {
    let dir = tempfile::tempdir().unwrap();
    let root = json!({ "root": dir.path().join("lake").to_str().unwrap() });
    for id in [json!(["a"]), json!(["a", "b"]), json!(["empty"])] {
        python.ask("namespace", &root, json!({ "id": id }));
    }
    for id in [json!(["orders"]), json!(["a", "b", "deep"]), json!(["a", "gone"])] {
        python.ask("table", &root, json!({ "id": id }));
    }
    python.ask("declare", &root, json!({ "id": ["a", "later"] }));
    python.ask("deregister", &root, json!({ "id": ["a", "gone"] }));
    ok(dir.path(), &["init", "_squire", "--name", "demo"]);
    (dir, root)
}

fn tables(at: &Path) -> Vec<(String, bool)> {
    let listed = told(at, &["table", "list"]);
    let of = |t: &Value| (t["table"].as_str().unwrap().to_owned(), t["fields"]["declared"] == true);
    let mut all: Vec<_> = listed.as_array().unwrap().iter().map(of).collect();
    all.sort();
    all
}

fn wanted() -> Vec<(String, bool)> {
    [("table/lake/a/b/deep", false), ("table/lake/a/later", true), ("table/lake/orders", false)]
        .map(|(t, declared)| (t.to_owned(), declared))
        .to_vec()
}

#[test]
fn a_directory_namespace_is_imported_under_its_own_names() {
    let Some(python) = Catalog::start("a_directory_namespace_is_imported…") else { return };
    let (dir, root) = lake(&python);
    let at = dir.path();
    // A bucket's other datasets come along, by their directories.
    python.ask(
        "table",
        &json!({ "root": at.join("lake/raw").to_str() , "properties": { "manifest_enabled": "false" } }),
        json!({ "id": ["events"] }),
    );
    let before = tree(at);
    let said = ok(at, &["import", "lake"]);
    assert!(said.contains("would create namespace/lake/empty\n"), "{said}");
    assert!(said.contains("would create table/lake/a/b/deep at ") && said.contains("_a$b$deep\n"), "{said}");
    assert!(said.contains("_a$later, declared, no data yet\n"), "{said}");
    assert!(said.contains("_a$gone: the namespace does not name it: it was deregistered"), "{said}");
    assert_eq!(tree(at), before, "nothing is written");
    ok(at, &["import", "lake", "--apply"]);
    let mut all = wanted();
    all.push(("table/lake/raw/events".to_owned(), false));
    assert_eq!(tables(at), all);
    assert!(ok(at, &["check"]).contains("0 problems"));
    assert!(ok(at, &["import", "lake"]).contains("no dataset to register"));

    let versions = at.join("lake/__manifest/_versions");
    let newest = std::fs::read_dir(&versions).unwrap().map(|e| e.unwrap().path());
    let newest = newest.filter(|p| p.extension().is_some_and(|e| e == "manifest")).min().unwrap();
    std::fs::write(&newest, "cut").unwrap();
    fails(at, 3, &["import", "lake"], "__manifest");
    drop(root);
}

#[test]
fn a_server_is_imported_into_the_warehouse_that_it_backs() {
    let Some(python) = Catalog::start("a_server_is_imported…") else { return };
    let (dir, root) = lake(&python);
    let at = dir.path();
    let url =
        python.serve(root["root"].as_str().unwrap(), json!({ "dir_listing_to_manifest_migration_enabled": "true" }));
    ok(at, &["project", "create", "acme"]);
    fails(at, 2, &["import", &url], "no warehouse is backed by");
    let create = ["warehouse", "create", "lake", "--project", "acme", "--root", "lake", "--namespace"];
    let with = |url: &str| create.iter().map(|a| (*a).to_owned()).chain([url.to_owned()]).collect::<Vec<_>>();
    let refused = with("http://me:hidden@host");
    let refused = run(at, &refused.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("it carries credentials") && !refused.err.contains("hidden"), "{}", refused.err);
    ok(at, &with(&url).iter().map(String::as_str).collect::<Vec<_>>());
    assert!(ok(at, &["warehouse", "show", "lake"]).contains(&format!("named by: {url}\n")));
    ok(at, &["import", &url, "--apply"]);
    assert_eq!(tables(at), wanted());
    assert!(ok(at, &["import", &url]).contains("no dataset to register"));
    drop(python);
    let away = run(at, &["import", &url]);
    assert_eq!(away.code, 3, "{}{}", away.out, away.err);
    assert!(away.out.contains("could not be read: the root: "), "{}", away.out);
}
