//! The plan of one dataset's pass: state in, plan out, no I/O.
//!
//! A plan is a value: everything that would be done, with reasons and bytes. It predicts its own effect, and planned again on
//! its predicted result it is empty (design, "Plan"). Only [`crate::apply`] has handles that write, and it takes a plan.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use squire_lake::clean::Removal;
use squire_lake::look::Look;
use squire_lake::refs::KeepSet;
use squire_registry::Governance;
use squire_service::config::Mode;
use squire_service::report::{IndexAction, StepOutcome, StepReason};

pub mod compaction;
pub mod erasure;
pub mod indices;
pub mod layout;
pub mod retention;
pub mod target;

pub use layout::Layout;

/// Rounds of compact → optimise until one plans nothing (design, "The pass").
pub const MAX_ROUNDS: usize = 3;

/// What the run allows, beside the dataset's policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Rows per fragment by tier.
    pub tiers: squire_lake::tier::Tiers,
    /// Bytes per fragment.
    pub target_bytes: u64,
    /// A table smaller than this is merged whole.
    pub small_bytes: u64,
    /// Which steps run.
    pub steps: Steps,
    /// The steps were named by flag.
    pub steps_asked: bool,
    /// Bytes that one pass may rewrite, from `--max-rewrite`.
    pub max_rewrite: Option<u64>,
    /// `observe`, `compact` or `maintain`.
    pub mode: Mode,
    /// Started by the clock or `--due`: budgets and `min_fragments` count. By hand everything that gains is done.
    pub by_clock: bool,
    /// A root is read by nobody outside the estate.
    pub exclusive: bool,
}

/// Steps that the run wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Merge fragments.
    pub compact: bool,
    /// Fold and merge indices.
    pub optimize_indices: bool,
    /// Remove old versions.
    pub cleanup: bool,
}

impl Steps {
    /// All three.
    pub const ALL: Steps = Steps { compact: true, optimize_indices: true, cleanup: true };
}

/// How a step stands, with FACES' names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The outcome.
    pub outcome: StepOutcome,
    /// The reason.
    pub reason: Option<StepReason>,
    /// A sentence for a person.
    pub detail: Option<String>,
}

impl Verdict {
    /// To be done.
    pub fn planned() -> Self {
        Self { outcome: StepOutcome::Planned, reason: None, detail: None }
    }

    /// Nothing gains.
    pub fn nothing(reason: StepReason) -> Self {
        Self { outcome: StepOutcome::NothingToDo, reason: Some(reason), detail: None }
    }

    /// Switched off by policy, flag or mode.
    pub fn skipped(reason: StepReason) -> Self {
        Self { outcome: StepOutcome::Skipped, reason: Some(reason), detail: None }
    }

    /// A rule forbids it.
    pub fn refused(reason: StepReason, detail: impl Into<String>) -> Self {
        Self { outcome: StepOutcome::Refused, reason: Some(reason), detail: Some(detail.into()) }
    }

    /// Whether it is to be done.
    pub fn is_planned(&self) -> bool {
        self.outcome == StepOutcome::Planned
    }
}

/// One run of neighbouring fragments that become one or more larger ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Fragment ids in manifest order.
    pub fragments: Vec<u64>,
    /// Live rows.
    pub rows: u64,
    /// Bytes read, and about the bytes written.
    pub bytes: u64,
    /// Fragments that come out.
    pub outputs: u64,
}

/// What is done to one index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexWork {
    /// Its name.
    pub name: String,
    /// Fold new rows, or only merge segments.
    pub action: squire_service::report::IndexAction,
    /// Latest segments that join the new one.
    pub merge: usize,
    /// Rows folded.
    pub rows: u64,
    /// Segments before.
    pub segments_before: usize,
    /// Segments after.
    pub segments_after: usize,
    /// Bytes rewritten, estimated from the merged segments.
    pub bytes: u64,
}

/// One round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Compaction tasks.
    pub tasks: Vec<Task>,
    /// Index work, after the tasks.
    pub indices: Vec<IndexWork>,
}

impl Round {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.indices.is_empty()
    }
}

