//! Every metric of Squire, in one place (FACES, "Metrics"). Where a label's values are a known
//! list, all series exist at zero from the start.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use prometheus::proto::MetricFamily;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};
use strum::VariantArray;

use super::StoreMetrics;
use crate::bus::DeadReason;
use crate::config::Mode;
use crate::report::{
    BlockReason, Dataset, FailureKind, FindingKind, HoldReason, IndexState, IndexStatus, IndexStep, Invariant,
    OutcomeKind, Report, SkipReason, StepKind, StepOutcome, StoredClass,
};

/// Index types as the `type` label names them.
pub const INDEX_TYPES: [&str; 10] =
    ["btree", "bitmap", "label_list", "inverted", "ngram", "zone_map", "bloom_filter", "rtree", "json", "vector"];
const INDEX_OUTCOMES: [&str; 4] = ["done", "refused", "failed", "cancelled"];
const STREAMS: [&str; 6] = ["ticks", "work", "index", "tables", "events", "dead"];
const MESSAGE_OUTCOMES: [&str; 4] = ["done", "requeued", "refused", "dead"];
const QUEUE_STATES: [&str; 2] = ["pending", "in_flight"];
const TASKS: [&str; 3] = ["maintenance", "reconcile", "index_build"];
const RECLAIMED_BY: [&str; 2] = ["cleanup", "reclaim"];
const COLLECTIONS: [&str; 11] = [
    "estate",
    "projects",
    "warehouses",
    "namespaces",
    "tables",
    "locations",
    "policies",
    "protection",
    "trash",
    "blocks",
    "contracts",
];
/// Seconds; steps take from milliseconds to hours.
const DURATIONS: [f64; 14] =
    [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 10_800.0, 43_200.0];

/// The metrics of a process. Cheap to clone; clones share their values.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    fleet_registry: Registry,
    fleet_shown: AtomicBool,
    /// The only gauges of the fleet that are shown; all of them where nothing is set.
    fleet_part: OnceLock<&'static [&'static str]>,
    store: StoreMetrics,
    process: ProcessMetrics,
    fleet: FleetGauges,
}

/// Metrics of this process.
#[derive(Debug)]
pub struct ProcessMetrics {
    /// `squire_passes_total{outcome,reason}`.
    pub passes: IntCounterVec,
    /// `squire_steps_total{step,outcome}`.
    pub steps: IntCounterVec,
    /// `squire_fragments_removed_total`.
    pub fragments_removed: IntCounter,
    /// `squire_fragments_added_total`.
    pub fragments_added: IntCounter,
    /// `squire_rewritten_bytes_total`.
    pub rewritten_bytes: IntCounter,
    /// `squire_wasted_bytes_total`: written and then not committed.
    pub wasted_bytes: IntCounter,
    /// `squire_reclaimed_bytes_total{by}`.
    pub reclaimed_bytes: IntCounterVec,
    /// `squire_versions_removed_total`.
    pub versions_removed: IntCounter,
    /// `squire_delete_failures_total`.
    pub delete_failures: IntCounter,
    /// `squire_index_folds_total{type,outcome}`.
    pub index_folds: IntCounterVec,
    /// `squire_index_builds_total{type,outcome}`.
    pub index_builds: IntCounterVec,
    /// `squire_messages_total{stream,outcome}`.
    pub messages: IntCounterVec,
    /// `squire_dead_letters_total{stream,reason}`.
    pub dead_letters: IntCounterVec,
    /// `squire_commit_conflicts_total{step}`.
    pub commit_conflicts: IntCounterVec,
    /// `squire_verify_failures_total`.
    pub verify_failures: IntCounter,
    /// `squire_claims_lost_total`.
    pub claims_lost: IntCounter,
    /// `squire_invariant_violations_total{invariant}`.
    pub invariant_violations: IntCounterVec,
    /// `squire_object_store_http_requests_total{bucket,operation,code}`: the registry's requests alone. What Lance tells of its own
    /// (`lance_object_store_*`) cannot be counted here: its calls carry no status, and one of them may be many requests (a list of
    /// many pages, a read of many ranges); its answers carry a status and no operation, and only where it was 408, 429 or 5xx.
    pub http_requests: IntCounterVec,
    /// `squire_step_duration_seconds{step}`.
    pub step_duration: HistogramVec,
    /// `squire_sweep_duration_seconds`.
    pub sweep_duration: Histogram,
    /// `squire_index_build_duration_seconds{type}`.
    pub index_build_duration: HistogramVec,
    /// `squire_registry_snapshot_duration_seconds`.
    pub snapshot_duration: Histogram,
    /// `squire_build_info{version,lance,revision}`, always 1.
    pub build_info: IntGaugeVec,
    /// `squire_mode{mode}`: 1 for the mode in force.
    pub mode: IntGaugeVec,
    /// `squire_memory_limit_bytes`.
    pub memory_limit: IntGauge,
    /// `squire_claims_held`.
    pub claims_held: IntGauge,
}

