//! One large compaction shared by replicas: its plan and slices as objects, their execution, and the landing of what they
//! stored (design, "Slices").
//!
//! The owner writes the plan and the slices and lets go; whoever takes a slice stores its result; whoever stores the last one
//! asks for the commit. Nothing that a slice stored is deleted here: another process may be committing it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use squire_lake::commit::{Handle as Dataset, Outputs};
use squire_lake::compact::stored::{self, Slice, Stored};
use squire_lake::compact::{self, Rewritten};
use squire_lake::{Kind, LANCE_VERSION, Lake, clean};
use squire_registry::{Governance, Registry, WorkPart};
use squire_service::report::{SkipReason, StepReason};
use uuid::Uuid;

use super::pass::{Pass, Stop};
use super::yielding::{Stopped, Yielding};
use super::{Applied, MAX_CONFLICTS, Tools, hold, let_go, prepare};
use crate::driver::Planned;
use crate::plan::{DatasetPlan, Layout, Round, Task, Verdict};
use crate::state::Distributed;

/// The attempt under which a plan or a slice is described.
const DESCRIBED: &str = "0";
/// The attempt under which a slice's one result is stored: of two workers the first one's counts.
pub const RESULT: &str = "result";
/// A compaction is cut into slices of at most this share of `limits.distribute_above`; one task is never cut.
const SHARE: u64 = 4;

/// How a slice ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Executed; its results wait for the commit.
    Done(Stored),
    /// Given up.
    Failed {
        /// Why.
        kind: Kind,
        /// For a person.
        detail: String,
    },
}

/// What slices have stored, to be landed.
#[derive(Debug)]
pub struct Landing {
    /// The compaction.
    pub distributed: Distributed,
    /// Results that fit their slices.
    pub done: Vec<Rewritten>,
}

impl Landing {
    pub(super) fn outputs(&self) -> Outputs {
        compact::outputs_of(&self.done)
    }
}

/// Cuts tasks into slices of neighbours: a slice is full at `bytes`, and one task is never cut. Pure.
pub fn cut(tasks: &[Task], bytes: u64) -> Vec<Vec<Task>> {
    let mut out: Vec<Vec<Task>> = Vec::new();
    let mut filled = 0_u64;
    for task in tasks {
        match out.last_mut() {
            Some(last) if filled.saturating_add(task.bytes) <= bytes => last.push(task.clone()),
            _ => {
                out.push(vec![task.clone()]);
                filled = 0;
            }
        }
        filled = filled.saturating_add(task.bytes);
    }
    out
}

/// Bytes that a round's compaction rewrites.
pub fn bytes(round: &Round) -> u64 {
    round.tasks.iter().map(|t| t.bytes).sum()
}

/// Writes the plan and the slices of a compaction, under the dataset's claim, for workers to take. Nothing of the dataset is
/// written. `asked_by` is the sweep whose pass this was; `above` is `limits.distribute_above`.
///
/// # Errors
/// Why it was left alone after all, as a pass says it.
pub async fn distribute(tools: &Tools, p: &Planned, asked_by: Uuid, above: u64) -> Result<Distributed, Box<Applied>> {
    let (plan, look) = (&p.plan, &p.look);
    let skipped = |skip| Box::new(Applied { skipped: Some(skip), ..Applied::default() });
    let (claim, renewing) = hold(tools, plan, look).await.map_err(skipped)?;
    let work = async {
        prepare(tools, plan).await.map_err(skipped)?;
        let place = tools.estate.lake.place(&plan.uri).await.map_err(|e| failed(&e))?;
        let waiting_for = p.state.waiting_for.as_ref();
        let yielding = Yielding::begin(tools, &place, look, &p.governance, waiting_for, &Outputs::default()).await;
        if let Err(Stopped { skip, file }) = yielding {
            return Err(Box::new(Applied { skipped: Some(skip), waits_for: file, ..Applied::default() }));
        }
        describe(tools, p, asked_by, above).await
    };
    let done = work.await;
    let_go(claim, renewing, &plan.uri).await;
    done
}

