//! Policies: the winner supplies everything, floors clamp, and what lets versions go sooner waits.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use proptest::prelude::*;
use squire_registry::{
    EffectivePolicy, Floors, Kind, Policy, PolicyChange, PolicyDiff, PolicySourceKind, Result, Subject,
};

use crate::support::{Lake, none, path};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

async fn set(lake: &Lake, subject: &Subject, keys: &[(&str, &str)], immediately: bool) -> Result<PolicyDiff> {
    set_at(lake, subject, keys, immediately, Utc::now()).await
}

async fn set_at(
    lake: &Lake,
    subject: &Subject,
    keys: &[(&str, &str)],
    immediately: bool,
    at: DateTime<Utc>,
) -> Result<PolicyDiff> {
    let keys: Vec<(String, String)> = keys.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let change = PolicyChange { subject, keys: &keys, reason: Some("test"), immediately, at };
    lake.registry.policy_set(&change, &Policy::default(), &Floors::default()).await
}

async fn effective(lake: &Lake, uri: &str, now: DateTime<Utc>, config: &[(&str, &str)]) -> EffectivePolicy {
    let config: BTreeMap<String, String> = config.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let snapshot = lake.registry.snapshot().await.unwrap();
    snapshot.govern(uri, &Policy::default(), &Floors::default(), &config, now).policy
}

fn project() -> Subject {
    Subject::Project("p".into())
}

fn namespace() -> Subject {
    Subject::Namespace(path("sales"))
}

fn table() -> Subject {
    Subject::Table(path("sales/orders"))
}

#[tokio::test]
async fn the_most_specific_record_wins_outright_and_is_named() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let source = |e: &EffectivePolicy| (e.source.kind, e.source.id.clone());
    let now = effective(&lake, &uri, Utc::now(), &[]).await;
    assert_eq!(source(&now), (PolicySourceKind::Estate, "estate".into()));

    set(&lake, &project(), &[("interval", "2h"), ("min_fragments", "5")], false).await.unwrap();
    let now = effective(&lake, &uri, Utc::now(), &[]).await;
    assert_eq!(source(&now), (PolicySourceKind::Project, "project/p".into()));
    assert_eq!((now.policy.interval, now.policy.min_fragments), (2 * HOUR, 5));

    set(&lake, &table(), &[("interval", "3h")], false).await.unwrap();
    // The table's record was completed from what governed it then; a later change above does not reach it.
    set(&lake, &project(), &[("min_fragments", "99")], false).await.unwrap();
    set(&lake, &namespace(), &[("interval", "9h")], false).await.unwrap();
    let now = effective(&lake, &uri, Utc::now(), &[]).await;
    assert_eq!(source(&now), (PolicySourceKind::Table, "table/sales/orders".into()));
    assert_eq!((now.policy.interval, now.policy.min_fragments), (3 * HOUR, 5));
}

#[tokio::test]
async fn the_nearest_namespace_wins() {
    let lake = Lake::new().await;
    lake.registry.namespace_create(&path("sales/eu"), None, None).await.unwrap();
    let uri = lake.table("sales/eu/orders").await;
    set(&lake, &namespace(), &[("interval", "2h")], false).await.unwrap();
    assert_eq!(effective(&lake, &uri, Utc::now(), &[]).await.source.id, "namespace/sales");
    set(&lake, &Subject::Namespace(path("sales/eu")), &[("interval", "3h")], false).await.unwrap();
    assert_eq!(effective(&lake, &uri, Utc::now(), &[]).await.source.id, "namespace/sales/eu");
}

#[tokio::test]
async fn a_record_is_complete() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    set(&lake, &table(), &[("interval", "3h")], false).await.unwrap();
    let file = lake.records("policies").pop().unwrap();
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    for key in Policy::KEYS {
        let optional = ["target_rows", "max_rewrite_bytes", "erase_within", "longest_write"].contains(&key);
        assert_eq!(record["policy"].get(key).is_none(), optional, "{key}");
    }
}

#[tokio::test]
async fn target_rows_alone_falls_through() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    set(&lake, &table(), &[("interval", "3h")], false).await.unwrap();
    set(&lake, &project(), &[("target_rows", "1000"), ("interval", "5h")], false).await.unwrap();
    let now = effective(&lake, &uri, Utc::now(), &[]).await;
    assert_eq!((now.policy.target_rows, now.policy.interval), (Some(1000), 3 * HOUR));
    assert_eq!(now.source.id, "table/sales/orders");
}

