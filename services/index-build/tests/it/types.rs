//! Every type on a table that pylance wrote, and pylance's answers afterwards.

use serde_json::json;

use crate::common::{Here, python, script};

async fn table(test: &str) -> Option<(Here, String)> {
    let python = python(test)?;
    let here = Here::new().await;
    script(&python, &["write", here.table_path().to_str().unwrap()]);
    here.register("t").await;
    Some((here, python))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scalar_type_answers_as_a_scan_does() {
    let Some((here, python)) = table("every_scalar_type_answers_as_a_scan_does").await else { return };
    let builds = [
        ("id", "BTREE", "{}"),
        ("price", "BTREE", r#"{"zone_size": 256}"#),
        ("kind", "BITMAP", "{}"),
        ("labels", "LABEL_LIST", "{}"),
        ("nested.a", "BTREE", "{}"),
        ("dash-ed", "BITMAP", "{}"),
        ("body", "NGRAM", "{}"),
        ("doc", "JSON", r#"{"path": "kind"}"#),
        ("point", "RTREE", "{}"),
    ];
    let mut names = Vec::new();
    for (column, index_type, params) in builds {
        let built = here.built(&["--columns", column, "--type", index_type, "--params", params]);
        assert_eq!(built["outcome"], "built", "{built:#}");
        assert_eq!(
            (built["indexed_rows"].as_u64(), built["unindexed_rows"].as_u64()),
            (Some(2000), Some(0)),
            "{built:#}"
        );
        assert_eq!(built["type"], index_type);
        names.push(built["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(names[0], "id_idx");
    let path = here.table_path();
    let mut args = vec!["check", path.to_str().unwrap()];
    args.extend(names.iter().map(String::as_str));
    script(&python, &args);
    here.oracle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn types_that_skip_parts_of_a_scan_answer_as_it_does() {
    let Some((here, python)) = table("types_that_skip_parts_of_a_scan_answer_as_it_does").await else { return };
    // Each is the only index on its column, so that pylance uses it.
    here.built(&["--columns", "id", "--type", "ZONEMAP", "--params", r#"{"rows_per_zone": 100}"#]);
    here.built(&["--columns", "kind", "--type", "BLOOMFILTER", "--params", r#"{"probability": 0.01}"#]);
    script(&python, &["check", here.table_path().to_str().unwrap(), "id_idx", "kind_idx"]);
    here.oracle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_text_finds_the_same_rows() {
    let Some((here, python)) = table("full_text_finds_the_same_rows").await else { return };
    let params = r#"{"base_tokenizer": "whitespace", "stem": false, "remove_stop_words": false, "with_position": true,
        "lower_case": true, "ascii_folding": false, "max_token_length": 60, "language": "English"}"#;
    let built = here.built(&["--columns", "body", "--type", "fts", "--params", params]);
    assert_eq!((&built["type"], &built["check"]["exact"]), (&json!("INVERTED"), &json!(true)), "{built:#}");
    script(&python, &["check", here.table_path().to_str().unwrap(), "body_idx"]);
    here.oracle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_vector_type_finds_the_nearest() {
    let Some((here, python)) = table("every_vector_type_finds_the_nearest").await else { return };
    let path = here.table_path();
    let path = path.to_str().unwrap();
    for (column, index_type, params) in [
        ("vector", "IVF_FLAT", r#"{"num_partitions": 4}"#),
        ("vector", "IVF_PQ", r#"{"num_sub_vectors": 8, "sample_rate": 64, "max_iters": 10}"#),
        ("vector", "IVF_SQ", "{}"),
        ("vector", "IVF_RQ", r#"{"num_bits": 5}"#),
        ("vector", "IVF_HNSW_FLAT", r#"{"m": 12, "ef_construction": 80}"#),
        ("vector", "IVF_HNSW_PQ", r#"{"num_sub_vectors": 8, "max_iters": 10}"#),
        ("vector", "IVF_HNSW_SQ", "{}"),
        ("half", "IVF_PQ", r#"{"metric": "cosine", "num_sub_vectors": 8, "max_iters": 10}"#),
        ("bits", "IVF_FLAT", "{}"),
    ] {
        let built = here.built(&["--columns", column, "--type", index_type, "--params", params, "--replace"]);
        assert_eq!(built["outcome"], "built", "{built:#}");
        assert_eq!(built["indexed_rows"], 2000, "{built:#}");
        let recall = built["check"]["recall"][1].as_f64().unwrap_or(0.0);
        assert!(recall >= 0.9, "{index_type}: {built:#}");
        script(&python, &["check", path, &format!("{column}_idx")]);
    }
    here.oracle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_said_is_derived_and_told() {
    let here = Here::with_table(2, 300).await;
    let built = here.built(&["--columns", "VECTOR", "--type", "ivf_pq"]);
    assert_eq!(built["column"], "vector");
    assert_eq!(built["derived"], json!(["metric", "num_partitions", "num_sub_vectors", "num_bits"]));
    assert_eq!(
        built["params"],
        json!({ "metric": "l2", "num_partitions": 1, "num_sub_vectors": 8, "num_bits": 8 }),
        "{built:#}"
    );
    assert!(built["detail"].as_str().unwrap().contains("derived: metric = l2, num_partitions = 1"), "{built:#}");
}
