//! Dropped tables: they go whole, once they are nobody else's, come back, and end with the purge.

use std::path::PathBuf;

use squire_lake::sample::{Columns, Sample, SampleIndex};

use super::estate::*;

#[tokio::test]
async fn expired_trash_goes_whole_comes_back_and_ends_with_the_purge() {
    let estate = Estate::empty();
    let root = estate.text("lake");
    estate.admin(&["project", "create", "p"]);
    estate.admin(&["warehouse", "create", "w", "--project", "p", "--root", &root]);
    estate.admin(&["namespace", "create", "namespace/n", "--warehouse", "w"]);
    let mut sample = estate.table("lake/orders", 3).await;
    sample.index(SampleIndex::BTree).await.unwrap();
    sample.tag("x", 2).await.unwrap();
    sample.branch("b", 2).await.unwrap();
    estate.table("lake/kept", 1).await;
    estate.admin(&["table", "create", "table/n/orders", "--location", "orders"]);
    estate.admin(&["table", "create", "table/n/kept", "--location", "kept"]);
    let refused = |says: &str| {
        let (_, report) = estate.json(&["plan", "lake", "--out", "plan.json"]);
        assert!(row(&report, "/orders")["outcome"].to_string().contains(says), "{says}: {report:#}");
        assert!(estate.plan_file().items().is_empty(), "{says}");
    };
    estate.admin(&["table", "drop", "table/n/orders"]);
    age_all(&estate.path("lake/orders"), 30);
    refused("it can be undropped until");
    estate.admin(&["trash", "undrop", "table/n/orders"]);
    estate.admin(&["table", "drop", "table/n/orders", "--set", "grace.trash=0s", "--apply"]);
    // Sole ownership: a clone, another warehouse, a hold.
    let mut reader = Sample::open(&lake(), &estate.uri("lake/orders"), Columns::default()).await.unwrap();
    reader.clone_to(&estate.uri("lake/clone")).await.unwrap();
    age_all(&estate.path("lake/orders"), 30);
    refused("not_exclusive");
    std::fs::remove_dir_all(estate.path("lake/clone")).unwrap();
    std::fs::create_dir(estate.path("lake/orders/sub")).unwrap();
    estate.admin(&["warehouse", "create", "v", "--project", "p", "--root", &estate.text("lake/orders/sub")]);
    refused("warehouse v covers it");
    estate.admin(&["warehouse", "drop", "warehouse/v"]);
    std::fs::remove_dir_all(estate.path("lake/orders/sub")).unwrap();
    estate.admin(&["protection", "set", "namespace/n", "keep-history"]);
    refused("held");
    estate.admin(&["protection", "unset", "namespace/n"]);
    let fresh = estate.path("lake/orders/data");
    age_all(&fresh, 3);
    refused("younger than seven days");
    age_all(&fresh, 30);

    let before = estate.tree();
    let objects = tree(&estate.path("lake/orders")).len();
    let id = estate.plan();
    assert_eq!(estate.plan_file().items().len(), objects);
    // A sweep's clean-up would never touch it; reclaim takes it whole.
    let (code, report) = estate.apply();
    assert_eq!(code, 0, "{report:#}");
    assert!(!estate.path("lake/orders").exists(), "{report:#}");
    assert!(estate.path("lake/kept").exists());
    let (code, undone) = estate.json(&["undo", &id, "--dataset", "table/n/orders"]);
    assert_eq!((code, undone[0]["back"].as_u64().unwrap() as usize), (0, objects), "{undone}");
    assert_eq!(estate.tree(), before);
    estate.admin(&["trash", "undrop", "table/n/orders"]);
    assert_eq!(Sample::ids(&lake(), &estate.uri("lake/orders"), None).await.unwrap().len(), 30);
    estate.admin(&["table", "drop", "table/n/orders", "--set", "grace.trash=0s", "--apply"]);

    let id = estate.plan();
    assert_eq!(estate.apply().0, 0);
    // Undropped while it lies in quarantine: its purge refuses, and undo brings it back.
    estate.admin(&["trash", "undrop", "table/n/orders"]);
    let (_, rows) = estate.json(&["purge", &id, "--set", "grace.quarantine=0s"]);
    assert!(rows[0]["forbidden"].to_string().contains("no longer in the trash"), "{rows}");
    assert_eq!(estate.json(&["undo", &id]).0, 0);
    assert_eq!(Sample::ids(&lake(), &estate.uri("lake/orders"), None).await.unwrap().len(), 30);
    estate.admin(&["table", "drop", "table/n/orders", "--set", "grace.trash=0s", "--apply"]);

    let id = estate.plan();
    assert_eq!(estate.apply().0, 0);
    let (code, rows) = estate.json(&["purge", &id, "--set", "grace.quarantine=0s"]);
    assert_eq!((code, rows[0]["gone"][0].as_u64().unwrap() as usize), (0, objects), "{rows}");
    let (code, said) = estate.try_admin(&["trash", "undrop", "table/n/orders"]);
    assert_ne!(code, 0, "the record ended with the purge: {said}");
    assert!(!estate.path("lake/_squire_quarantine").join(&id).join("_squire/plan.json").exists());
    let names: Vec<PathBuf> = estate.tree().into_keys().filter(|p| !p.starts_with("kept")).collect();
    assert!(names.is_empty(), "{names:?}");
}

