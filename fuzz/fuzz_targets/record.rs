//! A record's bytes, whatever they are, are read or called unreadable.
//!
//! The first byte chooses the collection.

#![no_main]

use libfuzzer_sys::fuzz_target;
use squire_registry::Collection;
use squire_registry::document::read_record;

const COLLECTIONS: [Collection; 19] = [
    Collection::Estate,
    Collection::Projects,
    Collection::Warehouses,
    Collection::Namespaces,
    Collection::Tables,
    Collection::Locations,
    Collection::Policies,
    Collection::Protection,
    Collection::Trash,
    Collection::Blocks,
    Collection::Contracts,
    Collection::Claims,
    Collection::State,
    Collection::Runs,
    Collection::RunEntries,
    Collection::Probes,
    Collection::Schedule,
    Collection::Budget,
    Collection::Jobs,
];

fuzz_target!(|data: &[u8]| {
    let Some((first, bytes)) = data.split_first() else { return };
    // Seeds begin with a letter: `a` is the first collection.
    let collection = COLLECTIONS[usize::from(first.wrapping_sub(b'a')) % COLLECTIONS.len()];
    if let Err(why) = read_record(collection, bytes) {
        assert!(!why.is_empty());
    }
});
