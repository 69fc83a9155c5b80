//! The pass in this process, on a lake whose store fails, panics or is raced at a chosen request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use squire_lake::Lake;
use squire_lake::faults::{Fault, Faults, Operation};
use squire_lake::sample::{Sample, SampleIndex};
use squire_maintenance::apply::{Applied, Tools};
use squire_maintenance::driver;
use squire_maintenance::estate::Estate;
use squire_maintenance::plan::Steps;
use squire_service::report::Dataset;

use super::common::*;

type Rule = Arc<dyn Fn(Operation, &str) -> Fault + Send + Sync>;

/// A lake with a `bad` and a `good` table; requests for `bad` go by the armed rule.
struct Inside {
    here: Here,
    rule: Arc<Mutex<Option<Rule>>>,
    steps: Steps,
    /// One at a time: a panic anywhere in the process makes a bug of every failure it falls into.
    _alone: tokio::sync::MutexGuard<'static, ()>,
}

static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// What one sweep came to.
struct Swept {
    rows: Vec<Dataset>,
    applied: HashMap<String, (Applied, f64)>,
    new_session: bool,
}

impl Swept {
    fn row(&self, end: &str) -> &Dataset {
        self.rows.iter().find(|d| d.uri.ends_with(end)).expect("a row")
    }

    /// `failed(kind)`, `maintained`…
    fn outcome(&self, end: &str) -> String {
        let outcome = &self.row(end).outcome;
        match outcome.failure() {
            Some(kind) => format!("failed({})", kind.as_str()),
            None => serde_json::to_value(outcome).expect("JSON")["kind"].as_str().expect("a kind").to_string(),
        }
    }
}

impl Inside {
    /// Six appends each. With `indexed`, `bad` has an index over all of it; with `lagging`, rows after the index.
    async fn new(steps: Steps, indexed: bool, lagging: bool) -> Self {
        let alone = ALONE.lock().await;
        let here = Here::new();
        let mut bad = here.table("lake/bad", 5, 20).await;
        if indexed {
            bad.index(SampleIndex::BTree).await.expect("indexed");
        }
        if lagging || !indexed {
            bad.write(20, 100).await.expect("written");
        }
        here.table("lake/good", 6, 20).await;
        Self { here, rule: Arc::default(), steps, _alone: alone }
    }

    fn arm(&self, rule: impl Fn(Operation, &str) -> Fault + Send + Sync + 'static) {
        *self.rule.lock().expect("not poisoned") = Some(Arc::new(rule));
    }

    fn disarm(&self) {
        *self.rule.lock().expect("not poisoned") = None;
    }

    fn lake(&self) -> Lake {
        let rule = self.rule.clone();
        let faults = Faults::new(move |operation, path| {
            // Not held while the rule works: a rule may write to the lake itself.
            let armed = rule.lock().map(|r| r.clone()).unwrap_or_default();
            match armed {
                Some(rule) if path.ends_with("lake/bad") || path.contains("lake/bad/") => rule(operation, path),
                _ => Fault::Pass,
            }
        });
        Lake::with_faults(Arc::new(|_: &str| HashMap::new()), 256 << 20, faults)
    }

    async fn estate(&self) -> Estate {
        let env = [
            ("SQUIRE_FLOORS__RETENTION", "1s"),
            ("SQUIRE_POLICY__RETENTION", "1s"),
            ("SQUIRE_POLICY__RETAIN_VERSIONS", "2"),
        ];
        let config = squire_service::config::Loader::<squire_registry::Policy, squire_registry::Floors>::new(1)
            .directory(self.here.path(""))
            .env(env.map(|(k, v)| (k.to_string(), v.to_string())).to_vec())
            .load()
            .expect("a config");
        let roots = [self.here.text("lake")];
        let clock = squire_service::clock::Clock::system();
        let mut estate = Estate::open(config, &roots, clock, Default::default()).await.expect("opened");
        estate.lake = self.lake();
        estate
    }

