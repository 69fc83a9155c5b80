//! Text in columns: widths are those of a terminal, not numbers of characters.

use unicode_width::UnicodeWidthStr;

/// Columns between two cells.
const GAP: usize = 2;

/// Which part of a text that is too long is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// The end.
    End,
    /// The middle: of a path both ends say something.
    Middle,
}

/// A column of a table.
pub(super) struct Column {
    pub(super) header: &'static str,
    pub(super) right: bool,
    /// Columns it never falls below when the table is too wide; `None` for one that keeps its
    /// width.
    pub(super) least: Option<usize>,
    pub(super) cut: Cut,
}

/// The table's lines, header first, none wider than `width`. Columns whose cells are all empty
/// are left out.
pub(super) fn lines(columns: &[Column], rows: &[Vec<String>], width: usize) -> Vec<String> {
    let used: Vec<usize> = (0..columns.len())
        .filter(|i| rows.iter().any(|row| row.get(*i).is_some_and(|cell| !cell.is_empty())))
        .collect();
    let widths = widths(columns, rows, &used, width);
    let headers: Vec<String> = columns.iter().map(|c| c.header.to_owned()).collect();
    std::iter::once(&headers)
        .chain(rows)
        .map(|row| {
            let mut line = String::new();
            for (n, (i, w)) in used.iter().zip(&widths).enumerate() {
                let cell = fit(row.get(*i).map_or("", String::as_str), *w, columns[*i].cut);
                let pad = " ".repeat(w.saturating_sub(cell.width()));
                if n > 0 {
                    line.push_str(&" ".repeat(GAP));
                }
                let (before, after) = if columns[*i].right { (pad.as_str(), "") } else { ("", pad.as_str()) };
                line.push_str(before);
                line.push_str(&cell);
                line.push_str(after);
            }
            fit(line.trim_end(), width, Cut::End)
        })
        .collect()
}

fn widths(columns: &[Column], rows: &[Vec<String>], used: &[usize], width: usize) -> Vec<usize> {
    let mut widths: Vec<usize> = used
        .iter()
        .map(|i| {
            let cells = rows.iter().filter_map(|row| row.get(*i)).map(|cell| cell.width());
            cells.max().unwrap_or(0).max(columns[*i].header.width())
        })
        .collect();
    let gaps = GAP * used.len().saturating_sub(1);
    // One column at a time from the widest that may shrink.
    while widths.iter().sum::<usize>() + gaps > width {
        let widest = used
            .iter()
            .zip(&widths)
            .enumerate()
            .filter(|(_, (i, w))| columns[**i].least.is_some_and(|least| **w > least))
            .max_by_key(|(_, (_, w))| **w)
            .map(|(n, _)| n);
        let Some(n) = widest else { break };
        widths[n] -= 1;
    }
    widths
}

/// `text` in at most `width` columns, cut with an ellipsis.
pub(super) fn fit(text: &str, width: usize, cut: Cut) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    if width == 0 {
        return String::new();
    }
    let room = width - 1;
    let (head, tail) = match cut {
        Cut::End => (room, 0),
        Cut::Middle => (room - room / 2, room / 2),
    };
    let front = prefix(text, head);
    let back = suffix(text, tail);
    let out = format!("{front}…{back}");
    // Characters that join across the cut can be wider than apart.
    if out.width() <= width { out } else { format!("{}…", prefix(text, room.saturating_sub(1))) }
}

fn prefix(text: &str, width: usize) -> &str {
    let ends = text.char_indices().map(|(i, c)| i + c.len_utf8());
    let end = ends.take_while(|end| text[..*end].width() <= width).last();
    &text[..end.unwrap_or(0)]
}

fn suffix(text: &str, width: usize) -> &str {
    let starts = text.char_indices().rev().map(|(i, _)| i);
    let start = starts.take_while(|start| text[*start..].width() <= width).last();
    &text[start.unwrap_or(text.len())..]
}

/// `text` in lines of at most `width` columns, broken at spaces where possible. The first line
/// starts with `first` spaces, the others with two more.
pub(super) fn wrap(text: &str, width: usize, first: usize) -> Vec<String> {
    let mut out = Vec::new();
    let mut line = " ".repeat(first.min(width / 2));
    let margin = format!("{line}  ");
    for word in text.split(' ') {
        let mut word = word;
        loop {
            let glued = if line.trim().is_empty() { format!("{line}{word}") } else { format!("{line} {word}") };
            if glued.width() <= width {
                line = glued;
                break;
            }
            if !line.trim().is_empty() {
                out.push(std::mem::replace(&mut line, margin.clone()));
                continue;
            }
            // A word of its own line and still too long, such as a path.
            let head = prefix(word, width.saturating_sub(line.width()).max(2));
            let head = if head.is_empty() { &word[..word.chars().next().map_or(0, char::len_utf8)] } else { head };
            out.push(fit(&format!("{line}{head}"), width, Cut::End));
            word = &word[head.len()..];
            line = margin.clone();
            if word.is_empty() {
                break;
            }
        }
    }
    if !line.trim().is_empty() {
        out.push(line);
    }
    out
}
