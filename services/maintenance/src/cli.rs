//! The command line: FACES' verbs, exit codes and questions.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::sync::Arc;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use clap::Parser;
use squire_service::bus::data::TickDue;
use squire_service::bus::{Bus, Published, Task};
use squire_service::cli::{Common, Exit, Failure, print_stdout, report_error};
use squire_service::clock::Clock;
use squire_service::config::{BusKind, Loaded, Mode};
use squire_service::planfile::{PlanFile, PlanKind};
use squire_service::progress::Progress;
use squire_service::report::{EstateInfo, Report, ReportKind, Requests, SCHEMA, Tool, Totals};
use squire_service::shutdown::Shutdown;
use squire_service::telemetry::{self, Audience, Metrics};

use squire_registry::{Floors, Policy, RunOutcome, RunRecord};

use crate::apply::{Applied, Tools};
use crate::driver::{self, Case, PlannedEstate, Selection};
use crate::estate::{Estate, PolicyFlags};
use crate::known;
use crate::memory::{Admission, caches};
use crate::plan::{DatasetPlan, Settings};
use crate::rates::{self, Rates};

/// The port of `[http] listen` where the config says nothing.
const PORT: u16 = 9464;

mod args;
mod history;
mod why;

use args::{Bounds, Cli, ConfigVerb, PlanArgs, RunsVerb, SweepArgs, Verb};

/// Runs the command line and returns its exit code.
pub fn main() -> Exit {
    telemetry::with_full_store_labels();
    let cli = Cli::parse();
    let verbose = cli.common.is_verbose();
    let run = || -> anyhow::Result<Exit> { squire_service::cli::runtime()?.block_on(dispatch(cli)) };
    let exit = match run() {
        Ok(exit) => exit,
        Err(e) => report_error(&e, verbose),
    };
    telemetry::flush();
    exit
}

async fn dispatch(cli: Cli) -> anyhow::Result<Exit> {
    let common = cli.common;
    if let Some(Verb::Completion(args)) = &cli.verb {
        print_stdout(&squire_service::cli::completion::<Cli>(args.shell))?;
        return Ok(Exit::Ok);
    }
    let audience = if matches!(cli.verb, Some(Verb::Serve)) { Audience::Daemon } else { Audience::Command };
    let config: Loaded<Policy, Floors> = common.loader(PORT).load()?;
    telemetry::init(&common, audience, &config.config.tracing, "squire-maintenance")?;
    let metrics = Metrics::install();
    squire_registry::observe_requests(metrics.request_counter());
    config
        .config
        .policy
        .validate()
        .map_err(|e| Failure::usage(format!("policy.{e}")).remedy("correct the key in the config"))?;
    if common.check_config {
        print_stdout("the config is good\n")?;
        return Ok(Exit::Ok);
    }
    let Some(verb) = cli.verb else {
        return Err(Failure::usage("no verb was given").remedy("see squire-maintenance --help").into());
    };
    let command = squire_service::config::redact_command(std::env::args());
    let (file, written) = (common.metrics_file.clone(), metrics.clone());
    written.set_mode(config.config.estate.mode);
    written.memory_limit.set(i64::try_from(config.config.limits.memory.as_u64()).unwrap_or(i64::MAX));
    let context = Context { common, config, metrics, command, started: Utc::now() };
    let ended = carry(context, verb).await;
    // Also of a run that failed.
    if let Some(path) = file {
        written.write_file(&path).with_context(|| format!("writing the metrics file {}", path.display()))?;
    }
    ended
}

async fn carry(context: Context, verb: Verb) -> anyhow::Result<Exit> {
    match verb {
        Verb::Plan(args) => context.plan(args).await,
        Verb::Show { plan } => context.show(&plan),
        Verb::Apply { plan, datasets } => context.apply(&plan, datasets).await,
        Verb::Sweep(args) => context.sweep(args).await,
        Verb::Why { dataset } => why::run(&context, &dataset).await,
        Verb::History { dataset, version } => history::dataset(&context, &dataset, version).await,
        Verb::Runs { verb: RunsVerb::List { roots } } => history::list(&context, &roots).await,
        Verb::Runs { verb: RunsVerb::Show { run, roots } } => history::show(&context, run, &roots).await,
        Verb::Serve => crate::serve::run(context.config, context.metrics, context.command).await,
        Verb::Tick { job, dataset } => context.tick(&job, dataset).await,
        Verb::Config { verb: ConfigVerb::Show } => context.show_config(),
        Verb::Demo { dir } => {
            let made = crate::demo::write(&dir).await?;
            print_stdout(&made)?;
            Ok(Exit::Ok)
        }
        Verb::Completion(_) => Ok(Exit::Ok),
    }
}

