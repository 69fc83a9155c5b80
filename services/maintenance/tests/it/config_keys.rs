//! For each config key that the pass obeys, only that key changes and the plan changes.

use serde_json::Value;

use super::common::*;

/// Twelve small appends, history that is three days old, an index that lags.
async fn lake_for_keys() -> Here {
    let here = Here::new();
    // One larger fragment first, so that growing in steps and merging whole differ.
    let mut sample = here.table("lake/acme-silver/t", 1, 30_000).await;
    for i in 0..3 {
        sample.write(50, 50_000 + i * 50).await.expect("written");
    }
    sample.index(squire_lake::sample::SampleIndex::BTree).await.expect("indexed");
    for i in 0..8 {
        sample.write(50, 60_000 + i * 50).await.expect("written");
    }
    let three_days = 3 * 86_400;
    for entry in std::fs::read_dir(here.path("lake/acme-silver/t/_versions")).expect("versions").flatten() {
        if entry.path().extension().is_some_and(|e| e == "manifest") {
            squire_lake::sample::backdate(&entry.path(), three_days).expect("backdated");
            let then = std::time::SystemTime::now() - std::time::Duration::from_secs(three_days);
            std::fs::File::options()
                .write(true)
                .open(entry.path())
                .and_then(|f| f.set_modified(then))
                .expect("touched");
        }
    }
    here
}

