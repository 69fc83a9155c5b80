//! The page: rows out of the doc comments, defaults out of `Default`.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;
use squire_registry::{Floors, Policy};
use squire_service::config::{BusTls, Config, Effect};

use super::read;
use super::source::{self, Member};

/// One key.
#[derive(Debug)]
pub(super) struct Row {
    /// Its section and its name, and the names between them.
    pub(super) path: Vec<String>,
    /// What its value is, in words.
    pub(super) ty: String,
    /// Its default, as TOML; `None` where it is not set.
    pub(super) default: Option<String>,
    /// What it means.
    pub(super) docs: String,
    /// The values it may have, or the keys of each table in its list.
    pub(super) members: Vec<Member>,
}

impl Row {
    pub(super) fn key(&self) -> String {
        self.path.join(".")
    }

    pub(super) fn variable(&self) -> String {
        format!("SQUIRE_{}", self.path.join("__").to_uppercase())
    }
}

/// A section, and its keys.
pub(super) struct Section {
    pub(super) name: String,
    pub(super) docs: String,
    pub(super) rows: Vec<Row>,
}

/// The default configuration, with the tables that are absent by default.
pub(super) fn defaults() -> Value {
    let mut config = Config::<Policy, Floors>::default();
    config.bus.tls = Some(BusTls::default());
    serde_json::to_value(config).unwrap()
}

/// All sections, in the order of the struct.
pub(super) fn sections() -> Vec<Section> {
    let mut items = source::items(&read("shared/service/src/config/sections.rs"));
    items.extend(source::items(&read("shared/registry/src/policy.rs")));
    let defaults = defaults();
    let one = |section: &Member| {
        let ty = match section.ty.as_str() {
            "P" => "Policy",
            "F" => "Floors",
            ty => ty,
        };
        let mut rows = Vec::new();
        // The keys of `[storage]` are those of the object stores.
        if ty != "Storage" {
            walk(&items, ty, std::slice::from_ref(&section.name), &defaults, &mut rows);
        }
        Section { name: section.name.clone(), docs: section.docs.clone(), rows }
    };
    items["Config"].iter().map(one).collect()
}

fn walk(items: &BTreeMap<String, Vec<Member>>, ty: &str, at: &[String], defaults: &Value, out: &mut Vec<Row>) {
    for field in &items[ty] {
        let path: Vec<String> = at.iter().chain([&field.name]).cloned().collect();
        let inner = field.ty.strip_prefix("Option<").and_then(|t| t.strip_suffix('>')).unwrap_or(&field.ty);
        let listed = inner.strip_prefix("Vec<").and_then(|t| t.strip_suffix('>'));
        let members = items.get(listed.unwrap_or(inner)).cloned().unwrap_or_default();
        let is_table = members.first().is_some_and(|member| !member.ty.is_empty());
        if is_table && listed.is_none() {
            walk(items, inner, &path, defaults, out);
            continue;
        }
        let ty = match (listed, members.is_empty()) {
            (Some(_), false) => "list of tables".to_owned(),
            (None, false) => "one of the values below".to_owned(),
            (Some(one), true) => format!("list of {}s", word(one)),
            (None, true) => word(inner).to_owned(),
        };
        let value = path.iter().try_fold(defaults, |value, name| value.get(name));
        let value = value.unwrap_or_else(|| panic!("{path:?} is not in the default configuration"));
        let default = (!value.is_null()).then(|| toml(value));
        out.push(Row { path, ty, default, docs: field.docs.clone(), members });
    }
}

/// What a type is called on the page.
fn word(ty: &str) -> &'static str {
    match ty {
        "String" => "text",
        "bool" => "`true` or `false`",
        "u8" | "u32" | "u64" | "usize" => "whole number",
        "f64" => "number",
        "Duration" => "duration",
        "ByteSize" => "size",
        "SocketAddr" => "address and port",
        "BTreeMap<String, u64>" => "table of whole numbers",
        "Vec<String>" => "list of texts",
        other => panic!("the type {other} has no name on the page yet: give it one here"),
    }
}

fn toml(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let pairs: Vec<String> = map.iter().map(|(key, value)| format!("{key} = {}", toml(value))).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        other => other.to_string(),
    }
}

