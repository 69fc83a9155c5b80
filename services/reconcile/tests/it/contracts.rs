//! `report` holds datasets against the published contracts.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use squire_lake::contract::arrow_schema;
use squire_lake::sample::write_contracted;
use squire_registry::contract::{Contracts, Pins, starting_document};
use squire_registry::{Actor, NewTable, Registry};

use super::output;

async fn write(dir: &tempfile::TempDir, contracts: &Contracts, table: &str, days: &[i64], pinned: bool) {
    let path = dir.path().join(format!("lake/{table}.lance"));
    let uri = squire_lake::uri::canonical(path.to_str().unwrap()).unwrap();
    let pins = Pins::of(contracts, table).filter(|_| pinned).map(|p| p.properties()).unwrap_or_default();
    let pins: Vec<(String, String)> = pins.into_iter().collect();
    let moments: Vec<DateTime<Utc>> = days.iter().map(|d| Utc::now() - TimeDelta::days(*d)).collect();
    write_contracted(&uri, &arrow_schema(contracts.table(table).unwrap()), &moments, &pins).await.unwrap();
}

fn contract_findings(dir: &tempfile::TempDir) -> (i32, Vec<(String, String, String)>) {
    let (code, out, err) = output(dir, &["report", "lake", "-o", "json"]);
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {err}"));
    let datasets = report["datasets"].as_array().unwrap().iter().flat_map(|d| d["findings"].as_array().unwrap());
    let all = datasets.chain(report["findings"].as_array().unwrap());
    let text = |v: &Value| v.as_str().unwrap_or_default().rsplit('/').next().unwrap_or_default().to_owned();
    let mut found: Vec<_> = all
        .filter(|f| f["kind"].as_str().unwrap().starts_with("contract_"))
        .map(|f| {
            let dataset = text(&f["subject"]["dataset"]);
            let subject = if dataset.is_empty() { text(&f["subject"]["table"]) } else { dataset };
            (f["kind"].as_str().unwrap().to_owned(), subject, f["detail"].as_str().unwrap().to_owned())
        })
        .collect();
    found.sort();
    (code, found)
}

#[tokio::test]
async fn contracts_are_held_against_the_live_datasets() {
    let dir = tempfile::tempdir().unwrap();
    let options = Default::default();
    let at = |rel: &str| dir.path().join(rel).to_str().unwrap().to_owned();
    std::fs::create_dir(at("lake")).unwrap();
    let registry = Registry::init(&at("lake/_squire"), &options, "test", Actor::named("tester")).await.unwrap();
    registry.project_create("p", None).await.unwrap();
    registry.warehouse_create("w", "p", &at("lake"), true, &options, None).await.unwrap();
    registry.namespace_create(&["acme".to_owned()], Some("w"), None).await.unwrap();
    let contracts = Contracts::new(starting_document("acme", "platform", "data", "enterprise")).unwrap();
    let mut other = starting_document("acme", "platform", "data", "enterprise");
    other.tables[2].columns.truncate(4);
    other.tables[2].profile = squire_registry::contract::Profile::Custom;
    let other = Contracts::new(other).unwrap();

    write(&dir, &contracts, "customers", &[1, 364, 366, 1_000], true).await;
    write(&dir, &contracts, "employees", &[1], false).await;
    for table in ["customers", "employees"] {
        let (path, location) = (vec!["acme".to_owned(), table.to_owned()], format!("{table}.lance"));
        let new = NewTable { path, location, tier: None, labels: vec![], declare: false };
        registry.table_create(new, &options, None).await.unwrap();
    }
    let columns = BTreeMap::from([("customers".to_owned(), "created_at".to_owned())]);
    registry.contract_publish(&contracts, None, &columns, None).await.unwrap();
    let (code, found) = contract_findings(&dir);
    assert_eq!(code, 0, "{found:#?}");
    let kinds: Vec<(&str, &str)> = found.iter().map(|(k, s, _)| (k.as_str(), s.as_str())).collect();
    assert_eq!(
        kinds,
        [
            ("contract_pending", "customers.lance"),
            ("contract_unbound", "employees.lance"),
            ("contract_unbound", "transactions"),
        ]
    );
    assert!(found[0].2.contains("2 rows are older than retention_days = 365 by created_at"), "{}", found[0].2);
    assert!(found[2].2.contains("no table of that name is registered"), "{}", found[2].2);

    // A dataset that lacks what its contract requires.
    write(&dir, &other, "transactions", &[1], true).await;
    let path = vec!["acme".to_owned(), "transactions".to_owned()];
    let new = NewTable { path, location: "transactions.lance".into(), tier: None, labels: vec![], declare: false };
    registry.table_create(new, &options, None).await.unwrap();
    write(&dir, &contracts, "customers", &[1], true).await;
    write(&dir, &contracts, "employees", &[1], true).await;
    let (_, found) = contract_findings(&dir);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].0.as_str(), found[0].1.as_str()), ("contract_blocked", "transactions.lance"));
    assert!(found[0].2.contains("the required column `occurred_at` is missing"), "{}", found[0].2);
}
