//! The HTTP face, asked over real connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use serde_json::{Value, json};
use squire_service::http::{Face, Page, Server};
use squire_service::shutdown::{Shutdown, Signal};
use squire_service::telemetry::Metrics;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

struct Answer {
    code: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

async fn ask(to: SocketAddr, method: &str, path: &str) -> Answer {
    let mut stream = TcpStream::connect(to).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { code, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

async fn serve(face: Face) -> Server {
    face.bind(loopback()).await.unwrap()
}

#[tokio::test]
async fn metrics_are_shown_as_prometheus_reads_them() {
    let metrics = Metrics::new();
    metrics.rewritten_bytes.inc_by(42);
    let server = serve(Face::new(metrics, Shutdown::manual())).await;
    let answer = ask(server.address(), "GET", "/metrics").await;
    assert_eq!(answer.code, 200);
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
    assert!(answer.body.contains("\nsquire_rewritten_bytes_total 42\n"), "{}", answer.body);
    server.stop().await;
}

#[tokio::test]
async fn readiness_names_what_does_not_hold() {
    let up = Arc::new(AtomicBool::new(true));
    let bus = up.clone();
    let shutdown = Shutdown::manual();
    let face = Face::new(Metrics::new(), shutdown.clone()).check("registry", || async { Ok(()) }.boxed()).check(
        "bus",
        move || {
            let up = bus.load(Ordering::SeqCst);
            async move { if up { Ok(()) } else { Err("the connection to NATS is down".to_owned()) } }.boxed()
        },
    );
    let server = serve(face).await;
    let to = server.address();
    let answer = ask(to, "GET", "/readyz").await;
    assert_eq!((answer.code, answer.json()["ready"].clone()), (200, json!(true)));
    up.store(false, Ordering::SeqCst);
    let answer = ask(to, "GET", "/readyz").await;
    assert_eq!(answer.code, 503);
    let checks = json!({ "registry": "ok", "bus": "the connection to NATS is down" });
    assert_eq!(answer.json(), json!({ "ready": false, "checks": checks }));
    // The process lives all the same.
    assert_eq!(ask(to, "GET", "/livez").await.code, 200);
    up.store(true, Ordering::SeqCst);
    assert_eq!(ask(to, "GET", "/readyz").await.code, 200);
    shutdown.request(Signal::Terminate);
    let answer = ask(to, "GET", "/readyz").await;
    assert_eq!((answer.code, answer.json()["checks"]["shutdown"].clone()), (503, json!("stopping")));
    server.stop().await;
}

#[tokio::test]
async fn a_check_that_hangs_does_not_hold() {
    let face = Face::new(Metrics::new(), Shutdown::manual()).check("storage", || futures::future::pending().boxed());
    let server = serve(face).await;
    let start = Instant::now();
    let answer = ask(server.address(), "GET", "/readyz").await;
    assert_eq!((answer.code, answer.json()["checks"]["storage"].clone()), (503, json!("no answer within 3 seconds")));
    // Kubernetes gives up after some seconds, too.
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_dataset_is_asked_for_by_its_encoded_uri() {
    let face = Face::new(Metrics::new(), Shutdown::manual())
        .status(|| async { json!({ "mode": "observe" }) }.boxed())
        .dataset(|uri| async move { uri.starts_with("s3://").then(|| json!({ "uri": uri })) }.boxed());
    let server = serve(face).await;
    let to = server.address();
    assert_eq!(ask(to, "GET", "/status").await.json(), json!({ "mode": "observe" }));
    let local = ask(to, "GET", "/status/datasets/%2Flake%2Fa").await;
    assert_eq!(local.json()["error"], "there is no dataset /lake/a here");
    for path in ["s3%3A%2F%2Flake%2Fodd%20name%25.lance", "s3://lake/odd%20name%25.lance"] {
        let answer = ask(to, "GET", &format!("/status/datasets/{path}")).await;
        assert_eq!(answer.json(), json!({ "uri": "s3://lake/odd name%.lance" }), "{path}");
    }
    let answer = ask(to, "GET", "/status/datasets/nowhere").await;
    assert_eq!((answer.code, answer.json()), (404, json!({ "error": "there is no dataset nowhere here" })));
    assert_eq!(ask(to, "GET", "/status/datasets/%ff").await.code, 400);
}

#[tokio::test]
async fn a_service_adds_pages() {
    let face = Face::new(Metrics::new(), Shutdown::manual()).pages("/reports", |rest| {
        async move {
            let body = format!("<p>{}</p>", if rest.is_empty() { "all" } else { &rest });
            (rest != "gone").then_some(Page { content_type: "text/html; charset=utf-8", body })
        }
        .boxed()
    });
    let server = serve(face).await;
    let to = server.address();
    let answer = ask(to, "GET", "/reports").await;
    assert!(answer.head.contains("text/html; charset=utf-8") && answer.body == "<p>all</p>", "{}", answer.body);
    assert_eq!(ask(to, "GET", "/reports/0190.json").await.body, "<p>0190.json</p>");
    assert_eq!(ask(to, "GET", "/reports/gone").await.code, 404);
}

#[tokio::test]
async fn nothing_can_be_changed_through_it() {
    let face = Face::new(Metrics::new(), Shutdown::manual()).status(|| async { json!({}) }.boxed());
    let server = serve(face).await;
    let to = server.address();
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        for path in ["/metrics", "/livez", "/readyz", "/status", "/status/datasets/x"] {
            assert_eq!(ask(to, method, path).await.code, 405, "{method} {path}");
        }
    }
    assert_eq!(ask(to, "GET", "/").await.code, 404);
    assert_eq!(ask(to, "GET", "/status/datasets/x").await.code, 404);
    let head = ask(to, "HEAD", "/livez").await;
    assert_eq!((head.code, head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn a_stopped_server_is_gone_also_while_somebody_hangs_on() {
    let server = serve(Face::new(Metrics::new(), Shutdown::manual())).await;
    let to = server.address();
    let taken = Face::new(Metrics::new(), Shutdown::manual()).bind(to).await.unwrap_err();
    assert!(taken.to_string().contains(&to.to_string()) && taken.to_string().contains("http.listen"), "{taken}");
    // Half a request, and then silence.
    let mut hanging = TcpStream::connect(to).await.unwrap();
    hanging.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
    let start = Instant::now();
    server.stop().await;
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(TcpStream::connect(to).await.is_err());
}
