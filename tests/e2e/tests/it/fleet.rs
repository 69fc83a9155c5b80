//! An estate on S3 with a registry and a bus of its own, and the replicas that maintain it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use squire_lake::Lake;
use squire_lake::oracle::{self, Leftovers};
use squire_registry::{DatasetEntry, Registry};
use squire_service::bus::{Bus, Event, Queue, Settings, Stream};
use squire_service::config;
use squire_service::telemetry::Metrics;
use squire_test_support::{Bucket, Nats, Objects, Proxy, Server};
use uuid::Uuid;

use crate::replica::Replica;
use crate::stamps;

/// Long enough for anything on a busy machine.
const SOON: Duration = Duration::from_secs(90);
/// Long enough for a whole estate, messages that wait for their next attempt included.
const LONG: Duration = Duration::from_secs(300);
/// The password in the bus's URL, which must be shown nowhere. A server that asks for none takes any.
pub(crate) const PASSWORD: &str = "fake-bus-password";
/// A retention of a second, so that a pass cleans up what the pass before it replaced.
pub(crate) const SHORT_RETENTION: [&str; 3] =
    ["floors.retention=1s", "policy.retention=1s", "policy.retain_versions=1"];
/// A time of the year that no test meets: what starts a sweep is a tick by hand.
pub(crate) const NEVER: &str = "0 0 0 29 2 *";

/// Waits until there is something.
#[track_caller]
pub(crate) fn wait<T>(what: &str, found: impl FnMut() -> Option<T>) -> T {
    wait_at_most(SOON, what, found)
}

#[track_caller]
fn wait_at_most<T>(time: Duration, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + time;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "not in {time:?}: {what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// A number that no other caller in this process gets.
fn fresh() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::SeqCst)
}

pub(crate) struct Fleet {
    pub(crate) server: &'static Server,
    /// One server, the three of a cluster, or none where another fleet's are used.
    pub(crate) nats: Vec<Nats>,
    /// Of all of them, with a user and a password.
    url: String,
    pub(crate) bucket: Bucket,
    /// Of everything that belongs to it in the bucket.
    pub(crate) prefix: String,
    runtime: tokio::runtime::Runtime,
    dir: tempfile::TempDir,
}