async fn describe(tools: &Tools, p: &Planned, asked_by: Uuid, above: u64) -> Result<Distributed, Box<Applied>> {
    let plan = &p.plan;
    let (Some(dataset), Some(round)) = (&p.look.dataset, plan.rounds.first()) else {
        let e = squire_lake::Error::new(Kind::Open, "opening the dataset for its slices", &plan.uri);
        return Err(failed(&e));
    };
    let settings = settings(plan, &p.layout);
    let slices = cut(&round.tasks, above / SHARE);
    let distributed = Distributed {
        run: tools.estate.run,
        asked_by,
        at: tools.estate.now(),
        read_version: plan.read_version,
        slices: u32::try_from(slices.len()).unwrap_or(u32::MAX),
    };
    for (n, tasks) in (0_u32..).zip(&slices) {
        let ids: Vec<Vec<u64>> = tasks.iter().map(|t| t.fragments.clone()).collect();
        let slice = Slice::of(dataset, &ids, &settings).map_err(|e| failed(&e))?;
        put(tools, &plan.uri, WorkPart::Slice(n), &slice).await?;
    }
    put(tools, &plan.uri, WorkPart::Plan, &(&distributed, plan)).await?;
    Ok(distributed)
}

/// How the slices of a plan are executed.
fn settings(plan: &DatasetPlan, layout: &Layout) -> compact::Settings {
    compact::Settings {
        target_rows: plan.target.rows,
        widest_row_bytes: layout.held_row_bytes(),
        concurrency: 2,
        table_config: layout.config.clone().into_iter().collect(),
    }
}

async fn put(tools: &Tools, uri: &str, part: WorkPart, value: &impl Serialize) -> Result<(), Box<Applied>> {
    let unsure = |e: &dyn std::fmt::Display| {
        let detail = format!("the slices of its compaction could not be written: {e}");
        Box::new(Applied::skip(SkipReason::RegistryUnreadable, detail))
    };
    let bytes = serde_json::to_vec(value).map_err(|e| unsure(&e))?;
    match tools.registry.work_put(tools.estate.run, uri, part, DESCRIBED, bytes.into()).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(unsure(&"another plan has the same run")),
        Err(e) => Err(unsure(&e)),
    }
}

fn failed(e: &squire_lake::Error) -> Box<Applied> {
    let mut applied = Applied::default();
    applied.fail("compact", e);
    Box::new(applied)
}

