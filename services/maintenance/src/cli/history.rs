//! `history` and `runs`: the audit trail. Zero writes.

use std::fmt::Write;

use serde_json::json;
use squire_lake::uri;
use squire_registry::{DIED, DatasetEntry, Registry};
use squire_service::cli::{Exit, Failure, OutputFormat, print_stdout};
use uuid::Uuid;

use super::{Context, json_lines, why};
use crate::estate::{Estate, PolicyFlags};

async fn open(context: &Context, roots: &[String]) -> anyhow::Result<(Estate, Registry)> {
    let here;
    let roots = if roots.is_empty() && context.config.config.estate.roots.is_empty() {
        here = [".".to_string()];
        &here[..]
    } else {
        roots
    };
    let estate = context.estate(roots, PolicyFlags::default(), None).await?;
    match estate.registry.clone() {
        Some(registry) => Ok((estate, registry)),
        None => Err(Failure::could_not_run("there is no registry yet, so there is no history")
            .remedy("name one with --registry, or run a sweep first")
            .into()),
    }
}

/// Everything done to one dataset.
pub(super) async fn dataset(context: &Context, dataset: &str, version: Option<u64>) -> anyhow::Result<Exit> {
    let (roots, wanted) = why::roots_of(dataset);
    let (estate, registry) = open(context, &roots).await?;
    let at = match wanted.parse::<squire_registry::Subject>() {
        Ok(squire_registry::Subject::Table(path)) => estate.snapshot.table(&path).map(|t| t.fields.uri.clone()),
        _ => None,
    };
    let at = at.or_else(|| uri::canonical(&wanted).ok()).unwrap_or(wanted);
    let (entries, unreadable) = registry.dataset_history(&at).await?;
    let entries: Vec<&DatasetEntry> = entries.iter().filter(|e| version.is_none_or(|v| concerns(e, v))).collect();
    if context.common.output == OutputFormat::Json {
        print_stdout(&format!("{:#}\n", json!({ "dataset": at, "entries": entries })))?;
    } else if context.common.output == OutputFormat::Jsonl {
        print_stdout(&json_lines(&entries)?)?;
    } else {
        let mut out = format!("{at}\n");
        for entry in &entries {
            line(&mut out, entry, version)?;
        }
        if entries.is_empty() {
            writeln!(out, "  nothing was done to it by this estate's runs")?;
        }
        print_stdout(&out)?;
    }
    Ok(if unreadable.is_empty() { Exit::Ok } else { Exit::Failed })
}

fn concerns(entry: &DatasetEntry, version: u64) -> bool {
    entry.intent.versions.iter().any(|v| v.version == version)
        || entry
            .result
            .as_ref()
            .is_some_and(|r| r.versions_removed.contains(&version) || r.commits.iter().any(|c| c.version == version))
}

fn line(out: &mut String, entry: &DatasetEntry, version: Option<u64>) -> std::fmt::Result {
    let at = entry.opened_at.format("%Y-%m-%d %H:%M:%S UTC");
    writeln!(out, "  {at}  run {}  policy {}", entry.run, entry.intent.policy_source)?;
    let Some(result) = &entry.result else {
        return writeln!(
            out,
            "    begun and not closed: {} versions were going to go; the run ended before it could say what went",
            entry.intent.versions.len()
        );
    };
    if result.outcome == DIED {
        let last = result.closed_at.format("%H:%M:%S UTC");
        writeln!(
            out,
            "    died, alive until {last} at most: {} versions were going to go, and some may have",
            entry.intent.versions.len()
        )?;
    }
    for commit in &result.commits {
        writeln!(out, "    {} made version {}", commit.step, commit.version)?;
    }
    if !result.versions_removed.is_empty() {
        let shown = match version {
            Some(v) => format!("version {v}"),
            None => format!("{} versions", result.versions_removed.len()),
        };
        writeln!(out, "    removed {shown}, {} files and {} bytes in all", result.files_removed, result.bytes_removed)?;
        for v in entry.intent.versions.iter().filter(|v| Some(v.version) == version) {
            writeln!(out, "      it was made {}, replaced {}, and had {} rows", v.made_at, v.replaced_at, v.rows)?;
        }
    }
    if let Some(error) = &result.error {
        writeln!(out, "    {error}")?;
    }
    Ok(())
}

/// The newest runs first.
pub(super) async fn list(context: &Context, roots: &[String]) -> anyhow::Result<Exit> {
    let (_, registry) = open(context, roots).await?;
    let (runs, unreadable) = registry.runs().await?;
    if context.common.output == OutputFormat::Json {
        print_stdout(&format!("{:#}\n", json!({ "runs": runs })))?;
    } else if context.common.output == OutputFormat::Jsonl {
        print_stdout(&json_lines(&runs)?)?;
    } else {
        let mut out = String::new();
        for run in &runs {
            let state = match &run.outcome {
                Some(o) if o.complete => "complete",
                Some(_) => "stopped",
                None => "not closed",
            };
            writeln!(
                out,
                "{}  {}  {}  {state}  by {}",
                run.run,
                run.started_at.format("%Y-%m-%d %H:%M:%S UTC"),
                run.kind,
                run.actor.who
            )?;
        }
        print_stdout(&out)?;
    }
    Ok(if unreadable.is_empty() { Exit::Ok } else { Exit::Failed })
}

/// One run with all its datasets.
pub(super) async fn show(context: &Context, run: Uuid, roots: &[String]) -> anyhow::Result<Exit> {
    let (_, registry) = open(context, roots).await?;
    let (record, entries, unreadable) = registry.run(run).await?;
    if context.common.output == OutputFormat::Json {
        print_stdout(&format!("{:#}\n", json!({ "run": record, "datasets": entries })))?;
    } else if context.common.output == OutputFormat::Jsonl {
        let head = json_lines([json!({ "record": "run", "run": record })])?;
        print_stdout(&(head + &json_lines(entries.iter().map(|e| json!({ "record": "dataset", "dataset": e })))?))?;
    } else {
        let mut out = format!("run {} ({}) {}\n  {}\n", record.run, record.kind, record.started_at, record.command);
        for entry in &entries {
            writeln!(out, "{}", entry.uri)?;
            line(&mut out, entry, None)?;
        }
        print_stdout(&out)?;
    }
    Ok(if unreadable.is_empty() { Exit::Ok } else { Exit::Failed })
}
