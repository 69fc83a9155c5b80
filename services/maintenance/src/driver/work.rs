//! Applies plans, contained and within memory and budgets, and remembers what came of them.

use std::collections::HashMap;
use std::time::Instant;

use futures::stream::{self, StreamExt};
use squire_lake::contain;
use squire_registry::{Block, BlockKind, Subject};
use squire_service::report::{FailureKind, SkipReason};

use super::{Case, Planned, PlannedEstate, lasts};
use crate::admit::Skip;
use crate::apply::{Applied, Filed, Tools, apply, failure_kind, verify_again};
use crate::budget;
use crate::memory;
use crate::state::{DatasetState, Failure, RETRY, WaitingFor};

/// Applies every plan with work, several at once, in the plan's order. Saves the state of what changed.
pub async fn apply_estate(tools: &Tools, planned: &PlannedEstate) -> HashMap<String, (Applied, f64)> {
    let work: Vec<&Planned> = planned
        .candidates
        .iter()
        .filter_map(|c| match &c.case {
            Case::Planned(p) if p.has_work() => Some(p.as_ref()),
            _ => None,
        })
        .collect();
    let (calm, suspicious): (Vec<_>, Vec<_>) = work.into_iter().partition(|p| !p.has_unnamed_files(tools.estate.now()));
    let concurrency = tools.estate.config().limits.concurrency.max(1);
    // What may have to wait for a writer comes last: by then most of the waiting is over.
    let done: Vec<(String, Applied, f64)> = stream::iter(calm.into_iter().chain(suspicious))
        .map(|p| async move {
            let start = Instant::now();
            let applied = apply_one(tools, p).await;
            (p.look.uri.clone(), applied, start.elapsed().as_secs_f64())
        })
        .buffer_unordered(concurrency)
        .collect()
        .await;
    for candidate in &planned.candidates {
        if let Case::Failed(e) = &candidate.case
            && lasts(e)
        {
            let before = planned.states.get(&candidate.uri).cloned().unwrap_or_default();
            let mut state = before.clone();
            // HEAD is not known where the look itself failed.
            state.failed(0, failure_kind(e.kind()).as_str(), tools.estate.now());
            keep_state(tools, &candidate.uri, &before, state).await;
        }
    }
    done.into_iter().map(|(uri, applied, seconds)| (uri, (applied, seconds))).collect()
}

/// Applies one plan, contained, and saves the dataset's state.
#[tracing::instrument(level = "debug", name = "dataset", skip_all, fields(run = %tools.estate.run, dataset = p.look.uri))]
pub async fn apply_one(tools: &Tools, p: &Planned) -> Applied {
    let mut applied = if tools.shutdown.is_requested() {
        let detail = "stopped by a signal before it began".to_string();
        Applied { skipped: Some(Skip { reason: SkipReason::NotSelected, detail }), ..Applied::default() }
    } else if let Some(f) = p.state.gives_up_on(p.plan.read_version, tools.estate.now()) {
        let mut applied = Applied::default();
        let kind = f.kind.parse().unwrap_or(squire_service::report::FailureKind::Permanent);
        applied.failures.insert(
            "earlier",
            (kind, format!("it failed with {} at version {} and HEAD has not moved", f.kind, f.version)),
        );
        applied
    } else {
        let _room = tools.admission.admit(memory::estimate(&p.layout, &p.plan)).await;
        let open = verify_again(tools, p).await;
        if open.failures.is_empty() && open.skipped.is_none() {
            let done = apply_reserved(tools, p).await;
            Applied { settled: open.settled, checks: done.checks.or(open.checks), ..done }
        } else {
            open
        }
    };
    applied.filed.extend(save_state(tools, p, &applied).await);
    applied
}

async fn apply_reserved(tools: &Tools, p: &Planned) -> Applied {
    match budget::reserve(tools, &p.plan).await {
        Ok(reserved) => {
            let applied = apply_contained(tools, p).await;
            budget::settle(tools, reserved, &applied).await;
            applied
        }
        Err(skip) => Applied { skipped: Some(skip), ..Applied::default() },
    }
}

async fn apply_contained(tools: &Tools, p: &Planned) -> Applied {
    let work = async { Ok(apply(tools, &p.plan, &p.look, &p.governance, p.state.waiting_for.as_ref()).await) };
    contain::contained(&tools.estate.lake, "the pass", &p.look.uri, work).await.unwrap_or_else(|e| {
        let mut applied = Applied::default();
        applied.failures.insert("pass", (failure_kind(e.kind()), e.to_string()));
        applied
    })
}

