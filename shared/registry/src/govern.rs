//! What governs one dataset, as a pure function of a snapshot.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::blocks::BlockInfo;
use crate::own_config::OwnConfig;
use crate::policy::{Floors, Policy};
use crate::protection::Level;
use crate::record::{Collection, PolicyRecord, Record, Trash, Unreadable};
use crate::snapshot::Snapshot;
use crate::storage::within;
use crate::subject::Subject;

/// All that the registry has to say about one dataset.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Governance {
    /// The dataset's canonical URI.
    pub uri: String,
    /// The table that names it.
    pub table: Option<Subject>,
    /// What it belongs to, most specific first: itself as `dataset/...`, its table, namespaces, warehouses, projects, the
    /// estate. Protection and blocks on any of them count.
    pub chain: Vec<Subject>,
    /// The tier that the registry declares.
    pub tier: Option<String>,
    /// The table's labels.
    pub labels: Vec<String>,
    /// The project, where exactly one claims the dataset.
    pub project: Option<String>,
    /// The warehouse: the table's own, else the one with the longest root around the URI.
    pub warehouse: Option<String>,
    /// Whether its warehouse is maintained; true outside of any warehouse.
    pub warehouse_active: bool,
    /// Whether nobody outside the estate reads from it; true outside of any warehouse.
    pub exclusive: bool,
    /// The table was declared and has no bytes yet.
    pub declared_only: bool,
    /// The policy in effect, and where it comes from.
    pub policy: EffectivePolicy,
    /// The strongest protection along the chain.
    pub protection: Option<ProtectionInfo>,
    /// Every protection along the chain.
    pub protections: Vec<ProtectionInfo>,
    /// The dataset is in the trash.
    pub trash: Option<TrashInfo>,
    /// A `.lance-deregistered` marker lies in the dataset. The registry cannot see it: whoever lists the dataset sets it.
    pub deregistered: bool,
    /// The blocks that hold now, reader blocks included.
    pub blocks: Vec<BlockInfo>,
    /// The table's own config opts out, with the reason.
    pub opted_out: Option<String>,
    /// The table's own config pauses maintenance until then.
    pub paused_until: Option<DateTime<Utc>>,
    /// Two projects claim the dataset's place: neither project's policy holds (`policy_clash`).
    pub clash: Option<Clash>,
    /// Records in the dataset's scope that cannot be understood: what destroys refuses while there is one.
    pub unreadable: Vec<Unreadable>,
}

/// Why nothing may be written to a dataset now, whatever is to be done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Forbidden {
    /// A record that may forbid it cannot be read.
    Unreadable,
    /// It is in the trash.
    Trashed,
    /// A `.lance-deregistered` marker lies in it.
    Deregistered,
    /// A protection freezes it.
    Frozen,
    /// Its warehouse is deactivated.
    WarehouseInactive,
    /// A block pauses it.
    Blocked,
}

impl Governance {
    /// What the registry forbids, on its own, with a sentence for a person: asked before any work and again before each commit
    /// and each chunk of deletes. The strongest reason comes first.
    pub fn forbidden(&self) -> Option<(Forbidden, String)> {
        // An unread protection may be a freeze and an unread trash record a drop: both forbid every write (invariant 3), so
        // not knowing forbids it too. Other unread records only stop what destroys.
        let decisive = |c: Collection| matches!(c, Collection::Protection | Collection::Trash | Collection::Blocks);
        if let Some(u) = self.unreadable.iter().find(|u| decisive(u.collection)) {
            let what = format!("the record {}/{} cannot be read: {}", u.collection, u.key, u.why);
            return Some((Forbidden::Unreadable, what));
        }
        if let Some(trash) = &self.trash {
            let what = format!("dropped on {} as {}; undrop or purge it", day(trash.dropped_at), trash.subject);
            return Some((Forbidden::Trashed, what));
        }
        if self.deregistered {
            return Some((Forbidden::Deregistered, "a .lance-deregistered marker lies in it".into()));
        }
        if let Some(freeze) = self.protection.as_ref().filter(|p| !p.level.allows_writes()) {
            let why = freeze.reason.as_deref().unwrap_or("no reason given");
            return Some((Forbidden::Frozen, format!("frozen by {} ({why})", freeze.subject)));
        }
        if !self.warehouse_active {
            let name = self.warehouse.as_deref().unwrap_or("its warehouse");
            return Some((Forbidden::WarehouseInactive, format!("warehouse {name} is deactivated")));
        }
        if let Some(block) = self.paused_by() {
            let until = block.until.map(|t| format!(" until {}", day(t))).unwrap_or_default();
            return Some((Forbidden::Blocked, format!("blocked by {}{until}: {}", block.subject, block.reason)));
        }
        None
    }

