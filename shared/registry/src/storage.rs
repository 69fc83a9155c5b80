//! Object stores from URIs and options, and canonical URIs.

use std::collections::HashMap;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, ObjectStoreScheme, PutMode, PutOptions, RetryConfig};
use url::Url;

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::http::Observed;
use crate::local::DurableLocal;

/// Options of an object store, by the keys that Lance takes (`aws_access_key_id`, `aws_endpoint`, `allow_http`, ...).
pub type StorageOptions = HashMap<String, String>;

/// One request, with all its retries, ends within this time (two such spans bound a put: the last attempt may start
/// when the first has just run out).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// How a conditional put ended, as far as the store told.
#[derive(Debug)]
pub(crate) enum PutOutcome {
    /// The store said that it created the object.
    Created,
    /// The store said that an object was there, or a concurrent create was under way.
    Refused,
    /// The store's answer does not tell whether the object was created.
    Unknown(object_store::Error),
}

/// A place in an object store: a bucket with a prefix, or a local directory.
#[derive(Debug, Clone)]
pub struct Root {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    uri: String,
    local: bool,
    bucket: Option<Bucket>,
}

impl Root {
    /// Opens the place that `uri` names; makes no request and creates nothing.
    ///
    /// Remote stores take their settings from the environment (`AWS_*`, `AZURE_*`, `GOOGLE_*`) and then from `options`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no URI or path, [`Error::Store`] for settings the client refuses.
    pub fn open(uri: &str, options: &StorageOptions) -> Result<Self> {
        let canonical = canonical_uri(uri)?;
        if let Some(path) = local_path(&canonical) {
            let prefix = Path::from_absolute_path(&path)
                .map_err(|e| Error::Invalid(format!("the directory {} cannot be used: {e}", path.display())))?;
            return Ok(Self {
                store: Arc::new(DurableLocal::new()),
                prefix,
                uri: canonical,
                local: true,
                bucket: None,
            });
        }
        let url = Url::parse(&canonical).map_err(|e| Error::Invalid(format!("`{uri}` is not a URI: {e}")))?;
        let (scheme, prefix) = ObjectStoreScheme::parse(&url)
            .map_err(|e| Error::Invalid(format!("`{uri}`: {e}; write s3://..., gs://..., az://..., or a directory")))?;
        let (store, bucket) = remote(&scheme, &canonical, options)?;
        Ok(Self { store, prefix, uri: canonical, local: false, bucket })
    }

    /// A place in a store that the caller built, such as a wrapper that counts or fails requests.
    pub fn with_store(store: Arc<dyn ObjectStore>, prefix: Path, uri: impl Into<String>) -> Self {
        Self { store, prefix, uri: uri.into(), local: false, bucket: None }
    }

