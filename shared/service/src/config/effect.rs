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

/// Sections, and the keys that differ from their section; the longest line that fits a key holds.
const EFFECTS: [(&str, Effect); 32] = [
    ("estate", Effect::Now(&[Maintenance])),
    ("estate.name", Effect::Now(&[Maintenance, Reconcile, Registry])),
    ("estate.mode", Effect::Now(&[Maintenance, Reconcile])),
    ("estate.roots", Effect::Now(&[Maintenance, Reconcile, Registry])),
    ("estate.exclusive", Effect::Now(&[Maintenance, Reconcile])),
    ("registry", Effect::Now(&[Maintenance, Reconcile, Registry])),
    ("storage", Effect::Now(&[Maintenance, Reconcile, Registry])),
    ("storage.delete", Effect::Now(&[Maintenance, Registry])),
    ("policy", Effect::Now(&[Maintenance, Registry])),
    (
        "policy.erase_within",
        Effect::Partly(&[Maintenance, Registry], "it shortens the retention, and starts no rewrite."),
    ),
    ("policy.longest_write", Effect::Now(&[Reconcile, Registry])),
    ("policy.required_indices.build", Effect::NotYet(&[IndexBuild])),
    ("floors", Effect::Now(&[Maintenance, Registry])),
    ("limits", Effect::Now(&[Maintenance])),
    ("limits.memory", Effect::Now(&[Maintenance, Reconcile])),
    ("limits.concurrency", Effect::Now(&[Maintenance, Reconcile])),
    ("limits.delete_rate", Effect::Partly(&[Maintenance], "each process counts for itself.")),
    ("budget", Effect::NotYet(DAEMONS)),
    ("budget.rewrite_per_day", Effect::Now(&[Maintenance])),
    ("prices", Effect::Now(&[Maintenance, Reconcile])),
    ("prices.stored_gib_month", Effect::NotYet(&[Maintenance, Reconcile])),
    ("rollout", Effect::Now(&[Maintenance])),
    ("grace.trash", Effect::Now(&[Registry])),
    ("grace.quarantine", Effect::NotYet(&[Reconcile])),
    ("grace.drain", Effect::Now(&[Maintenance])),
    ("grace.claim_ttl", Effect::Now(&[Maintenance, Registry])),
    ("grace.record_history", Effect::Now(&[Maintenance, Registry])),
    ("schedule", Effect::Now(&[Maintenance])),
    ("schedule.reconcile", Effect::NotYet(&[Reconcile])),
    ("bus", Effect::Now(&[Maintenance, Registry])),
    ("http", Effect::Now(&[Maintenance])),
    ("tracing", Effect::Now(&[Maintenance])),
];
