//! Commits of ours about which no verification is recorded: their process was killed before it could compare them, or never
//! heard that they had landed.
//!
//! The audit entry of a run names each commit that it verified. What is remembered of the dataset says up to which version this
//! was looked up, so that an idle dataset costs no request.

use squire_lake::look::{Look, ManifestInfo};
use squire_lake::verify;
use squire_registry::Registry;
use uuid::Uuid;

use crate::estate::Estate;
use crate::plan::Layout;
use crate::state::{DatasetState, Unverified};

/// The steps whose commits are compared.
const STEPS: [&str; 2] = ["compact", "optimize_indices"];

/// From HEAD back to the last commit with a recorded verification: a pass verifies what is open before it makes another. Oldest
/// first.
///
/// # Errors
/// Why it cannot be told: then nothing may be cleaned up.
pub(super) async fn find(
    estate: &Estate,
    look: &Look,
    layout: &Layout,
    state: &DatasetState,
) -> Result<Vec<Unverified>, String> {
    let Some(registry) = &estate.registry else { return Ok(Vec::new()) };
    // Versions of a dataset made anew count from 1 again.
    let known = state.accounted.filter(|v| *v <= look.version()).unwrap_or(0);
    let mut out = Vec::new();
    for (_, info) in look.versions().into_iter().rev().take_while(|(_, m)| m.version > known) {
        if !is_ours(info, registry) || state.unverified.iter().any(|open| open.after == info.version) {
            continue;
        }
        let told =
            |e: &dyn std::fmt::Display| format!("whether version {} was verified cannot be told: {e}", info.version);
        if is_recorded(registry, look, info).await.map_err(|e| told(&e))? {
            break;
        }
        let (rewrite, names) = verify::rewrite_of(&estate.lake, &look.uri, info.version).await.map_err(|e| told(&e))?;
        let folded = rewrite.groups.is_empty();
        let made = layout.indices.iter().filter(|i| names.contains(&i.name));
        let compared = made.filter(|i| folded || !i.loses_coverage_on_rewrite()).map(|i| i.name.clone());
        out.push(Unverified {
            before: rewrite.before,
            after: rewrite.after,
            indices: compared.collect(),
            groups: rewrite.groups,
        });
    }
    out.reverse();
    Ok(out)
}

fn is_ours(info: &ManifestInfo, registry: &Registry) -> bool {
    let ours = registry.id().to_string();
    info.stamp.as_ref().is_some_and(|s| s.estate == ours && STEPS.contains(&s.step.as_str()))
}

async fn is_recorded(registry: &Registry, look: &Look, info: &ManifestInfo) -> squire_registry::Result<bool> {
    let Some(run) = info.stamp.as_ref().and_then(|s| Uuid::parse_str(&s.run).ok()) else { return Ok(false) };
    let attempts = registry.run_dataset(run, &look.uri).await?;
    let mut commits = attempts.iter().flat_map(|a| &a.result).flat_map(|r| &r.commits);
    Ok(commits.any(|c| c.version == info.version && c.verified))
}
