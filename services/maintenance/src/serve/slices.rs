//! Slices on the bus: a pass hands a large compaction out, workers take its slices, and one takes its commit (design,
//! "Slices"). Messages carry ids only; what they name lies in the registry.
//!
//! A pass never waits in a slot for its slices. Until they are committed, or nothing has moved for [`STALLED`], the dataset is
//! left to them: a fold or a clean-up in between would only make them fail.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use squire_lake::{Kind, LANCE_VERSION};
use squire_service::bus::data::{CommitRequested, PassRequested, SliceRequested};
use squire_service::config::{BusKind, Mode};
use squire_service::report::{ReportKind, SkipReason, StepReason};
use uuid::Uuid;

use super::worker::{Verdict, back_off, verdict};
use super::{Daemon, NEIGHBOURS, events, tick};
use crate::admit;
use crate::apply::Applied;
use crate::apply::slices::{self, Ended, Gathered};
use crate::driver::{self, Candidate, Case, Planned, PlannedEstate};
use crate::estate::Estate;
use crate::memory;
use crate::plan::{Round, Verdict as StepVerdict};
use crate::state::{DatasetState, Distributed};

/// So long after its last result a compaction in slices is committed with what there is.
const STALLED: chrono::Duration = chrono::Duration::hours(2);
/// So long after it was handed out it is given up, and planned again.
const GIVEN_UP: chrono::Duration = chrono::Duration::days(1);
/// Plans, slices and results are kept for so long. Far beyond [`GIVEN_UP`], from when on no message about them is taken up.
const NEEDED: Duration = Duration::from_secs(7 * 86_400);
/// How often a replica looks for such objects.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
/// A worker of another Lance version hands a slice back for so long.
const OTHER_LANCE: Duration = Duration::from_secs(30);
/// A commit waits so long for somebody's long work before it looks again.
const YIELDED: Duration = Duration::from_secs(60);

/// The compaction of a pass's dataset that is in work in slices, if one is: what was lost on its way is asked for again. The
/// pass is left with what may be done beside it.
pub(super) async fn pending(
    daemon: &Daemon,
    estate: &Estate,
    pass: &PassRequested,
) -> anyhow::Result<Option<Distributed>> {
    let Some(d) = distributed(estate, &pass.uri).await else { return Ok(None) };
    let now = Utc::now();
    if !distributes(daemon) || now - d.at > GIVEN_UP {
        return Ok(None);
    }
    let (ended, newest) = slices::progress(&daemon.registry, &d, &pass.uri).await?;
    if ended.len() == d.slices as usize || now - newest > STALLED {
        // Asked for already, unless whoever stored the last result died just then.
        daemon.bus.request_commit(&CommitRequested { run: d.run, uri: pass.uri.clone() }).await?;
    } else if d.asked_by == pass.run {
        // This pass died, or lost the bus, while it handed them out.
        request(daemon, &d, &pass.uri, &ended).await?;
    }
    tracing::info!(run = %d.run, ended = ended.len(), slices = d.slices, "its compaction is in work in slices");
    Ok(Some(d))
}

/// Removes the objects of compactions that nobody can need any more; see [`squire_registry::Registry::work_prune`].
pub(super) async fn prune(daemon: &Daemon) {
    {
        let mut last = daemon.pruned.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|at| at.elapsed() < PRUNE_EVERY) {
            return;
        }
        *last = Some(Instant::now());
    }
    match daemon.registry.work_prune(NEEDED, Utc::now()).await {
        Ok(0) => {}
        Ok(gone) => tracing::info!(gone, "objects of past compactions in slices were removed"),
        Err(e) => tracing::warn!(error = %e, "objects of past compactions in slices could not be removed yet"),
    }
}

/// Whether the plan's first compaction is shared among the replicas. A large one of a later round is left to the next pass,
/// where it comes first.
pub(super) fn is_shared(daemon: &Daemon, p: &mut Planned) -> bool {
    let above = daemon.config.config.limits.distribute_above.as_u64();
    if !distributes(daemon) || p.state.gives_up_on(p.plan.read_version, Utc::now()).is_some() {
        return false;
    }
    let large = |r: &Round| slices::bytes(r) > above;
    if p.plan.compact.is_planned() && p.plan.rounds.first().is_some_and(large) {
        return true;
    }
    if p.plan.compact.is_planned() && p.plan.rounds.iter().any(large) {
        p.plan.compact = StepVerdict::nothing(StepReason::NoGain);
        p.plan.rounds.iter_mut().for_each(|r| r.tasks.clear());
        p.plan.rounds.retain(|r| !r.is_empty());
    }
    false
}

