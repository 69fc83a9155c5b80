//! What daemons tell on the bus: plans that wait for a person, and events whose bus was away when they were due.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use squire_registry::Registry;
use squire_service::bus::data::{PassData, PlanData};
use squire_service::bus::{Bus, Event, EventType, Queue, Settings};
use squire_service::config::{self, BusKind};
use squire_service::telemetry::Metrics;
use squire_test_support::{Action, Gate, Nats, Proxy, Server, on_nth_of_kind};

use super::common::*;

const DEADLINE: Duration = Duration::from_secs(90);

/// One replica of an estate with one table of twelve fragments and as many old versions.
struct Served {
    here: Here,
    nats: Nats,
    child: Option<Child>,
}

impl Served {
    async fn new(test: &str) -> Option<Self> {
        let nats = Nats::start(test)?;
        let here = Here::new();
        here.table("lake/t", 12, 10).await;
        super::replaced_at::age(&here, "lake/t", 30 * 86_400);
        assert_ok(&registry(&["init", &here.text("control"), "--name", "told"]), "init");
        let text = format!(
            "[estate]\nname = \"told\"\nroots = [{root:?}]\n[registry]\nroot = {control:?}\n\
             [policy]\ninterval = \"0s\"\nmax_stranded = 100.0\n[schedule]\nmaintenance = \"0 0 0 29 2 *\"\n\
             [bus]\nkind = \"nats\"\nurl = \"nats://127.0.0.1:{port}\"\nack_wait = \"2s\"\n\
             [http]\nlisten = \"127.0.0.1:0\"\n",
            root = here.text("lake"),
            control = here.text("control"),
            port = nats.port(),
        );
        std::fs::write(here.path("squire.toml"), text).expect("written");
        Some(Self { here, nats, child: None })
    }

