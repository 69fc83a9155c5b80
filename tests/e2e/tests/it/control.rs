//! What an operator says while the fleet is at work.

use std::time::{Duration, Instant};

use serde_json::json;
use squire_service::bus::data::PassRequested;
use squire_test_support::{Action, Gate, kind};
use uuid::Uuid;

use crate::fleet::Fleet;

#[test]
fn a_block_of_the_estate_stops_every_pass() {
    let Some(fleet) = Fleet::new("a_block_of_the_estate_stops_every_pass") else { return };
    let names = ["a", "b", "c", "d"];
    for name in names {
        fleet.plain(name, 4);
    }
    let proxy = fleet.proxy();
    let gate = Gate::new();
    let held = gate.clone();
    // Nothing is written to a dataset until the gate opens: two passes are in work, two wait.
    proxy.set(move |r| if kind(r) == "PUT data" { Action::Hold(held.clone()) } else { Action::Pass });
    let replica = fleet.replica_behind(Some(&proxy), &[]);
    fleet.tick();
    gate.arrived();
    fleet.registry_command(&["block", "add", "estate", "--reason", "an incident"]);
    let blocked = Instant::now();
    gate.open();
    fleet.settles();
    assert!(blocked.elapsed() < Duration::from_secs(10), "{:?}", blocked.elapsed());
    for name in names {
        assert_eq!(fleet.versions(name), json!([1, 2, 3, 4]), "{name} got a version after the block");
    }
    assert_eq!(fleet.sweep(&[&replica])["due"], 0);
    assert!(fleet.events_of("pass.completed").is_empty());

    let list = fleet.registry_command(&["block", "list", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let id = list.to_string().split("\"id\":\"").nth(1).and_then(|t| t.split('"').next().map(str::to_owned));
    fleet.registry_command(&["block", "remove", &id.expect("its id"), "--reason", "it is over"]);
    assert_eq!(fleet.sweep(&[&replica])["handed"], 4);
    for name in names {
        assert_eq!(fleet.read(name)["fragments"], 1, "{name}");
    }
    // What the stopped passes had rewritten was not committed.
    fleet.oracle_after_harm();
}

#[test]
fn an_observing_replica_writes_nothing() {
    let Some(fleet) = Fleet::new("an_observing_replica_writes_nothing") else { return };
    fleet.indexed("orders");
    let before = fleet.objects();
    let proxy = fleet.proxy();
    proxy.pass();
    let replica = fleet.replica_behind(Some(&proxy), &["estate.mode=observe"]);
    let sweep = fleet.sweep(&[&replica]);
    assert_eq!((&sweep["seen"], &sweep["due"], &sweep["handed"]), (&json!(1), &json!(1), &json!(0)), "{sweep}");
    let planned =
        replica.metric("squire_datasets").into_iter().filter(|(labels, n)| labels.contains("planned") && *n > 0.0);
    assert_eq!(planned.count(), 1, "{:?}", replica.metric("squire_datasets"));
    assert_eq!(replica.metric("squire_due_datasets"), [(String::new(), 1.0)]);
    // Nor does it do what another replica handed out.
    let pass = PassRequested { run: Uuid::now_v7(), uri: fleet.uri("orders"), by_hand: false };
    fleet.with_bus(async |bus| bus.request_pass(&pass).await.expect("asked"));
    fleet.settles();
    assert!(fleet.objects() == before, "an object changed");
    let writes: Vec<_> = proxy.writes().into_iter().filter(|w| kind(w) != "PUT schedule").collect();
    assert!(writes.is_empty(), "{writes:#?}");
    assert!(fleet.events().is_empty());
}

#[test]
fn what_an_administrator_changes_is_announced() {
    let Some(fleet) = Fleet::new("what_an_administrator_changes_is_announced") else { return };
    fleet.plain("t", 1);
    fleet.register("t");
    let table = "table/a/t";
    for args in [
        &["policy", "set", "namespace/a", "retention=30d"][..],
        &["policy", "unset", "namespace/a"],
        &["protection", "set", table, "keep-history", "--reason", "an audit"],
        &["protection", "unset", table, "--reason", "it is over"],
        &["table", "drop", table, "--reason", "unused"],
        &["trash", "undrop", table],
        &["block", "add", table, "--reason", "a migration"],
    ] {
        fleet.registry_command(args);
    }
    let filed = fleet.events_of("block.filed");
    assert_eq!(filed[0].data["reason"], "operator: a migration", "{filed:#?}");
    fleet.registry_command(&["block", "remove", filed[0].data["id"].as_str().expect("its id")]);
    let said = |kind: &str| -> Vec<String> {
        fleet.events_of(kind).into_iter().map(|e| e.subject.unwrap_or_default()).collect()
    };
    assert_eq!(said("policy.changed"), ["namespace/a"; 2]);
    assert_eq!(said("protection.changed"), [table; 2]);
    assert_eq!(said("table.dropped"), [table]);
    assert_eq!(said("table.undropped"), [table]);
    assert_eq!((said("block.filed"), said("block.lifted")), (vec![table.to_owned()], vec![table.to_owned()]));
}
