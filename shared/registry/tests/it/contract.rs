//! Contracts: one row per rule, the laws of digest and succession, publishing, discovery.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{TimeDelta, Utc};
use proptest::prelude::*;
use serde_json::{Value, json};
use squire_registry::contract::{
    Action, Classification, Contracts, DataType, Document, PAGE, Pins, Principal, Profile, Rule, check_successor,
    discover, standard_columns, starting_document,
};
use squire_registry::{Error, Level, NewTable, PolicySourceKind, Registry, Root, Subject};

use crate::support::{Lake, actor, govern, memory, path};

/// The authoring example of the protocol's description.
const EXAMPLE: &str = r#"{
  "version": "pinax.v1",
  "enterprise": "acme",
  "tables": [{
    "name": "customers",
    "revision": 1,
    "profile": "custom",
    "metadata": {
      "owner": "platform",
      "steward": "data",
      "description": "Customer identifiers",
      "retention_days": 30
    },
    "security": {
      "policy": "enterprise",
      "revision": 1,
      "classification": "internal",
      "purposes": ["analytics"]
    },
    "columns": [{
      "id": 1,
      "name": "customer_id",
      "data_type": {"kind": "string"},
      "nullability": "required",
      "semantic": "customer.id",
      "description": "Customer identifier",
      "classification": "internal"
    }],
    "primary_key": [1]
  }]
}"#;

fn example() -> Value {
    serde_json::from_str(EXAMPLE).unwrap()
}

fn with(change: impl FnOnce(&mut Value)) -> Value {
    let mut value = example();
    change(&mut value);
    value
}

fn set(pointer: &str, to: Value) -> Value {
    with(|v| *v.pointer_mut(pointer).unwrap() = to)
}

fn read(value: &Value) -> Result<Contracts, Vec<Rule>> {
    Contracts::from_json(value.to_string().as_bytes()).map_err(|e| e.rules())
}

fn note(id: u32) -> Value {
    json!({
        "id": id, "name": format!("note{id}"), "data_type": {"kind": "string"}, "nullability": "optional",
        "semantic": "customer.note", "description": "Optional customer note", "classification": "internal",
    })
}

fn append(value: &mut Value, column: Value) {
    value["tables"][0]["columns"].as_array_mut().unwrap().push(column);
}

fn profile(name: &str) -> Value {
    let mut value = serde_json::to_value(starting_document("acme", "platform", "data", "enterprise")).unwrap();
    value["tables"].as_array_mut().unwrap().retain(|t| t["profile"] == name);
    value
}

fn profiled(name: &str, pointer: &str, to: Value) -> Value {
    let mut value = profile(name);
    *value.pointer_mut(pointer).unwrap() = to;
    value
}

#[test]
fn the_example_is_valid_and_has_its_digest() {
    let contracts = Contracts::from_json(EXAMPLE.as_bytes()).unwrap();
    assert_eq!((contracts.enterprise(), contracts.tables().len()), ("acme", 1));
    // SHA-256 of `pinax.v1`, a zero byte and the example without white space, by another program.
    assert_eq!(contracts.digest(), "sha256:764bb47813545a220fc0387fdaf0953ffd32012c23d6999148e05509308a0990");
}

