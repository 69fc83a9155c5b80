//! Namespace vs registry: what the catalogs of the estate name, held against its tables. `read` asks them, the rest is pure.

use std::collections::BTreeSet;

use squire_lake::namespace::{self, Entry, Inventory, MANIFEST, Namespace};
use squire_lake::{contain, uri};
use squire_registry::Subject;
use squire_service::report::{Finding, FindingKind, FindingSubject, Incomplete};

use crate::row::Row;
use crate::walk::{Place, Scope, Walk};

/// What one namespace names.
#[derive(Debug, Clone)]
pub(crate) struct Catalogue {
    /// The root of a directory namespace, or the URL of a server.
    at: String,
    /// The root whose tables it names.
    root: String,
    /// Whether it names all tables there: a directory's listing names what lies there anyway.
    names_all: bool,
    /// What it names, and what could not be read of it.
    inventory: Inventory,
}

/// Asks every namespace under the ROOTs: those that warehouses name, the directories with a `__manifest` (whatever lies deeper), and
/// the listings of the other ROOTs for what is only declared.
pub(crate) async fn read(scope: &Scope, known: &BTreeSet<String>) -> Vec<Catalogue> {
    let mut out = Vec::new();
    for warehouse in scope.snapshot.warehouses().filter(|w| w.fields.active && !w.fields.deleting) {
        let (root, url) = (&warehouse.fields.root, &warehouse.fields.namespace);
        let Some(url) = url.as_ref().filter(|_| scope.roots.contains(root)) else { continue };
        let asked = async { Ok(Some(Namespace::rest(&scope.lake, url).await?.inventory().await)) };
        out.extend(catalogue(scope, url, root, asked).await);
    }
    let backed: Vec<String> = out.iter().map(|c| c.root.clone()).collect();
    let is_backed = |place: &str| backed.iter().any(|root| uri::within(place, root));
    let manifests = known.iter().filter_map(|dataset| dataset.strip_suffix(&format!("/{MANIFEST}")));
    let directories: BTreeSet<&str> = manifests.filter(|at| scope.is_under_a_root(at) && !is_backed(at)).collect();
    for root in &directories {
        let asked = async {
            match Namespace::directory(&scope.lake, root).await? {
                Some(namespace) => Ok(Some(namespace.inventory().await)),
                None => Ok(None),
            }
        };
        out.extend(catalogue(scope, root, root, asked).await);
    }
    for root in scope.roots.iter().filter(|r| !directories.contains(r.as_str()) && !is_backed(r)) {
        let asked = async {
            let tables = namespace::reserved(&scope.lake, root, known).await?;
            Ok(Some(Inventory { tables, ..Inventory::default() }))
        };
        let listed = catalogue(scope, root, root, asked).await;
        out.extend(listed.map(|c| Catalogue { names_all: false, ..c }).filter(|c| !c.is_empty()));
    }
    out
}

/// One namespace's answer; `None` where it turned out to be none. A failure is an inventory of which nothing was read.
async fn catalogue(
    scope: &Scope,
    at: &str,
    root: &str,
    asked: impl Future<Output = squire_lake::Result<Option<Inventory>>>,
) -> Option<Catalogue> {
    let inventory = match contain::contained(&scope.lake, "reading the namespace", at, asked).await {
        Ok(inventory) => inventory?,
        Err(e) => Inventory { unread: vec![("the root".into(), e.to_string())], ..Inventory::default() },
    };
    Some(Catalogue { at: at.into(), root: root.into(), names_all: true, inventory })
}

impl Catalogue {
    fn is_empty(&self) -> bool {
        self.inventory.tables.is_empty() && self.inventory.unread.is_empty()
    }

    /// Why what lies at a place is not the registry's alone: this names it too, or might. A directory's own listing names whatever lies in
    /// it, and claims nothing.
    pub(crate) fn claims(&self, place: &str) -> Option<String> {
        if !self.names_all || !uri::within(place, &self.root) {
            return None;
        }
        let is_listed = |e: &&Entry| match e.id.as_slice() {
            [name] => self.at == self.root && e.uri == uri::join(&self.root, &format!("{name}.lance")),
            _ => false,
        };
        match (self.inventory.at(place).find(|e| !is_listed(e)), self.inventory.unread.first()) {
            (Some(entry), _) => Some(format!("the namespace at {} names it {}", self.at, entry.id.join("/"))),
            (None, Some((what, why))) => {
                Some(format!("the namespace at {} could not be read ({what}: {why})", self.at))
            }
            (None, None) => None,
        }
    }

    /// What it calls a table of the registry: by the whole path, or without the top namespace, which stands for the catalog itself.
    fn same_name(&self, path: &[String]) -> Option<&Entry> {
        self.inventory.named(path).or_else(|| self.inventory.named(path.get(1..)?))
    }
}

