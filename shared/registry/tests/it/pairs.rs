//! Two writers of different records at once, for every pair of records that a rule spans, on disk and on a real S3 server.
//!
//! Whoever wins, the records fit together afterwards: `check` finds nothing, what was protected is not gone, and no dataset
//! is nobody's.

use std::time::Duration;

use squire_registry::{
    Block, BlockKind, DropRequest, Error, Floors, Kind, Level, NewTable, Policy, PolicyChange, ProblemKind, Registry,
    Result, Snapshot, StorageOptions, Subject, check,
};

use crate::many_writers::Estate;
use crate::support::path;

const WEEK: Duration = Duration::from_secs(7 * 86_400);
/// Rounds of each pair on each store, each with names of its own.
const ROUNDS: usize = 3;

/// One round: a namespace of its own and a client for each side.
struct Round {
    n: usize,
    options: StorageOptions,
    root: String,
    ours: Registry,
    theirs: Registry,
    look: Registry,
}

impl Round {
    fn ns(&self) -> String {
        format!("n{}", self.n)
    }

    fn name(&self, table: &str) -> Vec<String> {
        path(&format!("n{}/{table}", self.n))
    }

    fn subject(&self, table: &str) -> Subject {
        Subject::Table(self.name(table))
    }

    fn namespace(&self) -> Subject {
        Subject::Namespace(path(&self.ns()))
    }

    fn fresh(&self, table: &str, location: &str) -> NewTable {
        let location = format!("{}-{location}", self.n);
        NewTable { path: self.name(table), location, tier: None, labels: vec![], declare: true }
    }

    async fn table(&self, table: &str, location: &str) {
        self.look.table_create(self.fresh(table, location), &self.options, None).await.unwrap();
    }

    /// Runs both sides at once.
    async fn race<A, B>(&self, a: A, b: B) -> (A::Output, B::Output)
    where
        A: Future + Send + 'static,
        B: Future + Send + 'static,
        A::Output: Send + 'static,
        B::Output: Send + 'static,
    {
        let (a, b) = (tokio::spawn(a), tokio::spawn(b));
        (a.await.unwrap(), b.await.unwrap())
    }

    /// Everything fits together, and nobody failed for another reason than the other one.
    async fn whole(&self, errors: &[Option<&Error>]) -> Snapshot {
        for error in errors.iter().flatten() {
            let fair = matches!(error.kind(), Kind::Refused | Kind::Conflict | Kind::NotFound);
            assert!(fair, "{}: {error}", self.root);
        }
        let now = self.look.snapshot().await.unwrap();
        let mut problems = check(&now);
        // One lake holds the warehouses of all rounds.
        problems.retain(|p| p.kind != ProblemKind::BucketSharedByProjects);
        assert_eq!(problems, [], "{}", self.root);
        now
    }

    /// Where a location is by now: names of live tables, and of tables in the trash.
    fn held(&self, now: &Snapshot, location: &str) -> (Vec<String>, Vec<String>) {
        let ends = format!("/{}-{location}", self.n);
        let live = now.tables().filter(|t| t.fields.uri.ends_with(&ends)).map(|t| t.fields.subject().to_string());
        let gone = now.trash().filter(|t| t.fields.uri.ends_with(&ends)).map(|t| t.fields.subject.to_string());
        (live.collect(), gone.collect())
    }
}

/// Every round of one pair, on disk and on S3.
async fn rounds(test: &str, once: impl AsyncFn(Round)) {
    for estate in Estate::both(test).await {
        let look = estate.client().await;
        for n in 0..ROUNDS {
            let round = Round {
                n,
                options: estate.options.clone(),
                root: estate.root.clone(),
                ours: estate.client().await,
                theirs: estate.client().await,
                look: look.clone(),
            };
            look.namespace_create(&path(&round.ns()), Some("w"), None).await.unwrap();
            once(round).await;
        }
    }
}

macro_rules! ours {
    ($round:ident, $side:ident, $options:ident => $call:expr) => {{
        #[allow(unused_variables)]
        let ($side, $options) = ($round.$side.clone(), $round.options.clone());
        async move { $call.await }
    }};
}

