//! `submit` and `jobs`.

use std::time::{Duration, Instant};

use serde_json::json;
use squire_registry::{Job, JobState};
use squire_service::bus::Published;
use squire_service::cli::{Exit, Failure};
use squire_service::config::BusKind;
use uuid::Uuid;

use super::args::{Jobs, Request};
use super::{Context, asked, message};
use crate::estate::{Estate, failure};
use crate::serve::{self, fresh};

/// How often a job is looked at while it is waited for.
const LOOK: Duration = Duration::from_secs(1);
/// How long a request of the same index may be queued without a job.
const NOTED: Duration = Duration::from_secs(10);

/// `submit`: asks on the topic.
pub(super) async fn submit(context: Context, request: &Request, wait: Option<Duration>) -> anyhow::Result<Exit> {
    let message = message(request)?;
    if context.loaded.config.bus.kind == BusKind::Embedded {
        return Err(Failure::usage("nobody would hear it: the bus lives within one process")
            .remedy("use `build`, or set bus.kind = \"nats\"")
            .into());
    }
    let estate = Estate::open(context.loaded.clone()).await?;
    let ask = asked(&estate, message).await?;
    let squire_registry::Subject::Table(path) = &ask.table else { return Err(Failure::usage("no table").into()) };
    if estate.registry.snapshot().await.map_err(failure)?.table(path).is_none() {
        return Err(Failure::refused(format!("not_registered: {} is not registered", ask.table))
            .remedy("register it with `squire-registry table create`")
            .into());
    }
    let bus = serve::bus(&estate, &context.metrics).await?;
    let deadline = Instant::now() + NOTED;
    let (id, already) = loop {
        let run = Uuid::now_v7();
        match bus.request_build(run, &ask.message).await? {
            Published::Stored | Published::Duplicate => {
                let job = fresh(&ask, run.to_string(), run, chrono::Utc::now());
                break (estate.registry.job_open(job).await.map_err(failure)?.job, false);
            }
            // One request of an index is queued at a time: whoever asked first gets it built for both.
            Published::AlreadyQueued => {
                if let Some(id) = queued(&estate, &ask.key().to_string()).await? {
                    break (id, true);
                }
            }
        }
        // Its record is written a moment after its message; or it is over by now, and the queue takes the next one.
        if Instant::now() > deadline {
            let failure = Failure::refused("the same index is queued already, by somebody who wrote no job down");
            return Err(failure.remedy("see `squire-index-build jobs list`").into());
        }
        tokio::time::sleep(LOOK).await;
    };
    let Some(timeout) = wait else {
        let text = if already { format!("{id} is queued already") } else { id.clone() };
        context.emit(&text, &json!({ "job": id, "already_queued": already }))?;
        return Ok(Exit::Ok);
    };
    let job = follow(&context, &estate, &id, Some(timeout)).await?;
    context.emit(&line(&job), &serde_json::to_value(&job)?)?;
    Ok(exit(&job))
}

/// The job of an index that is not over.
async fn queued(estate: &Estate, key: &str) -> anyhow::Result<Option<String>> {
    let (jobs, _) = estate.registry.jobs().await.map_err(failure)?;
    Ok(jobs.into_iter().find(|j| j.key == key && !j.state.is_over()).map(|j| j.job))
}

