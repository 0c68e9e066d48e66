//! iperf3 over TCP: the peer that bandwidth is compared with.

use airdma_lab::Listening;
use serde_json::Value;

use super::{Peer, Place, Plan, Reading, words};

const PORT: u16 = 5201;

/// One stream of TCP whose writes have `x` bytes; Gb/s that the receiver got.
#[derive(Clone, Copy, Debug)]
pub struct Iperf {
    /// "cubic" or "bbr".
    pub algorithm: &'static str,
    /// Nagle's algorithm is off (`-N`) for writes up to this size.
    pub no_delay_max: u64,
}

impl Peer for Iperf {
    fn programs(&self) -> Vec<&'static str> {
        if self.algorithm == "bbr" {
            vec!["iperf3", "tcp_bbr"]
        } else {
            vec!["iperf3"]
        }
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let (seconds, bytes) = (place.seconds.to_string(), x.to_string());
        let mut client = words([
            "iperf3",
            "-c",
            &place.server,
            "-t",
            &seconds,
            "-l",
            &bytes,
            "-J",
            "-C",
            self.algorithm,
        ]);
        if x <= self.no_delay_max {
            client.push("-N".into());
        }
        Plan {
            server: Some(words(["iperf3", "-s", "-1"])),
            listening: Listening::Tcp(PORT),
            stays: false,
            client,
        }
    }

    fn read(&self, _: &str, client: &str, _: u64) -> Option<Reading> {
        read(client)
    }
}

/// Bytes and time of the receiver, from the client's report (`-J`).
pub fn read(client: &str) -> Option<Reading> {
    let report: Value = serde_json::from_str(client).ok()?;
    let received = &report["end"]["sum_received"];
    Some(Reading {
        value: received["bits_per_second"].as_f64()? / 1e9,
        moved_bytes: received["bytes"].as_u64(),
        ..Reading::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = include_str!("samples/iperf3.json");

    #[test]
    fn what_the_receiver_got_counts() {
        let cubic = Iperf {
            algorithm: "cubic",
            no_delay_max: 0,
        };
        let reading = cubic.read("", REPORT, 65536).unwrap();
        assert_eq!(reading.moved_bytes, Some(6_478_233_600));
        assert!((reading.value - 51.654).abs() < 0.001);
        assert_eq!(cubic.read("", "{\"error\": \"refused\"}", 65536), None);
    }
}
