//! The commit of a build, and how one that landed is known again.

use std::collections::BTreeSet;
use std::sync::Arc;

use lance::Dataset;
use lance::dataset::transaction::Operation;
use uuid::Uuid;

use super::{Built, Definition};
use crate::commit::{self, Outputs};
use crate::handle::Place;
use crate::look::Look;
use crate::stamp::{Stamper, keys};
use crate::{Error, Lake};

/// The stamp's step.
pub(crate) const STEP: &str = "build";

/// A commit that landed.
#[derive(Debug, Clone)]
pub struct Landed {
    /// HEAD after it.
    pub dataset: Arc<Dataset>,
    /// The version that it made.
    pub version: u64,
}

/// What was built, before its commit.
pub fn outputs_of(built: &Built) -> Outputs {
    let uuids: BTreeSet<Uuid> = built.segments.iter().map(|s| s.uuid).chain(built.staged.iter().copied()).collect();
    Outputs {
        files: BTreeSet::new(),
        directories: uuids.iter().map(|uuid| format!("_indices/{uuid}")).collect(),
        bytes: built.bytes(),
    }
}

/// Directories of parts that were merged into others: no commit will name them.
pub fn surplus(built: &Built) -> Vec<Uuid> {
    built.staged.iter().copied().filter(|uuid| built.segments.iter().all(|s| s.uuid != *uuid)).collect()
}

/// Removes what a build wrote that was never offered to a commit, so that nobody can name it. `written` are directories of a
/// build that was cut short. Returns the bytes left behind.
pub async fn discard(place: &Place, written: &[Uuid]) -> u64 {
    let directories = written.iter().map(|uuid| format!("_indices/{uuid}")).collect();
    commit::remove(place, &Outputs { files: BTreeSet::new(), directories, bytes: 0 }).await
}

/// Commits a build in one stamped `CreateIndex`, in place of whatever has its name at the version that was read, which `look` is
/// of. `request` is the asker's id, which goes into the commit.
///
/// # Errors
/// As [`commit::commit`]; second value: bytes left on disk because the loss is not proven.
pub async fn land(
    lake: &Lake,
    place: &Place,
    look: &Look,
    built: Built,
    definition: &Definition,
    stamper: &Stamper,
    request: &str,
) -> std::result::Result<Landed, (Error, u64)> {
    let (outputs, read_version) = (outputs_of(&built), built.read_version);
    let work = async {
        let opened = || Error::new(crate::Kind::Bug, "committing an index", &look.uri);
        let dataset = look.dataset.as_ref().filter(|d| d.version_id() == read_version).ok_or_else(opened)?;
        // Also those that this build would filter out.
        let standing = look.head.indices.iter().filter(|i| i.name == definition.name);
        let removed_indices = standing.cloned().collect();
        let operation = Operation::CreateIndex { new_indices: built.segments, removed_indices };
        let mut properties = stamper.properties(STEP, 0);
        properties.insert(keys::REQUEST.into(), request.to_string());
        commit::commit(lake, dataset, read_version, operation, properties).await
    };
    match work.await {
        Ok(landed) => Ok(Landed { version: landed.version_id(), dataset: Arc::new(landed) }),
        Err(error) => {
            let stranded = commit::abandon(place, read_version, &error, &outputs).await;
            Err((error, stranded))
        }
    }
}

/// The version that a run's build committed earlier, by its stamp; `None` when none did, or its version is gone.
pub fn landed_before(look: &Look, run: Uuid) -> Option<u64> {
    let run = run.to_string();
    let ours = |m: &&crate::look::ManifestInfo| m.stamp.as_ref().is_some_and(|s| s.run == run && s.step == STEP);
    look.versions().into_iter().map(|(_, m)| m).find(ours).map(|m| m.version)
}
