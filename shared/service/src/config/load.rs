//! Loading: defaults < file < environment < `--set` < flags.

use std::io::Read;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use figment::Figment;
use figment::error::Kind;
use figment::value::{Dict, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::check::{self, Problem};
use super::layer::{self, Layer, expectation, join_key, split_assignment, split_key};
use super::nearest::{env_name, known_keys, nearest};
use super::show::{is_secret, leaves};
use super::{Config, ConfigError, Effect, Http, Issue, Leaf, Program, Source};
use crate::cli::{OutputFormat, print_stdout};

const DEFAULT_FILE: &str = "squire.toml";
/// A table that replaces the default instead of merging into it.
const TIERS: [&str; 2] = ["estate", "tiers"];

/// A check of a configuration whose types are right.
pub type Validator<P, F> = fn(&Config<P, F>) -> Vec<Problem>;

/// Gathers the places that values come from, then loads.
pub struct Loader<P, F> {
    file: Option<String>,
    directory: PathBuf,
    stdin: Option<String>,
    env: Vec<(String, String)>,
    sets: Vec<String>,
    flags: Vec<(String, String, String)>,
    listen_port: u16,
    validators: Vec<Validator<P, F>>,
    types: PhantomData<fn() -> (P, F)>,
}

/// A loaded configuration and where each of its values came from.
#[derive(Debug, Clone)]
pub struct Loaded<P, F> {
    /// The values.
    pub config: Config<P, F>,
    /// The file that was read, if any (`-` for standard input).
    pub file: Option<PathBuf>,
    leaves: Vec<Leaf>,
}

impl<P, F> Loaded<P, F> {
    /// Every value with its source; secrets redacted.
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// Where the value at a dotted key came from; `None` for an unknown key.
    pub fn source_of(&self, key: &str) -> Option<&Source> {
        self.leaves.iter().find(|leaf| leaf.key == key).map(|leaf| &leaf.source)
    }

    /// SHA-256, in hex, over every key and its value (secrets redacted, sources left out): the
    /// same for two processes that were configured alike.
    pub fn digest(&self) -> String {
        let mut hasher = Sha256::new();
        for leaf in &self.leaves {
            hasher.update(format!("{}={}\n", leaf.key, leaf.value));
        }
        crate::planfile::hex(&hasher.finalize())
    }

    /// `config show` as text: one line per value, `key = value   # source`.
    pub fn show_text(&self) -> String {
        let lines: Vec<(String, &Source)> = self
            .leaves
            .iter()
            .map(|leaf| {
                let value = if leaf.value.is_null() { "(not set)".into() } else { leaf.value.to_string() };
                (format!("{} = {value}", leaf.key), &leaf.source)
            })
            .collect();
        let width = lines.iter().map(|(l, _)| l.chars().count()).filter(|w| *w <= 60).max().unwrap_or(0);
        lines.iter().map(|(line, source)| format!("{line:<width$}  # {source}\n")).collect()
    }

    /// What `--check-config` says of a configuration without mistakes: one line, and one for each value that was set and
    /// has no effect yet.
    pub fn checked_text(&self) -> String {
        let set = self.leaves.iter().filter(|leaf| leaf.source != Source::Default).count();
        let from = match &self.file {
            Some(path) if path.as_os_str() == "-" => "standard input".to_owned(),
            Some(path) => path.display().to_string(),
            None => "no file".to_owned(),
        };
        let mut text =
            format!("configuration ok: {from}; {set} of {} values set, the rest are defaults\n", self.leaves.len());
        for (leaf, _) in self.without_effect() {
            text.push_str(&format!("no effect yet: {} ({})\n", leaf.key, leaf.source));
        }
        text
    }

    /// Values that somebody set and that have no effect yet, with the programs that they are meant for.
    pub fn without_effect(&self) -> impl Iterator<Item = (&Leaf, &'static [Program])> {
        let set = self.leaves.iter().filter(|leaf| leaf.source != Source::Default);
        set.filter_map(|leaf| match Effect::of(&leaf.key) {
            Some(Effect::NotYet(programs)) => Some((leaf, programs)),
            _ => None,
        })
    }

    /// Warns in the log of the values that are meant for `program` and that it does not heed yet.
    pub fn warn_of_what_has_no_effect(&self, program: Program) {
        for (leaf, _) in self.without_effect().filter(|(_, programs)| programs.contains(&program)) {
            tracing::warn!("{} is set ({}), and this version does not heed it", leaf.key, leaf.source);
        }
    }

    /// `config show` in the format that was asked for; HTML and Markdown show the text.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn print(&self, format: OutputFormat) -> std::io::Result<()> {
        let text = match format {
            OutputFormat::Json => format!("{:#}\n", self.show_json()),
            OutputFormat::Jsonl => {
                let all = self.show_json();
                all.as_array().into_iter().flatten().map(|leaf| format!("{leaf}\n")).collect()
            }
            _ => self.show_text(),
        };
        print_stdout(&text)
    }

    /// `config show` as JSON: a list of `{key, value, source}`.
    pub fn show_json(&self) -> serde_json::Value {
        self.leaves
            .iter()
            .map(|leaf| {
                serde_json::json!({
                    "key": leaf.key, "value": leaf.value, "source": leaf.source.to_string(),
                })
            })
            .collect()
    }
}

