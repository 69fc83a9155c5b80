//! The bus on NATS JetStream.

mod connect;
mod pull;
mod streams;

use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream as NatsStream};
use async_nats::jetstream::{Context, ErrorCode};
use async_nats::{Client, HeaderMap, header};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use uuid::Uuid;

use super::error::{BusError, Result};
use super::transport::{ConsumerSpec, Depth, Published, Puller, Stored, StreamSpec, Transport};
use crate::config;
use streams::Owner;

/// How long publishing goes on trying: a cluster that elects a leader stands still for six seconds. The message's id
/// makes trying again harmless.
const PUBLISH: Duration = Duration::from_secs(12);
/// How long one attempt waits for its answer.
const ANSWER: Duration = Duration::from_secs(3);
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest id that is sent as it is.
const LONGEST_ID: usize = 512;

/// A connection with the estate's streams on it. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct JetStream {
    client: Client,
    context: Context,
    owner: Owner,
    specs: Vec<StreamSpec>,
}

impl JetStream {
    pub(super) async fn connect(
        config: &config::Bus,
        estate: Uuid,
        replicas: Option<usize>,
        specs: Vec<StreamSpec>,
    ) -> Result<Self> {
        let servers = connect::servers(config)?;
        let client = connect::connect(config, &servers).await?;
        let server = client.server_info().version;
        let owner = Owner { estate, replicas, url: servers.shown, server };
        owner.check_version()?;
        let mut context = async_nats::jetstream::new(client.clone());
        context.set_timeout(ANSWER);
        let this = Self { client, context, owner, specs };
        this.ensure_all().await?;
        Ok(this)
    }

    async fn ensure_all(&self) -> Result<()> {
        for spec in &self.specs {
            streams::ensure(&self.context, spec, &self.owner).await?;
        }
        Ok(())
    }

