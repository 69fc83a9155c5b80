//! The `squire-reconcile` command.
//!
//! `walk` reads, `findings` and `report` are pure, `cli` talks to people.

// Lance's futures nest deeply; the layout of ours contains theirs.
#![recursion_limit = "256"]

mod cli;
mod findings;
mod report;
mod walk;

use squire_service::cli::Exit;

fn main() -> Exit {
    cli::main()
}
