//! `erase_within`: what was deleted is gone by the deadline, and the report says what is not reached.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use roaring::RoaringBitmap;
use serde_json::Value;
use squire_lake::build;
use squire_lake::erasure::{Erasure, Held};
use squire_lake::look::{Looked, look};
use squire_lake::sample::{Columns, Sample, SampleIndex};

use super::common::*;

/// A day to erase, a month of retention, five versions kept: only erasure can remove anything here.
fn run(verb: &str, here: &Here, more: &[&str]) -> Value {
    let mut args = vec![verb.to_string(), here.text("lake")];
    for set in ["policy.erase_within=1d", "policy.retention=30d", "policy.retain_versions=5"] {
        args.extend(["--set".to_string(), set.to_string()]);
    }
    if verb == "sweep" {
        args.push("--yes".into());
    }
    args.extend(more.iter().map(|s| (*s).to_string()));
    report(&args)
}

fn erasure<'a>(report: &'a Value, end: &str) -> &'a Value {
    &row(report, end)["erasure"]
}

/// Lets time pass: every version written so far looks this much older than it did.
fn age(here: &Here, rel: &str, seconds: u64) {
    for entry in std::fs::read_dir(here.path(rel).join("_versions")).expect("versions").flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "manifest") {
            let then = entry.metadata().and_then(|m| m.modified()).expect("a time") - Duration::from_secs(seconds);
            squire_lake::sample::backdate(&path, seconds).expect("backdated");
            std::fs::File::options().write(true).open(&path).and_then(|f| f.set_modified(then)).expect("touched");
        }
    }
}

/// Names of the files that can hold values: data, deletions and index directories.
fn holders(here: &Here, rel: &str) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for dir in ["data", "_deletions", "_indices"] {
        for entry in std::fs::read_dir(here.path(rel).join(dir)).into_iter().flatten().flatten() {
            out.insert(format!("{dir}/{}", entry.file_name().to_string_lossy()));
        }
    }
    out
}

