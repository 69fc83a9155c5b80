//! What `reclaim` refuses, as a whole or of one dataset.

use serde_json::{Value, json};
use squire_service::planfile::PlanFile;

use super::estate::*;
use super::output;

#[tokio::test]
async fn a_plan_that_is_not_fit_is_refused_as_a_whole() {
    let estate = Estate::new().await;
    estate.plan();
    let whole = estate.plan_file();
    let file = estate.path("plan.json");
    let change = |edit: &dyn Fn(&mut PlanFile<Value>)| {
        let mut plan = whole.clone();
        edit(&mut plan);
        plan.write(&file).unwrap();
    };
    // Changed after it was made.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("data/one.lance", "data/two.lance")).unwrap();
    estate.refuses(2, "was changed after it was made", &[]);
    // Another estate, an older day, nothing live, another bucket.
    change(&|plan| plan.estate = Some("01920000-0000-7000-8000-000000000000".parse().unwrap()));
    estate.refuses(3, "another estate", &[]);
    change(&|plan| plan.estate = None);
    estate.refuses(3, "another estate", &[]);
    // A UUIDv7 of two days ago.
    change(&|plan| {
        let then = chrono::Utc::now().timestamp() - 2 * 86_400;
        let time = uuid::Timestamp::from_unix(uuid::NoContext, u64::try_from(then).unwrap(), 0);
        plan.id = uuid::Uuid::new_v7(time);
    });
    estate.refuses(3, "older than a day", &[]);
    change(&|plan| plan.live = Some(0));
    estate.refuses(3, "nothing live", &[]);
    change(&|plan| plan.bucket = Some("s3://elsewhere".into()));
    estate.refuses(3, "the bucket s3://elsewhere", &[]);
    change(&|_| {});
    estate.refuses(3, "mode is compact", &["--set", "estate.mode=compact"]);
    // Another registry, an empty one, and one that is gone.
    estate.admin(&["init", &estate.text("ctl")]);
    estate.refuses(3, "another estate", &["--registry", &estate.text("ctl")]);
    // Nothing of it is left: another mount, or another bucket of that name.
    std::fs::rename(estate.path("lake/orders"), estate.path("away")).unwrap();
    estate.refuses(3, "empty_scan", &[]);
    std::fs::rename(estate.path("away"), estate.path("lake/orders")).unwrap();
    // And without any change it goes.
    assert_eq!(estate.apply().0, 0);
    assert!(!estate.path("lake/orders/data/one.lance").exists());
}

#[tokio::test]
async fn a_root_of_another_registry_is_not_reclaimed() {
    let estate = Estate::new().await;
    let marker = estate.path("lake/.squire-estate");
    std::fs::write(&marker, "01920000-0000-7000-8000-00000000abcd\n").unwrap();
    let (_, report) = estate.json(&["plan", "lake", "--out", "plan.json"]);
    assert_eq!(row(&report, "/orders")["steps"]["cleanup"]["reason"], "registry_lost", "{report:#}");
    assert!(estate.plan_file().items().is_empty());
    std::fs::remove_file(&marker).unwrap();
    estate.plan();
    std::fs::write(&marker, "01920000-0000-7000-8000-00000000abcd\n").unwrap();
    estate.refuses(3, "registry_lost", &[]);
    std::fs::remove_file(&marker).unwrap();
    // Without a registry: what protects these files is not known.
    std::fs::rename(estate.path("lake/_squire"), estate.path("away")).unwrap();
    let before = estate.tree();
    let (code, _, err) = output(&estate.dir, &["reclaim", "apply", "plan.json"]);
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("registry_lost"), "{err}");
    assert_eq!(estate.tree(), before);
}

