//! A tick: one replica looks at what is due, and makes the report of the whole estate.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::stream::{self, StreamExt};
use sha2::{Digest, Sha256};
use squire_lake::Lake;
use squire_lake::known::is_unmoved;
use squire_lake::look::edges;
use squire_lake::refs::Reads;
use squire_service::bus::data::{FindingsData, Request, RunData, TickDue};
use squire_service::bus::{Delivery, EventType, Queue};
use squire_service::report::{Dataset, Outcome, Report, ReportKind, SkipReason, StoredClass, Totals};
use tracing::Instrument as _;
use uuid::Uuid;

use super::cadence::{self, Known, LISTS};
use super::news::{self, About};
use super::{BACK_OFF, Daemon, TASK, status};
use crate::row::{Row, Rows};
use crate::walk::{self, Due, Place, Scope, Walk};

/// How long it waits for a message before it looks whether it should stop.
const PULL: Duration = Duration::from_secs(2);
/// After a registry that did not answer, or a bus.
const OUTAGE: Duration = Duration::from_secs(10);
/// Reports that are kept.
const KEPT: usize = 30;
/// Requests for datasets that are not looked at, at once.
const PARALLEL: usize = 16;

/// Takes ticks until a stop.
pub(super) async fn run(daemon: Arc<Daemon>) {
    let mut consumer = None;
    while !daemon.shutdown.is_requested() {
        if consumer.is_none() {
            match daemon.bus.consumer(Queue::Tick(TASK)).await {
                Ok(opened) => consumer = Some(opened),
                Err(e) => {
                    tracing::warn!(error = %e, "the queue of ticks cannot be opened; it is tried again");
                    daemon.pause(BACK_OFF).await;
                    continue;
                }
            }
        }
        let Some(open) = consumer.as_mut() else { continue };
        let next = tokio::select! {
            next = open.next(PULL) => next,
            () = daemon.shutdown.requested() => return,
        };
        match next {
            Ok(Some(delivery)) => handle(&daemon, delivery).await,
            Ok(None) => {}
            Err(e) => {
                tracing::warn!(error = %e, "no tick could be taken; it is tried again");
                daemon.pause(BACK_OFF).await;
            }
        }
    }
}

async fn handle(daemon: &Daemon, delivery: Delivery) {
    let Request::Tick(due) = delivery.request().clone() else { return };
    let id = delivery.event().map(|e| e.id.clone()).unwrap_or_default();
    let run = run_of(due.instant, &id);
    // The clock's own ticks are known by job and instant, all others were asked for.
    let by_hand = id.contains(EventType::TickDue.as_str());
    let alive = delivery.keep_alive();
    *daemon.working.lock().unwrap_or_else(PoisonError::into_inner) = Some((run, Utc::now()));
    let done = tokio::select! {
        done = reconcile(daemon, &due, run, by_hand).instrument(tracing::info_span!("reconcile", %run)) => done,
        // Nothing is half done: a walk only reads.
        () = daemon.shutdown.requested() => Err(anyhow::anyhow!("this replica stops")),
    };
    *daemon.working.lock().unwrap_or_else(PoisonError::into_inner) = None;
    drop(alive);
    let said = match done {
        Ok(()) => delivery.ack().await,
        Err(e) => {
            // The registry's or the bus's fault, never the tick's: one that was asked for must outlive an outage.
            tracing::warn!(error = %format!("{e:#}"), "the run came to no end; it is tried again");
            let stops = daemon.shutdown.is_requested();
            delivery.hand_back(if stops { Duration::from_secs(1) } else { OUTAGE }).await
        }
    };
    if let Err(e) = said {
        tracing::warn!(error = %e, "the tick could not be confirmed; it may come once more and finds its report");
    }
}

/// The run of a tick: the same for whoever takes it, so that a tick that comes again finds its report.
fn run_of(instant: DateTime<Utc>, id: &str) -> Uuid {
    let hash = Sha256::digest(id.as_bytes());
    let mut random = [0; 10];
    random.copy_from_slice(&hash[..10]);
    let millis = u64::try_from(instant.timestamp_millis()).unwrap_or(0);
    uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
}

/// The newest report that is kept and can be read.
pub(super) async fn last(daemon: &Daemon) -> anyhow::Result<Option<Report>> {
    for stored in daemon.registry.reports().await? {
        let Some(bytes) = daemon.registry.report_get(stored.run).await? else { continue };
        match serde_json::from_slice(&bytes) {
            Ok(report) => return Ok(Some(report)),
            Err(e) => {
                tracing::warn!(run = %stored.run, error = %e, "a report cannot be read; the one before it is taken")
            }
        }
    }
    Ok(None)
}

