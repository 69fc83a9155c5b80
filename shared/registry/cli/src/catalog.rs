//! Lance namespaces: `import` of what one names, and which server may name a warehouse's tables from now on. The lake crate asks it; this command package is a program like the services
//! and may, while the registry library knows nothing of Lance.

use std::sync::Arc;

use squire_lake::namespace::{self, Catalog, Inventory, Namespace, is_generated};
use squire_lake::{Kind, Lake, uri};
use squire_registry::{AdoptPlan, Named, NamedTable, Record, Registry, Snapshot, StorageOptions, Table, Warehouse};
use squire_service::cli::{Exit, Failure};

use crate::context::{Context, failure};

/// What the lake may hold: an import reads one table and lists.
const CACHES: u64 = 1 << 30;

/// The plan of an import from a place, and what of a namespace could not be read.
pub(crate) struct Planned {
    pub(crate) plan: AdoptPlan,
    /// The place whose storage options the import writes with.
    pub(crate) root: String,
    /// `(what, why)`.
    pub(crate) unread: Vec<(String, String)>,
}

pub(crate) fn lake(context: &Context) -> Lake {
    let storage = context.config().storage.clone();
    Lake::new(Arc::new(move |uri: &str| storage.options_for(uri)), CACHES)
}

/// What importing a bucket would create: under the names of the directory namespace that its `__manifest` is, where there is one.
///
/// # Errors
/// Exit 3 for a catalog that cannot be read: its tables would get other names than it gives them.
pub(crate) async fn of_root(
    context: &Context,
    registry: &Registry,
    root: &str,
    project: Option<&str>,
) -> anyhow::Result<Planned> {
    let options = context.options(root);
    let (lake, at) = (lake(context), uri::canonical(root).map_err(unusable)?);
    let directory = match namespace::catalog(&lake, &at).await {
        Ok(Catalog::None) => return listed(&lake, registry, &at, project, &options).await,
        Ok(Catalog::Namespace) => Namespace::directory(&lake, &at).await.map_err(cut_short)?,
        Ok(Catalog::Graph) => None,
        Err(e) => return Err(cut_short(e).into()),
    };
    let Some(directory) = directory else {
        let plan = registry.adopt_plan(root, project, &options).await.map_err(failure)?;
        return Ok(Planned { plan, root: root.to_owned(), unread: Vec::new() });
    };
    let inventory = directory.inventory().await;
    // What could not be read may name any of them.
    let why = match inventory.is_complete() {
        true => "the namespace does not name it: it was deregistered there, or is being made",
        false => "the namespace could not be read to its end, and may give it another name",
    };
    let leave = |dataset: &str| is_generated(dataset).then(|| why.to_owned());
    let named = named(&inventory, false, &leave);
    let plan = registry.adopt_plan_named(root, project, &options, &named).await.map_err(failure)?;
    Ok(Planned { plan, root: root.to_owned(), unread: inventory.unread })
}

/// A bucket without a catalog: its datasets by their directories, and the names that a directory namespace has reserved in it. Those
/// hold no data, so the walk finds none of them.
async fn listed(
    lake: &Lake,
    registry: &Registry,
    root: &str,
    project: Option<&str>,
    options: &StorageOptions,
) -> anyhow::Result<Planned> {
    let plan = registry.adopt_plan(root, project, options).await.map_err(failure)?;
    let planned = |plan, unread| Planned { plan, root: root.to_owned(), unread };
    match namespace::reserved(lake, root, &plan.found).await {
        Ok(reserved) if reserved.is_empty() => Ok(planned(plan, Vec::new())),
        Ok(tables) => {
            let named = Named::reserved(tables.into_iter().map(|t| t.uri).collect());
            Ok(planned(registry.adopt_plan_named(root, project, options, &named).await.map_err(failure)?, Vec::new()))
        }
        Err(e) => Ok(planned(plan, vec![("names without data".to_owned(), e.to_string())])),
    }
}

