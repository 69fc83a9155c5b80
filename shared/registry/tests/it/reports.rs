//! Reports that reconcile runs keep.

use bytes::Bytes;
use uuid::Uuid;

use crate::support::Lake;

fn run(n: u64) -> Uuid {
    uuid::Builder::from_unix_timestamp_millis(1_790_000_000_000 + n, &[7; 10]).into_uuid()
}

#[tokio::test]
async fn a_runs_report_is_put_once_and_only_the_newest_are_kept() {
    let lake = Lake::new().await;
    let registry = &lake.registry;
    assert_eq!(registry.reports().await.unwrap(), []);
    for n in [3, 1, 2, 5, 4] {
        assert!(registry.report_put(run(n), Bytes::from(format!("report {n}"))).await.unwrap());
    }
    // The same again is the same; another one of the same run is refused, and the first stays.
    assert!(registry.report_put(run(2), Bytes::from_static(b"report 2")).await.unwrap());
    assert!(!registry.report_put(run(2), Bytes::from_static(b"another")).await.unwrap());
    assert_eq!(registry.report_get(run(2)).await.unwrap().unwrap(), "report 2");
    let runs = async || registry.reports().await.unwrap().into_iter().map(|r| r.run).collect::<Vec<_>>();
    assert_eq!(runs().await, [5, 4, 3, 2, 1].map(run));
    assert_eq!(registry.reports_prune(3).await.unwrap(), 2);
    assert_eq!(runs().await, [5, 4, 3].map(run));
    assert_eq!(registry.reports_prune(3).await.unwrap(), 0);
    assert_eq!(registry.report_get(run(1)).await.unwrap(), None);
}
