//! A reclaim as a report, and what it costs. Pure, but for the process's own memory figure.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use squire_lake::Kind;
use squire_service::config::Prices;
use squire_service::human::{format_duration, show_bytes as size};
use squire_service::planfile::PlanItem;
use squire_service::report::{
    CleanupStep, Dataset, EstateInfo, FailureKind, Finding, FindingKind, FindingSubject, Incomplete, Outcome, Report,
    ReportKind, Requests, SCHEMA, StepOutcome, StepReason, Tool, Totals,
};
use uuid::Uuid;

use super::apply::{Applied, Done};
use super::plan::{Forbidden, Going, Verdict, day};
use super::purge::Purged;
use super::store::Stored;
use super::survey::Survey;
use super::undo::Undone;
use super::{ReclaimPlan, ReconcileConfig};

/// What moving these objects costs, one line each: requests, storage, and money where prices are set.
pub(crate) fn costs(items: &[PlanItem], grace: Duration, prices: &Prices, limit: u64) -> Vec<String> {
    let small: Vec<&PlanItem> = items.iter().filter(|i| i.bytes <= limit).collect();
    let (n, bytes) = (small.len() as u64, small.iter().map(|i| i.bytes).sum::<u64>());
    let large = items.len() as u64 - n;
    let mut out = vec![format!(
        "{n} objects ({}) are copied and deleted; their copies stay {} in quarantine, and are deleted by `reclaim purge`",
        size(bytes),
        format_duration(grace)
    )];
    if large > 0 {
        let bytes = items.iter().filter(|i| i.bytes > limit).map(|i| i.bytes).sum();
        out.push(format!(
            "{large} objects ({}) are too large to copy: marked, and deleted by `reclaim purge`",
            size(bytes)
        ));
    }
    out.push("a bucket that keeps versions stores what is deleted on, as non-current versions".into());
    let total = items.len() as u64;
    let requests = Requests { copy: n, delete: n + total, head: 3 * n + large, put: 2, ..Requests::default() };
    let stored = prices.stored_gib_month.map(|price| {
        let months = grace.as_secs_f64() / (30.0 * 86_400.0);
        bytes as f64 / (1_u64 << 30) as f64 * months * price
    });
    if let Some(cost) = requests.cost(prices).or(stored.map(|_| 0.0)) {
        out.push(format!("cost: {:.4} for requests, {:.4} for storage until then", cost, stored.unwrap_or_default()));
    }
    out
}

fn empty_report(survey: &Survey, config: &ReconcileConfig, run: Uuid, started: DateTime<Utc>) -> Report {
    let settings = &config.config;
    let registry = survey.registry.as_ref();
    Report {
        schema: SCHEMA.into(),
        kind: ReportKind::Reclaim,
        run,
        started_at: started,
        finished_at: Utc::now(),
        tool: Tool::this(),
        estate: EstateInfo {
            id: registry.map(squire_registry::Registry::id),
            name: registry.map_or(settings.estate.name.clone(), |r| r.name().to_string()),
            registry: survey.registry_uri.clone(),
            roots: survey.roots.clone(),
            mode: settings.estate.mode,
            exclusive: settings.estate.exclusive,
        },
        config_digest: config.digest(),
        command: squire_service::config::redact_command(std::env::args()),
        totals: Totals::default(),
        datasets: Vec::new(),
        findings: Vec::new(),
        incomplete: incomplete(survey),
    }
}

fn incomplete(survey: &Survey) -> Vec<Incomplete> {
    let remedy = "check the credentials and permissions; until it can be read, no file that it may name goes";
    let line =
        |(what, why): &(String, String)| Incomplete { what: what.clone(), why: why.clone(), remedy: remedy.into() };
    survey.unreadable.iter().map(line).collect()
}

/// A refusal because something could not be read makes the run incomplete.
fn unread(uri: &str, why: &Forbidden) -> Option<Incomplete> {
    why.is_unread().then(|| stopped(uri, why.text()))
}

fn stopped(uri: &str, why: String) -> Incomplete {
    let remedy = "mend what is named, and make a new plan; until then nothing more of it goes";
    Incomplete { what: uri.to_string(), why, remedy: remedy.into() }
}

fn finished(mut report: Report, config: &ReconcileConfig, requests: Requests) -> Report {
    let cost = requests.cost(&config.config.prices);
    report.finish(requests, cost, squire_service::telemetry::peak_rss_bytes());
    report
}

