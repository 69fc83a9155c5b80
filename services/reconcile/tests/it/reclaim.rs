//! `reclaim` on real Lance files: by a plan, to quarantine and back, for good after its grace.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use squire_lake::sample::{Columns, Sample};

use super::estate::*;
use super::output;

#[tokio::test]
async fn what_nobody_names_goes_to_quarantine_and_comes_back_byte_for_byte() {
    let estate = Estate::new().await;
    let before = tree(estate.dir.path());
    let (code, report) = estate.json(&["plan", "lake", "--out", "plan.json"]);
    assert_eq!(code, 0, "{report:#}");
    assert_eq!((&report["kind"], &report["totals"]["planned"]), (&json!("reclaim"), &json!(1)));
    let requests = &report["totals"]["requests"];
    assert_eq!((&requests["put"], &requests["copy"], &requests["delete"]), (&json!(0), &json!(0), &json!(0)));
    let mut after = tree(estate.dir.path());
    after.remove(Path::new("plan.json")).expect("the plan");
    assert_eq!(after, before, "a plan writes itself and nothing else");
    let plan = estate.plan_file();
    let paths: Vec<&str> = plan.items().iter().map(|i| i.path.rsplit_once("/orders/").unwrap().1).collect();
    assert_eq!(paths, ["_indices/0a0b0c0d-0000-4000-8000-000000000001/page.lance", "data/one.lance"]);
    assert!(plan.items().iter().all(|i| i.reason.starts_with("no manifest names")), "{:?}", plan.items());
    assert_eq!((plan.bucket.as_deref(), plan.roots.as_slice()), (Some("file://"), &[estate.uri("lake")][..]));
    assert!(plan.live.unwrap() > 5);
    let (code, text, _) = estate.reclaim(&["show", "plan.json"]);
    assert_eq!(code, 0);
    for part in ["2 objects", "copied and deleted", "7d in quarantine", "data/one.lance"] {
        assert!(text.contains(part), "{part}: {text}");
    }

    let before = estate.tree();
    let (code, report) = estate.apply();
    assert_eq!(code, 0, "{report:#}");
    let step = &row(&report, "/orders")["steps"]["cleanup"];
    assert_eq!((&step["outcome"], &step["files_removed"]), (&json!("done"), &json!(2)), "{report:#}");
    assert_eq!(report["totals"]["reclaimed_bytes"], 0, "nothing is freed before the purge");
    let quarantine = Path::new("_squire_quarantine").join(plan.id.to_string());
    let after = estate.tree();
    for (path, bytes) in &before {
        let goes = paths.iter().any(|p| Path::new("orders").join(p) == *path);
        let at = if goes { quarantine.join(path) } else { path.clone() };
        assert_eq!(after.get(&at), Some(bytes), "{}", path.display());
    }
    let (_, listed) = estate.json(&["list"]);
    let line = &listed.as_array().unwrap()[0];
    assert_eq!((&line["plan"], &line["objects"], &line["marked"]), (&json!(plan.id), &json!(2), &json!(0)), "{listed}");
    assert!(line["dataset"].as_str().unwrap().ends_with("/lake/orders"));
    // The rest of Squire walks past it.
    let (code, out, err) = output(&estate.dir, &["report", "lake", "-o", "json"]);
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &found["totals"]["seen"]), (0, &json!(1)), "{err}");
    assert!(!out.contains("orphan_file"), "{found:#}");
    // Applied again it finds its work done.
    let (code, out, err) = estate.reclaim(&["apply", "plan.json", "-o", "json"]);
    let again: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &again["totals"]["idle"]), (0, &json!(1)), "{again:#}");
    assert!(
        row(&again, "/orders")["steps"]["cleanup"]["detail"].as_str().unwrap().contains("2 moved before"),
        "{again:#}"
    );

    let id = plan.id.to_string();
    assert!(err.contains(&format!("reclaim undo {id} --registry {}", estate.uri("lake/_squire"))), "{err}");
    let (code, _, err) = estate.reclaim(&["undo", &id, "--dataset", "other"]);
    assert_eq!(code, 2, "{err}");
    let (code, undone) = estate.json(&["undo", &id, "--dataset", "orders"]);
    assert_eq!((code, &undone[0]["back"]), (0, &json!(2)), "{undone}");
    assert_eq!(estate.tree(), before);
    assert_eq!(estate.reclaim(&["list"]), (0, "nothing is in quarantine\n".into(), String::new()));
    assert!(!estate.path("lake/_squire_quarantine").exists(), "no empty folder is left");
    let (code, _, err) = estate.reclaim(&["undo", &id]);
    assert_eq!(code, 3, "{err}");
    // The audit trail knows of both.
    let registry = squire_registry::Registry::open(&estate.text("lake/_squire"), &Default::default()).await.unwrap();
    let (runs, _) = registry.runs().await.unwrap();
    let kinds: Vec<&str> = runs.iter().map(|r| r.kind.as_str()).rev().collect();
    assert_eq!(kinds, ["reclaim", "reclaim", "reclaim_undo"]);
    assert!(runs.iter().all(|r| r.outcome.is_some() && r.plan_digest.as_ref() == Some(&plan.digest)));
    let (entries, _) = registry.dataset_history(&estate.uri("lake/orders")).await.unwrap();
    assert_eq!(entries[0].intent.files, 2);
    assert_eq!(entries[0].result.as_ref().unwrap().files_removed, 2);
}

