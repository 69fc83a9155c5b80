//! A commit that is lost, and one whose answer is: outputs go only when the loss is proven.

use serde_json::{Value, json};
use squire_lake::oracle::Leftovers;
use squire_test_support::{Action, Request, Server, gated, kind};

use super::s3_estate::*;

/// The commits of the compaction: the reservation is the first manifest after its data file, the rewrite the second.
fn manifest_after_data(n: usize) -> impl FnMut(&Request) -> bool + Send {
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
            let when = format!("{what} after manifest {n}: exit {:?}", swept.code());
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

#[test]
fn a_rewrite_whose_fate_is_unknown_leaves_its_files_and_says_how_much() {
    let name = "a_rewrite_whose_fate_is_unknown_leaves_its_files_and_says_how_much";
    for action in [Action::Status(500), Action::Reset] {
        let Some((pristine, estate)) = estate(name) else { return };
        // From the rewrite's manifest on, no manifest gets through.
        let (mut matches, mut begun) = (manifest_after_data(2), false);
        let answer = action.clone();
        estate.proxy.set(move |r| {
            begun |= matches(r);
            if begun && kind(r) == "PUT _versions" { answer.clone() } else { Action::Pass }
        });
        let swept = estate.start_plainly(&["--set", "storage.client_max_retries=1"]).end();
        assert_eq!(swept.code(), Some(3), "{}\n{:#}", swept.stderr, swept.report);
        let row = swept.row("orders");
        assert_eq!(row["steps"]["compact"]["reason"], "transient", "{row:#}");
        let finding = row["findings"].as_array().and_then(|f| f.iter().find(|f| f["kind"] == "stranded_bytes"));
        let stranded = finding.and_then(|f| f["bytes"].as_u64()).unwrap_or_default();
        assert!(stranded > 0, "{row:#}");
        let version = estate.read("orders")["version"].as_u64();
        let left = outputs(&estate);
        estate.has_its_rows(&pristine, "unknown");
        estate.is_explained(Leftovers::Explained, "unknown");
        estate.converges(&pristine, "unknown");
        assert!(version.is_some());
        let now = outputs(&estate);
        assert!(left.iter().all(|f| now.contains(f) || f.starts_with("data/")), "files went without a plan");
    }
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