    /// The same place through another store, keeping prefix and address.
    pub fn map_store(&self, wrap: impl FnOnce(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore>) -> Self {
        Self { store: wrap(self.store.clone()), ..self.clone() }
    }

    /// The canonical URI.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Whether this is a local directory.
    pub fn is_local(&self) -> bool {
        self.local
    }

    /// The bucket's own settings, where the store tells them.
    pub(crate) fn settings(&self) -> Option<&Bucket> {
        self.bucket.as_ref()
    }

    /// The place's prefix in its bucket.
    pub(crate) fn prefix(&self) -> &str {
        self.prefix.as_ref()
    }

    /// What the probe answers for: the bucket (with its endpoint's scheme), or the local directory.
    pub fn bucket(&self) -> String {
        if self.local {
            return self.uri.clone();
        }
        bucket_of(&self.uri)
    }

    /// The place one level up; `None` at the top of a bucket or file system.
    pub fn parent(&self) -> Option<Self> {
        let uri = parent_uri(&self.uri)?;
        let parts: Vec<_> = self.prefix.parts().collect();
        let (_, above) = parts.split_last()?;
        let prefix = above.iter().cloned().collect();
        Some(Self { prefix, uri, ..self.clone() })
    }

    /// A place below this one.
    pub fn child(&self, name: &str) -> Self {
        let uri = join_uri(&self.uri, name);
        Self { prefix: self.path(&[name]).unwrap_or_else(|_| self.prefix.clone().join(name)), uri, ..self.clone() }
    }

    /// The object path of plain segments below this place. `Path::parse` and not `Path::from`, which would encode the
    /// percent signs of keys once more.
    pub(crate) fn path(&self, segments: &[&str]) -> Result<Path> {
        let mut raw = self.prefix.as_ref().to_owned();
        for segment in segments {
            if !raw.is_empty() {
                raw.push('/');
            }
            raw.push_str(segment);
        }
        Path::parse(&raw).map_err(|e| Error::Invalid(format!("`{raw}` is no object path: {e}")))
    }

    /// All objects below a path, in no particular order; nothing there is an empty list.
    pub(crate) async fn list(&self, path: &Path) -> Result<Vec<ObjectMeta>> {
        match self.store.list(Some(path)).try_collect().await {
            Ok(found) => Ok(found),
            Err(object_store::Error::NotFound { .. }) => Ok(Vec::new()),
            Err(e) => Err(Error::store(format!("listing {} of {}", path, self.uri), e)),
        }
    }

    /// The objects below a path as long as `wanted` says so of each, in the store's order; a local directory has none, and
    /// is looked through.
    pub(crate) async fn list_while(
        &self,
        path: &Path,
        wanted: impl Fn(&ObjectMeta) -> bool,
    ) -> Result<Vec<ObjectMeta>> {
        if self.local {
            return Ok(self.list(path).await?.into_iter().filter(wanted).collect());
        }
        let listed = self.store.list(Some(path)).try_take_while(|meta| std::future::ready(Ok(wanted(meta))));
        listed.try_collect().await.map_err(|e| Error::store(format!("listing {} of {}", path, self.uri), e))
    }

    /// The names of the directories and of the objects directly below a path; nothing there is two empty lists.
    pub(crate) async fn level(&self, path: &Path) -> Result<(Vec<String>, Vec<String>)> {
        let names = |paths: &[Path]| paths.iter().filter_map(|p| p.filename().map(str::to_owned)).collect();
        match self.store.list_with_delimiter(Some(path)).await {
            Ok(found) => {
                let objects: Vec<Path> = found.objects.into_iter().map(|o| o.location).collect();
                Ok((names(&found.common_prefixes), names(&objects)))
            }
            Err(object_store::Error::NotFound { .. }) => Ok(<_>::default()),
            Err(e) => Err(Error::store(format!("listing {} of {}", path, self.uri), e)),
        }
    }

    /// Whether any object is below a path.
    pub(crate) async fn any_below(&self, path: &Path) -> Result<bool> {
        match self.store.list(Some(path)).try_next().await {
            Ok(found) => Ok(found.is_some()),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(e) => Err(Error::store(format!("listing {} of {}", path, self.uri), e)),
        }
    }

    /// The bytes of an object; `None` when it is not there.
    pub(crate) async fn get(&self, path: &Path) -> Result<Option<Bytes>> {
        let doing = || format!("reading {} of {}", path, self.uri);
        match self.store.get(path).await {
            Ok(found) => found.bytes().await.map(Some).map_err(|e| Error::store(doing(), e)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(Error::store(doing(), e)),
        }
    }

    /// Put-if-absent. Never retried here: whether an unknown outcome took effect is for the caller to find out.
    pub(crate) async fn create(&self, path: &Path, bytes: Bytes) -> PutOutcome {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.store.put_opts(path, bytes.into(), options).await {
            Ok(_) => PutOutcome::Created,
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                PutOutcome::Refused
            }
            Err(e) => PutOutcome::Unknown(e),
        }
    }

    /// An unconditional put; the version that the store gave it, where it keeps versions.
    pub(crate) async fn put(&self, path: &Path, bytes: Bytes) -> Result<Option<String>> {
        let done = self.store.put(path, bytes.into()).await;
        done.map(|put| put.version).map_err(|e| Error::store(format!("writing {} of {}", path, self.uri), e))
    }

    /// A copy within the store.
    pub(crate) async fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        self.store.copy(from, to).await.map_err(|e| Error::store(format!("copying {} of {}", from, self.uri), e))
    }

    /// Deletes one object; nothing there is fine.
    pub(crate) async fn delete(&self, path: &Path) -> Result<()> {
        match self.store.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(Error::store(format!("deleting {} of {}", path, self.uri), e)),
        }
    }
}

fn bucket_of(uri: &str) -> String {
    match Url::parse(uri) {
        Ok(url) => format!("{}://{}", url.scheme(), url.authority()),
        Err(_) => uri.to_owned(),
    }
}

type Opened = (Arc<dyn ObjectStore>, Option<Bucket>);

