//! What a plan was right about when it was made is asked again when it is applied and when its quarantine is purged: one test for each
//! question that nothing else asks.

use serde_json::Value;
use squire_lake::sample::{Sample, set_schema_metadata, set_unknown_flag};

use super::estate::*;

/// The lake's two orphans lie in quarantine, past its grace.
async fn in_quarantine() -> (Estate, String) {
    let estate = Estate::new().await;
    let id = estate.plan();
    let (code, report) = estate.apply();
    assert_eq!(code, 0, "{report:#}");
    (estate, id)
}

fn purge(estate: &Estate, id: &str, more: &[&str]) -> (i32, Value) {
    estate.json(&[&["purge", id, "--set", "grace.quarantine=0s"], more].concat())
}

/// Asserts that a purge refuses with these words and takes nothing.
#[track_caller]
fn stays(estate: &Estate, id: &str, more: &[&str], says: &str) {
    let before = estate.tree();
    let (_, rows) = purge(estate, id, more);
    assert!(rows[0]["forbidden"].to_string().contains(says), "{says}: {rows}");
    assert_eq!(estate.tree(), before, "{says}");
}

#[tokio::test]
async fn a_purge_asks_who_may_delete_whose_the_table_is_and_how_long_a_write_takes() {
    let (estate, id) = in_quarantine().await;
    stays(&estate, &id, &["--set", "storage.delete.aws_access_key_id=\"\""], "no_delete_permission");
    stays(&estate, &id, &["--set", "policy.longest_write=40d"], "not_due");
    set_schema_metadata(&estate.path("lake/orders"), "omnigraph:internal_schema_version", "14").unwrap();
    stays(&estate, &id, &[], "graph_owned");
}

/// Its own old version may name what lies in quarantine, and cannot be read.
#[tokio::test]
async fn a_purge_beside_a_version_of_its_own_that_cannot_be_read_takes_nothing() {
    let (estate, id) = in_quarantine().await;
    let first = estate.path("lake/orders/_versions").join(format!("{:020}.manifest", u64::MAX - 1));
    let whole = std::fs::read(&first).unwrap();
    std::fs::write(&first, &whole[..20]).unwrap();
    stays(&estate, &id, &[], "references_incomplete");
    std::fs::write(&first, &whole).unwrap();
    let (code, rows) = purge(&estate, &id, &[]);
    assert_eq!((code, rows[0]["gone"][0].as_u64()), (0, Some(2)), "{rows}");
}

/// Nothing lies at its place any more, and what cannot be read may read of it.
#[tokio::test]
async fn a_purge_of_a_table_that_is_away_needs_all_the_rest_of_the_estate() {
    let (estate, id) = in_quarantine().await;
    estate.table("lake/kept", 1).await;
    std::fs::rename(estate.path("lake/orders"), estate.path("away")).unwrap();
    let versions = estate.path("lake/unread/_versions");
    std::fs::create_dir_all(&versions).unwrap();
    std::fs::write(versions.join("18446744073709551614.manifest"), "no manifest").unwrap();
    stays(&estate, &id, &[], "references_incomplete");
}

/// A version is back whose file lies in quarantine and is not what it was: it cannot come back, and must not go either.
#[tokio::test]
async fn a_purge_keeps_the_copy_of_what_is_named_and_cannot_come_back() {
    let estate = Estate::empty();
    let (head, bytes) = without_its_head(&estate).await;
    let id = estate.plan();
    assert_eq!(estate.apply().0, 0);
    std::fs::write(&head, &bytes).unwrap();
    let folder = estate.path("lake/_squire_quarantine").join(&id).join("orders/data");
    let copy = std::fs::read_dir(folder).unwrap().flatten().next().unwrap().path();
    let whole = std::fs::read(&copy).unwrap();
    let then = std::fs::metadata(&copy).unwrap().modified().unwrap();
    std::fs::write(&copy, &whole[1..]).unwrap();
    let (code, rows) = purge(&estate, &id, &[]);
    assert_eq!((code, rows[0]["failed"].as_array().unwrap().len()), (3, 1), "{rows}");
    assert_eq!(std::fs::read(&copy).unwrap(), whole[1..], "{rows}");
    std::fs::write(&copy, &whole).unwrap();
    std::fs::File::options().write(true).open(&copy).unwrap().set_modified(then).unwrap();
    purge(&estate, &id, &[]);
    assert_eq!(Sample::ids(&lake(), &estate.uri("lake/orders"), None).await.unwrap().len(), 5);
}

