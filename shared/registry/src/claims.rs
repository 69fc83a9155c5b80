//! Advisory leases: one holder per dataset, for every kind of work.
//!
//! A claim saves work. It does not make anything safe: commits are guarded by Lance's conflict check and deletes by
//! looking again, since no lease reaches either.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use uuid::Uuid;

use crate::actor::{Actor, host_name};
use crate::error::{Error, Result};
use crate::generation::{Change, Place, Read};
use crate::record::fields;
use crate::registry::Registry;

/// The process that holds a claim, so that another on the same machine can tell that it is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Who, where, and under which process id.
    pub actor: Actor,
    /// The boot of that machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// The process-id namespace: containers share a kernel and not their process ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<String>,
    /// The process's start in clock ticks since boot; process ids are used again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
}

impl Holder {
    /// This process, acting as `actor`.
    pub fn this_process(actor: &Actor) -> Self {
        Self {
            actor: Actor { host: host_name(), pid: std::process::id(), who: actor.who.clone() },
            boot: boot_id(),
            pid_namespace: pid_namespace(),
            started: start_of(std::process::id()),
        }
    }

    /// Whether the process certainly does not run any more. False wherever that cannot be told.
    pub fn is_gone(&self) -> bool {
        // Another boot under the same name may be another machine, so it is left to the TTL.
        let here = self.actor.host == host_name()
            && self.boot.is_some()
            && self.boot == boot_id()
            && self.pid_namespace.is_some()
            && self.pid_namespace == pid_namespace();
        here && self.started.is_some() && start_of(self.actor.pid) != self.started
    }
}

fn boot_id() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|s| s.trim().to_owned())
}

fn pid_namespace() -> Option<String> {
    std::fs::read_link("/proc/self/ns/pid").ok().map(|p| p.to_string_lossy().into_owned())
}

fn start_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name comes second, in parentheses, and may hold anything; the start time is field 22.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// A claim's own fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimRecord {
    pub(crate) uri: String,
    pub(crate) run: Uuid,
    pub(crate) holder: Holder,
    #[serde(with = "crate::human::duration")]
    pub(crate) ttl: Duration,
    pub(crate) renewals: u64,
}

fields! { ClaimRecord => Claims, "claim"; }

/// What this process has seen of somebody else's claim, by its own monotonic clock.
#[derive(Debug, Clone)]
pub(crate) struct Observed {
    nonce: Uuid,
    since: Instant,
}

/// How an attempt to claim ended.
#[derive(Debug)]
pub enum ClaimOutcome {
    /// It is ours until released, or not renewed in time.
    Held(Claim),
    /// Somebody else has it.
    Taken {
        /// The holder.
        by: Holder,
        /// The run it works for.
        run: Uuid,
        /// How long this process has seen it unchanged; at `ttl` it counts as expired.
        unchanged_for: Duration,
        /// Its time to live.
        ttl: Duration,
    },
}

/// A claim that this process holds. Dropped without release it simply runs out.
#[derive(Debug)]
pub struct Claim {
    registry: Registry,
    uri: String,
    run: Uuid,
    ttl: Duration,
    nonce: Uuid,
    renewed: Instant,
    after: Option<DeadHolder>,
}

/// The run whose claim was taken over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadHolder {
    /// Its id.
    pub run: Uuid,
    /// Until when it may have been alive: its last renewal, and the time in which the next one was due.
    pub last_sign: DateTime<Utc>,
}

