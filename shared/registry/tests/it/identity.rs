//! The nearest registry, the root's marker, and the lost registry.

use std::fs;

use squire_registry::{
    Error, Kind, Located, Registry, canonical_uri, ensure_marker, locate, markers_above, read_marker, registry_lost,
};
use uuid::Uuid;

use crate::support::{Lake, actor, files, none};

async fn find(roots: &[&std::path::Path]) -> squire_registry::Result<Located> {
    let roots: Vec<String> = roots.iter().map(|p| p.to_str().unwrap().to_owned()).collect();
    locate(&roots, |_| none()).await
}

fn uri(path: &std::path::Path) -> String {
    canonical_uri(path.to_str().unwrap()).unwrap()
}

#[tokio::test]
async fn a_sub_root_finds_the_registry_above() {
    let lake = Lake::new().await;
    let below = lake.dir.path().join("a/b c");
    fs::create_dir_all(&below).unwrap();
    let expected = Located::Found(lake.registry.uri().to_owned());
    assert_eq!(find(&[&below]).await.unwrap(), expected);
    assert_eq!(find(&[lake.dir.path()]).await.unwrap(), expected);
    // Through a link from elsewhere, too.
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("link");
    std::os::unix::fs::symlink(&below, &link).unwrap();
    assert_eq!(find(&[&link]).await.unwrap(), expected);
    assert_eq!(find(&[&link, lake.dir.path()]).await.unwrap(), expected);
}

#[tokio::test]
async fn the_nearest_registry_wins() {
    let lake = Lake::new().await;
    let inner = lake.dir.path().join("inner");
    let made = Registry::init(inner.join("_squire").to_str().unwrap(), &none(), "inner", actor()).await.unwrap();
    let below = inner.join("x");
    fs::create_dir_all(&below).unwrap();
    assert_eq!(find(&[&below]).await.unwrap(), Located::Found(made.uri().to_owned()));
}

#[tokio::test]
async fn two_registries_are_an_error_that_names_both() {
    let (one, two) = (Lake::new().await, Lake::new().await);
    let error = find(&[one.dir.path(), two.dir.path()]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    let text = error.to_string();
    assert!(text.contains(one.registry.uri()) && text.contains(two.registry.uri()), "{text}");
}

#[tokio::test]
async fn without_one_it_would_be_in_the_first_root_and_looking_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let would_be = uri(&dir.path().join("_squire"));
    assert_eq!(find(&[dir.path()]).await.unwrap(), Located::Absent { would_be });
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
}

#[tokio::test]
async fn for_a_root_that_is_a_dataset_it_is_beside_it() {
    let lake = Lake::new().await;
    lake.bytes("t.lance");
    assert_eq!(
        find(&[&lake.dir.path().join("t.lance")]).await.unwrap(),
        Located::Found(lake.registry.uri().to_owned())
    );

    let dir = tempfile::tempdir().unwrap();
    let dataset = dir.path().join("t.lance");
    fs::create_dir_all(dataset.join("_versions")).unwrap();
    // One that somebody made inside the dataset by mistake does not count.
    Registry::init(dataset.join("_squire").to_str().unwrap(), &none(), "x", actor()).await.unwrap();
    let would_be = uri(&dir.path().join("_squire"));
    assert_eq!(find(&[&dataset]).await.unwrap(), Located::Absent { would_be });
}

#[tokio::test]
async fn a_named_registry_must_exist_and_opening_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let typo = dir.path().join("typo");
    let error = Registry::open(typo.to_str().unwrap(), &none()).await.unwrap_err();
    assert!(matches!(error, Error::NoRegistry { .. }), "{error}");
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(!typo.exists());
}

#[tokio::test]
async fn making_a_registry_in_a_root_marks_the_root_at_once() {
    let lake = Lake::new().await;
    let root = lake.dir.path().to_str().unwrap();
    assert_eq!(read_marker(root, &none()).await.unwrap(), Some(lake.registry.id()));
    let below = lake.dir.path().join("a");
    fs::create_dir(&below).unwrap();
    assert_eq!(read_marker(below.to_str().unwrap(), &none()).await.unwrap(), None);
    let above = markers_above(below.to_str().unwrap(), &none()).await.unwrap();
    assert_eq!(above, [(uri(lake.dir.path()), lake.registry.id())]);
}

