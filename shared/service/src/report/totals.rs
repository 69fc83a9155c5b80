//! Totals: computed from the datasets, so that they cannot disagree with them.

use std::collections::BTreeMap;
use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

use super::enums::{
    FailureKind, HoldReason, IndexAction, OutcomeKind, ReportKind, SkipReason, StepOutcome, StoredClass,
};
use super::finding::{Finding, FindingKind};
use super::model::{Dataset, Outcome};
use crate::config::Prices;

/// Object-store requests by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requests {
    /// LIST.
    pub list: u64,
    /// GET.
    pub get: u64,
    /// HEAD.
    pub head: u64,
    /// PUT, with every request of a multipart upload.
    pub put: u64,
    /// DELETE.
    pub delete: u64,
    /// Server-side COPY.
    pub copy: u64,
}

impl Requests {
    /// All kinds together.
    pub fn total(&self) -> u64 {
        self.list + self.get + self.head + self.put + self.delete + self.copy
    }

    /// What they cost; `None` when no price is set.
    pub fn cost(&self, prices: &Prices) -> Option<f64> {
        let pairs = [
            (self.list, prices.list_per_1000),
            (self.get, prices.get_per_1000),
            (self.head, prices.head_per_1000),
            (self.put, prices.put_per_1000),
            (self.delete, prices.delete_per_1000),
            (self.copy, prices.copy_per_1000),
        ];
        if pairs.iter().all(|(_, price)| price.is_none()) {
            return None;
        }
        Some(pairs.iter().map(|(n, price)| *n as f64 / 1000.0 * price.unwrap_or(0.0)).sum())
    }
}

impl Sub for Requests {
    type Output = Self;
    /// What was added since `earlier`; never below zero.
    fn sub(self, earlier: Self) -> Self {
        Self {
            list: self.list.saturating_sub(earlier.list),
            get: self.get.saturating_sub(earlier.get),
            head: self.head.saturating_sub(earlier.head),
            put: self.put.saturating_sub(earlier.put),
            delete: self.delete.saturating_sub(earlier.delete),
            copy: self.copy.saturating_sub(earlier.copy),
        }
    }
}

impl Add for Requests {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            list: self.list + other.list,
            get: self.get + other.get,
            head: self.head + other.head,
            put: self.put + other.put,
            delete: self.delete + other.delete,
            copy: self.copy + other.copy,
        }
    }
}

/// The sums of a report. `seen` is the sum of the five outcomes (invariant 14,
/// `every_dataset_counted`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Datasets seen.
    pub seen: u64,
    /// Datasets with a step done.
    pub maintained: u64,
    /// Datasets with a step planned.
    pub planned: u64,
    /// Datasets with nothing to do.
    pub idle: u64,
    /// Datasets not admitted, by reason; reasons with none are left out.
    pub skipped: BTreeMap<SkipReason, u64>,
    /// Datasets failed, by kind; kinds with none are left out.
    pub failed: BTreeMap<FailureKind, u64>,
    /// Fragments before.
    pub fragments_before: u64,
    /// Fragments after; in a plan as predicted.
    pub fragments_after: u64,
    /// Bytes rewritten; in a plan, that would be.
    pub rewritten_bytes: u64,
    /// Bytes that a planned cleanup would free.
    pub reclaimable_bytes: u64,
    /// Bytes that were freed.
    pub reclaimed_bytes: u64,
    /// Bytes of lost commits and dead runs.
    pub stranded_bytes: u64,
    /// Versions removed; in a plan, that would be.
    pub versions_removed: u64,
    /// Indices folded, merged or rebuilt; in a plan, that would be.
    pub index_folds: u64,
    /// Object-store requests of the run.
    pub requests: Requests,
    /// What the requests cost, in the currency of `[prices]`; null without prices.
    pub cost: Option<f64>,
    /// Requests that applying the plan would make, about; zero in every other kind of report.
    pub planned_requests: Requests,
    /// What those would cost, in the currency of `[prices]`; null without prices.
    pub planned_cost: Option<f64>,
    /// Peak resident set of the process, in bytes.
    pub peak_rss_bytes: Option<u64>,
    /// Stored bytes by class: the datasets' and `stored_outside`; empty where no dataset's bytes were counted.
    pub stored: BTreeMap<StoredClass, u64>,
    /// Of `stored`: what lies under the roots and in no dataset.
    pub stored_outside: BTreeMap<StoredClass, u64>,
    /// Of the history in `stored`, by what keeps it; holders that keep nothing are left out.
    pub held: BTreeMap<HoldReason, u64>,
    /// What storing `stored` costs in a month, in the currency of `[prices]`; null without a price.
    pub stored_cost_per_month: Option<f64>,
}

