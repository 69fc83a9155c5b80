//! What a bucket allows, tried out.

use squire_registry::{Answer, Root, capabilities};

use crate::support::none;

#[tokio::test]
async fn a_local_directory_allows_everything_and_nothing_is_left_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path().to_str().unwrap(), &none()).unwrap();
    let found = capabilities(&root, &root).await.unwrap();
    for (name, answer) in found.answers() {
        let wanted = match name {
            "versioning" | "object lock" | "lifecycle" => Answer::No(String::new()),
            _ => Answer::Yes,
        };
        assert_eq!(answer, &wanted, "{name}");
    }
    assert!(found.is_fit());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
