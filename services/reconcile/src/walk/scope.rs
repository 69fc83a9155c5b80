//! What a walk is about: the registry, the ROOTs, the datasets in them and what lies beside those.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use squire_lake::discover::{QUARANTINE, Weight};
use squire_lake::look::Look;
use squire_lake::{Lake, discover, uri};
use squire_registry::{Floors, Governance, Located, Policy, Registry, RunRecord, Snapshot, Subject, Vanished, locate};
use squire_service::cli::Failure;
use squire_service::config::{Config, Loaded};
use uuid::Uuid;

use crate::namespaces::Catalogue;

/// Registry, ROOTs, and what lies beside the datasets.
pub(crate) struct Scope {
    /// The configuration.
    pub(crate) config: Config<Policy, Floors>,
    /// Opens datasets, and counts nothing by itself.
    pub(crate) lake: Lake,
    /// Where the registry is, or would be.
    pub(crate) registry_uri: String,
    /// The registry, where there is one.
    pub(crate) registry: Option<Registry>,
    /// Its records.
    pub(crate) snapshot: Snapshot,
    /// The canonical ROOTs.
    pub(crate) roots: Vec<String>,
    /// Whether they were given by hand.
    pub(crate) by_hand: bool,
    /// `(place, why)`.
    pub(crate) unreadable: Vec<(String, String)>,
    /// Registered warehouses that are not where they were.
    pub(crate) absent: Vec<String>,
    /// ROOTs given by hand in which there is no dataset.
    pub(crate) empty: Vec<String>,
    /// Datasets whose folder no walk listed: they were known, and what lies below one that is none any more was not looked for.
    pub(crate) assumed: BTreeSet<String>,
    /// Folders in which reclaims keep what they moved away.
    pub(crate) quarantines: BTreeSet<String>,
    /// By place: what lies under the ROOTs and in no dataset.
    pub(crate) outside: BTreeMap<String, Outside>,
    /// Protections, blocks and trash records that the last run saw and that are gone without a trace.
    pub(crate) vanished: Vec<(Vanished, Uuid)>,
    /// What the namespaces name; only of a report.
    pub(crate) catalogues: Vec<Catalogue>,
    /// When.
    pub(crate) at: DateTime<Utc>,
}

/// Objects that lie under a ROOT and in no dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outside {
    /// What they are, by the names of FACES.
    pub(crate) class: &'static str,
    /// How many, and their bytes.
    pub(crate) weight: Weight,
}

/// A lake with the options of the configuration.
pub(crate) fn lake(config: &Config<Policy, Floors>) -> Lake {
    let storage = config.storage.clone();
    Lake::new(Arc::new(move |uri: &str| storage.options_for(uri)), config.limits.memory.as_u64())
}

/// Opens the registry and resolves the ROOTs: those that are given, or the config's and the active warehouses'.
///
/// # Errors
/// Exit 2 for a ROOT that is no URI or no ROOT at all, 1 for a registry that cannot be read.
pub(crate) async fn open(config: &Loaded<Policy, Floors>, given: &[String]) -> anyhow::Result<Scope> {
    let roots = canonical(if given.is_empty() { &config.config.estate.roots } else { given })?;
    let (registry, registry_uri) = registry(config, &roots).await?;
    scope(config, lake(&config.config), registry, registry_uri, given).await
}