pub(super) async fn save_state(tools: &Tools, p: &Planned, applied: &Applied) -> Option<Filed> {
    let mut state = p.state.clone();
    let again = applied.failures.values().any(|(kind, _)| *kind == FailureKind::Transient);
    // A compaction in slices is over, unless this pass was not about it, was put off or may be tried again.
    if p.ends_slices && applied.skipped.is_none() && !again && !tools.shutdown.is_requested() {
        state.distributed = None;
    }
    let ours = applied.commits.iter().map(|c| c.version);
    state.accounted = ours.chain(p.state.unverified.iter().map(|u| u.after)).max().max(state.accounted);
    state.unverified.retain(|open| !applied.settled.contains(&open.after));
    state.unverified.extend(applied.unverified.iter().cloned());
    let now = tools.estate.now();
    let window = p.governance.policy.policy.yield_window;
    let before = state.waiting_for.take().filter(|w| w.goes_on(window, now));
    state.waiting_for = match applied.waits_for.clone() {
        Some(path) => {
            let since = before.as_ref().map_or(now, |w| w.since);
            Some(WaitingFor { path, since, seen: now })
        }
        // Something else kept the pass from beginning: the wait goes on.
        None if applied.skipped.is_some() && applied.opened.is_none() => before,
        None => None,
    };
    if let Some((kind, _)) = applied.failures.iter().filter(|(step, _)| **step != "earlier").map(|(_, f)| f).next() {
        let version = applied.after.as_ref().map_or(p.plan.read_version, |a| a.version);
        state.failed(version, kind.as_str(), now);
    } else if applied.is_material() {
        let version = applied.after.as_ref().map_or(p.plan.read_version, |a| a.version);
        let rewritten = applied.compact.replaced + applied.indices.iter().map(|i| i.bytes).sum::<u64>();
        state.worked(version, rewritten, p.governance.policy.policy.retention, now);
    }
    if applied.is_material() && p.governance.policy.policy.erase_within.is_some() && !p.layout.indices.is_empty() {
        state.watched = p.layout.erasure.watched.clone();
    }
    keep_state(tools, &p.look.uri, &p.state, state).await
}

/// Saves what changed, and files the block that a repeated failure asks for.
async fn keep_state(tools: &Tools, uri: &str, before: &DatasetState, state: DatasetState) -> Option<Filed> {
    if state == *before {
        return None;
    }
    let filed = match state.fails_repeatedly().filter(|f| before.failure.as_ref() != Some(f)) {
        Some(failure) => file_block(tools, uri, failure).await,
        None => None,
    };
    if let Err(e) = tools.registry.save_state(HashMap::from([(uri.to_string(), state)])).await {
        tracing::warn!(dataset = uri, error = %e, "the state could not be saved; the next run plans without it");
    }
    filed
}

/// `repeated_failure`: paused for a day, then tried once more. The blocks of earlier days are lifted, so one stands.
async fn file_block(tools: &Tools, uri: &str, failure: &Failure) -> Option<Filed> {
    let subject = Subject::Dataset(uri.to_string());
    let until = Some(failure.at + RETRY);
    let block = Block { kind: BlockKind::RepeatedFailure, subject: subject.clone(), until, version: None };
    let why = format!("failed {} times in a row with {}; tried again daily", failure.count, failure.kind);
    let old = tools.estate.snapshot.blocks().filter(|b| b.fields.kind == BlockKind::RepeatedFailure);
    let mut lifted = Vec::new();
    for expired in old.filter(|b| b.fields.subject == subject) {
        match tools.registry.block_remove(&expired.meta.id, Some("a newer one replaces it")).await {
            Ok(()) => lifted.push(expired.meta.id.clone()),
            Err(e) => tracing::debug!(dataset = uri, error = %e, "an earlier block was gone already"),
        }
    }
    match tools.registry.block_add(block.clone(), &why).await {
        Ok(id) => {
            tracing::warn!(dataset = uri, "blocked for a day: {why}");
            Some(Filed { id, block, reason: why, lifted })
        }
        Err(e) => {
            tracing::error!(dataset = uri, error = %e, "the block for a repeated failure could not be filed");
            None
        }
    }
}
