//! What runs of ours wrote and no version names: a commit whose loss is not proven, or work cut short (design, "A lost commit's output").

use chrono::{DateTime, TimeDelta, Utc};
use squire_lake::classes::{Class, Classed};
use squire_lake::examine::Examined;
use squire_lake::listing::{Kind, classify};
use squire_registry::{DIED, DatasetEntry, Registry};
use squire_service::report::{Finding, FindingKind, FindingSubject};

use crate::walk::Scope;

/// Files older than this are leftovers like any other, whoever made them: the records of so many runs are not read for them.
const RECENT: TimeDelta = TimeDelta::days(14);
/// A run may have worked for so long before it wrote its last file.
const WORK: TimeDelta = TimeDelta::days(1);
/// Clocks differ by less.
const CLOCKS: TimeDelta = TimeDelta::minutes(1);

/// What is found about one dataset. The registry is asked only where there are files that nobody names.
pub(crate) async fn of_dataset(scope: &Scope, examined: &Examined) -> Vec<Finding> {
    let Some(registry) = &scope.registry else { return Vec::new() };
    let unnamed = unnamed(&examined.classes.objects, scope.at);
    let times = || unnamed.iter().map(|o| o.modified);
    let (Some(first), Some(last)) = (times().min(), times().max()) else { return Vec::new() };
    let uri = &examined.look.uri;
    match spans(registry, uri, first, last).await {
        Ok(spans) => found(uri, &unnamed, &spans).into_iter().collect(),
        Err(e) => {
            let detail = format!("whether files that no version names are our own cannot be told: {e}");
            vec![Finding::new(FindingKind::RecordUnreadable, FindingSubject::dataset(uri), detail)]
        }
    }
}

/// The files of a version that nobody names, of the last days.
fn unnamed(objects: &[Classed], at: DateTime<Utc>) -> Vec<&Classed> {
    let output = |path: &str| {
        matches!(classify(path).kind, Kind::Data | Kind::Sidecar { .. } | Kind::Deletion | Kind::Index { .. })
    };
    let recent = |o: &Classed| at.signed_duration_since(o.modified) < RECENT;
    objects.iter().filter(|o| matches!(o.class, Class::Young | Class::Orphan) && recent(o) && output(&o.path)).collect()
}

/// When runs of ours were at work on it that left files behind.
async fn spans(
    registry: &Registry,
    uri: &str,
    first: DateTime<Utc>,
    last: DateTime<Utc>,
) -> squire_registry::Result<Vec<(DateTime<Utc>, DateTime<Utc>)>> {
    let (entries, _) = registry.dataset_history_between(uri, first - WORK, last + CLOCKS).await?;
    let left = |entry: &DatasetEntry| {
        let result = entry.result.as_ref().filter(|r| r.outcome == DIED || r.stranded_bytes > 0)?;
        Some((entry.opened_at - CLOCKS, result.closed_at + CLOCKS))
    };
    Ok(entries.iter().filter_map(left).collect())
}

fn found(uri: &str, unnamed: &[&Classed], spans: &[(DateTime<Utc>, DateTime<Utc>)]) -> Option<Finding> {
    let ours = |o: &&&Classed| spans.iter().any(|(from, until)| (*from..=*until).contains(&o.modified));
    let left: Vec<&&Classed> = unnamed.iter().filter(ours).collect();
    let bytes = left.iter().map(|o| o.bytes).sum();
    let detail = format!(
        "{} files that Squire wrote and no version names: a commit whose loss is not proven, or work cut short; they can be \
         reclaimed once they are seven days old",
        left.len()
    );
    let finding = Finding::new(FindingKind::StrandedBytes, FindingSubject::dataset(uri), detail);
    (!left.is_empty()).then(|| finding.with_bytes(bytes))
}
