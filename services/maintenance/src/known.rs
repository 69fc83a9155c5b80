//! What is remembered of datasets in which nothing is to be done, so that the clock's next look at them costs one request.
//!
//! A memory lies beside the state in the registry's shards and is written only on change. It holds the mark of the last full look
//! and the next instant at which time alone could make the dataset due, so that "idle" is right without reading. It decides
//! nothing but whether to look fully: whatever is planned, written or deleted comes of a full look. A sweep by hand looks fully
//! at what it works on, always.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use chrono::{DateTime, Utc};
use futures::stream::{self, StreamExt};
use serde::{Deserialize, Serialize};
use squire_lake::known::{Mark, is_same, is_unmoved};
use squire_lake::refs::Reads;
use squire_lake::{tier, uri};
use squire_registry::Governance;
use squire_service::config::Mode;
use squire_service::report::{self as model, Dataset, Finding, Outcome, Severity, SkipReason, StepOutcome, StepReason};

use crate::admit::{self, Skip};
use crate::driver::{self, Candidate, Case, Planned, PlannedEstate};
use crate::estate::{Estate, Scope};
use crate::plan::Settings;
use crate::report;
use crate::state::DatasetState;

/// Every so many looks HEAD's own manifest is asked for, too: 1 + 1/30 requests a look, within the bound of 1.05.
const OWN: usize = 30;
/// A full look at the latest after this long: what makes no version (a tag or branch that went) is seen then.
const LONGEST: chrono::Duration = chrono::Duration::days(7);
/// Full looks that are due by age alone are spread over this time before [`LONGEST`].
const SPREAD_MINUTES: u64 = 1_440;
/// What was refused is looked at again after this long.
const REFUSED: chrono::Duration = chrono::Duration::days(1);
/// Looks at once.
const LOOKS: usize = 64;

/// What is remembered of one dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Known {
    #[serde(flatten)]
    mark: Mark,
    /// Digest of all that governed the plan, but for the dataset itself and the time.
    basis: u64,
    /// From then on only a full look can say that it is idle.
    due_at: DateTime<Utc>,
    /// There is something to gain, and it is not due.
    #[serde(default)]
    not_due: bool,
    /// What a report shows of it; `None` where only its reads matter.
    shown: Option<model::DatasetState>,
    /// What its bytes were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stored: Option<model::StoredBytes>,
    /// What was found about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    findings: Vec<Finding>,
}

/// A dataset that has not moved since its full look.
pub struct Unmoved {
    known: Known,
    governance: Governance,
    skip: Option<Skip>,
}

/// All that the registry remembers.
#[derive(Debug, Default)]
pub struct Memory {
    known: HashMap<String, Known>,
    /// The state of all datasets, which lies beside; taken once.
    states: Option<HashMap<String, DatasetState>>,
    /// Not to be believed in this run.
    doubted: BTreeSet<String>,
}

/// A dataset with its memory, and whether its own e_tag was asked for.
struct Pick<'a> {
    uri: String,
    known: &'a Known,
    own: bool,
}

impl Memory {
    /// Reads it. Without a registry there is none, and what cannot be read is looked at afresh.
    pub async fn load(estate: &Estate) -> Self {
        let Some(registry) = &estate.registry else { return Self::default() };
        match registry.load_remembered().await {
            Ok((states, known)) => Self { known, states: Some(states), doubted: BTreeSet::new() },
            Err(e) => {
                tracing::warn!(error = %e, "earlier looks could not be read; every dataset is looked at in full");
                Self::default()
            }
        }
    }

    /// The state of some datasets: as it was read with the looks, and read anew the second time.
    pub async fn states(&mut self, estate: &Estate, wanted: &BTreeSet<String>) -> HashMap<String, DatasetState> {
        match self.states.take() {
            Some(mut all) => wanted.iter().filter_map(|uri| all.remove_entry(uri)).collect(),
            None => driver::load_states(estate, wanted).await,
        }
    }

    /// The same, without belief in some.
    pub fn without(mut self, doubted: BTreeSet<String>) -> Self {
        self.doubted.extend(doubted);
        self
    }

    fn get(&self, uri: &str) -> Option<&Known> {
        self.known.get(uri).filter(|_| !self.doubted.contains(uri))
    }

    /// A memory that holds no more than what a dataset reads of others; the one that is there where it says the same, so that nothing
    /// is written.
    fn reading(&self, uri: &str, mark: Mark, now: DateTime<Utc>) -> Known {
        let same = self.known.get(uri).filter(|k| k.mark == mark && k.shown.is_none() && k.due_at > now);
        same.cloned().unwrap_or_else(|| Known {
            mark,
            basis: 0,
            due_at: longest(uri, now),
            not_due: false,
            shown: None,
            stored: None,
            findings: Vec::new(),
        })
    }

