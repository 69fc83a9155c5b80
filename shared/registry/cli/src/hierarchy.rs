//! Projects, warehouses, namespaces and tables.

use std::collections::BTreeMap;

use chrono::Utc;
use serde_json::{Value, json};
use squire_registry::{
    Error, Kind, NewTable, NewWarehouse, Registry, Snapshot, Subject, TableChanges, check_namespace_url,
};
use squire_service::cli::{Exit, Failure};

use crate::args::{NamespaceVerb, ProjectVerb, TableVerb, WarehouseVerb};
use crate::context::{Context, explicit_of, failure, id_of, subject};
use crate::drops::{self, Flags};
use crate::output::{emit, table as columns, time};

/// Says what was done, and is done.
fn done(context: &Context, text: impl AsRef<str>, value: Value) -> anyhow::Result<Exit> {
    emit(&context.common, text.as_ref(), &value)?;
    Ok(Exit::Ok)
}

/// What is not there may be in the trash, and until when it can come back is what its owner wants to know.
fn trashed(snapshot: &Snapshot, subject: &Subject) -> Failure {
    let held = snapshot.trash().chain(snapshot.trashed_namespaces()).filter(|t| t.fields.subject == *subject);
    match held.max_by_key(|t| t.fields.deadline) {
        Some(t) => Failure::usage(format!("{subject} is in the trash until {}", time(t.fields.deadline)))
            .remedy(format!("`squire-registry trash undrop {subject}` brings it back")),
        None => missing(subject),
    }
}

fn missing(subject: &Subject) -> Failure {
    Failure::usage(format!("{subject} does not exist")).remedy(format!("see `squire-registry {} list`", subject.kind()))
}

async fn drop_container(context: &Context, subject: Subject, reason: Option<&str>) -> anyhow::Result<Exit> {
    let registry = context.registry(&[]).await?;
    registry.container_drop(&subject, false, reason).await.map_err(failure)?;
    done(context, format!("{subject} dropped"), json!({ "dropped": subject }))
}

pub(crate) async fn project(context: &Context, verb: ProjectVerb) -> anyhow::Result<Exit> {
    match verb {
        ProjectVerb::Create { project, why } => {
            let id = id_of("project", &project)?;
            let registry = context.registry(&[]).await?;
            registry.project_create(&id, why.reason.as_deref()).await.map_err(failure)?;
            let subject = Subject::Project(id);
            done(context, format!("{subject} created"), json!({ "created": subject }))
        }
        ProjectVerb::List => {
            let (_, snapshot) = read(context).await?;
            let count = |id: &str| snapshot.warehouses().filter(|w| w.fields.project == id).count();
            let all: Vec<(String, usize)> = snapshot
                .projects()
                .map(|p| (decoded("project", &p.meta.id), count(&decoded("project", &p.meta.id))))
                .collect();
            let rows: Vec<Vec<String>> = all.iter().map(|(id, n)| vec![id.clone(), n.to_string()]).collect();
            let value: Vec<Value> = all.iter().map(|(id, n)| json!({ "project": id, "warehouses": n })).collect();
            emit(&context.common, &columns(&["project", "warehouses"], &rows, "no projects"), &value)?;
            incomplete(&snapshot)
        }
        ProjectVerb::Show { project } => {
            let id = id_of("project", &project)?;
            let (_, snapshot) = read(context).await?;
            let record = snapshot.project(&id).ok_or_else(|| missing(&Subject::Project(id.clone())))?;
            let held: Vec<String> = snapshot
                .warehouses()
                .filter(|w| w.fields.project == id)
                .map(|w| format!("warehouse/{}", w.meta.id))
                .collect();
            let text = format!("project/{}\nwarehouses: {}", record.meta.id, or_none(&held));
            done(context, text, json!({ "project": id, "warehouses": held, "record": record.meta }))
        }
        ProjectVerb::Drop { project, why } => {
            let subject = explicit_of("project", &project)?;
            drop_container(context, subject, why.reason.as_deref()).await
        }
    }
}

