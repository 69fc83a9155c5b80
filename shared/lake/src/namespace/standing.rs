//! Which namespace speaks for a dataset, and what it says.
//!
//! The roots that a REST namespace backs are told to the [`Lake`] from the registry's records. A directory namespace is found by
//! itself, and only where a name asks for it: a directory that such a namespace named (`<8 hex>_<id>`) without a row in its
//! `__manifest` was deregistered, or is being made. What a namespace says is asked anew at every look and every opening.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use lance::Dataset;
use lance::dataset::builder::DatasetBuilder;
use lance::io::commit::namespace_manifest::LanceNamespaceExternalManifestStore;
use lance_io::object_store::{LanceNamespaceStorageOptionsProvider, ObjectStoreParams, StorageOptionsAccessor};
use lance_namespace::{LanceNamespace, models};
use lance_table::io::commit::external_manifest::ExternalManifestCommitHandler;
use squire_registry::Snapshot;
use tokio::sync::Mutex;

use super::{Catalog, Inventory, Namespace, Source, catalog, shown};
use crate::handle::Place;
use crate::{Error, Kind, Lake, Result, uri};

/// How long it stays known which id lies where. What is not known within it is left alone.
const KNOWN: Duration = Duration::from_secs(300);
/// After which time a server is asked again that could not be asked, or not to its end; each further failure doubles it.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest of these times.
const AGAIN_AT_MOST: Duration = Duration::from_secs(60);

/// What a namespace says of a dataset.
#[derive(Debug, Clone)]
pub enum Standing {
    /// None speaks for it, or one names it and leaves its versions to Lance.
    Free,
    /// One commits its versions.
    Managed(Managed),
    /// The directory namespace around it does not name it: it was deregistered there, or is being made.
    Deregistered,
    /// What the namespace says cannot be relied on: it does not name the dataset, or could not be asked.
    Unclear {
        /// Why.
        why: String,
    },
}

/// A dataset whose versions a namespace commits.
#[derive(Debug, Clone)]
pub struct Managed {
    namespace: Namespace,
    id: Vec<String>,
}

impl Managed {
    /// Whether it is the directory namespace, whose versions are the files of `_versions/` and nothing else.
    pub fn is_directory(&self) -> bool {
        self.namespace.source != Source::Rest
    }

    /// The newest version that the namespace knows, and its manifest's path in the store.
    ///
    /// # Errors
    /// By the namespace's code; `Open` where it knows no version.
    pub async fn latest(&self) -> Result<(u64, String)> {
        let request = models::ListTableVersionsRequest {
            id: Some(self.id.clone()),
            descending: Some(true),
            limit: Some(1),
            ..Default::default()
        };
        let client = &self.namespace.client;
        let listed =
            self.namespace.ask("asking for the newest version", &self.id, client.list_table_versions(request)).await?;
        let newest = listed.versions.into_iter().next().ok_or_else(|| {
            let at = format!("{} in {}", shown(&self.id), self.namespace.at);
            Error::new(Kind::Open, "asking for the newest version", at)
        })?;
        Ok((u64::try_from(newest.version).unwrap_or_default(), newest.manifest_path))
    }

    /// Opens the dataset so that its versions are read from the namespace, and committed through it.
    pub(crate) async fn open(
        &self,
        lake: &Lake,
        place: &Place,
        routed: String,
        params: ObjectStoreParams,
        version: Option<u64>,
    ) -> lance::Result<Dataset> {
        let client = self.namespace.client.clone();
        let store = LanceNamespaceExternalManifestStore::new(client, self.id.clone(), place.path.clone());
        let handler = ExternalManifestCommitHandler { external_manifest_store: Arc::new(store) };
        let mut builder = DatasetBuilder::from_uri(routed)
            .with_session(lake.session())
            .with_store_params(params)
            .with_commit_handler(Arc::new(handler));
        if let Some(version) = version {
            builder = builder.with_version(version);
        }
        builder.load().await
    }
}

