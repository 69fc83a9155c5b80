//! The sections of the configuration, their keys and their defaults.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, VariantArray};

use super::Storage;
use super::show::{REDACTED, is_seed, redact_servers};
use crate::human;

/// The whole configuration. `P` holds the keys of `[policy]` and `F` those of `[floors]`; both
/// belong to the registry, so the binaries name them (`Config<squire_registry::Policy,
/// squire_registry::Floors>`). Their `Default` is the default of the section.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[serde(bound(
    serialize = "P: Serialize, F: Serialize",
    deserialize = "P: Deserialize<'de> + Default, F: Deserialize<'de> + Default"
))]
pub struct Config<P, F> {
    /// What is governed, and how far Squire may go.
    pub estate: Estate,
    /// Where the estate's records live.
    pub registry: Registry,
    /// Object-store options, as Lance names them.
    pub storage: Storage,
    /// The estate's default policy. The same keys stand in a policy record (`squire-registry policy set`), which replaces
    /// this section whole for what it governs.
    pub policy: P,
    /// What no policy gets below; a policy that asks for less is raised, and the report says so.
    pub floors: F,
    /// What one process may use.
    pub limits: Limits,
    /// What the whole fleet may spend; what is not set is not bounded.
    pub budget: Budget,
    /// What requests and storage cost, in one currency of your choice, for the `cost` figures and `budget.cost_per_day`.
    /// With none of them set `cost` is null.
    pub prices: Prices,
    /// The share of the datasets that is maintained.
    pub rollout: Rollout,
    /// How long things wait before they go.
    pub grace: Grace,
    /// When the daemons start their work: cron expressions of six fields, the first of them seconds.
    pub schedule: Schedule,
    /// How messages travel.
    pub bus: Bus,
    /// The read-only HTTP face.
    pub http: Http,
    /// Traces over OTLP; off until a collector is named.
    pub tracing: Tracing,
}

/// `[estate] mode`: how far Squire may go.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Mode {
    /// Plans and exports everything, writes nothing.
    Observe,
    /// Compacts and folds, never deletes a version.
    Compact,
    /// Everything the policy allows.
    #[default]
    Maintain,
}

/// `[estate] maintain`: which datasets are maintained.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Maintain {
    /// Every dataset that is found.
    #[default]
    All,
    /// Only those that the registry names.
    Registered,
    /// Only registered tables that carry a label.
    Labelled,
}

/// `[estate]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Estate {
    /// Name of the estate, used when a registry is made.
    pub name: String,
    /// How far Squire may go.
    pub mode: Mode,
    /// Roots that are scanned beside the registered warehouses: directories or URIs. A ROOT given by hand takes their place.
    pub roots: Vec<String>,
    /// Whether nobody outside this estate reads or clones what lies under `roots`. `false`
    /// refuses cleanup and reclaim there (`not_exclusive`). Every report says what is set.
    pub exclusive: bool,
    /// Which datasets are maintained.
    pub maintain: Maintain,
    /// Globs over displayed names; when not empty, only what matches is maintained.
    pub include: Vec<String>,
    /// Globs over displayed names; what matches is not maintained.
    pub exclude: Vec<String>,
    /// Rows per fragment by tier; a table given here replaces the default, `{}` switches tiers off.
    pub tiers: BTreeMap<String, u64>,
    /// Size of a fragment, by the widest fragment's bytes per row.
    #[serde(with = "human::size")]
    pub target_bytes: ByteSize,
    /// A table smaller than this is merged whole, a larger one grows in steps.
    #[serde(with = "human::size")]
    pub small_bytes: ByteSize,
}

impl Default for Estate {
    fn default() -> Self {
        let tier = |name: &str, rows| (name.to_owned(), rows);
        Self {
            name: "default".to_owned(),
            mode: Mode::default(),
            roots: Vec::new(),
            exclusive: true,
            maintain: Maintain::default(),
            include: Vec::new(),
            exclude: Vec::new(),
            tiers: BTreeMap::from([tier("bronze", 512), tier("silver", 262_144), tier("gold", 524_288)]),
            target_bytes: ByteSize::gib(1),
            small_bytes: ByteSize::mib(1),
        }
    }
}

