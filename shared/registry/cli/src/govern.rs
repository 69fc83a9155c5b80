//! Policy, protection, trash and blocks.

use std::collections::BTreeMap;

use chrono::Utc;
use serde_json::{Value, json};
use squire_registry::{Block, BlockKind, EffectivePolicy, PolicyChange, PolicyDiff, Registry, Subject};
use squire_service::bus::EventType;
use squire_service::bus::data::RecordData;
use squire_service::cli::{Exit, Failure};

use crate::args::{BlockVerb, PolicyVerb, ProtectionVerb, TrashVerb};
use crate::context::{Context, explicit, failure, subject};
use crate::events::tell;
use crate::hierarchy::{incomplete, read};
use crate::output::{emit, table, time};

pub(crate) async fn policy(context: &Context, verb: PolicyVerb) -> anyhow::Result<Exit> {
    let (defaults, floors) = (&context.config().policy, &context.config().floors);
    match verb {
        PolicyVerb::Set { subject, keys, now, why } => {
            let subject = explicit(&subject)?;
            let keys = keys.iter().map(|k| assignment(k)).collect::<Result<Vec<_>, _>>()?;
            let registry = context.registry(&[]).await?;
            let reason = why.reason.as_deref();
            let change = PolicyChange { subject: &subject, keys: &keys, reason, immediately: now, at: Utc::now() };
            let diff = registry.policy_set(&change, defaults, floors).await.map_err(failure)?;
            tell_policy(context, &registry, &diff, reason).await?;
            emit(&context.common, &told(&diff), &diff)?;
            Ok(Exit::Ok)
        }
        PolicyVerb::Unset { subject, now, why } => {
            let subject = explicit(&subject)?;
            let registry = context.registry(&[]).await?;
            let reason = why.reason.as_deref();
            let change = PolicyChange { subject: &subject, keys: &[], reason, immediately: now, at: Utc::now() };
            let diff = registry.policy_unset(&change, defaults, floors).await.map_err(failure)?;
            tell_policy(context, &registry, &diff, reason).await?;
            emit(&context.common, &told(&diff), &diff)?;
            Ok(Exit::Ok)
        }
        PolicyVerb::Show { subject } => show_policy(context, &subject).await,
        PolicyVerb::Diff { subject: text } => {
            let subject = subject(&text)?;
            let (_, snapshot) = read(context).await?;
            must_exist(&snapshot, &subject)?;
            let diff = snapshot.policy_diff(&subject, defaults, floors, Utc::now());
            emit(&context.common, &told(&diff), &diff)?;
            incomplete(&snapshot)
        }
        PolicyVerb::List => {
            let (_, snapshot) = read(context).await?;
            let now = Utc::now();
            let rows: Vec<Vec<String>> = snapshot
                .policies()
                .map(|p| {
                    let changes = defaults.diff(&p.fields.at(now).ok().flatten().unwrap_or_else(|| defaults.clone()));
                    let pending = p.fields.pending_at(now).map(|x| format!("until {}", time(x.effective_at)));
                    vec![p.fields.subject.to_string(), pending.unwrap_or_default(), changes.join("; ")]
                })
                .collect();
            let value: Vec<Value> =
                snapshot.policies().map(|p| json!({ "subject": p.fields.subject, "fields": p.fields })).collect();
            let text =
                table(&["subject", "pending", "against the estate's"], &rows, "no policy records; the estate's holds");
            emit(&context.common, &text, &value)?;
            incomplete(&snapshot)
        }
    }
}

async fn tell_policy(
    context: &Context,
    registry: &Registry,
    diff: &PolicyDiff,
    reason: Option<&str>,
) -> anyhow::Result<()> {
    let data = RecordData {
        reason: reason.map(str::to_owned),
        before: serde_json::to_value(&diff.before)?,
        after: serde_json::to_value(&diff.after)?,
        until: diff.pending.as_ref().map(|p| p.effective_at),
        ..RecordData::default()
    };
    tell(context, registry, EventType::PolicyChanged, &diff.subject.to_string(), data).await;
    Ok(())
}

fn assignment(text: &str) -> Result<(String, String), Failure> {
    text.split_once('=').map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).ok_or_else(|| {
        Failure::usage(format!("`{text}` sets nothing")).remedy("write KEY=VALUE, for example retention=14d")
    })
}

