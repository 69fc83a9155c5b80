//! What one run works on: config, lake, registry, roots. Opening it reads; only [`Estate::writable`] makes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use squire_lake::discover;
use squire_lake::{Lake, uri};
use squire_registry::{
    Actor, Floors, Governance, Located, Policy, PolicySource, PolicySourceKind, Registry, Snapshot, locate,
    markers_above, registry_lost,
};
use squire_service::cli::Failure;
use squire_service::clock::Clock;
use squire_service::config::{Config, Loaded, Maintain};
use uuid::Uuid;

use crate::plan;

/// The config of this daemon.
pub type MaintenanceConfig = Config<Policy, Floors>;

/// Flags that stand above every policy.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct PolicyFlags {
    /// `--retention`.
    pub retention: Option<std::time::Duration>,
    /// `--retain-versions`.
    pub retain_versions: Option<u32>,
}

/// One run's surroundings.
#[derive(Clone)]
pub struct Estate {
    /// The effective config with its sources.
    pub config: Arc<Loaded<Policy, Floors>>,
    /// Datasets are opened through it.
    pub lake: Lake,
    /// The registry, where there is one.
    pub registry: Option<Registry>,
    /// Where it is, or would be made.
    pub registry_uri: String,
    /// The registry as this run found it; empty without a registry.
    pub snapshot: Snapshot,
    /// Canonical ROOTs: by hand, or the config's and the active warehouses'.
    pub roots: Vec<String>,
    /// Whether the ROOTs were given by hand.
    pub by_hand: bool,
    /// Time.
    pub clock: Clock,
    /// The run's id.
    pub run: Uuid,
    /// Flags above every policy.
    pub flags: PolicyFlags,
}

/// Everything discovered: what is swept, and what else belongs to the estate and may read from it.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// Datasets under the ROOTs and registered tables.
    pub datasets: BTreeSet<String>,
    /// Datasets elsewhere in the estate: for the clone graph.
    pub others: BTreeSet<String>,
    /// Datasets that lie inside another one, by that one's URI: a table registered at a branch's tree, say.
    pub inside: BTreeMap<String, String>,
    /// Folders in which reclaims keep what they moved away.
    pub quarantines: BTreeSet<String>,
    /// Registered tables that no walk found: outside of every ROOT, or gone.
    pub unlisted: BTreeSet<String>,
    /// `(place, why)`.
    pub unreadable: Vec<(String, String)>,
    /// ROOTs given by hand that do not exist or hold no dataset.
    pub empty: Vec<String>,
}

impl Estate {
    /// Opens the surroundings of a run. Reads only.
    ///
    /// # Errors
    /// Exit 2 for a ROOT that is no URI, no ROOT at all, two registries, or a named registry that is not there.
    pub async fn open(
        config: Loaded<Policy, Floors>,
        given: &[String],
        clock: Clock,
        flags: PolicyFlags,
    ) -> anyhow::Result<Self> {
        let storage = config.config.storage.clone();
        let options: squire_lake::handle::OptionsFor = Arc::new(move |uri: &str| storage.options_for(uri));
        let storage = config.config.storage.clone();
        let deletes: squire_lake::handle::DeletesFor = Arc::new(move |uri: &str| storage.delete_options_for(uri));
        let requests = config.config.budget.requests_per_second;
        let lake = Lake::with_deletes(options, deletes, config.config.limits.memory.as_u64(), requests);
        let by_hand = !given.is_empty();
        let mut roots = Vec::new();
        for root in if by_hand { given } else { &config.config.estate.roots } {
            let root = uri::canonical(root).map_err(|e| Failure::usage(format!("ROOT {root}: {e}")))?;
            refuse_inside(&lake, &root).await?;
            if !roots.contains(&root) {
                roots.push(root);
            }
        }
        let (registry, registry_uri) = find_registry(&config.config, &roots).await?;
        let snapshot = match &registry {
            Some(registry) => registry.snapshot().await.map_err(|e| {
                anyhow::Error::new(Failure::could_not_run("the registry could not be read").caused_by(e))
            })?,
            None => Snapshot::default(),
        };
        lake.backed_by(&snapshot);
        if !by_hand {
            add_warehouses(&mut roots, &snapshot);
        }
        if roots.is_empty() {
            return Err(Failure::usage("there is nothing to look at: no ROOT was given and the config names none")
                .remedy("give a ROOT, for example `squire-maintenance plan ./lake`, or set estate.roots")
                .into());
        }
        Ok(Self {
            config: Arc::new(config),
            lake,
            registry,
            registry_uri,
            snapshot,
            roots,
            by_hand,
            clock,
            run: Uuid::now_v7(),
            flags,
        })
    }

