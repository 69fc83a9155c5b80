//! The arguments of FACES' verbs.

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use clap::{Parser, Subcommand};
use squire_service::cli::{Common, CompletionArgs, Failure};
use squire_service::human;

use crate::estate::PolicyFlags;
use crate::plan::Steps;

#[derive(Parser)]
#[command(
    name = "squire-maintenance",
    version,
    about = "Keeps Lance datasets in shape: merges fragments, folds rows into indices, removes old versions.",
    after_help = "Examples:\n  squire-maintenance demo ./lake\n  squire-maintenance plan ./lake\n  squire-maintenance sweep ./lake"
)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(subcommand)]
    pub(super) verb: Option<Verb>,
}

#[derive(Subcommand)]
pub(super) enum Verb {
    /// Says what a sweep would do. Writes nothing.
    #[command(after_help = "Example: squire-maintenance plan ./lake --out lake.plan.json")]
    Plan(PlanArgs),
    /// Shows a plan file. Writes nothing.
    #[command(after_help = "Example: squire-maintenance show lake.plan.json")]
    Show {
        /// The plan file.
        plan: PathBuf,
    },
    /// Does what is in a plan file, and nothing else.
    #[command(after_help = "Example: squire-maintenance apply lake.plan.json")]
    Apply {
        /// The plan file.
        plan: PathBuf,
        /// Only these datasets of it.
        #[arg(long = "dataset", value_name = "X")]
        datasets: Vec<String>,
    },
    /// Plans and applies one pass over every dataset.
    #[command(after_help = "Example: squire-maintenance sweep s3://bucket/lake --due --yes")]
    Sweep(SweepArgs),
    /// Explains one dataset: what governs it, what holds it, what would be done.
    #[command(after_help = "Example: squire-maintenance why ./lake/acme-silver/orders")]
    Why {
        /// A dataset: URI, path or SUBJECT.
        dataset: String,
    },
    /// Who changed or deleted what on one dataset, when, under which policy.
    #[command(after_help = "Example: squire-maintenance history ./lake/acme-silver/orders --version 7")]
    History {
        /// A dataset: URI, path or SUBJECT.
        dataset: String,
        /// Only what concerns this version.
        #[arg(long, value_name = "N")]
        version: Option<u64>,
    },
    /// The runs of this estate.
    #[command(after_help = "Example: squire-maintenance runs list")]
    Runs {
        #[command(subcommand)]
        verb: RunsVerb,
    },
    /// Runs for ever: driven by the clock and by change events, shared by any number of replicas on one bus.
    #[command(after_help = "Example: squire-maintenance serve --config squire.toml")]
    Serve,
    /// Sends the message that starts a sweep or a reconcile run.
    #[command(after_help = "Example: squire-maintenance tick maintenance")]
    Tick {
        /// `maintenance` or `reconcile`.
        job: String,
        /// Only this dataset.
        #[arg(long, value_name = "X")]
        dataset: Option<String>,
    },
    /// Shows the effective config with the source of each value.
    #[command(after_help = "Example: squire-maintenance config show")]
    Config {
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Writes a messy demo lake into an empty directory.
    #[command(after_help = "Example: squire-maintenance demo ./lake")]
    Demo {
        /// The directory: empty, or not there yet.
        dir: PathBuf,
    },
    /// Prints the completion script of a shell.
    #[command(after_help = "Example: squire-maintenance completion bash")]
    Completion(CompletionArgs),
}

#[derive(Subcommand)]
pub(super) enum ConfigVerb {
    /// Every key, its value and where it comes from.
    Show,
}

#[derive(Subcommand)]
pub(super) enum RunsVerb {
    /// The newest first.
    List {
        /// Directories or URIs whose registry is meant.
        roots: Vec<String>,
    },
    /// One run with all its datasets.
    Show {
        /// The run's id.
        run: uuid::Uuid,
        /// Directories or URIs whose registry is meant.
        roots: Vec<String>,
    },
}

#[derive(clap::Args)]
pub(super) struct PlanArgs {
    /// Directories or URIs; a dataset is one too.
    pub(super) roots: Vec<String>,
    /// Only these datasets: a URI, a SUBJECT or a displayed name.
    #[arg(long = "dataset", value_name = "X")]
    pub(super) datasets: Vec<String>,
    /// Only what the clock would start, within its budgets.
    #[arg(long)]
    pub(super) due: bool,
    /// As if it were then (RFC 3339).
    #[arg(long, value_name = "TIME")]
    pub(super) at: Option<DateTime<Utc>>,
    /// Writes the plan to a file for `apply`.
    #[arg(long, value_name = "PLAN")]
    pub(super) out: Option<PathBuf>,
    /// Exit 4 when nothing is wrong and the plan is not empty.
    #[arg(long)]
    pub(super) detailed_exitcode: bool,
    #[command(flatten)]
    pub(super) bounds: Bounds,
}

#[derive(clap::Args)]
pub(super) struct SweepArgs {
    /// Directories or URIs; a dataset is one too.
    pub(super) roots: Vec<String>,
    /// Only these datasets: a URI, a SUBJECT or a displayed name.
    #[arg(long = "dataset", value_name = "X")]
    pub(super) datasets: Vec<String>,
    /// Only what the clock would start, within its budgets: what cron calls.
    #[arg(long)]
    pub(super) due: bool,
    /// Does not ask.
    #[arg(long, short = 'y')]
    pub(super) yes: bool,
    /// At most this many datasets.
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<usize>,
    #[command(flatten)]
    pub(super) bounds: Bounds,
}

#[derive(clap::Args, Default)]
pub(super) struct Bounds {
    /// Only these steps: compact, optimize_indices, cleanup.
    #[arg(long, value_delimiter = ',', value_name = "STEPS")]
    pub(super) steps: Vec<String>,
    /// How long a version stays after it was replaced.
    #[arg(long, value_name = "D", value_parser = human::parse_duration)]
    pub(super) retention: Option<std::time::Duration>,
    /// Versions that stay at least, of those that Squire did not make.
    #[arg(long, value_name = "N")]
    pub(super) retain_versions: Option<u32>,
    /// Bytes that one pass may rewrite.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(super) max_rewrite: Option<u64>,
}

fn size(text: &str) -> Result<u64, String> {
    human::parse_size(text).map(|s| s.as_u64())
}

impl Bounds {
    pub(super) fn steps(&self) -> anyhow::Result<Steps> {
        if self.steps.is_empty() {
            return Ok(Steps::ALL);
        }
        let mut out = Steps { compact: false, optimize_indices: false, cleanup: false };
        for step in &self.steps {
            match step.as_str() {
                "compact" => out.compact = true,
                "optimize_indices" => out.optimize_indices = true,
                "cleanup" => out.cleanup = true,
                other => {
                    return Err(Failure::usage(format!("--steps {other}: no such step"))
                        .remedy("write a list of compact, optimize_indices, cleanup")
                        .into());
                }
            }
        }
        Ok(out)
    }

    pub(super) fn flags(&self) -> PolicyFlags {
        PolicyFlags { retention: self.retention, retain_versions: self.retain_versions }
    }
}
