//! Durations and sizes as people write them, exact in both directions.
//!
//! Durations are read in every spelling of `humantime` (`7d`, `14days`, `1h 30m`; Lance's own config uses the long
//! form) and written in the shortest exact one. Sizes are read as `1GiB`, `500 MB`, `123` and written without loss.

use std::time::Duration;

use bytesize::ByteSize;

/// Reads a duration.
///
/// # Errors
/// A sentence that shows accepted spellings.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim())
        .map_err(|e| format!("`{text}` is not a duration ({e}); write it like \"7d\", \"1h 30m\" or \"14days\""))
}

/// Writes a duration in the shortest exact spelling: `7d`, `36h`, `90s`.
pub fn format_duration(value: Duration) -> String {
    let seconds = value.as_secs();
    if value.subsec_nanos() != 0 {
        return humantime::format_duration(value).to_string();
    }
    for (unit, name) in [(86_400, "d"), (3_600, "h"), (60, "m")] {
        if seconds != 0 && seconds.is_multiple_of(unit) {
            return format!("{}{name}", seconds / unit);
        }
    }
    format!("{seconds}s")
}

/// Reads a size in bytes.
///
/// # Errors
/// A sentence that shows accepted spellings.
pub fn parse_size(text: &str) -> Result<ByteSize, String> {
    text.trim()
        .parse::<ByteSize>()
        .map_err(|e| format!("`{text}` is not a size ({e}); write it like \"1GiB\", \"500MB\" or \"4096\""))
}

/// Writes a size without loss: `1GiB`, `1536KiB`, `1000B`.
pub fn format_size(value: ByteSize) -> String {
    let bytes = value.as_u64();
    for (unit, name) in [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes != 0 && bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    format!("{bytes}B")
}

struct Text<T>(&'static str, fn(&str) -> Result<T, String>, fn(u64) -> Option<T>);

impl<T> serde::de::Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        (self.1)(text).map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<T, E> {
        (self.2)(n).ok_or_else(|| E::invalid_type(serde::de::Unexpected::Unsigned(n), &self))
    }

    fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<T, E> {
        u64::try_from(n).ok().and_then(self.2).ok_or_else(|| E::invalid_type(serde::de::Unexpected::Signed(n), &self))
    }
}

const DURATION: &str = "a duration such as \"7d\", \"1h 30m\" or \"14days\"";
const SIZE: &str = "a size such as \"1GiB\", \"500MB\" or a number of bytes";

/// `#[serde(with = "human::duration")]` for [`Duration`].
pub mod duration {
    use super::{DURATION, Text, format_duration, parse_duration};
    use std::time::Duration;

    /// Writes the shortest exact spelling.
    ///
    /// # Errors
    /// The serialiser's.
    pub fn serialize<S: serde::Serializer>(value: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format_duration(*value))
    }

    /// Reads any spelling; a bare number has no unit and is refused.
    ///
    /// # Errors
    /// Names the accepted spellings.
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        d.deserialize_any(Text(DURATION, parse_duration, |_| None))
    }
}

/// `#[serde(with = "human::size")]` for [`ByteSize`].
pub mod size {
    use super::{ByteSize, SIZE, Text, format_size, parse_size};

    /// Writes the size without loss.
    ///
    /// # Errors
    /// The serialiser's.
    pub fn serialize<S: serde::Serializer>(value: &ByteSize, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format_size(*value))
    }

    /// Reads a size, also as a bare number of bytes.
    ///
    /// # Errors
    /// Names the accepted spellings.
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<ByteSize, D::Error> {
        d.deserialize_any(Text(SIZE, parse_size, |n| Some(ByteSize::b(n))))
    }
}

macro_rules! optional {
    ($name:ident, $inner:ident, $with:literal, $ty:ty, $doc:literal) => {
        #[doc = $doc]
        pub mod $name {
            use serde::Deserialize;

            #[derive(Deserialize)]
            struct Wrap(#[serde(with = $with)] $ty);

            /// Writes the value, or nothing.
            ///
            /// # Errors
            /// The serialiser's.
            pub fn serialize<S: serde::Serializer>(value: &Option<$ty>, s: S) -> Result<S::Ok, S::Error> {
                match value {
                    Some(value) => super::$inner::serialize(value, s),
                    None => s.serialize_none(),
                }
            }

            /// Reads a value, or null.
            ///
            /// # Errors
            /// Names the accepted spellings.
            pub fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<$ty>, D::Error> {
                Ok(Option::<Wrap>::deserialize(d)?.map(|w| w.0))
            }
        }
    };
}

optional!(
    duration_option,
    duration,
    "super::duration",
    std::time::Duration,
    "`#[serde(with = ...)]` for an optional duration."
);
optional!(size_option, size, "super::size", bytesize::ByteSize, "`#[serde(with = ...)]` for an optional size.");
