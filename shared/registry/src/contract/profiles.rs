//! The profiles: starting contracts that an enterprise can adopt, and what they require.

use super::model::{
    Classification, Column, DataType, Document, Metadata, Nullability, Profile, Security, Table, VERSION,
};
use super::rules::{Refusals, Rule};

/// How long rows live in a starting document; to be reviewed before it is published.
const STARTING_RETENTION_DAYS: u32 = 365;

/// The columns that a profile requires, ids from 1 in this order; none for [`Profile::Custom`]. A table may describe them in
/// its own words, classify them higher, and add columns after them.
pub fn standard_columns(profile: Profile) -> Vec<Column> {
    use DataType as T;
    let columns: &[(&str, DataType, &str, &str)] = match profile {
        Profile::Custom => &[],
        Profile::Hr => &[
            ("employee_id", T::String, "employee.id", "Identifies the employee"),
            ("full_name", T::String, "employee.name", "The employee's full name"),
            ("department", T::String, "employee.department", "Where the employee works"),
            ("employment_status", T::String, "employee.status", "Whether and how the person is employed"),
            ("hired_on", T::Date, "employee.hired_on", "The first day of employment"),
        ],
        Profile::Customer => &[
            ("customer_id", T::String, "customer.id", "Identifies the customer"),
            ("full_name", T::String, "customer.name", "The customer's full name"),
            ("email", T::String, "customer.email", "Where the customer is written to"),
            ("created_at", T::Timestamp, "customer.created_at", "When the customer became one"),
        ],
        Profile::Transaction => &[
            ("transaction_id", T::String, "transaction.id", "Identifies the transaction"),
            ("customer_id", T::String, "customer.id", "Whose transaction it is"),
            ("amount", T::Decimal { precision: 18, scale: 2 }, "transaction.amount", "The amount, in `currency`"),
            ("currency", T::String, "transaction.currency", "The currency of the amount, ISO 4217"),
            ("occurred_at", T::Timestamp, "transaction.occurred_at", "When it took place"),
        ],
    };
    (1..)
        .zip(columns)
        .map(|(id, (name, data_type, semantic, description))| Column {
            id,
            name: (*name).to_owned(),
            data_type: *data_type,
            nullability: Nullability::Required,
            semantic: (*semantic).to_owned(),
            description: (*description).to_owned(),
            classification: Classification::Confidential,
        })
        .collect()
}

/// A document with one table per profile, for the purpose `analytics` and 365 days: a start to be reviewed, not a default.
pub fn starting_document(enterprise: &str, owner: &str, steward: &str, policy: &str) -> Document {
    let table = |name: &str, profile, description: &str| Table {
        name: name.to_owned(),
        revision: 1,
        profile,
        metadata: Metadata {
            owner: owner.to_owned(),
            steward: steward.to_owned(),
            description: description.to_owned(),
            retention_days: STARTING_RETENTION_DAYS,
        },
        security: Security {
            policy: policy.to_owned(),
            revision: 1,
            classification: Classification::Confidential,
            purposes: vec!["analytics".to_owned()],
        },
        columns: standard_columns(profile),
        primary_key: vec![1],
    };
    Document {
        version: VERSION.to_owned(),
        enterprise: enterprise.to_owned(),
        tables: vec![
            table("customers", Profile::Customer, "Customers"),
            table("employees", Profile::Hr, "Employees"),
            table("transactions", Profile::Transaction, "Transactions of customers"),
        ],
    }
}

/// Whether a table keeps what its profile requires.
pub(super) fn check(refusals: &mut Refusals, at: &str, table: &Table) {
    let standard = standard_columns(table.profile);
    let Some(key) = standard.first() else { return };
    for wanted in &standard {
        let at = format!("{at}.columns.{}", wanted.name);
        let Some(found) = table.columns.iter().find(|c| c.id == wanted.id) else {
            let profile = table.profile;
            refusals.add(Rule::ProfileStandard, at, format!("profile {profile} requires it with the id {}", wanted.id));
            continue;
        };
        for (differs, what, is) in [
            (found.name != wanted.name, "name", wanted.name.clone()),
            (found.data_type != wanted.data_type, "data_type", wanted.data_type.to_string()),
            (found.semantic != wanted.semantic, "semantic", wanted.semantic.clone()),
            (found.nullability != wanted.nullability, "nullability", wanted.nullability.to_string()),
        ] {
            if differs {
                refusals.add(Rule::ProfileStandard, format!("{at}.{what}"), format!("the standard's is {is}"));
            }
        }
        if found.classification < wanted.classification {
            let found = format!("it is {}", found.classification);
            refusals.add(Rule::ProfileStandard, format!("{at}.classification"), found);
        }
    }
    if table.primary_key != [key.id] {
        refusals.add(Rule::ProfileStandard, format!("{at}.primary_key"), format!("the standard's is [{}]", key.id));
    }
}
