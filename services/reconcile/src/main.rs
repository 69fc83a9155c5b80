//! The `squire-reconcile` command.

mod cli;

use squire_service::cli::Exit;

fn main() -> Exit {
    cli::main()
}
