//! Namespaces as real writers leave them: directories of pylance, Lance's own REST adapter, SeaweedFS's server, and servers that lie.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use squire_lake::authority::Authority;
use squire_lake::look::{Look, Looked, look};
use squire_lake::namespace::{Catalog as Found, Entry, Inventory, Namespace, Source, catalog, reserved};
use squire_lake::stamp::Stamper;
use squire_lake::{Kind, Lake, commit, uri};
use squire_registry::{Actor, NewWarehouse, Registry, StorageOptions};
use squire_test_support::{Action, Catalog, Proxy};
use tempfile::TempDir;
use uuid::Uuid;

use crate::support::lake;

pub(crate) fn folder() -> (TempDir, String) {
    let dir = tempfile::tempdir().expect("a folder");
    let root = uri::canonical(dir.path().to_str().expect("UTF-8")).expect("a URI");
    (dir, root)
}

fn at(dir: &TempDir) -> Value {
    json!({ "root": dir.path().to_str() })
}

fn ids(inventory: &Inventory) -> Vec<String> {
    inventory.tables.iter().map(|t| t.id.join("/")).collect()
}

fn local(entry: &Entry) -> std::path::PathBuf {
    uri::local_path(&entry.uri).expect("local")
}

/// A nested directory namespace: `orders`, `odd-name`, `a/b/deep`, and `a/later` without data.
fn nested(python: &Catalog, dir: &TempDir) {
    let at = at(dir);
    for id in [json!(["a"]), json!(["a", "b"])] {
        python.ask("namespace", &at, json!({ "id": id }));
    }
    for id in [json!(["orders"]), json!(["odd-name"]), json!(["a", "b", "deep"])] {
        python.ask("table", &at, json!({ "id": id }));
    }
    python.ask("declare", &at, json!({ "id": ["a", "later"] }));
}

#[tokio::test]
async fn a_directory_namespace_is_read_to_its_deepest_table() {
    let Some(python) = Catalog::start("a_directory_namespace_is_read…") else { return };
    let (dir, root) = folder();
    nested(&python, &dir);
    let namespace = Namespace::directory(&lake(), &root).await.expect("readable").expect("a namespace");
    assert_eq!(namespace.source(), Source::Manifest);
    let inventory = namespace.inventory().await;
    assert_eq!(inventory.unread, []);
    assert_eq!(ids(&inventory), ["a/b/deep", "a/later", "odd-name", "orders"]);
    let namespaces: Vec<Vec<String>> = inventory.namespaces.iter().cloned().collect();
    assert_eq!(namespaces, [vec!["a".to_string()], vec!["a".to_string(), "b".to_string()]]);
    for entry in &inventory.tables {
        let later = entry.id == ["a", "later"];
        assert_eq!((entry.declared_only, entry.managed), (Some(later), false), "{entry:?}");
        assert_eq!(local(entry).join("_versions").is_dir(), !later, "{entry:?}");
    }
}

#[tokio::test]
async fn a_directory_without_a_manifest_is_read_by_its_names() {
    let Some(python) = Catalog::start("a_directory_without_a_manifest…") else { return };
    let (dir, root) = folder();
    let at = json!({ "root": dir.path().to_str(), "properties": { "manifest_enabled": "false" } });
    for id in ["a b", "c-d", "gone"] {
        python.ask("table", &at, json!({ "id": [id] }));
    }
    python.ask("declare", &at, json!({ "id": ["later"] }));
    python.ask("deregister", &at, json!({ "id": ["gone"] }));
    let namespace = Namespace::directory(&lake(), &root).await.expect("readable").expect("a namespace");
    assert_eq!(namespace.source(), Source::Listing);
    let inventory = namespace.inventory().await;
    assert_eq!(inventory.unread, []);
    assert_eq!(ids(&inventory), ["a b", "c-d", "later"]);
    let places: Vec<String> = inventory.tables.iter().map(|t| t.uri.clone()).collect();
    assert_eq!(places, ["a b.lance", "c-d.lance", "later.lance"].map(|name| uri::join(&root, name)));
    assert!(inventory.tables.iter().all(|t| local(t).is_dir()));
    let known: BTreeSet<String> = ["a b.lance", "c-d.lance", "gone.lance"].map(|n| uri::join(&root, n)).into();
    let later = reserved(&lake(), &root, &known).await.expect("listed");
    assert_eq!(later.iter().map(|t| t.id.join("/")).collect::<Vec<_>>(), ["later"]);
    let look = seen(&lake(), &uri::join(&root, "gone.lance")).await;
    assert!(look.deregistered, "the marker of a directory without a manifest");
}

