//! Namespaces that pylance wrote become records through the command.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
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

#[test]
fn reserved_names_of_a_directory_without_a_manifest_are_imported_as_declared() {
    let Some(python) = Catalog::start("reserved_names_of_a_directory…") else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    for below in ["lake", "lake/raw"] {
        let v1 = json!({ "root": at.join(below).to_str(), "properties": { "manifest_enabled": "false" } });
        for id in ["orders", "gone"] {
            python.ask("table", &v1, json!({ "id": [id] }));
        }
        python.ask("declare", &v1, json!({ "id": ["later on"] }));
        python.ask("deregister", &v1, json!({ "id": ["gone"] }));
    }
    ok(at, &["init", "_squire", "--name", "demo"]);
    let before = tree(at);
    let said = ok(at, &["import", "lake"]);
    assert!(said.contains("would create table/lake/later%20on at later on.lance, declared, no data yet\n"), "{said}");
    assert_eq!(said.matches("gone.lance: its namespace deregistered it\n").count(), 2, "{said}");
    assert_eq!(tree(at), before, "nothing is written");
    ok(at, &["import", "lake", "--apply"]);
    let walked = [("table/lake/later%20on", true), ("table/lake/orders", false), ("table/lake/raw/orders", false)];
    assert_eq!(tables(at), walked.map(|(t, declared)| (t.to_owned(), declared)));
    // A part of it is named as it would have been within the whole.
    ok(at, &["import", "lake/raw", "--apply"]);
    assert!(tables(at).contains(&("table/lake/raw/later%20on".to_owned(), true)), "{:?}", tables(at));
    for root in ["lake", "lake/raw"] {
        let again = ok(at, &["import", root]);
        assert!(again.contains("no dataset to register") && again.contains("later%20on already"), "{again}");
    }
    assert!(ok(at, &["check"]).contains("0 problems"));
}

#[test]
fn a_warehouse_gets_a_server_only_where_it_names_every_table_and_loses_none_that_commits() {
    let Some(python) = Catalog::start("a_warehouse_gets_a_server…") else { return };
    let (dir, root) = lake(&python);
    let at = dir.path();
    let (place, migrating) = (root["root"].as_str().unwrap(), "dir_listing_to_manifest_migration_enabled");
    let url = python.serve(place, json!({ migrating: "true" }));
    let commits = python.serve(place, json!({ migrating: "true", "table_version_tracking_enabled": "true" }));
    ok(at, &["import", "lake", "--apply"]);
    let set = |url: &str| run(at, &["warehouse", "set", "lake", "--namespace", url]);
    let named_by = || told(at, &["warehouse", "show", "lake"])["fields"]["namespace"].clone();
    let refused = |url: &str, code: i32, says: &str| {
        let (before, ran) = (tree(at), set(url));
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{}", ran.err);
        assert!(ran.err.contains(says), "{}", ran.err);
        assert_eq!(tree(at), before, "nothing is written");
    };
    refused("ftp://somewhere", 2, "no namespace");
    refused("http://127.0.0.1:9", 1, "warehouse/lake stays as it is");
    fails(at, 2, &["warehouse", "set", "nowhere", "--namespace", &url], "warehouse/nowhere does not exist");

    // A table that the server does not name would be left alone from then on.
    std::fs::create_dir_all(at.join("lake/beside/_versions")).unwrap();
    std::fs::write(at.join("lake/beside/_versions/1.manifest"), b"x").unwrap();
    ok(at, &["table", "create", "table/lake/beside", "--location", "beside"]);
    refused(&url, 3, "does not name table/lake/beside");
    ok(at, &["table", "drop", "table/lake/beside"]);

    let done = set(&format!("{url}/"));
    assert!(done.code == 0 && done.out.contains(&format!("named by {url}; before: no server")), "{}", done.err);
    assert_eq!(named_by(), url);
    assert_eq!(set(&url).code, 0, "the same again");
    let create = ["warehouse", "create", "twin", "--project", "default", "--root", "lake", "--namespace", &commits];
    fails(at, 3, &create, "a root has one namespace");
    // It commits for no table: another may take its place, and none.
    assert_eq!(set("").code, 0);
    assert_eq!(named_by(), Value::Null);
    assert_eq!(set(&commits).code, 0);
    for next in ["", &url] {
        refused(next, 3, "commits the versions of");
    }
    // It is there, and what it says counts.
    let gone = |url: &str| run(at, &["warehouse", "set", "lake", "--namespace", url, "--server-is-gone"]);
    let there = gone("");
    assert!(there.code == 3 && there.err.contains("commits the versions of"), "{}", there.err);
    drop(python);
    refused("", 3, "--server-is-gone. Then versions that only it knew are lost");
    assert_eq!(named_by(), commits);
    // It takes no other one that does not answer in its place.
    let next = gone("http://127.0.0.1:9");
    assert!(next.code == 1 && next.err.contains("warehouse/lake stays as it is"), "{}", next.err);
    let done = gone("");
    assert!(done.code == 0 && done.out.contains("could not be asked for which tables it commits"), "{}", done.err);
    assert_eq!(named_by(), Value::Null);
    assert!(ok(at, &["log", "warehouse/lake"]).contains(&commits), "who changed it is kept");
}