/// Waits until a job is over; prints what changes on standard error.
async fn follow(context: &Context, estate: &Estate, id: &str, timeout: Option<Duration>) -> anyhow::Result<Job> {
    let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
    let mut last = String::new();
    loop {
        let job = estate.registry.job(id).await.map_err(failure)?;
        if job.state.is_over() {
            return Ok(job);
        }
        let now = line(&job);
        if now != last && !context.common.quiet {
            eprintln!("{}", squire_service::report::clean_lines(&now));
            last = now;
        }
        if deadline.is_some_and(|d| Instant::now() > d) {
            return Err(Failure::refused(format!("job {id} is not over yet ({})", job.state))
                .remedy(format!("it goes on; see `squire-index-build jobs show {id} --watch`"))
                .into());
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn exit(job: &Job) -> Exit {
    match job.state {
        JobState::Built | JobState::Present | JobState::Untrained => Exit::Ok,
        _ => Exit::Failed,
    }
}

/// `jobs`.
pub(super) async fn run(context: Context, verb: Jobs) -> anyhow::Result<Exit> {
    let estate = Estate::open(context.loaded.clone()).await?;
    match verb {
        Jobs::List => {
            let (jobs, unreadable) = estate.registry.jobs().await.map_err(failure)?;
            let text = if jobs.is_empty() {
                "no jobs".to_string()
            } else {
                jobs.iter().map(line).collect::<Vec<_>>().join("\n")
            };
            context.emit(&text, &serde_json::to_value(&jobs)?)?;
            for record in &unreadable {
                eprintln!("a job's record cannot be read: {record}");
            }
            Ok(if unreadable.is_empty() { Exit::Ok } else { Exit::Failed })
        }
        Jobs::Show { id, watch } => {
            let job = match watch {
                true => follow(&context, &estate, &id, None).await?,
                false => estate.registry.job(&id).await.map_err(failure)?,
            };
            context.emit(&shown(&job), &serde_json::to_value(&job)?)?;
            Ok(if watch { exit(&job) } else { Exit::Ok })
        }
        Jobs::Cancel { id } => {
            let job = estate.registry.job_cancel(&id).await.map_err(failure)?;
            let text = match job.state {
                JobState::Running => format!("{id}: its worker stops within seconds; see `jobs show {id} --watch`"),
                _ => format!("{id}: taken back; whoever takes its message ends it"),
            };
            context.emit(&text, &json!({ "job": id, "state": job.state }))?;
            Ok(Exit::Ok)
        }
    }
}

fn line(job: &Job) -> String {
    let what = |key: &str| job.request.get(key).and_then(|v| v.as_str()).unwrap_or_default().to_string();
    let columns: Vec<&str> = job
        .request
        .get("columns")
        .and_then(|c| c.as_array())
        .into_iter()
        .flatten()
        .filter_map(|c| c.as_str())
        .collect();
    let mut out =
        format!("{}  {:<9}  {} {} ({})", job.job, job.state.to_string(), job.table, what("type"), columns.join(", "));
    if let Some(stage) = &job.stage {
        out.push_str(&format!("  {stage}"));
        if let Some(percent) = job.percent {
            out.push_str(&format!(" {percent} %"));
        }
    }
    if job.cancel && !job.state.is_over() {
        out.push_str("  being taken back");
    }
    if let Some(error) = &job.error {
        let first: String = error.lines().next().unwrap_or_default().chars().take(120).collect();
        out.push_str(&format!("  {first}"));
    }
    out
}

fn shown(job: &Job) -> String {
    let mut out = vec![line(job)];
    let time = |t: chrono::DateTime<chrono::Utc>| t.format("%Y-%m-%dT%H:%M:%SZ").to_string();
    out.push(format!("queued    {}", time(job.queued_at)));
    out.extend(job.started_at.map(|t| format!("started   {}", time(t))));
    out.extend(job.finished_at.map(|t| format!("finished  {}", time(t))));
    out.extend(job.worker.as_ref().map(|w| format!("worker    {w}, attempt {}", job.attempts)));
    if let Some(detail) = job.result.get("detail").and_then(|d| d.as_str()) {
        out.push(format!("result    {detail}"));
    }
    if let Some(error) = &job.error {
        out.push(format!("error     {error}"));
    }
    if let Some(left) = job.result.get("left_behind").and_then(|l| l.as_array()) {
        let left: Vec<&str> = left.iter().filter_map(|l| l.as_str()).collect();
        out.push(format!("left      {}", left.join(", ")));
    }
    out.join("\n")
}
