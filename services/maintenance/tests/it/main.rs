//! Integration tests of the pass: the real binary on real Lance files, and the planner on described layouts.

#![allow(unreachable_pub, missing_docs)]

mod audit;
mod authority;
mod bad_input;
mod common;
mod config_keys;
mod damage;
mod disk;
mod estate;
mod frozen;
mod hook;
mod incidents;
mod inside;
mod lancedb;
mod layouts;
mod odd;
mod plan_files;
mod plan_laws;
mod references;
mod registry_lost;
mod replaced_at;
mod s3;
mod signals;
mod skips;
mod verification;
