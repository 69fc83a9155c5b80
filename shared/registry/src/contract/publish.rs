//! Contracts in the estate: the record, what publishing would change, and publishing itself.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::model::{Document, Table};
use super::pins::Pins;
use super::rules::{Refusals, Rule};
use super::successor::check_successor;
use super::validate::Contracts;
use crate::error::{Error, Result};
use crate::generation::Change;
use crate::record::{Record, fields};
use crate::registry::Registry;
use crate::snapshot::Snapshot;
use crate::subject::Subject;

/// An enterprise's published contracts; the record's id is the enterprise. Reading one validates it: a record that breaks a
/// rule, or whose digest is not that of its content, is unreadable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct ContractRecord {
    /// The contracts.
    pub contracts: Contracts,
    /// By table, the column that tells how old a row is: a date or a timestamp.
    pub retention_columns: BTreeMap<String, String>,
    /// By table, when its contract was first published here.
    pub since: BTreeMap<String, DateTime<Utc>>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Written {
    digest: String,
    document: Document,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    retention_columns: BTreeMap<String, String>,
    #[serde(default)]
    since: BTreeMap<String, DateTime<Utc>>,
}

impl TryFrom<Written> for ContractRecord {
    type Error = String;

    fn try_from(written: Written) -> std::result::Result<Self, String> {
        let contracts = Contracts::new(written.document).map_err(|e| e.to_string())?;
        if contracts.digest() != written.digest {
            return Err(format!("its digest is {} and its content's {}", written.digest, contracts.digest()));
        }
        check_retention_columns(&contracts, &written.retention_columns).map_err(|e| e.to_string())?;
        Ok(Self { contracts, retention_columns: written.retention_columns, since: written.since })
    }
}

impl From<ContractRecord> for Written {
    fn from(record: ContractRecord) -> Self {
        Self {
            digest: record.contracts.digest().to_owned(),
            document: record.contracts.document().clone(),
            retention_columns: record.retention_columns,
            since: record.since,
        }
    }
}

fields! { ContractRecord => Contracts, "contract"; }

fn check_retention_columns(
    contracts: &Contracts,
    columns: &BTreeMap<String, String>,
) -> std::result::Result<(), Refusals> {
    let mut refusals = Refusals::default();
    for (table, column) in columns {
        let found = match contracts.table(table).map(|t| t.columns.iter().find(|c| c.name == *column)) {
            None => format!("there is no contract of `{table}`"),
            Some(None) => format!("`{table}` has no column `{column}`"),
            Some(Some(found)) if !found.data_type.tells_time() => format!("`{column}` is a {}", found.data_type),
            Some(Some(_)) => continue,
        };
        refusals.add(Rule::RetentionColumn, format!("tables.{table}"), found);
    }
    refusals.or(())
}

/// What publishing means for one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, strum::Display, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Action {
    /// The contract is new.
    New,
    /// The contract advances by a revision.
    Advance,
    /// The contract stays; the digest that its dataset is pinned to changes.
    Repin,
    /// Nothing.
    None,
}

/// One table of a [`Publication`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TablePlan {
    /// The table that the contract is for.
    pub subject: Subject,
    /// Whether that table is registered.
    pub registered: bool,
    /// What changes.
    pub action: Action,
    /// Columns that are appended, by name.
    pub appended: Vec<String>,
    /// What its dataset is to be pinned to.
    pub pins: Pins,
}

/// What publishing would do, or did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Publication {
    /// The enterprise.
    pub enterprise: String,
    /// The digest that is replaced; `None` for the first.
    pub previous: Option<String>,
    /// The digest of the content.
    pub digest: String,
    /// Every table, by name.
    pub tables: Vec<TablePlan>,
}

impl Publication {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.previous.as_ref() == Some(&self.digest)
    }
}

impl Snapshot {
    /// An enterprise's published contracts.
    pub fn contract(&self, enterprise: &str) -> Option<&Record<ContractRecord>> {
        let found = self.contracts.get(enterprise)?;
        (found.fields.contracts.enterprise() == enterprise).then_some(found)
    }

    /// Every enterprise's published contracts.
    pub fn contracts(&self) -> impl Iterator<Item = &Record<ContractRecord>> {
        self.contracts.values().map(AsRef::as_ref)
    }

