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
mod faults_s3;
mod frozen;
mod hook;
mod incidents;
mod inside;
mod kills;
mod lancedb;
mod layouts;
mod lost_commits;
mod odd;
mod old_clients;
mod plan_files;
mod plan_laws;
mod races;
mod references;
mod registry_lost;
mod replaced_at;
mod s3;
mod s3_estate;
mod signals;
mod skips;
mod slices;
mod two_sweeps;
mod verification;
mod yielding;
