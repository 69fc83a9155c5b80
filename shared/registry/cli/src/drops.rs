//! What goes and comes back: drop, purge, cascade, rename, undrop.

use serde::Serialize;
use serde_json::{Value, json};
use squire_registry::{DropPlan, DropRequest, Registry, Snapshot, Subject, Trash, markers_above, registry_lost};
use squire_service::bus::EventType;
use squire_service::bus::data::RecordData;
use squire_service::cli::{Exit, Failure};
use squire_service::planfile::{PlanFile, PlanKind};

use crate::context::{Context, explicit_of, failure};
use crate::events::tell;
use crate::hierarchy::path;
use crate::output::{emit, table, time};

/// What the flags of a drop ask for.
pub(crate) struct Flags {
    pub(crate) cascade: bool,
    pub(crate) purge: bool,
    pub(crate) force: bool,
    pub(crate) apply: bool,
}

/// One line of a plan of kind `drop`.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Item {
    /// The dataset; for a namespace, the root of the warehouse that it is bound to.
    uri: String,
    subject: Subject,
    /// `drop` into the trash, or `purge`.
    action: &'static str,
    /// Until when it can come back.
    deadline: chrono::DateTime<chrono::Utc>,
    in_trash: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    forced: Option<String>,
}

/// Drops a table or namespace. A purge and a cascade print what they would do, and need `--apply`.
pub(crate) async fn drop(
    context: &Context,
    subject: Subject,
    flags: Flags,
    reason: Option<String>,
) -> anyhow::Result<Exit> {
    let registry = context.registry(&[]).await?;
    let snapshot = registry.snapshot().await.map_err(failure)?;
    let grace = if flags.purge { std::time::Duration::ZERO } else { context.config().grace.trash };
    let request = DropRequest { grace, force: flags.force, cascade: flags.cascade };
    let plan = registry.drop_plan(&subject, request).await.map_err(failure)?;
    let planned = flags.cascade || (plan.purge && !plan.tables.is_empty());
    if plan.purge {
        refuse_foreign(context, &registry, &plan).await?;
    }
    if planned && !flags.apply {
        return show(context, &registry, &snapshot, &plan);
    }
    let dropped = registry.drop_apply(&plan, reason.as_deref()).await.map_err(failure)?;
    for trash in dropped.iter().filter(|t| t.table.is_some()) {
        let data = RecordData {
            uri: Some(trash.uri.clone()),
            reason: reason.clone(),
            until: Some(trash.deadline),
            ..RecordData::default()
        };
        tell(context, &registry, EventType::TableDropped, &trash.subject.to_string(), data).await;
    }
    let text = said(&plan, &dropped);
    let value = match dropped.as_slice() {
        [one] if matches!(subject, Subject::Table(_)) => json!({ "dropped": subject, "trash": one }),
        all => json!({ "dropped": subject, "trash": all }),
    };
    emit(&context.common, &text, &value)?;
    Ok(Exit::Ok)
}

fn said(plan: &DropPlan, dropped: &[Trash]) -> String {
    let subject = &plan.subject;
    match dropped {
        [] => format!("{subject} dropped"),
        _ if plan.purge => format!(
            "{subject} purged: {} records wait in the trash for `squire-reconcile reclaim plan`; the bytes stay frozen \
             until then",
            dropped.len()
        ),
        [one] if one.table.is_some() => format!(
            "{subject} dropped; its bytes stay at {} and are frozen. `squire-registry trash undrop {subject}` brings it \
             back; from {} on it may be reclaimed",
            one.uri,
            time(one.deadline)
        ),
        all => format!(
            "{subject} dropped with all in it: {} records in the trash; the bytes stay and are frozen. `squire-registry trash \
             undrop {subject}` brings them back; from {} on they may be reclaimed",
            all.len(),
            time(all[0].deadline)
        ),
    }
}

/// What another estate has marked is not this one's to purge, and neither is what nobody can look at.
async fn refuse_foreign(context: &Context, registry: &Registry, plan: &DropPlan) -> anyhow::Result<()> {
    for table in &plan.tables {
        let markers = markers_above(&table.uri, &context.options(&table.uri)).await.map_err(failure)?;
        if let Some(lost) = registry_lost(&markers, Some(registry.id())) {
            let what = format!(
                "{}: {} is marked as part of estate {}, and this registry is estate {}",
                table.subject,
                lost.root,
                lost.marked,
                registry.id()
            );
            return Err(Failure::new(Exit::Failed, what).remedy("purge it with that estate's registry").into());
        }
    }
    Ok(())
}

