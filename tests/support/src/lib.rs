//! What the tests of several crates share: a real S3 server ([`Server`]), a client that goes around everything ([`Bucket`]),
//! a proxy between a program and that server which counts, fails, holds and kills ([`Proxy`]), real NATS servers ([`Nats`]), and
//! real Lance namespaces ([`Catalog`]).
//!
//! Shipped code has no hooks for tests. A program under test is the real binary, and what disturbs it stands outside of it, where
//! a network would.

#![allow(clippy::unwrap_used)]

mod bucket;
mod catalog;
mod http;
mod nats;
mod proxy;
mod rules;
mod server;

pub use bucket::{Bucket, Objects};
pub use catalog::Catalog;
pub use nats::Nats;
pub use proxy::{Action, Gate, Proxy, Request};
pub use rules::{failing_first, gated, kind, on_nth_of_kind, on_nth_write};
pub use server::{Options, Server};
