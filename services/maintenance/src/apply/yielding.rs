//! Yield: not started, and not committed, while somebody else is at long work on the table (design, "Plan").

use chrono::{DateTime, Duration, Utc};
use squire_lake::commit::Outputs;
use squire_lake::handle::Place;
use squire_lake::look::Look;
use squire_lake::writers::{AtWork, Span, Watch, unnamed};
use squire_registry::{Claim, DIED, DatasetEntry, Governance};
use squire_service::report::SkipReason;

use super::Tools;
use crate::admit::Skip;
use crate::state::WaitingFor;

/// A pass waits at most this long for other people's work, and then goes ahead with a warning.
const PATIENCE: Duration = Duration::days(1);
/// The store's clock and ours are not the same.
const CLOCKS: Duration = Duration::seconds(60);

/// The watch over other people's work during one pass.
pub(super) enum Yielding {
    /// Nobody has been waited for too long.
    Patient(Box<Watch>),
    /// A day of waiting is over: this pass goes ahead whoever is at work.
    GoesAhead,
}

impl Yielding {
    /// Before a pass: waits until it is clear whether somebody is at work. `ours` is what slices of this run have written.
    pub(super) async fn begin(
        tools: &Tools,
        place: &Place,
        look: &Look,
        governance: &Governance,
        waiting_for: Option<&WaitingFor>,
        ours: &Outputs,
    ) -> Result<Self, Stopped> {
        let now = tools.estate.now();
        let window = governance.policy.policy.yield_window;
        let waiting_for = waiting_for.filter(|w| w.goes_on(window, now));
        if waiting_for.is_some_and(|w| now - w.since >= PATIENCE) {
            let dataset = &look.uri;
            tracing::warn!(
                dataset,
                "somebody has been at long work for a day; the pass goes ahead and may make it fail"
            );
            return Ok(Self::GoesAhead);
        }
        let suspicious = unnamed(look, window, now);
        let explained = match suspicious.first() {
            Some(oldest) => explained(tools, &look.uri, oldest.modified).await?,
            None => Vec::new(),
        };
        // An earlier pass has watched this very file for long enough: this look was one more.
        if let Some(known) = waiting_for
            && let Some(file) = suspicious.iter().find(|e| e.path == known.path)
            && !explained.iter().any(|s| s.covers(file.modified))
        {
            return Err(active(&AtWork { path: file.path.clone(), modified: file.modified, files: suspicious.len() }));
        }
        let mut watch = Watch::new(place.clone(), look, window, explained, now);
        watch.ours(ours);
        settle(tools, &mut watch).await?;
        Ok(Self::Patient(Box::new(watch)))
    }

    /// Before a commit: whether somebody began since. `ours` is what this pass wrote itself.
    pub(super) async fn before_commit(&mut self, tools: &Tools, ours: &Outputs) -> Result<(), Stopped> {
        let Self::Patient(watch) = self else { return Ok(()) };
        watch.ours(ours);
        watch.look_again(tools.estate.now()).await.map_err(|e| unsure(&e))?;
        settle(tools, watch).await
    }
}

async fn settle(tools: &Tools, watch: &mut Watch) -> Result<(), Stopped> {
    if watch.is_calm() {
        return Ok(());
    }
    tokio::select! {
        found = watch.at_work() => match found {
            Ok(None) => Ok(()),
            Ok(Some(work)) => Err(active(&work)),
            Err(e) => Err(unsure(&e).into()),
        },
        () = tools.shutdown.requested() => {
            Err(writer_active("stopped by a signal while it waited for a writer").into())
        }
    }
}

/// Why a pass does not begin, or does not commit.
pub(super) struct Stopped {
    /// The skip.
    pub(super) skip: Skip,
    /// The file of the work that it waits for.
    pub(super) file: Option<String>,
}

impl From<Skip> for Stopped {
    fn from(skip: Skip) -> Self {
        Self { skip, file: None }
    }
}

fn writer_active(detail: impl Into<String>) -> Skip {
    Skip { reason: SkipReason::WriterActive, detail: detail.into() }
}

fn active(work: &AtWork) -> Stopped {
    let skip = writer_active(format!(
        "{} young files that no version names stay unnamed, {} of {} first: somebody is at long work, which a commit now \
         would make fail",
        work.files,
        work.path,
        work.modified.format("%H:%M:%S UTC"),
    ));
    Stopped { skip, file: Some(work.path.clone()) }
}

fn unsure(e: &squire_lake::Error) -> Skip {
    writer_active(format!("whether somebody is at work cannot be told: {e}"))
}

/// The times of our own runs whose files are left over: died, or with a commit whose fate is not known.
async fn explained(tools: &Tools, uri: &str, oldest: DateTime<Utc>) -> Result<Vec<Span>, Skip> {
    // A run may have worked for a day before it wrote its last file.
    let since = oldest - Duration::days(1);
    let (entries, _) = tools.registry.dataset_history_since(uri, since).await.map_err(|e| Skip {
        reason: SkipReason::RegistryUnreadable,
        detail: format!("whether its young files are our own cannot be told: {e}"),
    })?;
    // Of this run, too: its own entry is not opened yet, so what stands there is a worker's that had the message before.
    Ok(entries.iter().filter_map(span).collect())
}

fn span(entry: &DatasetEntry) -> Option<Span> {
    let until = match &entry.result {
        Some(result) if result.outcome == DIED || result.stranded_bytes > 0 => result.closed_at,
        Some(_) => return None,
        // Nobody took its claim over: what is certain is that it was alive when it began.
        None => entry.opened_at,
    };
    Some(Span { from: entry.opened_at - CLOCKS, until: until + CLOCKS })
}

/// Writes down until when the run that held this claim may have been alive.
pub(super) async fn bury(tools: &Tools, claim: &Claim) -> squire_registry::Result<()> {
    match claim.taken_from() {
        Some(dead) => tools.registry.run_dataset_died(dead.run, claim.uri(), dead.last_sign).await,
        None => Ok(()),
    }
}
