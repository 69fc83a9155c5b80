//! A contract's `retention_days` is a ceiling on how long versions are kept.

use super::common::*;
use super::replaced_at::age;

#[tokio::test(flavor = "multi_thread")]
async fn a_contract_shortens_the_retention_of_its_own_table_only() {
    let here = Here::new();
    for table in ["customers", "orders"] {
        here.table(&format!("lake/{table}"), 6, 10).await;
        age(&here, &format!("lake/{table}"), 3 * 86_400);
    }
    let flag = format!("--registry={}", here.text("lake/_squire"));
    let admin = |args: &[&str]| {
        let all: Vec<&str> = args.iter().copied().chain([flag.as_str()]).collect();
        let output = registry(&all);
        assert_ok(&output, &all.join(" "));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_ok(&registry(&["init", &here.text("lake/_squire"), "--name", "n"]), "init");
    admin(&["project", "create", "p"]);
    admin(&["warehouse", "create", "w", "--project", "p", "--root", &here.text("lake")]);
    admin(&["namespace", "create", "namespace/acme", "--warehouse", "w"]);
    for table in ["customers", "orders"] {
        admin(&["table", "create", &format!("table/acme/{table}"), "--location", table]);
    }
    let document =
        admin(&["contract", "init", "--enterprise", "acme", "--owner", "o", "--steward", "s", "--policy", "p"]);
    std::fs::write(here.path("two.json"), document.replace("365", "2")).expect("written");
    admin(&["contract", "publish", &here.text("two.json")]);

    let kept = ["plan", &here.text("lake"), "--set", "policy.retain_versions=2"].map(String::from);
    let pending = report(&kept);
    let policy = &row(&pending, "/customers")["policy"];
    assert_eq!((&policy["source"]["kind"], &policy["retention"]), (&"estate".into(), &"7d".into()), "{policy:#}");
    assert_eq!(policy["pending"]["changes"][0], "retention: 7d -> 2d (contract acme.customers)");
    assert_eq!(pending["totals"]["versions_removed"], 0);

    let now: Vec<String> = kept.iter().cloned().chain(["--set".into(), "floors.shorten_delay=0s".into()]).collect();
    let holds = report(&now);
    let policy = &row(&holds, "/customers")["policy"];
    assert_eq!((&policy["source"]["kind"], &policy["source"]["id"]), (&"contract".into(), &"acme.customers".into()));
    assert_eq!(policy["retention"], "2d");
    assert_eq!(row(&holds, "/customers")["steps"]["cleanup"]["versions_removed"], 4);
    let other = row(&holds, "/orders");
    assert_eq!(
        (&other["policy"]["source"]["kind"], &other["steps"]["cleanup"]["versions_removed"]),
        (&"estate".into(), &0.into())
    );
}
