//! Tables that grow by small appends, swept after each: how many bytes that costs, and what it looks like in the end.

use std::sync::Arc;

use squire_lake::index::IndexInfo;
use squire_lake::look::FragmentInfo;
use squire_lake::sample::{Columns, Sample, SampleIndex};
use squire_maintenance::apply::Tools;
use squire_maintenance::driver::{self, Selection};
use squire_maintenance::estate::Estate;
use squire_maintenance::known;
use squire_maintenance::plan::layout::after;
use squire_maintenance::plan::{self, Layout, Round, Settings, Steps, target};
use squire_registry::Policy;
use squire_service::report::Dataset;

use super::common::*;
use super::inside::run_record;
use super::layouts::{fragment, governance, index, layout, rules, settings};

const MB: u64 = 1_000_000;

/// Bytes rewritten so far, by what they are.
#[derive(Debug, Default)]
struct Rewritten {
    data: u64,
    index: u64,
    remap: u64,
}

impl Rewritten {
    fn total(&self) -> u64 {
        self.data + self.index + self.remap
    }

    fn add(&mut self, before: &Layout, round: &Round) {
        self.data += round.tasks.iter().map(|t| t.bytes).sum::<u64>();
        self.index += round.indices.iter().map(|i| i.bytes).sum::<u64>();
        let moved = |id: u32| round.tasks.iter().any(|t| t.fragments.contains(&u64::from(id)));
        let touched = |i: &IndexInfo| -> u64 {
            let hit = i.segments.iter().filter(|s| s.fragments.iter().flatten().any(moved));
            hit.map(|s| s.bytes).sum()
        };
        self.remap += before.indices.iter().map(touched).sum::<u64>();
    }
}

/// A table of 400 MB with indices of these bytes grows by 1 % a hundred times, each time with a sweep by hand.
fn grow(index_bytes: &[u64], settings: &Settings) -> (Layout, Rewritten, usize) {
    let fragments = vec![fragment(0, 400_000, 0, 400 * MB)];
    let indices = index_bytes.iter().enumerate().map(|(i, bytes)| {
        let mut index = index(&format!("i{i}"), "BTREE", &[&[0]], &fragments);
        index.segments[0].bytes = *bytes;
        index.indexed_rows = 400_000;
        index
    });
    let mut at = layout(fragments.clone(), indices.collect());
    let (mut rewritten, mut most) = (Rewritten::default(), 0);
    // Written an hour ago, so that quiet does not merge it whole.
    at.versions = vec![super::layouts::version(9, 1, false)];
    for _ in 0..100 {
        let next = at.fragments.iter().map(|f| f.id).max().unwrap_or(0) + 1;
        at.fragments.push(fragment(next, 4_000, 0, 4 * MB));
        at = after(&at, &Round::default());
        let g = governance(&Policy::default());
        let target = target::decide(&at, &g, settings);
        for round in plan::work(&at, &rules(&g, settings), &target).rounds {
            rewritten.add(&at, &round);
            at = after(&at, &round);
        }
        most = most.max(at.fragments.len());
    }
    (at, rewritten, most)
}

#[test]
fn a_hundred_appends_of_one_percent_rewrite_less_than_four_times_their_bytes() {
    let (end, rewritten, most) = grow(&[], &settings());
    assert!(rewritten.total() < 4 * 400 * MB + 400 * MB, "{rewritten:?}");
    assert!(most <= 16, "{most} fragments");
    assert_eq!(end.fragments.iter().map(FragmentInfo::rows).sum::<u64>(), 800_000);
}

#[test]
fn with_indices_they_rewrite_less_than_eight_times_their_bytes() {
    // A BTREE of 8 bytes a row and a full-text index of a third of the table.
    let (end, rewritten, most) = grow(&[4 * MB, 130 * MB], &settings());
    assert!(rewritten.total() < 8 * 400 * MB + 400 * MB, "{rewritten:?}");
    assert!(most <= 24, "{most} fragments");
    assert!(end.indices.iter().all(|i| i.segments.len() <= 4 && i.unindexed_rows == 0), "{:?}", end.indices);
}

/// A real table in a lake of its own, swept in this process.
struct Grown {
    here: Here,
    sample: Sample,
    env: Vec<(String, String)>,
    due: bool,
    rewritten: u64,
    rows: i64,
}

impl Grown {
    async fn new(columns: Columns, rows: usize, due: bool, env: &[(&str, &str)]) -> Self {
        let here = Here::new();
        std::fs::create_dir_all(here.path("lake")).expect("made");
        let mut sample = Sample::new(here.uri("lake/t"), columns);
        sample.write(rows, 0).await.expect("written");
        let env = env.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect();
        Self { here, sample, env, due, rewritten: 0, rows: i64::try_from(rows).expect("few") }
    }

    async fn append(&mut self, rows: usize) {
        self.sample.write(rows, self.rows).await.expect("appended");
        self.rows += i64::try_from(rows).expect("few");
    }

