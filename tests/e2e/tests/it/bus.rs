//! The bus in trouble, and what comes over it from outside.

use serde_json::{Value, json};
use squire_service::bus::{Address, DeadReason, Event, EventType};
use squire_test_support::{Action, Gate, Request, kind, on_nth_of_kind};

use crate::fleet::{Fleet, swept, wait};

#[test]
fn work_goes_on_after_the_bus_was_away() {
    let Some(mut fleet) = Fleet::new("work_goes_on_after_the_bus_was_away") else { return };
    fleet.indexed("orders");
    let digest = fleet.read("orders")["digest"].clone();
    let proxy = fleet.proxy();
    let gate = Gate::new();
    proxy.set(on_nth_of_kind("PUT data", 1, Action::Hold(gate.clone())));
    let replica = fleet.replica_behind(Some(&proxy), &[]);
    assert_eq!(replica.get("/readyz").0, 200);
    fleet.tick();
    gate.arrived();
    // In the middle of a pass.
    fleet.nats[0].kill();
    let said = wait("it is not ready", || Some(replica.json("/readyz")).filter(|(status, _)| *status == 503)).1;
    assert_eq!((&said["ready"], &said["checks"]["registry"]), (&json!(false), &json!("ok")), "{said}");
    assert_ne!(said["checks"]["bus"], "ok", "{said}");
    assert_eq!(replica.get("/livez").0, 200);
    gate.open();
    wait("the pass ends without a bus", || replica.lines("maintained").pop());

    fleet.nats[0].run();
    wait("it is ready again", || (replica.json("/readyz").0 == 200).then_some(()));
    fleet.settles();
    fleet.is_done(&[&replica], "orders", &digest);
    fleet.plain("later", 4);
    assert_eq!(fleet.sweep(&[&replica])["handed"], 1);
    assert_eq!(fleet.read("later")["fragments"], 1);
    fleet.oracle();
}

fn changed(fleet: &Fleet, path: &[&str], data: &Value) {
    fleet.with_bus(async |bus| {
        let id = uuid::Uuid::new_v4().to_string();
        let event = Event::new(uuid::Uuid::nil(), id, EventType::TableChanged, "t", chrono::Utc::now(), data);
        let address = Address::Changed(path.iter().map(|s| (*s).to_owned()).collect());
        bus.publish(&address, &event.expect("an event")).await.expect("published");
    });
}

#[test]
fn a_change_event_leads_to_a_pass_without_a_tick() {
    let Some(fleet) = Fleet::new("a_change_event_leads_to_a_pass_without_a_tick") else { return };
    fleet.plain("orders", 4);
    fleet.plain("quiet", 4);
    let elsewhere = format!("s3://lake/{}/elsewhere", fleet.prefix);
    fleet.server.pylance("write", &elsewhere, json!({ "appends": 4 }));
    let replica = fleet.replica(&[]);
    changed(&fleet, &["a"], &json!({ "uri": elsewhere }));
    changed(&fleet, &["b"], &json!({ "uri": fleet.uri("no-such-dataset") }));
    changed(&fleet, &["c"], &json!({ "uri": 7 }));
    changed(&fleet, &["d"], &json!({ "version": 3 }));
    for version in 1..=4 {
        changed(&fleet, &["e"], &json!({ "uri": fleet.uri("orders"), "version": version }));
    }
    wait("the pass", || replica.lines("maintained").pop());
    wait("the stranger is looked at", || replica.lines("the message names a dataset that this estate").pop());
    fleet.settles();
    assert_eq!(fleet.read("orders")["fragments"], 1);
    assert_eq!(fleet.read("quiet")["fragments"], 4, "nobody named it");
    assert_eq!(fleet.server.pylance("read", &elsewhere, Value::Null)["fragments"], 4, "it is nobody's here");
    assert_eq!(fleet.versions("orders"), json!([1, 2, 3, 4, 5, 6]), "four events are one pass");
    assert!(swept(&[&replica]).is_empty(), "there was no tick");
    assert_eq!((fleet.runs(), fleet.events_of("pass.completed").len()), (1, 1));
    let dead = fleet.dead_letters();
    assert_eq!(dead.len(), 2, "{dead:#?}");
    assert!(dead.iter().all(|d| d.reason == DeadReason::Malformed && d.stream == "tables"), "{dead:#?}");
    fleet.oracle();
}

#[test]
fn a_message_that_kills_its_workers_is_given_up_and_the_queue_goes_on() {
    let Some(fleet) = Fleet::new("a_message_that_kills_its_workers_is_given_up_and_the_queue_goes_on") else { return };
    fleet.plain("poison", 8);
    fleet.plain("orders", 4);
    let bound = ["bus.max_attempts=2", "limits.concurrency=1"];
    let proxy = fleet.proxy();
    let deadly = |request: &Request| {
        let kills = request.is_write() && kind(request) == "PUT data" && request.path.contains("/poison/");
        if kills { Action::KillBefore } else { Action::Pass }
    };
    for victim in 0..2 {
        proxy.set(deadly);
        let mut replica = fleet.replica_behind(Some(&proxy), &bound);
        if victim == 0 {
            fleet.tick();
        }
        replica.end();
        assert!(proxy.killed(), "{}", replica.text());
    }
    let survivor = fleet.replica(&bound);
    fleet.settles();
    let dead = fleet.dead_letters();
    assert_eq!(dead.len(), 1, "{dead:#?}");
    assert_eq!((dead[0].reason, dead[0].stream.as_str()), (DeadReason::Attempts, "work"));
    assert_eq!(dead[0].original["data"]["uri"], fleet.uri("poison"));
    assert_eq!(fleet.events_of("message.dead").len(), 1);
    assert_eq!((&fleet.read("orders")["fragments"], &fleet.read("poison")["fragments"]), (&json!(1), &json!(8)));
    assert_eq!(fleet.events_of("pass.completed").len(), 1);

    // Put back by a person once its cause is gone, it is done.
    fleet.with_bus(async |bus| bus.dead_requeue(dead[0].id).await.expect("requeued"));
    fleet.settles();
    wait("it is done", || survivor.lines("maintained").iter().any(|l| l["fragments_after"] == 1).then_some(()));
    assert_eq!(fleet.read("poison")["fragments"], 1);
    assert!(fleet.dead_letters().is_empty());
    // The two victims' files lie there still.
    fleet.oracle_after_harm();
}
