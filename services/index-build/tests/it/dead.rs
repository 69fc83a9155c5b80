//! What was given up, and the way back, on a real NATS server; and whoever waits for a job.

use std::path::PathBuf;

use serde_json::Value;
use squire_registry::JobState;

use crate::common::{stderr, wait};
use crate::fleet::{Fleet, told};

const BTREE: [&str; 6] = ["submit", "table/sales/t", "--columns", "id", "--type", "BTREE"];

/// The manifest of HEAD, which is cut while `work` runs, so that the table cannot be read.
fn newest_manifest(fleet: &Fleet) -> PathBuf {
    let versions = std::fs::read_dir(fleet.here.table_path().join("_versions")).unwrap();
    let manifests = versions.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "manifest"));
    // The newest sorts first.
    manifests.min().unwrap()
}

fn letters(fleet: &Fleet) -> Vec<Value> {
    fleet.said(&["dead", "list"]).as_array().unwrap().clone()
}

async fn over(fleet: &Fleet, id: &str) -> JobState {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        let job = fleet.here.registry.job(id).await.unwrap();
        if job.state.is_over() {
            return job.state;
        }
        assert!(std::time::Instant::now() < deadline, "{job:#?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_listed_shown_put_back_and_dropped() {
    let Some(fleet) = Fleet::new("a_dead_letter_is_listed_shown_put_back_and_dropped", 2, 50).await else { return };
    let manifest = newest_manifest(&fleet);
    let whole = std::fs::read(&manifest).unwrap();
    std::fs::write(&manifest, &whole[..whole.len() / 2]).unwrap();
    let once = ["--set", "bus.max_attempts=1"];
    let mut replica = fleet.replica(0, &once);
    let id = fleet.said(&BTREE)["job"].as_str().unwrap().to_owned();
    assert_eq!(over(&fleet, &id).await, JobState::Dead);
    let letter = wait("a letter", || letters(&fleet).pop());
    let n = letter["id"].as_u64().unwrap().to_string();
    let shown = fleet.said(&["dead", "show", &n]);
    assert_eq!((&shown, &shown["stream"]), (&letter, &"index".into()));
    assert_eq!(shown["original"]["data"]["table"], "table/sales/t", "{shown:#}");
    assert_eq!(shown["attempts"], 1);
    assert!(!shown["last_error"].as_str().unwrap().is_empty(), "{shown:#}");

    // The same work is queued by somebody else: the letter stays.
    replica.kill();
    let second = fleet.said(&BTREE)["job"].as_str().unwrap().to_owned();
    let out = fleet.command(&["dead", "requeue", &n]).output().unwrap();
    assert_eq!(out.status.code(), Some(3), "{}", told(&out));
    assert!(stderr(&out).contains("queued already"), "{}", told(&out));
    assert_eq!(letters(&fleet).len(), 1);

    // That one dies of the same, and its letter is dropped: its job stays dead.
    let replica = fleet.replica(1, &once);
    assert_eq!(over(&fleet, &second).await, JobState::Dead);
    let other = wait("a second letter", || letters(&fleet).into_iter().find(|l| l["id"] != letter["id"]));
    let other = other["id"].as_u64().unwrap().to_string();
    assert_eq!(fleet.said(&["dead", "drop", &other])["dropped"], true);
    let out = fleet.command(&["dead", "show", &other]).output().unwrap();
    assert_eq!(out.status.code(), Some(2), "{}", told(&out));
    assert_eq!(fleet.here.registry.job(&second).await.unwrap().state, JobState::Dead);

    // The table is mended, the first letter is put back: its own job is opened again and built.
    std::fs::write(&manifest, &whole).unwrap();
    assert_eq!(fleet.said(&["dead", "requeue", &n])["requeued"], true);
    assert_eq!(wait_built(&fleet, &id).await, JobState::Built, "{}", replica.text());
    let job = fleet.here.registry.job(&id).await.unwrap();
    assert_eq!((job.error, job.result["indexed_rows"].as_u64()), (None, Some(100)));
    assert!(letters(&fleet).is_empty());
    fleet.here.oracle().await;
}

/// A job that was dead is opened again a moment after its message is back in the queue.
async fn wait_built(fleet: &Fleet, id: &str) -> JobState {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    loop {
        let state = over(fleet, id).await;
        if state == JobState::Built || std::time::Instant::now() > deadline {
            return state;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_a_job_hears_how_it_ends() {
    let Some(fleet) = Fleet::new("whoever_waits_for_a_job_hears_how_it_ends", 1, 50).await else { return };
    // Nobody builds: the wait ends, the job stays.
    let out = fleet.command(&BTREE).args(["--wait=1s"]).output().unwrap();
    assert_eq!(out.status.code(), Some(3), "{}", told(&out));
    assert!(stderr(&out).contains("is not over yet (queued)") && stderr(&out).contains("--watch"), "{}", told(&out));
    let id = fleet.said(&["jobs", "list"])[0]["job"].as_str().unwrap().to_owned();
    let mut watching = fleet.command(&["jobs", "show", &id, "--watch"]);
    let watching = watching.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let _replica = fleet.replica(0, &[]);
    let out = watching.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", told(&out));
    assert!(stderr(&out).contains("queued"), "what it waits for is said on standard error: {}", told(&out));
    assert!(told(&out).contains("built") && told(&out).contains("BTREE id_idx on id"), "{}", told(&out));
    // What ends otherwise is exit 3 for whoever watches, and no error for whoever looks.
    let wrong = fleet.command(&["submit", "table/sales/t", "--columns", "body", "--type", "IVF_PQ"]).output().unwrap();
    let id = crate::common::stdout(&wrong).trim().to_owned();
    let watched = fleet.command(&["jobs", "show", &id, "--watch"]).output().unwrap();
    assert_eq!(watched.status.code(), Some(3), "{}", told(&watched));
    assert!(told(&watched).contains("wrong_type"), "{}", told(&watched));
    assert_eq!(fleet.command(&["jobs", "show", &id]).output().unwrap().status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_one_index_at_once_are_one_build() {
    let Some(fleet) = Fleet::new("requests_of_one_index_at_once_are_one_build", 2, 200).await else { return };
    let _one = fleet.replica(0, &[]);
    let _two = fleet.replica(1, &[]);
    let asking: Vec<_> = (0..3)
        .map(|_| {
            let mut command = fleet.command(&["-o", "json"]);
            command.args(BTREE).arg("--wait=2m");
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in asking {
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{}", told(&out));
        let job: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert!(["built", "present"].contains(&job["state"].as_str().unwrap()), "{job:#}");
    }
    let look = fleet.here.look().await;
    let stamps = look.manifests.iter().filter(|m| m.stamp.as_ref().is_some_and(|s| s.step == "build")).count();
    assert_eq!((look.indices.len(), stamps, fleet.here.index_dirs().len()), (1, 1, 1));
    fleet.here.oracle().await;
}
