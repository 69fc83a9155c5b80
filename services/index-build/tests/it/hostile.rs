//! Messages that want more than an index: each becomes a dead letter, and no byte of any table is read or written.

use std::time::Duration;

use serde_json::{Value, json};
use squire_service::bus::{Address, Bus, Event, Key, Settings, Stream};
use squire_service::telemetry::Metrics;
use squire_test_support::Nats;

use crate::common::{Here, Replica, stdout, wait};

async fn bus(here: &Here, nats: &Nats) -> Bus {
    let config = squire_service::config::Bus {
        kind: squire_service::config::BusKind::Nats,
        url: Some(nats.url()),
        ..squire_service::config::Bus::default()
    };
    let r = &here.registry;
    Bus::open(&config, r.name(), r.id(), Settings::default(), Metrics::new()).await.unwrap()
}

fn replica(here: &Here, nats: &Nats, n: u32) -> Replica {
    let mut command = here.command();
    command.args(["serve", "--set", "bus.kind=nats", "--set", &format!("bus.url={}", nats.url())]);
    Replica::start(command, here.path(&format!("log-{n}")))
}

fn event(id: &str, data: &Value) -> Event {
    let event = json!({
        "specversion": "1.0", "id": id, "source": "/somebody", "type": "io.squire.index.build.v1", "data": data,
    });
    // Not as a reader would read it: it may be larger than any reader takes.
    serde_json::from_value(event).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_messages_become_dead_letters_and_touch_no_table() {
    let Some(nats) = Nats::start("hostile_messages_become_dead_letters_and_touch_no_table") else { return };
    let here = Here::with_table(1, 50).await;
    let bus = bus(&here, &nats).await;
    let good = json!({ "table": "table/sales/t", "columns": ["id"], "type": "BTREE" });
    let with = |key: &str, value: Value| {
        let mut data = good.clone();
        data[key] = value;
        data
    };
    let hostile = [
        with("location", json!("s3://elsewhere/t")),
        with("storage_options", json!({ "aws_access_key_id": "x" })),
        with("uri", json!("file:///etc")),
        with("table", json!("dataset/file%3A%2F%2F%2Fetc")),
        with("table", json!("table/../../etc/passwd")),
        with("table", json!("s3://elsewhere/t")),
        with("table", json!("x".repeat(5000))),
        with("columns", json!(vec!["id"; 1000])),
        with("columns", json!(["id\u{0}"])),
        with("params", json!({ "x": "y".repeat(70_000) })),
        with("params", json!({ "base_tokenizer": "lindera/../../etc" })),
        with("params", json!([1, 2, 3])),
        with("type", json!("__lance_frag_reuse")),
        with("mode", json!("drop")),
        json!({}),
        json!("text"),
        json!(null),
    ];
    let before = std::fs::read_dir(here.table_path().join("_versions")).unwrap().count();
    for (i, data) in hostile.iter().enumerate() {
        let key = Key::of_index("hostile", &[i.to_string()], "", "");
        bus.publish(&Address::Build(key), &event(&format!("hostile-{i}"), data)).await.unwrap();
    }
    let _replica = replica(&here, &nats, 0);
    let wanted = hostile.len();
    let letters = wait_letters(&bus, wanted).await;
    assert!(letters.iter().all(|l| l.reason.as_str() == "malformed"), "{letters:#?}");
    assert_eq!(std::fs::read_dir(here.table_path().join("_versions")).unwrap().count(), before);
    assert!(here.index_dirs().is_empty());
    assert!(here.registry.jobs().await.unwrap().0.is_empty(), "no job is made of them");
    // The queue goes on.
    let run = uuid::Uuid::now_v7();
    bus.request_build(run, &serde_json::from_value(good).unwrap()).await.unwrap();
    wait("the good one is built", || (!here.index_dirs().is_empty()).then_some(()));
    let listed = here
        .command()
        .args(["--set", "bus.kind=nats", "--set", &format!("bus.url={}", nats.url())])
        .args(["dead", "list"])
        .output();
    let listed = stdout(&listed.unwrap());
    assert_eq!(listed.lines().count(), wanted, "{listed}");
}

async fn wait_letters(bus: &Bus, wanted: usize) -> Vec<squire_service::bus::DeadLetter> {
    let deadline = std::time::Instant::now() + Duration::from_secs(120);
    loop {
        let letters = bus.dead_list(1_000).await.unwrap();
        if letters.len() >= wanted {
            return letters;
        }
        assert!(std::time::Instant::now() < deadline, "{} of {wanted}: {letters:#?}", letters.len());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_ten_megabytes_is_not_taken() {
    let Some(nats) = Nats::start("a_message_of_ten_megabytes_is_not_taken") else { return };
    let here = Here::with_table(1, 50).await;
    let bus = bus(&here, &nats).await;
    let event = event(
        "big",
        &json!({ "table": "table/sales/t", "columns": ["id"], "type": "BTREE", "name": "n".repeat(10 << 20) }),
    );
    let key = Key::of_index("big", &[], "", "");
    let refused = bus.publish(&Address::Build(key), &event).await.unwrap_err();
    assert!(refused.to_string().contains("max_payload"), "{refused}");
    assert_eq!(bus.depth(Stream::Index).await.unwrap().pending, 0);
}

/// Ten thousand requests for one index are one message, and for as many tables as there are none they end as refusals; what the
/// process holds stays bounded.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_requests_are_bounded() {
    let Some(nats) = Nats::start("ten_thousand_requests_are_bounded") else { return };
    let here = Here::with_table(1, 50).await;
    let bus = bus(&here, &nats).await;
    let data: squire_service::bus::data::IndexBuild =
        serde_json::from_value(json!({ "table": "table/sales/t", "columns": ["id"], "type": "BTREE" })).unwrap();
    let publish = (0..10_000).map(|_| {
        let (bus, data) = (bus.clone(), data.clone());
        async move { bus.request_build(uuid::Uuid::now_v7(), &data).await.unwrap() }
    });
    let stored = futures::StreamExt::fold(
        futures::StreamExt::buffer_unordered(futures::stream::iter(publish), 64),
        0,
        |n, published| async move { n + usize::from(published == squire_service::bus::Published::Stored) },
    )
    .await;
    assert_eq!(stored, 1, "one is queued, and the others are known to be");
    let _replica = replica(&here, &nats, 0);
    wait("it is built", || (!here.index_dirs().is_empty()).then_some(()));
    assert_eq!(here.index_dirs().len(), 1);
}
