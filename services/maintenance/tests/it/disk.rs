//! A full disk: compaction is refused, clean-up makes room, and a disk that fills under a rewrite loses nothing.
//!
//! The disk is a small tmpfs in a mount namespace of its own, where this test runs itself again; without the right to make
//! one the tests say so and are skipped.

use std::path::Path;
use std::process::Command;

use squire_lake::sample::{Columns, Sample};

use super::common::*;

/// Runs one ignored test of this binary on a disk of so many bytes. `false`: no such disk can be made here.
fn on_a_small_disk(test: &str, bytes: u64) -> bool {
    let here = Here::new();
    let dir = here.text("disk");
    std::fs::create_dir(&dir).expect("made");
    let mount = format!("mount -t tmpfs -o size={bytes} tmpfs \"$SMALL_DISK\"");
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]).env("SMALL_DISK", &dir);
        command
    };
    if !unshare(&mount).output().is_ok_and(|o| o.status.success()) {
        eprintln!("SKIPPED {test}: no small disk can be mounted here (unshare, mount)");
        return false;
    }
    let binary = std::env::current_exe().expect("this binary");
    let script = format!("{mount} && exec \"$0\" \"$1\" --exact --ignored --nocapture");
    let output = unshare(&script).arg(binary).arg(format!("disk::{test}")).output().expect("it ran");
    assert_ok(&output, test);
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{test} did not run");
    true
}

/// The small disk, inside.
fn disk(test: &str) -> Option<std::path::PathBuf> {
    let disk = std::env::var_os("SMALL_DISK").map(std::path::PathBuf::from);
    if disk.is_none() {
        eprintln!("SKIPPED {test}: it runs on a small disk only, from the test of the same subject");
    }
    disk
}

