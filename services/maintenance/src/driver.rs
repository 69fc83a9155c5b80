//! The loop that decides when: discover, look, plan, and (in a sweep) apply, biggest gain first.
//!
//! Short and rarely edited; each *how* is elsewhere. One dataset's failure stops no other dataset (invariant
//! `failures_stay_home`), and every dataset seen ends in exactly one outcome.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, Utc};
use futures::stream::{self, StreamExt};
use squire_lake::look::{Look, Looked, look};
use squire_lake::refs::{CloneGraph, KeepSet};
use squire_lake::{contain, uri};
use squire_registry::{Block, BlockKind, Governance, Subject};
use squire_service::report::{
    Dataset, FailureKind, Finding, FindingKind, FindingSubject, Incomplete, Outcome, SkipReason, StepReason,
};

use crate::admit::{self, Skip};
use crate::apply::{Applied, Filed, Tools, apply, failure_kind, verify_again};
use crate::budget;
use crate::estate::{Estate, Scope};
use crate::memory;
use crate::plan::{self, DatasetPlan, Layout, Rules, Settings};
use crate::report::{self, Seen};
use crate::state::{DatasetState, Failure, RETRY, WaitingFor};

pub mod slices;

/// Which of the estate's datasets a run is about.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// `--dataset`: URIs, SUBJECTs or displayed names; empty: all.
    pub datasets: Vec<String>,
    /// `--due`.
    pub due: bool,
    /// `--limit`.
    pub limit: Option<usize>,
}

/// One dataset on its way through a run.
pub struct Candidate {
    /// Canonical URI.
    pub uri: String,
    /// What came of the look.
    pub case: Case,
    /// Seconds spent on looking and planning.
    pub seconds: f64,
}

/// What a look led to.
pub enum Case {
    /// Planned.
    Planned(Box<Planned>),
    /// It could not be looked at.
    Failed(squire_lake::Error),
    /// Left alone before a look was needed or possible.
    Skipped(Skip, Option<Box<Planned>>),
}

/// A look with its plan.
pub struct Planned {
    /// The dataset.
    pub look: Look,
    /// What governs it.
    pub governance: Governance,
    /// Its description.
    pub layout: Layout,
    /// The plan.
    pub plan: DatasetPlan,
    /// What is remembered of it.
    pub state: DatasetState,
}

impl PlannedEstate {
    /// Whether an earlier pass left a commit unverified.
    pub fn has_unverified(&self) -> bool {
        self.candidates.iter().any(|c| matches!(&c.case, Case::Planned(p) if !p.state.unverified.is_empty()))
    }

    /// Whether a look failed in a way that must be remembered.
    pub fn has_lasting_failures(&self) -> bool {
        self.candidates.iter().any(|c| matches!(&c.case, Case::Failed(e) if lasts(e)))
    }
}

/// What waiting will not mend.
fn lasts(e: &squire_lake::Error) -> bool {
    matches!(e.kind(), squire_lake::Kind::Bug | squire_lake::Kind::Permanent)
}

impl Planned {
    /// Whether there is anything to do: its plan, or what an earlier pass could not verify.
    pub fn has_work(&self) -> bool {
        !self.plan.is_empty() || !self.state.unverified.is_empty()
    }

    /// Whether files lie in it that no version names and that are young enough to be somebody's work.
    pub fn has_unnamed_files(&self, now: DateTime<Utc>) -> bool {
        !squire_lake::writers::unnamed(&self.look, self.governance.policy.policy.yield_window, now).is_empty()
    }
}

/// A whole estate, looked at and planned.
pub struct PlannedEstate {
    /// By URI.
    pub candidates: Vec<Candidate>,
    /// What other datasets read.
    pub graph: Arc<CloneGraph>,
    /// The walk.
    pub scope: Scope,
    /// Findings about the estate.
    pub findings: Vec<Finding>,
    /// What could not be read.
    pub incomplete: Vec<Incomplete>,
    /// What is remembered of datasets that could not be planned.
    pub states: HashMap<String, DatasetState>,
}

