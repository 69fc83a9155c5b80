//! Whether one registry content may follow another (section 6).

use super::model::{Column, Nullability, Table};
use super::rules::{Refusals, Rule};
use super::validate::Contracts;

/// Checks that `next` may replace `current`. A revision that advances does not authorise a breaking change; what breaks is
/// migrated to a new contract by people.
///
/// # Errors
/// Every rule that `next` breaks.
pub fn check_successor(current: &Contracts, next: &Contracts) -> Result<(), Refusals> {
    let mut refusals = Refusals::default();
    if next.enterprise() != current.enterprise() {
        let found = format!("`{}` was `{}`", next.enterprise(), current.enterprise());
        refusals.add(Rule::EnterpriseKept, "enterprise", found);
    }
    for before in current.tables() {
        let at = format!("tables.{}", before.name);
        match next.table(&before.name) {
            None => refusals.add(Rule::TablesKept, at, format!("it is gone; it had revision {}", before.revision)),
            Some(after) if after == before => {}
            Some(after) => changed(&mut refusals, &at, before, after),
        }
    }
    for new in next.tables().iter().filter(|t| current.table(&t.name).is_none() && t.revision != 1) {
        refusals.add(Rule::NewTableAtOne, format!("tables.{}.revision", new.name), format!("it is {}", new.revision));
    }
    refusals.or(())
}

fn changed(refusals: &mut Refusals, at: &str, before: &Table, after: &Table) {
    let revision = format!("{at}.revision");
    if (Table { revision: before.revision, ..after.clone() }) == *before {
        let found = format!("{} became {} and nothing else differs", before.revision, after.revision);
        refusals.add(Rule::RevisionKept, revision, found);
        return;
    }
    if before.revision.checked_add(1) != Some(after.revision) {
        let found = format!("{} became {} in a table that differs", before.revision, after.revision);
        refusals.add(Rule::RevisionAdvancesByOne, revision, found);
    }
    for (same, what) in [
        (before.profile == after.profile, "profile"),
        (before.metadata.owner == after.metadata.owner, "metadata.owner"),
        (before.metadata.steward == after.metadata.steward, "metadata.steward"),
        (before.metadata.description == after.metadata.description, "metadata.description"),
        (before.metadata.retention_days == after.metadata.retention_days, "metadata.retention_days"),
        (before.security.policy == after.security.policy, "security.policy"),
        (before.security.revision == after.security.revision, "security.revision"),
        (before.security.classification == after.security.classification, "security.classification"),
        (before.security.purposes == after.security.purposes, "security.purposes"),
        (before.primary_key == after.primary_key, "primary_key"),
    ] {
        if !same {
            refusals.add(Rule::ExistingUnchanged, format!("{at}.{what}"), "it differs");
        }
    }
    columns(refusals, at, before, after);
}

fn columns(refusals: &mut Refusals, at: &str, before: &Table, after: &Table) {
    // Ids increase strictly in both, so both can be searched, and an id that is kept keeps its order.
    let of = |table: &Table, id: u32| table.columns.binary_search_by_key(&id, |c| c.id).ok();
    for column in &before.columns {
        let at = format!("{at}.columns.{}", column.name);
        match of(after, column.id).and_then(|i| after.columns.get(i)) {
            None => refusals.add(Rule::ExistingUnchanged, at, format!("column {} is gone", column.id)),
            Some(kept) => existing(refusals, &at, column, kept),
        }
    }
    let greatest = before.columns.last().map_or(0, |c| c.id);
    for column in after.columns.iter().filter(|c| of(before, c.id).is_none()) {
        let at = format!("{at}.columns.{}", column.name);
        if column.id <= greatest {
            let found = format!("the id {} is new and not greater than {greatest}", column.id);
            refusals.add(Rule::AppendedOptional, format!("{at}.id"), found);
        }
        if column.nullability == Nullability::Required {
            refusals.add(Rule::AppendedOptional, format!("{at}.nullability"), "it is new and required");
        }
    }
}

fn existing(refusals: &mut Refusals, at: &str, before: &Column, after: &Column) {
    for (same, what) in [
        (before.name == after.name, "name"),
        (before.data_type == after.data_type, "data_type"),
        (before.nullability == after.nullability, "nullability"),
        (before.semantic == after.semantic, "semantic"),
        (before.description == after.description, "description"),
        (before.classification == after.classification, "classification"),
    ] {
        if !same {
            refusals.add(Rule::ExistingUnchanged, format!("{at}.{what}"), format!("column {} differs", before.id));
        }
    }
}
