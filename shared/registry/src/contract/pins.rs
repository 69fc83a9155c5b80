//! What a dataset carries of its contract.

use std::collections::BTreeMap;

use serde::Serialize;

use super::validate::Contracts;

/// The key in a field's metadata that holds its column's id.
pub const FIELD_ID: &str = "pinax.id";
/// The table property that names the contract, as `ENTERPRISE.TABLE`.
pub const PIN_CONTRACT: &str = "pinax.contract";
/// The table property with the contract's revision.
pub const PIN_REVISION: &str = "pinax.revision";
/// The table property with the digest of the whole registry content. One table that changes moves the digest of all.
pub const PIN_DIGEST: &str = "pinax.registry_digest";

/// The three properties that bind a dataset to a contract.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pins {
    /// `ENTERPRISE.TABLE`.
    pub contract: String,
    /// The contract's revision.
    pub revision: u64,
    /// The registry content's digest.
    pub digest: String,
}

impl Pins {
    /// The pins of a table; `None` where the contracts have no such table.
    pub fn of(contracts: &Contracts, table: &str) -> Option<Self> {
        let found = contracts.table(table)?;
        let contract = format!("{}.{}", contracts.enterprise(), found.name);
        Some(Self { contract, revision: found.revision, digest: contracts.digest().to_owned() })
    }

    /// The table properties.
    pub fn properties(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            (PIN_CONTRACT.to_owned(), self.contract.clone()),
            (PIN_REVISION.to_owned(), self.revision.to_string()),
            (PIN_DIGEST.to_owned(), self.digest.clone()),
        ])
    }
}