/// Discovers, looks and plans. Zero writes.
#[tracing::instrument(level = "debug", name = "look", skip_all)]
pub async fn plan_estate(
    estate: &Estate,
    selection: &Selection,
    settings: &Settings,
    at: Option<DateTime<Utc>>,
) -> PlannedEstate {
    let now = at.unwrap_or_else(|| estate.now());
    let scope = estate.discover().await;
    let wanted: BTreeSet<String> = scope.datasets.iter().filter(|d| names(estate, selection, d)).cloned().collect();
    let states = load_states(estate, &wanted).await;
    let concurrency = estate.config().limits.concurrency.max(1);
    let looked: Vec<(String, squire_lake::Result<Looked>, f64)> = stream::iter(wanted.iter().cloned())
        .map(|uri| async move {
            let start = Instant::now();
            let looked =
                contain::contained(&estate.lake, "looking at the dataset", &uri, look(&estate.lake, &uri, now)).await;
            (uri, looked, start.elapsed().as_secs_f64())
        })
        .buffer_unordered(concurrency)
        .collect()
        .await;
    let mut graph = CloneGraph::default();
    for (place, why) in &scope.unreadable {
        graph.add_unread(format!("{place} ({why})"));
    }
    let mut nested = BTreeSet::new();
    for (uri, result, _) in &looked {
        match result {
            Ok(Looked::Dataset(look)) => {
                nested.extend(look.nested_uris());
                graph.add(uri, look.reads.clone());
            }
            Ok(_) => {}
            Err(_) => graph.add_unread(uri.clone()),
        }
    }
    complete_graph(estate, &scope, &wanted, nested, &mut graph, now).await;
    let graph = Arc::new(graph);
    let mut planner = Planner {
        estate,
        settings,
        graph: &graph,
        states,
        lost: HashMap::new(),
        inside: &scope.inside,
        due: selection.due,
        now,
    };
    let mut candidates = Vec::with_capacity(looked.len());
    for (uri, result, seconds) in looked {
        let start = Instant::now();
        let case = planner.case(&uri, result).await;
        candidates.push(Candidate { uri, case, seconds: seconds + start.elapsed().as_secs_f64() });
    }
    let states = planner.states;
    // Biggest gain first.
    candidates.sort_by(|a, b| gain(b).cmp(&gain(a)).then_with(|| a.uri.cmp(&b.uri)));
    if selection.due {
        budget::exclude(estate, &mut candidates, now).await;
    }
    limit(&mut candidates, selection.limit);
    let mut findings = estate_findings(estate, &wanted, selection);
    findings.extend(vanished(estate).await);
    let incomplete = incomplete(estate, &scope, &candidates);
    PlannedEstate { candidates, graph, scope, findings, incomplete, states }
}

/// Looks at one dataset again and plans it, among neighbours that a walk found before. Zero writes.
///
/// The clone graph may be some minutes old: what a clone made since reads was HEAD when it was made, and is younger than any
/// retention; the clone of a version that is past its retention is the race that invariant `references_live` names.
pub async fn plan_dataset(
    estate: &Estate,
    neighbours: &PlannedEstate,
    uri: &str,
    settings: &Settings,
    due: bool,
) -> Candidate {
    let start = Instant::now();
    let now = estate.now();
    let wanted = BTreeSet::from([uri.to_string()]);
    let states = load_states(estate, &wanted).await;
    let looked = contain::contained(&estate.lake, "looking at the dataset", uri, look(&estate.lake, uri, now)).await;
    let (graph, inside) = (&neighbours.graph, &neighbours.scope.inside);
    let mut planner = Planner { estate, settings, graph, states, lost: HashMap::new(), inside, due, now };
    let case = planner.case(uri, looked).await;
    Candidate { uri: uri.to_string(), case, seconds: start.elapsed().as_secs_f64() }
}

