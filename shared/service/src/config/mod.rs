//! The configuration: one struct for all binaries, loaded from defaults, a file, the environment,
//! `--set` and flags, in that order of precedence.
//!
//! The keys are a contract (FACES, "Config"). Every unknown key is refused with the nearest known
//! one, and every value knows where it came from ([`Loaded::leaves`]).

mod check;
mod effect;
mod error;
mod layer;
mod load;
mod nearest;
mod sections;
mod show;
mod storage;

pub use check::Problem;
pub use effect::{Effect, Program};
pub use error::{ConfigError, ConfigErrorKind, Issue};
pub use layer::Source;
pub use load::{Loaded, Loader, Validator};
pub use sections::{
    Budget, Bus, BusKind, BusTls, Config, Estate, Grace, Http, Limits, Maintain, Mode, Prices, Registry, Rollout,
    Schedule, Tracing,
};
pub use show::{Leaf, redact_command};
pub use storage::{Storage, StorageOptions};
