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
use squire_registry::Governance;
use squire_service::report::{Dataset, Finding, Incomplete, Outcome, SkipReason, StepReason};

use crate::admit::{self, Skip};
use crate::apply::{Applied, failure_kind};
use crate::budget;
use crate::estate::{Estate, Scope};
use crate::known::{Memory, Unmoved};
use crate::plan::{self, DatasetPlan, Layout, Rules, Settings};
use crate::report::{self, Seen};
use crate::state::DatasetState;

mod findings;
pub mod neighbours;
pub mod slices;
mod unverified;
mod work;

pub use work::{apply_estate, apply_one};

use neighbours::Around;
pub use neighbours::Neighbours;

/// Full looks at once: they wait for the store and use little of anything else, and a sweep begins with all of them.
const LOOKS: usize = 32;

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
    /// What is remembered of it, and commits of ours that were found without a recorded verification.
    pub state: DatasetState,
    /// Once it is applied no compaction in slices is in work any more; false for what is done beside one.
    pub ends_slices: bool,
}

impl PlannedEstate {
    /// Whether an earlier pass left a commit unverified.
    pub fn has_unverified(&self) -> bool {
        self.candidates.iter().any(|c| matches!(&c.case, Case::Planned(p) if !p.state.unverified.is_empty()))
    }

    /// Those that were taken for unmoved and whose HEAD is another object by now.
    async fn changed(&self, estate: &Estate) -> BTreeSet<String> {
        let marked = self.unmoved.iter().map(|(uri, _)| uri).chain(&self.neighbours.unmoved).cloned();
        self.memory.changed(estate, marked).await
    }

