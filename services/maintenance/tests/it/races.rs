//! What arrives while a pass runs is honoured: the process is held at a request, and somebody else works on the real server.
//!
//! Three moments: between plan and apply, between the execution of a compaction and its commit, and in the middle of clean-up. A
//! clone of a version that is already past its retention is not here: it is a race of seconds, and retention is the guard (design,
//! invariant 7).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use squire_lake::oracle::Leftovers;
use squire_test_support::{Action, Objects, Request, Server, kind};

use super::s3_estate::*;

/// A moment of the pass: holds the requests that it returns true for.
type Moment = fn() -> Box<dyn FnMut(&Request) -> bool + Send>;

/// The run's record is the first write of apply.
fn before_apply() -> Box<dyn FnMut(&Request) -> bool + Send> {
    Box::new(|r| kind(r) == "PUT runs")
}

/// The data file is the last that execution writes; the commit comes next.
fn before_commit() -> Box<dyn FnMut(&Request) -> bool + Send> {
    Box::new(|r| kind(r) == "PUT data")
}

/// The manifests of a chunk are gone, its first file is about to go.
fn before_a_file_goes() -> Box<dyn FnMut(&Request) -> bool + Send> {
    let mut manifests = false;
    Box::new(move |r| {
        manifests |= kind(r) == "DELETE _versions";
        manifests && kind(r).starts_with("DELETE") && kind(r) != "DELETE _versions"
    })
}

/// The files of the first chunk are gone, and the next chunk is being considered.
fn between_chunks() -> Box<dyn FnMut(&Request) -> bool + Send> {
    let mut files = false;
    Box::new(move |r| {
        files |= kind(r).starts_with("DELETE") && kind(r) != "DELETE _versions" && !kind(r).contains("probe");
        files && !r.is_write()
    })
}

/// An estate of one dataset, `orders`, registered as `table/ns/orders`, with five versions.
fn short(test: &str) -> Option<OnS3> {
    static PRISTINE: OnceLock<Pristine> = OnceLock::new();
    let server = Server::shared(test)?;
    let estate = OnS3::copy(server, PRISTINE.get_or_init(|| Pristine::one(server)));
    estate.govern("orders");
    std::thread::sleep(AGE);
    Some(estate)
}

/// The same with 108 versions, which are two chunks; the data files of version 105 are HEAD's no more.
pub fn long(test: &str) -> Option<OnS3> {
    static PRISTINE: OnceLock<Arc<Pristine>> = OnceLock::new();
    let server = Server::shared(test)?;
    let write = |root: &str| {
        let orders = format!("{root}/orders");
        server.pylance("write", &orders, json!({"appends": 3}));
        server.pylance("config", &orders, json!({"times": 100}));
        server.pylance("write", &orders, json!({"appends": 2, "start": 90}));
        server.pylance("write", &orders, json!({"overwrite": true, "start": 500}));
        server.pylance("config", &orders, json!({"times": 2}));
    };
    let pristine = PRISTINE.get_or_init(|| Arc::new(Pristine::made(server, write, &["orders"])));
    let estate = OnS3::copy(server, pristine);
    estate.govern("orders");
    std::thread::sleep(AGE);
    Some(estate)
}

pub fn versions(estate: &OnS3) -> Vec<u64> {
    let found = estate.server.pylance("versions", &estate.uri("orders"), Value::Null);
    found["versions"].as_array().expect("versions").iter().filter_map(Value::as_u64).collect()
}

/// Tag, branch and clone arrive together; what they name answers as before, now and after another sweep.
#[track_caller]
fn refs_are_honoured(estate: &OnS3, moment: Moment, clone: bool) {
    let uri = estate.uri("orders");
    let [one, two] = [1, 2].map(|v| estate.digest("orders", json!({"version": v})));
    let head = estate.digest("orders", Value::Null);
    let swept = estate.meanwhile(moment(), |estate, _| {
        estate.server.pylance("tag", &uri, json!({"name": "kept", "version": 1}));
        estate.server.pylance("branch", &uri, json!({"name": "side", "version": 2}));
        if clone {
            let version = estate.read("orders")["version"].clone();
            estate.server.pylance("clone", &uri, json!({"to": estate.uri("twin"), "version": version}));
        }
    });
    assert_eq!(swept.code(), Some(0), "{}\n{:#}", swept.stderr, swept.report);
    for when in ["after the race", "after the next sweep"] {
        assert_eq!(estate.digest("orders", Value::Null), head, "{when}");
        assert_eq!(estate.digest("orders", json!({"tag": "kept"})), one, "{when}");
        assert_eq!(estate.digest("orders", json!({"branch": "side"})), two, "{when}");
        if clone {
            assert_eq!(estate.digest("twin", Value::Null), head, "{when}");
        }
        estate.is_explained(Leftovers::None, when);
        estate.proxy.pass();
        let next = estate.sweep();
        assert_eq!(next.code(), Some(0), "{}", next.stderr);
    }
}

