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
    tracing(config, &mut bad);
    bus(config, &mut bad);
    money(config, &mut bad);
    out
}

fn bus<P, F>(config: &Config<P, F>, bad: &mut impl FnMut(&str, String, &str)) {
    let b = &config.bus;
    let url = b.url.as_deref().unwrap_or_default();
    if b.kind == BusKind::Nats && url.is_empty() {
        bad("bus.url", "bus.kind is \"nats\" and no server is named".into(), "set bus.url = \"nats://host:4222\"");
    }
    if b.user.is_some() != b.password.is_some() {
        bad("bus.user", "user and password go together".into(), "set both, or neither");
    }
    let ways =
        [b.user.is_some(), b.token.is_some(), b.nkey.is_some(), b.credentials.is_some()].iter().filter(|w| **w).count();
    if ways > 1 {
        bad("bus.credentials", "several ways to log in are named".into(), "use one of user, token, nkey, credentials");
    }
    // Secrets where the path of a file belongs: neither is repeated.
    if b.nkey.as_deref().is_some_and(super::show::is_seed) {
        bad("bus.nkey", "is a seed itself".into(), "write the seed to a file and name the file");
    }
    if b.credentials.as_deref().is_some_and(|c| c.contains("-----BEGIN")) {
        bad("bus.credentials", "holds credentials itself".into(), "write them to a file and name the file");
    }
    if let Some(tls) = &b.tls
        && tls.cert.is_some() != tls.key.is_some()
    {
        bad("bus.tls.cert", "a client certificate and its key go together".into(), "set both, or neither");
    }
    if let Some(wait) = b.ack_wait {
        let most = config.grace.claim_ttl / 3;
        if wait.as_millis() < 100 {
            bad("bus.ack_wait", "every delivery would run out at once".into(), "use for example \"20s\"");
        } else if wait > most {
            let most = crate::human::format_duration(most);
            let what = format!("is more than {most}, a third of grace.claim_ttl");
            bad("bus.ack_wait", what, "use less, or a longer grace.claim_ttl");
        }
    }
    if b.max_attempts == 0 {
        bad("bus.max_attempts", "0 would give up every message".into(), "use 1 or more");
    }
    if b.replicas.is_some_and(|r| !(1..=5).contains(&r)) {
        bad("bus.replicas", "is no number of copies".into(), "use 1, 3 or 5");
    }
}

fn tracing<P, F>(config: &Config<P, F>, bad: &mut impl FnMut(&str, String, &str)) {
    let t = &config.tracing;
    if let Some(endpoint) = &t.endpoint
        && !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme))
    {
        bad("tracing.endpoint", format!("{endpoint:?} is no URL of HTTP"), "use for example \"http://collector:4318\"");
    }
    if !(0.0..=1.0).contains(&t.sample) {
        bad("tracing.sample", format!("{} is no share", t.sample), "use a number from 0 to 1");
    }
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
