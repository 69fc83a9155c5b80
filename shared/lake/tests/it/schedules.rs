//! A dataset that changes while it is scanned, and while a reclaim takes its orphans away: nothing is called an orphan or missing that
//! is not, and nothing that is named is gone in the end.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use chrono::Utc;
use squire_lake::Lake;
use squire_lake::classes::{Ages, Class};
use squire_lake::clean::{self, Rate, removal};
use squire_lake::examine::{Examination, examine};
use squire_lake::faults::{Fault, Faults, Operation};
use squire_lake::look::{Looked, look};
use squire_lake::quarantine::{Item, Quarantine, Rule, Taken, Work, restore_named, take_away};
use squire_lake::refs::KeepSet;
use squire_lake::sample::{Sample, SampleIndex, Staged};
use uuid::Uuid;

use super::classes::plant;
use super::support::*;

const DAY: u64 = 86_400;

/// Splitmix64: the same numbers for the same seed.
#[derive(Debug, Clone)]
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % sides
    }
}

fn ages() -> Ages {
    Ages { now: Utc::now(), longest_write: Duration::ZERO }
}

fn nobody() -> KeepSet {
    KeepSet::Complete(BTreeSet::new())
}

/// Everything under a folder was written long ago, at the one same time: no age shields a file from being called an orphan wrongly, and
/// what was old already is not written again.
fn age(root: &Path) {
    // The first day of 2020.
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(18_262 * DAY);
    let mut queue = vec![root.to_path_buf()];
    while let Some(dir) = queue.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() => queue.push(path),
                path => {
                    let file = std::fs::File::options().write(true).open(path);
                    let _ = file.and_then(|f| f.set_modified(then));
                }
            }
        }
    }
}

fn data_files(root: &Path) -> BTreeSet<String> {
    let files = std::fs::read_dir(root.join("data")).into_iter().flatten().flatten();
    files.map(|e| format!("data/{}", e.file_name().to_string_lossy())).collect()
}

/// What happens to the dataset beside the scan.
struct Others {
    dice: Dice,
    sample: Sample,
    uri: String,
    root: PathBuf,
    /// A writer whose file is a month old, and who has not committed.
    late: Option<Staged>,
    /// It has committed.
    landed: bool,
    /// A reclaim moves files while they act: between the late commit that names them and their return nobody can read them.
    files_move: bool,
    done: Vec<&'static str>,
}

impl Others {
    async fn act(&mut self, late_may_land: bool) {
        let what = match self.one(late_may_land).await {
            Err(e) if self.files_move && self.landed && format!("{e:?}").contains("NotFound") => "turned away",
            what => what.expect("they acted"),
        };
        age(&self.root);
        self.done.push(what);
    }

    async fn one(&mut self, late_may_land: bool) -> squire_lake::Result<&'static str> {
        let n = self.dice.roll(8);
        let start = 10_000 + 100 * self.done.len() as i64;
        Ok(match n {
            0 => {
                let staged = self.sample.stage(5, start).await?;
                age(&self.root);
                self.sample.land(staged).await?;
                "append"
            }
            1 => {
                self.sample.overwrite(5, start).await?;
                "overwrite"
            }
            2 => {
                self.sample.delete(&format!("id % 3 = {}", self.done.len() % 3)).await?;
                "delete"
            }
            3 => {
                self.sample.index(SampleIndex::BTree).await?;
                "index"
            }
            4 => {
                let name = format!("t{}", self.done.len());
                self.sample.tag(&name, self.sample.version()).await?;
                "tag"
            }
            5 => {
                self.clean_up().await;
                "clean-up"
            }
            6 if !self.done.contains(&"branch") => {
                self.sample.branch("b", self.sample.version()).await?;
                "branch"
            }
            _ if late_may_land => match self.late.take() {
                Some(staged) => match self.sample.land(staged).await {
                    Ok(_) => {
                        self.landed = true;
                        "late commit"
                    }
                    // An overwrite came first: its files are leftovers now.
                    Err(e) if e.kind() == squire_lake::Kind::Conflict => "lost race",
                    Err(e) => return Err(e),
                },
                None => "nothing",
            },
            _ => "nothing",
        })
    }

    /// Removes the two oldest versions that nothing holds.
    async fn clean_up(&mut self) {
        let Looked::Dataset(look) = look(&lake(), &self.uri, Utc::now()).await.expect("a look") else { return };
        let held: BTreeSet<u64> =
            look.tags.values().map(|t| t.version).chain(look.branches.values().map(|b| b.1)).collect();
        let old = look
            .versions()
            .iter()
            .map(|(_, m)| m.version)
            .filter(|v| *v != look.version() && !held.contains(v))
            .take(2)
            .collect();
        let plan = removal(&look, &old, &nobody()).expect("complete");
        let place = lake().place(&self.uri).await.expect("a place");
        clean::apply(&place, &plan, &Rate::new(100_000), || async { Ok(()) }, |_| {}).await.expect("cleaned");
    }
}

