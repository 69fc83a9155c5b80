//! Odd datasets, written by pylance: each comes out maintained, with the same rows and answers, and then stays still.

use serde_json::Value;

use super::common::*;

fn odd_py() -> String {
    check_py().replace("check.py", "odd.py")
}

/// A lake of odd datasets.
struct Odd {
    here: Here,
    python: String,
    kinds: Vec<&'static str>,
}

impl Odd {
    fn new(test: &str, kinds: &[&'static str]) -> Option<Self> {
        let odd = Self { here: Here::new(), python: python(test)?, kinds: kinds.to_vec() };
        odd.run("make");
        Some(odd)
    }

    fn run(&self, verb: &str) -> Vec<u8> {
        let (script, root) = (odd_py(), self.here.text("lake"));
        let mut args = vec![script.as_str(), verb, &root];
        args.extend(&self.kinds);
        let output = run_python(&self.python, &args);
        assert_ok(&output, &format!("odd.py {verb}"));
        output.stdout
    }

    /// Rows, their digest and the indices, as pylance reads them.
    fn state(&self) -> Value {
        serde_json::from_slice(&self.run("state")).expect("JSON")
    }

    /// Every index of these against a scan.
    fn check_indices(&self, kinds: &[&str]) {
        let script = check_py();
        let paths: Vec<String> = kinds.iter().map(|k| self.here.text(&format!("lake/{k}"))).collect();
        let mut args = vec![script.as_str(), "--indices"];
        args.extend(paths.iter().map(String::as_str));
        assert_ok(&run_python(&self.python, &args), "every index against a scan");
    }

    /// Sweeps, and asserts that the rows are the same and a second sweep finds nothing.
    fn sweep(&self) -> (Value, Value) {
        let before = self.state();
        let planned = report(&["plan", &self.here.text("lake")]);
        let output = squire(&["sweep", &self.here.text("lake"), "--yes", "-o", "json"]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let swept: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_foretold(&planned, &swept);
        let settled = tree(&self.here.path("lake"));
        let again = report(&["sweep", &self.here.text("lake"), "--yes"]);
        assert_eq!(again["totals"]["idle"], self.kinds.len(), "{:#}", again["datasets"]);
        assert!(tree(&self.here.path("lake")) == settled, "a settled lake changed");
        let after = self.state();
        for kind in &self.kinds {
            for what in ["rows", "digest"] {
                assert_eq!(after[kind][what], before[kind][what], "{kind}: {what}");
            }
        }
        self.oracle();
        (swept, after)
    }

    fn oracle(&self) {
        for kind in &self.kinds {
            self.here.oracle(&format!("lake/{kind}"));
        }
    }

    /// The same once every version but two is past its retention: what goes, goes, and every row is still there.
    fn clean(&self) -> Value {
        let before = self.state();
        wait_until_older(&self.here.path("lake"), std::time::Duration::from_millis(1_200));
        let planned = short_retention("plan", &self.here, &[]);
        let cleaned = short_retention("sweep", &self.here, &["--yes", "--set", "limits.delete_rate=10000"]);
        assert_foretold(&planned, &cleaned);
        assert_eq!(self.state(), before, "after clean-up");
        self.oracle();
        cleaned
    }
}

#[test]
fn odd_tables_end_in_one_fragment_with_the_same_rows() {
    let kinds = ["v1_names", "untrained_vector", "json_index", "skipping_indices", "text_on_empty", "trainable_vector"];
    let Some(odd) = Odd::new("odd_tables_end_in_one_fragment_with_the_same_rows", &kinds) else { return };
    let (swept, state) = odd.sweep();
    for kind in kinds {
        let row = row(&swept, kind);
        assert_eq!(row["outcome"]["kind"], "maintained", "{row:#}");
        assert_eq!(row["after"]["fragments"], 1, "{row:#}");
    }
    // Zone map and bloom filter lose coverage by the rewrite and have it back after the same sweep; a full-text index made on an
    // empty table and a vector index that waited for rows are folded and trained.
    assert_eq!(state["skipping_indices"]["indices"], serde_json::json!({ "id_idx": [1, 0], "kind_idx": [1, 0] }));
    assert_eq!(state["json_index"]["indices"], serde_json::json!({ "doc_idx": [1, 0] }));
    assert_eq!(state["text_on_empty"]["indices"], serde_json::json!({ "body_idx": [1, 0] }));
    assert_eq!(state["trainable_vector"]["indices"], serde_json::json!({ "vec_idx": [1, 0] }));
    // 70 rows train no quantiser of 256 codes: no commit, and it is said.
    let waiting = row(&swept, "untrained_vector");
    assert_eq!(waiting["steps"]["optimize_indices"]["reason"], "untrained", "{waiting:#}");
    assert_eq!(waiting["findings"][0]["kind"], "index_untrained");
    odd.check_indices(&["v1_names", "skipping_indices", "text_on_empty", "trainable_vector"]);

    let cleaned = odd.clean();
    assert!(row(&cleaned, "v1_names")["steps"]["cleanup"]["versions_removed"].as_u64() >= Some(8), "{cleaned:#}");
    let names = tree(&odd.here.path("lake/v1_names/_versions"));
    let v1 =
        |p: &std::path::Path| p.file_name().is_some_and(|n| n.len() < 20) || p.ends_with("latest_version_hint.json");
    assert!(names.iter().all(|(p, _)| v1(p)), "a table with V1 names keeps them: {names:?}");
}

/// One index segment per fragment: compaction alone and the default optimise alone change nothing, for ever.
#[test]
fn segments_that_wedge_compaction_are_merged_first() {
    let kinds = ["segments_btree", "segments_text", "segments_vector"];
    let Some(odd) = Odd::new("segments_that_wedge_compaction_are_merged_first", &kinds) else { return };
    for kind in kinds {
        let planned = report(&["plan", &odd.here.text("lake"), "--steps", "compact"]);
        assert_eq!(row(&planned, kind)["after"]["fragments"], 6, "{kind}: it is wedged");
    }
    let (swept, state) = odd.sweep();
    for kind in kinds {
        let row = row(&swept, kind);
        assert_eq!(row["after"]["fragments"], 1, "{row:#}");
        let indices = state[kind]["indices"].as_object().expect("indices");
        assert!(indices.values().all(|i| *i == serde_json::json!([1, 0])), "{kind}: {indices:?}");
    }
    odd.check_indices(&kinds);
}

/// What somebody else's compaction left in the indices is left out by one pass, whose verification finds the same answers.
#[test]
fn rows_that_are_gone_are_left_out_of_the_indices() {
    let Some(odd) = Odd::new("rows_that_are_gone_are_left_out_of_the_indices", &["dead_in_indices"]) else { return };
    let planned = report(&["plan", &odd.here.text("lake")]);
    let states = |when: &Value| {
        let list = when["indices"].as_array().expect("indices").iter();
        list.map(|i| i["state"].as_str().expect("a state").to_string()).collect::<Vec<_>>()
    };
    assert_eq!(states(&row(&planned, "dead_in_indices")["before"]), ["lagging", "lagging"], "{planned:#}");
    let (swept, state) = odd.sweep();
    let row = row(&swept, "dead_in_indices");
    let work = row["steps"]["optimize_indices"]["indices"].as_array().expect("what was done").iter();
    let actions: Vec<&str> = work.map(|i| i["action"].as_str().expect("an action")).collect();
    assert_eq!((actions, states(&row["after"])), (vec!["rebuild", "merge"], vec!["covered".into(), "covered".into()]));
    assert_eq!(state["dead_in_indices"]["indices"], serde_json::json!({ "body_idx": [1, 0], "vec_idx": [1, 0] }));
    odd.check_indices(&["dead_in_indices"]);
}

#[test]
fn empty_tables_and_tables_of_one_row_are_no_trouble() {
    let kinds = ["every_row_deleted", "zero_rows", "one_row"];
    let Some(odd) = Odd::new("empty_tables_and_tables_of_one_row_are_no_trouble", &kinds) else { return };
    let (swept, _) = odd.sweep();
    assert_eq!(swept["totals"]["failed"], serde_json::json!({}), "{swept:#}");
    let cleaned = odd.clean();
    assert!(
        row(&cleaned, "every_row_deleted")["steps"]["cleanup"]["versions_removed"].as_u64() > Some(0),
        "{cleaned:#}"
    );
    odd.check_indices(&kinds);
}

/// Rows under another base would move to the primary one, and the other base's files would be nobody's.
#[test]
fn files_under_an_extra_base_stay_where_they_are() {
    let Some(odd) = Odd::new("files_under_an_extra_base_stay_where_they_are", &["extra_bases"]) else { return };
    let base = tree(&odd.here.path("lake/extra_bases-base"));
    assert_eq!(base.iter().filter(|(p, _)| p.extension().is_some_and(|e| e == "lance")).count(), 5);
    let (swept, _) = odd.sweep();
    assert_eq!(row(&swept, "extra_bases")["steps"]["compact"]["reason"], "external_bases", "{swept:#}");
    odd.clean();
    assert_eq!(tree(&odd.here.path("lake/extra_bases-base")), base);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_thousand_versions_are_swept_and_cleaned() {
    let test = "more_than_a_thousand_versions_are_swept_and_cleaned";
    let Some(python) = python(test) else { return };
    let here = Here::new();
    let (at, script) = (here.text("lake/t"), odd_py());
    assert_ok(&run_python(&python, &[script.as_str(), "many", &at, "1010"]), "odd.py many");

    let planned = report(&["plan", &here.text("lake")]);
    let requests = &planned["totals"]["requests"];
    let n = |op: &str| requests[op].as_u64().expect("a number");
    // One GET per manifest, and listings of a thousand names each.
    assert!(n("get") <= 1_010 + 50 && n("list") + n("head") <= 60, "{requests}");
    assert_eq!(row(&planned, "lake/t")["before"]["versions"], 1_010);

    let mut sample =
        squire_lake::sample::Sample::open(&lake(), &here.uri("lake/t"), Default::default()).await.expect("opened");
    sample.commit_detached().await.expect("committed");
    wait_until_older(&here.path("lake"), std::time::Duration::from_millis(1_200));
    let quick = ["--yes", "--set", "limits.delete_rate=10000"];
    let held = short_retention("sweep", &here, &quick);
    assert_eq!(row(&held, "lake/t")["steps"]["cleanup"]["reason"], "detached_present", "past page one of a listing");
    let detached = std::fs::read_dir(here.path("lake/t/_versions"))
        .expect("versions")
        .flatten()
        .map(|e| e.path())
        .find(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with('d')))
        .expect("the detached manifest");
    std::fs::remove_file(detached).expect("removed");

    let swept = short_retention("sweep", &here, &quick);
    let row = row(&swept, "lake/t");
    assert_eq!((row["after"]["fragments"].as_u64(), row["outcome"]["kind"].as_str()), (Some(1), Some("maintained")));
    assert_eq!(row["steps"]["cleanup"]["versions_removed"], 1_008, "{row:#}");
    assert_eq!(row["steps"]["cleanup"]["failed_deletes"], 0);
    let ids = squire_lake::sample::Sample::ids(&lake(), &here.uri("lake/t"), None).await.expect("it reads");
    assert_eq!((ids.len(), ids.last()), (2_009, Some(&2_008)));
    // The detached commit's transaction file stays: its manifest was taken away by hand above.
    here.oracle_with("lake", squire_lake::oracle::Leftovers::Explained, &[]);
}

/// Asking a JSON index for its statistics fails, as it panicked in some release: unknown is not 0, and nothing is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_json_index_whose_statistics_fail_loses_nothing() {
    let Some(odd) = Odd::new("a_json_index_whose_statistics_fail_loses_nothing", &["json_index"]) else { return };
    for (path, bytes) in tree(&odd.here.path("lake/json_index/_indices")) {
        std::fs::write(path, vec![0xa5; bytes.len()]).expect("written");
    }
    wait_until_older(&odd.here.path("lake"), std::time::Duration::from_millis(1_200));
    let before = dataset_tree(&odd.here.path("lake/json_index"));
    let swept = short_retention("sweep", &odd.here, &["--yes"]);
    let row = row(&swept, "json_index");
    assert_eq!(row["before"]["indices"][0]["state"], "unreadable", "{row:#}");
    assert!(row["before"]["indices"][0]["unindexed_rows"].is_null(), "{row:#}");
    assert_eq!(row["steps"]["cleanup"]["reason"], "unhealthy", "{row:#}");
    assert_eq!(dataset_tree(&odd.here.path("lake/json_index")), before);
    let ids = squire_lake::sample::Sample::ids(&lake(), &odd.here.uri("lake/json_index"), None).await;
    assert_eq!(ids.expect("it reads").len(), 100);
}