#[tokio::test]
async fn a_server_names_what_its_directory_names_in_pages_of_any_size() {
    let Some(python) = Catalog::start("a_server_names_what…") else { return };
    let (dir, root) = folder();
    nested(&python, &dir);
    let lake = lake();
    let directory = Namespace::directory(&lake, &root).await.expect("readable").expect("a namespace").inventory().await;
    for (tracked, size) in [("false", 1), ("true", 1_000)] {
        let properties = json!({
            "table_version_tracking_enabled": tracked, "dir_listing_to_manifest_migration_enabled": "true",
        });
        let url = python.serve(dir.path().to_str().expect("UTF-8"), properties);
        let namespace = Namespace::rest(&lake, &url).await.expect("connected").in_pages_of(size);
        let inventory = namespace.inventory().await;
        assert_eq!(inventory.unread, []);
        let places = |i: &Inventory| i.tables.iter().map(|t| (t.id.clone(), t.uri.clone())).collect::<BTreeMap<_, _>>();
        assert_eq!(places(&inventory), places(&directory));
        assert!(inventory.tables.iter().all(|t| t.managed == (tracked == "true")), "{inventory:?}");
    }
}

#[tokio::test]
async fn a_third_partys_server_is_read_too() {
    let Some(python) = Catalog::start("a_third_partys_server…") else { return };
    let served = python.ask("seaweed", &json!({}), json!({}));
    let url = served["url"].as_str().expect("a URL");
    let at = json!({ "url": url });
    for id in [json!(["lakehouse"]), json!(["lakehouse", "sales"])] {
        python.try_ask("namespace", &at, json!({ "id": id }));
    }
    let declared = python.ask("declare", &at, json!({ "id": ["lakehouse", "sales", "orders"] }));
    let inventory = Namespace::rest(&lake(), url).await.expect("connected").inventory().await;
    assert_eq!(inventory.unread, [], "its root holds no tables, and it lists whole ids");
    assert_eq!(inventory.tables.len(), 1);
    let (only, location) = (&inventory.tables[0], declared["location"].as_str().expect("a place"));
    assert_eq!(only.id, ["lakehouse", "sales", "orders"]);
    assert_eq!(only.uri, uri::canonical(location).expect("a URI"));
    assert!(inventory.namespaces.contains(&vec!["lakehouse".to_string(), "sales".to_string()]));
}

/// A server that answers each path as told: status and body.
pub(crate) fn server(answer: impl Fn(&str) -> (u16, String) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = BufReader::new(stream);
            let (mut line, mut length) = (String::new(), 0);
            let _ = stream.read_line(&mut line);
            let path = line.split(' ').nth(1).unwrap_or_default().to_string();
            loop {
                let mut header = String::new();
                let read = stream.read_line(&mut header).unwrap_or(0);
                if read <= 2 {
                    break;
                }
                if let Some(n) = header.to_lowercase().strip_prefix("content-length:") {
                    length = n.trim().parse().unwrap_or(0);
                }
            }
            let mut body = vec![0; length];
            let _ = stream.read_exact(&mut body);
            let (status, body) = answer(&path);
            let head = format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n");
            let text = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
            let _ = stream.get_mut().write_all(text.as_bytes());
        }
    });
    url
}

#[tokio::test]
async fn an_error_is_told_by_its_code_and_not_by_its_status() {
    // The statuses say something else on purpose.
    let cases = [
        (0, 200 + 204, Kind::Permanent),
        (1, 500, Kind::Open),
        (4, 503, Kind::Open),
        (11, 500, Kind::Open),
        (13, 503, Kind::Permanent),
        (14, 404, Kind::Conflict),
        (15, 404, Kind::Permanent),
        (16, 404, Kind::Permanent),
        (17, 404, Kind::Transient),
        (18, 404, Kind::Transient),
        (21, 404, Kind::Transient),
        (9_999, 404, Kind::Transient),
    ];
    for (code, status, kind) in cases {
        let url = server(move |_| (status, json!({ "code": code, "error": "told" }).to_string()));
        let namespace = Namespace::rest(&lake(), &url).await.expect("connected");
        let error = namespace.entry(&["t".to_string()]).await.expect_err("an error");
        assert_eq!(error.kind(), kind, "code {code} with status {status}: {error}");
        assert_eq!(error.to_string().contains("[storage."), code == 15 || code == 16, "{error}");
        let inventory = namespace.inventory().await;
        assert!(!inventory.is_complete() && inventory.tables.is_empty(), "code {code}: never an empty namespace");
    }
    let url = server(|_| (404, "<html>not here</html>".into()));
    let inventory = Namespace::rest(&lake(), &url).await.expect("connected").inventory().await;
    assert!(!inventory.is_complete(), "a page that is no answer");
}

