//! What both buses do. Every case runs against each.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use squire_service::bus::data::{CommitRequested, IndexBuild, Request, SliceRequested, TickDue};
use squire_service::bus::{
    Address, Bus, BusErrorKind, DeadReason, Depth, Event, EventType, Key, Published, Queue, Settings, Stream, Task,
};
use squire_service::telemetry::Metrics;
use uuid::Uuid;

use super::nats::{Config, Nats};
use super::{ESTATE, NOT, SOON, embedded, hasty, next, nothing, pass, patient, run, uri, wait_for};

/// One bus, and handles on it as other replicas have them.
pub(super) struct World {
    bus: Bus,
    metrics: Metrics,
    nats: Option<Nats>,
}

impl World {
    fn embedded() -> Option<Self> {
        let metrics = Metrics::new();
        Some(Self { bus: Bus::embedded("test", ESTATE, patient(), metrics.clone()), metrics, nats: None })
    }

    async fn nats(test: &str) -> Option<Self> {
        let nats = Nats::start(test)?;
        let metrics = Metrics::new();
        let bus = Bus::open(&nats.config(), "test", ESTATE, patient(), metrics.clone()).await.unwrap();
        Some(Self { bus, metrics, nats: Some(nats) })
    }

    /// Another replica.
    async fn replica(&self, settings: Settings) -> Bus {
        match &self.nats {
            None => self.bus.with_settings(settings),
            Some(nats) => Bus::open(&nats.config(), "test", ESTATE, settings, self.metrics.clone()).await.unwrap(),
        }
    }

    fn counted(&self, series: &str) -> u64 {
        let text = self.metrics.exposition();
        let line = text.lines().find(|l| l.rsplit_once(' ').is_some_and(|(name, _)| name == series));
        line.unwrap_or_else(|| panic!("no series {series}")).rsplit_once(' ').unwrap().1.parse().unwrap()
    }
}

macro_rules! conform {
    ($($case:ident),+ $(,)?) => {
        mod in_process {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(&super::World::embedded().unwrap()).await;
            })+
        }
        mod on_nats {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let Some(world) = super::World::nats(stringify!($case)).await else { return };
                super::$case(&world).await;
            })+
        }
        /// All cases against one server, whatever its version.
        pub(super) async fn all_on(program: &std::path::Path) {
            $({
                let nats = Nats::of(program.to_owned(), |_| String::new());
                let metrics = Metrics::new();
                let bus = Bus::open(&nats.config(), "test", ESTATE, patient(), metrics.clone()).await.unwrap();
                eprintln!("{} {}", bus.describe(), stringify!($case));
                $case(&World { bus, metrics, nats: Some(nats) }).await;
            })+
        }
    };
}

conform!(
    a_message_goes_when_it_is_acknowledged,
    a_queue_holds_one_message_per_subject,
    an_id_is_published_once,
    replicas_publish_an_instant_once,
    kinds_of_work_have_queues_of_their_own,
    two_consumers_share_the_work,
    a_silent_worker_loses_its_message,
    progress_keeps_a_message,
    a_retry_waits_for_its_delay,
    a_guard_says_nothing_after_the_last_word,
    a_refused_message_is_gone,
    attempts_are_judged_before_the_work,
    a_hand_back_is_no_attempt,
    a_message_of_a_newer_build_is_left_to_it,
    a_malformed_message_is_given_up_and_the_queue_goes_on,
    another_estates_work_is_given_up,
    dead_letters_are_shown_requeued_and_dropped,
    any_bytes_survive_as_a_dead_letter,
    every_service_sees_every_change,
    listeners_get_the_events_of_a_run,
    queues_are_counted,
);

async fn a_message_goes_when_it_is_acknowledged(w: &World) {
    assert_eq!(w.bus.request_pass(&pass(1, "s3://lake/a")).await.unwrap(), Published::Stored);
    let mut consumer = w.bus.consumer(Queue::Pass).await.unwrap();
    let delivery = next(&mut consumer).await;
    assert_eq!(uri(&delivery), "s3://lake/a");
    assert_eq!(delivery.attempts(), 1);
    assert_eq!(delivery.subject(), format!("squire.test.work.pass.{}", Key::of_uri("s3://lake/a")));
    let age = Utc::now() - delivery.first_seen();
    assert!(age >= TimeDelta::seconds(-1) && age < TimeDelta::minutes(1), "{age}");
    nothing(&mut consumer).await;
    delivery.ack().await.unwrap();
    nothing(&mut consumer).await;
    assert_eq!(w.bus.depth(Stream::Work).await.unwrap(), Depth { pending: 0, in_flight: 0 });
    assert_eq!(w.counted("squire_messages_total{outcome=\"done\",stream=\"work\"}"), 1);
}

