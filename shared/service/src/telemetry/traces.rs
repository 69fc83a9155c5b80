//! Traces over OTLP (HTTP, protobuf), where `[tracing] endpoint` names a collector: runs, passes, steps and commits as spans,
//! carried over the bus as `traceparent` (the CloudEvents extension for distributed tracing).

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::config::Tracing;

/// How long one request to the collector, and the last flush, may take: a collector that is away costs no more than this at
/// the end of a process, and nothing before.
const PATIENCE: Duration = Duration::from_secs(3);
/// The header of the W3C's trace context.
const TRACEPARENT: &str = "traceparent";

/// The provider and what sends for it; for the life of the process.
static STARTED: OnceLock<(SdkTracerProvider, tokio::runtime::Runtime)> = OnceLock::new();

/// Why traces cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error("traces cannot be sent to {endpoint}: {why}; correct tracing.endpoint, or leave it out")]
pub struct TracesError {
    endpoint: String,
    why: String,
}

/// Starts sending spans, when the configuration names a collector. The service's name is the program's.
///
/// # Errors
/// When the exporter cannot be made. A collector that does not answer is no error.
pub(super) fn start(config: &Tracing, program: &str) -> Result<Option<SdkTracer>, TracesError> {
    let Some(endpoint) = config.endpoint.as_deref() else { return Ok(None) };
    let failed = |why: String| TracesError { endpoint: endpoint.to_owned(), why };
    // Threads of its own: a busy process does not keep spans back, and a slow collector keeps no worker busy.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("traces")
        .enable_all()
        .build()
        .map_err(|e| failed(e.to_string()))?;
    let client = reqwest::Client::builder().timeout(PATIENCE).build().map_err(|e| failed(e.to_string()))?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_http_client(OnRuntime { client, handle: runtime.handle().clone() })
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .with_timeout(PATIENCE)
        .build()
        .map_err(|e| failed(e.to_string()))?;
    let resource = Resource::builder()
        .with_service_name(program.to_owned())
        .with_attribute(KeyValue::new("service.version", crate::VERSION))
        .build();
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample)));
    let provider = SdkTracerProvider::builder()
        .with_resource(resource)
        .with_sampler(sampler)
        .with_batch_exporter(exporter)
        .build();
    let tracer = provider.tracer("squire");
    STARTED.set((provider, runtime)).map_err(|_| failed("they are already being sent".into()))?;
    Ok(Some(tracer))
}

/// Sends what has not been sent, for three seconds at most. Called once, at the end of a process.
pub fn flush() {
    if let Some((provider, _)) = STARTED.get()
        && let Err(error) = provider.shutdown_with_timeout(PATIENCE)
    {
        tracing::debug!(%error, "the last spans were not sent");
    }
}

/// The current span as `traceparent`; `None` outside a sampled or unsampled trace, and where no traces are sent.
pub fn traceparent() -> Option<String> {
    STARTED.get()?;
    let context = Span::current().context();
    if !context.span().span_context().is_valid() {
        return None;
    }
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut carrier);
    carrier.remove(TRACEPARENT)
}

/// Makes `span` a child of what a message carries. Anything that is no trace context is ignored: it comes from outside.
pub fn follow(span: &Span, traceparent: Option<&str>) {
    if STARTED.get().is_none() {
        return;
    }
    let Some(text) = traceparent else { return };
    let carrier = HashMap::from([(TRACEPARENT.to_owned(), text.to_owned())]);
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
    if context.span().span_context().is_valid()
        && let Err(error) = span.set_parent(context)
    {
        tracing::debug!(%error, "a span could not follow its message's");
    }
}

/// Requests of the exporter, which has a thread and no runtime, on a runtime.
#[derive(Debug)]
struct OnRuntime {
    client: reqwest::Client,
    handle: tokio::runtime::Handle,
}

#[async_trait]
impl HttpClient for OnRuntime {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        self.handle.spawn(async move { client.send_bytes(request).await }).await?
    }
}
