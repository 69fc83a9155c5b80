//! A commit that is lost, and one whose answer is: outputs go only when the loss is proven.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use squire_lake::oracle::Leftovers;
use squire_test_support::{Action, Request, Server, gated, kind};

use super::s3_estate::*;

/// The commits of the compaction: the reservation is the first manifest after its data file, the rewrite the second.
pub(super) fn manifest_after_data(n: usize) -> impl FnMut(&Request) -> bool + Send {
    let (mut data, mut manifests) = (false, 0);
    move |request| {
        data |= kind(request) == "PUT data";
        let is = data && kind(request) == "PUT _versions";
        manifests += usize::from(is);
        is && manifests == n
    }
}

fn estate(test: &str) -> Option<(Pristine, OnS3)> {
    let server = Server::shared(test)?;
    let pristine = Pristine::one(server);
    let estate = OnS3::copy(server, &pristine);
    Some((pristine, estate))
}

/// Data files and index files below the dataset.
fn outputs(estate: &OnS3) -> Vec<String> {
    let mut files = estate.files("orders");
    files.retain(|f| f.starts_with("data/") || f.starts_with("_indices/"));
    files
}

#[test]
fn a_commit_whose_answer_is_lost_is_not_taken_for_lost() {
    for (what, action) in
        [("reset", Action::ResetAfter), ("500", Action::StatusAfter(500)), ("503", Action::StatusAfter(503))]
    {
        for n in [1, 2] {
            let Some((pristine, estate)) = estate("a_commit_whose_answer_is_lost_is_not_taken_for_lost") else {
                return;
            };
            let (mut matches, action) = (manifest_after_data(n), action.clone());
            estate.proxy.set(move |r| if matches(r) { action.clone() } else { Action::Pass });
            let swept = estate.start_plainly(&[]).end();
            let when = format!("{what} after manifest {n}");
            assert_eq!(swept.code(), Some(0), "{when}: {}\n{:#}", swept.stderr, swept.report);
            assert_eq!(estate.read("orders")["fragments"], 1, "{when}");
            estate.has_its_rows(&pristine, &when);
            estate.converges(&pristine, &when);
            estate.is_explained(Leftovers::Explained, &when);
        }
    }
}

#[test]
fn the_outputs_of_a_rewrite_that_somebody_else_preempted_are_removed() {
    let name = "the_outputs_of_a_rewrite_that_somebody_else_preempted_are_removed";
    let Some((_, estate)) = estate(name) else { return };
    let (gate, rule) = gated(manifest_after_data(2));
    estate.proxy.set(rule);
    let running = estate.start_plainly(&[]);
    gate.arrived();
    let before = outputs(&estate);
    // The same fragments: the rewrite can no longer land as it is.
    estate.server.pylance("delete", &estate.uri("orders"), json!({"where": "id < 40"}));
    gate.open();
    let swept = running.end();
    assert_eq!(swept.code(), Some(0), "{}\n{:#}", swept.stderr, swept.report);
    assert_eq!(swept.report["totals"]["stranded_bytes"], 0, "{:#}", swept.report);
    let after = estate.read("orders");
    assert_eq!(after["rows"], 80, "{after}");
    // Nothing that nobody names is left, the remapped index's directory included: its name was born inside the commit.
    assert!(before.iter().any(|f| f.starts_with("_indices/")), "{before:?}");
    estate.is_explained(Leftovers::None, "after the conflict");
}

/// Bytes that the dataset's row says stay behind.
fn stranded(swept: &Ended) -> u64 {
    let row = swept.row("orders");
    let finding = row["findings"].as_array().and_then(|f| f.iter().find(|f| f["kind"] == "stranded_bytes"));
    finding.and_then(|f| f["bytes"].as_u64()).unwrap_or_default()
}

#[test]
fn a_rewrite_whose_fate_is_unknown_leaves_its_files_and_says_how_much() {
    let name = "a_rewrite_whose_fate_is_unknown_leaves_its_files_and_says_how_much";
    for action in [Action::Status(500), Action::Reset] {
        let Some((pristine, estate)) = estate(name) else { return };
        // From the rewrite's manifest on, no manifest gets through.
        let (mut matches, mut begun) = (manifest_after_data(2), false);
        let answer = action.clone();
        let written = Arc::new(Mutex::new(Vec::new()));
        let noted = written.clone();
        estate.proxy.set(move |r| {
            begun |= matches(r);
            if kind(r) == "PUT data" {
                noted.lock().expect("one rule at a time").push(r.path.clone());
            }
            if begun && kind(r) == "PUT _versions" { answer.clone() } else { Action::Pass }
        });
        let swept = estate.start_plainly(&["--set", "storage.client_max_retries=1"]).end();
        assert_eq!(swept.code(), Some(3), "{}\n{:#}", swept.stderr, swept.report);
        assert_eq!(swept.row("orders")["steps"]["compact"]["reason"], "transient", "{:#}", swept.report);
        assert!(stranded(&swept) > 0, "{:#}", swept.report);
        assert_eq!(swept.report["totals"]["stranded_bytes"], stranded(&swept));
        let written = written.lock().expect("no rule any more").clone();
        let left = outputs(&estate);
        assert!(!written.is_empty());
        for path in written {
            assert!(left.iter().any(|f| path.ends_with(f)), "{path} was taken away without proof: {left:?}");
        }
        estate.has_its_rows(&pristine, "unknown");
        estate.is_explained(Leftovers::Explained, "unknown");
        estate.converges(&pristine, "unknown");
    }
}

/// The client gives up; much later the request that it had sent takes effect after all.
#[test]
fn a_rewrite_that_lands_after_its_client_gave_up_is_whole() {
    let Some((pristine, estate)) = estate("a_rewrite_that_lands_after_its_client_gave_up_is_whole") else { return };
    let (gate, rule) = gated(manifest_after_data(2));
    estate.proxy.set(rule);
    let running = estate.start_plainly(&["--set", "storage.timeout=2s", "--set", "storage.client_max_retries=0"]);
    gate.arrived();
    let swept = running.end();
    assert_eq!(swept.code(), Some(3), "{}\n{:#}", swept.stderr, swept.report);
    assert!(stranded(&swept) > 0, "{:#}", swept.report);
    let before = estate.read("orders");
    gate.open();
    estate.proxy.settle();
    let after = estate.read("orders");
    assert_eq!(
        (&after["fragments"], &after["digest"]),
        (&json!(1), &pristine.rows["orders"]),
        "{before} became {after}"
    );
    // Lance takes the transaction's file away when it believes that a commit failed; the manifest has it inline as well.
    let found = estate.unexplained(Leftovers::Explained);
    assert!(found.is_empty(), "{found:#?}");
    estate.converges(&pristine, "late");
}

#[test]
fn a_stop_signal_during_a_commit_lets_it_land() {
    let Some((pristine, estate)) = estate("a_stop_signal_during_a_commit_lets_it_land") else { return };
    let (gate, rule) = gated(manifest_after_data(2));
    estate.proxy.set(rule);
    let running = estate.start_plainly(&[]);
    gate.arrived();
    let pid = running.pid().to_string();
    let sent = std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("kill");
    assert!(sent.success());
    gate.open();
    let swept = running.end();
    assert_eq!(swept.code(), Some(143), "{}", swept.stderr);
    let after = estate.read("orders");
    assert_eq!((&after["fragments"], &after["digest"]), (&json!(1), &pristine.rows["orders"]), "it landed: {after}");
    estate.is_explained(Leftovers::None, "after SIGTERM");
    assert_ne!(swept.report, Value::Null, "it still reports");
}
