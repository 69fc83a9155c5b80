//! The part of the command line that all binaries share, exit codes, and how errors are told.

mod args;
mod error;
mod exit;

pub use args::{Common, CompletionArgs, LogFormat, OutputFormat, completion};
pub use error::{Failure, print_error, report_error};
pub use exit::Exit;

use std::io::{self, Write};

/// Writes to standard output. A reader that went away (`… | head`) is not an error.
///
/// # Errors
/// When the output cannot be written for another reason.
pub fn print_stdout(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