    /// Whether anything was found at all.
    pub fn is_empty(&self) -> bool {
        self.candidates.is_empty() && self.unmoved.is_empty()
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
    /// Datasets in which nothing is to be done, by one request each (`--due` and the clock).
    pub unmoved: Vec<(String, Unmoved)>,
    /// How the graph knows of the others.
    pub neighbours: Neighbours,
    /// What earlier looks found.
    pub memory: Memory,
    /// Every mark in the graph was confirmed by its own e_tag.
    pub confirmed: bool,
}

/// Discovers, looks and plans. Zero writes.
///
/// Where versions would go, what is only marked as unmoved is confirmed first, and looked at again where it has changed: a clone
/// graph that is wrong must not let a file go.
#[tracing::instrument(level = "debug", name = "look", skip_all)]
pub async fn plan_estate(
    estate: &Estate,
    selection: &Selection,
    settings: &Settings,
    at: Option<DateTime<Utc>>,
) -> PlannedEstate {
    let now = at.unwrap_or_else(|| estate.now());
    let mut memory = Memory::load(estate).await;
    loop {
        let mut planned = plan_once(estate, selection, settings, memory, now).await;
        let cleans = |c: &Candidate| matches!(&c.case, Case::Planned(p) if p.plan.cleanup.is_planned());
        if planned.confirmed || !planned.candidates.iter().any(cleans) {
            return planned;
        }
        let changed = planned.changed(estate).await;
        if changed.is_empty() {
            return PlannedEstate { confirmed: true, ..planned };
        }
        memory = std::mem::take(&mut planned.memory).without(changed);
    }
}

async fn plan_once(
    estate: &Estate,
    selection: &Selection,
    settings: &Settings,
    mut memory: Memory,
    now: DateTime<Utc>,
) -> PlannedEstate {
    // By hand everything is looked at, so nothing is taken for a dataset that a walk does not find to be one.
    let listed = if selection.due { memory.datasets() } else { BTreeSet::new() };
    let scope = estate.discover(&listed).await;
    let wanted: BTreeSet<String> = scope.datasets.iter().filter(|d| names(estate, selection, d)).cloned().collect();
    let states = memory.states(estate, &wanted).await;
    let unmoved = match selection.due {
        true => memory.idle(estate, settings, (&scope, &wanted), &states, now).await,
        false => Vec::new(),
    };
    let idle: BTreeSet<&String> = unmoved.iter().map(|(uri, _)| uri).collect();
    let looked = look_at(estate, wanted.iter().filter(|uri| !idle.contains(uri)).cloned().collect(), now).await;
    let mut graph = CloneGraph::default();
    for (place, why) in &scope.unreadable {
        graph.add_unread(format!("{place} ({why})"));
    }
    let mut nested = BTreeSet::new();
    for (uri, result, _) in &looked {
        match result {
            Ok(Looked::Dataset(look)) => {
                nested.extend(look.nested_uris());
                neighbours::add(&mut graph, look);
            }
            Ok(_) => {}
            Err(_) => graph.add_unread(uri.clone()),
        }
    }
    for (uri, known) in &unmoved {
        graph.add(uri, known.reads());
    }
    let around = Around { estate, scope: &scope, wanted: &wanted, memory: &memory, sure: !selection.due, now };
    let neighbours = around.complete(nested, &mut graph).await;
    neighbours::quarantined(estate, &scope, &mut graph).await;
    let graph = Arc::new(graph);
    let mut planner = Planner {
        estate,
        settings,
        graph: &graph,
        states,
        lost: HashMap::new(),
        nearer: HashMap::new(),
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
    let findings = findings::of_estate(estate, &wanted, selection).await;
    let incomplete = findings::incomplete(estate, &scope, &candidates);
    let confirmed = !selection.due || (unmoved.is_empty() && neighbours.unmoved.is_empty());
    PlannedEstate { candidates, graph, scope, findings, incomplete, states, unmoved, neighbours, memory, confirmed }
}

/// Full looks, several at once, with the seconds that each took.
async fn look_at(
    estate: &Estate,
    uris: BTreeSet<String>,
    now: DateTime<Utc>,
) -> Vec<(String, squire_lake::Result<Looked>, f64)> {
    stream::iter(uris)
        .map(|uri| async move {
            let start = Instant::now();
            let work = look(&estate.lake, &uri, now);
            let looked = contain::contained(&estate.lake, "looking at the dataset", &uri, work).await;
            (uri, looked, start.elapsed().as_secs_f64())
        })
        .buffer_unordered(estate.config().limits.concurrency.max(LOOKS))
        .collect()
        .await
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
    let mut planner =
        Planner { estate, settings, graph, states, lost: HashMap::new(), nearer: HashMap::new(), inside, due, now };
    let mut case = planner.case(uri, looked).await;
    if let Case::Planned(p) = &mut case
        && p.plan.cleanup.is_planned()
        && !neighbours.confirmed
        && let Some(moved) = neighbours.changed(estate).await.first()
    {
        let why = format!("{moved} has changed since the clone graph was made; the next tick makes it anew");
        p.plan.cleanup = plan::Verdict::refused(StepReason::ReferencesIncomplete, why);
        p.plan.removal = Default::default();
    }
    Candidate { uri: uri.to_string(), case, seconds: start.elapsed().as_secs_f64() }
}

/// Since when a dataset with work has been due: its interval had passed, and something was written since. `None` without work.
pub fn due_since(candidate: &Candidate) -> Option<DateTime<Utc>> {
    let Case::Planned(p) = &candidate.case else { return None };
    if !p.has_work() {
        return None;
    }
    let interval = chrono::Duration::from_std(p.governance.policy.policy.interval).unwrap_or_default();
    let written = p.layout.versions.iter().map(|v| v.time).max();
    written.max(p.state.last_pass_at.and_then(|at| at.checked_add_signed(interval)))
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

/// Plans one dataset after another.
struct Planner<'a> {
    estate: &'a Estate,
    settings: &'a Settings,
    graph: &'a CloneGraph,
    states: HashMap<String, DatasetState>,
    lost: HashMap<String, Option<String>>,
    nearer: HashMap<String, Option<String>>,
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
        let mut state: DatasetState = self.states.remove(&look.uri).unwrap_or_default();
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
        let mut layout = Layout::of(&look, &governance.policy.policy, state.watched.as_ref(), self.now);
        if let Some(failure) = state.failure.as_ref().filter(|f| f.kind == "damaged" && f.version == look.version()) {
            let when = failure.at.format("%Y-%m-%d %H:%M UTC");
            layout.unclean.push((StepReason::Unhealthy, format!("a file of HEAD could not be read on {when}")));
        }
        match unverified::find(self.estate, &look, &layout, &state).await {
            Ok(found) => state.unverified.extend(found),
            Err(why) => layout.unclean.push((StepReason::VerifyFailed, why)),
        }
        if let Some(open) = state.unverified.first() {
            let why = format!("version {} of ours could not be verified yet; the next pass tries it first", open.after);
            layout.unclean.push((StepReason::VerifyFailed, why));
        }
        if let Some(why) = self.estate.config().storage.delete_missing(&look.uri) {
            layout.unclean.push((StepReason::NoDeletePermission, why));
        }
        let mut plan = plan::plan(&look, &layout, &keep, &rules);
        if plan.cleanup.is_planned()
            && let Some(why) = self.nearer(&look.uri).await
        {
            plan = plan::plan(&look, &layout, &keep, &Rules { registry_lost: Some(&why), ..rules });
        }
        plan.flags = self.estate.flags.clone();
        Planned { layout, plan, look, governance, state, ends_slices: true }
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

    /// Once per folder, too, and only where versions would go.
    async fn nearer(&mut self, dataset: &str) -> Option<String> {
        let parent = dataset.rsplit_once('/').map_or(dataset, |(p, _)| p).to_string();
        if let Some(known) = self.nearer.get(&parent) {
            return known.clone();
        }
        let nearer = self.estate.another_is_nearer(dataset).await;
        self.nearer.insert(parent, nearer.clone());
        nearer
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

/// Renders a planned estate as the report's datasets, in the plan's order.
pub fn datasets(estate: &Estate, planned: &PlannedEstate, applied: &HashMap<String, (Applied, f64)>) -> Vec<Dataset> {
    let looked = planned.candidates.iter().map(|c| dataset(estate, &planned.graph, c, applied.get(&c.uri)));
    let tiers = &estate.config().estate.tiers;
    looked.chain(planned.unmoved.iter().map(|(uri, unmoved)| unmoved.row(uri, tiers))).collect()
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
    Dataset { stored: Some(crate::stored::of(estate, graph, p)), ..report::dataset(&seen, applied, skip, seconds) }
}

/// A plan with its clean-up planned anew under other settings. Pure.
pub fn clean_up_as_if(estate: &Estate, planned: &PlannedEstate, p: &Planned, settings: &Settings) -> DatasetPlan {
    let rules = Rules {
        governance: &p.governance,
        settings,
        registry_lost: None,
        rewritten: &[],
        free_bytes: None,
        now: estate.now(),
    };
    let keep = planned.graph.keep_set(&p.look.uri);
    let (cleanup, removal, retained) = plan::retention::plan(&p.look, &p.layout, &keep, &rules);
    DatasetPlan { cleanup, removal, retained, ..p.plan.clone() }
}

/// The files that others read, for `why` and tests.
pub fn keep_set(planned: &PlannedEstate, uri: &str) -> KeepSet {
    planned.graph.keep_set(uri)
}