/// What the namespaces and the registry do not agree about.
pub(crate) fn of_estate(walk: &Walk<Row>) -> Vec<Finding> {
    let mut out = Vec::new();
    for catalogue in &walk.scope.catalogues {
        let mut moved = BTreeSet::new();
        if walk.scope.registry.is_some() && catalogue.names_all {
            registered(walk, catalogue, &mut moved, &mut out);
        }
        for entry in &catalogue.inventory.tables {
            named(walk, catalogue, entry, moved.contains(&entry.id), &mut out);
        }
    }
    out.extend(deregistered(walk));
    out
}

/// The registry's tables under a namespace's root: elsewhere by the same name, or not named at all.
fn registered(walk: &Walk<Row>, catalogue: &Catalogue, moved: &mut BTreeSet<Vec<String>>, out: &mut Vec<Finding>) {
    let (at, inventory) = (&catalogue.at, &catalogue.inventory);
    for table in walk.scope.snapshot.tables().filter(|t| uri::within(&t.fields.uri, &catalogue.root)) {
        let place = &table.fields.uri;
        if inventory.at(place).next().is_some() {
            continue;
        }
        let subject = table.fields.subject();
        let name = || FindingSubject::table(subject.to_string());
        let Subject::Table(path) = &subject else { continue };
        if let Some(entry) = catalogue.same_name(path) {
            moved.insert(entry.id.clone());
            let detail = format!("the namespace at {at} has it at {}, the registry at {place}", entry.uri);
            out.push(Finding::new(FindingKind::NamespaceLocationDiffers, name(), detail));
        } else if inventory.is_complete() && !is_deregistered(walk, place) {
            let detail = format!("the namespace at {at} names no table at {place}");
            out.push(Finding::new(FindingKind::NamespaceMissingTable, name(), detail));
        }
    }
}

/// One table of a namespace: unknown to the registry, or a name without data.
fn named(walk: &Walk<Row>, catalogue: &Catalogue, entry: &Entry, moved: bool, out: &mut Vec<Finding>) {
    let snapshot = &walk.scope.snapshot;
    let (name, at) = (entry.id.join("/"), &catalogue.at);
    let registered = snapshot.table_at(&entry.uri).is_some();
    let empty = || matches!(walk.places.get(&entry.uri), Some(Place::DeclaredOnly | Place::Nothing));
    let declared = entry.declared_only.unwrap_or_else(empty);
    // A registered one is told by its own record.
    if declared && !registered {
        let detail = format!("the namespace at {at} has declared {name}, no data yet");
        out.push(Finding::new(FindingKind::TableDeclaredOnly, FindingSubject::uri(entry.uri.clone()), detail));
    }
    if registered || moved || !catalogue.names_all || walk.scope.registry.is_none() {
        return;
    }
    let trashed = snapshot.trash_at(&entry.uri).next().map(|t| t.fields.subject.to_string());
    let (beside, fix) = match trashed {
        Some(table) => {
            (format!(", and the registry has {table} in the trash"), "drop it in the namespace too, or undrop it")
        }
        None => (String::new(), "import it with `squire-registry import`, or deregister it in the namespace"),
    };
    let detail = format!("the namespace at {at} names it {name}{beside}");
    let finding = Finding::new(FindingKind::NamespaceExtraTable, FindingSubject::uri(entry.uri.clone()), detail);
    out.push(finding.with_fix(fix));
}

fn is_deregistered(walk: &Walk<Row>, place: &str) -> bool {
    matches!(walk.places.get(place), Some(Place::Dataset(row)) if row.deregistered)
}

/// Datasets that their namespace gave up and that are no table of the registry either.
fn deregistered(walk: &Walk<Row>) -> impl Iterator<Item = Finding> + '_ {
    let gone = walk.places.keys().filter(|place| is_deregistered(walk, place));
    let unregistered = gone.filter(|place| walk.scope.snapshot.table_at(place).is_none());
    unregistered
        .map(|place| Finding::new(FindingKind::TableDeregistered, FindingSubject::uri(place.clone()), DEREGISTERED))
}

/// How a directory namespace gives a table up.
pub(crate) const DEREGISTERED: &str =
    "a .lance-deregistered marker lies in it, or the directory namespace around it has no row for it";

/// What of the namespaces could not be read.
pub(crate) fn incomplete(walk: &Walk<Row>) -> Vec<Incomplete> {
    let mut out = Vec::new();
    for catalogue in &walk.scope.catalogues {
        for (what, why) in &catalogue.inventory.unread {
            out.push(Incomplete {
                what: format!("namespace {}: {what}", catalogue.at),
                why: why.clone(),
                remedy:
                    "see that it answers and takes our credentials; until then no table is said to be missing from it"
                        .into(),
            });
        }
    }
    out
}
