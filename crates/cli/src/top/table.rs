//! A picture as rows of cells, in the columns that fit a width.

use super::sample::{DeviceRates, PairRates, Picture, ProcessRates, Rates};

/// What a row is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Subject<'p> {
    Device(&'p DeviceRates),
    Process(&'p ProcessRates),
    Pair(&'p PairRates),
}

/// A column, in the order in which they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Name,
    Sent,
    Received,
    PacketsSent,
    PacketsReceived,
    MessagesSent,
    MessagesReceived,
    Retransmits,
    Drops,
    Receives,
    WaitsFor,
}

/// In the order in which they get room.
const WANTED: [(Column, u16); 10] = [
    (Column::Sent, 9),
    (Column::Received, 9),
    (Column::WaitsFor, 15),
    (Column::Retransmits, 7),
    (Column::Drops, 7),
    (Column::PacketsSent, 7),
    (Column::PacketsReceived, 7),
    (Column::MessagesSent, 7),
    (Column::MessagesReceived, 7),
    (Column::Receives, 7),
];
const NAME_LEN_MIN: u16 = 18;
const NAME_LEN_MAX: u16 = 34;
const ORDER: [Column; 11] = [
    Column::Name,
    Column::Sent,
    Column::Received,
    Column::PacketsSent,
    Column::PacketsReceived,
    Column::MessagesSent,
    Column::MessagesReceived,
    Column::Retransmits,
    Column::Drops,
    Column::Receives,
    Column::WaitsFor,
];

/// The columns that fit, each with its width; a blank stands between two.
pub fn columns(width: u16) -> Vec<(Column, u16)> {
    let mut left = width.saturating_sub(NAME_LEN_MIN);
    let mut chosen = Vec::new();
    for (column, len) in WANTED {
        if left < len + 1 {
            break;
        }
        left -= len + 1;
        chosen.push((column, len));
    }
    chosen.push((
        Column::Name,
        (NAME_LEN_MIN.min(width) + left).min(NAME_LEN_MAX),
    ));
    let place = |column: Column| ORDER.iter().position(|other| *other == column);
    chosen.sort_by_key(|(column, _)| place(*column));
    chosen
}

impl Column {
    pub fn title(self) -> &'static str {
        match self {
            Column::Name => "device, process, queue pair",
            Column::Sent => "sent",
            Column::Received => "received",
            Column::PacketsSent => "pkt/s",
            Column::PacketsReceived => "rx pkt",
            Column::MessagesSent => "msg/s",
            Column::MessagesReceived => "rx msg",
            Column::Retransmits => "again/s",
            Column::Drops => "drops/s",
            Column::Receives => "posted",
            Column::WaitsFor => "waits for",
        }
    }

    /// Whether its values stand at the right.
    pub fn is_number(self) -> bool {
        !matches!(self, Column::Name | Column::WaitsFor)
    }
}

/// The rows of a picture: devices, their processes, and the queue pairs of these.
pub fn subjects(picture: &Picture) -> Vec<Subject<'_>> {
    let mut rows = Vec::new();
    for device in &picture.devices {
        rows.push(Subject::Device(device));
        for process in &device.processes {
            rows.push(Subject::Process(process));
            rows.extend(process.queue_pairs.iter().map(Subject::Pair));
        }
    }
    rows
}

/// What stands in a column of a row.
pub fn cell(subject: Subject<'_>, column: Column) -> String {
    match subject {
        Subject::Device(device) if column == Column::Name => {
            let state = if device.up { "" } else { " (down)" };
            format!("{}{state}", device.name)
        }
        Subject::Device(device) => of_rates(&device.rates, column),
        Subject::Process(process) => of_process(process, column),
        Subject::Pair(pair) => of_pair(pair, column),
    }
}

fn of_process(process: &ProcessRates, column: Column) -> String {
    if column == Column::Name {
        let version = process.version.as_ref();
        let version = version.map_or_else(String::new, |version| format!(" ({version})"));
        return format!("  {} {}{version}", process.pid, process.program);
    }
    if column == Column::WaitsFor {
        return process.waits_for.clone();
    }
    if process.answers {
        of_rates(&process.rates, column)
    } else {
        String::new()
    }
}