    /// The pause that holds now, if any: a block without a version.
    pub fn paused_by(&self) -> Option<&BlockInfo> {
        self.blocks.iter().find(|b| b.pauses())
    }

    /// The versions that readers need.
    pub fn reader_versions(&self) -> BTreeSet<u64> {
        self.blocks.iter().filter_map(|b| b.version).collect()
    }

    /// Whether nothing at all may be written: trashed, deregistered or frozen (invariant `frozen_untouched`).
    pub fn is_frozen(&self) -> bool {
        self.trash.is_some() || self.deregistered || self.protection.as_ref().is_some_and(|p| !p.level.allows_writes())
    }

    /// The hold that keeps all versions, if any.
    pub fn held_by(&self) -> Option<&ProtectionInfo> {
        self.protection.as_ref().filter(|p| !p.level.allows_reclaim())
    }
}

fn day(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M UTC").to_string()
}

/// A policy with its origin.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EffectivePolicy {
    /// The values in effect, floors applied.
    pub policy: Policy,
    /// The record that won; it supplied every value (`target_rows` alone may fall through).
    pub source: PolicySource,
    /// What the estate's floors raised, and what a contract's ceiling lowered.
    pub clamped: Vec<String>,
    /// A change that lets versions go sooner and is still to come.
    pub pending: Option<Pending>,
    /// What the table's own config changed, and what of it was not understood.
    pub table_config: Vec<String>,
}

/// Where a policy comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicySource {
    /// The kind of the winner.
    pub kind: PolicySourceKind,
    /// Its SUBJECT; the estate's name is `estate`.
    pub id: String,
}

/// The kinds of origin of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, strum::Display, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum PolicySourceKind {
    /// The table's own record.
    Table,
    /// A namespace's record.
    Namespace,
    /// The project's record.
    Project,
    /// A contract.
    Contract,
    /// The config's `[policy]`.
    Estate,
    /// A flag of this run.
    Flag,
}

/// A policy change that waits for `shorten_delay`, and can be undone until then.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pending {
    /// When it takes effect.
    pub effective_at: DateTime<Utc>,
    /// What lets versions go sooner, one line per key.
    pub changes: Vec<String>,
    /// The record's policy from then on; none: the record is unset and the next one up governs.
    pub policy: Option<Policy>,
}

/// One protection along the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProtectionInfo {
    /// How strongly.
    pub level: Level,
    /// What it was put on.
    pub subject: Subject,
    /// Why.
    pub reason: Option<String>,
}

/// What the trash says of a dataset. It is frozen as long as the record lives, also past the deadline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TrashInfo {
    /// The record's id, for `trash show`.
    pub id: String,
    /// The table it was.
    pub subject: Subject,
    /// When it was dropped.
    pub dropped_at: DateTime<Utc>,
    /// From when its bytes may be planned for reclaim.
    pub deadline: DateTime<Utc>,
    /// Whether the deadline has passed.
    pub expired: bool,
}

impl TrashInfo {
    pub(crate) fn of(record: &Record<Trash>, now: DateTime<Utc>) -> Self {
        Self {
            id: record.meta.id.clone(),
            subject: record.fields.subject.clone(),
            dropped_at: record.fields.dropped_at,
            deadline: record.fields.deadline,
            expired: record.fields.deadline <= now,
        }
    }
}