fn told(diff: &PolicyDiff) -> String {
    let mut lines = vec![format!("{} (from {})", diff.subject, diff.from.id)];
    lines.extend(diff.changes.iter().map(|c| format!("  {c}")));
    if diff.changes.is_empty() {
        lines.push("  nothing differs now".into());
    }
    if let Some(pending) = &diff.pending {
        lines.push(format!("  pending until {}; until then it can be undone:", time(pending.effective_at)));
        lines.extend(pending.changes.iter().map(|c| format!("    {c}")));
    }
    lines.extend(diff.clamped.iter().map(|c| format!("  {c}")));
    lines.join("\n")
}

async fn show_policy(context: &Context, text: &str) -> anyhow::Result<Exit> {
    let subject = subject(text)?;
    let (_, snapshot) = read(context).await?;
    must_exist(&snapshot, &subject)?;
    let (config, now) = (context.config(), Utc::now());
    let mut found = snapshot.effective(&subject, &config.policy, &config.floors, now);
    let mut own = None;
    if let Some(uri) = crate::own::uri_of(&snapshot, &subject) {
        let keys = crate::own::config(context, &snapshot, &uri).await;
        let none = BTreeMap::new();
        let governance = snapshot.govern(&uri, &config.policy, &config.floors, keys.as_ref().unwrap_or(&none), now);
        found = governance.policy.clone();
        own = Some((keys, governance));
    }
    let EffectivePolicy { policy, source, clamped, pending, .. } = &found;
    let mut lines = vec![format!("{subject}: the policy of {} holds", source.id)];
    for (key, value) in policy.to_map() {
        let value = match value {
            Value::Null => "unset".to_owned(),
            Value::String(text) => text,
            other => other.to_string(),
        };
        lines.push(format!("  {key} = {value}"));
    }
    lines.extend(clamped.iter().map(|c| format!("  clamped: {c}")));
    if let Some(pending) = pending {
        lines.push(format!("  pending until {}: {}", time(pending.effective_at), pending.changes.join("; ")));
    }
    let clash = clash_over(&snapshot, &subject);
    if let Some(clash) = &clash {
        let projects = clash.projects.join(", ");
        lines.push(format!("  projects {projects} claim its place: the policy of neither holds there"));
    }
    lines.extend(own.iter().flat_map(|(keys, governance)| crate::own::lines(keys, governance)));
    let keys = own.as_ref().map(|(keys, _)| keys);
    let value = json!({
        "subject": subject, "effective": found, "clash": clash, "own": keys.and_then(|k| k.as_ref().ok()),
        "own_unread": keys.and_then(|k| k.as_ref().err()),
    });
    emit(&context.common, &lines.join("\n"), &value)?;
    let unread = keys.is_some_and(Result::is_err);
    incomplete(&snapshot).map(|exit| if unread { Exit::Failed } else { exit })
}

/// The projects that claim the place of a table, dataset or warehouse, where they are several.
fn clash_over(snapshot: &squire_registry::Snapshot, subject: &Subject) -> Option<squire_registry::govern::Clash> {
    let chain = snapshot.chain_of(subject);
    let over = |id: &String| chain.contains(&Subject::Warehouse(id.clone()));
    snapshot.clashes().into_iter().find(|c| c.warehouses.iter().any(over))
}

fn must_exist(snapshot: &squire_registry::Snapshot, subject: &Subject) -> Result<(), Failure> {
    if snapshot.exists(subject) {
        return Ok(());
    }
    Err(Failure::usage(format!("{subject} does not exist"))
        .remedy(format!("see `squire-registry {} list`", subject.kind())))
}

