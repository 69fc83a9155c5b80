//! A database that LanceDB wrote: its own client gives the same answers after a sweep.

use serde_json::Value;

use super::common::*;

#[test]
fn its_own_client_answers_the_same_after_a_sweep() {
    let name = "its_own_client_answers_the_same_after_a_sweep";
    let (Some(python), Some(shared)) = (python(name), shared(name)) else { return };
    let here = Here::new();
    let script = shared.join("tools/make_lancedb.py");
    let script = script.to_str().expect("UTF-8");
    let dir = here.text("db");
    assert_ok(&run_python(&python, &[script, &dir]), "make_lancedb.py");
    let answers = || -> Value {
        let output = run_python(&python, &[script, &dir, "--answers"]);
        assert_ok(&output, "make_lancedb.py --answers");
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let mut before = answers();
    let swept = report(&["sweep", &dir, "--yes"]);
    assert_eq!(swept["totals"]["failed"], serde_json::json!({}), "{swept:#}");
    assert_eq!(row(&swept, "notes.lance")["outcome"]["kind"], "maintained");
    assert_eq!(row(&swept, "notes.lance")["after"]["fragments"], 1);
    let mut after = answers();
    // What lagged is folded; everything else is the same, and nine of ten neighbours are found.
    let unindexed = after["unindexed"].as_object().expect("counts").values().all(|n| n == 0);
    assert!(unindexed, "{}", after["unindexed"]);
    for ann in after["ann"].as_array().expect("a list") {
        assert_eq!(ann, &serde_json::json!([10, true]));
    }
    for side in [&mut before, &mut after] {
        side.as_object_mut().expect("an object").remove("unindexed");
        side.as_object_mut().expect("an object").remove("ann");
    }
    assert_eq!(before, after);
    here.oracle("db");
}