impl<P, F> Loader<P, F>
where
    P: Serialize + DeserializeOwned + Default,
    F: Serialize + DeserializeOwned + Default,
{
    /// A loader that reads `./squire.toml` if it exists, and the process's environment.
    /// `listen_port` is the default port of `[http] listen`.
    pub fn new(listen_port: u16) -> Self {
        let env = std::env::vars_os()
            .filter_map(|(k, v)| Some((k.into_string().ok()?, v.to_string_lossy().into_owned())))
            .collect();
        Self {
            file: None,
            directory: PathBuf::new(),
            stdin: None,
            env,
            sets: Vec::new(),
            flags: Vec::new(),
            listen_port,
            validators: Vec::new(),
            types: PhantomData,
        }
    }

    /// Names the file; `-` is standard input. Without a name `./squire.toml` is read if it exists.
    pub fn file(mut self, file: Option<String>) -> Self {
        self.file = file;
        self
    }

    /// Looks for the default file here instead of in the working directory.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// What standard input holds, instead of reading it.
    pub fn stdin(mut self, text: impl Into<String>) -> Self {
        self.stdin = Some(text.into());
        self
    }

    /// Replaces the environment.
    pub fn env<K: Into<String>, V: Into<String>>(mut self, env: impl IntoIterator<Item = (K, V)>) -> Self {
        self.env = env.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        self
    }

    /// Adds `--set key=value` arguments.
    pub fn sets<S: Into<String>>(mut self, sets: impl IntoIterator<Item = S>) -> Self {
        self.sets.extend(sets.into_iter().map(Into::into));
        self
    }

    /// Adds a flag that sets one key: its name (`--registry`), the key and the value's text.
    pub fn flag(mut self, name: &str, key: &str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            self.flags.push((name.to_owned(), key.to_owned(), value.to_owned()));
        }
        self
    }

    /// Adds checks of the sections that the binary owns (`[policy]`, `[floors]`); they see a
    /// configuration whose types are right.
    pub fn validate(mut self, validate: Validator<P, F>) -> Self {
        self.validators.push(validate);
        self
    }

    /// Loads.
    ///
    /// # Errors
    /// When the file cannot be read or is not TOML, a key is unknown, or a value is not accepted.
    /// All of them mean exit code 2.
    pub fn load(self) -> Result<Loaded<P, F>, ConfigError> {
        let defaults = Config::<P, F> { http: Http::loopback(self.listen_port), ..Default::default() };
        let known = known_keys(&serde_json::to_value(&defaults).unwrap_or_default());
        let mut issues = Vec::new();
        let (file, mut layers) = self.layers(&known, &mut issues)?;
        let tiers = defaults.estate.tiers.clone();
        let config = extract(&defaults, &mut layers, &tiers, &known, &mut issues);
        let Some(config) = config.filter(|_| issues.is_empty()) else {
            return Err(ConfigError::Invalid { issues });
        };
        let value = serde_json::to_value(&config).unwrap_or_default();
        let leaves = leaves(&value, &layers);
        let mut problems = check::problems(&config);
        problems.extend(self.validators.iter().flat_map(|validate| validate(&config)));
        if !problems.is_empty() {
            let issues = problems
                .into_iter()
                .map(|(key, what, remedy)| {
                    let path = split_key(&key).unwrap_or_default();
                    Issue { source: source_of(&layers, &path), key, what, remedy }
                })
                .collect();
            return Err(ConfigError::Invalid { issues });
        }
        Ok(Loaded { config, file, leaves })
    }

    /// The layers above the defaults, lowest first.
    fn layers(
        &self,
        known: &[Vec<String>],
        issues: &mut Vec<Issue>,
    ) -> Result<(Option<PathBuf>, Vec<Layer>), ConfigError> {
        let mut layers = Vec::new();
        let file = self.read_file()?;
        let path = file.as_ref().map(|(source, _)| match source {
            Source::File(path) => path.clone(),
            _ => PathBuf::from("-"),
        });
        if let Some((source, text)) = file {
            layers.push(parse_file(source, &text)?);
        }
        let mut env = self.env.clone();
        env.sort();
        for (name, value) in env {
            let Some(rest) = name.strip_prefix("SQUIRE_") else { continue };
            if is_service_link(rest) {
                continue;
            }
            let path: Vec<String> = rest.to_lowercase().split("__").map(str::to_owned).collect();
            if path.len() < 2 || path.iter().any(String::is_empty) {
                issues.push(unknown_env(&name, &path, known));
                continue;
            }
            layers.push(Layer::one(Source::Env(name), path, value));
        }
        for set in &self.sets {
            match parse_set(set) {
                Ok((path, text)) => layers.push(Layer::one(Source::Set, path, text)),
                Err(issue) => issues.push(issue),
            }
        }
        for (name, key, value) in &self.flags {
            let path = split_key(key).unwrap_or_default();
            let mut layer = Layer::one(Source::Flag(name.clone()), path.clone(), value.clone());
            // A flag for one key is text: `--registry 5` names the directory `5`.
            layer.make_literal(&path);
            layers.push(layer);
        }
        Ok((path, layers))
    }

    fn read_file(&self) -> Result<Option<(Source, String)>, ConfigError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { file: path.to_owned(), source })
        };
        match self.file.as_deref() {
            Some("-") => {
                let text = match &self.stdin {
                    Some(text) => text.clone(),
                    None => {
                        let mut text = String::new();
                        std::io::stdin()
                            .read_to_string(&mut text)
                            .map_err(|source| ConfigError::Read { file: PathBuf::from("-"), source })?;
                        text
                    }
                };
                Ok(Some((Source::Stdin, text)))
            }
            Some(name) => {
                let path = PathBuf::from(name);
                let text = read(&path)?;
                Ok(Some((Source::File(path), text)))
            }
            None => {
                let path = self.directory.join(DEFAULT_FILE);
                if !path.is_file() {
                    return Ok(None);
                }
                let text = read(&path)?;
                Ok(Some((Source::File(path), text)))
            }
        }
    }
}

