//! Panics of the library stay with the dataset (design, "Containment").

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;

use crate::{Error, Kind, Lake, Result};

/// Runs `work`, turning a panic into a [`Kind::Bug`] error and replacing the shared session, whose caches a panic
/// may have left half-filled.
///
/// # Errors
/// The work's own error, or `Bug` with the panic's message.
pub async fn contained<T, F>(lake: &Lake, doing: &str, uri: &str, work: F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(result) => result,
        Err(payload) => {
            lake.replace_session();
            Err(panicked(doing, uri, payload.as_ref()))
        }
    }
}

/// The error that a panic becomes.
pub fn panicked(doing: &str, uri: &str, payload: &(dyn Any + Send)) -> Error {
    let text = payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".into());
    Error::new(Kind::Bug, doing, uri)
        .because(std::io::Error::other(format!("the library panicked: {text}")))
        .remedy("the dataset is left as it is; it is tried again when its HEAD changes")
}