/// A restore arrives; HEAD is what it restored.
#[track_caller]
fn a_restore_is_honoured(estate: &OnS3, moment: Moment, version: u64) {
    let wanted = estate.digest("orders", json!({"version": version}));
    let swept = estate.meanwhile(moment(), |estate, _| {
        estate.server.pylance("restore", &estate.uri("orders"), json!({"version": version}));
    });
    assert_eq!(swept.code(), Some(0), "{}\n{:#}", swept.stderr, swept.report);
    for when in ["after the race", "after the next sweep"] {
        assert_eq!(estate.digest("orders", Value::Null), wanted, "{when}");
        estate.is_explained(Leftovers::None, when);
        estate.proxy.pass();
        let next = estate.sweep();
        assert_eq!(next.code(), Some(0), "{}", next.stderr);
    }
}

/// A freeze or a drop arrives: from then on no file of the dataset comes or goes.
#[track_caller]
fn nothing_more_is_written(estate: &OnS3, moment: Moment, record: &[&str]) {
    let mut then = BTreeSet::new();
    let swept = estate.meanwhile(moment(), |estate, _| {
        estate.registry(record);
        then = estate.files("orders").into_iter().collect();
    });
    assert!(matches!(swept.code(), Some(0)), "{record:?}: {}\n{:#}", swept.stderr, swept.report);
    let now: BTreeSet<String> = estate.files("orders").into_iter().collect();
    let changed: Vec<&String> = now.symmetric_difference(&then).collect();
    assert!(changed.is_empty(), "{record:?}: {changed:?} {}", swept.stderr);
    estate.is_explained(Leftovers::None, &format!("{record:?}"));
}

const FREEZE: [&str; 4] = ["protection", "set", "table/ns/orders", "freeze"];
const HOLD: [&str; 4] = ["protection", "set", "table/ns/orders", "keep-history"];
const DROP: [&str; 3] = ["table", "drop", "table/ns/orders"];

/// A hold arrives: every version of then stays.
#[track_caller]
fn a_hold_is_honoured(estate: &OnS3, moment: Moment) {
    let mut then = Vec::new();
    let swept = estate.meanwhile(moment(), |estate, _| {
        estate.registry(&HOLD);
        then = versions(estate);
    });
    assert_eq!(swept.code(), Some(0), "{}\n{:#}", swept.stderr, swept.report);
    let now = versions(estate);
    assert!(then.iter().all(|v| now.contains(v)), "{then:?} became {now:?}");
    estate.digest("orders", json!({"version": then[0]}));
}

/// A reader's block arrives: its version stays and reads.
#[track_caller]
fn a_readers_block_is_honoured(estate: &OnS3, moment: Moment, version: u64) {
    let wanted = estate.digest("orders", json!({"version": version}));
    let text = version.to_string();
    let swept = estate.meanwhile(moment(), |estate, _| {
        estate.registry(&["block", "add", "table/ns/orders", "--reason", "a training run", "--version", &text]);
    });
    assert_eq!(swept.code(), Some(0), "{}\n{:#}", swept.stderr, swept.report);
    assert_eq!(estate.digest("orders", json!({"version": version})), wanted);
    estate.is_explained(Leftovers::None, "after the block");
}

#[test]
fn a_tag_a_branch_and_a_clone_between_plan_and_apply_are_honoured() {
    let Some(estate) = short("a_tag_a_branch_and_a_clone_between_plan_and_apply_are_honoured") else { return };
    refs_are_honoured(&estate, before_apply, true);
}

#[test]
fn a_tag_a_branch_and_a_clone_between_execute_and_commit_are_honoured() {
    let Some(estate) = short("a_tag_a_branch_and_a_clone_between_execute_and_commit_are_honoured") else { return };
    refs_are_honoured(&estate, before_commit, true);
}

#[test]
fn a_restore_before_apply_or_commit_is_honoured() {
    for moment in [before_apply as Moment, before_commit] {
        let Some(estate) = short("a_restore_before_apply_or_commit_is_honoured") else { return };
        a_restore_is_honoured(&estate, moment, 2);
    }
}

