//! Which program reads which key, by the programs' own source, compared with `config/effect.rs`.

use std::path::Path;

use squire_service::config::{Effect, Program};

use super::{root, rows, sections};

/// The code of all sources below a folder: no white space, no comments.
fn code(folder: &Path, out: &mut String) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.ends_with("shared/service/src/config") {
            // Loads and checks every key.
        } else if path.is_dir() {
            code(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            out.extend(lines.flat_map(|line| line.chars().filter(|c| !c.is_whitespace())));
        }
    }
}

fn programs() -> [(Program, String); 4] {
    let of = |folder: &str| {
        let mut out = String::new();
        code(&root().join(folder), &mut out);
        out
    };
    [
        (Program::Maintenance, of("services/maintenance/src")),
        (Program::Reconcile, of("services/reconcile/src")),
        (Program::IndexBuild, of("services/index-build/src")),
        (Program::Registry, of("shared/registry/cli/src")),
    ]
}

/// Whether `code` has `.name` as a field.
fn has_field(code: &str, before: &str, name: &str) -> bool {
    let wanted = format!("{before}.{name}");
    code.match_indices(&wanted).any(|(at, _)| {
        let rest = &code[at + wanted.len()..];
        // A check of the values alone is no effect.
        !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '(') && !rest.starts_with(".validate(")
    })
}

/// Whether `code` reads a section or key of a configuration.
fn reads(code: &str, name: &str) -> bool {
    ["config", "config()", "settings"].iter().any(|config| has_field(code, config, name))
}

fn has_effect(key: &str, program: Program) -> bool {
    Effect::of(key).is_some_and(|effect| !effect.is_not_yet() && effect.programs().contains(&program))
}

#[test]
fn what_a_program_reads_has_an_effect_on_it() {
    for (program, code) in programs() {
        for row in rows() {
            assert!(
                !reads(&code, &row.key()) || has_effect(&row.key(), program),
                "{program} reads {}: say so in shared/service/src/config/effect.rs",
                row.key()
            );
        }
        // What governs a dataset takes these two whole; which of their keys matter shows where those are read.
        let whole = ["policy", "floors"];
        let sections = sections().into_iter().filter(|section| !whole.contains(&section.name.as_str()));
        for section in sections.filter(|section| reads(&code, &section.name)) {
            let any = section.rows.iter().any(|row| has_effect(&row.key(), program));
            assert!(
                any || has_effect(&section.name, program),
                "{program} reads [{}]: say so in shared/service/src/config/effect.rs",
                section.name
            );
        }
    }
}

#[test]
fn what_has_an_effect_on_a_program_is_read() {
    let mut shared = String::new();
    for folder in ["shared/registry/src", "shared/lake/src", "shared/service/src"] {
        code(&root().join(folder), &mut shared);
    }
    for (program, code) in programs() {
        for row in rows().iter().filter(|row| has_effect(&row.key(), program)) {
            let (section, key) = (&row.path[0], &row.path[row.path.len() - 1]);
            assert!(has_field(&code, "", section), "{program} does not read [{section}], so not {}", row.key());
            // The admin command shows and sets a policy whole, key by key of `Policy::KEYS`.
            let whole = program == Program::Registry && section == "policy";
            assert!(
                whole || has_field(&code, section, key) || has_field(&shared, "", key),
                "nothing that {program} runs reads {}",
                row.key()
            );
        }
    }
}
