//! One canonical URI per dataset.
//!
//! A symlink and its target are one dataset, a trailing slash changes nothing, and odd names (`$`, `%`, `#`, spaces,
//! unicode) are percent-encoded the way a URL has them (design, "Discovery").

pub use squire_registry::{join_uri as join, local_path, within};

use crate::{Error, Kind, Result};

/// The canonical form of a ROOT or dataset given by hand, as the registry spells it: its records and ours must agree.
///
/// # Errors
/// [`Kind::Permanent`] when the text is no URI and no path.
pub fn canonical(text: &str) -> Result<String> {
    squire_registry::canonical_uri(text).map_err(|e| Error::new(Kind::Permanent, "reading the URI", text).because(e))
}

/// One segment of a canonical URI as the store spells it; `None` for what is no UTF-8.
pub fn segment(text: &str) -> Option<String> {
    percent_encoding::percent_decode_str(text).decode_utf8().ok().map(|s| s.into_owned())
}

/// The last segment, percent-decoded, without a trailing `.lance`: what a person calls the dataset.
pub fn name(uri: &str) -> String {
    let last = uri.rsplit('/').next().unwrap_or(uri);
    let text = percent_encoding::percent_decode_str(last).decode_utf8_lossy().into_owned();
    text.strip_suffix(".lance").map(String::from).unwrap_or(text)
}

/// `uri` relative to the first of `roots` that holds it, percent-decoded, without a trailing `.lance`.
pub fn display(uri: &str, roots: &[String]) -> String {
    let rest = roots
        .iter()
        .filter(|root| within(uri, root))
        .max_by_key(|root| root.len())
        .map(|root| uri[root.len()..].trim_start_matches('/'))
        .filter(|rest| !rest.is_empty());
    match rest {
        None => name(uri),
        Some(rest) => {
            let text = percent_encoding::percent_decode_str(rest).decode_utf8_lossy().into_owned();
            text.strip_suffix(".lance").map(String::from).unwrap_or(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_symlink_and_its_target_are_one_dataset() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let real = dir.path().join("real");
        std::fs::create_dir(&real).expect("made");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&real, &link).expect("linked");
        let text = |p: &Path| p.to_str().expect("utf-8").to_string();
        assert_eq!(canonical(&text(&real)).expect("ok"), canonical(&text(&link)).expect("ok"));
        assert_eq!(canonical(&format!("{}/", text(&real))).expect("ok"), canonical(&text(&real)).expect("ok"));
        assert_eq!(
            canonical(&text(&link.join("not/there"))).expect("ok"),
            canonical(&text(&real.join("not/there"))).expect("ok")
        );
    }

    #[test]
    fn odd_names_survive_the_round_trip() {
        for odd in ["a b", "a%b", "a#b", "a$b", "ü-table", "100%25", "a?b", "x+y"] {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let path = dir.path().join(odd);
            std::fs::create_dir(&path).expect("made");
            let uri = canonical(path.to_str().expect("utf-8")).expect("ok");
            assert_eq!(local_path(&uri).expect("local"), std::fs::canonicalize(&path).expect("there"), "{odd}");
            let root = canonical(dir.path().to_str().expect("utf-8")).expect("ok");
            assert_eq!(join(&root, odd), uri, "{odd}");
            assert_eq!(name(&uri), odd);
        }
    }

    #[test]
    fn a_uri_loses_its_trailing_and_double_slashes() {
        assert_eq!(canonical("s3://bucket//a/b/").expect("ok"), "s3://bucket/a/b");
        assert_eq!(canonical("s3://bucket").expect("ok"), "s3://bucket");
        assert_eq!(canonical("s3://bucket/a b").expect("ok"), "s3://bucket/a%20b");
        assert!(within("s3://bucket/a/b", "s3://bucket/a"));
        assert!(!within("s3://bucket/ab", "s3://bucket/a"));
    }
}