pub(crate) async fn warehouse(context: &Context, verb: WarehouseVerb) -> anyhow::Result<Exit> {
    match verb {
        WarehouseVerb::Create { warehouse, project, root, not_exclusive, namespace, why } => {
            let (id, project) = (id_of("warehouse", &warehouse)?, id_of("project", &project)?);
            let registry = context.registry(&[]).await?;
            let options = context.options(&root);
            let reason = why.reason.as_deref();
            let exclusive = !not_exclusive;
            let new =
                NewWarehouse { id: &id, project: &project, root: &root, exclusive, namespace: namespace.as_deref() };
            registry.warehouse_make(new, &options, reason).await.map_err(failure)?;
            let subject = Subject::Warehouse(id);
            done(context, format!("{subject} created over {root}, the root is marked"), json!({ "created": subject }))
        }
        WarehouseVerb::List => {
            let (_, snapshot) = read(context).await?;
            let rows: Vec<Vec<String>> = snapshot
                .warehouses()
                .map(|w| {
                    let state = if w.fields.active { "active" } else { "inactive" };
                    let sharing = if w.fields.exclusive { "exclusive" } else { "shared" };
                    let id = decoded("warehouse", &w.meta.id);
                    vec![id, w.fields.project.clone(), w.fields.root.clone(), state.into(), sharing.into()]
                })
                .collect();
            let value: Vec<Value> = snapshot
                .warehouses()
                .map(|w| json!({ "warehouse": decoded("warehouse", &w.meta.id), "fields": w.fields }))
                .collect();
            let text = columns(&["warehouse", "project", "root", "state", "use"], &rows, "no warehouses");
            emit(&context.common, &text, &value)?;
            incomplete(&snapshot)
        }
        WarehouseVerb::Show { warehouse } => {
            let id = id_of("warehouse", &warehouse)?;
            let (_, snapshot) = read(context).await?;
            let record = snapshot.warehouse(&id).ok_or_else(|| missing(&Subject::Warehouse(id.clone())))?;
            let held: Vec<String> = snapshot
                .namespaces()
                .filter(|n| n.fields.warehouse == id)
                .map(|n| format!("namespace/{}", n.meta.id))
                .collect();
            let w = &record.fields;
            let text = format!(
                "warehouse/{}\nproject: {}\nroot: {}\nactive: {}\nexclusive: {}\nnamed by: {}\nnamespaces: {}",
                record.meta.id,
                w.project,
                w.root,
                w.active,
                w.exclusive,
                w.namespace.as_deref().unwrap_or("no server"),
                or_none(&held)
            );
            done(context, text, json!({ "warehouse": id, "fields": w, "namespaces": held, "record": record.meta }))
        }
        WarehouseVerb::Set { warehouse, namespace, server_is_gone, why } => {
            set_namespace(context, &warehouse, &namespace, server_is_gone, why.reason.as_deref()).await
        }
        WarehouseVerb::Activate { warehouse, why } => set_active(context, &warehouse, true, why.reason).await,
        WarehouseVerb::Deactivate { warehouse, why } => set_active(context, &warehouse, false, why.reason).await,
        WarehouseVerb::Drop { warehouse, why } => {
            let subject = explicit_of("warehouse", &warehouse)?;
            drop_container(context, subject, why.reason.as_deref()).await
        }
    }
}

async fn set_namespace(
    context: &Context,
    warehouse: &str,
    namespace: &str,
    server_is_gone: bool,
    reason: Option<&str>,
) -> anyhow::Result<Exit> {
    let id = id_of("warehouse", warehouse)?;
    let url = (!namespace.is_empty()).then(|| namespace.trim_end_matches('/'));
    url.map_or(Ok(()), check_namespace_url).map_err(failure)?;
    let (registry, snapshot) = read(context).await?;
    let subject = Subject::Warehouse(id.clone());
    let record = snapshot.warehouse(&id).ok_or_else(|| missing(&subject))?;
    let was = record.fields.namespace.clone();
    let unasked = match was.as_deref() == url {
        true => None,
        false => crate::catalog::refuse_unnamed(context, &snapshot, record, url, server_is_gone).await?,
    };
    registry.warehouse_set_namespace(&id, was.as_deref(), url, reason).await.map_err(failure)?;
    let (named, before) = (url.unwrap_or("no server"), was.as_deref().unwrap_or("no server"));
    let mut text = format!("{subject} is named by {named}; before: {before}");
    if let Some(why) = &unasked {
        text.push_str(&format!(", which could not be asked for which tables it commits ({why})"));
    }
    done(context, text, json!({ "warehouse": subject, "namespace": url, "before": was, "unasked": unasked }))
}

