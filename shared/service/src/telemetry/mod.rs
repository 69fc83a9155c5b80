//! Logs to standard error, metrics, and the bridge for the metrics that Lance reports itself.

mod bridge;
mod false_alarm;
mod metrics;
mod process;

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

pub use bridge::StoreMetrics;
pub use metrics::{FleetGauges, INDEX_TYPES, Metrics, index_type};
pub use process::{peak_rss_bytes, resident_bytes, with_full_store_labels};

use crate::cli::{Common, LogFormat};
use crate::progress::LogWriter;
use false_alarm::FalseAlarm;

/// How a process logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// A command by hand: warnings and errors, unless `-v`.
    Command,
    /// A daemon: what it does, too.
    Daemon,
}

/// Starts logging to standard error, in the format and detail that the arguments ask for.
/// `RUST_LOG` overrides the detail; `NO_COLOR` is honoured.
///
/// # Errors
/// When logging was started before.
pub fn init_logs(common: &Common, audience: Audience) -> Result<(), TryInitError> {
    let registry = tracing_subscriber::registry().with(filter(common, audience)).with(FalseAlarm);
    match common.log_format {
        LogFormat::Json => {
            let layer = tracing_subscriber::fmt::layer().json().flatten_event(true);
            registry.with(layer.with_writer(LogWriter)).try_init()
        }
        LogFormat::Human => {
            let layer = tracing_subscriber::fmt::layer().with_target(common.verbose > 1).with_ansi(colors());
            registry.with(layer.with_writer(LogWriter)).try_init()
        }
    }
}

/// Whether standard error takes colours: a terminal, and `NO_COLOR` is unset or empty.
pub fn colors() -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    !forbidden && io::stderr().is_terminal()
}

fn filter(common: &Common, audience: Audience) -> EnvFilter {
    if let Ok(filter) = EnvFilter::try_from_default_env() {
        return filter;
    }
    let ours = |level: &str| {
        let crates = [
            "squire_service",
            "squire_registry",
            "squire_lake",
            "squire_maintenance",
            "squire_reconcile",
            "squire_index_build",
        ];
        crates.map(|c| format!("{c}={level}")).join(",")
    };
    let directives = match (common.quiet, common.verbose, audience) {
        (true, ..) => "error".to_owned(),
        (_, 0, Audience::Command) => "warn".to_owned(),
        (_, 0, Audience::Daemon) | (_, 1, Audience::Command) => format!("warn,{}", ours("info")),
        (_, 1, Audience::Daemon) | (_, 2, _) => format!("warn,{}", ours("debug")),
        (_, 3, _) => format!("info,{}", ours("trace")),
        _ => "debug".to_owned(),
    };
    EnvFilter::new(directives)
}
