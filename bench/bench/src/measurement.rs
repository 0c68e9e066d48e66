//! All samples of a benchmark, as in the JSON file, and values derived from them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Gb/s by message size.
    Bandwidth,
    /// Microseconds by message size: half a round trip.
    Latency,
    /// Millions of messages a second by message size.
    MessageRate,
    /// CPU seconds of both ends for 10^9 bytes, by message size.
    Cpu,
    /// Gb/s by number of queue pairs.
    QueuePairs,
    /// Bytes of an idle queue pair, by their number.
    IdleMemory,
    /// Connections a second, by their number.
    Connections,
    /// Valid bytes at the target of those sent, in per cent, by message size.
    Valid,
    /// Millions of messages a second from many sources to one target.
    Sources,
    /// Bytes by which the target grows for each source.
    SourceMemory,
    /// Rate of the other destinations when one has died, in per cent of the rate before.
    Survivors,
    /// Thousands of objects a second from a web server, by their size.
    Web,
    /// Thousands of GETs a second from redis, by the number of clients.
    Get,
    /// Thousands of SETs a second.
    Set,
    /// Microseconds from a call of SIPp to its first answer.
    Response,
    /// Bytes of both ends for each of SIPp's clients, by their number.
    ClientMemory,
    /// Microseconds from a freed block until the sender of a stream knows it, by number of blocks.
    Control,
    /// Microseconds from a frame's capture until the receiver has it, by its size.
    OneWay,
    /// Loss of a stream's throughput while one block is kept, in per cent, by number of blocks.
    Kept,
    /// Microseconds from a frame's capture until the receiver has it, by number of cameras.
    Cameras,
    /// Share of cameras' frames that come before the next capture, in per cent.
    InTime,
    /// Distance of the cameras' rate in 100 ms from the mean, in per cent.
    Uneven,
    /// CPU of both ends of cameras' streams, in per cent of a core.
    CamerasCpu,
    /// Memory of both ends for a camera, in bytes.
    CameraMemory,
    /// Entries of both ends' queues for a camera.
    CameraQueues,
    /// Gb/s of WRITEs to a program, by the seconds that it is stopped.
    Stopped,
}

