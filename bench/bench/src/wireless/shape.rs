//! Transfers other than one of 64 KiB messages, at a good signal.
//!
//! Messages of all sizes, several connections, several programs at once, and a transfer beside a
//! program with a fixed rate.

use std::path::Path;
use std::thread;

use airdma_link::measure::{Link, PORT};
use airdma_link::traffic::Found;
use airdma_link::{LinkError, Options as LinkOptions};
use regex::Regex;
use serde::{Deserialize, Serialize};

use super::Wireless;
use super::plan::{OVERHEAD_S, RUNS};
use super::taken::{LOOK, middle};
use super::transport::{Transport, events, flow, foreground, write};

/// Duration of each measurement; perftest counts whole seconds.
const SHAPE_S: f64 = 3.0;
/// Message sizes, with their names.
const SIZES: [(u64, &str); 8] = [
    (2, "2 B"),
    (64, "64 B"),
    (512, "512 B"),
    (4 << 10, "4 KiB"),
    (16 << 10, "16 KiB"),
    (64 << 10, "64 KiB"),
    (256 << 10, "256 KiB"),
    (1 << 20, "1 MiB"),
];
/// Ways to send messages: name, and the command that runs perftest in its environment.
const WAYS: [(&str, &[&str]); 3] = [
    ("airdma_write", &[]),
    // As a NIC: no window, and an IP packet for each RoCE packet. (The kernel counts a segmented
    // send of 64 KB as a single packet of a queue's limit.)
    (
        "airdma_write_wide",
        &["env", "AIRDMA_WINDOW_BYTES=none", "AIRDMA_SEGMENTATION=off"],
    ),
    ("airdma_air", &["env", "AIRDMA_AIR=1"]),
];
const CONNECTIONS: [u32; 5] = [1, 2, 4, 8, 16];
const PROGRAMS: [u16; 2] = [2, 4];
/// Rates of a TCP CUBIC program beside the transport, in Mb/s.
const FOREGROUNDS: [u32; 3] = [10, 80, 160];
const BACKGROUNDS: [Transport; 6] = [
    Transport::Tcp("cubic"),
    Transport::Quic("cubic"),
    Transport::Quic("bbr"),
    Transport::Write,
    Transport::Air("buffers"),
    Transport::Air("latency"),
];
/// Apart from the other ports.
const FOREGROUND_PORT: u16 = PORT + 100;

/// A kind of transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// perftest in [`WAYS`] of this index, with messages of [`SIZES`] of this index.
    Messages(usize, usize),
    /// One program with this number of connections.
    Connections(u32),
    /// This number of programs with a connection each.
    Programs(u16),
    /// A transport beside a program that sends at this rate, in Mb/s.
    Foreground(Transport, u32),
}

/// Samples of one shape.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Shaped {
    pub name: String,
    pub samples: Vec<Shares>,
}

/// Shares of one run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Shares {
    /// Rate of each connection; perftest reports only their sum. With a foreground: its rate, and
    /// the transport's.
    pub each_mbit: Vec<f64>,
    pub cpu_s_per_gb: f64,
    pub error: Option<String>,
}

impl Shape {
    /// Name in cases.
    pub fn name(self) -> String {
        match self {
            Shape::Messages(way, size) => format!("messages/{}/{}", WAYS[way].0, SIZES[size].0),
            Shape::Connections(count) => format!("connections/airdma_events/{count}"),
            Shape::Programs(count) => format!("programs/airdma_events/{count}"),
            Shape::Foreground(beside, mbit) => format!("foreground/{}/{mbit}", beside.name()),
        }
    }

    fn is_missing(self) -> bool {
        let transport = match self {
            Shape::Messages(..) => Transport::Write,
            Shape::Connections(_) | Shape::Programs(_) => Transport::Events,
            Shape::Foreground(beside, _) => beside,
        };
        transport.missing().is_some()
    }

    /// One run on a link of its own. A failure is a result.
    pub fn sample(self, airdma: &Path, options: &LinkOptions) -> Result<Shares, LinkError> {
        let link = Link::in_use(airdma, options)?;
        let shares = self.shares(&link, airdma);
        Ok(shares.unwrap_or_else(|error| {
            let said = link.complaints().into_iter().map(|by| by.said);
            let text = [error.to_string()].into_iter().chain(said);
            Shares {
                error: Some(text.collect::<Vec<_>>().join("; ")),
                ..Shares::default()
            }
        }))
    }

