//! A table in plain text or Markdown.

/// Pads columns to their widest cell: the first is aligned left, the others right.
///
/// The first row is the titles.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let widths = widths(rows);
    let mut lines: Vec<String> = rows.iter().map(|row| line(row, &widths, "  ", 1)).collect();
    let rule = widths.iter().map(|width| "-".repeat(*width));
    lines.insert(1, rule.collect::<Vec<_>>().join("  "));
    lines.join("\n")
}

/// As [`aligned`], as a Markdown table, aligned in the source too; the first `left` columns are
/// left-aligned.
pub fn markdown(rows: &[Vec<String>], left: usize) -> String {
    let widths = widths(rows);
    let line = |row: &Vec<String>| format!("| {} |", line(row, &widths, " | ", left));
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    let rule = widths.iter().enumerate().map(|(column, width)| {
        if column < left {
            "-".repeat(*width)
        } else {
            "-".repeat(width - 1) + ":"
        }
    });
    let rule: Vec<String> = rule.collect();
    lines.insert(1, format!("| {} |", rule.join(" | ")));
    lines.join("\n")
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(move |row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
            .max(2)
    };
    (0..columns).map(width).collect()
}

fn line(row: &[String], widths: &[usize], separator: &str, left: usize) -> String {
    let cells = row.iter().zip(widths).enumerate();
    let cells: Vec<String> = cells
        .map(|(column, (cell, width))| {
            if column < left {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        })
        .collect();
    cells.join(separator)
}