fn gain(candidate: &Candidate) -> u64 {
    match &candidate.case {
        Case::Planned(p) => p.plan.gain(),
        _ => 0,
    }
}

/// `--limit N`: the rest is counted as not selected.
fn limit(candidates: &mut [Candidate], n: Option<usize>) {
    let Some(n) = n else { return };
    let mut taken = 0;
    for candidate in candidates {
        let Case::Planned(p) = &candidate.case else { continue };
        if p.plan.is_empty() {
            continue;
        }
        taken += 1;
        if taken > n {
            let skip = Skip { reason: SkipReason::NotSelected, detail: format!("--limit {n}") };
            let case = std::mem::replace(&mut candidate.case, Case::Skipped(skip.clone(), None));
            if let Case::Planned(p) = case {
                candidate.case = Case::Skipped(skip, Some(p));
            }
        }
    }
}

/// Whether `--dataset` names it: by URI, SUBJECT or displayed name.
fn names(estate: &Estate, selection: &Selection, dataset: &str) -> bool {
    if selection.datasets.is_empty() {
        return true;
    }
    let name = uri::display(dataset, &estate.roots);
    let table = estate.snapshot.table_at(dataset).map(|t| t.fields.subject());
    selection.datasets.iter().any(|wanted| {
        *wanted == dataset
            || *wanted == name
            || wanted.strip_suffix(".lance").is_some_and(|w| w == name)
            || uri::canonical(wanted).is_ok_and(|w| w == dataset)
            || wanted.parse::<squire_registry::Subject>().is_ok_and(|s| {
                table.as_ref() == Some(&s) || s == squire_registry::Subject::Dataset(dataset.to_string())
            })
    })
}

pub(crate) async fn load_states(estate: &Estate, wanted: &BTreeSet<String>) -> HashMap<String, DatasetState> {
    let Some(registry) = &estate.registry else { return HashMap::new() };
    match registry.load_state(wanted.iter()).await {
        Ok(states) => states,
        Err(e) => {
            tracing::warn!(error = %e, "the state of earlier runs could not be read; going on without it");
            HashMap::new()
        }
    }
}

/// Looks at the rest of the estate, for its clones' sake: other roots, hidden folders, and datasets nested in datasets.
async fn complete_graph(
    estate: &Estate,
    scope: &Scope,
    wanted: &BTreeSet<String>,
    mut nested: BTreeSet<String>,
    graph: &mut CloneGraph,
    now: DateTime<Utc>,
) {
    let mut rest: BTreeSet<String> =
        scope.datasets.iter().filter(|d| !wanted.contains(*d)).chain(&scope.others).cloned().collect();
    let mut known: BTreeSet<String> = wanted.clone();
    loop {
        rest.append(&mut nested);
        rest.retain(|uri| known.insert(uri.clone()));
        if rest.is_empty() {
            return;
        }
        let looked: Vec<(String, squire_lake::Result<Looked>)> = stream::iter(std::mem::take(&mut rest))
            .map(|uri| async move {
                let work = look(&estate.lake, &uri, now);
                let looked = contain::contained(&estate.lake, "looking at the dataset", &uri, work).await;
                (uri, looked)
            })
            .buffer_unordered(estate.config().limits.concurrency.max(1))
            .collect()
            .await;
        for (uri, result) in looked {
            match result {
                Ok(Looked::Dataset(look)) => {
                    nested.extend(look.nested_uris());
                    graph.add(&uri, look.reads);
                }
                Ok(_) => {}
                Err(_) => graph.add_unread(uri),
            }
        }
    }
}

/// Plans one dataset after another.
struct Planner<'a> {
    estate: &'a Estate,
    settings: &'a Settings,
    graph: &'a CloneGraph,
    states: HashMap<String, DatasetState>,
    lost: HashMap<String, Option<String>>,
    inside: &'a BTreeMap<String, String>,
    due: bool,
    now: DateTime<Utc>,
}

