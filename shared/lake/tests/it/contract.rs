//! A contract and the live dataset, on real Lance files.

use chrono::{DateTime, TimeDelta, Utc};
use squire_lake::contract::{Match, Readiness, arrow_schema, matches, rows_older_than};
use squire_lake::look::Look;
use squire_lake::sample::write_contracted;
use squire_registry::contract::{Column, Contracts, DataType, Document, Nullability, Pins, starting_document};

use crate::support::{place, seen};

/// The starting document, with a table of every type.
fn document() -> Document {
    let mut document = starting_document("acme", "platform", "data", "enterprise");
    let mut all = document.tables[0].clone();
    "everything".clone_into(&mut all.name);
    all.profile = squire_registry::contract::Profile::Custom;
    let types = [
        DataType::Boolean,
        DataType::Int32,
        DataType::Int64,
        DataType::Float32,
        DataType::Float64,
        DataType::Decimal { precision: 38, scale: 9 },
        DataType::Date,
        DataType::Timestamp,
        DataType::String,
        DataType::Binary,
    ];
    let one = all.columns[0].clone();
    all.columns = (0u32..)
        .zip(types)
        .map(|(i, data_type)| Column {
            // Sparse ids: they belong to the contract, and Lance's own do not matter.
            id: 3 + 4 * i,
            name: format!("c{i}"),
            data_type,
            nullability: if i == 0 { Nullability::Required } else { Nullability::Optional },
            ..one.clone()
        })
        .collect();
    all.primary_key = vec![3];
    document.tables.push(all);
    document
}

fn contracts() -> Contracts {
    Contracts::new(document()).unwrap()
}

fn moments(days: &[i64]) -> Vec<DateTime<Utc>> {
    days.iter().map(|d| Utc::now() - TimeDelta::days(*d)).collect()
}

fn pins(contracts: &Contracts, table: &str) -> Vec<(String, String)> {
    Pins::of(contracts, table).unwrap().properties().into_iter().collect()
}

fn held(contracts: &Contracts, table: &str, look: &Look) -> Match {
    matches(contracts, table, look).unwrap()
}

#[tokio::test]
async fn every_type_goes_to_lance_and_back_ready() {
    let contracts = contracts();
    for table in ["everything", "customers", "employees", "transactions"] {
        let (_dir, uri) = place();
        let schema = arrow_schema(contracts.table(table).unwrap());
        write_contracted(&uri, &schema, &moments(&[0, 1]), &pins(&contracts, table)).await.unwrap();
        let found = held(&contracts, table, &seen(&uri).await);
        assert_eq!((found.readiness, found.reasons), (Readiness::Ready, vec![]), "{table}");
    }
    let (_dir, uri) = place();
    write_contracted(&uri, &arrow_schema(&contracts.tables()[0]), &moments(&[0]), &[]).await.unwrap();
    assert_eq!(matches(&contracts, "orders", &seen(&uri).await), None);
}

