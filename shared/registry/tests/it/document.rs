//! The whole registry as one document, and back.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::Utc;
use squire_registry::document::Object;
use squire_registry::{
    Actor, Block, BlockKind, ClaimOutcome, Collection, Document, Floors, ImportPlan, Kind, Level, Policy, PolicyChange,
    Registry, StorageOptions, Subject, check,
};
use squire_test_support::{Proxy, Request, Server};
use uuid::Uuid;

use crate::many_writers::Estate;
use crate::support::{Lake, actor, none, path};

const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// A registry with a bit of everything: history, tombstones, trash, claims, state, an unreadable record and bytes.
async fn full() -> Lake {
    let lake = Lake::new().await;
    let r = &lake.registry;
    lake.table("sales/Orders").await;
    lake.table("sales/old").await;
    r.table_drop(&path("sales/old"), WEEK, false, Some("unused")).await.unwrap();
    let table = Subject::Table(path("sales/Orders"));
    r.protect(&table, Level::KeepHistory, Some("case 7")).await.unwrap();
    r.protect(&Subject::Estate, Level::NoDrop, None).await.unwrap();
    r.unprotect(&Subject::Estate, Some("done")).await.unwrap();
    let keys = [("retention".to_owned(), "30d".to_owned()), ("max_stranded".to_owned(), "0.1".to_owned())];
    let change = PolicyChange { subject: &table, keys: &keys, reason: None, immediately: false, at: Utc::now() };
    r.policy_set(&change, &Policy::default(), &Floors::default()).await.unwrap();
    r.save_state([("s3://x/y".to_owned(), serde_json::json!({ "seen": 7 }))].into()).await.unwrap();
    for (name, bytes) in [("x", &b"{ not json"[..]), ("y", &[0xff, 0xfe][..])] {
        let bad = lake.dir.path().join("_squire/v1/trash").join(name);
        std::fs::create_dir_all(&bad).unwrap();
        std::fs::write(bad.join("00000000000000000001.json"), bytes).unwrap();
    }
    lake
}

/// What the objects of a document are, apart from where their directories lie.
fn objects(document: &Document) -> BTreeMap<String, String> {
    let named = |o: &Object| {
        let id = serde_json::to_value(&o.body).unwrap()["record"]["id"].clone();
        let id = id.as_str().map_or(o.key.clone(), str::to_owned);
        (format!("{}/{:?}/{id}/{}", o.collection, o.partition, o.generation), serde_json::to_string(&o.body).unwrap())
    };
    document.objects.iter().map(named).collect()
}