#[tokio::test]
async fn lists_without_end_and_names_that_cannot_be_told_apart_are_not_read() {
    let turning = server(|path| {
        let listed = if path.contains("/table/list") { "tables" } else { "namespaces" };
        (200, json!({ listed: ["x"], "page_token": "again" }).to_string())
    });
    let inventory = Namespace::rest(&lake(), &turning).await.expect("connected").inventory().await;
    assert!(!inventory.is_complete() && inventory.tables.is_empty());
    // Each namespace holds another one.
    let deep = server(|path| {
        if path.contains("/table/list") {
            (200, json!({ "tables": [] }).to_string())
        } else {
            (200, json!({ "namespaces": ["n"] }).to_string())
        }
    });
    let inventory = Namespace::rest(&lake(), &deep).await.expect("connected").inventory().await;
    assert_eq!(inventory.namespaces.len(), 32);
    assert!(inventory.unread[0].1.contains("deeper than 32"), "{inventory:?}");
    let odd = server(|path| match path {
        p if p.contains("/table/list") => (200, json!({ "tables": ["a$b", "", "nowhere", "gone"] }).to_string()),
        p if p.contains("gone/describe") => (404, json!({ "code": 4 }).to_string()),
        p if p.contains("/describe") => (200, json!({ "table": "nowhere" }).to_string()),
        _ => (200, json!({ "namespaces": [] }).to_string()),
    });
    let inventory = Namespace::rest(&lake(), &odd).await.expect("connected").inventory().await;
    assert_eq!(inventory.tables, []);
    let whats: Vec<&str> = inventory.unread.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(whats, ["a$b", "gone", "nowhere", "the root"]);
}

#[tokio::test]
async fn a_url_with_credentials_is_refused_and_not_repeated() {
    for url in ["http://me:pass1234@host", "ftp://host", "http://", "http://host?token=pass1234"] {
        let error = Namespace::rest(&lake(), url).await.expect_err("refused");
        assert_eq!(error.kind(), Kind::Permanent);
    }
}

#[tokio::test]
async fn headers_of_the_storage_options_reach_the_server_and_others_do_not() {
    let asked = Arc::new(std::sync::Mutex::new(String::new()));
    let seen = asked.clone();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut buffer = [0; 4096];
            let n = stream.read(&mut buffer).unwrap_or(0);
            seen.lock().expect("held").push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
    });
    let options = |_: &str| {
        HashMap::from([
            ("header.authorization".to_string(), "Bearer it-is-me".to_string()),
            ("aws_secret_access_key".to_string(), "not-for-you".to_string()),
        ])
    };
    let lake = Lake::new(Arc::new(options), 256 << 20);
    let namespace = Namespace::rest(&lake, &url).await.expect("connected");
    let error = namespace.entry(&["t".to_string()]).await.expect_err("it hangs up");
    assert_eq!(error.kind(), Kind::Transient, "{error}");
    let asked = asked.lock().expect("held").clone();
    assert!(asked.contains("Bearer it-is-me") && !asked.contains("not-for-you"), "{asked}");
}

/// From now on the server takes this token alone.
fn takes(proxy: &Proxy, token: &'static str) {
    proxy.set(move |request| if request.signed_by == token { Action::Pass } else { Action::Status(401) });
}

