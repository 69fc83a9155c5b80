//! The fleet's budgets of a day (`budget.rewrite_per_day`, `budget.cost_per_day`), shared by all replicas and runs through the
//! registry.
//!
//! What the clock starts reserves its planned bytes and requests first and settles what it really spent; a sweep by hand is free,
//! and counted. The looks of a tick are counted and go on. A plan shows what would not fit.

use chrono::{DateTime, NaiveDate, NaiveTime, Utc};
use squire_registry::{PerDay, Registry, Spending};
use squire_service::report::{Requests, SkipReason};

use crate::admit::Skip;
use crate::apply::{Applied, Tools};
use crate::driver::{Candidate, Case};
use crate::estate::{Estate, MaintenanceConfig};
use crate::plan::DatasetPlan;
use crate::rates::Rates;

/// Bytes that one request for data reads or writes.
const PART: u64 = 8 << 20;
/// Requests of a pass that come before and after everything else.
const PASS: Requests = Requests { list: 1, get: 2, head: 0, put: 0, delete: 0, copy: 0 };
/// A step's look for other people's work.
const STEP: Requests = Requests { list: 1, get: 0, head: 0, put: 0, delete: 0, copy: 0 };
/// One commit, read again afterwards.
const COMMIT: Requests = Requests { list: 1, get: 3, head: 2, put: 2, delete: 0, copy: 0 };
/// The look-ups that verify one index.
const LOOKUPS: Requests = Requests { list: 0, get: 24, head: 0, put: 0, delete: 0, copy: 0 };
/// The files of one index that is remapped or built, the small ones of full-text indices being more and those of others fewer.
const INDEX: Requests = Requests { list: 0, get: 4, head: 0, put: 4, delete: 0, copy: 0 };

/// What was reserved for one pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reserved {
    day: NaiveDate,
    spending: Spending,
}

/// What a day has, where the config bounds it.
pub fn per_day(config: &MaintenanceConfig) -> Option<PerDay> {
    let budget = &config.budget;
    let per_day = PerDay { rewritten_bytes: budget.rewrite_per_day.map(|b| b.as_u64()), cost: budget.cost_per_day };
    (per_day != PerDay::default()).then_some(per_day)
}

/// What is left of today; `None` where nothing bounds it.
///
/// # Errors
/// What the registry answers.
pub async fn left(
    config: &MaintenanceConfig,
    registry: &Registry,
    now: DateTime<Utc>,
) -> squire_registry::Result<Option<Spending>> {
    let Some(per_day) = per_day(config) else { return Ok(None) };
    Ok(Some(per_day.left(registry.spent_on(now.date_naive()).await?)))
}

/// The requests that a plan will make of the datasets' store, as far as they can be told ahead. Pure. The figures were taken on S3
/// with small files, where requests are most of the cost; caches make them fewer. `delete_rate`: deletes a second, which decide how
/// many go together.
pub fn requests(plan: &DatasetPlan, delete_rate: u32) -> Requests {
    let mut out = PASS;
    let mut add = |more: Requests, times: u64| {
        out.list += more.list * times;
        out.get += more.get * times;
        out.head += more.head * times;
        out.put += more.put * times;
        out.delete += more.delete * times;
    };
    let read = |files: u64, bytes: u64| Requests { get: 2 * files + bytes / PART, ..Requests::default() };
    let written = |files: u64, bytes: u64| Requests { put: files + bytes / PART, ..Requests::default() };
    let indices = plan.predicted.segments.len() as u64;
    for round in &plan.rounds {
        for task in &round.tasks {
            add(read(task.fragments.len() as u64, task.bytes), 1);
            add(written(task.outputs, task.bytes), 1);
        }
        if !round.tasks.is_empty() {
            add(STEP, 1);
            // The reservation is a commit of its own.
            add(COMMIT, 2);
            add(INDEX, indices);
            add(LOOKUPS, indices);
        }
        for index in &round.indices {
            add(read(0, index.bytes), 1);
            add(written(0, index.bytes), 1);
            add(INDEX, 1);
            add(LOOKUPS, 1);
        }
        if !round.indices.is_empty() {
            add(STEP, 1);
            add(COMMIT, 1);
        }
    }
    let (versions, files) = (plan.removal.versions.len() as u64, plan.removal.files.len() as u64);
    add(clean_up(&plan.uri, versions, files, delete_rate), 1);
    out
}

/// A look again, which reads what is new, and then per chunk the refs twice, its manifests' bytes, and its deletes: in bulk where
/// the store has that, the first manifest and the first file alone.
fn clean_up(uri: &str, versions: u64, files: u64, delete_rate: u32) -> Requests {
    if versions == 0 {
        return Requests::default();
    }
    let chunks = versions.div_ceil(squire_lake::clean::versions_per_chunk(f64::from(delete_rate)) as u64);
    let delete = match squire_lake::handle::deletes_at_once(uri, &Default::default()) as u64 {
        1 => versions + files,
        bulk => 2 + chunks + chunks.max(files.div_ceil(bulk.min(u64::from(delete_rate.max(1))))),
    };
    Requests { list: 1 + 6 * chunks, get: 2 + versions, delete, ..Requests::default() }
}

fn spending(config: &MaintenanceConfig, plan: &DatasetPlan) -> Spending {
    Spending {
        rewritten_bytes: plan.predicted.rewritten_bytes,
        cost: requests(plan, config.limits.delete_rate).cost(&config.prices).unwrap_or(0.0),
    }
}