fn show(context: &Context, registry: &Registry, snapshot: &Snapshot, plan: &DropPlan) -> anyhow::Result<Exit> {
    let action = if plan.purge { "purge" } else { "drop" };
    let root_of = |subject: &Subject| {
        let bound = snapshot.namespace(path(subject)).map(|n| n.fields.warehouse.clone());
        bound.and_then(|w| snapshot.warehouse(&w).map(|w| w.fields.root.clone())).unwrap_or_default()
    };
    let item = |subject: &Subject, uri: String, in_trash: bool, forced: Option<String>| Item {
        uri,
        subject: subject.clone(),
        action,
        deadline: plan.deadline,
        in_trash,
        forced,
    };
    let mut items: Vec<Item> = plan.namespaces.iter().map(|n| item(n, root_of(n), false, None)).collect();
    items.extend(plan.tables.iter().map(|t| item(&t.subject, t.uri.clone(), t.in_trash, t.forced.clone())));
    let rows: Vec<Vec<String>> = items
        .iter()
        .map(|i| {
            let forced = i.forced.as_ref().map(|f| format!("past no-drop on {f}")).unwrap_or_default();
            // A namespace has no bytes of its own; whose warehouse it is stands in the plan.
            let at = if matches!(i.subject, Subject::Namespace(_)) { "" } else { &i.uri };
            vec![i.action.into(), i.subject.to_string(), at.into(), time(i.deadline), forced]
        })
        .collect();
    let mut text = table(&["what", "subject", "at", "comes back until", "force"], &rows, "nothing");
    text.push_str(match plan.purge {
        true => {
            "Nothing is done yet: --apply does it. The bytes stay frozen until `squire-reconcile reclaim` takes them."
        }
        false => "Nothing is done yet: --apply does it.",
    });
    let mut file = PlanFile::new(PlanKind::Drop, Some(registry.id()), items);
    let sealed: Value = serde_json::from_str(&file.seal()?)?;
    emit(&context.common, &text, &sealed)?;
    Ok(Exit::Ok)
}

pub(crate) async fn rename(
    context: &Context,
    from: &str,
    to: &str,
    force: bool,
    reason: Option<String>,
) -> anyhow::Result<Exit> {
    let (old, new) = (explicit_of("table", from)?, explicit_of("table", to)?);
    let registry = context.registry(&[]).await?;
    let defaults = &context.config().policy;
    let renamed = registry.table_rename(path(&old), path(&new), force, defaults, reason.as_deref()).await;
    let renamed = renamed.map_err(failure)?;
    for (kind, subject) in [(EventType::TableDropped, &old), (EventType::TableUndropped, &new)] {
        let data = RecordData {
            uri: Some(renamed.uri.clone()),
            reason: Some(format!("{old} renamed to {new}")),
            ..RecordData::default()
        };
        tell(context, &registry, kind, &subject.to_string(), data).await;
    }
    let value = json!({ "renamed": old, "to": new, "fields": renamed });
    emit(&context.common, &format!("{old} is {new}; its bytes stay at {}", renamed.uri), &value)?;
    Ok(Exit::Ok)
}

pub(crate) async fn undrop(context: &Context, text: &str, reason: Option<String>) -> anyhow::Result<Exit> {
    if text.starts_with("namespace/") {
        return undrop_namespace(context, explicit_of("namespace", text)?, reason).await;
    }
    let subject = explicit_of("table", text)?;
    let registry = context.registry(&[]).await?;
    let table = registry.undrop(&subject, reason.as_deref()).await.map_err(failure)?;
    let data = RecordData { uri: Some(table.uri.clone()), reason, ..RecordData::default() };
    tell(context, &registry, EventType::TableUndropped, &subject.to_string(), data).await;
    let value = json!({ "undropped": subject, "fields": table });
    emit(&context.common, &format!("{subject} is {} again", table.uri), &value)?;
    Ok(Exit::Ok)
}

async fn undrop_namespace(context: &Context, subject: Subject, reason: Option<String>) -> anyhow::Result<Exit> {
    let registry = context.registry(&[]).await?;
    let back = registry.undrop_namespace(&subject, reason.as_deref()).await.map_err(failure)?;
    for table in &back.tables {
        let data = RecordData { reason: reason.clone(), ..RecordData::default() };
        tell(context, &registry, EventType::TableUndropped, &table.to_string(), data).await;
    }
    let (namespaces, tables) = (back.namespaces.len(), back.tables.len());
    let mut text = format!("{subject} is back: {namespaces} namespaces, {tables} tables");
    for (table, why) in &back.failed {
        text.push_str(&format!("\nnot {table}: {why}"));
    }
    if !back.failed.is_empty() {
        text.push_str("\nThe same command goes on with these.");
    }
    emit(&context.common, &text, &json!({ "undropped": subject, "fields": back }))?;
    Ok(if back.failed.is_empty() { Exit::Ok } else { Exit::Failed })
}
