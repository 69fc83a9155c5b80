//! Layouts that hurt somebody once, one test per public incident (facts about operators' reports; the references are in the
//! names' comments).

use squire_lake::index::State;
use squire_lake::look::FragmentInfo;
use squire_maintenance::plan::{self, target};
use squire_registry::Policy;

use super::layouts::{fragment, governance, index, layout, limits, rules, settings};

fn work(l: &plan::Layout) -> plan::Work {
    let governance = governance(&Policy::default());
    let settings = settings();
    let target = target::decide(l, &governance, &settings);
    plan::work(l, &rules(&governance, &settings), &target)
}

/// 6 GiB of rows became 98 GiB: the never-full last fragment was rewritten on every run.
#[test]
fn a_growing_tail_is_not_rewritten_every_run() {
    let l = layout(vec![fragment(0, 900_000, 0, 2 << 30), fragment(1, 1, 0, 1_000)], vec![]);
    assert!(work(&l).rounds.is_empty());
}

/// Rows so wide that a cap on bytes stopped any fragment from reaching the row target: 31 rewrites of 1 GB for nothing.
#[test]
fn four_full_fragments_do_not_become_four_full_fragments() {
    let l = layout((0..4).map(|i| fragment(i, 20, 0, 1 << 30)).collect(), vec![]);
    let w = work(&l);
    assert!(w.rounds.is_empty(), "{:?}", w.rounds);
}

/// Small remainders walled in between full fragments that no later run could merge.
#[test]
fn no_remainder_is_walled_in() {
    let policy = Policy { target_rows: Some(500), ..Policy::default() };
    let l = layout((0..10).map(|i| fragment(i, 200, 0, 10_000)).collect(), vec![]);
    let g = governance(&policy);
    let s = settings();
    let t = target::decide(&l, &g, &s);
    let after = plan::layout::after(&l, &plan::next_round(&l, &t, &limits(&l, &policy, &s), true, true));
    assert!(after.fragments.iter().all(|f| f.physical_rows >= 500), "{:?}", after.fragments);
}

/// One index segment per fragment stopped compaction for ever.
#[test]
fn segments_that_wedge_compaction_are_merged_first() {
    let fragments: Vec<FragmentInfo> = (0..6).map(|i| fragment(i, 100, 0, 8_000)).collect();
    let each: [&[u32]; 6] = [&[0], &[1], &[2], &[3], &[4], &[5]];
    let l = layout(fragments.clone(), vec![index("v", "IVF_PQ", &each, &fragments)]);
    let w = work(&l);
    assert_eq!(w.predicted.fragments, 1);
    assert_eq!(w.predicted.segments["v"], 1);
    assert!(w.rounds[0].tasks.is_empty(), "the segments are merged before the fragments");
}

/// A full-text index that never folded a single row because cleanup was switched off.
#[test]
fn folding_does_not_depend_on_cleanup() {
    let fragments: Vec<FragmentInfo> = (0..2).map(|i| fragment(i, 100, 0, 8_000)).collect();
    let l = layout(fragments.clone(), vec![index("f", "INVERTED", &[&[]], &fragments)]);
    let policy = Policy { cleanup: false, ..Policy::default() };
    let g = governance(&policy);
    let s = settings();
    let t = target::decide(&l, &g, &s);
    assert!(plan::work(&l, &rules(&g, &s), &t).optimize_indices.is_planned());
}

/// A vector index on too little data committed an empty version on every optimise.
#[test]
fn an_untrained_index_makes_no_commit() {
    let fragments: Vec<FragmentInfo> = vec![fragment(0, 100, 0, 8_000)];
    let mut v = index("v", "VECTOR", &[&[]], &fragments);
    v.state = State::Untrained;
    let w = work(&layout(fragments, vec![v]));
    assert!(w.rounds.is_empty());
    assert_eq!(w.optimize_indices.reason.map(|r| r.as_str()), Some("untrained"));
}

/// Optimise without new data rewrote every index each time and filled the disk.
#[test]
fn a_covered_index_is_left_alone() {
    let fragments: Vec<FragmentInfo> = vec![fragment(0, 100, 0, 8_000)];
    let l = layout(fragments.clone(), vec![index("id", "BTREE", &[&[0]], &fragments)]);
    assert!(work(&l).rounds.is_empty());
}

/// The widest fragment decides the size of a batch and of a fragment, not the average: 124 GB of memory.
#[test]
fn the_widest_fragment_decides_the_target() {
    let l = layout(vec![fragment(0, 1_000, 0, 1_000_000), fragment(1, 8, 0, 1 << 30)], vec![]);
    let t = target::decide(&l, &governance(&Policy::default()), &settings());
    assert_eq!((t.rows, t.source.as_str()), (8, "bytes"));
}

/// An index this build cannot open addresses rows that a rewrite would move.
#[test]
fn fragments_under_an_unreadable_index_type_are_held_out() {
    let fragments: Vec<FragmentInfo> = (0..6).map(|i| fragment(i, 100, 0, 8_000)).collect();
    let mut x = index("x", "RTREE", &[&[0, 1, 2]], &fragments);
    x.state = State::Unsupported;
    let w = work(&layout(fragments, vec![x]));
    let merged: Vec<u64> = w.rounds.iter().flat_map(|r| &r.tasks).flat_map(|t| t.fragments.clone()).collect();
    assert_eq!(merged, vec![3, 4, 5]);
}
