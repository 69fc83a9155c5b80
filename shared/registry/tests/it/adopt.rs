//! Datasets in a bucket become records.

use squire_registry::{Kind, Named, NamedTable, Registry, Subject, check};

use crate::many_writers::Estate;
use crate::support::{Lake, actor, none, path};

async fn fresh(dir: &std::path::Path) -> Registry {
    let registry = dir.join("_squire").to_str().unwrap().to_owned();
    Registry::init(&registry, &none(), "test", actor()).await.unwrap()
}

fn dataset(dir: &std::path::Path, at: &str) {
    let versions = dir.join(at).join("_versions");
    std::fs::create_dir_all(&versions).unwrap();
    std::fs::write(versions.join("1.manifest"), b"x").unwrap();
}

#[tokio::test]
async fn what_a_namespace_names_in_the_registry_or_beside_the_warehouse_is_left_out() {
    let lake = Lake::new().await;
    let named = |id: &str, uri: String| NamedTable { id: path(id), uri, declared: false };
    let tables = vec![
        named("records", format!("{}/v1/tables", lake.registry.uri())),
        named("beside", format!("{}-beside/t", lake.uri("x").trim_end_matches("/x"))),
        named("good", lake.uri("good")),
        named("twice", lake.uri("good")),
    ];
    let named = Named { tables, alone: true, ..Named::reserved(Vec::new()) };
    let root = lake.dir.path().to_str().unwrap();
    let plan = lake.registry.adopt_plan_named(root, None, &none(), &named).await.unwrap();
    assert_eq!(plan.tables, [(Subject::Table(path("w/good")), "good".to_owned())]);
    let why: Vec<&str> = plan.skipped.iter().map(|(_, why)| why.as_str()).collect();
    assert!(why[0] == "it lies in the registry" && why[1].starts_with("it lies outside of the warehouse"), "{why:?}");
    assert_eq!(why[2], "twice is a second name of it");
}

#[tokio::test]
async fn a_bare_directory_becomes_a_project_a_warehouse_namespaces_and_tables() {
    let dir = tempfile::tempdir().unwrap();
    let lake = dir.path().join("lake");
    for at in ["top.lance", "sales/eu/orders.lance", "sales/a b%20c", "top", "__manifest", "_squire_quarantine/x"] {
        dataset(&lake, at);
    }
    // Not a dataset of its own: it lies in one.
    dataset(&lake, "sales/a b%20c/data/inner");
    std::fs::create_dir_all(lake.join("empty/deep")).unwrap();
    let r = fresh(&lake).await;
    let root = lake.to_str().unwrap();
    let before = crate::support::files(&lake);
    let plan = r.adopt_plan(root, None, &none()).await.unwrap();
    assert_eq!(crate::support::files(&lake), before, "a plan writes nothing");
    assert_eq!((plan.project.as_deref(), plan.warehouse.as_str()), (Some("default"), "lake"));
    let tables: Vec<(String, &str)> = plan.tables.iter().map(|(s, l)| (s.to_string(), l.as_str())).collect();
    assert_eq!(
        tables,
        [
            ("table/lake/sales/a%20b%2520c".to_owned(), "sales/a b%20c"),
            ("table/lake/sales/eu/orders".to_owned(), "sales/eu/orders.lance"),
            ("table/lake/top".to_owned(), "top"),
        ]
    );
    let namespaces: Vec<String> = plan.namespaces.iter().map(Subject::to_string).collect();
    assert_eq!(namespaces, ["namespace/lake", "namespace/lake/sales", "namespace/lake/sales/eu"]);
    let skipped: Vec<&str> = plan.skipped.iter().map(|(_, why)| why.as_str()).collect();
    assert_eq!(skipped.len(), 2, "{skipped:?}");
    assert!(skipped[0].contains("__") && skipped[1].contains("table/lake/top is taken"), "{skipped:?}");

    assert_eq!(r.adopt(&plan, &none(), None).await.unwrap().len(), 3);
    let now = r.snapshot().await.unwrap();
    assert_eq!(check(&now), []);
    let odd = squire_registry::canonical_uri(lake.join("sales/a b%20c").to_str().unwrap()).unwrap();
    assert_eq!(now.table_at(&odd).unwrap().fields.subject().to_string(), "table/lake/sales/a%20b%2520c");
    // Once more there is nothing to do, and what is in the trash stays there.
    r.table_drop(&path("lake/top"), std::time::Duration::from_secs(60), false, None).await.unwrap();
    let again = r.adopt_plan(root, None, &none()).await.unwrap();
    assert!(again.tables.len() == 1 && again.project.is_none() && again.makes_warehouse.is_none(), "{again:?}");
    assert!(again.skipped.iter().any(|(_, why)| why.contains("table/lake/top in the trash")), "{again:?}");
}