async fn a_queue_holds_one_message_per_subject(w: &World) {
    assert_eq!(w.bus.request_pass(&pass(1, "s3://lake/a")).await.unwrap(), Published::Stored);
    assert_eq!(w.bus.request_pass(&pass(2, "s3://lake/a")).await.unwrap(), Published::AlreadyQueued);
    assert_eq!(w.bus.request_pass(&pass(2, "s3://lake/b")).await.unwrap(), Published::Stored);
    let mut consumer = w.bus.consumer(Queue::Pass).await.unwrap();
    let first = next(&mut consumer).await;
    assert_eq!(uri(&first), "s3://lake/a");
    // Also while a worker has it: the worker looks again before it acknowledges.
    assert_eq!(w.bus.request_pass(&pass(3, "s3://lake/a")).await.unwrap(), Published::AlreadyQueued);
    first.ack().await.unwrap();
    assert_eq!(w.bus.request_pass(&pass(3, "s3://lake/a")).await.unwrap(), Published::Stored);
    let got = [next(&mut consumer).await, next(&mut consumer).await];
    assert_eq!(got.iter().map(uri).collect::<BTreeSet<_>>(), BTreeSet::from(["s3://lake/a", "s3://lake/b"]));
    // Slices of one dataset stand side by side, and each of them once.
    for n in [1, 2] {
        let slice = SliceRequested { run: run(9), uri: "s3://lake/a".into(), slice: n };
        assert_eq!(w.bus.request_slice(&slice).await.unwrap(), Published::Stored);
        assert_eq!(w.bus.request_slice(&slice).await.unwrap(), Published::Duplicate);
    }
}

async fn an_id_is_published_once(w: &World) {
    let request = pass(1, "s3://lake/a");
    assert_eq!(w.bus.request_pass(&request).await.unwrap(), Published::Stored);
    assert_eq!(w.bus.request_pass(&request).await.unwrap(), Published::Duplicate);
    let mut consumer = w.bus.consumer(Queue::Pass).await.unwrap();
    next(&mut consumer).await.ack().await.unwrap();
    // The id is remembered after the message is gone.
    assert_eq!(w.bus.request_pass(&request).await.unwrap(), Published::Duplicate);
    nothing(&mut consumer).await;
}

async fn replicas_publish_an_instant_once(w: &World) {
    let instant: DateTime<Utc> = "2026-03-01T10:10:00Z".parse().unwrap();
    let due = TickDue { job: Task::Maintenance, instant, datasets: vec![] };
    let mut replicas = Vec::new();
    for _ in 0..5 {
        replicas.push(w.replica(patient()).await);
    }
    let publishing = replicas.iter().map(|r| r.tick(&due, None));
    let published = futures::future::try_join_all(publishing).await.unwrap();
    assert_eq!(published.iter().filter(|p| **p == Published::Stored).count(), 1, "{published:?}");
    let mut consumer = w.bus.consumer(Queue::Tick(Task::Maintenance)).await.unwrap();
    let tick = next(&mut consumer).await;
    assert_eq!(tick.event().unwrap().id, "maintenance/2026-03-01T10:10:00Z");
    assert_eq!(tick.request(), &Request::Tick(due.clone()));
    tick.ack().await.unwrap();
    assert_eq!(replicas[4].tick(&due, None).await.unwrap(), Published::Duplicate);
    // Asked for by hand it is another tick.
    assert_eq!(w.bus.tick(&due, Some(run(1))).await.unwrap(), Published::Stored);
    nothing(&mut w.bus.consumer(Queue::Tick(Task::Reconcile)).await.unwrap()).await;
    next(&mut consumer).await.ack().await.unwrap();
}