/// The whole page.
pub(super) fn page() -> String {
    let sections = sections();
    let mut out = include_str!("head.md").to_owned();
    let effect = |key: &str| Effect::of(key).unwrap_or_else(|| panic!("{key} has no line in config/effect.rs"));
    let mut none = Vec::new();
    for section in &sections {
        if Effect::of(&section.name).is_some_and(Effect::is_not_yet)
            && section.rows.iter().all(|row| effect(&row.key()).is_not_yet())
        {
            none.push(format!("`[{}]`", section.name));
        } else {
            let keys = section.rows.iter().flat_map(|row| {
                let within = row.members.iter().map(|member| format!("{}.{}", row.key(), member.name));
                std::iter::once(row.key()).chain(within)
            });
            none.extend(keys.filter(|key| effect(key).is_not_yet()).map(|key| format!("`{key}`")));
        }
    }
    if !none.is_empty() {
        let keys = none.join(", ");
        writeln!(
            out,
            "\n## Without effect so far\n\nThese keys are read and checked and change nothing yet: {keys}. `--check-config` names those that you set."
        )
        .unwrap();
    }
    for section in &sections {
        write!(out, "\n## `[{}]`\n\n{}\n", section.name, section.docs).unwrap();
        if section.name == "storage" {
            storage(&mut out, effect);
        }
        for row in &section.rows {
            entry(&mut out, row, effect);
        }
    }
    out
}

fn entry(out: &mut String, row: &Row, effect: impl Fn(&str) -> Effect) {
    let key = row.key();
    let default = match &row.default {
        Some(_) if key == "http.listen" => ports(),
        Some(text) => format!("default `{text}`"),
        None => "not set".to_owned(),
    };
    heading(out, &key, &[row.ty.clone(), default, format!("`{}`", row.variable())], effect(&key));
    writeln!(out, "\n{}", row.docs).unwrap();
    if let Effect::Partly(_, gap) = effect(&key) {
        write!(out, "\n**In part so far**: {gap}\n").unwrap();
    }
    if !row.members.is_empty() {
        out.push('\n');
    }
    for member in &row.members {
        let later = effect(&format!("{key}.{}", member.name));
        let later = if later.is_not_yet() && !effect(&key).is_not_yet() { " **No effect yet.**" } else { "" };
        writeln!(out, "- `{}`: {}{later}", member.name, member.docs).unwrap();
    }
}

fn heading(out: &mut String, key: &str, facts: &[String], effect: Effect) {
    let programs: Vec<String> = effect.programs().iter().map(|program| format!("`{program}`")).collect();
    let yet = if effect.is_not_yet() { " · **no effect yet**" } else { "" };
    write!(out, "\n### `{key}`\n\n{} · {}{yet}\n", facts.join(" · "), programs.join(", ")).unwrap();
}

/// The default of `http.listen`, which each daemon passes for itself.
fn ports() -> String {
    let one = |program: &str| {
        let source = read(&format!("services/{program}/src/cli.rs"));
        let port = source.lines().find_map(|line| line.strip_prefix("const PORT: u16 = ")?.strip_suffix(';'));
        let port = port.unwrap_or_else(|| panic!("{program} names no port"));
        format!("`\"127.0.0.1:{port}\"` in `squire-{program}`")
    };
    format!("default {}", ["maintenance", "reconcile", "index-build"].map(one).join(", "))
}

fn storage(out: &mut String, effect: impl Fn(&str) -> Effect) {
    let names = source::list(&read("shared/service/src/config/storage.rs"), "const COMMON: ");
    assert!(names.len() > 10, "{names:?}");
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let rows = [
        (
            "storage.OPTION",
            "storage",
            "`SQUIRE_STORAGE__OPTION`",
            format!(
                "An option for every object store, by the name that Lance takes, in any case. Common ones: {}. Others are passed on \
                 as they are; a near miss of a common one is refused.",
                names.join(", ")
            ),
        ),
        (
            "storage.\"URI\".OPTION",
            "storage",
            "no variable",
            "An option for what lies below this URI. Of several tables the one with the longest URI holds, laid over the options for \
             every store; a URI ends where a path segment ends (`s3://a` is not `s3://ab`). A table that names any credential \
             inherits no credential."
                .to_owned(),
        ),
        (
            "storage.delete.OPTION",
            "storage.delete",
            "`SQUIRE_STORAGE__DELETE__OPTION`",
            "An option for deleting only, laid over the others, so that the rest can run without the right to delete.".to_owned(),
        ),
        (
            "storage.\"URI\".delete.OPTION",
            "storage.delete",
            "no variable",
            "The same below one URI; it takes the place of `[storage.delete]`.".to_owned(),
        ),
    ];
    for (key, of, variable, docs) in rows {
        let facts = ["text, number, `true` or `false`".to_owned(), "not set".to_owned(), variable.to_owned()];
        heading(out, key, &facts, effect(of));
        writeln!(out, "\n{docs}").unwrap();
    }
}
