//! The workers: each takes one pass at a time, looks again, works, and says what came of it.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use squire_service::bus::data::{PassRequested, Request};
use squire_service::bus::{Delivery, Queue};
use squire_service::config::Mode;
use squire_service::report::{Dataset, FailureKind, ReportKind, SkipReason};
use squire_service::telemetry;
use tracing::Instrument as _;

use super::inbox::Inbox;
use super::{Daemon, FRESH, NEIGHBOURS, PULL, events, slices, tick};
use crate::apply::Applied;
use crate::driver::{self, Case, Planned};

/// After somebody else's claim.
const CLAIMED: Duration = Duration::from_secs(15);
/// The first delay after a failure that may pass; doubled with every attempt.
const RETRY: Duration = Duration::from_secs(10);

/// What is said of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Done, or nothing to do.
    Done,
    /// Not now, and not its fault.
    HandBack(Duration),
    /// It failed and may succeed.
    Retry(Duration),
}

/// Takes passes, slices or commits until a stop.
pub(super) async fn run(daemon: Arc<Daemon>, queue: Queue) {
    let mut inbox = Inbox::new(queue);
    while !daemon.shutdown.is_requested() {
        if let Some(delivery) = inbox.next(&daemon, PULL).await {
            handle(&daemon, delivery).await;
        }
    }
}

async fn handle(daemon: &Arc<Daemon>, delivery: Delivery) {
    let request = delivery.request().clone();
    let span = match &request {
        Request::Pass(pass) => tracing::info_span!("pass", run = %pass.run, dataset = pass.uri),
        Request::Slice(slice) => tracing::info_span!("slice", run = %slice.run, dataset = slice.uri),
        Request::Commit(commit) => tracing::info_span!("commit", run = %commit.run, dataset = commit.uri),
        _ => return,
    };
    telemetry::follow(&span, delivery.event().and_then(|e| e.traceparent.as_deref()));
    let attempts = delivery.attempts();
    let alive = delivery.keep_alive();
    let verdict = async {
        let done = match &request {
            Request::Pass(pass) => work(daemon, pass, attempts).await,
            Request::Slice(slice) => slices::execute(daemon, slice, attempts).await,
            Request::Commit(commit) => slices::commit(daemon, commit, attempts).await,
            _ => return Verdict::Done,
        };
        done.unwrap_or_else(|e| {
            tracing::warn!(error = %format!("{e:#}"), "the work could not be done; it is tried again");
            Verdict::Retry(back_off(attempts))
        })
    }
    .instrument(span)
    .await;
    drop(alive);
    let said = match verdict {
        Verdict::Done => delivery.ack().await,
        Verdict::HandBack(delay) => delivery.hand_back(delay).await,
        Verdict::Retry(delay) => delivery.retry(delay).await,
    };
    if let Err(e) = said {
        tracing::warn!(error = %e, ?request, "the end of some work could not be confirmed; it may come once more");
    }
}

pub(super) fn back_off(attempts: u64) -> Duration {
    RETRY * 2_u32.pow(u32::try_from(attempts.min(5)).unwrap_or(5).saturating_sub(1))
}