/// A slice as it was written; `None` when it is not there or cannot be understood.
///
/// # Errors
/// What the registry's store answers.
pub async fn slice(registry: &Registry, run: Uuid, uri: &str, n: u32) -> squire_registry::Result<Option<Slice>> {
    let found = registry.work_get(run, uri, WorkPart::Slice(n), DESCRIBED).await?;
    Ok(found.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// How a slice ended, if it has.
///
/// # Errors
/// What the registry's store answers.
pub async fn ended(registry: &Registry, run: Uuid, uri: &str, n: u32) -> squire_registry::Result<Option<Ended>> {
    let found = registry.work_get(run, uri, WorkPart::Slice(n), RESULT).await?;
    Ok(found.map(|bytes| {
        serde_json::from_slice(&bytes).unwrap_or_else(|e| Ended::Failed {
            kind: Kind::Permanent,
            detail: format!("its stored result cannot be read: {e}"),
        })
    }))
}

/// Numbers of the slices that have ended, and when the last object of the compaction was put.
///
/// # Errors
/// What the registry's store answers.
pub async fn progress(
    registry: &Registry,
    d: &Distributed,
    uri: &str,
) -> squire_registry::Result<(Vec<u32>, DateTime<Utc>)> {
    let objects = registry.work_list(d.run, uri).await?;
    let newest = objects.iter().map(|o| o.modified).max().unwrap_or(d.at);
    let ended = objects
        .iter()
        .filter(|o| o.attempt == RESULT)
        .filter_map(|o| match o.part {
            WorkPart::Slice(n) if n < d.slices => Some(n),
            _ => None,
        })
        .collect();
    Ok((ended, newest))
}

/// Executes a slice and says how it ended. Before anything is read every path is held against the manifest. With `last`, what
/// may pass is given up, too, and what succeeded is kept; else an error that may pass comes back and nothing stays behind.
///
/// # Errors
/// What may pass: the slice is worth another try.
pub async fn execute(
    lake: &Lake,
    uri: &str,
    slice: &Slice,
    last: bool,
) -> squire_lake::Result<(Ended, Vec<Rewritten>)> {
    let gave_up = |e: &squire_lake::Error| Ended::Failed { kind: e.kind(), detail: e.to_string() };
    let opened = match slice.open(lake, uri).await {
        Ok(opened) => opened,
        Err(e) if e.kind() == Kind::Transient && !last => return Err(e),
        Err(e) => return Ok((gave_up(&e), Vec::new())),
    };
    let (mut done, mut errors) = (Vec::new(), Vec::new());
    for result in compact::execute(lake, &opened.handle, &opened.tasks, &slice.settings).await {
        match result {
            Ok(rewritten) => done.push(rewritten),
            Err(e) => errors.push(e),
        }
    }
    let place = lake.place(uri).await?;
    if !last && let Some(at) = errors.iter().position(|e| e.kind() == Kind::Transient) {
        compact::discard(&place, done).await;
        return Err(errors.swap_remove(at));
    }
    match errors.first() {
        Some(e) if done.is_empty() => Ok((gave_up(e), done)),
        _ => Ok((Ended::Done(Stored::of(&done, uri)?), done)),
    }
}

/// Stores how a slice ended. What another worker stored first counts; then what this one wrote, which nobody has heard of, is
/// removed.
///
/// # Errors
/// What the registry's store answers. What was written stays: the result may have been stored.
pub async fn store(
    registry: &Registry,
    lake: &Lake,
    run: Uuid,
    (uri, n): (&str, u32),
    (ended, done): (Ended, Vec<Rewritten>),
) -> squire_registry::Result<()> {
    let bytes = serde_json::to_vec(&ended)
        .map_err(|e| squire_registry::Error::Invalid(format!("the result of slice {n} of {uri} is no JSON: {e}")))?;
    let first = registry.work_put(run, uri, WorkPart::Slice(n), RESULT, bytes.into()).await?;
    if !first && let Ok(place) = lake.place(uri).await {
        compact::discard(&place, done).await;
    }
    Ok(())
}

/// What the slices have stored.
#[derive(Debug)]
pub enum Gathered {
    /// To be landed; the second is what was given up or does not fit, for a person.
    Landing(Landing, Vec<String>),
    /// A process of this Lance version stored a part of it.
    OtherLance(String),
}

/// Reads every result of a compaction and holds it against its slice.
///
/// # Errors
/// What the registry's store answers.
pub async fn gather(registry: &Registry, d: &Distributed, uri: &str) -> squire_registry::Result<Gathered> {
    let (mut done, mut lost) = (Vec::new(), Vec::new());
    for n in 0..d.slices {
        let Some(slice) = slice(registry, d.run, uri, n).await? else {
            lost.push(format!("slice {n} is not there"));
            continue;
        };
        match ended(registry, d.run, uri, n).await? {
            None => lost.push(format!("slice {n} has no result")),
            Some(Ended::Failed { detail, .. }) => lost.push(format!("slice {n}: {detail}")),
            Some(Ended::Done(stored)) if stored.lance != LANCE_VERSION => {
                return Ok(Gathered::OtherLance(stored.lance));
            }
            Some(Ended::Done(stored)) => match stored.read(&slice, uri) {
                Ok(results) => done.extend(results),
                Err(e) => lost.push(format!("slice {n}: {e}")),
            },
        }
    }
    Ok(Gathered::Landing(Landing { distributed: d.clone(), done }, lost))
}

/// The plan of a landing: what the results replace, and no other step.
pub fn landing_plan(fresh: &DatasetPlan, layout: &Layout, landing: &Landing) -> DatasetPlan {
    let sizes: BTreeMap<u64, (u64, u64)> = layout.fragments.iter().map(|f| (f.id, (f.rows(), f.bytes))).collect();
    let task = |r: &Rewritten| {
        let fragments = r.replaces();
        let (rows, bytes) =
            fragments.iter().filter_map(|id| sizes.get(id)).fold((0, 0), |(r, b), (rows, bytes)| (r + rows, b + bytes));
        Task { fragments, rows, bytes, outputs: r.fragments_added() as u64 }
    };
    DatasetPlan {
        rounds: vec![Round { tasks: landing.done.iter().map(task).collect(), indices: Vec::new() }],
        compact: Verdict::planned(),
        optimize_indices: Verdict::nothing(StepReason::Settled),
        cleanup: Verdict::nothing(StepReason::Retention),
        removal: clean::Removal::default(),
        ..fresh.clone()
    }
}

/// What may be done to a dataset while a compaction of it is in work in slices: versions older than the one that the slices read
/// may go, so that clean-up does not starve. A fold or another rewrite would only make the slices fail.
pub fn beside(p: &mut Planned, d: &Distributed) {
    let plan = &mut p.plan;
    plan.compact = Verdict::nothing(StepReason::NoGain);
    plan.optimize_indices = Verdict::nothing(StepReason::NoGain);
    plan.rounds.clear();
    plan.predicted = Default::default();
    plan.removal.versions.retain(|v| v.version < d.read_version);
    plan.removal.files.retain(|f| f.after < d.read_version);
    if plan.cleanup.is_planned() && plan.removal.versions.is_empty() {
        plan.cleanup = Verdict::nothing(StepReason::Retention);
    }
    p.ends_slices = false;
}

/// Lands what slices have stored, with everything that guards a pass: registry, claim, yield, audit record, verification.
pub async fn land(tools: &Tools, p: &Planned, landing: Landing) -> Applied {
    super::run(tools, &p.plan, &p.look, &p.governance, p.state.waiting_for.as_ref(), Some(landing)).await
}

impl Pass<'_> {
    /// Commits what can still be committed. A lost race costs the slices whose fragments it touched: the others are tried
    /// again. One commit, since each costs two versions and a rewrite of every index that addresses rows.
    pub(super) async fn land_stored(&mut self, landing: Landing, governance: &Governance) -> Result<(), Stop> {
        let Some(mut handle) = self.look.dataset.clone() else { return Ok(()) };
        let mut layout = Layout::of(self.look, &governance.policy.policy, None, self.tools.estate.now());
        let (run, read_version) = (landing.distributed.run, landing.distributed.read_version);
        let mut done = landing.done;
        for attempt in 0..=MAX_CONFLICTS {
            // Our own commit may have landed without our hearing of it; a conflict with it is no loss.
            match squire_lake::commit::stamped(&self.place, read_version, run, "compact").await {
                Ok(found) if found.is_empty() => {}
                Ok(_) => return Ok(()),
                Err(e) => {
                    self.out.fail("compact", &e);
                    return Err(Stop::Failed);
                }
            }
            done = self.current(&handle, done).await?;
            if done.is_empty() || self.stopping() {
                break;
            }
            let started = Instant::now();
            if let Some((after, _)) = self.land(&handle, &layout, done.clone(), started).await? {
                self.relayout(&after, &layout).await?;
                return Ok(());
            }
            if self.out.failures.contains_key("compact") {
                return Err(Stop::Failed);
            }
            tokio::time::sleep(Duration::from_millis(50 * (1 << attempt))).await;
            handle = self.reopen().await?;
            layout = self.relayout(&handle, &layout).await?;
        }
        if done.is_empty() {
            // Somebody's writes were first everywhere; the next pass plans what is left.
            tracing::info!(dataset = self.plan.uri, "nothing of the slices can be committed any more");
            self.lost.clear();
        }
        Ok(())
    }

    async fn current(&mut self, handle: &Arc<Dataset>, done: Vec<Rewritten>) -> Result<Vec<Rewritten>, Stop> {
        let mut out = Vec::new();
        for rewritten in done {
            match stored::is_current(&self.place, handle, &rewritten).await {
                Ok(true) => out.push(rewritten),
                Ok(false) => self.out.stranded += rewritten.bytes(),
                Err(e) => {
                    self.out.fail("compact", &e);
                    return Err(Stop::Failed);
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: u64, bytes: u64) -> Task {
        Task { fragments: vec![id, id + 1], rows: 10, bytes, outputs: 1 }
    }

    fn sizes(slices: &[Vec<Task>]) -> Vec<Vec<u64>> {
        slices.iter().map(|s| s.iter().map(|t| t.bytes).collect()).collect()
    }

    #[test]
    fn a_slice_is_filled_to_its_size_and_no_task_is_cut() {
        let tasks = [task(0, 40), task(2, 40), task(4, 40), task(6, 500), task(8, 1), task(10, 100)];
        assert_eq!(sizes(&cut(&tasks, 100)), [vec![40, 40], vec![40], vec![500], vec![1], vec![100]]);
        assert_eq!(cut(&tasks, 0).len(), 6);
        assert_eq!(cut(&tasks, u64::MAX).len(), 1);
        assert_eq!(cut(&[], 100), Vec::<Vec<Task>>::new());
    }

    #[test]
    fn a_stored_result_that_cannot_be_read_is_a_failure_and_not_nothing() {
        let text = r#"{"failed":{"kind":"conflict","detail":"x"}}"#;
        let read: Ended = serde_json::from_str(text).expect("read");
        assert_eq!(read, Ended::Failed { kind: Kind::Conflict, detail: "x".into() });
    }
}
