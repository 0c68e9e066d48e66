//! Streams of frames: `airdma-stream-peer`, a program of this project, once at each end.

use std::io;
use std::path::Path;

use airdma_lab::Listening;
use serde::Deserialize;

use super::{Peer, Place, Plan, Reading};
use crate::measurement::StreamCost;

const PEER: &str = "airdma-stream-peer";
const PORT: u16 = 20_081;

/// Frames a second of a camera.
pub const CAMERA_RATE: u32 = 25;
/// Blocks of each device.
const BLOCKS: u64 = 3;
/// Bytes of a frame where `x` is a number of blocks: those of an idea, and of throughput.
const SMALL: u64 = 64;
const KEPT_BYTES: u64 = 64 << 10;
/// Time for which a block is kept.
const KEPT_MS: u64 = 100;
/// Most cameras of 640x480x3; more of them have a sixteenth of that.
const LARGE_MAX: u64 = 12;
const LARGE_BYTES: u64 = 640 * 480 * 3;

/// How the ends agree on who may touch a block; `--discipline` of the program.
pub type Discipline = &'static str;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Control delay by number of blocks.
    Control,
    /// Latency by size, one frame at a time.
    OneWay,
    /// Gb/s by size.
    Flow,
    /// Loss of throughput while a block is kept, by number of blocks.
    Kept,
    /// Latency by number of cameras, with this number of blocks for each.
    Cameras { blocks: u64 },
}

/// A discipline of streams.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    /// Its name.
    pub discipline: Discipline,
    /// What is measured.
    pub shape: Shape,
}

impl Shape {
    pub const CAMERAS: Shape = Shape::Cameras { blocks: BLOCKS };

    fn devices(self, x: u64) -> u64 {
        match self {
            Shape::Cameras { .. } => x,
            Shape::Control | Shape::OneWay | Shape::Flow | Shape::Kept => 1,
        }
    }

    /// Arguments of both ends.
    fn load(self, x: u64, seconds: f64) -> Vec<String> {
        let (blocks, bytes, seconds) = match self {
            // All blocks are filled first.
            Shape::Control => (x, SMALL, (0.5 + x as f64 / 4096.0) * seconds),
            Shape::OneWay => (BLOCKS, x, 0.5 * seconds),
            Shape::Flow => (BLOCKS, x, seconds),
            Shape::Kept => (x, KEPT_BYTES, seconds),
            Shape::Cameras { blocks } => (blocks * x, camera_bytes(x), 2.5 * seconds),
        };
        let mut load = vec![
            format!("--blocks={blocks}"),
            format!("--bytes={bytes}"),
            format!("--seconds={seconds}"),
        ];
        match self {
            Shape::Control | Shape::OneWay => load.push("--holds".into()),
            Shape::Flow => {}
            Shape::Kept => load.push(format!("--keeps-ms={KEPT_MS}")),
            Shape::Cameras { .. } => {
                load.push(format!("--devices={x}"));
                load.push(format!("--rate={CAMERA_RATE}"));
            }
        }
        load
    }
}

/// Bytes of a frame of one of `x` cameras.
fn camera_bytes(x: u64) -> u64 {
    if x <= LARGE_MAX {
        LARGE_BYTES
    } else {
        LARGE_BYTES / 16
    }
}

/// What the receiver prints.
#[derive(Debug, Deserialize)]
struct Came {
    frames: u64,
    bytes: u64,
    seconds: f64,
    latency_us: Spread,
    control_us: Option<Spread>,
    in_time: Option<f64>,
    uneven: Option<f64>,
    kept_loss: Option<f64>,
    #[serde(flatten)]
    cost: Cost,
}

#[derive(Debug, Deserialize)]
struct Spread {
    p50: f64,
    p99: f64,
}

/// What the sender prints.
#[derive(Debug, Deserialize)]
struct Sent {
    frames: u64,
    given_up: u64,
    #[serde(flatten)]
    cost: Cost,
}

/// What an end has cost.
#[derive(Debug, Deserialize)]
struct Cost {
    cpu_s: f64,
    resident_bytes: u64,
    resources: Resources,
}

#[derive(Debug, Deserialize)]
struct Resources {
    sends: u32,
    receives: u32,
    completions: u32,
}

impl Cost {
    fn entries(&self) -> u32 {
        self.resources.sends + self.resources.receives + self.resources.completions
    }
}