/// Writes the slices of a plan and asks for them. The dataset's other steps wait for the next tick.
///
/// # Errors
/// When the bus is down; the pass comes again and finds the slices written. The second error is what the pass came to instead.
pub(super) async fn hand_out(
    daemon: &Arc<Daemon>,
    estate: &Estate,
    neighbours: &PlannedEstate,
    p: &Planned,
    pass: &PassRequested,
) -> anyhow::Result<Result<Verdict, Applied>> {
    // Its own run: stamps and objects of this compaction are nobody else's, even if the pass comes twice.
    let mut estate = estate.clone();
    estate.run = Uuid::now_v7();
    let tools = daemon.tools(&estate, neighbours, daemon.settings(&estate, !pass.by_hand));
    let above = daemon.config.config.limits.distribute_above.as_u64();
    match driver::slices::distribute(&tools, p, pass.run, above).await {
        Ok(d) => {
            request(daemon, &d, &pass.uri, &[]).await?;
            tracing::info!(run = %d.run, slices = d.slices, "a large compaction was handed out in slices");
            Ok(Ok(Verdict::Done))
        }
        Err(applied) => Ok(Err(*applied)),
    }
}

async fn request(daemon: &Daemon, d: &Distributed, uri: &str, ended: &[u32]) -> anyhow::Result<()> {
    for slice in (0..d.slices).filter(|n| !ended.contains(n)) {
        daemon.bus.request_slice(&SliceRequested { run: d.run, uri: uri.to_string(), slice }).await?;
    }
    Ok(())
}

/// Executes one slice and stores what came of it; whoever stores the last result asks for the commit.
pub(super) async fn execute(daemon: &Arc<Daemon>, asked: &SliceRequested, attempts: u64) -> anyhow::Result<Verdict> {
    let estate = daemon.estate(asked.run).await?;
    let neighbours = daemon.neighbours(&estate, &asked.uri, NEIGHBOURS).await;
    let uri = asked.uri.as_str();
    let Some(d) = current(daemon, &estate, &neighbours, uri, asked.run).await else { return Ok(Verdict::Done) };
    let (registry, lake) = (&daemon.registry, &daemon.lake);
    if asked.slice >= d.slices {
        return Ok(Verdict::Done);
    }
    if slices::ended(registry, d.run, uri, asked.slice).await?.is_none() {
        let Some(slice) = slices::slice(registry, d.run, uri, asked.slice).await? else {
            tracing::warn!(slice = asked.slice, "the slice that the message names is not there; nothing is done");
            return Ok(Verdict::Done);
        };
        if slice.lance != LANCE_VERSION {
            tracing::debug!(slice = asked.slice, lance = slice.lance, "a slice of another Lance version is left to it");
            return Ok(Verdict::HandBack(OTHER_LANCE));
        }
        let last = attempts >= daemon.bus.settings().max_attempts;
        let came = match forbidden(daemon, &estate, &slice, uri).await? {
            Some(why) => (Ended::Failed { kind: Kind::Refused, detail: why }, Vec::new()),
            None => {
                let _working = daemon.at_work(uri);
                let _room = daemon.admission.admit(memory::of_slice(&slice)).await;
                match slices::execute(lake, uri, &slice, last).await {
                    Ok(came) => came,
                    Err(e) => {
                        tracing::warn!(slice = asked.slice, error = %e, "the slice failed; it is tried again");
                        return Ok(Verdict::Retry(back_off(attempts)));
                    }
                }
            }
        };
        if let Ended::Failed { detail, .. } = &came.0 {
            tracing::warn!(slice = asked.slice, detail, "the slice is given up");
        }
        slices::store(registry, lake, d.run, (uri, asked.slice), came).await?;
        tracing::info!(slice = asked.slice, slices = d.slices, "a slice has ended");
    }
    let (ended, _) = slices::progress(registry, &d, uri).await?;
    if ended.len() == d.slices as usize {
        daemon.bus.request_commit(&CommitRequested { run: d.run, uri: uri.to_string() }).await?;
    }
    Ok(Verdict::Done)
}

/// Why the registry lets nobody write to the dataset now.
async fn forbidden(
    daemon: &Daemon,
    estate: &Estate,
    slice: &squire_lake::compact::stored::Slice,
    uri: &str,
) -> anyhow::Result<Option<String>> {
    let fresh = daemon.registry.recheck(&estate.snapshot, uri).await?;
    let config = slice.settings.table_config.clone().into_iter().collect();
    let governance = estate.govern(&fresh, uri, &config, false);
    Ok(admit::forbidden(&governance, Utc::now()).map(|skip| format!("{}: {}", skip.reason, skip.detail)))
}

