//! The manifests of a look: each read once, reduced to facts, with what it names.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures::stream::{self, BoxStream, StreamExt};
use roaring::RoaringBitmap;

use super::{Look, ManifestInfo};
use crate::handle::Place;
use crate::manifest::{self, Facts};
use crate::refs::{Reads, Uses};
use crate::{Error, Kind, Result, authority};

/// Manifests read at once.
const READS: usize = 32;

/// A manifest as it is listed.
pub(super) struct Candidate {
    pub(super) path: String,
    pub(super) tree: String,
    pub(super) version: u64,
    pub(super) detached: bool,
    pub(super) modified: DateTime<Utc>,
    pub(super) size: u64,
    pub(super) e_tag: Option<String>,
}

/// Reads the listed manifests, and HEAD's facts. One that an `earlier` look has read is taken from there, HEAD's excepted.
///
/// # Errors
/// When HEAD's cannot be read; any other is a value.
pub(super) async fn collect(
    place: &Place,
    listed: &[Candidate],
    head_at: usize,
    earlier: Option<&Look>,
) -> Result<(Collected, Arc<Facts>)> {
    let known = earlier.and_then(|earlier| Some((earlier, known_at(earlier, listed)?)));
    let before = |i: usize| known.as_ref().and_then(|(_, at)| at.get(&i).copied());
    let asked = |i: usize| i == head_at || before(i).is_none();
    let paths = (0..listed.len()).filter(|i| asked(*i)).map(|i| listed[i].path.clone()).collect();
    let mut read = read_each(place, paths);
    let (mut out, mut head) = (Collected::default(), None);
    // By the places that they had in the earlier look.
    let mut now = HashMap::new();
    for (i, candidate) in listed.iter().enumerate() {
        let facts = if asked(i) { read.next().await } else { None };
        if let (Some((earlier, _)), Some(at)) = (&known, before(i)) {
            now.insert(at, out.next());
            out.manifests.push(earlier.manifests[at as usize].clone());
        }
        match facts {
            Some(Ok(facts)) => {
                if before(i).is_none() {
                    out.add(&place.uri, candidate, &facts);
                }
                if i == head_at {
                    head = Some(Arc::new(facts));
                }
            }
            Some(Err(e)) if i == head_at => return Err(e),
            Some(Err(e)) => out.unreadable.push((candidate.path.clone(), e.to_string())),
            None => {}
        }
    }
    let head = head.ok_or_else(|| Error::new(Kind::Damaged, "finding HEAD", &place.uri))?;
    if let Some((earlier, _)) = &known {
        out.uses.add_known(&earlier.uses, &now);
        for (target, files) in &earlier.reads {
            out.reads.entry(target.clone()).or_default().extend(files.iter().cloned());
        }
    }
    Ok((out, head))
}

/// Reads them all for a dataset that calls `own` its place.
///
/// # Errors
/// When any cannot be read.
pub(super) async fn all(place: &Place, own: &str, listed: &[Candidate]) -> Result<Collected> {
    let mut out = Collected::default();
    let mut read = read_each(place, listed.iter().map(|c| c.path.clone()).collect());
    for candidate in listed {
        let Some(facts) = read.next().await else { break };
        out.add(own, candidate, &facts?);
    }
    Ok(out)
}

/// Where the manifests of an earlier look are now among the listed ones: every one of them is there and the same object, or none
/// is known. The positions: now, then.
fn known_at(earlier: &Look, listed: &[Candidate]) -> Option<HashMap<usize, u32>> {
    let now: HashMap<&str, (usize, &Candidate)> =
        listed.iter().enumerate().map(|(i, c)| (c.path.as_str(), (i, c))).collect();
    let same = |then: &ManifestInfo, c: &Candidate| {
        c.e_tag.is_some() && (&c.e_tag, c.size, c.modified) == (&then.e_tag, then.size, then.modified)
    };
    (0..)
        .zip(&earlier.manifests)
        .map(|(at, then)| now.get(then.path.as_str()).filter(|(_, c)| same(then, c)).map(|(i, _)| (*i, at)))
        .collect()
}

/// Reads manifests in their order, a few at a time: those of a long history are together many times as large as any of them.
/// `paths` are owned, so that the future is `Send` for any lifetime: daemons spawn it.
fn read_each(place: &Place, paths: Vec<String>) -> BoxStream<'_, Result<Facts>> {
    stream::iter(paths)
        .map(move |path| async move {
            let path = place.below(&path)?;
            manifest::read(place.objects().as_ref(), &place.uri, &path).await
        })
        .buffered(READS)
        .boxed()
}

#[derive(Default)]
pub(super) struct Collected {
    pub(super) manifests: Vec<ManifestInfo>,
    pub(super) unreadable: Vec<(String, String)>,
    pub(super) uses: Uses,
    pub(super) reads: Reads,
}

impl Collected {
    fn next(&self) -> u32 {
        u32::try_from(self.manifests.len()).unwrap_or(u32::MAX)
    }

    fn add(&mut self, uri: &str, candidate: &Candidate, facts: &Facts) {
        let ordinal = self.next();
        let (fragments, erased) = held(facts);
        self.uses.add(ordinal, &candidate.tree, uri, facts, &mut self.reads);
        self.manifests.push(ManifestInfo {
            path: candidate.path.clone(),
            tree: candidate.tree.clone(),
            detached: candidate.detached,
            version: candidate.version,
            timestamp: facts.timestamp,
            modified: candidate.modified,
            writer: facts.writer.clone(),
            stamp: facts.stamp.clone(),
            operation: facts.operation.clone(),
            by_graph: authority::graph_property(facts).is_some(),
            rows: facts.rows(),
            size: candidate.size,
            e_tag: candidate.e_tag.clone(),
            fragments,
            erased,
            indices: facts.indices.iter().map(|i| (i.uuid, i.dataset_version)).collect(),
        });
    }
}

/// The ids of a version's fragments, and of those that hold values which it does not show.
fn held(facts: &Facts) -> (RoaringBitmap, RoaringBitmap) {
    let live: BTreeSet<i32> = facts.manifest.schema.fields_pre_order().map(|f| f.id).collect();
    let (mut all, mut erased) = (RoaringBitmap::new(), RoaringBitmap::new());
    for fragment in facts.manifest.fragments.iter() {
        let Ok(id) = u32::try_from(fragment.id) else { continue };
        all.insert(id);
        let dead = |file: &lance_table::format::DataFile| file.fields.iter().any(|f| *f >= 0 && !live.contains(f));
        if fragment.deletion_file.is_some() || fragment.files.iter().any(dead) {
            erased.insert(id);
        }
    }
    (all, erased)
}
