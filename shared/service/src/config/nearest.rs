//! The nearest known key to an unknown one.

use super::layer::join_key;

/// All keys that a configuration has, as paths.
pub(super) fn known_keys(defaults: &serde_json::Value) -> Vec<Vec<String>> {
    let mut out = Vec::new();
    walk(defaults, &mut Vec::new(), &mut out);
    // Optional tables that are absent by default.
    for key in ["ca", "cert", "key"] {
        out.push(vec!["bus".to_owned(), "tls".to_owned(), key.to_owned()]);
    }
    out
}

fn walk(value: &serde_json::Value, path: &mut Vec<String>, out: &mut Vec<Vec<String>>) {
    match value {
        serde_json::Value::Object(map) if path.len() < 2 => {
            for (key, inner) in map {
                path.push(key.clone());
                walk(inner, path, out);
                path.pop();
            }
        }
        _ => out.push(path.clone()),
    }
}

/// The known path nearest to `unknown`: a key of the same name in another section, else a key of
/// the same section with a similar name, else the most similar of all.
pub(super) fn nearest(unknown: &[String], siblings: &[&str], known: &[Vec<String>]) -> Option<Vec<String>> {
    let (last, parent) = unknown.split_last()?;
    let same_name: Vec<&Vec<String>> =
        known.iter().filter(|k| k.last().is_some_and(|l| l.eq_ignore_ascii_case(last))).collect();
    let sibling =
        siblings.iter().map(|s| (strsim::damerau_levenshtein(&s.to_lowercase(), &last.to_lowercase()), *s)).min();
    let as_path = |name: &str| {
        let mut path = parent.to_vec();
        path.push(name.to_owned());
        path
    };
    if let Some((distance, name)) = sibling
        && distance <= (last.len() / 3).max(1)
    {
        return Some(as_path(name));
    }
    if let Some(path) = same_name.first() {
        return Some((*path).clone());
    }
    let joined = join_key(unknown).to_lowercase();
    let overall = known
        .iter()
        .map(|k| (strsim::jaro_winkler(&join_key(k).to_lowercase(), &joined), k))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match (sibling, overall) {
        (Some((_, name)), Some((score, _))) if score < 0.85 => Some(as_path(name)),
        (_, Some((_, path))) => Some(path.clone()),
        (Some((_, name)), None) => Some(as_path(name)),
        (None, None) => None,
    }
}

/// Name of the environment variable that sets `path`.
pub(super) fn env_name(path: &[String]) -> String {
    format!("SQUIRE_{}", path.join("__").to_uppercase())
}