async fn set_active(context: &Context, text: &str, active: bool, reason: Option<String>) -> anyhow::Result<Exit> {
    let id = id_of("warehouse", text)?;
    let registry = context.registry(&[]).await?;
    registry.warehouse_set_active(&id, active, reason.as_deref()).await.map_err(failure)?;
    let subject = Subject::Warehouse(id);
    let state = if active { "active" } else { "inactive" };
    done(context, format!("{subject} is {state}"), json!({ "warehouse": subject, "active": active }))
}

pub(crate) async fn namespace(context: &Context, verb: NamespaceVerb) -> anyhow::Result<Exit> {
    match verb {
        NamespaceVerb::Create { namespace, warehouse, why } => {
            let subject = explicit_of("namespace", &namespace)?;
            let warehouse = warehouse.map(|w| id_of("warehouse", &w)).transpose()?;
            let registry = context.registry(&[]).await?;
            let reason = why.reason.as_deref();
            registry.namespace_create(path(&subject), warehouse.as_deref(), reason).await.map_err(failure)?;
            done(context, format!("{subject} created"), json!({ "created": subject }))
        }
        NamespaceVerb::List => {
            let (_, snapshot) = read(context).await?;
            let all: Vec<(Subject, String)> = snapshot
                .namespaces()
                .map(|n| (Subject::Namespace(n.fields.path.clone()), n.fields.warehouse.clone()))
                .collect();
            let rows: Vec<Vec<String>> = all.iter().map(|(s, w)| vec![s.to_string(), w.clone()]).collect();
            let value: Vec<Value> = all.iter().map(|(s, w)| json!({ "namespace": s, "warehouse": w })).collect();
            emit(&context.common, &columns(&["namespace", "warehouse"], &rows, "no namespaces"), &value)?;
            incomplete(&snapshot)
        }
        NamespaceVerb::Show { namespace } => {
            let subject = explicit_of("namespace", &namespace)?;
            let (_, snapshot) = read(context).await?;
            let record = snapshot.namespace(path(&subject)).ok_or_else(|| trashed(&snapshot, &subject))?;
            let below =
                |child: Subject| (child.parent_namespace().as_ref() == Some(&subject)).then(|| child.to_string());
            let held: Vec<String> = snapshot
                .namespaces()
                .filter_map(|n| below(Subject::Namespace(n.fields.path.clone())))
                .chain(snapshot.tables().filter_map(|t| below(t.fields.subject())))
                .collect();
            let text = format!("{subject}\nwarehouse: {}\nholds: {}", record.fields.warehouse, or_none(&held));
            let value = json!({
                "namespace": subject, "warehouse": record.fields.warehouse, "holds": held, "record": record.meta,
            });
            done(context, text, value)
        }
        NamespaceVerb::Drop { namespace, cascade, purge, apply, force, why } => {
            let subject = explicit_of("namespace", &namespace)?;
            drops::drop(context, subject, Flags { cascade, purge, force, apply }, why.reason).await
        }
    }
}

pub(crate) async fn table(context: &Context, verb: TableVerb) -> anyhow::Result<Exit> {
    match verb {
        TableVerb::Create { table, location, tier, declare, why } => {
            create_table(context, &table, location, tier, declare, why.reason.as_deref()).await
        }
        TableVerb::Set { table, tier, labels, why } => {
            let subject = explicit_of("table", &table)?;
            if tier.is_none() && labels.is_empty() {
                return Err(Failure::usage("nothing to set").remedy("give --tier or --label").into());
            }
            let changes = TableChanges {
                tier: tier.map(|t| Some(t).filter(|t| !t.is_empty())),
                labels: (!labels.is_empty()).then(|| labels.into_iter().filter(|l| !l.is_empty()).collect()),
                declared: None,
            };
            let registry = context.registry(&[]).await?;
            let set = registry.table_set(path(&subject), &changes, why.reason.as_deref()).await.map_err(failure)?;
            let tier = set.tier.as_deref().unwrap_or("none");
            done(context, format!("{subject}: tier {tier}, labels {}", or_none(&set.labels)), json!(set))
        }
        TableVerb::List => {
            let (_, snapshot) = read(context).await?;
            let rows: Vec<Vec<String>> = snapshot
                .tables()
                .map(|t| {
                    let tier = t.fields.tier.clone().unwrap_or_default();
                    let state = if t.fields.declared { "declared" } else { "" };
                    vec![t.fields.subject().to_string(), t.fields.uri.clone(), tier, state.into()]
                })
                .collect();
            let value: Vec<Value> =
                snapshot.tables().map(|t| json!({ "table": t.fields.subject(), "fields": t.fields })).collect();
            emit(&context.common, &columns(&["table", "uri", "tier", "state"], &rows, "no tables"), &value)?;
            incomplete(&snapshot)
        }
        TableVerb::Show { table } => show_table(context, &table).await,
        TableVerb::Rename { table, to, force, why } => drops::rename(context, &table, &to, force, why.reason).await,
        TableVerb::Drop { table, purge, apply, force, why } => {
            let subject = explicit_of("table", &table)?;
            drops::drop(context, subject, Flags { cascade: false, purge, force, apply }, why.reason).await
        }
    }
}

