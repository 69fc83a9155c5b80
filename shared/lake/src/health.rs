//! Does every file that HEAD names exist with its recorded size? (design, "Health")
//!
//! If not, nothing is cleaned up: an older version may be the only good one.

use std::collections::BTreeMap;

use lance_index::scalar::inverted::builder::is_staged_path;

use crate::listing::Listing;
use crate::manifest::Facts;

/// A file that HEAD needs and that is not as recorded.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Missing {
    /// Relative to the dataset's root.
    pub path: String,
    /// Recorded bytes, if recorded.
    pub recorded: Option<u64>,
    /// Bytes found; `None` when the file is not there.
    pub found: Option<u64>,
}

/// Compares HEAD with the listing. Files under other bases are not in the listing and are not judged here.
pub fn missing(head: &Facts, listing: &Listing) -> Vec<Missing> {
    let mut wanted: BTreeMap<String, Option<u64>> = BTreeMap::new();
    for named in head.named().into_iter().filter(|n| n.base.is_none()) {
        // A whole index directory is judged by its files below; a transaction file is history, not data.
        if !named.path.starts_with("_indices/") && !named.path.starts_with("_transactions/") {
            wanted.insert(named.path, named.size);
        }
    }
    let mut out = Vec::new();
    for index in head.indices.iter().filter(|i| i.base_id.is_none()) {
        let dir = format!("_indices/{}", index.uuid);
        for file in index.files.iter().flatten().filter(|f| !is_staged_path(&f.path)) {
            wanted.insert(format!("{dir}/{}", file.path), Some(file.size_bytes));
        }
        let covers = index.fragment_bitmap.as_ref().is_none_or(|b| !b.is_empty());
        let empty_on_record = index.files.as_ref().is_some_and(Vec::is_empty);
        if index.files.is_none()
            && covers
            && !empty_on_record
            && listing.below(&dir).is_empty()
            && index.index_details.is_none()
        {
            out.push(Missing { path: dir, recorded: None, found: None });
        }
    }
    for (path, recorded) in wanted {
        let found = listing.get(&path).map(|e| e.size);
        let wrong_size = matches!((recorded, found), (Some(a), Some(b)) if a != b);
        if found.is_none() || wrong_size {
            out.push(Missing { path, recorded, found });
        }
    }
    out
}
