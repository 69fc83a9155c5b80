//! The audit trail.

use std::fs;

use chrono::{TimeDelta, Utc};
use serde_json::json;
use squire_registry::{
    Block, BlockKind, Collection, Commit, CommitStep, DatasetEntry, DatasetIntent, DatasetResult, Kind, Level, Policy,
    RunOutcome, RunRecord, Subject, VersionEntry, protections_vanished,
};
use uuid::Uuid;

use crate::support::{Lake, actor, path};

async fn open(lake: &Lake) -> RunRecord {
    let record = RunRecord {
        run: Uuid::now_v7(),
        kind: "sweep".into(),
        estate: lake.registry.id(),
        started_at: Utc::now(),
        command: "squire-maintenance sweep ./lake".into(),
        actor: actor(),
        tool_version: "0.1.0".into(),
        mode: "maintain".into(),
        config_digest: None,
        plan_digest: Some("abc".into()),
        live: lake.registry.snapshot().await.unwrap().live_counts(),
        outcome: None,
    };
    lake.registry.run_open(record.clone()).await.unwrap();
    record
}

fn entry(run: Uuid, uri: &str) -> DatasetEntry {
    let at = Utc::now();
    let version = VersionEntry {
        version: 7,
        made_at: at - TimeDelta::days(20),
        replaced_at: at - TimeDelta::days(10),
        rows: 100,
        bytes: 4096,
    };
    DatasetEntry {
        run,
        attempt: Uuid::now_v7(),
        uri: uri.into(),
        table: Some("table/sales/orders".into()),
        opened_at: at,
        intent: DatasetIntent {
            read_version: 12,
            steps: vec!["cleanup".into()],
            versions: vec![version],
            files: 3,
            bytes: 4096,
            policy: Policy::default(),
            policy_source: "namespace/sales".into(),
            plan_digest: None,
        },
        result: None,
    }
}

#[tokio::test]
async fn who_deleted_version_seven_has_an_answer() {
    let lake = Lake::new().await;
    let uri = "s3://lake/Orders and more.lance";
    let run = open(&lake).await;
    let begun = entry(run.run, uri);
    lake.registry.run_dataset_opened(run.run, begun.clone()).await.unwrap();
    lake.registry.run_dataset_opened(run.run, entry(run.run, "s3://lake/other.lance")).await.unwrap();
    // Died here: what was about to go is known.
    let (history, _) = lake.registry.dataset_history(uri).await.unwrap();
    assert_eq!(history.len(), 1);
    assert_eq!(history[0].intent.versions[0].version, 7);
    assert_eq!(history[0].result, None);

    let commit = Commit { step: CommitStep::Compact, version: 13, at: Utc::now(), verified: true };
    let result = DatasetResult {
        outcome: "maintained".into(),
        versions_removed: vec![7],
        files_removed: 3,
        bytes_removed: 4096,
        commits: vec![commit],
        ..DatasetResult::default()
    };
    lake.registry.run_dataset_closed(run.run, uri, begun.attempt, result.clone()).await.unwrap();
    let outcome = RunOutcome { finished_at: Utc::now(), complete: true, totals: json!({"seen": 2}), failures: vec![] };
    lake.registry.run_close(run.run, outcome.clone()).await.unwrap();

    let (record, entries, unreadable) = lake.registry.run(run.run).await.unwrap();
    assert_eq!((record.outcome, record.actor), (Some(outcome), actor()));
    assert_eq!((entries.len(), unreadable.len()), (2, 0));
    let (history, _) = lake.registry.dataset_history(uri).await.unwrap();
    assert_eq!(history[0].result, Some(result));
    assert_eq!(history[0].intent.policy_source, "namespace/sales");
}