#[test]
fn a_freeze_or_drop_before_apply_or_commit_ends_all_writing() {
    for moment in [before_apply as Moment, before_commit] {
        for record in [FREEZE.as_slice(), &DROP] {
            let Some(estate) = short("a_freeze_or_drop_before_apply_or_commit_ends_all_writing") else { return };
            nothing_more_is_written(&estate, moment, record);
        }
    }
}

/// The indices are remapped between the two, which takes long where they are large.
#[test]
fn a_freeze_between_a_reservation_and_its_rewrite_ends_all_writing() {
    let Some(estate) = short("a_freeze_between_a_reservation_and_its_rewrite_ends_all_writing") else { return };
    let before = estate.read("orders");
    let swept = estate.meanwhile(super::lost_commits::manifest_after_data(1), |estate, _| estate.registry(&FREEZE));
    assert_eq!(swept.code(), Some(0), "{}\n{:#}", swept.stderr, swept.report);
    let after = estate.read("orders");
    assert_eq!((&after["rows"], &after["fragments"]), (&before["rows"], &before["fragments"]), "{after}");
    assert_eq!(swept.report["totals"]["stranded_bytes"], 0, "{:#}", swept.report);
    estate.is_explained(Leftovers::None, "a freeze after the reservation");
}

#[test]
fn a_hold_or_block_before_apply_or_commit_keeps_its_versions() {
    for moment in [before_apply as Moment, before_commit] {
        let name = "a_hold_or_block_before_apply_or_commit_keeps_its_versions";
        let Some(estate) = short(name) else { return };
        a_hold_is_honoured(&estate, moment);
        let Some(estate) = short(name) else { return };
        a_readers_block_is_honoured(&estate, moment, 2);
    }
}

/// The manifest of the named version is about to go when it is named: it comes back, and nothing more goes.
#[test]
fn a_version_that_is_named_while_its_manifest_goes_comes_back() {
    for op in ["tag", "branch", "restore"] {
        let Some(estate) = long("a_version_that_is_named_while_its_manifest_goes_comes_back") else { return };
        let wanted = estate.digest("orders", json!({"version": 3}));
        // Version 3's own: others of the chunk go while it is held.
        let manifest = format!("_versions/{:020}.manifest", u64::MAX - 3);
        let moment = move |r: &Request| kind(r) == "DELETE _versions" && r.keys.iter().any(|k| k.ends_with(&manifest));
        let swept = estate.meanwhile(moment, |estate, _| {
            estate.server.pylance(
                op,
                &estate.uri("orders"),
                match op {
                    "restore" => json!({"version": 3}),
                    _ => json!({"name": "kept", "version": 3}),
                },
            );
        });
        assert_eq!(swept.code(), Some(0), "{op}: {}\n{:#}", swept.stderr, swept.report);
        let cleanup = &swept.row("orders")["steps"]["cleanup"];
        assert_eq!(cleanup["versions_removed"], 0, "{op}: {cleanup:#}");
        let named = match op {
            "tag" => json!({"tag": "kept"}),
            "branch" => json!({"branch": "kept"}),
            _ => Value::Null,
        };
        for when in ["after the race", "after the next sweep"] {
            assert_eq!(estate.digest("orders", named.clone()), wanted, "{op} {when}");
            estate.is_explained(Leftovers::None, &format!("{op} {when}"));
            estate.proxy.pass();
            assert_eq!(estate.sweep().code(), Some(0));
        }
    }
}

#[test]
fn what_names_a_version_between_two_chunks_is_honoured() {
    let name = "what_names_a_version_between_two_chunks_is_honoured";
    for op in ["tag", "branch", "restore"] {
        let Some(estate) = long(name) else { return };
        let wanted = estate.digest("orders", json!({"version": 105}));
        let swept = estate.meanwhile(between_chunks(), |estate, _| {
            estate.server.pylance(
                op,
                &estate.uri("orders"),
                match op {
                    "restore" => json!({"version": 105}),
                    _ => json!({"name": "kept", "version": 105}),
                },
            );
        });
        assert_eq!(swept.row("orders")["steps"]["cleanup"]["versions_removed"], 100, "{op}: {:#}", swept.report);
        let writes = estate.proxy.writes();
        let deletes = writes.iter().filter(|w| kind(w) == "DELETE _versions");
        let deleted: usize = deletes.map(|w| w.keys.len()).sum();
        assert_eq!(deleted, 100, "{op}: the next chunk was begun, and put back");
        let named = match op {
            "tag" => json!({"tag": "kept"}),
            "branch" => json!({"branch": "kept"}),
            _ => Value::Null,
        };
        assert_eq!(estate.digest("orders", named), wanted, "{op}");
        estate.is_explained(Leftovers::None, op);
    }
}

