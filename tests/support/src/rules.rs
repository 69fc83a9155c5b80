//! Rules that several tests use.

use crate::proxy::{Action, Gate, Request};

/// What a write is about, as one short word: the method and the place in a dataset (`PUT _versions`) or registry (`PUT claims`).
pub fn kind(request: &Request) -> String {
    const DATASET: [&str; 7] = ["_versions", "_transactions", "_indices", "_deletions", "_refs", "data", "tree"];
    let segments: Vec<&str> = request.path.split('/').collect();
    let place = match segments.iter().position(|s| *s == "v1") {
        Some(i) if segments.get(i.wrapping_sub(1)) == Some(&"_squire") => segments.get(i + 1).copied(),
        _ => segments.iter().rev().skip(1).find(|s| DATASET.contains(s)).copied(),
    };
    let name = segments.last().copied().unwrap_or_default();
    let place = place.unwrap_or(if name.starts_with(".squire-probe-") { "probe" } else { name });
    format!("{} {place}", request.method)
}

/// The `n`-th write gets this action, everything else passes.
pub fn on_nth_write(n: usize, action: Action) -> impl FnMut(&Request) -> Action + Send {
    move |request| if request.write == Some(n) { action.clone() } else { Action::Pass }
}

/// The `n`-th write of a [`kind`] gets this action, everything else passes.
pub fn on_nth_of_kind(wanted: &str, n: usize, action: Action) -> impl FnMut(&Request) -> Action + Send {
    let wanted = wanted.to_string();
    let mut seen = 0;
    move |request| {
        seen += usize::from(request.is_write() && kind(request) == wanted);
        if seen == n && request.is_write() && kind(request) == wanted { action.clone() } else { Action::Pass }
    }
}

/// The first request that matches is held at the returned gate, everything else passes.
pub fn gated(mut matches: impl FnMut(&Request) -> bool + Send) -> (Gate, impl FnMut(&Request) -> Action + Send) {
    let gate = Gate::new();
    let held = gate.clone();
    let mut done = false;
    let rule = move |request: &Request| {
        if !done && matches(request) {
            done = true;
            return Action::Hold(held.clone());
        }
        Action::Pass
    };
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
