//! Jobs: opened once, over once, pruned.

use chrono::{Duration, Utc};
use squire_registry::{Error, Job, JobState};
use uuid::Uuid;

use crate::support::Lake;

fn job(id: &str) -> Job {
    Job {
        job: id.into(),
        run: Uuid::now_v7(),
        table: "table/a/t".into(),
        request: serde_json::json!({ "type": "BTREE" }),
        key: "k".into(),
        state: JobState::Queued,
        queued_at: Utc::now(),
        started_at: None,
        finished_at: None,
        worker: None,
        attempts: 0,
        stage: None,
        percent: None,
        writes: Vec::new(),
        result: serde_json::Value::Null,
        why: None,
        error: None,
        cancel: false,
    }
}

#[tokio::test]
async fn a_job_is_opened_once_and_is_over_once() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    let first = r.job_open(job("one")).await.unwrap();
    let second = r.job_open(job("one")).await.unwrap();
    assert_eq!(first.run, second.run, "a redelivery finds the run that it began with");
    r.job_change("one", |j| j.state = JobState::Built).await.unwrap();
    let after = r.job_change("one", |j| j.state = JobState::Failed).await.unwrap();
    assert_eq!(after.state, JobState::Built, "what is over stays as it is");
    assert!(matches!(r.job_cancel("one").await, Err(Error::Refused(_))));
    assert!(matches!(r.job_cancel("two").await, Err(Error::Missing { .. })));
    r.job_requeue("one").await.unwrap();
    assert!(r.job_cancel("one").await.unwrap().cancel);
}

#[tokio::test]
async fn old_jobs_go_and_those_that_are_not_over_stay() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    for (id, age, over) in [("new", 1, true), ("old", 40, true), ("waiting", 40, false)] {
        let at = Utc::now() - Duration::days(age);
        r.job_open(Job { queued_at: at, ..job(id) }).await.unwrap();
        if over {
            r.job_change(id, |j| (j.state, j.finished_at) = (JobState::Built, Some(at))).await.unwrap();
        }
    }
    assert_eq!(r.jobs_prune(Utc::now() - Duration::days(30), 100).await.unwrap(), 1);
    let ids = |jobs: Vec<Job>| jobs.into_iter().map(|j| j.job).collect::<Vec<_>>();
    assert_eq!(ids(r.jobs().await.unwrap().0), ["new", "waiting"]);
    assert_eq!(r.jobs_prune(Utc::now() - Duration::days(30), 0).await.unwrap(), 1);
    assert_eq!(ids(r.jobs().await.unwrap().0), ["waiting"]);
    assert!(matches!(r.job("old").await, Err(Error::Missing { .. })));
}
