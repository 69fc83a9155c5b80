//! What every Squire binary shares: configuration, the command line's common part, telemetry,
//! the report and plan-file models with their renderers, the bus, schedules and their clock, the HTTP face, progress bars, shutdown and
//! the clock.
//!
//! This crate knows nothing of Lance and nothing of registry records. The two sections of the
//! configuration whose keys belong to the registry (`[policy]` and `[floors]`) are type
//! parameters of [`config::Config`]; the binaries fill them in.

pub mod admission;
mod allocator;
pub mod bus;
pub mod cli;
pub mod clock;
pub mod config;
pub mod http;
pub mod human;
pub mod planfile;
pub mod progress;
pub mod report;
pub mod schedule;
pub mod shutdown;
pub mod telemetry;
pub mod ticker;

/// Version of Squire, as `--version`, reports and `squire_build_info` state it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Version of the Lance library that this workspace is pinned to.
///
/// Stated here and not asked from Lance, because this crate must not depend on it; a test
/// compares it with the workspace's manifest.
pub const LANCE_VERSION: &str = "14.0.2";

/// Source revision the binary was built from (`BUILD_REVISION` in the environment of the build), or `unknown`.
pub const REVISION: &str = match option_env!("BUILD_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};