async fn kinds_of_work_have_queues_of_their_own(w: &World) {
    let uri_ = "s3://lake/a".to_owned();
    w.bus.request_pass(&pass(1, &uri_)).await.unwrap();
    w.bus.request_slice(&SliceRequested { run: run(1), uri: uri_.clone(), slice: 0 }).await.unwrap();
    w.bus.request_commit(&CommitRequested { run: run(1), uri: uri_ }).await.unwrap();
    w.bus.request_build(run(1), &build("table/a/t")).await.unwrap();
    for (queue, kind) in [
        (Queue::Commit, EventType::CommitRequested),
        (Queue::Slice, EventType::SliceRequested),
        (Queue::Pass, EventType::PassRequested),
        (Queue::Build, EventType::IndexBuild),
    ] {
        let mut consumer = w.bus.consumer(queue).await.unwrap();
        let delivery = next(&mut consumer).await;
        assert_eq!(delivery.event().unwrap().kind(), Some((kind, 1)));
        delivery.ack().await.unwrap();
        nothing(&mut consumer).await;
    }
}

fn build(table: &str) -> IndexBuild {
    let text = format!(r#"{{"table":"{table}","columns":["id"],"type":"BTREE"}}"#);
    serde_json::from_str(&text).unwrap()
}

async fn two_consumers_share_the_work(w: &World) {
    for n in 0..12 {
        w.bus.request_pass(&pass(1, &format!("s3://lake/{n}"))).await.unwrap();
    }
    let other = w.replica(patient()).await;
    let mut consumers = [w.bus.consumer(Queue::Pass).await.unwrap(), other.consumer(Queue::Pass).await.unwrap()];
    let mut seen = Vec::new();
    for _ in 0..6 {
        for consumer in &mut consumers {
            let delivery = next(consumer).await;
            seen.push(uri(&delivery).to_owned());
            delivery.ack().await.unwrap();
        }
    }
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 12, "{seen:?}");
    nothing(&mut consumers[0]).await;
    nothing(&mut consumers[1]).await;
}

async fn a_silent_worker_loses_its_message(w: &World) {
    let hasty = w.replica(hasty()).await;
    w.bus.request_pass(&pass(1, "s3://lake/a")).await.unwrap();
    let mut consumer = hasty.consumer(Queue::Pass).await.unwrap();
    let first = next(&mut consumer).await;
    assert!(first.still_ours());
    let second = next(&mut consumer).await;
    assert_eq!((uri(&second), second.attempts()), ("s3://lake/a", 2));
    // What the first says now counts no more, but that it finished does.
    assert!(!first.still_ours());
    let guard = second.keep_alive();
    first.hand_back(Duration::ZERO).await.unwrap();
    nothing(&mut consumer).await;
    drop(guard);
    second.ack().await.unwrap();
    nothing(&mut consumer).await;
}

async fn progress_keeps_a_message(w: &World) {
    let hasty = w.replica(hasty()).await;
    w.bus.request_pass(&pass(1, "s3://lake/a")).await.unwrap();
    let mut consumer = hasty.consumer(Queue::Pass).await.unwrap();
    let delivery = next(&mut consumer).await;
    let guard = delivery.keep_alive();
    // Twice the ack wait.
    assert!(consumer.next(Duration::from_secs(4)).await.unwrap().is_none());
    assert!(delivery.still_ours());
    drop(guard);
    let again = next(&mut consumer).await;
    assert_eq!(again.attempts(), 2);
    again.ack().await.unwrap();
}

async fn a_retry_waits_for_its_delay(w: &World) {
    w.bus.request_pass(&pass(1, "s3://lake/a")).await.unwrap();
    let mut consumer = w.bus.consumer(Queue::Pass).await.unwrap();
    let start = Instant::now();
    next(&mut consumer).await.retry(Duration::from_millis(900)).await.unwrap();
    let again = next(&mut consumer).await;
    assert!(start.elapsed() >= Duration::from_millis(890), "{:?}", start.elapsed());
    assert_eq!(again.attempts(), 2);
    again.retry(Duration::ZERO).await.unwrap();
    let again = next(&mut consumer).await;
    assert_eq!(again.attempts(), 3);
    again.ack().await.unwrap();
    assert_eq!(w.counted("squire_messages_total{outcome=\"requeued\",stream=\"work\"}"), 2);
}

