//! What others name stays: clones wherever they lie, branches, re-created tables, files that cannot be read.

use squire_lake::sample::{Columns, Sample};

use super::common::*;

/// A source whose history a clone reads; the clone lies at `clone`, relative to the lake.
async fn with_clone(clone: &str) -> Here {
    let here = Here::new();
    let mut source = here.table("lake/source", 2, 20).await;
    std::fs::create_dir_all(here.path(&format!("lake/{clone}")).parent().expect("a parent")).expect("made");
    source.clone_to(&here.uri(&format!("lake/{clone}"))).await.expect("cloned");
    for i in 0..5 {
        source.overwrite(10, 1_000 + i).await.expect("overwritten");
    }
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    here
}

fn clean(root: &str) -> serde_json::Value {
    let mut args = vec!["sweep".to_string(), root.to_string(), "--yes".into(), "--retain-versions".into(), "2".into()];
    args.extend(one_second());
    report(&args)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_reads_on_wherever_in_the_lake_it_lies() {
    for place in ["clone", "__hidden/clone", "__clone", "a/b/c/clone", "source-2/sub/clone", "source-2/a%41 #1/clone"] {
        let here = with_clone(place).await;
        if place.starts_with("source-2") {
            here.table("lake/source-2", 1, 5).await;
        }
        let swept = clean(&here.text("lake"));
        let removed = row(&swept, "lake/source")["steps"]["cleanup"]["versions_removed"].as_u64().expect("a number");
        assert!(removed > 0, "{place}: {swept:#}");
        let ids = Sample::ids(&lake(), &here.uri(&format!("lake/{place}")), None).await.expect(place);
        assert_eq!(ids.len(), 40, "{place}");
        here.oracle("lake");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_as_root_still_sees_the_clone_beside_it() {
    let here = with_clone("clone").await;
    clean(&here.text("lake/source"));
    assert_eq!(Sample::ids(&lake(), &here.uri("lake/clone"), None).await.expect("the clone reads").len(), 40);
    here.oracle("lake");
    let here = with_clone("clone").await;
    assert_ok(&registry(&["init", &here.text("elsewhere"), "--name", "n"]), "init");
    let mut args = vec!["sweep".to_string(), here.text("lake/source"), "--registry".into(), here.text("elsewhere")];
    args.extend(one_second());
    report(&args);
    assert_eq!(Sample::ids(&lake(), &here.uri("lake/clone"), None).await.expect("the clone reads").len(), 40);
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branchs_tree_is_no_root() {
    let here = Here::new();
    let mut sample = here.table("lake/t", 3, 10).await;
    sample.branch("dev", 2).await.expect("branched");
    let before = dataset_tree(&here.path("lake"));
    for rel in ["lake/t/tree/dev", "lake/t/tree", "lake/t/data"] {
        let output = squire(&["sweep", &here.text(rel), "--yes"]);
        assert_eq!(code(&output), 2, "{rel}: {}", stderr(&output));
        assert!(stderr(&output).contains("lies inside the dataset"), "{}", stderr(&output));
    }
    assert_eq!(dataset_tree(&here.path("lake")), before);
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_of_the_right_size_keeps_the_last_good_version() {
    let here = Here::new();
    std::fs::create_dir_all(here.path("lake")).expect("made");
    let mut sample = Sample::new(here.uri("lake/t"), Columns { vector: 0, page: 2_000 });
    sample.write(200, 0).await.expect("written");
    let good = sample.version();
    for i in 0..4 {
        if i == 0 {
            sample.overwrite(200, 1_000).await.expect("overwritten");
        } else {
            sample.write(200, 1_000 + i * 200).await.expect("written");
        }
    }
    // The largest file of HEAD, half of it noise, its size unchanged.
    let look = squire_lake::look::look(&lake(), &here.uri("lake/t"), chrono::Utc::now()).await.expect("a look");
    let squire_lake::look::Looked::Dataset(look) = look else { panic!("no dataset") };
    let head = look.head.named().into_iter().find(|n| n.path.starts_with("data/")).expect("a data file");
    let path = here.path("lake/t").join(&head.path);
    let mut bytes = std::fs::read(&path).expect("read");
    let half = bytes.len() / 2;
    bytes[..half].iter_mut().enumerate().for_each(|(i, b)| *b = (i as u8).wrapping_mul(31) ^ 0xa5);
    std::fs::write(&path, bytes).expect("written");
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));

    let swept = clean(&here.text("lake"));
    let steps = &row(&swept, "lake/t")["steps"];
    assert_eq!(steps["compact"]["outcome"], "failed", "{steps:#}");
    assert_eq!(steps["cleanup"]["outcome"], "refused", "{steps:#}");
    assert_eq!(Sample::ids(&lake(), &here.uri("lake/t"), Some(good)).await.expect("the good version reads").len(), 200);
    // And the next sweep remembers.
    let again = clean(&here.text("lake"));
    assert_ne!(row(&again, "lake/t")["steps"]["cleanup"]["outcome"], "done", "{again:#}");
    assert_eq!(Sample::ids(&lake(), &here.uri("lake/t"), Some(good)).await.expect("the good version reads").len(), 200);
    // The test filled HEAD's file with noise of the same length: only reading its rows can tell.
    here.oracle_with("lake", Leftovers::None, &[("lake/t", "reading every row")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_made_anew_makes_the_plan_stale() {
    let here = Here::new();
    here.table("lake/t", 6, 20).await;
    let plan = here.text("p.json");
    report(&["plan", &here.text("lake"), "--out", &plan]);
    std::fs::remove_dir_all(here.path("lake/t")).expect("removed");
    here.table("lake/t", 6, 5).await;
    let before = dataset_tree(&here.path("lake/t"));
    let applied = report(&["apply", &plan]);
    assert_eq!(row(&applied, "lake/t")["outcome"]["reason"], "plan_stale", "{applied:#}");
    assert_eq!(dataset_tree(&here.path("lake/t")), before);
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_tag_refuses_and_is_not_silence() {
    let here = Here::new();
    here.table("lake/t", 6, 20).await;
    std::fs::create_dir_all(here.path("lake/t/_refs/tags")).expect("made");
    std::fs::write(here.path("lake/t/_refs/tags/x.json"), b"{bad").expect("written");
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let mut args = vec!["sweep".to_string(), here.text("lake"), "--yes".into(), "-o".into(), "json".into()];
    args.extend(one_second());
    let output = squire(&args);
    assert_eq!(code(&output), 3);
    let swept: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(row(&swept, "lake/t")["steps"]["cleanup"]["reason"], "references_incomplete");
    assert!(swept["incomplete"].as_array().is_some_and(|i| !i.is_empty()));
    // The test wrote it.
    here.oracle_with("lake", Leftovers::None, &[("_refs/tags/x.json", "cannot be read")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_neighbours_manifest_that_cannot_be_read_may_name_files_of_anybody() {
    let here = Here::new();
    here.table("lake/other", 3, 20).await;
    here.table("lake/t", 6, 20).await;
    std::fs::write(here.manifest("lake/other", 2), b"cut").expect("cut");
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let mut args = vec!["sweep".to_string(), here.text("lake"), "--yes".into()];
    args.extend(one_second());
    let swept = report(&args);
    let cleanup = &row(&swept, "lake/t")["steps"]["cleanup"];
    assert_eq!(cleanup["reason"], "references_incomplete", "{cleanup:#}");
    assert_eq!(row(&swept, "lake/t")["steps"]["compact"]["outcome"], "done", "the rest goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plans_flags_are_obeyed_when_it_is_applied() {
    let here = Here::new();
    here.table("lake/t", 8, 20).await;
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let plan = here.text("p.json");
    let mut args = vec!["plan".to_string(), here.text("lake"), "--out".into(), plan.clone()];
    args.extend(one_second());
    let planned = report(&args)["totals"]["reclaimable_bytes"].clone();
    assert_ne!(planned, 0);
    let applied = report(&["apply", &plan, "--set", "floors.retention=1s"]);
    assert_eq!(applied["totals"]["reclaimed_bytes"], planned, "{applied:#}");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_registered_at_a_branchs_tree_gets_no_write() {
    let here = Here::new();
    let mut sample = here.table("lake/t", 3, 10).await;
    sample.branch("dev", 2).await.expect("branched");
    let root = here.text("lake");
    let flag = format!("--registry={root}/_squire");
    assert_ok(&registry(&["init", &format!("{root}/_squire"), "--name", "n"]), "init");
    let admin: [&[&str]; 4] = [
        &["project", "create", "p"],
        &["warehouse", "create", "w", "--project", "p", "--root", &root],
        &["namespace", "create", "namespace/ns", "--warehouse", "w"],
        &["table", "create", "table/ns/dev", "--location", "t/tree/dev"],
    ];
    for args in admin {
        let mut all = args.to_vec();
        all.push(&flag);
        assert_ok(&registry(&all), &format!("{args:?}"));
    }
    let before = dataset_tree(&here.path("lake/t/tree"));
    let swept = clean(&root);
    assert_eq!(row(&swept, "t/tree/dev")["outcome"]["reason"], "unknown_authority", "{swept:#}");
    assert_eq!(dataset_tree(&here.path("lake/t/tree")), before);
    here.oracle("lake");
}

/// A lost mount: the warehouse that holds a clone is registered, and nothing is there, or an empty folder in its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_registered_warehouse_that_is_away_may_read_from_anything() {
    for empty_folder in [false, true] {
        let here = with_clone("../other/clone").await;
        let at = format!("--registry={}", here.text("ctl"));
        assert_ok(&registry(&["init", &here.text("ctl")]), "init");
        assert_ok(&registry(&["project", "create", "p", &at]), "project");
        for (name, root) in [("w", here.text("lake")), ("o", here.text("other"))] {
            assert_ok(&registry(&["warehouse", "create", name, "--project", "p", "--root", &root, &at]), name);
        }
        std::fs::rename(here.path("other"), here.path("away")).expect("moved");
        if empty_folder {
            std::fs::create_dir(here.path("other")).expect("made");
        }
        let sweep = |verb: &str| {
            let mut args =
                vec![verb.to_string(), here.text("lake"), at.clone(), "--retain-versions".into(), "2".into()];
            args.extend(one_second());
            if verb == "sweep" {
                args.push("--yes".into());
            }
            report(&args)
        };
        let swept = sweep("sweep");
        let cleanup = &row(&swept, "lake/source")["steps"]["cleanup"];
        assert_eq!(cleanup["reason"], "references_incomplete", "empty folder: {empty_folder}: {swept:#}");
        assert!(!swept["incomplete"].as_array().expect("a list").is_empty(), "{swept:#}");
        if empty_folder {
            std::fs::remove_dir(here.path("other")).expect("removed");
        }
        std::fs::rename(here.path("away"), here.path("other")).expect("moved back");
        assert!(sweep("sweep")["totals"]["versions_removed"].as_u64() > Some(0), "now it is known who reads what");
        let ids = Sample::ids(&lake(), &here.uri("other/clone"), None).await.expect("the clone reads");
        assert_eq!(ids.len(), 40);
    }
}

/// What a reclaim moved away may come back: until it is purged its source keeps what it reads.
#[tokio::test(flavor = "multi_thread")]
async fn a_clone_in_quarantine_reads_on_when_it_comes_back() {
    let here = with_clone("clone").await;
    let away = here.path("lake/_squire_quarantine/01920000-0000-7000-8000-000000000001/clone");
    std::fs::create_dir_all(away.parent().expect("a parent")).expect("made");
    std::fs::rename(here.path("lake/clone"), &away).expect("moved");
    let swept = clean(&here.text("lake"));
    let removed = row(&swept, "lake/source")["steps"]["cleanup"]["versions_removed"].as_u64().expect("a number");
    assert!(removed > 0, "{swept:#}");
    std::fs::rename(&away, here.path("lake/clone")).expect("moved back");
    std::fs::remove_dir_all(here.path("lake/_squire_quarantine")).expect("removed");
    assert_eq!(Sample::ids(&lake(), &here.uri("lake/clone"), None).await.expect("the clone reads").len(), 40);
    here.oracle("lake");
}

/// A folder of the table is a link: whose files lie behind it cannot be told.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_with_a_folder_that_is_a_link_is_not_cleaned_up() {
    let here = Here::new();
    let mut other = here.table("lake/other", 2, 10).await;
    here.table("lake/t", 2, 10).await.overwrite(10, 500).await.expect("overwritten");
    other.overwrite(10, 900).await.expect("overwritten");
    for entry in std::fs::read_dir(here.path("lake/t/data")).expect("files").flatten() {
        std::fs::rename(entry.path(), here.path("lake/other/data").join(entry.file_name())).expect("moved");
    }
    std::fs::remove_dir(here.path("lake/t/data")).expect("removed");
    std::os::unix::fs::symlink(here.path("lake/other/data"), here.path("lake/t/data")).expect("linked");
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let mut args = vec!["sweep".to_string(), here.text("lake"), "--yes".into()];
    args.extend(one_second());
    args.extend(["--retain-versions".to_string(), "1".into()]);
    let swept = report(&args);
    let cleanup = &row(&swept, "lake/t")["steps"]["cleanup"];
    assert_eq!(cleanup["reason"], "references_incomplete", "{swept:#}");
    assert_eq!(Sample::ids(&lake(), &here.uri("lake/t"), None).await.expect("it reads").len(), 10);
    assert_eq!(Sample::ids(&lake(), &here.uri("lake/other"), None).await.expect("it reads").len(), 10);
}
