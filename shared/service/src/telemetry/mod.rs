//! Logs to standard error, traces, metrics, and the bridge for the metrics that Lance reports itself.

mod bridge;
mod false_alarm;
mod metrics;
mod process;
mod traces;

use std::io::{self, IsTerminal};

use tracing::Level;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer as _};

pub use bridge::StoreMetrics;
pub use metrics::{FleetGauges, INDEX_TYPES, Metrics, index_type};
pub use process::{peak_rss_bytes, resident_bytes, with_full_store_labels};
pub use traces::{TracesError, flush, follow, traceparent};

use crate::cli::{Common, LogFormat};
use crate::config::Tracing;
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

/// Why logs or traces were not started.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// Logging was started before.
    #[error(transparent)]
    Logs(#[from] TryInitError),
    /// The exporter of traces cannot be made.
    #[error(transparent)]
    Traces(#[from] TracesError),
}

/// Starts logging to standard error, in the format and detail that the arguments ask for, and traces where the configuration
/// names a collector; [`flush`] sends the last ones. `RUST_LOG` overrides the detail of the logs; `NO_COLOR` is honoured.
///
/// # Errors
/// When logging was started before, or the exporter cannot be made.
pub fn init(common: &Common, audience: Audience, tracing: &Tracing, program: &str) -> Result<(), InitError> {
    let tracer = traces::start(tracing, program)?;
    // Ours, whatever the level of the logs: a quiet process is traced all the same. Spans of detail are at `debug`, so that
    // they do not lengthen every line of the log.
    let spans = FilterFn::new(|what| {
        let least = if what.is_span() { Level::DEBUG } else { Level::INFO };
        *what.level() <= least && OURS.iter().any(|name| what.target().starts_with(name))
    });
    let traces = tracer.map(|t| {
        let layer = tracing_opentelemetry::layer().with_tracer(t).with_location(false).with_threads(false);
        layer.with_tracked_inactivity(false).with_filter(spans)
    });
    let registry = tracing_subscriber::registry().with(traces).with(FalseAlarm);
    let filter = filter(common, audience);
    match common.log_format {
        LogFormat::Json => {
            let layer = tracing_subscriber::fmt::layer().json().flatten_event(true);
            registry.with(layer.with_writer(LogWriter).with_filter(filter)).try_init()?;
        }
        LogFormat::Human => {
            let layer = tracing_subscriber::fmt::layer().with_target(common.verbose > 1).with_ansi(colors());
            registry.with(layer.with_writer(LogWriter).with_filter(filter)).try_init()?;
        }
    }
    Ok(())
}

/// As [`init`], without traces.
///
/// # Errors
/// When logging was started before.
pub fn init_logs(common: &Common, audience: Audience) -> Result<(), InitError> {
    init(common, audience, &Tracing::default(), "")
}

/// Whether standard error takes colours: a terminal, and `NO_COLOR` is unset or empty.
pub fn colors() -> bool {
    let forbidden = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    !forbidden && io::stderr().is_terminal()
}

/// The crates whose detail the arguments choose.
const OURS: [&str; 6] = [
    "squire_service",
    "squire_registry",
    "squire_lake",
    "squire_maintenance",
    "squire_reconcile",
    "squire_index_build",
];

fn filter(common: &Common, audience: Audience) -> EnvFilter {
    if let Ok(filter) = EnvFilter::try_from_default_env() {
        return filter;
    }
    let ours = |level: &str| OURS.map(|c| format!("{c}={level}")).join(",");
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
