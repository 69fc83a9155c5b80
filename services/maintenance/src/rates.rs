//! What a process takes of the fleet's limits per second, and what its requests have cost.
//!
//! A limit of the fleet is divided by those who use it: while a process deletes from a bucket it says so in the registry every
//! five seconds, and takes the share of one of those who do. For five seconds after another one began, both together may be faster
//! than the limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use squire_lake::rate::{Rate, bucket};
use squire_registry::Registry;
use squire_service::config::Prices;
use squire_service::telemetry::Metrics;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// How often who deletes from a bucket says so.
const DELETING: Duration = Duration::from_secs(5);
/// How often who makes requests says so.
const REQUESTING: Duration = Duration::from_secs(30);
/// Who has not said so for so many times as long takes part no longer.
const MISSED: u32 = 4;

/// The rates and the ledger of a process. Cheap to clone; clones share them.
#[derive(Clone, Default)]
pub struct Rates(Arc<Inner>);

#[derive(Default)]
struct Inner {
    deletes: tokio::sync::Mutex<HashMap<String, (Rate, Weak<Share>)>>,
    cost: Option<Box<dyn Fn() -> f64 + Send + Sync>>,
    told: Mutex<f64>,
}

impl Rates {
    /// With a function that says what all requests of this process have cost so far.
    pub fn counting(cost: impl Fn() -> f64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { cost: Some(Box::new(cost)), ..Inner::default() }))
    }

    /// Of a process that counts its requests; without prices they cost nothing.
    pub fn of(prices: &Prices, metrics: &Metrics) -> Self {
        let (prices, metrics) = (prices.clone(), metrics.clone());
        Self::counting(move || metrics.store().requests().cost(&prices).unwrap_or(0.0))
    }

    /// The limiter of deletes from a URI's bucket, at this process's share while the second value lives.
    ///
    /// # Errors
    /// When the registry does not say who else deletes there.
    pub async fn deletes(
        &self,
        registry: &Registry,
        uri: &str,
        per_second: u32,
    ) -> squire_registry::Result<(Rate, Arc<Share>)> {
        let bucket = bucket(uri).unwrap_or_else(|| "file".to_string());
        let mut known = self.0.deletes.lock().await;
        let (rate, share) = known.entry(bucket.clone()).or_insert_with(|| (Rate::new(per_second), Weak::new()));
        if let Some(share) = share.upgrade() {
            return Ok((rate.clone(), share));
        }
        let told = rate.clone();
        let begun =
            Share::begin(registry, format!("deletes {bucket}"), DELETING, move |members| told.shared_by(members));
        let begun = Arc::new(begun.await?);
        *share = Arc::downgrade(&begun);
        Ok((rate.clone(), begun))
    }

    /// What requests have cost since this was asked last, by whichever pass.
    pub fn take_cost(&self) -> f64 {
        let Some(cost) = &self.0.cost else { return 0.0 };
        let mut told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        let now = cost();
        let since = (now - *told).max(0.0);
        *told = now;
        since
    }
}

/// A process's part in `budget.requests_per_second`, where it is set.
///
/// # Errors
/// When the registry does not say who else takes part.
pub async fn requests(
    registry: &Registry,
    lake: &squire_lake::Lake,
    per_second: Option<u32>,
) -> squire_registry::Result<Option<Share>> {
    if per_second.is_none() {
        return Ok(None);
    }
    let lake = lake.clone();
    let told = move |members| lake.requests_shared_by(members);
    Share::begin(registry, "requests".into(), REQUESTING, told).await.map(Some)
}

/// Takes part in a limit of the fleet while it lives.
pub struct Share {
    registry: Registry,
    of: String,
    member: Uuid,
    renewing: JoinHandle<()>,
}

impl Share {
    async fn begin(
        registry: &Registry,
        of: String,
        every: Duration,
        told: impl Fn(u32) + Send + Sync + 'static,
    ) -> squire_registry::Result<Self> {
        let (member, ttl) = (Uuid::now_v7(), every * MISSED);
        told(registry.share_take(&of, member, ttl).await?);
        let (mine, name) = (registry.clone(), of.clone());
        let renewing = tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                match mine.share_take(&name, member, ttl).await {
                    Ok(members) => told(members),
                    Err(e) => tracing::debug!(error = %e, of = name, "who shares a limit is not known; as before"),
                }
            }
        });
        Ok(Self { registry: registry.clone(), of, member, renewing })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.renewing.abort();
        let (registry, of, member) = (self.registry.clone(), std::mem::take(&mut self.of), self.member);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // Where this is lost, the others find out after the time to live.
                if let Err(e) = registry.share_leave(&of, member).await {
                    tracing::debug!(error = %e, of, "that a limit is left could not be said");
                }
            });
        }
    }
}
