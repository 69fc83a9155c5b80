//! Dead letters: what was given up, with the original, and the way back.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::{Display, EnumString, IntoStaticStr, VariantArray};
use uuid::Uuid;

use super::Bus;
use super::consume::Delivery;
use super::error::{BusError, Result};
use super::event::{Event, EventType, LARGEST};
use super::name::{Address, Stream};
use super::transport::{Published, Stored};
use crate::report::names;

/// Text stays readable in `original_bytes`.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
/// What is kept of an original that is too large for the server together with its letter.
const KEPT: usize = 4096;

names! {
    /// Why a message was given up.
    DeadReason {
        /// Too many workers took it and none ended it.
        Attempts,
        /// It cannot be read, or a field has another type.
        Malformed,
        /// Its type is no work of the queue.
        UnknownType,
        /// It comes from another estate.
        OtherEstate,
        /// Trying again cannot help.
        Permanent,
        /// A defect of Squire.
        Bug,
    }
}

/// What a dead letter says: the data of `io.squire.message.dead.v1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Its id in the stream of dead letters; 0 in the event.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub id: u64,
    /// The stream that the message came from.
    pub stream: String,
    /// Its subject there.
    pub subject: String,
    /// The message, where it is JSON.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub original: Value,
    /// The message, percent-encoded, where it is no JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_bytes: Option<String>,
    /// Whether only the beginning was kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Why it was given up.
    pub reason: DeadReason,
    /// How often it was tried.
    pub attempts: u64,
    /// When it was published.
    pub first_seen: DateTime<Utc>,
    /// What went wrong last.
    pub last_error: String,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Delivery {
    /// Gives the message up: a dead letter with the original first, then it is never delivered again. Where the letter
    /// cannot be written the message stays, and comes again.
    ///
    /// # Errors
    /// [`super::BusErrorKind::Transient`] when one of the two could not be confirmed. Doing it again writes no second
    /// letter.
    pub async fn dead_letter(self, reason: DeadReason, last_error: &str) -> Result<()> {
        if !self.still_ours() {
            return Ok(());
        }
        let event = self.letter(reason, last_error).await?;
        // The letter is what counts; that listeners miss the event is no reason to try all of it again.
        if let Err(error) = self.bus.publish(&Address::Event(EventType::MessageDead), &event).await {
            tracing::warn!(%error, subject = self.subject, "the event of a dead letter was not published");
        }
        self.settle();
        self.handle.term().await?;
        self.bus.count(self.stream, "dead");
        let labels = [self.stream.as_str(), reason.as_str()];
        self.bus.inner.metrics.dead_letters.with_label_values(&labels).inc();
        tracing::warn!(
            subject = self.subject,
            reason = reason.as_str(),
            attempts = self.attempts,
            last_error,
            "a message was given up; `squire-index-build dead list` shows it, `dead requeue` brings it back"
        );
        Ok(())
    }

    async fn letter(&self, reason: DeadReason, last_error: &str) -> Result<Event> {
        let subject = self.bus.inner.token.dead(&self.subject);
        let id = format!("dead/{}/{}/{}", self.stream.as_str(), self.sequence, self.id);
        let about = Event::from_bytes(&self.payload).ok().and_then(|e| e.subject);
        let about = about.unwrap_or_else(|| "estate".to_owned());
        for cut in [usize::MAX, KEPT, 0] {
            let letter = DeadLetter {
                last_error: last_error.chars().take(KEPT).collect(),
                ..original(&self.payload, cut, self.blank(reason))
            };
            let now = self.bus.inner.settings.clock.now();
            let event = Event::new(self.bus.inner.estate, id.clone(), EventType::MessageDead, &about, now, &letter)?;
            let bytes = event.to_bytes()?;
            // A letter that nobody could read again is none.
            if bytes.len() > LARGEST && cut > 0 {
                continue;
            }
            match self.bus.send(Stream::Dead, &subject, &id, bytes).await {
                Err(BusError::TooLarge { .. }) if cut > 0 => {}
                other => return other.map(|_| event),
            }
        }
        // The last turn returns.
        Err(BusError::Invalid(format!("the dead letter of {} cannot be written", self.subject)))
    }

    fn blank(&self, reason: DeadReason) -> DeadLetter {
        DeadLetter {
            id: 0,
            stream: self.stream.as_str().to_owned(),
            subject: self.subject.clone(),
            original: Value::Null,
            original_bytes: None,
            truncated: false,
            reason,
            attempts: self.attempts,
            first_seen: self.first_seen,
            last_error: String::new(),
        }
    }
}

