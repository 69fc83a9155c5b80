//! What a person types, and what is answered to slips of the pen.

use crate::{estate, fails, json, ok, run, tree};

#[test]
fn a_flag_that_the_command_has_no_use_for_is_refused_before_anything_is_done() {
    let dir = estate();
    let at = dir.path();
    let before = tree(at);
    for flags in [&["-o", "html"][..], &["-o", "markdown"], &["--html", "x.html"], &["--metrics-file", "m"]] {
        let args: Vec<&str> = ["project", "create", "other"].iter().chain(flags).copied().collect();
        fails(at, 2, &args, flags[0]);
        fails(at, 2, &[&["table", "list"], flags].concat(), "to do: ");
    }
    assert_eq!(tree(at), before);
}

#[test]
fn a_root_that_is_not_there_is_neither_looked_into_nor_made() {
    let dir = estate();
    let at = dir.path();
    for verb in ["check", "import"] {
        fails(at, 2, &[verb, "./lkae"], "there is no directory ./lkae");
        assert!(!at.join("lkae").exists());
    }
    fails(at, 2, &["check", ".", "lkae"], "there is no directory lkae");
}

#[test]
fn an_error_says_what_to_do() {
    let dir = estate();
    let at = dir.path();
    for (args, code, says) in [
        (&["project", "create", "acme"][..], 3, "see `squire-registry project list`, or take another name"),
        (&["project", "drop", "project/none"], 2, "see `squire-registry project list`"),
        (&["warehouse", "activate", "none"], 2, "see `squire-registry warehouse list`"),
        (&["namespace", "create", "namespace/sales", "--warehouse", "main"], 3, "namespace list"),
        (&["policy", "set", "table/sales/none", "retention=1d"], 2, "see `squire-registry table list`"),
        (&["protection", "set", "table/sales/none", "freeze"], 2, "see `squire-registry table list`"),
        (&["project", "create", ""], 2, "\"\" is no name: a name is empty"),
        (&["project", "create", "a\nb"], 2, "\"a\\nb\" is no name: a name holds a control character"),
        (&["project", "create", ".."], 2, "\"..\" is no name"),
        (&["--registry", "s3://lake/a#b", "project", "list"], 2, "write a literal `#` as %23"),
    ] {
        fails(at, code, args, says);
    }
    let long = "x".repeat(600);
    let ran = run(at, &["project", "create", &long]);
    assert!(ran.code == 2 && ran.err.contains("longer than 512") && ran.err.len() < 200, "{}", ran.err);
    ok(at, &["protection", "set", "warehouse/main", "no-drop"]);
    ok(at, &["table", "drop", "table/sales/orders", "--force"]);
    let ran = run(at, &["warehouse", "drop", "warehouse/main"]);
    assert!(ran.code == 3 && !ran.err.contains("--force"), "this verb has none: {}", ran.err);
}

#[test]
fn a_block_whose_end_has_passed_is_refused() {
    let dir = estate();
    let at = dir.path();
    fails(at, 2, &["block", "add", "estate", "--reason", "x", "--until", "2020-01-01"], "has passed");
    assert_eq!(json(at, &["block", "list"]).as_array().map(Vec::len), Some(0));
    ok(at, &["block", "add", "estate", "--reason", "x", "--until", "2999-01-01"]);
}

#[test]
fn a_dataset_is_found_by_any_spelling_and_a_level_that_falls_is_told() {
    let dir = estate();
    let at = dir.path();
    ok(at, &["protection", "set", "dataset/s3://lake//a b/", "freeze", "--reason", "case 7"]);
    for spelling in ["dataset/s3://lake/a%20b", "dataset/s3://lake//a b/", "dataset/s3%3A%2F%2Flake%2Fa%2520b"] {
        assert!(ok(at, &["protection", "show", spelling]).contains("case 7"), "{spelling}");
    }
    let fell = json(at, &["protection", "set", "dataset/s3://lake/a%20b", "no-drop"]);
    assert_eq!(fell["before"], "freeze");
    let text = ok(at, &["protection", "set", "dataset/s3://lake/a%20b", "keep-history"]);
    assert!(text.contains("keep-history; before: no-drop"), "{text}");
    assert!(!ok(at, &["protection", "set", "dataset/s3://lake/a%20b", "keep-history"]).contains("before"));
    ok(at, &["protection", "unset", "dataset/s3://lake/a b"]);
}

#[test]
fn what_is_shown_of_the_trash_is_sorted_by_name() {
    let dir = estate();
    let at = dir.path();
    for name in ["c", "a", "b"] {
        ok(at, &["table", "create", &format!("table/sales/{name}"), "--location", name, "--declare"]);
    }
    for name in ["b", "c", "a"] {
        ok(at, &["table", "drop", &format!("table/sales/{name}")]);
    }
    let trash = json(at, &["trash", "list"]);
    let names: Vec<&str> = trash.as_array().unwrap().iter().map(|t| t["fields"]["subject"].as_str().unwrap()).collect();
    assert_eq!(names, ["table/sales/a", "table/sales/b", "table/sales/c"]);
}