impl Figure {
    /// Name in cases.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Bandwidth => "bandwidth",
            Figure::Latency => "latency",
            Figure::MessageRate => "message-rate",
            Figure::Cpu => "cpu",
            Figure::QueuePairs => "queue-pairs",
            Figure::IdleMemory => "idle-memory",
            Figure::Connections => "connections",
            Figure::Valid => "valid",
            Figure::Sources => "sources",
            Figure::SourceMemory => "source-memory",
            Figure::Survivors => "survivors",
            Figure::Web => "web",
            Figure::Get => "get",
            Figure::Set => "set",
            Figure::Response => "response",
            Figure::ClientMemory => "client-memory",
            Figure::Control => "control",
            Figure::OneWay => "one-way",
            Figure::Kept => "kept",
            Figure::Cameras => "cameras",
            Figure::InTime => "in-time",
            Figure::Uneven => "uneven",
            Figure::CamerasCpu => "cameras-cpu",
            Figure::CameraMemory => "camera-memory",
            Figure::CameraQueues => "camera-queues",
            Figure::Stopped => "stopped",
        }
    }

    /// Title, with the unit.
    pub fn title(self) -> &'static str {
        match self {
            Figure::Bandwidth => "Bandwidth, Gb/s",
            Figure::Latency => "Latency, us, half a round trip (READ: a whole one)",
            Figure::MessageRate => "Messages, millions a second",
            Figure::Cpu => "CPU seconds of both ends for 10^9 bytes",
            Figure::QueuePairs => "Bandwidth by number of queue pairs, Gb/s, same load",
            Figure::IdleMemory => "Memory of an idle RC queue pair, bytes",
            Figure::Connections => "Connections a second",
            Figure::Valid => "Valid bytes at the target, per cent of those sent",
            Figure::Sources => "Messages of 1 KiB from many sources, millions a second",
            Figure::SourceMemory => "Memory of a source at the target, bytes",
            Figure::Survivors => {
                "Rate of the other destinations when one has died, per cent of that before"
            }
            Figure::Web => "Objects from nginx, thousands a second",
            Figure::Get => "GETs of redis, thousands a second",
            Figure::Set => "SETs of redis, thousands a second",
            Figure::Response => "SIPp's time from INVITE to the first answer, us",
            Figure::ClientMemory => "Memory of both ends for each of SIPp's clients, bytes",
            Figure::Control => "Control delay, us",
            Figure::OneWay => "Latency of a frame, one way, us",
            Figure::Kept => "Throughput lost by a kept block, %",
            Figure::Cameras => "Cameras: latency, us",
            Figure::InTime => "Frames that came before the next capture, per cent",
            Figure::Uneven => "Largest distance of the rate in 100 ms from the mean, per cent",
            Figure::CamerasCpu => "Cameras: CPU, per cent of a core",
            Figure::CameraMemory => "Memory for each camera, bytes",
            Figure::CameraQueues => "Entries of both ends' queues for each camera",
            Figure::Stopped => "WRITEs of 64 KiB to a program that is stopped for a time, Gb/s",
        }
    }

    /// Title of `x`.
    pub fn x_title(self) -> &'static str {
        match self {
            Figure::Bandwidth
            | Figure::Latency
            | Figure::MessageRate
            | Figure::Cpu
            | Figure::Valid => "message",
            Figure::OneWay => "frame",
            Figure::Control | Figure::Kept => "blocks",
            Figure::Cameras
            | Figure::InTime
            | Figure::Uneven
            | Figure::CamerasCpu
            | Figure::CameraMemory
            | Figure::CameraQueues => "cameras",
            Figure::Stopped => "seconds",
            Figure::Sources | Figure::SourceMemory => "sources",
            Figure::Survivors => "destinations",
            Figure::Web => "object",
            Figure::Get | Figure::Set | Figure::Response | Figure::ClientMemory => "clients",
            Figure::QueuePairs | Figure::IdleMemory => "queue pairs",
            Figure::Connections => "connections",
        }
    }

    /// `x` with its unit.
    pub fn x_text(self, x: u64) -> String {
        match self {
            Figure::Bandwidth
            | Figure::Latency
            | Figure::MessageRate
            | Figure::Cpu
            | Figure::Web
            | Figure::OneWay
            | Figure::Valid => crate::units::size(x),
            Figure::QueuePairs
            | Figure::IdleMemory
            | Figure::Connections
            | Figure::Sources
            | Figure::SourceMemory
            | Figure::Get
            | Figure::Set
            | Figure::Response
            | Figure::ClientMemory
            | Figure::Control
            | Figure::Kept
            | Figure::Cameras
            | Figure::InTime
            | Figure::Uneven
            | Figure::CamerasCpu
            | Figure::CameraMemory
            | Figure::CameraQueues
            | Figure::Stopped
            | Figure::Survivors => crate::units::thousands(x),
        }
    }

    /// Whether its programs report the 99th percentile of a latency.
    pub fn has_p99(self) -> bool {
        matches!(
            self,
            Figure::Latency
                | Figure::Web
                | Figure::Get
                | Figure::Set
                | Figure::Response
                | Figure::Control
                | Figure::OneWay
                | Figure::Cameras
        )
    }

    /// Whether a larger value is the better one.
    pub fn more_is_better(self) -> bool {
        match self {
            Figure::Bandwidth
            | Figure::MessageRate
            | Figure::QueuePairs
            | Figure::Connections
            | Figure::Valid
            | Figure::Sources
            | Figure::Web
            | Figure::Get
            | Figure::Set
            | Figure::InTime
            | Figure::Stopped
            | Figure::Survivors => true,
            Figure::Latency
            | Figure::Cpu
            | Figure::IdleMemory
            | Figure::SourceMemory
            | Figure::Response
            | Figure::ClientMemory
            | Figure::Control
            | Figure::OneWay
            | Figure::Kept
            | Figure::Cameras
            | Figure::Uneven
            | Figure::CamerasCpu
            | Figure::CameraMemory
            | Figure::CameraQueues => false,
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Sample {
    /// In the figure's unit.
    pub value: f64,
    /// 99th percentile of the run, where the program gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
    /// CPU seconds of both ends, from their start to their end, and of soft interrupts.
    pub cpu_s: f64,
    /// Payload moved, if the program reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_bytes: Option<u64>,
    /// Share of the sent bytes that are valid at the target, in per cent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid: Option<f64>,
    /// The same by the rule of the datagram-iWARP paper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paper: Option<f64>,
    /// What a stream of frames cost beside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamCost>,
}

/// What a run of a stream of frames found beside its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct StreamCost {
    /// CPU of both ends while frames were sent: seconds for 10^9 bytes.
    pub cpu_s_per_gb: f64,
    /// The same in per cent of a core.
    pub cpu_percent: f64,
    /// Resident memory of both ends for each device, in bytes.
    pub device_bytes: f64,
    /// Entries of both ends' queues for each device.
    pub device_entries: f64,
    /// Share of frames that came before the next capture, in per cent, if there are captures.
    pub in_time: Option<f64>,
    /// Largest distance of the rate in 100 ms from the mean, in per cent, likewise.
    pub uneven: Option<f64>,
}

/// All runs at one `x`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Point {
    /// Samples in the order they were taken.
    pub samples: Vec<Sample>,
    /// Output of both ends in runs without a result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// The server's command line, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The client's command line.
    pub client: String,
}

