//! `init`, `check` and `log`.

use chrono::Utc;
use serde_json::json;
use squire_registry::{
    Actor, Capabilities, Mended, Problem, Registry, Root, Snapshot, capabilities, check as check_records, read_marker,
};
use squire_service::cli::Exit;

use crate::context::{Context, failure, must_be_there, subject};
use crate::output::{emit, table, time};

pub(crate) async fn init(context: &Context, uri: &str, name: Option<String>) -> anyhow::Result<Exit> {
    let name = name.unwrap_or_else(|| context.config().estate.name.clone());
    let registry = Registry::init(uri, &context.options(uri), &name, Actor::current()).await.map_err(failure)?;
    let text = format!("estate `{}` ({}) at {}", registry.name(), registry.id(), registry.uri());
    let value = json!({ "estate": registry.id(), "name": registry.name(), "registry": registry.uri() });
    emit(&context.common, &text, &value)?;
    Ok(Exit::Ok)
}

pub(crate) async fn check(context: &Context, roots: &[String], mend: bool) -> anyhow::Result<Exit> {
    roots.iter().try_for_each(|root| must_be_there(root))?;
    let registry = context.registry(roots).await?;
    let mut snapshot = registry.snapshot().await.map_err(failure)?;
    let mended = match mend {
        true => registry.mend(&snapshot, Utc::now()).await.map_err(failure)?,
        false => Vec::new(),
    };
    if !mended.is_empty() {
        snapshot = registry.snapshot().await.map_err(failure)?;
    }
    let mut problems = check_records(&snapshot);
    problems.extend(registry.check_elsewhere().await.map_err(failure)?);
    let counts: Vec<(String, usize, usize)> =
        snapshot.counts().into_iter().map(|(c, (live, unreadable))| (c.to_string(), live, unreadable)).collect();
    let records: usize = counts.iter().map(|(_, live, _)| live).sum();
    let mut text = format!("estate `{}` ({}) at {}\n", registry.name(), registry.id(), registry.uri());
    for Mended { subject, what, done } in &mended {
        text.push_str(&format!("{}: {subject}: {what}\n", if *done { "mended" } else { "not mended" }));
    }
    text.push_str(&format!("{records} records read, {} problems\n", problems.len()));
    for Problem { kind, subject, detail, fix, .. } in &problems {
        let severity = if kind.is_error() { "error" } else { "warning" };
        text.push_str(&format!("{severity}: {kind}: {subject}: {detail}\n  to do: {fix}\n"));
    }
    let marks = marked(context, &registry, &snapshot).await;
    for (root, why) in &marks {
        text.push_str(&format!("warning: {root}: {why}\n"));
    }
    let buckets = tried(context, roots).await?;
    for bucket in &buckets {
        text.push_str(&format!("{}\n", bucket.bucket));
        for (name, answer) in bucket.answers() {
            text.push_str(&format!("  {name}: {answer}\n"));
        }
    }
    let found: Vec<_> = problems
        .iter()
        .map(|p| {
            let severity = if p.kind.is_error() { "error" } else { "warning" };
            json!({
                "kind": p.kind, "severity": severity, "subject": p.subject, "detail": p.detail, "fix": p.fix,
                "mendable": p.mendable,
            })
        })
        .collect();
    let collections: Vec<_> = counts
        .iter()
        .map(|(name, live, unreadable)| json!({ "collection": name, "live": live, "unreadable": unreadable }))
        .collect();
    let roots: Vec<_> = marks.iter().map(|(root, why)| json!({ "root": root, "detail": why })).collect();
    let value = json!({
        "estate": registry.id(), "name": registry.name(), "registry": registry.uri(),
        "collections": collections, "mended": mended, "problems": found, "roots": roots, "buckets": buckets,
    });
    emit(&context.common, &text, &value)?;
    let good = problems.iter().all(|p| !p.kind.is_error()) && buckets.iter().all(Capabilities::is_fit);
    Ok(if good && mended.iter().all(|m| m.done) { Exit::Ok } else { Exit::Failed })
}

/// The warehouses whose root is not marked as this estate's: nothing is reclaimed under another estate's mark.
async fn marked(context: &Context, registry: &Registry, snapshot: &Snapshot) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for warehouse in snapshot.warehouses() {
        let root = &warehouse.fields.root;
        let why = match read_marker(root, &context.options(root)).await {
            Ok(Some(marked)) if marked == registry.id() => continue,
            Ok(Some(marked)) => {
                format!("it is marked as estate {marked}'s; nothing is reclaimed there (registry_lost)")
            }
            Ok(None) => {
                "it carries no mark of this estate; is it the place that was registered, and is it there?".into()
            }
            Err(e) => format!("its mark could not be read: {e}"),
        };
        out.push((root.clone(), why));
    }
    out
}

/// What the buckets of these ROOTs let us do, each bucket once.
async fn tried(context: &Context, roots: &[String]) -> anyhow::Result<Vec<Capabilities>> {
    let mut out: Vec<Capabilities> = Vec::new();
    for uri in roots {
        let root = Root::open(uri, &context.options(uri)).map_err(failure)?;
        if out.iter().any(|known| known.bucket == root.bucket()) {
            continue;
        }
        let deletes = match context.config().storage.delete_options_for(root.uri()) {
            Some(options) => Root::open(uri, &options).map_err(failure)?,
            None => root.clone(),
        };
        out.push(capabilities(&root, &deletes).await.map_err(failure)?);
    }
    Ok(out)
}

pub(crate) async fn log(context: &Context, text: &str) -> anyhow::Result<Exit> {
    let subject = subject(text)?;
    let registry = context.registry(&[]).await?;
    let lines = registry.log(&subject).await.map_err(failure)?;
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            let (at, who, what) = match &line.meta {
                Some(meta) => {
                    let what = match (meta.deleted, line.effective) {
                        (true, _) => "removed".to_owned(),
                        (false, true) => line.fields.to_string(),
                        (false, false) => "lost a race, never in effect".to_owned(),
                    };
                    let reason = meta.reason.as_ref().map(|r| format!(" ({r})")).unwrap_or_default();
                    (time(meta.updated_at), format!("{}@{}", meta.updated_by.who, meta.updated_by.host), what + &reason)
                }
                None => ("?".into(), "?".into(), line.unreadable.clone().unwrap_or_default()),
            };
            vec![at, who, format!("{}/{}", line.collection, line.generation), what]
        })
        .collect();
    let shown = table(&["when", "who", "record", "what"], &rows, &format!("nothing is recorded about {subject}"));
    emit(&context.common, &shown, &lines)?;
    Ok(if lines.iter().any(|l| l.unreadable.is_some()) { Exit::Failed } else { Exit::Ok })
}
