//! Bad input gets a clear error, and odd names are only names.

use super::common::*;

#[test]
fn a_root_that_is_not_there_or_empty_is_an_empty_scan() {
    let here = Here::new();
    std::fs::create_dir(here.path("empty")).expect("made");
    for rel in ["missing", "empty"] {
        for verb in ["plan", "sweep"] {
            let output = squire(&[verb, &here.text(rel)]);
            assert_eq!(code(&output), 1, "{verb} {rel}: {}", stderr(&output));
            assert!(stderr(&output).contains("empty_scan"), "{}", stderr(&output));
        }
    }
    assert!(tree(&here.path("")).is_empty(), "nothing was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_names_are_maintained_like_others() {
    let here = Here::new();
    let long = "x".repeat(200);
    let odd =
        ["with space", "dollar$sign", "per%cent", "ha#sh", "ünï-код", "quote'd", "a+b&c=d", long.as_str(), "100%25"];
    for name in odd {
        here.table(&format!("lake/{name}"), 3, 10).await;
    }
    let swept = report(&["sweep", &format!("{}/", here.text("lake")), "--yes"]);
    assert_eq!(swept["totals"]["maintained"], odd.len(), "{swept:#}");
    for name in odd {
        let uri = here.uri(&format!("lake/{name}"));
        assert_eq!(row(&swept, &uri)["after"]["fragments"], 1, "{name}");
        let ids = squire_lake::sample::Sample::ids(&lake(), &uri, None).await.expect(name);
        assert_eq!(ids.len(), 30);
    }
    let again = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(again["totals"]["idle"], odd.len(), "{again:#}");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_symlinked_root_and_its_target_are_one() {
    let here = Here::new();
    here.table("real/t", 3, 10).await;
    std::os::unix::fs::symlink(here.path("real"), here.path("link")).expect("linked");
    let planned = report(&["plan", &here.text("link"), &here.text("real")]);
    assert_eq!(planned["totals"]["seen"], 1);
    assert_eq!(planned["estate"]["roots"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_roots_are_one_sweep() {
    let here = Here::new();
    here.table("lake/a/t", 3, 10).await;
    here.table("lake/b/t", 3, 10).await;
    let output = registry(&["init", &here.text("lake/_squire"), "--name", "n"]);
    assert_ok(&output, "init");
    let swept = report(&["sweep", &here.text("lake/a"), &here.text("lake/b"), "--yes"]);
    assert_eq!(swept["totals"]["maintained"], 2);
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_is_a_dataset_keeps_its_registry_beside_it() {
    let here = Here::new();
    here.table("lake/t", 3, 10).await;
    let swept = report(&["sweep", &here.text("lake/t"), "--yes"]);
    assert_eq!(swept["totals"]["maintained"], 1, "{swept:#}");
    assert!(here.path("lake/_squire").exists());
    assert!(!here.path("lake/t/_squire").exists() && !here.path("lake/t/.squire-estate").exists());
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_inside_anothers_data_refuses_its_clean_up() {
    let here = Here::new();
    here.table("lake/outer", 6, 10).await;
    here.table("lake/outer/data/inner.lance", 2, 10).await;
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let mut args = vec!["sweep".to_string(), here.text("lake"), "--yes".into()];
    args.extend(one_second());
    let swept = report(&args);
    let outer = row(&swept, "lake/outer");
    assert_eq!(outer["steps"]["cleanup"]["reason"], "nested_dataset", "{outer:#}");
    let ids = squire_lake::sample::Sample::ids(&lake(), &here.uri("lake/outer/data/inner.lance"), None).await;
    assert_eq!(ids.expect("the inner one reads").len(), 20);
    here.oracle("lake");
    here.oracle("lake/outer/data/inner.lance");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_feature_flags_are_skipped_and_reported() {
    let here = Here::new();
    here.table("lake/t", 3, 10).await;
    squire_lake::sample::set_unknown_flag(&here.path("lake/t")).expect("set");
    let before = dataset_tree(&here.path("lake/t"));
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(row(&swept, "lake/t")["outcome"]["reason"], "unknown_feature_flags", "{swept:#}");
    assert_eq!(dataset_tree(&here.path("lake/t")), before);
}

#[test]
fn config_errors_name_file_key_and_remedy() {
    let here = Here::new();
    std::fs::write(here.path("squire.toml"), "[policy]\nretension = \"7d\"\n").expect("written");
    let output = squire(&["plan", &here.text(""), "--config", &here.text("squire.toml")]);
    let said = stderr(&output);
    assert_eq!(code(&output), 2, "{said}");
    assert!(said.contains("squire.toml") && said.contains("retension") && said.contains("retention"), "{said}");
    let output = squire(&["plan", &here.text(""), "--set", "policy.retention=soon"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    let output = squire(&["plan", &here.text(""), "--json", "s3://bucket/x"]);
    assert_eq!(code(&output), 2, "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_dataset_fails_alone() {
    let here = Here::new();
    here.table("lake/bad", 3, 10).await;
    here.table("lake/good", 3, 10).await;
    let versions = here.path("lake/bad/_versions");
    for entry in std::fs::read_dir(&versions).expect("versions").flatten() {
        std::fs::write(entry.path(), b"LANC").expect("damaged");
    }
    let output = squire(&["sweep", &here.text("lake"), "--yes", "-o", "json"]);
    assert_eq!(code(&output), 3);
    let swept: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(row(&swept, "/bad")["outcome"]["reason"], "damaged", "{swept:#}");
    assert_eq!(row(&swept, "/good")["outcome"]["kind"], "maintained");
    // The good one is whole; what nobody names in it could be read by the bad one, so there must be nothing of the sort.
    here.oracle_with("lake", Leftovers::None, &[("lake/bad", "decoding the manifest")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_anything_cannot_be_read_no_version_goes() {
    use std::os::unix::ffi::OsStrExt;
    let here = Here::new();
    here.table("lake/good", 6, 10).await;
    here.table("lake/bad", 1, 10).await;
    std::fs::write(here.manifest("lake/bad", 1), b"LANC").expect("damaged");
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let cleanup = |more: &[&str]| row(&short_retention("plan", &here, more), "/good")["steps"]["cleanup"].clone();
    assert_eq!(cleanup(&[])["reason"], "references_incomplete", "a dataset that cannot be read may be a clone");
    assert_eq!(cleanup(&["--dataset", &here.uri("lake/good")])["reason"], "references_incomplete");
    std::fs::remove_dir_all(here.path("lake/bad")).expect("removed");
    let odd = here.path("lake").join(std::ffi::OsStr::from_bytes(b"\xff"));
    std::fs::create_dir_all(odd.join("_versions")).expect("made");
    assert_eq!(cleanup(&[])["reason"], "references_incomplete", "a name that cannot be read");
    std::fs::remove_dir_all(odd).expect("removed");
    assert_eq!(cleanup(&[])["outcome"], "planned");
}

#[tokio::test(flavor = "multi_thread")]
async fn observe_plans_and_applies_nothing() {
    let here = Here::new();
    here.table("lake/t", 6, 10).await;
    let before = tree(&here.path("lake"));
    let swept = report(&["sweep", &here.text("lake"), "--yes", "--set", "estate.mode=observe"]);
    assert_eq!(row(&swept, "lake/t")["steps"]["compact"]["outcome"], "planned", "{swept:#}");
    assert_eq!(tree(&here.path("lake")), before);
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_beside_a_graphs_manifest_is_left_alone() {
    let here = Here::new();
    here.table("lake/g/nodes/person", 6, 10).await;
    here.table("lake/g/__manifest", 1, 10).await;
    here.table("lake/h/nodes/person", 6, 10).await;
    let before = dataset_tree(&here.path("lake/g"));
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(row(&swept, "g/nodes/person")["outcome"]["reason"], "graph_owned", "{swept:#}");
    assert_eq!(dataset_tree(&here.path("lake/g")), before);
    assert_eq!(row(&swept, "h/nodes/person")["outcome"]["kind"], "maintained", "a name alone is no graph");
    here.oracle("lake");
}