async fn create_table(
    context: &Context,
    text: &str,
    location: String,
    tier: Option<String>,
    declare: bool,
    reason: Option<&str>,
) -> anyhow::Result<Exit> {
    let subject = match subject(text)? {
        table @ Subject::Table(_) => table,
        other => return Err(Failure::usage(format!("`{text}` is a {}, not a table", other.kind())).into()),
    };
    let (registry, snapshot) = read(context).await?;
    let root = subject
        .parent_namespace()
        .and_then(|n| snapshot.namespace(path(&n)).map(|r| r.fields.warehouse.clone()))
        .and_then(|w| snapshot.warehouse(&w).map(|r| r.fields.root.clone()))
        .unwrap_or_default();
    let new = NewTable { path: path(&subject).to_vec(), location, tier, labels: Vec::new(), declare };
    let table = registry.table_create(new, &context.options(&root), reason).await.map_err(failure)?;
    let declared = if table.declared { " (declared, no bytes yet)" } else { "" };
    done(context, format!("{subject} is {}{declared}", table.uri), json!({ "created": subject, "fields": table }))
}

async fn show_table(context: &Context, text: &str) -> anyhow::Result<Exit> {
    let subject = subject(text)?;
    let (_, snapshot) = read(context).await?;
    let record = match &subject {
        Subject::Table(path) => snapshot.table(path),
        _ => None,
    }
    .ok_or_else(|| trashed(&snapshot, &subject))?;
    let config = context.config();
    let g = snapshot.govern(&record.fields.uri, &config.policy, &config.floors, &BTreeMap::new(), Utc::now());
    let t = &record.fields;
    let mut lines = vec![
        subject.to_string(),
        format!("uri: {}", t.uri),
        format!("warehouse: {}", g.warehouse.as_deref().unwrap_or("none")),
        format!("tier: {}", t.tier.as_deref().unwrap_or("not declared")),
        format!("labels: {}", or_none(&t.labels)),
        format!("policy: from {}", g.policy.source.id),
    ];
    lines.extend(g.protections.iter().map(|p| format!("protection: {} on {}", p.level, p.subject)));
    lines.extend(g.blocks.iter().map(|b| format!("block: {} on {} ({})", b.kind, b.subject, b.reason)));
    lines.extend(g.trash.iter().map(|x| format!("in the trash until {}", time(x.deadline))));
    lines.extend(g.unreadable.iter().map(|u| format!("unreadable: {u}")));
    emit(&context.common, &lines.join("\n"), &json!({ "table": subject, "fields": t, "governance": g }))?;
    Ok(if g.unreadable.is_empty() { Exit::Ok } else { Exit::Failed })
}

/// The registry and all it holds.
pub(crate) async fn read(context: &Context) -> anyhow::Result<(Registry, Snapshot)> {
    let registry = context.registry(&[]).await?;
    let snapshot = registry.snapshot().await.map_err(|e: Error| match e.kind() {
        Kind::NotFound => Failure::could_not_run(e.to_string()),
        _ => failure(e),
    })?;
    Ok((registry, snapshot))
}

/// A list from a registry with unreadable records is not the whole list: exit 3, and said on standard error.
pub(crate) fn incomplete(snapshot: &Snapshot) -> anyhow::Result<Exit> {
    for u in &snapshot.unreadable {
        tracing::error!(record = %u, "a record cannot be read; the list may be incomplete");
    }
    Ok(if snapshot.unreadable.is_empty() { Exit::Ok } else { Exit::Failed })
}

pub(crate) fn path(subject: &Subject) -> &[String] {
    match subject {
        Subject::Namespace(path) | Subject::Table(path) => path,
        _ => &[],
    }
}

fn decoded(kind: &str, id: &str) -> String {
    match format!("{kind}/{id}").parse() {
        Ok(Subject::Project(name) | Subject::Warehouse(name)) => name,
        _ => id.to_owned(),
    }
}

fn or_none(items: &[String]) -> String {
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}