/// Refuses a server as the namespace of a warehouse, or none, where tables would be left without one that speaks for them: what
/// the server does not name is not maintained, and what another one commits must not be committed around it. `gone`: the present
/// server will not come back, so that it says nothing refuses nothing; returned is why it could not be asked.
///
/// # Errors
/// Exit 3, which names the tables; exit 1 where the server could not be asked.
pub(crate) async fn refuse_unnamed(
    context: &Context,
    snapshot: &Snapshot,
    warehouse: &Record<Warehouse>,
    url: Option<&str>,
    gone: bool,
) -> anyhow::Result<Option<String>> {
    let (id, w) = (&warehouse.meta.id, &warehouse.fields);
    let lake = lake(context);
    let next = match url {
        Some(url) => {
            let inventory = Namespace::rest(&lake, url).await.map_err(unread)?.inventory().await;
            if let Some((what, why)) = inventory.unread.first() {
                return Err(Failure::could_not_run(format!("asking {url} for all that it names: {what}: {why}"))
                    .remedy(format!(
                        "warehouse/{id} stays as it is; see that the server runs, and its header or token_file"
                    ))
                    .into());
            }
            Some((url, inventory))
        }
        None => None,
    };
    if let Some((url, inventory)) = &next {
        let inside = |t: &&Record<Table>| uri::within(&t.fields.uri, &w.root);
        let unnamed = snapshot.tables().filter(inside).filter(|t| inventory.at(&t.fields.uri).next().is_none());
        let unnamed: Vec<String> = unnamed.map(|t| t.fields.subject().to_string()).collect();
        refuse(
            &unnamed,
            &format!("{url} does not name"),
            "nothing would be maintained of them; register them there, or drop them",
        )?;
    }
    let Some(was) = &w.namespace else { return Ok(None) };
    let managed_next = |at: &str| next.as_ref().is_some_and(|(_, i)| i.at(at).any(|t| t.managed));
    let before = match Namespace::rest(&lake, was).await {
        Ok(namespace) => namespace.inventory().await,
        Err(e) => Inventory { unread: vec![("the root".into(), e.to_string())], ..Inventory::default() },
    };
    let around: Vec<String> = before
        .tables
        .iter()
        .filter(|t| t.managed && uri::within(&t.uri, &w.root) && !managed_next(&t.uri))
        .map(|t| t.uri.clone())
        .collect();
    let remedy =
        "their commits would go around it; name a server that commits for them, too, or take them from this one first";
    refuse(&around, &format!("{was} commits the versions of"), remedy)?;
    // What it commits for is not known to its end: all that there is may be.
    let all = next.as_ref().is_some_and(|(_, i)| i.tables.iter().all(|t| t.managed));
    let Some((what, why)) = before.unread.first().filter(|_| !all) else { return Ok(None) };
    let told = format!(
        "{was}, which names the tables of warehouse/{id}, could not be read ({what}: {why}), and may commit for them"
    );
    let remedy = if !gone {
        "see that it runs. If it will never come back: --server-is-gone. Then versions that only it knew are lost, old versions \
         that it needed go by the policy, and should it come back after all, two commit for one table"
    } else if answers(&lake, was, &before).await {
        "--server-is-gone is for a server that does not answer, and this one does; see its header or token_file"
    } else {
        return Ok(Some(format!("{what}: {why}")));
    };
    Err(Failure::new(Exit::Failed, told).remedy(remedy).into())
}

/// Whether a server that could not be asked to its end is there all the same: it named something, or turned us away.
async fn answers(lake: &Lake, url: &str, told: &Inventory) -> bool {
    let named = !told.tables.is_empty() || !told.namespaces.is_empty();
    named
        || match Namespace::rest(lake, url).await {
            Ok(namespace) => namespace.denies().await,
            // A token that cannot be read, an option that does not fit: nobody has asked the server yet.
            Err(_) => true,
        }
}

fn refuse(what: &[String], told: &str, remedy: &str) -> Result<(), Failure> {
    let Some(shown) = what.get(..what.len().min(10)).filter(|shown| !shown.is_empty()) else { return Ok(()) };
    let rest = what.len() - shown.len();
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    Err(Failure::new(Exit::Failed, format!("{told} {}{more}", shown.join(", "))).remedy(remedy))
}

/// What importing a REST namespace would create, into the warehouse that it backs.
///
/// # Errors
/// Exit 2 where it backs no warehouse: its tables need a root to lie in.
pub(crate) async fn of_url(context: &Context, registry: &Registry, url: &str) -> anyhow::Result<Planned> {
    let url = url.trim_end_matches('/');
    let snapshot = registry.snapshot().await.map_err(failure)?;
    let backed = snapshot.warehouses().find(|w| w.fields.namespace.as_deref() == Some(url));
    let Some(root) = backed.map(|w| w.fields.root.clone()) else {
        return Err(Failure::usage(format!("no warehouse is backed by {url}"))
            .remedy(format!("make it: squire-registry warehouse create W --project P --root URI --namespace {url}"))
            .into());
    };
    let inventory = Namespace::rest(&lake(context), url).await.map_err(unread)?.inventory().await;
    let named = named(&inventory, true, &|_| None);
    let plan = registry.adopt_plan_named(&root, None, &context.options(&root), &named).await.map_err(failure)?;
    Ok(Planned { plan, root, unread: inventory.unread })
}

fn named<'a>(inventory: &Inventory, alone: bool, leave: &'a (dyn Fn(&str) -> Option<String> + Sync)) -> Named<'a> {
    let table = |t: &namespace::Entry| NamedTable {
        id: t.id.clone(),
        uri: t.uri.clone(),
        declared: t.declared_only == Some(true),
    };
    Named {
        namespaces: inventory.namespaces.iter().cloned().collect(),
        tables: inventory.tables.iter().map(table).collect(),
        alone,
        leave,
        reserved: Vec::new(),
    }
}

fn unread(e: squire_lake::Error) -> Failure {
    let exit = if e.kind() == Kind::Transient { Exit::CouldNotRun } else { Exit::Failed };
    Failure::new(exit, e.to_string())
}

/// A catalog in the bucket itself: whatever kept it from being read, the bucket was. Lance calls a cut file an I/O error, too.
fn cut_short(e: squire_lake::Error) -> Failure {
    Failure::new(Exit::Failed, e.to_string())
}

fn unusable(e: squire_lake::Error) -> Failure {
    Failure::usage(e.to_string())
}
