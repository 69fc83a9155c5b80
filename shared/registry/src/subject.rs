//! The names of things that records govern, as FACES writes them.

use std::fmt;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Error;

/// Everything but `[A-Za-z0-9._-]` is percent-encoded, in subjects and in keys alike.
pub(crate) const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-');

/// A SUBJECT: `estate`, `project/P`, `warehouse/W`, `namespace/a/b`, `table/a/b/t`, `dataset/<canonical URI>`.
///
/// Parsed with [`FromStr`], printed with [`fmt::Display`]; the two are inverse. `a$b$t` is understood as a table, and
/// `$` between segments as `/`, but neither is ever printed: a shell turns `acme$tmp` into `acme`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// Everything that the registry governs.
    Estate,
    /// A project, by id.
    Project(String),
    /// A warehouse, by id.
    Warehouse(String),
    /// A namespace, by its path from the top, at least one segment.
    Namespace(Vec<String>),
    /// A table: its namespace's path and its own name.
    Table(Vec<String>),
    /// A dataset without a table name, by its canonical URI.
    Dataset(String),
}

impl Subject {
    /// The kind's word, as in the printed form and in reports.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Estate => "estate",
            Self::Project(_) => "project",
            Self::Warehouse(_) => "warehouse",
            Self::Namespace(_) => "namespace",
            Self::Table(_) => "table",
            Self::Dataset(_) => "dataset",
        }
    }

    /// What follows the kind in the printed form; `self` for the estate. The record id of hierarchy records.
    pub fn id(&self) -> String {
        match self {
            Self::Estate => "self".to_owned(),
            Self::Project(id) | Self::Warehouse(id) | Self::Dataset(id) => encode(id),
            Self::Namespace(path) | Self::Table(path) => path.iter().map(|s| encode(s)).collect::<Vec<_>>().join("/"),
        }
    }

    /// The last segment of a table's or namespace's path.
    pub(crate) fn leaf(&self) -> Option<&str> {
        match self {
            Self::Namespace(path) | Self::Table(path) => path.last().map(String::as_str),
            _ => None,
        }
    }

    /// The namespace that holds this table or namespace; `None` at the top and for other kinds.
    pub fn parent_namespace(&self) -> Option<Subject> {
        match self {
            Self::Namespace(path) | Self::Table(path) if path.len() > 1 => {
                Some(Self::Namespace(path[..path.len() - 1].to_vec()))
            }
            _ => None,
        }
    }

    /// The same with a dataset's URI in its canonical form: whatever is looked up by it was written under that one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a dataset that is no location.
    pub fn canonical(&self) -> Result<Self, Error> {
        match self {
            Self::Dataset(uri) => crate::storage::canonical_uri(uri).map(Self::Dataset),
            other => Ok(other.clone()),
        }
    }

    /// Parses a SUBJECT that names its kind. Verbs that remove or unprotect use this one.
    ///
    /// # Errors
    /// [`Error::Invalid`] also for a bare id, with the spelling to use.
    pub fn parse_explicit(text: &str) -> Result<Self, Error> {
        let parsed = Self::from_str(text)?;
        if matches!(&parsed, Self::Table(_)) && !text.starts_with("table/") {
            return Err(invalid(text, &format!("this verb takes no bare id; write {parsed}")));
        }
        Ok(parsed)
    }
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

fn invalid(text: &str, why: &str) -> Error {
    Error::Invalid(format!(
        "`{text}` is not a subject: {why}. A subject is estate, project/P, warehouse/W, namespace/a/b, table/a/b/t or \
         dataset/<URI>, other bytes percent-encoded"
    ))
}

fn segment(text: &str, raw: &str) -> Result<String, Error> {
    let decoded = percent_decode_str(raw).decode_utf8().map_err(|_| invalid(text, "a segment is not UTF-8"))?;
    if raw.bytes().filter(|b| *b == b'%').count() != well_formed_escapes(raw) {
        return Err(invalid(text, "`%` must be followed by two hex digits; write a literal one as %25"));
    }
    check_name(&decoded).map_err(|why| invalid(text, &why))?;
    Ok(decoded.into_owned())
}

fn well_formed_escapes(raw: &str) -> usize {
    raw.as_bytes().windows(3).filter(|w| w[0] == b'%' && w[1].is_ascii_hexdigit() && w[2].is_ascii_hexdigit()).count()
}

/// What no name of a project, warehouse, namespace or table may be.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("a name is empty".into());
    }
    if name == "." || name == ".." {
        return Err(format!("`{name}` is no name"));
    }
    if name.len() > 512 {
        return Err(format!("a name of {} bytes is longer than 512", name.len()));
    }
    if name.chars().any(char::is_control) {
        return Err("a name holds a control character".into());
    }
    Ok(())
}

fn segments(text: &str, rest: &str) -> Result<Vec<String>, Error> {
    rest.split(['/', '$']).map(|raw| segment(text, raw)).collect()
}

fn single(text: &str, rest: &str) -> Result<String, Error> {
    if rest.contains('/') {
        return Err(invalid(text, "one segment is expected; write a literal `/` as %2F"));
    }
    segment(text, rest)
}

impl FromStr for Subject {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "estate" {
            return Ok(Self::Estate);
        }
        match text.split_once('/') {
            Some(("project", rest)) => single(text, rest).map(Self::Project),
            Some(("warehouse", rest)) => single(text, rest).map(Self::Warehouse),
            Some(("namespace", rest)) => segments(text, rest).map(Self::Namespace),
            Some(("table", rest)) => segments(text, rest).map(Self::Table),
            Some(("dataset", rest)) => dataset(text, rest).map(Self::Dataset),
            Some((kind, _)) => Err(invalid(text, &format!("there is no kind `{kind}`"))),
            None if text.contains('$') => segments(text, text).map(Self::Table),
            None => Err(invalid(text, "it names no kind")),
        }
    }
}

fn dataset(text: &str, rest: &str) -> Result<String, Error> {
    // The printed form has its `:` and `/` encoded; what holds `://` was typed as it is, escapes included.
    let uri = if rest.contains("://") || rest.starts_with('/') {
        rest.to_owned()
    } else {
        percent_decode_str(rest).decode_utf8().map_err(|_| invalid(text, "the URI is not UTF-8"))?.into_owned()
    };
    if uri.is_empty() || uri.chars().any(char::is_control) {
        return Err(invalid(text, "the URI is empty or holds a control character"));
    }
    Ok(uri)
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Estate => f.write_str("estate"),
            other => write!(f, "{}/{}", other.kind(), other.id()),
        }
    }
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Subject {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}
