//! The read-only HTTP face of a daemon: `/metrics`, `/livez`, `/readyz`, `/status`, `/status/datasets/<URI>`, and pages
//! that a service adds (FACES, "Events and HTTP"). Nothing can be changed through it, and only GET and HEAD are answered.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::future::{BoxFuture, join_all};
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::shutdown::Shutdown;
use crate::telemetry::Metrics;

/// How long one check of readiness may take.
const CHECK: Duration = Duration::from_secs(3);
/// How long a stopping server waits for answers that are being written.
const LINGER: Duration = Duration::from_secs(2);

type Check = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;
type Status = Arc<dyn Fn() -> BoxFuture<'static, Value> + Send + Sync>;
type DatasetStatus = Arc<dyn Fn(String) -> BoxFuture<'static, Option<Value>> + Send + Sync>;
type Pages = Arc<dyn Fn(String) -> BoxFuture<'static, Option<Page>> + Send + Sync>;

/// A page that a service adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Such as `text/html; charset=utf-8`.
    pub content_type: &'static str,
    /// The page.
    pub body: String,
}

/// What the face shows; to be filled and then [bound](Face::bind).
#[derive(Clone)]
pub struct Face {
    metrics: Metrics,
    shutdown: Shutdown,
    checks: Vec<(&'static str, Check)>,
    status: Option<Status>,
    dataset: Option<DatasetStatus>,
    pages: Vec<(&'static str, Pages)>,
}

impl fmt::Debug for Face {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Face").field("checks", &self.checks.iter().map(|c| c.0).collect::<Vec<_>>()).finish()
    }
}

impl Face {
    /// A face with these metrics. Once `shutdown` is requested it is not ready any more, and goes on answering until it is
    /// [stopped](Server::stop).
    pub fn new(metrics: Metrics, shutdown: Shutdown) -> Self {
        Self { metrics, shutdown, checks: Vec::new(), status: None, dataset: None, pages: Vec::new() }
    }

    /// Adds something that must hold for `/readyz` to say yes: `bus`, `registry`, `storage`. A check that takes longer
    /// than three seconds does not hold. What it says of itself is shown to anybody and must hold no secret.
    #[must_use]
    pub fn check<F>(mut self, name: &'static str, check: F) -> Self
    where
        F: Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync + 'static,
    {
        self.checks.push((name, Arc::new(check)));
        self
    }

    /// What `/status` says, as JSON without secrets.
    #[must_use]
    pub fn status<F>(mut self, status: F) -> Self
    where
        F: Fn() -> BoxFuture<'static, Value> + Send + Sync + 'static,
    {
        self.status = Some(Arc::new(status));
        self
    }

    /// What `/status/datasets/<percent-encoded URI>` says; `None` where the dataset is not known (404).
    #[must_use]
    pub fn dataset<F>(mut self, dataset: F) -> Self
    where
        F: Fn(String) -> BoxFuture<'static, Option<Value>> + Send + Sync + 'static,
    {
        self.dataset = Some(Arc::new(dataset));
        self
    }

    /// Pages at and below a path such as `/reports`. The function is given what follows it, decoded and without a leading
    /// slash; `None` is 404.
    #[must_use]
    pub fn pages<F>(mut self, prefix: &'static str, pages: F) -> Self
    where
        F: Fn(String) -> BoxFuture<'static, Option<Page>> + Send + Sync + 'static,
    {
        self.pages.push((prefix, Arc::new(pages)));
        self
    }

    /// Listens (`[http] listen`) and answers from now on.
    ///
    /// # Errors
    /// When the address is taken or not ours; the error names it.
    pub async fn bind(self, listen: SocketAddr) -> io::Result<Server> {
        let named = |e: io::Error| {
            let what = format!("listening on {listen}: {e}; set http.listen to a free address");
            io::Error::new(e.kind(), what)
        };
        let listener = tokio::net::TcpListener::bind(listen).await.map_err(named)?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let router = self.router();
        let task = tokio::spawn(async move { axum::serve(listener, router).with_graceful_shutdown(stopped).await });
        Ok(Server { address, stop, task })
    }

    fn router(self) -> Router {
        let mut router = Router::new()
            .route("/metrics", get(metrics))
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(readyz))
            .route("/status", get(status))
            .route("/status/datasets/{*uri}", get(dataset));
        for (prefix, pages) in self.pages.clone() {
            let top = pages.clone();
            let below = format!("{prefix}/{{*rest}}");
            router = router
                .route(prefix, get(move || page(top.clone(), String::new())))
                .route(&below, get(move |Path(rest): Path<String>| page(pages.clone(), rest)));
        }
        router.with_state(Arc::new(self))
    }
}

/// A face that listens. Dropped, it goes on until the process ends.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<io::Result<()>>,
}

impl Server {
    /// Where it listens; the port is the real one where 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, and waits shortly for the answers that are being written.
    pub async fn stop(self) {
        self.stop.cancel();
        let abort = self.task.abort_handle();
        if tokio::time::timeout(LINGER, self.task).await.is_err() {
            abort.abort();
        }
    }
}

async fn metrics(State(face): State<Arc<Face>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], face.metrics.exposition()).into_response()
}

async fn readyz(State(face): State<Arc<Face>>) -> Response {
    let results = join_all(face.checks.iter().map(|(name, check)| async move {
        let result = tokio::time::timeout(CHECK, check()).await;
        let result = result.unwrap_or_else(|_| Err(format!("no answer within {} seconds", CHECK.as_secs())));
        (*name, result)
    }))
    .await;
    let stopping = face.shutdown.is_requested();
    let ready = !stopping && results.iter().all(|(_, r)| r.is_ok());
    let mut checks: Map<String, Value> =
        results.into_iter().map(|(name, r)| (name.to_owned(), r.err().map_or(json!("ok"), Value::String))).collect();
    if stopping {
        checks.insert("shutdown".to_owned(), json!("stopping"));
    }
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, axum::Json(json!({ "ready": ready, "checks": checks }))).into_response()
}

async fn status(State(face): State<Arc<Face>>) -> Response {
    match &face.status {
        Some(status) => axum::Json(status().await).into_response(),
        None => not_found("status"),
    }
}

async fn dataset(State(face): State<Arc<Face>>, Path(uri): Path<String>) -> Response {
    let Some(dataset) = &face.dataset else { return not_found("status of datasets") };
    match dataset(uri.clone()).await {
        Some(status) => axum::Json(status).into_response(),
        None => not_found(&format!("dataset {uri}")),
    }
}

async fn page(pages: Pages, rest: String) -> Response {
    match pages(rest.clone()).await {
        Some(page) => ([(header::CONTENT_TYPE, page.content_type)], page.body).into_response(),
        None => not_found(if rest.is_empty() { "page" } else { &rest }),
    }
}

fn not_found(what: &str) -> Response {
    (StatusCode::NOT_FOUND, axum::Json(json!({ "error": format!("there is no {what} here") }))).into_response()
}
