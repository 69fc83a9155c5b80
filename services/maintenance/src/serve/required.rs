//! Indices that a policy requires and a table lacks (an overwrite drops every one): asked for on the topic, where the policy says
//! that Squire may build them. Whoever serves index builds takes it from there.

use std::collections::BTreeSet;

use chrono::{Duration, Utc};
use squire_lake::index;
use squire_registry::{Job, JobState, RequiredIndex, Subject};
use squire_service::bus::Key;
use squire_service::bus::data::{BuildMode, IndexBuild};
use squire_service::config::{BusKind, Mode};
use squire_service::report::SkipReason;
use uuid::Uuid;

use super::Daemon;
use crate::driver::{Case, PlannedEstate};

/// A request that ended badly is not made again for so long: what the policy says and the table has do not fit.
const AGAIN: Duration = Duration::hours(24);

/// Asks for what is missing. That it could not be asked for stops nothing: the next tick finds it missing again.
pub(super) async fn ask(daemon: &Daemon, planned: &PlannedEstate) {
    if daemon.mode() == Mode::Observe || daemon.config.config.bus.kind != BusKind::Nats {
        return;
    }
    let wanted = wanted(planned);
    if wanted.is_empty() {
        return;
    }
    let settled = match daemon.registry.jobs().await {
        Ok((jobs, _)) => settled(&jobs),
        Err(e) => {
            tracing::warn!(error = %e, "the jobs cannot be read; missing indices are asked for at the next tick");
            return;
        }
    };
    for build in wanted {
        let key = Key::of_index(&build.table, &build.columns, &build.index_type, "");
        if settled.contains(key.as_str()) {
            continue;
        }
        match daemon.bus.request_build(Uuid::now_v7(), &build).await {
            Ok(_) => tracing::info!(table = build.table, kind = build.index_type, "a required index was asked for"),
            Err(e) => tracing::warn!(error = %e, table = build.table, "a required index could not be asked for"),
        }
    }
}

fn wanted(planned: &PlannedEstate) -> Vec<IndexBuild> {
    let mut out = Vec::new();
    for candidate in &planned.candidates {
        // What the clock finds no other reason to maintain lacks its index all the same.
        let p = match &candidate.case {
            Case::Planned(p) => p,
            Case::Skipped(skip, Some(p)) if skip.reason == SkipReason::NotDue => p,
            _ => continue,
        };
        let Some(table) = &p.governance.table else { continue };
        let missing = index::missing(&p.look.indices, &p.governance.policy.policy.required_indices);
        out.extend(missing.into_iter().filter(|required| required.build).map(|required| request(table, required)));
    }
    out
}

fn request(table: &Subject, required: &RequiredIndex) -> IndexBuild {
    let kind = squire_lake::build::IndexKind::parse(&required.kind);
    IndexBuild {
        table: table.to_string(),
        columns: required.columns.clone(),
        index_type: kind.map_or_else(|_| required.kind.clone(), |k| k.as_str().to_string()),
        name: None,
        params: serde_json::Map::new(),
        mode: BuildMode::Create,
        requested_by: Some("policy.required_indices".into()),
        request_id: None,
    }
}

/// The keys of jobs that go on, or that ended badly a short while ago.
fn settled(jobs: &[Job]) -> BTreeSet<String> {
    let recent = |job: &Job| job.finished_at.is_some_and(|at| Utc::now() - at < AGAIN);
    let good = |state: JobState| matches!(state, JobState::Built | JobState::Present | JobState::Untrained);
    let counts = |job: &&Job| !job.state.is_over() || (recent(job) && !good(job.state));
    jobs.iter().filter(counts).map(|job| job.key.clone()).collect()
}
