//! How often a dataset is looked at. Pure.
//!
//! A dataset in which nobody leaves anything behind is looked at less and less often, up to once a week: nothing is called an
//! orphan before it is a week old, so nothing is found late by more than that again. Where orphans are found it is looked at
//! daily. What has moved since is looked at daily in any case.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use squire_lake::known::Mark;
use squire_lake::refs::Reads;

/// The shortest time between two looks that the clock starts.
pub(super) const DAY: i64 = 86_400;
/// The longest.
pub(super) const CEILING: i64 = 7 * DAY;
/// A daily clock ticks a little early or late.
const SLACK: i64 = 3_600;
/// LIST requests that one tick may need by what is known of the datasets; those looked at longest ago come first, and the
/// others wait for the next tick.
pub(super) const LISTS: u64 = 20_000;
/// Objects that one LIST request answers.
const PAGE: u64 = 1_000;

/// What was found of a dataset when it was looked at last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Known {
    /// When.
    pub(super) at: DateTime<Utc>,
    /// HEAD then: its number and its own time.
    pub(super) head: (u64, DateTime<Utc>),
    /// Seconds until it is due again.
    pub(super) every: i64,
    /// Objects under it.
    pub(super) objects: u64,
    /// What it reads of others.
    #[serde(with = "edges")]
    pub(super) reads: Reads,
    /// By what two requests tell that it has not moved and is still the same; none where only opening it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mark: Option<Mark>,
}

/// Edges as a list: their targets are no JSON keys.
mod edges {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
    use squire_lake::refs::Reads;

    pub(super) fn serialize<S: Serializer>(reads: &Reads, s: S) -> Result<S::Ok, S::Error> {
        reads.iter().collect::<Vec<_>>().serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Reads, D::Error> {
        Vec::<(squire_lake::refs::Target, std::collections::BTreeSet<String>)>::deserialize(d)
            .map(|list| list.into_iter().collect())
    }
}

impl Known {
    /// Whether it is due: its time has come, or it may have moved and a day has passed.
    pub(super) fn is_due(&self, now: DateTime<Utc>, moved: bool) -> bool {
        let every = if moved { DAY } else { self.every };
        now.signed_duration_since(self.at) >= TimeDelta::seconds(every - SLACK)
    }

    /// LIST requests that a look at it takes: one listing, and a second where the first finds something.
    pub(super) fn lists(&self) -> u64 {
        2 * (self.objects / PAGE + 1)
    }
}

/// Seconds until the next look: a day where orphans are worth more than a thousandth of what is stored, twice as long as before
/// where there is none, else as long as before.
pub(super) fn every(before: Option<i64>, orphan_bytes: u64, stored_bytes: u64) -> i64 {
    let before = before.unwrap_or(DAY / 2);
    let next = match orphan_bytes {
        0 => before * 2,
        n if n > stored_bytes / 1000 => DAY,
        _ => before,
    };
    next.clamp(DAY, CEILING)
}

/// Which of the datasets that are due are looked at now: those never looked at and those looked at longest ago, as far as the
/// LISTs reach; always at least one.
pub(super) fn within(due: BTreeMap<String, Option<&Known>>, lists: u64) -> Vec<String> {
    let mut due: Vec<(Option<DateTime<Utc>>, u64, String)> =
        due.into_iter().map(|(uri, known)| (known.map(|k| k.at), known.map_or(2, Known::lists), uri)).collect();
    due.sort();
    let mut spent = 0;
    let fits = |(_, need, _): &&(Option<DateTime<Utc>>, u64, String)| {
        let first = spent == 0;
        spent += need;
        first || spent <= lists
    };
    due.iter().take_while(fits).map(|(_, _, uri)| uri.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(days_ago: i64, every: i64, objects: u64) -> Known {
        let at = DateTime::UNIX_EPOCH - TimeDelta::days(days_ago);
        Known { at, head: (1, at), every, objects, reads: Reads::new(), mark: None }
    }

    #[test]
    fn a_clean_dataset_is_looked_at_less_often_up_to_a_week_and_a_messy_one_daily() {
        let mut seen = Vec::new();
        let mut before = None;
        for _ in 0..5 {
            before = Some(every(before, 0, 1 << 30));
            seen.push(before.unwrap_or_default() / DAY);
        }
        assert_eq!(seen, [1, 2, 4, 7, 7]);
        assert_eq!(every(Some(CEILING), 2_000, 1_000_000), DAY);
        assert_eq!(every(Some(4 * DAY), 999, 1_000_000), 4 * DAY);
    }

    #[test]
    fn what_moved_is_due_daily_and_what_did_not_when_its_time_comes() {
        let now = DateTime::UNIX_EPOCH;
        let week = known(3, CEILING, 10);
        assert!(!week.is_due(now, false));
        assert!(week.is_due(now, true));
        assert!(known(7, CEILING, 10).is_due(now, false));
        assert!(!known(0, DAY, 10).is_due(now, true));
    }

    #[test]
    fn a_tick_is_bounded_by_lists_and_takes_who_waited_longest() {
        let (a, b, c) = (known(9, DAY, 5_000_000), known(3, DAY, 9_000), known(2, DAY, 10));
        let all = BTreeMap::from([
            ("a".to_string(), Some(&a)),
            ("b".to_string(), Some(&b)),
            ("c".to_string(), Some(&c)),
            ("new".to_string(), None),
        ]);
        assert_eq!(within(all.clone(), 20_000), ["new", "a", "b", "c"]);
        assert_eq!(within(all.clone(), 10_004), ["new", "a"]);
        assert_eq!(within(all, 1), ["new"], "one is always looked at");
        // What is larger than the bound is looked at too, once it has waited longest.
        assert_eq!(within(BTreeMap::from([("a".to_string(), Some(&a))]), 10), ["a"]);
    }

    #[test]
    fn what_is_known_survives_the_registry() {
        let mut known = known(1, DAY, 3);
        known.reads = [
            (squire_lake::refs::Target::At("file:///a".into()), ["data/1.lance".to_string()].into()),
            (squire_lake::refs::Target::EndsIn("b/c".into()), Default::default()),
        ]
        .into();
        let text = serde_json::to_value(&known).unwrap_or_default();
        assert_eq!(serde_json::from_value::<Known>(text).ok(), Some(known));
    }
}