/// A plan as a report. `versioned`: datasets in buckets that keep versions.
pub(crate) fn planned(
    survey: &Survey,
    config: &ReconcileConfig,
    verdicts: &BTreeMap<String, Verdict>,
    versioned: &[String],
    requests: Requests,
) -> Report {
    let mut report = empty_report(survey, config, Uuid::now_v7(), survey.at);
    for (uri, verdict) in verdicts {
        if let Verdict::Forbidden(why, _) = verdict {
            report.incomplete.extend(unread(uri, why));
        }
        let mut row = match verdict {
            Verdict::Goes(going) => goes(uri, going),
            Verdict::Nothing => Dataset::new(uri, Outcome::idle()),
            Verdict::Forbidden(why, bytes) => stays(uri, why, Some(*bytes)),
            Verdict::Failed(kind, why) => Dataset::new(uri, Outcome::failed(*kind).with_detail(why.clone())),
        };
        row.table = survey.snapshot.table_at(uri).map(|t| t.fields.subject().to_string());
        report.datasets.push(row);
    }
    let goes = |uri: &String| match verdicts.get(uri) {
        Some(Verdict::Goes(going)) => going.size().1,
        _ => 0,
    };
    report.findings.extend(versioned.iter().map(|uri| versioned_bucket(uri, goes(uri))));
    finished(report, config, requests)
}

/// `bytes`: what a reclaim of this dataset leaves there as non-current versions.
fn versioned_bucket(uri: &str, bytes: u64) -> Finding {
    let detail = "the bucket keeps versions: what is deleted is stored on as non-current versions until a lifecycle rule ends it";
    Finding::new(FindingKind::BucketVersioned, FindingSubject::dataset(uri), detail).with_bytes(bytes)
}

fn goes(uri: &str, going: &Going) -> Dataset {
    let (files, bytes) = going.size();
    let what = match &going.trash {
        Some(id) => format!("the whole dataset, which was dropped (trash record {id})"),
        None => "what nobody references".to_string(),
    };
    let rest = going.strangers;
    let stay = if rest > 0 { format!("; {rest} that are not known to be its own stay") } else { String::new() };
    let mut row =
        Dataset::new(uri, Outcome::planned().with_detail(format!("{what}: {files} objects, {}{stay}", size(bytes))));
    let step = CleanupStep::new(StepOutcome::Planned, None);
    row.steps.cleanup = Some(CleanupStep { files_removed: files, reclaimed_bytes: bytes, ..step });
    row
}

fn stays(uri: &str, why: &Forbidden, bytes: Option<u64>) -> Dataset {
    match why {
        Forbidden::Skip(reason, detail) => Dataset::new(uri, Outcome::skipped(*reason).with_detail(detail.clone())),
        Forbidden::Refused(reason, detail) => {
            let held = bytes.filter(|b| *b > 0).map(|b| format!(" ({} stay)", size(b))).unwrap_or_default();
            let detail = format!("{detail}{held}");
            let mut row = Dataset::new(uri, Outcome::idle().with_detail(format!("{reason}: {detail}")));
            let step = CleanupStep::new(StepOutcome::Refused, Some(*reason));
            row.steps.cleanup = Some(CleanupStep { detail: Some(detail), ..step });
            row
        }
    }
}

/// What apply did, as a report.
pub(crate) fn applied(applied: &Applied, config: &ReconcileConfig, requests: Requests) -> Report {
    let mut report = empty_report(&applied.survey, config, applied.run, applied.started);
    let grace = TimeDelta::from_std(config.config.grace.quarantine).unwrap_or(TimeDelta::MAX);
    let until = Utc::now().checked_add_signed(grace).unwrap_or(DateTime::<Utc>::MAX_UTC);
    for (uri, done) in &applied.rows {
        report.incomplete.extend(done.forbidden.as_ref().and_then(|why| unread(uri, why)));
        report.incomplete.extend(done.taken.stopped.clone().map(|why| stopped(uri, why)));
        let mut row = match &done.forbidden {
            Some(why) => stays(uri, why, Some(done.planned.1)),
            None => did(uri, done, until),
        };
        row.findings = alarms(uri, done);
        if done.versioned {
            row.findings.push(versioned_bucket(uri, done.taken.moved.1));
        }
        report.datasets.push(row);
    }
    report.incomplete.extend(applied.nowhere.iter().map(|path| Incomplete {
        what: path.clone(),
        why: "no dataset lies around it any more".into(),
        remedy: "make a new plan".into(),
    }));
    finished(report, config, requests)
}

