//! The data of messages. Every one of them carries names only: no location outside the registry and the configuration,
//! no credential and no option comes from a message (invariant `messages_carry_names`). What a URI in a message names
//! must be known already, or it is no work.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::event::{Event, EventType};
use super::name::Task;
use crate::report::{CleanupStep, Dataset, Finding, ReportKind, Totals};

/// `tick.due`: an instant of a schedule has come, or somebody asked for a tick.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TickDue {
    /// What it starts.
    pub job: Task,
    /// The instant.
    pub instant: DateTime<Utc>,
    /// Only these datasets, as FACES' `--dataset` takes them; all that are due when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datasets: Vec<String>,
}

/// `pass.requested`: a dataset is due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassRequested {
    /// The sweep.
    pub run: Uuid,
    /// The dataset, by its canonical URI.
    pub uri: String,
    /// Somebody asked for it, so it is due whenever it was maintained last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hand: bool,
}

/// `slice.requested`: one slice of a compaction whose plan is stored under its run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRequested {
    /// The run.
    pub run: Uuid,
    /// The dataset, by its canonical URI.
    pub uri: String,
    /// The slice's number.
    pub slice: u32,
}

/// `commit.requested`: the slices of a compaction have their results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRequested {
    /// The run.
    pub run: Uuid,
    /// The dataset, by its canonical URI.
    pub uri: String,
}

/// Inbound `table.changed`: a table was written. At least one of its names is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableChanged {
    /// The table's SUBJECT or path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// The dataset's URI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// The version that was written, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// `segment.requested`: one segment of an index build whose plan is stored under its run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRequested {
    /// The run.
    pub run: Uuid,
    /// The dataset, by its canonical URI.
    pub uri: String,
    /// The segment's number.
    pub segment: u32,
}

/// Inbound `index.build`: a request for an index on a registered table. A field that is not one of these is no slip of a newer
/// client but an attempt to say more than names, and makes it a dead letter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexBuild {
    /// The table's SUBJECT or path.
    pub table: String,
    /// Columns, in order.
    pub columns: Vec<String>,
    /// The index type.
    #[serde(rename = "type")]
    pub index_type: String,
    /// The index's name; made from the columns when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Parameters of the type.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// What to do where an index of the name exists.
    #[serde(default)]
    pub mode: BuildMode,
    /// Who asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_by: Option<String>,
    /// The asker's id of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// What an index build does where an index of its name exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildMode {
    /// Builds where there is none of this definition.
    #[default]
    Create,
    /// Builds anew.
    Replace,
    /// Builds where there is none of this definition and the rows are enough to train it; otherwise makes no definition.
    TrainIfPossible,
}

/// The largest parameters in a message, as JSON.
const LARGEST_PARAMS: usize = 64 << 10;
/// The longest name in a message.
const LONGEST_NAME: usize = 4096;

fn check_name(what: &str, text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err(format!("its {what} is empty"));
    }
    if text.len() > LONGEST_NAME {
        return Err(format!("its {what} has {} bytes, more than {LONGEST_NAME}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("its {what} holds a control character"));
    }
    Ok(())
}

impl TableChanged {
    fn check(&self) -> Result<(), String> {
        match (&self.table, &self.uri) {
            (None, None) => Err("it names neither a table nor a uri".to_owned()),
            (table, uri) => {
                table.as_deref().map_or(Ok(()), |t| check_name("table", t))?;
                uri.as_deref().map_or(Ok(()), |u| check_name("uri", u))
            }
        }
    }
}

impl IndexBuild {
    fn check(&self) -> Result<(), String> {
        check_name("table", &self.table)?;
        check_name("type", &self.index_type)?;
        if self.columns.is_empty() || self.columns.len() > 64 {
            return Err(format!("it names {} columns; 1 to 64 are expected", self.columns.len()));
        }
        self.columns.iter().try_for_each(|c| check_name("column", c))?;
        for (what, name) in
            [("name", &self.name), ("requested_by", &self.requested_by), ("request_id", &self.request_id)]
        {
            name.as_deref().map_or(Ok(()), |n| check_name(what, n))?;
        }
        let params = serde_json::to_vec(&self.params).map_or(usize::MAX, |text| text.len());
        if params > LARGEST_PARAMS {
            return Err(format!("its params have {params} bytes, more than {LARGEST_PARAMS}"));
        }
        Ok(())
    }
}

/// What a message asks for, read strictly: every field has its type, and unknown fields are ignored.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// A tick.
    Tick(TickDue),
    /// A pass.
    Pass(PassRequested),
    /// A slice.
    Slice(SliceRequested),
    /// A commit.
    Commit(CommitRequested),
    /// An index build.
    Build(IndexBuild),
    /// A segment of an index build.
    Segment(SegmentRequested),
    /// A table was written.
    Changed(TableChanged),
    /// Anything else that happened; its data stands in the event.
    Other(EventType),
}

