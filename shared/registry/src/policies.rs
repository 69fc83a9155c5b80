//! Writing policies, protection and blocks.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::blocks::{Block, BlockKind};
use crate::error::{Error, Kind, Result};
use crate::generation::Change;
use crate::govern::{EffectivePolicy, Pending, PolicySource, Resolved};
use crate::hierarchy::missing;
use crate::policy::{Floors, Policy};
use crate::protection::Level;
use crate::record::{Fields, PendingRecord, PolicyRecord, Protection, Record};
use crate::registry::Registry;
use crate::snapshot::Snapshot;
use crate::subject::Subject;

/// What `policy set` and `policy unset` are asked for.
#[derive(Debug, Clone)]
pub struct PolicyChange<'a> {
    /// The project, namespace or table.
    pub subject: &'a Subject,
    /// Keys and their values as text, in the order given.
    pub keys: &'a [(String, String)],
    /// Why.
    pub reason: Option<&'a str>,
    /// Take effect at once, also where versions go sooner.
    pub immediately: bool,
    /// The moment of the change.
    pub at: DateTime<Utc>,
}

/// What a change of policy did, or would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyDiff {
    /// What it is about.
    pub subject: Subject,
    /// The record that governed it before.
    pub from: PolicySource,
    /// The policy before.
    pub before: Policy,
    /// The policy that holds at once.
    pub after: Policy,
    /// Keys that differ at once, one line each.
    pub changes: Vec<String>,
    /// What waits for `shorten_delay`.
    pub pending: Option<Pending>,
    /// Values that the estate's floors raise.
    pub clamped: Vec<String>,
}

impl Registry {
    /// Sets keys of a subject's policy: starts from its effective policy, writes a complete record, and says what differs.
    /// What lets versions go sooner waits for `floors.shorten_delay` unless `immediately` is set.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a subject that has no policy record or a key or value that does not fit;
    /// [`Error::Missing`].
    pub async fn policy_set(
        &self,
        change: &PolicyChange<'_>,
        defaults: &Policy,
        floors: &Floors,
    ) -> Result<PolicyDiff> {
        let subject = policy_subject(change.subject)?;
        let snapshot = self.snapshot().await?;
        if !snapshot.exists(subject) {
            return Err(missing(subject, ""));
        }
        let effective_at = delayed(change.at, floors.shorten_delay)?;
        let mut diff = None;
        let written = self
            .change::<PolicyRecord>(&subject.to_string(), change.reason, |current| {
                let (next, told) = compose(&snapshot, current, change, defaults, floors, effective_at)?;
                diff = Some(told);
                let same = current.is_some_and(|c| c.fields == next);
                Ok(if same { Change::Keep } else { Change::Put(next) })
            })
            .await?;
        self.keep_if_there(subject, &subject.to_string(), written).await?;
        diff.ok_or_else(|| Error::InDoubt { doing: format!("setting the policy of {subject}") })
    }

    /// Takes a subject's policy record away, so that the next one up governs. Where versions would then go sooner the
    /// record stays until `floors.shorten_delay` has passed, unless `immediately` is set.
    ///
    /// # Errors
    /// [`Error::Missing`] when the subject has no record of its own.
    pub async fn policy_unset(
        &self,
        change: &PolicyChange<'_>,
        defaults: &Policy,
        floors: &Floors,
    ) -> Result<PolicyDiff> {
        let subject = policy_subject(change.subject)?;
        let snapshot = self.snapshot().await?;
        let effective_at = delayed(change.at, floors.shorten_delay)?;
        let above = snapshot.inherited(subject, defaults, change.at);
        let mut diff = None;
        self.change::<PolicyRecord>(&subject.to_string(), change.reason, |current| {
            let record = current.ok_or_else(|| Error::Missing {
                what: format!("a policy record of {subject}"),
                hint: "; it is governed from above, see `policy show`".into(),
            })?;
            let Some(before) = record.fields.at(change.at).map_err(Error::Invalid)? else {
                diff = Some(describe(subject, own(subject), above.policy.clone(), above.policy.clone(), None, floors));
                return Ok(Change::Delete);
            };
            let sooner = before.sooner(&above.policy);
            if change.immediately || sooner.is_empty() {
                diff = Some(describe(subject, own(subject), before, above.policy.clone(), None, floors));
                return Ok(Change::Delete);
            }
            let pending = PendingRecord { effective_at, policy: None, changes: sooner };
            let policy = complete(&before, Some(record));
            let next = PolicyRecord { pending: Some(pending.clone()), policy, subject: subject.clone() };
            diff = Some(describe(subject, own(subject), before.clone(), before, Some(told(&pending)), floors));
            Ok(Change::Put(next))
        })
        .await?;
        diff.ok_or_else(|| Error::InDoubt { doing: format!("unsetting the policy of {subject}") })
    }

