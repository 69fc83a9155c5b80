//! The table's own clean-up hook, `lance.auto_cleanup.*`: what other writers' commits delete, whatever the policy says. Pure.
//!
//! Our commits never run it, so it is no reason not to maintain a table. It is judged narrowly: a finding only where a commit
//! of somebody else can delete what policy or protection keeps. LanceDB 0.22 to 0.32 put the keys into every table (20 commits,
//! 14 days), and with the default retention there is nothing to say about those.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use squire_registry::Governance;
use squire_registry::human::{format_duration, parse_duration};

use crate::retention::Version;

const PREFIX: &str = "lance.auto_cleanup.";

/// A hook that Lance would run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// Every how many versions it runs; 0: at every commit.
    pub interval: u64,
    /// How old, by its own timestamp, a version must be to go. Zero where nothing is set: then any version may go.
    pub older_than: Duration,
    /// How many of the newest versions stay.
    pub retain_versions: Option<u64>,
}

impl Hook {
    /// Reads a table's config. `None` without a hook, and where a value is not understood: Lance then reports an error after
    /// the commit and deletes nothing (lance, `dataset/cleanup.rs`, `build_cleanup_operation`).
    pub fn of(config: &BTreeMap<String, String>) -> Option<Self> {
        let get = |key: &str| config.get(&format!("{PREFIX}{key}")).map(String::as_str);
        let interval = get("interval")?.parse().ok()?;
        let older_than = get("older_than").map_or(Ok(Duration::ZERO), parse_duration).ok()?;
        let retain_versions = get("retain_versions").map(str::parse).transpose().ok()?;
        get("referenced_branch").map(str::parse::<bool>).transpose().ok()?;
        get("delete_rate_limit").map(str::parse::<u64>).transpose().ok()?;
        get("delete_concurrency").map(str::parse::<usize>).transpose().ok()?;
        (retain_versions != Some(0)).then_some(Self { interval, older_than, retain_versions })
    }

    /// What it does, in words.
    fn words(&self) -> String {
        let every = match self.interval {
            0 | 1 => "with every commit".to_string(),
            n => format!("every {n} commits"),
        };
        let keeping = self.retain_versions.map(|n| format!(", all but the newest {n}")).unwrap_or_default();
        match self.older_than.is_zero() {
            true => format!("{every} its writers remove old versions of any age{keeping}"),
            false => {
                format!("{every} its writers remove versions older than {}{keeping}", format_duration(self.older_than))
            }
        }
    }
}

/// What a hook does to what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conflict {
    /// It can delete what a hold or a reader's block keeps.
    HoldNotEnforceable,
    /// It can delete what the policy keeps, or a clone reads.
    AutoCleanupConflict,
}

impl Conflict {
    /// The stable name of FACES.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HoldNotEnforceable => "hold_not_enforceable",
            Self::AutoCleanupConflict => "auto_cleanup_conflict",
        }
    }
}

/// What is to be said about the hook in a table's config, if anything, with the sentence for a person. `versions`: the attached
/// ones of the main tree; `clones`: datasets that read this one's files.
pub fn judge(
    config: &BTreeMap<String, String>,
    versions: &[Version],
    governance: &Governance,
    clones: &[String],
) -> Option<(Conflict, String)> {
    let hook = Hook::of(config)?;
    let words = hook.words();
    if let Some(hold) = governance.held_by() {
        let detail = format!("{words} (lance.auto_cleanup), whatever the {} on {} says", hold.level, hold.subject);
        return Some((Conflict::HoldNotEnforceable, detail));
    }
    if let Some(version) = reader_lost(&hook, versions, governance) {
        let detail = format!("{words} (lance.auto_cleanup), version {version} too, which a reader's block holds");
        return Some((Conflict::HoldNotEnforceable, detail));
    }
    if let Some(clone) = clones.first() {
        let detail = format!("{words} (lance.auto_cleanup), and with them files that {clone} reads");
        return Some((Conflict::AutoCleanupConflict, detail));
    }
    let retention = governance.policy.policy.retention;
    (hook.older_than < retention).then(|| {
        let detail = format!("{words} (lance.auto_cleanup); the policy keeps them for {}", format_duration(retention));
        (Conflict::AutoCleanupConflict, detail)
    })
}

/// A version that a reader needs and that the hook may delete before the reader's block ends.
fn reader_lost(hook: &Hook, versions: &[Version], governance: &Governance) -> Option<u64> {
    let older_than = chrono::Duration::from_std(hook.older_than).unwrap_or(chrono::Duration::MAX);
    governance.blocks.iter().find_map(|block| {
        let version = versions.iter().find(|v| Some(v.version) == block.version)?;
        let goes: Option<DateTime<Utc>> = version.time.checked_add_signed(older_than);
        let before_the_end = goes.is_some_and(|goes| block.until.is_none_or(|until| goes < until));
        before_the_end.then_some(version.version)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(pairs: &[(&str, &str)]) -> Option<Hook> {
        Hook::of(&pairs.iter().map(|(k, v)| (format!("{PREFIX}{k}"), (*v).to_string())).collect())
    }

    #[test]
    fn only_what_lance_would_run_is_a_hook() {
        let day = Duration::from_secs(86_400);
        let found = hook(&[("interval", "20"), ("older_than", "14days")]);
        assert_eq!(found, Some(Hook { interval: 20, older_than: 14 * day, retain_versions: None }));
        let found = hook(&[("interval", "0"), ("retain_versions", "3")]);
        assert_eq!(found, Some(Hook { interval: 0, older_than: Duration::ZERO, retain_versions: Some(3) }));
        for not_run in [
            &[("older_than", "0s")][..],
            &[("interval", "often"), ("older_than", "0s")],
            &[("interval", "1"), ("older_than", "soon")],
            &[("interval", "1"), ("retain_versions", "0")],
            &[("interval", "1"), ("referenced_branch", "maybe")],
            &[("interval", "1"), ("delete_rate_limit", "x")],
        ] {
            assert_eq!(hook(not_run), None, "{not_run:?}");
        }
    }
}
