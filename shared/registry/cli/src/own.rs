//! What a dataset's own config says of its maintenance, beside the policy that governs it. It lies in the dataset, so the lake crate reads it.

use std::collections::BTreeMap;

use squire_lake::contain;
use squire_registry::{Governance, Snapshot, Subject};

use crate::catalog::lake;
use crate::context::Context;
use crate::output::time;

/// The keys that count for maintenance begin so.
const PREFIXES: [&str; 3] = ["lance.compaction.", "lance.auto_cleanup.", "squire."];

/// The dataset of a table or dataset that has data; `None` for what has none, or is not registered.
pub(crate) fn uri_of(snapshot: &Snapshot, subject: &Subject) -> Option<String> {
    match subject {
        Subject::Table(path) => snapshot.table(path).filter(|t| !t.fields.declared).map(|t| t.fields.uri.clone()),
        Subject::Dataset(uri) => Some(uri.clone()),
        _ => None,
    }
}

/// The keys of HEAD that count for maintenance.
///
/// # Errors
/// Why they could not be read.
pub(crate) async fn config(
    context: &Context,
    snapshot: &Snapshot,
    uri: &str,
) -> Result<BTreeMap<String, String>, String> {
    let lake = lake(context);
    lake.backed_by(snapshot);
    let read = contain::contained(&lake, "reading the table's own config", uri, lake.open(uri)).await;
    let dataset = read.map_err(|e| e.to_string())?;
    let counts = |key: &str| PREFIXES.iter().any(|prefix| key.starts_with(prefix));
    Ok(dataset.config().iter().filter(|(key, _)| counts(key)).map(|(k, v)| (k.clone(), v.clone())).collect())
}

/// The keys and what they change, as lines below a policy.
pub(crate) fn lines(own: &Result<BTreeMap<String, String>, String>, governance: &Governance) -> Vec<String> {
    let own = match own {
        Err(why) => return vec![format!("  the table's own config could not be read, and may keep more: {why}")],
        Ok(own) if own.is_empty() => {
            return vec!["  the table's own config says nothing of its maintenance".to_owned()];
        }
        Ok(own) => own,
    };
    let mut out: Vec<String> = own.iter().map(|(key, value)| format!("  the table's own: {key} = {value}")).collect();
    out.extend(governance.policy.table_config.iter().map(|what| format!("    {what}")));
    out.extend(governance.opted_out.iter().map(|why| format!("    not maintained: {why}")));
    out.extend(governance.paused_until.map(|until| format!("    not maintained until {}", time(until))));
    out
}
