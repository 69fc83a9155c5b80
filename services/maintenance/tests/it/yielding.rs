//! Other people's writers: whoever is at long work is waited for, whoever is merely busy is not.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use squire_lake::sample::backdate;
use squire_registry::{Actor, Registry};

use super::common::*;

/// `tests/py/writers.py`, running.
struct Writer {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Writer {
    fn start(test: &str, args: &[&str]) -> Option<Self> {
        let python = python(test)?;
        let mut child = Command::new(python)
            .arg(check_py().replace("check.py", "writers.py"))
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python ran");
        let mut writer = Self { out: BufReader::new(child.stdout.take().expect("piped")), child };
        assert_eq!(writer.line(), "started");
        Some(writer)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line");
        line.trim().to_string()
    }

    fn runs(&mut self) -> bool {
        self.child.try_wait().expect("known").is_none()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn due() -> [&'static str; 5] {
    ["--due", "--set", "policy.min_fragments=2", "--set", "policy.interval=1s"]
}

#[tokio::test]
async fn a_running_backfill_survives_a_sweep_and_a_due_sweep_and_then_the_table_is_maintained() {
    let here = Here::new();
    here.table("lake/t.lance", 12, 10).await;
    let stop = here.text("stop");
    let name = "a_running_backfill_survives_a_sweep";
    let Some(mut backfill) = Writer::start(name, &["backfill", &here.text("lake/t.lance"), &stop]) else { return };
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    let outcome = &row(&swept, "t.lance")["outcome"];
    assert_eq!((&outcome["kind"], &outcome["reason"]), (&"skipped".into(), &"writer_active".into()), "{swept:#}");
    // The second run knows the file from the first, and does not wait once more.
    let began = Instant::now();
    let mut args = vec!["sweep".to_string(), here.text("lake"), "--yes".into()];
    args.extend(due().map(String::from));
    let again = report(&args);
    assert_eq!(row(&again, "t.lance")["outcome"]["reason"], "writer_active", "{again:#}");
    assert!(began.elapsed() < Duration::from_secs(25), "it waited again");
    std::fs::write(&stop, "").expect("written");
    assert_eq!(backfill.line(), "done 120 of 120");
    let after = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(row(&after, "t.lance")["outcome"]["kind"], "maintained", "{after:#}");
    assert_eq!(row(&after, "t.lance")["after"]["fragments"], 1);
    here.oracle("lake");
}

#[tokio::test]
async fn a_busy_writer_is_not_waited_for_and_sees_no_error() {
    let here = Here::new();
    here.table("lake/t.lance", 30, 10).await;
    let Some(mut busy) = Writer::start("a_busy_writer", &["busy", &here.text("lake/t.lance"), "60"]) else { return };
    let mut maintained = 0;
    while busy.runs() {
        let swept = ran(&["sweep", &here.text("lake"), "--yes"]);
        let outcome = &row(&swept, "t.lance")["outcome"];
        assert_ne!(outcome["reason"], "writer_active", "{swept:#}");
        if outcome["kind"] == "maintained" {
            maintained += 1;
        }
    }
    let last = busy.line();
    let writes: u32 = last.strip_prefix("done ").and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{last}"));
    assert!(writes > 60, "the writer was slowed down to {writes} writes in a minute");
    assert!(maintained > 0, "a table that is written all the time was never maintained");
    // The writer's own attempts that lost a race and were tried again.
    here.oracle_with("lake", Leftovers::Explained, &[]);
}

/// An index file that nobody names: what an index build at work, or one that ended badly, leaves.
fn stray(here: &Here, table: &str) -> std::path::PathBuf {
    let index = here.path(table).join("_indices/0a0b0c0d-0000-4000-8000-000000000001");
    std::fs::create_dir_all(&index).expect("made");
    std::fs::write(index.join("page_data.lance"), "half an index").expect("written");
    index.join("page_data.lance")
}

#[tokio::test]
async fn what_an_append_left_behind_is_nobodys_work() {
    let here = Here::new();
    here.table("lake/t.lance", 12, 10).await;
    let data = here.path("lake/t.lance/data");
    let any = std::fs::read_dir(&data).expect("data").flatten().next().expect("a file").path();
    std::fs::copy(any, data.join("01010101010101010101010101010101.lance")).expect("copied");
    let began = Instant::now();
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(row(&swept, "t.lance")["outcome"]["kind"], "maintained", "{swept:#}");
    assert!(began.elapsed() < Duration::from_secs(25), "it waited for an append's leftover");
    // It is still there: nothing that nobody names goes by a pass.
    here.oracle_with("lake", Leftovers::None, &[("data/01010101010101010101010101010101.lance", "young")]);
}

#[tokio::test]
async fn a_file_that_goes_away_is_nobodys_work() {
    let here = Here::new();
    here.table("lake/t.lance", 12, 10).await;
    let stray = stray(&here, "lake/t.lance");
    let planned = report(&["plan", &here.text("lake")]);
    let kinds: Vec<_> =
        row(&planned, "t.lance")["findings"].as_array().expect("findings").iter().map(|f| f["kind"].clone()).collect();
    assert!(kinds.contains(&"young_file".into()), "a plan says that something lies there: {kinds:?}");
    let remover = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(2));
        std::fs::remove_file(stray).expect("removed");
    });
    let began = Instant::now();
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    remover.join().expect("removed");
    assert_eq!(row(&swept, "t.lance")["outcome"]["kind"], "maintained", "{swept:#}");
    assert!(began.elapsed() < Duration::from_secs(28), "it waited for a file that was gone");
    here.oracle("lake");
}

