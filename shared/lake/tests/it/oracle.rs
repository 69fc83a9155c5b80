//! The oracle says nothing of what is whole, and names what is not.

use std::path::{Path, PathBuf};
use std::process::Command;

use squire_lake::classes::{Ages, Class, classes};
use squire_lake::look::{Looked, look};
use squire_lake::oracle::{Leftovers, Unexplained, check};
use squire_lake::refs::CloneGraph;
use squire_lake::sample::SampleIndex;

use super::classes::{assert_partition, plant};
use super::support::*;

async fn said(root: &str, leftovers: Leftovers) -> Vec<String> {
    check(&lake(), root, leftovers).await.iter().map(Unexplained::to_string).collect()
}

fn uri_of(dir: &Path) -> String {
    squire_lake::uri::canonical(dir.to_str().expect("UTF-8")).expect("a URI")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_dataset_is_all_explained() {
    let (dir, uri) = place();
    let mut sample = table(&uri, 3, 20).await;
    sample.index(SampleIndex::FullText).await.expect("indexed");
    sample.tag("published", 2).await.expect("tagged");
    sample.branch("dev", 3).await.expect("branched");
    sample.clone_to(&format!("{uri}-clone")).await.expect("cloned");
    sample.overwrite(5, 900).await.expect("overwritten");
    assert_eq!(said(&uri_of(dir.path()), Leftovers::None).await, Vec::<String>::new());
    assert_eq!(said(&uri, Leftovers::None).await, Vec::<String>::new());
}

/// Each of these is found by its own line, in the mode that should find it.
#[tokio::test(flavor = "multi_thread")]
async fn each_thing_that_is_wrong_has_a_line() {
    type Act = fn(&Path);
    let first = |dir: &Path| -> PathBuf {
        let files = std::fs::read_dir(dir).expect("there").flatten().map(|e| e.path());
        files.filter(|p| p.is_file()).min().expect("a file")
    };
    // Text, whether a killed run may leave it, what makes it.
    let acts: [(&str, bool, Act); 11] = [
        ("young: no manifest names this data file", true, |t| plant(&t.join("data/x.lance"), 0)),
        ("orphan: no manifest names this index", true, |t| {
            plant(&t.join("_indices/0a0b0c0d-0000-4000-8000-000000000001/x.lance"), 30 * 86_400);
        }),
        ("young: a commit that did not end", true, |t| plant(&t.join("_versions/.tmp_9"), 0)),
        ("an upload that did not end", true, |t| plant(&t.join("_versions/9.manifest#1"), 0)),
        ("in quarantine", true, |t| plant(&t.join("../_squire_quarantine/p/t/data/x.lance"), 0)),
        ("unknown: in a directory of a name", false, |t| plant(&t.join("_future/x"), 0)),
        ("missing: HEAD names it", false, |t| {
            std::fs::remove_dir_all(t.join("_indices")).expect("removed");
        }),
        ("_versions/18446744073709551614.manifest: it cannot be read", false, |t| {
            std::fs::write(t.join("_versions/18446744073709551614.manifest"), b"cut").expect("written");
        }),
        ("opening the tag", false, |t| {
            let tag = std::fs::read_to_string(t.join("_refs/tags/published.json")).expect("read");
            std::fs::write(t.join("_refs/tags/published.json"), tag.replace("\"version\": 2", "\"version\": 77"))
                .expect("written");
        }),
        ("opening the branch", false, |t| {
            std::fs::remove_dir_all(t.join("tree")).expect("removed");
        }),
        ("it has no manifest", false, |t| {
            std::fs::create_dir_all(t.join("../other/_versions")).expect("made");
        }),
    ];
    for (text, leftover, act) in acts {
        let (dir, uri) = place();
        let mut sample = table(&uri, 2, 20).await;
        sample.index(SampleIndex::BTree).await.expect("indexed");
        sample.tag("published", 2).await.expect("tagged");
        sample.branch("dev", 2).await.expect("branched");
        let root = uri_of(dir.path());
        act(&dir.path().join("t"));
        let strict = said(&root, Leftovers::None).await;
        assert!(strict.iter().any(|line| line.contains(text)), "{text}: {strict:?}");
        let lenient = said(&root, Leftovers::Explained).await;
        assert_eq!(lenient.is_empty(), leftover, "{text}: {lenient:?}");
    }
    // A row that cannot be read although every file is there in its size.
    let (dir, uri) = place();
    table(&uri, 1, 200).await;
    let file = first(&dir.path().join("t/data"));
    let mut bytes = std::fs::read(&file).expect("read");
    let half = bytes.len() / 2;
    bytes[..half].iter_mut().for_each(|b| *b ^= 0xa5);
    std::fs::write(&file, bytes).expect("written");
    let lines = said(&uri, Leftovers::Explained).await;
    assert!(!lines.is_empty(), "noise in place of rows");
    assert_eq!(said(&format!("{uri}/nothing"), Leftovers::None).await.len(), 1, "no dataset is no pass");
}

/// Datasets in every layout that the library's own Python writer can make.
fn layouts(test: &str) -> Option<(tempfile::TempDir, Vec<serde_json::Value>)> {
    let Ok(python) = std::env::var("TEST_PYTHON") else {
        eprintln!("SKIPPED {test}: TEST_PYTHON names no Python with pylance (run `make test`)");
        return None;
    };
    let dir = tempfile::tempdir().expect("a folder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/py/layouts.py");
    let output = Command::new(python).arg(script).arg(dir.path()).output().expect("python ran");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    Some((dir, lines.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect()))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_layout_of_another_writer_is_explained_and_only_leftovers_are_orphans() {
    let Some((dir, made)) = layouts("every_layout_of_another_writer_is_explained_and_only_leftovers_are_orphans")
    else {
        return;
    };
    assert_eq!(made.len(), 28);
    assert_eq!(said(&uri_of(&dir.path().join("absolute")), Leftovers::None).await, Vec::<String>::new());
    // Where bases are named by relative paths, only their writer's folder leads to them; what the files are is known all the same.
    let lines = said(&uri_of(&dir.path().join("relative")), Leftovers::None).await;
    let unread = |line: &&String| line.contains("reading every row") && line.contains("ot found");
    assert_eq!(lines.iter().filter(|l| !unread(l)).collect::<Vec<_>>(), Vec::<&String>::new());
    // What no manifest shows is said, and is not guessed at.
    let lines = said(&uri_of(&dir.path().join("elsewhere")), Leftovers::Explained).await;
    let unknown =
        |line: &&String| line.contains("unknown: managed blobs") || line.contains("unknown: files of a MemWAL");
    assert_eq!(lines.iter().filter(|l| !unknown(l)).collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(lines.len() >= 7, "{lines:?}");
    let strays = ["data/stray.lance", "data/stray/1.blob", "_deletions/0-1-9.arrow", "_transactions/0-x.txn"];
    let (mut graph, mut looks) = (CloneGraph::default(), Vec::new());
    for layout in &made {
        let name = layout["name"].as_str().expect("a name");
        for stray in strays {
            plant(&dir.path().join(name).join(stray), 30 * 86_400);
        }
        let uri = uri_of(&dir.path().join(name));
        let Looked::Dataset(seen) = look(&lake(), &uri, chrono::Utc::now()).await.expect(name) else {
            panic!("{name} is no dataset")
        };
        graph.add(&uri, seen.reads.clone());
        looks.push((name, layout["files"].clone(), *seen));
    }
    for (name, files, seen) in looks {
        let ages = Ages { now: chrono::Utc::now(), longest_write: std::time::Duration::ZERO };
        let found = classes(&seen, &graph.keep_set(&seen.uri), &ages);
        if !name.ends_with("/bases") {
            // Files under a base inside the root are named by another path than their kind has.
            assert_partition(&seen, &found);
        }
        let mut orphans: Vec<&str> = found.of(Class::Orphan).map(|o| o.path.as_str()).collect();
        orphans.sort_unstable_by_key(|p| strays.iter().position(|s| s == p));
        // Where blobs are managed, a sidecar too may be named inside data.
        let unsure = name.ends_with("/managed");
        let wanted: Vec<&str> = strays.into_iter().filter(|p| !(unsure && p.ends_with(".blob"))).collect();
        assert_eq!(orphans, wanted, "{name}");
        assert!(seen.nested.is_empty(), "{name}: a flushed memtable is no dataset of its own: {:?}", seen.nested);
        let elsewhere = name.starts_with("elsewhere/");
        let named: Vec<&str> = found
            .objects
            .iter()
            .filter(|o| matches!(o.class, Class::Live | Class::History) || elsewhere && o.class == Class::Unknown)
            .map(|o| o.path.as_str())
            .collect();
        // The layout holds what it is there for.
        for (kind, least) in files.as_object().expect("counts") {
            let is = |p: &&&str| match kind.as_str() {
                "tree" => p.starts_with("tree/"),
                "refs" => p.starts_with("_refs/"),
                "detached" => p.starts_with("_versions/d"),
                "index" => p.starts_with("_indices/"),
                "sidecar" => p.ends_with(".blob"),
                "inside" => p.starts_with("inside/"),
                "managed" => p.starts_with("_blobs/"),
                "mem_wal" => p.starts_with("_mem_wal/"),
                other => panic!("{other}"),
            };
            let count = named.iter().filter(is).count() as u64;
            assert!(count >= least.as_u64().expect("a number"), "{name}: {count} {kind}: {named:?}");
        }
    }
}
