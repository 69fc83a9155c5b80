//! Datasets that lie in a bucket become records, under their own names or those that a Lance namespace gives them.
//!
//! What a dataset is, `_versions/` decides: a directory that holds it, and nothing else is known of it here. Directories are
//! walked level by level with listings that stop at `/`, so that the files of a dataset are never listed.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::hierarchy::{NewTable, shape_location, shape_path};
use crate::identity::RESERVED;
use crate::record::Table;
use crate::registry::Registry;
use crate::snapshot::Snapshot;
use crate::storage::{Root, StorageOptions, join_uri, within};
use crate::subject::Subject;

/// How deep datasets are looked for below a root; as deep as a sweep looks.
const DEPTH: usize = 16;
/// Directories listed at the same time.
const LISTS: usize = 16;
/// What a directory namespace without a `__manifest` puts into a table that it deregisters.
const DEREGISTERED: &str = ".lance-deregistered";

/// What an import of a bucket would create.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AdoptPlan {
    /// The root that was walked.
    pub root: String,
    /// The project that would be made.
    pub project: Option<String>,
    /// The warehouse that the tables go into.
    pub warehouse: String,
    /// The root of the warehouse that would be made, in which project.
    pub makes_warehouse: Option<(String, String)>,
    /// Namespaces that would be made, parents first.
    pub namespaces: Vec<Subject>,
    /// Tables that would be registered, with their location in the warehouse.
    pub tables: Vec<(Subject, String)>,
    /// Those of them that have no data yet.
    pub declared: BTreeSet<Subject>,
    /// Datasets that would not, and why.
    pub skipped: Vec<(String, String)>,
    /// The canonical URIs of the datasets that the walk found.
    #[serde(skip)]
    pub found: BTreeSet<String>,
}

/// What a Lance namespace names below a root.
pub struct Named<'a> {
    /// Ids of its namespaces.
    pub namespaces: Vec<Vec<String>>,
    /// Its tables.
    pub tables: Vec<NamedTable>,
    /// Whether its tables alone become records: the bucket is not walked.
    pub alone: bool,
    /// Why a dataset, by its canonical URI, that it does not name is left out.
    pub leave: &'a (dyn Fn(&str) -> Option<String> + Sync),
    /// The canonical URIs of directories whose names are reserved and that hold no data: they are named as datasets of the walk are.
    pub reserved: Vec<String>,
}

/// A table of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedTable {
    /// Its id: the namespaces' names and its own.
    pub id: Vec<String>,
    /// The canonical URI of its place.
    pub uri: String,
    /// Its name is reserved, and there is no data yet.
    pub declared: bool,
}

impl Named<'_> {
    /// No namespace but these reserved names.
    pub fn reserved(reserved: Vec<String>) -> Named<'static> {
        Named { namespaces: Vec::new(), tables: Vec::new(), alone: false, leave: &|_| None, reserved }
    }
}

/// What was found below a root.
#[derive(Debug, Default)]
struct Walk {
    /// Directories with `_versions/`, as segments below the root.
    datasets: Vec<Vec<String>>,
    /// Those of them that their namespace deregistered.
    deregistered: BTreeSet<Vec<String>>,
    /// Directories that were not looked into.
    too_deep: Vec<Vec<String>>,
}

impl Registry {
    /// What importing the datasets below `root` would create: each is registered as
    /// `table/<warehouse>/<directories>/<name>`, a trailing `.lance` cut. Writes nothing.
    ///
    /// Where no warehouse holds the root, one of its name is made in `project` (the only one there is, else `default`).
    ///
    /// # Errors
    /// [`Error::Refused`] for a root that holds a warehouse below it, or that is a dataset itself; what the store answers.
    pub async fn adopt_plan(&self, root: &str, project: Option<&str>, options: &StorageOptions) -> Result<AdoptPlan> {
        self.adopt_plan_named(root, project, options, &Named::reserved(Vec::new())).await
    }