/// Gauges of the fleet: exported by the replica that closed the last sweep, and by no other
/// ([`Metrics::show_fleet`], [`Metrics::drop_fleet`]).
#[derive(Debug)]
pub struct FleetGauges {
    /// `squire_datasets{outcome,reason}`; the sum is what was seen.
    pub datasets: IntGaugeVec,
    /// `squire_due_datasets`.
    pub due_datasets: IntGauge,
    /// `squire_oldest_due_timestamp_seconds`.
    pub oldest_due: Gauge,
    /// `squire_last_success_timestamp_seconds{task}`.
    pub last_success: GaugeVec,
    /// `squire_unindexed_rows`.
    pub unindexed_rows: IntGauge,
    /// `squire_findings{kind,severity}`.
    pub findings: IntGaugeVec,
    /// `squire_stored_bytes{class}`; the sum is what the buckets hold.
    pub stored_bytes: IntGaugeVec,
    /// `squire_held_bytes{reason}`.
    pub held_bytes: IntGaugeVec,
    /// `squire_blocks{reason}`.
    pub blocks: IntGaugeVec,
    /// `squire_trash_overdue`.
    pub trash_overdue: IntGauge,
    /// `squire_queue_messages{stream,state}`.
    pub queue_messages: IntGaugeVec,
    /// `squire_dead_letters{stream}`.
    pub dead_letters: IntGaugeVec,
    /// `squire_registry_unreadable_records{collection}`.
    pub unreadable_records: IntGaugeVec,
    /// `squire_budget_remaining_bytes`.
    pub budget_remaining: IntGauge,
    /// `squire_task_interval_seconds{task}`.
    pub task_interval: GaugeVec,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics, registered and at zero; fleet gauges are not shown yet.
    pub fn new() -> Self {
        let registry = Registry::new();
        let fleet_registry = Registry::new();
        let process = ProcessMetrics::register(&Declare(&registry));
        let fleet = FleetGauges::register(&Declare(&fleet_registry));
        #[cfg(target_os = "linux")]
        {
            let collector = prometheus::process_collector::ProcessCollector::for_self();
            // Only a second registration could fail, and the registry is new.
            let _ = registry.register(Box::new(collector));
        }
        let this = Self(Arc::new(Inner {
            registry,
            fleet_registry,
            fleet_shown: AtomicBool::new(false),
            fleet_part: OnceLock::new(),
            store: StoreMetrics::new(),
            process,
            fleet,
        }));
        this.zero();
        this
    }

    /// As [`new`](Self::new), and what Lance reports arrives here too.
    pub fn install() -> Self {
        let this = Self::new();
        this.0.store.install();
        this
    }

    /// What Lance reports of its requests.
    pub fn store(&self) -> &StoreMetrics {
        &self.0.store
    }

    /// The gauges of the fleet; they are exported only while [shown](Self::show_fleet).
    pub fn fleet(&self) -> &FleetGauges {
        &self.0.fleet
    }

    /// Exports the gauges of the fleet: this replica closed the last sweep.
    pub fn show_fleet(&self) {
        self.0.fleet_shown.store(true, Ordering::SeqCst);
    }

