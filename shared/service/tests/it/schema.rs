//! The JSON schemas in `docs/schemas` say what the code says.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use squire_service::report::{
    Authority, CleanupStep, Erasure, FailureKind, Finding, FindingKind, FindingSubject, HoldReason, IndexAction,
    IndexState, Layout, OutcomeKind, PolicySource, PolicySourceKind, PolicyView, ReportKind, Retained, Severity,
    SkipReason, StepOutcome, StepReason, TargetSource, TierSource, Unreached, VerifyStep, WriterInfo,
};

use crate::fixture::{report, worked};

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn schema(name: &str) -> Value {
    let path = root().join("docs/schemas").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn names(value: &Value) -> BTreeSet<String> {
    let list = value.as_array().unwrap_or_else(|| panic!("no list: {value}"));
    list.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

#[test]
fn every_list_of_names_is_the_same_in_schema_and_code() {
    let schema = schema("squire.report.v1.json");
    macro_rules! same {
        ($($name:literal: $type:ty),+ $(,)?) => {$(
            let code: BTreeSet<String> = <$type>::ALL.iter().map(|v| v.as_str().to_owned()).collect();
            assert_eq!(names(&schema["$defs"][$name]["enum"]), code, $name);
        )+};
    }
    same!(
        "report_kind": ReportKind, "outcome_kind": OutcomeKind, "skip_reason": SkipReason,
        "failure_kind": FailureKind, "step_outcome": StepOutcome, "step_reason": StepReason,
        "authority": Authority, "tier_source": TierSource, "layout": Layout, "target_source": TargetSource,
        "policy_source_kind": PolicySourceKind, "index_state": IndexState, "index_action": IndexAction,
        "hold_reason": HoldReason, "severity": Severity, "finding_kind": FindingKind,
    );
}

/// Fields of every object in a full report, compared with the properties the schema gives them.
#[test]
fn every_field_of_a_report_is_in_the_schema_and_no_other() {
    let schema = schema("squire.report.v1.json");
    let mut d = worked("/lake/a", StepOutcome::Done);
    d.writers.push(WriterInfo { version: 1, lance: "lance 14.0.2".into() });
    d.policy = Some(PolicyView {
        source: PolicySource { kind: PolicySourceKind::Estate, id: None },
        clamped: vec![],
        pending: None,
        values: [("retention".to_owned(), "7d".into())].into(),
    });
    d.erasure = Some(Erasure {
        done: false,
        since: None,
        deadline: None,
        fragments: 1,
        versions: vec![1],
        unreached: vec![Unreached { what: "version 1".into(), by: "tag x".into(), until: None }],
        not_looked_at: vec!["quarantine".into()],
    });
    d.steps.verify = Some(VerifyStep::new(StepOutcome::Done, None));
    let cleanup: &mut CleanupStep = d.steps.cleanup.as_mut().unwrap();
    cleanup.retained.push(Retained { version: 1, replaced_at: None, by: HoldReason::Tag, until: None, bytes: 0 });
    d.findings.push(Finding::new(FindingKind::OrphanFile, FindingSubject::dataset("/lake/a"), "x"));
    let value = serde_json::to_value(report(ReportKind::Sweep, vec![d])).unwrap();
    compare(&schema, &schema, &value, "report");
}

fn compare(whole: &Value, schema: &Value, value: &Value, at: &str) {
    let schema = resolve(whole, schema);
    match value {
        Value::Object(map) if schema.get("properties").is_some() => {
            let properties = schema["properties"].as_object().unwrap();
            for (key, inner) in map {
                match properties.get(key) {
                    Some(s) => compare(whole, s, inner, &format!("{at}.{key}")),
                    None => assert_ne!(schema["additionalProperties"], Value::Bool(false), "{at}.{key}"),
                }
            }
            for required in names(&schema["required"]) {
                assert!(map.contains_key(&required), "{at} lacks {required}");
            }
        }
        Value::Array(items) => items.iter().for_each(|v| compare(whole, &schema["items"], v, &format!("{at}[]"))),
        _ => {}
    }
}

fn resolve<'a>(whole: &'a Value, schema: &'a Value) -> &'a Value {
    if let Some(reference) = schema["$ref"].as_str() {
        return resolve(whole, whole.pointer(&reference[1..]).unwrap_or_else(|| panic!("no {reference}")));
    }
    // `anyOf: [X, null]`.
    match schema["anyOf"].as_array() {
        Some(any) => resolve(whole, &any[0]),
        None => schema,
    }
}

#[test]
fn the_plan_schema_names_the_fields_of_a_plan() {
    use squire_service::planfile::{PlanFile, PlanKind};
    let schema = schema("squire.plan.v1.json");
    let kinds: BTreeSet<String> = PlanKind::ALL.iter().map(|k| k.as_str().to_owned()).collect();
    assert_eq!(names(&schema["properties"]["kind"]["enum"]), kinds);
    let mut plan = PlanFile::<Value>::new(PlanKind::Maintenance, None, vec![]);
    let value: Value = serde_json::from_str(&plan.seal().unwrap()).unwrap();
    compare(&schema, &schema, &value, "plan");
}

#[test]
fn the_stated_version_of_lance_is_the_one_the_workspace_is_pinned_to() {
    let manifest: toml::Table = std::fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().unwrap();
    let pinned = manifest["workspace"]["dependencies"]["lance"]["version"].as_str().unwrap();
    assert_eq!(pinned, format!("={}", squire_service::LANCE_VERSION));
}
