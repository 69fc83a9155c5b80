//! A message that is delivered again brings a run to another worker, while the first one may be dead or only asleep.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use squire_lake::sample::Sample;
use squire_maintenance::driver;
use squire_registry::ClaimOutcome;

use super::common::*;
use super::slices::{Inside, seen};

const KEEP: [(&str, &str); 1] = [("SQUIRE_POLICY__CLEANUP", "false")];

async fn append(inside: &Inside, fragments: i64) {
    let mut other = Sample::open(&lake(), &inside.uri, Default::default()).await.expect("opened");
    for i in 0..fragments {
        other.write(20, 5_000 + i * 20).await.expect("written");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_comes_twice_stamps_nothing_twice_and_keeps_both_entries() {
    let inside = Inside::with(&KEEP).await;
    let run = inside.tools.estate.run;
    for attempt in 1..=2 {
        let p = inside.plan().await;
        let applied = driver::apply_one(&inside.tools, &p).await;
        assert!(applied.failures.is_empty() && !applied.commits.is_empty(), "{attempt}: {applied:?}");
        append(&inside, 6).await;
    }
    let look = seen(&inside.uri).await;
    let stamps: Vec<(String, u32)> = look
        .versions()
        .into_iter()
        .filter_map(|(_, m)| m.stamp.as_ref())
        .filter(|s| s.run == run.to_string())
        .map(|s| (s.step.clone(), s.slice))
        .collect();
    assert!(stamps.len() >= 4, "{stamps:?}");
    assert_eq!(stamps.iter().collect::<BTreeSet<_>>().len(), stamps.len(), "a stamp came twice: {stamps:?}");
    let attempts = inside.tools.registry.run_dataset(run, &inside.uri).await.expect("read");
    let commits: Vec<usize> = attempts.iter().map(|a| a.result.as_ref().expect("closed").commits.len()).collect();
    assert_eq!(commits.len(), 2, "each has its own entry");
    assert!(commits.iter().all(|n| *n > 0), "{commits:?}");
    inside.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_worker_committed_after_the_plan_is_planned_anew_and_not_over() {
    let inside = Inside::with(&KEEP).await;
    // A worker that dies with its claim: nobody renews it.
    let ttl = Duration::from_secs(1);
    let held = inside.tools.registry.claim(&inside.uri, uuid::Uuid::now_v7(), ttl).await.expect("claimed");
    assert!(matches!(held, ClaimOutcome::Held(_)));
    drop(held);
    let p = inside.plan().await;
    append(&inside, 1).await;
    let head = seen(&inside.uri).await.version();
    let deadline = Instant::now() + Duration::from_secs(60);
    let reason = loop {
        let applied = driver::apply_one(&inside.tools, &p).await;
        assert!(applied.commits.is_empty(), "{applied:?}");
        let reason = applied.skipped.expect("skipped").reason;
        if reason.as_str() != "claimed" {
            break reason;
        }
        assert!(Instant::now() < deadline, "the claim does not run out");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(reason.as_str(), "plan_stale");
    assert_eq!(seen(&inside.uri).await.version(), head);
    // Planned anew, it is done at once: the claim was given back.
    let p = inside.plan().await;
    let applied = driver::apply_one(&inside.tools, &p).await;
    assert!(applied.failures.is_empty() && !applied.commits.is_empty(), "{applied:?}");
    inside.here.oracle("lake");
}
