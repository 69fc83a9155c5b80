//! The `squire-index-build` command.

mod cli;

use squire_service::cli::Exit;

fn main() -> Exit {
    cli::main()
}
