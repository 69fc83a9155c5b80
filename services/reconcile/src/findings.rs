//! What disagrees: findings from a walk. Pure.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use squire_lake::authority::Authority;
use squire_lake::classes::{Class, Classed};
use squire_lake::damage::{Damage, ranges};
use squire_lake::examine::Examined;
use squire_lake::index::State;
use squire_lake::look::{FragmentInfo, Look, ManifestInfo};
use squire_lake::refs::{KeepSet, Target};
use squire_lake::{retention, uri};
use squire_registry::{Governance, ProblemKind, Record, Table};
use squire_service::report::{Finding, FindingKind, FindingSubject, Incomplete, StoredBytes};

use crate::row::Row;
use crate::walk::{Place, Scope, Walk};

/// Files of one class that are named one by one; the rest is summed up in one line.
pub(crate) const NAMED: usize = 100;
/// How far back somebody else's compactions are told.
const OTHERS: TimeDelta = TimeDelta::days(7);

/// What is found about one dataset, without what only the whole estate knows.
pub(crate) fn of_dataset(
    scope: &Scope,
    examined: &Examined,
    governance: &Governance,
    keep: &KeepSet,
    stored: &StoredBytes,
    orphans: bool,
) -> Vec<Finding> {
    let look = &examined.look;
    let mut out = Vec::new();
    let missing = &examined.classes.missing;
    let damage = squire_lake::damage::damage(look, &examined.classes).unwrap_or_default();
    for missing in missing.iter().take(NAMED) {
        let found = missing.found.map_or("it is not there".to_string(), |n| format!("it has {n} bytes"));
        let recorded = missing.recorded.map(|n| format!(", {n} were recorded")).unwrap_or_default();
        let cloned = matches!(keep, KeepSet::Complete(kept) if kept.contains(&missing.path));
        let clone = if cloned { ", and a clone reads it" } else { "" };
        let detail = format!("{}{clone}; {found}{recorded}", missing.reason);
        let finding = Finding::new(FindingKind::MissingFile, FindingSubject::path(&look.uri, &missing.path), detail);
        out.push(finding.with_fix(mending(&damage, missing.by_head, cloned)));
    }
    if missing.len() > NAMED {
        let detail = format!("{} more files are not as recorded", missing.len() - NAMED);
        out.push(Finding::new(FindingKind::MissingFile, FindingSubject::dataset(&look.uri), detail));
    }
    for (path, why) in &look.unreadable {
        let subject = FindingSubject::path(&look.uri, path);
        out.push(Finding::new(FindingKind::UnreadableManifest, subject, why.clone()));
    }
    if orphans {
        files(scope, examined, &mut out);
    }
    out.extend(of_metadata(look, &damage));
    out.extend(of_indices(look, governance, scope.config.estate.target_bytes.as_u64()));
    out.extend(of_policy(scope, look, governance, keep, stored));
    out
}

/// Files that are no file of a version: by name up to a bound, and the rest of a class in one line.
fn files(scope: &Scope, examined: &Examined, out: &mut Vec<Finding>) {
    let uri = &examined.look.uri;
    let kinds = [
        (Class::Orphan, FindingKind::OrphanFile),
        (Class::Young, FindingKind::YoungFile),
        (Class::Foreign, FindingKind::ForeignFile),
        (Class::Unknown, FindingKind::UnknownFile),
    ];
    for (class, kind) in kinds {
        let objects: Vec<&Classed> = examined.classes.of(class).collect();
        out.extend(objects.iter().take(NAMED).map(|o| file(scope.at, uri, kind, o)));
        if objects.len() > NAMED {
            let rest = &objects[NAMED..];
            let bytes = rest.iter().map(|o| o.bytes).sum();
            let detail = format!("{} more files of class {}", rest.len(), class.as_str());
            out.push(Finding::new(kind, FindingSubject::dataset(uri), detail).with_bytes(bytes));
        }
    }
}

fn file(at: DateTime<Utc>, uri: &str, kind: FindingKind, object: &Classed) -> Finding {
    let age = at.signed_duration_since(object.modified).num_milliseconds() as f64 / 1000.0;
    let finding = Finding::new(kind, FindingSubject::path(uri, &object.path), object.reason.clone())
        .with_bytes(object.bytes)
        .with_age_seconds(age.max(0.0));
    match kind {
        FindingKind::OrphanFile => finding.with_fix("squire-reconcile reclaim plan --out PLAN"),
        _ => finding,
    }
}