#[test]
fn what_is_filed_between_two_chunks_is_honoured() {
    let name = "what_is_filed_between_two_chunks_is_honoured";
    for record in [FREEZE.as_slice(), &DROP] {
        let Some(estate) = long(name) else { return };
        nothing_more_is_written(&estate, between_chunks, record);
    }
    let Some(estate) = long(name) else { return };
    a_hold_is_honoured(&estate, between_chunks);
    let Some(estate) = long(name) else { return };
    a_readers_block_is_honoured(&estate, between_chunks, 104);
}

/// Between the manifests and the files of a chunk nothing can name its versions any more. A freeze does not leave half a chunk: its
/// files, which nobody can name, go, and the next chunk is not begun.
#[test]
fn a_freeze_between_manifests_and_files_ends_with_the_chunk() {
    let Some(estate) = long("a_freeze_between_manifests_and_files_ends_with_the_chunk") else { return };
    let swept = estate.meanwhile(before_a_file_goes(), |estate, _| {
        let gone = estate.server.try_pylance("tag", &estate.uri("orders"), json!({"name": "late", "version": 3}));
        assert!(!gone["error"].is_null(), "version 3 is gone: {gone}");
        estate.registry(&FREEZE);
    });
    let cleanup = &swept.row("orders")["steps"]["cleanup"];
    assert_eq!(cleanup["versions_removed"], 100, "{cleanup:#}");
    assert_eq!(versions(&estate), [101, 102, 103, 104, 105, 106, 107, 108]);
    estate.digest("orders", json!({"version": 105}));
    estate.is_explained(Leftovers::None, "a freeze between manifests and files");
}

/// The registry is deleted under the running sweep: from then on no file of the dataset goes, nor in the next sweep, and both say
/// so. With the registry back the next one does the rest.
#[track_caller]
fn nothing_goes_without_the_registry(estate: &OnS3, moment: Moment, removed: usize) {
    let registry = format!("{}/_squire", estate.prefix);
    let (mut then, mut kept) = (BTreeSet::new(), BTreeMap::new());
    let delete = |estate: &OnS3| {
        for name in estate.bucket.list(&registry) {
            estate.bucket.delete(&format!("{registry}/{name}"));
        }
    };
    let swept = estate.meanwhile(moment(), |estate, _| {
        kept = estate.bucket.read(&registry);
        delete(estate);
        then = estate.files("orders").into_iter().collect();
    });
    let gone = |when: &str, said: &str| {
        let now: BTreeSet<String> = estate.files("orders").into_iter().collect();
        let gone: Vec<&String> = then.difference(&now).collect();
        assert!(gone.is_empty(), "{when}: {gone:?} {said}");
    };
    gone("after the drill", &swept.stderr);
    // It ran, and something could not be read: no empty success.
    assert_eq!(swept.code(), Some(3), "{}\n{:#}", swept.stderr, swept.report);
    let totals = &swept.report["totals"];
    let counted = |key: &str| totals[key].as_object().map_or(0, |m| m.values().filter_map(Value::as_u64).sum());
    let whole = ["maintained", "planned", "idle"].iter().filter_map(|key| totals[*key].as_u64()).sum::<u64>();
    assert_eq!(whole + counted("skipped") + counted("failed"), 1, "{totals:#}");
    assert_eq!(totals["versions_removed"], removed, "what went before is counted, and no more: {totals:#}");
    let told = format!("{:#} {}", swept.report, swept.stderr);
    // Its audit record went with it.
    assert!(told.contains("no registry") || told.contains("in run") && told.contains("does not exist"), "{told}");

    estate.proxy.pass();
    std::thread::sleep(AGE);
    let lost = estate.sweep();
    gone("after a sweep without it", &lost.stderr);
    assert_eq!(lost.code(), Some(2), "{}", lost.stderr);
    assert!(lost.stderr.contains("no registry is at"), "{}", lost.stderr);

    delete(estate);
    estate.bucket.write(&registry, &kept);
    std::thread::sleep(AGE);
    // The first of them verifies what landed while the registry was away, the second may remove.
    let mut went = 0;
    for _ in 0..2 {
        let back = estate.sweep();
        assert_eq!(back.code(), Some(0), "{}\n{:#}", back.stderr, back.report);
        went += back.report["totals"]["versions_removed"].as_u64().unwrap_or(0);
        std::thread::sleep(AGE);
    }
    assert!(went > 0, "the rest goes");
    estate.is_explained(Leftovers::None, "with the registry back");
}

