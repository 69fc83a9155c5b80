//! Projects, warehouses, namespaces and tables: created top-down, dropped bottom-up.
//!
//! The order at every create is shape, parent, conflict, write; then the parent is read again, and the write is taken
//! back when the parent went meanwhile. A container with contents refuses to go and names them.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::generation::Change;
use crate::protection::Level;
use crate::record::{Fields, Location, Namespace, Project, Record, Table, Warehouse};
use crate::registry::{Registry, all};
use crate::snapshot::Snapshot;
use crate::storage::{Root, StorageOptions, canonical_uri, join_uri, within};
use crate::subject::{Subject, check_name};

/// A table to be registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTable {
    /// Namespace and name; at least two segments.
    pub path: Vec<String>,
    /// Where it lies, relative to its warehouse's root; plain text, not percent-encoded.
    pub location: String,
    /// The declared tier.
    pub tier: Option<String>,
    /// Labels.
    pub labels: Vec<String>,
    /// Register it although there are no bytes yet.
    pub declare: bool,
}

/// What `table set` changes; what is `None` stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableChanges {
    /// The declared tier; `Some(None)` takes it away.
    pub tier: Option<Option<String>>,
    /// Labels to have from now on.
    pub labels: Option<Vec<String>>,
    /// Whether bytes are still to come.
    pub declared: Option<bool>,
}

/// A record that other records live below.
pub(crate) trait Container: Fields {
    fn deleting(&mut self) -> &mut bool;
}

macro_rules! container {
    ($($ty:ty),*) => {$(impl Container for $ty { fn deleting(&mut self) -> &mut bool { &mut self.deleting } })*};
}
container!(Project, Warehouse, Namespace);

impl Registry {
    /// Makes a project.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, [`Error::Exists`].
    pub async fn project_create(&self, id: &str, reason: Option<&str>) -> Result<()> {
        shape(id)?;
        self.create(&Subject::Project(id.to_owned()), Project::default(), reason).await
    }

    /// Makes a namespace; a top one names the warehouse it is bound to, others inherit it.
    ///
    /// # Errors
    /// [`Error::Missing`] without its parent or warehouse, [`Error::Invalid`] for a warehouse that is not the parent's.
    pub async fn namespace_create(&self, path: &[String], warehouse: Option<&str>, reason: Option<&str>) -> Result<()> {
        shape_path(path, 1)?;
        let subject = Subject::Namespace(path.to_vec());
        let (parent, bound) = match subject.parent_namespace() {
            Some(parent) => {
                let bound = self.parent::<Namespace>(&parent).await?.fields.warehouse.clone();
                if let Some(asked) = warehouse.filter(|w| *w != bound) {
                    return Err(Error::Invalid(format!(
                        "{subject} lies in {parent}, which is bound to warehouse `{bound}`; it cannot be bound to `{asked}`"
                    )));
                }
                (parent, bound)
            }
            None => {
                let id = warehouse.ok_or_else(|| {
                    Error::Invalid(format!(
                        "{subject} is a top namespace; say which warehouse it is bound to (--warehouse W)"
                    ))
                })?;
                (Subject::Warehouse(id.to_owned()), id.to_owned())
            }
        };
        self.parent::<Warehouse>(&Subject::Warehouse(bound.clone())).await?;
        let fields = Namespace { path: path.to_vec(), warehouse: bound, deleting: false };
        self.create(&subject, fields, reason).await?;
        match &parent {
            Subject::Namespace(_) => self.keep_if_parent::<Namespace, Namespace>(&parent, &subject).await,
            _ => self.keep_if_parent::<Warehouse, Namespace>(&parent, &subject).await,
        }
    }