/// Commits what the slices have stored.
pub(super) async fn commit(daemon: &Arc<Daemon>, asked: &CommitRequested, attempts: u64) -> anyhow::Result<Verdict> {
    let estate = daemon.estate(asked.run).await?;
    let neighbours = daemon.neighbours(&estate, &asked.uri, NEIGHBOURS).await;
    let uri = asked.uri.as_str();
    let Some(d) = current(daemon, &estate, &neighbours, uri, asked.run).await else { return Ok(Verdict::Done) };
    let (landing, lost) = match slices::gather(&daemon.registry, &d, uri).await? {
        Gathered::Landing(landing, lost) => (landing, lost),
        Gathered::OtherLance(_) => return Ok(Verdict::HandBack(OTHER_LANCE)),
    };
    for why in &lost {
        tracing::warn!(why, "a part of the compaction is not committed; the next pass plans it again");
    }
    let started = Utc::now();
    let settings = daemon.settings(&estate, false);
    let tools = daemon.tools(&estate, &neighbours, settings.clone());
    let mut candidate = driver::plan_dataset(&estate, &neighbours, uri, &settings, false).await;
    let p = match &mut candidate.case {
        Case::Planned(p) => p,
        Case::Skipped(skip, _) => {
            // Asked for again by the next tick's pass, while the compaction is not given up.
            tracing::info!(reason = %skip.reason, "the commit of its slices waits: {}", skip.detail);
            return Ok(Verdict::Done);
        }
        Case::Failed(e) => {
            tracing::warn!(error = %e, "the dataset could not be looked at for the commit of its slices");
            return Ok(Verdict::Retry(back_off(attempts)));
        }
    };
    let place = daemon.lake.place(uri).await?;
    if !squire_lake::commit::stamped(&place, d.read_version, d.run, "compact").await?.is_empty() {
        // Whoever landed it died before it could say so.
        let applied = driver::slices::landed(&tools, p, &landing).await;
        return ended(daemon, &estate, (&neighbours, &d), (&candidate, applied), attempts, started).await;
    }
    if landing.done.is_empty() {
        driver::slices::end(&tools, p, (Kind::Permanent, lost.join("; "))).await;
        return Ok(Verdict::Done);
    }
    p.plan = slices::landing_plan(&p.plan, &p.layout, &landing);
    tick::open(daemon, &estate, d.run, started).await?;
    let _working = daemon.at_work(uri);
    let applied = driver::slices::land(&tools, p, landing).await;
    ended(daemon, &estate, (&neighbours, &d), (&candidate, applied), attempts, started).await
}

/// Reports a landing, closes its run, and says what becomes of the message.
async fn ended(
    daemon: &Daemon,
    estate: &Estate,
    (neighbours, d): (&PlannedEstate, &Distributed),
    (candidate, applied): (&Candidate, Applied),
    attempts: u64,
    started: DateTime<Utc>,
) -> anyhow::Result<Verdict> {
    tick::open(daemon, estate, d.run, started).await?;
    let seconds = (Utc::now() - started).to_std().unwrap_or_default().as_secs_f64();
    let applied = Some((applied, seconds));
    let row = driver::dataset(estate, &neighbours.graph, candidate, applied.as_ref());
    let mut report = daemon.report(estate, ReportKind::Sweep, started);
    report.datasets = vec![row];
    Daemon::finish(&mut report);
    daemon.metrics.count(&report);
    tick::close(daemon, d.run, &report).await?;
    let Some(row) = report.datasets.first() else { return Ok(Verdict::Done) };
    let pass = PassRequested { run: d.run, uri: candidate.uri.clone(), by_hand: false };
    events::pass(daemon, estate, &pass, row, &candidate.case).await;
    if let Some((applied, _)) = &applied {
        applied.count(&daemon.metrics);
        events::blocks(daemon, estate, &pass, row, (&candidate.case, &applied.filed)).await;
    }
    if row.outcome.reason() == Some(SkipReason::WriterActive.as_str()) {
        return Ok(Verdict::HandBack(YIELDED));
    }
    Ok(verdict(daemon, None, applied.as_ref().map(|(a, _)| a), row, attempts).await)
}

/// The compaction that a message is about, if it is still wanted. A message carries names only: a dataset that neither a walk
/// nor the registry knows, and a run that its state does not name, are no work (invariant 12).
async fn current(
    daemon: &Daemon,
    estate: &Estate,
    neighbours: &PlannedEstate,
    uri: &str,
    run: Uuid,
) -> Option<Distributed> {
    if daemon.mode() == Mode::Observe || !neighbours.scope.datasets.contains(uri) {
        return None;
    }
    // What was given up may be planned anew at any time.
    distributed(estate, uri).await.filter(|d| d.run == run && Utc::now() - d.at <= GIVEN_UP)
}

async fn distributed(estate: &Estate, uri: &str) -> Option<Distributed> {
    let wanted = BTreeSet::from([uri.to_string()]);
    let state: Option<DatasetState> = driver::load_states(estate, &wanted).await.remove(uri);
    state.and_then(|s| s.distributed)
}

/// Whether there is anybody to share with.
fn distributes(daemon: &Daemon) -> bool {
    daemon.config.config.bus.kind == BusKind::Nats
}
