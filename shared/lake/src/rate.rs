//! Limits per second: of deletes, and of all requests to a bucket.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use lance_io::object_store::WrappingObjectStore;
use object_store::list::PaginatedListStore;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use tokio::time::Instant;

/// So many of something per second, evenly. Cheap to clone; clones share it, and several processes can share one limit.
#[derive(Debug, Clone)]
pub struct Rate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    per_second: u32,
    members: AtomicU32,
    next: Mutex<Instant>,
}

impl Rate {
    /// At most `per_second` a second (at least one).
    pub fn new(per_second: u32) -> Self {
        let (per_second, members) = (per_second.max(1), AtomicU32::new(1));
        Self(Arc::new(Inner { per_second, members, next: Mutex::new(Instant::now()) }))
    }

    /// So many processes keep this limit together; each takes its share.
    pub fn shared_by(&self, members: u32) {
        self.0.members.store(members.max(1), Ordering::SeqCst);
    }

    /// What this process may do a second.
    pub fn share(&self) -> f64 {
        f64::from(self.0.per_second) / f64::from(self.0.members.load(Ordering::SeqCst))
    }

    /// Waits for the next turn.
    pub async fn wait(&self) {
        self.wait_for(1).await;
    }

    /// Waits for the next turn and takes so many at once: what comes next waits for all of them.
    pub async fn wait_for(&self, turns: usize) {
        let turn = {
            let mut next = self.0.next.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = (*next).max(Instant::now());
            *next = turn + Duration::from_secs_f64(turns as f64 / self.share());
            turn
        };
        tokio::time::sleep_until(turn).await;
    }
}

/// One limit for each bucket, kept by wrapping its store: every request of this process waits for its turn.
#[derive(Debug)]
pub struct Requests {
    per_second: u32,
    members: AtomicU32,
    buckets: Mutex<HashMap<String, Arc<Throttle>>>,
}

impl Requests {
    /// At most `per_second` requests a second to each bucket.
    pub fn new(per_second: u32) -> Self {
        Self { per_second, members: AtomicU32::new(1), buckets: Mutex::default() }
    }

    /// So many processes keep the limit together.
    pub fn shared_by(&self, members: u32) {
        self.members.store(members, Ordering::SeqCst);
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.values().for_each(|b| b.rate.shared_by(members));
    }

    /// The wrapper of a URI's store; `None` on a local disk.
    pub fn of(&self, uri: &str) -> Option<Arc<Throttle>> {
        let bucket = bucket(uri)?;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let throttle = buckets.entry(bucket).or_insert_with(|| {
            let rate = Rate::new(self.per_second);
            rate.shared_by(self.members.load(Ordering::SeqCst));
            Arc::new(Throttle { rate })
        });
        Some(throttle.clone())
    }
}

/// The bucket of a URI, as limits count it; `None` on a local disk.
pub fn bucket(uri: &str) -> Option<String> {
    let (scheme, rest) = uri.split_once("://").filter(|(scheme, _)| !scheme.starts_with("file"))?;
    Some(format!("{scheme}://{}", rest.split('/').next().unwrap_or_default()))
}

/// The limit of one bucket.
#[derive(Debug, Clone)]
pub struct Throttle {
    rate: Rate,
}

impl WrappingObjectStore for Throttle {
    fn wrap(&self, _store_prefix: &str, original: Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore> {
        Arc::new(Throttled { store: original, rate: self.rate.clone() })
    }

    /// Listings go through the store, where they are counted.
    fn wrap_paginated(
        &self,
        _store_prefix: &str,
        _original: Arc<dyn PaginatedListStore>,
    ) -> Option<Arc<dyn PaginatedListStore>> {
        None
    }
}

/// A store whose requests wait for their turn. Pages of a listing and parts of an upload after the first are not counted.
#[derive(Debug)]
struct Throttled {
    store: Arc<dyn ObjectStore>,
    rate: Rate,
}

impl fmt::Display for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "throttled {}", self.store)
    }
}

#[async_trait]
impl ObjectStore for Throttled {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.rate.wait().await;
        self.store.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.rate.wait().await;
        self.store.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.rate.wait().await;
        self.store.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.rate.wait().await;
        self.store.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let rate = self.rate.clone();
        let slowed = locations.then(move |location| {
            let rate = rate.clone();
            async move {
                rate.wait().await;
                location
            }
        });
        self.store.delete_stream(slowed.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (rate, listing) = (self.rate.clone(), self.store.list(prefix));
        futures::stream::once(async move {
            rate.wait().await;
            listing
        })
        .flatten()
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.rate.wait().await;
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.rate.wait().await;
        self.store.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.rate.wait().await;
        self.store.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns that come within a time, by a clock that only the test moves.
    async fn turns(rate: &Rate, time: Duration) -> usize {
        let until = Instant::now() + time;
        let mut n = 0;
        while tokio::time::timeout_at(until, rate.wait()).await.is_ok() {
            n += 1;
        }
        n
    }

    fn paused() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime")
    }

    #[test]
    fn a_rate_is_kept_evenly_and_members_take_their_shares() {
        paused().block_on(async {
            let rate = Rate::new(100);
            assert!((100..=101).contains(&turns(&rate, Duration::from_secs(1)).await));
            rate.shared_by(4);
            assert!((249..=251).contains(&turns(&rate, Duration::from_secs(10)).await));
            rate.shared_by(0);
            assert_eq!(rate.share(), 100.0, "one member is the least");
        });
    }

    #[test]
    fn what_takes_many_turns_at_once_is_paid_for_by_what_comes_next() {
        paused().block_on(async {
            let (rate, began) = (Rate::new(100), Instant::now());
            rate.wait_for(250).await;
            assert_eq!(began.elapsed(), Duration::ZERO);
            rate.wait().await;
            assert_eq!(began.elapsed(), Duration::from_millis(2_500));
        });
    }

    #[test]
    fn every_request_to_a_bucket_waits_for_its_turn_and_buckets_do_not_wait_for_each_other() {
        paused().block_on(async {
            let limits = Requests::new(10);
            limits.shared_by(2);
            let memory = || Arc::new(object_store::memory::InMemory::new()) as Arc<dyn ObjectStore>;
            let a = limits.of("s3://a/x").expect("a bucket").wrap("", memory());
            let same = limits.of("s3://a/y/z").expect("a bucket").wrap("", memory());
            let b = limits.of("s3://b").expect("a bucket").wrap("", memory());
            assert!(limits.of("file:///a/x").is_none());
            let began = Instant::now();
            let at = Path::from("o");
            for _ in 0..5 {
                a.put_opts(&at, PutPayload::from_static(b"x"), PutOptions::default()).await.expect("put");
                same.list(None).collect::<Vec<_>>().await;
            }
            // Ten requests at five a second: the first waits for nothing.
            assert_eq!(began.elapsed(), Duration::from_millis(1_800));
            let began = Instant::now();
            b.get_opts(&at, GetOptions::default()).await.expect_err("nothing is there");
            assert_eq!(began.elapsed(), Duration::ZERO);
        });
    }
}
