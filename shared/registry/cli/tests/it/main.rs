//! The real `squire-registry` binary on a temporary directory.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod catalog;
mod config_reference;
mod contract;
mod drops;
mod portable;
mod usage;

use std::path::Path;

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

struct Ran {
    code: i32,
    out: String,
    err: String,
}

/// Runs the command in a directory, with no configuration from outside.
fn run(dir: &Path, args: &[&str]) -> Ran {
    let mut command = Command::cargo_bin("squire-registry").unwrap();
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SQUIRE_")) {
        command.env_remove(name);
    }
    let done = command.current_dir(dir).args(args).output().unwrap();
    Ran {
        code: done.status.code().unwrap(),
        out: String::from_utf8(done.stdout).unwrap(),
        err: String::from_utf8(done.stderr).unwrap(),
    }
}

fn ok(dir: &Path, args: &[&str]) -> String {
    let ran = run(dir, args);
    assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
    ran.out
}

fn json(dir: &Path, args: &[&str]) -> Value {
    let args: Vec<&str> = args.iter().copied().chain(["-o", "json"]).collect();
    serde_json::from_str(&ok(dir, &args)).unwrap()
}

fn fails(dir: &Path, code: i32, args: &[&str], says: &str) {
    let ran = run(dir, args);
    assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{args:?}: {}", ran.err);
    assert!(ran.err.contains(says), "{args:?}: {}", ran.err);
}

/// An estate with one table `table/sales/orders`.
fn estate() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    std::fs::create_dir_all(at.join("orders.lance/_versions")).unwrap();
    std::fs::write(at.join("orders.lance/_versions/1.manifest"), b"x").unwrap();
    ok(at, &["init", "_squire", "--name", "demo"]);
    ok(at, &["project", "create", "acme"]);
    ok(at, &["warehouse", "create", "main", "--project", "acme", "--root", "."]);
    ok(at, &["namespace", "create", "namespace/sales", "--warehouse", "main"]);
    ok(at, &["table", "create", "table/sales/orders", "--location", "orders.lance", "--tier", "gold"]);
    dir
}

/// Everything in the registry, by path and bytes.
fn tree(dir: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut out = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { todo.push(path) } else { out.push((path.clone(), std::fs::read(&path).unwrap())) }
        }
    }
    out.sort();
    out
}

#[test]
fn every_verb_shows_an_example() {
    let dir = tempfile::tempdir().unwrap();
    for verb in [
        "init",
        "check",
        "log",
        "export",
        "import",
        "upgrade",
        "project",
        "project create",
        "project list",
        "project show",
        "project drop",
        "warehouse create",
        "warehouse list",
        "warehouse show",
        "warehouse set",
        "warehouse activate",
        "warehouse deactivate",
        "warehouse drop",
        "namespace create",
        "namespace list",
        "namespace show",
        "namespace drop",
        "table create",
        "table set",
        "table list",
        "table show",
        "table rename",
        "table drop",
        "policy set",
        "policy show",
        "policy diff",
        "policy unset",
        "policy list",
        "protection set",
        "protection unset",
        "protection list",
        "protection show",
        "trash list",
        "trash show",
        "trash undrop",
        "block add",
        "block remove",
        "block list",
        "contract init",
        "contract validate",
        "contract check",
        "contract plan",
        "contract publish",
        "contract show",
        "contract discover",
        "config show",
        "completion",
    ] {
        let args: Vec<&str> = verb.split(' ').chain(["--help"]).collect();
        let help = ok(dir.path(), &args);
        assert!(help.contains("Example: squire-registry "), "{verb}: {help}");
    }
}

#[test]
fn verbs_that_only_read_write_nothing_and_need_a_registry() {
    let dir = tempfile::tempdir().unwrap();
    fails(dir.path(), 2, &["table", "list"], "squire-registry init");
    fails(dir.path(), 2, &["--registry", "./typo", "table", "list"], "typo");
    fails(dir.path(), 2, &["--registry", "./typo", "project", "create", "x"], "typo");
    assert_eq!(tree(dir.path()).len(), 0);

    let dir = estate();
    let before = tree(dir.path());
    let below = dir.path().join("orders.lance");
    for args in [
        &["check"][..],
        &["project", "list"],
        &["project", "show", "acme"],
        &["warehouse", "list"],
        &["warehouse", "show", "main"],
        &["namespace", "list"],
        &["namespace", "show", "namespace/sales"],
        &["table", "list"],
        &["table", "show", "table/sales/orders"],
        &["policy", "show", "namespace/sales"],
        &["policy", "diff", "table/sales/orders"],
        &["policy", "list"],
        &["protection", "list"],
        &["protection", "show", "estate"],
        &["trash", "list"],
        &["block", "list"],
        &["log", "table/sales/orders"],
    ] {
        ok(&below, args);
        let value = json(&below, args);
        assert!(value.is_array() || value.is_object());
    }
    assert_eq!(tree(dir.path()), before);
}

