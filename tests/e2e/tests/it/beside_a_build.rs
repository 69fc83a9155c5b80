//! A pass of the one daemon and a build of the other, of one table at the same time: whoever comes second waits for the claim and
//! then does its work, and each is in effect once.

use serde_json::{Value, json};
use squire_test_support::{Proxy, gated, kind};

use crate::fleet::{Fleet, wait};
use crate::replica::Replica;

/// What a claim is renewed within; whoever finds the table claimed comes again after half of it.
const CLAIM: &str = "grace.claim_ttl=6s";

/// A registered table in four fragments, and its rows.
fn fleet(test: &str) -> Option<(Fleet, Value)> {
    let fleet = Fleet::new(test)?;
    fleet.plain("orders", 4);
    fleet.register("orders");
    let digest = fleet.read("orders")["digest"].clone();
    Some((fleet, digest))
}

fn submit(fleet: &Fleet, column: &str, index_type: &str) -> String {
    let args = ["submit", "table/a/orders", "--columns", column, "--type", index_type, "-o", "json"];
    let told: Value = serde_json::from_str(&fleet.run("squire-index-build", &args)).expect("JSON");
    told["job"].as_str().expect("a job").to_owned()
}

fn job(fleet: &Fleet, id: &str) -> Value {
    serde_json::from_str(&fleet.run("squire-index-build", &["jobs", "show", id, "-o", "json"])).expect("JSON")
}

/// Waits for the job's end, which is a build.
#[track_caller]
fn built(fleet: &Fleet, id: &str) -> Value {
    let job = wait("the job is over", || Some(job(fleet, id)).filter(|job| !job["finished_at"].is_null()));
    assert_eq!((&job["state"], &job["result"]["check"]["exact"]), (&json!("built"), &json!(true)), "{job:#}");
    job
}

/// Writes of a dataset's versions that a replica asked for.
fn commits(proxy: &Proxy) -> usize {
    proxy.writes().iter().filter(|w| kind(w) == "PUT _versions").count()
}

/// One pass and one build, each committed once; what pylance reads is what it was, and its index answers as a scan does.
#[track_caller]
fn both_once(fleet: &Fleet, maintenance: &Replica, digest: &Value) {
    fleet.settles();
    let stamps = fleet.stamps("orders");
    for step in ["/compact/", "/build/"] {
        assert_eq!(stamps.values().filter(|s| s.contains(step)).count(), 1, "{step}: {stamps:?}");
    }
    for event in ["pass.completed", "index.built"] {
        assert_eq!(fleet.events_of(event).len(), 1, "{event}");
    }
    fleet.is_done(&[maintenance], "orders", digest);
    fleet.oracle();
}

#[test]
fn a_request_that_comes_while_a_compaction_runs_waits_and_is_built() {
    let test = "a_request_that_comes_while_a_compaction_runs_waits_and_is_built";
    let Some((fleet, digest)) = fleet(test) else { return };
    let proxy = fleet.proxy();
    let (gate, rule) = gated(|request| request.is_write() && kind(request) == "PUT data");
    proxy.set(rule);
    let maintenance = fleet.replica_behind(Some(&proxy), &[CLAIM]);
    let _builder = fleet.replica_of("squire-index-build", None, &[CLAIM]);
    fleet.tick();
    gate.arrived();
    let id = submit(&fleet, "id", "BTREE");
    let waits = wait("the request finds the claim", || {
        Some(job(&fleet, &id)).filter(|job| job["error"].as_str().is_some_and(|e| e.contains("works on the table")))
    });
    assert_eq!(waits["state"], "queued", "{waits:#}");
    assert_eq!(fleet.versions("orders"), json!([1, 2, 3, 4]), "neither has committed");
    gate.open();
    let done = built(&fleet, &id);
    assert_eq!(done["result"]["indexed_rows"], 120, "{done:#}");
    both_once(&fleet, &maintenance, &digest);
}

#[test]
fn a_compaction_that_comes_while_a_build_runs_waits_and_goes_on() {
    let test = "a_compaction_that_comes_while_a_build_runs_waits_and_goes_on";
    let Some((fleet, digest)) = fleet(test) else { return };
    let proxy = fleet.proxy();
    let (gate, rule) = gated(|request| request.is_write() && kind(request) == "PUT _indices");
    proxy.set(rule);
    let _builder = fleet.replica_of("squire-index-build", Some(&proxy), &[CLAIM]);
    let behind = fleet.proxy();
    behind.pass();
    let maintenance = fleet.replica_behind(Some(&behind), &[CLAIM]);
    let id = submit(&fleet, "body", "INVERTED");
    gate.arrived();
    fleet.tick();
    wait("the pass finds the claim", || {
        let passes = maintenance.metric("squire_passes_total");
        passes.into_iter().find(|(labels, n)| labels.contains("\"claimed\"") && *n > 0.0)
    });
    assert_eq!((fleet.versions("orders"), commits(&behind)), (json!([1, 2, 3, 4]), 0), "neither has committed");
    gate.open();
    built(&fleet, &id);
    // The pass's message comes again by itself.
    wait("the pass goes on", || fleet.events_of("pass.completed").pop());
    both_once(&fleet, &maintenance, &digest);
}
