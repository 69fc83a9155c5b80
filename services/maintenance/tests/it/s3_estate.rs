//! Small estates on a real S3 server, and the real binary that reaches them through a proxy which a test commands.

use std::collections::{BTreeMap, HashMap};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use squire_lake::Lake;
use squire_lake::oracle::{self, Leftovers};
use squire_test_support::{Bucket, Objects, Proxy, Request, Server, gated};

use super::common::*;

/// How long one run of the binary may take.
const DEADLINE: Duration = Duration::from_secs(120);
/// The retention of every sweep here, and a little more: a copy is as young as its newest file.
pub const AGE: Duration = Duration::from_millis(1_300);

/// The objects of an estate as other people's writers left it, and what each dataset answered then.
pub struct Pristine {
    pub objects: Objects,
    pub rows: BTreeMap<String, Value>,
}

/// Names prefixes that no other test uses.
fn fresh_prefix(what: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("{what}-{}", NEXT.fetch_add(1, Ordering::SeqCst))
}

impl Pristine {
    /// Lets `write` make datasets below a URI, and keeps the bytes.
    pub fn made(server: &'static Server, write: impl FnOnce(&str), datasets: &[&str]) -> Self {
        let prefix = fresh_prefix("pristine");
        write(&format!("s3://lake/{prefix}"));
        let rows = datasets.iter().map(|name| {
            let read = server.pylance("read", &format!("s3://lake/{prefix}/{name}"), Value::Null);
            ((*name).to_string(), read["digest"].clone())
        });
        let rows = rows.collect();
        Self { objects: server.bucket().read(&prefix), rows }
    }

    /// Three datasets with old versions: `orders` with a BTREE and appends that it does not cover, `notes` with a full-text index
    /// likewise, `plain` without an index, with deleted rows and a tag. Old versions alone name data, deletion and index files.
    pub fn three(server: &'static Server) -> Self {
        let write = |root: &str| {
            let [orders, notes, plain] = ["orders", "notes", "plain"].map(|name| format!("{root}/{name}"));
            for (uri, column, kind) in [(&orders, "id", "BTREE"), (&notes, "body", "INVERTED")] {
                server.pylance("write", uri, json!({"appends": 2}));
                server.pylance("index", uri, json!({"column": column, "type": kind}));
                server.pylance("index", uri, json!({"column": column, "type": kind}));
                server.pylance("write", uri, json!({"appends": 2, "start": 60}));
            }
            server.pylance("write", &plain, json!({"start": 500}));
            server.pylance("write", &plain, json!({"overwrite": true}));
            server.pylance("write", &plain, json!({"appends": 3, "start": 30}));
            server.pylance("delete", &plain, json!({"where": "id % 5 = 0"}));
            server.pylance("delete", &plain, json!({"where": "id % 7 = 0"}));
            server.pylance("tag", &plain, json!({"name": "kept", "version": 3}));
        };
        Self::made(server, write, &["notes", "orders", "plain"])
    }

    /// One dataset, `orders` of [`Pristine::three`].
    pub fn one(server: &'static Server) -> Self {
        let write = |root: &str| {
            let orders = format!("{root}/orders");
            server.pylance("write", &orders, json!({"appends": 2}));
            server.pylance("index", &orders, json!({"column": "id", "type": "BTREE"}));
            server.pylance("write", &orders, json!({"appends": 2, "start": 60}));
        };
        Self::made(server, write, &["orders"])
    }
}

/// Copies of a pristine estate, made ahead on another thread and old enough when they are handed out.
pub struct Copies(Mutex<std::sync::mpsc::Receiver<(String, Instant)>>);

impl Copies {
    pub fn of(server: &'static Server, pristine: Arc<Pristine>, what: &'static str) -> Self {
        let (send, receive) = std::sync::mpsc::sync_channel(3);
        std::thread::spawn(move || {
            let bucket = server.bucket();
            loop {
                let prefix = fresh_prefix(what);
                bucket.write(&prefix, &pristine.objects);
                if send.send((prefix, Instant::now())).is_err() {
                    return;
                }
            }
        });
        Self(Mutex::new(receive))
    }

