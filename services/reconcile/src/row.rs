//! What is kept of one dataset: its row of the report, made from a look and its classes. Pure.

use chrono::{DateTime, Utc};
use squire_lake::examine::Examined;
use squire_lake::index::{IndexInfo, State};
use squire_lake::known::Mark;
use squire_lake::look::{FragmentInfo, Look};
use squire_lake::refs::KeepSet;
use squire_lake::stored::{Standing, stored};
use squire_lake::tier::tier_of;
use squire_registry::Governance;
use squire_service::config::Prices;
use squire_service::report::{
    Authority, Dataset, DatasetState, Finding, FindingKind, Incomplete, IndexState, IndexStatus, Layout, Outcome,
    StoredBytes, StoredClass, TierSource, WriterInfo,
};

use crate::findings;
use crate::walk::{Scope, Visit};

/// A dataset of the report.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// As the report shows it.
    pub(crate) dataset: Dataset,
    /// What of it could not be read.
    pub(crate) incomplete: Vec<Incomplete>,
    /// Whether a namespace's marker says that it was deregistered.
    pub(crate) deregistered: bool,
    /// The name that it declares in `lineage.dataset_id`; none where it reads files of others, whose config it may carry.
    pub(crate) lineage: Option<String>,
    /// HEAD's number and its own time.
    pub(crate) head: (u64, DateTime<Utc>),
    /// Objects under it.
    pub(crate) objects: u64,
    /// What it reads of others.
    pub(crate) reads: squire_lake::refs::Reads,
    /// Whether its bucket keeps what is overwritten or deleted.
    pub(crate) versioned: bool,
    /// By what one request tells that it has not moved; none where only a look can.
    pub(crate) mark: Option<Mark>,
}

/// Makes rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    /// Whether files that nobody names are reported.
    pub(crate) orphans: bool,
}

impl Visit for Rows {
    type Row = Row;

    fn row(&self, scope: &Scope, examined: &Examined, keep: &KeepSet) -> Row {
        let look = &examined.look;
        let governance = scope.govern(&look.uri, look);
        let mut dataset = described(scope, look, &governance);
        let bytes = self.stored(scope, examined, &governance, keep);
        dataset.findings = findings::of_dataset(scope, examined, &governance, keep, &bytes, self.orphans);
        dataset.stored = Some(bytes);
        Row {
            dataset,
            incomplete: findings::unread(look),
            deregistered: look.deregistered,
            lineage: look.lineage(),
            head: (look.version(), look.head.timestamp),
            objects: look.listing.entries.len() as u64,
            reads: look.reads.clone(),
            versioned: look.head.store_keeps_versions,
            mark: Mark::of(look).map(Mark::without_reads),
        }
    }

    const CONTRACTS: bool = true;

    const NAMESPACES: bool = true;

    const CLONES: bool = true;

    fn add(&self, row: &mut Row, more: Vec<Finding>) {
        row.dataset.findings.extend(more);
    }

    fn incomplete(&self, row: &mut Row, why: &[String]) {
        if let Some(stored) = &mut row.dataset.stored {
            move_bytes(stored, &[StoredClass::Orphan, StoredClass::Young], StoredClass::Unknown);
            move_bytes(stored, &[StoredClass::Reclaimable], StoredClass::History);
        }
        let why = why.first().map(String::as_str).unwrap_or_default();
        for finding in &mut row.dataset.findings {
            if matches!(finding.kind, FindingKind::OrphanFile | FindingKind::YoungFile) {
                let detail = format!("{}, and the references are incomplete: {why}", finding.detail);
                *finding =
                    Finding { bytes: finding.bytes, age_seconds: finding.age_seconds, ..unknown(finding, detail) };
            }
        }
    }
}

fn unknown(finding: &Finding, detail: String) -> Finding {
    Finding::new(FindingKind::UnknownFile, finding.subject.clone(), detail)
}

fn move_bytes(stored: &mut StoredBytes, from: &[StoredClass], to: StoredClass) {
    let moved: u64 = from.iter().filter_map(|class| stored.classes.insert(*class, 0)).sum();
    *stored.classes.entry(to).or_default() += moved;
}

