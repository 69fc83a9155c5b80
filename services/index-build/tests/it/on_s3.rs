//! A registered table on a real S3 server, behind a proxy that counts, holds and kills.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use squire_lake::Lake;
use squire_lake::look::{Look, Looked};
use squire_lake::oracle::{self, Leftovers};
use squire_registry::{Actor, NewTable, Registry, StorageOptions};
use squire_test_support::{Proxy, Server};

/// A registered table on S3, and the command that reaches it through a proxy.
pub(crate) struct OnS3 {
    pub(crate) server: &'static Server,
    pub(crate) proxy: Proxy,
    prefix: String,
    dir: tempfile::TempDir,
    pub(crate) registry: Registry,
    pub(crate) lake: Lake,
}

impl OnS3 {
    pub(crate) async fn new(server: &'static Server) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let prefix = format!("ix-{}", NEXT.fetch_add(1, Ordering::SeqCst));
        let proxy = Proxy::start(server.endpoint());
        let dir = tempfile::tempdir().unwrap();
        let root = format!("s3://lake/{prefix}");
        write_config(dir.path(), "squire.toml", server, &root, Some(&proxy.endpoint()));
        write_config(dir.path(), "direct.toml", server, &root, None);
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

    pub(crate) fn uri(&self) -> String {
        format!("s3://lake/{}/t.lance", self.prefix)
    }

    /// The command in the folder of the configurations: `squire.toml` leads through the proxy, `direct.toml` around it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_squire-index-build"));
        for (name, _) in std::env::vars_os().filter(|(k, _)| k.to_string_lossy().starts_with("SQUIRE_")) {
            command.env_remove(name);
        }
        command.current_dir(self.dir.path());
        command
    }

    /// A further proxy, and the name of the configuration that leads through it.
    pub(crate) fn another_proxy(&self, name: &str) -> Proxy {
        let proxy = Proxy::start(self.server.endpoint());
        let root = format!("s3://lake/{}", self.prefix);
        write_config(self.dir.path(), name, self.server, &root, Some(&proxy.endpoint()));
        proxy
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Directories under `_indices/` with an object in them.
    pub(crate) fn index_dirs(&self) -> BTreeSet<String> {
        let prefix = format!("{}/t.lance/_indices", self.prefix);
        // The client has a runtime of its own, and none may start within another.
        let listing = || self.server.bucket().list(&prefix);
        let objects = std::thread::scope(|s| s.spawn(listing).join()).unwrap();
        objects.iter().filter_map(|o| Some(o.split('/').next()?.to_owned())).collect()
    }

    pub(crate) fn start(&self) -> Child {
        let mut command = self.command();
        let file = |name: &str| std::fs::File::create(self.dir.path().join(name)).unwrap();
        command.args(["build", "table/sales/t", "--columns", "id", "--type", "BTREE", "-o", "json"]);
        let child = command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err")).spawn().unwrap();
        self.proxy.client_is(child.id());
        child
    }

    pub(crate) fn said(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// Waits for the end; the exit code, or the signal's number, negative.
    #[track_caller]
    pub(crate) fn end(&self, mut child: Child) -> i32 {
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

    pub(crate) async fn look(&self) -> Look {
        match squire_lake::look::look(&self.lake, &self.uri(), chrono::Utc::now()).await.unwrap() {
            Looked::Dataset(look) => *look,
            other => panic!("{other:?}"),
        }
    }

    /// Nothing is missing, and what nobody names is explained.
    pub(crate) async fn whole(&self, leftovers: Leftovers, what: &str) {
        let lines: Vec<String> =
            oracle::check(&self.lake, &self.uri(), leftovers).await.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{what}: {lines:#?}");
        let uri = self.uri();
        let server = self.server;
        let read = tokio::task::spawn_blocking(move || server.pylance("read", &uri, Value::Null)).await.unwrap();
        assert!(read["rows"].as_u64() > Some(0), "{what}: {read}");
    }
}

fn write_config(dir: &Path, name: &str, server: &Server, root: &str, endpoint: Option<&str>) {
    let config = format!("{}[registry]\nroot = \"{root}/_squire\"\n", server.storage(endpoint));
    std::fs::write(dir.join(name), config).unwrap();
}