/// The roots that REST namespaces back, and what is remembered of the datasets in them.
#[derive(Debug, Default)]
pub(crate) struct Backings {
    roots: RwLock<BTreeMap<String, Arc<Backing>>>,
    /// By dataset, what a namespace lends to reach it with.
    lent: RwLock<BTreeMap<String, Arc<StorageOptionsAccessor>>>,
    /// Datasets that a directory namespace commits for.
    directory: RwLock<BTreeMap<String, Managed>>,
}

#[derive(Debug)]
struct Backing {
    url: String,
    known: Mutex<Remembered>,
}

/// What a server said when it was asked last.
#[derive(Debug, Default)]
struct Remembered {
    told: Option<std::result::Result<Arc<Known>, String>>,
    /// When it is asked again.
    until: Option<Instant>,
    /// How often in a row it could not be asked, or not to its end.
    failures: u32,
}

#[derive(Debug)]
struct Known {
    namespace: Namespace,
    inventory: Inventory,
}

impl Backings {
    fn of(&self, uri: &str) -> Option<Arc<Backing>> {
        let roots = self.roots.read().unwrap_or_else(PoisonError::into_inner);
        let around = roots.iter().filter(|(root, _)| uri::within(uri, root));
        around.max_by_key(|(root, _)| root.len()).map(|(_, backing)| backing.clone())
    }

    /// Whether a server may commit for what lies there.
    pub(crate) fn covers(&self, uri: &str) -> bool {
        self.of(uri).is_some()
    }

    /// What a namespace lends to reach a dataset with.
    pub(crate) fn lent(&self, uri: &str) -> Option<Arc<StorageOptionsAccessor>> {
        let lent = self.lent.read().unwrap_or_else(PoisonError::into_inner);
        lent.iter().find(|(dataset, _)| uri::within(uri, dataset)).map(|(_, accessor)| accessor.clone())
    }

    fn lend(&self, dataset: &str, accessor: Option<Arc<StorageOptionsAccessor>>) {
        let mut lent = self.lent.write().unwrap_or_else(PoisonError::into_inner);
        match accessor {
            Some(accessor) => lent.insert(dataset.to_string(), accessor),
            None => lent.remove(dataset),
        };
    }
}

impl Lake {
    /// Takes from the registry which warehouses a REST namespace backs. To be told each snapshot: what is not told is taken for
    /// Lance's own.
    pub fn backed_by(&self, snapshot: &Snapshot) {
        let mut told: BTreeMap<String, String> = BTreeMap::new();
        for w in snapshot.warehouses() {
            let Some(url) = &w.fields.namespace else { continue };
            let known = told.entry(w.fields.root.clone()).or_insert_with(|| url.clone());
            if known != url {
                // Which of the two commits cannot be told: what is no URL cannot be asked, and nothing is written there.
                *known = format!("{known} and {url}");
            }
        }
        let mut roots = self.backings().roots.write().unwrap_or_else(PoisonError::into_inner);
        roots.retain(|root, backing| told.get(root) == Some(&backing.url));
        for (root, url) in told {
            roots.entry(root).or_insert_with(|| Arc::new(Backing { url, known: Mutex::default() }));
        }
    }
}

impl Backing {
    async fn known(&self, lake: &Lake) -> std::result::Result<Arc<Known>, String> {
        let mut known = self.known.lock().await;
        if let Some(told) = known.told.as_ref().filter(|_| known.until.is_some_and(|until| Instant::now() < until)) {
            return told.clone();
        }
        let told = match Namespace::rest(lake, &self.url).await {
            Ok(namespace) => {
                let inventory = namespace.inventory().await;
                Ok(Arc::new(Known { namespace, inventory }))
            }
            Err(e) => Err(e.to_string()),
        };
        let inventory = told.as_ref().ok().map(|known| &known.inventory);
        known.failures =
            if inventory.is_some_and(Inventory::is_complete) { 0 } else { known.failures.saturating_add(1) };
        known.until = Some(Instant::now() + remembered_for(inventory, known.failures));
        known.told = Some(told.clone());
        told
    }