/// Projects that claim one place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Clash {
    /// The projects, sorted.
    pub projects: Vec<String>,
    /// Their warehouses, sorted.
    pub warehouses: Vec<String>,
}

/// What a dataset's place is worth: bound and claiming warehouses, nearest first.
pub(crate) struct Place<'a> {
    table: Option<&'a Record<crate::record::Table>>,
    subject: Option<Subject>,
    namespaces: Vec<Subject>,
    /// The nearest first.
    warehouses: Vec<&'a Record<crate::record::Warehouse>>,
    /// Ids as stored in records that could not be read themselves, too.
    pub(crate) warehouse_ids: BTreeSet<String>,
    pub(crate) projects: BTreeSet<String>,
}

impl Snapshot {
    pub(crate) fn place(&self, uri: &str) -> Place<'_> {
        let table = self.table_at(uri);
        // Where the table's record cannot be read, its location still tells the name, and with it what protects it.
        let named = || self.locations.get(uri).map(|l| l.fields.table.clone());
        let subject = table.map(|t| t.fields.subject()).or_else(named);
        let mut namespaces = Vec::new();
        let mut bound = None;
        // A dropped table has no name any more, which a new one may have by now; what it lay in still holds and protects it.
        let dropped = || self.trash_at(uri).max_by_key(|t| t.fields.dropped_at).map(|t| t.fields.subject.clone());
        if let Some(lies_in) = subject.clone().or_else(dropped) {
            let mut next = lies_in.parent_namespace();
            while let Some(subject) = next {
                let binding = self.namespaces.get(&subject.id()).map(|n| n.fields.warehouse.clone());
                bound = bound.or(binding);
                next = subject.parent_namespace();
                namespaces.push(subject);
            }
        }
        let mut warehouses: Vec<_> = self.warehouses().filter(|w| within(uri, &w.fields.root)).collect();
        warehouses.sort_by_key(|w| std::cmp::Reverse(w.fields.root.len()));
        let mut warehouse_ids = BTreeSet::new();
        if let Some(id) = bound {
            let at = warehouses.iter().position(|w| name_of(w) == id);
            let record = at.map(|i| warehouses.remove(i)).or_else(|| self.warehouse(&id));
            record.into_iter().for_each(|r| warehouses.insert(0, r));
            warehouse_ids.insert(id);
        }
        warehouse_ids.extend(warehouses.iter().map(|w| name_of(w)));
        let projects = warehouses.iter().map(|w| w.fields.project.clone()).collect();
        Place { table, subject, namespaces, warehouses, warehouse_ids, projects }
    }

    /// The ids of the namespaces above a dataset's table.
    pub(crate) fn namespaces_of(&self, uri: &str) -> Vec<String> {
        self.place(uri).namespaces.iter().map(Subject::id).collect()
    }

    /// What a dataset belongs to, most specific first: see [`Governance::chain`].
    pub fn chain(&self, uri: &str) -> Vec<Subject> {
        chain(uri, &self.place(uri))
    }

    /// Everything that governs a dataset, given by its canonical URI.
    ///
    /// `defaults` is the config's `[policy]`, `floors` its `[floors]`; `table_config` holds the dataset's own Lance config
    /// (`lance.auto_cleanup.*`, `squire.*`), which can only make things safer. Pure.
    pub fn govern(
        &self,
        uri: &str,
        defaults: &Policy,
        floors: &Floors,
        table_config: &BTreeMap<String, String>,
        now: DateTime<Utc>,
    ) -> Governance {
        let place = self.place(uri);
        let chain = chain(uri, &place);
        let clash = clash(&place);
        let mut protections: Vec<ProtectionInfo> =
            chain.iter().filter_map(|s| self.protection_of(s)).map(protection_info).collect();
        protections.sort_by_key(|p| std::cmp::Reverse(p.level));
        let nearest = place.warehouses.first();
        let same_root = |w: &Record<crate::record::Warehouse>| nearest.is_some_and(|n| n.fields.root == w.fields.root);
        let own = OwnConfig::read(table_config, now);
        let blocks = self
            .blocks()
            .filter(|b| b.fields.active_at(now) && chain.contains(&b.fields.subject))
            .map(block_info)
            .collect();
        Governance {
            uri: uri.to_owned(),
            table: place.subject.clone(),
            tier: place.table.and_then(|t| t.fields.tier.clone()),
            labels: place.table.map(|t| t.fields.labels.clone()).unwrap_or_default(),
            project: (clash.is_none()).then(|| place.projects.first().cloned()).flatten(),
            warehouse: nearest.map(|w| name_of(w)).or_else(|| place.warehouse_ids.first().cloned()),
            warehouse_active: place
                .warehouses
                .iter()
                .filter(|w| same_root(w))
                .all(|w| w.fields.active && !w.fields.deleting),
            exclusive: place.warehouses.iter().all(|w| w.fields.exclusive),
            declared_only: place.table.is_some_and(|t| t.fields.declared),
            policy: self.resolve(&place, clash.is_some(), defaults, floors, &own, now),
            protection: protections.first().cloned(),
            protections,
            trash: self.trash_at(uri).map(|t| TrashInfo::of(t, now)).max_by_key(|t| t.deadline),
            deregistered: false,
            blocks,
            opted_out: own.opted_out,
            paused_until: own.paused_until,
            unreadable: self.unreadable_in(&place.projects, &place.warehouse_ids),
            clash,
            chain,
        }
    }

    fn resolve(
        &self,
        place: &Place<'_>,
        clashing: bool,
        defaults: &Policy,
        floors: &Floors,
        own: &OwnConfig,
        now: DateTime<Utc>,
    ) -> EffectivePolicy {
        let mut subjects: Vec<Subject> = place.subject.iter().cloned().collect();
        subjects.extend(place.namespaces.iter().cloned());
        if !clashing {
            subjects.extend(place.projects.iter().cloned().map(Subject::Project));
        }
        let Resolved { policy: mut winner, mut source, mut pending } = self.winner(&subjects, defaults, now);
        let mut table_config = own.notes.clone();
        if let Some((text, kept)) = own.auto_cleanup.as_ref()
            && source.kind == PolicySourceKind::Estate
            && *kept > winner.retention
        {
            table_config.push(format!("lance.auto_cleanup.older_than = {text}: longer than the estate's, honoured"));
            winner.retention = *kept;
        }
        if let Some((text, kept)) = own.retention.as_ref() {
            if *kept > winner.retention {
                table_config.push(format!("squire.retention = {text}: longer than the policy's, honoured"));
                winner.retention = *kept;
            } else {
                table_config.push(format!("squire.retention = {text}: not longer than the policy's, no effect"));
            }
        }
        let ceiling = self.ceiling_of(place.subject.as_ref());
        let lowered = ceiling.and_then(|c| c.apply(&mut winner, &mut source, &mut pending, floors, now));
        let (policy, raised) = floors.clamp(&winner);
        let clamped = lowered.into_iter().chain(raised).collect();
        EffectivePolicy { policy, source, clamped, pending, table_config }
    }

    /// The first record of `subjects` that holds at `now`, else the estate's defaults; floors not applied.
    pub(crate) fn winner(&self, subjects: &[Subject], defaults: &Policy, now: DateTime<Utc>) -> Resolved {
        let estate = PolicySource { kind: PolicySourceKind::Estate, id: "estate".into() };
        let mut found: Option<Resolved> = None;
        for subject in subjects {
            let Some(record) = self.policy_of(subject) else { continue };
            let Ok(Some(policy)) = record.fields.at(now) else { continue };
            match &mut found {
                None => {
                    let source = PolicySource { kind: source_kind(subject), id: subject.to_string() };
                    let pending = pending_of(&record.fields, now);
                    found = Some(Resolved { policy, source, pending });
                }
                // The one key that a record may leave out.
                Some(winner) if winner.policy.target_rows.is_none() => winner.policy.target_rows = policy.target_rows,
                Some(_) => break,
            }
        }
        match found {
            Some(mut winner) => {
                winner.policy.target_rows = winner.policy.target_rows.or(defaults.target_rows);
                winner
            }
            None => Resolved { policy: defaults.clone(), source: estate, pending: None },
        }
    }

    /// Warehouses of different projects whose roots overlap: one clash per place (`bucket_shared_by_projects`).
    pub fn clashes(&self) -> Vec<Clash> {
        let mut out: Vec<Clash> = Vec::new();
        for warehouse in self.warehouses() {
            let around: Vec<_> = self.warehouses().filter(|w| within(&warehouse.fields.root, &w.fields.root)).collect();
            out.extend(clash_of(&around));
        }
        out.sort_by(|a, b| a.warehouses.cmp(&b.warehouses));
        out.dedup();
        out
    }
}

