//! SUBJECTs as FACES writes them.

use proptest::prelude::*;
use squire_registry::{Kind, Subject};

fn parse(text: &str) -> Subject {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn every_kind_is_understood() {
    assert_eq!(parse("estate"), Subject::Estate);
    assert_eq!(parse("project/P"), Subject::Project("P".into()));
    assert_eq!(parse("warehouse/my%20w"), Subject::Warehouse("my w".into()));
    assert_eq!(parse("namespace/a/b"), Subject::Namespace(vec!["a".into(), "b".into()]));
    assert_eq!(parse("table/a/b/t"), Subject::Table(vec!["a".into(), "b".into(), "t".into()]));
    assert_eq!(parse("dataset/s3://b/p%20q"), Subject::Dataset("s3://b/p%20q".into()));
    assert_eq!(parse("dataset/s3%3A%2F%2Fb%2Fp%2520q"), Subject::Dataset("s3://b/p%20q".into()));
}

#[test]
fn dollars_are_understood_and_printed_nowhere() {
    assert_eq!(parse("a$b$t").to_string(), "table/a/b/t");
    assert_eq!(parse("table/a$b$t").to_string(), "table/a/b/t");
    assert_eq!(Subject::Table(vec!["a$b".into()]).to_string(), "table/a%24b");
    assert_eq!(parse("table/a%24b"), Subject::Table(vec!["a$b".into()]));
}

#[test]
fn verbs_that_remove_take_no_bare_id() {
    assert_eq!(Subject::parse_explicit("table/a/t").unwrap().to_string(), "table/a/t");
    let error = Subject::parse_explicit("a$t").unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("table/a/t"), "{error}");
}

#[test]
fn bad_subjects_are_refused() {
    for bad in [
        "",
        "events",
        "table",
        "table/",
        "table/a//t",
        "table/a/../t",
        "table/./t",
        "view/a",
        "project/",
        "project/a/b",
        "table/a/%zz",
        "table/a/%4",
        "table/a/%FF",
        "namespace/a%00",
        "dataset/",
        "Estate",
        "estate/x",
    ] {
        assert_eq!(bad.parse::<Subject>().map_err(|e| e.kind()), Err(Kind::Invalid), "{bad}");
    }
}

fn name() -> impl Strategy<Value = String> {
    "[^\\p{Cc}]{1,20}".prop_filter("no dots alone", |s| s != "." && s != "..")
}

fn subject() -> impl Strategy<Value = Subject> {
    prop_oneof![
        Just(Subject::Estate),
        name().prop_map(Subject::Project),
        name().prop_map(Subject::Warehouse),
        prop::collection::vec(name(), 1..4).prop_map(Subject::Namespace),
        prop::collection::vec(name(), 1..4).prop_map(Subject::Table),
        "(s3|file)://[^\\p{Cc}]{1,30}".prop_map(Subject::Dataset),
    ]
}

proptest! {
    #[test]
    fn printing_and_parsing_are_inverse(subject in subject()) {
        let text = subject.to_string();
        prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-%".contains(&b)), "{}", text);
        prop_assert_eq!(text.parse::<Subject>().unwrap(), subject.clone());
        let json = serde_json::to_string(&subject).unwrap();
        prop_assert_eq!(serde_json::from_str::<Subject>(&json).unwrap(), subject);
    }

    #[test]
    fn parsing_never_panics(text in ".*") {
        let _ = text.parse::<Subject>();
        let _ = format!("table/{text}").parse::<Subject>();
    }
}
