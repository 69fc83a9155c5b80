//! Files that a clone reads of another dataset and that are not there: no listing of the clone's own shows it.

use std::collections::BTreeSet;

use futures::stream::{self, StreamExt};
use squire_lake::listing::{Kind, absent, classify};
use squire_lake::look::edges;
use squire_lake::refs::Target;
use squire_service::report::{Finding, FindingKind, FindingSubject};

use super::{Place, Scope, Visit, Walk};

/// What one dataset reads at one place.
struct Reading<'a> {
    reader: &'a str,
    target: &'a Target,
    folder: String,
    files: BTreeSet<&'a str>,
}

impl<T: Send> Walk<T> {
    /// Adds what the datasets that were looked at lack at the places that they read. What could not be listed is unreadable.
    pub(super) async fn clones<V: Visit<Row = T>>(&mut self, visit: &V) {
        let (scope, graph) = (&self.scope, &self.graph);
        let readers = self.places.iter().filter(|(_, place)| matches!(place, Place::Dataset(_))).map(|(uri, _)| uri);
        let readings = readers.flat_map(|reader| {
            graph.read_by(reader).map(move |(target, folder, files)| {
                let files = files.iter().map(String::as_str).filter(|f| is_data(f)).collect();
                Reading { reader, target, folder, files }
            })
        });
        let found: Vec<(String, String, squire_lake::Result<Vec<String>>)> = stream::iter(readings)
            .map(|reading| async move {
                let lacks = lacks(scope, &reading).await;
                (reading.reader.to_string(), reading.folder, lacks)
            })
            .buffer_unordered(scope.config.limits.concurrency.max(1))
            .collect()
            .await;
        for (reader, folder, lacks) in found {
            match (lacks, self.places.get_mut(&reader)) {
                (Ok(lacks), Some(Place::Dataset(row))) if !lacks.is_empty() => {
                    visit.add(row, told(&reader, &folder, &lacks));
                }
                (Ok(_), _) => {}
                (Err(e), _) => self.scope.unreadable.push((folder, e.to_string())),
            }
        }
    }
}

/// Data and deletion files. An index may have no file at all, and a transaction is history (as with a dataset's own).
fn is_data(path: &str) -> bool {
    !matches!(classify(path).kind, Kind::Transaction) && path.rsplit('/').nth(1) != Some("_indices")
}

/// What is not there, and is still read afterwards: a version that went meanwhile took its files with it.
async fn lacks(scope: &Scope, reading: &Reading<'_>) -> squire_lake::Result<Vec<String>> {
    let place = scope.lake.place(&reading.folder).await?;
    let gone = absent(&place, &reading.files).await?;
    if gone.is_empty() {
        return Ok(Vec::new());
    }
    let again = edges(&scope.lake, reading.reader).await?;
    let still = |file: &&str| again.get(reading.target).is_some_and(|files| files.contains(*file));
    Ok(gone.into_iter().filter(still).map(String::from).collect())
}

fn told(reader: &str, folder: &str, lacks: &[String]) -> Vec<Finding> {
    let of = |subject, detail: String| Finding::new(FindingKind::MissingFile, subject, detail);
    let one = |file: &String| {
        let subject = FindingSubject::path(reader, &format!("{folder}/{file}"));
        let detail = format!("it reads this file of {folder}; it is not there");
        of(subject, detail)
            .with_fix("bring it back from a copy; nothing else mends a clone whose source lost its files")
    };
    let named = crate::findings::NAMED;
    let mut out: Vec<Finding> = lacks.iter().take(named).map(one).collect();
    if lacks.len() > named {
        let detail = format!("{} more files of {folder} that it reads are not there", lacks.len() - named);
        out.push(of(FindingSubject::dataset(reader), detail));
    }
    out
}
