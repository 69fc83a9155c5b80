//! `demo DIR`: a messy lake that shows every interesting case.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use squire_lake::sample::{Columns, Sample, SampleIndex};
use squire_lake::{Lake, uri};
use squire_registry::{Actor, Block, BlockKind, Level, NewTable, Registry, Subject};
use squire_service::cli::Failure;

const DAY: u64 = 86_400;

/// Writes the demo lake into an empty (or new) directory and says what is in it.
///
/// # Errors
/// Exit 2 for a directory that is not empty.
pub async fn write(dir: &Path) -> anyhow::Result<String> {
    let occupied = dir.exists() && std::fs::read_dir(dir).map(|mut d| d.next().is_some()).unwrap_or(true);
    if occupied {
        return Err(Failure::usage(format!("{} is not an empty directory", dir.display()))
            .remedy("name a directory that does not exist yet")
            .into());
    }
    std::fs::create_dir_all(dir)?;
    let text = dir.to_str().ok_or_else(|| Failure::usage("the directory's name is not UTF-8"))?;
    let root = uri::canonical(text)?;
    let lake = Lake::new(Arc::new(|_: &str| HashMap::new()), 512 << 20);
    let at = |rel: &str| rel.split('/').fold(root.clone(), |acc, s| uri::join(&acc, s));
    let mut story = format!("A neglected lake in {}:\n", dir.display());
    let mut tell = |name: &str, what: &str| story.push_str(&format!("  {name:<38} {what}\n"));

    events(&at("aa3bed10_acme-silver$events")).await?;
    tell("aa3bed10_acme-silver$events", "60 small appends; full-text, vector and B-tree indices lag; a tag");
    pages(&at("medallion/bronze-media")).await?;
    tell("medallion/bronze-media", "wide rows in a dozen fragments");
    gold(&at("medallion/acme$gold")).await?;
    tell("medallion/acme$gold", "half of the rows deleted; a bitmap index");
    trickle(&at("acme-silver/orders")).await?;
    tell("acme-silver/orders", "80 commits of one row each");
    models(&at("acme-silver/models")).await?;
    tell("acme-silver/models", "a tag on version 2 and a branch from version 4");
    catalogue(&at("acme-gold/catalogue"), &at("acme-gold/catalogue_clone")).await?;
    tell("acme-gold/catalogue", "overwritten since a shallow clone was made of it");
    tell("acme-gold/catalogue_clone", "the clone: it reads the other's old files");
    profiles(&at("acme-gold/profiles")).await?;
    tell("acme-gold/profiles", "a dropped wide column's bytes are still in its files");
    let mut settled = Sample::new(at("acme-gold/settled"), Columns::default());
    settled.write(5_000, 0).await?;
    tell("acme-gold/settled", "nothing to do");
    for name in ["held", "trashed"] {
        let mut sample = Sample::new(at(&format!("acme-legal/{name}")), Columns::default());
        for i in 0..6 {
            sample.write(50, i * 50).await?;
        }
    }
    registered(&root, &at("acme-legal/held"), &at("acme-silver/models")).await?;
    tell("acme-legal/held", "a legal hold keeps its history");
    tell("acme-legal/trashed", "dropped; it can still be undropped, so nobody may touch it");
    age(dir)?;
    drop(lake);
    story.push_str("Its files look ten days old, so that old versions are past the default retention of 7 days.\n");
    Ok(story)
}

async fn events(uri: &str) -> anyhow::Result<()> {
    let mut sample = Sample::new(uri, Columns { vector: 16, page: 0 });
    for i in 0..10 {
        sample.write(100, i * 100).await?;
    }
    sample.index(SampleIndex::BTree).await?;
    sample.index(SampleIndex::FullText).await?;
    sample.index(SampleIndex::Vector).await?;
    sample.tag("published", 4).await?;
    for i in 10..60 {
        sample.write(20, 1_000 + i * 20).await?;
    }
    Ok(())
}

async fn pages(uri: &str) -> anyhow::Result<()> {
    let mut sample = Sample::new(uri, Columns { vector: 0, page: 100_000 });
    for i in 0..12 {
        sample.write(8, i * 8).await?;
    }
    Ok(())
}

