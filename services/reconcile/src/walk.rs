//! What there is: the registry's snapshot, every dataset under the ROOTs with the class of each of its objects, what lies beside
//! them, and what could not be read. Reads only; no handle that can delete is built here.
//!
//! A dataset's look and listing live only while it is looked at: what is kept of it is what [`Visit::row`] makes of it. Who reads
//! whose files is known when all of them were looked at once; then those are looked at again whose row depends on it.

mod clones;
mod scope;

use std::collections::{BTreeMap, BTreeSet};

use futures::stream::{self, StreamExt};
use squire_lake::classes::{Ages, Class, Classes, classes};
use squire_lake::examine::{Examined, agreed};
use squire_lake::look::{Looked, glance, look};
use squire_lake::refs::{CloneGraph, KeepSet, Reads};
use squire_lake::{contain, discover, quarantine};
use squire_registry::{Floors, Policy};
use squire_service::config::Loaded;
use squire_service::report::Finding;

use crate::{contracts, namespaces, stranded};

pub(crate) use scope::{Outside, Scope, lake, not_located, open, registry, scope};

/// One dataset, or why it is none.
pub(crate) enum Place<T> {
    /// Every object has its class.
    Dataset(T),
    /// Declared, no data yet.
    DeclaredOnly,
    /// Nothing lies there.
    Nothing,
    /// It could not be looked at.
    Failed(squire_lake::Error),
}

/// What is kept of a dataset.
pub(crate) trait Visit: Sync {
    /// It.
    type Row: Send;

    /// Makes it. Called with an empty keep-set first, and again with the true one where the row depends on it.
    fn row(&self, scope: &Scope, examined: &Examined, keep: &KeepSet) -> Self::Row;

    /// Whether datasets are held against their contracts, which may read a column, and against the records of runs.
    const CONTRACTS: bool = false;

    /// Whether namespaces are held against the registry.
    const NAMESPACES: bool = false;

    /// Whether it is told what clones lack of the files that they read of others.
    const CLONES: bool = false;

    /// Takes what these found.
    fn add(&self, _row: &mut Self::Row, _more: Vec<Finding>) {}

    /// The keep-set turned out to be incomplete: nothing is an orphan, and nothing may go.
    fn incomplete(&self, row: &mut Self::Row, why: &[String]);
}

/// Everything that a report is made of.
pub(crate) struct Walk<T> {
    /// Registry, ROOTs, and what lies beside the datasets.
    pub(crate) scope: Scope,
    /// By canonical URI: what is reported.
    pub(crate) places: BTreeMap<String, Place<T>>,
    /// Who reads whose files.
    pub(crate) graph: CloneGraph,
    /// Datasets that were not looked at: nothing is known to have moved there, and they are not due.
    pub(crate) left: BTreeSet<String>,
}

/// What is looked at, of what was discovered.
#[derive(Default)]
pub(crate) struct Due<'a> {
    /// Only these, as `--dataset` names them; all where empty.
    pub(crate) datasets: &'a [String],
    /// Whether orphans are looked for.
    pub(crate) orphans: bool,
    /// By URI, datasets that are not looked at, and what each reads of others.
    pub(crate) edges: BTreeMap<String, Reads>,
}

impl<'a> Due<'a> {
    /// Everything, or everything that is named.
    pub(crate) fn all(datasets: &'a [String], orphans: bool) -> Self {
        Self { datasets, orphans, edges: BTreeMap::new() }
    }
}

/// A row made before the clone graph was whole, and what the second look is compared with.
struct Draft<T> {
    row: T,
    /// Only the orphans of the first look, and what it missed.
    first: Classes,
}

enum Seen<T> {
    Dataset { reads: Reads, nested: Vec<String>, draft: Option<Box<Draft<T>>> },
    Place(Place<T>),
}

/// Walks the ROOTs, or the config's and the active warehouses'.
///
/// # Errors
/// Exit 2 for a ROOT that is no URI or no ROOT at all, 1 for a registry that cannot be read.
pub(crate) async fn walk<V: Visit>(
    config: &Loaded<Policy, Floors>,
    given: &[String],
    datasets: &[String],
    orphans: bool,
    visit: &V,
) -> anyhow::Result<Walk<V::Row>> {
    let mut scope = open(config, given).await?;
    let known = scope.discover(&BTreeSet::new()).await;
    Ok(look_at(scope, known, Due::all(datasets, orphans), visit).await)
}

