//! Lance namespaces: catalogs that name datasets (design, "Authority"; facts/omnigraph 6).
//!
//! A directory namespace lies in the bucket itself: names by listing (v1), or rows of a `__manifest` table (v2). A REST namespace is
//! a server. Both are asked through Lance's own clients, and nothing here makes, migrates or changes one.

mod inventory;
mod standing;
mod token;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lance_namespace::error::{ErrorCode, NamespaceError};
use lance_namespace::{LanceNamespace, models};
use lance_namespace_impls::{ConnectBuilder, DirectoryNamespaceBuilder};
use object_store::ObjectStore as _;

pub use inventory::{Entry, Inventory, reserved};
pub(crate) use standing::{Backings, committer, staged_in_directory, standing};
pub use standing::{Managed, Standing, is_generated};

use crate::{Error, Kind, Lake, Result, contain, uri};

/// The name of a catalog's own table, below the root of what it names.
pub const MANIFEST: &str = "__manifest";
/// A server that says nothing for so long is not there. The REST client itself waits for ever.
const ANSWER: Duration = Duration::from_secs(30);
/// Names asked of a server at once.
const PAGE: i32 = 1_000;
/// What parts the names of an id in one string, unless a server is told another.
const DELIMITER: &str = "$";
/// The columns of a directory namespace's `__manifest`; other tables of that name are somebody else's (facts/omnigraph 6.5).
const COLUMNS: [&str; 5] = ["base_objects", "location", "metadata", "object_id", "object_type"];

/// Where a namespace keeps its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The directory itself: `<name>.lance` (v1).
    Listing,
    /// Rows of `__manifest`, and the directory (v2).
    Manifest,
    /// A server.
    Rest,
}

/// A namespace that can be asked.
#[derive(Debug, Clone)]
pub struct Namespace {
    client: Arc<dyn LanceNamespace>,
    at: String,
    source: Source,
    delimiter: String,
    page: Option<i32>,
}

/// What a `__manifest` beside datasets is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Catalog {
    /// There is none.
    None,
    /// A directory namespace's.
    Namespace,
    /// A graph's (OmniGraph).
    Graph,
}

/// What the `__manifest` right below a root is, by its schema (facts/omnigraph 6.5).
///
/// # Errors
/// `Permanent` for a table that is neither's, else as [`Lake::open`]: what cannot be read is not known.
pub async fn catalog(lake: &Lake, root: &str) -> Result<Catalog> {
    let at = uri::join(root, MANIFEST);
    let place = lake.place(&at).await?;
    match place.objects().list_with_delimiter(Some(&place.below("_versions")?)).await {
        Ok(listed) if listed.objects.is_empty() => return Ok(Catalog::None),
        Err(object_store::Error::NotFound { .. }) => return Ok(Catalog::None),
        Ok(_) => {}
        Err(e) => return Err(Error::store("looking for a catalog", &at, e)),
    }
    // Lance panics on some that are cut.
    let dataset = contain::contained(lake, "opening the catalog", &at, lake.open(&at)).await?;
    let schema = dataset.schema();
    let columns: BTreeSet<&str> = schema.fields.iter().map(|f| f.name.as_str()).collect();
    let graph = schema.metadata.keys().any(|k| k.starts_with("omnigraph:"))
        || columns.contains("stable_table_id")
        || columns.contains("table_key")
        || columns.contains("record");
    if graph {
        return Ok(Catalog::Graph);
    }
    if columns == BTreeSet::from(COLUMNS) {
        return Ok(Catalog::Namespace);
    }
    let names = columns.into_iter().collect::<Vec<_>>().join(", ");
    Err(Error::new(Kind::Permanent, format!("telling whose catalog it is by its columns ({names})"), at)
        .remedy("leave it to the program that wrote it"))
}

impl Namespace {
    /// The directory namespace of a root; `None` where the `__manifest` there is a graph's. Where there is none at all, it is the
    /// namespace of the directory's listing.
    ///
    /// # Errors
    /// As [`catalog`]; `Permanent` for a `__manifest` with feature flags that this build does not know.
    pub async fn directory(lake: &Lake, root: &str) -> Result<Option<Self>> {
        let source = match catalog(lake, root).await? {
            Catalog::None => Source::Listing,
            Catalog::Namespace => Source::Manifest,
            Catalog::Graph => return Ok(None),
        };
        Self::directory_of(lake, root, source, false).await.map(Some)
    }

    /// `commits`: versions are committed through it, as its own clients do that track them.
    async fn directory_of(lake: &Lake, root: &str, source: Source, commits: bool) -> Result<Self> {
        // Without the migration mode the rows of the root are not listed at all, and hash-named tables are invisible.
        let mut builder = DirectoryNamespaceBuilder::new(root)
            .session(lake.session())
            .dir_listing_to_manifest_migration_enabled(true)
            .manifest_enabled(source == Source::Manifest)
            .table_version_tracking_enabled(commits);
        let options = lake.options(root);
        if !options.is_empty() {
            builder = builder.storage_options(options);
        }
        let client = answered("opening the namespace", root, builder.build()).await?;
        let delimiter = DELIMITER.to_string();
        // A page of it costs what the whole costs.
        Ok(Self { client: Arc::new(client), at: root.to_string(), source, delimiter, page: None })
    }

