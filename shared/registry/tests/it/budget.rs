//! The fleet's budget of a day.

use chrono::NaiveDate;
use squire_registry::Registry;

use crate::support::{Lake, none};

fn day(d: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2026, 11, d).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_replicas_no_more_reserve_than_fit() {
    let lake = Lake::new().await;
    let replicas = futures::future::join_all((0..8).map(|_| async {
        let replica = Registry::open(lake.registry.uri(), &none()).await.unwrap();
        replica.reserve_rewrite(day(30), 30, 100).await.unwrap()
    }));
    let answers = replicas.await;
    assert_eq!(answers.iter().filter(|a| a.is_ok()).count(), 3, "{answers:?}");
    assert_eq!(answers.iter().filter(|a| **a == Err(10)).count(), 5, "ten bytes are left: {answers:?}");
    assert_eq!(lake.registry.rewritten_on(day(30)).await.unwrap(), 90);
}

#[tokio::test]
async fn what_was_not_needed_comes_back_and_every_day_is_its_own() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    assert_eq!(r.reserve_rewrite(day(29), 80, 100).await.unwrap(), Ok(()));
    assert_eq!(r.reserve_rewrite(day(29), 30, 100).await.unwrap(), Err(20));
    assert_eq!(r.reserve_rewrite(day(30), 30, 100).await.unwrap(), Ok(()));
    r.settle_rewrite(day(29), 80, 50).await.unwrap();
    assert_eq!(r.reserve_rewrite(day(29), 30, 100).await.unwrap(), Ok(()));
    // A sweep by hand reserves nothing and is counted, also beyond the budget.
    r.settle_rewrite(day(29), 0, 500).await.unwrap();
    assert_eq!(r.rewritten_on(day(29)).await.unwrap(), 580);
    assert_eq!(r.reserve_rewrite(day(29), 1, 100).await.unwrap(), Err(0));
    assert_eq!(r.rewritten_on(day(30)).await.unwrap(), 30);
    assert_eq!(r.rewritten_on(day(28)).await.unwrap(), 0);
}
