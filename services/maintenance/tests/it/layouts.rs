//! Described layouts in, every decision out. No storage.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeZone, Utc};
use roaring::RoaringBitmap;
use squire_lake::index::{IndexInfo, Segment, State};
use squire_lake::look::FragmentInfo;
use squire_maintenance::plan::layout::VersionInfo;
use squire_maintenance::plan::{self, DatasetPlan, Layout, Limits, Rules, Settings, Steps, target};
use squire_registry::{Floors, Governance, Level, Policy, ProtectionInfo, Snapshot, Subject};
use squire_service::config::Mode;

pub fn now() -> DateTime<Utc> {
    Utc.with_ymd_and_hms(2026, 6, 1, 12, 0, 0).single().expect("a time")
}

pub fn governance(policy: &Policy) -> Governance {
    Snapshot::default().govern("s3://lake/acme-silver/t", policy, &Floors::default(), &BTreeMap::new(), now())
}

pub fn settings() -> Settings {
    Settings {
        tiers: BTreeMap::from([("bronze".into(), 512), ("silver".into(), 262_144), ("gold".into(), 524_288)]),
        target_bytes: 1 << 30,
        small_bytes: 1 << 20,
        steps: Steps::ALL,
        steps_asked: false,
        max_rewrite: None,
        mode: Mode::Maintain,
        by_clock: false,
        exclusive: true,
    }
}

pub fn fragment(id: u64, rows: u64, deleted: u64, bytes: u64) -> FragmentInfo {
    FragmentInfo {
        id,
        physical_rows: rows,
        deleted_rows: deleted,
        bytes,
        files: 1,
        files_with_dead_columns: 0,
        external: false,
        complete: true,
        overlays: 0,
    }
}

pub fn index(name: &str, kind: &str, segments: &[&[u32]], fragments: &[FragmentInfo]) -> IndexInfo {
    let segments: Vec<Segment> = segments
        .iter()
        .enumerate()
        .map(|(i, ids)| Segment {
            uuid: uuid::Uuid::from_u128(name.bytes().map(u128::from).sum::<u128>() * 1_000 + i as u128),
            fragments: Some(ids.iter().copied().collect::<RoaringBitmap>()),
            bytes: 1_000 * ids.len() as u64,
            built_from: 9,
        })
        .collect();
    let covered: RoaringBitmap =
        segments.iter().filter_map(|s| s.fragments.clone()).fold(RoaringBitmap::new(), |a, b| a | b);
    let unindexed = fragments.iter().filter(|f| !covered.contains(f.id as u32)).map(FragmentInfo::rows).sum::<u64>();
    IndexInfo {
        name: name.into(),
        kind: kind.into(),
        columns: vec!["id".into()],
        segments,
        indexed_rows: 0,
        unindexed_rows: unindexed,
        dead_rows: 0,
        state: if unindexed > 0 { State::Lagging } else { State::Covered },
        detail: None,
    }
}

pub fn layout(fragments: Vec<FragmentInfo>, indices: Vec<IndexInfo>) -> Layout {
    let live: u64 = fragments.iter().map(|f| f.bytes).sum();
    Layout {
        uri: "s3://lake/acme-silver/t".into(),
        version: 9,
        head_id: String::new(),
        fragments,
        indices,
        columns: 3,
        payload: 0,
        versions: vec![version(9, 2, false)],
        tags: BTreeMap::new(),
        branch_points: BTreeMap::new(),
        live_bytes: live,
        history_bytes: 0,
        config: BTreeMap::new(),
        unclean: Vec::new(),
        old_client: None,
        legacy_index: None,
        deferred_remaps: false,
        detached: false,
        erasure: Default::default(),
        rebuild: Default::default(),
    }
}

/// A version made `hours` ago.
pub fn version(version: u64, hours: i64, ours: bool) -> VersionInfo {
    VersionInfo { version, time: now() - chrono::Duration::hours(hours), ours, exclusive_bytes: 100 * version }
}

pub fn rules<'a>(governance: &'a Governance, settings: &'a Settings) -> Rules<'a> {
    Rules { governance, settings, registry_lost: None, rewritten: &[], free_bytes: None, now: now() }
}

