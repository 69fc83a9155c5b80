//! The bus: how ticks, work and events travel between the replicas of an estate.
//!
//! One interface, two implementations with the same semantics: NATS JetStream, and in-process where no NATS is
//! configured. Queues hold at most one message per subject, a message is handed to one worker at a time, and it goes only
//! when that worker says so. What a consumer hands out was judged before: too many attempts, a malformed message or one of
//! another estate goes to the dead letters, one of a newer build is handed back. Only this module imports the NATS client.
//!
//! Streams and subjects: see [`name`]. Envelopes: CloudEvents 1.0 ([`Event`]); their data carries names only ([`data`]).

mod consume;
pub mod data;
mod dead;
mod embedded;
mod error;
mod event;
mod jetstream;
pub mod name;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use uuid::Uuid;

pub use consume::{Consumer, Delivery, KeepAlive};
pub use dead::{DeadLetter, DeadReason};
pub use error::{BusError, BusErrorKind, Result};
#[doc(hidden)]
pub use event::stand_in_for_version;
pub use event::{Event, EventType, MESSAGE_VERSION, instant_text, source_of};
pub use name::{Address, EstateToken, Key, Queue, Stream, Task};
pub use transport::{Depth, Published};

use crate::clock::Clock;
use crate::config;
use crate::telemetry::{FleetGauges, Metrics};
use data::{CommitRequested, IndexBuild, PassRequested, SegmentRequested, SliceRequested, TickDue};
use embedded::Embedded;
use jetstream::JetStream;
use transport::{StreamSpec, Transport};

/// How the bus behaves, beside where it is.
#[derive(Debug, Clone)]
pub struct Settings {
    /// A delivery that shows no progress for this long is given to another worker.
    pub ack_wait: Duration,
    /// Attempts after which a message is given up. A hand-back is no attempt.
    pub max_attempts: u64,
    /// How long a message of a newer build waits before it is offered again; the ack wait, as if this worker had died of it.
    pub newer_delay: Duration,
    /// The version of messages that this build writes and understands ([`MESSAGE_VERSION`]).
    pub message_version: u32,
    /// Copies of each stream in a NATS cluster; what the server or the stream has when `None`.
    pub replicas: Option<usize>,
    /// The time.
    pub clock: Clock,
}

impl Settings {
    /// From `[bus]` and the claims' time to live. The ack wait is a third of it unless set.
    pub fn of(bus: &config::Bus, claim_ttl: Duration) -> Self {
        let ack_wait = bus.ack_wait.unwrap_or(claim_ttl / 3);
        Self {
            ack_wait,
            max_attempts: bus.max_attempts.into(),
            newer_delay: ack_wait,
            message_version: event::spoken(),
            replicas: bus.replicas,
            clock: Clock::system(),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::of(&config::Bus::default(), config::Grace::default().claim_ttl)
    }
}

/// The bus of an estate. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub struct Bus {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    transport: Arc<dyn Transport>,
    token: EstateToken,
    estate: Uuid,
    settings: Settings,
    metrics: Metrics,
}

impl Bus {
    /// The bus that the configuration names. With NATS: connects, and makes or updates the streams.
    ///
    /// # Errors
    /// [`BusErrorKind::Transient`] when the server cannot be reached now, [`BusErrorKind::Permanent`] when it refuses us,
    /// is too old, or the streams are another estate's, [`BusErrorKind::Invalid`] for the configuration.
    pub async fn open(
        config: &config::Bus,
        name: &str,
        estate: Uuid,
        settings: Settings,
        metrics: Metrics,
    ) -> Result<Self> {
        match config.kind {
            config::BusKind::Embedded => Ok(Self::embedded(name, estate, settings, metrics)),
            config::BusKind::Nats => {
                let token = EstateToken::of(name);
                let specs = StreamSpec::all(&token);
                let transport = JetStream::connect(config, estate, settings.replicas, specs).await?;
                Ok(Self::with(Arc::new(transport), token, estate, settings, metrics))
            }
        }
    }

