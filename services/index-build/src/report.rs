//! What came of a request, for people, records and events.

use serde_json::{Map, Value, json};
use squire_lake::Kind;
use squire_lake::build::Definition;
use squire_lake::index::IndexInfo;
use squire_lake::verify::IndexCheck;
use squire_registry::JobState;
use squire_service::human::{show_bytes, show_count, show_seconds};

use crate::plan::Refused;

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// Built, committed and asked.
    Built,
    /// It stood there already, or an earlier attempt of the same job built it.
    Present,
    /// Defined; too few rows to train it.
    Untrained,
    /// A rule forbids it.
    Refused(Refused),
    /// Somebody else works on the table; it waits.
    Claimed(String),
    /// Somebody took it back, or this process stops. The flag: it was taken back.
    Stopped(bool),
    /// It failed.
    Failed(Kind, String),
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// The dataset's canonical URI, once it is known.
    pub uri: Option<String>,
    /// The name that the dataset declares, once it was looked at.
    pub lineage: Option<String>,
    /// The definition, once it is decided.
    pub definition: Option<Definition>,
    /// The version that the build made.
    pub version: Option<u64>,
    /// The index as it then stands.
    pub index: Option<IndexInfo>,
    /// What it answered when it was asked.
    pub check: Option<IndexCheck>,
    /// Bytes of the index.
    pub bytes: u64,
    /// Seconds of the build and its commit.
    pub seconds: f64,
    /// What the build might have held in memory, in bytes.
    pub estimate: u64,
    /// Bytes that no version names: a commit whose loss is not proven.
    pub stranded: u64,
    /// Directories that an attempt left behind, relative to the dataset.
    pub left: Vec<String>,
    /// Segments that were built side by side, where it was more than one.
    pub segments: u32,
}

impl Outcome {
    /// One that ended before anything was done.
    pub fn of(end: End) -> Self {
        Self {
            end,
            uri: None,
            lineage: None,
            definition: None,
            version: None,
            index: None,
            check: None,
            bytes: 0,
            seconds: 0.0,
            estimate: 0,
            stranded: 0,
            left: Vec::new(),
            segments: 0,
        }
    }

    /// A failure.
    pub fn failed(kind: Kind, why: impl Into<String>) -> Self {
        Self::of(End::Failed(kind, why.into()))
    }

    /// The job's state after it; `None` while it still waits.
    pub fn state(&self) -> Option<JobState> {
        match &self.end {
            End::Built => Some(JobState::Built),
            End::Present => Some(JobState::Present),
            End::Untrained => Some(JobState::Untrained),
            End::Refused(_) => Some(JobState::Refused),
            End::Claimed(_) | End::Stopped(false) => None,
            End::Stopped(true) => Some(JobState::Cancelled),
            End::Failed(..) => Some(JobState::Failed),
        }
    }

    /// The label of `squire_index_builds_total`; `None` while it still waits.
    pub fn label(&self) -> Option<&'static str> {
        match &self.end {
            End::Built | End::Present | End::Untrained => Some("done"),
            End::Refused(_) => Some("refused"),
            End::Failed(..) => Some("failed"),
            End::Stopped(true) => Some("cancelled"),
            End::Claimed(_) | End::Stopped(false) => None,
        }
    }

    /// The stable name of why it was refused or failed.
    pub fn reason(&self) -> Option<String> {
        match &self.end {
            End::Refused(refused) => Some(refused.reason.clone()),
            End::Failed(kind, _) => Some(kind.as_str().into()),
            End::Present => Some("present".into()),
            End::Untrained => Some("untrained".into()),
            _ => None,
        }
    }

    /// A sentence for a person.
    pub fn says(&self) -> String {
        let what = self.definition.as_ref().map_or_else(|| "the index".to_string(), Definition::says);
        match &self.end {
            End::Built => self.built(&what),
            End::Present => format!("{what}: it stands there already and covers every row; nothing was written"),
            End::Untrained => {
                format!(
                    "{what}: defined, not trained: there are too few rows; maintenance trains it once there are enough"
                )
            }
            End::Refused(r) => format!("refused ({}): {}; accepted: {}", r.reason, r.detail, r.accepted),
            End::Claimed(by) => format!("{what} waits: {by}"),
            End::Stopped(true) => format!("{what}: taken back"),
            End::Stopped(false) => format!("{what}: stopped by a signal"),
            End::Failed(_, why) => why.clone(),
        }
    }

    fn built(&self, what: &str) -> String {
        let rows = self.index.as_ref().map_or(0, |i| i.indexed_rows);
        let mut out = format!(
            "{what}: version {}, {} rows, {} in {}",
            self.version.unwrap_or_default(),
            show_count(rows),
            show_bytes(self.bytes),
            show_seconds(self.seconds)
        );
        if let Some(definition) = self.definition.as_ref().filter(|d| !d.derived.is_empty()) {
            let derived = |k: &String| definition.params.get(k).map(|v| format!("{k} = {}", plain(v)));
            let derived: Vec<String> = definition.derived.iter().filter_map(derived).collect();
            out.push_str(&format!("; derived: {}", derived.join(", ")));
        }
        match &self.check {
            Some(IndexCheck { recall: Some((_, recall)), .. }) => out.push_str(&format!("; recall@10 {recall:.3}")),
            Some(IndexCheck { exact: Some(true), .. }) => out.push_str("; every sampled row is found"),
            _ => {}
        }
        if self.index.as_ref().is_some_and(|i| i.unindexed_rows > 0) {
            let late = self.index.as_ref().map_or(0, |i| i.unindexed_rows);
            out.push_str(&format!("; {} rows came meanwhile and are folded by the next pass", show_count(late)));
        }
        out
    }

    /// The result as a job's record has it.
    pub fn result(&self) -> Value {
        let mut out = Map::new();
        let mut put = |key: &str, value: Value| {
            if !value.is_null() {
                out.insert(key.into(), value);
            }
        };
        put("outcome", json!(self.state().map(|s| s.to_string())));
        put("uri", json!(self.uri));
        if let Some(d) = &self.definition {
            put("name", json!(d.name));
            put("type", json!(d.kind.as_str()));
            put("column", json!(d.column));
            put("params", json!(d.params));
            put("derived", json!(d.derived));
        }
        put("version", json!(self.version));
        if let Some(index) = &self.index {
            put("state", json!(index.state));
            put("indexed_rows", json!(index.indexed_rows));
            put("unindexed_rows", json!(index.unindexed_rows));
            put("segments", json!(index.segments.len()));
        }
        put("check", json!(self.check));
        put("bytes", json!(self.bytes));
        put("seconds", json!(self.seconds));
        put("estimated_memory_bytes", json!(self.estimate));
        if self.stranded > 0 {
            put("stranded_bytes", json!(self.stranded));
        }
        if !self.left.is_empty() {
            put("left_behind", json!(self.left));
        }
        put("reason", json!(self.reason()));
        put("detail", json!(self.says()));
        if let End::Refused(r) = &self.end {
            put("accepted", json!(r.accepted));
        }
        Value::Object(out)
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
