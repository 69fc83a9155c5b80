//! What was cut off is found, and ended on request.

use chrono::{DateTime, TimeDelta, Utc};
use squire_registry::{DropRequest, Level, ProblemKind, Subject, check};

use crate::support::{Lake, path};

const WEEK: std::time::Duration = std::time::Duration::from_secs(7 * 86_400);

fn table() -> Subject {
    Subject::Table(path("sales/orders"))
}

async fn mend(lake: &Lake, at: DateTime<Utc>) -> Vec<(bool, String)> {
    let snapshot = lake.registry.snapshot().await.unwrap();
    let mended = lake.registry.mend(&snapshot, at).await.unwrap();
    mended.into_iter().map(|m| (m.done, m.what)).collect()
}

fn later() -> DateTime<Utc> {
    Utc::now() + TimeDelta::minutes(11)
}

async fn problems(lake: &Lake) -> Vec<ProblemKind> {
    check(&lake.registry.snapshot().await.unwrap()).into_iter().map(|p| p.kind).collect()
}

#[tokio::test]
async fn what_may_be_at_work_is_left_alone_for_ten_minutes() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    std::fs::remove_dir_all(lake.dir.path().join("_squire/v1/locations")).unwrap();
    assert_eq!(problems(&lake).await, [ProblemKind::HalfRegistered]);
    assert!(!mend(&lake, Utc::now() + TimeDelta::minutes(9)).await[0].0);
    assert_eq!(problems(&lake).await, [ProblemKind::HalfRegistered]);
    assert!(mend(&lake, later()).await[0].0);
    assert_eq!(problems(&lake).await, []);
    // A whole registry is left alone.
    let before = lake.records("");
    assert_eq!(mend(&lake, later()).await, []);
    assert_eq!(lake.records(""), before);
}

#[tokio::test]
async fn a_location_without_a_table_is_given_back() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    std::fs::remove_dir_all(lake.dir.path().join("_squire/v1/tables")).unwrap();
    assert_eq!(problems(&lake).await, [ProblemKind::HalfRegistered]);
    assert!(mend(&lake, later()).await[0].0);
    assert_eq!(problems(&lake).await, []);
    lake.table("sales/orders").await;
}

#[tokio::test]
async fn a_half_drop_is_finished_and_a_half_undrop_too() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let r = &lake.registry;
    r.protect(&table(), Level::NoDrop, Some("precious")).await.unwrap();
    r.table_drop(&path("sales/orders"), WEEK, true, None).await.unwrap();
    let deadline = r.snapshot().await.unwrap().trash().next().unwrap().fields.deadline;
    std::fs::remove_file(lake.generations("tables", "sales%2Forders").pop().unwrap()).unwrap();
    std::fs::remove_file(lake.records("locations").pop().unwrap()).unwrap();
    assert_eq!(problems(&lake).await, [ProblemKind::HalfDropped]);
    assert!(mend(&lake, later()).await[0].0);
    assert_eq!(problems(&lake).await, []);
    let now = r.snapshot().await.unwrap();
    assert_eq!((now.tables().count(), now.trash().next().unwrap().fields.deadline), (0, deadline));

    r.undrop(&table(), None).await.unwrap();
    std::fs::remove_file(lake.records("trash").pop().unwrap()).unwrap();
    assert!(lake.govern(&uri).await.is_frozen());
    assert_eq!(problems(&lake).await, [ProblemKind::HalfDropped]);
    assert!(mend(&lake, later()).await[0].0);
    let now = lake.govern(&uri).await;
    assert!(!now.is_frozen() && now.protection.unwrap().reason.as_deref() == Some("precious"));
}

#[tokio::test]
async fn a_container_marked_for_nothing_takes_new_things_again() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    r.container_drop(&Subject::Namespace(path("sales")), false, None).await.unwrap();
    std::fs::remove_file(lake.generations("namespaces", "sales").pop().unwrap()).unwrap();
    assert_eq!(problems(&lake).await, [ProblemKind::HalfDropped]);
    assert!(r.namespace_create(&path("sales/eu"), None, None).await.is_err());
    assert!(mend(&lake, later()).await[0].0);
    r.namespace_create(&path("sales/eu"), None, None).await.unwrap();
    assert_eq!(problems(&lake).await, []);
}

#[tokio::test]
async fn a_half_cascade_is_for_a_person() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    let r = &lake.registry;
    let request = DropRequest { grace: WEEK, force: false, cascade: true };
    let plan = r.drop_plan(&Subject::Namespace(path("sales")), request).await.unwrap();
    r.drop_apply(&plan, None).await.unwrap();
    std::fs::remove_file(lake.generations("namespaces", "sales").pop().unwrap()).unwrap();
    assert_eq!(problems(&lake).await, [ProblemKind::HalfDropped]);
    assert_eq!(mend(&lake, later()).await, []);
    assert_eq!(r.undrop_namespace(&Subject::Namespace(path("sales")), None).await.unwrap().tables.len(), 1);
    assert_eq!(problems(&lake).await, []);
}