    /// Registers a table at a location. The location's record is put before the table's, so that a location has one name.
    ///
    /// # Errors
    /// [`Error::Missing`] without its namespace, [`Error::Exists`] when the name or the location is taken,
    /// [`Error::Refused`] when the location is in the trash or holds no dataset (and `declare` is not set).
    pub async fn table_create(&self, new: NewTable, options: &StorageOptions, reason: Option<&str>) -> Result<Table> {
        shape_path(&new.path, 2)?;
        shape_location(&new.location)?;
        let subject = Subject::Table(new.path.clone());
        let parent = subject.parent_namespace().ok_or_else(|| Error::Invalid(format!("{subject} has no namespace")))?;
        let bound = self.parent::<Namespace>(&parent).await?.fields.warehouse.clone();
        let warehouse = self.parent::<Warehouse>(&Subject::Warehouse(bound)).await?;
        let uri = canonical_uri(&join_uri(&warehouse.fields.root, &new.location))?;
        if !within(&uri, &warehouse.fields.root) {
            return Err(Error::Invalid(format!(
                "`{}` leads to {uri}, outside of warehouse `{}` at {}; a table lies in its warehouse",
                new.location, warehouse.meta.id, warehouse.fields.root
            )));
        }
        if self.load::<Table>(&subject.id()).await?.is_some() {
            return Err(exists(&subject));
        }
        self.refuse_trashed(&uri).await?;
        let seen = self.snapshot().await?;
        let trashed = seen.trash().map(|t| (&t.fields.uri, &t.fields.subject));
        refuse_nested(seen.locations.values().map(|l| (&l.fields.uri, &l.fields.table)).chain(trashed), &uri)?;
        let place = Root::open(&uri, options)?;
        let has_bytes = place.any_below(&place.path(&["_versions"])?).await?;
        if !has_bytes && !new.declare {
            return Err(Error::Refused(format!(
                "{subject}: there is no dataset at {uri}; correct --location, or use --declare for a table that is still \
                 to be written"
            )));
        }
        let table = Table {
            path: new.path,
            location: new.location.trim_matches('/').to_owned(),
            uri,
            tier: new.tier,
            labels: new.labels,
            declared: !has_bytes,
        };
        self.claim_location(&table.uri, &subject, reason).await?;
        // A drop files its trash record before it gives the location back: whoever claims it after that sees the record. And of
        // two that lie one in the other at least one sees the other's claim.
        let again = async {
            self.refuse_trashed(&table.uri).await?;
            let claimed = all::<Location>(&self.inner.records).await?.live;
            refuse_nested(claimed.values().map(|l| (&l.fields.uri, &l.fields.table)), &table.uri)
        };
        if let Err(e) = again.await {
            self.release_location(&table.uri, &subject).await?;
            return Err(e);
        }
        self.register(&table, reason).await?;
        Ok(table)
    }

    /// Location first, then the table, then another look at the parent; undone where any of it fails.
    pub(crate) async fn register(&self, table: &Table, reason: Option<&str>) -> Result<()> {
        let subject = table.subject();
        self.claim_location(&table.uri, &subject, reason).await?;
        if let Err(e) = self.create(&subject, table.clone(), reason).await {
            self.release_location(&table.uri, &subject).await?;
            return Err(e);
        }
        let parent = subject.parent_namespace().unwrap_or(Subject::Estate);
        if let Err(e) = self.parent::<Namespace>(&parent).await {
            self.remove::<Table>(&subject.id(), Some("its namespace went while it was created")).await?;
            self.release_location(&table.uri, &subject).await?;
            return Err(e);
        }
        Ok(())
    }

    pub(crate) async fn claim_location(&self, uri: &str, subject: &Subject, reason: Option<&str>) -> Result<()> {
        self.change::<Location>(uri, reason, |current| match current {
            None => Ok(Change::Put(Location { uri: uri.to_owned(), table: subject.clone() })),
            // Ours from an attempt that was cut off.
            Some(found) if found.fields.table == *subject => Ok(Change::Keep),
            Some(found) => Err(Error::Exists {
                what: format!("{uri} as {}", found.fields.table),
                hint: "; a location has one name".into(),
            }),
        })
        .await?;
        Ok(())
    }

    /// Gives a location back unless the live table of that name has it.
    pub(crate) async fn release_location(&self, uri: &str, subject: &Subject) -> Result<()> {
        let table = self.load::<Table>(&subject.id()).await?;
        if table.is_some_and(|t| t.fields.uri == uri) {
            return Ok(());
        }
        self.change::<Location>(uri, None, |current| {
            Ok(if current.is_some_and(|l| l.fields.table == *subject) { Change::Delete } else { Change::Keep })
        })
        .await?;
        Ok(())
    }

