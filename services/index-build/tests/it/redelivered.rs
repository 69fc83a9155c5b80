//! Workers of `serve` that die, on a real S3 server behind a proxy, and whose message NATS gives to another replica.

use std::collections::BTreeSet;

use serde_json::Value;
use squire_lake::oracle::Leftovers;
use squire_registry::{ClaimOutcome, Job, JobState, WorkPart};
use squire_service::bus::{Bus, Depth, Settings, Stream};
use squire_service::telemetry::Metrics;
use squire_test_support::{Action, Gate, Nats, Request, Server, gated, kind, on_nth_of_kind};

use crate::common::{Replica, stderr, wait};
use crate::on_s3::OnS3;

type Rule = Box<dyn FnMut(&Request) -> Action + Send>;

/// A table on S3, a bus, and replicas.
pub(crate) struct Served {
    pub(crate) s3: OnS3,
    pub(crate) nats: Nats,
}

impl Served {
    pub(crate) async fn new(test: &str) -> Option<Self> {
        let server = Server::shared(test)?;
        let nats = Nats::start(test)?;
        Some(Self { s3: OnS3::new(server).await, nats })
    }

    /// Arguments behind a verb: the configuration, the bus, short intervals.
    fn args(&self, config: &str) -> Vec<String> {
        let url = format!("bus.url={}", self.nats.url());
        let sets = ["bus.kind=nats", &url, "bus.ack_wait=2s", "grace.claim_ttl=8s", "limits.concurrency=1"];
        let sets = sets.iter().flat_map(|s| ["--set".to_owned(), (*s).to_owned()]);
        ["--config".to_owned(), config.to_owned()].into_iter().chain(sets).collect()
    }

    pub(crate) fn replica(&self, config: &str, more: &[&str]) -> Replica {
        let mut command = self.s3.command();
        command.arg("serve").args(self.args(config)).args(more);
        Replica::start(command, self.s3.path(&format!("log-{config}")))
    }

    #[track_caller]
    fn said(&self, args: &[&str]) -> Value {
        let out = self.s3.command().args(args).args(["-o", "json"]).args(self.args("direct.toml")).output().unwrap();
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {} {}", out.status, stderr(&out)))
    }

    fn submit(&self) -> String {
        let told = self.said(&["submit", "table/sales/t", "--columns", "id", "--type", "BTREE"]);
        told["job"].as_str().unwrap().to_owned()
    }

