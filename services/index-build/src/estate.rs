//! What a build works on: config, lake, registry. A registry must exist: what is built on is registered in one.

use std::sync::Arc;

use chrono::Utc;
use squire_lake::Lake;
use squire_lake::look::Look;
use squire_registry::{Error, Floors, Governance, Kind, Located, Policy, Registry, Snapshot, Subject, locate};
use squire_service::cli::{Exit, Failure};
use squire_service::config::{Config, Loaded};

/// The surroundings of builds. Cheap to clone.
#[derive(Clone)]
pub struct Estate {
    /// The effective config with its sources.
    pub loaded: Arc<Loaded<Policy, Floors>>,
    /// Datasets are opened through it.
    pub lake: Lake,
    /// The registry.
    pub registry: Registry,
}

impl Estate {
    /// Opens the registry that is named, or the nearest at or above the config's roots, else the working directory.
    ///
    /// # Errors
    /// Exit 2 when there is none, 1 when it cannot be read.
    pub async fn open(loaded: Loaded<Policy, Floors>) -> anyhow::Result<Self> {
        let config = &loaded.config;
        let options = |uri: &str| config.storage.options_for(uri);
        let uri = match &config.registry.root {
            Some(uri) => uri.clone(),
            None => nearest(config).await?,
        };
        let registry = Registry::open(&uri, &options(&uri)).await.map_err(failure)?;
        let storage = config.storage.clone();
        let memory = config.limits.memory.as_u64();
        let lake = Lake::new(Arc::new(move |uri: &str| storage.options_for(uri)), memory);
        let registry = registry.keeping_history(config.grace.record_history);
        Ok(Self { loaded: Arc::new(loaded), lake, registry })
    }

    /// The effective config.
    pub fn config(&self) -> &Config<Policy, Floors> {
        &self.loaded.config
    }

    /// What governs a looked-at dataset.
    pub fn govern(&self, snapshot: &Snapshot, look: &Look) -> Governance {
        let config = self.config();
        let own = look.config();
        let mut governance = snapshot.govern(&look.uri, &config.policy, &config.floors, &own, Utc::now());
        governance.deregistered = look.deregistered;
        governance
    }

    /// The table that a person named: its SUBJECT, or `dataset/<URI>` of a registered one.
    ///
    /// # Errors
    /// Exit 2 for what is no table of this registry.
    pub async fn table(&self, text: &str) -> anyhow::Result<Subject> {
        let subject: Subject = text.parse().map_err(failure)?;
        match subject {
            Subject::Table(_) => Ok(subject),
            Subject::Dataset(uri) => {
                let uri = squire_lake::uri::canonical(&uri).map_err(|e| Failure::usage(e.to_string()))?;
                let snapshot = self.registry.snapshot().await.map_err(failure)?;
                let table = snapshot.table_at(&uri).map(|t| t.fields.subject());
                table.ok_or_else(|| {
                    Failure::usage(format!("{uri} is no registered table"))
                        .remedy("register it with `squire-registry table create`")
                        .into()
                })
            }
            other => Err(Failure::usage(format!("{other} is a {}, and an index is built on a table", other.kind()))
                .remedy("write table/a/b/t")
                .into()),
        }
    }
}

async fn nearest(config: &Config<Policy, Floors>) -> anyhow::Result<String> {
    let roots = match config.estate.roots.as_slice() {
        [] => vec![".".to_owned()],
        configured => configured.to_vec(),
    };
    match locate(&roots, |uri| config.storage.options_for(uri)).await.map_err(failure)? {
        Located::Found(uri) => Ok(uri),
        Located::Absent { would_be } => Err(Failure::usage(format!("no registry at or above {}", roots.join(", ")))
            .remedy(format!("name one with --registry URI, or make one with `squire-registry init {would_be}`"))
            .into()),
    }
}

/// The exit code of an error of the registry: 2 for what was asked wrongly, 3 for what is refused or cannot be understood, 1
/// for what could not be tried.
pub(crate) fn failure(error: Error) -> Failure {
    let exit = match error.kind() {
        Kind::NotFound | Kind::Invalid => Exit::Usage,
        Kind::Refused | Kind::Conflict | Kind::Damaged => Exit::Failed,
        Kind::Transient | Kind::Permanent | Kind::LyingStore => Exit::CouldNotRun,
    };
    Failure::new(exit, error.to_string())
}
