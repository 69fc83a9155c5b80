//! `export`, `import` and `upgrade`.

use std::path::Path;

use serde_json::json;
use squire_registry::{Actor, Document, ImportPlan};
use squire_service::cli::{Exit, Failure, print_stdout};

use crate::catalog::{self, Planned};
use crate::context::{Context, failure, must_be_there};
use crate::output::emit;

pub(crate) async fn export(context: &Context, file: &str) -> anyhow::Result<Exit> {
    let registry = context.registry(&[]).await?;
    let document = registry.export().await.map_err(failure)?;
    let text = document.to_text().map_err(failure)?;
    let count = document.objects.len();
    if file == "-" {
        print_stdout(&text)?;
    } else {
        write(Path::new(file), &text)?;
        let value = json!({ "exported": file, "estate": document.estate, "objects": count });
        emit(&context.common, &format!("{count} generations of estate `{}` in {file}", document.name), &value)?;
    }
    let snapshot = registry.snapshot().await.map_err(failure)?;
    crate::hierarchy::incomplete(&snapshot)
}

/// The whole file or nothing: what stands there already stays until the new one is complete.
fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_os_string();
    name.push(".unfinished");
    let beside = file.with_file_name(name);
    std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, file)).map_err(|e| {
        Failure::could_not_run(format!("writing {}", file.display()))
            .caused_by(e)
            .remedy("name a file that can be written")
            .into()
    })
}

/// What an import is asked for.
pub(crate) struct Asked {
    pub(crate) from: String,
    pub(crate) project: Option<String>,
    pub(crate) merge: bool,
    pub(crate) apply: bool,
    pub(crate) reason: Option<String>,
}

pub(crate) async fn import(context: &Context, asked: Asked) -> anyhow::Result<Exit> {
    if asked.from == "-" || Path::new(&asked.from).is_file() {
        return import_document(context, &asked).await;
    }
    let is_url = asked.from.starts_with("http://") || asked.from.starts_with("https://");
    let named_file = !is_url && !asked.from.contains("://") && asked.from.ends_with(".json");
    if named_file && !Path::new(&asked.from).exists() {
        return Err(Failure::usage(format!("there is no file {}", asked.from)).into());
    }
    if asked.merge {
        return Err(
            Failure::usage("--merge is for a document; a bucket's datasets are always added to what is there").into()
        );
    }
    if !is_url {
        must_be_there(&asked.from)?;
    }
    import_place(context, &asked, is_url).await
}

async fn import_document(context: &Context, asked: &Asked) -> anyhow::Result<Exit> {
    let text = match asked.from.as_str() {
        "-" => std::io::read_to_string(std::io::stdin()),
        file => std::fs::read_to_string(file),
    };
    let text = text.map_err(|e| Failure::could_not_run(format!("reading {}", asked.from)).caused_by(e))?;
    let document = Document::parse(&text).map_err(failure)?;
    let uri = match &context.config().registry.root {
        Some(uri) => uri.clone(),
        None => context.registry(&[]).await?.uri().to_owned(),
    };
    let plan = ImportPlan::make(&uri, &context.options(&uri), &document, asked.merge).await.map_err(failure)?;
    if asked.apply {
        plan.apply(Actor::current()).await.map_err(failure)?;
    }
    let would = if asked.apply { "wrote" } else { "would write" };
    let mut text = format!("estate `{}` ({}) into {}\n", document.name, document.estate, plan.registry);
    if plan.makes_registry {
        text.push_str("there is no registry there yet: it becomes this estate's\n");
    }
    for (collection, records) in &plan.creates {
        text.push_str(&format!("{would} {records} records of {collection}\n"));
    }
    if plan.claims_raised > 0 {
        text.push_str(&format!(
            "{} claims get a new generation: whoever held one does not any more\n",
            plan.claims_raised
        ));
    }
    text.push_str(&format!("{} records are there already\n", plan.same));
    text.extend(plan.kept.iter().map(|name| format!("kept as it is there: {name}\n")));
    text.extend(plan.notes.iter().map(|note| format!("{note}\n")));
    if plan.is_empty() {
        text.push_str("nothing to do\n");
    } else if !asked.apply {
        text.push_str("Nothing is done yet: --apply does it.\n");
    }
    emit(&context.common, &text, &json!({ "import": plan, "applied": asked.apply }))?;
    Ok(Exit::Ok)
}

async fn import_place(context: &Context, asked: &Asked, is_url: bool) -> anyhow::Result<Exit> {
    let (registry, planned) = if is_url {
        let registry = context.registry(&[]).await?;
        let planned = catalog::of_url(context, &registry, &asked.from).await?;
        (registry, planned)
    } else {
        let registry = context.registry(std::slice::from_ref(&asked.from)).await?;
        let planned = catalog::of_root(context, &registry, &asked.from, asked.project.as_deref()).await?;
        (registry, planned)
    };
    let Planned { plan, root, unread } = planned;
    let options = context.options(&root);
    let verb = if asked.apply { "created" } else { "would create" };
    let mut text = String::new();
    if let Some(project) = &plan.project {
        text.push_str(&format!("{verb} project/{project}\n"));
    }
    if let Some((root, project)) = &plan.makes_warehouse {
        text.push_str(&format!("{verb} warehouse/{} over {root} in project `{project}`\n", plan.warehouse));
    }
    text.extend(plan.namespaces.iter().map(|n| format!("{verb} {n}\n")));
    let without = |table| if plan.declared.contains(table) { ", declared, no data yet" } else { "" };
    text.extend(plan.tables.iter().map(|(table, at)| format!("{verb} {table} at {at}{}\n", without(table))));
    text.extend(plan.skipped.iter().map(|(uri, why)| format!("skipped {uri}: {why}\n")));
    text.extend(unread.iter().map(|(what, why)| format!("could not be read: {what}: {why}\n")));
    let nothing = plan.tables.is_empty() && plan.namespaces.is_empty();
    if asked.apply {
        registry.adopt(&plan, &options, asked.reason.as_deref()).await.map_err(failure)?;
    }
    if nothing {
        text.push_str("no dataset to register\n");
    } else if !asked.apply {
        text.push_str("Nothing is done yet: --apply does it.\n");
    }
    emit(&context.common, &text, &json!({ "import": plan, "unread": unread, "applied": asked.apply }))?;
    Ok(if unread.is_empty() { Exit::Ok } else { Exit::Failed })
}

pub(crate) async fn upgrade(context: &Context, reason: Option<String>) -> anyhow::Result<Exit> {
    let registry = context.registry(&[]).await?;
    let (before, after) = registry.upgrade(reason.as_deref()).await.map_err(failure)?;
    let text = match before == after {
        true => format!("{} is at feature level {after}, this build's; nothing to do", registry.uri()),
        false => {
            format!("{} raised from feature level {before} to {after}; older builds refuse it now", registry.uri())
        }
    };
    emit(&context.common, &text, &json!({ "registry": registry.uri(), "before": before, "after": after }))?;
    Ok(Exit::Ok)
}
