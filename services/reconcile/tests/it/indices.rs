//! What `report` says of indices that are there and answer wrongly.

use serde_json::Value;
use squire_lake::sample::{Columns, Sample};

use super::report::report;

#[tokio::test]
async fn rows_that_somebody_elses_compaction_left_in_an_index_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lake/orders");
    std::fs::create_dir_all(&path).unwrap();
    let mut sample = Sample::new(squire_lake::uri::canonical(path.to_str().unwrap()).unwrap(), Columns::default())
        .with_stable_row_ids();
    sample.write(300, 0).await.unwrap();
    sample.index(squire_lake::sample::SampleIndex::FullText).await.unwrap();
    sample.delete("id < 40").await.unwrap();
    let lagging = |whole: &Value| {
        let findings = whole["datasets"][0]["findings"].as_array().unwrap().iter();
        findings.filter(|f| f["kind"] == "index_lagging").cloned().collect::<Vec<_>>()
    };
    assert_eq!(lagging(&report(&dir, &["lake"]).1), [] as [Value; 0], "Lance masks by the deletion file");
    let Some(python) = std::env::var_os("TEST_PYTHON") else {
        eprintln!("SKIPPED rows_that_somebody_elses_compaction_left_in_an_index_are_told: TEST_PYTHON is not set");
        return;
    };
    let code = "import sys, lance; lance.dataset(sys.argv[1]).optimize.compact_files()";
    let done = std::process::Command::new(python).args(["-c", code]).arg(&path).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let (exit, whole) = report(&dir, &["lake"]);
    let found = lagging(&whole);
    assert_eq!((exit, found.len()), (0, 1), "{whole:#}");
    let detail = found[0]["detail"].as_str().unwrap();
    assert!(detail.starts_with("body_idx: 40 rows that it holds are gone"), "{detail}");
    assert!(found[0]["fix"].as_str().unwrap().contains("next pass"), "{found:?}");
}