    /// Protects a subject. Answers also for a corrupt dataset, since it is kept here and not there.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is no such subject.
    pub async fn protect(&self, subject: &Subject, level: Level, reason: Option<&str>) -> Result<()> {
        let subject = &subject.canonical()?;
        if !self.snapshot().await?.exists(subject) {
            return Err(missing(subject, ""));
        }
        let fields = Protection { subject: subject.clone(), level };
        let written = self
            .change::<Protection>(&subject.to_string(), reason, |current| {
                let same = current
                    .is_some_and(|c| c.fields == fields && (reason.is_none() || c.meta.reason.as_deref() == reason));
                Ok(if same { Change::Keep } else { Change::Put(fields.clone()) })
            })
            .await?;
        self.keep_if_there(subject, &subject.to_string(), written).await
    }

    /// Takes a record away again whose subject was dropped while it was written: a reused id must not inherit it.
    async fn keep_if_there<T: Fields>(
        &self,
        subject: &Subject,
        id: &str,
        written: Option<Arc<Record<T>>>,
    ) -> Result<()> {
        let Err(e) = self.outlives(subject).await else { return Ok(()) };
        if let (Kind::NotFound, Some(written)) = (e.kind(), written) {
            self.remove_own::<T>(id, written.meta.nonce, Some("its subject was dropped meanwhile")).await?;
        }
        Err(e)
    }

    /// Ends the protection put on exactly this subject; what lies above it still holds.
    ///
    /// # Errors
    /// [`Error::Missing`] when it has none of its own.
    pub async fn unprotect(&self, subject: &Subject, reason: Option<&str>) -> Result<()> {
        let subject = &subject.canonical()?;
        if self.remove::<Protection>(&subject.to_string(), reason).await? {
            return Ok(());
        }
        Err(Error::Missing { what: format!("protection on {subject}"), hint: "; see `protection show`".into() })
    }

    /// Files a block and returns its id. A block with a version keeps that version and pauses nothing.
    ///
    /// # Errors
    /// [`Error::Missing`] when there is no such subject.
    pub async fn block_add(&self, block: Block, reason: &str) -> Result<String> {
        let block = Block { subject: block.subject.canonical()?, ..block };
        if !self.snapshot().await?.exists(&block.subject) {
            return Err(missing(&block.subject, ""));
        }
        if (block.kind == BlockKind::Reader) != block.version.is_some() {
            return Err(Error::Invalid(
                "a reader block names the version it needs, and only a reader block does".into(),
            ));
        }
        let id = Uuid::now_v7().to_string();
        let written = self
            .change::<Block>(&id, Some(reason), |current| {
                Ok(if current.is_some() { Change::Keep } else { Change::Put(block.clone()) })
            })
            .await?;
        self.keep_if_there(&block.subject, &id, written).await?;
        Ok(id)
    }

    /// Lifts a block.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub async fn block_remove(&self, id: &str, reason: Option<&str>) -> Result<()> {
        if self.remove::<Block>(id, reason).await? {
            return Ok(());
        }
        Err(Error::Missing { what: format!("block {id}"), hint: "; see `block list`".into() })
    }
}

impl Snapshot {
    /// The policy of a subject as it stands: a table's or dataset's, or what a namespace, a project or the estate gives to
    /// what lies in it. Names the winner.
    pub fn effective(
        &self,
        subject: &Subject,
        defaults: &Policy,
        floors: &Floors,
        now: DateTime<Utc>,
    ) -> EffectivePolicy {
        let Resolved { mut policy, mut source, mut pending } = self.winner(&self.governing(subject), defaults, now);
        let named = match subject {
            Subject::Dataset(uri) => self.table_at(uri).map(|t| t.fields.subject()),
            other => Some(other.clone()),
        };
        let ceiling = self.ceiling_of(named.as_ref());
        let lowered = ceiling.and_then(|c| c.apply(&mut policy, &mut source, &mut pending, floors, now));
        let (policy, raised) = floors.clamp(&policy);
        let clamped = lowered.into_iter().chain(raised).collect();
        EffectivePolicy { policy, source, clamped, pending, table_config: Vec::new() }
    }

    /// What would govern a subject without its own record.
    pub(crate) fn inherited(&self, subject: &Subject, defaults: &Policy, now: DateTime<Utc>) -> Resolved {
        let above: Vec<Subject> = self.governing(subject).into_iter().filter(|s| s != subject).collect();
        self.winner(&above, defaults, now)
    }

    /// How a subject's own record differs from what it would inherit; nothing is written.
    pub fn policy_diff(&self, subject: &Subject, defaults: &Policy, floors: &Floors, now: DateTime<Utc>) -> PolicyDiff {
        let above = self.inherited(subject, defaults, now);
        let here = self.winner(&self.governing(subject), defaults, now);
        describe(subject, above.source, above.policy, here.policy, here.pending, floors)
    }

    /// The policy record that governs a subject, its own or the nearest above it; `None` where the estate's defaults do.
    pub(crate) fn governing_record(&self, subject: &Subject) -> Option<&Record<PolicyRecord>> {
        self.governing(subject).iter().find_map(|s| self.policy_of(s))
    }