/// The same, with a registry that is open already.
///
/// # Errors
/// As [`open`].
pub(crate) async fn scope(
    config: &Loaded<Policy, Floors>,
    lake: Lake,
    registry: Option<Registry>,
    registry_uri: String,
    given: &[String],
) -> anyhow::Result<Scope> {
    let mut roots = canonical(if given.is_empty() { &config.config.estate.roots } else { given })?;
    let snapshot = match &registry {
        Some(registry) => registry
            .snapshot()
            .await
            .map_err(|e| Failure::could_not_run("the registry could not be read").caused_by(e))?,
        None => Snapshot::default(),
    };
    lake.backed_by(&snapshot);
    if given.is_empty() {
        roots.extend(snapshot.warehouses().filter(|w| w.fields.active).map(|w| w.fields.root.clone()));
    }
    roots.sort();
    roots.dedup();
    if roots.is_empty() {
        return Err(Failure::usage("there is nothing to look at: no ROOT was given and the config names none")
            .remedy("give a ROOT, for example `squire-reconcile report ./lake`, or set estate.roots")
            .into());
    }
    let mut unreadable = Vec::new();
    let vanished = match &registry {
        None => Vec::new(),
        Some(registry) => match registry.last_run().await {
            Ok(last) => vanished(last.as_ref(), &snapshot),
            Err(e) => {
                unreadable.push((format!("{}: the last run's record", registry.uri()), e.to_string()));
                Vec::new()
            }
        },
    };
    Ok(Scope {
        config: config.config.clone(),
        lake,
        registry_uri,
        registry,
        snapshot,
        roots,
        by_hand: !given.is_empty(),
        unreadable,
        absent: Vec::new(),
        empty: Vec::new(),
        assumed: BTreeSet::new(),
        quarantines: BTreeSet::new(),
        outside: BTreeMap::new(),
        vanished,
        catalogues: Vec::new(),
        at: Utc::now(),
    })
}

fn vanished(last: Option<&RunRecord>, snapshot: &Snapshot) -> Vec<(Vanished, Uuid)> {
    let Some(last) = last else { return Vec::new() };
    squire_registry::protections_vanished(last, snapshot).into_iter().map(|v| (v, last.run)).collect()
}

fn canonical(roots: &[String]) -> anyhow::Result<Vec<String>> {
    let one = |root: &String| uri::canonical(root).map_err(|e| Failure::usage(format!("ROOT {root}: {e}")).into());
    roots.iter().map(one).collect()
}

/// Why the nearest registry was not found: two of them or none named is usage; a store that does not answer is not.
pub(crate) fn not_located(e: squire_registry::Error) -> anyhow::Error {
    let failure = match e.kind() {
        squire_registry::Kind::Invalid => Failure::usage("the registry of these ROOTs is not clear"),
        _ => Failure::could_not_run("the ROOTs, in which the registry is looked for, could not be read")
            .remedy("check their addresses, the network, the credentials and the [storage] options"),
    };
    failure.caused_by(e).into()
}

pub(crate) async fn registry(
    config: &Loaded<Policy, Floors>,
    roots: &[String],
) -> anyhow::Result<(Option<Registry>, String)> {
    let settings = &config.config;
    let found = match &settings.registry.root {
        Some(uri) => uri.clone(),
        None => match locate(roots, |uri| settings.storage.options_for(uri)).await {
            Ok(Located::Found(uri)) => uri,
            Ok(Located::Absent { would_be }) => return Ok((None, would_be)),
            Err(e) => return Err(not_located(e)),
        },
    };
    match Registry::open(&found, &settings.storage.options_for(&found)).await {
        Ok(registry) => Ok((Some(registry.clone()), registry.uri().to_string())),
        Err(e) => Err(Failure::could_not_run(format!("the registry {found} could not be opened")).caused_by(e).into()),
    }
}

impl Scope {
    /// Every dataset of the estate: under the ROOTs, in hidden folders and other warehouses (for the clone graph), and tables. What
    /// is `looked_at` is known to have been a dataset; it costs no request where its folder lists it.
    pub(crate) async fn discover(&mut self, looked_at: &BTreeSet<String>) -> BTreeSet<String> {
        let mut known = BTreeSet::new();
        let warehouses = self.snapshot.warehouses().map(|w| w.fields.root.clone());
        let above = self.registry_uri.strip_suffix(&format!("/{}", discover::RESERVED)).map(String::from);
        let wider: BTreeSet<String> = warehouses.chain(above).filter(|w| !self.roots.contains(w)).collect();
        for root in self.roots.clone().iter().chain(&wider) {
            let found = discover::discover_knowing(&self.lake, root, looked_at).await;
            if self.roots.contains(root) {
                if self.by_hand && found.datasets.is_empty() && found.unreadable.is_empty() {
                    self.empty.push(root.clone());
                }
                self.beside(&found).await;
            }
            self.quarantines.extend(found.quarantines().cloned());
            self.assumed.extend(found.datasets.intersection(looked_at).cloned());
            known.extend(found.datasets);
            known.extend(found.hidden);
            self.unreadable.extend(found.unreadable);
        }
        known.extend(self.snapshot.tables().map(|t| t.fields.uri.clone()));
        known.extend(self.snapshot.trash().map(|t| t.fields.uri.clone()));
        self.find_absent(&known).await;
        known
    }

