//! Renders plans and outcomes as the report's datasets. Pure.

use std::collections::BTreeMap;

use squire_lake::hook;
use squire_lake::index::{IndexInfo, State};
use squire_lake::look::{FragmentInfo, Look};
use squire_lake::verify::Checks;
use squire_registry::{CommitStep, Governance};
use squire_service::report as model;
use squire_service::report::{
    CleanupStep, CompactStep, Dataset, DatasetState, Finding, FindingKind, FindingSubject, IndexStatus, IndexStep,
    Outcome, PolicyView, Retained, StepOutcome, StepReason, Steps, VerifyStep, WriterInfo,
};

use crate::admit::Skip;
use crate::apply::Applied;
use crate::plan::{DatasetPlan, Layout, Verdict};

/// Everything known of one dataset in this run.
pub struct Seen<'a> {
    /// The look, when it could be taken.
    pub look: &'a Look,
    /// What governs it.
    pub governance: &'a Governance,
    /// Its description.
    pub layout: &'a Layout,
    /// Its plan.
    pub plan: &'a DatasetPlan,
    /// The datasets that read its files.
    pub cloned_by: &'a [String],
    /// Names by which findings call it.
    pub name: &'a str,
}

/// A dataset that was planned or applied.
pub fn dataset(seen: &Seen<'_>, applied: Option<&Applied>, skip: Option<&Skip>, seconds: f64) -> Dataset {
    let steps = match (applied, skip) {
        (_, Some(_)) => Steps::default(),
        (Some(applied), None) => done_steps(seen.plan, applied),
        (None, None) => planned_steps(seen.plan),
    };
    let outcome = outcome(&steps, applied, skip);
    let mut out = described(seen, outcome);
    out.duration_seconds = seconds;
    out.after = after(seen, applied, skip);
    out.steps = steps;
    out.findings.extend(applied.into_iter().filter(|a| a.stranded > 0).map(|a| {
        let mut finding = Finding::new(
            FindingKind::StrandedBytes,
            subject(seen),
            "a lost commit's output stays until reconcile proves that nobody names it",
        );
        finding.bytes = Some(a.stranded);
        finding
    }));
    out
}

fn outcome(steps: &Steps, applied: Option<&Applied>, skip: Option<&Skip>) -> Outcome {
    if let Some(skip) = skip {
        return Outcome::skipped(skip.reason).with_detail(skip.detail.clone());
    }
    if let Some(applied) = applied {
        if let Some((kind, text)) = applied.failures.values().next() {
            return Outcome::failed(*kind).with_detail(text.clone());
        }
        if let Some(skip) = applied.skipped.as_ref().filter(|_| !applied.is_material()) {
            return Outcome::skipped(skip.reason).with_detail(skip.detail.clone());
        }
    }
    Outcome::of_steps(steps)
}

/// Identity, policy, state before and findings: what every outcome shows.
fn described(seen: &Seen<'_>, outcome: Outcome) -> Dataset {
    let (look, plan) = (seen.look, seen.plan);
    let mut out = Dataset::new(&look.uri, outcome);
    out.table = seen.governance.table.as_ref().map(ToString::to_string);
    out.tier = plan.target.tier.clone();
    out.tier_source = plan.target.tier_source.parse().unwrap_or(model::TierSource::None);
    out.layout = to_enum(&plan.target.layout).unwrap_or(model::Layout::None);
    out.target_rows = Some(plan.target.rows);
    out.target_source = plan.target.source.parse().ok();
    out.policy = Some(policy(seen.governance));
    out.authority = look.authority.as_str().parse().unwrap_or(model::Authority::Unknown);
    out.writers = writers(look);
    out.before = Some(before(seen));
    out.erasure = crate::plan::erasure::view(seen.layout, plan, seen.governance, seen.cloned_by);
    out.findings = findings(seen);
    out
}

pub(crate) fn to_enum<A: serde::Serialize, B: serde::de::DeserializeOwned>(a: &A) -> Option<B> {
    serde_json::to_value(a).ok().and_then(|v| serde_json::from_value(v).ok())
}