/// A policy and the record it came from.
pub(crate) struct Resolved {
    pub(crate) policy: Policy,
    pub(crate) source: PolicySource,
    pub(crate) pending: Option<Pending>,
}

fn chain(uri: &str, place: &Place<'_>) -> Vec<Subject> {
    let mut chain = vec![Subject::Dataset(uri.to_owned())];
    chain.extend(place.subject.clone());
    chain.extend(place.namespaces.iter().cloned());
    let mut ids: Vec<String> = place.warehouses.iter().map(|w| name_of(w)).collect();
    ids.extend(place.warehouse_ids.iter().filter(|id| !ids.contains(id)).cloned().collect::<Vec<_>>());
    chain.extend(ids.into_iter().map(Subject::Warehouse));
    chain.extend(place.projects.iter().cloned().map(Subject::Project));
    chain.push(Subject::Estate);
    chain
}

fn clash(place: &Place<'_>) -> Option<Clash> {
    clash_of(&place.warehouses)
}

fn clash_of(warehouses: &[&Record<crate::record::Warehouse>]) -> Option<Clash> {
    let projects: BTreeSet<_> = warehouses.iter().map(|w| w.fields.project.clone()).collect();
    let ids: BTreeSet<_> = warehouses.iter().map(|w| name_of(w)).collect();
    (projects.len() > 1)
        .then(|| Clash { projects: projects.into_iter().collect(), warehouses: ids.into_iter().collect() })
}

