//! Which programs a key has an effect on. The only place that says so: the configuration's reference page, `--check-config`
//! and the warnings at start are made from it.

use strum::Display;

use super::layer::split_key;

/// A program of the project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display)]
pub enum Program {
    /// The maintenance command and daemon.
    #[strum(serialize = "squire-maintenance")]
    Maintenance,
    /// The reconcile command and daemon.
    #[strum(serialize = "squire-reconcile")]
    Reconcile,
    /// The command and daemon that build indices.
    #[strum(serialize = "squire-index-build")]
    IndexBuild,
    /// The admin command.
    #[strum(serialize = "squire-registry")]
    Registry,
}

use Program::{IndexBuild, Maintenance, Reconcile, Registry};

/// What setting a key changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It changes what these programs do.
    Now(&'static [Program]),
    /// The same, with what the key promises and these programs do not do yet.
    Partly(&'static [Program], &'static str),
    /// It is read and checked and changes nothing yet; it is meant for these programs.
    NotYet(&'static [Program]),
}

impl Effect {
    /// The effect of a dotted key or section; that of the section where the key has no line of its own. `None` where neither
    /// has one.
    pub fn of(key: &str) -> Option<Self> {
        let path = split_key(key).ok()?;
        let fits = |line: &str| {
            let mut names = path.iter();
            line.split('.').all(|part| names.next().is_some_and(|name| name == part))
        };
        let found = EFFECTS.iter().filter(|(line, _)| fits(line));
        found.max_by_key(|(line, _)| line.split('.').count()).map(|(_, effect)| *effect)
    }

    /// The programs, of now or of later.
    pub fn programs(self) -> &'static [Program] {
        let (Self::Now(programs) | Self::Partly(programs, _) | Self::NotYet(programs)) = self;
        programs
    }

    /// Whether setting the key changes nothing yet.
    pub fn is_not_yet(self) -> bool {
        matches!(self, Self::NotYet(_))
    }
}

const DAEMONS: &[Program] = &[Maintenance, Reconcile, IndexBuild];
const EVERY: &[Program] = &[Maintenance, Reconcile, IndexBuild, Registry];

/// Sections, and the keys that differ from their section; the longest line that fits a key holds.
const EFFECTS: &[(&str, Effect)] = &[
    ("estate", Effect::Now(&[Maintenance])),
    ("estate.name", Effect::Now(&[Maintenance, Reconcile, Registry])),
    ("estate.mode", Effect::Now(DAEMONS)),
    ("estate.roots", Effect::Now(EVERY)),
    ("estate.exclusive", Effect::Now(&[Maintenance, Reconcile])),
    ("estate.tiers", Effect::Now(&[Maintenance, Reconcile])),
    ("estate.target_bytes", Effect::Now(&[Maintenance, Reconcile])),
    ("registry", Effect::Now(EVERY)),
    ("storage", Effect::Now(EVERY)),
    ("storage.delete", Effect::Now(&[Maintenance, Reconcile, Registry])),
    ("policy", Effect::Now(&[Maintenance, Registry])),
    (
        "policy.erase_within",
        Effect::Partly(&[Maintenance, Registry], "indices are not trained anew for it: see docs/erasure.md."),
    ),
    ("policy.longest_write", Effect::Now(&[Reconcile, Registry])),
    ("policy.retention", Effect::Now(&[Maintenance, Reconcile, Registry])),
    ("policy.retain_versions", Effect::Now(&[Maintenance, Reconcile, Registry])),
    ("policy.cleanup", Effect::Now(&[Maintenance, Reconcile, Registry])),
    ("policy.reader_window", Effect::Now(EVERY)),
    ("policy.upgrade_index_format", Effect::Now(&[Maintenance, IndexBuild, Registry])),
    ("floors", Effect::Now(&[Maintenance, Registry])),
    ("floors.retention", Effect::Now(&[Maintenance, Reconcile, Registry])),
    ("floors.retain_versions", Effect::Now(&[Maintenance, Reconcile, Registry])),
    ("limits.memory", Effect::Now(DAEMONS)),
    ("limits.concurrency", Effect::Now(DAEMONS)),
    ("limits.delete_rate", Effect::Partly(&[Maintenance, Reconcile], "`squire-reconcile reclaim` counts for itself.")),
    ("limits.distribute_above", Effect::Now(&[Maintenance, IndexBuild])),
    ("budget", Effect::Now(&[Maintenance])),
    ("budget.requests_per_second", Effect::Now(&[Maintenance, Reconcile])),
    ("prices", Effect::Now(&[Maintenance, Reconcile])),
    ("rollout", Effect::Now(&[Maintenance])),
    ("grace.trash", Effect::Now(&[Registry])),
    ("grace.quarantine", Effect::Now(&[Reconcile])),
    ("grace.drain", Effect::Now(DAEMONS)),
    ("grace.claim_ttl", Effect::Now(EVERY)),
    ("grace.record_history", Effect::Now(EVERY)),
    ("schedule", Effect::Now(&[Maintenance, Reconcile])),
    ("schedule.maintenance", Effect::Now(&[Maintenance])),
    ("schedule.reconcile", Effect::Now(&[Reconcile])),
    ("bus", Effect::Now(EVERY)),
    ("http", Effect::Now(DAEMONS)),
    ("tracing", Effect::Now(DAEMONS)),
];