/// What one pass does to one dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatasetPlan {
    /// Canonical URI.
    pub uri: String,
    /// HEAD when it was planned.
    pub read_version: u64,
    /// What tells this HEAD from another of the same number: a dataset made anew counts from 1 again.
    pub head_id: String,
    /// Flags that stood above the policy when it was planned; `apply` obeys them too.
    #[serde(default)]
    pub flags: crate::estate::PolicyFlags,
    /// Rows per output fragment.
    pub target: target::Target,
    /// The first round exactly, later ones as predicted.
    pub rounds: Vec<Round>,
    /// How compaction stands.
    pub compact: Verdict,
    /// How index work stands.
    pub optimize_indices: Verdict,
    /// How clean-up stands.
    pub cleanup: Verdict,
    /// Versions and files that go.
    #[serde(flatten)]
    pub removal: Removal,
    /// Versions that stay although they are history, and by what.
    pub retained: Vec<retention::Retained>,
    /// Fragments and unindexed rows when it is done.
    pub predicted: Prediction,
    /// Bytes that only history holds, after the removal.
    pub stranded_bytes: u64,
    /// Fragments that an index or another base holds out of compaction.
    pub held_out: BTreeSet<u64>,
    /// One empty commit is made, so that HEAD, which tells what was deleted, can go like any other version.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub erase: bool,
}

/// The predicted end state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prediction {
    /// Fragments.
    pub fragments: u64,
    /// Unindexed rows over all indices.
    pub unindexed_rows: u64,
    /// Segments by index.
    pub segments: BTreeMap<String, usize>,
    /// Bytes rewritten by all rounds.
    pub rewritten_bytes: u64,
}

impl DatasetPlan {
    /// Whether anything would be done.
    pub fn is_empty(&self) -> bool {
        !self.compact.is_planned() && !self.optimize_indices.is_planned() && !self.cleanup.is_planned()
    }

    /// Indices that it builds anew.
    pub fn rebuilds(&self) -> BTreeSet<String> {
        let works = self.rounds.iter().flat_map(|r| &r.indices);
        works.filter(|w| w.action == IndexAction::Rebuild).map(|w| w.name.clone()).collect()
    }

    /// What the pass gains, for the order in which datasets are taken: fragments and rows first, bytes second.
    pub fn gain(&self) -> u64 {
        let removed: u64 = self
            .rounds
            .iter()
            .flat_map(|r| &r.tasks)
            .map(|t| (t.fragments.len() as u64).saturating_sub(t.outputs))
            .sum();
        let folded: u64 = self.rounds.iter().flat_map(|r| &r.indices).map(|i| i.rows).sum();
        removed * 1_000 + folded + self.removal.bytes() / 1_024
    }
}

/// What a plan obeys, beside the dataset itself.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// What the registry says about the dataset.
    pub governance: &'a Governance,
    /// What the run allows.
    pub settings: &'a Settings,
    /// A marker names an estate that the registry is not.
    pub registry_lost: Option<&'a str>,
    /// Bytes rewritten by earlier passes, with their times.
    pub rewritten: &'a [(DateTime<Utc>, u64)],
    /// Free bytes where the dataset lies; `None` where storage has no bound.
    pub free_bytes: Option<u64>,
    /// As if it were then.
    pub now: DateTime<Utc>,
}

/// Plans one dataset's pass. Pure. `keep` is what other datasets read, or why that is not known.
pub fn plan(look: &Look, layout: &Layout, keep: &KeepSet, rules: &Rules<'_>) -> DatasetPlan {
    let target = target::decide(layout, rules.governance, rules.settings);
    let work = work(layout, rules, &target);
    let (mut cleanup, removal, retained) = retention::plan(look, layout, keep, rules);
    let may = matches!(cleanup.outcome, StepOutcome::Planned | StepOutcome::NothingToDo);
    let erase = may && erasure::needs_empty_commit(layout, rules);
    if erase {
        cleanup = Verdict { detail: Some("one empty commit, so that HEAD can go".into()), ..Verdict::planned() };
    }
    DatasetPlan {
        uri: layout.uri.clone(),
        read_version: layout.version,
        head_id: layout.head_id.clone(),
        flags: Default::default(),
        predicted: work.predicted,
        rounds: work.rounds,
        compact: work.compact,
        optimize_indices: work.optimize_indices,
        cleanup,
        stranded_bytes: layout.history_bytes.saturating_sub(removal.bytes()),
        removal,
        retained,
        target,
        held_out: compaction::held_out(layout),
        erase,
    }
}

