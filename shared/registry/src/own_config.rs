//! What a dataset's own config asks of its maintenance.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::human;

/// What the dataset's own config asks for. A value that is not understood counts as the safest it could mean.
#[derive(Debug, Default)]
pub(crate) struct OwnConfig {
    pub(crate) auto_cleanup: Option<(String, Duration)>,
    pub(crate) retention: Option<(String, Duration)>,
    pub(crate) opted_out: Option<String>,
    pub(crate) paused_until: Option<DateTime<Utc>>,
    pub(crate) notes: Vec<String>,
}

impl OwnConfig {
    pub(crate) fn read(config: &BTreeMap<String, String>, now: DateTime<Utc>) -> Self {
        let mut out = Self::default();
        if let Some(text) = config.get("lance.auto_cleanup.older_than") {
            match human::parse_duration(text) {
                Ok(kept) => out.auto_cleanup = Some((text.clone(), kept)),
                Err(why) => out.notes.push(format!("lance.auto_cleanup.older_than: {why}; not taken into account")),
            }
        }
        if let Some(text) = config.get("squire.retention") {
            match human::parse_duration(text) {
                Ok(kept) => out.retention = Some((text.clone(), kept)),
                Err(why) => out.opt_out(format!("squire.retention: {why}")),
            }
        }
        match config.get("squire.maintain").map(|t| t.trim().to_ascii_lowercase()).as_deref() {
            None | Some("on" | "true") => {}
            Some("off" | "false") => out.opted_out = Some("squire.maintain = off".into()),
            Some(other) => out.opt_out(format!("squire.maintain = {other} is neither on nor off")),
        }
        if let Some(text) = config.get("squire.pause_until") {
            match parse_time(text) {
                Some(until) if until > now => out.paused_until = Some(until),
                Some(_) => {}
                None => out.opt_out(format!(
                    "squire.pause_until = {text} is no time; write it like 2026-01-31T06:00:00Z or 2026-01-31"
                )),
            }
        }
        out
    }

    fn opt_out(&mut self, why: String) {
        self.opted_out.get_or_insert_with(|| format!("{why}; taken as squire.maintain = off"));
        self.notes.push(why);
    }
}

/// Reads an RFC 3339 time, or a date, which means its first instant in UTC.
pub fn parse_time(text: &str) -> Option<DateTime<Utc>> {
    let text = text.trim();
    DateTime::parse_from_rfc3339(text).map(|t| t.with_timezone(&Utc)).ok().or_else(|| {
        let date = chrono::NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?;
        Some(date.and_hms_opt(0, 0, 0)?.and_utc())
    })
}
