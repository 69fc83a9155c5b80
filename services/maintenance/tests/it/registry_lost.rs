//! A wrong, empty or lost registry deletes nothing.

use super::common::*;

fn removable() -> Vec<String> {
    let mut args = one_second();
    args.extend(["--retain-versions".into(), "2".into(), "--set".into(), "floors.retain_versions=1".into()]);
    args
}

fn sweep(root: &str) -> serde_json::Value {
    let mut args = vec!["sweep".to_string(), root.to_string()];
    args.extend(removable());
    report(&args)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sub_root_finds_the_registry_above() {
    let here = Here::new();
    here.table("lake/a/t", 3, 10).await;
    assert_ok(&registry(&["init", &here.text("lake/_squire"), "--name", "above"]), "init");
    let swept = report(&["sweep", &here.text("lake/a"), "--yes"]);
    assert_eq!(swept["estate"]["name"], "above");
    assert!(!here.path("lake/a/_squire").exists());
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_typo_in_the_registry_is_a_usage_error_and_makes_nothing() {
    let here = Here::new();
    here.table("lake/t", 3, 10).await;
    let before = tree(&here.path(""));
    let output = squire(&["sweep", &here.text("lake"), "--registry", &here.text("typo"), "--yes"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    assert!(stderr(&output).contains("squire-registry init"), "{}", stderr(&output));
    assert_eq!(tree(&here.path("")), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_registry_reclaims_nothing_under_its_root() {
    let here = Here::new();
    here.table("lake/held", 8, 10).await;
    let root = here.text("lake");
    assert_ok(&registry(&["init", &format!("{root}/_squire"), "--name", "n"]), "init");
    let subject = format!("dataset/{}", here.uri("lake/held"));
    let flag = format!("--registry={root}/_squire");
    assert_ok(&registry(&["protection", "set", &subject, "keep-history", &flag]), "protection set");
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let held = sweep(&root);
    assert_eq!(row(&held, "/held")["steps"]["cleanup"]["reason"], "held");

    std::fs::remove_dir_all(here.path("lake/_squire")).expect("removed");
    wait_until_older(&here.path("lake/held"), std::time::Duration::from_millis(1_200));
    let names = || -> Vec<_> { dataset_tree(&here.path("lake/held")).into_iter().map(|(p, _)| p).collect() };
    let before = names();
    let lost = sweep(&root);
    let cleanup = &row(&lost, "/held")["steps"]["cleanup"];
    assert_eq!((&cleanup["outcome"], &cleanup["reason"]), (&"refused".into(), &"registry_lost".into()), "{lost:#}");
    let after = names();
    assert!(before.iter().all(|p| after.contains(p)), "a file went under a lost registry");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_registry_a_plan_makes_none() {
    let here = Here::new();
    here.table("lake/t", 3, 10).await;
    report(&["plan", &here.text("lake")]);
    assert!(!here.path("lake/_squire").exists());
    report(&["sweep", &here.text("lake"), "--yes"]);
    assert!(here.path("lake/_squire").exists());
    assert!(here.path("lake/.squire-estate").exists(), "the root is marked before the first write");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_protection_that_vanished_without_a_trace_is_an_error() {
    let here = Here::new();
    here.table("lake/t", 3, 10).await;
    let root = here.text("lake");
    assert_ok(&registry(&["init", &format!("{root}/_squire"), "--name", "n"]), "init");
    let subject = format!("dataset/{}", here.uri("lake/t"));
    let flag = format!("--registry={root}/_squire");
    assert_ok(&registry(&["protection", "set", &subject, "keep-history", &flag]), "protection set");
    report(&["sweep", &root, "--yes"]);
    assert_eq!(code(&squire(&["plan", &root])), 0);
    std::fs::remove_dir_all(here.path("lake/_squire/v1/protection")).expect("removed");
    let output = squire(&["plan", &root, "-o", "json"]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    let planned: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(planned["findings"][0]["kind"], "protections_vanished", "{planned:#}");
    here.oracle("lake");
}

/// Copies a folder with everything in it.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(&from, &to).expect("copied");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_copy_of_the_registry_removes_nothing_where_a_newer_one_lies_nearer() {
    let here = Here::new();
    here.table("lake/t", 8, 10).await;
    let root = here.text("lake");
    assert_ok(&registry(&["init", &format!("{root}/_squire"), "--name", "n"]), "init");
    report(&["sweep", &root, "--yes"]);
    copy(&here.path("lake/_squire"), &here.path("copy"));
    // Held since: the copy does not know.
    let (subject, flag) = (format!("dataset/{}", here.uri("lake/t")), format!("--registry={root}/_squire"));
    assert_ok(&registry(&["protection", "set", &subject, "keep-history", &flag]), "protection set");
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let before = tree(&here.path("lake/t"));
    for verb in ["plan", "sweep"] {
        let mut args = vec![verb.to_string(), root.clone(), format!("--registry={}", here.text("copy"))];
        args.extend(removable().into_iter().filter(|arg| verb == "sweep" || arg != "--yes"));
        let with_copy = report(&args);
        let cleanup = &row(&with_copy, "/t")["steps"]["cleanup"];
        assert_eq!((&cleanup["outcome"], &cleanup["reason"]), (&"refused".into(), &"registry_lost".into()), "{verb}");
        assert_eq!(tree(&here.path("lake/t")), before);
    }
    // The registry itself, named, is the nearest.
    assert_ok(&registry(&["protection", "unset", &subject, &flag]), "protection unset");
    let mut args = vec!["sweep".to_string(), root, flag];
    args.extend(removable());
    let swept = report(&args);
    assert!(row(&swept, "/t")["steps"]["cleanup"]["versions_removed"].as_u64() > Some(0), "{swept:#}");
    here.oracle("lake");
}
