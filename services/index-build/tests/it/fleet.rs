//! Jobs on the topic: a real NATS server, real replicas.

use std::process::Output;

use serde_json::Value;
use squire_registry::JobState;
use squire_test_support::Nats;

use crate::common::{Here, Replica, python, script, stderr, stdout, wait};

pub(crate) struct Fleet {
    pub(crate) here: Here,
    pub(crate) nats: Nats,
}

impl Fleet {
    pub(crate) async fn new(test: &str, fragments: i64, rows: usize) -> Option<Self> {
        let nats = Nats::start(test)?;
        Some(Self { here: Here::with_table(fragments, rows).await, nats })
    }

    pub(crate) fn command(&self, more: &[&str]) -> std::process::Command {
        let mut command = self.here.command();
        command.args(["--set", "bus.kind=nats", "--set", &format!("bus.url={}", self.nats.url())]).args(more);
        command
    }

    pub(crate) fn replica(&self, n: u32, more: &[&str]) -> Replica {
        // All of them after the verb: clap lets those before it go.
        let mut command = self.here.command();
        command.args(["serve", "--set", "bus.kind=nats", "--set", &format!("bus.url={}", self.nats.url())]).args(more);
        Replica::start(command, self.here.path(&format!("log-{n}")))
    }

    #[track_caller]
    pub(crate) fn said(&self, args: &[&str]) -> Value {
        let out = self.command(&["-o", "json"]).args(args).output().unwrap();
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", told(&out)))
    }
}