impl Request {
    /// Reads what an event of a known type asks for.
    ///
    /// # Errors
    /// What is wrong with it, in one sentence.
    pub fn of(kind: EventType, event: &Event) -> Result<Self, String> {
        let uri = |uri: &str| check_name("uri", uri);
        Ok(match kind {
            EventType::TickDue => Self::Tick(event.data()?),
            EventType::PassRequested => {
                let data: PassRequested = event.data()?;
                uri(&data.uri)?;
                Self::Pass(data)
            }
            EventType::SliceRequested => {
                let data: SliceRequested = event.data()?;
                uri(&data.uri)?;
                Self::Slice(data)
            }
            EventType::CommitRequested => {
                let data: CommitRequested = event.data()?;
                uri(&data.uri)?;
                Self::Commit(data)
            }
            EventType::IndexBuild => {
                let data: IndexBuild = event.data()?;
                data.check()?;
                Self::Build(data)
            }
            EventType::SegmentRequested => {
                let data: SegmentRequested = event.data()?;
                uri(&data.uri)?;
                Self::Segment(data)
            }
            EventType::TableChanged => {
                let data: TableChanged = event.data()?;
                data.check()?;
                Self::Changed(data)
            }
            other => Self::Other(other),
        })
    }
}

/// `run.started` and `run.finished`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunData {
    /// The run.
    pub run: Uuid,
    /// What kind of run.
    pub kind: ReportKind,
    /// What started it.
    pub command: String,
    /// The report's totals, once it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totals: Option<Totals>,
}

/// `pass.completed` and `pass.failed`: the report's row of the dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PassData {
    /// The run.
    pub run: Uuid,
    /// The name that the dataset declares in `lineage.dataset_id`, when it is its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// The same fields as in the report.
    #[serde(flatten)]
    pub dataset: Dataset,
}

/// `versions.reclaimed`: the report's clean-up step of the dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VersionsData {
    /// The run.
    pub run: Uuid,
    /// The dataset, by its canonical URI.
    pub uri: String,
    /// Its declared lineage name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// The same fields as in the report.
    #[serde(flatten)]
    pub cleanup: CleanupStep,
}

/// `plan.awaiting` and `reclaim.applied`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanData {
    /// The run.
    pub run: Uuid,
    /// The plan.
    pub plan: Uuid,
    /// Its digest.
    pub digest: String,
    /// What it would do, or did.
    pub items: u64,
    /// The bytes of it.
    pub bytes: u64,
    /// What of it failed; 0 in a plan that waits.
    #[serde(default)]
    pub failed: u64,
}

/// `block.filed`, `block.lifted`, `policy.changed`, `protection.changed`, `table.dropped`, `table.undropped`: a record of
/// the registry changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordData {
    /// The run that did it, where a run did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Uuid>,
    /// The record's id: a block's, a trash record's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The dataset, by its canonical URI, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// Its declared lineage name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// Why, in the words of who did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// What stood there before.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub before: Value,
    /// What stands there now.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub after: Value,
    /// When it ends (a block), comes to effect (a policy) or runs out (trash).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<DateTime<Utc>>,
}

/// `index.requested`, `index.built`, `index.refused`, `index.failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexData {
    /// The run that built, or refused to.
    pub run: Uuid,
    /// The job, as `jobs show` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The dataset, by its canonical URI, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// Its declared lineage name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// What was asked for.
    #[serde(flatten)]
    pub request: IndexBuild,
    /// Why it was refused or failed, or that it stood there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Details for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The version that the build made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Rows that the index covers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indexed_rows: Option<u64>,
}