impl Peer for Streams {
    fn programs(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn prepare(&self, place: &Place, _: u64) -> io::Result<()> {
        if Path::new(&program(place)).is_file() {
            return Ok(());
        }
        let message = format!("{PEER} is not beside airdma: cargo build --release -p {PEER}");
        Err(io::Error::new(io::ErrorKind::NotFound, message))
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let load = self.shape.load(x, f64::from(place.seconds));
        let end = |words: Vec<String>| {
            let mut command = vec![program(place)];
            command.extend(words);
            command.push(format!("--discipline={}", self.discipline));
            command.extend(load.iter().cloned());
            command
        };
        let (at, port) = (format!("--at={}", place.server), format!("--port={PORT}"));
        let to = format!("--to={}:{PORT}", place.server);
        Plan {
            server: Some(end(vec!["receive".into(), at, port])),
            listening: Listening::Tcp(PORT),
            stays: false,
            client: end(vec!["send".into(), to]),
        }
    }

    fn read(&self, server: &str, client: &str, x: u64) -> Option<Reading> {
        let came: Came = serde_json::from_str(server).ok()?;
        let sent: Sent = serde_json::from_str(client).ok()?;
        // Those that found no room for a second are late as well.
        let captured = (sent.frames + sent.given_up).max(1);
        let came_of_all = came.frames as f64 / captured as f64;
        let sent = sent.cost;
        let devices = self.shape.devices(x) as f64;
        let cpu_s = came.cost.cpu_s + sent.cpu_s;
        let (value, p99) = match self.shape {
            Shape::Control => {
                let delay = came.control_us?;
                (delay.p50, Some(delay.p99))
            }
            Shape::OneWay | Shape::Cameras { .. } => {
                (came.latency_us.p50, Some(came.latency_us.p99))
            }
            Shape::Flow => (came.bytes as f64 * 8.0 / came.seconds / 1e9, None),
            Shape::Kept => (came.kept_loss?, None),
        };
        let bytes = (came.cost.resident_bytes + sent.resident_bytes) as f64;
        let entries = f64::from(came.cost.entries() + sent.entries());
        Some(Reading {
            value,
            p99,
            moved_bytes: Some(came.bytes),
            stream: Some(StreamCost {
                cpu_s_per_gb: cpu_s / (came.bytes as f64 / 1e9),
                cpu_percent: 100.0 * cpu_s / came.seconds,
                device_bytes: bytes / devices,
                device_entries: entries / devices,
                in_time: came.in_time.map(|share| share * came_of_all),
                uneven: came.uneven,
            }),
            ..Reading::default()
        })
    }
}

/// Path of the program: it lies beside this one.
fn program(place: &Place) -> String {
    let path = Path::new(&place.airdma).with_file_name(PEER);
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAME: &str = r#"{"frames":101,"bytes":1000000000,"seconds":2.0,
        "latency_us":{"p50":10.0,"p99":20.0,"max":30.0,"mean":11.0},
        "control_us":{"p50":5.0,"p99":6.0,"max":7.0,"mean":5.0},
        "in_time":99.0,"uneven":3.0,"kept_loss":12.0,"cpu_s":0.5,"resident_bytes":3000,
        "resources":{"queue_pairs":1,"sends":2,"receives":0,"completions":1}}"#;
    const SENT: &str = r#"{"frames":101,"given_up":101,"cpu_s":1.5,"resident_bytes":9000,
        "resources":{"queue_pairs":1,"sends":5,"receives":3,"completions":1}}"#;

    #[test]
    fn each_shape_has_its_value() {
        let read = |shape, x| {
            let peer = Streams {
                discipline: "credits",
                shape,
            };
            peer.read(CAME, SENT, x).unwrap()
        };
        assert_eq!(read(Shape::Control, 3).value, 5.0);
        assert_eq!(read(Shape::OneWay, 64).p99, Some(20.0));
        assert_eq!(read(Shape::Flow, 64).value, 4.0);
        assert_eq!(read(Shape::Kept, 3).value, 12.0);
        let cost = read(Shape::CAMERAS, 12).stream.unwrap();
        assert_eq!((cost.cpu_s_per_gb, cost.cpu_percent), (2.0, 100.0));
        assert_eq!((cost.device_bytes, cost.device_entries), (1000.0, 1.0));
        assert_eq!((cost.in_time, cost.uneven), (Some(49.5), Some(3.0)));
    }

    #[test]
    fn cameras_have_blocks_of_their_own() {
        let words = Shape::CAMERAS.load(64, 1.0).join(" ");
        assert_eq!(
            words,
            "--blocks=192 --bytes=57600 --seconds=2.5 --devices=64 --rate=25"
        );
    }
}