async fn import(uri: &str, options: &StorageOptions, document: &Document, merge: bool) -> ImportPlan {
    ImportPlan::make(uri, options, document, merge).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_trip_is_exact_on_disk_and_through_s3() {
    let lake = full().await;
    let exported = lake.registry.export().await.unwrap();
    let document = Document::parse(&exported.to_text().unwrap()).unwrap();
    assert_eq!(document, exported);

    let elsewhere = tempfile::tempdir().unwrap();
    let copy = elsewhere.path().join("ctl").to_str().unwrap().to_owned();
    let plan = import(&copy, &none(), &document, false).await;
    assert!(plan.makes_registry && plan.kept.is_empty());
    assert!(!elsewhere.path().join("ctl").exists(), "a plan writes nothing");
    let back = plan.apply(actor()).await.unwrap();
    assert_eq!((back.id(), back.name()), (lake.registry.id(), lake.registry.name()));
    let again = back.export().await.unwrap();
    assert_eq!(objects(&again), objects(&exported));
    // On the same kind of root the files are the same, byte for byte.
    let files = |root: &std::path::Path| -> Vec<(std::path::PathBuf, Vec<u8>)> {
        let files = crate::support::files(&root.join("v1"));
        files.into_iter().map(|f| (f.strip_prefix(root).unwrap().to_owned(), std::fs::read(&f).unwrap())).collect()
    };
    assert_eq!(files(&elsewhere.path().join("ctl")), files(&lake.dir.path().join("_squire")));

    // Keys differ on S3, where upper case stays; the records are the same, and come back.
    let Some(estate) = Estate::on_s3("a_round_trip_is_exact_on_disk_and_through_s3").await else { return };
    let there = format!("{}-copy", estate.root);
    import(&there, &estate.options, &document, false).await.apply(actor()).await.unwrap();
    let remote = Registry::open(&there, &estate.options).await.unwrap().export().await.unwrap();
    assert_eq!(objects(&remote), objects(&exported));
    assert!(remote.objects.iter().any(|o| o.key == "sales%2FOrders"));
    let home = elsewhere.path().join("home").to_str().unwrap().to_owned();
    let home = import(&home, &none(), &remote, false).await.apply(actor()).await.unwrap();
    assert_eq!(objects(&home.export().await.unwrap()), objects(&exported));
    assert_eq!(home.snapshot().await.unwrap().table(&path("sales/Orders")).unwrap().meta.generation, 1);
}

#[tokio::test]
async fn claims_are_raised_so_that_nobody_who_held_one_still_does() {
    let lake = Lake::new().await;
    let ttl = Duration::from_secs(90);
    let ClaimOutcome::Held(claim) = lake.registry.claim("s3://b/t", Uuid::now_v7(), ttl).await.unwrap() else {
        panic!("it is free");
    };
    claim.release().await.unwrap();
    let ClaimOutcome::Held(mut claim) = lake.registry.claim("s3://b/t", Uuid::now_v7(), ttl).await.unwrap() else {
        panic!("it is free again");
    };
    let document = lake.registry.export().await.unwrap();
    // The registry is lost and comes back at its place; the holder never stopped.
    std::fs::remove_dir_all(lake.dir.path().join("_squire")).unwrap();
    std::fs::remove_file(lake.dir.path().join(".squire-estate")).unwrap();
    let plan = import(lake.registry.uri(), &none(), &document, false).await;
    assert_eq!(plan.claims_raised, 1);
    let back = plan.apply(actor()).await.unwrap();
    let marked = squire_registry::read_marker(lake.dir.path().to_str().unwrap(), &none()).await.unwrap();
    assert_eq!(marked, Some(document.estate), "the root around it is this estate's again");
    assert_eq!(claim.renew().await.unwrap_err().kind(), Kind::Refused);
    let top = back.export().await.unwrap();
    let generations: Vec<u64> =
        top.objects.iter().filter(|o| o.collection == Collection::Claims).map(|o| o.generation).collect();
    assert_eq!(generations, [1, 2, 3, 4]);
    assert!(back.claimed_by("s3://b/t").await.unwrap().is_some());
    // The same import has nothing more to do.
    let again = import(back.uri(), &none(), &document, true).await;
    assert!(again.is_empty() && again.kept.is_empty(), "{again:?}");
}

#[tokio::test]
async fn a_registry_that_holds_records_is_only_added_to() {
    let lake = full().await;
    let document = lake.registry.export().await.unwrap();
    let error = ImportPlan::make(lake.registry.uri(), &none(), &document, false).await.unwrap_err();
    assert!(error.kind() == Kind::Refused && error.to_string().contains("--merge"), "{error}");
    let whole = import(lake.registry.uri(), &none(), &document, true).await;
    assert!(whole.is_empty() && whole.kept.is_empty(), "{whole:?}");

    // Newer here than in the document, gone here, and different here.
    let r = &lake.registry;
    r.unprotect(&Subject::Table(path("sales/Orders")), Some("over")).await.unwrap();
    let key = lake.records("tables").into_iter().find(|f| f.to_str().unwrap().contains("Orders")).unwrap();
    std::fs::remove_dir_all(key.parent().unwrap()).unwrap();
    std::fs::remove_dir_all(lake.dir.path().join("_squire/v1/projects/p")).unwrap();
    r.project_create("p", Some("made anew")).await.unwrap();
    let plan = import(r.uri(), &none(), &document, true).await;
    assert_eq!(plan.creates, BTreeMap::from([(Collection::Tables, 1)]));
    assert_eq!(plan.kept, ["projects/p/1"]);
    plan.apply(Actor::named("importer")).await.unwrap();
    let fresh = Registry::open(r.uri(), &none()).await.unwrap().snapshot().await.unwrap();
    assert!(fresh.table(&path("sales/Orders")).is_some());
    assert!(fresh.protection_of(&Subject::Table(path("sales/Orders"))).is_none(), "a newer tombstone stays");
    assert_eq!(fresh.project("p").unwrap().meta.reason.as_deref(), Some("made anew"));
}

#[tokio::test]
async fn an_import_that_was_cut_off_makes_no_registry_and_goes_on() {
    let lake = Lake::new().await;
    lake.table("sales/orders").await;
    let document = lake.registry.export().await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let copy = elsewhere.path().join("ctl");
    let uri = copy.to_str().unwrap();
    import(uri, &none(), &document, false).await.apply(actor()).await.unwrap();
    // As if it had stopped before the last records, the identity among them.
    std::fs::remove_dir_all(copy.join("v1/estate")).unwrap();
    std::fs::remove_dir_all(copy.join("v1/tables")).unwrap();
    assert_eq!(Registry::open(uri, &none()).await.unwrap_err().kind(), Kind::NotFound);
    let plan = import(uri, &none(), &document, false).await;
    assert_eq!(plan.creates, BTreeMap::from([(Collection::Estate, 1), (Collection::Tables, 1)]));
    let back = plan.apply(actor()).await.unwrap();
    assert_eq!(check(&back.snapshot().await.unwrap()), []);
}

/// The collections of the records that are put, in the order in which their first and their last one are.
fn order(requests: &[Request]) -> Vec<(String, usize, usize)> {
    let collection = |r: &Request| {
        let below = r.path.split_once("/v1/").filter(|_| r.method == "PUT")?.1;
        Some(below.split_once('/')?.0.to_owned()).filter(|c| !["probes"].contains(&c.as_str()))
    };
    let mut out: Vec<(String, usize, usize)> = Vec::new();
    for (at, name) in requests.iter().filter_map(collection).enumerate() {
        match out.iter_mut().find(|(known, ..)| *known == name) {
            Some(known) => known.2 = at,
            None => out.push((name, at, at)),
        }
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn what_protects_is_written_first_and_the_identity_last() {
    let lake = full().await;
    let block = Block { subject: Subject::Estate, kind: BlockKind::Operator, until: None, version: None };
    lake.registry.block_add(block, "moving").await.unwrap();
    let document = lake.registry.export().await.unwrap();
    let Some(estate) = Estate::on_s3("what_protects_is_written_first…").await else { return };
    let proxy = Proxy::start(&estate.options["aws_endpoint"]);
    let mut counted = estate.options.clone();
    counted.insert("aws_endpoint".into(), proxy.endpoint());
    let plan = import(&format!("{}-ordered", estate.root), &counted, &document, false).await;
    proxy.pass();
    plan.apply(actor()).await.unwrap();
    let order = order(&proxy.log());
    let names: Vec<&str> = order.iter().map(|(name, ..)| name.as_str()).collect();
    let wanted =
        ["protection", "blocks", "trash", "policies", "projects", "warehouses", "namespaces", "locations", "tables"];
    assert_eq!(names[..wanted.len()], wanted);
    assert_eq!(names.last(), Some(&"estate"), "until then there is no registry");
    // A kind begins when the one before is whole.
    assert!(order[..wanted.len()].windows(2).all(|pair| pair[0].2 < pair[1].1), "{order:?}");
}

#[tokio::test]
async fn an_import_beside_a_foreign_mark_is_refused_and_another_identity_is_told() {
    let (one, two) = (Lake::new().await, Lake::new().await);
    let document = one.registry.export().await.unwrap();
    std::fs::remove_dir_all(two.dir.path().join("_squire")).unwrap();
    let error = ImportPlan::make(two.registry.uri(), &none(), &document, false).await.unwrap_err();
    assert!(error.kind() == Kind::Refused && error.to_string().contains(".squire-estate"), "{error}");
    let other = tempfile::tempdir().unwrap();
    let uri = other.path().join("ctl").to_str().unwrap().to_owned();
    Registry::init(&uri, &none(), "new", actor()).await.unwrap();
    let plan = import(&uri, &none(), &document, false).await;
    assert!(!plan.makes_registry && plan.notes[0].contains("registry_lost"), "{plan:?}");
    let merged = plan.apply(actor()).await.unwrap();
    assert_ne!(merged.id(), document.estate);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_does_not_keep_put_if_absent_gets_no_registry() {
    let lake = Lake::new().await;
    let document = lake.registry.export().await.unwrap();
    let Some(liar) = Server::start("a_store_that_does_not_keep…", &["--liar", "--empty"]) else { return };
    let options: StorageOptions = liar.options().clone().into_iter().collect();
    let plan = import("s3://lake/ctl", &options, &document, false).await;
    assert_eq!(plan.apply(actor()).await.unwrap_err().kind(), Kind::LyingStore);
    assert_eq!(Registry::open("s3://lake/ctl", &options).await.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test]
async fn what_is_no_document_is_refused_and_says_why() {
    let lake = Lake::new().await;
    let good = serde_json::to_value(lake.registry.export().await.unwrap()).unwrap();
    let broken = |change: fn(&mut serde_json::Value)| {
        let mut value = good.clone();
        change(&mut value);
        Document::parse(&value.to_string()).unwrap_err().to_string()
    };
    assert!(Document::parse("{").unwrap_err().kind() == Kind::Invalid);
    type Change = fn(&mut serde_json::Value);
    let changes: [(Change, &str); 9] = [
        (|v| v["schema"] = "squire.report.v1".into(), "squire.report.v1"),
        (|v| v["extra"] = 1.into(), "extra"),
        (|v| v["estate"] = "00000000-0000-0000-0000-000000000000".into(), "its identity says"),
        (|v| v["objects"][0]["key"] = "../../etc".into(), "no place of a record"),
        (|v| v["objects"][0]["generation"] = 9.into(), "says that it is generation 1"),
        (|v| v["objects"][0]["partition"] = "x".into(), "entries of runs"),
        (|v| v["objects"][0]["collection"] = "nonsense".into(), "nonsense"),
        (
            |v| {
                let again = v["objects"][1].clone();
                v["objects"].as_array_mut().unwrap().push(again);
            },
            "in it twice",
        ),
        (
            |v| {
                v["objects"].as_array_mut().unwrap().remove(0);
            },
            "no identity",
        ),
    ];
    for (change, says) in changes {
        let told = broken(change);
        assert!(told.contains(says), "{told}");
    }
}
