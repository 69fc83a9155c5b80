//! The bus within one process, with the semantics that the queues of JetStream have. What it holds ends with the process.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::error::Result;
use super::name::{Stream, matches};
use super::transport::{ConsumerSpec, Depth, Handle, Published, Puller, Raw, Stored, StreamSpec, Transport};

/// All streams of one process. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Embedded {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    streams: Mutex<HashMap<Stream, Kept>>,
    changed: Notify,
}

#[derive(Default)]
struct Kept {
    last: u64,
    messages: BTreeMap<u64, Message>,
    subjects: HashMap<String, BTreeSet<u64>>,
    ids: HashMap<String, Instant>,
    consumers: HashMap<String, Consumer>,
}

struct Message {
    subject: String,
    id: String,
    payload: Bytes,
    stored: Instant,
    published: DateTime<Utc>,
}

/// A durable consumer: where its first deliveries stand, and what it handed out.
struct Consumer {
    filter: String,
    ack_wait: Duration,
    next: u64,
    pending: BTreeMap<u64, Pending>,
}

#[derive(Clone, Copy)]
struct Pending {
    delivered: u64,
    due: Instant,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Embedded")
    }
}

impl Embedded {
    fn streams(&self) -> MutexGuard<'_, HashMap<Stream, Kept>> {
        // Nothing panics between two changes that belong together.
        self.shared.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, spec: &StreamSpec, act: impl FnOnce(&mut Kept) -> T) -> T {
        let mut streams = self.streams();
        let kept = streams.entry(spec.stream).or_default();
        kept.expire(spec);
        act(kept)
    }
}

impl Kept {
    fn expire(&mut self, spec: &StreamSpec) {
        let now = Instant::now();
        let Some(age) = spec.max_age else { return };
        while let Some(first) = self.messages.first_entry() {
            if now.duration_since(first.get().stored) < age {
                break;
            }
            let sequence = *first.key();
            self.remove(sequence);
        }
    }

    fn remove(&mut self, sequence: u64) -> bool {
        let Some(message) = self.messages.remove(&sequence) else { return false };
        if let Some(held) = self.subjects.get_mut(&message.subject) {
            held.remove(&sequence);
            if held.is_empty() {
                self.subjects.remove(&message.subject);
            }
        }
        for consumer in self.consumers.values_mut() {
            consumer.pending.remove(&sequence);
        }
        true
    }

    fn store(&mut self, spec: &StreamSpec, subject: &str, id: &str, payload: Bytes) -> Published {
        let now = Instant::now();
        self.ids.retain(|_, seen| now.duration_since(*seen) < spec.duplicates);
        // The id comes first, as on the server: a repeated publish is a duplicate also while its first one waits.
        if self.ids.contains_key(id) {
            return Published::Duplicate;
        }
        let held = self.subjects.get(subject).map_or(0, BTreeSet::len);
        if spec.queue && held > 0 {
            return Published::AlreadyQueued;
        }
        if spec.per_subject.is_some_and(|most| held >= most as usize)
            && let Some(oldest) = self.subjects.get(subject).and_then(|s| s.first().copied())
        {
            self.remove(oldest);
        }
        self.last += 1;
        let message =
            Message { subject: subject.to_owned(), id: id.to_owned(), payload, stored: now, published: Utc::now() };
        self.messages.insert(self.last, message);
        self.subjects.entry(subject.to_owned()).or_default().insert(self.last);
        self.ids.insert(id.to_owned(), now);
        Published::Stored
    }

    /// The next delivery of a consumer, or when one falls due.
    fn take(&mut self, durable: &str) -> (Option<(u64, u64)>, Option<Instant>) {
        let now = Instant::now();
        let Some(consumer) = self.consumers.get_mut(durable) else { return (None, None) };
        // What falls due again goes before what was never delivered.
        let due = consumer.pending.iter_mut().filter(|(_, p)| p.due <= now).min_by_key(|(_, p)| p.due);
        if let Some((sequence, pending)) = due {
            pending.delivered += 1;
            pending.due = now + consumer.ack_wait;
            return (Some((*sequence, pending.delivered)), None);
        }
        let fresh = self.messages.range(consumer.next..).find(|(_, m)| matches(&consumer.filter, &m.subject));
        if let Some((sequence, _)) = fresh {
            consumer.next = sequence + 1;
            consumer.pending.insert(*sequence, Pending { delivered: 1, due: now + consumer.ack_wait });
            return (Some((*sequence, 1)), None);
        }
        consumer.next = self.last + 1;
        (None, consumer.pending.values().map(|p| p.due).min())
    }

    fn stored(&self, sequence: u64) -> Option<Stored> {
        let m = self.messages.get(&sequence)?;
        Some(Stored { sequence, subject: m.subject.clone(), payload: m.payload.clone() })
    }
}

#[async_trait]
impl Transport for Embedded {
    async fn publish(&self, stream: &StreamSpec, subject: &str, id: &str, payload: Bytes) -> Result<Published> {
        let published = self.with(stream, |kept| kept.store(stream, subject, id, payload));
        self.shared.changed.notify_waiters();
        Ok(published)
    }