    /// What was a dataset at the last look.
    pub fn datasets(&self) -> BTreeSet<String> {
        self.known.keys().filter(|uri| !self.doubted.contains(*uri)).cloned().collect()
    }

    /// Those of `among` in which nothing has to be done: nothing could be due yet, what governs them is the same, and they have
    /// not moved. One request each, and one more for every thirtieth.
    pub async fn idle(
        &self,
        estate: &Estate,
        settings: &Settings,
        (scope, among): (&Scope, &BTreeSet<String>),
        states: &HashMap<String, DatasetState>,
        now: DateTime<Utc>,
    ) -> Vec<(String, Unmoved)> {
        let mut picks = Vec::new();
        let mut governed = HashMap::new();
        let basis = Basis::of(estate, settings);
        for uri in among {
            let Some(known) = self.get(uri) else { continue };
            let calm = states.get(uri).is_none_or(DatasetState::is_calm);
            if !calm || known.due_at <= now || known.shown.is_none() || scope.inside.contains_key(uri) {
                continue;
            }
            let governance = bare(estate, uri);
            if known.basis == basis.of_dataset(&governance) {
                governed.insert(uri.clone(), governance);
                // No folder lists it, so only its own manifest says that it is still there.
                let own = scope.unlisted.contains(uri) || asks_own(estate, uri, picks.len());
                picks.push(Pick { uri: uri.clone(), known, own });
            }
        }
        let unmoved = ask(estate, picks).await;
        let mut case = |uri: String, known: Known| {
            let governance = governed.remove(&uri)?;
            let skip = admit::forbidden(&governance, now)
                .or_else(|| {
                    let detail = estate.selected(&uri, &governance)?;
                    Some(Skip { reason: SkipReason::NotSelected, detail })
                })
                .or_else(|| {
                    let at = known.due_at.format("%Y-%m-%d %H:%M UTC");
                    let detail = format!("unmoved, and nothing can be due before {at}");
                    known.not_due.then_some(Skip { reason: SkipReason::NotDue, detail })
                });
            Some((uri, Unmoved { known, governance, skip }))
        };
        unmoved.into_iter().filter_map(|(uri, known)| case(uri, known)).collect()
    }

    /// What unmoved neighbours read of others. With `sure`, each one's own e_tag is asked for.
    pub async fn reads(
        &self,
        estate: &Estate,
        among: &BTreeSet<String>,
        sure: bool,
        now: DateTime<Utc>,
    ) -> Vec<(String, Reads)> {
        let mut picks = Vec::new();
        for uri in among {
            if let Some(known) = self.get(uri).filter(|k| k.due_at > now) {
                picks.push(Pick { uri: uri.clone(), known, own: sure || asks_own(estate, uri, picks.len()) });
            }
        }
        ask(estate, picks).await.into_iter().map(|(uri, known)| (uri, known.mark.reads())).collect()
    }

    /// Those of `among` whose HEAD is not the one remembered: before anything is deleted the clone graph has to be right.
    pub async fn changed(&self, estate: &Estate, among: impl IntoIterator<Item = String>) -> BTreeSet<String> {
        let asked: Vec<(String, Option<Mark>)> =
            among.into_iter().map(|uri| (uri.clone(), self.get(&uri).map(|k| k.mark.clone()))).collect();
        stream::iter(asked)
            .map(|(uri, mark)| async move {
                let same = match &mark {
                    Some(mark) => is_same(&estate.lake, &uri, mark).await,
                    None => false,
                };
                (!same).then_some(uri)
            })
            .buffer_unordered(LOOKS)
            .filter_map(|changed| async move { changed })
            .collect()
            .await
    }
}

impl Unmoved {
    /// What it reads of others.
    pub fn reads(&self) -> Reads {
        self.known.mark.reads()
    }

    /// Its row of the report: what the full look found.
    pub fn row(&self, dataset: &str, tiers: &tier::Tiers) -> Dataset {
        let outcome = match &self.skip {
            Some(skip) => Outcome::skipped(skip.reason).with_detail(skip.detail.clone()),
            None => Outcome::idle(),
        };
        let mut out = Dataset::new(dataset, outcome);
        let (from_uri, layout) = tier::tier_of(dataset, tiers);
        out.tier_source = match (&self.governance.tier, &from_uri) {
            (Some(_), _) => model::TierSource::Registry,
            (None, Some(_)) => model::TierSource::Uri,
            (None, None) => model::TierSource::None,
        };
        out.tier = self.governance.tier.clone().or(from_uri);
        out.layout = report::to_enum(&layout).unwrap_or(model::Layout::None);
        out.table = self.governance.table.as_ref().map(ToString::to_string);
        out.policy = Some(report::policy(&self.governance));
        out.authority = model::Authority::Linear;
        out.before.clone_from(&self.known.shown);
        out.after = self.known.shown.clone().filter(|_| self.skip.is_none());
        out.stored.clone_from(&self.known.stored);
        out.findings.clone_from(&self.known.findings);
        out
    }
}

