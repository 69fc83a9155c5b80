//! The registry against real directories and an in-memory store that can be made to misbehave.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod adopt;
mod blocks;
mod budget;
mod capabilities;
mod cascade;
mod claims;
mod contract;
mod document;
mod govern;
mod hierarchy;
mod identity;
mod jobs;
mod many_writers;
mod mend;
mod pairs;
mod policy;
mod probe;
mod races;
mod rename;
mod reports;
mod runs;
mod schedule;
mod state;
mod subjects;
mod support;
mod trash;
mod unreadable;
mod work;
