//! Temporary lakes, the binaries, and what a report says.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use serde_json::Value;
use squire_lake::Lake;
pub use squire_lake::oracle::Leftovers;
use squire_lake::sample::{Columns, Sample};
use tempfile::TempDir;

/// A temporary folder with a lake in it.
pub struct Here {
    dir: TempDir,
}

impl Here {
    pub fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("squire-").tempdir().expect("a temporary folder") }
    }

    pub fn path(&self, rel: &str) -> PathBuf {
        self.dir.path().join(rel)
    }

    pub fn text(&self, rel: &str) -> String {
        self.path(rel).to_str().expect("UTF-8").to_string()
    }

    pub fn uri(&self, rel: &str) -> String {
        squire_lake::uri::canonical(&self.text(rel)).expect("a canonical URI")
    }

    /// The manifest of a version (V2 name).
    pub fn manifest(&self, rel: &str, version: u64) -> PathBuf {
        self.path(rel).join(format!("_versions/{:020}.manifest", u64::MAX - version))
    }

    /// A sample dataset of `fragments` appends of `rows` rows.
    pub async fn table(&self, rel: &str, fragments: i64, rows: usize) -> Sample {
        std::fs::create_dir_all(self.path(rel).parent().expect("a parent")).expect("made");
        let mut sample = Sample::new(self.uri(rel), Columns::default());
        for i in 0..fragments {
            sample.write(rows, i * rows as i64).await.expect("written");
        }
        sample
    }

    /// The oracle, at the end of a test: every dataset under `rel` is whole, and nothing is left over in it.
    #[track_caller]
    pub fn oracle(&self, rel: &str) {
        self.oracle_with(rel, Leftovers::None, &[]);
    }

    /// The oracle with what this test leaves on purpose: `(what the line is about, what it says)`; each must be said.
    #[track_caller]
    pub fn oracle_with(&self, rel: &str, leftovers: Leftovers, expected: &[(&str, &str)]) {
        assert_explained(lake(), &self.uri(rel), leftovers, expected);
    }
}

/// Asks the oracle about everything at or under a URI and fails with what it cannot explain.
#[track_caller]
pub fn assert_explained(lake: Lake, uri: &str, leftovers: Leftovers, expected: &[(&str, &str)]) {
    let root = uri.to_string();
    // In a thread of its own, so that a test with a runtime and one without can both ask.
    let asked = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        runtime.block_on(squire_lake::oracle::check(&lake, &root, leftovers))
    });
    let mut lines: Vec<String> = asked.join().expect("the oracle").iter().map(ToString::to_string).collect();
    for (about, says) in expected {
        let before = lines.len();
        lines.retain(|line| !(line.contains(about) && line.contains(says)));
        assert!(lines.len() < before, "the oracle says nothing of {about}: {says}; it says {lines:#?}");
    }
    assert!(lines.is_empty(), "unexplained under {uri}: {lines:#?}");
}

pub fn lake() -> Lake {
    Lake::new(Arc::new(|_: &str| HashMap::new()), 256 << 20)
}

/// A command without the caller's `SQUIRE_` variables.
pub fn command(binary: &Path) -> Command {
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars_os().filter(|(k, _)| k.to_string_lossy().starts_with("SQUIRE_")) {
        command.env_remove(name);
    }
    command.env("NO_COLOR", "1");
    command
}

/// `squire-maintenance` with these arguments, in a folder without a config file.
pub fn squire<S: AsRef<str>>(args: &[S]) -> Output {
    let elsewhere = tempfile::tempdir().expect("a folder");
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    command(Path::new(env!("CARGO_BIN_EXE_squire-maintenance")))
        .current_dir(elsewhere.path())
        .args(args)
        .output()
        .expect("it ran")
}

/// `squire-maintenance`, started and not waited for.
pub fn start<S: AsRef<str>>(args: &[S]) -> std::process::Child {
    command(Path::new(env!("CARGO_BIN_EXE_squire-maintenance")))
        .args(args.iter().map(AsRef::as_ref))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it ran")
}

/// The `squire-registry` command, which is built beside this one.
pub fn registry<S: AsRef<str>>(args: &[S]) -> Output {
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    registry_command().args(args).output().expect("it ran")
}

/// The `squire-registry` command without arguments.
pub fn registry_command() -> Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_squire-maintenance")).with_file_name("squire-registry");
    assert!(binary.exists(), "{} is not built; run `make test` or `cargo build --workspace --bins`", binary.display());
    command(&binary)
}

pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs and returns the JSON report; fails with what was said when there is none. A sweep is planned first, and does what the plan
/// said ([`assert_foretold`]).
#[track_caller]
pub fn report<S: AsRef<str>>(args: &[S]) -> Value {
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    let planned = (args[0] == "sweep").then(|| {
        let rest = args[1..].iter().copied().filter(|arg| *arg != "--yes");
        ran(&["plan"].into_iter().chain(rest).collect::<Vec<_>>())
    });
    let done = ran(&args);
    if let Some(planned) = planned {
        assert_foretold(&planned, &done);
    }
    done
}

/// As [`report`], of a sweep beside which somebody writes: no plan foretells it.
#[track_caller]
pub fn ran(args: &[&str]) -> Value {
    let output = squire(&[args, &["-o", "json"]].concat());
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{args:?}: exit {}: {e}: {}", code(&output), stderr(&output)))
}