fn free(disk: &Path) -> u64 {
    let output = Command::new("df").args(["--output=avail", "-B1"]).arg(disk).output().expect("df ran");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().last().and_then(|l| l.trim().parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// Fills the disk up to so many free bytes.
fn fill(disk: &Path, leave: u64) {
    let hog = vec![0_u8; usize::try_from(free(disk).saturating_sub(leave)).expect("a size")];
    std::fs::write(disk.join("hog"), hog).expect("the hog fits");
    assert!(free(disk) <= leave, "{} bytes are free", free(disk));
}

/// Pages of 20 kB: two old megabytes that a retention of one second lets go, and three live ones in six fragments.
async fn lake_on(disk: &Path) -> String {
    std::fs::create_dir_all(disk.join("lake")).expect("made");
    let root = squire_lake::uri::canonical(disk.join("lake").to_str().expect("UTF-8")).expect("a URI");
    let mut sample = Sample::new(format!("{root}/t"), Columns { vector: 0, page: 20_000 });
    sample.write(100, 5_000).await.expect("written");
    sample.overwrite(25, 0).await.expect("overwritten");
    for i in 1..6 {
        sample.write(25, i * 25).await.expect("written");
    }
    wait_until_older(&disk.join("lake"), std::time::Duration::from_millis(1_200));
    root
}

fn sweep(root: &str, more: &[&str]) -> (i32, serde_json::Value) {
    let mut args: Vec<String> =
        ["sweep", root, "--yes", "--retain-versions", "2", "-o", "json"].map(String::from).into();
    args.extend(one_second());
    args.extend(more.iter().map(|m| (*m).to_string()));
    let output = squire(&args);
    let swept = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    (code(&output), swept)
}

async fn ids(root: &str) -> usize {
    Sample::ids(&lake(), &format!("{root}/t"), None).await.expect("it reads").len()
}

#[test]
fn compaction_is_refused_and_clean_up_makes_room() {
    on_a_small_disk("no_space_refuses_compaction_and_not_clean_up", 8 << 20);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs on a small disk, from compaction_is_refused_and_clean_up_makes_room"]
async fn no_space_refuses_compaction_and_not_clean_up() {
    let Some(disk) = disk("no_space_refuses_compaction_and_not_clean_up") else { return };
    let root = lake_on(&disk).await;
    fill(&disk, 1 << 20);
    let (exit, swept) = sweep(&root, &[]);
    let steps = &row(&swept, "lake/t")["steps"];
    assert_eq!(exit, 0, "{swept:#}");
    assert_eq!(steps["compact"]["reason"], "no_space", "{steps:#}");
    assert_eq!(steps["cleanup"]["outcome"], "done", "{steps:#}");
    assert!(steps["cleanup"]["reclaimed_bytes"].as_u64() > Some(2_000_000), "{steps:#}");
    assert!(free(&disk) > 2 << 20);
    assert_eq!(ids(&root).await, 150);
    std::fs::remove_file(disk.join("hog")).expect("removed");
    let (_, again) = sweep(&root, &[]);
    assert_eq!(row(&again, "lake/t")["after"]["fragments"], 1, "{again:#}");
    assert_eq!(ids(&root).await, 150);
    assert_explained(lake(), &root, Leftovers::None, &[]);
}

#[test]
fn clean_up_runs_on_a_disk_without_a_byte_left() {
    on_a_small_disk("not_a_byte_is_left", 8 << 20);
}

/// The registry lies elsewhere: its records come before the first delete and need room.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs on a small disk, from clean_up_runs_on_a_disk_without_a_byte_left"]
async fn not_a_byte_is_left() {
    let Some(disk) = disk("not_a_byte_is_left") else { return };
    let root = lake_on(&disk).await;
    fill(&disk, 0);
    let elsewhere = Here::new();
    assert_ok(&registry(&["init", &elsewhere.text("squire"), "--name", "n"]), "init");
    let at = elsewhere.text("squire");
    let (exit, swept) = sweep(&root, &["--registry", &at]);
    let steps = &row(&swept, "lake/t")["steps"];
    assert_eq!(exit, 0, "{swept:#}");
    assert_eq!(steps["compact"]["reason"], "no_space", "{steps:#}");
    assert_eq!(steps["cleanup"]["outcome"], "done", "{swept:#}");
    assert!(free(&disk) > 1 << 20, "{} bytes are free", free(&disk));
    // And with the room that it made the table is compacted.
    std::fs::remove_file(disk.join("hog")).expect("removed");
    let (_, again) = sweep(&root, &["--registry", &at]);
    assert_eq!(row(&again, "lake/t")["after"]["fragments"], 1, "{again:#}");
    assert_eq!(ids(&root).await, 150);
    // Where the registry has no room either, nothing is done and it is said why.
    fill(&disk, 0);
    let output = squire(&["sweep", &root, "--yes", "--registry", &format!("{root}/_squire")]);
    assert_ne!(code(&output), 0);
    assert_explained(lake(), &root, Leftovers::None, &[]);
}

#[test]
fn a_disk_that_fills_under_a_rewrite_loses_nothing() {
    on_a_small_disk("the_disk_fills_between_plan_and_apply", 12 << 20);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs on a small disk, from a_disk_that_fills_under_a_rewrite_loses_nothing"]
async fn the_disk_fills_between_plan_and_apply() {
    let Some(disk) = disk("the_disk_fills_between_plan_and_apply") else { return };
    let root = lake_on(&disk).await;
    let plans = Here::new();
    let plan = plans.text("plan.json");
    let planned = report(&["plan", &root, "--out", &plan]);
    assert_eq!(row(&planned, "lake/t")["steps"]["compact"]["outcome"], "planned", "{planned:#}");
    let before = dataset_tree(&disk.join("lake/t"));
    fill(&disk, 1 << 20);
    let output = squire(&["apply", &plan, "-o", "json"]);
    let applied: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let t = row(&applied, "lake/t");
    assert_eq!((code(&output), t["outcome"]["reason"].as_str()), (3, Some("transient")), "{t:#}");
    assert!(t["outcome"]["detail"].as_str().is_some_and(|d| d.contains("No space left")), "{t:#}");
    assert_eq!(ids(&root).await, 150);
    // Nothing of it is half applied: HEAD is the same, and no half-written file lies about.
    assert_eq!(dataset_tree(&disk.join("lake/t")), before);
    std::fs::remove_file(disk.join("hog")).expect("removed");
    let swept = report(&["sweep", &root, "--yes"]);
    assert_eq!(row(&swept, "lake/t")["after"]["fragments"], 1, "{swept:#}");
    assert_eq!(ids(&root).await, 150);
    assert_eq!(report(&["sweep", &root, "--yes"])["totals"]["idle"], 1);
    assert_explained(lake(), &root, Leftovers::None, &[]);
}
