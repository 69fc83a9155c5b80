//! Warehouses: one bucket, prefix or directory each, and the server that names its tables, where there is one.

use crate::error::{Error, Result};
use crate::generation::Change;
use crate::hierarchy::{exists, missing, shape};
use crate::record::{Project, Warehouse};
use crate::registry::Registry;
use crate::snapshot::Snapshot;
use crate::storage::{Root, StorageOptions, canonical_uri, local_path, within};
use crate::subject::Subject;

/// A warehouse to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewWarehouse<'a> {
    /// Its id.
    pub id: &'a str,
    /// The project that owns it.
    pub project: &'a str,
    /// The bucket, prefix or directory.
    pub root: &'a str,
    /// Whether nobody outside the estate reads or clones from it.
    pub exclusive: bool,
    /// The URL of the Lance REST namespace that names its tables.
    pub namespace: Option<&'a str>,
}

/// Whether a text is the URL of a namespace's server: `http` or `https`, a host, and no credentials, which have no place in a record.
///
/// # Errors
/// [`Error::Invalid`], which says what is wrong.
pub fn check_namespace_url(url: &str) -> Result<()> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let wrong = match rest {
        None => "it begins with neither http:// nor https://",
        Some(rest) if rest.split('/').next().unwrap_or_default().is_empty() => "it names no host",
        Some(rest) if rest.split('/').next().unwrap_or_default().contains('@') => {
            "it carries credentials; set them in [storage.\"URL\"] of the configuration"
        }
        Some(rest) if rest.contains(['?', '#']) || rest.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            "it is more than an address and a path"
        }
        Some(_) => return Ok(()),
    };
    // What it carries is not repeated.
    let shown = if wrong.contains("credentials") { "the URL" } else { url };
    Err(Error::Invalid(format!("{shown} is no namespace: {wrong}")))
}

impl Registry {
    /// Makes a warehouse over a root, and marks the root as this estate's. Probes the bucket first.
    ///
    /// # Errors
    /// [`Error::Missing`] without the project, [`Error::OtherEstate`] when the root or a place above it is marked as another estate's,
    /// [`Error::LyingStore`], [`Error::Exists`], and [`Error::Invalid`] for a root inside the registry.
    pub async fn warehouse_create(
        &self,
        id: &str,
        project: &str,
        root_uri: &str,
        exclusive: bool,
        options: &StorageOptions,
        reason: Option<&str>,
    ) -> Result<()> {
        let new = NewWarehouse { id, project, root: root_uri, exclusive, namespace: None };
        self.warehouse_make(new, options, reason).await
    }

    /// The same, also with a namespace.
    ///
    /// # Errors
    /// As [`Registry::warehouse_create`]; [`Error::Invalid`] for a namespace that [`check_namespace_url`] refuses, and
    /// [`Error::Refused`] where another server names the same root.
    pub async fn warehouse_make(
        &self,
        new: NewWarehouse<'_>,
        options: &StorageOptions,
        reason: Option<&str>,
    ) -> Result<()> {
        let NewWarehouse { id, project, root, exclusive, namespace } = new;
        shape(id)?;
        let namespace = namespace.map(|url| url.trim_end_matches('/').to_owned());
        namespace.as_deref().map_or(Ok(()), check_namespace_url)?;
        let uri = canonical_uri(root)?;
        if within(&uri, self.uri()) {
            return Err(Error::Invalid(format!("{uri} lies in the registry; a warehouse needs a place of its own")));
        }
        if let Some(dir) = local_path(&uri)
            && !dir.is_dir()
        {
            return Err(Error::Invalid(format!(
                "{} is no directory; make it first, or correct the root",
                dir.display()
            )));
        }
        self.parent::<Project>(&Subject::Project(project.to_owned())).await?;
        let subject = Subject::Warehouse(id.to_owned());
        if self.load::<Warehouse>(&subject.id()).await?.is_some() {
            return Err(exists(&subject));
        }
        refuse_other_server(&self.snapshot().await?, &subject, &uri, namespace.as_deref())?;
        let root = Root::open(&uri, options)?;
        // A marker above covers what lies below it: two estates would maintain the same bytes.
        let markers = crate::identity::markers_above(&uri, options).await?;
        if let Some((root, marked)) = markers.into_iter().find(|(_, marked)| *marked != self.id()) {
            return Err(Error::OtherEstate { root, marked, ours: self.id() });
        }
        self.probe_root(&root).await?;
        self.mark(&root).await?;
        let project_id = project.to_owned();
        let fields = Warehouse { project: project_id, root: uri, active: true, exclusive, namespace, deleting: false };
        self.create(&subject, fields.clone(), reason).await?;
        self.keep_if_parent::<Project, Warehouse>(&Subject::Project(project.to_owned()), &subject).await?;
        if let Err(e) = self.still_one_server(&subject, &fields).await {
            self.remove::<Warehouse>(&subject.id(), Some("another server came to name its root")).await?;
            return Err(e);
        }
        Ok(())
    }