async fn a_guard_says_nothing_after_the_last_word(w: &World) {
    let hasty = w.replica(hasty()).await;
    w.bus.request_pass(&pass(1, "s3://lake/a")).await.unwrap();
    let mut consumer = hasty.consumer(Queue::Pass).await.unwrap();
    let delivery = next(&mut consumer).await;
    let _guard = delivery.keep_alive();
    // A sign of progress in between would put it off, again and again.
    delivery.retry(Duration::from_secs(1)).await.unwrap();
    let again = next(&mut consumer).await;
    assert_eq!(again.attempts(), 2);
    again.ack().await.unwrap();
}

async fn a_refused_message_is_gone(w: &World) {
    let hasty = w.replica(hasty()).await;
    w.bus.request_pass(&pass(1, "s3://lake/a")).await.unwrap();
    let mut consumer = hasty.consumer(Queue::Pass).await.unwrap();
    next(&mut consumer).await.refuse().await.unwrap();
    assert!(consumer.next(Duration::from_millis(2500)).await.unwrap().is_none());
    assert_eq!(w.bus.request_pass(&pass(2, "s3://lake/a")).await.unwrap(), Published::Stored);
    assert!(w.bus.dead_list(10).await.unwrap().is_empty());
    assert_eq!(w.counted("squire_messages_total{outcome=\"refused\",stream=\"work\"}"), 1);
}

async fn attempts_are_judged_before_the_work(w: &World) {
    let strict = w.replica(Settings { max_attempts: 2, ..patient() }).await;
    let mut events = w.bus.consumer(Queue::Events("audit".into())).await.unwrap();
    w.bus.request_pass(&pass(1, "s3://lake/poison")).await.unwrap();
    let mut consumer = strict.consumer(Queue::Pass).await.unwrap();
    for attempt in [1, 2] {
        let delivery = next(&mut consumer).await;
        assert_eq!(delivery.attempts(), attempt);
        delivery.retry(Duration::ZERO).await.unwrap();
    }
    w.bus.request_pass(&pass(1, "s3://lake/good")).await.unwrap();
    // The poison is not handed out a third time, and the queue goes on.
    let good = next(&mut consumer).await;
    assert_eq!(uri(&good), "s3://lake/good");
    good.ack().await.unwrap();
    nothing(&mut consumer).await;
    let dead = w.bus.dead_list(10).await.unwrap();
    assert_eq!(dead.len(), 1, "{dead:?}");
    assert_eq!((dead[0].reason, dead[0].attempts), (DeadReason::Attempts, 3));
    assert_eq!(dead[0].original["data"]["uri"], "s3://lake/poison");
    assert!(Utc::now() - dead[0].first_seen < TimeDelta::minutes(1), "{:?}", dead[0]);
    assert!(dead[0].last_error.contains("2 workers"), "{:?}", dead[0]);
    // Its subject is free again.
    assert_eq!(w.bus.request_pass(&pass(2, "s3://lake/poison")).await.unwrap(), Published::Stored);
    let event = next(&mut events).await;
    assert_eq!(event.request(), &Request::Other(EventType::MessageDead));
    assert_eq!(event.event().unwrap().data["reason"], "attempts");
    assert_eq!(w.counted("squire_dead_letters_total{reason=\"attempts\",stream=\"work\"}"), 1);
    assert_eq!(w.counted("squire_messages_total{outcome=\"dead\",stream=\"work\"}"), 1);
}

async fn a_hand_back_is_no_attempt(w: &World) {
    let strict = w.replica(Settings { max_attempts: 2, ..patient() }).await;
    w.bus.request_pass(&pass(1, "s3://lake/claimed")).await.unwrap();
    let mut consumer = strict.consumer(Queue::Pass).await.unwrap();
    for _ in 0..6 {
        let delivery = next(&mut consumer).await;
        assert_eq!(delivery.attempts(), 1);
        delivery.hand_back(Duration::ZERO).await.unwrap();
    }
    // Another replica knows it, too.
    let other = w.replica(Settings { max_attempts: 2, ..patient() }).await;
    let mut consumer = other.consumer(Queue::Pass).await.unwrap();
    let delivery = next(&mut consumer).await;
    assert_eq!(delivery.attempts(), 1);
    delivery.retry(Duration::ZERO).await.unwrap();
    let delivery = next(&mut consumer).await;
    assert_eq!(delivery.attempts(), 2);
    delivery.retry(Duration::ZERO).await.unwrap();
    nothing(&mut consumer).await;
    assert_eq!(w.bus.dead_list(10).await.unwrap().len(), 1);
}

