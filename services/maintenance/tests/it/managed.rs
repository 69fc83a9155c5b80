//! Tables whose versions a namespace's server commits.

use serde_json::{Value, json};
use squire_registry::{Actor, NewWarehouse, Registry, StorageOptions};
use squire_test_support::{Catalog, Proxy};

use super::common::*;

/// A registry whose warehouse over `lake` is backed by a server.
async fn backed(here: &Here, url: &str) {
    let options = StorageOptions::new();
    let registry = Registry::init(&here.text("control"), &options, "t", Actor::named("tester")).await.expect("made");
    registry.project_create("p", None).await.expect("made");
    let root = here.text("lake");
    let new = NewWarehouse { id: "w", project: "p", root: &root, exclusive: true, namespace: Some(url) };
    registry.warehouse_make(new, &options, None).await.expect("made");
}

fn sweep(here: &Here) -> Value {
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let mut args = vec!["sweep".to_string(), "--registry".into(), here.text("control"), "--yes".into()];
    args.extend(one_second());
    report(&args)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_managed_table_is_compacted_through_its_server_and_keeps_its_versions() {
    let Some(python) = Catalog::start("a_managed_table_is_compacted…") else { return };
    let here = Here::new();
    std::fs::create_dir_all(here.path("lake")).expect("made");
    let tracked = json!({
        "table_version_tracking_enabled": "true", "dir_listing_to_manifest_migration_enabled": "true",
    });
    let url = python.serve(&here.text("lake"), tracked);
    let server = json!({ "url": url });
    for i in 0..12 {
        let mode = if i == 0 { "create" } else { "append" };
        python.ask("table", &server, json!({ "id": ["orders"], "start": i * 10, "mode": mode }));
    }
    here.table("lake/beside", 6, 10).await;
    let beside = dataset_tree(&here.path("lake/beside"));
    let proxy = Proxy::start(&url);
    proxy.pass();
    backed(&here, &proxy.endpoint()).await;
    let commits = |proxy: &Proxy| proxy.log().iter().filter(|r| r.path.contains("/version/create")).count();

    let swept = sweep(&here);
    let orders = row(&swept, "orders.lance");
    assert_eq!(orders["authority"], "managed", "{orders:#}");
    assert_eq!((&orders["steps"]["compact"]["outcome"], &orders["after"]["fragments"]), (&"done".into(), &1.into()));
    assert_eq!(orders["steps"]["cleanup"]["reason"], "managed_catalog", "{orders:#}");
    assert_eq!(orders["after"]["versions"], 14, "the twelve of its writer, and two of the compaction");
    assert_eq!(commits(&proxy), 2, "both were made by the server");
    let rows = python.ask("rows", &server, json!({ "id": ["orders"] }));
    assert_eq!((&rows["rows"], &rows["version"]), (&120.into(), &14.into()));
    assert_eq!(rows["ids"], json!((0..120).collect::<Vec<i32>>()));
    let other = row(&swept, "lake/beside");
    assert_eq!(other["outcome"]["reason"], "unknown_authority", "{other:#}");
    assert_eq!(dataset_tree(&here.path("lake/beside")), beside, "what the server does not name gets no write");

    // Its writer goes on where the compaction ended.
    python.ask("table", &server, json!({ "id": ["orders"], "start": 120, "mode": "append" }));
    assert_eq!(python.ask("rows", &server, json!({ "id": ["orders"] }))["rows"], 130);
    let before = dataset_tree(&here.path("lake/orders.lance"));
    drop(python);
    let away = sweep(&here);
    assert_eq!(
        row(&away, "orders.lance")["outcome"]["reason"],
        "unknown_authority",
        "a silent server stops every write"
    );
    assert_eq!(dataset_tree(&here.path("lake/orders.lance")), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_its_directory_namespace_gave_up_gets_no_write() {
    let Some(python) = Catalog::start("a_table_that_its_directory…") else { return };
    let here = Here::new();
    let root = json!({ "root": here.text("lake") });
    python.ask("namespace", &root, json!({ "id": ["a"] }));
    for (id, i) in ["kept", "gone"].iter().flat_map(|id| (0..12).map(move |i| (*id, i))) {
        let mode = if i == 0 { "create" } else { "append" };
        python.ask("table", &root, json!({ "id": ["a", id], "start": i * 10, "mode": mode }));
    }
    python.ask("deregister", &root, json!({ "id": ["a", "gone"] }));
    let dir = std::fs::read_dir(here.path("lake")).expect("listed").flatten().map(|e| e.path());
    let gone = dir.into_iter().find(|p| p.to_string_lossy().ends_with("a$gone")).expect("its data is there");
    let before = dataset_tree(&gone);
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let mut args = vec!["sweep".to_string(), here.text("lake"), "--yes".into()];
    args.extend(one_second());
    let swept = report(&args);
    assert_eq!(row(&swept, "a$gone")["outcome"]["reason"], "deregistered", "{swept:#}");
    assert_eq!(dataset_tree(&gone), before);
    let kept = row(&swept, "a$kept");
    assert_eq!((&kept["authority"], &kept["after"]["fragments"]), (&"linear".into(), &1.into()), "{kept:#}");
    assert_eq!(python.ask("rows", &root, json!({ "id": ["a", "kept"] }))["rows"], 120);
}
