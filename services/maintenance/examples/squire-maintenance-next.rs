//! `squire-maintenance` as a later build would look to its neighbours: everything of today's, with raised versions of messages
//! and records. The tests of a rolling upgrade run it beside the program itself.

use squire_service::cli::Exit;

fn main() -> Exit {
    squire_service::bus::stand_in_for_version(2);
    squire_registry::stand_in_for_level(2);
    squire_maintenance::cli::main()
}