/// Every decision about a layout, as text for a snapshot.
pub fn decisions(layout: &Layout, policy: &Policy, settings: &Settings) -> String {
    let governance = governance(policy);
    let rules = rules(&governance, settings);
    let target = target::decide(layout, &governance, settings);
    let work = plan::work(layout, &rules, &target);
    let mut out = format!(
        "target: {} rows by {} (tier {:?} from {})\n",
        target.rows, target.source, target.tier, target.tier_source
    );
    let say = |v: &plan::Verdict| format!("{}{}", v.outcome, v.reason.map(|r| format!(" ({r})")).unwrap_or_default());
    out += &format!("compact: {}\noptimize_indices: {}\n", say(&work.compact), say(&work.optimize_indices));
    for (i, round) in work.rounds.iter().enumerate() {
        out += &format!("round {}\n", i + 1);
        for t in &round.tasks {
            out +=
                &format!("  merge {:?}: {} rows, {} bytes -> {} fragments\n", t.fragments, t.rows, t.bytes, t.outputs);
        }
        for w in &round.indices {
            out += &format!(
                "  {} {}: {} rows, {} -> {} segments\n",
                w.action, w.name, w.rows, w.segments_before, w.segments_after
            );
        }
    }
    out += &format!(
        "after: {} fragments, {} unindexed rows, {} bytes rewritten\n",
        work.predicted.fragments, work.predicted.unindexed_rows, work.predicted.rewritten_bytes
    );
    let (going, retained) = plan::retention::choose(layout, &rules);
    let kept: Vec<String> = retained.iter().map(|r| format!("{} by {}", r.version, r.by)).collect();
    out += &format!("versions: {going:?} go; stay: {}\n", kept.join(", "));
    out
}

pub fn limits(layout: &Layout, policy: &Policy, settings: &Settings) -> Limits {
    let governance = governance(policy);
    Limits::of(layout, &rules(&governance, settings))
}

#[test]
fn small_appends_are_merged_whole() {
    let fragments = (0..12).map(|i| fragment(i, 100, 0, 8_000)).collect();
    insta::assert_snapshot!(decisions(&layout(fragments, vec![]), &Policy::default(), &settings()));
}

#[test]
fn a_lagging_index_is_folded_before_its_boundary_is_merged_over() {
    let fragments: Vec<_> = (0..10).map(|i| fragment(i, 100, 0, 8_000)).collect();
    let indices = vec![index("id_idx", "BTREE", &[&[0, 1, 2, 3, 4]], &fragments)];
    insta::assert_snapshot!(decisions(&layout(fragments, indices), &Policy::default(), &settings()));
}

#[test]
fn a_zone_map_is_folded_again_after_the_rewrite() {
    let fragments: Vec<_> = (0..6).map(|i| fragment(i, 100, 0, 8_000)).collect();
    let indices = vec![index("z", "ZONEMAP", &[&[0, 1, 2, 3, 4, 5]], &fragments)];
    insta::assert_snapshot!(decisions(&layout(fragments, indices), &Policy::default(), &settings()));
}

#[test]
fn deleted_rows_are_erased_even_alone() {
    let fragments = vec![fragment(0, 400_000, 200_000, 40 << 20), fragment(1, 400_000, 10, 40 << 20)];
    insta::assert_snapshot!(decisions(&layout(fragments, vec![]), &Policy::default(), &settings()));
}

#[test]
fn a_large_fragment_is_not_rewritten_for_a_few_rows() {
    let mut fragments = vec![fragment(0, 100_000, 0, 100 << 20)];
    fragments.extend((1..6).map(|i| fragment(i, 10, 0, 10_000)));
    insta::assert_snapshot!(decisions(&layout(fragments, vec![]), &Policy::default(), &settings()));
}

#[test]
fn files_under_another_base_stay_where_they_are() {
    let fragments = (0..4).map(|i| FragmentInfo { external: true, ..fragment(i, 100, 0, 8_000) }).collect();
    insta::assert_snapshot!(decisions(&layout(fragments, vec![]), &Policy::default(), &settings()));
}

#[test]
fn history_goes_by_when_it_was_replaced() {
    let mut l = layout(vec![fragment(0, 100, 0, 8_000)], vec![]);
    // v1..v5: quiet for weeks; v6 came an hour ago. v5 has been history for an hour, however old it is.
    l.versions = vec![
        version(1, 2_000, false),
        version(2, 1_900, false),
        version(3, 1_800, false),
        version(4, 1_700, false),
        version(5, 1_600, false),
        version(6, 1, false),
    ];
    l.tags.insert("blessed".into(), 2);
    insta::assert_snapshot!(decisions(&l, &Policy::default(), &settings()));
}

#[test]
fn versions_that_squire_made_do_not_count_as_retained() {
    let mut l = layout(vec![fragment(0, 100, 0, 8_000)], vec![]);
    l.versions = (1..=6).map(|v| version(v, 2_000 - v as i64, v >= 4)).collect();
    insta::assert_snapshot!(decisions(&l, &Policy { retain_versions: 2, ..Policy::default() }, &settings()));
}