    /// Changes what a table's record declares.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub async fn table_set(&self, path: &[String], changes: &TableChanges, reason: Option<&str>) -> Result<Table> {
        let subject = Subject::Table(path.to_vec());
        let done = self
            .change::<Table>(&subject.id(), reason, |current| {
                let mut next = current.ok_or_else(|| missing(&subject, ""))?.fields.clone();
                next.tier = changes.tier.clone().unwrap_or(next.tier);
                next.labels = changes.labels.clone().unwrap_or(next.labels);
                next.declared = changes.declared.unwrap_or(next.declared);
                let same = current.is_some_and(|c| c.fields == next);
                Ok(if same { Change::Keep } else { Change::Put(next) })
            })
            .await?;
        done.map(|record| record.fields.clone()).ok_or_else(|| missing(&subject, ""))
    }

    /// Drops an empty project, warehouse or namespace.
    ///
    /// # Errors
    /// [`Error::Refused`] for contents (named), protection (`force` gets past `no-drop` only), or something unreadable in
    /// its scope; [`Error::Missing`].
    pub async fn container_drop(&self, subject: &Subject, force: bool, reason: Option<&str>) -> Result<()> {
        match subject {
            Subject::Project(_) => self.drop_container::<Project>(subject, force, reason).await,
            Subject::Warehouse(_) => self.drop_container::<Warehouse>(subject, force, reason).await,
            Subject::Namespace(_) => self.drop_container::<Namespace>(subject, force, reason).await,
            other => Err(Error::Invalid(format!("{other} is no container"))),
        }
    }

    async fn drop_container<T: Container>(&self, subject: &Subject, force: bool, reason: Option<&str>) -> Result<()> {
        let id = subject.id();
        let before = self.snapshot().await?;
        if !before.exists(subject) {
            return Err(missing(subject, ""));
        }
        refuse_drop(&before, subject, force)?;
        refuse_contents(&before, subject)?;
        let marked = self.mark_deleting::<T>(subject, reason).await?;
        // Whoever created something below until now is seen here; whoever does from here on sees `deleting`.
        let again = async {
            let after = self.snapshot().await?;
            refuse_drop(&after, subject, force)?;
            refuse_contents(&after, subject)
        };
        if let Err(e) = again.await {
            // Another drop at work has its own mark.
            if marked {
                self.unmark_deleting(subject).await?;
            }
            return Err(e);
        }
        // In this order nothing is left on a name that is gone, wherever it is cut off.
        let last = self.snapshot().await?;
        self.forget_in(&last, subject, reason).await?;
        self.remove::<T>(&id, reason).await?;
        Ok(())
    }

    /// From now on nothing new goes into a container. Whether this call set the mark.
    pub(crate) async fn mark_deleting<T: Container>(&self, subject: &Subject, reason: Option<&str>) -> Result<bool> {
        let mut set = false;
        self.change::<T>(&subject.id(), reason, |current| {
            let Some(current) = current else { return Ok(Change::Keep) };
            let mut next = current.fields.clone();
            set = !std::mem::replace(next.deleting(), true);
            Ok(if set { Change::Put(next) } else { Change::Keep })
        })
        .await?;
        Ok(set)
    }

    /// Ends protection, policy and blocks of exactly this subject, so that a reused id inherits nothing.
    pub(crate) async fn forget_in(&self, seen: &Snapshot, subject: &Subject, reason: Option<&str>) -> Result<()> {
        let id = subject.to_string();
        self.remove::<crate::record::Protection>(&id, reason).await?;
        self.remove::<crate::record::PolicyRecord>(&id, reason).await?;
        for block in seen.blocks().filter(|b| b.fields.subject == *subject) {
            self.remove::<crate::blocks::Block>(&block.meta.id, reason).await?;
        }
        Ok(())
    }

    pub(crate) async fn create<T: Fields>(&self, subject: &Subject, fields: T, reason: Option<&str>) -> Result<()> {
        self.change::<T>(&subject.id(), reason, |current| match current {
            None => Ok(Change::Put(fields.clone())),
            Some(_) => Err(exists(subject)),
        })
        .await?;
        Ok(())
    }

    /// A parent that exists and is not going.
    pub(crate) async fn parent<T: Container>(&self, subject: &Subject) -> Result<Arc<Record<T>>> {
        let found = self.load::<T>(&subject.id()).await?.ok_or_else(|| missing(subject, "; make it first"))?;
        if *found.fields.clone().deleting() {
            return Err(Error::Refused(format!("{subject} is being dropped; nothing new goes into it")));
        }
        Ok(found)
    }

    pub(crate) async fn keep_if_parent<P: Container, T: Fields>(
        &self,
        parent: &Subject,
        child: &Subject,
    ) -> Result<()> {
        if let Err(e) = self.parent::<P>(parent).await {
            self.remove::<T>(&child.id(), Some("its parent went while it was created")).await?;
            return Err(e);
        }
        Ok(())
    }
}

pub(crate) fn shape(id: &str) -> Result<()> {
    check_name(id).map_err(|why| {
        let shown: String = id.chars().take(40).collect();
        Error::Invalid(format!("{shown:?} is no name: {why}"))
    })
}

pub(crate) fn shape_path(path: &[String], at_least: usize) -> Result<()> {
    if path.len() < at_least {
        return Err(Error::Invalid("a table lies in a namespace: write table/NAMESPACE/NAME".into()));
    }
    path.iter().try_for_each(|segment| shape(segment))
}

pub(crate) fn shape_location(location: &str) -> Result<()> {
    let wrong = |why: &str| {
        Error::Invalid(format!("`{location}` is no location ({why}); it is relative to the warehouse's root"))
    };
    if location.contains("://") || location.starts_with('/') {
        return Err(wrong("it is absolute"));
    }
    let segments: Vec<&str> = location.trim_end_matches('/').split('/').collect();
    if has_scheme(segments[0]) {
        return Err(wrong("it begins with a scheme"));
    }
    if segments.iter().any(|s| matches!(*s, "" | "." | "..")) {
        return Err(wrong("it has an empty segment, `.` or `..`"));
    }
    if segments.iter().any(|s| crate::RESERVED.contains(s)) {
        return Err(wrong("it lies in a reserved directory"));
    }
    if location.chars().any(char::is_control) {
        return Err(wrong("it holds a control character"));
    }
    Ok(())
}

