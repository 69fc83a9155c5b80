//! What disagrees: findings from a walk. Pure.

use squire_lake::classes::{Class, Classed};
use squire_lake::damage::{Damage, ranges};
use squire_lake::examine::Examined;
use squire_lake::index::State;
use squire_registry::ProblemKind;
use squire_service::report::{Finding, FindingKind, FindingSubject, Incomplete};

use crate::walk::{Place, Walk};

/// Files of one class that are named one by one; the rest is summed up in one line.
const NAMED: usize = 100;

/// What is found about one dataset.
pub(crate) fn of_dataset(walk: &Walk, examined: &Examined) -> Vec<Finding> {
    let look = &examined.look;
    let mut out = Vec::new();
    let damage = squire_lake::damage::damage(look, &examined.classes).unwrap_or_default();
    for missing in &examined.classes.missing {
        let found = missing.found.map_or("it is not there".to_string(), |n| format!("it has {n} bytes"));
        let recorded = missing.recorded.map(|n| format!(", {n} were recorded")).unwrap_or_default();
        let detail = format!("{}; {found}{recorded}", missing.reason);
        let finding = Finding::new(FindingKind::MissingFile, FindingSubject::path(&look.uri, &missing.path), detail);
        out.push(finding.with_fix(mending(&damage, missing.by_head)));
    }
    for (path, why) in &look.unreadable {
        let subject = FindingSubject::path(&look.uri, path);
        out.push(Finding::new(FindingKind::UnreadableManifest, subject, why.clone()));
    }
    let kinds = [
        (Class::Orphan, FindingKind::OrphanFile),
        (Class::Young, FindingKind::YoungFile),
        (Class::Foreign, FindingKind::ForeignFile),
        (Class::Unknown, FindingKind::UnknownFile),
    ];
    for (class, kind) in kinds {
        let objects: Vec<&Classed> = examined.classes.of(class).collect();
        out.extend(objects.iter().take(NAMED).map(|o| file(walk, &look.uri, kind, o)));
        if objects.len() > NAMED {
            let rest = &objects[NAMED..];
            let bytes = rest.iter().map(|o| o.bytes).sum();
            let detail = format!("{} more files of class {}", rest.len(), class.as_str());
            out.push(Finding::new(kind, FindingSubject::dataset(&look.uri), detail).with_bytes(bytes));
        }
    }
    out.extend(of_metadata(walk, examined));
    out
}

/// What to do about a missing file: what still reads, and what to bring back.
fn mending(damage: &Damage, by_head: bool) -> String {
    let whole = match damage.whole.as_slice() {
        [] => "no version reads whole".to_string(),
        [one] => format!("version {one} still reads"),
        more => format!("versions {} still read", ranges(more)),
    };
    match (by_head, damage.newest_whole()) {
        (true, Some(version)) => format!("bring it back from a copy, or restore version {version}: {whole}"),
        (true, None) => format!("bring it back from a copy: {whole}"),
        (false, _) => format!("versions {} need it; bring it back, or let them go: {whole}", ranges(&damage.broken)),
    }
}

fn file(walk: &Walk, uri: &str, kind: FindingKind, object: &Classed) -> Finding {
    let age = walk.at.signed_duration_since(object.modified).num_milliseconds() as f64 / 1000.0;
    let finding = Finding::new(kind, FindingSubject::path(uri, &object.path), object.reason.clone())
        .with_bytes(object.bytes)
        .with_age_seconds(age.max(0.0));
    match kind {
        FindingKind::OrphanFile => finding.with_fix("squire-reconcile reclaim plan"),
        _ => finding,
    }
}

/// What the manifests and refs say, beyond files.
fn of_metadata(walk: &Walk, examined: &Examined) -> Vec<Finding> {
    let look = &examined.look;
    let subject = || FindingSubject::dataset(&look.uri);
    let mut out = Vec::new();
    let mut add = |kind: FindingKind, detail: String| out.push(Finding::new(kind, subject(), detail));
    if look.mixed_names {
        let old = squire_lake::damage::damage(look, &examined.classes).unwrap_or_default().old_names;
        let detail = format!("V1 and V2 manifest names in one _versions/; of the older scheme: {}", old.join(", "));
        add(FindingKind::MixedManifestNames, detail);
    }
    for nested in &look.nested {
        add(FindingKind::NestedDataset, format!("a dataset lies inside, at {nested}"));
    }
    let versions: Vec<u64> = look.versions().iter().map(|(_, m)| m.version).collect();
    for (name, tag) in look.tags.iter().filter(|(_, t)| t.branch.is_none() && !versions.contains(&t.version)) {
        add(FindingKind::DanglingTag, format!("tag {name} names version {}, which is gone", tag.version));
    }
    let detached = look.manifests.iter().filter(|m| m.detached).count();
    if detached > 0 {
        add(FindingKind::DetachedVersions, format!("{detached} detached versions"));
    }
    for index in &look.indices {
        let why = index.detail.clone().unwrap_or_default();
        match index.state {
            State::Untrained => add(FindingKind::IndexUntrained, format!("{} waits for rows to train", index.name)),
            State::Unreadable => add(FindingKind::IndexUnreadable, format!("{}: {why}", index.name)),
            State::Unsupported => add(FindingKind::HeldOutFragments, format!("{}: {why}", index.name)),
            State::Lagging => {
                add(FindingKind::IndexLagging, format!("{} rows are not in {}", index.unindexed_rows, index.name));
            }
            _ => {}
        }
    }
    for target in look.reads.keys() {
        add(FindingKind::CloneOf, format!("it reads files of {target}"));
    }
    for reader in walk.graph.readers(&look.uri) {
        add(FindingKind::ClonedBy, format!("{reader} reads its files"));
    }
    if walk.registry.is_some()
        && walk.snapshot.table_at(&look.uri).is_none()
        && walk.snapshot.trash_at(&look.uri).next().is_none()
    {
        add(FindingKind::UnregisteredDataset, "no table of the registry names it".into());
    }
    out
}

