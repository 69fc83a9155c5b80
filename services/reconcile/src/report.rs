//! A walk as a report: `squire.report.v1`, kind `reconcile`. Pure, but for the process's own memory figure.

use std::collections::BTreeMap;

use chrono::Utc;
use squire_lake::Kind;
use squire_registry::{Floors, Policy};
use squire_service::config::Loaded;
use squire_service::report::{
    Dataset, DatasetState, EstateInfo, FailureKind, Finding, FindingKind, FindingSubject, Outcome, Report, ReportKind,
    Requests, SCHEMA, SkipReason, Tool, Totals,
};
use uuid::Uuid;

use crate::findings;
use crate::walk::{Place, Walk};

/// Renders a walk.
pub(crate) fn report(walk: &Walk, config: &Loaded<Policy, Floors>, command: String, requests: Requests) -> Report {
    let settings = &config.config;
    let mut report = Report {
        schema: SCHEMA.into(),
        kind: ReportKind::Reconcile,
        run: Uuid::now_v7(),
        started_at: walk.at,
        finished_at: Utc::now(),
        tool: Tool::this(),
        estate: EstateInfo {
            id: walk.registry.as_ref().map(squire_registry::Registry::id),
            name: walk.registry.as_ref().map_or(settings.estate.name.clone(), |r| r.name().to_string()),
            registry: walk.registry_uri.clone(),
            roots: walk.roots.clone(),
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
    report.findings.extend(
        walk.empty.iter().map(|root| {
            Finding::new(FindingKind::EmptyScan, FindingSubject::uri(root.clone()), "no dataset was found")
        }),
    );
    let cost = requests.cost(&settings.prices);
    report.finish(requests, cost, squire_service::telemetry::peak_rss_bytes());
    report
}

fn dataset(walk: &Walk, uri: &str, place: &Place) -> Dataset {
    let table = walk.snapshot.table_at(uri).map(|t| t.fields.subject().to_string());
    let mut out = match place {
        Place::Dataset(examined) => {
            let mut out = Dataset::new(uri, Outcome::idle());
            let look = &examined.look;
            out.authority = look.authority.as_str().parse().unwrap_or(squire_service::report::Authority::Unknown);
            out.before = Some(DatasetState {
                version: look.version(),
                fragments: look.fragments.len() as u64,
                rows: look.fragments.iter().map(squire_lake::look::FragmentInfo::rows).sum(),
                deleted_rows: look.fragments.iter().map(|f| f.deleted_rows).sum(),
                bytes: look.listing.bytes(),
                versions: look.versions().len() as u64,
                indices: Vec::new(),
            });
            out.findings = findings::of_dataset(walk, examined);
            out
        }
        Place::DeclaredOnly => {
            Dataset::new(uri, Outcome::skipped(SkipReason::DeclaredOnly).with_detail("declared, no data yet"))
        }
        Place::Nothing => Dataset::new(uri, Outcome::failed(FailureKind::Open).with_detail("nothing lies there")),
        Place::Failed(e) => Dataset::new(uri, Outcome::failed(failure(e.kind())).with_detail(e.to_string())),
    };
    out.table = table;
    out
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

/// Bytes by class over everything examined; the classes sum to what was listed.
pub(crate) fn stored(walk: &Walk) -> BTreeMap<&'static str, u64> {
    let mut out = BTreeMap::new();
    for place in walk.places.values() {
        let Place::Dataset(examined) = place else { continue };
        for (class, (_, bytes)) in examined.classes.totals() {
            *out.entry(class.as_str()).or_default() += bytes;
        }
    }
    out
}