fn exhausted(wanted: Spending, left: Spending, per_day: PerDay, now: DateTime<Utc>) -> Skip {
    let tomorrow = now.date_naive().succ_opt().unwrap_or(NaiveDate::MAX).and_time(NaiveTime::MIN).and_utc();
    let bytes = wanted.rewritten_bytes > left.rewritten_bytes;
    let when = match wanted.fits(per_day.left(Spending::default())) {
        true => format!("at {}", tomorrow.format("%Y-%m-%d %H:%M UTC")),
        false if bytes => {
            let most = per_day.rewritten_bytes.unwrap_or_default();
            format!("never within a budget of {most} bytes a day; a sweep by hand is free")
        }
        false => {
            let most = per_day.cost.unwrap_or_default();
            format!("never within a budget of {most} a day; a sweep by hand is free")
        }
    };
    let detail = match bytes {
        true => format!(
            "it would rewrite {} bytes and {} are left of the fleet's day; it fits {when}",
            wanted.rewritten_bytes, left.rewritten_bytes
        ),
        false => format!(
            "its requests would cost about {:.6} and {:.6} are left of the fleet's day; it fits {when}",
            wanted.cost, left.cost
        ),
    };
    Skip { reason: SkipReason::BudgetExhausted, detail }
}

/// Takes out of a due plan what does not fit today, in the plan's order; smaller ones behind it may fit. Reads only.
pub async fn exclude(estate: &Estate, candidates: &mut [Candidate], now: DateTime<Utc>) {
    let config = estate.config();
    let Some(per_day) = per_day(config) else { return };
    let all = per_day.left(Spending::default());
    let left = match &estate.registry {
        Some(registry) => left(config, registry, now).await.map(|left| left.unwrap_or(all)),
        None => Ok(all),
    };
    match left {
        Ok(left) => fit(config, candidates, left, per_day, now),
        // Apply asks again, and starts nothing that it cannot reserve for.
        Err(e) => tracing::warn!(error = %e, "what is left of the fleet's day is not known"),
    }
}

fn fit(
    config: &MaintenanceConfig,
    candidates: &mut [Candidate],
    mut left: Spending,
    per_day: PerDay,
    now: DateTime<Utc>,
) {
    for candidate in candidates {
        let Case::Planned(p) = &candidate.case else { continue };
        if p.plan.is_empty() {
            continue;
        }
        let wanted = spending(config, &p.plan);
        if wanted.fits(left) {
            left = left.minus(wanted);
            continue;
        }
        let skip = exhausted(wanted, left, per_day, now);
        if let Case::Planned(p) = std::mem::replace(&mut candidate.case, Case::Skipped(skip.clone(), None)) {
            candidate.case = Case::Skipped(skip, Some(p));
        }
    }
}

/// Reserves what a pass of the clock plans to spend. `None`: nothing is bounded, or the pass is free.
///
/// # Errors
/// `budget_exhausted`, or `registry_unreadable` when it cannot be known.
pub async fn reserve(tools: &Tools, plan: &DatasetPlan) -> Result<Option<Reserved>, Skip> {
    let now = tools.estate.now();
    let config = tools.estate.config();
    let wanted = spending(config, plan);
    let Some(per_day) = per_day(config).filter(|_| tools.settings.by_clock && wanted != Spending::default()) else {
        return Ok(None);
    };
    let day = now.date_naive();
    match tools.registry.reserve(day, wanted, per_day).await {
        Ok(Ok(())) => Ok(Some(Reserved { day, spending: wanted })),
        Ok(Err(left)) => Err(exhausted(wanted, left, per_day, now)),
        Err(e) => Err(Skip { reason: SkipReason::RegistryUnreadable, detail: e.to_string() }),
    }
}

/// Counts what a pass rewrote, thrown-away output included, and what requests have cost, in place of its reservation.
pub async fn settle(tools: &Tools, reserved: Option<Reserved>, applied: &Applied) {
    let rewritten_bytes =
        applied.compact.replaced + applied.indices.iter().map(|i| i.bytes).sum::<u64>() + applied.stranded;
    settle_bytes(tools.estate.config(), &tools.registry, &tools.rates, reserved, rewritten_bytes).await;
}

/// Counts what requests have cost beside passes: the looks of a tick.
pub async fn settle_looks(config: &MaintenanceConfig, registry: &Registry, rates: &Rates) {
    if config.budget.cost_per_day.is_some() {
        settle_bytes(config, registry, rates, None, 0).await;
    }
}

async fn settle_bytes(
    config: &MaintenanceConfig,
    registry: &Registry,
    rates: &Rates,
    reserved: Option<Reserved>,
    rewritten_bytes: u64,
) {
    if per_day(config).is_none() {
        return;
    }
    let used = Spending { rewritten_bytes, cost: rates.take_cost() };
    let today = Reserved { day: Utc::now().date_naive(), spending: Spending::default() };
    let Reserved { day, spending } = reserved.unwrap_or(today);
    if let Err(e) = registry.settle(day, spending, used).await {
        tracing::warn!(error = %e, "the fleet's day could not be settled; what was reserved stays counted today");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At 5,000 a second a real server counted 122 deletes; where one goes at a time, it is one request for each.
    #[test]
    fn a_clean_up_of_twenty_thousand_versions_takes_little_more_than_its_deletes() {
        let counts = |r: Requests| (r.list, r.get, r.delete);
        assert_eq!(counts(clean_up("s3://lake/t", 20_000, 100_000, 5_000)), (121, 20_002, 122));
        assert_eq!(counts(clean_up("s3://lake/t", 20_000, 100_000, 100)), (1_201, 20_002, 1_202));
        assert_eq!(clean_up("/lake/t", 20_000, 100_000, 100).delete, 120_000);
        assert_eq!(clean_up("s3://lake/t", 0, 0, 100), Requests::default());
    }
}
