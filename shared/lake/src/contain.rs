//! Panics of the library stay with the dataset (design, "Containment").

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;

use crate::{Error, Kind, Lake, Result};

static PANICS: AtomicU64 = AtomicU64::new(0);
static HOOK: Once = Once::new();

/// Counts this process's panics from now on, beside whatever is done with them already.
pub(crate) fn watch() {
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            before(info);
        }));
    });
}

/// Runs `work`, turning a panic into a [`Kind::Bug`] error and replacing the shared session, whose caches a panic
/// may have left half-filled.
///
/// The library reads in tasks of its own. A panic there comes back as an I/O error ("dropped before completion"), so a failure
/// during which anything in the process panicked counts as a bug too: at worst another dataset's panic keeps this one from
/// being tried again at the same HEAD.
///
/// # Errors
/// The work's own error, or `Bug` with the panic's message.
pub async fn contained<T, F>(lake: &Lake, doing: &str, uri: &str, work: F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let seen = PANICS.load(Ordering::SeqCst);
    match AssertUnwindSafe(Box::pin(work)).catch_unwind().await {
        Ok(Err(e)) if hides_a_panic(&e, seen) => {
            lake.replace_session();
            Err(Error::new(Kind::Bug, doing, uri)
                .because(e)
                .remedy("the library panicked in a task of its own; it is tried again when its HEAD changes"))
        }
        Ok(result) => result,
        Err(payload) => {
            lake.replace_session();
            Err(panicked(doing, uri, payload.as_ref()))
        }
    }
}

fn hides_a_panic(e: &Error, seen: u64) -> bool {
    let unexplained = matches!(e.kind(), Kind::Transient | Kind::Permanent | Kind::Damaged);
    unexplained && PANICS.load(Ordering::SeqCst) != seen
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
