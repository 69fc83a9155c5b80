//! The fleet beside itself and beside the loop of three library calls, on a real NATS server and a real S3 server. Figures,
//! never assertions.
//!
//! usage: fleet-bench [DUE [IDLE]]      200 due and 1,000 idle datasets; needs TEST_PYTHON. `make bench` runs it.

#![allow(dead_code)]

use std::time::{Duration, Instant};

use serde_json::json;
use squire_test_support::{Action, Request};

#[path = "../e2e/tests/it/fleet.rs"]
mod fleet;
#[path = "../e2e/tests/it/replica.rs"]
mod replica;
#[path = "../e2e/tests/it/stamps.rs"]
mod stamps;

use fleet::Fleet;

/// Added to every request of a replica.
const ADDED: Duration = Duration::from_millis(20);
/// As a config without the key has it.
const SET: [&str; 1] = ["limits.concurrency=4"];
/// Datasets of the loop of three calls; it goes through all of them one by one.
const LOOPED: usize = 100;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|a| a.parse::<usize>().ok());
    let (due, idle) = (numbers.next().unwrap_or(200), numbers.next().unwrap_or(1_000));
    let one = due_datasets(due, 1);
    let two = due_datasets(due, 2);
    if let (Some(one), Some(two)) = (one, two) {
        println!("| {due} due datasets, {} ms added per request | seconds |\n|---|---|", ADDED.as_millis());
        println!("| one replica | {one:.1} |\n| two replicas | {two:.1} |");
        println!("| ratio | {:.2} |\n", one / two);
    }
    idle_tick(idle);
}

/// Seconds from the tick to the last pass.
fn due_datasets(datasets: usize, replicas: usize) -> Option<f64> {
    let fleet = Fleet::new("due_datasets")?;
    fleet.copies_of_one(0..datasets, 4);
    let proxy = fleet.proxy();
    proxy.set(|_| Action::Delay(ADDED));
    let replicas: Vec<_> = (0..replicas).map(|_| fleet.replica_behind(Some(&proxy), &SET)).collect();
    let start = Instant::now();
    fleet.tick();
    fleet.settles();
    let seconds = start.elapsed().as_secs_f64();
    let maintained: usize = replicas.iter().map(|r| r.lines("maintained").len()).sum();
    if maintained != datasets {
        println!("NOT AS MEANT: {maintained} of {datasets} were maintained");
    }
    Some(seconds)
}

/// Requests and seconds of a tick that finds nothing to do, beside the loop of three calls.
fn idle_tick(datasets: usize) {
    let Some(fleet) = Fleet::new("idle_tick") else { return };
    fleet.copies_of_one(0..datasets, 1);
    let proxy = fleet.proxy();
    let replica = fleet.replica_behind(Some(&proxy), &SET);
    // Twice, so that every dataset is known.
    let swept: Vec<_> = (0..2).map(|_| fleet.sweep(&[&replica])).collect();
    if swept[1]["due"] != 0 {
        println!("NOT AS MEANT: {}", swept[1]);
    }
    proxy.pass();
    let (before, sum) = (replica.metric("squire_sweep_duration_seconds_sum"), |s: &[(String, f64)]| s[0].1);
    fleet.sweep(&[&replica]);
    let seconds = sum(&replica.metric("squire_sweep_duration_seconds_sum")) - sum(&before);
    let log = proxy.log();
    let (registry, lake): (Vec<_>, Vec<_>) = log.iter().partition(|r| is_registrys(r));
    let per = |n: f64| n / datasets as f64;
    println!("| idle tick over {datasets} known datasets | in all | per dataset |\n|---|---|---|");
    println!("| requests to datasets | {} | {:.3} |", lake.len(), per(lake.len() as f64));
    println!("| requests to the registry | {} | {:.3} |", registry.len(), per(registry.len() as f64));
    let mut kinds = std::collections::BTreeMap::new();
    for request in lake {
        *kinds.entry(kind(request)).or_insert(0) += 1;
    }
    for (kind, n) in kinds {
        println!("| … {kind} | {n} | {:.3} |", per(f64::from(n)));
    }
    println!("| seconds of the sweep | {seconds:.2} | {:.5} |", per(seconds));
    let looped: Vec<String> = (0..datasets.min(LOOPED)).map(|n| fleet.uri(&format!("t{n:04}"))).collect();
    let told = fleet.server.pylance("three_calls", &looped[0], json!({ "all": looped }));
    let each = told["seconds"].as_f64().expect("a number") / looped.len() as f64;
    println!("| the loop of three calls, over {} of them | | {each:.5} |", looped.len());
    println!("| ratio | | {:.1} |", each / per(seconds));
}

fn is_registrys(request: &Request) -> bool {
    request.path.contains("/_squire/") || request.query.contains("_squire")
}

/// Method and what it is about.
fn kind(request: &Request) -> String {
    match request.path.matches('/').count() {
        0 | 1 => "LIST".into(),
        _ => {
            format!("{} {}", request.method, squire_test_support::kind(request).rsplit(' ').next().unwrap_or_default())
        }
    }
}
