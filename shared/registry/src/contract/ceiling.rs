//! How long versions may be kept at most: `retention_days` of the contract.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::govern::{Pending, PolicySource, PolicySourceKind};
use crate::human::format_duration;
use crate::policy::{Floors, Policy};
use crate::snapshot::Snapshot;
use crate::subject::Subject;

/// The ceiling that a contract puts on a table's `retention`. It only ever shortens; `retain_versions` is not touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ceiling {
    /// `ENTERPRISE.TABLE`.
    pub(crate) contract: String,
    pub(crate) retention: Duration,
    /// When the table's contract was first published here; `shorten_delay` counts from then.
    pub(crate) since: DateTime<Utc>,
}

impl Ceiling {
    /// Lowers `policy` to the ceiling, or says from when it will be; one line that tells of it.
    pub(crate) fn apply(
        &self,
        policy: &mut Policy,
        source: &mut PolicySource,
        pending: &mut Option<Pending>,
        floors: &Floors,
        now: DateTime<Utc>,
    ) -> Option<String> {
        if policy.retention <= self.retention {
            return None;
        }
        let (from, to) = (format_duration(policy.retention), format_duration(self.retention));
        // A delay that is no date is never over.
        let effective_at = TimeDelta::from_std(floors.shorten_delay)
            .ok()
            .and_then(|delay| self.since.checked_add_signed(delay))
            .unwrap_or(DateTime::<Utc>::MAX_UTC);
        if now < effective_at {
            if pending.as_ref().is_none_or(|p| effective_at < p.effective_at) {
                let lowered = Policy { retention: self.retention, ..policy.clone() };
                let changes = vec![format!("retention: {from} -> {to} (contract {})", self.contract)];
                *pending = Some(Pending { effective_at, changes, policy: Some(lowered) });
            }
            return None;
        }
        policy.retention = self.retention;
        let line = format!(
            "retention: {from} lowered to the ceiling of {to} of contract {}; every other key is of {}",
            self.contract, source.id
        );
        *source = PolicySource { kind: PolicySourceKind::Contract, id: self.contract.clone() };
        Some(line)
    }
}

impl Snapshot {
    /// The ceiling over a table, `table/ENTERPRISE/TABLE` (section 2.1: the enterprise is the namespace).
    pub(crate) fn ceiling_of(&self, subject: Option<&Subject>) -> Option<Ceiling> {
        let record = self.contract_of(subject?)?;
        let table = record.contracts.table(subject?.leaf()?)?;
        Some(Ceiling {
            contract: format!("{}.{}", record.contracts.enterprise(), table.name),
            retention: Duration::from_secs(u64::from(table.metadata.retention_days) * 86_400),
            since: record.since.get(&table.name).copied()?,
        })
    }
}
