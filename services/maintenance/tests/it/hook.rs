//! The table's own clean-up hook: never run by our commits, reported where it deletes what policy or protection keeps.

use squire_lake::sample::SampleIndex;

use super::common::*;

const EVERY_COMMIT: [(&str, &str); 2] = [("lance.auto_cleanup.interval", "1"), ("lance.auto_cleanup.older_than", "0s")];
/// What LanceDB 0.22 to 0.32 put into every table.
const LANCEDB: [(&str, &str); 2] = [("lance.auto_cleanup.interval", "20"), ("lance.auto_cleanup.older_than", "14days")];

fn finding<'a>(row: &'a serde_json::Value, kind: &str) -> Option<&'a serde_json::Value> {
    row["findings"].as_array().expect("findings").iter().find(|f| f["kind"] == kind)
}

/// Every version that is there, by its manifest.
fn versions(here: &Here, rel: &str) -> Vec<u64> {
    let mut out: Vec<u64> = std::fs::read_dir(here.path(rel).join("_versions"))
        .expect("versions")
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.strip_suffix(".manifest")?.parse::<u64>().ok())
        .map(|n| u64::MAX - n)
        .collect();
    out.sort_unstable();
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn no_version_goes_by_compaction_folds_or_remaps() {
    let here = Here::new();
    let mut sample = here.table("lake/t", 4, 50).await;
    for index in [SampleIndex::BTree, SampleIndex::Bitmap, SampleIndex::FullText] {
        sample.index(index).await.expect("indexed");
    }
    sample.write(50, 500).await.expect("written");
    // From here on any other client's commit would remove every older version.
    sample.config(&EVERY_COMMIT).await.expect("set");
    sample.write(50, 600).await.expect("written");
    let there = versions(&here, "lake/t");

    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    let row = row(&swept, "lake/t");
    assert_eq!(row["steps"]["compact"]["outcome"], "done", "{row:#}");
    assert_eq!(row["steps"]["optimize_indices"]["outcome"], "done", "{row:#}");
    assert_eq!(row["after"]["fragments"], 1);
    let left = versions(&here, "lake/t");
    assert!(there.iter().all(|v| left.contains(v)), "{there:?} became {left:?}");
    assert!(left.len() > there.len());
    assert_eq!(
        squire_lake::sample::Sample::ids(&lake(), &here.uri("lake/t"), None).await.expect("it reads").len(),
        300
    );

    // It is a warning and no refusal: the policy keeps a week, the hook nothing.
    let found = finding(row, "auto_cleanup_conflict").unwrap_or_else(|| panic!("{row:#}"));
    assert_eq!(found["severity"], "warning");
    assert_eq!(report(&["sweep", &here.text("lake"), "--yes"])["totals"]["idle"], 1);
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_the_policy_allows_is_not_worth_a_word() {
    let here = Here::new();
    for (name, config) in [
        ("lancedb", &LANCEDB[..]),
        ("unreadable", &[("lance.auto_cleanup.interval", "1"), ("lance.auto_cleanup.older_than", "soon")]),
        ("off", &[("lance.auto_cleanup.older_than", "0s")]),
    ] {
        here.table(&format!("lake/{name}"), 3, 10).await.config(config).await.expect("set");
    }
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(swept["totals"]["maintained"], 3, "{swept:#}");
    for name in ["lancedb", "unreadable", "off"] {
        let row = row(&swept, name);
        assert!(finding(row, "auto_cleanup_conflict").is_none(), "{row:#}");
        assert!(finding(row, "hold_not_enforceable").is_none(), "{row:#}");
    }
    // A longer retention than the hook's makes it one.
    let planned = report(&["plan", &here.text("lake"), "--set", "policy.retention=30d"]);
    assert!(finding(row(&planned, "lancedb"), "auto_cleanup_conflict").is_some(), "{planned:#}");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_that_the_hook_would_break_is_named() {
    let here = Here::new();
    let mut source = here.table("lake/source", 3, 10).await;
    source.clone_to(&here.uri("lake/clone")).await.expect("cloned");
    source.config(&LANCEDB).await.expect("set");
    let planned = report(&["plan", &here.text("lake")]);
    let found = finding(row(&planned, "lake/source"), "auto_cleanup_conflict").unwrap_or_else(|| panic!("{planned:#}"));
    assert!(found["detail"].as_str().is_some_and(|d| d.contains("clone")), "{found:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_other_writers_can_break_is_an_error() {
    for (args, until) in [
        (&["protection", "set", "SUBJECT", "keep-history"][..], false),
        (&["block", "add", "SUBJECT", "--reason", "a long scan", "--version", "2"], false),
        (&["block", "add", "SUBJECT", "--reason", "a scan", "--version", "2", "--until", "UNTIL"], true),
    ] {
        let here = Here::new();
        let mut sample = here.table("lake/t", 4, 10).await;
        let root = here.text("lake");
        let at = format!("--registry={root}/_squire");
        assert_ok(&registry(&["init", &format!("{root}/_squire"), "--name", "n"]), "init");
        // A reader who is done tomorrow loses nothing to a hook that waits two weeks.
        let tomorrow = (chrono::Utc::now() + chrono::Duration::days(1)).to_rfc3339();
        let subject = format!("dataset/{}", here.uri("lake/t"));
        let mut all: Vec<&str> = args
            .iter()
            .map(|a| match *a {
                "SUBJECT" => subject.as_str(),
                "UNTIL" => tomorrow.as_str(),
                other => other,
            })
            .collect();
        all.push(&at);
        assert_ok(&registry(&all), &format!("{all:?}"));

        let output = squire(&["plan", &root, "-o", "json"]);
        assert_eq!(code(&output), 0, "a hold alone is well: {}", stderr(&output));
        sample.config(&LANCEDB).await.expect("set");
        let output = squire(&["plan", &root, "-o", "json"]);
        let planned: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let found = finding(row(&planned, "lake/t"), "hold_not_enforceable");
        if until {
            assert!(found.is_none(), "{planned:#}");
            continue;
        }
        let found = found.unwrap_or_else(|| panic!("{args:?}: {planned:#}"));
        assert_eq!(found["severity"], "error");
        assert_eq!(code(&output), 3, "{args:?}");
    }
}
