//! From a document to contracts that are trusted: limits, rules, normal form, digest.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::model::{Column, DataType, Document, Nullability, Table, VERSION};
use super::profiles;
use super::rules::{Refusals, Rule};

/// The largest document, in bytes.
pub const MAX_BYTES: usize = 8 << 20;
const MAX_TABLES: usize = 10_000;
const MAX_COLUMNS: usize = 1_024;
const MAX_PURPOSES: usize = 64;
const MAX_TEXT: usize = 4_096;
const MAX_IDENTIFIER: usize = 63;
const MAX_PRECISION: u8 = 38;

/// The contracts of one enterprise: valid, in normal form, and unchangeable. Only validation makes one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Contracts {
    document: Document,
    #[serde(skip)]
    digest: String,
}

impl Contracts {
    /// Reads and validates a document of at most [`MAX_BYTES`].
    ///
    /// # Errors
    /// Every rule that it breaks; one alone where it cannot be read at all.
    pub fn from_json(bytes: &[u8]) -> Result<Self, Refusals> {
        if bytes.len() > MAX_BYTES {
            return Err(Refusals::one(Rule::DocumentSize, "", format!("it has {} bytes", bytes.len())));
        }
        let document: Document =
            serde_json::from_slice(bytes).map_err(|e| Refusals::one(Rule::DocumentShape, "", e.to_string()))?;
        Self::new(document)
    }

    /// Validates a document that was made in code; the same rules.
    ///
    /// # Errors
    /// Every rule that it breaks.
    pub fn new(mut document: Document) -> Result<Self, Refusals> {
        let mut refusals = Refusals::default();
        if document.version != VERSION {
            refusals.add(Rule::WireVersion, "version", format!("`{}`", document.version));
        }
        identifier(&mut refusals, "enterprise", &document.enterprise);
        if document.tables.len() > MAX_TABLES {
            refusals.add(Rule::TableCount, "tables", format!("there are {}", document.tables.len()));
        }
        let mut names = HashSet::new();
        for (i, table) in document.tables.iter().enumerate() {
            let at = place("tables", i, &table.name);
            if !names.insert(table.name.as_str()) {
                refusals.add(Rule::TableNamesUnique, &at, "the name occurs before");
            }
            check_table(&mut refusals, &at, table);
        }
        document.tables.sort_by(|a, b| a.name.cmp(&b.name));
        document.tables.iter_mut().for_each(|table| table.security.purposes.sort());
        let encoded = serde_json::to_vec(&document).unwrap_or_default();
        if encoded.len() > MAX_BYTES {
            refusals.add(Rule::DocumentSize, "", format!("it has {} bytes", encoded.len()));
        }
        let digest = digest(&encoded);
        refusals.or(Self { document, digest })
    }

    /// The enterprise.
    pub fn enterprise(&self) -> &str {
        &self.document.enterprise
    }

    /// The tables, by name.
    pub fn tables(&self) -> &[Table] {
        &self.document.tables
    }

    /// A table by name.
    pub fn table(&self, name: &str) -> Option<&Table> {
        let at = self.tables().binary_search_by(|t| t.name.as_str().cmp(name)).ok()?;
        self.tables().get(at)
    }

    /// The document in normal form: tables and purposes sorted, the order of columns and keys as given.
    pub fn document(&self) -> &Document {
        &self.document
    }

