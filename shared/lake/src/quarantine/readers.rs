//! Datasets that lie in a quarantine: they may come back, so what they read of others stays.

use std::collections::BTreeSet;

use uuid::Uuid;

use crate::discover::{QUARANTINE, RESERVED};
use crate::listing::{Kind, Listing, classify};
use crate::look::edges_of;
use crate::refs::Reads;
use crate::{Lake, Result, uri};

/// What the datasets in one quarantine read of others.
#[derive(Debug, Default)]
pub struct Readers {
    /// Those that read anything, by the URI of the copy.
    pub reads: Vec<(String, Reads)>,
    /// `(place, why)` of what could not be read: it may read anything.
    pub unread: Vec<(String, String)>,
}

/// Reads the manifests of every dataset that lies in the quarantine at `dir` (canonical URI, `<root>/_squire_quarantine`), of all
/// plans. Reads only.
pub async fn readers(lake: &Lake, dir: &str) -> Readers {
    let mut out = Readers::default();
    let copies = match copies(lake, dir).await {
        Ok(copies) => copies,
        Err(e) => {
            out.unread.push((dir.to_string(), e.to_string()));
            return out;
        }
    };
    let root = dir.strip_suffix(QUARANTINE).unwrap_or(dir).trim_end_matches('/');
    let below = |at: &str, path: &str| {
        path.split('/').filter(|s| !s.is_empty()).fold(at.to_string(), |at, segment| uri::join(&at, segment))
    };
    for (plan, path) in copies {
        let at = below(&uri::join(dir, &plan), &path);
        match edges_of(lake, &at, &below(root, &path)).await {
            Ok(reads) if reads.is_empty() => {}
            Ok(reads) => out.reads.push((at, reads)),
            Err(e) => out.unread.push((at, e.to_string())),
        }
    }
    out
}

/// The datasets in a quarantine: the plan, and the path relative to the root. A branch is its dataset's.
async fn copies(lake: &Lake, dir: &str) -> Result<BTreeSet<(String, String)>> {
    let listing = Listing::read(&lake.place(dir).await?).await?;
    let mut all = BTreeSet::new();
    for entry in &listing.entries {
        let Some((plan, path)) = entry.path.split_once('/').filter(|(plan, _)| plan.parse::<Uuid>().is_ok()) else {
            continue;
        };
        let at = if path.starts_with("_versions/") { Some(0) } else { path.find("/_versions/").map(|at| at + 1) };
        let Some(at) = at.filter(|_| !path.starts_with(&format!("{RESERVED}/"))) else { continue };
        if matches!(classify(&path[at..]).kind, Kind::Manifest { .. } | Kind::Detached(_)) {
            all.insert((plan.to_string(), path[..at].trim_end_matches('/').to_string()));
        }
    }
    let is_branch = |(plan, path): &(String, String)| {
        let above = path.match_indices("/tree/").map(|(at, _)| &path[..at]);
        let root = path.starts_with("tree/").then_some("");
        above.chain(root).any(|above| all.contains(&(plan.clone(), above.to_string())))
    };
    Ok(all.iter().filter(|copy| !is_branch(copy)).cloned().collect())
}
