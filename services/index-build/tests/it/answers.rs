//! What a new index is asked before success is said: every sampled row is found by its own value.

use std::path::Path;

use squire_lake::build::{self, IndexKind, Spec, Work};
use squire_lake::index::IndexInfo;
use squire_lake::sample::{Columns, Sample};
use squire_lake::stamp::Stamper;
use squire_lake::verify::{self, IndexCheck};
use squire_lake::{Kind, Lake};

use crate::common::{Here, lake, python, script};

/// A table that one of the script's verbs wrote, at `t.lance`.
async fn table(test: &str, verb: &[&str]) -> Option<(Here, String)> {
    let python = python(test)?;
    let here = Here::new().await;
    script(&python, &[&[verb[0], here.table_path().to_str().unwrap()], &verb[1..]].concat());
    here.register("t").await;
    Some((here, python))
}

/// Builds an index within this process and asks it; `None` for what is refused.
async fn build(
    here: &Here,
    lake: &Lake,
    column: &str,
    kind: &str,
    params: &str,
) -> squire_lake::Result<Option<Option<IndexCheck>>> {
    let look = here.look().await;
    let spec = Spec {
        columns: vec![column.into()],
        kind: IndexKind::parse(kind).unwrap(),
        name: Some(format!("{column}_{kind}")),
        params: serde_json::from_str(params).unwrap(),
        replace: false,
    };
    let definition = match build::resolve(&look, &spec) {
        Ok(definition) => definition,
        Err(refusal) => {
            let expected = [build::Reason::WrongType, build::Reason::Unsupported];
            assert!(expected.contains(&refusal.reason), "{column} {kind}: {refusal}");
            return Ok(None);
        }
    };
    let work = Work { uuid: uuid::Uuid::new_v4(), memory: 256 << 20, on_progress: std::sync::Arc::new(|_| {}) };
    let (place, dataset) = (lake.place(&here.uri()).await.unwrap(), look.dataset.clone().unwrap());
    let built = build::execute(lake, &dataset, &definition, &work).await?;
    let stamper = Stamper { estate: here.registry.id(), run: uuid::Uuid::now_v7() };
    build::land(lake, &place, &look, built, &definition, &stamper, "r").await.map_err(|(e, _)| e)?;
    asked(here, lake, &definition.name).await.map(Some)
}

async fn asked(here: &Here, lake: &Lake, name: &str) -> squire_lake::Result<Option<IndexCheck>> {
    let look = here.look().await;
    let info: &IndexInfo = look.indices.iter().find(|i| i.name == name).unwrap();
    verify::built(lake, &look.dataset.clone().unwrap(), info, &serde_json::Map::new()).await
}

