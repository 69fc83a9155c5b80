//! A look at a dataset that is known: one HEAD of the next version's manifest (design, "Look").
//!
//! A mark says which HEAD a full look found. Where the next version's manifest is not there, the dataset is unmoved, and what the
//! full look found still stands. A re-created dataset counts from 1 again: only the e_tag of HEAD's own manifest tells it from
//! the old one. Nothing is ever written for the sake of a mark: what it may lead to is no look, or a full one.

use std::collections::{BTreeMap, BTreeSet};

use object_store::ObjectStoreExt as _;
use serde::{Deserialize, Serialize};

use crate::authority::Authority;
use crate::handle::Place;
use crate::listing::{Kind, classify};
use crate::look::Look;
use crate::refs::{Reads, Target};
use crate::{Lake, Result};

/// A clone of more files than this is looked at in full each time: marks lie in the registry and must stay small.
const MAX_READS: usize = 1_000;

/// Which HEAD a full look found, and what the dataset reads of others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// HEAD's version.
    pub version: u64,
    /// The e_tag of its manifest.
    pub e_tag: String,
    /// What its manifests read of other datasets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    reads: Vec<(Target, BTreeSet<String>)>,
}

impl Mark {
    /// The mark of a look; `None` where the next look must be a full one too. Known are linear datasets with V2 names (V1 names
    /// may be migrated under us) whose every manifest and ref was read, and that have nothing in them whose end makes no
    /// version: detached or staged manifests, markers, nested datasets, files that are not as recorded.
    pub fn of(look: &Look) -> Option<Self> {
        let whole = look.authority == Authority::Linear
            && (look.dataset.is_some() || look.unopened)
            && look.unreadable.is_empty()
            && look.unreadable_refs.is_empty()
            && look.missing.is_empty()
            && look.nested.is_empty()
            && !look.mixed_names
            && !look.reserved
            && !look.deregistered
            && !look.managed_blobs();
        let head = look.manifests.get(look.head_ordinal() as usize)?;
        let is_v2 = matches!(classify(&head.path).kind, Kind::Manifest { v2: true, .. });
        let files: usize = look.reads.values().map(BTreeSet::len).sum();
        let next = look.version() < u64::MAX - 1;
        let e_tag = look.head.e_tag.clone().filter(|_| whole && is_v2 && next && files <= MAX_READS)?;
        let reads = look.reads.iter().map(|(target, files)| (target.clone(), files.clone())).collect();
        Some(Self { version: look.version(), e_tag, reads })
    }

    /// The same without what it reads, for who keeps that beside.
    pub fn without_reads(self) -> Self {
        Self { reads: Vec::new(), ..self }
    }

    /// What its manifests read of other datasets.
    pub fn reads(&self) -> Reads {
        self.reads.iter().cloned().collect::<BTreeMap<_, _>>()
    }
}

/// Whether the next version's manifest is not there: one HEAD; with `own` also whether HEAD's own manifest is still the same object:
/// one more. What cannot be asked counts as moved.
pub async fn is_unmoved(lake: &Lake, uri: &str, mark: &Mark, own: bool) -> bool {
    let Ok(place) = lake.place(uri).await else { return false };
    let next = e_tag(&place, mark.version.saturating_add(1)).await;
    matches!(next, Ok(None)) && (!own || is_the_same(&place, mark).await)
}

/// Whether HEAD's own manifest is still the same object: one HEAD. What cannot be asked counts as changed.
pub async fn is_same(lake: &Lake, uri: &str, mark: &Mark) -> bool {
    match lake.place(uri).await {
        Ok(place) => is_the_same(&place, mark).await,
        Err(_) => false,
    }
}

async fn is_the_same(place: &Place, mark: &Mark) -> bool {
    matches!(e_tag(place, mark.version).await, Ok(Some(Some(e_tag))) if e_tag == mark.e_tag)
}

/// The e_tag of a version's manifest under its V2 name; `None` where there is no such manifest.
async fn e_tag(place: &Place, version: u64) -> Result<Option<Option<String>>> {
    let path = place.below(&format!("_versions/{:020}.manifest", u64::MAX - version))?;
    match place.objects().head(&path).await {
        Ok(meta) => Ok(Some(meta.e_tag)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(e) => Err(crate::Error::store("looking for the next version's manifest", &place.uri, e)),
    }
}