    /// Plans and applies, as the command does. A library that hangs after a fault would be a failure of its own.
    async fn sweep(&self) -> Swept {
        let work = async {
            let mut estate = self.estate().await;
            let session = estate.lake.session();
            let settings = estate.settings(false, self.steps, false, None);
            let planned = driver::plan_estate(&estate, &Default::default(), &settings, None).await;
            let registry = estate.writable().await.expect("a registry");
            registry.run_open(run_record(&estate, &registry)).await.expect("a run");
            let tools = Tools {
                estate: estate.clone(),
                registry,
                settings,
                rates: Default::default(),
                shutdown: squire_service::shutdown::Shutdown::manual(),
                graph: planned.graph.clone(),
                progress: Arc::new(|_: &str| {}),
                admission: squire_maintenance::memory::Admission::new(1 << 40),
                prepared: Default::default(),
            };
            let applied = driver::apply_estate(&tools, &planned).await;
            let rows = driver::datasets(&estate, &planned, &applied);
            Swept { rows, applied, new_session: !Arc::ptr_eq(&session, &estate.lake.session()) }
        };
        tokio::time::timeout(Duration::from_secs(120), work).await.expect("the sweep hangs")
    }

    /// All ids of `bad`, read without faults.
    async fn ids(&self) -> Vec<i64> {
        Sample::ids(&lake(), &self.here.uri("lake/bad"), None).await.expect("it reads")
    }

    async fn append(&self, start: i64) {
        let uri = self.here.uri("lake/bad");
        let mut sample = Sample::open(&lake(), &uri, Default::default()).await.expect("opened");
        sample.write(20, start).await.expect("written");
    }

    async fn is_claimed(&self) -> bool {
        let at = self.here.uri("lake/_squire");
        let registry = squire_registry::Registry::open(&at, &Default::default()).await.expect("a registry");
        registry.claimed_by(&self.here.uri("lake/bad")).await.expect("read").is_some()
    }
}

pub fn run_record(estate: &Estate, registry: &squire_registry::Registry) -> squire_registry::RunRecord {
    squire_registry::RunRecord {
        run: estate.run,
        kind: "sweep".into(),
        estate: registry.id(),
        started_at: estate.now(),
        command: "a test".into(),
        actor: registry.actor().clone(),
        tool_version: "test".into(),
        mode: "maintain".into(),
        config_digest: None,
        plan_digest: None,
        live: estate.snapshot.live_counts(),
        outcome: None,
    }
}

