//! `serve` obeys the controls of a roll-out as `sweep` does: modes, selection, windows, blackout and the kill switch.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::time::{Duration, Instant};

use super::common::*;

const DEADLINE: Duration = Duration::from_secs(90);

/// A daemon with a tick each second on the bus of its own process.
struct Served {
    here: Here,
    child: Child,
    port: u16,
}

impl Served {
    async fn start(more: &[&str]) -> Self {
        let here = Here::new();
        here.table("lake/t", 12, 10).await;
        Self::serve(here, more)
    }

    fn serve(here: Here, more: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let config = format!(
            "[estate]\nroots = [{:?}]\n[schedule]\nmaintenance = \"* * * * * *\"\n[http]\nlisten = \"127.0.0.1:{port}\"\n\
             [policy]\ninterval = \"0s\"\nmax_stranded = 100.0\n",
            here.text("lake")
        );
        std::fs::write(here.path("squire.toml"), config).expect("written");
        let file = here.text("squire.toml");
        let mut args = vec!["serve", "--config", &file];
        args.extend(more);
        let child = start(&args);
        Self { here, child, port }
    }

    fn metrics(&self) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// The value of a series, given as it is written.
    fn value(&self, series: &str) -> Option<f64> {
        let text = self.metrics()?;
        let line = text.lines().find(|l| l.strip_prefix(series).is_some_and(|r| r.starts_with(' ')))?;
        line.rsplit_once(' ')?.1.parse().ok()
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !holds(self) {
            assert!(self.child.try_wait().expect("a child").is_none(), "{what}: it ended");
            assert!(Instant::now() < deadline, "{what}: not within {DEADLINE:?}: {:?}", self.metrics());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for two sweeps that begin after now.
    #[track_caller]
    fn two_sweeps(&mut self) {
        const CLOSED: &str = "squire_last_success_timestamp_seconds{task=\"maintenance\"}";
        let now = || chrono::Utc::now().timestamp_millis() as f64 / 1000.0;
        // The first that ends may have begun before.
        for _ in 0..3 {
            let from = now();
            self.until("a sweep is closed", |s| s.value(CLOSED).is_some_and(|at| at > from));
        }
    }

    fn versions(&self) -> usize {
        std::fs::read_dir(self.here.path("lake/t/_versions")).expect("a folder").count()
    }

    /// What the daemon says of the dataset after its sweeps is this, and it has written nothing to it.
    #[track_caller]
    fn leaves_alone(mut self, outcome: &str, reason: &str) {
        let before = dataset_tree(&self.here.path("lake/t"));
        self.two_sweeps();
        let series = format!("squire_datasets{{outcome=\"{outcome}\",reason=\"{reason}\"}}");
        assert_eq!(self.value(&series), Some(1.0), "{series}: {:?}", self.metrics());
        assert_eq!(dataset_tree(&self.here.path("lake/t")), before, "{reason}: a file changed");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::TERM));
        let deadline = Instant::now() + DEADLINE;
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_maintains_what_no_control_forbids() {
    let mut served = Served::start(&[]).await;
    served.until("it is compacted", |s| s.value("squire_fragments_removed_total") == Some(12.0));
    served.two_sweeps();
    assert_eq!(served.value("squire_budget_remaining_bytes"), Some(i64::MAX as f64), "nothing is bounded");
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_leaves_alone_what_the_selection_does_not_name() {
    for control in [
        "estate.exclude=[\"t\"]",
        "estate.include=[\"other\"]",
        "estate.maintain=registered",
        "estate.maintain=labelled",
        "rollout.percent=0",
    ] {
        Served::start(&["--set", control]).await.leaves_alone("skipped", "not_selected");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_starts_nothing_outside_of_its_window() {
    // Two minutes twelve hours from now.
    let at = |hours| (chrono::Utc::now() + chrono::Duration::hours(hours)).format("%H:%M").to_string();
    let window = format!("policy.window=Mon-Sun {}-{} UTC", at(11), at(12));
    Served::start(&["--set", &window]).await.leaves_alone("skipped", "outside_window");
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_rewrites_no_more_than_the_budget_of_the_day() {
    Served::start(&["--set", "budget.rewrite_per_day=1B"]).await.leaves_alone("skipped", "budget_exhausted");
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_in_observe_plans_and_writes_nothing() {
    Served::start(&["--set", "estate.mode=observe"]).await.leaves_alone("planned", "");
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_in_compact_deletes_no_version() {
    let here = Here::new();
    here.table("lake/t", 12, 10).await;
    super::replaced_at::age(&here, "lake/t", 30 * 86_400);
    let mut served = Served::serve(here, &["--set", "estate.mode=compact"]);
    served.until("it is compacted", |s| s.value("squire_fragments_removed_total") == Some(12.0));
    served.two_sweeps();
    assert_eq!(served.value("squire_versions_removed_total"), Some(0.0));
    assert!(served.here.manifest("lake/t", 1).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_of_the_estate_stops_a_fleet_within_ten_seconds_and_lifting_it_starts_it_again() {
    let mut served = Served::start(&[]).await;
    served.until("it is compacted", |s| s.value("squire_fragments_removed_total") == Some(12.0));
    let at = format!("--registry={}/_squire", served.here.text("lake"));
    assert_ok(&registry(&["block", "add", "estate", "--reason", "an incident", &at]), "block");
    let mut sample = squire_lake::sample::Sample::open(&lake(), &served.here.uri("lake/t"), Default::default())
        .await
        .expect("opened");
    for i in 0..12 {
        sample.write(10, 1_000 + i * 10).await.expect("written");
    }
    let before = served.versions();
    served.two_sweeps();
    assert_eq!(served.value("squire_datasets{outcome=\"skipped\",reason=\"blocked\"}"), Some(1.0));
    assert_eq!(served.versions(), before, "no version came after the block");
    let listed = registry(&["block", "list", "-o", "json", &at]);
    let blocks: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let id = blocks[0]["id"].as_str().expect("an id").to_string();
    assert_ok(&registry(&["block", "remove", &id, &at]), "lift");
    served.until("it goes on", |s| s.versions() > before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blackout_stops_what_the_clock_and_due_would_start_and_no_sweep_by_hand() {
    let here = Here::new();
    here.table("lake/t", 12, 10).await;
    let day = |days| (chrono::Utc::now() + chrono::Duration::days(days)).format("%Y-%m-%d").to_string();
    let dark = format!("schedule.blackout=[\"{}/{}\"]", day(-1), day(1));
    let root = here.text("lake");
    let due = report(&["sweep", &root, "--due", "--yes", "--set", &dark]);
    let outcome = &row(&due, "lake/t")["outcome"];
    assert_eq!(outcome["reason"], "outside_window", "{outcome}");
    assert!(outcome["detail"].as_str().expect("a detail").contains("blackout"), "{outcome}");
    let by_hand = report(&["sweep", &root, "--yes", "--set", &dark]);
    assert_eq!(row(&by_hand, "lake/t")["outcome"]["kind"], "maintained");
    here.oracle("lake");
}