#[test]
fn each_rule_of_a_document_is_refused_by_its_name() {
    let long = "a".repeat(64);
    let rows: Vec<(Rule, &str, Value)> = vec![
        (Rule::WireVersion, "another version", set("/version", json!("pinax.v2"))),
        (Rule::WireVersion, "a version in capitals", set("/version", json!("PINAX.V1"))),
        (Rule::Identifier, "an enterprise in capitals", set("/enterprise", json!("Acme"))),
        (Rule::Identifier, "a table that begins with a digit", set("/tables/0/name", json!("1st"))),
        (Rule::Identifier, "an empty table name", set("/tables/0/name", json!(""))),
        (Rule::Identifier, "64 characters", set("/tables/0/columns/0/name", json!(long))),
        (Rule::Identifier, "a hyphen", set("/tables/0/columns/0/name", json!("customer-id"))),
        (Rule::Identifier, "a letter that is not ASCII", set("/tables/0/columns/0/name", json!("größe"))),
        (Rule::Identifier, "a purpose with a blank", set("/tables/0/security/purposes/0", json!("ad sales"))),
        (
            Rule::TableNamesUnique,
            "a table twice",
            with(|v| {
                let again = v["tables"][0].clone();
                v["tables"].as_array_mut().unwrap().push(again);
            }),
        ),
        (Rule::RevisionPositive, "revision 0", set("/tables/0/revision", json!(0))),
        (Rule::RevisionPositive, "policy revision 0", set("/tables/0/security/revision", json!(0))),
        (Rule::RequiredText, "a blank owner", set("/tables/0/metadata/owner", json!(" \u{a0}"))),
        (Rule::RequiredText, "no steward", set("/tables/0/metadata/steward", json!(""))),
        (Rule::RequiredText, "a control character", set("/tables/0/metadata/description", json!("a\u{7}b"))),
        (Rule::RequiredText, "a line break", set("/tables/0/columns/0/description", json!("a\nb"))),
        (Rule::RequiredText, "4,097 bytes", set("/tables/0/columns/0/semantic", json!("é".repeat(2_048) + "a"))),
        (Rule::RequiredText, "a blank policy", set("/tables/0/security/policy", json!("  "))),
        (Rule::RetentionPositive, "no day", set("/tables/0/metadata/retention_days", json!(0))),
        (Rule::PurposeCount, "no purpose", set("/tables/0/security/purposes", json!([]))),
        (Rule::PurposeCount, "65 purposes", set("/tables/0/security/purposes", names("p", 65))),
        (Rule::PurposesUnique, "a purpose twice", set("/tables/0/security/purposes", json!(["a", "b", "a"]))),
        (
            Rule::ColumnIdsIncrease,
            "id 0",
            with(|v| {
                v["tables"][0]["columns"][0]["id"] = json!(0);
                v["tables"][0]["primary_key"] = json!([0]);
            }),
        ),
        (Rule::ColumnIdsIncrease, "an id twice", with(|v| append(v, json_with(note(2), "id", json!(1))))),
        (
            Rule::ColumnIdsIncrease,
            "ids that fall",
            with(|v| {
                append(v, note(7));
                append(v, note(3));
            }),
        ),
        (
            Rule::ColumnNamesUnique,
            "a column twice",
            with(|v| {
                append(v, json_with(note(2), "name", json!("customer_id")));
            }),
        ),
        (Rule::DecimalRange, "precision 0", decimal(0, 0)),
        (Rule::DecimalRange, "precision 39", decimal(39, 2)),
        (Rule::DecimalRange, "a scale beyond the precision", decimal(10, 11)),
        (Rule::ClassificationFloor, "a public column in an internal table", {
            set("/tables/0/columns/0/classification", json!("public"))
        }),
        (
            Rule::ClassificationFloor,
            "a confidential column in a restricted table",
            with(|v| {
                v["tables"][0]["security"]["classification"] = json!("restricted");
                v["tables"][0]["columns"][0]["classification"] = json!("confidential");
            }),
        ),
        (Rule::PrimaryKey, "no key", set("/tables/0/primary_key", json!([]))),
        (Rule::PrimaryKey, "a key of nothing", set("/tables/0/primary_key", json!([1, 9]))),
        (Rule::PrimaryKey, "a column twice in the key", set("/tables/0/primary_key", json!([1, 1]))),
        (
            Rule::PrimaryKey,
            "an optional key",
            with(|v| {
                append(v, note(2));
                v["tables"][0]["primary_key"] = json!([1, 2]);
            }),
        ),
        (Rule::ProfileStandard, "another name", profiled("customer", "/tables/0/columns/1/name", json!("name"))),
        (Rule::ProfileStandard, "another type", {
            profiled("transaction", "/tables/0/columns/2/data_type", json!({"kind": "float64"}))
        }),
        (Rule::ProfileStandard, "another meaning", profiled("hr", "/tables/0/columns/4/semantic", json!("hr.day"))),
        (Rule::ProfileStandard, "optional", profiled("hr", "/tables/0/columns/2/nullability", json!("optional"))),
        (
            Rule::ProfileStandard,
            "less than confidential",
            with(|v| {
                *v = profile("customer");
                v["tables"][0]["security"]["classification"] = json!("internal");
                v["tables"][0]["columns"][2]["classification"] = json!("internal");
            }),
        ),
        (Rule::ProfileStandard, "another key", profiled("customer", "/tables/0/primary_key", json!([2]))),
        (
            Rule::ProfileStandard,
            "a standard column that is missing",
            with(|v| {
                *v = profile("transaction");
                v["tables"][0]["columns"].as_array_mut().unwrap().remove(3);
            }),
        ),
    ];
    for (rule, what, value) in rows {
        assert_eq!(read(&value), Err(vec![rule]), "{what}");
    }
}

fn names(prefix: &str, n: usize) -> Value {
    (0..n).map(|i| format!("{prefix}{i}")).collect()
}

fn json_with(mut value: Value, key: &str, to: Value) -> Value {
    value[key] = to;
    value
}

fn decimal(precision: u8, scale: u8) -> Value {
    set("/tables/0/columns/0/data_type", json!({"kind": "decimal", "precision": precision, "scale": scale}))
}

