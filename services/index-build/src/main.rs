//! The `squire-index-build` command.

use squire_service::cli::Exit;

fn main() -> Exit {
    squire_index_build::cli::main()
}
