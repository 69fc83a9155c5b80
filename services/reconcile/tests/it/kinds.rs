//! Findings that need no more than a planted state: each kind is told, of what it is about and of nothing else.

use std::path::Path;

use serde_json::Value;
use squire_lake::sample::{Columns, Sample};

use super::report::report;

async fn written(path: &Path, versions: i64) -> Sample {
    std::fs::create_dir_all(path).unwrap();
    let mut sample = Sample::new(squire_lake::uri::canonical(path.to_str().unwrap()).unwrap(), Columns::default());
    for i in 0..versions {
        sample.write(10, i * 10).await.unwrap();
    }
    sample
}

/// Kind and detail of each finding about the dataset whose URI ends so, sorted.
fn told(whole: &Value, end: &str) -> Vec<(String, String)> {
    let row = whole["datasets"].as_array().unwrap().iter().find(|d| d["uri"].as_str().unwrap().ends_with(end));
    let findings = row.unwrap_or_else(|| panic!("no {end}: {whole:#}"))["findings"].as_array().unwrap().iter();
    let text = |f: &Value, key: &str| f[key].as_str().unwrap_or_default().to_string();
    let mut out: Vec<_> = findings.map(|f| (text(f, "kind"), text(f, "detail"))).collect();
    out.sort();
    out
}

fn kinds(told: &[(String, String)]) -> Vec<&str> {
    told.iter().map(|(kind, _)| kind.as_str()).collect()
}

#[tokio::test]
async fn a_tag_whose_version_is_gone_is_told_also_of_a_branch() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lake/orders");
    let mut sample = written(&path, 3).await;
    sample.tag("old", 1).await.unwrap().tag("kept", 2).await.unwrap().branch("trial", 2).await.unwrap();
    let of_branch = |name: &str, version: u64| {
        let text = serde_json::json!({ "branch": "trial", "version": version, "manifestSize": 1 }).to_string();
        std::fs::write(path.join(format!("_refs/tags/{name}.json")), text).unwrap();
    };
    let own = std::fs::read_dir(path.join("tree/trial/_versions")).unwrap();
    let newest = own.filter_map(|f| f.unwrap().path().file_stem()?.to_str()?.parse::<u64>().ok()).min().unwrap();
    of_branch("of_branch", u64::MAX - newest);
    of_branch("of_nothing", 3);
    std::fs::remove_file(path.join(format!("_versions/{:020}.manifest", u64::MAX - 1))).unwrap();
    let (_, whole) = report(&dir, &["lake"]);
    let dangling: Vec<_> = told(&whole, "/orders").into_iter().filter(|(kind, _)| kind == "dangling_tag").collect();
    let said = |name: &str, version: u64| {
        ("dangling_tag".to_string(), format!("tag {name} names version {version}, which is gone"))
    };
    assert_eq!(dangling, [said("of_nothing", 3), said("old", 1)], "{whole:#}");
}

#[tokio::test]
async fn clones_are_told_on_both_sides_and_what_nobody_knows_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lake/source");
    let mut sample = written(&path, 2).await;
    let copy = squire_lake::uri::canonical(dir.path().join("lake").to_str().unwrap()).unwrap() + "/copy";
    sample.clone_to(&copy).await.unwrap();
    std::fs::create_dir(path.join("data/_parts")).unwrap();
    std::fs::write(path.join("data/_parts/0.part"), "a part").unwrap();
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!(code, 0, "{whole:#}");
    let source = told(&whole, "/source");
    assert_eq!(kinds(&source), ["cloned_by", "unknown_file"]);
    assert_eq!(source[0].1, format!("{copy} reads its files"));
    let copied = told(&whole, "/copy");
    assert_eq!(kinds(&copied), ["clone_of"]);
    assert!(copied[0].1.ends_with("/lake/source"), "{copied:?}");
}

