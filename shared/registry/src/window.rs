//! When passes may start: `Mon-Fri 20:00-06:00 Europe/Berlin`.

use chrono::{DateTime, Datelike, NaiveTime, TimeDelta, Utc, Weekday};
use chrono_tz::Tz;

/// A weekly window in a time zone. A window over midnight belongs to the day on which it opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    days: [bool; 7],
    from: NaiveTime,
    to: NaiveTime,
    zone: Tz,
}

impl Window {
    /// Reads `[DAYS] HH:MM-HH:MM [ZONE]`; DAYS like `Mon-Fri` or `Sat,Sun` (all days when left out), ZONE an IANA name
    /// (UTC when left out).
    ///
    /// # Errors
    /// A sentence with an example.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!("`{text}` is not a window ({what}); write it like \"Mon-Fri 20:00-06:00 Europe/Berlin\"")
        };
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let zone = match words.last() {
            Some(last) if !last.contains(':') && words.len() > 1 => {
                let zone = last.parse::<Tz>().map_err(|_| wrong(&format!("no time zone {last}")))?;
                words.pop();
                zone
            }
            _ => Tz::UTC,
        };
        let times = words.pop().ok_or_else(|| wrong("no times"))?;
        let (from, to) = times.split_once('-').ok_or_else(|| wrong("no times"))?;
        let time = |t: &str| NaiveTime::parse_from_str(t, "%H:%M").map_err(|_| wrong(&format!("no time of day {t}")));
        let (from, to) = (time(from)?, time(to)?);
        if from == to {
            return Err(wrong("it opens and closes at the same time; leave the window empty for always"));
        }
        let days = match words.as_slice() {
            [] => [true; 7],
            [days] => parse_days(days).ok_or_else(|| wrong(&format!("no days {days}")))?,
            _ => return Err(wrong("too many words")),
        };
        Ok(Self { days, from, to, zone })
    }

    /// Whether a pass may start at this instant.
    pub fn contains(&self, at: DateTime<Utc>) -> bool {
        let local = at.with_timezone(&self.zone).naive_local();
        let open_on = |day: Weekday| self.days[day.num_days_from_monday() as usize];
        let time = local.time();
        if self.from < self.to {
            return open_on(local.weekday()) && time >= self.from && time < self.to;
        }
        (open_on(local.weekday()) && time >= self.from) || (open_on(local.weekday().pred()) && time < self.to)
    }

    /// The next instant, to the minute and within eight days, at which a pass may start; `at` itself when it is open.
    pub fn next_open(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        if self.contains(at) {
            return Some(at);
        }
        let minute = at
            - TimeDelta::seconds(at.timestamp().rem_euclid(60))
            - TimeDelta::nanoseconds(i64::from(at.timestamp_subsec_nanos()));
        (1..=8 * 24 * 60).map(|n| minute + TimeDelta::minutes(n)).find(|t| self.contains(*t))
    }
}

fn parse_days(text: &str) -> Option<[bool; 7]> {
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<Weekday>().ok()?, last.parse::<Weekday>().ok()?);
        let mut day = first;
        loop {
            days[day.num_days_from_monday() as usize] = true;
            if day == last {
                break;
            }
            day = day.succ();
        }
    }
    Some(days)
}
