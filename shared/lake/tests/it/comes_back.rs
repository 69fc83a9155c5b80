//! A namespace's server that was away, and two that name one root.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use squire_lake::authority::Authority;
use squire_lake::uri;
use squire_registry::{NewWarehouse, Registry, StorageOptions};

use crate::namespace::{backed, folder, seen, server};

#[tokio::test]
async fn a_server_that_was_away_is_asked_again_long_before_five_minutes_are_over() {
    let (_dir, root) = folder();
    let at = uri::join(&root, "orders");
    crate::support::table(&at, 1, 3).await;
    let well = Arc::new(AtomicBool::new(false));
    let (is_well, place) = (well.clone(), at.clone());
    let url = server(move |path| match path {
        _ if !is_well.load(Ordering::SeqCst) => (503, json!({ "code": 17, "error": "away" }).to_string()),
        p if p.contains("/table/list") => (200, json!({ "tables": ["orders"] }).to_string()),
        p if p.contains("/describe") => (200, json!({ "location": place }).to_string()),
        _ => (200, json!({ "namespaces": [] }).to_string()),
    });
    let (_control, lake) = backed(&root, &url).await;
    let away = seen(&lake, &at).await;
    assert!(matches!(away.authority, Authority::Unknown { .. }), "{:?}", away.authority);
    well.store(true, Ordering::SeqCst);
    let deadline = Instant::now() + Duration::from_secs(60);
    while seen(&lake, &at).await.authority != Authority::Linear {
        assert!(Instant::now() < deadline, "it is not asked again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn where_two_servers_name_one_root_neither_is_believed() {
    let (_dir, root) = folder();
    let at = uri::join(&root, "orders");
    crate::support::table(&at, 1, 3).await;
    let place = at.clone();
    let url = server(move |path| match path {
        p if p.contains("/table/list") => (200, json!({ "tables": ["orders"] }).to_string()),
        p if p.contains("/describe") => (200, json!({ "location": place }).to_string()),
        _ => (200, json!({ "namespaces": [] }).to_string()),
    });
    let (control, lake) = backed(&root, &url).await;
    assert_eq!(seen(&lake, &at).await.authority, Authority::Linear);
    let options = StorageOptions::new();
    let registry = Registry::open(control.path().to_str().expect("UTF-8"), &options).await.expect("opened");
    let new = NewWarehouse { id: "v", project: "p", root: &root, exclusive: true, namespace: Some(&url) };
    registry.warehouse_make(new, &options, None).await.expect("the same server");
    lake.backed_by(&registry.snapshot().await.expect("read"));
    assert_eq!(seen(&lake, &at).await.authority, Authority::Linear);
    // As two writers at the same time that were both cut off would leave it.
    let record = control.path().join("v1/warehouses/v/00000000000000000001.json");
    let text = std::fs::read_to_string(&record).expect("read");
    std::fs::write(&record, text.replace(&url, "https://another.example")).expect("written");
    let again = Registry::open(control.path().to_str().expect("UTF-8"), &options).await.expect("opened");
    lake.backed_by(&again.snapshot().await.expect("read"));
    let Authority::Unknown { why, .. } = seen(&lake, &at).await.authority else { panic!("one is believed") };
    assert!(why.contains(&url) && why.contains("https://another.example"), "{why}");
}
