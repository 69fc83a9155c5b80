//! Any text is a URI that has a tier or none.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../shared/lake/src/tier.rs"]
mod tier;

fuzz_target!(|uri: &str| {
    let tiers = [("bronze", 512), ("silver", 262_144), ("gold", 524_288)];
    let tiers = tiers.into_iter().map(|(name, rows)| (name.to_owned(), rows)).collect();
    let (found, layout) = tier::tier_of(uri, &tiers);
    assert_eq!(found.is_none(), layout == tier::Layout::None, "{uri}");
    assert!(found.is_none_or(|tier| tiers.contains_key(&tier)), "{uri}");
});
