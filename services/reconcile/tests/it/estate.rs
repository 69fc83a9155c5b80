//! What the tests of `reclaim` share: a lake with its registry, the commands on it, and what lies there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use squire_lake::sample::{Columns, Sample};
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
    pub(super) fn refuses(&self, wanted: i32, says: &str, more: &[&str]) {
        let before = self.tree();
        let (code, out, err) = self.reclaim(&[&["apply", "plan.json"], more].concat());
        assert_eq!(code, wanted, "{says}: {out}{err}");
        assert!(out.contains(says) || err.contains(says), "{says}: {out}{err}");
        assert_eq!(self.tree(), before, "{says}: something was moved");
    }
}

pub(super) fn age(path: &Path, days: u64) {
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

pub(super) fn lake() -> squire_lake::Lake {
    squire_lake::Lake::new(std::sync::Arc::new(|_: &str| std::collections::HashMap::new()), 256 << 20)
}

pub(super) fn percent(uri: &str) -> String {
    // What a shell would not touch stays as it is: the subject's own spelling.
    uri.bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'/' | b':' => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        })
        .collect()
}

pub(super) fn copy_all(from: &Path, to: &Path) {
    for (path, bytes) in tree(from) {
        let at = to.join(path);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, bytes).unwrap();
    }
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

/// The paths below `data/` that the plan names, relative to the lake.
pub(super) fn planned_data(estate: &Estate) -> Vec<String> {
    let plan = estate.plan_file();
    let data = plan.items().iter().map(|i| i.path.as_str()).filter(|p| p.contains("/data/"));
    data.map(|p| p.split_once("/lake/").unwrap().1.to_owned()).collect()
}

/// A table whose newest version, 500 to 504, was overwritten and has lost its manifest: its data file is named by nobody and old. The
/// manifest's path and bytes, to put it back.
pub(super) async fn without_its_head(estate: &Estate) -> (PathBuf, Vec<u8>) {
    let mut sample = estate.table("lake/orders", 2).await;
    sample.overwrite(5, 500).await.unwrap();
    let head = estate.path("lake/orders/_versions").join(format!("{:020}.manifest", u64::MAX - 3));
    let bytes = std::fs::read(&head).unwrap();
    std::fs::remove_file(&head).unwrap();
    age_all(&estate.path("lake/orders/data"), 30);
    (head, bytes)
}
