//! A store that fails for a moment, under two replicas: nothing is given up, nothing is lost, the work gets done.

use std::time::Duration;

use serde_json::Value;
use squire_test_support::{Action, Request, failing_first};

use crate::fleet::{Fleet, SHORT_RETENTION};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Two replicas behind one failing store, ticked until every dataset is as it should be and clean-up ran, too.
fn survives(test: &str, rule: impl FnMut(&Request) -> Action + Send + 'static) {
    let Some(fleet) = Fleet::new(test) else { return };
    for name in ["a", "b"] {
        fleet.indexed(name);
    }
    for name in ["c", "d"] {
        fleet.plain(name, 4);
    }
    let digests: Vec<Value> = NAMES.iter().map(|name| fleet.read(name)["digest"].clone()).collect();
    let proxy = fleet.proxy();
    let replicas = [0, 1].map(|_| fleet.replica_behind(Some(&proxy), &SHORT_RETENTION));
    let all: Vec<_> = replicas.iter().collect();
    proxy.set(rule);
    for round in 1.. {
        let sweep = fleet.sweep(&all);
        assert_eq!(sweep["seen"], 4, "no dataset is lost: {sweep}");
        let reads = NAMES.map(|name| fleet.read(name));
        let merged = reads.iter().all(|r| r["fragments"] == 1 && r["unindexed"] == 0);
        // What the merge replaced is old enough only in a later sweep.
        if merged && sweep["due"] == 0 && !fleet.events_of("versions.reclaimed").is_empty() {
            break;
        }
        assert!(round < 12, "it does not end: {sweep}: {reads:#?}");
    }
    let dead = fleet.dead_letters();
    assert!(dead.is_empty(), "{dead:#?}");
    for (name, digest) in NAMES.iter().zip(&digests) {
        assert_eq!(fleet.read(name)["digest"], *digest, "{name}");
        assert!(!fleet.stamps(name).is_empty(), "{name}");
    }
    fleet.oracle_after_harm();
}

#[test]
fn a_store_that_fails_the_first_attempt_of_everything_costs_attempts_only() {
    let test = "a_store_that_fails_the_first_attempt_of_everything_costs_attempts_only";
    survives(test, failing_first(1, Action::Status(503), |_| true));
}

#[test]
fn throttling_resets_and_slow_answers_cost_attempts_only() {
    // Of a hundred requests five are throttled, two lose their connection, two their answer, and ten are slow.
    survives("throttling_resets_and_slow_answers_cost_attempts_only", |r| match r.ordinal % 100 {
        3 | 23 | 43 | 63 | 83 => Action::Status(503),
        11 | 61 => Action::Reset,
        37 | 87 => Action::ResetAfter,
        n if n % 10 == 5 => Action::Delay(Duration::from_millis(150)),
        _ => Action::Pass,
    });
}

#[test]
fn lost_answers_on_conditional_puts_have_no_second_effect() {
    let mut lost = 0;
    // Heard, and not answered: the client's next attempt finds its own object and takes it for a conflict.
    survives("lost_answers_on_conditional_puts_have_no_second_effect", move |r| {
        if !r.conditional || r.attempt > 1 {
            return Action::Pass;
        }
        lost += 1;
        if lost % 2 == 0 { Action::ResetAfter } else { Action::StatusAfter(503) }
    });
}
