//! One dataset has one canonical URI: it is a fixed point, and what lies below a root stays below it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use squire_registry::{canonical_uri, join_uri, within};

fuzz_target!(|text: &str| {
    let Ok(uri) = canonical_uri(&format!("s3://{text}")) else { return };
    assert_eq!(canonical_uri(&uri).ok().as_ref(), Some(&uri), "{text}");
    let below = join_uri("s3://lake/root", text);
    assert!(within(&below, "s3://lake/root"), "{below}");
    assert_eq!(canonical_uri(&below).ok(), Some(below));
});