    fn up(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    fn down(&self, doing: &str) -> BusError {
        BusError::Disconnected { doing: doing.to_owned() }
    }

    async fn stream(&self, spec: &StreamSpec) -> Result<NatsStream<()>> {
        let doing = format!("opening the stream {}", spec.name);
        self.context.get_stream_no_info(&spec.name).await.map_err(|e| BusError::request(doing, e, true))
    }

    async fn publish_once(&self, spec: &StreamSpec, subject: &str, id: &str, payload: &Bytes) -> Attempt {
        let doing = format!("publishing on {subject}");
        if !self.up() {
            return Attempt::Again(self.down(&doing));
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::NATS_MESSAGE_ID, header_id(id));
        headers.insert(header::NATS_EXPECTED_STREAM, spec.name.as_str());
        let sent = self.context.publish_with_headers(subject.to_owned(), headers, payload.clone()).await;
        let answer = match sent {
            Ok(answer) => tokio::time::timeout(ANSWER, answer.into_future()).await,
            Err(error) => Ok(Err(error)),
        };
        match answer {
            Err(_) => Attempt::Again(BusError::request(doing, "no answer in time; try again", true)),
            Ok(Ok(ack)) if ack.duplicate => Attempt::Done(Published::Duplicate),
            Ok(Ok(_)) => Attempt::Done(Published::Stored),
            Ok(Err(error)) => self.refused(doing, &error, payload.len()),
        }
    }

    fn refused(&self, doing: String, error: &PublishError, bytes: usize) -> Attempt {
        let answer = std::error::Error::source(error).and_then(|s| s.downcast_ref::<async_nats::jetstream::Error>());
        match (error.kind(), answer) {
            (PublishErrorKind::MaxPayloadExceeded, _) => {
                Attempt::Never(BusError::TooLarge { doing, bytes, limit: self.client.max_payload() })
            }
            (_, Some(e)) if e.error_code() == ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => {
                Attempt::Never(BusError::TooLarge { doing, bytes, limit: self.client.max_payload() })
            }
            // "maximum messages per subject exceeded": the code is that of every store that failed.
            (_, Some(e)) if e.to_string().contains("maximum messages per subject") => {
                Attempt::Done(Published::AlreadyQueued)
            }
            (PublishErrorKind::StreamNotFound, _) => Attempt::NoStream(BusError::request(
                doing,
                "no stream answers; see that JetStream runs, and that the account may publish there",
                true,
            )),
            (_, Some(e)) => {
                let error = streams::answered(&doing, e);
                if error.is_transient() { Attempt::Again(error) } else { Attempt::Never(error) }
            }
            _ => Attempt::Again(BusError::request(doing, error, true)),
        }
    }
}

/// How one attempt to publish ended.
enum Attempt {
    Done(Published),
    /// Nobody takes the subject: the stream is gone, or has no leader just now.
    NoStream(BusError),
    Again(BusError),
    Never(BusError),
}

/// An id as a header can have it.
fn header_id(id: &str) -> String {
    if id.len() <= LONGEST_ID && id.bytes().all(|b| b.is_ascii_graphic()) {
        return id.to_owned();
    }
    Sha256::digest(id.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}

fn stored(message: StreamMessage) -> Stored {
    Stored { sequence: message.sequence, subject: message.subject.to_string(), payload: message.payload }
}

fn found(
    doing: &str,
    read: Result<StreamMessage, async_nats::jetstream::stream::LastRawMessageError>,
) -> Result<Option<Stored>> {
    match read {
        Ok(message) => Ok(Some(stored(message))),
        Err(e) => match e.kind() {
            LastRawMessageErrorKind::NoMessageFound => Ok(None),
            LastRawMessageErrorKind::JetStream(e) => Err(streams::answered(doing, &e)),
            _ => Err(BusError::request(doing, e, true)),
        },
    }
}

#[async_trait]
impl Transport for JetStream {
    async fn publish(&self, stream: &StreamSpec, subject: &str, id: &str, payload: Bytes) -> Result<Published> {
        let deadline = Instant::now() + PUBLISH;
        let mut remade = false;
        loop {
            let error = match self.publish_once(stream, subject, id, &payload).await {
                Attempt::Done(published) => return Ok(published),
                Attempt::Never(error) => return Err(error),
                // The connection is looked after elsewhere; whoever publishes learns at once and decides.
                Attempt::Again(error @ BusError::Disconnected { .. }) => return Err(error),
                Attempt::Again(error) => error,
                Attempt::NoStream(error) => {
                    if !remade && self.up() {
                        // A server that lost its store comes back without streams.
                        remade = streams::ensure(&self.context, stream, &self.owner).await.is_ok();
                    }
                    error
                }
            };
            if Instant::now() + PAUSE >= deadline {
                return Err(error);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn open(&self, consumer: ConsumerSpec) -> Result<Box<dyn Puller>> {
        Ok(Box::new(pull::NatsPuller::open(self.clone(), consumer).await?))
    }

    async fn newest(&self, stream: &StreamSpec, subject: &str) -> Result<Option<Stored>> {
        let read = self.stream(stream).await?.get_last_raw_message_by_subject(subject).await;
        found(&format!("reading the newest message of {subject}"), read)
    }

    async fn next(&self, stream: &StreamSpec, filter: &str, from: u64) -> Result<Option<Stored>> {
        let doing = format!("reading the stream {}", stream.name);
        let handle = self.stream(stream).await?;
        let read = handle.raw_message_builder().sequence(from.max(1)).next_by_subject(filter).send().await;
        found(&doing, read)
    }

    async fn delete(&self, stream: &StreamSpec, sequence: u64) -> Result<bool> {
        use async_nats::jetstream::stream::DeleteMessageErrorKind as Kind;
        let doing = format!("deleting message {sequence} of {}", stream.name);
        match self.stream(stream).await?.delete_message(sequence).await {
            Ok(deleted) => Ok(deleted),
            Err(e) => match e.kind() {
                Kind::JetStream(e)
                    if [
                        ErrorCode::NO_MESSAGE_FOUND,
                        ErrorCode::SEQUENCE_NOT_FOUND,
                        ErrorCode::STREAM_MESSAGE_DELETE_FAILED,
                    ]
                    .contains(&e.error_code()) =>
                {
                    Ok(false)
                }
                Kind::JetStream(e) => Err(streams::answered(&doing, &e)),
                _ => Err(BusError::request(doing, e, true)),
            },
        }
    }

    async fn count(&self, stream: &StreamSpec, filter: &str) -> Result<u64> {
        let doing = format!("counting {filter}");
        let handle = self.stream(stream).await?;
        let subjects = handle.info_with_subjects(filter).await;
        let mut subjects = subjects.map_err(|e| BusError::request(&doing, e, true))?;
        let mut sum = 0;
        while let Some(entry) = subjects.next().await {
            let (_, n) = entry.map_err(|e| BusError::request(&doing, e, true))?;
            sum += n as u64;
        }
        Ok(sum)
    }

    async fn depth(&self, stream: &StreamSpec) -> Result<Depth> {
        let doing = format!("reading the consumers of {}", stream.name);
        let handle = self.context.get_stream(&stream.name).await;
        let handle = handle.map_err(|e| BusError::request(&doing, e, true))?;
        let mut depth = Depth::default();
        let mut consumers = handle.consumers();
        while let Some(info) = consumers.next().await {
            let info = info.map_err(|e| BusError::request(&doing, e, true))?;
            depth.in_flight += info.num_ack_pending as u64;
            depth.pending += info.num_pending;
        }
        if stream.queue {
            // Also what no consumer was opened for yet.
            depth.pending = handle.cached_info().state.messages.saturating_sub(depth.in_flight);
        }
        Ok(depth)
    }

    fn connected(&self) -> bool {
        self.up()
    }

    async fn ready(&self) -> Result<()> {
        if !self.up() {
            return Err(self.down("asking NATS"));
        }
        for spec in &self.specs {
            let doing = format!("asking for the stream {}", spec.name);
            self.context.get_stream(&spec.name).await.map_err(|e| BusError::request(doing, e, true))?;
        }
        Ok(())
    }

    fn describe(&self) -> String {
        format!("nats {}", self.client.server_info().version)
    }
}