impl Point {
    /// The median of the values; none without samples.
    pub fn median(&self) -> Option<f64> {
        median(self.samples.iter().map(|sample| sample.value))
    }

    /// The median of the 99th percentiles.
    pub fn median_p99(&self) -> Option<f64> {
        median(self.samples.iter().filter_map(|sample| sample.p99))
    }

    /// The median of the shares of valid bytes.
    pub fn median_valid(&self) -> Option<f64> {
        median(self.samples.iter().filter_map(|sample| sample.valid))
    }

    /// The same by the paper's rule.
    pub fn median_paper(&self) -> Option<f64> {
        median(self.samples.iter().filter_map(|sample| sample.paper))
    }

    /// Smallest and largest value.
    pub fn spread(&self) -> Option<(f64, f64)> {
        let values = || self.samples.iter().map(|sample| sample.value);
        let low = values().min_by(f64::total_cmp)?;
        Some((low, values().max_by(f64::total_cmp)?))
    }
}

/// The median; of an even number the mean of the two in the middle.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    Some(if values.len().is_multiple_of(2) {
        (values[values.len() / 2 - 1] + upper) / 2.0
    } else {
        upper
    })
}

/// One program on one link: a line of a plot.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Curve {
    /// Quantity of the values.
    pub figure: Figure,
    /// The link's name.
    pub link: String,
    /// Name in cases.
    pub name: String,
    /// Name in tables and legends.
    pub label: String,
    /// Whether airdma is compared with it.
    pub peer: bool,
    /// Points by message size or count.
    pub points: BTreeMap<u64, Point>,
}

impl Curve {
    /// The curve of another value of the same runs, where they have it.
    pub fn of_value(&self, figure: Figure, value: impl Fn(&Sample) -> Option<f64>) -> Curve {
        let points = self.points.iter().filter_map(|(x, point)| {
            let sample = |sample: &Sample| {
                Some(Sample {
                    value: value(sample)?,
                    ..Sample::default()
                })
            };
            let samples: Vec<Sample> = point.samples.iter().filter_map(sample).collect();
            let is_any = !samples.is_empty();
            let point = Point {
                samples,
                client: point.client.clone(),
                server: point.server.clone(),
                ..Point::default()
            };
            is_any.then_some((*x, point))
        });
        Curve {
            figure,
            points: points.collect(),
            ..self.clone()
        }
    }
}

/// A program that is not installed or a link that cannot be made, and the series left out for it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Missing {
    /// A program, or "link" and its name.
    pub program: String,
    /// The Debian package of the program, or the reason that the link cannot be made.
    pub package: String,
    /// Labels of the series left out.
    pub labels: Vec<String>,
}

