//! The command line: the verbs of the contract, configuration and completion.

use clap::{Args, Parser, Subcommand};
use squire_registry::{Floors, Policy};
use squire_service::cli::{self, Common, CompletionArgs, Exit, Failure};
use squire_service::config::{Config, Problem};
use squire_service::human;
use squire_service::telemetry::{self, Audience};

/// Default port of `[http] listen`.
const PORT: u16 = 9466;

/// Builds indices on registered tables: here and now, or by a job on the topic.
///
/// A SUBJECT names a table: table/a/b/t, or dataset/<canonical URI>.
#[derive(Debug, Parser)]
#[command(name = "squire-index-build", version, arg_required_else_help = true)]
#[command(
    after_help = "Examples:\n  squire-index-build build table/sales/orders --columns id --type BTREE\n  squire-index-build submit table/sales/orders --columns embedding --type IVF_PQ --wait\n  squire-index-build config show"
)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
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
    /// Runs as a daemon, by its schedule
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
struct Request {
    /// The table
    #[arg(value_name = "SUBJECT")]
    subject: String,
    /// Columns, parted by commas
    #[arg(long, value_name = "C", value_delimiter = ',', required = true)]
    columns: Vec<String>,
    /// Type of the index, as Lance names it
    #[arg(long = "type", value_name = "T")]
    index_type: String,
    /// Name of the index
    #[arg(long, value_name = "N")]
    name: Option<String>,
    /// Parameters of the type, as JSON
    #[arg(long, value_name = "JSON")]
    params: Option<String>,
    /// Replaces an index of the same name
    #[arg(long)]
    replace: bool,
}

#[derive(Debug, Subcommand)]
enum Jobs {
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
enum Dead {
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
enum ConfigVerb {
    /// Every key, its value and its source
    #[command(after_help = "Example:\n  squire-index-build config show --set limits.memory=2GiB")]
    Show,
}

/// Runs the command.
pub(crate) fn main() -> Exit {
    let cli = Cli::parse();
    run(&cli).unwrap_or_else(|error| cli::report_error(&error, cli.common.is_verbose()))
}

fn run(cli: &Cli) -> anyhow::Result<Exit> {
    if let Some(Verb::Completion(args)) = &cli.verb {
        cli::print_stdout(&cli::completion::<Cli>(args.shell))?;
        return Ok(Exit::Ok);
    }
    telemetry::init_logs(&cli.common, Audience::Command)?;
    let loaded = cli.common.loader::<Policy, Floors>(PORT).validate(problems).load()?;
    if cli.common.check_config {
        cli::print_stdout(&loaded.checked_text())?;
        return Ok(Exit::Ok);
    }
    let verb = match &cli.verb {
        Some(Verb::Config { verb: ConfigVerb::Show }) => {
            loaded.print(cli.common.output)?;
            return Ok(Exit::Ok);
        }
        None => {
            let failure = Failure::usage("no verb was given");
            return Err(failure.remedy("name one, see squire-index-build --help").into());
        }
        Some(verb) => verb.name(),
    };
    Err(Failure::could_not_run(format!("`{verb}` is not built yet: see docs/status.md")).into())
}

fn problems(config: &Config<Policy, Floors>) -> Vec<Problem> {
    let wrong = config.policy.validate().err();
    wrong.map(|what| ("policy".to_owned(), what, String::new())).into_iter().collect()
}

impl Verb {
    fn name(&self) -> &'static str {
        match self {
            Self::Build(_) => "build",
            Self::Submit { .. } => "submit",
            Self::Jobs { verb } => match verb {
                Jobs::List => "jobs list",
                Jobs::Show { .. } => "jobs show",
                Jobs::Cancel { .. } => "jobs cancel",
            },
            Self::Dead { verb } => match verb {
                Dead::List => "dead list",
                Dead::Show { .. } => "dead show",
                Dead::Requeue { .. } => "dead requeue",
                Dead::Drop { .. } => "dead drop",
            },
            Self::Serve => "serve",
            Self::Config { .. } => "config",
            Self::Completion(_) => "completion",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