#[tokio::test]
async fn a_purge_waits_for_the_grace_and_brings_back_what_is_named() {
    let estate = Estate::new().await;
    let id = estate.plan();
    estate.apply();
    let moved = estate.tree();
    let (code, rows) = estate.json(&["purge", &id]);
    assert_eq!(code, 0, "a refusal alone is no failure: {rows}");
    assert!(rows[0]["forbidden"].to_string().contains("not_due"), "{rows}");
    assert_eq!(estate.tree(), moved);
    // A hold, a freeze, a block: as for apply.
    for (on, off, says) in [
        (&["protection", "set", "estate", "keep-history"][..], &["protection", "unset", "estate"][..], "held"),
        (&["protection", "set", "estate", "freeze"], &["protection", "unset", "estate"], "frozen"),
    ] {
        estate.admin(on);
        let (_, rows) = estate.json(&["purge", &id, "--set", "grace.quarantine=0s"]);
        assert!(rows[0]["forbidden"].to_string().contains(says), "{says}: {rows}");
        assert_eq!(estate.tree(), moved);
        if says == "frozen" {
            let (_, rows) = estate.json(&["undo", &id]);
            assert!(rows[0]["forbidden"].to_string().contains(says), "{rows}");
            assert_eq!(estate.tree(), moved, "nothing gets past a freeze");
        }
        estate.admin(off);
    }
    // By now a manifest names one of the two: a version is put back whose file had been left over.
    let (code, _, err) = estate.reclaim(&["purge", &id, "--set", "grace.quarantine=0s", "--metrics-file", "metrics"]);
    assert_eq!(code, 0, "{err}");
    let after = estate.tree();
    assert!(!after.keys().any(|p| p.to_string_lossy().contains("_squire_quarantine")), "{:?}", after.keys());
    assert_eq!(after.len(), moved.len() - 4, "two copies, the part and the plan");
    let metrics = std::fs::read_to_string(estate.path("metrics")).unwrap();
    let freed = "squire_reclaimed_bytes_total{by=\"reclaim\"} ";
    assert!(metrics.lines().any(|l| l.starts_with(freed) && l != format!("{freed}0")), "{metrics}");
}

/// A plan may be applied hours after it was made: its grace begins when the objects moved.
#[tokio::test]
async fn the_grace_of_a_quarantine_counts_from_the_move_and_not_from_the_plan() {
    let estate = Estate::new().await;
    estate.plan();
    let mut plan = estate.plan_file();
    let then = u64::try_from(chrono::Utc::now().timestamp()).unwrap() - 2 * 3_600;
    plan.id = uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, then, 0));
    plan.write(&estate.path("plan.json")).unwrap();
    let (code, report) = estate.apply();
    assert_eq!(code, 0, "{report:#}");
    let moved = estate.tree();
    let id = plan.id.to_string();
    let (code, rows) = estate.json(&["purge", &id, "--set", "grace.quarantine=1h"]);
    assert!(code == 0 && rows[0]["forbidden"].to_string().contains("not_due"), "{rows}");
    assert_eq!(estate.tree(), moved);
}

