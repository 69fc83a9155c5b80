//! One result, as text or as JSON.

use std::fmt::Write;

use serde::Serialize;
use serde_json::Value;
use squire_service::cli::{Common, Failure, OutputFormat, print_stdout};

/// Prints a result in the format that was asked for, and writes it to `--json FILE`.
pub(crate) fn emit(common: &Common, text: &str, value: &impl Serialize) -> anyhow::Result<()> {
    let value = serde_json::to_value(value)?;
    let printed = match common.output {
        OutputFormat::Text if common.quiet && text.lines().count() <= 1 => String::new(),
        OutputFormat::Text => format!("{}\n", text.trim_end()),
        OutputFormat::Json => format!("{value:#}\n"),
        OutputFormat::Jsonl => match &value {
            Value::Array(lines) => lines.iter().map(|line| format!("{line}\n")).collect(),
            one => format!("{one}\n"),
        },
        // Refused before anything was done.
        OutputFormat::Html | OutputFormat::Markdown => String::new(),
    };
    // First what was done; a file that cannot be written does not take it back.
    print_stdout(&printed)?;
    if let Some(file) = &common.json {
        std::fs::write(file, format!("{value:#}\n")).map_err(|e| {
            Failure::could_not_run(format!("writing {}", file.display()))
                .caused_by(e)
                .remedy("name a file that can be written")
        })?;
    }
    Ok(())
}

/// Columns, aligned; a line that says so where there are no rows.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>], nothing: &str) -> String {
    if rows.is_empty() {
        return nothing.to_owned();
    }
    let mut widths: Vec<usize> = head.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let head: Vec<String> = head.iter().map(|h| h.to_uppercase()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let cell: String = cell.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
            // Writing into a String cannot fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A time to the second, as people and scripts read it.
pub(crate) fn time(at: chrono::DateTime<chrono::Utc>) -> String {
    at.format("%Y-%m-%dT%H:%M:%SZ").to_string()
}