/// `[registry]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Registry {
    /// The control root; the flag `--registry` sets it too. When it is not set, the nearest `_squire` at or above a ROOT.
    /// A root named here must exist (`squire-registry init`).
    pub root: Option<String>,
}

/// `[limits]`: what one process may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Memory that the work of one process may take together; Lance's caches stay below a quarter of it.
    #[serde(with = "human::size")]
    pub memory: ByteSize,
    /// Datasets worked on at once.
    pub concurrency: usize,
    /// Deletes per second and bucket, for the whole fleet.
    pub delete_rate: u32,
    /// A compaction above this is shared among workers.
    #[serde(with = "human::size")]
    pub distribute_above: ByteSize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory: ByteSize::gib(4), concurrency: 4, delete_rate: 100, distribute_above: ByteSize::gib(20) }
    }
}

/// `[budget]`: what the fleet may spend; nothing is bounded by default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Budget {
    /// Bytes rewritten per day.
    #[serde(with = "human::size::option")]
    pub rewrite_per_day: Option<ByteSize>,
    /// Object-store requests per second and bucket.
    pub requests_per_second: Option<u32>,
    /// Cost per day, in the currency of `[prices]`.
    pub cost_per_day: Option<f64>,
}

/// `[prices]`: what things cost, in one currency of the operator's choice. With none of them set
/// the reports' `cost` is null.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prices {
    /// Price of 1,000 LIST requests.
    pub list_per_1000: Option<f64>,
    /// Price of 1,000 GET requests.
    pub get_per_1000: Option<f64>,
    /// Price of 1,000 HEAD requests.
    pub head_per_1000: Option<f64>,
    /// Price of 1,000 PUT requests.
    pub put_per_1000: Option<f64>,
    /// Price of 1,000 DELETE requests.
    pub delete_per_1000: Option<f64>,
    /// Price of 1,000 COPY requests.
    pub copy_per_1000: Option<f64>,
    /// Price of one GiB stored for a month.
    pub stored_gib_month: Option<f64>,
}

/// `[rollout]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rollout {
    /// Share of the datasets that is maintained, 0 to 100, by hash of the URI.
    pub percent: u8,
}

impl Default for Rollout {
    fn default() -> Self {
        Self { percent: 100 }
    }
}

/// `[grace]`: how long things wait before they go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Grace {
    /// How long a dropped table can be undropped.
    #[serde(with = "human::duration")]
    pub trash: Duration,
    /// How long reclaimed objects stay in quarantine.
    #[serde(with = "human::duration")]
    pub quarantine: Duration,
    /// How long a stopping daemon may finish what it does.
    #[serde(with = "human::duration")]
    pub drain: Duration,
    /// How long a claim holds without renewal.
    #[serde(with = "human::duration")]
    pub claim_ttl: Duration,
    /// How long superseded records stay readable.
    #[serde(with = "human::duration")]
    pub record_history: Duration,
}

impl Default for Grace {
    fn default() -> Self {
        const DAY: u64 = 86_400;
        Self {
            trash: Duration::from_secs(7 * DAY),
            quarantine: Duration::from_secs(7 * DAY),
            drain: Duration::from_secs(300),
            claim_ttl: Duration::from_secs(90),
            record_history: Duration::from_secs(400 * DAY),
        }
    }
}

/// `[schedule]`: cron expressions with seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Schedule {
    /// When a maintenance sweep starts.
    pub maintenance: String,
    /// When a reconcile run starts.
    pub reconcile: String,
    /// IANA time zone in which the expressions are read.
    pub timezone: String,
    /// Ranges of days, `2026-12-20/2027-01-02`, both ends included, in which nothing starts.
    pub blackout: Vec<String>,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            maintenance: "0 */10 * * * *".to_owned(),
            reconcile: "0 30 2 * * *".to_owned(),
            timezone: "UTC".to_owned(),
            blackout: Vec::new(),
        }
    }
}

