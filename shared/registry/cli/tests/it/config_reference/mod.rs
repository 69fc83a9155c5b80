//! `docs/configuration.md` says what the code says.
//!
//! The page is made of three sources: the doc comments of the configuration's fields, the serialised defaults, and
//! `squire_service::config::Effect`. `UPDATE_DOCS=1` writes it.

mod effects;
mod page;
mod source;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use squire_registry::{Floors, Policy, RequiredIndex};
use squire_service::config::{ConfigError, Loaded, Loader};
use squire_service::human;

use page::{Row, page, sections};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn rows() -> Vec<Row> {
    sections().into_iter().flat_map(|section| section.rows).collect()
}

/// A loader without any outside.
fn loader() -> Loader<Policy, Floors> {
    Loader::new(9464).directory("/nonexistent").env(Vec::<(String, String)>::new())
}

#[test]
fn the_page_is_the_one_that_the_code_makes() {
    let (made, path) = (page(), root().join("docs/configuration.md"));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    if made != kept {
        let line = made.lines().zip(kept.lines()).take_while(|(a, b)| a == b).count();
        let at = |text: &str| text.lines().nth(line).unwrap_or("(nothing)").to_owned();
        panic!(
            "docs/configuration.md, line {}, is\n  {}\nand the code makes\n  {}\nrun this test with UPDATE_DOCS=1",
            line + 1,
            at(&kept),
            at(&made)
        );
    }
}

/// The keys of a serialised configuration, dotted.
fn keys(value: &Value, at: &str, out: &mut BTreeSet<String>) {
    match value {
        // Tables of names that the operator chooses.
        Value::Object(_) if at == "estate.tiers" => _ = out.insert(at.to_owned()),
        Value::Object(map) => {
            for (key, inner) in map {
                let key = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
                keys(inner, &key, out);
            }
        }
        _ => _ = out.insert(at.to_owned()),
    }
}

#[test]
fn every_key_has_a_row_and_every_row_is_a_key() {
    let mut known = BTreeSet::new();
    keys(&page::defaults(), "", &mut known);
    let told: BTreeSet<String> = rows().iter().map(Row::key).collect();
    assert_eq!(told, known);
    assert_eq!(rows().len(), known.len(), "a key has two rows");
    let index = RequiredIndex { columns: vec!["id".into()], kind: "BTREE".into(), build: false };
    let index = serde_json::to_value(index).unwrap();
    let known: Vec<&String> = index.as_object().unwrap().keys().collect();
    let row = rows().into_iter().find(|row| row.key() == "policy.required_indices").unwrap();
    assert_eq!(row.members.iter().map(|m| &m.name).collect::<Vec<_>>(), known);
}

#[test]
fn every_row_says_what_its_key_means() {
    for section in sections() {
        assert!(!section.docs.is_empty(), "[{}]", section.name);
        for row in section.rows {
            let texts = row.members.iter().map(|member| &member.docs).chain([&row.docs]);
            for text in texts {
                assert!(text.ends_with('.') || text.ends_with(')'), "{}: {text:?}", row.key());
                // Links of the code's own documentation, and defaults that nobody would correct.
                for wrong in ["[`", "crate::", "design/", "Default"] {
                    assert!(!text.contains(wrong), "{}: {wrong:?} in {text:?}", row.key());
                }
            }
        }
    }
}

/// Whether key and value were taken; the value need not fit the values of other keys.
fn takes(loaded: &Result<Loaded<Policy, Floors>, ConfigError>) -> bool {
    let fits_alone = |error: &ConfigError| {
        let issues = error.issues();
        !issues.is_empty() && issues.iter().all(|i| RELATIONS.iter().any(|r| i.what.contains(r)))
    };
    loaded.as_ref().err().is_none_or(fits_alone)
}

/// What is said of a key that is right and lacks another one.
const RELATIONS: [&str; 3] = ["go together", "cannot be kept without [prices]", "no server is named"];

