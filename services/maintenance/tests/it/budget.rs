//! `budget.rewrite_per_day`: what the clock starts fits into the fleet's day; a sweep by hand is free, and counted.

use serde_json::{Value, json};

use super::common::*;

/// Two tables that are due, the first with the greater gain.
async fn two() -> Here {
    let here = Here::new();
    here.table("lake/a", 12, 10).await;
    here.table("lake/b", 10, 10).await;
    here
}

fn run(here: &Here, verb: &[&str], per_day: &str) -> Value {
    let root = here.text("lake");
    let budget = format!("budget.rewrite_per_day={per_day}");
    let mut args = vec![verb[0], &root, "--set", "policy.max_stranded=100", "--set", "policy.interval=0s"];
    args.extend(&verb[1..]);
    if !per_day.is_empty() {
        args.extend(["--set", &budget]);
    }
    report(&args)
}

fn planned_bytes(report: &Value, name: &str) -> u64 {
    let row = row(report, name);
    assert_eq!(row["outcome"]["kind"], "planned", "{row:#}");
    row["steps"]["compact"]["rewritten_bytes"].as_u64().expect("bytes")
}

#[track_caller]
fn assert_exhausted(report: &Value, name: &str, says: &str) {
    let outcome = &row(report, name)["outcome"];
    assert_eq!((&outcome["kind"], &outcome["reason"]), (&json!("skipped"), &json!("budget_exhausted")), "{outcome}");
    assert!(outcome["detail"].as_str().expect("a detail").contains(says), "{outcome}");
}

fn rewritten(report: &Value, name: &str) -> u64 {
    let row = row(report, name);
    assert_eq!(row["outcome"]["kind"], "maintained", "{row:#}");
    row["steps"]["compact"]["rewritten_bytes"].as_u64().expect("bytes")
}

