//! `[storage]`.

use std::fs;

use squire_service::config::Storage;

use crate::fixture::loader;

fn storage(text: &str) -> Storage {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("squire.toml"), text).unwrap();
    loader(dir.path()).load().unwrap().config.storage
}

fn refusal(text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("squire.toml"), text).unwrap();
    loader(dir.path()).load().unwrap_err().to_string()
}

const BUCKETS: &str = r#"
[storage]
aws_region = "base"
aws_allow_http = true
timeout = 30
[storage."s3://bucket-a"]
aws_region = "a"
[storage."s3://bucket-a/gold/"]
aws_region = "gold"
[storage."/mnt/lake"]
aws_region = "disk"
"#;

#[test]
fn the_longest_prefix_wins() {
    let s = storage(BUCKETS);
    let region = |uri: &str| s.options_for(uri)["aws_region"].clone();
    assert_eq!(region("s3://bucket-a/silver/t.lance"), "a");
    assert_eq!(region("s3://bucket-a"), "a");
    assert_eq!(region("s3://bucket-a/gold/t.lance"), "gold");
    assert_eq!(region("s3://bucket-a/gold"), "gold");
    assert_eq!(region("s3://bucket-b/t.lance"), "base");
}

#[test]
fn a_prefix_ends_where_a_segment_ends() {
    let s = storage(BUCKETS);
    assert_eq!(s.options_for("s3://bucket-ab/t")["aws_region"], "base");
    assert_eq!(s.options_for("s3://bucket-a/golden/t")["aws_region"], "a");
    assert_eq!(s.options_for("file:///mnt/lake/t")["aws_region"], "disk");
    assert_eq!(s.options_for("/mnt/lakes/t")["aws_region"], "base");
}

#[test]
fn a_bucket_inherits_what_it_does_not_name_and_scalars_become_text() {
    let s = storage(BUCKETS);
    let options = s.options_for("s3://bucket-a/t");
    assert_eq!(options["aws_allow_http"], "true");
    assert_eq!(options["timeout"], "30");
    assert_eq!(options.len(), 3);
}

#[test]
fn a_bucket_with_credentials_inherits_none() {
    let s = storage(
        "[storage]\naws_access_key_id = \"A\"\naws_secret_access_key = \"B\"\naws_session_token = \"C\"\n\
         aws_region = \"r\"\n[storage.\"s3://b\"]\naws_access_key_id = \"X\"\naws_secret_access_key = \"Y\"\n",
    );
    let options = s.options_for("s3://b/t");
    assert_eq!(options["aws_access_key_id"], "X");
    assert_eq!(options["aws_region"], "r");
    assert!(!options.contains_key("aws_session_token"));
    assert_eq!(s.options_for("s3://c/t")["aws_session_token"], "C");
}

#[test]
fn delete_options_exist_only_where_they_are_given() {
    assert_eq!(storage(BUCKETS).delete_options_for("s3://bucket-a/t"), None);
    let s = storage(
        "[storage]\naws_region = \"r\"\naws_access_key_id = \"A\"\n[storage.delete]\naws_access_key_id = \"D\"\n\
         [storage.\"s3://b\".delete]\naws_access_key_id = \"E\"\n",
    );
    assert_eq!(s.options_for("s3://a/t")["aws_access_key_id"], "A");
    let delete = s.delete_options_for("s3://a/t").unwrap();
    assert_eq!((delete["aws_access_key_id"].as_str(), delete["aws_region"].as_str()), ("D", "r"));
    assert_eq!(s.delete_options_for("s3://b/t").unwrap()["aws_access_key_id"], "E");
}

#[test]
fn names_are_compared_without_case_and_come_from_the_environment_too() {
    let dir = tempfile::tempdir().unwrap();
    let loaded = loader(dir.path())
        .env([("SQUIRE_STORAGE__AWS_ENDPOINT", "http://127.0.0.1:9000")])
        .sets(["storage.AWS_Region=x", "storage.\"s3://b.c\".aws_region=y"])
        .load()
        .unwrap();
    let options = loaded.config.storage.options_for("s3://a");
    assert_eq!(options["aws_endpoint"], "http://127.0.0.1:9000");
    assert_eq!(options["aws_region"], "x");
    assert_eq!(loaded.config.storage.options_for("s3://b.c/t")["aws_region"], "y");
    assert_eq!(loaded.source_of("storage.aws_region").unwrap().to_string(), "--set");
}

#[test]
fn a_near_miss_is_refused_and_what_we_do_not_know_passes() {
    let message = refusal("[storage]\naws_acess_key_id = \"x\"\n");
    assert!(message.contains("squire.toml") && message.contains("did you mean `aws_access_key_id`?"), "{message}");
    let s = storage("[storage]\nsome_future_option = \"x\"\n");
    assert_eq!(s.options_for("s3://a")["some_future_option"], "x");
}

#[test]
fn a_table_that_is_no_uri_is_refused() {
    let message = refusal("[storage.bucket-a]\naws_region = \"x\"\n");
    assert!(message.contains("`bucket-a`") && message.contains("[storage.\"s3://bucket\"]"), "{message}");
    let message = refusal("[storage]\naws_region = [\"x\"]\n");
    assert!(message.contains("storage.aws_region"), "{message}");
}
