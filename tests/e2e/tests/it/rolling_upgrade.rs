//! An older and a newer build on one bus and registry. The newer ones are today's with a raised version of messages and of
//! records (`squire-maintenance-next` in its crate's examples, `newer-registry` in this one's); the older one is the program itself.

use serde_json::json;

use squire_service::bus::dataset_subject;

use crate::fleet::{Fleet, swept, wait};
use crate::replica::Replica;

const NEWER: &str = "examples/squire-maintenance-next";

#[test]
fn a_newer_builds_messages_are_left_to_it_and_an_older_ones_are_understood() {
    let test = "a_newer_builds_messages_are_left_to_it_and_an_older_ones_are_understood";
    let Some(fleet) = Fleet::new(test) else { return };
    for name in ["a", "b", "c"] {
        fleet.plain(name, 4);
    }
    let older = fleet.replica(&[]);
    assert_eq!(fleet.run(NEWER, &["tick", "maintenance"]), "sent\n");
    // More often than a message may be tried, and it is not given up.
    wait("the older one hands the newer one's tick back", || (requeued(&older) >= 6.0).then_some(()));
    assert!(swept(&[&older]).is_empty());
    let newer = fleet.replica_of(NEWER, None, &[]);
    fleet.settles();
    assert_eq!((swept(&[&newer]).len(), swept(&[&older]).len()), (1, 0));
    assert_eq!((newer.lines("maintained").len(), older.lines("maintained").len()), (3, 0), "its passes are its own");
    for name in ["a", "b", "c"] {
        assert_eq!(fleet.read(name)["fragments"], 1, "{name}");
    }

    // The older one's messages are everybody's.
    fleet.plain("d", 4);
    drop(older);
    let sweep = fleet.sweep(&[&newer]);
    assert_eq!((&sweep["seen"], &sweep["handed"]), (&json!(4), &json!(1)), "{sweep}");
    assert_eq!(fleet.read("d")["fragments"], 1);
    assert!(fleet.dead_letters().is_empty());
    fleet.oracle();
}

fn requeued(replica: &Replica) -> f64 {
    let samples = replica.metric("squire_messages_total");
    samples.iter().filter(|(l, _)| l.contains("ticks") && l.contains("requeued")).map(|(_, n)| n).sum()
}

#[test]
fn a_protection_of_a_newer_build_makes_an_older_one_refuse_and_not_stop() {
    let test = "a_protection_of_a_newer_build_makes_an_older_one_refuse_and_not_stop";
    let Some(fleet) = Fleet::new(test) else { return };
    for name in ["held", "free"] {
        fleet.plain(name, 4);
    }
    let subject = dataset_subject(&fleet.uri("held"));
    fleet.newer_registry("freeze", &subject);
    let refuses = |older: &Replica| {
        let sweep = fleet.sweep(&[older]);
        assert_eq!((&sweep["seen"], &sweep["handed"]), (&json!(2), &json!(0)), "{sweep}");
        let skipped = older.metric("squire_datasets");
        assert!(skipped.iter().any(|(l, n)| l.contains("registry_unreadable") && *n == 2.0), "{skipped:?}");
        let unreadable = older.metric("squire_registry_unreadable_records");
        assert!(unreadable.iter().any(|(l, n)| l.contains("protection") && *n == 1.0), "{unreadable:?}");
    };
    let older = fleet.replica(&[]);
    refuses(&older);
    for name in ["held", "free"] {
        assert_eq!(fleet.versions(name), json!([1, 2, 3, 4]), "what it cannot read may forbid it");
    }
    drop(older);

    // The newer build reads it, and obeys it until it goes.
    let newer = fleet.replica_of(NEWER, None, &[]);
    assert_eq!(fleet.sweep(&[&newer])["handed"], 1);
    assert_eq!(
        (fleet.read("held")["fragments"].clone(), fleet.read("free")["fragments"].clone()),
        (json!(4), json!(1))
    );
    fleet.newer_registry("thaw", &subject);
    assert_eq!(fleet.sweep(&[&newer])["handed"], 1);
    assert_eq!(fleet.read("held")["fragments"], 1);
    drop(newer);
    // Beside all that the newer one has written, its claims, runs and states, the older one still stands and changes nothing.
    let objects = fleet.objects();
    let older = fleet.replica(&[]);
    refuses(&older);
    assert_eq!(older.json("/readyz").0, 200);
    let after = fleet.objects();
    for name in ["held", "free"] {
        let of = |o: &squire_test_support::Objects| -> Vec<String> {
            o.keys().filter(|k| k.starts_with(&format!("lake/{name}/"))).cloned().collect()
        };
        assert_eq!(of(&objects), of(&after));
    }
    assert!(fleet.dead_letters().is_empty());
    fleet.oracle();
}
