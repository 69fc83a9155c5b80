//! A dataset described for planning, and what a round makes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use roaring::RoaringBitmap;
use squire_lake::authority::Authority;
use squire_lake::clients;
use squire_lake::erasure::{Erasure, Watched};
use squire_lake::index::{IndexInfo, Segment, State};
use squire_lake::listing::{Kind, classify};
use squire_lake::look::{FragmentInfo, Look, owner};
use squire_registry::Policy;
use squire_service::report::{IndexAction, StepReason};
use uuid::Uuid;

use super::{IndexWork, Round};

/// A dataset, described. Tests build one by hand.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Canonical URI.
    pub uri: String,
    /// HEAD.
    pub version: u64,
    /// HEAD's transaction and time: what tells it from another HEAD of the same number.
    pub head_id: String,
    /// HEAD's fragments in order.
    pub fragments: Vec<FragmentInfo>,
    /// HEAD's indices.
    pub indices: Vec<IndexInfo>,
    /// Columns that a data file stores, the leaves of nested ones each.
    pub columns: u64,
    /// Bytes of blobs beside the data files for each row of the fragment that has most of them: what a reader loads with its rows.
    pub payload: u64,
    /// All attached versions of the main tree, oldest first.
    pub versions: Vec<VersionInfo>,
    /// Tags on the main tree: name → version.
    pub tags: BTreeMap<String, u64>,
    /// Branches that start from the main tree: name → version.
    pub branch_points: BTreeMap<String, u64>,
    /// Bytes that HEAD names.
    pub live_bytes: u64,
    /// Bytes that only older versions name.
    pub history_bytes: u64,
    /// The table's own config.
    pub config: BTreeMap<String, String>,
    /// Why clean-up must not run on it, with FACES' refusal names; empty when healthy.
    pub unclean: Vec<(StepReason, String)>,
    /// A client still writes it that could not use one of its indices after a rewrite: which, and which index.
    pub old_client: Option<String>,
    /// A full-text index of the layout before partitions.
    pub legacy_index: Option<String>,
    /// Deferred remaps are pending (`__lance_frag_reuse`).
    pub deferred_remaps: bool,
    /// The owner of HEAD is not known to be Lance alone.
    pub detached: bool,
    /// What still holds deleted values.
    pub erasure: Erasure,
    /// Indices that are built anew now, for the sake of erasure.
    pub rebuild: BTreeSet<String>,
}

/// One version, for retention.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionInfo {
    /// Its number.
    pub version: u64,
    /// The later of its timestamp and its manifest's last-modified.
    pub time: DateTime<Utc>,
    /// Whether Squire made it.
    pub ours: bool,
    /// Bytes that only this version names.
    pub exclusive_bytes: u64,
}

impl Layout {
    /// Describes a look. `watched` is what is remembered of its history.
    pub fn of(look: &Look, policy: &Policy, watched: Option<&Watched>, now: DateTime<Utc>) -> Self {
        let on_main = |branch: &Option<String>| branch.as_deref().is_none_or(|b| b == "main");
        let live_bytes = look.live_bytes();
        let named = look.bytes_where(|_| true);
        Self {
            uri: look.uri.clone(),
            version: look.version(),
            head_id: format!(
                "{} {}",
                look.head.timestamp.to_rfc3339(),
                look.head.manifest.transaction_file.as_deref().unwrap_or_default()
            ),
            fragments: look.fragments.clone(),
            indices: look.indices.clone(),
            columns: look.head.manifest.schema.fields_pre_order().filter(|f| f.children.is_empty()).count() as u64,
            payload: payload(look),
            versions: versions(look),
            tags: look.tags.iter().filter(|(_, t)| on_main(&t.branch)).map(|(n, t)| (n.clone(), t.version)).collect(),
            branch_points: look
                .branches
                .iter()
                .filter(|(_, (parent, _))| on_main(parent))
                .map(|(n, (_, v))| (n.clone(), *v))
                .collect(),
            live_bytes,
            history_bytes: named.saturating_sub(live_bytes),
            config: look.config(),
            unclean: unclean(look),
            old_client: clients::old_client(look, policy, now),
            legacy_index: legacy_index(look),
            deferred_remaps: look.head.indices.iter().any(|i| i.name == "__lance_frag_reuse"),
            detached: matches!(look.authority, Authority::Detached { .. }),
            erasure: Erasure::of(look, watched),
            rebuild: BTreeSet::new(),
        }
    }

    /// How long nobody but Squire has written.
    pub fn quiet_for(&self, now: DateTime<Utc>) -> Duration {
        self.versions
            .iter()
            .filter(|v| !v.ours)
            .map(|v| v.time)
            .max()
            .and_then(|t| now.signed_duration_since(t).to_std().ok())
            .unwrap_or(Duration::ZERO)
    }