    /// The surroundings of another run of the same process: the registry read anew, what was seen of it before not read again.
    ///
    /// # Errors
    /// What the registry's store answers.
    pub async fn again(&self, run: Uuid) -> squire_registry::Result<Self> {
        let mut estate = Self { run, ..self.clone() };
        if let Some(registry) = &self.registry {
            estate.snapshot = registry.snapshot().await?;
            estate.lake.backed_by(&estate.snapshot);
        }
        if !self.by_hand {
            estate.roots = self.config().estate.roots.iter().filter_map(|root| uri::canonical(root).ok()).collect();
            add_warehouses(&mut estate.roots, &estate.snapshot);
        }
        Ok(estate)
    }

    /// The effective config.
    pub fn config(&self) -> &MaintenanceConfig {
        &self.config.config
    }

    /// Now.
    pub fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    /// The registry to write to: made at the nearest place if there is none yet (the first verb that writes makes it).
    ///
    /// # Errors
    /// When it cannot be made: the store does not keep put-if-absent, or may not be written.
    pub async fn writable(&mut self) -> anyhow::Result<Registry> {
        if let Some(registry) = &self.registry {
            return Ok(registry.clone());
        }
        let options = self.config().storage.options_for(&self.registry_uri);
        let name = self.config().estate.name.clone();
        let (registry, _) =
            Registry::open_or_init(&self.registry_uri, &options, &name, Actor::current()).await.map_err(|e| {
                Failure::could_not_run(format!("the registry {} could not be made", self.registry_uri)).caused_by(e)
            })?;
        let registry = registry.keeping_history(self.config().grace.record_history);
        self.snapshot = registry
            .snapshot()
            .await
            .map_err(|e| Failure::could_not_run("the registry could not be read").caused_by(e))?;
        self.registry = Some(registry.clone());
        Ok(registry)
    }

    /// What the estate holds: the union of the roots, the registered tables, and for the clone graph everything else that
    /// the registry knows of. What is `known` to be a dataset costs no request where its folder lists it.
    pub async fn discover(&self, known: &BTreeSet<String>) -> Scope {
        let mut scope = Scope::default();
        for root in &self.roots {
            let found = discover::discover_knowing(&self.lake, root, known).await;
            if self.by_hand && found.datasets.is_empty() && found.unreadable.is_empty() {
                scope.empty.push(root.clone());
            }
            scope.quarantines.extend(found.quarantines().cloned());
            scope.datasets.extend(found.datasets);
            scope.others.extend(found.hidden);
            scope.unreadable.extend(found.unreadable);
        }
        let tables: Vec<String> = self.snapshot.tables().map(|t| t.fields.uri.clone()).collect();
        for table in tables {
            let within = self.roots.iter().any(|r| uri::within(&table, r));
            if within || !self.by_hand {
                if scope.datasets.insert(table.clone()) {
                    scope.unlisted.insert(table);
                }
            } else {
                scope.others.insert(table);
            }
        }
        self.find_enclosed(&mut scope).await;
        for root in self.wider_roots(&scope.datasets) {
            let found = discover::discover_knowing(&self.lake, &root, known).await;
            scope.quarantines.extend(found.quarantines().cloned());
            scope.others.extend(found.datasets);
            scope.others.extend(found.hidden);
            scope.unreadable.extend(found.unreadable);
        }
        scope.others.retain(|d| !scope.datasets.contains(d));
        self.find_absent(&mut scope).await;
        scope
    }

