//! Behaviour of `squire-service` through its public interface.

#![allow(clippy::unwrap_used)]

mod args;
mod config;
mod config_show;
mod fixture;
mod human;
mod planfile;
mod render;
mod report;
mod runtime;
mod schema;
mod storage;
mod telemetry;