    /// A bus within this process. Clones of it share its queues; another call makes another bus.
    pub fn embedded(name: &str, estate: Uuid, settings: Settings, metrics: Metrics) -> Self {
        Self::with(Arc::new(Embedded::default()), EstateToken::of(name), estate, settings, metrics)
    }

    /// The same queues and connection with other settings.
    pub fn with_settings(&self, settings: Settings) -> Self {
        let i = &self.inner;
        Self::with(i.transport.clone(), i.token.clone(), i.estate, settings, i.metrics.clone())
    }

    fn with(
        transport: Arc<dyn Transport>,
        token: EstateToken,
        estate: Uuid,
        settings: Settings,
        metrics: Metrics,
    ) -> Self {
        Self { inner: Arc::new(Inner { transport, token, estate, settings, metrics }) }
    }

    /// The estate as subjects name it.
    pub fn token(&self) -> &EstateToken {
        &self.inner.token
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// `embedded`, or `nats` and the server's version.
    pub fn describe(&self) -> String {
        self.inner.transport.describe()
    }

    /// Whether the connection stands, without asking the server. While it does not, the client reconnects by itself.
    pub fn is_connected(&self) -> bool {
        self.inner.transport.connected()
    }

    /// Asks the server whether the streams answer; for `/readyz`.
    ///
    /// # Errors
    /// Why not.
    pub async fn ready(&self) -> Result<()> {
        self.inner.transport.ready().await
    }

    fn spec(&self, stream: Stream) -> StreamSpec {
        StreamSpec::of(&self.inner.token, stream)
    }

    /// Publishes an event. One that was published a moment ago, or whose work is queued already, adds nothing and is no
    /// error.
    ///
    /// # Errors
    /// [`BusErrorKind::Transient`] when the bus is down; publishing the same event again is safe.
    pub async fn publish(&self, address: &Address, event: &Event) -> Result<Published> {
        let mut event = std::borrow::Cow::Borrowed(event);
        let version = self.inner.settings.message_version;
        if let Some((kind, have)) = event.kind().filter(|(kind, _)| kind.is_internal())
            && have != version
        {
            event.to_mut().event_type = kind.versioned(version);
        }
        let subject = self.inner.token.subject(address);
        self.send(address.stream(), &subject, &event.id, event.to_bytes()?).await
    }

    async fn send(&self, stream: Stream, subject: &str, id: &str, payload: bytes::Bytes) -> Result<Published> {
        self.inner.transport.publish(&self.spec(stream), subject, id, payload).await
    }

    /// Publishes a tick. One of the clock is known by job and instant, so that replicas publish it once; one by hand
    /// (`by_hand` is its run) is always another.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    pub async fn tick(&self, due: &TickDue, by_hand: Option<Uuid>) -> Result<Published> {
        let id = match by_hand {
            Some(run) => format!("{run}/{}/{}", EventType::TickDue, due.job.as_str()),
            None => format!("{}/{}", due.job.as_str(), instant_text(due.instant)),
        };
        let now = self.inner.settings.clock.now();
        let event = Event::new(self.inner.estate, id, EventType::TickDue, "estate", now, due)?;
        self.publish(&Address::Tick(due.job), &event).await
    }