impl Planner<'_> {
    async fn case(&mut self, uri: &str, looked: squire_lake::Result<Looked>) -> Case {
        let snapshot = &self.estate.snapshot;
        let bare = self.estate.govern(snapshot, uri, &BTreeMap::new(), false);
        let look = match looked {
            Ok(Looked::Dataset(look)) => *look,
            Ok(Looked::Nothing) if !bare.declared_only => {
                let error = squire_lake::Error::new(squire_lake::Kind::Open, "looking for its manifests", uri)
                    .remedy("it has none: restore the dataset, or drop the table");
                return admit::forbidden(&bare, self.now).map_or(Case::Failed(error), |skip| Case::Skipped(skip, None));
            }
            Ok(Looked::DeclaredOnly) | Ok(Looked::Nothing) => {
                let detail = "declared, no data yet".to_string();
                let skip =
                    admit::forbidden(&bare, self.now).unwrap_or(Skip { reason: SkipReason::DeclaredOnly, detail });
                return Case::Skipped(skip, None);
            }
            Err(e) => {
                return match admit::forbidden(&bare, self.now) {
                    Some(skip) => Case::Skipped(skip, None),
                    None => Case::Failed(e),
                };
            }
        };
        let governance = self.estate.govern(snapshot, uri, &look.config(), look.deregistered);
        let planned = self.plan(look, governance).await;
        match self.admitted(&planned) {
            Some(skip) => Case::Skipped(skip, Some(Box::new(planned))),
            None => Case::Planned(Box::new(planned)),
        }
    }

    async fn plan(&mut self, look: Look, governance: Governance) -> Planned {
        let state = self.states.remove(&look.uri).unwrap_or_default();
        let keep = self.graph.keep_set(&look.uri);
        let lost = self.lost(&look.uri).await;
        let rules = Rules {
            governance: &governance,
            settings: self.settings,
            registry_lost: lost.as_deref(),
            rewritten: &state.rewritten,
            free_bytes: free_bytes(&look.uri),
            now: self.now,
        };
        let mut layout = Layout::of(&look, &governance.policy.policy, self.now);
        if let Some(failure) = state.failure.as_ref().filter(|f| f.kind == "damaged" && f.version == look.version()) {
            let when = failure.at.format("%Y-%m-%d %H:%M UTC");
            layout.unclean.push((StepReason::Unhealthy, format!("a file of HEAD could not be read on {when}")));
        }
        if let Some(open) = state.unverified.first() {
            let why = format!("version {} of ours could not be verified yet; the next pass tries it first", open.after);
            layout.unclean.push((StepReason::VerifyFailed, why));
        }
        if let Some(why) = self.estate.config().storage.delete_missing(&look.uri) {
            layout.unclean.push((StepReason::NoDeletePermission, why));
        }
        let mut plan = plan::plan(&look, &layout, &keep, &rules);
        plan.flags = self.estate.flags.clone();
        Planned { layout, plan, look, governance, state }
    }

    /// The marker question, once per folder.
    async fn lost(&mut self, dataset: &str) -> Option<String> {
        let parent = dataset.rsplit_once('/').map_or(dataset, |(p, _)| p).to_string();
        if let Some(known) = self.lost.get(&parent) {
            return known.clone();
        }
        let lost = self.estate.lost(&parent).await;
        self.lost.insert(parent, lost.clone());
        lost
    }

    fn admitted(&self, p: &Planned) -> Option<Skip> {
        let not_selected = |detail| Skip { reason: SkipReason::NotSelected, detail };
        admit::forbidden(&p.governance, self.now)
            .or_else(|| self.estate.selected(&p.look.uri, &p.governance).map(not_selected))
            .or_else(|| {
                let above = self.inside.get(&p.look.uri)?;
                let detail = format!("it lies inside the dataset {above}, whose tags and branches hold its versions");
                Some(Skip { reason: SkipReason::UnknownAuthority, detail })
            })
            .or_else(|| admit::not_ours(&p.look))
            .or_else(|| admit::in_blackout(&self.estate.config().schedule, self.now, self.due))
            .or_else(|| admit::outside_window(&p.layout, &p.governance, self.now, self.due))
            .or_else(|| match self.due {
                true if !p.plan.is_empty() => admit::not_due(&p.layout, &p.plan, &p.governance, &p.state, self.now),
                _ => None,
            })
    }
}

