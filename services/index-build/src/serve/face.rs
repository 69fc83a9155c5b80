//! What a replica shows: `/metrics`, `/livez`, `/readyz`, `/status`.

use std::sync::Arc;

use futures::FutureExt as _;
use serde_json::{Value, json};
use squire_service::bus::Stream;
use squire_service::http::Face;

use super::Daemon;

/// The HTTP face, to be bound.
pub(super) fn face(daemon: &Arc<Daemon>) -> Face {
    let mut face = Face::new(daemon.metrics.clone(), daemon.bench.shutdown.clone());
    let d = daemon.clone();
    face = face.check("bus", move || {
        let d = d.clone();
        async move { d.bus.ready().await.map_err(|e| e.to_string()) }.boxed()
    });
    let d = daemon.clone();
    face = face.check("registry", move || {
        let d = d.clone();
        async move {
            let read = d.bench.estate.registry.snapshot().await;
            read.map(drop).map_err(|_| "it cannot be read".to_string())
        }
        .boxed()
    });
    let d = daemon.clone();
    face.status(move || {
        let d = d.clone();
        async move { status(&d).await }.boxed()
    })
}

async fn status(daemon: &Daemon) -> Value {
    let estate = &daemon.bench.estate;
    let working = daemon.lock_working().clone();
    let queue = match daemon.bus.depth(Stream::Index).await {
        Ok(d) => json!({ "pending": d.pending, "in_flight": d.in_flight }),
        Err(e) => json!({ "error": e.to_string() }),
    };
    json!({
        "version": squire_service::VERSION,
        "lance": squire_lake::LANCE_VERSION,
        "started_at": daemon.started,
        "estate": { "id": estate.registry.id(), "name": estate.registry.name(), "registry": estate.registry.uri() },
        "mode": estate.config().estate.mode,
        "bus": daemon.bus.describe(),
        "config": estate.loaded.show_json(),
        "working": working.iter().map(|(job, since)| json!({ "job": job, "since": since })).collect::<Vec<_>>(),
        "memory": { "limit": estate.config().limits.memory.as_u64(), "admitted": daemon.bench.admission.used() },
        "queues": { "index": queue },
    })
}
