//! `squire-registry`: the admin command over an estate's records.

// Lance's futures nest deeply; the layout of ours contains theirs.
#![recursion_limit = "256"]

mod args;
mod catalog;
mod context;
mod contract;
mod drops;
mod events;
mod govern;
mod hierarchy;
mod output;
mod own;
mod portable;
mod records;

use clap::Parser;
use squire_service::cli::{Exit, Failure, completion, print_stdout, report_error};
use squire_service::telemetry::{self, Audience};

use crate::args::{Cli, Verb};
use crate::context::Context;

fn main() -> Exit {
    // clap ends the process with 2 for usage and 0 for --help and --version, as FACES has it.
    let cli = Cli::parse();
    let verbose = cli.common.is_verbose();
    let ended = telemetry::init_logs(&cli.common, Audience::Command).map_err(anyhow::Error::from).and_then(|()| {
        let runtime = squire_service::cli::runtime()?;
        runtime.block_on(run(cli))
    });
    ended.unwrap_or_else(|error| report_error(&error, verbose))
}

async fn run(cli: Cli) -> anyhow::Result<Exit> {
    if let Some(Verb::Completion(args)) = &cli.verb {
        print_stdout(&completion::<Cli>(args.shell))?;
        return Ok(Exit::Ok);
    }
    let check_config = cli.common.check_config;
    let context = Context::load(cli.common)?;
    if check_config {
        print_stdout(&context.loaded.checked_text())?;
        return Ok(Exit::Ok);
    }
    let Some(verb) = cli.verb else {
        return Err(Failure::usage("no verb was given").remedy("see squire-registry --help").into());
    };
    match verb {
        Verb::Completion(_) => Ok(Exit::Ok),
        Verb::Config { verb: args::ConfigVerb::Show } => {
            context.loaded.print(context.common.output)?;
            Ok(Exit::Ok)
        }
        Verb::Init { uri, name } => records::init(&context, &uri, name).await,
        Verb::Check { roots, mend } => records::check(&context, &roots, mend).await,
        Verb::Export { file } => portable::export(&context, &file).await,
        Verb::Import { from, merge, apply, project, why } => {
            let asked = portable::Asked { from, project, merge, apply, reason: why.reason };
            portable::import(&context, asked).await
        }
        Verb::Upgrade { why } => portable::upgrade(&context, why.reason).await,
        Verb::Log { subject } => records::log(&context, &subject).await,
        Verb::Project { verb } => hierarchy::project(&context, verb).await,
        Verb::Warehouse { verb } => hierarchy::warehouse(&context, verb).await,
        Verb::Namespace { verb } => hierarchy::namespace(&context, verb).await,
        Verb::Table { verb } => hierarchy::table(&context, verb).await,
        Verb::Policy { verb } => govern::policy(&context, verb).await,
        Verb::Protection { verb } => govern::protection(&context, verb).await,
        Verb::Trash { verb } => govern::trash(&context, verb).await,
        Verb::Contract { verb } => contract::run(&context, verb).await,
        Verb::Block { verb } => govern::block(&context, verb).await,
    }
}
