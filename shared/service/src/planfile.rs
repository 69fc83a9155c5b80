//! Plan files: `squire.plan.v1`, an envelope around what would be done, with a digest.
//!
//! A plan binds: `apply` does what is in the file and nothing else. So the file is refused when
//! it is not exactly what was written (the digest is over the whole document).

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};
use uuid::Uuid;

use crate::report::names;

/// Value of a plan's `schema`.
pub const SCHEMA: &str = "squire.plan.v1";

/// Larger files are refused: a plan of 100,000 datasets takes a few hundred MiB.
pub const MAX_BYTES: u64 = 2 << 30;

names! {
    /// What a plan is for.
    PlanKind {
        /// Compaction, index work and cleanup.
        Maintenance,
        /// Moving orphans away.
        Reclaim,
        /// Dropping tables.
        Drop,
    }
}

/// A plan. `T` is one dataset's part of it, and belongs to whoever makes plans.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanFile<T> {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The plan's id, UUIDv7: it says when the plan was made.
    pub id: Uuid,
    /// What it is for.
    pub kind: PlanKind,
    /// Id of the estate it was made for; null where the registry did not exist yet.
    pub estate: Option<Uuid>,
    /// The bucket, for reclaim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// Live things seen, for reclaim: a plan that saw none is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<u64>,
    /// The ROOTs that were scanned, for reclaim: whoever applies it scans them again, because a clone in any of them keeps files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roots: Vec<String>,
    /// What to do by dataset, or by object.
    #[serde(flatten)]
    pub work: PlanWork<T>,
    /// SHA-256 in hex over the canonical JSON of everything else.
    #[serde(default)]
    pub digest: String,
}

/// What a plan holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum PlanWork<T> {
    /// By dataset (`maintenance`, `drop`).
    #[serde(rename = "datasets")]
    Datasets(Vec<T>),
    /// By object (`reclaim`).
    #[serde(rename = "items")]
    Items(Vec<PlanItem>),
}

/// One object of a reclaim plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanItem {
    /// Full URI.
    pub path: String,
    /// Why it may go.
    pub reason: String,
    /// Its size.
    pub bytes: u64,
    /// By the store's clock, when the plan was made.
    pub last_modified: DateTime<Utc>,
}

/// Kinds of [`PlanError`]. All of them mean exit code 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanErrorKind {
    /// The file could not be read or written.
    Io,
    /// The file is no plan.
    NotAPlan,
    /// The file is a plan, but not what was written.
    Changed,
    /// The plan is for something else.
    WrongKind,
}

/// Why a plan file was refused.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Could not be read.
    #[error("cannot read the plan {path}: {source}; make one with `plan --out {path}`", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Could not be written.
    #[error("cannot write the plan {path}: {source}; name a file in a directory that exists", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Larger than [`MAX_BYTES`].
    #[error("the plan {path} has {bytes} bytes, more than any plan has; was another file meant?", path = path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// Ends in the middle.
    #[error("the plan {path} ends in the middle ({message}); copy it again, or make a new one", path = path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        message: String,
    },
    /// Not JSON.
    #[error("{path} is not JSON ({message}); a plan is made with `plan --out FILE`", path = path.display())]
    NotJson {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        message: String,
    },
    /// JSON, but not of this schema.
    #[error("{path} is not a plan that this version reads: its schema is {found}, expected {SCHEMA}; {remedy}", path = path.display())]
    WrongSchema {
        /// The file.
        path: PathBuf,
        /// The schema found.
        found: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The digest is not that of the content.
    #[error("the plan {path} was changed after it was made (digest {found}, content {computed}); make a new plan", path = path.display())]
    BadDigest {
        /// The file.
        path: PathBuf,
        /// The digest in the file.
        found: String,
        /// The digest of the content.
        computed: String,
    },
    /// The right schema and digest, but something is not understood.
    #[error("the plan {path} holds something that this version does not read ({message}); make a new plan with this version", path = path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// What was not understood.
        message: String,
    },
    /// A plan for another verb.
    #[error("the plan {path} is for {found}, this command applies plans for {expected}", path = path.display())]
    WrongKind {
        /// The file.
        path: PathBuf,
        /// What the plan is for.
        found: PlanKind,
        /// What was asked for.
        expected: PlanKind,
    },
}

impl PlanError {
    /// What kind of error this is.
    pub fn kind(&self) -> PlanErrorKind {
        match self {
            Self::Read { .. } | Self::Write { .. } => PlanErrorKind::Io,
            Self::TooLarge { .. } | Self::NotJson { .. } | Self::WrongSchema { .. } => PlanErrorKind::NotAPlan,
            Self::Truncated { .. } | Self::BadDigest { .. } | Self::Shape { .. } => PlanErrorKind::Changed,
            Self::WrongKind { .. } => PlanErrorKind::WrongKind,
        }
    }
}