/// What each dataset was said to cost is what it did: bytes rewritten within 5 %, what was removed exactly. Returns how many
/// figures were above zero. Left out are passes that failed or were not admitted, and clean-ups of versions that came of age only
/// after the plan.
#[track_caller]
pub fn assert_foretold(planned: &Value, swept: &Value) -> usize {
    let mut material = 0;
    for before in planned["datasets"].as_array().expect("datasets") {
        let rows = swept["datasets"].as_array().expect("datasets");
        let Some(after) = rows.iter().find(|row| row["uri"] == before["uri"]) else { continue };
        if matches!(after["outcome"]["kind"].as_str(), Some("failed" | "skipped")) {
            continue;
        }
        let number = |row: &Value, step: &str, key: &str| row["steps"][step][key].as_u64().unwrap_or(0);
        let (said, did) = (number(before, "compact", "rewritten_bytes"), number(after, "compact", "rewritten_bytes"));
        assert!(said.abs_diff(did) * 20 <= said, "{}: {said} bytes to rewrite, {did} were", before["uri"]);
        material += usize::from(did > 0);
        let ended = swept["finished_at"].as_str().map(instant).expect("an end");
        let retained = before["steps"]["cleanup"]["retained"].as_array().into_iter().flatten();
        let mut until = retained.filter_map(|r| r["until"].as_str()).map(instant);
        if until.any(|until| until <= ended) {
            continue;
        }
        for key in ["reclaimed_bytes", "versions_removed", "files_removed"] {
            let (said, did) = (number(before, "cleanup", key), number(after, "cleanup", key));
            assert_eq!(said, did, "{}: {key}: {:#}, {:#}", before["uri"], before["steps"], after["steps"]);
            material += usize::from(did > 0);
        }
    }
    material
}

fn instant(text: &str) -> chrono::DateTime<chrono::Utc> {
    text.parse().expect("an instant")
}

/// The row of the dataset whose URI ends so.
pub fn row<'a>(report: &'a Value, end: &str) -> &'a Value {
    report["datasets"]
        .as_array()
        .expect("datasets")
        .iter()
        .find(|d| d["uri"].as_str().is_some_and(|u| u.ends_with(end)))
        .unwrap_or_else(|| panic!("no dataset ends in {end}: {report:#}"))
}

/// Every file under a folder with its bytes: what "changes nothing at all" is measured by.
pub fn tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut out = Vec::new();
    let mut queue = vec![dir.to_path_buf()];
    while let Some(at) = queue.pop() {
        for entry in std::fs::read_dir(&at).expect("readable").flatten() {
            let path = entry.path();
            if path.is_dir() {
                queue.push(path);
            } else {
                let bytes = std::fs::read(&path).expect("readable");
                out.push((path, bytes));
            }
        }
    }
    out.sort();
    out
}

/// Files under a dataset only, the registry left out.
pub fn dataset_tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    tree(dir).into_iter().filter(|(p, _)| !p.to_string_lossy().contains("/_squire/")).collect()
}

/// The arguments that make a retention of one second possible.
pub fn one_second() -> Vec<String> {
    ["--set", "floors.retention=1s", "--retention", "1s"].map(String::from).to_vec()
}

/// `verb` on the lake with a retention of one second, two versions kept.
pub fn short_retention(verb: &str, here: &Here, more: &[&str]) -> Value {
    let mut args = vec![verb.to_string(), here.text("lake"), "--retain-versions".into(), "2".into()];
    args.extend(one_second());
    args.extend(more.iter().map(|s| (*s).to_string()));
    report(&args)
}

/// Waits until the newest file under a folder is older than `age`: replaced-at counts on the store's clock.
pub fn wait_until_older(dir: &Path, age: std::time::Duration) {
    let deadline = std::time::Instant::now() + age * 3 + std::time::Duration::from_secs(5);
    loop {
        let newest =
            tree(dir).iter().filter_map(|(p, _)| p.metadata().ok()?.modified().ok()).max().expect("there are files");
        if newest.elapsed().is_ok_and(|e| e > age) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "the files under {} do not age", dir.display());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// The folder with the generators that other people wrote, or a loud skip.
pub fn shared(test: &str) -> Option<PathBuf> {
    let dir = std::env::var_os("TEST_SHARED").map(PathBuf::from).filter(|p| p.join("tools").is_dir());
    if dir.is_none() {
        eprintln!("SKIPPED {test}: TEST_SHARED names no folder with tools/make_estate.py");
    }
    dir
}

/// The Python with pylance and lancedb, or a loud skip.
pub fn python(test: &str) -> Option<String> {
    let python = std::env::var("TEST_PYTHON").ok();
    if python.is_none() {
        eprintln!("SKIPPED {test}: TEST_PYTHON names no Python with pylance (run `make test`)");
    }
    python
}

/// The project's own reader in Python, which goes through pylance and not through our code.
pub fn check_py() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/py/check.py").to_string()
}

pub fn run_python(python: &str, args: &[&str]) -> Output {
    Command::new(python).args(args).output().expect("python ran")
}

#[track_caller]
pub fn assert_ok(output: &Output, what: &str) {
    assert!(
        output.status.success(),
        "{what}: exit {}\n{}\n{}",
        code(output),
        String::from_utf8_lossy(&output.stdout),
        stderr(output)
    );
}