/// A link between the two hosts.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct LinkFacts {
    /// Name in cases.
    pub name: String,
    /// Description for readers.
    pub label: String,
    /// MTU in bytes.
    pub mtu: u32,
}

/// All results of one benchmark.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Measurement {
    /// Format of the file, [`FORMAT`]. (Format 1 was that of an older program.)
    pub format: u32,
    /// The command line.
    pub command: String,
    /// Begin, UTC.
    pub started: String,
    /// Samples of each case.
    pub runs: u32,
    /// Seconds of a bandwidth run.
    pub seconds: u32,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
    /// Facts about the machine ([`crate::machine::describe`]).
    pub machine: BTreeMap<String, String>,
    /// Versions of the compared programs.
    pub versions: BTreeMap<String, String>,
    /// Series left out for lack of a program.
    pub missing: Vec<Missing>,
    /// The links, in order.
    pub links: Vec<LinkFacts>,
    /// Curves in the order they were first measured.
    pub curves: Vec<Curve>,
}

/// Format of the JSON files that this program reads and writes.
pub const FORMAT: u32 = 2;

impl Measurement {
    /// One curve, if it was measured.
    pub fn curve(&self, figure: Figure, link: &str, name: &str) -> Option<&Curve> {
        self.curves
            .iter()
            .find(|curve| curve.figure == figure && curve.link == link && curve.name == name)
    }

    /// One point of a curve, if it was measured.
    pub fn point(&self, figure: Figure, link: &str, name: &str, x: u64) -> Option<&Point> {
        self.curve(figure, link, name)?.points.get(&x)
    }

    /// The curves of one figure on one link.
    pub fn curves_of(&self, figure: Figure, link: &str) -> Vec<&Curve> {
        let wanted = |curve: &&Curve| curve.figure == figure && curve.link == link;
        self.curves.iter().filter(wanted).collect()
    }

    /// Figures and links with samples, in order.
    pub fn groups(&self) -> Vec<(Figure, &LinkFacts)> {
        let mut groups = Vec::new();
        for curve in &self.curves {
            let link = self.links.iter().find(|link| link.name == curve.link);
            let group = link.map(|link| (curve.figure, link));
            groups.extend(group.filter(|group| !groups.contains(group)));
        }
        groups
    }

    /// Number of runs without a result.
    pub fn failures(&self) -> usize {
        let points = self.curves.iter().flat_map(|curve| curve.points.values());
        points.map(|point| point.failures.len()).sum()
    }
}

#[cfg(test)]
pub mod made_up {
    //! A measurement for tests.

    use super::*;

    /// One link, `veth-1500`, with values: figure, series, whether it is a peer, size, samples.
    pub fn measurement(values: &[(Figure, &str, bool, u64, &[f64])]) -> Measurement {
        let mut taken = Measurement {
            format: FORMAT,
            command: "airdma bench".into(),
            started: "2026-01-01 00:00 UTC".into(),
            runs: 3,
            seconds: 1,
            interrupted: false,
            machine: BTreeMap::new(),
            versions: BTreeMap::new(),
            missing: Vec::new(),
            links: vec![LinkFacts {
                name: "veth-1500".into(),
                label: "veth, MTU 1500".into(),
                mtu: 1500,
            }],
            curves: Vec::new(),
        };
        for (figure, name, peer, x, samples) in values {
            if taken.curve(*figure, "veth-1500", name).is_none() {
                taken.curves.push(Curve {
                    figure: *figure,
                    link: "veth-1500".into(),
                    name: (*name).into(),
                    label: format!("label of {name}"),
                    peer: *peer,
                    points: BTreeMap::new(),
                });
            }
            let is_it = |curve: &&mut Curve| curve.figure == *figure && curve.name == *name;
            let curve = taken.curves.iter_mut().find(is_it).unwrap();
            let sample = |value: &f64| Sample {
                value: *value,
                p99: Some(value * 2.0),
                cpu_s: 1.0,
                ..Sample::default()
            };
            let point = Point {
                samples: samples.iter().map(sample).collect(),
                ..Point::default()
            };
            curve.points.insert(*x, point);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median([].into_iter()), None);
    }
}
