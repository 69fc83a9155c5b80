//! Invariant `crash_safe`: the process is killed at its writes, before the server hears of them and before it hears the answer.
//!
//! `make test` kills at the first write of every kind (to the registry, of each directory of a dataset, each delete) and at the
//! last of those that commit or delete; `make test-long` at EVERY write.

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use squire_lake::oracle::Leftovers;
use squire_test_support::{Action, Request, Server, kind, on_nth_of_kind, on_nth_write};

use super::s3_estate::*;

struct Kills {
    server: &'static Server,
    pristine: Arc<Pristine>,
    copies: Copies,
}

impl Kills {
    fn new(test: &str) -> Option<Self> {
        let server = Server::shared(test)?;
        let pristine = Arc::new(Pristine::three(server));
        let copies = Copies::of(server, pristine.clone(), "kill");
        Some(Self { server, pristine, copies })
    }

    fn estate(&self) -> OnS3 {
        OnS3::at(self.server, self.copies.take())
    }

    /// The writes of a sweep that nothing disturbs.
    fn writes(&self) -> Vec<Request> {
        let estate = self.estate();
        let swept = estate.sweep();
        assert_eq!(swept.code(), Some(0), "{}", swept.stderr);
        assert_eq!(swept.report["totals"]["maintained"], 3, "{:#}", swept.report);
        assert!(swept.report["totals"]["versions_removed"].as_u64() > Some(6), "{:#}", swept.report);
        let writes = estate.proxy.writes();
        estate.is_explained(Leftovers::None, "undisturbed");
        estate.converges(&self.pristine, "undisturbed");
        writes
    }

    fn kill(&self, rule: impl FnMut(&Request) -> Action + Send + 'static, what: &str) {
        let estate = self.estate();
        estate.proxy.set(rule);
        let ended = estate.start(&[]).end();
        assert_eq!(ended.status.signal(), Some(9), "{what}: it was not killed: {}", ended.stderr);
        estate.proxy.settle();
        estate.has_its_rows(&self.pristine, what);
        let tagged = self.server.pylance("read", &estate.uri("plain"), json!({"tag": "kept"}));
        assert_eq!(tagged["rows"], 60, "{what}: {tagged}");
        // Before the next sweep mends anything: every file that any version names is there, and what nobody names is explained.
        estate.is_explained(Leftovers::Explained, what);
        estate.converges(&self.pristine, what);
    }
}

#[test]
fn a_sweep_killed_at_any_kind_of_write_loses_nothing_and_the_next_one_converges() {
    let Some(kills) = Kills::new("a_sweep_killed_at_any_kind_of_write_loses_nothing_and_the_next_one_converges") else {
        return;
    };
    let mut kinds: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    let writes = kills.writes();
    for write in &writes {
        *kinds.entry(kind(write)).or_default() += 1;
    }
    for wanted in ["PUT data", "PUT _versions", "PUT _transactions", "PUT _indices", "DELETE _versions"] {
        assert!(kinds.contains_key(wanted), "no {wanted} among {kinds:?}");
    }
    // In one request with files of other kinds.
    assert!(writes.iter().any(|w| w.keys.iter().any(|k| k.contains("/data/"))), "no data file was deleted: {kinds:?}");
    for (name, count) in &kinds {
        kills.kill(on_nth_of_kind(name, 1, Action::KillAfter), &format!("after the first {name}"));
        // What the server did not hear matters where something was done already: at commits and deletes.
        if name.contains("_versions") || name.starts_with("DELETE") {
            kills.kill(on_nth_of_kind(name, *count, Action::KillBefore), &format!("before the last {name}"));
        }
    }
}

#[test]
#[ignore = "every write, twice: minutes; part of `make test-long`"]
fn a_sweep_killed_at_every_write_loses_nothing_and_the_next_one_converges() {
    let Some(kills) = Kills::new("a_sweep_killed_at_every_write_loses_nothing_and_the_next_one_converges") else {
        return;
    };
    let writes = kills.writes();
    let next = AtomicUsize::new(0);
    // Several at a time: most of a trial is waiting for the server.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(write) = writes.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let n = write.write.unwrap_or_default();
                    let what = format!("write {n} of {} ({})", writes.len(), kind(write));
                    kills.kill(on_nth_write(n, Action::KillBefore), &format!("before {what}"));
                    kills.kill(on_nth_write(n, Action::KillAfter), &format!("after {what}"));
                }
            });
        }
    });
}

#[test]
fn a_claim_left_by_a_killed_sweep_is_taken_over_at_once() {
    let Some(server) = Server::shared("a_claim_left_by_a_killed_sweep_is_taken_over_at_once") else { return };
    let pristine = Pristine::one(server);
    let estate = OnS3::copy(server, &pristine);
    estate.proxy.set(on_nth_of_kind("PUT data", 1, Action::KillBefore));
    let ended = estate.start_plainly(&[]).end();
    assert_eq!(ended.status.signal(), Some(9), "{}", ended.stderr);
    let claims = estate.bucket.list(&format!("{}/_squire/v1/claims", estate.prefix));
    assert_eq!(claims.len(), 1, "the claim stands: {claims:?}");
    estate.proxy.pass();
    let next = estate.start_plainly(&[]).end();
    assert_eq!(next.row("orders")["outcome"]["kind"], "maintained", "{:#}", next.report);
    assert_eq!(estate.read("orders")["fragments"], Value::from(1));
}

/// The version before ours may be the only one that answers right: it stays until somebody has compared them.
#[test]
fn a_commit_whose_process_was_killed_is_verified_by_the_next_sweep_before_anything_is_cleaned() {
    let test = "a_commit_whose_process_was_killed_is_verified_by_the_next_sweep_before_anything_is_cleaned";
    let Some(kills) = Kills::new(test) else { return };
    let commits = kills.writes().iter().filter(|w| kind(w) == "PUT _versions").count();
    let estate = kills.estate();
    // The last commit of the sweep is a rewrite or a fold, and the other two datasets are done.
    estate.proxy.set(on_nth_of_kind("PUT _versions", commits, Action::KillAfter));
    let ended = estate.start(&[]).end();
    assert_eq!(ended.status.signal(), Some(9), "{}", ended.stderr);
    estate.proxy.settle();
    estate.proxy.pass();
    let next = estate.sweep();
    assert_eq!(next.code(), Some(0), "{}", next.stderr);
    let rows = next.report["datasets"].as_array().expect("datasets");
    let verified: Vec<&Value> = rows.iter().filter(|r| r["steps"]["verify"]["outcome"] == "done").collect();
    assert_eq!(verified.len(), 1, "{:#}", next.report);
    let cleanup = &verified[0]["steps"]["cleanup"];
    assert_eq!((&cleanup["outcome"], &cleanup["reason"]), (&json!("refused"), &json!("verify_failed")), "{cleanup}");
    let last = estate.sweep();
    let name = verified[0]["uri"].as_str().and_then(|u| u.rsplit('/').next()).expect("a name");
    let cleanup = &last.row(name)["steps"]["cleanup"];
    assert_eq!(cleanup["outcome"], "done", "verified, they go as any other: {cleanup}");
    estate.is_explained(Leftovers::Explained, "in the end");
    estate.converges(&kills.pristine, "in the end");
}