async fn a_message_of_a_newer_build_is_left_to_it(w: &World) {
    let newer = w.replica(Settings { message_version: 2, ..patient() }).await;
    newer.request_pass(&pass(1, "s3://lake/new")).await.unwrap();
    w.bus.request_pass(&pass(1, "s3://lake/old")).await.unwrap();
    let older = w.replica(Settings { max_attempts: 2, ..patient() }).await;
    let mut consumer = older.consumer(Queue::Pass).await.unwrap();
    let old = next(&mut consumer).await;
    assert_eq!(uri(&old), "s3://lake/old");
    old.ack().await.unwrap();
    // Offered to the older build more often than it may try, and none of it was an attempt.
    let deadline = Instant::now() + SOON;
    while w.counted("squire_messages_total{outcome=\"requeued\",stream=\"work\"}") < 4 {
        nothing(&mut consumer).await;
        assert!(Instant::now() < deadline, "it is not offered again");
    }
    assert!(w.bus.dead_list(10).await.unwrap().is_empty());
    let mut consumer = newer.consumer(Queue::Pass).await.unwrap();
    let new = next(&mut consumer).await;
    assert_eq!((uri(&new), new.attempts()), ("s3://lake/new", 1));
    assert_eq!(new.event().unwrap().event_type, "io.squire.pass.requested.v2");
    new.ack().await.unwrap();
    // The newer build reads what the older one wrote.
    w.bus.request_pass(&pass(2, "s3://lake/old")).await.unwrap();
    assert_eq!(uri(&next(&mut consumer).await), "s3://lake/old");
}

fn event(id: &str, kind: EventType, data: serde_json::Value) -> Event {
    Event::new(ESTATE, id.into(), kind, "estate", Utc::now(), &data).unwrap()
}

async fn a_malformed_message_is_given_up_and_the_queue_goes_on(w: &World) {
    let key = |n: &str| Address::Build(Key::of_uri(n));
    let wrong_type = event("1", EventType::IndexBuild, serde_json::json!({ "table": 7, "columns": [], "type": "X" }));
    let unknown = event("2", EventType::PassRequested, serde_json::json!({}));
    w.bus.publish(&key("1"), &wrong_type).await.unwrap();
    w.bus.publish(&key("2"), &unknown).await.unwrap();
    let foreign = Event { event_type: "com.example.hello".into(), ..event("3", EventType::IndexBuild, ().into()) };
    w.bus.publish(&key("3"), &foreign).await.unwrap();
    w.bus.request_build(run(1), &build("table/a/t")).await.unwrap();
    let mut consumer = w.bus.consumer(Queue::Build).await.unwrap();
    let good = next(&mut consumer).await;
    let Request::Build(request) = good.request() else { panic!("{good:?}") };
    assert_eq!(request.table, "table/a/t");
    good.ack().await.unwrap();
    let dead = w.bus.dead_list(10).await.unwrap();
    let reasons: Vec<_> = dead.iter().map(|d| d.reason).collect();
    assert_eq!(reasons, [DeadReason::Malformed, DeadReason::UnknownType, DeadReason::UnknownType]);
    assert!(dead[0].last_error.contains("integer `7`"), "{:?}", dead[0]);
}

async fn another_estates_work_is_given_up(w: &World) {
    let data = pass(1, "s3://lake/a");
    let theirs =
        Event::new(Uuid::from_u128(7), "1".into(), EventType::PassRequested, "estate", Utc::now(), &data).unwrap();
    w.bus.publish(&Address::Pass(Key::of_uri("s3://lake/a")), &theirs).await.unwrap();
    nothing(&mut w.bus.consumer(Queue::Pass).await.unwrap()).await;
    assert_eq!(w.bus.dead_list(10).await.unwrap()[0].reason, DeadReason::OtherEstate);
}

