//! The names of streams, subjects and consumers (`<estate>` in every one, so that estates can share an account).

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use super::error::{BusError, Result};
use super::event::EventType;
use crate::report::names;

/// What stays as it is in a subject's token; a dot would part tokens, `*` and `>` would match.
const TOKEN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-');

names! {
    /// A stream.
    Stream {
        /// One message per schedule instant.
        Ticks,
        /// Passes, slices and commits.
        Work,
        /// Index builds.
        Index,
        /// Inbound: a table was written.
        Tables,
        /// What happened.
        Events,
        /// What was given up.
        Dead,
        /// How often a message was handed back unworked, for the judgement of its attempts; nothing for people.
        Returns,
    }
}

names! {
    /// What a tick starts.
    Task {
        /// A sweep.
        Maintenance,
        /// A reconcile run.
        Reconcile,
    }
}

/// The estate as its streams and subjects name it: `[a-z0-9-]`, at most 40 bytes, never empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EstateToken(String);

impl EstateToken {
    /// Reduces an estate's name. Every run of other bytes becomes one `-`; a name of which nothing is left, or which is
    /// too long, gets a piece of its hash. Names that reduce to the same are told apart by the estate's id in the
    /// stream's metadata.
    pub fn of(name: &str) -> Self {
        let mut out = String::new();
        for c in name.chars() {
            match c.to_ascii_lowercase() {
                c if c.is_ascii_lowercase() || c.is_ascii_digit() => out.push(c),
                _ if !out.ends_with('-') && !out.is_empty() => out.push('-'),
                _ => {}
            }
        }
        let out = out.trim_end_matches('-');
        if out.is_empty() || out.len() > 40 {
            let kept = &out[..out.len().min(31)];
            let hash = &hex(name.as_bytes())[..8];
            return Self(format!("{}-{hash}", if kept.is_empty() { "estate" } else { kept.trim_end_matches('-') }));
        }
        Self(out.to_owned())
    }

    /// The token.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of a stream, such as `SQUIRE_PROD_WORK`.
    pub fn stream(&self, stream: Stream) -> String {
        format!("SQUIRE_{}_{}", self.0.to_ascii_uppercase(), stream.as_str().to_ascii_uppercase())
    }

    /// All subjects of a stream, as a filter.
    pub fn subjects(&self, stream: Stream) -> String {
        let word = match stream {
            Stream::Ticks => "tick",
            Stream::Work => "work",
            Stream::Index => "index",
            Stream::Tables => "table",
            Stream::Events => "event",
            Stream::Dead => "dead",
            Stream::Returns => "returned",
        };
        format!("squire.{}.{word}.>", self.0)
    }

    /// The subject of an address.
    pub fn subject(&self, address: &Address) -> String {
        let tail = match address {
            Address::Tick(task) => format!("tick.{}", task.as_str()),
            Address::Pass(key) => format!("work.pass.{key}"),
            Address::Slice(key) => format!("work.slice.{key}"),
            Address::Commit(key) => format!("work.commit.{key}"),
            Address::Build(key) => format!("index.build.{key}"),
            Address::Segment(key) => format!("index.segment.{key}"),
            Address::Changed(path) => {
                let path: Vec<String> = path.iter().map(|s| token(s)).collect();
                format!("table.changed.{}", path.join("."))
            }
            Address::Event(kind) => format!("event.{}", kind.as_str()),
        };
        format!("squire.{}.{tail}", self.0)
    }

    /// Where a message of `subject` is put when it is given up: `squire.<e>.dead.` and what follows the estate.
    pub(super) fn dead(&self, subject: &str) -> String {
        format!("squire.{}.dead.{}", self.0, self.tail(subject))
    }

    /// The subject that a dead letter of this subject came from.
    pub(super) fn undead(&self, dead: &str) -> Option<String> {
        let tail = dead.strip_prefix(&format!("squire.{}.dead.", self.0))?;
        Some(format!("squire.{}.{tail}", self.0))
    }

    /// Dead letters that came from a stream, as a filter.
    pub(super) fn dead_of(&self, stream: Stream) -> String {
        self.dead(&self.subjects(stream))
    }

    pub(super) fn returned(&self, stream: Stream, sequence: u64) -> String {
        format!("squire.{}.returned.{}.{sequence}", self.0, stream.as_str())
    }