/// A warehouse's name; its record id is the percent-encoded form.
pub(crate) fn name_of(record: &Record<crate::record::Warehouse>) -> String {
    percent_encoding::percent_decode_str(&record.meta.id).decode_utf8_lossy().into_owned()
}

fn source_kind(subject: &Subject) -> PolicySourceKind {
    match subject {
        Subject::Table(_) => PolicySourceKind::Table,
        Subject::Namespace(_) => PolicySourceKind::Namespace,
        Subject::Project(_) => PolicySourceKind::Project,
        _ => PolicySourceKind::Estate,
    }
}

fn pending_of(record: &PolicyRecord, now: DateTime<Utc>) -> Option<Pending> {
    let pending = record.pending_at(now)?;
    Some(Pending {
        effective_at: pending.effective_at,
        changes: pending.changes.clone(),
        policy: pending.policy.as_ref().and_then(|map| Policy::from_map(map).ok()),
    })
}

pub(crate) fn protection_info(record: &Record<crate::record::Protection>) -> ProtectionInfo {
    ProtectionInfo {
        level: record.fields.level,
        subject: record.fields.subject.clone(),
        reason: record.meta.reason.clone(),
    }
}

pub(crate) fn block_info(record: &Record<crate::blocks::Block>) -> BlockInfo {
    BlockInfo {
        id: record.meta.id.clone(),
        subject: record.fields.subject.clone(),
        kind: record.fields.kind,
        reason: record.meta.reason.clone().unwrap_or_default(),
        until: record.fields.until,
        version: record.fields.version,
    }
}
