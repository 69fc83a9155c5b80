//! The arguments: the verbs of the contract.

use clap::{Args, Parser, Subcommand};
use squire_service::cli::{Common, CompletionArgs};
use squire_service::human;

/// Builds indices on registered tables: here and now, or by a job on the topic.
///
/// A SUBJECT names a table: table/a/b/t, or dataset/<canonical URI>.
#[derive(Debug, Parser)]
#[command(name = "squire-index-build", version, arg_required_else_help = true)]
#[command(
    after_help = "Examples:\n  squire-index-build build table/sales/orders --columns id --type BTREE\n  squire-index-build submit table/sales/orders --columns embedding --type IVF_PQ --wait\n  squire-index-build config show"
)]
pub(super) struct Cli {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(subcommand)]
    pub(super) verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Builds an index here and now, with progress
    #[command(after_help = "Example:\n  squire-index-build build table/sales/orders --columns id --type BTREE")]
    Build(Request),
    /// Asks for an index on the topic
    #[command(
        after_help = "Example:\n  squire-index-build submit table/sales/orders --columns embedding --type IVF_PQ --wait=30m"
    )]
    Submit {
        #[command(flatten)]
        request: Request,
        /// Waits until it is built, at most TIMEOUT
        #[arg(long, value_name = "TIMEOUT", num_args = 0..=1, require_equals = true, default_missing_value = "1h", value_parser = human::parse_duration)]
        wait: Option<std::time::Duration>,
    },
    /// Lists, shows or cancels jobs
    #[command(subcommand_required = true, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  squire-index-build jobs list")]
    Jobs {
        #[command(subcommand)]
        verb: Jobs,
    },
    /// Lists, shows, requeues or drops requests that were given up
    #[command(subcommand_required = true, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  squire-index-build dead list")]
    Dead {
        #[command(subcommand)]
        verb: Dead,
    },
    /// Runs as a daemon that takes jobs from the topic
    #[command(after_help = "Example:\n  squire-index-build serve --config squire.toml")]
    Serve,
    /// Shows the effective configuration and where each value came from
    #[command(subcommand_required = true, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  squire-index-build config show -o json")]
    Config {
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Prints a completion script
    #[command(
        after_help = "Example:\n  squire-index-build completion bash > /etc/bash_completion.d/squire-index-build"
    )]
    Completion(CompletionArgs),
}

/// What to build.
#[derive(Debug, Args)]
pub(super) struct Request {
    /// The table
    #[arg(value_name = "SUBJECT")]
    pub(super) subject: String,
    /// Columns, parted by commas; a name with a comma or a dot in it stands in backticks
    #[arg(long, value_name = "C", required = true)]
    pub(super) columns: Vec<String>,
    /// Type of the index, as Lance names it
    #[arg(long = "type", value_name = "T")]
    pub(super) index_type: String,
    /// Name of the index
    #[arg(long, value_name = "N")]
    pub(super) name: Option<String>,
    /// Parameters of the type, as JSON
    #[arg(long, value_name = "JSON")]
    pub(super) params: Option<String>,
    /// Replaces an index of the same name
    #[arg(long)]
    pub(super) replace: bool,
    /// Makes no definition where the rows are too few to train it
    #[arg(long, conflicts_with = "replace")]
    pub(super) train_if_possible: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum Jobs {
    /// All jobs
    #[command(after_help = "Example:\n  squire-index-build jobs list -o json")]
    List,
    /// One job
    #[command(after_help = "Example:\n  squire-index-build jobs show 01920000-0000-7000-8000-000000000000 --watch")]
    Show {
        /// The job's id
        id: String,
        /// Follows it until it ends
        #[arg(long)]
        watch: bool,
    },
    /// Takes a job back
    #[command(after_help = "Example:\n  squire-index-build jobs cancel 01920000-0000-7000-8000-000000000000")]
    Cancel {
        /// The job's id
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum Dead {
    /// All dead letters
    #[command(after_help = "Example:\n  squire-index-build dead list")]
    List,
    /// One dead letter: the original, why, how often it was tried
    #[command(after_help = "Example:\n  squire-index-build dead show 12")]
    Show {
        /// Its id
        id: String,
    },
    /// Tries it again
    #[command(after_help = "Example:\n  squire-index-build dead requeue 12")]
    Requeue {
        /// Its id
        id: String,
    },
    /// Forgets it
    #[command(after_help = "Example:\n  squire-index-build dead drop 12")]
    Drop {
        /// Its id
        id: String,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum ConfigVerb {
    /// Every key, its value and its source
    #[command(after_help = "Example:\n  squire-index-build config show --set limits.memory=2GiB")]
    Show,
}