#[test]
fn what_a_document_may_not_look_like_is_refused() {
    let shapes = [
        ("an unknown field", with(|v| v["estate"] = json!("x"))),
        ("a misspelled protection", with(|v| v["tables"][0]["security"]["purpose"] = json!(["x"]))),
        ("an unknown field of a column", with(|v| v["tables"][0]["columns"][0]["masked"] = json!(true))),
        ("an unknown field of the metadata", with(|v| v["tables"][0]["metadata"]["retention"] = json!("30d"))),
        ("an unknown field of a type", set("/tables/0/columns/0/data_type", json!({"kind": "string", "length": 5}))),
        ("a precision where none belongs", set("/tables/0/columns/0/data_type", json!({"kind": "string", "scale": 5}))),
        ("a decimal without a scale", set("/tables/0/columns/0/data_type", json!({"kind": "decimal", "precision": 5}))),
        ("a null precision", { set("/tables/0/columns/0/data_type", json!({"kind": "string", "precision": null})) }),
        ("a nested type", set("/tables/0/columns/0/data_type", json!({"kind": "struct"}))),
        ("a type that is a word", set("/tables/0/columns/0/data_type", json!("string"))),
        ("an unknown classification", set("/tables/0/columns/0/classification", json!("secret"))),
        ("an unknown nullability", set("/tables/0/columns/0/nullability", json!("nullable"))),
        ("an unknown profile", set("/tables/0/profile", json!("supplier"))),
        (
            "a missing purpose list",
            with(|v| {
                v["tables"][0]["security"].as_object_mut().unwrap().shift_remove("purposes");
            }),
        ),
        (
            "a missing key",
            with(|v| {
                v["tables"][0].as_object_mut().unwrap().shift_remove("primary_key");
            }),
        ),
        ("a negative revision", set("/tables/0/revision", json!(-1))),
        ("a broken number", set("/tables/0/revision", json!(1.5))),
        ("tables that are no list", set("/tables", json!({}))),
    ];
    for (what, value) in shapes {
        assert_eq!(read(&value), Err(vec![Rule::DocumentShape]), "{what}");
    }
    let twice = EXAMPLE.replace(r#""enterprise": "acme","#, r#""enterprise": "acme", "enterprise": "acme","#);
    for bytes in [twice.as_bytes(), b"", b"[]", b"{\"version\":\"\xff\"}", &EXAMPLE.as_bytes()[..200], &[b'['; 500_000]]
    {
        assert_eq!(Contracts::from_json(bytes).unwrap_err().rules(), [Rule::DocumentShape]);
    }
}

#[test]
fn the_limits_are_where_they_are_said_to_be() {
    let full = |text: &str| text.to_owned() + &" ".repeat((8 << 20) - text.len());
    assert!(Contracts::from_json(full(EXAMPLE).as_bytes()).is_ok());
    let over = full(EXAMPLE) + " ";
    assert_eq!(Contracts::from_json(over.as_bytes()).unwrap_err().rules(), [Rule::DocumentSize]);

    let tables = |n: usize| {
        with(|v| {
            let one = v["tables"][0].clone();
            let all = (0..n).map(|i| json_with(one.clone(), "name", json!(format!("t{i}")))).collect();
            v["tables"] = Value::Array(all);
        })
    };
    assert_eq!(read(&tables(10_000)).unwrap().tables().len(), 10_000);
    assert_eq!(read(&tables(10_001)), Err(vec![Rule::TableCount]));
    assert_eq!(read(&tables(0)).unwrap().tables().len(), 0);

    let columns = |n: u32| {
        with(|v| {
            (2..=n).for_each(|id| append(v, note(id)));
        })
    };
    assert!(read(&columns(1_024)).is_ok());
    assert_eq!(read(&columns(1_025)), Err(vec![Rule::ColumnCount]));
    let none = with(|v| v["tables"][0]["columns"] = json!([]));
    assert_eq!(read(&none), Err(vec![Rule::ColumnCount, Rule::PrimaryKey]));

    assert!(read(&set("/tables/0/security/purposes", names("p", 64))).is_ok());
    assert!(read(&set("/tables/0/metadata/owner", json!("é".repeat(2_048)))).is_ok());
    assert!(read(&set("/tables/0/columns/0/name", json!("a".repeat(63)))).is_ok());
    for (precision, scale) in [(1, 0), (1, 1), (38, 0), (38, 38)] {
        assert!(read(&decimal(precision, scale)).is_ok());
    }
    // A document that breaks a rule everywhere says so a hundred times, and no more.
    let broken = with(|v| {
        (2..=1_000).for_each(|id| append(v, json_with(note(id), "semantic", json!(""))));
    });
    assert_eq!(read(&broken).unwrap_err(), vec![Rule::RequiredText; 100]);
}

#[test]
fn a_refusal_names_the_place_the_rule_and_what_it_says() {
    let refused =
        Contracts::from_json(set("/tables/0/columns/0/classification", json!("public")).to_string().as_bytes())
            .unwrap_err()
            .to_string();
    assert_eq!(
        refused,
        "tables.customers.columns.customer_id.classification: it is public and the table internal (rule \
         classification_floor: a column is at least as sensitive as its table: public < internal < confidential < \
         restricted)"
    );
}

#[test]
fn the_profiles_are_valid_and_may_be_extended() {
    let contracts = Contracts::new(starting_document("acme", "platform", "data", "enterprise")).unwrap();
    let names: Vec<&str> = contracts.tables().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["customers", "employees", "transactions"]);
    for table in contracts.tables() {
        assert_eq!((table.metadata.retention_days, table.primary_key.as_slice()), (365, [1].as_slice()));
    }
    assert_eq!(standard_columns(Profile::Transaction)[2].data_type, DataType::Decimal { precision: 18, scale: 2 });
    assert_eq!(standard_columns(Profile::Custom), []);
    for name in ["hr", "customer", "transaction"] {
        let mut value = profile(name);
        value["tables"][0]["columns"][1]["description"] = json!("In our own words");
        value["tables"][0]["columns"][1]["classification"] = json!("restricted");
        append(&mut value, json_with(note(40), "classification", json!("confidential")));
        assert!(read(&value).is_ok(), "{name}");
    }
}

