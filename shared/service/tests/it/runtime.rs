//! Clock, shutdown, progress.

use std::time::Duration;

use chrono::TimeDelta;
use squire_service::cli::Exit;
use squire_service::clock::Clock;
use squire_service::progress::Progress;
use squire_service::shutdown::{Shutdown, Signal};

use crate::fixture::time;

#[test]
fn a_manual_clock_moves_only_when_told_and_its_clones_with_it() {
    let clock = Clock::at(time("2026-01-01T00:00:00Z"));
    let other = clock.clone();
    assert_eq!(clock.now(), time("2026-01-01T00:00:00Z"));
    clock.advance(TimeDelta::days(8));
    assert_eq!(other.now(), time("2026-01-09T00:00:00Z"));
    other.set(time("2025-01-01T00:00:00Z"));
    assert_eq!(clock.now(), time("2025-01-01T00:00:00Z"));
    assert!(!clock.is_system() && Clock::system().is_system());
}

#[tokio::test]
async fn the_first_request_decides_the_exit_code_and_wakes_everybody() {
    let shutdown = Shutdown::manual();
    assert_eq!((shutdown.is_requested(), shutdown.exit()), (false, None));
    let waiting = shutdown.clone();
    let woken = tokio::spawn(async move { waiting.requested().await });
    assert!(shutdown.request(Signal::Terminate));
    assert!(!shutdown.request(Signal::Interrupt));
    assert_eq!(shutdown.exit(), Some(Exit::Terminated));
    assert!(shutdown.is_requested());
    tokio::time::timeout(Duration::from_secs(10), woken).await.unwrap().unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn a_signal_asks_for_a_stop() {
    let shutdown = Shutdown::install().unwrap();
    let status = std::process::Command::new("kill").args(["-INT", &std::process::id().to_string()]).status().unwrap();
    assert!(status.success());
    tokio::time::timeout(Duration::from_secs(10), shutdown.requested()).await.unwrap();
    assert_eq!(shutdown.exit(), Some(Exit::Interrupted));
}

#[test]
fn progress_bars_are_silent_without_a_terminal() {
    let progress = Progress::new(true);
    assert!(!progress.is_shown());
    let bar = progress.bar(3, "reading");
    bar.inc(1);
    bar.set_length(5);
    bar.message("still");
    drop(progress.spinner("waiting"));
    drop(progress.bytes(5, "writing"));
}