/// Rounds and verdicts of the two rewriting steps.
pub struct Work {
    /// Predicted rounds.
    pub rounds: Vec<Round>,
    /// How compaction stands.
    pub compact: Verdict,
    /// How index work stands.
    pub optimize_indices: Verdict,
    /// The end.
    pub predicted: Prediction,
}

/// Plans the rounds by planning on each round's predicted result. Pure.
pub fn work(layout: &Layout, rules: &Rules<'_>, target: &target::Target) -> Work {
    let limits = Limits::of(layout, rules);
    let compact_gate = compaction::gate(layout, &limits);
    let index_gate = indices::gate(layout, &limits);
    let mut at = Layout { rebuild: erasure::rebuilds(layout, rules), ..layout.clone() };
    let (rebuild, mut rounds) = (at.rebuild.clone(), Vec::new());
    for _ in 0..MAX_ROUNDS {
        let round = next_round(&at, target, &limits, compact_gate.is_none(), index_gate.is_none());
        if round.is_empty() {
            break;
        }
        at = layout::after(&at, &round);
        rounds.push(round);
    }
    let rewritten = rounds.iter().map(rewritten_bytes).sum();
    let mut compact = compact_gate.unwrap_or_else(|| verdict(rounds.iter().any(|r| !r.tasks.is_empty())));
    let optimize_indices =
        index_gate.unwrap_or_else(|| indices::verdict(layout, rounds.iter().any(|r| !r.indices.is_empty())));
    if compact.is_planned()
        && let Some(refusal) = limits.over(rewritten, &rounds)
    {
        compact = refusal;
        for round in &mut rounds {
            round.tasks.clear();
        }
        rounds.retain(|r| !r.is_empty());
        at = rounds.iter().fold(Layout { rebuild, ..layout.clone() }, |acc, r| layout::after(&acc, r));
    }
    let predicted = Prediction {
        fragments: at.fragments.len() as u64,
        unindexed_rows: at.indices.iter().map(|i| i.unindexed_rows).sum(),
        segments: at.indices.iter().map(|i| (i.name.clone(), i.segments.len())).collect(),
        rewritten_bytes: rounds.iter().map(rewritten_bytes).sum(),
    };
    Work { rounds, compact, optimize_indices, predicted }
}

/// Plans one round on a layout: fold first and compact next round where coverage is the only boundary. Pure.
pub fn next_round(layout: &Layout, target: &target::Target, limits: &Limits, compact: bool, fold: bool) -> Round {
    let mut round = Round::default();
    if compact {
        let tasks = compaction::tasks(layout, target, limits);
        let waits = fold && compaction::better_after_fold(layout, target, limits, &tasks);
        if !waits {
            round.tasks = tasks;
        }
    }
    if fold {
        let then = layout::after(layout, &Round { tasks: round.tasks.clone(), indices: Vec::new() });
        round.indices = indices::work(&then);
    }
    round
}

fn verdict(planned: bool) -> Verdict {
    if planned { Verdict::planned() } else { Verdict::nothing(StepReason::NoGain) }
}

fn rewritten_bytes(round: &Round) -> u64 {
    round.tasks.iter().map(|t| t.bytes).sum::<u64>() + round.indices.iter().map(|i| i.bytes).sum::<u64>()
}

