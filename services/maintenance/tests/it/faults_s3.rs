//! A store that fails: for a moment, for a while, slowly, and for ever.

use std::time::{Duration, Instant};

use serde_json::json;
use squire_lake::oracle::Leftovers;
use squire_test_support::{Action, Request, Server, failing_first};

use super::s3_estate::*;

/// A sweep under a rule: it either ends well or says which kind of failure, nothing is lost, and the next sweep converges.
fn survives(test: &str, what: &str, must_succeed: bool, rule: impl FnMut(&Request) -> Action + Send + 'static) {
    let Some(server) = Server::shared(test) else { return };
    let pristine = Pristine::one(server);
    let estate = OnS3::copy(server, &pristine);
    estate.proxy.set(rule);
    let swept = estate.start_plainly(&[]).end();
    if must_succeed {
        assert_eq!(swept.code(), Some(0), "{what}: {}\n{:#}", swept.stderr, swept.report);
        assert_eq!(estate.read("orders")["fragments"], 1, "{what}");
        estate.is_explained(Leftovers::None, what);
    }
    estate.has_its_rows(&pristine, what);
    estate.converges(&pristine, what);
    estate.is_explained(Leftovers::Explained, what);
}

#[test]
fn every_operation_that_is_throttled_once_is_tried_again() {
    let name = "every_operation_that_is_throttled_once_is_tried_again";
    survives(name, "503 once", true, failing_first(1, Action::Status(503), |_| true));
}

#[test]
fn every_write_that_is_throttled_three_times_is_tried_again() {
    let name = "every_write_that_is_throttled_three_times_is_tried_again";
    survives(name, "503 three times", true, failing_first(3, Action::Status(503), Request::is_write));
}

#[test]
#[ignore = "half a second per operation; part of `make test-long`"]
fn every_operation_that_is_throttled_three_times_is_tried_again() {
    let name = "every_operation_that_is_throttled_three_times_is_tried_again";
    survives(name, "503 three times", true, failing_first(3, Action::Status(503), |_| true));
}

#[test]
fn every_operation_whose_connection_breaks_once_is_tried_again() {
    let name = "every_operation_whose_connection_breaks_once_is_tried_again";
    survives(name, "reset once", true, failing_first(1, Action::Reset, |r| !r.is_write()));
    // A write that broke may have been heard: whether it is tried again is the client's choice, and nothing may be lost.
    survives(name, "write reset once", false, failing_first(1, Action::Reset, Request::is_write));
    survives(name, "write heard, reset once", false, failing_first(1, Action::ResetAfter, Request::is_write));
}

#[test]
fn slow_answers_change_nothing() {
    survives("slow_answers_change_nothing", "slow", true, |r: &Request| match r.ordinal % 5 {
        0 => Action::Delay(Duration::from_millis(150)),
        _ => Action::Pass,
    });
}

/// Everything below one dataset answers 503, its folder's listing (of discovery) only where `and_discovery` says so.
fn broken_notes(estate: &OnS3, and_discovery: bool) -> impl FnMut(&Request) -> Action + Send + 'static {
    let path = format!("/lake/{}/notes/", estate.prefix);
    let listing = format!("prefix={}%2Fnotes%2F", estate.prefix);
    move |r| {
        let listed = r.query.contains(&listing) && (and_discovery || !r.query.contains("delimiter"));
        if r.path.starts_with(&path) || listed { Action::Status(503) } else { Action::Pass }
    }
}

#[test]
fn a_dataset_whose_store_fails_for_ever_fails_alone_and_in_bounded_time() {
    let name = "a_dataset_whose_store_fails_for_ever_fails_alone_and_in_bounded_time";
    let Some(server) = Server::shared(name) else { return };
    let pristine = Pristine::three(server);
    for and_discovery in [false, true] {
        let estate = OnS3::copy(server, &pristine);
        std::thread::sleep(AGE);
        estate.proxy.set(broken_notes(&estate, and_discovery));
        let started = Instant::now();
        let swept = estate.sweep();
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
        assert_eq!(swept.code(), Some(3), "{}\n{:#}", swept.stderr, swept.report);
        if and_discovery {
            let what = swept.report["incomplete"][0]["what"].as_str().unwrap_or_default();
            assert!(what.ends_with("/notes"), "{:#}", swept.report);
        } else {
            let outcome = &swept.row("notes")["outcome"];
            assert_eq!(outcome["kind"], "failed", "{outcome}");
            assert!(outcome["reason"] == "transient" || outcome["reason"] == "open", "{outcome}");
        }
        for other in ["orders", "plain"] {
            assert_eq!(swept.row(other)["outcome"]["kind"], "maintained", "{other}: {:#}", swept.report);
            let cleanup = &swept.row(other)["steps"]["cleanup"];
            assert_eq!(cleanup["reason"], "references_incomplete", "what is not read may be a clone: {cleanup:#}");
            assert_eq!(estate.read(other)["fragments"], json!(1), "{other}");
        }
        estate.has_its_rows(&pristine, "one dataset's store fails");
        estate.converges(&pristine, "afterwards");
    }
}

#[test]
fn a_whole_bucket_that_fails_for_ever_ends_in_bounded_time_without_a_write() {
    let name = "a_whole_bucket_that_fails_for_ever_ends_in_bounded_time_without_a_write";
    let Some(server) = Server::shared(name) else { return };
    let pristine = Pristine::one(server);
    let estate = OnS3::copy(server, &pristine);
    estate.proxy.set(|_| Action::Status(503));
    let started = Instant::now();
    let swept = estate.start_plainly(&[]).end();
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    assert!(matches!(swept.code(), Some(1 | 3)), "{:?} {}", swept.code(), swept.stderr);
    assert_eq!(estate.proxy.writes(), [], "nothing is written to what cannot be read");
    estate.has_its_rows(&pristine, "the bucket fails");
}
