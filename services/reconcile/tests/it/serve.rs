//! `serve`: the real daemon, alone and as several replicas on a real NATS server and a real S3 server.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use squire_lake::sample::{Columns, Sample};
use squire_registry::Registry;
use squire_service::bus::data::TickDue;
use squire_service::bus::{Bus, Queue, Settings, Task};
use squire_service::config;
use squire_service::telemetry::Metrics;
use squire_test_support::{Action, Bucket, Nats, Objects, Proxy, Server, on_nth_of_kind};
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(90);
/// A time of the year that no test meets.
const NEVER: &str = "0 0 0 29 2 *";

#[track_caller]
pub(super) fn wait<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "not in {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(30));
    }
}

fn binary(name: &str) -> PathBuf {
    assert_cmd::cargo::cargo_bin("squire-reconcile").with_file_name(name)
}

/// One replica.
struct Replica {
    child: Child,
    log: PathBuf,
    address: SocketAddr,
}

impl Replica {
    fn start(dir: &Path, n: usize, config: &str) -> Self {
        let (file, log) = (dir.join(format!("replica-{n}.toml")), dir.join(format!("replica-{n}.log")));
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(binary("squire-reconcile"));
        command.env_clear().current_dir(dir).args(["serve", "--log-format", "json", "--config"]).arg(&file);
        let child = command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap()).spawn().unwrap();
        let mut replica = Self { child, log, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let serving = wait("a replica serves", || {
            let ended = replica.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended with {ended:?}: {}", replica.text());
            replica.lines("serving").pop()
        });
        replica.address = serving["http"].as_str().unwrap().parse().unwrap();
        replica
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn lines(&self, message: &str) -> Vec<Value> {
        let text = self.text();
        let lines = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        lines.filter(|l| l["message"].as_str().is_some_and(|m| m.starts_with(message))).collect()
    }

    fn get(&self, page: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(stream, "GET {page} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn json(&self, page: &str) -> Value {
        let (code, body) = self.get(page);
        assert_eq!(code, 200, "{page}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The runs whose reports are kept, newest first.
    fn reports(&self) -> Vec<String> {
        let status = self.json("/status");
        status["reports"].as_array().unwrap().iter().map(|r| r["run"].as_str().unwrap().to_owned()).collect()
    }

    fn report(&self, run: &str) -> Value {
        self.json(&format!("/reports/{run}.json"))
    }

    fn metric(&self, name: &str) -> Vec<f64> {
        let (_, text) = self.get("/metrics");
        let lines = text.lines().filter_map(|l| l.strip_prefix(name)).filter(|l| l.starts_with(['{', ' ']));
        lines.map(|l| l.rsplit_once(' ').unwrap().1.parse().unwrap()).collect()
    }

    fn stop(&mut self) -> Option<i32> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        wait("a replica ends", || self.child.try_wait().unwrap()).code()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the log of process {}:\n{}", self.child.id(), self.text());
        }
        if self.child.try_wait().unwrap().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn admin(dir: &Path, config: &str, args: &[&str]) {
    let file = dir.join("admin.toml");
    std::fs::write(&file, config).unwrap();
    let out =
        Command::new(binary("squire-registry")).env_clear().args(args).arg("--config").arg(&file).output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

async fn table(path: &Path) {
    std::fs::create_dir_all(path).unwrap();
    let uri = squire_lake::uri::canonical(path.to_str().unwrap()).unwrap();
    let mut sample = Sample::new(uri, Columns::default());
    sample.write(20, 0).await.unwrap();
    sample.write(20, 20).await.unwrap();
}

fn kinds(report: &Value) -> BTreeSet<String> {
    let rows = report["datasets"].as_array().unwrap().iter().flat_map(|d| d["findings"].as_array().unwrap());
    rows.map(|f| f["kind"].as_str().unwrap().to_owned()).collect()
}

fn orphan(table: &Path, name: &str) {
    let data = table.join("data");
    let first = std::fs::read_dir(&data).unwrap().next().unwrap().unwrap().path();
    let path = data.join(format!("{name:0>32}.lance"));
    std::fs::copy(first, &path).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(8 * 86_400);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn alone_it_reports_by_its_clock_and_looks_again_only_when_a_dataset_is_due() {
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    table(&lake.join("orders")).await;
    orphan(&lake.join("orders"), "1");
    let root = lake.to_str().unwrap();
    let config = format!(
        "[estate]\nroots = [{root:?}]\n[registry]\nroot = \"{root}/_squire\"\n[schedule]\nreconcile = \"* * * * * *\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n[grace]\ndrain = \"20s\"\n"
    );
    admin(dir.path(), &config, &["init", &format!("{root}/_squire")]);
    let mut replica = Replica::start(dir.path(), 0, &config);
    let first = wait("a report", || replica.reports().pop());
    let report = replica.report(&first);
    assert_eq!((&report["kind"], &report["run"]), (&"reconcile".into(), &first.as_str().into()));
    assert!(kinds(&report).contains("orphan_file"), "{report:#}");
    let bytes = wait("the gauges follow the report", || {
        let bytes: f64 = replica.metric("squire_stored_bytes").iter().sum();
        (bytes > 0.0).then_some(bytes)
    });
    let sum: u64 = report["totals"]["stored"].as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum();
    assert!(bytes > 0.0 && sum > 0);
    assert!(replica.metric("squire_datasets").is_empty(), "the sweeps' gauges are the other daemon's");
    // A new leftover in a dataset that did not move and was looked at a moment ago waits for its day.
    orphan(&lake.join("orders"), "2");
    table(&lake.join("later")).await;
    let (run, report) = wait("a report with the new table", || {
        let run = replica.reports().remove(0);
        let report = replica.report(&run);
        (report["totals"]["seen"] == 2).then_some((run, report))
    });
    let rows = report["datasets"].as_array().unwrap();
    let orders = rows.iter().find(|d| d["uri"].as_str().unwrap().ends_with("/orders")).unwrap();
    assert!(orders["outcome"]["detail"].as_str().unwrap().starts_with("as it was on "), "{orders:#}");
    let orphans = orders["findings"].as_array().unwrap().iter().filter(|f| f["kind"] == "orphan_file").count();
    assert_eq!(orphans, 1, "{orders:#}");
    assert_eq!(report["totals"]["requests"]["delete"], 0);
    let (code, html) = replica.get(&format!("/reports/{run}"));
    assert!(code == 200 && html.starts_with("<!doctype html>") && html.contains("orphan_file"), "{html}");
    let (code, list) = replica.get("/reports");
    assert!(code == 200 && list.contains(&format!("/reports/{run}")), "{list}");
    assert_eq!(replica.get("/reports/../../v1/estate").0, 404);
    assert_eq!(replica.get(&format!("/reports/{}", Uuid::nil())).0, 404);
    assert_eq!((replica.get("/livez").0, replica.get("/readyz").0), (200, 200));
    assert_eq!(replica.stop(), Some(143));
    // The next one shows what was found, before it has looked itself.
    let quiet = config.replace("* * * * * *", NEVER);
    let next = Replica::start(dir.path(), 1, &quiet);
    wait("the gauges of the last report", || {
        (next.metric("squire_stored_bytes").iter().sum::<f64>() > 0.0).then_some(())
    });
}

/// An estate on S3, a bus, and what is said on it.
struct Estate {
    dir: tempfile::TempDir,
    nats: Nats,
    bucket: Bucket,
    config: String,
    root: String,
    prefix: &'static str,
}

impl Estate {
    fn new(test: &str, prefix: &'static str, reconcile: &str) -> Option<Self> {
        let nats = Nats::start(test)?;
        let server = Server::shared(test)?;
        let dir = tempfile::tempdir().unwrap();
        let root = format!("s3://lake/{prefix}/lake");
        let config = format!(
            "[estate]\nroots = [\"{root}\"]\n[registry]\nroot = \"{root}/_squire\"\n[bus]\nkind = \"nats\"\nurl = \"{}\"\n\
             ack_wait = \"5s\"\n[schedule]\nreconcile = \"{reconcile}\"\n[http]\nlisten = \"127.0.0.1:0\"\n{}",
            nats.url(),
            server.storage(None)
        );
        admin(dir.path(), &config, &["init", &format!("{root}/_squire"), "--name", prefix]);
        Some(Self { dir, nats, bucket: server.bucket(), config, root, prefix })
    }

    fn write(&self, name: &str, files: &Objects) {
        self.bucket.write(&format!("{}/lake/{name}", self.prefix), files);
    }

    fn replica(&self, n: usize) -> Replica {
        Replica::start(self.dir.path(), n, &self.config)
    }

    fn replica_behind(&self, proxy: &Proxy, n: usize) -> Replica {
        let direct = Server::shared("").unwrap().endpoint();
        Replica::start(self.dir.path(), n, &self.config.replace(direct, &proxy.endpoint()))
    }

    async fn bus(&self) -> Bus {
        let options = Server::shared("").unwrap().options().clone().into_iter().collect();
        let registry = Registry::open(&format!("{}/_squire", self.root), &options).await.unwrap();
        let bus = config::Bus { kind: config::BusKind::Nats, url: Some(self.nats.url()), ..config::Bus::default() };
        Bus::open(&bus, registry.name(), registry.id(), Settings::default(), Metrics::new()).await.unwrap()
    }
}

async fn files(path: &Path) -> Objects {
    table(path).await;
    let mut out = Objects::new();
    for dir in ["_versions", "data", "_transactions"] {
        for entry in std::fs::read_dir(path.join(dir)).into_iter().flatten().flatten() {
            let name = format!("{dir}/{}", entry.file_name().to_str().unwrap());
            out.insert(name, Bytes::from(std::fs::read(entry.path()).unwrap()));
        }
    }
    out
}

/// All that was said on the bus so far, as `(type, subject, kinds of findings)`.
async fn events(bus: &Bus, name: &str) -> Said {
    let mut consumer = bus.consumer(Queue::Events(name.to_string())).await.unwrap();
    let mut out = Vec::new();
    while let Some(delivery) = consumer.next(Duration::from_millis(500)).await.unwrap() {
        let event = delivery.event().unwrap().clone();
        let findings = event.data["findings"].as_array().cloned().unwrap_or_default();
        let kinds = findings.iter().map(|f| f["kind"].as_str().unwrap().to_owned()).collect();
        out.push((event.event_type, event.subject.unwrap_or_default(), kinds));
        delivery.ack().await.unwrap();
    }
    out
}

async fn tick(bus: &Bus) {
    let due = TickDue { job: Task::Reconcile, instant: chrono::Utc::now(), datasets: Vec::new() };
    bus.tick(&due, Some(Uuid::now_v7())).await.unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

type Said = Vec<(String, String, Vec<String>)>;

/// Subject and kinds of the events of one type.
fn of(said: &Said, kind: &str) -> Vec<(String, Vec<String>)> {
    let name = format!("io.squire.{kind}.v1");
    said.iter().filter(|(t, _, _)| *t == name).map(|(_, s, k)| (s.clone(), k.clone())).collect()
}

#[test]
fn of_two_replicas_one_answers_a_tick_and_says_what_is_new_and_gone() {
    let Some(estate) = Estate::new("of_two_replicas", "serve-two", NEVER) else { return };
    let (dir, tokio) = (tempfile::tempdir().unwrap(), runtime());
    let mut orders = tokio.block_on(files(&dir.path().join("orders")));
    orders.insert("media/cat.png".into(), Bytes::from_static(b"a cat"));
    estate.write("orders", &orders);
    let replicas = [estate.replica(0), estate.replica(1)];
    let bus = tokio.block_on(estate.bus());
    let reports = |n: usize| wait("reports", || Some(replicas[0].reports()).filter(|r| r.len() >= n));
    tokio.block_on(tick(&bus));
    let first = reports(1);
    let said = tokio.block_on(events(&bus, "one"));
    assert_eq!((of(&said, "run.started").len(), of(&said, "run.finished").len()), (1, 1), "{said:?}");
    let new = of(&said, "finding.new");
    assert_eq!(new.len(), 1, "{said:?}");
    assert!(new[0].0.starts_with("dataset/") && new[0].0.ends_with("orders"), "{new:?}");
    assert_eq!(new[0].1, ["foreign_file", "unregistered_dataset"]);
    // The cat goes and a dog comes.
    estate.bucket.delete("serve-two/lake/orders/media/cat.png");
    estate.write("orders", &Objects::from([("media/dog.png".to_string(), Bytes::from_static(b"a dog"))]));
    tokio.block_on(tick(&bus));
    let second = reports(2);
    assert_eq!(second.len(), 2);
    let said = tokio.block_on(events(&bus, "two"));
    let kinds = |kind: &str| of(&said, kind).into_iter().map(|(_, kinds)| kinds).collect::<Vec<_>>();
    assert_eq!(kinds("finding.new")[1..], [["foreign_file"]], "{said:?}");
    assert_eq!(kinds("finding.gone"), [["foreign_file"]], "{said:?}");
    // Whoever closed the last run speaks for the fleet; both show all reports.
    let shows = |r: &Replica| !r.metric("squire_stored_bytes").is_empty();
    wait("one of the two shows the fleet", || (replicas.iter().filter(|r| shows(r)).count() == 1).then_some(()));
    for replica in &replicas {
        assert_eq!(replica.reports(), second);
        assert_eq!(replica.report(&first[0])["run"], first[0].as_str());
    }
    let runs: usize = replicas.iter().map(|r| r.lines("reconciled the estate").len()).sum();
    assert_eq!(runs, 2, "each tick once");
    assert_eq!(estate.bucket.list("serve-two/lake/orders").len(), orders.len(), "nothing of the table is touched");
}

#[test]
fn one_instant_of_the_clock_is_one_report_whoever_is_there() {
    let Some(estate) = Estate::new("one_instant", "serve-clock", "*/3 * * * * *") else { return };
    let dir = tempfile::tempdir().unwrap();
    estate.write("orders", &runtime().block_on(files(&dir.path().join("orders"))));
    let mut replicas: Vec<Replica> = (0..3).map(|n| estate.replica(n)).collect();
    let reports = wait("four reports", || Some(replicas[0].reports()).filter(|r| r.len() >= 4));
    // A run's id carries its instant.
    let instant = |run: &String| Uuid::parse_str(run).unwrap().get_timestamp().unwrap().to_unix();
    let instants: BTreeSet<_> = reports.iter().map(instant).collect();
    assert_eq!(instants.len(), reports.len());
    assert!(instants.iter().all(|(seconds, nanos)| seconds % 3 == 0 && *nanos == 0), "{instants:?}");
    let lines: Vec<Value> = replicas.iter().flat_map(|r| r.lines("reconciled the estate")).collect();
    let runs: BTreeSet<&str> = lines.iter().map(|l| l["run"].as_str().unwrap()).collect();
    assert_eq!(runs.len(), lines.len(), "no instant was run twice: {lines:?}");
    // Drained, one after the other, in the middle of whatever they do.
    for replica in &mut replicas {
        assert_eq!(replica.stop(), Some(143));
    }
}

#[test]
fn a_replica_killed_around_its_report_leaves_one_report_and_says_nothing_twice() {
    let Some(estate) = Estate::new("a_replica_killed", "serve-killed", NEVER) else { return };
    let (dir, tokio) = (tempfile::tempdir().unwrap(), runtime());
    estate.write("orders", &tokio.block_on(files(&dir.path().join("orders"))));
    let bus = tokio.block_on(estate.bus());
    for (n, action) in [Action::KillBefore, Action::KillAfter].into_iter().enumerate() {
        // A proxy that has killed lets nobody through any more.
        let proxy = Proxy::start(Server::shared("").unwrap().endpoint());
        let mut first = estate.replica_behind(&proxy, 2 * n);
        proxy.set(on_nth_of_kind("PUT reports", 1, action));
        proxy.client_is(first.child.id());
        tokio.block_on(tick(&bus));
        wait("the first dies at its report", || first.child.try_wait().unwrap());
        assert!(proxy.killed());
        proxy.settle();
        let mut second = estate.replica(2 * n + 1);
        let done = ["reconciled the estate", "the report of this tick is there already"][n];
        wait("the second ends the tick", || second.lines(done).pop());
        assert_eq!(second.reports().len(), n + 1);
        let said = tokio.block_on(events(&bus, &format!("killed-{n}")));
        let sums = ["run.started", "run.finished", "finding.new"].map(|kind| of(&said, kind).len());
        assert_eq!(sums, [n + 1, n + 1, 1], "{said:?}");
        assert_eq!(second.stop(), Some(143));
    }
}

/// The clock goes on; the table is not due and has not moved: two requests tell so, and its folder is not even listed.
#[test]
fn a_tick_asks_an_unmoved_dataset_two_questions() {
    let Some(estate) = Estate::new("a_tick_asks_an_unmoved", "serve-unmoved", "*/2 * * * * *") else { return };
    let dir = tempfile::tempdir().unwrap();
    estate.write("orders", &runtime().block_on(files(&dir.path().join("orders"))));
    let proxy = Proxy::start(Server::shared("").unwrap().endpoint());
    proxy.pass();
    let replica = estate.replica_behind(&proxy, 0);
    let done = || replica.lines("reconciled the estate");
    wait("two reports", || (done().len() >= 2).then_some(()));
    assert_eq!(done()[0]["looked"], 1, "{:?}", done());
    let before = done().len();
    proxy.pass();
    // The one that may be under way, and two whole ones.
    wait("three more", || (done().len() >= before + 3).then_some(()));
    let log = proxy.log();
    let orders = |r: &&squire_test_support::Request| r.path.contains("/orders/") || r.query.contains("orders");
    let asked: Vec<_> = log.iter().filter(orders).collect();
    assert!(asked.len() >= 4, "{asked:#?}");
    for request in asked {
        let manifest = request.path.contains("/orders/_versions/") && request.path.ends_with(".manifest");
        assert!(request.method == "HEAD" && manifest, "{request:#?}");
    }
    assert!(done()[1..].iter().all(|l| l["looked"] == 0), "{:?}", done());
    // What is gone is found out, although its next version is not there either.
    let all = estate.bucket.list("serve-unmoved/lake/orders");
    all.iter().for_each(|path| estate.bucket.delete(&format!("serve-unmoved/lake/orders/{path}")));
    wait("a look at what is gone", || done().last().filter(|l| l["looked"] == 1 || l["seen"] == 0).map(|_| ()));
}

/// By what is known of them each of three tables needs 10,000 LISTs, and a tick has 20,000: the two that waited longest are looked at,
/// and the third by the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_tick_looks_at_what_its_lists_reach_and_the_next_at_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    for name in ["a", "b", "c"] {
        table(&lake.join(name)).await;
    }
    let root = lake.to_str().unwrap();
    let config = format!(
        "[estate]\nroots = [{root:?}]\n[registry]\nroot = \"{root}/_squire\"\n[schedule]\nreconcile = \"* * * * * *\"\n\
         [http]\nlisten = \"127.0.0.1:0\"\n[grace]\ndrain = \"20s\"\n"
    );
    admin(dir.path(), &config, &["init", &format!("{root}/_squire")]);
    let looked = |replica: &Replica, ticks: usize| -> Vec<u64> {
        let lines = wait("its ticks", || {
            let lines = replica.lines("reconciled the estate");
            (lines.len() >= ticks).then_some(lines)
        });
        lines.iter().take(ticks).map(|l| l["looked"].as_u64().unwrap()).collect()
    };
    let mut first = Replica::start(dir.path(), 0, &config);
    assert_eq!(looked(&first, 1), [3]);
    assert_eq!(first.stop(), Some(143));
    let registry = Registry::open(&format!("{root}/_squire"), &Default::default()).await.unwrap();
    let keys = ["a", "b", "c"].map(|name| {
        let uri = squire_lake::uri::canonical(lake.join(name).to_str().unwrap()).unwrap();
        format!("reconcile {uri}")
    });
    let mut known: std::collections::HashMap<String, Value> = registry.load_state(&keys).await.unwrap();
    assert_eq!(known.len(), 3);
    for (key, days) in keys.iter().zip([8, 10, 9]) {
        let state = known.get_mut(key).unwrap();
        state["at"] = (chrono::Utc::now() - chrono::Duration::days(days)).to_rfc3339().into();
        state["objects"] = 4_999_000.into();
    }
    registry.save_state(known).await.unwrap();
    let next = Replica::start(dir.path(), 1, &config);
    assert_eq!(looked(&next, 3), [2, 1, 0]);
    let runs = next.reports();
    let report = next.report(&runs[runs.len().saturating_sub(2)]);
    assert_eq!(report["totals"]["seen"], 3, "who waits is not forgotten: {report:#}");
}