async fn cascade(registry: Registry, subject: Subject) -> Result<()> {
    let plan = registry.drop_plan(&subject, DropRequest { grace: WEEK, force: false, cascade: true }).await?;
    registry.drop_apply(&plan, None).await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_warehouse_is_made_while_its_project_goes() {
    rounds("a_warehouse_is_made_while_its_project_goes", async |round| {
        let (project, id) = (format!("q{}", round.n), format!("x{}", round.n));
        round.look.project_create(&project, None).await.unwrap();
        let root = format!("{}/sub{}", round.root, round.n);
        if !root.contains("://") {
            std::fs::create_dir_all(&root).unwrap();
        }
        let (p, subject) = (project.clone(), Subject::Project(project.clone()));
        let (made, gone) = round
            .race(
                ours!(round, ours, options => ours.warehouse_create(&id, &p, &root, true, &options, None)),
                ours!(round, theirs, options => theirs.container_drop(&subject, false, None)),
            )
            .await;
        let now = round.whole(&[made.as_ref().err(), gone.as_ref().err()]).await;
        assert!(made.is_err() || gone.is_err());
        assert_eq!(now.warehouse(&format!("x{}", round.n)).is_some(), made.is_ok());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_namespace_or_a_table_is_made_while_its_namespace_goes() {
    rounds("a_namespace_or_a_table_is_made_while_its_namespace_goes", async |round| {
        let (child, subject) = (round.name("inner"), round.namespace());
        let (made, gone) = round
            .race(
                ours!(round, ours, options => ours.namespace_create(&child, None, None)),
                ours!(round, theirs, options => theirs.container_drop(&subject, false, None)),
            )
            .await;
        let now = round.whole(&[made.as_ref().err(), gone.as_ref().err()]).await;
        assert!(made.is_err() || gone.is_err());
        assert_eq!(now.namespace(&round.name("inner")).is_some(), made.is_ok());

        let parent = format!("m{}", round.n);
        round.look.namespace_create(&path(&parent), Some("w"), None).await.unwrap();
        let new = NewTable { path: path(&format!("{parent}/t")), ..round.fresh("t", "m") };
        let subject = Subject::Namespace(path(&parent));
        let (made, gone) = round
            .race(
                ours!(round, ours, options => ours.table_create(new, &options, None)),
                ours!(round, theirs, options => theirs.container_drop(&subject, false, None)),
            )
            .await;
        round.whole(&[made.as_ref().err(), gone.as_ref().err()]).await;
        assert!(made.is_err() || gone.is_err());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_namespace_is_made_while_its_warehouse_goes() {
    rounds("a_namespace_is_made_while_its_warehouse_goes", async |round| {
        let (id, root) = (format!("y{}", round.n), format!("{}/why{}", round.root, round.n));
        if !root.contains("://") {
            std::fs::create_dir_all(&root).unwrap();
        }
        round.look.warehouse_create(&id, "p", &root, true, &round.options, None).await.unwrap();
        let (subject, top) = (Subject::Warehouse(id.clone()), path(&format!("top{}", round.n)));
        let (made, gone) = round
            .race(
                ours!(round, ours, options => ours.namespace_create(&top, Some(&id), None)),
                ours!(round, theirs, options => theirs.container_drop(&subject, false, None)),
            )
            .await;
        round.whole(&[made.as_ref().err(), gone.as_ref().err()]).await;
        assert!(made.is_err() || gone.is_err());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_tables_one_in_the_other_at_most_one_is_made() {
    rounds("of_two_tables_one_in_the_other_at_most_one_is_made", async |round| {
        let (outer, inner) = (round.fresh("outer", "x"), round.fresh("inner", "x/data/y"));
        let (one, two) = round
            .race(
                ours!(round, ours, options => ours.table_create(outer, &options, None)),
                ours!(round, theirs, options => theirs.table_create(inner, &options, None)),
            )
            .await;
        assert!(one.is_err() || two.is_err());
        let now = round.whole(&[one.as_ref().err(), two.as_ref().err()]).await;
        let made = now.tables().filter(|t| t.fields.path[0] == round.ns()).count();
        assert_eq!(made, usize::from(one.is_ok() || two.is_ok()));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_location_is_registered_while_its_table_is_dropped() {
    rounds("a_location_is_registered_while_its_table_is_dropped", async |round| {
        round.table("t", "x").await;
        let (new, name) = (round.fresh("u", "x"), round.name("t"));
        let (made, gone) = round
            .race(
                ours!(round, ours, options => ours.table_create(new, &options, None)),
                ours!(round, theirs, options => theirs.table_drop(&name, WEEK, false, None)),
            )
            .await;
        let now = round.whole(&[made.as_ref().err(), gone.as_ref().err()]).await;
        assert!(made.is_err() && gone.is_ok(), "the trash holds it: {made:?} {gone:?}");
        assert_eq!(round.held(&now, "x"), (vec![], vec![round.subject("t").to_string()]));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_renames_and_a_rename_beside_a_drop_have_one_winner() {
    rounds("two_renames_and_a_rename_beside_a_drop_have_one_winner", async |round| {
        round.table("t", "x").await;
        let (from, one, two) = (round.name("t"), round.name("one"), round.name("two"));
        let again = from.clone();
        let (a, b) = round
            .race(
                ours!(round, ours, options => ours.table_rename(&from, &one, false, &Policy::default(), None)),
                ours!(round, theirs, options => theirs.table_rename(&again, &two, false, &Policy::default(), None)),
            )
            .await;
        let now = round.whole(&[a.as_ref().err(), b.as_ref().err()]).await;
        let (live, gone) = round.held(&now, "x");
        assert_eq!((live.len(), gone.len()), (1, 0), "{live:?} {gone:?} {a:?} {b:?}");
        assert!(a.is_err() || b.is_err());

        // Two tables want one name.
        round.table("s", "y").await;
        round.table("r", "z").await;
        let (s, r, u) = (round.name("s"), round.name("r"), round.name("u"));
        let v = u.clone();
        let (a, b) = round
            .race(
                ours!(round, ours, options => ours.table_rename(&s, &u, false, &Policy::default(), None)),
                ours!(round, theirs, options => theirs.table_rename(&r, &v, false, &Policy::default(), None)),
            )
            .await;
        let now = round.whole(&[a.as_ref().err(), b.as_ref().err()]).await;
        assert_eq!((round.held(&now, "y").0.len(), round.held(&now, "z").0.len()), (1, 1), "{a:?} {b:?}");
        assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");

        round.table("q", "w").await;
        let (q, new) = (round.name("q"), round.name("new"));
        let drop = q.clone();
        let (a, b) = round
            .race(
                ours!(round, ours, options => ours.table_rename(&q, &new, false, &Policy::default(), None)),
                ours!(round, theirs, options => theirs.table_drop(&drop, WEEK, false, None)),
            )
            .await;
        let now = round.whole(&[a.as_ref().err(), b.as_ref().err()]).await;
        let (live, gone) = round.held(&now, "w");
        assert_eq!((live.len(), gone.len()), (usize::from(a.is_ok()), usize::from(b.is_ok())), "{a:?} {b:?}");
        assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rename_whose_new_namespace_goes_keeps_the_old_name() {
    rounds("a_rename_whose_new_namespace_goes_keeps_the_old_name", async |round| {
        round.table("t", "x").await;
        let parent = format!("to{}", round.n);
        round.look.namespace_create(&path(&parent), Some("w"), None).await.unwrap();
        let (from, to) = (round.name("t"), path(&format!("{parent}/t")));
        let subject = Subject::Namespace(path(&parent));
        let (a, b) = round
            .race(
                ours!(round, ours, options => ours.table_rename(&from, &to, false, &Policy::default(), None)),
                ours!(round, theirs, options => theirs.container_drop(&subject, false, None)),
            )
            .await;
        let now = round.whole(&[a.as_ref().err(), b.as_ref().err()]).await;
        let (live, gone) = round.held(&now, "x");
        let name = if a.is_ok() { format!("table/{parent}/t") } else { round.subject("t").to_string() };
        assert_eq!((live, gone), (vec![name], vec![]), "{a:?} {b:?}");
        assert!(a.is_err() || b.is_err());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_undrop_beside_another_undrop_a_drop_or_the_same_name() {
    rounds("an_undrop_beside_another_undrop_a_drop_or_the_same_name", async |round| {
        round.table("t", "x").await;
        let subject = round.subject("t");
        round.look.protect(&subject, Level::NoDrop, Some("precious")).await.unwrap();
        round.look.table_drop(&round.name("t"), WEEK, true, None).await.unwrap();
        let (one, two) = (subject.clone(), subject.clone());
        let (a, b) = round
            .race(
                ours!(round, ours, options => ours.undrop(&one, None)),
                ours!(round, theirs, options => theirs.undrop(&two, None)),
            )
            .await;
        let now = round.whole(&[a.as_ref().err(), b.as_ref().err()]).await;
        assert!(a.is_ok() || b.is_ok(), "{a:?} {b:?}");
        assert_eq!(round.held(&now, "x"), (vec![subject.to_string()], vec![]));
        assert_eq!(now.protection_of(&subject).unwrap().meta.reason.as_deref(), Some("precious"));

        // Whoever comes last decides, and its protection is with it wherever it is.
        round.look.table_drop(&round.name("t"), WEEK, true, None).await.unwrap();
        let (one, name) = (subject.clone(), round.name("t"));
        let (a, b) = round
            .race(
                ours!(round, ours, options => ours.undrop(&one, None)),
                ours!(round, theirs, options => theirs.table_drop(&name, WEEK, true, None)),
            )
            .await;
        let now = round.whole(&[a.as_ref().err(), b.as_ref().err()]).await;
        let (live, gone) = round.held(&now, "x");
        assert_eq!(live.len() + gone.len(), 1, "{live:?} {gone:?} {a:?} {b:?}");
        let carried = now.trash().find(|t| t.fields.subject == subject).is_some_and(|t| t.fields.protection.is_some());
        assert!(carried || now.protection_of(&subject).is_some(), "{a:?} {b:?}");

        if live.len() == 1 {
            round.look.table_drop(&round.name("t"), WEEK, true, None).await.unwrap();
        }
        let (one, new) = (subject.clone(), round.fresh("t", "y"));
        let (a, b) = round
            .race(
                ours!(round, ours, options => ours.undrop(&one, None)),
                ours!(round, theirs, options => theirs.table_create(new, &options, None)),
            )
            .await;
        let now = round.whole(&[a.as_ref().err(), b.as_ref().err()]).await;
        assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
        // The one that was made anew inherits nothing.
        assert_eq!(now.protection_of(&subject).is_some(), a.is_ok());
        let (live, gone) = round.held(&now, "x");
        assert_eq!(live.len() + gone.len(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_put_on_a_table_that_is_dropped_is_seen_or_refused() {
    rounds("what_is_put_on_a_table_that_is_dropped_is_seen_or_refused", async |round| {
        for (table, what) in [("t", 0), ("u", 1), ("v", 2)] {
            round.table(table, table).await;
            let (subject, name) = (round.subject(table), round.name(table));
            let on = subject.clone();
            let put = async move |r: Registry| match what {
                0 => r.protect(&on, Level::KeepHistory, Some("case 7")).await,
                1 => {
                    let block = Block { subject: on, kind: BlockKind::Operator, until: None, version: None };
                    r.block_add(block, "moving").await.map(|_| ())
                }
                _ => {
                    let keys = [("interval".to_owned(), "2h".to_owned())];
                    let at = chrono::Utc::now();
                    let change = PolicyChange { subject: &on, keys: &keys, reason: None, immediately: false, at };
                    r.policy_set(&change, &Policy::default(), &Floors::default()).await.map(|_| ())
                }
            };
            let ours = round.ours.clone();
            let (a, b) = round
                .race(
                    async move { put(ours).await },
                    ours!(round, theirs, options => theirs.table_drop(&name, WEEK, false, None)),
                )
                .await;
            let now = round.whole(&[a.as_ref().err(), b.as_ref().err()]).await;
            let (live, gone) = round.held(&now, table);
            assert_eq!((live.len(), gone.len()), (usize::from(b.is_err()), usize::from(b.is_ok())), "{a:?} {b:?}");
            if what == 0 {
                assert!(a.is_ok() != b.is_ok(), "a hold that was put holds: {a:?} {b:?}");
                assert_eq!(now.protection_of(&subject).is_some(), a.is_ok());
            } else if let (Ok(()), Some(t)) = (&a, now.trash().find(|t| t.fields.subject == subject)) {
                assert!(t.fields.policy.is_some() || t.fields.blocks.len() == 1, "what was put is carried along");
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_container_is_protected_while_it_goes() {
    rounds("a_container_is_protected_while_it_goes", async |round| {
        let (one, two) = (round.namespace(), round.namespace());
        let (a, b) = round
            .race(
                ours!(round, ours, options => ours.protect(&one, Level::NoDrop, None)),
                ours!(round, theirs, options => theirs.container_drop(&two, false, None)),
            )
            .await;
        let now = round.whole(&[a.as_ref().err(), b.as_ref().err()]).await;
        assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
        assert_eq!(now.exists(&round.namespace()), b.is_err());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cascade_beside_a_new_table_protection_and_another_cascade() {
    rounds("a_cascade_beside_a_new_table_protection_and_another_cascade", async |round| {
        round.table("t", "x").await;
        let new = round.fresh("u", "y");
        let (a, b) = round
            .race(
                ours!(round, ours, options => ours.table_create(new, &options, None)),
                cascade(round.theirs.clone(), round.namespace()),
            )
            .await;
        let now = round.whole(&[a.as_ref().err(), b.as_ref().err()]).await;
        let (live, gone) = round.held(&now, "x");
        assert_eq!((live.len(), gone.len()), (usize::from(b.is_err()), usize::from(b.is_ok())), "{a:?} {b:?}");
        if b.is_ok() {
            round.look.undrop_namespace(&round.namespace(), None).await.unwrap();
        }

        let subject = round.subject("t");
        let on = subject.clone();
        let (a, b) = round
            .race(
                ours!(round, ours, options => ours.protect(&on, Level::KeepHistory, None)),
                cascade(round.theirs.clone(), round.namespace()),
            )
            .await;
        let now = round.whole(&[a.as_ref().err(), b.as_ref().err()]).await;
        assert!(a.is_err() || b.is_err(), "a hold that was put holds: {a:?} {b:?}");
        assert_eq!(now.table(&round.name("t")).is_some(), b.is_err(), "{a:?} {b:?}");
        if a.is_ok() {
            round.look.unprotect(&subject, None).await.unwrap();
        }
        if b.is_ok() {
            round.look.undrop_namespace(&round.namespace(), None).await.unwrap();
        }

        let (a, b) = round
            .race(cascade(round.ours.clone(), round.namespace()), cascade(round.theirs.clone(), round.namespace()))
            .await;
        let now = round.whole(&[a.as_ref().err(), b.as_ref().err()]).await;
        assert!(a.is_ok() || b.is_ok(), "{a:?} {b:?}");
        assert_eq!(now.trashed_namespaces().filter(|t| t.fields.subject == round.namespace()).count(), 1);

        let (one, two) = (round.namespace(), round.namespace());
        let (a, b) = round
            .race(
                ours!(round, ours, options => ours.undrop_namespace(&one, None)),
                ours!(round, theirs, options => theirs.undrop_namespace(&two, None)),
            )
            .await;
        let now = round.whole(&[a.as_ref().err(), b.as_ref().err()]).await;
        assert!(a.is_ok() || b.is_ok(), "{a:?} {b:?}");
        assert!(now.table(&round.name("t")).is_some() && now.exists(&round.namespace()));
    })
    .await;
}
