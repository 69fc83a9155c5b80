//! Every object under a dataset has exactly one class, and nothing that anybody may need is called an orphan.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use chrono::Utc;
use proptest::prelude::*;
use squire_lake::classes::{Ages, Class, Classes, classes};
use squire_lake::examine::{Examination, agreed, examine};
use squire_lake::look::{Look, owner};
use squire_lake::refs::{CloneGraph, KeepSet};
use squire_lake::sample::{self, Sample, SampleIndex};

use super::support::*;

const DAY: u64 = 86_400;

fn nobody() -> KeepSet {
    KeepSet::Complete(BTreeSet::new())
}

fn ages() -> Ages {
    Ages { now: Utc::now(), longest_write: Duration::ZERO }
}

/// Writes a file whose last-modified is so many seconds ago.
pub fn plant(path: &Path, seconds: u64) {
    std::fs::create_dir_all(path.parent().expect("a folder above")).expect("made");
    std::fs::write(path, b"nobody names me").expect("written");
    let then = SystemTime::now() - Duration::from_secs(seconds);
    std::fs::File::options().write(true).open(path).and_then(|f| f.set_modified(then)).expect("touched");
}

/// The laws that hold for every look: the classes are the listing, and live and history are what is named.
pub fn assert_partition(look: &Look, found: &Classes) {
    let listed: Vec<(&str, u64)> = look.listing.entries.iter().map(|e| (e.path.as_str(), e.size)).collect();
    let classed: Vec<(&str, u64)> = found.objects.iter().map(|o| (o.path.as_str(), o.bytes)).collect();
    assert_eq!(classed, listed);
    assert_eq!(found.totals().values().map(|(_, bytes)| bytes).sum::<u64>(), look.listing.bytes());
    assert!(found.objects.iter().all(|o| !o.reason.is_empty()));
    for object in &found.objects {
        let by = owner(&object.path).and_then(|key| look.uses.of(&key));
        let head = by.is_some_and(|by| by.contains(look.head_ordinal()));
        match (by, object.class) {
            (Some(_), Class::Live) => assert!(head, "{object:?}"),
            (Some(_), class) => assert!(class == Class::History && !head, "{object:?}"),
            (None, Class::Live | Class::History) => {
                assert!(owner(&object.path).is_none(), "nobody names it: {object:?}");
            }
            (None, _) => {}
        }
    }
    let there: BTreeSet<String> = look.listing.entries.iter().filter_map(|e| owner(&e.path)).collect();
    let gone: BTreeSet<&str> = found.missing.iter().map(|m| m.path.as_str()).collect();
    for path in look.uses.paths() {
        let judged = !path.contains("_indices") && !path.contains("_transactions");
        assert!(there.contains(path) != gone.contains(path) || !judged, "{path}");
    }
}

fn manifest_name(version: u64) -> String {
    format!("{:020}.manifest", u64::MAX - version)
}

/// A dataset with older versions, an index made twice, deletions, a tag, a branch and a detached version.
async fn rich(uri: &str) -> Sample {
    let mut sample = table(uri, 3, 20).await;
    sample.index(SampleIndex::BTree).await.expect("indexed");
    sample.index(SampleIndex::BTree).await.expect("indexed again");
    sample.delete("id < 5").await.expect("deleted");
    sample.tag("published", 2).await.expect("tagged");
    sample.branch("dev", 3).await.expect("branched");
    sample.commit_detached().await.expect("committed");
    sample
}

