//! One report, five forms.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};

use super::model::Report;
use super::{html, markdown, text};
use crate::cli::{Common, OutputFormat, print_stdout};

impl Report {
    /// The report in one of its forms. Text has at most [`super::WIDTH`] columns.
    ///
    /// # Errors
    /// When a value has no JSON form, or a template fails; both are mistakes of this crate.
    pub fn render(&self, format: OutputFormat) -> io::Result<String> {
        match format {
            OutputFormat::Text => Ok(text::render(self)),
            OutputFormat::Markdown => Ok(markdown::render(self)),
            OutputFormat::Html => html::render(self),
            OutputFormat::Jsonl => jsonl(self),
            OutputFormat::Json => {
                let mut out = serde_json::to_string_pretty(self)?;
                out.push('\n');
                Ok(out)
            }
        }
    }

    /// Writes the report where the arguments ask for it: standard output, `--json`, `--html`.
    /// A file that cannot be written does not keep the report from standard output.
    ///
    /// # Errors
    /// When any of them could not be written.
    pub fn emit(&self, common: &Common) -> io::Result<()> {
        let printed = self.render(common.output).and_then(|out| print_stdout(&out));
        let files = [(&common.json, OutputFormat::Json), (&common.html, OutputFormat::Html)];
        let mut result = printed;
        for (path, format) in files {
            let Some(path) = path else { continue };
            let written = self.render(format).and_then(|out| write_file(path, out.as_bytes()));
            let named = written
                .map_err(|e| io::Error::new(e.kind(), format!("cannot write the report {}: {e}", path.display())));
            result = result.and(named);
        }
        result
    }
}

/// One line per dataset, finding and gap, each with `record` saying which it is and the run's id;
/// the last line, `record = "report"`, is the rest of the report.
fn jsonl(report: &Report) -> io::Result<String> {
    let mut out = String::new();
    let mut line = |record: &str, value: Value| {
        let head = json!({ "schema": report.schema, "record": record, "run": report.run });
        let mut object = match head {
            Value::Object(map) => map,
            _ => serde_json::Map::new(),
        };
        if let Value::Object(fields) = value {
            object.extend(fields);
        }
        out.push_str(&Value::Object(object).to_string());
        out.push('\n');
    };
    for dataset in &report.datasets {
        line("dataset", serde_json::to_value(dataset)?);
    }
    for finding in &report.findings {
        line("finding", serde_json::to_value(finding)?);
    }
    for gap in &report.incomplete {
        line("incomplete", serde_json::to_value(gap)?);
    }
    let mut rest = serde_json::to_value(Report {
        datasets: Vec::new(),
        findings: Vec::new(),
        incomplete: Vec::new(),
        ..report.clone()
    })?;
    if let Value::Object(map) = &mut rest {
        for list in ["datasets", "findings", "incomplete"] {
            map.remove(list);
        }
    }
    line("report", rest);
    Ok(out)
}

/// Writes a file: all of it or nothing. What is no regular file (a pipe, `/dev/stderr`) is
/// written in place.
///
/// # Errors
/// When the file cannot be written.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Through a symlink, so that the link stays one.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    match fs::metadata(&target) {
        Ok(found) if found.is_dir() => return Err(io::Error::from(io::ErrorKind::IsADirectory)),
        Ok(found) if !found.is_file() => return File::create(&target)?.write_all(bytes),
        _ => {}
    }
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = target.with_file_name(name);
    let written = File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, &target));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}
