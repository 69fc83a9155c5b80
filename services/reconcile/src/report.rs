//! A walk as a report: `squire.report.v1`, kind `reconcile`. Pure, but for the process's own memory figure.

use std::collections::BTreeMap;

use chrono::Utc;
use squire_lake::Kind;
use squire_registry::{Floors, Policy};
use squire_service::config::Loaded;
use squire_service::report::{
    Dataset, EstateInfo, FailureKind, Finding, FindingKind, FindingSubject, Outcome, Report, ReportKind, Requests,
    SCHEMA, SkipReason, StoredClass, Tool, Totals,
};
use uuid::Uuid;

use crate::findings;
use crate::row::Row;
use crate::walk::{Place, Walk};

/// Renders a walk.
pub(crate) fn report(
    walk: &Walk<Row>,
    config: &Loaded<Policy, Floors>,
    run: Uuid,
    command: String,
    requests: Requests,
) -> Report {
    let (settings, scope) = (&config.config, &walk.scope);
    let mut report = Report {
        schema: SCHEMA.into(),
        kind: ReportKind::Reconcile,
        run,
        started_at: scope.at,
        finished_at: Utc::now(),
        tool: Tool::this(),
        estate: EstateInfo {
            id: scope.registry.as_ref().map(squire_registry::Registry::id),
            name: scope.registry.as_ref().map_or(settings.estate.name.clone(), |r| r.name().to_string()),
            registry: scope.registry_uri.clone(),
            roots: scope.roots.clone(),
            mode: settings.estate.mode,
            exclusive: settings.estate.exclusive,
        },
        config_digest: config.digest(),
        command,
        totals: Totals::default(),
        datasets: walk.places.iter().map(|(uri, place)| dataset(walk, uri, place)).collect(),
        findings: findings::of_estate(walk),
        incomplete: findings::incomplete(walk),
    };
    finish(&mut report, outside(walk), config, requests);
    report
}

/// Sums a report up.
pub(crate) fn finish(
    report: &mut Report,
    outside: BTreeMap<StoredClass, u64>,
    config: &Loaded<Policy, Floors>,
    requests: Requests,
) {
    let prices = &config.config.prices;
    report.finish(requests, requests.cost(prices), squire_service::telemetry::peak_rss_bytes());
    report.add_outside(outside, prices);
}

/// Bytes under the ROOTs and in no dataset, by class.
fn outside(walk: &Walk<Row>) -> BTreeMap<StoredClass, u64> {
    let mut out = BTreeMap::new();
    for outside in walk.scope.outside.values() {
        let class = outside.class.parse().unwrap_or(StoredClass::Unknown);
        *out.entry(class).or_default() += outside.weight.bytes;
    }
    out
}

fn dataset(walk: &Walk<Row>, uri: &str, place: &Place<Row>) -> Dataset {
    let snapshot = &walk.scope.snapshot;
    let mut out = match place {
        Place::Dataset(row) => {
            let mut out = row.dataset.clone();
            out.findings.extend(walk.graph.readers(uri).into_iter().map(|reader| {
                Finding::new(FindingKind::ClonedBy, FindingSubject::dataset(uri), format!("{reader} reads its files"))
            }));
            out
        }
        Place::DeclaredOnly => declared_only(uri),
        Place::Nothing if snapshot.table_at(uri).is_some_and(|t| t.fields.declared) => declared_only(uri),
        Place::Nothing if snapshot.trash_at(uri).next().is_some() && snapshot.table_at(uri).is_none() => {
            Dataset::new(uri, Outcome::skipped(SkipReason::Trashed).with_detail("dropped, and nothing lies there"))
        }
        Place::Nothing => Dataset::new(uri, Outcome::failed(FailureKind::Open).with_detail("nothing lies there")),
        Place::Failed(e) => Dataset::new(uri, Outcome::failed(failure(e.kind())).with_detail(e.to_string())),
    };
    out.table = snapshot.table_at(uri).map(|t| t.fields.subject().to_string());
    out
}

fn declared_only(uri: &str) -> Dataset {
    Dataset::new(uri, Outcome::skipped(SkipReason::DeclaredOnly).with_detail("declared, no data yet"))
}

/// The lake's kind as FACES' failure kind.
pub(crate) fn failure(kind: Kind) -> FailureKind {
    match kind {
        Kind::Open => FailureKind::Open,
        Kind::Damaged => FailureKind::Damaged,
        Kind::Transient => FailureKind::Transient,
        Kind::Conflict => FailureKind::Conflict,
        Kind::Permanent | Kind::Refused => FailureKind::Permanent,
        Kind::Verify => FailureKind::Verify,
        Kind::Bug => FailureKind::Bug,
    }
}
