//! The measurement as pictures: bars by transport for each signal, and arrived payload over time on
//! walks.

use std::path::{Path, PathBuf};

use anyhow::Result;
use plotters::style::RGBColor;

use super::plan::{SIGNALS, Signal};
use super::taken::{Case, LOOK, Taken};
use super::transport::{TRANSPORTS, Transport};
use crate::plot::{self, Bars, Line, Panel};

/// A figure in bars: part of the file's name, caption, and value.
struct Figure {
    part: &'static str,
    title: &'static str,
    is_logarithmic: bool,
    value: fn(&Case) -> Option<f64>,
}

const FIGURES: [Figure; 5] = [
    Figure {
        part: "goodput",
        title: "Goodput, Mb/s (udp: the line rate)",
        is_logarithmic: false,
        value: |case| case.median(|sample| sample.mbit),
    },
    Figure {
        part: "seconds",
        title: "Completion time, seconds",
        is_logarithmic: true,
        value: |case| (case.transport != "udp").then(|| case.median(|sample| sample.seconds))?,
    },
    Figure {
        part: "ping",
        title: "Round trips beside it, 95 %, milliseconds",
        is_logarithmic: true,
        value: |case| case.ping_ms(1),
    },
    Figure {
        part: "cpu",
        title: "CPU of both ends, seconds for a gigabyte",
        is_logarithmic: true,
        value: |case| case.median(|sample| sample.cpu_s_per_gb),
    },
    Figure {
        part: "answers",
        title: "Packets from the receiver for a megabyte",
        is_logarithmic: true,
        value: |case| case.median(|sample| sample.answers_per_mb),
    },
];

/// Writes the pictures; returns part of each file's name and its caption.
pub fn save(taken: &Taken, stem: &Path) -> Result<Vec<(String, String)>> {
    let path = |part: &str| PathBuf::from(format!("{}-{part}", stem.display()));
    let mut pictures = Vec::new();
    for figure in &FIGURES {
        let bars = bars(taken, figure);
        if !bars.panels.is_empty() {
            plot::grouped(&path(figure.part), &bars)?;
            pictures.push((figure.part.to_owned(), figure.title.to_owned()));
        }
    }
    for signal in SIGNALS.iter().filter(|signal| signal.walk.is_some()) {
        let curves = curves(taken, signal);
        if !curves.is_empty() {
            let (profile, label) = (&taken.profile, signal.label);
            let title = format!("{profile}, {label}: what arrived, in Mb/s");
            plot::over_time(&path(signal.name), &title, &curves)?;
            pictures.push((signal.name.to_owned(), title));
        }
    }
    Ok(pictures)
}

/// A panel for each size, a group for each signal, a bar for each transport.
fn bars(taken: &Taken, figure: &Figure) -> Bars {
    let was_measured = |transport: &Transport| {
        let mut cases = taken.cases.iter();
        cases.any(|case| case.transport == transport.name() && (figure.value)(case).is_some())
    };
    let transports: Vec<Transport> = TRANSPORTS.into_iter().filter(was_measured).collect();
    let names = transports
        .iter()
        .map(|transport| (transport.name().to_owned(), colour(*transport)));
    let steady = || SIGNALS.iter().filter(|signal| signal.walk.is_none());
    let mut panels = Vec::new();
    for megabytes in taken.sizes() {
        let group = |signal: &Signal| {
            let cases = taken.of(signal.name);
            // The line rate stands beside each size.
            let is_it = |case: &&&Case, transport: &Transport| {
                case.transport == transport.name()
                    && (case.megabytes == megabytes || *transport == Transport::Udp)
            };
            let sized = cases.iter().any(|case| case.megabytes == megabytes);
            let values = transports.iter().map(|transport| {
                let case = cases.iter().find(|case| is_it(case, transport))?;
                (figure.value)(case)
            });
            sized.then(|| (signal.label.to_owned(), values.collect()))
        };
        let groups: Vec<(String, Vec<Option<f64>>)> = steady().filter_map(group).collect();
        let mut values = groups
            .iter()
            .flat_map(|(_, values)| values.iter().flatten());
        if values.any(|value| *value > 0.0) {
            panels.push(Panel {
                title: format!("{megabytes} MB"),
                groups,
            });
        }
    }
    Bars {
        title: format!("{}, {}", figure.title, taken.profile),
        names: names.collect(),
        panels,
        is_logarithmic: figure.is_logarithmic,
    }
}

/// Transports of one kind share a colour.
fn colour(transport: Transport) -> RGBColor {
    let (red, green, blue) = match transport.name() {
        "udp" => (150, 150, 150),
        "tcp_cubic" => (27, 108, 168),
        "tcp_bbr" => (120, 170, 210),
        "quic_cubic" => (46, 139, 87),
        "quic_bbr" => (140, 200, 150),
        "airdma_write" => (235, 160, 170),
        "airdma_air" => (209, 73, 91),
        "airdma_air_latency" => (150, 30, 50),
        "airdma_air_datagrams" => (245, 120, 160),
        "airdma_air_mtu4096" => (110, 60, 80),
        "airdma_events" => (240, 130, 60),
        "scp" => (150, 90, 180),
        _ => (200, 170, 60),
    };
    RGBColor(red, green, blue)
}

/// Payload that arrived over time, by transport, and what the radio would have carried.
fn curves(taken: &Taken, signal: &Signal) -> Vec<Line> {
    let mut curves = Vec::new();
    for case in taken.of(signal.name) {
        let Some(sample) = case.samples.first() else {
            continue;
        };
        let points = |which: usize| {
            let rows = sample.over_time.iter().enumerate();
            let point = |(index, row): (usize, &[f64; 2])| {
                (LOOK.as_secs_f64() * (index + 1) as f64, row[which])
            };
            rows.map(point).collect()
        };
        if curves.is_empty() {
            let table = "the radio, by the table".to_owned();
            curves.push((table, RGBColor(0, 0, 0), points(1)));
        }
        let transport = TRANSPORTS
            .into_iter()
            .find(|known| known.name() == case.transport);
        let colour = transport.map_or(RGBColor(0, 0, 0), colour);
        curves.push((case.transport.clone(), colour, points(0)));
    }
    curves
}

#[cfg(test)]
mod tests {
    use super::super::taken::made_up::{case, taken};
    use super::*;

    #[test]
    fn figures_are_drawn_with_the_line_rate_beside_each_size() {
        let taken = taken(vec![
            case("good", "udp", 10, &[660.0]),
            case("good", "tcp_cubic", 10, &[300.0]),
            case("poor", "scp", 10, &[0.0]),
            case("good", "tcp_cubic", 100, &[400.0]),
            case("away", "tcp_cubic", 0, &[200.0]),
        ]);
        let goodput = bars(&taken, &FIGURES[0]);
        let titles: Vec<&str> = goodput.panels.iter().map(|panel| &*panel.title).collect();
        assert_eq!(titles, ["10 MB", "100 MB"]);
        let large = &goodput.panels[1].groups;
        assert_eq!(large[0].1, [Some(660.0), Some(400.0)]);
        let folder = std::env::temp_dir().join(format!("airdma-pictures-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let parts = save(&taken, &folder.join("x")).unwrap();
        let parts: Vec<&str> = parts.iter().map(|(part, _)| &**part).collect();
        assert_eq!(parts, ["goodput", "seconds", "ping", "cpu", "away"]);
        for part in parts {
            assert!(folder.join(format!("x-{part}.svg")).exists(), "{part}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