    /// The record with the contract of a table: `table/acme/customers` is `customers` of `acme`.
    pub fn contract_of(&self, subject: &Subject) -> Option<&ContractRecord> {
        let Subject::Table(path) = subject else { return None };
        let [enterprise, table] = path.as_slice() else { return None };
        let record = &self.contract(enterprise)?.fields;
        record.contracts.table(table).map(|_| record)
    }

    /// What publishing `next` would do. Pure.
    ///
    /// # Errors
    /// [`Error::Refused`] where `next` may not follow what is published.
    pub fn contract_plan(&self, next: &Contracts) -> Result<Publication> {
        let current = self.contract(next.enterprise()).map(|r| &r.fields.contracts);
        if let Some(current) = current {
            check_successor(current, next)?;
        }
        Ok(self.publication(current, next))
    }

    fn publication(&self, current: Option<&Contracts>, next: &Contracts) -> Publication {
        let moved = current.is_some_and(|c| c.digest() != next.digest());
        let plan = |table: &Table| {
            let before = current.and_then(|c| c.table(&table.name));
            let known = before.map_or(0, |b| b.columns.len());
            let subject = Subject::Table(vec![next.enterprise().to_owned(), table.name.clone()]);
            Some(TablePlan {
                registered: self.exists(&subject),
                action: match before {
                    None => Action::New,
                    Some(before) if before != table => Action::Advance,
                    Some(_) if moved => Action::Repin,
                    Some(_) => Action::None,
                },
                appended: match before {
                    Some(_) => table.columns.iter().skip(known).map(|c| c.name.clone()).collect(),
                    None => Vec::new(),
                },
                pins: Pins::of(next, &table.name)?,
                subject,
            })
        };
        Publication {
            enterprise: next.enterprise().to_owned(),
            previous: current.map(|c| c.digest().to_owned()),
            digest: next.digest().to_owned(),
            tables: next.tables().iter().filter_map(plan).collect(),
        }
    }
}

impl Registry {
    /// Publishes contracts as the successor of exactly `previous`, the digest that was reviewed against (`None`: nothing is
    /// published yet). Publishing again what is published does nothing, so a publication whose answer was lost can be
    /// repeated. Datasets are not touched.
    ///
    /// `retention_columns` are added to those that are named already.
    ///
    /// The first publication of an enterprise may hold any revision: it adopts contracts that lived elsewhere.
    ///
    /// # Errors
    /// [`Error::Refused`] naming the rule: not a successor, or another digest is published by now.
    pub async fn contract_publish(
        &self,
        next: &Contracts,
        previous: Option<&str>,
        retention_columns: &BTreeMap<String, String>,
        reason: Option<&str>,
    ) -> Result<Publication> {
        let snapshot = self.snapshot().await?;
        let now = Utc::now();
        let mut done = None;
        self.change::<ContractRecord>(next.enterprise(), reason, |current| {
            let current = current.map(|r| &r.fields);
            let mut columns = current.map(|c| c.retention_columns.clone()).unwrap_or_default();
            columns.extend(retention_columns.iter().map(|(t, c)| (t.clone(), c.clone())));
            check_retention_columns(next, &columns)?;
            let before = current.map(|c| &c.contracts);
            done = Some(snapshot.publication(before, next));
            if current.is_some_and(|c| c.contracts == *next && c.retention_columns == columns) {
                return Ok(Change::Keep);
            }
            expect(before, previous)?;
            if let Some(before) = before {
                check_successor(before, next)?;
            }
            let known = current.map(|c| c.since.clone()).unwrap_or_default();
            let since = |t: &Table| (t.name.clone(), known.get(&t.name).copied().unwrap_or(now));
            Ok(Change::Put(ContractRecord {
                contracts: next.clone(),
                retention_columns: columns,
                since: next.tables().iter().map(since).collect(),
            }))
        })
        .await?;
        done.ok_or_else(|| Error::InDoubt { doing: format!("publishing the contracts of {}", next.enterprise()) })
    }
}

fn expect(published: Option<&Contracts>, previous: Option<&str>) -> std::result::Result<(), Refusals> {
    let found = match (published.map(Contracts::digest), previous) {
        (Some(published), Some(previous)) if published == previous => return Ok(()),
        (None, None) => return Ok(()),
        (Some(published), Some(previous)) => format!("{previous} was expected and {published} is published"),
        (Some(published), None) => format!("{published} is published, and no digest was named that is to be replaced"),
        (None, Some(previous)) => format!("{previous} was expected and nothing is published"),
    };
    Err(Refusals::one(Rule::PreviousDigest, "", found))
}