#[tokio::test]
async fn a_token_that_ends_is_read_again_from_its_file() {
    let Some(python) = Catalog::start("a_token_that_ends…") else { return };
    let (dir, root) = folder();
    nested(&python, &dir);
    let tracked = json!({
        "table_version_tracking_enabled": "true", "dir_listing_to_manifest_migration_enabled": "true",
    });
    let proxy = Proxy::start(&python.serve(dir.path().to_str().expect("UTF-8"), tracked));
    let url = proxy.endpoint();
    let tokens = tempfile::tempdir().expect("a folder");
    let file = tokens.path().join("token");
    let named = file.to_str().expect("UTF-8").to_string();
    let options = move |_: &str| HashMap::from([("token_file".to_string(), named.clone())]);
    let lake = Lake::new(Arc::new(options), 256 << 20);
    let missing = Namespace::rest(&lake, &url).await.expect_err("there is no file yet");
    assert!(missing.kind() == Kind::Permanent && missing.to_string().contains("token_file in [storage."), "{missing}");
    for empty in ["", " \n", "two words"] {
        std::fs::write(&file, empty).expect("written");
        assert_eq!(Namespace::rest(&lake, &url).await.expect_err("no token").kind(), Kind::Permanent, "{empty:?}");
    }

    std::fs::write(&file, "first\n").expect("written");
    takes(&proxy, "first");
    let _control = told(&lake, &root, &url).await;
    let namespace = Namespace::rest(&lake, &url).await.expect("connected");
    assert_eq!(namespace.inventory().await.unread, []);
    let orders = uri::join(&root, "orders.lance");
    let before = seen(&lake, &orders).await;
    assert_eq!(before.authority.as_str(), "managed");

    takes(&proxy, "second");
    assert!(!namespace.inventory().await.is_complete(), "it has ended");
    let ended = seen(&lake, &orders).await;
    assert!(matches!(ended.authority, Authority::Unknown { .. }) && ended.dataset.is_none(), "{:?}", ended.authority);

    // The same lake, the same client, the same handle.
    std::fs::write(&file, "second").expect("written");
    assert_eq!(namespace.inventory().await.unread, []);
    assert_eq!(seen(&lake, &orders).await.authority.as_str(), "managed");
    let stamper = Stamper { estate: Uuid::new_v4(), run: Uuid::new_v4() };
    let after = commit::empty(&lake, &before.dataset.clone().expect("opened"), &stamper, 0).await.expect("committed");
    assert_eq!(after.version_id(), 2);
}

pub(crate) async fn seen(lake: &Lake, uri: &str) -> Look {
    match look(lake, uri, chrono::Utc::now()).await.expect("a look") {
        Looked::Dataset(look) => *look,
        other => panic!("{other:?}"),
    }
}

fn newest(table: &Path) -> std::path::PathBuf {
    let names = std::fs::read_dir(table.join("_versions")).expect("versions").flatten();
    names.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "manifest")).min().expect("a manifest")
}

#[tokio::test]
async fn a_catalog_that_is_broken_or_somebody_elses_is_no_empty_one() {
    let Some(python) = Catalog::start("a_catalog_that_is_broken…") else { return };
    let (dir, root) = folder();
    nested(&python, &dir);
    let deep = Namespace::directory(&lake(), &root).await.expect("readable").expect("one").inventory().await;
    let deep = deep.named(&["a", "b", "deep"].map(String::from)).expect("named").uri.clone();
    assert_eq!(seen(&lake(), &deep).await.authority, Authority::Linear);
    let manifest = newest(&dir.path().join("__manifest"));
    std::fs::write(&manifest, &std::fs::read(&manifest).expect("read")[..20]).expect("cut");
    Namespace::directory(&lake(), &root).await.expect_err("a cut manifest");
    let unclear = seen(&lake(), &deep).await;
    assert!(matches!(unclear.authority, Authority::Unknown { .. }), "{:?}", unclear.authority);
    assert!(unclear.dataset.is_none(), "it is left alone");

    let (other, root) = folder();
    let table = other.path().join("__manifest");
    crate::support::table(&uri::canonical(table.to_str().expect("UTF-8")).expect("a URI"), 1, 3).await;
    assert_eq!(catalog(&lake(), &root).await.expect_err("unknown columns").kind(), Kind::Permanent);
    squire_lake::sample::set_schema_metadata(&table, "omnigraph:internal_schema_version", "14").expect("set");
    assert_eq!(catalog(&lake(), &root).await.expect("told"), Found::Graph);
    assert!(Namespace::directory(&lake(), &root).await.expect("told").is_none());
    let (_empty, root) = folder();
    assert_eq!(catalog(&lake(), &root).await.expect("told"), Found::None);
}