#[tokio::test]
async fn floors_raise_and_say_so() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    set(&lake, &table(), &[("retention", "10m"), ("retain_versions", "0"), ("erase_within", "1m")], true)
        .await
        .unwrap();
    let now = effective(&lake, &uri, Utc::now(), &[]).await;
    assert_eq!((now.policy.retention, now.policy.retain_versions), (HOUR, 2));
    assert_eq!(now.policy.erase_within, Some(HOUR));
    assert_eq!(now.clamped.len(), 3, "{:?}", now.clamped);
}

#[tokio::test]
async fn what_lets_versions_go_sooner_waits_a_day_and_is_shown() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let at = Utc::now();
    let diff = set_at(&lake, &table(), &[("retention", "1d"), ("interval", "3h")], false, at).await.unwrap();
    assert_eq!(diff.changes, ["interval: 1h -> 3h"]);
    assert_eq!(diff.pending.unwrap().changes, ["retention: 7d -> 1d"]);

    let now = effective(&lake, &uri, at + TimeDelta::hours(23), &[]).await;
    assert_eq!((now.policy.retention, now.policy.interval), (7 * DAY, 3 * HOUR));
    let pending = now.pending.unwrap();
    assert_eq!(pending.effective_at, at + TimeDelta::hours(24));
    assert_eq!(pending.policy.unwrap().retention, DAY);

    let later = effective(&lake, &uri, at + TimeDelta::hours(24), &[]).await;
    assert_eq!((later.policy.retention, later.pending), (DAY, None));
}

#[tokio::test]
async fn a_pending_change_can_be_undone_and_outlives_other_changes() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let at = Utc::now();
    set_at(&lake, &table(), &[("retention", "1d")], false, at).await.unwrap();
    // Another key an hour later: the waiting change is kept with its time.
    set_at(&lake, &table(), &[("interval", "2h")], false, at + TimeDelta::hours(1)).await.unwrap();
    let now = effective(&lake, &uri, at + TimeDelta::hours(2), &[]).await;
    assert_eq!(now.pending.unwrap().effective_at, at + TimeDelta::hours(24));
    // A still shorter one starts its own day.
    set_at(&lake, &table(), &[("retention", "2h")], false, at + TimeDelta::hours(3)).await.unwrap();
    let now = effective(&lake, &uri, at + TimeDelta::hours(4), &[]).await;
    assert_eq!(now.pending.unwrap().effective_at, at + TimeDelta::hours(27));
    set_at(&lake, &table(), &[("retention", "7d")], false, at + TimeDelta::hours(5)).await.unwrap();
    let never = effective(&lake, &uri, at + TimeDelta::days(300), &[]).await;
    assert_eq!((never.policy.retention, never.pending, never.policy.interval), (7 * DAY, None, 2 * HOUR));
}

#[tokio::test]
async fn longer_and_overridden_changes_hold_at_once() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let diff =
        set(&lake, &table(), &[("retention", "30d"), ("retain_versions", "9"), ("cleanup", "false")], false).await;
    assert_eq!(diff.unwrap().pending, None);
    assert_eq!(effective(&lake, &uri, Utc::now(), &[]).await.policy.retention, 30 * DAY);
    let diff =
        set(&lake, &table(), &[("cleanup", "true"), ("retain_versions", "3"), ("erase_within", "2d")], false).await;
    assert_eq!(diff.unwrap().pending.unwrap().changes.len(), 3);
    set(&lake, &table(), &[("retention", "1d")], true).await.unwrap();
    let now = effective(&lake, &uri, Utc::now(), &[]).await;
    assert_eq!((now.policy.retention, now.policy.cleanup, now.pending), (DAY, true, None));
}

