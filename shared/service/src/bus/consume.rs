//! Taking messages: the judgement before a worker sees one, and what the worker can say of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

use super::Bus;
use super::data::Request;
use super::dead::DeadReason;
use super::error::Result;
use super::event::{Event, EventType, source_of};
use super::name::{Queue, Stream};
use super::transport::{ConsumerSpec, Handle, Puller, Raw};

/// A consumer of one queue.
pub struct Consumer {
    bus: Bus,
    queue: Queue,
    puller: Box<dyn Puller>,
}

/// What a message turned out to be.
enum Verdict {
    Work(Box<(Event, Request)>),
    /// A listener's event of a kind that this build does not know.
    Skip,
    Newer,
    Dead(DeadReason, String),
}

impl Consumer {
    pub(super) async fn open(bus: Bus, queue: Queue) -> Result<Self> {
        let spec = ConsumerSpec::of(&bus.inner.token, &queue, bus.inner.settings.ack_wait)?;
        let puller = bus.inner.transport.open(spec).await?;
        Ok(Self { bus, queue, puller })
    }

    /// The next message that is work for this build, or none within `wait`.
    ///
    /// Judged before it is handed out: a message over the bound of attempts, malformed, of an unknown type or of another
    /// estate goes to the dead letters; one of a newer build is handed back with a delay. A message that kills its
    /// worker is therefore given up by the next one, before it starts.
    ///
    /// # Errors
    /// [`super::BusErrorKind::Transient`] while the bus is down; asking again goes on where it was.
    pub async fn next(&mut self, wait: Duration) -> Result<Option<Delivery>> {
        let deadline = Instant::now() + wait;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(raw) = self.puller.pull(left).await? else { return Ok(None) };
            if let Some(delivery) = self.judge(raw).await? {
                return Ok(Some(delivery));
            }
        }
    }

    async fn judge(&self, raw: Raw) -> Result<Option<Delivery>> {
        let settings = &self.bus.inner.settings;
        let stream = self.queue.stream();
        let id = raw.id.clone().unwrap_or_default();
        // The first delivery cannot have been handed back.
        let returned = if raw.delivered > 1 { self.bus.returned(stream, raw.sequence, &id).await? } else { 0 };
        let attempts = raw.delivered.saturating_sub(returned).max(1);
        let delivery = Delivery {
            bus: self.bus.clone(),
            stream,
            subject: raw.subject,
            sequence: raw.sequence,
            id,
            attempts,
            returned,
            first_seen: raw.published,
            payload: raw.payload,
            handle: Arc::from(raw.handle),
            renewed: Arc::new(Mutex::new(Instant::now())),
            settled: Arc::default(),
            event: None,
            request: None,
        };
        if attempts > settings.max_attempts {
            let why = format!("{} workers took it and none of them ended it", attempts - 1);
            delivery.dead_letter(DeadReason::Attempts, &why).await?;
            return Ok(None);
        }
        match self.verdict(&delivery.payload) {
            Verdict::Work(parts) => {
                let (event, request) = *parts;
                Ok(Some(Delivery { event: Some(event), request: Some(request), ..delivery }))
            }
            Verdict::Skip => delivery.ack().await.map(|()| None),
            Verdict::Newer => {
                tracing::debug!(subject = delivery.subject, "a message of a newer build is left to it");
                delivery.hand_back(settings.newer_delay).await.map(|()| None)
            }
            Verdict::Dead(reason, why) => delivery.dead_letter(reason, &why).await.map(|()| None),
        }
    }

    fn verdict(&self, payload: &[u8]) -> Verdict {
        let event = match Event::from_bytes(payload) {
            Ok(event) => event,
            Err(why) => return Verdict::Dead(DeadReason::Malformed, why),
        };
        let settings = &self.bus.inner.settings;
        if event.version().is_some_and(|v| v > settings.message_version) {
            return Verdict::Newer;
        }
        let listening = matches!(self.queue, Queue::Events(_));
        let kind = match event.kind() {
            Some((kind, _)) if accepts(&self.queue, kind) => kind,
            _ if listening => return Verdict::Skip,
            _ => return Verdict::Dead(DeadReason::UnknownType, format!("type {:?} is no work here", event.event_type)),
        };
        if kind.is_internal() && event.source != source_of(self.bus.inner.estate) {
            return Verdict::Dead(DeadReason::OtherEstate, format!("its source is {:?}", event.source));
        }
        match Request::of(kind, &event) {
            Ok(request) => Verdict::Work(Box::new((event, request))),
            Err(why) => Verdict::Dead(DeadReason::Malformed, why),
        }
    }
}

fn accepts(queue: &Queue, kind: EventType) -> bool {
    match queue {
        Queue::Tick(_) => kind == EventType::TickDue,
        Queue::Pass => kind == EventType::PassRequested,
        Queue::Slice => kind == EventType::SliceRequested,
        Queue::Commit => kind == EventType::CommitRequested,
        Queue::Build => kind == EventType::IndexBuild,
        Queue::Segment => kind == EventType::SegmentRequested,
        Queue::Tables(_) => kind == EventType::TableChanged,
        Queue::Events(_) => !kind.is_internal(),
    }
}

