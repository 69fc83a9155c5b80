//! A tick: one replica looks at the whole estate and hands out the passes that are due.

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use squire_registry::{RunOutcome, RunRecord};
use squire_service::bus::data::{PassRequested, Request, RunData, TickDue};
use squire_service::bus::{Delivery, EventType, Published, Queue, Task};
use squire_service::config::Mode;
use squire_service::report::{Report, ReportKind};
use squire_service::telemetry;
use tracing::Instrument as _;
use uuid::Uuid;

use super::inbox::Inbox;
use super::{Daemon, PULL, events, slices};
use crate::driver::{self, Candidate, Case, Selection};
use crate::estate::Estate;

/// After a registry that did not answer.
const OUTAGE: std::time::Duration = std::time::Duration::from_secs(10);
/// Passes handed out by one tick. The rest is looked at again by the next one.
const PASSES: usize = 500;

/// Takes ticks until a stop.
pub(super) async fn run(daemon: Arc<Daemon>) {
    let mut inbox = Inbox::new(Queue::Tick(Task::Maintenance));
    while !daemon.shutdown.is_requested() {
        if let Some(delivery) = inbox.next(&daemon, PULL).await {
            handle(&daemon, delivery).await;
        }
    }
}

async fn handle(daemon: &Arc<Daemon>, delivery: Delivery) {
    let Request::Tick(due) = delivery.request().clone() else {
        return;
    };
    let alive = delivery.keep_alive();
    let span = tracing::info_span!("sweep", run = tracing::field::Empty);
    telemetry::follow(&span, delivery.event().and_then(|e| e.traceparent.as_deref()));
    let done = sweep(daemon, &due).instrument(span).await;
    drop(alive);
    let said = match done {
        Ok(()) => delivery.ack().await,
        Err(e) => {
            // The registry's or the bus's fault, never the tick's: a tick asked for by hand must outlive an outage.
            tracing::warn!(error = %format!("{e:#}"), "the sweep could not be started; it is tried again");
            delivery.hand_back(OUTAGE).await
        }
    };
    if let Err(e) = said {
        tracing::warn!(error = %e, "the tick could not be confirmed; it may come once more and finds its passes queued");
    }
}

/// Looks, plans, and asks for the passes. The sweep is closed when they are handed out: each of them reports itself.
async fn sweep(daemon: &Arc<Daemon>, due: &TickDue) -> anyhow::Result<()> {
    events::send_what_waits(daemon).await;
    let started = Utc::now();
    let run = Uuid::now_v7();
    tracing::Span::current().record("run", tracing::field::display(run));
    let estate = daemon.estate(run).await?;
    let by_hand = !due.datasets.is_empty();
    let settings = daemon.settings(&estate, !by_hand);
    let selection = Selection { datasets: due.datasets.clone(), due: !by_hand, limit: None };
    let timer = daemon.metrics.sweep_duration.start_timer();
    let planned = Arc::new(driver::plan_estate(&estate, &selection, &settings, None).await);
    if !by_hand {
        crate::known::remember(&estate, &settings, &planned).await;
    }
    let chosen = choose(&planned.candidates, PASSES);
    let mut report = daemon.report(&estate, ReportKind::Plan, started);
    report.datasets = driver::datasets(&estate, &planned, &Default::default());
    report.findings = planned.findings.clone();
    report.incomplete = planned.incomplete.clone();
    Daemon::finish(&mut report);
    let mut handed = 0;
    if daemon.mode() != Mode::Observe {
        for uri in &chosen {
            let pass = PassRequested { run, uri: uri.clone(), by_hand };
            if !matches!(daemon.bus.request_pass(&pass).await?, Published::Stored) {
                continue;
            }
            handed += 1;
            // Not before: a tick whose passes are all queued already is no run.
            if handed == 1 {
                open(daemon, &estate, run, started).await?;
                announce(daemon, run, EventType::RunStarted, None).await;
            }
        }
        if handed > 0 {
            close(daemon, run, &report).await?;
            announce(daemon, run, EventType::RunFinished, Some(&report)).await;
        }
        slices::prune(daemon).await;
    }
    super::required::ask(daemon, &planned).await;
    if !by_hand {
        events::plan_awaits(daemon, &estate, &planned).await;
    }
    crate::budget::settle_looks(&daemon.config.config, &daemon.registry, &daemon.rates).await;
    timer.observe_duration();
    if !by_hand {
        daemon.keep_neighbours(started, planned.clone()).await;
        if let Err(e) = daemon.registry.record_closed(Task::Maintenance.as_str(), run).await {
            tracing::warn!(error = %e, "that this replica closed the sweep could not be recorded");
        }
        super::status::show(daemon, &estate, &planned, &report, chosen.len());
        super::status::budget(daemon).await;
    }
    tracing::info!(%run, seen = report.totals.seen, due = chosen.len(), handed, "swept the estate");
    Ok(())
}