pub(crate) fn policy(governance: &Governance) -> PolicyView {
    let effective = &governance.policy;
    let values = match serde_json::to_value(&effective.policy) {
        Ok(serde_json::Value::Object(map)) => map.into_iter().collect(),
        _ => BTreeMap::new(),
    };
    PolicyView {
        source: model::PolicySource {
            kind: to_enum(&effective.source.kind).unwrap_or(model::PolicySourceKind::Estate),
            id: Some(effective.source.id.clone()),
        },
        clamped: effective.clamped.clone(),
        pending: effective.pending.as_ref().and_then(|p| serde_json::to_value(p).ok()),
        values,
    }
}

/// Who wrote it, without Squire: the newest version of each library release.
fn writers(look: &Look) -> Vec<WriterInfo> {
    let mut by: BTreeMap<String, u64> = BTreeMap::new();
    for m in look.manifests.iter().filter(|m| m.stamp.is_none() && !m.detached && m.tree.is_empty()) {
        if let Some((library, version)) = &m.writer {
            let name = if library == "lance" { version.clone() } else { format!("{library} {version}") };
            let newest = by.entry(name).or_default();
            *newest = (*newest).max(m.version);
        }
    }
    by.into_iter().map(|(lance, version)| WriterInfo { version, lance }).collect()
}

fn before(seen: &Seen<'_>) -> DatasetState {
    let look = seen.look;
    let versions = look.versions().len() as u64;
    let state = state(look.version(), &look.fragments, &look.indices, look.listing.bytes(), versions);
    with_required(seen, state)
}

/// Beside the indices that are there those that the policy requires and the table lacks. No pass makes one.
fn with_required(seen: &Seen<'_>, mut state: DatasetState) -> DatasetState {
    let required = &seen.governance.policy.policy.required_indices;
    let missing = squire_lake::index::missing_states(&seen.look.indices, required, state.rows);
    state.indices.extend(missing.iter().map(index_status));
    state
}

fn state(version: u64, fragments: &[FragmentInfo], indices: &[IndexInfo], bytes: u64, versions: u64) -> DatasetState {
    DatasetState {
        version,
        fragments: fragments.len() as u64,
        rows: fragments.iter().map(FragmentInfo::rows).sum(),
        deleted_rows: fragments.iter().map(|f| f.deleted_rows).sum(),
        bytes,
        versions,
        indices: indices.iter().map(index_status).collect(),
    }
}

fn index_status(index: &IndexInfo) -> IndexStatus {
    let known = index.state != State::Unreadable;
    IndexStatus {
        name: index.name.clone(),
        index_type: index.kind.clone(),
        segments: index.segments.len() as u64,
        indexed_rows: known.then_some(index.indexed_rows),
        unindexed_rows: known.then_some(index.unindexed_rows),
        state: to_enum(&index.state).unwrap_or(model::IndexState::Unreadable),
    }
}

fn after(seen: &Seen<'_>, applied: Option<&Applied>, skip: Option<&Skip>) -> Option<DatasetState> {
    let before = before(seen);
    if skip.is_some() {
        return None;
    }
    match applied {
        None => Some(predicted(seen, before)),
        Some(applied) => {
            let removed = applied.cleaned.as_ref().map_or(0, |c| c.versions.len() as u64);
            let reclaimed = applied.cleaned.as_ref().map_or(0, |c| c.bytes);
            let bytes = (before.bytes + applied.compact.bytes + applied.stranded).saturating_sub(reclaimed);
            let Some(now) = &applied.after else {
                return Some(DatasetState { bytes, versions: before.versions.saturating_sub(removed), ..before });
            };
            let made = now.version.saturating_sub(before.version);
            let versions = (before.versions + made).saturating_sub(removed);
            Some(with_required(seen, state(now.version, &now.fragments, &now.indices, bytes, versions)))
        }
    }
}