    /// A registered warehouse in which nothing is found, its marker neither, is away (a lost mount, a wrong endpoint) and not
    /// empty: what lies there may read from anything.
    async fn find_absent(&self, scope: &mut Scope) {
        let roots: BTreeSet<String> = self.snapshot.warehouses().map(|w| w.fields.root.clone()).collect();
        for root in roots {
            if scope.datasets.iter().chain(&scope.others).any(|d| uri::within(d, &root)) {
                continue;
            }
            match squire_registry::read_marker(&root, &self.config().storage.options_for(&root)).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    scope.unreadable.push((root, "the warehouse is registered and its marker is not there".into()))
                }
                Err(e) => scope.unreadable.push((root, e.to_string())),
            }
        }
    }

    /// What no walk entered from above may lie inside a dataset, whose refs hold its versions: ROOTs of warehouses and of the
    /// config, and registered tables outside of every ROOT or below a dataset.
    async fn find_enclosed(&self, scope: &mut Scope) {
        // A walk finds no dataset inside another, so storage is only asked above the ROOTs and above tables outside of them.
        let outside = scope.datasets.iter().filter(|d| !self.roots.iter().any(|r| uri::within(d, r)));
        let roots = self.roots.iter().filter(|_| !self.by_hand);
        let mut above: BTreeMap<String, String> = BTreeMap::new();
        // Once per folder: what encloses one table of it encloses them all.
        let mut asked: BTreeMap<String, Option<String>> = BTreeMap::new();
        for place in outside.chain(roots).cloned().collect::<BTreeSet<String>>() {
            let folder = place.rsplit_once('/').map_or("", |(folder, _)| folder).to_string();
            let known = match asked.get(&folder) {
                Some(known) => Ok(known.clone()),
                None => discover::enclosing(&self.lake, &place).await,
            };
            match known {
                Ok(enclosing) => {
                    asked.insert(folder, enclosing.clone());
                    above.extend(enclosing.map(|dataset| (place, dataset)));
                }
                Err(e) => scope.unreadable.push((place, e.to_string())),
            }
        }
        for dataset in &scope.datasets {
            let known = ancestors(dataset).find(|a| scope.datasets.contains(*a)).map(String::from);
            let from_root = || above.iter().find(|(place, _)| uri::within(dataset, place)).map(|(_, a)| a.clone());
            if let Some(enclosing) = known.or_else(from_root) {
                scope.inside.insert(dataset.clone(), enclosing);
            }
        }
    }

    /// Roots beyond the ones given: a clone anywhere in the estate may read what is swept here.
    fn wider_roots(&self, datasets: &BTreeSet<String>) -> Vec<String> {
        let mut all: Vec<String> = self.snapshot.warehouses().map(|w| w.fields.root.clone()).collect();
        all.extend(self.config().estate.roots.iter().filter_map(|r| uri::canonical(r).ok()));
        // A registry at ROOT/_squire governs ROOT, also one that is still to be made.
        all.extend(self.registry_uri.strip_suffix(&format!("/{}", discover::RESERVED)).map(String::from));
        // Where a ROOT is a dataset, or a link led out of the ROOTs, its neighbours are as near as a root's own.
        let alone = |d: &&String| !self.roots.iter().any(|r| uri::within(d, r) && *r != **d);
        all.extend(
            datasets.iter().filter(alone).filter_map(|d| d.rsplit_once('/').map(|(above, _)| above.to_string())),
        );
        all.retain(|root| !self.roots.iter().any(|given| uri::within(root, given)));
        all.sort();
        all.dedup();
        // A root within another is walked with it.
        let nested = |r: &String| all.iter().any(|other| other != r && uri::within(r, other));
        all.iter().filter(|r| !nested(r)).cloned().collect()
    }

    /// What governs a dataset now, flags on top, the marker in the dataset included.
    pub fn govern(
        &self,
        snapshot: &Snapshot,
        uri: &str,
        config: &BTreeMap<String, String>,
        deregistered: bool,
    ) -> Governance {
        let settings = self.config();
        let mut governance = snapshot.govern(uri, &settings.policy, &settings.floors, config, self.now());
        governance.deregistered = deregistered;
        self.apply_flags(&mut governance);
        governance
    }

    fn apply_flags(&self, governance: &mut Governance) {
        let floors = &self.config().floors;
        let effective = &mut governance.policy;
        if let Some(retention) = self.flags.retention {
            effective.policy.retention = retention.max(floors.retention);
            if retention < floors.retention {
                effective.clamped.push("retention".into());
            }
        }
        if let Some(n) = self.flags.retain_versions {
            effective.policy.retain_versions = n.max(floors.retain_versions);
            if n < floors.retain_versions {
                effective.clamped.push("retain_versions".into());
            }
        }
        if self.flags != PolicyFlags::default() {
            effective.source = PolicySource { kind: PolicySourceKind::Flag, id: "flag".into() };
        }
    }

    /// Whether config and registry select a dataset: include, exclude, registered, labelled, rollout.
    pub fn selected(&self, uri: &str, governance: &Governance) -> Option<String> {
        let estate = &self.config().estate;
        let name = uri::display(uri, &self.roots);
        let matches = |globs: &[String]| {
            globs.iter().any(|g| {
                globset::Glob::new(g).is_ok_and(|g| {
                    let m = g.compile_matcher();
                    m.is_match(&name)
                        || m.is_match(uri)
                        || governance.table.as_ref().is_some_and(|t| m.is_match(t.to_string()))
                })
            })
        };
        if !estate.include.is_empty() && !matches(&estate.include) {
            return Some("estate.include does not name it".into());
        }
        if matches(&estate.exclude) {
            return Some("estate.exclude names it".into());
        }
        match estate.maintain {
            Maintain::Registered if governance.table.is_none() => {
                return Some("estate.maintain = registered, and it has no table".into());
            }
            Maintain::Labelled if governance.labels.is_empty() => {
                return Some("estate.maintain = labelled, and it has no label".into());
            }
            _ => {}
        }
        let percent = u64::from(self.config().rollout.percent);
        (percent < 100 && share(uri) >= percent).then(|| format!("rollout.percent is {percent}"))
    }

    /// The marker of the dataset's root names another estate than this registry.
    ///
    /// # Errors
    /// When a marker could not be read: then it is not known, which is as good as lost.
    pub async fn lost(&self, uri: &str) -> Option<String> {
        let options = self.config().storage.options_for(uri);
        match markers_above(uri, &options).await {
            Ok(markers) => registry_lost(&markers, self.registry.as_ref().map(Registry::id)).map(|lost| {
                let ours = lost.ours.map_or("there is no registry".to_string(), |id| format!("this registry is {id}"));
                format!("{} belongs to estate {}, and {ours}", lost.root, lost.marked)
            }),
            Err(e) => Some(format!("the root's marker could not be read: {e}")),
        }
    }

    /// Another registry than the named one is the nearest to a place, or whether one is cannot be read: the named one may be an
    /// old copy, which knows nothing of what protects these files by now. Asked where versions would go.
    pub async fn another_is_nearer(&self, uri: &str) -> Option<String> {
        // One that was not named was found as the nearest to every ROOT.
        self.config().registry.root.as_ref()?;
        let ours = self.registry.as_ref()?.uri();
        let folder = uri.rsplit_once('/').map_or(uri, |(folder, _)| folder).to_string();
        match locate(&[folder], |uri| self.config().storage.options_for(uri)).await {
            Ok(Located::Found(found)) if found != ours => {
                Some(format!("{ours} is not the registry nearest to it, which is {found}; name that one"))
            }
            Ok(_) => None,
            Err(e) => Some(format!("the registry nearest to it could not be read: {e}")),
        }
    }

    /// What the plan needs to know of the run.
    pub fn settings(
        &self,
        by_clock: bool,
        steps: plan::Steps,
        steps_asked: bool,
        max_rewrite: Option<u64>,
    ) -> plan::Settings {
        let estate = &self.config().estate;
        plan::Settings {
            tiers: estate.tiers.clone(),
            target_bytes: estate.target_bytes.as_u64(),
            small_bytes: estate.small_bytes.as_u64(),
            steps,
            steps_asked,
            max_rewrite,
            mode: estate.mode,
            by_clock,
            exclusive: estate.exclusive,
        }
    }
}