#[tokio::test]
async fn an_empty_namespace_waits_in_the_trash_for_its_deadline() {
    for (grace, ends) in [(WEEK, false), (std::time::Duration::ZERO, true)] {
        let lake = Lake::new().await;
        let (r, sales) = (&lake.registry, Subject::Namespace(path("sales")));
        let plan = r.drop_plan(&sales, DropRequest { grace, force: false, cascade: true }).await.unwrap();
        r.drop_apply(&plan, None).await.unwrap();
        let found = if ends { vec![ProblemKind::TrashEnded] } else { vec![] };
        assert_eq!(problems(&lake).await, found, "{grace:?}");
        assert_eq!(mend(&lake, later()).await.len(), found.len(), "{grace:?}");
        assert_eq!(r.undrop_namespace(&sales, None).await.is_ok(), !ends, "{grace:?}");
    }
}

#[tokio::test]
async fn what_points_at_nothing_or_elsewhere_is_named() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    let r = &lake.registry;
    let block = squire_registry::Block {
        subject: table(),
        kind: squire_registry::BlockKind::Operator,
        until: None,
        version: None,
    };
    r.block_add(block, "x").await.unwrap();
    r.protect(&table(), Level::NoDrop, None).await.unwrap();
    let file = lake.generations("tables", "sales%2Forders").remove(0);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("\"location\": \"orders.lance\"", "\"location\": \"moved.lance\"")).unwrap();
    let fresh = squire_registry::Registry::open(r.uri(), &crate::support::none()).await.unwrap();
    let kinds = |s: &squire_registry::Snapshot| -> Vec<ProblemKind> { check(s).into_iter().map(|p| p.kind).collect() };
    assert_eq!(kinds(&fresh.snapshot().await.unwrap()), [ProblemKind::LocationDiffers]);
    std::fs::write(&file, text.replace("\"orders\"\n", "\"other\"\n")).unwrap();
    let fresh = squire_registry::Registry::open(r.uri(), &crate::support::none()).await.unwrap();
    assert!(kinds(&fresh.snapshot().await.unwrap()).contains(&ProblemKind::RecordMisplaced));
    std::fs::remove_file(&file).unwrap();
    std::fs::remove_dir_all(lake.dir.path().join("_squire/v1/locations")).unwrap();
    assert_eq!(problems(&lake).await, [ProblemKind::ProtectionOnNothing, ProblemKind::BlockOnNothing]);
}

#[tokio::test]
async fn records_that_contradict_each_other_are_errors() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    let r = &lake.registry;
    r.warehouse_create("other", "p", lake.dir.path().to_str().unwrap(), true, &crate::support::none(), None)
        .await
        .unwrap();
    r.namespace_create(&path("sales/eu"), None, None).await.unwrap();
    lake.table("sales/eu/inner").await;
    assert_eq!(problems(&lake).await, []);
    let change = |collection: &str, key: &str, changes: &[(&str, &str)]| {
        let file = lake.generations(collection, key).pop().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let text = changes.iter().fold(text, |text, (from, to)| text.replace(from, to));
        std::fs::write(&file, text).unwrap();
    };
    let moved = [("inner.lance", "orders.lance/data/inner.lance")];
    change("tables", "sales%2Feu%2Finner", &moved);
    let location =
        lake.records("locations").into_iter().find(|f| std::fs::read_to_string(f).unwrap().contains("inner")).unwrap();
    std::fs::remove_dir_all(location.parent().unwrap()).unwrap();
    change("namespaces", "sales%2Feu", &[("\"warehouse\": \"w\"", "\"warehouse\": \"other\"")]);
    for warehouse in ["w", "other"] {
        r.warehouse_set_namespace(warehouse, None, Some("https://a.example"), None).await.unwrap();
    }
    change("warehouses", "other", &[("https://a.example", "https://b.example")]);
    let fresh = squire_registry::Registry::open(r.uri(), &crate::support::none()).await.unwrap();
    let found = check(&fresh.snapshot().await.unwrap());
    let root = lake.uri("").trim_end_matches('/').to_owned();
    for (kind, subject) in [
        (ProblemKind::LocationNested, "table/sales/eu/inner"),
        (ProblemKind::BindingDiffers, "namespace/sales/eu"),
        (ProblemKind::ServersDiffer, root.as_str()),
    ] {
        assert!(found.iter().any(|p| p.kind == kind && p.subject == subject), "{kind}: {found:?}");
        assert!(kind.is_error());
    }
}