impl Registry {
    /// Tries to claim a dataset for a run. A claim of a process that is certainly gone is taken over at once, any other
    /// when its generation has not changed for its TTL on this process's monotonic clock.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn claim(&self, uri: &str, run: Uuid, ttl: Duration) -> Result<ClaimOutcome> {
        let place = Place::of::<ClaimRecord>(uri);
        // Taken before the put: a renewal counts from when it was sent.
        let sent = Instant::now();
        let mut taken = None;
        let mut after = None;
        let fields =
            ClaimRecord { uri: uri.to_owned(), run, holder: Holder::this_process(self.actor()), ttl, renewals: 0 };
        let written = self
            .inner
            .records
            .update::<ClaimRecord>(place, self.actor(), None, |current| {
                (taken, after) = (None, None);
                let Some(other) = current else { return Ok(Change::Put(fields.clone())) };
                let unchanged = self.observe(uri, other.meta.nonce);
                if unchanged >= other.fields.ttl || other.fields.holder.is_gone() {
                    let due = chrono::Duration::from_std(other.fields.ttl / 2).unwrap_or_default();
                    let last_sign = other.meta.updated_at + due;
                    // A message that is delivered again brings the run of the worker that died with it.
                    let another = other.fields.run != run || other.fields.holder != fields.holder;
                    after = another.then_some(DeadHolder { run: other.fields.run, last_sign });
                    return Ok(Change::Put(fields.clone()));
                }
                taken = Some(ClaimOutcome::Taken {
                    by: other.fields.holder.clone(),
                    run: other.fields.run,
                    unchanged_for: unchanged,
                    ttl: other.fields.ttl,
                });
                Ok(Change::Keep)
            })
            .await?;
        match (taken, written) {
            (Some(taken), _) => Ok(taken),
            (None, Some(record)) => Ok(ClaimOutcome::Held(Claim {
                registry: self.clone(),
                uri: uri.to_owned(),
                run,
                ttl,
                nonce: record.meta.nonce,
                renewed: sent,
                after,
            })),
            (None, None) => Err(Error::InDoubt { doing: format!("claiming {uri}") }),
        }
    }

    /// How long this process has seen a claim with this nonce.
    fn observe(&self, uri: &str, nonce: Uuid) -> Duration {
        let mut seen = self.inner.observed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        let entry = seen.entry(uri.to_owned()).or_insert(Observed { nonce, since: now });
        if entry.nonce != nonce {
            *entry = Observed { nonce, since: now };
        }
        now.duration_since(entry.since)
    }

    /// Who holds a dataset, if anybody; for `why` and `/status`. Writes nothing.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn claimed_by(&self, uri: &str) -> Result<Option<(Holder, Uuid)>> {
        match self.inner.records.read::<ClaimRecord>(Place::of::<ClaimRecord>(uri)).await? {
            Read::Live(record) if !record.fields.holder.is_gone() => {
                Ok(Some((record.fields.holder.clone(), record.fields.run)))
            }
            _ => Ok(None),
        }
    }
}

impl Claim {
    /// The dataset.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Renews the claim; to be called well within half its TTL.
    ///
    /// # Errors
    /// [`Error::Refused`] when somebody else has it by now: stop, and start nothing more.
    pub async fn renew(&mut self) -> Result<()> {
        let sent = Instant::now();
        let (nonce, uri) = (self.nonce, self.uri.clone());
        let written = self
            .registry
            .inner
            .records
            .update::<ClaimRecord>(Place::of::<ClaimRecord>(&uri), self.registry.actor(), None, |current| match current
            {
                Some(found) if found.meta.nonce == nonce => {
                    let renewals = found.fields.renewals + 1;
                    Ok(Change::Put(ClaimRecord { renewals, ..found.fields.clone() }))
                }
                _ => Err(lost(&uri)),
            })
            .await?;
        self.nonce = written.ok_or_else(|| lost(&self.uri))?.meta.nonce;
        self.renewed = sent;
        Ok(())
    }

    /// Whether a commit or a chunk of deletes may be started: the last renewal is younger than half the TTL.
    pub fn still_ours(&self) -> bool {
        self.renewed.elapsed() < self.ttl / 2
    }

    /// The run that held it and died, where it was taken over.
    pub fn taken_from(&self) -> Option<&DeadHolder> {
        self.after.as_ref()
    }

    /// The run it was taken for.
    pub fn run(&self) -> Uuid {
        self.run
    }

    /// Gives the claim back. One that somebody else took over is left alone.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn release(self) -> Result<()> {
        let nonce = self.nonce;
        self.registry
            .change::<ClaimRecord>(&self.uri, None, |current| {
                Ok(if current.is_some_and(|c| c.meta.nonce == nonce) { Change::Delete } else { Change::Keep })
            })
            .await?;
        Ok(())
    }
}

fn lost(uri: &str) -> Error {
    Error::Refused(format!("the claim on {uri} was taken over; its work is left to the new holder"))
}
