//! Links inside a dataset on a local disk. What lies behind one is listed as if it lay here, and what one dataset's versions name
//! there looks like a leftover of the other: nothing of the dataset is called an orphan then, and what its versions name behind the
//! link is kept where it lies.

use std::path::{Path, PathBuf};

use crate::discover::{QUARANTINE, RESERVED};
use crate::refs::{Reads, Target, Uses};
use crate::uri;

/// A link below a dataset's root.
#[derive(Debug)]
struct Link {
    /// Relative to the root.
    path: String,
    /// Where it leads; `None` for one that leads nowhere.
    to: Option<PathBuf>,
}

/// Why nothing of a dataset can be called an orphan, `(path, why)` for each of its folders that is a link. Adds to `reads` what its
/// versions name behind a link that leads out of it. None where the dataset is not on a local disk.
pub(crate) async fn behind(uri: &str, uses: &Uses, reads: &mut Reads) -> Vec<(String, String)> {
    let Some(root) = uri::local_path(uri) else { return Vec::new() };
    let walked =
        tokio::task::spawn_blocking(move || std::fs::canonicalize(&root).map(|root| (links(&root), root))).await;
    // What is not there has no links; the listing says what is wrong with it.
    let Ok(Ok((links, root))) = walked else { return Vec::new() };
    let mut out = Vec::new();
    for link in links {
        if link.to.as_ref().is_none_or(|to| !to.starts_with(&root)) {
            named(&link, uses, reads);
        }
        match link.to {
            None => out.push((link.path, "it is a link that leads nowhere".to_string())),
            Some(to) if to.is_dir() => {
                let why = format!("it is a link to {}: whose the files behind it are cannot be told", to.display());
                out.push((link.path, why));
            }
            // The link is what would go, not what it leads to.
            Some(_) => {}
        }
    }
    out
}

/// What the versions name at a link or behind it, as files of wherever it leads.
fn named(link: &Link, uses: &Uses, reads: &mut Reads) {
    let Some(to) = &link.to else { return };
    let mut add = |at: &Path, path: String| {
        let target = match at.to_str().map(uri::canonical) {
            Some(Ok(at)) => Target::At(at),
            _ => Target::Anywhere(at.display().to_string()),
        };
        reads.entry(target).or_default().insert(path);
    };
    for path in uses.paths() {
        match path.strip_prefix(link.path.as_str()).map(|rest| (rest, rest.strip_prefix('/'))) {
            Some(("", _)) => {
                if let (Some(above), Some(name)) = (to.parent(), to.file_name()) {
                    add(above, name.to_string_lossy().into_owned());
                }
            }
            Some((_, Some(rest))) => add(to, rest.to_string()),
            _ => {}
        }
    }
}

/// The links below a folder. None is followed.
fn links(root: &Path) -> Vec<Link> {
    let (mut out, mut queue) = (Vec::new(), vec![(root.to_path_buf(), String::new())]);
    while let Some((dir, at)) = queue.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if at.is_empty() && (name == QUARANTINE || name == RESERVED) {
                continue;
            }
            let path = if at.is_empty() { name } else { format!("{at}/{name}") };
            match entry.file_type() {
                Ok(kind) if kind.is_symlink() => {
                    out.push(Link { path, to: std::fs::canonicalize(entry.path()).ok() });
                }
                Ok(kind) if kind.is_dir() => queue.push((entry.path(), path)),
                _ => {}
            }
        }
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    out
}
