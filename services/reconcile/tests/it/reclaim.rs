//! `reclaim` on real Lance files: by a plan, to quarantine and back, for good after its grace; and every refusal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use squire_lake::sample::{Columns, Sample, SampleIndex};
use squire_service::planfile::{PlanFile, PlanKind};

use super::output;

const DAY: u64 = 86_400;

/// A lake with a registry and one table that has an orphan, a young file and a foreign one.
pub(super) struct Estate {
    pub(super) dir: tempfile::TempDir,
}

pub(super) type Tree = BTreeMap<PathBuf, Vec<u8>>;

impl Estate {
    pub(super) fn empty() -> Self {
        let out = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(out.path("lake")).unwrap();
        out.admin(&["init", &out.text("lake/_squire")]);
        out
    }

    pub(super) async fn new() -> Self {
        let out = Self::empty();
        out.table("lake/orders", 3).await;
        out.orphan("lake/orders/data/one.lance");
        out.orphan("lake/orders/_indices/0a0b0c0d-0000-4000-8000-000000000001/page.lance");
        std::fs::write(out.path("lake/orders/data/young.lance"), "somebody may name me soon").unwrap();
        std::fs::create_dir(out.path("lake/orders/media")).unwrap();
        std::fs::write(out.path("lake/orders/media/cat.png"), "a cat").unwrap();
        out
    }

    pub(super) fn path(&self, rel: &str) -> PathBuf {
        self.dir.path().join(rel)
    }

    pub(super) fn text(&self, rel: &str) -> String {
        self.path(rel).to_str().unwrap().to_owned()
    }

    pub(super) fn uri(&self, rel: &str) -> String {
        squire_lake::uri::canonical(&self.text(rel)).unwrap()
    }

    pub(super) async fn table(&self, rel: &str, fragments: i64) -> Sample {
        std::fs::create_dir_all(self.path(rel).parent().unwrap()).unwrap();
        let mut sample = Sample::new(self.uri(rel), Columns::default());
        for i in 0..fragments {
            sample.write(10, i * 10).await.unwrap();
        }
        sample
    }

    pub(super) fn orphan(&self, rel: &str) {
        let path = self.path(rel);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("nobody names {rel}")).unwrap();
        age(&path, 30);
    }

    pub(super) fn admin(&self, args: &[&str]) {
        let (code, said) = self.try_admin(args);
        assert_eq!(code, 0, "{args:?}: {said}");
    }

    pub(super) fn try_admin(&self, args: &[&str]) -> (i32, String) {
        let binary = assert_cmd::cargo::cargo_bin("squire-reconcile").with_file_name("squire-registry");
        let mut all = args.to_vec();
        let at = self.text("lake/_squire");
        if args[0] != "init" {
            all.extend(["--registry", &at]);
        }
        let out = std::process::Command::new(&binary).args(&all).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        (out.status.code().unwrap(), text)
    }

    /// `reclaim VERB …` with the lake's registry.
    pub(super) fn reclaim(&self, args: &[&str]) -> (i32, String, String) {
        let at = self.text("lake/_squire");
        let mut all = vec!["reclaim"];
        all.extend(args);
        if !args.contains(&"--registry") {
            all.extend(["--registry", &at]);
        }
        output(&self.dir, &all)
    }

    /// The JSON that a verb prints.
    pub(super) fn json(&self, args: &[&str]) -> (i32, Value) {
        let (code, out, err) = self.reclaim(&[args, &["-o", "json"]].concat());
        (code, serde_json::from_str(&out).unwrap_or_else(|e| panic!("{args:?}: {code}: {e}: {err}")))
    }

    /// Makes a plan of the lake; its id.
    pub(super) fn plan(&self) -> String {
        let (code, report) = self.json(&["plan", "lake", "--out", "plan.json"]);
        assert_eq!(code, 0, "{report:#}");
        self.plan_file().id.to_string()
    }

    pub(super) fn plan_file(&self) -> PlanFile<Value> {
        PlanFile::read_for(&self.path("plan.json"), PlanKind::Reclaim).unwrap()
    }

    pub(super) fn apply(&self) -> (i32, Value) {
        self.json(&["apply", "plan.json"])
    }

    /// Everything but the registry.
    pub(super) fn tree(&self) -> Tree {
        tree(&self.path("lake"))
    }

    /// Asserts that apply refuses with these words and exit code, and moves nothing.
    #[track_caller]
    fn refuses(&self, wanted: i32, says: &str, more: &[&str]) {
        let before = self.tree();
        let (code, out, err) = self.reclaim(&[&["apply", "plan.json"], more].concat());
        assert_eq!(code, wanted, "{says}: {out}{err}");
        assert!(out.contains(says) || err.contains(says), "{says}: {out}{err}");
        assert_eq!(self.tree(), before, "{says}: something was moved");
    }
}