    fn serve(&mut self, mode: &str) {
        let log = std::fs::File::create(self.here.path("log")).expect("a log");
        let mode = format!("estate.mode={mode}");
        let child = command(std::path::Path::new(env!("CARGO_BIN_EXE_squire-maintenance")))
            .args(["serve", "--log-format", "json", "--set", &mode, "--config"])
            .arg(self.here.path("squire.toml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it ran");
        self.child = Some(child);
        self.until("it serves", |s| s.log().contains("\"serving\""));
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("killed");
            child.wait().expect("waited");
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.here.path("log")).unwrap_or_default()
    }

    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !holds(self) {
            assert!(Instant::now() < deadline, "not in {DEADLINE:?}: {what}: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A tick of the clock's kind, and the sweep that comes of it.
    async fn tick(&self) {
        let sweeps = |s: &Self| s.log().matches("swept the estate").count();
        let before = sweeps(self);
        let bus = self.bus().await;
        let due = squire_service::bus::data::TickDue {
            job: squire_service::bus::Task::Maintenance,
            instant: chrono::Utc::now(),
            datasets: Vec::new(),
        };
        bus.tick(&due, Some(uuid::Uuid::now_v7())).await.expect("sent");
        self.until("a sweep", |s| sweeps(s) > before);
    }

    async fn registry(&self) -> Registry {
        Registry::open(&self.here.text("control"), &Default::default()).await.expect("a registry")
    }

    async fn bus(&self) -> Bus {
        let registry = self.registry().await;
        let (kind, url) = (BusKind::Nats, Some(self.nats.url()));
        let config = config::Bus { kind, url, ..config::Bus::default() };
        let settings = Settings::of(&config, Duration::from_secs(90));
        Bus::open(&config, registry.name(), registry.id(), settings, Metrics::new()).await.expect("the bus")
    }

    /// All events of a type so far.
    async fn events(&self, kind: &str) -> Vec<Event> {
        let mut consumer = self
            .bus()
            .await
            .consumer(Queue::Events(format!("t{}", uuid::Uuid::now_v7().simple())))
            .await
            .expect("open");
        let mut out = Vec::new();
        while let Some(delivery) = consumer.next(Duration::from_millis(500)).await.expect("taken") {
            out.extend(delivery.event().cloned());
            delivery.ack().await.expect("confirmed");
        }
        out.retain(|e| e.event_type == format!("io.squire.{kind}.v1"));
        out
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_the_mode_leaves_to_a_person_is_told_of_once() {
    for mode in ["observe", "compact"] {
        let Some(mut served) = Served::new("a_plan_that_the_mode_leaves_to_a_person_is_told_of_once").await else {
            return;
        };
        served.serve(mode);
        served.tick().await;
        let told = served.events("plan.awaiting").await;
        assert_eq!(told.len(), 1, "{mode}: {}", served.log());
        assert_eq!(told[0].subject.as_deref(), Some("estate"));
        let data: PlanData = told[0].data().expect("the data");
        assert_eq!(told[0].id, format!("{}/plan.awaiting/estate", data.run));
        // Twelve versions, of which HEAD and two more stay.
        assert_eq!((data.items, data.failed), (9, 0), "{mode}: {data:?}");
        assert!(data.bytes > 0 && data.digest.len() == 64, "{data:?}");
        served.tick().await;
        assert_eq!(served.events("plan.awaiting").await.len(), 1, "{mode}: told again: {}", served.log());
        assert!(served.here.manifest("lake/t", 1).exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_whose_passes_are_all_queued_is_no_run() {
    let Some(mut served) = Served::new("a_tick_whose_passes_are_all_queued_is_no_run").await else { return };
    // Queued already, and never taken: its message is of a newer build.
    let bus = served.bus().await;
    let newer = bus.with_settings(Settings { message_version: 2, ..bus.settings().clone() });
    let pass = squire_service::bus::data::PassRequested {
        run: uuid::Uuid::now_v7(),
        uri: served.here.uri("lake/t"),
        by_hand: false,
    };
    newer.request_pass(&pass).await.expect("queued");
    served.serve("maintain");
    served.tick().await;
    let log = served.log();
    assert!(log.contains("\"due\":1") && log.contains("\"handed\":0"), "{log}");
    let runs = served.registry().await.runs().await.expect("read").0;
    assert_eq!(runs, [], "nothing was handed out");
    assert_eq!(served.events("run.started").await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_replica_that_is_gone_had_kept_is_sent_by_the_next() {
    let Some(mut served) = Served::new("what_a_replica_that_is_gone_had_kept_is_sent_by_the_next").await else {
        return;
    };
    let registry = served.registry().await;
    let run = uuid::Uuid::now_v7();
    let data = serde_json::json!({ "run": run, "reason": "kept" });
    let kept = served.bus().await.event(run, EventType::BlockFiled, "estate", &data).expect("made");
    registry.outbox_put(kept.to_bytes().expect("JSON")).await.expect("kept");
    registry.outbox_put(b"no event at all".to_vec().into()).await.expect("kept");
    served.serve("observe");
    served.tick().await;
    let told = served.events("block.filed").await;
    assert_eq!(told.iter().map(|e| e.id.clone()).collect::<Vec<_>>(), [kept.id], "{}", served.log());
    assert_eq!(registry.outbox(10).await.expect("read"), [], "sent, or nothing that anybody could send");
}

/// The bus goes away while a pass is at its last commit, and comes back when the pass has ended.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_bus_is_away_is_kept_and_sent_when_it_is_back() {
    let test = "an_event_whose_bus_is_away_is_kept_and_sent_when_it_is_back";
    let (Some(mut served), Some(server)) = (Served::new(test).await, Server::shared(test)) else { return };
    let root = format!("s3://lake/told-{}", uuid::Uuid::now_v7().simple());
    server.pylance("write", &format!("{root}/t"), serde_json::json!({ "appends": 10 }));
    let proxy = Proxy::start(server.endpoint());
    let gate = Gate::new();
    proxy.set(on_nth_of_kind("PUT _versions", 2, Action::HoldAnswer(gate.clone())));
    let file = served.here.path("squire.toml");
    let config = std::fs::read_to_string(&file).expect("written").replace(&served.here.text("lake"), &root);
    std::fs::write(&file, config + &server.storage(Some(&proxy.endpoint()))).expect("written");
    served.serve("compact");
    served.tick().await;
    gate.arrived();
    served.nats.kill();
    gate.open();
    served.until("the event is kept", |s| s.log().contains("it is kept and sent later"));
    assert_eq!(served.registry().await.outbox(10).await.expect("read").len(), 1);
    served.nats.run();
    let deadline = Instant::now() + DEADLINE;
    let told = loop {
        let told = served.events("pass.completed").await;
        if !told.is_empty() {
            break told;
        }
        assert!(Instant::now() < deadline, "{}", served.log());
    };
    assert_eq!(told.len(), 1);
    let data: PassData = told[0].data().expect("the data");
    assert_eq!(data.dataset.uri, format!("{root}/t"));
    assert_eq!(told[0].id, format!("{}/pass.completed/{}", data.run, told[0].subject.as_deref().expect("a subject")));
}
