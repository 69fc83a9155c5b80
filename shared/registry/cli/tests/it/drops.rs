//! Drop, purge, cascade, rename and undrop through the command.

use crate::{estate, fails, json, ok, run, tree};

#[test]
fn a_purge_and_a_cascade_print_a_plan_and_need_apply() {
    let dir = estate();
    let at = dir.path();
    let before = tree(at);
    for args in [
        &["table", "drop", "table/sales/orders", "--purge"][..],
        &["namespace", "drop", "namespace/sales", "--cascade"],
        &["namespace", "drop", "namespace/sales", "--cascade", "--purge"],
        &["table", "drop", "table/sales/orders", "--set", "grace.trash=0s"],
    ] {
        assert!(ok(at, args).contains("--apply does it"), "{args:?}");
        let plan = json(at, args);
        assert_eq!((&plan["schema"], &plan["kind"]), (&"squire.plan.v1".into(), &"drop".into()), "{plan:#}");
        let items = plan["datasets"].as_array().unwrap();
        assert!(items.iter().all(|i| i["uri"].as_str().unwrap().starts_with("file:///")), "{plan:#}");
        assert!(items.iter().any(|i| i["subject"] == "table/sales/orders"), "{plan:#}");
        assert_eq!(plan["digest"].as_str().unwrap().len(), 64);
    }
    assert_eq!(tree(at), before);

    ok(at, &["namespace", "drop", "namespace/sales", "--cascade", "--apply", "--reason", "unused"]);
    fails(at, 2, &["table", "show", "table/sales/orders"], "is in the trash until");
    fails(at, 2, &["namespace", "show", "namespace/sales"], "trash undrop namespace/sales");
    let trash = json(at, &["trash", "list"]);
    assert_eq!(trash.as_array().unwrap().len(), 2);
    assert_eq!(trash[0]["fields"]["deadline"], trash[1]["fields"]["deadline"]);
    for record in trash.as_array().unwrap() {
        assert!(ok(at, &["trash", "show", record["id"].as_str().unwrap()]).contains("deadline"));
    }
    let back = json(at, &["trash", "undrop", "namespace/sales"]);
    assert_eq!(back["fields"]["tables"][0], "table/sales/orders");
    assert!(ok(at, &["check"]).contains("0 problems"));
    assert!(at.join("orders.lance/_versions/1.manifest").exists());
}

#[test]
fn a_purge_ends_protection_only_by_force_and_never_a_hold() {
    let dir = estate();
    let at = dir.path();
    ok(at, &["protection", "set", "table/sales/orders", "no-drop", "--reason", "audit"]);
    fails(
        at,
        3,
        &["table", "drop", "table/sales/orders", "--purge", "--apply"],
        "no-drop on table/sales/orders (audit)",
    );
    let plan = ok(at, &["table", "drop", "table/sales/orders", "--purge", "--force"]);
    assert!(plan.contains("past no-drop on table/sales/orders"), "{plan}");
    ok(at, &["protection", "set", "project/acme", "keep-history"]);
    for args in [
        &["table", "drop", "table/sales/orders", "--purge", "--force", "--apply"][..],
        &["namespace", "drop", "namespace/sales", "--cascade", "--force", "--apply"],
        &["table", "rename", "table/sales/orders", "table/sales/new", "--force"],
    ] {
        fails(at, 3, args, "keep-history on project/acme");
    }
    ok(at, &["protection", "unset", "project/acme"]);
    ok(at, &["table", "drop", "table/sales/orders", "--purge", "--force", "--apply"]);
    let trash = &json(at, &["trash", "list"])[0]["fields"];
    assert!(trash["protection"].is_null() && trash["deadline"] == trash["dropped_at"], "{trash:#}");
}

#[test]
fn what_another_estate_has_marked_is_not_purged() {
    let dir = estate();
    let at = dir.path();
    std::fs::write(at.join("orders.lance/.squire-estate"), "00000000-0000-4000-8000-000000000000\n").unwrap();
    fails(at, 3, &["table", "drop", "table/sales/orders", "--purge", "--apply"], "marked as part of estate 00000000");
    ok(at, &["table", "drop", "table/sales/orders"]);
}

#[test]
fn a_table_is_renamed_and_its_old_name_is_free() {
    let dir = estate();
    let at = dir.path();
    ok(at, &["policy", "set", "table/sales/orders", "retention=30d"]);
    let renamed = json(at, &["table", "rename", "table/sales/orders", "table/sales/orders_2026"]);
    assert_eq!((&renamed["to"], &renamed["fields"]["tier"]), (&"table/sales/orders_2026".into(), &"gold".into()));
    let shown = json(at, &["table", "show", "table/sales/orders_2026"]);
    assert_eq!(shown["governance"]["policy"]["source"]["id"], "table/sales/orders_2026");
    fails(at, 2, &["table", "show", "table/sales/orders"], "does not exist");
    fails(at, 2, &["table", "rename", "sales$orders_2026", "table/sales/x"], "table/sales/orders_2026");
    fails(at, 2, &["table", "rename", "table/sales/orders_2026", "namespace/sales"], "takes a table");
    assert!(ok(at, &["check"]).contains("0 problems"));
}

#[test]
fn half_states_are_mended_on_request() {
    let dir = estate();
    let at = dir.path();
    std::fs::remove_dir_all(at.join("_squire/v1/locations")).unwrap();
    let found = json(at, &["check"]);
    assert_eq!(
        (&found["problems"][0]["kind"], &found["problems"][0]["mendable"]),
        (&"half_registered".into(), &true.into())
    );
    // It is younger than ten minutes, and may be somebody's work.
    let ran = run(at, &["check", "--mend"]);
    assert!(ran.code == 3 && ran.out.contains("not mended: table/sales/orders"), "{}", ran.out);
    for file in tree(&at.join("_squire/v1/tables")) {
        let text = String::from_utf8(file.1).unwrap();
        let stamp =
            serde_json::from_str::<serde_json::Value>(&text).unwrap()["updated_at"].as_str().unwrap().to_owned();
        std::fs::write(file.0, text.replace(&stamp, "2026-01-01T00:00:00Z")).unwrap();
    }
    let told = ok(at, &["check", "--mend"]);
    assert!(
        told.contains("mended: table/sales/orders: its location is claimed") && told.contains("0 problems"),
        "{told}"
    );
    assert!(ok(at, &["check", "--mend"]).contains("0 problems"));
}

#[test]
fn check_tells_of_roots_that_are_not_ours_and_of_records_beyond_the_snapshot() {
    let dir = estate();
    let at = dir.path();
    std::fs::remove_file(at.join(".squire-estate")).unwrap();
    assert!(ok(at, &["check"]).contains("carries no mark of this estate"));
    let bad = at.join("_squire/v1/schedule/maintenance");
    std::fs::create_dir_all(&bad).unwrap();
    std::fs::write(bad.join("00000000000000000001.json"), b"{").unwrap();
    let ran = run(at, &["check"]);
    assert!(ran.code == 3 && ran.out.contains("record_unreadable: schedule/maintenance"), "{}", ran.out);
}
