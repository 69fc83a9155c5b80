//! A large build shared with the other replicas (design, "Slices"; the same rules for segments of an index).
//!
//! The owner of the job keeps the table's claim. It trains what the segments share, stores that under `work/<run>/`, and asks for
//! the segments by number alone. Whoever takes one stores its result there. The owner joins them, commits and asks the index.
//! An owner that dies is followed by the next delivery of its message, which finds what is stored.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::try_join_all;
use squire_lake::build::segments::{self, Head, Segment, Shared};
use squire_lake::build::{self, Built, Progress, Work};
use squire_lake::commit::Handle;
use squire_lake::{Error, Kind, LANCE_VERSION, Result};
use squire_registry::{WorkObject, WorkPart};
use squire_service::admission::Admission;
use squire_service::bus::Bus;
use squire_service::bus::data::SegmentRequested;
use uuid::Uuid;

use super::Tools;
use crate::estate::Estate;
use crate::plan::Plan;

/// How often the owner looks for results, by the time that it has waited: small builds are not held up, and a long wait costs few
/// requests.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How often it asks again for segments that nobody has delivered; one that is queued or in work is not queued twice.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// Without any result for so long the build is given up, and its message tried again.
const STALLED: Duration = Duration::from_secs(6 * 3600);

/// How a build is shared.
#[derive(Clone)]
pub struct Sharing {
    /// The bus that the other replicas hear.
    pub bus: Bus,
    /// Tables of more bytes than this are shared (`limits.distribute_above`).
    pub above: u64,
    /// The job, so that others see when it was taken back.
    pub job: String,
}

impl Sharing {
    /// Whether this build is shared.
    pub fn applies(&self, plan: &Plan) -> bool {
        let bytes: u64 = plan.look.fragments.iter().map(|f| f.bytes).sum();
        bytes > self.above && plan.look.fragments.len() > 1 && segments::can_share(&plan.look, &plan.definition)
    }
}

fn registry(doing: &str, uri: &str) -> impl Fn(squire_registry::Error) -> Error {
    let (doing, uri) = (doing.to_string(), uri.to_string());
    move |e| Error::new(Kind::Transient, doing.clone(), uri.clone()).because(e)
}

/// The attempt's name: what was read.
fn attempt(read_version: u64) -> String {
    format!("v{read_version}")
}

/// Builds in segments with whoever else is there. The second value is their number.
pub(super) async fn shared(
    tools: &Tools,
    plan: &Plan,
    dataset: &Arc<Handle>,
    work: &Work,
    sharing: &Sharing,
) -> Result<(Built, u32)> {
    let uri = plan.look.uri.as_str();
    let (shared, is_new) = planned(tools, plan, dataset, work, sharing).await?;
    let parts = shared.head.segments.len();
    let results = gather(tools, uri, &shared, is_new, sharing).await?;
    let room = tools.admission.admit(plan.estimate.bytes).await;
    let joined = segments::join(&tools.estate.lake, dataset, &plan.definition, results).await;
    drop(room);
    Ok((joined?, u32::try_from(parts).unwrap_or(u32::MAX)))
}

/// The shared build of this run at this version: stored by an owner that died, or planned and trained now. The flag: it is new.
async fn planned(
    tools: &Tools,
    plan: &Plan,
    dataset: &Arc<Handle>,
    work: &Work,
    sharing: &Sharing,
) -> Result<(Shared, bool)> {
    let (uri, read_version) = (plan.look.uri.as_str(), plan.look.version());
    let reg = &tools.estate.registry;
    let name = attempt(read_version);
    let wrong = registry("looking for a shared build", uri);
    if let Some(bytes) = reg.work_get(tools.run, uri, WorkPart::Plan, &name).await.map_err(wrong)?
        && let Ok(found) = Shared::from_bytes(&bytes)
        && found.head.lance == LANCE_VERSION
        && found.head.definition == plan.definition
    {
        return Ok((found, false));
    }
    let cut = segments::cut(&plan.look, sharing.above);
    let room = tools.admission.admit(plan.estimate.bytes).await;
    let model = segments::train(&tools.estate.lake, dataset, &plan.definition, work).await?;
    drop(room);
    let parts = cut.len().max(1) as u64;
    let head = Head {
        lance: LANCE_VERSION.into(),
        job: sharing.job.clone(),
        read_version,
        definition: plan.definition.clone(),
        segments: cut,
        memory: (plan.estimate.bytes / parts).max(128 << 20),
        bounded: plan.estimate.bounded / parts,
    };
    let shared = Shared { head, model };
    let bytes = Bytes::from(shared.to_bytes()?);
    let stored = reg.work_put(tools.run, uri, WorkPart::Plan, &name, bytes).await;
    match stored.map_err(registry("storing a shared build", uri))? {
        true => Ok((shared, true)),
        false => Err(Error::new(Kind::Transient, "storing a shared build", uri)
            .remedy("another worker of the same job was first; the message is tried again")),
    }
}