impl Fleet {
    /// An empty estate; `None`, said loudly, where the servers are missing.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let nats = Nats::start(test)?;
        let url = url(&nats);
        Self::on(test, vec![nats], url)
    }

    /// An empty estate on a bus of three servers, which keep three copies.
    pub(crate) fn clustered(test: &str) -> Option<Self> {
        let nats = Nats::cluster(test)?;
        let url = nats.iter().map(url).collect::<Vec<_>>().join(",");
        wait("a leader of the cluster", || nats[0].has_leader().then_some(()));
        Self::on(test, nats, url)
    }

    /// Another empty estate on the same servers.
    pub(crate) fn beside(&self, test: &str) -> Option<Self> {
        Self::on(test, Vec::new(), self.url.clone())
    }

    fn on(test: &str, nats: Vec<Nats>, url: String) -> Option<Self> {
        let server = Server::shared(test)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let fleet = Self {
            server,
            nats,
            url,
            bucket: server.bucket(),
            prefix: format!("fleet-{}", fresh()),
            runtime: runtime.expect("a runtime"),
            dir: tempfile::Builder::new().prefix("squire-e2e-").tempdir().expect("a folder"),
        };
        let root = fleet.root();
        std::fs::write(fleet.path("direct.toml"), fleet.config(None)).expect("written");
        fleet.registry_command(&["init", &format!("{root}/_squire"), "--name", &fleet.prefix]);
        Some(fleet)
    }

    /// The root that is maintained.
    pub(crate) fn root(&self) -> String {
        format!("s3://lake/{}/lake", self.prefix)
    }

    pub(crate) fn uri(&self, name: &str) -> String {
        format!("{}/{name}", self.root())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn config(&self, proxy: Option<&Proxy>) -> String {
        let endpoint = proxy.map(Proxy::endpoint);
        let (root, url, copies) = (self.root(), &self.url, self.copies());
        format!(
            "[estate]\nroots = [\"{root}\"]\n[registry]\nroot = \"{root}/_squire\"\n\
             [bus]\nkind = \"nats\"\nurl = \"{url}\"\nreplicas = {copies}\nack_wait = \"2s\"\n[grace]\nclaim_ttl = \"30s\"\ndrain = \"30s\"\n\
             [policy]\ninterval = \"1s\"\nmin_fragments = 2\n[limits]\nconcurrency = 2\ndelete_rate = 5000\n\
             [schedule]\nmaintenance = \"{NEVER}\"\n[http]\nlisten = \"127.0.0.1:0\"\n{}",
            self.server.storage(endpoint.as_deref())
        )
    }

    /// A replica at the storage itself.
    pub(crate) fn replica(&self, set: &[&str]) -> Replica {
        self.replica_behind(None, set)
    }

    /// A replica that reaches its storage through a proxy. `set`: `KEY=VALUE` of the configuration.
    pub(crate) fn replica_behind(&self, proxy: Option<&Proxy>, set: &[&str]) -> Replica {
        self.replica_of("squire-maintenance", proxy, set)
    }

    /// A replica of another program.
    pub(crate) fn replica_of(&self, program: &str, proxy: Option<&Proxy>, set: &[&str]) -> Replica {
        let n = fresh();
        let config = self.path(&format!("replica-{n}.toml"));
        std::fs::write(&config, self.config(proxy)).expect("written");
        let mut command = self.command(program, &["serve", "--log-format", "json"], &config);
        for pair in set {
            command.args(["--set", pair]);
        }
        let replica = Replica::start(command, self.path(&format!("replica-{n}.log")));
        if let Some(proxy) = proxy {
            proxy.client_is(replica.pid());
        }
        replica
    }

    /// A replica of the program that builds indices.
    pub(crate) fn index_builder(&self) -> Replica {
        self.replica_of("squire-index-build", None, &[])
    }

    pub(crate) fn proxy(&self) -> Proxy {
        Proxy::start(self.server.endpoint())
    }

    fn command(&self, name: &str, args: &[&str], config: &Path) -> Command {
        let mut command = self.program(name);
        command.args(args).arg("--config").arg(config);
        command
    }

    /// A program of this build, without the caller's `SQUIRE_` variables.
    fn program(&self, name: &str) -> Command {
        let test = std::env::current_exe().expect("this program");
        let folder = test.parent().and_then(Path::parent).expect("the target directory");
        let binary = folder.join(name);
        assert!(binary.exists(), "{} is not built; run `make test`", binary.display());
        let mut command = Command::new(binary);
        for (variable, _) in std::env::vars_os().filter(|(k, _)| k.to_string_lossy().starts_with("SQUIRE_")) {
            command.env_remove(variable);
        }
        command.env("NO_COLOR", "1").env_remove("RUST_LOG").current_dir(self.dir.path());
        command
    }

    /// `squire-registry`, which must succeed; what it prints.
    #[track_caller]
    pub(crate) fn registry_command(&self, args: &[&str]) -> String {
        self.run("squire-registry", args)
    }

    /// A program that must succeed; what it prints.
    #[track_caller]
    pub(crate) fn run(&self, program: &str, args: &[&str]) -> String {
        said(&self.command(program, args, &self.path("direct.toml")).output().expect("it ran"), args)
    }

    /// What a later build's `squire-registry` does to the protection of something: `freeze` or `thaw`.
    #[track_caller]
    pub(crate) fn newer_registry(&self, verb: &str, subject: &str) {
        let root = format!("{}/_squire", self.root());
        let options = json!(self.server.options()).to_string();
        let args = [root.as_str(), &options, verb, subject];
        said(&self.program("examples/newer-registry").args(args).output().expect("it ran"), &args);
    }

    /// Copies that a cluster keeps of each stream.
    fn copies(&self) -> usize {
        self.nats.len().max(1)
    }

    /// A tick by hand.
    #[track_caller]
    pub(crate) fn tick(&self) {
        assert_eq!(self.run("squire-maintenance", &["tick", "maintenance"]), "sent\n");
    }

    /// A tick by hand, and all that comes of it: what the replica that swept the estate said of it.
    #[track_caller]
    pub(crate) fn sweep(&self, replicas: &[&Replica]) -> Value {
        let before = swept(replicas).len();
        self.tick();
        let line = wait_at_most(LONG, "a sweep", || swept(replicas).into_iter().nth(before));
        self.settles();
        line
    }

    /// Waits until no tick and no work is queued or in anybody's hands.
    #[track_caller]
    pub(crate) fn settles(&self) {
        let deadline = Instant::now() + LONG;
        while !self.is_settled() {
            assert!(Instant::now() < deadline, "something is queued or in work after {LONG:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn is_settled(&self) -> bool {
        self.with_bus(async |bus| {
            for stream in [Stream::Ticks, Stream::Work] {
                match bus.depth(stream).await {
                    Ok(depth) if depth.pending + depth.in_flight == 0 => {}
                    _ => return false,
                }
            }
            true
        })
    }

    /// Does something with the estate's bus.
    pub(crate) fn with_bus<T>(&self, work: impl AsyncFnOnce(Bus) -> T) -> T {
        let (url, replicas) = (Some(self.url.clone()), Some(self.copies()));
        let config = config::Bus { kind: config::BusKind::Nats, url, replicas, ..config::Bus::default() };
        self.runtime.block_on(async {
            let registry = self.registry().await;
            let settings = Settings::of(&config, Duration::from_secs(30));
            let opened = Bus::open(&config, registry.name(), registry.id(), settings, Metrics::new()).await;
            work(opened.expect("the bus")).await
        })
    }

    /// Does something with the estate's registry.
    pub(crate) fn with_registry<T>(&self, work: impl AsyncFnOnce(Registry) -> T) -> T {
        self.runtime.block_on(async { work(self.registry().await).await })
    }

    async fn registry(&self) -> Registry {
        let options = self.server.options().clone().into_iter().collect();
        Registry::open(&format!("{}/_squire", self.root()), &options).await.expect("the registry")
    }

    /// Every event so far, oldest first.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.with_bus(async |bus| {
            let mut consumer = bus.consumer(Queue::Events(format!("test-{}", fresh()))).await.expect("opened");
            let mut events = Vec::new();
            while let Some(delivery) = consumer.next(Duration::from_millis(400)).await.expect("taken") {
                events.extend(delivery.event().cloned());
                delivery.ack().await.expect("confirmed");
            }
            events
        })
    }

    /// Events of one type: `pass.completed`.
    pub(crate) fn events_of(&self, kind: &str) -> Vec<Event> {
        let kind = format!("io.squire.{kind}.v1");
        self.events().into_iter().filter(|e| e.event_type == kind).collect()
    }

    /// What the audit says that a run did to each dataset.
    pub(crate) fn audit(&self, run: &str) -> BTreeMap<String, DatasetEntry> {
        let run: Uuid = run.parse().expect("a run's id");
        let (_, entries, unreadable) =
            self.runtime.block_on(async { self.registry().await.run(run).await }).expect("the run's records");
        assert!(unreadable.is_empty(), "{unreadable:?}");
        entries.into_iter().map(|e| (e.uri.clone(), e)).collect()
    }

    /// How many runs the registry knows.
    pub(crate) fn runs(&self) -> usize {
        self.runtime.block_on(async { self.registry().await.runs().await }).expect("the runs").0.len()
    }

    /// A dataset in four fragments with a BTREE that covers two of them: two commits of Squire, or more.
    pub(crate) fn indexed(&self, name: &str) {
        static MADE: OnceLock<Objects> = OnceLock::new();
        let made = MADE.get_or_init(|| {
            let uri = "s3://lake/pristine/indexed";
            self.server.pylance("write", uri, json!({ "appends": 2 }));
            self.server.pylance("index", uri, json!({ "column": "id", "type": "BTREE" }));
            self.server.pylance("write", uri, json!({ "appends": 2, "start": 60 }));
            self.bucket.read("pristine/indexed")
        });
        self.bucket.write(&format!("{}/lake/{name}", self.prefix), made);
    }

    /// Datasets `t0000` and so on, each a copy of one in so many fragments.
    pub(crate) fn copies_of_one(&self, numbers: Range<usize>, appends: usize) {
        let at = format!("pristine/plain-{appends}");
        let uri = format!("s3://lake/{at}");
        if self.bucket.list(&at).is_empty() {
            self.server.pylance("write", &uri, json!({ "appends": appends }));
        }
        let made = self.bucket.read(&at);
        let mut all = Objects::new();
        for n in numbers {
            all.extend(made.iter().map(|(path, bytes)| (format!("t{n:04}/{path}"), bytes.clone())));
        }
        self.bucket.write(&format!("{}/lake", self.prefix), &all);
    }

    /// Registers `table/a/<name>`, in a warehouse of the whole root.
    pub(crate) fn register(&self, name: &str) {
        self.registry_command(&["project", "create", "p"]);
        self.registry_command(&["warehouse", "create", "w", "--project", "p", "--root", &self.root()]);
        self.registry_command(&["namespace", "create", "namespace/a", "--warehouse", "w"]);
        self.registry_command(&["table", "create", &format!("table/a/{name}"), "--location", name]);
    }

    /// A dataset in `appends` fragments.
    pub(crate) fn plain(&self, name: &str, appends: usize) {
        self.pylance("write", name, json!({ "appends": appends }));
    }

    #[track_caller]
    pub(crate) fn pylance(&self, op: &str, name: &str, args: Value) -> Value {
        self.server.pylance(op, &self.uri(name), args)
    }

    /// What pylance reads of HEAD, every index compared with a scan.
    #[track_caller]
    pub(crate) fn read(&self, name: &str) -> Value {
        self.pylance("read", name, Value::Null)
    }

    /// The versions that Squire made: `run/step/slice` by version.
    #[track_caller]
    pub(crate) fn stamps(&self, name: &str) -> BTreeMap<u64, String> {
        stamps::of(&self.bucket.read(&format!("{}/lake/{name}", self.prefix))).into_iter().collect()
    }

    #[track_caller]
    pub(crate) fn versions(&self, name: &str) -> Value {
        self.pylance("versions", name, Value::Null)["versions"].clone()
    }

    /// Every object, the record of schedules left out.
    pub(crate) fn objects(&self) -> Objects {
        let mut objects = self.bucket.read(&self.prefix);
        objects.retain(|path, _| !path.starts_with("lake/_squire/v1/schedule/"));
        objects
    }

    pub(crate) fn dead_letters(&self) -> Vec<squire_service::bus::DeadLetter> {
        self.with_bus(async |bus| bus.dead_list(100).await.expect("listed"))
    }

    /// The oracle: every dataset is whole, and nothing is left over in it.
    #[track_caller]
    pub(crate) fn oracle(&self) {
        self.ask_oracle(Leftovers::None);
    }

    /// The oracle of a test that kills or disturbs: what is left over is of kinds that such an end leaves.
    #[track_caller]
    pub(crate) fn oracle_after_harm(&self) {
        self.ask_oracle(Leftovers::Explained);
    }

    #[track_caller]
    fn ask_oracle(&self, leftovers: Leftovers) {
        let options: HashMap<String, String> = self.server.options().clone().into_iter().collect();
        let lake = Lake::new(Arc::new(move |_: &str| options.clone()), 256 << 20);
        let root = self.root();
        let found = self.runtime.block_on(async {
            // A task of its own: the oracle's stack is deep.
            tokio::spawn(async move { oracle::check(&lake, &root, leftovers).await }).await.expect("the oracle")
        });
        let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "unexplained: {lines:#?}");
    }

    /// One fragment, everything indexed, these rows, nothing given up, and the next tick finds nothing to do.
    #[track_caller]
    pub(crate) fn is_done(&self, replicas: &[&Replica], name: &str, digest: &Value) {
        let read = self.read(name);
        let expected = json!({ "fragments": 1, "unindexed": 0, "digest": digest });
        for key in ["fragments", "unindexed", "digest"] {
            assert_eq!(read[key], expected[key], "{name}: {key}: {read}");
        }
        assert!(self.dead_letters().is_empty(), "{:?}", self.dead_letters());
        let idle = self.sweep(replicas);
        assert_eq!(idle["due"], 0, "{idle}");
    }
}

/// What the replicas said of their sweeps, oldest first.
pub(crate) fn swept(replicas: &[&Replica]) -> Vec<Value> {
    let mut lines: Vec<Value> = replicas.iter().flat_map(|r| r.lines("swept the estate")).collect();
    lines.sort_by_key(|l| l["timestamp"].to_string());
    lines
}

fn url(nats: &Nats) -> String {
    format!("nats://someone:{PASSWORD}@127.0.0.1:{}", nats.port())
}

#[track_caller]
fn said(output: &Output, args: &[&str]) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {}: {}", output.status, text(&output.stderr));
    text(&output.stdout)
}