/// Free bytes on a local disk.
fn free_bytes(uri: &str) -> Option<u64> {
    let path = uri::local_path(uri)?;
    let stat = rustix::fs::statvfs(&path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Protections, blocks and trash records that the last run saw and that are gone without a trace of who removed them.
async fn vanished(estate: &Estate) -> Vec<Finding> {
    let Some(registry) = &estate.registry else { return Vec::new() };
    match registry.last_run().await {
        Ok(Some(last)) => squire_registry::protections_vanished(&last, &estate.snapshot)
            .into_iter()
            .map(|v| {
                let detail = format!(
                    "{} records: {} when run {} began, {} now, and {} are gone without a trace",
                    v.collection, v.before, last.run, v.now, v.vanished
                );
                Finding::new(FindingKind::ProtectionsVanished, FindingSubject::record(v.collection.to_string()), detail)
                    .with_fix("restore the registry from its backup before the next sweep")
            })
            .collect(),
        Ok(None) => Vec::new(),
        Err(e) => {
            tracing::warn!(error = %e, "the last run's record could not be read");
            Vec::new()
        }
    }
}

fn estate_findings(estate: &Estate, wanted: &BTreeSet<String>, selection: &Selection) -> Vec<Finding> {
    let mut out = Vec::new();
    for unreadable in &estate.snapshot.unreadable {
        let record = format!("{}/{}", unreadable.collection, unreadable.key);
        out.push(Finding::new(FindingKind::RecordUnreadable, FindingSubject::record(record), unreadable.why.clone()));
    }
    for trash in estate.snapshot.trash().filter(|t| t.fields.deadline <= estate.now()) {
        let subject = FindingSubject::table(trash.fields.subject.to_string());
        out.push(
            Finding::new(FindingKind::TrashExpired, subject, "its grace is over; its bytes are still there")
                .with_fix("squire-reconcile reclaim plan"),
        );
    }
    if !estate.by_hand && wanted.is_empty() && selection.datasets.is_empty() {
        for root in &estate.roots {
            out.push(Finding::new(FindingKind::EmptyScan, FindingSubject::uri(root.clone()), "no dataset was found"));
        }
    }
    out
}

fn incomplete(estate: &Estate, scope: &Scope, candidates: &[Candidate]) -> Vec<Incomplete> {
    let mut out: Vec<Incomplete> = scope
        .unreadable
        .iter()
        .map(|(what, why)| Incomplete {
            what: what.clone(),
            why: why.clone(),
            remedy: "check the credentials and permissions; until then nothing that it may reference is removed".into(),
        })
        .collect();
    for candidate in candidates {
        let (Case::Planned(p) | Case::Skipped(_, Some(p))) = &candidate.case else { continue };
        out.extend(p.look.unreadable_refs.iter().map(|(path, why)| Incomplete {
            what: format!("{}/{path}", p.look.uri),
            why: why.clone(),
            remedy: "mend or remove the file; until then no version of this dataset is removed".into(),
        }));
    }
    out.extend(estate.snapshot.unreadable.iter().map(|u| Incomplete {
        what: format!("registry record {}/{}", u.collection, u.key),
        why: u.why.clone(),
        remedy: "write the record again with squire-registry, or run a newer version".into(),
    }));
    out
}

/// Renders a planned estate as the report's datasets, in the plan's order.
pub fn datasets(estate: &Estate, planned: &PlannedEstate, applied: &HashMap<String, (Applied, f64)>) -> Vec<Dataset> {
    planned.candidates.iter().map(|c| dataset(estate, &planned.graph, c, applied.get(&c.uri))).collect()
}

/// One dataset's row of the report.
pub fn dataset(estate: &Estate, graph: &CloneGraph, c: &Candidate, done: Option<&(Applied, f64)>) -> Dataset {
    match &c.case {
        Case::Failed(e) => Dataset::new(&c.uri, Outcome::failed(failure_kind(e.kind())).with_detail(e.to_string())),
        Case::Skipped(skip, None) => {
            Dataset::new(&c.uri, Outcome::skipped(skip.reason).with_detail(skip.detail.clone()))
        }
        Case::Skipped(skip, Some(p)) => row(estate, graph, p, None, Some(skip), c.seconds),
        Case::Planned(p) => {
            row(estate, graph, p, done.map(|(a, _)| a), None, c.seconds + done.map_or(0.0, |(_, s)| *s))
        }
    }
}

fn row(
    estate: &Estate,
    graph: &CloneGraph,
    p: &Planned,
    applied: Option<&Applied>,
    skip: Option<&Skip>,
    seconds: f64,
) -> Dataset {
    let readers: Vec<String> = graph.readers(&p.look.uri).into_iter().map(|r| uri::display(r, &estate.roots)).collect();
    let seen = Seen {
        look: &p.look,
        governance: &p.governance,
        layout: &p.layout,
        plan: &p.plan,
        cloned_by: &readers,
        name: &p.look.uri,
    };
    report::dataset(&seen, applied, skip, seconds)
}

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
#[tracing::instrument(level = "debug", name = "dataset", skip_all, fields(run = %tools.estate.run, dataset = p.look.place.uri()))]
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
        if open.failures.is_empty() {
            Applied { settled: open.settled, ..apply_reserved(tools, p).await }
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

async fn save_state(tools: &Tools, p: &Planned, applied: &Applied) -> Option<Filed> {
    let mut state = p.state.clone();
    let again = applied.failures.values().any(|(kind, _)| *kind == FailureKind::Transient);
    // A compaction in slices is over, unless it was put off or may be tried again.
    if applied.skipped.is_none() && !again && !tools.shutdown.is_requested() {
        state.distributed = None;
    }
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
        None if applied.skipped.is_some() && !applied.opened => before,
        None => None,
    };
    if let Some((kind, _)) = applied.failures.iter().filter(|(step, _)| **step != "earlier").map(|(_, f)| f).next() {
        let version = applied.after.as_ref().map_or(p.plan.read_version, |a| a.version);
        state.failed(version, kind.as_str(), now);
    } else if applied.is_material() {
        let version = applied.after.as_ref().map_or(p.plan.read_version, |a| a.version);
        let rewritten = applied.compact.bytes + applied.indices.iter().map(|i| i.bytes).sum::<u64>();
        state.worked(version, rewritten, p.governance.policy.policy.retention, now);
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
    for expired in old.filter(|b| b.fields.subject == subject) {
        if let Err(e) = tools.registry.block_remove(&expired.meta.id, Some("a newer one replaces it")).await {
            tracing::debug!(dataset = uri, error = %e, "an earlier block was gone already");
        }
    }
    match tools.registry.block_add(block.clone(), &why).await {
        Ok(id) => {
            tracing::warn!(dataset = uri, "blocked for a day: {why}");
            Some(Filed { id, block, reason: why })
        }
        Err(e) => {
            tracing::error!(dataset = uri, error = %e, "the block for a repeated failure could not be filed");
            None
        }
    }
}

/// The files that others read, for `why` and tests.
pub fn keep_set(planned: &PlannedEstate, uri: &str) -> KeepSet {
    planned.graph.keep_set(uri)
}
