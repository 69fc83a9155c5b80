//! The fleet's budget of a day, and the shares of its limits.

use std::time::Duration;

use chrono::NaiveDate;
use squire_registry::{PerDay, Registry, Spending};
use uuid::Uuid;

use crate::support::{Lake, none};

fn day(d: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2026, 11, d).unwrap()
}

fn bytes(rewritten_bytes: u64) -> Spending {
    Spending { rewritten_bytes, cost: 0.0 }
}

fn cost(cost: f64) -> Spending {
    Spending { rewritten_bytes: 0, cost }
}

const HUNDRED: PerDay = PerDay { rewritten_bytes: Some(100), cost: None };

#[tokio::test(flavor = "multi_thread")]
async fn of_many_replicas_no_more_reserve_than_fit() {
    let lake = Lake::new().await;
    let replicas = futures::future::join_all((0..8).map(|_| async {
        let replica = Registry::open(lake.registry.uri(), &none()).await.unwrap();
        replica.reserve(day(30), bytes(30), HUNDRED).await.unwrap().map_err(|left| left.rewritten_bytes)
    }));
    let answers = replicas.await;
    assert_eq!(answers.iter().filter(|a| a.is_ok()).count(), 3, "{answers:?}");
    assert_eq!(answers.iter().filter(|a| **a == Err(10)).count(), 5, "ten bytes are left: {answers:?}");
    assert_eq!(lake.registry.spent_on(day(30)).await.unwrap(), bytes(90));
}

#[tokio::test]
async fn what_was_not_needed_comes_back_and_every_day_is_its_own() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    let reserve = async |d, n| r.reserve(day(d), bytes(n), HUNDRED).await.unwrap().map_err(|left| left.rewritten_bytes);
    assert_eq!(reserve(29, 80).await, Ok(()));
    assert_eq!(reserve(29, 30).await, Err(20));
    assert_eq!(reserve(30, 30).await, Ok(()));
    r.settle(day(29), bytes(80), bytes(50)).await.unwrap();
    assert_eq!(reserve(29, 30).await, Ok(()));
    // A sweep by hand reserves nothing and is counted, also beyond the budget.
    r.settle(day(29), bytes(0), bytes(500)).await.unwrap();
    assert_eq!(r.spent_on(day(29)).await.unwrap(), bytes(580));
    assert_eq!(reserve(29, 1).await, Err(0));
    assert_eq!(r.spent_on(day(30)).await.unwrap(), bytes(30));
    assert_eq!(r.spent_on(day(28)).await.unwrap(), bytes(0));
}

#[tokio::test]
async fn money_is_bounded_beside_the_bytes() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    let per_day = PerDay { rewritten_bytes: Some(100), cost: Some(2.0) };
    assert_eq!(r.reserve(day(30), Spending { rewritten_bytes: 60, cost: 1.5 }, per_day).await.unwrap(), Ok(()));
    let left = r.reserve(day(30), cost(0.75), per_day).await.unwrap().unwrap_err();
    assert_eq!((left.rewritten_bytes, left.cost), (40, 0.5));
    assert_eq!(r.reserve(day(30), cost(0.5), per_day).await.unwrap(), Ok(()));
    // All of it is reserved: not even what costs nothing begins.
    assert!(r.reserve(day(30), cost(0.0), per_day).await.unwrap().is_err());
    r.settle(day(30), cost(0.5), cost(0.25)).await.unwrap();
    assert_eq!(r.spent_on(day(30)).await.unwrap(), Spending { rewritten_bytes: 60, cost: 1.75 });
}

#[tokio::test]
async fn a_share_is_of_those_who_take_part_now() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    let (one, two, dead) = (Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7());
    let ttl = Duration::from_secs(60);
    assert_eq!(r.share_take("deletes s3://a", one, ttl).await.unwrap(), 1);
    assert_eq!(r.share_take("deletes s3://a", two, ttl).await.unwrap(), 2);
    assert_eq!(r.share_take("deletes s3://a", one, ttl).await.unwrap(), 2, "the same member once");
    assert_eq!(r.share_take("deletes s3://b", one, ttl).await.unwrap(), 1, "each limit has its own members");
    // One that has not shown itself for its time to live takes part no longer.
    assert_eq!(r.share_take("deletes s3://a", dead, ttl).await.unwrap(), 3);
    let folder = lake.dir.path().join("_squire/v1/shares");
    let file = std::fs::read_dir(folder).unwrap().flatten().map(|d| d.path().join(dead.to_string()));
    let file = file.filter(|f| f.exists()).last().unwrap();
    let old = std::time::SystemTime::now() - Duration::from_secs(90);
    std::fs::File::open(&file).unwrap().set_modified(old).unwrap();
    assert_eq!(r.share_take("deletes s3://a", one, ttl).await.unwrap(), 2);
    assert!(file.exists(), "it may only be slow");
    std::fs::File::open(&file).unwrap().set_modified(old - Duration::from_secs(600)).unwrap();
    assert_eq!(r.share_take("deletes s3://a", one, ttl).await.unwrap(), 2);
    assert!(!file.exists());
    r.share_leave("deletes s3://a", two).await.unwrap();
    assert_eq!(r.share_take("deletes s3://a", one, ttl).await.unwrap(), 1);
}
