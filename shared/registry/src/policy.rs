//! What a policy says. The same keys stand in the config's `[policy]` and in a policy record.

use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use crate::human;

const HOUR: u64 = 3_600;
const DAY: u64 = 24 * HOUR;

/// How datasets are kept. One complete value: policies are never mixed from two records.
///
/// As the config's `[policy]` it holds the estate's defaults; unknown keys are refused there. In a policy record
/// unknown keys are kept and tolerated (see `design/registry.md`, Records).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// How long a version stays after it was REPLACED.
    #[serde(with = "human::duration")]
    pub retention: Duration,
    /// At least this many versions that Squire did not make stay.
    pub retain_versions: u32,
    /// Whether the pass may merge fragments.
    pub compact: bool,
    /// Whether the pass may fold rows into indices and merge segments.
    pub optimize_indices: bool,
    /// Whether the pass may remove old versions.
    pub cleanup: bool,
    /// Between passes started by the clock; a sweep by hand is always due.
    #[serde(with = "human::duration")]
    pub interval: Duration,
    /// Small neighbours before the clock compacts.
    pub min_fragments: u32,
    /// Quiet for this long, with something left to merge, is a reason for the clock.
    #[serde(with = "human::duration")]
    pub settle_after: Duration,
    /// History that maintenance makes, as a multiple of live bytes, within one retention.
    pub max_stranded: f64,
    /// Somebody else's unfinished files younger than this make the pass wait.
    #[serde(with = "human::duration")]
    pub yield_window: Duration,
    /// The table must have been quiet for this long before a pass starts.
    #[serde(with = "human::duration")]
    pub quiet_for: Duration,
    /// When passes may start, as `Mon-Fri 20:00-06:00 Europe/Berlin`; empty: always.
    pub window: String,
    /// Whether tables that old clients wrote may be rewritten although those clients lose an index by it.
    pub upgrade_index_format: bool,
    /// Rows per fragment to aim for; unset: decided by the dataset, the tier or the bytes. The only key that may be
    /// unset in a record and then falls through to the next one.
    pub target_rows: Option<u64>,
    /// At most this many bytes rewritten in one pass.
    #[serde(with = "human::size_option")]
    pub max_rewrite_bytes: Option<ByteSize>,
    /// Deleted rows must be physically gone within this time. Where it is shorter than `retention`, it takes its place.
    #[serde(with = "human::duration_option")]
    pub erase_within: Option<Duration>,
    /// The longest that a writer of this table works before it commits.
    #[serde(with = "human::duration_option")]
    pub longest_write: Option<Duration>,
    /// Indices that must exist.
    pub required_indices: Vec<RequiredIndex>,
    /// How far back a version's writer is taken for a client that still reads.
    #[serde(with = "human::duration")]
    pub reader_window: Duration,
}

/// An index that a policy requires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequiredIndex {
    /// The columns it covers, in order.
    pub columns: Vec<String>,
    /// The index type, as Lance names it (`BTREE`, `IVF_PQ`, `INVERTED`, ...).
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether Squire may build it when it is missing.
    #[serde(default)]
    pub build: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(7 * DAY),
            retain_versions: 3,
            compact: true,
            optimize_indices: true,
            cleanup: true,
            interval: Duration::from_secs(HOUR),
            min_fragments: 8,
            settle_after: Duration::from_secs(DAY),
            max_stranded: 1.0,
            yield_window: Duration::from_secs(HOUR),
            quiet_for: Duration::ZERO,
            window: String::new(),
            upgrade_index_format: false,
            target_rows: None,
            max_rewrite_bytes: None,
            erase_within: None,
            longest_write: None,
            required_indices: Vec::new(),
            reader_window: Duration::from_secs(30 * DAY),
        }
    }
}

impl Policy {
    /// The names of all keys, in the order of the config reference.
    pub const KEYS: [&'static str; 19] = [
        "retention",
        "retain_versions",
        "compact",
        "optimize_indices",
        "cleanup",
        "interval",
        "min_fragments",
        "settle_after",
        "max_stranded",
        "yield_window",
        "quiet_for",
        "window",
        "upgrade_index_format",
        "target_rows",
        "max_rewrite_bytes",
        "erase_within",
        "longest_write",
        "required_indices",
        "reader_window",
    ];

    /// Checks what the types alone do not: the window's grammar, and numbers that make no sense.
    ///
    /// # Errors
    /// One sentence that names the key.
    pub fn validate(&self) -> Result<(), String> {
        if !self.window.trim().is_empty() {
            crate::window::Window::parse(&self.window).map_err(|e| format!("window: {e}"))?;
        }
        if !self.max_stranded.is_finite() || self.max_stranded < 0.0 {
            return Err(format!("max_stranded: {} must be a number of at least 0", self.max_stranded));
        }
        if self.target_rows == Some(0) {
            return Err("target_rows: must be at least 1; leave it out to let the tier decide".into());
        }
        if let Some(bad) = self.required_indices.iter().find(|i| i.columns.is_empty() || i.kind.is_empty()) {
            return Err(format!("required_indices: an index needs columns and a type, got {bad:?}"));
        }
        Ok(())
    }

