//! What the stored bytes of a looked-at dataset are, for the report.

use squire_lake::classes::{Ages, classes};
use squire_lake::refs::CloneGraph;
use squire_lake::stored::{Standing, stored};
use squire_service::report::{StepOutcome, StoredBytes};

use crate::driver::Planned;
use crate::estate::Estate;

/// The bytes as the look found them. One look proves no orphan, so what nobody names counts as unknown here; reconcile says
/// what it is.
pub(crate) fn of(estate: &Estate, graph: &CloneGraph, p: &Planned) -> StoredBytes {
    let (look, governance) = (&p.look, &p.governance);
    let keep = graph.keep_set(&look.uri);
    let ages = Ages { now: look.at, longest_write: governance.policy.policy.longest_write.unwrap_or_default() };
    let found = classes(look, &keep, &ages);
    let refused = matches!(p.plan.cleanup.outcome, StepOutcome::Refused | StepOutcome::Skipped);
    let standing = Standing {
        governance,
        keep: &keep,
        trashed: governance.trash.is_some() && estate.snapshot.table_at(&look.uri).is_none(),
        may_clean: !refused,
        counted_elsewhere: &[],
        now: estate.now(),
    };
    let parts = stored(look, &found, &standing);
    let unproven = |(class, bytes)| (if class == "orphan" { "unknown" } else { class }, bytes);
    let prices = &estate.config().prices;
    let mut out = StoredBytes::of_parts(parts.classes().map(unproven), parts.holders(), parts.fragment_sizes(), prices);
    out.dead_columns = parts.dead_columns;
    out.write_amplification = parts.write_amplification;
    out
}
