//! `squire-index-build`: builds indices on registered tables, here and now or by a job on the topic (design, "Index builds").
//!
//! The rooms of the house: [`plan`] decides (state in, decision out), [`apply`] has the effects and takes a plan, [`report`]
//! renders, [`serve`] takes jobs from the bus, [`cli`] talks to people. [`ask`] is what was asked for, [`build`] brings plan and
//! apply together for both of them.

// Lance's futures nest deeply; the layout of ours contains theirs.
#![recursion_limit = "256"]

pub mod apply;
pub mod ask;
pub mod build;
pub mod cli;
pub mod estate;
pub mod plan;
pub mod report;
pub mod serve;