#[test]
fn a_table_is_created_changed_dropped_and_brought_back() {
    let dir = estate();
    let at = dir.path();
    let shown = json(at, &["table", "show", "sales$orders"]);
    assert_eq!(shown["fields"]["tier"], "gold");
    assert_eq!(shown["governance"]["warehouse"], "main");
    assert!(shown["fields"]["uri"].as_str().unwrap().starts_with("file:///"));
    ok(at, &["table", "set", "table/sales/orders", "--tier", "", "--label", "hot", "--label", "eu"]);
    let shown = json(at, &["table", "show", "table/sales/orders"]);
    assert_eq!((&shown["fields"]["tier"], shown["fields"]["labels"].as_array().unwrap().len()), (&Value::Null, 2));

    ok(at, &["table", "drop", "table/sales/orders", "--reason", "unused"]);
    let trash = json(at, &["trash", "list"]);
    let id = trash[0]["id"].as_str().unwrap().to_owned();
    assert!(ok(at, &["trash", "show", &id]).contains("table/sales/orders"));
    assert!(at.join("orders.lance/_versions/1.manifest").exists());
    fails(at, 2, &["table", "drop", "table/sales/orders"], "does not exist");
    ok(at, &["trash", "undrop", "table/sales/orders"]);
    assert_eq!(json(at, &["trash", "list"]).as_array().unwrap().len(), 0);
    assert!(ok(at, &["log", "table/sales/orders"]).contains("unused"));
    assert!(ok(at, &["check"]).contains("0 problems"));
}

#[test]
fn verbs_that_remove_or_unprotect_take_no_bare_id() {
    let dir = estate();
    let at = dir.path();
    let before = tree(at);
    fails(at, 2, &["table", "drop", "sales$orders"], "table/sales/orders");
    fails(at, 2, &["protection", "unset", "sales$orders"], "table/sales/orders");
    fails(at, 2, &["policy", "unset", "sales$orders"], "table/sales/orders");
    fails(at, 2, &["trash", "undrop", "sales$orders"], "table/sales/orders");
    fails(at, 2, &["project", "drop", "acme"], "project/acme");
    fails(at, 2, &["warehouse", "drop", "main"], "warehouse/main");
    fails(at, 2, &["namespace", "drop", "sales"], "namespace/sales");
    assert_eq!(tree(at), before);
}

#[test]
fn refusals_end_with_3_and_wrong_usage_with_2() {
    let dir = estate();
    let at = dir.path();
    fails(at, 3, &["namespace", "drop", "namespace/sales"], "table/sales/orders");
    fails(at, 3, &["project", "create", "acme"], "exists already");
    ok(at, &["protection", "set", "project/acme", "no-drop", "--reason", "audit"]);
    fails(at, 3, &["table", "drop", "table/sales/orders"], "project/acme (audit)");
    assert!(ok(at, &["protection", "show", "table/sales/orders"]).contains("project/acme"));
    ok(at, &["table", "drop", "table/sales/orders", "--force"]);
    fails(at, 2, &["protection", "set", "estate", "hard"], "keep-history");
    fails(at, 2, &["policy", "set", "project/acme", "retension=1d"], "retension");
    fails(at, 2, &["policy", "set", "project/acme", "retention"], "KEY=VALUE");
    fails(at, 2, &["log", "nonsense"], "SUBJECT".to_lowercase().as_str());
    fails(at, 2, &["init", "./other/../_squire2", "--name", ""], "name");
    fails(at, 2, &["table", "list", "-o", "html"], "-o text");
    fails(at, 3, &["init", "_squire"], "exists already");
    fails(at, 2, &[], "no verb");
}

