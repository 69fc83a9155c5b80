//! What a report and a reclaim cost, and what a report holds at once: by numbers that are known.

use serde_json::Value;
use squire_test_support::{Proxy, Server};

use super::estate::*;
use super::output;
use super::report::report;

/// `prices.KEY=PRICE` of each.
fn prices(of: &[(&str, &str)]) -> Vec<String> {
    of.iter().flat_map(|(key, price)| ["--set".to_string(), format!("prices.{key}={price}")]).collect()
}

fn priced<'a>(verb: &[&'a str], prices: &'a [String]) -> Vec<&'a str> {
    verb.iter().copied().chain(prices.iter().map(String::as_str)).collect()
}

/// A price of one for a byte and a month, and another power of a thousand for each kind of request: the sums show what was counted.
#[tokio::test]
async fn a_report_costs_what_its_prices_say() {
    let estate = Estate::new().await;
    let prices = prices(&[
        ("stored_gib_month", "1073741824"),
        ("list_per_1000", "1000"),
        ("get_per_1000", "1000000"),
        ("head_per_1000", "1000000000"),
    ]);
    let (_, whole) = report(&estate.dir, &priced(&["lake"], &prices));
    let (totals, orders) = (&whole["totals"], &row(&whole, "/orders")["stored"]);
    let classes = totals["stored"].as_object().unwrap().values().map(|v| v.as_u64().unwrap());
    assert_eq!(totals["stored_cost_per_month"].as_f64(), Some(classes.sum::<u64>() as f64), "{totals:#}");
    assert_eq!(orders["cost_per_month"].as_f64(), orders["total"].as_f64(), "{orders:#}");
    let of = |kind: &str| totals["requests"][kind].as_f64().unwrap();
    assert!(of("list") >= 2.0 && of("get") >= 3.0, "{totals:#}");
    let cost = of("list") + 1_000.0 * of("get") + 1_000_000.0 * of("head");
    assert_eq!(totals["cost"].as_f64().map(f64::round), Some(cost), "{totals:#}");
}

/// One object of one GiB: a copy, two deletes (its own and, at the purge, its copy's), three questions, and two records.
#[tokio::test]
async fn a_reclaim_costs_what_its_prices_say() {
    let estate = Estate::empty();
    estate.table("lake/orders", 1).await;
    estate.orphan("lake/orders/data/one.lance");
    let path = estate.path("lake/orders/data/one.lance");
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 30).unwrap();
    age(&path, 30);
    estate.plan();
    let prices = prices(&[
        ("stored_gib_month", "30"),
        ("copy_per_1000", "1000"),
        ("delete_per_1000", "10000"),
        ("head_per_1000", "100000"),
        ("put_per_1000", "1000000"),
    ]);
    let (code, text, err) = estate.reclaim(&priced(&["show", "plan.json", "--set", "grace.quarantine=30d"], &prices));
    assert_eq!(code, 0, "{err}");
    assert!(text.contains("cost: 2321.0000 for requests, 30.0000 for storage until then"), "{text}");
}

/// What a look holds, all of a dataset's names and manifests, is let go before the next one is taken: no more of them at once than
/// `limits.concurrency`, however many datasets there are.
#[test]
fn no_more_looks_are_held_at_once_than_the_concurrency_allows() {
    let Some(server) = Server::shared("no_more_looks_are_held_at_once_than_the_concurrency_allows") else { return };
    let (dir, bucket) = (tempfile::tempdir().unwrap(), server.bucket());
    server.pylance("write", "s3://lake/held/t0", serde_json::json!({"rows_each": 5, "appends": 5}));
    let objects = bucket.read("held/t0");
    (1..6).for_each(|n| bucket.write(&format!("held/t{n}"), &objects));
    let proxy = Proxy::ageing(server.endpoint());
    std::fs::write(dir.path().join("squire.toml"), server.storage(Some(&proxy.endpoint()))).unwrap();
    proxy.pass();
    let (code, out, err) = output(&dir, &["report", "s3://lake/held", "--set", "limits.concurrency=1", "-o", "json"]);
    assert_eq!(code, 0, "{err}");
    let whole: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(whole["totals"]["seen"], 6);
    let log = proxy.log();
    let manifests = log.iter().filter(|r| r.method == "GET" && r.path.ends_with(".manifest"));
    let mut names: Vec<&str> = manifests.map(|r| r.path.split('/').nth(3).unwrap()).collect();
    assert_eq!(names.len(), 30, "{names:?}");
    names.dedup();
    assert_eq!(names.len(), 6, "one after the other: {names:?}");
}

/// A retention ends on a day, and what a hold keeps as well does not go then.
#[tokio::test]
async fn what_a_hold_keeps_is_told_as_the_holds_and_of_no_end() {
    let estate = Estate::empty();
    estate.table("lake/orders", 2).await;
    let held = || {
        let (_, whole) = report(&estate.dir, &["lake"]);
        row(&whole, "/orders")["stored"]["held"].as_array().unwrap().clone()
    };
    let orders = format!("dataset/{}", percent(&estate.uri("lake/orders")));
    let by_age = held();
    assert!(by_age.len() == 1 && by_age[0]["by"] == "retention" && by_age[0]["until"].is_string(), "{by_age:?}");
    estate.admin(&["protection", "set", &orders, "keep-history"]);
    let by_hold = held();
    assert!(by_hold.len() == 1 && by_hold[0]["by"] == "hold" && by_hold[0]["until"].is_null(), "{by_hold:?}");
    assert_eq!((&by_hold[0]["versions"], &by_hold[0]["bytes"]), (&by_age[0]["versions"], &by_age[0]["bytes"]));
}
