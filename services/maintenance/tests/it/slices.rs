//! One large compaction in slices: by two replicas on a real bus, and step by step in this process.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use squire_lake::LANCE_VERSION;
use squire_lake::compact;
use squire_lake::compact::stored::Slice;
use squire_lake::look::{Look, Looked, look};
use squire_lake::sample::{Sample, SampleIndex};
use squire_lake::stamp::Stamper;
use squire_maintenance::apply::slices::{self, Ended, Gathered, Landing};
use squire_maintenance::apply::{Applied, Tools};
use squire_maintenance::driver::{self, Case, Planned, PlannedEstate};
use squire_maintenance::estate::Estate;
use squire_maintenance::plan::Steps;
use squire_maintenance::state::{DatasetState, Distributed};
use squire_registry::{Level, Registry, Subject, WorkPart};
use squire_service::bus::data::SliceRequested;
use squire_service::bus::{Bus, Settings, Stream};
use squire_service::config;
use squire_service::telemetry::Metrics;
use squire_test_support::Nats;
use uuid::Uuid;

use super::common::*;

/// Twelve fragments of 20 rows, of which three make one: four tasks.
async fn lake_with_a_table() -> (Here, String) {
    let here = Here::new();
    here.table("lake/t.lance", 12, 20).await.index(SampleIndex::BTree).await.expect("indexed");
    let uri = here.uri("lake/t.lance");
    (here, uri)
}

pub(crate) async fn seen(uri: &str) -> Look {
    match look(&lake(), uri, chrono::Utc::now()).await.expect("a look") {
        Looked::Dataset(look) => *look,
        other => panic!("{other:?}"),
    }
}

/// Steps of a compaction in slices, without a bus.
pub(crate) struct Inside {
    pub(crate) here: Here,
    pub(crate) uri: String,
    pub(crate) tools: Tools,
    planned: PlannedEstate,
}

impl Inside {
    async fn new() -> Self {
        Self::with(&[("SQUIRE_POLICY__CLEANUP", "false")]).await
    }

    pub(crate) async fn with(env: &[(&str, &str)]) -> Self {
        let (here, uri) = lake_with_a_table().await;
        let env = [&[("SQUIRE_POLICY__TARGET_ROWS", "60")], env].concat();
        let config = squire_service::config::Loader::<squire_registry::Policy, squire_registry::Floors>::new(1)
            .directory(here.path(""))
            .env(env.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect::<Vec<_>>())
            .load()
            .expect("a config");
        let clock = squire_service::clock::Clock::system();
        let mut estate = Estate::open(config, &[here.text("lake")], clock, Default::default()).await.expect("opened");
        let settings = estate.settings(false, Steps::ALL, false, None);
        let registry = estate.writable().await.expect("a registry");
        let planned = driver::plan_estate(&estate, &Default::default(), &settings, None).await;
        let record = super::inside::run_record(&estate, &registry);
        registry.run_open(record).await.expect("a run");
        let tools = Tools {
            estate,
            registry,
            settings,
            rates: Default::default(),
            shutdown: squire_service::shutdown::Shutdown::manual(),
            graph: planned.graph.clone(),
            progress: Arc::new(|_: &str| {}),
            admission: squire_maintenance::memory::Admission::new(1 << 40),
            prepared: Default::default(),
        };
        Self { here, uri, tools, planned }
    }

    pub(crate) async fn plan(&self) -> Box<Planned> {
        let t = &self.tools;
        let candidate = driver::plan_dataset(&t.estate, &self.planned, &self.uri, &t.settings, false).await;
        let Case::Planned(p) = candidate.case else { panic!("it is not planned") };
        p
    }

    /// Four slices of one task each.
    async fn distribute(&self) -> Distributed {
        let p = self.plan().await;
        let d = driver::slices::distribute(&self.tools, &p, Uuid::now_v7(), 4).await.expect("handed out");
        assert_eq!(d.slices, 4);
        assert_eq!(self.state().await.and_then(|s| s.distributed), Some(d.clone()), "remembered");
        d
    }

    async fn state(&self) -> Option<DatasetState> {
        self.tools.registry.load_state([&self.uri]).await.expect("read").remove(&self.uri)
    }

