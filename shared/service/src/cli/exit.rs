//! Exit codes (FACES, "Commands").

use std::process::{ExitCode, Termination};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Exit {
    /// All well, also with nothing to do.
    Ok = 0,
    /// Could not run.
    CouldNotRun = 1,
    /// Usage or configuration.
    Usage = 2,
    /// Ran, and a dataset failed, something could not be read, an error finding stands, or a drop
    /// was refused, a race lost, a plan stale.
    Failed = 3,
    /// With `--detailed-exitcode`: nothing wrong and the plan is not empty.
    Pending = 4,
    /// Stopped by SIGINT after a clean stop.
    Interrupted = 130,
    /// Stopped by SIGTERM after a clean stop.
    Terminated = 143,
}

impl Exit {
    /// The number.
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

impl Termination for Exit {
    fn report(self) -> ExitCode {
        self.into()
    }
}
