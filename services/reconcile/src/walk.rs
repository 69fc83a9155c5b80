//! What there is: the registry's snapshot, every dataset under the ROOTs with the class of each of its objects, and what could
//! not be read. Reads only; no handle that can delete is built here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures::stream::{self, StreamExt};
use squire_lake::classes::Ages;
use squire_lake::examine::{Examination, Examined, confirm};
use squire_lake::look::{Look, Looked, look};
use squire_lake::refs::CloneGraph;
use squire_lake::{Lake, contain, discover, uri};
use squire_registry::{Floors, Located, Policy, Registry, Snapshot, locate};
use squire_service::cli::Failure;
use squire_service::config::Loaded;

/// One dataset, or why it is none.
pub(crate) enum Place {
    /// Every object has its class.
    Dataset(Box<Examined>),
    /// Declared, no data yet.
    DeclaredOnly,
    /// Nothing lies there.
    Nothing,
    /// It could not be looked at.
    Failed(squire_lake::Error),
}

/// Everything that a report is made of.
pub(crate) struct Walk {
    /// Where the registry is, or would be.
    pub(crate) registry_uri: String,
    /// The registry, where there is one.
    pub(crate) registry: Option<Registry>,
    /// Its records.
    pub(crate) snapshot: Snapshot,
    /// The canonical ROOTs.
    pub(crate) roots: Vec<String>,
    /// By canonical URI: what is reported.
    pub(crate) places: BTreeMap<String, Place>,
    /// `(place, why)`.
    pub(crate) unreadable: Vec<(String, String)>,
    /// Registered warehouses that are not where they were.
    pub(crate) absent: Vec<String>,
    /// ROOTs given by hand in which there is no dataset.
    pub(crate) empty: Vec<String>,
    /// Who reads whose files.
    pub(crate) graph: CloneGraph,
    /// When.
    pub(crate) at: DateTime<Utc>,
}

/// Walks the ROOTs, or the config's and the active warehouses'.
///
/// # Errors
/// Exit 2 for a ROOT that is no URI or no ROOT at all, 1 for a registry that cannot be read.
pub(crate) async fn walk(
    config: &Loaded<Policy, Floors>,
    given: &[String],
    datasets: &[String],
    orphans: bool,
) -> anyhow::Result<Walk> {
    let settings = &config.config;
    let storage = settings.storage.clone();
    let lake = Lake::new(Arc::new(move |uri: &str| storage.options_for(uri)), settings.limits.memory.as_u64());
    let by_hand = !given.is_empty();
    let mut roots = Vec::new();
    for root in if by_hand { given } else { &settings.estate.roots } {
        roots.push(uri::canonical(root).map_err(|e| Failure::usage(format!("ROOT {root}: {e}")))?);
    }
    let (registry, registry_uri) = registry(config, &roots).await?;
    let snapshot = match &registry {
        Some(registry) => registry
            .snapshot()
            .await
            .map_err(|e| Failure::could_not_run("the registry could not be read").caused_by(e))?,
        None => Snapshot::default(),
    };
    if !by_hand {
        roots.extend(snapshot.warehouses().filter(|w| w.fields.active).map(|w| w.fields.root.clone()));
    }
    roots.sort();
    roots.dedup();
    if roots.is_empty() {
        return Err(Failure::usage("there is nothing to look at: no ROOT was given and the config names none")
            .remedy("give a ROOT, for example `squire-reconcile report ./lake`, or set estate.roots")
            .into());
    }
    let mut walk = Walk {
        registry_uri,
        registry,
        snapshot,
        roots,
        places: BTreeMap::new(),
        unreadable: Vec::new(),
        absent: Vec::new(),
        empty: Vec::new(),
        graph: CloneGraph::default(),
        at: Utc::now(),
    };
    let known = walk.discover(&lake, config, by_hand).await;
    let looks = walk.look(&lake, known, settings.limits.concurrency).await;
    let wanted = |uri: &str| datasets.is_empty() || datasets.iter().any(|d| walk.names(d, uri));
    let chosen: Vec<_> = looks.into_iter().filter(|(uri, _)| wanted(uri)).collect();
    walk.places = walk.examine(&lake, config, chosen, orphans).await;
    Ok(walk)
}

async fn registry(config: &Loaded<Policy, Floors>, roots: &[String]) -> anyhow::Result<(Option<Registry>, String)> {
    let settings = &config.config;
    let found = match &settings.registry.root {
        Some(uri) => uri.clone(),
        None => match locate(roots, |uri| settings.storage.options_for(uri)).await {
            Ok(Located::Found(uri)) => uri,
            Ok(Located::Absent { would_be }) => return Ok((None, would_be)),
            Err(e) => return Err(Failure::usage("the registry of these ROOTs is not clear").caused_by(e).into()),
        },
    };
    match Registry::open(&found, &settings.storage.options_for(&found)).await {
        Ok(registry) => Ok((Some(registry.clone()), registry.uri().to_string())),
        Err(e) => Err(Failure::could_not_run(format!("the registry {found} could not be opened")).caused_by(e).into()),
    }
}

