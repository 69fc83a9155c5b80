//! Reads structs and enums, their members and doc comments out of formatted source text.
//!
//! Line by line, for what `cargo fmt` writes: a member stands on one line, four spaces deep.

use std::collections::BTreeMap;

/// A field or variant.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// Its name in a configuration.
    pub(super) name: String,
    /// Its type as written; empty for a variant.
    pub(super) ty: String,
    /// Its doc comment; paragraphs are parted by a blank line.
    pub(super) docs: String,
}

/// The public structs and enums of a source text, by name.
pub(super) fn items(text: &str) -> BTreeMap<String, Vec<Member>> {
    let mut out = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(rest) = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum ")) else { continue };
        if !line.ends_with(" {") {
            continue;
        }
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
        let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "}").collect();
        out.insert(name.clone(), members(&name, &body));
    }
    out
}

fn members(item: &str, body: &[&str]) -> Vec<Member> {
    let mut out = Vec::new();
    let (mut docs, mut renamed) = (String::new(), None);
    for line in body {
        let line = line.strip_prefix("    ").unwrap_or_else(|| panic!("{item}: {line:?} is not formatted"));
        if let Some(text) = line.strip_prefix("///") {
            match text.trim() {
                "" => docs.push_str("\n\n"),
                text if docs.is_empty() || docs.ends_with('\n') => docs.push_str(text),
                text => docs.extend([" ", text]),
            }
        } else if let Some(rest) = line.strip_prefix("#[serde(rename = \"") {
            renamed = rest.split('"').next().map(str::to_owned);
        } else if line.starts_with("#[") {
        } else {
            let line = line.strip_suffix(',').unwrap_or_else(|| panic!("{item}: {line:?} is no member on one line"));
            let (name, ty) = match line.strip_prefix("pub ").and_then(|field| field.split_once(": ")) {
                Some((name, ty)) => (name.to_owned(), ty.to_owned()),
                None => (snake_case(line), String::new()),
            };
            out.push(Member { name: renamed.take().unwrap_or(name), ty, docs: std::mem::take(&mut docs) });
        }
    }
    out
}

fn snake_case(variant: &str) -> String {
    let mut out = String::new();
    for c in variant.chars() {
        if c.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// The texts in quotes between a line that starts with `start` and the next `];`.
pub(super) fn list(text: &str, start: &str) -> Vec<String> {
    let body = text.lines().skip_while(|line| !line.starts_with(start)).skip(1).take_while(|line| *line != "];");
    body.map(|line| line.trim().trim_end_matches(',').trim_matches('"').to_owned()).collect()
}
