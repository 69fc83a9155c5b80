//! What becomes of a pass's message: it goes when the work is done, and comes again without another tick where it is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use squire_registry::ClaimOutcome;
use squire_test_support::{Action, Gate, Request, kind, on_nth_of_kind};
use uuid::Uuid;

use crate::fleet::{Fleet, swept, wait};
use crate::replica::Replica;

/// Messages of work that a replica gave back.
fn requeued(replica: &Replica) -> f64 {
    requeued_of(replica, "work")
}

fn requeued_of(replica: &Replica, stream: &str) -> f64 {
    let stream = format!("stream=\"{stream}\"");
    let counted = |labels: &str| labels.contains(&stream) && labels.contains("outcome=\"requeued\"");
    replica.metric("squire_messages_total").into_iter().filter(|(labels, _)| counted(labels)).map(|(_, n)| n).sum()
}

/// Nothing is queued or given up, the one dataset is merged with these rows, and one tick has led to it.
fn is_merged_by_one_tick(fleet: &Fleet, replicas: &[&Replica], digest: &Value) {
    fleet.settles();
    let read = fleet.read("orders");
    assert_eq!((&read["fragments"], &read["digest"]), (&json!(1), digest), "{read}");
    assert_eq!(swept(replicas).len(), 1, "one tick");
    assert!(fleet.dead_letters().is_empty(), "{:?}", fleet.dead_letters());
    fleet.oracle_after_harm();
}

fn is_registrys(request: &Request) -> bool {
    request.path.contains("/_squire/") || request.query.contains("_squire")
}

#[test]
fn a_pass_that_fails_in_passing_is_done_later_without_another_tick() {
    let Some(fleet) = Fleet::new("a_pass_that_fails_in_passing_is_done_later_without_another_tick") else { return };
    fleet.plain("orders", 4);
    let digest = fleet.read("orders")["digest"].clone();
    let (proxy, broken) = (fleet.proxy(), Arc::new(AtomicBool::new(true)));
    let is_broken = broken.clone();
    proxy.set(move |r| match r.is_write() && kind(r) == "PUT data" && is_broken.load(Ordering::SeqCst) {
        true => Action::Status(503),
        false => Action::Pass,
    });
    let replica = fleet.replica_behind(Some(&proxy), &[]);
    fleet.tick();
    wait("the pass has failed", || fleet.events_of("pass.failed").pop());
    assert_eq!(fleet.read("orders")["fragments"], 4);
    broken.store(false, Ordering::SeqCst);
    is_merged_by_one_tick(&fleet, &[&replica], &digest);
}

/// One pass finds the registry unreadable in its middle, the other at its beginning.
#[test]
fn passes_that_cannot_read_the_registry_are_done_later_without_another_tick() {
    let test = "passes_that_cannot_read_the_registry_are_done_later_without_another_tick";
    let Some(fleet) = Fleet::new(test) else { return };
    let names = ["orders", "other"];
    names.iter().for_each(|name| fleet.plain(name, 4));
    let digest = fleet.read("orders")["digest"].clone();
    let (proxy, broken, gate) = (fleet.proxy(), Arc::new(AtomicBool::new(false)), Gate::new());
    let (is_broken, mut hold) = (broken.clone(), on_nth_of_kind("PUT data", 1, Action::Hold(gate.clone())));
    proxy.set(move |r| match is_registrys(r) && is_broken.load(Ordering::SeqCst) {
        true => Action::Status(503),
        false => hold(r),
    });
    let replica = fleet.replica_behind(Some(&proxy), &["limits.concurrency=1", "grace.claim_ttl=6s"]);
    fleet.tick();
    gate.arrived();
    broken.store(true, Ordering::SeqCst);
    gate.open();
    wait("both messages are given back", || (requeued(&replica) >= 2.0).then_some(()));
    for name in names {
        assert_eq!(fleet.versions(name), json!([1, 2, 3, 4]), "what may forbid it was not read: nothing is committed");
    }
    broken.store(false, Ordering::SeqCst);
    is_merged_by_one_tick(&fleet, &[&replica], &digest);
    assert_eq!(fleet.read("other")["fragments"], 1);
}