#[tokio::test]
async fn unsetting_a_longer_policy_waits_too() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    set(&lake, &table(), &[("retention", "30d")], false).await.unwrap();
    let at = Utc::now();
    let subject = table();
    let change = PolicyChange { subject: &subject, keys: &[], reason: None, immediately: false, at };
    let diff = lake.registry.policy_unset(&change, &Policy::default(), &Floors::default()).await.unwrap();
    assert_eq!(diff.pending.unwrap().changes, ["retention: 30d -> 7d"]);
    let now = effective(&lake, &uri, at + TimeDelta::hours(1), &[]).await;
    assert_eq!((now.policy.retention, now.pending.unwrap().policy), (30 * DAY, None));
    let later = effective(&lake, &uri, at + TimeDelta::hours(24), &[]).await;
    assert_eq!((later.policy.retention, later.source.kind), (7 * DAY, PolicySourceKind::Estate));

    let now = PolicyChange { immediately: true, ..change };
    lake.registry.policy_unset(&now, &Policy::default(), &Floors::default()).await.unwrap();
    assert_eq!(lake.registry.snapshot().await.unwrap().policies().count(), 0);
    let error = lake.registry.policy_unset(&now, &Policy::default(), &Floors::default()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}

#[tokio::test]
async fn bad_keys_and_values_are_named() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    for (key, value, says) in [
        ("retension", "7d", "retension"),
        ("retention", "7", "7d"),
        ("retention", "unset", "retention"),
        ("compact", "yes", "compact"),
        ("retain_versions", "-1", "retain_versions"),
        ("max_stranded", "-1", "max_stranded"),
        ("window", "Mon", "Europe/Berlin"),
        ("target_rows", "0", "target_rows"),
        ("max_rewrite_bytes", "lots", "1GiB"),
    ] {
        let error = set(&lake, &table(), &[(key, value)], false).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid, "{key}={value}: {error}");
        assert!(error.to_string().contains(says), "{key}={value}: {error}");
    }
    for subject in [Subject::Estate, Subject::Warehouse("w".into()), Subject::Dataset("s3://b/x".into())] {
        assert_eq!(set(&lake, &subject, &[], false).await.unwrap_err().kind(), Kind::Invalid, "{subject}");
    }
    let nobody = Subject::Table(path("sales/nobody"));
    assert_eq!(set(&lake, &nobody, &[], false).await.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test]
async fn keys_of_a_newer_build_survive_a_change() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    set(&lake, &table(), &[("interval", "3h")], false).await.unwrap();
    let file = lake.records("policies").pop().unwrap();
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    record["policy"]["from_the_future"] = 42.into();
    record["note"] = "kept".into();
    std::fs::write(&file, record.to_string()).unwrap();
    assert_eq!(effective(&lake, &uri, Utc::now(), &[]).await.policy.interval, 3 * HOUR);
    set(&lake, &table(), &[("interval", "4h")], false).await.unwrap();
    let file = lake.records("policies").pop().unwrap();
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((record["generation"].as_u64(), record["policy"]["from_the_future"].as_u64()), (Some(2), Some(42)));
    assert_eq!(record["note"], "kept");
}

#[tokio::test]
async fn the_tables_own_config_only_makes_things_safer() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let retention = async |config: &[(&str, &str)]| effective(&lake, &uri, Utc::now(), config).await.policy.retention;
    assert_eq!(retention(&[("lance.auto_cleanup.older_than", "14days")]).await, 14 * DAY);
    assert_eq!(retention(&[("lance.auto_cleanup.older_than", "1h")]).await, 7 * DAY);
    assert_eq!(retention(&[("squire.retention", "30d")]).await, 30 * DAY);
    assert_eq!(retention(&[("squire.retention", "1d")]).await, 7 * DAY);
    // Where a record governs, the hook's setting is not asked; the table's own request still is.
    set(&lake, &namespace(), &[("retention", "10d")], false).await.unwrap();
    assert_eq!(retention(&[("lance.auto_cleanup.older_than", "14days")]).await, 10 * DAY);
    assert_eq!(retention(&[("squire.retention", "30d")]).await, 30 * DAY);
}

#[tokio::test]
async fn opting_out_and_pausing_are_understood_and_garbage_counts_as_off() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let snapshot = lake.registry.snapshot().await.unwrap();
    let now = "2026-03-01T00:00:00Z".parse().unwrap();
    let govern = |key: &str, value: &str| {
        let config = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        snapshot.govern(&uri, &Policy::default(), &Floors::default(), &config, now)
    };
    assert_eq!(govern("squire.maintain", "off").opted_out.as_deref(), Some("squire.maintain = off"));
    assert_eq!(govern("squire.maintain", "on").opted_out, None);
    assert!(govern("squire.maintain", "nope").opted_out.is_some());
    assert!(govern("squire.retention", "long").opted_out.is_some());
    assert!(govern("squire.pause_until", "tomorrow").opted_out.is_some());
    let until = "2026-03-02T00:00:00Z".parse().unwrap();
    assert_eq!(govern("squire.pause_until", "2026-03-02").paused_until, Some(until));
    assert_eq!(govern("squire.pause_until", "2026-02-02T10:00:00Z").paused_until, None);
}

