//! Verification that an earlier pass could not bring to an end is done first in the next one.
//!
//! Until then the plan refuses clean-up (`verify_failed`): the version before may be the only one that answers right.

use std::collections::BTreeSet;

use squire_lake::Kind;
use squire_lake::verify::{self, Rewrite};

use super::{Applied, Tools, file_verify_block};
use crate::driver::Planned;

/// Verifies what is still open. What comes back holds the versions that are settled now, and a failure where one is not.
pub async fn verify_again(tools: &Tools, p: &Planned) -> Applied {
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
            Ok(_) => out.settled.push(open.after),
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
