//! What was committed since: manifests that a look did not see.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use crate::classes::{kept, named};
use crate::handle::Place;
use crate::listing::{Kind, Listing, classify};
use crate::look::Look;
use crate::refs::{Reads, Target, Uses};
use crate::{Result, manifest};

/// The manifests of every tree, attached and detached, as one listing saw them.
pub(super) struct Watch {
    known: BTreeMap<String, (u64, DateTime<Utc>)>,
}

/// What manifests that came since name.
#[derive(Default)]
pub(super) struct News {
    uses: Uses,
    /// Why it cannot be said what they name.
    pub(super) blind: Option<String>,
}

impl News {
    /// Whether a manifest that came since names the path, or may.
    pub(super) fn names(&self, path: &str) -> bool {
        let may = self.uses.unseen().managed_blobs && path.ends_with(".blob");
        self.blind.is_some() || may || named(&self.uses, path).is_some()
    }
}

fn manifests(listing: &Listing) -> BTreeMap<String, (u64, DateTime<Utc>)> {
    let is = |path: &str| matches!(classify(path).kind, Kind::Manifest { .. } | Kind::Detached(_));
    listing.entries.iter().filter(|e| is(&e.path)).map(|e| (e.path.clone(), (e.size, e.modified))).collect()
}

impl Watch {
    pub(super) fn of(listing: &Listing) -> Self {
        Self { known: manifests(listing) }
    }

    /// The manifests that are there.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(String::as_str)
    }

    /// Lists the manifests again and reads those that are new or other than they were.
    pub(super) async fn news(&mut self, place: &Place) -> Result<News> {
        let now = manifests(&Listing::read_dirs(place, &["_versions", "tree"]).await?);
        let mut news = News::default();
        let (mut reads, mut ordinal) = (Reads::new(), 0);
        for (path, _) in now.iter().filter(|(path, is)| self.known.get(*path) != Some(is)) {
            match manifest::read(place.objects().as_ref(), &place.uri, &place.below(path)?).await {
                Ok(facts) => news.uses.add(ordinal, &classify(path).tree, &place.uri, &facts, &mut reads),
                Err(e) => news.blind = Some(e.to_string()),
            }
            ordinal += 1;
        }
        if news.uses.unseen().feature_flags {
            news.blind = Some("a new version has feature flags that this build does not know".into());
        }
        if reads.keys().any(|target| matches!(target, Target::Anywhere(_))) {
            news.blind = Some("a new version reads files under a base that cannot be resolved".into());
        }
        self.known = now;
        Ok(news)
    }
}

/// Whether a look or the rest of the estate names the path.
pub(super) fn is_named(look: &Look, keep: &BTreeSet<String>, path: &str) -> bool {
    named(&look.uses, path).is_some() || kept(|file| keep.contains(file), path)
}
