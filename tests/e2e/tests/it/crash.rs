//! Replicas that die, sleep or are told to stop in the middle of a pass, while another one is there.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use squire_registry::ClaimOutcome;
use squire_test_support::{Action, Gate, kind, on_nth_of_kind};
use uuid::Uuid;

use crate::fleet::{Fleet, wait};

/// A replica is killed once the `n`-th write of a kind has reached the server, before it hears of it; another one is there.
/// A pass over this dataset commits the fold of its index, the reservation of fragment ids, and the merge, in this order.
fn killed_after(test: &str, write: &str, n: usize) -> Option<Fleet> {
    let fleet = Fleet::new(test)?;
    fleet.indexed("orders");
    let digest = fleet.read("orders")["digest"].clone();
    let proxy = fleet.proxy();
    let gate = Gate::new();
    proxy.set(on_nth_of_kind(write, n, Action::HoldAnswer(gate.clone())));
    let mut doomed = fleet.replica_behind(Some(&proxy), &[]);
    fleet.tick();
    gate.arrived();
    let other = fleet.replica(&[]);
    doomed.kill();
    gate.open();
    fleet.settles();
    fleet.is_done(&[&other], "orders", &digest);
    // Whoever did it, the fragments were merged and the rows folded once.
    let stamps = fleet.stamps("orders");
    for step in ["compact", "optimize_indices"] {
        assert_eq!(stamps.values().filter(|s| s.contains(&format!("/{step}/"))).count(), 1, "{stamps:?}");
    }
    fleet.oracle_after_harm();
    Some(fleet)
}

#[test]
fn a_replica_killed_before_its_first_commit_loses_nothing() {
    killed_after("a_replica_killed_before_its_first_commit_loses_nothing", "PUT _indices", 1);
}

#[test]
fn a_replica_killed_after_its_first_commit_is_finished_by_another() {
    killed_after("a_replica_killed_after_its_first_commit_is_finished_by_another", "PUT _versions", 1);
}

#[test]
fn a_replica_killed_between_reservation_and_merge_is_finished_by_another() {
    killed_after("a_replica_killed_between_reservation_and_merge_is_finished_by_another", "PUT _versions", 2);
}

#[test]
fn a_replica_killed_after_its_last_commit_leaves_nothing_to_do() {
    killed_after("a_replica_killed_after_its_last_commit_leaves_nothing_to_do", "PUT _versions", 3);
}

#[test]
fn a_replica_killed_between_its_work_and_the_confirmation_has_no_second_effect() {
    let test = "a_replica_killed_between_its_work_and_the_confirmation_has_no_second_effect";
    let Some(fleet) = killed_after(test, "PUT state", 1) else { return };
    // All was done by the dead one: the other found nothing to do and made no record of its own.
    assert_eq!(fleet.runs(), 1);
}