/// A write may take longer by now than when the plan was made.
#[tokio::test]
async fn an_apply_lets_nothing_of_a_dropped_table_go_that_is_younger_than_a_write_takes() {
    let estate = with_a_dropped_table().await;
    estate.plan();
    let before = estate.tree();
    let (code, report) = estate.json(&["apply", "plan.json", "--set", "policy.longest_write=40d"]);
    assert_eq!(code, 0, "{report:#}");
    assert!(row(&report, "/orders")["outcome"].to_string().contains("is younger than"), "{report:#}");
    assert_eq!(estate.tree(), before);
    assert_eq!(estate.apply().0, 0);
    assert!(!estate.path("lake/orders").exists());
}

/// What was put on the name of a dropped table while its bytes lie in quarantine.
#[tokio::test]
async fn a_purge_asks_what_keeps_a_dropped_table_by_its_name() {
    let estate = with_a_dropped_table().await;
    let id = estate.plan();
    assert_eq!(estate.apply().0, 0);
    let (_, said) = estate.try_admin(&["block", "add", "namespace/n", "--reason", "a reader"]);
    stays(&estate, &id, &[], "blocked");
    estate.admin(&["block", "remove", said.split_whitespace().nth(1).unwrap()]);
    // Undropped, blocked, and dropped again: the block went into the trash with it.
    estate.admin(&["trash", "undrop", "table/n/orders"]);
    estate.admin(&["block", "add", "table/n/orders", "--reason", "a reader", "--version", "1"]);
    estate.admin(&["table", "drop", "table/n/orders", "--set", "grace.trash=0s", "--apply"]);
    stays(&estate, &id, &[], "blocked");
}

/// A bucket that shows nothing live is not the one that it was, or not there.
#[tokio::test]
async fn a_purge_that_sees_nothing_live_takes_nothing() {
    let (estate, id) = in_quarantine().await;
    std::fs::rename(estate.path("lake/orders"), estate.path("away")).unwrap();
    let before = estate.tree();
    let (code, _, err) = estate.reclaim(&["purge", &id, "--set", "grace.quarantine=0s"]);
    assert!(code == 3 && err.contains("empty_scan"), "{code}: {err}");
    assert_eq!(estate.tree(), before);
}

#[tokio::test]
async fn nothing_is_planned_of_a_table_whose_head_needs_what_is_not_there() {
    let estate = Estate::new().await;
    let mut files: Vec<_> = tree(&estate.path("lake/orders/data")).into_keys().collect();
    files.retain(|name| !["one.lance", "young.lance"].contains(&name.to_str().unwrap()));
    std::fs::remove_file(estate.path("lake/orders/data").join(&files[0])).unwrap();
    let (_, report) = estate.json(&["plan", "lake", "--out", "plan.json"]);
    assert!(row(&report, "/orders")["outcome"].to_string().contains("unhealthy"), "{report:#}");
    assert!(estate.plan_file().items().is_empty());
}

/// The first write below a root leaves the estate's mark there: whoever comes with another registry is told.
#[tokio::test]
async fn a_root_with_a_quarantine_carries_the_mark_of_its_estate() {
    let estate = Estate::new().await;
    estate.plan();
    let mark = estate.path("lake/.squire-estate");
    let _ = std::fs::remove_file(&mark);
    assert_eq!(estate.apply().0, 0);
    let id = estate.plan_file().estate.unwrap().to_string();
    assert!(std::fs::read_to_string(&mark).unwrap().contains(&id));
}