/// The part of the report that says what would be done.
fn plan(here: &Here, more: &[&str]) -> Value {
    let root = here.text("lake");
    let mut args = vec!["plan", &root];
    args.extend(more);
    let planned = report(&args);
    let d = &planned["datasets"][0];
    serde_json::json!([d["outcome"], d["steps"], d["target_rows"], d["target_source"], d["tier"], d["findings"]])
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_of_the_pass_changes_a_plan() {
    let here = lake_for_keys().await;
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["--set", "policy.retention=2d"]),
        (&["--set", "policy.retention=2d"], &["--set", "policy.retention=2d", "--set", "policy.retain_versions=9"]),
        (&[], &["--set", "policy.compact=false"]),
        (&[], &["--set", "policy.optimize_indices=false"]),
        (&["--set", "policy.retention=2d"], &["--set", "policy.retention=2d", "--set", "policy.cleanup=false"]),
        (&[], &["--set", "policy.target_rows=100"]),
        (&[], &["--set", "policy.max_rewrite_bytes=1KiB"]),
        (&["--set", "policy.retention=2d"], &["--set", "policy.retention=2d", "--set", "floors.retention=5d"]),
        (
            &["--set", "policy.retention=2d", "--set", "policy.retain_versions=2"],
            &["--set", "policy.retention=2d", "--set", "policy.retain_versions=2", "--set", "floors.retain_versions=9"],
        ),
        (&["--set", "policy.retention=2d"], &["--set", "policy.retention=2d", "--set", "estate.exclusive=false"]),
        (&["--set", "policy.retention=2d"], &["--set", "policy.retention=2d", "--set", "estate.mode=compact"]),
        (&[], &["--set", "estate.target_bytes=1KiB"]),
        (
            &["--set", "policy.settle_after=30d", "--set", "estate.small_bytes=1B"],
            &["--set", "policy.settle_after=30d", "--set", "estate.small_bytes=1GiB"],
        ),
        (
            &["--set", "policy.settle_after=30d", "--set", "estate.small_bytes=1B"],
            &["--set", "policy.settle_after=1d", "--set", "estate.small_bytes=1B"],
        ),
        (&[], &["--set", "estate.tiers={}"]),
        (&[], &["--set", "estate.exclude=[\"acme-silver/*\"]"]),
        (&[], &["--set", "estate.include=[\"nothing\"]"]),
        (&[], &["--set", "estate.maintain=registered"]),
        (&[], &["--set", "estate.maintain=labelled"]),
        (&[], &["--set", "rollout.percent=0"]),
        (&["--due"], &["--due", "--set", "policy.quiet_for=30d"]),
        (&["--due"], &["--due", "--set", "policy.max_stranded=0"]),
        (&["--due"], &["--due", "--set", "policy.window=Mon-Sun 00:00-00:01 UTC", "--at", "2026-12-01T12:00:00Z"]),
        (
            &["--due", "--set", "policy.optimize_indices=false"],
            &[
                "--due",
                "--set",
                "policy.optimize_indices=false",
                "--set",
                "policy.settle_after=30d",
                "--set",
                "policy.min_fragments=50",
            ],
        ),
        (&["--set", "policy.retention=30d"], &["--set", "policy.retention=30d", "--set", "policy.erase_within=2d"]),
        (&[], &["--set", "policy.required_indices=[{columns=[\"kind\"],type=\"BITMAP\"}]"]),
        (&[], &["--steps", "cleanup"]),
        (&[], &["--max-rewrite", "1KiB"]),
        (&[], &["--retention", "2d"]),
        (&["--retention", "2d"], &["--retention", "2d", "--retain-versions", "9"]),
        (&[], &["--at", "2027-06-01T00:00:00Z"]),
    ];
    for (base, changed) in cases {
        assert_ne!(plan(&here, base), plan(&here, changed), "{changed:?} changes nothing against {base:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_key_can_only_make_things_safer() {
    let here = lake_for_keys().await;
    let uri = here.uri("lake/acme-silver/t");
    let mut sample = squire_lake::sample::Sample::open(&lake(), &uri, Default::default()).await.expect("opened");
    let removed = |policy: &str| plan(&here, &["--set", policy])[1]["cleanup"]["versions_removed"].clone();
    sample.config(&[("squire.retention", "1h")]).await.expect("set");
    assert_eq!(removed("policy.retention=30d"), 0, "a shorter retention in the table changes nothing");
    assert_ne!(removed("policy.retention=2d"), 0);
    sample.config(&[("squire.retention", "20d")]).await.expect("set");
    assert_eq!(removed("policy.retention=2d"), 0, "a longer one is honoured");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_interval_keeps_the_clock_from_coming_back_too_soon() {
    let here = Here::new();
    let mut sample = here.table("lake/t", 10, 10).await;
    report(&["sweep", &here.text("lake"), "--yes"]);
    for i in 0..10 {
        sample.write(10, 1_000 + i * 10).await.expect("written");
    }
    let due =
        |set: &str| report(&["plan", &here.text("lake"), "--due", "--set", set])["datasets"][0]["outcome"].clone();
    // A budget of the table's own size would keep it back too.
    let roomy = "policy.max_stranded=100";
    assert_eq!(due(roomy)["reason"], "not_due");
    let args = ["plan", &here.text("lake"), "--due", "--set", roomy, "--set", "policy.interval=0s"];
    assert_eq!(report(&args)["datasets"][0]["outcome"]["kind"], "planned");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_old_clients_write_keeps_its_form_until_asked() {
    let here = Here::new();
    let mut sample = here.table("lake/t", 4, 50).await;
    sample.index(squire_lake::sample::SampleIndex::FullText).await.expect("indexed");
    sample.write(50, 900).await.expect("written");
    squire_lake::sample::set_writer(&here.path("lake/t"), "0.27.0").expect("set");
    let before = dataset_tree(&here.path("lake/t"));
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    for step in ["compact", "optimize_indices"] {
        assert_eq!(row(&swept, "lake/t")["steps"][step]["reason"], "old_clients", "{swept:#}");
    }
    assert_eq!(dataset_tree(&here.path("lake/t")), before);
    let planned =
        |set: &str| row(&report(&["plan", &here.text("lake"), "--set", set]), "lake/t")["outcome"]["kind"].clone();
    assert_eq!(planned("policy.upgrade_index_format=true"), "planned");
    squire_lake::sample::set_writer(&here.path("lake/t"), "0.35.0").expect("set");
    assert_eq!(planned("policy.upgrade_index_format=false"), "planned");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_steps_that_were_asked_for_are_planned() {
    let here = lake_for_keys().await;
    let names = ["compact", "optimize_indices", "cleanup"];
    for asked in names {
        let steps = plan(&here, &["--set", "policy.retention=2d", "--steps", asked])[1].clone();
        for name in names {
            let wanted = if name == asked { "planned" } else { "skipped" };
            assert_eq!(steps[name]["outcome"], wanted, "--steps {asked}: {name}: {steps:#}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_merges_few_neighbours_once_the_table_is_quiet() {
    let here = lake_for_keys().await;
    let root = here.text("lake");
    let outcome = |min: &str, settle: &str| {
        let sets = [format!("policy.min_fragments={min}"), format!("policy.settle_after={settle}")];
        let args =
            ["plan", &root, "--due", "--set", "policy.optimize_indices=false", "--set", &sets[0], "--set", &sets[1]];
        let outcome = report(&args)["datasets"][0]["outcome"].clone();
        outcome["reason"].as_str().or(outcome["kind"].as_str()).expect("an outcome").to_string()
    };
    // It was written three days ago, and has twelve small fragments.
    assert_ne!(outcome("50", "30d"), "planned");
    assert_eq!(outcome("50", "1d"), "planned");
    assert_eq!(outcome("3", "30d"), "planned");
    let uri = here.uri("lake/acme-silver/t");
    let mut sample = squire_lake::sample::Sample::open(&lake(), &uri, Default::default()).await.expect("opened");
    sample.delete("id < 300").await.expect("deleted");
    assert_ne!(outcome("50", "30d"), "planned", "one row of a hundred is deleted");
    sample.delete("id < 6000").await.expect("deleted");
    assert_eq!(outcome("50", "30d"), "planned", "a fifth is deleted");
}