/// Looks at what was discovered.
pub(crate) async fn look_at<V: Visit>(scope: Scope, known: BTreeSet<String>, due: Due<'_>, visit: &V) -> Walk<V::Row> {
    let mut walk = Walk { scope, places: BTreeMap::new(), graph: CloneGraph::default(), left: BTreeSet::new() };
    let orphans = due.orphans;
    if V::NAMESPACES {
        walk.scope.catalogues = namespaces::read(&walk.scope, &known).await;
    }
    let drafts = walk.first_looks(known, due, visit).await;
    walk.second_looks(drafts, orphans, visit).await;
    if V::CLONES {
        walk.clones(visit).await;
    }
    walk.weigh().await;
    walk
}

impl<T: Send> Walk<T> {
    /// Looks at all of them and builds the clone graph; what lies in a dataset is looked at too, for what it reads.
    async fn first_looks<V: Visit<Row = T>>(
        &mut self,
        known: BTreeSet<String>,
        due: Due<'_>,
        visit: &V,
    ) -> BTreeMap<String, Draft<T>> {
        for (place, why) in &self.scope.unreadable {
            self.graph.add_unread(format!("{place} ({why})"));
        }
        let (scope, orphans) = (&self.scope, due.orphans);
        let wanted = scope.wanted(due.datasets);
        let mut seen = known.clone();
        let (mut rest, mut drafts) = (known, BTreeMap::new());
        for (uri, reads) in due.edges {
            rest.remove(&uri);
            self.graph.add(&uri, reads);
            self.left.insert(uri);
        }
        while !rest.is_empty() {
            let batch: Vec<(String, Seen<T>)> = stream::iter(std::mem::take(&mut rest))
                .map(|uri| {
                    let reported = wanted.holds(&uri);
                    async move { (uri.clone(), first(scope, uri, reported, orphans, visit).await) }
                })
                .buffer_unordered(scope.config.limits.concurrency.max(1))
                .collect()
                .await;
            for (uri, found) in batch {
                match found {
                    Seen::Dataset { reads, nested, draft } => {
                        self.graph.add(&uri, reads);
                        rest.extend(nested.into_iter().filter(|n| seen.insert(n.clone())));
                        drafts.extend(draft.map(|draft| (uri, *draft)));
                    }
                    Seen::Place(place) => {
                        match place {
                            Place::Failed(_) => self.graph.add_unread(uri.clone()),
                            _ if scope.assumed.contains(&uri) => {
                                self.graph.add_unread(format!("what lies below {uri}, which is no dataset any more,"));
                            }
                            _ => {}
                        }
                        // Datasets of the wider estate are looked at for what they read, and reported only where a ROOT or
                        // a table holds them.
                        if wanted.holds(&uri) {
                            self.places.insert(uri, place);
                        }
                    }
                }
            }
        }
        // An undo brings back what lies in a quarantine: what that reads of others stays.
        for dir in &self.scope.quarantines {
            let found = quarantine::readers(&self.scope.lake, dir).await;
            found.reads.into_iter().for_each(|(uri, reads)| self.graph.add(&uri, reads));
            found.unread.into_iter().for_each(|(at, why)| self.graph.add_unread(format!("{at} ({why})")));
        }
        drafts
    }

    /// Settles the rows: a second look where the first found an orphan or something missing, or where others read the dataset.
    async fn second_looks<V: Visit<Row = T>>(&mut self, drafts: BTreeMap<String, Draft<T>>, orphans: bool, visit: &V) {
        let (scope, graph) = (&self.scope, &self.graph);
        let settled: Vec<(String, Place<T>)> = stream::iter(drafts)
            .map(|(uri, mut draft)| async move {
                let keep = graph.keep_set(&uri);
                let again = match &keep {
                    KeepSet::Incomplete(_) => false,
                    KeepSet::Complete(kept) => !kept.is_empty() || (orphans && !draft.first.objects.is_empty()),
                };
                if again || !draft.first.missing.is_empty() {
                    let place = second(scope, &uri, &draft.first, &keep, visit).await;
                    return (uri, place);
                }
                if let KeepSet::Incomplete(why) = &keep {
                    visit.incomplete(&mut draft.row, why);
                }
                (uri, Place::Dataset(draft.row))
            })
            .buffer_unordered(scope.config.limits.concurrency.max(1))
            .collect()
            .await;
        self.places.extend(settled);
    }

