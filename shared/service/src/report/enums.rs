//! Every list of names in the report. The string of a variant is the same in the report, the
//! logs and the metric labels.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

/// Declares an enum whose variants are snake_case strings everywhere.
macro_rules! names {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
            Display, EnumString, IntoStaticStr, VariantArray,
        )]
        #[serde(rename_all = "snake_case")]
        #[strum(serialize_all = "snake_case")]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// All variants, in the order in which they are declared.
            pub const ALL: &'static [Self] = Self::VARIANTS;

            /// The stable name.
            pub fn as_str(self) -> &'static str {
                self.into()
            }
        }
    };
}
pub(crate) use names;

names! {
    /// What a report tells of.
    ReportKind {
        /// What would be done.
        Plan,
        /// A plan made and applied at once.
        Sweep,
        /// A plan file applied.
        Apply,
        /// Findings only.
        Reconcile,
        /// Orphans moved or purged.
        Reclaim,
    }
}

names! {
    /// The one outcome of a dataset.
    OutcomeKind {
        /// A step was done.
        Maintained,
        /// Something would be done.
        Planned,
        /// Nothing to do, or all that was left was refused.
        Idle,
        /// Not admitted; the reason is a [`SkipReason`].
        Skipped,
        /// A step failed; the reason is a [`FailureKind`].
        Failed,
    }
}

names! {
    /// Why a dataset was not admitted.
    SkipReason {
        /// It lies in the trash.
        Trashed,
        /// It carries a `.lance-deregistered` marker.
        Deregistered,
        /// A `freeze` protects it.
        Frozen,
        /// A block is filed.
        Blocked,
        /// Its interval has not passed, or there is no reason to start.
        NotDue,
        /// Now is outside of its window.
        OutsideWindow,
        /// Somebody is at long work in it.
        WriterActive,
        /// Its own configuration says `squire.maintain = off`.
        OptedOut,
        /// Include, exclude, labels, roll-out or `--limit` left it out.
        NotSelected,
        /// A graph owns its HEAD.
        GraphOwned,
        /// Its marks contradict each other.
        UnknownAuthority,
        /// It uses features that this build does not know.
        UnknownFeatureFlags,
        /// A record that governs it could not be read.
        RegistryUnreadable,
        /// Another process works on it.
        Claimed,
        /// It is declared and has no data yet.
        DeclaredOnly,
        /// Its bucket could not be read.
        BucketUnreadable,
        /// Its warehouse is not active.
        WarehouseInactive,
        /// A budget of the fleet is spent.
        BudgetExhausted,
        /// It moved since the plan was made.
        PlanStale,
    }
}

names! {
    /// How a dataset failed. Retries rest on this, never on a text.
    FailureKind {
        /// It could not be opened.
        Open,
        /// A file that HEAD names is missing or broken.
        Damaged,
        /// May work when tried again.
        Transient,
        /// Other writers won every time.
        Conflict,
        /// Will not work before something changes.
        Permanent,
        /// The answers after were not the answers before.
        Verify,
        /// The library or Squire misbehaved.
        Bug,
    }
}

names! {
    /// The steps of a pass.
    StepKind {
        /// Merging fragments.
        Compact,
        /// Folding rows into indices and merging segments.
        OptimizeIndices,
        /// Comparing answers before and after.
        Verify,
        /// Removing old versions.
        Cleanup,
    }
}

names! {
    /// How a step ended.
    StepOutcome {
        /// It was done.
        Done,
        /// There was nothing to do: `no_gain`, `retention`, `settled`.
        NothingToDo,
        /// It would be done.
        Planned,
        /// It was left out: `policy`, `flag`, `mode`.
        Skipped,
        /// A rule forbade it.
        Refused,
        /// It failed; the reason is a failure kind.
        Failed,
    }
}

impl StepOutcome {
    /// Whether the step may have changed something: it was done, or failed on the way.
    pub fn did_something(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }
}

names! {
    /// Who owns a dataset's HEAD.
    Authority {
        /// Lance.
        Linear,
        /// A namespace.
        Managed,
        /// A graph, through detached pins.
        Graph,
        /// Detached versions of an unknown owner.
        Detached,
        /// Contradictory marks.
        Unknown,
    }
}

names! {
    /// Where a dataset's tier was found.
    TierSource {
        /// Declared in the registry.
        Registry,
        /// Read from the URI.
        Uri,
        /// Nowhere.
        None,
    }
}

