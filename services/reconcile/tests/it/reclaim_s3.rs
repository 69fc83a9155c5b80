//! `reclaim` through the real binary on a real S3 server, also in a bucket that keeps versions. The binary reaches the server through a
//! proxy that says of every object of the lake that it was written long ago.

use std::process::{Child, Command, Stdio};

use bytes::Bytes;
use serde_json::{Value, json};
use squire_service::planfile::{PlanFile, PlanKind};
use squire_test_support::{Action, Bucket, Gate, Objects, Proxy, Request, Server, gated, kind};

use super::output;

/// The leftovers of every estate here.
pub(super) const STRAYS: [&str; 3] = ["_deletions/0-1-9.arrow", "data/one.lance", "data/one/a b%41+ü.blob"];

/// A lake with its registry, below a prefix of its own.
pub(super) struct OnS3<'s> {
    dir: tempfile::TempDir,
    server: &'s Server,
    pub(super) proxy: Proxy,
    bucket: Bucket,
    prefix: &'static str,
}

impl<'s> OnS3<'s> {
    fn empty(server: &'s Server, prefix: &'static str) -> Self {
        Self::with_registry(server, prefix, |_| format!("s3://lake/{prefix}/_squire"))
    }

    fn with_registry(server: &'s Server, prefix: &'static str, at: impl Fn(&tempfile::TempDir) -> String) -> Self {
        let (dir, proxy) = (tempfile::tempdir().unwrap(), Proxy::ageing(server.endpoint()));
        let registry = at(&dir);
        let config = format!("[registry]\nroot = \"{registry}\"\n{}", server.storage(Some(&proxy.endpoint())));
        std::fs::write(dir.path().join("squire.toml"), config).unwrap();
        let out = Self { dir, server, proxy, bucket: server.bucket(), prefix };
        out.admin(&["init", &registry]);
        out
    }

    fn admin(&self, args: &[&str]) {
        let binary = assert_cmd::cargo::cargo_bin("squire-reconcile").with_file_name("squire-registry");
        let said = Command::new(binary).current_dir(self.dir.path()).args(args).output().unwrap();
        assert!(said.status.success(), "{args:?}: {}", String::from_utf8_lossy(&said.stderr));
    }

    /// With a table of three versions, 60 rows, and leftovers.
    pub(super) fn new(server: &'s Server, prefix: &'static str) -> Self {
        let out = Self::empty(server, prefix);
        out.orders_with_leftovers();
        out
    }

    fn orders_with_leftovers(&self) {
        self.server.pylance("write", &self.uri("orders"), json!({"rows_each": 20, "appends": 3}));
        self.write("orders", STRAYS.map(|path| (path.to_string(), Bytes::from(format!("bytes of {path}")))).into());
    }

    fn uri(&self, name: &str) -> String {
        format!("s3://lake/{}/{name}", self.prefix)
    }

    fn write(&self, at: &str, objects: Objects) {
        self.bucket.write(&format!("{}/{at}", self.prefix), &objects);
    }

    pub(super) fn orders(&self) -> Objects {
        self.bucket.read(&format!("{}/orders", self.prefix))
    }

    pub(super) fn quarantine(&self) -> Vec<String> {
        self.bucket.list(&format!("{}/_squire_quarantine", self.prefix))
    }

    pub(super) fn reclaim(&self, args: &[&str]) -> (i32, String, String) {
        output(&self.dir, &[&["reclaim"], args].concat())
    }

    pub(super) fn json(&self, args: &[&str]) -> (i32, Value) {
        let (code, out, err) = self.reclaim(&[args, &["-o", "json"]].concat());
        (code, serde_json::from_str(&out).unwrap_or_else(|e| panic!("{args:?}: {code}: {e}: {err}")))
    }

    /// Makes a plan of the lake; its id, and the report.
    pub(super) fn plan(&self) -> (String, Value) {
        let (code, report) = self.json(&["plan", &format!("s3://lake/{}", self.prefix), "--out", "plan.json"]);
        assert_eq!(code, 0, "{report:#}");
        let plan: PlanFile<Value> = PlanFile::read_for(&self.dir.path().join("plan.json"), PlanKind::Reclaim).unwrap();
        (plan.id.to_string(), report)
    }