impl Totals {
    /// Sums over `datasets`. Work that is only planned counts as work in a plan, and in every
    /// other kind of report only as `reclaimable_bytes`. Requests, cost and memory are the run's,
    /// not the datasets'; they stay at zero here.
    pub fn of(kind: ReportKind, datasets: &[Dataset], findings: &[Finding]) -> Self {
        let mut t = Self { seen: datasets.len() as u64, ..Self::default() };
        // A step that failed may have done a part; what was refused or skipped did nothing.
        let counts = |outcome: StepOutcome| {
            outcome.did_something() || (outcome == StepOutcome::Planned && kind == ReportKind::Plan)
        };
        for d in datasets {
            t.count_outcome(&d.outcome);
            let before = d.before.as_ref().map_or(0, |s| s.fragments);
            t.fragments_before += before;
            t.fragments_after += d.after.as_ref().map_or(before, |s| s.fragments);
            t.count_stored(d);
            if let Some(s) = d.steps.compact.as_ref().filter(|s| counts(s.outcome)) {
                t.rewritten_bytes += s.rewritten_bytes;
            }
            if let Some(s) = d.steps.optimize_indices.as_ref().filter(|s| counts(s.outcome)) {
                let folds = s.indices.iter().filter(|i| i.action != IndexAction::None);
                t.index_folds += folds.count() as u64;
            }
            if let Some(s) = &d.steps.cleanup {
                if s.outcome == StepOutcome::Planned {
                    t.reclaimable_bytes += s.reclaimed_bytes;
                } else if s.outcome.did_something() {
                    t.reclaimed_bytes += s.reclaimed_bytes;
                }
                if counts(s.outcome) {
                    t.versions_removed += s.versions_removed;
                }
            }
        }
        let all = datasets.iter().flat_map(|d| &d.findings).chain(findings);
        t.stranded_bytes = all.filter(|f| f.kind == FindingKind::StrandedBytes).filter_map(|f| f.bytes).sum();
        t
    }

    fn count_stored(&mut self, d: &Dataset) {
        let Some(stored) = &d.stored else { return };
        for class in StoredClass::ALL {
            *self.stored.entry(*class).or_default() += stored.of(*class);
        }
        for held in &stored.held {
            *self.held.entry(held.by).or_default() += held.bytes;
        }
        if let Some(cost) = stored.cost_per_month {
            *self.stored_cost_per_month.get_or_insert(0.0) += cost;
        }
    }

    fn count_outcome(&mut self, outcome: &Outcome) {
        match outcome.kind() {
            OutcomeKind::Maintained => self.maintained += 1,
            OutcomeKind::Planned => self.planned += 1,
            OutcomeKind::Idle => self.idle += 1,
            OutcomeKind::Skipped => {
                if let Some(reason) = outcome.skip_reason() {
                    *self.skipped.entry(reason).or_default() += 1;
                }
            }
            OutcomeKind::Failed => {
                if let Some(kind) = outcome.failure() {
                    *self.failed.entry(kind).or_default() += 1;
                }
            }
        }
    }

    /// Whether every dataset seen has exactly one outcome.
    pub fn add_up(&self) -> bool {
        let skipped: u64 = self.skipped.values().sum();
        let failed: u64 = self.failed.values().sum();
        self.seen == self.maintained + self.planned + self.idle + skipped + failed
    }
}