pub(crate) async fn protection(context: &Context, verb: ProtectionVerb) -> anyhow::Result<Exit> {
    match verb {
        ProtectionVerb::Set { subject, level, why } => {
            let subject = explicit(&subject)?;
            let (registry, snapshot) = read(context).await?;
            let before = snapshot.protection_of(&subject).map(|p| p.fields.level).filter(|before| *before != level);
            registry.protect(&subject, level, why.reason.as_deref()).await.map_err(failure)?;
            let told = json!({ "level": before });
            let data = RecordData {
                reason: why.reason,
                before: before.map_or(Value::Null, |_| told),
                after: json!({ "level": level }),
                ..RecordData::default()
            };
            tell(context, &registry, EventType::ProtectionChanged, &subject.to_string(), data).await;
            let was = before.map(|before| format!("; before: {before}")).unwrap_or_default();
            let value = json!({ "subject": subject, "level": level, "before": before });
            emit(&context.common, &format!("{subject}: {level}{was}"), &value)?;
            Ok(Exit::Ok)
        }
        ProtectionVerb::Unset { subject, why } => {
            let subject = explicit(&subject)?;
            let registry = context.registry(&[]).await?;
            registry.unprotect(&subject, why.reason.as_deref()).await.map_err(failure)?;
            let left = registry.snapshot().await.map_err(failure)?.protection_over(&subject);
            let rest = left.as_ref().map(|p| format!("; {} on {} still holds", p.level, p.subject)).unwrap_or_default();
            let data = RecordData { reason: why.reason, ..RecordData::default() };
            tell(context, &registry, EventType::ProtectionChanged, &subject.to_string(), data).await;
            let text = format!("{subject}: its protection is ended{rest}");
            emit(&context.common, &text, &json!({ "subject": subject, "still": left }))?;
            Ok(Exit::Ok)
        }
        ProtectionVerb::List => {
            let (_, snapshot) = read(context).await?;
            let rows: Vec<Vec<String>> = snapshot
                .protections()
                .map(|p| {
                    let reason = p.meta.reason.clone().unwrap_or_default();
                    vec![p.fields.subject.to_string(), p.fields.level.to_string(), time(p.meta.updated_at), reason]
                })
                .collect();
            let value: Vec<Value> = snapshot
                .protections()
                .map(|p| json!({ "subject": p.fields.subject, "level": p.fields.level, "reason": p.meta.reason }))
                .collect();
            emit(
                &context.common,
                &table(&["subject", "level", "since", "reason"], &rows, "nothing is protected"),
                &value,
            )?;
            incomplete(&snapshot)
        }
        ProtectionVerb::Show { subject: text } => {
            let subject = subject(&text)?;
            let (_, snapshot) = read(context).await?;
            must_exist(&snapshot, &subject)?;
            let chain = snapshot.chain_of(&subject);
            let found: Vec<_> = chain.iter().filter_map(|s| snapshot.protection_of(s)).collect();
            let rows: Vec<Vec<String>> = found
                .iter()
                .map(|p| {
                    let reason = p.meta.reason.clone().unwrap_or_default();
                    vec![p.fields.level.to_string(), p.fields.subject.to_string(), reason]
                })
                .collect();
            let value: Vec<Value> = found
                .iter()
                .map(|p| json!({ "subject": p.fields.subject, "level": p.fields.level, "reason": p.meta.reason }))
                .collect();
            let text = table(&["level", "put on", "reason"], &rows, &format!("{subject} is not protected"));
            emit(&context.common, &text, &value)?;
            incomplete(&snapshot)
        }
    }
}

pub(crate) async fn trash(context: &Context, verb: TrashVerb) -> anyhow::Result<Exit> {
    match verb {
        TrashVerb::List => {
            let (_, snapshot) = read(context).await?;
            let now = Utc::now();
            let mut sorted: Vec<_> = snapshot.trash().chain(snapshot.trashed_namespaces()).collect();
            sorted.sort_by_key(|t| (t.fields.subject.to_string(), t.fields.dropped_at));
            let held = || sorted.iter();
            let rows: Vec<Vec<String>> = held()
                .map(|t| {
                    let f = &t.fields;
                    let state = match (f.deadline <= now, &f.renamed_to) {
                        (_, Some(to)) => format!("a rename to {to} was cut off"),
                        (true, _) => "expired".to_owned(),
                        _ => String::new(),
                    };
                    vec![f.subject.to_string(), time(f.dropped_at), time(f.deadline), state, t.meta.id.clone()]
                })
                .collect();
            let value: Vec<Value> = held().map(|t| json!({ "id": t.meta.id, "fields": t.fields })).collect();
            let text = table(&["subject", "dropped", "deadline", "state", "id"], &rows, "the trash is empty");
            emit(&context.common, &text, &value)?;
            incomplete(&snapshot)
        }
        TrashVerb::Show { id } => {
            let (_, snapshot) = read(context).await?;
            let mut held = snapshot.trash().chain(snapshot.trashed_namespaces());
            let record = held.find(|t| t.meta.id == id).ok_or_else(|| {
                Failure::usage(format!("the trash holds no `{id}`")).remedy("see `squire-registry trash list`")
            })?;
            let f = &record.fields;
            let protection = f.protection.as_ref().map_or("none".to_owned(), |p| p.fields.level.to_string());
            let policy = if f.policy.is_some() { "its own" } else { "none" };
            let text = format!(
                "{}\nat: {}\nwarehouse: {}\ndropped: {} by {}\ndeadline: {}\nprotection: {protection}\npolicy: {policy}\n\
                 blocks: {}",
                f.subject,
                if f.uri.is_empty() { "a namespace has no bytes" } else { &f.uri },
                f.warehouse,
                time(f.dropped_at),
                record.meta.updated_by.who,
                time(f.deadline),
                f.blocks.len()
            );
            emit(&context.common, &text, &json!({ "id": id, "fields": f, "record": record.meta }))?;
            Ok(Exit::Ok)
        }
        TrashVerb::Undrop { subject, why } => crate::drops::undrop(context, &subject, why.reason).await,
    }
}