/// What to do about a missing file: what still reads, and what to bring back.
fn mending(damage: &Damage, by_head: bool, cloned: bool) -> String {
    let whole = match damage.whole.as_slice() {
        [] => "no version reads whole".to_string(),
        [one] => format!("version {one} still reads"),
        more => format!("versions {} still read", ranges(more)),
    };
    match (by_head, damage.newest_whole()) {
        (true, Some(version)) => format!("bring it back from a copy, or restore version {version}: {whole}"),
        (true, None) => format!("bring it back from a copy: {whole}"),
        (false, _) if cloned => format!("bring it back from a copy, for the clone's sake: {whole}"),
        (false, _) => format!("versions {} need it; bring it back, or let them go: {whole}", ranges(&damage.broken)),
    }
}

/// What the manifests and refs say, beyond files.
fn of_metadata(look: &Look, damage: &Damage) -> Vec<Finding> {
    let subject = || FindingSubject::dataset(&look.uri);
    let mut out = Vec::new();
    let mut add = |kind: FindingKind, detail: String| out.push(Finding::new(kind, subject(), detail));
    if look.mixed_names {
        let old = damage.old_names.join(", ");
        let detail = format!("V1 and V2 manifest names in one _versions/; of the older scheme: {old}");
        add(FindingKind::MixedManifestNames, detail);
    }
    for nested in &look.nested {
        add(FindingKind::NestedDataset, format!("a dataset lies inside, at {nested}"));
    }
    for (name, tag) in look.dangling_tags() {
        add(FindingKind::DanglingTag, format!("tag {name} names version {}, which is gone", tag.version));
    }
    let detached = look.manifests.iter().filter(|m| m.detached).count();
    if detached > 0 {
        add(FindingKind::DetachedVersions, format!("{detached} detached versions"));
    }
    if let Some(detail) = foreign_commits(look) {
        add(FindingKind::ForeignCommit, detail);
    }
    for target in look.reads.keys() {
        add(FindingKind::CloneOf, format!("it reads files of {target}"));
    }
    for (id, (typed, _)) in look.head.bases() {
        let at = squire_lake::refs::target(&typed, &look.uri);
        let own = matches!(&at, Target::At(at) if squire_lake::uri::within(at, &look.uri));
        if !own && !look.reads.contains_key(&at) {
            let detail = format!("base {id} ({typed}) is listed, and no version names a file there");
            add(FindingKind::ExternalBaseUnreferenced, detail);
        }
    }
    out
}

/// Versions of a graph's table that the graph did not make. A graph that pins detached versions makes no attached ones any more: what
/// came after the first of those and is not the graph's own by its transaction is read by nobody, and `repair` calls it drift
/// (facts/omnigraph 3.1). What Squire stamped is never the graph's.
fn foreign_commits(look: &Look) -> Option<String> {
    if !matches!(look.authority, Authority::Graph { .. }) {
        return None;
    }
    // The graph's own table of versions goes on in attached ones.
    let is_catalog = look.uri.rsplit('/').next() == Some("__manifest");
    let pins = look.manifests.iter().filter(|m| m.detached && m.tree.is_empty() && !is_catalog);
    let first = pins.map(|m| m.timestamp).min();
    let after = |m: &ManifestInfo| first.is_some_and(|first| m.timestamp > first);
    let foreign = |m: &ManifestInfo| m.stamp.is_some() || (!m.by_graph && m.operation.is_some() && after(m));
    let versions = look.versions();
    let found: Vec<u64> = versions.iter().filter(|(_, m)| foreign(m)).map(|(_, m)| m.version).collect();
    (!found.is_empty())
        .then(|| format!("a graph owns it, and it did not make {} of its versions: {}", found.len(), ranges(&found)))
}

