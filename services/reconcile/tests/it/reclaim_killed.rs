//! `reclaim apply` killed before and after its requests to a real S3 server, reads included, and run again.

use std::collections::BTreeSet;

use serde_json::json;
use squire_test_support::{Action, Server};

use super::reclaim_s3::{OnS3, STRAYS};

/// Kills one run after another, each `step` requests further, and ends every one of them with a second run.
fn killed_at_each(test: &str, prefix: &'static str, step: usize) {
    let Some(server) = Server::shared(test) else { return };
    let estate = OnS3::new(server, prefix);
    let before = estate.orders();
    let mut left = before.clone();
    STRAYS.iter().for_each(|path| assert!(left.remove(*path).is_some(), "{path}"));
    let (mut at, mut killed) = (1, 0);
    loop {
        let (id, _) = estate.plan();
        // In turns: whether the request arrives differs for a write alone, and every other round meets the other half of them.
        let action = if killed % 2 == 0 { Action::KillBefore } else { Action::KillAfter };
        let (told, chosen) = (format!("{action:?} of request {at}"), action);
        estate.proxy.set(move |r| if r.ordinal == at { chosen.clone() } else { Action::Pass });
        let mut child = estate.applying();
        estate.proxy.client_is(child.id());
        child.wait().unwrap();
        estate.proxy.settle();
        let was_killed = estate.proxy.killed();
        estate.proxy.pass();
        let (now, away) = (estate.orders(), estate.quarantine());
        let gone: BTreeSet<&str> = before.keys().filter(|p| !now.contains_key(*p)).map(String::as_str).collect();
        for path in &gone {
            assert!(STRAYS.contains(path), "{told}: {path} is gone, and no plan named it");
            assert!(away.iter().any(|a| a.ends_with(path)), "{told}: {path} is nowhere: {away:?}");
        }
        assert_eq!(estate.rows(), 60, "{told}");
        let (code, report) = estate.json(&["apply", "plan.json"]);
        assert_eq!(code, 0, "{told}: {report:#}");
        assert!(estate.orders() == left, "{told}: {:?}", estate.orders().keys());
        let (code, undone) = estate.json(&["undo", &id]);
        assert_eq!((code, &undone[0]["back"]), (0, &json!(3)), "{told}: {undone}");
        assert!(estate.orders() == before, "{told}: byte for byte");
        assert!(estate.quarantine().is_empty(), "{told}: {:?}", estate.quarantine());
        if !was_killed {
            break;
        }
        (at, killed) = (at + step, killed + 1);
    }
    assert!(killed * step > 30, "it makes more than {} requests", killed * step);
}

#[test]
fn apply_killed_at_its_requests_and_run_again_ends_the_same() {
    killed_at_each("apply_killed_at_its_requests_and_run_again_ends_the_same", "killed", 17);
}

#[test]
#[ignore = "every request: minutes; part of `make test-long`"]
fn apply_killed_at_every_request_and_run_again_ends_the_same() {
    killed_at_each("apply_killed_at_every_request_and_run_again_ends_the_same", "killed-each", 1);
}
