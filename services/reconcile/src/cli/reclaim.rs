//! `reclaim`: its verbs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use squire_lake::{discover, quarantine};
use squire_service::cli::{Common, Exit, Failure, OutputFormat, print_stdout};
use squire_service::planfile::PlanKind;
use squire_service::telemetry::Metrics;

use crate::reclaim::apply::{self, ask};
use crate::reclaim::plan::{self, Verdict};
use crate::reclaim::survey::{Row, Survey, bare, bucket_of, survey};
use crate::reclaim::undo::reading;
use crate::reclaim::{ReclaimPlan, ReconcileConfig, purge, render, store, undo};

#[derive(Debug, Subcommand)]
pub(super) enum Reclaim {
    /// Writes a plan; writes nothing else
    #[command(after_help = "Example:\n  squire-reconcile reclaim plan ./lake --out reclaim.json")]
    Plan {
        /// Directories, URIs or datasets, all in one bucket
        roots: Vec<String>,
        /// The file to write
        #[arg(long, value_name = "PLAN")]
        out: PathBuf,
    },
    /// Shows what is in a plan; writes nothing
    #[command(after_help = "Example:\n  squire-reconcile reclaim show reclaim.json")]
    Show {
        /// The plan file
        plan: PathBuf,
    },
    /// Moves what is in the plan to quarantine, and nothing else
    #[command(after_help = "Example:\n  squire-reconcile reclaim apply reclaim.json")]
    Apply {
        /// The plan file
        plan: PathBuf,
    },
    /// Lists what is in quarantine; writes nothing
    #[command(after_help = "Example:\n  squire-reconcile reclaim list")]
    List,
    /// Brings back what a plan moved away
    #[command(after_help = "Example:\n  squire-reconcile reclaim undo 01920000-0000-7000-8000-000000000000")]
    Undo {
        /// The plan's id
        #[arg(value_name = "PLAN-ID")]
        plan: String,
        /// Only this dataset: a URI, a SUBJECT or a displayed name
        #[arg(long, value_name = "X")]
        dataset: Option<String>,
    },
    /// Deletes for good what is past its grace
    #[command(after_help = "Example:\n  squire-reconcile reclaim purge 01920000-0000-7000-8000-000000000000")]
    Purge {
        /// The plan's id
        #[arg(value_name = "PLAN-ID")]
        plan: String,
    },
}

/// Runs a verb.
pub(super) async fn run(
    verb: &Reclaim,
    common: &Common,
    config: &ReconcileConfig,
    metrics: &Metrics,
) -> anyhow::Result<Exit> {
    let exit = match verb {
        Reclaim::Plan { roots, out } => planned(common, config, metrics, roots, out).await,
        Reclaim::Show { plan } => show(common, config, plan),
        Reclaim::Apply { plan } => applied(common, config, metrics, plan).await,
        Reclaim::List => list(common, config).await,
        Reclaim::Undo { plan, dataset } => undone(common, config, metrics, plan, dataset.as_deref()).await,
        Reclaim::Purge { plan } => purged(common, config, metrics, plan).await,
    };
    if let Some(path) = &common.metrics_file {
        metrics.set_mode(config.config.estate.mode);
        metrics.write_file(path)?;
    }
    exit
}

async fn planned(
    common: &Common,
    config: &ReconcileConfig,
    metrics: &Metrics,
    roots: &[String],
    out: &Path,
) -> anyhow::Result<Exit> {
    let survey = survey(config, roots).await?;
    fit(&survey, &reading(config)).await?;
    let mut asked = BTreeMap::new();
    let has_objects = |row: &Row| matches!(row, Row::Dataset(facts) if !facts.objects.is_empty());
    for uri in survey.rows.iter().filter(|(_, row)| has_objects(row)).map(|(uri, _)| uri) {
        asked.insert(uri.clone(), ask(config, &survey, uri).await);
    }
    let verdicts = plan::plan(&survey, config, &asked);
    let items = plan::items(&verdicts);
    let mut buckets: Vec<String> = items.iter().map(|item| bucket_of(config, &item.path)).collect();
    buckets.extend(survey.roots.first().filter(|_| buckets.is_empty()).map(|root| bucket_of(config, root)));
    buckets.sort();
    buckets.dedup();
    let [bucket] = buckets.as_slice() else {
        return Err(Failure::usage(format!("a reclaim plan is for one bucket, and these are {}", buckets.join(", ")))
            .remedy("name the ROOTs of one of them")
            .into());
    };
    let estate = survey.registry.as_ref().map(squire_registry::Registry::id);
    let mut file = ReclaimPlan::reclaim(estate, bucket.clone(), survey.live(), survey.roots.clone(), items);
    file.write(out)?;
    let versioned = versioned(&survey, config, &verdicts).await;
    let report = render::planned(&survey, config, &verdicts, &versioned, metrics.store().requests());
    report.emit(common)?;
    say_costs(common, config, &file);
    if file.estate.is_none() && !file.items().is_empty() && !common.quiet {
        eprintln!(
            "there is no registry, so nothing tells what protects these files, and `apply` will refuse this plan: name one with \
             --registry, or make one (squire-registry init), and plan again"
        );
    }
    Ok(report.exit(false))
}

