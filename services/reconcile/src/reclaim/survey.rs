//! What a reclaim rests on: a fresh walk over the whole estate, reduced to what is needed of each dataset.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use squire_lake::authority::Authority;
use squire_lake::classes::{Class, Classed, Classes};
use squire_lake::examine::Examined;
use squire_lake::look::Look;
use squire_lake::refs::{CloneGraph, KeepSet};
use squire_lake::uri;
use squire_registry::{Actor, Governance, Located, Registry, Snapshot, locate, markers_above, registry_lost};
use squire_service::cli::Failure;

use super::ReconcileConfig;
use crate::namespaces::Catalogue;
use crate::walk::{self, Place, Scope, Visit};

/// The whole estate, as one walk found it.
pub(crate) struct Survey {
    /// The registry, where there is one.
    pub(crate) registry: Option<Registry>,
    /// Where it is, or would be.
    pub(crate) registry_uri: String,
    /// Its records.
    pub(crate) snapshot: Snapshot,
    /// The canonical ROOTs.
    pub(crate) roots: Vec<String>,
    /// Who reads whose files.
    pub(crate) graph: CloneGraph,
    /// `(place, why)`.
    pub(crate) unreadable: Vec<(String, String)>,
    /// ROOTs given by hand in which there is no dataset.
    pub(crate) empty: Vec<String>,
    /// What the namespaces name.
    pub(crate) catalogues: Vec<Catalogue>,
    /// By canonical URI.
    pub(crate) rows: BTreeMap<String, Row>,
    /// When.
    pub(crate) at: DateTime<Utc>,
}

/// One dataset, or why it is none.
pub(crate) enum Row {
    /// It was looked at.
    Dataset(Box<Facts>),
    /// Declared, no data yet.
    DeclaredOnly,
    /// Nothing lies there.
    Nothing,
    /// It could not be looked at.
    Failed(squire_lake::Error),
}

/// What a reclaim needs to know of a dataset.
pub(crate) struct Facts {
    /// HEAD's version.
    pub(crate) version: u64,
    /// Who owns it.
    pub(crate) authority: Authority,
    /// Its own config.
    pub(crate) config: BTreeMap<String, String>,
    /// A `.lance-deregistered` marker lies in it.
    pub(crate) deregistered: bool,
    /// Datasets lie in it.
    pub(crate) nested: bool,
    /// HEAD's manifest, relative to it.
    pub(crate) head: String,
    /// Objects that somebody names, and control files.
    pub(crate) live: u64,
    /// What may go: orphans; of a trashed dataset everything that is its own.
    pub(crate) objects: Vec<Classed>,
    /// Objects of a trashed dataset that are not known to be its own.
    pub(crate) strangers: u64,
    /// The object that was written last, and when.
    pub(crate) newest: Option<(String, DateTime<Utc>)>,
    /// Files that HEAD needs and that are not as recorded.
    pub(crate) unhealthy: Option<String>,
    /// The first manifest that cannot be read.
    pub(crate) unreadable: Option<String>,
    /// Why nothing can be called an orphan.
    pub(crate) incomplete: Vec<String>,
    /// The look, for what was moved and is named by now; only where something is missing.
    pub(crate) look: Option<Look>,
}

/// Makes [`Facts`] of a dataset.
struct Reclaimable;

impl Visit for Reclaimable {
    type Row = Box<Facts>;

    const NAMESPACES: bool = true;

    fn row(&self, scope: &Scope, examined: &Examined, _keep: &KeepSet) -> Box<Facts> {
        let trashed = scope.snapshot.trash_at(&examined.look.uri).next().is_some();
        Box::new(facts(&examined.look, &examined.classes, trashed))
    }

    fn incomplete(&self, row: &mut Box<Facts>, why: &[String]) {
        row.incomplete = why.to_vec();
    }
}

/// Walks the ROOTs and the rest of the estate. Reads only.
///
/// # Errors
/// As [`walk::walk`].
pub(crate) async fn survey(config: &ReconcileConfig, roots: &[String]) -> anyhow::Result<Survey> {
    let walk = walk::walk(config, roots, &[], true, &Reclaimable).await?;
    let rows = walk.places.into_iter().map(|(uri, place)| {
        let row = match place {
            Place::Dataset(facts) => Row::Dataset(facts),
            Place::DeclaredOnly => Row::DeclaredOnly,
            Place::Nothing => Row::Nothing,
            Place::Failed(e) => Row::Failed(e),
        };
        (uri, row)
    });
    let rows = rows.collect();
    let history = config.config.grace.record_history;
    let scope = walk.scope;
    Ok(Survey {
        registry: scope.registry.map(|r| r.acting_as(Actor::current()).keeping_history(history)),
        registry_uri: scope.registry_uri,
        snapshot: scope.snapshot,
        roots: scope.roots,
        graph: walk.graph,
        unreadable: scope.unreadable,
        empty: scope.empty,
        catalogues: scope.catalogues,
        rows,
        at: scope.at,
    })
}

