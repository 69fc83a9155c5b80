//! What a replica tells others. An event that the bus does not take is kept in the registry's outbox, and sent by whoever
//! reaches the bus next; nothing of the work depends on it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::Utc;
use serde::Serialize;
use squire_service::bus::data::{PassData, PassRequested, PlanData, RecordData, VersionsData};
use squire_service::bus::{Address, Event, EventType};
use squire_service::config::Mode;
use squire_service::planfile;
use squire_service::report::{Dataset, OutcomeKind};
use uuid::Uuid;

use super::{Daemon, subject};
use crate::apply::Filed;
use crate::driver::{self, Case, Planned, PlannedEstate};
use crate::estate::Estate;
use crate::plan::DatasetPlan;

/// Sent at one go.
const AT_ONCE: usize = 200;
/// What waited longer than the stream of events keeps them is for nobody any more.
const TOO_OLD: chrono::Duration = chrono::Duration::days(7);
/// A plan that waits for a person and changes with every tick is told of so often.
const AWAITING_AGAIN: Duration = Duration::from_secs(86_400);

/// Says that something happened, now or as soon as the bus can be reached.
pub(super) async fn announce(
    daemon: &Daemon,
    run: Uuid,
    kind: EventType,
    subject: &str,
    data: &(impl Serialize + Sync),
) {
    let event = match daemon.bus.event(run, kind, subject, data) {
        Ok(event) => event,
        Err(e) => return tracing::error!(error = %e, event = %kind, "an event could not be made"),
    };
    let Err(e) = daemon.bus.publish(&Address::Event(kind), &event).await else { return };
    tracing::warn!(error = %e, event = %kind, "an event could not be sent; it is kept and sent later");
    let kept = match event.to_bytes() {
        Ok(bytes) => daemon.registry.outbox_put(bytes).await.map_err(|e| e.to_string()),
        Err(e) => Err(e.to_string()),
    };
    match kept {
        Ok(()) => daemon.unsent.store(true, Ordering::SeqCst),
        Err(why) => tracing::warn!(why, event = %kind, "the event could not be kept either; it is lost"),
    }
}

/// Sends what is kept, oldest first, until the bus fails again.
pub(super) async fn send_what_waits(daemon: &Daemon) {
    let waiting = match daemon.registry.outbox(AT_ONCE).await {
        Ok(waiting) => waiting,
        Err(e) => return tracing::debug!(error = %e, "what waits to be sent could not be read"),
    };
    let more = waiting.len() == AT_ONCE;
    for kept in waiting {
        let event = Event::from_bytes(&kept.bytes);
        let known = event.ok().and_then(|e| e.kind().map(|(kind, _)| (kind, e)));
        if let Some((kind, event)) = known.filter(|_| Utc::now() - kept.since < TOO_OLD)
            && let Err(e) = daemon.bus.publish(&Address::Event(kind), &event).await
        {
            tracing::debug!(error = %e, "the bus is still away; its events wait");
            daemon.unsent.store(true, Ordering::SeqCst);
            return;
        }
        if let Err(e) = daemon.registry.outbox_remove(&kept).await {
            tracing::debug!(error = %e, "an event that was sent could not be removed; it may come once more");
        }
    }
    daemon.unsent.store(more, Ordering::SeqCst);
}

/// The name that a dataset declares, when it is its own.
fn lineage(case: &Case) -> Option<String> {
    match case {
        Case::Planned(p) | Case::Skipped(_, Some(p)) => p.look.lineage(),
        _ => None,
    }
}