/// A message in this worker's hands. It is delivered again, to anybody, when it is dropped without a word, or shows no
/// progress for the ack wait.
pub struct Delivery {
    pub(super) bus: Bus,
    pub(super) stream: Stream,
    pub(super) subject: String,
    pub(super) sequence: u64,
    pub(super) id: String,
    pub(super) attempts: u64,
    returned: u64,
    pub(super) first_seen: DateTime<Utc>,
    pub(super) payload: Bytes,
    pub(super) handle: Arc<dyn Handle>,
    renewed: Arc<Mutex<Instant>>,
    /// Set by the last word on it: a guard that lives on says nothing more.
    settled: Arc<AtomicBool>,
    pub(super) event: Option<Event>,
    request: Option<Request>,
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Delivery({} #{}, attempt {})", self.subject, self.sequence, self.attempts)
    }
}

impl Delivery {
    /// What is asked for.
    pub fn request(&self) -> &Request {
        // Only judged deliveries leave this module, and those have one.
        self.request.as_ref().unwrap_or(&Request::Other(EventType::MessageDead))
    }

    /// The envelope.
    pub fn event(&self) -> Option<&Event> {
        self.event.as_ref()
    }

    /// The subject it came on.
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Which attempt this is, from 1. Hand-backs do not count; a worker that died does.
    pub fn attempts(&self) -> u64 {
        self.attempts
    }

    /// When it was published.
    pub fn first_seen(&self) -> DateTime<Utc> {
        self.first_seen
    }

    /// Whether the message is still this worker's: it showed progress within the ack wait.
    pub fn still_ours(&self) -> bool {
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        renewed.elapsed() < self.bus.inner.settings.ack_wait
    }

    /// Done: the message goes. Confirmed by the server; when the answer is lost the message may come once more, and is
    /// then found done.
    ///
    /// # Errors
    /// [`super::BusErrorKind::Transient`] when it could not be confirmed.
    pub async fn ack(self) -> Result<()> {
        self.settle();
        self.handle.ack().await?;
        self.bus.count(self.stream, "done");
        Ok(())
    }

    /// Not now, through no fault of the message (somebody else holds the dataset, this worker stops, a newer build's
    /// work): it is offered again after `delay`, and this was no attempt.
    ///
    /// # Errors
    /// [`super::BusErrorKind::Transient`] when it could not be confirmed; it is then offered after the ack wait.
    pub async fn hand_back(self, delay: Duration) -> Result<()> {
        if !self.still_ours() {
            return Ok(());
        }
        // Noted first: a note too many grants one attempt more, a note too few would give up a message that did nothing.
        self.bus.note_return(self.stream, self.sequence, &self.id, self.returned + 1).await?;
        self.requeue_after(delay).await
    }

    /// It failed and may succeed later: it is offered again after `delay`, and this was an attempt.
    ///
    /// # Errors
    /// As [`Delivery::hand_back`].
    pub async fn retry(self, delay: Duration) -> Result<()> {
        if !self.still_ours() {
            return Ok(());
        }
        self.requeue_after(delay).await
    }

    pub(super) fn settle(&self) {
        self.settled.store(true, Ordering::SeqCst);
    }

    async fn requeue_after(self, delay: Duration) -> Result<()> {
        self.settle();
        self.handle.nak(delay).await?;
        self.bus.count(self.stream, "requeued");
        Ok(())
    }

    /// Given up without a dead letter: what it asks for is refused, and the refusal was reported elsewhere.
    ///
    /// # Errors
    /// As [`Delivery::ack`].
    pub async fn refuse(self) -> Result<()> {
        self.settle();
        self.handle.term().await?;
        self.bus.count(self.stream, "refused");
        Ok(())
    }

    /// Says once that it is being worked on.
    ///
    /// # Errors
    /// [`super::BusErrorKind::Transient`] while the bus is down.
    pub async fn progress(&self) -> Result<()> {
        renew(&*self.handle, &self.renewed).await
    }

    /// Says so three times per ack wait until the guard is dropped, or the last word on the message is said.
    pub fn keep_alive(&self) -> KeepAlive {
        let (handle, renewed, settled) = (self.handle.clone(), self.renewed.clone(), self.settled.clone());
        let every = self.bus.inner.settings.ack_wait / 3;
        KeepAlive(tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                if settled.load(Ordering::SeqCst) {
                    return;
                }
                if let Err(error) = renew(&*handle, &renewed).await {
                    tracing::debug!(%error, "a sign of progress was not sent");
                }
            }
        }))
    }
}

async fn renew(handle: &dyn Handle, renewed: &Mutex<Instant>) -> Result<()> {
    let sent = Instant::now();
    handle.progress().await?;
    *renewed.lock().unwrap_or_else(PoisonError::into_inner) = sent;
    Ok(())
}

/// Keeps a delivery this worker's while it lives.
#[derive(Debug)]
pub struct KeepAlive(JoinHandle<()>);

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How often a message was handed back, as [`Stream::Returns`] keeps it.
#[derive(Serialize, Deserialize)]
struct Returned {
    id: String,
    returned: u64,
}

impl Bus {
    async fn returned(&self, stream: Stream, sequence: u64, id: &str) -> Result<u64> {
        let subject = self.inner.token.returned(stream, sequence);
        let stored = self.inner.transport.newest(&self.spec(Stream::Returns), &subject).await?;
        let note = stored.and_then(|s| serde_json::from_slice::<Returned>(&s.payload).ok());
        // Sequences start anew where a stream was deleted; then the note is another message's.
        Ok(note.filter(|n| n.id == id).map_or(0, |n| n.returned))
    }

    async fn note_return(&self, stream: Stream, sequence: u64, id: &str, returned: u64) -> Result<()> {
        let subject = self.inner.token.returned(stream, sequence);
        let note = serde_json::json!({ "id": id, "returned": returned }).to_string();
        self.send(Stream::Returns, &subject, &Uuid::new_v4().to_string(), Bytes::from(note)).await?;
        Ok(())
    }
}
