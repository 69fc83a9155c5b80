//! A plan file binds: what is in it is done, and nothing else.

use squire_maintenance::plan::DatasetPlan;
use squire_service::planfile::{PlanFile, PlanKind};

use super::common::*;

#[tokio::test(flavor = "multi_thread")]
async fn apply_does_what_the_plan_says() {
    let here = Here::new();
    here.table("lake/a", 5, 10).await;
    here.table("lake/b", 5, 10).await;
    let plan = here.text("p.json");
    report(&["plan", &here.text("lake"), "--out", &plan]);
    let shown = squire(&["show", &plan]);
    assert_ok(&shown, "show");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("5 fragments in 1 tasks"));
    let applied = report(&["apply", &plan, "--dataset", &here.uri("lake/a")]);
    assert_eq!(row(&applied, "lake/a")["after"]["fragments"], 1, "{applied:#}");
    let planned = report(&["plan", &here.text("lake")]);
    assert_eq!(row(&planned, "lake/b")["before"]["fragments"], 5, "b was not asked for");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_moved_head_makes_the_plan_stale() {
    let here = Here::new();
    let mut sample = here.table("lake/a", 5, 10).await;
    let plan = here.text("p.json");
    report(&["plan", &here.text("lake"), "--out", &plan]);
    sample.write(10, 900).await.expect("written");
    let before = dataset_tree(&here.path("lake"));
    let applied = report(&["apply", &plan]);
    assert_eq!(row(&applied, "lake/a")["outcome"]["reason"], "plan_stale", "{applied:#}");
    assert_eq!(dataset_tree(&here.path("lake/a")), before);
    here.oracle("lake");
}

/// HEAD's number and its identity are each asked for: with either of another HEAD nothing is done.
#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_bound_to_heads_number_and_to_its_identity() {
    let here = Here::new();
    here.table("lake/a", 5, 10).await;
    let plan = here.text("p.json");
    report(&["plan", &here.text("lake"), "--out", &plan]);
    let before = dataset_tree(&here.path("lake"));
    let changes: [fn(&mut DatasetPlan); 2] = [|p| p.read_version += 1, |p| p.head_id.push('x')];
    for change in changes {
        let file: PlanFile<DatasetPlan> = PlanFile::read_for(plan.as_ref(), PlanKind::Maintenance).expect("read");
        let (estate, mut datasets) = (file.estate, file.into_datasets());
        change(&mut datasets[0]);
        let other = here.text("other.json");
        PlanFile::new(PlanKind::Maintenance, estate, datasets).write(other.as_ref()).expect("written");
        let applied = report(&["apply", &other]);
        assert_eq!(row(&applied, "lake/a")["outcome"]["reason"], "plan_stale", "{applied:#}");
        assert_eq!(dataset_tree(&here.path("lake")), before);
    }
    assert_eq!(row(&report(&["apply", &plan]), "lake/a")["outcome"]["kind"], "maintained");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_plan_is_refused() {
    let here = Here::new();
    here.table("lake/a", 5, 10).await;
    let plan = here.text("p.json");
    report(&["plan", &here.text("lake"), "--out", &plan]);
    let text = std::fs::read_to_string(&plan).expect("read");
    std::fs::write(&plan, text.replace("\"rows\": 50", "\"rows\": 51")).expect("written");
    let output = squire(&["apply", &plan]);
    assert_ne!(code(&output), 0);
    assert!(stderr(&output).contains("plan"), "{}", stderr(&output));
    assert!(!here.path("lake/_squire").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_with_work_is_exit_four_when_asked() {
    let here = Here::new();
    here.table("lake/a", 5, 10).await;
    assert_eq!(code(&squire(&["plan", &here.text("lake"), "--detailed-exitcode"])), 4);
    assert_eq!(code(&squire(&["plan", &here.text("lake")])), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_removes_only_the_versions_of_the_plan() {
    let here = Here::new();
    here.table("lake/a", 12, 10).await;
    let day = 86_400;
    for version in 1..=12 {
        let days = if version <= 6 { 40 } else { 20 };
        super::replaced_at::age_manifest(&here.manifest("lake/a", version), days * day);
    }
    // A month ago only versions 1 to 5 had been replaced for a week; today 6 to 9 have been, too.
    let then = (chrono::Utc::now() - chrono::Duration::days(30)).to_rfc3339();
    let plan = here.text("p.json");
    report(&["plan", &here.text("lake"), "--steps", "cleanup", "--at", &then, "--out", &plan]);
    let now = report(&["plan", &here.text("lake"), "--steps", "cleanup"]);
    assert_eq!(row(&now, "lake/a")["steps"]["cleanup"]["versions_removed"], 9);
    let applied = report(&["apply", &plan]);
    assert_eq!(row(&applied, "lake/a")["steps"]["cleanup"]["versions_removed"], 5, "{applied:#}");
    for version in 6..=12 {
        let ids = squire_lake::sample::Sample::ids(&lake(), &here.uri("lake/a"), Some(version)).await;
        assert_eq!(ids.expect("the plan did not name it").len() as u64, 10 * version);
    }
    here.oracle("lake");
}