    /// From now on only these gauges of the fleet are ever shown: those that this daemon's task feeds. Another task's daemon
    /// shows the others, and no gauge is exported twice.
    pub fn only_fleet(&self, names: &'static [&'static str]) {
        let _ = self.0.fleet_part.set(names);
    }

    /// Drops the gauges of the fleet: another replica closed a sweep since.
    pub fn drop_fleet(&self) {
        self.0.fleet_shown.store(false, Ordering::SeqCst);
    }

    /// What counts an HTTP request into `squire_object_store_http_requests_total`, from its bucket, operation and answer.
    pub fn request_counter(&self) -> impl Fn(&str, &str, &str) + Send + Sync + 'static {
        let counter = self.http_requests.clone();
        move |bucket, operation, code| counter.with_label_values(&[bucket, operation, code]).inc()
    }

    /// Sets `squire_mode`.
    pub fn set_mode(&self, mode: Mode) {
        for m in Mode::VARIANTS {
            let on = i64::from(*m == mode);
            self.mode.with_label_values(&[m.to_string().as_str()]).set(on);
        }
    }

    /// Counts a broken invariant, and says so in the log.
    pub fn violated(&self, invariant: Invariant, detail: &str) {
        self.invariant_violations.with_label_values(&[invariant.as_str()]).inc();
        tracing::error!(invariant = invariant.as_str(), detail, "an invariant was broken");
    }

    /// Counts what a report says was done, and sets the fleet's gauges of datasets, findings,
    /// unindexed rows and held bytes. Does not show the fleet's gauges.
    pub fn record(&self, report: &Report) {
        self.fleet_of(report);
        self.count(report);
    }

    /// Counts what a report says was done.
    pub fn count(&self, report: &Report) {
        for dataset in &report.datasets {
            let labels = [dataset.outcome.kind().as_str(), dataset.outcome.reason().unwrap_or("")];
            self.passes.with_label_values(&labels).inc();
            self.record_steps(dataset);
        }
        if !report.totals.add_up() {
            self.violated(Invariant::EveryDatasetCounted, "seen is not the sum of the outcomes");
        }
    }

    /// Sets the fleet's gauges of datasets, findings, unindexed rows, stored and held bytes. Does not show them.
    pub fn fleet_of(&self, report: &Report) {
        let fleet = self.fleet();
        fleet.datasets.reset();
        zero_outcomes(|labels| fleet.datasets.with_label_values(labels).set(0));
        fleet.held_bytes.reset();
        for reason in HoldReason::ALL {
            fleet.held_bytes.with_label_values(&[reason.as_str()]).set(0);
        }
        fleet.findings.reset();
        zero_findings(fleet);
        let mut unindexed = 0;
        for dataset in &report.datasets {
            let labels = [dataset.outcome.kind().as_str(), dataset.outcome.reason().unwrap_or("")];
            fleet.datasets.with_label_values(&labels).inc();
            let state = dataset.after.as_ref().or(dataset.before.as_ref());
            unindexed += state.map_or(0, |s| s.unindexed_rows());
            // Where the bytes were counted file by file, they are; else what each version alone keeps.
            let by_version = dataset.steps.cleanup.iter().flat_map(|s| &s.retained);
            for retained in by_version.filter(|_| dataset.stored.is_none()) {
                fleet.held_bytes.with_label_values(&[retained.by.as_str()]).add(clamp(retained.bytes));
            }
            for held in dataset.stored.iter().flat_map(|s| &s.held) {
                fleet.held_bytes.with_label_values(&[held.by.as_str()]).add(clamp(held.bytes));
            }
        }
        for class in StoredClass::ALL {
            let bytes = report.totals.stored.get(class).copied().unwrap_or(0);
            fleet.stored_bytes.with_label_values(&[class.as_str()]).set(clamp(bytes));
        }
        fleet.unindexed_rows.set(clamp(unindexed));
        for finding in report.all_findings() {
            let labels = [finding.kind.as_str(), finding.severity.as_str()];
            fleet.findings.with_label_values(&labels).inc();
        }
    }

    fn record_steps(&self, dataset: &Dataset) {
        let count = |step: StepKind, outcome: StepOutcome, seconds: Option<f64>| {
            self.steps.with_label_values(&[step.as_str(), outcome.as_str()]).inc();
            if let Some(seconds) = seconds.filter(|_| outcome == StepOutcome::Done) {
                self.step_duration.with_label_values(&[step.as_str()]).observe(seconds);
            }
        };
        if let Some(s) = &dataset.steps.compact {
            count(StepKind::Compact, s.outcome, Some(s.duration_seconds));
            if s.outcome.did_something() {
                self.fragments_removed.inc_by(s.fragments_removed);
                self.fragments_added.inc_by(s.fragments_added);
                self.rewritten_bytes.inc_by(s.rewritten_bytes);
            }
        }
        if let Some(s) = &dataset.steps.optimize_indices {
            count(StepKind::OptimizeIndices, s.outcome, Some(s.duration_seconds));
            self.record_folds(dataset, s);
        }
        if let Some(s) = &dataset.steps.verify {
            count(StepKind::Verify, s.outcome, None);
            if s.outcome == StepOutcome::Failed {
                self.verify_failures.inc();
            }
        }
        if let Some(s) = &dataset.steps.cleanup {
            count(StepKind::Cleanup, s.outcome, None);
            if s.outcome.did_something() {
                self.versions_removed.inc_by(s.versions_removed);
                self.reclaimed_bytes.with_label_values(&["cleanup"]).inc_by(s.reclaimed_bytes);
                self.delete_failures.inc_by(s.failed_deletes);
            }
        }
    }

    /// By type: indices that were folded or merged, and where the step failed or was refused those that wait for it.
    fn record_folds(&self, dataset: &Dataset, step: &IndexStep) {
        let known = || dataset.before.iter().chain(&dataset.after).flat_map(|s| &s.indices);
        let count = |index: &IndexStatus, outcome: &str| {
            if let Some(kind) = index_type(&index.index_type) {
                self.index_folds.with_label_values(&[kind, outcome]).inc();
            }
        };
        for done in step.indices.iter().filter(|_| step.outcome.did_something()) {
            known().find(|i| i.name == done.name).into_iter().for_each(|i| count(i, "done"));
        }
        let outcome = match step.outcome {
            StepOutcome::Failed => "failed",
            StepOutcome::Refused => "refused",
            _ => return,
        };
        let waits = |i: &&IndexStatus| matches!(i.state, IndexState::Lagging | IndexState::Segmented);
        let folded = |i: &&IndexStatus| step.indices.iter().any(|done| done.name == i.name);
        let waiting = dataset.before.iter().flat_map(|s| &s.indices).filter(waits).filter(|i| !folded(i));
        waiting.for_each(|i| count(i, outcome));
    }

    /// Everything, as Prometheus' text exposition.
    pub fn exposition(&self) -> String {
        let mut families = self.0.registry.gather();
        if self.0.fleet_shown.load(Ordering::SeqCst) {
            let part = self.0.fleet_part.get();
            let fleet = self.0.fleet_registry.gather().into_iter();
            families.extend(fleet.filter(|f| part.is_none_or(|names| names.contains(&f.name()))));
        }
        families.extend(self.0.store.gather());
        families.retain(|f: &MetricFamily| !f.get_metric().is_empty());
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&families, &mut text) {
            tracing::error!(%error, "cannot write the metrics");
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Writes the exposition to a file (`--metrics-file`): all of it or nothing, so that a
    /// textfile collector never reads half.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_file(&self, path: &Path) -> io::Result<()> {
        crate::report::write_file(path, self.exposition().as_bytes())
    }

    fn zero(&self) {
        zero_outcomes(|l| drop(self.passes.with_label_values(l)));
        zero_outcomes(|l| drop(self.fleet().datasets.with_label_values(l)));
        zero_findings(self.fleet());
        for step in StepKind::ALL {
            for outcome in StepOutcome::ALL {
                self.steps.with_label_values(&[step.as_str(), outcome.as_str()]);
            }
            self.commit_conflicts.with_label_values(&[step.as_str()]);
            self.step_duration.with_label_values(&[step.as_str()]);
        }
        for kind in INDEX_TYPES {
            for outcome in INDEX_OUTCOMES {
                self.index_folds.with_label_values(&[kind, outcome]);
                self.index_builds.with_label_values(&[kind, outcome]);
            }
            self.index_build_duration.with_label_values(&[kind]);
        }
        for invariant in Invariant::ALL {
            self.invariant_violations.with_label_values(&[invariant.as_str()]);
        }
        for by in RECLAIMED_BY {
            self.reclaimed_bytes.with_label_values(&[by]);
        }
        for stream in STREAMS {
            for outcome in MESSAGE_OUTCOMES {
                self.messages.with_label_values(&[stream, outcome]);
            }
            for reason in DeadReason::ALL {
                self.dead_letters.with_label_values(&[stream, reason.as_str()]);
            }
        }
        for mode in Mode::VARIANTS {
            self.mode.with_label_values(&[mode.to_string().as_str()]);
        }
        let info = [crate::VERSION, crate::LANCE_VERSION, crate::REVISION];
        self.build_info.with_label_values(&info).set(1);
        self.zero_fleet();
    }

    fn zero_fleet(&self) {
        let fleet = self.fleet();
        for class in StoredClass::ALL {
            fleet.stored_bytes.with_label_values(&[class.as_str()]);
        }
        for reason in HoldReason::ALL {
            fleet.held_bytes.with_label_values(&[reason.as_str()]);
        }
        fleet.clear_records();
        for stream in STREAMS {
            for state in QUEUE_STATES {
                fleet.queue_messages.with_label_values(&[stream, state]);
            }
            fleet.dead_letters.with_label_values(&[stream]);
        }
        for task in TASKS {
            fleet.last_success.with_label_values(&[task]);
            fleet.task_interval.with_label_values(&[task]);
        }
    }
}

