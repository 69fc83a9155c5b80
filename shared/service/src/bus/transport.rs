//! The interface that the two buses fill: streams, one consumer at a time, and what can be done with a delivery.
//!
//! Everything above it (envelopes, the judgement of attempts, dead letters, metrics) is written once, so that the two
//! cannot differ there; what is below is held together by one suite of tests that runs against both.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};

use super::error::Result;
use super::name::{EstateToken, Queue, Stream};

/// The version of the streams' settings. A newer build raises it and changes the streams; an older one takes them as
/// they are.
pub(super) const STREAM_VERSION: u32 = 1;

const DAY: Duration = Duration::from_secs(86_400);

/// How a stream keeps its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StreamSpec {
    pub(super) stream: Stream,
    pub(super) name: String,
    pub(super) subjects: String,
    /// A message is gone once it is acknowledged, and a subject holds one at most: another is refused.
    pub(super) queue: bool,
    /// The newest so many of a subject are kept (streams that are no queues).
    pub(super) per_subject: Option<u32>,
    pub(super) max_age: Option<Duration>,
    /// How long a message's id is remembered.
    pub(super) duplicates: Duration,
}

impl StreamSpec {
    pub(super) fn of(estate: &EstateToken, stream: Stream) -> Self {
        let queue = matches!(stream, Stream::Ticks | Stream::Work | Stream::Index);
        let (per_subject, max_age) = match stream {
            Stream::Ticks | Stream::Work | Stream::Index => (None, None),
            // The latest state of a table is what counts; sixteen leave time to see a malformed message.
            Stream::Tables => (Some(16), Some(7 * DAY)),
            Stream::Events => (None, Some(7 * DAY)),
            // A dataset that is given up at every tick must not fill the disk.
            Stream::Dead => (Some(100), None),
            Stream::Returns => (Some(1), Some(7 * DAY)),
        };
        // Replicas' clocks differ, and an instant is published until it is recorded.
        let duplicates = if stream == Stream::Ticks { 600 } else { 120 };
        Self {
            stream,
            name: estate.stream(stream),
            subjects: estate.subjects(stream),
            queue,
            per_subject,
            max_age,
            duplicates: Duration::from_secs(duplicates),
        }
    }

    pub(super) fn all(estate: &EstateToken) -> Vec<Self> {
        Stream::ALL.iter().map(|s| Self::of(estate, *s)).collect()
    }
}

/// A consumer to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConsumerSpec {
    pub(super) stream: StreamSpec,
    pub(super) durable: String,
    pub(super) filter: String,
    pub(super) ack_wait: Duration,
}

impl ConsumerSpec {
    pub(super) fn of(estate: &EstateToken, queue: &Queue, ack_wait: Duration) -> Result<Self> {
        Ok(Self {
            stream: StreamSpec::of(estate, queue.stream()),
            durable: queue.durable()?,
            filter: queue.filter(estate),
            ack_wait,
        })
    }
}

/// How publishing ended; none of these is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Published {
    /// It is stored.
    Stored,
    /// A message of this id was stored a moment ago; nothing was added.
    Duplicate,
    /// The queue holds a message of this subject, and one is enough; nothing was added.
    AlreadyQueued,
}

/// A delivery, as the transport hands it over.
pub(super) struct Raw {
    pub(super) subject: String,
    pub(super) sequence: u64,
    /// How often it was delivered, this time included.
    pub(super) delivered: u64,
    pub(super) published: DateTime<Utc>,
    pub(super) id: Option<String>,
    pub(super) payload: Bytes,
    pub(super) handle: Box<dyn Handle>,
}

/// What can be done with a delivery. Whoever holds it is asked by message, not by delivery: an acknowledgement that
/// comes after the message was handed to somebody else still removes it.
#[async_trait]
pub(super) trait Handle: Send + Sync {
    /// It is done; confirmed by the server.
    async fn ack(&self) -> Result<()>;
    /// It is never delivered again; confirmed by the server.
    async fn term(&self) -> Result<()>;
    /// It is delivered again after `delay`; confirmed by the server.
    async fn nak(&self, delay: Duration) -> Result<()>;
    /// It is being worked on: the ack wait starts anew.
    async fn progress(&self) -> Result<()>;
}

/// An opened consumer.
#[async_trait]
pub(super) trait Puller: Send + Sync {
    /// The next delivery, or none within `wait`.
    async fn pull(&mut self, wait: Duration) -> Result<Option<Raw>>;
}

/// A message as a stream keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) sequence: u64,
    pub(super) subject: String,
    pub(super) payload: Bytes,
}

/// What a queue holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Waiting for a worker.
    pub pending: u64,
    /// Handed to a worker and not acknowledged, or handed back with a delay.
    pub in_flight: u64,
}

#[async_trait]
pub(super) trait Transport: Send + Sync + fmt::Debug {
    /// Stores a message. `id` is remembered for the stream's window of duplicates.
    async fn publish(&self, stream: &StreamSpec, subject: &str, id: &str, payload: Bytes) -> Result<Published>;
    async fn open(&self, consumer: ConsumerSpec) -> Result<Box<dyn Puller>>;
    /// The newest message of a subject.
    async fn newest(&self, stream: &StreamSpec, subject: &str) -> Result<Option<Stored>>;
    /// The first message at or after a sequence that fits a filter.
    async fn next(&self, stream: &StreamSpec, filter: &str, from: u64) -> Result<Option<Stored>>;
    async fn delete(&self, stream: &StreamSpec, sequence: u64) -> Result<bool>;
    async fn count(&self, stream: &StreamSpec, filter: &str) -> Result<u64>;
    async fn depth(&self, stream: &StreamSpec) -> Result<Depth>;
    /// Whether the connection stands, without asking the server.
    fn connected(&self) -> bool;
    /// Asks the server, and sees that the streams answer.
    async fn ready(&self) -> Result<()>;
    /// `embedded`, or the server's version.
    fn describe(&self) -> String;
}