#[tokio::test]
async fn a_part_of_a_warehouse_keeps_its_place_in_it_and_what_is_none_is_refused() {
    let lake = Lake::new().await;
    let r = &lake.registry;
    dataset(lake.dir.path(), "a/b/t.lance");
    let part = lake.dir.path().join("a");
    let plan = r.adopt_plan(part.to_str().unwrap(), None, &none()).await.unwrap();
    assert_eq!((plan.warehouse.as_str(), &plan.makes_warehouse), ("w", &None));
    assert_eq!(plan.tables[0].0.to_string(), "table/w/a/b/t");
    assert_eq!(plan.tables[0].1, "a/b/t.lance");
    r.adopt(&plan, &none(), None).await.unwrap();
    assert_eq!(check(&r.snapshot().await.unwrap()), []);
    let itself = lake.dir.path().join("a/b/t.lance");
    let error = r.adopt_plan(itself.to_str().unwrap(), None, &none()).await.unwrap_err();
    assert!(error.kind() == Kind::Refused && error.to_string().contains("is a dataset itself"), "{error}");
    let above = lake.dir.path().parent().unwrap().to_str().unwrap();
    // The folder of all temporary directories is nobody's to walk in a test; a warehouse below is told from a walk of ours.
    let outer = tempfile::tempdir_in(above).unwrap();
    std::fs::create_dir_all(outer.path().join("inner")).unwrap();
    r.warehouse_create("w2", "p", outer.path().join("inner").to_str().unwrap(), true, &none(), None).await.unwrap();
    let error = r.adopt_plan(outer.path().to_str().unwrap(), None, &none()).await.unwrap_err();
    assert!(error.to_string().contains("warehouse/w2"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_on_s3_is_walked_by_directories() {
    let name = "a_bucket_on_s3_is_walked_by_directories";
    let (Some(server), Some(estate)) = (squire_test_support::Server::shared(name), Estate::on_s3(name).await) else {
        return;
    };
    let prefix = estate.root.trim_start_matches("s3://lake/").to_owned();
    let objects = ["bronze/t.lance/_versions/1.manifest", "bronze/t.lance/data/x.lance", "a b/u/_versions/1.manifest"];
    let objects = objects.into_iter().map(|o| (o.to_owned(), bytes::Bytes::from_static(b"x"))).collect();
    tokio::task::spawn_blocking(move || server.bucket().write(&prefix, &objects)).await.unwrap();
    let r = estate.client().await;
    let plan = r.adopt_plan(&estate.root, None, &estate.options).await.unwrap();
    let tables: Vec<(String, &str)> = plan.tables.iter().map(|(s, l)| (s.to_string(), l.as_str())).collect();
    assert_eq!(tables, [("table/w/a%20b/u".to_owned(), "a b/u"), ("table/w/bronze/t".to_owned(), "bronze/t.lance")]);
    r.adopt(&plan, &estate.options, None).await.unwrap();
    assert_eq!(check(&r.snapshot().await.unwrap()), []);
}