    /// Plans and applies, as the command does; returns the table's row.
    async fn sweep(&mut self) -> Dataset {
        let config = squire_service::config::Loader::<squire_registry::Policy, squire_registry::Floors>::new(1)
            .directory(self.here.path(""))
            .env(self.env.clone())
            .load()
            .expect("a config");
        let roots = [self.here.text("lake")];
        let clock = squire_service::clock::Clock::system();
        let mut estate = Estate::open(config, &roots, clock, Default::default()).await.expect("opened");
        let registry = estate.writable().await.expect("a registry");
        let settings = estate.settings(self.due, Steps::ALL, false, None);
        let selection = Selection { due: self.due, ..Selection::default() };
        let planned = driver::plan_estate(&estate, &selection, &settings, None).await;
        if self.due {
            known::remember(&estate, &settings, &planned).await;
        }
        let has_work = |c: &driver::Candidate| matches!(&c.case, driver::Case::Planned(p) if p.has_work());
        if !planned.candidates.iter().any(has_work) {
            return driver::datasets(&estate, &planned, &Default::default()).remove(0);
        }
        registry.run_open(run_record(&estate, &registry)).await.expect("a run");
        let tools = Tools {
            estate: estate.clone(),
            registry,
            settings,
            rates: Default::default(),
            shutdown: squire_service::shutdown::Shutdown::manual(),
            graph: planned.graph.clone(),
            progress: Arc::new(|_: &str| {}),
            admission: squire_maintenance::memory::Admission::new(1 << 40),
            prepared: Default::default(),
        };
        let applied = driver::apply_estate(&tools, &planned).await;
        let done = applied.values().map(|(a, _)| a);
        self.rewritten += done.map(|a| a.compact.bytes + a.indices.iter().map(|i| i.bytes).sum::<u64>()).sum::<u64>();
        let report = |rows: Vec<Dataset>| serde_json::json!({"datasets": rows, "finished_at": chrono::Utc::now()});
        let foretold = driver::datasets(&estate, &planned, &Default::default());
        let rows = driver::datasets(&estate, &planned, &applied);
        assert_foretold(&report(foretold), &report(rows.clone()));
        let row = rows.into_iter().next().expect("a row");
        assert!(row.outcome.failure().is_none(), "{:?}", row.outcome);
        row
    }

    /// Bytes of everything in the table's folder.
    fn disk(&self) -> u64 {
        let mut queue = vec![self.here.path("lake/t")];
        let mut bytes = 0;
        while let Some(dir) = queue.pop() {
            for entry in std::fs::read_dir(dir).expect("readable").flatten() {
                let meta = entry.metadata().expect("metadata");
                if meta.is_dir() { queue.push(entry.path()) } else { bytes += meta.len() }
            }
        }
        bytes
    }

    /// Fragments, and segments by index, at HEAD.
    async fn shape(&self) -> (usize, Vec<usize>) {
        let uri = self.here.uri("lake/t");
        let looked = squire_lake::look::look(&lake(), &uri, chrono::Utc::now()).await.expect("a look");
        let squire_lake::look::Looked::Dataset(look) = looked else { panic!("no dataset") };
        assert!(look.indices.iter().all(|i| i.unindexed_rows == 0), "{:?}", look.indices);
        (look.fragments.len(), look.indices.iter().map(|i| i.segments.len()).collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_with_a_row_a_tick_stays_below_three_times_its_live_bytes() {
    let env = [("SQUIRE_POLICY__INTERVAL", "0s")];
    let mut grown = Grown::new(Columns { page: 1_000, ..Columns::default() }, 6_000, true, &env).await;
    let live = grown.disk();
    assert!((6_000_000..7_000_000).contains(&live), "{live}");
    for _ in 0..144 {
        grown.append(1).await;
        grown.sweep().await;
    }
    let (fragments, _) = grown.shape().await;
    assert!(grown.disk() <= 3 * live, "{} bytes of {live}", grown.disk());
    assert!(fragments <= 16, "{fragments} fragments");
    assert_eq!(Sample::ids(&lake(), &grown.here.uri("lake/t"), None).await.expect("it reads").len(), 6_144);
    grown.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn twelve_rounds_on_a_small_vector_table_end_in_few_fragments_and_segments() {
    let mut grown = Grown::new(Columns { vector: 16, ..Columns::default() }, 2_000, false, &[]).await;
    grown.sample.index(SampleIndex::Vector).await.expect("indexed");
    for _ in 0..12 {
        grown.append(100).await;
        grown.sweep().await;
    }
    let (fragments, segments) = grown.shape().await;
    assert!(fragments <= 3 && segments.iter().all(|s| *s <= 2), "{fragments} fragments, {segments:?} segments");
    grown.here.oracle("lake");
}

/// The measure on real bytes: 4 times what was appended plus the table without indices; 8 times with them.
async fn rounds(rows: usize, n: usize, indexed: bool, env: &[(&str, &str)]) {
    let mut grown = Grown::new(Columns { page: 1_000, ..Columns::default() }, rows, false, env).await;
    if indexed {
        grown.sample.index(SampleIndex::BTree).await.expect("indexed");
        grown.sample.index(SampleIndex::FullText).await.expect("indexed");
        grown.sweep().await;
        grown.rewritten = 0;
    }
    let initial = grown.disk();
    let mut appended = 0;
    for _ in 0..n {
        let before = grown.disk();
        grown.append(rows / 100).await;
        appended += grown.disk() - before;
        grown.sweep().await;
    }
    let (fragments, segments) = grown.shape().await;
    let (times, most) = if indexed { (8, 24) } else { (4, 16) };
    // Everything that is new on disk beside the appends was written by sweeps, remaps included.
    let written = grown.disk() - initial - appended;
    eprintln!(
        "{n} rounds on {initial} bytes: {appended} appended, {written} written, {} reported, {fragments} fragments, {segments:?} segments",
        grown.rewritten
    );
    assert!(written < times * appended + initial, "{written} bytes written for {appended} appended to {initial}");
    assert!(fragments <= most && segments.iter().all(|s| *s <= 4), "{fragments} fragments, {segments:?} segments");
    grown.here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_of_one_percent_rewrite_few_bytes() {
    rounds(10_000, 32, false, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-long"]
async fn a_hundred_appends_of_one_percent_to_400_mb_rewrite_few_bytes() {
    rounds(400_000, 100, false, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes: make test-long"]
async fn a_hundred_appends_of_one_percent_to_400_mb_with_indices_rewrite_few_bytes() {
    rounds(400_000, 100, true, &[]).await;
}