fn of_rates(rates: &Rates, column: Column) -> String {
    match column {
        Column::Sent => bits(rates.tx_bytes_per_second),
        Column::Received => bits(rates.rx_bytes_per_second),
        Column::PacketsSent => count(rates.tx_packets_per_second),
        Column::PacketsReceived => count(rates.rx_packets_per_second),
        Column::MessagesSent => count(rates.tx_messages_per_second),
        Column::MessagesReceived => count(rates.rx_messages_per_second),
        Column::Retransmits => count(rates.retransmits_per_second),
        Column::Drops => count(rates.drops_per_second),
        Column::Name | Column::Receives | Column::WaitsFor => String::new(),
    }
}

/// A queue pair counts no bytes: its packets stand in their place.
fn of_pair(pair: &PairRates, column: Column) -> String {
    let packets = |rate: f64| format!("{}p/s", scaled(rate));
    match column {
        Column::Name => {
            let peer = pair.peer.as_deref().unwrap_or(&pair.state);
            format!("    {} {:#x} {peer}", pair.service, pair.number)
        }
        Column::Sent => packets(pair.tx_packets_per_second),
        Column::Received => packets(pair.rx_packets_per_second),
        Column::MessagesReceived => count(pair.rx_messages_per_second),
        Column::Receives => pair.receives.map_or_else(String::new, |it| it.to_string()),
        Column::WaitsFor => pair.waits_for.clone(),
        Column::PacketsSent
        | Column::PacketsReceived
        | Column::MessagesSent
        | Column::Retransmits
        | Column::Drops => String::new(),
    }
}

/// What is known beside the columns of a row, in lines.
pub fn details(subject: Subject<'_>) -> Vec<String> {
    match subject {
        Subject::Device(device) => vec![drops(&device.rates)],
        Subject::Process(ProcessRates {
            message: Some(message),
            ..
        }) => vec![message.clone()],
        Subject::Process(process) => {
            let full = if process.send_queue_full {
                ", full"
            } else {
                ""
            };
            let queue = format!(
                "send queue {}{full}",
                bytes(process.send_queue_bytes as f64)
            );
            let pairs = format!("queue pairs {}", process.queue_pairs_total);
            let peers = process.peers.iter().map(|peer| {
                let window = peer
                    .window_bytes
                    .map_or("none".into(), |it| bytes(it as f64));
                let in_flight = bytes(peer.in_flight_bytes as f64);
                let silent = if peer.silent { ", does not answer" } else { "" };
                let waiting = match peer.waiting_queue_pairs {
                    0 => String::new(),
                    waiting => format!(", {waiting} queue pairs wait"),
                };
                let address = &peer.address;
                format!("peer {address}: window {window}, in flight {in_flight}{waiting}{silent}")
            });
            let first = format!("{pairs}, {queue}; {}", drops(&process.rates));
            std::iter::once(first).chain(peers).collect()
        }
        Subject::Pair(pair) => {
            let peer = pair.peer_number.map_or(String::new(), |number| {
                format!(", peer's number {number:#x}")
            });
            let in_flight = bytes(pair.in_flight_bytes as f64);
            vec![
                format!(
                    "state {}{peer}, {} requests queued, in flight {in_flight}",
                    pair.state, pair.queued
                ),
                format!("waits for {}: {}", pair.waits_for, meaning(&pair.waits_for)),
                receives(pair),
            ]
        }
    }
}

fn receives(pair: &PairRates) -> String {
    let queue = if pair.shares_receives {
        " in the shared receive queue"
    } else {
        ""
    };
    match pair.receives {
        Some(receives) => format!("{receives} receives posted{queue}"),
        None => "each message names the queue of its receive".into(),
    }
}

fn drops(rates: &Rates) -> String {
    if rates.drops.is_empty() {
        return "nothing dropped".into();
    }
    let drops = rates.drops.iter();
    let drops = drops.map(|(name, rate)| format!("{name} {}/s", count(*rate)));
    drops.collect::<Vec<_>>().join(", ")
}