#[tokio::test]
async fn what_forbids_one_dataset_is_asked_again_by_apply() {
    let estate = Estate::new().await;
    estate.table("lake/other", 1).await;
    estate.orphan("lake/other/data/one.lance");
    let orders = format!("dataset/{}", percent(&estate.uri("lake/orders")));
    let on = |what: &[&str]| estate.admin(what);
    let cases: [(&[&str], &[&str], &str, &[&str]); 6] = [
        (&["protection", "set", &orders, "keep-history"], &["protection", "unset", &orders], "held", &[]),
        (&["protection", "set", &orders, "freeze"], &["protection", "unset", &orders], "frozen", &[]),
        (&["protection", "set", "estate", "freeze"], &["protection", "unset", "estate"], "frozen", &[]),
        (&[], &[], "not_exclusive", &["--set", "estate.exclusive=false"]),
        (&[], &[], "no_delete_permission", &["--set", "storage.delete.aws_access_key_id=\"\""]),
        (&["block", "add", &orders, "--reason", "a pause"], &[], "blocked", &[]),
    ];
    for (set, unset, says, more) in cases {
        estate.plan();
        assert!(estate.plan_file().items().len() >= 2, "{says}");
        if !set.is_empty() {
            on(set);
        }
        let before = tree(&estate.path("lake/orders"));
        let (code, report) = estate.json(&[&["apply", "plan.json"], more].concat());
        assert_eq!(code, 0, "{says}: a refusal alone is no failure: {report:#}");
        assert!(row(&report, "/orders")["outcome"].to_string().contains(says), "{says}: {report:#}");
        assert_eq!(tree(&estate.path("lake/orders")), before, "{says}");
        // And a plan that is made now says so, too.
        let (_, planned) = estate.json(&[&["plan", "lake", "--out", "again.json"], more].concat());
        assert!(row(&planned, "/orders")["outcome"].to_string().contains(says), "{says}: {planned:#}");
        if !unset.is_empty() {
            on(unset);
        }
        if says == "frozen" && set[2] == "estate" || !more.is_empty() {
            assert!(estate.path("lake/other/data/one.lance").exists(), "{says}");
            continue;
        }
        // The other dataset went its way, and comes back for the next case.
        assert!(!estate.path("lake/other/data/one.lance").exists(), "{says}: {report:#}");
        let (code, _, err) = estate.reclaim(&["undo", &estate.plan_file().id.to_string()]);
        assert_eq!(code, 0, "{err}");
    }
    // A record that cannot be read may be a hold.
    estate.admin(&["block", "list"]);
}

#[tokio::test]
async fn what_cannot_be_read_lets_nothing_go() {
    let estate = Estate::new().await;
    estate.plan();
    // A neighbour that cannot be read may read from anything.
    let versions = estate.path("lake/unread/_versions");
    std::fs::create_dir_all(&versions).unwrap();
    std::fs::write(versions.join("18446744073709551614.manifest"), "no manifest").unwrap();
    let before = tree(&estate.path("lake/orders"));
    let (code, report) = estate.apply();
    assert_eq!(code, 3, "what could not be read is no refusal alone: {report:#}");
    assert!(row(&report, "/orders")["outcome"].to_string().contains("references_incomplete"), "{report:#}");
    let orders = estate.uri("lake/orders");
    let incomplete = report["incomplete"].as_array().unwrap();
    assert!(incomplete.iter().any(|i| i["what"] == orders.as_str()), "{report:#}");
    assert_eq!(tree(&estate.path("lake/orders")), before);
    std::fs::remove_dir_all(estate.path("lake/unread")).unwrap();
    // A record that cannot be read may be a hold.
    let records = estate.path("lake/_squire/v1/protection/x");
    std::fs::create_dir_all(&records).unwrap();
    std::fs::write(records.join("00000000000000000001.json"), "{").unwrap();
    let (code, report) = estate.apply();
    assert_eq!(code, 3, "{report:#}");
    assert!(row(&report, "/orders")["outcome"].to_string().contains("registry_unreadable"), "{report:#}");
    assert_eq!(tree(&estate.path("lake/orders")), before);
    std::fs::remove_dir_all(records).unwrap();
    // A clone that comes between plan and apply, and reads what the plan names.
    let reader = estate.table("lake/reader", 1).await;
    drop(reader);
    assert_eq!(estate.apply().0, 0);
    assert!(!estate.path("lake/orders/data/one.lance").exists());
}

/// What lies in quarantine is purged only where everything can be read that may name it.
#[tokio::test]
async fn a_purge_that_cannot_read_everything_deletes_nothing_and_is_exit_3() {
    let estate = Estate::new().await;
    let id = estate.plan();
    assert_eq!(estate.apply().0, 0);
    let versions = estate.path("lake/unread/_versions");
    std::fs::create_dir_all(&versions).unwrap();
    std::fs::write(versions.join("18446744073709551614.manifest"), "no manifest").unwrap();
    let before = estate.tree();
    let purge = ["purge", &id, "--set", "grace.quarantine=0s"];
    let (code, rows) = estate.json(&purge);
    assert_eq!(code, 3, "{rows}");
    assert!(rows[0]["forbidden"].to_string().contains("references_incomplete"), "{rows}");
    assert_eq!(estate.tree(), before);
    // And a plan that is made now says that it is incomplete.
    estate.orphan("lake/orders/data/two.lance");
    let (code, planned) = estate.json(&["plan", "lake", "--out", "again.json"]);
    assert_eq!(code, 3, "{planned:#}");
    assert!(row(&planned, "/orders")["outcome"].to_string().contains("references_incomplete"), "{planned:#}");
    std::fs::remove_dir_all(estate.path("lake/unread")).unwrap();
    let (code, rows) = estate.json(&purge);
    assert_eq!((code, &rows[0]["gone"][0]), (0, &json!(2)), "{rows}");
}