async fn reconcile(daemon: &Daemon, due: &TickDue, run: Uuid, by_hand: bool) -> anyhow::Result<()> {
    daemon.is_ours().await?;
    if let Some(bytes) = daemon.registry.report_get(run).await? {
        tracing::info!("the report of this tick is there already");
        daemon.registry.record_closed(TASK.as_str(), run).await?;
        status::show(daemon, &daemon.registry.snapshot().await?, &serde_json::from_slice(&bytes)?);
        return Ok(());
    }
    announce(daemon, run, EventType::RunStarted, "estate", &run_data(daemon, run, None)).await?;
    let last = last(daemon).await?;
    let before = daemon.metrics.store().requests();
    let (registry, at) = (Some(daemon.registry.clone()), daemon.registry.uri().to_string());
    let mut scope = walk::scope(&daemon.config, daemon.lake.clone(), registry, at, &[]).await?;
    // What the last report has is known to be a dataset: no folder of it is listed.
    let looked_at: BTreeSet<String> =
        last.iter().flat_map(|r| &r.datasets).filter(|d| d.before.is_some()).map(|d| d.uri.clone()).collect();
    let found = scope.discover(&looked_at).await;
    let known: HashMap<String, Known> = load(daemon, found.iter()).await?;
    let edges = left(&scope, &found, &known, due, by_hand).await;
    let looked = found.len() - edges.len();
    let what = Due { datasets: &[], orphans: true, edges };
    let walk = walk::look_at(scope, found, what, &Rows { orphans: true }).await;
    let requests = daemon.metrics.store().requests() - before;
    let mut report = crate::report::report(&walk, &daemon.config, run, daemon.command.clone(), requests);
    carry(&walk, &known, last.as_ref(), &mut report);
    let outside = std::mem::take(&mut report.totals.stored_outside);
    crate::report::finish(&mut report, outside, &daemon.config, requests);
    tell(daemon, &walk, last.as_ref(), &report).await?;
    save(daemon, &walk, &known).await?;
    daemon.registry.report_put(run, Bytes::from(serde_json::to_vec(&report)?)).await?;
    daemon.registry.reports_prune(KEPT).await?;
    daemon.registry.record_closed(TASK.as_str(), run).await?;
    status::show(daemon, &walk.scope.snapshot, &report);
    let findings = report.all_findings().count();
    let seen = report.totals.seen;
    tracing::info!(%run, seen, looked, findings, lists = requests.list, "reconciled the estate");
    Ok(())
}

/// What a tick does with a dataset.
enum Now<'a> {
    Look(Option<&'a Known>),
    /// Only what it reads of others is read.
    Edges,
    /// What it reads of others is what it read before.
    Unmoved(Reads),
}

/// Which datasets are not looked at now, each with what it reads of others: what is not due, and what the LISTs of this tick do
/// not reach. What it reads is known from before where HEAD has not moved, and read anew from its manifests alone where it has.
/// A dataset of which that cannot be said is looked at.
async fn left(
    scope: &Scope,
    found: &BTreeSet<String>,
    known: &HashMap<String, Known>,
    asked: &TickDue,
    by_hand: bool,
) -> BTreeMap<String, Reads> {
    let named = scope.wanted(&asked.datasets);
    let judged: Vec<(String, Now<'_>)> = stream::iter(found)
        .map(|uri| {
            let asked_for = by_hand && named.holds(uri);
            async move { (uri.clone(), judge(scope, uri, known.get(uri), asked_for, by_hand).await) }
        })
        .buffer_unordered(PARALLEL)
        .collect()
        .await;
    let (mut due, mut later, mut out) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
    for (uri, now) in judged {
        match now {
            Now::Look(before) => _ = due.insert(uri, before),
            Now::Edges => later.push(uri),
            Now::Unmoved(reads) => _ = out.insert(uri, reads),
        }
    }
    let now: BTreeSet<String> =
        cadence::within(due.clone(), if by_hand { u64::MAX } else { LISTS }).into_iter().collect();
    later.extend(due.into_keys().filter(|uri| !now.contains(uri)));
    let read = |uri: String| async move {
        let reads = edges(&scope.lake, &uri).await.ok();
        (uri, reads)
    };
    let read: Vec<(String, Option<Reads>)> = stream::iter(later).map(read).buffer_unordered(PARALLEL).collect().await;
    out.extend(read.into_iter().filter_map(|(uri, reads)| Some((uri, reads?))));
    out
}

async fn judge<'a>(scope: &Scope, uri: &str, before: Option<&'a Known>, asked_for: bool, by_hand: bool) -> Now<'a> {
    let Some(known) = before else { return Now::Look(None) };
    if asked_for || (!by_hand && known.is_due(scope.at, false)) {
        return Now::Look(before);
    }
    match unmoved(&scope.lake, uri, known).await {
        Ok(true) => Now::Unmoved(known.reads.clone()),
        Ok(false) if by_hand || !known.is_due(scope.at, true) => Now::Edges,
        _ => Now::Look(before),
    }
}

/// Whether HEAD is what it was: two requests where its mark is known (the next version is not there, and HEAD's manifest is the same
/// object), else it is opened.
async fn unmoved(lake: &Lake, uri: &str, known: &Known) -> squire_lake::Result<bool> {
    match &known.mark {
        Some(mark) => Ok(is_unmoved(lake, uri, mark, true).await),
        None => Ok(lake.head(uri).await? == known.head),
    }
}