#[test]
fn what_counts_for_the_digest_and_what_does_not() {
    let digest = |value: &Value| read(value).unwrap().digest().to_owned();
    let two = with(|v| {
        append(v, json_with(note(2), "nullability", json!("required")));
        v["tables"][0]["primary_key"] = json!([1, 2]);
        v["tables"][0]["security"]["purposes"] = json!(["analytics", "billing"]);
        let other = json_with(v["tables"][0].clone(), "name", json!("orders"));
        v["tables"].as_array_mut().unwrap().push(other);
    });
    let base = digest(&two);
    let turned = |pointer: &str| {
        let mut value = two.clone();
        value.pointer_mut(pointer).unwrap().as_array_mut().unwrap().reverse();
        value
    };
    assert_eq!(digest(&turned("/tables")), base, "the order of tables");
    assert_eq!(digest(&turned("/tables/0/security/purposes")), base, "the order of purposes");
    assert_ne!(digest(&turned("/tables/0/primary_key")), base, "the order of the key counts");
    let mut renamed = two.clone();
    renamed["tables"][0]["columns"][1]["name"] = json!("other");
    assert_ne!(digest(&renamed), base);
    let pretty = serde_json::to_string_pretty(&two).unwrap();
    assert_eq!(Contracts::from_json(pretty.as_bytes()).unwrap().digest(), base, "white space");
    // The order of columns is the order of their ids, so columns that change places change their ids.
    let mut swapped = turned("/tables/0/columns");
    swapped["tables"][0]["columns"][0]["id"] = json!(1);
    swapped["tables"][0]["columns"][1]["id"] = json!(2);
    assert_ne!(digest(&swapped), base, "the order of columns counts");
}

#[test]
fn each_rule_of_succession_is_refused_by_its_name() {
    let current = read(&with(|v| {
        append(v, note(5));
        let other = json_with(v["tables"][0].clone(), "name", json!("orders"));
        v["tables"].as_array_mut().unwrap().push(other);
    }))
    .unwrap();
    let next = |change: &dyn Fn(&mut Value)| {
        let mut value = serde_json::to_value(&current).unwrap();
        value["tables"][0]["revision"] = json!(2);
        change(&mut value);
        check_successor(&current, &read(&value).unwrap()).map_err(|e| e.rules())
    };
    let changed = |pointer: &'static str, to: Value| next(&|v| *v.pointer_mut(pointer).unwrap() = to.clone());
    assert_eq!(check_successor(&current, &current), Ok(()));
    assert_eq!(next(&|v| append(v, note(6))), Ok(()), "an optional column with a greater id");
    assert_eq!(
        next(&|v| {
            append(v, json_with(note(6), "nullability", json!("required")));
        }),
        Err(vec![Rule::AppendedOptional])
    );
    assert_eq!(
        next(&|v| v["tables"][0]["columns"].as_array_mut().unwrap().insert(1, note(3))),
        Err(vec![Rule::AppendedOptional]),
        "an id that is new and not greater"
    );
    assert_eq!(next(&|_| ()), Err(vec![Rule::RevisionKept]));
    for revision in [1, 3] {
        assert_eq!(
            next(&|v| {
                append(v, note(6));
                v["tables"][0]["revision"] = json!(revision);
            }),
            Err(vec![Rule::RevisionAdvancesByOne])
        );
    }
    assert_eq!(next(&|v| v["enterprise"] = json!("other")), Err(vec![Rule::EnterpriseKept, Rule::RevisionKept]));
    assert_eq!(
        next(&|v| drop(v["tables"].as_array_mut().unwrap().remove(1))),
        Err(vec![Rule::RevisionKept, Rule::TablesKept])
    );
    let added = |revision: u64| {
        let mut value = serde_json::to_value(&current).unwrap();
        let mut other = json_with(value["tables"][0].clone(), "name", json!("zones"));
        other["revision"] = json!(revision);
        value["tables"].as_array_mut().unwrap().push(other);
        check_successor(&current, &read(&value).unwrap()).map_err(|e| e.rules())
    };
    assert_eq!((added(1), added(2)), (Ok(()), Err(vec![Rule::NewTableAtOne])));
    let existing = [
        ("/tables/0/columns/0/name", json!("id")),
        ("/tables/0/columns/0/data_type", json!({"kind": "int64"})),
        ("/tables/0/columns/1/nullability", json!("required")),
        ("/tables/0/columns/0/semantic", json!("customer.key")),
        ("/tables/0/columns/0/description", json!("Another meaning")),
        ("/tables/0/columns/0/classification", json!("restricted")),
        ("/tables/0/metadata/owner", json!("sales")),
        ("/tables/0/metadata/steward", json!("sales")),
        ("/tables/0/metadata/description", json!("Another meaning")),
        ("/tables/0/metadata/retention_days", json!(31)),
        ("/tables/0/security/policy", json!("other")),
        ("/tables/0/security/revision", json!(2)),
        ("/tables/0/security/classification", json!("public")),
        ("/tables/0/security/purposes", json!(["analytics", "billing"])),
    ];
    for (pointer, to) in existing {
        assert_eq!(changed(pointer, to), Err(vec![Rule::ExistingUnchanged]), "{pointer}");
    }
    assert_eq!(
        next(&|v| drop(v["tables"][0]["columns"].as_array_mut().unwrap().remove(1))),
        Err(vec![Rule::ExistingUnchanged])
    );
    let hr = read(&profile("hr")).unwrap();
    let mut custom = json_with(profile("hr"), "enterprise", json!("acme"));
    custom["tables"][0]["profile"] = json!("custom");
    custom["tables"][0]["revision"] = json!(2);
    custom["tables"][0]["primary_key"] = json!([1, 2]);
    let refused = check_successor(&hr, &read(&custom).unwrap()).unwrap_err();
    let at: Vec<&str> = refused.iter().map(|r| r.at.as_str()).collect();
    assert_eq!(at, ["tables.employees.profile", "tables.employees.primary_key"]);
}