    pub fn take(&self) -> String {
        let receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (prefix, made) = receiver.recv().expect("another copy");
        drop(receiver);
        // Age counts from the last write, and no condition but time makes it.
        std::thread::sleep((made + AGE).saturating_duration_since(Instant::now()));
        prefix
    }
}

/// One copy of an estate, with a proxy before it.
pub struct OnS3 {
    pub server: &'static Server,
    pub proxy: Proxy,
    pub bucket: Bucket,
    pub prefix: String,
    config: tempfile::TempDir,
    lake: Lake,
}

/// How a run of the binary ended.
pub struct Ended {
    pub status: ExitStatus,
    pub report: Value,
    pub stderr: String,
}

impl Ended {
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    #[track_caller]
    pub fn row(&self, name: &str) -> &Value {
        row(&self.report, name)
    }
}

/// A run of the binary that has not ended yet.
pub struct Running {
    child: Child,
    dir: tempfile::TempDir,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn end(mut self) -> Ended {
        let deadline = Instant::now() + DEADLINE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                panic!("it did not end: {}", self.said("err"));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let report = serde_json::from_str(&self.said("out")).unwrap_or(Value::Null);
        Ended { status, report, stderr: self.said("err") }
    }

    fn said(&self, what: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(what)).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ends what a failed test leaves behind; an ended child is not killed again.
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl OnS3 {
    /// The estate that lies at a prefix.
    pub fn at(server: &'static Server, prefix: String) -> Self {
        let proxy = Proxy::start(server.endpoint());
        let config = tempfile::tempdir().expect("a folder");
        let file = config.path().join("squire.toml");
        std::fs::write(file, server.storage(Some(&proxy.endpoint()))).expect("written");
        let options: HashMap<String, String> = server.options().clone().into_iter().collect();
        let lake = Lake::new(Arc::new(move |_: &str| options.clone()), 256 << 20);
        Self { server, proxy, bucket: server.bucket(), prefix, config, lake }
    }

    /// An estate without a dataset.
    pub fn empty(server: &'static Server, what: &str) -> Self {
        Self::at(server, fresh_prefix(what))
    }

    /// A copy of its own, for a test that needs one only.
    pub fn copy(server: &'static Server, pristine: &Pristine) -> Self {
        let this = Self::at(server, fresh_prefix("estate"));
        this.bucket.write(&this.prefix, &pristine.objects);
        this
    }

    /// Runs a sweep that is held at the first request that matches; meanwhile `act` does something else on the real server, told
    /// which request waits.
    #[track_caller]
    pub fn meanwhile(
        &self,
        matches: impl FnMut(&Request) -> bool + Send + 'static,
        act: impl FnOnce(&Self, &Request),
    ) -> Ended {
        let (gate, rule) = gated(matches);
        self.proxy.set(rule);
        let running = self.start(&[]);
        let held = gate.arrived();
        act(self, &held);
        gate.open();
        running.end()
    }

    pub fn root(&self) -> String {
        format!("s3://lake/{}", self.prefix)
    }

    pub fn uri(&self, name: &str) -> String {
        format!("{}/{name}", self.root())
    }

    fn config(&self) -> String {
        self.config.path().join("squire.toml").to_str().expect("UTF-8").to_string()
    }

    /// Starts `sweep --yes` through the proxy, with a retention of one second and one dataset at a time.
    pub fn start(&self, more: &[&str]) -> Running {
        self.start_plainly(&[&Self::short(), more].concat())
    }

    fn short() -> Vec<&'static str> {
        // At this rate a chunk has 100 versions.
        let short = "--set floors.retention=1s --retention 1s --retain-versions 2 --set limits.concurrency=1 \
                     --set limits.delete_rate=500";
        short.split_whitespace().collect()
    }

    /// Starts `sweep --yes` through the proxy.
    pub fn start_plainly(&self, more: &[&str]) -> Running {
        self.start_verb("sweep", &[&["--yes"], more].concat())
    }

    /// What a sweep as [`OnS3::start`] would do.
    #[track_caller]
    pub fn plan(&self, more: &[&str]) -> Ended {
        self.start_verb("plan", &[&Self::short(), more].concat()).end()
    }