/// What the registry says, without the dataset's own config: that moves with HEAD.
fn bare(estate: &Estate, uri: &str) -> Governance {
    estate.govern(&estate.snapshot, uri, &Default::default(), false)
}

/// Digests of all that governs a plan; they may differ between builds: then one full look is taken.
struct Basis(DefaultHasher);

impl Basis {
    fn of(estate: &Estate, settings: &Settings) -> Self {
        let mut hasher = DefaultHasher::new();
        let prices = &estate.config().prices;
        format!("{settings:?} {:?} {prices:?} {}", estate.flags, squire_service::VERSION).hash(&mut hasher);
        Self(hasher)
    }

    fn of_dataset(&self, governance: &Governance) -> u64 {
        let mut hasher = self.0.clone();
        format!("{governance:?}").hash(&mut hasher);
        hasher.finish()
    }
}

/// Whether a look asks for HEAD's own manifest as well. On a local disk that costs no request; elsewhere each run takes its turn by
/// its random id, so that nothing has to be written to know whose turn it is: each dataset is asked every thirtieth time on
/// average.
fn asks_own(estate: &Estate, uri: &str, nth: usize) -> bool {
    let turn = usize::try_from(estate.run.as_u128() % OWN as u128).unwrap_or(0);
    uri::local_path(uri).is_some() || nth % OWN == turn
}

/// One HEAD each, or two.
async fn ask(estate: &Estate, picks: Vec<Pick<'_>>) -> Vec<(String, Known)> {
    let picks: Vec<(String, Known, bool)> = picks.into_iter().map(|p| (p.uri, p.known.clone(), p.own)).collect();
    stream::iter(picks)
        .map(|(uri, known, own)| async move {
            let lake = &estate.lake;
            let still = is_unmoved(lake, &uri, &known.mark, own).await;
            still.then_some((uri, known))
        })
        .buffer_unordered(LOOKS)
        .filter_map(|still| async move { still })
        .collect()
        .await
}

/// Saves what full looks found, where it changed, and forgets what is gone. A tick's last write, and nothing depends on it.
pub async fn remember(estate: &Estate, settings: &Settings, planned: &PlannedEstate) {
    let Some(registry) = &estate.registry else { return };
    let now = estate.now();
    let mut found: HashMap<String, Option<Known>> = HashMap::new();
    for candidate in &planned.candidates {
        let known = of_candidate(estate, settings, planned, candidate, now);
        // Who only observes hands out no passes, and writes nothing for them.
        let reads = || of_reads(planned, candidate, now).filter(|_| settings.mode != Mode::Observe);
        found.insert(candidate.uri.clone(), known.or_else(reads));
    }
    for (uri, mark) in &planned.neighbours.looked {
        found.insert(uri.clone(), mark.clone().map(|mark| planned.memory.reading(uri, mark, now)));
    }
    if planned.scope.unreadable.is_empty() {
        let gone = planned.memory.known.keys().filter(|uri| {
            let there = planned.scope.datasets.contains(*uri) || planned.scope.others.contains(*uri);
            !there && estate.roots.iter().any(|root| uri::within(uri, root))
        });
        found.extend(gone.map(|uri| (uri.clone(), None)));
    }
    found.retain(|uri, known| known.as_ref() != planned.memory.known.get(uri));
    if found.is_empty() {
        return;
    }
    if let Err(e) = registry.save_looks(found).await {
        tracing::warn!(error = %e, "what was seen could not be saved; the next run looks at these datasets in full");
    }
}

/// Saves what a look after a pass found: the next tick finds the dataset settled and writes nothing (invariant 5).
pub async fn remember_one(estate: &Estate, settings: &Settings, neighbours: &PlannedEstate, candidate: &Candidate) {
    let Some(registry) = &estate.registry else { return };
    let now = estate.now();
    let known = of_candidate(estate, settings, neighbours, candidate, now);
    let Some(known) = known.or_else(|| of_reads(neighbours, candidate, now)) else { return };
    let found = HashMap::from([(candidate.uri.clone(), Some(known))]);
    if let Err(e) = registry.save_looks(found).await {
        tracing::debug!(error = %e, "what was seen after the pass could not be saved; the next tick looks in full");
    }
}

/// What a dataset with work, or that must be looked at in full for another reason, reads of others: a worker that is given a
/// pass asks for one HEAD of each neighbour, and not for all of them anew.
fn of_reads(planned: &PlannedEstate, candidate: &Candidate, now: DateTime<Utc>) -> Option<Known> {
    let (Case::Planned(p) | Case::Skipped(_, Some(p))) = &candidate.case else { return None };
    Some(planned.memory.reading(&candidate.uri, Mark::of(&p.look)?, now))
}