    /// Bytes of all fragments.
    pub fn data_bytes(&self) -> u64 {
        self.fragments.iter().map(|f| f.bytes).sum()
    }

    /// The widest fragment's bytes per physical row, at least 1.
    pub fn widest_row_bytes(&self) -> u64 {
        self.fragments
            .iter()
            .filter(|f| f.physical_rows > 0)
            .map(|f| f.bytes.div_ceil(f.physical_rows))
            .max()
            .unwrap_or(1)
            .max(1)
    }

    /// What a reader holds for one row of the widest fragment, payloads of blobs included.
    pub fn held_row_bytes(&self) -> u64 {
        self.widest_row_bytes() + self.payload
    }

    /// Unindexed rows over all indices.
    pub fn unindexed_rows(&self) -> u64 {
        self.indices.iter().map(|i| i.unindexed_rows).sum()
    }
}

/// As [`Layout::payload`].
fn payload(look: &Look) -> u64 {
    let of = |path: &str| -> u64 {
        let dir = format!("data/{}", path.strip_suffix(".lance").unwrap_or(path));
        look.listing.below(&dir).iter().map(|e| e.size).sum()
    };
    look.head
        .manifest
        .fragments
        .iter()
        .map(|f| f.files.iter().map(|file| of(&file.path)).sum::<u64>() / f.physical_rows.unwrap_or(0).max(1) as u64)
        .max()
        .unwrap_or(0)
}

fn versions(look: &Look) -> Vec<VersionInfo> {
    let mut exclusive: BTreeMap<u32, u64> = BTreeMap::new();
    for entry in &look.listing.entries {
        let Some(by) = owner(&entry.path).and_then(|key| look.uses.of(&key).cloned()) else { continue };
        if by.len() == 1
            && let Some(only) = by.min()
        {
            *exclusive.entry(only).or_default() += entry.size;
        }
    }
    look.versions()
        .into_iter()
        .map(|(ordinal, m)| VersionInfo {
            version: m.version,
            time: m.time(),
            ours: m.stamp.is_some(),
            exclusive_bytes: exclusive.get(&ordinal).copied().unwrap_or(0) + m.size,
        })
        .collect()
}

/// Everything in the dataset itself that makes clean-up refuse, by FACES' names.
fn unclean(look: &Look) -> Vec<(StepReason, String)> {
    let mut out = Vec::new();
    let mut add = |reason: StepReason, detail: String| out.push((reason, detail));
    if let Some(missing) = look.missing.first() {
        let n = look.missing.len();
        add(
            StepReason::Unhealthy,
            format!(
                "{n} files that HEAD names are not as recorded, {} first; an older version may be the only good one",
                missing.path
            ),
        );
    }
    if let Some(index) = look.indices.iter().find(|i| i.state == State::Unreadable) {
        add(StepReason::Unhealthy, format!("index {} cannot be read, so its health is unknown", index.name));
    }
    if look.mixed_names {
        add(StepReason::UnreadableManifest, "V1 and V2 manifest names are mixed".into());
    }
    if let Some((path, _)) = look.unreadable.first() {
        add(StepReason::UnreadableManifest, format!("{path} cannot be read; what it names is not known"));
    }
    if let Some((path, why)) = look.unreadable_refs.first() {
        add(StepReason::ReferencesIncomplete, format!("{path} cannot be read ({why})"));
    }
    if look.manifests.iter().any(|m| m.detached) {
        add(StepReason::DetachedPresent, "detached versions name files that no attached manifest protects".into());
    }
    if let Some(nested) = look.nested.first() {
        add(StepReason::NestedDataset, format!("another dataset lies in it, at {nested}"));
    }
    if look.managed_blobs() {
        add(StepReason::ReferencesIncomplete, "managed blobs are named only inside data".into());
    }
    if look.authority == (Authority::Managed { directory: false }) {
        add(StepReason::ManagedCatalog, "the catalog is the authority over its versions".into());
    }
    if look.dataset.is_none() {
        add(StepReason::Unhealthy, "the library could not open HEAD".into());
    }
    out
}

/// A full-text index directory with `tokens.lance` and no `metadata.lance`: compaction panics on it (design, "Writers").
fn legacy_index(look: &Look) -> Option<String> {
    let mut dirs: BTreeMap<String, (bool, bool)> = BTreeMap::new();
    for entry in &look.listing.entries {
        if let Kind::Index { uuid } = classify(&entry.path).kind {
            let name = entry.path.rsplit('/').next().unwrap_or_default();
            let seen = dirs.entry(uuid).or_default();
            seen.0 |= name == "tokens.lance" || name == "invert.lance";
            seen.1 |= name == "metadata.lance";
        }
    }
    let live: BTreeSet<String> = look.head.indices.iter().map(|i| i.uuid.to_string()).collect();
    let bad = dirs.iter().find(|(uuid, (tokens, metadata))| *tokens && !*metadata && live.contains(*uuid))?.0;
    look.head.indices.iter().find(|i| i.uuid.to_string() == *bad).map(|i| i.name.clone())
}

