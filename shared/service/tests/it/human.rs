//! Durations, sizes and counts.

use std::time::Duration;

use bytesize::ByteSize;
use proptest::prelude::*;
use rstest::rstest;
use squire_service::human::{
    format_duration, format_size, parse_duration, parse_size, show_bytes, show_count, show_seconds,
};

#[rstest]
#[case(604_800, "7d")]
#[case(34_560_000, "400d")]
#[case(90, "90s")]
#[case(5_400, "90m")]
#[case(5_401, "1h 30m 1s")]
#[case(0, "0s")]
fn durations_are_written_shortly(#[case] seconds: u64, #[case] text: &str) {
    assert_eq!(format_duration(Duration::from_secs(seconds)), text);
}

#[rstest]
#[case(4 << 30, "4GiB")]
#[case(512_000_000, "512MB")]
#[case(1000, "1kB")]
#[case(1001, "1001B")]
#[case(0, "0B")]
fn sizes_are_written_exactly(#[case] bytes: u64, #[case] text: &str) {
    assert_eq!(format_size(ByteSize::b(bytes)), text);
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(seconds in 0u64..40_000_000_000, bytes in 0u64..(1 << 53)) {
        let duration = Duration::from_secs(seconds);
        prop_assert_eq!(parse_duration(&format_duration(duration)).unwrap(), duration);
        prop_assert_eq!(parse_size(&format_size(ByteSize::b(bytes))).unwrap(), ByteSize::b(bytes));
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in "\\PC{0,40}") {
        let _ = parse_duration(&text);
        let _ = parse_size(&text);
    }

    #[test]
    fn shown_numbers_keep_their_width(n in any::<u64>()) {
        prop_assert!(show_bytes(n).len() <= 9, "{}", show_bytes(n));
        prop_assert!(show_count(n).len() <= 6, "{}", show_count(n));
    }
}

#[rstest]
#[case(0, "0 B")]
#[case(1023, "1023 B")]
#[case(1536, "1.5 KiB")]
#[case(98 << 30, "98 GiB")]
#[case(1_073_700_000, "1.0 GiB")]
fn bytes_are_shown_in_the_largest_unit(#[case] n: u64, #[case] text: &str) {
    assert_eq!(show_bytes(n), text);
}

#[rstest]
#[case(9999, "9999")]
#[case(12_000, "12k")]
#[case(3_400_000, "3.4M")]
fn counts_are_shown_shortly(#[case] n: u64, #[case] text: &str) {
    assert_eq!(show_count(n), text);
}

#[rstest]
#[case(0.04, "0.0s")]
#[case(40.0, "40s")]
#[case(720.0, "12m")]
#[case(18_000.0, "5h")]
#[case(f64::NAN, "0.0s")]
fn seconds_are_shown_in_one_unit(#[case] s: f64, #[case] text: &str) {
    assert_eq!(show_seconds(s), text);
}
