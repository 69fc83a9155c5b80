//! What a replica shows: `/metrics`, `/livez`, `/readyz`, `/status`, and the gauges of the fleet.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use chrono::Utc;
use futures::FutureExt as _;
use serde_json::{Value, json};
use squire_service::config::BusKind;
use squire_service::http::Face;
use squire_service::report::Report;
use uuid::Uuid;

use super::{Daemon, NEIGHBOURS};
use crate::driver::{self, PlannedEstate};
use crate::estate::Estate;

/// How often the queues' depths are read, and whether this replica still closed the last sweep.
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
    face.dataset(move |uri| {
        let d = d.clone();
        async move { dataset(&d, &uri).await }.boxed()
    })
}

/// One request to the first root: credentials and network are the same for the others of its bucket.
async fn storage(daemon: &Daemon) -> Result<(), String> {
    let Some(root) = daemon.config.config.estate.roots.first() else { return Ok(()) };
    let root = squire_lake::uri::canonical(root).map_err(|e| e.to_string())?;
    daemon.lake.answers(&root).await.map_err(|e| e.kind().as_str().to_string())
}

async fn status(daemon: &Daemon) -> Value {
    let working = daemon.lock_working().clone();
    let job = super::clock::job(daemon).ok();
    let now = Utc::now();
    let mut queues = serde_json::Map::new();
    for stream in [squire_service::bus::Stream::Ticks, squire_service::bus::Stream::Work] {
        let depth = match daemon.bus.depth(stream).await {
            Ok(d) => json!({ "pending": d.pending, "in_flight": d.in_flight }),
            Err(e) => json!({ "error": e.to_string() }),
        };
        queues.insert(stream.as_str().to_string(), depth);
    }
    let floors = &daemon.config.config.floors;
    let lowered = serde_json::to_value(floors).ok() != serde_json::to_value(squire_registry::Floors::default()).ok();
    json!({
        "version": squire_service::VERSION,
        "lance": squire_lake::LANCE_VERSION,
        "started_at": daemon.started,
        "estate": { "id": daemon.registry.id(), "name": daemon.registry.name(), "registry": daemon.registry.uri() },
        "mode": daemon.mode(),
        "bus": daemon.bus.describe(),
        "config": daemon.config.show_json(),
        "floors_lowered": lowered,
        "schedule": { "maintenance": daemon.config.config.schedule.maintenance,
                      "next": job.as_ref().and_then(|j| j.next(now)),
                      "last": daemon.registry.last_instant("maintenance", now).await.ok().flatten() },
        "working": working.iter().map(|(uri, since)| json!({ "dataset": uri, "since": since })).collect::<Vec<_>>(),
        "memory": { "limit": daemon.config.config.limits.memory.as_u64(), "admitted": daemon.admission.used(),
                    "peak": daemon.admission.peaks().map(|p| json!({ "measured": p.measured, "admitted": p.admitted })) },
        "queues": queues,
    })
}

/// What `why -o json` says.
async fn dataset(daemon: &Daemon, uri: &str) -> Option<Value> {
    let estate = daemon.estate(Uuid::now_v7()).await.ok()?;
    let neighbours = daemon.neighbours(&estate, uri, NEIGHBOURS).await;
    if !neighbours.scope.datasets.contains(uri) {
        return None;
    }
    let settings = daemon.settings(&estate, true);
    let candidate = driver::plan_dataset(&estate, &neighbours, uri, &settings, true).await;
    serde_json::to_value(driver::dataset(&estate, &neighbours.graph, &candidate, None)).ok()
}

/// After a sweep: this replica shows the fleet's gauges.
pub(super) fn show(daemon: &Daemon, estate: &Estate, planned: &PlannedEstate, report: &Report, due: usize) {
    // Held to the end, so that nothing of this is dropped as an earlier sweep's.
    let mut closed = daemon.closed.lock().unwrap_or_else(PoisonError::into_inner);
    daemon.metrics.fleet_of(report);
    let fleet = daemon.metrics.fleet();
    let clamp = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    fleet.due_datasets.set(clamp(due));
    let since = planned.candidates.iter().filter_map(|c| driver::due_since(c));
    fleet.oldest_due.set(since.min().map_or(0.0, |at| at.timestamp_millis() as f64 / 1000.0));
    fleet.last_success.with_label_values(&["maintenance"]).set(Utc::now().timestamp_millis() as f64 / 1000.0);
    let overdue = estate.snapshot.trash().filter(|t| t.fields.deadline <= estate.now()).count();
    fleet.trash_overdue.set(clamp(overdue));
    fleet.clear_records();
    for block in estate.snapshot.blocks().filter(|b| b.fields.active_at(estate.now())) {
        fleet.blocks.with_label_values(&[block.fields.kind.to_string().as_str()]).inc();
    }
    for unread in &estate.snapshot.unreadable {
        fleet.unreadable_records.with_label_values(&[unread.collection.to_string().as_str()]).inc();
    }
    *closed = Some(estate.run);
    daemon.metrics.show_fleet();
}

/// Bytes that the fleet may still rewrite today; without a budget there is no end to them.
pub(super) async fn budget(daemon: &Daemon) {
    match crate::budget::left(&daemon.config.config, &daemon.registry, Utc::now()).await {
        Ok(left) => {
            let left = left.map_or(i64::MAX, |left| i64::try_from(left.rewritten_bytes).unwrap_or(i64::MAX));
            daemon.metrics.fleet().budget_remaining.set(left);
        }
        Err(e) => tracing::debug!(error = %e, "what is left of the rewrite budget is not known"),
    }
}

/// Keeps the queues' gauges fresh while this replica closed the last sweep, and drops all of them once another did.
pub(super) async fn gauges(daemon: Arc<Daemon>) {
    let mut instant = None;
    while !daemon.shutdown.is_requested() {
        daemon.pause(EVERY).await;
        if daemon.unsent.load(Ordering::SeqCst) {
            super::events::send_what_waits(&daemon).await;
        }
        let shown = *daemon.closed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(run) = shown else { continue };
        if daemon.config.config.bus.kind == BusKind::Nats {
            match daemon.registry.last_closed("maintenance").await {
                Ok(Some(last)) if last != run => {
                    let mut closed = daemon.closed.lock().unwrap_or_else(PoisonError::into_inner);
                    // This replica may have closed that one while the record was read.
                    if *closed == Some(run) {
                        tracing::debug!("another replica closed a sweep; its gauges stand");
                        daemon.metrics.drop_fleet();
                        *closed = None;
                    }
                    continue;
                }
                Ok(_) => {}
                Err(e) => tracing::debug!(error = %e, "whether another replica closed a sweep is not known"),
            }
        }
        budget(&daemon).await;
        if let Err(e) = daemon.bus.export(daemon.metrics.fleet()).await
            && instant.replace(()).is_none()
        {
            tracing::warn!(error = %e, "the queues' depths could not be read");
        }
    }
}
