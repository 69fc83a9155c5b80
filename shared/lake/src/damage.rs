//! What is broken, what still reads, and what to restore. Pure, from the classes of a look.

use std::collections::BTreeSet;

use crate::classes::{Absent, Classes};
use crate::look::Look;

/// What is broken in a dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Damage {
    /// Versions of the main tree whose every file is there in its size, and whose manifest reads.
    pub whole: Vec<u64>,
    /// Versions that lack a file or have one in another size.
    pub broken: Vec<u64>,
    /// Manifests that cannot be read, by path.
    pub unreadable: Vec<String>,
    /// What to bring back from a copy so that HEAD reads again, by path.
    pub restore: Vec<String>,
    /// Manifests with the names of the older scheme (`7.manifest`), where both are there.
    pub old_names: Vec<String>,
}

impl Damage {
    /// The newest version that still reads.
    pub fn newest_whole(&self) -> Option<u64> {
        self.whole.last().copied()
    }
}

/// What is broken, or `None` where nothing is.
pub fn damage(look: &Look, classes: &Classes) -> Option<Damage> {
    let broken: BTreeSet<u64> = classes.missing.iter().flat_map(|absent| needed_by(look, absent)).collect();
    let versions = look.versions();
    let (broken, whole): (Vec<u64>, Vec<u64>) =
        versions.iter().map(|(_, m)| m.version).partition(|v| broken.contains(v));
    let old_name =
        |path: &str| path.rsplit('/').next().is_some_and(|name| name.len() < "00000000000000000000.manifest".len());
    let old_names = versions.iter().map(|(_, m)| m.path.clone()).filter(|p| look.mixed_names && old_name(p));
    let out = Damage {
        whole,
        broken,
        unreadable: look.unreadable.iter().map(|(path, _)| path.clone()).collect(),
        restore: classes.missing.iter().filter(|m| m.by_head).map(|m| m.path.clone()).collect(),
        old_names: old_names.collect(),
    };
    let nothing = classes.missing.is_empty() && out.unreadable.is_empty() && !look.mixed_names;
    (!nothing).then_some(out)
}

/// The versions of the main tree that need an absent file.
fn needed_by(look: &Look, absent: &Absent) -> Vec<u64> {
    let versions = look.versions();
    match crate::classes::named(&look.uses, &absent.path) {
        Some(by) => versions.iter().filter(|(i, _)| by.contains(*i)).map(|(_, m)| m.version).collect(),
        None if absent.by_head => vec![look.version()],
        None => Vec::new(),
    }
}

/// Numbers as ranges, for people: `1–4, 7`.
pub fn ranges(numbers: &[u64]) -> String {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for n in numbers {
        match out.last_mut() {
            Some((_, last)) if *last + 1 == *n => *last = *n,
            _ => out.push((*n, *n)),
        }
    }
    let text = |(a, b): &(u64, u64)| if a == b { a.to_string() } else { format!("{a}–{b}") };
    out.iter().map(text).collect::<Vec<_>>().join(", ")
}
