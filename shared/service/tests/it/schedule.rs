//! Instants of jobs.

use chrono::{DateTime, Utc};
use proptest::prelude::*;
use rstest::rstest;
use squire_service::config;
use squire_service::schedule::Job;

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn job(cron: &str, zone: &str) -> Job {
    Job::new(cron, zone, &[]).unwrap()
}

fn instants(job: &Job, after: &str, n: usize) -> Vec<String> {
    let mut out = Vec::new();
    let mut cursor = at(after);
    for _ in 0..n {
        cursor = job.next(cursor).unwrap();
        out.push(cursor.format("%m-%d %H:%M:%S").to_string());
    }
    out
}

#[test]
fn the_default_clock_ticks_every_ten_minutes() {
    let job = Job::maintenance(&config::Schedule::default()).unwrap();
    assert_eq!(instants(&job, "2026-03-01T10:00:00Z", 2), ["03-01 10:10:00", "03-01 10:20:00"]);
    assert_eq!(instants(&job, "2026-03-01T09:59:59.999Z", 1), ["03-01 10:00:00"]);
    assert_eq!(job.previous(at("2026-03-01T10:10:00Z")), Some(at("2026-03-01T10:10:00Z")));
    assert_eq!(job.previous(at("2026-03-01T10:09:59.9Z")), Some(at("2026-03-01T10:00:00Z")));
    assert_eq!(job.interval(at("2026-03-01T10:00:00Z")).unwrap().num_seconds(), 600);
    let job = Job::reconcile(&config::Schedule::default()).unwrap();
    assert_eq!(instants(&job, "2026-03-01T10:00:00Z", 2), ["03-02 02:30:00", "03-03 02:30:00"]);
}

#[test]
fn seconds_count() {
    let job = job("*/20 * * * * *", "UTC");
    assert_eq!(instants(&job, "2026-03-01T10:00:00Z", 3), ["03-01 10:00:20", "03-01 10:00:40", "03-01 10:01:00"]);
}

/// In Berlin 2026 the clocks go from 2:00 to 3:00 on 29 March (1:00 UTC) and from 3:00 to 2:00 on 25 October (1:00 UTC).
#[rstest]
#[case::a_swallowed_hour_runs_after_the_gap("0 30 2 * * *", "2026-03-28T02:00:00Z", &["03-29 01:00:00", "03-30 00:30:00"])]
#[case::two_swallowed_times_run_once("0 0,30 2 * * *", "2026-03-28T23:30:00Z", &["03-29 01:00:00", "03-30 00:00:00"])]
#[case::a_repeated_hour_runs_once("0 30 2 * * *", "2026-10-24T12:00:00Z", &["10-25 00:30:00", "10-26 01:30:00"])]
#[case::after_the_first_of_two("0 30 2 * * *", "2026-10-25T00:30:00Z", &["10-26 01:30:00"])]
#[case::between_the_two("0 30 2 * * *", "2026-10-25T01:10:00Z", &["10-26 01:30:00"])]
#[case::another_hour_keeps_its_wall_time("0 0 12 * * *", "2026-03-28T10:30:00Z", &["03-28 11:00:00", "03-29 10:00:00"])]
#[case::every_half_hour_goes_on_over_a_gap("0 */30 * * * *", "2026-03-29T00:00:00Z",
    &["03-29 00:30:00", "03-29 01:00:00", "03-29 01:30:00"])]
#[case::every_half_hour_goes_on_in_a_repeated_hour("0 */30 * * * *", "2026-10-24T23:30:00Z",
    &["10-25 00:00:00", "10-25 00:30:00", "10-25 01:00:00", "10-25 01:30:00", "10-25 02:00:00"])]
fn clocks_change(#[case] cron: &str, #[case] after: &str, #[case] want: &[&str]) {
    assert_eq!(instants(&job(cron, "Europe/Berlin"), after, want.len()), want);
}

/// On Lord Howe Island the clocks are changed by half an hour: on 5 April 2026 from 2:00 (+11:00) to 1:30 (+10:30).
#[test]
fn clocks_may_change_by_half_an_hour() {
    let job = job("0 */15 * * * *", "Australia/Lord_Howe");
    let want = ["04-04 14:45:00", "04-04 15:00:00", "04-04 15:15:00", "04-04 15:30:00"];
    assert_eq!(instants(&job, "2026-04-04T14:30:00Z", 4), want);
}

