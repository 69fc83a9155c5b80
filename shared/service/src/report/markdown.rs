//! The report as Markdown, for pull requests and tickets.

use super::model::Report;
use super::summary::Summary;

pub(super) fn render(report: &Report) -> String {
    let s = Summary::of(report);
    let mut out = format!("# {}\n\n", escape(&s.title));
    for line in &s.counts {
        out.push_str(&format!("{}\n\n", escape(line)));
    }
    if !s.rows.is_empty() {
        out.push_str("| Dataset | Tier | Fragments | Unindexed | Versions | Size | Frees | What |\n");
        out.push_str("|---|---|---:|---:|---:|---:|---:|---|\n");
        for r in &s.rows {
            let cells = [&r.name, &r.tier, &r.fragments, &r.unindexed, &r.versions, &r.size, &r.freed, &r.what];
            let cells: Vec<String> = cells.iter().map(|c| escape(c)).collect();
            out.push_str(&format!("| {} |\n", cells.join(" | ")));
        }
        out.push('\n');
    }
    if let Some(rest) = &s.rest {
        out.push_str(&format!("{}\n\n", escape(rest)));
    }
    for (title, items) in [("Held", &s.held), ("Refused", &s.refused), ("Needed", &s.needed)] {
        list(&mut out, title, items.iter().map(|i| escape(i)));
    }
    let findings = s.findings.iter().map(|f| {
        let fix = f.fix.as_ref().map_or(String::new(), |fix| format!(" *{}*", escape(fix)));
        format!("**{}** `{}` {}: {}{fix}", f.severity, f.kind, escape(&f.subject), escape(&f.detail))
    });
    list(&mut out, "Findings", findings.chain(s.more_findings.iter().map(|m| escape(m))));
    list(&mut out, "Could not be read", s.incomplete.iter().map(|i| escape(i)));
    out
}

fn list(out: &mut String, title: &str, items: impl Iterator<Item = String>) {
    let items: Vec<String> = items.map(|i| format!("- {i}\n")).collect();
    if !items.is_empty() {
        out.push_str(&format!("## {title}\n\n{}\n", items.concat()));
    }
}

/// Text that Markdown takes literally; HTML in a name stays a name.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '#' => {
                out.push('\\');
                out.push(c);
            }
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            c => out.push(c),
        }
    }
    out
}
