//! Durations, sizes and counts as people write and read them.
//!
//! The [`duration`] and [`size`] modules are for `#[serde(with = "…")]`; their `option`
//! submodules do the same for optional keys.

use std::time::Duration;

use bytesize::ByteSize;

/// What a duration looks like, for error messages.
pub const DURATION_HINT: &str = "a duration such as \"7d\", \"14days\", \"1h 30m\" or \"90s\"";
/// What a size looks like, for error messages.
pub const SIZE_HINT: &str = "a size such as \"4GiB\", \"512MB\" or a number of bytes";

/// Parses a human duration: `7d`, `14days`, `1h 30m`, `90s`.
///
/// # Errors
/// A message that says what was wrong and what is accepted.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim())
        .map_err(|e| format!("{text:?} is not a duration ({e}); expected {DURATION_HINT}"))
}

/// Parses a human size: `4GiB`, `512MB`, `1048576`.
///
/// # Errors
/// A message that says what was wrong and what is accepted.
pub fn parse_size(text: &str) -> Result<ByteSize, String> {
    let trimmed = text.trim();
    if trimmed.starts_with('-') {
        return Err(format!("{text:?} is negative; expected {SIZE_HINT}"));
    }
    trimmed.parse::<ByteSize>().map_err(|e| format!("{text:?} is not a size ({e}); expected {SIZE_HINT}"))
}

/// Writes a duration so that [`parse_duration`] reads it back: `7d`, `1h 30m`, `90s`, `0s`.
pub fn format_duration(duration: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let mut seconds = duration.as_secs();
    // One unit where it divides evenly ("90s" reads better than "1m 30s").
    let mut parts = Vec::new();
    if duration.subsec_nanos() == 0 {
        for (size, unit) in UNITS {
            if seconds >= size && seconds.is_multiple_of(size) && seconds / size < 1_000 {
                return format!("{}{unit}", seconds / size);
            }
        }
    }
    for (size, unit) in UNITS {
        if seconds >= size {
            parts.push(format!("{}{unit}", seconds / size));
            seconds %= size;
        }
    }
    let nanos = duration.subsec_nanos();
    if nanos > 0 {
        let text =
            if nanos.is_multiple_of(1_000_000) { format!("{}ms", nanos / 1_000_000) } else { format!("{nanos}ns") };
        parts.push(text);
    }
    if parts.is_empty() {
        return "0s".to_owned();
    }
    parts.join(" ")
}

/// Writes a size exactly, so that [`parse_size`] reads it back: `4GiB`, `512MB`, `1000B`.
pub fn format_size(size: ByteSize) -> String {
    const UNITS: [(u64, &str); 10] = [
        (1 << 50, "PiB"),
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
        (1_000_000_000_000_000, "PB"),
        (1_000_000_000_000, "TB"),
        (1_000_000_000, "GB"),
        (1_000_000, "MB"),
        (1_000, "kB"),
    ];
    let bytes = size.as_u64();
    // The first of the smallest numbers: 512MB is not 500000KiB.
    let fits = UNITS.iter().filter(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit));
    match fits.min_by_key(|(unit, _)| bytes / unit) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

/// A size for reading, at most nine columns: `0 B`, `512 B`, `1.5 GiB`, `980 MiB`.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1023.5 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else if value < 9.95 {
        format!("{value:.1} {}", UNITS[unit])
    } else {
        format!("{value:.0} {}", UNITS[unit])
    }
}

