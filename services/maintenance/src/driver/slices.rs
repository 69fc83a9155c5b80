//! A large compaction in slices, from the side of the dataset's state: handed out once, and over once it has landed.

use std::collections::HashMap;

use squire_lake::contain;
use squire_service::report::SkipReason;
use uuid::Uuid;

use super::Planned;
use super::work::save_state;
use crate::admit::Skip;
use crate::apply::slices::{self, Landing};
use crate::apply::{Applied, Tools, failure_kind, verify_again};
use crate::state::Distributed;
use crate::{budget, memory};

/// Hands a large compaction out in slices, and remembers it before anybody is told. `above` is `limits.distribute_above`. What
/// it will rewrite is reserved of the fleet's day, and stays counted: its slices may be executed on another one.
///
/// # Errors
/// What a pass would say: it was left alone after all, or failed.
pub async fn distribute(tools: &Tools, p: &Planned, asked_by: Uuid, above: u64) -> Result<Distributed, Box<Applied>> {
    let reserved = match budget::reserve(tools, &p.plan).await {
        Ok(reserved) => reserved,
        Err(skip) => return Err(Box::new(Applied { skipped: Some(skip), ..Applied::default() })),
    };
    match slices::distribute(tools, p, asked_by, above).await {
        Ok(distributed) => {
            let mut state = p.state.clone();
            state.waiting_for = None;
            state.distributed = Some(distributed.clone());
            let uri = p.look.uri.clone();
            match tools.registry.save_state(HashMap::from([(uri, state)])).await {
                Ok(()) => Ok(distributed),
                Err(e) => {
                    let skip = Skip { reason: SkipReason::RegistryUnreadable, detail: e.to_string() };
                    Err(Box::new(Applied { skipped: Some(skip), ..Applied::default() }))
                }
            }
        }
        Err(mut applied) => {
            budget::settle(tools, reserved, &applied).await;
            let filed = save_state(tools, p, &applied).await;
            applied.filed.extend(filed);
            Err(applied)
        }
    }
}

/// Lands what slices have stored, contained, and saves the dataset's state: the compaction in slices is over, unless the
/// landing was put off or may be tried again.
pub async fn land(tools: &Tools, p: &Planned, landing: Landing) -> Applied {
    let _room = tools.admission.admit(memory::estimate(&p.layout, &p.plan)).await;
    let work = async { Ok(slices::land(tools, p, landing).await) };
    let mut applied = match contain::contained(&tools.estate.lake, "landing the slices", &p.look.uri, work).await {
        Ok(applied) => applied,
        Err(e) => {
            let mut applied = Applied::default();
            applied.failures.insert("pass", (failure_kind(e.kind()), e.to_string()));
            applied
        }
    };
    let filed = save_state(tools, p, &applied).await;
    applied.filed.extend(filed);
    applied
}

/// Ends a compaction of which every slice was given up: its failure is remembered as a pass's would be.
pub async fn end(tools: &Tools, p: &Planned, why: (squire_lake::Kind, String)) {
    let mut applied = Applied::default();
    applied.failures.insert("compact", (failure_kind(why.0), why.1));
    save_state(tools, p, &applied).await;
}

/// Ends a compaction whose stamp was found: it has landed already. What was not compared, because its process died, is compared
/// now and its audit entry closed; then this is what tells of the landing.
pub async fn landed(tools: &Tools, p: &Planned, landing: &Landing) -> Applied {
    let mut applied = verify_again(tools, p).await;
    for open in p.state.unverified.iter().filter(|open| applied.settled.contains(&open.after)) {
        applied.compact.tasks += open.groups.len() as u64;
        applied.compact.removed += open.groups.iter().map(|(old, _)| old.len() as u64).sum::<u64>();
        applied.compact.added += open.groups.iter().map(|(_, new)| new.len() as u64).sum::<u64>();
    }
    if applied.compact.tasks > 0 {
        applied.compact.bytes = landing.done.iter().map(squire_lake::compact::Rewritten::bytes).sum();
        applied.compact.replaced = landing.done.iter().map(squire_lake::compact::Rewritten::replaced_bytes).sum();
    }
    let filed = save_state(tools, p, &applied).await;
    applied.filed.extend(filed);
    applied
}
