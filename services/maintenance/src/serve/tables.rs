//! Change events: they only accelerate. A table that was written is looked at soon; its state decides whether anything is due.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use squire_lake::uri;
use squire_registry::{Snapshot, Subject};
use squire_service::bus::Queue;
use squire_service::bus::data::{PassRequested, Request, TableChanged};
use uuid::Uuid;

use super::Daemon;
use super::inbox::Inbox;

/// Events of one table within this time are one.
const DEBOUNCE: Duration = Duration::from_secs(5);
/// How often quiet tables are looked for.
const STEP: Duration = Duration::from_millis(500);
/// Tables that may wait; more are taken up once these are gone.
const WAITING: usize = 10_000;

/// Takes change events until a stop.
pub(super) async fn run(daemon: Arc<Daemon>) {
    let mut inbox = Inbox::new(Queue::Tables("maintenance".into()));
    let mut waiting: BTreeMap<String, Instant> = BTreeMap::new();
    while !daemon.shutdown.is_requested() {
        let next = match waiting.len() < WAITING {
            true => inbox.next(&daemon, STEP).await,
            false => {
                daemon.pause(STEP).await;
                None
            }
        };
        if let Some(delivery) = next {
            if let Request::Changed(changed) = delivery.request()
                && let Some(uri) = named(&daemon, changed).await
            {
                waiting.entry(uri).or_insert_with(Instant::now);
            }
            // What is lost with this process is found by the clock.
            if let Err(e) = delivery.ack().await {
                tracing::debug!(error = %e, "a change event could not be confirmed");
            }
        }
        request(&daemon, &mut waiting).await;
    }
}

async fn request(daemon: &Daemon, waiting: &mut BTreeMap<String, Instant>) {
    let ripe: Vec<String> =
        waiting.iter().filter(|(_, since)| since.elapsed() >= DEBOUNCE).map(|(uri, _)| uri.clone()).collect();
    for uri in ripe {
        let pass = PassRequested { run: Uuid::now_v7(), uri: uri.clone(), by_hand: false };
        match daemon.bus.request_pass(&pass).await {
            Ok(_) => {
                waiting.remove(&uri);
            }
            Err(e) => {
                tracing::warn!(error = %e, dataset = uri, "a pass could not be asked for; it is tried again");
                return;
            }
        }
    }
}

/// The dataset that an event names, where it names one that is known.
async fn named(daemon: &Daemon, changed: &TableChanged) -> Option<String> {
    let snapshot = match daemon.registry.snapshot().await {
        Ok(snapshot) => snapshot,
        Err(e) => {
            tracing::warn!(error = %e, "the registry could not be read; the clock will find the change");
            return None;
        }
    };
    let at = changed.table.as_deref().and_then(|t| table(&snapshot, t)).or_else(|| {
        let at = uri::canonical(changed.uri.as_deref()?).ok()?;
        let roots = snapshot.warehouses().map(|w| w.fields.root.clone());
        let own = daemon.config.config.estate.roots.iter().filter_map(|r| uri::canonical(r).ok());
        let known = snapshot.table_at(&at).is_some() || roots.chain(own).any(|root| uri::within(&at, &root));
        known.then_some(at)
    });
    if at.is_none() {
        tracing::debug!(?changed, "a change event names nothing that this estate knows");
    }
    at
}

fn table(snapshot: &Snapshot, text: &str) -> Option<String> {
    let subject = text.parse::<Subject>().or_else(|_| format!("table/{text}").parse()).ok()?;
    match subject {
        Subject::Table(path) => snapshot.table(&path).map(|t| t.fields.uri.clone()),
        _ => None,
    }
}