fn age(path: &Path, days: u64) {
    let then = SystemTime::now() - Duration::from_secs(days * DAY);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
}

pub(super) fn age_all(dir: &Path, days: u64) {
    for path in tree(dir).keys() {
        age(&dir.join(path), days);
    }
}

/// Files with their bytes, relative; the registry, its marker and the probe's object left out.
pub(super) fn tree(dir: &Path) -> Tree {
    let (mut out, mut queue) = (Tree::new(), vec![dir.to_path_buf()]);
    while let Some(at) = queue.pop() {
        for entry in std::fs::read_dir(&at).unwrap().flatten() {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            if path.is_dir() {
                if name != "_squire" || path.parent() != Some(dir) {
                    queue.push(path);
                }
            } else if !name.starts_with(".squire-") {
                out.insert(path.strip_prefix(dir).unwrap().to_path_buf(), std::fs::read(&path).unwrap());
            }
        }
    }
    out
}

pub(super) fn row<'a>(report: &'a Value, end: &str) -> &'a Value {
    let rows = report["datasets"].as_array().unwrap();
    rows.iter().find(|d| d["uri"].as_str().unwrap().ends_with(end)).unwrap_or_else(|| panic!("{end}: {report:#}"))
}

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
    let (code, again) = estate.apply();
    assert_eq!(code, 0);
    assert!(
        row(&again, "/orders")["steps"]["cleanup"]["detail"].as_str().unwrap().contains("2 moved before"),
        "{again:#}"
    );

    let id = plan.id.to_string();
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
    let mut sample = estate.table("lake/orders", 2).await;
    sample.overwrite(5, 500).await.unwrap();
    let head = estate.path("lake/orders/_versions").join(format!("{:020}.manifest", u64::MAX - 3));
    let bytes = std::fs::read(&head).unwrap();
    std::fs::remove_file(&head).unwrap();
    age_all(&estate.path("lake/orders/data"), 30);
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

pub(super) fn lake() -> squire_lake::Lake {
    squire_lake::Lake::new(std::sync::Arc::new(|_: &str| std::collections::HashMap::new()), 256 << 20)
}

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

fn percent(uri: &str) -> String {
    // What a shell would not touch stays as it is: the subject's own spelling.
    uri.bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'/' | b':' => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        })
        .collect()
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

fn copy_all(from: &Path, to: &Path) {
    for (path, bytes) in tree(from) {
        let at = to.join(path);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, bytes).unwrap();
    }
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

/// A lake with a table that was dropped and whose grace is over, and one that is live.
pub(super) async fn with_a_dropped_table() -> Estate {
    let estate = Estate::empty();
    let root = estate.text("lake");
    estate.admin(&["project", "create", "p"]);
    estate.admin(&["warehouse", "create", "w", "--project", "p", "--root", &root]);
    estate.admin(&["namespace", "create", "namespace/n", "--warehouse", "w"]);
    estate.table("lake/orders", 3).await;
    estate.table("lake/kept", 1).await;
    age_all(&estate.path("lake/orders"), 30);
    estate.admin(&["table", "create", "table/n/orders", "--location", "orders"]);
    estate.admin(&["table", "drop", "table/n/orders", "--set", "grace.trash=0s", "--apply"]);
    estate
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

/// The paths below `data/` that the plan names, relative to the lake.
fn planned_data(estate: &Estate) -> Vec<String> {
    let plan = estate.plan_file();
    let data = plan.items().iter().map(|i| i.path.as_str()).filter(|p| p.contains("/data/"));
    data.map(|p| p.split_once("/lake/").unwrap().1.to_owned()).collect()
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
