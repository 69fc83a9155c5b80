//! The bus: one suite for both implementations, and what only a server can do.

mod auth;
mod conformance;
mod nats;
mod server;

use std::time::{Duration, Instant};

use squire_service::bus::data::{PassRequested, Request};
use squire_service::bus::{Bus, Consumer, Delivery, Settings};
use squire_service::telemetry::Metrics;
use uuid::Uuid;

pub(crate) const ESTATE: Uuid = Uuid::from_u128(0x0190_d2c0_0000_7000_8000_0000_0000_00ee);
/// Long enough for anything to arrive on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// What nothing must arrive within.
pub(crate) const NOT: Duration = Duration::from_millis(300);

pub(crate) fn run(n: u128) -> Uuid {
    Uuid::from_u128(0x0190_d2c0_0000_7000_8000_0000_0000_0000 + n)
}

pub(crate) fn pass(n: u128, uri: &str) -> PassRequested {
    PassRequested { run: run(n), uri: uri.to_owned(), by_hand: false }
}

/// An ack wait that is far beyond every test.
pub(crate) fn patient() -> Settings {
    Settings { ack_wait: Duration::from_secs(120), newer_delay: Duration::from_millis(200), ..Settings::default() }
}

/// An ack wait that runs out while a test waits.
pub(crate) fn hasty() -> Settings {
    Settings { ack_wait: Duration::from_secs(2), ..patient() }
}

pub(crate) async fn next(consumer: &mut Consumer) -> Delivery {
    let start = Instant::now();
    consumer.next(SOON).await.unwrap().unwrap_or_else(|| panic!("nothing arrived in {:?}", start.elapsed()))
}

pub(crate) async fn nothing(consumer: &mut Consumer) {
    let got = consumer.next(NOT).await.unwrap();
    assert!(got.is_none(), "{got:?}");
}

pub(crate) fn uri(delivery: &Delivery) -> &str {
    match delivery.request() {
        Request::Pass(pass) => &pass.uri,
        Request::Slice(slice) => &slice.uri,
        Request::Commit(commit) => &commit.uri,
        other => panic!("{other:?}"),
    }
}

/// Polls until something holds.
pub(crate) async fn wait_for<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = Instant::now() + SOON;
    while !holds().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn embedded() -> Bus {
    Bus::embedded("test", ESTATE, patient(), Metrics::new())
}