/// A dataset inside another one's directory belongs to that one, as far as whoever lists it can tell.
fn refuse_nested<'a>(taken: impl IntoIterator<Item = (&'a String, &'a Subject)>, uri: &str) -> Result<()> {
    let nested = |other: &str| other != uri && (within(other, uri) || within(uri, other));
    match taken.into_iter().find(|(other, _)| nested(other)) {
        Some((other, subject)) => Err(Error::Refused(format!(
            "{uri} and {other} lie one in the other, and the latter is {subject}; a table has a directory of its own"
        ))),
        None => Ok(()),
    }
}

/// `s3:`, `file:` and their like: a location that some other reader would not take for a relative one.
fn has_scheme(segment: &str) -> bool {
    segment.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+.-".contains(&b))
    })
}

pub(crate) fn missing(subject: &Subject, hint: &str) -> Error {
    Error::Missing { what: subject.to_string(), hint: hint.to_owned() }
}

pub(crate) fn exists(subject: &Subject) -> Error {
    Error::Exists { what: subject.to_string(), hint: String::new() }
}

/// Refuses what protection or an unreadable record forbids to drop. `force` gets past `no-drop` only.
pub(crate) fn refuse_drop(snapshot: &Snapshot, subject: &Subject, force: bool) -> Result<()> {
    if let Some(u) = snapshot.unreadable_for(subject).first() {
        return Err(Error::Unreadable {
            what: format!("{}/{}, in the scope of {subject},", u.collection, u.key),
            why: u.why.clone(),
        });
    }
    match snapshot.protection_over(subject) {
        Some(p) if !(force && p.level == Level::NoDrop) => Err(Error::Refused(format!(
            "{subject} is protected: {} on {}{}; {}",
            p.level,
            p.subject,
            p.reason.map(|r| format!(" ({r})")).unwrap_or_default(),
            // Containers above namespaces have no such flag.
            if p.level == Level::NoDrop && matches!(subject, Subject::Table(_) | Subject::Namespace(_)) {
                "use --force, or end the protection first"
            } else {
                "end the protection first"
            }
        ))),
        _ => Ok(()),
    }
}

pub(crate) fn refuse_contents(snapshot: &Snapshot, subject: &Subject) -> Result<()> {
    let contents = contents(snapshot, subject);
    if contents.is_empty() {
        return Ok(());
    }
    let shown: Vec<&str> = contents.iter().take(10).map(String::as_str).collect();
    let more = contents.len().saturating_sub(shown.len());
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(Error::Refused(format!("{subject} is not empty: {}{rest}; drop these first", shown.join(", "))))
}

/// Whether a table lies in a namespace, at whatever depth.
fn in_namespace(table: &Subject, namespace: &Subject) -> bool {
    std::iter::successors(table.parent_namespace(), Subject::parent_namespace).any(|above| above == *namespace)
}

/// What a container holds directly. A warehouse also holds what the trash could bring back into it, and a namespace its tables
/// in the trash: they come back under its policy and its blocks, and one that is made anew has neither.
fn contents(snapshot: &Snapshot, subject: &Subject) -> Vec<String> {
    let below = |child: Subject| (child.parent_namespace().as_ref() == Some(subject)).then(|| child.to_string());
    let ended: Vec<String> =
        snapshot.ended_namespaces(chrono::Utc::now()).into_iter().map(|t| t.meta.id.clone()).collect();
    match subject {
        Subject::Project(id) => snapshot
            .warehouses()
            .filter(|w| &w.fields.project == id)
            .map(|w| format!("warehouse/{}", w.meta.id))
            .collect(),
        Subject::Warehouse(id) => snapshot
            .namespaces()
            .filter(|n| &n.fields.warehouse == id)
            .map(|n| format!("namespace/{}", n.meta.id))
            .chain(
                snapshot
                    .in_trash()
                    .filter(|t| &t.fields.warehouse == id && !ended.contains(&t.meta.id))
                    .map(|t| format!("{} in the trash", t.fields.subject)),
            )
            .collect(),
        Subject::Namespace(_) => {
            snapshot
                .namespaces()
                .filter_map(|n| below(Subject::Namespace(n.fields.path.clone())))
                .chain(snapshot.tables().filter_map(|t| below(t.fields.subject())))
                .chain(snapshot.trash().filter(|t| in_namespace(&t.fields.subject, subject)).map(|t| {
                    format!("{} in the trash (with --cascade the namespace waits beside it)", t.fields.subject)
                }))
                .collect()
        }
        _ => Vec::new(),
    }
}
