//! Contract vs dataset: what is unbound, pending or blocked, and rows that outlived their contract, for which one column is read.

use chrono::{DateTime, TimeDelta, Utc};
use squire_lake::contain;
use squire_lake::contract::{Match, Readiness, matches, rows_older_than};
use squire_lake::look::Look;
use squire_registry::contract::{ContractRecord, Table};
use squire_registry::{Snapshot, Subject};
use squire_service::report::{Finding, FindingKind, FindingSubject};

use crate::row::Row;
use crate::walk::{Place, Scope, Walk};

/// The contract of the table at a dataset's URI.
fn of<'a>(snapshot: &'a Snapshot, uri: &str) -> Option<(&'a ContractRecord, &'a Table)> {
    let subject = snapshot.table_at(uri)?.fields.subject();
    let record = snapshot.contract_of(&subject)?;
    let Subject::Table(path) = subject else { return None };
    Some((record, record.contracts.table(path.last()?)?))
}

/// Whether a contract holds for the table at a dataset's URI.
pub(crate) fn is_bound(scope: &Scope, uri: &str) -> bool {
    of(&scope.snapshot, uri).is_some()
}

fn cutoff(table: &Table, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    now.checked_sub_signed(TimeDelta::try_days(i64::from(table.metadata.retention_days))?)
}

/// Rows past their contract's `retention_days`; none where no column tells their age. A dataset that contradicts its contract is
/// told so, and its columns are not trusted.
async fn overdue(
    scope: &Scope,
    look: &Look,
    record: &ContractRecord,
    table: &Table,
    held: &Match,
) -> Option<Result<u64, String>> {
    let column = record.retention_columns.get(&table.name).filter(|_| held.readiness != Readiness::Blocked)?;
    let counted = rows_older_than(look, column, cutoff(table, scope.at)?);
    let counted = contain::contained(&scope.lake, "counting rows by age", &look.uri, counted).await;
    Some(counted.map_err(|e| e.to_string()))
}

/// What is found about one dataset that has a contract.
pub(crate) async fn of_dataset(scope: &Scope, look: &Look) -> Vec<Finding> {
    let uri = &look.uri;
    let Some((record, table)) = of(&scope.snapshot, uri) else { return Vec::new() };
    let Some(held) = matches(&record.contracts, &table.name, look) else { return Vec::new() };
    let name = format!("{}.{}@{}", record.contracts.enterprise(), table.name, table.revision);
    let mut out = Vec::new();
    let mut add = |kind, detail: String| out.push(Finding::new(kind, FindingSubject::dataset(uri), detail));
    let reasons = held.reasons.join("; ");
    match held.readiness {
        Readiness::Ready => {}
        Readiness::Blocked => add(FindingKind::ContractBlocked, format!("contract {name}: {reasons}")),
        Readiness::Pending if held.unbound => add(FindingKind::ContractUnbound, format!("contract {name}: {reasons}")),
        Readiness::Pending => add(FindingKind::ContractPending, format!("contract {name}: {reasons}")),
    }
    let days = table.metadata.retention_days;
    let column = record.retention_columns.get(&table.name).map(String::as_str).unwrap_or_default();
    match overdue(scope, look, record, table, &held).await {
        Some(Ok(0)) | None => {}
        Some(Ok(rows)) => add(
            FindingKind::ContractPending,
            format!("contract {name}: {rows} rows are older than retention_days = {days} by {column}; delete them"),
        ),
        Some(Err(why)) => add(
            FindingKind::ContractPending,
            format!("contract {name}: the age of its rows by {column} could not be told: {why}"),
        ),
    }
    out
}

/// Contracts whose table is not registered, or has no bytes.
pub(crate) fn of_estate(walk: &Walk<Row>) -> Vec<Finding> {
    let mut out = Vec::new();
    for record in walk.scope.snapshot.contracts() {
        let contracts = &record.fields.contracts;
        for table in contracts.tables() {
            let subject = Subject::Table(vec![contracts.enterprise().to_owned(), table.name.clone()]);
            let detail = match walk.scope.snapshot.table(&[contracts.enterprise().to_owned(), table.name.clone()]) {
                None => "no table of that name is registered".to_owned(),
                Some(found) => match walk.places.get(&found.fields.uri) {
                    Some(Place::Nothing | Place::DeclaredOnly) => "the table has no data yet".to_owned(),
                    _ => continue,
                },
            };
            let name = format!("contract {}.{}@{}", contracts.enterprise(), table.name, table.revision);
            let subject = FindingSubject::table(subject.to_string());
            out.push(
                Finding::new(FindingKind::ContractUnbound, subject, format!("{name}: {detail}"))
                    .with_fix("register its dataset with `squire-registry table create`"),
            );
        }
    }
    out
}