const INDEX: &str = "0a0b0c0d-0000-4000-8000-000000000001";

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_file_has_its_class() {
    let (dir, uri) = place();
    rich(&uri).await;
    let root = dir.path().join("t");
    let live_index = seen(&uri).await.indices[0].segments[0].uuid;
    let staged = format!("_versions/{}-{INDEX}", manifest_name(4));
    let in_live_index = format!("_indices/{live_index}/.tmpZ1");
    let orphans = [
        "data/stray.lance",
        "data/stray/00000000000000000000000000000001.blob",
        "data/.tmpAb1",
        "_deletions/0-1-99.arrow",
        "_deletions/0-1-98.bin",
        "_transactions/9-x.txn",
        "_versions/.tmp_9.manifest_x",
        &format!("_indices/{INDEX}/page_data.lance"),
        "_refs/tags/x.json.tmp.00112233445566778899aabbccddeeff",
        "tree/dev/data/stray.lance",
        &staged,
        &in_live_index,
    ];
    let foreign = ["data/cat.png", "media/film.mp4", "README.md", "data/inner.lance/data/1.lance", "_squire/v1/x.json"];
    plant(&root.join("data/inner.lance/_versions/1.manifest"), 30 * DAY);
    let unknown = [
        "data/_parts/x.lance/1.part",
        "data/sub/x.lance",
        "_mem_wal/shard/wal/1.arrow",
        "_mem_wal/shard/gen_1/_versions/1.manifest",
        "_mem_wal/shard/gen_1/data/1.lance",
        "_alter_transactions/1.json",
        "_blobs/x.blob",
        "_fri/m/map.bin",
        "_omnigraph/deleted_ids/x.json",
        "_versions/what.is.this",
        "_indices/not-a-uuid/x.lance",
        "tree/stray.txt",
    ];
    let live = [".lance-reserved", ".lance-deregistered"];
    for path in orphans.iter().chain(&foreign).chain(&unknown).chain(&live).chain(&["_squire_quarantine/p/t/x"]) {
        plant(&root.join(path), 30 * DAY);
    }
    plant(&root.join("data/fresh.lance"), 6 * DAY);
    plant(&root.join("data/tomorrow.lance"), 0);

    let look = seen(&uri).await;
    let found = classes(&look, &nobody(), &ages());
    assert_partition(&look, &found);
    assert!(found.incomplete.is_empty() && found.missing.is_empty(), "{:?} {:?}", found.incomplete, found.missing);
    let of = |class| -> BTreeSet<&str> { found.of(class).map(|o| o.path.as_str()).collect() };
    assert_eq!(of(Class::Orphan), orphans.into_iter().collect());
    assert_eq!(of(Class::Young), ["data/fresh.lance", "data/tomorrow.lance"].into());
    let mut nested = foreign.to_vec();
    nested.push("data/inner.lance/_versions/1.manifest");
    assert_eq!(of(Class::Foreign), nested.into_iter().collect());
    assert_eq!(of(Class::Unknown), unknown.into_iter().collect());
    assert_eq!(of(Class::Quarantine), ["_squire_quarantine/p/t/x"].into());
    let class = |path: &str| found.at(path).unwrap_or_else(|| panic!("{path} is not listed")).class;
    for path in live.iter().chain(&["_refs/tags/published.json", "_refs/branches/dev.json"]) {
        assert_eq!(class(path), Class::Live, "{path}");
    }
    assert_eq!(class(&format!("_versions/{}", manifest_name(6))), Class::Live, "HEAD");
    assert_eq!(class(&format!("_versions/{}", manifest_name(2))), Class::History);
    let detached = look.manifests.iter().find(|m| m.detached).expect("a detached one");
    assert_eq!(class(&detached.path), Class::History);
    let branch = look.manifests.iter().find(|m| m.tree == "tree/dev").expect("the branch's");
    assert_eq!(class(&branch.path), Class::History);
    let history: Vec<&str> = found.of(Class::History).map(|o| o.path.as_str()).collect();
    assert!(history.iter().any(|p| p.starts_with("_indices/")), "the first index: {history:?}");

    // Lance's own opinion: all of these, but for what its clean-up never looks at.
    let theirs: BTreeSet<String> =
        sample::lance_would_call_unnamed(&lake(), &uri).await.expect("explained").into_iter().collect();
    let never = |p: &&str| p.starts_with("_refs/") || p.starts_with("tree/") || **p == staged;
    // It would take the inside of a nested dataset, and row maps and managed blobs without asking who names them.
    let bold = |p: &str| p.starts_with("data/inner") || p == "data/sub/x.lance" || p == "_indices/not-a-uuid/x.lance";
    let theirs: BTreeSet<&str> = theirs
        .iter()
        .map(String::as_str)
        .filter(|p| !bold(p) && !p.starts_with("_fri/") && !p.starts_with("_blobs/"))
        .collect();
    let ours: BTreeSet<&str> = orphans.into_iter().filter(|p| !never(p) && *p != in_live_index).collect();
    assert_eq!(ours, theirs);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_an_orphan_before_seven_days_or_the_longest_write() {
    let (dir, uri) = place();
    table(&uri, 2, 10).await;
    plant(&dir.path().join("t/data/a.lance"), 7 * DAY + 60);
    plant(&dir.path().join("t/data/b.lance"), 7 * DAY - 60);
    let look = seen(&uri).await;
    let at = |longest_write| {
        let found = classes(&look, &nobody(), &Ages { now: Utc::now(), longest_write });
        ["data/a.lance", "data/b.lance"].map(|p| found.at(p).expect("listed").class)
    };
    assert_eq!(at(Duration::ZERO), [Class::Orphan, Class::Young]);
    assert_eq!(at(Duration::from_secs(6 * DAY)), [Class::Orphan, Class::Young]);
    assert_eq!(at(Duration::from_secs(8 * DAY)), [Class::Young, Class::Young]);
    assert_eq!(at(Duration::MAX), [Class::Young, Class::Young]);
}

/// A clone that cannot be read, an old manifest and a tag that cannot, a flag from the future, a staged manifest of an external
/// store: any of them may name the file.
#[tokio::test(flavor = "multi_thread")]
async fn while_references_are_incomplete_nothing_is_an_orphan() {
    type Act = fn(&Path) -> std::io::Result<()>;
    let acts: [(&str, Act); 4] = [
        ("cannot be read", |t| std::fs::write(t.join("_versions").join(manifest_name(1)), b"cut")),
        ("x.json", |t| {
            std::fs::create_dir_all(t.join("_refs/tags"))?;
            std::fs::write(t.join("_refs/tags/x.json"), b"{")
        }),
        ("feature flags", sample::set_unknown_flag),
        ("external store", |t| std::fs::write(t.join("_versions").join(manifest_name(9) + "-0b9c"), b"staged")),
    ];
    for (why, act) in acts {
        let (dir, uri) = place();
        table(&uri, 3, 10).await;
        let root = dir.path().join("t");
        plant(&root.join("data/stray.lance"), 30 * DAY);
        let class = |look: &Look| {
            let found = classes(look, &nobody(), &ages());
            assert_partition(look, &found);
            let stray = found.at("data/stray.lance").expect("listed").clone();
            (stray.class, stray.reason.into_owned(), found.of(Class::Orphan).count() + found.of(Class::Young).count())
        };
        assert_eq!(class(&seen(&uri).await).0, Class::Orphan);
        act(&root).expect(why);
        let (found, reason, more) = class(&seen(&uri).await);
        assert_eq!((found, more), (Class::Unknown, 0), "{why}: {reason}");
        assert!(reason.contains(why), "{why}: {reason}");
    }
    let (dir, uri) = place();
    table(&uri, 2, 10).await;
    plant(&dir.path().join("t/data/stray.lance"), 30 * DAY);
    let keep = KeepSet::Incomplete(vec!["s3://other could not be read".into()]);
    let found = classes(&seen(&uri).await, &keep, &ages());
    let stray = found.at("data/stray.lance").expect("listed");
    assert_eq!(stray.class, Class::Unknown);
    assert!(stray.reason.contains("s3://other"), "{}", stray.reason);
}

/// The source lost every version that named them (another maintainer's clean-up); the clone still reads them.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_clone_reads_is_never_an_orphan() {
    let (dir, uri) = place();
    let clone = format!("{uri}-clone");
    let mut source = table(&uri, 3, 20).await;
    source.index(SampleIndex::BTree).await.expect("indexed");
    source.clone_to(&clone).await.expect("cloned");
    source.overwrite(5, 900).await.expect("overwritten");
    for version in 1..=4 {
        std::fs::remove_file(dir.path().join("t/_versions").join(manifest_name(version))).expect("removed");
    }
    let month = SystemTime::now() - Duration::from_secs(30 * DAY);
    let look = seen(&uri).await;
    for entry in &look.listing.entries {
        let file = std::fs::File::options().write(true).open(dir.path().join("t").join(&entry.path)).expect("there");
        file.set_modified(month).expect("touched");
    }
    let look = seen(&uri).await;
    let orphans = |keep: &KeepSet| -> Vec<String> {
        let found = classes(&look, keep, &ages());
        found.of(Class::Orphan).map(|o| o.path.clone()).filter(|p| !p.starts_with("_transactions")).collect()
    };
    assert!(orphans(&nobody()).len() >= 4, "three data files and the index");
    let mut graph = CloneGraph::default();
    graph.add(&clone, seen(&clone).await.reads);
    assert_eq!(orphans(&graph.keep_set(&uri)), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_named_and_gone_is_missing_with_who_needs_it() {
    let (dir, uri) = place();
    let mut sample = table(&uri, 2, 20).await;
    sample.index(SampleIndex::BTree).await.expect("indexed");
    sample.overwrite(30, 500).await.expect("overwritten");
    sample.delete("id = 501").await.expect("deleted");
    sample.index(SampleIndex::BTree).await.expect("indexed");
    let root = dir.path().join("t");
    let look = seen(&uri).await;
    let head = look.head_ordinal();
    let first = |prefix: &str, by_head: bool| -> PathBuf {
        let named = |e: &&squire_lake::listing::Entry| {
            e.path.starts_with(prefix)
                && owner(&e.path).and_then(|k| look.uses.of(&k)).is_some_and(|by| by.contains(head) == by_head)
        };
        PathBuf::from(&look.listing.entries.iter().find(named).expect("a file").path)
    };
    let gone = [
        (first("data/", true), true),
        (first("_deletions/", true), true),
        (first("_indices/", true), true),
        (first("data/", false), false),
        (first("_indices/", false), false),
    ];
    let short = look.listing.entries.iter().filter(|e| e.path.starts_with("_indices/")).map(|e| &e.path);
    let short: Vec<PathBuf> = short.map(PathBuf::from).filter(|p| !gone.iter().any(|(g, _)| g == p)).collect();
    for (path, _) in &gone {
        std::fs::remove_file(root.join(path)).expect("removed");
    }
    std::fs::write(root.join(&short[0]), b"short").expect("cut");
    let Examination::Dataset(examined) = examine(&lake(), &uri, &nobody(), &ages()).await.expect("looked") else {
        panic!("a dataset")
    };
    assert_eq!(examined.looks, 2, "nothing is called missing after one look");
    let mut wanted: BTreeMap<String, (Option<u64>, bool)> =
        gone.iter().map(|(p, by_head)| (p.to_string_lossy().into_owned(), (None, *by_head))).collect();
    let key = owner(&short[0].to_string_lossy()).expect("an index");
    let by_head = look.uses.of(&key).is_some_and(|by| by.contains(head));
    wanted.insert(short[0].to_string_lossy().into_owned(), (Some(5), by_head));
    let found: BTreeMap<String, (Option<u64>, bool)> =
        examined.classes.missing.iter().map(|m| (m.path.clone(), (m.found, m.by_head))).collect();
    assert_eq!(found, wanted);
}

/// Between the two looks a slow writer commits an old file, and a clean-up takes a version with its file.
#[tokio::test(flavor = "multi_thread")]
async fn only_what_both_looks_find_is_orphan_or_missing() {
    let (dir, uri) = place();
    let mut sample = table(&uri, 2, 10).await;
    let root = dir.path().join("t");
    sample.overwrite(5, 500).await.expect("overwritten");
    let whole = seen(&uri).await;
    let late = whole.head.named().into_iter().find(|n| n.path.starts_with("data/")).expect("a data file").path;
    let month = SystemTime::now() - Duration::from_secs(30 * DAY);
    std::fs::File::options().write(true).open(root.join(&late)).and_then(|f| f.set_modified(month)).expect("touched");
    plant(&root.join("data/stray.lance"), 30 * DAY);

    // First look: HEAD's commit has not landed yet, and a file of version 1 is not listed.
    let head = root.join("_versions").join(manifest_name(3));
    let bytes = std::fs::read(&head).expect("read");
    std::fs::remove_file(&head).expect("removed");
    let old = seen(&uri).await.head.named().into_iter().find(|n| n.path.starts_with("data/")).expect("a file").path;
    let kept = std::fs::read(root.join(&old)).expect("read");
    std::fs::remove_file(root.join(&old)).expect("removed");
    let first = classes(&seen(&uri).await, &nobody(), &ages());
    assert_eq!(first.at(&late).expect("listed").class, Class::Orphan);
    assert_eq!(first.missing.len(), 1);

    std::fs::write(&head, bytes).expect("landed");
    std::fs::write(root.join(&old), kept).expect("there after all");
    plant(&root.join("data/copied.lance"), 30 * DAY);
    let look = seen(&uri).await;
    let found = agreed(&first, classes(&look, &nobody(), &ages()));
    assert_partition(&look, &found);
    let class = |path: &str| found.at(path).expect("listed").class;
    assert_eq!(class(&late), Class::Live);
    assert_eq!(class("data/stray.lance"), Class::Orphan);
    assert_eq!(class("data/copied.lance"), Class::Young, "the first look did not see it");
    assert!(found.missing.is_empty());
    // The other way round: what is missing now and was not before is not called so.
    std::fs::remove_file(root.join(&old)).expect("removed");
    let again = agreed(&found, classes(&seen(&uri).await, &nobody(), &ages()));
    assert!(again.missing.is_empty(), "{:?}", again.missing);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_tree_without_its_ref_is_nobodys_to_judge() {
    let (dir, uri) = place();
    let mut sample = table(&uri, 3, 10).await;
    sample.branch("dev", 2).await.expect("branched");
    std::fs::remove_file(dir.path().join("t/_refs/branches/dev.json")).expect("removed");
    let look = seen(&uri).await;
    let found = classes(&look, &nobody(), &ages());
    assert_partition(&look, &found);
    let unknown: Vec<&str> = found.of(Class::Unknown).map(|o| o.path.as_str()).collect();
    assert_eq!(unknown.len(), 1, "{unknown:?}");
    assert!(unknown[0].starts_with("tree/dev/_versions/"), "{unknown:?}");
    assert_eq!(found.of(Class::Orphan).count(), 0);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    /// For any history and any leftovers: the classes are the listing, and exactly the old leftovers are orphans.
    #[test]
    fn the_classes_are_a_partition_and_exactly_the_planted_are_orphans(
        steps in proptest::collection::vec(0_u8..8, 2..12),
        leftovers in proptest::collection::vec((0_u8..6, any::<bool>()), 0..8),
    ) {
        runtime().block_on(async {
            let (dir, uri) = place();
            let mut sample = table(&uri, 2, 20).await;
            for (i, step) in steps.iter().enumerate() {
                let start = 1_000 * (i as i64 + 1);
                match step {
                    0 | 1 => { sample.write(10, start).await.expect("append"); }
                    2 => { sample.delete(&format!("id % 7 = {}", i % 7)).await.expect("delete"); }
                    3 => { sample.overwrite(15, start).await.expect("overwrite"); }
                    4 => { sample.index(SampleIndex::BTree).await.expect("index"); }
                    5 => { sample.tag(&format!("t{i}"), sample.version()).await.expect("tag"); }
                    6 => { sample.commit_detached().await.expect("detached"); }
                    _ => { sample.branch(&format!("b{i}"), sample.version()).await.expect("branch"); }
                }
            }
            let mut wanted: BTreeMap<String, Class> = BTreeMap::new();
            for (i, (kind, old)) in leftovers.iter().enumerate() {
                let path = match kind {
                    0 => format!("data/left{i}.lance"),
                    1 => format!("data/left{i}/1.blob"),
                    2 => format!("_deletions/0-1-{i}.arrow"),
                    3 => format!("_transactions/0-left{i}.txn"),
                    4 => format!("_indices/0a0b0c0d-0000-4000-8000-{i:012}/x.lance"),
                    _ => format!("_versions/.tmp_left{i}"),
                };
                plant(&dir.path().join("t").join(&path), if *old { 9 * DAY } else { DAY });
                wanted.insert(path, if *old { Class::Orphan } else { Class::Young });
            }
            let look = seen(&uri).await;
            let found = classes(&look, &nobody(), &ages());
            assert_partition(&look, &found);
            let got: BTreeMap<String, Class> = found
                .objects
                .iter()
                .filter(|o| !matches!(o.class, Class::Live | Class::History))
                .map(|o| (o.path.clone(), o.class))
                .collect();
            assert_eq!(got, wanted);
            assert!(found.missing.is_empty(), "{:?}", found.missing);
        });
    }
}