/// With this much spent today, `name` of these bytes fits into a day that has room for it, and into no smaller one.
#[track_caller]
fn assert_spent(here: &Here, spent: u64, name: &str, bytes: u64) {
    let enough = run(here, &["plan", "--due"], &format!("{}B", spent + bytes));
    assert_eq!(planned_bytes(&enough, name), bytes);
    assert_exhausted(&run(here, &["plan", "--due"], &format!("{}B", spent + bytes - 1)), name, "it fits at ");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_starts_what_fits_into_the_day_and_gives_back_what_it_did_not_need() {
    let here = two().await;
    let free = run(&here, &["plan", "--due"], "");
    let (a, b) = (planned_bytes(&free, "lake/a"), planned_bytes(&free, "lake/b"));
    // One of the two fits, and not both.
    let per_day = format!("{}B", a + b / 2);
    let plan = run(&here, &["plan", "--due"], &per_day);
    assert_eq!(planned_bytes(&plan, "lake/a"), a);
    assert_exhausted(&plan, "lake/b", "it fits at ");
    let swept = run(&here, &["sweep", "--due", "--yes"], &per_day);
    let spent = rewritten(&swept, "lake/a");
    assert_exhausted(&swept, "lake/b", "it fits at ");
    assert_eq!(spent, a, "what was replaced is what was planned");
    assert_spent(&here, spent, "lake/b", b);
    let tomorrow = (chrono::Utc::now() + chrono::Duration::days(1)).format("%Y-%m-%dT12:00:00Z").to_string();
    let next_day = run(&here, &["plan", "--due", "--at", &tomorrow], &format!("{b}B"));
    assert_eq!(planned_bytes(&next_day, "lake/b"), b);
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_by_hand_is_free_and_counted() {
    let here = two().await;
    let b = planned_bytes(&run(&here, &["plan", "--due"], ""), "lake/b");
    assert_exhausted(&run(&here, &["plan", "--due"], "1B"), "lake/b", "never");
    let swept = run(&here, &["sweep", "--yes", "--dataset", &here.uri("lake/a")], "1B");
    assert_spent(&here, rewritten(&swept, "lake/a"), "lake/b", b);
    here.oracle("lake");
}

/// A put is one, everything else is free.
const PRICED: [&str; 2] = ["--set", "prices.put_per_1000=1000"];

fn priced(here: &Here, verb: &[&str], per_day: &str) -> Value {
    let cost = format!("budget.cost_per_day={per_day}");
    run(here, &[verb, &PRICED, &["--set", &cost]].concat(), "")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_requests_cost_is_bounded_as_the_bytes_are() {
    let here = two().await;
    // Five puts are planned for each: a file and two commits.
    let plan = priced(&here, &["plan", "--due"], "8");
    assert_eq!(row(&plan, "lake/a")["outcome"]["kind"], "planned");
    assert_exhausted(&plan, "lake/b", "its requests would cost about 5.000000 and 3.000000 are left");
    assert_exhausted(&plan, "lake/b", "it fits at ");
    assert_exhausted(&priced(&here, &["plan", "--due"], "4"), "lake/a", "never");
    let swept = priced(&here, &["sweep", "--due", "--yes"], "8");
    assert_eq!(row(&swept, "lake/a")["outcome"]["kind"], "maintained");
    assert_exhausted(&swept, "lake/b", "it fits at ");
    let registry = squire_registry::Registry::open(&here.text("lake/_squire"), &Default::default()).await.expect("one");
    let spent = registry.spent_on(chrono::Utc::now().date_naive()).await.expect("read");
    let cost = swept["totals"]["cost"].as_f64().expect("a cost");
    assert!(spent.cost > 0.0 && spent.cost <= cost, "what was reserved gave way to {} of {cost}", spent.cost);
    assert!(spent.rewritten_bytes > 0, "counted, though not bounded");
    // A sweep by hand is free.
    let swept = priced(&here, &["sweep", "--yes"], "0.001");
    assert_eq!(row(&swept, "lake/b")["outcome"]["kind"], "maintained");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_deletes_from_a_bucket_takes_the_share_of_one_of_those_who_do() {
    use squire_maintenance::rates::Rates;
    let here = Here::new();
    assert_ok(&super::common::registry(&["init", &here.text("control"), "--name", "shared"]), "init");
    let open = async || squire_registry::Registry::open(&here.text("control"), &Default::default()).await.expect("one");
    let (one, two) = (Rates::default(), Rates::default());
    let (rate, _first) = one.deletes(&open().await, "s3://lake/a", 100).await.expect("known");
    assert_eq!(rate.share(), 100.0);
    let (same, again) = one.deletes(&open().await, "s3://lake/b", 100).await.expect("known");
    assert_eq!(same.share(), 100.0, "another pass of the same process");
    drop(again);
    let (other, second) = two.deletes(&open().await, "s3://lake/a", 100).await.expect("known");
    assert_eq!(other.share(), 50.0, "the second process begins with its half");
    let until = async |share: f64| {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while rate.share() != share {
            assert!(std::time::Instant::now() < deadline, "{} is not {share}", rate.share());
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    until(50.0).await;
    drop(second);
    until(100.0).await;
    let (elsewhere, _third) = two.deletes(&open().await, "s3://other/a", 100).await.expect("known");
    assert_eq!(elsewhere.share(), 100.0, "another bucket");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_spent_since_the_plan_stops_the_pass_before_it_writes() {
    for (config, spent, says) in [
        ("[budget]\nrewrite_per_day = \"1GiB\"\n", ((1 << 30) - 10, 0.0), " 10 are left"),
        ("[budget]\ncost_per_day = 100\n[prices]\nput_per_1000 = 1000\n", (0, 99.5), " 0.500000 are left"),
    ] {
        stops(config, spent, says).await;
    }
}

async fn stops(config: &str, (rewritten_bytes, cost): (u64, f64), says: &str) {
    use squire_maintenance::{apply::Tools, driver, estate};
    let here = two().await;
    std::fs::write(here.path("squire.toml"), config).expect("written");
    let config = squire_service::config::Loader::<squire_registry::Policy, squire_registry::Floors>::new(1)
        .directory(here.path(""))
        .env(Vec::<(String, String)>::new())
        .load()
        .expect("the config");
    let clock = squire_service::clock::Clock::system();
    let roots = [here.text("lake")];
    let open = estate::Estate::open(config, &roots, clock, Default::default());
    let mut estate = open.await.expect("opened");
    let settings = estate.settings(true, squire_maintenance::plan::Steps::ALL, false, None);
    let registry = estate.writable().await.expect("a registry");
    let selection = driver::Selection { due: true, ..Default::default() };
    let planned = driver::plan_estate(&estate, &selection, &settings, None).await;
    let today = estate.now().date_naive();
    let spent = squire_registry::Spending { rewritten_bytes, cost };
    registry.settle(today, Default::default(), spent).await.expect("spent");
    let before = dataset_tree(&here.path("lake"));
    let tools = Tools {
        estate,
        registry: registry.clone(),
        settings,
        rates: Default::default(),
        shutdown: squire_service::shutdown::Shutdown::manual(),
        graph: planned.graph.clone(),
        progress: std::sync::Arc::new(|_: &str| {}),
        admission: squire_maintenance::memory::Admission::new(1 << 40),
        prepared: Default::default(),
    };
    let applied = driver::apply_estate(&tools, &planned).await;
    assert_eq!(applied.len(), 2, "both were due");
    for (applied, _) in applied.values() {
        let skip = applied.skipped.as_ref().expect("skipped");
        assert_eq!(skip.reason.as_str(), "budget_exhausted");
        assert!(skip.detail.contains(says), "{}", skip.detail);
    }
    assert_eq!(dataset_tree(&here.path("lake")), before);
    assert_eq!(registry.spent_on(today).await.expect("read"), spent, "nothing stays reserved");
}

#[test]
fn a_sweep_with_bounded_requests_says_that_it_takes_part_and_does_the_same_work() {
    use super::s3_estate::{OnS3, Pristine};
    let test = "a_sweep_with_bounded_requests_says_that_it_takes_part_and_does_the_same_work";
    let Some(server) = squire_test_support::Server::shared(test) else { return };
    let pristine = Pristine::one(server);
    let estate = OnS3::copy(server, &pristine);
    let ended = estate.start(&["--set", "budget.requests_per_second=200"]).end();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(ended.row("orders")["outcome"]["kind"], "maintained", "{:#}", ended.report);
    let said = estate.proxy.log().iter().filter(|r| r.is_write() && r.path.contains("/_squire/v1/shares/")).count();
    assert!(said > 0, "nobody else could know that it takes part");
    estate.converges(&pristine, "bounded");
}
