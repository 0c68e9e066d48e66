//! Bare UDP: the most that sockets carry, without a protocol above. Both ends are this program.

use airdma_lab::Listening;
use serde::{Deserialize, Serialize};

use super::{Peer, Place, Plan, Reading};

pub const PORT: u16 = 20077;

/// Bytes of the headers of IPv4 and UDP.
const HEADERS: u32 = 28;

/// A sender that never waits, and a receiver that copies once more; Gb/s that arrived.
///
/// `x` is the size of one call.
#[derive(Clone, Copy, Debug)]
pub struct Datagrams {
    /// Segmentation offload when sending, coalescing when receiving; otherwise one system call a
    /// datagram.
    pub offload: bool,
}

/// Result that the receiver prints.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Received {
    /// Payload received.
    pub bytes: u64,
    /// Time from the first arrival to the last.
    pub seconds: f64,
}

impl Peer for Datagrams {
    fn programs(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let mut server = vec![
            place.airdma.clone(),
            "bench-end".into(),
            "udp-receive".into(),
            format!("--port={PORT}"),
        ];
        let mut client = vec![
            place.airdma.clone(),
            "bench-end".into(),
            "udp-send".into(),
            format!("--to={}:{PORT}", place.server),
            format!("--datagram={}", place.mtu.saturating_sub(HEADERS)),
            format!("--message={x}"),
            format!("--seconds={}", place.seconds),
        ];
        if self.offload {
            server.push("--offload".into());
            client.push("--offload".into());
        }
        Plan {
            server: Some(server),
            listening: Listening::Udp(PORT),
            stays: false,
            client,
        }
    }

    fn read(&self, server: &str, _: &str, _: u64) -> Option<Reading> {
        let received: Received = serde_json::from_str(server).ok()?;
        (received.seconds > 0.0).then(|| Reading {
            value: received.bytes as f64 * 8.0 / received.seconds / 1e9,
            moved_bytes: Some(received.bytes),
            ..Reading::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrived_counts() {
        let said = "{\"bytes\":1000000000,\"seconds\":0.5}\n";
        let peer = Datagrams { offload: true };
        let reading = peer.read(said, "", 65536).unwrap();
        assert_eq!(reading.value, 16.0);
        assert_eq!(reading.moved_bytes, Some(1_000_000_000));
        assert_eq!(peer.read("", "", 65536), None);
    }
}
