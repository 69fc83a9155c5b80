//! Laws of the planner, for any layout.

use proptest::prelude::*;
use squire_lake::look::FragmentInfo;
use squire_maintenance::plan::{self, MAX_ROUNDS, target};
use squire_registry::Policy;

use super::layouts::{fragment, governance, index, layout, rules, settings};

fn any_layout() -> impl Strategy<Value = plan::Layout> {
    let one = (1_u64..5_000, 0_u64..100, 1_u64..200_000_000);
    (proptest::collection::vec(one, 0..24), 0_usize..4, 0_usize..25, 0_usize..3).prop_map(
        |(list, n_indices, covered, segments)| {
            let fragments: Vec<FragmentInfo> = list
                .into_iter()
                .enumerate()
                .map(|(i, (rows, deleted_percent, bytes))| {
                    fragment(i as u64, rows, rows * deleted_percent / 100, bytes)
                })
                .collect();
            let ids: Vec<u32> = (0..covered.min(fragments.len()) as u32).collect();
            let kinds = ["BTREE", "ZONEMAP", "INVERTED", "IVF_PQ"];
            let indices = (0..n_indices)
                .map(|k| {
                    let cut = ids.len() / (segments + 1);
                    let (a, b) = ids.split_at(cut);
                    index(kinds[k], kinds[k], &[a, b], &fragments)
                })
                .collect();
            layout(fragments, indices)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Planned again on its predicted result, a plan is empty.
    #[test]
    fn a_plan_is_a_fixed_point(l in any_layout()) {
        let (g, s) = (governance(&Policy::default()), settings());
        let t = target::decide(&l, &g, &s);
        let first = plan::work(&l, &rules(&g, &s), &t);
        let end = first.rounds.iter().fold(l.clone(), |acc, r| plan::layout::after(&acc, r));
        let again = plan::work(&end, &rules(&g, &s), &t);
        prop_assert!(first.rounds.len() <= MAX_ROUNDS);
        prop_assert!(again.rounds.is_empty(), "first {:?}\nagain {:?}", first.rounds, again.rounds);
    }

    /// No row appears or disappears, no fragment is in two tasks, and every task gains.
    #[test]
    fn a_round_keeps_every_row(l in any_layout()) {
        let (g, s) = (governance(&Policy::default()), settings());
        let t = target::decide(&l, &g, &s);
        let rows = |l: &plan::Layout| l.fragments.iter().map(FragmentInfo::rows).sum::<u64>();
        for round in plan::work(&l, &rules(&g, &s), &t).rounds {
            let mut seen: Vec<u64> = round.tasks.iter().flat_map(|t| t.fragments.clone()).collect();
            let n = seen.len();
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len(), n);
        }
        let end = plan::work(&l, &rules(&g, &s), &t).rounds.iter().fold(l.clone(), |acc, r| plan::layout::after(&acc, r));
        prop_assert_eq!(rows(&end), rows(&l));
    }

    /// `observe` plans everything; it only never applies.
    #[test]
    fn observe_plans_what_maintain_plans(l in any_layout()) {
        let g = governance(&Policy::default());
        let (s, o) = (settings(), plan::Settings { mode: squire_service::config::Mode::Observe, ..settings() });
        let t = target::decide(&l, &g, &s);
        prop_assert_eq!(plan::work(&l, &rules(&g, &s), &t).rounds, plan::work(&l, &rules(&g, &o), &t).rounds);
    }
}
