//! `squire-registry contract`, from the first document to discovery.

use serde_json::Value;

use crate::{estate, fails, json, ok, run, tree};

#[test]
fn a_contract_goes_from_the_first_document_to_discovery() {
    let dir = estate();
    let at = dir.path();
    let made =
        ["contract", "init", "--enterprise", "acme", "--owner", "data_platform", "--steward", "x", "--policy", "p"];
    let document = ok(at, &made);
    std::fs::write(at.join("one.json"), &document).unwrap();
    // Authoring needs no registry, and none of it writes.
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("one.json"), &document).unwrap();
    let valid = json(elsewhere.path(), &["contract", "validate", "one.json"]);
    let first = valid["digest"].as_str().unwrap().to_owned();
    assert_eq!((&valid["valid"], &valid["tables"]), (&Value::Bool(true), &3.into()));
    ok(elsewhere.path(), &["contract", "check", "one.json", "--current", "one.json"]);
    assert_eq!(tree(elsewhere.path()).len(), 1);

    let before = tree(at);
    let plan = json(at, &["contract", "plan", "one.json"]);
    assert_eq!((&plan["previous"], &plan["tables"][0]["action"]), (&Value::Null, &"new".into()));
    assert_eq!(plan["tables"][0]["subject"], "table/acme/customers");
    fails(at, 2, &["contract", "show", "acme"], "contract publish");
    fails(at, 2, &["contract", "discover", "--purpose", "analytics"], "contract publish");
    assert_eq!(tree(at), before);
    ok(at, &["contract", "publish", "one.json", "--retention-column", "customers=created_at", "--reason", "start"]);
    assert!(ok(at, &["contract", "publish", "one.json"]).contains("published already"));
    assert_eq!(json(at, &["contract", "show"])[0]["digest"], first.as_str());
    assert!(ok(at, &["contract", "show", "acme"]).contains("365d by created_at"));

    let mut next: Value = serde_json::from_str(&document).unwrap();
    let mut note = next["tables"][0]["columns"][1].clone();
    (note["id"], note["name"], note["nullability"]) = (9.into(), "note".into(), "optional".into());
    next["tables"][0]["columns"].as_array_mut().unwrap().push(note);
    std::fs::write(at.join("two.json"), next.to_string()).unwrap();
    fails(at, 3, &["contract", "check", "two.json"], "revision_advances_by_one");
    fails(at, 3, &["contract", "plan", "two.json"], "revision_advances_by_one");
    next["tables"][0]["revision"] = 2.into();
    std::fs::write(at.join("two.json"), next.to_string()).unwrap();
    assert_eq!(json(at, &["contract", "check", "two.json"])["current"], first.as_str());
    let before = tree(at);
    fails(at, 3, &["contract", "publish", "two.json"], "previous_digest");
    fails(at, 3, &["contract", "publish", "two.json", "--previous", "sha256:00"], "previous_digest");
    assert_eq!(tree(at), before);
    let done = json(at, &["contract", "publish", "two.json", "--previous", &first]);
    assert_eq!((&done["tables"][0]["action"], &done["tables"][1]["action"]), (&"advance".into(), &"repin".into()));

    let page = json(at, &["contract", "discover", "--purpose", "analytics"]);
    assert_eq!((page["tables"].as_array().unwrap().len(), &page["next"]), (3, &Value::Null));
    assert_eq!(json(at, &["contract", "discover", "--purpose", "payroll"])["tables"], serde_json::json!([]));
    fails(at, 3, &["contract", "discover", "--purpose", "analytics", "--page", &format!("{first}/1")], "cursor");
    fails(at, 2, &["contract", "discover"], "--purpose");
}

#[test]
fn a_document_that_breaks_rules_is_3_and_one_that_cannot_be_read_is_2() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    std::fs::write(at.join("bad.json"), r#"{"version": "pinax.v2", "enterprise": "Acme", "tables": []}"#).unwrap();
    let ran = run(at, &["contract", "validate", "bad.json"]);
    assert_eq!((ran.code, ran.out.as_str()), (3, ""));
    for rule in ["version: `pinax.v2` (rule wire_version: ", "enterprise: `Acme` (rule identifier: "] {
        assert!(ran.err.contains(rule), "{}", ran.err);
    }
    fails(at, 2, &["contract", "validate", "absent.json"], "absent.json");
    fails(
        at,
        2,
        &["contract", "init", "--enterprise", "Acme", "--owner", "x", "--steward", "x", "--policy", "p"],
        "identifier",
    );
    // A file without an end is read to the limit, and no further.
    std::fs::write(at.join("huge.json"), vec![b' '; (8 << 20) + 1]).unwrap();
    fails(at, 3, &["contract", "validate", "huge.json"], "document_size");
}