/// A dataset, what else happens to it and when.
struct Schedule {
    dir: tempfile::TempDir,
    uri: String,
    others: Arc<Mutex<Option<Others>>>,
    /// Requests of the scan before which something happens.
    at: BTreeSet<u64>,
    /// True orphans.
    strays: BTreeSet<String>,
    late: BTreeSet<String>,
}

impl Schedule {
    async fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let (dir, uri) = place();
        let root = dir.path().join("t");
        let mut sample = table(&uri, 2 + dice.roll(3) as i64, 10).await;
        if dice.roll(2) == 0 {
            sample.index(SampleIndex::BTree).await.expect("indexed");
        }
        if dice.roll(2) == 0 {
            sample.overwrite(7, 500).await.expect("overwritten");
        }
        let before = data_files(&root);
        let late = sample.stage(5, 900).await.expect("staged");
        let late_files = data_files(&root).difference(&before).cloned().collect();
        let strays: BTreeSet<String> = (0..1 + dice.roll(3)).map(|n| format!("data/stray{n}.lance")).collect();
        strays.iter().for_each(|path| plant(&root.join(path), 30 * DAY));
        age(&root);
        let at = (0..1 + dice.roll(5)).map(|_| dice.roll(30)).collect();
        let others = Others {
            dice,
            sample,
            uri: uri.clone(),
            root,
            late: Some(late),
            landed: false,
            files_move: false,
            done: Vec::new(),
        };
        Self { dir, uri, others: Arc::new(Mutex::new(Some(others))), at, strays, late: late_files }
    }

    /// A lake that lets the others act before the chosen requests. `scans`: the late writer may commit until this listing.
    fn lake(&self, scans: usize) -> Lake {
        let state = Arc::new(Mutex::new((0_u64, 0_usize)));
        let (others, at) = (self.others.clone(), self.at.clone());
        let faults = Faults::new(move |operation, path| {
            let (n, listings) = {
                let mut state = state.lock().expect("sound");
                state.0 += 1;
                state.1 += usize::from(operation == Operation::List && path.ends_with("/t"));
                *state
            };
            // The others' own requests do not come by here: they have their own lake.
            // A statement of its own: the lock is not held while they act.
            let them = if at.contains(&n) { others.lock().expect("sound").take() } else { None };
            if let Some(mut them) = them {
                // With a runtime of its own: the scan's worker stands still meanwhile, and what waits behind it must not be needed.
                let acted = std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
                    runtime.expect("a runtime").block_on(them.act(listings < scans));
                    them
                });
                let them = tokio::task::block_in_place(|| acted.join().expect("they acted"));
                *others.lock().expect("sound") = Some(them);
            }
            Fault::Pass
        });
        Lake::with_faults(Arc::new(|_: &str| HashMap::new()), 256 << 20, faults)
    }

    fn told(&self) -> (Vec<&'static str>, bool) {
        let guard = self.others.lock().expect("sound");
        let them = guard.as_ref().expect("nobody acts now");
        (them.done.clone(), them.landed)
    }
}

async fn scans(seed: u64) {
    let schedule = Schedule::new(seed).await;
    // The second look begins with the second listing: a commit that lands later has named nothing yet.
    let scanned = examine(&schedule.lake(2), &schedule.uri, &nobody(), &ages()).await;
    let (done, landed) = schedule.told();
    let Ok(Examination::Dataset(found)) = scanned else {
        // HEAD went under the look: said, and nothing is judged.
        assert!(done.contains(&"clean-up"), "seed {seed}: {done:?}: {scanned:?}");
        return;
    };
    let mut wanted = schedule.strays.clone();
    if !landed {
        wanted.extend(schedule.late.clone());
    }
    let orphans: BTreeSet<String> =
        found.classes.of(Class::Orphan).map(|o| o.path.clone()).filter(|p| !p.starts_with("_transactions/")).collect();
    if found.classes.incomplete.is_empty() {
        assert_eq!(orphans, wanted, "seed {seed}: {done:?}");
    } else {
        // A manifest went between the listing and its read: said, and nothing is called an orphan.
        assert!(done.contains(&"clean-up") && orphans.is_empty(), "seed {seed}: {done:?}: {orphans:?}");
    }
    assert!(found.classes.missing.is_empty(), "seed {seed}: {done:?}: {:?}", found.classes.missing);
}