#[tokio::test]
async fn runs_are_listed_newest_first_and_the_last_is_found() {
    let lake = Lake::new().await;
    assert_eq!(lake.registry.last_run().await.unwrap(), None);
    let (one, two) = (open(&lake).await, open(&lake).await);
    let (runs, _) = lake.registry.runs().await.unwrap();
    assert_eq!(runs.iter().map(|r| r.run).collect::<Vec<_>>(), [two.run, one.run]);
    assert_eq!(lake.registry.last_run().await.unwrap().unwrap().run, two.run);
}

#[tokio::test]
async fn a_run_id_is_used_once_and_closing_needs_an_opening() {
    let lake = Lake::new().await;
    let run = open(&lake).await;
    let error = lake.registry.run_open(RunRecord { command: "other".into(), ..run.clone() }).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    let closed = lake.registry.run_dataset_closed(run.run, "s3://x", Uuid::nil(), DatasetResult::default());
    let error = closed.await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert_eq!(lake.registry.run(Uuid::now_v7()).await.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test]
async fn two_workers_of_one_run_hide_nothing_of_each_other() {
    let lake = Lake::new().await;
    let (r, uri) = (&lake.registry, "s3://lake/t.lance");
    let run = open(&lake).await.run;
    let (first, second) = (entry(run, uri), entry(run, uri));
    let commit = |version, verified| Commit { step: CommitStep::Compact, version, at: Utc::now(), verified };
    r.run_dataset_opened(run, first.clone()).await.unwrap();
    // It sleeps past its claim; another takes its message.
    r.run_dataset_died(run, uri, Utc::now()).await.unwrap();
    r.run_dataset_opened(run, second.clone()).await.unwrap();
    let result = |version| DatasetResult {
        outcome: "maintained".into(),
        commits: vec![commit(version, true)],
        ..DatasetResult::default()
    };
    // The sleeper wakes and closes its own, while the other is still at work.
    r.run_dataset_closed(run, uri, first.attempt, result(13)).await.unwrap();
    let open_ones = r.run_dataset(run, uri).await.unwrap();
    assert_eq!(open_ones.iter().map(|e| e.result.is_some()).collect::<Vec<_>>(), [true, false]);
    r.run_dataset_closed(run, uri, second.attempt, result(15)).await.unwrap();
    let (_, entries, _) = r.run(run).await.unwrap();
    let versions: Vec<u64> =
        entries.iter().flat_map(|e| &e.result.as_ref().unwrap().commits).map(|c| c.version).collect();
    assert_eq!(versions, [13, 15]);
    let (history, _) = r.dataset_history(uri).await.unwrap();
    assert_eq!(history.iter().map(|e| e.attempt).collect::<Vec<_>>(), [first.attempt, second.attempt]);
}

#[tokio::test]
async fn a_commit_that_was_found_by_its_stamp_is_added_once_to_whoever_made_it() {
    let lake = Lake::new().await;
    let (r, uri) = (&lake.registry, "s3://lake/t.lance");
    let run = open(&lake).await.run;
    let commit = |verified| Commit { step: CommitStep::Compact, version: 13, at: Utc::now(), verified };
    r.run_dataset_found(run, uri, commit(true)).await.unwrap();
    assert_eq!(r.run_dataset(run, uri).await.unwrap(), [], "nobody had begun: nothing is made up");
    let dead = entry(run, uri);
    r.run_dataset_opened(run, dead.clone()).await.unwrap();
    for verified in [false, true, true] {
        r.run_dataset_found(run, uri, commit(verified)).await.unwrap();
    }
    let found = r.run_dataset(run, uri).await.unwrap();
    let result = found[0].result.as_ref().expect("closed");
    assert_eq!(result.outcome, "died");
    assert_eq!(result.commits.iter().map(|c| (c.version, c.verified)).collect::<Vec<_>>(), [(13, true)]);
}

#[tokio::test]
async fn protections_that_vanish_without_a_tombstone_are_found() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    r.protect(&Subject::Project("p".into()), Level::NoDrop, None).await.unwrap();
    r.protect(&Subject::Warehouse("w".into()), Level::KeepHistory, None).await.unwrap();
    let block = Block { subject: Subject::Estate, kind: BlockKind::Operator, until: None, version: None };
    r.block_add(block, "x").await.unwrap();
    let run = open(&lake).await;
    assert_eq!(protections_vanished(&run, &r.snapshot().await.unwrap()), []);

    // Removed by the book: fewer, and all is well.
    r.unprotect(&Subject::Project("p".into()), Some("done")).await.unwrap();
    assert_eq!(protections_vanished(&run, &r.snapshot().await.unwrap()), []);

    // Removed behind the registry's back: found, also when others are made in its place.
    fs::remove_dir_all(lake.dir.path().join("_squire/v1/protection/warehouse%2Fw")).unwrap();
    let found = protections_vanished(&run, &r.snapshot().await.unwrap());
    assert_eq!((found.len(), found[0].collection, found[0].before, found[0].now), (1, Collection::Protection, 2, 0));
    r.protect(&Subject::Namespace(path("sales")), Level::NoDrop, None).await.unwrap();
    r.protect(&Subject::Project("p".into()), Level::NoDrop, None).await.unwrap();
    assert_eq!(protections_vanished(&run, &r.snapshot().await.unwrap()).len(), 1);
}