#[test]
fn pins_name_contract_revision_and_content() {
    let contracts = read(&example()).unwrap();
    let pins = Pins::of(&contracts, "customers").unwrap().properties();
    assert_eq!(
        pins,
        BTreeMap::from([
            ("pinax.contract".to_owned(), "acme.customers".to_owned()),
            ("pinax.registry_digest".to_owned(), contracts.digest().to_owned()),
            ("pinax.revision".to_owned(), "1".to_owned()),
        ])
    );
    assert_eq!(Pins::of(&contracts, "orders"), None);
}

fn for_purpose(purpose: &str) -> Principal {
    Principal { purposes: BTreeSet::from([purpose.to_owned()]), ..Principal::default() }
}

/// `customers` with an email above the table's classification, and `salaries` for another purpose.
fn estate() -> Contracts {
    read(&with(|v| {
        let email = json_with(json_with(note(2), "name", json!("email")), "classification", json!("restricted"));
        append(v, email);
        append(v, note(3));
        let mut other = json_with(v["tables"][0].clone(), "name", json!("salaries"));
        other["security"]["purposes"] = json!(["payroll"]);
        v["tables"].as_array_mut().unwrap().push(other);
    }))
    .unwrap()
}

#[test]
fn discovery_shows_what_the_purpose_may_see_and_nothing_of_the_rest() {
    let contracts = estate();
    let page = discover(&contracts, &for_purpose("analytics"), None).unwrap();
    let columns: Vec<&str> = page.tables[0].columns.iter().map(|c| c.name.as_str()).collect();
    assert_eq!((page.tables.len(), page.tables[0].name.as_str(), page.next.as_deref()), (1, "customers", None));
    assert_eq!(columns, ["customer_id", "note3"]);
    let text = serde_json::to_string(&page).unwrap();
    for hidden in [
        "email",
        "salaries",
        "payroll",
        "primary_key",
        "security",
        "purposes",
        "classification",
        "restricted",
        "\"id\"",
    ] {
        assert!(!text.contains(hidden), "{hidden}: {text}");
    }
    let cleared = Principal { clearance: Some(Classification::Restricted), ..for_purpose("analytics") };
    assert_eq!(discover(&contracts, &cleared, None).unwrap().tables[0].columns.len(), 3);
    let low = Principal { clearance: Some(Classification::Public), ..for_purpose("analytics") };
    assert_eq!(discover(&contracts, &low, None).unwrap().tables, []);
    assert_eq!(discover(&contracts, &Principal::default(), None).unwrap().tables, []);
    assert_eq!(discover(&contracts, &for_purpose("Analytics"), None).unwrap_err().rules(), [Rule::Identifier]);
    let bound = |revision| Principal { policy: Some(("enterprise".into(), revision)), ..for_purpose("payroll") };
    assert_eq!(discover(&contracts, &bound(1), None).unwrap().tables.len(), 1);
    let refused = discover(&contracts, &bound(2), None).unwrap_err();
    assert_eq!(refused.rules(), [Rule::PolicyBinding]);
    assert!(!refused.to_string().contains("customers"), "{refused}");
}