fn predicted(seen: &Seen<'_>, before: DatasetState) -> DatasetState {
    let plan = seen.plan;
    let commits: u64 =
        plan.rounds.iter().map(|r| u64::from(!r.tasks.is_empty()) * 2 + u64::from(!r.indices.is_empty())).sum();
    let removed = plan.removal.versions.len() as u64;
    let end = plan.rounds.iter().fold(seen.layout.clone(), |layout, round| crate::plan::layout::after(&layout, round));
    DatasetState {
        version: before.version + commits,
        bytes: (before.bytes + plan.predicted.rewritten_bytes).saturating_sub(plan.removal.bytes()),
        versions: (before.versions + commits).saturating_sub(removed),
        ..with_required(seen, state(0, &end.fragments, &end.indices, 0, 0))
    }
}

fn retained(list: &[crate::plan::retention::Retained]) -> Vec<Retained> {
    list.iter()
        .map(|r| Retained {
            version: r.version,
            replaced_at: Some(r.replaced_at),
            by: r.by,
            until: r.until,
            bytes: r.bytes,
        })
        .collect()
}

fn planned_steps(plan: &DatasetPlan) -> Steps {
    let mut compact = CompactStep::new(plan.compact.outcome, plan.compact.reason);
    compact.detail = plan.compact.detail.clone();
    if plan.compact.is_planned() {
        let tasks = || plan.rounds.iter().flat_map(|r| &r.tasks);
        compact.fragments_removed = tasks().map(|t| t.fragments.len() as u64).sum();
        compact.fragments_added = tasks().map(|t| t.outputs).sum();
        compact.rewritten_bytes = tasks().map(|t| t.bytes).sum();
        compact.tasks = tasks().count() as u64;
    }
    let mut indices = IndexStep::new(plan.optimize_indices.outcome, plan.optimize_indices.reason);
    indices.detail = plan.optimize_indices.detail.clone();
    if plan.optimize_indices.is_planned() {
        indices.indices = plan.rounds.iter().flat_map(|r| &r.indices).map(index_work).collect();
    }
    let verify = match plan.compact.is_planned() || plan.optimize_indices.is_planned() {
        true => VerifyStep::new(StepOutcome::Planned, None),
        false => VerifyStep::new(StepOutcome::NothingToDo, Some(StepReason::NoGain)),
    };
    let mut cleanup = cleanup_step(&plan.cleanup);
    cleanup.retained = retained(&plan.retained);
    if plan.cleanup.is_planned() {
        cleanup.versions_removed = plan.removal.versions.len() as u64;
        cleanup.files_removed = plan.removal.files.len() as u64;
        cleanup.reclaimed_bytes = plan.removal.bytes();
    }
    Steps { compact: Some(compact), optimize_indices: Some(indices), verify: Some(verify), cleanup: Some(cleanup) }
}

fn cleanup_step(verdict: &Verdict) -> CleanupStep {
    let mut step = CleanupStep::new(verdict.outcome, verdict.reason);
    step.detail = verdict.detail.clone();
    step
}

fn index_work(work: &crate::plan::IndexWork) -> model::IndexWork {
    model::IndexWork {
        name: work.name.clone(),
        action: work.action,
        rows_folded: work.rows,
        segments_before: work.segments_before as u64,
        segments_after: work.segments_after as u64,
    }
}

/// What was planned, turned into what came of it.
fn done_steps(plan: &DatasetPlan, applied: &Applied) -> Steps {
    let failed = |step: &str| applied.failures.get(step);
    let end = |verdict: &Verdict, step: &str, material: bool| -> (StepOutcome, Option<StepReason>, Option<String>) {
        match failed(step) {
            Some((kind, text)) => (StepOutcome::Failed, Some((*kind).into()), Some(text.clone())),
            None if material => (StepOutcome::Done, None, None),
            None if verdict.is_planned() => (StepOutcome::NothingToDo, Some(StepReason::NoGain), None),
            None => (verdict.outcome, verdict.reason, verdict.detail.clone()),
        }
    };
    let (outcome, reason, detail) = end(&plan.compact, "compact", applied.compact.tasks > 0);
    let compact = CompactStep {
        duration_seconds: applied.compact.seconds,
        fragments_removed: applied.compact.removed,
        fragments_added: applied.compact.added,
        rewritten_bytes: applied.compact.replaced,
        tasks: applied.compact.tasks,
        detail,
        ..CompactStep::new(outcome, reason)
    };
    let (outcome, reason, detail) = end(&plan.optimize_indices, "optimize_indices", !applied.indices.is_empty());
    let indices = IndexStep {
        duration_seconds: applied.indices_seconds,
        indices: applied.indices.iter().map(index_work).collect(),
        detail,
        ..IndexStep::new(outcome, reason)
    };
    let verify = verify_step(applied);
    Steps {
        compact: Some(compact),
        optimize_indices: Some(indices),
        verify: Some(verify),
        cleanup: Some(cleanup_done(plan, applied)),
    }
}

