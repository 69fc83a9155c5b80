//! `why` and `show`: one dataset or one plan file, for a person.

use std::fmt::Write;

use squire_lake::uri;
use squire_service::cli::{Exit, Failure, OutputFormat, print_stdout};
use squire_service::human::{show_bytes, show_count};
use squire_service::planfile::PlanFile;

use super::Context;
use crate::driver::{self, Case, Planned, Selection};
use crate::estate::PolicyFlags;
use crate::plan::{DatasetPlan, Steps, Verdict};

/// Explains one dataset.
pub(super) async fn run(context: &Context, dataset: &str) -> anyhow::Result<Exit> {
    let (roots, wanted) = roots_of(dataset);
    if roots.is_empty()
        && context.config.config.estate.roots.is_empty()
        && context.config.config.registry.root.is_none()
    {
        return Err(Failure::usage(format!("{dataset}: there is no such directory"))
            .remedy("write a path or URI; for a SUBJECT name the registry with --registry")
            .into());
    }
    let estate = context.estate(&roots, PolicyFlags::default(), None).await?;
    let settings = estate.settings(false, Steps::ALL, false, None);
    let selection = Selection { datasets: vec![wanted], due: false, limit: None };
    let planned = driver::plan_estate(&estate, &selection, &settings, None).await;
    let Some(candidate) = planned.candidates.first() else {
        return Err(Failure::usage(format!("{dataset}: no such dataset"))
            .remedy("write its URI, path or SUBJECT")
            .into());
    };
    if context.common.output == OutputFormat::Json {
        let rows = driver::datasets(&estate, &planned, &Default::default());
        print_stdout(&format!("{}\n", serde_json::to_string_pretty(&rows.first())?))?;
    } else if context.common.output == OutputFormat::Jsonl {
        print_stdout(&super::json_lines(driver::datasets(&estate, &planned, &Default::default()).first())?)?;
    } else {
        let mut out = String::new();
        writeln!(out, "{}", candidate.uri)?;
        match &candidate.case {
            Case::Failed(e) => writeln!(out, "  could not be looked at: {e}")?,
            Case::Skipped(skip, p) => {
                writeln!(out, "  skipped ({}): {}", skip.reason, skip.detail)?;
                if let Some(p) = p {
                    explain(&mut out, p)?;
                }
            }
            Case::Planned(p) => explain(&mut out, p)?,
        }
        print_stdout(&out)?;
    }
    Ok(match candidate.case {
        Case::Failed(_) => Exit::Failed,
        _ => Exit::Ok,
    })
}

/// A path or URI is its own ROOT; a SUBJECT or name is looked for in the config's roots.
pub(super) fn roots_of(dataset: &str) -> (Vec<String>, String) {
    let subject = dataset.parse::<squire_registry::Subject>().ok().filter(|_| dataset.contains('/'));
    if let Some(squire_registry::Subject::Dataset(at)) = &subject {
        return (vec![at.clone()], at.clone());
    }
    let exists = std::path::Path::new(dataset).exists();
    if exists || (dataset.contains("://") && subject.is_none()) {
        let canonical = uri::canonical(dataset).unwrap_or_else(|_| dataset.to_string());
        return (vec![dataset.to_string()], canonical);
    }
    (Vec::new(), dataset.to_string())
}

