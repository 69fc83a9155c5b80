//! The pass on a real S3 server, and on one that lies.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use squire_lake::Lake;
use squire_test_support::Server;

use super::common::*;

/// A server of its own with three datasets.
struct Served {
    server: Server,
}

impl Served {
    fn start(test: &str, flags: &[&str]) -> Option<Self> {
        let server = Server::start(test, flags)?;
        std::fs::write(server.path("squire.toml"), server.storage(None)).expect("written");
        Some(Self { server })
    }

    fn oracle(&self) {
        let options: HashMap<String, String> = self.server.options().clone().into_iter().collect();
        let lake = Lake::new(Arc::new(move |_: &str| options.clone()), 256 << 20);
        assert_explained(lake, "s3://lake", Leftovers::None, &[]);
    }

    fn run(&self, args: &[&str]) -> std::process::Output {
        let config = self.server.path("squire.toml");
        let mut all = args.to_vec();
        all.extend(["--config", config.to_str().expect("UTF-8"), "-o", "json"]);
        squire(&all)
    }
}

#[test]
fn a_lake_on_s3_comes_out_healthy_and_stays_still() {
    let Some(lake) = Served::start("a_lake_on_s3_comes_out_healthy_and_stays_still", &[]) else { return };
    let report = |output: &std::process::Output| -> Value {
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(output)))
    };
    let planned = report(&lake.run(&["plan", "s3://lake"]));
    assert_eq!(planned["totals"]["planned"], 3);
    assert_eq!(planned["totals"]["requests"]["put"], 0, "a plan puts nothing");
    assert_eq!(planned["totals"]["requests"]["delete"], 0, "a plan deletes nothing");
    let swept = report(&lake.run(&["sweep", "s3://lake", "--yes"]));
    assert_eq!(swept["totals"]["maintained"], 3, "{swept:#}");
    let again = report(&lake.run(&["sweep", "s3://lake", "--yes"]));
    assert_eq!(again["totals"]["idle"], 3, "{again:#}");
    let mut args = vec!["sweep", "s3://lake", "--yes", "--retain-versions", "2"];
    let short = one_second();
    args.extend(short.iter().map(String::as_str));
    std::thread::sleep(super::s3_estate::AGE);
    let cleaned = report(&lake.run(&args));
    assert!(cleaned["totals"]["versions_removed"].as_u64().expect("a number") >= 30, "{cleaned:#}");
    let state = lake.server.state();
    for name in ["acme-silver/orders", "medallion/bronze-x", "odd name/with space"] {
        assert_eq!((&state[name][0], &state[name][1]), (&json!(130), &json!(1)), "{state}");
    }
    lake.oracle();
}

#[test]
fn a_store_that_lies_about_put_if_absent_is_refused_before_any_write() {
    let name = "a_store_that_lies_about_put_if_absent_is_refused_before_any_write";
    let Some(lake) = Served::start(name, &["--liar"]) else { return };
    let before = tree(&lake.server.path("data/lake"));
    let output = lake.run(&["sweep", "s3://lake", "--yes"]);
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("put-if-absent"), "{}", stderr(&output));
    // What is left is the probe's own object at most.
    let after = tree(&lake.server.path("data/lake"));
    let new: Vec<_> = after.iter().filter(|f| !before.contains(f)).map(|(p, _)| p).collect();
    assert!(new.iter().all(|p| p.to_string_lossy().contains("probe")), "{new:?}");
    assert!(before.iter().all(|f| after.contains(f)), "a file changed");
}
