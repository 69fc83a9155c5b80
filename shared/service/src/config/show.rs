//! `config show`: every value and where it came from, without secrets.

use serde_json::Value;

use super::Source;
use super::layer::{Layer, join_key};

/// What stands in place of a secret.
pub(super) const REDACTED: &str = "(redacted)";

/// One value of the effective configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Leaf {
    /// The key, dotted; segments that are no bare TOML keys are quoted.
    pub key: String,
    /// Its value, as JSON; a secret's is `"(redacted)"`.
    pub value: Value,
    /// Where it came from.
    pub source: Source,
}

/// All leaves of `config`, each with the topmost layer that holds it.
pub(super) fn leaves(config: &Value, layers: &[Layer]) -> Vec<Leaf> {
    let mut out = Vec::new();
    walk(config, &mut Vec::new(), layers, &mut out);
    out
}

fn walk(value: &Value, path: &mut Vec<String>, layers: &[Layer], out: &mut Vec<Leaf>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, inner) in map {
                path.push(key.clone());
                walk(inner, path, layers, out);
                path.pop();
            }
        }
        // An empty section has no value of its own.
        Value::Object(_) if path.len() < 2 => {}
        _ => {
            let source = layers
                .iter()
                .rev()
                .find(|layer| layer.holds(path))
                .map_or(Source::Default, |layer| layer.source.clone());
            out.push(Leaf { key: join_key(path), value: redact(path, value), source });
        }
    }
}

/// Whether the value at this path must not be shown. Everything below `[storage]` and `[bus]`
/// whose name smells of a secret, and such names elsewhere.
pub(super) fn is_secret<S: AsRef<str>>(path: &[S]) -> bool {
    let Some(last) = path.last() else { return false };
    let last = last.as_ref().to_ascii_lowercase();
    // Paths of files, and settings that merely talk about keys.
    if path.first().is_some_and(|s| s.as_ref() == "bus") && last == "credentials" {
        return false;
    }
    if ["aws_sse_kms_key_id", "aws_sse_bucket_key_enabled"].contains(&last.as_str()) {
        return false;
    }
    let marks = ["secret", "password", "passwd", "token", "credential", "_key", "key_", "sas", "service_account"];
    // What is sent to a namespace's server.
    if path.iter().any(|s| s.as_ref().to_ascii_lowercase().starts_with("header")) {
        return true;
    }
    let in_tls = path.iter().any(|s| s.as_ref() == "tls");
    !in_tls && (last == "key" || marks.iter().any(|mark| last.contains(mark)))
}

/// `value` as it may be shown.
pub(super) fn redact(path: &[String], value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        _ if is_secret(path) => Value::String(REDACTED.to_owned()),
        // A secret where the path of one belongs.
        Value::String(text) if is_seed(text) || text.contains("-----BEGIN") => Value::String(REDACTED.to_owned()),
        Value::String(text) if is_servers(path) => Value::String(redact_servers(text)),
        Value::String(text) => Value::String(redact_uri(text)),
        Value::Array(items) => Value::Array(items.iter().map(|v| redact(path, v)).collect()),
        Value::Object(map) => {
            let mut path = path.to_vec();
            let mut shown = serde_json::Map::new();
            for (key, inner) in map {
                path.push(key.clone());
                shown.insert(key.clone(), redact(&path, inner));
                path.pop();
            }
            Value::Object(shown)
        }
        other => other.clone(),
    }
}

/// Whether a text is an NKey seed rather than the path of a file with one.
pub(super) fn is_seed(text: &str) -> bool {
    let text = text.trim();
    text.len() == 58
        && text.starts_with('S')
        && text.bytes().all(|b| b.is_ascii_uppercase() || (b'2'..=b'7').contains(&b))
}

/// Takes user and password out of each of the servers of `bus.url`, with a scheme or without.
pub(super) fn redact_servers(text: &str) -> String {
    let one = |server: &str| match (server.split_once("://"), server.rsplit_once('@')) {
        (_, None) => server.to_owned(),
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{REDACTED}@{host}"),
        (None, Some((_, host))) => format!("{REDACTED}@{host}"),
    };
    text.split(',').map(|s| one(s.trim())).collect::<Vec<_>>().join(",")
}

fn is_servers<S: AsRef<str>>(path: &[S]) -> bool {
    matches!(path, [section, key] if section.as_ref() == "bus" && key.as_ref() == "url")
}

/// Takes user and password out of a URI, and the values of its query.
fn redact_uri(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority = match authority.rsplit_once('@') {
        // `abfss://container@account` has a container there, no secret.
        Some((user, host)) if user.contains(':') || scheme == "nats" || scheme == "tls" => {
            format!("{REDACTED}@{host}")
        }
        _ => authority.to_owned(),
    };
    format!("{scheme}://{authority}{path}")
}

/// The command line for reports and audit records, with the values of secrets in `--set` and in
/// URIs taken out.
pub fn redact_command<I, S>(args: I) -> String
where
    I: IntoIterator<Item = S>,
    S: AsRef<str>,
{
    let mut out: Vec<String> = Vec::new();
    for arg in args {
        let arg = arg.as_ref();
        let shown = match super::layer::split_assignment(arg) {
            Some((key, value)) => {
                let bare = key.trim_start_matches("--set=").trim_start_matches('-');
                // `--set=storage.x=y` splits at the first `=`.
                let (inner, tail) = match (key == "--set").then(|| value.split_once('=')).flatten() {
                    Some((inner, tail)) => (inner, tail),
                    None => (bare, value),
                };
                let path = super::layer::split_key(inner).unwrap_or_default();
                if is_secret(&path) {
                    let end = arg.len() - tail.len();
                    format!("{}{REDACTED}", &arg[..end])
                } else if is_servers(&path) {
                    format!("{}{}", &arg[..arg.len() - tail.len()], redact_servers(tail))
                } else {
                    redact_uri(arg)
                }
            }
            None => redact_uri(arg),
        };
        let plain = !shown.is_empty() && !shown.contains(|c: char| c.is_whitespace() || "'\"$`\\|&;<>*?()".contains(c));
        out.push(if plain { shown } else { format!("'{}'", shown.replace('\'', r"'\''")) });
    }
    out.join(" ")
}
