//! How errors are told: what, where, what to do; the chain of causes with `-v`.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};

use super::Exit;
use crate::config::ConfigError;
use crate::planfile::PlanError;

/// An error of a command that knows its exit code and what to do about it.
///
/// The binaries make one where they know better than the error itself which exit code it means;
/// [`report_error`] finds it anywhere in a chain of causes.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    what: String,
    remedy: Option<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    /// Exit code 2: usage or configuration.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what)
    }

    /// Exit code 1: could not run.
    pub fn could_not_run(what: impl Into<String>) -> Self {
        Self::new(Exit::CouldNotRun, what)
    }

    /// Exit code 3: refused, a lost race, a stale plan.
    pub fn refused(what: impl Into<String>) -> Self {
        Self::new(Exit::Failed, what)
    }

    /// Any exit code.
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), remedy: None, source: None }
    }

    /// Adds what to do.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds the cause.
    pub fn caused_by(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The exit code.
    pub fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|e| e as &(dyn Error + 'static))
    }
}

/// Writes `error` to standard error and says which exit code it means: that of a [`Failure`] in
/// its chain, 2 for a configuration or plan file, else 1.
pub fn report_error(error: &anyhow::Error, verbose: bool) -> Exit {
    let mut text = Vec::new();
    let exit = print_error(&mut text, error, verbose);
    // Nothing can be told when standard error is gone.
    let _ = io::stderr().lock().write_all(&text);
    exit
}

/// As [`report_error`], to any writer.
pub fn print_error(out: &mut impl Write, error: &anyhow::Error, verbose: bool) -> Exit {
    let mut exit = Exit::CouldNotRun;
    let mut remedy = None;
    for cause in error.chain() {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            exit = failure.exit;
            remedy = failure.remedy.clone();
            break;
        }
        if cause.is::<ConfigError>() || cause.is::<PlanError>() {
            exit = Exit::Usage;
            break;
        }
    }
    let mut lines = vec![format!("error: {error}")];
    let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
    if verbose {
        lines.extend(causes.iter().map(|cause| format!("  caused by: {cause}")));
    } else if let Some(cause) = causes.first().filter(|c| !lines[0].contains(c.as_str())) {
        // One cause is nearly always what a reader needs; the rest comes with -v.
        lines.push(format!("  because: {cause}"));
    }
    if let Some(remedy) = remedy {
        lines.push(format!("  to do: {remedy}"));
    }
    if !verbose && causes.len() > 1 {
        lines.push("  (-v shows all causes)".to_owned());
    }
    let text: String = lines.iter().map(|l| format!("{}\n", crate::report::clean_lines(l))).collect();
    let _ = out.write_all(text.as_bytes());
    exit
}
