//! The fleet's rewrite budget (`budget.rewrite_per_day`), shared by all replicas and runs through the registry.
//!
//! What the clock starts reserves its planned bytes first and gives back what it did not need; a sweep by hand is free, and
//! counted. A plan shows what would not fit.

use chrono::{DateTime, NaiveDate, NaiveTime, Utc};
use squire_service::report::SkipReason;

use crate::admit::Skip;
use crate::apply::{Applied, Tools};
use crate::driver::{Candidate, Case};
use crate::estate::{Estate, MaintenanceConfig};
use crate::plan::DatasetPlan;

/// Bytes that were reserved for one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    day: NaiveDate,
    bytes: u64,
}

/// Bytes of a day, where the config bounds them.
pub fn per_day(config: &MaintenanceConfig) -> Option<u64> {
    config.budget.rewrite_per_day.map(|b| b.as_u64())
}

/// Bytes that may still be rewritten today; `None` where nothing bounds them.
///
/// # Errors
/// What the registry answers.
pub async fn left(
    config: &MaintenanceConfig,
    registry: &squire_registry::Registry,
    now: DateTime<Utc>,
) -> squire_registry::Result<Option<u64>> {
    let Some(per_day) = per_day(config) else { return Ok(None) };
    Ok(Some(per_day.saturating_sub(registry.rewritten_on(now.date_naive()).await?)))
}

fn exhausted(bytes: u64, left: u64, per_day: u64, now: DateTime<Utc>) -> Skip {
    let tomorrow = now.date_naive().succ_opt().unwrap_or(NaiveDate::MAX).and_time(NaiveTime::MIN).and_utc();
    let when = match bytes > per_day {
        true => format!("never within a budget of {per_day} bytes a day; a sweep by hand is free"),
        false => format!("at {}", tomorrow.format("%Y-%m-%d %H:%M UTC")),
    };
    let detail = format!("it would rewrite {bytes} bytes and {left} are left of the fleet's day; it fits {when}");
    Skip { reason: SkipReason::BudgetExhausted, detail }
}

/// Takes out of a due plan what does not fit today, in the plan's order; smaller ones behind it may fit. Reads only.
pub async fn exclude(estate: &Estate, candidates: &mut [Candidate], now: DateTime<Utc>) {
    let config = estate.config();
    let Some(per_day) = per_day(config) else { return };
    let left = match &estate.registry {
        Some(registry) => left(config, registry, now).await.map(|left| left.unwrap_or(per_day)),
        None => Ok(per_day),
    };
    match left {
        Ok(left) => fit(candidates, left, per_day, now),
        // Apply asks again, and starts nothing that it cannot reserve for.
        Err(e) => tracing::warn!(error = %e, "what is left of the rewrite budget is not known"),
    }
}

fn fit(candidates: &mut [Candidate], mut left: u64, per_day: u64, now: DateTime<Utc>) {
    for candidate in candidates {
        let Case::Planned(p) = &candidate.case else { continue };
        let bytes = p.plan.predicted.rewritten_bytes;
        if bytes <= left {
            left -= bytes;
            continue;
        }
        let skip = exhausted(bytes, left, per_day, now);
        if let Case::Planned(p) = std::mem::replace(&mut candidate.case, Case::Skipped(skip.clone(), None)) {
            candidate.case = Case::Skipped(skip, Some(p));
        }
    }
}

/// Reserves what a pass of the clock plans to rewrite. `None`: nothing is bounded, or the pass is free.
///
/// # Errors
/// `budget_exhausted`, or `registry_unreadable` when it cannot be known.
pub async fn reserve(tools: &Tools, plan: &DatasetPlan) -> Result<Option<Reserved>, Skip> {
    let now = tools.estate.now();
    let bytes = plan.predicted.rewritten_bytes;
    let Some(per_day) = per_day(tools.estate.config()).filter(|_| tools.settings.by_clock && bytes > 0) else {
        return Ok(None);
    };
    let day = now.date_naive();
    match tools.registry.reserve_rewrite(day, bytes, per_day).await {
        Ok(Ok(())) => Ok(Some(Reserved { day, bytes })),
        Ok(Err(left)) => Err(exhausted(bytes, left, per_day, now)),
        Err(e) => Err(Skip { reason: SkipReason::RegistryUnreadable, detail: e.to_string() }),
    }
}

/// Counts what a pass rewrote, thrown-away output included, and gives back the rest of its reservation.
pub async fn settle(tools: &Tools, reserved: Option<Reserved>, applied: &Applied) {
    if per_day(tools.estate.config()).is_none() {
        return;
    }
    let used = applied.compact.bytes + applied.indices.iter().map(|i| i.bytes).sum::<u64>() + applied.stranded;
    let Reserved { day, bytes } = reserved.unwrap_or(Reserved { day: tools.estate.now().date_naive(), bytes: 0 });
    if let Err(e) = tools.registry.settle_rewrite(day, bytes, used).await {
        tracing::warn!(error = %e, "the rewrite budget could not be settled; the reservation stays counted today");
    }
}
