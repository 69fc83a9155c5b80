//! Age counts from the moment a version was replaced.

use std::time::Duration;

use squire_lake::sample::Sample;

use super::common::*;

/// Makes every version written so far look `seconds` older.
pub fn age(here: &Here, rel: &str, seconds: u64) {
    let dir = here.path(rel).join("_versions");
    for entry in std::fs::read_dir(&dir).expect("versions").flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "manifest") {
            age_manifest(&path, seconds);
        }
    }
}

/// Makes one version look `seconds` older.
pub fn age_manifest(path: &std::path::Path, seconds: u64) {
    squire_lake::sample::backdate(path, seconds).expect("backdated");
    let then = std::time::SystemTime::now() - Duration::from_secs(seconds);
    std::fs::File::options().write(true).open(path).and_then(|f| f.set_modified(then)).expect("touched");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_quiet_for_weeks_and_then_overwritten_stays_for_the_retention() {
    let here = Here::new();
    let mut sample = here.table("lake/t", 4, 100).await;
    age(&here, "lake/t", 30 * 86_400);
    let good = sample.version();
    let lake = lake();
    let held = Sample::open(&lake, &here.uri("lake/t"), Default::default()).await.expect("a handle opened before");
    sample.overwrite(10, 50_000).await.expect("overwritten");
    for i in 0..4 {
        sample.write(10, 60_000 + i * 10).await.expect("appended");
    }

    let swept = report(&["sweep", &here.text("lake"), "--yes", "--retain-versions", "2"]);
    let cleanup = &row(&swept, "lake/t")["steps"]["cleanup"];
    assert_eq!(cleanup["versions_removed"], 3, "only what was replaced weeks ago went: {cleanup:#}");
    let ids = Sample::ids(&lake, &here.uri("lake/t"), Some(good)).await.expect("the good version reads by number");
    assert_eq!(ids.len(), 400);
    assert_eq!(held.version(), good);
    assert_eq!(held.rows_now().await.expect("and through the handle"), 400);

    // Once it has been replaced for longer than the retention it goes.
    age(&here, "lake/t", 8 * 86_400);
    let swept = report(&["sweep", &here.text("lake"), "--yes", "--retain-versions", "2"]);
    let row = row(&swept, "lake/t");
    assert!(row["steps"]["cleanup"]["versions_removed"].as_u64().expect("a number") >= 1, "{row:#}");
    assert!(Sample::ids(&lake, &here.uri("lake/t"), Some(good)).await.is_err(), "it is gone");
    assert_eq!(Sample::ids(&lake, &here.uri("lake/t"), None).await.expect("HEAD reads").len(), 50);
    here.oracle("lake");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_written_within_the_retention_goes() {
    let here = Here::new();
    here.table("lake/t", 30, 10).await;
    let swept = report(&["sweep", &here.text("lake"), "--yes"]);
    assert_eq!(swept["totals"]["versions_removed"], 0);
    assert_eq!(row(&swept, "lake/t")["steps"]["cleanup"]["reason"], "retention");
    here.oracle("lake");
}