/// A version whose file was moved comes back while it lies in quarantine: the purge brings its file back, alarms, and purges the rest.
#[tokio::test]
async fn a_purge_never_takes_what_somebody_names_by_now() {
    let estate = Estate::empty();
    let (head, bytes) = without_its_head(&estate).await;
    estate.orphan("lake/orders/data/one.lance");
    let id = estate.plan();
    let (code, report) = estate.apply();
    assert_eq!(code, 0, "{report:#}");
    std::fs::write(&head, &bytes).unwrap();
    let (code, rows) = estate.json(&["purge", &id, "--set", "grace.quarantine=0s", "--metrics-file", "metrics"]);
    assert_eq!((code, rows[0]["restored"].as_array().unwrap().len()), (3, 1), "{rows}");
    assert!(rows[0]["gone"][0].as_u64().unwrap() >= 1, "{rows}");
    let metrics = std::fs::read_to_string(estate.path("metrics")).unwrap();
    assert!(metrics.contains("squire_invariant_violations_total{invariant=\"references_live\"} 1"), "{metrics}");
    assert_eq!(Sample::ids(&lake(), &estate.uri("lake/orders"), None).await.unwrap(), [500, 501, 502, 503, 504]);
}

/// The source lost the versions that named them; a clone that was away when the plan was made reads them.
#[tokio::test]
async fn a_clone_that_appears_after_the_plan_keeps_its_files() {
    let estate = Estate::empty();
    let mut sample = estate.table("lake/source", 3).await;
    std::fs::create_dir_all(estate.path("lake/far")).unwrap();
    sample.clone_to(&estate.uri("lake/far/clone")).await.unwrap();
    sample.overwrite(5, 900).await.unwrap();
    for version in 1..=3 {
        std::fs::remove_file(estate.path(&format!("lake/source/_versions/{:020}.manifest", u64::MAX - version)))
            .unwrap();
    }
    std::fs::rename(estate.path("lake/far/clone"), estate.path("away")).unwrap();
    age_all(&estate.path("lake/source/data"), 30);
    estate.plan();
    let items = estate.plan_file().items().len();
    assert!(items >= 3, "{items}");
    std::fs::rename(estate.path("away"), estate.path("lake/far/clone")).unwrap();
    let (code, report) = estate.apply();
    assert_eq!(code, 0, "{report:#}");
    let ids = Sample::ids(&lake(), &estate.uri("lake/far/clone"), None).await.unwrap();
    assert_eq!(ids.len(), 30, "the clone reads all its rows");
}

/// A clone whose base was typed through a symlink reads what no version of its source names any more; a table that was copied, with
/// new times, has its leftover and nothing else.
#[tokio::test]
async fn a_clone_through_a_symlink_keeps_its_files_and_a_copied_table_has_its_own_leftovers() {
    let estate = Estate::empty();
    estate.table("lake/real/source", 3).await;
    std::os::unix::fs::symlink(estate.path("lake/real"), estate.path("lake/link")).unwrap();
    let typed = format!("file://{}", estate.text("lake/link/source"));
    let mut through = Sample::open(&lake(), &typed, Columns::default()).await.unwrap();
    through.clone_to(&estate.uri("lake/clone")).await.unwrap();
    through.overwrite(5, 900).await.unwrap();
    copy_all(&estate.path("lake/real/source"), &estate.path("lake/copied"));
    for version in 1..=3 {
        let name = format!("lake/real/source/_versions/{:020}.manifest", u64::MAX - version);
        std::fs::remove_file(estate.path(&name)).unwrap();
    }
    age_all(&estate.path("lake/real/source/data"), 30);
    estate.orphan("lake/copied/data/one.lance");
    estate.orphan("lake/real/source/data/two.lance");
    estate.plan();
    let plan = estate.plan_file();
    let data = plan.items().iter().map(|i| i.path.as_str()).filter(|p| p.contains("/data/"));
    let names: Vec<&str> = data.map(|p| p.split_once("/lake/").unwrap().1).collect();
    assert_eq!(names, ["copied/data/one.lance", "real/source/data/two.lance"]);
    assert_eq!(estate.apply().0, 0);
    assert_eq!(Sample::ids(&lake(), &estate.uri("lake/clone"), None).await.unwrap().len(), 30);
    assert_eq!(Sample::ids(&lake(), &estate.uri("lake/copied"), Some(3)).await.unwrap().len(), 30);
}

