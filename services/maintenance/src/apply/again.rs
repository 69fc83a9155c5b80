//! Verification that an earlier pass could not bring to an end, or never began, is done first in the next one.
//!
//! Until then the plan refuses clean-up (`verify_failed`): the version before may be the only one that answers right.

use std::collections::BTreeSet;

use squire_lake::Kind;
use squire_lake::verify::{self, Rewrite};
use squire_registry::{Commit, CommitStep};
use uuid::Uuid;

use super::{Applied, Tools, file_verify_block, hold, let_go};
use crate::driver::Planned;
use crate::state::Unverified;

/// Verifies what is still open, under the dataset's claim: whoever made it may be alive and at it. What comes back holds the
/// versions that are settled now, and a failure where one is not.
pub async fn verify_again(tools: &Tools, p: &Planned) -> Applied {
    if p.state.unverified.is_empty() {
        return Applied::default();
    }
    let (claim, renewing) = match hold(tools, &p.plan, &p.look).await {
        Ok(held) => held,
        Err(skip) => return Applied { skipped: Some(skip), ..Applied::default() },
    };
    let out = verify_open(tools, p).await;
    let_go(claim, renewing, &p.look.uri).await;
    out
}

async fn verify_open(tools: &Tools, p: &Planned) -> Applied {
    let mut out = Applied::default();
    let versions: BTreeSet<u64> = p.look.versions().iter().map(|(_, m)| m.version).collect();
    for open in &p.state.unverified {
        if !versions.contains(&open.before) || !versions.contains(&open.after) {
            let (dataset, version) = (&p.look.uri, open.after);
            tracing::warn!(dataset, version, "a commit can be verified no more: its version or the one before is gone");
            out.settled.push(open.after);
            continue;
        }
        let rewrite = Rewrite { before: open.before, after: open.after, groups: open.groups.clone() };
        let touched: Vec<_> = p.layout.indices.iter().filter(|i| open.indices.contains(&i.name)).cloned().collect();
        match verify::verify(&tools.estate.lake, &p.look.uri, &rewrite, &touched).await {
            Ok(checks) => {
                record(tools, p, open).await;
                out.checks.get_or_insert_default().merge(checks);
                out.settled.push(open.after);
            }
            Err(e) => {
                out.fail("verify", &e);
                if e.kind() == Kind::Verify {
                    // The block stands for it from now on.
                    out.settled.push(open.after);
                    out.filed.extend(file_verify_block(tools, &p.look.uri, &e.to_string()).await);
                }
            }
        }
    }
    out
}

/// The audit entry of the run that made it says so, too: that run may have died before it could name its commit.
async fn record(tools: &Tools, p: &Planned, open: &Unverified) {
    let infos = p.look.versions();
    let Some((_, info)) = infos.iter().find(|(_, m)| m.version == open.after) else { return };
    let Some(stamp) = &info.stamp else { return };
    let step = match stamp.step.as_str() {
        "compact" => CommitStep::Compact,
        _ => CommitStep::OptimizeIndices,
    };
    let Ok(run) = Uuid::parse_str(&stamp.run) else { return };
    let commit = Commit { step, version: open.after, at: info.timestamp, verified: true };
    if let Err(e) = tools.registry.run_dataset_found(run, &p.look.uri, commit).await {
        tracing::warn!(dataset = p.look.uri, error = %e, "that a commit was verified could not be added to its run");
    }
}
