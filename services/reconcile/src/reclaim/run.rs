//! What every verb that changes something needs: the run and its record, the deleting lake, claims.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::Value;
use squire_lake::Lake;
use squire_lake::rate::Rate;
use squire_registry::{
    Claim, ClaimOutcome, DatasetEntry, DatasetIntent, DatasetResult, Governance, Registry, RunOutcome, RunRecord,
    protections_vanished,
};
use squire_service::cli::Failure;
use squire_service::config::Mode;
use squire_service::report::SkipReason;
use squire_service::shutdown::Shutdown;
use squire_service::telemetry::Metrics;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::plan::Forbidden;
use super::survey::{Survey, lost, nearer};
use super::{ReclaimPlan, ReconcileConfig};

/// The kind of a run that applies a plan, as its record says it.
pub(crate) const APPLY: &str = "reclaim";
/// That brings back.
pub(crate) const UNDO: &str = "reclaim_undo";
/// That empties a quarantine.
pub(crate) const PURGE: &str = "reclaim_purge";

/// One run that may delete.
pub(crate) struct Run<'a> {
    pub(crate) config: &'a ReconcileConfig,
    pub(crate) metrics: &'a Metrics,
    /// Opens stores, also with the credentials that delete.
    pub(crate) lake: Lake,
    pub(crate) registry: Registry,
    pub(crate) id: Uuid,
    pub(crate) started: DateTime<Utc>,
    pub(crate) shutdown: Shutdown,
    pub(crate) rate: Rate,
    digest: String,
}

impl<'a> Run<'a> {
    /// Checks what every run that deletes needs of estate and registry, and writes the run's record.
    ///
    /// # Errors
    /// Exit 3 for every refusal, 1 for a registry that cannot be written.
    pub(crate) async fn open(
        config: &'a ReconcileConfig,
        metrics: &'a Metrics,
        survey: &Survey,
        plan: &ReclaimPlan,
        verb: &str,
    ) -> anyhow::Result<Self> {
        let registry = trusted(config, survey, plan.estate, verb != UNDO).await?;
        let storage = config.config.storage.clone();
        let deletes = config.config.storage.clone();
        let lake = Lake::with_deletes(
            Arc::new(move |uri: &str| storage.options_for(uri)),
            Arc::new(move |uri: &str| deletes.delete_options_for(uri)),
            config.config.limits.memory.as_u64(),
            config.config.budget.requests_per_second,
        );
        lake.backed_by(&survey.snapshot);
        let run = Self {
            config,
            metrics,
            lake,
            registry,
            id: Uuid::now_v7(),
            started: Utc::now(),
            shutdown: Shutdown::install()?,
            rate: Rate::new(config.config.limits.delete_rate),
            digest: plan.digest.clone(),
        };
        let record = RunRecord {
            run: run.id,
            kind: verb.into(),
            estate: run.registry.id(),
            started_at: run.started,
            command: squire_service::config::redact_command(std::env::args()),
            actor: run.registry.actor().clone(),
            tool_version: squire_service::VERSION.into(),
            mode: config.config.estate.mode.to_string(),
            config_digest: Some(config.digest()),
            plan_digest: Some(run.digest.clone()),
            live: survey.snapshot.live_counts(),
            outcome: None,
        };
        run.registry.run_open(record).await?;
        Ok(run)
    }

    /// Closes the run's record. A record that cannot be closed stays open, which is what it is.
    pub(crate) async fn close(&self, totals: Value, failures: Vec<String>) {
        let complete = !self.shutdown.is_requested();
        let outcome = RunOutcome { finished_at: Utc::now(), complete, totals, failures };
        if let Err(e) = self.registry.run_close(self.id, outcome).await {
            tracing::warn!(error = %e, "the run's record could not be closed");
        }
    }

    /// What governs a dataset at this moment.
    pub(crate) async fn govern(&self, survey: &Survey, uri: &str) -> Result<Governance, Forbidden> {
        match self.registry.recheck(&survey.snapshot, uri).await {
            Ok(fresh) => Ok(survey.govern(self.config, &fresh, uri)),
            Err(e) => Err(Forbidden::Skip(SkipReason::RegistryUnreadable, e.to_string())),
        }
    }

    /// Writes the audit entry of a dataset; before its first delete.
    pub(crate) async fn entry(
        &self,
        governance: &Governance,
        (step, read_version): (&str, u64),
        (files, bytes): (u64, u64),
    ) -> Result<(), Forbidden> {
        let entry = DatasetEntry {
            run: self.id,
            attempt: self.id,
            uri: governance.uri.clone(),
            table: governance.table.as_ref().map(ToString::to_string),
            opened_at: Utc::now(),
            intent: DatasetIntent {
                read_version,
                steps: vec![step.into()],
                versions: Vec::new(),
                files,
                bytes,
                policy: governance.policy.policy.clone(),
                policy_source: governance.policy.source.id.clone(),
                plan_digest: Some(self.digest.clone()),
            },
            result: None,
        };
        let written = self.registry.run_dataset_opened(self.id, entry).await;
        written.map_err(|e| Forbidden::Skip(SkipReason::RegistryUnreadable, e.to_string()))
    }