#[test]
fn a_registry_that_is_deleted_in_the_middle_of_a_sweep_ends_all_deleting() {
    let name = "a_registry_that_is_deleted_in_the_middle_of_a_sweep_ends_all_deleting";
    for moment in [before_apply as Moment, before_commit] {
        let Some(estate) = short(name) else { return };
        nothing_goes_without_the_registry(&estate, moment, 0);
    }
    let Some(estate) = long(name) else { return };
    nothing_goes_without_the_registry(&estate, between_chunks, 100);
}

/// One manifest and one file go alone, to see whether they may; then a chunk is one request for its manifests and one for its files.
#[test]
fn clean_up_deletes_in_bulk_and_its_requests_are_counted() {
    let Some(estate) = long("clean_up_deletes_in_bulk_and_its_requests_are_counted") else { return };
    estate.proxy.pass();
    let swept = estate.sweep();
    let cleanup = &swept.row("orders")["steps"]["cleanup"];
    assert_eq!(cleanup["outcome"], "done", "{cleanup:#}");
    let log = estate.proxy.log();
    let deletes: Vec<&Request> = log.iter().filter(|r| r.keys.iter().any(|k| k.contains("/orders/"))).collect();
    let number = |key: &str| cleanup[key].as_u64().expect("a number") as usize;
    let objects: usize = deletes.iter().map(|r| r.keys.len()).sum();
    assert_eq!(objects, number("versions_removed") + number("files_removed"));
    assert_eq!((number("versions_removed"), number("failed_deletes")), (106, 0), "{cleanup:#}");
    let shape: Vec<(String, usize)> =
        deletes.iter().map(|r| (kind(r), r.keys.len())).filter(|(kind, _)| kind == "DELETE _versions").collect();
    let manifests = |n: usize| ("DELETE _versions".to_string(), n);
    assert_eq!(shape, [manifests(1), manifests(99), manifests(6)]);
    assert_eq!(deletes.len(), 6, "two chunks, and the first of each kind alone: {deletes:?}");
    // By the first look, and to be kept while it goes; not by the look that comes right before the clean-up.
    for version in 1..=106 {
        let manifest = format!("/orders/_versions/{:020}.manifest", u64::MAX - version);
        let reads = log.iter().filter(|r| r.method == "GET" && r.path.ends_with(&manifest)).count();
        assert_eq!(reads, 2, "version {version}");
    }
}

/// What the store says of a single key of a bulk delete counts: what stays is told, and nothing is lost by it.
#[test]
fn keys_of_a_bulk_delete_that_fail_are_told_and_lose_nothing() {
    let name = "keys_of_a_bulk_delete_that_fail_are_told_and_lose_nothing";
    let fails = |estate: &OnS3, part: &str| {
        let failing = part.to_string();
        estate.proxy.set(move |r| match r.keys.is_empty() {
            true => Action::Pass,
            false => Action::KeysFail(failing.clone()),
        });
        let swept = estate.sweep();
        let cleanup = swept.row("orders")["steps"]["cleanup"].clone();
        let keys = |has: &str| {
            let log = estate.proxy.log();
            let named = log.iter().flat_map(|r| &r.keys).filter(|k| k.contains("/orders/") && k.contains(has));
            named.collect::<BTreeSet<_>>().len()
        };
        let number = |key: &str| cleanup[key].as_u64().expect("a number") as usize;
        let [versions, files, failed] = ["versions_removed", "files_removed", "failed_deletes"].map(number);
        assert_eq!((failed, versions + files), (keys(part), keys("") - keys(part)), "{cleanup:#}");
        (versions, failed)
    };
    // Files: they are found again next time.
    let Some(estate) = long(name) else { return };
    let (versions_removed, failed) = fails(&estate, "/data/");
    assert!(versions_removed == 106 && failed > 0, "{versions_removed} {failed}");
    // A manifest, which the store then keeps: every file of its version stays.
    let Some(estate) = long(name) else { return };
    let manifest = format!("orders/_versions/{:020}.manifest", u64::MAX - 104);
    let (wanted, objects) = (estate.digest("orders", json!({"version": 104})), estate.bucket.read(&estate.prefix));
    assert_eq!(fails(&estate, &manifest), (105, 1));
    estate.bucket.write(&estate.prefix, &Objects::from([(manifest.clone(), objects[&manifest].clone())]));
    assert_eq!(estate.digest("orders", json!({"version": 104})), wanted);
    estate.is_explained(Leftovers::None, "a manifest that did not go");
}
