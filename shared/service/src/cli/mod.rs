//! The part of the command line that all binaries share, exit codes, and how errors are told.

mod args;
mod error;
mod exit;

pub use args::{Common, CompletionArgs, LogFormat, OutputFormat, completion};
pub use error::{Failure, print_error, report_error};
pub use exit::Exit;

use std::io::{self, Write};

/// What a thread may have on its stack. The futures of a pass over Lance are deep: with tokio's 2 MiB an unoptimised build ran out.
/// Only what is touched is memory.
const STACK: usize = 16 << 20;

/// The runtime of a program.
///
/// # Errors
/// The system gives no threads.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().thread_stack_size(STACK).build()
}

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