fn of_candidate(
    estate: &Estate,
    settings: &Settings,
    planned: &PlannedEstate,
    candidate: &Candidate,
    now: DateTime<Utc>,
) -> Option<Known> {
    let (p, skip) = match &candidate.case {
        Case::Planned(p) => (p, None),
        Case::Skipped(skip, Some(p)) => (p, Some(skip)),
        _ => return None,
    };
    let mark = Mark::of(&p.look)?;
    if !p.state.is_calm() || p.has_unnamed_files(now) || planned.scope.inside.contains_key(&candidate.uri) {
        return None;
    }
    // What waits for another mode is told of by every tick, and so it is looked at.
    let asked = Settings { mode: Mode::Maintain, ..settings.clone() };
    let waits = p.plan.cleanup.reason == Some(StepReason::Mode);
    if waits && driver::clean_up_as_if(estate, planned, p, &asked).cleanup.is_planned() {
        return None;
    }
    let governance = bare(estate, &candidate.uri);
    let left_alone =
        admit::forbidden(&governance, now).is_some() || estate.selected(&candidate.uri, &governance).is_some();
    let due_at = if left_alone { Some(DateTime::<Utc>::MAX_UTC) } else { due_at(p, skip, now) }?;
    let row = driver::dataset(estate, &planned.graph, candidate, None);
    // An error is said anew by a full look each time, and so it is when it has gone.
    if row.findings.iter().any(|f| f.severity == Severity::Error) {
        return None;
    }
    Some(Known {
        mark,
        basis: Basis::of(estate, settings).of_dataset(&governance),
        due_at: due_at.min(longest(&candidate.uri, now)),
        not_due: !left_alone && skip.is_some(),
        shown: row.before,
        stored: row.stored,
        findings: row.findings,
    })
}

/// [`LONGEST`] from now, less a part that differs by dataset.
fn longest(uri: &str, now: DateTime<Utc>) -> DateTime<Utc> {
    let mut hasher = DefaultHasher::new();
    uri.hash(&mut hasher);
    let less = i64::try_from(hasher.finish() % SPREAD_MINUTES).unwrap_or(0);
    now + LONGEST - chrono::Duration::minutes(less)
}

/// The next instant at which a dataset in which nothing is to be done now could be due although it has not moved; `None` where
/// something is to be done, or where more than time and the registry decides.
fn due_at(p: &Planned, skip: Option<&Skip>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    match skip.map(|skip| skip.reason) {
        None if p.has_work() => return None,
        None | Some(SkipReason::NotDue) => {}
        Some(_) => return None,
    }
    let policy = &p.governance.policy.policy;
    let after =
        |at: DateTime<Utc>, by: std::time::Duration| at.checked_add_signed(chrono::Duration::from_std(by).ok()?);
    let mut instants: Vec<DateTime<Utc>> = p.plan.retained.iter().filter_map(|r| r.until).collect();
    if let Some(written) = p.layout.versions.iter().filter(|v| !v.ours).map(|v| v.time).max() {
        instants.extend([policy.settle_after, policy.quiet_for].into_iter().filter_map(|by| after(written, by)));
    }
    // The first half of erasure; when the second is due stands with the versions.
    if let Some(within) = policy.erase_within {
        let erasure = &p.layout.erasure;
        let indices = erasure.indices.values().filter(|i| i.cannot.is_none()).filter_map(|i| i.since);
        let since = erasure.oldest_fragment().into_iter().chain(erasure.head_tells).chain(indices);
        instants.extend(since.filter_map(|since| after(since, within / 4)));
    }
    instants.extend(p.state.last_pass_at.and_then(|at| after(at, policy.interval)).filter(|_| skip.is_some()));
    for verdict in [&p.plan.compact, &p.plan.optimize_indices, &p.plan.cleanup] {
        match (verdict.outcome, verdict.reason) {
            (StepOutcome::Refused, Some(StepReason::RewriteBudget)) => {
                instants.extend(p.state.rewritten.iter().filter_map(|(at, _)| after(*at, policy.retention)));
            }
            (StepOutcome::Refused, Some(reason)) if is_steady(reason) => instants.push(now + REFUSED),
            (StepOutcome::Refused, _) => return None,
            _ => {}
        }
    }
    Some(instants.into_iter().filter(|at| *at > now).min().unwrap_or(DateTime::<Utc>::MAX_UTC))
}

/// Refusals that only HEAD, the registry or days can lift.
fn is_steady(reason: StepReason) -> bool {
    matches!(
        reason,
        StepReason::Held
            | StepReason::OldClients
            | StepReason::LegacyIndex
            | StepReason::Untrained
            | StepReason::NotExclusive
            | StepReason::ExternalBases
    )
}