fn verify_step(applied: &Applied) -> VerifyStep {
    let mut step = match (applied.failures.get("verify"), &applied.checks) {
        (Some((kind, text)), _) => {
            let mut step = VerifyStep::new(StepOutcome::Failed, Some((*kind).into()));
            step.detail = Some(text.clone());
            step
        }
        (None, Some(_)) => VerifyStep::new(StepOutcome::Done, None),
        (None, None) => VerifyStep::new(StepOutcome::NothingToDo, Some(StepReason::NoGain)),
    };
    if let Some(checks) = &applied.checks {
        step.checks = verify_checks(checks);
    }
    step
}

fn verify_checks(checks: &Checks) -> model::VerifyChecks {
    model::VerifyChecks {
        rows: checks.rows,
        sampled_rows: checks.sampled_rows,
        indices: checks
            .indices
            .iter()
            .map(|c| {
                let mut check = match c.recall {
                    Some((before, after)) => model::IndexCheck::new(&c.name, model::CheckKind::Recall, before, after),
                    None => model::IndexCheck::new(&c.name, model::CheckKind::Exact, 1.0, 1.0),
                };
                (check.seconds_before, check.seconds_after) = c.seconds;
                check
            })
            .collect(),
    }
}

fn cleanup_done(plan: &DatasetPlan, applied: &Applied) -> CleanupStep {
    let verdict = applied.cleanup_verdict.as_ref().unwrap_or(&plan.cleanup);
    let mut step = match (applied.failures.get("cleanup"), &applied.cleaned) {
        (Some((kind, text)), _) => {
            let mut step = CleanupStep::new(StepOutcome::Failed, Some((*kind).into()));
            step.detail = Some(text.clone());
            step
        }
        (None, Some(cleaned)) if !cleaned.versions.is_empty() => CleanupStep::new(StepOutcome::Done, None),
        (None, _) if plan.erase && applied.commits.iter().any(|c| c.step == CommitStep::Erase) => {
            let mut step = CleanupStep::new(StepOutcome::Done, None);
            step.detail = plan.cleanup.detail.clone();
            step
        }
        (None, Some(_)) if verdict.outcome == StepOutcome::Refused => cleanup_step(verdict),
        (None, Some(_)) => CleanupStep::new(StepOutcome::NothingToDo, Some(StepReason::Retention)),
        (None, None) if verdict.is_planned() => CleanupStep::new(StepOutcome::NothingToDo, Some(StepReason::Retention)),
        (None, None) => cleanup_step(verdict),
    };
    step.retained = retained(applied.retained.as_deref().unwrap_or(&plan.retained));
    if let Some(cleaned) = &applied.cleaned {
        step.versions_removed = cleaned.versions.len() as u64;
        step.files_removed = cleaned.files;
        step.reclaimed_bytes = cleaned.bytes;
        step.failed_deletes = cleaned.failed;
        step.detail = step.detail.or_else(|| cleaned.stopped.clone());
    }
    step
}

fn subject(seen: &Seen<'_>) -> FindingSubject {
    FindingSubject::dataset(seen.name)
}

