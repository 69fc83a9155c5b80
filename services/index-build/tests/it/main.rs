//! `squire-index-build` on real Lance files, read afterwards by other people's code.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod answers;
mod commands;
mod common;
mod dead;
mod fleet;
mod health;
mod hostile;
mod kills;
mod on_s3;
mod once;
mod redelivered;
mod refusals;
mod types;