/// The events of a pass: one if material work was done, one on failure (design, "Record").
pub(super) async fn pass(daemon: &Daemon, estate: &Estate, pass: &PassRequested, row: &Dataset, case: &Case) {
    let kind = match row.outcome.kind() {
        OutcomeKind::Maintained => EventType::PassCompleted,
        OutcomeKind::Failed => EventType::PassFailed,
        _ => return,
    };
    match row.outcome.kind() {
        OutcomeKind::Failed => {
            tracing::warn!(detail = row.outcome.detail.as_deref().unwrap_or_default(), "the pass failed")
        }
        _ => tracing::info!(
            fragments_before = row.before.as_ref().map(|b| b.fragments),
            fragments_after = row.after.as_ref().map(|a| a.fragments),
            "maintained"
        ),
    }
    let lineage = lineage(case);
    let subject = subject(row.table.as_deref(), &pass.uri);
    let data = PassData { run: estate.run, lineage: lineage.clone(), dataset: row.clone() };
    announce(daemon, estate.run, kind, &subject, &data).await;
    if let Some(cleanup) = row.steps.cleanup.clone().filter(|c| c.versions_removed > 0) {
        let data = VersionsData { run: estate.run, uri: pass.uri.clone(), lineage, cleanup };
        announce(daemon, estate.run, EventType::VersionsReclaimed, &subject, &data).await;
    }
}

/// Blocks that a pass filed.
pub(super) async fn blocks(
    daemon: &Daemon,
    estate: &Estate,
    pass: &PassRequested,
    row: &Dataset,
    (case, filed): (&Case, &[Filed]),
) {
    let subject = subject(row.table.as_deref(), &pass.uri);
    for filed in filed {
        let data = RecordData {
            run: Some(estate.run),
            id: Some(filed.id.clone()),
            uri: Some(pass.uri.clone()),
            lineage: lineage(case),
            reason: Some(format!("{}: {}", filed.block.kind, filed.reason)),
            by: Some(daemon.registry.actor().who.clone()),
            until: filed.block.until,
            ..RecordData::default()
        };
        announce(daemon, estate.run, EventType::BlockFiled, &subject, &data).await;
        for id in &filed.lifted {
            let reason = Some("a newer one replaces it".to_string());
            let data = RecordData { id: Some(id.clone()), reason, until: None, ..data.clone() };
            announce(daemon, estate.run, EventType::BlockLifted, &subject, &data).await;
        }
    }
}

/// `plan.awaiting`: versions would go, and the mode leaves that to a person.
pub(super) async fn plan_awaits(daemon: &Daemon, estate: &Estate, planned: &PlannedEstate) {
    if daemon.mode() == Mode::Maintain {
        return;
    }
    let settings = crate::plan::Settings { mode: Mode::Maintain, ..daemon.settings(estate, true) };
    let plans: Vec<DatasetPlan> = planned
        .candidates
        .iter()
        .filter_map(|c| match &c.case {
            Case::Planned(p) => destructive(estate, planned, p, &settings),
            _ => None,
        })
        .collect();
    let items: u64 = plans.iter().map(|p| p.removal.versions.len() as u64).sum();
    let bytes = plans.iter().map(|p| p.removal.bytes()).sum();
    let named: Vec<_> = plans.iter().map(|p| (&p.uri, &p.removal.versions)).collect();
    let digest = planfile::digest(&serde_json::json!(named));
    let waits = (items > 0).then_some(digest.as_str());
    match daemon.registry.record_awaiting("maintenance", waits, Utc::now(), AWAITING_AGAIN).await {
        Ok(true) => {
            let data = PlanData { run: estate.run, plan: estate.run, digest, items, bytes, failed: 0 };
            announce(daemon, estate.run, EventType::PlanAwaiting, "estate", &data).await;
        }
        Ok(false) => {}
        Err(e) => tracing::debug!(error = %e, "whether a plan that waits was told of already is not known"),
    }
}

/// The plan with what a pass would remove if the mode allowed it.
fn destructive(
    estate: &Estate,
    planned: &PlannedEstate,
    p: &Planned,
    settings: &crate::plan::Settings,
) -> Option<DatasetPlan> {
    let plan = match p.plan.cleanup.is_planned() {
        true => p.plan.clone(),
        false => driver::clean_up_as_if(estate, planned, p, settings),
    };
    plan.cleanup.is_planned().then_some(plan)
}