/// What bounds the rewriting steps.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Steps wanted by flags.
    pub steps: Steps,
    /// The steps were named by flag: then detached versions do not stop compaction.
    pub steps_asked: bool,
    /// The policy's switches.
    pub policy_compact: bool,
    /// The policy's switches.
    pub policy_indices: bool,
    /// Whole-table merges below this.
    pub small_bytes: u64,
    /// The clock's: fewer small neighbours than this wait.
    pub min_fragments: u64,
    /// The table has been quiet long enough to merge what is left.
    pub quiet: bool,
    /// Rewritten bytes that still fit, and when more will.
    pub rewrite_left: Option<(u64, Option<DateTime<Utc>>)>,
    /// The run's or the policy's bound on one pass.
    pub max_rewrite: Option<u64>,
    /// Free bytes where the dataset lies.
    pub free_bytes: Option<u64>,
    /// Rewriting for old clients is allowed.
    pub upgrade_index_format: bool,
    /// Fragments with deleted rows or dropped columns are rewritten, however few (`erase_within`).
    pub erase: bool,
}

impl Limits {
    /// The limits that rules put on a layout.
    pub fn of(layout: &Layout, rules: &Rules<'_>) -> Self {
        let policy = &rules.governance.policy.policy;
        let settings = rules.settings;
        let own = policy.max_rewrite_bytes.map(|b| b.as_u64());
        Self {
            steps: settings.steps,
            steps_asked: settings.steps_asked,
            policy_compact: policy.compact,
            policy_indices: policy.optimize_indices,
            small_bytes: settings.small_bytes,
            min_fragments: if settings.by_clock { u64::from(policy.min_fragments) } else { 2 },
            quiet: layout.quiet_for(rules.now) >= policy.settle_after,
            rewrite_left: rewrite_left(layout, rules),
            max_rewrite: [settings.max_rewrite, own].into_iter().flatten().min(),
            free_bytes: rules.free_bytes,
            upgrade_index_format: policy.upgrade_index_format,
            erase: erasure::rewrites(layout, rules),
        }
    }

    /// The refusal of a compaction that would cost too much.
    fn over(&self, rewritten: u64, rounds: &[Round]) -> Option<Verdict> {
        if let Some(max) = self.max_rewrite.filter(|max| rewritten > *max) {
            return Some(Verdict::refused(
                StepReason::OverBudget,
                format!("it would rewrite {rewritten} bytes, {max} are allowed in one pass"),
            ));
        }
        if let Some((left, when)) = self.rewrite_left.filter(|(left, _)| rewritten > *left) {
            let when = when.map(|t| format!("; it fits at {}", t.format("%Y-%m-%d %H:%M UTC"))).unwrap_or_default();
            return Some(Verdict::refused(
                StepReason::RewriteBudget,
                format!("it would rewrite {rewritten} bytes and {left} are left within one retention{when}"),
            ));
        }
        let largest = rounds.iter().map(rewritten_bytes).max().unwrap_or(0);
        self.free_bytes.filter(|free| largest > *free).map(|free| {
            Verdict::refused(StepReason::NoSpace, format!("a round writes {largest} bytes and {free} are free"))
        })
    }
}

/// The rewrite budget: bytes rewritten within the last retention stay below `max_stranded` × live bytes for the clock; a
/// sweep by hand is free; under a hold nothing is rewritten twice by anybody (design, "Rewrite budget"). A table below
/// `small_bytes` counts as that large: what it strands is next to nothing, and one fold of its index would use its budget up.
fn rewrite_left(layout: &Layout, rules: &Rules<'_>) -> Option<(u64, Option<DateTime<Utc>>)> {
    let policy = &rules.governance.policy.policy;
    let held = rules.governance.held_by().is_some();
    // What must be gone by a deadline does not wait for the budget.
    if !held && (!rules.settings.by_clock || erasure::rewrites(layout, rules)) {
        return None;
    }
    let retention = chrono::Duration::from_std(policy.retention).unwrap_or(chrono::Duration::MAX);
    let within: Vec<&(DateTime<Utc>, u64)> =
        rules.rewritten.iter().filter(|(at, _)| held || rules.now.signed_duration_since(*at) < retention).collect();
    let spent: u64 = within.iter().map(|(_, b)| b).sum();
    let live = if held { layout.live_bytes } else { layout.live_bytes.max(rules.settings.small_bytes) };
    let budget = if held { live as f64 } else { policy.max_stranded * live as f64 };
    let left = (budget as u64).saturating_sub(spent);
    let when = within.iter().map(|(at, _)| *at).min().and_then(|at| at.checked_add_signed(retention));
    Some((left, when.filter(|_| !held)))
}