#[test]
fn a_tick_that_cannot_read_the_registry_sweeps_later() {
    let Some(fleet) = Fleet::new("a_tick_that_cannot_read_the_registry_sweeps_later") else { return };
    fleet.plain("orders", 4);
    let digest = fleet.read("orders")["digest"].clone();
    let (proxy, broken) = (fleet.proxy(), Arc::new(AtomicBool::new(false)));
    let is_broken = broken.clone();
    proxy.set(move |r| match is_registrys(r) && is_broken.load(Ordering::SeqCst) {
        true => Action::Status(503),
        false => Action::Pass,
    });
    let replica = fleet.replica_behind(Some(&proxy), &[]);
    broken.store(true, Ordering::SeqCst);
    fleet.tick();
    wait("the tick is given back", || (requeued_of(&replica, "ticks") > 0.0).then_some(()));
    broken.store(false, Ordering::SeqCst);
    is_merged_by_one_tick(&fleet, &[&replica], &digest);
}

#[test]
fn a_dataset_that_somebody_holds_is_done_once_it_is_let_go() {
    let Some(fleet) = Fleet::new("a_dataset_that_somebody_holds_is_done_once_it_is_let_go") else { return };
    fleet.plain("orders", 4);
    let digest = fleet.read("orders")["digest"].clone();
    let (uri, ttl) = (fleet.uri("orders"), Duration::from_secs(600));
    let claimed = fleet.with_registry(async |r| r.claim(&uri, Uuid::now_v7(), ttl).await).expect("asked");
    let ClaimOutcome::Held(claim) = claimed else { panic!("{claimed:?}") };
    let replica = fleet.replica(&[]);
    fleet.tick();
    wait("the message is given back", || (requeued(&replica) > 0.0).then_some(()));
    assert_eq!(fleet.versions("orders"), json!([1, 2, 3, 4]), "it is left to its holder");
    fleet.with_registry(async |_| claim.release().await).expect("released");
    is_merged_by_one_tick(&fleet, &[&replica], &digest);
}

/// A change that comes while its pass runs finds the message queued, and is not queued itself.
#[test]
fn what_is_written_while_a_pass_runs_is_not_forgotten() {
    let Some(fleet) = Fleet::new("what_is_written_while_a_pass_runs_is_not_forgotten") else { return };
    fleet.plain("orders", 4);
    let (proxy, gate) = (fleet.proxy(), Gate::new());
    // The merge has landed, and its pass has not heard of it yet.
    proxy.set(on_nth_of_kind("PUT _versions", 2, Action::HoldAnswer(gate.clone())));
    let replica = fleet.replica_behind(Some(&proxy), &["policy.interval=0s"]);
    fleet.tick();
    gate.arrived();
    fleet.pylance("write", "orders", json!({ "appends": 3, "start": 1_000 }));
    let digest = fleet.read("orders")["digest"].clone();
    gate.open();
    is_merged_by_one_tick(&fleet, &[&replica], &digest);
    let steps: Vec<String> = fleet.stamps("orders").into_values().collect();
    assert_eq!(steps.iter().filter(|s| s.contains("/compact/")).count(), 2, "{steps:?}");
}

#[test]
fn a_pass_that_takes_long_stays_its_workers() {
    let Some(fleet) = Fleet::new("a_pass_that_takes_long_stays_its_workers") else { return };
    fleet.plain("orders", 4);
    let digest = fleet.read("orders")["digest"].clone();
    let short = ["grace.claim_ttl=6s", "bus.ack_wait=1s"];
    let (proxy, gate) = (fleet.proxy(), Gate::new());
    proxy.set(on_nth_of_kind("PUT data", 1, Action::Hold(gate.clone())));
    let slow = fleet.replica_behind(Some(&proxy), &short);
    fleet.tick();
    gate.arrived();
    let other = fleet.replica(&short);
    // Renewed every two seconds, twice the time after which a silent worker loses its message.
    let claims = || proxy.log().iter().filter(|r| r.is_write() && kind(r) == "PUT claims").count();
    wait("the claim is renewed twice", || (claims() >= 3).then_some(()));
    gate.open();
    fleet.settles();
    assert_eq!((requeued(&slow), requeued(&other)), (0.0, 0.0), "nobody else was given the message");
    is_merged_by_one_tick(&fleet, &[&slow, &other], &digest);
}