impl Rows {
    fn stored(&self, scope: &Scope, examined: &Examined, governance: &Governance, keep: &KeepSet) -> StoredBytes {
        let look = &examined.look;
        let nested: Vec<String> = look.nested.iter().cloned().collect();
        let standing = Standing {
            governance,
            keep,
            trashed: governance.trash.is_some() && scope.snapshot.table_at(&look.uri).is_none(),
            may_clean: may_clean(scope, look, governance),
            // Each of them is looked at and has a row, or is weighed by itself.
            counted_elsewhere: &nested,
            now: scope.at,
        };
        let parts = stored(look, &examined.classes, &standing);
        // One look proves no orphan.
        let unproven = |(class, bytes)| (if class == "orphan" && !self.orphans { "unknown" } else { class }, bytes);
        let prices: &Prices = &scope.config.prices;
        let mut out =
            StoredBytes::of_parts(parts.classes().map(unproven), parts.holders(), parts.fragment_sizes(), prices);
        out.dead_columns = parts.dead_columns;
        out.write_amplification = parts.write_amplification;
        out
    }
}

/// Whether clean-up would remove what the policy lets go: neither the registry nor the dataset makes it refuse.
fn may_clean(scope: &Scope, look: &Look, governance: &Governance) -> bool {
    let registry = governance.policy.policy.cleanup
        && governance.held_by().is_none()
        && governance.unreadable.is_empty()
        && governance.exclusive
        && scope.config.estate.exclusive;
    let unread_index = look.indices.iter().any(|i| i.state == State::Unreadable);
    let detached = look.manifests.iter().any(|m| m.detached);
    registry
        && look.missing.is_empty()
        && !unread_index
        && !look.mixed_names
        && !detached
        && look.nested.is_empty()
        && !look.managed_blobs()
}

fn described(scope: &Scope, look: &Look, governance: &Governance) -> Dataset {
    let mut out = Dataset::new(&look.uri, Outcome::idle());
    out.table = scope.snapshot.table_at(&look.uri).map(|t| t.fields.subject().to_string());
    let (from_uri, layout) = tier_of(&look.uri, &scope.config.estate.tiers);
    out.tier_source = match (&governance.tier, &from_uri) {
        (Some(_), _) => TierSource::Registry,
        (None, Some(_)) => TierSource::Uri,
        (None, None) => TierSource::None,
    };
    out.tier = governance.tier.clone().or(from_uri);
    out.layout = serde_json::to_value(layout).and_then(serde_json::from_value).unwrap_or(Layout::None);
    out.authority = look.authority.as_str().parse().unwrap_or(Authority::Unknown);
    out.writers = writers(look);
    let rows = look.fragments.iter().map(FragmentInfo::rows).sum();
    let missing = squire_lake::index::missing_states(&look.indices, &governance.policy.policy.required_indices, rows);
    out.before = Some(DatasetState {
        version: look.version(),
        fragments: look.fragments.len() as u64,
        rows,
        deleted_rows: look.fragments.iter().map(|f| f.deleted_rows).sum(),
        bytes: look.listing.bytes(),
        versions: look.versions().len() as u64,
        indices: look.indices.iter().chain(&missing).map(index_status).collect(),
    });
    out
}

fn index_status(index: &IndexInfo) -> IndexStatus {
    let known = index.state != State::Unreadable;
    IndexStatus {
        name: index.name.clone(),
        index_type: index.kind.clone(),
        segments: index.segments.len() as u64,
        indexed_rows: known.then_some(index.indexed_rows),
        unindexed_rows: known.then_some(index.unindexed_rows),
        state: index.state.as_str().parse().unwrap_or(IndexState::Unreadable),
    }
}

/// Who wrote it, without Squire: the newest version of each library release.
fn writers(look: &Look) -> Vec<WriterInfo> {
    let mut by = std::collections::BTreeMap::<String, u64>::new();
    for manifest in look.manifests.iter().filter(|m| m.stamp.is_none() && !m.detached && m.tree.is_empty()) {
        let Some((library, version)) = &manifest.writer else { continue };
        let name = if library == "lance" { version.clone() } else { format!("{library} {version}") };
        let newest = by.entry(name).or_default();
        *newest = (*newest).max(manifest.version);
    }
    by.into_iter().map(|(lance, version)| WriterInfo { version, lance }).collect()
}
