//! What can go wrong with a dataset, and whether trying again can help.

use std::fmt;

/// The failure kinds of FACES. Retry is decided on the kind, never on text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The dataset could not be opened.
    Open,
    /// A file that must be there is missing or cannot be decoded.
    Damaged,
    /// A fault of network or store that may pass.
    Transient,
    /// Somebody else's commit was first.
    Conflict,
    /// It will fail the same way again until somebody changes something.
    Permanent,
    /// Answers differ before and after.
    Verify,
    /// A panic inside the library, or a broken invariant of ours.
    Bug,
    /// A rule forbade it.
    Refused,
}

impl Kind {
    /// The stable name used in logs, metrics and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Open => "open",
            Kind::Damaged => "damaged",
            Kind::Transient => "transient",
            Kind::Conflict => "conflict",
            Kind::Permanent => "permanent",
            Kind::Verify => "verify",
            Kind::Bug => "bug",
            Kind::Refused => "refused",
        }
    }
}

/// An error of this crate: what was being done, to what, what the operator can do.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    doing: String,
    subject: String,
    remedy: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    outcome_known: bool,
}

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A failure of our own, without a library error behind it.
    pub fn new(kind: Kind, doing: impl Into<String>, subject: impl Into<String>) -> Self {
        Self { kind, doing: doing.into(), subject: subject.into(), remedy: None, source: None, outcome_known: false }
    }

    /// A failure reported by Lance.
    pub fn lance(doing: impl Into<String>, subject: impl Into<String>, e: lance::Error) -> Self {
        let (kind, outcome_known) = classify(&e);
        let mut error = Self::new(kind, doing, subject);
        error.outcome_known = outcome_known;
        error.source = Some(Box::new(e));
        error
    }

    /// A failure reported by the object store.
    pub fn store(doing: impl Into<String>, subject: impl Into<String>, e: object_store::Error) -> Self {
        let kind = match &e {
            object_store::Error::NotFound { .. } => Kind::Damaged,
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. }
            | object_store::Error::NotSupported { .. }
            | object_store::Error::NotImplemented { .. } => Kind::Permanent,
            _ => Kind::Transient,
        };
        let mut error = Self::new(kind, doing, subject);
        error.source = Some(Box::new(e));
        error
    }

    /// Adds the error behind this one.
    pub fn because(mut self, e: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(e));
        self
    }

    /// Adds what the operator can do.
    pub fn remedy(mut self, text: impl Into<String>) -> Self {
        self.remedy = Some(text.into());
        self
    }

    /// Replaces the kind, where the caller knows better than the library.
    pub fn with_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// The same, proving nothing about a commit.
    pub(crate) fn unproven(mut self) -> Self {
        self.outcome_known = false;
        self
    }

    /// The same, of a commit that was never tried: what was written for it can be named by nobody.
    pub(crate) fn never_tried(mut self) -> Self {
        self.outcome_known = true;
        self
    }

    /// The failure kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether Lance said for certain that a commit did not land (a conflict). A timeout, an I/O error, a
    /// panic or a cancel leaves it open, and then outputs stay where they are (design, "A lost commit's output").
    pub fn proves_loss(&self) -> bool {
        self.outcome_known
    }

    /// The whole chain of causes as one line each, outermost first.
    pub fn chain(&self) -> Vec<String> {
        let mut out = vec![self.to_string()];
        let mut at = std::error::Error::source(self);
        while let Some(e) = at {
            out.push(e.to_string());
            at = e.source();
        }
        out
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} failed ({})", self.subject, self.doing, self.kind.as_str())?;
        if let Some(source) = &self.source {
            let text = source.to_string();
            let first: String = text.lines().next().unwrap_or("").chars().take(400).collect();
            write!(f, ": {first}")?;
        }
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|e| e as &(dyn std::error::Error + 'static))
    }
}

/// Kind, and whether the failure proves that a commit did not land.
///
/// The conflict variants are different things in Lance 14 (facts, "Commits"): retryable ones ask for a new plan,
/// an incompatible transaction does too, and write contention says only that the retries ran out.
fn classify(e: &lance::Error) -> (Kind, bool) {
    use lance::Error as L;
    match e {
        // A namespace says by code what is the matter, and proves nothing about a commit.
        L::Namespace { source, .. } => match (crate::namespace::code_of(e), source.downcast_ref::<lance::Error>()) {
            (Some(code), _) => (crate::namespace::kind_of(code), false),
            (None, Some(inner)) => classify(inner),
            (None, None) => (Kind::Permanent, false),
        },
        L::RetryableCommitConflict { .. }
        | L::CommitConflict { .. }
        | L::IncompatibleTransaction { .. }
        | L::VersionConflict { .. } => (Kind::Conflict, true),
        L::TooMuchWriteContention { .. } => (Kind::Conflict, false),
        L::DatasetNotFound { .. } => (Kind::Open, false),
        // An object that is not there comes back wrapped in an I/O error: no second try finds it.
        e if e.is_not_found() => (Kind::Damaged, false),
        L::CorruptFile { .. } | L::NotFound { .. } => (Kind::Damaged, false),
        L::IO { .. } | L::Timeout { .. } | L::DiskCapExceeded { .. } | L::Backpressure { .. } => {
            (Kind::Transient, false)
        }
        L::Wrapped { error, .. } => match error.downcast_ref::<lance::Error>() {
            Some(inner) => classify(inner),
            None => (Kind::Permanent, false),
        },
        _ => (Kind::Permanent, false),
    }
}