#[test]
fn a_replica_that_slept_past_its_claim_deletes_nothing() {
    let Some(fleet) = Fleet::new("a_replica_that_slept_past_its_claim_deletes_nothing") else { return };
    fleet.plain("orders", 6);
    let short = [
        "grace.claim_ttl=4s",
        "bus.ack_wait=1s",
        "floors.retention=1s",
        "policy.retention=1s",
        "policy.retain_versions=1",
    ];
    let proxy = fleet.proxy();
    let gate = Gate::new();
    // The merge has landed; what is left of the pass is its clean-up.
    proxy.set(on_nth_of_kind("PUT _versions", 2, Action::HoldAnswer(gate.clone())));
    let sleeper = fleet.replica_behind(Some(&proxy), &short);
    fleet.tick();
    gate.arrived();
    sleeper.signal(Signal::STOP);
    // Something for the other one, which deletes nothing itself.
    fleet.pylance("write", "orders", json!({ "appends": 2, "start": 1_000 }));
    let digest = fleet.read("orders")["digest"].clone();
    let other = fleet.replica(&[&short[..], &["estate.mode=compact"]].concat());
    wait("the other one has taken the claim over", || other.lines("maintained").pop());
    let versions = fleet.versions("orders");
    assert!(versions.as_array().is_some_and(|v| v.len() >= 8), "{versions}");

    let before = proxy.log().len();
    sleeper.signal(Signal::CONT);
    gate.open();
    wait("the woken one has ended its pass", || {
        let (_, status) = sleeper.json("/status");
        status["working"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    let log = proxy.log();
    let deletes: Vec<_> =
        log[before..].iter().filter(|r| r.is_write() && kind(r).starts_with("DELETE") && !is_record(r)).collect();
    assert!(deletes.is_empty(), "the woken one deletes: {deletes:#?}");
    assert_eq!(fleet.versions("orders"), versions);
    assert_eq!(fleet.read("orders")["digest"], digest);
    drop(sleeper);
    fleet.settles();
    fleet.is_done(&[&other], "orders", &digest);
    // They could have been deleted: a replica that is awake does so.
    drop(other);
    let _awake = fleet.replica(&short);
    fleet.run("squire-maintenance", &["tick", "maintenance", "--dataset", &fleet.uri("orders")]);
    fleet.settles();
    let left = fleet.versions("orders");
    assert!(left.as_array().map_or(0, Vec::len) < versions.as_array().map_or(0, Vec::len), "{left} of {versions}");
    assert_eq!(fleet.read("orders")["digest"], digest);
    fleet.oracle_after_harm();
}

/// Somebody else has the claim by then, and may be at anything.
#[test]
fn a_replica_that_slept_past_its_claim_commits_nothing() {
    let Some(fleet) = Fleet::new("a_replica_that_slept_past_its_claim_commits_nothing") else { return };
    fleet.plain("orders", 4);
    let digest = fleet.read("orders")["digest"].clone();
    let (proxy, gate) = (fleet.proxy(), Gate::new());
    // Executed; what is left is the commit.
    proxy.set(on_nth_of_kind("PUT data", 1, Action::HoldAnswer(gate.clone())));
    let sleeper = fleet.replica_behind(Some(&proxy), &["grace.claim_ttl=4s", "bus.ack_wait=1s"]);
    fleet.tick();
    gate.arrived();
    sleeper.signal(Signal::STOP);
    let uri = fleet.uri("orders");
    let claim = fleet.with_registry(async |registry| {
        loop {
            match registry.claim(&uri, Uuid::now_v7(), Duration::from_secs(600)).await.expect("asked") {
                ClaimOutcome::Held(claim) => return claim,
                ClaimOutcome::Taken { .. } => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    });
    sleeper.signal(Signal::CONT);
    gate.open();
    wait("the woken one has ended its pass", || {
        let lost = sleeper.metric("squire_claims_lost_total");
        lost.iter().any(|(_, n)| *n > 0.0).then_some(())
    });
    assert_eq!(fleet.versions("orders"), json!([1, 2, 3, 4]));
    fleet.with_registry(async |_| claim.release().await).expect("released");
    fleet.settles();
    fleet.is_done(&[&sleeper], "orders", &digest);
    fleet.oracle_after_harm();
}

fn is_record(request: &squire_test_support::Request) -> bool {
    request.path.contains("/_squire/") || request.keys.iter().any(|k| k.contains("/_squire/"))
}

#[test]
fn a_replica_that_is_told_to_stop_hands_its_pass_back() {
    let Some(fleet) = Fleet::new("a_replica_that_is_told_to_stop_hands_its_pass_back") else { return };
    fleet.indexed("orders");
    let digest = fleet.read("orders")["digest"].clone();
    let proxy = fleet.proxy();
    let gate = Gate::new();
    proxy.set(on_nth_of_kind("PUT _indices", 1, Action::Hold(gate.clone())));
    let mut stopping = fleet.replica_behind(Some(&proxy), &[]);
    fleet.tick();
    gate.arrived();
    let other = fleet.replica(&[]);
    stopping.signal(Signal::TERM);
    wait("it says that it drains", || stopping.lines("draining").pop());
    assert_eq!(stopping.json("/readyz").0, 503);
    gate.open();
    assert_eq!(stopping.end().code(), Some(143), "{}", stopping.text());
    // What it had begun it committed; the rest is the other one's.
    fleet.settles();
    assert_eq!(other.lines("maintained").len(), 1, "{}", other.text());
    fleet.is_done(&[&other], "orders", &digest);
    fleet.oracle_after_harm();
}

#[test]
fn a_replica_that_cannot_finish_in_time_ends_and_another_does_the_work() {
    let test = "a_replica_that_cannot_finish_in_time_ends_and_another_does_the_work";
    let Some(fleet) = Fleet::new(test) else { return };
    fleet.indexed("orders");
    let digest = fleet.read("orders")["digest"].clone();
    let proxy = fleet.proxy();
    let gate = Gate::new();
    proxy.set(on_nth_of_kind("PUT _indices", 1, Action::Hold(gate.clone())));
    let mut stopping = fleet.replica_behind(Some(&proxy), &["grace.drain=1s"]);
    fleet.tick();
    gate.arrived();
    let other = fleet.replica(&[]);
    stopping.signal(Signal::TERM);
    let asked = Instant::now();
    assert_eq!(stopping.end().code(), Some(143), "{}", stopping.text());
    assert!(asked.elapsed() < Duration::from_secs(20), "it ends soon after its drain time: {:?}", asked.elapsed());
    gate.open();
    fleet.settles();
    assert_eq!(fleet.versions("orders").as_array().map_or(0, Vec::len), 8, "a fold, a reservation and a merge");
    fleet.is_done(&[&other], "orders", &digest);
    assert_ne!(digest, Value::Null);
    fleet.oracle_after_harm();
}