fn did(uri: &str, done: &Done, until: DateTime<Utc>) -> Dataset {
    let taken = &done.taken;
    let mut words = Vec::new();
    let mut say = |n: u64, what: String| {
        if n > 0 {
            words.push(format!("{n} {what}"))
        }
    };
    say(
        taken.moved.0,
        format!("objects ({}) moved to quarantine, where they stay until {}", size(taken.moved.1), day(until)),
    );
    say(taken.marked.0, format!("objects ({}) marked in place", size(taken.marked.1)));
    say(taken.already, "moved before".into());
    let first = |list: &[(String, String)]| list.first().map(|(p, why)| format!(" ({p}: {why})")).unwrap_or_default();
    say(taken.left.len() as u64, format!("left alone{}", first(&taken.left)));
    say(taken.failed.len() as u64, format!("failed{}", first(&taken.failed)));
    say(taken.restored.len() as u64, "brought back at once, because somebody named them meanwhile".into());
    say(taken.lost.len() as u64, format!("named and NOT brought back{}", first(&taken.lost)));
    words.extend(taken.stopped.as_ref().map(|why| format!("stopped: {why}")));
    words.extend(done.error.as_ref().map(ToString::to_string));
    let detail = words.join("; ");
    let (outcome, step) = match (done.is_failed(), taken.moved.0 + taken.marked.0 > 0, &taken.denied) {
        (_, _, Some(_)) => {
            (Outcome::failed(FailureKind::Permanent), (StepOutcome::Refused, Some(StepReason::NoDeletePermission)))
        }
        (true, ..) => {
            let kind = failure_of(done);
            (Outcome::failed(kind), (StepOutcome::Failed, Some(StepReason::from(kind))))
        }
        (false, true, None) => (Outcome::maintained(), (StepOutcome::Done, None)),
        (false, false, None) => (Outcome::idle(), (StepOutcome::NothingToDo, Some(StepReason::NoGain))),
    };
    let mut row = Dataset::new(uri, outcome.with_detail(detail.clone()));
    // Nothing is freed before the purge.
    row.steps.cleanup = Some(CleanupStep {
        files_removed: taken.moved.0,
        failed_deletes: taken.failed.len() as u64,
        detail: Some(detail),
        ..CleanupStep::new(step.0, step.1)
    });
    row
}

fn failure_of(done: &Done) -> FailureKind {
    match &done.error {
        Some(e) => crate::report::failure(e.kind()),
        None if done.is_alarm() => crate::report::failure(Kind::Conflict),
        None => FailureKind::Transient,
    }
}

/// What was named while it moved is an error finding, also where it is back.
fn alarms(uri: &str, done: &Done) -> Vec<Finding> {
    let finding =
        |path: &str, detail: String| Finding::new(FindingKind::MissingFile, FindingSubject::path(uri, path), detail);
    let back = done.taken.restored.iter().map(|path| {
        finding(path, "somebody named it while it was moved away; it is back".into()).with_fix(
            "find the writer whose commit came more than seven days after its upload, and raise longest_write",
        )
    });
    let lost = done.taken.lost.iter().map(|(path, why)| {
        finding(path, format!("somebody names it and it could not be brought back: {why}"))
            .with_fix("squire-reconcile reclaim undo")
    });
    back.chain(lost).collect()
}

/// A plan file for people.
pub(crate) fn plan_text(plan: &ReclaimPlan, config: &ReconcileConfig, limit: u64) -> String {
    let items = plan.items();
    let bytes: u64 = items.iter().map(|i| i.bytes).sum();
    let mut out = String::new();
    let made = plan.made_at().map(day).unwrap_or_default();
    let _ = writeln!(out, "Reclaim plan {} of {made}", plan.id);
    let bucket = plan.bucket.as_deref().unwrap_or("no bucket");
    let live = plan.live.unwrap_or_default();
    let _ = writeln!(out, "{bucket}: {} objects, {}; {live} live objects were seen", items.len(), size(bytes));
    for line in costs(items, config.config.grace.quarantine, &config.config.prices, limit) {
        let _ = writeln!(out, "{line}");
    }
    let mut by_reason: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for item in items {
        let sum = by_reason.entry(&item.reason).or_default();
        *sum = (sum.0 + 1, sum.1 + item.bytes);
    }
    for (reason, (n, bytes)) in by_reason {
        let _ = writeln!(out, "\n{n} objects, {}: {}", size(bytes), squire_service::report::clean(reason));
        for item in items.iter().filter(|i| i.reason == reason).take(100) {
            let path = squire_service::report::clean(&item.path);
            let _ = writeln!(out, "  {:>10}  {}  {path}", size(item.bytes), day(item.last_modified));
        }
        if n > 100 {
            let _ = writeln!(out, "  and {} more", n - 100);
        }
    }
    out
}

