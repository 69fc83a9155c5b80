//! Everything that decides about datasets, read at one moment.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::blocks::Block;
use crate::contract::ContractRecord;
use crate::generation::Read;
use crate::record::{
    Collection, Estate, Fields, Location, Meta, Namespace, PolicyRecord, Project, Protection, Record, Table, Trash,
    Unreadable, Warehouse,
};
use crate::runs::{CollectionCount, LiveCounts, short};
use crate::subject::Subject;

/// Records of one type by their id.
pub type ById<T> = BTreeMap<String, Arc<Record<T>>>;

/// The registry's records as one LIST per collection found them. Cheap to clone.
///
/// Two parts: what could be read, and [`Snapshot::unreadable`]. Enumerate from the first; whatever destroys goes through
/// [`Snapshot::govern`], which names what is unreadable in the dataset's scope.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub(crate) estate: Option<Arc<Record<Estate>>>,
    pub(crate) projects: Arc<ById<Project>>,
    pub(crate) warehouses: Arc<ById<Warehouse>>,
    pub(crate) namespaces: Arc<ById<Namespace>>,
    pub(crate) tables: Arc<ById<Table>>,
    pub(crate) locations: Arc<ById<Location>>,
    pub(crate) policies: Arc<ById<PolicyRecord>>,
    pub(crate) protection: Arc<ById<Protection>>,
    pub(crate) trash: Arc<ById<Trash>>,
    pub(crate) blocks: Arc<ById<Block>>,
    pub(crate) contracts: Arc<ById<ContractRecord>>,
    pub(crate) tombstones: Arc<BTreeMap<Collection, Vec<Meta>>>,
    pub(crate) table_of: Arc<HashMap<String, String>>,
    pub(crate) trash_of: Arc<HashMap<String, Vec<String>>>,
    /// Records that exist and cannot be understood.
    pub unreadable: Vec<Unreadable>,
}

/// One collection's newest records, sorted into what they are.
pub(crate) struct Sorted<T> {
    pub(crate) live: ById<T>,
    pub(crate) tombstones: Vec<Meta>,
    pub(crate) unreadable: Vec<Unreadable>,
}

pub(crate) fn sort<T: Fields>(reads: BTreeMap<String, Read<T>>) -> Sorted<T> {
    let mut out = Sorted { live: BTreeMap::new(), tombstones: Vec::new(), unreadable: Vec::new() };
    for read in reads.into_values() {
        match read {
            Read::Absent => {}
            Read::Live(record) => {
                out.live.insert(record.meta.id.clone(), record);
            }
            Read::Tombstone(meta) => out.tombstones.push(meta),
            Read::Unreadable(u) => out.unreadable.push(u),
        }
    }
    out
}

impl Snapshot {
    /// Makes the look-ups by dataset; called once, when all collections are in.
    pub(crate) fn index(mut self) -> Self {
        let mut table_of: HashMap<String, String> = HashMap::with_capacity(self.tables.len());
        for (id, record) in self.tables.iter() {
            table_of.insert(record.fields.uri.clone(), id.clone());
        }
        // Where two table records name one dataset (a half state), the location record decides.
        for record in self.locations.values() {
            let id = record.fields.table.id();
            if self.tables.get(&id).is_some_and(|t| t.fields.uri == record.fields.uri) {
                table_of.insert(record.fields.uri.clone(), id);
            }
        }
        let mut trash_of: HashMap<String, Vec<String>> = HashMap::new();
        for (id, record) in self.trash.iter().filter(|(_, record)| !record.fields.uri.is_empty()) {
            trash_of.entry(record.fields.uri.clone()).or_default().push(id.clone());
        }
        self.table_of = Arc::new(table_of);
        self.trash_of = Arc::new(trash_of);
        self
    }

    /// The registry's identity record.
    pub fn estate(&self) -> Option<&Record<Estate>> {
        self.estate.as_deref()
    }

    /// All projects.
    pub fn projects(&self) -> impl Iterator<Item = &Record<Project>> {
        self.projects.values().map(Arc::as_ref)
    }

    /// All warehouses, active or not.
    pub fn warehouses(&self) -> impl Iterator<Item = &Record<Warehouse>> {
        self.warehouses.values().map(Arc::as_ref)
    }

    /// All namespaces, parents before children.
    pub fn namespaces(&self) -> impl Iterator<Item = &Record<Namespace>> {
        self.namespaces.values().map(Arc::as_ref)
    }

    /// All tables.
    pub fn tables(&self) -> impl Iterator<Item = &Record<Table>> {
        self.tables.values().map(Arc::as_ref)
    }

    /// All policy records.
    pub fn policies(&self) -> impl Iterator<Item = &Record<PolicyRecord>> {
        self.policies.values().map(Arc::as_ref)
    }