/// `[bus] kind`.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, Display, EnumString, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum BusKind {
    /// In this process.
    #[default]
    Embedded,
    /// NATS with JetStream.
    Nats,
}

/// `[bus]`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bus {
    /// Which bus.
    pub kind: BusKind,
    /// Server URL, for `nats`; several servers of one cluster are parted by commas.
    pub url: Option<String>,
    /// User, with `password`.
    pub user: Option<String>,
    /// Password of `user`; best set by `SQUIRE_BUS__PASSWORD`.
    pub password: Option<String>,
    /// Token; best set by `SQUIRE_BUS__TOKEN`.
    pub token: Option<String>,
    /// Path of a file with an NKey seed.
    pub nkey: Option<String>,
    /// Path of a credentials file, for `nats`.
    pub credentials: Option<String>,
    /// TLS files, for `nats`.
    pub tls: Option<BusTls>,
    /// A delivery without a sign of progress for this long goes to another worker. At most, and when it is not set, a
    /// third of `grace.claim_ttl`.
    #[serde(with = "human::duration::option")]
    pub ack_wait: Option<Duration>,
    /// Attempts after which a message becomes a dead letter; a hand-back is no attempt.
    pub max_attempts: u32,
    /// Copies of each stream in a NATS cluster. When it is not set, 1 for a stream that is made, unchanged for one that
    /// exists.
    pub replicas: Option<usize>,
}

impl fmt::Debug for Bus {
    /// Without secrets; by destructuring, so that a new key cannot be forgotten.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, url, user, password, token, nkey, credentials, tls, ack_wait, max_attempts, replicas } = self;
        let hidden = |secret: &Option<String>| secret.as_ref().map(|_| REDACTED);
        f.debug_struct("Bus")
            .field("kind", kind)
            .field("url", &url.as_deref().map(redact_servers))
            .field("user", user)
            .field("password", &hidden(password))
            .field("token", &hidden(token))
            .field("nkey", &nkey.as_deref().map(|n| if is_seed(n) { REDACTED } else { n }))
            .field("credentials", &credentials.as_deref().map(|c| if c.contains("-----BEGIN") { REDACTED } else { c }))
            .field("tls", tls)
            .field("ack_wait", ack_wait)
            .field("max_attempts", max_attempts)
            .field("replicas", replicas)
            .finish()
    }
}

impl Default for Bus {
    fn default() -> Self {
        Self {
            kind: BusKind::default(),
            url: None,
            user: None,
            password: None,
            token: None,
            nkey: None,
            credentials: None,
            tls: None,
            ack_wait: None,
            max_attempts: 5,
            replicas: None,
        }
    }
}

/// `[bus.tls]`: paths of PEM files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BusTls {
    /// Certificate authority.
    pub ca: Option<String>,
    /// Client certificate.
    pub cert: Option<String>,
    /// Key of the client certificate.
    pub key: Option<String>,
}

/// `[http]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Address to listen on. Each daemon has a default port of its own.
    pub listen: SocketAddr,
}

impl Http {
    /// Loopback on `port`.
    pub fn loopback(port: u16) -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) }
    }
}

impl Default for Http {
    fn default() -> Self {
        Self::loopback(9464)
    }
}

/// `[tracing]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tracing {
    /// Base URL of an OpenTelemetry collector that takes OTLP over HTTP (protobuf), such as `http://collector:4318`.
    pub endpoint: Option<String>,
    /// Share of the traces that is sent, 0 to 1; the parts of one sweep go together.
    pub sample: f64,
}

impl Default for Tracing {
    fn default() -> Self {
        Self { endpoint: None, sample: 1.0 }
    }
}
