//! Findings: one line each of a drift, damage or orphan report.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantArray};

use super::enums::{Severity, names};

names! {
    /// What was found. The severity of each kind is fixed ([`FindingKind::severity`]).
    FindingKind {
        /// A file that nobody names, old enough to go.
        OrphanFile,
        /// A file that nobody names, too young to judge.
        YoungFile,
        /// A file that is not of this dataset.
        ForeignFile,
        /// A file of a kind that cannot be judged.
        UnknownFile,
        /// A file that is named and not there.
        MissingFile,
        /// A manifest that cannot be read.
        UnreadableManifest,
        /// Manifests of both naming schemes.
        MixedManifestNames,
        /// A tag on a version that is gone.
        DanglingTag,
        /// A dataset within this one.
        NestedDataset,
        /// Another base is listed and nothing there is used.
        ExternalBaseUnreferenced,
        /// A required index is absent.
        IndexMissing,
        /// An index is only a definition.
        IndexUntrained,
        /// An index cannot be read.
        IndexUnreadable,
        /// Rows are not in the index.
        IndexLagging,
        /// Index segments part fragments that should merge.
        IndexSegmentsBlockCompaction,
        /// Fragments that an index of an unsupported type holds out.
        HeldOutFragments,
        /// Bytes of dropped columns in live files.
        DeadColumnBytes,
        /// The fragment-reuse index grows.
        FragmentReuseGrowth,
        /// The table's own hook fights the policy.
        AutoCleanupConflict,
        /// A hold that the table's own hook can undo.
        HoldNotEnforceable,
        /// Somebody else maintains the dataset too.
        OtherMaintainer,
        /// Clients write that could not read a rewritten index.
        OldClients,
        /// No tier, in an estate that declares tiers.
        Untiered,
        /// Bytes of lost commits and dead runs.
        StrandedBytes,
        /// A commit on a graph's table that the graph did not make.
        ForeignCommit,
        /// Detached versions.
        DetachedVersions,
        /// This dataset is a clone.
        CloneOf,
        /// This dataset has clones.
        ClonedBy,
        /// Deleted bytes stay as non-current versions.
        BucketVersioned,
        /// A dataset that the registry does not name.
        UnregisteredDataset,
        /// A table whose bytes are not there.
        TableWithoutBytes,
        /// Two tables at one location.
        LocationShared,
        /// A warehouse whose bucket is not there.
        WarehouseWithoutBucket,
        /// Two projects in one bucket.
        BucketSharedByProjects,
        /// Trash past its deadline.
        TrashExpired,
        /// Trash whose bytes are not there.
        TrashWithoutBytes,
        /// A protection whose subject does not exist.
        ProtectionOnNothing,
        /// A policy whose subject does not exist.
        PolicyOnNothing,
        /// Two projects' policies claim one bucket.
        PolicyClash,
        /// A namespace bound to a warehouse that does not exist.
        BindingToNothing,
        /// A record that cannot be read.
        RecordUnreadable,
        /// Protections vanished without a trail.
        ProtectionsVanished,
        /// A namespace lacks a table of the registry.
        NamespaceMissingTable,
        /// A namespace has a table that the registry lacks.
        NamespaceExtraTable,
        /// Namespace and registry name different locations.
        NamespaceLocationDiffers,
        /// A table that is declared and has no data.
        TableDeclaredOnly,
        /// A table that its namespace deregistered.
        TableDeregistered,
        /// A contract that binds no table.
        ContractUnbound,
        /// A contract whose change waits.
        ContractPending,
        /// A contract that something blocks.
        ContractBlocked,
        /// A scan that found nothing.
        EmptyScan,
    }
}

impl FindingKind {
    /// How bad it is: `error` for what puts data or rules at risk, `warning` for what costs money
    /// or speed (orphans, indices, wedges, stranded or dead bytes, conflicts, drift, expired
    /// trash), `info` for the rest.
    pub fn severity(self) -> Severity {
        use FindingKind as K;
        match self {
            K::MissingFile
            | K::UnreadableManifest
            | K::MixedManifestNames
            | K::HoldNotEnforceable
            | K::ProtectionsVanished
            | K::RecordUnreadable
            | K::TableWithoutBytes
            | K::LocationShared
            | K::PolicyClash
            | K::ForeignCommit
            | K::EmptyScan => Severity::Error,
            K::OrphanFile
            | K::IndexMissing
            | K::IndexUntrained
            | K::IndexUnreadable
            | K::IndexLagging
            | K::IndexSegmentsBlockCompaction
            | K::HeldOutFragments
            | K::DeadColumnBytes
            | K::FragmentReuseGrowth
            | K::StrandedBytes
            | K::AutoCleanupConflict
            | K::OtherMaintainer
            | K::NestedDataset
            | K::OldClients
            | K::DanglingTag
            | K::UnregisteredDataset
            | K::WarehouseWithoutBucket
            | K::BucketSharedByProjects
            | K::TrashExpired
            | K::TrashWithoutBytes
            | K::ProtectionOnNothing
            | K::PolicyOnNothing
            | K::BindingToNothing
            | K::NamespaceMissingTable
            | K::NamespaceExtraTable
            | K::NamespaceLocationDiffers
            | K::ContractBlocked => Severity::Warning,
            K::YoungFile
            | K::ForeignFile
            | K::UnknownFile
            | K::ExternalBaseUnreferenced
            | K::Untiered
            | K::DetachedVersions
            | K::CloneOf
            | K::ClonedBy
            | K::BucketVersioned
            | K::TableDeclaredOnly
            | K::TableDeregistered
            | K::ContractUnbound
            | K::ContractPending => Severity::Info,
        }
    }
}

