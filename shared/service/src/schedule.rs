//! When jobs start: cron expressions with seconds in a time zone, as pure functions of time. Every replica computes the
//! same instants from the same configuration.
//!
//! Where the clocks change: a job at a fixed hour runs once a day, at the first instant after a gap that swallowed its
//! hour and at the first of two equal wall times. A job of every hour (`*`) follows elapsed time: both of the equal hours,
//! and nothing for the hour that does not exist.

use std::str::FromStr;

use chrono::{DateTime, MappedLocalTime, NaiveDate, NaiveDateTime, Offset, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;
use cron::TimeUnitSpec;

use crate::config;

/// The farthest that is looked for an instant: a leap day may be eight years away.
const HORIZON: TimeDelta = TimeDelta::days(3_000);
/// More than clocks are ever changed by.
const SHIFT: TimeDelta = TimeDelta::hours(26);

/// What is wrong with a schedule, in one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("schedule.{key}: {what}")]
pub struct ScheduleError {
    /// The key below `[schedule]`.
    pub key: String,
    /// What is wrong with it.
    pub what: String,
}

/// The instants of one job.
#[derive(Debug, Clone)]
pub struct Job {
    cron: cron::Schedule,
    zone: Tz,
    /// Days, both ends included, whose instants do not exist.
    blackout: Vec<(NaiveDate, NaiveDate)>,
    every_hour: bool,
}

impl Job {
    /// A job from an expression with six or seven fields, seconds first.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn new(cron: &str, zone: &str, blackout: &[String]) -> Result<Self, ScheduleError> {
        let wrong = |key: &str, what: String| ScheduleError { key: key.to_owned(), what };
        let parsed = cron::Schedule::from_str(cron)
            .map_err(|e| wrong("maintenance or reconcile", format!("{cron:?} is not a cron expression ({e})")))?;
        let zone = zone.parse::<Tz>().map_err(|_| wrong("timezone", format!("{zone:?} is no time zone")))?;
        let range = |text: &String| {
            let (first, last) = text.split_once('/')?;
            let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            (first <= last).then_some((first, last))
        };
        let blackout = blackout
            .iter()
            .map(|text| range(text).ok_or_else(|| wrong("blackout", format!("{text:?} is no range of days"))))
            .collect::<Result<_, _>>()?;
        let every_hour = parsed.hours().is_all();
        Ok(Self { cron: parsed, zone, blackout, every_hour })
    }

    /// The job of `schedule.maintenance`.
    ///
    /// # Errors
    /// As [`Job::new`].
    pub fn maintenance(schedule: &config::Schedule) -> Result<Self, ScheduleError> {
        Self::new(&schedule.maintenance, &schedule.timezone, &schedule.blackout)
    }

    /// The job of `schedule.reconcile`.
    ///
    /// # Errors
    /// As [`Job::new`].
    pub fn reconcile(schedule: &config::Schedule) -> Result<Self, ScheduleError> {
        Self::new(&schedule.reconcile, &schedule.timezone, &schedule.blackout)
    }

    /// The first instant after `after`, blackouts left out; `None` when there is none in eight years.
    pub fn next(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let horizon = after.checked_add_signed(HORIZON)?;
        let mut at = after;
        loop {
            let found = if self.every_hour { self.next_elapsed(at, horizon)? } else { self.next_wall(at)? };
            if found > horizon {
                return None;
            }
            match self.dark_until(found) {
                None => return Some(found),
                // Just before the blackout's end, so that an instant at the end itself is found.
                Some(end) => at = (end - TimeDelta::seconds(1)).max(found),
            }
        }
    }

    /// The last instant at or before `at`; `None` when there is none in eight years.
    pub fn previous(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        // Steps back that grow, and forward from there: one definition of what an instant is.
        let mut back = TimeDelta::minutes(2);
        while back < HORIZON {
            let from = at.checked_sub_signed(back)?;
            let mut last = None;
            let mut cursor = from;
            while let Some(found) = self.next(cursor).filter(|f| *f <= at) {
                last = Some(found);
                cursor = found;
            }
            if last.is_some() {
                return last;
            }
            back = back * 8;
        }
        None
    }

    /// The instant that is due now: the latest one at or before `now` that lies after `since`. However many were missed,
    /// one is due.
    ///
    /// `since` is the last instant that was published, or the start of the process where none ever was.
    pub fn due(&self, since: DateTime<Utc>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.previous(now).filter(|instant| *instant > since)
    }

    /// Whether nothing may start at this instant, because its day is blacked out.
    pub fn is_dark(&self, at: DateTime<Utc>) -> bool {
        self.dark_until(at).is_some()
    }

    /// The length between the next two instants: what `squire_task_interval_seconds` says.
    pub fn interval(&self, after: DateTime<Utc>) -> Option<TimeDelta> {
        let first = self.next(after)?;
        Some(self.next(first)? - first)
    }

    /// When the blackout ends in which this instant lies; `None` outside of every blackout.
    pub fn dark_until(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let day = at.with_timezone(&self.zone).date_naive();
        let (_, last) =
            self.blackout.iter().filter(|(first, last)| *first <= day && day <= *last).max_by_key(|r| r.1)?;
        let midnight = last.succ_opt()?.and_hms_opt(0, 0, 0)?;
        Some(self.first_at(midnight))
    }

    /// The next wall time that the expression names, without any zone. A naive time is carried as UTC, where every wall
    /// time exists once.
    fn wall_after(&self, wall: NaiveDateTime) -> Option<NaiveDateTime> {
        self.cron.after(&Utc.from_utc_datetime(&wall)).next().map(|t| t.naive_utc())
    }

    /// The first instant at which clocks show this wall time, or the end of the gap that swallowed it.
    fn first_at(&self, wall: NaiveDateTime) -> DateTime<Utc> {
        match self.zone.from_local_datetime(&wall) {
            MappedLocalTime::Single(t) | MappedLocalTime::Ambiguous(t, _) => t.with_timezone(&Utc),
            MappedLocalTime::None => {
                let around = Utc.from_utc_datetime(&wall);
                self.change_between(around - SHIFT, around + SHIFT)
            }
        }
    }

    fn next_wall(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let mut wall = after.with_timezone(&self.zone).naive_local();
        loop {
            wall = self.wall_after(wall)?;
            let instant = self.first_at(wall);
            // The first of two equal wall times may lie before.
            if instant > after {
                return Some(instant);
            }
        }
    }

    fn next_elapsed(&self, after: DateTime<Utc>, horizon: DateTime<Utc>) -> Option<DateTime<Utc>> {
        // As far as one offset reaches the wall moves with time; at a change it is read anew.
        let mut from = after;
        loop {
            let offset = self.offset(from + TimeDelta::seconds(1));
            let wall = self.wall_after((from + offset).naive_utc())?;
            let instant = Utc.from_utc_datetime(&wall) - offset;
            if instant > horizon || self.offset(instant) == offset && !self.changes_between(from, instant, offset) {
                return Some(instant);
            }
            let change = self.change_between(from + TimeDelta::seconds(1), instant);
            from = change - TimeDelta::seconds(1);
        }
    }

    fn offset(&self, at: DateTime<Utc>) -> TimeDelta {
        TimeDelta::seconds(self.zone.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc().into())
    }

    /// Whether the offset is another one somewhere on the way; days apart, two changes may cancel out.
    fn changes_between(&self, from: DateTime<Utc>, to: DateTime<Utc>, offset: TimeDelta) -> bool {
        let mut at = from + TimeDelta::seconds(1);
        while at < to {
            if self.offset(at) != offset {
                return true;
            }
            at += TimeDelta::days(7);
        }
        false
    }

    /// The first instant with another offset than `from`, where one such lies between.
    fn change_between(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> DateTime<Utc> {
        let offset = self.offset(from);
        let (mut low, mut high) = (from, to);
        // The first week that ends with another offset holds the change.
        while low + TimeDelta::days(7) < to && self.offset(low + TimeDelta::days(7)) == offset {
            low += TimeDelta::days(7);
        }
        if low + TimeDelta::days(7) < to {
            high = low + TimeDelta::days(7);
        }
        while high - low > TimeDelta::seconds(1) {
            let middle = low + TimeDelta::seconds((high - low).num_seconds() / 2);
            if self.offset(middle) == offset { low = middle } else { high = middle }
        }
        let nanos = i64::from(high.timestamp_subsec_nanos());
        high - TimeDelta::nanoseconds(nanos)
    }
}
