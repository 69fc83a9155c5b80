//! Traces over OTLP: what a collector receives of a sweep and of a daemon, and that a collector that is away harms nothing.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

use super::common::*;

/// A collector: it takes what is posted to `/v1/traces` and keeps the spans with the name of their service.
struct Collector {
    endpoint: String,
    spans: Arc<Mutex<Vec<(String, Span)>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let spans = Arc::new(Mutex::new(Vec::new()));
        let kept = spans.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = kept.clone();
                std::thread::spawn(move || {
                    let mut writer = stream.try_clone().expect("a socket");
                    let mut reader = BufReader::new(stream);
                    while let Some(body) = request(&mut reader) {
                        kept.lock().expect("kept").extend(decoded(&body));
                        let said =
                            "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
                        if writer.write_all(said.as_bytes()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { endpoint, spans }
    }

    fn spans(&self) -> Vec<(String, Span)> {
        self.spans.lock().expect("kept").clone()
    }

    /// Waits until the spans satisfy a condition.
    #[track_caller]
    fn until<T>(&self, what: &str, holds: impl Fn(&[(String, Span)]) -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let spans = self.spans();
            if let Some(found) = holds(&spans) {
                return found;
            }
            let names: Vec<_> = spans.iter().map(|(_, s)| s.name.clone()).collect();
            assert!(Instant::now() < deadline, "{what}: not within a minute; spans: {names:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The body of one request, `None` at the end of a connection.
fn request(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut length = 0;
    let mut first = true;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if first {
            assert!(line.starts_with("POST /v1/traces "), "{line}");
            first = false;
        }
        let line = line.trim().to_ascii_lowercase();
        if let Some(n) = line.strip_prefix("content-length:") {
            length = n.trim().parse().ok()?;
        }
        if line.is_empty() {
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            return Some(body);
        }
    }
}

fn decoded(body: &[u8]) -> Vec<(String, Span)> {
    let request = ExportTraceServiceRequest::decode(body).expect("protobuf");
    let mut out = Vec::new();
    for resource in request.resource_spans {
        let attributes = resource.resource.map(|r| r.attributes).unwrap_or_default();
        let service = attributes.iter().find(|a| a.key == "service.name").map(text).unwrap_or_default();
        out.extend(resource.scope_spans.into_iter().flat_map(|s| s.spans).map(|s| (service.clone(), s)));
    }
    out
}

fn text(attribute: &opentelemetry_proto::tonic::common::v1::KeyValue) -> String {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    match attribute.value.as_ref().and_then(|v| v.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        other => format!("{other:?}"),
    }
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    span.attributes.iter().find(|a| a.key == key).map(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_is_one_trace_of_datasets_steps_and_commits() {
    let here = Here::new();
    here.table("lake/t", 12, 10).await;
    let collector = Collector::start();
    let endpoint = format!("tracing.endpoint={}", collector.endpoint);
    let swept = squire(&["sweep", &here.text("lake"), "--yes", "--set", &endpoint]);
    assert_eq!(swept.status.code(), Some(0), "{swept:?}");
    let spans = collector.spans();
    let by_id: HashMap<Vec<u8>, &Span> = spans.iter().map(|(_, s)| (s.span_id.clone(), s)).collect();
    let named = |name: &str| -> Vec<&Span> { spans.iter().map(|(_, s)| s).filter(|s| s.name == name).collect() };
    assert!(spans.iter().all(|(service, _)| service == "squire-maintenance"));
    let sweep = named("sweep");
    assert_eq!(sweep.len(), 1);
    assert!(spans.iter().all(|(_, s)| s.trace_id == sweep[0].trace_id), "one trace");
    let dataset = named("dataset");
    assert_eq!(dataset.len(), 1);
    assert_eq!(attribute(dataset[0], "dataset"), Some(here.uri("lake/t")));
    assert_eq!(attribute(dataset[0], "run").map(|run| run.len()), Some(36));
    // Two versions, two commits, each within a step of the dataset.
    let commits = named("commit");
    assert_eq!(commits.len(), 2, "{:?}", spans.iter().map(|(_, s)| &s.name).collect::<Vec<_>>());
    for commit in commits {
        let step = by_id[&commit.parent_span_id];
        assert_eq!(step.name, "compact");
        assert_eq!(by_id[&step.parent_span_id].name, "dataset");
    }
    assert_eq!(named("verify").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_belongs_to_the_trace_of_the_sweep_that_asked_for_it() {
    let here = Here::new();
    here.table("lake/t", 12, 10).await;
    let collector = Collector::start();
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
    let config = format!(
        "[estate]\nroots = [{:?}]\n[schedule]\nmaintenance = \"* * * * * *\"\n[http]\nlisten = \"127.0.0.1:{port}\"\n\
         [policy]\ninterval = \"0s\"\n[tracing]\nendpoint = {:?}\n",
        here.text("lake"),
        collector.endpoint
    );
    std::fs::write(here.path("squire.toml"), config).expect("written");
    let mut child = start(&["serve", "--config", &here.text("squire.toml")]);
    let (pass, sweep) = collector.until("a pass and its sweep", |spans| {
        let pass = spans.iter().map(|(_, s)| s).find(|s| s.name == "pass")?;
        let sweep = spans.iter().map(|(_, s)| s).find(|s| s.name == "sweep" && s.span_id == pass.parent_span_id)?;
        Some((pass.clone(), sweep.clone()))
    });
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert_eq!(pass.trace_id, sweep.trace_id);
    assert_eq!(attribute(&pass, "run"), attribute(&sweep, "run"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_harms_nothing() {
    let here = Here::new();
    here.table("lake/t", 12, 10).await;
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
    let endpoint = format!("tracing.endpoint=http://127.0.0.1:{port}");
    let swept = squire(&["sweep", &here.text("lake"), "--yes", "--set", &endpoint]);
    assert_eq!(swept.status.code(), Some(0), "{swept:?}");
    assert!(String::from_utf8_lossy(&swept.stdout).contains("1 maintained"), "{swept:?}");
}

#[test]
fn what_is_no_collector_is_refused_before_anything_is_done() {
    let out = squire(&["plan", "/nowhere", "--set", "tracing.endpoint=collector:4318"]);
    assert_eq!(out.status.code(), Some(2));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("tracing.endpoint") && said.contains("http://collector:4318"), "{said}");
}