fn only(operation: Operation, part: &'static str) -> impl Fn(Operation, &str) -> bool + Send + Sync + 'static {
    move |asked, path| asked == operation && path.contains(part)
}

const COMPACT: Steps = Steps { compact: true, optimize_indices: false, cleanup: false };
const FOLD: Steps = Steps { compact: false, optimize_indices: true, cleanup: false };
const CLEAN: Steps = Steps { compact: false, optimize_indices: false, cleanup: true };

/// The library panics at one step of a pass over `bad`.
async fn panics_at(step: &str, inside: Inside, when: impl Fn(Operation, &str) -> bool + Send + Sync + 'static) {
    wait_until_older(&inside.here.path("lake"), Duration::from_millis(1_200));
    let before = inside.ids().await;
    inside.arm(move |operation, path| if when(operation, path) { Fault::Panic } else { Fault::Pass });
    let swept = inside.sweep().await;
    let detail = format!("{step}: {:?}", swept.row("lake/bad").outcome);
    assert_eq!(swept.outcome("lake/bad"), "failed(bug)", "{detail}");
    let good = swept.row("lake/good");
    assert!(good.outcome.failure().is_none(), "{step}: {:?}", good.outcome);
    assert!(swept.new_session, "{step}: the shared session is replaced");
    assert!(!inside.is_claimed().await, "{step}: the claim is released");
    assert_eq!(inside.ids().await, before, "{step}");

    // At the same HEAD it is not tried again, not even without the fault.
    inside.disarm();
    if step != "look" {
        let tree = dataset_tree(&inside.here.path("lake/bad"));
        let again = inside.sweep().await;
        // After the rewrite nothing is left to do but to verify, and that is done now.
        let wanted = if step == "verify" { "maintained" } else { "failed(bug)" };
        assert_eq!(again.outcome("lake/bad"), wanted, "{step}: {:?}", again.row("lake/bad").outcome);
        assert_eq!(dataset_tree(&inside.here.path("lake/bad")), tree, "{step}: it was tried again");
    }
    // Somebody writes, HEAD moves, and the next sweep does all of it.
    inside.append(5_000).await;
    inside.append(6_000).await;
    wait_until_older(&inside.here.path("lake"), Duration::from_millis(1_200));
    let last = inside.sweep().await;
    assert_eq!(last.outcome("lake/bad"), "maintained", "{step}: {:?}", last.row("lake/bad").outcome);
    assert_eq!(inside.ids().await.len(), before.len() + 40, "{step}");
    // What a panic cut short may lie about, and is named.
    inside.here.oracle_with("lake/bad", Leftovers::Explained, &[]);
    inside.here.oracle("lake/good");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_look_stays_with_its_dataset() {
    panics_at("look", Inside::new(COMPACT, false, false).await, |op, path| {
        op == Operation::List && path.ends_with("lake/bad")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_rewrite_stays_with_its_dataset() {
    panics_at("compact", Inside::new(COMPACT, false, false).await, only(Operation::Put, "/data/")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_remap_stays_with_its_dataset() {
    panics_at("remap", Inside::new(COMPACT, true, false).await, only(Operation::Put, "/_indices/")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_fold_stays_with_its_dataset() {
    panics_at("fold", Inside::new(FOLD, true, true).await, only(Operation::Put, "/_indices/")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_commit_stays_with_its_dataset() {
    panics_at("commit", Inside::new(COMPACT, false, false).await, only(Operation::Put, "/_versions/")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_verification_stays_with_its_dataset() {
    // The second manifest is the rewrite; whoever reads data after it verifies.
    let manifests = Arc::new(Mutex::new(0));
    panics_at("verify", Inside::new(COMPACT, false, false).await, move |op, path| {
        let mut seen = manifests.lock().expect("not poisoned");
        *seen += u32::from(op == Operation::Put && path.ends_with(".manifest"));
        *seen >= 2 && op == Operation::Get && path.contains("/data/")
    })
    .await;
}

/// The rewrite landed and could not be compared: the version before it stays until it was, though retention is long over.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_cleaned_before_a_commit_is_verified_after_all() {
    let mut inside = Inside::new(COMPACT, false, false).await;
    let manifests = Arc::new(Mutex::new(0));
    inside.arm(move |op, path| {
        let mut seen = manifests.lock().expect("not poisoned");
        *seen += u32::from(op == Operation::Put && path.ends_with(".manifest"));
        match *seen >= 2 && op == Operation::Get && path.contains("/data/") {
            true => Fault::Fail(std::io::ErrorKind::TimedOut),
            false => Fault::Pass,
        }
    });
    let swept = inside.sweep().await;
    assert!(swept.outcome("lake/bad").starts_with("failed("), "{}", swept.outcome("lake/bad"));
    let applied = &swept.applied[&inside.here.uri("lake/bad")].0;
    assert_eq!(applied.unverified.len(), 1, "{applied:?}");
    let before = applied.unverified[0].before;
    wait_until_older(&inside.here.path("lake"), Duration::from_millis(1_200));
    // It still cannot be read: nothing goes.
    inside.steps = squire_maintenance::plan::Steps::ALL;
    inside.arm(|op, path| match op == Operation::Get && path.contains("/data/") {
        true => Fault::Fail(std::io::ErrorKind::TimedOut),
        false => Fault::Pass,
    });
    inside.sweep().await;
    assert!(inside.here.manifest("lake/bad", before).exists(), "the version before an unverified commit went");
    // Verified now, and cleaned by the sweep after: what was refused in its plan is not done in its apply.
    inside.disarm();
    let verified = inside.sweep().await;
    assert!(!verified.outcome("lake/bad").starts_with("failed("), "{}", verified.outcome("lake/bad"));
    assert!(inside.here.manifest("lake/bad", before).exists());
    wait_until_older(&inside.here.path("lake"), Duration::from_millis(1_200));
    inside.sweep().await;
    assert!(!inside.here.manifest("lake/bad", before).exists(), "verified, it goes as any other");
    inside.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_clean_up_stays_with_its_dataset() {
    panics_at("cleanup", Inside::new(CLEAN, false, false).await, only(Operation::Delete, "lake/bad/")).await;
}

/// The first delete of a file panics: the versions that went before it are in the audit.
#[tokio::test(flavor = "multi_thread")]
async fn what_went_before_a_panic_is_recorded() {
    let inside = Inside::new(CLEAN, false, false).await;
    wait_until_older(&inside.here.path("lake"), Duration::from_millis(1_200));
    inside.arm(|op, path| match op == Operation::Delete && !path.contains("/_versions/") {
        true => Fault::Panic,
        false => Fault::Pass,
    });
    let swept = inside.sweep().await;
    assert_eq!(swept.outcome("lake/bad"), "failed(bug)");
    let applied = &swept.applied[&inside.here.uri("lake/bad")].0;
    let gone = applied.cleaned.as_ref().map(|c| c.versions.clone()).unwrap_or_default();
    assert!(!gone.is_empty(), "{applied:?}");
    let said = squire(&["history", &inside.here.text("lake/bad"), "-o", "json"]);
    let said: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    let recorded = said["entries"][0]["result"]["versions_removed"].as_array().map(Vec::len);
    assert_eq!(recorded, Some(gone.len()), "{said:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_pass_is_transient_and_tried_again() {
    let inside = Inside::new(COMPACT, false, false).await;
    let before = dataset_tree(&inside.here.path("lake/bad"));
    inside.arm(|op, path| match op == Operation::Put && path.contains("/data/") {
        true => Fault::Fail(std::io::ErrorKind::TimedOut),
        false => Fault::Pass,
    });
    let swept = inside.sweep().await;
    assert_eq!(swept.outcome("lake/bad"), "failed(transient)", "{:?}", swept.row("lake/bad").outcome);
    assert_eq!(swept.outcome("lake/good"), "maintained");
    assert_eq!(dataset_tree(&inside.here.path("lake/bad")), before);
    inside.disarm();
    let again = inside.sweep().await;
    assert_eq!(again.outcome("lake/bad"), "maintained", "{:?}", again.row("lake/bad").outcome);
    assert_eq!(inside.ids().await.len(), 120);
    inside.here.oracle("lake");
}

/// Indexes the fragments that are being rewritten, from another thread and with its own session.
fn index_meanwhile(uri: &str) {
    let uri = uri.to_string();
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut sample = Sample::open(&lake(), &uri, Default::default()).await.expect("opened");
            sample.index(SampleIndex::BTree).await.expect("indexed");
        });
    };
    std::thread::spawn(work).join().expect("it indexed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_race_lost_to_the_end_is_a_conflict_and_leaves_nothing_behind() {
    let inside = Inside::new(COMPACT, false, false).await;
    let uri = inside.here.uri("lake/bad");
    // Every rewrite is overtaken by an index over its own fragments.
    inside.arm(move |op, path| {
        if op == Operation::Put && path.contains("/data/") {
            index_meanwhile(&uri);
        }
        Fault::Pass
    });
    let swept = inside.sweep().await;
    assert_eq!(swept.outcome("lake/bad"), "failed(conflict)", "{:?}", swept.row("lake/bad").outcome);
    assert_eq!(swept.row("lake/bad").steps.compact.as_ref().map(|c| c.tasks), Some(0));
    assert_eq!(swept.outcome("lake/good"), "maintained");
    let applied = &swept.applied[&inside.here.uri("lake/bad")].0;
    assert_eq!(applied.stranded, 0, "the loss is proven, so the outputs are gone");
    let ids = inside.ids().await;
    assert_eq!(ids.len(), 120);
    assert_eq!(tree(&inside.here.path("lake/bad/data")).len(), 6, "six data files were written by somebody else");
    inside.disarm();
    let again = inside.sweep().await;
    assert_eq!(again.outcome("lake/bad"), "maintained");
    assert_eq!(inside.ids().await, ids);
    inside.here.oracle("lake");
}

/// It may have landed: deleting what it wrote would destroy HEAD.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_answer_is_lost_keeps_its_outputs() {
    let inside = Inside::new(COMPACT, false, false).await;
    let manifests = Mutex::new(0);
    inside.arm(move |op, path| {
        let mut seen = manifests.lock().expect("not poisoned");
        *seen += u32::from(op == Operation::Put && path.ends_with(".manifest"));
        // The rewrite's own: it lands, and nobody hears of it.
        match *seen == 2 && op == Operation::Put && path.ends_with(".manifest") {
            true => Fault::LoseAnswer(std::io::ErrorKind::TimedOut),
            false => Fault::Pass,
        }
    });
    let swept = inside.sweep().await;
    assert_eq!(inside.ids().await.len(), 120, "{:?}", swept.row("lake/bad").outcome);
    inside.disarm();
    let last = inside.sweep().await;
    assert!(matches!(last.outcome("lake/bad").as_str(), "idle" | "maintained"), "{:?}", last.row("lake/bad").outcome);
    assert_eq!(inside.ids().await.len(), 120);
    let look = squire_lake::look::look(&lake(), &inside.here.uri("lake/bad"), chrono::Utc::now()).await;
    let Ok(squire_lake::look::Looked::Dataset(look)) = look else { panic!("no dataset") };
    assert!(look.missing.is_empty(), "{:?}", look.missing);
    inside.here.oracle_with("lake", Leftovers::Explained, &[]);
}