/// A dropped table lies in quarantine, and another one was made at its place: neither an undo nor a second apply touches that one.
#[tokio::test]
async fn nothing_comes_back_to_where_a_table_was_made_anew() {
    let estate = with_a_dropped_table().await;
    let whole = tree(&estate.path("lake/orders"));
    let id = estate.plan();
    assert_eq!(estate.apply().0, 0);
    estate.table("lake/orders", 1).await;
    let there =
        || -> Vec<_> { estate.tree().into_iter().filter(|(p, _)| !p.to_string_lossy().contains("/parts/")).collect() };
    for days in [0, 30] {
        age_all(&estate.path("lake/orders"), days);
        let before = there();
        estate.apply();
        assert!(there() == before, "{days}: apply");
        let (code, rows) = estate.json(&["undo", &id]);
        assert_eq!(code, 3, "{days}: {rows}");
        assert!(rows[0]["forbidden"].to_string().contains("since it was moved away"), "{days}: {rows}");
        assert!(there() == before, "{days}: undo");
    }
    std::fs::rename(estate.path("lake/orders"), estate.path("away")).unwrap();
    let (code, rows) = estate.json(&["undo", &id]);
    assert_eq!(code, 0, "{rows}");
    assert!(tree(&estate.path("lake/orders")) == whole);
}

/// An undo that was stopped goes on, also where what came back has new times, as in a bucket.
#[tokio::test]
async fn an_undo_of_a_dropped_table_that_was_stopped_goes_on() {
    let estate = with_a_dropped_table().await;
    let whole = tree(&estate.path("lake/orders"));
    let id = estate.plan();
    assert_eq!(estate.apply().0, 0);
    let copies = estate.path("lake/_squire_quarantine").join(&id).join("orders");
    let manifest = std::fs::read_dir(copies.join("_versions")).unwrap().flatten().next().unwrap().path();
    let text = std::fs::read(&manifest).unwrap();
    let then = std::fs::metadata(&manifest).unwrap().modified().unwrap();
    std::fs::write(&manifest, &text[1..]).unwrap();
    let (code, rows) = estate.json(&["undo", &id]);
    assert_eq!((code, rows[0]["failed"].as_array().unwrap().len()), (3, 1), "{rows}");
    std::fs::write(&manifest, &text).unwrap();
    std::fs::File::options().write(true).open(&manifest).unwrap().set_modified(then).unwrap();
    age_all(&estate.path("lake/orders"), 0);
    let (code, rows) = estate.json(&["undo", &id]);
    assert_eq!((code, rows[0]["back"].as_u64()), (0, Some(1)), "{rows}");
    assert!(tree(&estate.path("lake/orders")) == whole);
}

#[tokio::test]
async fn a_table_made_anew_where_one_was_dropped_is_not_reclaimed() {
    let estate = with_a_dropped_table().await;
    let says = "was written on";
    std::fs::write(estate.path("lake/orders/data/new.lance"), "after the drop").unwrap();
    let (_, report) = estate.json(&["plan", "lake", "--out", "plan.json"]);
    assert!(row(&report, "/orders").to_string().contains(says), "{report:#}");
    assert!(estate.plan_file().items().is_empty());
    std::fs::remove_file(estate.path("lake/orders/data/new.lance")).unwrap();
    estate.plan();
    std::fs::write(estate.path("lake/orders/data/new.lance"), "after the plan").unwrap();
    estate.refuses(0, says, &["-o", "json"]);
    // Another table, copied there with its old times.
    std::fs::remove_dir_all(estate.path("lake/orders")).unwrap();
    estate.table("lake/orders", 1).await;
    age_all(&estate.path("lake/orders"), 30);
    let (_, report) = estate.json(&["plan", "lake", "--out", "plan.json"]);
    assert!(row(&report, "/orders").to_string().contains(says), "{report:#}");
    assert!(estate.plan_file().items().is_empty());
}

