//! Clean-up of many versions: killed on its way it is gone on with, and nothing is asked for twice.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;

use serde_json::{Value, json};
use squire_lake::oracle::Leftovers;
use squire_test_support::{Action, kind, on_nth_of_kind};

use super::races::{long, versions};
use super::s3_estate::OnS3;

/// Keys below the dataset that were deleted since the rule was set, in order.
fn deleted(estate: &OnS3) -> Vec<String> {
    let keys = estate.proxy.log().into_iter().filter(|r| kind(r).starts_with("DELETE")).flat_map(|r| r.keys);
    keys.filter(|key| key.contains("/orders/")).collect()
}

/// Two chunks; the second is never heard of. Both runs together delete what the plan named, each object once.
#[test]
fn a_clean_up_that_was_killed_goes_on_where_it_was() {
    let Some(estate) = long("a_clean_up_that_was_killed_goes_on_where_it_was") else { return };
    let head = estate.digest("orders", Value::Null);
    let planned = estate.plan(&[]);
    let promised = |key: &str| planned.row("orders")["steps"]["cleanup"][key].as_u64().expect("a number") as usize;
    // The first manifest goes alone, then the rest of its chunk.
    estate.proxy.set(on_nth_of_kind("DELETE _versions", 3, Action::KillBefore));
    let killed = estate.start(&[]).end();
    assert_eq!(killed.status.signal(), Some(9), "{}", killed.stderr);
    estate.proxy.settle();
    assert_eq!(versions(&estate), [101, 102, 103, 104, 105, 106, 107, 108]);
    assert_eq!(estate.digest("orders", Value::Null), head);
    estate.is_explained(Leftovers::None, "between two chunks");
    // The last request was not heard of, and its six manifests are there.
    let mut first = deleted(&estate);
    first.truncate(first.len() - 6);

    estate.proxy.pass();
    let next = estate.sweep();
    assert_eq!(next.code(), Some(0), "{}", next.stderr);
    let cleanup = &next.row("orders")["steps"]["cleanup"];
    assert_eq!((&cleanup["versions_removed"], &cleanup["failed_deletes"]), (&json!(6), &json!(0)), "{cleanup:#}");
    assert_eq!(versions(&estate), [107, 108]);
    let all = [first, deleted(&estate)].concat();
    assert_eq!(all.len(), promised("versions_removed") + promised("files_removed"));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "nothing is deleted twice");
    assert_eq!(estate.digest("orders", Value::Null), head);
    estate.is_explained(Leftovers::None, "in the end");
}