/// `finding.new` and `finding.gone`: all of one run about one subject, since their id is run, type and subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FindingsData {
    /// The run.
    pub run: Uuid,
    /// The dataset, by its canonical URI, where they are about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// Its declared lineage name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// The findings, as the report has them.
    pub findings: Vec<Finding>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn read(kind: EventType, data: Value) -> Result<Request, String> {
        let time = DateTime::UNIX_EPOCH;
        let event = Event::new(Uuid::nil(), "1".into(), kind, "estate", time, &data).expect("made");
        Request::of(kind, &event)
    }

    #[test]
    fn a_changed_table_is_read_with_whatever_else_stands_there() {
        let got = read(EventType::TableChanged, json!({ "table": "table/a/b/t", "version": 7, "engine": { "x": [] } }));
        let want = TableChanged { table: Some("table/a/b/t".into()), uri: None, version: Some(7) };
        assert_eq!(got, Ok(Request::Changed(want)));
        for wrong in [
            json!({}),
            json!(null),
            json!([]),
            json!({ "table": 7 }),
            json!({ "table": "" }),
            json!({ "table": "a\u{0}b" }),
            json!({ "uri": "s3://a", "version": -1 }),
            json!({ "uri": "x".repeat(5000) }),
        ] {
            assert!(read(EventType::TableChanged, wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_build_names_table_columns_and_type() {
        let got = read(EventType::IndexBuild, json!({ "table": "table/t", "columns": ["a"], "type": "BTREE" }));
        let Ok(Request::Build(build)) = got else { panic!("{got:?}") };
        assert_eq!((build.mode, build.name, build.params.len()), (BuildMode::Create, None, 0));
        for wrong in [
            json!({ "table": "table/t", "columns": [], "type": "BTREE" }),
            json!({ "table": "table/t", "columns": "a", "type": "BTREE" }),
            json!({ "table": "table/t", "columns": ["a"] }),
            json!({ "columns": ["a"], "type": "BTREE" }),
            json!({ "table": "table/t", "columns": ["a"], "type": "BTREE", "params": [] }),
            json!({ "table": "table/t", "columns": ["a"], "type": "BTREE", "mode": "drop" }),
            json!({ "table": "table/t", "columns": vec!["a"; 65], "type": "BTREE" }),
            json!({ "table": "table/t", "columns": ["a"], "type": "BTREE", "location": "s3://elsewhere/t" }),
            json!({ "table": "table/t", "columns": ["a"], "type": "BTREE", "storage_options": { "key": "x" } }),
            json!({ "table": "table/t", "columns": ["a"], "type": "BTREE", "params": { "x": "y".repeat(70_000) } }),
        ] {
            assert!(read(EventType::IndexBuild, wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn work_is_read_strictly() {
        let run = "0190d2c0-0000-7000-8000-000000000001";
        assert!(read(EventType::PassRequested, json!({ "run": run, "uri": "s3://lake/a" })).is_ok());
        assert!(read(EventType::PassRequested, json!({ "run": run, "uri": "" })).is_err());
        assert!(read(EventType::PassRequested, json!({ "run": "x", "uri": "s3://lake/a" })).is_err());
        assert!(read(EventType::SliceRequested, json!({ "run": run, "uri": "s3://lake/a", "slice": -1 })).is_err());
        assert!(read(EventType::TickDue, json!({ "job": "maintenance", "instant": "2026-03-01T10:00:00Z" })).is_ok());
        assert!(read(EventType::TickDue, json!({ "job": "dance", "instant": "2026-03-01T10:00:00Z" })).is_err());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        let keys = "table|uri|version|columns|type|name|params|mode|run|slice|job|instant|x";
        leaf.prop_recursive(3, 32, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(keys, inner, 0..6).prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_data_is_read_or_refused(data in any_json(), kind in prop::sample::select(EventType::ALL)) {
            let _ = read(kind, data);
        }
    }
}
