//! Measured programs, each with its command line and the parser of its output.

use std::io;

use airdma_lab::Listening;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::measurement::StreamCost;

mod at_daemon;
mod cm_time;
mod fabric;
mod idle_pairs;
mod iperf;
mod many_pairs;
mod perftest;
mod records;
mod redis;
mod sipp;
mod sockperf;
mod streams;
mod ucx;
mod udp;
mod under;
mod web;

pub use at_daemon::{AtDaemon, Stopped};
pub use cm_time::CmTime;
pub use fabric::PingPong;
pub use idle_pairs::{Grown, IdlePairs};
pub use iperf::Iperf;
pub use many_pairs::{ManyPairs, Written};
pub use perftest::{Bandwidth, Latency, Pairs};
pub use records::{PAPER_DATAGRAM, RecordsLoad, RecordsMode, WriteRecords};
pub use redis::{Redis, RedisCall};
pub use sipp::{Sipp, SippMemory};
pub use sockperf::Sockperf;
pub use streams::{CAMERA_RATE, Discipline, Shape, Streams};
pub use ucx::Ucx;
pub use udp::{Datagrams, Received};
pub use under::{FOUR_CORES, Plain, Sealed, SecondCore, Shimmed, Unconnected};
pub use web::Web;

/// Environment of a run.
#[derive(Clone, Debug)]
pub struct Place {
    /// The server's address.
    pub server: String,
    /// The client's address.
    pub client: String,
    /// MTU of the link, in bytes.
    pub mtu: u32,
    /// Seconds of a bandwidth run.
    pub seconds: u32,
    /// The `airdma` binary.
    pub airdma: String,
    /// A folder of this measurement alone.
    pub folder: String,
    /// Path of a file with a secret that both ends may share.
    pub secret: String,
    /// Two cores for the client and two for the server; none on a machine with fewer.
    pub core_pairs: Option<[[usize; 2]; 2]>,
}

#[cfg(test)]
impl Place {
    fn made_up() -> Place {
        Place {
            server: "10.77.0.2".into(),
            client: "10.77.0.1".into(),
            mtu: 1500,
            seconds: 1,
            airdma: "airdma".into(),
            folder: "/tmp/f".into(),
            secret: "/tmp/secret".into(),
            core_pairs: Some([[0, 2], [1, 3]]),
        }
    }
}

/// A server and its client; or one program alone, as the client.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Program and arguments of the server.
    pub server: Option<Vec<String>>,
    /// Sign that the server is ready.
    pub listening: Listening,
    /// Whether the server must be ended.
    pub stays: bool,
    /// Program and arguments of the client.
    pub client: Vec<String>,
}

/// Result of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Reading {
    /// Value in the unit of the figure.
    pub value: f64,
    /// 99th percentile, if the program reports it.
    pub p99: Option<f64>,
    /// Payload moved, if the program reports it.
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

/// A program that is measured for one number, `x`: a message size or a count.
pub trait Peer {
    /// Programs that must be installed.
    fn programs(&self) -> Vec<&'static str>;

    /// Makes the files that the run needs, in the folder of `place`.
    ///
    /// # Errors
    ///
    /// If they cannot be written.
    fn prepare(&self, _place: &Place, _x: u64) -> io::Result<()> {
        Ok(())
    }

    /// Commands of the run.
    fn plan(&self, place: &Place, x: u64) -> Plan;

    /// Parses the output of both ends; none if it holds no result.
    fn read(&self, server: &str, client: &str, x: u64) -> Option<Reading>;
}

/// Result in a program's output, as JSON; none if it has no result or the program is unknown.
///
/// `perftest`: the rows of the table, title to value. `iperf3` (`-J`) and `sockperf`: a
/// [`Reading`], in Gb/s and in microseconds.
pub fn read_output(program: &str, output: &str) -> Option<Value> {
    let reading = match program {
        "perftest" => return serde_json::to_value(perftest::parse(output)).ok(),
        "iperf3" => iperf::read(output)?,
        "sockperf" => sockperf::read(output)?,
        _ => return None,
    };
    serde_json::to_value(reading).ok()
}

/// A command line from words.
fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}

/// The command that runs `command` on airdma.
fn on_airdma(place: &Place, command: Vec<String>) -> Vec<String> {
    let mut all = vec![place.airdma.clone(), "run".into(), "--".into()];
    all.extend(command);
    all
}