/// The state of a dataset is this task's own, beside that of the sweeps.
fn state_key(uri: &str) -> String {
    format!("reconcile {uri}")
}

async fn load<'a>(daemon: &Daemon, uris: impl Iterator<Item = &'a String>) -> anyhow::Result<HashMap<String, Known>> {
    let states: HashMap<String, Known> = daemon.registry.load_state(uris.map(|uri| state_key(uri))).await?;
    let uri = |key: &str| key.split_once(' ').map(|(_, uri)| uri.to_string());
    Ok(states.into_iter().filter_map(|(key, known)| Some((uri(&key)?, known))).collect())
}

/// Remembers what was found of each dataset that was looked at.
async fn save(daemon: &Daemon, walk: &Walk<Row>, known: &HashMap<String, Known>) -> anyhow::Result<()> {
    let mut changed = HashMap::new();
    for (uri, place) in &walk.places {
        let Place::Dataset(row) = place else { continue };
        let stored = row.dataset.stored.as_ref();
        let orphans = stored.map_or(0, |s| s.of(StoredClass::Orphan));
        let total = stored.map_or(0, |s| s.total);
        let every = cadence::every(known.get(uri).map(|k| k.every), orphans, total);
        let (reads, mark) = (row.reads.clone(), row.mark.clone());
        let now = Known { at: walk.scope.at, head: row.head, every, objects: row.objects, reads, mark };
        changed.insert(state_key(uri), now);
    }
    Ok(daemon.registry.save_state(changed).await?)
}

/// Adds the rows of the datasets that were not looked at, as the last report has them.
fn carry(walk: &Walk<Row>, known: &HashMap<String, Known>, last: Option<&Report>, report: &mut Report) {
    let wanted = walk.scope.wanted(&[]);
    let before: HashMap<&str, &Dataset> =
        last.into_iter().flat_map(|r| &r.datasets).map(|d| (d.uri.as_str(), d)).collect();
    for uri in walk.left.iter().filter(|uri| wanted.holds(uri)) {
        let row = match (before.get(uri.as_str()), known.get(uri)) {
            (Some(row), Some(known)) => {
                let detail = format!("as it was on {}", known.at.format("%Y-%m-%d %H:%M UTC"));
                Dataset { outcome: row.outcome.clone().with_detail(detail), ..(*row).clone() }
            }
            _ => Dataset::new(uri, Outcome::skipped(SkipReason::NotDue).with_detail("not looked at yet")),
        };
        report.datasets.push(row);
        let inside = |what: &str| squire_lake::uri::within(what, uri);
        let unread = last.into_iter().flat_map(|r| &r.incomplete).filter(|i| inside(&i.what));
        report.incomplete.extend(unread.cloned());
    }
    report.datasets.sort_by(|a, b| a.uri.cmp(&b.uri));
}

/// Says what is new and what is gone, and that the run ended. Each event is known by run, type and subject, so that a tick that
/// comes again says nothing twice.
async fn tell(daemon: &Daemon, walk: &Walk<Row>, last: Option<&Report>, report: &Report) -> anyhow::Result<()> {
    let (new, gone) = news::between(last, report);
    let run = report.run;
    let lineage = |uri: &String| match walk.places.get(uri) {
        Some(Place::Dataset(row)) => row.lineage.clone(),
        _ => None,
    };
    for (kind, all) in [(EventType::FindingNew, new), (EventType::FindingGone, gone)] {
        for About { subject, uri, findings } in all {
            let lineage = uri.as_ref().and_then(lineage);
            let data = FindingsData { run, uri, lineage, findings };
            announce(daemon, run, kind, &subject, &data).await?;
        }
    }
    announce(daemon, run, EventType::RunFinished, "estate", &run_data(daemon, run, Some(&report.totals))).await
}

fn run_data(daemon: &Daemon, run: Uuid, totals: Option<&Totals>) -> RunData {
    RunData { run, kind: ReportKind::Reconcile, command: daemon.command.clone(), totals: totals.cloned() }
}

async fn announce(
    daemon: &Daemon,
    run: Uuid,
    kind: EventType,
    subject: &str,
    data: &(impl serde::Serialize + Sync),
) -> anyhow::Result<()> {
    daemon.bus.announce(run, kind, subject, data).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_that_comes_again_is_the_same_run_and_another_is_not() {
        let at = DateTime::from_timestamp(1_790_000_000, 0).unwrap_or_default();
        let run = run_of(at, "reconcile/2026-09-21T14:13:20Z");
        assert_eq!(run, run_of(at, "reconcile/2026-09-21T14:13:20Z"));
        assert_ne!(run, run_of(at, "another"));
        assert_eq!(run.get_version_num(), 7);
        assert!(run < run_of(at + chrono::TimeDelta::seconds(1), "reconcile/2026-09-21T14:13:20Z"));
    }
}
