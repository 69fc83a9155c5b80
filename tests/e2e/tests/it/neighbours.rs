//! Two estates on one bus and one bucket.

use serde_json::json;

use crate::fleet::{Fleet, swept};

#[test]
fn staging_and_production_on_one_bus_do_not_see_each_other() {
    let test = "staging_and_production_on_one_bus_do_not_see_each_other";
    let Some(production) = Fleet::new(test) else { return };
    let Some(staging) = production.beside(test) else { return };
    for fleet in [&production, &staging] {
        fleet.plain("orders", 4);
    }
    let (p, s) = (production.replica(&[]), staging.replica(&[]));
    let before = staging.objects();
    let sweep = production.sweep(&[&p]);
    assert_eq!((&sweep["seen"], &sweep["handed"]), (&json!(1), &json!(1)), "{sweep}");
    assert_eq!(production.read("orders")["fragments"], 1);
    // Nothing of it arrived next door.
    staging.settles();
    assert!(swept(&[&s]).is_empty());
    assert!(staging.objects() == before, "an object changed");
    assert!(staging.events().is_empty());
    assert_eq!(s.metric("squire_passes_total").iter().map(|(_, n)| n).sum::<f64>(), 0.0);

    let (events, objects) = (production.events().len(), production.objects());
    assert_eq!(staging.sweep(&[&s])["handed"], 1);
    assert_eq!(staging.read("orders")["fragments"], 1);
    production.settles();
    assert_eq!((production.events().len(), swept(&[&p]).len()), (events, 1));
    assert!(production.objects() == objects, "an object changed");
    let ours = format!("/estates/{}", staging.with_registry(async |r| r.id()));
    let events = staging.events();
    assert!(!events.is_empty() && events.iter().all(|e| e.source == ours), "{events:#?}");
    for fleet in [&production, &staging] {
        assert!(fleet.dead_letters().is_empty());
        fleet.oracle();
    }
}