    /// Counts what lies where a dataset was expected and could not be looked at: every byte of a ROOT is counted once.
    async fn weigh(&mut self) {
        let unseen = self.places.iter().filter(|(_, place)| !matches!(place, Place::Dataset(_)));
        let unseen: Vec<String> =
            unseen.map(|(uri, _)| uri.clone()).filter(|uri| self.scope.is_under_a_root(uri)).collect();
        for uri in unseen {
            match discover::weigh(&self.scope.lake, &uri).await {
                Ok(weight) if weight.objects > 0 => {
                    self.scope.outside.insert(uri, Outside { class: "unknown", weight });
                }
                Ok(_) => {}
                Err(e) => self.scope.unreadable.push((uri, e.to_string())),
            }
        }
    }
}

/// A look. HEAD is opened where a contract holds, which may read a column of it.
async fn seen<V: Visit>(scope: &Scope, doing: &str, uri: &str) -> squire_lake::Result<Looked> {
    let lake = &scope.lake;
    if V::CONTRACTS && contracts::is_bound(scope, uri) {
        contain::contained(lake, doing, uri, look(lake, uri, scope.at)).await
    } else {
        contain::contained(lake, doing, uri, glance(lake, uri, scope.at)).await
    }
}

async fn first<V: Visit>(scope: &Scope, uri: String, reported: bool, orphans: bool, visit: &V) -> Seen<V::Row> {
    let first = match seen::<V>(scope, "looking at the dataset", &uri).await {
        Ok(Looked::Dataset(first)) => *first,
        Ok(Looked::DeclaredOnly) => return Seen::Place(Place::DeclaredOnly),
        Ok(Looked::Nothing) => return Seen::Place(Place::Nothing),
        Err(e) => return Seen::Place(Place::Failed(e)),
    };
    let (reads, nested) = (first.reads.clone(), first.nested_uris());
    let draft = if reported {
        let keep = KeepSet::Complete(BTreeSet::new());
        let found = classes(&first, &keep, &scope.ages(&uri, &first));
        let examined = Examined { look: first, classes: found, looks: 1 };
        let mut row = visit.row(scope, &examined, &keep);
        asked(scope, &examined, visit, &mut row).await;
        let mut first = examined.classes;
        first.objects.retain(|o| orphans && o.class == Class::Orphan);
        Some(Box::new(Draft { row, first }))
    } else {
        None
    };
    Seen::Dataset { reads, nested, draft }
}

/// Adds what is found by asking further: the dataset's columns and the registry's records of runs.
async fn asked<V: Visit>(scope: &Scope, examined: &Examined, visit: &V, row: &mut V::Row) {
    if V::CONTRACTS {
        visit.add(row, contracts::of_dataset(scope, &examined.look).await);
        visit.add(row, stranded::of_dataset(scope, examined).await);
    }
}

async fn second<V: Visit>(scope: &Scope, uri: &str, first: &Classes, keep: &KeepSet, visit: &V) -> Place<V::Row> {
    match seen::<V>(scope, "looking a second time", uri).await {
        Ok(Looked::Dataset(second)) => {
            let classes = agreed(first, classes(&second, keep, &scope.ages(uri, &second)));
            let examined = Examined { look: *second, classes, looks: 2 };
            let mut row = visit.row(scope, &examined, keep);
            asked(scope, &examined, visit, &mut row).await;
            Place::Dataset(row)
        }
        Ok(Looked::DeclaredOnly) => Place::DeclaredOnly,
        Ok(Looked::Nothing) => Place::Nothing,
        Err(e) => Place::Failed(e),
    }
}

impl Scope {
    /// The times by which a dataset's objects are judged.
    pub(crate) fn ages(&self, uri: &str, look: &squire_lake::look::Look) -> Ages {
        let policy = self.govern(uri, look).policy.policy;
        Ages { now: self.at, longest_write: policy.longest_write.unwrap_or_default() }
    }
}