    fn tail<'a>(&self, subject: &'a str) -> &'a str {
        subject.strip_prefix("squire.").and_then(|s| s.strip_prefix(&self.0)).map_or(subject, |s| &s[1..])
    }

    /// The stream that a subject belongs to.
    pub fn stream_of(&self, subject: &str) -> Option<Stream> {
        Stream::ALL.iter().copied().find(|s| matches(&self.subjects(*s), subject))
    }

    /// The table's path in a subject of [`Stream::Tables`]: what follows `table.changed.`, decoded.
    pub fn table_path(&self, subject: &str) -> Option<Vec<String>> {
        let tail = subject.strip_prefix(&format!("squire.{}.table.changed.", self.0))?;
        tail.split('.').map(|t| percent_decode_str(t).decode_utf8().ok().map(|s| s.into_owned())).collect()
    }
}

impl fmt::Display for EstateToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One token of a subject: bytes outside `[A-Za-z0-9_-]` percent-encoded.
pub fn token(text: &str) -> String {
    utf8_percent_encode(text, TOKEN).to_string()
}

/// The last token of a work subject: the first 20 hex digits of a SHA-256 (URIs have dots).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// Of a dataset, by its canonical URI: at most one pass and one commit of it are queued.
    pub fn of_uri(uri: &str) -> Self {
        Self::of(&[uri])
    }

    /// Of one slice of a run on a dataset: slices of one compaction are queued side by side.
    pub fn of_slice(uri: &str, run: uuid::Uuid, slice: u32) -> Self {
        Self::of(&[uri, &run.to_string(), &slice.to_string()])
    }

    /// Of an index: its table, columns in order, type and name.
    pub fn of_index(table: &str, columns: &[String], index_type: &str, name: &str) -> Self {
        Self::of(&[table, &columns.join("\u{1}"), index_type, name])
    }

    fn of(parts: &[&str]) -> Self {
        // A single part is hashed as it is; a NUL parts several, for no name holds one.
        Self(hex(parts.join("\0").as_bytes())[..20].to_owned())
    }

    /// The 20 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a message goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// The tick of a task; one may wait.
    Tick(Task),
    /// A dataset's pass; one may wait.
    Pass(Key),
    /// A slice of a large compaction.
    Slice(Key),
    /// The commit of a compaction in slices; one may wait.
    Commit(Key),
    /// An index build; one of the same definition may wait.
    Build(Key),
    /// A segment of an index build.
    Segment(Key),
    /// That a table was written, by its path.
    Changed(Vec<String>),
    /// Something that happened.
    Event(EventType),
}

impl Address {
    /// The stream that keeps it.
    pub fn stream(&self) -> Stream {
        match self {
            Self::Tick(_) => Stream::Ticks,
            Self::Pass(_) | Self::Slice(_) | Self::Commit(_) => Stream::Work,
            Self::Build(_) | Self::Segment(_) => Stream::Index,
            Self::Changed(_) => Stream::Tables,
            Self::Event(_) => Stream::Events,
        }
    }
}

/// What a consumer takes from; replicas that open the same one share its messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Queue {
    /// Ticks of one task.
    Tick(Task),
    /// Passes.
    Pass,
    /// Slices.
    Slice,
    /// Commits of sliced compactions.
    Commit,
    /// Index builds.
    Build,
    /// Segments of index builds.
    Segment,
    /// Changes of tables, once per service.
    Tables(String),
    /// Events, once per name of a listener.
    Events(String),
}

impl Queue {
    /// The stream it takes from.
    pub fn stream(&self) -> Stream {
        match self {
            Self::Tick(_) => Stream::Ticks,
            Self::Pass | Self::Slice | Self::Commit => Stream::Work,
            Self::Build | Self::Segment => Stream::Index,
            Self::Tables(_) => Stream::Tables,
            Self::Events(_) => Stream::Events,
        }
    }

    /// The durable name of its consumer.
    ///
    /// # Errors
    /// When the name of a service or listener is no token.
    pub fn durable(&self) -> Result<String> {
        let named = |prefix: &str, name: &str| {
            let fits = !name.is_empty() && name.len() <= 60 && name == token(name);
            fits.then(|| format!("{prefix}-{name}")).ok_or_else(|| {
                BusError::Invalid(format!("`{name}` is no name of a listener; use letters, digits, `-` and `_`"))
            })
        };
        match self {
            Self::Tick(task) => Ok(format!("tick-{}", task.as_str())),
            Self::Pass => Ok("pass".to_owned()),
            Self::Slice => Ok("slice".to_owned()),
            Self::Commit => Ok("commit".to_owned()),
            Self::Build => Ok("build".to_owned()),
            Self::Segment => Ok("segment".to_owned()),
            Self::Tables(service) => named("tables", service),
            Self::Events(listener) => named("events", listener),
        }
    }