#[tokio::test]
async fn a_hash_named_table_without_a_row_is_deregistered() {
    let Some(python) = Catalog::start("a_hash_named_table…") else { return };
    let (dir, root) = folder();
    nested(&python, &dir);
    let inventory = Namespace::directory(&lake(), &root).await.expect("readable").expect("one").inventory().await;
    let deep = inventory.named(&["a", "b", "deep"].map(String::from)).expect("named").uri.clone();
    assert!(!seen(&lake(), &deep).await.deregistered);
    python.ask("deregister", &at(&dir), json!({ "id": ["a", "b", "deep"] }));
    assert!(seen(&lake(), &deep).await.deregistered, "its row is gone, its data is not");
    // Registered again under another name it is a table again.
    let location = deep.rsplit('/').next().expect("a name").to_string();
    python.ask("register", &at(&dir), json!({ "id": ["a", "again"], "location": location }));
    assert!(!seen(&lake(), &deep).await.deregistered);
    // The same name where there is no namespace says nothing.
    let (alone, root) = folder();
    let uri = uri::join(&root, "deadbeef_x");
    crate::support::table(&uri, 1, 3).await;
    assert!(!seen(&lake(), &uri).await.deregistered && alone.path().exists());
}

/// A lake that is told by its registry that a server backs the root.
pub(crate) async fn backed(root: &str, url: &str) -> (TempDir, Lake) {
    let lake = lake();
    (told(&lake, root, url).await, lake)
}

/// The registry, and the lake is told.
async fn told(lake: &Lake, root: &str, url: &str) -> TempDir {
    let control = tempfile::tempdir().expect("a folder");
    let at = uri::canonical(control.path().to_str().expect("UTF-8")).expect("a URI");
    let options = StorageOptions::new();
    let (registry, _) = Registry::open_or_init(&at, &options, "t", Actor::current()).await.expect("made");
    registry.project_create("p", None).await.expect("made");
    let new = NewWarehouse { id: "w", project: "p", root, exclusive: true, namespace: Some(url) };
    registry.warehouse_make(new, &options, None).await.expect("made");
    lake.backed_by(&registry.snapshot().await.expect("read"));
    control
}

/// Nobody's again, so that another estate's registry may have the root.
fn disowned(dir: &TempDir) {
    std::fs::remove_file(dir.path().join(".squire-estate")).expect("it was marked");
}

#[tokio::test]
async fn a_managed_table_is_opened_and_committed_through_its_server() {
    let Some(python) = Catalog::start("a_managed_table…") else { return };
    let (dir, root) = folder();
    nested(&python, &dir);
    let tracked = json!({
        "table_version_tracking_enabled": "true", "dir_listing_to_manifest_migration_enabled": "true",
    });
    let url = python.serve(dir.path().to_str().expect("UTF-8"), tracked);
    let proxy = Proxy::start(&url);
    proxy.pass();
    let (_control, lake) = backed(&root, &proxy.endpoint()).await;
    let uri = uri::join(&root, "orders.lance");
    let before = seen(&lake, &uri).await;
    assert_eq!(before.authority, Authority::Managed { directory: false });
    assert!(!proxy.log().iter().any(|r| r.path.contains("/version/create")), "a look commits nothing");
    let dataset = before.dataset.clone().expect("opened");
    let stamper = Stamper { estate: Uuid::new_v4(), run: Uuid::new_v4() };
    let after = commit::empty(&lake, &dataset, &stamper, 0).await.expect("committed");
    assert_eq!((before.version(), after.version_id()), (1, 2));
    let created = proxy.log().iter().filter(|r| r.path.contains("/version/create")).count();
    assert_eq!(created, 1, "the server made the version");
    let look = seen(&lake, &uri).await;
    assert_eq!((look.version(), look.authority.as_str()), (2, "managed"));
    assert_eq!(look.head.stamp.as_ref().map(|s| s.run.clone()), Some(stamper.run.to_string()));
    let staged = std::fs::read_dir(dir.path().join("orders.lance/_versions")).expect("versions").flatten();
    assert!(
        !staged.map(|e| e.file_name()).any(|n| n.to_string_lossy().contains(".manifest-")),
        "nothing is left staged"
    );
    let rows = python.ask("rows", &json!({ "url": url }), json!({ "id": ["orders"] }));
    assert_eq!((&rows["rows"], &rows["version"]), (&10.into(), &2.into()));
    // A handle from before somebody else's commit goes on top of it, by the server's answer.
    python.ask("table", &json!({ "url": url }), json!({ "id": ["orders"], "start": 10, "mode": "append" }));
    let late = commit::empty(&lake, &dataset, &stamper, 0).await.expect("committed");
    assert_eq!(late.version_id(), 4);
    assert_eq!(python.ask("rows", &json!({ "url": url }), json!({ "id": ["orders"] }))["rows"], 20);
}