fn remote(scheme: &ObjectStoreScheme, uri: &str, options: &StorageOptions) -> Result<Opened> {
    let retry = RetryConfig { max_retries: 4, retry_timeout: REQUEST_TIMEOUT, ..RetryConfig::default() };
    let mut settings: Vec<(String, &String)> = options.iter().map(|(k, v)| (k.to_ascii_lowercase(), v)).collect();
    let timeout = format!("{}s", REQUEST_TIMEOUT.as_secs());
    // Ours comes first, so that a timeout given by hand wins.
    settings.insert(0, ("timeout".to_owned(), &timeout));
    let observed = Observed { bucket: bucket_of(uri), ..Observed::default() };
    macro_rules! build {
        ($builder:ty) => {{
            let mut builder =
                <$builder>::from_env().with_url(uri).with_retry(retry).with_http_connector(observed.clone());
            for (key, value) in &settings {
                // Lance passes options of its own in the same map; what the client does not know is not for it.
                if let Ok(key) = key.parse() {
                    builder = builder.with_config(key, value.as_str());
                }
            }
            builder.build().map(Arc::new)
        }};
    }
    let built = match scheme {
        ObjectStoreScheme::AmazonS3 => build!(AmazonS3Builder).map(|s3| {
            let bucket = observed.client().map(|client| Bucket { signer: s3.clone(), client });
            (s3 as Arc<dyn ObjectStore>, bucket)
        }),
        ObjectStoreScheme::MicrosoftAzure => build!(MicrosoftAzureBuilder).map(|s| (s as _, None)),
        ObjectStoreScheme::GoogleCloudStorage => build!(GoogleCloudStorageBuilder).map(|s| (s as _, None)),
        ObjectStoreScheme::Memory => Ok((Arc::new(object_store::memory::InMemory::new()) as _, None)),
        other => {
            return Err(Error::Invalid(format!(
                "`{uri}`: records cannot be kept on {other:?}; write s3://..., gs://..., az://..., or a directory"
            )));
        }
    };
    built.map_err(|e| Error::store(format!("opening {uri}"), e))
}

/// The canonical form of a URI or path: local paths are made absolute with symlinks resolved as far as they exist and
/// become `file:///...`; other URIs lose empty segments and trailing slashes. Odd bytes are percent-encoded as a URL
/// has them. One dataset has one canonical URI, whatever link or spelling led to it.
///
/// # Errors
/// [`Error::Invalid`] for what is neither.
pub fn canonical_uri(text: &str) -> Result<String> {
    if text.is_empty() {
        return Err(Error::Invalid("an empty text is no location; write a directory or a URI".into()));
    }
    if let Some(path) = local_path(text) {
        if text.starts_with("file:")
            && let Ok(url) = Url::parse(text)
        {
            whole(text, &url)?;
        }
        let absolute = resolve(&path)?;
        let url = Url::from_file_path(&absolute)
            .map_err(|()| Error::Invalid(format!("`{text}` is no absolute path; write a directory or a URI")))?;
        let trimmed = url.as_str().trim_end_matches('/');
        return Ok(if trimmed == "file:" { "file:///".to_owned() } else { trimmed.to_owned() });
    }
    let url = Url::parse(text).map_err(|e| {
        Error::Invalid(format!("`{text}` is not a URI ({e}); write s3://bucket/prefix, gs://..., az://... or a path"))
    })?;
    whole(text, &url)?;
    let mut out = format!("{}://{}", url.scheme(), url.authority());
    for segment in url.path().split('/').filter(|s| !s.is_empty()) {
        out.push('/');
        out.push_str(segment);
    }
    Ok(out)
}

/// What is no part of a location must not be cut off in silence: what is left names another place.
fn whole(text: &str, url: &Url) -> Result<()> {
    let hint = match (url.query(), url.fragment()) {
        _ if text.contains(char::is_control) => "tabs, line ends and their like as %09, %0A and so on",
        _ if url.password().is_some() => {
            // What it carries is not repeated.
            return Err(Error::Invalid(
                "a URI carries a password; set credentials in [storage] of the configuration".into(),
            ));
        }
        (Some(_), _) => "a literal `?` as %3F",
        (None, Some(_)) => "a literal `#` as %23",
        (None, None) => return Ok(()),
    };
    Err(Error::Invalid(format!("`{text}` is more than a location; write {hint}")))
}