    /// Closes a dataset's entry; why it could not be closed.
    pub(crate) async fn entry_done(&self, uri: &str, result: DatasetResult) -> Option<String> {
        self.registry.run_dataset_closed(self.id, uri, self.id, result).await.err().map(|e| e.to_string())
    }

    /// Takes a dataset's claim and keeps it.
    pub(crate) async fn claim(&self, uri: &str) -> Result<Claimed, Forbidden> {
        let ttl = self.config.config.grace.claim_ttl;
        match self.registry.claim(uri, self.id, ttl).await {
            Ok(ClaimOutcome::Held(claim)) => Ok(Claimed::keep(claim, ttl)),
            Ok(ClaimOutcome::Taken { by, .. }) => {
                let why = format!("{} on {} works on it (process {})", by.actor.who, by.actor.host, by.actor.pid);
                Err(Forbidden::Skip(SkipReason::Claimed, why))
            }
            Err(e) => Err(Forbidden::Skip(SkipReason::RegistryUnreadable, e.to_string())),
        }
    }
}

/// The registry, if it is the plan's, is whole, and the estate may delete.
async fn trusted(
    config: &ReconcileConfig,
    survey: &Survey,
    estate: Option<Uuid>,
    deletes: bool,
) -> anyhow::Result<Registry> {
    let Some(registry) = survey.registry.clone() else {
        return Err(Failure::refused(
            "registry_lost: there is no registry, so it is not known what protects these files",
        )
        .remedy("name it with --registry, or make one: squire-registry init")
        .into());
    };
    if estate != Some(registry.id()) {
        return Err(Failure::refused("the plan was made for another estate")
            .remedy("make a new plan with this registry")
            .into());
    }
    let mode = config.config.estate.mode;
    if mode != Mode::Maintain && deletes {
        return Err(Failure::refused(format!("the estate's mode is {mode}: nothing is deleted"))
            .remedy("set estate.mode = \"maintain\"")
            .into());
    }
    for root in &survey.roots {
        if let Some(why) = lost(config, Some(&registry), root).await {
            return Err(Failure::refused(format!("registry_lost: {why}"))
                .remedy("name the registry that the root belongs to with --registry")
                .into());
        }
        if deletes && let Some(other) = nearer(config, registry.uri(), root).await {
            let why =
                format!("registry_lost: {} is not the registry nearest to {root}, which is {other}", registry.uri());
            return Err(Failure::refused(why)
                .remedy("name the nearest one with --registry, and make a new plan")
                .into());
        }
    }
    let last =
        registry.last_run().await.map_err(|e| Failure::refused("the last run could not be read").caused_by(e))?;
    let vanished = last.map(|last| protections_vanished(&last, &survey.snapshot)).unwrap_or_default();
    if let Some(v) = vanished.first() {
        return Err(Failure::refused(format!(
            "protections_vanished: {} records of {} are gone without a trace since the last run",
            v.vanished, v.collection
        ))
        .remedy("restore them before anything is deleted")
        .into());
    }
    Ok(registry)
}

/// A claim that is renewed until it is let go.
pub(crate) struct Claimed {
    claim: Arc<Mutex<Option<Claim>>>,
    renewing: tokio::task::JoinHandle<()>,
}

impl Claimed {
    fn keep(claim: Claim, ttl: std::time::Duration) -> Self {
        let claim = Arc::new(Mutex::new(Some(claim)));
        let mine = claim.clone();
        let renewing = tokio::spawn(async move {
            loop {
                tokio::time::sleep(ttl / 3).await;
                if let Some(claim) = mine.lock().await.as_mut()
                    && let Err(e) = claim.renew().await
                {
                    tracing::warn!(error = %e, "a claim could not be renewed");
                }
            }
        });
        Self { claim, renewing }
    }

    /// Why nothing more may be started under it.
    pub(crate) async fn still_ours(&self) -> Result<(), String> {
        match self.claim.lock().await.as_ref() {
            Some(claim) if claim.still_ours() => Ok(()),
            _ => Err("the claim is no longer ours".to_string()),
        }
    }

    /// Gives it back.
    pub(crate) async fn release(self) {
        self.renewing.abort();
        if let Some(claim) = self.claim.lock().await.take()
            && let Err(e) = claim.release().await
        {
            tracing::warn!(error = %e, "a claim could not be released; it expires by itself");
        }
    }
}
