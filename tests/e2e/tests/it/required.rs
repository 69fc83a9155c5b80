//! An index that a policy requires: missed by the sweep, asked for on the topic, built by whoever serves that.

use serde_json::json;

use crate::fleet::{Fleet, wait};

#[test]
fn a_required_index_that_an_overwrite_dropped_is_asked_for_and_built_again() {
    let Some(fleet) = Fleet::new("a_required_index_that_an_overwrite_dropped_is_asked_for_and_built_again") else {
        return;
    };
    fleet.plain("orders", 1);
    fleet.register("orders");
    let required = "policy.required_indices=[{columns=[\"id\"],type=\"BTREE\",build=true}]";
    let replica = fleet.replica(&[required]);
    let _builder = fleet.index_builder();
    fleet.sweep(&[&replica]);
    wait("it is built", || fleet.events_of("index.built").pop());
    let requested = fleet.events_of("index.requested");
    assert_eq!(requested[0].data["requested_by"], "policy.required_indices", "{requested:?}");
    fleet.sweep(&[&replica]);
    assert_eq!(fleet.events_of("index.requested").len(), 1, "what is there is not asked for");
    fleet.pylance("write", "orders", json!({ "overwrite": true }));
    fleet.sweep(&[&replica]);
    wait("it is built again", || (fleet.events_of("index.built").len() == 2).then_some(()));
    assert_eq!(fleet.read("orders")["unindexed"], 0);
    assert!(fleet.dead_letters().is_empty());
    fleet.oracle();
}
