//! What can go wrong on the bus, and what kind of trouble it is.

/// Result of the bus.
pub type Result<T, E = BusError> = std::result::Result<T, E>;

/// What a caller should do about a [`BusError`]; callers decide on this, never on text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum BusErrorKind {
    /// Worth trying again later: the server is away, a leader is being elected, an answer was lost.
    Transient,
    /// Trying again does not help before somebody changes something: credentials, a certificate, the server's version,
    /// permissions, a stream that is somebody else's.
    Permanent,
    /// What was asked for is malformed (exit 2 where a person asked).
    Invalid,
    /// The thing named does not exist.
    NotFound,
}

/// An error of the bus. Every message says what was being done, to what, and what to do next. None holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// The configuration cannot be used.
    #[error("[bus] {key}: {what}; {remedy}")]
    Config {
        /// The key below `[bus]`.
        key: &'static str,
        /// What is wrong.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// No connection could be made.
    #[error("connecting to NATS at {url}: {why}; {remedy}")]
    Connect {
        /// The servers, without user and password.
        url: String,
        /// What happened.
        why: String,
        /// What to do.
        remedy: &'static str,
        /// Whether trying again can help.
        transient: bool,
    },
    /// The server lacks something that the streams rest on.
    #[error(
        "the NATS server at {url} is version {version}, and {what} needs {needed} or later; upgrade the server, or set \
         bus.kind = \"embedded\""
    )]
    TooOld {
        /// The servers, without user and password.
        url: String,
        /// The server's version.
        version: String,
        /// The lowest version that would do.
        needed: String,
        /// What needs it.
        what: String,
    },
    /// A stream of this name belongs to another estate.
    #[error(
        "the stream {stream} belongs to estate {theirs}, and this is estate {ours}; give one of them another name, another \
         NATS account, or delete the SQUIRE streams of an estate that is gone"
    )]
    OtherEstate {
        /// The stream.
        stream: String,
        /// The estate that made it.
        theirs: String,
        /// This one.
        ours: String,
    },
    /// A stream exists with settings that cannot be changed into ours.
    #[error("the stream {stream} has {what}; delete it (what it holds is lost) or give the estate another name")]
    Unfit {
        /// The stream.
        stream: String,
        /// The setting.
        what: String,
    },
    /// The connection is down; the client reconnects by itself.
    #[error("{doing}: the connection to NATS is down; it is tried again, see that the server runs")]
    Disconnected {
        /// What was being done, and to what.
        doing: String,
    },
    /// The server said no, or nothing.
    #[error("{doing}: {why}")]
    Request {
        /// What was being done, and to what.
        doing: String,
        /// What was answered.
        why: String,
        /// Whether trying again can help.
        transient: bool,
    },
    /// A message that the server would not take.
    #[error("{doing}: the message has {bytes} bytes and the limit is {limit}; raise max_payload of the server")]
    TooLarge {
        /// What was being done, and to what.
        doing: String,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Something that cannot be sent as it is.
    #[error("{0}")]
    Invalid(String),
    /// Something named does not exist.
    #[error("{what} does not exist; list what does with `dead list`")]
    NotFound {
        /// What.
        what: String,
    },
}

impl BusError {
    /// The kind of trouble, for exit codes and retries.
    pub fn kind(&self) -> BusErrorKind {
        match self {
            Self::Connect { transient: true, .. }
            | Self::Request { transient: true, .. }
            | Self::Disconnected { .. } => BusErrorKind::Transient,
            Self::Connect { .. }
            | Self::Request { .. }
            | Self::TooOld { .. }
            | Self::OtherEstate { .. }
            | Self::Unfit { .. } => BusErrorKind::Permanent,
            Self::Config { .. } | Self::TooLarge { .. } | Self::Invalid(_) => BusErrorKind::Invalid,
            Self::NotFound { .. } => BusErrorKind::NotFound,
        }
    }

    /// Whether trying again later can help.
    pub fn is_transient(&self) -> bool {
        self.kind() == BusErrorKind::Transient
    }

    pub(super) fn request(doing: impl Into<String>, why: impl std::fmt::Display, transient: bool) -> Self {
        Self::Request { doing: doing.into(), why: why.to_string(), transient }
    }
}
