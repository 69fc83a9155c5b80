//! `squire-index-build` on real Lance files, read afterwards by other people's code.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod commands;
mod common;
mod fleet;
mod health;
mod hostile;
mod kills;
mod once;
mod refusals;
mod types;
