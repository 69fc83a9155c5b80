//! Integration tests of the lake on real Lance files.

#![allow(unreachable_pub, missing_docs)]

mod carried;
mod classes;
mod clean;
mod comes_back;
mod contract;
mod copies;
mod damage;
mod dead_rows;
mod histories;
mod hook;
mod look;
mod lost;
mod namespace;
mod oracle;
mod others;
mod quarantine;
mod quarantine_races;
mod quarantine_s3;
mod quarantine_stops;
mod schedules;
mod slices;
mod support;
