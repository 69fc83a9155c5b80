//! The rest of an estate, for its clones' sake: other roots, hidden folders, and datasets nested in datasets.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use squire_lake::known::Mark;
use squire_lake::look::{Look, Looked};
use squire_lake::quarantine::readers;
use squire_lake::refs::CloneGraph;

use super::look_at;
use crate::estate::{Estate, Scope};
use crate::known::Memory;

/// How the clone graph came to know of the datasets that are not worked on.
#[derive(Debug, Default)]
pub struct Neighbours {
    /// Those that were looked at, with their marks; `None` where the next look must be a full one too.
    pub looked: Vec<(String, Option<Mark>)>,
    /// Those that have not moved since an earlier look.
    pub unmoved: Vec<String>,
}

/// Adds what a look found: also that a manifest could not be read, which may name files of anybody.
pub(super) fn add(graph: &mut CloneGraph, look: &Look) {
    graph.add(&look.uri, look.reads.clone());
    for (path, _) in &look.unreadable {
        graph.add_unread(format!("{}/{path}", look.uri));
    }
}

/// Adds what the datasets that lie in a quarantine read: an undo brings them back.
pub(super) async fn quarantined(estate: &Estate, scope: &Scope, graph: &mut CloneGraph) {
    for dir in &scope.quarantines {
        let found = readers(&estate.lake, dir).await;
        found.reads.into_iter().for_each(|(uri, reads)| graph.add(&uri, reads));
        found.unread.into_iter().for_each(|(place, why)| graph.add_unread(format!("{place} ({why})")));
    }
}

/// Where the graph is completed from.
pub(super) struct Around<'a> {
    pub(super) estate: &'a Estate,
    pub(super) scope: &'a Scope,
    /// What is in the graph already.
    pub(super) wanted: &'a BTreeSet<String>,
    pub(super) memory: &'a Memory,
    /// Each mark is confirmed: somebody asks by hand, and what he starts may delete.
    pub(super) sure: bool,
    pub(super) now: DateTime<Utc>,
}

impl Around<'_> {
    /// Adds what everything else reads.
    pub(super) async fn complete(&self, mut nested: BTreeSet<String>, graph: &mut CloneGraph) -> Neighbours {
        let Self { estate, scope, wanted, now, .. } = *self;
        let mut rest: BTreeSet<String> =
            scope.datasets.iter().filter(|d| !wanted.contains(*d)).chain(&scope.others).cloned().collect();
        let mut known: BTreeSet<String> = wanted.clone();
        let mut out = Neighbours::default();
        loop {
            rest.append(&mut nested);
            rest.retain(|uri| known.insert(uri.clone()));
            if rest.is_empty() {
                return out;
            }
            for (uri, reads) in self.memory.reads(estate, &rest, self.sure, now).await {
                rest.remove(&uri);
                graph.add(&uri, reads);
                out.unmoved.push(uri);
            }
            for (uri, result, _) in look_at(estate, std::mem::take(&mut rest), now).await {
                let mark = match result {
                    Ok(Looked::Dataset(look)) => {
                        nested.extend(look.nested_uris());
                        add(graph, &look);
                        Mark::of(&look)
                    }
                    Ok(_) => None,
                    Err(_) => {
                        graph.add_unread(uri.clone());
                        None
                    }
                };
                out.looked.push((uri, mark));
            }
        }
    }
}
