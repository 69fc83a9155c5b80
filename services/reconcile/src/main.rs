//! The `squire-reconcile` command.
//!
//! `walk` reads, `findings` and `report` are pure, `reclaim` moves by a plan, `cli` talks to people.

// Lance's futures nest deeply; the layout of ours contains theirs.
#![recursion_limit = "256"]

mod cli;
mod findings;
mod reclaim;
mod report;
mod walk;

use squire_service::cli::Exit;

fn main() -> Exit {
    cli::main()
}