    /// A REST namespace by its URL. Its headers (`header.authorization`), `token_file` (a bearer token, read at every request), TLS files
    /// (`tls.ssl_ca_cert`, `tls.cert_file`, `tls.key_file`) and `delimiter` are those of the storage options for the URL; object-store
    /// options of other stores do not reach it.
    ///
    /// # Errors
    /// `Permanent` for what is no `http` URL, for one that carries credentials, for options that do not fit together, and for a token
    /// that cannot be read.
    pub async fn rest(lake: &Lake, url: &str) -> Result<Self> {
        let url = url.trim_end_matches('/');
        squire_registry::check_namespace_url(url)
            .map_err(|e| Error::new(Kind::Permanent, "reading the namespace's URL", url).because(e))?;
        let ours = |key: &str| key.starts_with("header.") || key.starts_with("tls.") || key == "delimiter";
        let options = lake.options(url);
        let token = options.get("token_file").map(|path| token::TokenFile::at(path, url)).transpose()?;
        let mut properties: HashMap<String, String> = options.into_iter().filter(|(k, _)| ours(k)).collect();
        properties.insert("uri".into(), url.to_string());
        let delimiter = properties.get("delimiter").cloned().unwrap_or_else(|| DELIMITER.into());
        let mut connect = ConnectBuilder::new("rest").properties(properties);
        if let Some(token) = token {
            connect = connect.context_provider(Arc::new(token));
        }
        let client = answered("connecting to the namespace", url, connect.connect()).await?;
        Ok(Self { client, at: url.to_string(), source: Source::Rest, delimiter, page: Some(PAGE) })
    }

    /// The same, asked for at most so many names at once.
    pub fn in_pages_of(mut self, names: i32) -> Self {
        self.page = Some(names);
        self
    }

    /// The root or URL.
    pub fn at(&self) -> &str {
        &self.at
    }

    /// Where it keeps its names.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Whether it is there and turns these credentials away; asks for the names of the root.
    pub async fn denies(&self) -> bool {
        let request = models::ListNamespacesRequest { id: Some(Vec::new()), limit: self.page, ..Default::default() };
        let asked = self.ask("listing namespaces", &[], self.client.list_namespaces(request)).await;
        asked.is_err_and(|e| matches!(code(&e), Some(ErrorCode::PermissionDenied | ErrorCode::Unauthenticated)))
    }

    async fn describe_now(&self, id: &[String], vend: bool) -> Result<models::DescribeTableResponse> {
        let request = models::DescribeTableRequest {
            id: Some(id.to_vec()),
            check_declared: Some(!vend),
            vend_credentials: Some(vend),
            ..Default::default()
        };
        self.ask("describing a table", id, self.client.describe_table(request)).await
    }

    async fn ask<T>(
        &self,
        doing: &str,
        id: &[String],
        call: impl Future<Output = lance_namespace::Result<T>>,
    ) -> Result<T> {
        let subject = match id {
            [] => self.at.clone(),
            id => format!("{} in {}", shown(id), self.at),
        };
        answered(doing, &subject, call).await
    }
}

/// An id as a person reads it.
pub(crate) fn shown(id: &[String]) -> String {
    if id.is_empty() { "the root".into() } else { id.join("/") }
}

async fn answered<T>(doing: &str, subject: &str, call: impl Future<Output = lance_namespace::Result<T>>) -> Result<T> {
    match tokio::time::timeout(ANSWER, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(e)) => {
            let denied = matches!(code_of(&e), Some(ErrorCode::PermissionDenied | ErrorCode::Unauthenticated));
            let error = Error::lance(doing, subject, e);
            let remedy = "set its header in [storage.\"URL\"], for example \"header.authorization\" = \"Bearer …\", or token_file, and \
                          see that it has not ended";
            Err(if denied { error.remedy(remedy) } else { error })
        }
        Err(_) => Err(Error::new(Kind::Transient, doing, subject)
            .remedy(format!("it did not answer within {} s; see that it runs", ANSWER.as_secs()))),
    }
}

/// The protocol's own code of an error, however deep Lance has wrapped it.
pub(crate) fn code_of(e: &lance::Error) -> Option<ErrorCode> {
    let lance::Error::Namespace { source, .. } = e else { return None };
    match source.downcast_ref::<NamespaceError>() {
        Some(e) => Some(e.code()),
        None => code_of(source.downcast_ref::<lance::Error>()?),
    }
}

/// The protocol's code behind an error of ours.
fn code(e: &Error) -> Option<ErrorCode> {
    code_of(std::error::Error::source(e)?.downcast_ref::<lance::Error>()?)
}

/// The kind of failure that a code of the protocol is. The HTTP status beside it says less, and servers differ in it.
pub(crate) fn kind_of(code: ErrorCode) -> Kind {
    use ErrorCode as C;
    match code {
        C::NamespaceNotFound
        | C::TableNotFound
        | C::TableIndexNotFound
        | C::TableTagNotFound
        | C::TransactionNotFound
        | C::TableVersionNotFound
        | C::TableColumnNotFound
        | C::TableBranchNotFound => Kind::Open,
        C::NamespaceAlreadyExists
        | C::TableAlreadyExists
        | C::TableIndexAlreadyExists
        | C::TableTagAlreadyExists
        | C::TableBranchAlreadyExists
        | C::ConcurrentModification => Kind::Conflict,
        C::NamespaceNotEmpty => Kind::Refused,
        C::ServiceUnavailable | C::Throttling | C::Internal => Kind::Transient,
        C::Unsupported
        | C::InvalidInput
        | C::PermissionDenied
        | C::Unauthenticated
        | C::InvalidTableState
        | C::TableSchemaValidationError => Kind::Permanent,
    }
}