/// The registry alone, without a walk: for verbs that know by themselves where to look.
///
/// # Errors
/// Exit 2 where it is not clear which registry is meant, 1 for one that cannot be read.
pub(crate) async fn bare(config: &ReconcileConfig) -> anyhow::Result<Survey> {
    let settings = &config.config;
    let here = [".".to_string()];
    let roots = if settings.estate.roots.is_empty() { &here[..] } else { &settings.estate.roots[..] };
    let roots: Vec<String> = roots.iter().filter_map(|root| uri::canonical(root).ok()).collect();
    let at = match &settings.registry.root {
        Some(uri) => uri.clone(),
        None => match locate(&roots, |uri| settings.storage.options_for(uri)).await {
            Ok(Located::Found(uri)) => uri,
            Ok(Located::Absent { .. }) => {
                return Err(Failure::could_not_run(
                    "no registry is named or found, so it is not known what was reclaimed",
                )
                .remedy("name it with --registry")
                .into());
            }
            Err(e) => return Err(walk::not_located(e)),
        },
    };
    let failed = |e| Failure::could_not_run(format!("the registry {at} could not be read")).caused_by(e);
    let registry = Registry::open(&at, &settings.storage.options_for(&at)).await.map_err(failed)?;
    let registry = registry.acting_as(Actor::current()).keeping_history(settings.grace.record_history);
    let snapshot = registry.snapshot().await.map_err(failed)?;
    Ok(Survey {
        registry_uri: registry.uri().to_string(),
        registry: Some(registry),
        snapshot,
        roots: Vec::new(),
        graph: CloneGraph::default(),
        unreadable: Vec::new(),
        empty: Vec::new(),
        catalogues: Vec::new(),
        rows: BTreeMap::new(),
        at: Utc::now(),
    })
}

fn facts(look: &Look, classes: &Classes, trashed: bool) -> Facts {
    let own = |class: Class| matches!(class, Class::Live | Class::History | Class::Orphan | Class::Young);
    let goes = |class: Class| if trashed { own(class) } else { class == Class::Orphan };
    let named = |class: Class| matches!(class, Class::Live | Class::History);
    let strangers = if trashed { classes.objects.iter().filter(|o| !own(o.class)).count() as u64 } else { 0 };
    let unhealthy = classes.missing.iter().find(|m| m.by_head).map(|m| m.path.clone());
    Facts {
        version: look.version(),
        authority: look.authority.clone(),
        config: look.config(),
        deregistered: look.deregistered,
        nested: !look.nested.is_empty(),
        head: look.versions().last().map(|(_, m)| m.path.clone()).unwrap_or_default(),
        live: classes.objects.iter().filter(|o| named(o.class)).count() as u64,
        strangers,
        newest: newest(look),
        unhealthy,
        unreadable: look.unreadable.first().map(|(path, _)| path.clone()),
        look: (!classes.missing.is_empty()).then(|| look.clone()),
        objects: classes.objects.iter().filter(|o| goes(o.class)).cloned().collect(),
        incomplete: classes.incomplete.clone(),
    }
}

/// The object written last: by the store's clock, and, since a copied table may keep old times, by what manifests say of themselves.
fn newest(look: &Look) -> Option<(String, DateTime<Utc>)> {
    let objects = look.listing.entries.iter().map(|e| (&e.path, e.modified));
    let commits = look.manifests.iter().map(|m| (&m.path, m.timestamp));
    objects.chain(commits).max_by_key(|(_, at)| *at).map(|(path, at)| (path.clone(), at))
}

impl Survey {
    /// What governs a dataset.
    pub(crate) fn govern(&self, config: &ReconcileConfig, snapshot: &Snapshot, uri: &str) -> Governance {
        let settings = &config.config;
        let (own, deregistered) = match self.rows.get(uri) {
            Some(Row::Dataset(facts)) => (facts.config.clone(), facts.deregistered),
            _ => (BTreeMap::new(), false),
        };
        let mut out = snapshot.govern(uri, &settings.policy, &settings.floors, &own, Utc::now());
        out.deregistered = deregistered;
        out.exclusive &= settings.estate.exclusive;
        out
    }

