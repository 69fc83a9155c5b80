//! The state of every index, in one place.

use squire_lake::index::State;

use crate::common::Here;

#[tokio::test(flavor = "multi_thread")]
async fn every_state_is_told_apart() {
    let here = Here::with_table(1, 20).await;
    here.built(&["--columns", "id", "--type", "BTREE"]);
    here.built(&["--columns", "kind", "--type", "BITMAP"]);
    here.built(&["--columns", "vector", "--type", "IVF_PQ"]);
    let states = |look: &squire_lake::look::Look| -> Vec<(String, State)> {
        look.indices.iter().map(|i| (i.name.clone(), i.state)).collect()
    };
    let expected = [("id_idx", State::Covered), ("kind_idx", State::Covered), ("vector_idx", State::Untrained)];
    assert_eq!(states(&here.look().await), expected.map(|(n, s)| (n.to_owned(), s)));
    let lake = crate::common::lake();
    let columns = squire_lake::sample::Columns { vector: 16, page: 0 };
    let mut sample = squire_lake::sample::Sample::open(&lake, &here.uri(), columns).await.unwrap();
    sample.write(10, 20).await.unwrap();
    let look = here.look().await;
    assert_eq!(states(&look)[0].1, State::Lagging);
    // A file of an index that is gone: its health is unknown, which is not healthy.
    let uuid = look.indices[1].segments[0].uuid;
    for entry in std::fs::read_dir(here.table_path().join(format!("_indices/{uuid}"))).unwrap().flatten() {
        std::fs::write(entry.path(), b"not an index").unwrap();
    }
    assert_eq!(states(&here.look().await)[1].1, State::Unreadable);
}