/// One invocation.
pub(crate) struct Context {
    pub(crate) common: Common,
    pub(crate) config: Loaded<Policy, Floors>,
    metrics: Metrics,
    command: String,
    started: DateTime<Utc>,
}

impl Context {
    pub(crate) async fn estate(
        &self,
        roots: &[String],
        flags: PolicyFlags,
        at: Option<DateTime<Utc>>,
    ) -> anyhow::Result<Estate> {
        let clock = at.map_or_else(Clock::system, Clock::at);
        Estate::open(self.config.clone(), roots, clock, flags).await
    }

    fn show_config(&self) -> anyhow::Result<Exit> {
        let text = match self.common.output {
            squire_service::cli::OutputFormat::Json => format!("{:#}\n", self.config.show_json()),
            squire_service::cli::OutputFormat::Jsonl => {
                json_lines(self.config.show_json().as_array().into_iter().flatten())?
            }
            _ => self.config.show_text(),
        };
        print_stdout(&text)?;
        Ok(Exit::Ok)
    }

    /// Sends a tick by hand. On the in-process bus nobody would hear it.
    async fn tick(&self, job: &str, dataset: Option<String>) -> anyhow::Result<Exit> {
        let task = match job {
            "maintenance" => Task::Maintenance,
            "reconcile" => Task::Reconcile,
            _ => {
                return Err(Failure::usage(format!("tick {job}: no such job"))
                    .remedy("write maintenance or reconcile")
                    .into());
            }
        };
        if self.config.config.bus.kind == BusKind::Embedded {
            return Err(Failure::usage("a tick on the in-process bus reaches nobody")
                .remedy("set bus.kind = \"nats\", or run `squire-maintenance sweep --due` instead")
                .into());
        }
        let estate = self.estate(&[], PolicyFlags::default(), None).await?;
        let Some(registry) = &estate.registry else {
            return Err(Failure::usage("no registry is named or found, so it is not known whose tick this is")
                .remedy("set registry.root")
                .into());
        };
        let config = &self.config.config;
        let settings = squire_service::bus::Settings::of(&config.bus, config.grace.claim_ttl);
        let metrics = self.metrics.clone();
        let bus = Bus::open(&config.bus, registry.name(), registry.id(), settings, metrics)
            .await
            .map_err(|e| Failure::could_not_run("the bus cannot be used").caused_by(e))?;
        let due = TickDue { job: task, instant: Utc::now(), datasets: dataset.into_iter().collect() };
        let said = bus
            .tick(&due, Some(estate.run))
            .await
            .map_err(|e| Failure::could_not_run("the tick could not be sent").caused_by(e))?;
        print_stdout(match said {
            Published::Stored | Published::Duplicate => "sent\n",
            Published::AlreadyQueued => "a tick is waiting already\n",
        })?;
        Ok(Exit::Ok)
    }

    fn report(
        &self,
        kind: ReportKind,
        estate: &Estate,
        planned: &PlannedEstate,
        applied: &HashMap<String, (Applied, f64)>,
    ) -> Report {
        let mut report = Report {
            schema: SCHEMA.into(),
            kind,
            run: estate.run,
            started_at: self.started,
            finished_at: Utc::now(),
            tool: Tool::this(),
            estate: EstateInfo {
                id: estate.registry.as_ref().map(|r| r.id()),
                name: estate.registry.as_ref().map_or(estate.config().estate.name.clone(), |r| r.name().to_string()),
                registry: estate.registry_uri.clone(),
                roots: estate.roots.clone(),
                mode: estate.config().estate.mode,
                exclusive: estate.config().estate.exclusive,
            },
            config_digest: self.config.digest(),
            command: self.command.clone(),
            totals: Totals::default(),
            datasets: driver::datasets(estate, planned, applied),
            findings: planned.findings.clone(),
            incomplete: planned.incomplete.clone(),
        };
        let requests: Requests = self.metrics.store().requests();
        let cost = requests.cost(&estate.config().prices);
        report.finish(requests, cost, telemetry::peak_rss_bytes());
        if kind == ReportKind::Plan {
            let rate = estate.config().limits.delete_rate;
            let all = plans(planned).filter(|p| !p.is_empty()).map(|p| crate::budget::requests(p, rate));
            let planned = all.fold(Requests::default(), |sum, one| sum + one);
            report.totals.planned_requests = planned;
            report.totals.planned_cost = planned.cost(&estate.config().prices);
        }
        report
    }

