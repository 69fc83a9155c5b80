//! Killed at each stage, on a real S3 server behind a proxy: the table stays whole, the next attempt converges, and what is left
//! over is told.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use squire_lake::Lake;
use squire_lake::look::{Look, Looked};
use squire_lake::oracle::{self, Leftovers};
use squire_registry::{Actor, JobState, NewTable, Registry, StorageOptions};
use squire_test_support::{Action, Proxy, Server, gated, kind, on_nth_of_kind};

/// A registered table on S3, and the command that reaches it through a proxy.
struct OnS3 {
    server: &'static Server,
    proxy: Proxy,
    prefix: String,
    dir: tempfile::TempDir,
    registry: Registry,
    lake: Lake,
}

impl OnS3 {
    async fn new(server: &'static Server) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let prefix = format!("ix-{}", NEXT.fetch_add(1, Ordering::SeqCst));
        let proxy = Proxy::start(server.endpoint());
        let dir = tempfile::tempdir().unwrap();
        let root = format!("s3://lake/{prefix}");
        let config = format!("{}[registry]\nroot = \"{root}/_squire\"\n", server.storage(Some(&proxy.endpoint())));
        std::fs::write(dir.path().join("squire.toml"), config).unwrap();
        let options: StorageOptions = server.options().clone().into_iter().collect();
        let registry = Registry::init(&format!("{root}/_squire"), &options, "test", Actor::current()).await.unwrap();
        registry.project_create("p", None).await.unwrap();
        registry.warehouse_create("w", "p", &root, true, &options, None).await.unwrap();
        registry.namespace_create(&["sales".to_owned()], Some("w"), None).await.unwrap();
        let uri = format!("{root}/t.lance");
        tokio::task::spawn_blocking(move || server.pylance("write", &uri, json!({ "appends": 3 }))).await.unwrap();
        let path = vec!["sales".to_owned(), "t".to_owned()];
        let new = NewTable { path, location: "t.lance".into(), tier: None, labels: vec![], declare: false };
        registry.table_create(new, &options, None).await.unwrap();
        let for_lake: HashMap<String, String> = server.options().clone().into_iter().collect();
        let lake = Lake::new(Arc::new(move |_: &str| for_lake.clone()), 256 << 20);
        Self { server, proxy, prefix, dir, registry, lake }
    }

    fn uri(&self) -> String {
        format!("s3://lake/{}/t.lance", self.prefix)
    }

