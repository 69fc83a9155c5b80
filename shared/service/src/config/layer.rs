//! Layers of configuration: each is a dictionary with the place it came from.

use std::fmt;
use std::path::PathBuf;

use figment::value::{Dict, Map, Value};
use figment::{Metadata, Profile, Provider};

use crate::human;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// A file.
    File(PathBuf),
    /// Standard input (`--config -`).
    Stdin,
    /// An environment variable.
    Env(String),
    /// `--set key=value`.
    Set,
    /// A flag of its own, such as `--registry`.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Stdin => f.write_str("standard input"),
            Self::Env(name) => write!(f, "environment {name}"),
            Self::Set => f.write_str("--set"),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// A dictionary and its source. Layers later in the list win.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) source: Source,
    pub(super) dict: Dict,
    /// For a layer that holds one value given as text: its path, the text, and whether the text
    /// was already taken literally.
    pub(super) raw: Option<Raw>,
}

/// A value that was given as text.
#[derive(Debug, Clone)]
pub(super) struct Raw {
    pub(super) path: Vec<String>,
    pub(super) text: String,
    pub(super) literal: bool,
}

impl Layer {
    /// A layer with one value given as text: TOML where it reads as TOML, else a string.
    pub(super) fn one(source: Source, path: Vec<String>, text: String) -> Self {
        let value = guess(&text);
        let mut layer = Self { source, dict: Dict::new(), raw: Some(Raw { path: path.clone(), text, literal: false }) };
        insert(&mut layer.dict, &path, value);
        layer
    }

    /// Takes the text of a one-value layer literally. `false` when that was done already, or
    /// this layer's value is not at `path`.
    pub(super) fn make_literal(&mut self, path: &[String]) -> bool {
        let Some(raw) = self.raw.as_mut() else { return false };
        if raw.literal || raw.path != path {
            return false;
        }
        raw.literal = true;
        let value = Value::from(raw.text.clone());
        insert(&mut self.dict, path, value);
        true
    }

    /// Whether this layer says something about `path`: a value there, above it, or (where `path`
    /// is a table) below it.
    pub(super) fn holds(&self, path: &[String]) -> bool {
        let mut dict = &self.dict;
        for (i, segment) in path.iter().enumerate() {
            match find(dict, segment) {
                Some(Value::Dict(_, inner)) if i + 1 < path.len() => dict = inner,
                Some(_) => return true,
                None => return false,
            }
        }
        true
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.source.to_string())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Profile::Default.collect(self.dict.clone()))
    }
}

/// Looks a key up as written, else without regard to case (storage options).
fn find<'a>(dict: &'a Dict, key: &str) -> Option<&'a Value> {
    dict.get(key).or_else(|| dict.iter().find(|(k, _)| k.eq_ignore_ascii_case(key)).map(|(_, v)| v))
}

/// Puts `value` at `path`, making tables on the way; what stands in the way is replaced.
pub(super) fn insert(dict: &mut Dict, path: &[String], value: Value) {
    let Some((first, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        dict.insert(first.clone(), value);
        return;
    }
    let entry = dict.entry(first.clone()).or_insert_with(|| Value::from(Dict::new()));
    if !matches!(entry, Value::Dict(..)) {
        *entry = Value::from(Dict::new());
    }
    if let Value::Dict(_, inner) = entry {
        insert(inner, rest, value);
    }
}

/// Takes away what is at `path`; reports whether something was there.
pub(super) fn remove(dict: &mut Dict, path: &[String]) -> bool {
    let Some((first, rest)) = path.split_first() else { return false };
    if rest.is_empty() {
        return dict.remove(first).is_some();
    }
    match dict.get_mut(first) {
        Some(Value::Dict(_, inner)) => remove(inner, rest),
        _ => false,
    }
}

/// Reads a text as a TOML value; what is no TOML value, or a date, is a string.
fn guess(text: &str) -> Value {
    let string = || Value::from(text.to_owned());
    if text.contains(['\n', '\r', '#']) {
        return string();
    }
    let Ok(mut table) = toml::from_str::<toml::Table>(&format!("v = {text}")) else {
        return string();
    };
    match table.remove("v") {
        Some(value) if table.is_empty() && !has_datetime(&value) => {
            Value::serialize(value).unwrap_or_else(|_| string())
        }
        _ => string(),
    }
}

fn has_datetime(value: &toml::Value) -> bool {
    match value {
        toml::Value::Datetime(_) => true,
        toml::Value::Array(items) => items.iter().any(has_datetime),
        toml::Value::Table(table) => table.values().any(has_datetime),
        _ => false,
    }
}

/// Splits a dotted key; segments may be quoted (`storage."s3://a.b".aws_region`).
pub(super) fn split_key(key: &str) -> Result<Vec<String>, String> {
    let mut segments = Vec::new();
    let mut current = String::new();
    let mut quote: Option<char> = None;
    for c in key.trim().chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), c) => current.push(c),
            (None, '"' | '\'') => quote = Some(c),
            (None, '.') => segments.push(std::mem::take(&mut current)),
            (None, c) => current.push(c),
        }
    }
    segments.push(current);
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    if segments.iter().any(String::is_empty) {
        return Err("a part of the key is empty".to_owned());
    }
    Ok(segments)
}

/// Splits `key=value` at the first `=` outside quotes.
pub(super) fn split_assignment(text: &str) -> Option<(&str, &str)> {
    let mut quote: Option<char> = None;
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '=') => return Some((&text[..i], &text[i + 1..])),
            (None, _) => {}
        }
    }
    None
}

/// Joins a path with dots, quoting what is no bare TOML key.
pub(super) fn join_key(path: &[String]) -> String {
    let quoted: Vec<String> = path
        .iter()
        .map(|s| {
            let bare = !s.is_empty() && s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
            if bare { s.clone() } else { format!("{s:?}") }
        })
        .collect();
    quoted.join(".")
}

/// What accepted values look like, where the expectation of the type alone is too terse.
pub(super) fn expectation(expected: &str) -> String {
    match expected {
        "a string" => "text in quotes".to_owned(),
        "usize" | "u64" | "u32" | "u8" => "a whole number, zero or above".to_owned(),
        "f64" | "f32" => "a number".to_owned(),
        "a boolean" | "bool" => "true or false".to_owned(),
        "a sequence" => "a list such as [\"a\", \"b\"]".to_owned(),
        "a map" => "a table".to_owned(),
        other if other.starts_with("struct ") => "a table".to_owned(),
        "option" => format!("{} or nothing", human::DURATION_HINT),
        other => other.to_owned(),
    }
}
