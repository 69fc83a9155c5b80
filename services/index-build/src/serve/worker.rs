//! The workers: each takes one message at a time, works, and says what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use sha2::{Digest, Sha256};
use squire_lake::Kind;
use squire_registry::{Job, JobState};
use squire_service::bus::data::{IndexBuild, IndexData, Request, SegmentRequested};
use squire_service::bus::{Consumer, DeadLetter, DeadReason, Delivery, Event, EventType, Queue};
use squire_service::telemetry::{Metrics, index_type};
use tracing::Instrument as _;
use uuid::Uuid;

use super::{BACK_OFF, Daemon, PULL};
use crate::ask::Ask;
use crate::build;
use crate::report::{End, Outcome};

/// After somebody else's claim, at most.
const CLAIMED: Duration = Duration::from_secs(15);
/// The first delay after a failure that may pass; doubled with every attempt.
const RETRY: Duration = Duration::from_secs(5);

/// Takes builds or segments until a stop.
pub(super) async fn run(daemon: Arc<Daemon>, queue: Queue) {
    let mut consumer: Option<Consumer> = None;
    while !daemon.bench.shutdown.is_requested() {
        if consumer.is_none() {
            match daemon.bus.consumer(queue.clone()).await {
                Ok(opened) => consumer = Some(opened),
                Err(e) => {
                    tracing::warn!(error = %e, ?queue, "a queue cannot be opened; it is tried again");
                    daemon.pause(BACK_OFF).await;
                    continue;
                }
            }
        }
        let Some(open) = consumer.as_mut() else { continue };
        let next = tokio::select! {
            next = open.next(PULL) => next,
            () = daemon.bench.shutdown.requested() => return,
        };
        match next {
            Ok(Some(delivery)) => handle(&daemon, delivery).await,
            Ok(None) => {}
            Err(e) => {
                tracing::warn!(error = %e, ?queue, "no work could be taken; it is tried again");
                daemon.pause(BACK_OFF).await;
            }
        }
    }
}

async fn handle(daemon: &Arc<Daemon>, delivery: Delivery) {
    let request = delivery.request().clone();
    let said = match &request {
        Request::Build(message) => build_one(daemon, message, delivery).await,
        Request::Segment(segment) => {
            let span = tracing::info_span!("segment", run = %segment.run, dataset = segment.uri, n = segment.segment);
            segment_one(daemon, segment, delivery).instrument(span).await
        }
        _ => return,
    };
    if let Err(e) = said {
        tracing::warn!(error = %e, "the end of some work could not be confirmed; it may come once more");
    }
}

async fn build_one(daemon: &Arc<Daemon>, message: &IndexBuild, delivery: Delivery) -> squire_service::bus::Result<()> {
    // Nothing of the table is touched for a message that asks for what does not exist.
    let ask = match Ask::of(message) {
        Ok(ask) => ask,
        Err(wrong) => {
            if let Some(kind) = index_type(&message.index_type) {
                daemon.metrics.index_builds.with_label_values(&[kind, "refused"]).inc();
            }
            return delivery.dead_letter(DeadReason::Malformed, &wrong.to_string()).await;
        }
    };
    let alive = delivery.keep_alive();
    let job = match opened(daemon, &ask, &delivery).await {
        Ok(job) => job,
        Err(e) => {
            tracing::warn!(error = %e, "a job's record cannot be written; its message is tried again");
            drop(alive);
            let delay = back_off(delivery.attempts());
            return delivery.retry(delay).await;
        }
    };
    if job.state == JobState::Cancelled {
        drop(alive);
        return delivery.refuse().await;
    }
    let span = tracing::info_span!("build", job = job.job, run = %job.run, table = ask.message.table);
    let outcome = async {
        let _working = daemon.at_work(&job.job);
        build::job(&daemon.bench, &ask, &job).await
    }
    .instrument(span)
    .await;
    let attempts = delivery.attempts();
    let passes = build::may_pass(&outcome);
    let gives_up =
        matches!(outcome.end, End::Failed(..)) && (!passes || attempts >= daemon.bus.settings().max_attempts);
    build::close(&daemon.bench, &job.job, &outcome, gives_up).await;
    if !passes || gives_up {
        tell(&daemon.bus, &daemon.metrics, &ask, &job, &outcome).await;
    }
    drop(alive);
    match &outcome.end {
        End::Built | End::Present | End::Untrained => delivery.ack().await,
        End::Claimed(_) => delivery.hand_back(CLAIMED.min(daemon.bench.estate.config().grace.claim_ttl / 2)).await,
        End::Stopped(false) => delivery.hand_back(Duration::from_secs(1)).await,
        End::Stopped(true) => delivery.refuse().await,
        End::Refused(_) if passes => delivery.retry(back_off(attempts)).await,
        End::Refused(_) => delivery.refuse().await,
        End::Failed(_, _) if !gives_up => delivery.retry(back_off(attempts)).await,
        End::Failed(kind, why) => {
            let reason = match kind {
                Kind::Transient | Kind::Conflict | Kind::Open => DeadReason::Attempts,
                Kind::Bug => DeadReason::Bug,
                _ => DeadReason::Permanent,
            };
            delivery.dead_letter(reason, why).await
        }
    }
}

