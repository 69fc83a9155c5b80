//! Findings about the estate as a whole, and what a run could not read.

use std::collections::BTreeSet;

use squire_service::report::{Finding, FindingKind, FindingSubject, Incomplete};

use super::{Candidate, Case, Selection};
use crate::estate::{Estate, Scope};

/// Protections, blocks and trash records that the last run saw and that are gone without a trace of who removed them.
async fn vanished(estate: &Estate) -> Vec<Finding> {
    let Some(registry) = &estate.registry else { return Vec::new() };
    match registry.last_run().await {
        Ok(Some(last)) => squire_registry::protections_vanished(&last, &estate.snapshot)
            .into_iter()
            .map(|v| {
                let detail = format!(
                    "{} records: {} when run {} began, {} now, and {} are gone without a trace",
                    v.collection, v.before, last.run, v.now, v.vanished
                );
                Finding::new(FindingKind::ProtectionsVanished, FindingSubject::record(v.collection.to_string()), detail)
                    .with_fix("restore the registry from its backup before the next sweep")
            })
            .collect(),
        Ok(None) => Vec::new(),
        Err(e) => {
            tracing::warn!(error = %e, "the last run's record could not be read");
            Vec::new()
        }
    }
}

/// What stands out about the estate as a whole.
pub(super) async fn of_estate(estate: &Estate, wanted: &BTreeSet<String>, selection: &Selection) -> Vec<Finding> {
    let mut out = Vec::new();
    for unreadable in &estate.snapshot.unreadable {
        let record = format!("{}/{}", unreadable.collection, unreadable.key);
        out.push(Finding::new(FindingKind::RecordUnreadable, FindingSubject::record(record), unreadable.why.clone()));
    }
    for trash in estate.snapshot.trash().filter(|t| t.fields.deadline <= estate.now()) {
        let subject = FindingSubject::table(trash.fields.subject.to_string());
        out.push(
            Finding::new(FindingKind::TrashExpired, subject, "its grace is over; its bytes are still there")
                .with_fix("squire-reconcile reclaim plan --out PLAN"),
        );
    }
    if !estate.by_hand && wanted.is_empty() && selection.datasets.is_empty() {
        for root in &estate.roots {
            out.push(Finding::new(FindingKind::EmptyScan, FindingSubject::uri(root.clone()), "no dataset was found"));
        }
    }
    out.extend(vanished(estate).await);
    out
}

/// What could not be read, and what to do about it.
pub(super) fn incomplete(estate: &Estate, scope: &Scope, candidates: &[Candidate]) -> Vec<Incomplete> {
    let mut out: Vec<Incomplete> = scope
        .unreadable
        .iter()
        .map(|(what, why)| Incomplete {
            what: what.clone(),
            why: why.clone(),
            remedy: "check the credentials and permissions; until then nothing that it may reference is removed".into(),
        })
        .collect();
    for candidate in candidates {
        let (Case::Planned(p) | Case::Skipped(_, Some(p))) = &candidate.case else { continue };
        out.extend(p.look.unreadable_refs.iter().map(|(path, why)| Incomplete {
            what: format!("{}/{path}", p.look.uri),
            why: why.clone(),
            remedy: "mend or remove the file; until then no version of this dataset is removed".into(),
        }));
    }
    out.extend(estate.snapshot.unreadable.iter().map(|u| Incomplete {
        what: format!("registry record {}/{}", u.collection, u.key),
        why: u.why.clone(),
        remedy: "write the record again with squire-registry, or run a newer version".into(),
    }));
    out
}