#[tokio::test]
async fn after_a_day_of_waiting_the_pass_goes_ahead() {
    let here = Here::new();
    here.table("lake/t.lance", 12, 10).await;
    stray(&here, "lake/t.lance");
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(row(&swept, "t.lance")["outcome"]["reason"], "writer_active", "{swept:#}");
    let registry = Registry::open(&here.text("lake/_squire"), &Default::default()).await.expect("open");
    let registry = registry.acting_as(Actor::current());
    let uri = row(&swept, "t.lance")["uri"].as_str().expect("a URI").to_string();
    let mut states: std::collections::HashMap<String, serde_json::Value> =
        registry.load_state([&uri]).await.expect("read");
    let state = states.get_mut(&uri).expect("remembered");
    let since: chrono::DateTime<chrono::Utc> =
        serde_json::from_value(state["waiting_for"]["since"].clone()).expect("a time");
    state["waiting_for"]["since"] = serde_json::to_value(since - chrono::Duration::hours(25)).expect("a time");
    registry.save_state(states).await.expect("saved");
    let after = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(row(&after, "t.lance")["outcome"]["kind"], "maintained", "{after:#}");
    // The index that nobody names is still there.
    here.oracle_with("lake", Leftovers::None, &[("_indices/0a0b0c0d-0000-4000-8000-000000000001", "young")]);
}

/// `cp -r` gives every file the time of the copy: a leftover of years ago is then as young as a writer's.
#[tokio::test]
async fn a_copied_lake_is_not_taken_for_a_writer() {
    let here = Here::new();
    here.table("origin/t.lance", 12, 10).await;
    for version in 1..=12 {
        backdate(&here.manifest("origin/t.lance", version), 30 * 86_400).expect("backdated");
    }
    stray(&here, "origin/t.lance");
    copy_dir(&here.path("origin"), &here.path("lake"));
    let began = Instant::now();
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(row(&swept, "t.lance")["outcome"]["kind"], "maintained", "{swept:#}");
    assert!(began.elapsed() < Duration::from_secs(25), "it waited for a copy");
    // The index that nobody names is still there.
    here.oracle_with("lake", Leftovers::None, &[("_indices/0a0b0c0d-0000-4000-8000-000000000001", "young")]);
}

fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("readable").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            let bytes = std::fs::read(entry.path()).expect("readable");
            std::fs::write(target, bytes).expect("written");
        }
    }
}

/// Killed after its rewrite and before its commit: what it leaves looks like a writer's files, and is our own.
#[tokio::test]
async fn the_leftovers_of_our_own_killed_run_are_not_taken_for_a_writer() {
    let here = Here::new();
    here.table("lake/t.lance", 40, 2000).await;
    let data = here.path("lake/t.lance/data");
    let files = || std::fs::read_dir(&data).expect("data").count();
    let (before, head) = (files(), here.manifest("lake/t.lance", 41));
    let mut sweep = start(&["sweep", &here.text("lake"), "--yes"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while files() == before && Instant::now() < deadline {
        std::thread::yield_now();
    }
    sweep.kill().expect("killed");
    sweep.wait().expect("ended");
    assert!(files() > before, "it was killed before it wrote anything");
    if head.exists() {
        eprintln!("NOTE the kill came after the first commit");
    }
    let began = Instant::now();
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(row(&swept, "t.lance")["outcome"]["kind"], "maintained", "{swept:#}");
    assert!(began.elapsed() < Duration::from_secs(25), "it waited for its own leftovers");
    let history = squire(&["history", &here.text("lake/t.lance")]);
    assert!(String::from_utf8_lossy(&history.stdout).contains("died"), "{}", stderr(&history));
    // What the killed run had rewritten and not committed.
    here.oracle_with("lake", Leftovers::Explained, &[]);
}