fn parse_file(source: Source, text: &str) -> Result<Layer, ConfigError> {
    let syntax = |message: String| ConfigError::Syntax { origin: source.clone(), message };
    let table: toml::Table = toml::from_str(text).map_err(|e| syntax(e.to_string().trim_end().to_owned()))?;
    let dict = match Value::serialize(table) {
        Ok(Value::Dict(_, dict)) => dict,
        Ok(_) => Dict::new(),
        Err(e) => return Err(syntax(e.to_string())),
    };
    Ok(Layer { source, dict, raw: None })
}

fn parse_set(set: &str) -> Result<(Vec<String>, String), Issue> {
    let issue = |key: &str, what: String| Issue {
        source: Source::Set,
        key: key.to_owned(),
        what,
        remedy: "write --set key=value, for example --set limits.memory=2GiB".to_owned(),
    };
    let Some((key, value)) = split_assignment(set) else {
        return Err(issue(set, "has no value".to_owned()));
    };
    let path = split_key(key).map_err(|what| issue(key, what))?;
    Ok((path, value.to_owned()))
}

/// Variables that Kubernetes puts into every pod for a Service whose name starts with `squire-`
/// (`SQUIRE_MAINTENANCE_PORT_9464_TCP_ADDR`): nobody wrote them, so they are no mistake. No key
/// looks like them, for every key has a double underscore.
fn is_service_link(rest: &str) -> bool {
    if rest.contains("__") {
        return false;
    }
    let has_port_number = |tail: &str| {
        let mut parts = tail.split('_');
        parts.next().is_some_and(|p| !p.is_empty() && p.chars().all(|c| c.is_ascii_digit()))
            && parts.next().is_some_and(|p| ["TCP", "UDP", "SCTP"].contains(&p))
    };
    rest.ends_with("_SERVICE_HOST")
        || rest.contains("_SERVICE_PORT")
        || rest.starts_with("SERVICE_")
        || rest == "PORT"
        || rest.ends_with("_PORT")
        || format!("_{rest}").split_once("_PORT_").is_some_and(|(_, tail)| has_port_number(tail))
}