/// A clone outside the estate comes into it while its files lie in quarantine: the purge brings them back, alarms, and purges the rest.
#[tokio::test]
async fn a_purge_brings_back_what_a_clone_names_by_now() {
    let estate = Estate::empty();
    let mut sample = estate.table("lake/source", 1).await;
    sample.clone_to(&estate.uri("outside")).await.unwrap();
    sample.overwrite(5, 900).await.unwrap();
    std::fs::remove_file(estate.path("lake/source/_versions").join(format!("{:020}.manifest", u64::MAX - 1))).unwrap();
    estate.orphan("lake/source/data/one.lance");
    age_all(&estate.path("lake/source"), 30);
    let id = estate.plan();
    assert_eq!(estate.apply().0, 0);
    std::fs::rename(estate.path("outside"), estate.path("lake/clone")).unwrap();
    let (code, rows) = estate.json(&["purge", &id, "--set", "grace.quarantine=0s"]);
    assert_eq!((code, rows[0]["restored"].as_array().unwrap().len()), (3, 1), "{rows}");
    assert!(rows[0]["gone"][0].as_u64().unwrap() >= 1, "{rows}");
    assert_eq!(Sample::ids(&lake(), &estate.uri("lake/clone"), None).await.unwrap().len(), 10);
}

#[tokio::test]
async fn a_copy_that_was_changed_does_not_come_back() {
    let estate = Estate::new().await;
    let id = estate.plan();
    assert_eq!(estate.apply().0, 0);
    let copy = estate.path("lake/_squire_quarantine").join(&id).join("orders/data/one.lance");
    let (moved, text) = (estate.tree(), std::fs::read(&copy).unwrap());
    for other in [Vec::new(), vec![b'x'; text.len()]] {
        std::fs::write(&copy, &other).unwrap();
        let (code, rows) = estate.json(&["undo", &id]);
        assert_eq!((code, rows[0]["failed"].as_array().unwrap().len()), (3, 1), "{rows}");
        assert!(!estate.path("lake/orders/data/one.lance").exists(), "{rows}");
        assert_eq!(std::fs::read(&copy).unwrap(), other);
    }
    assert!(moved.len() > 5);
}

/// A dropped clone lies in quarantine. An undo must bring it back readable, so what it reads of its source stays until it is purged.
#[tokio::test]
async fn what_a_clone_in_quarantine_reads_stays_until_that_is_purged() {
    let estate = Estate::empty();
    let root = estate.text("lake");
    estate.admin(&["project", "create", "p"]);
    estate.admin(&["warehouse", "create", "w", "--project", "p", "--root", &root]);
    estate.admin(&["namespace", "create", "namespace/n", "--warehouse", "w"]);
    let mut source = estate.table("lake/source", 3).await;
    source.clone_to(&estate.uri("lake/clone")).await.unwrap();
    source.overwrite(5, 900).await.unwrap();
    age_all(&estate.path("lake/clone"), 30);
    estate.admin(&["table", "create", "table/n/clone", "--location", "clone"]);
    let drop = ["table", "drop", "table/n/clone", "--set", "grace.trash=0s", "--apply"];
    estate.admin(&drop);
    let id = estate.plan();
    assert_eq!(estate.apply().0, 0);
    assert!(!estate.path("lake/clone").exists());
    for version in 1..=3 {
        let name = format!("lake/source/_versions/{:020}.manifest", u64::MAX - version);
        std::fs::remove_file(estate.path(&name)).unwrap();
    }
    age_all(&estate.path("lake/source/data"), 30);
    estate.orphan("lake/source/data/one.lance");
    estate.plan();
    assert_eq!(planned_data(&estate), ["source/data/one.lance"]);
    assert_eq!(estate.apply().0, 0);
    assert_eq!(estate.json(&["undo", &id]).0, 0);
    estate.admin(&["trash", "undrop", "table/n/clone"]);
    assert_eq!(Sample::ids(&lake(), &estate.uri("lake/clone"), None).await.unwrap().len(), 30);
    // Purged it reads nothing more.
    estate.admin(&drop);
    let id = estate.plan();
    assert_eq!(estate.apply().0, 0);
    let (code, rows) = estate.json(&["purge", &id, "--set", "grace.quarantine=0s"]);
    assert_eq!(code, 0, "{rows}");
    estate.plan();
    assert_eq!(planned_data(&estate).len(), 3, "{:?}", planned_data(&estate));
}

