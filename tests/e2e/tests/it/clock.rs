//! The clock: many replicas, one instant.

use chrono::{Timelike, Utc};
use std::collections::BTreeSet;

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
}