/// The health of the indices, and what they do to compaction.
fn of_indices(look: &Look, governance: &Governance, target_bytes: u64) -> Vec<Finding> {
    let mut out = Vec::new();
    let of = |kind, detail: String| Finding::new(kind, FindingSubject::dataset(&look.uri), detail);
    let mut add = |finding: Finding| out.push(finding);
    for index in &look.indices {
        let why = index.detail.clone().unwrap_or_default();
        match index.state {
            State::Untrained => add(of(FindingKind::IndexUntrained, format!("{} waits for rows to train", index.name))),
            State::Unreadable => add(of(FindingKind::IndexUnreadable, format!("{}: {why}", index.name))),
            State::Unsupported => add(of(FindingKind::HeldOutFragments, format!("{}: {why}", index.name))),
            State::Lagging if index.dead_rows > 0 => {
                let detail = format!("{}: {why}, since somebody else's compaction", index.name);
                let fix = "nothing: the next pass makes one segment of it, without them";
                add(of(FindingKind::IndexLagging, detail).with_fix(fix));
            }
            State::Lagging => {
                add(of(FindingKind::IndexLagging, format!("{} rows are not in {}", index.unindexed_rows, index.name)));
            }
            _ => {}
        }
    }
    for required in squire_lake::index::missing(&look.indices, &governance.policy.policy.required_indices) {
        let columns = required.columns.join(", ");
        add(of(FindingKind::IndexMissing, format!("the policy requires {} on {columns}", required.kind)));
    }
    let parted = parted(look, target_bytes);
    if parted > 0 {
        let detail = format!("{parted} small neighbours are in different index segments and cannot be merged");
        add(of(FindingKind::IndexSegmentsBlockCompaction, detail));
    }
    let deferred = |i: &&_| squire_lake::index::is_frag_reuse(i);
    if look.head.indices.iter().find(deferred).is_some() {
        let detail = "deferred index remaps are pending, and nothing trims them";
        add(of(FindingKind::FragmentReuseGrowth, detail.into()));
    }
    out
}

/// Neighbouring fragments that would fit into one and are covered by different segments: only what is covered by the same
/// segments is merged. What no segment covers waits for a fold and is counted as lagging.
fn parted(look: &Look, target_bytes: u64) -> usize {
    let by = look.segments_by_fragment();
    let covering = |id: &u64| by.get(id).filter(|s| !s.is_empty());
    let fits = |a: &FragmentInfo, b: &FragmentInfo| a.bytes + b.bytes <= target_bytes;
    let parts = |pair: &&[FragmentInfo]| match (covering(&pair[0].id), covering(&pair[1].id)) {
        (Some(a), Some(b)) => a != b && fits(&pair[0], &pair[1]),
        _ => false,
    };
    look.fragments.windows(2).filter(parts).count()
}

/// What fights the policy, or costs more than it says.
fn of_policy(
    scope: &Scope,
    look: &Look,
    governance: &Governance,
    keep: &KeepSet,
    stored: &StoredBytes,
) -> Vec<Finding> {
    let subject = || FindingSubject::dataset(&look.uri);
    let mut out = Vec::new();
    if stored.dead_columns > 0 {
        let detail = "live data files still hold dropped columns (by their share of the files' fields)";
        let finding = Finding::new(FindingKind::DeadColumnBytes, subject(), detail).with_bytes(stored.dead_columns);
        out.push(finding.with_fix("a compaction rewrites them"));
    }
    let clones = match keep {
        KeepSet::Complete(kept) if !kept.is_empty() => vec!["a clone".to_string()],
        _ => Vec::new(),
    };
    let hook = squire_lake::hook::judge(&look.config(), &retention::versions(look), governance, &clones);
    out.extend(hook.map(|(conflict, detail)| {
        let kind = conflict.as_str().parse().unwrap_or(FindingKind::AutoCleanupConflict);
        Finding::new(kind, subject(), detail).with_fix("remove the lance.auto_cleanup keys from the table's config")
    }));
    let mut add = |kind: FindingKind, detail: String| out.push(Finding::new(kind, subject(), detail));
    if let Some(detail) = squire_lake::clients::old_client(look, &governance.policy.policy, scope.at) {
        add(FindingKind::OldClients, detail);
    }
    if let Some(detail) = other_maintainer(look, scope.at) {
        add(FindingKind::OtherMaintainer, detail);
    }
    let tiers = |t: &Record<Table>| t.fields.tier.is_some();
    let (from_uri, _) = squire_lake::tier::tier_of(&look.uri, &scope.config.estate.tiers);
    if from_uri.is_none() && governance.tier.is_none() && scope.snapshot.tables().any(tiers) {
        add(FindingKind::Untiered, "neither the registry nor its URI names a tier; it is sized by bytes".into());
    }
    if let Some(clash) = &governance.clash {
        let projects = clash.projects.join(", ");
        add(FindingKind::PolicyClash, format!("projects {projects} claim it; neither's policy holds"));
    }
    let table = scope.snapshot.table_at(&look.uri).is_some() || scope.snapshot.trash_at(&look.uri).next().is_some();
    if scope.registry.is_some() && !table {
        add(FindingKind::UnregisteredDataset, "no table of the registry names it".into());
    }
    out
}