    /// `sha256:` and 64 hex digits over the wire version, a zero byte and the compact JSON of the normal form (section 4.2).
    /// White space, the order of keys in JSON objects, of tables and of purposes do not count; everything else does.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

fn digest(encoded: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(VERSION.as_bytes());
    hash.update([0]);
    hash.update(encoded);
    let mut out = String::from("sha256:");
    for byte in hash.finalize() {
        // Writing into a String cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// A name where it is one, else the position: what is wrong must be found again.
fn place(list: &str, index: usize, name: &str) -> String {
    if is_identifier(name) { format!("{list}.{name}") } else { format!("{list}[{index}]") }
}

fn is_identifier(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_lowercase)
        && bytes.len() <= MAX_IDENTIFIER
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_')
}

fn identifier(refusals: &mut Refusals, at: &str, text: &str) {
    if !is_identifier(text) {
        refusals.add(Rule::Identifier, at, format!("`{text}`"));
    }
}

/// What may name an enterprise, a table, a column or a purpose; for what does not come in a document.
pub(crate) fn check_identifier(at: &str, text: &str) -> Result<(), Refusals> {
    let mut refusals = Refusals::default();
    identifier(&mut refusals, at, text);
    refusals.or(())
}

fn text(refusals: &mut Refusals, at: &str, field: &str, text: &str) {
    let found = if text.trim().is_empty() {
        "it is blank".to_owned()
    } else if text.len() > MAX_TEXT {
        format!("it has {} bytes", text.len())
    } else if text.chars().any(char::is_control) {
        "it has a control character".to_owned()
    } else {
        return;
    };
    refusals.add(Rule::RequiredText, format!("{at}.{field}"), found);
}

fn check_table(refusals: &mut Refusals, at: &str, table: &Table) {
    identifier(refusals, &format!("{at}.name"), &table.name);
    if table.revision == 0 {
        refusals.add(Rule::RevisionPositive, format!("{at}.revision"), "it is 0");
    }
    text(refusals, at, "metadata.owner", &table.metadata.owner);
    text(refusals, at, "metadata.steward", &table.metadata.steward);
    text(refusals, at, "metadata.description", &table.metadata.description);
    if table.metadata.retention_days == 0 {
        refusals.add(Rule::RetentionPositive, format!("{at}.metadata.retention_days"), "it is 0");
    }
    check_security(refusals, at, table);
    check_columns(refusals, at, table);
    check_key(refusals, at, table);
    profiles::check(refusals, at, table);
}

fn check_security(refusals: &mut Refusals, at: &str, table: &Table) {
    text(refusals, at, "security.policy", &table.security.policy);
    if table.security.revision == 0 {
        refusals.add(Rule::RevisionPositive, format!("{at}.security.revision"), "it is 0");
    }
    let purposes = &table.security.purposes;
    let at = format!("{at}.security.purposes");
    if purposes.is_empty() || purposes.len() > MAX_PURPOSES {
        refusals.add(Rule::PurposeCount, &at, format!("there are {}", purposes.len()));
    }
    let mut seen = HashSet::new();
    for purpose in purposes {
        identifier(refusals, &at, purpose);
        if !seen.insert(purpose) {
            refusals.add(Rule::PurposesUnique, &at, format!("`{purpose}` occurs again"));
        }
    }
}

fn check_columns(refusals: &mut Refusals, at: &str, table: &Table) {
    if table.columns.is_empty() || table.columns.len() > MAX_COLUMNS {
        refusals.add(Rule::ColumnCount, format!("{at}.columns"), format!("there are {}", table.columns.len()));
    }
    let mut names = HashSet::new();
    let mut last = 0;
    for (i, column) in table.columns.iter().enumerate() {
        let at = format!("{at}.{}", place("columns", i, &column.name));
        if column.id <= last {
            refusals.add(Rule::ColumnIdsIncrease, format!("{at}.id"), format!("{} follows {last}", column.id));
        }
        last = last.max(column.id);
        if !names.insert(column.name.as_str()) {
            refusals.add(Rule::ColumnNamesUnique, &at, "the name occurs before");
        }
        check_column(refusals, &at, table, column);
    }
}

fn check_column(refusals: &mut Refusals, at: &str, table: &Table, column: &Column) {
    identifier(refusals, &format!("{at}.name"), &column.name);
    text(refusals, at, "semantic", &column.semantic);
    text(refusals, at, "description", &column.description);
    if let DataType::Decimal { precision, scale } = column.data_type
        && (precision == 0 || precision > MAX_PRECISION || scale > precision)
    {
        refusals.add(
            Rule::DecimalRange,
            format!("{at}.data_type"),
            format!("its precision is {precision} and its scale {scale}"),
        );
    }
    let floor = table.security.classification;
    if column.classification < floor {
        refusals.add(
            Rule::ClassificationFloor,
            format!("{at}.classification"),
            format!("it is {} and the table {floor}", column.classification),
        );
    }
}

fn check_key(refusals: &mut Refusals, at: &str, table: &Table) {
    let at = format!("{at}.primary_key");
    if table.primary_key.is_empty() {
        refusals.add(Rule::PrimaryKey, &at, "it is empty");
    }
    let nullability: HashMap<u32, Nullability> = table.columns.iter().rev().map(|c| (c.id, c.nullability)).collect();
    let mut seen = HashSet::new();
    for id in &table.primary_key {
        match nullability.get(id) {
            None => refusals.add(Rule::PrimaryKey, &at, format!("no column has the id {id}")),
            Some(Nullability::Optional) => refusals.add(Rule::PrimaryKey, &at, format!("column {id} is optional")),
            Some(Nullability::Required) => {}
        }
        if !seen.insert(id) {
            refusals.add(Rule::PrimaryKey, &at, format!("{id} occurs again"));
        }
    }
}