/// The local path that a text names, if it is one: a plain path or `file:...`.
pub fn local_path(text: &str) -> Option<PathBuf> {
    if let Some(rest) = text.strip_prefix("file:") {
        return match Url::parse(text).ok().and_then(|url| url.to_file_path().ok()) {
            Some(path) => Some(path),
            None => Some(PathBuf::from(rest.trim_start_matches("//"))),
        };
    }
    (!text.contains("://")).then(|| PathBuf::from(text))
}

fn resolve(path: &FsPath) -> Result<PathBuf> {
    let absolute =
        std::path::absolute(path).map_err(|e| Error::io(format!("resolving the path {}", path.display()), e))?;
    let mut missing = Vec::new();
    let mut at = absolute.as_path();
    loop {
        match std::fs::canonicalize(at) {
            Ok(mut found) => {
                found.extend(missing.iter().rev());
                return Ok(found);
            }
            Err(_) => match (at.parent(), at.file_name()) {
                (Some(parent), Some(name)) => {
                    missing.push(name.to_os_string());
                    at = parent;
                }
                _ => return Ok(absolute),
            },
        }
    }
}

/// The canonical URI one level up; `None` at the top of a bucket or file system.
pub(crate) fn parent_uri(uri: &str) -> Option<String> {
    let rest = uri.split_once("://")?.1;
    let (above, last) = uri.rsplit_once('/')?;
    if last.is_empty() || !rest.contains('/') {
        return None;
    }
    Some(if above == "file://" { "file:///".to_owned() } else { above.to_owned() })
}

/// A canonical URI with relative segments added, percent-encoded as a URL has them. `.` and `..` are no names in a store, and a URL
/// cannot spell them: they add nothing.
pub fn join_uri(uri: &str, relative: &str) -> String {
    let mut out = if uri == "file:///" { "file://".to_owned() } else { uri.trim_end_matches('/').to_owned() };
    for segment in relative.split('/').filter(|s| !matches!(*s, "" | "." | "..")) {
        // As a path, and not as a part of a URL's text, of which tabs and line ends are dropped: `a\tb` is not `ab`.
        if let Ok(url) = Url::from_file_path(format!("/{segment}")) {
            out.push_str(url.path());
        }
    }
    out
}

/// Whether `uri` is `root` itself or lies below it; both canonical.
pub fn within(uri: &str, root: &str) -> bool {
    if root == "file:///" {
        return uri.starts_with("file:///");
    }
    uri.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_joined_is_canonical_and_stays_below() {
        assert_eq!(join_uri("s3://lake/root", "../%2e%2e/./x y"), "s3://lake/root/%252e%252e/x%20y");
        assert_eq!(join_uri("file:///", "a//b/"), "file:///a/b");
        assert_eq!(join_uri("s3://lake", "a\tb/\n"), "s3://lake/a%09b/%0A");
        // However a dataset is found, it has one URI.
        for odd in ["a\tb", "a b", "a%b", "a#b", "a?b", "a\\b", "ü$~^|{}`\"<>[]&+=@:;,!*'()", "..a", "a\u{1}\u{7f}b"] {
            assert_eq!(Ok(join_uri("file:///x", odd)), canonical_uri(&format!("/x/{odd}")).map_err(|e| e.to_string()));
        }
    }

    #[test]
    fn what_would_be_cut_off_a_location_is_refused() {
        let told = |text: &str| canonical_uri(text).map_err(|e| e.to_string());
        assert_eq!(told("s3://lake//a/b%23c/"), Ok("s3://lake/a/b%23c".into()));
        assert_eq!(
            told("abfss://files@account.dfs.core.windows.net/a"),
            Ok("abfss://files@account.dfs.core.windows.net/a".into())
        );
        for (text, hint) in [
            ("s3://lake/a#b", "%23"),
            ("s3://lake/a?b=c", "%3F"),
            ("file:///tmp/a#b", "%23"),
            ("s3://lake/a\tb", "%09"),
            ("s3+ddb://lake/a?ddbTableName=t", "%3F"),
        ] {
            assert!(told(text).is_err_and(|e| e.contains(hint) && e.contains(text)), "{text}");
        }
        assert!(told("s3://key:hidden1@lake/a").is_err_and(|e| e.contains("password") && !e.contains("hidden1")));
        // A plain path may hold both.
        assert!(told("/tmp/a#b?c").is_ok_and(|uri| uri.ends_with("/a%23b%3Fc")));
    }
}
