//! Why steps end as they do.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use super::enums::{FailureKind, StepKind, StepOutcome, names};

names! {
    /// Why a step ended as it did: the reasons of `nothing_to_do`, of `skipped`, the refusals of
    /// every step, and the failure kinds.
    StepReason {
        /// Nothing to do: the result would be no better.
        NoGain,
        /// Nothing to do: everything is within its retention.
        Retention,
        /// Nothing to do: in shape.
        Settled,
        /// Skipped by policy.
        Policy,
        /// Skipped by a flag of the command.
        Flag,
        /// Skipped by the estate's mode.
        Mode,
        /// Refused: too much was rewritten within one retention.
        RewriteBudget,
        /// Refused: beyond the memory, or the fleet's budget.
        OverBudget,
        /// Refused: rows would move from another base.
        ExternalBases,
        /// Refused: an index cannot be read.
        UnreadableIndex,
        /// Refused: the table's own hook could delete what policy or protection keeps.
        AutoCleanupConflict,
        /// Refused: index segments part the fragments.
        IndexSegments,
        /// Refused: a client that still writes could not read the result.
        OldClients,
        /// Refused: a full-text index of a layout that the library cannot remap.
        LegacyIndex,
        /// Refused: not enough free disk.
        NoSpace,
        /// Refused: the rewritten object would be encrypted otherwise.
        EncryptionDiffers,
        /// Refused: an index that was never trained.
        Untrained,
        /// Refused: a legal hold.
        Held,
        /// Refused: HEAD names a file that is not there.
        Unhealthy,
        /// Refused: verification failed.
        VerifyFailed,
        /// Refused: not everything that could name a file could be read.
        ReferencesIncomplete,
        /// Refused: detached versions of an unknown owner.
        DetachedPresent,
        /// Refused: another dataset lies within this one.
        NestedDataset,
        /// Refused: a manifest cannot be read.
        UnreadableManifest,
        /// Refused: a catalogue manages the versions.
        ManagedCatalog,
        /// Refused: the root belongs to another registry.
        RegistryLost,
        /// Refused: the root is not this estate's alone.
        NotExclusive,
        /// Refused: no credentials that may delete.
        NoDeletePermission,
        /// Failed: could not be opened.
        Open,
        /// Failed: broken.
        Damaged,
        /// Failed: may work when tried again.
        Transient,
        /// Failed: other writers won every time.
        Conflict,
        /// Failed: will not work before something changes.
        Permanent,
        /// Failed: other answers than before.
        Verify,
        /// Failed: the library or Squire misbehaved.
        Bug,
    }
}

impl StepReason {
    /// The reasons that go with `outcome` in `step`; empty where an outcome has none.
    pub fn allowed(step: StepKind, outcome: StepOutcome) -> &'static [Self] {
        use StepReason as R;
        match outcome {
            StepOutcome::Done | StepOutcome::Planned => &[],
            StepOutcome::NothingToDo => &[R::NoGain, R::Retention, R::Settled],
            StepOutcome::Skipped => &[R::Policy, R::Flag, R::Mode],
            StepOutcome::Failed => &[R::Open, R::Damaged, R::Transient, R::Conflict, R::Permanent, R::Verify, R::Bug],
            StepOutcome::Refused => match step {
                StepKind::Compact => &[
                    R::RewriteBudget,
                    R::OverBudget,
                    R::ExternalBases,
                    R::UnreadableIndex,
                    R::AutoCleanupConflict,
                    R::IndexSegments,
                    R::OldClients,
                    R::LegacyIndex,
                    R::NoSpace,
                    R::EncryptionDiffers,
                ],
                StepKind::OptimizeIndices => {
                    &[R::OldClients, R::LegacyIndex, R::Untrained, R::UnreadableIndex, R::AutoCleanupConflict]
                }
                StepKind::Cleanup => &[
                    R::Held,
                    R::Unhealthy,
                    R::VerifyFailed,
                    R::ReferencesIncomplete,
                    R::DetachedPresent,
                    R::NestedDataset,
                    R::UnreadableManifest,
                    R::AutoCleanupConflict,
                    R::ManagedCatalog,
                    R::RegistryLost,
                    R::NotExclusive,
                    R::NoDeletePermission,
                ],
                StepKind::Verify => &[],
            },
        }
    }
}

impl From<FailureKind> for StepReason {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Open => Self::Open,
            FailureKind::Damaged => Self::Damaged,
            FailureKind::Transient => Self::Transient,
            FailureKind::Conflict => Self::Conflict,
            FailureKind::Permanent => Self::Permanent,
            FailureKind::Verify => Self::Verify,
            FailureKind::Bug => Self::Bug,
        }
    }
}

impl StepReason {
    /// What an operator can do about a refusal, in one clause; `None` where the reason is no
    /// refusal or waits for nobody.
    pub fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::RewriteBudget => "wait, or sweep by hand, or raise max_stranded",
            Self::OverBudget => "raise limits.memory or the budget, or wait for the next day",
            Self::ExternalBases => "ask for it: rows would move to the primary base",
            Self::UnreadableIndex => "rebuild or drop the index",
            Self::AutoCleanupConflict => "take lance.auto_cleanup out of the table's configuration",
            Self::IndexSegments => "the index has to merge its segments first",
            Self::OldClients => "upgrade the clients to the Lance that is named, then set upgrade_index_format = true",
            Self::LegacyIndex => "rebuild the full-text index",
            Self::NoSpace => "free disk space; cleanup goes on",
            Self::EncryptionDiffers => "set the bucket's encryption options under [storage]",
            Self::Untrained => "write more rows; the index trains when there are enough",
            Self::Held => "lift the hold (squire-registry protection unset)",
            Self::Unhealthy => "restore what is missing; older versions stay for that",
            Self::VerifyFailed => "see the finding, then remove the block",
            Self::ReferencesIncomplete => "see what could not be read, under incomplete",
            Self::DetachedPresent => "ask the owner of the detached versions",
            Self::NestedDataset => "move the inner dataset out",
            Self::UnreadableManifest => "restore or remove the manifest",
            Self::ManagedCatalog => "clean up through the catalogue",
            Self::RegistryLost => "name the registry that the root belongs to with --registry",
            Self::NotExclusive => "others may read these files; set exclusive when nobody does",
            Self::NoDeletePermission => "give credentials that may delete under [storage.delete]",
            _ => return None,
        })
    }
}