/// A settled table of one fragment, indexed.
async fn settled(here: &Here, rel: &str) -> Sample {
    let mut sample = here.table(rel, 4, 200).await;
    sample.index(SampleIndex::BTree).await.expect("indexed");
    sample.index(SampleIndex::FullText).await.expect("indexed");
    report(&["sweep", &here.text("lake"), "--yes"]);
    Sample::open(&lake(), &here.uri(rel), Default::default()).await.expect("opened")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_row_is_gone_by_the_deadline_below_retention_and_retain_versions() {
    let here = Here::new();
    let mut sample = settled(&here, "lake/t").await;
    sample.delete("id = 7").await.expect("deleted");
    let deleted_at = sample.version();
    // Without a deadline one row of 800 is no reason to rewrite anything, and nothing is said of erasure.
    let plain = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!((&row(&plain, "lake/t")["outcome"]["kind"], erasure(&plain, "lake/t")), (&"idle".into(), &Value::Null));

    let planned = run("plan", &here, &[]);
    let view = erasure(&planned, "lake/t");
    assert_eq!((&view["done"], &view["fragments"]), (&false.into(), &1.into()), "{view:#}");
    assert!(!view["deadline"].is_null(), "{view:#}");
    // The clock gives it a quarter of the time to gather more, then rewrites; a busy day's budget does not stop it.
    let due = ["--due", "--set", "policy.interval=0s", "--set", "policy.max_stranded=0.0"];
    assert_eq!(row(&run("plan", &here, &due), "lake/t")["steps"]["compact"]["outcome"], "nothing_to_do");
    age(&here, "lake/t", 7 * 3_600);
    let before = holders(&here, "lake/t");
    let swept = run("sweep", &here, &due);
    let steps = &row(&swept, "lake/t")["steps"];
    assert_eq!((&steps["compact"]["outcome"], &steps["cleanup"]["versions_removed"]), (&"done".into(), &0.into()));

    // Readable until the deadline, also by number.
    let lake_ = lake();
    assert_eq!(Sample::ids(&lake_, &here.uri("lake/t"), Some(deleted_at - 1)).await.expect("readable").len(), 800);
    age(&here, "lake/t", 16 * 3_600);
    let early = run("sweep", &here, &[]);
    assert_eq!(row(&early, "lake/t")["steps"]["cleanup"]["versions_removed"], 0, "{early:#}");
    let retained = &row(&early, "lake/t")["steps"]["cleanup"]["retained"][0];
    assert!(retained["until"].as_str().is_some(), "the deadline is said: {retained:#}");
    age(&here, "lake/t", 2 * 3_600);
    let late = run("sweep", &here, &[]);
    assert!(row(&late, "lake/t")["steps"]["cleanup"]["versions_removed"].as_u64().expect("a number") > 0, "{late:#}");
    let after = holders(&here, "lake/t");
    assert!(before.is_disjoint(&after), "no file of before the rewrite is left: {after:?}");
    let proof = run("plan", &here, &[]);
    let view = erasure(&proof, "lake/t");
    assert_eq!((&view["done"], &view["since"], &view["versions"]), (&true.into(), &Value::Null, &Value::Array(vec![])));
    assert_eq!(Sample::ids(&lake_, &here.uri("lake/t"), None).await.expect("HEAD reads").len(), 799);
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_column_is_rewritten_and_a_late_rewrite_leaves_readers_half_the_time() {
    let here = Here::new();
    let mut sample = settled(&here, "lake/t").await;
    sample.drop_column("body").await.expect("dropped");
    let before = holders(&here, "lake/t");
    // Nobody swept for ten days: the rewrite comes long after the deadline.
    age(&here, "lake/t", 10 * 86_400);
    let swept = run("sweep", &here, &[]);
    assert_eq!(row(&swept, "lake/t")["steps"]["compact"]["outcome"], "done", "{swept:#}");
    age(&here, "lake/t", 11 * 3_600);
    let head = |report: &Value| report["steps"]["cleanup"]["versions_removed"].as_u64().expect("a number");
    run("sweep", &here, &[]);
    let readable = Sample::ids(&lake(), &here.uri("lake/t"), Some(sample.version())).await;
    assert_eq!(readable.expect("it was current eleven hours ago").len(), 800);
    age(&here, "lake/t", 2 * 3_600);
    let late = run("sweep", &here, &[]);
    assert!(head(row(&late, "lake/t")) > 0, "{late:#}");
    assert!(before.is_disjoint(&holders(&here, "lake/t")));
    assert_eq!(erasure(&run("plan", &here, &[]), "lake/t")["done"], true);
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_table_gets_one_empty_stamped_commit_and_then_the_delete_can_go() {
    let here = Here::new();
    let mut sample = here.table("lake/t", 2, 100).await;
    sample.delete("id >= 0").await.expect("deleted");
    let told = sample.version();
    // Without a deadline it stays as it is.
    report(&["sweep", &here.text("lake"), "--yes"]);
    assert!(!here.manifest("lake/t", told + 1).exists());
    run("sweep", &here, &[]);
    assert!(here.manifest("lake/t", told + 1).exists(), "one commit");
    let again = run("sweep", &here, &[]);
    assert!(!here.manifest("lake/t", told + 2).exists(), "and no second one");
    assert_eq!(erasure(&again, "lake/t")["done"], false);
    age(&here, "lake/t", 25 * 3_600);
    run("sweep", &here, &[]);
    assert!(!here.manifest("lake/t", told).exists(), "what told what was deleted is gone");
    assert_eq!(holders(&here, "lake/t"), BTreeSet::new());
    let proof = run("plan", &here, &[]);
    assert_eq!(erasure(&proof, "lake/t")["done"], true, "{proof:#}");
    let stamps = squire_lake::oracle::check(&lake(), &here.uri("lake"), Leftovers::None).await;
    assert!(stamps.is_empty(), "{stamps:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_reached_is_listed_with_what_keeps_it() {
    let here = Here::new();
    let mut sample = settled(&here, "lake/t").await;
    let good = sample.version();
    sample.tag("audit", good).await.expect("tagged");
    sample.delete("id = 7").await.expect("deleted");
    run("sweep", &here, &[]);
    age(&here, "lake/t", 30 * 3_600);
    run("sweep", &here, &[]);
    let view = run("plan", &here, &[]);
    let unreached = &erasure(&view, "lake/t")["unreached"];
    assert_eq!(unreached[0]["by"], "tag audit", "{unreached:#}");
    assert_eq!(
        (&unreached[0]["what"], &erasure(&view, "lake/t")["done"]),
        (&format!("version {good}").into(), &false.into())
    );
    assert_eq!(Sample::ids(&lake(), &here.uri("lake/t"), Some(good)).await.expect("the tag reads").len(), 800);
    here.oracle("lake");
    // Without the tag it is history like any other, the version that deleted is gone, and the value is there all the same.
    std::fs::remove_file(here.path("lake/t/_refs/tags/audit.json")).expect("untagged");
    let view = run("plan", &here, &[]);
    assert_eq!(erasure(&view, "lake/t")["done"], false, "{:#}", erasure(&view, "lake/t"));
    assert!(names(&view, "lake/t", &format!("version {good}")), "{:#}", erasure(&view, "lake/t"));
    assert_eq!(Sample::ids(&lake(), &here.uri("lake/t"), Some(good)).await.expect("still there").len(), 800);
    run("sweep", &here, &[]);
    let view = run("plan", &here, &[]);
    assert!(!here.manifest("lake/t", good).exists(), "it went");
    assert_eq!(erasure(&view, "lake/t")["done"], true, "{:#}", erasure(&view, "lake/t"));

    // A hold keeps everything, and says so.
    let held = Here::new();
    let mut sample = settled(&held, "lake/t").await;
    sample.delete("id = 7").await.expect("deleted");
    let (subject, flag) =
        (format!("dataset/{}", held.uri("lake/t")), format!("--registry={}", held.text("lake/_squire")));
    assert_ok(&registry(&["protection", "set", &subject, "keep-history", &flag]), "protection set");
    age(&held, "lake/t", 40 * 86_400);
    let under_hold = run("sweep", &held, &[]);
    assert_eq!(actions(&under_hold), BTreeSet::new(), "what a hold keeps all versions of is not built anew");
    age(&held, "lake/t", 40 * 86_400);
    let view = run("sweep", &held, &[]);
    assert_eq!(row(&view, "lake/t")["steps"]["cleanup"]["reason"], "held", "{view:#}");
    let by: Vec<&str> = erasure(&view, "lake/t")["unreached"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|u| u["by"].as_str())
        .collect();
    assert!(by.iter().any(|b| b.starts_with("keep-history on dataset/")), "{by:?}");
}

/// Whether something is listed as not reached.
fn names(report: &Value, end: &str, what: &str) -> bool {
    erasure(report, end)["unreached"].as_array().is_some_and(|list| list.iter().any(|u| u["what"] == what))
}

/// Files under a dataset, relative, that hold these bytes.
fn holding(here: &Here, rel: &str, needle: &[u8]) -> BTreeSet<String> {
    let (mut out, mut open) = (BTreeSet::new(), vec![here.path(rel)]);
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).expect("read");
            if bytes.windows(needle.len()).any(|w| w == needle) {
                let below = path.strip_prefix(here.path(rel)).expect("below");
                out.insert(below.to_str().expect("UTF-8").to_string());
            }
        }
    }
    out
}

/// Builds an index as a request would, without a commit of ours before it.
async fn build_index(uri: &str, column: &str, kind: &str, params: Value) {
    let lake = lake();
    let Looked::Dataset(look) = look(&lake, uri, Utc::now()).await.expect("looked") else { panic!("no dataset") };
    let spec = build::Spec {
        columns: vec![column.into()],
        kind: build::IndexKind::parse(kind).expect("a type"),
        name: Some(format!("{column}_{}", kind.to_lowercase())),
        params: params.as_object().cloned().unwrap_or_default(),
        replace: false,
    };
    let definition = build::resolve(&look, &spec).expect("fits");
    let work = build::Work { uuid: uuid::Uuid::new_v4(), memory: 256 << 20, on_progress: Arc::new(|_| {}) };
    let dataset = look.dataset.clone().expect("opened");
    let built = build::execute(&lake, &dataset, &definition, &work).await.expect("built");
    let stamper = squire_lake::stamp::Stamper { estate: uuid::Uuid::new_v4(), run: uuid::Uuid::new_v4() };
    let place = lake.place(uri).await.expect("a place");
    build::land(&lake, &place, &look, built, &definition, &stamper, "test").await.map(drop).expect("landed");
}

/// Directories of indices among paths.
fn directories(paths: &BTreeSet<String>) -> BTreeSet<String> {
    paths.iter().filter_map(|p| Some(p.strip_prefix("_indices/")?.split('/').next()?.to_string())).collect()
}

/// `action` of each index in a report's row.
fn actions(report: &Value) -> BTreeSet<(String, String)> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
    let list = row(report, "lake/t")["steps"]["optimize_indices"]["indices"].as_array().cloned().unwrap_or_default();
    list.iter().map(|i| (text(&i["name"]), text(&i["action"]))).collect()
}