impl Walk {
    /// Every dataset of the estate: under the ROOTs, in hidden folders and other warehouses (for the clone graph), and tables.
    async fn discover(&mut self, lake: &Lake, config: &Loaded<Policy, Floors>, by_hand: bool) -> BTreeSet<String> {
        let mut known = BTreeSet::new();
        let warehouses = self.snapshot.warehouses().map(|w| w.fields.root.clone());
        let above = self.registry_uri.strip_suffix(&format!("/{}", discover::RESERVED)).map(String::from);
        let wider: BTreeSet<String> = warehouses.chain(above).filter(|w| !self.roots.contains(w)).collect();
        for root in self.roots.clone().iter().chain(&wider) {
            let found = discover::discover(lake, root).await;
            if by_hand && self.roots.contains(root) && found.datasets.is_empty() && found.unreadable.is_empty() {
                self.empty.push(root.clone());
            }
            known.extend(found.datasets);
            known.extend(found.hidden);
            self.unreadable.extend(found.unreadable);
        }
        known.extend(self.snapshot.tables().map(|t| t.fields.uri.clone()));
        self.find_absent(config, &known).await;
        known
    }

    /// A registered warehouse in which nothing is found, its marker neither, is away and not empty: what lies there may read
    /// from anything, so nothing is an orphan.
    async fn find_absent(&mut self, config: &Loaded<Policy, Floors>, known: &BTreeSet<String>) {
        let roots: BTreeSet<String> = self.snapshot.warehouses().map(|w| w.fields.root.clone()).collect();
        for root in roots {
            if known.iter().any(|d| uri::within(d, &root)) {
                continue;
            }
            match squire_registry::read_marker(&root, &config.config.storage.options_for(&root)).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.absent.push(root.clone());
                    self.unreadable.push((root, "the warehouse is registered and its marker is not there".into()));
                }
                Err(e) => self.unreadable.push((root, e.to_string())),
            }
        }
    }

    /// Looks at all of them and builds the clone graph; what lies in a dataset is looked at too, for what it reads.
    async fn look(
        &mut self,
        lake: &Lake,
        known: BTreeSet<String>,
        concurrency: usize,
    ) -> Vec<(String, squire_lake::Result<Looked>)> {
        let now = self.at;
        for (place, why) in &self.unreadable {
            self.graph.add_unread(format!("{place} ({why})"));
        }
        let mut seen = known.clone();
        let (mut rest, mut out) = (known, Vec::new());
        while !rest.is_empty() {
            let batch: Vec<_> = stream::iter(std::mem::take(&mut rest))
                .map(|uri| async move {
                    let looked = contain::contained(lake, "looking at the dataset", &uri, look(lake, &uri, now)).await;
                    (uri, looked)
                })
                .buffer_unordered(concurrency.max(1))
                .collect()
                .await;
            for (uri, looked) in batch {
                match &looked {
                    Ok(Looked::Dataset(look)) => {
                        self.graph.add(&uri, look.reads.clone());
                        rest.extend(nested(look).into_iter().filter(|n| seen.insert(n.clone())));
                    }
                    Ok(_) => {}
                    Err(_) => self.graph.add_unread(uri.clone()),
                }
                out.push((uri, looked));
            }
        }
        // Datasets of the wider estate are looked at for what they read, and reported only where a ROOT or a table holds them.
        let tables: BTreeSet<&str> = self.snapshot.tables().map(|t| t.fields.uri.as_str()).collect();
        out.retain(|(uri, _)| self.roots.iter().any(|root| uri::within(uri, root)) || tables.contains(uri.as_str()));
        out
    }

    async fn examine(
        &self,
        lake: &Lake,
        config: &Loaded<Policy, Floors>,
        looks: Vec<(String, squire_lake::Result<Looked>)>,
        orphans: bool,
    ) -> BTreeMap<String, Place> {
        let settings = &config.config;
        stream::iter(looks)
            .map(|(uri, looked)| async move {
                let first = match looked {
                    Ok(Looked::Dataset(look)) => *look,
                    Ok(Looked::DeclaredOnly) => return (uri, Place::DeclaredOnly),
                    Ok(Looked::Nothing) => return (uri, Place::Nothing),
                    Err(e) => return (uri, Place::Failed(e)),
                };
                let keep = self.graph.keep_set(&uri);
                let governed = self.snapshot.govern(&uri, &settings.policy, &settings.floors, &first.config(), self.at);
                let ages =
                    Ages { now: self.at, longest_write: governed.policy.policy.longest_write.unwrap_or_default() };
                if !orphans {
                    let classes = squire_lake::classes::classes(&first, &keep, &ages);
                    return (uri, Place::Dataset(Box::new(Examined { look: first, classes, looks: 1 })));
                }
                let work = confirm(lake, first, &keep, &ages);
                let place = match contain::contained(lake, "looking a second time", &uri, work).await {
                    Ok(Examination::Dataset(examined)) => Place::Dataset(examined),
                    Ok(Examination::DeclaredOnly) => Place::DeclaredOnly,
                    Ok(Examination::Nothing) => Place::Nothing,
                    Err(e) => Place::Failed(e),
                };
                (uri, place)
            })
            .buffer_unordered(settings.limits.concurrency.max(1))
            .collect()
            .await
    }

    /// Whether `--dataset` names it: by URI, SUBJECT or displayed name.
    fn names(&self, wanted: &str, dataset: &str) -> bool {
        let table = self.snapshot.table_at(dataset).map(|t| t.fields.subject());
        wanted == dataset
            || wanted == uri::display(dataset, &self.roots)
            || uri::canonical(wanted).is_ok_and(|w| w == dataset)
            || wanted.parse::<squire_registry::Subject>().is_ok_and(|s| {
                table.as_ref() == Some(&s) || s == squire_registry::Subject::Dataset(dataset.to_string())
            })
    }
}

/// The canonical URIs of datasets that lie inside this one.
fn nested(look: &Look) -> Vec<String> {
    look.nested.iter().map(|rel| rel.split('/').fold(look.uri.clone(), |at, s| uri::join(&at, s))).collect()
}