fn original(payload: &Bytes, cut: usize, letter: DeadLetter) -> DeadLetter {
    let whole = payload.len() <= cut;
    if whole
        && let Ok(value) = serde_json::from_slice::<Value>(payload)
        && !value.is_null()
    {
        return DeadLetter { original: value, ..letter };
    }
    let kept = &payload[..payload.len().min(cut)];
    let encoded = percent_encode(kept, ENCODED).to_string();
    DeadLetter { original_bytes: Some(encoded), truncated: !whole, ..letter }
}

impl Bus {
    /// The dead letters, oldest first, at most `limit`.
    ///
    /// # Errors
    /// As [`Bus::publish`].
    pub async fn dead_list(&self, limit: usize) -> Result<Vec<DeadLetter>> {
        let spec = self.spec(Stream::Dead);
        let filter = self.inner.token.subjects(Stream::Dead);
        let mut out = Vec::new();
        let mut from = 1;
        while out.len() < limit {
            let Some(stored) = self.inner.transport.next(&spec, &filter, from).await? else { break };
            from = stored.sequence + 1;
            out.push(self.read_letter(stored));
        }
        Ok(out)
    }

    /// One dead letter.
    ///
    /// # Errors
    /// [`super::BusErrorKind::NotFound`], or as [`Bus::publish`].
    pub async fn dead_get(&self, id: u64) -> Result<DeadLetter> {
        let filter = self.inner.token.subjects(Stream::Dead);
        let found = self.inner.transport.next(&self.spec(Stream::Dead), &filter, id).await?;
        let stored = found.filter(|s| s.sequence == id && id > 0);
        Ok(self.read_letter(stored.ok_or_else(|| missing(id))?))
    }

    /// Puts the original back where it came from, under a new id (the old one would count as a duplicate), and drops the
    /// letter. Where the same work is queued already the letter stays.
    ///
    /// # Errors
    /// As [`Bus::dead_get`]; [`super::BusErrorKind::Invalid`] where only the beginning was kept.
    pub async fn dead_requeue(&self, id: u64) -> Result<Published> {
        let letter = self.dead_get(id).await?;
        let stream = self.inner.token.stream_of(&letter.subject);
        let stream = stream.filter(|s| !matches!(s, Stream::Dead | Stream::Returns)).ok_or_else(|| {
            BusError::Invalid(format!("dead letter {id}: {:?} is no subject of this estate; drop it", letter.subject))
        })?;
        if letter.truncated {
            return Err(BusError::Invalid(format!(
                "dead letter {id}: only the beginning of the original was kept; submit its work again, and drop the letter"
            )));
        }
        let new_id = |old: &str| format!("{old}/requeue-{}", Uuid::new_v4());
        let (id_of, payload) = match &letter.original_bytes {
            Some(encoded) => (new_id("dead"), Bytes::from(percent_decode_str(encoded).collect::<Vec<u8>>())),
            None => {
                let text = Bytes::from(letter.original.to_string());
                match Event::from_bytes(&text) {
                    Ok(mut event) => {
                        event.id = new_id(&event.id);
                        (event.id.clone(), event.to_bytes()?)
                    }
                    Err(_) => (new_id("dead"), text),
                }
            }
        };
        let published = self.send(stream, &letter.subject, &id_of, payload).await?;
        if published != Published::AlreadyQueued {
            self.dead_drop(id).await?;
        }
        Ok(published)
    }

    /// Drops a dead letter.
    ///
    /// # Errors
    /// As [`Bus::dead_get`].
    pub async fn dead_drop(&self, id: u64) -> Result<()> {
        let dropped = self.inner.transport.delete(&self.spec(Stream::Dead), id).await?;
        if dropped { Ok(()) } else { Err(missing(id)) }
    }

    fn read_letter(&self, stored: Stored) -> DeadLetter {
        let read = Event::from_bytes(&stored.payload).and_then(|e| e.data::<DeadLetter>());
        match read {
            Ok(letter) => DeadLetter { id: stored.sequence, ..letter },
            // Somebody else wrote into the stream; a person may drop it.
            Err(why) => {
                let letter = DeadLetter {
                    id: stored.sequence,
                    stream: Stream::Dead.as_str().to_owned(),
                    subject: self.inner.token.undead(&stored.subject).unwrap_or(stored.subject),
                    original: Value::Null,
                    original_bytes: None,
                    truncated: false,
                    reason: DeadReason::Malformed,
                    attempts: 0,
                    first_seen: DateTime::UNIX_EPOCH,
                    last_error: format!("the dead letter itself: {why}"),
                };
                original(&stored.payload, KEPT, letter)
            }
        }
    }
}

fn missing(id: u64) -> BusError {
    BusError::NotFound { what: format!("dead letter {id}") }
}
