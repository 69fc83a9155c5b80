//! A bus of three servers that loses a stream's leader in the middle of a sweep.

use serde_json::Value;
use squire_test_support::{Action, Gate, kind};

use crate::fleet::{Fleet, wait};

#[test]
fn a_sweep_outlives_the_leader_of_its_stream() {
    let Some(mut fleet) = Fleet::clustered("a_sweep_outlives_the_leader_of_its_stream") else { return };
    let names: Vec<String> = (0..8).map(|n| format!("t{n}")).collect();
    for name in &names {
        fleet.indexed(name);
    }
    let digest = fleet.read("t0")["digest"].clone();
    assert_ne!(digest, Value::Null);
    let proxy = fleet.proxy();
    let gate = Gate::new();
    let held = gate.clone();
    let replicas = [0, 1].map(|_| fleet.replica_behind(Some(&proxy), &[]));
    // Four passes are in the replicas' hands, and four wait on the bus.
    proxy.set(move |r| if kind(r) == "PUT _indices" { Action::Hold(held.clone()) } else { Action::Pass });
    fleet.tick();
    gate.arrived();
    let stream = format!("SQUIRE_{}_WORK", fleet.prefix.to_uppercase());
    let leader = wait("the stream's leader", || fleet.nats[0].leader(&stream));
    let n: usize = leader.trim_start_matches('n').parse().expect("n0 to n2");
    fleet.nats[n].kill();
    gate.open();
    let other = (n + 1) % 3;
    let next = wait("another leader", || fleet.nats[other].leader(&stream).filter(|l| *l != leader));
    assert_ne!(next, leader);
    fleet.settles();
    for name in &names {
        let read = fleet.read(name);
        assert_eq!((&read["fragments"], &read["digest"]), (&1.into(), &digest), "{name}: {read}");
        let stamps = fleet.stamps(name);
        for step in ["compact", "optimize_indices"] {
            let made = stamps.values().filter(|s| s.contains(&format!("/{step}/"))).count();
            assert_eq!(made, 1, "{name}: {stamps:?}");
        }
    }
    assert!(fleet.dead_letters().is_empty());
    // With two of three it goes on, and with all three again, too.
    fleet.plain("later", 4);
    let all: Vec<_> = replicas.iter().collect();
    assert_eq!(fleet.sweep(&all)["handed"], 1);
    fleet.nats[n].run();
    fleet.plain("last", 4);
    assert_eq!(fleet.sweep(&all)["handed"], 1);
    for name in ["later", "last"] {
        assert_eq!(fleet.read(name)["fragments"], 1, "{name}");
    }
    fleet.oracle();
}