const WORD: &str = "zzyzxquaggaword";

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_word_and_its_vector_are_in_no_file_and_no_index_after_the_deadline() {
    let here = Here::new();
    let columns = Columns { vector: 8, page: 0 };
    let mut sample = Sample::new(here.uri("lake/t"), columns);
    std::fs::create_dir_all(here.path("lake")).expect("made");
    sample.write(600, 0).await.expect("written").write_with_word(200, 600, WORD).await.expect("written");
    let kinds =
        [("body", "INVERTED"), ("body", "BTREE"), ("kind", "BITMAP"), ("kind", "ZONEMAP"), ("vector", "IVF_FLAT")];
    for (column, kind) in kinds {
        let params = if kind == "IVF_FLAT" { serde_json::json!({ "num_partitions": 2 }) } else { Value::Null };
        build_index(&here.uri("lake/t"), column, kind, params).await;
    }
    report(&["sweep", &here.text("lake"), "--yes"]);
    let vector = squire_lake::sample::vector_of(600, 8);
    let text = directories(&holding(&here, "lake/t", WORD.as_bytes()));
    assert!(text.len() >= 4, "each index over text has the word: {text:?}");
    assert!(!directories(&holding(&here, "lake/t", &vector)).is_empty(), "the vectors' index has the vector");

    let mut sample = Sample::open(&lake(), &here.uri("lake/t"), columns).await.expect("opened");
    sample.delete("id = 600").await.expect("deleted");
    let planned = run("plan", &here, &[]);
    let all: BTreeSet<(String, String)> =
        kinds.iter().map(|(c, k)| (format!("{c}_{}", k.to_lowercase()), "rebuild".to_string())).collect();
    assert_eq!(actions(&planned), all);
    let listed = &erasure(&planned, "lake/t")["unreached"];
    assert!(names(&planned, "lake/t", "index body_inverted"), "{listed:#}");
    assert!(listed[0]["until"].is_string(), "by the deadline: {listed:#}");
    // By the clock it waits for a quarter of the time, like the rewrite.
    let due = ["--due", "--set", "policy.interval=0s"];
    assert_eq!(actions(&run("plan", &here, &due)), BTreeSet::new());
    age(&here, "lake/t", 7 * 3_600);
    let swept = run("sweep", &here, &due);
    assert_eq!(actions(&swept), all, "{swept:#}");
    assert_eq!(row(&swept, "lake/t")["steps"]["verify"]["outcome"], "done");
    // Settled: nothing is built twice for one deletion.
    assert_eq!(row(&run("plan", &here, &[]), "lake/t")["outcome"]["kind"], "idle");
    age(&here, "lake/t", 18 * 3_600);
    run("sweep", &here, &[]);
    assert_eq!(holding(&here, "lake/t", WORD.as_bytes()), BTreeSet::new());
    assert_eq!(holding(&here, "lake/t", &vector), BTreeSet::new());
    let proof = run("plan", &here, &[]);
    assert_eq!(erasure(&proof, "lake/t")["done"], true, "{proof:#}");
    assert_eq!(row(&proof, "lake/t")["outcome"]["kind"], "idle");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_cannot_be_built_anew_is_listed_also_when_the_version_that_deleted_is_gone() {
    let here = Here::new();
    let mut sample = settled(&here, "lake/t").await;
    sample.delete("id = 7").await.expect("deleted");
    run("sweep", &here, &[]);
    let mut sample = Sample::open(&lake(), &here.uri("lake/t"), Default::default()).await.expect("opened");
    sample.delete("id = 8").await.expect("deleted");
    let manifest = here.manifest("lake/t", sample.version());
    squire_lake::sample::set_index_type(&manifest, "id_idx", "/lance.index.pb.FutureIndexDetails").expect("crafted");
    let swept = run("sweep", &here, &[]);
    let list = &erasure(&swept, "lake/t")["unreached"];
    let by = list.as_array().expect("a list").iter().find(|u| u["what"] == "index id_idx").expect("listed");
    assert!(by["by"].as_str().is_some_and(|b| b.ends_with("this build cannot open index type FUTURE")), "{by:#}");
    assert_eq!(by["until"], Value::Null, "nobody knows until when");
    assert!(!actions(&swept).iter().any(|(name, _)| name == "id_idx"), "{swept:#}");
    for _ in 0..2 {
        age(&here, "lake/t", 60 * 86_400);
        run("sweep", &here, &[]);
    }
    let late = run("plan", &here, &[]);
    assert_eq!(erasure(&late, "lake/t")["done"], false, "{late:#}");
    assert!(names(&late, "lake/t", "index id_idx"), "{:#}", erasure(&late, "lake/t"));
    assert!(!names(&late, "lake/t", "index body_idx"), "{:#}", erasure(&late, "lake/t"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_over_a_fragment_that_was_deleted_whole_is_built_anew() {
    let here = Here::new();
    let mut sample = here.table("lake/t", 2, 100).await;
    sample.index(SampleIndex::BTree).await.expect("indexed");
    assert_eq!(erasure(&run("plan", &here, &[]), "lake/t")["done"], true, "nothing was deleted");
    sample.delete("id >= 100").await.expect("deleted");
    let planned = run("plan", &here, &[]);
    assert!(names(&planned, "lake/t", "index id_idx"), "{:#}", erasure(&planned, "lake/t"));
    // Not while the policy keeps from it, or a flag.
    let off = run("sweep", &here, &["--set", "policy.optimize_indices=false"]);
    let by = erasure(&off, "lake/t")["unreached"][0].clone();
    assert_eq!((&by["what"], &by["by"]), (&"index id_idx".into(), &"policy".into()), "{by:#}");
    let swept = run("sweep", &here, &[]);
    assert_eq!(actions(&swept), [("id_idx".to_string(), "rebuild".to_string())].into());
    age(&here, "lake/t", 25 * 3_600);
    run("sweep", &here, &[]);
    let proof = run("plan", &here, &[]);
    assert_eq!(erasure(&proof, "lake/t")["done"], true, "{proof:#}");
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn clones_are_listed_always_and_files_that_no_version_names_where_there_are_any() {
    let here = Here::new();
    let mut sample = here.table("lake/t", 2, 100).await;
    sample.clone_to(&here.uri("lake/c")).await.expect("cloned");
    let mut sample = Sample::open(&lake(), &here.uri("lake/t"), Default::default()).await.expect("opened");
    sample.delete("id = 7").await.expect("deleted");
    run("sweep", &here, &[]);
    age(&here, "lake/t", 25 * 3_600);
    run("sweep", &here, &[]);
    let proof = run("plan", &here, &[]);
    let view = erasure(&proof, "lake/t");
    assert_eq!((&view["done"], &view["since"]), (&false.into(), &Value::Null), "{view:#}");
    assert!(names(&proof, "lake/t", "the files that it reads"), "{view:#}");

    let plain = Here::new();
    plain.table("lake/t", 1, 100).await;
    let said = |here: &Here| {
        let not = erasure(&run("plan", here, &[]), "lake/t")["not_looked_at"].clone();
        not.as_array().expect("a list").iter().any(|n| n == "files that no version names")
    };
    assert!(!said(&plain));
    std::fs::write(plain.path("lake/t/data/left.lance"), b"left by a clean-up that was killed").expect("written");
    assert!(said(&plain));
}

fn at(hours: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::hours(hours)
}

fn held(version: u64, fragments: &[u32], erased: &[u32], operation: &str) -> Held {
    Held {
        version,
        time: at(i64::try_from(version).unwrap_or(0)),
        fragments: fragments.iter().copied().collect::<RoaringBitmap>(),
        erased: erased.iter().copied().collect(),
        operation: (!operation.is_empty()).then(|| operation.to_owned()),
        ours: false,
        indices: Vec::new(),
    }
}

#[test]
fn what_holds_erased_values_is_told_from_plain_history() {
    let day = Duration::from_secs(86_400);
    // Appended, merged: history, and nothing erased.
    let plain =
        Erasure::over(&[held(1, &[0], &[], "append"), held(2, &[0, 1], &[], "append"), held(3, &[2], &[], "rewrite")]);
    assert_eq!((plain.versions.len(), plain.fragments.len(), plain.head_tells), (0, 0, None));
    assert_eq!(plain.old.into_iter().collect::<Vec<_>>(), [1, 2]);
    // Deleted from what a merge made: what the merge was made of holds it too.
    let merged = Erasure::over(&[
        held(1, &[0], &[], "append"),
        held(2, &[0, 1], &[], "append"),
        held(3, &[2], &[], "rewrite"),
        held(4, &[2], &[2], "delete"),
        held(5, &[3], &[], "rewrite"),
    ]);
    assert_eq!(merged.versions.into_iter().collect::<Vec<_>>(), [(1, at(4)), (2, at(4)), (3, at(4)), (4, at(4))]);
    // The same without knowing the operations.
    let unknown = Erasure::over(&[held(1, &[0], &[], ""), held(2, &[0], &[0], ""), held(3, &[1], &[], "rewrite")]);
    assert_eq!(unknown.versions.into_iter().collect::<Vec<_>>(), [(1, at(2)), (2, at(2))]);
    // A row of fragment 0 deleted at 2, rewritten at 4: 1, 2 and 3 hold it since 2.
    let deleted = Erasure::over(&[
        held(1, &[0, 1], &[], "append"),
        held(2, &[0, 1], &[0], "delete"),
        held(3, &[0, 1, 2], &[0], "append"),
        held(4, &[1, 2, 3], &[], "rewrite"),
    ]);
    assert_eq!(deleted.versions.into_iter().collect::<Vec<_>>(), [(1, at(2)), (2, at(2)), (3, at(2))]);
    // Not rewritten yet: HEAD holds it, and no version but the one that tells of it is worth removing.
    let open =
        Erasure::over(&[held(1, &[0], &[], "append"), held(2, &[0], &[0], "delete"), held(3, &[0], &[0], "append")]);
    assert_eq!((open.fragments.into_iter().collect::<Vec<_>>(), open.versions.len()), (vec![(0, at(2))], 1));
    // Fragment 1 deleted whole at 2, fragment 0 overwritten at 3.
    let whole = Erasure::over(&[
        held(1, &[0, 1], &[], "append"),
        held(2, &[0], &[], "delete"),
        held(3, &[2], &[], "overwrite"),
    ]);
    assert_eq!(whole.versions.clone().into_iter().collect::<Vec<_>>(), [(1, at(2)), (2, at(2))]);
    assert_eq!(whole.goes_at(1, at(2), day), Some(at(26)));
    assert_eq!(whole.goes_at(2, at(3), day), Some(at(26)));
    assert_eq!(whole.goes_at(2, at(20), day), Some(at(32)), "half of the time after it was replaced");
    assert_eq!(whole.goes_at(3, at(3), day), None);
    assert!(whole.untold.is_empty() && plain.untold.is_empty(), "no version is missing");
    // Version 2 was kept by a tag; who deleted between it and 5 is gone.
    let untagged = Erasure::over(&[held(2, &[0, 1], &[], "append"), held(5, &[2], &[], "rewrite")]);
    assert_eq!((untagged.versions.len(), untagged.untold.into_iter().collect::<Vec<_>>()), (0, vec![2]));
    // What a later version still names as it was, nobody deleted from in between.
    let named = Erasure::over(&[
        held(2, &[0, 1], &[], "append"),
        held(5, &[0, 1, 2], &[], "append"),
        held(6, &[3], &[], "rewrite"),
    ]);
    assert!(named.untold.is_empty());
    assert_eq!(Erasure::over(&[]), Erasure::default());
    assert_eq!(Erasure::over(&[held(7, &[], &[], "delete")]).head_tells, Some(at(7)));
}