    fn start(&self) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_squire-index-build"));
        for (name, _) in std::env::vars_os().filter(|(k, _)| k.to_string_lossy().starts_with("SQUIRE_")) {
            command.env_remove(name);
        }
        let file = |name: &str| std::fs::File::create(self.dir.path().join(name)).unwrap();
        command.current_dir(self.dir.path());
        command.args(["build", "table/sales/t", "--columns", "id", "--type", "BTREE", "-o", "json"]);
        let child = command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err")).spawn().unwrap();
        self.proxy.client_is(child.id());
        child
    }

    fn said(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// Waits for the end; the exit code, or the signal's number, negative.
    #[track_caller]
    fn end(&self, mut child: Child) -> i32 {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("it did not end: {}", self.said("err"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    async fn look(&self) -> Look {
        match squire_lake::look::look(&self.lake, &self.uri(), chrono::Utc::now()).await.unwrap() {
            Looked::Dataset(look) => *look,
            other => panic!("{other:?}"),
        }
    }

    /// Nothing is missing, and what nobody names is explained.
    async fn whole(&self, leftovers: Leftovers, what: &str) {
        let lines: Vec<String> =
            oracle::check(&self.lake, &self.uri(), leftovers).await.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{what}: {lines:#?}");
        let uri = self.uri();
        let server = self.server;
        let read = tokio::task::spawn_blocking(move || server.pylance("read", &uri, Value::Null)).await.unwrap();
        assert!(read["rows"].as_u64() > Some(0), "{what}: {read}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_killed_at_any_kind_of_write_loses_nothing_and_the_next_one_converges() {
    let test = "a_build_killed_at_any_kind_of_write_loses_nothing_and_the_next_one_converges";
    let Some(server) = Server::shared(test) else { return };
    let quiet = OnS3::new(server).await;
    quiet.proxy.pass();
    let child = quiet.start();
    assert_eq!(quiet.end(child), 0, "{}", quiet.said("err"));
    let mut kinds: Vec<String> = quiet.proxy.writes().iter().map(kind).collect();
    kinds.sort();
    kinds.dedup();
    for wanted in ["PUT _indices", "PUT _versions", "PUT claims", "PUT jobs", "PUT run_entries"] {
        assert!(kinds.iter().any(|k| k == wanted), "no {wanted} among {kinds:?}");
    }
    quiet.whole(Leftovers::None, "undisturbed").await;
    for (name, action) in [
        ("PUT jobs", Action::KillAfter),
        ("PUT claims", Action::KillAfter),
        ("PUT run_entries", Action::KillAfter),
        ("PUT _indices", Action::KillAfter),
        ("PUT _versions", Action::KillBefore),
        ("PUT _versions", Action::KillAfter),
    ] {
        let what = format!("{action:?} {name}");
        let s3 = OnS3::new(server).await;
        s3.proxy.set(on_nth_of_kind(name, 1, action));
        let child = s3.start();
        assert_eq!(s3.end(child), -9, "{what}: it was not killed: {}", s3.said("err"));
        s3.proxy.settle();
        s3.whole(Leftovers::Explained, &what).await;
        s3.proxy.pass();
        let child = s3.start();
        assert_eq!(s3.end(child), 0, "{what}: {}", s3.said("err"));
        let look = s3.look().await;
        assert_eq!((look.indices.len(), look.indices[0].unindexed_rows), (1, 0), "{what}");
        let stamps = look.manifests.iter().filter(|m| m.stamp.as_ref().is_some_and(|s| s.step == "build")).count();
        assert_eq!(stamps, 1, "{what}: built once in effect");
        s3.whole(Leftovers::Explained, &what).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_in_flight_is_taken_back_and_leaves_nothing() {
    let Some(server) = Server::shared("a_build_in_flight_is_taken_back_and_leaves_nothing") else { return };
    let s3 = OnS3::new(server).await;
    let version = s3.look().await.version();
    let (gate, rule) = gated(|request| request.is_write() && kind(request) == "PUT _indices");
    s3.proxy.set(rule);
    let child = s3.start();
    gate.arrived();
    let (jobs, _) = s3.registry.jobs().await.unwrap();
    assert_eq!((jobs.len(), jobs[0].state), (1, JobState::Running), "{jobs:?}");
    s3.registry.job_cancel(&jobs[0].job).await.unwrap();
    // Whether its worker sees it at once or only before the commit: nothing is committed.
    gate.open();
    assert_eq!(s3.end(child), 3, "{}", s3.said("err"));
    let said: Value = serde_json::from_str(&s3.said("out")).unwrap();
    assert_eq!(said["outcome"], "cancelled", "{said:#}");
    let look = s3.look().await;
    assert_eq!((look.version(), look.indices.len()), (version, 0), "nothing was committed");
    assert_eq!(s3.registry.job(&jobs[0].job).await.unwrap().state, JobState::Cancelled);
    s3.whole(Leftovers::None, "taken back").await;
}

/// Somebody else's compaction lands while the index is built: the commit is refused by the library, what was built goes, and the
/// next attempt covers the new fragments.
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_lands_while_an_index_is_built_costs_an_attempt_and_no_row() {
    let test = "a_compaction_that_lands_while_an_index_is_built_costs_an_attempt_and_no_row";
    let Some(server) = Server::shared(test) else { return };
    let s3 = OnS3::new(server).await;
    let mut first = true;
    let (gate, rule) = gated(move |request| {
        let hit = first && request.is_write() && kind(request) == "PUT _versions";
        first &= !hit;
        hit
    });
    s3.proxy.set(rule);
    let child = s3.start();
    gate.arrived();
    let uri = s3.uri();
    tokio::task::spawn_blocking(move || server.pylance("compact", &uri, Value::Null)).await.unwrap();
    gate.open();
    assert_eq!(s3.end(child), 0, "{}", s3.said("err"));
    let look = s3.look().await;
    let info = &look.indices[0];
    assert_eq!((look.fragments.len(), info.unindexed_rows), (1, 0), "{info:?}");
    assert!(info.indexed_rows > 0);
    s3.whole(Leftovers::None, "after the race").await;
}