    /// Live things seen, over everything.
    pub(crate) fn live(&self) -> u64 {
        let of = |row: &Row| if let Row::Dataset(facts) = row { facts.live } else { 0 };
        self.rows.values().map(of).sum()
    }

    /// The dataset that an object's URI lies in: the outermost, or one that is in the trash.
    pub(crate) fn dataset_of(&self, object: &str) -> Option<String> {
        let holds = |at: &&str| self.rows.contains_key(*at) || self.snapshot.trash_at(at).next().is_some();
        above(object).filter(holds).last().map(String::from)
    }

    /// The dataset that this one lies in, if any.
    pub(crate) fn around<'a>(&self, dataset: &'a str) -> Option<&'a str> {
        above(dataset).find(|at| self.rows.contains_key(*at))
    }
}

/// The URIs above a URI, nearest first.
fn above(uri: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(uri.rsplit_once('/').map(|(at, _)| at), |at| at.rsplit_once('/').map(|(at, _)| at))
}

/// A marker at or above a place names another estate than this registry, or cannot be read.
pub(crate) async fn lost(config: &ReconcileConfig, registry: Option<&Registry>, uri: &str) -> Option<String> {
    let options = config.config.storage.options_for(uri);
    match markers_above(uri, &options).await {
        Ok(markers) => registry_lost(&markers, registry.map(Registry::id)).map(|lost| {
            let ours = lost.ours.map_or("there is no registry".to_string(), |id| format!("this registry is {id}"));
            format!("{} belongs to estate {}, and {ours}", lost.root, lost.marked)
        }),
        Err(e) => Some(format!("the root's marker could not be read: {e}")),
    }
}

/// Another registry than the one in use is the nearest to a place, or whether one is cannot be read: the one in use may be a copy that
/// knows nothing of what protects these files by now.
pub(crate) async fn nearer(config: &ReconcileConfig, registry_uri: &str, uri: &str) -> Option<String> {
    match locate(&[uri.to_string()], |uri| config.config.storage.options_for(uri)).await {
        Ok(Located::Found(found)) => Some(found).filter(|found| found != registry_uri),
        Ok(Located::Absent { .. }) => None,
        Err(e) => Some(format!("one that could not be read ({e})")),
    }
}

/// The identity of a bucket: scheme and name, with the endpoint where one is set. Local disks are one.
pub(crate) fn bucket_of(config: &ReconcileConfig, uri: &str) -> String {
    let Some((scheme, rest)) = uri.split_once("://").filter(|(scheme, _)| *scheme != "file") else {
        return "file://".into();
    };
    let options = config.config.storage.options_for(uri);
    let named = |key: &&str| options.iter().find(|(k, _)| k.eq_ignore_ascii_case(key)).map(|(_, v)| v.clone());
    let endpoint = ["aws_endpoint", "aws_endpoint_url", "endpoint", "azure_storage_endpoint"].iter().find_map(named);
    let bucket = format!("{scheme}://{}", rest.split('/').next().unwrap_or_default());
    match endpoint {
        Some(endpoint) => format!("{bucket} at {}", endpoint.trim_end_matches('/')),
        None => bucket,
    }
}

/// The root below which a dataset's quarantine lies: its nearest warehouse, else the nearest of the config's roots and the place that
/// the registry lies in, else the folder it stands in. Never the dataset itself, unless it fills its bucket.
pub(crate) fn root_of(config: &ReconcileConfig, snapshot: &Snapshot, registry_uri: &str, dataset: &str) -> String {
    let above = |root: &String| root != dataset && uri::within(dataset, root);
    let nearest = |roots: Vec<String>| roots.into_iter().filter(|r| above(r)).max_by_key(String::len);
    let warehouses = snapshot.warehouses().map(|w| w.fields.root.clone()).collect();
    let mut others: Vec<String> =
        config.config.estate.roots.iter().filter_map(|root| uri::canonical(root).ok()).collect();
    others.extend(registry_uri.strip_suffix(&format!("/{}", squire_lake::discover::RESERVED)).map(String::from));
    nearest(warehouses).or_else(|| nearest(others)).unwrap_or_else(|| {
        let folder = dataset.rsplit_once('/').map(|(folder, _)| folder);
        folder.filter(|f| !f.ends_with('/') && f.contains("://")).unwrap_or(dataset).to_string()
    })
}