    async fn standing(&self, lake: &Lake, uri: &str) -> Standing {
        let known = match self.known(lake).await {
            Ok(known) => known,
            Err(why) => return Standing::Unclear { why },
        };
        let mut standing = None;
        for entry in known.inventory.at(uri) {
            match self.asked(lake, &known.namespace, &entry.id, uri).await {
                // Of two names of one place, the one with an authority over it counts.
                Standing::Managed(managed) => return Standing::Managed(managed),
                unclear @ Standing::Unclear { .. } => return unclear,
                other => standing = Some(other),
            }
        }
        standing.unwrap_or_else(|| {
            let why = match known.inventory.unread.first() {
                Some((what, why)) => format!("the namespace at {} could not be read ({what}: {why})", self.url),
                None => format!("the namespace at {} does not name it", self.url),
            };
            Standing::Unclear { why }
        })
    }

    async fn asked(&self, lake: &Lake, namespace: &Namespace, id: &[String], uri: &str) -> Standing {
        let described = match namespace.describe_now(id, true).await {
            Ok(described) => described,
            Err(e) => return Standing::Unclear { why: e.to_string() },
        };
        let location = described.location.as_deref().or(described.table_uri.as_deref()).unwrap_or_default();
        if !uri::canonical(location).is_ok_and(|at| at == uri) {
            return Standing::Unclear { why: format!("{} in {} lies elsewhere now", shown(id), namespace.at) };
        }
        let lent = described.storage_options.filter(|o| !o.is_empty());
        let client: &Arc<dyn LanceNamespace> = &namespace.client;
        lake.backings().lend(uri, lent.map(|lent| accessor(lake.options(uri), lent, client.clone(), id)));
        match described.managed_versioning {
            Some(true) => Standing::Managed(Managed { namespace: namespace.clone(), id: id.to_vec() }),
            _ => Standing::Free,
        }
    }
}

/// How long an answer is relied on: a whole one for [`KNOWN`]; after a failure until the server is asked again, and never sooner
/// than a second for each thing that it was asked about, so that a large one with one table that it cannot describe is no burden.
fn remembered_for(inventory: Option<&Inventory>, failures: u32) -> Duration {
    if failures == 0 {
        return KNOWN;
    }
    let asked = inventory.map_or(0, |i| i.namespaces.len() + i.tables.len() + i.unread.len());
    let pause = AGAIN.saturating_mul(1 << (failures - 1).min(6)).min(AGAIN_AT_MOST);
    pause.max(Duration::from_secs(asked as u64)).min(KNOWN)
}

/// The configuration's options and over them what the namespace lends, asked for again before it ends.
fn accessor(
    own: HashMap<String, String>,
    lent: HashMap<String, String>,
    client: Arc<dyn LanceNamespace>,
    id: &[String],
) -> Arc<StorageOptionsAccessor> {
    let mut initial = own;
    initial.extend(lent);
    let provider = LanceNamespaceStorageOptionsProvider::new(client, id.to_vec());
    Arc::new(StorageOptionsAccessor::with_initial_and_provider(initial, Arc::new(provider)))
}

/// What a namespace says of the dataset at a canonical URI, asked for now.
pub(crate) async fn standing(lake: &Lake, uri: &str) -> Standing {
    match lake.backings().of(uri) {
        Some(backing) => backing.standing(lake, uri).await,
        None if hashed(uri).is_some() => Box::pin(in_directory(lake, uri)).await,
        None => Standing::Free,
    }
}

/// Who commits for a dataset that is to be opened: a server, or a directory namespace that a look found to.
///
/// # Errors
/// `Transient` where the namespace cannot be asked: then nothing is opened around it.
pub(crate) async fn committer(lake: &Lake, uri: &str) -> Result<Option<Managed>> {
    let Some(backing) = lake.backings().of(uri) else {
        let directory = lake.backings().directory.read().unwrap_or_else(PoisonError::into_inner);
        return Ok(directory.get(uri).cloned());
    };
    match backing.standing(lake, uri).await {
        Standing::Managed(managed) => Ok(Some(managed)),
        _ => Ok(None),
    }
}