/// What is found about the estate.
pub(crate) fn of_estate(walk: &Walk) -> Vec<Finding> {
    let mut out: Vec<Finding> = squire_registry::check(&walk.snapshot)
        .into_iter()
        .filter_map(|p| {
            let kind = match p.kind {
                ProblemKind::RecordUnreadable => FindingKind::RecordUnreadable,
                ProblemKind::LocationShared => FindingKind::LocationShared,
                ProblemKind::BindingToNothing => FindingKind::BindingToNothing,
                ProblemKind::ProtectionOnNothing => FindingKind::ProtectionOnNothing,
                ProblemKind::PolicyOnNothing => FindingKind::PolicyOnNothing,
                ProblemKind::BucketSharedByProjects => FindingKind::BucketSharedByProjects,
                // Half states are the admin command's to mend; they have no word in the report.
                ProblemKind::HalfRegistered | ProblemKind::HalfDropped => return None,
            };
            Some(Finding::new(kind, FindingSubject::record(p.subject), p.detail).with_fix(p.fix))
        })
        .collect();
    for table in walk.snapshot.tables() {
        let subject = || FindingSubject::table(table.fields.subject().to_string());
        match walk.places.get(&table.fields.uri) {
            Some(Place::Nothing) if !table.fields.declared => out.push(
                Finding::new(
                    FindingKind::TableWithoutBytes,
                    subject(),
                    format!("nothing lies at {}", table.fields.uri),
                )
                .with_fix("restore its bytes, or drop the table"),
            ),
            Some(Place::DeclaredOnly | Place::Nothing) => {
                out.push(Finding::new(FindingKind::TableDeclaredOnly, subject(), "declared, no data yet"));
            }
            Some(Place::Dataset(e)) if e.look.deregistered => {
                let detail = "a .lance-deregistered marker lies in it";
                out.push(Finding::new(FindingKind::TableDeregistered, subject(), detail));
            }
            _ => {}
        }
    }
    for trash in walk.snapshot.trash() {
        let subject = || FindingSubject::table(trash.fields.subject.to_string());
        if trash.fields.deadline <= walk.at {
            let detail = "its grace is over; its bytes are still there";
            let finding = Finding::new(FindingKind::TrashExpired, subject(), detail);
            out.push(finding.with_fix("squire-reconcile reclaim plan"));
        }
        if matches!(walk.places.get(&trash.fields.uri), Some(Place::Nothing)) {
            let detail = format!("nothing lies at {}", trash.fields.uri);
            out.push(Finding::new(FindingKind::TrashWithoutBytes, subject(), detail));
        }
    }
    for root in &walk.absent {
        let detail = "the warehouse is registered, and neither its marker nor any dataset is there";
        let finding = Finding::new(FindingKind::WarehouseWithoutBucket, FindingSubject::uri(root.clone()), detail);
        out.push(finding.with_fix("bring it back, or drop the warehouse; until then nothing is called an orphan"));
    }
    // A place that must hold tables and shows none is no empty place.
    for warehouse in walk.snapshot.warehouses().filter(|w| w.fields.active && walk.roots.contains(&w.fields.root)) {
        let had = walk.snapshot.tables().any(|t| squire_lake::uri::within(&t.fields.uri, &warehouse.fields.root));
        let has = walk
            .places
            .iter()
            .any(|(uri, p)| matches!(p, Place::Dataset(_)) && squire_lake::uri::within(uri, &warehouse.fields.root));
        if had && !has {
            let detail = "its tables are registered and not one dataset was found";
            out.push(Finding::new(FindingKind::EmptyScan, FindingSubject::uri(warehouse.fields.root.clone()), detail));
        }
    }
    out
}

/// What could not be read or judged.
pub(crate) fn incomplete(walk: &Walk) -> Vec<Incomplete> {
    let mut out: Vec<Incomplete> = walk
        .unreadable
        .iter()
        .map(|(what, why)| Incomplete {
            what: what.clone(),
            why: why.clone(),
            remedy: "check the credentials and permissions; until then no file that it may name is an orphan".into(),
        })
        .collect();
    for (uri, place) in &walk.places {
        let Place::Dataset(examined) = place else { continue };
        out.extend(examined.classes.incomplete.iter().map(|why| Incomplete {
            what: uri.clone(),
            why: why.clone(),
            remedy: "until it can be read, none of its files is called an orphan".into(),
        }));
        out.extend(examined.look.unreadable_refs.iter().map(|(path, why)| Incomplete {
            what: format!("{uri}/{path}"),
            why: why.clone(),
            remedy: "mend or remove the file".into(),
        }));
    }
    out
}
