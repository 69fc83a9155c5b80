//! What a replica shows: `/metrics`, `/livez`, `/readyz`, `/status`, `/reports`, and the gauges of the fleet.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use chrono::Utc;
use futures::FutureExt as _;
use serde_json::{Value, json};
use squire_registry::Snapshot;
use squire_service::bus::Stream;
use squire_service::http::Face;
use squire_service::report::Report;
use squire_service::schedule::Job;
use uuid::Uuid;

use super::{Daemon, TASK, pages};

/// How often it is asked whether this replica still closed the last run.
const EVERY: Duration = Duration::from_secs(10);

/// The HTTP face, to be bound.
pub(super) fn face(daemon: &Arc<Daemon>) -> Face {
    let mut face = Face::new(daemon.metrics.clone(), daemon.shutdown.clone());
    let d = daemon.clone();
    face = face.check("bus", move || {
        let d = d.clone();
        async move { d.bus.ready().await.map_err(|e| e.to_string()) }.boxed()
    });
    let d = daemon.clone();
    face = face.check("registry", move || {
        let d = d.clone();
        async move { d.registry.snapshot().await.map(drop).map_err(|_| "it cannot be read".to_string()) }.boxed()
    });
    let d = daemon.clone();
    face = face.check("storage", move || {
        let d = d.clone();
        async move { storage(&d).await }.boxed()
    });
    let d = daemon.clone();
    face = face.status(move || {
        let d = d.clone();
        async move { status(&d).await }.boxed()
    });
    let d = daemon.clone();
    face.pages("/reports", move |rest| {
        let d = d.clone();
        async move { pages::page(&d, &rest).await }.boxed()
    })
}

/// One request to the first root: credentials and network are the same for the others of its bucket.
async fn storage(daemon: &Daemon) -> Result<(), String> {
    let Some(root) = daemon.config.config.estate.roots.first() else { return Ok(()) };
    let root = squire_lake::uri::canonical(root).map_err(|e| e.to_string())?;
    daemon.lake.answers(&root).await.map_err(|e| e.kind().as_str().to_string())
}

async fn status(daemon: &Daemon) -> Value {
    let now = Utc::now();
    let schedule = &daemon.config.config.schedule;
    let next = Job::reconcile(schedule).ok().and_then(|job| job.next(now));
    let working = *daemon.working.lock().unwrap_or_else(PoisonError::into_inner);
    let queue = match daemon.bus.depth(Stream::Ticks).await {
        Ok(d) => json!({ "pending": d.pending, "in_flight": d.in_flight }),
        Err(e) => json!({ "error": e.to_string() }),
    };
    let reports = daemon.registry.reports().await.unwrap_or_default();
    json!({
        "version": squire_service::VERSION,
        "lance": squire_lake::LANCE_VERSION,
        "started_at": daemon.started,
        "estate": { "id": daemon.registry.id(), "name": daemon.registry.name(), "registry": daemon.registry.uri() },
        "mode": daemon.config.config.estate.mode,
        "bus": daemon.bus.describe(),
        "config": daemon.config.show_json(),
        "schedule": { "reconcile": schedule.reconcile, "next": next,
                      "last": daemon.registry.last_instant(TASK.as_str(), now).await.ok().flatten() },
        "working": working.map(|(run, since)| json!({ "run": run, "since": since })),
        "queues": { "ticks": queue },
        "reports": reports.iter().map(|r| json!({ "run": r.run, "at": r.modified, "bytes": r.bytes })).collect::<Vec<_>>(),
    })
}

/// After a run: this replica shows the fleet's gauges.
pub(super) fn show(daemon: &Daemon, snapshot: &Snapshot, report: &Report) {
    daemon.metrics.fleet_of(report);
    let fleet = daemon.metrics.fleet();
    let at = report.finished_at.timestamp_millis() as f64 / 1000.0;
    fleet.last_success.with_label_values(&[TASK.as_str()]).set(at);
    let overdue = snapshot.trash().filter(|t| t.fields.deadline <= report.started_at).count();
    fleet.trash_overdue.set(i64::try_from(overdue).unwrap_or(i64::MAX));
    set_closed(daemon, Some(report.run));
    daemon.metrics.show_fleet();
}

fn set_closed(daemon: &Daemon, run: Option<Uuid>) {
    *daemon.closed.lock().unwrap_or_else(PoisonError::into_inner) = run;
}

/// A daemon alone shows what its predecessor found: the next run may be a day away. Among several, whoever closed the last run
/// may still be there.
pub(super) async fn resume(daemon: &Daemon) {
    if daemon.is_shared() {
        return;
    }
    let Some(last) = super::tick::last(daemon).await.ok().flatten() else { return };
    if let Ok(snapshot) = daemon.registry.snapshot().await {
        show(daemon, &snapshot, &last);
    }
}

/// Drops the gauges of the fleet once another replica closed a run.
pub(super) async fn gauges(daemon: Arc<Daemon>) {
    while daemon.is_shared() && !daemon.shutdown.is_requested() {
        daemon.pause(EVERY).await;
        let Some(run) = *daemon.closed.lock().unwrap_or_else(PoisonError::into_inner) else { continue };
        match daemon.registry.last_closed(TASK.as_str()).await {
            Ok(Some(last)) if last != run => {
                tracing::debug!("another replica closed a run; its gauges stand");
                daemon.metrics.drop_fleet();
                set_closed(&daemon, None);
            }
            Ok(_) => {}
            Err(e) => tracing::debug!(error = %e, "whether another replica closed a run is not known"),
        }
    }
}
