//! The command line: FACES' verbs, exit codes and progress.

use std::sync::Arc;

use clap::Parser as _;
use squire_registry::{Floors, Policy};
use squire_service::admission::Admission;
use squire_service::bus::data::{BuildMode, IndexBuild};
use squire_service::cli::{self, Common, Exit, Failure, OutputFormat};
use squire_service::config::{BusKind, Config, Loaded, Problem};
use squire_service::progress::Progress;
use squire_service::shutdown::Shutdown;
use squire_service::telemetry::{self, Audience, Metrics};
use uuid::Uuid;

use crate::apply::Releases;
use crate::ask::Ask;
use crate::build::{self, Bench};
use crate::estate::{Estate, failure};
use crate::report::{End, Outcome};
use crate::serve::{self, fresh, tell};

mod args;
mod dead;
mod jobs;

use args::{Cli, ConfigVerb, Request, Verb};

/// Default port of `[http] listen`.
const PORT: u16 = 9466;

/// Runs the command line and returns its exit code.
pub fn main() -> Exit {
    telemetry::with_full_store_labels();
    let cli = Cli::parse();
    let verbose = cli.common.is_verbose();
    let run = || -> anyhow::Result<Exit> { cli::runtime()?.block_on(dispatch(cli)) };
    let exit = run().unwrap_or_else(|error| cli::report_error(&error, verbose));
    telemetry::flush();
    exit
}

async fn dispatch(cli: Cli) -> anyhow::Result<Exit> {
    if let Some(Verb::Completion(args)) = &cli.verb {
        cli::print_stdout(&cli::completion::<Cli>(args.shell))?;
        return Ok(Exit::Ok);
    }
    let audience = if matches!(cli.verb, Some(Verb::Serve)) { Audience::Daemon } else { Audience::Command };
    let loaded = cli.common.loader::<Policy, Floors>(PORT).validate(problems).load()?;
    telemetry::init(&cli.common, audience, &loaded.config.tracing, "squire-index-build")?;
    let metrics = Metrics::install();
    squire_registry::observe_requests(metrics.request_counter());
    if cli.common.check_config {
        cli::print_stdout(&loaded.checked_text())?;
        return Ok(Exit::Ok);
    }
    let Some(verb) = cli.verb else {
        let failure = Failure::usage("no verb was given");
        return Err(failure.remedy("name one, see squire-index-build --help").into());
    };
    let context = Context { common: cli.common, loaded, metrics };
    match verb {
        Verb::Build(request) => context.build(&request).await,
        Verb::Submit { request, wait } => jobs::submit(context, &request, wait).await,
        Verb::Jobs { verb } => jobs::run(context, verb).await,
        Verb::Dead { verb } => dead::run(context, verb).await,
        Verb::Serve => serve::run(context.loaded, context.metrics).await,
        Verb::Config { verb: ConfigVerb::Show } => {
            context.loaded.print(context.common.output)?;
            Ok(Exit::Ok)
        }
        Verb::Completion(_) => Ok(Exit::Ok),
    }
}

fn problems(config: &Config<Policy, Floors>) -> Vec<Problem> {
    let wrong = config.policy.validate().err();
    wrong.map(|what| ("policy".to_owned(), what, String::new())).into_iter().collect()
}

/// One invocation.
pub(crate) struct Context {
    common: Common,
    loaded: Loaded<Policy, Floors>,
    metrics: Metrics,
}

impl Context {
    /// `build`: here and now, with progress.
    async fn build(self, request: &Request) -> anyhow::Result<Exit> {
        let message_of = message(request)?;
        let estate = Estate::open(self.loaded.clone()).await?;
        let ask = asked(&estate, message_of).await?;
        let shutdown = Shutdown::install()?;
        let progress = Progress::new(self.common.quiet);
        let bar = progress.bar(100, ask.message.index_type.clone());
        let (bar, shown) = (Arc::new(bar), std::sync::Mutex::new((String::new(), 0u8)));
        let show = {
            let bar = bar.clone();
            move |p: &squire_lake::build::Progress| {
                let Ok(mut shown) = shown.lock() else { return };
                if shown.0 != p.stage {
                    bar.message(p.stage.clone());
                    *shown = (p.stage.clone(), 0);
                    bar.set_position(0);
                }
                let percent = build::percent(p).unwrap_or(0);
                if percent > shown.1 {
                    bar.set_position(u64::from(percent));
                    shown.1 = percent;
                }
            }
        };
        let caches = estate.lake.clone();
        let memory = estate.config().limits.memory.as_u64();
        let admission = Admission::of_process(memory, move || caches.cache_bytes(), &self.metrics);
        let bus = match estate.config().bus.kind {
            BusKind::Nats => Some(serve::bus(&estate, &self.metrics).await?),
            BusKind::Embedded => None,
        };
        let bench =
            Bench { estate, admission, sharing: None, shutdown, show: Arc::new(show), releases: Releases::default() };
        let run = Uuid::now_v7();
        let job = fresh(&ask, run.to_string(), run, chrono::Utc::now());
        let job = bench.estate.registry.job_open(job).await.map_err(failure)?;
        let outcome = self.patient(&bench, &ask, &job, &bar).await;
        build::close(&bench, &job.job, &outcome, true).await;
        if let Some(bus) = &bus {
            tell(bus, &self.metrics, &ask, &job, &outcome).await;
        }
        drop(bar);
        self.done(&bench, &job.job, &outcome)
    }