pub(crate) fn told(out: &Output) -> String {
    format!("{} {}{}", out.status, stdout(out), stderr(out))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submitted_job_is_built_shown_and_listed() {
    let Some(fleet) = Fleet::new("a_submitted_job_is_built_shown_and_listed", 3, 200).await else { return };
    let first = fleet.said(&["submit", "table/sales/t", "--columns", "vector", "--type", "IVF_PQ"]);
    let id = first["job"].as_str().unwrap().to_owned();
    let again = fleet.said(&["submit", "table/sales/t", "--columns", "vector", "--type", "ivf_pq"]);
    assert_eq!((&again["job"], &again["already_queued"]), (&first["job"], &true.into()), "one of an index is queued");
    assert_eq!(fleet.said(&["jobs", "show", &id])["state"], "queued");
    let _replica = fleet.replica(0, &[]);
    let done = fleet.said(&["jobs", "show", &id, "--watch"]);
    assert_eq!(done["state"], "built", "{done:#}");
    assert_eq!(done["result"]["indexed_rows"], 600, "{done:#}");
    assert_eq!(done["attempts"], 1);
    // A second one waits for its end, and finds the index there.
    let present = fleet.said(&["submit", "table/sales/t", "--columns", "vector", "--type", "IVF_PQ", "--wait=2m"]);
    assert_eq!(present["state"], "present", "{present:#}");
    let listed = fleet.said(&["jobs", "list"]);
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed:#}");
    // A refusal ends the wait, with what would be accepted.
    let out = fleet
        .command(&["-o", "json"])
        .args(["submit", "table/sales/t", "--columns", "body", "--type", "IVF_PQ", "--wait=2m"])
        .output()
        .unwrap();
    let refused: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((out.status.code(), refused["why"].as_str()), (Some(3), Some("wrong_type")), "{refused:#}");
    assert!(refused["error"].as_str().unwrap().contains("fixed-size list"), "{refused:#}");
    fleet.here.oracle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_job_is_taken_back() {
    let Some(fleet) = Fleet::new("a_queued_job_is_taken_back", 1, 50).await else { return };
    let id = fleet.said(&["submit", "table/sales/t", "--columns", "id", "--type", "BTREE"])["job"].clone();
    let id = id.as_str().unwrap();
    fleet.said(&["jobs", "cancel", id]);
    let _replica = fleet.replica(0, &[]);
    let done = fleet.said(&["jobs", "show", id, "--watch"]);
    assert_eq!(done["state"], "cancelled", "{done:#}");
    assert!(fleet.here.index_dirs().is_empty());
    let out = fleet.command(&[]).args(["jobs", "cancel", id]).output().unwrap();
    assert_eq!(out.status.code(), Some(3), "{}", told(&out));
    // The next request of the same index is another job.
    let next = fleet.said(&["submit", "table/sales/t", "--columns", "id", "--type", "BTREE", "--wait=2m"]);
    assert_eq!(next["state"], "built", "{next:#}");
}

/// Builds these by two replicas that share every build, and asks pylance: each answers as a scan does.
#[track_caller]
fn shared(fleet: &Fleet, python: &str, above: &str, builds: &[(&str, &str, &str)]) {
    let above = format!("limits.distribute_above={above}");
    let _one = fleet.replica(0, &["--set", &above]);
    let _two = fleet.replica(1, &["--set", &above]);
    let path = fleet.here.table_path();
    for (column, index_type, params) in builds {
        let name = format!("{column}_{index_type}");
        let what = ["submit", "table/sales/t", "--columns", column, "--type", index_type, "--name", &name];
        let done = fleet.said(&[&what[..], &["--params", params, "--replace", "--wait=2m"]].concat());
        assert_eq!(done["state"], "built", "{index_type}: {done:#}");
        assert_eq!((&done["result"]["indexed_rows"], &done["result"]["unindexed_rows"]), (&2400.into(), &0.into()));
        script(python, &["check", path.to_str().unwrap(), &name]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_that_is_built_in_segments_answers_as_a_scan_does() {
    let test = "every_type_that_is_built_in_segments_answers_as_a_scan_does";
    let (Some(python), Some(nats)) = (python(test), Nats::start(test)) else { return };
    let fleet = Fleet { here: Here::new().await, nats };
    let path = fleet.here.table_path();
    script(&python, &["write", path.to_str().unwrap(), "2400", "5"]);
    fleet.here.register("t").await;
    let scalars = [
        ("id", "BTREE", "{}"),
        ("kind", "BITMAP", "{}"),
        ("labels", "LABEL_LIST", "{}"),
        ("price", "ZONEMAP", r#"{"rows_per_zone": 50}"#),
        ("dash-ed", "BLOOMFILTER", r#"{"probability": 0.01}"#),
        ("body", "NGRAM", "{}"),
    ];
    // Five segments are merged into one before the commit, and so are vectors and full text however few they are.
    shared(&fleet, &python, "1KiB", &scalars);
    let words = r#"{"base_tokenizer": "whitespace", "stem": false, "remove_stop_words": false}"#;
    let others = [
        ("body", "INVERTED", words),
        ("vector", "IVF_PQ", r#"{"num_sub_vectors": 8, "num_partitions": 2, "max_iters": 10}"#),
        ("vector", "IVF_FLAT", r#"{"num_partitions": 2}"#),
    ];
    shared(&fleet, &python, "1KiB", &others);
    for index in fleet.here.look().await.indices {
        assert_eq!(index.segments.len(), 1, "{index:?}");
    }
    // Two segments are committed as they are.
    let bytes: u64 = fleet.here.look().await.fragments.iter().map(|f| f.bytes).sum();
    shared(&fleet, &python, &format!("{}B", bytes * 2 / 3), &scalars);
    for index in fleet.here.look().await.indices.iter().filter(|i| scalars.iter().any(|s| i.kind == s.1)) {
        assert_eq!(index.segments.len(), 2, "{index:?}");
    }
    let (jobs, _) = fleet.here.registry.jobs().await.unwrap();
    assert_eq!(jobs.len(), 15);
    for job in jobs {
        let stored = fleet.here.registry.work_list(job.run, &fleet.here.uri()).await.unwrap();
        assert!(stored.len() >= 3, "a plan and two segments at least: {stored:?}");
    }
    fleet.here.oracle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_for_the_tables_holder() {
    let Some(fleet) = Fleet::new("a_job_waits_for_the_tables_holder", 1, 50).await else { return };
    let run = uuid::Uuid::now_v7();
    let ttl = std::time::Duration::from_secs(90);
    let claim = fleet.here.registry.claim(&fleet.here.uri(), run, ttl).await.unwrap();
    let squire_registry::ClaimOutcome::Held(claim) = claim else { panic!("{claim:?}") };
    let replica = fleet.replica(0, &[]);
    let id = fleet.said(&["submit", "table/sales/t", "--columns", "id", "--type", "BTREE"])["job"].clone();
    let id = id.as_str().unwrap().to_owned();
    // It was taken, found the claim, and waits again.
    let waits = wait("it waits", || {
        let job = fleet.said(&["jobs", "show", &id]);
        job["error"].as_str().is_some_and(|e| e.contains("works on the table")).then_some(job)
    });
    assert_eq!(waits["state"], "queued", "{waits:#} {}", replica.text());
    assert!(fleet.here.index_dirs().is_empty());
    claim.release().await.unwrap();
    let done = fleet.said(&["jobs", "show", &id, "--watch"]);
    assert_eq!(done["state"], "built", "{done:#}");
    assert_eq!(fleet.here.registry.job(&id).await.unwrap().state, JobState::Built);
}