/// ROOTs in which nothing is, or that lie inside a dataset, are refused.
async fn fit(survey: &Survey, lake: &squire_lake::Lake) -> anyhow::Result<()> {
    for root in &survey.roots {
        let inside = discover::enclosing(lake, root).await;
        let failed =
            |e| Failure::could_not_run(format!("ROOT {root}: what lies above it could not be read")).caused_by(e);
        if let Some(dataset) = inside.map_err(failed)? {
            return Err(Failure::usage(format!("ROOT {root} lies inside the dataset {dataset}"))
                .remedy(format!("give {dataset}: its refs hold the files of its branches"))
                .into());
        }
    }
    if let Some(root) = survey.empty.first() {
        return Err(Failure::could_not_run(format!("empty_scan: {root} does not exist or holds no Lance dataset"))
            .remedy("check the path; a dataset is a directory with _versions/ in it")
            .into());
    }
    Ok(())
}

/// One dataset of the plan's bucket, if that keeps versions.
async fn versioned(survey: &Survey, config: &ReconcileConfig, verdicts: &BTreeMap<String, Verdict>) -> Vec<String> {
    let goes = verdicts.iter().find(|(_, v)| matches!(v, Verdict::Goes(_))).map(|(uri, _)| uri);
    let Some(uri) = goes else { return Vec::new() };
    let Some(Row::Dataset(facts)) = survey.rows.get(uri) else { return Vec::new() };
    match quarantine::is_versioned(&reading(config), uri, &facts.head).await {
        Ok(true) => vec![uri.clone()],
        _ => Vec::new(),
    }
}

/// Costs come before anything is done, beside the report.
fn say_costs(common: &Common, config: &ReconcileConfig, plan: &ReclaimPlan) {
    if common.quiet || plan.items().is_empty() {
        return;
    }
    let settings = &config.config;
    for line in render::costs(plan.items(), settings.grace.quarantine, &settings.prices, quarantine::COPY_LIMIT) {
        eprintln!("{line}");
    }
}

fn show(common: &Common, config: &ReconcileConfig, path: &Path) -> anyhow::Result<Exit> {
    let plan = ReclaimPlan::read_for(path, PlanKind::Reclaim)?;
    let text = match common.output {
        OutputFormat::Text | OutputFormat::Markdown => render::plan_text(&plan, config, quarantine::COPY_LIMIT),
        _ => format!("{}\n", serde_json::to_string_pretty(&plan)?),
    };
    print_stdout(&text)?;
    Ok(Exit::Ok)
}

async fn applied(common: &Common, config: &ReconcileConfig, metrics: &Metrics, path: &Path) -> anyhow::Result<Exit> {
    let plan = ReclaimPlan::read_for(path, PlanKind::Reclaim)?;
    say_costs(common, config, &plan);
    let applied = apply::apply(config, metrics, &plan, quarantine::COPY_LIMIT).await?;
    let report = render::applied(&applied, config, metrics.store().requests());
    report.emit(common)?;
    let went = applied.rows.values().any(|done| done.taken.moved.0 + done.taken.marked.0 + done.taken.already > 0);
    if went && !common.quiet {
        let registry = &applied.survey.registry_uri;
        eprintln!("bring it back with `squire-reconcile reclaim undo {} --registry {registry}`", plan.id);
    }
    Ok(applied.stopped.unwrap_or_else(|| report.exit(false)))
}

async fn list(common: &Common, config: &ReconcileConfig) -> anyhow::Result<Exit> {
    let survey = bare(config).await?;
    let roots = store::roots(config, &survey).await;
    let (stored, unreadable) = store::stored(&reading(config), &roots, None).await;
    let lines = render::listed(&stored, config.config.grace.quarantine);
    print_stdout(&match common.output {
        OutputFormat::Text | OutputFormat::Markdown => render::list_text(&lines),
        _ => format!("{}\n", serde_json::to_string_pretty(&lines)?),
    })?;
    for (place, why) in &unreadable {
        eprintln!("{place} could not be read: {why}");
    }
    Ok(if unreadable.is_empty() { Exit::Ok } else { Exit::Failed })
}

async fn undone(
    common: &Common,
    config: &ReconcileConfig,
    metrics: &Metrics,
    plan: &str,
    dataset: Option<&str>,
) -> anyhow::Result<Exit> {
    let rows = undo::undo(config, metrics, store::plan_id(plan)?, dataset).await?;
    let text = match common.output {
        OutputFormat::Text | OutputFormat::Markdown => render::undone_text(&rows),
        _ => format!("{}\n", serde_json::to_string_pretty(&rows)?),
    };
    print_stdout(&text)?;
    Ok(if rows.iter().all(|r| r.failed.is_empty() && r.forbidden.is_none()) { Exit::Ok } else { Exit::Failed })
}

async fn purged(common: &Common, config: &ReconcileConfig, metrics: &Metrics, plan: &str) -> anyhow::Result<Exit> {
    let rows = purge::purge(config, metrics, store::plan_id(plan)?).await?;
    let text = match common.output {
        OutputFormat::Text | OutputFormat::Markdown => render::purged_text(&rows),
        _ => format!("{}\n", serde_json::to_string_pretty(&rows)?),
    };
    print_stdout(&text)?;
    // A refusal alone is no failure; what could not be read is one.
    Ok(if rows.iter().any(purge::Purged::is_failed) { Exit::Failed } else { Exit::Ok })
}