/// A folder of one dataset is a link into another: nothing of either is taken for a leftover of the other.
#[tokio::test]
async fn a_folder_that_is_a_link_into_another_dataset_makes_no_leftover_of_either() {
    let estate = Estate::empty();
    estate.table("lake/a", 2).await;
    estate.table("lake/b", 3).await;
    for entry in std::fs::read_dir(estate.path("lake/b/data")).unwrap().flatten() {
        std::fs::rename(entry.path(), estate.path("lake/a/data").join(entry.file_name())).unwrap();
    }
    std::fs::remove_dir(estate.path("lake/b/data")).unwrap();
    std::os::unix::fs::symlink(estate.path("lake/a/data"), estate.path("lake/b/data")).unwrap();
    estate.orphan("lake/a/data/one.lance");
    age_all(&estate.path("lake/a"), 30);
    let (code, report) = estate.json(&["plan", "lake", "--out", "plan.json"]);
    assert_eq!(code, 3, "{report:#}");
    let told = row(&report, "/b")["outcome"].to_string();
    assert!(told.contains("references_incomplete") && told.contains("it is a link to"), "{report:#}");
    assert_eq!(planned_data(&estate), ["a/data/one.lance"]);
    let (code, report) = estate.apply();
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(Sample::ids(&lake(), &estate.uri("lake/a"), None).await.unwrap().len(), 20);
    assert_eq!(Sample::ids(&lake(), &estate.uri("lake/b"), None).await.unwrap().len(), 30);
}

/// `reclaim.applied` on a real NATS server.
#[tokio::test]
async fn an_apply_is_told_on_the_bus() {
    let Some(nats) = squire_test_support::Nats::start("an_apply_is_told_on_the_bus") else { return };
    let estate = Estate::new().await;
    let id = estate.plan();
    let url = format!("bus.url={}", nats.url());
    let (code, out, err) = estate.reclaim(&["apply", "plan.json", "--set", "bus.kind=nats", "--set", &url]);
    assert_eq!(code, 0, "{out}{err}");
    let registry = squire_registry::Registry::open(&estate.text("lake/_squire"), &Default::default()).await.unwrap();
    let config = squire_service::config::Bus {
        kind: squire_service::config::BusKind::Nats,
        url: Some(nats.url()),
        ..Default::default()
    };
    let metrics = squire_service::telemetry::Metrics::new();
    let bus = squire_service::bus::Bus::open(&config, registry.name(), registry.id(), Default::default(), metrics);
    let bus = bus.await.unwrap();
    let mut told = bus.consumer(squire_service::bus::Queue::Events("test".into())).await.unwrap();
    let delivery = told.next(Duration::from_secs(20)).await.unwrap().expect("an event");
    let event = delivery.event().unwrap().clone();
    delivery.ack().await.unwrap();
    assert_eq!(event.event_type, "io.squire.reclaim.applied.v1");
    assert_eq!(event.source, format!("/estates/{}", registry.id()));
    let data = &event.data;
    assert_eq!((&data["plan"], &data["items"], &data["failed"]), (&json!(id), &json!(2), &json!(0)), "{data:#}");
    assert_eq!(data["digest"], json!(estate.plan_file().digest));
    assert!(told.next(Duration::from_millis(500)).await.unwrap().is_none(), "one event");
}
