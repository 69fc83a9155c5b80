//! The estate that another writer leaves, before and after: facts hold, read by that writer's own library.

use std::io::Write;
use std::process::Output;

use serde_json::Value;

use super::common::*;

struct Made {
    here: Here,
    facts: Vec<Value>,
    python: String,
}

impl Made {
    fn new(test: &str) -> Option<Self> {
        let (python, shared) = (python(test)?, shared(test)?);
        let here = Here::new();
        let script = shared.join("tools/make_estate.py");
        let output = run_python(&python, &[script.to_str().expect("UTF-8"), &here.text("estate")]);
        assert_ok(&output, "make_estate.py");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        std::fs::File::create(here.path("facts.jsonl"))
            .and_then(|mut f| f.write_all(text.as_bytes()))
            .expect("written");
        let facts = text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
        Some(Self { here, facts, python })
    }

    fn root(&self) -> String {
        self.here.text("estate/lake")
    }

    /// What pylance says of the facts.
    fn check(&self, shape: bool) -> Output {
        let (script, root, facts) = (check_py(), self.here.text("estate"), self.here.text("facts.jsonl"));
        let mut args = vec![script.as_str(), &root, &facts];
        if shape {
            args.push("--shape");
        }
        run_python(&self.python, &args)
    }
}

#[test]
fn a_messy_estate_comes_out_healthy_and_stays_still() {
    let Some(made) = Made::new("a_messy_estate_comes_out_healthy_and_stays_still") else { return };
    let before = tree(&made.here.path("estate"));
    let planned = report(&["plan", &made.root()]);
    assert_eq!(tree(&made.here.path("estate")), before, "a plan writes nothing");
    assert_eq!(planned["totals"]["seen"], made.facts.len());
    for fact in &made.facts {
        let row = row(&planned, fact["path"].as_str().expect("a path"));
        assert_eq!(row["tier"], fact["tier"], "{}", fact["path"]);
    }

    let swept = report(&["sweep", &made.root(), "--yes"]);
    for dataset in swept["datasets"].as_array().expect("datasets") {
        let kind = dataset["outcome"]["kind"].as_str().unwrap_or_default();
        assert!(matches!(kind, "maintained" | "idle"), "{dataset:#}");
    }
    assert_ok(&made.check(true), "the stated facts after the sweep");
    for fact in &made.facts {
        let row = row(&swept, fact["path"].as_str().expect("a path"));
        assert_eq!(row["after"]["fragments"], fact["fragments_after"], "{}", fact["path"]);
    }

    let settled = tree(&made.here.path("estate"));
    let again = report(&["sweep", &made.root(), "--yes"]);
    assert_eq!(again["totals"]["idle"], made.facts.len(), "{:#}", again["datasets"]);
    assert_eq!(tree(&made.here.path("estate")), settled, "a settled estate gains nothing, in the registry neither");
    let output = squire(&["plan", &made.root(), "--detailed-exitcode"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    made.here.oracle("estate/lake");
}

#[test]
fn a_hundred_versions_go_and_every_fact_still_holds() {
    let Some(made) = Made::new("a_hundred_versions_go_and_every_fact_still_holds") else { return };
    let root = made.root();
    let mut args = vec!["sweep".to_string(), root.clone(), "--yes".into()];
    args.extend(one_second());
    // The first sweep removes what was replaced more than a second before it, the second what the first replaced.
    let removed = |swept: &Value| swept["totals"]["versions_removed"].as_u64().expect("a number");
    let first = report(&args);
    assert_ok(&made.check(true), "the stated facts after the first clean-up");
    wait_until_older(&made.here.path("estate/lake"), std::time::Duration::from_millis(1_200));
    let swept = report(&args);
    assert!(removed(&first) + removed(&swept) >= 100, "{} and {} versions went", removed(&first), removed(&swept));
    assert!(removed(&swept) > 0 && swept["totals"]["reclaimed_bytes"].as_u64().expect("a number") > 0);
    assert_ok(&made.check(true), "the stated facts after clean-up");
    // The tagged version, the branch's parent and what the clone reads are still there by name.
    let retained: Vec<&str> = row(&swept, "acme-silver/models")["steps"]["cleanup"]["retained"]
        .as_array()
        .expect("retained")
        .iter()
        .filter_map(|r| r["by"].as_str())
        .collect();
    assert!(retained.contains(&"tag") && retained.contains(&"branch"), "{retained:?}");
    made.here.oracle("estate/lake");
}