    fn finish(&self, report: &Report, detailed: bool, shutdown: Option<&Shutdown>) -> anyhow::Result<Exit> {
        report.emit(&self.common)?;
        self.metrics.record(report);
        if report.kind != ReportKind::Plan {
            let seconds = (report.finished_at - report.started_at).to_std().unwrap_or_default().as_secs_f64();
            self.metrics.sweep_duration.observe(seconds);
        }
        if let Some(exit) = shutdown.and_then(Shutdown::exit) {
            return Ok(exit);
        }
        Ok(report.exit(detailed))
    }

    #[tracing::instrument(level = "debug", name = "plan", skip_all)]
    async fn plan(&self, args: PlanArgs) -> anyhow::Result<Exit> {
        let estate = self.estate(&args.roots, args.bounds.flags(), args.at).await?;
        let settings = settings(&estate, &args.bounds, args.due)?;
        let selection = Selection { datasets: args.datasets, due: args.due, limit: None };
        let planned = driver::plan_estate(&estate, &selection, &settings, args.at).await;
        refuse_empty(&estate, &planned, &selection)?;
        if let Some(out) = &args.out {
            let plans: Vec<DatasetPlan> = plans(&planned).cloned().collect();
            PlanFile::new(PlanKind::Maintenance, estate.registry.as_ref().map(|r| r.id()), plans).write(out)?;
        }
        let report = self.report(ReportKind::Plan, &estate, &planned, &HashMap::new());
        self.finish(&report, args.detailed_exitcode, None)
    }

    fn show(&self, path: &std::path::Path) -> anyhow::Result<Exit> {
        let file: PlanFile<DatasetPlan> = PlanFile::read_for(path, PlanKind::Maintenance)?;
        let text = match self.common.output {
            squire_service::cli::OutputFormat::Text | squire_service::cli::OutputFormat::Markdown => {
                why::plan_text(&file)
            }
            squire_service::cli::OutputFormat::Jsonl => json_lines(file.datasets())?,
            _ => format!("{}\n", serde_json::to_string_pretty(&file)?),
        };
        print_stdout(&text)?;
        Ok(Exit::Ok)
    }

    #[tracing::instrument(level = "debug", name = "sweep", skip_all)]
    async fn sweep(&self, args: SweepArgs) -> anyhow::Result<Exit> {
        self.config.warn_of_what_has_no_effect(squire_service::config::Program::Maintenance);
        let mut estate = self.estate(&args.roots, args.bounds.flags(), None).await?;
        let settings = settings(&estate, &args.bounds, args.due)?;
        let selection = Selection { datasets: args.datasets, due: args.due, limit: args.limit };
        let planned = driver::plan_estate(&estate, &selection, &settings, None).await;
        refuse_empty(&estate, &planned, &selection)?;
        if args.due && settings.mode != Mode::Observe {
            known::remember(&estate, &settings, &planned).await;
        }
        self.carry_out(&mut estate, planned, settings, ReportKind::Sweep, (args.yes, Some(&selection))).await
    }

