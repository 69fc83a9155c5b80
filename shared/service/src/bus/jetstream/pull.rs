//! Pulling one message at a time from a durable consumer, over reconnects and lost consumers.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull};
use async_nats::jetstream::{AckKind, Message};
use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures::StreamExt;
use tokio::time::Instant;

use super::{JetStream, streams};
use crate::bus::error::{BusError, Result};
use crate::bus::transport::{ConsumerSpec, Handle, Puller, Raw, STREAM_VERSION};

/// How long one request for a message waits at the server. A request that the server lost (it was restarted) is made
/// again after this.
const REQUEST: Duration = Duration::from_secs(3);
/// How much later than the server the client gives up.
const SLACK: Duration = Duration::from_millis(500);
/// Pause after something went wrong.
const PAUSE: Duration = Duration::from_millis(200);
/// Attempts to have an acknowledgement confirmed.
const ACKS: u32 = 3;

const VERSION: &str = "squire.version";

pub(super) struct NatsPuller {
    bus: JetStream,
    spec: ConsumerSpec,
    consumer: Option<Consumer<pull::Config>>,
}

impl NatsPuller {
    pub(super) async fn open(bus: JetStream, spec: ConsumerSpec) -> Result<Self> {
        let consumer = Some(open(&bus, &spec).await?);
        Ok(Self { bus, spec, consumer })
    }

    fn doing(&self) -> String {
        format!("taking from {}", self.spec.filter)
    }

    async fn once(&mut self, wait: Duration) -> Result<Option<Raw>> {
        if !self.bus.up() {
            return Err(self.bus.down(&self.doing()));
        }
        let consumer = match self.consumer.take() {
            Some(consumer) => consumer,
            None => open(&self.bus, &self.spec).await?,
        };
        let failed = |e: &dyn std::fmt::Display| BusError::request(self.doing(), e, true);
        let mut batch = consumer.batch().max_messages(1).expires(wait).messages().await.map_err(|e| failed(&e))?;
        let taken = tokio::time::timeout(wait + SLACK, batch.next()).await;
        let message = match taken {
            // The request or its end got lost.
            Err(_) => None,
            Ok(None) => None,
            Ok(Some(Ok(message))) => Some(message),
            // Mostly that the consumer or its stream is gone; both are made again.
            Ok(Some(Err(e))) => return Err(failed(&e)),
        };
        self.consumer = Some(consumer);
        message.map(|m| raw(&self.bus, m)).transpose()
    }
}

#[async_trait]
impl Puller for NatsPuller {
    async fn pull(&mut self, wait: Duration) -> Result<Option<Raw>> {
        let deadline = Instant::now() + wait;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // A server takes no request that ends at once.
            let result = self.once(left.clamp(Duration::from_millis(20), REQUEST)).await;
            match result {
                Ok(Some(raw)) => return Ok(Some(raw)),
                Ok(None) if left <= REQUEST => return Ok(None),
                Ok(None) => {}
                Err(e) if !e.is_transient() || left <= PAUSE => return Err(e),
                Err(e) => {
                    tracing::debug!(error = %e, "taking a message failed and is tried again");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

async fn open(bus: &JetStream, spec: &ConsumerSpec) -> Result<Consumer<pull::Config>> {
    use async_nats::jetstream::stream::ConsumerErrorKind as Kind;
    let doing = format!("opening the consumer {} of {}", spec.durable, spec.stream.name);
    streams::ensure(&bus.context, &spec.stream, &bus.owner).await?;
    let stream = bus.stream(&spec.stream).await?;
    if let Ok(found) = stream.get_consumer::<pull::Config>(&spec.durable).await {
        let version = found.cached_info().config.metadata.get(VERSION).and_then(|v| v.parse::<u32>().ok());
        if version.is_some_and(|v| v > STREAM_VERSION) {
            return Ok(found);
        }
    }
    let config = pull::Config {
        durable_name: Some(spec.durable.clone()),
        filter_subject: spec.filter.clone(),
        ack_policy: AckPolicy::Explicit,
        ack_wait: spec.ack_wait,
        // Judged by us: at the server's bound a message would stay in the queue and never be offered again.
        max_deliver: -1,
        // What is handed back with a delay counts as pending, and must not stop the others.
        max_ack_pending: -1,
        metadata: [(VERSION.to_owned(), STREAM_VERSION.to_string())].into(),
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.map_err(|e| match e.kind() {
        Kind::JetStream(e) => streams::answered(&doing, &e),
        _ => BusError::request(doing, e, true),
    })
}

fn raw(bus: &JetStream, message: Message) -> Result<Raw> {
    let subject = message.subject.to_string();
    let doing = format!("reading a delivery on {subject}");
    let info = message.info().map_err(|e| BusError::request(&doing, e, true))?;
    let (seconds, nanos) = (info.published.unix_timestamp(), info.published.nanosecond());
    let published = DateTime::<Utc>::from_timestamp(seconds, nanos).unwrap_or(DateTime::UNIX_EPOCH);
    let (sequence, delivered) = (info.stream_sequence, u64::try_from(info.delivered).unwrap_or(1));
    let id = message.headers.as_ref().and_then(|h| h.get(async_nats::header::NATS_MESSAGE_ID));
    Ok(Raw {
        id: id.map(|v| v.as_str().to_owned()),
        payload: message.payload.clone(),
        handle: Box::new(NatsHandle { bus: bus.clone(), message, subject: subject.clone() }),
        subject,
        sequence,
        delivered,
        published,
    })
}

struct NatsHandle {
    bus: JetStream,
    message: Message,
    subject: String,
}

impl NatsHandle {
    async fn confirmed(&self, what: &str, kind: AckKind) -> Result<()> {
        let doing = format!("{what} a message of {}", self.subject);
        let mut error = self.bus.down(&doing);
        for attempt in 0..ACKS {
            if attempt > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            if !self.bus.up() {
                continue;
            }
            match self.message.double_ack_with(kind).await {
                Ok(()) => return Ok(()),
                Err(e) => error = BusError::request(&doing, e, true),
            }
        }
        Err(error)
    }
}

#[async_trait]
impl Handle for NatsHandle {
    async fn ack(&self) -> Result<()> {
        self.confirmed("acknowledging", AckKind::Ack).await
    }

    async fn term(&self) -> Result<()> {
        self.confirmed("ending", AckKind::Term).await
    }

    async fn nak(&self, delay: Duration) -> Result<()> {
        let delay = (!delay.is_zero()).then_some(delay);
        self.confirmed("handing back", AckKind::Nak(delay)).await
    }

    async fn progress(&self) -> Result<()> {
        let doing = format!("showing progress on a message of {}", self.subject);
        // Unsent, it would wait in the client and tell nobody.
        if !self.bus.up() {
            return Err(self.bus.down(&doing));
        }
        self.message.ack_with(AckKind::Progress).await.map_err(|e| BusError::request(doing, e, true))
    }
}