/// Compactions of the last days that are not Squire's.
fn other_maintainer(look: &Look, at: DateTime<Utc>) -> Option<String> {
    let lately = |m: &ManifestInfo| at.signed_duration_since(m.time()) < OTHERS;
    let foreign = |m: &ManifestInfo| m.stamp.is_none() && m.operation.as_deref() == Some("rewrite") && lately(m);
    let versions = look.versions();
    let found: Vec<&ManifestInfo> = versions.iter().map(|(_, m)| *m).filter(|m| foreign(m)).collect();
    let last = found.last()?;
    let by = last.writer.as_ref().map(|(library, version)| format!(" by {library} {version}")).unwrap_or_default();
    let n = found.len();
    Some(format!("{n} compactions of the last week are not Squire's, the latest is version {}{by}", last.version))
}

/// What of a dataset could not be read.
pub(crate) fn unread(look: &Look) -> Vec<Incomplete> {
    let manifest = |(path, why): &(String, String)| Incomplete {
        what: format!("{}/{path}", look.uri),
        why: why.clone(),
        remedy: "mend or remove the file; until it can be read, none of the dataset's files is called an orphan".into(),
    };
    let mut out: Vec<Incomplete> = look.unreadable.iter().chain(&look.unreadable_refs).map(manifest).collect();
    if look.uses.unseen().feature_flags {
        out.push(Incomplete {
            what: look.uri.clone(),
            why: "a version has feature flags that this build does not know".into(),
            remedy: "use a build that knows them; until then none of its files is called an orphan".into(),
        });
    }
    out
}

/// What is found about the estate.
pub(crate) fn of_estate(walk: &Walk<Row>) -> Vec<Finding> {
    let scope = &walk.scope;
    let mut out: Vec<Finding> = squire_registry::check(&scope.snapshot)
        .into_iter()
        .filter_map(|p| {
            let kind = match p.kind {
                // Found under another name, or leading elsewhere than its parents: what it governs cannot be told either.
                ProblemKind::RecordUnreadable
                | ProblemKind::RecordMisplaced
                | ProblemKind::LocationDiffers
                | ProblemKind::BindingDiffers => FindingKind::RecordUnreadable,
                ProblemKind::LocationShared | ProblemKind::LocationNested | ProblemKind::ServersDiffer => {
                    FindingKind::LocationShared
                }
                ProblemKind::BindingToNothing => FindingKind::BindingToNothing,
                ProblemKind::ProtectionOnNothing | ProblemKind::BlockOnNothing => FindingKind::ProtectionOnNothing,
                ProblemKind::PolicyOnNothing => FindingKind::PolicyOnNothing,
                ProblemKind::PolicyInvalid => FindingKind::PolicyClash,
                ProblemKind::BucketSharedByProjects => FindingKind::BucketSharedByProjects,
                // Half states are the admin command's to mend; they have no word in the report.
                ProblemKind::HalfRegistered
                | ProblemKind::HalfDropped
                | ProblemKind::HalfRenamed
                | ProblemKind::TrashEnded => return None,
            };
            Some(Finding::new(kind, FindingSubject::record(p.subject), p.detail).with_fix(p.fix))
        })
        .collect();
    for (v, run) in &scope.vanished {
        let detail = format!(
            "{} records: {} when run {run} began, {} now, and {} are gone without a trace",
            v.collection, v.before, v.now, v.vanished
        );
        let subject = FindingSubject::record(v.collection.to_string());
        let finding = Finding::new(FindingKind::ProtectionsVanished, subject, detail);
        out.push(finding.with_fix("restore the registry from its backup before the next sweep"));
    }
    tables(walk, &mut out);
    trash(walk, &mut out);
    places(walk, &mut out);
    buckets(walk, &mut out);
    out.extend(crate::contracts::of_estate(walk));
    out.extend(crate::namespaces::of_estate(walk));
    out
}

fn tables(walk: &Walk<Row>, out: &mut Vec<Finding>) {
    for table in walk.scope.snapshot.tables() {
        let subject = || FindingSubject::table(table.fields.subject().to_string());
        match walk.places.get(&table.fields.uri) {
            Some(Place::Nothing) if !table.fields.declared => {
                let detail = format!("nothing lies at {}", table.fields.uri);
                let finding = Finding::new(FindingKind::TableWithoutBytes, subject(), detail);
                out.push(finding.with_fix("restore its bytes, or drop the table"));
            }
            Some(Place::DeclaredOnly | Place::Nothing) => {
                out.push(Finding::new(FindingKind::TableDeclaredOnly, subject(), "declared, no data yet"));
            }
            Some(Place::Dataset(row)) if row.deregistered => {
                let detail = crate::namespaces::DEREGISTERED;
                out.push(Finding::new(FindingKind::TableDeregistered, subject(), detail));
            }
            _ => {}
        }
    }
}

