//! Trashed, deregistered, frozen, blocked and opted-out datasets get no write at all.

use super::common::*;

struct Governed {
    here: Here,
}

impl Governed {
    async fn new() -> Self {
        let here = Here::new();
        here.table("lake/ns/t", 6, 10).await;
        let this = Self { here };
        let root = this.here.text("lake");
        assert_ok(&registry(&["init", &format!("{root}/_squire"), "--name", "n"]), "init");
        this.admin(&["project", "create", "p"]);
        this.admin(&["warehouse", "create", "w", "--project", "p", "--root", &root]);
        this.admin(&["namespace", "create", "namespace/ns", "--warehouse", "w"]);
        this.admin(&["table", "create", "table/ns/t", "--location", "ns/t"]);
        this
    }

    fn admin(&self, args: &[&str]) {
        let at = format!("--registry={}/_squire", self.here.text("lake"));
        let mut all = args.to_vec();
        all.push(&at);
        assert_ok(&registry(&all), &format!("squire-registry {args:?}"));
    }

    fn swept(&self) -> serde_json::Value {
        let before = dataset_tree(&self.here.path("lake/ns"));
        let swept = report(&["sweep", &self.here.text("lake"), "--yes"]);
        assert_eq!(dataset_tree(&self.here.path("lake/ns")), before, "a file of the dataset changed");
        row(&swept, "ns/t").clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trashed_dataset_gets_no_write_and_undrop_brings_it_back() {
    let g = Governed::new().await;
    g.admin(&["table", "drop", "table/ns/t"]);
    let row = g.swept();
    assert_eq!(row["outcome"]["reason"], "trashed", "{row:#}");
    g.admin(&["trash", "undrop", "table/ns/t"]);
    let swept = report(&["sweep", &g.here.text("lake"), "--yes"]);
    assert_eq!(super::common::row(&swept, "ns/t")["outcome"]["kind"], "maintained");
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_dataset_gets_no_write_wherever_the_freeze_stands() {
    for subject in ["table/ns/t", "namespace/ns", "warehouse/w", "project/p", "estate"] {
        let g = Governed::new().await;
        g.admin(&["protection", "set", subject, "freeze"]);
        let row = g.swept();
        assert_eq!(row["outcome"]["reason"], "frozen", "{subject}: {row:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_dataset_gets_no_write() {
    let g = Governed::new().await;
    g.admin(&["block", "add", "table/ns/t", "--reason", "a migration"]);
    assert_eq!(g.swept()["outcome"]["reason"], "blocked");
}

#[tokio::test(flavor = "multi_thread")]
async fn deregistered_dataset_gets_no_write() {
    let g = Governed::new().await;
    std::fs::write(g.here.path("lake/ns/t/.lance-deregistered"), b"").expect("written");
    assert_eq!(g.swept()["outcome"]["reason"], "deregistered");
}

#[tokio::test(flavor = "multi_thread")]
async fn opted_out_dataset_gets_no_write() {
    let g = Governed::new().await;
    let lake = lake();
    let mut sample =
        squire_lake::sample::Sample::open(&lake, &g.here.uri("lake/ns/t"), Default::default()).await.expect("opened");
    sample.config(&[("squire.maintain", "off")]).await.expect("set");
    assert_eq!(g.swept()["outcome"]["reason"], "opted_out");
}

#[tokio::test(flavor = "multi_thread")]
async fn deactivated_warehouse_gets_no_write() {
    let g = Governed::new().await;
    g.admin(&["warehouse", "deactivate", "w"]);
    assert_eq!(g.swept()["outcome"]["reason"], "warehouse_inactive");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_freeze_is_not_taken_for_none() {
    let g = Governed::new().await;
    g.admin(&["protection", "set", "table/ns/t", "freeze"]);
    let records = tree(&g.here.path("lake/_squire/v1/protection"));
    std::fs::write(&records[0].0, b"{ not json").expect("written");
    let row = g.swept();
    assert_eq!(row["outcome"]["reason"], "registry_unreadable", "{row:#}");
}
