//! Local directories with a put-if-absent that survives a crash.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::{Path as FsPath, PathBuf};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use uuid::Uuid;

/// Names of unfinished puts start with this; no reader takes them for a record.
pub(crate) const UNFINISHED: &str = ".tmp-";

/// The local file system from `/`, whose conditional put is: write a file beside, fsync it, hard-link it to its name
/// (which fails when the name exists), fsync the directory. A name is never seen with half its bytes, and a put that
/// was acknowledged is there after a power cut.
#[derive(Debug)]
pub(crate) struct DurableLocal(LocalFileSystem);

impl DurableLocal {
    pub(crate) fn new() -> Self {
        Self(LocalFileSystem::new().with_fsync(true))
    }
}

impl fmt::Display for DurableLocal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "durable {}", self.0)
    }
}

#[async_trait]
impl ObjectStore for DurableLocal {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if options.mode != PutMode::Create {
            return self.0.put_opts(location, payload, options).await;
        }
        let target = self.0.path_to_filesystem(location)?;
        let name = location.to_string();
        let made = tokio::task::spawn_blocking(move || create(&target, &payload)).await?;
        made.map_err(|source| match source.kind() {
            std::io::ErrorKind::AlreadyExists => Error::AlreadyExists { path: name, source: source.into() },
            std::io::ErrorKind::PermissionDenied => Error::PermissionDenied { path: name, source: source.into() },
            _ => Error::Generic { store: "local", source: source.into() },
        })?;
        Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.0.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

fn create(target: &FsPath, payload: &PutPayload) -> std::io::Result<()> {
    let dir = target.parent().ok_or_else(|| std::io::Error::other("a name without a directory"))?;
    make_dirs(dir)?;
    let unfinished = dir.join(format!("{UNFINISHED}{}", Uuid::new_v4()));
    let result = write_and_link(&unfinished, target, payload);
    // Also after a failure: the name that counts is the link, and a leftover would only be noise.
    let removed = std::fs::remove_file(&unfinished);
    result?;
    removed?;
    sync(dir)
}

fn write_and_link(unfinished: &FsPath, target: &FsPath, payload: &PutPayload) -> std::io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(unfinished)?;
    for chunk in payload.iter() {
        file.write_all(chunk)?;
    }
    file.sync_all()?;
    std::fs::hard_link(unfinished, target).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => e,
        kind => std::io::Error::new(
            kind,
            format!("{e} (put-if-absent needs hard links; keep the registry on a file system that has them)"),
        ),
    })
}

/// Makes the missing directories, and makes their names durable from the top down.
fn make_dirs(dir: &FsPath) -> std::io::Result<()> {
    let missing: Vec<PathBuf> = dir.ancestors().take_while(|a| !a.exists()).map(FsPath::to_path_buf).collect();
    for path in missing.iter().rev() {
        match std::fs::create_dir(path) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        if let Some(parent) = path.parent() {
            sync(parent)?;
        }
    }
    Ok(())
}

fn sync(dir: &FsPath) -> std::io::Result<()> {
    File::open(dir)?.sync_all()
}