#[tokio::test]
async fn a_removed_registry_is_a_lost_one() {
    let lake = Lake::new().await;
    let (root, old) = (lake.dir.path().to_str().unwrap().to_owned(), lake.registry.id());
    fs::remove_dir_all(lake.dir.path().join("_squire")).unwrap();
    // The running handle does not take the empty place for an empty registry.
    let gone = lake.registry.snapshot().await.unwrap_err();
    assert!(matches!(gone, Error::NoRegistry { .. }), "{gone}");

    let place = format!("{root}/_squire");
    let refused = Registry::init(&place, &none(), "again", actor()).await.unwrap_err();
    assert!(matches!(refused, Error::OtherEstate { marked, .. } if marked == old), "{refused}");
    assert!(!lake.dir.path().join("_squire").exists());

    // A sweep makes a new one, and everything under the root is lost to it.
    let (new, made) = Registry::open_or_init(&place, &none(), "again", actor()).await.unwrap();
    assert!(made);
    assert_eq!(read_marker(&root, &none()).await.unwrap(), Some(old));
    let markers = markers_above(&root, &none()).await.unwrap();
    let lost = registry_lost(&markers, Some(new.id())).unwrap();
    assert_eq!((lost.marked, lost.ours), (old, Some(new.id())));
    assert_eq!(registry_lost(&markers, Some(old)), None);
    assert!(registry_lost(&markers, None).is_some());
    assert_eq!(registry_lost(&[], None), None);
}

#[tokio::test]
async fn a_replaced_registry_is_noticed_by_a_running_handle() {
    let lake = Lake::new().await;
    lake.registry.snapshot().await.unwrap();
    fs::remove_dir_all(lake.dir.path().join("_squire")).unwrap();
    let place = lake.dir.path().join("_squire");
    Registry::open_or_init(place.to_str().unwrap(), &none(), "again", actor()).await.unwrap();
    let error = lake.registry.snapshot().await.unwrap_err();
    assert!(matches!(error, Error::OtherEstate { .. }), "{error}");
}

#[tokio::test]
async fn a_marker_is_put_once_and_never_changed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    let (ours, other) = (Uuid::now_v7(), Uuid::now_v7());
    ensure_marker(root, &none(), ours).await.unwrap();
    ensure_marker(root, &none(), ours).await.unwrap();
    let error = ensure_marker(root, &none(), other).await.unwrap_err();
    assert!(matches!(error, Error::OtherEstate { .. }), "{error}");
    assert_eq!(read_marker(root, &none()).await.unwrap(), Some(ours));
    assert_eq!(files(dir.path()).len(), 1);
}

#[tokio::test]
async fn a_marker_that_holds_no_id_is_unreadable_and_not_absent() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(".squire-estate"), b"\xff").unwrap();
    let error = read_marker(dir.path().to_str().unwrap(), &none()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Damaged);
    assert!(ensure_marker(dir.path().to_str().unwrap(), &none(), Uuid::now_v7()).await.is_err());
}

#[tokio::test]
async fn a_second_init_is_refused() {
    let lake = Lake::new().await;
    let error = Registry::init(lake.registry.uri(), &none(), "other", actor()).await.unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    let again = Registry::open(lake.registry.uri(), &none()).await.unwrap();
    assert_eq!((again.id(), again.name()), (lake.registry.id(), "test"));
}

#[tokio::test]
async fn odd_directory_names_work() {
    for name in ["a b", "a$b", "a%20b", "a#1", "ü", "a'b"] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join(name);
        fs::create_dir(&root).unwrap();
        let place = root.join("_squire");
        let made = Registry::init(place.to_str().unwrap(), &none(), "test", actor()).await.unwrap();
        assert!(place.join("v1/estate/self").is_dir(), "{name}");
        assert_eq!(find(&[&root]).await.unwrap(), Located::Found(made.uri().to_owned()), "{name}");
        assert_eq!(Registry::open(made.uri(), &none()).await.unwrap().id(), made.id(), "{name}");
    }
}
