//! Names as people see them.

use std::collections::HashMap;

/// A dataset's displayed name: its path under the longest of `roots` that holds it, with a
/// trailing `.lance` cut. A dataset that is a root itself, or lies under none, is shown by its
/// last segment or its whole URI.
pub fn display_name(uri: &str, roots: &[String]) -> String {
    let full = bare(uri);
    let under = roots
        .iter()
        .map(|root| bare(root))
        .filter_map(|root| {
            let rest = full.strip_prefix(root)?;
            (rest.is_empty() || rest.starts_with('/') || root.ends_with('/')).then_some((root.len(), rest))
        })
        .max_by_key(|(length, _)| *length)
        .map(|(_, rest)| rest.trim_start_matches('/'));
    let name = match under {
        Some("") => full.rsplit('/').find(|s| !s.is_empty()).unwrap_or(full),
        Some(rest) => rest,
        None => uri.trim_end_matches('/'),
    };
    let name = match name.strip_suffix(".lance") {
        Some(cut) if !cut.is_empty() && !cut.ends_with('/') => cut,
        _ => name,
    };
    // What lies under a root is read by people; a whole URI stays one.
    match under {
        Some(_) => percent_encoding::percent_decode_str(name).decode_utf8_lossy().into_owned(),
        None => name.to_owned(),
    }
}

/// A URI without `file://` and trailing slashes.
fn bare(uri: &str) -> &str {
    let path = uri.strip_prefix("file://").unwrap_or(uri).trim_end_matches('/');
    path.strip_prefix("./").unwrap_or(path)
}

/// The displayed names of several datasets: those that two share are shown as URIs.
#[derive(Debug, Clone, Default)]
pub struct DisplayNames {
    names: HashMap<String, String>,
    roots: Vec<String>,
}

impl DisplayNames {
    /// Names for all of `uris`.
    pub fn new<'a>(uris: impl IntoIterator<Item = &'a str>, roots: &[String]) -> Self {
        let mut by_name: HashMap<String, Vec<&str>> = HashMap::new();
        for uri in uris {
            by_name.entry(display_name(uri, roots)).or_default().push(uri);
        }
        let mut names = HashMap::new();
        for (name, uris) in by_name {
            let shared = uris.iter().any(|uri| *uri != uris[0]);
            for uri in uris {
                let shown = if shared { uri.to_owned() } else { name.clone() };
                names.insert(uri.to_owned(), shown);
            }
        }
        Self { names, roots: roots.to_vec() }
    }

    /// The name of one dataset.
    pub fn get(&self, uri: &str) -> String {
        self.names.get(uri).cloned().unwrap_or_else(|| display_name(uri, &self.roots))
    }
}

/// A text in which nothing moves the cursor, changes colours or turns the reading direction:
/// such characters, which a table's name may hold, become `\u{…}`.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if harmless(c) { out.push(c) } else { out.extend(c.escape_unicode()) }
    }
    out
}

/// As [`clean`], and line ends stay.
pub fn clean_lines(text: &str) -> String {
    text.split('\n').map(clean).collect::<Vec<_>>().join("\n")
}

fn harmless(c: char) -> bool {
    let turns = matches!(c, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{2069}' | '\u{FEFF}');
    !c.is_control() && !turns
}