#[tokio::test]
async fn an_unreadable_protection_has_not_vanished() {
    let lake = Lake::new().await;
    lake.registry.protect(&Subject::Project("p".into()), Level::NoDrop, None).await.unwrap();
    let run = open(&lake).await;
    let file = lake.records("protection").pop().unwrap();
    fs::write(file, b"?").unwrap();
    assert_eq!(protections_vanished(&run, &lake.registry.snapshot().await.unwrap()), []);
}

/// Makes everything of a run look written so many days ago.
fn age(lake: &Lake, run: Uuid, days: u64) {
    let at = std::time::SystemTime::now() - std::time::Duration::from_secs(days * 86_400);
    for file in lake.records("runs").into_iter().chain(lake.records("run_entries")) {
        if file.to_str().unwrap().contains(&run.to_string()) {
            fs::File::options().append(true).open(&file).unwrap().set_modified(at).unwrap();
        }
    }
}

#[tokio::test]
async fn runs_older_than_the_history_go_with_their_entries_when_a_later_one_closes() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    let outcome = || RunOutcome { finished_at: Utc::now(), complete: true, totals: json!({}), failures: vec![] };
    let mut runs = Vec::new();
    for days in [500, 401, 399, 0] {
        let record = open(&lake).await;
        r.run_dataset_opened(record.run, entry(record.run, "s3://b/t")).await.unwrap();
        age(&lake, record.run, days);
        runs.push(record.run);
    }
    // The oldest was written to just now: somebody closed it late, and it counts from then.
    r.run_dataset_opened(runs[0], entry(runs[0], "s3://b/u")).await.unwrap();
    let file = lake.generations("runs", &runs[0].to_string()).remove(0);
    fs::copy(&file, file.with_file_name("00000000000000000002.json")).unwrap();

    r.run_close(runs[3], outcome()).await.unwrap();
    let (left, _) = r.runs().await.unwrap();
    let left: Vec<Uuid> = left.iter().map(|run| run.run).collect();
    assert!(!left.contains(&runs[1]) && left.contains(&runs[2]) && left.contains(&runs[3]), "{left:?}");
    assert_eq!(lake.generations("runs", &runs[0].to_string()).len(), 2);
    assert_eq!(lake.generations("run_entries", &runs[1].to_string()).len(), 0);
    assert_eq!(lake.generations("run_entries", &runs[2].to_string()).len(), 1);
    assert_eq!(r.last_run().await.unwrap().unwrap().run, runs[3]);

    // A shorter history takes more, and a clock of ours that is wrong takes nothing: age is by the store's.
    let short = r.keeping_history(std::time::Duration::from_secs(86_400));
    assert_eq!(short.prune_runs(runs[3]).await.unwrap(), 1);
    assert_eq!(short.prune_runs(Uuid::now_v7()).await.unwrap(), 0);
}
