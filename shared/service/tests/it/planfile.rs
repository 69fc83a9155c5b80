//! The plan file.

use std::fs;
use std::path::Path;

use chrono::Utc;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use squire_service::planfile::{PlanErrorKind, PlanFile, PlanItem, PlanKind, PlanWork, SCHEMA, digest};
use uuid::Uuid;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Part {
    uri: String,
    read_version: u64,
    versions: Vec<u64>,
    cost: f64,
}

fn part() -> Part {
    Part { uri: "/lake/ä $%#.lance".into(), read_version: 9, versions: vec![1, 2], cost: 0.1 + 0.2 }
}

fn written() -> (tempfile::TempDir, std::path::PathBuf, PlanFile<Part>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plan.json");
    let mut plan = PlanFile::new(PlanKind::Maintenance, Some(Uuid::nil()), vec![part()]);
    plan.write(&path).unwrap();
    (dir, path, plan)
}

fn refusal(text: &[u8]) -> (PlanErrorKind, String) {
    let error = PlanFile::<Part>::parse(Path::new("p.json"), text).unwrap_err();
    assert!(error.to_string().contains("p.json"), "{error}");
    (error.kind(), error.to_string())
}

#[test]
fn a_plan_is_read_back_as_it_was_written() {
    let (dir, path, plan) = written();
    let read = PlanFile::<Part>::read_for(&path, PlanKind::Maintenance).unwrap();
    assert_eq!(read, plan);
    assert_eq!(read.datasets(), [part()]);
    assert_eq!(read.id.get_version_num(), 7);
    let age = Utc::now() - read.made_at().unwrap();
    assert!(age.num_seconds().abs() < 60, "{age}");
    // Nothing else is left beside it.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn white_space_and_key_order_do_not_matter() {
    let (_dir, path, plan) = written();
    let value: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let sorted: std::collections::BTreeMap<String, serde_json::Value> = serde_json::from_value(value).unwrap();
    let compact = serde_json::to_vec(&sorted).unwrap();
    assert_eq!(PlanFile::<Part>::parse(&path, &compact).unwrap(), plan);
}

#[test]
fn the_last_bit_of_a_float_does_not_matter() {
    let of = |cost: f64| digest(&serde_json::json!({ "cost": cost }));
    assert_eq!(of(0.1 + 0.2), of(0.3));
    assert_ne!(of(0.3), of(0.3001));
}

#[test]
fn a_changed_plan_is_refused() {
    let (_dir, path, _) = written();
    let text = fs::read_to_string(&path).unwrap();
    for (from, to) in [("\"read_version\": 9", "\"read_version\": 8"), ("/lake/", "/lane/"), ("maintenance", "drop")] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        let (kind, message) = refusal(changed.as_bytes());
        assert_eq!(kind, PlanErrorKind::Changed);
        assert!(message.contains("changed after it was made"), "{message}");
    }
    // An added field counts, too.
    let (kind, _) = refusal(text.replacen('{', "{\"more\": 1,", 1).as_bytes());
    assert_eq!(kind, PlanErrorKind::Changed);
}

#[test]
fn a_plan_without_digest_is_refused() {
    let text =
        format!("{{\"schema\":\"{SCHEMA}\",\"id\":\"{}\",\"kind\":\"maintenance\",\"datasets\":[]}}", Uuid::nil());
    assert_eq!(refusal(text.as_bytes()).0, PlanErrorKind::Changed);
}

#[test]
fn a_truncated_plan_is_refused_as_such() {
    let (_dir, path, _) = written();
    let bytes = fs::read(&path).unwrap();
    let (kind, message) = refusal(&bytes[..bytes.len() / 2]);
    assert_eq!(kind, PlanErrorKind::Changed);
    assert!(message.contains("ends in the middle"), "{message}");
}