async fn dead_letters_are_shown_requeued_and_dropped(w: &World) {
    let mut consumer = w.bus.consumer(Queue::Pass).await.unwrap();
    for name in ["a", "b", "c"] {
        w.bus.request_pass(&pass(1, &format!("s3://lake/{name}"))).await.unwrap();
        next(&mut consumer).await.dead_letter(DeadReason::Permanent, "no permission").await.unwrap();
    }
    let dead = w.bus.dead_list(10).await.unwrap();
    assert_eq!(dead.len(), 3);
    assert_eq!(w.bus.dead_list(2).await.unwrap(), dead[..2]);
    assert_eq!(w.bus.dead_get(dead[1].id).await.unwrap(), dead[1]);
    assert_eq!((dead[1].last_error.as_str(), dead[1].attempts), ("no permission", 1));

    // The old id would be a duplicate.
    assert_eq!(w.bus.dead_requeue(dead[0].id).await.unwrap(), Published::Stored);
    let back = next(&mut consumer).await;
    assert_eq!((uri(&back), back.attempts()), ("s3://lake/a", 1));
    assert_ne!(back.event().unwrap().id, dead[0].original["id"].as_str().unwrap());
    assert!(back.event().unwrap().id.starts_with(dead[0].original["id"].as_str().unwrap()));

    // Work that is queued already is not queued twice, and the letter stays.
    w.bus.request_pass(&pass(2, "s3://lake/b")).await.unwrap();
    assert_eq!(w.bus.dead_requeue(dead[1].id).await.unwrap(), Published::AlreadyQueued);
    w.bus.dead_drop(dead[2].id).await.unwrap();
    let left: Vec<_> = w.bus.dead_list(10).await.unwrap().iter().map(|d| d.id).collect();
    assert_eq!(left, [dead[1].id]);
    for id in [dead[0].id, dead[2].id, 0, 999] {
        assert_eq!(w.bus.dead_get(id).await.unwrap_err().kind(), BusErrorKind::NotFound);
        assert_eq!(w.bus.dead_drop(id).await.unwrap_err().kind(), BusErrorKind::NotFound);
        assert_eq!(w.bus.dead_requeue(id).await.unwrap_err().kind(), BusErrorKind::NotFound);
    }
}

async fn any_bytes_survive_as_a_dead_letter(w: &World) {
    // The largest event that is read whole; with its letter it is more than a server takes by default.
    let large = serde_json::json!({ "table": "x".repeat(1_047_900), "columns": ["a"], "type": "BTREE" });
    w.bus.publish(&Address::Build(Key::of_uri("1")), &event("1", EventType::IndexBuild, large)).await.unwrap();
    nothing(&mut w.bus.consumer(Queue::Build).await.unwrap()).await;
    let dead = w.bus.dead_list(10).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].reason, DeadReason::Malformed);
    // The beginning tells a person what it was; there is no way back.
    assert!(dead[0].truncated && dead[0].original_bytes.as_ref().unwrap().starts_with("{\"specversion\""));
    assert_eq!(w.bus.dead_requeue(dead[0].id).await.unwrap_err().kind(), BusErrorKind::Invalid);
    w.bus.dead_drop(dead[0].id).await.unwrap();

    // One that is read whole comes back byte for byte, whatever it is.
    for text in ["\u{0}%25 ä\n\\", "null", "[1,\"x\"]"] {
        let data = serde_json::json!({ "table": 1, "columns": text });
        w.bus.publish(&Address::Build(Key::of_uri(text)), &event(text, EventType::IndexBuild, data)).await.unwrap();
        nothing(&mut w.bus.consumer(Queue::Build).await.unwrap()).await;
        let dead = w.bus.dead_list(10).await.unwrap();
        assert_eq!((dead[0].truncated, &dead[0].original["data"]["columns"]), (false, &text.into()));
        assert_eq!(w.bus.dead_requeue(dead[0].id).await.unwrap(), Published::Stored);
        nothing(&mut w.bus.consumer(Queue::Build).await.unwrap()).await;
        let dead = w.bus.dead_list(10).await.unwrap();
        assert_eq!((dead.len(), &dead[0].original["data"]["columns"]), (1, &text.into()));
        w.bus.dead_drop(dead[0].id).await.unwrap();
    }
}