/// A count for reading, at most six columns: `0`, `9999`, `12k`, `3.4M`.
pub fn show_count(count: u64) -> String {
    const UNITS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    if count < 10_000 {
        return count.to_string();
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit < UNITS.len() - 1 {
        value /= 1000.0;
        unit += 1;
    }
    if value < 9.95 { format!("{value:.1}{}", UNITS[unit]) } else { format!("{value:.0}{}", UNITS[unit]) }
}

/// A length of time for reading, in its largest unit: `3d`, `5h`, `12m`, `40s`, `0s`.
pub fn show_seconds(seconds: f64) -> String {
    let s = if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
    if s < 10.0 {
        format!("{s:.1}s")
    } else if s < 120.0 {
        format!("{s:.0}s")
    } else if s < 7_200.0 {
        format!("{:.0}m", s / 60.0)
    } else if s < 172_800.0 {
        format!("{:.0}h", s / 3_600.0)
    } else {
        format!("{:.0}d", s / 86_400.0)
    }
}

/// serde for [`Duration`] as a human duration.
pub mod duration {
    use std::fmt;
    use std::time::Duration;

    use serde::{Deserializer, Serializer, de};

    /// Writes the duration as [`super::format_duration`] does.
    ///
    /// # Errors
    /// Only those of the serializer.
    pub fn serialize<S: Serializer>(value: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&super::format_duration(*value))
    }

    /// Reads what [`super::parse_duration`] reads; numbers are refused, for they carry no unit.
    ///
    /// # Errors
    /// When the value is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        struct V;
        impl de::Visitor<'_> for V {
            type Value = Duration;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(super::DURATION_HINT)
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Duration, E> {
                super::parse_duration(v).map_err(E::custom)
            }
        }
        d.deserialize_any(V)
    }

    /// The same for an optional key; absent or null is `None`.
    pub mod option {
        use std::time::Duration;

        use serde::{Deserialize, Deserializer, Serializer};

        #[derive(Deserialize)]
        struct Wrap(#[serde(with = "super")] Duration);

        /// Writes the duration, or null.
        ///
        /// # Errors
        /// Only those of the serializer.
        pub fn serialize<S: Serializer>(value: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
            match value {
                Some(v) => super::serialize(v, s),
                None => s.serialize_none(),
            }
        }

        /// Reads a duration or null.
        ///
        /// # Errors
        /// When the value is neither.
        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
            Ok(Option::<Wrap>::deserialize(d)?.map(|w| w.0))
        }
    }
}

/// serde for [`ByteSize`] as a human size.
pub mod size {
    use std::fmt;

    use bytesize::ByteSize;
    use serde::{Deserializer, Serializer, de};

    /// Writes the size as [`super::format_size`] does.
    ///
    /// # Errors
    /// Only those of the serializer.
    pub fn serialize<S: Serializer>(value: &ByteSize, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&super::format_size(*value))
    }

    /// Reads what [`super::parse_size`] reads, or a number of bytes.
    ///
    /// # Errors
    /// When the value is not a size.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<ByteSize, D::Error> {
        struct V;
        impl de::Visitor<'_> for V {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(super::SIZE_HINT)
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<ByteSize, E> {
                super::parse_size(v).map_err(E::custom)
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<ByteSize, E> {
                Ok(ByteSize::b(v))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<ByteSize, E> {
                u64::try_from(v).map(ByteSize::b).map_err(|_| E::invalid_value(de::Unexpected::Signed(v), &self))
            }
        }
        d.deserialize_any(V)
    }

    /// The same for an optional key; absent or null is `None`.
    pub mod option {
        use bytesize::ByteSize;
        use serde::{Deserialize, Deserializer, Serializer};

        #[derive(Deserialize)]
        struct Wrap(#[serde(with = "super")] ByteSize);

        /// Writes the size, or null.
        ///
        /// # Errors
        /// Only those of the serializer.
        pub fn serialize<S: Serializer>(value: &Option<ByteSize>, s: S) -> Result<S::Ok, S::Error> {
            match value {
                Some(v) => super::serialize(v, s),
                None => s.serialize_none(),
            }
        }

        /// Reads a size or null.
        ///
        /// # Errors
        /// When the value is neither.
        pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<ByteSize>, D::Error> {
            Ok(Option::<Wrap>::deserialize(d)?.map(|w| w.0))
        }
    }
}