/// Runs a script of pylance's in `dir`; false where there is no Python.
fn python(dir: &tempfile::TempDir, name: &str, code: &str) -> bool {
    let Some(python) = std::env::var_os("TEST_PYTHON") else {
        eprintln!("SKIPPED {name}: TEST_PYTHON is not set");
        return false;
    };
    let made = std::process::Command::new(python).args(["-c", code]).current_dir(dir.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    true
}

/// pylance writes the base as it was typed. The source reads nothing of others, and neither does the third table.
#[test]
fn a_clone_by_a_relative_path_hides_no_orphan_and_one_whose_source_is_not_there_makes_the_report_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let code = "
import os, lance, pyarrow as pa
rows = pa.table({'id': range(20)})
source = lance.write_dataset(rows, 'lake/source')
source.shallow_clone('lake/copy', source.version)
lance.write_dataset(rows, 'lake/third')
open('lake/third/data/leftover.lance', 'w').write('nobody names it')
os.utime('lake/third/data/leftover.lance', (1, 1))
";
    if !python(&dir, "a_clone_by_a_relative_path_hides_no_orphan", code) {
        return;
    }
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!(code, 0, "{whole:#}");
    assert_eq!(kinds(&told(&whole, "/third")), ["orphan_file"], "{whole:#}");
    assert_eq!(kinds(&told(&whole, "/source")), ["cloned_by"]);
    assert_eq!(kinds(&told(&whole, "/copy")), ["clone_of"]);
    let (code, out, err) = super::output(&dir, &["reclaim", "plan", "lake", "--out", "plan.json"]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(std::fs::read_to_string(dir.path().join("plan.json")).unwrap().contains("leftover.lance"), "{out}");

    std::fs::rename(dir.path().join("lake/source"), dir.path().join("lake/renamed")).unwrap();
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!(code, 3, "{whole:#}");
    assert_eq!(kinds(&told(&whole, "/third")), ["unknown_file"], "{whole:#}");
    let incomplete = whole["incomplete"].as_array().unwrap();
    assert_eq!(incomplete.len(), 1, "{whole:#}");
    assert!(incomplete[0]["what"].as_str().unwrap().ends_with("/lake/copy"), "{whole:#}");
    let why = incomplete[0]["why"].as_str().unwrap();
    assert!(why.ends_with("/source, which is no dataset that is known"), "{why}");
}

/// What a clean-up that knows no clones does: the source is whole afterwards, and nothing that it names is missing.
#[tokio::test]
async fn a_clone_whose_source_lost_the_files_is_damaged_and_the_source_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lake/source");
    let mut sample = written(&path, 2).await;
    let copy = squire_lake::uri::canonical(dir.path().join("lake").to_str().unwrap()).unwrap() + "/copy";
    sample.clone_to(&copy).await.unwrap();
    let files = |dir: &Path| -> std::collections::BTreeSet<std::path::PathBuf> {
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect()
    };
    let before = files(&path.join("data"));
    sample.overwrite(5, 500).await.unwrap();
    let missing = |end: &str, code: i32| -> Vec<String> {
        let (is, whole) = report(&dir, &["lake"]);
        assert_eq!(is, code, "{whole:#}");
        let rows = whole["datasets"].as_array().unwrap();
        let row = rows.iter().find(|d| d["uri"].as_str().unwrap().ends_with(end)).unwrap();
        let found = row["findings"].as_array().unwrap().iter().filter(|f| f["kind"] == "missing_file");
        found.map(|f| f["subject"]["path"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(missing("/copy", 0), [] as [String; 0]);
    // A file that both need is told of both; when the source's old versions are gone, of the clone alone.
    before.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    assert_eq!((missing("/source", 3).len(), missing("/copy", 3).len()), (2, 2));
    let (_, whole) = report(&dir, &["lake"]);
    let of_source = told(&whole, "/source").into_iter().filter(|(kind, _)| kind == "missing_file");
    of_source.for_each(|(_, detail)| assert!(detail.contains("and a clone reads it"), "{detail}"));
    for version in 1..=2 {
        std::fs::remove_file(path.join(format!("_versions/{:020}.manifest", u64::MAX - version))).unwrap();
    }
    let named = |file: &std::path::PathBuf| squire_lake::uri::canonical(file.to_str().unwrap()).unwrap();
    let wanted: Vec<String> = before.iter().map(named).collect();
    assert_eq!((missing("/source", 3), missing("/copy", 3)), (Vec::new(), wanted));
}

/// A base that is listed and never written to, and remaps that were put off: both as pylance writes them.
#[test]
fn a_base_that_nobody_uses_and_a_remap_that_was_put_off_are_told() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("lake")).unwrap();
    let code = "
import os, lance, pyarrow as pa
rows = lambda i: pa.table({'id': range(i, i + 20)})
os.makedirs('away')
away = lance.DatasetBasePath(os.path.abspath('away'), name='away', is_dataset_root=True)
lance.write_dataset(rows(0), 'lake/based', initial_bases=[away])
for i in range(3): lance.write_dataset(rows(i * 20), 'lake/reuse', mode='append' if i else 'create')
ds = lance.dataset('lake/reuse')
ds.create_scalar_index('id', 'BTREE')
ds.optimize.compact_files(defer_index_remap=True)
";
    if !python(&dir, "a_base_that_nobody_uses_and_a_remap_that_was_put_off_are_told", code) {
        return;
    }
    let (code, whole) = report(&dir, &["lake"]);
    assert_eq!(code, 0, "{whole:#}");
    assert_eq!(kinds(&told(&whole, "/based")), ["external_base_unreferenced"]);
    let reuse = told(&whole, "/reuse");
    assert!(kinds(&reuse).contains(&"fragment_reuse_growth"), "{reuse:?}");
}

#[tokio::test]
async fn records_that_point_at_nothing_and_a_root_of_two_projects_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("lake").to_str().unwrap().to_owned();
    written(&dir.path().join("lake/orders"), 1).await;
    let command = assert_cmd::cargo::cargo_bin("squire-reconcile").with_file_name("squire-registry");
    let at = format!("{root}/_squire");
    let admin = |args: &[&str]| {
        let args = args.iter().copied().chain(["--registry", &at]);
        let out = std::process::Command::new(&command).args(args).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    };
    let made = std::process::Command::new(&command).args(["init", &at]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    admin(&["project", "create", "p"]);
    admin(&["project", "create", "q"]);
    admin(&["warehouse", "create", "w", "--project", "p", "--root", &root]);
    admin(&["namespace", "create", "namespace/n", "--warehouse", "w"]);
    admin(&["table", "create", "table/n/t", "--location", "orders"]);
    admin(&["policy", "set", "table/n/t", "retention=9d"]);
    admin(&["protection", "set", "table/n/t", "no-drop"]);
    let told = || {
        let (_, whole) = report(&dir, &["lake"]);
        let findings = whole["findings"].as_array().unwrap().iter();
        let mut kinds: Vec<String> = findings.map(|f| f["kind"].as_str().unwrap().to_string()).collect();
        kinds.sort();
        kinds.dedup();
        kinds
    };
    assert_eq!(told(), [] as [String; 0]);
    admin(&["warehouse", "create", "w2", "--project", "q", "--root", &root]);
    assert_eq!(told(), ["bucket_shared_by_projects"]);
    admin(&["warehouse", "drop", "warehouse/w2"]);
    // As a registry looks of which records were lost.
    for collection in ["tables", "locations"] {
        std::fs::remove_dir_all(Path::new(&at).join("v1").join(collection)).unwrap();
    }
    assert_eq!(told(), ["policy_on_nothing", "protection_on_nothing"]);
    std::fs::remove_dir_all(Path::new(&at).join("v1/warehouses")).unwrap();
    assert!(told().contains(&"binding_to_nothing".to_string()), "{:?}", told());
}
