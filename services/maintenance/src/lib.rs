//! `squire-maintenance`: plans and applies the pass on every dataset of an estate.
//!
//! The rooms of the house: [`plan`] is pure (state in, plan out), [`apply`] has the effects and takes a plan, [`report`] renders,
//! [`driver`] decides when, [`serve`] does so for a fleet, [`cli`] talks to people.

// Lance's futures nest deeply; the layout of ours contains theirs.
#![recursion_limit = "256"]

pub mod admit;
pub mod apply;
pub mod budget;
pub mod cli;
pub mod demo;
pub mod driver;
pub mod estate;
pub mod known;
pub mod memory;
pub mod plan;
pub mod rates;
pub mod report;
pub mod serve;
pub mod state;
mod stored;
