//! The screen: a table, what is known beside it of the chosen row, and the keys.

use super::sample::Picture;
use super::table::{self, Column, Subject, cell, columns, details, subjects};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

/// Lines for the chosen row, where there is room.
const DETAIL_LINES: u16 = 3;
/// Least height at which they are shown.
const DETAIL_HEIGHT_MIN: u16 = 12;

/// How it is looked at.
#[derive(Clone, Debug, Default)]
pub struct Look {
    pub has_colour: bool,
    /// The chosen row.
    pub chosen: usize,
    /// The device that is shown; all if none.
    pub device: Option<String>,
    pub every_s: f64,
}

/// Draws a picture.
pub fn draw(frame: &mut Frame<'_>, picture: &Picture, look: &Look) {
    let has_details = frame.area().height >= DETAIL_HEIGHT_MIN;
    let lines = if has_details { DETAIL_LINES } else { 0 };
    let [top, middle, below, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(lines),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let rows = subjects(picture);
    let chosen = look.chosen.min(rows.len().saturating_sub(1));
    frame.render_widget(Line::styled(title(look), bold()), top);
    let columns = columns(middle.width);
    let widths = columns.iter().map(|(_, len)| Constraint::Length(*len));
    let header = Row::new(
        columns
            .iter()
            .map(|(column, _)| aligned(*column, column.title().into())),
    );
    let shown = rows.iter().map(|subject| {
        let cells = columns.iter().map(|(column, len)| {
            let text = table::fit(&cell(*subject, *column), usize::from(*len));
            aligned(*column, text).style(style(*subject, *column, look))
        });
        Row::new(cells)
    });
    let table = Table::new(shown, widths)
        .header(header.style(Style::new().add_modifier(Modifier::UNDERLINED)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected((!rows.is_empty()).then_some(chosen));
    frame.render_stateful_widget(table, middle, &mut state);
    if let Some(subject) = rows.get(chosen).filter(|_| has_details) {
        let lines = details(*subject).into_iter().map(Line::from);
        frame.render_widget(Paragraph::new(Text::from_iter(lines)), below);
    } else if rows.is_empty() {
        frame.render_widget(Line::from("no device: see `airdma devices`"), below);
    }
    frame.render_widget(Line::from(KEYS), bottom);
}

const KEYS: &str = "q quit  up/down choose  d device";

fn title(look: &Look) -> String {
    let device = look.device.as_deref().unwrap_or("all devices");
    format!("airdma top: {device}, every {} s", look.every_s)
}

fn aligned(column: Column, text: String) -> Cell<'static> {
    let alignment = if column.is_number() {
        Alignment::Right
    } else {
        Alignment::Left
    };
    Cell::from(Text::from(text).alignment(alignment))
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn style(subject: Subject<'_>, column: Column, look: &Look) -> Style {
    let (base, rates) = match subject {
        Subject::Device(device) => (bold(), Some(&device.rates)),
        Subject::Process(process) => (Style::new(), Some(&process.rates)),
        Subject::Pair(_) => (Style::new().add_modifier(Modifier::DIM), None),
    };
    if !look.has_colour {
        return base;
    }
    let is_some = |rate: f64| rate > 0.0;
    match (column, rates) {
        (Column::Retransmits, Some(rates)) if is_some(rates.retransmits_per_second) => {
            base.fg(Color::Yellow)
        }
        (Column::Drops, Some(rates)) if is_some(rates.drops_per_second) => base.fg(Color::Red),
        (Column::Name, Some(_)) => base.fg(Color::Cyan),
        (Column::Sent | Column::Received, Some(_)) => base.fg(Color::Green),
        _ => base,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample::{DeviceRates, PairRates, PeerState, ProcessRates, Rates};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Buffer;

    fn picture() -> Picture {
        let rates = Rates {
            tx_bytes_per_second: 125e6,
            tx_packets_per_second: 30_000.0,
            retransmits_per_second: 12.0,
            drops_per_second: 3.0,
            drops: [("drop_bad_icrc".to_owned(), 3.0)].into(),
            ..Rates::default()
        };
        let pair = PairRates {
            number: 0x11_2233,
            service: "RC".into(),
            state: "rts".into(),
            peer: Some("10.0.0.2".into()),
            peer_number: Some(0x44),
            tx_packets_per_second: 30_000.0,
            queued: 5,
            receives: Some(16),
            waits_for: "window".into(),
            ..PairRates::default()
        };
        let process = ProcessRates {
            pid: 4711,
            program: "ib_write_bw".into(),
            answers: true,
            rates: rates.clone(),
            waits_for: "window".into(),
            queue_pairs_total: 1,
            queue_pairs: vec![pair],
            peers: vec![PeerState {
                address: "10.0.0.2".into(),
                window_bytes: Some(64_000),
                in_flight_bytes: 63_000,
                ..PeerState::default()
            }],
            ..ProcessRates::default()
        };
        Picture {
            seconds: 1.0,
            devices: vec![DeviceRates {
                name: "airdma_eth0".into(),
                up: true,
                rates,
                processes: vec![process],
            }],
        }
    }

    fn drawn(width: u16, height: u16, look: &Look) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("in memory");
        terminal
            .draw(|frame| draw(frame, &picture(), look))
            .expect("in memory");
        terminal.backend().buffer().clone()
    }

    fn lines(buffer: &Buffer) -> Vec<String> {
        let width = usize::from(buffer.area.width);
        let cells: Vec<_> = buffer.content.iter().map(|cell| cell.symbol()).collect();
        let lines = cells
            .chunks(width)
            .map(|line| line.concat().trim_end().to_owned());
        lines.collect()
    }

    #[test]
    fn a_wide_screen_has_all_columns_and_the_chosen_row() {
        let look = Look {
            chosen: 1,
            every_s: 1.0,
            ..Look::default()
        };
        let lines = lines(&drawn(120, 14, &look));
        assert_eq!(lines[0], "airdma top: all devices, every 1 s");
        assert_eq!(
            lines[2],
            "airdma_eth0                  1.00 Gb/s     0 b/s  30.0 k       0       0       0    12.0    3.00"
        );
        assert!(lines[3].starts_with("  4711 ib_write_bw ") && lines[3].ends_with("window"));
        assert!(
            lines[4].starts_with("    RC 0x112233 10.0.0.2 ") && lines[4].contains("30.0 kp/s")
        );
        assert_eq!(
            lines[10],
            "queue pairs 1, send queue 0 B; drop_bad_icrc 3.00/s"
        );
        assert_eq!(
            lines[11],
            "peer 10.0.0.2: window 64.0 kB, in flight 63.0 kB"
        );
        assert_eq!(lines[13], KEYS);
    }

    #[test]
    fn a_queue_pair_shows_its_posted_receives() {
        let look = Look {
            chosen: 2,
            ..Look::default()
        };
        let lines = lines(&drawn(120, 14, &look));
        assert!(lines[1].ends_with(" posted waits for"), "{}", lines[1]);
        assert!(lines[4].ends_with(" 16 window"), "{}", lines[4]);
        assert_eq!(lines[12], "16 receives posted");
    }

    #[test]
    fn forty_columns_show_names_and_rates() {
        let lines = lines(&drawn(40, 10, &Look::default()));
        assert_eq!(lines[2], "airdma_eth0          1.00 Gb/s     0 b/s");
        assert_eq!(lines[3], "  4711 ib_write_bw   1.00 Gb/s     0 b/s");
        assert_eq!(lines[4], "    RC 0x112233 10.~ 30.0 kp/s     0 p/s");
        assert!(lines.iter().all(|line| line.chars().count() <= 40));
    }

    #[test]
    fn without_colour_no_cell_has_one() {
        let has_colour = |look: &Look| {
            let buffer = drawn(100, 20, look);
            let plain = |color| color == Color::Reset;
            !buffer
                .content
                .iter()
                .all(|cell| plain(cell.fg) && plain(cell.bg))
        };
        assert!(!has_colour(&Look::default()));
        let look = Look {
            has_colour: true,
            ..Look::default()
        };
        assert!(has_colour(&look));
    }

    #[test]
    fn any_size_is_drawn() {
        for (width, height) in [(1, 1), (3, 2), (40, 3), (7, 30), (300, 5)] {
            drawn(
                width,
                height,
                &Look {
                    chosen: 99,
                    ..Look::default()
                },
            );
        }
    }
}