    #[tracing::instrument(level = "debug", name = "apply", skip_all)]
    async fn apply(&self, path: &std::path::Path, datasets: Vec<String>) -> anyhow::Result<Exit> {
        let file: PlanFile<DatasetPlan> = PlanFile::read_for(path, PlanKind::Maintenance)?;
        let mut by_uri: HashMap<String, DatasetPlan> = HashMap::new();
        let estate_id = file.estate;
        for plan in file.into_datasets() {
            by_uri.insert(plan.uri.clone(), plan);
        }
        if by_uri.is_empty() {
            return Err(Failure::refused("the plan is empty: there is nothing to apply").into());
        }
        let uris: Vec<String> = by_uri.keys().cloned().collect();
        let flags = by_uri.values().next().map(|p| p.flags.clone()).unwrap_or_default();
        let mut estate = self.estate(&common_roots(&uris), flags, None).await?;
        let ours = estate.registry.as_ref().map(|r| r.id());
        if estate_id.is_some() && estate_id != ours {
            return Err(Failure::refused("the plan was made for another estate")
                .remedy("make a new plan with this registry")
                .into());
        }
        let settings = settings(&estate, &Bounds::default(), false)?;
        let wanted = if datasets.is_empty() { uris } else { datasets };
        let selection = Selection { datasets: wanted, due: false, limit: None };
        let mut planned = driver::plan_estate(&estate, &selection, &settings, None).await;
        bind(&mut planned, by_uri);
        self.carry_out(&mut estate, planned, settings, ReportKind::Apply, (true, None)).await
    }

    /// Asks, makes the registry if it is new, opens the run, applies, closes the run, reports.
    async fn carry_out(
        &self,
        estate: &mut Estate,
        mut planned: PlannedEstate,
        settings: Settings,
        kind: ReportKind,
        (yes, again): (bool, Option<&Selection>),
    ) -> anyhow::Result<Exit> {
        let work = plans(&planned).any(|p| !p.is_empty())
            || planned.has_unverified()
            || (estate.registry.is_some() && planned.has_lasting_failures());
        if !work || settings.mode == Mode::Observe {
            let report = self.report(kind, estate, &planned, &HashMap::new());
            return self.finish(&report, false, None);
        }
        if !yes && !self.confirmed(estate, &planned)? {
            return Err(Failure::usage("nothing was done: the question was not answered with yes").into());
        }
        let shutdown = Shutdown::install()?;
        let new = estate.registry.is_none();
        let registry = estate.writable().await?;
        // Somebody else's first sweep may have made the registry meanwhile: what it says counts.
        if let Some(selection) = again.filter(|_| new) {
            planned = driver::plan_estate(estate, selection, &settings, None).await;
        }
        registry.run_open(self.run_record(estate, &registry, kind)).await?;
        let _share = rates::requests(&registry, &estate.lake, estate.config().budget.requests_per_second)
            .await
            .map_err(|e| Failure::could_not_run("who else makes requests is not known").caused_by(e))?;
        let progress = Progress::new(self.common.quiet);
        let bar = progress.spinner("sweeping");
        let tools = Tools {
            estate: estate.clone(),
            registry: registry.clone(),
            settings,
            rates: Rates::of(&estate.config().prices, &self.metrics),
            shutdown: shutdown.clone(),
            graph: planned.graph.clone(),
            progress: Arc::new(move |text: &str| bar.message(text.to_string())),
            admission: Admission::of_process(
                estate.config().limits.memory.as_u64(),
                caches(&estate.lake),
                &self.metrics,
            ),
            prepared: Arc::default(),
        };
        let applied = driver::apply_estate(&tools, &planned).await;
        if let Some(peaks) = tools.admission.peaks() {
            tracing::debug!(measured = peaks.measured, admitted = peaks.admitted, "memory of the admitted work");
        }
        estate.lake.commits_done().await;
        drop(tools);
        for (done, _) in applied.values() {
            done.count(&self.metrics);
        }
        let report = self.report(kind, estate, &planned, &applied);
        let failures = report.datasets.iter().filter_map(|d| d.outcome.failure().map(|_| d.uri.clone())).collect();
        let outcome = RunOutcome {
            finished_at: Utc::now(),
            complete: !shutdown.is_requested(),
            totals: serde_json::to_value(&report.totals)?,
            failures,
        };
        if let Err(e) = registry.run_close(estate.run, outcome).await {
            tracing::warn!(error = %e, "the run's record could not be closed");
        }
        self.finish(&report, false, Some(&shutdown))
    }

