//! One large compaction in slices, and a replica that dies in one of them.

use serde_json::json;
use squire_test_support::{Action, Gate, on_nth_of_kind};

use crate::fleet::Fleet;

/// Twelve fragments of 30 rows, of which three make one: four slices. A replica is killed once its `n`-th write of a kind has
/// reached the server, before it hears of it; another one is there.
fn killed_after(test: &str, write: &str, n: usize) {
    let Some(fleet) = Fleet::new(test) else { return };
    fleet.plain("large", 12);
    let digest = fleet.read("large")["digest"].clone();
    let sliced = ["limits.distribute_above=4B", "policy.target_rows=90", "grace.claim_ttl=6s", "bus.ack_wait=2s"];
    let proxy = fleet.proxy();
    let gate = Gate::new();
    let mut doomed = fleet.replica_behind(Some(&proxy), &sliced);
    proxy.set(on_nth_of_kind(write, n, Action::HoldAnswer(gate.clone())));
    fleet.tick();
    gate.arrived();
    let other = fleet.replica(&sliced);
    doomed.kill();
    gate.open();
    fleet.settles();

    let read = fleet.read("large");
    assert_eq!((&read["fragments"], &read["digest"]), (&json!(4), &digest), "{read}");
    // The rest of the slices are not done again, and all of them land in one commit.
    let stamps = fleet.stamps("large");
    assert_eq!(stamps.values().filter(|s| s.contains("/compact/")).count(), 1, "{stamps:?}");
    let handed = doomed.lines("a large compaction was handed out").len() + other.lines("a large compaction").len();
    assert_eq!(handed, 1);
    let ended = doomed.lines("a slice has ended").len() + other.lines("a slice has ended").len();
    assert_eq!(ended, 4, "{}", other.text());
    // Also where whoever committed it could not say so.
    assert_eq!(fleet.events_of("pass.completed").len(), 1);
    assert!(fleet.dead_letters().is_empty());
    assert_eq!(fleet.sweep(&[&other])["due"], 0);
    fleet.oracle_after_harm();
}

#[test]
fn a_replica_killed_in_a_slice_costs_that_slice() {
    killed_after("a_replica_killed_in_a_slice_costs_that_slice", "PUT data", 2);
}

#[test]
fn a_replica_killed_after_the_commit_of_slices_has_no_second_effect() {
    // The reservation of fragment ids is the first version, the merge the second.
    killed_after("a_replica_killed_after_the_commit_of_slices_has_no_second_effect", "PUT _versions", 2);
}