    /// The same, with the names that a namespace gives: a table of id `a, b, t` becomes `table/<warehouse>/a/b/t`.
    ///
    /// # Errors
    /// As [`Registry::adopt_plan`].
    pub async fn adopt_plan_named(
        &self,
        root: &str,
        project: Option<&str>,
        options: &StorageOptions,
        named: &Named<'_>,
    ) -> Result<AdoptPlan> {
        let root = Root::open(root, options)?;
        let snapshot = self.snapshot().await?;
        let found = if named.alone { Walk::default() } else { walk(&root).await? };
        plan(&snapshot, root.uri(), self.uri(), project, &found, named)
    }

    /// Creates what a plan names; what exists already stays as it is.
    ///
    /// # Errors
    /// As the verbs that create projects, warehouses, namespaces and tables; what was created until then stays, and the
    /// same import goes on.
    pub async fn adopt(&self, plan: &AdoptPlan, options: &StorageOptions, reason: Option<&str>) -> Result<Vec<Table>> {
        let there = self.snapshot().await?;
        if let Some(project) = plan.project.as_ref().filter(|p| there.project(p).is_none()) {
            self.project_create(project, reason).await?;
        }
        if let Some((root, project)) =
            plan.makes_warehouse.as_ref().filter(|_| there.warehouse(&plan.warehouse).is_none())
        {
            self.warehouse_create(&plan.warehouse, project, root, true, options, reason).await?;
        }
        for namespace in plan.namespaces.iter().filter(|n| !there.exists(n)) {
            let Subject::Namespace(path) = namespace else { continue };
            self.namespace_create(path, Some(&plan.warehouse), reason).await?;
        }
        let new = |(subject, location): &(Subject, String)| NewTable {
            path: crate::cascade::path_of(subject).to_vec(),
            location: location.clone(),
            tier: None,
            labels: Vec::new(),
            declare: plan.declared.contains(subject),
        };
        futures::stream::iter(plan.tables.iter().filter(|(table, _)| !there.exists(table)).map(new))
            .map(|table| self.table_create(table, options, reason))
            .buffered(LISTS)
            .try_collect()
            .await
    }
}

/// A directory, and the names of the directories and of the objects in it.
type Listed = (Vec<String>, (Vec<String>, Vec<String>));

async fn walk(root: &Root) -> Result<Walk> {
    let mut out = Walk::default();
    let mut level: Vec<Vec<String>> = vec![Vec::new()];
    for depth in 0..=DEPTH {
        let listed: Vec<Listed> = futures::stream::iter(level)
            .map(|dir| async move {
                let segments: Vec<&str> = dir.iter().map(String::as_str).collect();
                Ok::<_, Error>((dir.clone(), root.level(&root.path(&segments)?).await?))
            })
            .buffered(LISTS)
            .try_collect()
            .await?;
        level = Vec::new();
        for (dir, (below, objects)) in listed {
            if below.iter().any(|name| name == "_versions") {
                out.deregistered.extend(objects.iter().any(|name| name == DEREGISTERED).then(|| dir.clone()));
                out.datasets.push(dir);
            } else if depth == DEPTH {
                out.too_deep.extend((!below.is_empty()).then_some(dir));
            } else {
                let below = below.into_iter().filter(|name| !RESERVED.contains(&name.as_str()));
                level.extend(below.map(|name| dir.iter().cloned().chain([name]).collect()));
            }
        }
    }
    out.datasets.sort();
    Ok(out)
}

