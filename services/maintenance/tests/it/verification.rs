//! Verification is itself tested: what a rewrite got wrong is caught before clean-up.

use squire_lake::sample::{Columns, Sample, SampleIndex};
use squire_lake::verify::{self, Rewrite};
use squire_lake::{Kind, look};

use super::common::*;

/// Two versions of one table as a rewrite would leave them, the second wrong in one respect.
struct Pair {
    here: Here,
    before: u64,
    after: u64,
    old: Vec<u64>,
    new: Vec<u64>,
}

impl Pair {
    async fn made(columns: Columns, index: Option<SampleIndex>, wrong: impl AsyncFnOnce(&mut Sample)) -> Self {
        let here = Here::new();
        std::fs::create_dir_all(here.path("lake")).expect("made");
        let mut sample = Sample::new(here.uri("lake/t"), columns);
        sample.write(50, 0).await.expect("written");
        if let Some(index) = index {
            sample.index(index).await.expect("indexed");
        }
        let before = sample.version();
        wrong(&mut sample).await;
        let after = sample.version();
        Self { here, before, after, old: vec![0], new: vec![] }
    }

    async fn verdict(mut self) -> Result<verify::Checks, squire_lake::Error> {
        let lake = lake();
        let uri = self.here.uri("lake/t");
        let look::Looked::Dataset(seen) = look::look(&lake, &uri, chrono::Utc::now()).await.expect("a look") else {
            panic!("no dataset")
        };
        self.new = seen.fragments.iter().map(|f| f.id).collect();
        let rewrite = Rewrite { before: self.before, after: self.after, groups: vec![(self.old, self.new)] };
        verify::verify(&lake, &uri, &rewrite, &seen.indices).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_rows_pass() {
    let pair = Pair::made(Columns::default(), None, async |s| {
        s.overwrite(50, 0).await.expect("the same rows again");
    });
    let checks = pair.await.verdict().await.expect("verified");
    assert_eq!((checks.rows, checks.sampled_rows), (50, 50));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_wrong_row_is_caught() {
    let pair = Pair::made(Columns::default(), None, async |s| {
        s.overwrite_with_one_wrong_row(50, 0).await.expect("written");
    });
    let error = pair.await.verdict().await.expect_err("a row differs");
    assert_eq!(error.kind(), Kind::Verify, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_missing_row_is_caught() {
    let pair = Pair::made(Columns::default(), None, async |s| {
        s.overwrite(49, 0).await.expect("written");
    });
    assert_eq!(pair.await.verdict().await.expect_err("a row is missing").kind(), Kind::Verify);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_wrong_payload_is_caught() {
    let columns = Columns { vector: 0, page: 4_000 };
    let pair = Pair::made(columns, None, async |s| {
        s.overwrite_with_one_wrong_row(50, 0).await.expect("written");
    });
    assert_eq!(pair.await.verdict().await.expect_err("a page differs").kind(), Kind::Verify);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_wrong_blob_is_caught_and_right_blobs_pass() {
    for wrong in [false, true] {
        let here = Here::new();
        std::fs::create_dir_all(here.path("lake")).expect("made");
        let mut sample = Sample::new(here.uri("lake/t"), Columns { vector: 0, page: 4_000 }).with_blobs();
        sample.write(50, 0).await.expect("written");
        let before = sample.version();
        if wrong {
            sample.overwrite_with_one_wrong_blob(50, 0).await.expect("written");
        } else {
            sample.overwrite(50, 0).await.expect("written");
        }
        let look::Looked::Dataset(seen) =
            look::look(&lake(), &here.uri("lake/t"), chrono::Utc::now()).await.expect("a look")
        else {
            panic!("no dataset")
        };
        let new = seen.fragments.iter().map(|f| f.id).collect();
        let rewrite = Rewrite { before, after: sample.version(), groups: vec![(vec![0], new)] };
        let verdict = verify::verify(&lake(), &here.uri("lake/t"), &rewrite, &[]).await;
        match wrong {
            false => assert_eq!(verdict.expect("verified").sampled_rows, 50),
            true => assert_eq!(verdict.expect_err("a blob differs").kind(), Kind::Verify),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_index_entry_is_caught() {
    for index in [SampleIndex::BTree, SampleIndex::Bitmap, SampleIndex::FullText] {
        let here = Here::new();
        std::fs::create_dir_all(here.path("lake")).expect("made");
        let mut sample = Sample::new(here.uri("lake/t"), Columns::default());
        sample.write(50, 0).await.expect("written");
        sample.index(index).await.expect("indexed");
        let before = sample.version();
        sample.claim_coverage_of_unindexed_rows(50, 500).await.expect("written");
        let lake = lake();
        let uri = here.uri("lake/t");
        let look::Looked::Dataset(seen) = look::look(&lake, &uri, chrono::Utc::now()).await.expect("a look") else {
            panic!("no dataset")
        };
        let rewrite = Rewrite { before: before + 1, after: sample.version(), groups: vec![] };
        let error = verify::verify(&lake, &uri, &rewrite, &seen.indices).await.expect_err("the index lies");
        assert_eq!(error.kind(), Kind::Verify, "{index:?}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_missing_row_is_caught_by_its_number_alone() {
    let pair = Pair::made(Columns::default(), None, async |s| {
        s.overwrite(49, 0).await.expect("written");
    });
    let pair = pair.await;
    let rewrite = Rewrite { before: pair.before, after: pair.after, groups: vec![] };
    let error = verify::verify(&lake(), &pair.here.uri("lake/t"), &rewrite, &[]).await.expect_err("a row is missing");
    assert_eq!(error.kind(), Kind::Verify, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_that_an_index_lost_are_caught() {
    let here = Here::new();
    std::fs::create_dir_all(here.path("lake")).expect("made");
    let mut sample = Sample::new(here.uri("lake/t"), Columns { vector: 16, page: 0 });
    sample.write(300, 0).await.expect("written");
    sample.index(SampleIndex::Vector).await.expect("indexed");
    let before = sample.version();
    sample.claim_coverage_of_unindexed_rows(300, 5_000).await.expect("written");
    let (lake, uri) = (lake(), here.uri("lake/t"));
    let look::Looked::Dataset(seen) = look::look(&lake, &uri, chrono::Utc::now()).await.expect("a look") else {
        panic!("no dataset")
    };
    let rewrite = Rewrite { before: before + 1, after: sample.version(), groups: vec![] };
    let error = verify::verify(&lake, &uri, &rewrite, &seen.indices).await.expect_err("half of the vectors are lost");
    assert_eq!(error.kind(), Kind::Verify, "{error}");
    assert!(error.to_string().contains("comparing answers"), "{error}");
}