async fn reclaims(seed: u64) {
    let schedule = Schedule::new(seed).await;
    let Ok(Examination::Dataset(found)) = examine(&lake(), &schedule.uri, &nobody(), &ages()).await else {
        panic!("seed {seed}: no dataset")
    };
    let items: Vec<Item> = found
        .classes
        .of(Class::Orphan)
        .map(|o| Item { path: o.path.clone(), bytes: o.bytes, modified: o.modified })
        .collect();
    assert!(schedule.late.iter().all(|l| items.iter().any(|i| i.path == *l)), "seed {seed}");
    drop(found);
    schedule.others.lock().expect("sound").as_mut().expect("nobody acts now").files_move = true;
    let root = squire_lake::uri::canonical(schedule.dir.path().to_str().expect("UTF-8")).expect("a URI");
    let lake = schedule.lake(usize::MAX);
    let quarantine = Quarantine::open(&lake, &root, Uuid::from_u128(7)).await.expect("opened");
    let (rate, mut out) = (Rate::new(100_000), Taken::default());
    let work = Work {
        lake: &lake,
        uri: &schedule.uri,
        items: &items,
        rule: Rule::Orphans(ages()),
        quarantine: &quarantine,
        rate: &rate,
    };
    let taken = take_away(&mut out, &work, || async { Ok(nobody()) }).await;
    let (done, _) = schedule.told();
    assert!(taken.is_ok() || done.contains(&"clean-up"), "seed {seed}: {done:?}: {taken:?}");
    // The look after everything, as the service takes it.
    let last = seen(&schedule.uri).await;
    let (back, lost) = restore_named(&work, Some(&last), &BTreeSet::new()).await.expect("looked");
    assert!(lost.is_empty() && out.lost.is_empty(), "seed {seed}: {done:?}: {lost:?} {out:?}");
    let last = seen(&schedule.uri).await;
    let there: BTreeSet<String> =
        last.listing.entries.iter().filter_map(|e| squire_lake::look::owner(&e.path)).collect();
    for path in last.uses.paths().filter(|p| !p.starts_with("_transactions/")) {
        assert!(there.contains(path), "seed {seed}: {done:?}: {path} is named and gone; {back:?} {out:?}");
    }
    Sample::ids(&self::lake(), &schedule.uri, None).await.expect("HEAD reads");
}

async fn many(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        scans(seed).await;
        reclaims(seed.wrapping_mul(7_919)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_beside_a_scan_nothing_is_called_orphan_or_missing_wrongly() {
    many(1..41).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "500 schedules: minutes; part of `make test-long`"]
async fn five_hundred_schedules_beside_a_scan() {
    many(1_000..1_500).await;
}

/// Each request of a scan fails in turn: an error, or incomplete references under which nothing is an orphan; never a wrong verdict.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_fails_at_any_request_makes_it_incomplete_and_nothing_wrong() {
    let (dir, uri) = place();
    let mut sample = table(&uri, 3, 10).await;
    sample.index(SampleIndex::BTree).await.expect("indexed");
    sample.tag("x", 2).await.expect("tagged");
    sample.branch("b", 2).await.expect("branched");
    let root = dir.path().join("t");
    plant(&root.join("data/stray.lance"), 30 * DAY);
    age(&root);
    let stray = BTreeSet::from(["data/stray.lance".to_string()]);
    let (mut whole, mut incomplete, mut errors) = (0, 0, 0);
    for n in 1.. {
        let count = Arc::new(Mutex::new(0_u64));
        let counted = count.clone();
        let faults = Faults::new(move |_, _| {
            let mut count = counted.lock().expect("sound");
            *count += 1;
            if *count == n { Fault::Fail(std::io::ErrorKind::ConnectionReset) } else { Fault::Pass }
        });
        let lake = Lake::with_faults(Arc::new(|_: &str| HashMap::new()), 256 << 20, faults);
        match examine(&lake, &uri, &nobody(), &ages()).await {
            Ok(Examination::Dataset(found)) => {
                let orphans: BTreeSet<String> = found.classes.of(Class::Orphan).map(|o| o.path.clone()).collect();
                assert!(found.classes.missing.is_empty(), "request {n}: {:?}", found.classes.missing);
                if found.classes.incomplete.is_empty() {
                    assert_eq!(orphans, stray, "request {n}");
                    whole += 1;
                } else {
                    assert_eq!(orphans, BTreeSet::new(), "request {n}: {:?}", found.classes.incomplete);
                    incomplete += 1;
                }
            }
            Ok(other) => panic!("request {n}: {other:?}"),
            Err(_) => errors += 1,
        }
        if *count.lock().expect("sound") < n {
            break;
        }
    }
    assert!(whole >= 1 && incomplete >= 4 && errors >= 2, "{whole} whole, {incomplete} incomplete, {errors} errors");
}