    fn shares(self, link: &Link, airdma: &Path) -> Result<Shares, LinkError> {
        match self {
            Shape::Messages(way, size) => {
                let (env, bytes) = (WAYS[way].1, SIZES[size].0);
                let sample = write(link, airdma, env, bytes, u64::MAX, SHAPE_S)?;
                Ok(Shares {
                    each_mbit: vec![sample.mbit],
                    cpu_s_per_gb: sample.cpu_s_per_gb,
                    error: None,
                })
            }
            Shape::Connections(count) => {
                Ok(Shares::of(&[events(link, u64::MAX, SHAPE_S, PORT, count)?]))
            }
            Shape::Programs(count) => {
                let run = |number| move || events(link, u64::MAX, SHAPE_S, PORT + number, 1);
                let ends = thread::scope(|scope| {
                    let programs: Vec<_> =
                        (0..count).map(|number| scope.spawn(run(number))).collect();
                    let joined = programs.into_iter().map(|program| match program.join() {
                        Ok(ends) => ends,
                        Err(panic) => std::panic::resume_unwind(panic),
                    });
                    joined.collect::<Result<Vec<_>, _>>()
                })?;
                Ok(Shares::of(&ends))
            }
            Shape::Foreground(beside, mbit) => foreground_beside(link, airdma, beside, mbit),
        }
    }
}