fn unknown_env(name: &str, path: &[String], known: &[Vec<String>]) -> Issue {
    let joined = path.join("_");
    let near = known
        .iter()
        .map(|k| {
            let flat = k.join("_");
            let last = k.last().map(String::as_str).unwrap_or_default();
            (strsim::jaro_winkler(&flat, &joined).max(strsim::jaro_winkler(last, &joined) - 0.02), k)
        })
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let remedy = match near {
        Some((_, path)) => format!("did you mean {}?", env_name(path)),
        None => String::new(),
    };
    Issue {
        source: Source::Env(name.to_owned()),
        key: name.to_owned(),
        what: "is no key of the configuration (sections and keys are parted by two underscores)".to_owned(),
        remedy,
    }
}

/// Merges and reads; on a mistake takes it out and reads again, so that all mistakes are named
/// at once.
fn extract<P, F>(
    defaults: &Config<P, F>,
    layers: &mut [Layer],
    tiers: &std::collections::BTreeMap<String, u64>,
    known: &[Vec<String>],
    issues: &mut Vec<Issue>,
) -> Option<Config<P, F>>
where
    P: Serialize + DeserializeOwned + Default,
    F: Serialize + DeserializeOwned + Default,
{
    const MOST: usize = 20;
    let mut base = match Value::serialize(defaults) {
        Ok(Value::Dict(_, dict)) => dict,
        _ => Dict::new(),
    };
    let tiers_path = TIERS.map(str::to_owned);
    layer::remove(&mut base, &tiers_path);
    let original = layers.to_owned();
    // Bounded: every turn either takes a text literally, once, or takes a mistake out.
    for _ in 0..MOST + original.len() {
        let figment = merged(&base, layers, tiers);
        let error = match figment.extract::<Config<P, F>>() {
            Ok(config) => return Some(config),
            Err(error) => error,
        };
        let path = error.path.clone();
        let literal = matches!(&error.kind, Kind::InvalidType(actual, _)
            if !matches!(actual, figment::error::Actual::Str(_)));
        if literal && layers.iter_mut().rev().find(|l| l.holds(&path)).is_some_and(|l| l.make_literal(&path)) {
            continue;
        }
        issues.push(explain(&error, &path, &original, known));
        let mut removed = false;
        for layer in layers.iter_mut() {
            removed |= layer::remove(&mut layer.dict, &path);
        }
        if !removed || issues.len() >= MOST {
            return None;
        }
    }
    None
}

/// Defaults, then each layer. A layer that gives the whole table of tiers replaces it.
fn merged(base: &Dict, layers: &[Layer], tiers: &std::collections::BTreeMap<String, u64>) -> Figment {
    let path = TIERS.map(str::to_owned);
    let mut base = base.clone();
    let whole = |l: &Layer| match &l.raw {
        // `--set estate.tiers.bronze=100` changes one tier; `--set estate.tiers={}` all.
        Some(raw) => raw.path == path,
        None => l.holds(&path),
    };
    let last_whole = layers.iter().rposition(whole);
    if last_whole.is_none()
        && let Ok(value) = Value::serialize(tiers)
    {
        layer::insert(&mut base, &path, value);
    }
    let mut figment = Figment::from(Layer { source: Source::Default, dict: base, raw: None });
    for (i, layer) in layers.iter().enumerate() {
        let mut layer = layer.clone();
        if last_whole.is_some_and(|last| i < last) {
            layer::remove(&mut layer.dict, &path);
        }
        figment = figment.merge(layer);
    }
    figment
}

fn source_of(layers: &[Layer], path: &[String]) -> Source {
    layers.iter().rev().find(|layer| layer.holds(path)).map_or(Source::Default, |layer| layer.source.clone())
}

fn explain(error: &figment::Error, path: &[String], layers: &[Layer], known: &[Vec<String>]) -> Issue {
    let source = source_of(layers, path);
    let (what, remedy) = match &error.kind {
        Kind::UnknownField(_, expected) => {
            let near = nearest(path, expected, known);
            let remedy = near.map_or(String::new(), |near| match &source {
                Source::Env(_) => format!("did you mean {}?", env_name(&near)),
                _ => format!("did you mean `{}`?", join_key(&near)),
            });
            ("unknown key".to_owned(), remedy)
        }
        Kind::InvalidType(actual, expected) | Kind::InvalidValue(actual, expected) => {
            let found = if is_secret(path) { "(redacted)".to_owned() } else { actual.to_string() };
            (format!("found {found}"), format!("expected {}", expectation(expected)))
        }
        Kind::UnknownVariant(found, expected) => {
            (format!("found {found:?}"), format!("expected one of {}", expected.join(", ")))
        }
        Kind::MissingField(field) => (format!("`{field}` is missing"), "add it".to_owned()),
        Kind::Message(message) => (message.clone(), String::new()),
        other => (other.to_string(), String::new()),
    };
    Issue { source, key: join_key(path), what, remedy }
}
