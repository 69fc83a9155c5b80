//! `dead`: requests that were given up, of every queue.

use serde_json::json;
use squire_service::bus::{BusError, BusErrorKind, DeadLetter, Published};
use squire_service::cli::{Exit, Failure};
use squire_service::config::BusKind;

use super::Context;
use super::args::Dead;
use crate::estate::Estate;
use crate::serve;

/// Letters that are listed.
const LISTED: usize = 1_000;

/// `dead`.
pub(super) async fn run(context: Context, verb: Dead) -> anyhow::Result<Exit> {
    if context.loaded.config.bus.kind == BusKind::Embedded {
        return Err(Failure::usage("there are no dead letters to see: the bus lives within one process")
            .remedy("set bus.kind = \"nats\"")
            .into());
    }
    let estate = Estate::open(context.loaded.clone()).await?;
    let bus = serve::bus(&estate, &context.metrics).await?;
    match verb {
        Dead::List => {
            let letters = bus.dead_list(LISTED).await.map_err(failure)?;
            let text = match letters.is_empty() {
                true => "no dead letters".to_string(),
                false => letters.iter().map(line).collect::<Vec<_>>().join("\n"),
            };
            context.emit(&text, &serde_json::to_value(&letters)?)?;
        }
        Dead::Show { id } => {
            let letter = bus.dead_get(number(&id)?).await.map_err(failure)?;
            let text = format!("{}\n{:#}", line(&letter), serde_json::to_value(&letter)?);
            context.emit(&text, &serde_json::to_value(&letter)?)?;
        }
        Dead::Requeue { id } => {
            let letter = bus.dead_get(number(&id)?).await.map_err(failure)?;
            let published = bus.dead_requeue(number(&id)?).await.map_err(failure)?;
            if published == Published::AlreadyQueued {
                return Err(Failure::refused(format!("dead letter {id}: the same work is queued already"))
                    .remedy("drop the letter, or requeue it once that work is over")
                    .into());
            }
            // A job that nobody wrote down is opened by the worker that takes its message.
            if let Some(job) = serve::job_of_letter(&letter) {
                let _ = estate.registry.job_requeue(&job).await;
            }
            context.emit(&format!("{id}: queued again"), &json!({ "id": letter.id, "requeued": true }))?;
        }
        Dead::Drop { id } => {
            bus.dead_drop(number(&id)?).await.map_err(failure)?;
            context.emit(&format!("{id}: dropped"), &json!({ "id": number(&id)?, "dropped": true }))?;
        }
    }
    Ok(Exit::Ok)
}

fn number(id: &str) -> Result<u64, Failure> {
    id.parse().map_err(|_| Failure::usage(format!("`{id}` is no dead letter")).remedy("see `dead list`"))
}

fn failure(e: BusError) -> Failure {
    match e.kind() {
        BusErrorKind::NotFound | BusErrorKind::Invalid => Failure::usage(e.to_string()),
        _ => Failure::could_not_run(e.to_string()),
    }
}

fn line(letter: &DeadLetter) -> String {
    let first: String = letter.last_error.lines().next().unwrap_or_default().chars().take(140).collect();
    format!(
        "{}  {}  {}  {} attempts  {}  {first}",
        letter.id,
        letter.stream,
        letter.reason.as_str(),
        letter.attempts,
        letter.first_seen.format("%Y-%m-%dT%H:%M:%SZ")
    )
}
