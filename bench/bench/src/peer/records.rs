//! Write-Records: programs of this crate against libibverbs' ABI and `airdma/verbs_record.h`.

use std::str::FromStr;

use airdma_lab::Listening;

use super::{Peer, Place, Plan, Reading, on_airdma};

const PORT: u16 = 20079;

/// Bytes of a message in a datagram of 64 KB of the datagram-iWARP paper.
pub const PAPER_DATAGRAM: u32 = 65_477;

/// What the two ends do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordsMode {
    /// Ping-pong: half a round trip, in microseconds.
    Latency,
    /// Ping-pong of RC WRITEs whose target watches its memory and polls its completion queue.
    WriteLatency,
    /// Back to back: Gb/s of valid bytes, and their share of all.
    Flow,
    /// The same, where a message without its last packet is lost.
    Strict,
    /// Reads of the peer's memory by datagrams, back to back: Gb/s, and the share of what was asked
    /// for that came.
    Read,
    /// Many sources and one target: millions of messages a second.
    Sources,
    /// Bytes by which the target grows for each source.
    SourceMemory,
    /// Reliable records to many destinations, one of which dies: the rate of the others, in per
    /// cent of the rate before.
    Destinations,
}

const MODES: [(&str, RecordsMode); 8] = [
    ("latency", RecordsMode::Latency),
    ("write-latency", RecordsMode::WriteLatency),
    ("flow", RecordsMode::Flow),
    ("strict", RecordsMode::Strict),
    ("read", RecordsMode::Read),
    ("sources", RecordsMode::Sources),
    ("source-memory", RecordsMode::SourceMemory),
    ("destinations", RecordsMode::Destinations),
];

impl RecordsMode {
    fn name(self) -> &'static str {
        let found = MODES.iter().find(|(_, mode)| *mode == self);
        found.map_or("", |(name, _)| name)
    }
}

impl FromStr for RecordsMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = MODES.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, mode)| *mode)
            .ok_or_else(|| format!("{name} is no mode"))
    }
}

/// Load of both ends.
#[derive(Clone, Copy, Debug)]
pub struct RecordsLoad {
    /// What they do.
    pub mode: RecordsMode,
    /// Bytes of a message.
    pub bytes: u32,
    /// Sources or destinations.
    pub count: u32,
}

impl RecordsLoad {
    /// Whether the source has many queue pairs.
    pub fn is_from_many(self) -> bool {
        matches!(self.mode, RecordsMode::Sources | RecordsMode::SourceMemory)
    }

    /// Whether the queue pairs are connected, and no records are sent.
    pub fn is_connected(self) -> bool {
        self.mode == RecordsMode::WriteLatency
    }

    /// Whether the memory of the end that serves is read.
    pub fn is_read(self) -> bool {
        self.mode == RecordsMode::Read
    }

    /// Whether the target has many.
    pub fn is_to_many(self) -> bool {
        self.mode == RecordsMode::Destinations
    }
}

/// Write-Records by message size, or by number of sources or destinations.
#[derive(Clone, Copy, Debug)]
pub struct WriteRecords {
    /// What the ends do.
    pub mode: RecordsMode,
    /// Bytes of a message where `x` is a number; `x` is the size where this is 0.
    pub bytes: u32,
}

impl Peer for WriteRecords {
    fn programs(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let (bytes, count) = match self.bytes {
            0 => (x, 1),
            bytes => (bytes.into(), x),
        };
        let end = |of: &[String]| {
            let mut command = vec![place.airdma.clone(), "bench-end".into()];
            command.extend_from_slice(of);
            command.push(format!("--mode={}", self.mode.name()));
            command.push(format!("--bytes={bytes}"));
            command.push(format!("--count={count}"));
            on_airdma(place, command)
        };
        Plan {
            server: Some(end(&["records-serve".into(), format!("--port={PORT}")])),
            listening: Listening::Tcp(PORT),
            stays: false,
            client: end(&[
                "records-drive".into(),
                format!("--to={}:{PORT}", place.server),
                format!("--seconds={}", place.seconds),
            ]),
        }
    }

    fn read(&self, server: &str, client: &str, _: u64) -> Option<Reading> {
        let said = [server, client].into_iter();
        said.filter_map(|said| serde_json::from_str(said).ok())
            .next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_end_reports() {
        let peer = WriteRecords {
            mode: RecordsMode::Flow,
            bytes: 0,
        };
        let said = r#"{"value":9.5,"p99":null,"moved_bytes":100,"valid":95.0,"paper":9.5}"#;
        for reading in [peer.read(said, "", 64), peer.read("", said, 64)] {
            let reading = reading.unwrap();
            assert_eq!((reading.value, reading.valid), (9.5, Some(95.0)));
        }
        assert_eq!(peer.read("", "", 64), None);
    }

    #[test]
    fn modes_have_names() {
        for (name, mode) in MODES {
            assert_eq!((mode.name(), name.parse()), (name, Ok(mode)));
        }
        assert!("walk".parse::<RecordsMode>().is_err());
    }
}