impl FindingKind {
    /// What to do about it in general, where the finding says nothing more particular; `None` where nothing need be done.
    pub fn remedy(self) -> Option<&'static str> {
        use FindingKind as K;
        Some(match self {
            K::MissingFile => {
                "restore the file from a copy; until then an older version may be the only one that reads"
            }
            K::UnreadableManifest => "restore the file, or remove the version by hand once nobody needs it",
            K::MixedManifestNames => "migrate the manifests' names with Lance while nobody writes",
            K::DanglingTag => "delete the tag, or restore its version from a copy",
            K::NestedDataset => "move the inner dataset out; until then the outer one's versions stay",
            K::IndexMissing => "squire-index-build build, or take it off the policy's required_indices",
            K::IndexUntrained => "nothing: it is trained once there are rows enough",
            K::IndexUnreadable => "build it again: squire-index-build build … --replace",
            K::IndexLagging => "nothing: the next pass folds the rows in",
            K::IndexSegmentsBlockCompaction => "nothing: the next pass merges the segments first",
            K::HeldOutFragments => "use a build that opens this type of index, or drop the index",
            K::DeadColumnBytes => "nothing: the next compaction rewrites them",
            K::FragmentReuseGrowth => "compact without deferred index remaps",
            K::AutoCleanupConflict | K::HoldNotEnforceable => {
                "remove the lance.auto_cleanup keys from the table's config"
            }
            K::OtherMaintainer => "stop one of the two; squire.maintain = off in the table's config stops this one",
            K::OldClients => "upgrade the client, or set policy.upgrade_index_format = true",
            K::Untiered => "squire-registry table set … --tier T",
            K::OrphanFile | K::TrashExpired | K::StrandedBytes => "squire-reconcile reclaim plan --out PLAN",
            K::ForeignFile => "move it out of the dataset's folder",
            K::ForeignCommit => "have the graph's own tool repair the table",
            K::UnregisteredDataset => "squire-registry table create, or nothing: the estate's defaults hold",
            K::TableWithoutBytes => "restore its bytes, or drop the table",
            K::LocationShared => "drop all names but one",
            K::WarehouseWithoutBucket => "bring it back, or drop the warehouse",
            K::BucketSharedByProjects | K::PolicyClash => "give each project a root of its own",
            K::TrashWithoutBytes => "restore its bytes if it is to come back",
            K::ProtectionOnNothing => "squire-registry protection unset",
            K::PolicyOnNothing => "squire-registry policy unset",
            K::BindingToNothing => "make the parent again, or drop what is bound to it",
            K::RecordUnreadable => "restore the object, or use a build that understands it",
            K::ProtectionsVanished => "restore the registry from its backup before the next sweep",
            K::NamespaceMissingTable => "register it in the namespace, or drop the table",
            K::NamespaceExtraTable => "squire-registry table create, or drop it from the namespace",
            K::NamespaceLocationDiffers => "correct the one that is wrong",
            K::ContractPending | K::ContractBlocked | K::ContractUnbound => "squire-registry contract show",
            K::EmptyScan => "check the path and the credentials",
            K::YoungFile
            | K::UnknownFile
            | K::ExternalBaseUnreferenced
            | K::DetachedVersions
            | K::CloneOf
            | K::ClonedBy
            | K::BucketVersioned
            | K::TableDeclaredOnly
            | K::TableDeregistered => return None,
        })
    }
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What was found.
    pub kind: FindingKind,
    /// How bad it is; fixed by the kind.
    pub severity: Severity,
    /// What it is about.
    pub subject: FindingSubject,
    /// Bytes concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Age in seconds, by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_seconds: Option<f64>,
    /// One sentence.
    pub detail: String,
    /// What to do, where something can be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    /// A finding with its kind's severity.
    pub fn new(kind: FindingKind, subject: FindingSubject, detail: impl Into<String>) -> Self {
        Self {
            kind,
            severity: kind.severity(),
            subject,
            bytes: None,
            age_seconds: None,
            detail: detail.into(),
            fix: None,
        }
    }

    /// Adds the bytes concerned.
    pub fn with_bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// Adds the age in seconds.
    pub fn with_age_seconds(mut self, seconds: f64) -> Self {
        self.age_seconds = Some(seconds);
        self
    }

    /// Adds what to do.
    pub fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// What a finding is about; at least one of the fields is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FindingSubject {
    /// Canonical URI of a dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// A path relative to the dataset's root; outside of it a full URI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// A table, as a SUBJECT.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// A record of the registry, `collection/key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
}

impl FindingSubject {
    /// A dataset.
    pub fn dataset(uri: impl Into<String>) -> Self {
        Self { dataset: Some(uri.into()), ..Self::default() }
    }

    /// A path within a dataset.
    pub fn path(uri: impl Into<String>, path: impl Into<String>) -> Self {
        Self { dataset: Some(uri.into()), path: Some(path.into()), ..Self::default() }
    }

    /// A table.
    pub fn table(table: impl Into<String>) -> Self {
        Self { table: Some(table.into()), ..Self::default() }
    }

    /// A record.
    pub fn record(record: impl Into<String>) -> Self {
        Self { record: Some(record.into()), ..Self::default() }
    }

    /// A path that belongs to no dataset, such as a ROOT.
    pub fn uri(uri: impl Into<String>) -> Self {
        Self { path: Some(uri.into()), ..Self::default() }
    }
}