impl std::ops::Deref for Metrics {
    type Target = ProcessMetrics;
    fn deref(&self) -> &ProcessMetrics {
        &self.0.process
    }
}

/// The `type` label of an index as Lance names its type; `None` for system indices and what is not known.
pub fn index_type(lance: &str) -> Option<&'static str> {
    let plain: String = lance.to_ascii_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    if plain.starts_with("ivf") {
        return Some("vector");
    }
    INDEX_TYPES.into_iter().find(|known| known.replace('_', "") == plain)
}

fn clamp(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn zero_outcomes(mut make: impl FnMut(&[&str; 2])) {
    for kind in OutcomeKind::ALL {
        match kind {
            OutcomeKind::Skipped => SkipReason::ALL.iter().for_each(|r| make(&[kind.as_str(), r.as_str()])),
            OutcomeKind::Failed => FailureKind::ALL.iter().for_each(|r| make(&[kind.as_str(), r.as_str()])),
            _ => make(&[kind.as_str(), ""]),
        }
    }
}

fn zero_findings(fleet: &FleetGauges) {
    for kind in FindingKind::ALL {
        fleet.findings.with_label_values(&[kind.as_str(), kind.severity().as_str()]).set(0);
    }
}

/// Makes metrics and registers them. Names and labels are constants of this file, and a test
/// registers them all, so that a failure here is a mistake in this file.
struct Declare<'a>(&'a Registry);

