//! The state of every index, in one place.

use squire_lake::index::State;

use crate::common::Here;

#[tokio::test(flavor = "multi_thread")]
async fn every_state_is_told_apart() {
    let here = Here::with_table(1, 20).await;
    here.built(&["--columns", "id", "--type", "BTREE"]);
    here.built(&["--columns", "kind", "--type", "BITMAP"]);
    here.built(&["--columns", "vector", "--type", "IVF_PQ"]);
    let states = |look: &squire_lake::look::Look| -> Vec<(String, State)> {
        look.indices.iter().map(|i| (i.name.clone(), i.state)).collect()
    };
    let expected = [("id_idx", State::Covered), ("kind_idx", State::Covered), ("vector_idx", State::Untrained)];
    assert_eq!(states(&here.look().await), expected.map(|(n, s)| (n.to_owned(), s)));
    let lake = crate::common::lake();
    let columns = squire_lake::sample::Columns { vector: 16, page: 0 };
    let mut sample = squire_lake::sample::Sample::open(&lake, &here.uri(), columns).await.unwrap();
    sample.write(10, 20).await.unwrap();
    let look = here.look().await;
    assert_eq!(states(&look)[0].1, State::Lagging);
    // A file of an index that is gone: its health is unknown, which is not healthy.
    let uuid = look.indices[1].segments[0].uuid;
    for entry in std::fs::read_dir(here.table_path().join(format!("_indices/{uuid}"))).unwrap().flatten() {
        std::fs::write(entry.path(), b"not an index").unwrap();
    }
    assert_eq!(states(&here.look().await)[1].1, State::Unreadable);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_covers_no_row_or_answers_wrongly_is_no_success() {
    let here = Here::with_table(2, 300).await;
    here.built(&["--columns", "id", "--type", "BTREE"]);
    let look = here.look().await;
    let (lake, dataset) = (crate::common::lake(), look.dataset.clone().unwrap());
    let asked = async |info: &squire_lake::index::IndexInfo, dataset| {
        squire_lake::verify::built(&lake, &dataset, info, &serde_json::Map::new()).await
    };
    let info = look.indices[0].clone();
    assert_eq!(asked(&info, dataset.clone()).await.unwrap().unwrap().exact, Some(true));
    let empty = squire_lake::index::IndexInfo { indexed_rows: 0, unindexed_rows: 600, ..info.clone() };
    let refused = asked(&empty, dataset).await.unwrap_err();
    assert_eq!(refused.kind(), squire_lake::Kind::Verify);
    assert!(refused.to_string().contains("covers no row"), "{refused}");
    // An index that says it covers rows that are not in it: what it finds is less than what a scan finds.
    for (column, index_type) in [("id", "BTREE"), ("kind", "BITMAP"), ("vector", "IVF_FLAT")] {
        let here = Here::with_table(1, 300).await;
        here.built(&["--columns", column, "--type", index_type]);
        let columns = squire_lake::sample::Columns { vector: 16, page: 0 };
        let mut sample = squire_lake::sample::Sample::open(&lake, &here.uri(), columns).await.unwrap();
        sample.claim_coverage_of_unindexed_rows(300, 5_000).await.unwrap();
        let look = here.look().await;
        assert_eq!(look.indices[0].unindexed_rows, 0, "it says that it covers them");
        let wrong = asked(&look.indices[0], look.dataset.clone().unwrap()).await.unwrap_err();
        assert_eq!(wrong.kind(), squire_lake::Kind::Verify, "{index_type}: {wrong}");
    }
}

/// Runs the command by a Python that waits for it; bytes of its peak of resident memory.
fn peak(python: &str, command: &std::process::Command) -> u64 {
    let wait = "import resource, subprocess, sys\n\
        sys.stderr.write(subprocess.run(sys.argv[1:], check=True, capture_output=True, text=True).stderr)\n\
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)";
    let mut child = std::process::Command::new(python);
    child.args(["-c", wait]).arg(command.get_program()).args(command.get_args());
    let out = child.current_dir(command.get_current_dir().unwrap()).output().unwrap();
    assert!(out.status.success(), "{}", crate::common::stderr(&out));
    crate::common::stdout(&out).trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_builds_memory_stays_within_half_again_of_its_estimate() {
    let Some(python) = crate::common::python("a_builds_memory_stays_within_half_again_of_its_estimate") else { return };
    let here = Here::with_table(4, 25_000).await;
    for (column, index_type) in [("id", "BTREE"), ("kind", "BITMAP"), ("body", "INVERTED"), ("vector", "IVF_PQ")] {
        let mut command = here.command();
        let report = format!("{index_type}.json");
        command.args(["build", "table/sales/t", "--columns", column, "--type", index_type, "--name", index_type]);
        command.args(["--json", &report]);
        let peak = peak(&python, &command);
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(here.path(&report)).unwrap()).unwrap();
        let estimate = report["estimated_memory_bytes"].as_u64().unwrap();
        assert!(peak > 16 << 20, "{index_type}: {peak} bytes are those of another process");
        assert!(peak * 2 <= estimate * 3, "{index_type}: {peak} bytes at the peak, {estimate} estimated");
    }
}
