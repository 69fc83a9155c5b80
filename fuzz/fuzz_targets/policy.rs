//! Any text as the value of any policy key: refused with a sentence, or a policy that reads back as itself.
//!
//! The first byte chooses the key.

#![no_main]

use libfuzzer_sys::fuzz_target;
use squire_registry::{Floors, Policy, parse_time};

fuzz_target!(|text: &str| {
    let Some(first) = text.chars().next() else { return };
    let (key, value) = (Policy::KEYS[first as usize % Policy::KEYS.len()], &text[first.len_utf8()..]);
    let _ = parse_time(value);
    let before = Policy::default();
    let next = match before.with(key, value) {
        Ok(next) => next,
        Err(why) => {
            assert!(why.contains(key), "{why}");
            return;
        }
    };
    assert_eq!(next.validate(), Ok(()));
    assert_eq!(Policy::from_map(&next.to_map()).as_ref(), Ok(&next), "{key} = {value}");
    // What is held back lets nothing go sooner, and floors only raise.
    assert_eq!(before.sooner(&before.hold_back(&next)), Vec::<String>::new());
    let (clamped, _) = Floors::default().clamp(&next);
    assert!(clamped.retention >= next.retention && clamped.retain_versions >= next.retain_versions);
});