async fn gold(uri: &str) -> anyhow::Result<()> {
    let mut sample = Sample::new(uri, Columns::default());
    for i in 0..8 {
        sample.write(500, i * 500).await?;
    }
    for k in 0..4 {
        sample.delete(&format!("id % 8 = {k}")).await?;
    }
    sample.index(SampleIndex::Bitmap).await?;
    Ok(())
}

async fn trickle(uri: &str) -> anyhow::Result<()> {
    let mut sample = Sample::new(uri, Columns::default());
    for i in 0..80 {
        sample.write(1, i).await?;
    }
    Ok(())
}

async fn models(uri: &str) -> anyhow::Result<()> {
    let mut sample = Sample::new(uri, Columns::default());
    for i in 0..6 {
        sample.write(100, i * 100).await?;
    }
    sample.tag("blessed", 2).await?;
    sample.branch("experiment", 4).await?;
    sample.delete("id < 50").await?;
    Ok(())
}

async fn catalogue(uri: &str, clone: &str) -> anyhow::Result<()> {
    let mut sample = Sample::new(uri, Columns::default());
    for i in 0..4 {
        sample.write(100, i * 100).await?;
    }
    sample.clone_to(clone).await?;
    for i in 0..5 {
        sample.overwrite(100, 10_000 + i).await?;
    }
    Ok(())
}

async fn profiles(uri: &str) -> anyhow::Result<()> {
    let mut sample = Sample::new(uri, Columns { vector: 0, page: 20_000 });
    for i in 0..4 {
        sample.write(20, i * 20).await?;
    }
    sample.drop_column("page").await?;
    Ok(())
}

/// The registry's part: names, a hold, a dropped table, a reader's block.
async fn registered(root: &str, held: &str, models: &str) -> anyhow::Result<()> {
    let none = HashMap::new();
    let registry =
        Registry::init(&uri::join(root, squire_lake::discover::RESERVED), &none, "demo", Actor::current()).await?;
    let because = Some("demo");
    registry.project_create("acme", because).await?;
    registry.warehouse_create("lake", "acme", root, true, &none, because).await?;
    registry.namespace_create(&["legal".into()], Some("lake"), because).await?;
    for name in ["held", "trashed"] {
        let new = NewTable {
            path: vec!["legal".into(), name.into()],
            location: format!("acme-legal/{name}"),
            tier: None,
            labels: Default::default(),
            declare: false,
        };
        registry.table_create(new, &none, because).await?;
    }
    registry
        .protect(&Subject::Table(vec!["legal".into(), "held".into()]), Level::KeepHistory, Some("case 4711"))
        .await?;
    let grace = std::time::Duration::from_secs(7 * DAY);
    registry.table_drop(&["legal".into(), "trashed".into()], grace, false, because).await?;
    let block =
        Block { subject: Subject::Dataset(models.to_string()), kind: BlockKind::Reader, until: None, version: Some(3) };
    registry.block_add(block, "a training run reads version 3").await?;
    let _ = held;
    Ok(())
}

/// Makes every file of the lake ten days old, and the manifests' own timestamps with them, so that the demo has something to
/// reclaim under the default retention. Only for a lake made a moment ago by this very function's caller.
fn age(dir: &Path) -> anyhow::Result<()> {
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(10 * DAY);
    let mut queue = vec![dir.to_path_buf()];
    while let Some(at) = queue.pop() {
        for entry in std::fs::read_dir(&at)? {
            let entry = entry?;
            let name = entry.file_name();
            if entry.file_type()?.is_dir() {
                if name != squire_lake::discover::RESERVED {
                    queue.push(entry.path());
                }
                continue;
            }
            if at.ends_with("_versions") && name.to_string_lossy().ends_with(".manifest") {
                squire_lake::sample::backdate(&entry.path(), 10 * DAY)?;
            }
            std::fs::File::options().write(true).open(entry.path())?.set_modified(then)?;
        }
    }
    Ok(())
}
