//! The envelope: CloudEvents 1.0 in JSON.

use std::fmt;
use std::sync::OnceLock;

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::error::{BusError, Result};

/// The version of the messages that this build writes between its own parts (ticks and work), and the highest that it
/// understands of any message.
pub const MESSAGE_VERSION: u32 = 1;

static SPOKEN: OnceLock<u32> = OnceLock::new();

/// The version that this process speaks: [`MESSAGE_VERSION`], unless it stands in for another build.
pub(super) fn spoken() -> u32 {
    *SPOKEN.get_or_init(|| MESSAGE_VERSION)
}

/// Lets this process stand in for a build of this version, before it opens a bus. For the programs of tests that a rolling
/// upgrade needs (`examples/`); no option of a shipped program leads here.
#[doc(hidden)]
pub fn stand_in_for_version(version: u32) {
    let _ = SPOKEN.set(version);
}
/// The largest message that is read.
pub(super) const LARGEST: usize = 1 << 20;

macro_rules! event_types {
    ($($(#[$meta:meta])* $variant:ident = $text:literal),+ $(,)?) => {
        /// What a message says: the part of its type between `io.squire.` and the version.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum EventType { $($(#[$meta])* $variant),+ }

        impl EventType {
            /// All types, in the order in which they are declared.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// `noun.verb`.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}

event_types! {
    /// A run began.
    RunStarted = "run.started",
    /// A run ended.
    RunFinished = "run.finished",
    /// A dataset was maintained, or needed nothing.
    PassCompleted = "pass.completed",
    /// A dataset failed.
    PassFailed = "pass.failed",
    /// Versions were removed.
    VersionsReclaimed = "versions.reclaimed",
    /// A plan waits for somebody to apply it.
    PlanAwaiting = "plan.awaiting",
    /// A block was filed.
    BlockFiled = "block.filed",
    /// A block was lifted.
    BlockLifted = "block.lifted",
    /// A policy was set or unset.
    PolicyChanged = "policy.changed",
    /// A protection was set or unset.
    ProtectionChanged = "protection.changed",
    /// A table was dropped.
    TableDropped = "table.dropped",
    /// A dropped table came back.
    TableUndropped = "table.undropped",
    /// An index build was asked for.
    IndexRequested = "index.requested",
    /// An index was built.
    IndexBuilt = "index.built",
    /// An index build was refused.
    IndexRefused = "index.refused",
    /// An index build failed.
    IndexFailed = "index.failed",
    /// Findings that stood in no report before.
    FindingNew = "finding.new",
    /// Findings that stand no more.
    FindingGone = "finding.gone",
    /// A reclaim plan was applied.
    ReclaimApplied = "reclaim.applied",
    /// A message was given up.
    MessageDead = "message.dead",
    /// Inbound: a table was written.
    TableChanged = "table.changed",
    /// Inbound: a request for an index.
    IndexBuild = "index.build",
    /// Between replicas: a schedule's instant has come.
    TickDue = "tick.due",
    /// Between replicas: a dataset is due.
    PassRequested = "pass.requested",
    /// Between replicas: a slice of a large compaction.
    SliceRequested = "slice.requested",
    /// Between replicas: all slices are there.
    CommitRequested = "commit.requested",
    /// Between replicas: a segment of an index build.
    SegmentRequested = "segment.requested",
}

impl EventType {
    /// The type as the envelope has it, such as `io.squire.pass.completed.v1`.
    pub fn versioned(self, version: u32) -> String {
        format!("io.squire.{}.v{version}", self.as_str())
    }

    /// Whether it only travels between parts of Squire, so that its version may rise with a build.
    pub fn is_internal(self) -> bool {
        matches!(
            self,
            Self::TickDue | Self::PassRequested | Self::SliceRequested | Self::CommitRequested | Self::SegmentRequested
        )
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|t| t.as_str() == text)
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A CloudEvent in structured JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Always `1.0`.
    pub specversion: String,
    /// Run, type and subject; two events with one id are one event.
    pub id: String,
    /// `/estates/<id>`.
    pub source: String,
    /// `io.squire.<noun>.<verb>.v<version>`.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The SUBJECT it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// When it happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<DateTime<Utc>>,
    /// `application/json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datacontenttype: Option<String>,
    /// The trace it belongs to, as the W3C writes it (a CloudEvents extension); kept as text, whatever it is.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "text_or_nothing")]
    pub traceparent: Option<String>,
    /// What the type says it is.
    #[serde(default)]
    pub data: Value,
}

/// An extension of another type than ours is no reason to refuse an event.
fn text_or_nothing<'de, D: serde::Deserializer<'de>>(value: D) -> std::result::Result<Option<String>, D::Error> {
    Ok(match Value::deserialize(value)? {
        Value::String(text) => Some(text),
        _ => None,
    })
}

impl Event {
    /// An event of a run: its id is `<run>/<noun>.<verb>/<subject>`.
    ///
    /// # Errors
    /// [`BusError::Invalid`] when the data cannot be written as JSON.
    pub fn of_run(
        estate: Uuid,
        run: Uuid,
        kind: EventType,
        subject: &str,
        time: DateTime<Utc>,
        data: &impl Serialize,
    ) -> Result<Self> {
        let id = format!("{run}/{kind}/{subject}");
        Self::new(estate, id, kind, subject, time, data)
    }

    /// An event with an id of its own.
    ///
    /// # Errors
    /// As [`Event::of_run`].
    pub fn new(
        estate: Uuid,
        id: String,
        kind: EventType,
        subject: &str,
        time: DateTime<Utc>,
        data: &impl Serialize,
    ) -> Result<Self> {
        let data = serde_json::to_value(data)
            .map_err(|e| BusError::Invalid(format!("the data of {kind} about {subject} is no JSON: {e}")))?;
        Ok(Self {
            specversion: "1.0".to_owned(),
            id,
            source: source_of(estate),
            event_type: kind.versioned(MESSAGE_VERSION),
            subject: Some(subject.to_owned()),
            time: Some(time),
            datacontenttype: Some("application/json".to_owned()),
            traceparent: crate::telemetry::traceparent(),
            data,
        })
    }

    /// Type and version, where the type is one of ours.
    pub fn kind(&self) -> Option<(EventType, u32)> {
        let rest = self.event_type.strip_prefix("io.squire.")?;
        let (name, version) = rest.rsplit_once(".v")?;
        Some((EventType::parse(name)?, version.parse().ok()?))
    }

    /// The version of a type in our namespace, also of one that this build does not know.
    pub(super) fn version(&self) -> Option<u32> {
        self.event_type.strip_prefix("io.squire.")?.rsplit_once(".v")?.1.parse().ok()
    }

    /// The data, as the type's own structure. Unknown fields are ignored.
    ///
    /// # Errors
    /// What is wrong with it, in one sentence.
    pub fn data<T: DeserializeOwned>(&self) -> Result<T, String> {
        T::deserialize(&self.data).map_err(|e| format!("the data of {}: {e}", self.event_type))
    }

    /// The event as JSON.
    ///
    /// # Errors
    /// [`BusError::Invalid`] when it cannot be written as JSON.
    pub fn to_bytes(&self) -> Result<Bytes> {
        let text = serde_json::to_vec(self)
            .map_err(|e| BusError::Invalid(format!("the event {} cannot be written as JSON: {e}", self.id)))?;
        Ok(Bytes::from(text))
    }

    /// Reads an event. Unknown attributes are ignored, as the specification asks.
    ///
    /// # Errors
    /// What is wrong with it, in one sentence.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > LARGEST {
            return Err(format!("{} bytes are more than the {LARGEST} that are read", bytes.len()));
        }
        let event: Self = serde_json::from_slice(bytes).map_err(|e| format!("no CloudEvent in JSON: {e}"))?;
        if event.specversion != "1.0" {
            return Err(format!("CloudEvents {:?} instead of 1.0", event.specversion));
        }
        for (name, value) in [("id", &event.id), ("source", &event.source), ("type", &event.event_type)] {
            if value.is_empty() {
                return Err(format!("its {name} is empty"));
            }
        }
        Ok(event)
    }
}

/// The source of an estate's events.
pub fn source_of(estate: Uuid) -> String {
    format!("/estates/{estate}")
}

/// An instant as ids and subjects have it, to the second: `2026-03-01T10:00:00Z`.
pub fn instant_text(instant: DateTime<Utc>) -> String {
    instant.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn time() -> DateTime<Utc> {
        "2026-03-01T10:00:00Z".parse().expect("a time")
    }

    #[test]
    fn an_event_is_cloudevents_json() {
        let data = serde_json::json!({ "uri": "s3://lake/a" });
        let event = Event::of_run(Uuid::nil(), Uuid::nil(), EventType::PassCompleted, "table/a/b", time(), &data);
        let text = String::from_utf8(event.expect("made").to_bytes().expect("JSON").to_vec()).expect("UTF-8");
        assert_eq!(
            text,
            "{\"specversion\":\"1.0\",\"id\":\"00000000-0000-0000-0000-000000000000/pass.completed/table/a/b\",\
             \"source\":\"/estates/00000000-0000-0000-0000-000000000000\",\"type\":\"io.squire.pass.completed.v1\",\
             \"subject\":\"table/a/b\",\"time\":\"2026-03-01T10:00:00Z\",\"datacontenttype\":\"application/json\",\
             \"data\":{\"uri\":\"s3://lake/a\"}}"
        );
    }

    #[test]
    fn unknown_attributes_pass_and_wrong_types_do_not() {
        let ok = br#"{"specversion":"1.0","id":"1","source":"x","type":"io.squire.table.changed.v1","more":[1]}"#;
        let event = Event::from_bytes(ok).expect("read");
        assert_eq!(event.kind(), Some((EventType::TableChanged, 1)));
        for wrong in [
            &b"{"[..],
            b"\xff\xfe",
            b"[]",
            br#"{"specversion":"1.0","id":1,"source":"x","type":"t"}"#,
            br#"{"specversion":"0.3","id":"1","source":"x","type":"t"}"#,
            br#"{"specversion":"1.0","id":"","source":"x","type":"t"}"#,
            br#"{"specversion":"1.0","id":"1","source":"x","type":"t","time":"yesterday"}"#,
        ] {
            assert!(Event::from_bytes(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
        assert!(Event::from_bytes(&vec![b' '; LARGEST + 1]).is_err());
    }

    #[test]
    fn a_type_that_is_not_ours_has_no_kind() {
        let with = |event_type: &str| {
            let text = format!(r#"{{"specversion":"1.0","id":"1","source":"x","type":"{event_type}"}}"#);
            Event::from_bytes(text.as_bytes()).expect("read")
        };
        assert_eq!(with("com.example.x.v1").kind(), None);
        assert_eq!(with("io.squire.pass.requested").kind(), None);
        assert_eq!(with("io.squire.pass.requested.v-1").kind(), None);
        assert_eq!(with("io.squire.pass.requested.v7").kind(), Some((EventType::PassRequested, 7)));
        assert_eq!(with("io.squire.new.thing.v7").version(), Some(7));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Event::from_bytes(&bytes);
        }

        #[test]
        fn any_type_is_read_or_refused(text in ".*") {
            let event = Event { event_type: text, ..Event::new(
                Uuid::nil(), "1".into(), EventType::TickDue, "estate", time(), &()).expect("made") };
            let _ = (event.kind(), event.version());
        }
    }
}