#[tokio::test]
async fn every_block_keeps_a_dropped_table() {
    let estate = with_a_dropped_table().await;
    estate.admin(&["trash", "undrop", "table/n/orders"]);
    let dataset = format!("dataset/{}", percent(&estate.uri("lake/orders")));
    for subject in ["table/n/orders", "namespace/n", "project/p", "estate", &dataset] {
        for version in [&[][..], &["--version", "1"]] {
            let (code, said) =
                estate.try_admin(&[&["block", "add", subject, "--reason", "a reader"], version].concat());
            assert_eq!(code, 0, "{subject}: {said}");
            let block = said.split_whitespace().nth(1).unwrap().to_owned();
            estate.admin(&["table", "drop", "table/n/orders", "--set", "grace.trash=0s", "--apply"]);
            let (_, report) = estate.json(&["plan", "lake", "--out", "plan.json"]);
            assert!(row(&report, "/orders")["outcome"].to_string().contains("blocked"), "{subject}: {report:#}");
            assert!(estate.plan_file().items().is_empty(), "{subject}");
            estate.admin(&["trash", "undrop", "table/n/orders"]);
            estate.admin(&["block", "remove", &block]);
        }
    }
    estate.admin(&["table", "drop", "table/n/orders", "--set", "grace.trash=0s", "--apply"]);
    estate.plan();
    assert!(!estate.plan_file().items().is_empty());
}

/// Whose the bytes of a dropped table are is asked when they are planned, when they go, and when they are purged.
#[tokio::test]
async fn who_owns_a_dropped_table_is_asked_by_apply_and_purge_too() {
    let estate = with_a_dropped_table().await;
    let id = estate.plan();
    let sub = estate.text("lake/orders/sub");
    let refused = |says: &str| {
        let there = tree(&estate.path("lake/orders"));
        let (code, report) = estate.apply();
        assert_eq!(code, 0, "{report:#}");
        assert!(row(&report, "/orders")["outcome"].to_string().contains(says), "{says}: {report:#}");
        assert!(tree(&estate.path("lake/orders")) == there, "{says}");
    };
    let covered = |verb: &str| match verb {
        "create" => {
            std::fs::create_dir_all(&sub).unwrap();
            estate.admin(&["warehouse", "create", "v", "--project", "p", "--root", &sub]);
        }
        _ => {
            estate.admin(&["warehouse", "drop", "warehouse/v"]);
            std::fs::remove_dir_all(&sub).unwrap();
        }
    };
    let (_, said) = estate.try_admin(&["block", "add", "namespace/n", "--reason", "a reader"]);
    refused("blocked");
    estate.admin(&["block", "remove", said.split_whitespace().nth(1).unwrap()]);
    covered("create");
    refused("warehouse v covers it");
    covered("drop");
    assert_eq!(estate.apply().0, 0);
    let moved = estate.tree();
    covered("create");
    let purge = ["purge", &id, "--set", "grace.quarantine=0s"];
    let (_, rows) = estate.json(&purge);
    assert!(rows[0]["forbidden"].to_string().contains("warehouse v covers it"), "{rows}");
    covered("drop");
    let marker = estate.path("lake/.squire-estate");
    let own = std::fs::read(&marker).unwrap();
    std::fs::write(&marker, "01920000-0000-7000-8000-00000000abcd\n").unwrap();
    let (code, out, err) = estate.reclaim(&purge);
    assert!(out.contains("registry_lost") || err.contains("registry_lost"), "{code}: {out}{err}");
    let left: Tree = estate.tree().into_iter().filter(|(path, _)| !path.starts_with("orders")).collect();
    assert!(left == moved, "{:?}", left.keys());
    std::fs::write(&marker, own).unwrap();
    let (code, rows) = estate.json(&purge);
    assert!(code == 0 && rows[0]["gone"][0].as_u64().unwrap() > 5, "{rows}");
}