#[test]
fn what_is_no_plan_is_refused_with_what_it_is() {
    assert!(refusal(b"").1.contains("is not JSON"));
    assert!(refusal(b"hello").1.contains("is not JSON"));
    assert!(refusal(&[0xff, 0xfe, 0x00]).1.contains("is not JSON"));
    assert!(refusal(b"[]").1.contains("schema is missing"));
    assert!(refusal("[".repeat(100_000).as_bytes()).1.contains("p.json"));
    let (kind, message) = refusal(br#"{"schema":"squire.report.v1"}"#);
    assert_eq!(kind, PlanErrorKind::NotAPlan);
    assert!(message.contains("this is a report"), "{message}");
    let (_, message) = refusal(br#"{"schema":"squire.plan.v2"}"#);
    assert!(message.contains("the version of Squire that made it"), "{message}");
}

#[test]
fn a_right_digest_around_a_wrong_shape_is_refused() {
    let mut value = serde_json::json!({
        "schema": SCHEMA, "id": Uuid::nil(), "kind": "maintenance", "estate": null, "datasets": [{ "uri": 3 }],
    });
    value["digest"] = digest(&value).into();
    let (kind, message) = refusal(value.to_string().as_bytes());
    assert_eq!(kind, PlanErrorKind::Changed);
    assert!(message.contains("make a new plan with this version"), "{message}");
}

#[test]
fn a_huge_file_is_refused_unread() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("huge");
    fs::File::create(&path).unwrap().set_len((2 << 30) + 1).unwrap();
    let error = PlanFile::<Part>::read(&path).unwrap_err();
    assert!(error.to_string().contains("2147483649 bytes"), "{error}");
}

#[test]
fn a_missing_file_and_a_directory_are_errors_that_say_so() {
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path().join("none"), dir.path().to_owned()] {
        let error = PlanFile::<Part>::read(&path).unwrap_err();
        assert_eq!(error.kind(), PlanErrorKind::Io);
        assert!(error.to_string().contains("plan --out"), "{error}");
    }
    let mut plan = PlanFile::new(PlanKind::Maintenance, None, vec![part()]);
    assert_eq!(plan.write(dir.path()).unwrap_err().kind(), PlanErrorKind::Io);
    assert_eq!(plan.write(&dir.path().join("no/dir")).unwrap_err().kind(), PlanErrorKind::Io);
}

#[test]
fn a_plan_for_another_verb_is_refused() {
    let (_dir, path, _) = written();
    let error = PlanFile::<Part>::read_for(&path, PlanKind::Reclaim).unwrap_err();
    assert_eq!(error.kind(), PlanErrorKind::WrongKind);
    assert!(error.to_string().contains("is for maintenance"), "{error}");
}

#[test]
fn a_reclaim_plan_holds_items_instead_of_datasets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plan.json");
    let mut plan = PlanFile::<Part>::new(PlanKind::Reclaim, Some(Uuid::nil()), vec![]);
    plan.bucket = Some("s3://b".into());
    plan.live = Some(12);
    plan.work = PlanWork::Items(vec![PlanItem {
        path: "s3://b/t.lance/data/x.lance".into(),
        reason: "orphan_file".into(),
        bytes: 10,
        last_modified: "2026-01-01T00:00:00Z".parse().unwrap(),
    }]);
    plan.write(&path).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(value["items"][0]["bytes"], 10);
    assert!(value.get("datasets").is_none());
    assert_eq!(PlanFile::<Part>::read(&path).unwrap(), plan);
}

proptest! {
    #[test]
    fn any_numbers_keep_the_digest(cost in prop::num::f64::NORMAL, version in any::<u64>(), uri in "\\PC{0,60}") {
        let mut plan = PlanFile::new(PlanKind::Maintenance, None, vec![Part { uri, read_version: version, versions: vec![], cost }]);
        let text = plan.seal().unwrap();
        prop_assert!(PlanFile::<Part>::parse(Path::new("p"), text.as_bytes()).is_ok());
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = PlanFile::<Part>::parse(Path::new("p"), &bytes);
    }
}