    /// Counts what lies under a ROOT and in no dataset.
    async fn beside(&mut self, found: &discover::Found) {
        for (dir, weight) in &found.loose {
            self.outside.insert(dir.clone(), Outside { class: "foreign", weight: *weight });
        }
        for dir in &found.reserved {
            let quarantine = dir.rsplit('/').next() == Some(QUARANTINE);
            match discover::weigh(&self.lake, dir).await {
                Ok(weight) => {
                    let class = if quarantine { "quarantine" } else { "foreign" };
                    self.outside.insert(dir.clone(), Outside { class, weight });
                }
                Err(e) => self.unreadable.push((dir.clone(), e.to_string())),
            }
        }
    }

    /// A registered warehouse in which nothing is found, its marker neither, is away and not empty: what lies there may read
    /// from anything, so nothing is an orphan.
    async fn find_absent(&mut self, known: &BTreeSet<String>) {
        let roots: BTreeSet<String> = self.snapshot.warehouses().map(|w| w.fields.root.clone()).collect();
        for root in roots {
            if known.iter().any(|d| uri::within(d, &root)) {
                continue;
            }
            match squire_registry::read_marker(&root, &self.config.storage.options_for(&root)).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.absent.push(root.clone());
                    self.unreadable.push((root, "the warehouse is registered and its marker is not there".into()));
                }
                Err(e) => self.unreadable.push((root, e.to_string())),
            }
        }
    }

    /// What governs a dataset.
    pub(crate) fn govern(&self, uri: &str, look: &Look) -> Governance {
        self.snapshot.govern(uri, &self.config.policy, &self.config.floors, &look.config(), self.at)
    }

    /// Whether a ROOT of this report holds it.
    pub(crate) fn is_under_a_root(&self, place: &str) -> bool {
        self.roots.iter().any(|root| uri::within(place, root))
    }

    /// Which of the datasets that are found are reported: those under a ROOT and registered tables, of these only `datasets`
    /// where any are named.
    pub(crate) fn wanted<'a>(&'a self, datasets: &'a [String]) -> Wanted<'a> {
        let tables = self.snapshot.tables().map(|t| t.fields.uri.as_str());
        let tables = tables.chain(self.snapshot.trash().map(|t| t.fields.uri.as_str())).collect();
        Wanted { scope: self, tables, datasets }
    }

    /// Whether `--dataset` names it: by URI, SUBJECT or displayed name.
    fn names(&self, wanted: &str, dataset: &str) -> bool {
        let table = self.snapshot.table_at(dataset).map(|t| t.fields.subject());
        wanted == dataset
            || wanted == uri::display(dataset, &self.roots)
            || uri::canonical(wanted).is_ok_and(|w| w == dataset)
            || wanted
                .parse::<Subject>()
                .is_ok_and(|s| table.as_ref() == Some(&s) || s == Subject::Dataset(dataset.to_string()))
    }
}

/// Which of the datasets that are found are reported.
pub(crate) struct Wanted<'a> {
    scope: &'a Scope,
    tables: BTreeSet<&'a str>,
    datasets: &'a [String],
}

impl Wanted<'_> {
    /// Whether this one is.
    pub(crate) fn holds(&self, dataset: &str) -> bool {
        (self.scope.is_under_a_root(dataset) || self.tables.contains(dataset))
            && (self.datasets.is_empty() || self.datasets.iter().any(|d| self.scope.names(d, dataset)))
    }
}
