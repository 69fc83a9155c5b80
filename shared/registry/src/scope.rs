//! What lies above a subject, and which unreadable records can concern it.

use std::collections::BTreeSet;

use crate::govern::{ProtectionInfo, name_of, protection_info};
use crate::record::{Collection, Unreadable};
use crate::snapshot::Snapshot;
use crate::subject::Subject;

impl Snapshot {
    pub(crate) fn unreadable_in(&self, projects: &BTreeSet<String>, warehouses: &BTreeSet<String>) -> Vec<Unreadable> {
        self.unreadable.iter().filter(|u| self.in_scope(u, projects, warehouses)).cloned().collect()
    }

    /// What is unreadable in the scope of a subject: destroying it is refused while there is something.
    pub fn unreadable_for(&self, subject: &Subject) -> Vec<Unreadable> {
        let warehouses: BTreeSet<String> = match subject {
            Subject::Estate => return self.unreadable.clone(),
            Subject::Dataset(uri) => {
                let place = self.place(uri);
                return self.unreadable_in(&place.projects, &place.warehouse_ids);
            }
            Subject::Project(id) => {
                let own = self.warehouses().filter(|w| &w.fields.project == id).map(name_of).collect();
                return self.unreadable_in(&BTreeSet::from([id.clone()]), &own);
            }
            Subject::Warehouse(id) => BTreeSet::from([id.clone()]),
            other => self.warehouse_of(other).into_iter().collect(),
        };
        let projects = warehouses.iter().filter_map(|w| self.warehouse(w)).map(|w| w.fields.project.clone()).collect();
        self.unreadable_in(&projects, &warehouses)
    }

    /// A subject and everything above it, most specific first; what is protected there protects it.
    pub fn chain_of(&self, subject: &Subject) -> Vec<Subject> {
        let mut chain = vec![subject.clone()];
        match subject {
            Subject::Dataset(uri) => return self.chain(uri),
            Subject::Estate => return chain,
            Subject::Table(path) => {
                // A dataset named by its location is protected by that name, too.
                if let Some(table) = self.table(path) {
                    return self.chain(&table.fields.uri);
                }
            }
            _ => {}
        }
        let mut next = subject.parent_namespace();
        while let Some(parent) = next {
            next = parent.parent_namespace();
            chain.push(parent);
        }
        let warehouse = match subject {
            Subject::Warehouse(id) => Some(id.clone()),
            other => self.warehouse_of(other),
        };
        if let Some(id) = warehouse {
            chain.extend(self.warehouse(&id).map(|w| Subject::Project(w.fields.project.clone())));
            if !chain.contains(&Subject::Warehouse(id.clone())) {
                let at = chain.len() - usize::from(matches!(chain.last(), Some(Subject::Project(_))));
                chain.insert(at, Subject::Warehouse(id));
            }
        }
        chain.push(Subject::Estate);
        chain
    }

    /// The strongest protection on a subject or above it.
    pub fn protection_over(&self, subject: &Subject) -> Option<ProtectionInfo> {
        self.chain_of(subject).iter().filter_map(|s| self.protection_of(s)).map(protection_info).max_by_key(|p| p.level)
    }

    /// Whether the record of a subject exists. The estate and datasets always do.
    pub fn exists(&self, subject: &Subject) -> bool {
        match subject {
            Subject::Estate | Subject::Dataset(_) => true,
            Subject::Project(id) => self.project(id).is_some(),
            Subject::Warehouse(id) => self.warehouse(id).is_some(),
            Subject::Namespace(path) => self.namespace(path).is_some(),
            Subject::Table(path) => self.table(path).is_some(),
        }
    }

    /// Whether an unreadable record can concern a dataset: its warehouse for what belongs to one, the whole estate for
    /// trash, protection, locations and blocks, and wherever it cannot be told.
    fn in_scope(&self, u: &Unreadable, projects: &BTreeSet<String>, warehouses: &BTreeSet<String>) -> bool {
        let subject = match (u.collection, u.id.as_deref()) {
            (_, None) => return true,
            (Collection::Projects, Some(id)) => format!("project/{id}"),
            (Collection::Namespaces, Some(id)) => format!("namespace/{id}"),
            (Collection::Tables, Some(id)) => format!("table/{id}"),
            (Collection::Policies, Some(id)) => id.to_owned(),
            _ => return true,
        };
        match subject.parse::<Subject>() {
            Ok(Subject::Project(id)) => projects.contains(&id),
            Ok(subject @ (Subject::Namespace(_) | Subject::Table(_))) => {
                self.warehouse_of(&subject).is_none_or(|w| warehouses.contains(&w))
            }
            _ => true,
        }
    }

    /// The warehouse that a namespace or table belongs to, as far as readable records tell.
    pub(crate) fn warehouse_of(&self, subject: &Subject) -> Option<String> {
        let mut at = Some(subject.clone());
        while let Some(subject) = at {
            if let Subject::Namespace(_) = &subject
                && let Some(record) = self.namespaces.get(&subject.id())
            {
                return Some(record.fields.warehouse.clone());
            }
            at = subject.parent_namespace();
        }
        None
    }
}