#[test]
fn a_policy_change_prints_what_differs_and_what_waits() {
    let dir = estate();
    let at = dir.path();
    ok(at, &["table", "create", "table/sales/later", "--location", "later.lance", "--declare"]);
    let told = ok(at, &["policy", "set", "table/sales/later", "retention=1d", "interval=2h", "--reason", "cost"]);
    assert!(
        told.contains("interval: 1h -> 2h") && told.contains("retention: 7d -> 1d") && told.contains("pending"),
        "{told}"
    );
    let shown = json(at, &["policy", "show", "table/sales/later"]);
    assert_eq!(shown["effective"]["policy"]["retention"], "7d");
    assert_eq!(shown["effective"]["source"]["id"], "table/sales/later");
    assert_eq!(shown["effective"]["pending"]["changes"][0], "retention: 7d -> 1d");
    ok(at, &["policy", "set", "table/sales/later", "retention=1d", "--now"]);
    assert_eq!(json(at, &["policy", "show", "table/sales/later"])["effective"]["policy"]["retention"], "1d");
    // The config's [policy] is the estate's default, its [floors] clamp.
    let shown = json(at, &["policy", "show", "namespace/sales", "--set", "policy.retention=10m"]);
    assert_eq!(
        (&shown["effective"]["policy"]["retention"], &shown["effective"]["source"]["kind"]),
        (&"1h".into(), &"estate".into())
    );
    ok(at, &["policy", "unset", "table/sales/later"]);
    assert!(ok(at, &["policy", "list"]).contains("no policy records"));
}

#[test]
fn blocks_and_the_kill_switch() {
    let dir = estate();
    let at = dir.path();
    ok(at, &["protection", "set", "estate", "freeze", "--reason", "incident"]);
    let governance = &json(at, &["table", "show", "table/sales/orders"])["governance"];
    assert_eq!(governance["protection"]["level"], "freeze");
    let id = json(at, &["block", "add", "table/sales/orders", "--reason", "training", "--version", "4"])["id"].clone();
    ok(at, &["block", "add", "dataset/./orders.lance", "--reason", "x", "--until", "2999-01-01"]);
    let blocks = &json(at, &["table", "show", "table/sales/orders"])["governance"]["blocks"];
    let mut versions: Vec<_> = blocks.as_array().unwrap().iter().map(|b| b["version"].as_u64()).collect();
    versions.sort();
    assert_eq!(versions, [None, Some(4)], "its table's and its place's, however that was written");
    ok(at, &["block", "remove", id.as_str().unwrap()]);
    fails(at, 2, &["block", "remove", "nothing"], "block list");
    fails(at, 2, &["block", "add", "table/sales/orders", "--reason", "x", "--until", "soon"], "2026-12-24");
}

#[test]
fn an_unreadable_record_is_told_and_ends_with_3() {
    let dir = estate();
    let at = dir.path();
    let bad = at.join("_squire/v1/protection/x");
    std::fs::create_dir_all(&bad).unwrap();
    std::fs::write(bad.join("00000000000000000001.json"), b"{").unwrap();
    let ran = run(at, &["check"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.out.contains("record_unreadable: protection/x"), "{}", ran.out);
    assert_eq!(run(at, &["table", "list"]).code, 3);
    fails(at, 3, &["table", "drop", "table/sales/orders", "--force"], "protection/x");
}

#[test]
fn the_configuration_is_checked_and_shown() {
    let dir = estate();
    let at = dir.path();
    ok(at, &["--check-config"]);
    fails(at, 2, &["--check-config", "--set", "policy.retension=1d"], "policy.retention");
    fails(at, 2, &["--check-config", "--set", "policy.window=Mon"], "policy.window");
    assert!(ok(at, &["config", "show"]).contains("policy.retention = \"7d\""));
    assert!(ok(at, &["completion", "bash"]).contains("squire-registry"));
}

#[test]
fn check_says_what_the_bucket_of_a_root_allows() {
    let dir = estate();
    let at = dir.path();
    let before = std::fs::read_dir(at).unwrap().count();
    let text = ok(at, &["check", "."]);
    for line in ["  list: yes", "  put-if-absent: yes", "  delete: yes", "  copy: yes", "  versioning: no"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let value = json(at, &["check", "."]);
    assert_eq!(value["buckets"].as_array().unwrap().len(), 1);
    assert_eq!(value["buckets"][0]["put_if_absent"]["answer"], "yes");
    assert_eq!(std::fs::read_dir(at).unwrap().count(), before, "nothing is left there");
    assert_eq!(json(at, &["check"])["buckets"].as_array().unwrap().len(), 0, "no bucket is tried without a ROOT");
}
