//! The command line: the verbs of the contract, configuration and completion.

mod reclaim;

use clap::{Parser, Subcommand};
use squire_registry::{Floors, Policy};
use squire_service::cli::{self, Common, CompletionArgs, Exit, Failure};
use squire_service::config::{Config, Loaded, Problem};
use squire_service::telemetry::{self, Audience, Metrics};

use reclaim::Reclaim;

/// Default port of `[http] listen`.
const PORT: u16 = 9465;

/// Says where the registry, the catalogue and the buckets disagree, and reclaims what nobody
/// references any more.
///
/// A ROOT is a directory or URI (./lake, s3://bucket/prefix), or one dataset.
#[derive(Debug, Parser)]
#[command(name = "squire-reconcile", version, arg_required_else_help = true)]
#[command(
    after_help = "Examples:\n  squire-reconcile report ./lake\n  squire-reconcile reclaim plan ./lake --out reclaim.json\n  squire-reconcile config show"
)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Findings about storage, registry, namespaces and contracts; writes nothing
    #[command(after_help = "Example:\n  squire-reconcile report ./lake --html drift.html")]
    Report {
        /// Directories, URIs or datasets
        roots: Vec<String>,
        /// Only this dataset: a URI, a SUBJECT or a displayed name
        #[arg(long, value_name = "X")]
        dataset: Vec<String>,
        /// Leaves out the search for files that nobody names
        #[arg(long)]
        no_orphans: bool,
    },
    /// Moves to quarantine what nobody references, by a plan
    #[command(subcommand_required = true, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  squire-reconcile reclaim plan ./lake --out reclaim.json")]
    Reclaim {
        #[command(subcommand)]
        verb: Reclaim,
    },
    /// Runs as a daemon, by its schedule
    #[command(after_help = "Example:\n  squire-reconcile serve --config squire.toml")]
    Serve,
    /// Shows the effective configuration and where each value came from
    #[command(subcommand_required = true, arg_required_else_help = true)]
    #[command(after_help = "Example:\n  squire-reconcile config show -o json")]
    Config {
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Prints a completion script
    #[command(after_help = "Example:\n  squire-reconcile completion bash > /etc/bash_completion.d/squire-reconcile")]
    Completion(CompletionArgs),
}

#[derive(Debug, Subcommand)]
enum ConfigVerb {
    /// Every key, its value and its source
    #[command(after_help = "Example:\n  squire-reconcile config show --set limits.memory=2GiB")]
    Show,
}

/// Runs the command.
pub(crate) fn main() -> Exit {
    telemetry::with_full_store_labels();
    let cli = Cli::parse();
    let exit = run(&cli).unwrap_or_else(|error| cli::report_error(&error, cli.common.is_verbose()));
    telemetry::flush();
    exit
}

fn run(cli: &Cli) -> anyhow::Result<Exit> {
    if let Some(Verb::Completion(args)) = &cli.verb {
        cli::print_stdout(&cli::completion::<Cli>(args.shell))?;
        return Ok(Exit::Ok);
    }
    let audience = if matches!(cli.verb, Some(Verb::Serve)) { Audience::Daemon } else { Audience::Command };
    let loaded = cli.common.loader::<Policy, Floors>(PORT).validate(problems).load()?;
    telemetry::init(&cli.common, audience, &loaded.config.tracing, "squire-reconcile")?;
    let metrics = Metrics::install();
    squire_registry::observe_requests(metrics.request_counter());
    if cli.common.check_config {
        cli::print_stdout(&loaded.checked_text())?;
        return Ok(Exit::Ok);
    }
    let verb = match &cli.verb {
        Some(Verb::Report { roots, dataset, no_orphans }) => {
            let runtime = cli::runtime()?;
            return runtime.block_on(report(cli, &loaded, &metrics, (roots, dataset), !no_orphans));
        }
        Some(Verb::Reclaim { verb }) => {
            let runtime = cli::runtime()?;
            return runtime.block_on(reclaim::run(verb, &cli.common, &loaded, &metrics));
        }
        Some(Verb::Serve) => {
            let runtime = cli::runtime()?;
            let command = squire_service::config::redact_command(std::env::args());
            return runtime.block_on(crate::serve::run(loaded, metrics, command));
        }
        Some(Verb::Config { verb: ConfigVerb::Show }) => {
            loaded.print(cli.common.output)?;
            return Ok(Exit::Ok);
        }
        None => {
            let failure = Failure::usage("no verb was given");
            return Err(failure.remedy("name one, see squire-reconcile --help").into());
        }
        Some(verb) => verb.name(),
    };
    Err(Failure::could_not_run(format!("`{verb}` is not built yet: see docs/status.md")).into())
}

/// `report`: a walk, its findings, and nothing written.
async fn report(
    cli: &Cli,
    config: &Loaded<Policy, Floors>,
    metrics: &Metrics,
    (roots, datasets): (&[String], &[String]),
    orphans: bool,
) -> anyhow::Result<Exit> {
    let rows = crate::row::Rows { orphans };
    let walk = crate::walk::walk(config, roots, datasets, orphans, &rows).await?;
    if let Some(root) = walk.scope.empty.first() {
        return Err(Failure::could_not_run(format!("empty_scan: {root} does not exist or holds no Lance dataset"))
            .remedy("check the path; a dataset is a directory with _versions/ in it")
            .into());
    }
    if walk.places.is_empty() && !datasets.is_empty() {
        return Err(Failure::usage(format!("--dataset {}: no such dataset", datasets.join(", ")))
            .remedy("write its URI, its SUBJECT or its name as the report shows it")
            .into());
    }
    let command = squire_service::config::redact_command(std::env::args());
    let run = uuid::Uuid::now_v7();
    let report = crate::report::report(&walk, config, run, command, metrics.store().requests());
    report.emit(&cli.common)?;
    if let Some(path) = &cli.common.metrics_file {
        metrics.set_mode(config.config.estate.mode);
        metrics.fleet_of(&report);
        metrics.show_fleet();
        metrics.write_file(path)?;
    }
    Ok(report.exit(false))
}

fn problems(config: &Config<Policy, Floors>) -> Vec<Problem> {
    let wrong = config.policy.validate().err();
    wrong.map(|what| ("policy".to_owned(), what, String::new())).into_iter().collect()
}

impl Verb {
    fn name(&self) -> &'static str {
        match self {
            Self::Report { .. } => "report",
            Self::Reclaim { .. } => "reclaim",
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