pub(crate) async fn block(context: &Context, verb: BlockVerb) -> anyhow::Result<Exit> {
    match verb {
        BlockVerb::Add { subject, reason, until, version } => {
            let subject = explicit(&subject)?;
            if reason.trim().is_empty() {
                return Err(Failure::usage("--reason is empty").remedy("say why, for whoever meets the block").into());
            }
            if let Some(past) = until.filter(|until| *until <= Utc::now()) {
                return Err(Failure::usage(format!("--until {} has passed: the block would hold nothing", time(past)))
                    .remedy("give a time to come, or none for a block until it is removed")
                    .into());
            }
            let kind = if version.is_some() { BlockKind::Reader } else { BlockKind::Operator };
            let registry = context.registry(&[]).await?;
            let block = Block { subject: subject.clone(), kind, until, version };
            let id = registry.block_add(block, &reason).await.map_err(failure)?;
            let reason = Some(format!("{kind}: {reason}"));
            let data = RecordData { id: Some(id.clone()), reason, until, ..RecordData::default() };
            tell(context, &registry, EventType::BlockFiled, &subject.to_string(), data).await;
            emit(&context.common, &format!("block {id} on {subject}"), &json!({ "id": id, "subject": subject }))?;
            Ok(Exit::Ok)
        }
        BlockVerb::Remove { id, why } => {
            let registry = context.registry(&[]).await?;
            let snapshot = registry.snapshot().await.map_err(failure)?;
            let on = snapshot.blocks().find(|b| b.meta.id == id).map(|b| b.fields.subject.to_string());
            registry.block_remove(&id, why.reason.as_deref()).await.map_err(failure)?;
            let data = RecordData { id: Some(id.clone()), reason: why.reason, ..RecordData::default() };
            tell(context, &registry, EventType::BlockLifted, on.as_deref().unwrap_or("estate"), data).await;
            emit(&context.common, &format!("block {id} is lifted"), &json!({ "removed": id }))?;
            Ok(Exit::Ok)
        }
        BlockVerb::List => {
            let (_, snapshot) = read(context).await?;
            let now = Utc::now();
            let rows: Vec<Vec<String>> = snapshot
                .blocks()
                .map(|b| {
                    let f = &b.fields;
                    let until = match f.until {
                        Some(until) if until <= now => format!("ended {}", time(until)),
                        Some(until) => time(until),
                        None => String::new(),
                    };
                    let what = f.version.map_or(f.kind.to_string(), |v| format!("version {v}"));
                    let reason = b.meta.reason.clone().unwrap_or_default();
                    vec![b.meta.id.clone(), f.subject.to_string(), what, until, reason]
                })
                .collect();
            let value: Vec<Value> = snapshot
                .blocks()
                .map(|b| json!({ "id": b.meta.id, "reason": b.meta.reason, "active": b.fields.active_at(now), "fields": b.fields }))
                .collect();
            emit(&context.common, &table(&["id", "subject", "what", "until", "reason"], &rows, "no blocks"), &value)?;
            incomplete(&snapshot)
        }
    }
}
