//! What is no document of `export` is refused; what is one can be written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use squire_registry::Document;

fuzz_target!(|text: &str| {
    let Ok(document) = Document::parse(text) else { return };
    let again = document.to_text().and_then(|text| Document::parse(&text));
    assert!(again.is_ok_and(|again| again.objects.len() == document.objects.len()));
});