/// The layout that a round leaves, as predicted. Rewritten groups move to the END of the list: Lance sorts by id and new
/// ids are highest (facts, "Compaction").
pub fn after(layout: &Layout, round: &Round) -> Layout {
    let mut out = layout.clone();
    let mut next = out.fragments.iter().map(|f| f.id).max().unwrap_or(0) + 1;
    for task in &round.tasks {
        let gone: Vec<FragmentInfo> =
            out.fragments.iter().filter(|f| task.fragments.contains(&f.id)).cloned().collect();
        out.fragments.retain(|f| !task.fragments.contains(&f.id));
        let live: u64 = gone.iter().map(FragmentInfo::rows).sum();
        let physical: u64 = gone.iter().map(|f| f.physical_rows).sum::<u64>().max(1);
        let bytes: u64 = gone.iter().map(|f| f.bytes).sum();
        let mut made = Vec::new();
        for i in 0..task.outputs {
            let rows = live / task.outputs + u64::from(i < live % task.outputs);
            made.push(FragmentInfo {
                id: next,
                physical_rows: rows,
                deleted_rows: 0,
                bytes: u64::try_from(u128::from(bytes) * u128::from(rows) / u128::from(physical)).unwrap_or(bytes),
                files: 1,
                files_with_dead_columns: 0,
                external: false,
                complete: true,
                overlays: 0,
            });
            next += 1;
        }
        for index in &mut out.indices {
            follow(index, &gone, &made);
        }
        out.fragments.extend(made);
    }
    for work in &round.indices {
        let ids: RoaringBitmap = out.fragments.iter().filter_map(|f| u32::try_from(f.id).ok()).collect();
        if let Some(index) = out.indices.iter_mut().find(|i| i.name == work.name) {
            fold(index, work, ids, layout.version);
        }
        if work.action == IndexAction::Rebuild {
            out.rebuild.remove(&work.name);
            out.erasure.indices.remove(&work.name);
        }
    }
    for index in &mut out.indices {
        recount(index, &out.fragments);
    }
    out
}

/// Coverage follows a rewrite through the remap, except where the type loses it.
fn follow(index: &mut IndexInfo, gone: &[FragmentInfo], made: &[FragmentInfo]) {
    let old: RoaringBitmap = gone.iter().filter_map(|f| u32::try_from(f.id).ok()).collect();
    let new: RoaringBitmap = made.iter().filter_map(|f| u32::try_from(f.id).ok()).collect();
    let loses = index.loses_coverage_on_rewrite();
    for segment in &mut index.segments {
        if let Some(bitmap) = segment.fragments.as_mut()
            && !bitmap.is_disjoint(&old)
        {
            *bitmap -= &old;
            if !loses {
                *bitmap |= &new;
            }
        }
    }
}

fn fold(index: &mut IndexInfo, work: &IndexWork, ids: RoaringBitmap, version: u64) {
    let keep = index.segments.len().saturating_sub(work.merge);
    let merged = index.segments[keep..].iter().map(|s| s.built_from).min();
    let built_from = merged.filter(|_| work.action != IndexAction::Rebuild).unwrap_or(version);
    let kept =
        index.segments[..keep].iter().filter_map(|s| s.fragments.clone()).fold(RoaringBitmap::new(), |a, b| a | b);
    let bytes = work.bytes;
    if index.state == State::Untrained {
        index.state = State::Covered;
    }
    if keep == 0 {
        index.dead_rows = 0;
    }
    index.segments.truncate(keep);
    index.segments.push(Segment { uuid: Uuid::nil(), fragments: Some(ids - kept), bytes, built_from });
}

fn recount(index: &mut IndexInfo, fragments: &[FragmentInfo]) {
    let covered = index.covered();
    index.indexed_rows = 0;
    index.unindexed_rows = 0;
    for fragment in fragments {
        if u32::try_from(fragment.id).is_ok_and(|id| covered.contains(id)) {
            index.indexed_rows += fragment.rows();
        } else {
            index.unindexed_rows += fragment.rows();
        }
    }
    if index.can_fold() {
        index.state = if index.unindexed_rows > 0 || index.dead_rows > 0 {
            State::Lagging
        } else if index.segments.len() > index.segment_bound() {
            State::Segmented
        } else {
            State::Covered
        };
    }
}
