//! Temporary datasets.

use std::collections::HashMap;
use std::sync::Arc;

use squire_lake::Lake;
use squire_lake::look::{Look, Looked, look};
use squire_lake::sample::{Columns, Sample};
use tempfile::TempDir;

pub fn lake() -> Lake {
    Lake::new(Arc::new(|_: &str| HashMap::new()), 256 << 20)
}

pub fn place() -> (TempDir, String) {
    let dir = tempfile::tempdir().expect("a folder");
    let uri = squire_lake::uri::canonical(dir.path().to_str().expect("UTF-8")).expect("a URI");
    (dir, format!("{uri}/t"))
}

pub async fn table(uri: &str, fragments: i64, rows: usize) -> Sample {
    let mut sample = Sample::new(uri, Columns::default());
    for i in 0..fragments {
        sample.write(rows, i * rows as i64).await.expect("written");
    }
    sample
}

pub async fn seen(uri: &str) -> Look {
    match look(&lake(), uri, chrono::Utc::now()).await.expect("a look") {
        Looked::Dataset(look) => *look,
        other => panic!("{other:?}"),
    }
}