    /// Whose records can govern a subject, most specific first. Where two projects claim the place, neither does.
    fn governing(&self, subject: &Subject) -> Vec<Subject> {
        let chain = self.chain_of(subject);
        let projects = chain.iter().filter(|s| matches!(s, Subject::Project(_))).count();
        chain
            .into_iter()
            .filter(|s| match s {
                Subject::Table(_) | Subject::Namespace(_) => true,
                Subject::Project(_) => projects == 1,
                _ => false,
            })
            .collect()
    }
}

fn compose(
    snapshot: &Snapshot,
    current: Option<&Record<PolicyRecord>>,
    change: &PolicyChange<'_>,
    defaults: &Policy,
    floors: &Floors,
    effective_at: DateTime<Utc>,
) -> Result<(PolicyRecord, PolicyDiff)> {
    let (subject, at) = (change.subject, change.at);
    let own_now = current.and_then(|c| c.fields.at(at).ok().flatten());
    let (before, from) = match own_now {
        Some(policy) => (policy, own(subject)),
        None => {
            let above = snapshot.inherited(subject, defaults, at);
            (above.policy, above.source)
        }
    };
    // A change that is still to come was asked for, too; the new keys go on top of it.
    let waiting = current.and_then(|c| c.fields.pending_at(at));
    let asked = waiting.and_then(|p| p.policy.as_ref()).and_then(|map| Policy::from_map(map).ok());
    let mut wanted = asked.clone().unwrap_or_else(|| before.clone());
    for (key, value) in change.keys {
        wanted = wanted.with(key, value).map_err(|e| Error::Invalid(format!("policy of {subject}: {e}")))?;
    }
    let sooner = before.sooner(&wanted);
    let (after, pending) = if sooner.is_empty() || change.immediately {
        (wanted, None)
    } else {
        // What was waiting with the same values keeps its time.
        let same = asked.is_some_and(|a| before.sooner(&a) == sooner);
        let since = waiting.filter(|_| same).map_or(effective_at, |p| p.effective_at);
        let pending = PendingRecord { effective_at: since, policy: Some(complete(&wanted, current)), changes: sooner };
        (before.hold_back(&wanted), Some(pending))
    };
    let told = describe(subject, from, before, after.clone(), pending.as_ref().map(told), floors);
    Ok((PolicyRecord { subject: subject.clone(), policy: complete(&after, current), pending }, told))
}

/// A record holds every key that is set, and what a newer build put there; what is optional and unset stays out.
pub(crate) fn complete(
    policy: &Policy,
    current: Option<&Record<PolicyRecord>>,
) -> serde_json::Map<String, serde_json::Value> {
    let newer = current.into_iter().flat_map(|c| &c.fields.policy);
    let newer = newer.filter(|(key, _)| !Policy::KEYS.contains(&key.as_str())).map(|(k, v)| (k.clone(), v.clone()));
    policy.to_map().into_iter().filter(|(_, v)| !v.is_null()).chain(newer).collect()
}

fn describe(
    subject: &Subject,
    from: PolicySource,
    before: Policy,
    after: Policy,
    pending: Option<Pending>,
    floors: &Floors,
) -> PolicyDiff {
    let target = pending.as_ref().and_then(|p| p.policy.as_ref()).unwrap_or(&after);
    let clamped = floors.clamp(target).1;
    PolicyDiff { subject: subject.clone(), from, changes: before.diff(&after), before, after, pending, clamped }
}

fn told(pending: &PendingRecord) -> Pending {
    Pending {
        effective_at: pending.effective_at,
        changes: pending.changes.clone(),
        policy: pending.policy.as_ref().and_then(|map| Policy::from_map(map).ok()),
    }
}

fn own(subject: &Subject) -> PolicySource {
    use crate::govern::PolicySourceKind as K;
    let kind = match subject {
        Subject::Table(_) => K::Table,
        Subject::Namespace(_) => K::Namespace,
        _ => K::Project,
    };
    PolicySource { kind, id: subject.to_string() }
}

fn policy_subject(subject: &Subject) -> Result<&Subject> {
    match subject {
        Subject::Project(_) | Subject::Namespace(_) | Subject::Table(_) => Ok(subject),
        Subject::Estate => Err(Error::Invalid("the estate's policy is the config's [policy]; set it there".into())),
        Subject::Warehouse(_) => {
            Err(Error::Invalid(format!("{subject} has no policy; set it on its project or its namespaces")))
        }
        Subject::Dataset(_) => Err(Error::Invalid(format!(
            "{subject} has no table name; register it with `table create` to give it a policy"
        ))),
    }
}

/// Datasets are compared by their canonical URI, however they were typed.
pub(crate) fn delayed(at: DateTime<Utc>, delay: Duration) -> Result<DateTime<Utc>> {
    TimeDelta::from_std(delay)
        .ok()
        .and_then(|delay| at.checked_add_signed(delay))
        .ok_or_else(|| Error::Invalid("floors.shorten_delay: too long to be a date; write it like \"24h\"".into()))
}