/// Whether a directory has a name that a directory namespace gives (`<8 hex>_<id>`), and not a person.
pub fn is_generated(uri: &str) -> bool {
    hashed(uri).is_some()
}

/// The root and the id of a directory that a directory namespace named.
fn hashed(uri: &str) -> Option<(&str, Vec<String>)> {
    let (root, last) = uri.rsplit_once('/')?;
    let name = uri::segment(last)?;
    let (hash, id) = name.split_once('_')?;
    let is_hash = hash.len() == 8 && hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    (is_hash && !id.is_empty()).then(|| (root, id.split(super::DELIMITER).map(String::from).collect()))
}

async fn in_directory(lake: &Lake, uri: &str) -> Standing {
    let Some((root, id)) = hashed(uri) else { return Standing::Free };
    let namespace = match catalog(lake, root).await {
        Ok(Catalog::None | Catalog::Graph) => return Standing::Free,
        Ok(Catalog::Namespace) => Namespace::directory(lake, root).await,
        Err(e) => Err(e),
    };
    let namespace = match namespace {
        Ok(Some(namespace)) => namespace,
        Ok(None) => return Standing::Free,
        Err(e) => return Standing::Unclear { why: e.to_string() },
    };
    match namespace.entry(&id).await {
        Ok(entry) if entry.uri == uri => return Standing::Free,
        Err(e) if e.kind() != Kind::Open => return Standing::Unclear { why: e.to_string() },
        _ => {}
    }
    // Its own name leads elsewhere: another may lead here.
    let inventory = namespace.inventory().await;
    match (inventory.at(uri).next(), inventory.unread.first()) {
        (Some(_), _) => Standing::Free,
        (None, None) => Standing::Deregistered,
        (None, Some((what, why))) => {
            Standing::Unclear { why: format!("the namespace at {root} could not be read ({what}: {why})") }
        }
    }
}

/// The directory namespace that commits for a dataset with staging manifests, where one names it: they are what its commits
/// leave behind.
pub(crate) async fn staged_in_directory(lake: &Lake, uri: &str) -> Option<Managed> {
    let (root, last) = uri.rsplit_once('/')?;
    let id = match hashed(uri) {
        Some((_, id)) => id,
        None => vec![uri::segment(last)?.strip_suffix(".lance")?.to_string()],
    };
    if catalog(lake, root).await.ok()? != Catalog::Namespace {
        return None;
    }
    let namespace = Namespace::directory_of(lake, root, Source::Manifest, true).await.ok()?;
    let entry = namespace.entry(&id).await.ok()?;
    let managed = Managed { namespace, id };
    let found = (entry.uri == uri).then_some(managed)?;
    let mut directory = lake.backings().directory.write().unwrap_or_else(PoisonError::into_inner);
    directory.insert(uri.to_string(), found.clone());
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_failed_is_asked_again_soon_and_a_large_one_not_too_often() {
        let seconds = |inventory: Option<&Inventory>, failures| remembered_for(inventory, failures).as_secs();
        let away = Inventory { unread: vec![("the root".into(), "away".into())], ..Inventory::default() };
        for inventory in [None, Some(&away)] {
            let pauses: Vec<u64> = (1..10).map(|n| seconds(inventory, n)).collect();
            assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        }
        assert_eq!(seconds(None, u32::MAX), 60);
        assert_eq!(seconds(Some(&Inventory::default()), 0), 300, "what is whole");
        let part = |unread: usize| Inventory { unread: vec![away.unread[0].clone(); unread], ..Inventory::default() };
        assert_eq!(seconds(Some(&part(100)), 1), 100);
        assert_eq!(seconds(Some(&part(5_000)), 1), 300);
    }
}
