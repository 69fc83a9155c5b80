//! The `squire-maintenance` command.

use squire_service::cli::Exit;

fn main() -> Exit {
    squire_maintenance::cli::main()
}