    fn run_record(&self, estate: &Estate, registry: &squire_registry::Registry, kind: ReportKind) -> RunRecord {
        RunRecord {
            run: estate.run,
            kind: kind.as_str().into(),
            estate: registry.id(),
            started_at: self.started,
            command: self.command.clone(),
            actor: registry.actor().clone(),
            tool_version: squire_service::VERSION.into(),
            mode: estate.config().estate.mode.to_string(),
            config_digest: Some(self.config.digest()),
            plan_digest: None,
            live: estate.snapshot.live_counts(),
            outcome: None,
        }
    }

    /// On a terminal: the totals, and a question when versions would go or the registry is new.
    fn confirmed(&self, estate: &Estate, planned: &PlannedEstate) -> anyhow::Result<bool> {
        let versions: usize = plans(planned).map(|p| p.removal.versions.len()).sum();
        let new = estate.registry.is_none();
        if (versions == 0 && !new) || !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Ok(true);
        }
        let report = self.report(ReportKind::Plan, estate, planned, &HashMap::new());
        let mut err = std::io::stderr().lock();
        write!(err, "{}", report.render(squire_service::cli::OutputFormat::Text)?)?;
        if new {
            writeln!(err, "A new registry will be made at {}.", estate.registry_uri)?;
        }
        if versions > 0 {
            writeln!(err, "{versions} old versions will be removed.")?;
        }
        write!(err, "Go on? [y/N] ")?;
        err.flush()?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }
}

/// One JSON object per line.
fn json_lines<T: serde::Serialize>(values: impl IntoIterator<Item = T>) -> serde_json::Result<String> {
    let mut out = String::new();
    for value in values {
        out.push_str(&serde_json::to_string(&value)?);
        out.push('\n');
    }
    Ok(out)
}

fn settings(estate: &Estate, bounds: &Bounds, due: bool) -> anyhow::Result<Settings> {
    Ok(estate.settings(due, bounds.steps()?, !bounds.steps.is_empty(), bounds.max_rewrite))
}

fn plans(planned: &PlannedEstate) -> impl Iterator<Item = &DatasetPlan> {
    planned.candidates.iter().filter_map(|c| match &c.case {
        Case::Planned(p) => Some(&p.plan),
        _ => None,
    })
}

/// A ROOT given by hand that does not exist or holds no dataset is an error: silence would look like health.
fn refuse_empty(estate: &Estate, planned: &PlannedEstate, selection: &Selection) -> anyhow::Result<()> {
    if let Some(root) = planned.scope.empty.first() {
        let shown = squire_lake::uri::local_path(root).map_or(root.clone(), |p| p.display().to_string());
        return Err(Failure::could_not_run(format!("empty_scan: {shown} does not exist or holds no Lance dataset"))
            .remedy("check the path; a dataset is a directory with _versions/ in it")
            .into());
    }
    if planned.is_empty() && !selection.datasets.is_empty() {
        return Err(Failure::usage(format!(
            "--dataset {}: no such dataset under the ROOTs",
            selection.datasets.join(", ")
        ))
        .remedy("write its URI, its SUBJECT or its name as `plan` shows it")
        .into());
    }
    if planned.is_empty() && planned.incomplete.is_empty() && estate.by_hand {
        return Err(Failure::could_not_run("empty_scan: no dataset was found").into());
    }
    Ok(())
}

/// What is in the file, and nothing else: a dataset whose HEAD moved is stale.
fn bind(planned: &mut PlannedEstate, mut by_uri: HashMap<String, DatasetPlan>) {
    for candidate in &mut planned.candidates {
        let Case::Planned(p) = &mut candidate.case else { continue };
        match by_uri.remove(&candidate.uri) {
            Some(plan) if plan.read_version == p.look.version() && plan.head_id == p.layout.head_id => p.plan = plan,
            found => {
                let detail = match found {
                    Some(plan) => {
                        format!("HEAD moved from version {} to {} since the plan", plan.read_version, p.look.version())
                    }
                    None => "the plan does not name it".into(),
                };
                let skip = crate::admit::Skip { reason: squire_service::report::SkipReason::PlanStale, detail };
                candidate.case = Case::Skipped(skip, None);
            }
        }
    }
}

/// The folders that hold the plan's datasets.
fn common_roots(uris: &[String]) -> Vec<String> {
    let mut roots: Vec<String> = uris.to_vec();
    roots.sort();
    roots
}
