//! The `squire-reconcile` command.
//!
//! `walk` reads, `row`, `findings` and `report` are pure, `serve` does so by a clock, `reclaim` moves by a
//! plan, `cli` talks to people.

// Lance's futures nest deeply; the layout of ours contains theirs.
#![recursion_limit = "256"]

mod cli;
mod contracts;
mod findings;
mod namespaces;
mod reclaim;
mod report;
mod row;
mod serve;
mod stranded;
mod walk;

use squire_service::cli::Exit;

fn main() -> Exit {
    cli::main()
}
