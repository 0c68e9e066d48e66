//! A screen as a picture for documents.

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use std::fmt::Write as _;

const CELL_WIDTH: f64 = 8.0;
const LINE_HEIGHT: f64 = 17.0;
const MARGIN: f64 = 10.0;
const BACKGROUND: &str = "#1d1f21";
const FOREGROUND: &str = "#d8d8d8";
const CHOSEN: &str = "#34495e";
const DIM: &str = "#9a9a9a";
/// The colours of the screen.
const COLOURS: [(Color, &str); 4] = [
    (Color::Cyan, "#70c0d8"),
    (Color::Green, "#a8c878"),
    (Color::Yellow, "#e8c060"),
    (Color::Red, "#e87070"),
];

/// Draws the cells of a screen as text.
pub fn svg(buffer: &Buffer) -> String {
    let (columns, lines) = (buffer.area.width, buffer.area.height);
    let width = f64::from(columns) * CELL_WIDTH + 2.0 * MARGIN;
    let height = f64::from(lines) * LINE_HEIGHT + 2.0 * MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"DejaVu Sans Mono, monospace\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"{BACKGROUND}\"/>\n"
    );
    for (line, cells) in buffer
        .content
        .chunks(usize::from(columns.max(1)))
        .enumerate()
    {
        let mut at = 0;
        for run in cells.chunk_by(|one, other| look(one) == look(other)) {
            draw(&mut out, run, at, line);
            at += run.len();
        }
    }
    out.push_str("</svg>\n");
    out
}

fn look(cell: &Cell) -> (Color, Modifier) {
    (cell.fg, cell.modifier)
}

/// Cells that look alike. Blanks keep their width by `textLength`.
fn draw(out: &mut String, run: &[Cell], at: usize, line: usize) {
    let shows = |cell: &&Cell| cell.symbol() != " " || !cell.modifier.is_empty();
    let run = &run[..run.len() - run.iter().rev().take_while(|cell| !shows(cell)).count()];
    let text: String = run.iter().map(|cell| cell.symbol()).collect();
    let Some(first) = run.first() else { return };
    let is_reversed = first.modifier.contains(Modifier::REVERSED);
    let is_underlined = first.modifier.contains(Modifier::UNDERLINED);
    if text.trim().is_empty() && !is_reversed && !is_underlined {
        return;
    }
    let x = MARGIN + at as f64 * CELL_WIDTH;
    let y = MARGIN + line as f64 * LINE_HEIGHT;
    let width = run.len() as f64 * CELL_WIDTH;
    let fill = colour(first);
    if is_reversed {
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{LINE_HEIGHT}\" fill=\"{CHOSEN}\"/>"
        );
    }
    let bold = if first.modifier.contains(Modifier::BOLD) {
        " font-weight=\"bold\""
    } else {
        ""
    };
    if is_underlined {
        let below = y + LINE_HEIGHT - 2.0;
        let _ = writeln!(
            out,
            "<path d=\"M{x} {below}h{width}\" stroke=\"{FOREGROUND}\"/>"
        );
    }
    let (base, text) = (y + 13.0, escaped(&text));
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{base}\" fill=\"{fill}\"{bold} textLength=\"{width}\" xml:space=\"preserve\">{text}</text>"
    );
}

fn colour(cell: &Cell) -> &'static str {
    let known = COLOURS.iter().find(|(colour, _)| *colour == cell.fg);
    match known {
        Some((_, fill)) => fill,
        None if cell.modifier.contains(Modifier::DIM) => DIM,
        None => FOREGROUND,
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    #[test]
    fn cells_that_look_alike_are_one_text() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 12, 2));
        buffer.set_string(0, 0, "a<b", Style::new());
        buffer.set_string(4, 0, "&", Style::new().fg(Color::Red));
        let svg = svg(&buffer);
        assert!(svg.contains(">a&lt;b</text>"), "{svg}");
        assert!(!svg.contains("  "), "{svg}");
        assert!(
            svg.contains("fill=\"#e87070\" textLength=\"8\" xml:space=\"preserve\">&amp;</text>")
        );
        assert_eq!(svg.matches("<text").count(), 2);
    }
}