/// The foreground program starts once the transport has reached its rate, and ends before it.
fn foreground_beside(
    link: &Link,
    airdma: &Path,
    beside: Transport,
    mbit: u32,
) -> Result<Shares, LinkError> {
    thread::scope(|scope| {
        let longer = SHAPE_S + 1.0;
        let other = scope.spawn(move || flow(link, airdma, beside, u64::MAX, longer, PORT));
        thread::sleep(LOOK);
        let got = foreground(link, airdma, mbit, SHAPE_S, FOREGROUND_PORT);
        let other = match other.join() {
            Ok(sample) => sample?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        Ok(Shares {
            each_mbit: vec![got?, other.mbit],
            cpu_s_per_gb: other.cpu_s_per_gb,
            error: None,
        })
    })
}

impl Shares {
    /// Shares of programs that ran at once, from the results of each sender and its receiver.
    fn of(ends: &[[Found; 2]]) -> Shares {
        let bytes: u64 = ends.iter().map(|[sent, _]| sent.bytes).sum();
        let cpu_s: f64 = ends.iter().flatten().map(|end| end.cpu_s).sum();
        let mbit = |sent: &Found, bytes: u64| bytes as f64 * 8.0 / 1e6 / sent.seconds.max(1e-9);
        let each = |[sent, _]: &[Found; 2]| {
            let shares = sent.each.iter().map(|&bytes| mbit(sent, bytes));
            shares.collect::<Vec<f64>>()
        };
        Shares {
            each_mbit: ends.iter().flat_map(each).collect(),
            cpu_s_per_gb: cpu_s / (bytes.max(1) as f64 / 1e9),
            error: None,
        }
    }

    fn sum_mbit(&self) -> f64 {
        self.each_mbit.iter().sum()
    }

    /// Least and greatest share, where 1 is an equal one.
    fn extremes(&self) -> [f64; 2] {
        let equal = self.sum_mbit() / self.each_mbit.len() as f64;
        let least = self.each_mbit.iter().copied().fold(f64::MAX, f64::min);
        let greatest = self.each_mbit.iter().copied().fold(0.0, f64::max);
        [least / equal, greatest / equal]
    }
}

impl Shaped {
    /// Median of the runs that did not fail.
    fn median(&self, value: impl Fn(&Shares) -> f64) -> Option<f64> {
        let good = self.samples.iter().filter(|sample| sample.error.is_none());
        middle(good.map(value).collect())
    }

    fn failures(&self) -> usize {
        let failed = self.samples.iter().filter(|sample| sample.error.is_some());
        failed.count()
    }

    /// One line of text: the median and the failures.
    pub fn line(&self) -> String {
        let mbit = self.median(Shares::sum_mbit);
        let mbit = mbit.map_or("failed".into(), |mbit| format!("{mbit:.1} Mb/s"));
        let (failed, all) = (self.failures(), self.samples.len());
        let error = self.samples.iter().find_map(|sample| sample.error.as_ref());
        let why = error.map_or(String::new(), |error| format!("\n  {error}"));
        format!("{:<32} {mbit}, {failed} of {all} failed{why}", self.name)
    }
}

/// Shapes that the options select and this machine can measure.
pub fn chosen(options: &Wireless, only: Option<&Regex>) -> Vec<Shape> {
    let messages = (0..SIZES.len())
        .flat_map(|size| (0..WAYS.len()).map(move |way| Shape::Messages(way, size)));
    let connections = CONNECTIONS.into_iter().map(Shape::Connections);
    let foregrounds = FOREGROUNDS
        .into_iter()
        .flat_map(|mbit| BACKGROUNDS.map(|beside| Shape::Foreground(beside, mbit)));
    let all = messages
        .chain(connections)
        .chain(PROGRAMS.map(Shape::Programs))
        .chain(foregrounds);
    let is_wanted = |shape: &Shape| only.map_or(options.peers, |only| only.is_match(&shape.name()));
    all.filter(|shape| is_wanted(shape) && !shape.is_missing())
        .collect()
}

/// Samples of each shape.
pub fn runs(options: &Wireless) -> u32 {
    options.runs.unwrap_or(RUNS)
}

/// Estimated duration of a run.
pub fn guessed_s() -> f64 {
    SHAPE_S + OVERHEAD_S + 1.0
}

/// Rates of messages by size and way.
pub fn messages(all: &[Shaped]) -> Vec<Vec<String>> {
    let mut rows = vec![
        std::iter::once("message")
            .chain(WAYS.map(|(way, _)| way))
            .map(String::from)
            .collect(),
    ];
    for (size, (_, name)) in SIZES.iter().enumerate() {
        let cells = (0..WAYS.len()).map(|way| {
            let mbit = find(all, Shape::Messages(way, size))
                .and_then(|shaped| shaped.median(Shares::sum_mbit));
            mbit.map_or("-".into(), |mbit| format!("{mbit:.1}"))
        });
        rows.push(std::iter::once((*name).into()).chain(cells).collect());
    }
    rows.retain(|row: &Vec<String>| row.iter().skip(1).any(|cell| cell != "-"));
    rows
}

/// Rate of the largest messages, relative to the best size's.
pub fn kept_with_size(all: &[Shaped], way: &str) -> Option<f64> {
    let way = WAYS.iter().position(|(name, _)| *name == way)?;
    let mbit = |size| find(all, Shape::Messages(way, size))?.median(Shares::sum_mbit);
    let rates: Option<Vec<f64>> = (0..SIZES.len()).map(mbit).collect();
    let rates = rates?;
    let best = rates.iter().copied().fold(0.0, f64::max);
    Some(rates.last()? / best)
}

/// Programs that share the link, the least share (1 is an equal one), and the sum (1 is a single
/// program's).
pub fn fairness(all: &[Shaped]) -> Vec<(String, f64, f64)> {
    let sum = |shape| find(all, shape)?.median(Shares::sum_mbit);
    let Some(alone) = sum(Shape::Connections(1)) else {
        return Vec::new();
    };
    let several = sharers().into_iter().skip(1);
    let row = |(shape, name): (Shape, String)| {
        let least = find(all, shape)?.median(|shares| shares.extremes()[0])?;
        Some((name, least, sum(shape)? / alone))
    };
    several.filter_map(row).collect()
}

/// Share that a program with a fixed rate reaches beside a transport, by its rate.
pub fn foreground_shares(all: &[Shaped], beside: Transport) -> Vec<(u32, f64)> {
    let share = |mbit: u32| {
        let shaped = find(all, Shape::Foreground(beside, mbit))?;
        let got = shaped.median(|shares| shares.each_mbit[0])?;
        Some((mbit, got / f64::from(mbit)))
    };
    FOREGROUNDS.into_iter().filter_map(share).collect()
}

/// Connections and programs with their labels; one alone first.
fn sharers() -> Vec<(Shape, String)> {
    let connections =
        CONNECTIONS.map(|count| (Shape::Connections(count), format!("{count} connections")));
    let programs = PROGRAMS.map(|count| (Shape::Programs(count), format!("{count} programs")));
    connections.into_iter().chain(programs).collect()
}

/// Rows of the programs and connections that share a link.
pub fn sharing(all: &[Shaped]) -> Vec<Vec<String>> {
    let titles = ["at once", "Mb/s", "least", "greatest", "CPU s/GB", "failed"];
    let mut rows = vec![titles.map(String::from).to_vec()];
    for (shape, name) in sharers() {
        let Some(shaped) = find(all, shape) else {
            continue;
        };
        let cell = |value: Option<f64>, digits: usize| {
            value.map_or("-".into(), |value| format!("{value:.digits$}"))
        };
        rows.push(vec![
            name,
            cell(shaped.median(Shares::sum_mbit), 0),
            cell(shaped.median(|shares| shares.extremes()[0]), 3),
            cell(shaped.median(|shares| shares.extremes()[1]), 3),
            cell(shaped.median(|shares| shares.cpu_s_per_gb), 2),
            format!("{} of {}", shaped.failures(), shaped.samples.len()),
        ]);
    }
    rows
}

/// Rows of the programs with a fixed rate beside transports.
pub fn foregrounds(all: &[Shaped]) -> Vec<Vec<String>> {
    let titles = [
        "beside",
        "to send, Mb/s",
        "gets",
        "of it",
        "beside it, Mb/s",
        "failed",
    ];
    let mut rows = vec![titles.map(String::from).to_vec()];
    for beside in BACKGROUNDS {
        for mbit in FOREGROUNDS {
            let Some(shaped) = find(all, Shape::Foreground(beside, mbit)) else {
                continue;
            };
            let cell = |value: Option<f64>, digits: usize| {
                value.map_or("-".into(), |value| format!("{value:.digits$}"))
            };
            let got = shaped.median(|shares| shares.each_mbit[0]);
            rows.push(vec![
                beside.name().into(),
                mbit.to_string(),
                cell(got, 1),
                cell(got.map(|got| got / f64::from(mbit)), 2),
                cell(shaped.median(|shares| shares.each_mbit[1]), 0),
                format!("{} of {}", shaped.failures(), shaped.samples.len()),
            ]);
        }
    }
    rows
}

fn find(all: &[Shaped], shape: Shape) -> Option<&Shaped> {
    let name = shape.name();
    all.iter()
        .find(|shaped| shaped.name == name && !shaped.samples.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaped(shape: Shape, runs: &[&[f64]]) -> Shaped {
        let sample = |each_mbit: &&[f64]| Shares {
            each_mbit: each_mbit.to_vec(),
            cpu_s_per_gb: 2.0,
            error: each_mbit.is_empty().then(|| "it ended with 1".into()),
        };
        Shaped {
            name: shape.name(),
            samples: runs.iter().map(sample).collect(),
        }
    }

    #[test]
    fn shares_are_those_of_the_sum() {
        let runs: [&[f64]; 3] = [&[100.0, 300.0], &[200.0, 200.0], &[]];
        let two = shaped(Shape::Connections(2), &runs);
        assert_eq!(two.line().lines().nth(1), Some("  it ended with 1"));
        let rows = sharing(&[two]);
        assert_eq!(rows.len(), 2);
        // The median of two runs is the greater.
        let expected = ["2 connections", "400", "1.000", "1.500", "2.00", "1 of 3"];
        assert_eq!(rows[1], expected);
    }

    #[test]
    fn a_foreground_is_held_against_what_it_has_to_send() {
        let shape = Shape::Foreground(Transport::Air("buffers"), 80);
        let rows = foregrounds(&[shaped(shape, &[&[60.0, 400.0]])]);
        assert_eq!(
            rows[1..],
            [["airdma_air", "80", "60.0", "0.75", "400", "0 of 1"]]
        );
    }

    #[test]
    fn sizes_that_were_not_measured_have_no_row() {
        let air = shaped(Shape::Messages(2, 5), &[&[500.0]]);
        let rows = messages(&[air]);
        assert_eq!(rows[1..], [["64 KiB", "-", "-", "500.0"]]);
    }

    #[test]
    fn programs_that_ran_at_once_are_added_up() {
        let found = |each: &[u64], cpu_s| Found {
            bytes: each.iter().sum(),
            seconds: 1.0,
            each: each.to_vec(),
            cpu_s,
            ..Found::default()
        };
        let ends = [
            [found(&[25_000_000], 0.1), found(&[], 0.2)],
            [found(&[75_000_000], 0.3), found(&[], 0.4)],
        ];
        let shares = Shares::of(&ends);
        assert_eq!(shares.each_mbit, [200.0, 600.0]);
        assert_eq!(shares.extremes(), [0.5, 1.5]);
        assert!((shares.cpu_s_per_gb - 10.0).abs() < 1e-9);
    }
}