const WORDS: &str = r#"{"base_tokenizer": "whitespace", "stem": true}"#;
/// An index of every type that is asked for rows: its column, type and parameters.
const EVERY: [(&str, &str, &str); 14] = [
    ("id", "BTREE", "{}"),
    ("price", "BTREE", "{}"),
    ("price", "BITMAP", "{}"),
    ("price", "ZONEMAP", r#"{"rows_per_zone": 50}"#),
    ("price", "BLOOMFILTER", r#"{"probability": 0.001}"#),
    ("kind", "BITMAP", "{}"),
    ("labels", "LABEL_LIST", "{}"),
    ("nested.a", "BTREE", "{}"),
    ("body", "NGRAM", "{}"),
    ("body", "INVERTED", WORDS),
    ("labels", "INVERTED", WORDS),
    ("doc", "INVERTED", r#"{"lance_tokenizer": "json"}"#),
    ("doc", "JSON", r#"{"path": "kind"}"#),
    ("point", "RTREE", "{}"),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_index_that_lacks_rows_that_it_claims_is_refused() {
    let test = "an_index_that_lacks_rows_that_it_claims_is_refused";
    let Some((here, python)) = table(test, &["write", "1200", "3"]).await else { return };
    let lake = lake();
    for (column, kind, params) in EVERY {
        let check = build(&here, &lake, column, kind, params).await.unwrap_or_else(|e| panic!("{column} {kind}: {e}"));
        assert_eq!(check.flatten().and_then(|c| c.exact), Some(true), "{column} {kind} was asked");
    }
    let path = here.table_path();
    script(&python, &["append", path.to_str().unwrap(), "60", "1200"]);
    for (column, kind, _) in EVERY {
        let check = asked(&here, &lake, &format!("{column}_{kind}")).await;
        let check = check.unwrap_or_else(|e| panic!("{column} {kind}: rows that it does not claim: {e}"));
        assert_eq!(check.and_then(|c| c.exact), Some(true), "{column} {kind}");
    }
    let mut sample = Sample::open(&lake, &here.uri(), Columns::default()).await.unwrap();
    sample.claim_coverage().await.unwrap();
    let mut passed = Vec::new();
    for (column, kind, _) in EVERY {
        match asked(&here, &lake, &format!("{column}_{kind}")).await {
            Err(e) if e.kind() == Kind::Verify => assert!(e.to_string().contains("does not find"), "{e}"),
            other => passed.push(format!("{column} {kind}: {other:?}")),
        }
    }
    // A pass that had folded so would be told the same of what no filter can name.
    let look = here.look().await;
    let rewrite = verify::Rewrite { before: look.version() - 1, after: look.version(), groups: Vec::new() };
    for name in ["price_BTREE", "doc_JSON", "point_RTREE"] {
        let info = look.indices.iter().filter(|i| i.name == name).cloned().collect::<Vec<_>>();
        let pass = verify::verify(&lake, &here.uri(), &rewrite, &info).await;
        if !matches!(&pass, Err(e) if e.kind() == Kind::Verify) {
            passed.push(format!("{name}, of a pass: {pass:?}"));
        }
    }
    assert!(passed.is_empty(), "{passed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_of_another_columns_values_is_refused() {
    let test = "an_index_of_another_columns_values_is_refused";
    for kind in ["BTREE", "BITMAP", "JSON"] {
        let Some((here, _)) = table(test, &["pair"]).await else { return };
        let (lake, json) = (lake(), kind == "JSON");
        let (from, to) = if json { ("doc", "other_doc") } else { ("value", "other") };
        let params = if json { r#"{"path": "v", "target_index_type": "bitmap"}"# } else { "{}" };
        build(&here, &lake, from, kind, params).await.unwrap();
        let name = format!("{from}_{kind}");
        let mut sample = Sample::open(&lake, &here.uri(), Columns::default()).await.unwrap();
        sample.claim_column(to).await.unwrap();
        // Every sampled row is found; one that is not sampled is found, too, and has another value.
        let wrong = asked(&here, &lake, &name).await.unwrap_err();
        assert!(wrong.kind() == Kind::Verify && wrong.to_string().contains("finds a row with"), "{kind}: {wrong}");
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

#[rstest::rstest]
#[case::addresses(&["odd"])]
#[case::stable(&["odd", "stable"])]
#[tokio::test(flavor = "multi_thread")]
async fn odd_values_are_no_wrong_answers(#[case] verb: &[&str]) {
    let Some((here, _)) = table("odd_values_are_no_wrong_answers", verb).await else { return };
    let columns = build::paths(&here.look().await.head.manifest.schema);
    assert!(columns.len() > 25, "{columns:?}");
    let scalars = ["BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER", "LABEL_LIST", "NGRAM", "INVERTED", "RTREE"];
    let mut builds: Vec<(String, &str, String)> = Vec::new();
    for column in &columns {
        builds.extend(scalars.map(|kind| (column.clone(), kind, "{}".to_owned())));
    }
    for path in ["kind", "n", "f", "ok", "none"] {
        for target in ["btree", "bitmap", "zonemap", "bloomfilter"] {
            // The library has no filter over Booleans, and sees what a path holds only when it builds.
            let possible = (path, target) != ("ok", "bloomfilter");
            let params = format!(r#"{{"path": "{path}", "target_index_type": "{target}"}}"#);
            builds.extend(possible.then(|| ("doc".to_owned(), "JSON", params)));
        }
    }
    let (mut asked, mut unasked, mut wrong) = (0, Vec::new(), Vec::new());
    let pristine = here.path("pristine");
    std::fs::rename(here.table_path(), &pristine).unwrap();
    for (column, kind, params) in &builds {
        // A look reads every version: each build gets the table as it was written.
        copy(&pristine, &here.table_path());
        let done = build(&here, &lake(), column, kind, params).await;
        std::fs::remove_dir_all(here.table_path()).unwrap();
        match done {
            Ok(None) => {}
            Ok(Some(Some(_))) => asked += 1,
            Ok(Some(None)) => unasked.push(format!("{column} {kind}")),
            Err(e) => wrong.push(format!("{column} {kind} {params}: {e}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // Whole documents alone.
    assert_eq!(unasked, ["doc BTREE", "doc BITMAP", "doc ZONEMAP", "doc BLOOMFILTER"]);
    assert!(asked > 100, "{asked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_column_is_named_however_odd_its_name_is() {
    let Some((here, _)) = table("a_column_is_named_however_odd_its_name_is", &["odd"]).await else { return };
    for (asked, kind, column) in [
        ("schön x", "BTREE", "`schön x`"),
        ("`a,b`", "BITMAP", "`a,b`"),
        ("outer.`in.ner`", "BTREE", "outer.`in.ner`"),
        ("Case", "BTREE", "Case"),
        ("case", "ZONEMAP", "case"),
        ("TEXT", "BTREE", "text"),
        ("items.item.note", "INVERTED", "items.note"),
    ] {
        let built = here.built(&["--columns", asked, "--type", kind]);
        assert_eq!((built["column"].as_str(), &built["check"]["exact"]), (Some(column), &true.into()), "{built:#}");
    }
    for (asked, kind, reason, accepted) in [
        ("CASE", "BTREE", "bad_columns", "Case, case"),
        ("a,b", "BTREE", "bad_columns", "one column"),
        ("outer.in.ner", "BTREE", "no_such_column", "outer.`in.ner`"),
        ("labels.item", "BTREE", "wrong_type", "the list itself: labels"),
        ("texts.item", "INVERTED", "wrong_type", "the list itself: texts"),
    ] {
        let (code, refused) = here.build(&["--columns", asked, "--type", kind]);
        assert_eq!((code, refused["reason"].as_str()), (3, Some(reason)), "{asked}: {refused:#}");
        assert!(refused["accepted"].as_str().unwrap().contains(accepted), "{asked}: {refused:#}");
    }
    here.oracle().await;
}