/// What forbids a dataset is said by its own name, also where another rule would forbid it as well.
#[tokio::test]
async fn a_plan_says_what_forbids_a_dataset() {
    let estate = Estate::new().await;
    let refused = |says: &str| {
        let (_, report) = estate.json(&["plan", "lake", "--out", "plan.json"]);
        assert!(row(&report, "/orders")["outcome"].to_string().contains(says), "{says}: {report:#}");
        assert!(estate.plan_file().items().is_empty(), "{says}");
    };
    let marker = estate.path("lake/orders/.lance-deregistered");
    std::fs::write(&marker, "").unwrap();
    refused("deregistered");
    std::fs::remove_file(marker).unwrap();
    estate.table("lake/orders/media/inner", 1).await;
    refused("nested_dataset");
    // Nor does anything of the inner one go.
    estate.orphan("lake/orders/media/inner/data/one.lance");
    refused("nested_dataset");
    let (_, report) = estate.json(&["plan", "lake", "--out", "plan.json"]);
    assert!(row(&report, "/inner")["outcome"].to_string().contains("it lies inside"), "{report:#}");
    std::fs::remove_dir_all(estate.path("lake/orders/media/inner")).unwrap();
    estate.plan();
    assert_eq!(estate.plan_file().items().len(), 2);
    set_unknown_flag(&estate.path("lake/orders")).unwrap();
    refused("unknown_feature_flags");
}

/// What the registry says of a place, and what the table itself says.
#[tokio::test]
async fn a_plan_asks_warehouse_table_and_the_whole_estate() {
    let estate = with_a_dropped_table().await;
    let mut kept = Sample::open(&lake(), &estate.uri("lake/kept"), Default::default()).await.unwrap();
    estate.orphan("lake/kept/data/one.lance");
    let says = |table: &str| {
        let (_, report) = estate.json(&["plan", "lake", "--out", "plan.json"]);
        row(&report, table)["outcome"].to_string()
    };
    estate.admin(&["protection", "set", "estate", "no-drop"]);
    assert!(says("/orders").contains("held"), "{}", says("/orders"));
    assert!(says("/kept").contains("planned"), "no-drop keeps no leftovers: {}", says("/kept"));
    estate.admin(&["protection", "unset", "estate"]);
    estate.admin(&["warehouse", "deactivate", "warehouse/w"]);
    assert!(says("/kept").contains("warehouse_inactive"), "{}", says("/kept"));
    estate.admin(&["warehouse", "activate", "warehouse/w"]);
    kept.config(&[("squire.pause_until", "9999-01-01")]).await.unwrap();
    assert!(says("/kept").contains("pauses maintenance until"), "{}", says("/kept"));
    kept.config(&[("squire.pause_until", "2020-01-01"), ("squire.maintain", "off")]).await.unwrap();
    assert!(says("/kept").contains("opted_out"), "{}", says("/kept"));
    kept.config(&[("squire.maintain", "on")]).await.unwrap();
    assert!(says("/kept").contains("planned"), "{}", says("/kept"));
}

/// Its record in the trash is what allows the rest of it to go: it ends when nothing of it is left.
#[tokio::test]
async fn the_record_of_a_dropped_table_stays_while_anything_of_it_lies_at_its_place() {
    let estate = with_a_dropped_table().await;
    let id = estate.plan();
    assert_eq!(estate.apply().0, 0);
    let copy = estate.path("lake/_squire_quarantine").join(&id).join("orders/data");
    let copy = std::fs::read_dir(copy).unwrap().flatten().next().unwrap().path();
    let place = estate.path("lake/orders/data");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::copy(&copy, place.join(copy.file_name().unwrap())).unwrap();
    let (code, rows) = purge(&estate, &id, &[]);
    assert!(code == 0 && rows[0]["gone"][0].as_u64() > Some(3), "{rows}");
    let (_, listed) = estate.try_admin(&["trash", "list"]);
    assert!(listed.contains("orders"), "{listed}");
}

/// Refused before anything is begun: nothing was claimed, and no audit entry was written.
#[tokio::test]
async fn an_apply_begins_nothing_of_a_dropped_table_beside_what_cannot_be_read() {
    let estate = with_a_dropped_table().await;
    estate.plan();
    let versions = estate.path("lake/unread/_versions");
    std::fs::create_dir_all(&versions).unwrap();
    std::fs::write(versions.join("18446744073709551614.manifest"), "no manifest").unwrap();
    let before = estate.tree();
    let (code, report) = estate.apply();
    assert_eq!(code, 3, "{report:#}");
    assert!(row(&report, "/orders")["outcome"].to_string().contains("references_incomplete"), "{report:#}");
    assert_eq!(estate.tree(), before);
    let registry = squire_registry::Registry::open(&estate.text("lake/_squire"), &Default::default()).await.unwrap();
    let (entries, _) = registry.dataset_history(&estate.uri("lake/orders")).await.unwrap();
    assert!(entries.is_empty(), "{entries:?}");
}
