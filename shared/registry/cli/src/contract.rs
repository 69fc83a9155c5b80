//! Contracts: authoring, review, publishing, discovery.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use serde_json::json;
use squire_registry::Snapshot;
use squire_registry::contract::{
    Contracts, MAX_BYTES, Page, Principal, Publication, Refusals, check_successor, discover, starting_document,
};
use squire_service::cli::{Exit, Failure, print_stdout};

use crate::args::ContractVerb;
use crate::context::{Context, failure};
use crate::hierarchy::{incomplete, read};
use crate::output::{emit, table, time};

pub(crate) async fn run(context: &Context, verb: ContractVerb) -> anyhow::Result<Exit> {
    match verb {
        ContractVerb::Init { enterprise, owner, steward, policy } => {
            let made = Contracts::new(starting_document(&enterprise, &owner, &steward, &policy));
            // The document itself, however results are shown: it is meant for a file.
            let document = made.map_err(|e| Failure::usage(e.to_string()))?;
            print_stdout(&format!("{}\n", serde_json::to_string_pretty(document.document())?))?;
            Ok(Exit::Ok)
        }
        ContractVerb::Validate { file } => {
            let contracts = load(&file)?;
            emit(&context.common, &summary(&contracts), &facts(&contracts))?;
            Ok(Exit::Ok)
        }
        ContractVerb::Check { file, current } => check(context, &file, current.as_deref()).await,
        ContractVerb::Plan { file } => {
            let contracts = load(&file)?;
            let (_, snapshot) = read(context).await?;
            let publication = snapshot.contract_plan(&contracts).map_err(failure)?;
            emit(&context.common, &told(&publication, "would replace", "would begin"), &publication)?;
            incomplete(&snapshot)
        }
        ContractVerb::Publish { file, previous, retention_columns, why } => {
            let contracts = load(&file)?;
            let columns = retention_columns.iter().map(|c| assignment(c)).collect::<Result<BTreeMap<_, _>, _>>()?;
            let registry = context.registry(&[]).await?;
            let done = registry
                .contract_publish(&contracts, previous.as_deref(), &columns, why.reason.as_deref())
                .await
                .map_err(failure)?;
            emit(&context.common, &told(&done, "replaced", "begin"), &done)?;
            Ok(Exit::Ok)
        }
        ContractVerb::Show { enterprise } => show(context, enterprise).await,
        ContractVerb::Discover { purposes, page, enterprise, clearance, policy } => {
            let principal = Principal { purposes: purposes.into_iter().collect::<BTreeSet<_>>(), clearance, policy };
            discovered(context, &principal, page.as_deref(), enterprise).await
        }
    }
}

/// Reads a document, never more than may be in one.
fn load(file: &str) -> anyhow::Result<Contracts> {
    let mut bytes = Vec::new();
    let bound = MAX_BYTES as u64 + 1;
    let read = match file {
        "-" => std::io::stdin().lock().take(bound).read_to_end(&mut bytes),
        path => std::fs::File::open(path).and_then(|f| f.take(bound).read_to_end(&mut bytes)),
    };
    read.map_err(|e| {
        Failure::usage(format!("reading the contracts in {file}")).caused_by(e).remedy("name a file that can be read")
    })?;
    Ok(Contracts::from_json(&bytes).map_err(|e| refused(file, &e))?)
}

fn refused(what: &str, refusals: &Refusals) -> Failure {
    Failure::new(Exit::Failed, format!("{what} is refused:\n{refusals}")).remedy("correct the document")
}

fn assignment(text: &str) -> Result<(String, String), Failure> {
    text.split_once('=').map(|(t, c)| (t.to_owned(), c.to_owned())).ok_or_else(|| {
        Failure::usage(format!("--retention-column {text}")).remedy("write TABLE=COLUMN, like customers=created_at")
    })
}

async fn check(context: &Context, file: &str, current: Option<&str>) -> anyhow::Result<Exit> {
    let next = load(file)?;
    let current = match current {
        Some(current) => Some(load(current)?),
        None => {
            let (_, snapshot) = read(context).await?;
            if incomplete(&snapshot)? != Exit::Ok {
                return Ok(Exit::Failed);
            }
            snapshot.contract(next.enterprise()).map(|r| r.fields.contracts.clone())
        }
    };
    if let Some(current) = &current {
        check_successor(current, &next).map_err(|e| refused(file, &e))?;
    }
    let before = current.as_ref().map(Contracts::digest);
    let follows = before.unwrap_or("nothing: this enterprise has no contracts yet");
    let text = format!("{}\nit may follow {follows}", summary(&next));
    let mut value = facts(&next);
    value["current"] = json!(before);
    emit(&context.common, &text, &value)?;
    Ok(Exit::Ok)
}

fn summary(contracts: &Contracts) -> String {
    let columns: usize = contracts.tables().iter().map(|t| t.columns.len()).sum();
    format!(
        "contracts of {}: {} tables, {columns} columns, digest {}",
        contracts.enterprise(),
        contracts.tables().len(),
        contracts.digest()
    )
}

fn facts(contracts: &Contracts) -> serde_json::Value {
    json!({
        "valid": true, "enterprise": contracts.enterprise(), "tables": contracts.tables().len(),
        "digest": contracts.digest(),
    })
}