    async fn open(&self, consumer: ConsumerSpec) -> Result<Box<dyn Puller>> {
        self.with(&consumer.stream, |kept| {
            let opened = kept.consumers.entry(consumer.durable.clone()).or_insert_with(|| Consumer {
                filter: consumer.filter.clone(),
                ack_wait: consumer.ack_wait,
                next: 1,
                pending: BTreeMap::new(),
            });
            opened.ack_wait = consumer.ack_wait;
        });
        Ok(Box::new(EmbeddedPuller { bus: self.clone(), spec: consumer }))
    }

    async fn newest(&self, stream: &StreamSpec, subject: &str) -> Result<Option<Stored>> {
        Ok(self.with(stream, |kept| kept.subjects.get(subject).and_then(|s| kept.stored(*s.last()?))))
    }

    async fn next(&self, stream: &StreamSpec, filter: &str, from: u64) -> Result<Option<Stored>> {
        Ok(self.with(stream, |kept| {
            let found = kept.messages.range(from..).find(|(_, m)| matches(filter, &m.subject));
            found.and_then(|(sequence, _)| kept.stored(*sequence))
        }))
    }

    async fn delete(&self, stream: &StreamSpec, sequence: u64) -> Result<bool> {
        Ok(self.with(stream, |kept| kept.remove(sequence)))
    }

    async fn count(&self, stream: &StreamSpec, filter: &str) -> Result<u64> {
        Ok(self.with(stream, |kept| kept.messages.values().filter(|m| matches(filter, &m.subject)).count() as u64))
    }

    async fn depth(&self, stream: &StreamSpec) -> Result<Depth> {
        Ok(self.with(stream, |kept| {
            let in_flight: u64 = kept.consumers.values().map(|c| c.pending.len() as u64).sum();
            let pending = if stream.queue {
                (kept.messages.len() as u64).saturating_sub(in_flight)
            } else {
                let behind = |c: &Consumer| {
                    kept.messages.range(c.next..).filter(|(_, m)| matches(&c.filter, &m.subject)).count() as u64
                };
                kept.consumers.values().map(behind).sum()
            };
            Depth { pending, in_flight }
        }))
    }

    fn connected(&self) -> bool {
        true
    }

    async fn ready(&self) -> Result<()> {
        Ok(())
    }

    fn describe(&self) -> String {
        "embedded".to_owned()
    }
}

struct EmbeddedPuller {
    bus: Embedded,
    spec: ConsumerSpec,
}

#[async_trait]
impl Puller for EmbeddedPuller {
    async fn pull(&mut self, wait: Duration) -> Result<Option<Raw>> {
        let deadline = Instant::now() + wait;
        loop {
            // Made before looking: a message stored in between wakes it.
            let changed = self.bus.shared.changed.notified();
            let due = {
                let spec = &self.spec;
                let (taken, due) = self.bus.with(&spec.stream, |kept| {
                    let (taken, due) = kept.take(&spec.durable);
                    (taken.and_then(|(sequence, delivered)| raw(&self.bus, spec, kept, sequence, delivered)), due)
                });
                if taken.is_some() {
                    return Ok(taken);
                }
                due
            };
            if Instant::now() >= deadline {
                return Ok(None);
            }
            let wake = due.map_or(deadline, |due| due.min(deadline));
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }
}

fn raw(bus: &Embedded, spec: &ConsumerSpec, kept: &Kept, sequence: u64, delivered: u64) -> Option<Raw> {
    let message = kept.messages.get(&sequence)?;
    Some(Raw {
        subject: message.subject.clone(),
        sequence,
        delivered,
        published: message.published,
        id: Some(message.id.clone()),
        payload: message.payload.clone(),
        handle: Box::new(EmbeddedHandle { bus: bus.clone(), spec: spec.clone(), sequence }),
    })
}

struct EmbeddedHandle {
    bus: Embedded,
    spec: ConsumerSpec,
    sequence: u64,
}

impl EmbeddedHandle {
    fn done(&self) {
        self.bus.with(&self.spec.stream, |kept| {
            let consumer = kept.consumers.get_mut(&self.spec.durable);
            let was = consumer.is_some_and(|c| c.pending.remove(&self.sequence).is_some());
            if was && self.spec.stream.queue {
                kept.remove(self.sequence);
            }
        });
    }

    fn due(&self, after: Duration) {
        self.bus.with(&self.spec.stream, |kept| {
            let pending = kept.consumers.get_mut(&self.spec.durable).and_then(|c| c.pending.get_mut(&self.sequence));
            if let Some(pending) = pending {
                pending.due = Instant::now() + after;
            }
        });
        self.bus.shared.changed.notify_waiters();
    }
}

#[async_trait]
impl Handle for EmbeddedHandle {
    async fn ack(&self) -> Result<()> {
        self.done();
        Ok(())
    }

    async fn term(&self) -> Result<()> {
        self.done();
        Ok(())
    }

    async fn nak(&self, delay: Duration) -> Result<()> {
        self.due(delay);
        Ok(())
    }

    async fn progress(&self) -> Result<()> {
        self.due(self.spec.ack_wait);
        Ok(())
    }
}
