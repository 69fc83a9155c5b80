//! What only a server can do: go away and come back, be too old, hold somebody else's streams.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use squire_service::bus::data::Request;
use squire_service::bus::{Bus, BusErrorKind, DeadReason, Published, Queue, Settings, Stream};
use squire_service::config;
use squire_service::telemetry::Metrics;
use uuid::Uuid;

use super::nats::{Config, Nats};
use super::{ESTATE, SOON, next, nothing, pass, patient, uri, wait_for};

async fn open(nats: &Nats, name: &str, estate: Uuid) -> squire_service::bus::Result<Bus> {
    Bus::open(&nats.config(), name, estate, patient(), Metrics::new()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_survive_a_killed_server_and_workers_go_on() {
    let Some(mut nats) = Nats::start("messages_survive_a_killed_server_and_workers_go_on") else { return };
    let bus = open(&nats, "test", ESTATE).await.unwrap();
    for name in ["a", "b", "c"] {
        bus.request_pass(&pass(1, name)).await.unwrap();
    }
    let mut consumer = bus.consumer(Queue::Pass).await.unwrap();
    let held = next(&mut consumer).await;
    let mut waiting = bus.consumer(Queue::Build).await.unwrap();
    let waiter = tokio::spawn(async move {
        let deadline = Instant::now() + SOON;
        loop {
            match waiting.next(Duration::from_secs(5)).await {
                Ok(Some(delivery)) => return delivery.ack().await.unwrap(),
                Ok(None) => {}
                Err(e) => {
                    assert!(e.is_transient(), "{e}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            assert!(Instant::now() < deadline, "the consumer did not come back");
        }
    });
    nats.kill();
    wait_for("the loss is noticed", || async { !bus.is_connected() }).await;
    let e = bus.request_pass(&pass(2, "d")).await.unwrap_err();
    assert_eq!(e.kind(), BusErrorKind::Transient, "{e}");
    assert!(e.to_string().contains("the connection to NATS is down"), "{e}");
    assert!(bus.ready().await.is_err());
    let e = consumer.next(Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(e.kind(), BusErrorKind::Transient, "{e}");
    assert!(held.progress().await.unwrap_err().is_transient());

    nats.run();
    wait_for("the client reconnects", || async { bus.ready().await.is_ok() }).await;
    // Published before, and not delivered twice: what this worker holds is still its own.
    assert_eq!(uri(&held), "a");
    held.ack().await.unwrap();
    assert_eq!(bus.request_pass(&pass(1, "a")).await.unwrap(), Published::Duplicate);
    assert_eq!(bus.request_pass(&pass(2, "d")).await.unwrap(), Published::Stored);
    let mut left = Vec::new();
    for _ in 0..3 {
        let delivery = next(&mut consumer).await;
        left.push(uri(&delivery).to_owned());
        delivery.ack().await.unwrap();
    }
    left.sort();
    assert_eq!(left, ["b", "c", "d"]);
    nothing(&mut consumer).await;
    let request = serde_json::from_str(r#"{"table":"t","columns":["a"],"type":"BTREE"}"#).unwrap();
    bus.request_build(Uuid::nil(), &request).await.unwrap();
    waiter.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_its_store_gets_its_streams_back() {
    let Some(mut nats) = Nats::start("a_server_that_lost_its_store_gets_its_streams_back") else { return };
    let bus = open(&nats, "test", ESTATE).await.unwrap();
    let mut consumer = bus.consumer(Queue::Pass).await.unwrap();
    bus.request_pass(&pass(1, "a")).await.unwrap();
    nats.kill();
    nats.forget();
    nats.run();
    wait_for("the client reconnects", || async { bus.is_connected() }).await;
    assert_eq!(bus.request_pass(&pass(2, "b")).await.unwrap(), Published::Stored);
    let delivery = next(&mut consumer).await;
    assert_eq!(uri(&delivery), "b");
    delivery.ack().await.unwrap();
}

#[tokio::test]
async fn without_a_server_opening_is_a_transient_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let url = format!("nats://someone:hunter2@127.0.0.1:{port}");
    let config = config::Bus { kind: config::BusKind::Nats, url: Some(url), ..config::Bus::default() };
    let e = Bus::open(&config, "test", ESTATE, patient(), Metrics::new()).await.unwrap_err();
    assert_eq!(e.kind(), BusErrorKind::Transient, "{e}");
    let text = format!("{e} {e:?}");
    assert!(text.contains(&format!("nats://127.0.0.1:{port}")) && !text.contains("hunter2"), "{text}");
    for bad in ["", " , ", "http://a:1", "nats://"] {
        let config = config::Bus { url: Some(bad.into()), ..config.clone() };
        let e = Bus::open(&config, "test", ESTATE, patient(), Metrics::new()).await.unwrap_err();
        assert_eq!(e.kind(), BusErrorKind::Invalid, "{bad:?}: {e}");
    }
}

/// Says that it is a server of some version, and answers pings.
fn pretender(version: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let info = format!(
            "INFO {{\"server_id\":\"x\",\"server_name\":\"x\",\"version\":\"{version}\",\"go\":\"go1\",\
             \"host\":\"127.0.0.1\",\"port\":{port},\"headers\":true,\"max_payload\":1048576,\"proto\":1}}\r\n"
        );
        stream.write_all(info.as_bytes()).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        while let Some(Ok(line)) = lines.next() {
            if line.starts_with("PING") && stream.write_all(b"PONG\r\n").is_err() {
                return;
            }
        }
    });
    port
}

#[tokio::test]
async fn a_server_that_is_too_old_is_named_with_the_version_that_is_needed() {
    let port = pretender("2.9.10");
    let url = Some(format!("nats://127.0.0.1:{port}"));
    let config = config::Bus { kind: config::BusKind::Nats, url, ..config::Bus::default() };
    let e = Bus::open(&config, "test", ESTATE, patient(), Metrics::new()).await.unwrap_err();
    assert_eq!(e.kind(), BusErrorKind::Permanent, "{e}");
    assert!(e.to_string().contains("version 2.9.10") && e.to_string().contains("needs 2.10 or later"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_jetstream_is_said_so() {
    let Some(program) = Nats::program("a_server_without_jetstream_is_said_so") else { return };
    let nats = Nats::of(program, |_| {
        "accounts { PLAIN { users = [ { user: u, password: p } ] } }\nno_auth_user: u".to_owned()
    });
    let e = open(&nats, "test", ESTATE).await.unwrap_err();
    assert!(e.to_string().contains("JetStream"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn estates_do_not_see_each_other() {
    let Some(nats) = Nats::start("estates_do_not_see_each_other") else { return };
    let production = open(&nats, "production", Uuid::from_u128(1)).await.unwrap();
    let staging = open(&nats, "staging", Uuid::from_u128(2)).await.unwrap();
    production.request_pass(&pass(1, "a")).await.unwrap();
    nothing(&mut staging.consumer(Queue::Pass).await.unwrap()).await;
    assert_eq!(staging.request_pass(&pass(1, "a")).await.unwrap(), Published::Stored);
    next(&mut production.consumer(Queue::Pass).await.unwrap()).await.ack().await.unwrap();
    assert_eq!(staging.depth(Stream::Work).await.unwrap().pending, 1);
    // Two names that reduce to the same one are told apart by their ids.
    let e = open(&nats, "Production", Uuid::from_u128(3)).await.unwrap_err();
    assert_eq!(e.kind(), BusErrorKind::Permanent, "{e}");
    let text = e.to_string();
    assert!(text.contains(&Uuid::from_u128(1).to_string()) && text.contains("SQUIRE_PRODUCTION_TICKS"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_as_designed_and_follow_newer_builds_only() {
    use async_nats::jetstream::stream::{DiscardPolicy, RetentionPolicy};
    let Some(nats) = Nats::start("streams_are_as_designed_and_follow_newer_builds_only") else { return };
    open(&nats, "test", ESTATE).await.unwrap();
    let client = async_nats::connect(nats.config().url.unwrap()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let config = |name: &'static str| {
        let context = context.clone();
        async move { context.get_stream(name).await.unwrap().cached_info().config.clone() }
    };
    for (name, subjects) in [
        ("SQUIRE_TEST_TICKS", "squire.test.tick.>"),
        ("SQUIRE_TEST_WORK", "squire.test.work.>"),
        ("SQUIRE_TEST_INDEX", "squire.test.index.>"),
    ] {
        let c = config(name).await;
        assert_eq!((c.subjects, c.retention), (vec![subjects.to_owned()], RetentionPolicy::WorkQueue));
        assert_eq!((c.max_messages_per_subject, c.discard, c.discard_new_per_subject), (1, DiscardPolicy::New, true));
        assert_eq!(c.metadata["squire.version"], "1");
        assert_eq!(c.metadata["squire.estate"], ESTATE.to_string());
    }
    for (name, days) in [("SQUIRE_TEST_TABLES", 7), ("SQUIRE_TEST_EVENTS", 7), ("SQUIRE_TEST_DEAD", 0)] {
        let c = config(name).await;
        assert_eq!((c.retention, c.max_age), (RetentionPolicy::Limits, Duration::from_secs(days * 86_400)), "{name}");
    }

    // An older build's stream is brought up to date; a newer one's is taken as it is.
    let mut old = config("SQUIRE_TEST_EVENTS").await;
    old.max_age = Duration::from_secs(3_600);
    old.metadata.insert("squire.version".into(), "0".into());
    context.update_stream(old).await.unwrap();
    let mut new = config("SQUIRE_TEST_TABLES").await;
    new.max_age = Duration::from_secs(3_600);
    new.metadata.insert("squire.version".into(), "2".into());
    context.update_stream(new).await.unwrap();
    let bus = open(&nats, "test", ESTATE).await.unwrap();
    assert_eq!(config("SQUIRE_TEST_EVENTS").await.max_age, Duration::from_secs(7 * 86_400));
    assert_eq!(config("SQUIRE_TEST_EVENTS").await.metadata["squire.version"], "1");
    assert_eq!(config("SQUIRE_TEST_TABLES").await.max_age, Duration::from_secs(3_600));

    // A consumer of a newer build likewise keeps its settings.
    bus.consumer(Queue::Pass).await.unwrap();
    let stream = context.get_stream("SQUIRE_TEST_WORK").await.unwrap();
    type Pull = async_nats::jetstream::consumer::pull::Config;
    let mut consumer = stream.get_consumer::<Pull>("pass").await.unwrap().cached_info().config.clone();
    assert_eq!((consumer.max_deliver, consumer.max_ack_pending), (-1, -1));
    consumer.ack_wait = Duration::from_secs(77);
    consumer.metadata.insert("squire.version".into(), "2".into());
    let newer: Pull = async_nats::jetstream::consumer::FromConsumer::try_from_consumer_config(consumer).unwrap();
    stream.create_consumer(newer).await.unwrap();
    bus.consumer(Queue::Pass).await.unwrap();
    let have = stream.get_consumer::<Pull>("pass").await.unwrap().cached_info().config.ack_wait;
    assert_eq!(have, Duration::from_secs(77));

    // What cannot be changed is refused, with what to do.
    context.delete_stream("SQUIRE_TEST_WORK").await.unwrap();
    let wrong = async_nats::jetstream::stream::Config {
        name: "SQUIRE_TEST_WORK".into(),
        subjects: vec!["squire.test.work.>".into()],
        ..Default::default()
    };
    context.create_stream(wrong).await.unwrap();
    let e = open(&nats, "test", ESTATE).await.unwrap_err();
    assert_eq!(e.kind(), BusErrorKind::Permanent);
    assert!(e.to_string().contains("SQUIRE_TEST_WORK has retention Limits"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_publish_is_read_or_given_up_byte_for_byte() {
    let Some(nats) = Nats::start("what_others_publish_is_read_or_given_up_byte_for_byte") else { return };
    let bus = open(&nats, "test", ESTATE).await.unwrap();
    let client = async_nats::connect(nats.config().url.unwrap()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let publish = |text: Vec<u8>| {
        let context = context.clone();
        async move { context.publish("squire.test.table.changed.acme.t", text.into()).await.unwrap().await.unwrap() }
    };
    let good = r#"{"specversion":"1.0","id":"x","source":"/ingest","type":"io.squire.table.changed.v1","extra":{},
        "data":{"table":"table/acme/t","version":7,"engine":"spark"}}"#;
    let bad: Vec<u8> = b"\xff\xfe{\0%41".to_vec();
    publish(bad.clone()).await;
    publish(good.into()).await;
    let mut consumer = bus.consumer(Queue::Tables("maintenance".into())).await.unwrap();
    let delivery = next(&mut consumer).await;
    let Request::Changed(changed) = delivery.request() else { panic!("{delivery:?}") };
    assert_eq!((changed.table.as_deref(), changed.version), (Some("table/acme/t"), Some(7)));
    // Without an id of its own it can be handed back, too.
    delivery.hand_back(Duration::ZERO).await.unwrap();
    let delivery = next(&mut consumer).await;
    assert_eq!(delivery.attempts(), 1);
    delivery.ack().await.unwrap();
    let dead = bus.dead_list(10).await.unwrap();
    assert_eq!((dead.len(), dead[0].reason), (1, DeadReason::Malformed));
    assert_eq!(bus.dead_requeue(dead[0].id).await.unwrap(), Published::Stored);
    let stream = context.get_stream("SQUIRE_TEST_TABLES").await.unwrap();
    let back = stream.get_last_raw_message_by_subject("squire.test.table.changed.acme.t").await.unwrap();
    assert_eq!(back.payload, bad);

    // And what others write where only letters belong does no harm.
    context.publish("squire.test.dead.work.pass.x", "junk".into()).await.unwrap().await.unwrap();
    let letters = bus.dead_list(10).await.unwrap();
    let junk = letters.last().unwrap();
    assert_eq!((junk.subject.as_str(), junk.attempts), ("squire.test.work.pass.x", 0));
    bus.dead_drop(junk.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_replicas_may_start_at_once() {
    let Some(nats) = Nats::start("five_replicas_may_start_at_once") else { return };
    let starting = (0..5).map(|_| open(&nats, "test", ESTATE));
    let replicas = futures::future::try_join_all(starting).await.unwrap();
    let opening = replicas.iter().map(|r| r.consumer(Queue::Pass));
    assert_eq!(futures::future::try_join_all(opening).await.unwrap().len(), 5);
    assert_eq!(Settings::default().ack_wait, Duration::from_secs(30));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "three servers; part of `make test-long`"]
async fn a_cluster_that_loses_a_streams_leader_loses_no_message() {
    let Some(mut servers) = Nats::cluster("a_cluster_that_loses_a_streams_leader_loses_no_message") else { return };
    let urls: Vec<String> = servers.iter().map(|s| s.config().url.unwrap()).collect();
    let config = config::Bus { replicas: Some(3), ..servers[0].at(&urls.join(",")) };
    let settings = Settings { replicas: Some(3), ..patient() };
    let deadline = Instant::now() + SOON * 3;
    let bus = loop {
        // The cluster needs some seconds to find together.
        match Bus::open(&config, "test", ESTATE, settings.clone(), Metrics::new()).await {
            Ok(bus) => break bus,
            Err(e) => assert!(e.is_transient() && Instant::now() < deadline, "{e}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let client = async_nats::connect(urls.clone()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let info = context.get_stream("SQUIRE_TEST_WORK").await.unwrap().cached_info().clone();
    assert_eq!(info.config.num_replicas, 3);
    let leader = info.cluster.unwrap().leader.unwrap();

    let mut consumer = bus.consumer(Queue::Pass).await.unwrap();
    let mut seen = std::collections::BTreeMap::new();
    for n in 0..40 {
        if n == 10 {
            servers[leader.trim_start_matches('n').parse::<usize>().unwrap()].kill();
        }
        let name = format!("s3://lake/{n}");
        loop {
            match bus.request_pass(&pass(1, &name)).await {
                Ok(_) => break,
                Err(e) => assert!(e.is_transient() && Instant::now() < deadline, "{e}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    while seen.len() < 40 {
        assert!(Instant::now() < deadline, "{} of 40 arrived", seen.len());
        match consumer.next(Duration::from_secs(1)).await {
            Ok(None) => {}
            Ok(Some(delivery)) => {
                *seen.entry(uri(&delivery).to_owned()).or_insert(0) += 1;
                // An acknowledgement whose answer is lost brings the message once more; nothing is lost.
                if let Err(e) = delivery.ack().await {
                    assert!(e.is_transient(), "{e}");
                }
            }
            Err(e) => assert!(e.is_transient(), "{e}"),
        }
    }
    assert!(bus.dead_list(1).await.unwrap().is_empty());
}

/// The servers that `make test-long` installed: `TEST_NATS_SERVERS`, parted by colons.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs several servers; `make test-long` installs them"]
async fn every_supported_server_keeps_the_semantics() {
    let Some(servers) = std::env::var_os("TEST_NATS_SERVERS") else {
        eprintln!("SKIPPED every_supported_server_keeps_the_semantics: TEST_NATS_SERVERS names no servers");
        return;
    };
    let servers: Vec<PathBuf> = std::env::split_paths(&servers).collect();
    assert!(!servers.is_empty());
    for server in servers {
        super::conformance::all_on(&server).await;
    }
}