impl<T> PlanFile<T> {
    /// A plan by dataset, without digest until it is [sealed](PlanFile::seal).
    pub fn new(kind: PlanKind, estate: Option<Uuid>, datasets: Vec<T>) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            id: Uuid::now_v7(),
            kind,
            estate,
            bucket: None,
            live: None,
            roots: Vec::new(),
            work: PlanWork::Datasets(datasets),
            digest: String::new(),
        }
    }

    /// A reclaim plan, by object: of one bucket, in which so many live things were seen under these ROOTs.
    pub fn reclaim(estate: Option<Uuid>, bucket: String, live: u64, roots: Vec<String>, items: Vec<PlanItem>) -> Self {
        Self {
            bucket: Some(bucket),
            live: Some(live),
            roots,
            work: PlanWork::Items(items),
            ..Self::new(PlanKind::Reclaim, estate, Vec::new())
        }
    }

    /// The objects; empty for a plan by dataset.
    pub fn items(&self) -> &[PlanItem] {
        match &self.work {
            PlanWork::Datasets(_) => &[],
            PlanWork::Items(items) => items,
        }
    }

    /// The datasets; empty for a plan by object.
    pub fn datasets(&self) -> &[T] {
        match &self.work {
            PlanWork::Datasets(datasets) => datasets,
            PlanWork::Items(_) => &[],
        }
    }

    /// The datasets, taken out; empty for a plan by object.
    pub fn into_datasets(self) -> Vec<T> {
        match self.work {
            PlanWork::Datasets(datasets) => datasets,
            PlanWork::Items(_) => Vec::new(),
        }
    }

    /// When the plan was made, by the maker's clock, from its id.
    pub fn made_at(&self) -> Option<DateTime<Utc>> {
        let (seconds, nanos) = self.id.get_timestamp()?.to_unix();
        DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos)
    }
}

impl<T: Serialize> PlanFile<T> {
    /// Computes the digest and returns the document as it is to be written.
    ///
    /// # Errors
    /// When a value of `T` has no JSON form.
    pub fn seal(&mut self) -> Result<String, serde_json::Error> {
        self.digest = String::new();
        // Through text, so that the digest is over what a reader will parse.
        let value: Value = serde_json::from_str(&serde_json::to_string(&*self)?)?;
        self.digest = digest(&value);
        let mut text = serde_json::to_string_pretty(&*self)?;
        text.push('\n');
        Ok(text)
    }

    /// Seals the plan and writes it: the whole file or nothing.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&mut self, path: &Path) -> Result<(), PlanError> {
        let failed = |source| PlanError::Write { path: path.to_owned(), source };
        let text = self.seal().map_err(|e| failed(io::Error::other(e)))?;
        crate::report::write_file(path, text.as_bytes()).map_err(failed)
    }
}

impl<T: DeserializeOwned> PlanFile<T> {
    /// Reads a plan and verifies schema and digest.
    ///
    /// # Errors
    /// When the file cannot be read, is no plan, or is not what was written.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let failed = |source| PlanError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Err(failed(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        let too_large = |bytes| PlanError::TooLarge { path: path.to_owned(), bytes };
        if metadata.len() > MAX_BYTES {
            return Err(too_large(metadata.len()));
        }
        let mut bytes = Vec::new();
        // A pipe has no length of its own.
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(too_large(bytes.len() as u64));
        }
        Self::parse(path, &bytes)
    }

    /// As [`read`](Self::read), and refuses a plan that is not for `expected`.
    ///
    /// # Errors
    /// As [`read`](Self::read); and when the plan is for something else.
    pub fn read_for(path: &Path, expected: PlanKind) -> Result<Self, PlanError> {
        let plan = Self::read(path)?;
        if plan.kind != expected {
            return Err(PlanError::WrongKind { path: path.to_owned(), found: plan.kind, expected });
        }
        Ok(plan)
    }

    /// Verifies the bytes of a plan; `path` is for the messages.
    ///
    /// # Errors
    /// When they are no plan, or not what was written.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, PlanError> {
        let path = path.to_owned();
        let value: Value = match serde_json::from_slice(bytes) {
            Ok(value) => value,
            Err(e) if e.is_eof() && !bytes.trim_ascii().is_empty() => {
                return Err(PlanError::Truncated { path, message: e.to_string() });
            }
            Err(e) => return Err(PlanError::NotJson { path, message: e.to_string() }),
        };
        check_schema(&path, &value)?;
        let found = value.get("digest").and_then(Value::as_str).unwrap_or_default();
        let computed = digest(&value);
        if found != computed {
            let found = if found.is_empty() { "none".to_owned() } else { found.to_owned() };
            return Err(PlanError::BadDigest { path, found, computed });
        }
        serde_json::from_value(value).map_err(|e| PlanError::Shape { path, message: e.to_string() })
    }
}

fn check_schema(path: &Path, value: &Value) -> Result<(), PlanError> {
    let found = value.get("schema").and_then(Value::as_str);
    if found == Some(SCHEMA) {
        return Ok(());
    }
    let remedy = match found {
        Some(s) if s.starts_with("squire.report.") => "this is a report; make a plan with `plan --out FILE`",
        Some(s) if s.starts_with("squire.plan.") => "use the version of Squire that made it",
        _ => "make a plan with `plan --out FILE`",
    };
    let found = found.map_or_else(|| "missing".to_owned(), |s| format!("{s:?}"));
    Err(PlanError::WrongSchema { path: path.to_owned(), found, remedy })
}

/// SHA-256, in hex, over the canonical JSON of a document without its `digest`: keys sorted, no
/// white space, floats with twelve significant digits (two parsers may differ in the last bit).
pub fn digest(document: &Value) -> String {
    let mut text = String::new();
    match document {
        Value::Object(map) => {
            let mut rest = map.clone();
            rest.remove("digest");
            canonical(&Value::Object(rest), &mut text);
        }
        other => canonical(other, &mut text),
    }
    hex(&Sha256::digest(text.as_bytes()))
}

fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            out.push('{');
            for (i, key) in keys.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                canonical(&map[key], out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                canonical(item, out);
            }
            out.push(']');
        }
        Value::Number(n) if n.is_f64() => {
            out.push_str(&format!("{:.11e}", n.as_f64().unwrap_or_default()));
        }
        other => out.push_str(&other.to_string()),
    }
}

/// Bytes as lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
