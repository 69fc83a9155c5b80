//! Each refusal says what would be accepted, and leaves every byte as it was.

use squire_lake::sample::set_writer;
use squire_registry::{Block, BlockKind, Level, Subject};

use crate::common::{Here, stderr};

fn bytes(here: &Here) -> Vec<(std::path::PathBuf, u64)> {
    let mut out = Vec::new();
    let mut queue = vec![here.table_path()];
    while let Some(at) = queue.pop() {
        for entry in std::fs::read_dir(&at).unwrap().flatten() {
            match entry.metadata().unwrap() {
                m if m.is_dir() => queue.push(entry.path()),
                m => out.push((entry.path(), m.len())),
            }
        }
    }
    out.sort();
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_the_table_is_refused_with_what_would() {
    let here = Here::with_table(2, 100).await;
    here.built(&["--columns", "id", "--type", "BTREE", "--name", "taken"]);
    let before = bytes(&here);
    for (args, reason, accepted) in [
        (&["--columns", "nowhere", "--type", "BTREE"][..], "no_such_column", "id, body, kind, vector"),
        (&["--columns", "id.x", "--type", "BTREE"], "no_such_column", "id, body"),
        (&["--columns", "id,kind", "--type", "BTREE"], "bad_columns", "one column"),
        (&["--columns", "vector", "--type", "BTREE"], "wrong_type", "neither list, struct nor blob"),
        (&["--columns", "id", "--type", "NGRAM"], "wrong_type", "text"),
        (&["--columns", "id", "--type", "INVERTED"], "wrong_type", "a list of text"),
        (&["--columns", "body", "--type", "LABEL_LIST"], "wrong_type", "a list of values"),
        (&["--columns", "body", "--type", "JSON", "--params", r#"{"path": "a"}"#], "wrong_type", "JSONB"),
        (&["--columns", "id", "--type", "RTREE"], "wrong_type", "geoarrow"),
        (&["--columns", "id", "--type", "IVF_PQ"], "wrong_type", "fixed-size list"),
        (&["--columns", "vector", "--type", "BLOOMFILTER"], "wrong_type", "integers"),
        (
            &["--columns", "vector", "--type", "IVF_PQ", "--params", r#"{"num_sub_vectors": 5}"#],
            "bad_params",
            "1, 2, 4, 8, 16",
        ),
        (
            &["--columns", "vector", "--type", "IVF_FLAT", "--params", r#"{"metric": "hamming"}"#],
            "bad_params",
            "l2, cosine",
        ),
        (&["--columns", "id", "--type", "BTREE", "--name", "__lance_mine"], "bad_name", "not starting with __lance_"),
        (&["--columns", "kind", "--type", "BTREE", "--name", "taken"], "name_taken", "another name"),
        (&["--columns", "kind", "--type", "BITMAP", "--name", "taken", "--replace"], "name_taken", "another name"),
        (&["--columns", "id", "--type", "BITMAP", "--name", "taken"], "name_taken", "--replace"),
        (&["--columns", "vector", "--type", "IVF_PQ", "--train-if-possible"], "too_few_rows", "more rows"),
    ] {
        let (code, told) = here.build(args);
        assert_eq!((code, told["reason"].as_str()), (3, Some(reason)), "{args:?}: {told:#}");
        assert!(told["accepted"].as_str().unwrap().contains(accepted), "{args:?}: {told:#}");
        assert_eq!(told["outcome"], "refused");
    }
    assert_eq!(bytes(&here), before, "a refusal writes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_is_wrong_usage() {
    let here = Here::with_table(1, 10).await;
    for (args, says) in [
        (&["build", "table/sales/t", "--columns", "id", "--type", "HASH"][..], "BTREE, BITMAP"),
        (&["build", "table/sales/t", "--columns", "id", "--type", "BTREE", "--params", "{"], "JSON object"),
        (
            &["build", "table/sales/t", "--columns", "id", "--type", "BTREE", "--params", r#"{"path": "s3://x"}"#],
            "zone_size",
        ),
        (&["build", "warehouse/w", "--columns", "id", "--type", "BTREE"], "table/a/b/t"),
        (&["build", "dataset/file:///nowhere", "--columns", "id", "--type", "BTREE"], "no registered table"),
        (&["jobs", "show", "nothing"], "jobs list"),
    ] {
        let out = here.run(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", stderr(&out));
        assert!(stderr(&out).contains(says), "{args:?}: {}", stderr(&out));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_registry_forbids_is_refused() {
    let here = Here::with_table(1, 10).await;
    let table: Subject = "table/sales/t".parse().unwrap();
    let r = &here.registry;
    let before = bytes(&here);
    let refused = |reason: &str| {
        let (code, told) = here.build(&["--columns", "id", "--type", "BTREE"]);
        assert_eq!((code, told["reason"].as_str()), (3, Some(reason)), "{told:#}");
    };
    let (code, told) = {
        let out = here.run(&["build", "table/sales/other", "--columns", "id", "--type", "BTREE", "-o", "json"]);
        (out.status.code(), serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap())
    };
    assert_eq!((code, told["reason"].as_str()), (Some(3), Some("not_registered")));

    r.protect(&table, Level::Freeze, Some("audit")).await.unwrap();
    refused("frozen");
    r.unprotect(&table, None).await.unwrap();

    let block = Block { kind: BlockKind::Operator, subject: Subject::Estate, until: None, version: None };
    let id = r.block_add(block, "stop everything").await.unwrap();
    refused("blocked");
    r.block_remove(&id, None).await.unwrap();

    r.warehouse_set_active("w", false, None).await.unwrap();
    refused("warehouse_inactive");
    r.warehouse_set_active("w", true, None).await.unwrap();

    let out = here.run(&[
        "build",
        "table/sales/t",
        "--columns",
        "id",
        "--type",
        "BTREE",
        "--set",
        "estate.mode=observe",
        "-o",
        "json",
    ]);
    assert!(String::from_utf8_lossy(&out.stdout).contains("\"reason\": \"mode\""), "{}", stderr(&out));

    std::fs::write(here.table_path().join(".lance-deregistered"), b"").unwrap();
    refused("deregistered");
    std::fs::remove_file(here.table_path().join(".lance-deregistered")).unwrap();
    assert_eq!(bytes(&here), before, "a refusal writes nothing");
    here.built(&["--columns", "id", "--type", "BTREE"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_client_keeps_its_table_unless_the_policy_says_otherwise() {
    let here = Here::with_table(2, 300).await;
    set_writer(&here.table_path(), "0.29.0").unwrap();
    let (code, told) = here.build(&["--columns", "vector", "--type", "IVF_FLAT"]);
    assert_eq!((code, told["reason"].as_str()), (3, Some("old_clients")), "{told:#}");
    assert!(told["accepted"].as_str().unwrap().contains("upgrade_index_format"), "{told:#}");
    here.built(&["--columns", "id", "--type", "BTREE"]);
    let allowed =
        here.build(&["--columns", "vector", "--type", "IVF_FLAT", "--set", "policy.upgrade_index_format=true"]);
    assert_eq!(allowed.0, 0, "{:#}", allowed.1);
}