/// What stands out about a dataset, beyond its steps.
fn findings(seen: &Seen<'_>) -> Vec<Finding> {
    let look = seen.look;
    let mut out = Vec::new();
    let mut add = |kind: FindingKind, detail: String| out.push(Finding::new(kind, subject(seen), detail));
    for missing in &look.missing {
        add(FindingKind::MissingFile, format!("{} is not as HEAD recorded it", missing.path));
    }
    for (path, why) in &look.unreadable {
        add(FindingKind::UnreadableManifest, format!("{path}: {why}"));
    }
    if look.mixed_names {
        add(FindingKind::MixedManifestNames, "V1 and V2 manifest names in one _versions/".into());
    }
    for nested in &look.nested {
        add(FindingKind::NestedDataset, format!("a dataset lies inside, at {nested}"));
    }
    for (name, tag) in look.dangling_tags() {
        add(FindingKind::DanglingTag, format!("tag {name} names version {}, which is gone", tag.version));
    }
    for index in &look.indices {
        match index.state {
            State::Untrained => {
                add(FindingKind::IndexUntrained, format!("{} waits for enough rows to train", index.name))
            }
            State::Unreadable => add(
                FindingKind::IndexUnreadable,
                format!("{}: {}", index.name, index.detail.clone().unwrap_or_default()),
            ),
            State::Unsupported => add(
                FindingKind::HeldOutFragments,
                format!("{}: {}", index.name, index.detail.clone().unwrap_or_default()),
            ),
            _ => {}
        }
    }
    for required in squire_lake::index::missing(&look.indices, &seen.governance.policy.policy.required_indices) {
        let what = format!("the policy requires {} on {}", required.kind, required.columns.join(", "));
        add(FindingKind::IndexMissing, what);
    }
    let dead: usize = look.fragments.iter().map(|f| f.files_with_dead_columns).sum();
    if dead > 0 && !seen.plan.compact.is_planned() {
        add(FindingKind::DeadColumnBytes, format!("{dead} live data files still hold dropped columns"));
    }
    out.extend(more_findings(seen));
    out
}

fn more_findings(seen: &Seen<'_>) -> Vec<Finding> {
    let look = seen.look;
    let versions = squire_lake::retention::versions(look);
    let mut out: Vec<Finding> = hook::judge(&seen.layout.config, &versions, seen.governance, seen.cloned_by)
        .map(|(conflict, detail)| {
            let kind = conflict.as_str().parse().unwrap_or(FindingKind::AutoCleanupConflict);
            Finding::new(kind, subject(seen), detail)
                .with_fix("remove the lance.auto_cleanup keys from the table's config")
        })
        .into_iter()
        .collect();
    let mut add = |kind: FindingKind, detail: String| out.push(Finding::new(kind, subject(seen), detail));
    let unnamed = squire_lake::writers::unnamed(look, seen.governance.policy.policy.yield_window, look.at);
    if let Some(oldest) = unnamed.first() {
        let n = unnamed.len();
        let path = &oldest.path;
        add(
            FindingKind::YoungFile,
            format!("{n} young files that no version names, {path} first: a writer at work, or what one left behind"),
        );
    }
    if let Some(why) = &seen.layout.old_client {
        add(FindingKind::OldClients, why.clone());
    }
    if seen.layout.deferred_remaps {
        add(FindingKind::FragmentReuseGrowth, "deferred index remaps are pending".into());
    }
    if look.manifests.iter().any(|m| m.detached) {
        add(
            FindingKind::DetachedVersions,
            format!("{} detached versions", look.manifests.iter().filter(|m| m.detached).count()),
        );
    }
    for target in look.reads.keys() {
        add(FindingKind::CloneOf, format!("it reads files of {target}"));
    }
    for reader in seen.cloned_by {
        add(FindingKind::ClonedBy, format!("{reader} reads its files"));
    }
    if seen.plan.target.tier.is_none() && seen.governance.tier.is_none() && seen.layout.fragments.len() > 1 {
        add(FindingKind::Untiered, "its URI names no tier; it is sized by bytes".into());
    }
    if let Some(clash) = &seen.governance.clash {
        add(
            FindingKind::PolicyClash,
            format!("projects {} claim it; neither's policy holds", clash.projects.join(", ")),
        );
    }
    out
}
