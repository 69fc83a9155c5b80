//! `[storage.delete]`: clean-up deletes with credentials of its own, and says so when they may not.

use serde_json::{Value, json};
use squire_lake::oracle::Leftovers;
use squire_test_support::{Action, Request, Server, kind};

use super::s3_estate::*;

const USUAL: &str = "fake-test-key";
const REMOVER: &str = "fake-remover-key";
const READER: &str = "fake-reader-key";

fn deletes_with(key: &str) -> Vec<String> {
    let set = |name: &str, value: &str| ["--set".to_string(), format!("storage.delete.{name}={value}")];
    [set("aws_access_key_id", key), set("aws_secret_access_key", "fake-test-secret")].concat()
}

/// A copy of one dataset with four old versions that may go.
fn aged(test: &str) -> Option<(OnS3, Pristine)> {
    let server = Server::shared(test)?;
    let pristine = Pristine::one(server);
    let estate = OnS3::copy(server, &pristine);
    std::thread::sleep(AGE);
    Some((estate, pristine))
}

fn sweep(estate: &OnS3, more: &[String]) -> Ended {
    estate.start(&more.iter().map(String::as_str).collect::<Vec<_>>()).end()
}

fn versions(estate: &OnS3) -> usize {
    let found = estate.server.pylance("versions", &estate.uri("orders"), Value::Null);
    found["versions"].as_array().expect("versions").len()
}

/// The deletes of the dataset's manifests and files.
fn is_clean_up(r: &Request) -> bool {
    r.keys.iter().any(|k| k.contains("/orders/"))
}

#[track_caller]
fn assert_refused(estate: &OnS3, swept: &Ended, says: &str) {
    assert_eq!(swept.code(), Some(0), "a refusal alone is no failure: {}", swept.stderr);
    let row = swept.row("orders");
    let cleanup = &row["steps"]["cleanup"];
    assert_eq!(
        (&cleanup["outcome"], &cleanup["reason"]),
        (&json!("refused"), &json!("no_delete_permission")),
        "{row:#}"
    );
    assert!(cleanup["detail"].as_str().expect("a detail").contains(says), "{cleanup:#}");
    assert_eq!((&cleanup["versions_removed"], &cleanup["reclaimed_bytes"]), (&json!(0), &json!(0)), "{cleanup:#}");
    assert_eq!(row["steps"]["compact"]["outcome"], "done", "the other steps went on: {row:#}");
    // Every version of before is there and reads.
    for version in 1..=5 {
        let read = estate.server.try_pylance("read", &estate.uri("orders"), json!({"version": version}));
        assert!(read["error"].is_null(), "version {version}: {read}");
    }
}

#[test]
fn clean_up_deletes_with_its_own_credentials_and_nothing_else_uses_them() {
    let Some((estate, pristine)) = aged("clean_up_deletes_with_its_own_credentials_and_nothing_else_uses_them") else {
        return;
    };
    estate.proxy.pass();
    let swept = sweep(&estate, &deletes_with(REMOVER));
    assert_eq!(swept.code(), Some(0), "{}", swept.stderr);
    assert_eq!(swept.row("orders")["steps"]["cleanup"]["outcome"], "done", "{:#}", swept.report);
    let log = estate.proxy.log();
    assert!(log.iter().any(|r| r.signed_by == REMOVER), "the credentials were used");
    for request in log {
        let wanted = if is_clean_up(&request) { REMOVER } else { USUAL };
        assert_eq!(request.signed_by, wanted, "{} {} {:?}", request.method, request.path, request.keys);
    }
    estate.has_its_rows(&pristine, "after the sweep");
    estate.is_explained(Leftovers::None, "after the sweep");
}

#[test]
fn credentials_that_may_not_delete_refuse_clean_up_and_every_version_stays() {
    let Some((estate, pristine)) = aged("credentials_that_may_not_delete_refuse_clean_up_and_every_version_stays")
    else {
        return;
    };
    estate.proxy.pass();
    let swept = sweep(&estate, &deletes_with(READER));
    assert_refused(&estate, &swept, "denied the delete");
    let tried = estate.proxy.log().into_iter().filter(|r| r.signed_by == READER).count();
    assert_eq!(tried, 1, "one delete is tried, and no more");
    estate.has_its_rows(&pristine, "after the refusal");
    // With good credentials the next sweep does the rest.
    let swept = sweep(&estate, &deletes_with(REMOVER));
    assert_eq!(swept.row("orders")["steps"]["cleanup"]["outcome"], "done", "{:#}", swept.report);
    estate.is_explained(Leftovers::None, "after the next sweep");
}

#[test]
fn a_delete_denied_after_others_puts_the_manifests_back() {
    // A policy by prefix: manifests may go and what they name may not; and the second manifest may not.
    let denied: [fn(&Request) -> bool; 2] = [
        |r| is_clean_up(r) && !kind(r).contains("_versions"),
        |r| r.keys.iter().any(|k| k.ends_with(&format!("{}.manifest", u64::MAX - 2))),
    ];
    for (n, denies) in denied.into_iter().enumerate() {
        let Some((estate, pristine)) = aged("a_delete_denied_after_others_puts_the_manifests_back") else { return };
        estate.proxy.set(move |r| if denies(r) { Action::Status(403) } else { Action::Pass });
        let before = versions(&estate);
        let swept = sweep(&estate, &[]);
        assert_refused(&estate, &swept, "denied the delete");
        assert!(versions(&estate) > before, "{n}: the sweep's own versions came, and none went");
        estate.has_its_rows(&pristine, "after the refusal");
        estate.is_explained(Leftovers::None, "after the refusal");
        estate.converges(&pristine, "with a store that lets it");
    }
}

#[test]
fn delete_credentials_that_are_named_and_empty_refuse_in_the_plan() {
    let Some((estate, _)) = aged("delete_credentials_that_are_named_and_empty_refuse_in_the_plan") else { return };
    estate.proxy.pass();
    let swept = sweep(&estate, &["--set".into(), "storage.delete.aws_access_key_id=\"\"".into()]);
    assert_refused(&estate, &swept, "aws_access_key_id of [storage.delete] is empty");
    assert!(!estate.proxy.log().iter().any(is_clean_up), "nothing was tried with other credentials");
}