fn explain(out: &mut String, p: &Planned) -> std::fmt::Result {
    let effective = &p.governance.policy;
    writeln!(
        out,
        "  version {}, {} fragments, {} rows",
        p.look.version(),
        p.layout.fragments.len(),
        show_count(p.look.head.rows())
    )?;
    writeln!(out, "  authority: {}", p.look.authority.as_str())?;
    if let Some(table) = &p.governance.table {
        writeln!(out, "  table: {table}")?;
    }
    writeln!(
        out,
        "  policy: from {} ({}); retention {}, retain_versions {}",
        effective.source.kind,
        effective.source.id,
        squire_service::human::format_duration(effective.policy.retention),
        effective.policy.retain_versions
    )?;
    for line in effective.clamped.iter().map(|c| format!("clamped: {c}")).chain(effective.table_config.iter().cloned())
    {
        writeln!(out, "    {line}")?;
    }
    if let Some(pending) = &effective.pending {
        writeln!(
            out,
            "    pending from {}: {}",
            pending.effective_at.format("%Y-%m-%d %H:%M UTC"),
            pending.changes.join(", ")
        )?;
    }
    for protection in &p.governance.protections {
        writeln!(out, "  protected: {} on {}", protection.level, protection.subject)?;
    }
    for block in &p.governance.blocks {
        writeln!(out, "  block {} on {}: {}", block.id, block.subject, block.reason)?;
    }
    let target = &p.plan.target;
    writeln!(
        out,
        "  target: {} rows per fragment, by {}; tier {}",
        show_count(target.rows),
        target.source,
        target.tier.as_deref().unwrap_or("none")
    )?;
    for index in &p.layout.indices {
        writeln!(
            out,
            "  index {} ({}): {} segments, {} unindexed rows, {}",
            index.name,
            index.kind,
            index.segments.len(),
            show_count(index.unindexed_rows),
            index.state.as_str()
        )?;
    }
    plan(out, &p.plan)?;
    writeln!(
        out,
        "  bytes: {} live, {} history, {} reclaimable now",
        show_bytes(p.layout.live_bytes),
        show_bytes(p.layout.history_bytes),
        show_bytes(p.plan.removal.bytes())
    )?;
    for r in p.plan.retained.iter().take(10) {
        let until = r.until.map(|t| format!(" until {}", t.format("%Y-%m-%d %H:%M UTC"))).unwrap_or_default();
        writeln!(out, "    version {} stays by {}{until}", r.version, r.by)?;
    }
    if p.plan.retained.len() > 10 {
        writeln!(out, "    and {} more versions stay", p.plan.retained.len() - 10)?;
    }
    Ok(())
}

fn plan(out: &mut String, plan: &DatasetPlan) -> std::fmt::Result {
    let tasks: usize = plan.rounds.iter().map(|r| r.tasks.len()).sum();
    let removed: usize = plan.rounds.iter().flat_map(|r| &r.tasks).map(|t| t.fragments.len()).sum();
    let indices: Vec<&str> = plan.rounds.iter().flat_map(|r| &r.indices).map(|i| i.name.as_str()).collect();
    verdict(out, "compact", &plan.compact, &format!("{removed} fragments in {tasks} tasks"))?;
    verdict(out, "optimize_indices", &plan.optimize_indices, &indices.join(", "))?;
    let versions = format!(
        "{} versions, {} files, {}",
        plan.removal.versions.len(),
        plan.removal.files.len(),
        show_bytes(plan.removal.bytes())
    );
    verdict(out, "cleanup", &plan.cleanup, &versions)
}

fn verdict(out: &mut String, step: &str, verdict: &Verdict, what: &str) -> std::fmt::Result {
    let reason = verdict.reason.map(|r| format!(" ({r})")).unwrap_or_default();
    let detail = if verdict.is_planned() { what.to_string() } else { verdict.detail.clone().unwrap_or_default() };
    let outcome = verdict.outcome;
    writeln!(out, "  {step}: {outcome}{reason}{}{detail}", if detail.is_empty() { "" } else { ": " })
}

/// A plan file as text.
pub(super) fn plan_text(file: &PlanFile<DatasetPlan>) -> String {
    let mut out = format!("plan {} of {} datasets\n", file.id, file.datasets().len());
    for dataset in file.datasets() {
        out.push_str(&format!("{} at version {}\n", dataset.uri, dataset.read_version));
        // Writing into a String cannot fail.
        let _ = plan(&mut out, dataset);
    }
    out
}