    /// What in `next` would let versions go sooner than under `self`, one line per key; empty when nothing does.
    ///
    /// Such a change waits for `shorten_delay` (`design/registry.md`, Policy).
    pub fn sooner(&self, next: &Policy) -> Vec<String> {
        let d = human::format_duration;
        let mut out = Vec::new();
        if next.retention < self.retention {
            out.push(format!("retention: {} -> {}", d(self.retention), d(next.retention)));
        }
        if next.retain_versions < self.retain_versions {
            out.push(format!("retain_versions: {} -> {}", self.retain_versions, next.retain_versions));
        }
        if next.cleanup && !self.cleanup {
            out.push("cleanup: false -> true".into());
        }
        match (self.erase_within, next.erase_within) {
            (None, Some(to)) => out.push(format!("erase_within: unset -> {}", d(to))),
            (Some(from), Some(to)) if to < from => out.push(format!("erase_within: {} -> {}", d(from), d(to))),
            _ => {}
        }
        out
    }

    /// `next` with every key that lets versions go sooner held at the value of `self`.
    pub fn hold_back(&self, next: &Policy) -> Policy {
        let mut held = next.clone();
        held.retention = held.retention.max(self.retention);
        held.retain_versions = held.retain_versions.max(self.retain_versions);
        held.cleanup = held.cleanup && self.cleanup;
        held.erase_within = match (self.erase_within, next.erase_within) {
            (None, _) => None,
            (Some(from), Some(to)) => Some(from.max(to)),
            (Some(_), None) => None,
        };
        held
    }

    /// The keys in which two policies differ, as `key: old -> new` lines.
    pub fn diff(&self, next: &Policy) -> Vec<String> {
        let (a, b) = (self.to_map(), next.to_map());
        let show = |v: Option<&serde_json::Value>| match v {
            None | Some(serde_json::Value::Null) => "unset".to_owned(),
            Some(serde_json::Value::String(s)) => s.clone(),
            Some(other) => other.to_string(),
        };
        Self::KEYS
            .iter()
            .filter(|key| a.get(**key) != b.get(**key))
            .map(|key| format!("{key}: {} -> {}", show(a.get(*key)), show(b.get(*key))))
            .collect()
    }

    /// The policy as a JSON object with every key.
    pub fn to_map(&self) -> serde_json::Map<String, serde_json::Value> {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(map)) => map,
            // Not reachable: the struct has only plain fields with string keys.
            _ => serde_json::Map::new(),
        }
    }

    /// Reads a policy from a record's object; keys of a newer build are left alone.
    ///
    /// # Errors
    /// Why a known key cannot be read.
    pub fn from_map(map: &serde_json::Map<String, serde_json::Value>) -> Result<Self, String> {
        let known: serde_json::Map<_, _> = map
            .iter()
            .filter(|(key, value)| Self::KEYS.contains(&key.as_str()) && !value.is_null())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        serde_json::from_value(serde_json::Value::Object(known)).map_err(|e| e.to_string())
    }

    /// The policy with `key` set from text, as `policy set KEY=VALUE` gives it. An empty value or `unset` clears an
    /// optional key.
    ///
    /// # Errors
    /// An unknown key (all are named) or a value that does not fit.
    pub fn with(&self, key: &str, text: &str) -> Result<Self, String> {
        if !Self::KEYS.contains(&key) {
            return Err(format!("`{key}` is no policy key; the keys are {}", Self::KEYS.join(", ")));
        }
        let mut map = self.to_map();
        let optional = matches!(key, "target_rows" | "max_rewrite_bytes" | "erase_within" | "longest_write");
        if text == "unset" || (text.is_empty() && optional) {
            if !optional {
                return Err(format!("{key}: cannot be unset, only changed; a record is always complete"));
            }
            map.insert(key.to_owned(), serde_json::Value::Null);
        } else {
            let string = serde_json::Value::String(text.to_owned());
            let current = map.get(key).cloned().unwrap_or_default();
            let is_text = current.is_string() || (optional && key != "target_rows");
            let value = if is_text { string } else { serde_json::from_str(text).unwrap_or(string) };
            map.insert(key.to_owned(), value);
        }
        let next = Self::from_map(&map).map_err(|e| format!("{key}: {e}"))?;
        next.validate()?;
        Ok(next)
    }
}

/// What no policy gets below (`[floors]`). Lowering them is logged at start and shown in `/status` by the services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Floors {
    /// Shortest retention (and `erase_within`) that takes effect.
    #[serde(with = "human::duration")]
    pub retention: Duration,
    /// Fewest versions that are retained.
    pub retain_versions: u32,
    /// How long a change that lets versions go sooner waits.
    #[serde(with = "human::duration")]
    pub shorten_delay: Duration,
}

impl Default for Floors {
    fn default() -> Self {
        Self { retention: Duration::from_secs(HOUR), retain_versions: 2, shorten_delay: Duration::from_secs(DAY) }
    }
}

impl Floors {
    /// The policy raised to the floors, with one line per key that was raised.
    pub fn clamp(&self, policy: &Policy) -> (Policy, Vec<String>) {
        let d = human::format_duration;
        let mut out = policy.clone();
        let mut notes = Vec::new();
        if out.retention < self.retention {
            notes.push(format!("retention: {} raised to the floor of {}", d(out.retention), d(self.retention)));
            out.retention = self.retention;
        }
        if out.retain_versions < self.retain_versions {
            notes.push(format!(
                "retain_versions: {} raised to the floor of {}",
                out.retain_versions, self.retain_versions
            ));
            out.retain_versions = self.retain_versions;
        }
        if let Some(erase) = out.erase_within.filter(|e| *e < self.retention) {
            notes.push(format!("erase_within: {} raised to the floor of {}", d(erase), d(self.retention)));
            out.erase_within = Some(self.retention);
        }
        (out, notes)
    }
}