    /// The subjects it takes.
    pub fn filter(&self, estate: &EstateToken) -> String {
        match self {
            Self::Tick(task) => format!("squire.{estate}.tick.{}", task.as_str()),
            Self::Pass => format!("squire.{estate}.work.pass.*"),
            Self::Slice => format!("squire.{estate}.work.slice.*"),
            Self::Commit => format!("squire.{estate}.work.commit.*"),
            Self::Build => format!("squire.{estate}.index.build.*"),
            Self::Segment => format!("squire.{estate}.index.segment.*"),
            Self::Tables(_) => estate.subjects(Stream::Tables),
            Self::Events(_) => estate.subjects(Stream::Events),
        }
    }
}

/// Whether a subject fits a filter with `*` (one token) and `>` (one or more at the end).
pub(super) fn matches(filter: &str, subject: &str) -> bool {
    let mut subject = subject.split('.');
    for want in filter.split('.') {
        match (want, subject.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (want, Some(got)) if want == got => {}
            _ => return false,
        }
    }
    subject.next().is_none()
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        // Writing into a String cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estates_name_is_reduced() {
        for (name, token) in [("prod", "prod"), ("Prod EU.1", "prod-eu-1"), ("--a__b--", "a-b"), ("日本", "")] {
            let got = EstateToken::of(name);
            if name == "日本" {
                assert!(got.as_str().starts_with("estate-") && got.as_str().len() == 15, "{got}");
            } else {
                assert_eq!(got.as_str(), token);
            }
        }
        assert_eq!(EstateToken::of(&"a".repeat(40)).as_str().len(), 40);
        let long = EstateToken::of(&"a".repeat(41));
        assert_eq!(long.as_str().len(), 40);
        assert_ne!(long, EstateToken::of(&"a".repeat(42)));
    }

    #[test]
    fn streams_and_subjects_are_named_as_designed() {
        let e = EstateToken::of("prod");
        assert_eq!(e.stream(Stream::Work), "SQUIRE_PROD_WORK");
        // printf 's3://lake/a.lance' | sha256sum
        let key = Key::of_uri("s3://lake/a.lance");
        assert_eq!(key.as_str(), "30555cc61a488406de50");
        assert_eq!(e.subject(&Address::Pass(key)), "squire.prod.work.pass.30555cc61a488406de50");
        assert_eq!(e.subject(&Address::Tick(Task::Reconcile)), "squire.prod.tick.reconcile");
        let path = ["a.b".to_owned(), "c*".to_owned(), "t_1-x".to_owned()].to_vec();
        let subject = e.subject(&Address::Changed(path.clone()));
        assert_eq!(subject, "squire.prod.table.changed.a%2Eb.c%2A.t_1-x");
        assert_eq!(e.table_path(&subject), Some(path));
        assert_eq!(e.stream_of(&subject), Some(Stream::Tables));
        assert_eq!(e.subject(&Address::Event(EventType::PassCompleted)), "squire.prod.event.pass.completed");
        assert_eq!(e.dead("squire.prod.work.pass.0a"), "squire.prod.dead.work.pass.0a");
        assert_eq!(e.undead("squire.prod.dead.work.pass.0a").as_deref(), Some("squire.prod.work.pass.0a"));
        assert_eq!(e.dead_of(Stream::Work), "squire.prod.dead.work.>");
    }

    #[test]
    fn slices_of_one_run_have_keys_of_their_own() {
        let run = uuid::Uuid::nil();
        assert_ne!(Key::of_slice("s3://a", run, 1), Key::of_slice("s3://a", run, 2));
        assert_ne!(Key::of_slice("s3://a", run, 1), Key::of_uri("s3://a"));
    }

    #[test]
    fn filters_match_whole_tokens() {
        assert!(matches("squire.a.work.pass.*", "squire.a.work.pass.x"));
        assert!(!matches("squire.a.work.pass.*", "squire.a.work.pass.x.y"));
        assert!(!matches("squire.a.work.pass.*", "squire.a.work.pass"));
        assert!(matches("squire.a.event.>", "squire.a.event.pass.completed"));
        assert!(!matches("squire.a.event.>", "squire.a.event"));
        assert!(!matches("squire.a.event.>", "squire.ab.event.x"));
    }
}
