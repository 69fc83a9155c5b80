//! Stopping: the first signal asks for a clean stop (the commit in flight is finished), the
//! second ends the process at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio_util::sync::CancellationToken;

use crate::cli::Exit;

/// A request to stop, shared by everything that works. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
    /// Exit code of the signal that came first; 0 while none came.
    code: Arc<AtomicU8>,
}

/// The signals that stop a process cleanly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Signal {
    fn exit(self) -> Exit {
        match self {
            Self::Interrupt => Exit::Interrupted,
            Self::Terminate => Exit::Terminated,
        }
    }
}

impl Shutdown {
    /// A shutdown that listens to no signal; tests and inner parts [`request`](Self::request) it.
    pub fn manual() -> Self {
        Self::default()
    }

    /// Listens to SIGINT and SIGTERM from now on. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// When the system refuses the handlers.
    pub fn install() -> io::Result<Self> {
        let shutdown = Self::default();
        let mut signals = Signals::new()?;
        let shared = shutdown.clone();
        tokio::spawn(async move {
            loop {
                let signal = signals.next().await;
                if !shared.request(signal) {
                    // Asked twice: nobody waits for the commit any more.
                    std::process::exit(i32::from(signal.exit().code()));
                }
                eprintln_quietly("stopping: finishing what is being committed; once more ends at once");
            }
        });
        Ok(shutdown)
    }

    /// Asks for a stop; `false` when it was asked for before.
    pub fn request(&self, signal: Signal) -> bool {
        let first = self.code.compare_exchange(0, signal.exit().code(), Ordering::SeqCst, Ordering::SeqCst).is_ok();
        self.token.cancel();
        first
    }

    /// Whether a stop was asked for. Checked before every commit and every chunk of deletes.
    pub fn is_requested(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until a stop is asked for.
    pub async fn requested(&self) {
        self.token.cancelled().await;
    }

    /// The token, for code that selects on it.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// The exit code of a stop, once one was asked for.
    pub fn exit(&self) -> Option<Exit> {
        match self.code.load(Ordering::SeqCst) {
            130 => Some(Exit::Interrupted),
            143 => Some(Exit::Terminated),
            _ => None,
        }
    }
}

fn eprintln_quietly(line: &str) {
    use std::io::Write;
    crate::progress::suspended(|| {
        let _ = writeln!(io::stderr().lock(), "{line}");
    });
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> Signal {
        // Without a handler nothing ever arrives.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        Signal::Interrupt
    }
}