    async fn execute(&self, d: &Distributed, n: u32) {
        let (registry, lake) = (&self.tools.registry, lake());
        let slice = slices::slice(registry, d.run, &self.uri, n).await.expect("read").expect("a slice");
        let came = slices::execute(&lake, &self.uri, &slice, false).await.expect("executed");
        slices::store(registry, &lake, d.run, (&self.uri, n), came).await.expect("stored");
    }

    async fn gather(&self, d: &Distributed) -> (Landing, Vec<String>) {
        match slices::gather(&self.tools.registry, d, &self.uri).await.expect("read") {
            Gathered::Landing(landing, lost) => (landing, lost),
            other => panic!("{other:?}"),
        }
    }

    async fn land(&self, landing: Landing) -> Applied {
        let mut p = self.plan().await;
        p.plan = slices::landing_plan(&p.plan, &p.layout, &landing);
        driver::slices::land(&self.tools, &p, landing).await
    }

    async fn ids(&self) -> Vec<i64> {
        Sample::ids(&lake(), &self.uri, None).await.expect("it reads")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_meanwhile_is_carried_over_and_somebody_elses_rewrite_costs_only_its_slice() {
    let inside = Inside::new().await;
    let d = inside.distribute().await;
    for n in 0..4 {
        inside.execute(&d, n).await;
    }
    let mut other = Sample::open(&lake(), &inside.uri, Default::default()).await.expect("opened");
    // Fragment 6 is gone, and 3 has lost two rows.
    other.delete("id in (60, 61) or id >= 120 and id < 140").await.expect("deleted");
    other.write(20, 5_000).await.expect("written");
    let (lake, head) = (lake(), Arc::new(lake().open(&inside.uri).await.expect("opened")));
    let slice = slices::slice(&inside.tools.registry, d.run, &inside.uri, 0).await.expect("read").expect("a slice");
    let theirs = compact::execute(&lake, &head, &[vec![0, 1]], &slice.settings).await;
    let theirs = theirs.into_iter().map(|d| d.expect("rewritten")).collect();
    let place = lake.place(&inside.uri).await.expect("a place");
    let stamper = Stamper { estate: Uuid::new_v4(), run: Uuid::now_v7() };
    compact::land(&lake, &place, &head, theirs, (&stamper, 1), &squire_lake::commit::nobody_to_ask)
        .await
        .map_err(|e| e.0)
        .expect("somebody else's");
    let (landing, lost) = inside.gather(&d).await;
    assert_eq!((landing.done.len(), lost.len()), (4, 0), "{lost:?}");
    let applied = inside.land(landing).await;
    assert!(applied.failures.is_empty() && applied.skipped.is_none(), "{applied:?}");
    assert_eq!((applied.compact.tasks, applied.compact.removed, applied.compact.added), (3, 9, 3));
    assert!(applied.stranded > 0, "the lost slice's files stay, and are said to");
    assert_eq!(applied.checks.as_ref().map(|c| c.rows), Some(238));
    let look = seen(&inside.uri).await;
    assert!(look.missing.is_empty(), "{:?}", look.missing);
    // What is left of the lost slice, what was appended and rewritten meanwhile, and three new ones.
    assert_eq!(look.fragments.iter().map(|f| f.deleted_rows).collect::<Vec<_>>(), [0, 0, 0, 2, 20, 0]);
    assert_eq!(inside.ids().await.len(), 238);
    assert_eq!(inside.state().await.expect("kept").distributed, None, "it is over");
    inside.here.oracle_with("lake", Leftovers::Explained, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_comes_twice_has_the_effect_of_once() {
    let inside = Inside::new().await;
    let d = inside.distribute().await;
    for n in [0, 1, 3] {
        inside.execute(&d, n).await;
    }
    let ended = slices::progress(&inside.tools.registry, &d, &inside.uri).await.expect("read").0;
    assert_eq!(ended, [0, 1, 3]);
    let (landing, lost) = inside.gather(&d).await;
    assert_eq!(lost, ["slice 2 has no result"]);
    let (again, _) = inside.gather(&d).await;
    let applied = inside.land(landing).await;
    assert_eq!((applied.compact.tasks, applied.commits.len()), (3, 1), "{applied:?}");
    let head = seen(&inside.uri).await.version();
    let applied = inside.land(again).await;
    assert!(applied.commits.is_empty() && applied.failures.is_empty(), "{applied:?}");
    assert_eq!(
        applied.stranded, 0,
        "its stamp says that these files are HEAD's, and not that a race for them was lost"
    );
    let look = seen(&inside.uri).await;
    assert_eq!((look.version(), look.fragments.len()), (head, 6));
    assert!(look.missing.is_empty(), "{:?}", look.missing);
    assert_eq!(inside.ids().await, (0..240).collect::<Vec<i64>>());
    // The last slice's worker is late: what it stores lies about, and is nobody's loss.
    inside.execute(&d, 2).await;
    inside.here.oracle_with("lake", Leftovers::Explained, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_results_of_a_slice_the_first_counts_and_the_other_leaves_no_file() {
    let inside = Inside::new().await;
    let d = inside.distribute().await;
    for n in 0..4 {
        inside.execute(&d, n).await;
    }
    let files = || tree(&inside.here.path("lake/t.lance/data")).len();
    assert_eq!(files(), 16);
    let before = slices::ended(&inside.tools.registry, d.run, &inside.uri, 1).await.expect("read");
    inside.execute(&d, 1).await;
    assert_eq!(files(), 16, "what nobody heard of is removed");
    let after = slices::ended(&inside.tools.registry, d.run, &inside.uri, 1).await.expect("read");
    assert!(matches!(after, Some(Ended::Done(_))) && before == after);
    let (landing, _) = inside.gather(&d).await;
    assert_eq!(inside.land(landing).await.compact.tasks, 4);
    assert_eq!(inside.ids().await, (0..240).collect::<Vec<i64>>());
    inside.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_between_slices_and_commit_gets_no_commit() {
    let inside = Inside::new().await;
    let d = inside.distribute().await;
    for n in 0..4 {
        inside.execute(&d, n).await;
    }
    let head = seen(&inside.uri).await.version();
    let subject = squire_registry::Subject::Dataset(inside.uri.clone());
    let mut p = inside.plan().await;
    inside.tools.registry.protect(&subject, squire_registry::Level::Freeze, Some("a test")).await.expect("set");
    let (landing, _) = inside.gather(&d).await;
    p.plan = slices::landing_plan(&p.plan, &p.layout, &landing);
    let applied = driver::slices::land(&inside.tools, &p, landing).await;
    assert_eq!(applied.skipped.map(|s| s.reason.as_str().to_string()).as_deref(), Some("frozen"));
    assert_eq!(seen(&inside.uri).await.version(), head);
    assert_eq!(inside.state().await.and_then(|s| s.distributed), Some(d), "it waits for the thaw");
}

/// Versions of a second ago may go, all but the newest two.
const SHORT: [(&str, &str); 3] =
    [("SQUIRE_FLOORS__RETENTION", "1s"), ("SQUIRE_POLICY__RETENTION", "1s"), ("SQUIRE_POLICY__RETAIN_VERSIONS", "2")];

#[tokio::test(flavor = "multi_thread")]
async fn old_versions_go_while_slices_are_in_work_and_what_the_slices_read_stays() {
    let inside = Inside::with(&SHORT).await;
    let d = inside.distribute().await;
    let mut other = Sample::open(&lake(), &inside.uri, Default::default()).await.expect("opened");
    for i in 0..3 {
        other.write(20, 5_000 + i * 20).await.expect("written");
    }
    wait_until_older(&inside.here.path("lake"), Duration::from_millis(1_200));
    let mut p = inside.plan().await;
    let going = |p: &Planned| p.plan.removal.versions.iter().map(|v| v.version).collect::<Vec<_>>();
    assert!(going(&p).contains(&d.read_version), "it is old enough: {:?}", going(&p));
    slices::beside(&mut p, &d);
    assert_eq!(going(&p), (1..d.read_version).collect::<Vec<_>>());
    let applied = driver::apply_one(&inside.tools, &p).await;
    assert!(applied.failures.is_empty() && applied.commits.is_empty(), "{applied:?}");
    assert_eq!(applied.cleaned.map(|c| c.versions.len() as u64), Some(d.read_version - 1));
    assert_eq!(inside.state().await.and_then(|s| s.distributed), Some(d.clone()), "the slices are still in work");
    for n in 0..4 {
        inside.execute(&d, n).await;
    }
    let (landing, lost) = inside.gather(&d).await;
    assert_eq!(lost, Vec::<String>::new());
    assert_eq!(inside.land(landing).await.compact.tasks, 4);
    assert_eq!(inside.state().await.expect("kept").distributed, None);
    assert_eq!(inside.ids().await.len(), 300);
    inside.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_landing_whose_process_died_before_its_record_is_verified_and_closed_by_the_next_message() {
    let inside = Inside::new().await;
    let d = inside.distribute().await;
    for n in 0..4 {
        inside.execute(&d, n).await;
    }
    let (landing, _) = inside.gather(&d).await;
    let (again, _) = inside.gather(&d).await;
    let before = inside.state().await.expect("a state");
    let head = inside.land(landing).await.commits.last().expect("a commit").version;
    // As a kill right after the commit leaves it: neither the audit nor the state has heard of it.
    let registry = &inside.tools.registry;
    let mut entry = registry.run_dataset(d.run, &inside.uri).await.expect("read").pop().expect("an attempt");
    entry.result = None;
    registry.run_dataset_opened(d.run, entry).await.expect("reopened");
    registry.save_state([(inside.uri.clone(), before)].into()).await.expect("saved");

    let p = inside.plan().await;
    assert_eq!(p.state.unverified.iter().map(|u| (u.before, u.after)).collect::<Vec<_>>(), [(head - 1, head)]);
    let applied = driver::slices::landed(&inside.tools, &p, &again).await;
    assert!(applied.failures.is_empty() && applied.skipped.is_none(), "{applied:?}");
    assert_eq!((applied.compact.tasks, applied.compact.removed, applied.compact.added), (4, 12, 4));
    assert!(applied.checks.as_ref().is_some_and(|c| c.sampled_rows > 0 && c.indices.len() == 1), "{applied:?}");
    let attempts = registry.run_dataset(d.run, &inside.uri).await.expect("read");
    let commits: Vec<(u64, bool)> =
        attempts.iter().flat_map(|a| &a.result).flat_map(|r| &r.commits).map(|c| (c.version, c.verified)).collect();
    assert_eq!(commits, [(head, true)], "its entry is closed");
    let state = inside.state().await.expect("kept");
    assert_eq!((state.distributed, state.accounted, state.unverified.len()), (None, Some(head), 0));
    assert_eq!(inside.plan().await.state.unverified.len(), 0, "once");
    assert_eq!(seen(&inside.uri).await.version(), head);
}

/// Replicas of one estate on one bus, stopped by their ids.
struct Fleet {
    here: Here,
    uri: String,
    config: PathBuf,
    replicas: Vec<Child>,
    nats: Nats,
}

impl Fleet {
    async fn new(test: &str) -> Option<Self> {
        let nats = Nats::start(test)?;
        let (here, uri) = lake_with_a_table().await;
        assert_ok(&registry(&["init", &here.text("control"), "--name", "sliced"]), "init");
        let config = here.path("squire.toml");
        let text = format!(
            "[estate]\nname = \"sliced\"\nroots = [{root:?}]\n[registry]\nroot = {control:?}\n\
             [policy]\ntarget_rows = 60\ncleanup = false\n[limits]\ndistribute_above = \"4B\"\n\
             [schedule]\nmaintenance = \"0 0 0 1 1 *\"\n[grace]\nclaim_ttl = \"10s\"\n\
             [bus]\nkind = \"nats\"\nurl = \"nats://127.0.0.1:{port}\"\nack_wait = \"2s\"\n\
             [http]\nlisten = \"127.0.0.1:0\"\n",
            root = here.text("lake"),
            control = here.text("control"),
            port = nats.port(),
        );
        std::fs::write(&config, text).expect("written");
        Some(Self { here, uri, config, replicas: Vec::new(), nats })
    }

    fn serve(&mut self, name: &str) {
        let log = std::fs::File::create(self.here.path(name)).expect("a log");
        let child = command(Path::new(env!("CARGO_BIN_EXE_squire-maintenance")))
            .args(["serve", "--log-format", "json", "--config"])
            .arg(&self.config)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it ran");
        self.replicas.push(child);
    }

    fn tick(&self) {
        let config = self.config.to_str().expect("UTF-8");
        let output = squire(&["tick", "maintenance", "--dataset", &self.uri, "--config", config]);
        assert_ok(&output, "tick");
    }

    fn logs(&self) -> String {
        ["a.log", "b.log"].iter().filter_map(|n| std::fs::read_to_string(self.here.path(n)).ok()).collect()
    }

    async fn registry(&self) -> Registry {
        Registry::open(&self.here.text("control"), &Default::default()).await.expect("a registry")
    }

    async fn bus(&self, registry: &Registry) -> Bus {
        let config = config::Bus {
            kind: config::BusKind::Nats,
            url: Some(format!("nats://127.0.0.1:{}", self.nats.port())),
            ..config::Bus::default()
        };
        let settings = Settings::of(&config, Duration::from_secs(10));
        Bus::open(&config, registry.name(), registry.id(), settings, Metrics::new()).await.expect("a bus")
    }

    async fn distributed(&self, registry: &Registry) -> Option<Distributed> {
        let state: Option<DatasetState> = registry.load_state([&self.uri]).await.expect("read").remove(&self.uri);
        state.and_then(|s| s.distributed)
    }

    /// Until HEAD has so many fragments and the compaction is over.
    async fn until_compacted(&self, fragments: usize) -> Look {
        let registry = self.registry().await;
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let look = seen(&self.uri).await;
            if look.fragments.len() == fragments && self.distributed(&registry).await.is_none() {
                return look;
            }
            assert!(Instant::now() < deadline, "{} fragments: {}", look.fragments.len(), self.logs());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn stop(&mut self) {
        for mut child in self.replicas.drain(..) {
            child.kill().expect("killed");
            child.wait().expect("waited");
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_share_a_compaction_and_one_commits_it_once() {
    let test = "two_replicas_share_a_compaction_and_one_commits_it_once";
    let Some(mut fleet) = Fleet::new(test).await else { return };
    let before = seen(&fleet.uri).await.version();
    fleet.serve("a.log");
    fleet.serve("b.log");
    fleet.tick();
    let look = fleet.until_compacted(4).await;
    // Reserve and rewrite: one commit for all four slices, although the index was remapped for each of them.
    assert_eq!(look.version(), before + 2, "{}", fleet.logs());
    assert!(look.missing.is_empty(), "{:?}", look.missing);
    let stamps: Vec<String> = look
        .versions()
        .into_iter()
        .filter(|(_, m)| m.version > before)
        .filter_map(|(_, m)| m.stamp.as_ref().map(|s| s.step.clone()))
        .collect();
    assert_eq!(stamps, ["reserve", "compact"]);
    let unindexed: u64 = look.indices.iter().map(|i| i.unindexed_rows).sum();
    assert_eq!(unindexed, 0, "the index covers what was rewritten");
    assert_eq!(Sample::ids(&lake(), &fleet.uri, None).await.expect("read"), (0..240).collect::<Vec<i64>>());
    let logs = fleet.logs();
    assert_eq!(logs.matches("a slice has ended").count(), 4, "{logs}");
    assert_eq!(logs.matches("was handed out in slices").count(), 1, "{logs}");
    fleet.stop();
    fleet.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_worker_costs_its_slice_and_no_more() {
    let Some(mut fleet) = Fleet::new("a_dead_worker_costs_its_slice_and_no_more").await else { return };
    fleet.serve("a.log");
    fleet.tick();
    let registry = fleet.registry().await;
    let deadline = Instant::now() + Duration::from_secs(60);
    // Killed at its first result, with the other three slices on the bus or in its hands.
    loop {
        if let Some(d) = fleet.distributed(&registry).await
            && !slices::progress(&registry, &d, &fleet.uri).await.expect("read").0.is_empty()
        {
            break;
        }
        assert!(Instant::now() < deadline, "no slice has ended: {}", fleet.logs());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fleet.stop();
    fleet.serve("b.log");
    let look = fleet.until_compacted(4).await;
    assert!(look.missing.is_empty(), "{:?}", look.missing);
    assert_eq!(Sample::ids(&lake(), &fleet.uri, None).await.expect("read"), (0..240).collect::<Vec<i64>>());
    fleet.stop();
    fleet.here.oracle_with("lake", Leftovers::Explained, &[]);
}

/// Hands a whole table out as one slice, as a replica of that Lance version would have done it then.
async fn handed_out(registry: &Registry, uri: &str, lance: &str, hours_ago: i64) -> Distributed {
    let look = seen(uri).await;
    let ids: Vec<Vec<u64>> = vec![look.fragments.iter().map(|f| f.id).collect()];
    let settings = squire_lake::compact::Settings {
        target_rows: 1_000,
        widest_row_bytes: 100,
        concurrency: 1,
        table_config: Default::default(),
    };
    let slice = Slice::of(look.dataset.as_deref().expect("opened"), &ids, &settings).expect("named");
    let bytes = serde_json::to_vec(&Slice { lance: lance.into(), ..slice }).expect("JSON");
    let at = chrono::Utc::now() - chrono::Duration::hours(hours_ago);
    let d = Distributed { run: Uuid::now_v7(), asked_by: Uuid::now_v7(), at, read_version: look.version(), slices: 1 };
    assert!(registry.work_put(d.run, uri, WorkPart::Slice(0), "0", bytes.into()).await.expect("put"));
    let state = DatasetState { distributed: Some(d.clone()), ..DatasetState::default() };
    registry.save_state([(uri.to_string(), state)].into()).await.expect("saved");
    d
}

/// A slice's message carries names. What it names may be another Lance version's, given up long ago, frozen by now, or no dataset of
/// the estate: then nothing of it is executed.
#[tokio::test(flavor = "multi_thread")]
async fn a_slice_that_is_not_to_be_executed_writes_nothing() {
    let Some(mut fleet) = Fleet::new("a_slice_that_is_not_to_be_executed_writes_nothing").await else { return };
    let registry = fleet.registry().await;
    let names = ["lake/other", "lake/late", "lake/frozen", "elsewhere/stranger", "lake/good"];
    let mut handed = Vec::new();
    for name in names {
        fleet.here.table(name, 3, 20).await;
        let uri = fleet.here.uri(name);
        let lance = if name == "lake/other" { "13.0.0" } else { LANCE_VERSION };
        let d = handed_out(&registry, &uri, lance, if name == "lake/late" { 25 } else { 0 }).await;
        handed.push((uri, d));
    }
    let subject = Subject::Dataset(handed[2].0.clone());
    registry.protect(&subject, Level::Freeze, Some("a test")).await.expect("set");
    let folders = names.map(|name| fleet.here.path(name).join("data"));
    let before = folders.each_ref().map(|folder| tree(folder));
    let bus = fleet.bus(&registry).await;
    for (uri, d) in &handed {
        bus.request_slice(&SliceRequested { run: d.run, uri: uri.clone(), slice: 0 }).await.expect("asked");
    }
    fleet.serve("a.log");
    // One worker takes slices in their order, and this was the last.
    let deadline = Instant::now() + Duration::from_secs(60);
    let ended = async |n: usize| slices::ended(&registry, handed[n].1.run, &handed[n].0, 0).await.expect("read");
    while ended(4).await.is_none() || bus.depth(Stream::Work).await.map_or(0, |d| d.pending + d.in_flight) > 1 {
        assert!(Instant::now() < deadline, "the last slice has not ended: {}", fleet.logs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for n in [0, 1, 3] {
        assert_eq!(ended(n).await, None, "{}", names[n]);
    }
    let refused = ended(2).await;
    assert!(matches!(&refused, Some(Ended::Failed { detail, .. }) if detail.contains("frozen")), "{refused:?}");
    for n in 0..4 {
        assert_eq!(tree(&folders[n]), before[n], "{}", names[n]);
    }
    // The other version's waits for a process of that version.
    let depth = bus.depth(Stream::Work).await.expect("asked");
    assert_eq!(depth.pending + depth.in_flight, 1, "{}", fleet.logs());
    fleet.stop();
}

/// Lance's serialised results are no wire format: one that another version stored waits for it, and nothing is landed.
#[tokio::test(flavor = "multi_thread")]
async fn results_of_another_lance_version_are_left_to_it() {
    let inside = Inside::new().await;
    let d = inside.distribute().await;
    let (registry, lake) = (&inside.tools.registry, lake());
    let slice = slices::slice(registry, d.run, &inside.uri, 2).await.expect("read").expect("a slice");
    let (ended, done) = slices::execute(&lake, &inside.uri, &slice, false).await.expect("executed");
    let mut other = serde_json::to_value(&ended).expect("JSON");
    assert_eq!(other["done"]["lance"], LANCE_VERSION);
    other["done"]["lance"] = "13.0.0".into();
    let other: Ended = serde_json::from_value(other).expect("read");
    slices::store(registry, &lake, d.run, (&inside.uri, 2), (other, done)).await.expect("stored");
    for n in [0, 1, 3] {
        inside.execute(&d, n).await;
    }
    match slices::gather(registry, &d, &inside.uri).await.expect("read") {
        Gathered::OtherLance(version) => assert_eq!(version, "13.0.0"),
        landing => panic!("{landing:?}"),
    }
}
