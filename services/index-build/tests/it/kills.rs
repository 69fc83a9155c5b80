//! Killed at each stage, on a real S3 server behind a proxy: the table stays whole, the next attempt converges, and what is left
//! over is told.

use serde_json::Value;
use squire_lake::oracle::Leftovers;
use squire_registry::JobState;
use squire_test_support::{Action, Server, gated, kind, on_nth_of_kind};

use crate::on_s3::OnS3;

#[tokio::test(flavor = "multi_thread")]
async fn a_build_killed_at_any_kind_of_write_loses_nothing_and_the_next_one_converges() {
    let test = "a_build_killed_at_any_kind_of_write_loses_nothing_and_the_next_one_converges";
    let Some(server) = Server::shared(test) else { return };
    let quiet = OnS3::new(server).await;
    quiet.proxy.pass();
    let child = quiet.start();
    assert_eq!(quiet.end(child), 0, "{}", quiet.said("err"));
    let mut kinds: Vec<String> = quiet.proxy.writes().iter().map(kind).collect();
    kinds.sort();
    kinds.dedup();
    for wanted in ["PUT _indices", "PUT _versions", "PUT claims", "PUT jobs", "PUT run_entries"] {
        assert!(kinds.iter().any(|k| k == wanted), "no {wanted} among {kinds:?}");
    }
    quiet.whole(Leftovers::None, "undisturbed").await;
    for (name, action) in [
        ("PUT jobs", Action::KillAfter),
        ("PUT claims", Action::KillAfter),
        ("PUT run_entries", Action::KillAfter),
        ("PUT _indices", Action::KillAfter),
        ("PUT _versions", Action::KillBefore),
        ("PUT _versions", Action::KillAfter),
    ] {
        let what = format!("{action:?} {name}");
        let s3 = OnS3::new(server).await;
        s3.proxy.set(on_nth_of_kind(name, 1, action));
        let child = s3.start();
        assert_eq!(s3.end(child), -9, "{what}: it was not killed: {}", s3.said("err"));
        s3.proxy.settle();
        s3.whole(Leftovers::Explained, &what).await;
        s3.proxy.pass();
        let child = s3.start();
        assert_eq!(s3.end(child), 0, "{what}: {}", s3.said("err"));
        let look = s3.look().await;
        assert_eq!((look.indices.len(), look.indices[0].unindexed_rows), (1, 0), "{what}");
        let stamps = look.manifests.iter().filter(|m| m.stamp.as_ref().is_some_and(|s| s.step == "build")).count();
        assert_eq!(stamps, 1, "{what}: built once in effect");
        s3.whole(Leftovers::Explained, &what).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_in_flight_is_taken_back_and_leaves_nothing() {
    let Some(server) = Server::shared("a_build_in_flight_is_taken_back_and_leaves_nothing") else { return };
    let s3 = OnS3::new(server).await;
    let version = s3.look().await.version();
    let (gate, rule) = gated(|request| request.is_write() && kind(request) == "PUT _indices");
    s3.proxy.set(rule);
    let child = s3.start();
    gate.arrived();
    let (jobs, _) = s3.registry.jobs().await.unwrap();
    assert_eq!((jobs.len(), jobs[0].state), (1, JobState::Running), "{jobs:?}");
    s3.registry.job_cancel(&jobs[0].job).await.unwrap();
    // Whether its worker sees it at once or only before the commit: nothing is committed.
    gate.open();
    assert_eq!(s3.end(child), 3, "{}", s3.said("err"));
    let said: Value = serde_json::from_str(&s3.said("out")).unwrap();
    assert_eq!(said["outcome"], "cancelled", "{said:#}");
    let look = s3.look().await;
    assert_eq!((look.version(), look.indices.len()), (version, 0), "nothing was committed");
    assert_eq!(s3.registry.job(&jobs[0].job).await.unwrap().state, JobState::Cancelled);
    s3.whole(Leftovers::None, "taken back").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_that_arrives_while_an_index_is_built_stops_its_commit() {
    let Some(server) = Server::shared("a_freeze_that_arrives_while_an_index_is_built_stops_its_commit") else { return };
    let s3 = OnS3::new(server).await;
    let version = s3.look().await.version();
    let (gate, rule) = gated(|request| request.is_write() && kind(request) == "PUT _indices");
    s3.proxy.set(rule);
    let child = s3.start();
    gate.arrived();
    let table = "table/sales/t".parse().unwrap();
    s3.registry.protect(&table, squire_registry::Level::Freeze, Some("audit")).await.unwrap();
    gate.open();
    assert_eq!(s3.end(child), 3, "{}", s3.said("err"));
    let said: Value = serde_json::from_str(&s3.said("out")).unwrap();
    assert_eq!((&said["outcome"], &said["reason"]), (&"refused".into(), &"frozen".into()), "{said:#}");
    assert_eq!(
        (s3.look().await.version(), s3.index_dirs().len()),
        (version, 0),
        "nothing is committed, nothing is left"
    );
    s3.whole(Leftovers::None, "frozen").await;
}

/// Somebody else's compaction lands while the index is built: the commit is refused by the library, what was built goes, and the
/// next attempt covers the new fragments.
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_that_lands_while_an_index_is_built_costs_an_attempt_and_no_row() {
    let test = "a_compaction_that_lands_while_an_index_is_built_costs_an_attempt_and_no_row";
    let Some(server) = Server::shared(test) else { return };
    let s3 = OnS3::new(server).await;
    let mut first = true;
    let (gate, rule) = gated(move |request| {
        let hit = first && request.is_write() && kind(request) == "PUT _versions";
        first &= !hit;
        hit
    });
    s3.proxy.set(rule);
    let child = s3.start();
    gate.arrived();
    let uri = s3.uri();
    tokio::task::spawn_blocking(move || server.pylance("compact", &uri, Value::Null)).await.unwrap();
    gate.open();
    assert_eq!(s3.end(child), 0, "{}", s3.said("err"));
    let look = s3.look().await;
    let info = &look.indices[0];
    assert_eq!((look.fragments.len(), info.unindexed_rows), (1, 0), "{info:?}");
    assert!(info.indexed_rows > 0);
    s3.whole(Leftovers::None, "after the race").await;
}