    /// `apply`, while a test does something.
    pub(super) fn applying(&self) -> Child {
        self.running(&["apply", "plan.json"])
    }

    fn running(&self, args: &[&str]) -> Child {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("squire-reconcile"));
        command.env_clear().current_dir(self.dir.path()).arg("reclaim").args(args).args(["-o", "json"]);
        command.args(["--metrics-file", "metrics"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub(super) fn rows(&self) -> Value {
        self.server.pylance("read", &self.uri("orders"), Value::Null)["rows"].clone()
    }
}

fn cleanup(report: &Value) -> &Value {
    &report["datasets"][0]["steps"]["cleanup"]
}

/// The kinds of all findings of a report.
fn findings(report: &Value) -> Vec<&str> {
    let rows = report["datasets"].as_array().unwrap().iter().chain([report]);
    rows.flat_map(|r| r["findings"].as_array().unwrap()).map(|f| f["kind"].as_str().unwrap()).collect()
}

/// Plan, show, apply, list, undo, and for good with another plan.
fn there_and_back(estate: &OnS3<'_>, versioned: bool) {
    let told = if versioned { &["bucket_versioned"][..] } else { &[] };
    let before = estate.orders();
    estate.proxy.pass();
    let (id, planned) = estate.plan();
    assert!(estate.proxy.writes().is_empty(), "a plan writes nothing: {:?}", estate.proxy.writes());
    assert_eq!(findings(&planned), told, "{planned:#}");
    let (code, text, err) = estate.reclaim(&["show", "plan.json"]);
    assert_eq!(code, 0, "{err}");
    for part in ["3 objects", "copied and deleted", "data/one.lance", "non-current versions"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (code, report) = estate.json(&["apply", "plan.json"]);
    assert_eq!(code, 0, "{report:#}");
    assert_eq!((&cleanup(&report)["outcome"], &cleanup(&report)["files_removed"]), (&json!("done"), &json!(3)));
    assert_eq!(findings(&report), told, "{report:#}");
    let mut left = before.clone();
    STRAYS.iter().for_each(|path| assert!(left.remove(*path).is_some(), "{path}"));
    assert!(estate.orders() == left, "the strays went and nothing else");
    let (_, listed) = estate.json(&["list"]);
    assert_eq!((&listed[0]["plan"], &listed[0]["objects"]), (&json!(id), &json!(3)), "{listed}");
    let (code, rows) = estate.json(&["purge", &id]);
    assert_eq!(code, 0, "{rows}");
    assert!(rows[0]["forbidden"].to_string().contains("not_due"), "{rows}");
    let (code, undone) = estate.json(&["undo", &id]);
    assert_eq!((code, &undone[0]["back"]), (0, &json!(3)), "{undone}");
    assert!(estate.orders() == before, "byte for byte");
    assert!(estate.quarantine().is_empty(), "{:?}", estate.quarantine());

    let (id, _) = estate.plan();
    assert_eq!(estate.json(&["apply", "plan.json"]).0, 0);
    let (code, rows) = estate.json(&["purge", &id, "--set", "grace.quarantine=0s"]);
    assert_eq!((code, &rows[0]["gone"][0]), (0, &json!(3)), "{rows}");
    assert!(estate.quarantine().is_empty(), "{:?}", estate.quarantine());
    assert!(estate.orders() == left);
    assert_eq!(estate.rows(), 60);
}

#[test]
fn on_s3_it_goes_comes_back_and_is_purged_through_the_command() {
    let Some(server) = Server::shared("on_s3_it_goes_comes_back_and_is_purged_through_the_command") else { return };
    there_and_back(&OnS3::new(server, "reclaim"), false);
}

#[test]
fn a_bucket_that_keeps_versions_is_told_and_reclaimed_all_the_same() {
    let test = "a_bucket_that_keeps_versions_is_told_and_reclaimed_all_the_same";
    let Some(server) = Server::start(test, &["--empty"]) else { return };
    assert_eq!(server.pylance("versioning", "s3://lake", Value::Null)["status"], 200);
    let estate = OnS3::new(&server, "kept");
    // The report tells the bucket once, however many datasets are in it.
    server.pylance("write", &estate.uri("other"), Value::Null);
    let (code, out, err) = output(&estate.dir, &["report", "s3://lake/kept", "-o", "json"]);
    assert_eq!(code, 0, "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let told = report["findings"].as_array().unwrap().iter().filter(|f| f["kind"] == "bucket_versioned");
    let told: Vec<&Value> = told.collect();
    assert_eq!(told.len(), 1, "{report:#}");
    assert_eq!(
        (&told[0]["severity"], &told[0]["subject"]["dataset"]),
        (&json!("info"), &json!("s3://lake/kept/orders"))
    );
    assert!(told[0]["detail"].as_str().unwrap().contains("s3://lake keeps versions"), "{told:?}");
    let other = estate.bucket.list("kept/other");
    other.iter().for_each(|path| estate.bucket.delete(&format!("kept/other/{path}")));
    there_and_back(&estate, true);
}

/// HEAD's manifest was away, and comes back between the last look at what is named and the delete of its file.
#[test]
fn a_manifest_that_lands_between_the_check_and_the_delete_has_its_files_back_at_once() {
    let test = "a_manifest_that_lands_between_the_check_and_the_delete_has_its_files_back_at_once";
    let Some(server) = Server::shared(test) else { return };
    let estate = OnS3::empty(server, "lands");
    server.pylance("write", &estate.uri("orders"), json!({"rows_each": 20, "appends": 2}));
    server.pylance("write", &estate.uri("orders"), json!({"rows_each": 7, "overwrite": true}));
    let whole = estate.orders();
    let head = format!("_versions/{:020}.manifest", u64::MAX - 3);
    estate.bucket.delete(&format!("lands/orders/{head}"));
    estate.plan();
    let deletes_data = |r: &Request| {
        let paths = r.keys.iter().chain((r.method == "DELETE").then_some(&r.path));
        paths.into_iter().any(|p| p.contains("lands/orders/data/"))
    };
    let (gate, rule) = gated(deletes_data);
    estate.proxy.set(rule);
    let child = estate.applying();
    gate.arrived();
    estate.write("orders", Objects::from([(head.clone(), whole[&head].clone())]));
    gate.open();
    let ended = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(3), "{report:#}");
    assert!(cleanup(&report)["detail"].as_str().unwrap().contains("brought back at once"), "{report:#}");
    assert!(estate.orders() == whole, "{:?}", estate.orders().keys());
    assert_eq!(estate.rows(), 7);
    let metrics = std::fs::read_to_string(estate.dir.path().join("metrics")).unwrap();
    let alarm = "squire_invariant_violations_total{invariant=\"references_live\"} ";
    assert!(metrics.lines().any(|l| l.starts_with(alarm) && !l.ends_with(" 0")), "{metrics}");
}

/// The first object's delete.
fn deletes_of_orders(prefix: &str) -> impl FnMut(&Request) -> bool + Send + use<> {
    let orders = format!("{prefix}/orders/");
    move |r| {
        let paths = r.keys.iter().chain((r.method == "DELETE").then_some(&r.path));
        paths.into_iter().any(|p| p.contains(&orders))
    }
}

/// The registry is asked before every batch, and the first object of a dataset is one.
#[test]
fn a_freeze_that_comes_while_it_goes_lets_the_rest_stay() {
    let Some(server) = Server::shared("a_freeze_that_comes_while_it_goes_lets_the_rest_stay") else { return };
    let estate = OnS3::new(server, "frozen");
    let before = estate.orders();
    estate.plan();
    let (gate, rule) = gated(deletes_of_orders("frozen"));
    estate.proxy.set(rule);
    let child = estate.applying();
    gate.arrived();
    estate.admin(&["protection", "set", "estate", "freeze"]);
    gate.open();
    let ended = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert!(cleanup(&report).to_string().contains("frozen"), "{report:#}");
    assert_eq!(cleanup(&report)["files_removed"], 1, "{report:#}");
    let gone = before.keys().filter(|path| !estate.orders().contains_key(*path)).count();
    assert_eq!(gone, 1, "the one that was on its way");
}

/// A claim that cannot be renewed may be somebody else's by now: what is on its way ends, and nothing more begins.
#[test]
fn a_claim_that_cannot_be_renewed_lets_the_rest_stay() {
    let Some(server) = Server::shared("a_claim_that_cannot_be_renewed_lets_the_rest_stay") else { return };
    let estate = OnS3::new(server, "unclaimed");
    let before = estate.orders();
    estate.plan();
    let gate = Gate::new();
    let (held, mut deletes, mut began) = (gate.clone(), deletes_of_orders("unclaimed"), false);
    estate.proxy.set(move |r| {
        if deletes(r) {
            began = true;
            return Action::Hold(held.clone());
        }
        if began && kind(r) == "PUT claims" { Action::Status(403) } else { Action::Pass }
    });
    let child = estate.running(&["apply", "plan.json", "--set", "grace.claim_ttl=3s"]);
    gate.arrived();
    // One comes every third of its time: after three that were refused more than half of it has passed.
    let refused = || {
        let log = estate.proxy.log();
        let began = log.iter().position(|r| deletes_of_orders("unclaimed")(r)).unwrap();
        log[began..].iter().filter(|r| kind(r) == "PUT claims").count()
    };
    super::serve::wait("three renewals were refused", || (refused() >= 3).then_some(()));
    gate.open();
    let ended = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert!(cleanup(&report).to_string().contains("the claim is no longer ours"), "{report:#}");
    assert_eq!(cleanup(&report)["files_removed"], 1, "{report:#}");
    assert_eq!(before.keys().filter(|path| !estate.orders().contains_key(*path)).count(), 1);
}

/// A clone comes into the estate when its files are about to go: the look over everything at the end brings them back.
#[test]
fn a_clone_that_comes_while_it_goes_has_its_files_back() {
    let Some(server) = Server::shared("a_clone_that_comes_while_it_goes_has_its_files_back") else { return };
    let estate = OnS3::empty(server, "cloned");
    server.pylance("write", &estate.uri("orders"), json!({"rows_each": 20, "appends": 2}));
    server.pylance("clone", &estate.uri("orders"), json!({"to": "s3://lake/cloned-away/clone", "version": 2}));
    server.pylance("write", &estate.uri("orders"), json!({"rows_each": 7, "overwrite": true}));
    for version in [1, 2] {
        estate.bucket.delete(&format!("cloned/orders/_versions/{:020}.manifest", u64::MAX - version));
    }
    estate.plan();
    let (gate, rule) = gated(deletes_of_orders("cloned"));
    estate.proxy.set(rule);
    let child = estate.applying();
    gate.arrived();
    estate.write("clone", estate.bucket.read("cloned-away/clone"));
    gate.open();
    let ended = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(3), "{report:#}");
    let read = server.pylance("read", &estate.uri("clone"), Value::Null);
    assert_eq!(read["rows"], 40, "{report:#}");
}

/// A dropped table is no longer its registry's alone once somebody has cloned it: all of it comes back.
#[test]
fn a_dropped_table_that_is_cloned_while_it_goes_comes_back_whole() {
    let Some(server) = Server::shared("a_dropped_table_that_is_cloned_while_it_goes_comes_back_whole") else { return };
    let estate = OnS3::empty(server, "dropped");
    estate.admin(&["project", "create", "p"]);
    estate.admin(&["warehouse", "create", "w", "--project", "p", "--root", "s3://lake/dropped"]);
    estate.admin(&["namespace", "create", "namespace/n", "--warehouse", "w"]);
    for name in ["orders", "kept"] {
        server.pylance("write", &estate.uri(name), json!({"rows_each": 20, "appends": 2}));
    }
    server.pylance("clone", &estate.uri("orders"), json!({"to": "s3://lake/dropped-away/clone", "version": 2}));
    let whole = estate.orders();
    estate.admin(&["table", "create", "table/n/orders", "--location", "orders"]);
    estate.admin(&["table", "drop", "table/n/orders", "--set", "grace.trash=0s", "--apply"]);
    estate.plan();
    let (gate, rule) = gated(deletes_of_orders("dropped"));
    estate.proxy.set(rule);
    let child = estate.applying();
    gate.arrived();
    estate.write("clone", estate.bucket.read("dropped-away/clone"));
    gate.open();
    let ended = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(ended.status.code(), Some(3), "{report:#}");
    assert!(estate.orders() == whole, "{report:#}");
    assert_eq!(server.pylance("read", &estate.uri("clone"), Value::Null)["rows"], 40);
}

/// A purge asks the registry again for every hundred copies.
#[test]
fn a_freeze_that_comes_while_a_purge_goes_keeps_the_rest() {
    let Some(server) = Server::shared("a_freeze_that_comes_while_a_purge_goes_keeps_the_rest") else { return };
    let estate = OnS3::new(server, "purged");
    let many = (0..120).map(|n| (format!("data/{n:03}.lance"), Bytes::from_static(b"left over")));
    estate.write("orders", many.collect());
    let (id, _) = estate.plan();
    assert_eq!(estate.json(&["apply", "plan.json", "--set", "limits.delete_rate=10000"]).0, 0);
    let held = estate.quarantine().len();
    let (gate, rule) = gated(deletes_of_orders(&format!("purged/_squire_quarantine/{id}")));
    estate.proxy.set(rule);
    let child = estate.running(&["purge", &id, "--set", "grace.quarantine=0s"]);
    gate.arrived();
    estate.admin(&["protection", "set", "estate", "freeze"]);
    gate.open();
    let ended = child.wait_with_output().unwrap();
    let rows: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!((ended.status.code(), &rows[0]["gone"][0]), (Some(3), &json!(100)), "{rows}");
    assert!(rows[0]["failed"].to_string().contains("frozen"), "{rows}");
    assert!(estate.quarantine().len() >= held - 100);
}

#[test]
fn credentials_that_may_not_delete_leave_everything_at_its_place() {
    let Some(server) = Server::shared("credentials_that_may_not_delete_leave_everything_at_its_place") else { return };
    let estate = OnS3::new(server, "denied");
    let before = estate.orders();
    let (id, _) = estate.plan();
    let reader = "storage.delete.aws_access_key_id=fake-reader-key";
    let secret = "storage.delete.aws_secret_access_key=fake-test-secret";
    let (code, report) = estate.json(&["apply", "plan.json", "--set", reader, "--set", secret]);
    assert_eq!(code, 3, "{report:#}");
    let step = cleanup(&report);
    assert_eq!((&step["outcome"], &step["reason"]), (&json!("refused"), &json!("no_delete_permission")), "{report:#}");
    assert!(estate.orders() == before);
    // One copy was made before the first delete was denied, and no more.
    let (_, listed) = estate.json(&["list"]);
    assert_eq!(listed[0]["objects"], 1, "{listed}");
    let (code, undone) = estate.json(&["undo", &id]);
    assert_eq!((code, &undone[0]["stayed"]), (0, &json!(1)), "{undone}");
    assert!(estate.orders() == before && estate.quarantine().is_empty());
}

/// The registry is elsewhere, and the tables' own store ignores the condition of a write.
#[test]
fn a_store_that_lies_about_put_if_absent_lets_nothing_go() {
    let name = "a_store_that_lies_about_put_if_absent_lets_nothing_go";
    let Some(server) = Server::start(name, &["--liar"]) else { return };
    let estate = OnS3::with_registry(&server, "liar", |dir| dir.path().join("control").to_str().unwrap().to_owned());
    estate.orders_with_leftovers();
    let before = estate.orders();
    estate.plan();
    let (code, report) = estate.json(&["apply", "plan.json"]);
    assert_eq!(code, 3, "{report:#}");
    let row =
        report["datasets"].as_array().unwrap().iter().find(|d| d["uri"] == estate.uri("orders").as_str()).unwrap();
    assert!(row["outcome"].to_string().contains("put-if-absent"), "{row:#}");
    assert!(estate.orders() == before && estate.quarantine().is_empty());
}
