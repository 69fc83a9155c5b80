//! Layouts that few tables have: what was planted is found, and nothing else.

use std::path::Path;
use std::time::{Duration, SystemTime};

use squire_lake::sample::{Columns, Sample};

use super::report::{found, report};

fn age(path: &Path) {
    let long_ago = SystemTime::now() - Duration::from_secs(9 * 86_400);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
}

/// A listing of more than a page: versions, transactions and data beyond it are known as those before it.
#[test]
fn of_more_than_a_thousand_versions_only_what_was_planted_is_found() {
    let test = "of_more_than_a_thousand_versions_only_what_was_planted_is_found";
    let Some(python) = std::env::var_os("TEST_PYTHON") else {
        return eprintln!("SKIPPED {test}: TEST_PYTHON is not set");
    };
    let dir = tempfile::tempdir().unwrap();
    let orders = dir.path().join("lake/orders");
    std::fs::create_dir_all(orders.parent().unwrap()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/py/odd.py");
    let made = std::process::Command::new(python).arg(script).arg("many").arg(&orders).arg("1010").output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (code, clean) = report(&dir, &["lake"]);
    assert_eq!(code, 0, "{clean:#}");
    let known = found(&clean, "/orders");
    assert!(known.iter().all(|(kind, _)| !matches!(kind.as_str(), "orphan_file" | "missing_file" | "unknown_file")));
    assert_eq!(clean["datasets"][0]["before"]["versions"], 1_010);

    // First and last of what a listing has, and one in between that a version needs.
    let data = |name: &str| format!("data/{name}.lance");
    let planted = [data(&"0".repeat(40)), data(&"z".repeat(40)), "_transactions/9999-x.txn".to_string()];
    let source = std::fs::read_dir(orders.join("data")).unwrap().next().unwrap().unwrap().path();
    for path in &planted {
        std::fs::copy(&source, orders.join(path)).unwrap();
        age(&orders.join(path));
    }
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!(code, 0, "{whole:#}");
    let mut more = found(&whole, "/orders");
    more.retain(|f| !known.contains(f));
    more.sort();
    let mut wanted = planted.map(|path| ("orphan_file".to_string(), path));
    wanted.sort();
    assert_eq!(more, wanted, "{whole:#}");
    std::fs::remove_file(&source).unwrap();
    let (_, damaged) = report(&dir, &["lake"]);
    let missing: Vec<_> = found(&damaged, "/orders").into_iter().filter(|(kind, _)| kind == "missing_file").collect();
    let path = format!("data/{}", source.file_name().unwrap().to_str().unwrap());
    assert_eq!(missing, [("missing_file".to_string(), path)], "{damaged:#}");
}

/// The hook of a table's writers deletes what a hold keeps; without one it only disagrees with the policy.
#[tokio::test]
async fn a_hold_that_the_writers_own_clean_up_breaks_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    std::fs::create_dir_all(lake.join("orders")).unwrap();
    let uri = squire_lake::uri::canonical(lake.join("orders").to_str().unwrap()).unwrap();
    let mut sample = Sample::new(uri.clone(), Columns::default());
    sample.write(10, 0).await.unwrap();
    let hook = [("lance.auto_cleanup.interval", "20"), ("lance.auto_cleanup.older_than", "1h")];
    sample.config(&hook).await.unwrap();
    let (command, at) =
        (assert_cmd::cargo::cargo_bin("squire-reconcile").with_file_name("squire-registry"), lake.join("_squire"));
    let admin = |args: &[&str]| {
        let said = std::process::Command::new(&command).args(args).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    };
    let at = at.to_str().unwrap();
    admin(&["init", at]);
    let kinds = || -> Vec<String> {
        let all = found(&report(&dir, &["lake"]).1, "/orders").into_iter().map(|f| f.0);
        all.filter(|kind| kind != "unregistered_dataset").collect()
    };
    assert_eq!(kinds(), ["auto_cleanup_conflict"]);
    admin(&["protection", "set", &format!("dataset/{uri}"), "keep-history", "--registry", at]);
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!(code, 3, "an error is found: {whole:#}");
    assert_eq!(kinds(), ["hold_not_enforceable"], "{whole:#}");
    let findings = &whole["datasets"][0]["findings"];
    assert!(findings.to_string().contains("whatever the keep-history on"), "{findings:#}");
}
