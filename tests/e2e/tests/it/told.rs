//! What a fleet tells of one dataset: the name that it declares for itself in every event about it, and its own page.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::fleet::{Fleet, SHORT_RETENTION, wait};

#[test]
fn events_carry_the_name_that_a_dataset_declares_for_itself() {
    let Some(fleet) = Fleet::new("events_carry_the_name_that_a_dataset_declares_for_itself") else { return };
    for name in ["orders", "nameless"] {
        fleet.plain(name, 4);
    }
    fleet.pylance("config", "orders", json!({ "values": { "lineage.dataset_id": "acme/orders" } }));
    fleet.register("orders");
    let replica = fleet.replica(&SHORT_RETENTION);
    let _builder = fleet.index_builder();
    for (column, index_type) in [("id", "BTREE"), ("id", "IVF_PQ")] {
        fleet.run("squire-index-build", &["submit", "table/a/orders", "--columns", column, "--type", index_type]);
    }
    let named = ["index.built", "index.refused", "pass.completed", "versions.reclaimed"];
    wait("the index is built, and the other one is refused", || {
        named[..2].iter().all(|kind| !fleet.events_of(kind).is_empty()).then_some(())
    });
    wait("versions go", || {
        fleet.sweep(&[&replica]);
        let gone = fleet.events_of("versions.reclaimed").into_iter().map(|e| e.data["uri"].clone());
        let gone: BTreeSet<String> = gone.map(|uri| uri.to_string()).collect();
        (gone.len() == 2).then_some(())
    });
    for event in named.iter().flat_map(|kind| fleet.events_of(kind)) {
        let declared = if event.data["uri"] == fleet.uri("orders") { json!("acme/orders") } else { Value::Null };
        assert_eq!(event.data["lineage"], declared, "{event:#?}");
    }
    fleet.oracle();
}

#[test]
fn the_page_of_a_dataset_says_what_why_says() {
    let Some(fleet) = Fleet::new("the_page_of_a_dataset_says_what_why_says") else { return };
    fleet.indexed("orders");
    let replica = fleet.replica(&[]);
    let page = |uri: &str| {
        let encoded = uri.replace('%', "%25").replace(':', "%3A").replace('/', "%2F");
        replica.json(&format!("/status/datasets/{encoded}"))
    };
    let (status, shown) = page(&fleet.uri("orders"));
    let why = fleet.run("squire-maintenance", &["why", &fleet.uri("orders"), "-o", "json"]);
    let why: Value = serde_json::from_str(&why).expect("JSON");
    assert_eq!(status, 200, "{shown}");
    for key in ["uri", "table", "outcome", "before", "after", "steps", "findings"] {
        assert_eq!(shown[key], why[key], "{key}");
    }
    assert_eq!((&shown["outcome"]["kind"], &shown["before"]["fragments"]), (&json!("planned"), &json!(4)), "{shown:#}");
    assert_eq!(page(&fleet.uri("no-such-dataset")).0, 404);
    assert_eq!(page("s3://elsewhere/orders").0, 404);
}