/// Which passes a tick hands out: those with work, half of the places by gain, and the others to who has waited longest,
/// so that a busy estate starves nobody. Pure.
pub(super) fn choose(candidates: &[Candidate], places: usize) -> Vec<String> {
    let mut due: Vec<(&str, u64, Option<DateTime<Utc>>)> = candidates
        .iter()
        .filter_map(|c| match &c.case {
            Case::Planned(p) if p.has_work() => Some((c.uri.as_str(), p.plan.gain(), p.state.last_pass_at)),
            _ => None,
        })
        .collect();
    pick(&mut due, places)
}

fn pick(due: &mut [(&str, u64, Option<DateTime<Utc>>)], places: usize) -> Vec<String> {
    due.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let mut out: Vec<String> = due.iter().take(places.div_ceil(2)).map(|d| d.0.to_string()).collect();
    let taken: BTreeSet<String> = out.iter().cloned().collect();
    // Never passed comes first.
    due.sort_by(|a, b| a.2.cmp(&b.2).then_with(|| b.1.cmp(&a.1)));
    out.extend(due.iter().map(|d| d.0.to_string()).filter(|d| !taken.contains(d)).take(places - out.len()));
    out
}

/// Opens a run's record; another replica may have done so.
pub(super) async fn open(
    daemon: &Daemon,
    estate: &Estate,
    run: Uuid,
    started: DateTime<Utc>,
) -> squire_registry::Result<()> {
    let record = RunRecord {
        run,
        kind: ReportKind::Sweep.as_str().into(),
        estate: daemon.registry.id(),
        started_at: started,
        command: daemon.command.clone(),
        actor: daemon.registry.actor().clone(),
        tool_version: squire_service::VERSION.into(),
        mode: daemon.mode().to_string(),
        config_digest: Some(daemon.config.digest()),
        plan_digest: None,
        live: estate.snapshot.live_counts(),
        outcome: None,
    };
    match daemon.registry.run_open(record).await {
        Err(squire_registry::Error::Exists { .. }) => Ok(()),
        done => done,
    }
}

/// Closes a run's record.
pub(super) async fn close(daemon: &Daemon, run: Uuid, report: &Report) -> anyhow::Result<()> {
    let failures = report.datasets.iter().filter_map(|d| d.outcome.failure().map(|_| d.uri.clone())).collect();
    let outcome =
        RunOutcome { finished_at: Utc::now(), complete: true, totals: serde_json::to_value(&report.totals)?, failures };
    Ok(daemon.registry.run_close(run, outcome).await?)
}

async fn announce(daemon: &Daemon, run: Uuid, kind: EventType, report: Option<&Report>) {
    let data = RunData {
        run,
        kind: ReportKind::Sweep,
        command: daemon.command.clone(),
        totals: report.map(|r| r.totals.clone()),
    };
    events::announce(daemon, run, kind, "estate", &data).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_places_go_to_gain_and_half_to_who_has_waited_longest() {
        let at = |n| DateTime::from_timestamp(n, 0);
        let mut due = [("a", 9, at(50)), ("b", 8, at(40)), ("c", 1, at(10)), ("d", 1, None), ("e", 7, at(60))];
        assert_eq!(pick(&mut due, 4), ["a", "b", "d", "c"]);
        assert_eq!(pick(&mut due, 100).len(), 5);
        assert_eq!(pick(&mut [], 4), Vec::<String>::new());
    }
}
