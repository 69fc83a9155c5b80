//! Any bytes as a contract document: never a panic, and what is accepted is a fixed point and its own successor.

#![no_main]

use libfuzzer_sys::fuzz_target;
use squire_registry::contract::{Contracts, Principal, check_successor, discover};

fuzz_target!(|bytes: &[u8]| {
    let contracts = match Contracts::from_json(bytes) {
        Ok(contracts) => contracts,
        Err(refusals) => {
            assert!(refusals.iter().next().is_some(), "a refusal names its rule");
            let _ = refusals.to_string();
            return;
        }
    };
    let again = Contracts::new(contracts.document().clone()).expect("what was accepted is accepted again");
    assert_eq!(again, contracts);
    assert_eq!(again.digest(), contracts.digest());
    assert_eq!(check_successor(&contracts, &again), Ok(()));
    let mut principal = Principal::default();
    principal.purposes.extend(contracts.tables().iter().flat_map(|t| t.security.purposes.clone()).take(1));
    let mut cursor = None;
    loop {
        let page = discover(&contracts, &principal, cursor.as_deref()).expect("a page of its own cursor");
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
});