/// One line of `list`.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Listed {
    plan: Uuid,
    root: String,
    dataset: String,
    made_at: Option<DateTime<Utc>>,
    moved_at: DateTime<Utc>,
    purge_from: DateTime<Utc>,
    objects: u64,
    bytes: u64,
    marked: u64,
    oldest: Option<DateTime<Utc>>,
}

/// What lies in quarantine, one line per plan and dataset.
pub(crate) fn listed(stored: &[Stored], grace: Duration) -> Vec<Listed> {
    let grace = TimeDelta::from_std(grace).unwrap_or(TimeDelta::MAX);
    let mut out = Vec::new();
    for s in stored {
        for (part, at) in &s.parts {
            let prefix = part.dataset.strip_prefix(&s.root).unwrap_or_default().trim_start_matches('/');
            let prefix: Vec<String> = prefix.split('/').filter_map(squire_lake::uri::segment).collect();
            let prefix = if prefix == [""] { String::new() } else { format!("{}/", prefix.join("/")) };
            let (copies, marks) = super::undo::held_of(s, part, &prefix);
            let of_part = s.plan.items().iter().filter(|i| squire_lake::uri::within(&i.path, &part.dataset));
            out.push(Listed {
                plan: s.plan.id,
                root: s.root.clone(),
                dataset: part.dataset.clone(),
                made_at: s.plan.made_at(),
                moved_at: *at,
                purge_from: at.checked_add_signed(grace).unwrap_or(DateTime::<Utc>::MAX_UTC),
                objects: copies.len() as u64,
                bytes: copies.iter().map(|(_, b)| b).sum(),
                marked: marks.len() as u64,
                oldest: of_part.map(|i| i.last_modified).min(),
            });
        }
    }
    out
}

/// The same for people.
pub(crate) fn list_text(lines: &[Listed]) -> String {
    let mut out = String::new();
    for line in lines {
        let dataset = squire_service::report::clean(&line.dataset);
        let marked = if line.marked > 0 { format!(", {} marked in place", line.marked) } else { String::new() };
        let _ = writeln!(
            out,
            "{}  {} objects, {}{marked}, moved {}, purge from {}  {dataset}",
            line.plan,
            line.objects,
            size(line.bytes),
            day(line.moved_at),
            day(line.purge_from)
        );
    }
    if lines.is_empty() {
        out.push_str("nothing is in quarantine\n");
    }
    out
}

/// What undo did, one line per dataset.
pub(crate) fn undone_text(rows: &[Undone]) -> String {
    let mut out = String::new();
    for row in rows {
        let dataset = squire_service::report::clean(&row.dataset);
        let _ = match &row.forbidden {
            Some(why) => writeln!(out, "{dataset}: nothing was done: {}", why.text()),
            None => writeln!(out, "{dataset}: {} objects are back, {} had not left", row.back, row.stayed),
        };
        for (path, why) in &row.failed {
            let _ = writeln!(out, "  {}: {why}", squire_service::report::clean(path));
        }
    }
    out
}

/// What purge did, one line per dataset.
pub(crate) fn purged_text(rows: &[Purged]) -> String {
    let mut out = String::new();
    for row in rows {
        let dataset = squire_service::report::clean(&row.dataset);
        let _ = match &row.forbidden {
            Some(why) => writeln!(out, "{dataset}: nothing was deleted: {}", why.text()),
            None => writeln!(out, "{dataset}: {} objects ({}) are gone for good", row.gone.0, size(row.gone.1)),
        };
        for path in &row.restored {
            let _ = writeln!(out, "  {}: somebody names it; it is back", squire_service::report::clean(path));
        }
        for (path, why) in row.failed.iter().chain(&row.left) {
            let _ = writeln!(out, "  {}: {why}", squire_service::report::clean(path));
        }
    }
    out
}
