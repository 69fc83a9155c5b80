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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::Lake;

    /// How long thirty deletes take, ten in one request at most, by a clock that only waiting moves.
    fn thirty(per_second: u32) -> Duration {
        let dir = tempfile::tempdir().expect("a folder");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let lake = Lake::new(std::sync::Arc::new(|_: &str| Default::default()), 1 << 20);
            let uri = crate::uri::canonical(dir.path().to_str().expect("UTF-8")).expect("a URI");
            let place = Place { deletes_at_once: 10, ..lake.place(&uri).await.expect("a place") };
            let names: Vec<String> = (0..30).map(|n| format!("{n}.lance")).collect();
            for name in &names {
                std::fs::write(dir.path().join(name), "x").expect("written");
            }
            let paths: Vec<&str> = names.iter().map(String::as_str).collect();
            let began = Instant::now();
            let ended = delete_all(&place, &paths, &Rate::new(per_second)).await;
            assert!(ended.iter().all(|e| *e == Deleted::Gone) && ended.len() == 30, "{ended:?}");
            assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 0);
            began.elapsed()
        })
    }

    #[test]
    fn a_bulk_delete_takes_a_turn_for_each_of_its_objects() {
        // Three requests; the last waits for the twenty objects before its own.
        assert_eq!(thirty(100), Duration::from_millis(200));
        // No request has more than a second's worth.
        assert_eq!(thirty(5), Duration::from_secs(5));
    }
}