#[test]
fn a_server_that_turns_us_away_is_not_gone() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    std::fs::create_dir(at.join("lake")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut asked = BufReader::new(&stream);
            let mut line = String::new();
            while asked.read_line(&mut line).is_ok_and(|n| n > 2) {
                line.clear();
            }
            let body = json!({ "code": 16, "error": "no token" }).to_string();
            let head = "HTTP/1.1 401 X\r\ncontent-type: application/json\r\nconnection: close\r\n";
            let _ = (&stream).write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes());
        }
    });
    ok(at, &["init", "_squire", "--name", "demo"]);
    ok(at, &["project", "create", "acme"]);
    let create = ["warehouse", "create", "lake", "--project", "acme", "--root", "lake", "--namespace", &url];
    ok(at, &create);
    let before = tree(at);
    let set = ["warehouse", "set", "lake", "--namespace", "", "--server-is-gone"];
    fails(at, 3, &set, "is for a server that does not answer, and this one does");
    assert_eq!(tree(at), before, "nothing is written");
}

#[test]
fn a_policy_is_shown_beside_what_the_table_itself_says() {
    let Some(python) = Catalog::start("a_policy_is_shown_beside…") else { return };
    let (dir, root) = lake(&python);
    let at = dir.path();
    ok(at, &["import", "lake", "--apply"]);
    let shown = told(at, &["policy", "show", "table/lake/orders"]);
    assert_eq!((&shown["own"], &shown["own_unread"]), (&json!({}), &Value::Null));
    let keys = json!({
        "squire.retention": "30d", "squire.maintain": "off", "lance.compaction.target_rows_per_fragment": "5000", "other": "x",
    });
    python.ask("config", &root, json!({ "id": ["orders"], "keys": keys }));
    let before = tree(at);
    let shown = told(at, &["policy", "show", "table/lake/orders"]);
    assert_eq!(shown["own"]["lance.compaction.target_rows_per_fragment"], "5000");
    assert_eq!(
        (shown["own"].as_object().unwrap().len(), &shown["effective"]["policy"]["retention"]),
        (3, &json!("30d"))
    );
    let text = ok(at, &["policy", "show", "table/lake/orders"]);
    for line in [
        "the table's own: squire.retention = 30d",
        "longer than the policy's, honoured",
        "not maintained: squire.maintain = off",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(tree(at), before, "nothing is written");
    // What has no data yet has no config, and what cannot be read may say anything.
    assert_eq!(told(at, &["policy", "show", "table/lake/a/later"])["own"], Value::Null);
    let place = told(at, &["table", "show", "table/lake/orders"])["fields"]["location"].as_str().unwrap().to_owned();
    for entry in std::fs::read_dir(at.join("lake").join(place).join("_versions")).unwrap() {
        std::fs::write(entry.unwrap().path(), "cut").unwrap();
    }
    let cut = run(at, &["policy", "show", "table/lake/orders"]);
    assert!(cut.code == 3 && cut.out.contains("could not be read, and may keep more"), "{}{}", cut.out, cut.err);
    assert!(cut.out.contains("retention = 7d"), "{}", cut.out);
}
