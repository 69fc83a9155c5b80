//! What a namespace names: every namespace below its root and every table, and what could not be read of it.

use std::collections::{BTreeSet, HashSet};

use futures::stream::{self, StreamExt};
use lance_namespace::error::ErrorCode;
use lance_namespace::models::{ListNamespacesRequest, ListTablesRequest};
use object_store::ObjectStore as _;

use super::{Namespace, Source, code, shown};
use crate::{Error, Kind, Lake, Result, uri};

/// How deep namespaces are looked into.
const MAX_DEPTH: usize = 32;
/// More namespaces than this are no lake's.
const MAX_NAMESPACES: usize = 100_000;
/// Pages of one listing.
const MAX_PAGES: usize = 100_000;
/// Tables asked about at once.
const ASKS: usize = 16;

/// What a namespace names. What could not be read makes it incomplete, never shorter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Ids of the namespaces below the root, which itself is the empty id.
    pub namespaces: BTreeSet<Vec<String>>,
    /// The tables, by id.
    pub tables: Vec<Entry>,
    /// `(what, why)` of what could not be read.
    pub unread: Vec<(String, String)>,
}

/// A table of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its namespace's names and its own.
    pub id: Vec<String>,
    /// The canonical URI of where it lies.
    pub uri: String,
    /// Whether its name is only reserved, without data; `None` where the namespace does not say.
    pub declared_only: Option<bool>,
    /// Whether versions are the namespace's to commit.
    pub managed: bool,
}

impl Inventory {
    /// Whether everything was read: only then is what it does not name not there.
    pub fn is_complete(&self) -> bool {
        self.unread.is_empty()
    }

    /// The tables at a URI: a location may have more than one name.
    pub fn at<'a>(&'a self, uri: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.tables.iter().filter(move |t| t.uri == uri)
    }

    /// The table of an id.
    pub fn named(&self, id: &[String]) -> Option<&Entry> {
        self.tables.binary_search_by(|t| t.id.as_slice().cmp(id)).ok().map(|i| &self.tables[i])
    }
}

#[derive(Debug, Clone, Copy)]
enum Of {
    Namespaces,
    Tables,
}

impl Namespace {
    /// Everything it names, to the last page of the deepest namespace, each table asked for its place. Failures are values.
    pub async fn inventory(&self) -> Inventory {
        let mut out = Inventory::default();
        let (mut queue, mut tables) = (vec![Vec::new()], BTreeSet::new());
        while let Some(id) = queue.pop() {
            let listed = self.names(&id, Of::Tables).await;
            let below = match self.names(&id, Of::Namespaces).await {
                Ok(names) => self.addressed(&id, names, &mut out.unread),
                Err(e) => {
                    out.unread.push((shown(&id), e.to_string()));
                    Vec::new()
                }
            };
            match listed {
                Ok(names) => tables.extend(self.addressed(&id, names, &mut out.unread)),
                Err(e) if id.is_empty() && !below.is_empty() && self.has_no_root_tables(&e) => {}
                Err(e) => out.unread.push((shown(&id), e.to_string())),
            }
            for child in below {
                if child.len() > MAX_DEPTH || out.namespaces.len() >= MAX_NAMESPACES {
                    let why = format!("deeper than {MAX_DEPTH} namespaces, or more than {MAX_NAMESPACES} of them");
                    out.unread.push((shown(&id), why));
                } else if out.namespaces.insert(child.clone()) {
                    queue.push(child);
                }
            }
        }
        let described: Vec<(Vec<String>, Result<Entry>)> = stream::iter(tables)
            .map(|id| async move { (id.clone(), self.entry(&id).await) })
            .buffer_unordered(ASKS)
            .collect()
            .await;
        for (id, entry) in described {
            match entry {
                Ok(entry) => out.tables.push(entry),
                // It was listed a moment ago: gone meanwhile, or a listing that names what is not there. The next run tells.
                Err(e) => out.unread.push((shown(&id), e.to_string())),
            }
        }
        out.tables.sort_by(|a, b| a.id.cmp(&b.id));
        out.unread.sort();
        out
    }

    /// Whether a server says that tables lie in namespaces only (SeaweedFS does).
    fn has_no_root_tables(&self, e: &Error) -> bool {
        self.source == Source::Rest && matches!(code(e), Some(ErrorCode::InvalidInput | ErrorCode::Unsupported))
    }

    /// The ids of names in a namespace; one that cannot be told from a nested name is not read.
    fn addressed(
        &self,
        id: &[String],
        names: BTreeSet<String>,
        unread: &mut Vec<(String, String)>,
    ) -> Vec<Vec<String>> {
        let mut out = Vec::new();
        for name in names {
            let child: Vec<String> = id.iter().cloned().chain([name.clone()]).collect();
            if name.is_empty() {
                unread.push((shown(id), "it names something with an empty name".into()));
            } else if self.source == Source::Listing || !name.contains(&self.delimiter) {
                out.push(child);
            } else if let Some(whole) = self.whole(id, &name) {
                out.push(whole);
            } else {
                let why = format!("its name holds `{}`, and cannot be told from a nested one", self.delimiter);
                unread.push((shown(&child), why));
            }
        }
        out
    }

