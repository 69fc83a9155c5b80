//! A registered table in a temporary lake, the commands, and what they say.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use squire_lake::Lake;
use squire_lake::look::{Look, Looked};
use squire_lake::sample::{Columns, Sample};
use squire_registry::{Actor, NewTable, Registry, StorageOptions};
use tempfile::TempDir;

/// An estate with one warehouse and the table `table/sales/t` at `lake/t.lance`.
pub(crate) struct Here {
    dir: TempDir,
    pub(crate) registry: Registry,
}

pub(crate) fn none() -> StorageOptions {
    StorageOptions::new()
}

impl Here {
    /// The estate, without the table's bytes.
    pub(crate) async fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("squire-ix-").tempdir().unwrap();
        let lake = dir.path().join("lake");
        std::fs::create_dir_all(&lake).unwrap();
        let text = |p: &Path| p.to_str().unwrap().to_owned();
        let registry = Registry::init(&text(&lake.join("_squire")), &none(), "test", Actor::current()).await.unwrap();
        registry.project_create("p", None).await.unwrap();
        registry.warehouse_create("w", "p", &text(&lake), true, &none(), None).await.unwrap();
        registry.namespace_create(&["sales".to_owned()], Some("w"), None).await.unwrap();
        Self { dir, registry }
    }

    /// Registers `table/sales/<name>` at `<name>.lance`.
    pub(crate) async fn register(&self, name: &str) {
        let path = vec!["sales".to_owned(), name.to_owned()];
        let new = NewTable { path, location: format!("{name}.lance"), tier: None, labels: vec![], declare: false };
        self.registry.table_create(new, &none(), None).await.unwrap();
    }

    /// The estate with a sample table of `fragments` appends of `rows` rows.
    pub(crate) async fn with_table(fragments: i64, rows: usize) -> Self {
        let here = Self::new().await;
        let mut sample = Sample::new(here.uri(), Columns { vector: 16, page: 0 });
        for i in 0..fragments {
            sample.write(rows, i * rows as i64).await.unwrap();
        }
        here.register("t").await;
        here
    }

    pub(crate) fn path(&self, rel: &str) -> PathBuf {
        self.dir.path().join(rel)
    }

    pub(crate) fn table_path(&self) -> PathBuf {
        self.path("lake/t.lance")
    }

    pub(crate) fn uri(&self) -> String {
        squire_lake::uri::canonical(self.table_path().to_str().unwrap()).unwrap()
    }

    /// The command, in the estate's folder, with its registry.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_squire-index-build"));
        for (name, _) in std::env::vars_os().filter(|(k, _)| k.to_string_lossy().starts_with("SQUIRE_")) {
            command.env_remove(name);
        }
        let registry = self.path("lake/_squire");
        command.current_dir(self.dir.path()).env("NO_COLOR", "1").arg("--registry").arg(registry);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command().args(args).output().unwrap()
    }

    /// `build` on the table, as JSON, with the exit code.
    pub(crate) fn build(&self, args: &[&str]) -> (i32, Value) {
        let out = self.command().args(["build", "table/sales/t", "-o", "json"]).args(args).output().unwrap();
        let value = serde_json::from_slice(&out.stdout)
            .unwrap_or_else(|e| panic!("{args:?}: {e}: {} {}", out.status, stderr(&out)));
        (out.status.code().unwrap_or(-1), value)
    }

    /// `build`, which must succeed.
    #[track_caller]
    pub(crate) fn built(&self, args: &[&str]) -> Value {
        let (code, value) = self.build(args);
        assert_eq!(code, 0, "{args:?}: {value:#}");
        value
    }

    pub(crate) async fn look(&self) -> Look {
        match squire_lake::look::look(&lake(), &self.uri(), chrono::Utc::now()).await.unwrap() {
            Looked::Dataset(look) => *look,
            other => panic!("{other:?}"),
        }
    }

    /// Directories under `_indices/`.
    pub(crate) fn index_dirs(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.table_path().join("_indices")) else { return Vec::new() };
        let mut out: Vec<String> = entries
            .flatten()
            .filter(|e| e.path().read_dir().is_ok_and(|mut d| d.next().is_some()))
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        out.sort();
        out
    }

    /// The oracle: the table is whole, and nothing is left over in it.
    pub(crate) async fn oracle(&self) {
        let lines = squire_lake::oracle::check(&lake(), &self.uri(), squire_lake::oracle::Leftovers::None).await;
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{lines:#?}");
    }
}

pub(crate) fn lake() -> Lake {
    Lake::new(Arc::new(|_: &str| Default::default()), 256 << 20)
}

pub(crate) fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

pub(crate) fn stdout(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// The Python with pylance, or a loud skip.
pub(crate) fn python(test: &str) -> Option<String> {
    let python = std::env::var("TEST_PYTHON").ok();
    if python.is_none() {
        eprintln!("SKIPPED {test}: TEST_PYTHON names no Python with pylance (run `make test`)");
    }
    python
}

/// The script that writes tables and asks indices, through pylance and not through our code.
#[track_caller]
pub(crate) fn script(python: &str, args: &[&str]) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/py/indices.py");
    let out = Command::new(python).arg(script).args(args).output().unwrap();
    assert!(out.status.success(), "{args:?}: {}{}", stdout(&out), stderr(&out));
}

/// Waits for a condition, a minute at most (two where the machine is shared).
#[track_caller]
pub(crate) fn wait<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// One replica of `serve`, killed by its id at the end.
pub(crate) struct Replica {
    pub(crate) child: Child,
    log: PathBuf,
}

impl Replica {
    pub(crate) fn start(mut command: Command, log: PathBuf) -> Self {
        let file = std::fs::File::create(&log).unwrap();
        command.args(["--log-format", "json", "--set", "http.listen=127.0.0.1:0"]);
        let child = command.stdout(Stdio::null()).stderr(file).spawn().unwrap();
        let mut replica = Self { child, log };
        wait("a replica serves", || {
            let ended = replica.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended with {ended:?}: {}", replica.text());
            replica.text().contains("\"serving\"").then_some(())
        });
        replica
    }

    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
    }
}
