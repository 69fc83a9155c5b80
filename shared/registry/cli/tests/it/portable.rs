//! Export, import and upgrade through the command.

use crate::{estate, fails, json, ok, tree};

#[test]
fn a_registry_goes_into_one_file_and_comes_back_where_there_was_none() {
    let dir = estate();
    let at = dir.path();
    ok(at, &["protection", "set", "table/sales/orders", "keep-history", "--reason", "case 7"]);
    ok(at, &["export", "estate.json"]);
    let text = std::fs::read_to_string(at.join("estate.json")).unwrap();
    assert_eq!(ok(at, &["export", "-"]).lines().next(), Some("{"));
    assert!(text.contains("squire.registry.v1") && text.contains("case 7"));
    let old = tree(&at.join("_squire"));
    std::fs::remove_dir_all(at.join("_squire")).unwrap();

    let args = ["import", "estate.json", "--registry", "./_squire"];
    let told = ok(at, &args);
    assert!(told.contains("becomes this estate's") && told.contains("would write 1 records of tables"), "{told}");
    assert!(!at.join("_squire").exists());
    ok(at, &["import", "estate.json", "--registry", "./_squire", "--apply"]);
    assert_eq!(tree(&at.join("_squire")), old, "the same bytes");
    assert!(ok(at, &["check"]).contains("0 problems"));
    assert_eq!(json(at, &["protection", "list"])[0]["reason"], "case 7");

    fails(at, 3, &["import", "estate.json"], "--merge adds what is missing");
    assert!(ok(at, &["import", "estate.json", "--merge"]).contains("nothing to do"));
    fails(at, 2, &["import", "nothing.json"], "there is no file nothing.json");
    std::fs::write(at.join("other.json"), "{\"schema\": \"squire.plan.v1\"}").unwrap();
    fails(at, 2, &["import", "other.json"], "squire.plan.v1");
    fails(at, 1, &["export", "no/such/dir/x.json"], "no/such/dir/x.json");
}

#[test]
fn a_bucket_is_imported_by_what_lies_in_it() {
    let dir = estate();
    let at = dir.path();
    std::fs::create_dir_all(at.join("raw/events.lance/_versions")).unwrap();
    std::fs::write(at.join("raw/events.lance/_versions/1.manifest"), b"x").unwrap();
    let before = tree(at);
    let told = ok(at, &["import", "."]);
    assert!(told.contains("would create table/main/raw/events at raw/events.lance"), "{told}");
    assert!(told.contains("is table/sales/orders already"), "{told}");
    assert_eq!(tree(at), before);
    fails(at, 2, &["import", ".", "--merge"], "--merge is for a document");
    ok(at, &["import", ".", "--apply"]);
    assert_eq!(json(at, &["table", "show", "table/main/raw/events"])["fields"]["location"], "raw/events.lance");
    assert!(ok(at, &["check"]).contains("0 problems"));
    assert!(ok(at, &["import", "."]).contains("no dataset to register"));
}

#[test]
fn upgrade_raises_the_level_once() {
    let dir = estate();
    let at = dir.path();
    assert!(ok(at, &["upgrade"]).contains("nothing to do"));
    let file = at.join("_squire/v1/estate/self/00000000000000000001.json");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("\"feature_level\": 1", "\"feature_level\": 0")).unwrap();
    let done = json(at, &["upgrade", "--reason", "all daemons are new"]);
    assert_eq!((&done["before"], &done["after"]), (&0.into(), &1.into()));
    assert!(ok(at, &["log", "estate"]).contains("all daemons are new"));
}
