//! Trashed, deregistered, frozen, blocked and opted-out datasets get no write at all.

use super::common::*;

struct Governed {
    here: Here,
}

impl Governed {
    async fn new() -> Self {
        let here = Here::new();
        here.table("lake/ns/t", 6, 10).await;
        let this = Self { here };
        let root = this.here.text("lake");
        assert_ok(&registry(&["init", &format!("{root}/_squire"), "--name", "n"]), "init");
        this.admin(&["project", "create", "p"]);
        this.admin(&["warehouse", "create", "w", "--project", "p", "--root", &root]);
        this.admin(&["namespace", "create", "namespace/ns", "--warehouse", "w"]);
        this.admin(&["table", "create", "table/ns/t", "--location", "ns/t"]);
        this
    }

    fn admin(&self, args: &[&str]) {
        let at = format!("--registry={}/_squire", self.here.text("lake"));
        let mut all = args.to_vec();
        all.push(&at);
        assert_ok(&registry(&all), &format!("squire-registry {args:?}"));
    }

    fn swept(&self) -> serde_json::Value {
        let before = dataset_tree(&self.here.path("lake/ns"));
        let swept = report(&["sweep", &self.here.text("lake"), "--yes"]);
        assert_eq!(dataset_tree(&self.here.path("lake/ns")), before, "a file of the dataset changed");
        row(&swept, "ns/t").clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trashed_dataset_gets_no_write_and_undrop_brings_it_back() {
    let g = Governed::new().await;
    g.admin(&["table", "drop", "table/ns/t"]);
    let row = g.swept();
    assert_eq!(row["outcome"]["reason"], "trashed", "{row:#}");
    g.admin(&["trash", "undrop", "table/ns/t"]);
    let swept = report(&["sweep", &g.here.text("lake"), "--yes"]);
    assert_eq!(super::common::row(&swept, "ns/t")["outcome"]["kind"], "maintained");
    g.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_dataset_gets_no_write_wherever_the_freeze_stands() {
    for subject in ["table/ns/t", "namespace/ns", "warehouse/w", "project/p", "estate"] {
        let g = Governed::new().await;
        g.admin(&["protection", "set", subject, "freeze"]);
        let row = g.swept();
        assert_eq!(row["outcome"]["reason"], "frozen", "{subject}: {row:#}");
        g.here.oracle("lake");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_dataset_gets_no_write() {
    let g = Governed::new().await;
    g.admin(&["block", "add", "table/ns/t", "--reason", "a migration"]);
    assert_eq!(g.swept()["outcome"]["reason"], "blocked");
    g.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn deregistered_dataset_gets_no_write() {
    let g = Governed::new().await;
    std::fs::write(g.here.path("lake/ns/t/.lance-deregistered"), b"").expect("written");
    assert_eq!(g.swept()["outcome"]["reason"], "deregistered");
    g.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn opted_out_dataset_gets_no_write() {
    let g = Governed::new().await;
    let lake = lake();
    let mut sample =
        squire_lake::sample::Sample::open(&lake, &g.here.uri("lake/ns/t"), Default::default()).await.expect("opened");
    sample.config(&[("squire.maintain", "off")]).await.expect("set");
    assert_eq!(g.swept()["outcome"]["reason"], "opted_out");
    g.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_dataset_gets_no_write_until_then() {
    let g = Governed::new().await;
    let uri = g.here.uri("lake/ns/t");
    let mut sample = squire_lake::sample::Sample::open(&lake(), &uri, Default::default()).await.expect("opened");
    sample.config(&[("squire.pause_until", "2999-01-01T00:00:00Z")]).await.expect("set");
    assert_eq!(g.swept()["outcome"]["reason"], "opted_out");
    sample.config(&[("squire.pause_until", "2001-01-01T00:00:00Z")]).await.expect("set");
    let planned = report(&["plan", &g.here.text("lake")]);
    assert_eq!(row(&planned, "ns/t")["outcome"]["kind"], "planned", "{planned:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deactivated_warehouse_gets_no_write() {
    let g = Governed::new().await;
    g.admin(&["warehouse", "deactivate", "w"]);
    assert_eq!(g.swept()["outcome"]["reason"], "warehouse_inactive");
    g.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_freeze_is_not_taken_for_none() {
    let g = Governed::new().await;
    g.admin(&["protection", "set", "table/ns/t", "freeze"]);
    let records = tree(&g.here.path("lake/_squire/v1/protection"));
    std::fs::write(&records[0].0, b"{ not json").expect("written");
    let row = g.swept();
    assert_eq!(row["outcome"]["reason"], "registry_unreadable", "{row:#}");
    g.here.oracle("lake");
}

/// What happens between a plan and its commits, with the very plan and apply of the command.
async fn meanwhile(
    g: &Governed,
    after: &str,
    act: impl Fn() + Send + Sync + 'static,
) -> squire_maintenance::apply::Applied {
    use squire_maintenance::{apply::Tools, driver, estate};
    let roots = [g.here.text("lake")];
    let config = squire_service::config::Loader::<squire_registry::Policy, squire_registry::Floors>::new(1)
        .directory(g.here.path(""))
        .env(Vec::<(String, String)>::new())
        .load()
        .expect("the defaults");
    let open = estate::Estate::open(config, &roots, squire_service::clock::Clock::system(), Default::default());
    let mut estate = open.await.expect("opened");
    let settings = estate.settings(false, squire_maintenance::plan::Steps::ALL, false, None);
    let planned = driver::plan_estate(&estate, &Default::default(), &settings, None).await;
    let registry = estate.writable().await.expect("a registry");
    let after = after.to_string();
    if after.is_empty() {
        act();
    }
    let tools = Tools {
        estate,
        registry,
        settings,
        rates: Default::default(),
        shutdown: squire_service::shutdown::Shutdown::manual(),
        graph: planned.graph.clone(),
        progress: std::sync::Arc::new(move |text: &str| {
            if !after.is_empty() && text.contains(&after) {
                act();
            }
        }),
        admission: squire_maintenance::memory::Admission::new(1 << 40),
        prepared: Default::default(),
    };
    let mut applied = driver::apply_estate(&tools, &planned).await;
    applied.remove(&g.here.uri("lake/ns/t")).expect("applied").0
}

fn freeze(g: &Governed) -> impl Fn() + Send + Sync + 'static {
    let at = format!("--registry={}/_squire", g.here.text("lake"));
    move || assert_ok(&registry(&["protection", "set", "table/ns/t", "freeze", &at]), "freeze")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_between_plan_and_apply_stops_every_write() {
    let g = Governed::new().await;
    let before = dataset_tree(&g.here.path("lake/ns"));
    let touched = || g.here.path("lake/ns/t/data").metadata().and_then(|m| m.modified()).expect("a time");
    let data = touched();
    let applied = meanwhile(&g, "", freeze(&g)).await;
    assert_eq!(applied.skipped.map(|s| s.reason.as_str()), Some("frozen"));
    assert_eq!(touched(), data, "nothing was written and taken away again");
    assert_eq!(dataset_tree(&g.here.path("lake/ns")), before);
    g.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_that_arrives_during_the_pass_stops_the_next_commit() {
    let g = Governed::new().await;
    let lake = lake();
    let mut sample =
        squire_lake::sample::Sample::open(&lake, &g.here.uri("lake/ns/t"), Default::default()).await.expect("opened");
    sample.index(squire_lake::sample::SampleIndex::BTree).await.expect("indexed");
    for i in 0..4 {
        sample.write(10, 1_000 + i * 10).await.expect("written");
    }
    let head = sample.version();
    // The fold is the first commit; the freeze comes right after it, before the compaction.
    let applied = meanwhile(&g, "folded", freeze(&g)).await;
    assert_eq!(applied.commits.len(), 1, "{applied:?}");
    let planned = report(&["plan", &g.here.text("lake")]);
    assert_eq!(row(&planned, "ns/t")["before"]["version"], head + 1, "no version came after the freeze");
    g.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_drop_or_block_is_not_taken_for_none() {
    for (args, collection) in [
        (vec!["table", "drop", "table/ns/t"], "trash"),
        (vec!["block", "add", "table/ns/t", "--reason", "a migration"], "blocks"),
    ] {
        let g = Governed::new().await;
        g.admin(&args);
        for (path, _) in tree(&g.here.path(&format!("lake/_squire/v1/{collection}"))) {
            std::fs::write(path, b"{ not json").expect("written");
        }
        let row = g.swept();
        assert_eq!(row["outcome"]["reason"], "registry_unreadable", "{collection}: {row:#}");
        g.here.oracle("lake");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_unreadable_record_stops_only_what_destroys() {
    let g = Governed::new().await;
    for (path, _) in tree(&g.here.path("lake/_squire/v1/namespaces")) {
        std::fs::write(path, b"{ not json").expect("written");
    }
    wait_until_older(&g.here.path("lake/ns"), std::time::Duration::from_millis(1_200));
    let planned = short_retention("plan", &g.here, &[]);
    let steps = &row(&planned, "ns/t")["steps"];
    assert_eq!(
        (&steps["compact"]["outcome"], &steps["cleanup"]["reason"]),
        (&"planned".into(), &"references_incomplete".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_a_reader_needs_stays() {
    let g = Governed::new().await;
    g.admin(&["block", "add", "table/ns/t", "--reason", "a training run", "--version", "2"]);
    wait_until_older(&g.here.path("lake/ns"), std::time::Duration::from_millis(1_200));
    let swept = short_retention("sweep", &g.here, &["--yes"]);
    let cleanup = &row(&swept, "ns/t")["steps"]["cleanup"];
    assert_eq!(cleanup["versions_removed"], 3, "1, 3 and 4 go: {cleanup:#}");
    let ids = squire_lake::sample::Sample::ids(&lake(), &g.here.uri("lake/ns/t"), Some(2)).await;
    assert_eq!(ids.expect("the reader's version reads").len(), 20);
    g.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warehouse_that_others_read_loses_no_version() {
    let here = Here::new();
    here.table("lake/t", 6, 10).await;
    let root = here.text("lake");
    let at = format!("--registry={root}/_squire");
    assert_ok(&registry(&["init", &format!("{root}/_squire"), "--name", "n"]), "init");
    assert_ok(&registry(&["project", "create", "p", &at]), "project");
    let warehouse = ["warehouse", "create", "w", "--project", "p", "--root", &root, "--not-exclusive", &at];
    assert_ok(&registry(&warehouse), "warehouse");
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let planned = short_retention("plan", &here, &[]);
    assert_eq!(row(&planned, "lake/t")["steps"]["cleanup"]["reason"], "not_exclusive", "{planned:#}");
}

/// A hold, a freeze and a reader's block that arrive while versions go: the chunk at work ends, the next is not begun.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_filed_during_a_clean_up_stops_the_next_chunk() {
    let acts: [&[&str]; 3] = [
        &["protection", "set", "table/ns/t", "keep-history"],
        &["protection", "set", "table/ns/t", "freeze"],
        &["block", "add", "table/ns/t", "--reason", "a training run", "--version", "104"],
    ];
    for act in acts {
        let g = Governed::new().await;
        let uri = g.here.uri("lake/ns/t");
        let mut sample = squire_lake::sample::Sample::open(&lake(), &uri, Default::default()).await.expect("opened");
        for i in 0..104 {
            sample.write(1, 1_000 + i).await.expect("written");
        }
        super::replaced_at::age(&g.here, "lake/ns/t", 30 * 86_400);
        let mut args: Vec<String> = act.iter().map(|s| (*s).to_string()).collect();
        args.push(format!("--registry={}/_squire", g.here.text("lake")));
        let applied = meanwhile(&g, "versions removed", move || assert_ok(&registry(&args), "filed")).await;
        let cleaned = applied.cleaned.expect("it began");
        assert_eq!(cleaned.versions.len(), 100, "{act:?}: {cleaned:?}");
        assert!(cleaned.stopped.is_some(), "{act:?}");
        let ids = squire_lake::sample::Sample::ids(&lake(), &uri, Some(104)).await;
        assert_eq!(ids.expect("it reads").len(), 158, "{act:?}");
        g.here.oracle("lake");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failed_verification_nothing_is_cleaned_and_a_block_is_filed() {
    let g = Governed::new().await;
    super::replaced_at::age(&g.here, "lake/ns/t", 30 * 86_400);
    // Version 7, just before the rewrite, now answers with ten rows: the rewrite seems to have made fifty out of nothing.
    let before = g.here.manifest("lake/ns/t", 7);
    let applied = meanwhile(&g, "fragments became", move || {
        squire_lake::sample::lose_fragments(&before).expect("changed");
    });
    let applied = applied.await;
    assert_eq!(applied.failures["verify"].0.as_str(), "verify", "{applied:?}");
    let verdict = applied.cleanup_verdict.expect("a verdict");
    assert_eq!(verdict.reason.map(|r| r.as_str()), Some("verify_failed"));
    assert!(applied.cleaned.is_none());
    let planned = report(&["plan", &g.here.text("lake")]);
    assert_eq!(row(&planned, "ns/t")["outcome"]["reason"], "blocked", "{planned:#}");
    g.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_lost_during_the_pass_removes_no_version() {
    let g = Governed::new().await;
    super::replaced_at::age(&g.here, "lake/ns/t", 30 * 86_400);
    let marker = g.here.path("lake/.squire-estate");
    let applied = meanwhile(&g, "fragments became", move || {
        assert!(marker.exists(), "the root is marked before the first commit");
        std::fs::write(&marker, "00000000-0000-4000-8000-000000000000").expect("another estate's");
    });
    let applied = applied.await;
    let verdict = applied.cleanup_verdict.expect("a verdict");
    assert_eq!(verdict.reason.map(|r| r.as_str()), Some("registry_lost"));
    assert!(applied.cleaned.is_none());
    g.here.oracle("lake");
}
