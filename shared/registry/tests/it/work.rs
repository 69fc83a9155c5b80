//! Objects of compactions in slices.

use bytes::Bytes;
use squire_registry::{Kind, Registry, WorkPart};
use uuid::Uuid;

use crate::support::{Fault, Lake, actor, memory};

const T: &str = "s3://lake/t.lance";

#[tokio::test]
async fn an_object_is_put_once_and_never_replaced() {
    let lake = Lake::new().await;
    let (r, run) = (&lake.registry, Uuid::now_v7());
    let (first, second) = (Bytes::from_static(b"first"), Bytes::from_static(b"second"));
    let slice = WorkPart::Slice(3);
    assert_eq!(r.work_get(run, T, slice, "result").await.unwrap(), None);
    assert!(r.work_put(run, T, slice, "result", first.clone()).await.unwrap());
    assert!(!r.work_put(run, T, slice, "result", second).await.unwrap(), "other bytes lose");
    assert!(r.work_put(run, T, slice, "result", first.clone()).await.unwrap(), "the same bytes are there");
    assert_eq!(r.work_get(run, T, slice, "result").await.unwrap(), Some(first));
    for bad in ["", "A", "../x", "a/b", "a.b"] {
        let e = r.work_put(run, T, slice, bad, Bytes::new()).await.unwrap_err();
        assert_eq!(e.kind(), Kind::Invalid, "{bad:?}: {e}");
    }
}

#[tokio::test]
async fn a_list_names_one_datasets_objects_of_one_run() {
    let lake = Lake::new().await;
    let (r, run) = (&lake.registry, Uuid::now_v7());
    assert_eq!(r.work_list(run, T).await.unwrap(), []);
    for (run, uri, part, attempt) in [
        (run, T, WorkPart::Plan, "0"),
        (run, T, WorkPart::Slice(11), "0"),
        (run, T, WorkPart::Slice(2), "result"),
        (run, T, WorkPart::Slice(2), "0"),
        (run, "s3://lake/other.lance", WorkPart::Slice(0), "0"),
        (Uuid::now_v7(), T, WorkPart::Slice(1), "0"),
    ] {
        assert!(r.work_put(run, uri, part, attempt, Bytes::new()).await.unwrap());
    }
    let found: Vec<(WorkPart, String)> =
        r.work_list(run, T).await.unwrap().into_iter().map(|o| (o.part, o.attempt)).collect();
    let wanted =
        [(WorkPart::Plan, "0"), (WorkPart::Slice(2), "0"), (WorkPart::Slice(2), "result"), (WorkPart::Slice(11), "0")];
    assert_eq!(found, wanted.map(|(part, attempt)| (part, attempt.to_owned())));
}

#[tokio::test]
async fn a_put_whose_answer_is_lost_is_looked_after() {
    let (store, root) = memory();
    let r = Registry::init_at(root, "test", actor()).await.unwrap();
    let run = Uuid::now_v7();
    store.next("/work/", Fault::LostAnswer);
    assert!(r.work_put(run, T, WorkPart::Plan, "0", Bytes::from_static(b"x")).await.unwrap());
    store.next("/work/", Fault::ConcurrentConflict);
    let e = r.work_put(run, T, WorkPart::Plan, "1", Bytes::from_static(b"x")).await.unwrap_err();
    assert_eq!(e.kind(), Kind::Transient, "{e}");
}

#[tokio::test]
async fn only_what_is_old_and_of_a_closed_run_is_pruned() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    let (closed, open, never, young) = (Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7());
    for run in [closed, open, never, young] {
        assert!(r.work_put(run, T, WorkPart::Plan, "0", Bytes::new()).await.unwrap());
        assert!(r.work_put(run, T, WorkPart::Slice(0), "result", Bytes::new()).await.unwrap());
    }
    let record = |run| squire_registry::RunRecord {
        run,
        kind: "sweep".into(),
        estate: r.id(),
        started_at: chrono::Utc::now(),
        command: "a test".into(),
        actor: actor(),
        tool_version: "0".into(),
        mode: "maintain".into(),
        config_digest: None,
        plan_digest: None,
        live: Default::default(),
        outcome: None,
    };
    for run in [closed, open] {
        r.run_open(record(run)).await.unwrap();
    }
    let outcome = squire_registry::RunOutcome {
        finished_at: chrono::Utc::now(),
        complete: true,
        totals: serde_json::Value::Null,
        failures: Vec::new(),
    };
    r.run_close(closed, outcome).await.unwrap();
    let week = std::time::Duration::from_secs(7 * 86_400);
    let now = chrono::Utc::now();
    assert_eq!(r.work_prune(week, now).await.unwrap(), 0, "nothing is old");
    // Of one run the newest object is young.
    let later = now + chrono::TimeDelta::days(8);
    let file = lake.dir.path().join(format!("_squire/v1/work/{young}"));
    let newest = walk(&file).pop().expect("an object");
    std::fs::File::open(newest).unwrap().set_modified(std::time::SystemTime::from(later)).unwrap();
    assert_eq!(r.work_prune(week, later).await.unwrap(), 4);
    for (run, left) in [(closed, 0), (open, 2), (never, 0), (young, 2)] {
        assert_eq!(r.work_list(run, T).await.unwrap().len(), left, "{run}");
    }
}

fn walk(at: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(at).unwrap().flatten() {
        match entry.path() {
            dir if dir.is_dir() => out.extend(walk(&dir)),
            file => out.push(file),
        }
    }
    out
}
