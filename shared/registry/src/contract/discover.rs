//! What of a registry content a purpose may see, page by page (section 8.1).

use std::collections::BTreeSet;

use serde::Serialize;

use super::model::{Classification, DataType, Nullability, Table};
use super::rules::{Refusals, Rule, shortened};
use super::validate::{Contracts, check_identifier};

/// Tables examined per page, visible or not.
pub const PAGE: usize = 100;

/// On whose behalf discovery is asked. The caller has authenticated it; what it says of itself proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Principal {
    /// The purposes that it may declare; a table is seen that allows one of them.
    pub purposes: BTreeSet<String>,
    /// The most sensitive that it may see. Without it a purpose opens a table at the table's own classification: columns
    /// above that stay hidden.
    pub clearance: Option<Classification>,
    /// The policy that decides, and its revision; where it is given every table examined must be bound to it.
    pub policy: Option<(String, u64)>,
}

/// A column as it may be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiscoveredColumn {
    /// Its name.
    pub name: String,
    /// Its physical type.
    pub data_type: DataType,
    /// Whether a value may be absent.
    pub nullability: Nullability,
    /// The business term it stands for.
    pub semantic: String,
    /// What it holds.
    pub description: String,
}

/// A table as it may be seen. Security and primary key are left out, and so are column ids: a gap in them, or a key that
/// names none of the columns shown, would tell of what is hidden.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Discovered {
    /// The enterprise.
    pub enterprise: String,
    /// Its name.
    pub name: String,
    /// Its revision.
    pub revision: u64,
    /// Who owns it.
    pub owner: String,
    /// Who looks after its meaning.
    pub steward: String,
    /// What it holds.
    pub description: String,
    /// The columns that may be seen, in their order; at least one.
    pub columns: Vec<DiscoveredColumn>,
}

/// One page. It may show nothing and still have a continuation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Page {
    /// The registry content that it was read from.
    pub digest: String,
    /// What may be seen of the tables examined.
    pub tables: Vec<Discovered>,
    /// The cursor of the next page. It grants nothing: the next page asks everything again.
    pub next: Option<String>,
}

/// The page that follows `cursor`, or the first.
///
/// # Errors
/// [`Rule::Identifier`] for a purpose that is none, [`Rule::Cursor`] for a cursor of another content, [`Rule::PolicyBinding`]
/// where a table examined is bound to another policy; none of them names a table.
pub fn discover(contracts: &Contracts, principal: &Principal, cursor: Option<&str>) -> Result<Page, Refusals> {
    for purpose in &principal.purposes {
        check_identifier("purpose", purpose)?;
    }
    let from = match cursor {
        None => 0,
        Some(cursor) => position(contracts, cursor)?,
    };
    let end = contracts.tables().len().min(from.saturating_add(PAGE));
    let examined = contracts.tables().get(from..end).unwrap_or_default();
    if let Some((policy, revision)) = &principal.policy
        && examined.iter().any(|t| t.security.policy != *policy || t.security.revision != *revision)
    {
        return Err(Refusals::one(Rule::PolicyBinding, "the page", "something in it is bound to another policy"));
    }
    Ok(Page {
        digest: contracts.digest().to_owned(),
        tables: examined.iter().filter_map(|table| seen(contracts.enterprise(), table, principal)).collect(),
        next: (end < contracts.tables().len()).then(|| format!("{}/{end}", contracts.digest())),
    })
}

fn position(contracts: &Contracts, cursor: &str) -> Result<usize, Refusals> {
    let refused = |found: &str| Refusals::one(Rule::Cursor, "the cursor", found);
    let (digest, position) = cursor
        .rsplit_once('/')
        .and_then(|(digest, position)| Some((digest, position.parse::<usize>().ok()?)))
        .ok_or_else(|| refused(&shortened(format!("`{cursor}` is none"))))?;
    if digest != contracts.digest() {
        return Err(refused("it belongs to another content of the registry"));
    }
    if position == 0 || position >= contracts.tables().len() {
        return Err(refused("it points outside of the registry"));
    }
    Ok(position)
}

fn seen(enterprise: &str, table: &Table, principal: &Principal) -> Option<Discovered> {
    let own = table.security.classification;
    let clearance = principal.clearance.unwrap_or(own);
    if own > clearance || !table.security.purposes.iter().any(|p| principal.purposes.contains(p)) {
        return None;
    }
    let columns: Vec<DiscoveredColumn> = table
        .columns
        .iter()
        .filter(|column| column.classification <= clearance)
        .map(|column| DiscoveredColumn {
            name: column.name.clone(),
            data_type: column.data_type,
            nullability: column.nullability,
            semantic: column.semantic.clone(),
            description: column.description.clone(),
        })
        .collect();
    (!columns.is_empty()).then(|| Discovered {
        enterprise: enterprise.to_owned(),
        name: table.name.clone(),
        revision: table.revision,
        owner: table.metadata.owner.clone(),
        steward: table.metadata.steward.clone(),
        description: table.metadata.description.clone(),
        columns,
    })
}
