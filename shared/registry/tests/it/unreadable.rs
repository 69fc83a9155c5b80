//! Records that cannot be understood are never lost, and stand in the scope of what they could govern.

use std::fs;

use squire_registry::{Collection, Kind, Level, Subject};

use crate::support::{Lake, govern, none, path};

/// Writes a generation by hand.
fn write(lake: &Lake, collection: &str, key: &str, generation: u64, bytes: &[u8]) {
    let dir = lake.dir.path().join("_squire/v1").join(collection).join(key);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(format!("{generation:020}.json")), bytes).unwrap();
}

#[tokio::test]
async fn bad_json_bad_utf8_and_a_higher_level_are_values_and_not_errors() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    write(&lake, "protection", "bad-json", 1, b"{\"min_reader\": 1");
    write(&lake, "protection", "bad-utf8", 1, b"\xff\xfe");
    write(&lake, "protection", "no-object", 1, b"[]");
    write(&lake, "protection", "newer", 1, br#"{"min_reader": 2, "anything": true}"#);
    write(&lake, "protection", "no-level", 1, br#"{"kind": "protection"}"#);
    write(&lake, "protection", "empty", 1, b"");
    let snapshot = lake.registry.snapshot().await.unwrap();
    assert_eq!(snapshot.unreadable.len(), 6);
    assert_eq!(snapshot.tables().count(), 1);
    assert_eq!(lake.govern(&uri).await.unreadable.len(), 6);
    let newer = snapshot.unreadable.iter().find(|u| u.key == "newer").unwrap();
    assert!(newer.why.contains("level 2"), "{newer}");
    assert_eq!(snapshot.counts()[&Collection::Protection], (0, 6));
    assert_eq!(squire_registry::check(&snapshot).len(), 6);
}

#[tokio::test]
async fn an_older_generation_never_stands_in_for_an_unreadable_one() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    let table = Subject::Table(path("sales/orders"));
    lake.registry.protect(&table, Level::NoDrop, None).await.unwrap();
    write(&lake, "protection", "table%2Fsales%2Forders", 2, b"?");
    let found = lake.govern(&uri).await;
    assert_eq!(found.protection, None);
    assert_eq!(found.unreadable.len(), 1);
    assert_eq!(found.unreadable[0].generation, 2);
    // Nor is it written over.
    for result in
        [lake.registry.protect(&table, Level::Freeze, None).await, lake.registry.unprotect(&table, None).await]
    {
        assert_eq!(result.unwrap_err().kind(), Kind::Damaged);
    }
}

#[tokio::test]
async fn a_record_under_a_foreign_key_or_generation_is_unreadable() {
    let lake = Lake::new().await;
    let source = lake.generations("projects", "p").remove(0);
    let bytes = fs::read(source).unwrap();
    write(&lake, "projects", "q", 1, &bytes);
    write(&lake, "projects", "p", 5, &bytes);
    let snapshot = lake.registry.snapshot().await.unwrap();
    assert_eq!(snapshot.unreadable.iter().map(|u| u.key.as_str()).collect::<Vec<_>>(), ["p", "q"]);
    assert_eq!(snapshot.projects().count(), 0);
}

#[tokio::test]
async fn scope_is_the_warehouse_or_the_estate_as_the_collection_has_it() {
    let lake = Lake::new().await;
    let ours = lake.table("sales/orders").await;
    let r = &lake.registry;
    let other = tempfile::tempdir().unwrap();
    r.project_create("q", None).await.unwrap();
    r.warehouse_create("w2", "q", other.path().to_str().unwrap(), true, &none(), None).await.unwrap();
    r.namespace_create(&path("hr"), Some("w2"), None).await.unwrap();
    let theirs = squire_registry::canonical_uri(other.path().join("t.lance").to_str().unwrap()).unwrap();

    let check = async |collection: &str, key: &str, in_ours: bool, in_theirs: bool| {
        write(&lake, collection, key, 1, b"?");
        let found = (lake.govern(&ours).await.unreadable.len(), lake.govern(&theirs).await.unreadable.len());
        assert_eq!(found, (usize::from(in_ours), usize::from(in_theirs)), "{collection}/{key}");
        fs::remove_dir_all(lake.dir.path().join("_squire/v1").join(collection).join(key)).unwrap();
    };
    for collection in ["trash", "protection", "locations", "blocks", "warehouses", "contracts"] {
        check(collection, "x", true, true).await;
    }
    check("tables", "sales%2Fx", true, false).await;
    check("tables", "hr%2Fx", false, true).await;
    check("namespaces", "sales%2Feu", true, false).await;
    check("policies", "namespace%2Fsales", true, false).await;
    check("policies", "project%2Fq", false, true).await;
    check("projects", "other", false, false).await;
    // What cannot be told counts everywhere: an unbound namespace, and a key that was cut.
    check("namespaces", "new", true, true).await;
    check("policies", "table%2Fxxxxxxxx~00112233445566778899", true, true).await;
}

#[tokio::test]
async fn a_damaged_identity_is_in_everybodys_scope_and_refuses_to_open() {
    let lake = Lake::new().await;
    write(&lake, "estate", "self", 2, b"?");
    assert_eq!(lake.govern("s3://elsewhere/x").await.unreadable.len(), 1);
    let error = squire_registry::Registry::open(lake.registry.uri(), &none()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged, "{error}");
}

#[tokio::test]
async fn a_registry_of_a_newer_level_is_not_opened() {
    let lake = Lake::new().await;
    let file = lake.generations("estate", "self").remove(0);
    let text = fs::read_to_string(&file).unwrap().replace("\"feature_level\": 1", "\"feature_level\": 2");
    fs::write(&file, text).unwrap();
    let error = squire_registry::Registry::open(lake.registry.uri(), &none()).await.unwrap_err();
    assert!(error.to_string().contains("feature level 2"), "{error}");
}

#[tokio::test]
async fn unfinished_puts_and_foreign_files_are_no_records() {
    let lake = Lake::new().await;
    let dir = lake.dir.path().join("_squire/v1/projects/p");
    fs::write(dir.join(".tmp-1234"), b"half").unwrap();
    fs::write(dir.join("2.json"), b"x").unwrap();
    fs::write(dir.join("0000000000000000000x.json"), b"x").unwrap();
    let snapshot = lake.registry.snapshot().await.unwrap();
    assert_eq!((snapshot.unreadable.len(), snapshot.projects().count()), (0, 1));
}

#[tokio::test]
async fn a_table_whose_record_is_unreadable_is_still_frozen_by_its_name() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    lake.registry.protect(&Subject::Namespace(path("sales")), Level::Freeze, None).await.unwrap();
    write(&lake, "tables", "sales%2Forders", 2, b"?");
    let found = lake.govern(&uri).await;
    assert!(found.is_frozen() && found.unreadable.len() == 1);
    assert_eq!(found.table, Some(Subject::Table(path("sales/orders"))));
    let now = lake.registry.recheck(&lake.registry.snapshot().await.unwrap(), &uri).await.unwrap();
    assert_eq!(govern(&now, &uri, chrono::Utc::now()), found);
}
