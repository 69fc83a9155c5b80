//! The kill switch, on a slow store and in the middle of a sweep: ten seconds after it, nothing gets a version any more.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use squire_test_support::Action;

use crate::fleet::{Fleet, wait};

/// From the switch to the last version.
const EFFECTIVE: Duration = Duration::from_secs(10);
const DATASETS: usize = 24;

fn stops(test: &str, switch: &[&str]) {
    let Some(fleet) = Fleet::new(test) else { return };
    let names: Vec<String> = (0..DATASETS).map(|n| format!("t{n:02}")).collect();
    for name in &names {
        fleet.indexed(name);
    }
    let proxy = fleet.proxy();
    let replicas = [0, 1].map(|_| fleet.replica_behind(Some(&proxy), &[]));
    proxy.set(|_| Action::Delay(Duration::from_millis(50)));
    fleet.tick();
    // It is at work: one is done, others are begun, most wait.
    wait("the first dataset", || replicas.iter().find_map(|r| r.lines("maintained").pop()));
    fleet.registry_command(switch);
    let switched = Instant::now();
    let versions = || -> BTreeMap<&String, Vec<String>> {
        names.iter().map(|n| (n, fleet.bucket.list(&format!("{}/lake/{n}/_versions", fleet.prefix)))).collect()
    };
    wait("the switch's time", || (switched.elapsed() >= EFFECTIVE).then_some(()));
    let then = versions();
    fleet.settles();
    let after = versions();
    assert_eq!(then, after, "a version was made more than {EFFECTIVE:?} after {switch:?}");
    let untouched = after.values().filter(|v| v.len() == 5).count();
    assert!(untouched >= 4, "the switch came too late to show anything: {untouched} of {DATASETS}");
    assert!(fleet.dead_letters().is_empty());
    // And the next sweep hands nothing out.
    let all: Vec<_> = replicas.iter().collect();
    assert_eq!(fleet.sweep(&all)["handed"], 0);
    assert_eq!(versions(), after);
    fleet.oracle_after_harm();
}

#[test]
fn a_block_of_the_estate_is_effective_within_ten_seconds() {
    let test = "a_block_of_the_estate_is_effective_within_ten_seconds";
    stops(test, &["block", "add", "estate", "--reason", "an incident"]);
}

#[test]
fn a_freeze_of_the_estate_is_effective_within_ten_seconds() {
    let test = "a_freeze_of_the_estate_is_effective_within_ten_seconds";
    stops(test, &["protection", "set", "estate", "freeze", "--reason", "an incident"]);
}