#[tokio::test]
async fn what_can_be_added_is_pending_and_what_contradicts_is_blocked() {
    use arrow_schema::{DataType as A, Field, Schema, TimeUnit};
    let contracts = contracts();
    let table = contracts.table("everything").unwrap();
    let schema = arrow_schema(table);
    let own = pins(&contracts, "everything");
    let with = |i: usize, change: &dyn Fn(Field) -> Field| {
        let fields = schema.fields().iter().enumerate();
        Schema::new(
            fields
                .map(|(j, f)| if i == j { change(f.as_ref().clone()) } else { f.as_ref().clone() })
                .collect::<Vec<_>>(),
        )
    };
    let pinned = |key: &str, to: &str| -> Vec<(String, String)> {
        own.iter().map(|(k, v)| (k.clone(), if k == key { to.to_owned() } else { v.clone() })).collect()
    };
    let first = |n: usize| Schema::new(schema.fields().iter().take(n).cloned().collect::<Vec<_>>());
    let swapped = {
        let mut fields = schema.fields().to_vec();
        fields.swap(1, 2);
        Schema::new(fields)
    };
    let more = {
        let mut fields = schema.fields().to_vec();
        fields.push(Field::new("extra", A::Int32, true).into());
        Schema::new(fields)
    };
    let id = |id: &'static str| move |f: Field| f.with_metadata([("pinax.id".to_owned(), id.to_owned())].into());
    let rows: Vec<(&str, Schema, Vec<(String, String)>, Readiness, &str)> = vec![
        ("no pins", schema.clone(), vec![], Readiness::Pending, "no pins of acme.everything@1"),
        (
            "an older content",
            schema.clone(),
            pinned("pinax.registry_digest", "sha256:0"),
            Readiness::Pending,
            "another registry content",
        ),
        (
            "no ids",
            Schema::new(
                schema
                    .fields()
                    .iter()
                    .map(|f| f.as_ref().clone().with_metadata(Default::default()))
                    .collect::<Vec<_>>(),
            ),
            own.clone(),
            Readiness::Pending,
            "`pinax.id`",
        ),
        ("an optional column to come", first(9), own.clone(), Readiness::Pending, "optional column `c9`"),
        (
            "another contract",
            schema.clone(),
            pinned("pinax.contract", "acme.orders"),
            Readiness::Blocked,
            "pinned to contract acme.orders",
        ),
        ("a later revision", schema.clone(), pinned("pinax.revision", "2"), Readiness::Blocked, "right registry"),
        ("no revision", schema.clone(), pinned("pinax.revision", "one"), Readiness::Blocked, "no revision"),
        ("another id", with(4, &id("20")), own.clone(), Readiness::Blocked, "has the id 20, its contract says 19"),
        (
            "another name",
            with(4, &|f| f.with_name("x")),
            own.clone(),
            Readiness::Blocked,
            "`c4` is expected where `x` is",
        ),
        ("another width", with(1, &|f| f.with_data_type(A::Int64)), own.clone(), Readiness::Blocked, "of type Int64"),
        (
            "another scale",
            with(5, &|f| f.with_data_type(A::Decimal128(38, 8))),
            own.clone(),
            Readiness::Blocked,
            "decimal(38,9)",
        ),
        (
            "no zone",
            with(7, &|f| f.with_data_type(A::Timestamp(TimeUnit::Microsecond, None))),
            own.clone(),
            Readiness::Blocked,
            "Timestamp",
        ),
        ("required", with(4, &|f| f.with_nullable(false)), own.clone(), Readiness::Blocked, "is required"),
        ("optional", with(0, &|f| f.with_nullable(true)), own.clone(), Readiness::Blocked, "is optional"),
        ("another order", swapped, own.clone(), Readiness::Blocked, "is expected where"),
        ("a column more", more, own.clone(), Readiness::Blocked, "`extra` is in no contract"),
    ];
    for (what, schema, properties, readiness, says) in rows {
        let (_dir, uri) = place();
        write_contracted(&uri, &schema, &moments(&[0]), &properties).await.unwrap();
        let found = held(&contracts, "everything", &seen(&uri).await);
        assert_eq!(found.readiness, readiness, "{what}: {:?}", found.reasons);
        assert!(found.reasons[0].contains(says), "{what}: {:?}", found.reasons);
        assert_eq!(found.unbound, properties.is_empty(), "{what}");
    }
    let missing = first(4);
    let (_dir, uri) = place();
    let mut required = document();
    required.tables[3].columns[9].nullability = Nullability::Required;
    let required = Contracts::new(required).unwrap();
    write_contracted(&uri, &missing, &moments(&[0]), &pins(&required, "everything")).await.unwrap();
    let found = held(&required, "everything", &seen(&uri).await);
    assert_eq!(
        (found.readiness, found.reasons[0].as_str()),
        (Readiness::Blocked, "the required column `c9` is missing")
    );
}

#[tokio::test]
async fn a_table_moves_with_its_contract_from_pending_to_ready() {
    let before = contracts();
    let (_dir, uri) = place();
    let schema = arrow_schema(before.table("customers").unwrap());
    write_contracted(&uri, &schema, &moments(&[0]), &pins(&before, "customers")).await.unwrap();
    let mut next = document();
    let mut note = next.tables[0].columns[1].clone();
    (note.id, note.name, note.nullability) = (9, "note".into(), Nullability::Optional);
    next.tables[0].columns.push(note);
    next.tables[0].revision = 2;
    let after = Contracts::new(next).unwrap();
    let found = held(&after, "customers", &seen(&uri).await);
    assert_eq!((found.readiness, found.reasons.len()), (Readiness::Pending, 3), "{:?}", found.reasons);
    let schema = arrow_schema(after.table("customers").unwrap());
    write_contracted(&uri, &schema, &moments(&[0]), &pins(&after, "customers")).await.unwrap();
    assert_eq!(held(&after, "customers", &seen(&uri).await).readiness, Readiness::Ready);
    // A table of another contract only follows the digest.
    assert_eq!(held(&before, "customers", &seen(&uri).await).readiness, Readiness::Blocked);
}

#[tokio::test]
async fn rows_are_counted_by_a_date_or_a_timestamp_and_nothing_else() {
    let contracts = contracts();
    let (_dir, uri) = place();
    let schema = arrow_schema(contracts.table("everything").unwrap());
    write_contracted(&uri, &schema, &moments(&[0, 10, 29, 31, 400]), &[]).await.unwrap();
    let look = seen(&uri).await;
    let older = |days: i64| Utc::now() - TimeDelta::days(days);
    for column in ["c6", "c7"] {
        assert_eq!(rows_older_than(&look, column, older(30)).await.unwrap(), 2, "{column}");
        assert_eq!(rows_older_than(&look, column, older(401)).await.unwrap(), 0, "{column}");
    }
    assert_eq!(rows_older_than(&look, "c8", older(30)).await.unwrap_err().kind(), squire_lake::Kind::Refused);
    assert!(rows_older_than(&look, "absent", older(30)).await.is_err());
}