fn told(publication: &Publication, replace: &str, begin: &str) -> String {
    let Publication { enterprise, previous, digest, tables } = publication;
    let mut lines = vec![format!("contracts of {enterprise}: {digest}")];
    lines.push(match previous {
        _ if publication.is_empty() => "  published already; nothing changes".into(),
        Some(previous) => format!("  {replace} {previous}"),
        None => format!("  {begin} here: nothing was published before"),
    });
    let rows: Vec<Vec<String>> = tables
        .iter()
        .map(|t| {
            let registered = if t.registered { "yes" } else { "no" };
            let pins = format!("{}@{}", t.pins.contract, t.pins.revision);
            vec![t.subject.to_string(), registered.into(), t.action.to_string(), pins, t.appended.join(", ")]
        })
        .collect();
    let head = ["table", "registered", "change", "pinned to", "appended"];
    format!("{}\n{}", lines.join("\n"), table(&head, &rows, "no tables"))
}

async fn show(context: &Context, enterprise: Option<String>) -> anyhow::Result<Exit> {
    let (_, snapshot) = read(context).await?;
    let Some(enterprise) = enterprise else {
        let rows: Vec<Vec<String>> = snapshot
            .contracts()
            .map(|r| {
                let contracts = &r.fields.contracts;
                let tables = contracts.tables().len().to_string();
                vec![contracts.enterprise().into(), tables, contracts.digest().into(), time(r.meta.updated_at)]
            })
            .collect();
        let value: Vec<_> = snapshot
            .contracts()
            .map(|r| {
                json!({
                    "enterprise": r.fields.contracts.enterprise(), "tables": r.fields.contracts.tables().len(),
                    "digest": r.fields.contracts.digest(), "published_at": r.meta.updated_at,
                    "published_by": r.meta.updated_by, "reason": r.meta.reason,
                })
            })
            .collect();
        let text = table(&["enterprise", "tables", "digest", "published"], &rows, "no contracts are published");
        emit(&context.common, &text, &value)?;
        return incomplete(&snapshot);
    };
    let record = &one(&snapshot, Some(enterprise))?.fields;
    let contracts = &record.contracts;
    let rows: Vec<Vec<String>> = contracts
        .tables()
        .iter()
        .map(|t| {
            let age = record.retention_columns.get(&t.name).map(|c| format!(" by {c}")).unwrap_or_default();
            vec![
                t.name.clone(),
                t.revision.to_string(),
                t.profile.to_string(),
                t.security.classification.to_string(),
                format!("{}d{age}", t.metadata.retention_days),
                t.columns.len().to_string(),
                t.metadata.owner.clone(),
            ]
        })
        .collect();
    let head = ["table", "revision", "profile", "classification", "retention", "columns", "owner"];
    let text = format!("{}\n{}", summary(contracts), table(&head, &rows, "no tables"));
    let value = json!({
        "digest": contracts.digest(), "document": contracts.document(),
        "retention_columns": record.retention_columns, "since": record.since,
    });
    emit(&context.common, &text, &value)?;
    incomplete(&snapshot)
}

/// The published contracts of an enterprise, or the only ones.
fn one(
    snapshot: &Snapshot,
    enterprise: Option<String>,
) -> Result<&squire_registry::Record<squire_registry::contract::ContractRecord>, Failure> {
    let all: Vec<_> = snapshot.contracts().collect();
    let names = all.iter().map(|r| r.fields.contracts.enterprise()).collect::<Vec<_>>().join(", ");
    match (enterprise, all.as_slice()) {
        (Some(enterprise), _) => snapshot.contract(&enterprise).ok_or_else(|| {
            Failure::usage(format!("no contracts of `{enterprise}` are published")).remedy(match names.as_str() {
                "" => "publish some with `squire-registry contract publish FILE`".to_owned(),
                names => format!("there are those of {names}"),
            })
        }),
        (None, [only]) => Ok(only),
        (None, []) => Err(Failure::usage("no contracts are published")
            .remedy("publish some with `squire-registry contract publish FILE`")),
        (None, _) => Err(Failure::usage("more than one enterprise has contracts here")
            .remedy(format!("name one of {names} with --enterprise"))),
    }
}

async fn discovered(
    context: &Context,
    principal: &Principal,
    cursor: Option<&str>,
    enterprise: Option<String>,
) -> anyhow::Result<Exit> {
    let (_, snapshot) = read(context).await?;
    let contracts = &one(&snapshot, enterprise)?.fields.contracts;
    let page: Page = discover(contracts, principal, cursor).map_err(|e| {
        let remedy = match cursor {
            Some(_) => "begin again without --page",
            None => "name the policy that the tables are bound to, see `contract show`",
        };
        Failure::new(Exit::Failed, format!("discovery is refused:\n{e}")).remedy(remedy)
    })?;
    let rows: Vec<Vec<String>> = page
        .tables
        .iter()
        .flat_map(|t| {
            t.columns.iter().map(move |c| {
                let nullability = c.nullability.to_string();
                vec![t.name.clone(), c.name.clone(), c.data_type.to_string(), nullability, c.semantic.clone()]
            })
        })
        .collect();
    let head = ["table", "column", "type", "nullability", "semantic"];
    let mut text = table(&head, &rows, "nothing on this page may be seen");
    if let Some(next) = &page.next {
        text.push_str(&format!("\nmore: --page {next}"));
    }
    emit(&context.common, &text, &page)?;
    incomplete(&snapshot)
}