names! {
    /// The URI layout from which a tier was read.
    Layout {
        /// `<tier>/<namespace>/<table>` and deeper.
        Nested,
        /// The tier as the last of a cascade of levels.
        Cascade,
        /// The same, below a project.
        CascadeProject,
        /// The same, ending in the table.
        CascadeTable,
        /// All in one segment.
        Flat,
        /// One segment with a lane.
        FlatLane,
        /// One segment with a parent.
        FlatNested,
        /// No layout was recognised.
        None,
    }
}

names! {
    /// What decided the rows per fragment.
    TargetSource {
        /// `target_rows` of the policy.
        Policy,
        /// `lance.compaction.*` of the dataset.
        DatasetConfig,
        /// The tier.
        Tier,
        /// `target_bytes`.
        Bytes,
        /// Lance's default.
        Lance,
    }
}

names! {
    /// The rung of the hierarchy whose policy won.
    PolicySourceKind {
        /// The table's own record.
        Table,
        /// A namespace's record.
        Namespace,
        /// A project's record.
        Project,
        /// A contract.
        Contract,
        /// The estate's defaults.
        Estate,
        /// A flag of the command.
        Flag,
    }
}

names! {
    /// The state of an index.
    IndexState {
        /// Every row is in it.
        Covered,
        /// Some rows are not.
        Lagging,
        /// It has more segments than the bound.
        Segmented,
        /// It is only a definition.
        Untrained,
        /// It cannot be read.
        Unreadable,
        /// It is required and absent.
        Missing,
        /// This build cannot open its type.
        Unsupported,
    }
}

names! {
    /// What was done to an index.
    IndexAction {
        /// New rows were folded in.
        Fold,
        /// Segments were merged.
        Merge,
        /// It was built again.
        Rebuild,
        /// Nothing.
        None,
    }
}

names! {
    /// What keeps a version or bytes.
    HoldReason {
        /// Not yet replaced for long enough.
        Retention,
        /// One of the newest that are kept by number.
        RetainVersions,
        /// A tag.
        Tag,
        /// A branch.
        Branch,
        /// A clone reads its files.
        Clone,
        /// A detached version.
        Detached,
        /// A reader's block.
        ReaderBlock,
        /// A legal hold.
        Hold,
        /// A change of policy that has not taken effect.
        Pending,
    }
}

names! {
    /// What stored bytes are.
    StoredClass {
        /// Named by HEAD.
        Live,
        /// Named by older versions that stay.
        History,
        /// Named by versions that may go.
        Reclaimable,
        /// Named by nobody and old enough.
        Orphan,
        /// Named by nobody and young.
        Young,
        /// No file of Lance.
        Foreign,
        /// Of a kind that cannot be judged.
        Unknown,
        /// Moved away, waiting for its grace to end.
        Quarantine,
        /// Of dropped tables.
        Trash,
    }
}

names! {
    /// Why a block was filed, as the metrics count it.
    BlockReason {
        /// An operator paused it.
        Operator,
        /// A reader needs a version.
        Reader,
        /// Verification failed.
        Verify,
        /// It failed three times alike.
        RepeatedFailure,
    }
}

names! {
    /// How bad a finding is.
    Severity {
        /// Good to know.
        Info,
        /// Costs money or speed.
        Warning,
        /// Data or rules are at risk; exit code 3.
        Error,
    }
}

names! {
    /// The invariants that production counts.
    Invariant {
        /// Nothing is deleted that a plan did not name.
        OnlyPlannedDeletes,
        /// Verbs that plan or show write nothing.
        PlansWriteNothing,
        /// Frozen datasets get no write.
        FrozenUntouched,
        /// Compact, then indices; cleanup once, last.
        StepsInOrder,
        /// A settled dataset gains no version.
        SettledIsStill,
        /// What cannot be read makes destructive steps refuse.
        UnreadableRefuses,
        /// References keep alive all that they name.
        ReferencesLive,
        /// Rows and answers stay the same.
        SameAnswers,
        /// A message handled twice has the effect of once.
        OnceInEffect,
        /// Killed anywhere, everything stays readable.
        CrashSafe,
        /// One failure stops nobody else.
        FailuresStayHome,
        /// Messages carry names only.
        MessagesCarryNames,
        /// Admitted memory stays within the budget.
        MemoryAdmitted,
        /// Every dataset is counted once.
        EveryDatasetCounted,
        /// What was current lately is readable.
        RecentIsReadable,
        /// The wrong registry deletes nothing.
        RegistryLostDeletesNothing,
    }
}
