//! What can be wrong with a configuration.

use std::fmt;
use std::path::PathBuf;

use super::Source;

/// One thing that is wrong: where it was written, which key, what, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// Where the value came from.
    pub source: Source,
    /// The key, dotted, or the name as it was written where it is no key.
    pub key: String,
    /// What is wrong with it. Never holds a secret's value.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`: {}", self.source, self.key, self.what)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// Kinds of [`ConfigError`]. All of them mean exit code 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigErrorKind {
    /// The file could not be read.
    Read,
    /// The file is not TOML.
    Syntax,
    /// A key is unknown or a value is not accepted.
    Invalid,
}

/// Why a configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file named with `--config` (or found) could not be read.
    #[error(
        "cannot read the configuration {file}: {source}; name an existing file with --config, \
         or - for standard input", file = file.display()
    )]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not valid TOML.
    #[error("{origin} is not valid TOML: {message}")]
    Syntax {
        /// The file, or `standard input`.
        origin: Source,
        /// Line, column and what was expected.
        message: String,
    },
    /// Keys or values that are not accepted; never empty.
    #[error("{}", list(issues))]
    Invalid {
        /// All that was found wrong, in the order found.
        issues: Vec<Issue>,
    },
}

impl ConfigError {
    /// What kind of error this is.
    pub fn kind(&self) -> ConfigErrorKind {
        match self {
            Self::Read { .. } => ConfigErrorKind::Read,
            Self::Syntax { .. } => ConfigErrorKind::Syntax,
            Self::Invalid { .. } => ConfigErrorKind::Invalid,
        }
    }

    /// The single things that are wrong; empty unless the kind is `Invalid`.
    pub fn issues(&self) -> &[Issue] {
        match self {
            Self::Invalid { issues } => issues,
            _ => &[],
        }
    }
}

fn list(issues: &[Issue]) -> String {
    let lines: Vec<String> = issues.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