    /// All protection records.
    pub fn protections(&self) -> impl Iterator<Item = &Record<Protection>> {
        self.protection.values().map(Arc::as_ref)
    }

    /// All tables that are in the trash.
    pub fn trash(&self) -> impl Iterator<Item = &Record<Trash>> {
        self.trash.values().map(Arc::as_ref).filter(|t| t.fields.table.is_some())
    }

    /// Tables and namespaces that are in the trash.
    pub(crate) fn in_trash(&self) -> impl Iterator<Item = &Record<Trash>> {
        self.trash.values().map(Arc::as_ref)
    }

    /// All namespaces that are in the trash.
    pub fn trashed_namespaces(&self) -> impl Iterator<Item = &Record<Trash>> {
        self.trash.values().map(Arc::as_ref).filter(|t| t.fields.namespace.is_some())
    }

    /// All blocks, also those that have ended.
    pub fn blocks(&self) -> impl Iterator<Item = &Record<Block>> {
        self.blocks.values().map(Arc::as_ref)
    }

    /// A project by id.
    pub fn project(&self, id: &str) -> Option<&Record<Project>> {
        self.projects.get(&Subject::Project(id.to_owned()).id()).map(Arc::as_ref)
    }

    /// A warehouse by id.
    pub fn warehouse(&self, id: &str) -> Option<&Record<Warehouse>> {
        self.warehouses.get(&Subject::Warehouse(id.to_owned()).id()).map(Arc::as_ref)
    }

    /// A namespace by its path.
    pub fn namespace(&self, path: &[String]) -> Option<&Record<Namespace>> {
        self.namespaces.get(&Subject::Namespace(path.to_vec()).id()).map(Arc::as_ref)
    }

    /// A table by its path.
    pub fn table(&self, path: &[String]) -> Option<&Record<Table>> {
        self.tables.get(&Subject::Table(path.to_vec()).id()).map(Arc::as_ref)
    }

    /// The table whose dataset has this canonical URI.
    pub fn table_at(&self, uri: &str) -> Option<&Record<Table>> {
        self.table_of.get(uri).and_then(|id| self.tables.get(id)).map(Arc::as_ref)
    }

    /// What the trash holds of this canonical URI.
    pub fn trash_at(&self, uri: &str) -> impl Iterator<Item = &Record<Trash>> {
        self.trash_of.get(uri).into_iter().flatten().filter_map(|id| self.trash.get(id)).map(Arc::as_ref)
    }

    /// The protection put on exactly this subject.
    pub fn protection_of(&self, subject: &Subject) -> Option<&Record<Protection>> {
        self.protection.get(&subject.to_string()).map(Arc::as_ref)
    }

    /// The policy record of exactly this subject.
    pub fn policy_of(&self, subject: &Subject) -> Option<&Record<PolicyRecord>> {
        self.policies.get(&subject.to_string()).map(Arc::as_ref)
    }

    /// Records per collection: live, and unreadable.
    pub fn counts(&self) -> BTreeMap<Collection, (usize, usize)> {
        let live = [
            (Collection::Estate, usize::from(self.estate.is_some())),
            (Collection::Projects, self.projects.len()),
            (Collection::Warehouses, self.warehouses.len()),
            (Collection::Namespaces, self.namespaces.len()),
            (Collection::Tables, self.tables.len()),
            (Collection::Locations, self.locations.len()),
            (Collection::Policies, self.policies.len()),
            (Collection::Protection, self.protection.len()),
            (Collection::Trash, self.trash.len()),
            (Collection::Blocks, self.blocks.len()),
            (Collection::Contracts, self.contracts.len()),
        ];
        live.into_iter()
            .map(|(collection, n)| {
                (collection, (n, self.unreadable.iter().filter(|u| u.collection == collection).count()))
            })
            .collect()
    }

    /// What a run record keeps of this snapshot, so that the next run can see whether protections vanished.
    pub fn live_counts(&self) -> LiveCounts {
        fn count<T>(snapshot: &Snapshot, collection: Collection, live: &ById<T>) -> CollectionCount {
            let unread = snapshot.unreadable.iter().filter(|u| u.collection == collection).count();
            let mut ids: Vec<String> = live.keys().map(|id| short(id)).collect();
            ids.sort();
            CollectionCount { live: live.len() + unread, ids }
        }
        LiveCounts {
            protection: count(self, Collection::Protection, &self.protection),
            blocks: count(self, Collection::Blocks, &self.blocks),
            trash: count(self, Collection::Trash, &self.trash),
        }
    }

    /// Tombstones of a collection: what was removed, when, by whom and why.
    pub fn removed(&self, collection: Collection) -> &[Meta] {
        self.tombstones.get(&collection).map_or(&[], Vec::as_slice)
    }
}
