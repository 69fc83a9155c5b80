//! What the types of the single keys cannot say.

use std::str::FromStr;

use super::{BusKind, Config};

/// Something wrong with a value whose type is right: the key, what is wrong, and what to do.
pub type Problem = (String, String, String);

/// All problems of a configuration whose types are right.
pub(super) fn problems<P, F>(config: &Config<P, F>) -> Vec<Problem> {
    let mut out = Vec::new();
    let mut bad = |key: &str, what: String, remedy: &str| {
        out.push((key.to_owned(), what, remedy.to_owned()));
    };
    if config.rollout.percent > 100 {
        bad("rollout.percent", format!("{} is above 100", config.rollout.percent), "use 0 to 100");
    }
    if config.limits.concurrency == 0 {
        bad("limits.concurrency", "0 would never start anything".into(), "use 1 or more");
    }
    if config.limits.delete_rate == 0 {
        bad(
            "limits.delete_rate",
            "0 would never delete anything".into(),
            "use 1 or more, or estate.mode = \"compact\"",
        );
    }
    if config.estate.target_bytes.as_u64() == 0 {
        bad("estate.target_bytes", "0 is no size for a fragment".into(), "use for example \"1GiB\"");
    }
    if config.grace.claim_ttl.as_secs() < 1 {
        bad("grace.claim_ttl", "a claim would expire at once".into(), "use for example \"90s\"");
    }
    for (tier, rows) in &config.estate.tiers {
        if *rows == 0 {
            bad(&format!("estate.tiers.{tier}"), "0 rows per fragment".into(), "use 1 or more, or leave the tier out");
        }
    }
    for (key, globs) in [("estate.include", &config.estate.include), ("estate.exclude", &config.estate.exclude)] {
        for glob in globs {
            if let Err(e) = globset::Glob::new(glob) {
                bad(key, format!("{glob:?} is not a glob ({})", e.kind()), "use for example \"bronze/**\"");
            }
        }
    }
    for root in &config.estate.roots {
        if root.trim().is_empty() {
            bad("estate.roots", "an empty root".into(), "name a directory or a URI");
        }
    }
    if config.estate.name.trim().is_empty() {
        bad("estate.name", "is empty".into(), "name the estate, for example \"default\"");
    }
    schedule(config, &mut bad);
    if config.bus.kind == BusKind::Nats && config.bus.url.as_deref().unwrap_or_default().is_empty() {
        bad("bus.url", "bus.kind is \"nats\" and no server is named".into(), "set bus.url = \"nats://host:4222\"");
    }
    money(config, &mut bad);
    out
}

fn schedule<P, F>(config: &Config<P, F>, bad: &mut impl FnMut(&str, String, &str)) {
    let s = &config.schedule;
    for (key, cron) in [("schedule.maintenance", &s.maintenance), ("schedule.reconcile", &s.reconcile)] {
        if let Err(e) = cron::Schedule::from_str(cron) {
            bad(
                key,
                format!("{cron:?} is not a cron expression ({e})"),
                "six fields with seconds first, for example \"0 */10 * * * *\"",
            );
        }
    }
    if s.timezone.parse::<chrono_tz::Tz>().is_err() {
        bad(
            "schedule.timezone",
            format!("{:?} is no time zone", s.timezone),
            "use an IANA name such as \"Europe/Berlin\"",
        );
    }
    for range in &s.blackout {
        let days = range
            .split_once('/')
            .map(|(a, b)| (a.trim().parse::<chrono::NaiveDate>(), b.trim().parse::<chrono::NaiveDate>()));
        let remedy = "use \"2026-12-20/2027-01-02\", first day before last";
        match days {
            Some((Ok(first), Ok(last))) if first <= last => {}
            Some((Ok(_), Ok(_))) => bad("schedule.blackout", format!("{range:?} ends before it starts"), remedy),
            _ => bad("schedule.blackout", format!("{range:?} is no range of days"), remedy),
        }
    }
}

fn money<P, F>(config: &Config<P, F>, bad: &mut impl FnMut(&str, String, &str)) {
    let p = &config.prices;
    let amounts = [
        ("prices.list_per_1000", p.list_per_1000),
        ("prices.get_per_1000", p.get_per_1000),
        ("prices.head_per_1000", p.head_per_1000),
        ("prices.put_per_1000", p.put_per_1000),
        ("prices.delete_per_1000", p.delete_per_1000),
        ("prices.copy_per_1000", p.copy_per_1000),
        ("prices.stored_gib_month", p.stored_gib_month),
        ("budget.cost_per_day", config.budget.cost_per_day),
    ];
    for (key, amount) in amounts {
        if amount.is_some_and(|a| !a.is_finite() || a < 0.0) {
            bad(key, "is no amount of money".into(), "use a number of zero or above");
        }
    }
    let prices = amounts[..7].iter().any(|(_, amount)| amount.is_some());
    if config.budget.cost_per_day.is_some() && !prices {
        bad(
            "budget.cost_per_day",
            "cannot be kept without [prices]".into(),
            "set at least prices.put_per_1000 and prices.get_per_1000",
        );
    }
    if config.budget.requests_per_second == Some(0) {
        bad("budget.requests_per_second", "0 would never start anything".into(), "use 1 or more");
    }
}
