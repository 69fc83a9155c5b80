//! The bridge from the `metrics` facade, through which Lance reports its object-store requests
//! (`lance_object_store_*`), into our exposition and into the request totals of a report.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use prometheus::proto::{Bucket, LabelPair, Metric, MetricFamily, MetricType};

use crate::report::Requests;

/// Lance's counter of requests; label `operation`.
const REQUESTS: &str = "lance_object_store_requests_total";

/// Upper bounds of every histogram in seconds; those that Lance recommends for its requests.
const BOUNDS: [f64; 21] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 150.0, 180.0,
    240.0, 300.0,
];

/// A recorder for the `metrics` facade. Cheap to clone; clones share their values.
#[derive(Debug, Clone, Default)]
pub struct StoreMetrics(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    counters: Mutex<HashMap<Key, Arc<Count>>>,
    gauges: Mutex<HashMap<Key, Arc<Level>>>,
    histograms: Mutex<HashMap<Key, Arc<Spread>>>,
    help: Mutex<HashMap<String, String>>,
}

#[derive(Debug, Default)]
struct Count(AtomicU64);

impl CounterFn for Count {
    fn increment(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }
    fn absolute(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }
}

/// A float, as its bits.
#[derive(Debug, Default)]
struct Level(AtomicU64);

impl Level {
    fn update(&self, f: impl Fn(f64) -> f64) {
        let next = |bits| Some(f(f64::from_bits(bits)).to_bits());
        // The closure never declines.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
    fn value(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

impl GaugeFn for Level {
    fn increment(&self, value: f64) {
        self.update(|v| v + value);
    }
    fn decrement(&self, value: f64) {
        self.update(|v| v - value);
    }
    fn set(&self, value: f64) {
        self.update(|_| value);
    }
}

#[derive(Debug, Default)]
struct Spread {
    /// Not cumulative; the last is for values above all bounds.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum: Level,
}

impl HistogramFn for Spread {
    fn record(&self, value: f64) {
        let at = BOUNDS.iter().position(|bound| value <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[at].fetch_add(1, Ordering::Relaxed);
        self.sum.increment(value);
    }
}

fn get_or_make<T: Default>(map: &Mutex<HashMap<Key, Arc<T>>>, key: &Key) -> Arc<T> {
    let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(map.entry(key.clone()).or_default())
}

impl Recorder for StoreMetrics {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, description);
    }
    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, description);
    }
    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, description);
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(get_or_make(&self.0.counters, key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(get_or_make(&self.0.gauges, key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(get_or_make(&self.0.histograms, key))
    }
}

impl StoreMetrics {
    /// An empty recorder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes this the process's recorder; `false` when there was one already.
    pub fn install(&self) -> bool {
        metrics::set_global_recorder(self.clone()).is_ok()
    }

    fn describe(&self, key: &KeyName, description: SharedString) {
        let mut help = self.0.help.lock().unwrap_or_else(PoisonError::into_inner);
        help.insert(key.as_str().to_owned(), description.into_owned());
    }

    /// Requests so far, by kind. A run's requests are the difference of two readings. Every
    /// request of a multipart upload is a put, a rename is a copy and a delete.
    pub fn requests(&self) -> Requests {
        let mut r = Requests::default();
        let counters = self.0.counters.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, count) in counters.iter().filter(|(key, _)| key.name() == REQUESTS) {
            let n = count.0.load(Ordering::Relaxed);
            let operation = key.labels().find(|l| l.key() == "operation").map(metrics::Label::value);
            match operation.unwrap_or_default() {
                "list" | "list_paginated" => r.list += n,
                "get" => r.get += n,
                "head" => r.head += n,
                "put" | "put_part" | "create_multipart" | "complete_multipart" => r.put += n,
                "delete" | "abort_multipart" => r.delete += n,
                "copy" => r.copy += n,
                "rename" => {
                    r.copy += n;
                    r.delete += n;
                }
                _ => {}
            }
        }
        r
    }

    /// Everything that was recorded, for the exposition, sorted by name and labels.
    pub fn gather(&self) -> Vec<MetricFamily> {
        let mut families: BTreeMap<String, (MetricType, Vec<Metric>)> = BTreeMap::new();
        let mut add = |key: &Key, kind: MetricType, fill: &dyn Fn(&mut Metric)| {
            let mut metric = Metric::from_label(labels(key));
            fill(&mut metric);
            let family = families.entry(key.name().to_owned()).or_insert((kind, Vec::new()));
            // One name with two types would make the exposition unreadable.
            if family.0 == kind {
                family.1.push(metric);
            }
        };
        for (key, count) in sorted(&self.0.counters) {
            let mut counter = prometheus::proto::Counter::default();
            counter.set_value(count.0.load(Ordering::Relaxed) as f64);
            add(&key, MetricType::COUNTER, &|m| m.set_counter(counter.clone()));
        }
        for (key, level) in sorted(&self.0.gauges) {
            let mut gauge = prometheus::proto::Gauge::default();
            gauge.set_value(level.value());
            add(&key, MetricType::GAUGE, &|m| m.set_gauge(gauge.clone()));
        }
        for (key, spread) in sorted(&self.0.histograms) {
            let histogram = spread.histogram();
            add(&key, MetricType::HISTOGRAM, &|m| m.set_histogram(histogram.clone()));
        }
        let help = self.0.help.lock().unwrap_or_else(PoisonError::into_inner);
        families
            .into_iter()
            .map(|(name, (kind, metrics))| {
                let mut family = MetricFamily::default();
                let text = help.get(&name).cloned().unwrap_or_else(|| "Reported by Lance.".to_owned());
                family.set_help(text);
                family.set_name(name);
                family.set_field_type(kind);
                family.set_metric(metrics);
                family
            })
            .collect()
    }
}

impl Spread {
    fn histogram(&self) -> prometheus::proto::Histogram {
        let mut out = prometheus::proto::Histogram::default();
        let mut cumulative = 0;
        let mut buckets = Vec::with_capacity(BOUNDS.len());
        for (i, bound) in BOUNDS.iter().enumerate() {
            cumulative += self.buckets[i].load(Ordering::Relaxed);
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(cumulative);
            buckets.push(bucket);
        }
        out.set_bucket(buckets);
        out.set_sample_count(cumulative + self.buckets[BOUNDS.len()].load(Ordering::Relaxed));
        out.set_sample_sum(self.sum.value());
        out
    }
}

fn labels(key: &Key) -> Vec<LabelPair> {
    let mut pairs: Vec<LabelPair> = key
        .labels()
        .map(|label| {
            let mut pair = LabelPair::default();
            pair.set_name(label.key().to_owned());
            pair.set_value(label.value().to_owned());
            pair
        })
        .collect();
    pairs.sort_by(|a, b| a.name().cmp(b.name()));
    pairs
}

fn sorted<T>(map: &Mutex<HashMap<Key, Arc<T>>>) -> Vec<(Key, Arc<T>)> {
    let map = map.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all: Vec<(Key, Arc<T>)> = map.iter().map(|(k, v)| (k.clone(), Arc::clone(v))).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}
