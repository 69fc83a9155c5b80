//! What can go wrong, and what kind of trouble it is.

use uuid::Uuid;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller should do about an [`Error`]; callers decide on this, never on text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::Display, strum::IntoStaticStr, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
pub enum Kind {
    /// The thing named does not exist (exit 2 for a registry, 3 or 2 for a record).
    NotFound,
    /// What was asked for is malformed (exit 2).
    Invalid,
    /// A rule forbids it (exit 3).
    Refused,
    /// Somebody else was faster, or holds the name already (exit 3).
    Conflict,
    /// Worth trying again later.
    Transient,
    /// Trying again does not help: permissions, a missing bucket, a full disk.
    Permanent,
    /// Bytes are there and cannot be understood.
    Damaged,
    /// The store does not keep the promise of put-if-absent.
    LyingStore,
}

/// An error of the registry. Every message says what was being done, to what, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to the object store failed.
    #[error("{doing}: the object store answered: {source}")]
    Store {
        /// What was being done, and to what.
        doing: String,
        /// The store's own error.
        source: object_store::Error,
    },
    /// A request did not finish in time; whether it took effect is unknown.
    #[error("{doing}: no answer in time; try again, what was written is compared by its nonce")]
    InDoubt {
        /// What was being done, and to what.
        doing: String,
    },
    /// A local file operation failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, and to what.
        doing: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// No registry where one must exist.
    #[error(
        "there is no registry at {uri}; make one with `squire-registry init {uri} --name NAME`, or correct the address"
    )]
    NoRegistry {
        /// The address as resolved.
        uri: String,
    },
    /// More than one registry governs the given roots.
    #[error(
        "two registries govern these roots: {first} and {second}; name one with --registry, or give roots of one estate"
    )]
    TwoRegistries {
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// The registry needs a newer build.
    #[error("the registry at {uri} has feature level {level}, this build understands {ours}; use a newer build")]
    TooNew {
        /// Its address.
        uri: String,
        /// Its level.
        level: u32,
        /// Ours.
        ours: u32,
    },
    /// The root's marker names another estate (`registry_lost`).
    #[error(
        "{root} is marked as part of estate {marked}, and this registry is estate {ours}; use that estate's registry \
         (a removed or mistyped registry looks like this), or remove {root}/.squire-estate if the other estate is gone"
    )]
    OtherEstate {
        /// The marked root.
        root: String,
        /// The estate that its marker names.
        marked: Uuid,
        /// The estate of the registry in use.
        ours: Uuid,
    },
    /// Something named does not exist.
    #[error("{what} does not exist{hint}")]
    Missing {
        /// The record, as a SUBJECT or an id.
        what: String,
        /// What to do, starting with a separator, or empty.
        hint: String,
    },
    /// The name or the place is taken.
    #[error("{what} exists already{hint}")]
    Exists {
        /// The record, as a SUBJECT or an id.
        what: String,
        /// What to do, starting with a separator, or empty.
        hint: String,
    },
    /// What was asked for is malformed.
    #[error("{0}")]
    Invalid(String),
    /// A rule forbids it.
    #[error("{0}")]
    Refused(String),
    /// Another writer kept winning.
    #[error("writing {what}: another writer was faster {attempts} times; look at its history and try again")]
    LostRace {
        /// The record.
        what: String,
        /// Attempts made.
        attempts: u32,
    },
    /// A record exists and cannot be understood, and something rests on it.
    #[error("{what} is unreadable ({why}); restore it or use a build that understands it, until then this is refused")]
    Unreadable {
        /// Collection and key.
        what: String,
        /// Why it cannot be read.
        why: String,
    },
    /// The store ignores put-if-absent.
    #[error(
        "{store} does not keep put-if-absent: {what}; Squire writes nothing there, because two writers would overwrite \
         each other unnoticed. Use a store that honours `If-None-Match: *` on every put"
    )]
    LyingStore {
        /// The bucket or directory.
        store: String,
        /// What was observed.
        what: String,
    },
}

impl Error {
    /// The kind of trouble, for exit codes and retries.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Store { source, .. } => store_kind(source),
            Self::InDoubt { .. } => Kind::Transient,
            Self::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => Kind::NotFound,
                std::io::ErrorKind::Interrupted | std::io::ErrorKind::TimedOut => Kind::Transient,
                _ => Kind::Permanent,
            },
            Self::NoRegistry { .. } | Self::Missing { .. } => Kind::NotFound,
            Self::TwoRegistries { .. } | Self::Invalid(_) => Kind::Invalid,
            Self::OtherEstate { .. } | Self::Refused(_) => Kind::Refused,
            Self::Exists { .. } | Self::LostRace { .. } => Kind::Conflict,
            Self::Unreadable { .. } | Self::TooNew { .. } => Kind::Damaged,
            Self::LyingStore { .. } => Kind::LyingStore,
        }
    }

    pub(crate) fn store(doing: impl Into<String>, source: object_store::Error) -> Self {
        Self::Store { doing: doing.into(), source }
    }

    pub(crate) fn io(doing: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { doing: doing.into(), source }
    }
}

fn store_kind(source: &object_store::Error) -> Kind {
    use object_store::Error as E;
    match source {
        E::NotFound { .. } => Kind::NotFound,
        E::AlreadyExists { .. } | E::Precondition { .. } => Kind::Conflict,
        E::PermissionDenied { .. }
        | E::Unauthenticated { .. }
        | E::NotSupported { .. }
        | E::NotImplemented { .. }
        | E::InvalidPath { .. }
        | E::UnknownConfigurationKey { .. } => Kind::Permanent,
        _ => Kind::Transient,
    }
}
