//! Behaviour of `squire-service` through its public interface.

#![allow(clippy::unwrap_used)]

mod args;
mod browser;
mod bus;
mod config;
mod config_show;
mod fixture;
mod http;
mod human;
mod planfile;
mod render;
mod report;
mod runtime;
mod schedule;
mod schema;
mod storage;
mod telemetry;
