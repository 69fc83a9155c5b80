//! Configuration, the registry, and how errors of the registry become exit codes.

use squire_registry::{Error, Floors, Kind, Located, Policy, Registry, StorageOptions, Subject, locate};
use squire_service::cli::{Common, Exit, Failure, OutputFormat};
use squire_service::config::{Config, Loaded, Problem};

/// The port of `[http] listen`; this command serves nothing, and takes the first daemon's.
const PORT: u16 = 9464;

/// What every verb needs.
pub(crate) struct Context {
    pub(crate) common: Common,
    pub(crate) loaded: Loaded<Policy, Floors>,
}

impl Context {
    /// # Errors
    /// Exit 2 for a bad configuration, and for flags that this command has no use for: before anything is done, not after.
    pub(crate) fn load(common: Common) -> anyhow::Result<Self> {
        let formats = "use -o text, json or jsonl";
        let unused = match (common.output, &common.html, &common.metrics_file) {
            (OutputFormat::Html, ..) => Some(("-o html: this command gives text and JSON", formats)),
            (OutputFormat::Markdown, ..) => Some(("-o markdown: this command gives text and JSON", formats)),
            (_, Some(_), _) => Some(("--html: this command gives text and JSON", formats)),
            (_, _, Some(_)) => Some(("--metrics-file: this command counts nothing", "leave it out")),
            _ => None,
        };
        if let Some((what, remedy)) = unused {
            return Err(Failure::usage(what).remedy(remedy).into());
        }
        let loaded = common.loader::<Policy, Floors>(PORT).validate(check_policy).load()?;
        Ok(Self { common, loaded })
    }

    pub(crate) fn config(&self) -> &Config<Policy, Floors> {
        &self.loaded.config
    }

    pub(crate) fn options(&self, uri: &str) -> StorageOptions {
        self.config().storage.options_for(uri).into_iter().collect()
    }

    /// The registry that is named, or the nearest at or above the roots, else the config's roots, else the working
    /// directory. It must exist.
    pub(crate) async fn registry(&self, roots: &[String]) -> anyhow::Result<Registry> {
        let uri = match &self.config().registry.root {
            Some(uri) => uri.clone(),
            None => self.nearest(roots).await?,
        };
        let registry = Registry::open(&uri, &self.options(&uri)).await.map_err(|e| match e {
            Error::NoRegistry { .. } => failure(e),
            // A registry that cannot be read is not wrong usage and nothing that ran: nothing was tried.
            other => {
                let exit = if other.kind() == Kind::Invalid { Exit::Usage } else { Exit::CouldNotRun };
                advised(exit, &other)
            }
        })?;
        let config = self.config();
        Ok(registry.keeping_history(config.grace.record_history).under(&config.policy, config.floors.shorten_delay))
    }

    async fn nearest(&self, roots: &[String]) -> anyhow::Result<String> {
        let roots = match (roots, self.config().estate.roots.as_slice()) {
            ([], []) => vec![".".to_owned()],
            ([], configured) => configured.to_vec(),
            (given, _) => given.to_vec(),
        };
        match locate(&roots, |uri| self.options(uri)).await.map_err(failure)? {
            Located::Found(uri) => Ok(uri),
            Located::Absent { would_be } => {
                Err(Failure::usage(format!("no registry at or above {}", roots.join(", ")))
                    .remedy(format!("name one with --registry URI, or make one with `squire-registry init {would_be}`"))
                    .into())
            }
        }
    }
}

fn check_policy(config: &Config<Policy, Floors>) -> Vec<Problem> {
    let Err(told) = config.policy.validate() else { return Vec::new() };
    let (key, what) = told.split_once(": ").unwrap_or(("", &told));
    vec![(format!("policy.{key}"), what.to_owned(), "correct the value".to_owned())]
}

/// The exit code of an error of the registry: 2 for what was asked wrongly, 3 for what a rule or another writer refused
/// or what cannot be understood, 1 for what could not be tried.
pub(crate) fn failure(error: Error) -> Failure {
    let exit = match error.kind() {
        Kind::NotFound | Kind::Invalid => Exit::Usage,
        Kind::Refused | Kind::Conflict | Kind::Damaged => Exit::Failed,
        Kind::Transient | Kind::Permanent | Kind::LyingStore => Exit::CouldNotRun,
    };
    advised(exit, &error)
}

/// An error with what to do next, where its own text does not say it.
fn advised(exit: Exit, error: &Error) -> Failure {
    let failure = Failure::new(exit, error.to_string());
    let list = |what: &str| {
        let kind =
            what.split('/').next().filter(|kind| ["project", "warehouse", "namespace", "table"].contains(kind))?;
        Some(format!("see `squire-registry {kind} list`"))
    };
    let remedy = match error {
        Error::Store { .. } | Error::Io { .. } if error.kind() == Kind::Transient => Some(
            "see that it can be reached, and with which credentials ([storage] or the environment); then try again"
                .to_owned(),
        ),
        Error::Store { .. } | Error::Io { .. } => {
            Some("see that it is there, and that the credentials, or the rights of a directory, allow it".to_owned())
        }
        Error::Missing { what, hint } if hint.is_empty() => list(what),
        Error::Exists { what, hint } if hint.is_empty() => {
            list(what).map(|list| format!("{list}, or take another name"))
        }
        _ => None,
    };
    match remedy {
        Some(remedy) => failure.remedy(remedy),
        None => failure,
    }
}

/// A directory that is not there is a slip of the pen: neither looked into nor made.
pub(crate) fn must_be_there(root: &str) -> Result<(), Failure> {
    match squire_registry::local_path(root) {
        Some(dir) if !dir.exists() => {
            Err(Failure::usage(format!("there is no directory {root}")).remedy("correct the ROOT, or make it first"))
        }
        _ => Ok(()),
    }
}

/// A subject that names its kind, for verbs that change or remove.
pub(crate) fn explicit(text: &str) -> Result<Subject, Failure> {
    Subject::parse_explicit(text).and_then(|subject| subject.canonical()).map_err(failure)
}

/// A subject, also as `a$b$t`.
pub(crate) fn subject(text: &str) -> Result<Subject, Failure> {
    text.parse().and_then(|subject: Subject| subject.canonical()).map_err(failure)
}

/// A subject of one kind that names its kind.
pub(crate) fn explicit_of(kind: &str, text: &str) -> Result<Subject, Failure> {
    match explicit(text) {
        Ok(found) if found.kind() == kind => Ok(found),
        Ok(found) => Err(Failure::usage(format!("`{text}` is a {}, and this verb takes a {kind}", found.kind()))),
        Err(_) if !text.contains('/') && !text.contains('$') => {
            Err(Failure::usage(format!("`{text}`: this verb takes no bare id")).remedy(format!("write {kind}/{text}")))
        }
        Err(e) => Err(e),
    }
}

/// The id of a project or warehouse, given bare or as a SUBJECT.
pub(crate) fn id_of(kind: &str, text: &str) -> Result<String, Failure> {
    match text.parse::<Subject>() {
        Ok(Subject::Project(id)) if kind == "project" => Ok(id),
        Ok(Subject::Warehouse(id)) if kind == "warehouse" => Ok(id),
        _ if !text.contains('/') => Ok(text.to_owned()),
        _ => Err(Failure::usage(format!("`{text}` is no {kind}")).remedy(format!("write {kind}/NAME or the bare id"))),
    }
}