fn plan(
    snapshot: &Snapshot,
    root: &str,
    registry: &str,
    project: Option<&str>,
    found: &Walk,
    named: &Named<'_>,
) -> Result<AdoptPlan> {
    if found.datasets.iter().any(Vec::is_empty) {
        return Err(Error::Refused(format!(
            "{root} is a dataset itself; import the directory around it, or register it with `table create`"
        )));
    }
    if let Some(inside) = snapshot.warehouses().find(|w| w.fields.root != root && within(&w.fields.root, root)) {
        return Err(Error::Refused(format!(
            "warehouse/{} lies in {root}; import {} and what lies beside it on their own",
            inside.meta.id, inside.fields.root
        )));
    }
    let around = snapshot.warehouses().filter(|w| within(root, &w.fields.root)).max_by_key(|w| w.fields.root.len());
    let (warehouse, base, makes) = match around {
        Some(w) => (crate::govern::name_of(w), w.fields.root.clone(), None),
        None => {
            let name = free_name(snapshot, root)?;
            let project = project.map_or_else(|| only_project(snapshot), str::to_owned);
            (name, root.to_owned(), Some((root.to_owned(), project)))
        }
    };
    let new_project = makes.as_ref().map(|(_, p)| p.clone()).filter(|p| snapshot.project(p).is_none());
    let mut out = AdoptPlan {
        root: root.to_owned(),
        project: new_project,
        warehouse,
        makes_warehouse: makes,
        namespaces: Vec::new(),
        tables: Vec::new(),
        declared: BTreeSet::new(),
        skipped: Vec::new(),
        found: BTreeSet::new(),
    };
    let below = root.strip_prefix(&base).unwrap_or_default().trim_matches('/');
    let above: Vec<String> = below
        .split('/')
        .filter(|s| !s.is_empty())
        .map(|s| percent_encoding::percent_decode_str(s).decode_utf8_lossy().into_owned())
        .collect();
    let mut taken = BTreeSet::new();
    let mut places = BTreeSet::new();
    for table in &named.tables {
        if !places.insert(table.uri.as_str()) {
            out.skipped.push((table.uri.clone(), format!("{} is a second name of it", table.id.join("/"))));
            continue;
        }
        let candidate = below_of(&table.uri, &base).map(|location| Candidate {
            path: table.id.clone(),
            location,
            uri: table.uri.clone(),
        });
        let added = candidate.and_then(|c| one(snapshot, &mut out, &mut taken, c, registry));
        match added {
            Ok(subject) if table.declared => _ = out.declared.insert(subject),
            Ok(_) => {}
            Err(why) => out.skipped.push((table.uri.clone(), why)),
        }
    }
    for dataset in &found.datasets {
        let segments: Vec<String> = above.iter().chain(dataset).cloned().collect();
        let uri = join_uri(&base, &segments.join("/"));
        out.found.insert(uri.clone());
        if places.contains(uri.as_str()) {
            continue;
        }
        let candidate = Candidate { path: uncut(&segments), location: segments.join("/"), uri: uri.clone() };
        let gone = || "its namespace deregistered it".to_owned();
        let added = match (named.leave)(&uri).or_else(|| found.deregistered.contains(dataset).then(gone)) {
            Some(why) => Err(why),
            None => one(snapshot, &mut out, &mut taken, candidate, registry),
        };
        if let Err(why) = added {
            out.skipped.push((uri, why));
        }
    }
    for uri in &named.reserved {
        let added = below_of(uri, &base).and_then(|location| {
            let path = uncut(&location.split('/').map(str::to_owned).collect::<Vec<_>>());
            one(snapshot, &mut out, &mut taken, Candidate { path, location, uri: uri.clone() }, registry)
        });
        match added {
            Ok(subject) => _ = out.declared.insert(subject),
            Err(why) => out.skipped.push((uri.clone(), why)),
        }
    }
    for deep in &found.too_deep {
        let why = format!("it is deeper than {DEPTH} directories, and was not looked into");
        out.skipped.push((join_uri(root, &deep.join("/")), why));
    }
    let mut namespaces: BTreeSet<Vec<String>> = BTreeSet::new();
    for id in &named.namespaces {
        let path: Vec<String> = [out.warehouse.clone()].into_iter().chain(id.iter().cloned()).collect();
        match shape_path(&path, 1) {
            Ok(()) => namespaces.extend((1..=path.len()).map(|n| path[..n].to_vec())),
            Err(e) => out.skipped.push((format!("namespace {}", id.join("/")), e.to_string())),
        }
    }
    for (table, _) in &out.tables {
        let path = crate::cascade::path_of(table);
        namespaces.extend((1..path.len()).map(|n| path[..n].to_vec()));
    }
    out.namespaces = namespaces.into_iter().map(Subject::Namespace).filter(|n| !snapshot.exists(n)).collect();
    Ok(out)
}