async fn every_service_sees_every_change(w: &World) {
    let path = ["acme", "sales.eu", "orders"].map(str::to_owned).to_vec();
    for version in 1..=20 {
        let id = format!("{version}");
        let data = serde_json::json!({ "table": "table/acme/sales.eu/orders", "version": version });
        let changed = event(&id, EventType::TableChanged, data);
        w.bus.publish(&Address::Changed(path.clone()), &changed).await.unwrap();
    }
    for service in ["maintenance", "index-build"] {
        let mut consumer = w.bus.consumer(Queue::Tables(service.into())).await.unwrap();
        let mut versions = Vec::new();
        while versions.last() != Some(&20) {
            let delivery = next(&mut consumer).await;
            assert_eq!(w.bus.token().table_path(delivery.subject()), Some(path.clone()));
            let Request::Changed(changed) = delivery.request() else { panic!("{delivery:?}") };
            versions.push(changed.version.unwrap());
            delivery.ack().await.unwrap();
        }
        // Sixteen of a table are kept.
        assert_eq!(versions, (5..=20).collect::<Vec<_>>());
    }
    let bad = w.bus.consumer(Queue::Tables("a.b".into())).await.err().unwrap();
    assert_eq!(bad.kind(), BusErrorKind::Invalid);
}

async fn listeners_get_the_events_of_a_run(w: &World) {
    let data = serde_json::json!({ "run": run(1) });
    for _ in 0..2 {
        w.bus.announce(run(1), EventType::RunStarted, "estate", &data).await.unwrap();
    }
    w.bus.announce(run(1), EventType::PassCompleted, "table/a/t", &data).await.unwrap();
    let unknown = Event { event_type: "io.squire.new.thing.v1".into(), ..event("u", EventType::RunStarted, data) };
    w.bus.publish(&Address::Event(EventType::RunStarted), &unknown).await.unwrap();
    let mut listener = w.bus.consumer(Queue::Events("audit".into())).await.unwrap();
    let first = next(&mut listener).await;
    let started = first.event().unwrap();
    assert_eq!(started.event_type, "io.squire.run.started.v1");
    assert_eq!(started.source, format!("/estates/{ESTATE}"));
    assert_eq!(started.id, format!("{}/run.started/estate", run(1)));
    let second = next(&mut listener).await;
    assert_eq!(second.subject(), "squire.test.event.pass.completed");
    first.ack().await.unwrap();
    second.ack().await.unwrap();
    nothing(&mut listener).await;
    assert!(w.bus.dead_list(1).await.unwrap().is_empty());
    // Another listener reads from the beginning.
    let mut other = w.bus.consumer(Queue::Events("other".into())).await.unwrap();
    assert_eq!(next(&mut other).await.event().unwrap().event_type, "io.squire.run.started.v1");
}

async fn queues_are_counted(w: &World) {
    for name in ["a", "b", "c", "d"] {
        w.bus.request_pass(&pass(1, name)).await.unwrap();
    }
    assert_eq!(w.bus.depth(Stream::Work).await.unwrap(), Depth { pending: 4, in_flight: 0 });
    let mut consumer = w.bus.consumer(Queue::Pass).await.unwrap();
    let _held = next(&mut consumer).await;
    next(&mut consumer).await.hand_back(SOON).await.unwrap();
    next(&mut consumer).await.dead_letter(DeadReason::Bug, "a panic").await.unwrap();
    let bus = &w.bus;
    wait_for("one waits and two are in flight", || async {
        bus.depth(Stream::Work).await.unwrap() == Depth { pending: 1, in_flight: 2 }
    })
    .await;
    w.metrics.show_fleet();
    w.bus.export(w.metrics.fleet()).await.unwrap();
    assert_eq!(w.counted("squire_queue_messages{state=\"pending\",stream=\"work\"}"), 1);
    assert_eq!(w.counted("squire_queue_messages{state=\"in_flight\",stream=\"work\"}"), 2);
    assert_eq!(w.counted("squire_dead_letters{stream=\"work\"}"), 1);
    assert_eq!(w.counted("squire_dead_letters{stream=\"index\"}"), 0);
    w.bus.ready().await.unwrap();
    assert!(w.bus.is_connected());
}

#[tokio::test]
async fn a_message_that_comes_while_a_worker_waits_is_handed_over_at_once() {
    let bus = embedded();
    let mut consumer = bus.consumer(Queue::Pass).await.unwrap();
    let waiting = tokio::spawn(async move {
        let start = Instant::now();
        let delivery = next(&mut consumer).await;
        (uri(&delivery).to_owned(), start.elapsed())
    });
    tokio::time::sleep(NOT).await;
    bus.request_pass(&pass(1, "s3://lake/a")).await.unwrap();
    let (got, after) = waiting.await.unwrap();
    assert_eq!(got, "s3://lake/a");
    assert!(after < Duration::from_secs(5), "{after:?}");
}