    /// Builds; a table that somebody else works on is waited for.
    async fn patient(
        &self,
        bench: &Bench,
        ask: &Ask,
        job: &squire_registry::Job,
        bar: &squire_service::progress::Bar,
    ) -> Outcome {
        let mut told = false;
        loop {
            let outcome = build::job(bench, ask, job).await;
            let End::Claimed(by) = &outcome.end else { return outcome };
            bar.message("waiting for the table");
            if !std::mem::replace(&mut told, true) && !self.common.quiet {
                squire_service::progress::suspended(|| eprintln!("waiting: {by}"));
            }
            tokio::select! {
                () = tokio::time::sleep(std::time::Duration::from_secs(2)) => {}
                () = bench.shutdown.requested() => return Outcome::of(End::Stopped(false)),
            }
        }
    }

    fn done(&self, bench: &Bench, job: &str, outcome: &Outcome) -> anyhow::Result<Exit> {
        let mut value = outcome.result();
        if let Some(map) = value.as_object_mut() {
            map.insert("job".into(), job.into());
        }
        self.emit(&outcome.says(), &value)?;
        for left in &outcome.left {
            eprintln!("left behind: {left}; `squire-reconcile report` names it until it is reclaimed");
        }
        if let Some(path) = &self.common.metrics_file {
            self.metrics.write_file(path)?;
        }
        Ok(match &outcome.end {
            End::Built | End::Present | End::Untrained => Exit::Ok,
            End::Stopped(_) => bench.shutdown.exit().unwrap_or(Exit::Failed),
            _ => Exit::Failed,
        })
    }

    /// Prints a result in the format that was asked for, and writes it to `--json FILE`.
    pub(crate) fn emit(&self, text: &str, value: &serde_json::Value) -> anyhow::Result<()> {
        let unsupported = |option: &str| -> anyhow::Error {
            Failure::usage(format!("{option}: this command gives text and JSON"))
                .remedy("use -o text, json or jsonl")
                .into()
        };
        if self.common.html.is_some() {
            return Err(unsupported("--html"));
        }
        let printed = match self.common.output {
            OutputFormat::Text => format!("{}\n", squire_service::report::clean_lines(text.trim_end())),
            OutputFormat::Json => format!("{value:#}\n"),
            OutputFormat::Jsonl => match value {
                serde_json::Value::Array(lines) => lines.iter().map(|line| format!("{line}\n")).collect(),
                one => format!("{one}\n"),
            },
            OutputFormat::Html => return Err(unsupported("-o html")),
            OutputFormat::Markdown => return Err(unsupported("-o markdown")),
        };
        if let Some(file) = &self.common.json {
            std::fs::write(file, format!("{value:#}\n")).map_err(|e| {
                Failure::could_not_run(format!("writing {}", file.display()))
                    .caused_by(e)
                    .remedy("name a file that can be written")
            })?;
        }
        cli::print_stdout(&printed)?;
        Ok(())
    }
}

/// The request that the arguments say.
fn message(request: &Request) -> anyhow::Result<IndexBuild> {
    let params = match &request.params {
        None => serde_json::Map::new(),
        Some(text) => serde_json::from_str(text).map_err(|e| {
            Failure::usage(format!("--params {text}: {e}"))
                .remedy("write a JSON object, as '{\"num_partitions\": 256}'")
        })?,
    };
    let mode = match (request.replace, request.train_if_possible) {
        (true, _) => BuildMode::Replace,
        (false, true) => BuildMode::TrainIfPossible,
        (false, false) => BuildMode::Create,
    };
    Ok(IndexBuild {
        table: request.subject.clone(),
        columns: request.columns.iter().flat_map(|text| parted(text)).collect(),
        index_type: request.index_type.clone(),
        name: request.name.clone(),
        params,
        mode,
        requested_by: Some(squire_registry::Actor::current().who),
        request_id: None,
    })
}

/// Columns parted by commas; what stands in backticks is one.
fn parted(text: &str) -> Vec<String> {
    let mut quoted = false;
    let parts = text.split(|c: char| {
        quoted ^= c == '`';
        c == ',' && !quoted
    });
    parts.map(String::from).collect()
}

/// The same as a request, with the table's own name in it.
pub(crate) async fn asked(estate: &Estate, message: IndexBuild) -> anyhow::Result<Ask> {
    let table = estate.table(&message.table).await?;
    let message = IndexBuild { table: table.to_string(), ..message };
    Ask::of(&message).map_err(|wrong| match wrong {
        crate::ask::Wrong::Index(refusal) => {
            Failure::usage(refusal.detail).remedy(format!("accepted: {}", refusal.accepted)).into()
        }
        crate::ask::Wrong::Table(why) => Failure::usage(why).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::parted;

    #[test]
    fn commas_part_columns_outside_of_backticks() {
        for (text, columns) in [
            ("id", &["id"][..]),
            ("id,body", &["id", "body"]),
            ("`a,b`", &["`a,b`"]),
            ("o.`a,b`.c,id", &["o.`a,b`.c", "id"]),
            ("", &[""]),
        ] {
            assert_eq!(parted(text), columns, "{text}");
        }
    }
}
