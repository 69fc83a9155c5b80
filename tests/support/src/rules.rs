//! Rules that several tests use.

use crate::proxy::{Action, Gate, Request};

/// What a write is about, as one short word: the method and the place in a dataset (`PUT _versions`) or registry (`PUT claims`).
/// A bulk delete is a `DELETE` of the first key that it names.
pub fn kind(request: &Request) -> String {
    match request.keys.first() {
        Some(key) => format!("DELETE {}", place(key)),
        None => format!("{} {}", request.method, place(&request.path)),
    }
}

/// The directory of a dataset or registry that a path lies in, or its last segment.
fn place(path: &str) -> &str {
    const DATASET: [&str; 7] = ["_versions", "_transactions", "_indices", "_deletions", "_refs", "data", "tree"];
    let segments: Vec<&str> = path.split('/').collect();
    let in_registry = segments.windows(3).find(|w| w[0] == "_squire" && w[1] == "v1").map(|w| w[2]);
    let in_dataset = || segments.iter().rev().skip(1).find(|s| DATASET.contains(s)).copied();
    let name = segments.last().copied().unwrap_or_default();
    let other = if name.starts_with(".squire-probe-") { "probe" } else { name };
    in_registry.or_else(in_dataset).unwrap_or(other)
}

/// The `n`-th write gets this action, everything else passes.
pub fn on_nth_write(n: usize, action: Action) -> impl FnMut(&Request) -> Action + Send {
    move |request| if request.write == Some(n) { action.clone() } else { Action::Pass }
}

/// The `n`-th write of a [`kind`] gets this action, everything else passes.
pub fn on_nth_of_kind(wanted: &str, n: usize, action: Action) -> impl FnMut(&Request) -> Action + Send + use<> {
    let wanted = wanted.to_string();
    let mut seen = 0;
    move |request| {
        seen += usize::from(request.is_write() && kind(request) == wanted);
        if seen == n && request.is_write() && kind(request) == wanted { action.clone() } else { Action::Pass }
    }
}

/// Every request that matches is held at the returned gate until it opens, everything else passes.
pub fn gated(mut matches: impl FnMut(&Request) -> bool + Send) -> (Gate, impl FnMut(&Request) -> Action + Send) {
    let gate = Gate::new();
    let held = gate.clone();
    let rule = move |request: &Request| if matches(request) { Action::Hold(held.clone()) } else { Action::Pass };
    (gate, rule)
}

/// The first `n` attempts of each distinct operation that matches get this action.
pub fn failing_first(
    n: usize,
    action: Action,
    mut matches: impl FnMut(&Request) -> bool + Send,
) -> impl FnMut(&Request) -> Action + Send {
    move |request| if request.attempt <= n && matches(request) { action.clone() } else { Action::Pass }
}
