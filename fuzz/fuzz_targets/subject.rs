//! Parsing and printing of a SUBJECT are inverse, and neither panics.

#![no_main]

use libfuzzer_sys::fuzz_target;
use squire_registry::Subject;

fuzz_target!(|text: &str| {
    let Ok(subject) = text.parse::<Subject>() else { return };
    let printed = subject.to_string();
    assert_eq!(printed.parse::<Subject>().ok(), Some(subject), "{printed}");
});