fn meaning(reason: &str) -> &'static str {
    match reason {
        "program" => "the program has posted nothing more",
        "state" => "the queue pair is not ready to send",
        "keys" => "the peer has not agreed on keys yet",
        "receiver" => "the peer has no receive posted",
        "silent peer" => "the peer does not answer",
        "rate limit" => "the limit that the program has set",
        "window" => "the window to the peer is full",
        "rate control" => "the rate to the peer is controlled",
        "answers" => "all is sent; the peer has not answered yet",
        "turn" => "other queue pairs send first",
        _ => "unknown to this version",
    }
}

/// A table for a file or a pipe.
pub fn text(picture: &Picture, width: u16) -> String {
    let columns = columns(width);
    let mut out = line(&columns, |column| column.title().into());
    for subject in subjects(picture) {
        out.push_str(&match subject {
            Subject::Process(ProcessRates {
                pid,
                program,
                message: Some(message),
                ..
            }) => format!("  {pid} {program}: {message}\n"),
            Subject::Device(_) | Subject::Process(_) | Subject::Pair(_) => {
                line(&columns, |column| cell(subject, column))
            }
        });
    }
    for device in &picture.devices {
        if !device.rates.drops.is_empty() {
            out.push_str(&format!("{}: {}\n", device.name, drops(&device.rates)));
        }
    }
    out
}

fn line(columns: &[(Column, u16)], cell: impl Fn(Column) -> String) -> String {
    let cells = columns.iter().map(|&(column, len)| {
        let len = usize::from(len);
        let cell = fit(&cell(column), len);
        if column.is_number() {
            format!("{cell:>len$}")
        } else {
            format!("{cell:len$}")
        }
    });
    let cells = cells.collect::<Vec<_>>().join(" ");
    format!("{}\n", cells.trim_end())
}

/// The beginning of a text that fits.
pub fn fit(text: &str, len: usize) -> String {
    if text.chars().count() <= len {
        return text.into();
    }
    let cut: String = text.chars().take(len.saturating_sub(1)).collect();
    format!("{cut}~")
}

fn bits(bytes_per_second: f64) -> String {
    format!("{}b/s", scaled(bytes_per_second * 8.0))
}

fn count(rate: f64) -> String {
    scaled(rate).trim_end().into()
}

fn bytes(bytes: f64) -> String {
    format!("{}B", scaled(bytes))
}

/// Three digits or four, and a prefix for powers of 1000 behind a blank.
fn scaled(value: f64) -> String {
    let mut value = value;
    let mut prefixes = ["", "k", "M", "G", "T", "P"].into_iter();
    let mut prefix = prefixes.next().unwrap_or_default();
    while value >= 999.5 {
        let Some(next) = prefixes.next() else { break };
        (value, prefix) = (value / 1000.0, next);
    }
    let places = match value {
        ..=0.0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.places$} {prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_prefix() {
        let shown = [
            0.0, 0.5, 9.99, 10.0, 99.94, 99.96, 999.4, 999.6, 1.5e9, 2e18,
        ]
        .map(scaled);
        let expected = [
            "0 ", "0.50 ", "9.99 ", "10.0 ", "99.9 ", "100 ", "999 ", "1.00 k", "1.50 G", "2000 P",
        ];
        assert_eq!(shown, expected);
        assert_eq!((bits(125e6), count(0.0)), ("1.00 Gb/s".into(), "0".into()));
    }

    #[test]
    fn columns_that_do_not_fit_are_left_out() {
        let names = |width| -> Vec<Column> {
            let columns = columns(width);
            let used: u16 = columns.iter().map(|(_, len)| len + 1).sum();
            assert!(used <= width + 1, "{width}: {used}");
            columns.into_iter().map(|(column, _)| column).collect()
        };
        assert_eq!(names(40), [Column::Name, Column::Sent, Column::Received]);
        assert_eq!(names(10), [Column::Name; 1]);
        assert!(names(80).contains(&Column::Drops));
        assert_eq!(names(140), ORDER);
    }
}