#[test]
fn every_variable_and_every_set_on_the_page_is_taken() {
    for row in rows() {
        let value = match (&row.default, row.ty.as_str()) {
            (Some(default), _) => default.clone(),
            (None, "duration") => "10s".to_owned(),
            (None, "size") => "1GiB".to_owned(),
            (None, "whole number" | "number") => "1".to_owned(),
            (None, _) if row.key() == "tracing.endpoint" => "http://x".to_owned(),
            (None, _) => "x".to_owned(),
        };
        let values = match row.ty.as_str() {
            "one of the values below" => row.members.iter().map(|member| member.name.clone()).collect(),
            _ => vec![value],
        };
        for value in values {
            let by_variable = loader().env([(row.variable(), value.clone())]).load();
            assert!(takes(&by_variable), "{}={value}: {by_variable:?}", row.variable());
            let by_set = loader().sets([format!("{}={value}", row.key())]).load();
            assert!(takes(&by_set), "--set {}={value}: {by_set:?}", row.key());
        }
    }
}

#[test]
fn the_example_of_the_page_loads_and_layers_win_as_it_says() {
    let page = page();
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let loaded = loader()
        .stdin(example)
        .file(Some("-".to_owned()))
        .env([
            ("SQUIRE_POLICY__RETENTION", "15d"),
            ("SQUIRE_LIMITS__MEMORY", "9GiB"),
            ("SQUIRE_ESTATE__ROOTS", "[\"./a\"]"),
        ])
        .sets(["policy.retention=16d", "policy.retention=17d", "estate.tiers.bronze=100"])
        .flag("--registry", "registry.root", Some("/reg"))
        .load()
        .unwrap();
    let config = &loaded.config;
    assert_eq!(human::format_duration(config.policy.retention), "17d");
    assert_eq!(human::format_size(config.limits.memory), "9GiB");
    assert_eq!(config.policy.retain_versions, 3, "a key that the file leaves out");
    assert_eq!(config.estate.tiers, [("bronze".to_owned(), 100), ("gold".to_owned(), 524_288)].into());
    assert_eq!(config.registry.root.as_deref(), Some("/reg"));
    assert_eq!(config.estate.roots, ["./a"], "a list replaces the list below it");
    assert_eq!(config.storage.options_for("s3://other-bucket/t")["aws_endpoint"], "https://s3.example.com");
    let sets =
        ["storage.\"s3://lake.example\".aws_region=eu-central-1", "estate.roots=[\"s3://lake\", \"s3://archive\"]"];
    let loaded = loader().sets(sets).env([("SQUIRE_MAINTENANCE_PORT_9464_TCP", "tcp://10.0.0.1:9464")]).load().unwrap();
    assert_eq!(loaded.config.storage.options_for("s3://lake.example/t")["aws_region"], "eu-central-1");
    assert_eq!(loaded.config.estate.roots, ["s3://lake", "s3://archive"]);
}

#[test]
fn units_are_what_the_page_says() {
    let seconds = |text: &str| human::parse_duration(text).unwrap().as_secs();
    assert_eq!(
        ["90s", "15m", "1h 30m", "7d", "14days", "2w"].map(seconds),
        [90, 900, 5_400, 604_800, 1_209_600, 1_209_600]
    );
    assert_eq!((seconds("1m"), seconds("1M")), (60, 2_630_016));
    assert!(loader().sets(["policy.retention=7"]).load().is_err());
    let bytes = |text: &str| human::parse_size(text).unwrap().as_u64();
    assert_eq!(["512MiB", "1GiB"].map(bytes), [536_870_912, 1_073_741_824]);
    assert_eq!(["500MB", "1GB", "4096"].map(bytes), [500_000_000, 1_000_000_000, 4_096]);
    assert_eq!(loader().sets(["limits.memory=4096"]).load().unwrap().config.limits.memory.as_u64(), 4_096);
}

#[test]
fn every_key_has_an_effect() {
    for row in rows() {
        let effect = squire_service::config::Effect::of(&row.key());
        assert!(effect.is_some_and(|e| !e.is_not_yet()), "{} is read by nobody", row.key());
    }
    let loaded = loader().sets(["grace.quarantine=8d", "limits.concurrency=2"]).load().unwrap();
    assert!(!loaded.checked_text().contains("no effect yet"));
}