/// The job of a message: one that was submitted has its run's id, any other one that its id and source make. A redelivery finds
/// what its first delivery wrote, and with it the run that commits carry.
async fn opened(daemon: &Daemon, ask: &Ask, delivery: &Delivery) -> squire_registry::Result<Job> {
    let registry = &daemon.bench.estate.registry;
    let event = delivery.event();
    let (id, run) = event.map_or_else(|| (Uuid::now_v7().to_string(), None), job_of);
    let job = fresh(ask, id.clone(), run.unwrap_or_else(Uuid::now_v7), delivery.first_seen());
    let job = registry.job_open(job).await?;
    let again = event.is_some_and(|e| e.id.contains("/requeue-"));
    if again && matches!(job.state, JobState::Dead | JobState::Failed | JobState::Refused) {
        registry.job_requeue(&id).await?;
    }
    if delivery.attempts() == 1 {
        announce(&daemon.bus, EventType::IndexRequested, ask, &job, &Outcome::of(End::Present), true).await;
    }
    registry.job(&id).await
}

/// A job that waits.
pub(crate) fn fresh(ask: &Ask, id: String, run: Uuid, queued_at: chrono::DateTime<Utc>) -> Job {
    Job {
        job: id,
        run,
        table: ask.message.table.clone(),
        request: serde_json::to_value(&ask.message).unwrap_or_default(),
        key: ask.key().to_string(),
        state: JobState::Queued,
        queued_at,
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

/// A job's id, and its run where the id is one.
fn job_of(event: &Event) -> (String, Option<Uuid>) {
    let first = event.id.split('/').next().unwrap_or_default();
    if let Ok(run) = Uuid::parse_str(first)
        && event.source.starts_with("/estates/")
    {
        return (run.to_string(), Some(run));
    }
    // A requeue adds to the id; the job stays.
    let id = event.id.split("/requeue-").next().unwrap_or_default();
    let digest = Sha256::digest(format!("{}\0{id}", event.source).as_bytes());
    let hex: String = digest[..10].iter().map(|b| format!("{b:02x}")).collect();
    (format!("x-{hex}"), None)
}

/// The job that a dead letter is about.
pub(crate) fn job_of_letter(letter: &DeadLetter) -> Option<String> {
    let event: Event = serde_json::from_value(letter.original.clone()).ok()?;
    Some(job_of(&event).0)
}

/// Counts a job's end, and says it on the bus.
pub(crate) async fn tell(bus: &squire_service::bus::Bus, metrics: &Metrics, ask: &Ask, job: &Job, outcome: &Outcome) {
    let kind = index_type(ask.spec.kind.as_str()).unwrap_or("vector");
    if let Some(label) = outcome.label() {
        metrics.index_builds.with_label_values(&[kind, label]).inc();
    }
    metrics.wasted_bytes.inc_by(outcome.stranded);
    let event = match &outcome.end {
        End::Built => {
            metrics.index_build_duration.with_label_values(&[kind]).observe(outcome.seconds);
            EventType::IndexBuilt
        }
        End::Present | End::Untrained => EventType::IndexBuilt,
        End::Refused(_) => EventType::IndexRefused,
        End::Failed(kind, _) => {
            if *kind == Kind::Verify {
                metrics.verify_failures.inc();
            }
            EventType::IndexFailed
        }
        End::Stopped(true) => EventType::IndexFailed,
        End::Claimed(_) | End::Stopped(false) => return,
    };
    tracing::info!(job = job.job, outcome = outcome.label(), "{}", outcome.says());
    announce(bus, event, ask, job, outcome, false).await;
}

async fn announce(
    bus: &squire_service::bus::Bus,
    kind: EventType,
    ask: &Ask,
    job: &Job,
    outcome: &Outcome,
    asked_only: bool,
) {
    let data = IndexData {
        run: job.run,
        job: Some(job.job.clone()),
        uri: outcome.uri.clone(),
        lineage: outcome.lineage.clone(),
        request: ask.message.clone(),
        reason: outcome.reason().filter(|_| !asked_only),
        detail: (!asked_only).then(|| outcome.says()),
        version: outcome.version,
        indexed_rows: outcome.index.as_ref().map(|i| i.indexed_rows),
    };
    if let Err(e) = bus.announce(job.run, kind, &ask.message.table, &data).await {
        tracing::warn!(error = %e, event = %kind, "an event could not be sent");
    }
}

async fn segment_one(
    daemon: &Arc<Daemon>,
    asked: &SegmentRequested,
    delivery: Delivery,
) -> squire_service::bus::Result<()> {
    let alive = delivery.keep_alive();
    let bench = &daemon.bench;
    let building = crate::apply::segment(&bench.estate, asked, &bench.admission);
    let done = tokio::select! {
        done = building => Some(done),
        () = bench.shutdown.requested() => None,
    };
    drop(alive);
    let attempts = delivery.attempts();
    match done {
        None => delivery.hand_back(Duration::from_secs(1)).await,
        Some(Ok(true)) => delivery.ack().await,
        Some(Ok(false)) => delivery.hand_back(CLAIMED).await,
        Some(Err(e)) => {
            tracing::warn!(error = %e, "a segment could not be built");
            let passes = matches!(e.kind(), Kind::Transient | Kind::Conflict | Kind::Open);
            match passes && attempts < daemon.bus.settings().max_attempts {
                true => delivery.retry(back_off(attempts)).await,
                false => delivery.dead_letter(DeadReason::Permanent, &e.to_string()).await,
            }
        }
    }
}

fn back_off(attempts: u64) -> Duration {
    RETRY * 2_u32.pow(u32::try_from(attempts.clamp(1, 5)).unwrap_or(5) - 1)
}
