//! What people write: values that nobody trusts yet.

use serde::{Deserialize, Deserializer, Serialize};

/// The one wire version.
pub const VERSION: &str = "pinax.v1";

/// A whole document: the contracts of one enterprise. Authoring value; see [`super::Contracts`] for the trusted one.
///
/// The order of the fields here and below is the order of the reference encoding that the digest is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Exactly [`VERSION`].
    pub version: String,
    /// Whose tables these are; an identifier.
    pub enterprise: String,
    /// The tables, at most 10,000; may be empty.
    pub tables: Vec<Table>,
}

/// The contract of one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Its logical name; an identifier, unique in the document.
    pub name: String,
    /// From 1; a change advances it by exactly one.
    pub revision: u64,
    /// The convention it follows.
    pub profile: Profile,
    /// Who answers for it, and what it is.
    pub metadata: Metadata,
    /// What protects it.
    pub security: Security,
    /// Its columns in order, 1 to 1,024.
    pub columns: Vec<Column>,
    /// Ids of required columns, in key order.
    pub primary_key: Vec<u32>,
}

/// Stewardship.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// Who owns the table.
    pub owner: String,
    /// Who looks after its meaning.
    pub steward: String,
    /// What it holds, for people.
    pub description: String,
    /// How many days a row is meant to live, at least 1.
    pub retention_days: u32,
}

/// The binding to a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Security {
    /// The policy's identity.
    pub policy: String,
    /// The policy's revision, from 1.
    pub revision: u64,
    /// The least sensitivity of every column.
    pub classification: Classification,
    /// What the table may be used for: 1 to 64 identifiers; a set.
    pub purposes: Vec<String>,
}

/// One column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Its identity through all revisions: positive, strictly increasing in the table.
    pub id: u32,
    /// Its name; an identifier, unique in the table.
    pub name: String,
    /// Its physical type.
    pub data_type: DataType,
    /// Whether a value may be absent.
    pub nullability: Nullability,
    /// The business term it stands for.
    pub semantic: String,
    /// What it holds, for people.
    pub description: String,
    /// How sensitive it is, at least as its table.
    pub classification: Classification,
}

/// How sensitive something is, in this order. It grants nothing.
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
    Deserialize,
    strum::Display,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Classification {
    /// For everybody.
    Public,
    /// For the enterprise.
    Internal,
    /// For those who need it.
    Confidential,
    /// For those who are named.
    Restricted,
}

/// The convention that a table follows.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::IntoStaticStr,
    strum::EnumIter,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Profile {
    /// None: the document says all.
    Custom,
    /// Employees.
    Hr,
    /// Customers.
    Customer,
    /// Money that moves.
    Transaction,
}

/// Whether a value may be absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Nullability {
    /// Every row has one.
    Required,
    /// A row may have none.
    Optional,
}

/// A physical type. Nested types are outside of this version and refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "WrittenType", into = "WrittenType")]
pub enum DataType {
    /// True or false.
    Boolean,
    /// 32 bits, signed.
    Int32,
    /// 64 bits, signed.
    Int64,
    /// IEEE 754, 32 bits.
    Float32,
    /// IEEE 754, 64 bits.
    Float64,
    /// An exact decimal.
    Decimal {
        /// Digits, 1 to 38.
        precision: u8,
        /// Digits after the point, 0 to `precision`.
        scale: u8,
    },
    /// A day.
    Date,
    /// A moment, in microseconds since 1970, UTC.
    Timestamp,
    /// UTF-8.
    String,
    /// Bytes.
    Binary,
}

impl DataType {
    /// Whether the type can tell how old a row is.
    pub fn tells_time(self) -> bool {
        matches!(self, Self::Date | Self::Timestamp)
    }
}

impl std::fmt::Display for DataType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Decimal { precision, scale } => write!(f, "decimal({precision},{scale})"),
            other => f.write_str(WrittenType::from(*other).kind.into()),
        }
    }
}

/// A type as it stands in a document: `{"kind": "decimal", "precision": 18, "scale": 2}`.
///
/// Written out rather than derived as a tagged enum: for alternatives without fields serde would let unknown ones pass.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenType {
    kind: Kind,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    precision: Option<u8>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    scale: Option<u8>,
}

#[derive(Clone, Copy, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
enum Kind {
    Boolean,
    Int32,
    Int64,
    Float32,
    Float64,
    Decimal,
    Date,
    Timestamp,
    String,
    Binary,
}

/// A field that is there has a value: `null` is not the same as absent.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    u8::deserialize(deserializer).map(Some)
}

impl TryFrom<WrittenType> for DataType {
    type Error = String;

    fn try_from(written: WrittenType) -> Result<Self, String> {
        let plain = match written.kind {
            Kind::Decimal => {
                let (Some(precision), Some(scale)) = (written.precision, written.scale) else {
                    return Err("a decimal needs `precision` and `scale`".into());
                };
                return Ok(Self::Decimal { precision, scale });
            }
            Kind::Boolean => Self::Boolean,
            Kind::Int32 => Self::Int32,
            Kind::Int64 => Self::Int64,
            Kind::Float32 => Self::Float32,
            Kind::Float64 => Self::Float64,
            Kind::Date => Self::Date,
            Kind::Timestamp => Self::Timestamp,
            Kind::String => Self::String,
            Kind::Binary => Self::Binary,
        };
        if written.precision.is_some() || written.scale.is_some() {
            let kind: &str = written.kind.into();
            return Err(format!("`{kind}` has neither `precision` nor `scale`"));
        }
        Ok(plain)
    }
}

impl From<DataType> for WrittenType {
    fn from(data_type: DataType) -> Self {
        let kind = match data_type {
            DataType::Decimal { precision, scale } => {
                return Self { kind: Kind::Decimal, precision: Some(precision), scale: Some(scale) };
            }
            DataType::Boolean => Kind::Boolean,
            DataType::Int32 => Kind::Int32,
            DataType::Int64 => Kind::Int64,
            DataType::Float32 => Kind::Float32,
            DataType::Float64 => Kind::Float64,
            DataType::Date => Kind::Date,
            DataType::Timestamp => Kind::Timestamp,
            DataType::String => Kind::String,
            DataType::Binary => Kind::Binary,
        };
        Self { kind, precision: None, scale: None }
    }
}
