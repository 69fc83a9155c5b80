//! A real S3 server, started and stopped by `tests/py/s3.py`, which also does with pylance what other people's writers do.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bucket::Bucket;

/// Object-store options by Lance's names.
pub type Options = BTreeMap<String, String>;

/// A running server with a bucket `lake`; it stops, by its id, when this is dropped or the test process ends.
pub struct Server {
    dir: TempDir,
    options: Options,
    child: Mutex<Talk>,
}

/// A script that answers each line with one.
pub(crate) struct Talk {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Server {
    /// One server for all tests of this process, each of which takes a prefix of its own; `None`, said loudly, when `TEST_PYTHON`
    /// names no Python with pylance.
    pub fn shared(test: &str) -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Server>> = OnceLock::new();
        let server = SHARED.get_or_init(|| Self::start(test, &["--empty"])).as_ref();
        if server.is_none() {
            eprintln!("SKIPPED {test}: there is no S3 server without TEST_PYTHON");
        }
        server
    }

    /// A server of its own, with the script's flags (`--empty`, `--liar`).
    ///
    /// # Panics
    /// When it does not come up.
    pub fn start(test: &str, flags: &[&str]) -> Option<Self> {
        let Ok(python) = std::env::var("TEST_PYTHON") else {
            eprintln!("SKIPPED {test}: TEST_PYTHON names no Python with pylance (run `make test`)");
            return None;
        };
        let dir = tempfile::Builder::new().prefix("squire-s3-").tempdir().expect("a temporary folder");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../py/s3.py");
        let child = Command::new(python)
            .arg(script)
            .arg(dir.path())
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python ran");
        let mut talk = Talk::with(child);
        let options = talk.line()["options"].clone();
        let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
        let options = options.as_object().expect("options").iter().map(|(k, v)| (k.clone(), text(v))).collect();
        Some(Self { dir, options, child: Mutex::new(talk) })
    }

    /// Lance's options for it.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The server's own address.
    pub fn endpoint(&self) -> &str {
        self.options.get("aws_endpoint").map_or("", String::as_str)
    }

    /// Where it keeps its files, and where a test may keep some.
    pub fn path(&self, rel: &str) -> PathBuf {
        self.dir.path().join(rel)
    }

    /// A client of bucket `lake` that goes to the server itself.
    pub fn bucket(&self) -> Bucket {
        Bucket::new("lake", &self.options)
    }

    /// The `[storage]` part of a config, with another endpoint than the server's own if one is given.
    pub fn storage(&self, endpoint: Option<&str>) -> String {
        let mut config = String::from("[storage]\n");
        for (key, value) in &self.options {
            let value = if key == "aws_endpoint" { endpoint.unwrap_or(value) } else { value };
            config += &format!("{key} = \"{value}\"\n");
        }
        config
    }

    /// What pylance reads of the three datasets that a server without `--empty` has: rows, fragments and versions by name.
    pub fn state(&self) -> Value {
        self.ask("state")
    }

    /// Does something with pylance (see `tests/py/ops.py`), straight at the server, and returns what it says.
    ///
    /// # Panics
    /// When pylance fails.
    #[track_caller]
    pub fn pylance(&self, op: &str, uri: &str, args: Value) -> Value {
        let answer = self.try_pylance(op, uri, args);
        assert!(answer["error"].is_null(), "pylance: {op} {uri}: {}", answer["error"]);
        answer
    }

    /// As [`Server::pylance`], a failure being an answer: `{"error": TEXT}`.
    pub fn try_pylance(&self, op: &str, uri: &str, mut args: Value) -> Value {
        if args.is_null() {
            args = json!({});
        }
        args["op"] = op.into();
        args["uri"] = uri.into();
        self.ask(&args.to_string())
    }

    fn ask(&self, line: &str) -> Value {
        let mut talk = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        talk.ask(line)
    }
}

impl Talk {
    pub(crate) fn with(mut child: Child) -> Self {
        let out = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, out }
    }

    pub(crate) fn ask(&mut self, line: &str) -> Value {
        let stdin = self.child.stdin.as_mut().expect("piped");
        stdin.write_all(format!("{line}\n").as_bytes()).expect("asked");
        self.line()
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("the server's script: {e}: {line:?}"))
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