/// A dataset that may become a table.
struct Candidate {
    /// Its names below the warehouse's.
    path: Vec<String>,
    /// Where it lies in the warehouse.
    location: String,
    uri: String,
}

/// The names of a directory: a trailing `.lance` of the last one is cut.
fn uncut(segments: &[String]) -> Vec<String> {
    let mut path = segments.to_vec();
    if let Some(last) = path.last_mut()
        && let Some(cut) = last.strip_suffix(".lance").filter(|cut| !cut.is_empty())
    {
        *last = cut.to_owned();
    }
    path
}

/// Where a URI lies below a root, not percent-encoded.
fn below_of(uri: &str, base: &str) -> std::result::Result<String, String> {
    let rest = uri.strip_prefix(base.trim_end_matches('/')).and_then(|rest| rest.strip_prefix('/'));
    let rest = rest.ok_or_else(|| format!("it lies outside of the warehouse, {base}"))?;
    let decoded = percent_encoding::percent_decode_str(rest).decode_utf8();
    decoded.map(|text| text.into_owned()).map_err(|_| "its place is not UTF-8".to_owned())
}

/// One dataset's name, or why it gets none.
fn one(
    snapshot: &Snapshot,
    out: &mut AdoptPlan,
    taken: &mut BTreeSet<Subject>,
    candidate: Candidate,
    registry: &str,
) -> std::result::Result<Subject, String> {
    let Candidate { path: below, location, uri } = candidate;
    if location.rsplit('/').next().is_some_and(|name| name.starts_with("__")) {
        return Err("names that begin with `__` are a catalog's own tables".into());
    }
    if within(&uri, registry) {
        return Err("it lies in the registry".into());
    }
    if let Some(location) = snapshot.locations.get(&uri) {
        return Err(format!("it is {} already", location.fields.table));
    }
    if let Some(trash) = snapshot.trash_at(&uri).next() {
        return Err(format!("it is {} in the trash", trash.fields.subject));
    }
    let path: Vec<String> = [out.warehouse.clone()].into_iter().chain(below).collect();
    shape_path(&path, 2).and_then(|()| shape_location(&location)).map_err(|e| e.to_string())?;
    let subject = Subject::Table(path);
    if let Some(top) = snapshot.namespace(std::slice::from_ref(&out.warehouse))
        && top.fields.warehouse != out.warehouse
    {
        return Err(format!("namespace/{} is bound to warehouse `{}`", out.warehouse, top.fields.warehouse));
    }
    if snapshot.exists(&subject) || !taken.insert(subject.clone()) {
        return Err(format!("the name {subject} is taken; register it with `table create` under another one"));
    }
    out.tables.push((subject.clone(), location));
    Ok(subject)
}

fn only_project(snapshot: &Snapshot) -> String {
    let mut all = snapshot.projects();
    match (all.next(), all.next()) {
        (Some(only), None) => percent_encoding::percent_decode_str(&only.meta.id).decode_utf8_lossy().into_owned(),
        _ => "default".to_owned(),
    }
}

/// The root's last segment, as no other warehouse is called.
fn free_name(snapshot: &Snapshot, root: &str) -> Result<String> {
    let last = root.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    let name = percent_encoding::percent_decode_str(last).decode_utf8_lossy().into_owned();
    crate::subject::check_name(&name).map_err(|why| Error::Invalid(format!("{root} gives no name: {why}")))?;
    if snapshot.warehouse(&name).is_some() {
        return Err(Error::Refused(format!(
            "a warehouse `{name}` exists elsewhere; make one over {root} with `warehouse create`, and import again"
        )));
    }
    Ok(name)
}