    /// Waits for the job's end.
    async fn ends(&self, id: &str) -> Job {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
        loop {
            let job = self.s3.registry.job(id).await.unwrap();
            if job.state.is_over() {
                return job;
            }
            assert!(std::time::Instant::now() < deadline, "it is not over: {job:#?}");
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    }

    pub(crate) async fn bus(&self) -> Bus {
        let config = squire_service::config::Bus {
            kind: squire_service::config::BusKind::Nats,
            url: Some(self.nats.url()),
            ..squire_service::config::Bus::default()
        };
        let r = &self.s3.registry;
        Bus::open(&config, r.name(), r.id(), Settings::default(), Metrics::new()).await.unwrap()
    }

    /// Waits until no message of an index is queued or in work, and sees that none was given up.
    async fn queue_is_empty(&self, what: &str) {
        let bus = self.bus().await;
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while bus.depth(Stream::Index).await.unwrap() != (Depth { pending: 0, in_flight: 0 }) {
            assert!(std::time::Instant::now() < deadline, "{what}: a message is left");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        assert!(bus.dead_list(10).await.unwrap().is_empty(), "{what}");
    }

    /// One index that covers every row, committed once by this job; every other directory is named by the job.
    async fn built_once(&self, job: &Job, what: &str) {
        assert_eq!(job.state, JobState::Built, "{what}: {job:#?}");
        let look = self.s3.look().await;
        assert_eq!((look.indices.len(), look.indices[0].unindexed_rows), (1, 0), "{what}");
        let ours = look.manifests.iter().filter(|m| m.stamp.as_ref().is_some_and(|s| s.step == "build"));
        let versions: Vec<u64> = ours.map(|m| m.version).collect();
        assert_eq!(versions.len(), 1, "{what}: built once in effect");
        assert_eq!(job.result["version"].as_u64(), Some(versions[0]), "{what}: {job:#?}");
        assert_eq!(job.result["check"]["exact"], true, "{what}: it was asked before success was said: {job:#?}");
        let named: BTreeSet<String> = look.indices[0].segments.iter().map(|s| s.uuid.to_string()).collect();
        let stray: BTreeSet<String> = self.s3.index_dirs().difference(&named).cloned().collect();
        let told = job.result["left_behind"].as_array().into_iter().flatten();
        let told: BTreeSet<String> = told.filter_map(|d| Some(d.as_str()?.rsplit('/').next()?.to_owned())).collect();
        assert_eq!(stray, told, "{what}: what is left behind is named by the job, and nothing else is");
        self.s3.whole(Leftovers::Explained, what).await;
    }
}

/// A worker takes the job and dies at this rule; another replica is given its message.
async fn dies_and_another_finishes(test: &str, what: &'static str, rule: Rule) -> bool {
    let Some(served) = Served::new(test).await else { return false };
    served.s3.proxy.set(rule);
    let mut doomed = served.replica("squire.toml", &[]);
    served.s3.proxy.client_is(doomed.child.id());
    let id = served.submit();
    wait(what, || doomed.child.try_wait().unwrap());
    served.s3.proxy.settle();
    assert!(served.s3.proxy.killed(), "{what}: it ended by itself: {}", doomed.text());
    served.s3.whole(Leftovers::Explained, what).await;
    let _other = served.replica("direct.toml", &[]);
    let job = served.ends(&id).await;
    assert!(job.attempts >= 2, "{what}: {job:#?}");
    served.built_once(&job, what).await;
    served.queue_is_empty(what).await;
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_at_any_stage_is_followed_by_another_and_the_index_is_built_once() {
    let test = "a_worker_killed_at_any_stage_is_followed_by_another_and_the_index_is_built_once";
    let stages: [(&'static str, &'static str, Action); 4] = [
        ("killed when it has the claim", "PUT claims", Action::KillAfter),
        ("killed while it writes the index", "PUT _indices", Action::KillAfter),
        ("killed before its commit", "PUT _versions", Action::KillBefore),
        ("killed between its commit and the job's record", "PUT _versions", Action::KillAfter),
    ];
    let running = stages.map(|(what, write, action)| {
        tokio::spawn(dies_and_another_finishes(test, what, Box::new(on_nth_of_kind(write, 1, action))))
    });
    for stage in running {
        stage.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_between_the_jobs_record_and_its_confirmation_has_no_second_effect() {
    let test = "a_worker_killed_between_the_jobs_record_and_its_confirmation_has_no_second_effect";
    let Some(served) = Served::new(test).await else { return };
    let gate = Gate::new();
    let (mut landed, held) = (false, gate.clone());
    // The answers to what is written of the job after the commit, its end among them, are never heard.
    served.s3.proxy.set(move |request| {
        let kind = if request.is_write() { kind(request) } else { String::new() };
        landed |= kind == "PUT _versions";
        if landed && kind == "PUT jobs" { Action::HoldAnswer(held.clone()) } else { Action::Pass }
    });
    let mut doomed = served.replica("squire.toml", &[]);
    let id = served.submit();
    let first = served.ends(&id).await;
    doomed.kill();
    gate.open();
    served.built_once(&first, "before the redelivery").await;
    let _other = served.replica("direct.toml", &[]);
    served.queue_is_empty("redelivered").await;
    let job = served.s3.registry.job(&id).await.unwrap();
    assert_eq!(job, first, "what is over stays as it was told");
    served.built_once(&job, "redelivered").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_in_flight_is_taken_back_and_nothing_is_left() {
    let Some(served) = Served::new("a_job_in_flight_is_taken_back_and_nothing_is_left").await else { return };
    let version = served.s3.look().await.version();
    let (gate, rule) = gated(|request| request.is_write() && kind(request) == "PUT _indices");
    served.s3.proxy.set(rule);
    let _replica = served.replica("squire.toml", &[]);
    let id = served.submit();
    gate.arrived();
    // Who wants to work on the table meanwhile, a pass for example, finds it claimed.
    let ttl = std::time::Duration::from_secs(90);
    let other = served.s3.registry.claim(&served.s3.uri(), uuid::Uuid::now_v7(), ttl).await.unwrap();
    assert!(matches!(other, ClaimOutcome::Taken { .. }), "{other:?}");
    assert_eq!(served.said(&["jobs", "cancel", &id])["state"], "running");
    gate.open();
    let job = served.ends(&id).await;
    assert_eq!(job.state, JobState::Cancelled, "{job:#?}");
    served.queue_is_empty("taken back").await;
    assert_eq!((served.s3.look().await.version(), served.s3.index_dirs()), (version, BTreeSet::new()));
    served.s3.whole(Leftovers::None, "taken back").await;
    // It may be asked for again.
    let job = served.ends(&served.submit()).await;
    served.built_once(&job, "asked for again").await;
}

/// A limit that parts the table into two segments, which are committed as they are.
async fn halves(served: &Served) -> String {
    let bytes: u64 = served.s3.look().await.fragments.iter().map(|f| f.bytes).sum();
    format!("limits.distribute_above={}B", bytes - 1)
}

/// The plan and the numbers of the stored segments of a job.
async fn stored(served: &Served, job: &Job) -> (usize, BTreeSet<u32>) {
    let listed = served.s3.registry.work_list(job.run, &served.s3.uri()).await.unwrap();
    let plans = listed.iter().filter(|o| o.part == WorkPart::Plan).count();
    let slices = listed.iter().filter_map(|o| if let WorkPart::Slice(n) = o.part { Some(n) } else { None });
    (plans, slices.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_a_segments_worker_costs_that_segment() {
    let Some(served) = Served::new("the_death_of_a_segments_worker_costs_that_segment").await else { return };
    // The owner's own segment is held until the other worker has died with its own.
    let (gate, rule) = gated(|request| request.is_write() && kind(request) == "PUT _indices");
    served.s3.proxy.set(rule);
    let two = halves(&served).await;
    let _owner = served.replica("squire.toml", &["--set", &two]);
    let id = served.submit();
    gate.arrived();
    let proxy = served.s3.another_proxy("doomed.toml");
    proxy.set(on_nth_of_kind("PUT _indices", 1, Action::KillAfter));
    let mut doomed = served.replica("doomed.toml", &["--set", &two]);
    proxy.client_is(doomed.child.id());
    wait("the other worker dies with its segment", || doomed.child.try_wait().unwrap());
    proxy.settle();
    gate.open();
    let job = served.ends(&id).await;
    assert_eq!(job.state, JobState::Built, "{job:#?}");
    assert_eq!(job.result["segments"], 2, "{job:#?}");
    assert_eq!(stored(&served, &job).await, (1, BTreeSet::from([0, 1])));
    let look = served.s3.look().await;
    assert_eq!((look.indices.len(), look.indices[0].unindexed_rows), (1, 0));
    // Two that were committed, and what the dead one wrote: no other segment was built twice.
    assert_eq!(served.s3.index_dirs().len(), 3);
    served.queue_is_empty("built").await;
    served.s3.whole(Leftovers::Explained, "built").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_an_owner_leaves_stored_segments_to_the_next_one() {
    let Some(served) = Served::new("the_death_of_an_owner_leaves_stored_segments_to_the_next_one").await else {
        return;
    };
    // The plan is the first thing that is stored, a segment the second.
    served.s3.proxy.set(on_nth_of_kind("PUT work", 2, Action::KillAfter));
    let two = halves(&served).await;
    let mut owner = served.replica("squire.toml", &["--set", &two]);
    served.s3.proxy.client_is(owner.child.id());
    let id = served.submit();
    wait("the owner dies", || owner.child.try_wait().unwrap());
    served.s3.proxy.settle();
    let before = stored(&served, &served.s3.registry.job(&id).await.unwrap()).await;
    assert_eq!((before.0, before.1.len()), (1, 1), "{before:?}");
    let _next = served.replica("direct.toml", &["--set", &two]);
    let job = served.ends(&id).await;
    served.built_once(&job, "built").await;
    assert_eq!(stored(&served, &job).await, (1, BTreeSet::from([0, 1])));
    assert_eq!(served.s3.index_dirs().len(), 2, "the stored segment was taken as it was");
    served.queue_is_empty("built").await;
}