    /// Asks for a dataset's pass.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    pub async fn request_pass(&self, pass: &PassRequested) -> Result<Published> {
        let event = self.work(pass.run, EventType::PassRequested, &dataset_subject(&pass.uri), pass)?;
        self.publish(&Address::Pass(Key::of_uri(&pass.uri)), &event).await
    }

    /// Asks for a slice. The same slice of a run is asked for once.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    pub async fn request_slice(&self, slice: &SliceRequested) -> Result<Published> {
        let subject = format!("{}/{}", dataset_subject(&slice.uri), slice.slice);
        let event = self.work(slice.run, EventType::SliceRequested, &subject, slice)?;
        self.publish(&Address::Slice(Key::of_slice(&slice.uri, slice.run, slice.slice)), &event).await
    }

    /// Asks for the commit of a compaction in slices.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    pub async fn request_commit(&self, commit: &CommitRequested) -> Result<Published> {
        let event = self.work(commit.run, EventType::CommitRequested, &dataset_subject(&commit.uri), commit)?;
        self.publish(&Address::Commit(Key::of_uri(&commit.uri)), &event).await
    }

    /// Asks for an index, for `run` (the submission's id).
    ///
    /// # Errors
    /// As [`Bus::publish`].
    pub async fn request_build(&self, run: Uuid, build: &IndexBuild) -> Result<Published> {
        let event = self.work(run, EventType::IndexBuild, &build.table, build)?;
        let name = build.name.as_deref().unwrap_or_default();
        let key = Key::of_index(&build.table, &build.columns, &build.index_type, name);
        self.publish(&Address::Build(key), &event).await
    }

    /// Asks for a segment of an index build. The same segment of a run is asked for once.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    pub async fn request_segment(&self, segment: &SegmentRequested) -> Result<Published> {
        let subject = format!("{}/{}", dataset_subject(&segment.uri), segment.segment);
        let event = self.work(segment.run, EventType::SegmentRequested, &subject, segment)?;
        self.publish(&Address::Segment(Key::of_slice(&segment.uri, segment.run, segment.segment)), &event).await
    }

    /// Says that something happened, once per run, type and subject.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    pub async fn announce(
        &self,
        run: Uuid,
        kind: EventType,
        subject: &str,
        data: &(impl Serialize + Sync),
    ) -> Result<Published> {
        self.publish(&Address::Event(kind), &self.event(run, kind, subject, data)?).await
    }

    /// The event that [`Bus::announce`] publishes, for whoever keeps it where the bus is away.
    ///
    /// # Errors
    /// [`BusErrorKind::Invalid`] when the data cannot be written as JSON.
    pub fn event(&self, run: Uuid, kind: EventType, subject: &str, data: &impl Serialize) -> Result<Event> {
        self.work(run, kind, subject, data)
    }

    fn work(&self, run: Uuid, kind: EventType, subject: &str, data: &impl Serialize) -> Result<Event> {
        Event::of_run(self.inner.estate, run, kind, subject, self.inner.settings.clock.now(), data)
    }

    /// Opens a consumer. Replicas that open the same queue share its messages.
    ///
    /// # Errors
    /// As [`Bus::publish`], and [`BusErrorKind::Invalid`] for the name of a listener that is no token.
    pub async fn consumer(&self, queue: Queue) -> Result<Consumer> {
        Consumer::open(self.clone(), queue).await
    }

    /// What a stream's consumers have before them.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    pub async fn depth(&self, stream: Stream) -> Result<Depth> {
        self.inner.transport.depth(&self.spec(stream)).await
    }

    /// Sets `squire_queue_messages` and `squire_dead_letters`.
    ///
    /// # Errors
    /// As [`Bus::publish`]; what was read before stays set.
    pub async fn export(&self, gauges: &FleetGauges) -> Result<()> {
        let clamp = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        for stream in [Stream::Ticks, Stream::Work, Stream::Index, Stream::Tables, Stream::Events] {
            let depth = self.depth(stream).await?;
            for (state, n) in [("pending", depth.pending), ("in_flight", depth.in_flight)] {
                gauges.queue_messages.with_label_values(&[stream.as_str(), state]).set(clamp(n));
            }
            let dead = self.inner.transport.count(&self.spec(Stream::Dead), &self.inner.token.dead_of(stream)).await?;
            gauges.dead_letters.with_label_values(&[stream.as_str()]).set(clamp(dead));
        }
        Ok(())
    }

    fn count(&self, stream: Stream, outcome: &str) {
        self.inner.metrics.messages.with_label_values(&[stream.as_str(), outcome]).inc();
    }
}

/// The SUBJECT of a dataset without a table name.
pub fn dataset_subject(uri: &str) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-');
    format!("dataset/{}", utf8_percent_encode(uri, ENCODED))
}