#[test]
fn a_tier_read_from_the_uri_bounds_only_wide_rows() {
    let narrow = Layout {
        uri: "s3://lake/medallion/bronze".into(),
        ..layout((0..10).map(|i| fragment(i, 200, 0, 12_000)).collect(), vec![])
    };
    let wide = Layout {
        uri: "s3://lake/medallion/bronze".into(),
        ..layout((0..10).map(|i| fragment(i, 200, 0, 40 << 20)).collect(), vec![])
    };
    insta::assert_snapshot!(
        decisions(&narrow, &Policy::default(), &settings()) + &decisions(&wide, &Policy::default(), &settings())
    );
}

/// The clock merges a run of neighbours once there are enough of them, or the table has been quiet for long, or there is something to
/// erase; by hand two are enough.
#[test]
fn the_clock_waits_for_enough_neighbours() {
    let tasks = |by_clock: bool, policy: &Policy, deleted: u64| {
        let fragments = [3, 0].map(|d| d * deleted / 3).into_iter().zip(0..);
        let layout = layout(fragments.map(|(deleted, id)| fragment(id, 10, deleted, 1_000)).collect(), Vec::new());
        let (governance, settings) = (governance(policy), Settings { by_clock, ..settings() });
        let rules = rules(&governance, &settings);
        let target = target::decide(&layout, &governance, &settings);
        plan::compaction::tasks(&layout, &target, &Limits::of(&layout, &rules)).len()
    };
    let hours = |n: u64| std::time::Duration::from_secs(n * 3_600);
    // It was written two hours ago.
    let busy = Policy { min_fragments: 3, settle_after: hours(24), ..Policy::default() };
    assert_eq!((tasks(true, &busy, 0), tasks(false, &busy, 0)), (0, 1));
    assert_eq!(tasks(true, &Policy { min_fragments: 2, ..busy.clone() }, 0), 1);
    assert_eq!(tasks(true, &Policy { settle_after: hours(1), ..busy.clone() }, 0), 1, "quiet");
    assert_eq!(tasks(true, &busy, 5), 1, "half of a fragment's rows are deleted");
}

/// A fragment with many deleted rows is worth a task whatever its neighbours are; the clock comes once the table is worth a pass.
#[test]
fn the_clock_does_not_come_for_the_deleted_rows_of_one_fragment() {
    let due = |min_fragments: u32| {
        let settle_after = std::time::Duration::from_secs(86_400);
        let policy = Policy { min_fragments, settle_after, ..Policy::default() };
        // Four percent of all rows; written two hours ago.
        let layout = layout((0..5).map(|id| fragment(id, 1_000, 200 * u64::from(id == 0), 1 << 20)).collect(), vec![]);
        let (governance, settings) = (governance(&policy), Settings { by_clock: true, ..settings() });
        let target = target::decide(&layout, &governance, &settings);
        let work = plan::work(&layout, &rules(&governance, &settings), &target);
        assert!(work.compact.is_planned());
        let plan = DatasetPlan {
            uri: layout.uri.clone(),
            read_version: layout.version,
            head_id: String::new(),
            flags: Default::default(),
            target,
            rounds: work.rounds,
            compact: work.compact,
            cleanup: work.optimize_indices.clone(),
            optimize_indices: work.optimize_indices,
            removal: Default::default(),
            retained: Vec::new(),
            predicted: work.predicted,
            stranded_bytes: 0,
            held_out: Default::default(),
            erase: false,
        };
        squire_maintenance::admit::not_due(&layout, &plan, &governance, &Default::default(), now()).is_none()
    };
    assert_eq!([5, 6].map(due), [true, false]);
}

/// What was rewritten within the retention counts for the clock; a sweep by hand is free; under a hold nothing is rewritten twice, by
/// anybody and however long ago.
#[test]
fn what_was_rewritten_already_counts_for_the_clock_and_under_a_hold() {
    let policy =
        Policy { retention: std::time::Duration::from_secs(7 * 86_400), max_stranded: 2.0, ..Policy::default() };
    let left = |by_clock: bool, held: bool, days: i64| {
        let layout = layout((0..4).map(|id| fragment(id, 10, 0, 1 << 20)).collect(), Vec::new());
        let mut governance = governance(&policy);
        governance.protection =
            held.then(|| ProtectionInfo { level: Level::KeepHistory, subject: Subject::Estate, reason: None });
        let (settings, rewritten) =
            (Settings { by_clock, ..settings() }, [(now() - chrono::Duration::days(days), 3 << 20)]);
        let rules = Rules { rewritten: &rewritten, ..rules(&governance, &settings) };
        Limits::of(&layout, &rules).rewrite_left.map(|(bytes, _)| bytes >> 20)
    };
    assert_eq!(left(true, false, 1), Some(5), "twice four MiB, of which three are spent");
    assert_eq!(left(true, false, 8), Some(8), "past its retention");
    assert_eq!(left(false, false, 1), None);
    for by_clock in [true, false] {
        assert_eq!((left(by_clock, true, 1), left(by_clock, true, 400)), (Some(1), Some(1)));
    }
}
