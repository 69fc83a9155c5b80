//! Integration tests of the lake on real Lance files.

#![allow(unreachable_pub, missing_docs)]

mod clean;
mod hook;
mod look;
mod lost;
mod support;