/// In Asunción the clocks went from 24:00 to 23:00 on 23 March 2024 (3:00 UTC of the 24th); a year later the offset is that
/// of before again.
#[test]
fn a_repeated_last_hour_of_a_rare_day_is_not_skipped() {
    let job = job("0 30 * 23 3 *", "America/Asuncion");
    assert_eq!(instants(&job, "2024-03-24T02:00:00Z", 2), ["03-24 02:30:00", "03-24 03:30:00"]);
}

#[test]
fn a_rare_instant_is_found_both_ways() {
    let job = job("0 0 0 29 2 * *", "UTC");
    assert_eq!(job.next(at("2026-03-01T00:00:00Z")), Some(at("2028-02-29T00:00:00Z")));
    assert_eq!(job.previous(at("2026-03-01T00:00:00Z")), Some(at("2024-02-29T00:00:00Z")));
    // 30 February never comes.
    let never = Job::new("0 0 0 30 2 * *", "UTC", &[]).unwrap();
    assert_eq!(never.next(at("2026-03-01T00:00:00Z")), None);
    assert_eq!(never.previous(at("2026-03-01T00:00:00Z")), None);
    assert_eq!(never.interval(at("2026-03-01T00:00:00Z")), None);
}

#[test]
fn of_the_missed_instants_the_latest_is_due_once() {
    let job = Job::maintenance(&config::Schedule::default()).unwrap();
    let now = at("2026-03-01T10:34:56Z");
    assert_eq!(job.due(at("2026-02-20T00:00:00Z"), now), Some(at("2026-03-01T10:30:00Z")));
    assert_eq!(job.due(at("2026-03-01T10:30:00Z"), now), None);
    // A clock that runs ahead recorded more than this one knows.
    assert_eq!(job.due(at("2026-03-01T10:40:00Z"), now), None);
    // A process that starts for the first time has missed nothing.
    assert_eq!(job.due(now, now), None);
    assert_eq!(job.due(now, at("2026-03-01T10:40:00Z")), Some(at("2026-03-01T10:40:00Z")));
}

#[test]
fn nothing_starts_in_a_blackout() {
    let dark = ["2026-12-20/2027-01-02".to_owned(), "2027-01-02/2027-01-03".to_owned()];
    let job = Job::new("0 0 */12 * * *", "Europe/Berlin", &dark).unwrap();
    // Days are days of the zone: 20 December begins at 23:00 UTC of the 19th, and the 4th of January at 23:00 of the 3rd.
    let want = ["12-19 11:00:00", "01-03 23:00:00", "01-04 11:00:00"];
    assert_eq!(instants(&job, "2026-12-19T10:00:00Z", 3), want);
    assert!(!job.is_dark(at("2026-12-19T22:59:59Z")));
    assert!(job.is_dark(at("2026-12-19T23:00:00Z")));
    assert!(job.is_dark(at("2027-01-03T22:59:59Z")));
    assert!(!job.is_dark(at("2027-01-03T23:00:00Z")));
    // What fell into it is not made up for.
    assert_eq!(job.due(at("2026-12-19T11:00:00Z"), at("2027-01-03T22:00:00Z")), None);
}

#[rstest]
#[case("every day", "UTC", None, "cron")]
#[case("0 0 * * * *", "Mars/Olympus", None, "time zone")]
#[case("0 0 * * * *", "UTC", Some("2027-01-02/2026-12-20"), "range of days")]
fn a_mistake_is_named(#[case] cron: &str, #[case] zone: &str, #[case] dark: Option<&str>, #[case] word: &str) {
    let dark: Vec<String> = dark.into_iter().map(str::to_owned).collect();
    let e = Job::new(cron, zone, &dark).unwrap_err();
    assert!(e.to_string().contains(word), "{e}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn next_and_previous_agree(
        seconds in 1_770_000_000i64..1_870_000_000,
        cron in prop::sample::select(vec![
            "0 */10 * * * *", "0 30 2 * * *", "0 0,30 1-3 * * *", "15 7 * * * *", "0 0 3 * * Sun", "0 15 2 1 * *"]),
        zone in prop::sample::select(vec![
            "UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Santiago"]),
    ) {
        let job = job(cron, zone);
        let t = DateTime::from_timestamp(seconds, 0).unwrap();
        let next = job.next(t).unwrap();
        prop_assert!(next > t);
        prop_assert_eq!(job.previous(next), Some(next));
        let previous = job.previous(t).unwrap();
        prop_assert!(previous <= t);
        // Nothing lies between.
        prop_assert_eq!(job.next(previous), Some(next));
    }
}
