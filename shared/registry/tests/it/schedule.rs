//! Published instants.

use chrono::{DateTime, TimeDelta, Utc};
use squire_registry::Registry;

use crate::support::{Lake, none};

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

#[tokio::test]
async fn of_five_replicas_one_is_first() {
    let lake = Lake::new().await;
    let mut replicas = Vec::new();
    for _ in 0..5 {
        replicas.push(Registry::open(lake.registry.uri(), &none()).await.unwrap());
    }
    for instant in ["2026-03-01T10:00:00Z", "2026-03-01T10:10:00Z"] {
        let recording = replicas.iter().map(|r| r.record_instant("maintenance", at(instant)));
        let first = futures::future::try_join_all(recording).await.unwrap();
        assert_eq!(first.iter().filter(|f| **f).count(), 1, "{first:?}");
    }
    assert!(!replicas[0].record_instant("maintenance", at("2026-03-01T10:00:00Z")).await.unwrap());
    assert!(replicas[0].record_instant("reconcile", at("2026-03-01T10:00:00Z")).await.unwrap());
}

#[tokio::test]
async fn a_wrong_clock_stands_in_nobodys_way() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    let now = at("2026-03-01T10:10:30Z");
    assert_eq!(r.last_instant("maintenance", now).await.unwrap(), None);
    assert!(r.record_instant("maintenance", at("2036-01-01T00:00:00Z")).await.unwrap());
    assert_eq!(r.last_instant("maintenance", now).await.unwrap(), None);
    assert!(r.record_instant("maintenance", at("2026-03-01T10:10:00Z")).await.unwrap());
    assert!(r.record_instant("maintenance", at("2026-03-01T10:00:00Z")).await.unwrap());
    assert_eq!(r.last_instant("maintenance", now).await.unwrap(), Some(at("2026-03-01T10:10:00Z")));
}

#[tokio::test]
async fn the_record_does_not_grow() {
    let lake = Lake::new().await;
    let start = at("2026-03-01T10:00:00Z");
    for n in 0..70 {
        assert!(lake.registry.record_instant("m", start + TimeDelta::minutes(n)).await.unwrap());
    }
    let newest = lake.generations("schedule", "m").pop().unwrap();
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(newest).unwrap()).unwrap();
    assert_eq!(record["instants"].as_array().unwrap().len(), 64);
    assert!(!lake.registry.record_instant("m", start + TimeDelta::minutes(6)).await.unwrap());
    assert_eq!(
        lake.registry.last_instant("m", Utc::now() + TimeDelta::days(36_500)).await.unwrap(),
        Some(start + TimeDelta::minutes(69))
    );
}

#[tokio::test]
async fn a_plan_that_waits_is_news_once_and_at_most_daily_while_it_changes() {
    let lake = Lake::new().await;
    let (r, day) = (&lake.registry, std::time::Duration::from_secs(86_400));
    let at = |hours| chrono::DateTime::UNIX_EPOCH + chrono::TimeDelta::hours(hours);
    let said = [
        (Some("a"), 0),
        (Some("a"), 48),
        (Some("b"), 49),
        (Some("c"), 50),
        (Some("c"), 80),
        (None, 81),
        (Some("c"), 81),
    ];
    let mut news = Vec::new();
    for (digest, hours) in said {
        news.push(r.record_awaiting("maintenance", digest, at(hours), day).await.unwrap());
    }
    assert_eq!(news, [true, false, true, false, true, false, true]);
}

#[tokio::test]
async fn what_waits_in_the_outbox_is_kept_in_order_until_it_is_removed() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    for text in ["one", "two", "three"] {
        r.outbox_put(bytes::Bytes::from(text)).await.unwrap();
    }
    let waiting = r.outbox(2).await.unwrap();
    assert_eq!(waiting.iter().map(|w| w.bytes.as_ref()).collect::<Vec<_>>(), [&b"one"[..], b"two"]);
    r.outbox_remove(&waiting[0]).await.unwrap();
    let left = r.outbox(10).await.unwrap();
    assert_eq!(left.iter().map(|w| w.bytes.as_ref()).collect::<Vec<_>>(), [&b"two"[..], b"three"]);
}