async fn work(daemon: &Arc<Daemon>, pass: &PassRequested, attempts: u64) -> anyhow::Result<Verdict> {
    let estate = daemon.estate(pass.run).await?;
    let mut neighbours = daemon.neighbours(&estate, &pass.uri, NEIGHBOURS).await;
    // A message carries names only: what neither a walk nor the registry knows is no work (invariant 12).
    if !neighbours.scope.datasets.contains(&pass.uri) {
        tracing::warn!("the message names a dataset that this estate does not know; nothing is done");
        return Ok(Verdict::Done);
    }
    if daemon.mode() == Mode::Observe {
        return Ok(Verdict::Done);
    }
    let in_work = slices::pending(daemon, &estate, pass).await?;
    let due = !pass.by_hand;
    let settings = daemon.settings(&estate, due);
    let _working = daemon.at_work(&pass.uri);
    let started = Utc::now();
    let mut candidate = driver::plan_dataset(&estate, &neighbours, &pass.uri, &settings, due).await;
    if matches!(&candidate.case, Case::Planned(p) if p.plan.cleanup.is_planned()) {
        // What goes is judged by who reads it now.
        neighbours = daemon.neighbours(&estate, &pass.uri, FRESH).await;
        candidate = driver::plan_dataset(&estate, &neighbours, &pass.uri, &settings, due).await;
    }
    let mut applied: Option<(Applied, f64)> = None;
    let shared = match (&mut candidate.case, &in_work) {
        (Case::Planned(p), Some(d)) => {
            crate::apply::slices::beside(p, d);
            false
        }
        (Case::Planned(p), None) => slices::is_shared(daemon, p),
        _ => false,
    };
    if let Case::Planned(p) = &candidate.case
        && shared
    {
        match slices::hand_out(daemon, &estate, &neighbours, p, pass).await? {
            Ok(verdict) => return Ok(verdict),
            Err(instead) => applied = Some((instead, 0.0)),
        }
    } else if let Case::Planned(p) = &candidate.case
        && p.has_work()
    {
        tick::open(daemon, &estate, pass.run, started).await?;
        let tools = daemon.tools(&estate, &neighbours, settings.clone());
        let begun = std::time::Instant::now();
        let done = driver::apply_one(&tools, p).await;
        applied = Some((done, begun.elapsed().as_secs_f64()));
    }
    let row = driver::dataset(&estate, &neighbours.graph, &candidate, applied.as_ref());
    let mut report = daemon.report(&estate, ReportKind::Sweep, started);
    report.datasets = vec![row];
    Daemon::finish(&mut report);
    daemon.metrics.count(&report);
    if let Some((applied, _)) = &applied {
        applied.count(&daemon.metrics);
        if due && applied.is_material() && applied.failures.is_empty() {
            let after = driver::plan_dataset(&estate, &neighbours, &pass.uri, &settings, due).await;
            crate::known::remember_one(&estate, &settings, &neighbours, &after).await;
        }
    }
    let Some(row) = report.datasets.first() else { return Ok(Verdict::Done) };
    let filed = applied.as_ref().map_or(&[][..], |(a, _)| &a.filed);
    events::pass(daemon, &estate, pass, row, &candidate.case).await;
    events::blocks(daemon, &estate, pass, row, (&candidate.case, filed)).await;
    let planned = match &candidate.case {
        Case::Planned(p) => Some(p.as_ref()),
        _ => None,
    };
    Ok(verdict(daemon, planned, applied.as_ref().map(|(a, _)| a), row, attempts).await)
}

/// What becomes of the message.
pub(super) async fn verdict(
    daemon: &Daemon,
    planned: Option<&Planned>,
    applied: Option<&Applied>,
    row: &Dataset,
    attempts: u64,
) -> Verdict {
    if let Some(kind) = row.outcome.failure() {
        return match kind {
            FailureKind::Transient | FailureKind::Conflict => Verdict::Retry(back_off(attempts)),
            // Remembered in the dataset's state, which decides when it is tried again.
            _ => Verdict::Done,
        };
    }
    match row.outcome.reason() {
        Some(r) if r == SkipReason::Claimed.as_str() => return Verdict::HandBack(CLAIMED),
        Some(r) if r == SkipReason::PlanStale.as_str() => return Verdict::HandBack(Duration::from_secs(1)),
        Some(r) if r == SkipReason::RegistryUnreadable.as_str() => return Verdict::Retry(back_off(attempts)),
        _ => {}
    }
    if daemon.shutdown.is_requested() {
        return Verdict::HandBack(Duration::from_secs(1));
    }
    // A change that came while the pass ran found the message still queued and was not queued itself.
    let moved = match (planned, applied) {
        (Some(p), Some(applied)) if applied.is_material() => {
            let ours = applied.after.as_ref().map_or(p.plan.read_version, |a| a.version);
            let head = daemon.lake.latest_version(&p.look.uri).await;
            head.is_ok_and(|head| head > ours)
        }
        _ => false,
    };
    if moved { Verdict::HandBack(Duration::from_secs(1)) } else { Verdict::Done }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_waits_twice_as_long_each_time_and_never_for_ever() {
        let seconds: Vec<u64> = (1..=8).map(|n| back_off(n).as_secs()).collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 160, 160, 160]);
    }
}