    /// The id that a server gave in one string instead of a name (SeaweedFS does, also of what lies deeper).
    fn whole(&self, id: &[String], name: &str) -> Option<Vec<String>> {
        let parts: Vec<String> = name.split(&self.delimiter).map(String::from).collect();
        let is_whole = self.source == Source::Rest
            && !id.is_empty()
            && parts.len() > id.len()
            && parts.starts_with(id)
            && parts.iter().all(|part| !part.is_empty());
        is_whole.then_some(parts)
    }

    async fn names(&self, id: &[String], of: Of) -> Result<BTreeSet<String>> {
        let (mut names, mut seen, mut token) = (BTreeSet::new(), HashSet::new(), None);
        loop {
            let (page, next) = self.page(id, of, token.take()).await?;
            names.extend(page);
            let Some(next) = next.filter(|t| !t.is_empty()) else { return Ok(names) };
            if seen.len() >= MAX_PAGES || !seen.insert(next.clone()) {
                let at = format!("{} in {}", shown(id), self.at);
                return Err(Error::new(Kind::Permanent, "listing names", at)
                    .remedy("its pages have no end: it gives the same page token twice, or too many"));
            }
            token = Some(next);
        }
    }

    async fn page(&self, id: &[String], of: Of, token: Option<String>) -> Result<(Vec<String>, Option<String>)> {
        let (id_asked, limit) = (Some(id.to_vec()), self.page);
        match of {
            Of::Namespaces => {
                let request = ListNamespacesRequest { id: id_asked, page_token: token, limit, ..Default::default() };
                let listed = self.ask("listing namespaces", id, self.client.list_namespaces(request)).await?;
                Ok((listed.namespaces, listed.page_token))
            }
            Of::Tables => {
                let request = ListTablesRequest {
                    id: id_asked,
                    page_token: token,
                    limit,
                    include_declared: Some(true),
                    ..Default::default()
                };
                let listed = self.ask("listing tables", id, self.client.list_tables(request)).await?;
                Ok((listed.tables, listed.page_token))
            }
        }
    }

    /// One table, asked for now.
    ///
    /// # Errors
    /// `Open` where the namespace does not know it, `Permanent` where it says no place that can be understood.
    pub async fn entry(&self, id: &[String]) -> Result<Entry> {
        let described = self.describe_now(id, false).await?;
        let Some(location) = described.location.or(described.table_uri) else {
            let at = format!("{} in {}", shown(id), self.at);
            return Err(Error::new(Kind::Permanent, "finding where a table lies", at).remedy("it names no location"));
        };
        Ok(Entry {
            id: id.to_vec(),
            uri: self.place_of(id, &location)?,
            declared_only: described.is_only_declared,
            managed: described.managed_versioning == Some(true),
        })
    }

    /// The canonical URI of a location. A directory's listing spells a name as it is, where a URL would have it encoded.
    fn place_of(&self, id: &[String], location: &str) -> Result<String> {
        if self.source != Source::Rest
            && let [name] = id
            && location == format!("{}/{name}.lance", self.at)
        {
            return Ok(uri::join(&self.at, &format!("{name}.lance")));
        }
        uri::canonical(location)
    }
}

/// Tables of a directory's listing whose names are reserved and that hold no data: what a walk does not find, because there is nothing
/// to find. `known` are the datasets that it found. One LIST, and one question for each such directory.
///
/// # Errors
/// What the store answers: what is not listed is not known.
pub async fn reserved(lake: &Lake, root: &str, known: &BTreeSet<String>) -> Result<Vec<Entry>> {
    let place = lake.place(root).await?;
    let prefix = (!place.path.as_ref().is_empty()).then(|| place.path.clone());
    let listed = match place.objects().list_with_delimiter(prefix.as_ref()).await {
        Ok(listed) => listed,
        Err(object_store::Error::NotFound { .. }) => return Ok(Vec::new()),
        Err(e) => return Err(Error::store("listing", root, e)),
    };
    let names = listed.common_prefixes.iter().filter_map(|p| p.filename()?.strip_suffix(".lance").map(String::from));
    let unknown = |name: &String| !known.contains(&uri::join(root, &format!("{name}.lance")));
    let names: Vec<String> = names.filter(unknown).collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let namespace = Namespace::directory_of(lake, root, Source::Listing, false).await?;
    let mut out = Vec::new();
    for name in names {
        match namespace.entry(&[name]).await {
            Ok(entry) if entry.declared_only == Some(true) => out.push(entry),
            Ok(_) => {}
            // Deregistered, and without data.
            Err(e) if e.kind() == Kind::Open => {}
            Err(e) => return Err(e),
        }
    }
    Ok(out)
}