/// Asks for the segments and waits for all of them. Of a plan that is new there are none yet.
async fn gather(tools: &Tools, uri: &str, shared: &Shared, is_new: bool, sharing: &Sharing) -> Result<Vec<Segment>> {
    let name = attempt(shared.head.read_version);
    let parts = shared.head.segments.len();
    let (mut asked, mut last, began) = (None::<Instant>, Instant::now(), Instant::now());
    let mut seen = usize::MAX;
    loop {
        let listed = match is_new && asked.is_none() {
            true => Vec::new(),
            false => {
                let listed = tools.estate.registry.work_list(tools.run, uri).await;
                listed.map_err(registry("looking for segments", uri))?
            }
        };
        let there = done(&listed, &name);
        if there.len() != seen {
            (seen, last) = (there.len(), Instant::now());
            (tools.on_progress)(&Progress {
                stage: "segments".into(),
                done: seen as u64,
                total: Some(parts as u64),
                unit: "segments".into(),
            });
        }
        if there.len() == parts {
            return read(tools, uri, &name, parts).await;
        }
        if last.elapsed() > STALLED {
            return Err(Error::new(Kind::Transient, "waiting for segments of an index", uri)
                .remedy("no replica delivers them; see that `squire-index-build serve` runs"));
        }
        if asked.is_none_or(|at| at.elapsed() > ASK_AGAIN) {
            asked = Some(Instant::now());
            let ask = async |n| {
                let request = SegmentRequested { run: tools.run, uri: uri.to_string(), segment: n };
                let published = sharing.bus.request_segment(&request).await;
                published.map_err(|e| Error::new(Kind::Transient, "asking for a segment", uri).because(e))
            };
            try_join_all((0..parts as u32).filter(|n| !there.contains_key(n)).map(ask)).await?;
        }
        tokio::time::sleep((began.elapsed() / 10).clamp(LOOK.0, LOOK.1)).await;
    }
}

fn done<'a>(listed: &'a [WorkObject], name: &str) -> BTreeMap<u32, &'a WorkObject> {
    let slices = listed.iter().filter(|o| o.attempt == name);
    slices.filter_map(|o| if let WorkPart::Slice(n) = o.part { Some((n, o)) } else { None }).collect()
}

async fn read(tools: &Tools, uri: &str, name: &str, parts: usize) -> Result<Vec<Segment>> {
    let one = async |n| {
        let bytes = tools.estate.registry.work_get(tools.run, uri, WorkPart::Slice(n), name).await;
        let bytes = bytes.map_err(registry("reading a segment", uri))?;
        let bytes = bytes.ok_or_else(|| Error::new(Kind::Transient, format!("reading segment {n}"), uri))?;
        Segment::from_bytes(&bytes)
    };
    try_join_all((0..u32::try_from(parts).unwrap_or(u32::MAX)).map(one)).await
}

/// Builds one segment that a message asks for. `false`: it is for another build, and is handed back.
///
/// # Errors
/// What went wrong; `Refused` cannot be mended by trying again.
pub async fn segment(estate: &Estate, asked: &SegmentRequested, admission: &Admission) -> Result<bool> {
    let (uri, run, n) = (asked.uri.as_str(), asked.run, asked.segment);
    let reg = &estate.registry;
    let (snapshot, listed) = tokio::join!(reg.snapshot(), reg.work_list(run, uri));
    let snapshot = snapshot.map_err(registry("reading the registry", uri))?;
    estate.lake.backed_by(&snapshot);
    // Names only: what the registry does not know is no work.
    if snapshot.table_at(uri).is_none() {
        tracing::warn!(uri, "the message names a table that is not registered; nothing is done");
        return Ok(true);
    }
    let listed = listed.map_err(registry("looking for a shared build", uri))?;
    let newest = listed.iter().filter(|o| o.part == WorkPart::Plan).max_by_key(|o| o.modified);
    let Some(newest) = newest else { return Ok(true) };
    if done(&listed, &newest.attempt).contains_key(&n) {
        return Ok(true);
    }
    let bytes = reg.work_get(run, uri, WorkPart::Plan, &newest.attempt).await;
    let bytes = bytes.map_err(registry("reading a shared build", uri))?;
    let Some(bytes) = bytes else { return Ok(true) };
    let shared = Shared::from_bytes(&bytes)?;
    if shared.head.lance != LANCE_VERSION {
        return Ok(false);
    }
    let opening = estate.lake.open_version(uri, shared.head.read_version);
    let (over_already, dataset) = tokio::join!(over(estate, &shared.head.job), opening);
    if over_already {
        return Ok(true);
    }
    let dataset = Arc::new(dataset?);
    let room = admission.admit(shared.head.memory).await;
    let work = Work { uuid: Uuid::new_v4(), memory: shared.head.bounded, on_progress: Arc::new(|_| {}) };
    let built = segments::build(&estate.lake, &dataset, &shared, n as usize, &work).await?;
    drop(room);
    let bytes = Bytes::from(built.to_bytes());
    let stored = match over(estate, &shared.head.job).await {
        true => Ok(false),
        false => reg.work_put(run, uri, WorkPart::Slice(n), &newest.attempt, bytes).await,
    };
    if !stored.map_err(registry("storing a segment", uri))? {
        // Another worker's result stands, or nobody wants one any more: this one was told to nobody.
        let place = estate.lake.place(uri).await?;
        build::discard(&place, &[built.uuid()]).await;
    }
    Ok(true)
}

/// Whether the job was taken back, or is over in another way.
async fn over(estate: &Estate, job: &str) -> bool {
    estate.registry.job(job).await.is_ok_and(|job| job.cancel || job.state.is_over())
}

/// The directories of segments that are stored for a run; for whoever takes the job back.
pub(crate) async fn stored(tools: &Tools, uri: &str) -> Vec<Uuid> {
    let Ok(listed) = tools.estate.registry.work_list(tools.run, uri).await else { return Vec::new() };
    let mut out = Vec::new();
    for object in listed.iter().filter(|o| matches!(o.part, WorkPart::Slice(_))) {
        let bytes = tools.estate.registry.work_get(tools.run, uri, object.part, &object.attempt).await;
        if let Ok(Some(bytes)) = bytes
            && let Ok(segment) = Segment::from_bytes(&bytes)
        {
            out.push(segment.uuid());
        }
    }
    out
}