#[tokio::test]
async fn a_root_inside_a_dataset_and_one_without_any_are_refused() {
    let estate = Estate::new().await;
    for (root, code, says) in [("lake/orders/data", 2, "lies inside"), ("nothing", 1, "empty_scan")] {
        let (got, _, err) = estate.reclaim(&["plan", root, "--out", "plan.json"]);
        assert_eq!(got, code, "{root}: {err}");
        assert!(err.contains(says), "{root}: {err}");
        assert!(!estate.path("plan.json").exists(), "{root}");
    }
    for (args, code) in [(&["undo", "x"][..], 2), (&["purge", "01920000-0000-7000-8000-000000000000"], 3)] {
        assert_eq!(estate.reclaim(args).0, code, "{args:?}");
    }
}

/// A table that a graph owns by now is nobody's to reclaim, whatever a plan of before says.
#[tokio::test]
async fn a_table_that_a_graph_took_over_since_the_plan_is_left_alone() {
    let estate = Estate::new().await;
    estate.plan();
    let orders = estate.path("lake/orders");
    squire_lake::sample::set_schema_metadata(&orders, "omnigraph:internal_schema_version", "14").unwrap();
    let before = estate.tree();
    let (code, report) = estate.apply();
    assert_eq!(code, 0, "{report:#}");
    assert!(row(&report, "/orders")["outcome"].to_string().contains("graph_owned"), "{report:#}");
    assert_eq!(estate.tree(), before);
}

/// A copy of the registry has the estate's id, and knows of no hold that was put on since.
#[tokio::test]
async fn a_copy_of_the_registry_lets_nothing_go() {
    let estate = Estate::new().await;
    copy_all(&estate.path("lake/_squire"), &estate.path("copy"));
    let id = estate.plan();
    let copy = estate.text("copy");
    estate.refuses(3, "registry_lost", &["--registry", &copy]);
    assert_eq!(estate.apply().0, 0);
    let before = estate.tree();
    let roots = format!("estate.roots=[\"{}\"]", estate.text("lake"));
    let more = ["--set", &roots, "--registry", &copy];
    let (code, _, err) = estate.reclaim(&[&["purge", &id, "--set", "grace.quarantine=0s"], &more[..]].concat());
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("registry_lost"), "{err}");
    assert_eq!(estate.tree(), before);
}

#[tokio::test]
async fn a_damaged_part_lets_no_purge_begin() {
    let estate = Estate::new().await;
    let id = estate.plan();
    assert_eq!(estate.apply().0, 0);
    let parts = estate.path("lake/_squire_quarantine").join(&id).join("_squire/parts");
    let part = std::fs::read_dir(parts).unwrap().flatten().next().unwrap().path();
    let text = std::fs::read_to_string(&part).unwrap();
    let damaged = [
        text.replace("/lake/orders", "/lake/other"),
        text.replace("\"run\"", "\"trash\":\"x\",\"run\""),
        text[..text.len() / 2].to_owned(),
        String::new(),
    ];
    for text in damaged {
        std::fs::write(&part, &text).unwrap();
        if text.is_empty() {
            std::fs::remove_file(&part).unwrap();
        }
        let before = estate.tree();
        let (code, out, err) = estate.reclaim(&["purge", &id, "--set", "grace.quarantine=0s"]);
        assert_eq!(code, 3, "{text}: {out}{err}");
        assert_eq!(estate.tree(), before, "{text}");
    }
}

/// What cannot be read in a quarantine may read anything once it comes back.
#[tokio::test]
async fn an_unreadable_dataset_in_quarantine_lets_nothing_go() {
    let estate = Estate::new().await;
    let versions = "lake/_squire_quarantine/01920000-0000-7000-8000-000000000001/a/clone/_versions";
    std::fs::create_dir_all(estate.path(versions)).unwrap();
    std::fs::write(estate.path(versions).join("18446744073709551614.manifest"), "no manifest").unwrap();
    let (code, report) = estate.json(&["plan", "lake", "--out", "plan.json"]);
    assert_eq!(code, 3, "{report:#}");
    assert!(row(&report, "/orders")["outcome"].to_string().contains("references_incomplete"), "{report:#}");
    assert!(estate.plan_file().items().is_empty());
}

/// A plan that nobody can apply says so when it is made.
#[tokio::test]
async fn a_plan_without_a_registry_says_that_it_will_be_refused() {
    let estate = Estate::new().await;
    let plan = || output(&estate.dir, &["reclaim", "plan", "lake", "--out", "plan.json"]);
    let says = "there is no registry";
    let (code, _, err) = plan();
    assert!(code == 0 && !err.contains(says), "{code}: {err}");
    std::fs::rename(estate.path("lake/_squire"), estate.path("away")).unwrap();
    // Its mark alone would refuse every dataset.
    std::fs::remove_file(estate.path("lake/.squire-estate")).unwrap();
    let (code, _, err) = plan();
    assert!(code == 0 && err.contains(says) && err.contains("squire-registry init"), "{code}: {err}");
    let (code, _, err) = output(&estate.dir, &["reclaim", "apply", "plan.json"]);
    assert!(code == 3 && err.contains("registry_lost"), "{code}: {err}");
}