#[tokio::test]
async fn a_name_that_lance_itself_cannot_find_again_is_said() {
    let Some(python) = Catalog::start("a_name_that_lance_itself…") else { return };
    let (dir, root) = folder();
    python.ask("table", &at(&dir), json!({ "id": ["half%"] }));
    let lake = lake();
    let directory = Namespace::directory(&lake, &root).await.expect("readable").expect("a namespace");
    assert!(!directory.inventory().await.is_complete(), "its directory has two spellings");
    python.ask("table", &at(&dir), json!({ "id": ["with space"] }));
    let url = python.serve(dir.path().to_str().expect("UTF-8"), json!({}));
    let server = Namespace::rest(&lake, &url).await.expect("connected").inventory().await;
    assert!(server.unread.iter().any(|(what, _)| what == "with space"), "the client asks for with+space: {server:?}");
}

#[tokio::test]
async fn what_its_server_does_not_name_or_does_not_say_is_left_alone() {
    let Some(python) = Catalog::start("what_its_server_does_not_name…") else { return };
    let (dir, root) = folder();
    nested(&python, &dir);
    let url = python.serve(dir.path().to_str().expect("UTF-8"), json!({}));
    let (_control, lake) = backed(&root, &url).await;
    let named = seen(&lake, &uri::join(&root, "orders.lance")).await;
    assert_eq!(named.authority, Authority::Linear, "a server that leaves versions to Lance");
    let beside = uri::join(&root, "beside");
    crate::support::table(&beside, 1, 3).await;
    let look = seen(&lake, &beside).await;
    let Authority::Unknown { why, .. } = &look.authority else { panic!("{:?}", look.authority) };
    assert!(why.contains("does not name it"), "{why}");
    // A server whose newest version is not the bucket's.
    let ahead = server(move |path| match path {
        p if p.contains("/table/list") => (200, json!({ "tables": ["t"] }).to_string()),
        p if p.contains("/version/list") => {
            (200, json!({ "versions": [{ "version": 9, "manifest_path": "t/_versions/9.manifest" }] }).to_string())
        }
        p if p.contains("/describe") => (200, json!({ "location": beside, "managed_versioning": true }).to_string()),
        _ => (200, json!({ "namespaces": [] }).to_string()),
    });
    disowned(&dir);
    let (_control, lake) = backed(&root, &ahead).await;
    let look = seen(&lake, &uri::join(&root, "beside")).await;
    let Authority::Unknown { why, .. } = &look.authority else { panic!("{:?}", look.authority) };
    assert!(why.contains("newest version is 9"), "{why}");
    // A server that is away.
    disowned(&dir);
    let (_control, lake) = backed(&root, "http://127.0.0.1:9").await;
    let look = seen(&lake, &uri::join(&root, "orders.lance")).await;
    assert!(matches!(look.authority, Authority::Unknown { .. }) && look.dataset.is_none());
}

#[tokio::test]
async fn staging_manifests_of_a_directory_namespace_are_no_unknown_store() {
    let Some(python) = Catalog::start("staging_manifests_of…") else { return };
    let (dir, root) = folder();
    nested(&python, &dir);
    let versions = dir.path().join("orders.lance/_versions");
    let name = newest(&dir.path().join("orders.lance")).file_name().expect("a name").to_string_lossy().into_owned();
    std::fs::write(versions.join(format!("{name}-{}", Uuid::new_v4())), "left").expect("written");
    let lake = lake();
    let look = seen(&lake, &uri::join(&root, "orders.lance")).await;
    assert_eq!(look.authority, Authority::Managed { directory: true });
    let stamper = Stamper { estate: Uuid::new_v4(), run: Uuid::new_v4() };
    let after = commit::empty(&lake, &look.dataset.clone().expect("opened"), &stamper, 0).await.expect("committed");
    assert_eq!(after.version_id(), 2);
}
