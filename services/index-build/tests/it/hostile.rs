//! Messages that want more than an index: each becomes a dead letter, and no byte of any table is read or written.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use squire_service::bus::{Address, Bus, Event, Key, Settings, Stream};
use squire_service::telemetry::Metrics;
use squire_test_support::{Nats, Server};

use crate::common::{Here, Replica, stdout, wait};
use crate::on_s3::OnS3;
use crate::redelivered::Served;

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

/// Publishes bytes as any client could, each on a subject of its own, and waits until the server has them.
fn publish_raw(nats: &Nats, prefix: &str, payloads: &[Vec<u8>]) {
    let stream = TcpStream::connect(("127.0.0.1", nats.port())).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let mut out = std::io::BufWriter::new(stream);
    out.write_all(b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\n").unwrap();
    for (i, payload) in payloads.iter().enumerate() {
        write!(out, "PUB squire.test.index.build.{prefix}{i:08x} {}\r\n", payload.len()).unwrap();
        out.write_all(payload).unwrap();
        out.write_all(b"\r\n").unwrap();
    }
    out.write_all(b"PING\r\n").unwrap();
    out.flush().unwrap();
    loop {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the server hung up");
        assert!(!line.starts_with("-ERR"), "{line}");
        if line.starts_with("PONG") {
            return;
        }
    }
}

/// A series of a replica's `/metrics`, 0 where it is not there.
fn metric(replica: &Replica, series: &str) -> u64 {
    let text = replica.text();
    let serving = text.lines().find(|l| l.contains("\"serving\"")).unwrap();
    let serving: Value = serde_json::from_str(serving).unwrap();
    let address = serving["http"].as_str().or(serving["fields"]["http"].as_str()).unwrap().to_owned();
    let mut stream = TcpStream::connect(address.trim_start_matches("http://")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.lines().find_map(|l| l.strip_prefix(series)?.trim().parse().ok()).unwrap_or(0)
}

const DEAD: &str = "squire_dead_letters_total{reason=\"malformed\",stream=\"index\"}";
const COUNTED: &str = "squire_messages_total{outcome=\"dead\",stream=\"index\"}";

fn good(index_type: &str) -> squire_service::bus::data::IndexBuild {
    serde_json::from_value(json!({ "table": "table/sales/t", "columns": ["id"], "type": index_type })).unwrap()
}

/// Bytes that are no message: other encodings, cut and nested JSON, ten megabytes. Counted, kept as letters, and the table's
/// storage is not asked for one byte.
#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_message_are_counted_and_given_up_without_a_request_to_storage() {
    let test = "bytes_that_are_no_message_are_counted_and_given_up_without_a_request_to_storage";
    let Some(server) = Server::shared(test) else { return };
    let Some(nats) = Nats::with_config(test, |_| "max_payload: 16MB".into()) else { return };
    let served = Served { s3: OnS3::new(server).await, nats };
    let bus = served.bus().await;
    let event = |data: &str| {
        format!(r#"{{"specversion":"1.0","id":"x","source":"/y","type":"io.squire.index.build.v1","data":{data}}}"#)
    };
    let utf8 = [event("{\"table\":\"").as_bytes(), b"\xff\xfe\xc0\x80", b"\"}}"].concat();
    let large = event(&format!(
        r#"{{"table":"table/sales/t","columns":["id"],"type":"BTREE","name":"{}"}}"#,
        "n".repeat(10 << 20)
    ));
    let params = event(&format!(
        r#"{{"table":"table/sales/t","columns":["id"],"type":"INVERTED","params":{{"custom_stop_words":["{}"]}}}}"#,
        "w".repeat(200_000)
    ));
    let payloads = [
        Vec::new(),
        vec![0xff, 0xfe, 0x00],
        utf8,
        b"{\"specversion\": \"1.0\"".to_vec(),
        "[".repeat(200_000).into_bytes(),
        event("1e400").into_bytes(),
        event(r#"{"table":"table/sales/t","columns":["id"],"type":"BTREE","table":"dataset/s3%3A%2F%2Felsewhere"}"#)
            .into_bytes(),
        params.into_bytes(),
        large.into_bytes(),
    ];
    let wanted = payloads.len() as u64;
    served.s3.proxy.pass();
    let replica = served.replica("squire.toml", &[]);
    publish_raw(&served.nats, "a", &payloads);
    let letters = wait_letters(&bus, payloads.len()).await;
    assert_eq!(letters.len(), payloads.len(), "{letters:#?}");
    assert!(letters.iter().all(|l| l.reason.as_str() == "malformed"), "{letters:#?}");
    wait("all are counted", || (metric(&replica, COUNTED) == wanted).then_some(()));
    assert_eq!(metric(&replica, DEAD), wanted);
    let asked: Vec<String> = served.s3.proxy.log().iter().map(|r| r.path.clone()).collect();
    assert!(asked.iter().all(|path| !path.contains("t.lance")), "{asked:#?}");
    // The queue goes on.
    bus.request_build(uuid::Uuid::now_v7(), &good("BTREE")).await.unwrap();
    wait("the good one is built", || (!served.s3.index_dirs().is_empty()).then_some(()));
}

/// Thousands that cannot be read: each is given up once, no job is made, and a request behind them is built.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_unreadable_requests_are_given_up_and_the_queue_goes_on() {
    let Some(nats) = Nats::start("thousands_of_unreadable_requests_are_given_up_and_the_queue_goes_on") else { return };
    let here = Here::with_table(1, 50).await;
    let bus = bus(&here, &nats).await;
    let replica = replica(&here, &nats, 0);
    let bad = br#"{"specversion":"1.0","id":"x","source":"/y","type":"io.squire.index.build.v1","data":{"location":"s3://z"}}"#;
    publish_raw(&nats, "b", &vec![bad.to_vec(); 2_000]);
    let run = uuid::Uuid::now_v7();
    bus.request_build(run, &good("BTREE")).await.unwrap();
    wait("all are counted", || (metric(&replica, COUNTED) == 2_000).then_some(()));
    assert_eq!(metric(&replica, DEAD), 2_000);
    wait("the one behind them is done", || {
        let done = "squire_messages_total{outcome=\"done\",stream=\"index\"}";
        (metric(&replica, done) == 1).then_some(())
    });
    let (jobs, _) = here.registry.jobs().await.unwrap();
    assert_eq!(jobs.len(), 1, "no job is made of those");
    assert_eq!((jobs[0].run, jobs[0].state), (run, squire_registry::JobState::Built));
    here.oracle().await;
}