#[tokio::test]
async fn two_projects_in_one_place_resolve_to_neither() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    set(&lake, &project(), &[("interval", "2h")], false).await.unwrap();
    lake.registry.project_create("q", None).await.unwrap();
    let root = lake.dir.path().to_str().unwrap();
    lake.registry.warehouse_create("w2", "q", root, true, &none(), None).await.unwrap();
    let snapshot = lake.registry.snapshot().await.unwrap();
    let governance = lake.govern(&uri).await;
    assert_eq!(governance.policy.source.kind, PolicySourceKind::Estate);
    assert_eq!(governance.project, None);
    let clash = governance.clash.unwrap();
    assert_eq!((clash.projects.clone(), clash.warehouses.clone()), (path("p/q"), path("w/w2")));
    assert_eq!(snapshot.clashes(), [clash]);
    // A namespace's own record still holds.
    set(&lake, &namespace(), &[("interval", "5h")], false).await.unwrap();
    assert_eq!(lake.govern(&uri).await.policy.source.id, "namespace/sales");
}

#[test]
fn config_policies_refuse_unknown_keys_and_take_lances_durations() {
    let policy: Policy = serde_json::from_str(r#"{"retention": "14days", "max_rewrite_bytes": 1024}"#).unwrap();
    assert_eq!(policy.retention, 14 * DAY);
    assert_eq!(policy.max_rewrite_bytes.unwrap().as_u64(), 1024);
    assert!(serde_json::from_str::<Policy>(r#"{"retension": "7d"}"#).is_err());
    assert!(serde_json::from_str::<Floors>(r#"{"retention": 5}"#).is_err());
}

fn policies() -> impl Strategy<Value = Policy> {
    let d = |n: u64| Duration::from_secs(n);
    (any::<u32>(), any::<u32>(), any::<[bool; 4]>(), any::<u32>(), proptest::option::of(1u64..1 << 40), any::<u16>())
        .prop_map(move |(a, b, flags, c, rows, w)| Policy {
            retention: d(a.into()),
            retain_versions: b,
            compact: flags[0],
            optimize_indices: flags[1],
            cleanup: flags[2],
            interval: d(c.into()),
            min_fragments: b,
            settle_after: d(u64::from(b)),
            max_stranded: f64::from(w) / 4.0,
            yield_window: d(a.into()),
            quiet_for: d(w.into()),
            window: if flags[3] { "Mon-Fri 20:00-06:00 Europe/Berlin".into() } else { String::new() },
            upgrade_index_format: flags[3],
            target_rows: rows,
            max_rewrite_bytes: rows.map(bytesize::ByteSize::b),
            erase_within: rows.map(d),
            longest_write: rows.map(|r| d(r % 1_000_000)),
            required_indices: vec![],
            reader_window: d(c.into()),
        })
}

proptest! {
    #[test]
    fn a_policy_survives_writing_and_reading(policy in policies()) {
        prop_assert_eq!(Policy::from_map(&policy.to_map()), Ok(policy));
    }

    #[test]
    fn held_back_never_lets_anything_go_sooner(before in policies(), after in policies()) {
        let held = before.hold_back(&after);
        prop_assert_eq!(before.sooner(&held), Vec::<String>::new());
        if before.sooner(&after).is_empty() {
            prop_assert_eq!(&held, &after);
        }
    }

    #[test]
    fn clamped_is_never_below_the_floors(policy in policies()) {
        let floors = Floors::default();
        let (clamped, notes) = floors.clamp(&policy);
        prop_assert!(clamped.retention >= HOUR && clamped.retain_versions >= 2);
        prop_assert!(clamped.erase_within.is_none_or(|e| e >= HOUR));
        prop_assert_eq!(notes.is_empty(), clamped == policy);
    }
}
