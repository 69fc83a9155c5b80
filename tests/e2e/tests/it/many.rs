//! Many datasets, many sweeps: totals add up, and memory does not grow.

use serde_json::json;

use crate::fleet::{Fleet, swept};
use crate::replica::Replica;

/// `total` datasets, two replicas, `sweeps` sweeps once each replica has made two. Each sweep finds one dataset more, and its work.
fn sweeps(test: &str, total: usize, sweeps: usize) {
    let Some(fleet) = Fleet::new(test) else { return };
    fleet.copies_of_one(0..total, 1);
    let replicas = [0, 1].map(|_| fleet.replica(&[]));
    let all: Vec<_> = replicas.iter().collect();
    let mut seen = total;
    let mut sweep = || {
        fleet.copies_of_one(seen..seen + 1, 3);
        seen += 1;
        let sweep = fleet.sweep(&all);
        assert_eq!((&sweep["seen"], &sweep["due"], &sweep["handed"]), (&json!(seen), &json!(1), &json!(1)), "{sweep}");
        let last = all.iter().find(|r| r.lines("swept the estate").iter().any(|l| l["run"] == sweep["run"]));
        let shown: f64 = last.expect("it swept").metric("squire_datasets").iter().map(|(_, n)| n).sum();
        assert_eq!(shown, seen as f64, "seen = planned + idle + skipped + failed");
        all.iter().map(|r| resident(r)).collect::<Vec<f64>>()
    };
    // Who takes a tick is the bus's choice.
    let mut sizes = vec![sweep()];
    while all.iter().any(|r| swept(&[r]).len() < 2) {
        assert!(sizes.len() < 30, "one replica takes all the ticks");
        sizes.push(sweep());
    }
    let warm = sizes.len() - 1;
    sizes.extend((0..sweeps).map(|_| sweep()));
    eprintln!("resident MiB of both after each sweep, the first {} to warm up: {sizes:.1?}", warm + 1);
    let maintained: usize = all.iter().map(|r| r.lines("maintained").len()).sum();
    assert_eq!(maintained, sizes.len());
    assert!(fleet.dead_letters().is_empty());
    for replica in 0..2 {
        let grown = (sizes[sizes.len() - 1][replica] - sizes[warm][replica]) / sweeps as f64;
        assert!(grown < 1.0, "{grown:.2} MiB per sweep: {sizes:.1?}");
    }
    fleet.oracle();
}

/// MiB that a replica holds, without the pages of the program itself, which come as its code is first used.
fn resident(replica: &Replica) -> f64 {
    let path = format!("/proc/{}/status", replica.pid());
    let status = std::fs::read_to_string(path).expect("its status");
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("kilobytes") / 1_024.0
}

#[test]
fn sixty_datasets_are_counted_in_each_of_six_sweeps_and_memory_stays() {
    sweeps("sixty_datasets_are_counted_in_each_of_six_sweeps_and_memory_stays", 60, 6);
}

#[test]
#[ignore = "some minutes; part of `make test-long`"]
fn five_hundred_datasets_are_counted_in_each_of_ten_sweeps_and_memory_stays() {
    sweeps("five_hundred_datasets_are_counted_in_each_of_ten_sweeps_and_memory_stays", 500, 10);
}