#[test]
fn pages_are_bounded_and_a_cursor_is_bound_to_the_content() {
    let many = |n: usize| {
        read(&with(|v| {
            let one = v["tables"][0].clone();
            v["tables"] = (0..n)
                .map(|i| {
                    let mut table = json_with(one.clone(), "name", json!(format!("t{i:04}")));
                    // The second page shows nothing and still goes on.
                    let purpose = if (PAGE..2 * PAGE).contains(&i) { "payroll" } else { "analytics" };
                    table["security"]["purposes"] = json!([purpose]);
                    table
                })
                .collect();
        }))
        .unwrap()
    };
    let contracts = many(250);
    let principal = for_purpose("analytics");
    let (mut cursor, mut counts) = (None, Vec::new());
    loop {
        let page = discover(&contracts, &principal, cursor.as_deref()).unwrap();
        counts.push(page.tables.len());
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(counts, [100, 0, 50]);
    let cursor = discover(&contracts, &principal, None).unwrap().next.unwrap();
    assert!(!cursor.contains("t0"), "a cursor names no table: {cursor}");
    let digest = contracts.digest();
    for (what, contracts, cursor) in [
        ("another content", &many(251), cursor.clone()),
        ("past the end", &contracts, format!("{digest}/250")),
        ("the beginning", &contracts, format!("{digest}/0")),
        ("no number", &contracts, format!("{digest}/-1")),
        ("nothing", &contracts, String::new()),
    ] {
        assert_eq!(discover(contracts, &principal, Some(&cursor)).unwrap_err().rules(), [Rule::Cursor], "{what}");
    }
}

fn none() -> BTreeMap<String, String> {
    BTreeMap::new()
}

fn advanced() -> Contracts {
    read(&with(|v| {
        append(v, note(2));
        v["tables"][0]["revision"] = json!(2);
    }))
    .unwrap()
}

#[tokio::test]
async fn publishing_is_conditional_on_the_previous_digest() {
    let (_, root) = memory();
    let registry = Registry::init_at(root, "test", actor()).await.unwrap();
    let (first, second) = (read(&example()).unwrap(), advanced());
    let rule = |e: Error, rule: &str| assert!(matches!(&e, Error::Refused(t) if t.contains(rule)), "{e}");
    rule(registry.contract_publish(&first, Some("sha256:0"), &none(), None).await.unwrap_err(), "previous_digest");
    let done = registry.contract_publish(&first, None, &none(), Some("ticket 7")).await.unwrap();
    assert_eq!((done.previous, done.tables[0].action, done.tables[0].registered), (None, Action::New, false));
    // A lost answer: the same again does nothing.
    assert!(registry.contract_publish(&first, None, &none(), None).await.unwrap().is_empty());
    for previous in [None, Some("sha256:0"), Some(second.digest())] {
        let refused = registry.contract_publish(&second, previous, &none(), None).await.unwrap_err();
        rule(refused, "previous_digest");
    }
    let snapshot = registry.snapshot().await.unwrap();
    let since = snapshot.contract("acme").unwrap().fields.since.clone();
    let plan = snapshot.contract_plan(&second).unwrap();
    assert_eq!((plan.previous.as_deref(), plan.tables[0].action), (Some(first.digest()), Action::Advance));
    assert_eq!(plan.tables[0].appended, ["note2"]);
    let done = registry.contract_publish(&second, Some(first.digest()), &none(), None).await.unwrap();
    assert_eq!(done, plan);
    // Back to the first is no successor, however well the digest is named.
    let refused = registry.contract_publish(&first, Some(second.digest()), &none(), None).await.unwrap_err();
    rule(refused, "revision_advances_by_one");
    let snapshot = registry.snapshot().await.unwrap();
    let record = snapshot.contract("acme").unwrap();
    assert_eq!((&record.fields.contracts, record.meta.generation), (&second, 2));
    // Its ceiling has counted since the first publication, and does not begin to wait anew.
    assert_eq!(record.fields.since, since);
}

#[tokio::test]
async fn of_two_publications_against_one_predecessor_one_lands() {
    let (_, root) = memory();
    let registry = Registry::init_at(root.clone(), "test", actor()).await.unwrap();
    let first = read(&example()).unwrap();
    registry.contract_publish(&first, None, &none(), None).await.unwrap();
    let next: Vec<Contracts> = (2..18)
        .map(|id| {
            read(&with(|v| {
                append(v, note(id));
                v["tables"][0]["revision"] = json!(2);
            }))
            .unwrap()
        })
        .collect();
    let publish = |contracts: Contracts, root: Root| {
        let previous = first.digest().to_owned();
        async move {
            let registry = Registry::open_at(root, actor()).await.unwrap();
            registry.contract_publish(&contracts, Some(&previous), &none(), None).await
        }
    };
    let all = futures::future::join_all(next.iter().map(|c| publish(c.clone(), root.clone()))).await;
    let won: Vec<_> = all.iter().zip(&next).filter(|(done, _)| done.is_ok()).map(|(_, c)| c.digest()).collect();
    assert_eq!(won.len(), 1);
    let snapshot = registry.snapshot().await.unwrap();
    assert_eq!(snapshot.contract("acme").unwrap().fields.contracts.digest(), won[0]);
}

#[tokio::test]
async fn a_damaged_contract_is_unreadable_and_whatever_destroys_refuses() {
    let lake = Lake::new().await;
    let uri = lake.table("sales/orders").await;
    lake.registry.contract_publish(&read(&example()).unwrap(), None, &none(), None).await.unwrap();
    assert_eq!(lake.govern(&uri).await.unreadable, []);
    let file = lake.generations("contracts", "acme").pop().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    for (from, to) in [("\"retention_days\": 30", "\"retention_days\": 31"), ("\"internal\"", "\"secret\"")] {
        std::fs::write(&file, text.replace(from, to)).unwrap();
        let again = Registry::open_at(Root::open(lake.registry.uri(), &crate::support::none()).unwrap(), actor());
        let snapshot = again.await.unwrap().snapshot().await.unwrap();
        assert!(snapshot.contract("acme").is_none());
        assert_eq!(govern(&snapshot, &uri, Utc::now()).unreadable.len(), 1, "{to}");
    }
}

#[tokio::test]
async fn retention_days_are_a_ceiling_and_never_a_reason_to_keep_more() {
    let lake = Lake::new().await;
    lake.registry.namespace_create(&path("acme"), Some("w"), None).await.unwrap();
    let (uri, other) = (lake.table("acme/customers").await, lake.bytes("other.lance"));
    let elsewhere = NewTable {
        path: path("sales/customers"),
        location: "other.lance".into(),
        tier: None,
        labels: vec![],
        declare: false,
    };
    lake.registry.table_create(elsewhere, &crate::support::none(), None).await.unwrap();
    let days = |n: u64| std::time::Duration::from_secs(n * 86_400);
    let publish = |retention: u32| read(&set("/tables/0/metadata/retention_days", json!(retention))).unwrap();
    lake.registry.contract_publish(&publish(3), None, &none(), None).await.unwrap();
    let snapshot = lake.registry.snapshot().await.unwrap();
    // What lets versions go sooner waits for a day, as in a policy.
    let now = govern(&snapshot, &uri, Utc::now()).policy;
    assert_eq!((now.policy.retention, now.source.kind), (days(7), PolicySourceKind::Estate));
    assert_eq!(now.pending.unwrap().changes, ["retention: 7d -> 3d (contract acme.customers)"]);
    let later = govern(&snapshot, &uri, Utc::now() + TimeDelta::hours(25)).policy;
    assert_eq!((later.policy.retention, later.policy.retain_versions, later.pending), (days(3), 3, None));
    assert_eq!((later.source.kind, later.source.id.as_str()), (PolicySourceKind::Contract, "acme.customers"));
    assert!(later.clamped[0].contains("every other key is of estate"), "{:?}", later.clamped);
    let subject = Subject::Table(path("acme/customers"));
    let shown =
        snapshot.effective(&subject, &Default::default(), &Default::default(), Utc::now() + TimeDelta::hours(25));
    assert_eq!(shown.policy.retention, days(3));
    // The table's own wish to keep longer does not break the ceiling.
    let own = BTreeMap::from([("squire.retention".to_owned(), "90d".to_owned())]);
    let at = Utc::now() + TimeDelta::hours(25);
    let wished = snapshot.govern(&uri, &Default::default(), &Default::default(), &own, at).policy;
    assert_eq!(wished.policy.retention, days(3));
    // A hold still holds.
    lake.registry.protect(&subject, Level::KeepHistory, None).await.unwrap();
    assert!(govern(&lake.registry.snapshot().await.unwrap(), &uri, at).held_by().is_some());
    // Another namespace's table of the same name is none of it.
    let later = govern(&snapshot, &other, at).policy;
    assert_eq!((later.policy.retention, later.source.kind), (days(7), PolicySourceKind::Estate));

    let lake = Lake::new().await;
    lake.registry.namespace_create(&path("acme"), Some("w"), None).await.unwrap();
    let uri = lake.table("acme/customers").await;
    lake.registry.contract_publish(&publish(3_650), None, &none(), None).await.unwrap();
    let long = govern(&lake.registry.snapshot().await.unwrap(), &uri, at).policy;
    assert_eq!((long.policy.retention, long.source.kind), (days(7), PolicySourceKind::Estate));
}

#[tokio::test]
async fn the_column_that_tells_a_rows_age_is_a_time_of_the_contract() {
    let (_, root) = memory();
    let registry = Registry::init_at(root, "test", actor()).await.unwrap();
    let contracts = Contracts::new(starting_document("acme", "platform", "data", "enterprise")).unwrap();
    let named = |table: &str, column: &str| BTreeMap::from([(table.to_owned(), column.to_owned())]);
    for (table, column) in [("orders", "at"), ("customers", "at"), ("customers", "email")] {
        let refused = registry.contract_publish(&contracts, None, &named(table, column), None).await.unwrap_err();
        assert!(refused.to_string().contains("retention_column"), "{refused}");
    }
    registry.contract_publish(&contracts, None, &named("customers", "created_at"), None).await.unwrap();
    let digest = contracts.digest().to_owned();
    registry.contract_publish(&contracts, Some(&digest), &named("employees", "hired_on"), None).await.unwrap();
    let snapshot = registry.snapshot().await.unwrap();
    let columns = &snapshot.contract("acme").unwrap().fields.retention_columns;
    assert_eq!(
        columns.iter().map(|(t, c)| format!("{t}={c}")).collect::<Vec<_>>(),
        ["customers=created_at", "employees=hired_on"]
    );
}

prop_compose! {
    fn document()(
        tables in prop::collection::btree_map("[a-z][a-z0-9_]{0,5}", (1u64..4, 1usize..5, prop::collection::btree_set("[a-z]{1,4}", 1..4)), 0..5),
    ) -> Document {
        let mut value = example();
        let one = value["tables"][0].clone();
        value["tables"] = tables.into_iter().map(|(name, (revision, columns, purposes))| {
            let mut table = json_with(one.clone(), "name", json!(name));
            table["revision"] = json!(revision);
            table["security"]["purposes"] = json!(purposes);
            for id in 2..=columns {
                table["columns"].as_array_mut().unwrap().push(note(u32::try_from(id).unwrap() * 3));
            }
            table
        }).collect();
        serde_json::from_value(value).unwrap()
    }
}

/// The same JSON with the keys of every object turned around.
fn turned(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().map(|(k, v)| (k.clone(), turned(v))).collect();
            entries.reverse();
            Value::Object(entries.into_iter().collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(turned).collect()),
        other => other.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_digest_knows_content_only(document in document(), seed: u64) {
        let base = Contracts::new(document.clone()).unwrap();
        let mut shuffled = document.clone();
        let n = shuffled.tables.len().max(1);
        shuffled.tables.rotate_left(usize::try_from(seed).unwrap_or(0) % n);
        shuffled.tables.iter_mut().for_each(|t| t.security.purposes.reverse());
        let text = serde_json::to_string_pretty(&turned(&serde_json::to_value(&shuffled).unwrap())).unwrap();
        let again = Contracts::from_json(text.as_bytes()).unwrap();
        prop_assert_eq!(again.digest(), base.digest());
        prop_assert_eq!(&again, &base);
        // And it is a fixed point of writing and reading.
        let normal = serde_json::to_vec(base.document()).unwrap();
        let read = Contracts::from_json(&normal).unwrap();
        prop_assert_eq!(read.digest(), base.digest());
        if let Some(table) = shuffled.tables.first_mut() {
            table.metadata.retention_days += 1;
            let changed = Contracts::new(shuffled).unwrap();
            prop_assert_ne!(changed.digest(), base.digest());
        }
    }

    #[test]
    fn succession_is_reflexive_and_appends_only(document in document(), at: prop::sample::Index, by in 1u32..5) {
        let base = Contracts::new(document.clone()).unwrap();
        prop_assert_eq!(check_successor(&base, &base), Ok(()));
        prop_assume!(!document.tables.is_empty());
        let mut next = base.document().clone();
        let table = at.index(next.tables.len());
        let last = next.tables[table].columns.last().unwrap().id;
        next.tables[table].columns.push(serde_json::from_value(note(last + by)).unwrap());
        next.tables[table].revision += 1;
        let appended = Contracts::new(next.clone()).unwrap();
        prop_assert_eq!(check_successor(&base, &appended), Ok(()));
        // What follows never goes back, and two steps are not one.
        prop_assert!(check_successor(&appended, &base).is_err());
        next.tables[table].columns.push(serde_json::from_value(note(last + by + 1)).unwrap());
        next.tables[table].revision += 1;
        let twice = Contracts::new(next).unwrap();
        prop_assert_eq!(check_successor(&appended, &twice), Ok(()));
        prop_assert_eq!(check_successor(&base, &twice).unwrap_err().rules(), vec![Rule::RevisionAdvancesByOne]);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), cut: prop::sample::Index) {
        let _ = Contracts::from_json(&bytes);
        let mut broken = EXAMPLE.as_bytes().to_vec();
        let at = cut.index(broken.len());
        let end = (at + 1).min(broken.len());
        drop(broken.splice(at..end, bytes.into_iter().take(4)));
        if let Ok(contracts) = Contracts::from_json(&broken) {
            let _ = discover(&contracts, &for_purpose("analytics"), None);
        }
    }
}