fn trash(walk: &Walk<Row>, out: &mut Vec<Finding>) {
    for trash in walk.scope.snapshot.trash() {
        let subject = || FindingSubject::table(trash.fields.subject.to_string());
        if matches!(walk.places.get(&trash.fields.uri), Some(Place::Nothing)) {
            let detail = format!("nothing lies at {}", trash.fields.uri);
            out.push(Finding::new(FindingKind::TrashWithoutBytes, subject(), detail));
        } else if trash.fields.deadline <= walk.scope.at {
            let detail = "its grace is over; its bytes are still there";
            let finding = Finding::new(FindingKind::TrashExpired, subject(), detail);
            out.push(finding.with_fix("squire-reconcile reclaim plan --out PLAN"));
        }
    }
}

fn places(walk: &Walk<Row>, out: &mut Vec<Finding>) {
    let scope = &walk.scope;
    for root in &scope.absent {
        let detail = "the warehouse is registered, and neither its marker nor any dataset is there";
        let finding = Finding::new(FindingKind::WarehouseWithoutBucket, FindingSubject::uri(root.clone()), detail);
        out.push(finding.with_fix("bring it back, or drop the warehouse; until then nothing is called an orphan"));
    }
    // A place that must hold tables and shows none is no empty place.
    for warehouse in scope.snapshot.warehouses().filter(|w| w.fields.active && scope.roots.contains(&w.fields.root)) {
        let root = &warehouse.fields.root;
        let had = scope.snapshot.tables().any(|t| uri::within(&t.fields.uri, root));
        let looked = walk.places.iter().any(|(at, p)| matches!(p, Place::Dataset(_)) && uri::within(at, root));
        if had && !looked && !walk.left.iter().any(|at| uri::within(at, root)) {
            let detail = "its tables are registered and not one dataset was found";
            out.push(Finding::new(FindingKind::EmptyScan, FindingSubject::uri(root.clone()), detail));
        }
    }
    for root in &scope.empty {
        out.push(Finding::new(FindingKind::EmptyScan, FindingSubject::uri(root.clone()), "no dataset was found"));
    }
}

/// What could not be read or judged.
pub(crate) fn incomplete(walk: &Walk<Row>) -> Vec<Incomplete> {
    let unread = |what: &String, why: String| Incomplete {
        what: what.clone(),
        why,
        remedy: "check the credentials and permissions; until then no file that it may name is an orphan".into(),
    };
    let mut out: Vec<Incomplete> = walk.scope.unreadable.iter().map(|(what, why)| unread(what, why.clone())).collect();
    out.extend(crate::namespaces::incomplete(walk));
    out.extend(walk.graph.unresolved().map(|(from, target)| Incomplete {
        what: from.to_string(),
        why: format!("it reads files of {target}, which is no dataset that is known"),
        remedy: "give the folder in which that lies as a ROOT, too, or bring it back, or remove this dataset if nobody needs it; \
                 until then no file of any dataset is called an orphan"
            .into(),
    }));
    for (at, place) in &walk.places {
        match place {
            Place::Dataset(row) => out.extend(row.incomplete.iter().cloned()),
            Place::Failed(e) => out.push(unread(at, e.to_string())),
            Place::DeclaredOnly | Place::Nothing => {}
        }
    }
    out
}

/// Buckets that keep versions, each told once, at its first dataset: a listing does not show what was deleted there.
fn buckets(walk: &Walk<Row>, out: &mut Vec<Finding>) {
    let mut seen = BTreeMap::<&str, &str>::new();
    for (uri, place) in &walk.places {
        let Place::Dataset(row) = place else { continue };
        if row.versioned {
            seen.entry(bucket(uri)).or_insert(uri);
        }
    }
    for (bucket, uri) in seen {
        let detail = format!(
            "{bucket} keeps versions: what is overwritten or deleted is stored on as non-current versions, which no sum here \
             holds, until a lifecycle rule ends it"
        );
        out.push(Finding::new(FindingKind::BucketVersioned, FindingSubject::dataset(uri), detail));
    }
}

/// Scheme and bucket of a URI.
fn bucket(uri: &str) -> &str {
    let from = uri.find("://").map_or(0, |at| at + 3);
    uri[from..].find('/').map_or(uri, |at| &uri[..from + at])
}
