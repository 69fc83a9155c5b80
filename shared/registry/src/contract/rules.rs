//! The rules by name, and what breaking one looks like.

use std::fmt;

use serde::Serialize;

/// A rule of the protocol. The name is stable; [`Rule::says`] is the sentence.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    strum::Display,
    strum::IntoStaticStr,
    strum::EnumIter,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Rule {
    /// Section 4.1.
    DocumentSize,
    /// Section 3.
    DocumentShape,
    /// Section 3.
    WireVersion,
    /// Section 4.1.
    Identifier,
    /// Section 4.1.
    TableCount,
    /// Section 3.
    TableNamesUnique,
    /// Section 3.
    RevisionPositive,
    /// Section 4.1.
    RequiredText,
    /// Section 3.3.
    RetentionPositive,
    /// Section 4.1.
    PurposeCount,
    /// Section 4.2.
    PurposesUnique,
    /// Section 4.1.
    ColumnCount,
    /// Section 3.1.
    ColumnIdsIncrease,
    /// Section 3.1.
    ColumnNamesUnique,
    /// Section 3.2.
    DecimalRange,
    /// Section 3.3.
    ClassificationFloor,
    /// Section 3.1.
    PrimaryKey,
    /// Section 5.
    ProfileStandard,
    /// Section 6.
    EnterpriseKept,
    /// Section 6.
    TablesKept,
    /// Section 6.
    RevisionKept,
    /// Section 6.
    RevisionAdvancesByOne,
    /// Section 6.
    NewTableAtOne,
    /// Section 6.
    ExistingUnchanged,
    /// Section 6.
    AppendedOptional,
    /// How a publication is conditional.
    PreviousDigest,
    /// How the age of a row is told.
    RetentionColumn,
    /// Section 8.1.
    Cursor,
    /// Section 8.1.
    PolicyBinding,
}

impl Rule {
    /// The rule in one sentence.
    pub fn says(self) -> &'static str {
        match self {
            Self::DocumentSize => "a document has at most 8 MiB",
            Self::DocumentShape => {
                "a document is JSON of the fields that pinax.v1 knows, each once; unknown fields and unknown alternatives \
                 are errors"
            }
            Self::WireVersion => "`version` is exactly pinax.v1",
            Self::Identifier => {
                "names of enterprises, tables, columns and purposes match [a-z][a-z0-9_]{0,62}: a lower-case letter, then at \
                 most 62 lower-case letters, digits or underscores"
            }
            Self::TableCount => "a document has at most 10,000 tables",
            Self::TableNamesUnique => "a table's name occurs once in a document",
            Self::RevisionPositive => "a revision is at least 1",
            Self::RequiredText => "text is not blank, has no control characters and at most 4,096 bytes",
            Self::RetentionPositive => "`retention_days` is at least 1",
            Self::PurposeCount => "a table allows 1 to 64 purposes",
            Self::PurposesUnique => "purposes are a set: each occurs once",
            Self::ColumnCount => "a table has 1 to 1,024 columns",
            Self::ColumnIdsIncrease => "column ids are positive and strictly increasing in the order of the columns",
            Self::ColumnNamesUnique => "a column's name occurs once in its table",
            Self::DecimalRange => "a decimal has a precision of 1 to 38 and a scale of 0 to its precision",
            Self::ClassificationFloor => {
                "a column is at least as sensitive as its table: public < internal < confidential < restricted"
            }
            Self::PrimaryKey => "the primary key names at least one column, each once, by the id of a required column",
            Self::ProfileStandard => {
                "a profile's standard columns keep their ids, names, types, semantics and nullability, are at least \
                 confidential, and the first of them is the primary key"
            }
            Self::EnterpriseKept => "the enterprise never changes",
            Self::TablesKept => "an existing table never disappears",
            Self::RevisionKept => "an identical table keeps its revision",
            Self::RevisionAdvancesByOne => "a changed table advances by exactly one revision",
            Self::NewTableAtOne => "a new table begins at revision 1",
            Self::ExistingUnchanged => {
                "existing columns, profile, primary key, stewardship, retention and policy binding of a table never change; \
                 what must change is a migration to a new contract"
            }
            Self::AppendedOptional => "only optional columns with greater ids may be appended",
            Self::PreviousDigest => "a publication names the digest that it replaces, and that one is still published",
            Self::RetentionColumn => {
                "the column that tells a row's age exists in its table's contract and is a date or a timestamp"
            }
            Self::Cursor => {
                "a page follows a cursor of the same registry content; after a change discovery starts anew"
            }
            Self::PolicyBinding => {
                "the policy that decides is the one that every table is bound to, in the same revision"
            }
        }
    }
}

/// One broken rule, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The rule.
    pub rule: Rule,
    /// Where in the document, like `tables.customers.columns.email`; empty: the whole.
    pub at: String,
    /// What was found there.
    pub found: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = if self.at.is_empty() { "the document" } else { &self.at };
        write!(f, "{at}: {} (rule {}: {})", self.found, self.rule, self.rule.says())
    }
}

/// How many refusals are told at once; a document that breaks more is told so.
const TOLD: usize = 100;

/// All rules that a document breaks, in its order; at most a hundred are told.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct Refusals(Vec<Refusal>);

impl Refusals {
    pub(crate) fn add(&mut self, rule: Rule, at: impl Into<String>, found: impl Into<String>) {
        if self.0.len() < TOLD {
            self.0.push(Refusal { rule, at: at.into(), found: shortened(found.into()) });
        }
    }

    pub(crate) fn one(rule: Rule, at: impl Into<String>, found: impl Into<String>) -> Self {
        let mut refusals = Self::default();
        refusals.add(rule, at, found);
        refusals
    }

    /// `value` where nothing was refused.
    pub(crate) fn or<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Refusal> {
        self.0.iter()
    }

    /// The rules that are broken, in order.
    pub fn rules(&self) -> Vec<Rule> {
        self.0.iter().map(|r| r.rule).collect()
    }
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, refusal) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            write!(f, "{separator}{refusal}")?;
        }
        if self.0.len() == TOLD {
            write!(f, "\nand perhaps more: only the first {TOLD} are told")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusals {}

impl From<Refusals> for crate::Error {
    fn from(refusals: Refusals) -> Self {
        Self::Refused(refusals.to_string())
    }
}

/// What stands in a document can be long and is not for a terminal: cut, and without control characters.
pub(crate) fn shortened(text: String) -> String {
    let mut out: String = text.chars().take(200).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if out.len() < text.len() && text.chars().count() > 200 {
        out.push('…');
    }
    out
}