impl Declare<'_> {
    fn keep<C: prometheus::core::Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        #[expect(clippy::expect_used, reason = "constants of this file, all made in a test")]
        let made = made.expect("a metric's name and labels are valid");
        #[expect(clippy::expect_used, reason = "constants of this file, all made in a test")]
        self.0.register(Box::new(made.clone())).expect("a metric's name is used once");
        made
    }
    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.keep(IntCounter::new(name, help))
    }
    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.keep(IntCounterVec::new(Opts::new(name, help), labels))
    }
    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.keep(IntGauge::new(name, help))
    }
    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.keep(IntGaugeVec::new(Opts::new(name, help), labels))
    }
    fn float_gauges(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.keep(GaugeVec::new(Opts::new(name, help), labels))
    }
    fn histogram(&self, name: &str, help: &str) -> Histogram {
        let opts = HistogramOpts::new(name, help).buckets(DURATIONS.to_vec());
        self.keep(Histogram::with_opts(opts))
    }
    fn histograms(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        let opts = HistogramOpts::new(name, help).buckets(DURATIONS.to_vec());
        self.keep(HistogramVec::new(opts, labels))
    }
}

impl ProcessMetrics {
    fn register(d: &Declare<'_>) -> Self {
        Self {
            passes: d.counters("squire_passes_total", "Passes by outcome.", &["outcome", "reason"]),
            steps: d.counters("squire_steps_total", "Steps by outcome.", &["step", "outcome"]),
            fragments_removed: d.counter("squire_fragments_removed_total", "Fragments that compaction replaced."),
            fragments_added: d.counter("squire_fragments_added_total", "Fragments that compaction made."),
            rewritten_bytes: d.counter("squire_rewritten_bytes_total", "Bytes of data files that compaction replaced."),
            wasted_bytes: d.counter("squire_wasted_bytes_total", "Bytes written and then not committed."),
            reclaimed_bytes: d.counters("squire_reclaimed_bytes_total", "Bytes freed.", &["by"]),
            versions_removed: d.counter("squire_versions_removed_total", "Versions removed by cleanup."),
            delete_failures: d.counter("squire_delete_failures_total", "Deletes that failed and are tried again."),
            index_folds: d.counters("squire_index_folds_total", "Indices folded or merged.", &["type", "outcome"]),
            index_builds: d.counters("squire_index_builds_total", "Indices built.", &["type", "outcome"]),
            messages: d.counters("squire_messages_total", "Messages handled.", &["stream", "outcome"]),
            dead_letters: d.counters("squire_dead_letters_total", "Messages given up.", &["stream", "reason"]),
            commit_conflicts: d.counters("squire_commit_conflicts_total", "Commits that lost a race.", &["step"]),
            verify_failures: d.counter("squire_verify_failures_total", "Verifications that found a difference."),
            claims_lost: d.counter("squire_claims_lost_total", "Claims lost while working."),
            invariant_violations: d.counters(
                "squire_invariant_violations_total",
                "Broken invariants; any is a bug.",
                &["invariant"],
            ),
            http_requests: d.counters(
                "squire_object_store_http_requests_total",
                "HTTP requests of the registry to its object stores, every attempt.",
                &["bucket", "operation", "code"],
            ),
            step_duration: d.histograms(
                "squire_step_duration_seconds",
                "Duration of steps that did something.",
                &["step"],
            ),
            sweep_duration: d.histogram("squire_sweep_duration_seconds", "Duration of sweeps."),
            index_build_duration: d.histograms(
                "squire_index_build_duration_seconds",
                "Duration of index builds.",
                &["type"],
            ),
            snapshot_duration: d
                .histogram("squire_registry_snapshot_duration_seconds", "Duration of reading the registry."),
            build_info: d.gauges(
                "squire_build_info",
                "Always 1; the build is in the labels.",
                &["version", "lance", "revision"],
            ),
            mode: d.gauges("squire_mode", "1 for the mode in force.", &["mode"]),
            memory_limit: d.gauge("squire_memory_limit_bytes", "Memory that this process may use."),
            claims_held: d.gauge("squire_claims_held", "Claims held by this process."),
        }
    }
}