    fn start_verb(&self, verb: &str, more: &[&str]) -> Running {
        let dir = tempfile::tempdir().expect("a folder");
        let file = |name: &str| std::fs::File::create(dir.path().join(name)).expect("a file");
        let child = command(std::path::Path::new(env!("CARGO_BIN_EXE_squire-maintenance")))
            .current_dir(dir.path())
            .args([verb, &self.root(), "--config", &self.config(), "-o", "json"])
            .args(more)
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .expect("it ran");
        self.proxy.client_is(child.id());
        Running { child, dir }
    }

    /// A whole sweep as [`OnS3::start`].
    #[track_caller]
    pub fn sweep(&self) -> Ended {
        self.start(&[]).end()
    }

    /// `squire-registry`, straight at the server.
    #[track_caller]
    pub fn registry(&self, args: &[&str]) {
        let config = self.config.path().join("direct.toml");
        let direct = self.server.storage(None) + &format!("[registry]\nroot = \"{}/_squire\"\n", self.root());
        std::fs::write(&config, direct).expect("written");
        let output = registry_command().args(args).arg("--config").arg(&config).output().expect("it ran");
        assert_ok(&output, &format!("squire-registry {args:?}"));
    }

    /// A registry that knows the dataset `name` as `table/ns/<name>`.
    pub fn govern(&self, name: &str) {
        let root = self.root();
        let table = format!("table/ns/{name}");
        self.registry(&["init", &format!("{root}/_squire"), "--name", "n"]);
        self.registry(&["project", "create", "p"]);
        self.registry(&["warehouse", "create", "w", "--project", "p", "--root", &root]);
        self.registry(&["namespace", "create", "namespace/ns", "--warehouse", "w"]);
        self.registry(&["table", "create", &table, "--location", name]);
    }

    /// What pylance reads of a dataset's HEAD, every index compared with a scan.
    #[track_caller]
    pub fn read(&self, name: &str) -> Value {
        self.server.pylance("read", &self.uri(name), Value::Null)
    }

    /// The digest of all rows at a version, tag or branch (`{"version": N}` and so on).
    #[track_caller]
    pub fn digest(&self, name: &str, at: Value) -> Value {
        self.server.pylance("read", &self.uri(name), at)["digest"].clone()
    }

    /// Paths below a dataset.
    pub fn files(&self, name: &str) -> Vec<String> {
        self.bucket.list(&format!("{}/{name}", self.prefix))
    }

    /// Every dataset answers as it did before anything was done to it.
    #[track_caller]
    pub fn has_its_rows(&self, pristine: &Pristine, when: &str) {
        for (name, digest) in &pristine.rows {
            let found = self.server.try_pylance("read", &self.uri(name), Value::Null);
            assert_eq!(&found["digest"], digest, "{when}: {name}: {found}");
        }
    }

    /// What nobody can explain below the root, one line each.
    pub fn unexplained(&self, leftovers: Leftovers) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let found = runtime.expect("a runtime").block_on(oracle::check(&self.lake, &self.root(), leftovers));
        found.iter().map(ToString::to_string).collect()
    }

    /// No dataset holds a file that nobody can explain.
    #[track_caller]
    pub fn is_explained(&self, leftovers: Leftovers, when: &str) {
        let found = self.unexplained(leftovers);
        assert!(found.is_empty(), "{when}: {found:#?}");
    }

    /// The next sweep does the rest, and the one after it finds nothing to do.
    #[track_caller]
    pub fn converges(&self, pristine: &Pristine, when: &str) {
        self.proxy.pass();
        let next = self.sweep();
        assert_eq!(next.code(), Some(0), "{when}: {}\n{:#}", next.stderr, next.report);
        let last = self.start_plainly(&[]).end();
        let seen = &last.report["totals"]["seen"];
        assert_eq!((last.code(), &last.report["totals"]["idle"]), (Some(0), seen), "{when}: {:#}", last.report);
        for (name, digest) in &pristine.rows {
            let found = self.read(name);
            assert_eq!(&found["digest"], digest, "{when}: {name}");
            assert_eq!((&found["fragments"], &found["unindexed"]), (&json!(1), &json!(0)), "{when}: {name}: {found}");
        }
    }
}