/// Active warehouses are ROOTs.
fn add_warehouses(roots: &mut Vec<String>, snapshot: &Snapshot) {
    for warehouse in snapshot.warehouses().filter(|w| w.fields.active) {
        if !roots.contains(&warehouse.fields.root) {
            roots.push(warehouse.fields.root.clone());
        }
    }
}

/// The URIs above a URI, nearest first.
fn ancestors(uri: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(uri.rsplit_once('/').map(|(above, _)| above), |at| {
        at.rsplit_once('/').map(|(above, _)| above)
    })
}

/// A stable number from 0 to 99 for a URI.
fn share(uri: &str) -> u64 {
    uri.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)) % 100
}

async fn find_registry(config: &MaintenanceConfig, roots: &[String]) -> anyhow::Result<(Option<Registry>, String)> {
    let actor = Actor::current();
    let open = async |uri: String| -> anyhow::Result<(Option<Registry>, String)> {
        let options = config.storage.options_for(&uri);
        match Registry::open(&uri, &options).await {
            Ok(registry) => {
                let registry = registry.acting_as(actor.clone()).keeping_history(config.grace.record_history);
                Ok((Some(registry.clone()), registry.uri().to_string()))
            }
            Err(e) if e.kind() == squire_registry::Kind::NotFound => {
                Err(Failure::usage(format!("no registry is at {uri}"))
                    .remedy(format!("correct --registry or registry.root, or make one: squire-registry init {uri}"))
                    .caused_by(e)
                    .into())
            }
            Err(e) => {
                Err(Failure::could_not_run(format!("the registry {uri} could not be opened")).caused_by(e).into())
            }
        }
    };
    if let Some(uri) = &config.registry.root {
        return open(uri.clone()).await;
    }
    if roots.is_empty() {
        return Ok((None, String::new()));
    }
    match locate(roots, |uri| config.storage.options_for(uri)).await {
        Ok(Located::Found(uri)) => open(uri).await,
        Ok(Located::Absent { would_be }) => Ok((None, would_be)),
        Err(e) if e.kind() == squire_registry::Kind::Invalid => {
            Err(Failure::usage("the registry of these ROOTs is not clear").caused_by(e).into())
        }
        Err(e) => Err(Failure::could_not_run("the ROOTs, in which the registry is looked for, could not be read")
            .remedy("check their addresses, the network, the credentials and the [storage] options")
            .caused_by(e)
            .into()),
    }
}

/// A ROOT inside a dataset (a branch's tree, say) is refused: the tags and branches that hold its versions lie above it.
async fn refuse_inside(lake: &Lake, root: &str) -> anyhow::Result<()> {
    let inside = discover::enclosing(lake, root).await.map_err(|e| {
        Failure::could_not_run(format!("ROOT {root}: what lies above it could not be read")).caused_by(e)
    })?;
    match inside {
        None => Ok(()),
        Some(dataset) => Err(Failure::usage(format!("ROOT {root} lies inside the dataset {dataset}"))
            .remedy(format!("give {dataset}; its branches are protected and not maintained"))
            .into()),
    }
}
