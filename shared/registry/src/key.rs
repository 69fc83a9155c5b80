//! From a record's id to the name of its directory.

use percent_encoding::{percent_decode_str, utf8_percent_encode};
use sha2::{Digest, Sha256};

use crate::subject::ENCODED;

/// Longest encoded id that is used as it is; the rest is cut and hashed.
const LONGEST: usize = 150;
/// What is kept of a cut id, for the eye.
const KEPT: usize = 60;

/// The key of an id: percent-encoded outside `[A-Za-z0-9._-]`; where that is no safe file name (over 150 bytes, `.`,
/// `..`, empty, and on `local` roots any upper case, since local file systems may fold it) `<first 60>~<sha256, 20 hex>`.
/// `~` is never in a plain key, so the two forms cannot meet.
pub(crate) fn encode(id: &str, local: bool) -> String {
    let plain = utf8_percent_encode(id, ENCODED).to_string();
    let folds = local && id.bytes().any(|b| b.is_ascii_uppercase());
    if plain.len() > LONGEST || matches!(plain.as_str(), "" | "." | "..") || folds {
        // Escapes are ASCII, so every cut is on a character's boundary.
        let head = &plain[..plain.len().min(KEPT)];
        return format!("{head}~{}", hash(id));
    }
    plain
}

/// The id of a plain key; `None` where it was cut and hashed, and only the record itself knows its id.
pub(crate) fn decode(key: &str) -> Option<String> {
    if key.contains('~') {
        return None;
    }
    percent_decode_str(key).decode_utf8().ok().map(|s| s.into_owned())
}

/// The first 20 hex digits of SHA-256.
pub(crate) fn hash(text: &str) -> String {
    let mut out = String::with_capacity(20);
    for byte in &Sha256::digest(text.as_bytes())[..10] {
        use std::fmt::Write;
        // Writing into a String cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_plain_id_is_its_own_key() {
        assert_eq!(encode("bronze.v1_x-2", true), "bronze.v1_x-2");
        assert_eq!(encode("a/b c%", false), "a%2Fb%20c%25");
    }

    #[test]
    fn dots_and_nothing_are_hashed() {
        for id in [".", "..", ""] {
            let key = encode(id, false);
            assert_eq!(key.len(), id.len() + 21, "{key}");
            assert_eq!(decode(&key), None);
        }
    }

    #[test]
    fn the_longest_plain_key_has_150_bytes() {
        assert_eq!(encode(&"a".repeat(150), false), "a".repeat(150));
        let cut = encode(&"a".repeat(151), false);
        assert_eq!(cut.len(), 81);
        assert_eq!(&cut[..61], format!("{}~", "a".repeat(60)));
        // Escapes count: fifty times three bytes fit, fifty-one times do not.
        assert_eq!(encode(&"/".repeat(50), false).len(), 150);
        assert_eq!(encode(&"/".repeat(51), false).len(), 81);
    }

    #[test]
    fn upper_case_is_hashed_where_files_may_fold_it() {
        assert_eq!(encode("Gold", false), "Gold");
        assert_eq!(encode("Gold", true), "Gold~6249df4367d0a2e088c8");
        assert_ne!(encode("Gold", true).to_lowercase(), encode("gold", true).to_lowercase());
    }

    proptest! {
        #[test]
        fn a_key_is_a_safe_file_name(id in ".*", local: bool) {
            let key = encode(&id, local);
            prop_assert!(key.len() <= 150 && !key.is_empty());
            prop_assert!(key.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-%~".contains(&b)));
            prop_assert!(key != "." && key != "..");
        }

        #[test]
        fn a_plain_key_gives_its_id_back(id in "[a-z0-9 $/%é._-]{1,40}") {
            prop_assume!(id != "." && id != "..");
            prop_assert_eq!(decode(&encode(&id, true)), Some(id));
        }

        #[test]
        fn different_ids_never_meet_even_when_case_is_folded(a in "[aAbB/é%]{0,8}", b in "[aAbB/é%]{0,8}") {
            prop_assume!(a != b);
            prop_assert_ne!(encode(&a, true).to_lowercase(), encode(&b, true).to_lowercase());
            prop_assert_ne!(encode(&a, false), encode(&b, false));
        }
    }
}
