//! `import` of a Lance namespace: what it names, and where. The lake crate asks it; this command package is a program like the services
//! and may, while the registry library knows nothing of Lance.

use std::sync::Arc;

use squire_lake::namespace::{self, Catalog, Inventory, Namespace, is_generated};
use squire_lake::{Kind, Lake, uri};
use squire_registry::{AdoptPlan, Named, NamedTable, Registry};
use squire_service::cli::{Exit, Failure};

use crate::context::{Context, failure};

/// What the lake may hold of a catalog: an import reads one table and lists.
const CACHES: u64 = 1 << 30;

/// The plan of an import from a place, and what of a namespace could not be read.
pub(crate) struct Planned {
    pub(crate) plan: AdoptPlan,
    /// The place whose storage options the import writes with.
    pub(crate) root: String,
    /// `(what, why)`.
    pub(crate) unread: Vec<(String, String)>,
}

fn lake(context: &Context) -> Lake {
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
    let inventory = match namespace::catalog(&lake, &at).await {
        Ok(Catalog::Namespace) => match Namespace::directory(&lake, &at).await.map_err(cut_short)? {
            Some(namespace) => Some(namespace.inventory().await),
            None => None,
        },
        Ok(Catalog::None | Catalog::Graph) => None,
        Err(e) => return Err(cut_short(e).into()),
    };
    let Some(inventory) = inventory else {
        let plan = registry.adopt_plan(root, project, &options).await.map_err(failure)?;
        return Ok(Planned { plan, root: root.to_owned(), unread: Vec::new() });
    };
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
