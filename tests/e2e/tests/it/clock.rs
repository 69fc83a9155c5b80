//! The clock: many replicas, one instant.

use std::collections::BTreeSet;

use chrono::{DateTime, Timelike, Utc};
use squire_test_support::{Action, Gate, on_nth_of_kind};

use crate::fleet::{Fleet, swept, wait};

#[test]
fn five_replicas_sweep_an_instant_once() {
    let Some(fleet) = Fleet::new("five_replicas_sweep_an_instant_once") else { return };
    fleet.plain("orders", 4);
    // Two instants of this hour; at the second, all replicas have passed the first.
    let first = Utc::now() + chrono::Duration::seconds(25);
    let second = first + chrono::Duration::seconds(5);
    let at = |t: chrono::DateTime<Utc>| (t.hour(), t.minute(), t.second());
    let ((h1, m1, s1), (h2, m2, s2)) = (at(first), at(second));
    let cron = if (h1, m1) == (h2, m2) {
        format!("schedule.maintenance='{s1},{s2} {m1} {h1} * * *'")
    } else {
        // Over the end of a minute: both seconds of both minutes, of which two are to come.
        format!("schedule.maintenance='{s1},{s2} {m1},{m2} {h1},{h2} * * *'")
    };
    let replicas: Vec<_> = (0..5).map(|_| fleet.replica(&[&cron])).collect();
    assert!(Utc::now() < first, "the replicas took too long to start");
    let all: Vec<_> = replicas.iter().collect();
    wait("the second sweep", || (swept(&all).len() >= 2 && Utc::now() > second).then_some(()));
    fleet.settles();
    let sweeps = swept(&all);
    assert_eq!(sweeps.len(), 2, "{sweeps:#?}");
    // Where the first was still at it, the second found the pass queued; else it found the work done.
    let handed: u64 = sweeps.iter().filter_map(|s| s["handed"].as_u64()).sum();
    assert_eq!(handed, 1, "{sweeps:#?}");
    assert_eq!(fleet.events_of("pass.completed").len(), 1);
    let steps: Vec<String> = fleet.stamps("orders").into_values().collect();
    assert_eq!(steps.iter().collect::<BTreeSet<_>>().len(), 2, "one reservation, one merge: {steps:?}");
    assert_eq!(steps.len(), 2, "{steps:?}");
    assert_eq!(fleet.read("orders")["fragments"], 1);
    fleet.oracle();
}

/// A fleet with one dataset, and an instant that came a minute ago and that nobody has published: the one before it was.
fn missed(test: &str) -> Option<(Fleet, DateTime<Utc>, String)> {
    let fleet = Fleet::new(test)?;
    fleet.plain("orders", 4);
    let instant = (Utc::now() - chrono::Duration::minutes(1)).with_nanosecond(0).expect("a time");
    let before = instant - chrono::Duration::days(1);
    assert!(fleet.with_registry(async |r| r.record_instant("maintenance", before).await).expect("recorded"));
    let cron = format!("schedule.maintenance='{} {} {} * * *'", instant.second(), instant.minute(), instant.hour());
    Some((fleet, instant, cron))
}

/// Once another replica has come: the instant is recorded, and there was one sweep and one pass.
fn is_swept_once(fleet: &Fleet, instant: DateTime<Utc>) {
    let last = async |r: squire_registry::Registry| r.last_instant("maintenance", Utc::now()).await;
    wait("the instant is recorded", || (fleet.with_registry(last).expect("read") == Some(instant)).then_some(()));
    fleet.settles();
    assert_eq!((fleet.events_of("run.started").len(), fleet.events_of("pass.completed").len()), (1, 1));
    let steps: Vec<String> = fleet.stamps("orders").into_values().collect();
    assert_eq!(steps.len(), 2, "one reservation, one merge: {steps:?}");
    assert_eq!(fleet.read("orders")["fragments"], 1);
    assert!(fleet.dead_letters().is_empty());
    fleet.oracle_after_harm();
}

fn killed_at_the_record(test: &str, action: Action) {
    let Some((fleet, instant, cron)) = missed(test) else { return };
    let proxy = fleet.proxy();
    proxy.set(on_nth_of_kind("PUT schedule", 1, action));
    let mut doomed = fleet.replica_behind(Some(&proxy), &[&cron]);
    doomed.end();
    assert!(proxy.killed() && swept(&[&doomed]).is_empty(), "{}", doomed.text());
    let other = fleet.replica(&[&cron]);
    is_swept_once(&fleet, instant);
    assert_eq!(swept(&[&other]).len(), 1);
}

#[test]
fn a_replica_killed_between_publishing_and_recording_an_instant_loses_no_sweep() {
    let test = "a_replica_killed_between_publishing_and_recording_an_instant_loses_no_sweep";
    killed_at_the_record(test, Action::KillBefore);
}

#[test]
fn a_replica_killed_once_an_instant_is_recorded_loses_no_sweep() {
    killed_at_the_record("a_replica_killed_once_an_instant_is_recorded_loses_no_sweep", Action::KillAfter);
}

#[test]
fn an_instant_that_was_swept_and_not_recorded_is_not_swept_again() {
    let test = "an_instant_that_was_swept_and_not_recorded_is_not_swept_again";
    let Some((fleet, instant, cron)) = missed(test) else { return };
    let proxy = fleet.proxy();
    let gate = Gate::new();
    proxy.set(on_nth_of_kind("PUT schedule", 1, Action::Hold(gate.clone())));
    let mut doomed = fleet.replica_behind(Some(&proxy), &[&cron]);
    gate.arrived();
    wait("its sweep", || swept(&[&doomed]).pop());
    fleet.settles();
    doomed.kill();
    let other = fleet.replica(&[&cron]);
    is_swept_once(&fleet, instant);
    assert!(swept(&[&other]).is_empty(), "{}", other.text());
}