    /// Of two that give one root two servers at the same time, at least one sees the other here.
    async fn still_one_server(&self, subject: &Subject, written: &Warehouse) -> Result<()> {
        match written.namespace.as_deref() {
            None => Ok(()),
            url => refuse_other_server(&self.snapshot().await?, subject, &written.root, url),
        }
    }

    /// Sets the URL of the Lance REST namespace that names a warehouse's tables, or takes it away. `was` is what the caller made
    /// sure of with the servers, which the registry does not ask.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Invalid`] for a URL that [`check_namespace_url`] refuses, [`Error::Refused`] where another
    /// warehouse over the same root is backed by another server, [`Error::LostRace`] where it is not `was` any more.
    pub async fn warehouse_set_namespace(
        &self,
        id: &str,
        was: Option<&str>,
        url: Option<&str>,
        reason: Option<&str>,
    ) -> Result<()> {
        let subject = Subject::Warehouse(id.to_owned());
        let url = url.map(|url| url.trim_end_matches('/').to_owned());
        url.as_deref().map_or(Ok(()), check_namespace_url)?;
        let root = self.load::<Warehouse>(&subject.id()).await?.ok_or_else(|| missing(&subject, ""))?;
        refuse_other_server(&self.snapshot().await?, &subject, &root.fields.root, url.as_deref())?;
        let mut ours = false;
        let put = self
            .change::<Warehouse>(&subject.id(), reason, |current| {
                let record = current.ok_or_else(|| missing(&subject, ""))?;
                ours = record.fields.namespace != url;
                if !ours {
                    return Ok(Change::Keep);
                }
                if record.fields.namespace.as_deref() != was {
                    return Err(Error::LostRace { what: subject.to_string(), attempts: 1 });
                }
                Ok(Change::Put(Warehouse { namespace: url.clone(), ..record.fields.clone() }))
            })
            .await?;
        let Some(put) = put.filter(|_| ours) else { return Ok(()) };
        let Err(e) = self.still_one_server(&subject, &put.fields).await else { return Ok(()) };
        let back = Some("another server came to name its root");
        self.change::<Warehouse>(&subject.id(), back, |current| match current {
            Some(found) if found.meta.nonce == put.meta.nonce => {
                Ok(Change::Put(Warehouse { namespace: was.map(str::to_owned), ..found.fields.clone() }))
            }
            _ => Ok(Change::Keep),
        })
        .await?;
        Err(e)
    }

    /// Activates or deactivates a warehouse. Its tables are then skipped as `warehouse_inactive`.
    ///
    /// # Errors
    /// [`Error::Missing`].
    pub async fn warehouse_set_active(&self, id: &str, active: bool, reason: Option<&str>) -> Result<()> {
        let subject = Subject::Warehouse(id.to_owned());
        self.change::<Warehouse>(&subject.id(), reason, |current| {
            let record = current.ok_or_else(|| missing(&subject, ""))?;
            if record.fields.active == active {
                return Ok(Change::Keep);
            }
            Ok(Change::Put(Warehouse { active, ..record.fields.clone() }))
        })
        .await?;
        Ok(())
    }
}

/// One root is named by one server: which of two commits for a table could not be told.
fn refuse_other_server(snapshot: &Snapshot, subject: &Subject, root: &str, url: Option<&str>) -> Result<()> {
    let Some(url) = url else { return Ok(()) };
    let other = snapshot
        .warehouses()
        .filter(|w| w.fields.root == root && w.meta.id != subject.id())
        .find_map(|w| Some((w, w.fields.namespace.as_deref().filter(|theirs| *theirs != url)?)));
    match other {
        Some((w, theirs)) => Err(Error::Refused(format!(
            "warehouse/{} over the same root, {root}, is named by {theirs}; a root has one namespace",
            w.meta.id
        ))),
        None => Ok(()),
    }
}
