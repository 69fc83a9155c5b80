//! Deleting objects: one by one, or many in one request where the store has that.

use std::collections::HashSet;

use futures::stream::{self, StreamExt};
use object_store::ObjectStoreExt as _;
use object_store::path::Path;

use crate::handle::Place;
use crate::rate::Rate;

/// Requests in flight.
const DELETES: usize = 8;

/// How a delete ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Deleted {
    Gone,
    /// Tried again next time.
    Failed,
    /// The credentials may not, with what the store said.
    Denied(String),
}

/// Deletes one object, which may be gone already.
pub(crate) async fn delete(place: &Place, path: &str, rate: &Rate) -> Deleted {
    rate.wait().await;
    let Ok(full) = place.below(path) else { return Deleted::Failed };
    match place.objects().delete(&full).await {
        Ok(()) | Err(object_store::Error::NotFound { .. }) => Deleted::Gone,
        Err(e) if is_denied(&e) => Deleted::Denied(format!("the store denied the delete of {path}: {e}")),
        Err(e) => {
            tracing::warn!(dataset = place.uri, path, error = %e, "a delete failed; it is tried again next time");
            Deleted::Failed
        }
    }
}

/// Deletes objects, as many in one request as the store takes and a second of the rate lets; how each ended, in order.
pub(super) async fn delete_all(place: &Place, paths: &[&str], rate: &Rate) -> Vec<Deleted> {
    let at_once = place.deletes_at_once.min(rate.share() as usize).max(1);
    let batches: Vec<Vec<String>> =
        paths.chunks(at_once).map(|batch| batch.iter().map(|p| (*p).to_string()).collect()).collect();
    let done: Vec<Vec<Deleted>> = stream::iter(batches)
        .map(|batch| async move {
            match batch.as_slice() {
                [one] => vec![delete(place, one, rate).await],
                many => delete_batch(place, many, rate).await,
            }
        })
        .buffered(DELETES)
        .collect()
        .await;
    done.into_iter().flatten().collect()
}

/// One bulk request. What the answer does not say to be gone counts as failed: a batch that failed as a whole tells of no single
/// object.
async fn delete_batch(place: &Place, paths: &[String], rate: &Rate) -> Vec<Deleted> {
    rate.wait_for(paths.len()).await;
    let full: Vec<Option<Path>> = paths.iter().map(|p| place.below(p).ok()).collect();
    let wanted: Vec<object_store::Result<Path>> = full.iter().flatten().cloned().map(Ok).collect();
    let mut answers = place.objects().delete_stream(stream::iter(wanted).boxed());
    let (mut gone, mut denied) = (HashSet::new(), None);
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(path) => {
                gone.insert(path.to_string());
            }
            Err(object_store::Error::NotFound { path, .. }) => {
                gone.insert(path);
            }
            Err(e) if is_denied(&e) => {
                denied = Some(format!("the store denied the delete of {} objects: {e}", paths.len()))
            }
            Err(e) => {
                let objects = paths.len();
                tracing::warn!(dataset = place.uri, objects, error = %e, "deletes failed; they are tried again next time");
            }
        }
    }
    let ended = |path: &Option<Path>| match (&denied, path) {
        (_, Some(path)) if gone.contains(path.as_ref()) => Deleted::Gone,
        (Some(why), _) => Deleted::Denied(why.clone()),
        (None, _) => Deleted::Failed,
    };
    full.iter().map(ended).collect()
}

/// Whether the credentials are what is wrong. S3 answers a bulk delete with 200 and a code for each key, which the client passes
/// on as text alone (`object_store`, `aws/client.rs`, `DeleteFailed`).
fn is_denied(e: &object_store::Error) -> bool {
    match e {
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => true,
        object_store::Error::Generic { source, .. } => source.to_string().contains("(code: AccessDenied)"),
        _ => false,
    }
}
