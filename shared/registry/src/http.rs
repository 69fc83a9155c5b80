//! Every HTTP request of the registry to its object stores, retries included, told to whoever counts them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};

/// Told the bucket (`s3://lake`), the operation (`get`, `head`, `put`, `delete`, `list`, `copy`, `other`) and the status, `error`
/// where no answer came.
type Observer = Box<dyn Fn(&str, &str, &str) + Send + Sync>;

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Tells an observer of every request from now on. The first one of a process stays; `false` for any other.
pub fn observe_requests(observer: impl Fn(&str, &str, &str) + Send + Sync + 'static) -> bool {
    OBSERVER.set(Box::new(observer)).is_ok()
}

/// Connects as the client does by itself, and tells of each request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed {
    pub(crate) bucket: String,
    /// The connection that was made last: a store makes that for its own requests after those for its credentials.
    pub(crate) made: Arc<Mutex<Option<HttpClient>>>,
}

impl Observed {
    /// What the store's own requests go through.
    pub(crate) fn client(&self) -> Option<HttpClient> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl HttpConnector for Observed {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        let client = HttpClient::new(Service { client, bucket: self.bucket.clone() });
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
        Ok(client)
    }
}

#[derive(Debug)]
struct Service {
    client: HttpClient,
    bucket: String,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let operation = operation(&request);
        let answer = self.client.execute(request).await;
        if let Some(observer) = OBSERVER.get() {
            let code = answer.as_ref().map_or("error".to_owned(), |a| a.status().as_str().to_owned());
            observer(&self.bucket, operation, &code);
        }
        answer
    }
}

fn operation(request: &HttpRequest) -> &'static str {
    let query = request.uri().query().unwrap_or_default();
    let lists = ["list-type=", "comp=list", "prefix="].iter().any(|word| query.contains(word));
    let copies = request.headers().keys().any(|k| k.as_str().ends_with("copy-source"));
    match request.method().as_str() {
        "GET" if lists => "list",
        "GET" => "get",
        "HEAD" => "head",
        "PUT" if copies => "copy",
        "PUT" => "put",
        "DELETE" => "delete",
        "POST" if query.split('&').any(|part| part == "delete" || part == "delete=") => "delete",
        "POST" => "put",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::unwrap_used, reason = "a test")]
    fn a_request_is_told_by_what_it_does() {
        let asked = |method: &str, uri: &str| {
            let mut request = HttpRequest::new(Vec::new().into());
            *request.method_mut() = method.parse().unwrap();
            *request.uri_mut() = uri.parse().unwrap();
            request
        };
        let at = "http://s3/lake/a";
        let plain: Vec<&str> =
            ["GET", "HEAD", "PUT", "DELETE", "POST", "PATCH"].map(|m| operation(&asked(m, at))).into();
        assert_eq!(plain, ["get", "head", "put", "delete", "put", "other"]);
        assert_eq!(operation(&asked("GET", "http://s3/lake?list-type=2&prefix=a")), "list");
        assert_eq!(operation(&asked("POST", "http://s3/lake?delete")), "delete");
        let mut copy = asked("PUT", at);
        copy.headers_mut().insert("x-amz-copy-source", "a".parse().unwrap());
        assert_eq!(operation(&copy), "copy");
    }
}