impl FleetGauges {
    /// Sets what is counted of the registry's records (blocks, unreadable ones) to zero. The series stay: an alert on
    /// silence must not fire because there is nothing to count.
    pub fn clear_records(&self) {
        for reason in BlockReason::ALL {
            self.blocks.with_label_values(&[reason.as_str()]).set(0);
        }
        for collection in COLLECTIONS {
            self.unreadable_records.with_label_values(&[collection]).set(0);
        }
    }

    fn register(d: &Declare<'_>) -> Self {
        Self {
            datasets: d.gauges(
                "squire_datasets",
                "Datasets of the last sweep; the sum is what was seen.",
                &["outcome", "reason"],
            ),
            due_datasets: d.gauge("squire_due_datasets", "Datasets that are due."),
            oldest_due: d.keep(Gauge::new(
                "squire_oldest_due_timestamp_seconds",
                "Since when the longest waiting dataset is due; 0 when none is.",
            )),
            last_success: d.float_gauges(
                "squire_last_success_timestamp_seconds",
                "When a task last succeeded.",
                &["task"],
            ),
            unindexed_rows: d.gauge("squire_unindexed_rows", "Rows missing in an index, over all indices."),
            findings: d.gauges("squire_findings", "Findings that stand.", &["kind", "severity"]),
            stored_bytes: d.gauges(
                "squire_stored_bytes",
                "Stored bytes; the sum is what the buckets hold.",
                &["class"],
            ),
            held_bytes: d.gauges("squire_held_bytes", "Bytes of versions that something keeps.", &["reason"]),
            blocks: d.gauges("squire_blocks", "Blocks in force.", &["reason"]),
            trash_overdue: d.gauge("squire_trash_overdue", "Dropped tables past their deadline."),
            queue_messages: d.gauges("squire_queue_messages", "Messages in the queues.", &["stream", "state"]),
            dead_letters: d.gauges("squire_dead_letters", "Messages given up and kept.", &["stream"]),
            unreadable_records: d.gauges(
                "squire_registry_unreadable_records",
                "Records that cannot be read.",
                &["collection"],
            ),
            budget_remaining: d.gauge("squire_budget_remaining_bytes", "Bytes that may still be rewritten today."),
            task_interval: d.float_gauges(
                "squire_task_interval_seconds",
                "Time between two runs of a task.",
                &["task"],
            ),
        }
    }
}
